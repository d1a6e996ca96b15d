//! Completion queues, shared receive queues, memory windows, and the objects left when a connection ends.

use core::time::Duration;

use WcStatus::*;
use rdma::testutil::pattern;
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{AccessError, AtomicOp, StreamError};

#[test]
fn an_overrun_completion_queue_raises_an_event_and_ends_its_queue_pairs() {
    let mut net = Net::new();
    listen(&mut net, 4);
    let node = &mut net.nodes[0];
    let (a, other) = (party(node, CAP, None, 1), party(node, CAP, None, 3));
    // Two queue pairs complete to a queue of four slots; a third uses another queue.
    let small = node.device.create_cq(4).unwrap();
    let init =
        |pd, send_cq, recv_cq| QpInit { recv_cq, cap: CAP, sq_sig_all: false, ..QpInit::new(pd, send_cq) };
    let first = Party { qp: node.device.create_qp(init(a.pd, small, a.recv_cq)).unwrap(), cq: small, ..a };
    let second = Party {
        qp: node.device.create_qp(init(other.pd, other.cq, small)).unwrap(),
        id: node.device.create_id(None).unwrap(),
        ..other
    };
    let (mut b, mut c) = (party(&mut net.nodes[1], CAP, None, 2), party(&mut net.nodes[1], CAP, None, 4));
    let mut d = party(&mut net.nodes[1], CAP, None, 5);
    connect(&mut net, &first, &mut b);
    connect(&mut net, &second, &mut c);
    connect(&mut net, &other, &mut d);
    second.post_recv(&mut net.nodes[0], 70, &[second.mr.sge(0, 8)]);
    for at in 0..6 {
        first.post(&mut net.nodes[0], at, b.write_to(0), &[first.mr.sge(0, 8)]);
    }
    net.run();
    assert_eq!(first.state(&net.nodes[0]), QpState::Error);
    assert_eq!(second.state(&net.nodes[0]), QpState::Error);
    assert_eq!(other.state(&net.nodes[0]), QpState::Rts);
    assert_eq!(net.nodes[0].async_events(), [AsyncEvent::CqError(small)]);
    // Completions in the queue are polled; then the queue reports the overrun.
    assert_eq!(ends(&net.nodes[0].poll(small)), (0..4).map(|at| (at, Success)).collect::<Vec<_>>());
    let mut out = [WorkCompletion::default()];
    assert_eq!(net.nodes[0].device.poll_cq(small, &mut out), Err(PollError::Overrun));
    assert_eq!(net.nodes[0].device.poll_cq(CqId(1), &mut out), Err(PollError::NoSuchObject));
    // The third queue pair continues.
    other.post(&mut net.nodes[0], 9, d.write_to(0), &[other.mr.sge(0, 8)]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(other.cq)), [(9, Success)]);
    // Only its queue pairs keep the queue from being destroyed.
    let device = &mut net.nodes[0].device;
    assert_eq!(device.destroy_cq(small), Err(VerbsError::Busy));
    device.destroy_qp(first.qp).unwrap();
    device.destroy_qp(second.qp).unwrap();
    assert_eq!(device.destroy_cq(small), Ok(()));
}

#[test]
fn a_completion_queue_as_long_as_its_queues_does_not_overrun() {
    let mut net = Net::new();
    let cap = QpCap { max_send_wr: 3, max_recv_wr: 2, ..CAP };
    listen(&mut net, 4);
    let mut a = party(&mut net.nodes[0], cap, None, 1);
    let device = &mut net.nodes[0].device;
    let cq = device.create_cq(5).unwrap();
    let init = QpInit { cap, ..QpInit::new(a.pd, cq) };
    a.qp = device.create_qp(init).unwrap();
    let mut b = party(&mut net.nodes[1], CAP, None, 2);
    connect(&mut net, &a, &mut b);
    // Posts until the queue is full, repeatedly, and once after everything is flushed.
    for round in 0..20 {
        for at in 0..5 {
            let wr = RecvWr { wr_id: 100 + at, sg_list: &[a.mr.sge(0, 8)] };
            let taken = net.nodes[0].device.post_recv(a.qp, &wr);
            assert!(matches!(taken, Ok(()) | Err(PostError::QueueFull)));
            let wr = send_wr(at, b.write_to(0), &[]);
            let taken = net.nodes[0].device.post_send(a.qp, &wr);
            assert!(matches!(taken, Ok(()) | Err(PostError::QueueFull)));
        }
        for _ in 0..2 {
            b.post(&mut net.nodes[1], 0, SEND, &[]);
        }
        if round == 19 {
            net.cut();
        }
        net.run();
        assert_eq!(net.nodes[0].poll(cq).len(), 5);
        net.nodes[1].poll(b.cq);
    }
    assert_eq!(net.nodes[0].async_events(), []);
    assert_eq!(net.nodes[0].device.resize_cq(cq, 0), Err(VerbsError::Invalid));
    assert_eq!(net.nodes[0].device.resize_cq(cq, 9), Ok(()));
}

