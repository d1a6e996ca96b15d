//! Two nodes and the connections between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
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
use rdma::wire::Stag;
use rdma::{CrcPolicy, OutOfOrderPolicy};
use serde::{Deserialize, Serialize};

use super::link::Side;
use super::load::{Crc, Load};
use super::partner::Partner;
use crate::Stopwatch;

/// Where the target listens.
const PORT: u16 = 18_515;
/// Seconds for all connections to come about.
const PATIENCE: f64 = 20.0;

impl End {
    /// Bytes placed in the sink so far.
    pub(super) fn placed(&self) -> u64 {
        self.node.verbs().memory().bytes(self.sink_region).placed
    }

    /// Nanoseconds of this node's thread so far: in rounds that moved a frame, and in all.
    pub(super) fn spent_ns(&self) -> [u64; 2] {
        let mut spent = [0; 2];
        let [busy, total] = &mut spent;
        self.node.visit_counters(&mut |layer, name, _, value| match (layer, name) {
            ("worker", "busy_ns") => *busy = value,
            ("worker", "total_ns") => *total = value,
            _ => {}
        });
        spent
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
    pub(super) peer_source: Remote,
    pub(super) peer_sink: Remote,
}

/// A region of the peer's.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Remote {
    pub(super) addr: u64,
    rkey: u32,
}

impl Remote {
    fn of(region: MemoryRegion) -> Self {
        Self { addr: region.addr, rkey: region.rkey.0 }
    }

    /// Its key.
    pub(super) fn rkey(self) -> Stag {
        Stag(self.rkey)
    }
}

/// What a pair is made with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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

fn address(side: Side) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, if side == Side::Near { 1 } else { 2 })
}

/// The configuration of an end with a ring port. What it does not say is as for any program.
pub(super) fn config(load: &Load, mtu: u16, side: Side) -> Result<Config> {
    configure(load, mtu, side, "driver = 'ring'\n")
}

/// The same with a memif port: the target listens on the socket.
fn config_memif(load: &Load, mtu: u16, side: Side, socket: &Path) -> Result<Config> {
    let role = if side == Side::Near { "client" } else { "server" };
    configure(
        load,
        mtu,
        side,
        &format!("driver = 'memif'\nrole = '{role}'\nsocket = '{}'\n", socket.display()),
    )
}

