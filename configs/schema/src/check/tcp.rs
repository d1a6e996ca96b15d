//! Tables `[tcp]` and `[ip]`, and the TCP keys of a listener.

use tcp_stack::{Congestion, ConnOptions, Ecn, Keepalive, SynCookies, TcpConfig};

use super::memory::Memory;
use crate::Port;
use crate::keys::{Choice, Flag, Kind, Number, NumberOrNone, Optional, Size, keys};
use crate::plan::{PACKET_BUFFERS_MAX, receive_memory_default, received_buffers_default};
use crate::read::{Report, Section, show_size};

/// RFC 7323 §2.3: "the maximum window scale is 14", of a 16-bit window: 65535 × 2¹⁴.
const WINDOW_MAX: u32 = 65535 << 14;

/// Maximum window without scaling, bytes (RFC 9293 §3.1).
const WINDOW_UNSCALED_MAX: u32 = 65535;

/// Maximum number of connections per worker and port: 1 Mi × about 16 KiB (with the default read queue) = 16 GiB.
pub(super) const CONNECTIONS_MAX: u32 = 1 << 20;

/// Default of the maximum receive window, bytes: 100 Mbit/s over a round trip of 100 ms, 1,250,000, and a margin.
const WINDOW_DEFAULT: u32 = 1280 << 10;

/// Initial congestion window, bytes: ten segments at an MTU of 9000 (10 × 8960).
const INITIAL_WINDOW: u32 = 89_600;

/// Ten segments of the largest IP packet, bytes.
const INITIAL_WINDOW_MAX: u32 = 10 * 65_535;

/// Default keepalive time in seconds. RFC 9293 §3.8.4 has "no less than two hours" as the default of an application
/// that asks for keepalives. A region's peer that vanished holds an STag and a connection slot for that long, so the
/// daemon probes sooner.
const KEEPALIVE_S: u32 = 600;

/// Maximum received bytes of all connections of a worker on a port: 1 TiB.
const RECEIVE_MEMORY_MAX: u64 = 1 << 40;

/// Maximum of keys that bound the time to wait for a peer, ms: one day.
const PATIENCE_MS_MAX: u32 = 86_400_000;

/// RFC 8201 §5.3: a larger path MTU "MUST NOT be" tried "less than 5 minutes after a Packet Too Big message".
const PATH_MTU_AGE_S_MIN: u32 = 300;

/// RFC 4821 §7.7: a black hole is assumed after "R1" consecutive timeouts, at least 3 (RFC 9293 §3.8.3).
const BLACK_HOLE_TIMEOUTS_MIN: u8 = 3;

/// Words for the congestion controls.
const CONGESTION: Choice<'_, Congestion> = Choice(
    &[
        ("newreno", Congestion::NewReno),
        ("cubic", Congestion::Cubic),
        ("dctcp", Congestion::Dctcp),
        ("bbr", Congestion::Bbr),
    ],
    "`cubic` suits most networks, `dctcp` those whose switches mark and whose hosts all use it, `bbr` paths that lose \
     packets at random",
);

/// Words for explicit congestion notification.
const ECN: Choice<'_, Ecn> = Choice(
    &[("off", Ecn::Off), ("accept", Ecn::Accept), ("on", Ecn::On)],
    "`accept` lets peers ask for it, `on` asks for it, too, `off` does neither",
);

/// Policies for SYN cookies.
const SYN_COOKIES: Choice<'_, SynCookies> = Choice(
    &[("never", SynCookies::Never), ("when-full", SynCookies::WhenFull), ("always", SynCookies::Always)],
    "`when-full` keeps a full backlog from shutting honest peers out",
);

/// Kinds of networks, with true for that of a data center.
const PROFILE: Choice<'_, bool> = Choice(
    &[("internet", false), ("data-center", true)],
    "`data-center` is for round trips below a millisecond between hosts that are all configured like this",
);

/// Time before the first keepalive, seconds; with 0 there is none.
const KEEPALIVE: NumberOrNone<u32> =
    NumberOrNone(0..=86_400, "the silence before a peer is asked for a sign of life");

/// Time limit for unacknowledged data, ms; with 0 there is none.
const USER_TIMEOUT: NumberOrNone<u32> =
    NumberOrNone(0..=PATIENCE_MS_MAX, "how long data may stay unacknowledged");

