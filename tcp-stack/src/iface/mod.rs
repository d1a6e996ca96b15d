//! Everything between the port and TCP: frames are classified, neighbors resolved, headers put before
//! segments, ARP, neighbor discovery and echo answered.
//!
//! ```text
//!   port ── RxFrame ──> receive ──┬── Tcp ────────> the stack
//!                                 ├── Icmp errors ─> the stack
//!                                 └── ARP, NDP, echo ──> neighbor cache, queue
//!   stack ── resolve, encapsulate ──> TxFrame        queue ── poll_transmit ──> TxFrame
//! ```

mod classify;
mod discovery;
mod drops;
mod neighbor;
mod stats;
mod transmit;

pub use drops::{DropReason, Drops};
pub use stats::InterfaceStats;
pub(crate) use transmit::Run;

use crate::buf::{Buf, RxFrame};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr, TcpHeader, TcpOptions};
use classify::{Classified, EchoRequest};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;
use neighbor::{Lookup, NeighborCache};
use transmit::{Own, OwnQueue};

/// What an interface is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceConfig {
    /// Our link address.
    pub(crate) mac: MacAddr,
    /// The VLAN, 1..=4094, that we are in; `None` for untagged frames.
    pub(crate) vlan: Option<u16>,
    /// Our IPv4 address and its link's prefix.
    pub(crate) ipv4: Option<Ipv4Cidr>,
    /// Where IPv4 packets for other links go.
    pub(crate) ipv4_gateway: Option<Ipv4Addr>,
    /// Our IPv6 address and its link's prefix; with it there is a link-local one, made from the MAC.
    pub(crate) ipv6: Option<Ipv6Cidr>,
    /// Where IPv6 packets for other links go.
    pub(crate) ipv6_gateway: Option<Ipv6Addr>,
    /// Answers requests and announces our addresses; of several workers on a port, one does.
    pub(crate) primary: bool,
    /// The IPv4 header's and TCP's checksums are left to the port.
    pub(crate) tx_checksum_offload: bool,
    /// Neighbors that are remembered at most.
    pub(crate) neighbors_max: u32,
}

/// What became of a received frame.
#[derive(Debug)]
pub(crate) enum Received<B> {
    /// A TCP segment for us.
    Tcp(TcpSegment<B>),
    /// Somebody reports on a TCP segment that we sent.
    Icmp(IcmpError),
    /// It was dealt with, or dropped.
    Done,
}

/// A TCP segment for us, with a right checksum.
#[derive(Debug)]
pub(crate) struct TcpSegment<B> {
    /// The address of ours that it was sent to.
    pub(crate) local: IpAddr,
    /// The address that it was sent from: one that a host can have.
    pub(crate) remote: IpAddr,
    /// Its header.
    pub(crate) header: TcpHeader,
    /// Its options.
    pub(crate) options: TcpOptions,
    /// The frame.
    pub(crate) buf: B,
    /// Where in the frame its payload is.
    pub(crate) payload: Range<usize>,
    /// DSCP and ECN bits of its IP header.
    pub(crate) traffic_class: u8,
    /// The station that the frame came from.
    pub(crate) src_mac: MacAddr,
}

/// What somebody reports on a TCP segment that we sent. Not verified: RFC 5927 says how far to believe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// Our end.
    pub(crate) local: SocketAddr,
    /// The other end.
    pub(crate) remote: SocketAddr,
    /// Sequence number of the segment.
    pub(crate) seq: SeqNum,
    /// What is reported.
    pub(crate) kind: IcmpErrorKind,
}

/// What an ICMP error means to TCP (RFC 1122 §4.2.3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// Nobody listens there.
    Hard,
    /// The segment did not arrive; a later one may.
    Soft,
    /// The segment was larger than a link on its way carries.
    PacketTooBig {
        /// Largest packet that it carries, bytes; zero where the router does not say.
        mtu: u32,
    },
}

/// Why nothing can be sent to an address now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The next hop's link address is being asked for: try again when [`Interface::resolutions`] changes.
    Resolving,
    /// The next hop does not answer.
    Unreachable,
    /// No next hop leads there, or we have no address of that family.
    NoRoute,
}

