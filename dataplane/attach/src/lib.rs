//! A local program maps a region of iwarpd by its name.
//!
//! ```no_run
//! let region = iwarp_attach::attach("/run/iwarpd/control.sock", "lab")?;
//! let mut first = [0; 16];
//! region.read(0, &mut first)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The daemon hands out the region's memory as a sealed memfd over its control socket, where it checks who asks; from
//! then on nothing but memory is between the program and the region. Remote peers place bytes into it while the
//! program looks: there is no lock, and bytes read at different moments are of different moments. What is placed
//! before a peer's message is delivered is visible when the message is; programs that poll for data poll the byte
//! that is placed last.
//!
//! A mapping outlives the region: once the region is deregistered, the memory is the program's alone and no peer
//! changes it any more.

mod mapping;

use std::path::Path;

use iwarp_control::{Access, Client, ClientError, RegionAttachMethod, RegionAttached, RegionName};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

pub use mapping::{Mapping, OutOfBounds};

/// Why a region could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The daemon could not be asked, or refused.
    #[error(transparent)]
    Daemon(#[from] ClientError),
    /// The daemon answered with something that is not the memory of such a region.
    #[error("the daemon's answer for region {name} is no region: {reason}")]
    NotARegion {
        /// The region.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The memory could not be mapped.
    #[error("region {name} cannot be mapped: {cause}")]
    Map {
        /// The region.
        name: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// Asks the daemon at `socket` for the region `name` and maps its memory, readable and writable: local programs
/// own what is on their machine, the region's rights bind remote peers.
///
/// # Errors
/// The daemon is not there, refuses, or has no such region; or the memory cannot be mapped.
pub fn attach(socket: impl AsRef<Path>, name: &str) -> Result<Mapping, AttachError> {
    attach_with(&mut Client::connect(socket)?, name)
}

/// Like [`attach`], over a connection that is there already.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(client: &mut Client, name: &str) -> Result<Mapping, AttachError> {
    let params = RegionName { name: name.to_owned() };
    let (attached, fd) = client.call_with_fd::<RegionAttachMethod>(&params)?;
    let not_a_region = |reason: String| AttachError::NotARegion { name: name.to_owned(), reason };
    let fd = fd.ok_or_else(|| not_a_region("no descriptor came with it".to_owned()))?;
    let length = mapped_bytes(&attached).map_err(not_a_region)?;
    // A file that can shrink would take the memory away under the program: SIGBUS at the next access.
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

/// What must be mapped for a region: its size in whole pages.
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

/// The rights of remote peers, by name.
fn rights(access: &[Access]) -> Vec<&'static str> {
    access.iter().map(|right| right.name()).collect()
}

#[cfg(test)]
mod tests;
