//! Checks `[applications]`: the verbs socket and its limits. The daemon serves applications only if the table is there.

use std::path::PathBuf;

use super::service::{check_socket, group, mode, socket_path};
use crate::read::{Report, Section, Value};
use crate::types::{Applications, CONTEXTS_MAX, Control, UserLimits};

/// First port that every user may use.
const PORTS_UNPRIVILEGED: u16 = 1024;
/// Most bytes that one user's programs may have: 16 TiB.
const MEMORY_BYTES_MAX: u64 = 16 << 40;

pub(super) fn read(mut section: Section<'_>, report: &Report, control: &Control) -> Option<Applications> {
    let is_there = section.is_there();
    let socket = section.parsed("socket", "the absolute path of a Unix socket", socket_path);
    let contexts_max = section.number("contexts_max", 1..=CONTEXTS_MAX, "contexts at a time").unwrap_or(64);
    let queue_pairs_max =
        section.number("queue_pairs_max", 1..=16_384, "queue pairs per worker and port").unwrap_or(1024);
    let applications = Applications {
        socket: socket.unwrap_or_else(|| PathBuf::from("/run/iwarpd/verbs.sock")),
        mode: mode(&mut section, report, &[0o600, 0o660, 0o666]).unwrap_or(0o660),
        group: section.parsed("group", "the name or number of a group", group),
        contexts_max,
        queue_pairs_max,
        memory_regions_max: section
            .number("memory_regions_max", 1..=16_384, "memory regions of all contexts")
            .unwrap_or(1024),
        region_watches_max: section
            .number("region_watches_max", 0..=64, "programs that watch one region")
            .unwrap_or(8),
        watch_entries: section
            .number("watch_entries", 1..=65_536, "notifications of a watch per worker and port")
            .map_or(256, u32::next_power_of_two),
        privileged_ports: privileged_ports(&mut section, report),
        kernel_copy_ms_max: section
            .number("kernel_copy_ms_max", 10..=60_000, "milliseconds of a copy in the kernel")
            .unwrap_or(2000),
        user: user(&mut section, report, (contexts_max, queue_pairs_max)),
    };
    if is_there {
        if applications.socket == control.socket {
            let message = "control.socket has the same path";
            report.at(&section.place_of("socket"), message, "give each socket a path of its own");
        }
        check_socket(&section, report, "socket", applications.group.as_deref(), &applications.socket);
    }
    section.finish();
    is_there.then_some(applications)
}

fn privileged_ports(section: &mut Section<'_>, report: &Report) -> Vec<u16> {
    let what = "TCP ports below 1024 that every user may use";
    let port = |value: Value<'_>| {
        let port = value.integer().and_then(|port| u16::try_from(port).ok());
        let port = port.filter(|port| (1..PORTS_UNPRIVILEGED).contains(port));
        if port.is_none() {
            let help = "leave it out: ports from 1024 on need no permission";
            report.not_allowed(&value.place, "not a privileged port", "1 to 1023", help);
        }
        port
    };
    section.list("privileged_ports", what).into_iter().flatten().filter_map(port).collect()
}

/// Reads the limits of one user. Those of contexts and queue pairs are at most the totals, so that one user cannot take
/// all there are; by default, they are shares of them.
fn user(section: &mut Section<'_>, report: &Report, (contexts, queue_pairs): (u16, u16)) -> UserLimits {
    let share =
        section.number("user_share", 1..=100, "the percentage of each table for one user").unwrap_or(75);
    let of_user = u32::from(queue_pairs).saturating_mul(share.into()) / 100;
    let contexts_max = section
        .number("user_contexts_max", 1..=CONTEXTS_MAX, "contexts of one user")
        .unwrap_or(contexts.div_ceil(2));
    let queue_pairs_max = section
        .number("user_queue_pairs_max", 1..=1 << 20, "queue pairs of one user")
        .unwrap_or(of_user.max(1));
    let totals = [
        ("user_contexts_max", u32::from(contexts_max), "contexts_max", u32::from(contexts)),
        ("user_queue_pairs_max", queue_pairs_max, "queue_pairs_max", u32::from(queue_pairs)),
    ];
    for (key, of_user, total_key, total) in totals {
        if of_user > total {
            let message =
                format!("one user may have {of_user}, more than {total_key} allows all users: {total}");
            report.at(&section.place_of(key), message, format!("lower it, or raise {total_key}"));
        }
    }
    UserLimits {
        contexts_max,
        queue_pairs_max,
        queue_entries_max: section
            .number("user_queue_entries_max", 1..=1 << 30, "entries of one user's queues")
            .unwrap_or(1 << 20),
        memory_bytes: section
            .size("user_memory", (1 << 20)..=MEMORY_BYTES_MAX, "the memory that one user's programs may have")
            .unwrap_or(1 << 30),
        watches_max: section
            .number("user_watches_max", 0..=1024, "watches of regions of one user")
            .unwrap_or(32),
        share,
    }
}
