//! Memory that a configuration needs, item by item, computed before anything is started.
//!
//! Hugepages contain the memory that ports and peers access: packet buffers, descriptor rings, regions. Each item is
//! rounded up to whole pages of 2 MiB, since items do not share pages. Ordinary memory contains the tables, which are
//! allocated at the start and do not grow.

use crate::{Applications, Config, Driver, Ip, Memory, Port, Tcp};

/// Maximum number of packet buffers: 4 Mi × 9.8 KiB = 39 GiB.
pub(crate) const PACKET_BUFFERS_MAX: u32 = 4 << 20;

/// Bytes of a hugepage.
pub(crate) const HUGEPAGE: u64 = 2 << 20;

/// Bytes before the data in a DPDK buffer (RTE_PKTMBUF_HEADROOM). The headers of a transmitted segment go there:
/// Ethernet with VLAN 18 + IPv6 40 + TCP with options 60 = 118 bytes.
const HEADROOM: u32 = 128;
const _: () = assert!(18 + 40 + 60 <= HEADROOM);

/// Bytes of an Ethernet header with an 802.1Q tag.
const LINK_HEADER: u32 = 18;

/// Bytes that drivers of network cards require in a buffer besides a frame with one tag: a second tag, the frame check
/// sequence, and virtio's header of 12 bytes.
const CARD_ROOM: u32 = 4 + 4 + 12;

/// Minimum bytes per descriptor: network cards write received data in units of 1 KiB and require at least 2 KiB.
const DATA_MIN: u32 = 2048;

/// Bytes per buffer besides the data room: `struct rte_mbuf` 128, mempool object header 64, and up to one cache line
/// by which the pool spreads objects over memory channels.
const BUFFER_OVERHEAD: u64 = 128 + 64 + 64;

/// Buffers that one thread's mempool cache can withhold from other threads: 256, flushed at one and a half times that.
const CACHE_BUFFERS: u64 = 256 + 128;

/// Buffers that a worker holds between the ports: one burst received and one burst to send.
const BURST_BUFFERS: u64 = 2 * 32;

/// Buffers of each pool reserved for ACKs and control frames, so that waiting data cannot block them.
const RESERVE_BUFFERS: u64 = 256;

/// Bytes of `struct rte_mbuf`, which count towards a buffer's true size.
const MBUF: u64 = 128;

/// Number of connections for which the default number of buffers covers a full send buffer and a full reassembly
/// queue.
const FULL_CONNECTIONS: u64 = 16;

/// Header bytes of a full-sized packet: IPv6 40 + TCP 20 + timestamps 12.
const PACKET_HEADERS: u64 = 72;

/// Bytes of EAL's own heap: configuration, memory zones, the pools' rings of pointers, device state.
const EAL: u64 = 8 << 20;

/// Bytes of a descriptor and of the driver's entry for it, at most 64 each.
const DESCRIPTOR: u64 = 128;

/// Bytes per connection: control block, timer and flows, at most 1152 (held by tcp-stack's tests); its TIME-WAIT
/// record, 88; and the node of its FIN, 72.
const CONNECTION: u64 = 1344;

/// Bytes per connection of a service: MPA and RDMAP state, or bytes to be echoed. Measured 6.8 KiB, including heap
/// blocks and the pages that they begin in, and 3.6 KiB for held chunks and out-of-order runs.
const SERVICE: u64 = 12_288;

/// Bytes per RDMA Read of the peer that waits for its response.
const READ_QUEUE_ENTRY: u64 = 56;

/// Bytes of the copy buffer of a connection, for FPDUs in tiny segments: the longest FPDU and a margin. Pages are
/// touched only when a peer makes use of them.
const SPILL: u64 = 66 << 10;

/// Bytes per packet buffer for a node in the send queues, 72, and one in the receive queues, 48.
const BUFFER_NODES: u64 = 120;

/// Bytes per STag with its lookup entries and its quarantine entry: measured 467, including the tables' growth in
/// powers of two.
const GRANT: u64 = 512;

/// Bytes per neighbor: measured 147.
const NEIGHBOR: u64 = 160;

/// Bytes per half-open connection: its record, 80, and its timer, 24.
const HALF_OPEN: u64 = 128;

/// Bytes per packet that waits for fragments.
const DATAGRAM: u64 = 512;

/// Bytes per fragment; as many fragments can wait as buffers of [`FRAGMENT_LEAST`] bytes fit into their memory.
const FRAGMENT: u64 = 64;
const FRAGMENT_LEAST: u64 = 512;

