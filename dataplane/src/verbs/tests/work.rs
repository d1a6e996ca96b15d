//! Work of every kind over both, on good links and on bad ones.

use iwarp_engine::testutil::{CLEAN, ROUGH};
use rdma::verbs::{Access, ConnParam, Data, QpState, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use rdma::wire::mpa::RtrOptions;
use rdma::{CrcPolicy, OutOfOrderPolicy};

use super::lab::{Net, Pair, Setup, TIME_LIMIT, sge};

const PORT: u16 = 7174;
const BYTES: usize = 1 << 20;

fn all_access() -> Access {
    Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + at / 251 + seed).to_le_bytes()[0]).collect()
}

/// Writes all of host 0's region to host 1's in pieces, reads it back into another, and reports each with a Send.
fn write_read_send(setup: Setup, rounds: u64, piece: u32) -> Net {
    write_read_send_with(setup, &ConnParam::default(), rounds, piece)
}

fn write_read_send_with(setup: Setup, param: &ConnParam<'_>, rounds: u64, piece: u32) -> Net {
    let mut net = Net::new(setup);
    net.listen(PORT);
    let Pair { pd, cq, qp, .. } = net.connect_with(PORT, 64, param);
    let source = pattern(7);
    let (_, from) = net.hosts[0].reg(pd[0], source.clone(), all_access());
    let (back, into) = net.hosts[0].reg(pd[0], vec![0; BYTES], all_access());
    let (there, to) = net.hosts[1].reg(pd[1], vec![0; BYTES], all_access());
    let (inbox, buffer) = net.hosts[1].reg(pd[1], vec![0; 4096], all_access());
    let mut wr_id = 0;
    for round in 0..rounds {
        let at = round * u64::from(piece) % (BYTES as u64);
        let device = net.hosts[1].verbs.device_mut();
        device.post_recv(qp[1], &RecvWr { wr_id: round, sg_list: &[sge(&buffer, 0, 64)] }).unwrap();
        let device = net.hosts[0].verbs.device_mut();
        let (remote_addr, rkey) = (to.addr + at, to.rkey);
        let write = SendOp::RdmaWrite { remote_addr, rkey };
        let read = SendOp::RdmaRead { remote_addr, rkey };
        let (send, text) = (SendOp::Send { invalidate: None }, format!("round {round}"));
        let fence = SendFlags { fence: true, ..SendFlags::SIGNALED };
        for (op, data, flags) in [
            (write, Data::List(&[sge(&from, at, piece)]), SendFlags::SIGNALED),
            (read, Data::List(&[sge(&into, at, piece)]), SendFlags::SIGNALED),
            (send, Data::Inline(text.as_bytes()), fence),
        ] {
            device.post_send(qp[0], &SendWr { wr_id, op, data, flags }).unwrap();
            wr_id += 1;
        }
        let mut done = Vec::new();
        let mut received = Vec::new();
        net.run_until("a round", TIME_LIMIT, |net| {
            done.extend(net.hosts[0].poll(cq[0]));
            received.extend(net.hosts[1].poll(cq[1]));
            done.len() == 3 && received.len() == 1
        });
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success), "{done:?}");
        let kinds: Vec<_> = done.iter().map(|wc| wc.opcode).collect();
        assert_eq!(kinds, [WcOpcode::RdmaWrite, WcOpcode::RdmaRead, WcOpcode::Send]);
        assert_eq!((received[0].wr_id, received[0].byte_len as usize), (round, text.len()));
        assert_eq!(&net.hosts[1].bytes(inbox)[..text.len()], text.as_bytes());
        let first = usize::try_from(at).unwrap();
        let range = first..first + piece as usize;
        assert!(net.hosts[1].bytes(there)[range.clone()] == source[range.clone()], "written");
        assert!(net.hosts[0].bytes(back)[range.clone()] == source[range], "read back");
    }
    net
}

#[test]
fn work_of_every_kind_on_a_good_link() {
    for (piece, mtu) in [(1, 1500), (64, 576), (4096, 1500), (65_536, 9000), (65_536, 1500)] {
        write_read_send(Setup { mtu, ..Setup::default() }, 8, piece);
    }
}

#[test]
fn work_of_every_kind_whatever_mpa_negotiates() {
    for (seed, link) in [(5, CLEAN), (6, ROUGH)] {
        for (revision, crc, markers) in [
            (1, CrcPolicy::Required, false),
            (1, CrcPolicy::IfPeerAsks, true),
            (2, CrcPolicy::IfPeerAsks, false),
            (2, CrcPolicy::IfPeerAsks, true),
        ] {
            let setup = Setup { link, seed, crc, markers, ..Setup::default() };
            let param = ConnParam { revision, ..ConnParam::default() };
            write_read_send_with(setup, &param, 8, 65_536);
        }
    }
}

