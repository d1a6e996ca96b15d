//! Contexts, their objects and events, and the queues of programs that behave well.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::*;
use iwarp_alloc_counter::{counted, watched};
use iwarp_shared_queues::RingShape;
use iwarp_shared_verbs::program::{CompletionQueue, Events, RecvQueue, Slots};
use iwarp_shared_verbs::worker::ObjectLimits;
use iwarp_shared_verbs::{Event, Request, Response, words_min};
use rdma::testutil::verbs::{CAP, Node, Party, RTS, SEND, address, all_access, ends, local_access, rtr};
use rdma::verbs::*;

#[test]
fn work_waits_in_the_ring_until_the_worker_polls_and_completes_to_its_own_queue() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 64);
    b.post_recv(70, &[b.party.mr.sge(0, 100)]);
    a.post(7, b.party.write_to(4096), &[a.party.mr.sge(0, 3000)]);
    a.post(8, SEND, &[a.party.mr.sge(5, 60)]);
    lab.net.run();
    assert_eq!(a.poll(false), [], "the worker has not polled");
    lab.run();
    assert_eq!(ends(&a.poll(false)), [(7, WcStatus::Success), (8, WcStatus::Success)]);
    let received = b.poll(true);
    assert_eq!(ends(&received), [(70, WcStatus::Success)]);
    assert_eq!(received[0].byte_len, 60);
    let [from, to] = [&a, &b].map(|side| lab.net.nodes[side.at].bytes(&side.party.mr));
    assert_eq!((&to[4096..7096], &to[..60]), (&from[..3000], &from[5..65]));
}

#[test]
fn slots_are_free_once_their_completions_are_polled() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 256);
    let silent =
        |wr_id| SendWr { flags: SendFlags::default(), ..SendWr::new(wr_id, b.party.write_to(0), &[]) };
    for round in 0..3 {
        let slots = u64::from(CAP.max_send_wr);
        for wr_id in 1..slots {
            a.send.push(&silent(wr_id)).unwrap();
        }
        a.send.push(&SendWr::new(slots, b.party.write_to(0), &[])).unwrap();
        assert_eq!(a.send.push(&silent(99)), Err(PostError::QueueFull), "round {round}");
        a.send.ring();
        lab.run();
        assert_eq!(a.send.push(&silent(99)), Err(PostError::QueueFull), "not polled yet");
        assert_eq!(ends(&a.poll(false)), [(slots, WcStatus::Success)]);
    }
    for wr_id in 0..u64::from(CAP.max_recv_wr) {
        a.post_recv(wr_id, &[]);
    }
    assert_eq!(a.recv.push(&RecvWr { wr_id: 99, sg_list: &[] }), Err(PostError::QueueFull));
}

#[test]
fn a_request_that_cannot_be_executed_is_refused_when_it_is_posted() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let mut idle = Program::new(&mut lab, 0, CAP, 64, 3);
    let wr = SendWr::new(1, b.party.write_to(0), &[]);
    assert_eq!(idle.send.push(&wr), Err(PostError::State));
    let long = vec![a.party.mr.sge(0, 1); usize::from(CAP.max_send_sge) + 1];
    assert_eq!(a.send.push(&SendWr::new(1, SEND, &long)), Err(PostError::Length));
    let inline = [0; CAP.max_inline_data as usize + 1];
    assert_eq!(a.send.push(&SendWr { data: Data::Inline(&inline), ..wr }), Err(PostError::Length));
    let immediate = SendOp::Immediate { imm_data: [0; 8] };
    assert_eq!(
        a.objects.send.push(&SendWr::new(1, immediate, &[a.party.mr.sge(0, 1)])),
        Err(PostError::Length)
    );
    assert_eq!(a.recv.push(&RecvWr { wr_id: 1, sg_list: &long }), Err(PostError::Length));
    lab.run();
    assert_eq!(a.poll(false), []);
}

#[test]
fn work_posted_before_the_stream_exists_is_sent_when_it_does() {
    let mut lab = Lab::new();
    let mut a = Program::new(&mut lab, 0, CAP, 64, 1);
    let mut b = Program::new(&mut lab, 1, CAP, 64, 2);
    listen(&mut lab, &b);
    a.send.set_ready(true);
    a.post(7, b.party.write_to(0), &[a.party.mr.sge(0, 10)]);
    lab.run();
    assert_eq!(a.poll(false), []);
    connect(&mut lab, &mut a, &mut b);
    for _ in 0..3 {
        lab.run();
    }
    assert_eq!(ends(&a.poll(false)), [(7, WcStatus::Success)]);
}

