//! Checks in which parts a node processes and acknowledges a burst: two nodes on a ring, polled in turn by one thread.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use dataplane::dpdk::BURST;
use dataplane::verbs::Node;
use iwarp_engine::memory::RegionMemory;
use rdma::verbs::{
    Access, AddressBase, CmEventKind, CmId, ConnParam, CqId, Data, MemoryRegion, QpCap, QpInit, QpNum,
    RegionId, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

const PORT: u16 = 7174;
const REGION: u32 = 1 << 20;
/// Payload of a segment at MTU 1500: 1500 bytes without the headers of IPv4 and TCP with timestamps, and without the
/// length field, the tagged DDP header and the CRC of its FPDU.
const SEGMENT: u32 = 1500 - 20 - 32 - 2 - 14 - 4;

/// A node with a queue pair and a region.
struct End {
    node: Node,
    qp: QpNum,
    cq: CqId,
    region: RegionId,
    mr: MemoryRegion,
    _memory: Arc<RegionMemory>,
}

impl End {
    fn new(mut node: Node) -> Self {
        let (region, memory) = node.add_region("test", REGION.into()).unwrap();
        let engine = node.engine_mut();
        let pd = engine.device_mut().alloc_pd().unwrap();
        let cq = engine.device_mut().create_cq(64).unwrap();
        let cap =
            QpCap { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { cap, sq_sig_all: false, ..QpInit::new(pd, cq) };
        let qp = engine.device_mut().create_qp(init).unwrap();
        let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = engine.reg_mr(pd, (region, 0, REGION.into()), AddressBase::Zero, all).unwrap();
        Self { node, qp, cq, region, mr, _memory: memory }
    }

    fn event(&mut self) -> Option<(CmId, CmEventKind)> {
        self.node.device_mut().poll_cm_event().map(|event| (event.id, event.kind))
    }

    /// Posts a Write of the first `bytes` of the region to that of the peer.
    fn write(&mut self, bytes: u32, peer: MemoryRegion) {
        let sge = Sge { addr: 0, length: bytes, lkey: self.mr.lkey };
        let op = SendOp::RdmaWrite { remote_addr: 0, rkey: peer.rkey };
        let wr = SendWr { wr_id: 0, op, data: Data::List(&[sge]), flags: SendFlags::SIGNALED };
        self.node.device_mut().post_send(self.qp, &wr).unwrap();
    }

    /// Takes a completion.
    fn completion(&mut self) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion::default()];
        let taken = self.node.device_mut().poll_cq(self.cq, &mut out).unwrap();
        assert_eq!(out[0].status, WcStatus::Success);
        (taken > 0).then_some(out[0])
    }

    fn placed(&self) -> u64 {
        self.node.engine().memory().bytes(self.region).placed
    }

    /// Polls once. Returns the frames received and sent, and the bytes placed.
    fn poll(&mut self) -> (u64, u64, u64) {
        let before = (self.counter("rx_queue"), self.counter("tx_queue"), self.placed());
        self.node.poll();
        let after = (self.counter("rx_queue"), self.counter("tx_queue"), self.placed());
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    }

    /// Returns the frames of a queue so far.
    fn counter(&self, queue: &str) -> u64 {
        let mut frames = 0;
        self.node.visit_counters(&mut |group, name, _, value| {
            if (group, name) == (queue, "frames") {
                frames = value;
            }
        });
        frames
    }
}

/// Two connected nodes.
struct Pair {
    initiator: End,
    target: End,
}

impl Pair {
    fn connect() -> Self {
        let [left, right] = Node::open_ring(["10.0.0.1/24", "10.0.0.2/24"]).unwrap();
        let (mut initiator, mut target) = (End::new(left), End::new(right));
        let address = SocketAddr::from(([10, 0, 0, 2], PORT));
        let listener = target.node.device_mut().create_id(Some(address)).unwrap();
        target.node.device_mut().listen(listener, NonZeroU16::MIN, &ConnParam::default()).unwrap();
        let id = initiator.node.device_mut().create_id(None).unwrap();
        initiator.node.device_mut().connect(id, initiator.qp, address, &ConnParam::default()).unwrap();
        let mut pair = Self { initiator, target };
        let request = pair.wait(|pair| pair.target.event());
        let (qp, device) = (pair.target.qp, pair.target.node.device_mut());
        device.accept(request.0, qp, &[]).unwrap();
        let event = pair.wait(|pair| pair.initiator.event());
        assert!(matches!(event.1, CmEventKind::Established { .. }), "{event:?}");
        pair
    }

