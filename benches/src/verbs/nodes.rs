//! Opens the two nodes of a benchmark, creates their objects and connects their queue pairs.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dataplane::dpdk::Eal;
use dataplane::verbs::{Node, NodeOptions};
use iwarp_config::Config;
use iwarp_engine::Clock;
use iwarp_engine::memory::RegionMemory;
use rdma::OutOfOrderPolicy;
use rdma::verbs::{Access, AddressBase, CmEventKind, ConnParam, MemoryRegion, PdId, QpInit, RegionId};

use super::end::fill_pattern;
use super::load::Load;
use super::node::{BenchNode, PairSetup, RemoteRegion, Role};
use super::peer_process::PeerProcess;
use crate::Stopwatch;

/// TCP port that the target listens on.
const PORT: u16 = 18_515;
/// Longest wait for all connections, seconds.
const TIMEOUT_S: f64 = 20.0;

fn address(role: Role) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, if role == Role::Initiator { 1 } else { 2 })
}

/// Returns the configuration of a node with a ring port; other keys have their defaults.
pub(super) fn config(load: &Load, mtu: u16, role: Role) -> Result<Config> {
    configure(load, mtu, role, "driver = 'ring'\n")
}

/// Returns the configuration of a node with a memif port; the target listens on the socket.
fn config_memif(load: &Load, mtu: u16, role: Role, socket: &Path) -> Result<Config> {
    let end = if role == Role::Initiator { "client" } else { "server" };
    let driver = format!("driver = 'memif'\nrole = '{end}'\nsocket = '{}'\n", socket.display());
    configure(load, mtu, role, &driver)
}

fn configure(load: &Load, mtu: u16, role: Role, driver: &str) -> Result<Config> {
    let Load { packet_buffers, descriptors, window, region, congestion, .. } = load;
    let (core, address) = (load.cores.0.get(role.index()).context("the node has no core")?, address(role));
    // Two regions, the packet buffers of a node, and DPDK's own memory.
    let limit = (2 * region) + u64::from(*packet_buffers) * (u64::from(mtu) + 1024) + (256 << 20);
    let text = format!(
        "[memory]\nhugepages = 'prefer'\nhugepage_limit = {limit}\npacket_buffers = {packet_buffers}\n\
         file_prefix = 'iwarp-bench-{}'\n\
         [[port]]\n{driver}mtu = {mtu}\naddresses = ['{address}/24']\nrx_descriptors = {descriptors}\n\
         tx_descriptors = {descriptors}\n[workers]\ncores = [{core}]\nidle = 'spin'\n\
         [tcp]\nprofile = 'data-center'\nconnections_max = 256\nconnections_per_source_max = 256\n\
         send_buffer_bytes = {window}\n\
         receive_window_bytes = {window}\ncongestion = '{congestion}'\n",
        std::process::id()
    );
    Config::parse("iwarp-bench", &text).map_err(|errors| anyhow!("{}", errors.render(false)))
}

/// Checks that the flags make valid configurations.
///
/// # Errors
/// The mistakes in the configuration.
pub(super) fn check(load: &Load) -> Result<()> {
    for mtu in load.mtus() {
        config(load, *mtu, Role::Initiator)?;
    }
    Ok(())
}

/// Starts DPDK with memory for the nodes of these roles at the largest MTU.
pub(super) fn start_dpdk(load: &Load, roles: &[Role]) -> Result<Eal> {
    let mtu = load.mtus().iter().copied().max().context("no MTU is given")?;
    let configs = roles.iter().map(|role| config(load, mtu, *role)).collect::<Result<Vec<_>>>()?;
    Node::start_dpdk(&configs.iter().collect::<Vec<_>>())
}

/// Returns the options of a node.
pub(super) fn options(config: &Config, setup: &PairSetup) -> NodeOptions {
    let mut options = NodeOptions::new(config);
    options.endpoint.mpa.crc = setup.crc;
    options.endpoint.out_of_order =
        if setup.out_of_order { OutOfOrderPolicy::Aligned } else { OutOfOrderPolicy::Off };
    options.conn.out_of_order = setup.out_of_order;
    let queue = setup.send_depth.max(setup.receive_depth);
    options.limits.qp_wr_max = options.limits.qp_wr_max.max(queue);
    options.limits.cqe_max =
        u32::from(queue).saturating_mul(u32::from(setup.qps)).max(options.limits.cqe_max);
    options.limits.inline_max = options.limits.inline_max.max(setup.inline);
    options
}

/// Opens two nodes with a ring between them and connects their queue pairs.
///
/// # Errors
/// There is not enough memory, or the nodes do not connect.
pub(super) fn open(eal: &Eal, load: &Load, setup: &PairSetup) -> Result<[BenchNode; 2]> {
    let configs = [config(load, setup.mtu, Role::Initiator)?, config(load, setup.mtu, Role::Target)?];
    let options = [options(&configs[0], setup), options(&configs[1], setup)];
    let nodes = [(&configs[0], &options[0]), (&configs[1], &options[1])];
    let [left, right] = Node::open_pair(eal, nodes, &Clock::start())?;
    connect([left, right], load.region, setup, || {})
}