/// RFC 6581 §9.2: the peer-to-peer model, by each ready-to-receive message.
#[test]
fn work_of_every_kind_behind_each_ready_to_receive_message() {
    for kinds in 1..8 {
        let rtr = RtrOptions { send: kinds & 1 != 0, write: kinds & 2 != 0, read: kinds & 4 != 0 };
        for link in [CLEAN, ROUGH] {
            let setup = Setup { link, seed: kinds, ..Setup::default() };
            let net =
                write_read_send_with(setup, &ConnParam { rtr: Some(rtr), ..ConnParam::default() }, 8, 4096);
            let [sent, received] = net.hosts.each_ref().map(|host| host.verbs.rdma_stats().rdmap);
            assert_eq!((sent.out_rtrs, received.in_rtrs), (1, 1), "{rtr:?}");
        }
    }
}

/// With loss and reordering all arrives all the same; what lies behind a gap is placed before it closes.
#[test]
fn out_of_order_data_is_placed_at_once_and_delivered_in_order() {
    for (markers, out_of_order) in [
        (false, OutOfOrderPolicy::Aligned),
        (true, OutOfOrderPolicy::Aligned),
        (false, OutOfOrderPolicy::Off),
    ] {
        let setup = Setup { link: ROUGH, markers, out_of_order, seed: 3, ..Setup::default() };
        let net = write_read_send(setup, 24, 65_536);
        let mpa = net.hosts[1].verbs.rdma_stats().mpa;
        let taken = net.hosts[1].verbs.stack().stats().tcp.taken_segments;
        assert!(net.hosts[0].verbs.stack().stats().tcp.retransmits > 10);
        if out_of_order == OutOfOrderPolicy::Off {
            assert_eq!((mpa.bytes_placed_early, taken), (0, 0));
        } else {
            assert!(mpa.bytes_placed_early > 20_000 && taken > 20, "{mpa:?} {taken}");
        }
    }
}

/// As many FPDUs share a segment as fit; those of more than half a segment have one each.
#[test]
fn small_messages_share_segments() {
    // FPDUs of 28, 420, 724 and 820 bytes into segments of 1448.
    for (bytes, messages, segments) in [(8, 48, 1), (400, 12, 4), (704, 12, 6), (800, 12, 12)] {
        let mut net = Net::new(Setup { link: CLEAN, ..Setup::default() });
        net.listen(PORT);
        let Pair { pd, cq, qp, .. } = net.connect(PORT, 64);
        let (_, from) = net.hosts[0].reg(pd[0], pattern(1), all_access());
        let (there, to) = net.hosts[1].reg(pd[1], vec![0; BYTES], all_access());
        let sent = |net: &Net| net.hosts[0].verbs.stack().stats().tcp.data_segments_out;
        let before = sent(&net);
        for wr_id in 0..messages {
            let device = net.hosts[0].verbs.device_mut();
            let at = wr_id * u64::from(bytes);
            let op = SendOp::RdmaWrite { remote_addr: to.addr + at, rkey: to.rkey };
            let list = [sge(&from, at, bytes)];
            device
                .post_send(qp[0], &SendWr { wr_id, op, data: Data::List(&list), flags: SendFlags::SIGNALED })
                .unwrap();
        }
        let mut done = 0;
        net.run_until("all Writes", TIME_LIMIT, |net| {
            done += net.hosts[0].poll(cq[0]).len() as u64;
            done == messages
        });
        let all = usize::try_from(messages * u64::from(bytes)).unwrap();
        net.run_until("their bytes", TIME_LIMIT, |net| net.hosts[1].bytes(there)[..all] == pattern(1)[..all]);
        let frames = sent(&net) - before;
        // The first may have left before the next was there.
        assert!(
            (segments..=segments + 1).contains(&frames),
            "{messages} of {bytes} bytes: {frames} segments"
        );
    }
}

