//! Runs two verbs nodes in one process, connected by a ring, each on its own thread, with real packet buffers and
//! region memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use dataplane::verbs::{Node, NodeOptions};
use iwarp_config::Config;
use iwarp_engine::Clock;
use iwarp_engine::memory::RegionMemory;
use rdma::verbs::{
    Access, AddressBase, CmEventKind, ConnParam, CqId, Data, MemoryRegion, PdId, QpCap, QpInit, QpNum,
    RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

const PORT: u16 = 7174;
const BYTES: usize = 1 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn config(name: &str, address: &str, core: u16) -> Config {
    let text = format!(
        "[memory]\nhugepages = 'prefer'\npacket_buffers = 4096\n[[port]]\nname = '{name}'\ndriver = 'ring'\n\
         addresses = ['{address}/24']\n[workers]\ncores = [{core}]\n[tcp]\nconnections_max = 16\n"
    );
    Config::parse(name, &text).unwrap()
}

/// Objects of one side.
struct Side {
    node: Node,
    pd: PdId,
    cq: CqId,
    qp: QpNum,
    memory: Arc<RegionMemory>,
    mr: MemoryRegion,
}

impl Side {
    fn new(mut node: Node) -> Self {
        let (region, memory) = node.add_region("test", BYTES as u64).unwrap();
        let verbs = node.engine_mut();
        let (pd, cq) = (verbs.device_mut().alloc_pd().unwrap(), verbs.device_mut().create_cq(64).unwrap());
        let cap =
            QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { cap, ..QpInit::new(pd, cq) };
        let qp = verbs.device_mut().create_qp(init).unwrap();
        let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = verbs.reg_mr(pd, (region, 0, BYTES as u64), AddressBase::Zero, all).unwrap();
        Self { node, pd, cq, qp, memory, mr }
    }

    fn sge(&self, addr: u64, length: usize) -> Sge {
        Sge { addr, length: u32::try_from(length).unwrap(), lkey: self.mr.lkey }
    }

    /// Polls until `take` returns a value.
    fn wait<T>(&mut self, mut take: impl FnMut(&mut Node) -> Option<T>) -> T {
        let until = self.node.now() + TIME_LIMIT;
        self.node.run(|node| {
            assert!(node.now() < until, "nothing came");
            take(node).map_or(ControlFlow::Continue(()), ControlFlow::Break)
        })
    }

    fn event(&mut self) -> CmEventKind {
        self.wait(|node| node.device_mut().poll_cm_event()).kind
    }

    fn completion(&mut self) -> WorkCompletion {
        let cq = self.cq;
        let wc = self.wait(|node| {
            let mut out = [WorkCompletion::default()];
            (node.device_mut().poll_cq(cq, &mut out) == Ok(1)).then_some(out[0])
        });
        assert_eq!(wc.status, WcStatus::Success);
        wc
    }

    fn counter(&self, counter: (&str, &str)) -> u64 {
        let mut sum = 0;
        self.node.visit_counters(&mut |group, name, _, value| {
            sum += if (group, name) == counter { value } else { 0 };
        });
        sum
    }

    /// Checks that posted work is transmitted before the port is polled again, and that a program that posts before
    /// every iteration does not prevent the port from being polled.
    fn ask_before_every_round(&mut self, op: SendOp) {
        const ROUNDS: u64 = 1000;
        let sge = self.sge(0, 64);
        let (before, mut under_way) = (self.counter(("rx_queue", "polls")), 0);
        for _ in 0..ROUNDS {
            if under_way < 16 {
                self.post(op, sge);
                under_way += 1;
            }
            self.node.poll();
            let mut out = [WorkCompletion::default(); 16];
            under_way -= self.node.device_mut().poll_cq(self.cq, &mut out).unwrap();
        }
        let looked = self.counter(("rx_queue", "polls")) - before;
        assert!(
            (ROUNDS / 2..ROUNDS).contains(&looked),
            "polled the port {looked} times in {ROUNDS} iterations"
        );
        for _ in 0..under_way {
            self.completion();
        }
    }

    fn post(&mut self, op: SendOp, sge: Sge) {
        let wr = SendWr { wr_id: 0, op, data: Data::List(&[sge]), flags: SendFlags::SIGNALED };
        self.node.device_mut().post_send(self.qp, &wr).unwrap();
    }
}

/// Accepts one connection, sends its STag, and waits for the end.
fn serve(node: Node) {
    let mut side = Side::new(node);
    let _thread = side.node.enter().unwrap();
    let local = SocketAddr::from(([10, 0, 0, 2], PORT));
    let device = side.node.device_mut();
    let listener = device.create_id(Some(local)).unwrap();
    device.listen(listener, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    let event = side.wait(|node| node.device_mut().poll_cm_event());
    assert!(matches!(event.kind, CmEventKind::ConnectRequest { .. }), "{event:?}");
    let qp = side.qp;
    let key = side.mr.rkey.0.to_be_bytes();
    side.node.device_mut().accept(event.id, qp, &key).unwrap();
    let recv = RecvWr { wr_id: 7, sg_list: &[side.sge(0, 64)] };
    side.node.device_mut().post_recv(qp, &recv).unwrap();
    assert!(matches!(side.event(), CmEventKind::Established { .. }));
    assert_eq!((side.completion().wr_id, side.event()), (7, CmEventKind::Disconnected));
    let mut bytes = vec![0; BYTES];
    side.memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().zip(0_u32..).skip(64).all(|(byte, at)| *byte == u8::try_from(at % 251).unwrap()));
    assert!(side.node.finish(TIME_LIMIT), "closed in good order");
}

fn initiate(node: Node) {
    let mut side = Side::new(node);
    let _thread = side.node.enter().unwrap();
    let pattern: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
    side.memory.write(0, &pattern).unwrap();
    let qp = side.qp;
    let device = side.node.device_mut();
    let id = device.create_id(None).unwrap();
    device.connect(id, qp, SocketAddr::from(([10, 0, 0, 2], PORT)), &ConnParam::default()).unwrap();
    let CmEventKind::Established { private_data, .. } = side.event() else { panic!("not established") };
    let rkey = rdma::Stag(u32::from_be_bytes((*private_data).try_into().unwrap()));
    let whole = side.sge(0, BYTES);
    side.post(SendOp::RdmaWrite { remote_addr: 0, rkey }, whole);
    side.completion();
    side.memory.write(0, &vec![0; BYTES]).unwrap();
    side.post(SendOp::RdmaRead { remote_addr: 0, rkey }, whole);
    side.completion();
    let mut bytes = vec![0; BYTES];
    side.memory.read(0, &mut bytes).unwrap();
    assert!(bytes == pattern, "read back what was written");
    side.ask_before_every_round(SendOp::RdmaWrite { remote_addr: 0, rkey });
    let few = side.sge(0, 64);
    side.post(SendOp::Send { invalidate: None }, few);
    side.completion();
    let now = side.node.now();
    side.node.engine_mut().disconnect(id, now);
    assert_eq!(side.event(), CmEventKind::Disconnected);
    let frames = side.counter(("ip", "rx_frames"));
    assert!(frames > 100, "{frames}");
    assert!(side.node.finish(TIME_LIMIT), "closed in good order");
    assert!(side.node.engine_mut().dereg_mr(side.mr.id).is_ok());
    assert!(side.node.device_mut().dealloc_pd(side.pd).is_err(), "the queue pair is in it");
}

#[test]
fn two_nodes_in_one_process() {
    let configs = [config("left", "10.0.0.1", 0), config("right", "10.0.0.2", 0)];
    let eal = Node::start_dpdk(&[&configs[0], &configs[1]]).unwrap();
    let options = configs.each_ref().map(NodeOptions::new);
    let clock = Clock::start();
    let ends = [(&configs[0], &options[0]), (&configs[1], &options[1])];
    let [left, right] = Node::open_pair(&eal, ends, &clock).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(right));
        scope.spawn(|| initiate(left)).join().unwrap();
        server.join().unwrap();
    });
}