/// Bytes per destination behind a smaller MTU.
const PATH_MTU: u64 = 160;

/// Bytes per region: name, token, prefixes and table slots; measured 511 without prefixes.
const REGION: u64 = 1024;

/// Bytes of code, stacks, and DPDK's tables outside of its heap.
const PROCESS: u64 = 40 << 20;

/// Bytes of a control client's full line buffer.
const CONTROL_CLIENT: u64 = 64 << 10;

/// Bytes per queue pair of applications without the entries of its queues, with two completion queues, a shared receive
/// queue and two ids (held by the tests of iwarp-shared-verbs).
const QUEUE_PAIR: u64 = 4096;

/// Bytes per entry of a queue of applications, with one element, besides the program's memory (held there, too).
const QUEUE_ENTRY: u64 = 192;

/// Bytes of the thread that copies a program's memory through the kernel: jobs of 4 KiB, bytes read ahead, its stack.
const COPIER: u64 = 1536 << 10;

/// Bytes per memory region of applications, besides its STag and that of a memory window.
const MEMORY_REGION: u64 = 256;

/// Kind of memory that an item uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Hugepages, or the memory that replaces them.
    Huge,
    /// Ordinary memory of the process.
    Heap,
}

/// One item of a [`MemoryPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanItem {
    /// Use of the memory.
    pub what: String,
    /// Kind of memory of the item.
    pub kind: Kind,
    /// Size in bytes; hugepage items in whole pages.
    pub bytes: u64,
}

/// Memory that a configuration needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    items: Vec<PlanItem>,
    limit_bytes: Option<u64>,
}

impl MemoryPlan {
    /// Returns the items of the plan.
    pub fn items(&self) -> &[PlanItem] {
        &self.items
    }

    /// Returns the total hugepage memory: a multiple of [`hugepage`](Self::HUGEPAGE_BYTES).
    pub fn hugepage_bytes(&self) -> u64 {
        self.sum(Kind::Huge)
    }

    /// Returns the total number of hugepages.
    pub fn hugepages(&self) -> u64 {
        self.hugepage_bytes().div_ceil(HUGEPAGE)
    }

    /// Returns the total ordinary memory in bytes.
    pub fn heap_bytes(&self) -> u64 {
        self.sum(Kind::Heap)
    }

    /// Returns the bytes that `memory.hugepage_limit` leaves for regions registered later; `None` without a limit.
    pub fn region_room_bytes(&self) -> Option<u64> {
        self.limit_bytes.map(|limit| limit.saturating_sub(self.hugepage_bytes()))
    }

    /// Bytes of one hugepage.
    pub const HUGEPAGE_BYTES: u64 = HUGEPAGE;

    fn sum(&self, kind: Kind) -> u64 {
        self.items.iter().filter(|item| item.kind == kind).fold(0, |sum, item| sum.saturating_add(item.bytes))
    }

    fn huge(&mut self, what: impl Into<String>, bytes: u64) {
        let bytes = bytes.div_ceil(HUGEPAGE).saturating_mul(HUGEPAGE);
        self.items.push(PlanItem { what: what.into(), kind: Kind::Huge, bytes });
    }

    fn heap(&mut self, what: &str, bytes: u64) {
        self.items.push(PlanItem { what: what.to_owned(), kind: Kind::Heap, bytes });
    }
}