/// RFC 4296 §2.2.1: `rdma_max_msizes`. A Write and a Send of that much are an FPDU each, one byte more makes two.
#[test]
fn max_msizes_is_the_payload_of_one_segment() {
    for markers in [false, true] {
        let mut net = Net::new(Setup { link: CLEAN, markers, ..Setup::default() });
        net.listen(PORT);
        let Pair { id, pd, cq, qp } = net.connect(PORT, 64);
        let (_, from) = net.hosts[0].reg(pd[0], pattern(1), all_access());
        let (_, to) = net.hosts[1].reg(pd[1], vec![0; BYTES], all_access());
        let sizes = net.hosts[0].verbs.max_msizes(id[0]).unwrap();
        assert_eq!(sizes.tagged, sizes.untagged + 4, "the headers are of 14 and 18 bytes");
        let write = SendOp::RdmaWrite { remote_addr: to.addr, rkey: to.rkey };
        let send = SendOp::Send { invalidate: None };
        for (op, len, fpdus) in [
            (write, sizes.tagged, 1),
            (write, sizes.tagged + 1, 2),
            (send, sizes.untagged, 1),
            (send, sizes.untagged + 1, 2),
        ] {
            let inbox = [sge(&to, 0, u32::try_from(len).unwrap())];
            net.hosts[1].verbs.device_mut().post_recv(qp[1], &RecvWr { wr_id: 0, sg_list: &inbox }).unwrap();
            let before = net.hosts[0].verbs.rdma_stats().mpa.fpdus_out;
            let list = [sge(&from, 0, u32::try_from(len).unwrap())];
            let work = SendWr { wr_id: 0, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
            net.hosts[0].verbs.device_mut().post_send(qp[0], &work).unwrap();
            net.run_until("the work", TIME_LIMIT, |net| !net.hosts[0].poll(cq[0]).is_empty());
            assert_eq!(net.hosts[0].verbs.rdma_stats().mpa.fpdus_out - before, fpdus, "{op:?} of {len}");
        }
    }
}

/// A connection with much to send does not keep the others from sending.
#[test]
fn connections_are_serviced_in_rotation() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let bulk = net.connect(PORT, 64);
    let small = net.connect(PORT, 64);
    let (_, from) = net.hosts[0].reg(bulk.pd[0], pattern(1), all_access());
    let (_, to) = net.hosts[1].reg(bulk.pd[1], vec![0; BYTES], all_access());
    let (_, small_from) = net.hosts[0].reg(small.pd[0], vec![1; 64], all_access());
    let (_, small_to) = net.hosts[1].reg(small.pd[1], vec![0; 64], all_access());
    let write = |net: &mut Net, pair: &Pair, (from, to, len): (_, _, u32), wr_id| {
        let (from, to): (&rdma::verbs::MemoryRegion, &rdma::verbs::MemoryRegion) = (from, to);
        let op = SendOp::RdmaWrite { remote_addr: to.addr, rkey: to.rkey };
        let (data, flags) = (&[sge(from, 0, len)], SendFlags::SIGNALED);
        let wr = SendWr { wr_id, op, data: Data::List(data), flags };
        net.hosts[0].verbs.device_mut().post_send(pair.qp[0], &wr).unwrap();
    };
    for wr_id in 0..32 {
        write(&mut net, &bulk, (&from, &to, u32::try_from(BYTES).unwrap()), wr_id);
    }
    let mut finished = 0;
    for wr_id in 0..20 {
        write(&mut net, &small, (&small_from, &small_to, 64), wr_id);
        net.run_until("a small Write", TIME_LIMIT, |net| {
            finished += net.hosts[0].poll(bulk.cq[0]).len();
            !net.hosts[0].poll(small.cq[0]).is_empty()
        });
    }
    assert!(finished < 16, "{finished} mebibytes went first");
    net.run_until("the rest", TIME_LIMIT, |net| {
        finished += net.hosts[0].poll(bulk.cq[0]).len();
        finished == 32
    });
}

/// An invalid key: the peer sends a Terminate, all work is flushed, and the other side gets an event.
#[test]
fn a_wrong_key_ends_the_stream_of_its_queue_pair_only() {
    let mut net = Net::new(Setup::default());
    net.listen(PORT);
    let (bad, good) = (net.connect(PORT, 8), net.connect(PORT, 8));
    let (_, from) = net.hosts[0].reg(bad.pd[0], vec![1; 64], all_access());
    let (_, to) = net.hosts[1].reg(bad.pd[1], vec![0; 64], all_access());
    let wrong = rdma::Stag(to.rkey.0 ^ 0x100);
    let op = SendOp::RdmaRead { remote_addr: 0, rkey: wrong };
    let (list, flags) = ([sge(&from, 0, 64)], SendFlags::default());
    let device = net.hosts[0].verbs.device_mut();
    device.post_send(bad.qp[0], &SendWr { wr_id: 9, op, data: Data::List(&list), flags }).unwrap();
    let mut done = Vec::new();
    net.run_until("the flush", TIME_LIMIT, |net| {
        done.extend(net.hosts[0].poll(bad.cq[0]));
        !done.is_empty()
    });
    assert_eq!((done[0].wr_id, done[0].status), (9, WcStatus::WrFlushError));
    let state = |net: &Net, host: usize, pair: &Pair| {
        net.hosts[host].verbs.device().query_qp(pair.qp[host]).unwrap().state
    };
    net.run_until("the end", TIME_LIMIT, |net| state(net, 1, &bad) == QpState::Error);
    assert_eq!((state(&net, 0, &good), state(&net, 1, &good)), (QpState::Rts, QpState::Rts));
}
