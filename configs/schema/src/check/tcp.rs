//! Checks `[tcp]` and `[ip]`, and the TCP keys of a listener.

use tcp_stack::{Congestion, ConnOptions, Ecn, Keepalive, SynCookies, TcpConfig};

use crate::plan::{PACKET_BUFFERS_MAX, receive_memory_default, received_buffers_default};
use crate::read::{Report, Section, show_size};
use crate::types::{Ip, Memory, Port, Tcp};

/// RFC 7323 §2.3: "the maximum window scale is 14", of a 16-bit window: 65535 × 2¹⁴.
const WINDOW_MAX: u32 = 65535 << 14;

/// Maximum window without scaling, bytes (RFC 9293 §3.1).
const WINDOW_UNSCALED_MAX: u32 = 65535;

/// Maximum number of connections per worker and port: 1 Mi × about 16 KiB (with the default read queue) = 16 GiB.
const CONNECTIONS_MAX: u32 = 1 << 20;

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
const CONGESTION: [(&str, Congestion); 4] = [
    ("newreno", Congestion::NewReno),
    ("cubic", Congestion::Cubic),
    ("dctcp", Congestion::Dctcp),
    ("bbr", Congestion::Bbr),
];
const CONGESTION_HELP: &str = "`cubic` suits most networks, `dctcp` those whose switches mark and whose hosts all \
                               use it, `bbr` paths that lose packets at random";

/// Words for explicit congestion notification.
const ECN: [(&str, Ecn); 3] = [("off", Ecn::Off), ("accept", Ecn::Accept), ("on", Ecn::On)];
const ECN_HELP: &str = "`accept` lets peers ask for it, `on` asks for it, too, `off` does neither";

/// Returns the daemon's defaults of TCP.
fn preset(section: &mut Section<'_>) -> TcpConfig {
    let profiles = [("internet", TcpConfig::default()), ("data-center", TcpConfig::data_center())];
    let help = "`data-center` is for round trips below a millisecond between hosts that are all configured like this";
    let preset = section.choice("profile", &profiles, help).unwrap_or_default();
    // These differ from the RFCs; `docs/deviations.md` gives the reasons.
    TcpConfig {
        syn_retries: 6,
        syn_needs_neighbor: true,
        time_wait_ms: 60_000,
        initial_window_bytes: INITIAL_WINDOW,
        ..preset
    }
}

pub(super) fn tcp(mut section: Section<'_>, report: &Report) -> Tcp {
    let connections_max = section
        .number("connections_max", 1..=CONNECTIONS_MAX, "connections per worker and port")
        .unwrap_or(4096);
    let preset = preset(&mut section);
    let stack = timers(&mut section, preset);
    let stack = sending(&mut section, stack);
    let stack = opening(&mut section, stack, connections_max, report);
    let per_source =
        share_of_connections(&mut section, report, "connections_per_source_max", connections_max);
    let tcp = Tcp {
        connections_per_source_max: per_source.unwrap_or(connections_max.saturating_mul(3).div_ceil(4)),
        ..buffers(&mut section, connections_max, stack)
    };
    check_dctcp(&section, report, tcp.stack.congestion, tcp.stack.ecn);
    check_tcp(&section, report, &tcp);
    section.finish();
    tcp
}

fn timers(section: &mut Section<'_>, preset: TcpConfig) -> TcpConfig {
    TcpConfig {
        rto_min_ms: section
            .number("rto_min_ms", 5..=10_000, "the least retransmission timeout")
            .unwrap_or(preset.rto_min_ms),
        rto_max_ms: section
            .number("rto_max_ms", 1000..=240_000, "the greatest retransmission timeout")
            .unwrap_or(preset.rto_max_ms),
        syn_retries: section
            .number("syn_retries", 1..=16, "how often a SYN is sent again")
            .unwrap_or(preset.syn_retries),
        data_retries: section
            .number("data_retries", 3..=32, "timeouts before a connection fails")
            .unwrap_or(preset.data_retries),
        zero_window_ms: section
            .number("zero_window_ms", 0..=PATIENCE_MS_MAX, "how long a peer may keep its window closed")
            .unwrap_or(preset.zero_window_ms),
        time_wait_ms: section
            .number("time_wait_ms", 1..=240_000, "the time in TIME-WAIT")
            .unwrap_or(preset.time_wait_ms),
        fin_wait_2_ms: section
            .number("fin_wait_2_ms", 0..=PATIENCE_MS_MAX, "how long a closed connection waits for its peer")
            .unwrap_or(preset.fin_wait_2_ms),
        delayed_ack_ms: section
            .number("delayed_ack_ms", 0..=500, "the longest delay of an ACK")
            .unwrap_or(preset.delayed_ack_ms),
        peer_delayed_ack_ms: section
            .number(
                "peer_delayed_ack_ms",
                0..=500,
                "the longest delay of an ACK that peers are expected to have",
            )
            .unwrap_or(preset.peer_delayed_ack_ms),
        ..preset
    }
}

