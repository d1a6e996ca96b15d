//! `[workers]`, `[tcp]`, `[mpa]`, `[limits]`.

use crate::read::{Report, Section};
use crate::types::{Congestion, Crc, Idle, Limits, Mpa, Tcp, WORKERS_MAX, Workers};

/// Highest core number: DPDK's RTE_MAX_LCORE is 128 on the least build, a thread can be put on any core.
const CORE_MAX: i128 = 1023;

/// RFC 7323 §2.3: "the maximum window scale is 14", of a 16-bit window: 65535 × 2¹⁴.
const WINDOW_MAX: u32 = 65535 << 14;

/// What a window can be without scaling (RFC 9293 §3.1).
const WINDOW_UNSCALED_MAX: u32 = 65535;

/// Connections per worker and port: 1 Mi × about 16 KiB (with the read queue at its default) = 16 GiB.
const CONNECTIONS_MAX: u32 = 1 << 20;

/// RFC 6581 §4 reserves 0x3FFF of the 14 bits, and each entry is memory on every connection:
/// 1024 × 48 octets × 2 = 96 KiB.
const READS_MAX: u16 = 1024;

/// STags per worker: 1 Mi of the 16 Mi that a 24-bit index tells apart, so that a guess seldom hits one.
const GRANTS_MAX: u32 = 1 << 20;

/// RFC 9293 §3.8.4 has "no less than two hours" as the default of an application that asks for keepalives. A region's
/// peer that vanished holds an STag and a place for that long, so the daemon asks sooner.
const KEEPALIVE_S: u32 = 600;

pub(super) fn workers(mut section: Section<'_>, report: &Report) -> Workers {
    let cores = cores(&mut section, report).unwrap_or_else(|| vec![1]);
    let modes = [("spin", false), ("adaptive", true)];
    let help = "`spin` has the least latency and takes the whole core, `adaptive` sleeps when there is nothing to do";
    let adaptive = section.choice("idle", &modes, help).unwrap_or(false);
    let sleep = section.number("idle_sleep_us_max", 1..=10_000, "the longest sleep in microseconds");
    if !adaptive && section.value("idle_sleep_us_max").is_some() {
        let place = section.place_of("idle_sleep_us_max");
        report.at(
            &place,
            "a worker that spins does not sleep",
            "write idle = \"adaptive\", or remove this key",
        );
    }
    let control_core: Option<u16> =
        section.number("control_core", 0..=1023, "the core of the control thread");
    if control_core.is_some_and(|core| cores.contains(&core)) {
        let place = section.place_of("control_core");
        report.at(&place, "this core is a worker's", "choose a core that is not in `cores`");
    }
    section.finish();
    let idle = if adaptive { Idle::Adaptive { sleep_us_max: sleep.unwrap_or(100) } } else { Idle::Spin };
    Workers { cores, idle, control_core }
}

fn cores(section: &mut Section<'_>, report: &Report) -> Option<Vec<u16>> {
    let list = section.list("cores", "a list of core numbers, e.g. [1, 2]")?;
    if !(1..=WORKERS_MAX).contains(&list.len()) {
        let message = format!("{} cores are listed", list.len());
        let allowed = format!("1 to {WORKERS_MAX} cores");
        report.not_allowed(&section.place_of("cores"), message, allowed, "name one core per worker");
    }
    let mut cores = Vec::new();
    for item in list {
        let number =
            item.integer().filter(|n| (0..=CORE_MAX).contains(n)).and_then(|n| u16::try_from(n).ok());
        let Some(core) = number else {
            let allowed = format!("0 to {CORE_MAX}");
            report.not_allowed(
                &item.place,
                "this is not a core",
                allowed,
                "`lscpu -e` lists the machine's cores",
            );
            continue;
        };
        if cores.contains(&core) {
            report.at(
                &item.place,
                format!("core {core} is listed twice"),
                "give each worker a core of its own",
            );
        }
        cores.push(core);
    }
    Some(cores)
}

