//! Verbs on a DPDK port: a poll loop in the program's own thread.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use iwarp_config::{Config, Hugepages};
use rdma::verbs::{Limits, RegionId};
use rdma::{EndpointConfig, OutOfOrderPolicy};
use tcp_stack::{ConnOptions, Instant, Keepalive, StackConfig};

use super::{Verbs, VerbsConfig};
use crate::dpdk::{Eal, MbufPool, Mempool, RegisteredThread};
use crate::memory::{RegionMemory, WorkerMemory};
use crate::port::{Port, PortQueues, PortSpec};
use crate::setup;
use crate::worker::{Clock, PollLoop, PollResult, Transmit, Visit, WorkerPort, mesh};

/// Verbs over DPDK's packet buffers and region memory.
pub type PortVerbs = Verbs<MbufPool, WorkerMemory>;

/// What a program may want otherwise than its configuration file has it.
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// What the device has.
    pub limits: Limits,
    /// What connections are made with.
    pub endpoint: EndpointConfig,
    /// What their TCP is like.
    pub conn: ConnOptions,
}

impl NodeOptions {
    /// As the file says.
    pub fn new(config: &Config) -> Self {
        let tcp = &config.tcp;
        let keepalive = tcp.keepalive_s.map(|idle| Keepalive {
            idle_ms: idle.saturating_mul(1000),
            interval_ms: tcp.keepalive_interval_s.saturating_mul(1000),
            probes: tcp.keepalive_probes,
        });
        let endpoint = setup::endpoint(config, config.mpa.crc);
        let conn = ConnOptions {
            keepalive,
            user_timeout_ms: tcp.user_timeout_ms,
            out_of_order: endpoint.out_of_order != OutOfOrderPolicy::Off,
            ..ConnOptions::default()
        };
        Self { limits: Limits::default(), endpoint, conn }
    }
}

/// A port of the program's own, with the objects of verbs on it.
///
/// ```text
/// Node::start_dpdk ─▶ open, or open_pair ─▶ (to its thread) enter ─▶ run, or poll again and again ─▶ finish
/// ```
/// Its configuration file is that of the daemon, with one `[[port]]` and one worker; of the rest it takes what concerns
/// memory, IP, TCP and MPA. Regions and listeners are the program's own.
#[derive(Debug)]
pub struct Node {
    worker_ports: [WorkerPort<PortVerbs>; 1],
    poll_loop: PollLoop,
    now: Instant,
    port: Port,
    eal: Eal,
    core: u16,
    pages: Hugepages,
    regions: u32,
}

impl Node {
    /// Starts DPDK, once per process, with memory enough for all nodes that are to be opened.
    ///
    /// # Errors
    /// There is not enough memory, a CPU does not exist, or DPDK refuses.
    pub fn start_dpdk(configs: &[&Config]) -> Result<Eal> {
        setup::start_eal(configs).map(|(eal, _)| eal)
    }

    /// Opens the port of a configuration.
    ///
    /// # Errors
    /// The configuration has not one port and one worker, or the port cannot be had.
    pub fn open(eal: &Eal, config: &Config, options: &NodeOptions, clock: &Clock) -> Result<Self> {
        let plan = Plan::new(eal, config, options)?;
        let opened = Port::open(eal, &plan.spec, &plan.pools)?;
        plan.carry_out(eal, clock, opened)
    }

