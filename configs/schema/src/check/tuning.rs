//! Checks `[workers]`, `[mpa]`, `[placement]` and `[limits]`.

use rdma::{CrcPolicy, OutOfOrderPolicy};

use crate::read::{Place, Report, Section};
use crate::types::{Idle, Limits, Mpa, Placement, WORKERS_MAX, Workers};

/// Highest core number: DPDK's RTE_MAX_LCORE is 128 on the least build, a thread can be put on any core.
const CORE_MAX: i128 = 1023;

/// RFC 6581 §4 reserves 0x3FFF of the 14 bits, and each entry is memory on every connection:
/// 1024 × 48 bytes × 2 = 96 KiB.
const READS_MAX: u16 = 1024;

/// Maximum number of STags per worker: 1 Mi of the 16 Mi values of a 24-bit index, so that most guesses fail.
const GRANTS_MAX: u32 = 1 << 20;

pub(super) fn workers(mut section: Section<'_>, report: &Report) -> Workers {
    let cores = cores(&mut section, report).unwrap_or_else(|| {
        check_core(report, &section.place_of("cores"), 1);
        vec![1]
    });
    let modes = [("spin", false), ("adaptive", true)];
    let help = "`spin` has the least latency and takes the whole core, `adaptive` sleeps when there is nothing to do";
    let adaptive = section.choice("idle", &modes, help);
    let spins = adaptive == Some(false) || section.value("idle").is_none();
    let sleep = section.number("idle_sleep_us_max", 1..=10_000, "the longest sleep in microseconds");
    if spins && section.value("idle_sleep_us_max").is_some() {
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
    } else if let Some(core) = control_core {
        check_core(report, &section.place_of("control_core"), core);
    }
    section.finish();
    let idle = match adaptive {
        Some(true) => Idle::Adaptive { sleep_us_max: sleep.unwrap_or(100) },
        Some(false) | None => Idle::Spin,
    };
    Workers { cores, idle, control_core }
}

/// Checks that the machine has a core on which a thread is to run.
fn check_core(report: &Report, place: &Place, core: u16) {
    if let Some(machine) = report.machine()
        && !machine.cores().contains(&core)
    {
        let message = format!("CPU {core} is not online");
        report.lacks_among(place, message, machine.online(), "`lscpu -e` lists the machine's cores");
    }
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
        check_core(report, &item.place, core);
        cores.push(core);
    }
    Some(cores)
}

/// Help text for the CRC policies.
pub(super) const CRC_HELP: &str = "`on` checks every FPDU, `off` does without if the peer agrees";

const MARKERS: [(&str, bool); 2] = [("off", false), ("receive", true)];

const OUT_OF_ORDER: [(&str, OutOfOrderPolicy); 3] = [
    ("off", OutOfOrderPolicy::Off),
    ("markers", OutOfOrderPolicy::Markers),
    ("aligned", OutOfOrderPolicy::Aligned),
];

const LAST_SEGMENT: [(&str, bool); 2] = [("in-order", false), ("early", true)];

pub(super) fn mpa(mut section: Section<'_>) -> Mpa {
    let mpa = Mpa {
        crc: section.choice("crc", &CrcPolicy::NAMES, CRC_HELP).unwrap_or(CrcPolicy::Required),
        markers: section
            .choice("markers", &MARKERS, "`receive` asks peers for them; some refuse a peer that asks")
            .unwrap_or(false),
        handshake_timeout_ms: section
            .number("handshake_timeout_ms", 100..=600_000, "the time a peer has for its MPA request")
            .unwrap_or(10_000),
        disconnect_timeout_ms: section
            .number(
                "disconnect_timeout_ms",
                100..=600_000,
                "the time that RDMA Reads have to end when a program disconnects",
            )
            .unwrap_or(30_000),
        fpdu_timeout_ms: section
            .number("fpdu_timeout_ms", 1_000..=3_600_000, "the time a peer has for the rest of an FPDU")
            .unwrap_or(120_000),
        ird_max: section.number("ird_max", 1..=READS_MAX, "RDMA Reads served at a time").unwrap_or(128),
        ord_max: section.number("ord_max", 1..=READS_MAX, "RDMA Reads asked for at a time").unwrap_or(128),
    };
    section.finish();
    mpa
}

pub(super) fn placement(mut section: Section<'_>) -> Placement {
    let placement = Placement {
        out_of_order: section
            .choice("out_of_order", &OUT_OF_ORDER, "how RDMA Writes behind a gap are located")
            .unwrap_or(OutOfOrderPolicy::Aligned),
        last_out_of_order: section
            .choice("last_segment", &LAST_SEGMENT, "when the last segment of a message is placed")
            .unwrap_or(false),
    };
    section.finish();
    placement
}

pub(super) fn limits(mut section: Section<'_>) -> Limits {
    let limits = Limits {
        regions_max: section.number("regions_max", 1..=4096, "regions at a time").unwrap_or(256),
        grants_max: section.number("grants_max", 1..=GRANTS_MAX, "STags in force per worker").unwrap_or(8192),
        neighbors_max: section
            .number("neighbors_max", 16..=65_536, "neighbors per worker and port")
            .unwrap_or(1024),
    };
    section.finish();
    limits
}
