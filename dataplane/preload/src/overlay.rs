//! Rsockets that lie over sockets of the system, by the number of the latter.
#![allow(unsafe_code, reason = "calls of C functions; listed in UNSAFE.md")]

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::calls::{Calls, rdma, system};

/// Sockets with a higher number are the system's.
const FDS: usize = 1 << 16;
/// Value of a place without an rsocket.
const NONE: i32 = -1;

static RSOCKETS: [AtomicI32; FDS] = [const { AtomicI32::new(NONE) }; FDS];

fn place(fd: c_int) -> Option<&'static AtomicI32> {
    RSOCKETS.get(usize::try_from(fd).ok()?)
}

/// Returns the rsocket over a socket.
pub(crate) fn rsocket_of(fd: c_int) -> Option<c_int> {
    let rsocket = place(fd)?.load(Ordering::Acquire);
    (rsocket != NONE).then_some(rsocket)
}

/// Returns the functions for a descriptor, and the number to call them with.
pub(crate) fn route(fd: c_int) -> (&'static Calls, c_int) {
    match rsocket_of(fd).zip(rdma()) {
        Some((rsocket, rdma)) => (rdma, rsocket),
        None => (system(), fd),
    }
}

/// In a child of the program: its sockets are those of the system, because only the parent has an RDMA device. The
/// parent's rsockets stay open, whatever the child closes.
extern "C" fn forget() {
    RSOCKETS.iter().for_each(|place| place.store(NONE, Ordering::Release));
}

/// Lays an rsocket over a socket. Returns false if the number of the socket is too high.
pub(crate) fn lay(fd: c_int, rsocket: c_int) -> bool {
    static FORK: Once = Once::new();
    FORK.call_once(|| {
        // SAFETY: the function only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
    place(fd).is_some_and(|place| {
        place.store(rsocket, Ordering::Release);
        true
    })
}

/// Removes the rsocket over a socket, and returns it.
pub(crate) fn remove(fd: c_int) -> Option<c_int> {
    let rsocket = place(fd)?.swap(NONE, Ordering::AcqRel);
    (rsocket != NONE).then_some(rsocket)
}

/// Closes the rsocket over a socket, if there is one. Returns the result of that; 0 without one.
pub(crate) fn uncover(fd: c_int) -> c_int {
    match remove(fd).zip(rdma()) {
        // SAFETY: an rsocket that nobody else has now.
        Some((rsocket, rdma)) => unsafe { (rdma.close)(rsocket) },
        None => 0,
    }
}
