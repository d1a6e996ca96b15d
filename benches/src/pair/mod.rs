//! Two hosts on one thread: what a protocol costs both sides together, with no kernel, port or wait in it.
//!
//! ```text
//!  near: an initiator, or a TCP sender ◀── frames, by reference ──▶ far: the daemon's engine, or a TCP receiver
//! ```
//! Frames go from one host to the other as a ring port hands them over: the buffer itself, not a copy. Buffers and region
//! memory are those of the daemon. Checksums are made and verified in software, since no port does it. The clock is the
//! real one.

mod initiator;
mod tcp;

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use dataplane::dpdk::{
    Eal, EalConfig, EalMemory, Iova, Mbuf, MbufPool, Mempool, MempoolConfig, WORKER_CACHE,
};
use dataplane::engine::{Engine, EngineConfig, ListenerService, PortProtocols as _};
use dataplane::memory::{HUGEPAGE_BYTES, RegionMemory, WorkerMemory, hugepages};
use rdma::service::{RegionEntry, Token};
use rdma::{Access, EndpointConfig, RegionId};
use tcp_stack::{
    HEADROOM, Instant, Ipv4Cidr, ListenOptions, MacAddr, RxChecksum, RxFrame, Stack, StackConfig,
};

use crate::Stopwatch;

pub use initiator::Initiator;
pub use tcp::{Receiver, Sender};

/// Frames of a burst.
const BURST: usize = 32;
/// Bytes of a frame beside its IP packet, and some to spare.
const FRAME: usize = 64;
/// The TCP port that the far host listens on.
pub const PORT: u16 = 7400;
/// The name of the far host's region.
pub const REGION: &str = "bench";
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2)];
const SEED: [u8; 32] = *b"the same seed, hence the same ru";
/// What all packet buffers of a process may take, MiB.
const BUFFERS_MIB: u32 = 384;
/// The one region of a host.
const THE_REGION: RegionId = RegionId(0);

/// One side.
pub trait Host {
    /// Takes the frames that have come, does its work, and hands over at most a burst.
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    );
}

/// What both hosts are made with.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of an IP packet at most.
    pub mtu: u16,
    /// Connections at most.
    pub connections: u32,
    /// Packet buffers of each host.
    pub buffers: u32,
}

impl Sizes {
    /// The configuration of a host's stack: 0 is near, 1 far.
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

    /// The packet buffers of a host.
    fn pool(&self) -> Result<MbufPool> {
        let room = usize::from(self.mtu).saturating_add(HEADROOM + FRAME);
        let config =
            MempoolConfig { count: self.buffers, cache: WORKER_CACHE, data_room: u16::try_from(room)? };
        Ok(MbufPool::of_worker(Arc::new(Mempool::new(dpdk()?, config)?)))
    }
}

/// DPDK, which starts once per process, on hugepages if there are enough.
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

/// The memory of a region of so many bytes, whose every page is there, in a table of its own.
fn memory(name: &str, bytes: usize) -> Result<WorkerMemory> {
    let region = RegionMemory::on_hugepages(name, bytes as u64, true)?;
    let pattern = touched(bytes.min(1 << 20));
    for at in (0..bytes).step_by(pattern.len().max(1)) {
        let part = pattern.get(..pattern.len().min(bytes - at)).unwrap_or_default();
        ensure!(region.write(at as u64, part), "the region has these bytes");
    }
    let mut memory = WorkerMemory::new(1);
    memory.attach(THE_REGION, Arc::new(region))?;
    Ok(memory)
}

/// A host, and what lies between it and the other.
struct End<H> {
    host: H,
    pool: MbufPool,
    inbox: Vec<RxFrame<Mbuf>>,
    outbox: Vec<Mbuf>,
    /// Time of the steps that moved a frame, and of those that did not.
    spent: [Duration; 2],
}

impl<H: Host> End<H> {
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
        let (begin, brought) = (clock.elapsed(), !self.inbox.is_empty());
        let now = Instant::from_nanos(u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX));
        self.host.step(now, &mut self.inbox, &mut self.pool, &mut self.outbox);
        let time = clock.elapsed().saturating_sub(begin);
        let [busy, idle] = &mut self.spent;
        let spent = if brought || !self.outbox.is_empty() { busy } else { idle };
        *spent = spent.saturating_add(time);
    }

    fn give(&mut self, to: &mut Vec<RxFrame<Mbuf>>) {
        to.extend(self.outbox.drain(..).map(|buf| RxFrame { buf, checksum: RxChecksum::Unknown }));
    }
}

