//! Work requests on verbs objects: the effect of each, its completion, and refusals.

use WcStatus::*;
use rdma::testutil::pattern;
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{AtomicOp, StreamError};

#[test]
fn each_operation_does_what_it_says_and_completes_once_in_order() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    for at in 0..4 {
        b.post_recv(&mut net.nodes[1], 100 + at, &[b.mr.sge(1000 * at, 300), b.mr.sge(1000 * at + 500, 100)]);
    }
    let node = &mut net.nodes[0];
    let (rkey, base) = (b.mr.mr.rkey, b.mr.mr.addr);
    a.post(node, 1, SEND, &[a.mr.sge(0, 350)]);
    a.post(node, 2, b.write_to(8000), &[a.mr.sge(50, 100)]);
    a.post(node, 3, b.read_from(8000), &[a.mr.sge(4000, 100)]);
    let op = AtomicOp::FetchAdd { add: 5, mask: 0 };
    a.post(node, 4, SendOp::Atomic { remote_addr: base + 8192, rkey, op }, &[a.mr.sge(5000, 8)]);
    let op = AtomicOp::CompareSwap { compare: 0, compare_mask: 0, swap: 1, swap_mask: u64::MAX };
    a.post(node, 5, SendOp::Atomic { remote_addr: base + 8192, rkey, op }, &[a.mr.sge(5008, 8)]);
    let imm_data = *b"12345678";
    a.post(node, 6, SendOp::RdmaWriteWithImm { remote_addr: base + 9000, rkey, imm_data }, &[a.mr.sge(0, 9)]);
    a.post(node, 7, SendOp::Immediate { imm_data }, &[]);
    let solicited = SendFlags { solicited: true, ..SendFlags::SIGNALED };
    let last = SendWr { flags: solicited, data: Data::NONE, ..send_wr(8, SEND, &[]) };
    node.device.post_send(a.qp, &last).unwrap();
    net.run();

    let done = net.nodes[0].poll(a.cq);
    assert_eq!(ends(&done), (1..=8).map(|at| (at, Success)).collect::<Vec<_>>());
    let opcodes = [
        WcOpcode::Send,
        WcOpcode::RdmaWrite,
        WcOpcode::RdmaRead,
        WcOpcode::FetchAdd,
        WcOpcode::CompareSwap,
        WcOpcode::RdmaWrite,
        WcOpcode::Send,
        WcOpcode::Send,
    ];
    assert_eq!(done.iter().map(|wc| wc.opcode).collect::<Vec<_>>(), opcodes);
    assert_eq!((done[2].byte_len, done[3].byte_len), (100, 8));
    assert!(done.iter().all(|wc| wc.qp_num == a.qp));

    let (ours, theirs) = (pattern(MEMORY, 1), pattern(MEMORY, 2));
    let received = net.nodes[1].poll(b.recv_cq);
    let recv = |wr_id, byte_len| WorkCompletion {
        wr_id,
        byte_len,
        opcode: WcOpcode::Recv,
        qp_num: b.qp,
        ..WorkCompletion::default()
    };
    let immediate = |wr_id| WorkCompletion {
        opcode: WcOpcode::RecvRdmaWithImm,
        imm_data: Some(imm_data),
        ..recv(wr_id, 0)
    };
    let expected =
        [recv(100, 350), immediate(101), immediate(102), WorkCompletion { solicited: true, ..recv(103, 0) }];
    assert_eq!(received, expected);
    let there = net.nodes[1].bytes(&b.mr);
    assert_eq!((&there[..300], &there[500..550]), (&ours[..300], &ours[300..350]));
    assert_eq!((&there[300..500], &there[550..8000]), (&theirs[300..500], &theirs[550..8000]));
    assert_eq!((&there[8000..8100], &there[9000..9009]), (&ours[50..150], &ours[..9]));
    assert_eq!(there[8192..8200], 1u64.to_ne_bytes());
    let here = net.nodes[0].bytes(&a.mr);
    let word = |at: usize| u64::from_ne_bytes(here[at..at + 8].try_into().unwrap());
    let was = u64::from_ne_bytes(theirs[8192..8200].try_into().unwrap());
    assert_eq!((word(5000), word(5008)), (was, was.wrapping_add(5)));
    assert_eq!(here[4000..4100], ours[50..150]);
}

