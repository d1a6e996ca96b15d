//! Datagrams: which arrive, what a receiver sees of them, which are dropped, and how links come and go.

use core::net::IpAddr;
use core::time::Duration;

use rdma::testutil::verbs::*;
use rdma::verbs::*;

const SECOND: Duration = Duration::from_secs(1);
const QKEY: u32 = 0x1111_1111;
/// Bytes in front of a datagram in its buffer.
const GRH: u32 = 40;

fn ip(at: usize) -> IpAddr {
    address(at).ip()
}

fn net() -> Net {
    Net::numbered(Limits { cqe_max: 4096, ..Limits::default() })
}

fn end(net: &mut Net, at: usize, srq: Option<u16>) -> Party {
    let party = party_of(&mut net.nodes[at], QpType::Ud, CAP, srq, at as u8 + 1);
    net.nodes[at].device.ready_for_datagrams(party.qp, QKEY).unwrap();
    net.run();
    party
}

fn ends(net: &mut Net) -> (Party, Party) {
    (end(net, 0, None), end(net, 1, None))
}

/// A datagram from one node to a queue pair of another.
fn to(from: usize, at: usize, party: &Party) -> SendOp {
    let to = Destination { local: ip(from), remote: ip(at), qp_num: party.qp, qkey: QKEY };
    SendOp::Datagram { to, imm_data: None }
}

fn received(net: &mut Net, at: usize, party: &Party) -> Vec<WorkCompletion> {
    let all = net.nodes[at].poll(party.recv_cq);
    assert!(all.iter().all(|wc| wc.status == WcStatus::Success), "{all:?}");
    all
}

/// Bytes, sender, key, Immediate Data and addresses arrive as a device of InfiniBand reports them, in either direction,
/// and the sender's request completes at once.
#[test]
fn a_receiver_sees_bytes_and_sender() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    for (from, at, own, peer) in [(0, 1, a, b), (1, 0, b, a), (0, 1, a, b)] {
        for len in [0, 1, 77, 1000, u32::from(DATAGRAM_MAX)] {
            let buffer = peer.mr.sge(4096, len + GRH);
            peer.post_recv(&mut net.nodes[at], 5, &[buffer]);
            let SendOp::Datagram { to, .. } = to(from, at, &peer) else { unreachable!() };
            let imm_data = (len > 1).then_some(*b"imm!");
            let op = SendOp::Datagram { to, imm_data };
            let (start, middle) = (own.mr.sge(0, len / 3), own.mr.sge(u64::from(len / 3), len - len / 3));
            let flags = SendFlags { solicited: len == 77, ..SendFlags::SIGNALED };
            let list = [start, middle];
            let wr = SendWr { wr_id: 9, op, data: Data::List(&list), flags };
            net.nodes[from].device.post_send(own.qp, &wr).unwrap();
            net.run();
            let sent = net.nodes[from].poll(own.cq);
            assert_eq!(
                sent.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(),
                [(9, WcStatus::Success)]
            );
            let expected = WorkCompletion {
                wr_id: 5,
                opcode: WcOpcode::Recv,
                byte_len: len + GRH,
                imm_data: imm_data.map(|_| *b"imm!\0\0\0\0"),
                solicited: len == 77,
                qp_num: peer.qp,
                src_qp: own.qp,
                ..WorkCompletion::default()
            };
            assert_eq!(received(&mut net, at, &peer), [expected], "{len} bytes");
            let there = &net.nodes[at].bytes(&peer.mr)[4096..];
            let (route, payload) = (&there[..40], &there[40..40 + len as usize]);
            assert_eq!((route[0], route[6]), (0x60, 0x1b));
            assert_eq!(
                (&route[8..24], &route[24..]),
                (&gid(ip(from)).octets()[..], &gid(ip(at)).octets()[..])
            );
            assert_eq!(payload, &net.nodes[from].bytes(&own.mr)[..len as usize]);
        }
    }
    let links = net.nodes.each_ref().map(|node| node.device.stats().datagram_links_opened);
    assert_eq!(links, [1, 0], "one link serves both directions");
}

