//! Calls that wait for several descriptors.
//!
//! JUSTIFICATION: as in `sockets.rs`.
#![allow(unsafe_code, reason = "functions that C programs call; listed in UNSAFE.md")]

use std::ffi::{c_int, c_short, c_void};
use std::slice;

use errno::{Errno, set_errno};
use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::calls::{next, rdma, system};
use crate::overlay::rsocket_of;
use crate::sockets::unsupported;

/// Waits for descriptors, of which some have rsockets.
fn poll_mixed(entries: &mut [pollfd], timeout_ms: c_int) -> c_int {
    let Some(rdma) = rdma() else { return unsupported() };
    let mapped = |entry: &pollfd| pollfd { fd: rsocket_of(entry.fd).unwrap_or(entry.fd), ..*entry };
    let mut all: Vec<pollfd> = entries.iter().map(mapped).collect();
    // SAFETY: an array, and its length.
    let ready = unsafe { (rdma.poll)(all.as_mut_ptr(), all.len() as nfds_t, timeout_ms) };
    entries.iter_mut().zip(all).for_each(|(entry, polled)| entry.revents = polled.revents);
    ready
}

fn any_rsocket(entries: &[pollfd]) -> bool {
    entries.iter().any(|entry| rsocket_of(entry.fd).is_some())
}

/// Sees the array of a program; empty for a null pointer.
///
/// # Safety
/// There are this many entries, which nobody else accesses.
unsafe fn array<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    let count = usize::try_from(count).unwrap_or(0);
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(fds, count) }
}

/// Waits for events of descriptors.
///
/// # Safety
/// As for `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's array.
    let entries = unsafe { array(fds, count) };
    if any_rsocket(entries) {
        return poll_mixed(entries, timeout_ms);
    }
    // SAFETY: the caller's arguments.
    unsafe { (system().poll)(fds, count, timeout_ms) }
}

/// `poll` of programs that were compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    if usize::try_from(count).unwrap_or(usize::MAX) > room / size_of::<pollfd>() {
        std::process::abort();
    }
    // SAFETY: the caller's arguments.
    unsafe { poll(fds, count, timeout_ms) }
}

/// Waits for events with signals blocked; not for rsockets.
///
/// # Safety
/// As for `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's array.
    if any_rsocket(unsafe { array(fds, count) }) {
        return unsupported();
    }
    type Call = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    let Some(found) = next(c"ppoll") else { return unsupported() };
    // SAFETY: the C library's function of this name has this type.
    let call = unsafe { std::mem::transmute::<*mut c_void, Call>(found) };
    // SAFETY: the caller's arguments.
    unsafe { call(fds, count, timeout, signals) }
}

/// Adds a descriptor to an epoll instance; not one with an rsocket.
///
/// # Safety
/// As for `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut c_void) -> c_int {
    if rsocket_of(fd).is_some() {
        // The error of a descriptor that epoll does not support.
        set_errno(Errno(libc::EPERM));
        return -1;
    }
    // SAFETY: the arguments of the system call of this name.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) };
    c_int::try_from(result).unwrap_or(-1)
}

type SelectCall = unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;

/// Waits for events of descriptors in sets.
///
/// # Safety
/// As for `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null, or the caller's set, which nobody else accesses.
    let mut sets = [read, write, except].map(|set| unsafe { set.as_mut() });
    let mut entries: Vec<pollfd> = (0..count.clamp(0, FDS)).filter_map(|fd| wanted(fd, &sets)).collect();
    if !any_rsocket(&entries) {
        let Some(found) = next(c"select") else { return unsupported() };
        // SAFETY: the C library's function of this name has this type.
        let call = unsafe { std::mem::transmute::<*mut c_void, SelectCall>(found) };
        // SAFETY: the caller's arguments.
        return unsafe { call(count, read, write, except, timeout) };
    }
    // SAFETY: null, or the caller's time.
    let timeout = unsafe { timeout.as_ref() };
    let milliseconds =
        |time: &timeval| time.tv_sec.saturating_mul(1000).saturating_add((time.tv_usec + 999) / 1000);
    let timeout_ms = timeout.map_or(-1, |time| c_int::try_from(milliseconds(time)).unwrap_or(c_int::MAX));
    if poll_mixed(&mut entries, timeout_ms) < 0 {
        return -1;
    }
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    leave(&mut sets, &entries)
}

/// Largest number of descriptors in a set.
const FDS: c_int = 1024;
/// Events that the three sets are for.
const EVENTS: [c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Events for which a descriptor stays in each of them.
const CAUSES: [c_short; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// Returns what a program waits for at a descriptor; `None` if it is in no set.
fn wanted(fd: c_int, sets: &[Option<&mut fd_set>; 3]) -> Option<pollfd> {
    let events = sets.iter().zip(EVENTS).fold(0, |events, (set, event)| {
        // SAFETY: `fd` is below the size of a set.
        let is_in = set.as_deref().is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) });
        events | if is_in { event } else { 0 }
    });
    (events != 0).then_some(pollfd { fd, events, revents: 0 })
}

/// Leaves in the sets what has an event, and returns how many there are.
fn leave(sets: &mut [Option<&mut fd_set>; 3], entries: &[pollfd]) -> c_int {
    let mut total = 0;
    for ((set, event), causes) in sets.iter_mut().zip(EVENTS).zip(CAUSES) {
        let Some(set) = set else { continue };
        // SAFETY: a set of the program.
        unsafe { libc::FD_ZERO(*set) };
        for entry in entries.iter().filter(|entry| entry.events & event != 0 && entry.revents & causes != 0) {
            // SAFETY: the descriptor was in the set.
            unsafe { libc::FD_SET(entry.fd, *set) };
            total += 1;
        }
    }
    total
}
