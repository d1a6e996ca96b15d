//! Two hosts on one thread: the cost of a protocol at both ends, without kernel, ports or waiting.
//!
//! ```text
//!  initiator, or TCP sender ◀── frames, by reference ──▶ the daemon's engine, or TCP receiver
//! ```
//! Frames pass from one host to the other as over a ring port: the buffer itself, not a copy. Buffers and region
//! memory are those of the daemon. The stacks compute and verify checksums in software, since no port does it. The
//! clock is the real one. `copies` and `slow-clients` use these hosts.

mod initiator;
mod tcp;

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, anyhow};
use dataplane::dpdk::{
    Eal, EalConfig, EalMemory, Iova, Mbuf, MbufPool, Mempool, MempoolConfig, Reuse, WORKER_CACHE,
};
use dataplane::worker::PortEngine;
use iwarp_engine::memory::{HUGEPAGE_BYTES, RegionMemory, WorkerMemory, hugepages};
use iwarp_engine::{EngineConfig, ListenerService, LocalPorts};
use rdma::service::{RegionEntry, Token};
use rdma::{Access, EndpointConfig, RegionId};
use tcp_stack::{
    ConnOptions, HEADROOM, Instant, Ipv4Cidr, ListenOptions, MacAddr, RxChecksum, RxFrame, Stack, StackConfig,
};

use crate::Stopwatch;

pub use initiator::Initiator;
pub use tcp::{TcpReceiver, TcpSender};

/// Frames of a burst.
const BURST: usize = 32;
/// Bytes of a frame beside its IP packet, with a reserve.
const FRAME: usize = 64;
/// TCP port of the receiver.
pub const PORT: u16 = 7400;
/// Name of the receiver's region.
pub const REGION: &str = "bench";
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2)];
const SEED: [u8; 32] = *b"the same seed, hence the same ru";
/// Memory for all packet buffers of a process, MiB.
const BUFFERS_MIB: u32 = 384;
/// ID of the only region of a host.
const THE_REGION: RegionId = RegionId(0);

/// A host that runs in steps.
pub trait Host {
    /// Processes the received frames and its own work, and transmits at most a burst.
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    );
}

/// Sizes of both hosts.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Largest number of connections.
    pub connections: u32,
    /// Packet buffers per host.
    pub buffers: u32,
}

impl Sizes {
    /// Returns the configuration of a host's stack: 0 is the sender, 1 the receiver.
    fn stack(&self, host: usize) -> StackConfig {
        let address = ADDRESSES.get(host).copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
        StackConfig {
            mac: MacAddr([2, 0, 0, 0, 1, u8::try_from(host).unwrap_or(0)]),
            mtu: self.mtu,
            ipv4: Ipv4Cidr::new(address, 24),
            connections_max: self.connections,
            buffers_max: self.buffers,
            ..StackConfig::default()
        }
    }

    /// Makes the packet buffers of a host.
    fn pool(&self) -> Result<MbufPool> {
        let room = usize::from(self.mtu).saturating_add(HEADROOM + FRAME);
        let config =
            MempoolConfig { count: self.buffers, cache: WORKER_CACHE, data_room: u16::try_from(room)? };
        Ok(MbufPool::of_worker(Arc::new(Mempool::new(dpdk()?, config)?), Reuse::Lifo))
    }
}

/// Returns DPDK, which starts once per process, on hugepages if there are enough.
fn dpdk() -> Result<&'static Eal> {
    static DPDK: OnceLock<Result<Eal, String>> = OnceLock::new();
    let start = || {
        let enough = hugepages().available().saturating_mul(HUGEPAGE_BYTES) >> 20 >= BUFFERS_MIB.into();
        let mib = BUFFERS_MIB;
        let config = EalConfig {
            control_cpus: Vec::new(),
            file_prefix: format!("iwarp-bench-{}", std::process::id()),
            memory: if enough { EalMemory::Hugepages } else { EalMemory::Ordinary { mib } },
            iova: Iova::Virtual,
            pci: Vec::new(),
            telemetry: false,
        };
        Eal::start(&config).map_err(|error| error.to_string())
    };
    DPDK.get_or_init(start).as_ref().map_err(|why| anyhow!("no packet buffers: {why}"))
}