/// One queue pair sends to several, also to itself and to others of its own worker, and inline.
#[test]
fn a_queue_pair_reaches_any_other() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let (c, d) = (end(&mut net, 0, None), end(&mut net, 1, Some(8)));
    let srq = net.nodes[1].device.query_qp(d.qp).unwrap().init.srq.unwrap();
    net.nodes[1].device.post_srq_recv(srq, &RecvWr { wr_id: 6, sg_list: &[d.mr.sge(0, 200)] }).unwrap();
    for (at, party) in [(0, &a), (1, &b), (0, &c)] {
        party.post_recv(&mut net.nodes[at], 6, &[party.mr.sge(0, 200)]);
    }
    for (at, party) in [(0, &a), (1, &b), (0, &c), (1, &d)] {
        let op = to(0, at, party);
        let wr = SendWr { wr_id: 1, op, data: Data::Inline(b"a datagram"), flags: SendFlags::SIGNALED };
        net.nodes[0].device.post_send(a.qp, &wr).unwrap();
    }
    net.run();
    for (at, party) in [(0, &a), (1, &b), (0, &c), (1, &d)] {
        let all = received(&mut net, at, party);
        assert_eq!(all.iter().map(|wc| (wc.wr_id, wc.src_qp)).collect::<Vec<_>>(), [(6, a.qp)]);
        assert_eq!(&net.nodes[at].bytes(&party.mr)[40..50], b"a datagram");
    }
    assert_eq!(net.nodes[0].poll(a.cq).len(), 4);
}

/// A datagram that nobody takes is dropped and counted, and nobody else is disturbed.
#[test]
fn what_nobody_takes_is_dropped() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let send = |net: &mut Net, change: &dyn Fn(&mut Destination)| {
        let SendOp::Datagram { mut to, .. } = to(0, 1, &b) else { unreachable!() };
        change(&mut to);
        a.post(&mut net.nodes[0], 1, SendOp::Datagram { to, imm_data: None }, &[a.mr.sge(0, 100)]);
        net.run();
        let sent = net.nodes[0].poll(a.cq);
        assert!(sent.iter().all(|wc| wc.status == WcStatus::Success) && sent.len() == 1, "{sent:?}");
    };
    send(&mut net, &|_| {});
    assert_eq!(net.nodes[1].stats.rdmap.datagrams_without_buffer, 1);
    b.post_recv(&mut net.nodes[1], 2, &[b.mr.sge(0, 139)]);
    send(&mut net, &|_| {});
    assert_eq!(net.nodes[1].stats.rdmap.datagrams_too_long, 1);
    send(&mut net, &|to| to.qkey = 5);
    assert_eq!(net.nodes[1].device.stats().datagrams_wrong_qkey, 1);
    send(&mut net, &|to| to.qp_num.0 ^= 1);
    assert_eq!(net.nodes[1].device.stats().datagrams_no_qp, 1);
    // A queue pair that has a connection takes none.
    let connected = party(&mut net.nodes[1], CAP, None, 9);
    send(&mut net, &|to| to.qp_num = connected.qp);
    assert_eq!(net.nodes[1].device.stats().datagrams_no_qp, 2);
    // Addresses that are not this host's, of two families, and a group.
    let strange: [(&str, &str); 4] = [
        ("10.9.9.9", "10.9.9.9"),
        ("10.0.0.0", "fd00::1"),
        ("0.0.0.0", "10.0.0.1"),
        ("10.0.0.0", "239.0.0.1"),
    ];
    for (at, (local, remote)) in strange.into_iter().enumerate() {
        send(&mut net, &|to| {
            (to.local, to.remote) = (local.parse().unwrap(), remote.parse().unwrap());
            to.qp_num = a.qp;
        });
        assert_eq!(net.nodes[0].device.stats().datagrams_unreached, at as u64 + 1);
    }
    assert!(received(&mut net, 1, &b).is_empty() && received(&mut net, 0, &a).is_empty());
    // The buffer that was too short takes a datagram that fits.
    a.post(&mut net.nodes[0], 3, to(0, 1, &b), &[a.mr.sge(0, 99)]);
    net.run();
    assert_eq!(received(&mut net, 1, &b).len(), 1);
    assert_eq!(states(&net, &a, &b), (QpState::Rts, QpState::Rts));
}

