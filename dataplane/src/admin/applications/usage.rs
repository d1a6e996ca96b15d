//! Use of a user's programs, and the limits that it must not exceed.
//!
//! Some limits are absolute, for all contexts of the user together. The others are a share of a table that all users
//! have: of the tables of one worker and port, and of the memory numbers of the daemon. So one user cannot take the
//! whole of a table.

use iwarp_config::Applications as Settings;
use iwarp_control::{ErrorKind, ErrorObject, UsageInfo};
use iwarp_shared_verbs::worker::ObjectLimits;

use super::object_limits;

/// Objects that count for a user's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) contexts: u64,
    pub(super) queue_pairs: u64,
    pub(super) protection_domains: u64,
    pub(super) completion_queues: u64,
    pub(super) shared_receive_queues: u64,
    /// Numbers of memory, registered or not.
    pub(super) memories: u64,
    pub(super) windows: u64,
    pub(super) ids: u64,
    pub(super) queue_entries: u64,
    /// Bytes of queues, those of the worker included, and of memory that the daemon has allocated.
    pub(super) memory_bytes: u64,
    pub(super) watches: u64,
}

/// Key of the share of each table.
const SHARE: &str = "user_share";

/// One limit of a user, and the use that it limits.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Objects that it limits.
    what: &'static str,
    key: &'static str,
    max: u64,
    /// True if it holds for the contexts of one worker and port.
    of_device: bool,
    used: fn(&Usage) -> u64,
}

/// All limits of one user, with their present values.
#[derive(Debug)]
pub(super) struct Limits([Limit; 12]);

/// A limit that a user would exceed.
#[derive(Debug)]
pub(super) struct Exceeded {
    limit: Limit,
    used: u64,
}

impl From<Exceeded> for ErrorObject {
    fn from(exceeded: Exceeded) -> Self {
        let Exceeded { limit: Limit { what, key, max, of_device, .. }, used } = exceeded;
        let place = if of_device { " on one worker and port" } else { "" };
        let message =
            format!("{used} {what}{place} would be more than applications.{key} allows one user: {max}");
        let help = format!("free some, or raise applications.{key} and reload");
        Self::new(ErrorKind::NoResources, message).with_help(help)
    }
}

/// Returns a user's share of a table, at least one object.
fn share(total: u32, percent: u8) -> u64 {
    (u64::from(total).saturating_mul(percent.into()) / 100).max(1)
}

fn absolute(what: &'static str, key: &'static str, max: u64, used: fn(&Usage) -> u64) -> Limit {
    Limit { what, key, max, of_device: false, used }
}

fn of_device(what: &'static str, max: u64, used: fn(&Usage) -> u64) -> Limit {
    Limit { what, key: SHARE, max, of_device: true, used }
}

/// Returns the most ids of one user on a worker and port.
pub(super) fn ids_max(settings: &Settings) -> u32 {
    u32::try_from(share(object_limits(settings).ids, settings.user.share)).unwrap_or(u32::MAX)
}

impl Limits {
    pub(super) fn new(settings: &Settings) -> Self {
        let user = &settings.user;
        let ObjectLimits { pds, mrs, mws, cqs, qps, srqs, ids, .. } = object_limits(settings);
        let memories = share(mrs, user.share);
        Self([
            absolute("contexts", "user_contexts_max", user.contexts_max.into(), |used| used.contexts),
            absolute("queue pairs", "user_queue_pairs_max", user.queue_pairs_max.into(), |used| {
                used.queue_pairs
            }),
            absolute("queue entries", "user_queue_entries_max", user.queue_entries_max.into(), |used| {
                used.queue_entries
            }),
            absolute("bytes of queues and memory", "user_memory", user.memory_bytes, |used| {
                used.memory_bytes
            }),
            absolute("watches", "user_watches_max", user.watches_max.into(), |used| used.watches),
            absolute("memory regions", SHARE, memories, |used| used.memories),
            of_device("queue pairs", share(qps, user.share), |used| used.queue_pairs),
            of_device("protection domains", share(pds, user.share), |used| used.protection_domains),
            of_device("completion queues", share(cqs, user.share), |used| used.completion_queues),
            of_device("shared receive queues", share(srqs, user.share), |used| used.shared_receive_queues),
            of_device("memory windows", share(mws, user.share), |used| used.windows),
            of_device("ids", share(ids, user.share), |used| used.ids),
        ])
    }

    /// Checks what a request adds: only limits of objects that it adds count.
    ///
    /// # Errors
    /// The first limit that the sum exceeds.
    pub(super) fn check(&self, added: Usage, all: Usage, of_device: Usage) -> Result<(), Exceeded> {
        let exceeded = self.0.iter().filter(|limit| (limit.used)(&added) > 0).find_map(|limit| {
            let used = (limit.used)(if limit.of_device { &of_device } else { &all });
            (used > limit.max).then_some(Exceeded { limit: *limit, used })
        });
        exceeded.map_or(Ok(()), Err)
    }

    /// Returns what a user has of each limit. `of_device` is the use of the worker and port that has most of it.
    pub(super) fn report(&self, all: Usage, of_devices: &[Usage]) -> Vec<UsageInfo> {
        let row = |limit: &Limit| UsageInfo {
            what: limit.what.to_owned(),
            used: if limit.of_device {
                of_devices.iter().map(limit.used).max().unwrap_or(0)
            } else {
                (limit.used)(&all)
            },
            max: limit.max,
            key: format!("applications.{}", limit.key),
            per_device: limit.of_device,
        };
        self.0.iter().map(row).collect()
    }
}

impl Usage {
    pub(super) const fn add(self, other: Self) -> Self {
        Self {
            contexts: self.contexts.saturating_add(other.contexts),
            queue_pairs: self.queue_pairs.saturating_add(other.queue_pairs),
            protection_domains: self.protection_domains.saturating_add(other.protection_domains),
            completion_queues: self.completion_queues.saturating_add(other.completion_queues),
            shared_receive_queues: self.shared_receive_queues.saturating_add(other.shared_receive_queues),
            memories: self.memories.saturating_add(other.memories),
            windows: self.windows.saturating_add(other.windows),
            ids: self.ids.saturating_add(other.ids),
            queue_entries: self.queue_entries.saturating_add(other.queue_entries),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            watches: self.watches.saturating_add(other.watches),
        }
    }
}
