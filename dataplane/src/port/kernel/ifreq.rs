//! Requests about an interface by its name (netdevice(7)).
#![allow(unsafe_code, reason = "asks the kernel by ioctl(2)")]

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;

/// Returns a request about the interface of a name.
pub(super) fn request(name: &str) -> io::Result<libc::ifreq> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: integers and arrays of them, for which zeros are valid.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from.cast_signed());
    Ok(request)
}

/// Returns the flags of an interface (`IFF_UP`, `IFF_RUNNING`, …). Any socket of its network namespace serves to ask.
///
/// # Errors
/// ENODEV: there is no such interface.
pub(super) fn flags(socket: &impl AsRawFd, name: &str) -> io::Result<c_int> {
    let mut request = request(name)?;
    // SAFETY: an open socket; the kernel reads and writes an `ifreq`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
    // SAFETY: the call has written the flags.
    Ok(c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

/// Returns flags in the form that they have in an `ifreq`.
pub(super) fn flags_field(flags: c_int) -> i16 {
    u16::try_from(flags & 0xffff).unwrap_or_default().cast_signed()
}

/// Returns what a system call returned, or its error.
pub(super) fn check(returned: c_int) -> io::Result<c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
