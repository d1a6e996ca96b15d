//! The configuration of a stack. All memory is sized from these values when the stack is made.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::cc::BBR_LOSS_PERCENT;
use crate::our_ports::OurPorts;
use crate::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr, Rss};

/// The configuration of one stack: one worker's share of one port.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our link (MAC) address.
    pub mac: MacAddr,
    /// The 802.1Q VLAN that all frames carry, 1..=4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// The largest IP packet, bytes: 576..=9600, at least 1280 for IPv6.
    pub mtu: u16,
    /// Our IPv4 address and its prefix.
    pub ipv4: Option<Ipv4Cidr>,
    /// Router for IPv4 packets to addresses outside of the prefix.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// Our IPv6 address and its prefix, beside the link-local one.
    pub ipv6: Option<Ipv6Cidr>,
    /// Our link-local IPv6 address; `None`: the one that [`Self::mac`] gives.
    pub ipv6_link_local: Option<Ipv6Addr>,
    /// Router for IPv6 packets to addresses outside of the prefix.
    pub ipv6_gateway: Option<Ipv6Addr>,
    /// TTL of IPv4 and hop limit of IPv6 packets that we send: 1..=255.
    pub hop_limit: u8,
    /// True if this stack answers ARP, neighbor discovery and ping. Exactly one of the stacks that share a port
    /// does; the others only learn.
    pub primary: bool,
    /// Our TCP ports, if the host's own stack has the same addresses and receives the same frames; `None`: all. The
    /// host answers ARP, neighbor discovery and ping, and segments to other ports.
    pub shared_ports: Option<OurPorts>,
    /// Source ports of active opens that name none (RFC 6335 §6: dynamic ports).
    pub source_ports: RangeInclusive<u16>,
    /// True if the port fills in the TCP checksum of sent segments.
    pub tx_checksum_offload: bool,
    /// True if the port fills in the IPv4 header checksum of sent TCP segments. Needs
    /// [`Self::tx_checksum_offload`].
    pub tx_ip_checksum_offload: bool,
    /// The port's segmentation offload (TSO); `None` if it has none, or it must not be used. Needs
    /// [`Self::tx_checksum_offload`] and buffers that can be [linked](crate::Buf::link).
    pub segmentation: Option<Segmentation>,
    /// Connections, half-open ones included: 1..=2^20. A connection that holds no data takes less than 1 KiB, so
    /// 65,536 of them take 64 MiB. The same number of compact TIME-WAIT records exists beside them.
    pub connections_max: u32,
    /// Connections that one source, an IPv4 address or an IPv6 /64, may have, half-open ones included: 1 or more.
    /// Active opens are counted and not limited.
    pub connections_per_source_max: u32,
    /// Entries of the neighbor cache, beside [`Self::neighbors`].
    pub neighbors_max: u32,
    /// Neighbors with a configured link address: on-link addresses, each once. The stack never asks for them, and
    /// no received frame changes them.
    pub neighbors: Vec<(IpAddr, MacAddr)>,
    /// IP packets that may wait for fragments at the same time: 0..=1024; with 0, fragments are dropped. No source
    /// has more than a quarter of them.
    pub fragments_datagrams_max: u16,
    /// Memory of waiting fragments, bytes of true buffer size. No source has more than a quarter.
    pub fragments_bytes_max: u32,
    /// Time that a packet waits for its fragments, milliseconds: 60 seconds for IPv6 (RFC 8200 §4.5), 60 to 120 for
    /// IPv4 (RFC 1122 §3.3.2).
    pub fragments_timeout_ms: u32,
    /// Entries of the path MTU cache, for destinations behind a smaller MTU than ours: 0..=2^20.
    pub path_mtu_entries_max: u32,
    /// Memory of out-of-order segments, per connection, bytes of true buffer size.
    pub held_bytes_max: u32,
    /// Out-of-order segments held, per connection.
    pub held_segments_max: u32,
    /// Frame buffers that all connections together may hold for sending, and as many again for reception: the size
    /// of the pool that they come from. Bookkeeping takes 120 bytes each.
    pub buffers_max: u32,
    /// Packet buffers that received data of all connections together may retain: out-of-order segments, and
    /// delivered data that the application keeps ([`Stack::retain`](crate::Stack::retain)). Values above half of
    /// [`Self::buffers_max`] count as half.
    pub received_buffers_max: u32,
    /// Payload queued or in flight, per connection, bytes.
    pub send_buffer_bytes: u32,
    /// The largest receive window, per connection, bytes: 1024..=2^30. The window grows as the application keeps up
    /// with the path.
    pub receive_window_bytes: u32,
    /// The initial receive window, bytes: 1024..=[`Self::receive_window_bytes`]; the latter disables growth.
    pub receive_window_initial_bytes: u32,
    /// Bytes that all connections together may have received and not consumed. Each window is at most half of what
    /// is left, so that stalled connections leave memory to others; but it is never less than 4096 bytes and two
    /// segments, and offered windows are kept. The bound is therefore approximate.
    pub receive_memory_bytes: u64,
    /// Parameters of TCP itself.
    pub tcp: TcpConfig,
    /// Index of this stack's worker among those that share the port: `0..worker_count`.
    pub worker_index: u16,
    /// Workers that share the port. An active open picks a source port whose [`flow_hash`](crate::flow_hash) modulo
    /// this is `worker_index`.
    pub worker_count: u16,
    /// Receive-side scaling of a port that spreads connections over its workers itself: queue `n` belongs to worker
    /// `n`. An active open to another host picks a source port whose segments arrive at the queue `worker_index`.
    pub rss: Option<Rss>,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self {
            mac: MacAddr::UNSPECIFIED,
            vlan: None,
            mtu: 1500,
            ipv4: None,
            ipv4_gateway: None,
            ipv6: None,
            ipv6_link_local: None,
            ipv6_gateway: None,
            hop_limit: 64,
            primary: true,
            shared_ports: None,
            source_ports: 49_152..=65_535,
            tx_checksum_offload: false,
            tx_ip_checksum_offload: false,
            segmentation: None,
            connections_max: 4096,
            connections_per_source_max: u32::MAX,
            neighbors_max: 1024,
            neighbors: Vec::new(),
            fragments_datagrams_max: 64,
            fragments_bytes_max: 256 << 10,
            fragments_timeout_ms: 60_000,
            path_mtu_entries_max: 1024,
            held_bytes_max: 2 << 20,
            held_segments_max: 1024,
            buffers_max: 65_536,
            received_buffers_max: u32::MAX,
            send_buffer_bytes: 1 << 20,
            receive_window_bytes: 1 << 20,
            receive_window_initial_bytes: 64 << 10,
            receive_memory_bytes: 64 << 20,
            tcp: TcpConfig::default(),
            worker_index: 0,
            worker_count: 1,
            rss: None,
        }
    }
}

