//! Region memory: remote peers read and write it, and local programs map it. `admin` creates it, and the workers copy
//! payload into and out of it.
//!
//! ```text
//! RegionMemory ── a sealed memfd, mapped once; shared by Arc
//!   ├─ its descriptor ── handed to local programs, who map the same pages
//!   └─ WorkerMemory ── one worker's table RegionId → RegionMemory; the copies of the packet path
//! SharedWords ── the queues of a program in another process, as atomic words
//! ```

mod hugepages;
mod region;
mod shared_words;
#[cfg(test)]
mod tests;
mod worker;

pub use hugepages::{HUGEPAGE_BYTES, HugepageStatus, hugepages};
pub use region::{MemoryError, OutOfBounds, Pages, RegionMemory};
pub use shared_words::SharedWords;
pub use worker::{AttachError, RegionBytes, WorkerMemory};
