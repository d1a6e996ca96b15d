//! What a stack is made from. All memory is sized from these values, once.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use crate::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr};

/// The configuration of one stack: one worker's share of one port.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Our link address.
    pub mac: MacAddr,
    /// The 802.1Q VLAN that all frames carry, 1..=4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// The largest IP packet, bytes: 576..=9600, at least 1280 for IPv6.
    pub mtu: u16,
    /// Our IPv4 address and its prefix.
    pub ipv4: Option<Ipv4Cidr>,
    /// Where IPv4 packets beyond the prefix go.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// Our IPv6 address and its prefix, beside the link-local address that [`Self::mac`] gives.
    pub ipv6: Option<Ipv6Cidr>,
    /// Where IPv6 packets beyond the prefix go.
    pub ipv6_gateway: Option<Ipv6Addr>,
    /// Hops that our packets may make: the TTL of IPv4, the hop limit of IPv6. 1..=255.
    pub hop_limit: u8,
    /// Whether this stack answers ARP, neighbor discovery and ping: exactly one of those that share a
    /// port does; the others only learn.
    pub primary: bool,
    /// Whether the port fills in the IPv4 header checksum and the TCP checksum of what is sent.
    pub tx_checksum_offload: bool,
    /// What the port can cut into segments by itself (TSO); `None` if it cannot, or shall not. Needs
    /// [`Self::tx_checksum_offload`] and buffers that can be [linked](crate::Buf::link).
    pub segmentation: Option<Segmentation>,
    /// Connections, half-open ones included: 1..=2^20. A connection that holds no data costs less than
    /// 1 KiB, so 65536 of them 64 MiB. As many compact TIME-WAIT records are kept beside them.
    pub connections_max: u32,
    /// Connections that one source may have, an IPv4 address or an IPv6 /64, half-open ones included: 1 or more. Connections
    /// that we open count and are not limited.
    pub connections_per_source_max: u32,
    /// Entries of the neighbor cache, beside [`Self::neighbors`].
    pub neighbors_max: u32,
    /// Neighbors whose link address is configured: addresses on the link, each once. They are never asked for, and nothing
    /// that arrives changes them.
    pub neighbors: Vec<(IpAddr, MacAddr)>,
    /// IP packets that may wait for their fragments at a time, 0..=1024; with 0 fragments are dropped. No source
    /// has more than a quarter of them.
    pub fragments_datagrams_max: u16,
    /// What fragments that wait may occupy, bytes of true buffer size. No source has more than a quarter.
    pub fragments_bytes_max: u32,
    /// How long a packet waits for its fragments, milliseconds: 60 seconds for IPv6 (RFC 8200 §4.5), 60 to
    /// 120 for IPv4 (RFC 1122 §3.3.2).
    pub fragments_timeout_ms: u32,
    /// Destinations behind a smaller MTU than ours that are remembered, 0..=2^20.
    pub path_mtu_entries_max: u32,
    /// What segments held behind a gap may occupy, per connection, bytes of true buffer size.
    pub held_bytes_max: u32,
    /// Segments held behind a gap, per connection.
    pub held_segments_max: u32,
    /// Frame buffers that all connections together may hold for sending, and as many again received:
    /// what the pool they come from has. 120 bytes of book-keeping each.
    pub buffers_max: u32,
    /// Packet buffers that received data of all connections together may retain: segments behind gaps, and what the
    /// application keeps of what it was handed ([`Stack::retain`](crate::Stack::retain)). More than half of
    /// [`Self::buffers_max`] is taken for half.
    pub received_buffers_max: u32,
    /// Payload queued or in flight, per connection, bytes.
    pub send_buffer_bytes: u32,
    /// The largest receive window, per connection, bytes: 1024..=2^30. It grows as the application keeps up with the
    /// path.
    pub receive_window_bytes: u32,
    /// The receive window that a connection begins with, bytes: 1024..=[`Self::receive_window_bytes`]; that itself turns
    /// growing off.
    pub receive_window_initial_bytes: u32,
    /// Bytes that all connections together may have received and not let go of. Each one's window is at most a quarter of
    /// what is left of it, so that stalled ones leave room to others; but never less than 4096 bytes and two
    /// segments, and what was promised before is kept: it is a bound with some play.
    pub receive_memory_bytes: u64,
    /// TCP's own parameters.
    pub tcp: TcpConfig,
    /// Which of the workers of a port this is: `0..worker_count`.
    pub worker_index: u16,
    /// Workers that share the port; an active open picks a source port whose
    /// [`flow_hash`](crate::flow_hash) modulo this is `worker_index`.
    pub worker_count: u16,
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
            ipv6_gateway: None,
            hop_limit: 64,
            primary: true,
            tx_checksum_offload: false,
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
        }
    }
}

