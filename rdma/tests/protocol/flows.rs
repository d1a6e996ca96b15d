//! Complete flows between a command-line initiator and the daemon.

use core::time::Duration;

use rdma::service::{ServiceError, Status, decode_reply, encode_request};
use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::wire::mpa::RtrOptions;
use rdma::{
    Access, CloseHow, ConnectRequest, EndpointConfig, ErrorCode, Event, POKES_MAX, PostError, Stag,
    StreamError, StreamState, WcOpcode, WcStatus,
};

fn success(wr_id: u64, op: WcOpcode, bytes: u32) -> Event {
    Event::Completion { wr_id, op, status: WcStatus::Success, bytes }
}

#[test]
fn put_then_prove_then_get() {
    const LEN: u32 = if cfg!(miri) { 9_000 } else { 300_000 };
    const PART: u32 = LEN / 3;
    let (mut cli, mut daemon, lab) = connected(vec![0; LEN as usize + 5]);
    let grant = cli.grant();
    assert_eq!((grant.access, grant.base_to, grant.bytes), (BOTH, 0, u64::from(LEN) + 5));
    let file = pattern(LEN as usize, 9);
    let local = cli.memory.add(file.clone()).unwrap();
    let copy = cli.memory.add(vec![0; LEN as usize]).unwrap();
    cli.events.clear();

    // Writes in windows, then an empty Read whose response proves that they are placed.
    for window in 0..3u32 {
        let (at, len) = (window * PART, PART);
        let part = slice(local, at.into(), len);
        cli.endpoint.post_write(window.into(), part, grant.stag, u64::from(at) + 5).unwrap();
    }
    cli.endpoint.post_read(3, rdma::LocalSlice::EMPTY, grant.stag, 0).unwrap();
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(daemon.bytes(lab)[..5], [0; 5]);
    assert_eq!(daemon.bytes(lab)[5..], file);
    let write = |wr_id| success(wr_id, WcOpcode::RdmaWrite, PART);
    assert_eq!(cli.drain_events(), [write(0), write(1), write(2), success(3, WcOpcode::RdmaRead, 0)]);

    for window in 0..3u32 {
        let (at, len) = (window * PART, PART);
        let part = slice(copy, at.into(), len);
        cli.endpoint.post_read(window.into(), part, grant.stag, u64::from(at) + 5).unwrap();
    }
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(cli.bytes(copy), file);
    let read = |wr_id| success(wr_id, WcOpcode::RdmaRead, PART);
    assert_eq!(cli.drain_events(), [read(0), read(1), read(2)]);

    let counters = daemon.endpoint.info().counters;
    assert_eq!((counters.in_writes, counters.in_reads), (3, 4));
    assert_eq!((counters.bytes_placed, counters.bytes_fetched), (LEN.into(), LEN.into()));
    cli.endpoint.disconnect(cli.now);
    cli.collect();
    assert_eq!(cli.drain_events(), [Event::Close { how: CloseHow::Fin }]);
    daemon.endpoint.peer_closed(daemon.now, &mut daemon.stats);
    daemon.collect();
    assert_eq!(daemon.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
    assert_eq!(daemon.stags.revoke_stream(STREAM), 1);
}

/// An initiator that the region service refuses receives the status, and nothing is granted.
#[test]
fn refusals_of_the_region_service_reach_the_initiator() {
    let cases: [(Vec<u8>, Status); 4] = [
        (encode_request("nowhere", BOTH, b"").unwrap(), Status::NoSuchRegion),
        (encode_request("lab-ro", Access::REMOTE_WRITE, b"").unwrap(), Status::NotPermitted),
        (b"hello".to_vec(), Status::Malformed),
        (Vec::new(), Status::Malformed),
    ];
    for revision in [1, 2] {
        for (private_data, status) in &cases {
            let request = ConnectRequest { revision, ..request(private_data) };
            let mut cli = Side::initiator(initiator_config(), &request);
            let mut daemon = Side::responder(EndpointConfig::default());
            daemon.add_region("lab-ro", vec![0; 8], Access::REMOTE_READ);
            run(&mut cli, &mut daemon, &mut segments(1448));
            let events = cli.drain_events();
            let Event::Rejected { private_data } = &events[0] else { panic!("{events:?}") };
            assert_eq!(decode_reply(private_data), Err(ServiceError::Refused(*status)));
            assert_eq!(events[1..], [Event::Close { how: CloseHow::Fin }]);
            // The peer closes the connection (RFC 5044 §7.1.2): a FIN of this side might overtake the Reply.
            assert!(!daemon.drain_events().contains(&Event::Close { how: CloseHow::Fin }));
            daemon.endpoint.peer_closed(daemon.now, &mut daemon.stats);
            daemon.collect();
            assert_eq!(daemon.drain_events().last(), Some(&Event::Close { how: CloseHow::Fin }));
            assert!(daemon.stags.is_empty());
            assert_eq!(daemon.stats.mpa.rejects_out, 1);
        }
    }
}

/// If a rejected peer does not close, this side closes after a time limit.
#[test]
fn a_rejected_peer_must_close_within_the_time_limit() {
    let mut cli = Side::initiator(initiator_config(), &request(b"hello"));
    let mut daemon = Side::responder(EndpointConfig::default());
    run(&mut cli, &mut daemon, &mut segments(1448));
    let deadline = daemon.endpoint.next_deadline().expect("a time limit");
    assert_eq!(deadline, daemon.now + EndpointConfig::default().reject_linger);
    daemon.endpoint.handle_timeout(deadline, &mut daemon.stats);
    daemon.collect();
    assert_eq!(daemon.drain_events().last(), Some(&Event::Close { how: CloseHow::Fin }));
    assert_eq!(daemon.endpoint.next_deadline(), None);
}

#[test]
#[cfg_attr(miri, ignore = "64 MiB")]
fn one_read_of_64_mib_is_answered_in_bounded_room() {
    const LEN: u32 = 64 << 20;
    let (mut cli, mut daemon, _) = connected(pattern(LEN as usize, 4));
    let local = cli.memory.add(vec![0; LEN as usize]).unwrap();
    daemon.wire = Wire::new(8948, 128 << 10);
    let grant = cli.grant();
    cli.endpoint.post_read(1, slice(local, 0, LEN), grant.stag, 0).unwrap();
    cli.transmit();
    carry(&mut cli, &mut daemon, &mut segments(1448));
    let mut turns = 0;
    loop {
        let progress = daemon.transmit();
        assert!(daemon.wire.queued() <= 128 << 10);
        carry(&mut daemon, &mut cli, &mut segments(8944));
        turns += 1;
        if !progress.pending {
            break;
        }
    }
    assert!(turns >= 512);
    assert!(cli.bytes(local) == pattern(LEN as usize, 4));
    assert_eq!(cli.events.last(), Some(&success(1, WcOpcode::RdmaRead, LEN)));
    assert_eq!(daemon.stats.rdmap.out_read_responses, 1);
}

#[test]
fn messages_alternate_and_are_not_interleaved() {
    let (mut cli, mut daemon, lab) = connected(pattern(10_000, 4));
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 10_000]).unwrap());
    let back = cli.stags.grant(local, 10_000, BOTH, rdma::Scope::Stream(STREAM)).unwrap();
    for wr_id in 0..3 {
        cli.endpoint.post_read(wr_id, slice(local, 0, 5000), stag, 0).unwrap();
        daemon.endpoint.post_write(wr_id, slice(lab, 0, 5000), back, 5000).unwrap();
    }
    cli.transmit();
    carry(&mut cli, &mut daemon, &mut segments(1448));
    daemon.transmit();
    let ops: Vec<(u8, bool)> =
        ulpdus(&daemon.wire.take()).iter().map(|segment| (segment[1] & 15, segment[0] & 0x40 != 0)).collect();
    let message = |op| [(op, false), (op, false), (op, false), (op, true)];
    let expected: Vec<_> = (0..3).flat_map(|_| [message(2), message(0)]).flatten().collect();
    assert_eq!(ops, expected);
}

