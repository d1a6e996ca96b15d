//! Connects a verbs node to its own addresses, with real packet buffers and region memory. No frame may reach the port,
//! and payload goes from memory to memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use dataplane::verbs::{Node, NodeOptions};
use iwarp_config::Config;
use iwarp_engine::Clock;
use iwarp_engine::memory::RegionMemory;
use rdma::Stag;
use rdma::verbs::{
    Access, AddressBase, CmEventKind, CmId, ConnParam, CqId, Data, MemoryRegion, QpCap, QpInit, QpNum,
    QpState, SendFlags, SendOp, SendWr, Sge, WcStatus, WorkCompletion,
};

const BYTES: usize = 1 << 20;
const PART: usize = 64 << 10;
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Time for which a rate is measured.
const MEASURED: Duration = Duration::from_millis(200);
/// Least time without a poll after which a timer of TCP may have expired although nothing was lost.
const PAUSE: Duration = Duration::from_millis(1);

fn config(mtu: u16) -> Config {
    let text = format!(
        "[memory]\nhugepages = 'prefer'\npacket_buffers = 4096\n[[port]]\nname = 'alone'\ndriver = 'ring'\n\
         mtu = {mtu}\n\
         addresses = ['10.0.0.1/24', 'fd77::1/64']\n[workers]\ncores = [0]\n[tcp]\nconnections_max = 16\n"
    );
    Config::parse("alone", &text).unwrap()
}

/// One end of a looped connection.
struct End {
    qp: QpNum,
    memory: Arc<RegionMemory>,
    mr: MemoryRegion,
}

impl End {
    fn sge(&self, addr: u64, length: usize) -> Sge {
        Sge { addr, length: u32::try_from(length).unwrap(), lkey: self.mr.lkey }
    }
}

struct Program {
    node: Node,
    cq: CqId,
    ends: [End; 2],
    /// Longest time between two polls in a row.
    pause: Duration,
}

impl Program {
    fn new(mut node: Node) -> Self {
        let device = node.device_mut();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let ends = ["client", "server"].map(|name| {
            let (region, memory) = node.add_region(name, BYTES as u64).unwrap();
            let cap = QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let init = QpInit { cap, ..QpInit::new(pd, cq) };
            let qp = node.device_mut().create_qp(init).unwrap();
            let all = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let mr = node.engine_mut().reg_mr(pd, (region, 0, BYTES as u64), AddressBase::Zero, all).unwrap();
            End { qp, memory, mr }
        });
        Self { node, cq, ends, pause: Duration::ZERO }
    }

    /// Polls until `take` returns a value.
    fn wait<T>(&mut self, mut take: impl FnMut(&mut Node) -> Option<T>) -> T {
        let Self { node, pause, .. } = self;
        let mut polled_at = node.now();
        let until = polled_at + TIME_LIMIT;
        node.run(|node| {
            let now = node.now();
            *pause = now.saturating_since(std::mem::replace(&mut polled_at, now)).max(*pause);
            assert!(now < until, "nothing came");
            take(node).map_or(ControlFlow::Continue(()), ControlFlow::Break)
        })
    }

    fn completion(&mut self) {
        let cq = self.cq;
        let mut out = [WorkCompletion::default()];
        self.wait(|node| (node.device_mut().poll_cq(cq, &mut out) == Ok(1)).then_some(()));
        assert_eq!(out[0].status, WcStatus::Success);
    }

    fn post(&mut self, op: SendOp, sge: Sge) {
        let wr = SendWr { wr_id: 0, op, data: Data::List(&[sge]), flags: SendFlags::SIGNALED };
        self.node.device_mut().post_send(self.ends[0].qp, &wr).unwrap();
    }