#[test]
fn lists_of_every_length_gather_and_scatter() {
    let mut net = Net::new();
    net.mss = 200;
    let (a, b) = pair(&mut net);
    let ours = pattern(MEMORY, 1);
    for pieces in 1..=SGE_MAX as u64 {
        // Piece i has 37 i bytes; the first and every third piece are empty.
        let length = |at: u64| if at % 3 == 2 { 0 } else { 37 * at as u32 };
        let from = (0..pieces).map(|at| a.mr.sge(9400 - at * 600, length(at))).collect::<Vec<_>>();
        let to = (0..pieces).map(|at| b.mr.sge(at * 700, length(pieces - 1 - at))).collect::<Vec<_>>();
        let total = from.iter().map(|sge| sge.length).sum::<u32>();
        let whole = from
            .iter()
            .flat_map(|sge| {
                let start = (sge.addr - BASE) as usize;
                ours[start..start + sge.length as usize].to_vec()
            })
            .collect::<Vec<_>>();
        b.post_recv(&mut net.nodes[1], pieces, &to);
        a.post(&mut net.nodes[0], 1, SEND, &from);
        a.post(&mut net.nodes[0], 2, b.write_to(12_000), &from);
        let mut next = 10_000;
        let packed = |at| {
            next += u64::from(length(at));
            a.mr.sge(next - u64::from(length(at)), length(at))
        };
        let back = (0..pieces).map(packed).collect::<Vec<_>>();
        a.post(&mut net.nodes[0], 3, b.read_from(12_000), &back);
        net.run();
        let done = net.nodes[0].poll(a.cq);
        assert_eq!(ends(&done), [(1, Success), (2, Success), (3, Success)]);
        assert_eq!(net.nodes[1].poll(b.recv_cq)[0].byte_len, total);
        let collect = |node: &Node, mr: &Mr, list: &[Sge]| {
            let bytes = node.bytes(mr);
            list.iter()
                .flat_map(|sge| {
                    let start = (sge.addr - BASE) as usize;
                    bytes[start..start + sge.length as usize].to_vec()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(collect(&net.nodes[1], &b.mr, &to), whole, "{pieces} pieces");
        assert_eq!(collect(&net.nodes[0], &a.mr, &back), whole, "{pieces} pieces");
        assert_eq!(net.nodes[1].bytes(&b.mr)[12_000..12_000 + whole.len()], whole);
    }
    let long = vec![a.mr.sge(0, 1); SGE_MAX + 1];
    let refused = net.nodes[0].device.post_send(a.qp, &send_wr(9, SEND, &long));
    assert_eq!(refused, Err(PostError::Length));
}

#[test]
fn inline_bytes_are_copied_when_they_are_posted() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 64)]);
    let mut bytes = *b"what is said now counts";
    let inline = |bytes: &[u8], op, wr_id| -> Result<(), PostError> {
        let data = Data::Inline(bytes);
        net.nodes[0].device.post_send(a.qp, &SendWr { wr_id, op, data, flags: SendFlags::SIGNALED })
    };
    let mut inline = inline;
    inline(&bytes, SEND, 1).unwrap();
    inline(&bytes[..4], b.write_to(100), 2).unwrap();
    bytes.fill(0);
    assert_eq!(inline(&[0; 65], SEND, 3), Err(PostError::Length));
    assert_eq!(inline(&bytes, b.read_from(0), 3), Err(PostError::Length));
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success), (2, Success)]);
    assert_eq!(net.nodes[1].bytes(&b.mr)[..23], *b"what is said now counts");
    assert_eq!(net.nodes[1].bytes(&b.mr)[100..104], *b"what");
}