/// One port as the stack sees it.
#[derive(Debug)]
pub(crate) struct Interface<B> {
    config: InterfaceConfig,
    link_local: Ipv6Addr,
    neighbors: NeighborCache,
    queue: OwnQueue<B>,
    stats: InterfaceStats,
    drops: Drops,
}

impl<B: Buf> Interface<B> {
    /// An interface; `keys` are secret random numbers.
    pub(crate) fn new(config: InterfaceConfig, keys: (u64, u64)) -> Self {
        let neighbors_max = usize::try_from(config.neighbors_max).unwrap_or(usize::MAX);
        let mut interface = Self {
            config,
            link_local: config.mac.link_local(),
            neighbors: NeighborCache::new(neighbors_max, keys),
            queue: OwnQueue::new(),
            stats: InterfaceStats::default(),
            drops: Drops::default(),
        };
        if config.primary {
            interface.announce();
        }
        interface
    }

    /// Takes a frame from the port.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, frame: RxFrame<B>) -> Received<B> {
        let RxFrame { buf, checksum } = frame;
        let bytes = buf.bytes();
        let octets = u64::try_from(bytes.len()).unwrap_or(0);
        self.stats.rx_frames = self.stats.rx_frames.wrapping_add(1);
        self.stats.rx_octets = self.stats.rx_octets.wrapping_add(octets);
        match self.classify(bytes, checksum) {
            Ok(Classified::Tcp(tcp)) => {
                self.stats.rx_delivered = self.stats.rx_delivered.wrapping_add(1);
                self.stats.rx_tcp_segments = self.stats.rx_tcp_segments.wrapping_add(1);
                self.stats.rx_software_checksums =
                    self.stats.rx_software_checksums.wrapping_add(u64::from(tcp.verified_in_software));
                Received::Tcp(TcpSegment {
                    local: tcp.local,
                    remote: tcp.remote,
                    header: tcp.header,
                    options: tcp.options,
                    buf,
                    payload: tcp.payload,
                    traffic_class: tcp.traffic_class,
                    src_mac: tcp.src_mac,
                })
            }
            Ok(other) => self.receive_other(now, buf, other),
            Err(reason) => {
                self.drops.count(reason);
                Received::Done
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_other(&mut self, now: Instant, buf: B, frame: Classified) -> Received<B> {
        let outcome = match frame {
            // Dealt with before.
            Classified::Tcp(_) => Ok(None),
            Classified::Icmp(error) => {
                self.stats.rx_icmp_errors = self.stats.rx_icmp_errors.wrapping_add(1);
                Ok(Some(error))
            }
            Classified::Arp { packet, to_us } => self.receive_arp(now, &packet, to_us).map(|()| None),
            Classified::Ndp(message) => self.receive_ndp(now, &message).map(|()| None),
            Classified::Echo(request) => self.receive_echo(buf, request).map(|()| None),
        };
        match outcome {
            Ok(error) => {
                self.stats.rx_delivered = self.stats.rx_delivered.wrapping_add(1);
                error.map_or(Received::Done, Received::Icmp)
            }
            Err(reason) => {
                self.drops.count(reason);
                Received::Done
            }
        }
    }

    fn receive_echo(&mut self, buf: B, request: EchoRequest) -> Result<(), DropReason> {
        if !self.config.primary {
            return Err(DropReason::NotPrimary);
        }
        if !self.queue.push(Own::EchoReply { buf, request }) {
            return Err(DropReason::IcmpEchoLimit);
        }
        self.stats.rx_echo_requests = self.stats.rx_echo_requests.wrapping_add(1);
        Ok(())
    }

    /// A frame that [`Self::receive`] counted as delivered was dropped after all.
    #[inline]
    pub(crate) fn drop_delivered(&mut self, reason: DropReason) {
        self.stats.rx_delivered = self.stats.rx_delivered.wrapping_sub(1);
        self.drops.count(reason);
    }

    /// Whether an address is one of ours.
    #[inline]
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.config.ipv4.is_some_and(|ours| ours.address() == address),
            IpAddr::V6(address) => {
                self.config.ipv6.is_some_and(|ours| ours.address() == address || self.link_local == address)
            }
        }
    }

