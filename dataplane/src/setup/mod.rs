//! Builds the daemon's runtime from a checked configuration: DPDK, ports, packet buffers, workers. `daemon` runs it;
//! `verbs::Node` uses the same functions for one port.

mod protocols;

use std::io;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use iwarp_config::{Config, Driver, Hugepages, Machine, MemoryPlan, PortRange, memory_plan};
use iwarp_engine::memory::{HUGEPAGE_BYTES, Pages, WorkerMemory};
use iwarp_engine::{
    Clock, EngineConfig, ListenerSetup, LocalPorts, NoticeReader, NumberedConfig, notice_ring,
};
use iwarp_shared_verbs::methods::DeviceInfo;
use rdma::verbs::QP_WORKERS_MAX;
use tcp_stack::Stack;

use crate::admin::{PortEntry, Regions, Watched, WorkerHandle};
use crate::dpdk::{
    Eal, EalConfig, EalMemory, Iova, MbufPool, Mempool, MempoolConfig, PoolError, Reuse, WORKER_CACHE,
};
use crate::port::{Port, PortQueues, PortSpec, Shared};
use crate::worker::{
    Bell, CommandSender, Commands, PollLoop, PortEngine, Published, Relays, Transmit, Worker, WorkerPort,
    command_ring, mesh,
};
pub(crate) use protocols::{conn_options, endpoint, listener_setup, stack_on, stags_max};

/// Capacity of a worker's command ring.
const COMMANDS: usize = 64;

/// All objects of the daemon, before the first worker runs.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) eal: Eal,
    pub(crate) regions: Regions,
    pub(crate) degraded: Vec<String>,
    pub(crate) ports: Vec<PortEntry>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) worker_handles: Vec<WorkerHandle>,
    /// Events of each worker and port.
    pub(crate) notices: Vec<NoticeReader>,
}

/// Builds the runtime of the daemon.
///
/// # Errors
/// There is not enough memory, or DPDK refuses to start or to open a port. Everything built until then is released.
pub(crate) fn build(config: &Config, clock: &Clock) -> Result<Runtime> {
    let (eal, mut degraded) = start_eal(&[config])?;
    let rings = config.workers.cores.iter().map(|_| command_ring(COMMANDS)).collect::<io::Result<Vec<_>>>();
    let rings = rings.context("cannot create the command ring of a worker")?;
    let bells: Vec<_> = rings.iter().map(|(_, commands)| Arc::new(Bell::new(commands.wake()))).collect();
    let mut worker_ports: Vec<Vec<WorkerPort>> = rings.iter().map(|_| Vec::new()).collect();
    let (mut ports, mut notices) = (Vec::new(), Vec::new());
    let pools = config.ports.iter().map(|port| Pools::new(config, &eal, port)).collect::<Result<Vec<_>>>()?;
    let opened = open(config, &eal, &pools)?;
    for ((index, port), (Pools { pools, degraded: short }, (spec, (opened, queues)))) in
        config.ports.iter().enumerate().zip(pools.into_iter().zip(opened))
    {
        degraded.extend(short);
        let entry = entry(spec, port, pools, opened);
        let made = make_worker_ports(config, index, &entry, (queues, &bells))?;
        for ((worker, worker_ports), mut worker_port) in worker_ports.iter_mut().enumerate().zip(made) {
            let (ring, reader) = notice_ring(worker, index);
            worker_port.engine_mut().set_notices(ring);
            notices.push(reader);
            worker_ports.push(worker_port);
        }
        ports.push(entry);
    }
    let (workers, worker_handles) = make_workers(config, worker_ports, rings, clock);
    Ok(Runtime {
        eal,
        regions: regions(config, &memory_plan(config)),
        degraded,
        ports,
        workers,
        worker_handles,
        notices,
    })
}

/// Creates an empty set of regions, limited to the memory that regions may take.
fn regions(config: &Config, plan: &MemoryPlan) -> Regions {
    let configured: u64 = config
        .regions
        .iter()
        .map(|region| region.bytes.checked_next_multiple_of(HUGEPAGE_BYTES).unwrap_or(u64::MAX))
        .sum();
    let bytes_max = plan.region_room_bytes().map(|room| room.saturating_add(configured));
    Regions::new(config.limits.regions_max, ordinary_allowed(config), bytes_max)
}

