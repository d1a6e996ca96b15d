//! Checks `[memory]`, and that buffers, limit and machine fit the whole file.

use crate::plan::{Kind, PACKET_BUFFERS_MAX, memory_plan, packet_buffers_default, packet_buffers_min};
use crate::read::{Report, Section, show_size};
use crate::{Config, Hugepages, Ip, Memory, Port, Tcp, Workers};

/// Maximum `hugepage_limit` in bytes: 16 TiB.
const LIMIT_BYTES_MAX: u64 = 16 << 40;

/// Values of the file, before defaults are computed from the rest of the file.
pub(super) struct Values {
    hugepages: Hugepages,
    limit: Option<u64>,
    buffers: Option<u32>,
    prefix: Option<String>,
}

pub(super) fn read(section: &mut Section<'_>) -> Values {
    let choices = [("require", Hugepages::Require), ("prefer", Hugepages::Prefer)];
    let help = "`require` refuses to start without hugepages, `prefer` falls back to ordinary pages";
    Values {
        hugepages: section.choice("hugepages", &choices, help).unwrap_or(Hugepages::Require),
        limit: section.size(
            "hugepage_limit",
            (16 << 20)..=LIMIT_BYTES_MAX,
            "the memory that packet buffers, DPDK and regions may take together",
        ),
        buffers: section.number("packet_buffers", 1..=PACKET_BUFFERS_MAX, "the number of packet buffers"),
        prefix: section.parsed("file_prefix", "1 to 32 letters, digits, `-` or `_`", file_prefix),
    }
}

fn file_prefix(text: &str) -> Result<String, String> {
    let fits = (1..=32).contains(&text.len());
    if fits && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` cannot be part of a file name of DPDK"))
}

/// Fills in the defaults that depend on the rest of the file.
pub(super) fn resolve(values: Values, ports: &[Port], workers: &Workers, ip: &Ip, tcp: &Tcp) -> Memory {
    let workers = u64::try_from(workers.cores.len()).unwrap_or(u64::MAX);
    let default = || packet_buffers_default(ports, workers, ip, tcp);
    Memory {
        hugepages: values.hugepages,
        hugepage_limit_bytes: values.limit,
        packet_buffers: values.buffers.unwrap_or_else(default),
        file_prefix: values.prefix.unwrap_or_else(|| "iwarpd".to_owned()),
    }
}

/// Tables that determine the memory needed: a mistake there makes the sum meaningless.
const DECIDE: [&str; 7] = ["memory", "port", "workers", "ip", "tcp", "limits", "region"];

/// Checks that the buffers suffice for the queues, and that the total is within the limit and the machine's memory.
pub(super) fn check_plan(section: &Section<'_>, report: &Report, config: &Config) {
    if report.has_mistakes_in(&DECIDE) {
        return;
    }
    let workers = u64::try_from(config.workers.cores.len()).unwrap_or(u64::MAX);
    let least = packet_buffers_min(&config.ports, workers, &config.ip);
    let buffers = u64::from(config.memory.packet_buffers);
    if buffers < least {
        report.not_allowed(
            &section.place_of("packet_buffers"),
            format!("{buffers} packet buffers cannot fill the queues of {workers} worker(s) and their ports"),
            format!("{least} to {PACKET_BUFFERS_MAX}"),
            "use more buffers, or fewer rx_descriptors, tx_descriptors or workers",
        );
    }
    let plan = memory_plan(config);
    check_free(section, report, config, plan.hugepages());
    let Some(limit) = config.memory.hugepage_limit_bytes else { return };
    if plan.hugepage_bytes() > limit {
        let items = plan.items().iter().filter(|item| item.kind == Kind::Huge);
        let items: Vec<String> = items.map(|i| format!("{}: {}", i.what, show_size(i.bytes))).collect();
        report.not_allowed(
            &section.place_of("hugepage_limit"),
            format!("the configuration takes {} of hugepages", show_size(plan.hugepage_bytes())),
            format!("{} or more", show_size(plan.hugepage_bytes())),
            format!("raise the limit or shrink one of: {}", items.join(", ")),
        );
    }
}

/// Checks that the machine has the hugepages that the file requires.
fn check_free(section: &Section<'_>, report: &Report, config: &Config, needed: u64) {
    let Some(machine) = report.machine() else { return };
    let free = machine.hugepages_free();
    if config.memory.hugepages == Hugepages::Prefer || free >= needed {
        return;
    }
    let total = machine.hugepages_total().saturating_add(needed).saturating_sub(free);
    report.lacks(
        &section.place_of("hugepages"),
        format!("{needed} hugepages of 2 MiB are needed and {free} are free"),
        format!(
            "reserve them (`iwarpctl config reserve FILE`, as the systemd unit does before each start, or sysctl \
             vm.nr_hugepages={total}), or allow ordinary pages with hugepages = \"prefer\""
        ),
    );
}