    /// The address of ours to use towards `remote`; `None` without one of that family.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.config.ipv4.map(|ours| ours.address().into()),
            IpAddr::V6(remote) if remote.is_unicast_link_local() || is_link_local_multicast(remote) => {
                self.config.ipv6.map(|_| self.link_local.into())
            }
            IpAddr::V6(_) => self.config.ipv6.map(|ours| ours.address().into()),
        }
    }

    /// The address on the link that a packet for `remote` goes to first.
    #[inline]
    fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(remote) => {
                let on_link = self.config.ipv4?.contains(remote);
                let hop = if on_link { Some(remote) } else { self.config.ipv4_gateway };
                hop.map(IpAddr::V4)
            }
            IpAddr::V6(remote) => {
                let on_link = self.config.ipv6?.contains(remote) || remote.is_unicast_link_local();
                let hop = if on_link { Some(remote) } else { self.config.ipv6_gateway };
                hop.map(IpAddr::V6)
            }
        }
    }

    /// The link address that a packet for `remote` goes to; asks for it when it is not known.
    #[inline]
    pub(crate) fn resolve(&mut self, now: Instant, remote: IpAddr) -> Result<MacAddr, NotReady> {
        let Some(hop) = self.next_hop(remote) else { return Err(NotReady::NoRoute) };
        match self.neighbors.resolve(now, hop) {
            Lookup::Ready(mac) => Ok(mac),
            Lookup::Unreachable => Err(NotReady::Unreachable),
            Lookup::Resolving(solicit) => {
                if let Some(solicit) = solicit {
                    self.solicit(solicit);
                }
                Err(NotReady::Resolving)
            }
        }
    }

    /// A number that changes whenever a neighbor's link address has become known.
    #[inline]
    pub(crate) fn resolutions(&self) -> u32 {
        self.neighbors.resolutions()
    }

    /// What was sent to `remote` arrives there, as its acknowledgements show: its next hop need not be
    /// probed.
    #[inline]
    pub(crate) fn confirm(&mut self, now: Instant, remote: IpAddr) {
        if let Some(hop) = self.next_hop(remote) {
            self.neighbors.confirm(now, hop);
        }
    }

    /// What was sent to `remote` does not seem to arrive: its next hop is probed.
    ///
    /// RFC 1122 §3.3.1.4: "TCP or any connection-oriented transport protocol should be able to give
    /// negative advice, e.g., triggered by excessive retransmissions."
    pub(crate) fn doubt(&mut self, now: Instant, remote: IpAddr) {
        if let Some(hop) = self.next_hop(remote) {
            self.neighbors.doubt(now, hop);
        }
    }

    /// Asks neighbors again, and gives up on those that do not answer.
    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        let Self { neighbors, queue, stats, .. } = self;
        neighbors.handle_timeouts(now, &mut |solicit| {
            if !queue.push(Own::Solicit(solicit)) {
                stats.tx_queue_full = stats.tx_queue_full.wrapping_add(1);
            }
        });
    }

    /// When [`Self::handle_timeouts`] must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.neighbors.next_deadline()
    }

    /// Whether frames of the interface's own wait to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.queue.is_empty()
    }

    /// What was counted, but for drops.
    pub(crate) fn stats(&self) -> InterfaceStats {
        let neighbor::Tally { resolved, failed, evicted, refused } = self.neighbors.tally;
        InterfaceStats {
            neighbors_resolved: resolved,
            neighbors_failed: failed,
            neighbors_evicted: evicted,
            neighbors_refused: refused,
            ..self.stats
        }
    }

    /// Drops, by reason.
    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }
}

/// Whether a group is confined to the link.
fn is_link_local_multicast(group: Ipv6Addr) -> bool {
    let [first, second, ..] = group.octets();
    first == 0xff && second & 0xf == 2
}

#[cfg(test)]
mod tests;
