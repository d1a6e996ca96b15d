//! Zero allocations once objects are created and connected: a counting allocator around every call of a device.

use core::time::Duration;
use iwarp_alloc_counter::{counted, watched};
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{AtomicOp, Env, Sink};

/// A transport with preallocated memory.
struct Pipe(Vec<u8>);

impl Sink for Pipe {
    fn fpdu_max(&self) -> usize {
        1448
    }

    fn room(&self) -> usize {
        self.0.capacity() - self.0.len()
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let start = self.0.len();
        if self.room() < len {
            return false;
        }
        self.0.resize(start + len, 0);
        build(&mut self.0[start..]);
        true
    }
}

/// Posts work of every kind and polls its completions.
fn round(net: &mut Net, a: &Party, b: &Party, srq: SrqId, window: &SendOp) {
    let (remote_addr, rkey) = (b.mr.mr.addr, b.mr.mr.rkey);
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let two = [a.mr.sge(0, 3000), a.mr.sge(9000, 5)];
    let word = [a.mr.sge(8, 8)];
    let work = [
        (SEND, Data::List(&two[1..])),
        (SendOp::RdmaWrite { remote_addr, rkey }, Data::List(&two)),
        (SendOp::RdmaRead { remote_addr, rkey }, Data::List(&two)),
        (SendOp::Atomic { remote_addr, rkey, op }, Data::List(&word)),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: [1; 8] }, Data::Inline(b"inline")),
    ];
    let sink = [b.mr.sge(0, 500), b.mr.sge(600, 500)];
    watched(|| {
        for wr_id in 0..2 {
            net.nodes[1].device.post_srq_recv(srq, &RecvWr { wr_id, sg_list: &sink }).unwrap();
        }
        net.nodes[1].device.modify_srq(srq, 1).unwrap();
        net.nodes[1].device.req_notify_cq(b.recv_cq, true).unwrap();
        for (wr_id, (op, data)) in (0..).zip(work) {
            let flags = SendFlags { signaled: wr_id % 2 == 0, solicited: true, fence: wr_id == 3 };
            net.nodes[0].device.post_send(a.qp, &SendWr { wr_id, op, data, flags }).unwrap();
        }
        let SendOp::BindMw { rkey, .. } = *window else { unreachable!() };
        net.nodes[1].device.post_send(b.qp, &send_wr(1, *window, &[])).unwrap();
        net.nodes[1]
            .device
            .post_send(b.qp, &send_wr(2, SendOp::LocalInvalidate { stag: rkey }, &[]))
            .unwrap();
    });
}

fn drain(net: &mut Net, a: &Party, b: &Party) -> usize {
    let mut out = [WorkCompletion::default(); 4];
    let mut taken = 0;
    watched(|| {
        for (at, cq) in [(0, a.cq), (1, b.cq), (1, b.recv_cq)] {
            while let Ok(some @ 1..) = net.nodes[at].device.poll_cq(cq, &mut out) {
                assert!(out[..some].iter().all(|wc| wc.status == WcStatus::Success));
                taken += some;
            }
        }
        for at in 0..2 {
            while net.nodes[at].device.poll_cq_event().is_some() {}
            while net.nodes[at].device.poll_async_event().is_some() {}
            while net.nodes[at].device.poll_transport().is_some() {}
        }
    });
    taken
}

#[test]
fn work_of_every_kind_allocates_nothing() {
    let mut net = Net::new();
    let (a, b) = pair_with(&mut net, [CAP, CAP], Some(8));
    let Node { device, stags, .. } = &mut net.nodes[1];
    let srq = device.query_qp(b.qp).unwrap().init.srq.unwrap();
    let mw = device.alloc_mw(b.pd, stags).unwrap();
    let bind = Bind {
        lkey: b.mr.mr.lkey,
        address: b.mr.mr.addr,
        len: 9,
        access: Access::REMOTE_READ,
        zero_based: true,
    };
    let window = SendOp::BindMw { mw: mw.id, rkey: mw.rkey, bind };
    let mut pipes = [Pipe(Vec::with_capacity(1 << 20)), Pipe(Vec::with_capacity(1 << 20))];
    let mut positions = [net.position(0), net.position(1)];
    let ids = [a.id, b.id];
    let mut warm = 0;
    for at in 0..if cfg!(miri) { 3 } else { 1000 } {
        round(&mut net, &a, &b, srq, &window);
        loop {
            let mut moved = 0;
            for from in 0..2 {
                let to = 1 - from;
                let Node { device, stags, memory, stats, .. } = &mut net.nodes[from];
                let mut env = Env { stags, memory, stats };
                watched(|| device.poll_transmit(ids[from], Duration::ZERO, &mut env, &mut pipes[from]));
                let bytes = core::mem::take(&mut pipes[from].0);
                for piece in bytes.chunks(1448) {
                    let chunk = piece.to_vec();
                    let Node { device, stags, memory, stats, .. } = &mut net.nodes[to];
                    let mut env = Env { stags, memory, stats };
                    watched(|| device.receive(ids[to], Duration::ZERO, positions[to], chunk, &mut env));
                    positions[to] += piece.len() as u64;
                    moved += piece.len();
                }
                pipes[from].0 = bytes;
                pipes[from].0.clear();
            }
            if moved == 0 {
                break;
            }
        }
        assert_eq!(drain(&mut net, &a, &b), 3 + 2 + 2, "round {at}");
        // The first round may touch memory that is kept for later.
        if at == 0 {
            warm = counted();
        }
    }
    assert_eq!(counted() - warm, 0);
    assert_eq!(net.nodes[0].bytes(&a.mr).len(), MEMORY);
    // Checks that the counter counts.
    watched(|| drop(std::hint::black_box(vec![0u8; 100])));
    assert_eq!(counted() - warm, 1);
}
