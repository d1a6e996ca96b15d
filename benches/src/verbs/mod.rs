//! RDMA benchmarks: two nodes of one process, each on a core of its own, and a wire without a kernel between them.
//!
//! ```text
//!   initiator's thread                      ring                     target's thread
//!   post, poll_cq ─ Device ─ MPA ─ TCP ─ port ════ port ─ TCP ─ MPA ─ Device ─ region
//! ```
//! It is the path of `dataplane::verbs::Node`, which serves real peers: headers, checksums, acknowledgments, CRC32c, access
//! checks. Before a bandwidth counts, what was placed is compared with what was sent. With `--link memif` the target is a process of
//! its own, and the wire memory that both share.

pub mod bandwidth;
mod end;
pub mod fpdus;
pub mod latency;
mod link;
mod load;
pub mod lossy;
mod pair;
mod partner;
mod relay;
mod steady;

pub use bandwidth::{BandwidthReport, BandwidthRow};
pub use latency::{LatencyReport, LatencyRow};
pub use link::{Link, serve};
pub use load::{Crc, Load};
pub use lossy::{LossyReport, LossyRow};
pub use relay::Weather;
pub(crate) use relay::few_buffers;

use serde::{Deserialize, Serialize};

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send.
    Send,
}

impl Operation {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}