#[test]
fn the_end_of_a_connection_flushes_all_work_and_raises_its_events() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 64);
    a.post_recv(1, &[]);
    lab.run();
    lab.raised = Default::default();
    lab.request(1, b.context, &Request::Disconnect(b.party.id)).unwrap();
    lab.run();
    for program in [&mut a, &mut b] {
        let events = program.all_events();
        let id = program.party.id;
        assert_eq!(events, [Event::Cm(CmEvent { id, kind: CmEventKind::Disconnected })], "{}", program.at);
        assert!(lab.raised[program.at].events.contains(&program.context));
    }
    assert_eq!(ends(&a.poll(true)), [(1, WcStatus::WrFlushError)]);
    a.post(2, SEND, &[]);
    a.post_recv(3, &[]);
    lab.run();
    assert_eq!(ends(&a.poll(false)), [(2, WcStatus::WrFlushError)]);
    assert_eq!(ends(&a.poll(true)), [(3, WcStatus::WrFlushError)]);
}

#[test]
fn an_index_outside_of_its_ring_ends_the_queue_pair() {
    for send in [true, false] {
        let mut lab = Lab::new();
        let (mut a, mut b) = pair(&mut lab, 64);
        a.post_recv(1, &[]);
        lab.run();
        let place = if send { a.places.send } else { a.places.recv.unwrap() };
        a.memory[place.start].store(1 << 40, Ordering::Relaxed);
        a.send.ring();
        a.recv.ring();
        // Each publishes its own count: the corrupt one must be the last.
        a.memory[place.start].store(1 << 40, Ordering::Relaxed);
        lab.run();
        assert_eq!(a.party.state(&lab.net.nodes[0]), QpState::Error);
        assert_eq!(ends(&a.poll(true)), [(1, WcStatus::WrFlushError)]);
        let disconnected = Event::Cm(CmEvent { id: b.party.id, kind: CmEventKind::Disconnected });
        assert_eq!(b.all_events(), [disconnected]);
    }
}

#[test]
fn words_that_are_no_request_complete_with_an_error() {
    for send in [true, false] {
        let mut lab = Lab::new();
        let (mut a, _b) = pair(&mut lab, 64);
        if send {
            a.post(5, SEND, &[]);
        } else {
            a.post_recv(5, &[]);
        }
        // The second word of the newest entry holds the operation, or the number of elements.
        let place = if send { a.places.send } else { a.places.recv.unwrap() };
        let entry = place.start + RingShape::HEADER_WORDS;
        a.memory[entry + 1].store(u64::MAX, Ordering::Relaxed);
        lab.run();
        assert_eq!(ends(&a.poll(!send)), [(5, WcStatus::LocalQpOperationError)]);
        assert_eq!(a.party.state(&lab.net.nodes[0]), QpState::Error);
    }
}

#[test]
fn a_queue_pair_that_was_reset_begins_again_without_old_completions() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 64);
    let (qp, context) = (a.party.qp, a.context);
    let reset = |lab: &mut Lab, state| lab.request(0, context, &Request::ModifyQp(qp, state)).unwrap();
    reset(&mut lab, QpState::Error);
    a.post(1, SEND, &[]);
    lab.run();
    a.post(2, SEND, &[]);
    reset(&mut lab, QpState::Idle);
    a.cq.drop_completions(qp);
    a.slots.reset();
    lab.run();
    assert_eq!(a.poll(false), []);
    a.all_events();
    b.all_events();
    // The other end begins again, too.
    let request = |lab: &mut Lab, at, context, request: Request| lab.request(at, context, &request).unwrap();
    request(&mut lab, 1, b.context, Request::ModifyQp(b.party.qp, QpState::Idle));
    b.slots.reset();
    for program in [&mut a, &mut b] {
        request(&mut lab, program.at, program.context, Request::DestroyId(program.party.id));
        let local = Some(address(program.at));
        let id = request(&mut lab, program.at, program.context, Request::CreateId(local));
        let Response::Id(id) = id else { panic!() };
        program.party.id = id;
    }
    connect(&mut lab, &mut a, &mut b);
    a.post(3, b.party.write_to(0), &[]);
    lab.run();
    assert_eq!(ends(&a.poll(false)), [(3, WcStatus::Success)]);
}