keys! {
    /// Table `[tcp]`: connections, windows, timers; per worker and port.
    pub struct Tcp in tcp(section) {
        /// Maximum number of connections, half-open ones included, per worker and port; as many more may be in
        /// TIME-WAIT.
        connections_max: u32 = 4096, Number(1..=CONNECTIONS_MAX, "connections per worker and port"), Restart;
        /// Maximum number of these from one source, an IPv4 address or an IPv6 /64; default: three quarters.
        connections_per_source_max: u32 = connections_max.saturating_mul(3).div_ceil(4),
            Number(1..=CONNECTIONS_MAX, "connections at a time"), Live;
        /// Idle time before the first keepalive, seconds (RFC 9293 §3.8.4); with 0 there are none.
        keepalive_s: Option<u32> = Some(KEEPALIVE_S), KEEPALIVE, Restart;
        /// Time between keepalives without an answer, seconds; at most `keepalive_s`.
        keepalive_interval_s: u32 = 30,
            Number(1..=3600, "the time that a peer has to answer such a question"), Restart;
        /// Number of unanswered keepalives after which a connection is closed.
        keepalive_probes: u8 = 5,
            Number(1..=32, "questions without an answer before a connection fails"), Restart;
        /// Time limit for unacknowledged data, ms (RFC 9293 §3.9.1.8); 0 leaves it to `data_retries`.
        user_timeout_ms: Option<u32> = None, USER_TIMEOUT, Restart;
        /// Maximum receive window of a connection, bytes; at most 65535 without window scaling.
        receive_window_bytes: u32 = WINDOW_DEFAULT,
            Size(4096..=WINDOW_MAX, "the greatest receive window of a connection"), Restart;
        /// Initial receive window of a connection, bytes; it grows as far as path and reader can use it.
        receive_window_initial_bytes: u32 = receive_window_bytes.min(64 << 10),
            Size(4096..=WINDOW_MAX, "the receive window that a connection begins with"), Restart;
        /// Bytes that all connections together may have received and not consumed, per worker and port; default: the
        /// payload of half of the pool.
        receive_memory_bytes: u64 = 0,
            Size((64 << 10)..=RECEIVE_MEMORY_MAX, "received bytes that all connections hold"), Derived, "20_928_768";
        /// Packet buffers that received data of all connections together may retain, per worker and port; default, and
        /// at most: half of the pool.
        received_buffers_max: u32 = 0,
            Number(64..=PACKET_BUFFERS_MAX, "packet buffers that received data of all connections retains"),
            Derived, "14656";
        /// Maximum bytes that a connection may queue and have unacknowledged.
        send_buffer_bytes: u32 = 1 << 20,
            Size(16_384..=WINDOW_MAX, "unacknowledged bytes of a connection"), Restart;
        /// Packet-buffer bytes (true size, not payload) held for one connection behind a gap; default: twice the
        /// receive window.
        held_bytes_max: u32 = receive_window_bytes.saturating_mul(2),
            Size(16_384..=u32::MAX, "buffer memory held for a connection behind a gap"), Restart;
        /// Maximum number of segments held for one connection behind a gap.
        held_segments_max: u16 = 1024,
            Number(8..=65_535, "segments held for a connection behind a gap"), Restart;
    }
    with {
        /// Settings of the TCP stack: timeouts, options, congestion control, half-open connections, path MTUs.
        stack: TcpConfig = stack(section, connections_max);
    }
}