/// Computes the memory that each part of a configuration needs. Pure, saturating arithmetic.
pub fn memory_plan(config: &Config) -> MemoryPlan {
    let mut plan = MemoryPlan { items: Vec::new(), limit_bytes: config.memory.hugepage_limit_bytes };
    let room = data_room_bytes(&config.ports);
    let buffers = u64::from(config.memory.packet_buffers);
    let workers = count(config.workers.cores.len());
    let stacks = workers.saturating_mul(count(config.ports.len()));
    plan.huge(format!("{buffers} packet buffers of {room} bytes"), pools_bytes(buffers, room, stacks));
    let eal = EAL.saturating_add(descriptors(&config.ports, workers).saturating_mul(DESCRIPTOR));
    // A PCI device reads its descriptors by DMA; those of other devices are in ordinary memory.
    let pci = config.ports.iter().any(|port| port.driver.is_pci());
    if pci {
        plan.huge("EAL, descriptor rings", eal);
    }
    for region in &config.regions {
        plan.huge(format!("region {}", region.name), region.bytes);
    }
    let connections = stacks.saturating_mul(config.tcp.connections_max.into());
    let each = |number: u32, bytes: u64| stacks.saturating_mul(number.into()).saturating_mul(bytes);
    plan.heap("the process", PROCESS);
    if !pci {
        plan.heap("EAL, descriptor rings", eal);
    }
    plan.heap("connections", connections.saturating_mul(connection_bytes(config)));
    plan.heap("connections, if every peer cuts its FPDUs small", connections.saturating_mul(SPILL));
    plan.heap("queues of packet buffers", each(config.memory.packet_buffers, BUFFER_NODES));
    plan.heap("STags", each(config.limits.grants_max, GRANT));
    plan.heap("connections being opened", each(config.tcp.stack.half_open_max, HALF_OPEN));
    let fixed = config.ports.iter().map(|port| count(port.neighbors.len())).sum::<u64>();
    let fixed = workers.saturating_mul(fixed).saturating_mul(NEIGHBOR);
    plan.heap("neighbors", each(config.limits.neighbors_max, NEIGHBOR).saturating_add(fixed));
    plan.heap("fragments", stacks.saturating_mul(fragment_bytes(&config.ip)));
    plan.heap("path MTUs", each(config.ip.path_mtu_entries_max, PATH_MTU));
    plan.heap("tables of regions", each(config.limits.regions_max, REGION));
    plan.heap("control clients", u64::from(config.control.clients_max).saturating_mul(CONTROL_CLIENT));
    if let Some(applications) = &config.applications {
        add_applications(&mut plan, applications, stacks);
    }
    plan
}

/// Adds the memory of applications: tables for as many objects as there may be, and what one user's programs may have.
/// Of the latter, the daemon allocates as much as the programs ask for, on hugepages if there are any.
fn add_applications(plan: &mut MemoryPlan, applications: &Applications, stacks: u64) {
    let Applications { contexts_max, queue_pairs_max, memory_regions_max, user, .. } = applications;
    let each = |number: u16, bytes: u64| stacks.saturating_mul(number.into()).saturating_mul(bytes);
    plan.heap("application contexts", u64::from(*contexts_max).saturating_mul(CONTROL_CLIENT));
    plan.heap("application queue pairs", each(*queue_pairs_max, QUEUE_PAIR));
    plan.heap("application memory regions", each(*memory_regions_max, GRANT * 2 + MEMORY_REGION));
    let entries = u64::from(user.queue_entries_max).saturating_mul(QUEUE_ENTRY);
    plan.heap("application queue entries, one user's at most", entries);
    plan.heap("application queues and memory, one user's at most", user.memory_bytes);
    let copiers = u64::from(user.contexts_max).saturating_mul(COPIER);
    plan.heap("copies through the kernel, one user's at most", copiers);
}

/// Returns the same as [`Config::data_room_bytes`].
pub(crate) fn data_room_bytes(ports: &[Port]) -> u16 {
    let frame = ports.iter().map(frame_room).max().unwrap_or(0).max(DATA_MIN);
    let room = frame.saturating_add(HEADROOM).next_multiple_of(64);
    u16::try_from(room).unwrap_or(u16::MAX)
}

/// Returns the bytes of a port's longest frame, plus the bytes that its driver requires beside it.
fn frame_room(port: &Port) -> u32 {
    let beside = match port.driver {
        Driver::AfXdp { .. } => Driver::XDP_HEADROOM_BYTES.into(),
        Driver::Pci { .. } => CARD_ROOM,
        _ => 0,
    };
    u32::from(port.mtu).saturating_add(LINK_HEADER).saturating_add(beside)
}

/// Returns the minimum number of packet buffers that keeps every queue full: descriptors, bursts, caches, reserve, and
/// waiting fragments. All pools have the size that the port with the longest queues needs.
pub(crate) fn packet_buffers_min(ports: &[Port], workers: u64, ip: &Ip) -> u64 {
    let stacks = workers.saturating_mul(count(ports.len()));
    let per_pool = BURST_BUFFERS.saturating_add(CACHE_BUFFERS).saturating_add(RESERVE_BUFFERS);
    let per_pool = per_pool.saturating_add(fragment_buffers(ports, ip));
    let longest = ports.iter().map(descriptors_of).max().unwrap_or(0);
    stacks.saturating_mul(longest.saturating_add(per_pool))
}