/// Opens one node with a memif port and connects its queue pairs with those of the node in the other process.
///
/// # Errors
/// As for [`open`]; or the other process has exited.
pub(super) fn open_one(
    eal: &Eal,
    load: &Load,
    setup: &PairSetup,
    (role, socket): (Role, &Path),
    peer_process: &PeerProcess,
) -> Result<BenchNode> {
    let config = config_memif(load, setup.mtu, role, socket)?;
    // The target opens its port first: it listens on the socket.
    if role == Role::Initiator {
        peer_process.receive::<()>(|| {})?;
    }
    let node = Node::open(eal, &config, &options(&config, setup), &Clock::start())?;
    if role == Role::Target {
        peer_process.send(&())?;
    }
    let mut node = create_objects(node, load.region, setup)?;
    peer_process.send(&[node.source, node.sink].map(RemoteRegion::of))?;
    [node.peer_source, node.peer_sink] = peer_process.receive(|| {})?;
    let watch = Stopwatch::start();
    while !node.node.port().link()?.up {
        ensure!(watch.seconds() < TIMEOUT_S, "no link after {TIMEOUT_S} s");
        std::thread::yield_now();
    }
    connect_queue_pairs([(&mut node, role)], || {})?;
    Ok(node)
}

/// Creates the objects of both nodes and connects their queue pairs; calls `between` after each poll of both.
pub(super) fn connect(
    nodes: [Node; 2],
    region: u64,
    setup: &PairSetup,
    between: impl FnMut(),
) -> Result<[BenchNode; 2]> {
    let [left, right] = nodes;
    let (mut left, mut right) = (create_objects(left, region, setup)?, create_objects(right, region, setup)?);
    (left.peer_source, left.peer_sink) = (RemoteRegion::of(right.source), RemoteRegion::of(right.sink));
    (right.peer_source, right.peer_sink) = (RemoteRegion::of(left.source), RemoteRegion::of(left.sink));
    connect_queue_pairs([(&mut right, Role::Target), (&mut left, Role::Initiator)], between)?;
    Ok([left, right])
}

/// Connects the queue pairs of the nodes that are in this process.
fn connect_queue_pairs<const NODES: usize>(
    nodes: [(&mut BenchNode, Role); NODES],
    mut between: impl FnMut(),
) -> Result<()> {
    let mut nodes = nodes.map(|(node, role)| (node, Connecting { role, begun: 0, established: 0 }));
    for (node, connecting) in &mut nodes {
        connecting.listen(node)?;
    }
    let watch = Stopwatch::start();
    while nodes.iter().any(|(node, connecting)| connecting.established < node.qps.len()) {
        for (node, connecting) in &mut nodes {
            connecting.poll(node)?;
        }
        between();
        ensure!(watch.seconds() < TIMEOUT_S, "no connection after {TIMEOUT_S} s");
    }
    Ok(())
}

/// Progress of a node in connecting its queue pairs.
struct Connecting {
    role: Role,
    /// Connections requested or accepted.
    begun: usize,
    established: usize,
}

impl Connecting {
    fn target() -> SocketAddr {
        (address(Role::Target), PORT).into()
    }

    fn listen(&self, node: &mut BenchNode) -> Result<()> {
        if self.role == Role::Target {
            let device = node.node.device_mut();
            let listener = device.create_id(Some(Self::target()))?;
            device.listen(
                listener,
                NonZeroU16::new(64).context("the backlog is zero")?,
                &ConnParam::default(),
            )?;
        }
        Ok(())
    }

    /// Polls once. Connections are opened one after the other, so that queue pair i connects to queue pair i of the
    /// peer.
    fn poll(&mut self, node: &mut BenchNode) -> Result<()> {
        let next = node.qps.get(self.begun).copied();
        let device = node.node.device_mut();
        if let Some(qp) = next.filter(|_| self.role == Role::Initiator && self.begun == self.established) {
            let id = device.create_id(None)?;
            device.connect(id, qp, Self::target(), &ConnParam::default())?;
            self.begun += 1;
        }
        node.node.poll();
        let device = node.node.device_mut();
        while let Some(event) = device.poll_cm_event() {
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    let qp = node.qps.get(self.begun).copied();
                    device.accept(event.id, qp.context("more connections than queue pairs")?, &[])?;
                    self.begun += 1;
                }
                CmEventKind::Established { .. } => self.established += 1,
                other => bail!("connecting: {other:?}"),
            }
        }
        Ok(())
    }
}

/// Creates regions, completion queues and queue pairs.
fn create_objects(mut node: Node, region: u64, setup: &PairSetup) -> Result<BenchNode> {
    let pd = node.device_mut().alloc_pd()?;
    let (source, source_memory, _) = register(&mut node, pd, "source", region)?;
    fill_pattern(region, &mut |at, bytes| Ok(source_memory.write(at, bytes)?))?;
    let (sink, sink_memory, sink_region) = register(&mut node, pd, "sink", region)?;
    let device = node.device_mut();
    let [send_cqe, recv_cqe] = setup.cqe();
    let (send_cq, recv_cq) = (device.create_cq(send_cqe)?, device.create_cq(recv_cqe)?);
    let cap = setup.cap();
    let init = QpInit { recv_cq, cap, sq_sig_all: false, ..QpInit::new(pd, send_cq) };
    let qps = (0..setup.qps).map(|_| device.create_qp(init)).collect::<Result<Vec<_>, _>>()?;
    // Placeholders until the peer describes its regions.
    let (peer_source, peer_sink) = (RemoteRegion::of(source), RemoteRegion::of(sink));
    Ok(BenchNode {
        node,
        qps,
        send_cq,
        recv_cq,
        source,
        source_memory,
        sink,
        sink_memory,
        sink_region,
        peer_source,
        peer_sink,
    })
}

fn register(
    node: &mut Node,
    pd: PdId,
    name: &str,
    bytes: u64,
) -> Result<(MemoryRegion, Arc<RegionMemory>, RegionId)> {
    let (region, memory) = node.add_region(name, bytes)?;
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    Ok((node.engine_mut().reg_mr(pd, (region, 0, bytes), AddressBase::Zero, access)?, memory, region))
}