#[test]
fn an_armed_queue_signals_once() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let signals = |lab: &mut Lab| core::mem::take(&mut lab.raised[0]).completions.len();
    let write = |lab: &mut Lab, a: &mut Program| {
        a.post(1, b.party.write_to(0), &[]);
        lab.run();
        signals(lab)
    };
    assert_eq!(write(&mut lab, &mut a), 0, "not armed");
    a.cq.req_notify(false);
    assert_eq!((write(&mut lab, &mut a), write(&mut lab, &mut a)), (1, 0));
    assert_eq!(a.cq.events(), 1);
    a.cq.req_notify(true);
    assert_eq!(write(&mut lab, &mut a), 0, "a success that is not solicited");
    assert_eq!(a.poll(false).len(), 4);
}

#[test]
fn a_shared_receive_queue_feeds_the_queue_pair_and_reports_its_limit() {
    let mut lab = Lab::new();
    let mut a = Program::new(&mut lab, 0, CAP, 64, 1);
    let mut b = Program::new(&mut lab, 1, CAP, 64, 2);
    let Party { pd, cq, recv_cq, .. } = b.party;
    let create = Request::CreateSrq { pd, max_wr: 4, max_sge: 2 };
    let Ok(Response::Srq(srq, place)) = lab.request(1, b.context, &create) else { panic!() };
    let mut shared = RecvQueue::new(Arc::clone(&b.memory), place, (4, 2), None).unwrap();
    let init = QpInit { recv_cq, srq: Some(srq), cap: CAP, sq_sig_all: false, ..QpInit::new(pd, cq) };
    let Ok(Response::Qp(qp, places)) = lab.request(1, b.context, &Request::CreateQp(init)) else { panic!() };
    assert_eq!(places.recv, None);
    lab.request(1, b.context, &Request::DestroyQp(b.party.qp)).unwrap();
    b.party.qp = qp;
    let slots = Slots::new(true);
    b.cq.add_qp(qp, slots.clone());
    b.recv_cq.add_qp(qp, slots);
    listen(&mut lab, &b);
    connect(&mut lab, &mut a, &mut b);
    // More buffers than the device's queue has: the rest waits in the ring.
    for wr_id in 0..6 {
        let pushed = shared.push(&RecvWr { wr_id, sg_list: &[b.party.mr.sge(0, 10)] });
        assert_eq!(pushed, if wr_id < 4 { Ok(()) } else { Err(PostError::QueueFull) });
    }
    shared.ring();
    lab.run();
    lab.request(1, b.context, &Request::ModifySrq(srq, 2)).unwrap();
    for wr_id in 0..4 {
        a.post(wr_id, SEND, &[a.party.mr.sge(0, 3)]);
    }
    lab.run();
    // A slot that the device's queue has freed.
    assert_eq!(ends(&b.poll(true)), [0, 1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_eq!(b.all_events(), [Event::Async(AsyncEvent::SrqLimitReached(srq))]);
    let Ok(Response::SrqAttr(attr)) = lab.request(1, b.context, &Request::QuerySrq(srq)) else { panic!() };
    assert_eq!(attr.waiting, 0);
}

#[test]
fn a_program_that_does_not_poll_overruns_its_own_queue_only() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 16);
    let mut other = Program::new(&mut lab, 0, CAP, 16, 3);
    let mut peer = Program::new(&mut lab, 1, CAP, 16, 4);
    let second = Request::CreateId(Some(address(1)));
    let Ok(Response::Id(_)) = lab.request(1, peer.context, &second) else { panic!() };
    lab.net.nodes[1].listener = None;
    listen(&mut lab, &peer);
    connect(&mut lab, &mut other, &mut peer);
    // The ring and the device's queue hold 32 completions; the program ignores the depth of its send queue.
    for wr_id in 0..40 {
        if a.send.push(&SendWr::new(wr_id, b.party.write_to(0), &[])) == Err(PostError::QueueFull) {
            a.slots.reset();
            a.send.push(&SendWr::new(wr_id, b.party.write_to(0), &[])).unwrap();
        }
        a.send.ring();
        lab.run();
    }
    let error = Event::Async(AsyncEvent::CqError(a.party.cq));
    assert!(a.all_events().contains(&error));
    let mut out = [WorkCompletion::default(); 64];
    a.slots.reset();
    assert_eq!(a.cq.poll(&mut out), Err(PollError::Overrun), "slots that are not genuine");
    other.post(5, peer.party.write_to(0), &[]);
    lab.run();
    assert_eq!(ends(&other.poll(false)), [(5, WcStatus::Success)]);
    assert!(peer.all_events().is_empty());
}