/// Checks the free hugepages against the need of all configurations. Returns a message if there are too few and every
/// configuration accepts ordinary pages; fails if one does not.
fn check_hugepages(configs: &[&Config]) -> Result<Option<String>> {
    let huge = iwarp_engine::memory::hugepages();
    let needed = configs.iter().map(|config| memory_plan(config).hugepages()).sum::<u64>();
    let free = huge.available();
    if free >= needed {
        return Ok(None);
    }
    let short = format!("{needed} hugepages of 2 MiB are needed and {free} are free");
    if configs.iter().all(|config| ordinary_allowed(config)) {
        return Ok(Some(short));
    }
    bail!(
        "{short}. Reserve them (sysctl vm.nr_hugepages={}), or allow ordinary pages with `hugepages = \"prefer\"` \
         in [memory]",
        huge.total + needed - free
    )
}

/// Returns true if the configuration accepts ordinary pages when there are too few hugepages.
fn ordinary_allowed(config: &Config) -> bool {
    matches!(config.memory.hugepages, Hugepages::Prefer)
}

/// Chooses the pages of DPDK's own memory. DPDK starts once and cannot fall back, so it gets hugepages only if a PCI
/// device needs them. Packet buffers of other ports and regions are allocated one by one, each on the pages available.
fn eal_memory(configs: &[&Config]) -> Result<(EalMemory, Vec<String>)> {
    let short = check_hugepages(configs)?;
    let mib = configs.iter().map(|config| ordinary_mib(config)).fold(0, u32::saturating_add);
    let pci = configs.iter().flat_map(|config| &config.ports).any(|port| port.driver.is_pci());
    Ok(match short {
        None if pci => (EalMemory::Hugepages, Vec::new()),
        Some(short) if pci => {
            tracing::warn!("{short}: going on with ordinary pages");
            (EalMemory::Ordinary { mib }, vec![format!("ordinary pages: {short}")])
        }
        None | Some(_) => (EalMemory::Ordinary { mib }, Vec::new()),
    })
}

/// Starts DPDK for several configurations of one process. Also returns a message for each setting that it could not
/// meet.
pub(crate) fn start_eal(configs: &[&Config]) -> Result<(Eal, Vec<String>)> {
    let (memory, degraded) = eal_memory(configs)?;
    let online = Machine::this().cores();
    let mut cores = configs.iter().flat_map(|config| &config.workers.cores);
    if let Some(core) = cores.find(|core| !online.contains(core)) {
        bail!("workers.cores: CPU {core} is not online; this machine has {online:?}");
    }
    let control = configs.iter().filter_map(|config| config.workers.control_core);
    if let Some(core) = control.into_iter().find(|core| !online.contains(core)) {
        bail!("workers.control_core: CPU {core} is not online; this machine has {online:?}");
    }
    let ports = configs.iter().flat_map(|config| &config.ports);
    let pci: Vec<String> = ports
        .filter_map(|port| match &port.driver {
            Driver::Pci { address } => Some(address.clone()),
            _ => None,
        })
        .collect();
    let eal = EalConfig {
        control_cpus: control_cpus(configs, &online),
        file_prefix: configs.first().map(|config| config.memory.file_prefix.clone()).unwrap_or_default(),
        memory,
        iova: if pci.is_empty() { Iova::Virtual } else { Iova::Auto },
        pci,
        telemetry: true,
    };
    Ok((Eal::start(&eal).context("DPDK did not start")?, degraded))
}

/// Returns the MiB that DPDK's own memory needs on ordinary pages: 64 MiB, and for each pool the threads' caches and a
/// ring of pointers, plus, for a PCI device, the buffers, each on pages of its own.
fn ordinary_mib(config: &Config) -> u32 {
    let (buffers, workers) = (u64::from(pool_buffers(config)), config.workers.cores.len() as u64);
    let object = (u64::from(config.data_room_bytes()) + 256).next_multiple_of(4096);
    let pool = |port: &iwarp_config::Port| {
        let each = if port.driver.is_pci() { object + 32 } else { 32 };
        buffers.saturating_mul(each).saturating_add(2 << 20).saturating_mul(workers)
    };
    let bytes = config.ports.iter().map(pool).fold(64 << 20, u64::saturating_add);
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX)
}

