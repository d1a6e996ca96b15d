//! Region memory: what peers read and write, and local programs map.
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
pub use region::{MemoryError, Pages, RegionMemory};
pub use worker::{AttachError, RegionBytes, WorkerMemory};
