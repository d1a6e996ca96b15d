//! Limits of the process: descriptors.

use iwarp_config::{Config, Machine};

use super::Finding;

/// Descriptors that the daemon takes for itself: DPDK, its log, its sockets, the interrupts of its ports.
const OWN_DESCRIPTORS: u64 = 128;

/// Compares the limits of the running daemon, or else of this process, with the configuration.
pub(super) fn examine(config: &Config, machine: &Machine, daemon: Option<u32>) -> Vec<Finding> {
    let process = daemon.map_or_else(|| "self".to_owned(), |daemon| daemon.to_string());
    let limits = machine.text(&format!("proc/{process}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    // Soft limit, hard limit, unit. DPDK and the daemon do not raise the soft one.
    let soft = line.and_then(|line| line.split_whitespace().next()).and_then(|soft| soft.parse::<u64>().ok());
    let needed = OWN_DESCRIPTORS
        .saturating_add(config.limits.regions_max.into())
        .saturating_add(config.control.clients_max.into());
    let whose = if daemon.is_some() { "the daemon" } else { "a daemon that starts from here" };
    vec![match soft {
        Some(soft) if soft < needed => Finding::warning(
            "descriptors",
            format!("{whose} may open {soft} files; regions and clients can take {needed}"),
            format!("LimitNOFILE={needed} in the unit, or `ulimit -n {needed}` in the shell that starts it"),
        ),
        Some(soft) => {
            Finding::ok("descriptors", format!("{whose} may open {soft} files and needs at most {needed}"))
        }
        None => Finding::ok("descriptors", "the number of open files is not limited"),
    }]
}
