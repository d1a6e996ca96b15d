//! Disconnect by the owner while the peer stalls: it owes Read Responses, or does not take its own.

use core::time::Duration;
use rdma::testutil::*;
use rdma::{CloseHow, EndpointConfig, ErrorCode, Event, WcOpcode, WcStatus};

const LAB: usize = 64 << 10;
const MOMENT: Duration = Duration::from_nanos(1);
const LOST: Event = Event::Failed { code: ErrorCode::TCP_LOST };
const TIMEOUTS: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_secs(30), Duration::from_secs(3600)];

fn with_timeout(disconnect_timeout: Duration) -> EndpointConfig {
    EndpointConfig { disconnect_timeout, ..initiator_config() }
}

/// Returns an initiator and a responder with this time limit, and the initiator's grant.
fn pair(timeout: Duration) -> (Side, Side, rdma::service::Grant) {
    let private_data = rdma::service::encode_request("lab", BOTH, b"").unwrap();
    let mut cli = Side::initiator(with_timeout(timeout), &request(&private_data));
    let mut daemon = Side::responder(with_timeout(timeout));
    daemon.add_region("lab", pattern(LAB, 1), BOTH);
    run(&mut cli, &mut daemon, &mut segments(1448));
    let grant = cli.grant();
    (cli.events, daemon.events) = (Vec::new(), Vec::new());
    (cli, daemon, grant)
}

fn flushed(wr_id: u64) -> Event {
    Event::Completion { wr_id, op: WcOpcode::RdmaRead, status: WcStatus::WrFlushError, bytes: 0 }
}

#[test]
fn read_responses_that_never_arrive_reset_the_connection_after_the_time_limit() {
    for timeout in TIMEOUTS {
        for reads in [1, 2, 16] {
            let (mut cli, _, grant) = pair(timeout);
            let local = cli.memory.add(vec![0; LAB]).unwrap();
            for wr_id in 0..reads {
                cli.endpoint.post_read(wr_id, slice(local, 0, 4000), grant.stag, 0).unwrap();
            }
            cli.transmit();
            assert_eq!(cli.endpoint.next_deadline(), None);
            cli.now += timeout;
            cli.endpoint.disconnect(cli.now);
            let deadline = cli.now + timeout;
            assert_eq!(cli.endpoint.next_deadline(), Some(deadline));
            // A second disconnect does not extend the time limit.
            cli.now += timeout / 2;
            cli.endpoint.disconnect(cli.now);
            assert_eq!(cli.endpoint.next_deadline(), Some(deadline));
            cli.pass_time(deadline - cli.now - MOMENT);
            assert_eq!(cli.drain_events(), []);
            cli.pass_time(MOMENT);
            let mut expected = vec![LOST];
            expected.extend((0..reads).map(flushed));
            expected.push(Event::Close { how: CloseHow::Reset });
            assert_eq!(cli.drain_events(), expected);
            assert_eq!(cli.endpoint.next_deadline(), None);
            assert_eq!(cli.stats.rdmap.disconnects_overdue, 1);
            assert_eq!(cli.transmit().frames, 0);
        }
    }
}

/// Responses that arrive do not extend the time limit for the others.
#[test]
fn slow_progress_of_the_peer_does_not_extend_the_time_limit() {
    for timeout in TIMEOUTS {
        let (mut cli, mut daemon, grant) = pair(timeout);
        let local = cli.memory.add(vec![0; LAB]).unwrap();
        for wr_id in 0..16 {
            cli.endpoint.post_read(wr_id, slice(local, 0, 8), grant.stag, 0).unwrap();
        }
        cli.transmit();
        carry(&mut cli, &mut daemon, &mut segments(1448));
        daemon.transmit();
        let responses: Vec<Vec<u8>> = daemon.wire.segments.drain(..).collect();
        assert_eq!(responses.len(), 16);
        let deadline = cli.now + timeout;
        cli.endpoint.disconnect(cli.now);
        for response in &responses[..15] {
            cli.pass_time(timeout / 16);
            cli.deliver(response);
            assert_eq!(cli.endpoint.next_deadline(), Some(deadline));
        }
        cli.pass_time(deadline - cli.now);
        let events = cli.drain_events();
        assert_eq!(events[15..], [LOST, flushed(15), Event::Close { how: CloseHow::Reset }]);
    }
}

/// The peer requests bytes and does not take them: its window stays closed.
#[test]
fn read_responses_that_the_peer_does_not_take_are_dropped_after_the_time_limit() {
    for timeout in TIMEOUTS {
        for room in [0, 100, 1448, 20_000] {
            let (mut cli, mut daemon, grant) = pair(timeout);
            let local = cli.memory.add(vec![0; LAB]).unwrap();
            cli.endpoint.post_read(1, slice(local, 0, 60_000), grant.stag, 0).unwrap();
            cli.transmit();
            daemon.wire = Wire::new(1448, room);
            carry(&mut cli, &mut daemon, &mut segments(1448));
            assert!(daemon.transmit().pending);
            daemon.endpoint.disconnect(daemon.now);
            assert_eq!(daemon.endpoint.next_deadline(), Some(daemon.now + timeout));
            daemon.pass_time(timeout - MOMENT);
            assert!(daemon.transmit().pending);
            assert_eq!(daemon.drain_events(), []);
            daemon.pass_time(MOMENT);
            assert_eq!(daemon.drain_events(), [LOST, Event::Close { how: CloseHow::Reset }]);
            assert_eq!((daemon.stats.rdmap.disconnects_overdue, daemon.endpoint.next_deadline()), (1, None));
        }
    }
}

#[test]
fn a_graceful_end_leaves_no_timer() {
    for timeout in TIMEOUTS {
        let (mut cli, mut daemon, grant) = pair(timeout);
        let local = cli.memory.add(vec![0; LAB]).unwrap();
        cli.endpoint.post_read(1, slice(local, 0, 60_000), grant.stag, 0).unwrap();
        cli.endpoint.disconnect(cli.now);
        cli.pass_time(timeout - MOMENT);
        run(&mut cli, &mut daemon, &mut segments(1448));
        let done =
            Event::Completion { wr_id: 1, op: WcOpcode::RdmaRead, status: WcStatus::Success, bytes: 60_000 };
        assert_eq!(cli.drain_events(), [done, Event::Close { how: CloseHow::Fin }]);
        assert_eq!((cli.endpoint.next_deadline(), cli.stats.rdmap.disconnects_overdue), (None, 0));
        assert_eq!(cli.bytes(local)[..60_000], pattern(LAB, 1)[..60_000]);
    }
}

/// The peer closes its half and then takes nothing: the owner's disconnect still has its time limit.
#[test]
fn a_disconnect_from_a_half_closed_peer_has_a_time_limit() {
    for timeout in TIMEOUTS {
        let (mut cli, mut daemon, grant) = pair(timeout);
        let local = cli.memory.add(vec![0; LAB]).unwrap();
        cli.endpoint.post_read(1, slice(local, 0, 60_000), grant.stag, 0).unwrap();
        cli.transmit();
        daemon.wire = Wire::new(1448, 0);
        carry(&mut cli, &mut daemon, &mut segments(1448));
        daemon.endpoint.peer_closed(daemon.now, &mut daemon.stats);
        daemon.transmit();
        daemon.collect();
        assert_eq!((daemon.endpoint.next_deadline(), daemon.drain_events()), (None, vec![]));
        daemon.endpoint.disconnect(daemon.now);
        daemon.pass_time(timeout);
        assert_eq!(daemon.drain_events(), [LOST, Event::Close { how: CloseHow::Reset }]);
    }
}
