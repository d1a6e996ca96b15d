//! Messages about ports and their counters.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::counters::NamedCounters;

/// The state of the link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// The port has a carrier.
    Up,
    /// The port has no carrier.
    Down,
    /// The interface behind the port was deleted; the daemon waits for it to return.
    Gone,
}

/// The interface of a TAP that was renamed or moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedInterface {
    /// The name of the interface now.
    pub name: String,
    /// The network namespace, as `readlink /proc/PID/ns/net` writes it; "unknown" if the kernel does not say; absent
    /// for the daemon's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl fmt::Display for MovedInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} in the network namespace {namespace}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A port and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// The name in the configuration.
    pub name: String,
    /// The name of the DPDK driver.
    pub driver: String,
    /// The device: a PCI address, or the name of a virtual device.
    pub device: String,
    /// The MAC address: six pairs of hexadecimal digits joined by colons.
    pub mac: String,
    /// The largest IP packet in bytes (MTU).
    pub mtu: u32,
    /// The state of the link.
    pub link: Link,
    /// The interface of a TAP that was renamed or moved; absent if it is where the daemon made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<MovedInterface>,
    /// The link speed in megabits (10⁶) per second; 0 if unknown.
    pub speed_mbps: u64,
    /// The addresses of the daemon on this port.
    pub addresses: Vec<IpNet>,
    /// Receive queues in use.
    pub rx_queues: u16,
    /// Transmit queues in use.
    pub tx_queues: u16,
    /// The offloads in use, by name.
    pub offloads: Vec<String>,
    /// Packets that the port received.
    pub rx_packets: u64,
    /// Packets that the port sent.
    pub tx_packets: u64,
    /// Bytes that the port received.
    pub rx_bytes: u64,
    /// Bytes that the port sent.
    pub tx_bytes: u64,
    /// Packets that the port dropped because its receive queue was full.
    pub rx_missed: u64,
    /// Packets received with an error.
    pub rx_errors: u64,
    /// Packets that the port failed to send.
    pub tx_errors: u64,
    /// Receive attempts that found no free packet buffer.
    pub rx_nombuf: u64,
}

/// The parameters of `port.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortShow {
    /// The port's name in the configuration.
    pub name: String,
}

/// The means by which a sleeping worker learns of arriving frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interrupts {
    /// Each receive queue has an interrupt, or a descriptor of the kernel's.
    PerQueue,
    /// No interrupt: a worker polls, and sleeps for a fixed time if it may sleep.
    None,
}

/// A change of a port's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChange {
    /// Milliseconds since the daemon noticed it.
    pub age_ms: u64,
    /// The link from then on.
    pub link: Link,
}

/// A port's share of addresses that the kernel has, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// TCP ports that are reserved with the kernel now, each by a listener that answers nobody.
    pub ports_reserved: u64,
    /// Times that another program of the host had a port.
    pub ports_refused: u64,
    /// The range of source ports, as in `65472-65535`.
    pub source_ports: String,
}

/// Counters of frames of many segments, which cost one system call each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperFrames {
    /// Frames of many segments received.
    pub rx_frames: u64,
    /// Segments that they were cut into.
    pub rx_segments: u64,
    /// Frames that were read for segments of another length than theirs, and cut at other places.
    pub rx_guesses_missed: u64,
    /// Frames dropped because they are longer than 64 KiB (BIG TCP).
    pub rx_too_long: u64,
    /// Frames of many segments sent.
    pub tx_frames: u64,
    /// Segments of which they were made.
    pub tx_segments: u64,
}

/// State of the kernel that a port on one of its interfaces depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSide {
    /// Bytes that the kernel holds for a queue until it is read, as it accounts them; absent for a TAP, which counts
    /// frames.
    pub receive_buffer_bytes: Option<u64>,
    /// The interface verifies checksums, or passes frames whose checksum nobody has filled in.
    pub rx_checksum: bool,
    /// The kernel merges segments that arrive together (GRO).
    pub rx_merging: bool,
    /// The interface fills in checksums.
    pub tx_checksum: bool,
    /// The interface cuts frames of many segments, or passes them whole (TSO). Else the kernel cuts them.
    pub tx_segmentation: bool,
}

/// A port in detail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDetails {
    /// The port's row of `port.list`.
    pub port: PortInfo,
    /// DPDK's name of the device.
    pub device_name: String,
    /// The device's firmware, as its driver writes the version; absent if it reports none.
    pub firmware: Option<String>,
    /// The card's PCI address; absent for what is no card.
    pub bus_address: Option<String>,
    /// The kernel driver that hands the card to DPDK.
    pub kernel_driver: Option<String>,
    /// The NUMA node that the device is on; absent if the system does not report it.
    pub numa_node: Option<u32>,
    /// Offloads that the configuration requests.
    pub offloads_requested: Vec<String>,
    /// Requested offloads that the device does.
    pub offloads_granted: Vec<String>,
    /// Queue pairs that the device has at most.
    pub queues_max: u16,
    /// Hash functions of receive-side scaling; empty if the device does not spread frames.
    pub rss_functions: Vec<String>,
    /// The means by which sleeping workers learn of arriving frames.
    pub interrupts: Interrupts,
    /// Present if the port has the addresses of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
    /// Present for `af_packet` and `tap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub super_frames: Option<SuperFrames>,
    /// Present for `af_packet` and `tap`, unless the port is gone. The offloads of a TAP are those of the kernel's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_side: Option<KernelSide>,
    /// The latest changes of the link, at most 32, the latest last.
    pub link_history: Vec<LinkChange>,
}

/// The parameters of `port.stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortStats {
    /// The name of one port; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The counters of a port's hardware and driver, under the driver's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatsRow {
    /// The port's name in the configuration.
    pub name: String,
    /// The counters in the driver's order.
    pub counters: NamedCounters,
}
