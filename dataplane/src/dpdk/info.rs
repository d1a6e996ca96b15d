//! Description of a [`Device`](super::Device): capabilities, link and counters.

use super::config::Offloads;

/// The capabilities of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// DPDK's name of the driver, e.g. `net_tap`.
    pub driver: String,
    /// The smallest MTU in bytes.
    pub mtu_min: u16,
    /// The largest MTU in bytes.
    pub mtu_max: u16,
    /// The largest number of queue pairs.
    pub queues_max: u16,
    /// Offloads that the device has.
    pub offloads: Offloads,
    /// The device can drop the frames of other VLANs than ours.
    pub vlan_filter: bool,
    /// Most buffers of one frame to send; 0 if the driver names no limit.
    pub tx_buffers_max: u16,
    /// The device spreads TCP over its queues by Toeplitz hash.
    pub rss: bool,
    /// Bytes of the hash's key.
    pub rss_key_bytes: u8,
    /// Entries of the redirection table.
    pub rss_table_entries: u16,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if the link has a carrier.
    pub up: bool,
    /// Its speed, Mb/s, if the driver knows one.
    pub megabits_per_second: Option<u32>,
}

/// The counters that every device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames that the device received.
    pub rx_frames: u64,
    /// Frames that the device sent.
    pub tx_frames: u64,
    /// Bytes that the device received.
    pub rx_bytes: u64,
    /// Bytes that the device sent.
    pub tx_bytes: u64,
    /// Frames that the device dropped because nobody fetched them in time.
    pub rx_missed: u64,
    /// Frames received with an error.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Times that no buffer was left for a frame.
    pub rx_no_buffer: u64,
}

impl PortStats {
    /// Adds what another device has counted.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            rx_frames: self.rx_frames.wrapping_add(other.rx_frames),
            tx_frames: self.tx_frames.wrapping_add(other.tx_frames),
            rx_bytes: self.rx_bytes.wrapping_add(other.rx_bytes),
            tx_bytes: self.tx_bytes.wrapping_add(other.tx_bytes),
            rx_missed: self.rx_missed.wrapping_add(other.rx_missed),
            rx_errors: self.rx_errors.wrapping_add(other.rx_errors),
            tx_errors: self.tx_errors.wrapping_add(other.tx_errors),
            rx_no_buffer: self.rx_no_buffer.wrapping_add(other.rx_no_buffer),
        }
    }

    /// Returns the larger number of each counter.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        Self {
            rx_frames: self.rx_frames.max(other.rx_frames),
            tx_frames: self.tx_frames.max(other.tx_frames),
            rx_bytes: self.rx_bytes.max(other.rx_bytes),
            tx_bytes: self.tx_bytes.max(other.tx_bytes),
            rx_missed: self.rx_missed.max(other.rx_missed),
            rx_errors: self.rx_errors.max(other.rx_errors),
            tx_errors: self.tx_errors.max(other.tx_errors),
            rx_no_buffer: self.rx_no_buffer.max(other.rx_no_buffer),
        }
    }
}