#[test]
fn an_armed_completion_queue_raises_one_event() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    for at in 0..6 {
        b.post_recv(&mut net.nodes[1], at, &[b.mr.sge(0, 8)]);
    }
    let send = |net: &mut Net, solicited| {
        let flags = SendFlags { solicited, ..SendFlags::SIGNALED };
        net.nodes[0].device.post_send(a.qp, &SendWr { flags, ..send_wr(0, SEND, &[]) }).unwrap();
        net.run();
        core::iter::from_fn(|| net.nodes[1].device.poll_cq_event()).collect::<Vec<_>>()
    };
    assert_eq!(send(&mut net, true), []);
    net.nodes[1].device.req_notify_cq(b.recv_cq, true).unwrap();
    assert_eq!(send(&mut net, false), []);
    assert_eq!(send(&mut net, true), [b.recv_cq]);
    assert_eq!(send(&mut net, true), []);
    net.nodes[1].device.req_notify_cq(b.recv_cq, false).unwrap();
    // Arming for solicited completions does not disarm the event for any completion.
    net.nodes[1].device.req_notify_cq(b.recv_cq, true).unwrap();
    assert_eq!(send(&mut net, false), [b.recv_cq]);
    // An error is solicited.
    net.nodes[1].device.req_notify_cq(b.recv_cq, true).unwrap();
    net.cut();
    assert_eq!(net.nodes[1].device.poll_cq_event(), Some(b.recv_cq));
    assert_eq!(net.nodes[1].device.req_notify_cq(CqId(3), true), Err(VerbsError::NoSuchObject));
}

fn srq_of(node: &Node, party: &Party) -> SrqId {
    node.device.query_qp(party.qp).unwrap().init.srq.unwrap()
}

#[test]
fn queue_pairs_share_buffers_and_the_limit_event_is_raised_once() {
    let mut net = Net::new();
    let (a, b) = pair_with(&mut net, [CAP, CAP], Some(8));
    let srq = srq_of(&net.nodes[1], &b);
    // A second queue pair at node 1 uses the same shared receive queue.
    let init = net.nodes[1].device.query_qp(b.qp).unwrap().init;
    let second = Party {
        qp: net.nodes[1].device.create_qp(init).unwrap(),
        id: net.nodes[1].device.create_id(None).unwrap(),
        ..b
    };
    let c = party(&mut net.nodes[0], CAP, None, 3);
    let mut second = second;
    connect(&mut net, &c, &mut second);
    let node = &mut net.nodes[1];
    for at in 0..6 {
        let wr = RecvWr { wr_id: at, sg_list: &[b.mr.sge(at * 100, 60), b.mr.sge(at * 100 + 80, 20)] };
        node.device.post_srq_recv(srq, &wr).unwrap();
    }
    let wr = RecvWr { wr_id: 9, sg_list: &[] };
    assert_eq!(node.device.post_recv(b.qp, &wr), Err(PostError::State));
    node.device.modify_srq(srq, 4).unwrap();
    assert_eq!(node.device.query_srq(srq).unwrap().srq_limit, 4);
    for (party, at) in [(&a, 0), (&c, 1), (&a, 2), (&c, 3)] {
        party.post(&mut net.nodes[0], at, SEND, &[party.mr.sge(0, 70)]);
        net.run();
        let events = net.nodes[1].async_events();
        assert_eq!(events, if at == 2 { vec![AsyncEvent::SrqLimitReached(srq)] } else { vec![] }, "{at}");
    }
    let got = net.nodes[1].poll(b.recv_cq);
    let got = got.iter().map(|wc| (wc.wr_id, wc.qp_num, wc.byte_len)).collect::<Vec<_>>();
    assert_eq!(got, [(0, b.qp, 70), (1, second.qp, 70), (2, b.qp, 70), (3, second.qp, 70)]);
    for (at, salt) in [(0, 1), (1, 3), (2, 1), (3, 3)] {
        let bytes = &net.nodes[1].bytes(&b.mr)[at * 100..];
        assert_eq!((&bytes[..60], &bytes[80..90]), (&pattern(70, salt)[..60], &pattern(70, salt)[60..]));
    }
    assert_eq!(net.nodes[1].device.query_srq(srq).unwrap().waiting, 2);
    // With the limit above the number of buffers, the event is raised at once.
    net.nodes[1].device.modify_srq(srq, 3).unwrap();
    assert_eq!(net.nodes[1].async_events(), [AsyncEvent::SrqLimitReached(srq)]);
    // The buffers stay in the shared queue when a stream ends.
    net.nodes[1].device.modify_qp(b.qp, QpState::Error, net.now).unwrap();
    net.run();
    assert_eq!(net.nodes[1].async_events(), [AsyncEvent::QpLastWqeReached(b.qp)]);
    assert_eq!(net.nodes[1].poll(b.recv_cq), []);
    c.post(&mut net.nodes[0], 4, SEND, &[c.mr.sge(0, 1)]);
    net.run();
    assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(4, Success)]);
    assert_eq!(net.nodes[1].device.destroy_srq(srq), Err(VerbsError::Busy));
}

