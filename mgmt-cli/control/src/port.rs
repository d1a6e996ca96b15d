//! Ports.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::counters::NamedCounters;

/// State of a port's carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// It has.
    Up,
    /// It has not.
    Down,
    /// The interface behind the port was deleted; the daemon waits for it to return.
    Gone,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its name in the configuration.
    pub name: String,
    /// The DPDK driver.
    pub driver: String,
    /// The device: a PCI address or a virtual device's name.
    pub device: String,
    /// Its MAC address, six pairs of hexadecimal digits joined by colons.
    pub mac: String,
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// Whether it has a carrier.
    pub link: Link,
    /// Megabits (10⁶) per second; 0 if unknown.
    pub speed_mbps: u64,
    /// Our addresses on it.
    pub addresses: Vec<IpNet>,
    /// Receive queues in use.
    pub rx_queues: u16,
    /// Transmit queues in use.
    pub tx_queues: u16,
    /// Work that the port does for us.
    pub offloads: Vec<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the port dropped as its queue was full.
    pub rx_missed: u64,
    /// Packets that arrived broken.
    pub rx_errors: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Times that no buffer was left to receive into.
    pub rx_nombuf: u64,
}

/// Parameters of `port.stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortStats {
    /// One port; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The counters of a port's hardware and driver, by the names that they give them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatsRow {
    /// The port's name in the configuration.
    pub name: String,
    /// The counters in the driver's order.
    pub counters: NamedCounters,
}
