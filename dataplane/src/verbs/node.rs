//! Verbs on a DPDK port: a poll loop in the program's own thread. `docs/verbs-tutorial.md` explains it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use iwarp_config::{Config, Hugepages};
use iwarp_engine::memory::{RegionMemory, WorkerMemory};
use iwarp_engine::{Clock, EngineConfig, LocalPorts};
use rdma::EndpointConfig;
use rdma::verbs::{Device, Limits, RegionId};
use tcp_stack::{ConnOptions, Instant, Segment, Stack, StackConfig};

use crate::dpdk::{Eal, Mbuf, MbufPool, Mempool, RegisteredThread, Reuse};
use crate::port::{Port, PortQueues, PortSpec};
use crate::setup;
use crate::worker::{Mesh, PollLoop, PollResult, PortEngine, Transmit, Visit, WorkerPort};

/// Settings that a program may override after [`NodeOptions::new`] has read them from its configuration.
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// Limits of the device.
    pub limits: Limits,
    /// Settings of RDMA connections.
    pub endpoint: EndpointConfig,
    /// TCP options of connections.
    pub conn: ConnOptions,
}

impl NodeOptions {
    /// Takes the settings of a configuration file.
    pub fn new(config: &Config) -> Self {
        let endpoint = setup::endpoint(config, config.mpa.crc);
        Self { limits: Limits::default(), endpoint, conn: setup::conn_options(config, &endpoint) }
    }
}

/// A port owned by the program, with its verbs objects.
///
/// ```text
/// Node::start_dpdk ─▶ open, or open_pair ─▶ (to its thread) enter ─▶ run, or poll in a loop ─▶ finish
/// ```
/// The configuration file has the daemon's format, with one `[[port]]` and one worker. Of the rest, the node reads the
/// settings of memory, IP, TCP and MPA. The program creates regions and listeners itself.
#[derive(Debug)]
pub struct Node {
    worker_ports: [WorkerPort; 1],
    poll_loop: PollLoop,
    now: Instant,
    port: Port,
    eal: Eal,
    core: u16,
    pages: Hugepages,
    regions: u32,
}

impl Node {
    /// Starts DPDK, once per process, with memory for all nodes that the process will open.
    ///
    /// # Errors
    /// There is not enough memory, a CPU does not exist, or DPDK refuses.
    pub fn start_dpdk(configs: &[&Config]) -> Result<Eal> {
        setup::start_eal(configs).map(|(eal, _)| eal)
    }

    /// Opens the port of a configuration, with its verbs objects.
    ///
    /// # Errors
    /// The configuration does not have exactly one port and one worker, or the port cannot be opened.
    pub fn open(eal: &Eal, config: &Config, options: &NodeOptions, clock: &Clock) -> Result<Self> {
        let plan = Plan::new(eal, config, options)?;
        let opened = Port::open(eal, &plan.spec, &plan.pools)?;
        plan.build(eal, clock, opened, Reuse::Lifo)
    }

