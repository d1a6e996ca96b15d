//! Queue pairs that are connected by number: who opens, what is held and rejected, when requests complete, what becomes
//! of work without a buffer or without a peer.

use core::time::Duration;

use rdma::testutil::verbs::*;
use rdma::verbs::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits { cqe_max: 4096, ..Limits::default() }
}

fn net() -> Net {
    Net::numbered(limits())
}

fn parties(net: &mut Net) -> (Party, Party) {
    (party(&mut net.nodes[0], CAP, None, 1), party(&mut net.nodes[1], CAP, None, 2))
}

fn to_rtr(net: &mut Net, at: usize, own: &Party, peer: &Party) {
    net.nodes[at].device.ready_to_receive(own.qp, &rtr(peer, at)).unwrap();
}

fn to_rts(net: &mut Net, at: usize, own: &Party) {
    net.nodes[at].device.ready_to_send(own.qp, &RTS).unwrap();
}

fn states(net: &Net, a: &Party, b: &Party) -> (QpState, QpState) {
    (a.state(&net.nodes[0]), b.state(&net.nodes[1]))
}

const UP: (QpState, QpState) = (QpState::Rts, QpState::Rts);

/// The ends connect in either order of their transitions, with time between them, and RTR alone is enough.
#[test]
fn either_end_may_be_first() {
    for first in 0..2 {
        for (gap, rts) in [(Duration::ZERO, true), (MS * 20, true), (SECOND * 3, false)] {
            let mut net = net();
            let (a, b) = parties(&mut net);
            let both = [(0, &a, &b), (1, &b, &a)];
            for (at, own, peer) in [both[first], both[1 - first]] {
                to_rtr(&mut net, at, own, peer);
                if rts {
                    to_rts(&mut net, at, own);
                }
                net.run_for(gap);
            }
            net.run_for(SECOND * 2);
            assert_eq!(states(&net, &a, &b), UP, "{first} {gap:?}");
            assert!(net.nodes.iter().all(|node| node.cm.is_empty()), "the program hears nothing of it");
            let stats = net.nodes.each_ref().map(|node| *node.device.stats());
            assert_eq!(stats.iter().map(|stats| stats.qp_requests_accepted).sum::<u64>(), 1);
            assert_eq!(stats.iter().map(|stats| stats.qp_collisions).sum::<u64>(), 0);
        }
    }
}

/// A Read Response tells that what precedes its request was processed, and nothing of what follows: here a Send waits
/// for a buffer meanwhile.
#[test]
fn an_answer_completes_nothing_behind_its_request() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    for round in 0..3 {
        let node = &mut net.nodes[0];
        a.post(node, 1, b.write_to(1000), &[a.mr.sge(0, 64)]);
        a.post(node, 2, b.read_from(0), &[a.mr.sge(8000, 5000)]);
        a.post(node, 3, SEND, &[a.mr.sge(0, 64)]);
        a.post(node, 4, b.write_to(2000), &[a.mr.sge(0, 64)]);
        net.run();
        let done = ends(&net.nodes[0].poll(a.cq));
        assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)], "round {round}");
        b.post_recv(&mut net.nodes[1], 5, &[b.mr.sge(6000, 64)]);
        net.run();
        let done = ends(&net.nodes[0].poll(a.cq));
        assert_eq!(done, [(3, WcStatus::Success), (4, WcStatus::Success)], "round {round}");
        assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(5, WcStatus::Success)]);
    }
    assert_eq!(states(&net, &a, &b), UP);
}

