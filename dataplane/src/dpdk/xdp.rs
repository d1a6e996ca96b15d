//! The AF_XDP sockets of a device, and what the kernel counts on them: net_af_xdp itself reports one of six counters.

use std::collections::BTreeSet;
use std::os::fd::RawFd;

use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_domain, xdp_statistics};

use super::descriptors::{borrow, open_sockets};

/// The AF_XDP sockets that a device has opened, one per queue. They are open as long as the device is.
#[derive(Debug, Default)]
pub(super) struct XdpSockets(Vec<RawFd>);

/// `XDP_STATISTICS` of a device: the sums over its sockets. Frames, since the device was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct XdpStats {
    /// Received frames that the kernel dropped: too long for a buffer, or no buffer was left to receive into.
    pub(super) rx_dropped: u64,
    /// Buffers to receive into that the kernel refused, because they lie outside of the memory registered with it.
    pub(super) rx_invalid_descs: u64,
    /// Frames to send that the kernel refused, for the same reason or because of their length.
    pub(super) tx_invalid_descs: u64,
    /// Received frames that the kernel dropped because nobody had fetched those before them.
    pub(super) rx_ring_full: u64,
    /// Times that the kernel found no buffer to receive into.
    pub(super) rx_fill_ring_empty_descs: u64,
    /// Times that the kernel found no frame to send.
    pub(super) tx_ring_empty_descs: u64,
}

impl XdpSockets {
    /// Returns the AF_XDP sockets opened since `before`.
    pub(super) fn opened_since(before: &BTreeSet<RawFd>) -> Self {
        let is_xdp = |fd: &RawFd| socket_domain(borrow(*fd)).is_ok_and(|domain| domain == AddressFamily::XDP);
        Self(open_sockets().difference(before).copied().filter(is_xdp).collect())
    }

    /// Returns the kernel's counters; `None` if the device has no AF_XDP socket.
    pub(super) fn stats(&self) -> Option<XdpStats> {
        let all = self.0.iter().filter_map(|&fd| xdp_statistics(borrow(fd)).ok());
        let add = |sum: XdpStats, one: rustix::net::xdp::XdpStatistics| XdpStats {
            rx_dropped: sum.rx_dropped.saturating_add(one.rx_dropped),
            rx_invalid_descs: sum.rx_invalid_descs.saturating_add(one.rx_invalid_descs),
            tx_invalid_descs: sum.tx_invalid_descs.saturating_add(one.tx_invalid_descs),
            rx_ring_full: sum.rx_ring_full.saturating_add(one.rx_ring_full.unwrap_or(0)),
            rx_fill_ring_empty_descs: sum
                .rx_fill_ring_empty_descs
                .saturating_add(one.rx_fill_ring_empty_descs.unwrap_or(0)),
            tx_ring_empty_descs: sum.tx_ring_empty_descs.saturating_add(one.tx_ring_empty_descs.unwrap_or(0)),
        };
        (!self.0.is_empty()).then(|| all.fold(XdpStats::default(), add))
    }
}

impl XdpStats {
    /// The counters by name, as `iwarpctl port stats` lists them.
    pub(super) fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("xdp_rx_dropped", self.rx_dropped),
            ("xdp_rx_invalid_descs", self.rx_invalid_descs),
            ("xdp_tx_invalid_descs", self.tx_invalid_descs),
            ("xdp_rx_ring_full", self.rx_ring_full),
            ("xdp_rx_fill_ring_empty_descs", self.rx_fill_ring_empty_descs),
            ("xdp_tx_ring_empty_descs", self.tx_ring_empty_descs),
        ]
    }
}