/// The limits of a port's segmentation. One frame contains only segments of the same length, of which the last may
/// be shorter: every segment is sent as it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Payload of a frame, bytes: at most 65,000 are used.
    pub bytes_max: u32,
    /// Buffers per frame, that of the headers included; below 3, segmentation is not used.
    pub buffers_max: u16,
}

/// Parameters of TCP that all connections of a stack share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// The least retransmission timeout, milliseconds. RFC 6298 §2.4 has one second; common hosts use 200.
    pub rto_min_ms: u32,
    /// The greatest retransmission timeout, milliseconds (RFC 6298 §2.5: at least 60 seconds).
    pub rto_max_ms: u32,
    /// Retransmissions of a SYN or SYN-ACK before the connection is given up (RFC 9293 §3.8.3: R2, for a SYN at
    /// least three minutes, which 7 retransmissions exceed).
    pub syn_retries: u8,
    /// True if a connection that is being opened ends once its next hop has not answered three requests for its link
    /// address, as Linux's do (`EHOSTUNREACH`). Otherwise that is a soft error, and the retries of the SYN go on (RFC
    /// 9293 §3.9.2.2).
    pub syn_needs_neighbor: bool,
    /// Retransmissions of a segment before the connection is given up (RFC 9293 §3.8.3: R2).
    pub data_retries: u8,
    /// Time that a peer may keep its window closed to queued data without accepting a byte, milliseconds; checked
    /// with each probe. 0 means without limit, as RFC 9293 §3.8.6.1 requires (MUST-37); RFC 6429 §3 leaves a limit
    /// to the application.
    pub zero_window_ms: u32,
    /// Duration of TIME-WAIT, milliseconds (RFC 9293 §3.6.1: 2 MSL, which is four minutes; common hosts wait for
    /// one).
    pub time_wait_ms: u32,
    /// Time that the peer may stay silent in FIN-WAIT-2, once all received data is consumed, milliseconds; 0 means
    /// without limit. RFC 9293 §3.6 sets none; common hosts wait for a minute.
    pub fin_wait_2_ms: u32,
    /// The longest delay of an acknowledgment, milliseconds: below 500 (RFC 9293 §3.8.6.3).
    pub delayed_ack_ms: u32,
    /// Upper bound of challenge acknowledgments per connection and [`Self::challenge_interval_ms`] (RFC 5961 §7):
    /// 1..=255. The limit of each interval is random, between half of this and all, so that it cannot be known from
    /// outside.
    pub challenge_acks_max: u8,
    /// Length of the interval of [`Self::challenge_acks_max`], milliseconds.
    pub challenge_interval_ms: u32,
    /// The longest delay of acknowledgments expected of peers, milliseconds: a tail loss probe waits for it after a
    /// lone segment (RFC 8985 §7.2: TLP.max_ack_delay).
    pub peer_delayed_ack_ms: u32,
    /// Default congestion control of connections.
    pub congestion: Congestion,
    /// Default use of explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// True if pure acknowledgments, retransmissions and probes of a DCTCP connection are sent ECN-capable, too, so
    /// that switches mark them instead of dropping them (RFC 8257 §4.1).
    pub dctcp_ect_control: bool,
    /// True if NewReno and CUBIC pace their segments, at a little more than a window per round trip; BBR always
    /// does.
    pub pacing: bool,
    /// Loss rate of a round trip above which BBR takes loss for congestion, percent: 1..=50
    /// (draft-ietf-ccwg-bbr-06 §2.8, BBR.LossThresh: 2).
    pub bbr_loss_percent: u8,
    /// True if SACK is offered and accepted (RFC 2018).
    pub sack: bool,
    /// True if timestamps are offered and accepted (RFC 7323 §3).
    pub timestamps: bool,
    /// True if window scaling is offered and accepted (RFC 7323 §2).
    pub window_scale: bool,
    /// Half-open connections of all listeners: the peer has not acknowledged our SYN-ACK. Each is a record of about
    /// 100 bytes. 1..=[`StackConfig::connections_max`].
    pub half_open_max: u32,
    /// Time for which a connection is protected from [eviction](EvictionPolicy), milliseconds: an honest peer sends
    /// its first request within it.
    pub give_way_after_ms: u32,
    /// Policy for SYN cookies (RFC 4987 §3.6).
    pub syn_cookies: SynCookies,
    /// The initial congestion window, full segments.
    pub initial_window_segments: u8,
    /// Upper bound of the initial congestion window, bytes, unless two full segments are longer. RFC 6928 §2:
    /// 14,600.
    pub initial_window_bytes: u32,
    /// The least path MTU that is believed or fallen back to, bytes: 68..=[`StackConfig::mtu`]; for IPv6 at least
    /// 1280 in any case.
    pub path_mtu_min: u16,
    /// Time before a larger path MTU is probed for, seconds (RFC 1191 §6.3, RFC 8201 §5.3: 600, at least 300); 0
    /// means never, not even after a black hole.
    pub path_mtu_age_s: u32,
    /// Consecutive timeouts of a segment longer than the base (1024 bytes, for IPv6 1280) that make the path a
    /// black hole (RFC 4821 §7.7: R1, at least 3); 0 disables the detection.
    pub black_hole_timeouts: u8,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            rto_min_ms: 200,
            rto_max_ms: 60_000,
            syn_retries: 7,
            syn_needs_neighbor: false,
            data_retries: 15,
            zero_window_ms: 0,
            time_wait_ms: 240_000,
            fin_wait_2_ms: 60_000,
            delayed_ack_ms: 40,
            challenge_acks_max: 10,
            challenge_interval_ms: 5_000,
            peer_delayed_ack_ms: 50,
            congestion: Congestion::default(),
            ecn: Ecn::default(),
            dctcp_ect_control: true,
            pacing: false,
            bbr_loss_percent: BBR_LOSS_PERCENT,
            sack: true,
            timestamps: true,
            window_scale: true,
            half_open_max: 4096,
            give_way_after_ms: 1000,
            syn_cookies: SynCookies::default(),
            initial_window_segments: 10,
            initial_window_bytes: 14_600,
            path_mtu_min: 552,
            path_mtu_age_s: 600,
            black_hole_timeouts: 3,
        }
    }
}