#[test]
fn completions_that_the_ring_has_no_room_for_arrive_once_it_has() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 16);
    let mut polled = Vec::new();
    for wr_id in 0..24 {
        a.post(wr_id, b.party.write_to(0), &[]);
        lab.run();
    }
    for _ in 0..3 {
        polled.extend(a.poll(false));
        lab.run();
    }
    let all: Vec<_> = (0..24).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(ends(&polled), all);
}

#[test]
fn events_that_the_ring_has_no_room_for_arrive_once_it_has() {
    let mut lab = Lab::new();
    let (context, memory) = lab.open(0);
    let mut events = Events::new(memory).unwrap();
    let mut ids = Vec::new();
    for _ in 0..100 {
        // Nobody listens at the peer.
        let Ok(Response::Id(id)) = lab.request(0, context, &Request::CreateId(None)) else { panic!() };
        let (pd, cq) = match ids.first() {
            Some((_, pd, cq)) => (*pd, *cq),
            None => {
                let Ok(Response::Pd(pd)) = lab.request(0, context, &Request::AllocPd) else { panic!() };
                let Ok(Response::Cq(cq, _)) = lab.request(0, context, &Request::CreateCq(1)) else {
                    panic!()
                };
                (pd, cq)
            }
        };
        let init = QpInit { cap: QpCap { max_send_wr: 1, max_recv_wr: 1, ..CAP }, ..QpInit::new(pd, cq) };
        let Ok(Response::Qp(qp, _)) = lab.request(0, context, &Request::CreateQp(init)) else { panic!() };
        ids.push((id, pd, cq));
        let (peer, private_data) = (address(1), Vec::new());
        let (depths, revision, rtr, any_port) = ((1, 1), 2, None, false);
        let request = Request::Connect { id, qp, peer, private_data, depths, revision, rtr, any_port };
        lab.request(0, context, &request).unwrap();
        lab.run();
        lab.request(0, context, &Request::DestroyQp(qp)).unwrap();
    }
    let mut received = Vec::new();
    while received.len() < 100 {
        let before = received.len();
        received.extend(core::iter::from_fn(|| events.poll()));
        assert!(received.len() > before, "no event after {before}");
        lab.run();
    }
    let refused = |(id, ..): &(CmId, _, _)| Event::Cm(CmEvent { id: *id, kind: CmEventKind::Refused });
    assert_eq!(received, ids.iter().map(refused).collect::<Vec<_>>());
}

