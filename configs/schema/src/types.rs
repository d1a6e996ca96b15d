//! The checked configuration. Every value is in its range, every default is filled in.
//!
//! The structs are `non_exhaustive`: only this crate makes them, and only out of a file that passed every check.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tcp_stack::{ConnOptions, TcpConfig};

use crate::text::{Access, RegionName, Token};

/// How many `[[port]]` tables a file may have.
pub const PORTS_MAX: usize = 8;

/// Neighbors of one port with a fixed station address.
pub const NEIGHBORS_MAX: usize = 1024;

/// How many worker cores a file may name. 64 workers × 8 ports is 512 queues.
pub const WORKERS_MAX: usize = 64;

/// A whole configuration file, checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// `[memory]`
    pub memory: Memory,
    /// `[[port]]`, 1 to [`PORTS_MAX`], names and devices distinct.
    pub ports: Vec<Port>,
    /// `[workers]`
    pub workers: Workers,
    /// `[ip]`
    pub ip: Ip,
    /// `[tcp]`
    pub tcp: Tcp,
    /// `[mpa]`
    pub mpa: Mpa,
    /// `[placement]`
    pub placement: Placement,
    /// `[limits]`
    pub limits: Limits,
    /// `[[listener]]`, TCP ports distinct.
    pub listeners: Vec<Listener>,
    /// `[[region]]`, names distinct, at most [`Limits::regions_max`].
    pub regions: Vec<Region>,
    /// `[control]`
    pub control: Control,
    /// `[log]`
    pub log: Log,
}

/// `[memory]`: hugepages and packet buffers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Memory {
    /// Whether the daemon starts without hugepages.
    pub hugepages: Hugepages,
    /// The daemon never takes more than this many bytes for EAL, packet buffers and regions together.
    /// `None`: whatever the system gives.
    pub hugepage_limit_bytes: Option<u64>,
    /// Packet buffers in all pools together; each worker has a pool on each port, of an equal share.
    pub packet_buffers: u32,
    /// EAL's `--file-prefix`: tells the files of several DPDK programs apart.
    pub file_prefix: String,
}

/// Whether the daemon starts without hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hugepages {
    /// Hugepages or no start.
    Require,
    /// Ordinary pages where hugepages are missing; the daemon is then shown as degraded.
    Prefer,
}

/// `[[port]]`: one DPDK port and its addresses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Port {
    /// What the port is called in listings.
    pub name: String,
    /// The device behind it.
    pub driver: Driver,
    /// Bytes of the largest IP packet, 576 to 9600; at least 1280 with an IPv6 address (RFC 8200 §5).
    pub mtu: u16,
    /// Station address; `None` takes the device's own.
    pub mac: Option<[u8; 6]>,
    /// 802.1Q identifier, 1 to 4094, put on every frame sent and required of every frame received.
    pub vlan: Option<u16>,
    /// The port's IPv4 address and prefix. A port has this or `ipv6`, or both.
    pub ipv4: Option<Ipv4Net>,
    /// The port's IPv6 address and prefix, beside the link-local one.
    pub ipv6: Option<Ipv6Net>,
    /// IPv4 next hop for what is off the link.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 next hop for what is off the link.
    pub gateway6: Option<Ipv6Addr>,
    /// Neighbors whose station address is fixed: addresses on the link, each once, at most [`NEIGHBORS_MAX`].
    pub neighbors: Vec<Neighbor>,
    /// Receive descriptors per queue, a power of two.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue, a power of two.
    pub tx_descriptors: u16,
    /// What the daemon does when the kernel interface behind the port is deleted. Without meaning for ports that have none.
    pub on_loss: OnLoss,
    /// Leave checksums and the cutting of segments to a network card that can. Virtual devices, which would do it in
    /// software, are not asked to.
    pub offloads: bool,
}

/// What follows when the interface behind a port is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The daemon goes on without the port, and opens it again when the interface has returned. A TAP is made again.
    Wait,
    /// The daemon ends with an error.
    Exit,
}

/// A neighbor that is never asked for its station address, and whose claims to have another one are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// An address of another host in one of the port's prefixes, or a link-local one.
    pub address: IpAddr,
    /// Its station address: not a group's, and not zero.
    pub mac: [u8; 6],
}

