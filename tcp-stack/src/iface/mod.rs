//! The interface between the port and TCP: classifies frames, reassembles fragments, resolves neighbors, writes the
//! headers before segments, and answers ARP, neighbor discovery and echo. The stack owns one per port.
//!
//! ```text
//!   port ── RxFrame ──> receive ──┬── Tcp ────────> the stack
//!                                 ├── Icmp errors ─> the stack
//!                                 ├── ARP, NDP, echo ──> neighbor cache, queue
//!                                 └── fragments ─> wait; as a packet, receive again
//!   stack ── resolve, encapsulate ──> TxFrame        queue ── poll_transmit ──> TxFrame
//! ```

mod classify;
mod discovery;
mod drops;
mod fragments;
mod neighbor;
mod path_mtu;
mod plain;
mod stats;
mod template;
mod transmit;

pub use drops::{DropReason, Drops};
pub(crate) use fragments::FragmentLimits;
pub(crate) use path_mtu::PathMtuCache;
pub(crate) use plain::PlainSegment;
pub use stats::InterfaceStats;
pub(crate) use transmit::SegmentRun;

use crate::buf::{Buf, RxChecksum, RxFrame};
use crate::seq::SeqNum;
use crate::time::{Duration, Instant};
use crate::wire::{Ipv4Cidr, Ipv4Header, Ipv6Cidr, Ipv6Header, MacAddr, TcpHeader, TcpOptions};
use classify::{Classified, EchoRequest, Tcp};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;
use fragments::{Fragment, Fragments, Insertion};
use neighbor::{Keys, Lookup, NeighborCache};
use template::Template;
use transmit::{OwnFrame, OwnFrameQueue};

/// Minimum time between two ICMP errors that we send.
const ERROR_INTERVAL: Duration = Duration::from_millis(100);

/// Announcements of our addresses at start, 2 s apart: RFC 5227 §1.1 has ANNOUNCE_NUM of 2 and ANNOUNCE_INTERVAL of 2
/// s, RFC 4861 §7.2.6 up to three advertisements no less than 1 s apart.
const ANNOUNCEMENTS: u8 = 3;

/// Configuration of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterfaceConfig {
    /// Our link address, the source of every frame.
    pub(crate) mac: MacAddr,
    /// The largest IP packet, bytes.
    pub(crate) mtu: u16,
    /// The VLAN, 1..=4094, that we are in; `None` for untagged frames.
    pub(crate) vlan: Option<u16>,
    /// Our IPv4 address and its prefix.
    pub(crate) ipv4: Option<Ipv4Cidr>,
    /// Next hop of IPv4 packets beyond the prefix.
    pub(crate) ipv4_gateway: Option<Ipv4Addr>,
    /// Our IPv6 address and its prefix; a link-local address is added.
    pub(crate) ipv6: Option<Ipv6Cidr>,
    /// Our link-local address; `None`: made from the MAC.
    pub(crate) ipv6_link_local: Option<Ipv6Addr>,
    /// Next hop of IPv6 packets beyond the prefix.
    pub(crate) ipv6_gateway: Option<Ipv6Addr>,
    /// True to answer requests and announce our addresses: exactly one worker of a port does.
    pub(crate) primary: bool,
    /// True to leave the TCP checksum to the port.
    pub(crate) tx_checksum_offload: bool,
    /// True to leave the IPv4 header checksum to the port, too; only together with the TCP checksum.
    pub(crate) tx_ip_checksum_offload: bool,
    /// Entries of the neighbor cache.
    pub(crate) neighbors_max: u32,
    /// TTL or hop limit of our packets, 1..=255.
    pub(crate) hop_limit: u8,
    /// Configured limits of reassembly.
    pub(crate) fragments: FragmentLimits,
}

