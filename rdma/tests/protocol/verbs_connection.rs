//! Connections of verbs objects: listen, connect, accept, reject, disconnect, and every way in which they end.

use WcStatus::*;
use core::num::NonZeroU16;
use core::time::Duration;
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{CloseHow, ErrorCode};

fn told(node: &mut Node) -> Vec<(CmId, CmEventKind)> {
    node.cm.drain(..).map(|event| (event.id, event.kind)).collect()
}

#[test]
fn private_data_that_no_request_has_room_for_is_refused_at_once() {
    let mut net = Net::new();
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let device = &mut net.nodes[0].device;
    for (revision, room) in [(1, 256), (2, 252)] {
        let id = device.create_id(Some(address(0))).unwrap();
        let mut connect = |len: usize| {
            let param = ConnParam { private_data: &[7; 300][..len], revision, ..ConnParam::default() };
            device.connect(id, a.qp, address(1), &param)
        };
        assert_eq!(connect(room + 1), Err(VerbsError::Invalid));
        assert_eq!(connect(room), Ok(()));
        device.destroy_id(id).unwrap();
        device.modify_qp(a.qp, QpState::Idle, Duration::ZERO).unwrap();
    }
}

#[test]
fn both_sides_receive_events_for_a_connection_and_its_end() {
    let mut net = Net::new();
    let listener = listen(&mut net, 1);
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let b = party(&mut net.nodes[1], CAP, None, 2);
    let param = ConnParam {
        private_data: b"hello",
        responder_resources: 3,
        initiator_depth: 5,
        ..ConnParam::default()
    };
    net.nodes[0].device.connect(a.id, a.qp, address(1), &param).unwrap();
    let state = Err(VerbsError::State);
    assert_eq!(net.nodes[0].device.connect(a.id, a.qp, address(1), &param), state);
    net.run();
    let events = told(&mut net.nodes[1]);
    let id = events[0].0;
    let request = CmEventKind::ConnectRequest {
        listener,
        local: address(1),
        peer: address(0),
        private_data: b"hello".to_vec().into(),
        responder_resources: Some(3),
        initiator_depth: Some(5),
    };
    assert_eq!(events, [(id, request)]);
    let device = &mut net.nodes[1].device;
    assert_eq!(device.addresses(id), Ok((Some(address(1)), Some(address(0)))));
    assert_eq!(device.accept(listener, b.qp, b""), state);
    assert_eq!(device.accept(id, b.qp, &[0; 600]), Err(VerbsError::Invalid));
    device.accept(id, b.qp, b"welcome").unwrap();
    assert_eq!(device.accept(id, b.qp, b""), state);
    net.run();
    let established = |private_data: &[u8], ird, ord| CmEventKind::Established {
        private_data: private_data.to_vec().into(),
        responder_resources: ird,
        initiator_depth: ord,
        revision: 2,
        crc: true,
    };
    assert_eq!(told(&mut net.nodes[0]), [(a.id, established(b"welcome", 3, 5))]);
    assert_eq!(told(&mut net.nodes[1]), [(id, established(b"", 5, 3))]);
    let info = net.nodes[0].device.stream_info(a.id).unwrap();
    assert_eq!((info.ird, info.ord, info.initiator), (3, 5, true));

    // Work posted before is done; unused buffers are flushed.
    b.post_recv(&mut net.nodes[1], 8, &[b.mr.sge(0, 8)]);
    a.post(&mut net.nodes[0], 1, b.read_from(0), &[a.mr.sge(0, 5000)]);
    let now = net.now;
    net.nodes[0].device.disconnect(a.id, now);
    assert_eq!(a.state(&net.nodes[0]), QpState::Closing);
    let late = net.nodes[0].device.post_send(a.qp, &send_wr(2, SEND, &[]));
    assert_eq!(late, Err(PostError::State));
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success)]);
    assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(8, WrFlushError)]);
    assert_eq!(told(&mut net.nodes[0]), [(a.id, CmEventKind::Disconnected)]);
    assert_eq!(told(&mut net.nodes[1]), [(id, CmEventKind::Disconnected)]);
    assert_eq!((a.state(&net.nodes[0]), b.state(&net.nodes[1])), (QpState::Error, QpState::Error));
    // An id is used for one connection only.
    assert_eq!(net.nodes[0].device.connect(a.id, a.qp, address(1), &param), state);
}