fn states(net: &Net, a: &Party, b: &Party) -> (QpState, QpState) {
    (a.state(&net.nodes[0]), b.state(&net.nodes[1]))
}

/// A key with its highest bit set stands for the sender's own; and a key can be changed.
#[test]
fn keys_are_those_of_the_receiver() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    for _ in 0..4 {
        b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 100)]);
    }
    let send = |net: &mut Net, qkey| {
        let to = Destination { local: ip(0), remote: ip(1), qp_num: b.qp, qkey };
        a.post(&mut net.nodes[0], 1, SendOp::Datagram { to, imm_data: None }, &[a.mr.sge(0, 10)]);
        net.run();
        received(net, 1, &b).len()
    };
    assert_eq!(send(&mut net, 1 << 31 | 7), 1);
    net.nodes[1].device.ready_for_datagrams(b.qp, 7).unwrap();
    assert_eq!((send(&mut net, QKEY), send(&mut net, 7)), (0, 1));
    assert_eq!(send(&mut net, 1 << 31), 0);
    net.nodes[0].device.ready_for_datagrams(a.qp, 7).unwrap();
    assert_eq!(send(&mut net, 1 << 31), 1);
}

/// Types of queue pairs, and their operations, do not mix.
#[test]
fn operations_are_those_of_the_type() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let (c, d) = numbered_pair(&mut net, [CAP, CAP], None);
    let sge = [a.mr.sge(0, 10)];
    let device = &mut net.nodes[0].device;
    for op in [SEND, d.write_to(0), SendOp::SendWithImm { imm_data: [0; 4] }] {
        assert_eq!(device.post_send(a.qp, &send_wr(1, op, &sge)), Err(PostError::Operation), "{op:?}");
    }
    let op = SendOp::LocalInvalidate { stag: a.mr.mr.lkey };
    assert_eq!(device.post_send(a.qp, &send_wr(1, op, &[])), Err(PostError::Operation));
    let datagram = to(0, 1, &b);
    assert_eq!(device.post_send(c.qp, &send_wr(1, datagram, &[])), Err(PostError::Operation));
    assert_eq!(device.ready_for_datagrams(c.qp, QKEY), Err(VerbsError::Invalid));
    assert_eq!(device.ready_to_receive(a.qp, &rtr(&b, 0)), Err(VerbsError::Invalid));
    let fresh = party_of(&mut net.nodes[0], QpType::Ud, CAP, None, 3);
    let device = &mut net.nodes[0].device;
    assert_eq!(device.ready_to_receive(fresh.qp, &rtr(&b, 0)), Err(VerbsError::Invalid));
    let param = ConnParam::default();
    assert_eq!(device.connect(fresh.id, fresh.qp, address(1), &param), Err(VerbsError::Invalid));
    assert_eq!(device.post_send(fresh.qp, &send_wr(1, datagram, &[])), Err(PostError::State));
    // A device without connections by number has no datagrams either.
    let mut plain = Net::new();
    let party = party_of(&mut plain.nodes[0], QpType::Ud, CAP, None, 1);
    let ready = plain.nodes[0].device.ready_for_datagrams(party.qp, QKEY);
    assert_eq!(ready, Err(VerbsError::NotPermitted));
}