#[test]
fn a_queue_pair_takes_at_most_its_share_of_a_shared_queue() {
    let mut net = Net::new();
    let cap = QpCap { max_recv_wr: 3, ..CAP };
    let (a, b) = pair_with(&mut net, [CAP, cap], Some(8));
    let srq = srq_of(&net.nodes[1], &b);
    for at in 0..8 {
        net.nodes[1].device.post_srq_recv(srq, &RecvWr { wr_id: at, sg_list: &[b.mr.sge(0, 8)] }).unwrap();
    }
    let full = RecvWr { wr_id: 9, sg_list: &[] };
    assert_eq!(net.nodes[1].device.post_srq_recv(srq, &full), Err(PostError::QueueFull));
    for at in 0..3 {
        a.post(&mut net.nodes[0], at, SEND, &[]);
    }
    net.run();
    assert_eq!(net.nodes[1].device.query_qp(b.qp).unwrap().recv_used, 3);
    // Polled completions free slots.
    assert_eq!(net.nodes[1].poll(b.recv_cq).len(), 3);
    for at in 0..4 {
        a.post(&mut net.nodes[0], at, SEND, &[]);
    }
    net.run();
    assert_eq!(net.nodes[1].poll(b.recv_cq).len(), 3);
    assert_eq!(net.nodes[1].device.query_srq(srq).unwrap().waiting, 2);
    let (code, _) = StreamError::NoBuffer.code();
    let events = [AsyncEvent::QpLastWqeReached(b.qp), AsyncEvent::QpRequestError(b.qp, code)];
    let mut told = net.nodes[1].async_events();
    told.sort_by_key(|event| !matches!(event, AsyncEvent::QpLastWqeReached(_)));
    assert_eq!(told, events);
    assert_eq!(net.nodes[0].async_events(), [AsyncEvent::QpTerminated(a.qp, code)]);
}

fn window(node: &mut Node, party: &Party, access: Access) -> (MemoryWindow, SendOp) {
    let Node { device, stags, .. } = node;
    let mw = device.alloc_mw(party.pd, stags).unwrap();
    let address = party.mr.mr.addr + 1000;
    let bind = Bind { lkey: party.mr.mr.lkey, address, len: 100, access, zero_based: true };
    (mw, SendOp::BindMw { mw: mw.id, rkey: inc_rkey(mw.rkey), bind })
}