/// Nodes of the send pool reserved for the front parts of split segments.
const SPLITS_MAX: u32 = 256;

/// Upper bound of the receive pool's nodes reserved for in-order segments.
const IN_ORDER_NODES_MAX: u32 = 1024;

impl StackConfig {
    /// Returns [`Self::connections_max`] within its bounds.
    pub(crate) fn connections(&self) -> u32 {
        self.connections_max.clamp(1, 1 << 20)
    }

    /// Returns [`TcpConfig::half_open_max`] within its bounds.
    pub(crate) fn half_open(&self) -> u32 {
        self.tcp.half_open_max.clamp(1, self.connections())
    }

    /// Returns the nodes of the send pool beside those for data: one for each connection's FIN, and those for
    /// splits.
    pub(crate) fn kept_nodes(&self) -> u32 {
        self.connections().saturating_add(SPLITS_MAX)
    }

    /// Returns [`Self::received_buffers_max`] within its bounds.
    pub(crate) fn received_buffers(&self) -> u32 {
        self.received_buffers_max.min(self.buffers_max / 2)
    }

    /// Returns the nodes of the receive pool that out-of-order segments leave for in-order ones.
    pub(crate) fn in_order_nodes(&self) -> u32 {
        (self.buffers_max / 8).min(IN_ORDER_NODES_MAX)
    }

