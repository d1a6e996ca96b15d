//! Two nodes and the connections between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dataplane::dpdk::Eal;
use dataplane::memory::RegionMemory;
use dataplane::verbs::{Node, NodeOptions};
use dataplane::worker::Clock;
use iwarp_config::Config;
use rdma::verbs::{
    Access, AddressBase, CmEventKind, ConnParam, CqId, MemoryRegion, PdId, QpCap, QpInit, QpNum, RegionId,
};
use rdma::{CrcPolicy, OutOfOrder};

use super::load::{Crc, Load};
use crate::Stopwatch;

/// Where the target listens.
const PORT: u16 = 18_515;
/// Seconds for all connections to come about.
const PATIENCE: f64 = 20.0;

impl End {
    /// Octets placed in the sink so far.
    pub(super) fn placed(&self) -> u64 {
        self.node.verbs().memory().octets(self.sink_region).placed
    }

    /// Share of the time since the node's thread began that went into rounds that moved a frame.
    pub(super) fn busy(&self) -> f64 {
        let (mut busy, mut total) = (0, 0);
        self.node.visit_counters(&mut |layer, name, _, value| match (layer, name) {
            ("worker", "busy_ns") => busy = value,
            ("worker", "total_ns") => total = value,
            _ => {}
        });
        if total > 0 { busy as f64 / total as f64 } else { 0.0 }
    }
}

/// One end of the wire: its objects, and what it knows of the other.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: Node,
    pub(super) qps: Vec<QpNum>,
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    /// What messages come from; nobody else may touch it.
    pub(super) source: MemoryRegion,
    pub(super) source_memory: Arc<RegionMemory>,
    /// What messages go to.
    pub(super) sink: MemoryRegion,
    pub(super) sink_memory: Arc<RegionMemory>,
    /// The number of that region.
    pub(super) sink_region: RegionId,
    /// The peer's two.
    pub(super) peer_source: MemoryRegion,
    pub(super) peer_sink: MemoryRegion,
}

/// What a pair is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) mtu: u16,
    pub(super) crc: Crc,
    pub(super) qps: u16,
    /// Places of each send and each receive queue.
    pub(super) send_depth: u16,
    pub(super) receive_depth: u16,
    pub(super) inline: u16,
    /// What arrives behind a gap is placed at once.
    pub(super) out_of_order: bool,
}

fn address(end: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, if end == 0 { 1 } else { 2 })
}

/// The configuration of an end. What it does not say is as for any program.
pub(super) fn config(load: &Load, mtu: u16, end: usize) -> Result<Config> {
    let Load { packet_buffers, descriptors, window, region, .. } = load;
    let (core, address) = (load.cores.0.get(end).context("an end has a core")?, address(end));
    // Two regions, the buffers of a side, and what DPDK takes.
    let limit = (2 * region) + u64::from(*packet_buffers) * (u64::from(mtu) + 1024) + (256 << 20);
    let text = format!(
        "[memory]\nhugepages = 'prefer'\nhugepage_limit = {limit}\npacket_buffers = {packet_buffers}\n\
         file_prefix = 'iwarp-bench-{}'\n\
         [[port]]\ndriver = 'ring'\nmtu = {mtu}\naddresses = ['{address}/24']\nrx_descriptors = {descriptors}\n\
         tx_descriptors = {descriptors}\n[workers]\ncores = [{core}]\nidle = 'spin'\n\
         [tcp]\nprofile = 'data-center'\nconnections_max = 256\nsend_buffer_bytes = {window}\n\
         receive_window_bytes = {window}\n",
        std::process::id()
    );
    Config::parse("iwarp-bench", &text).map_err(|errors| anyhow!("{}", errors.render(false)))
}

/// Whether there can be such ends.
///
/// # Errors
/// What is wrong with the flags.
pub(super) fn check(load: &Load) -> Result<()> {
    load.mtu.iter().try_for_each(|mtu| config(load, *mtu, 0).map(drop))
}

/// Starts DPDK with memory enough for the largest of the pairs that are to come.
pub(super) fn start_dpdk(load: &Load) -> Result<Eal> {
    let mtu = load.mtu.iter().copied().max().context("an MTU is needed")?;
    let configs = [config(load, mtu, 0)?, config(load, mtu, 1)?];
    Node::start_dpdk(&[&configs[0], &configs[1]])
}

/// What a node is made with.
pub(super) fn options(config: &Config, terms: &Terms) -> NodeOptions {
    let mut options = NodeOptions::new(config);
    options.endpoint.mpa.crc = match terms.crc {
        Crc::On => CrcPolicy::Required,
        Crc::Off => CrcPolicy::IfPeerAsks,
    };
    options.endpoint.out_of_order = if terms.out_of_order { OutOfOrder::Aligned } else { OutOfOrder::Off };
    options.conn.early = terms.out_of_order;
    let queue = terms.send_depth.max(terms.receive_depth);
    options.limits.qp_wr_max = options.limits.qp_wr_max.max(queue);
    options.limits.cqe_max =
        u32::from(queue).saturating_mul(u32::from(terms.qps)).max(options.limits.cqe_max);
    options.limits.inline_max = options.limits.inline_max.max(terms.inline);
    options
}

