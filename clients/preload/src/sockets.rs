//! Calls for one socket.
//!
//! JUSTIFICATION: C programs call these functions, and pass pointers that only they can know to be valid. They go to
//! the C library or to librdmacm as they are.
#![allow(unsafe_code, reason = "functions that C programs call; listed in UNSAFE.md")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use errno::{Errno, errno, set_errno};
use libc::{iovec, msghdr, sockaddr, sockaddr_storage, socklen_t};

use crate::calls::{Calls, rdma, system, system_only};
use crate::overlay::{any_laid, close_at_exit, lay, remove, route, rsocket_of, uncover};
use crate::peers::{leave_at_bind, leave_at_connect, leave_at_listen, peers};
use crate::transfers::signaled;

/// Flag of `close_range` that only marks the descriptors, for `exec`.
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;

/// Defines functions that differ only in the socket: a system's, or an rsocket.
macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// As its manual page says, for an rsocket if one lies over the socket.
        ///
        /// # Safety
        /// The arguments are those that its manual page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> $result {
            let (calls, fd) = route(fd);
            // SAFETY: the caller's arguments, and a function that demands the same of them.
            unsafe { (calls.$name)(fd, $($arg),*) }
        }
    )*};
}

forward! {
    fn shutdown(how: c_int) -> c_int;
    fn recv(to: *mut c_void, length: usize, flags: c_int) -> isize;
    fn recvfrom(to: *mut c_void, length: usize, flags: c_int, peer: *mut sockaddr, size: *mut socklen_t) -> isize;
    fn recvmsg(message: *mut msghdr, flags: c_int) -> isize;
    fn read(to: *mut c_void, length: usize) -> isize;
    fn readv(vectors: *const iovec, count: c_int) -> isize;
    fn getpeername(address: *mut sockaddr, size: *mut socklen_t) -> c_int;
    fn getsockname(address: *mut sockaddr, size: *mut socklen_t) -> c_int;
}

/// Defines functions that send: a failure with EPIPE raises the signal, as the kernel's does.
macro_rules! forward_sending {
    ($(fn $name:ident($($arg:ident: $type:ty),*) with $flags:expr;)*) => {$(
        /// As its manual page says, for an rsocket if one lies over the socket.
        ///
        /// # Safety
        /// The arguments are those that its manual page demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> isize {
            let (calls, number) = route(fd);
            // SAFETY: the caller's arguments, and a function that demands the same of them.
            let sent = unsafe { (calls.$name)(number, $($arg),*) };
            if ptr::eq(calls, system()) { sent } else { signaled(sent, $flags) }
        }
    )*};
}

forward_sending! {
    fn send(from: *const c_void, length: usize, flags: c_int) with flags;
    fn sendto(from: *const c_void, length: usize, flags: c_int, peer: *const sockaddr, size: socklen_t) with flags;
    fn sendmsg(message: *const msghdr, flags: c_int) with flags;
    fn write(from: *const c_void, length: usize) with 0;
    fn writev(vectors: *const iovec, count: c_int) with 0;
}

/// Defines what programs call that were compiled with `_FORTIFY_SOURCE`, which also states the length of the buffer.
macro_rules! forward_checked {
    ($(fn $name:ident = $call:ident($($before:ident: $type:ty),*; $room:ident; $($after:ident: $late:ty),*);)*) => {$(
        /// As the function without `chk`; ends the program if the buffer is too short.
        ///
        /// # Safety
        /// The arguments are those that the function without `chk` demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int, to: *mut c_void, length: usize, $room: usize, $($after: $late),*
        ) -> isize {
            if length > $room {
                std::process::abort();
            }
            // SAFETY: the caller's arguments.
            unsafe { $call(fd, to, length, $($after),*) }
        }
    )*};
}

forward_checked! {
    fn __read_chk = read(; room;);
    fn __recv_chk = recv(; room; flags: c_int);
    fn __recvfrom_chk = recvfrom(; room; flags: c_int, peer: *mut sockaddr, size: *mut socklen_t);
}

