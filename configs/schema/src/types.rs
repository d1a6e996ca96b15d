//! Checked configuration: every value is in its range, and every default is filled in.
//!
//! The structs are `non_exhaustive`: only this crate creates them, from a file that passed every check.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::check::{
    Applications, Control, Drain, Ip, Limits, Listener, Log, Memory, Metrics, Mpa, Placement, Port,
    Privileges, Region, Tcp, Workers,
};

/// Maximum number of `[[port]]` tables.
pub const PORTS_MAX: usize = 8;
/// Most contexts of applications.
pub const CONTEXTS_MAX: u16 = 1024;

/// Maximum number of neighbors with a fixed MAC address per port.
pub const NEIGHBORS_MAX: usize = 1024;

/// Maximum number of worker cores. 64 workers × 8 ports are 512 queues.
pub const WORKERS_MAX: usize = 64;

/// A complete, checked configuration file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Table `[memory]`: hugepages and packet buffers.
    pub memory: Memory,
    /// Tables `[[port]]`, 1 to [`PORTS_MAX`], with distinct names and devices.
    pub ports: Vec<Port>,
    /// Table `[workers]`: cores and idling.
    pub workers: Workers,
    /// Table `[ip]`: hop limit, fragments. Settings of path MTUs are in [`Tcp::stack`].
    pub ip: Ip,
    /// Table `[tcp]`: connections, windows, timers.
    pub tcp: Tcp,
    /// Table `[mpa]`: CRCs, markers, read depths, timeouts.
    pub mpa: Mpa,
    /// Table `[placement]`: out-of-order placement.
    pub placement: Placement,
    /// Table `[limits]`: regions, STags, neighbors.
    pub limits: Limits,
    /// Tables `[[listener]]`, with distinct TCP ports.
    pub listeners: Vec<Listener>,
    /// Tables `[[region]]`, with distinct names, at most [`Limits::regions_max`].
    pub regions: Vec<Region>,
    /// Table `[control]`: the control socket.
    pub control: Control,
    /// Table `[drain]`: the end of connections before the daemon stops.
    pub drain: Drain,
    /// Table `[applications]`: the verbs socket; `None`: the daemon serves no applications.
    pub applications: Option<Applications>,
    /// Table `[privileges]`: capabilities and system calls that the daemon gives up when it starts.
    pub privileges: Privileges,
    /// Table `[metrics]`: the exporter of counters; `None`: the daemon serves none.
    pub metrics: Option<Metrics>,
    /// Table `[log]`: the log's level and format, and the limits of events.
    pub log: Log,
}

/// Policy for a machine without enough hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hugepages {
    /// The daemon does not start without hugepages.
    Require,
    /// The daemon uses ordinary pages if hugepages are missing, and reports itself as degraded.
    Prefer,
}

/// Addresses of a port with their prefixes: at least one, in a checked configuration, or the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// True if the port has the addresses that the kernel has on its interface when the daemon starts.
    pub are_kernels: bool,
    /// IPv4 address and prefix of the port.
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 address and prefix of the port, in addition to the link-local address.
    pub ipv6: Option<Ipv6Net>,
}

impl Addresses {
    /// Returns the addresses with their prefixes, that of IPv4 first.
    pub fn nets(&self) -> impl Iterator<Item = IpNet> {
        self.ipv4.map(IpNet::V4).into_iter().chain(self.ipv6.map(IpNet::V6))
    }
}

impl Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.are_kernels {
            return f.write_str("kernel");
        }
        let nets: Vec<String> = self.nets().map(|net| net.to_string()).collect();
        f.write_str(&nets.join(","))
    }
}

/// A range of TCP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// First port, at least 1.
    pub first: u16,
    /// Last port, not below the first.
    pub last: u16,
}

impl PortRange {
    /// Dynamic ports (RFC 6335 §6).
    pub const DYNAMIC: Self = Self { first: 49_152, last: 65_535 };
    /// Ports above those that the kernel gives to programs by itself (`net.ipv4.ip_local_port_range`).
    pub const BESIDE_KERNEL: Self = Self { first: 65_472, last: 65_535 };
    /// Most ports of a range that the port reserves with the kernel, a descriptor or more for each.
    pub const RESERVED_MAX: usize = 4096;

    /// Parses a range, as in `49152-65535`.
    ///
    /// # Errors
    /// Description of the error in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        let range = text.split_once('-').and_then(|(first, last)| Some((port(first)?, port(last)?)));
        match range {
            Some((first, last)) if first <= last => Ok(Self { first, last }),
            _ => Err(format!("`{text}` is not a range of ports from 1 to 65535")),
        }
    }

    /// Returns all ports of the range.
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Reaction to the deletion of the interface behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The daemon continues without the port, and reopens it when the interface is back. It creates a TAP again.
    Wait,
    /// The daemon exits with an error.
    Exit,
}