keys! {
    /// Keys of table `[tcp]` that the TCP stack has for all connections.
    struct Stack for TcpConfig in tcp {
        /// Minimum retransmission timeout, ms.
        rto_min_ms: Number(5..=10_000, "the least retransmission timeout"), Restart;
        /// Maximum retransmission timeout, ms.
        rto_max_ms: Number(1000..=240_000, "the greatest retransmission timeout"), Restart;
        /// Retransmissions of a SYN or SYN-ACK before the connection is given up.
        syn_retries: Number(1..=16, "how often a SYN is sent again"), Restart;
        /// Retransmissions of a segment before the connection fails.
        data_retries: Number(3..=32, "timeouts before a connection fails"), Restart;
        /// Time that a peer may keep its window closed, ms; with 0 there is no limit, while the peer answers probes.
        zero_window_ms: Number(0..=PATIENCE_MS_MAX, "how long a peer may keep its window closed"), Restart;
        /// Duration of TIME-WAIT, ms.
        time_wait_ms: Number(1..=240_000, "the time in TIME-WAIT"), Restart;
        /// Time that a peer may take to close its side, ms; with 0 there is no limit.
        fin_wait_2_ms: Number(0..=PATIENCE_MS_MAX, "how long a closed connection waits for its peer"), Restart;
        /// Maximum delay of an ACK, ms.
        delayed_ack_ms: Number(0..=500, "the longest delay of an ACK"), Restart;
        /// Maximum number of challenge ACKs per connection and interval; it varies between half of this and all.
        challenge_acks_max: Number(1..=255, "challenge acknowledgments of a connection at a time"), Restart;
        /// Length of that interval, ms.
        challenge_interval_ms: Number(100..=600_000, "the time for which they count"), Restart;
        /// Expected delay of peers' ACKs, ms: a tail loss probe waits as long.
        peer_delayed_ack_ms: Number(0..=500, "the longest delay of an ACK that peers are expected to have"), Restart;
        /// Congestion control of connections.
        congestion: CONGESTION, Restart;
        /// Explicit congestion notification: not at all, if the peer asks, or asked for as well.
        ecn: ECN, Restart;
        /// True if ACKs and retransmissions of DCTCP connections are ECN-capable, too.
        dctcp_ect_control: Flag, Restart;
        /// True if cubic, newreno and dctcp pace their segments; bbr always does.
        pacing: Flag, Restart;
        /// Loss rate of a round trip above which bbr takes loss for congestion, percent.
        bbr_loss_percent: Number(1..=50, "a loss rate that random loss alone does not reach"), Restart;
        /// True if SACK is offered and accepted (RFC 2018).
        sack: Flag, Restart;
        /// True if timestamps are offered and accepted (RFC 7323 §3).
        timestamps: Flag, Restart;
        /// True if window scaling is offered and accepted (RFC 7323 §2).
        window_scale: Flag, Restart;
        /// Maximum number of half-open connections; default: `connections_max`, at most 4096.
        half_open_max: Number(1..=CONNECTIONS_MAX, "connections being opened by peers"), Restart;
        /// Idle time after which a connection may be evicted, ms; of the region service, the age without a grant.
        give_way_after_ms: Number(100..=600_000, "how long a connection is left before it gives way"), Restart;
        /// SYN cookies: never, when the backlog is full, or always.
        syn_cookies: SYN_COOKIES, Restart;
        /// Initial congestion window, segments.
        initial_window_segments: Number(1..=10, "segments sent before the first acknowledgment"), Restart;
        /// Maximum bytes of these segments together, but at least two segments (RFC 6928: 14600).
        initial_window_bytes: Size(1..=INITIAL_WINDOW_MAX, "bytes that these segments have at most"), Restart;
    }
    beside { syn_needs_neighbor: _, path_mtu_min: _, path_mtu_age_s: _, black_hole_timeouts: _ }
}

keys! {
    /// Table `[ip]`: hop limit, fragments, path MTUs; per worker and port.
    pub struct Ip in ip(section) {
        /// Hop limit of packets sent: the TTL of IPv4, the hop limit of IPv6.
        hop_limit: u8 = 64, Number(1..=255, "hops that packets may make"), Restart;
        /// Packets that may wait for fragments at a time, per worker and port; with 0, fragments are dropped.
        fragments_datagrams_max: u16 = 64,
            Number(0..=1024, "packets that may wait for their fragments"), Restart;
        /// Packet-buffer bytes (true size) that fragments may occupy, per worker and port; one source: a quarter.
        fragments_bytes_max: u32 = 256 << 10,
            Size((64 << 10)..=(1 << 30), "buffer memory of fragments that wait"), Restart;
        /// Time limit for the fragments of a packet, ms (RFC 8200 §4.5: 60 seconds).
        fragments_timeout_ms: u32 = 60_000,
            Number(1000..=120_000, "how long a packet waits for its fragments"), Restart;
        /// Destinations whose path MTU is remembered, per worker and port.
        path_mtu_entries_max: u32 = 1024, Number(0..=1 << 20, "destinations behind a smaller MTU"), Restart;
    }
}

keys! {
    /// Keys of table `[ip]` that concern TCP.
    struct Path for TcpConfig in ip {
        /// Minimum path MTU that is believed, bytes; for IPv6 at least 1280.
        path_mtu_min: Number(68..=9600, "the least path MTU that is believed, in bytes"), Restart;
        /// Time until a larger path MTU is tried, seconds: 300 or more; with 0, never.
        path_mtu_age_s: Number(0..=86_400, "how long a smaller path MTU holds"), Restart;
        /// Timeouts of long packets until shorter ones are tried, 3 or more; with 0, never.
        black_hole_timeouts: Number(0..=15, "timeouts that make a path a black hole for long packets"), Restart;
    }
    beside { .. }
}