#[test]
fn fpdus_follow_the_size_of_a_segment() {
    let (mut cli, _daemon, _) = connected(vec![0; 100_000]);
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![1; 100_000]).unwrap());
    cli.endpoint.post_write(1, slice(local, 0, 20_000), stag, 0).unwrap();
    cli.wire = Wire::new(1448, 1448);
    cli.transmit();
    cli.wire.mss = 999;
    cli.wire.limit = 1448 + 999;
    cli.transmit();
    let lengths: Vec<_> = cli.wire.segments.iter().map(Vec::len).collect();
    // RFC 5044 §4.5: "MULPDU = EMSS - (6 + EMSS mod 4)".
    assert_eq!(lengths, [1448, 996]);
    let segments = ulpdus(&cli.wire.take());
    assert_eq!(segments[1][6..14], 1428u64.to_be_bytes());
}

#[test]
fn fpdus_may_follow_the_reply_at_once() {
    let mut cli = Side::initiator(initiator_config(), &request(b""));
    let local = cli.memory.add(vec![0; 8]).unwrap();
    let stag = cli.stags.grant(local, 8, BOTH, rdma::Scope::Stream(STREAM)).unwrap();
    cli.endpoint.post_recv(4, slice(local, 4, 4)).unwrap();
    cli.transmit();
    cli.wire.take();
    let mut bytes = mpa(REPLY, 16, 16, b"");
    bytes.extend(fpdu(&tagged(TAGGED_LAST, WRITE, stag.0, 0, &[1, 2, 3, 4])));
    bytes.extend(fpdu(&untagged(UNTAGGED_LAST, SEND_SE, 0, [0, 1, 0], &[5, 6])));
    let (now, later) = bytes.split_at(bytes.len() - 3);
    cli.deliver(now);
    cli.deliver(later);
    assert_eq!(cli.bytes(local), [1, 2, 3, 4, 5, 6, 0, 0]);
    let events = cli.drain_events();
    assert!(matches!(events[0], Event::Established { .. }));
    assert_eq!(
        events[1..],
        [Event::Received { wr_id: 4, bytes: 2, solicited: true, invalidated: None, immediate: None }]
    );
}

