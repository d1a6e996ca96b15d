//! Region memory: remote peers read and write it, and local programs map it. `admin` creates it, and the workers copy
//! payload into and out of it.
//!
//! ```text
//! RegionMemory ── a sealed memfd, mapped once; shared by Arc
//!   ├─ its descriptor ── handed to local programs, who map the same pages
//!   └─ WorkerMemory ── one worker's table RegionId → Backing; the copies of the packet path
//! Backing ── a RegionMemory, or the Parts of a program's own memory: ranges of RegionMemory, and ranges that are
//!            accessed through the kernel (ProcessMemory), by a thread of the program (Copier); or a file (FileMemory)
//! SharedWords ── the queues of a program in another process, as atomic words
//! Watch ── a program that receives the messages of peers to a region
//! ```

mod control_group;
mod copier;
mod file;
mod hugepages;
#[cfg(test)]
mod kernel_tests;
mod parts;
mod process;
mod program;
mod region;
mod shared_words;
#[cfg(test)]
mod tests;
mod watches;
mod worker;

pub use control_group::GroupLimit;
pub use copier::{AtomicsLock, Copier};
pub use file::{FileError, FileMemory};
pub use hugepages::{HUGEPAGE_BYTES, HugepageStatus, hugepages};
pub use parts::{Backing, KernelStats, Part, Parts, Source};
pub use process::{ProcessMemory, ProcessMemoryError};
pub use program::{ProgramMemory, resume_after_fault};
pub use region::{CloseFileError, MemoryError, OutOfBounds, Pages, RegionMemory};
pub use shared_words::SharedWords;
pub use watches::Watch;
pub use worker::{AttachError, RegionBytes, WorkerMemory};