#[test]
fn work_posted_to_a_queue_pair_in_error_is_flushed_until_its_reset() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    let now = net.now;
    for at in 0..3 {
        a.post(&mut net.nodes[0], at, b.write_to(0), &[a.mr.sge(0, 8)]);
        a.post_recv(&mut net.nodes[0], 10 + at, &[a.mr.sge(0, 8)]);
    }
    net.nodes[0].device.modify_qp(a.qp, QpState::Error, now).unwrap();
    a.post(&mut net.nodes[0], 3, SEND, &[]);
    a.post_recv(&mut net.nodes[0], 13, &[]);
    let quiet = SendWr { flags: SendFlags::default(), ..send_wr(4, SEND, &[]) };
    net.nodes[0].device.post_send(a.qp, &quiet).unwrap();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), (0..5).map(|at| (at, WrFlushError)).collect::<Vec<_>>());
    let flushed = (10..14).map(|at| (at, WrFlushError)).collect::<Vec<_>>();
    assert_eq!(ends(&net.nodes[0].poll(a.recv_cq)), flushed);
    net.run();
    assert_eq!(told(&mut net.nodes[1]), [(b.id, CmEventKind::Disconnected)]);
    // A reset drops completions that were not polled.
    a.post(&mut net.nodes[0], 5, SEND, &[]);
    let device = &mut net.nodes[0].device;
    assert_eq!(device.modify_qp(a.qp, QpState::Rts, now), Err(VerbsError::State));
    device.modify_qp(a.qp, QpState::Idle, now).unwrap();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), []);
    let device = &mut net.nodes[0].device;
    let again = Party { id: device.create_id(None).unwrap(), ..a };
    net.nodes[1].device.modify_qp(b.qp, QpState::Idle, now).unwrap();
    let mut theirs = Party { id: net.nodes[1].device.create_id(None).unwrap(), ..b };
    connect(&mut net, &again, &mut theirs);
    again.post(&mut net.nodes[0], 6, theirs.write_to(0), &[a.mr.sge(0, 8)]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(6, Success)]);
}

#[test]
fn buffers_posted_before_the_connection_receive_messages() {
    let mut net = Net::new();
    listen(&mut net, 1);
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let mut b = party(&mut net.nodes[1], CAP, None, 2);
    b.post_recv(&mut net.nodes[1], 5, &[b.mr.sge(0, 8)]);
    a.post_recv(&mut net.nodes[0], 6, &[a.mr.sge(0, 8)]);
    connect(&mut net, &a, &mut b);
    // The responder's message waits for the initiator's first.
    b.post(&mut net.nodes[1], 1, SEND, &[b.mr.sge(100, 8)]);
    net.run();
    assert_eq!(net.nodes[0].poll(a.recv_cq), []);
    a.post(&mut net.nodes[0], 2, SEND, &[a.mr.sge(100, 8)]);
    net.run();
    assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(5, Success)]);
    assert_eq!(ends(&net.nodes[0].poll(a.recv_cq)), [(6, Success)]);
}

#[test]
fn a_rejected_connection_flushes_its_queue_pair() {
    let mut net = Net::new();
    listen(&mut net, 1);
    let a = party(&mut net.nodes[0], CAP, None, 1);
    a.post_recv(&mut net.nodes[0], 6, &[a.mr.sge(0, 8)]);
    net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    net.run();
    let id = asked(&mut net)[0];
    net.nodes[1].device.reject(id, b"no room").unwrap();
    assert_eq!(net.nodes[1].device.reject(id, b""), Err(VerbsError::State));
    net.run();
    let private_data = b"no room".to_vec().into();
    assert_eq!(told(&mut net.nodes[0]), [(a.id, CmEventKind::Rejected { private_data })]);
    assert_eq!(told(&mut net.nodes[1]), []);
    assert_eq!(ends(&net.nodes[0].poll(a.recv_cq)), [(6, WrFlushError)]);
    assert_eq!(a.state(&net.nodes[0]), QpState::Error);
    net.nodes[1].device.destroy_id(id).unwrap();
    net.run();
    assert!(net.nodes[1].device.addresses(id).is_err());
}

