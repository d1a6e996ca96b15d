//! Regular files that a backend has opened: of the kernel, or regions of the daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use iwarp_server::{Content, Durability, Io, Region, Room, Span, User, Written, kernel};
use nfs3_types::nfs3::{Nfs3Option, post_op_attr, stable_how};
use rustix::fs::{AtFlags, StatxFlags, fstat, statx};
use rustix::io::Errno;

use crate::attributes::attributes_of;
use crate::regions::last_attributes;

/// A regular file that a backend has opened. Clones are handles of the same file.
#[derive(Clone, Debug)]
pub enum File {
    /// A file of the kernel, open for reading or for writing.
    Kernel(Arc<OwnedFd>),
    /// A region of the daemon, whose memory is the content, in a file system of this number.
    Region(Arc<Region>, u64),
}

impl From<OwnedFd> for File {
    fn from(file: OwnedFd) -> Self {
        Self::Kernel(Arc::new(file))
    }
}

impl File {
    /// Reads until the buffer is full or the file ends. Returns the bytes read.
    ///
    /// # Errors
    /// Those of pread(2), except that a file of the kernel just ends at the largest offset; `STALE` for a region that
    /// is gone, `ACCESS` for one that may not be read.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<u32, Errno> {
        match self {
            Self::Kernel(file) => kernel::read_at(file, buffer, offset),
            Self::Region(region, _) => region.read_at(buffer, offset),
        }
    }

    /// Writes all bytes, or as many as the file system or the region takes. Returns the bytes written.
    ///
    /// # Errors
    /// Those of pwrite(2), and `FBIG` behind the largest offset; `STALE` for a region that is gone, `ACCESS` for one
    /// that may not be written, `NOSPC` at its end.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<u32, Errno> {
        match self {
            Self::Kernel(file) => kernel::write_at(file, data, offset),
            Self::Region(region, _) => region.write_at(data, offset),
        }
    }

    /// Returns the part of the file that a READ returns, if that is registered memory; `None` for a file of the kernel.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn readable(&self, offset: u64, length: u32) -> Result<Option<Span>, Errno> {
        match self {
            Self::Kernel(_) => Ok(None),
            Self::Region(region, _) => region.readable(offset, length).map(Some),
        }
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> Result<u64, Errno> {
        match self {
            Self::Kernel(file) => Ok(fstat(file)?.st_size.unsigned_abs()),
            Self::Region(region, _) => Ok(region.bytes()),
        }
    }

    /// Returns the attributes for the reply to a READ or WRITE. A region has them always: Linux takes the header of a
    /// READ's reply for as long as that of the first one, and moves the data if it is shorter.
    pub(crate) fn attributes(&self) -> post_op_attr {
        match self {
            Self::Kernel(file) => {
                let found = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
                found.map_or(Nfs3Option::None, |found| Nfs3Option::Some(attributes_of(&found).into()))
            }
            Self::Region(region, fsid) => Nfs3Option::Some(last_attributes(region, *fsid).into()),
        }
    }

    /// Makes written data as durable as the client asks for. Returns how durable it is: there is no other place for
    /// that of a region than its memory.
    pub(crate) fn sync(&self, how: stable_how) -> Result<stable_how, Errno> {
        match self {
            Self::Kernel(file) => kernel::sync(file, durability(how)).map(|()| how),
            Self::Region(..) => Ok(stable_how::FILE_SYNC),
        }
    }

    /// Reads up to `length` bytes; fewer mean the end of the file.
    pub(crate) async fn read(
        &self,
        io: &Io,
        offset: u64,
        length: u32,
        room: Option<&Room>,
    ) -> Result<Content, Errno> {
        match self {
            Self::Kernel(file) => io.read(file, offset, length, room).await,
            Self::Region(region, _) => {
                let mut content = vec![0; length as usize];
                let read = region.read_at(&mut content, offset)?;
                content.truncate(read as usize);
                Ok(Content::Own(content))
            }
        }
    }

    /// Writes data, which must have `length` bytes, with the rights of a user or those of the server. Returns the bytes
    /// written, and how durable they are, which is what `stable` asks for at least.
    pub(crate) async fn write<'d>(
        &self,
        io: &Io,
        user: Option<&User>,
        (offset, length): (u64, u32),
        data: impl FnOnce() -> Written<'d>,
        stable: stable_how,
    ) -> Result<(u32, stable_how), Errno> {
        match self {
            Self::Kernel(file) => {
                let written = io.write(file, user, (offset, length), data, durability(stable)).await?;
                Ok((written, stable))
            }
            Self::Region(region, _) => {
                let data = data().into_bytes()?;
                if data.len() != length as usize {
                    return Err(Errno::IO);
                }
                Ok((region.write_at(&data, offset)?, stable_how::FILE_SYNC))
            }
        }
    }

    /// Makes written data durable, and waits for that. Returns how durable it is.
    pub(crate) async fn commit(&self, io: &Io, how: stable_how) -> Result<stable_how, Errno> {
        match self {
            Self::Kernel(file) => io.sync(file, durability(how)).await.map(|()| how),
            Self::Region(..) => Ok(stable_how::FILE_SYNC),
        }
    }
}

/// Returns the durability of data that a client asks for.
fn durability(how: stable_how) -> Durability {
    match how {
        stable_how::UNSTABLE => Durability::None,
        stable_how::DATA_SYNC => Durability::Data,
        stable_how::FILE_SYNC => Durability::File,
    }
}
