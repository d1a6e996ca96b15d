//! Functions that the library calls: those of the C library, and those of librdmacm, which have the same arguments and
//! results.
//!
//! JUSTIFICATION: functions that are found by name at run time have types that only this file states.
#![allow(unsafe_code, reason = "functions by name; listed in UNSAFE.md")]

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use libc::{iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t};

macro_rules! calls {
    ($(fn $name:ident / $system:literal / $rdma:literal ($($arg:ty),*) -> $result:ty;)*) => {
        /// A set of functions.
        #[derive(Debug)]
        pub(crate) struct Calls {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Calls {
            /// Finds the functions; `None` if one is missing.
            fn find(handle: *mut c_void, is_rdma: bool) -> Option<Self> {
                $(let $name = {
                    let name: &CStr = if is_rdma { $rdma } else { $system };
                    // SAFETY: a handle of `dlopen` that is never closed, or `RTLD_NEXT`.
                    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    type Call = Option<unsafe extern "C" fn($($arg),*) -> $result>;
                    // SAFETY: null is `None`; otherwise the function has this type by its manual page.
                    unsafe { std::mem::transmute::<*mut c_void, Call>(found) }?
                };)*
                Some(Self { $($name,)* })
            }
        }
    };
}

calls! {
    fn socket / c"socket" / c"rsocket" (c_int, c_int, c_int) -> c_int;
    fn bind / c"bind" / c"rbind" (c_int, *const sockaddr, socklen_t) -> c_int;
    fn listen / c"listen" / c"rlisten" (c_int, c_int) -> c_int;
    fn accept / c"accept" / c"raccept" (c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    fn connect / c"connect" / c"rconnect" (c_int, *const sockaddr, socklen_t) -> c_int;
    fn shutdown / c"shutdown" / c"rshutdown" (c_int, c_int) -> c_int;
    fn close / c"close" / c"rclose" (c_int) -> c_int;
    fn recv / c"recv" / c"rrecv" (c_int, *mut c_void, usize, c_int) -> isize;
    fn recvfrom / c"recvfrom" / c"rrecvfrom"
        (c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize;
    fn recvmsg / c"recvmsg" / c"rrecvmsg" (c_int, *mut msghdr, c_int) -> isize;
    fn read / c"read" / c"rread" (c_int, *mut c_void, usize) -> isize;
    fn readv / c"readv" / c"rreadv" (c_int, *const iovec, c_int) -> isize;
    fn send / c"send" / c"rsend" (c_int, *const c_void, usize, c_int) -> isize;
    fn sendto / c"sendto" / c"rsendto"
        (c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
    fn sendmsg / c"sendmsg" / c"rsendmsg" (c_int, *const msghdr, c_int) -> isize;
    fn write / c"write" / c"rwrite" (c_int, *const c_void, usize) -> isize;
    fn writev / c"writev" / c"rwritev" (c_int, *const iovec, c_int) -> isize;
    fn getpeername / c"getpeername" / c"rgetpeername" (c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    fn getsockname / c"getsockname" / c"rgetsockname" (c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    fn getsockopt / c"getsockopt" / c"rgetsockopt" (c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    fn setsockopt / c"setsockopt" / c"rsetsockopt" (c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    fn fcntl / c"fcntl" / c"rfcntl" (c_int, c_int, usize) -> c_int;
    fn poll / c"poll" / c"rpoll" (*mut pollfd, nfds_t, c_int) -> c_int;
}

/// Returns the functions of the C library.
pub(crate) fn system() -> &'static Calls {
    static SYSTEM: OnceLock<Calls> = OnceLock::new();
    // Without them the program cannot have started.
    SYSTEM.get_or_init(|| Calls::find(libc::RTLD_NEXT, false).unwrap_or_else(|| std::process::abort()))
}

/// Returns the functions of librdmacm; `None` if it is not found.
pub(crate) fn rdma() -> Option<&'static Calls> {
    static RDMA: OnceLock<Option<Calls>> = OnceLock::new();
    let found = RDMA.get_or_init(|| {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: loads a library, whose constructors expect nothing of the caller.
        let handle = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), flags) };
        if handle.is_null() { None } else { Calls::find(handle, true) }
    });
    found.as_ref()
}

/// Returns the function of this name that comes after this library's; `None` if there is none.
pub(crate) fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `RTLD_NEXT` is always valid.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
