//! Messages about poll-mode workers.

use serde::{Deserialize, Serialize};

/// The behavior of a worker without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// The worker polls without a pause.
    Spin,
    /// The worker sleeps, for a bounded number of microseconds at a time.
    Adaptive,
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
    /// Spins before a sleep that work ended.
    #[serde(default)]
    pub spins_paid: u64,
    /// Nanoseconds that a wake-up took on average; 0 if no sleep has ended by itself.
    #[serde(default)]
    pub wake_up_ns: u64,
}
