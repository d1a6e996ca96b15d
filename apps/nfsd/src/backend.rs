//! The interface between procedures and what an export holds.

use std::fmt;
use std::sync::Arc;

use iwarp_server::{Region, User};
use nfs3_types::nfs3::{createverf3, ftype3, nfsstat3, nfstime3};

use crate::attributes::{Attributes, NewAttributes};
use crate::file::File;

/// Object that is to be created.
#[derive(Debug)]
pub enum New<'a> {
    /// A regular file. `exclusive`: it must not exist.
    File {
        /// Attributes of the file.
        attributes: NewAttributes,
        /// True if an existing file is an error.
        exclusive: bool,
    },
    /// A regular file that only the repetition of the same call may find existing.
    FileOnce(createverf3),
    /// A directory, with its attributes.
    Directory(NewAttributes),
    /// A symbolic link with its target.
    Symlink(NewAttributes, &'a [u8]),
    /// A device, socket or FIFO.
    Special {
        /// Type of the object.
        kind: ftype3,
        /// Attributes of the object.
        attributes: NewAttributes,
        /// Device number, major and minor.
        device: (u32, u32),
    },
}

/// Entry of a directory.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Number of the file.
    pub fileid: u64,
    /// Name in the directory.
    pub name: &'a [u8],
    /// Position behind the entry, for the next call.
    pub cookie: u64,
}

/// Space of a file system, in bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Total, free and available bytes.
    pub bytes: [u64; 3],
    /// Total, free and available files.
    pub files: [u64; 3],
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Files of an export. Objects are named by handles of at most 52 bytes that stay valid across restarts; only handles
/// that the backend has issued reach it. Each operation runs with the rights of a user.
///
/// Errors are NFS status values; `NFS3ERR_STALE` if an object exists no more.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns the handle of the topmost directory.
    fn root(&self) -> Vec<u8>;

    /// Describes the content for operators: the path of a directory, or the regions.
    fn content(&self) -> String;

    /// Returns the attributes of an object.
    ///
    /// # Errors
    /// As the trait says.
    fn attributes(&self, object: &[u8]) -> Result<Attributes, nfsstat3>;

    /// Changes attributes. With `guard`, only if the object has not been changed since that time, as NFS 3 states it.
    ///
    /// # Errors
    /// As the trait says; `NFS3ERR_NOT_SYNC` for a guard that does not match.
    fn set_attributes(
        &self,
        user: &User,
        object: &[u8],
        attributes: &NewAttributes,
        guard: Option<nfstime3>,
    ) -> Result<(), nfsstat3>;

    /// Finds a name in a directory; `..` of the topmost directory is that directory.
    ///
    /// # Errors
    /// As the trait says.
    fn lookup(&self, user: &User, dir: &[u8], name: &[u8]) -> Result<Vec<u8>, nfsstat3>;

    /// Returns those rights of `wanted`, bits of ACCESS3, that the user has.
    ///
    /// # Errors
    /// As the trait says.
    fn access(&self, user: &User, object: &[u8], wanted: u32) -> Result<u32, nfsstat3>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// As the trait says.
    fn read_link(&self, user: &User, object: &[u8]) -> Result<Vec<u8>, nfsstat3>;

    /// Opens a regular file for READ, or for WRITE and COMMIT.
    ///
    /// # Errors
    /// As the trait says; `NFS3ERR_INVAL` if it is no regular file.
    fn open(&self, user: &User, object: &[u8], write: bool) -> Result<File, nfsstat3>;

    /// Returns true if objects have links, and times that can be set.
    fn has_links_and_times(&self) -> bool {
        true
    }

    /// Returns the region whose memory is the content of a file; `None` if data must be copied to and from it.
    fn region(&self, _object: &[u8]) -> Option<Arc<Region>> {
        None
    }

    /// Creates an object and returns its handle.
    ///
    /// # Errors
    /// As the trait says.
    fn create(&self, user: &User, dir: &[u8], name: &[u8], new: &New<'_>) -> Result<Vec<u8>, nfsstat3>;

    /// Removes a directory, or an object that is none.
    ///
    /// # Errors
    /// As the trait says.
    fn remove(&self, user: &User, dir: &[u8], name: &[u8], directory: bool) -> Result<(), nfsstat3>;

    /// Renames an object, and replaces one that has the new name.
    ///
    /// # Errors
    /// As the trait says.
    fn rename(&self, user: &User, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> Result<(), nfsstat3>;

    /// Gives an object another name.
    ///
    /// # Errors
    /// As the trait says.
    fn link(&self, user: &User, object: &[u8], dir: &[u8], name: &[u8]) -> Result<(), nfsstat3>;

    /// Passes the entries behind a cookie, 0 for the first, to `take` until it returns false. Returns true if the last
    /// entry was taken.
    ///
    /// # Errors
    /// As the trait says.
    fn read_dir(
        &self,
        user: &User,
        dir: &[u8],
        cookie: u64,
        take: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<bool, nfsstat3>;

    /// Returns the space of the file system that holds an object.
    ///
    /// # Errors
    /// As the trait says.
    fn space(&self, object: &[u8]) -> Result<Space, nfsstat3>;
}