/// Creates a socket: for streams of IPv4 and IPv6, with an rsocket over it.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: any arguments.
    let fd = unsafe { (system().socket)(domain, kind, protocol) };
    let is_stream = kind & 0xf == libc::SOCK_STREAM && [0, libc::IPPROTO_TCP].contains(&protocol);
    if fd < 0 || !is_stream || ![libc::AF_INET, libc::AF_INET6].contains(&domain) || peers().are_none() {
        return fd;
    }
    let Some(rdma) = rdma() else { return fd };
    let before = errno();
    // SAFETY: any arguments.
    let rsocket = unsafe { (rdma.socket)(domain, kind, protocol) };
    if rsocket >= 0 && !lay(fd, rsocket) {
        // SAFETY: an rsocket that nobody else has.
        unsafe { (rdma.close)(rsocket) };
    }
    // Without one, the program has a socket of the system.
    set_errno(before);
    fd
}

/// Closes a descriptor, and the rsocket over it.
///
/// # Safety
/// As for `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    let result = uncover(fd);
    // SAFETY: the caller's descriptor.
    let closed = unsafe { (system().close)(fd) };
    if result < 0 { result } else { closed }
}

/// Closes the descriptors from one number to another, and the rsockets over them.
///
/// # Safety
/// As for `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & CLOSE_RANGE_CLOEXEC == 0 && any_laid() {
        // Above, there are no rsockets.
        (first..=last.min(u16::MAX.into()))
            .filter_map(|fd| c_int::try_from(fd).ok())
            .for_each(|fd| _ = uncover(fd));
    }
    // SAFETY: the arguments of the system call of this name.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    c_int::try_from(result).unwrap_or(-1)
}

/// Closes the descriptors from a number on, and the rsockets over them.
///
/// # Safety
/// As for `closefrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: the caller's descriptors.
    unsafe { close_range(first, c_uint::MAX, 0) };
}

/// Binds a socket; to an address that no RDMA device has, without an rsocket.
///
/// # Safety
/// As for `bind`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { leave_at_bind(fd, address, size) };
    let (calls, number) = route(fd);
    // SAFETY: the caller's arguments.
    let result = unsafe { (calls.bind)(number, address, size) };
    if result == 0 || number == fd || errno() != Errno(libc::EADDRNOTAVAIL) {
        return result;
    }
    uncover(fd);
    // SAFETY: the caller's arguments.
    unsafe { (system().bind)(fd, address, size) }
}

/// Connects a socket; to a peer that no RDMA device reaches, without an rsocket.
///
/// # Safety
/// As for `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, peer: *const sockaddr, size: socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    if !unsafe { leave_at_connect(fd, peer, size) } {
        return -1;
    }
    let (calls, number) = route(fd);
    // SAFETY: the caller's arguments.
    let result = unsafe { (calls.connect)(number, peer, size) };
    if number != fd {
        close_at_exit();
    }
    let unreachable = [libc::EADDRNOTAVAIL, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENODEV];
    if result == 0 || number == fd || !unreachable.contains(&errno().0) {
        return result;
    }
    uncover(fd);
    // SAFETY: the caller's arguments.
    unsafe { (system().connect)(fd, peer, size) }
}

/// Has a socket listen; without an rsocket, unless peers of rsockets reach it.
///
/// # Safety
/// As for `listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if !leave_at_listen(fd) {
        return -1;
    }
    let (calls, number) = route(fd);
    // SAFETY: the caller's arguments.
    let result = unsafe { (calls.listen)(number, backlog) };
    if number != fd {
        close_at_exit();
    }
    result
}

/// Accepts a connection: of an rsocket, with an rsocket over a new socket of the system.
fn accepted(
    rdma: &Calls,
    listener: c_int,
    (peer, size): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
) -> c_int {
    // SAFETY: `sockaddr_storage` is plain data, for which zeros are valid.
    let mut own: sockaddr_storage = unsafe { zeroed() };
    let mut own_size = socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    // SAFETY: the arguments of the program's `accept`.
    let rsocket = unsafe { (rdma.accept)(listener, peer, size) };
    if rsocket < 0 {
        return rsocket;
    }
    // SAFETY: an address, and its size.
    unsafe { (rdma.getsockname)(rsocket, (&raw mut own).cast(), &raw mut own_size) };
    // SAFETY: any arguments.
    let fd = unsafe { (system().socket)(own.ss_family.into(), libc::SOCK_STREAM | flags, 0) };
    let nonblocking = usize::try_from(flags & libc::O_NONBLOCK).unwrap_or(0);
    // SAFETY: a command with a number.
    unsafe { (rdma.fcntl)(rsocket, libc::F_SETFL, nonblocking) };
    if fd >= 0 && lay(fd, rsocket) {
        return fd;
    }
    // SAFETY: an rsocket that nobody else has.
    unsafe { (rdma.close)(rsocket) };
    if fd >= 0 {
        // SAFETY: a socket that nobody else has.
        unsafe { (system().close)(fd) };
        set_errno(Errno(libc::EMFILE));
    }
    -1
}