/// Messages of either direction arrive; requests complete in order, no matter which end has opened.
#[test]
fn messages_flow_in_both_directions() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    for (at, from, to) in [(0, a, b), (1, b, a)] {
        to.post_recv(&mut net.nodes[1 - at], 100, &[to.mr.sge(4000, 64)]);
        to.post_recv(&mut net.nodes[1 - at], 101, &[to.mr.sge(5000, 64)]);
        let node = &mut net.nodes[at];
        let sge = [from.mr.sge(0, 64)];
        from.post(node, 1, to.write_to(1000), &sge);
        from.post(node, 2, to.read_from(2000), &[from.mr.sge(3000, 64)]);
        from.post(node, 3, SEND, &sge);
        let (remote_addr, rkey) = (to.mr.mr.addr + 1200, to.mr.mr.rkey);
        from.post(node, 4, SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: *b"imm_0000" }, &sge);
        let op = rdma::AtomicOp::FetchAdd { add: 5, mask: 0 };
        from.post(node, 5, SendOp::Atomic { remote_addr, rkey, op }, &[from.mr.sge(3200, 8)]);
        net.run();
        let done = ends(&net.nodes[at].poll(from.cq));
        assert_eq!(done, (1..=5).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
        let received = net.nodes[1 - at].poll(to.recv_cq);
        assert_eq!(ends(&received), [(100, WcStatus::Success), (101, WcStatus::Success)]);
        assert_eq!((received[0].byte_len, received[0].imm_data), (64, None));
        // The length of the Write comes with its Immediate Data.
        assert_eq!((received[1].byte_len, received[1].opcode), (64, WcOpcode::RecvRdmaWithImm));
        assert_eq!(received[1].imm_data.unwrap()[..4], *b"imm_");
        let sent = net.nodes[at].bytes(&from.mr)[..64].to_vec();
        assert_eq!(net.nodes[1 - at].bytes(&to.mr)[1000..1064], sent[..]);
        assert_eq!(net.nodes[1 - at].bytes(&to.mr)[4000..4064], sent[..]);
    }
}

/// RFC 5040 §5.5 lets a Write complete once the transport has its bytes. Here it completes once the peer has placed it.
#[test]
fn a_request_completes_when_the_peer_has_processed_it() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    for wr_id in 0..4 {
        a.post(&mut net.nodes[0], wr_id, b.write_to(wr_id * 100), &[a.mr.sge(0, 100)]);
    }
    // The sender alone runs: its transport has all bytes.
    net.run_sender(0);
    assert!(net.nodes[0].poll(a.cq).is_empty());
    net.run();
    assert_eq!(net.nodes[0].poll(a.cq).len(), 4);
    let [here, there] = net.nodes.each_ref().map(|node| node.stats.rdmap);
    assert!(there.out_progress <= 2 && here.in_progress == there.out_progress, "one for many");
}

#[test]
fn a_send_carries_immediate_data() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    for wr_id in 0..3 {
        b.post_recv(&mut net.nodes[1], wr_id, &[b.mr.sge(100 * wr_id, 50)]);
    }
    let op = |imm_data| SendOp::SendWithImm { imm_data };
    a.post(&mut net.nodes[0], 1, op(*b"abcd"), &[a.mr.sge(0, 50)]);
    let flags = SendFlags { solicited: true, ..SendFlags::SIGNALED };
    let wr = SendWr { wr_id: 2, op: op(*b"efgh"), data: Data::Inline(b"inline"), flags };
    net.nodes[0].device.post_send(a.qp, &wr).unwrap();
    a.post(&mut net.nodes[0], 3, op([0; 4]), &[]);
    net.run();
    let received = net.nodes[1].poll(b.recv_cq);
    let seen = received.iter().map(|wc| (wc.byte_len, wc.imm_data, wc.solicited, wc.opcode));
    let expected = [(50, *b"abcd\0\0\0\0", false), (6, *b"efgh\0\0\0\0", true), (0, [0; 8], false)];
    let expected = expected.map(|(len, imm, solicited)| (len, Some(imm), solicited, WcOpcode::Recv));
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert_eq!(&net.nodes[1].bytes(&b.mr)[100..106], b"inline");
    // On a stream of the connection manager nobody has agreed to it.
    let mut plain = Net::new();
    let (a, _) = pair(&mut plain);
    let wr = send_wr(1, op([0; 4]), &[]);
    assert_eq!(plain.nodes[0].device.post_send(a.qp, &wr), Err(PostError::NotNegotiated));
}