    /// Polls both ends in turn until `take` returns a value.
    fn wait<T>(&mut self, mut take: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..10_000_000 {
            // One poll sends at most half a burst: the window would not grow beyond it.
            for _ in 0..8 {
                self.initiator.node.poll();
            }
            self.target.node.poll();
            if let Some(value) = take(self) {
                return value;
            }
        }
        panic!("nothing came");
    }

    /// Writes `bytes` and polls until they are placed and acknowledged.
    fn complete(&mut self, bytes: u32) {
        let all = self.target.placed() + u64::from(bytes);
        self.initiator.write(bytes, self.target.mr);
        self.wait(|pair| (pair.target.placed() == all).then_some(()));
        self.finish_write();
    }

    /// Writes until the congestion window exceeds this number of segments.
    fn open_window(&mut self, segments: u32) {
        let mut cwnd = 0;
        for _ in 0..1000 {
            self.complete(REGION);
            self.initiator.node.engine().conns(0, &mut |conn| {
                cwnd = conn.tcp.cwnd / u32::from(conn.tcp.emss);
                true
            });
            if cwnd > segments {
                return;
            }
        }
        panic!("a window of {cwnd} segments");
    }

    /// Waits for the completion of a Write, and then until no frame moves.
    fn finish_write(&mut self) {
        self.wait(|pair| pair.initiator.completion());
        let mut idle = 0;
        while idle < 100 {
            let moved = self.initiator.poll().1 + self.target.poll().1;
            idle = if moved == 0 { idle + 1 } else { 0 };
        }
    }

    /// Sends a Write of `segments` full segments while the target does not poll. Returns what each of the target's
    /// polls then receives from the port, sends and places, until it has placed all; `before_poll` runs before each of
    /// them. Repeats a Write during which the thread was suspended for so long that the initiator sent a loss probe.
    fn burst_with(&mut self, segments: u32, before_poll: fn(&mut Self)) -> Vec<(u64, u64, u64)> {
        for _ in 0..100 {
            self.open_window(segments + 8);
            let before = self.sent_again();
            let parts = self.parts_of(segments, before_poll);
            if self.sent_again() == before {
                return parts;
            }
        }
        panic!("a loss probe in every Write");
    }

    fn parts_of(&mut self, segments: u32, before_poll: fn(&mut Self)) -> Vec<(u64, u64, u64)> {
        let (mut sent, mut parts) = (0, Vec::new());
        self.initiator.write(segments * SEGMENT, self.target.mr);
        while sent < u64::from(segments) {
            sent += self.initiator.poll().1;
        }
        let all = self.target.placed() + u64::from(segments * SEGMENT);
        while self.target.placed() < all && parts.len() < 10 {
            before_poll(self);
            parts.push(self.target.poll());
        }
        self.finish_write();
        parts
    }

    fn burst(&mut self, segments: u32) -> Vec<(u64, u64, u64)> {
        self.burst_with(segments, |_| {})
    }

    /// Returns the segments that the initiator has sent again so far.
    fn sent_again(&self) -> u64 {
        let tcp = self.initiator.node.engine().stack().stats().tcp;
        tcp.loss_probes + tcp.retransmits
    }
}

#[test]
fn the_first_half_of_a_burst_is_acknowledged_before_the_second_is_processed() {
    let mut pair = Pair::connect();
    let segment = u64::from(SEGMENT);
    assert_eq!(pair.burst(23), [(23, 1, 23 * segment)]);
    assert_eq!(pair.burst(24), [(24, 1, 12 * segment), (0, 1, 12 * segment)]);
    assert_eq!(pair.burst(31), [(31, 1, 16 * segment), (0, 1, 15 * segment)]);
    // The second burst follows a full one: more frames may wait behind it.
    let full = BURST as u64;
    assert_eq!(
        pair.burst(64),
        [(full, 1, 16 * segment), (0, 1, 16 * segment), (full, 1, full * segment)],
        "two full bursts"
    );
}

#[test]
fn a_program_that_posts_does_not_delay_the_second_half() {
    let mut pair = Pair::connect();
    let post = |pair: &mut Pair| {
        while pair.target.completion().is_some() {}
        pair.target.write(64, pair.initiator.mr);
    };
    let placed: Vec<u64> = pair.burst_with(24, post).iter().map(|poll| poll.2).collect();
    let half = 12 * u64::from(SEGMENT);
    // Before the port is polled, what the program has posted is sent.
    assert_eq!(placed, [0, half, half]);
}