    /// Opens two ring ports that are connected to each other, for two threads of one process.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_pair(eal: &Eal, ends: [(&Config, &NodeOptions); 2], clock: &Clock) -> Result<[Self; 2]> {
        let [left, right] = ends;
        let [left, right] = [Plan::new(eal, left.0, left.1)?, Plan::new(eal, right.0, right.1)?];
        let opened = Port::open_pair(eal, [&left.spec, &right.spec], [&left.pools, &right.pools])?;
        let [first, second] = opened;
        let reuse = if left.core == right.core { Reuse::Lifo } else { Reuse::Fifo };
        Ok([left.build(eal, clock, first, reuse)?, right.build(eal, clock, second, reuse)?])
    }

    /// Starts DPDK and opens two nodes with these addresses, connected by a ring in memory: for examples, and for first
    /// steps without a NIC. Both use small pools of packet buffers and run on CPU 0.
    ///
    /// # Errors
    /// As [`Self::start_dpdk`] and [`Self::open`].
    pub fn open_ring(addresses: [&str; 2]) -> Result<[Self; 2]> {
        let config = |name, address| {
            let text = format!(
                "[[port]]\nname = '{name}'\ndriver = 'ring'\naddresses = ['{address}']\n[workers]\ncores = [0]\n\
                 [memory]\nhugepages = 'prefer'\npacket_buffers = 4096\n[tcp]\nconnections_max = 64\n"
            );
            Config::parse(name, &text)
        };
        let [left, right] = addresses;
        let (left, right) = (config("left", left)?, config("right", right)?);
        let eal = Self::start_dpdk(&[&left, &right])?;
        let options = [NodeOptions::new(&left), NodeOptions::new(&right)];
        let [left_options, right_options] = &options;
        Self::open_pair(&eal, [(&left, left_options), (&right, right_options)], &Clock::start())
    }

    /// Opens a ring port connected to `far`, a port that the program drives itself: for a program that relays between
    /// two nodes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_wired(
        eal: &Eal,
        (config, options): (&Config, &NodeOptions),
        (far, far_pools): (&PortSpec, &[Arc<Mempool>]),
        clock: &Clock,
    ) -> Result<(Self, (Port, Vec<PortQueues>))> {
        let plan = Plan::new(eal, config, options)?;
        let [near, far] = Port::open_pair(eal, [&plan.spec, far], [&plan.pools, far_pools])?;
        Ok((plan.build(eal, clock, near, Reuse::Fifo)?, far))
    }

    /// Makes the calling thread the node's thread: pins it to the node's CPU and registers it with DPDK. The program
    /// calls it once and keeps the returned guard until it drops the node. The thread that started DPDK is registered
    /// already and gets `None`.
    ///
    /// # Errors
    /// The CPU does not exist, or DPDK cannot register another thread.
    pub fn enter(&mut self) -> Result<Option<RegisteredThread>> {
        let core = core_affinity::CoreId { id: usize::from(self.core) };
        ensure!(core_affinity::set_for_current(core), "cannot pin a thread to CPU {}", self.core);
        self.poll_loop.begin();
        if crate::dpdk::is_registered() {
            return Ok(None);
        }
        RegisteredThread::new(&self.eal).map(Some).context("DPDK does not take a thread")
    }

    /// Runs one poll iteration: receives a burst, processes it and transmits a burst. Does not sleep.
    pub fn poll(&mut self) -> PollResult {
        let result = self.poll_loop.poll_once(&mut self.worker_ports);
        self.now = result.now;
        result
    }

    /// Polls in a loop and calls `program` after each iteration, until it breaks. Sleeps as configured while neither
    /// the port nor the program has work.
    pub fn run<T>(&mut self, mut program: impl FnMut(&mut Self) -> ControlFlow<T>) -> T {
        loop {
            let result = self.poll();
            if let ControlFlow::Break(end) = program(self) {
                return end;
            }
            if let Some(time) = result.sleep.filter(|_| !self.worker_port().has_output()) {
                self.poll_loop.sleep(&mut self.worker_ports, time);
            }
        }
    }

    /// Polls until all connections have closed, for `timeout` at most, then resets the remaining ones. Returns `true`
    /// if none was reset.
    pub fn finish(&mut self, timeout: Duration) -> bool {
        let until = self.poll_loop.now() + timeout;
        let closed = self.run(|node| {
            if node.engine().connections() == 0 && !node.worker_port().has_output() {
                ControlFlow::Break(true)
            } else if node.now >= until {
                ControlFlow::Break(false)
            } else {
                ControlFlow::Continue(())
            }
        });
        let now = self.poll_loop.now();
        self.worker_port_mut().shut_down(now);
        closed
    }

    /// Reads the clock.
    pub(super) fn time(&self) -> Instant {
        self.poll_loop.now()
    }

    /// Returns the time at which the last iteration began.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Borrows the node's engine, which has the verbs objects.
    pub fn engine(&self) -> &PortEngine {
        self.worker_port().engine()
    }

    /// Borrows the node's engine mutably, which has the verbs objects.
    pub fn engine_mut(&mut self) -> &mut PortEngine {
        self.worker_port_mut().engine_mut()
    }

    /// Borrows the device with all verbs objects (`ibv_context`).
    pub fn device(&self) -> &Device<Segment<Mbuf>> {
        self.engine().device()
    }

    /// Borrows the device with all verbs objects mutably. Its methods for transport adapters are not for programs.
    pub fn device_mut(&mut self) -> &mut Device<Segment<Mbuf>> {
        self.engine_mut().device_mut()
    }

    /// Borrows the node's port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the CPU of the node's thread.
    pub fn core(&self) -> u16 {
        self.core
    }

    /// Calls `f` once per counter of the thread and the port, as the daemon's workers do.
    pub fn visit_counters(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        self.poll_loop.stats().visit(&mut |name, help, value| f("worker", name, help, value));
        self.worker_port().visit(f);
    }

    /// Allocates zeroed memory for a region, on the pages that the configuration asks for, and makes it reachable for
    /// RDMA. The program registers it with [`reg_mr`](iwarp_engine::Engine::reg_mr).
    ///
    /// # Errors
    /// There is not enough memory, or there are `limits.regions_max` regions already.
    pub fn add_region(&mut self, name: &str, bytes: u64) -> Result<(RegionId, Arc<RegionMemory>)> {
        let ordinary_allowed = matches!(self.pages, Hugepages::Prefer);
        let memory = Arc::new(RegionMemory::on_hugepages(name, bytes, ordinary_allowed)?);
        let region = RegionId(self.regions);
        self.engine_mut().memory_mut().attach(region, Arc::clone(&memory))?;
        self.regions = self.regions.saturating_add(1);
        Ok((region, memory))
    }

    fn worker_port(&self) -> &WorkerPort {
        let [worker_port] = &self.worker_ports;
        worker_port
    }

    fn worker_port_mut(&mut self) -> &mut WorkerPort {
        let [worker_port] = &mut self.worker_ports;
        worker_port
    }
}

