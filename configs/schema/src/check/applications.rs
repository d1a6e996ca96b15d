//! Table `[applications]`: the verbs socket and its limits. The daemon serves applications only if the table is there.

use std::path::PathBuf;

use ipnet::IpNet;

use super::service::{Control, GROUP, SOCKET, check_socket, prefix};
use crate::keys::{By, Keys as _, Mode, Number, Row, Size, keys};
use crate::read::{Report, Section, Value};
use crate::types::CONTEXTS_MAX;

/// First port that every user may use.
const PORTS_UNPRIVILEGED: u16 = 1024;
/// First port of connections by number, unless another is configured.
const QUEUE_PAIR_PORT: u16 = 4791;
/// Most bytes that one user's programs may have: 16 TiB.
const MEMORY_BYTES_MAX: u64 = 16 << 40;

keys! {
    /// Table `[applications]`: the verbs socket, and the objects that programs may have; without the table the daemon
    /// serves none.
    pub struct Applications in applications(section) {
        /// Unix socket for programs; its path has at most 107 bytes.
        socket: PathBuf = PathBuf::from("/run/iwarpd/verbs.sock"), SOCKET, Restart;
        /// File mode of the socket; 0666 is for every user.
        mode: u32 = 0o660, Mode(&[0o600, 0o660, 0o666]), Live;
        /// Group that owns the socket and may use it, besides root; default: the daemon's.
        group: Option<String> = None, GROUP, Live, "\"root\"";
        /// Maximum number of contexts at a time, each a connection to the socket.
        contexts_max: u16 = 64, Number(1..=CONTEXTS_MAX, "contexts at a time"), UpToStart;
        /// Maximum number of queue pairs per worker and port.
        queue_pairs_max: u16 = 1024, Number(1..=16_384, "queue pairs per worker and port"), Restart;
        /// Maximum number of memory regions of all contexts together.
        memory_regions_max: u16 = 1024, Number(1..=16_384, "memory regions of all contexts"), Restart;
        /// Longest time that a copy into or out of a program's memory may take in the kernel, ms; then it fails.
        kernel_copy_ms_max: u32 = 2000, Number(10..=60_000, "milliseconds of a copy in the kernel"), Live;
        /// Maximum number of programs that watch one region: they wait for messages of its peers.
        region_watches_max: u16 = 8, Number(0..=64, "programs that watch one region"), Live;
        /// Notifications that a watch holds per worker and port; rounded up to a power of two.
        watch_entries: u32 = 256, Number(1..=65_536, "notifications of a watch per worker and port"), Restart;
        /// First TCP port at which queue pairs are connected that programs name by number, as those of InfiniBand do: a
        /// worker has this port plus its number. 0: there are no such connections.
        queue_pair_port: u16 = QUEUE_PAIR_PORT, Number(0..=65_472, "TCP ports of connections by number"), Restart;
        /// Prefixes of the hosts whose queue pairs may connect so.
        queue_pair_peers: Vec<IpNet> = Vec::new(),
            By(queue_pair_peers, peers, ""), Restart, "[\"10.77.0.0/16\"]";
        /// Ports below 1024 that every user may use; the others are for root.
        privileged_ports: Vec<u16> = Vec::new(),
            By(privileged_ports, |ports| format!("{ports:?}"), "a list of ports from 1 to 1023"), Live;
    }
    with {
        /// Maximum of one user's contexts together.
        user: UserLimits = UserLimits::read(section, contexts_max, queue_pairs_max);
    }
}

keys! {
    /// Limits of all contexts of one user together, keys `user_…` of `[applications]`.
    #[derive(Copy, Eq)]
    pub struct UserLimits in applications(section, contexts: u16, queue_pairs: u16) {
        /// Percentage of each table of objects that one user may have: of a worker and port, and of the memory regions.
        share as "user_share": u8 = 75, Number(1..=100, "the percentage of each table for one user"), Live;
        /// Maximum number of contexts, at most `contexts_max`; default: half of it.
        contexts_max as "user_contexts_max": u16 = contexts.div_ceil(2),
            Number(1..=CONTEXTS_MAX, "contexts of one user"), Live;
        /// Maximum number of queue pairs, at most `queue_pairs_max`; default: `user_share` of it.
        queue_pairs_max as "user_queue_pairs_max": u32 = share_of(queue_pairs, share),
            Number(1..=1 << 20, "queue pairs of one user"), Live;
        /// Maximum number of entries of send, receive and completion queues.
        queue_entries_max as "user_queue_entries_max": u32 = 1 << 20,
            Number(1..=1 << 30, "entries of one user's queues"), Live;
        /// Maximum bytes of queues, those of the worker too, and of memory that the daemon allocates.
        memory_bytes as "user_memory": u64 = 1 << 30,
            Size((1 << 20)..=MEMORY_BYTES_MAX, "the memory that one user's programs may have"), Live;
        /// Maximum number of watches of regions.
        watches_max as "user_watches_max": u16 = 32, Number(0..=1024, "watches of regions of one user"), Live;
    }
}

/// Returns the default of a user's queue pairs.
fn share_of(queue_pairs: u16, share: u8) -> u32 {
    (u32::from(queue_pairs).saturating_mul(share.into()) / 100).max(1)
}

impl Applications {
    /// Returns a row for each key, those of one user too.
    pub(crate) fn all_rows(&self) -> Vec<Row> {
        [self.rows(), self.user.rows()].concat()
    }
}

pub(super) fn read(mut section: Section<'_>, report: &Report, control: &Control) -> Option<Applications> {
    let is_there = section.is_there();
    let mut applications = Applications::read(&mut section);
    applications.watch_entries = applications.watch_entries.next_power_of_two();
    check_user(&section, report, &applications);
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

fn privileged_ports(section: &mut Section<'_>) -> Option<Vec<u16>> {
    let report = section.report();
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
    Some(section.list("privileged_ports", what)?.into_iter().filter_map(port).collect())
}

fn queue_pair_peers(section: &mut Section<'_>) -> Option<Vec<IpNet>> {
    let report = section.report();
    let list = section.list("queue_pair_peers", "a list of prefixes")?;
    Some(list.iter().filter_map(|item| prefix(item, report)).collect())
}

/// Formats the prefixes of peers for people.
fn peers(prefixes: &Vec<IpNet>) -> String {
    match prefixes.as_slice() {
        [] => "those of the port's addresses".to_owned(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Checks that the limits of one user are at most the totals, so that one user cannot take all there are.
fn check_user(section: &Section<'_>, report: &Report, applications: &Applications) {
    let Applications { user, contexts_max, queue_pairs_max, .. } = applications;
    let totals = [
        ("user_contexts_max", user.contexts_max.into(), "contexts_max", *contexts_max),
        ("user_queue_pairs_max", user.queue_pairs_max, "queue_pairs_max", *queue_pairs_max),
    ];
    for (key, of_user, total_key, total) in totals {
        if of_user > u32::from(total) {
            let message =
                format!("one user may have {of_user}, more than {total_key} allows all users: {total}");
            report.at(&section.place_of(key), message, format!("lower it, or raise {total_key}"));
        }
    }
}