#[test]
fn a_window_opens_part_of_a_region_until_it_is_invalidated() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let (mw, bind) = window(&mut net.nodes[1], &b, access);
    let rkey = inc_rkey(mw.rkey);
    b.post(&mut net.nodes[1], 1, bind, &[]);
    net.run();
    let done = net.nodes[1].poll(b.cq);
    assert_eq!((ends(&done), done[0].opcode), (vec![(1, Success)], WcOpcode::BindMw));
    let Node { device, stags, .. } = &mut net.nodes[1];
    assert_eq!(device.dereg_mr(b.mr.mr.id, stags), Err(VerbsError::Busy));
    // The peer writes to its first and last bytes, and invalidates it.
    a.post(&mut net.nodes[0], 1, SendOp::RdmaWrite { remote_addr: 0, rkey }, &[a.mr.sge(0, 1)]);
    a.post(&mut net.nodes[0], 2, SendOp::RdmaWrite { remote_addr: 99, rkey }, &[a.mr.sge(1, 1)]);
    b.post_recv(&mut net.nodes[1], 7, &[]);
    a.post(&mut net.nodes[0], 3, SendOp::Send { invalidate: Some(rkey) }, &[]);
    net.run();
    let (ours, theirs) = (pattern(MEMORY, 1), pattern(MEMORY, 2));
    let bytes = net.nodes[1].bytes(&b.mr);
    assert_eq!((bytes[1000], bytes[1099]), (ours[0], ours[1]));
    assert_eq!((&bytes[..1000], &bytes[1001..1099]), (&theirs[..1000], &theirs[1001..1099]));
    assert_eq!(net.nodes[1].poll(b.recv_cq)[0].invalidated, Some(rkey));
    // It can be bound again, and its owner invalidates it.
    b.post(&mut net.nodes[1], 2, bind, &[]);
    b.post(&mut net.nodes[1], 3, SendOp::LocalInvalidate { stag: rkey }, &[]);
    net.run();
    assert_eq!(ends(&net.nodes[1].poll(b.cq)), [(2, Success), (3, Success)]);
    let Node { device, stags, .. } = &mut net.nodes[1];
    device.dealloc_mw(mw.id, stags).unwrap();
    assert_eq!(device.dealloc_mw(mw.id, stags), Err(VerbsError::NoSuchObject));
    assert_eq!(device.dereg_mr(b.mr.mr.id, stags), Ok(()));
}

#[test]
fn an_access_that_a_window_does_not_allow_ends_the_stream() {
    let access = Access::REMOTE_READ;
    let write = |rkey, at| SendOp::RdmaWrite { remote_addr: at, rkey };
    let read = |rkey, at| SendOp::RdmaRead { remote_addr: at, rkey };
    let cases: [(SendOp, StreamError); 4] = [
        (write(Stag(0), 0), StreamError::Tagged(AccessError::Rights)),
        (read(Stag(0), 93), StreamError::Read(AccessError::Bounds)),
        (read(Stag(1), 0), StreamError::Read(AccessError::InvalidStag)),
        (SendOp::Send { invalidate: Some(Stag(0)) }, StreamError::Invalidate(AccessError::Rights)),
    ];
    for (op, error) in cases {
        let mut net = Net::new();
        let (a, b) = pair(&mut net);
        let (mw, bind) = window(&mut net.nodes[1], &b, access);
        b.post(&mut net.nodes[1], 1, bind, &[]);
        b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 8)]);
        net.run();
        let key = |key: Stag| Stag(inc_rkey(mw.rkey).0 ^ key.0);
        let op = match op {
            SendOp::RdmaWrite { remote_addr, rkey } => write(key(rkey), remote_addr),
            SendOp::RdmaRead { remote_addr, rkey } => read(key(rkey), remote_addr),
            SendOp::Send { invalidate } => SendOp::Send { invalidate: invalidate.map(key) },
            other => other,
        };
        a.post(&mut net.nodes[0], 1, op, &[a.mr.sge(0, 8)]);
        net.run();
        let (code, _) = error.code();
        assert_eq!(net.nodes[1].async_events(), [AsyncEvent::QpAccessError(b.qp, code)], "{op:?}");
        assert_eq!(net.nodes[0].async_events(), [AsyncEvent::QpTerminated(a.qp, code)]);
        assert_eq!(net.nodes[1].bytes(&b.mr)[8..], pattern(MEMORY, 2)[8..]);
        // The end of the stream unbinds the window.
        assert_eq!(net.nodes[1].stags.windows_of(b.mr.mr.lkey), 0);
    }
}