/// Ends without a Terminate (RFC 5044 §8).
const LOST: Event = Event::Failed { code: ErrorCode::TCP_LOST };
const NO_MPA: Event = Event::Failed { code: ErrorCode::INVALID_FRAME };

#[test]
fn fpdus_may_not_precede_the_reply() {
    let mut daemon = Side::responder(EndpointConfig::default());
    daemon.add_region("lab", vec![0; 8], BOTH);
    let mut bytes = mpa(REQUEST, 1, 1, &encode_request("lab", BOTH, b"").unwrap());
    bytes.extend(fpdu(&tagged(TAGGED_LAST, WRITE, 1, 0, &[])));
    daemon.deliver(&bytes);
    assert_eq!(daemon.transmit().frames, 0);
    assert_eq!(daemon.drain_events(), [NO_MPA, Event::Close { how: CloseHow::Reset }]);
    assert_eq!(daemon.stats.mpa.refused_early, 1);
    assert!(daemon.stags.is_empty());
}

#[test]
fn a_peer_that_does_not_speak_mpa_is_closed_without_a_terminate() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MPA ID Rep Frame", &[0; 20]] {
        let mut daemon = Side::responder(EndpointConfig::default());
        daemon.deliver(bytes);
        daemon.deliver(bytes);
        assert_eq!(daemon.transmit().frames, 0);
        assert_eq!(daemon.drain_events(), [NO_MPA, Event::Close { how: CloseHow::Reset }]);
    }
}

#[test]
fn setup_has_a_time_limit() {
    let mut daemon = Side::responder(EndpointConfig::default());
    daemon.deliver(&REQUEST[..10]);
    let due = daemon.endpoint.next_deadline().unwrap();
    daemon.pass_time(due - Duration::from_millis(1));
    assert!(daemon.events.is_empty());
    daemon.pass_time(Duration::from_millis(1));
    let silent = Event::Failed { code: ErrorCode::NO_ANSWER };
    assert_eq!(daemon.drain_events(), [silent, Event::Close { how: CloseHow::Reset }]);
    assert_eq!(daemon.stats.mpa.startup_timeouts, 1);
    assert_eq!(daemon.endpoint.next_deadline(), None);
}

#[test]
fn ready_to_receive_is_the_first_message() {
    let option = |send, write, read| Some(RtrOptions { send, write, read });
    let cases = [
        (option(true, true, true), vec![WRITE]),
        (option(false, true, false), vec![WRITE]),
        (option(false, false, true), vec![READ_REQUEST]),
        (None, vec![]),
    ];
    for (rtr, expected) in cases {
        let private_data = encode_request("lab", BOTH, b"").unwrap();
        let mut cli = Side::initiator(initiator_config(), &ConnectRequest { rtr, ..request(&private_data) });
        let mut daemon = Side::responder(EndpointConfig::default());
        daemon.add_region("lab", vec![0; 8], BOTH);
        cli.transmit();
        carry(&mut cli, &mut daemon, &mut segments(1448));
        daemon.transmit();
        carry(&mut daemon, &mut cli, &mut segments(1448));
        cli.transmit();
        let bytes = cli.wire.take();
        let ops: Vec<u8> = ulpdus(&bytes).iter().map(|segment| segment[1]).collect();
        assert_eq!(ops, expected);
        if !bytes.is_empty() {
            daemon.deliver(&bytes);
        }
        run(&mut cli, &mut daemon, &mut segments(1448));
        // It is not a work request of the owner, and uses none of the owner's slots.
        assert!(!cli.events.iter().any(|event| matches!(event, Event::Completion { .. })));
        let stag = cli.grant().stag;
        for wr_id in 0..64 {
            cli.endpoint.post_write(wr_id, rdma::LocalSlice::EMPTY, stag, 0).unwrap();
        }
        assert_eq!(cli.endpoint.post_write(64, rdma::LocalSlice::EMPTY, stag, 0), Err(PostError::QueueFull));
        run(&mut cli, &mut daemon, &mut segments(1448));
        assert_eq!(daemon.stats.rdmap.in_rdma_writes, 64 + u64::from(expected == [WRITE]));
    }
}

