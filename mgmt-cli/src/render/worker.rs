//! Formats replies about workers.

use iwarp_control::{Idle, WorkerStatus};
use iwarp_terminal::units;

use super::{Width, table};

/// Formats all workers in columns.
pub(crate) fn list(workers: &[WorkerStatus], width: Width) -> String {
    let rows = workers.iter().map(|worker| {
        vec![
            worker.worker.to_string(),
            worker.core.to_string(),
            idle(worker.idle).to_owned(),
            units::permille(worker.busy_permille),
            packets_per_burst(worker),
            worker.rx_packets.to_string(),
            worker.tx_packets.to_string(),
            worker.rx_bursts.to_string(),
            worker.iterations.to_string(),
            worker.sleeps.to_string(),
            worker.spins_paid.to_string(),
            units::micros(worker.wake_up_ns),
        ]
    });
    let header = [
        "WORKER",
        "CORE",
        "IDLE",
        "BUSY",
        "PACKETS/BURST",
        "RX",
        "TX",
        "BURSTS",
        "ITERATIONS",
        "SLEEPS",
        "SPINS PAID",
        "WAKE-UP",
    ];
    let spare = ["ITERATIONS", "BURSTS", "SPINS PAID", "WAKE-UP", "SLEEPS", "IDLE", "PACKETS/BURST"];
    table(width, &header, &spare, rows)
}

/// Formats a worker in one line, for `status` and `stats`.
pub(crate) fn line(status: &WorkerStatus) -> String {
    let WorkerStatus { worker, core, busy_permille, .. } = status;
    let (idle, busy) = (idle(status.idle), units::permille(*busy_permille));
    format!(
        "worker {worker}  core {core}  {idle}  busy {busy}  {} packets/burst\n",
        packets_per_burst(status)
    )
}

pub(crate) const fn idle(idle: Idle) -> &'static str {
    match idle {
        Idle::Spin => "spin",
        Idle::Adaptive => "adaptive",
    }
}

/// Formats the packets of a burst that was not empty.
pub(crate) fn packets_per_burst(worker: &WorkerStatus) -> String {
    let hundredths = worker.rx_packets_per_burst_x100;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