    /// Returns the part of `available` free nodes of the send pool that data may use.
    pub(crate) fn data_nodes(&self, available: u32) -> u32 {
        available.saturating_sub(self.kept_nodes())
    }
}

impl TcpConfig {
    /// Returns parameters for a network with round trips below a millisecond whose hosts are all configured alike:
    /// timeouts of 5 ms, acknowledgments delayed by at most 1 ms, so that a timeout does not precede the
    /// acknowledgment that it waits for. A peer that delays acknowledgments by more than 4 ms, as hosts do by
    /// default, causes spurious timeouts. They are undone (RFC 5682), at the price of one segment each.
    pub fn data_center() -> Self {
        Self { rto_min_ms: 5, delayed_ack_ms: 1, peer_delayed_ack_ms: 1, ..Self::default() }
    }

    pub(crate) fn rto_min(&self) -> Duration {
        Duration::from_millis(u64::from(self.rto_min_ms))
    }

    pub(crate) fn rto_max(&self) -> Duration {
        Duration::from_millis(u64::from(self.rto_max_ms.max(self.rto_min_ms)))
    }

    /// Returns [`Self::rto_min`] and [`Self::rto_max`], nanoseconds.
    #[inline]
    pub(crate) fn rto_bounds_nanos(&self) -> (u64, u64) {
        let nanos = |ms: u32| u64::from(ms).wrapping_mul(1_000_000);
        (nanos(self.rto_min_ms), nanos(self.rto_max_ms.max(self.rto_min_ms)))
    }

