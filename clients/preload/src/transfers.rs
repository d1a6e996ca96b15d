//! Calls that send and receive on one socket in other ways: from files, several messages at a time, and the signal of a
//! broken pipe.
//!
//! JUSTIFICATION: as in `sockets.rs`.
#![allow(unsafe_code, reason = "functions that C programs call; listed in UNSAFE.md")]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use errno::{Errno, errno, set_errno};
use libc::{FILE, mmsghdr, off_t, size_t, socklen_t, ssize_t, timespec};

use crate::calls::{rdma, system, system_only};
use crate::overlay::rsocket_of;

/// Bytes of a file that are sent at a time.
const PART: usize = 1 << 17;
/// Most bytes of one `sendfile`, as the kernel's.
const SENDFILE_MAX: usize = 0x7fff_f000;
/// Level of the options of rsockets, and those of this library's counterpart: bytes to read, bytes not acknowledged.
const SOL_RDMA: c_int = 0x10000;
const UNREAD: c_int = 0x100;
const UNACKNOWLEDGED: c_int = 0x101;
/// `SIOCATMARK`: whether the next byte is urgent.
const AT_MARK: c_ulong = 0x8905;

/// Fails with an error number.
fn fail<T: From<i8>>(number: c_int) -> T {
    set_errno(Errno(number));
    T::from(-1)
}

/// Raises the signal of a send that has failed with EPIPE, as the kernel does, unless the flags say otherwise.
pub(crate) fn signaled(result: isize, flags: c_int) -> isize {
    if result < 0 && errno() == Errno(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: raises a signal in the calling thread.
        unsafe { libc::raise(libc::SIGPIPE) };
        set_errno(Errno(libc::EPIPE));
    }
    result
}

/// Sends a part of a file over an rsocket. The file's position moves on, unless `offset` has one.
///
/// # Safety
/// `offset` is null or the program's number.
unsafe fn send_file(rsocket: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(rdma) = rdma() else { return fail(libc::EOPNOTSUPP) };
    if rsocket_of(file).is_some() {
        return fail(libc::EINVAL);
    }
    // SAFETY: null, or the caller's number.
    let given = unsafe { offset.as_mut() };
    let start = given.as_deref().copied().unwrap_or_else(|| {
        // SAFETY: any arguments.
        unsafe { libc::lseek(file, 0, libc::SEEK_CUR) }
    });
    if start < 0 {
        // A file without a position fails with ESPIPE, for which `sendfile` has EINVAL.
        let is_position = given.is_none() && errno() != Errno(libc::ESPIPE);
        return fail(if is_position { errno().0 } else { libc::EINVAL });
    }
    let Ok(start) = u64::try_from(start) else { return fail(libc::EINVAL) };
    let wanted = count.min(SENDFILE_MAX);
    let mut part = vec![0; wanted.min(PART)];
    let (mut sent, mut error) = (0_usize, 0);
    while sent < wanted {
        let room = part.len().min(wanted - sent);
        let at = off_t::try_from(start + sent as u64).unwrap_or(off_t::MAX);
        // SAFETY: the program's descriptor, and bytes of this function.
        let read = unsafe { (system_only().pread)(file, part.as_mut_ptr().cast(), room, at) };
        let Ok(read) = usize::try_from(read) else {
            error = errno().0;
            break;
        };
        if read == 0 {
            break;
        }
        // SAFETY: bytes of this function.
        let now = unsafe { (rdma.send)(rsocket, part.as_ptr().cast(), read, 0) };
        let Ok(now) = usize::try_from(now) else {
            error = errno().0;
            break;
        };
        sent += now;
        if now < read {
            break;
        }
    }
    let end = off_t::try_from(start + sent as u64).unwrap_or(off_t::MAX);
    match given {
        Some(given) => *given = end,
        None => {
            // SAFETY: any arguments.
            unsafe { libc::lseek(file, end, libc::SEEK_SET) };
        }
    }
    if sent == 0 && error != 0 {
        set_errno(Errno(error));
        return signaled(-1, 0);
    }
    ssize_t::try_from(sent).unwrap_or(ssize_t::MAX)
}

/// Sends a part of a file.
///
/// # Safety
/// As for `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    socket: c_int,
    file: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if let Some(rsocket) = rsocket_of(socket) {
        // SAFETY: the caller's arguments.
        return unsafe { send_file(rsocket, file, offset, count) };
    }
    // SAFETY: the arguments of the system call of this name.
    let result = unsafe { libc::syscall(libc::SYS_sendfile, socket, file, offset, count) };
    ssize_t::try_from(result).unwrap_or(-1)
}

/// `sendfile` of programs with files of more than 2 GiB.
///
/// # Safety
/// As for `sendfile`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    socket: c_int,
    file: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    unsafe { sendfile(socket, file, offset, count) }
}

