//! RDMA benchmarks: two nodes, each on a core of its own, and a link without a kernel between them.
//!
//! ```text
//!   initiator's thread                      ring                     target's thread
//!   post, poll_cq ─ Device ─ MPA ─ TCP ─ port ════ port ─ TCP ─ MPA ─ Device ─ region
//! ```
//! The path is that of `dataplane::verbs::Node`, which serves real peers: headers, checksums, acknowledgments, CRC32c
//! and access checks. Before a bandwidth counts, the placed bytes are compared with the sent ones. With `--link
//! memif` the target is a process of its own, and the link is memory that both share. With `--link daemon` both ends
//! are contexts of one program on the first core, and the two nodes are ports of an `iwarpd` on the second.

pub mod application;
pub mod bandwidth;
mod baseline_guard;
mod crc;
mod daemon;
mod driver;
mod end;
pub mod fpdus;
pub mod latency;
mod link;
mod load;
pub mod lossy;
mod node;
mod nodes;
mod peer_process;
mod program;
mod relay;

pub use bandwidth::{BandwidthReport, BandwidthRow};
pub use latency::{LatencyReport, LatencyRow};
pub use load::{Link, Load, Operation};
pub use lossy::{LossyReport, LossyRow};
pub use relay::Impairments;
pub(crate) use relay::few_buffers;

use anyhow::Result;

use link::{BenchKind, TargetHarness};

/// Runs the target's process of a memif link: joins one benchmark after the other until the initiator closes the pipe.
///
/// # Errors
/// There is not enough memory, a connection fails, or the initiator has exited.
pub fn serve_target() -> Result<()> {
    let mut target = TargetHarness::new();
    while let Some(job) = target.next_job()? {
        match job.kind() {
            BenchKind::Bulk => target.join::<bandwidth::Bulk>(job)?,
            BenchKind::PingPong => target.join::<latency::PingPong>(job)?,
        }
    }
    Ok(())
}
