//! Messages about the state of the daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::port::PortInfo;
use crate::worker::WorkerStatus;

/// The state of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The daemon works as configured.
    Ok,
    /// The daemon serves with a limitation, which the status names.
    Degraded,
}

/// The daemon's state on one screen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the messages, [`crate::bounds::API`].
    pub api: u32,
    /// The version of the daemon.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Milliseconds since the start of the daemon.
    pub uptime_ms: u64,
    /// The state of the daemon.
    pub state: State,
    /// The limitations; empty if the state is `ok`.
    pub degraded: Vec<String>,
    /// The drain in progress, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<Draining>,
    /// The version of DPDK.
    pub dpdk_version: String,
    /// The path of the configuration file.
    pub config_path: PathBuf,
    /// The hugepages of the machine.
    pub hugepages: Hugepages,
    /// One row per poll-mode worker.
    pub workers: Vec<WorkerStatus>,
    /// One row per port.
    pub ports: Vec<PortInfo>,
    /// TCP connections by state.
    pub connections: ConnCounts,
    /// The number and size of the regions.
    pub regions: RegionTotals,
    /// One row per pool of packet buffers.
    pub pools: Vec<PoolStatus>,
    /// Resident memory of the process in bytes.
    pub rss_bytes: u64,
}

/// A drain in progress: the daemon accepts no connections, and stops when the others have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// Connections that have not ended.
    pub connections: u64,
    /// Milliseconds until those that are left are reset.
    pub left_ms: u64,
}

/// The machine's hugepages of the size that the daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// True if the daemon refuses to run without hugepages.
    pub required: bool,
    /// Bytes of one page; 0 if the daemon runs on ordinary pages.
    pub page_bytes: u64,
    /// Hugepages of the machine.
    pub total: u64,
    /// Free hugepages of the machine.
    pub free: u64,
}

/// TCP connections by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnCounts {
    /// Connections in state ESTABLISHED.
    pub established: u64,
    /// Connections in SYN-SENT and SYN-RECEIVED.
    pub opening: u64,
    /// Connections in FIN-WAIT-1, FIN-WAIT-2, CLOSE-WAIT, CLOSING and LAST-ACK.
    pub closing: u64,
    /// Connections in state TIME-WAIT.
    pub time_wait: u64,
    /// The configured limit of connections.
    pub max: u64,
}

/// The number and size of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionTotals {
    /// The number of regions.
    pub count: u64,
    /// The sum of their sizes in bytes.
    pub bytes: u64,
    /// The configured limit of regions.
    pub max: u64,
}

/// A pool of packet buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// The name of the pool.
    pub name: String,
    /// Buffers of the pool.
    pub buffers: u64,
    /// Buffers in use now.
    pub in_use: u64,
    /// Buffers reserved for acknowledgments and control segments.
    pub reserve: u64,
    /// Bytes of data that one buffer holds.
    pub data_room_bytes: u32,
}