#[test]
fn a_silent_peer_is_poked_until_it_sends() {
    let after = Duration::from_millis(50);
    let private_data = encode_request("lab", BOTH, b"").unwrap();
    let config = EndpointConfig { poke_after: Some(after), ..initiator_config() };
    let mut cli = Side::initiator(config, &request(&private_data));
    let mut daemon = Side::responder(EndpointConfig::default());
    daemon.add_region("lab", vec![7; 8], BOTH);
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(cli.endpoint.next_deadline(), None, "nothing was sent that could be overlooked");
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 8]).unwrap());
    cli.endpoint.post_read(1, slice(local, 0, 8), stag, 0).unwrap();
    cli.transmit();
    // The peer has received it and misses it.
    let mut overlooked = cli.wire.take();
    let mut waits = Vec::new();
    while let Some(due) = cli.endpoint.next_deadline() {
        waits.push(due - cli.now);
        cli.pass_time(due - cli.now);
        assert!(cli.endpoint.has_output());
        cli.transmit();
        let poke = cli.wire.take();
        assert_eq!(ulpdus(&poke), [tagged(TAGGED_LAST, WRITE, 1, 0, &[])]);
        overlooked.extend(poke);
    }
    assert_eq!(waits, (0..POKES_MAX).map(|n| after * (1 << n)).collect::<Vec<_>>());
    assert_eq!(cli.stats.rdmap.pokes, u64::from(POKES_MAX));
    daemon.deliver(&overlooked);
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(cli.bytes(local), [7; 8]);
    // From now on the peer is known to receive.
    cli.endpoint.post_read(2, slice(local, 0, 8), stag, 0).unwrap();
    cli.transmit();
    assert_eq!(cli.endpoint.next_deadline(), None);
}

#[test]
fn a_peer_that_has_sent_is_not_poked() {
    let private_data = encode_request("lab", BOTH, b"").unwrap();
    let config = EndpointConfig { poke_after: Some(Duration::from_millis(50)), ..initiator_config() };
    let mut cli = Side::initiator(config, &request(&private_data));
    let mut daemon = Side::responder(EndpointConfig::default());
    daemon.add_region("lab", vec![7; 8], BOTH);
    run(&mut cli, &mut daemon, &mut segments(1448));
    let stag = cli.grant().stag;
    for wr_id in 0..2 {
        assert_eq!(cli.endpoint.next_deadline(), None);
        cli.endpoint.post_read(wr_id, rdma::LocalSlice::EMPTY, stag, 0).unwrap();
        cli.transmit();
        assert_eq!(cli.endpoint.next_deadline().is_some(), wr_id == 0);
        run(&mut cli, &mut daemon, &mut segments(1448));
    }
    assert_eq!(cli.stats.rdmap.pokes, 0);
}

#[test]
fn a_disconnect_waits_for_messages_in_flight() {
    let (mut cli, mut daemon, _) = connected(pattern(5000, 2));
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 5000]).unwrap());
    cli.endpoint.post_read(1, slice(local, 0, 5000), stag, 0).unwrap();
    cli.endpoint.disconnect(cli.now);
    cli.transmit();
    carry(&mut cli, &mut daemon, &mut segments(1448));
    daemon.endpoint.disconnect(daemon.now);
    daemon.collect();
    let closed = |side: &Side| matches!(side.events.last(), Some(Event::Close { how: CloseHow::Fin }));
    assert!(!closed(&cli) && !closed(&daemon));
    daemon.transmit();
    assert!(closed(&daemon), "all reads are answered");
    carry(&mut daemon, &mut cli, &mut segments(1448));
    assert!(closed(&cli), "all work is finished");
    assert_eq!(cli.bytes(local), pattern(5000, 2));
}