/// Accepts a connection.
///
/// # Safety
/// As for `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, peer: *mut sockaddr, size: *mut socklen_t) -> c_int {
    match rsocket_of(fd).zip(rdma()) {
        Some((listener, rdma)) => accepted(rdma, listener, (peer, size), 0),
        // SAFETY: the caller's arguments.
        None => unsafe { (system().accept)(fd, peer, size) },
    }
}

/// Accepts a connection, with flags of its socket.
///
/// # Safety
/// As for `accept4`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    peer: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if let Some((listener, rdma)) = rsocket_of(fd).zip(rdma()) {
        return accepted(rdma, listener, (peer, size), flags);
    }
    // SAFETY: the caller's arguments.
    unsafe { (system_only().accept4)(fd, peer, size, flags) }
}

/// Sets an option, of the system's socket as well: it may take over.
///
/// # Safety
/// As for `setsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    size: socklen_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { (system().setsockopt)(fd, level, name, value, size) };
    match rsocket_of(fd).zip(rdma()) {
        // SAFETY: the caller's arguments.
        Some((rsocket, rdma)) => unsafe { (rdma.setsockopt)(rsocket, level, name, value, size) },
        None => result,
    }
}

/// Reads an option of the rsocket.
///
/// # Safety
/// As for `getsockopt`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    let (calls, fd) = route(fd);
    // SAFETY: the caller's arguments.
    unsafe { (calls.getsockopt)(fd, level, name, value, size) }
}

/// Reads or sets flags, of the system's socket as well. The third argument of the variadic call comes as that of any
/// other.
///
/// # Safety
/// As for `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, value: usize) -> c_int {
    let rsocket = rsocket_of(fd).zip(rdma());
    match (command, rsocket) {
        (libc::F_GETFL | libc::F_SETFL, Some((rsocket, rdma))) => {
            // SAFETY: the caller's arguments.
            unsafe { (system().fcntl)(fd, command, value) };
            // SAFETY: the caller's arguments.
            unsafe { (rdma.fcntl)(rsocket, command, value) }
        }
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, Some(_)) => unsupported(),
        // SAFETY: the caller's arguments.
        _ => unsafe { (system().fcntl)(fd, command, value) },
    }
}

/// `fcntl` of programs with files of more than 2 GiB.
///
/// # Safety
/// As for `fcntl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, value: usize) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { fcntl(fd, command, value) }
}

/// Fails as calls do that rsockets do not have.
pub(crate) fn unsupported() -> c_int {
    set_errno(Errno(libc::EOPNOTSUPP));
    -1
}

/// Duplicates a descriptor; not one with an rsocket.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    if rsocket_of(fd).is_some() {
        return unsupported();
    }
    // SAFETY: any arguments.
    let fd = unsafe { libc::syscall(libc::SYS_dup, fd) };
    c_int::try_from(fd).unwrap_or(-1)
}

/// Duplicates a descriptor to a number, whose rsocket is closed.
///
/// # Safety
/// As for `dup3`: the descriptor of that number is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int {
    if rsocket_of(fd).is_some() {
        return unsupported();
    }
    let covered = remove(number);
    // SAFETY: the caller's arguments.
    let new = unsafe { libc::syscall(libc::SYS_dup3, fd, number, flags) };
    if let Some((rsocket, rdma)) = covered.zip(rdma()) {
        // SAFETY: an rsocket that nobody else has now.
        unsafe { (rdma.close)(rsocket) };
    }
    c_int::try_from(new).unwrap_or(-1)
}

/// Duplicates a descriptor to a number, whose rsocket is closed.
///
/// # Safety
/// As for `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, number: c_int) -> c_int {
    if fd == number {
        // SAFETY: any arguments. Fails for a descriptor that is not open, as `dup2` does.
        return if unsafe { (system().fcntl)(fd, libc::F_GETFD, 0) } < 0 { -1 } else { fd };
    }
    // SAFETY: the caller's arguments.
    unsafe { dup3(fd, number, 0) }
}