/// Every way in which an element of a list can be invalid.
#[test]
fn a_wrong_key_or_range_is_a_protection_error_and_nothing_is_sent() {
    let reads: fn(&Party) -> SendOp = |b| b.read_from(0);
    let writes: fn(&Party) -> SendOp = |b| b.write_to(0);
    let sends: fn(&Party) -> SendOp = |_| SEND;
    for op in [sends, writes, reads] {
        for wrong in 0..6 {
            let mut net = Net::new();
            let (a, b) = pair(&mut net);
            b.post_recv(&mut net.nodes[1], 50, &[b.mr.sge(0, 4000)]);
            let other_pd = net.nodes[0].device.alloc_pd().unwrap();
            let other = net.nodes[0].reg(other_pd, vec![0; 64], AddressBase::Zero, all_access());
            let remote = net.nodes[0].reg(a.pd, vec![0; 64], AddressBase::Zero, Access::NONE);
            let gone = net.nodes[0].reg(a.pd, vec![0; 64], AddressBase::Zero, all_access());
            let Node { device, stags, .. } = &mut net.nodes[0];
            device.dereg_mr(gone.mr.id, stags).unwrap();
            let bad = [
                Sge { lkey: Stag(a.mr.mr.lkey.0 ^ 1), ..a.mr.sge(0, 8) },
                a.mr.sge(MEMORY as u64 - 7, 8),
                Sge { addr: u64::MAX, length: 2, lkey: a.mr.mr.lkey },
                other.sge(0, 8),
                remote.sge(0, 8),
                gone.sge(0, 8),
            ][wrong];
            let before = net.sent[0].len();
            // The first and the last element are valid, the message has several segments, and requests before and
            // after it are posted.
            a.post(&mut net.nodes[0], 1, b.read_from(0), &[a.mr.sge(8000, 4)]);
            a.post(&mut net.nodes[0], 2, op(&b), &[a.mr.sge(0, 3000), bad, a.mr.sge(0, 8)]);
            a.post(&mut net.nodes[0], 3, b.write_to(0), &[a.mr.sge(0, 1)]);
            net.run();
            let expected = [(1, Success), (2, LocalProtectionError), (3, WrFlushError)];
            assert_eq!(ends(&net.nodes[0].poll(a.cq)), expected, "{wrong}");
            // A Read Request and a Terminate: no byte of the message was sent.
            let sent = rdma::testutil::bytes::ulpdus(&net.sent[0][before..]);
            assert_eq!(sent.iter().map(|ulpdu| ulpdu[1]).collect::<Vec<_>>(), [0x41, 0x47], "{wrong}");
            assert_eq!(net.nodes[1].bytes(&b.mr), pattern(MEMORY, 2));
            assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(50, WrFlushError)]);
            let (code, _) = StreamError::Local.code();
            assert_eq!(net.nodes[0].async_events(), [AsyncEvent::QpFatal(a.qp, code)]);
            assert_eq!(net.nodes[1].async_events(), [AsyncEvent::QpTerminated(b.qp, code)]);
            assert_eq!((a.state(&net.nodes[0]), b.state(&net.nodes[1])), (QpState::Error, QpState::Error));
        }
    }
}

#[test]
fn an_element_without_bytes_is_not_checked() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    let nowhere = Sge { addr: u64::MAX, length: 0, lkey: Stag(0) };
    b.post_recv(&mut net.nodes[1], 1, &[nowhere, b.mr.sge(0, 4), nowhere]);
    a.post(&mut net.nodes[0], 1, SEND, &[nowhere, a.mr.sge(0, 4), nowhere]);
    a.post(&mut net.nodes[0], 2, b.write_to(0), &[nowhere]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success), (2, Success)]);
    assert_eq!(net.nodes[1].poll(b.recv_cq)[0].byte_len, 4);
}

#[test]
fn a_buffer_that_may_not_be_written_or_is_too_short_is_an_error_of_its_own() {
    for (short, status) in [(false, LocalProtectionError), (true, LocalLengthError)] {
        let mut net = Net::new();
        let (a, b) = pair(&mut net);
        let readonly = net.nodes[1].reg(b.pd, vec![0; 64], AddressBase::Zero, Access::LOCAL_READ);
        let buffer = if short { b.mr.sge(0, 7) } else { readonly.sge(0, 8) };
        b.post_recv(&mut net.nodes[1], 1, &[buffer]);
        b.post_recv(&mut net.nodes[1], 2, &[b.mr.sge(0, 8)]);
        a.post(&mut net.nodes[0], 1, SEND, &[a.mr.sge(0, 8)]);
        net.run();
        assert_eq!(ends(&net.nodes[1].poll(b.recv_cq)), [(1, status), (2, WrFlushError)]);
        assert_eq!(net.nodes[1].bytes(&b.mr), pattern(MEMORY, 2));
        assert_eq!(net.nodes[1].bytes(&readonly), [0; 64]);
    }
}

