//! Regular files of the kernel: bytes at offsets, and how durable they are.

use std::os::fd::AsFd;

use rustix::buffer::spare_capacity;
use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

/// Largest offset of a file, and the largest size.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Returns the bytes of a read that may be in a file: none has any behind [`OFFSET_MAX`], and the kernel refuses to
/// look for them.
pub(crate) fn possible(offset: u64, length: u32) -> u32 {
    let left = OFFSET_MAX.saturating_sub(offset);
    u32::try_from(left).map_or(length, |left| left.min(length))
}

/// Checks that a file can have all bytes of a write.
///
/// # Errors
/// `FBIG`: some of them would be behind the largest offset, 2^63 − 1.
pub fn check_end(offset: u64, length: usize) -> Result<(), Errno> {
    let end = offset.checked_add(length as u64);
    if end.is_some_and(|end| end <= OFFSET_MAX) { Ok(()) } else { Err(Errno::FBIG) }
}

/// Durability of written data, from the least to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The end of the machine may take the data.
    None,
    /// The data is on the disk, with what is needed to read it.
    Data,
    /// The data is on the disk, with all attributes of the file.
    File,
}

/// Makes written data durable.
///
/// # Errors
/// Those of fsync(2) and fdatasync(2).
pub fn sync(file: impl AsFd, durability: Durability) -> Result<(), Errno> {
    match durability {
        Durability::None => Ok(()),
        Durability::Data => fdatasync(file),
        Durability::File => fsync(file),
    }
}

/// Reads until the buffer is full or the file ends. Returns the bytes read.
///
/// # Errors
/// Those of pread(2), except that a file just ends at the largest offset.
pub fn read_at(file: impl AsFd, buffer: &mut [u8], mut offset: u64) -> Result<u32, Errno> {
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

/// Reads up to `length` bytes; fewer mean the end of the file.
///
/// # Errors
/// As for [`read_at`].
pub(crate) fn read(file: impl AsFd, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
    let length = possible(offset, length) as usize;
    let mut content = Vec::with_capacity(length);
    // The memory of a vector may be larger.
    while content.len() < length {
        let at = offset.saturating_add(content.len() as u64);
        match rustix::io::pread(&file, spare_capacity(&mut content), at) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    content.truncate(length);
    Ok(content)
}

/// Writes all bytes, or as many as the file system takes. Returns the bytes written.
///
/// # Errors
/// Those of pwrite(2), and `FBIG` behind the largest offset.
pub fn write_at(file: impl AsFd, data: &[u8], mut offset: u64) -> Result<u32, Errno> {
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