/// How much a port cuts into segments at a time. Only segments of the same length are given to it as one
/// frame, a shorter one being the last: what was handed over as one segment leaves as one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Payload of a frame, bytes: at most 65 000 are used.
    pub bytes_max: u32,
    /// Buffers that a frame may consist of, that of the headers included; below 3 there is nothing to cut.
    pub buffers_max: u16,
}

/// Parameters of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// The least retransmission timeout, milliseconds. RFC 6298 §2.4 has one second; 200 is what hosts
    /// use.
    pub rto_min_ms: u32,
    /// The greatest retransmission timeout, milliseconds (RFC 6298 §2.5: at least 60 seconds).
    pub rto_max_ms: u32,
    /// How often a SYN or SYN-ACK is sent again before the connection is given up (RFC 9293 §3.8.3: R2, for a SYN at
    /// least three minutes, which seven are).
    pub syn_retries: u8,
    /// How often a segment is sent again before the connection is given up (RFC 9293 §3.8.3: R2).
    pub data_retries: u8,
    /// How long a peer may keep its window closed to what is queued without taking an byte, milliseconds; looked at with
    /// each probe. 0, as RFC 9293 §3.8.6.1 has it (MUST-37), for ever; RFC 6429 §3 leaves a limit to the application.
    pub zero_window_ms: u32,
    /// How long TIME-WAIT lasts, milliseconds (RFC 9293 §3.6.1: 2 MSL, which is four minutes; hosts wait for one).
    pub time_wait_ms: u32,
    /// How long the peer may stay silent once our FIN is acknowledged and all that it sent is consumed,
    /// milliseconds; 0 for ever. RFC 9293 §3.6 sets no limit to FIN-WAIT-2; hosts wait for a minute.
    pub fin_wait_2_ms: u32,
    /// The longest that an acknowledgment is delayed, milliseconds: below 500 (RFC 9293 §3.8.6.3).
    pub delayed_ack_ms: u32,
    /// Challenge acknowledgments per connection and [`Self::challenge_interval_ms`] at most (RFC 5961 §7): 1..=255.
    /// How many there are this time, between half of it and all, cannot be known from outside.
    pub challenge_acks_max: u8,
    /// For how long [`Self::challenge_acks_max`] counts, milliseconds.
    pub challenge_interval_ms: u32,
    /// The longest that peers are expected to delay an acknowledgment, milliseconds: how much longer a tail
    /// loss probe waits for that of a lone segment (RFC 8985 §7.2: TLP.max_ack_delay).
    pub peer_delayed_ack_ms: u32,
    /// Which congestion control.
    pub congestion: Congestion,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// Whether pure acknowledgments, retransmissions and probes of a DCTCP connection are marked
    /// ECN-capable, too, so that switches mark them where they drop others (RFC 8257 §4.1).
    pub dctcp_ect_control: bool,
    /// Whether NewReno and CUBIC send at a rate, too, of a little more than a window per round trip; BBR
    /// always does.
    pub pacing: bool,
    /// Whether SACK is offered and accepted (RFC 2018).
    pub sack: bool,
    /// Whether timestamps are offered and accepted (RFC 7323 §3).
    pub timestamps: bool,
    /// Whether window scaling is offered and accepted (RFC 7323 §2).
    pub window_scale: bool,
    /// Connections that may be half-open, over all listeners: peers that have not acknowledged our SYN-ACK. Each is
    /// a record of about a tenth of a kibibyte. 1..=[`StackConfig::connections_max`].
    pub half_open_max: u32,
    /// How long a connection is left alone that [gives way](GivesWay) to newcomers, milliseconds: the time that an honest
    /// peer has for its first request.
    pub give_way_after_ms: u32,
    /// When a SYN is answered without keeping anything of it (RFC 4987 §3.6).
    pub syn_cookies: SynCookies,
    /// The initial window, full segments.
    pub initial_window_segments: u8,
    /// What the initial window has at most, bytes, unless two full segments have more. RFC 6928 §2: 14 600.
    pub initial_window_bytes: u32,
    /// The least path MTU that is believed or fallen back to, bytes: 68..=[`StackConfig::mtu`], for IPv6 no less than
    /// 1280 whatever is said here.
    pub path_mtu_min: u16,
    /// How long a smaller path MTU holds before a larger one is tried, seconds (RFC 1191 §6.3, RFC 8201 §5.3: 600,
    /// no less than 300); 0 for ever, and nothing is tried after a black hole either.
    pub path_mtu_age_s: u32,
    /// Timeouts in a row of a segment longer than the base (1024 bytes, for IPv6 1280) that make the path a black
    /// hole (RFC 4821 §7.7: R1, at least 3); 0 to look for none.
    pub black_hole_timeouts: u8,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            rto_min_ms: 200,
            rto_max_ms: 60_000,
            syn_retries: 7,
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