#[test]
fn a_backlog_bounds_waiting_requests_and_answers_free_it() {
    let mut net = Net::new();
    listen(&mut net, 2);
    let connect = |net: &mut Net| {
        let a = party(&mut net.nodes[0], CAP, None, 1);
        net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
        net.run();
        a
    };
    let parties = [connect(&mut net), connect(&mut net), connect(&mut net)];
    assert_eq!(net.refused, 1);
    assert_eq!(told(&mut net.nodes[0]), [(parties[2].id, CmEventKind::Refused)]);
    let waiting = asked(&mut net);
    assert_eq!(waiting.len(), 2);
    let b = party(&mut net.nodes[1], CAP, None, 2);
    net.nodes[1].device.accept(waiting[0], b.qp, b"").unwrap();
    net.nodes[1].device.reject(waiting[1], b"").unwrap();
    connect(&mut net);
    connect(&mut net);
    assert_eq!((net.refused, asked(&mut net).len()), (1, 2));
}

/// RFC 5044 §7.1.2 requires the responder to wait for the MPA Request. Streams without a Request use no backlog, and
/// the one that has been silent longest is evicted for a new one.
#[test]
fn silent_streams_do_not_block_new_connections() {
    for (silent, backlog) in [(1, 1), (2, 1), (7, 3), (64, 8), (128, 2), (256, 1)] {
        let mut net = Net::with(Limits { silent, ids: 512, ..Limits::default() });
        let listener = listen(&mut net, backlog);
        let ends = (address(1), address(0));
        let stream = |at: u32| rdma::StreamId(1000 + u64::from(at));
        let room = net.nodes[1].device.limits().silent;
        assert_eq!(room, silent);
        let ids: Vec<CmId> =
            (0..3 * room).map(|at| net.incoming(listener, stream(at), ends).unwrap()).collect();
        let evicted = 2 * room as usize;
        let device = &net.nodes[1].device;
        assert_eq!(device.stats().silent_evicted, evicted as u64);
        assert!(ids[..evicted].iter().all(|id| device.addresses(*id).is_err()), "the oldest are gone");
        assert!(ids[evicted..].iter().all(|id| device.addresses(*id).is_ok()), "the others are not");
        // Among them, as many honest initiators as the backlog allows.
        for _ in 0..backlog {
            let a = party(&mut net.nodes[0], CAP, None, 1);
            net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
            net.run();
        }
        assert_eq!((net.refused, asked(&mut net).len()), (0, usize::from(backlog)));
        // No stream is evicted in vain: the backlog is full.
        let evicted = net.nodes[1].device.stats().silent_evicted;
        assert_eq!(net.incoming(listener, rdma::StreamId(9), ends), None);
        assert!(!net.nodes[1].device.make_room(listener));
        assert_eq!(net.nodes[1].device.stats().silent_evicted, evicted);
        assert_eq!(told(&mut net.nodes[1]), []);
    }
}

/// More streams than the backlog allows may be silent; of their requests, those beyond it are refused.
#[test]
fn requests_beyond_the_backlog_are_refused() {
    let mut net = Net::new();
    listen(&mut net, 2);
    let parties: Vec<Party> = (0..5).map(|_| party(&mut net.nodes[0], CAP, None, 1)).collect();
    for a in &parties {
        net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    }
    net.run();
    let waiting = asked(&mut net);
    assert_eq!((net.refused, waiting.len()), (0, 2));
    assert_eq!(net.nodes[1].device.stats().requests_refused, 3);
    let refused = parties[2..]
        .iter()
        .map(|a| (a.id, CmEventKind::ConnectError { code: ErrorCode::TCP_LOST }))
        .collect::<Vec<_>>();
    assert_eq!(told(&mut net.nodes[0]), refused);
    // Answers free the backlog, each one slot.
    let b = party(&mut net.nodes[1], CAP, None, 2);
    net.nodes[1].device.accept(waiting[0], b.qp, b"").unwrap();
    let last = [party(&mut net.nodes[0], CAP, None, 1), party(&mut net.nodes[0], CAP, None, 1)];
    for a in &last {
        net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
        net.run();
    }
    assert_eq!((net.refused, asked(&mut net).len()), (1, 1));
    assert_eq!(told(&mut net.nodes[0])[1..], [(last[1].id, CmEventKind::Refused)]);
}

