//! Functions that the library calls: those of the C library, and those of librdmacm, which have the same arguments and
//! results.
//!
//! JUSTIFICATION: functions that are found by name at run time have types that only this file states.
#![allow(unsafe_code, reason = "functions by name; listed in UNSAFE.md")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libc::{
    FILE, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, sockaddr, socklen_t, timespec,
    timeval,
};

/// Defines a set of functions of C, which may end a thread that is canceled (`pthreads(7)`): that unwinds its stack.
macro_rules! functions {
    ($(#[$attribute:meta])* $set:ident, $system:ident { $(fn $name:ident($($arg:ty),*) -> $result:ty;)* }) => {
        $(#[$attribute])*
        #[derive(Debug)]
        pub(crate) struct $set {
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($arg),*) -> $result,)*
        }

        impl $set {
            /// Finds the functions by their names with `prefix` before each; `None` if one is missing.
            fn find(handle: *mut c_void, prefix: &str) -> Option<Self> {
                $(let $name = {
                    let name = CString::new([prefix, stringify!($name)].concat()).ok()?;
                    // SAFETY: a handle of `dlopen` that is never closed, or `RTLD_NEXT`.
                    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    type Call = Option<unsafe extern "C-unwind" fn($($arg),*) -> $result>;
                    // SAFETY: null is `None`; otherwise the function has this type by its manual page.
                    unsafe { std::mem::transmute::<*mut c_void, Call>(found) }?
                };)*
                Some(Self { $($name,)* })
            }
        }

        /// Returns the functions of the C library.
        pub(crate) fn $system() -> &'static $set {
            static SYSTEM: OnceLock<$set> = OnceLock::new();
            // Without them the program cannot have started.
            SYSTEM.get_or_init(|| $set::find(libc::RTLD_NEXT, "").unwrap_or_else(|| std::process::abort()))
        }
    };
}

functions! {
    /// Functions that both libraries have.
    Calls, system {
        fn socket(c_int, c_int, c_int) -> c_int;
        fn bind(c_int, *const sockaddr, socklen_t) -> c_int;
        fn listen(c_int, c_int) -> c_int;
        fn accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        fn connect(c_int, *const sockaddr, socklen_t) -> c_int;
        fn shutdown(c_int, c_int) -> c_int;
        fn close(c_int) -> c_int;
        fn recv(c_int, *mut c_void, usize, c_int) -> isize;
        fn recvfrom(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize;
        fn recvmsg(c_int, *mut msghdr, c_int) -> isize;
        fn read(c_int, *mut c_void, usize) -> isize;
        fn readv(c_int, *const iovec, c_int) -> isize;
        fn send(c_int, *const c_void, usize, c_int) -> isize;
        fn sendto(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
        fn sendmsg(c_int, *const msghdr, c_int) -> isize;
        fn write(c_int, *const c_void, usize) -> isize;
        fn writev(c_int, *const iovec, c_int) -> isize;
        fn getpeername(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        fn getsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        fn getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
        fn setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
        fn fcntl(c_int, c_int, usize) -> c_int;
        fn poll(*mut pollfd, nfds_t, c_int) -> c_int;
    }
}

functions! {
    /// Functions that the C library alone has.
    SystemOnly, system_only {
        fn accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
        fn fdopen(c_int, *const c_char) -> *mut FILE;
        fn ppoll(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
        fn pread(c_int, *mut c_void, usize, off_t) -> isize;
        fn pselect(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t) -> c_int;
        fn recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
        fn select(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
        fn sendmmsg(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
        fn splice(c_int, *mut i64, c_int, *mut i64, usize, c_uint) -> isize;
    }
}

/// Returns the functions of librdmacm; `None` if it is not found.
pub(crate) fn rdma() -> Option<&'static Calls> {
    static RDMA: OnceLock<Option<Calls>> = OnceLock::new();
    let found = RDMA.get_or_init(|| {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: loads a library, whose constructors expect nothing of the caller.
        let handle = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), flags) };
        if handle.is_null() { None } else { Calls::find(handle, "r") }
    });
    found.as_ref()
}