#[test]
fn a_context_names_its_own_objects_only() {
    let mut lab = Lab::new();
    let (a, _b) = pair(&mut lab, 64);
    let (other, _) = lab.open(0);
    let Party { pd, cq, recv_cq, qp, id, mr } = a.party;
    let none = Vec::new;
    let init = QpInit { recv_cq, cap: CAP, ..QpInit::new(pd, cq) };
    let memory = (mr.region, 0, 1);
    let requests = [
        Request::DeallocPd(pd),
        Request::RegMr { pd, memory, base: AddressBase::Zero, access: local_access() },
        Request::DeregMr(mr.mr.id),
        Request::AllocMw(pd),
        Request::DeallocMw(MwId(1)),
        Request::DestroyCq(cq),
        Request::CreateSrq { pd, max_wr: 1, max_sge: 1 },
        Request::ModifySrq(SrqId(1), 1),
        Request::QuerySrq(SrqId(1)),
        Request::DestroySrq(SrqId(1)),
        Request::CreateQp(init),
        Request::ModifyQp(qp, QpState::Error),
        Request::ModifyQpAccess(qp, all_access()),
        Request::AwaitBuffers(qp),
        Request::ReadyToReceive(qp, rtr(&a.party, 0)),
        Request::ReadyToSend(qp, RTS),
        Request::ReadyForDatagrams(qp, 1),
        Request::QueryQp(qp),
        Request::DestroyQp(qp),
        Request::DestroyId(id),
        Request::Listen { id, backlog: 1.try_into().unwrap(), depths: (1, 1) },
        Request::Connect {
            id,
            qp,
            peer: address(1),
            private_data: none(),
            depths: (1, 1),
            revision: 2,
            rtr: None,
            any_port: false,
        },
        Request::Accept { id, qp, private_data: none() },
        Request::Reject { id, private_data: none() },
        Request::Disconnect(id),
        Request::Addresses(id),
        Request::SetTrafficClass(id, 0x28),
    ];
    for request in &requests {
        assert_eq!(lab.request(0, other, request), Err(VerbsError::NoSuchObject), "{request:?}");
    }
    assert_eq!(a.party.state(&lab.net.nodes[0]), QpState::Rts);
}

#[test]
fn limits_and_the_end_of_the_memory_are_told_and_leave_nothing() {
    let mut lab = Lab::new();
    let limits = ObjectLimits { pds: 1, mrs: 1, mws: 1, cqs: 2, qps: 1, srqs: 1, ids: 1, ids_of_all: 1 };
    let memory = shared_memory();
    let context = lab.contexts[0].open(memory, USER, limits).unwrap();
    let full = Err(VerbsError::NoResources);
    let Ok(Response::Pd(pd)) = lab.request(0, context, &Request::AllocPd) else { panic!() };
    assert_eq!(lab.request(0, context, &Request::AllocPd), full);
    let Ok(Response::Cq(cq, _)) = lab.request(0, context, &Request::CreateCq(16)) else { panic!() };
    let Ok(Response::Cq(big, _)) = lab.request(0, context, &Request::CreateCq(4096)) else { panic!() };
    assert_eq!(lab.request(0, context, &Request::CreateCq(1)), full);
    let region = lab.net.nodes[0].memory.add(vec![0; 64]).unwrap();
    let reg = Request::RegMr { pd, memory: (region, 0, 64), base: AddressBase::Zero, access: local_access() };
    let Ok(Response::Mr(mr)) = lab.request(0, context, &reg) else { panic!() };
    assert_eq!(lab.request(0, context, &reg), full);
    let Ok(Response::Mw(mw)) = lab.request(0, context, &Request::AllocMw(pd)) else { panic!() };
    assert_eq!(lab.request(0, context, &Request::AllocMw(pd)), full);
    let Ok(Response::Id(id)) = lab.request(0, context, &Request::CreateId(None)) else { panic!() };
    assert_eq!(lab.request(0, context, &Request::CreateId(None)), full);
    let wide = QpCap { max_send_wr: 4096, max_recv_wr: 4096, max_send_sge: 16, max_inline_data: 512, ..CAP };
    // A queue that does not fit into the memory leaves no object.
    let wide = QpInit { cap: wide, ..QpInit::new(pd, cq) };
    assert_eq!(lab.request(0, context, &Request::CreateQp(wide)), full, "the memory ends");
    let init = QpInit { cap: CAP, ..wide };
    for _ in 0..1000 {
        let Ok(Response::Qp(qp, _)) = lab.request(0, context, &Request::CreateQp(init)) else { panic!() };
        assert_eq!(lab.request(0, context, &Request::CreateQp(init)), full);
        assert_eq!(lab.request(0, context, &Request::DestroyCq(cq)), Err(VerbsError::Busy));
        lab.request(0, context, &Request::DestroyQp(qp)).unwrap();
    }
    for request in
        [Request::DestroyId(id), Request::DeallocMw(mw.id), Request::DestroyCq(big), Request::DestroyCq(cq)]
    {
        assert_eq!(lab.request(0, context, &request), Ok(Response::Done), "{request:?}");
    }
    assert_eq!(lab.request(0, context, &Request::DeallocPd(pd)), Err(VerbsError::Busy));
    assert_eq!(lab.request(0, context, &Request::DeregMr(mr.id)), Ok(Response::Deregistered(region)));
    assert_eq!(lab.request(0, context, &Request::DeallocPd(pd)), Ok(Response::Done));
}

