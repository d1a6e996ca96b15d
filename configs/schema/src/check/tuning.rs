//! Tables `[workers]`, `[mpa]`, `[placement]` and `[limits]`.

use rdma::{CrcPolicy, OutOfOrderPolicy};

use crate::keys::{By, Choice, Kind as _, Number, Optional, keys};
use crate::read::{Place, Report, Section};
use crate::types::{Idle, WORKERS_MAX};

/// Highest core number: DPDK's RTE_MAX_LCORE is 128 on the least build, a thread can be put on any core.
const CORE_MAX: i128 = 1023;

/// RFC 6581 §4 reserves 0x3FFF of the 14 bits, and each entry is memory on every connection:
/// 1024 × 48 bytes × 2 = 96 KiB.
const READS_MAX: u16 = 1024;

/// Maximum number of STags per worker: 1 Mi of the 16 Mi values of a 24-bit index, so that most guesses fail.
const GRANTS_MAX: u32 = 1 << 20;

const IDLE: Choice<'_, bool> = Choice(
    &[("spin", false), ("adaptive", true)],
    "`spin` has the least latency and takes the whole core, `adaptive` sleeps when there is nothing to do",
);

keys! {
    /// Table `[workers]`: cores and idling.
    pub struct Workers in workers(section) {
        /// Distinct cores, each with one poll-mode worker. Their existence is checked at start.
        cores: Vec<u16> = default_cores(section),
            By(cores, |cores| format!("{cores:?}"), "a list of 1 to 64 cores"), Restart;
        /// Behavior of a worker without work: it polls, or sleeps with increasing intervals.
        idle: Idle = Idle::Spin,
            By(idle, shown_idle, "\"spin\", \"adaptive\""), Restart,
            "\"adaptive\"";
        /// Core of the control thread, never a worker's; default: any core without a worker.
        control_core: Option<u16> = None, Optional(Number(0..=1023, "the core of the control thread")), Restart, "0";
    }
}

keys! {
    /// Keys of table `[workers]` that have no field of their own.
    struct IdleKeys of workers {
        /// Longest sleep of a worker that is adaptive, µs.
        idle_sleep_us_max: u32 = 100, Number(1..=10_000, "the longest sleep in microseconds"), Restart;
        /// Longest spin before the sleep of an adaptive worker that frames wake, µs; never longer than a wake-up takes,
        /// and shorter where spins are in vain. 0: it sleeps at once.
        idle_spin_us_max: u32 = 50, Number(0..=10_000, "the longest spin in microseconds"), Restart;
    }
}

pub(super) fn workers(mut section: Section<'_>, report: &Report) -> Workers {
    let workers = Workers::read(&mut section);
    if let Some(core) = workers.control_core {
        let place = section.place_of("control_core");
        if workers.cores.contains(&core) {
            report.at(&place, "this core is a worker's", "choose a core that is not in `cores`");
        } else {
            check_core(report, &place, core);
        }
    }
    section.finish();
    workers
}

/// Reads the keys `idle`, `idle_sleep_us_max` and `idle_spin_us_max`.
fn idle(section: &mut Section<'_>) -> Option<Idle> {
    let adaptive = IDLE.read(section, "idle");
    let spins = adaptive == Some(false) || section.value("idle").is_none();
    let sleep_us_max = IdleKeys::idle_sleep_us_max(section);
    let spin_us_max = IdleKeys::idle_spin_us_max(section);
    for key in ["idle_sleep_us_max", "idle_spin_us_max"] {
        if spins && section.value(key).is_some() {
            section.report().at(
                &section.place_of(key),
                "a worker that spins does not sleep",
                "write idle = \"adaptive\", or remove this key",
            );
        }
    }
    adaptive?.then_some(Idle::Adaptive { sleep_us_max, spin_us_max })
}

fn shown_idle(idle: &Idle) -> String {
    match idle {
        Idle::Spin => IDLE.toml(&false),
        Idle::Adaptive { sleep_us_max, spin_us_max } => {
            format!("{}, {sleep_us_max} µs, after {spin_us_max} µs", IDLE.toml(&true))
        }
    }
}