/// Faults of a program's own end its queue pair alone: a datagram above the MTU, memory that it may not access.
#[test]
fn a_fault_of_the_program_ends_its_queue_pair() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let long = [a.mr.sge(0, u32::from(DATAGRAM_MAX) + 1)];
    a.post(&mut net.nodes[0], 1, to(0, 1, &b), &long);
    net.run();
    assert_eq!(ends_of(&mut net, 0, a.cq), [(1, WcStatus::LocalLengthError)]);
    assert_eq!(a.state(&net.nodes[0]), QpState::Error);
    a.post(&mut net.nodes[0], 2, to(0, 1, &b), &[a.mr.sge(0, 1)]);
    assert_eq!(ends_of(&mut net, 0, a.cq), [(2, WcStatus::WrFlushError)]);
    // From there it begins anew, under its number.
    net.nodes[0].device.modify_qp(a.qp, QpState::Idle, net.now).unwrap();
    net.nodes[0].device.ready_for_datagrams(a.qp, QKEY).unwrap();
    net.run();
    b.post_recv(&mut net.nodes[1], 7, &[b.mr.sge(0, 50)]);
    a.post(&mut net.nodes[0], 3, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!((received(&mut net, 1, &b).len(), net.nodes[0].poll(a.cq).len()), (1, 1));
    let wrong = Sge { lkey: Stag(0x77), ..a.mr.sge(0, 10) };
    a.post(&mut net.nodes[0], 4, to(0, 1, &b), &[wrong]);
    net.run();
    assert_eq!(ends_of(&mut net, 0, a.cq), [(4, WcStatus::LocalProtectionError)]);
    assert_eq!(a.state(&net.nodes[0]), QpState::Error);
    // A bad receive buffer ends the receiver, once a datagram meets it.
    let c = end(&mut net, 0, None);
    b.post_recv(&mut net.nodes[1], 8, &[Sge { lkey: Stag(0x77), ..b.mr.sge(0, 100) }]);
    b.post_recv(&mut net.nodes[1], 9, &[b.mr.sge(0, 100)]);
    c.post(&mut net.nodes[0], 5, to(0, 1, &b), &[c.mr.sge(0, 10)]);
    net.run();
    let expected = [(8, WcStatus::LocalProtectionError), (9, WcStatus::WrFlushError)];
    assert_eq!(ends_of(&mut net, 1, b.recv_cq), expected);
    assert_eq!(b.state(&net.nodes[1]), QpState::Error);
    assert_eq!(c.state(&net.nodes[0]), QpState::Rts);
}

fn ends_of(net: &mut Net, at: usize, cq: CqId) -> Vec<(u64, WcStatus)> {
    rdma::testutil::verbs::ends(&net.nodes[at].poll(cq))
}

/// Queue pairs may be destroyed at any moment; what is under way to them is dropped, and the link stays.
#[test]
fn a_receiver_may_vanish() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let c = end(&mut net, 1, None);
    for wr_id in 0..8 {
        b.post_recv(&mut net.nodes[1], wr_id, &[b.mr.sge(0, 100)]);
        a.post(&mut net.nodes[0], wr_id, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    }
    net.run_sender(0);
    net.nodes[1].device.destroy_qp(b.qp).unwrap();
    net.run();
    assert_eq!(net.nodes[1].device.stats().datagrams_no_qp, 8);
    assert_eq!(net.nodes[0].poll(a.cq).len(), 8);
    c.post_recv(&mut net.nodes[1], 1, &[c.mr.sge(0, 100)]);
    a.post(&mut net.nodes[0], 9, to(0, 1, &c), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 1, &c).len(), 1);
    assert_eq!(net.nodes[0].device.stats().datagram_links_opened, 1);
    net.nodes[0].device.destroy_qp(a.qp).unwrap();
    net.run();
    assert!(net.nodes.iter().all(|node| node.cm.is_empty()), "programs hear nothing of links");
}

