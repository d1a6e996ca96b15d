//! Checks `[memory]`, and that buffers, limit and machine fit the whole file.

use crate::keys::{Choice, Number, Optional, Size, Text, keys};
use crate::plan::{Kind, PACKET_BUFFERS_MAX, memory_plan, packet_buffers_default, packet_buffers_min};
use crate::read::{Report, Section, show_size};
use crate::{Config, Hugepages, Ip, Port, Tcp, Workers};

/// Maximum `hugepage_limit` in bytes: 16 TiB.
const LIMIT_BYTES_MAX: u64 = 16 << 40;

const HUGEPAGES: Choice<'_, Hugepages> = Choice(
    &[("require", Hugepages::Require), ("prefer", Hugepages::Prefer)],
    "`require` refuses to start without hugepages, `prefer` falls back to ordinary pages",
);

keys! {
    /// Table `[memory]`: hugepages and packet buffers.
    pub struct Memory in memory(section) {
        /// Policy for a machine without enough hugepages: no start, or ordinary pages and a degraded status.
        hugepages: Hugepages = Hugepages::Require, HUGEPAGES, Restart;
        /// Maximum bytes for EAL, packet buffers and regions together; default: no limit.
        hugepage_limit_bytes as "hugepage_limit": Option<u64> = None,
            Optional(Size(
                (16 << 20)..=LIMIT_BYTES_MAX,
                "the memory that packet buffers, DPDK and regions may take together",
            )), Restart, "\"1G\"";
        /// Packet buffers in all pools together; each worker has a pool on each port, of equal size. Default: queues,
        /// caches, reserve, fragments, and 16 connections with full buffers.
        packet_buffers: u32 = 0, Number(1..=PACKET_BUFFERS_MAX, "the number of packet buffers"), Derived, "29313";
        /// EAL's `--file-prefix`, which separates the files of several DPDK programs.
        file_prefix: String = "iwarpd".to_owned(),
            Text::new("1 to 32 letters, digits, `-` or `_`", file_prefix), Restart;
    }
}

fn file_prefix(text: &str) -> Result<String, String> {
    let fits = (1..=32).contains(&text.len());
    if fits && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` cannot be part of a file name of DPDK"))
}

/// Fills in the default that depends on the rest of the file.
pub(super) fn resolve(memory: &mut Memory, ports: &[Port], workers: &Workers, ip: &Ip, tcp: &Tcp) {
    if memory.packet_buffers == 0 {
        let workers = u64::try_from(workers.cores.len()).unwrap_or(u64::MAX);
        memory.packet_buffers = packet_buffers_default(ports, workers, ip, tcp);
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
