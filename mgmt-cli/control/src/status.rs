//! The daemon's state.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::port::PortInfo;

/// Whether all is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All is as configured.
    Ok,
    /// The daemon serves, but something is missing; the status says what.
    Degraded,
}

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Polls on.
    Spin,
    /// Sleeps for bounded microseconds.
    Adaptive,
}

/// The daemon's state on one screen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the messages, [`crate::bounds::API`].
    pub api: u32,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// Whether all is as it should be.
    pub state: State,
    /// What is not as it should be; empty if the state is ok.
    pub degraded: Vec<String>,
    /// The version of DPDK that it runs on.
    pub dpdk_version: String,
    /// The configuration it runs with.
    pub config_path: PathBuf,
    /// The machine's hugepages.
    pub hugepages: Hugepages,
    /// One row per poll-mode worker.
    pub workers: Vec<WorkerStatus>,
    /// One row per port.
    pub ports: Vec<PortInfo>,
    /// TCP connections by state.
    pub connections: ConnCounts,
    /// Regions in all.
    pub regions: RegionTotals,
    /// One row per pool of packet buffers.
    pub pools: Vec<PoolStatus>,
    /// Resident memory of the process in bytes.
    pub rss_bytes: u64,
}

/// The machine's hugepages of the size that the daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hugepages {
    /// Whether the daemon refuses to run without them.
    pub required: bool,
    /// Bytes of one page; 0 if the daemon runs on ordinary pages.
    pub page_bytes: u64,
    /// Pages that the machine has reserved.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
}

/// A poll-mode worker. The busy share and the packets per burst are of the last window of about 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its index.
    pub worker: u32,
    /// The core that it is pinned to.
    pub core: u32,
    /// What it does when there is nothing to do.
    pub idle: Idle,
    /// Rounds of its loop.
    pub iterations: u64,
    /// Thousandths of the window that it had work.
    pub busy_permille: u32,
    /// Receive bursts that were not empty.
    pub rx_bursts: u64,
    /// Hundredths of a packet per burst that was not empty.
    pub rx_packets_per_burst_x100: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

/// TCP connections by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnCounts {
    /// ESTABLISHED.
    pub established: u64,
    /// SYN-SENT and SYN-RECEIVED.
    pub opening: u64,
    /// FIN-WAIT-1 and -2, CLOSE-WAIT, CLOSING, LAST-ACK.
    pub closing: u64,
    /// TIME-WAIT.
    pub time_wait: u64,
    /// The most that the configuration allows.
    pub max: u64,
}

/// Regions in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionTotals {
    /// How many.
    pub count: u64,
    /// Their bytes in sum.
    pub bytes: u64,
    /// The most that the configuration allows.
    pub max: u64,
}

/// A pool of packet buffers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Buffers that it has.
    pub buffers: u64,
    /// Buffers that are out.
    pub in_use: u64,
    /// Buffers kept back for acknowledgments and control.
    pub reserve: u64,
    /// Bytes of data that one buffer takes.
    pub data_room_bytes: u32,
}