/// A link that nobody uses is closed, and opened again when it is needed.
#[test]
fn idle_links_are_closed() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    for round in 1..4 {
        for _ in 0..2 {
            b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 100)]);
            a.post(&mut net.nodes[0], 1, to(0, 1, &b), &[a.mr.sge(0, 10)]);
            net.run_for(SECOND * 50);
        }
        assert_eq!(received(&mut net, 1, &b).len(), 2);
        let stats = net.nodes.each_ref().map(|node| *node.device.stats());
        assert_eq!((stats[0].datagram_links_opened, stats[1].datagram_links_accepted), (round, round));
        net.run_for(SECOND * 100);
        assert_eq!(net.nodes[0].device.next_link_deadline(), None, "nothing is left to do");
    }
}

/// While the other side is not reached, datagrams are dropped; afterwards they arrive again, without a call of the
/// program.
#[test]
fn a_host_that_was_away_is_reached_again() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 100)]);
    net.refuses[1] = true;
    for _ in 0..20 {
        a.post(&mut net.nodes[0], 1, to(0, 1, &b), &[a.mr.sge(0, 10)]);
        net.run_for(SECOND / 4);
        assert_eq!(net.nodes[0].poll(a.cq).len(), 1, "the sender does not learn of it");
    }
    let stats = *net.nodes[0].device.stats();
    assert_eq!(stats.datagrams_unreached, 20);
    assert!((5..20).contains(&stats.datagram_links_failed), "{}", stats.datagram_links_failed);
    net.refuses[1] = false;
    net.run_for(SECOND * 2);
    a.post(&mut net.nodes[0], 1, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 1, &b).len(), 1);
    // A link that breaks is opened again by the next datagram.
    net.break_streams();
    net.run();
    b.post_recv(&mut net.nodes[1], 2, &[b.mr.sge(0, 100)]);
    a.post(&mut net.nodes[0], 2, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 1, &b).len(), 1);
}

/// If both ends open a link at the same moment, each sends on its own.
#[test]
fn both_ends_may_open_a_link() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    for wr_id in 0..10 {
        for (from, own, peer) in [(0, &a, &b), (1, &b, &a)] {
            peer.post_recv(&mut net.nodes[1 - from], wr_id, &[peer.mr.sge(0, 100)]);
            own.post(&mut net.nodes[from], wr_id, to(from, 1 - from, peer), &[own.mr.sge(0, 10)]);
        }
        if wr_id > 3 {
            net.run();
        }
    }
    for (at, party) in [(0, &a), (1, &b)] {
        let all = received(&mut net, at, party);
        assert_eq!(all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

/// Fills the send queue of node 0, and returns the number of requests that complete.
fn fill(net: &mut Net, a: &Party, b: &Party) -> usize {
    for _ in net.nodes[0].device.query_qp(a.qp).unwrap().send_used..CAP.max_send_wr.into() {
        a.post(&mut net.nodes[0], 1, to(0, 1, b), &[a.mr.sge(0, 1000)]);
    }
    net.run();
    net.nodes[0].poll(a.cq).len()
}

/// A queue pair waits for room at its link, and does not lose what it sends faster than the network takes it.
#[test]
fn a_sender_keeps_the_pace_of_its_link() {
    let mut net = net();
    net.room = 2 * net.mss;
    let a = end(&mut net, 0, None);
    let cap = QpCap { max_recv_wr: 96, ..CAP };
    let b = party_of(&mut net.nodes[1], QpType::Ud, cap, None, 2);
    net.nodes[1].device.ready_for_datagrams(b.qp, QKEY).unwrap();
    for round in 0..10 {
        for wr_id in 0..96 {
            b.post_recv(&mut net.nodes[1], wr_id, &[b.mr.sge(0, 1100)]);
        }
        net.paused = true;
        let mut completed = 0;
        for _ in 0..3 {
            completed += fill(&mut net, &a, &b);
        }
        // Those of the link, and once it is open, those on their way.
        assert_eq!(completed, if round == 0 { 64 } else { 66 }, "the link is full in round {round}");
        net.paused = false;
        net.run();
        completed += net.nodes[0].poll(a.cq).len();
        assert_eq!((completed, received(&mut net, 1, &b).len()), (96, 96));
    }
    let stats = *net.nodes[0].device.stats();
    assert_eq!((stats.datagrams_out, stats.datagrams_congested), (960, 0));
    assert_eq!(net.nodes[1].stats.rdmap.datagrams_without_buffer, 0);
}

/// A link that does not move holds its senders up for a moment only: what they send elsewhere arrives.
#[test]
fn a_link_that_stands_still_loses_datagrams() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    let c = end(&mut net, 0, None);
    c.post_recv(&mut net.nodes[0], 6, &[c.mr.sge(0, 1100)]);
    net.paused = true;
    let mut completed = 0;
    for _ in 0..4 {
        completed += fill(&mut net, &a, &b);
    }
    assert_eq!(completed, 64);
    net.run_for(SECOND / 5);
    completed += net.nodes[0].poll(a.cq).len();
    assert_eq!(completed, 96);
    assert_eq!(net.nodes[0].device.stats().datagrams_congested, 32);
    a.post(&mut net.nodes[0], 2, to(0, 0, &c), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 0, &c).len(), 1);
    net.paused = false;
    net.run();
    b.post_recv(&mut net.nodes[1], 3, &[b.mr.sge(0, 1100)]);
    a.post(&mut net.nodes[0], 3, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 1, &b).len(), 1);
}

