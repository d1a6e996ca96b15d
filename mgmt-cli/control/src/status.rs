//! Messages about the state of the daemon.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::port::PortInfo;

/// The state of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The daemon works as configured.
    Ok,
    /// The daemon serves with a limitation, which the status names.
    Degraded,
}

/// The behavior of a worker without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// The worker polls without a pause.
    Spin,
    /// The worker sleeps, for a bounded number of microseconds at a time.
    Adaptive,
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

/// A poll-mode worker. The load and the packets per burst cover the last window of about 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The index of the worker.
    pub worker: u32,
    /// The core that the worker is pinned to.
    pub core: u32,
    /// The behavior without work.
    pub idle: Idle,
    /// Iterations of the poll loop.
    pub iterations: u64,
    /// Thousandths of the window in which the worker had work.
    pub busy_permille: u32,
    /// Receive bursts that were not empty.
    pub rx_bursts: u64,
    /// Hundredths of a packet per burst that was not empty.
    pub rx_packets_per_burst_x100: u64,
    /// Packets that the worker received.
    pub rx_packets: u64,
    /// Packets that the worker sent.
    pub tx_packets: u64,
    /// Times that the worker slept.
    pub sleeps: u64,
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