/// The device behind a port. No string holds what would break DPDK's `key=value,…` device arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A network card, bound to a user-space driver.
    Pci {
        /// `0000:3b:00.0`, lower case, with its domain.
        address: String,
    },
    /// A TAP interface that the daemon makes.
    Tap {
        /// Its name in the kernel.
        interface: String,
    },
    /// libpcap: an interface, or files.
    Pcap(Pcap),
    /// A software ring: what is sent is received.
    Ring,
    /// Shared memory with another program.
    Memif(Memif),
    /// A kernel interface through an AF_PACKET socket.
    AfPacket {
        /// Its name in the kernel.
        interface: String,
    },
    /// A kernel interface through AF_XDP sockets.
    AfXdp {
        /// Its name in the kernel.
        interface: String,
        /// First of the interface's queues.
        start_queue: u16,
        /// How many of its queues, at least one.
        queue_count: u16,
    },
}

impl Driver {
    /// Bytes that the kernel keeps free before a frame that it receives into an AF_XDP buffer (XDP_PACKET_HEADROOM).
    pub const XDP_HEADROOM_BYTES: u16 = 256;

    /// Whether a PCI device is behind it, which reaches packet buffers by DMA: they must be in DPDK's own memory.
    pub fn is_pci(&self) -> bool {
        matches!(self, Self::Pci { .. })
    }

    /// The kernel interface that the driver makes or uses.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Tap { interface }
            | Self::Pcap(Pcap::Interface(interface))
            | Self::AfPacket { interface }
            | Self::AfXdp { interface, .. } => Some(interface),
            Self::Pci { .. } | Self::Pcap(Pcap::Files { .. }) | Self::Ring | Self::Memif(_) => None,
        }
    }

    /// The name that the configuration file calls the driver by.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::Tap { .. } => "tap",
            Self::Pcap(_) => "pcap",
            Self::Ring => "ring",
            Self::Memif(_) => "memif",
            Self::AfPacket { .. } => "af_packet",
            Self::AfXdp { .. } => "af_xdp",
        }
    }
}

/// Where a `pcap` port gets its frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pcap {
    /// A kernel interface.
    Interface(String),
    /// A capture that is replayed once, and one that is written.
    Files {
        /// Frames received.
        rx_file: PathBuf,
        /// Frames sent.
        tx_file: PathBuf,
    },
}

/// A `memif` port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memif {
    /// Both ends name the same number.
    pub id: u32,
    /// Which end this is.
    pub role: MemifRole,
    /// The Unix socket on which the ends meet.
    pub socket: PathBuf,
}

/// Which end of a shared-memory link a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens on the socket.
    Server,
    /// Connects to the socket and provides the memory.
    Client,
}

/// `[workers]`: who polls, and where.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Workers {
    /// One worker per core, 1 to [`WORKERS_MAX`] distinct ones. Whether they exist is known at start only.
    pub cores: Vec<u16>,
    /// What a worker without work does.
    pub idle: Idle,
    /// Core of the control thread, never a worker's; `None` is any core without a worker.
    pub control_core: Option<u16>,
}

/// What a worker without work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Polls on: the least latency, a whole core.
    Spin,
    /// Sleeps, ever longer up to a bound.
    Adaptive {
        /// The bound, 1 to 10000 µs.
        sleep_us_max: u32,
    },
}

/// `[ip]`, but for what is said there of path MTUs: that is in [`Tcp::stack`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ip {
    /// Hops that our packets may make: the TTL of IPv4, the hop limit of IPv6.
    pub hop_limit: u8,
    /// Packets that may wait for their fragments at a time, per worker and port; with 0 fragments are dropped.
    pub fragments_datagrams_max: u16,
    /// Packet-buffer bytes (true size) that fragments may occupy, per worker and port.
    pub fragments_bytes_max: u32,
    /// How long a packet waits for its fragments (RFC 8200 §4.5: 60 seconds).
    pub fragments_timeout_ms: u32,
    /// Destinations behind a smaller MTU that are remembered, per worker and port.
    pub path_mtu_entries_max: u32,
}

/// `[tcp]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tcp {
    /// Connections per worker and port.
    pub connections_max: u32,
    /// Of these, connections that one source may have, an IPv4 address or an IPv6 /64.
    pub connections_per_source_max: u32,
    /// Timeouts, options, congestion control, half-open connections, path MTUs.
    pub stack: TcpConfig,
    /// Silence after which a peer is asked for a sign of life, seconds (RFC 9293 §3.8.4); `None` never asks.
    pub keepalive_s: Option<u32>,
    /// How long it has to answer, seconds; no longer than that silence.
    pub keepalive_interval_s: u32,
    /// Questions without an answer after which a connection is given up.
    pub keepalive_probes: u8,
    /// How long data may stay unacknowledged (RFC 9293 §3.9.1.8); `None` leaves it to the retries.
    pub user_timeout_ms: Option<u32>,
    /// Greatest receive window of a connection; at most 65535 without window scaling.
    pub receive_window_bytes: u32,
    /// The receive window that a connection begins with; it grows as far as its path and its reader can use it.
    pub receive_window_initial_bytes: u32,
    /// Bytes that all connections together may have received and not let go of, per worker and port.
    pub receive_memory_bytes: u64,
    /// Packet buffers that received data of all connections together may retain, per worker and port; half of the pool at
    /// most.
    pub received_buffers_max: u32,
    /// Unacknowledged bytes that a connection may queue.
    pub send_buffer_bytes: u32,
    /// Packet-buffer bytes (true size, not payload) held for one connection behind a gap.
    pub held_bytes_max: u32,
    /// Segments held for one connection behind a gap.
    pub held_segments_max: u16,
}