fn sending(section: &mut Section<'_>, preset: TcpConfig) -> TcpConfig {
    TcpConfig {
        congestion: section.choice("congestion", &CONGESTION, CONGESTION_HELP).unwrap_or(preset.congestion),
        ecn: section.choice("ecn", &ECN, ECN_HELP).unwrap_or(preset.ecn),
        dctcp_ect_control: section.flag("dctcp_ect_control").unwrap_or(preset.dctcp_ect_control),
        pacing: section.flag("pacing").unwrap_or(preset.pacing),
        initial_window_segments: section
            .number("initial_window_segments", 1..=10, "segments sent before the first acknowledgment")
            .unwrap_or(preset.initial_window_segments),
        initial_window_bytes: section
            .size("initial_window_bytes", 1..=INITIAL_WINDOW_MAX, "bytes that these segments have at most")
            .unwrap_or(preset.initial_window_bytes),
        sack: section.flag("sack").unwrap_or(preset.sack),
        timestamps: section.flag("timestamps").unwrap_or(preset.timestamps),
        window_scale: section.flag("window_scale").unwrap_or(preset.window_scale),
        ..preset
    }
}

fn opening(section: &mut Section<'_>, preset: TcpConfig, connections_max: u32, report: &Report) -> TcpConfig {
    let cookies =
        [("never", SynCookies::Never), ("when-full", SynCookies::WhenFull), ("always", SynCookies::Always)];
    let help = "`when-full` keeps a full backlog from shutting honest peers out";
    let half_open = section.number("half_open_max", 1..=CONNECTIONS_MAX, "connections being opened by peers");
    if half_open.is_some_and(|half_open| half_open > connections_max) {
        report.not_allowed(
            &section.place_of("half_open_max"),
            format!("each of them can become a connection, and there are {connections_max} at most"),
            format!("1 to {connections_max}"),
            "lower it, or raise connections_max",
        );
    }
    TcpConfig {
        half_open_max: half_open.unwrap_or(preset.half_open_max.min(connections_max)),
        give_way_after_ms: section
            .number("give_way_after_ms", 100..=600_000, "how long a connection is left before it gives way")
            .unwrap_or(preset.give_way_after_ms),
        syn_cookies: section.choice("syn_cookies", &cookies, help).unwrap_or(preset.syn_cookies),
        challenge_acks_max: section
            .number("challenge_acks_max", 1..=255, "challenge acknowledgments of a connection at a time")
            .unwrap_or(preset.challenge_acks_max),
        challenge_interval_ms: section
            .number("challenge_interval_ms", 100..=600_000, "the time for which they count")
            .unwrap_or(preset.challenge_interval_ms),
        ..preset
    }
}

/// Reads a maximum number of connections, as a share of all.
pub(super) fn share_of_connections(
    section: &mut Section<'_>,
    report: &Report,
    key: &'static str,
    connections_max: u32,
) -> Option<u32> {
    let share = section.number(key, 1..=CONNECTIONS_MAX, "connections at a time")?;
    if share > connections_max {
        report.not_allowed(
            &section.place_of(key),
            format!("tcp.connections_max allows {connections_max} connections altogether"),
            format!("1 to {connections_max}"),
            "lower it, or raise tcp.connections_max",
        );
    }
    Some(share)
}

fn buffers(section: &mut Section<'_>, connections_max: u32, stack: TcpConfig) -> Tcp {
    let window_bytes = "the greatest receive window of a connection";
    let window =
        section.size("receive_window_bytes", 4096..=WINDOW_MAX, window_bytes).unwrap_or(WINDOW_DEFAULT);
    let idle = "the silence before a peer is asked for a sign of life";
    Tcp {
        connections_max,
        connections_per_source_max: connections_max,
        stack,
        keepalive_s: Some(section.number("keepalive_s", 0..=86_400, idle).unwrap_or(KEEPALIVE_S))
            .filter(|seconds| *seconds > 0),
        keepalive_interval_s: section
            .number("keepalive_interval_s", 1..=3600, "the time that a peer has to answer such a question")
            .unwrap_or(30),
        keepalive_probes: section
            .number("keepalive_probes", 1..=32, "questions without an answer before a connection fails")
            .unwrap_or(5),
        user_timeout_ms: user_timeout(section, None),
        receive_window_bytes: window,
        receive_window_initial_bytes: section
            .size(
                "receive_window_initial_bytes",
                4096..=WINDOW_MAX,
                "the receive window that a connection begins with",
            )
            .unwrap_or(window.min(64 << 10)),
        receive_memory_bytes: section
            .size(
                "receive_memory_bytes",
                (64 << 10)..=RECEIVE_MEMORY_MAX,
                "received bytes that all connections hold",
            )
            .unwrap_or(0),
        received_buffers_max: section
            .number(
                "received_buffers_max",
                64..=PACKET_BUFFERS_MAX,
                "packet buffers that received data of all connections retains",
            )
            .unwrap_or(0),
        send_buffer_bytes: section
            .size("send_buffer_bytes", 16384..=WINDOW_MAX, "unacknowledged bytes of a connection")
            .unwrap_or(1 << 20),
        held_bytes_max: section
            .size("held_bytes_max", 16384..=u32::MAX, "buffer memory held for a connection behind a gap")
            .unwrap_or(window.saturating_mul(2)),
        held_segments_max: section
            .number("held_segments_max", 8..=65_535, "segments held for a connection behind a gap")
            .unwrap_or(1024),
    }
}