#[test]
fn memory_that_is_too_short_and_one_context_too_many_are_refused() {
    let mut lab = Lab::new();
    let short: Memory = shared_memory().iter().take(words_min() - 1).map(|_| Default::default()).collect();
    assert_eq!(lab.contexts[0].open(short, USER, LIMITS), Err(VerbsError::Invalid));
    let all: Vec<_> = (0..16).map(|_| lab.open(0)).collect();
    assert_eq!(lab.contexts[0].open(shared_memory(), USER, LIMITS), Err(VerbsError::NoResources));
    let (first, memory) = &all[0];
    memory[0].store(7, Ordering::Relaxed);
    assert!(Events::new(Arc::clone(memory)).is_none(), "another version");
    let Node { device, stags, .. } = &mut lab.net.nodes[0];
    lab.contexts[0].close(*first, device, stags, &mut |_| {}).unwrap();
    assert_eq!(lab.contexts[0].close(*first, device, stags, &mut |_| {}), Err(VerbsError::NoSuchObject));
    assert_eq!(lab.open(0).0, *first);
}

#[test]
fn a_closed_context_leaves_no_object_and_resets_its_connections() {
    let mut lab = Lab::new();
    let limits = lab.net.nodes[0].device.limits();
    for round in 0..300 {
        let (mut a, mut b) = pair(&mut lab, 64);
        let Ok(Response::Mw(_)) = lab.request(0, a.context, &Request::AllocMw(a.party.pd)) else { panic!() };
        let srq = Request::CreateSrq { pd: a.party.pd, max_wr: 4, max_sge: 1 };
        let Ok(Response::Srq(..)) = lab.request(0, a.context, &srq) else { panic!() };
        for wr_id in 0..round % 20 {
            a.post(wr_id, b.party.write_to(0), &[a.party.mr.sge(0, 100)]);
        }
        if round % 3 == 0 {
            lab.poll(0);
        }
        let mut released = Vec::new();
        let Node { device, stags, .. } = &mut lab.net.nodes[0];
        lab.contexts[0].close(a.context, device, stags, &mut |region| released.push(region)).unwrap();
        assert_eq!(released, [a.party.mr.region]);
        lab.run();
        let disconnected = Event::Cm(CmEvent { id: b.party.id, kind: CmEventKind::Disconnected });
        assert!(b.all_events().contains(&disconnected), "round {round}");
        let Node { device, stags, .. } = &mut lab.net.nodes[1];
        lab.contexts[1].close(b.context, device, stags, &mut |_| {}).unwrap();
        lab.run();
        lab.net.forget();
    }
    // All objects that the device may have can be created.
    let device = &mut lab.net.nodes[0].device;
    let pd = device.alloc_pd().unwrap();
    let cqs: Vec<_> = (0..limits.cqs).map(|_| device.create_cq(1).unwrap()).collect();
    for _ in 0..limits.qps {
        device.create_qp(QpInit { cap: CAP, ..QpInit::new(pd, cqs[0]) }).unwrap();
    }
    for _ in 0..limits.srqs {
        device.create_srq(pd, 1, 1).unwrap();
    }
    for _ in 0..limits.ids {
        device.create_id(None).unwrap();
    }
}

#[test]
fn posting_polling_and_delivery_allocate_nothing() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 64);
    let mut idle: Vec<Program> = (0..10).map(|salt| Program::new(&mut lab, 0, CAP, 64, salt)).collect();
    let mut round = |lab: &mut Lab, warm: bool| {
        let before = counted();
        let mut out = [WorkCompletion::default(); 32];
        watched(|| {
            for wr_id in 0..8 {
                b.post_recv(wr_id, &[b.party.mr.sge(0, 500)]);
                a.post(wr_id, SEND, &[a.party.mr.sge(0, 100)]);
                a.post(wr_id, b.party.write_to(0), &[a.party.mr.sge(0, 900)]);
            }
            a.cq.req_notify(false);
        });
        for _ in 0..3 {
            for at in 0..2 {
                let Lab { net, contexts, .. } = &mut *lab;
                // The recorder of signals allocates.
                watched(|| {
                    contexts[at].post(&mut net.nodes[at].device);
                    contexts[at].deliver(&mut net.nodes[at].device, &mut Silent);
                });
            }
            lab.net.run();
        }
        watched(|| {
            let sent: usize = core::iter::from_fn(|| a.cq.poll(&mut out).ok().filter(|n| *n > 0)).sum();
            let received: usize =
                core::iter::from_fn(|| b.recv_cq.poll(&mut out).ok().filter(|n| *n > 0)).sum();
            assert_eq!((sent, received), (16, 8));
        });
        assert!(warm || counted() == before, "{} allocations", counted() - before);
    };
    (0..4).for_each(|_| round(&mut lab, true));
    (0..100).for_each(|_| round(&mut lab, false));
    assert!(idle.iter_mut().all(|program| program.poll(false).is_empty()));
}