keys! {
    /// Keys of table `[tcp]` that have no field.
    struct Profile of tcp {
        /// Defaults of the keys below; `"data-center"` has `rto_min_ms` 5, `delayed_ack_ms` 1 and
        /// `peer_delayed_ack_ms` 1.
        profile: bool = false, PROFILE, Restart;
    }
}

/// Reads the settings of the TCP stack.
fn stack(section: &mut Section<'_>, connections_max: u32) -> TcpConfig {
    let profile = if Profile::profile(section) { TcpConfig::data_center() } else { TcpConfig::default() };
    // These differ from the RFCs; `docs/deviations.md` gives the reasons.
    let mut stack = TcpConfig {
        syn_retries: 6,
        syn_needs_neighbor: true,
        time_wait_ms: 60_000,
        initial_window_bytes: INITIAL_WINDOW,
        half_open_max: profile.half_open_max.min(connections_max),
        ..profile
    };
    Stack::read(section, &mut stack);
    stack
}

pub(super) fn tcp(mut section: Section<'_>, report: &Report) -> Tcp {
    let tcp = Tcp::read(&mut section);
    check_tcp(&section, report, &tcp);
    check_dctcp(&section, report, tcp.stack.congestion, tcp.stack.ecn);
    section.finish();
    tcp
}

/// Checks a maximum number of connections, which is a share of all.
pub(super) fn check_share(
    section: &Section<'_>,
    report: &Report,
    key: &str,
    share: u32,
    connections_max: u32,
) {
    if share > connections_max {
        report.not_allowed(
            &section.place_of(key),
            format!("tcp.connections_max allows {connections_max} connections altogether"),
            format!("1 to {connections_max}"),
            "lower it, or raise tcp.connections_max",
        );
    }
}

/// Checks combinations of keys.
fn check_tcp(section: &Section<'_>, report: &Report, tcp: &Tcp) {
    let TcpConfig { rto_min_ms, rto_max_ms, window_scale, half_open_max, .. } = tcp.stack;
    let connections_max = tcp.connections_max;
    if half_open_max > connections_max {
        report.not_allowed(
            &section.place_of("half_open_max"),
            format!("each of them can become a connection, and there are {connections_max} at most"),
            format!("1 to {connections_max}"),
            "lower it, or raise connections_max",
        );
    }
    let of_source = tcp.connections_per_source_max;
    check_share(section, report, "connections_per_source_max", of_source, connections_max);
    if rto_min_ms > rto_max_ms {
        report.not_allowed(
            &section.place_of("rto_max_ms"),
            format!("rto_max_ms is less than rto_min_ms, {rto_min_ms}"),
            format!("{rto_min_ms} to 240000"),
            "raise it, or lower rto_min_ms",
        );
    }
    if !window_scale && tcp.receive_window_bytes > WINDOW_UNSCALED_MAX {
        report.not_allowed(
            &section.place_of("receive_window_bytes"),
            format!("a window of {} bytes needs window scaling", tcp.receive_window_bytes),
            format!("4096 to {WINDOW_UNSCALED_MAX} without window_scale"),
            "lower receive_window_bytes, or let window_scale be true",
        );
    }
    if tcp.receive_window_initial_bytes > tcp.receive_window_bytes {
        report.not_allowed(
            &section.place_of("receive_window_initial_bytes"),
            format!("it grows up to receive_window_bytes, {}", show_size(tcp.receive_window_bytes.into())),
            format!("4k to {}", show_size(tcp.receive_window_bytes.into())),
            "lower it, or raise receive_window_bytes",
        );
    }
}

/// Fills in the defaults that depend on `[memory]`.
pub(super) fn resolve(tcp: &mut Tcp, memory: &Memory, ports: &[Port], workers: u64) {
    if tcp.receive_memory_bytes == 0 {
        tcp.receive_memory_bytes = receive_memory_default(memory, ports, workers);
    }
    if tcp.received_buffers_max == 0 {
        tcp.received_buffers_max = received_buffers_default(memory, ports, workers);
    }
}