fn user_timeout(section: &mut Section<'_>, default: Option<u32>) -> Option<u32> {
    let what = "how long data may stay unacknowledged";
    match section.number("user_timeout_ms", 0..=PATIENCE_MS_MAX, what) {
        Some(0) => None,
        given => given.or(default),
    }
}

/// Checks combinations of keys.
fn check_tcp(section: &Section<'_>, report: &Report, tcp: &Tcp) {
    let TcpConfig { rto_min_ms, rto_max_ms, window_scale, .. } = tcp.stack;
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
fn check_dctcp(section: &Section<'_>, report: &Report, congestion: Congestion, ecn: Ecn) {
    if congestion == Congestion::Dctcp && ecn == Ecn::Off {
        let help = "remove `ecn`, or choose another congestion control";
        report.at(&section.place_of("ecn"), "`dctcp` answers to marks, which need ECN", help);
    }
}

/// Reads the options of a listener's connections: its own keys, and those of `[tcp]` for the others.
pub(super) fn conn_options(section: &mut Section<'_>, report: &Report, tcp: &Tcp) -> ConnOptions {
    let congestion = section.choice("congestion", &CONGESTION, CONGESTION_HELP);
    let ecn = section.choice("ecn", &ECN, ECN_HELP);
    if congestion.is_some() || ecn.is_some() {
        let (congestion, ecn) = (congestion.unwrap_or(tcp.stack.congestion), ecn.unwrap_or(tcp.stack.ecn));
        check_dctcp(section, report, congestion, ecn);
    }
    let idle_s: Option<u32> =
        section.number("keepalive_s", 0..=86_400, "the silence before a peer is asked for a sign of life");
    let idle_s = idle_s.or(tcp.keepalive_s).filter(|seconds| *seconds > 0);
    let interval_s = tcp.keepalive_interval_s;
    ConnOptions {
        nagle: section.flag("nagle").unwrap_or(false),
        keepalive: idle_s.map(|idle_s| Keepalive {
            idle_ms: idle_s.saturating_mul(1000),
            interval_ms: interval_s.min(idle_s).saturating_mul(1000),
            probes: tcp.keepalive_probes,
        }),
        user_timeout_ms: user_timeout(section, tcp.user_timeout_ms),
        congestion,
        ecn,
        // The region service enables it, as it places RDMA Writes behind a gap.
        out_of_order: false,
        traffic_class: 0,
    }
}

/// Reads `[ip]`. Its path MTU keys concern TCP, and go to `tcp`.
pub(super) fn ip(mut section: Section<'_>, report: &Report, ports: &[Port], tcp: &mut TcpConfig) -> Ip {
    let ip = Ip {
        hop_limit: section.number("hop_limit", 1..=255, "hops that packets may make").unwrap_or(64),
        fragments_datagrams_max: section
            .number("fragments_datagrams_max", 0..=1024, "packets that may wait for their fragments")
            .unwrap_or(64),
        fragments_bytes_max: section
            .size("fragments_bytes_max", (64 << 10)..=(1 << 30), "buffer memory of fragments that wait")
            .unwrap_or(256 << 10),
        fragments_timeout_ms: section
            .number("fragments_timeout_ms", 1000..=120_000, "how long a packet waits for its fragments")
            .unwrap_or(60_000),
        path_mtu_entries_max: section
            .number("path_mtu_entries_max", 0..=1 << 20, "destinations behind a smaller MTU")
            .unwrap_or(1024),
    };
    tcp.path_mtu_min = section
        .number("path_mtu_min", 68..=9600, "the least path MTU that is believed, in bytes")
        .unwrap_or(tcp.path_mtu_min);
    tcp.path_mtu_age_s = section
        .number("path_mtu_age_s", 0..=86_400, "how long a smaller path MTU holds")
        .unwrap_or(tcp.path_mtu_age_s);
    tcp.black_hole_timeouts = section
        .number("black_hole_timeouts", 0..=15, "timeouts that make a path a black hole for long packets")
        .unwrap_or(tcp.black_hole_timeouts);
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