    /// Returns the time before a larger path MTU is probed for; `None` for never.
    pub(crate) fn path_mtu_age(&self) -> Option<Duration> {
        (self.path_mtu_age_s > 0).then(|| Duration::from_secs(u64::from(self.path_mtu_age_s)))
    }

    /// Returns [`Self::delayed_ack_ms`] in nanoseconds.
    #[inline]
    pub(crate) fn delayed_ack_nanos(&self) -> u64 {
        u64::from(self.delayed_ack_ms).wrapping_mul(1_000_000)
    }

    /// Returns [`Self::give_way_after_ms`] as a duration.
    pub(crate) fn give_way_after(&self) -> Duration {
        Duration::from_millis(u64::from(self.give_way_after_ms))
    }

    pub(crate) fn challenge_interval(&self) -> Duration {
        Duration::from_millis(u64::from(self.challenge_interval_ms))
    }

    pub(crate) fn time_wait(&self) -> Duration {
        Duration::from_millis(u64::from(self.time_wait_ms))
    }
}

/// Policy for SYN cookies. A connection opened by a cookie keeps all agreed options, but without timestamps only
/// the MSS. A cookie is valid for 64 to 128 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: while the backlog is full, SYNs are dropped.
    Never,
    /// While the listener's backlog, or the table of half-open connections, is full.
    #[default]
    WhenFull,
    /// Always: half-open connections occupy no memory.
    Always,
}

impl SynCookies {
    /// All policies, for configuration and help texts.
    pub const ALL: &[Self] = &[Self::Never, Self::WhenFull, Self::Always];
}

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// NewReno (RFC 5681 and RFC 6582).
    NewReno,
    /// CUBIC (RFC 8312, with the changes of RFC 9438).
    #[default]
    Cubic,
    /// DCTCP (RFC 8257), for data centers whose switches mark packets, with both ends alike. Requests ECN unless
    /// that is [`Ecn::Off`]; without ECN, same as [`Self::NewReno`].
    Dctcp,
    /// BBR version 3 (draft-ietf-ccwg-bbr-06): paces by a model of the path's bandwidth and round-trip time, and
    /// tolerates loss rates of up to 2 %.
    Bbr,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Neither requested nor accepted.
    Off,
    /// Accepted if the peer requests it.
    #[default]
    Accept,
    /// Requested in our SYNs, and accepted.
    On,
}

impl Ecn {
    /// All modes, for configuration and help texts.
    pub const ALL: &[Self] = &[Self::Off, Self::Accept, Self::On];
}

impl Congestion {
    /// All algorithms, for configuration and help texts.
    pub const ALL: &[Self] = &[Self::NewReno, Self::Cubic, Self::Dctcp, Self::Bbr];
}

/// Options of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnOptions {
    /// Nagle's algorithm: a segment that is not full waits while another is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Keepalive probes to an idle peer (RFC 9293 §3.8.4); `None` sends none.
    pub keepalive: Option<Keepalive>,
    /// User timeout: time that data may stay unacknowledged before the connection is given up, milliseconds (RFC
    /// 9293 §3.9.1.8, RFC 5482); `None` leaves it to [`TcpConfig::data_retries`].
    pub user_timeout_ms: Option<u32>,
    /// Congestion control; `None` for that of the stack.
    pub congestion: Option<Congestion>,
    /// Explicit congestion notification; `None` for that of the stack.
    pub ecn: Option<Ecn>,
    /// True if the application takes out-of-order segments ([`Event::OutOfOrder`](crate::Event::OutOfOrder)).
    pub out_of_order: bool,
    /// Traffic class of all segments: IPv4's type of service, IPv6's traffic class (RFC 9293 §3.9.1.9, MUST-48). The
    /// two low bits, ECN, are TCP's own (RFC 3168 §5) and are ignored.
    pub traffic_class: u8,
}