/// A message without a receive buffer waits for one, and what follows it waits, too.
#[test]
fn messages_wait_for_receive_buffers() {
    for srq in [None, Some(16)] {
        let mut net = net();
        let (a, b) = numbered_pair(&mut net, [CAP, CAP], srq);
        let post = |net: &mut Net, wr_id| {
            let sge = [b.mr.sge(2000 + 100 * wr_id, 100)];
            let wr = RecvWr { wr_id, sg_list: &sge };
            let device = &mut net.nodes[1].device;
            match device.query_qp(b.qp).unwrap().init.srq {
                Some(srq) => device.post_srq_recv(srq, &wr).unwrap(),
                None => device.post_recv(b.qp, &wr).unwrap(),
            }
        };
        for wr_id in 0..6 {
            a.post(&mut net.nodes[0], wr_id, SEND, &[a.mr.sge(100 * wr_id, 100)]);
        }
        a.post(&mut net.nodes[0], 6, b.write_to(0), &[a.mr.sge(0, 100)]);
        net.run_for(SECOND * 60);
        assert!(net.nodes[0].poll(a.cq).is_empty());
        assert_eq!(states(&net, &a, &b), UP);
        for wr_id in 0..6 {
            post(&mut net, wr_id);
            net.run();
            assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(wr_id, WcStatus::Success)], "{srq:?}");
            let done = net.nodes[0].poll(a.cq);
            assert_eq!(done.len(), if wr_id == 5 { 2 } else { 1 });
        }
        let sent = net.nodes[0].bytes(&a.mr)[..600].to_vec();
        assert_eq!(net.nodes[1].bytes(&b.mr)[2000..2600], sent[..]);
        assert_eq!(net.nodes[1].stats.rdmap.buffer_waits, 6);
    }
}

/// Several queue pairs wait for buffers of one queue: each buffer lets one go on, none waits beside a buffer.
#[test]
fn queue_pairs_wait_for_shared_buffers() {
    let mut net = net();
    let (first, b) = numbered_pair(&mut net, [CAP, CAP], Some(32));
    let attr = net.nodes[1].device.query_qp(b.qp).unwrap();
    let srq = attr.init.srq.unwrap();
    let mut senders = vec![first];
    for salt in 0..7 {
        let a = party(&mut net.nodes[0], CAP, None, salt);
        let qp = net.nodes[1].device.create_qp(attr.init).unwrap();
        let other = Party { qp, ..b };
        for (at, own, peer) in [(0, &a, &other), (1, &other, &a)] {
            to_rtr(&mut net, at, own, peer);
            to_rts(&mut net, at, own);
        }
        senders.push(a);
    }
    net.run_for(SECOND * 2);
    for (wr_id, a) in (0..).zip(&senders) {
        a.post(&mut net.nodes[0], wr_id, SEND, &[a.mr.sge(0, 10)]);
        a.post(&mut net.nodes[0], wr_id, SEND, &[a.mr.sge(0, 10)]);
    }
    net.run();
    for wr_id in 0..16 {
        let wr = RecvWr { wr_id, sg_list: &[b.mr.sge(0, 10)] };
        net.nodes[1].device.post_srq_recv(srq, &wr).unwrap();
        net.run();
        assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(wr_id, WcStatus::Success)]);
    }
    assert!(senders.iter().all(|a| net.nodes[0].poll(a.cq).len() == 2));
}

/// With a limited number of tries the sender gives up, and its queue pair is in error. That of the receiver stays.
#[test]
fn a_sender_gives_up_after_its_tries() {
    let mut net = net();
    let (a, b) = parties(&mut net);
    let few = RtsAttr { rnr_retry: 2, ..RTS };
    for (at, own, peer, attr) in [(0, &a, &b, few), (1, &b, &a, RTS)] {
        to_rtr(&mut net, at, own, peer);
        net.nodes[at].device.ready_to_send(own.qp, &attr).unwrap();
    }
    net.run();
    a.post(&mut net.nodes[0], 1, b.write_to(0), &[a.mr.sge(0, 10)]);
    a.post(&mut net.nodes[0], 2, SEND, &[a.mr.sge(0, 10)]);
    a.post(&mut net.nodes[0], 3, SEND, &[a.mr.sge(0, 10)]);
    net.run_for(MS * 900);
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, WcStatus::Success)]);
    net.run_for(MS * 200);
    let failed = [(2, WcStatus::RnrRetryExceeded), (3, WcStatus::WrFlushError)];
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), failed);
    assert_eq!(a.state(&net.nodes[0]), QpState::Error);
    // A buffer that comes in time starts the time anew.
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(0, 10)]);
    net.run_for(SECOND * 5);
    b.post_recv(&mut net.nodes[1], 9, &[b.mr.sge(0, 10)]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, WcStatus::Success)]);
}