/// Makes a region with all its pages present, in a table of its own.
fn memory(name: &str, bytes: usize) -> Result<WorkerMemory> {
    let region = RegionMemory::on_hugepages(name, bytes as u64, true)?;
    let pattern = prefaulted(bytes.min(1 << 20));
    for at in (0..bytes).step_by(pattern.len().max(1)) {
        let part = pattern.get(..pattern.len().min(bytes - at)).unwrap_or_default();
        region.write(at as u64, part)?;
    }
    let mut memory = WorkerMemory::new(1);
    memory.attach(THE_REGION, Arc::new(region))?;
    Ok(memory)
}

/// A host with its packet buffers and its queues of frames.
struct HostSlot<H> {
    host: H,
    pool: MbufPool,
    inbox: Vec<RxFrame<Mbuf>>,
    outbox: Vec<Mbuf>,
    /// Time of the steps that moved a frame, and of the idle ones.
    spent: [Duration; 2],
}

impl<H: Host> HostSlot<H> {
    fn new(host: H, sizes: &Sizes) -> Result<Self> {
        Ok(Self {
            host,
            pool: sizes.pool()?,
            inbox: Vec::with_capacity(BURST),
            outbox: Vec::with_capacity(BURST),
            spent: [Duration::ZERO; 2],
        })
    }

    fn step(&mut self, clock: &Stopwatch) {
        let (begin, received) = (clock.elapsed(), !self.inbox.is_empty());
        let now = Instant::from_nanos(u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX));
        self.host.step(now, &mut self.inbox, &mut self.pool, &mut self.outbox);
        let time = clock.elapsed().saturating_sub(begin);
        let [busy, idle] = &mut self.spent;
        let spent = if received || !self.outbox.is_empty() { busy } else { idle };
        *spent = spent.saturating_add(time);
    }

    fn hand_over(&mut self, to: &mut Vec<RxFrame<Mbuf>>) {
        to.extend(self.outbox.drain(..).map(|buf| RxFrame { buf, checksum: RxChecksum::Unknown }));
    }
}

/// The two hosts and their clock.
#[allow(missing_debug_implementations, reason = "it is nothing but buffers and engines")]
pub struct HostPair<S, R> {
    sender: HostSlot<S>,
    receiver: HostSlot<R>,
    clock: Stopwatch,
    /// Each host holds buffers of the other: the pools are dropped last.
    _pools: [Arc<Mempool>; 2],
}

impl<S: Host, R: Host> HostPair<S, R> {
    /// Joins two hosts.
    ///
    /// # Errors
    /// There is no memory for the packet buffers.
    pub fn new(sizes: &Sizes, sender: S, receiver: R) -> Result<Self> {
        let (sender, receiver) = (HostSlot::new(sender, sizes)?, HostSlot::new(receiver, sizes)?);
        let pools = [Arc::clone(sender.pool.mempool()), Arc::clone(receiver.pool.mempool())];
        Ok(Self { sender, receiver, clock: Stopwatch::start(), _pools: pools })
    }

    /// Runs one step of each host.
    #[inline]
    pub fn poll(&mut self) {
        self.sender.step(&self.clock);
        self.sender.hand_over(&mut self.receiver.inbox);
        self.receiver.step(&self.clock);
        self.receiver.hand_over(&mut self.sender.inbox);
    }

    /// Polls until `done` returns true; returns false if that takes longer than `timeout`.
    pub fn run_until(&mut self, timeout: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.clock.elapsed().saturating_add(timeout);
        while !done(self) {
            if self.clock.elapsed() >= end {
                return false;
            }
            self.poll();
        }
        true
    }

