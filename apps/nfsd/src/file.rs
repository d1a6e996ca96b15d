//! Regular files that a backend has opened: of the kernel, or regions of the daemon.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nfs3_types::nfs3::{Nfs3Option, post_op_attr, stable_how};
use rustix::fs::{AtFlags, StatxFlags, fdatasync, fstat, fsync, statx};
use rustix::io::Errno;

use crate::attributes::attributes_of;
use crate::region::{self, Region, Span};

/// Largest offset of a file, and the largest size.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Returns the bytes of a READ that may be in a file: none has any behind [`OFFSET_MAX`], and the kernel refuses to
/// look for them.
pub(crate) fn possible(offset: u64, length: u32) -> u32 {
    let left = OFFSET_MAX.saturating_sub(offset);
    u32::try_from(left).map_or(length, |left| left.min(length))
}

/// Checks that a file can have all bytes of a WRITE.
///
/// # Errors
/// `FBIG`: some of them would be behind [`OFFSET_MAX`].
pub(crate) fn check_end(offset: u64, length: usize) -> Result<(), Errno> {
    let end = offset.checked_add(length as u64);
    if end.is_some_and(|end| end <= OFFSET_MAX) { Ok(()) } else { Err(Errno::FBIG) }
}

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
            Self::Kernel(file) => read_all(file, buffer, offset),
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
            Self::Kernel(file) => write_all(file, data, offset),
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
            Self::Region(region, fsid) => {
                Nfs3Option::Some(region::attributes(region, *fsid, region.last_modified()).into())
            }
        }
    }

    /// Makes written data as durable as the client asks for. Returns how durable it is: there is no other place for
    /// that of a region than its memory.
    pub(crate) fn sync(&self, how: stable_how) -> Result<stable_how, Errno> {
        match (self, how) {
            (Self::Kernel(_), stable_how::UNSTABLE) => {}
            (Self::Kernel(file), stable_how::DATA_SYNC) => fdatasync(file)?,
            (Self::Kernel(file), stable_how::FILE_SYNC) => fsync(file)?,
            (Self::Region(..), _) => return Ok(stable_how::FILE_SYNC),
        }
        Ok(how)
    }
}

/// Reads until the buffer is full or the file ends.
fn read_all(file: impl AsFd, buffer: &mut [u8], mut offset: u64) -> Result<u32, Errno> {
    let length = possible(offset, u32::try_from(buffer.len()).unwrap_or(u32::MAX));
    let mut rest = buffer.get_mut(..length as usize).unwrap_or_default();
    let mut total = 0_u32;
    while !rest.is_empty() {
        match rustix::io::pread(&file, &mut *rest, offset) {
            Ok(0) => break,
            Ok(read) => {
                total = total.saturating_add(u32::try_from(read).unwrap_or(u32::MAX));
                offset = offset.saturating_add(read as u64);
                rest = rest.get_mut(read..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Writes all bytes, or as many as the file system takes.
fn write_all(file: impl AsFd, data: &[u8], mut offset: u64) -> Result<u32, Errno> {
    check_end(offset, data.len())?;
    let mut rest = data;
    let mut total = 0_u32;
    while !rest.is_empty() {
        match rustix::io::pwrite(&file, rest, offset) {
            Ok(written) if written > 0 => {
                total = total.saturating_add(u32::try_from(written).unwrap_or(u32::MAX));
                offset = offset.saturating_add(written as u64);
                rest = rest.get(written..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) if total == 0 => return Err(error),
            Ok(_) | Err(_) => break,
        }
    }
    Ok(total)
}