/// RFC 8257 §3: DCTCP requires ECN marks.
pub(super) fn check_dctcp(section: &Section<'_>, report: &Report, congestion: Congestion, ecn: Ecn) {
    if congestion == Congestion::Dctcp && ecn == Ecn::Off {
        let help = "remove `ecn`, or choose another congestion control";
        report.at(&section.place_of("ecn"), "`dctcp` answers to marks, which need ECN", help);
    }
}

/// Idle time in seconds before keepalives, whose other parameters are those of `[tcp]`; with 0 there are none.
struct Idle;

impl Kind for Idle {
    type Value = Option<Keepalive>;

    fn read(&self, section: &mut Section<'_>, key: &'static str) -> Option<Option<Keepalive>> {
        KEEPALIVE.read(section, key).map(|idle_s| idle_s.map(keepalive))
    }

    fn allowed(&self) -> String {
        KEEPALIVE.allowed()
    }

    fn shown(&self, value: &Option<Keepalive>) -> String {
        KEEPALIVE.shown(&value.map(|keepalive| keepalive.idle_ms / 1000))
    }
}

/// Returns keepalives with an idle time.
fn keepalive(idle_s: u32) -> Keepalive {
    Keepalive { idle_ms: idle_s.saturating_mul(1000), ..Keepalive::default() }
}

keys! {
    /// Keys of table `[[listener]]` for its connections.
    struct ListenerConn for ConnOptions in listener {
        /// Congestion control; default of this and the next three keys: as in `[tcp]`.
        congestion: Optional(CONGESTION), Live, "\"cubic\"";
        /// Explicit congestion notification, as in `[tcp]`.
        ecn: Optional(ECN), Live, "\"accept\"";
        /// Idle time before the first keepalive, seconds.
        keepalive as "keepalive_s": Idle, Live;
        /// Time limit for unacknowledged data, ms.
        user_timeout_ms: USER_TIMEOUT, Live;
        /// Delay of short segments, to combine them; not for region.
        nagle: Flag, Live;
    }
    // The region service sets `out_of_order`, as it places RDMA Writes behind a gap.
    beside { out_of_order: _, traffic_class: _ }
}

/// Reads the options of a listener's connections: its own keys, and those of `[tcp]` for the others.
pub(super) fn conn_options(section: &mut Section<'_>, tcp: &Tcp) -> ConnOptions {
    let mut conn = ConnOptions {
        keepalive: tcp.keepalive_s.map(keepalive),
        user_timeout_ms: tcp.user_timeout_ms,
        ..ConnOptions::default()
    };
    ListenerConn::read(section, &mut conn);
    if let Some(Keepalive { idle_ms, interval_ms, probes }) = &mut conn.keepalive {
        *interval_ms = tcp.keepalive_interval_s.saturating_mul(1000).min(*idle_ms);
        *probes = tcp.keepalive_probes;
    }
    conn
}

/// Reads `[ip]`. Its path MTU keys concern TCP, and go to `tcp`.
pub(super) fn ip(mut section: Section<'_>, report: &Report, ports: &[Port], tcp: &mut TcpConfig) -> Ip {
    let ip = Ip::read(&mut section);
    Path::read(&mut section, tcp);
    check_path(&section, report, ports, tcp);
    section.finish();
    ip
}

fn check_path(section: &Section<'_>, report: &Report, ports: &[Port], tcp: &TcpConfig) {
    if let Some(port) = ports.iter().find(|port| port.mtu < tcp.path_mtu_min) {
        report.not_allowed(
            &section.place_of("path_mtu_min"),
            format!("port `{}` has an MTU of {}", port.name, port.mtu),
            format!("68 to {}", port.mtu),
            "lower it: no path is wider than its first link",
        );
    }
    if (1..PATH_MTU_AGE_S_MIN).contains(&tcp.path_mtu_age_s) {
        report.not_allowed(
            &section.place_of("path_mtu_age_s"),
            "a larger MTU must not be tried within five minutes (RFC 8201 §5.3)",
            format!("0, {PATH_MTU_AGE_S_MIN} to 86400"),
            "with 0 none is tried, ever",
        );
    }
    if (1..BLACK_HOLE_TIMEOUTS_MIN).contains(&tcp.black_hole_timeouts) {
        report.not_allowed(
            &section.place_of("black_hole_timeouts"),
            "so few timeouts are everyday loss (RFC 4821 §7.7)",
            format!("0, {BLACK_HOLE_TIMEOUTS_MIN} to 15"),
            "with 0 black holes are not looked for",
        );
    }
}