    /// Returns the host that sends.
    pub fn sender(&mut self) -> &mut S {
        &mut self.sender.host
    }

    /// Returns the host that receives.
    pub fn receiver(&mut self) -> &mut R {
        &mut self.receiver.host
    }

    /// Returns the time since the pair was made.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns the time of sender and of receiver in steps that moved a frame, and of both in idle steps.
    pub fn spent(&self) -> [Duration; 3] {
        let ([sender, sender_idle], [receiver, receiver_idle]) = (self.sender.spent, self.receiver.spent);
        [sender, receiver, sender_idle.saturating_add(receiver_idle)]
    }
}

/// The daemon's engine with one region that any client may use.
#[allow(missing_debug_implementations, reason = "it is nothing but an engine")]
pub struct Target(PortEngine);

impl Target {
    /// Makes an engine that serves a region of this size.
    ///
    /// # Errors
    /// There is no memory, or the engine refuses the listener or the region.
    pub fn new(sizes: &Sizes, region_bytes: usize) -> Result<Self> {
        let config = EngineConfig {
            conn: ConnOptions::default(),
            limits: EngineConfig::service_limits(sizes.connections, 1),
            endpoint: EndpointConfig::default(),
            stags_max: sizes.connections,
            regions_max: 1,
            contexts_max: 0,
            local_ports: (LocalPorts::default(), 0),
            seed: SEED,
        };
        let mut engine =
            PortEngine::new(Stack::new(sizes.stack(1), SEED), config, memory(REGION, region_bytes)?);
        engine.listen(PORT, listen_options(), ListenerService::Region(EndpointConfig::default()))?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let bytes = region_bytes as u64;
        let (name, token) = (REGION.to_owned(), Token::new(b""));
        let region = THE_REGION;
        engine.region_add(RegionEntry {
            name,
            region,
            offset: 0,
            bytes,
            access,
            token,
            allow: Vec::new(),
        })?;
        Ok(Self(engine))
    }

    /// Returns the counters of the RDMA engine.
    pub fn stats(&self) -> &rdma::RdmaStats {
        self.0.rdma_stats()
    }
}

impl Host for Target {
    #[inline]
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    ) {
        self.0.poll(now, true, &mut frames.drain(..), pool, &mut |frame| out.push(frame.buf), BURST);
        self.0.run_deferred(now, pool);
    }
}

fn listen_options() -> ListenOptions {
    ListenOptions { backlog: 1024, ..ListenOptions::default() }
}

/// Allocates memory and touches every page, so that no page fault is measured later.
#[must_use]
pub fn prefaulted(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    for (at, byte) in memory.iter_mut().enumerate().step_by(64) {
        *byte = at.to_le_bytes()[1] | 1;
    }
    memory
}

/// Takes at most a burst of frames from a stack.
#[inline]
fn transmit(stack: &mut Stack<Mbuf>, now: Instant, pool: &mut MbufPool, out: &mut Vec<Mbuf>) {
    stack.poll_transmit(now, pool, &mut |frame| out.push(frame.buf), BURST);
}

/// Returns the address and port of the receiver.
fn receiver_address() -> std::net::SocketAddr {
    let [_, receiver] = ADDRESSES;
    (receiver, PORT).into()
}

/// Copies `bytes` into `region` at `at`, used as a ring; advances `at`.
#[inline]
fn place(region: &mut [u8], at: &mut usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let room = region.get_mut(*at..).unwrap_or_default();
        let len = room.len().min(bytes.len());
        let (Some(to), Some((head, rest))) = (room.get_mut(..len), bytes.split_at_checked(len)) else {
            return;
        };
        to.copy_from_slice(head);
        (bytes, *at) = (rest, at.wrapping_add(len));
        if *at >= region.len() {
            *at = 0;
            if region.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
