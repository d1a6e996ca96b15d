//! Whole transfers between files and memory.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_all(file: impl AsFd, buffer: &mut [u8], mut offset: u64) -> Result<u32, Errno> {
    let mut rest = buffer;
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
pub(crate) fn write_all(file: impl AsFd, data: &[u8], mut offset: u64) -> Result<u32, Errno> {
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