#[test]
fn unsignaled_requests_free_their_slots_with_the_next_signaled_one() {
    let mut net = Net::new();
    let cap = QpCap { max_send_wr: 4, ..CAP };
    let (a, b) = pair_with(&mut net, [cap, CAP], None);
    let quiet = |node: &mut Node, wr_id| {
        let flags = SendFlags::default();
        node.device.post_send(a.qp, &SendWr { flags, ..send_wr(wr_id, b.write_to(0), &[a.mr.sge(0, 4)]) })
    };
    for at in 0..3 {
        quiet(&mut net.nodes[0], at).unwrap();
    }
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), []);
    a.post(&mut net.nodes[0], 3, b.write_to(0), &[]);
    assert_eq!(quiet(&mut net.nodes[0], 9), Err(PostError::QueueFull));
    net.run();
    // Finished but not polled: a completion queue as long as its queues cannot overrun.
    assert_eq!(quiet(&mut net.nodes[0], 9), Err(PostError::QueueFull));
    assert_eq!(net.nodes[0].device.query_qp(a.qp).unwrap().send_used, 4);
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(3, Success)]);
    assert_eq!(net.nodes[0].device.query_qp(a.qp).unwrap().send_used, 0);
    // All errors produce completions.
    for at in 10..14 {
        quiet(&mut net.nodes[0], at).unwrap();
    }
    net.cut();
    let flushed = (10..14).map(|at| (at, WrFlushError)).collect::<Vec<_>>();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), flushed);
    assert_eq!(net.nodes[0].device.query_qp(a.qp).unwrap().send_used, 0);
}

#[test]
fn a_fence_waits_for_reads() {
    for fence in [false, true] {
        let mut net = Net::new();
        let (a, b) = pair(&mut net);
        b.post_recv(&mut net.nodes[1], 1, &[b.mr.sge(0, 64)]);
        let before = net.sent[0].len();
        // The bytes read are then sent: with a fence the peer receives its own bytes.
        a.post(&mut net.nodes[0], 1, b.read_from(500), &[a.mr.sge(0, 64)]);
        let flags = SendFlags { fence, ..SendFlags::SIGNALED };
        let list = [a.mr.sge(0, 64)];
        let wr = SendWr { flags, ..send_wr(2, SEND, &list) };
        net.nodes[0].device.post_send(a.qp, &wr).unwrap();
        net.run();
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success), (2, Success)]);
        let expected = if fence { &pattern(MEMORY, 2)[500..564] } else { &pattern(MEMORY, 1)[..64] };
        assert_eq!(net.nodes[1].bytes(&b.mr)[..64], *expected);
        assert_eq!(rdma::testutil::bytes::ulpdus(&net.sent[0][before..]).len(), 2);
    }
}

#[test]
fn a_read_with_invalidate_and_a_local_invalidate_end_a_region() {
    let mut net = Net::new();
    let (a, b) = pair(&mut net);
    let sink = net.nodes[0].reg(a.pd, vec![0; 8], AddressBase::Zero, local_access());
    let (remote_addr, rkey) = (b.mr.mr.addr, b.mr.mr.rkey);
    let op = SendOp::RdmaReadInvalidate { remote_addr, rkey };
    a.post(&mut net.nodes[0], 1, op, &[sink.sge(0, 8)]);
    let two = [sink.sge(0, 4), sink.sge(4, 4)];
    assert_eq!(net.nodes[0].device.post_send(a.qp, &send_wr(2, op, &two)), Err(PostError::Length));
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success)]);
    assert_eq!(net.nodes[0].bytes(&sink), &pattern(MEMORY, 2)[..8]);

    let other = net.nodes[0].reg(a.pd, vec![0; 8], AddressBase::Zero, local_access());
    a.post(&mut net.nodes[0], 3, SendOp::LocalInvalidate { stag: other.mr.lkey }, &[]);
    a.post(&mut net.nodes[0], 4, b.write_to(0), &[other.sge(0, 8)]);
    net.run();
    let done = net.nodes[0].poll(a.cq);
    assert_eq!(ends(&done), [(3, Success), (4, LocalProtectionError)]);
    assert_eq!(done[0].opcode, WcOpcode::LocalInvalidate);
    // The invalid region can be deregistered.
    let Node { device, stags, .. } = &mut net.nodes[0];
    assert_eq!(device.dereg_mr(other.mr.id, stags), Ok(()));
    assert_eq!(device.dereg_mr(sink.mr.id, stags), Ok(()));
}