#[test]
fn a_connection_lost_before_its_answer_is_reported() {
    let mut net = Net::new();
    let listener = listen(&mut net, 1);
    let a = party(&mut net.nodes[0], CAP, None, 1);
    net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    net.run();
    let id = asked(&mut net)[0];
    net.nodes[0].device.destroy_id(a.id).unwrap();
    net.run();
    assert_eq!(told(&mut net.nodes[0]), []);
    assert!(net.nodes[0].device.addresses(a.id).is_err());
    assert_eq!(told(&mut net.nodes[1]), [(id, CmEventKind::ConnectError { code: ErrorCode::TCP_LOST })]);
    let b = party(&mut net.nodes[1], CAP, None, 2);
    assert_eq!(net.nodes[1].device.accept(id, b.qp, b""), Err(VerbsError::State));
    // A peer that speaks another protocol causes no event and leaves nothing behind.
    let device = &mut net.nodes[1].device;
    let silent = device.incoming(listener, rdma::StreamId(99), (address(1), address(0)), net.now).unwrap();
    device.handle_timeout(silent, Duration::from_secs(60), &mut net.nodes[1].stats);
    let how = CloseHow::Reset;
    let close = TransportRequest::Close { id: silent, stream: Some(rdma::StreamId(99)), how };
    assert_eq!(device.poll_transport(), Some(close));
    device.closed(silent, &mut net.nodes[1].stags);
    assert!(device.addresses(silent).is_err());
    assert_eq!(device.poll_cm_event(), None);
}

#[test]
fn requests_that_the_adapter_has_not_polled_are_withdrawn() {
    let mut net = Net::new();
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let device = &mut net.nodes[0].device;
    let backlog = NonZeroU16::new(1).unwrap();
    let listener = device.create_id(Some(address(0))).unwrap();
    device.listen(listener, backlog, &ConnParam::default()).unwrap();
    assert_eq!(device.listen(listener, backlog, &ConnParam::default()), Err(VerbsError::State));
    device.destroy_id(listener).unwrap();
    device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    device.disconnect(a.id, net.now);
    assert_eq!(device.poll_transport(), None);
    assert_eq!(a.state(&net.nodes[0]), QpState::Error);
    // Its event was polled, so its end raises an event too.
    let device = &mut net.nodes[0].device;
    let listener = device.create_id(Some(address(0))).unwrap();
    device.listen(listener, backlog, &ConnParam::default()).unwrap();
    assert!(matches!(device.poll_transport(), Some(TransportRequest::Listen { .. })));
    device.listen_failed(listener);
    device.modify_qp(a.qp, QpState::Idle, net.now).unwrap();
    let id = device.create_id(None).unwrap();
    device.connect(id, a.qp, address(1), &ConnParam::default()).unwrap();
    assert!(matches!(device.poll_transport(), Some(TransportRequest::Open { .. })));
    device.destroy_id(id).unwrap();
    let close = TransportRequest::Close { id, stream: None, how: CloseHow::Reset };
    assert_eq!(device.poll_transport(), Some(close));
    assert!(!device.opened(id, rdma::StreamId(5), address(0), net.now, &mut net.nodes[0].stats));
    let events = core::iter::from_fn(|| device.poll_cm_event()).map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(events, [CmEventKind::ConnectError { code: ErrorCode::TCP_LOST }, CmEventKind::AddressError]);
}

