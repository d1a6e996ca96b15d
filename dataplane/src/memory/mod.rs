//! Region memory: remote peers read and write it, and local programs map it. `admin` creates it, and the workers copy
//! payload into and out of it.
//!
//! ```text
//! RegionMemory ── a sealed memfd, mapped once; shared by Arc
//!   ├─ its descriptor ── handed to local programs, who map the same pages
//!   └─ WorkerMemory ── one worker's table RegionId → RegionMemory; the copies of the packet path
//! ```

mod hugepages;
mod region;
#[cfg(test)]
mod tests;
mod worker;

pub use hugepages::{HUGEPAGE_BYTES, HugepageStatus, hugepages};
pub use region::{MemoryError, OutOfBounds, Pages, RegionMemory};
pub use worker::{AttachError, RegionBytes, WorkerMemory};