/// A request that comes before its queue pair is ready is held; one that nobody waits for is rejected, and tried again.
#[test]
fn requests_wait_for_their_queue_pair() {
    let mut net = net();
    let (a, b) = parties(&mut net);
    // Equal numbers on both nodes: the smaller address opens.
    to_rtr(&mut net, 0, &a, &b);
    net.run_for(MS * 100);
    assert_eq!(net.nodes[1].device.stats().qp_requests_held, 1);
    to_rtr(&mut net, 1, &b, &a);
    net.run();
    assert_eq!(states(&net, &a, &b), UP);
    assert_eq!(net.nodes[0].device.stats().qp_connects, 1, "it was held, and accepted at once");
    // A queue pair that is created late.
    let a = party(&mut net.nodes[0], CAP, None, 3);
    let to_come = Party { qp: QpNum(a.qp.0), ..a };
    to_rtr(&mut net, 0, &a, &to_come);
    net.run_for(SECOND);
    assert!(net.nodes[1].device.stats().qp_requests_rejected > 3);
    let b = party(&mut net.nodes[1], CAP, None, 4);
    assert_eq!(b.qp, to_come.qp);
    to_rtr(&mut net, 1, &b, &a);
    net.run_for(SECOND * 2);
    assert_eq!(states(&net, &a, &b), UP);
}

/// A queue pair is reached by the peer alone that it names, with the numbers that it names.
#[test]
fn other_peers_are_rejected() {
    let mut net = net();
    // The smaller number: it opens.
    let other = party(&mut net.nodes[0], CAP, None, 3);
    let (a, b) = parties(&mut net);
    to_rtr(&mut net, 1, &b, &a);
    to_rtr(&mut net, 0, &other, &b);
    net.run_for(SECOND);
    let rejected = net.nodes[1].device.stats().qp_requests_rejected;
    assert!(rejected > 0 && net.nodes[1].device.stats().qp_requests_accepted == 0);
    // The right one with another PSN than the queue pair expects.
    for first in 0..2 {
        let mut net = self::net();
        let (a, b) = parties(&mut net);
        let ends = [(0, &a, &b, 8), (1, &b, &a, 7)];
        for (at, own, peer, sq_psn) in [ends[first], ends[1 - first]] {
            to_rtr(&mut net, at, own, peer);
            net.nodes[at].device.ready_to_send(own.qp, &RtsAttr { sq_psn, ..RTS }).unwrap();
        }
        net.run_for(SECOND * 3);
        assert!(net.nodes.iter().all(|node| node.device.stats().qp_requests_accepted == 0));
        assert_eq!(states(&net, &a, &b), (QpState::Idle, QpState::Idle));
    }
}

/// Attributes that name no peer are refused, and so are transitions out of order.
#[test]
fn wrong_attributes_are_refused() {
    let mut net = net();
    let (a, b) = parties(&mut net);
    let good = rtr(&b, 0);
    let device = &mut net.nodes[0].device;
    let wrong = [
        RtrAttr { remote: "::1".parse().unwrap(), ..good },
        RtrAttr { remote: "224.0.0.1".parse().unwrap(), ..good },
        RtrAttr { remote: "0.0.0.0".parse().unwrap(), ..good },
        RtrAttr { local: "0.0.0.0".parse().unwrap(), ..good },
        RtrAttr { dest_qp_num: QpNum(1 << 24), ..good },
        RtrAttr { rq_psn: 1 << 24, ..good },
    ];
    for attr in wrong {
        assert_eq!(device.ready_to_receive(a.qp, &attr), Err(VerbsError::Invalid), "{attr:?}");
    }
    assert_eq!(device.ready_to_send(a.qp, &RTS), Err(VerbsError::State));
    assert_eq!(device.ready_to_receive(QpNum(5), &good), Err(VerbsError::NoSuchObject));
    device.ready_to_receive(a.qp, &good).unwrap();
    assert_eq!(device.ready_to_receive(a.qp, &good), Err(VerbsError::State));
    for attr in
        [RtsAttr { timeout: 32, ..RTS }, RtsAttr { retry_cnt: 8, ..RTS }, RtsAttr { rnr_retry: 8, ..RTS }]
    {
        assert_eq!(device.ready_to_send(a.qp, &attr), Err(VerbsError::Invalid));
    }
    device.ready_to_send(a.qp, &RTS).unwrap();
    assert_eq!(device.ready_to_send(a.qp, &RTS), Err(VerbsError::State));
    // A device that does not know where the ends meet.
    let mut plain = Net::new();
    let a = party(&mut plain.nodes[0], CAP, None, 1);
    assert_eq!(plain.nodes[0].device.ready_to_receive(a.qp, &good), Err(VerbsError::NotPermitted));
}