/// Returns the CPUs of all threads that are not workers: the configured core, else the CPUs without a worker, else all.
fn control_cpus(configs: &[&Config], online: &[u16]) -> Vec<u16> {
    if let Some(core) = configs.iter().find_map(|config| config.workers.control_core) {
        return vec![core];
    }
    let is_worker = |cpu: &u16| configs.iter().any(|config| config.workers.cores.contains(cpu));
    let others: Vec<u16> = online.iter().copied().filter(|cpu| !is_worker(cpu)).collect();
    if others.is_empty() { online.to_vec() } else { others }
}

/// Returns the number of packet buffers of one pool.
fn pool_buffers(config: &Config) -> u32 {
    let pools = u32::try_from(config.workers.cores.len() * config.ports.len()).unwrap_or(u32::MAX);
    config.memory.packet_buffers / pools.max(1)
}

/// Packet buffer pools of one port.
#[derive(Debug)]
pub(crate) struct Pools {
    /// One pool per worker.
    pub(crate) pools: Vec<Arc<Mempool>>,
    /// Message if the pools are on ordinary pages although hugepages were preferred.
    pub(crate) degraded: Option<String>,
}

impl Pools {
    /// Allocates the pools of a port: in DPDK's memory for a PCI device, else on hugepages, or on ordinary pages if
    /// there are too few and the configuration accepts them.
    pub(crate) fn new(config: &Config, eal: &Eal, port: &iwarp_config::Port) -> Result<Self> {
        let (count, data_room) = (pool_buffers(config), config.data_room_bytes());
        let pool = MempoolConfig { count, cache: WORKER_CACHE, data_room };
        let mut degraded = None;
        let mut make = || match Mempool::contiguous(eal, pool, Pages::Huge) {
            Err(PoolError::Memory(short)) if ordinary_allowed(config) => {
                degraded = Some(format!("ordinary pages: packet buffers of port {}: {short}", port.name));
                Mempool::contiguous(eal, pool, Pages::Ordinary)
            }
            made => made,
        };
        let pools = (0..config.workers.cores.len()).map(|_| {
            let made =
                if port.driver.is_pci() { Mempool::new(eal, pool).map_err(PoolError::from) } else { make() };
            Ok(Arc::new(made?))
        });
        let pools = pools.collect::<Result<_>>().with_context(|| {
            format!("no memory for {count} packet buffers of {data_room} bytes per worker and port")
        })?;
        if let Some(degraded) = &degraded {
            tracing::warn!("{degraded}");
        }
        Ok(Self { pools, degraded })
    }
}

/// A port that is open, and its queues.
type Opened = (Port, Vec<PortQueues>);

/// Opens all ports, each with a receive and a transmit queue per worker, or as many as it supports. Two ring ports in
/// turn are connected to each other; the last of an odd number receives what it sends.
fn open(config: &Config, eal: &Eal, pools: &[Pools]) -> Result<Vec<(PortSpec, Opened)>> {
    let specs = config.ports.iter().map(|port| port_spec(config, port)).collect::<Result<Vec<_>>>()?;
    let mut opened: Vec<Option<Opened>> = specs.iter().map(|_| None).collect();
    let rings = (0..).zip(&specs).zip(pools).filter(|((_, spec), _)| matches!(spec.driver, Driver::Ring));
    let rings: Vec<((usize, _), _)> = rings.collect();
    for [((near, near_spec), near_pools), ((far, far_spec), far_pools)] in rings.as_chunks().0 {
        let ends = Port::open_pair(eal, [near_spec, far_spec], [&near_pools.pools, &far_pools.pools])?;
        for (index, end) in [near, far].into_iter().zip(ends) {
            opened.get_mut(*index).context("a port without a place")?.replace(end);
        }
    }
    drop(rings);
    let places = opened.into_iter().zip(specs.into_iter().zip(pools));
    places
        .map(|(opened, (spec, Pools { pools, .. }))| {
            let opened = opened.map_or_else(|| Port::open_or_wait(eal, &spec, pools), Ok)?;
            Ok((spec, opened))
        })
        .collect()
}