#[test]
fn an_access_that_the_queue_pair_does_not_allow_ends_the_stream() {
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    // Set on a new queue pair, or on one with a connection; the right itself, or the two others.
    for (denied, right) in rights.into_iter().enumerate() {
        for (early, own) in [(true, false), (false, false), (true, true), (false, true)] {
            let others = rights.into_iter().enumerate().filter(|(at, _)| *at != denied);
            let others = others.fold(Access::NONE, |all, (_, right)| all | right);
            let granted = if own { right } else { others };
            let mut net = Net::new();
            listen(&mut net, 4);
            let (mut b, a) = (party(&mut net.nodes[1], CAP, None, 2), party(&mut net.nodes[0], CAP, None, 1));
            let qp = b.qp;
            if early {
                net.nodes[1].device.modify_qp_access(qp, granted).unwrap();
            }
            connect(&mut net, &a, &mut b);
            if !early {
                net.nodes[1].device.modify_qp_access(qp, granted).unwrap();
            }
            assert_eq!(net.nodes[1].device.query_qp(qp).unwrap().access, granted);
            let (remote_addr, rkey) = (b.mr.mr.addr, b.mr.mr.rkey);
            let atomic = SendOp::Atomic { remote_addr, rkey, op };
            let (op, error) = [
                (b.write_to(0), StreamError::Tagged(AccessError::Rights)),
                (b.read_from(0), StreamError::Read(AccessError::Rights)),
                (atomic, StreamError::Atomic(AccessError::Rights)),
            ][denied];
            a.post(&mut net.nodes[0], 1, op, &[a.mr.sge(0, 8)]);
            net.run();
            if own {
                assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success)], "{right}");
                continue;
            }
            let (code, _) = error.code();
            assert_eq!(net.nodes[1].async_events(), [AsyncEvent::QpAccessError(qp, code)], "{right}");
            assert_eq!(net.nodes[0].async_events(), [AsyncEvent::QpTerminated(a.qp, code)]);
            assert_eq!(net.nodes[1].bytes(&b.mr), pattern(MEMORY, 2));
            // The rights are those of the next connection, too.
            net.nodes[1].device.modify_qp(qp, QpState::Idle, Duration::ZERO).unwrap();
            assert_eq!(net.nodes[1].device.query_qp(qp).unwrap().access, granted);
        }
    }
    let mut net = Net::new();
    let b = party(&mut net.nodes[1], CAP, None, 2);
    let device = &mut net.nodes[1].device;
    assert_eq!(device.query_qp(b.qp).unwrap().access, Access::REGION);
    assert_eq!(device.modify_qp_access(b.qp, Access::LOCAL_WRITE), Err(VerbsError::Invalid));
    assert_eq!(device.modify_qp_access(QpNum(99), Access::NONE), Err(VerbsError::NoSuchObject));
}

#[test]
fn a_window_that_cannot_be_bound_is_a_bind_error() {
    let mut net = Net::new();
    let (_, b) = pair(&mut net);
    let (mw, bind) = window(&mut net.nodes[1], &b, Access::REMOTE_READ);
    let SendOp::BindMw { bind: to, rkey, .. } = bind else { unreachable!() };
    let device = &mut net.nodes[1].device;
    // Checked when posted: the key of another window, no such window.
    let wrong = SendOp::BindMw { mw: mw.id, rkey: Stag(rkey.0 ^ 0x100), bind: to };
    assert_eq!(device.post_send(b.qp, &send_wr(1, wrong, &[])), Err(PostError::Window));
    let wrong = SendOp::BindMw { mw: MwId(1), rkey, bind: to };
    assert_eq!(device.post_send(b.qp, &send_wr(1, wrong, &[])), Err(PostError::NoSuchObject));
    // Checked when executed: more than the region.
    let wrong = SendOp::BindMw { mw: mw.id, rkey, bind: Bind { len: MEMORY as u64, ..to } };
    b.post(&mut net.nodes[1], 1, wrong, &[]);
    b.post(&mut net.nodes[1], 2, bind, &[]);
    net.run();
    assert_eq!(ends(&net.nodes[1].poll(b.cq)), [(1, MwBindError), (2, WrFlushError)]);
    assert_eq!(b.state(&net.nodes[1]), QpState::Error);
}