/// The result of receiving a frame.
#[derive(Debug)]
pub(crate) enum Received<B> {
    /// A TCP segment for us.
    Tcp(TcpSegment<B>),
    /// An ICMP error about a TCP segment that we sent.
    Icmp(IcmpError),
    /// The frame was handled or dropped.
    Done,
}

/// A TCP segment for us with a correct checksum.
#[derive(Debug)]
pub(crate) struct TcpSegment<B> {
    /// Destination address, one of ours.
    pub(crate) local: IpAddr,
    /// Source address, one that a host may have.
    pub(crate) remote: IpAddr,
    /// The TCP header, as received.
    pub(crate) header: TcpHeader,
    /// The TCP options, as received.
    pub(crate) options: TcpOptions,
    /// Frame that contains the segment.
    pub(crate) buf: B,
    /// Position of the payload in the frame.
    pub(crate) payload: Range<usize>,
    /// DSCP and ECN bits of the IP header.
    pub(crate) traffic_class: u8,
    /// Link address that the frame came from.
    pub(crate) src_mac: MacAddr,
    /// True if the packet was fragmented.
    pub(crate) reassembled: bool,
}

/// An ICMP error about a TCP segment that we sent. It is not authenticated: RFC 5927 says what to check before acting
/// on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    /// Our address and port, the source of the quoted segment.
    pub(crate) local: SocketAddr,
    /// Address and port that the quoted segment was sent to.
    pub(crate) remote: SocketAddr,
    /// Sequence number of the quoted segment.
    pub(crate) seq: SeqNum,
    /// Length of its IP packet as quoted, bytes.
    pub(crate) packet_len: u32,
    /// Meaning of the error to TCP.
    pub(crate) kind: IcmpErrorKind,
}

/// The meaning of an ICMP error to TCP (RFC 1122 §4.2.3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpErrorKind {
    /// Nobody listens at the destination.
    Hard,
    /// The segment was lost; a later one may arrive.
    Soft,
    /// The packet was larger than the MTU of a link on its path.
    PacketTooBig {
        /// MTU of that link, bytes; zero if the router did not report it.
        mtu: u32,
    },
}

/// The reason why a packet cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReady {
    /// The next hop's link address is being resolved, or has to wait for that: retry when [`Interface::resolutions`]
    /// changes.
    Resolving,
    /// The next hop does not answer.
    Unreachable,
    /// No route exists, or we have no address of that family.
    NoRoute,
}

/// One port as the stack sees it.
#[derive(Debug)]
pub(crate) struct Interface<B> {
    config: InterfaceConfig,
    template_base: [u8; Template::LEN],
    link_local: Ipv6Addr,
    neighbors: NeighborCache,
    fragments: Fragments<B>,
    queue: OwnFrameQueue<B>,
    /// Time from which an ICMP error may be sent again.
    errors_from: Instant,
    /// Announcements left to send, the time of the next one, and the time from which our addresses may be defended
    /// again.
    announcements: u8,
    announce_at: Option<Instant>,
    defend_from: Instant,
    stats: InterfaceStats,
    drops: Drops,
}

impl<B: Buf> Interface<B> {
    /// Returns an interface; `keys` are secret random numbers.
    pub(crate) fn new(config: InterfaceConfig, keys: (u64, u64)) -> Self {
        let neighbors_max = usize::try_from(config.neighbors_max).unwrap_or(usize::MAX);
        let mut interface = Self {
            config,
            template_base: Self::template_base(&config),
            link_local: config.ipv6_link_local.unwrap_or_else(|| config.mac.link_local()),
            neighbors: NeighborCache::new(neighbors_max, keys),
            fragments: Fragments::new(config.fragments, Keys(keys.0, keys.1)),
            queue: OwnFrameQueue::new(),
            errors_from: Instant::ZERO,
            announcements: 0,
            announce_at: None,
            defend_from: Instant::ZERO,
            stats: InterfaceStats::default(),
            drops: Drops::default(),
        };
        if config.primary {
            interface.announce();
            interface.announcements = ANNOUNCEMENTS - 1;
        }
        interface
    }