/// Nodes of the send pool that are kept for the front parts of segments that must be split.
const SPLITS_MAX: u32 = 256;

/// Nodes of the receive pool that are kept for segments in order, at most.
const IN_ORDER_NODES_MAX: u32 = 1024;

impl StackConfig {
    /// [`Self::connections_max`] within its bounds.
    pub(crate) fn connections(&self) -> u32 {
        self.connections_max.clamp(1, 1 << 20)
    }

    /// [`TcpConfig::half_open_max`] within its bounds.
    pub(crate) fn half_open(&self) -> u32 {
        self.tcp.half_open_max.clamp(1, self.connections())
    }

    /// Nodes of the send pool beside those for data: one for each connection's FIN, and those for splits.
    pub(crate) fn kept_nodes(&self) -> u32 {
        self.connections().saturating_add(SPLITS_MAX)
    }

    /// [`Self::received_buffers_max`] within its bounds.
    pub(crate) fn received_buffers(&self) -> u32 {
        self.received_buffers_max.min(self.buffers_max / 2)
    }

    /// Nodes of the receive pool that segments behind gaps leave to those in order.
    pub(crate) fn in_order_nodes(&self) -> u32 {
        (self.buffers_max / 8).min(IN_ORDER_NODES_MAX)
    }

    /// Of so many free nodes of the send pool, those that are left for data.
    pub(crate) fn data_nodes(&self, available: u32) -> u32 {
        available.saturating_sub(self.kept_nodes())
    }
}

impl TcpConfig {
    /// For a network whose round trips take less than a millisecond and whose hosts are all configured like
    /// this: timeouts of 5 ms, acknowledgments delayed by 1 ms at most, so that a timeout is no sooner than
    /// the acknowledgment that it waits for. A peer that delays its acknowledgments by more than 4 ms, as
    /// hosts do by default, causes timeouts that are spurious, and undone (RFC 5682), at the price of one
    /// segment each.
    pub fn data_center() -> Self {
        Self { rto_min_ms: 5, delayed_ack_ms: 1, peer_delayed_ack_ms: 1, ..Self::default() }
    }

    pub(crate) fn rto_min(&self) -> Duration {
        Duration::from_millis(u64::from(self.rto_min_ms))
    }

    pub(crate) fn rto_max(&self) -> Duration {
        Duration::from_millis(u64::from(self.rto_max_ms.max(self.rto_min_ms)))
    }

    /// [`Self::rto_min`] and [`Self::rto_max`], nanoseconds.
    #[inline]
    pub(crate) fn rto_bounds_nanos(&self) -> (u64, u64) {
        let nanos = |ms: u32| u64::from(ms).wrapping_mul(1_000_000);
        (nanos(self.rto_min_ms), nanos(self.rto_max_ms.max(self.rto_min_ms)))
    }

    /// How long a smaller path MTU holds; `None` for ever.
    pub(crate) fn path_mtu_age(&self) -> Option<Duration> {
        (self.path_mtu_age_s > 0).then(|| Duration::from_secs(u64::from(self.path_mtu_age_s)))
    }