/// `[mpa]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Mpa {
    /// CRC policy of listeners that do not say.
    pub crc: Crc,
    /// Whether peers are asked for markers (RFC 5044 §4.3).
    pub markers: Markers,
    /// Time a peer has for the MPA request after the connection opened.
    pub handshake_timeout_ms: u32,
    /// Time that a connection being disconnected may wait for RDMA Reads, of either side, to be answered and taken.
    pub disconnect_timeout_ms: u32,
    /// How long an FPDU may stay incomplete before its connection is reset.
    pub fpdu_timeout_ms: u32,
    /// Greatest inbound RDMA Read queue depth granted, 0x3FFF being reserved (RFC 6581 §4).
    pub ird_max: u16,
    /// Greatest outbound RDMA Read queue depth used.
    pub ord_max: u16,
}

/// CRC32c of FPDUs (RFC 5044 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crc {
    /// Always.
    On,
    /// Not, if the peer agrees.
    Off,
}

/// Markers in what peers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markers {
    /// None.
    Off,
    /// Asked for. What we send has them whenever the peer asks.
    Receive,
}

/// `[placement]`: what arrives behind a gap in the stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Placement {
    /// How it is located.
    pub out_of_order: OutOfOrderPolicy,
    /// Whether the last segment of a message may be placed before the gap closes, too.
    pub last_segment: LastSegment,
}

/// How RDMA Writes behind a gap are located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfOrderPolicy {
    /// Not at all: they wait until the gap has closed.
    Off,
    /// By markers.
    Markers,
    /// By markers, and where CRCs are in use also by the start of a segment.
    Aligned,
}

/// When the last segment of a message is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSegment {
    /// When all before it was.
    InOrder,
    /// When it comes.
    Early,
}

/// `[limits]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Regions at a time, those of the file and those registered later together.
    pub regions_max: u32,
    /// STags in force at a time per worker; one per connection of the region service.
    pub grants_max: u32,
    /// Neighbors (ARP, NDP) remembered per worker and port.
    pub neighbors_max: u32,
}

/// `[[listener]]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listener {
    /// TCP port, both address families, on every DPDK port.
    pub port: u16,
    /// What answers.
    pub service: Service,
    /// Connections being opened.
    pub backlog: u16,
    /// Connections at a time, per worker and port.
    pub connections_max: u32,
    /// What its connections are like: its own keys, `[tcp]`'s where it has none.
    pub conn: ConnOptions,
    /// CRC policy, its own or `[mpa]`'s. Without meaning for the services of RFC 862 to 864.
    pub crc: Crc,
}

/// What answers on a TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Regions, by name in the MPA private data.
    Region,
    /// RFC 862
    Echo,
    /// RFC 863
    Discard,
    /// RFC 864
    Chargen,
    /// RFC 867: the time in one line.
    Daytime,
}

/// `[[region]]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Region {
    /// What peers ask for.
    pub name: RegionName,
    /// Bytes that peers can address. Memory is taken in whole pages.
    pub bytes: u64,
    /// What peers may do; at least one right.
    pub access: Access,
    /// What peers must show, if anything.
    pub token: Option<Token>,
    /// Where peers must come from; empty admits all.
    pub allow: Vec<IpNet>,
}

/// `[control]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Control {
    /// Absolute path of the Unix socket, short enough for `sun_path`.
    pub socket: PathBuf,
    /// 0600 or 0660.
    pub mode: u32,
    /// Group that owns the socket and may use it, by name or number. Whether it exists is known at start only.
    pub group: Option<String>,
    /// Clients at a time.
    pub clients_max: u16,
    /// A client that says nothing for this long is let go.
    pub idle_timeout_ms: u32,
}

/// `[log]`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Log {
    /// The least severe level that is written.
    pub level: LogLevel,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something will.
    Warn,
    /// Something happened.
    Info,
    /// Why it happened.
    Debug,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}
