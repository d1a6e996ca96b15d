//! Maps a region of `iwarpd` into a local program, by the region's name.
//!
//! ```no_run
//! let region = iwarp_verbs::attach("/run/iwarpd/control.sock", "lab")?;
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

use std::ops::Deref;
use std::path::Path;

use iwarp_control::{Client, ClientError, RegionAttachMethod, RegionAttached, RegionQuery};
use rdma::Access;

use crate::mapping::{MapError, Mapping};

/// The memory of a region, mapped by [`attach`].
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    name: String,
    access: Access,
}

impl Region {
    pub(crate) const fn of(mapping: Mapping, name: String, access: Access) -> Self {
        Self { mapping, name, access }
    }

    /// Returns the name of the region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rights of remote peers.
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Deref for Region {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

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
pub fn attach(socket: impl AsRef<Path>, name: &str) -> Result<Region, AttachError> {
    attach_with(&mut Client::connect(socket)?, name)
}

/// Maps a region like [`attach`], over an open connection.
///
/// # Errors
/// As [`attach`].
pub fn attach_with(client: &mut Client, name: &str) -> Result<Region, AttachError> {
    let params = RegionQuery { name: name.to_owned() };
    let (attached, fd) = client.call_with_fd::<RegionAttachMethod>(&params)?;
    let not_a_region = |reason: String| AttachError::NotARegion { name: name.to_owned(), reason };
    let fd = fd.ok_or_else(|| not_a_region("no descriptor came with it".to_owned()))?;
    let RegionAttached { name: attached_name, bytes, page_bytes, access } = attached;
    let mapping = Mapping::of_daemon(&fd, bytes, page_bytes).map_err(|error| match error {
        MapError::Wrong(reason) => not_a_region(reason),
        MapError::System(cause) => AttachError::Map { name: name.to_owned(), cause: cause.into() },
    })?;
    Ok(Region { mapping, name: attached_name, access })
}

#[cfg(test)]
mod tests;
