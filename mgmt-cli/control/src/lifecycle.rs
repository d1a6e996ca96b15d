//! Reload and drain of the daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A change that a reload has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// The key or object, such as `log.level` or `region lab`.
    pub object: String,
    /// The change in words, such as `info -> debug`.
    pub change: String,
}

/// The reply to `reload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The path of the configuration file.
    pub config_path: PathBuf,
    /// The changes; empty if the file says what it said before.
    pub changes: Vec<ConfigChange>,
    /// Grants that were revoked: their region is gone, or no longer permits them.
    pub grants_revoked: u64,
}

/// The parameters of `drain`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Milliseconds that connections have to end: at most a day.
    pub timeout_ms: u64,
}

impl Drain {
    /// The longest drain, in milliseconds.
    pub const TIMEOUT_MS_MAX: u64 = 86_400_000;
}

/// The reply to `drain`, which comes when the drain has ended; the daemon then stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Connections that were in use until the time was over, and are reset.
    pub cut_off: u64,
}