/// Policy for the eviction of a connection in favor of a new one for which there is no room, because the table is
/// full, or its listener or its source has as many connections as configured. Each connection is protected for at
/// least [`TcpConfig::give_way_after_ms`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The connection is never evicted.
    #[default]
    Never,
    /// The connection is evicted if its peer was silent for that time.
    WhenIdle,
    /// The connection is evicted once it has existed for that time, even if its peer sends.
    Anytime,
}

/// Parameters of keepalive probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe, milliseconds. RFC 9293 §3.8.4: no less than two hours by default.
    pub idle_ms: u32,
    /// Time between two probes, milliseconds.
    pub interval_ms: u32,
    /// Unanswered probes after which the connection is given up.
    pub probes: u8,
}

impl Default for Keepalive {
    /// RFC 9293 §3.8.4: two hours; then nine probes, 75 seconds apart.
    fn default() -> Self {
        Self { idle_ms: 7_200_000, interval_ms: 75_000, probes: 9 }
    }
}

/// Local addresses of a listener. Two listeners may have one port unless their addresses overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenScope {
    /// One of our addresses.
    Address(IpAddr),
    /// All addresses of IPv4.
    Ipv4,
    /// All addresses of IPv6.
    Ipv6,
    /// All addresses of both families.
    Any,
}

impl ListenScope {
    /// Returns the scope of a socket bound to an address: all addresses of the family for the unspecified one.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) if ip.is_unspecified() => Self::Ipv4,
            IpAddr::V6(ip) if ip.is_unspecified() => Self::Ipv6,
            one => Self::Address(one),
        }
    }

    /// Returns true if an address belongs to the scope.
    pub fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Address(one) => one == address,
            Self::Ipv4 => address.is_ipv4(),
            Self::Ipv6 => address.is_ipv6(),
            Self::Any => true,
        }
    }

    /// Returns true if an address belongs to both scopes.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Address(one), scope) | (scope, Self::Address(one)) => scope.has(one),
            (Self::Ipv4, Self::Ipv6) | (Self::Ipv6, Self::Ipv4) => false,
            _ => true,
        }
    }
}

/// Options of one listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Simultaneous half-open connections; further SYNs are dropped, or answered with a cookie
    /// ([`TcpConfig::syn_cookies`]).
    pub backlog: u32,
    /// Simultaneous connections, half-open ones included: 1 or more.
    pub connections_max: u32,
    /// Options of the accepted connections.
    pub conn: ConnOptions,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 128, connections_max: u32::MAX, conn: ConnOptions::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time until a timeout of `first` ms, doubled each time, has passed `retries` times and once more.
    fn given_up_after_ms(first: u64, retries: u8, tcp: &TcpConfig) -> u64 {
        (0..=retries).map(|n| (first << n).min(u64::from(tcp.rto_max_ms))).sum()
    }

    #[test]
    fn defaults_are_the_rfcs() {
        let tcp = TcpConfig::default();
        // RFC 9293 §3.8.3: "R2 for a SYN segment MUST be set large enough to provide retransmission of the segment for
        // at least 3 minutes", and "at least 100 seconds" for others.
        assert!(given_up_after_ms(1000, tcp.syn_retries, &tcp) >= 180_000);
        assert!(given_up_after_ms(tcp.rto_min_ms.into(), tcp.data_retries, &tcp) >= 100_000);
        // §3.4.2: "the MSL is 2 minutes".
        assert_eq!(tcp.time_wait_ms, 2 * 120_000);
        // §3.8.6.3: "the delay MUST be less than 0.5 seconds".
        assert!(tcp.delayed_ack_ms < 500);
        // §3.8.6.1.
        assert_eq!(tcp.zero_window_ms, 0);
        // §3.8.4: keep-alives "MUST default to off", their interval to "no less than two hours".
        assert_eq!(ConnOptions::default().keepalive, None);
        assert!(Keepalive::default().idle_ms >= 7_200_000);
        // RFC 5961 §7.
        assert_eq!((tcp.challenge_acks_max, tcp.challenge_interval_ms), (10, 5_000));
    }
}
