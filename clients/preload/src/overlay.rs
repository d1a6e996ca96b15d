//! Rsockets that lie over sockets of the system, by the number of the latter.
#![allow(unsafe_code, reason = "calls of C functions; listed in UNSAFE.md")]

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use libc::socklen_t;

use crate::calls::{Calls, rdma, system};

/// Sockets with a higher number are the system's.
const FDS: usize = 1 << 16;
/// Value of a place without an rsocket.
const NONE: i32 = -1;

static RSOCKETS: [AtomicI32; FDS] = [const { AtomicI32::new(NONE) }; FDS];

/// True once there was an rsocket.
static ANY_LAID: AtomicBool = AtomicBool::new(false);

/// Returns true once there was an rsocket: a call for many sockets looks for none before.
pub(crate) fn any_laid() -> bool {
    ANY_LAID.load(Ordering::Acquire)
}

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

/// Longest wait for the peers of all rsockets when the program ends.
const END: Duration = Duration::from_secs(2);

/// At the end of the program: closes its rsockets, as the kernel closes its sockets, so that peers see an end of file.
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
extern "C" fn close_all() {
    let begin = Instant::now();
    let Some(rdma) = rdma() else { return };
    for place in &RSOCKETS {
        let rsocket = place.swap(NONE, Ordering::AcqRel);
        let left = END.saturating_sub(begin.elapsed());
        if rsocket == NONE || left.is_zero() {
            continue;
        }
        let seconds = c_int::try_from(left.as_secs()).unwrap_or(0).max(1);
        let linger = libc::linger { l_onoff: 1, l_linger: seconds };
        let size = socklen_t::try_from(size_of::<libc::linger>()).unwrap_or(0);
        // SAFETY: a value of this type, and its size.
        unsafe {
            (rdma.setsockopt)(rsocket, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
        };
        // SAFETY: an rsocket that nobody else has now.
        unsafe { (rdma.close)(rsocket) };
    }
}

/// Has rsockets close at the program's end, once one connects or listens. Its device may be inside the program, and has
/// a function of its own for that end: what is registered last runs first.
pub(crate) fn close_at_exit() {
    static ENDS: Once = Once::new();
    ENDS.call_once(|| {
        // SAFETY: the function is valid until the process ends: the library is never unloaded.
        unsafe { libc::atexit(close_all) };
    });
}

/// Lays an rsocket over a socket. Returns false if the number of the socket is too high.
pub(crate) fn lay(fd: c_int, rsocket: c_int) -> bool {
    static FORKS: Once = Once::new();
    FORKS.call_once(|| {
        // SAFETY: the function only stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
    place(fd).is_some_and(|place| {
        ANY_LAID.store(true, Ordering::Release);
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