struct Silent;

impl iwarp_shared_verbs::worker::Signals for Silent {
    fn completion(&mut self, _: iwarp_shared_verbs::worker::ContextId, _: CqId) {}
    fn event(&mut self, _: iwarp_shared_verbs::worker::ContextId) {}
}

/// Posts 1920 receive buffers: 32 of each of 60 queue pairs without a stream.
fn post_many_buffers(lab: &mut Lab, program: &mut Program) {
    let Party { pd, cq: send_cq, recv_cq, .. } = program.party;
    let request =
        Request::CreateQp(QpInit { recv_cq, cap: CAP, sq_sig_all: false, ..QpInit::new(pd, send_cq) });
    for _ in 0..60 {
        let created = lab.request(program.at, program.context, &request);
        let Ok(Response::Qp(qp, places)) = created else { panic!("{created:?}") };
        program.recv_cq.add_qp(qp, Slots::new(false));
        let (memory, depth) = (Arc::clone(&program.memory), (CAP.max_recv_wr, CAP.max_recv_sge));
        let mut queue = RecvQueue::new(memory, places.recv.unwrap(), depth, None).unwrap();
        (0..32).for_each(|wr_id| queue.push(&RecvWr { wr_id, sg_list: &[] }).unwrap());
        queue.ring();
    }
}

#[test]
fn a_message_does_not_overtake_buffers_that_were_posted_before_it() {
    let mut lab = Lab::new();
    let (mut a, mut b) = pair(&mut lab, 256);
    b.post_recv(1, &[b.party.mr.sge(0, 100)]);
    lab.poll(1);
    post_many_buffers(&mut lab, &mut a);
    a.post(2, SEND, &[a.party.mr.sge(0, 100)]);
    while b.poll(true).is_empty() {
        lab.poll(0);
        lab.net.run();
        lab.poll(1);
    }
    assert_eq!(lab.contexts[0].stats(a.context).unwrap().work_requests, 1920 + 1);
}

#[test]
fn contexts_share_the_worker_fairly() {
    let mut lab = Lab::new();
    let (mut few, b) = pair(&mut lab, 256);
    lab.net.nodes[1].listener = None;
    let mut many = Program::new(&mut lab, 0, CAP, 256, 3);
    let mut peer = Program::new(&mut lab, 1, CAP, 256, 4);
    listen(&mut lab, &peer);
    connect(&mut lab, &mut many, &mut peer);
    post_many_buffers(&mut lab, &mut many);
    few.post(9, b.party.write_to(0), &[]);
    assert!(lab.poll(0), "the other context has work left");
    lab.net.run();
    lab.poll(0);
    assert_eq!(ends(&few.poll(false)), [(9, WcStatus::Success)]);
    let mut polls = 2;
    while lab.poll(0) {
        polls += 1;
    }
    assert!((25..40).contains(&polls), "1920 buffers, 64 per poll: {polls}");
}

#[test]
fn a_completion_queue_needs_its_memory() {
    let mut lab = Lab::new();
    let (context, memory) = lab.open(0);
    let Ok(Response::Cq(_, place)) = lab.request(0, context, &Request::CreateCq(64)) else { panic!() };
    assert!(CompletionQueue::new(memory, place).is_some());
    let short: Memory = shared_memory().iter().take(place.start).map(|_| Default::default()).collect();
    assert!(CompletionQueue::new(short, place).is_none());
}