    /// Adds a neighbor with a configured link address, which no received frame changes. Must be called before the first
    /// frame.
    pub(crate) fn add_static_neighbor(&mut self, ip: IpAddr, mac: MacAddr) {
        self.neighbors.add_static(ip, mac);
    }

    /// Takes a frame from the port.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, frame: RxFrame<B>) -> Received<B> {
        let RxFrame { buf, checksum } = frame;
        let bytes = buf.bytes();
        let len = u64::try_from(bytes.len()).unwrap_or(0);
        self.stats.rx_frames = self.stats.rx_frames.wrapping_add(1);
        self.stats.rx_bytes = self.stats.rx_bytes.wrapping_add(len);
        match self.classify(bytes, checksum) {
            Ok(Classified::Tcp(tcp)) => {
                self.stats.rx_delivered = self.stats.rx_delivered.wrapping_add(1);
                self.receive_tcp(buf, tcp, false)
            }
            Ok(other) => {
                self.stats.rx_delivered = self.stats.rx_delivered.wrapping_add(1);
                self.receive_other(now, buf, other)
            }
            Err(reason) => {
                self.drops.count(reason);
                Received::Done
            }
        }
    }

    #[inline]
    fn receive_tcp(&mut self, buf: B, tcp: Tcp, reassembled: bool) -> Received<B> {
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
            reassembled,
        })
    }

    /// Handles a frame that carries no TCP segment, or not a whole one; it counts as delivered unless it is dropped.
    #[cold]
    #[inline(never)]
    fn receive_other(&mut self, now: Instant, buf: B, frame: Classified) -> Received<B> {
        let outcome = match frame {
            // Reached only with a reassembled packet.
            Classified::Tcp(tcp) => return self.receive_tcp(buf, tcp, true),
            Classified::Fragment(fragment) => return self.receive_fragment(now, buf, &fragment),
            Classified::Icmp(error) => {
                self.stats.rx_icmp_errors = self.stats.rx_icmp_errors.wrapping_add(1);
                return Received::Icmp(error);
            }
            Classified::Arp { packet, to_us } => self.receive_arp(now, &packet, to_us),
            Classified::Ndp(message) => self.receive_ndp(now, &message),
            Classified::Echo(request) => self.receive_echo(buf, request),
        };
        if let Err(reason) = outcome {
            self.drop_delivered(reason);
        }
        Received::Done
    }

    /// Adds a fragment to its packet; receives the packet once it is complete.
    fn receive_fragment(&mut self, now: Instant, buf: B, fragment: &Fragment) -> Received<B> {
        self.stats.rx_fragments = self.stats.rx_fragments.wrapping_add(1);
        let Self { fragments, stats, drops, .. } = self;
        let mut lost = |reason| {
            stats.rx_delivered = stats.rx_delivered.wrapping_sub(1);
            drops.count(reason);
        };
        let whole = match fragments.take(now, fragment, buf, &mut lost) {
            Insertion::Held => return Received::Done,
            Insertion::Whole(whole) => whole,
            Insertion::Dropped(reason) => {
                lost(reason);
                return Received::Done;
            }
        };
        self.stats.rx_reassembled = self.stats.rx_reassembled.wrapping_add(1);
        let reason = match self.classify(whole.bytes(), RxChecksum::Unknown) {
            // A fragment inside a reassembled packet.
            Ok(Classified::Fragment(_)) => DropReason::FragmentMalformed,
            Ok(packet) => return self.receive_other(now, whole, packet),
            Err(reason) => reason,
        };
        self.drop_delivered(reason);
        Received::Done
    }

    fn receive_echo(&mut self, buf: B, mut request: EchoRequest) -> Result<(), DropReason> {
        if !self.config.primary {
            return Err(DropReason::NotPrimary);
        }
        let header_len = if request.local.is_ipv4() { Ipv4Header::LEN } else { Ipv6Header::LEN };
        let len_max = usize::from(self.config.mtu).saturating_sub(header_len);
        if request.message.len() > len_max {
            // RFC 4443 §4.2: "The data received in the ICMPv6 Echo Request message MUST be returned entirely".
            if request.local.is_ipv6() {
                return Err(DropReason::IcmpEchoTooLong);
            }
            // RFC 1122 §3.2.2.6: "if sending the Echo Reply requires intentional fragmentation that is not implemented,
            // the datagram MUST be truncated to maximum transmission size [...] and sent."
            request.message.end = request.message.start.saturating_add(len_max);
            request.truncated = true;
        }
        if !self.queue.push(OwnFrame::EchoReply { buf, request }) {
            return Err(DropReason::IcmpEchoLimit);
        }
        self.stats.rx_echo_requests = self.stats.rx_echo_requests.wrapping_add(1);
        Ok(())
    }

    /// Counts a drop of a frame that [`Self::receive`] counted as delivered.
    #[inline]
    pub(crate) fn drop_delivered(&mut self, reason: DropReason) {
        self.stats.rx_delivered = self.stats.rx_delivered.wrapping_sub(1);
        self.drops.count(reason);
    }

    /// Returns true if `address` is one of ours.
    #[inline]
    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.config.ipv4.is_some_and(|ours| ours.address() == address),
            IpAddr::V6(address) => {
                self.config.ipv6.is_some_and(|ours| ours.address() == address || self.link_local == address)
            }
        }
    }

    /// Returns our address to use towards `remote`, or `None` if we have none of that family.
    pub(crate) fn source_for(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.config.ipv4.map(|ours| ours.address().into()),
            IpAddr::V6(remote) if remote.is_unicast_link_local() || is_link_local_multicast(remote) => {
                self.config.ipv6.map(|_| self.link_local.into())
            }
            IpAddr::V6(_) => self.config.ipv6.map(|ours| ours.address().into()),
        }
    }

    /// Returns true if a station with this address may be on our link: a neighbor in the prefix, one with a link-local
    /// address, or the gateway, which may be outside of the prefix (a host address with a prefix of 32 or 128 bits).
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let reserved = self
                    .config
                    .ipv4
                    .is_some_and(|ours| [ours.broadcast(), ours.network()].contains(&Some(address)));
                let near = self.config.ipv4.is_some_and(|ours| ours.contains(address));
                near && !reserved || self.config.ipv4_gateway == Some(address)
            }
            IpAddr::V6(address) => {
                self.config.ipv6.is_some_and(|ours| ours.contains(address))
                    || address.is_unicast_link_local()
                    || self.config.ipv6_gateway == Some(address)
            }
        }
    }

    /// Returns the on-link address of the next hop to `remote`.
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

    /// Returns the link address of the next hop to `remote`; starts resolution if it is not known.
    #[inline(always)]
    pub(crate) fn resolve(&mut self, now: Instant, remote: IpAddr) -> Result<MacAddr, NotReady> {
        let Some(hop) = self.next_hop(remote) else { return Err(NotReady::NoRoute) };
        if let Some(mac) = self.neighbors.lookup_ready(now, hop) {
            return Ok(mac);
        }
        if self.is_local(remote) {
            return Ok(self.config.mac);
        }
        match self.neighbors.resolve(now, hop) {
            Lookup::Ready(mac) => Ok(mac),
            Lookup::Unreachable => Err(NotReady::Unreachable),
            Lookup::NoRoom => Err(NotReady::Resolving),
            Lookup::Resolving(solicit) => {
                if let Some(solicit) = solicit {
                    self.solicit(solicit);
                }
                Err(NotReady::Resolving)
            }
        }
    }

    /// Returns a counter that changes whenever a resolution has ended: the neighbor has answered, or it does not.
    #[inline]
    pub(crate) fn resolutions(&self) -> u32 {
        let [.., a, b, c, d] = self.neighbors.counts.failed.to_be_bytes();
        self.neighbors.resolutions().wrapping_add(u32::from_be_bytes([a, b, c, d]))
    }

    /// Confirms reachability: acknowledgments show that packets to `remote` arrive, so its next hop need not be probed.
    #[inline]
    pub(crate) fn confirm(&mut self, now: Instant, remote: IpAddr) {
        if let Some(hop) = self.next_hop(remote) {
            self.neighbors.confirm(now, hop);
        }
    }

    /// Makes the next hop probed, because packets to `remote` do not seem to arrive.
    ///
    /// RFC 1122 §3.3.1.4: "TCP or any connection-oriented transport protocol should be able to give
    /// negative advice, e.g., triggered by excessive retransmissions."
    pub(crate) fn suspect(&mut self, now: Instant, remote: IpAddr) {
        if let Some(hop) = self.next_hop(remote) {
            self.neighbors.suspect(now, hop);
        }
    }

    /// Solicits neighbors again, fails those that do not answer, and expires incomplete packets.
    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        self.expire_fragments(now);
        self.announce_again(now);
        let Self { neighbors, queue, stats, .. } = self;
        neighbors.handle_timeouts(now, &mut |solicit| {
            if !queue.push(OwnFrame::Solicit(solicit)) {
                stats.tx_queue_full = stats.tx_queue_full.wrapping_add(1);
            }
        });
    }

    /// Returns the time at which [`Self::handle_timeouts`] must be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let announce = (self.announcements > 0).then_some(self.announce_at.unwrap_or(Instant::ZERO));
        [self.neighbors.next_deadline(), self.fragments.next_deadline(), announce].into_iter().flatten().min()
    }

    /// RFC 1122 §3.3.2: "If this timeout expires, the partially-reassembled datagram MUST be discarded and
    /// an ICMP Time Exceeded message sent to the source host (if fragment zero has been received)."
    fn expire_fragments(&mut self, now: Instant) {
        let Self { fragments, queue, stats, drops, errors_from, config, .. } = self;
        let (mut frames_lost, mut errors) = (0_u64, 0_u64);
        let mut lost = |reason| {
            frames_lost = frames_lost.wrapping_add(1);
            drops.count(reason);
        };
        fragments.handle_timeouts(now, &mut lost, &mut |first| {
            // RFC 4443 §2.4 (f): "an IPv6 node MUST limit the rate of ICMPv6 error messages it originates."
            if config.primary && now >= *errors_from {
                *errors_from = now + ERROR_INTERVAL;
                errors = errors.wrapping_add(u64::from(!queue.push(OwnFrame::TimeExceeded { first })));
            }
        });
        stats.rx_delivered = stats.rx_delivered.wrapping_sub(frames_lost);
        stats.tx_queue_full = stats.tx_queue_full.wrapping_add(errors);
    }

    /// Returns true if frames of the interface's own wait to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns the counters except drops.
    pub(crate) fn stats(&self) -> InterfaceStats {
        let neighbor::NeighborCounts {
            resolved,
            failed,
            evicted,
            refused,
            moved,
            flapping,
            contested,
            upheld,
        } = self.neighbors.counts;
        InterfaceStats {
            neighbors_resolved: resolved,
            neighbors_failed: failed,
            neighbors_evicted: evicted,
            neighbors_refused: refused,
            neighbors_moved: moved,
            neighbors_flapping: flapping,
            neighbors_contested: contested,
            neighbors_upheld: upheld,
            ..self.stats
        }
    }

    /// Returns the drop counters.
    pub(crate) fn drops(&self) -> &Drops {
        &self.drops
    }
}

/// Returns true if a group's scope is the link.
fn is_link_local_multicast(group: Ipv6Addr) -> bool {
    let [first, second, ..] = group.octets();
    first == 0xff && second & 0xf == 2
}

#[cfg(test)]
mod tests;