/// Both hosts.
#[allow(missing_debug_implementations, reason = "it is nothing but buffers and engines")]
pub struct Pair<N, F> {
    near: End<N>,
    far: End<F>,
    clock: Stopwatch,
    /// Buffers of each lie at the other: their pools go last.
    _pools: [Arc<Mempool>; 2],
}

impl<N: Host, F: Host> Pair<N, F> {
    /// Joins two hosts.
    ///
    /// # Errors
    /// There is no memory for their packet buffers.
    pub fn new(sizes: &Sizes, near: N, far: F) -> Result<Self> {
        let (near, far) = (End::new(near, sizes)?, End::new(far, sizes)?);
        let pools = [Arc::clone(near.pool.mempool()), Arc::clone(far.pool.mempool())];
        Ok(Self { near, far, clock: Stopwatch::start(), _pools: pools })
    }

    /// A step of each.
    #[inline]
    pub fn turn(&mut self) {
        self.near.step(&self.clock);
        self.near.give(&mut self.far.inbox);
        self.far.step(&self.clock);
        self.far.give(&mut self.near.inbox);
    }

    /// Steps until `done` says so; `false` if that does not come within `patience`.
    pub fn run_until(&mut self, patience: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.clock.elapsed().saturating_add(patience);
        while !done(self) {
            if self.clock.elapsed() >= end {
                return false;
            }
            self.turn();
        }
        true
    }

    /// The near host.
    pub fn near(&mut self) -> &mut N {
        &mut self.near.host
    }

    /// The far host.
    pub fn far(&mut self) -> &mut F {
        &mut self.far.host
    }

    /// Time since the pair was made.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Time that each host has spent in steps that moved a frame, and both in others: near, far, neither.
    pub fn spent(&self) -> [Duration; 3] {
        let ([near, near_idle], [far, far_idle]) = (self.near.spent, self.far.spent);
        [near, far, near_idle.saturating_add(far_idle)]
    }
}

/// The daemon's engine with one region, open to all.
#[allow(missing_debug_implementations, reason = "it is nothing but an engine")]
pub struct Target(Engine<MbufPool, WorkerMemory>);

impl Target {
    /// An engine that serves a region of so many bytes.
    ///
    /// # Errors
    /// There is no memory; or it does not take the listener or the region.
    pub fn new(sizes: &Sizes, region_bytes: usize) -> Result<Self> {
        let config = EngineConfig {
            stack: sizes.stack(1),
            connections_max: sizes.connections,
            grants_max: sizes.connections,
            regions_max: 1,
            seed: SEED,
        };
        let mut engine = Engine::new(config, memory(REGION, region_bytes)?);
        engine.listen(PORT, listen_options(), ListenerService::Region(EndpointConfig::default()))?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let bytes = region_bytes as u64;
        let (name, token) = (REGION.to_owned(), Token::new(b""));
        let region = THE_REGION;
        engine.region_add(RegionEntry { name, region, bytes, access, token, allow: Vec::new() })?;
        Ok(Self(engine))
    }

    /// The engine's counters.
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
    }
}

fn listen_options() -> ListenOptions {
    ListenOptions { backlog: 1024, ..ListenOptions::default() }
}

/// Memory whose every page is there: the first touch of one is the kernel's work, and is not to be measured.
#[must_use]
pub fn touched(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    for (at, byte) in memory.iter_mut().enumerate().step_by(64) {
        *byte = at.to_le_bytes()[1] | 1;
    }
    memory
}

/// What a stack wants to send, at most a burst of it.
#[inline]
fn transmit(stack: &mut Stack<Mbuf>, now: Instant, pool: &mut MbufPool, out: &mut Vec<Mbuf>) {
    stack.poll_transmit(now, pool, &mut |frame| out.push(frame.buf), BURST);
}

/// The far host's address.
fn far_address() -> std::net::SocketAddr {
    let [_, far] = ADDRESSES;
    (far, PORT).into()
}

/// Copies `bytes` behind one another into `region`, from `at` on and again from its start.
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