    /// Opens two ring ports with a wire between them, for two threads of one process.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_pair(eal: &Eal, ends: [(&Config, &NodeOptions); 2], clock: &Clock) -> Result<[Self; 2]> {
        let [left, right] = ends;
        let [left, right] = [Plan::new(eal, left.0, left.1)?, Plan::new(eal, right.0, right.1)?];
        let opened = Port::open_pair(eal, [&left.spec, &right.spec], [&left.pools, &right.pools])?;
        let [first, second] = opened;
        Ok([left.carry_out(eal, clock, first)?, right.carry_out(eal, clock, second)?])
    }

    /// Opens a ring port whose wire ends at a port of the program's own, `far` with its pools: for a program that stands
    /// between two nodes.
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
        Ok((plan.carry_out(eal, clock, near)?, far))
    }

    /// Makes the calling thread the one of this node: pins it to the node's CPU, and registers it with DPDK. To be
    /// called once, and what it returns to be kept until the node is dropped. The thread that started DPDK is registered
    /// already: `None`.
    ///
    /// # Errors
    /// The CPU does not exist, or DPDK has no place for another thread.
    pub fn enter(&mut self) -> Result<Option<RegisteredThread>> {
        let core = core_affinity::CoreId { id: usize::from(self.core) };
        ensure!(core_affinity::set_for_current(core), "cannot pin a thread to CPU {}", self.core);
        self.poll_loop.begin();
        if crate::dpdk::is_registered() {
            return Ok(None);
        }
        RegisteredThread::new(&self.eal).map(Some).context("DPDK does not take a thread")
    }

    /// One round: a burst in, a step, a burst out. Does not sleep.
    pub fn poll(&mut self) -> PollResult {
        let result = self.poll_loop.poll_once(&mut self.worker_ports);
        self.now = result.now;
        result
    }

    /// Polls, with a call of `program` after each round, until that breaks. Sleeps as the configuration says when
    /// neither the port nor the program had anything to do.
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

    /// Lets connections that the program has ended close in good order, for so long at most; resets the others.
    /// `true`: none had to be reset.
    pub fn finish(&mut self, patience: Duration) -> bool {
        let until = self.poll_loop.now() + patience;
        let closed = self.run(|node| {
            if node.verbs().connections() == 0 && !node.worker_port().has_output() {
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

    /// When the last round began.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The objects of verbs.
    pub fn verbs(&self) -> &PortVerbs {
        self.worker_port().engine()
    }

    /// The objects of verbs.
    pub fn verbs_mut(&mut self) -> &mut PortVerbs {
        self.worker_port_mut().engine_mut()
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The CPU that it is for.
    pub fn core(&self) -> u16 {
        self.core
    }

    /// Calls back once per counter, of the thread and the port, as the daemon's workers do.
    pub fn visit_counters(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        self.poll_loop.stats().visit(&mut |name, help, value| f("worker", name, help, value));
        self.worker_port().visit(f);
    }

    /// Makes the memory of a region, zeroed, and lets the RDMA engine reach it. Pages are those that the
    /// configuration asks for. To be registered with [`Verbs::reg_mr`].
    ///
    /// # Errors
    /// There is no memory for it, or there are `limits.regions_max` of them.
    pub fn add_region(&mut self, name: &str, bytes: u64) -> Result<(RegionId, Arc<RegionMemory>)> {
        let ordinary_too = matches!(self.pages, Hugepages::Prefer);
        let memory = Arc::new(RegionMemory::on_hugepages(name, bytes, ordinary_too)?);
        let region = RegionId(self.regions);
        self.verbs_mut().memory_mut().attach(region, Arc::clone(&memory))?;
        self.regions = self.regions.saturating_add(1);
        Ok((region, memory))
    }

    fn worker_port(&self) -> &WorkerPort<PortVerbs> {
        let [worker_port] = &self.worker_ports;
        worker_port
    }

    fn worker_port_mut(&mut self) -> &mut WorkerPort<PortVerbs> {
        let [worker_port] = &mut self.worker_ports;
        worker_port
    }
}

/// A node before its port is open.
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
        let (spec, pools) = (setup::port_spec(config, port), setup::Pools::new(config, eal, port)?.pools);
        Ok(Self { config, options, port, core: *core, spec, pools })
    }

    fn carry_out(self, eal: &Eal, clock: &Clock, (port, queues): (Port, Vec<PortQueues>)) -> Result<Node> {
        let Self { config, options, port: port_config, core, spec: _, pools } = self;
        let (Some(PortQueues { rx, tx }), Some(pool)) = (queues.into_iter().next(), pools.first()) else {
            bail!("port {}: no queue", port.name());
        };
        let verbs = VerbsConfig {
            stack: StackConfig { worker_count: 1, ..setup::stack_on(config, port_config, 0, &port) },
            conn: options.conn,
            limits: options.limits,
            endpoint: options.endpoint,
            stags_max: config.limits.grants_max,
            seed: setup::seed()?,
        };
        let memory = WorkerMemory::new(config.limits.regions_max as usize);
        let pool = MbufPool::of_worker(Arc::clone(pool));
        let transmit = Transmit::Queue { queue: tx, relayed: Vec::new() };
        let place = mesh(1, false).pop().context("no place for a worker")?;
        let poll_loop = PollLoop::new(clock, &config.workers.idle);
        Ok(Node {
            worker_ports: [WorkerPort::new(Verbs::new(verbs, memory), Some(rx), transmit, pool, place)],
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