/// Device of a port. No string contains characters that break DPDK's `key=value,…` device arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Network card, bound to a user-space driver.
    Pci {
        /// PCI address such as `0000:3b:00.0`, in lower case, with its domain.
        address: String,
    },
    /// TAP interface that the daemon creates, with frames of many segments.
    Tap {
        /// Name of the kernel interface.
        interface: String,
    },
    /// The same by DPDK's driver, frame by frame.
    DpdkTap {
        /// Name of the kernel interface.
        interface: String,
    },
    /// libpcap: an interface, or capture files.
    Pcap(Pcap),
    /// Software ring: every frame sent is received.
    Ring,
    /// Shared memory with another program.
    Memif(Memif),
    /// Kernel interface through AF_PACKET sockets, with frames of many segments.
    AfPacket {
        /// Name of the kernel interface.
        interface: String,
    },
    /// The same by DPDK's driver, frame by frame.
    DpdkAfPacket {
        /// Name of the kernel interface.
        interface: String,
    },
    /// Kernel interface through AF_XDP sockets.
    AfXdp {
        /// Name of the kernel interface.
        interface: String,
        /// Index of the first queue of the interface.
        start_queue: u16,
        /// Number of queues of the interface, at least one.
        queue_count: u16,
    },
}

impl Driver {
    /// Bytes that the kernel reserves before a frame in an AF_XDP buffer (XDP_PACKET_HEADROOM).
    pub const XDP_HEADROOM_BYTES: u16 = 256;

    /// Returns the kernel's name of the device, an interface or a PCI address; the driver's name for a device that the
    /// kernel does not know.
    pub fn device(&self) -> &str {
        match self {
            Self::Pci { address } => address,
            driver => driver.interface().unwrap_or(driver.name()),
        }
    }

    /// Returns true for a PCI device. It accesses packet buffers by DMA, so they must be in DPDK's own memory.
    pub fn is_pci(&self) -> bool {
        matches!(self, Self::Pci { .. })
    }

    /// Returns the kernel interface that the driver creates or uses.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Tap { interface }
            | Self::DpdkTap { interface }
            | Self::Pcap(Pcap::Interface(interface))
            | Self::AfPacket { interface }
            | Self::DpdkAfPacket { interface }
            | Self::AfXdp { interface, .. } => Some(interface),
            Self::Pci { .. } | Self::Pcap(Pcap::Files { .. }) | Self::Ring | Self::Memif(_) => None,
        }
    }

    /// Returns the name of the driver in the configuration file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::Tap { .. } => "tap",
            Self::DpdkTap { .. } => "dpdk-tap",
            Self::Pcap(_) => "pcap",
            Self::Ring => "ring",
            Self::Memif(_) => "memif",
            Self::AfPacket { .. } => "af_packet",
            Self::DpdkAfPacket { .. } => "dpdk-af_packet",
            Self::AfXdp { .. } => "af_xdp",
        }
    }
}

/// Source and destination of a `pcap` port's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pcap {
    /// Kernel interface, by name.
    Interface(String),
    /// A capture file that is replayed once, and one that is written.
    Files {
        /// Capture file of the frames received.
        rx_file: PathBuf,
        /// Capture file of the frames sent.
        tx_file: PathBuf,
    },
}

/// Shared-memory link of a `memif` port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memif {
    /// Number of the link, the same at both ends.
    pub id: u32,
    /// Role of this end.
    pub role: MemifRole,
    /// Unix socket that connects the ends.
    pub socket: PathBuf,
}

/// Role of one end of a shared-memory link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemifRole {
    /// Listens on the socket.
    Server,
    /// Connects to the socket and provides the memory.
    Client,
}

/// Behavior of a worker without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Keeps polling: lowest latency, and a whole core in use.
    Spin,
    /// Sleeps with increasing intervals.
    Adaptive {
        /// Longest sleep, 1 to 10000 µs.
        sleep_us_max: u32,
        /// Longest spin before a sleep, 0 to 10000 µs.
        spin_us_max: u32,
    },
}

/// Service on a TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Region service: regions by name in the MPA private data.
    Region,
    /// Echo Protocol (RFC 862).
    Echo,
    /// Discard Protocol (RFC 863).
    Discard,
    /// Character Generator Protocol (RFC 864).
    Chargen,
    /// Daytime Protocol (RFC 867): the time in one line.
    Daytime,
}

/// Address of the exporter of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// TCP address of the kernel's stack.
    Tcp(SocketAddr),
    /// Absolute path of a Unix socket, short enough for `sun_path`.
    Unix(PathBuf),
}

/// Format of the log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines of text on stderr.
    Text,
    /// JSON on stderr, one object per line.
    Json,
    /// Entries of the systemd journal, with a field for each value.
    Journald,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Failure of an operation or of the daemon.
    Error,
    /// A condition that may lead to a failure.
    Warn,
    /// A normal event of interest.
    Info,
    /// Details for diagnosing a problem.
    Debug,
}
