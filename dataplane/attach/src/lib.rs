//! Maps a region of `iwarpd` into a local program, by the region's name.
//!
//! ```no_run
//! let region = iwarp_attach::attach("/run/iwarpd/control.sock", "lab")?;
//! let mut first = [0; 16];
//! region.read(0, &mut first)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The daemon sends the region's memory as a sealed memfd over its control socket, after it has checked the client.
//! From then on the program accesses the memory directly. Remote peers may place bytes at any time: there is no lock,
//! and bytes read one after the other may belong to different messages. Data placed before a peer's message is visible
//! when the message is delivered. A program that polls for data polls the byte that is placed last.
//!
//! A mapping outlives the region: after the region is deregistered, the memory belongs to the program alone, and no
//! peer changes it any more.

mod mapping;

use std::path::Path;

use iwarp_control::{Client, ClientError, RegionAttachMethod, RegionAttached, RegionQuery};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

pub use mapping::{Mapping, OutOfBounds};

/// Error of [`attach`] and [`attach_with`].
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The daemon is not reachable, or it refused.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The daemon's answer does not describe the memory of such a region.
    #[error("the daemon's answer for region {name} is no region: {reason}")]
    NotARegion {
        /// Name of the region.
        name: String,
        /// Description of the mismatch.
        reason: String,
    },
    /// The memory could not be mapped.
    #[error("region {name} cannot be mapped: {cause}")]
    Map {
        /// Name of the region.
        name: String,
        /// Error of the system call.
        cause: std::io::Error,
    },
}

/// Requests the region `name` from the daemon at `socket` and maps its memory for reading and writing. Local programs
/// have full access; the region's rights apply to remote peers.
///
/// # Errors
/// The daemon is not reachable, refuses, or has no such region; or the memory cannot be mapped.
pub fn attach(socket: impl AsRef<Path>, name: &str) -> Result<Mapping, AttachError> {
    attach_with(&mut Client::connect(socket)?, name)
}

/// Maps a region like [`attach`], over an open connection.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(client: &mut Client, name: &str) -> Result<Mapping, AttachError> {
    let params = RegionQuery { name: name.to_owned() };
    let (attached, fd) = client.call_with_fd::<RegionAttachMethod>(&params)?;
    let not_a_region = |reason: String| AttachError::NotARegion { name: name.to_owned(), reason };
    let fd = fd.ok_or_else(|| not_a_region("no descriptor came with it".to_owned()))?;
    let length = mapped_bytes(&attached).map_err(not_a_region)?;
    // If the file could shrink, the next access would be a SIGBUS.
    let sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !sealed {
        return Err(not_a_region("its memory is not sealed against shrinking".to_owned()));
    }
    let size = fstat(&fd).ok().and_then(|found| u64::try_from(found.st_size).ok()).unwrap_or(0);
    if size < length {
        return Err(not_a_region(format!("its memory has {size} bytes, not {length}")));
    }
    let failed = |source: rustix::io::Errno| AttachError::Map { name: name.to_owned(), cause: source.into() };
    Mapping::new(&fd, &attached, length).map_err(failed)
}

/// Returns the bytes to map for a region: its size in whole pages.
fn mapped_bytes(attached: &RegionAttached) -> Result<u64, String> {
    let RegionAttached { name: _, bytes, page_bytes, access: _ } = attached;
    if !page_bytes.is_power_of_two() || *page_bytes < 4096 {
        return Err(format!("a page of {page_bytes} bytes"));
    }
    if *bytes == 0 {
        return Err("it is empty".to_owned());
    }
    bytes.checked_next_multiple_of(*page_bytes).ok_or_else(|| format!("a size of {bytes} bytes"))
}

#[cfg(test)]
mod tests;