#[test]
fn requests_in_the_wrong_state_or_of_wrong_length_are_refused() {
    let mut net = Net::new();
    let a = party(&mut net.nodes[0], CAP, None, 1);
    let device = &mut net.nodes[0].device;
    let wr = send_wr(1, SEND, &[]);
    assert_eq!(device.post_send(a.qp, &wr), Err(PostError::State));
    assert_eq!(device.post_send(QpNum(7), &wr), Err(PostError::NoSuchObject));
    let (a, b) = pair(&mut net);
    let device = &mut net.nodes[0].device;
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let atomic = SendOp::Atomic { remote_addr: 0, rkey: b.mr.mr.rkey, op };
    for list in [&[a.mr.sge(0, 4)][..], &[], &[a.mr.sge(0, 8), a.mr.sge(8, 1)]] {
        assert_eq!(device.post_send(a.qp, &send_wr(1, atomic, list)), Err(PostError::Length));
    }
    let huge = [a.mr.sge(0, u32::MAX), a.mr.sge(0, 1)];
    assert_eq!(device.post_send(a.qp, &send_wr(1, SEND, &huge)), Err(PostError::Length));
    let list = [send_wr(1, b.write_to(0), &[]), send_wr(2, atomic, &[]), send_wr(3, SEND, &[])];
    assert_eq!(device.post_send_list(a.qp, &list), Err((1, PostError::Length)));
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, Success)]);
}

/// The access check runs once per transmit pass, not once per message.
#[test]
fn a_right_revoked_between_two_transmit_passes_ends_the_message() {
    for (turn, op) in [SEND, SendOp::RdmaWrite { remote_addr: BASE, rkey: Stag(1) }].iter().enumerate() {
        let mut net = Net::new();
        let (a, _) = pair(&mut net);
        let source = net.nodes[0].reg(a.pd, pattern(4000, 3), AddressBase::Zero, local_access());
        a.post(&mut net.nodes[0], 1, *op, &[source.sge(0, 4000)]);
        let Node { device, stags, memory, stats, .. } = &mut net.nodes[0];
        // Room for two FPDUs.
        let mut wire = rdma::testutil::Wire::new(400, 800);
        let mut env = rdma::Env { stags, memory, stats };
        let progress = device.poll_transmit(a.id, net.now, &mut env, &mut wire);
        assert!(progress.pending && progress.frames == 2, "{turn}: {progress:?}");
        assert_eq!(progress.bytes, wire.queued());
        let fetched = env.stats.rdmap.payload_bytes_fetched;
        assert!((700..800).contains(&fetched), "{fetched}");

        device.dereg_mr(source.mr.id, env.stags).unwrap();
        let mut wire = rdma::testutil::Wire::new(400, usize::MAX);
        let progress = device.poll_transmit(a.id, net.now, &mut env, &mut wire);
        // The Terminate is sent, and nothing of the message.
        assert_eq!((progress.frames, env.stats.rdmap.terminates_sent), (1, 1));
        assert_eq!(env.stats.rdmap.payload_bytes_fetched, fetched);
        assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(1, LocalProtectionError)]);
    }
}

#[test]
fn completions_and_handshakes_are_timed_once() {
    let at = std::time::Duration::from_micros;
    let mut net = Net::new();
    net.now = at(100);
    net.nodes[1].device.set_now(at(300));
    let (a, b) = pair(&mut net);
    let times = |net: &Net, node: usize| *net.nodes[node].device.times();
    // The peer's connection began at 100 µs. Here, the program asked and was answered in the same poll.
    let handshakes = [0, 1].map(|node| times(&net, node).handshake);
    assert_eq!(handshakes.map(|times| (times.count(), times.sum_ns())), [(1, 0), (1, 200_000)]);

    let node = &mut net.nodes[0];
    node.device.set_now(at(1000));
    a.post(node, 1, b.write_to(0), &[a.mr.sge(0, 100)]);
    let unsignaled = SendFlags { signaled: false, ..SendFlags::SIGNALED };
    let list = [a.mr.sge(0, 100)];
    let quiet = SendWr { flags: unsignaled, ..send_wr(2, b.write_to(0), &list) };
    node.device.post_send(a.qp, &quiet).unwrap();
    node.device.set_now(at(1003));
    a.post(node, 3, b.read_from(0), &[a.mr.sge(0, 100)]);
    node.device.set_now(at(1010));
    net.run();
    assert_eq!(net.nodes[0].poll(a.cq).len(), 2);
    let completion = times(&net, 0).completion;
    assert_eq!((completion.count(), completion.sum_ns()), (2, 10_000 + 7_000));

    // Work that is flushed has no latency.
    net.nodes[1].device.destroy_qp(b.qp).unwrap();
    net.run();
    a.post(&mut net.nodes[0], 4, b.write_to(0), &[a.mr.sge(0, 100)]);
    net.run();
    assert_eq!(ends(&net.nodes[0].poll(a.cq)), [(4, WrFlushError)]);
    assert_eq!(times(&net, 0).completion.count(), 2);
    assert_eq!(times(&net, 1).completion.count(), 0);
}