/// Returns the cores of a file without the key.
fn default_cores(section: &Section<'_>) -> Vec<u16> {
    check_core(section.report(), &section.place_of("cores"), 1);
    vec![1]
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

fn cores(section: &mut Section<'_>) -> Option<Vec<u16>> {
    let report = section.report();
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

/// Policies for the CRC of an FPDU.
pub(super) const CRC: Choice<'_, CrcPolicy> =
    Choice(&CrcPolicy::NAMES, "`on` checks every FPDU, `off` does without if the peer agrees");

const MARKERS: Choice<'_, bool> = Choice(
    &[("off", false), ("receive", true)],
    "`receive` asks peers for them; some refuse a peer that asks",
);

const OUT_OF_ORDER: Choice<'_, OutOfOrderPolicy> = Choice(
    &[
        ("off", OutOfOrderPolicy::Off),
        ("markers", OutOfOrderPolicy::Markers),
        ("aligned", OutOfOrderPolicy::Aligned),
    ],
    "how RDMA Writes behind a gap are located",
);

const LAST_SEGMENT: Choice<'_, bool> =
    Choice(&[("in-order", false), ("early", true)], "when the last segment of a message is placed");

keys! {
    /// Table `[mpa]`: CRCs, markers, read depths, timeouts.
    pub struct Mpa in mpa(section) {
        /// CRC policy of listeners without a key of their own: always, or not if the peer agrees.
        crc: CrcPolicy = CrcPolicy::Required, CRC, Restart;
        /// Markers that peers are asked for (RFC 5044 §4.3); Linux soft-iWARP then rejects the connection. Markers that
        /// a peer asks for are always sent.
        markers: bool = false, MARKERS, Restart;
        /// Time limit for the MPA Request after the connection opened, ms.
        handshake_timeout_ms: u32 = 10_000,
            Number(100..=600_000, "the time a peer has for its MPA request"), Restart;
        /// Time that a disconnect may wait for RDMA Reads of either side, ms; then the connection is reset.
        disconnect_timeout_ms: u32 = 30_000,
            Number(100..=600_000, "the time that RDMA Reads have to end when a program disconnects"), Restart;
        /// Time that an FPDU may stay incomplete before its connection is reset, ms.
        fpdu_timeout_ms: u32 = 120_000,
            Number(1_000..=3_600_000, "the time a peer has for the rest of an FPDU"), Restart;
        /// Maximum inbound RDMA Read queue depth (IRD), below 0x3FFF, which is reserved (RFC 6581 §4).
        ird_max: u16 = 128, Number(1..=READS_MAX, "RDMA Reads served at a time"), Restart;
        /// Maximum outbound RDMA Read queue depth (ORD).
        ord_max: u16 = 128, Number(1..=READS_MAX, "RDMA Reads asked for at a time"), Restart;
    }
}

keys! {
    /// Table `[placement]`: RDMA Writes behind a gap in the stream.
    pub struct Placement in placement(section) {
        /// Policy for locating FPDUs behind a gap: by markers, with CRC by segment start, or not.
        out_of_order: OutOfOrderPolicy = OutOfOrderPolicy::Aligned, OUT_OF_ORDER, Restart;
        /// Placement of the last segment of a message: `early`, before the gap closes, is for programs that do not poll
        /// the last byte of a Write.
        last_out_of_order as "last_segment": bool = false, LAST_SEGMENT, Restart;
    }
}

keys! {
    /// Table `[limits]`: regions, STags, neighbors.
    pub struct Limits in limits(section) {
        /// Maximum number of regions, those of the file and those registered later together.
        regions_max: u32 = 256, Number(1..=4096, "regions at a time"), UpToStart;
        /// Maximum number of valid STags per worker; the region service uses one per connection.
        grants_max: u32 = 8192, Number(1..=GRANTS_MAX, "STags in force per worker"), UpToStart;
        /// Maximum number of neighbors (ARP, NDP) remembered per worker and port.
        neighbors_max: u32 = 1024, Number(16..=65_536, "neighbors per worker and port"), Restart;
    }
}
