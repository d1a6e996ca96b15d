//! Handles of the kernel (open_by_handle_at(2)): they name an inode and its generation, across restarts.
#![allow(unsafe_code, reason = "rustix has no binding of these calls")]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Longest handle that fits into that of NFS, in bytes.
const BYTES_MAX: usize = 44;

/// `struct file_handle` with its bytes.
#[repr(C)]
struct KernelHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES_MAX],
}

/// Returns the handle of an object: its type, and the bytes that the file system has chosen.
///
/// # Errors
/// `OPNOTSUPP`: the file system has no handles. `OVERFLOW`: they are too long.
pub(super) fn of(object: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut found =
        KernelHandle { bytes: u32::try_from(BYTES_MAX).unwrap_or(0), kind: 0, handle: [0; BYTES_MAX] };
    let (mut mount, empty): (i32, &CStr) = (0, c"");
    let handle = std::ptr::from_mut(&mut found).cast();
    // SAFETY: `handle` has room for as many bytes as its first field says; all pointers live through the call.
    let result = unsafe {
        libc::name_to_handle_at(
            object.as_raw_fd(),
            empty.as_ptr(),
            handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    if result != 0 {
        return Err(last_error());
    }
    let bytes = found.handle.get(..found.bytes as usize).ok_or(Errno::OVERFLOW)?;
    Ok([&found.kind.to_be_bytes(), bytes].concat())
}

/// Opens an object of the file system that holds `mount`, without access to its content.
///
/// # Errors
/// `STALE`: the object exists no more. `PERM`: the program may not open files by handle.
pub(super) fn open(mount: BorrowedFd<'_>, handle: &[u8]) -> Result<OwnedFd, Errno> {
    let (kind, bytes) = handle.split_first_chunk().ok_or(Errno::STALE)?;
    let mut named = KernelHandle { bytes: 0, kind: i32::from_be_bytes(*kind), handle: [0; BYTES_MAX] };
    named.handle.get_mut(..bytes.len()).ok_or(Errno::STALE)?.copy_from_slice(bytes);
    named.bytes = u32::try_from(bytes.len()).map_err(|_| Errno::STALE)?;
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let handle = std::ptr::from_mut(&mut named).cast();
    // SAFETY: `handle` has as many bytes as its first field says, and lives through the call.
    let opened = unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), handle, flags) };
    if opened < 0 {
        return Err(last_error());
    }
    // SAFETY: the call has returned a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