/// Where one direction is closed, the end that waits opens once it has work to send.
#[test]
fn the_other_end_opens_if_it_has_to() {
    let mut net = net();
    let (a, b) = parties(&mut net);
    net.refuses[1] = true;
    for (at, own, peer) in [(0, &a, &b), (1, &b, &a)] {
        to_rtr(&mut net, at, own, peer);
        to_rts(&mut net, at, own);
    }
    net.run_for(SECOND * 3);
    assert_eq!(states(&net, &a, &b), (QpState::Idle, QpState::Idle));
    let wr = send_wr(1, SEND, &[]);
    assert_eq!(net.nodes[1].device.post_send(b.qp, &wr), Err(PostError::State));
    net.run_for(SECOND * 2);
    assert_eq!(states(&net, &a, &b), UP);
}

/// A queue pair that is connected with itself: its sends reach its own receive queue.
#[test]
fn a_queue_pair_may_be_connected_with_itself() {
    let mut net = net();
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let attr = RtrAttr { remote: address(0).ip(), ..rtr(&a, 0) };
    net.nodes[0].device.ready_to_receive(a.qp, &attr).unwrap();
    to_rts(&mut net, 0, &a);
    net.run();
    assert_eq!(a.state(&net.nodes[0]), QpState::Rts);
    a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(0, 100)]);
    a.post(&mut net.nodes[0], 2, a.write_to(1000), &[a.mr.sge(0, 100)]);
    a.post(&mut net.nodes[0], 3, a.read_from(0), &[a.mr.sge(2000, 100)]);
    net.run();
    assert!(net.nodes[0].poll(a.cq).is_empty(), "the Send waits for a buffer");
    a.post_recv(&mut net.nodes[0], 9, &[a.mr.sge(3000, 100)]);
    net.run();
    assert_eq!(net.nodes[0].poll(a.cq).len(), 3);
    assert_eq!(ends(&net.nodes[0].poll(a.recv_cq)), [(9, WcStatus::Success)]);
    let bytes = net.nodes[0].bytes(&a.mr);
    assert!([1000, 2000, 3000].iter().all(|at| bytes[*at..at + 100] == bytes[..100]));
    net.nodes[0].device.destroy_qp(a.qp).unwrap();
    net.run();
}

/// A peer that goes leaves an orphan: receive buffers stay posted, an idle queue pair learns nothing, and work that is
/// posted then fails after the time that the queue pair has for it, the first with its own status.
#[test]
fn an_orphan_fails_when_it_sends() {
    for ended in [false, true] {
        let mut net = net();
        let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
        a.post_recv(&mut net.nodes[0], 50, &[a.mr.sge(0, 10)]);
        if ended {
            net.nodes[1].device.destroy_qp(b.qp).unwrap();
        } else {
            net.break_streams();
        }
        net.run_for(SECOND * 600);
        assert!(net.nodes[0].poll(a.cq).is_empty() && net.nodes[0].poll(a.recv_cq).is_empty());
        assert!(net.nodes[0].async_events().is_empty());
        assert_eq!(a.state(&net.nodes[0]), QpState::Idle);
        let wr = send_wr(1, SEND, &[]);
        assert_eq!(net.nodes[0].device.post_send(a.qp, &wr), Err(PostError::State));
        net.run_for(MS * 4900);
        assert_eq!(net.nodes[0].device.post_send(a.qp, &wr), Err(PostError::State));
        net.run_for(MS * 200);
        assert_eq!(a.state(&net.nodes[0]), QpState::Error);
        a.post(&mut net.nodes[0], 1, SEND, &[]);
        a.post(&mut net.nodes[0], 2, SEND, &[]);
        net.run();
        let failed = [(1, WcStatus::RetryExceeded), (2, WcStatus::WrFlushError)];
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), failed);
        assert_eq!(ends(&net.nodes[0].poll(a.recv_cq)), [(50, WcStatus::WrFlushError)]);
        assert!(net.nodes[0].async_events().is_empty(), "no event of a vanished peer");
    }
}

/// Work that was sent and not processed fails as well, the oldest first.
#[test]
fn unprocessed_work_of_an_orphan_fails() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    a.post(&mut net.nodes[0], 1, b.write_to(0), &[a.mr.sge(0, 10)]);
    a.post(&mut net.nodes[0], 2, SEND, &[a.mr.sge(0, 10)]);
    a.post(&mut net.nodes[0], 3, SEND, &[a.mr.sge(0, 10)]);
    net.run();
    net.break_streams();
    net.run_for(MS * 4900);
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, WcStatus::Success)]);
    net.run_for(MS * 200);
    let failed = [(2, WcStatus::RetryExceeded), (3, WcStatus::WrFlushError)];
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), failed);
}