    /// [`Self::delayed_ack_ms`], nanoseconds.
    #[inline]
    pub(crate) fn delayed_ack_nanos(&self) -> u64 {
        u64::from(self.delayed_ack_ms).wrapping_mul(1_000_000)
    }

    /// [`Self::give_way_after_ms`].
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

/// When a SYN is answered with a cookie: a connection that opens on one keeps all that both SYNs agree on, but
/// without timestamps only the MSS. A cookie is good for 64 to 128 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: while the backlog is full, a SYN is dropped.
    Never,
    /// While the listener's backlog, or the table of half-open connections, is full.
    #[default]
    WhenFull,
    /// Always: half-open connections take no memory.
    Always,
}

impl SynCookies {
    /// Every choice.
    pub const ALL: &[Self] = &[Self::Never, Self::WhenFull, Self::Always];
}

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 5681 and RFC 6582.
    NewReno,
    /// RFC 8312, with the changes of RFC 9438.
    #[default]
    Cubic,
    /// RFC 8257: for data centers whose switches mark packets, with both ends alike. Asks for ECN unless
    /// that is [`Ecn::Off`]; without it, as [`Self::NewReno`].
    Dctcp,
    /// BBR version 1 (draft-cardwell-iccrg-bbr-congestion-control-00): paces by a model of the path's
    /// bandwidth and round-trip time, and does not take loss for congestion.
    Bbr,
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Neither asked for nor accepted.
    Off,
    /// Accepted when the peer asks for it.
    #[default]
    Accept,
    /// Asked for, and accepted.
    On,
}

impl Ecn {
    /// Every choice.
    pub const ALL: &[Self] = &[Self::Off, Self::Accept, Self::On];
}

impl Congestion {
    /// Every algorithm there is.
    pub const ALL: &[Self] = &[Self::NewReno, Self::Cubic, Self::Dctcp, Self::Bbr];
}

/// What can be chosen per connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnOptions {
    /// Whether a segment that is not full waits while another is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Whether and how an idle peer is asked for a sign of life (RFC 9293 §3.8.4).
    pub keepalive: Option<Keepalive>,
    /// How long data may stay unacknowledged before the connection is given up, milliseconds (RFC
    /// 9293 §3.9.1.8, RFC 5482); `None` leaves it to [`TcpConfig::data_retries`].
    pub user_timeout_ms: Option<u32>,
    /// Congestion control, if not the stack's.
    pub congestion: Option<Congestion>,
    /// Explicit congestion notification, if not as the stack has it.
    pub ecn: Option<Ecn>,
    /// Whether the application wants to look at what arrives behind a gap ([`Event::OutOfOrder`](crate::Event::OutOfOrder)).
    pub out_of_order: bool,
}

/// When a connection gives way to a newcomer for which there is no room otherwise: where the table is full, or its
/// listener or its source has as many connections as configured. Each is left [`TcpConfig::give_way_after_ms`] at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivesWay {
    /// Never.
    #[default]
    Never,
    /// While its peer has not been heard of for that time.
    WhenIdle,
    /// Once it is so old, whatever its peer sends.
    Anytime,
}

/// Keepalive parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a connection must have been silent, milliseconds. RFC 9293 §3.8.4: no less than two
    /// hours by default.
    pub idle_ms: u32,
    /// How long to wait for an answer, milliseconds.
    pub interval_ms: u32,
    /// Probes without an answer after which the connection is given up.
    pub probes: u8,
}

impl Default for Keepalive {
    /// RFC 9293 §3.8.4: two hours; then nine probes, 75 seconds apart.
    fn default() -> Self {
        Self { idle_ms: 7_200_000, interval_ms: 75_000, probes: 9 }
    }
}

/// What can be chosen per listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Half-open connections at a time; a SYN beyond it is dropped, or answered with a cookie
    /// ([`TcpConfig::syn_cookies`]).
    pub backlog: u32,
    /// Connections at a time, half-open ones included: 1 or more.
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

    /// How long a timeout of `first` ms, doubled each time, lasts until it has passed so often and once more.
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