/// Describes an open port to the control side.
fn entry(spec: PortSpec, port: &iwarp_config::Port, pools: Vec<Arc<Mempool>>, opened: Port) -> PortEntry {
    let queues = opened.queues();
    if usize::from(queues) < pools.len() {
        tracing::info!(port = spec.name, queues, "fewer queues than workers: steering in software");
    }
    let addresses = addresses_of(port, &opened);
    let (on_loss, watched) = (port.on_loss, Watched::default());
    PortEntry { port: opened, addresses, queues, pools, spec, on_loss, watched }
}

/// Returns the networks of a port: as configured, or the kernel's.
fn addresses_of(port: &iwarp_config::Port, opened: &Port) -> Vec<IpNet> {
    opened
        .shared()
        .map_or_else(|| port.addresses.nets().collect(), |shared| shared.addresses().nets().collect())
}

/// Returns the specification of a configured port. That of a port with the kernel's addresses reserves its source ports
/// there.
///
/// # Errors
/// The interface has no address, or no source port is free.
pub(crate) fn port_spec(config: &Config, port: &iwarp_config::Port) -> Result<PortSpec> {
    let rx_interrupt = !matches!(config.workers.idle, iwarp_config::Idle::Spin);
    let spec = PortSpec { rx_interrupt, ..PortSpec::from(port) };
    let (true, Some(interface)) = (port.addresses.are_kernels, port.driver.interface()) else {
        return Ok(spec);
    };
    let source_ports = port.source_ports.unwrap_or(PortRange::BESIDE_KERNEL);
    let shared = Shared::of(interface, source_ports);
    let shared = shared.with_context(|| {
        format!(
            "port {}: no addresses of the kernel on {interface}, or no source port of {source_ports}",
            port.name
        )
    })?;
    let mtu = shared.addresses().mtu.min(spec.mtu);
    Ok(PortSpec { mtu, shared: Some(Arc::new(shared)), ..spec })
}

/// Creates each worker's share of a port. Workers beyond the number of queues transmit through worker 0. A port that is
/// not open yet has no queues.
fn make_worker_ports(
    config: &Config,
    index: usize,
    entry: &PortEntry,
    (queues, bells): (Vec<PortQueues>, &[Arc<Bell>]),
) -> Result<Vec<WorkerPort>> {
    let workers = entry.pools.len();
    let own = usize::from(entry.queues);
    let Relays { mut to_first, from_others } = Relays::new(workers.saturating_sub(own));
    let mut queues = queues.into_iter();
    let own = (0..own).map(|_| {
        let relayed = std::mem::take(&mut to_first);
        match queues.next() {
            Some(PortQueues { rx, tx }) => (Some(rx), Transmit::Queue { queue: tx, relayed }),
            None => (None, Transmit::absent(relayed)),
        }
    });
    let relays = from_others.into_iter().map(|ring| (None, Transmit::Relay(ring)));
    let local_ports = LocalPorts::new(entry.port.shared().map(|shared| Arc::clone(shared) as _));
    let places = mesh(bells, entry.port.rss().is_some(), &local_ports);
    let offloads = entry.port.offloads();
    let make = |(((worker, pool), place), ends)| {
        let pool = MbufPool::of_worker(Arc::clone(pool), Reuse::Lifo);
        Ok(WorkerPort::new(
            engine(config, (index, &local_ports), worker, &entry.port)?,
            ends,
            offloads,
            pool,
            place,
        ))
    };
    (0..).zip(&entry.pools).zip(places).zip(own.chain(relays)).map(make).collect()
}