/// A message that was processed has completed, although the peer goes at once: nothing is lost, and nothing fails.
#[test]
fn destroy_after_the_last_completion_loses_nothing() {
    let mut net = net();
    for round in 0..50 {
        let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
        b.post_recv(&mut net.nodes[1], round, &[b.mr.sge(0, 10)]);
        a.post(&mut net.nodes[0], round, SEND, &[a.mr.sge(0, 10)]);
        net.run();
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(round, WcStatus::Success)]);
        net.nodes[0].device.destroy_qp(a.qp).unwrap();
        net.run();
        assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(round, WcStatus::Success)]);
        net.nodes[1].device.destroy_qp(b.qp).unwrap();
        net.run();
        net.drop_closed();
        for (at, party) in [(0, &a), (1, &b)] {
            let Node { device, stags, .. } = &mut net.nodes[at];
            device.destroy_id(party.id).unwrap();
            device.dereg_mr(party.mr.mr.id, stags).unwrap();
            for cq in [party.cq, party.recv_cq] {
                device.destroy_cq(cq).unwrap();
            }
            device.dealloc_pd(party.pd).unwrap();
        }
    }
}

/// A queue pair is used again, with the same number: whichever end is first, the new connection is the one that counts.
#[test]
fn queue_pairs_are_used_again() {
    let mut net = net();
    let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
    for round in 0..40 {
        let both = [(0, &a, &b), (1, &b, &a)];
        let order = if round % 2 == 0 { [both[0], both[1]] } else { [both[1], both[0]] };
        for (at, own, peer) in order {
            let device = &mut net.nodes[at].device;
            device.modify_qp(own.qp, QpState::Error, Duration::ZERO).unwrap();
            device.modify_qp(own.qp, QpState::Idle, Duration::ZERO).unwrap();
            to_rtr(&mut net, at, own, peer);
            to_rts(&mut net, at, own);
            if round % 3 == 0 {
                net.run_for(MS * 500);
            }
        }
        net.run_for(SECOND * 10);
        assert_eq!(states(&net, &a, &b), UP, "{round}");
        b.post_recv(&mut net.nodes[1], round, &[b.mr.sge(0, 10)]);
        a.post(&mut net.nodes[0], round, SEND, &[a.mr.sge(0, 10)]);
        net.run();
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(round, WcStatus::Success)]);
        assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(round, WcStatus::Success)]);
        net.drop_closed();
    }
}

/// The request that the peer refuses has the status that InfiniBand has for it; those before it have succeeded.
#[test]
fn refused_requests_have_a_status() {
    type Refused = (Access, fn(&Party) -> SendOp, WcStatus);
    let cases: [Refused; 4] = [
        (Access::REMOTE_READ, |b| b.write_to(0), WcStatus::RemoteAccessError),
        (Access::REMOTE_WRITE, |b| b.read_from(0), WcStatus::RemoteAccessError),
        (
            Access::REGION,
            |_| SendOp::RdmaWrite { remote_addr: 0, rkey: Stag(77) },
            WcStatus::RemoteAccessError,
        ),
        (Access::REGION, |_| SEND, WcStatus::RemoteInvalidRequest),
    ];
    for (rights, refused, status) in cases {
        let mut net = net();
        let (a, b) = numbered_pair(&mut net, [CAP, CAP], None);
        for wr_id in 0..3 {
            // Shorter than the message of the last case.
            b.post_recv(&mut net.nodes[1], wr_id, &[b.mr.sge(0, if wr_id < 2 { 100 } else { 10 })]);
        }
        a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(0, 50)]);
        a.post(&mut net.nodes[0], 2, SEND, &[a.mr.sge(0, 50)]);
        a.post(&mut net.nodes[0], 3, refused(&b), &[a.mr.sge(0, 50)]);
        a.post(&mut net.nodes[0], 4, SEND, &[]);
        net.nodes[1].device.modify_qp_access(b.qp, rights).unwrap();
        net.run();
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::Success), (3, status), (4, WcStatus::WrFlushError)];
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), expected, "{rights:?}");
        assert!(net.nodes[0].async_events().is_empty(), "the status says so");
        assert_eq!(net.nodes[1].async_events().len(), 1);
        assert_eq!(states(&net, &a, &b), (QpState::Error, QpState::Error));
    }
}