/// A path with shorter segments than the datagram carries it in several, and receivers get it whole.
#[test]
fn a_datagram_may_take_several_segments() {
    for (mss, chunk) in [(300, 1448), (200, 100), (1448, 7), (536, 1)] {
        let mut net = net();
        (net.mss, net.chunk) = (mss, chunk);
        let (a, b) = ends(&mut net);
        for (wr_id, len) in [(0, 1024), (1, 0), (2, 333), (3, 1000)] {
            b.post_recv(&mut net.nodes[1], wr_id, &[b.mr.sge(wr_id * 2048, 1064)]);
            a.post(&mut net.nodes[0], wr_id, to(0, 1, &b), &[a.mr.sge(wr_id * 10, len)]);
        }
        net.run();
        let all = received(&mut net, 1, &b);
        let lengths: Vec<_> = all.iter().map(|wc| wc.byte_len - GRH).collect();
        assert_eq!(lengths, [1024, 0, 333, 1000], "{mss} {chunk}");
        for (wr_id, len) in [(0, 1024), (2, 333), (3, 1000)] {
            let (there, here) = (net.nodes[1].bytes(&b.mr), net.nodes[0].bytes(&a.mr));
            assert_eq!(there[wr_id * 2048 + 40..][..len], here[wr_id * 10..][..len]);
        }
    }
}

/// Programs with many destinations have a limited number of links; the oldest one makes room.
#[test]
fn destinations_without_number_leave_room_for_others() {
    let mut net = net();
    let (a, b) = ends(&mut net);
    net.nodes[0].device.set_qp_client(a.qp, 7).unwrap();
    for round in 0..2000_u32 {
        let [.., high, low] = round.to_be_bytes();
        let remote = IpAddr::from([10, 1, high, low]);
        let to = Destination { local: ip(0), remote, qp_num: b.qp, qkey: QKEY };
        a.post(&mut net.nodes[0], 1, SendOp::Datagram { to, imm_data: None }, &[a.mr.sge(0, 10)]);
        net.run();
        assert_eq!(net.nodes[0].poll(a.cq).len(), 1);
    }
    assert_eq!(net.nodes[0].device.stats().datagrams_unreached, 2000);
    b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 100)]);
    a.post(&mut net.nodes[0], 1, to(0, 1, &b), &[a.mr.sge(0, 10)]);
    net.run();
    assert_eq!(received(&mut net, 1, &b).len(), 1);
    net.run_for(SECOND * 200);
    assert_eq!(net.nodes[0].device.next_link_deadline(), None);
}
