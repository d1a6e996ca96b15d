//! Checks `[applications]`: the verbs socket and its limits. The daemon serves applications only if the table is there.

use std::path::PathBuf;

use super::service::{check_socket, group, mode, socket_path};
use crate::read::{Report, Section};
use crate::types::{Applications, CONTEXTS_MAX, Control, UserLimits};

/// Most bytes that one user's programs may have: 16 TiB.
const MEMORY_BYTES_MAX: u64 = 16 << 40;

pub(super) fn read(mut section: Section<'_>, report: &Report, control: &Control) -> Option<Applications> {
    let is_there = section.is_there();
    let socket = section.parsed("socket", "the absolute path of a Unix socket", socket_path);
    let applications = Applications {
        socket: socket.unwrap_or_else(|| PathBuf::from("/run/iwarpd/verbs.sock")),
        mode: mode(&mut section, report, &[0o600, 0o660, 0o666]).unwrap_or(0o660),
        group: section.parsed("group", "the name or number of a group", group),
        contexts_max: section.number("contexts_max", 1..=CONTEXTS_MAX, "contexts at a time").unwrap_or(64),
        queue_pairs_max: section
            .number("queue_pairs_max", 1..=16_384, "queue pairs per worker and port")
            .unwrap_or(1024),
        memory_regions_max: section
            .number("memory_regions_max", 1..=16_384, "memory regions of all contexts")
            .unwrap_or(1024),
        region_watches_max: section
            .number("region_watches_max", 0..=64, "programs that watch one region")
            .unwrap_or(8),
        watch_entries: section
            .number("watch_entries", 1..=65_536, "notifications of a watch per worker and port")
            .map_or(256, u32::next_power_of_two),
        user: user(&mut section),
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

fn user(section: &mut Section<'_>) -> UserLimits {
    UserLimits {
        contexts_max: section.number("user_contexts_max", 1..=1024, "contexts of one user").unwrap_or(32),
        queue_pairs_max: section
            .number("user_queue_pairs_max", 1..=1 << 20, "queue pairs of one user")
            .unwrap_or(2048),
        queue_entries_max: section
            .number("user_queue_entries_max", 1..=1 << 30, "entries of one user's queues")
            .unwrap_or(1 << 20),
        memory_bytes: section
            .size("user_memory", (1 << 20)..=MEMORY_BYTES_MAX, "the memory that one user's programs may have")
            .unwrap_or(1 << 30),
        watches_max: section
            .number("user_watches_max", 0..=1024, "watches of regions of one user")
            .unwrap_or(32),
    }
}