/// Moves bytes between a pipe and a descriptor; not one with an rsocket, as to and from a file system without it.
///
/// # Safety
/// As for `splice`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    if rsocket_of(from).or(rsocket_of(to)).is_some() {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    unsafe { (system_only().splice)(from, from_offset, to, to_offset, length, flags) }
}

/// Calls `one` for each message until it fails, and returns how many it was called for.
///
/// # Safety
/// There are `count` messages.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(&mut mmsghdr, usize) -> isize,
) -> c_int {
    // The kernel's limit, `UIO_MAXIOV`.
    for at in 0..usize::try_from(count).unwrap_or(0).min(1024) {
        // SAFETY: one of the caller's messages.
        let Some(message) = (unsafe { messages.wrapping_add(at).as_mut() }) else {
            return fail(libc::EFAULT);
        };
        let Ok(length) = c_uint::try_from(one(message, at)) else {
            return if at == 0 { -1 } else { c_int::try_from(at).unwrap_or(c_int::MAX) };
        };
        message.msg_len = length;
        if length == 0 {
            return c_int::try_from(at + 1).unwrap_or(c_int::MAX);
        }
    }
    c_int::try_from(count.min(1024)).unwrap_or(c_int::MAX)
}

/// Sends several messages.
///
/// # Safety
/// As for `sendmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let Some((rsocket, rdma)) = rsocket_of(fd).zip(rdma()) else {
        // SAFETY: the caller's arguments.
        return unsafe { (system_only().sendmmsg)(fd, messages, count, flags) };
    };
    let one = |message: &mut mmsghdr, at| {
        // SAFETY: one of the caller's messages.
        let sent = unsafe { (rdma.sendmsg)(rsocket, &raw const message.msg_hdr, flags) };
        if at == 0 { signaled(sent, flags) } else { sent }
    };
    // SAFETY: the caller's messages.
    unsafe { each(messages, count, one) }
}

/// Receives several messages; from an rsocket without a time limit.
///
/// # Safety
/// As for `recvmmsg`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some((rsocket, rdma)) = rsocket_of(fd).zip(rdma()) else {
        // SAFETY: the caller's arguments.
        return unsafe { (system_only().recvmmsg)(fd, messages, count, flags, timeout) };
    };
    if !timeout.is_null() {
        return fail(libc::EOPNOTSUPP);
    }
    let one = |message: &mut mmsghdr, at: usize| {
        let later = if at > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        let flags = flags & !libc::MSG_WAITFORONE | later;
        // SAFETY: one of the caller's messages.
        unsafe { (rdma.recvmsg)(rsocket, &raw mut message.msg_hdr, flags) }
    };
    // SAFETY: the caller's messages.
    unsafe { each(messages, count, one) }
}

/// Reads or changes a descriptor in a way of its own. For an rsocket: the bytes to read, those that are not
/// acknowledged, and if calls wait; what belongs to the process or to network interfaces goes to the system's socket,
/// as do requests that sockets do not have. The third argument of the variadic call comes as that of any other.
///
/// # Safety
/// As for `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let system_call = || {
        // SAFETY: the arguments of the system call of this name.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) };
        c_int::try_from(result).unwrap_or(-1)
    };
    let Some((rsocket, rdma)) = rsocket_of(fd).zip(rdma()) else { return system_call() };
    let number = std::ptr::with_exposed_provenance_mut::<c_int>(argument);
    let option = match request {
        libc::FIONREAD => UNREAD,
        libc::TIOCOUTQ => UNACKNOWLEDGED,
        libc::FIONBIO => {
            // The system's socket is non-blocking, too, because it may take over. A bad pointer fails here.
            if system_call() < 0 {
                return -1;
            }
            // SAFETY: any arguments.
            let flags = unsafe { (system().fcntl)(fd, libc::F_GETFL, 0) };
            // SAFETY: a command with a number.
            return unsafe { (rdma.fcntl)(rsocket, libc::F_SETFL, usize::try_from(flags).unwrap_or(0)) };
        }
        // Signals and urgent data, which an rsocket does not have.
        libc::FIOASYNC | AT_MARK => return fail(libc::ENOTTY),
        _ => return system_call(),
    };
    if number.is_null() {
        return fail(libc::EFAULT);
    }
    let mut size = socklen_t::try_from(size_of::<c_int>()).unwrap_or(0);
    // SAFETY: the caller's number, and its size.
    unsafe { (rdma.getsockopt)(rsocket, SOL_RDMA, option, number.cast::<c_void>(), &raw mut size) }
}

/// Makes a stream of the C library of a descriptor; not of one with an rsocket, whose functions the C library's streams
/// do not call.
///
/// # Safety
/// As for `fdopen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if rsocket_of(fd).is_some() {
        set_errno(Errno(libc::EOPNOTSUPP));
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's arguments.
    unsafe { (system_only().fdopen)(fd, mode) }
}