#[test]
fn a_poke_does_not_interrupt_a_message() {
    let after = Duration::from_millis(50);
    let config = EndpointConfig { poke_after: Some(after), ..initiator_config() };
    let mut cli = Side::initiator(config, &request(b""));
    let local = cli.memory.add(vec![0; 4000]).unwrap();
    cli.transmit();
    cli.wire.take();
    cli.deliver(&mpa(REPLY, 4, 4, b""));
    cli.endpoint.post_write(1, slice(local, 0, 4000), Stag(9), 0).unwrap();
    cli.wire.limit = 1448;
    assert!(cli.transmit().pending);
    cli.pass_time(after);
    cli.wire.limit = usize::MAX;
    cli.transmit();
    let lengths: Vec<_> = ulpdus(&cli.wire.take()).iter().map(|segment| segment.len() - 14).collect();
    assert_eq!(lengths, [1428, 1428, 1144]);
    // The message itself shows that the peer is alive: the wait starts again.
    assert_eq!(cli.endpoint.next_deadline(), Some(cli.now + after));
}

#[test]
fn a_half_closed_peer_still_receives_its_read_responses() {
    let (mut cli, mut daemon, _) = connected(pattern(5000, 2));
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 5000]).unwrap());
    cli.endpoint.post_read(1, slice(local, 0, 5000), stag, 0).unwrap();
    cli.transmit();
    carry(&mut cli, &mut daemon, &mut segments(1448));
    daemon.wire.limit = 2000;
    daemon.endpoint.peer_closed(daemon.now, &mut daemon.stats);
    while daemon.transmit().pending {
        carry(&mut daemon, &mut cli, &mut segments(1448));
    }
    carry(&mut daemon, &mut cli, &mut segments(1448));
    assert_eq!(cli.bytes(local), pattern(5000, 2));
    assert_eq!(daemon.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
}

#[test]
fn a_lost_stream_flushes_its_work() {
    let (mut cli, mut daemon, _) = connected(pattern(5000, 2));
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 5000]).unwrap());
    for wr_id in 0..20 {
        cli.endpoint.post_read(wr_id, slice(local, 0, 5000), stag, 0).unwrap();
    }
    cli.endpoint.post_recv(99, slice(local, 0, 10)).unwrap();
    cli.events.clear();
    cli.transmit();
    carry(&mut cli, &mut daemon, &mut segments(1448));
    daemon.transmit();
    let bytes = daemon.wire.take();
    cli.deliver(&bytes[..bytes.len() / 2 + 1]);
    let done = cli.events.len();
    assert!(done > 0 && done < 20);
    cli.endpoint.peer_closed(cli.now, &mut cli.stats);
    cli.collect();
    let ids = |status| {
        let of = |event: &Event| match event {
            Event::Completion { wr_id, status: ended, .. } if *ended == status => Some(*wr_id),
            _ => None,
        };
        cli.events.iter().filter_map(of).collect::<Vec<u64>>()
    };
    assert_eq!(ids(WcStatus::Success), (0..done as u64).collect::<Vec<_>>());
    assert_eq!(ids(WcStatus::WrFlushError), (done as u64..20).chain([99]).collect::<Vec<_>>());
    assert_eq!(cli.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
    assert_eq!(cli.events.iter().filter(|event| **event == LOST).count(), 1);
    assert_eq!(cli.stats.drops.cut_off, 1);
    assert_eq!(cli.endpoint.post_read(1, slice(local, 0, 1), stag, 0), Err(PostError::State));
    assert_eq!(cli.endpoint.post_recv(1, slice(local, 0, 1)), Err(PostError::State));

    daemon.endpoint.transport_lost();
    daemon.endpoint.transport_lost();
    daemon.collect();
    assert!(daemon.events.ends_with(&[LOST, Event::Close { how: CloseHow::Reset }]));
    assert_eq!(daemon.events.iter().filter(|event| **event == LOST).count(), 1);
    assert_eq!(daemon.endpoint.info().state, StreamState::Closed);
}