pub(super) fn tcp(mut section: Section<'_>, report: &Report) -> Tcp {
    let congestion = [("cubic", Congestion::Cubic), ("newreno", Congestion::NewReno)];
    let window_bytes = "the greatest receive window of a connection";
    let window = section.size("receive_window_bytes", 4096..=WINDOW_MAX, window_bytes).unwrap_or(1 << 20);
    let tcp = Tcp {
        connections_max: section
            .number("connections_max", 1..=CONNECTIONS_MAX, "connections per worker and port")
            .unwrap_or(4096),
        rto_min_ms: section
            .number("rto_min_ms", 5..=10_000, "the least retransmission timeout")
            .unwrap_or(200),
        rto_max_ms: section
            .number("rto_max_ms", 1000..=240_000, "the greatest retransmission timeout")
            .unwrap_or(60_000),
        syn_retries: section.number("syn_retries", 1..=16, "how often a SYN is sent again").unwrap_or(6),
        data_retries: section
            .number("data_retries", 3..=32, "timeouts before a connection fails")
            .unwrap_or(15),
        time_wait_ms: section.number("time_wait_ms", 1..=240_000, "the time in TIME-WAIT").unwrap_or(60_000),
        delayed_ack_ms: section
            .number("delayed_ack_ms", 0..=500, "the longest delay of an ACK")
            .unwrap_or(40),
        keepalive_s: Some(
            section
                .number("keepalive_s", 0..=86_400, "the silence before a peer is asked for a sign of life")
                .unwrap_or(KEEPALIVE_S),
        )
        .filter(|seconds| *seconds > 0),
        congestion: section
            .choice("congestion", &congestion, "this is the congestion control")
            .unwrap_or(Congestion::Cubic),
        sack: section.flag("sack").unwrap_or(true),
        timestamps: section.flag("timestamps").unwrap_or(true),
        window_scale: section.flag("window_scale").unwrap_or(true),
        receive_window_bytes: window,
        send_buffer_bytes: section
            .size("send_buffer_bytes", 16384..=WINDOW_MAX, "unacknowledged octets of a connection")
            .unwrap_or(1 << 20),
        held_bytes_max: section
            .size("held_bytes_max", 16384..=u32::MAX, "buffer memory held for a connection behind a gap")
            .unwrap_or(window.saturating_mul(2)),
        held_segments_max: section
            .number("held_segments_max", 8..=65_535, "segments held for a connection behind a gap")
            .unwrap_or(1024),
    };
    check_tcp(&section, report, &tcp);
    section.finish();
    tcp
}

/// What two keys say together.
fn check_tcp(section: &Section<'_>, report: &Report, tcp: &Tcp) {
    if tcp.rto_min_ms > tcp.rto_max_ms {
        let allowed = format!("{} to 240000", tcp.rto_min_ms);
        let message = format!("rto_max_ms is less than rto_min_ms, {}", tcp.rto_min_ms);
        report.not_allowed(
            &section.place_of("rto_max_ms"),
            message,
            allowed,
            "raise it, or lower rto_min_ms",
        );
    }
    if !tcp.window_scale && tcp.receive_window_bytes > WINDOW_UNSCALED_MAX {
        let message = format!("a window of {} octets needs window scaling", tcp.receive_window_bytes);
        let allowed = format!("4096 to {WINDOW_UNSCALED_MAX} without window_scale");
        let place = section.place_of("receive_window_bytes");
        report.not_allowed(
            &place,
            message,
            allowed,
            "lower receive_window_bytes, or let window_scale be true",
        );
    }
}

/// The words for a CRC policy.
pub(super) const CRC: [(&str, Crc); 2] = [("on", Crc::On), ("off", Crc::Off)];

/// What they mean.
pub(super) const CRC_HELP: &str = "`on` checks every FPDU, `off` does without if the peer agrees";

pub(super) fn mpa(mut section: Section<'_>) -> Mpa {
    let mpa = Mpa {
        crc: section.choice("crc", &CRC, CRC_HELP).unwrap_or(Crc::On),
        handshake_timeout_ms: section
            .number("handshake_timeout_ms", 100..=600_000, "the time a peer has for its MPA request")
            .unwrap_or(10_000),
        ird_max: section.number("ird_max", 1..=READS_MAX, "RDMA Reads served at a time").unwrap_or(128),
        ord_max: section.number("ord_max", 1..=READS_MAX, "RDMA Reads asked for at a time").unwrap_or(128),
    };
    section.finish();
    mpa
}

pub(super) fn limits(mut section: Section<'_>) -> Limits {
    let limits = Limits {
        regions_max: section.number("regions_max", 1..=4096, "regions at a time").unwrap_or(256),
        grants_max: section.number("grants_max", 1..=GRANTS_MAX, "STags in force per worker").unwrap_or(8192),
        neighbors_max: section
            .number("neighbors_max", 16..=65_536, "neighbours per worker and port")
            .unwrap_or(1024),
    };
    section.finish();
    limits
}