/// Creates the protocols of one port on one worker, with its listeners open.
fn engine(
    config: &Config,
    (index, local_ports): (usize, &LocalPorts),
    worker: u16,
    port: &Port,
) -> Result<PortEngine> {
    let seed = seed()?;
    let endpoint_default = endpoint(config, config.mpa.crc);
    let spec = config.ports.get(index).context("a port without a configuration")?;
    let memory_regions: u32 = config.applications.as_ref().map_or(0, |table| table.memory_regions_max.into());
    let mut engine = PortEngine::new(
        Stack::new(stack_on(config, spec, worker, port), seed),
        EngineConfig {
            conn: conn_options(config, &endpoint_default),
            limits: protocols::limits(config),
            endpoint: endpoint_default,
            stags_max: stags_max(config),
            regions_max: config.limits.regions_max,
            local_ports: (local_ports.clone(), worker),
            contexts_max: config.applications.as_ref().map_or(0, |table| table.contexts_max.into()),
            seed,
        },
        WorkerMemory::new(config.limits.regions_max.saturating_add(memory_regions) as usize),
    );
    connect_by_number(config, (spec, port), worker, &mut engine)?;
    for listener in &config.listeners {
        let ListenerSetup { port, options, service } = listener_setup(config, listener);
        engine.listen(port, options, service).with_context(|| format!("listener {port}"))?;
    }
    Ok(engine)
}

/// Lets the queue pairs of programs be connected by number, if the configuration has a port for it.
fn connect_by_number(
    config: &Config,
    (spec, open): (&iwarp_config::Port, &Port),
    worker: u16,
    engine: &mut PortEngine,
) -> Result<()> {
    let table = config.applications.as_ref().filter(|table| table.queue_pair_port != 0);
    // A number names no further worker. Programs of those have connections by address alone.
    let worker = u8::try_from(worker).ok().filter(|worker| u16::from(*worker) < QP_WORKERS_MAX);
    let Some((table, worker)) = table.zip(worker) else { return Ok(()) };
    let peers = match table.queue_pair_peers.as_slice() {
        [] => addresses_of(spec, open).iter().map(IpNet::trunc).collect(),
        some => some.to_vec(),
    };
    let port = table.queue_pair_port;
    let mtu = open.mtu();
    engine.connect_by_number(NumberedConfig { port, worker, peers: Some(peers), mtu });
    let listening = engine.listen_by_number(endpoint(config, config.mpa.crc));
    listening.with_context(|| format!("applications.queue_pair_port {port}"))
}

/// Returns what a program sees of a port.
pub(crate) fn device_info(entry: &PortEntry) -> DeviceInfo {
    let name = entry.port.name().to_owned();
    DeviceInfo { name, addresses: entry.addresses.clone(), mtu: entry.spec.mtu }
}

/// Draws the random seed of one engine.
pub(crate) fn seed() -> Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("no randomness from the system")?;
    Ok(seed)
}

/// Creates the workers and the control side's handle of each.
fn make_workers(
    config: &Config,
    worker_ports: Vec<Vec<WorkerPort>>,
    rings: Vec<(CommandSender, Commands)>,
    clock: &Clock,
) -> (Vec<Worker>, Vec<WorkerHandle>) {
    type Made<'c> = ((Vec<WorkerPort>, (CommandSender, Commands)), &'c u16);
    let make = |(index, ((ports, (sender, commands)), core)): (usize, Made<'_>)| {
        let poll_loop = PollLoop::new(clock, &config.workers.idle, Some(commands.wake()));
        let published = Arc::new(Published::new(&(poll_loop.stats(), ports.as_slice())));
        let (handle, jobs) = (WorkerHandle::new(*core, Arc::clone(&published), sender), Default::default());
        (Worker { index, core: *core, ports, commands, published, poll_loop, jobs }, handle)
    };
    worker_ports.into_iter().zip(rings).zip(&config.workers.cores).enumerate().map(make).unzip()
}

/// Formats the networks of a port, for messages.
pub(crate) fn addresses(entry: &PortEntry) -> String {
    entry.addresses.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cores: &str) -> Config {
        let text = format!(
            "[[port]]\nname = \"p\"\ndriver = \"ring\"\naddresses = [\"10.0.0.1/24\"]\n[workers]\ncores = {cores}\n"
        );
        Config::parse("test.toml", &text).unwrap()
    }

    #[test]
    fn control_threads_keep_off_the_workers_cores_where_they_can() {
        assert_eq!(control_cpus(&[&config("[1]")], &[0, 1, 2]), [0, 2]);
        assert_eq!(control_cpus(&[&config("[0, 1]")], &[0, 1]), [0, 1]);
    }
}