#[test]
fn access_out_of_bounds_and_after_revocation_ends_the_initiator_cleanly() {
    let (mut cli, mut daemon, lab) = connected(vec![1; 100]);
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![9; 200]).unwrap());
    cli.endpoint.post_write(1, slice(local, 0, 101), stag, 0).unwrap();
    run(&mut cli, &mut daemon, &mut segments(1448));
    let bounds = ErrorCode { layer: 1, etype: 1, code: 1 };
    let raw = [0x11, 0x01, 0xc0, 0x00];
    assert_eq!(
        cli.events[cli.events.len() - 2..],
        [
            Event::TerminateReceived { code: bounds, raw, siw_order: false },
            Event::Close { how: CloseHow::Fin }
        ]
    );
    assert_eq!(daemon.bytes(lab), [1; 100]);

    let (mut cli, mut daemon, lab) = connected(vec![1; 100]);
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![9; 200]).unwrap());
    assert_eq!(daemon.stags.revoke_region(lab), 1);
    cli.endpoint.post_read(1, slice(local, 0, 1), stag, 0).unwrap();
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(cli.endpoint.info().terminate, Some(ErrorCode { layer: 0, etype: 1, code: 0 }));
    assert_eq!(cli.bytes(local), [9; 200]);
}

#[test]
fn work_is_refused_in_the_wrong_state() {
    let mut cli = Side::initiator(initiator_config(), &ConnectRequest { ord: 0, ..request(b"") });
    let local = cli.memory.add(vec![0; 8]).unwrap();
    let part = slice(local, 0, 8);
    assert_eq!(cli.endpoint.post_write(1, part, Stag(1), 0), Err(PostError::State));
    cli.transmit();
    cli.deliver(&mpa(REPLY, 0, 0, b""));
    assert_eq!(cli.endpoint.post_read(1, part, Stag(1), 0), Err(PostError::NoReads));
    for wr_id in 0..64 {
        cli.endpoint.post_send(wr_id, part, false, None).unwrap();
    }
    assert_eq!(cli.endpoint.post_send(64, part, false, None), Err(PostError::QueueFull));
    for wr_id in 0..16 {
        cli.endpoint.post_recv(wr_id, part).unwrap();
    }
    assert_eq!(cli.endpoint.post_recv(16, part), Err(PostError::QueueFull));
    // The slots of finished work are free once the owner has polled the event.
    cli.wire.take();
    let mut env = rdma::Env { stags: &mut cli.stags, memory: &mut cli.memory, stats: &mut cli.stats };
    cli.endpoint.poll_transmit(Duration::ZERO, &mut env, &mut cli.wire);
    assert_eq!(cli.endpoint.post_send(64, part, false, None), Err(PostError::QueueFull));
    while cli.endpoint.poll_event().is_some() {}
    assert_eq!(cli.endpoint.post_send(64, part, false, None), Ok(()));
    cli.endpoint.disconnect(Duration::ZERO);
    assert_eq!(cli.endpoint.post_send(65, part, false, None), Err(PostError::State));
}

#[test]
fn a_sink_that_supplies_a_wrong_buffer_resets_the_stream() {
    struct Wrong;
    impl rdma::Sink for Wrong {
        fn fpdu_max(&self) -> usize {
            1448
        }
        fn room(&self) -> usize {
            usize::MAX
        }
        fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
            build(&mut vec![0; len - 1]);
            true
        }
    }
    let (mut cli, _daemon, _) = connected(vec![0; 8]);
    let stag = cli.grant().stag;
    cli.endpoint.post_write(1, rdma::LocalSlice::EMPTY, stag, 0).unwrap();
    let mut env = rdma::Env { stags: &mut cli.stags, memory: &mut cli.memory, stats: &mut cli.stats };
    cli.endpoint.poll_transmit(Duration::ZERO, &mut env, &mut Wrong);
    cli.collect();
    assert_eq!(cli.events.last(), Some(&Event::Close { how: CloseHow::Reset }));
}

#[test]
fn a_gap_in_the_stream_is_a_local_fault() {
    let (mut cli, mut daemon, lab) = connected(vec![1; 100]);
    let stag = cli.grant().stag;
    let segment = fpdu(&tagged(TAGGED_LAST, WRITE, stag.0, 0, &[9; 8]));
    let mut env =
        rdma::Env { stags: &mut daemon.stags, memory: &mut daemon.memory, stats: &mut daemon.stats };
    daemon.endpoint.receive(Duration::ZERO, 1 << 40, segment, &mut env);
    daemon.transmit();
    let error = StreamError::Local;
    let sent = Event::TerminateSent { code: error.code().0, error };
    assert_eq!(daemon.events[daemon.events.len() - 2..], [sent, Event::Close { how: CloseHow::Fin }]);
    assert_eq!(daemon.bytes(lab), [1; 100]);
    let _ = cli.transmit();
}
