//! The time limit of an incomplete FPDU: it begins when the FPDU begins, whatever of it arrives later.

use core::time::Duration;
use rdma::testutil::*;
use rdma::{CloseHow, EndpointConfig, ErrorCode, Event, RdmaStats};

const LIMIT: Duration = Duration::from_secs(120);
const MOMENT: Duration = Duration::from_nanos(1);
const ENDED: [Event; 2] =
    [Event::Failed { code: ErrorCode::TCP_LOST }, Event::Close { how: CloseHow::Reset }];

/// Returns a responder with this time limit, and FPDUs of its peer that write to the granted region.
fn responder(fpdu_timeout: Option<Duration>, writes: u64) -> (Side, Vec<Vec<u8>>) {
    let private_data = rdma::service::encode_request("lab", BOTH, b"").unwrap();
    let mut cli = Side::initiator(initiator_config(), &request(&private_data));
    let mut daemon = Side::responder(EndpointConfig { fpdu_timeout, ..initiator_config() });
    daemon.add_region("lab", vec![0; 1000], BOTH);
    run(&mut cli, &mut daemon, &mut segments(1448));
    let (grant, local) = (cli.grant(), cli.memory.add(pattern(1000, 1)).unwrap());
    for wr_id in 0..writes {
        cli.endpoint.post_write(wr_id, slice(local, 0, 1000), grant.stag, 0).unwrap();
        cli.transmit();
    }
    let fpdus: Vec<Vec<u8>> = cli.wire.segments.drain(..).collect();
    assert_eq!(fpdus.len() as u64, writes);
    daemon.events.clear();
    (daemon, fpdus)
}

fn timeouts(stats: &RdmaStats) -> u64 {
    stats.drops.fpdu_timeout
}

#[test]
fn bytes_that_trickle_in_do_not_extend_the_time_limit() {
    for first in [1, 2, 20, 500, 1000] {
        let (mut daemon, fpdus) = responder(Some(LIMIT), 1);
        daemon.deliver(&fpdus[0][..first]);
        for byte in &fpdus[0][first..first + 15] {
            daemon.pass_time(LIMIT / 16);
            daemon.deliver(&[*byte]);
        }
        daemon.pass_time(LIMIT - LIMIT / 16 * 15 - MOMENT);
        assert_eq!((daemon.drain_events(), timeouts(&daemon.stats)), (vec![], 0), "{first}");
        daemon.pass_time(MOMENT);
        assert_eq!((daemon.drain_events(), timeouts(&daemon.stats)), (ENDED.to_vec(), 1), "{first}");
        assert_eq!((daemon.endpoint.next_deadline(), daemon.endpoint.chunks()), (None, 0));
    }
}

/// Each FPDU has a time limit of its own: a slow stream does not end as long as all of them become complete.
#[test]
fn a_complete_fpdu_ends_its_time_limit() {
    let (mut daemon, fpdus) = responder(Some(LIMIT), 16);
    let part = LIMIT / 4 * 3;
    let (mut stream, mut begun) = (fpdus.concat(), fpdus[0].len() / 2);
    while begun < stream.len() {
        let rest = stream.split_off(begun);
        daemon.deliver(&stream);
        daemon.pass_time(part);
        assert_eq!(daemon.drain_events(), []);
        (stream, begun) = (rest, fpdus[0].len());
    }
    // The last FPDU is half there.
    daemon.pass_time(LIMIT - part - MOMENT);
    assert_eq!(daemon.drain_events(), []);
    daemon.pass_time(MOMENT);
    assert_eq!((daemon.drain_events(), timeouts(&daemon.stats)), (ENDED.to_vec(), 1));
}

#[test]
fn a_stream_without_an_incomplete_fpdu_has_no_time_limit() {
    for writes in [0, 1, 5] {
        let (mut daemon, fpdus) = responder(Some(LIMIT), writes);
        fpdus.iter().for_each(|fpdu| daemon.deliver(fpdu));
        daemon.pass_time(LIMIT * 1000);
        assert_eq!((daemon.drain_events(), timeouts(&daemon.stats)), (vec![], 0), "{writes} FPDUs");
    }
    // Nor has any, if the configuration says so.
    let (mut daemon, fpdus) = responder(None, 1);
    daemon.deliver(&fpdus[0][..500]);
    daemon.pass_time(LIMIT * 1000);
    assert_eq!((daemon.drain_events(), timeouts(&daemon.stats)), (vec![], 0));
}