fn configure(load: &Load, mtu: u16, side: Side, driver: &str) -> Result<Config> {
    let Load { packet_buffers, descriptors, window, region, .. } = load;
    let (core, address) = (load.cores.0.get(side.index()).context("an end has a core")?, address(side));
    // Two regions, the buffers of a side, and what DPDK takes.
    let limit = (2 * region) + u64::from(*packet_buffers) * (u64::from(mtu) + 1024) + (256 << 20);
    let text = format!(
        "[memory]\nhugepages = 'prefer'\nhugepage_limit = {limit}\npacket_buffers = {packet_buffers}\n\
         file_prefix = 'iwarp-bench-{}'\n\
         [[port]]\n{driver}mtu = {mtu}\naddresses = ['{address}/24']\nrx_descriptors = {descriptors}\n\
         tx_descriptors = {descriptors}\n[workers]\ncores = [{core}]\nidle = 'spin'\n\
         [tcp]\nprofile = 'data-center'\nconnections_max = 256\nconnections_per_source_max = 256\n\
         send_buffer_bytes = {window}\n\
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
    for mtu in load.mtus() {
        config(load, *mtu, Side::Near)?;
    }
    Ok(())
}

/// Starts DPDK with memory enough for these sides of the largest of the pairs that are to come.
pub(super) fn start_dpdk(load: &Load, sides: &[Side]) -> Result<Eal> {
    let mtu = load.mtus().iter().copied().max().context("an MTU is needed")?;
    let configs = sides.iter().map(|side| config(load, mtu, *side)).collect::<Result<Vec<_>>>()?;
    Node::start_dpdk(&configs.iter().collect::<Vec<_>>())
}

/// What a node is made with.
pub(super) fn options(config: &Config, terms: &Terms) -> NodeOptions {
    let mut options = NodeOptions::new(config);
    options.endpoint.mpa.crc = match terms.crc {
        Crc::On => CrcPolicy::Required,
        Crc::Off => CrcPolicy::IfPeerAsks,
    };
    options.endpoint.out_of_order =
        if terms.out_of_order { OutOfOrderPolicy::Aligned } else { OutOfOrderPolicy::Off };
    options.conn.out_of_order = terms.out_of_order;
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
    let configs = [config(load, terms.mtu, Side::Near)?, config(load, terms.mtu, Side::Far)?];
    let options = [options(&configs[0], terms), options(&configs[1], terms)];
    let ends = [(&configs[0], &options[0]), (&configs[1], &options[1])];
    let [left, right] = Node::open_pair(eal, ends, &Clock::start())?;
    connect([left, right], load.region, terms, || {})
}

/// Opens one node with a memif port and connects its queue pairs with those of the end in the other process.
///
/// # Errors
/// As [`open`]; the other process is gone.
pub(super) fn open_one(
    eal: &Eal,
    load: &Load,
    terms: &Terms,
    (side, socket): (Side, &Path),
    partner: &Partner,
) -> Result<End> {
    let config = config_memif(load, terms.mtu, side, socket)?;
    // The one that listens on the socket comes first.
    if side == Side::Near {
        partner.hear::<()>(|| {})?;
    }
    let node = Node::open(eal, &config, &options(&config, terms), &Clock::start())?;
    if side == Side::Far {
        partner.tell(&())?;
    }
    let mut end = furnish(node, load.region, terms)?;
    partner.tell(&[end.source, end.sink].map(Remote::of))?;
    [end.peer_source, end.peer_sink] = partner.hear(|| {})?;
    let watch = Stopwatch::start();
    while !end.node.port().link()?.up {
        ensure!(watch.seconds() < PATIENCE, "no link after {PATIENCE} s");
        std::thread::yield_now();
    }
    meet([(&mut end, side)], || {})?;
    Ok(end)
}

/// Makes the objects of both nodes and connects their queue pairs; `between` is called after each turn of both.
pub(super) fn connect(
    nodes: [Node; 2],
    region: u64,
    terms: &Terms,
    between: impl FnMut(),
) -> Result<[End; 2]> {
    let [left, right] = nodes;
    let (mut left, mut right) = (furnish(left, region, terms)?, furnish(right, region, terms)?);
    (left.peer_source, left.peer_sink) = (Remote::of(right.source), Remote::of(right.sink));
    (right.peer_source, right.peer_sink) = (Remote::of(left.source), Remote::of(left.sink));
    meet([(&mut right, Side::Far), (&mut left, Side::Near)], between)?;
    Ok([left, right])
}

/// Connects the queue pairs of the ends that are in this process.
fn meet<const ENDS: usize>(ends: [(&mut End, Side); ENDS], mut between: impl FnMut()) -> Result<()> {
    let mut ends = ends.map(|(end, side)| (end, Connecting { side, begun: 0, established: 0 }));
    for (end, connecting) in &mut ends {
        connecting.listen(end)?;
    }
    let watch = Stopwatch::start();
    while ends.iter().any(|(end, connecting)| connecting.established < end.qps.len()) {
        for (end, connecting) in &mut ends {
            connecting.turn(end)?;
        }
        between();
        ensure!(watch.seconds() < PATIENCE, "no connection after {PATIENCE} s");
    }
    Ok(())
}

/// How far an end is in connecting its queue pairs.
struct Connecting {
    side: Side,
    /// Connections that were asked for, or accepted.
    begun: usize,
    established: usize,
}

impl Connecting {
    fn target() -> SocketAddr {
        (address(Side::Far), PORT).into()
    }

    fn listen(&self, end: &mut End) -> Result<()> {
        if self.side == Side::Far {
            let device = end.node.verbs_mut().device_mut();
            let listener = device.create_id(Some(Self::target()))?;
            device.listen(listener, NonZeroU16::new(64).context("a backlog")?, &ConnParam::default())?;
        }
        Ok(())
    }

    /// One after the other: queue pair i of one side is connected with queue pair i of the other.
    fn turn(&mut self, end: &mut End) -> Result<()> {
        let next = end.qps.get(self.begun).copied();
        let device = end.node.verbs_mut().device_mut();
        if let Some(qp) = next.filter(|_| self.side == Side::Near && self.begun == self.established) {
            let id = device.create_id(None)?;
            device.connect(id, qp, Self::target(), &ConnParam::default())?;
            self.begun += 1;
        }
        end.node.poll();
        let device = end.node.verbs_mut().device_mut();
        while let Some(event) = device.poll_cm_event() {
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    let qp = end.qps.get(self.begun).copied();
                    device.accept(event.id, qp.context("a queue pair for each connection")?, &[])?;
                    self.begun += 1;
                }
                CmEventKind::Established { .. } => self.established += 1,
                other => bail!("connecting: {other:?}"),
            }
        }
        Ok(())
    }
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
    // Until the peer tells of its own.
    let (peer_source, peer_sink) = (Remote::of(source), Remote::of(sink));
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

/// Bytes that differ from page to page, so that what is placed in the wrong place is noticed; the same at both ends.
fn fill(memory: &RegionMemory) {
    const PAGE: usize = 4096;
    let mut page = [0; PAGE];
    for number in 0..memory.bytes().div_ceil(PAGE as u64) {
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for bytes in page.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.copy_from_slice(&state.to_le_bytes());
        }
        let at = number * PAGE as u64;
        let len = memory.bytes().saturating_sub(at).min(PAGE as u64);
        let _ = page.get(..usize::try_from(len).unwrap_or(0)).is_some_and(|bytes| memory.write(at, bytes));
    }
}

/// How many of the `len` bytes at `offset` are those of the source, if the others are as they were at first, zero; `None`
/// where something else was placed.
pub(super) fn same(sink: &RegionMemory, source: &RegionMemory, offset: u64, len: u64) -> Option<u64> {
    let (mut placed, mut sent) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let (end, mut count) = (offset + len, 0);
    for at in (offset..end).step_by(1 << 16) {
        let len = usize::try_from((end - at).min(1 << 16)).unwrap_or(0);
        let (placed, sent) = (placed.get_mut(..len)?, sent.get_mut(..len)?);
        if !sink.read(at, placed) || !source.read(at, sent) {
            return None;
        }
        for (placed, sent) in placed.iter().zip(sent.iter()) {
            if placed != sent && *placed != 0 {
                return None;
            }
            count += u64::from(placed == sent);
        }
    }
    Some(count)
}