#[test]
fn a_destroyed_listener_drops_connections_without_a_request() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    let device = &mut net.nodes[1].device;
    let early = device.incoming(listener, rdma::StreamId(77), (address(1), address(0)), net.now).unwrap();
    device.destroy_id(listener).unwrap();
    assert_eq!(device.incoming(listener, rdma::StreamId(78), (address(1), address(0)), net.now), None);
    // Its request arrives now.
    let mut other = Net::new();
    let a = party(&mut other.nodes[0], CAP, None, 1);
    listen(&mut other, 1);
    other.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
    other.run();
    let request = other.sent[0].clone();
    let Node { device, stags, memory, stats, .. } = &mut net.nodes[1];
    device.receive(early, net.now, 0, request, &mut rdma::Env { stags, memory, stats });
    assert_eq!(device.poll_transport(), Some(TransportRequest::Unlisten { id: listener }));
    assert!(matches!(device.poll_transport(), Some(TransportRequest::Close { id, .. }) if id == early));
    assert_eq!(device.poll_cm_event(), None);
}

#[test]
fn an_owner_can_end_a_stream_with_a_terminate() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    a.post(&mut net.nodes[0], 1, SEND, &[]);
    b.post_recv(&mut net.nodes[1], 1, &[]);
    net.run();
    let Node { device, stats, .. } = &mut net.nodes[0];
    device.terminate_qp(a.qp, net.now, stats).unwrap();
    assert_eq!(device.query_qp(a.qp).unwrap().state, QpState::Terminate);
    net.run();
    assert_eq!((a.state(&net.nodes[0]), b.state(&net.nodes[1])), (QpState::Error, QpState::Error));
    assert!(matches!(net.nodes[1].async_events()[..], [AsyncEvent::QpTerminated(..)]));
    let Node { device, stats, .. } = &mut net.nodes[0];
    assert_eq!(device.terminate_qp(a.qp, net.now, stats), Err(VerbsError::State));
}

#[test]
fn thousands_of_connections_leak_nothing() {
    let mut net = Net::with(Limits { ids: 4, qps: 2, pds: 1, cqs: 2, mrs: 1, ..Limits::default() });
    let device = &mut net.nodes[1].device;
    let listener = device.create_id(Some(address(1))).unwrap();
    device.listen(listener, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    net.run();
    let empty = (net.nodes[0].stags.len(), net.nodes[1].stags.len());
    for round in 0..if cfg!(miri) { 8 } else { 2000 } {
        let a = party(&mut net.nodes[0], CAP, None, 1);
        let b = party(&mut net.nodes[1], CAP, None, 2);
        net.nodes[1].device.destroy_id(b.id).unwrap();
        net.nodes[0].device.connect(a.id, a.qp, address(1), &ConnParam::default()).unwrap();
        net.run();
        let b = Party { id: asked(&mut net)[0], ..b };
        net.nodes[1].device.accept(b.id, b.qp, b"").unwrap();
        net.run();
        a.post(&mut net.nodes[0], 1, b.write_to(0), &[a.mr.sge(0, 3000)]);
        match round % 4 {
            0 => net.nodes[0].device.disconnect(a.id, net.now),
            1 => net.nodes[1].device.disconnect(b.id, net.now),
            2 => net.nodes[0].device.destroy_id(a.id).unwrap(),
            _ => net.nodes[1].device.destroy_qp(b.qp).unwrap(),
        }
        net.run();
        for (at, party) in [(0, &a), (1, &b)] {
            let Node { device, stags, .. } = &mut net.nodes[at];
            let _ = (device.destroy_qp(party.qp), device.destroy_id(party.id));
            device.destroy_cq(party.cq).unwrap();
            device.destroy_cq(party.recv_cq).unwrap();
            device.dereg_mr(party.mr.mr.id, stags).unwrap();
            device.dealloc_pd(party.pd).unwrap();
        }
        net.run();
        net.forget();
    }
    assert_eq!((net.nodes[0].stags.len(), net.nodes[1].stags.len()), empty);
    assert_eq!((net.nodes[0].async_events(), net.nodes[1].async_events()), (vec![], vec![]));
}