#[test]
fn objects_are_destroyed_in_the_right_order_only() {
    let mut net = Net::new();
    let (a, _) = pair(&mut net);
    let Node { device, stags, .. } = &mut net.nodes[0];
    let before = stags.len();
    assert_eq!(device.dealloc_pd(a.pd), Err(VerbsError::Busy));
    assert_eq!(device.destroy_cq(a.cq), Err(VerbsError::Busy));
    device.destroy_qp(a.qp).unwrap();
    assert_eq!(device.destroy_qp(a.qp), Err(VerbsError::NoSuchObject));
    net.run();
    let Node { device, stags, .. } = &mut net.nodes[0];
    device.destroy_cq(a.cq).unwrap();
    device.destroy_cq(a.recv_cq).unwrap();
    assert_eq!(device.dealloc_pd(a.pd), Err(VerbsError::Busy));
    device.dereg_mr(a.mr.mr.id, stags).unwrap();
    device.dealloc_pd(a.pd).unwrap();
    assert_eq!(device.dealloc_pd(a.pd), Err(VerbsError::NoSuchObject));
    device.destroy_id(a.id).unwrap();
    assert_eq!(device.destroy_id(a.id), Err(VerbsError::NoSuchObject));
    assert_eq!(stags.len(), before - 1);
}

#[test]
fn sizes_and_rights_are_checked_when_objects_are_created() {
    let mut net = Net::new();
    let Node { device, stags, .. } = &mut net.nodes[0];
    let pd = device.alloc_pd().unwrap();
    let mut reg = |pd, length, base, access| {
        device.reg_mr(pd, (RegionId(0), 0, length), base, access, stags).map(|_| ())
    };
    for (remote, local) in [
        (Access::REMOTE_WRITE, Access::LOCAL_WRITE),
        (Access::REMOTE_ATOMIC, Access::LOCAL_WRITE),
        (Access::REMOTE_READ, Access::LOCAL_READ),
    ] {
        assert_eq!(reg(pd, 8, AddressBase::Zero, remote), Err(VerbsError::Invalid));
        assert_eq!(reg(pd, 8, AddressBase::Zero, remote | local), Ok(()));
    }
    assert_eq!(reg(pd, 8, AddressBase::Zero, Access::REMOTE_INVALIDATE), Err(VerbsError::Invalid));
    assert_eq!(reg(pd, 8, AddressBase::At(u64::MAX), Access::NONE), Err(VerbsError::Invalid));
    assert_eq!(reg(PdId(3), 8, AddressBase::Zero, Access::NONE), Err(VerbsError::NoSuchObject));
    let limits = device.limits();
    assert_eq!(device.create_cq(0), Err(VerbsError::Invalid));
    assert_eq!(device.create_cq(limits.cqe_max + 1), Err(VerbsError::Invalid));
    assert_eq!(device.create_srq(pd, 0, 1), Err(VerbsError::Invalid));
    assert_eq!(device.create_srq(pd, 1, limits.sge_max + 1), Err(VerbsError::Invalid));
    let cq = device.create_cq(1).unwrap();
    let init = QpInit { cap: CAP, sq_sig_all: false, ..QpInit::new(pd, cq) };
    let wrong = QpCap { max_inline_data: limits.inline_max + 1, ..CAP };
    assert_eq!(device.create_qp(QpInit { cap: wrong, ..init }), Err(VerbsError::Invalid));
    let wrong = QpCap { max_send_wr: limits.qp_wr_max + 1, ..CAP };
    assert_eq!(device.create_qp(QpInit { cap: wrong, ..init }), Err(VerbsError::Invalid));
    assert_eq!(device.create_qp(QpInit { recv_cq: CqId(9), ..init }), Err(VerbsError::NoSuchObject));
    let other_pd = device.alloc_pd().unwrap();
    let srq = Some(device.create_srq(other_pd, 1, 1).unwrap());
    assert_eq!(device.create_qp(QpInit { srq, ..init }), Err(VerbsError::Invalid));
    let pds = usize::from(limits.pds);
    let made = core::iter::from_fn(|| device.alloc_pd().ok()).count();
    assert_eq!((made, device.alloc_pd()), (pds - 2, Err(VerbsError::NoResources)));
}