/// Returns the default number of packet buffers: the minimum, plus the data of [`FULL_CONNECTIONS`] connections,
/// unacknowledged and behind a gap.
pub(crate) fn packet_buffers_default(ports: &[Port], workers: u64, ip: &Ip, tcp: &Tcp) -> u32 {
    let (payload, window) = (payload_of(ports), u64::from(tcp.receive_window_bytes));
    let data = u64::from(tcp.send_buffer_bytes).div_ceil(payload).saturating_add(window.div_ceil(payload));
    let wanted = packet_buffers_min(ports, workers, ip).saturating_add(data.saturating_mul(FULL_CONNECTIONS));
    u32::try_from(wanted).unwrap_or(PACKET_BUFFERS_MAX).min(PACKET_BUFFERS_MAX)
}

/// Returns the largest receive window in bytes of one connection while no other holds data.
pub fn connection_window_bytes(config: &Config) -> u64 {
    u64::from(config.tcp.receive_window_bytes).min(config.tcp.receive_memory_bytes / 2)
}

/// Returns a line for people: the rate that the receive window allows one connection over a round trip of 100 ms.
pub fn connection_window_line(config: &Config) -> String {
    let bytes = connection_window_bytes(config);
    // Bits per 100 ms, in units of 1,000,000 per second.
    let rate = bytes.saturating_mul(8 * 10) / 1_000_000;
    format!(
        "one connection: a receive window of up to {} KiB, {rate} Mbit/s over a round trip of 100 ms",
        bytes / 1024
    )
}

/// Returns the default limit of received bytes that a worker's connections on a port may hold: the payload of
/// full-sized packets in the buffers that received data may retain.
pub(crate) fn receive_memory_default(memory: &Memory, ports: &[Port], workers: u64) -> u64 {
    let buffers = u64::from(received_buffers_default(memory, ports, workers));
    buffers.saturating_mul(payload_of(ports)).max(64 << 10)
}

/// Returns the default number of packet buffers that received data of a worker's connections on a port may retain:
/// half of its pool.
pub(crate) fn received_buffers_default(memory: &Memory, ports: &[Port], workers: u64) -> u32 {
    let pools = workers.saturating_mul(count(ports.len())).max(1);
    let half = u64::from(memory.packet_buffers).checked_div(pools.saturating_mul(2)).unwrap_or(0);
    u32::try_from(half).unwrap_or(u32::MAX)
}

/// Returns the payload bytes of a full-sized packet, for the port with the smallest MTU.
fn payload_of(ports: &[Port]) -> u64 {
    let mtu = ports.iter().map(|port| u64::from(port.mtu)).min().unwrap_or(1500);
    mtu.saturating_sub(PACKET_HEADERS).max(1)
}

/// Returns the number of buffers that fragments can hold from a pool.
fn fragment_buffers(ports: &[Port], ip: &Ip) -> u64 {
    let true_size = u64::from(data_room_bytes(ports)).saturating_add(MBUF);
    let most = u64::from(ip.fragments_bytes_max).checked_div(true_size).unwrap_or(0);
    if ip.fragments_datagrams_max == 0 { 0 } else { most }
}

/// Returns the bytes of all pools: each worker has one on each port. An object never crosses a page, so the rest of
/// each page is lost.
fn pools_bytes(buffers: u64, room: u16, pools: u64) -> u64 {
    let object = u64::from(room).saturating_add(BUFFER_OVERHEAD);
    let per_page = HUGEPAGE.checked_div(object).unwrap_or(1).max(1);
    let pages = buffers.div_ceil(pools.max(1)).div_ceil(per_page);
    pages.saturating_mul(pools).saturating_mul(HUGEPAGE)
}

fn fragment_bytes(ip: &Ip) -> u64 {
    let fragments = u64::from(ip.fragments_bytes_max).checked_div(FRAGMENT_LEAST).unwrap_or(0);
    let datagrams = u64::from(ip.fragments_datagrams_max).saturating_mul(DATAGRAM);
    fragments.saturating_mul(FRAGMENT).saturating_add(datagrams)
}

fn connection_bytes(config: &Config) -> u64 {
    let reads = u64::from(config.mpa.ird_max).saturating_mul(READ_QUEUE_ENTRY);
    CONNECTION.saturating_add(SERVICE).saturating_add(reads)
}

/// Returns the descriptors of all queues: each worker has a receive and a transmit queue on each port.
fn descriptors(ports: &[Port], workers: u64) -> u64 {
    ports.iter().map(descriptors_of).fold(0u64, u64::saturating_add).saturating_mul(workers)
}

/// Returns the descriptors of one receive and one transmit queue.
fn descriptors_of(port: &Port) -> u64 {
    u64::from(port.rx_descriptors).saturating_add(port.tx_descriptors.into())
}

fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