/// Settings and pools of a node whose port is not open yet.
struct Plan<'a> {
    config: &'a Config,
    options: &'a NodeOptions,
    port: &'a iwarp_config::Port,
    core: u16,
    spec: PortSpec,
    pools: Vec<Arc<Mempool>>,
}

impl<'a> Plan<'a> {
    fn new(eal: &Eal, config: &'a Config, options: &'a NodeOptions) -> Result<Self> {
        let ([port], [core]) = (config.ports.as_slice(), config.workers.cores.as_slice()) else {
            bail!(
                "a program of its own takes one [[port]] and one of workers.cores; there are {} and {}",
                config.ports.len(),
                config.workers.cores.len()
            );
        };
        let (spec, pools) = (setup::port_spec(config, port)?, setup::Pools::new(config, eal, port)?.pools);
        Ok(Self { config, options, port, core: *core, spec, pools })
    }

    fn build(
        self,
        eal: &Eal,
        clock: &Clock,
        (port, queues): (Port, Vec<PortQueues>),
        reuse: Reuse,
    ) -> Result<Node> {
        let Self { config, options, port: port_config, core, spec: _, pools } = self;
        let (Some(PortQueues { rx, tx }), Some(pool)) = (queues.into_iter().next(), pools.first()) else {
            bail!("port {}: no queue", port.name());
        };
        let stack = StackConfig { worker_count: 1, ..setup::stack_on(config, port_config, 0, &port) };
        let engine = EngineConfig {
            conn: options.conn,
            limits: EngineConfig::program_limits(options.limits, config.tcp.connections_max),
            endpoint: options.endpoint,
            stags_max: config.limits.grants_max,
            regions_max: 0,
            contexts_max: 0,
            local_ports: (LocalPorts::new(port.shared().map(|shared| Arc::clone(shared) as _)), 0),
            seed: setup::seed()?,
        };
        let memory = WorkerMemory::new(config.limits.regions_max as usize);
        let pool = MbufPool::of_worker(Arc::clone(pool), reuse);
        let transmit = Transmit::Queue { queue: tx, relayed: Vec::new() };
        let place = Mesh::alone(&LocalPorts::default());
        let poll_loop = PollLoop::new(clock, &config.workers.idle, None);
        Ok(Node {
            worker_ports: [WorkerPort::new(
                PortEngine::new(Stack::new(stack, engine.seed), engine, memory),
                (Some(rx), transmit),
                port.offloads(),
                pool,
                place,
            )],
            now: poll_loop.now(),
            poll_loop,
            port,
            eal: eal.clone(),
            core,
            pages: config.memory.hugepages,
            regions: 0,
        })
    }
}