/// Opens two nodes with a ring between them and connects their queue pairs.
///
/// # Errors
/// Not enough memory; or they do not connect.
pub(super) fn open(eal: &Eal, load: &Load, terms: &Terms) -> Result<[End; 2]> {
    let configs = [config(load, terms.mtu, 0)?, config(load, terms.mtu, 1)?];
    let options = [options(&configs[0], terms), options(&configs[1], terms)];
    let ends = [(&configs[0], &options[0]), (&configs[1], &options[1])];
    let [left, right] = Node::open_pair(eal, ends, &Clock::start())?;
    connect([left, right], load.region, terms, || {})
}

/// Makes the objects of both nodes and connects their queue pairs; `between` is called after each turn of both.
pub(super) fn connect(
    nodes: [Node; 2],
    region: u64,
    terms: &Terms,
    mut between: impl FnMut(),
) -> Result<[End; 2]> {
    let [left, right] = nodes;
    let (mut left, mut right) = (furnish(left, region, terms)?, furnish(right, region, terms)?);
    (left.peer_source, left.peer_sink) = (right.source, right.sink);
    (right.peer_source, right.peer_sink) = (left.source, left.sink);
    let target = SocketAddr::from((address(1), PORT));
    let device = right.node.verbs_mut().device_mut();
    let listener = device.create_id(Some(target))?;
    device.listen(listener, NonZeroU16::new(64).context("a backlog")?, &ConnParam::default())?;
    let watch = Stopwatch::start();
    let (mut established, mut opened, mut accepted) = ([0, 0], 0, 0);
    while established.iter().any(|count| *count < left.qps.len()) {
        // One after the other: queue pair i of one side is connected with queue pair i of the other.
        if opened == established[0] && opened == established[1] {
            let device = left.node.verbs_mut().device_mut();
            let id = device.create_id(None)?;
            let qp = left.qps.get(opened).copied().context("a queue pair for each connection")?;
            device.connect(id, qp, target, &ConnParam::default())?;
            opened += 1;
        }
        for (end, count) in [&mut left, &mut right].into_iter().zip(&mut established) {
            end.node.poll();
            let device = end.node.verbs_mut().device_mut();
            while let Some(event) = device.poll_cm_event() {
                match event.kind {
                    CmEventKind::ConnectRequest { .. } => {
                        let qp =
                            end.qps.get(accepted).copied().context("a queue pair for each connection")?;
                        device.accept(event.id, qp, &[])?;
                        accepted += 1;
                    }
                    CmEventKind::Established { .. } => *count += 1,
                    other => bail!("connecting: {other:?}"),
                }
            }
        }
        between();
        ensure!(watch.seconds() < PATIENCE, "no connection after {PATIENCE} s");
    }
    Ok([left, right])
}

/// Makes regions, queues and queue pairs.
fn furnish(mut node: Node, region: u64, terms: &Terms) -> Result<End> {
    let pd = node.verbs_mut().device_mut().alloc_pd()?;
    let (source, source_memory, _) = register(&mut node, pd, "source", region)?;
    fill(&source_memory);
    let (sink, sink_memory, sink_region) = register(&mut node, pd, "sink", region)?;
    let device = node.verbs_mut().device_mut();
    let places = |depth: u16| u32::from(depth).saturating_mul(u32::from(terms.qps)).max(1);
    let (send_cq, recv_cq) =
        (device.create_cq(places(terms.send_depth))?, device.create_cq(places(terms.receive_depth))?);
    let cap = QpCap {
        max_send_wr: terms.send_depth,
        max_recv_wr: terms.receive_depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: terms.inline,
    };
    let init = QpInit { pd, send_cq, recv_cq, srq: None, cap, sq_sig_all: false };
    let qps = (0..terms.qps).map(|_| device.create_qp(init)).collect::<Result<Vec<_>, _>>()?;
    let (peer_source, peer_sink) = (source, sink);
    Ok(End {
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
    Ok((node.verbs_mut().reg_mr(pd, (region, 0, bytes), AddressBase::Zero, access)?, memory, region))
}

/// Octets that differ from page to page, so that what is placed in the wrong place is noticed.
fn fill(memory: &RegionMemory) {
    const PAGE: usize = 4096;
    let mut page = [0; PAGE];
    for number in 0..memory.bytes().div_ceil(PAGE as u64) {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for octets in page.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            octets.copy_from_slice(&state.to_le_bytes());
        }
        let at = number * PAGE as u64;
        let len = memory.bytes().saturating_sub(at).min(PAGE as u64);
        let _ = page.get(..usize::try_from(len).unwrap_or(0)).is_some_and(|octets| memory.write(at, octets));
    }
}

/// Whether `len` octets at `offset` are the same in both.
pub(super) fn is_same(left: &RegionMemory, right: &RegionMemory, offset: u64, len: u64) -> bool {
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let end = offset + len;
    (offset..end).step_by(1 << 16).all(|at| {
        let len = usize::try_from((end - at).min(1 << 16)).unwrap_or(0);
        match (a.get_mut(..len), b.get_mut(..len)) {
            (Some(a), Some(b)) => left.read(at, a) && right.read(at, b) && a == b,
            _ => false,
        }
    })
}