    /// Connects the first end to the second one.
    fn connect(&mut self, peer: SocketAddr) -> CmId {
        let device = self.node.device_mut();
        let listener = device.create_id(Some(peer)).unwrap();
        device.listen(listener, NonZeroU16::MIN, &ConnParam::default()).unwrap();
        let id = device.create_id(None).unwrap();
        device.connect(id, self.ends[0].qp, peer, &ConnParam::default()).unwrap();
        let server = self.ends[1].qp;
        self.wait(|node| {
            let event = node.device_mut().poll_cm_event()?;
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    node.device_mut().accept(event.id, server, b"").unwrap();
                    None
                }
                CmEventKind::Established { .. } => (event.id == id).then_some(()),
                other => panic!("{other:?}"),
            }
        });
        id
    }

    fn counter(&self, counter: (&str, &str)) -> u64 {
        let mut sum = 0;
        self.node.visit_counters(&mut |group, name, _, value| {
            sum += if (group, name) == counter { value } else { 0 };
        });
        sum
    }

    fn drops(&self) -> u64 {
        let mut sum = 0;
        self.node.visit_counters(&mut |_, name, _, value| {
            sum += if name.starts_with("drop_") { value } else { 0 }
        });
        sum
    }

    /// Writes and reads back all bytes.
    fn exchange(&mut self, rkey: Stag) {
        let pattern: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        self.ends[0].memory.write(0, &pattern).unwrap();
        self.ends[1].memory.write(0, &vec![0; BYTES]).unwrap();
        let whole = self.ends[0].sge(0, BYTES);
        self.post(SendOp::RdmaWrite { remote_addr: 0, rkey }, whole);
        self.completion();
        self.ends[0].memory.write(0, &vec![0; BYTES]).unwrap();
        // The Read is behind the Write in the stream.
        self.post(SendOp::RdmaRead { remote_addr: 0, rkey }, whole);
        self.completion();
        for end in &self.ends {
            let mut bytes = vec![0; BYTES];
            end.memory.read(0, &mut bytes).unwrap();
            assert!(bytes == pattern, "every byte");
        }
    }

    /// Returns the rate of Writes of 64 KiB, bytes per second.
    fn rate(&mut self, rkey: Stag) -> f64 {
        let (begin, mut bytes, mut under_way) = (self.node.now(), 0_usize, 0);
        while self.node.now() < begin + MEASURED {
            while under_way < 8 {
                let at = bytes % BYTES;
                let sge = self.ends[0].sge(at as u64, PART);
                self.post(SendOp::RdmaWrite { remote_addr: at as u64, rkey }, sge);
                (bytes, under_way) = (bytes + PART, under_way + 1);
            }
            let before = self.node.now();
            self.node.poll();
            self.pause = self.node.now().saturating_since(before).max(self.pause);
            let mut out = [WorkCompletion::default(); 16];
            under_way -= self.node.device_mut().poll_cq(self.cq, &mut out).unwrap();
        }
        let time = self.node.now().saturating_since(begin);
        (0..under_way).for_each(|_| self.completion());
        bytes as f64 / time.as_secs_f64()
    }
}

/// Returns the rate of copying in parts of 64 KiB, bytes per second.
fn memcpy_rate(clock: &Clock) -> f64 {
    let (from, mut to) = (vec![1_u8; BYTES], vec![0_u8; BYTES]);
    let (begin, mut bytes) = (clock.now(), 0_usize);
    while clock.now() < begin + MEASURED {
        let at = bytes % BYTES;
        to[at..at + PART].copy_from_slice(std::hint::black_box(&from[at..at + PART]));
        std::hint::black_box(&mut to);
        bytes += PART;
    }
    bytes as f64 / clock.now().saturating_since(begin).as_secs_f64()
}

#[test]
fn a_program_connects_to_itself() {
    let configs = [1500, 9000].map(|mtu| [config(mtu), config(mtu)]);
    let all: Vec<&Config> = configs.iter().flatten().collect();
    let eal = Node::start_dpdk(&all).unwrap();
    let clock = Clock::start();
    for pair in &configs {
        let options = NodeOptions::new(&pair[0]);
        // The other end of the ring is never polled.
        let [node, _other] =
            Node::open_pair(&eal, [(&pair[0], &options), (&pair[1], &options)], &clock).unwrap();
        let mut program = Program::new(node);
        for (address, port) in [("10.0.0.1", 7174), ("fd77::1", 7175)] {
            let peer = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
            let id = program.connect(peer);
            let sent = program.counter(("tx_queue", "frames"));
            let rkey = program.ends[1].mr.rkey;
            program.exchange(rkey);
            let (rate, copied) = (program.rate(rkey), memcpy_rate(&clock));
            println!(
                "{peer}, MTU {}: {:.2} GB/s, {:.0} % of memcpy",
                pair[0].ports[0].mtu,
                rate / 1e9,
                rate / copied * 100.0
            );
            let now = program.node.now();
            program.node.engine_mut().disconnect(id, now);
            let qps = [program.ends[0].qp, program.ends[1].qp];
            program.wait(|node| {
                while node.device_mut().poll_cm_event().is_some() {}
                let state = |qp| node.device().query_qp(qp).unwrap().state;
                (qps.map(state) == [QpState::Error; 2]).then_some(())
            });
            let now = Duration::from_nanos(program.node.now().as_nanos());
            for qp in qps {
                program.node.device_mut().modify_qp(qp, QpState::Idle, now).unwrap();
            }
            assert_eq!(program.counter(("tx_queue", "frames")), sent, "frames on the wire");
        }
        // The first message of each side, acknowledgments, and the close went by TCP; all else directly.
        let frames = program.counter(("loopback", "frames"));
        let looped = program.counter(("rdmap", "looped_bytes"));
        assert!((20..400).contains(&frames), "{frames} frames");
        assert!(looped > 4 * BYTES as u64, "{looped} bytes");
        // While this thread does not run, a timer may expire: what TCP sends again is dropped, and nothing else.
        let sent_again = program.counter(("tcp", "retransmits"));
        assert_eq!(program.drops(), sent_again);
        assert!(sent_again == 0 || program.pause >= PAUSE, "{sent_again} without a pause");
    }
}
