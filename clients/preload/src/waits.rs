//! Calls that wait for several descriptors.
//!
//! JUSTIFICATION: as in `sockets.rs`.
#![allow(unsafe_code, reason = "functions that C programs call; listed in UNSAFE.md")]

use std::ffi::{c_int, c_short, c_void};
use std::mem::zeroed;
use std::slice;
use std::sync::Once;
use std::time::{Duration, Instant};

use errno::{Errno, errno, set_errno};
use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::calls::{rdma, system, system_only};
use crate::overlay::{any_laid, rsocket_of};
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
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
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
pub unsafe extern "C-unwind" fn __poll_chk(
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

/// Signals that the thread has blocked before, and blocks again when this is dropped.
struct Blocked(sigset_t);

impl Blocked {
    /// Blocks these signals as well.
    fn also(signals: &sigset_t) -> Self {
        // SAFETY: a set of signals is plain data, for which zeros are valid.
        let mut before: sigset_t = unsafe { zeroed() };
        // SAFETY: two sets of this process.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, &raw mut before) };
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let number = errno();
        // SAFETY: a set of this process.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
        set_errno(number);
    }
}

/// Returns the signals that are in one set and not in another.
fn without(all: &sigset_t, but: &sigset_t) -> sigset_t {
    // SAFETY: as in `block`.
    let mut rest: sigset_t = unsafe { zeroed() };
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: a valid set and a valid number.
        let is_in = |set: &sigset_t| unsafe { libc::sigismember(set, signal) } == 1;
        if is_in(all) && !is_in(but) {
            // SAFETY: a valid set and a valid number.
            unsafe { libc::sigaddset(&raw mut rest, signal) };
        }
    }
    rest
}

/// Waits for descriptors, of which some have rsockets, while the thread blocks `signals` instead of those that it
/// blocks now. Signals that the call lets through stay blocked, and a descriptor tells of them (`signalfd`): one that
/// comes just before the wait ends it, too. They are delivered at the end.
fn poll_masked(entries: &mut [pollfd], timeout_ms: c_int, signals: *const sigset_t) -> c_int {
    // SAFETY: null, or the program's set.
    let Some(signals) = (unsafe { signals.as_ref() }) else { return poll_mixed(entries, timeout_ms) };
    let before = Blocked::also(signals);
    let through = without(&before.0, signals);
    // SAFETY: a valid set.
    let told = unsafe { libc::signalfd(-1, &raw const through, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if told < 0 {
        return -1;
    }
    let told = Told(told);
    let mut all = entries.to_vec();
    all.push(pollfd { fd: told.0, events: libc::POLLIN, revents: 0 });
    let ready = poll_mixed(&mut all, timeout_ms);
    let is_signal = all.last().is_some_and(|told| told.revents != 0);
    entries.iter_mut().zip(&all).for_each(|(entry, polled)| entry.revents = polled.revents);
    if ready < 1 || !is_signal {
        return ready;
    }
    if ready > 1 {
        return ready - 1;
    }
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: no descriptors, and valid sets; delivers the signals, and fails with EINTR.
    unsafe { (system_only().ppoll)(std::ptr::null_mut(), 0, &raw const none, signals) }
}

/// Descriptor of [`poll_masked`], closed also if the thread is canceled while it waits.
struct Told(c_int);

impl Drop for Told {
    fn drop(&mut self) {
        let number = errno();
        // SAFETY: a descriptor of `poll_masked`. The system call itself ends no thread that is canceled.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
        set_errno(number);
    }
}

/// Returns a time in milliseconds, rounded up; without one, no limit.
fn milliseconds(time: Option<&timespec>) -> c_int {
    let whole = |time: &timespec| {
        time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec.saturating_add(999_999) / 1_000_000)
    };
    time.map_or(-1, |time| c_int::try_from(whole(time).max(0)).unwrap_or(c_int::MAX))
}

/// Waits for events with other signals blocked.
///
/// # Safety
/// As for `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's array.
    let entries = unsafe { array(fds, count) };
    if any_rsocket(entries) {
        // SAFETY: null, or the caller's time.
        return poll_masked(entries, milliseconds(unsafe { timeout.as_ref() }), signals);
    }
    // SAFETY: the caller's arguments.
    unsafe { (system_only().ppoll)(fds, count, timeout, signals) }
}

/// `ppoll` of programs that were compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `ppoll`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    room: usize,
) -> c_int {
    if usize::try_from(count).unwrap_or(usize::MAX) > room / size_of::<pollfd>() {
        std::process::abort();
    }
    // SAFETY: the caller's arguments.
    unsafe { ppoll(fds, count, timeout, signals) }
}

/// Writes once to the standard error that epoll does not work: some programs do not look at the error of `epoll_ctl`,
/// and would wait for ever without a word.
fn report_epoll(fd: c_int) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let text = format!(
            "librspreload.so: epoll_ctl fails (EPERM): descriptor {fd} is an rsocket, for which epoll does not wait; \
             use poll or select\n"
        );
        // SAFETY: bytes of this function. Without a standard error, nobody reads it. The system call itself ends no
        // thread that is canceled.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, text.as_ptr(), text.len()) };
    });
}

/// Adds a descriptor to an epoll instance; not one with an rsocket.
///
/// # Safety
/// As for `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut c_void,
) -> c_int {
    if rsocket_of(fd).is_some() {
        // A number that is taken out of a set is none that was put in.
        if operation == libc::EPOLL_CTL_ADD {
            report_epoll(fd);
        }
        // The error of a descriptor that epoll does not support.
        set_errno(Errno(libc::EPERM));
        return -1;
    }
    // SAFETY: the arguments of the system call of this name.
    let result = unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) };
    c_int::try_from(result).unwrap_or(-1)
}

/// Waits for events of descriptors in sets.
///
/// # Safety
/// As for `select`.
#[unsafe(no_mangle)]
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null, or the caller's set, which nobody else accesses.
    let mut sets = [read, write, except].map(|set| unsafe { set.as_mut() });
    let mut entries = all_wanted(count, &sets);
    if !any_rsocket(&entries) {
        // SAFETY: the caller's arguments.
        return unsafe { (system_only().select)(count, read, write, except, timeout) };
    }
    // SAFETY: null, or the caller's time, which says afterwards what is left of it.
    let timeout = unsafe { timeout.as_mut() };
    let (begin, limit) = (Instant::now(), timeout.as_deref().map(duration));
    let ready = select_mixed(&mut sets, &mut entries, timeout_of(timeout.as_deref()), std::ptr::null());
    if let Some((timeout, limit)) = timeout.zip(limit) {
        let left = limit.saturating_sub(begin.elapsed());
        timeout.tv_sec = left.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        timeout.tv_usec = left.subsec_micros().into();
    }
    ready
}

fn duration(time: &timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

fn timeout_of(time: Option<&timeval>) -> c_int {
    let spec = |time: &timeval| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) };
    milliseconds(time.map(spec).as_ref())
}

/// Waits for the descriptors of sets, of which some have rsockets.
fn select_mixed(
    sets: &mut [Option<&mut fd_set>; 3],
    entries: &mut [pollfd],
    timeout_ms: c_int,
    signals: *const sigset_t,
) -> c_int {
    if poll_masked(entries, timeout_ms, signals) < 0 {
        return -1;
    }
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    leave(sets, entries)
}

/// Waits for events of descriptors in sets, with other signals blocked.
///
/// # Safety
/// As for `pselect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    // SAFETY: null, or the caller's set, which nobody else accesses.
    let mut sets = [read, write, except].map(|set| unsafe { set.as_mut() });
    let mut entries = all_wanted(count, &sets);
    if !any_rsocket(&entries) {
        // SAFETY: the caller's arguments.
        return unsafe { (system_only().pselect)(count, read, write, except, timeout, signals) };
    }
    // SAFETY: null, or the caller's time.
    select_mixed(&mut sets, &mut entries, milliseconds(unsafe { timeout.as_ref() }), signals)
}

/// Largest number of descriptors in a set.
const FDS: c_int = 1024;
/// Events that the three sets are for.
const EVENTS: [c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Events for which a descriptor stays in each of them.
const CAUSES: [c_short; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// Returns what a program waits for; nothing, and without an allocation, before there was an rsocket.
fn all_wanted(count: c_int, sets: &[Option<&mut fd_set>; 3]) -> Vec<pollfd> {
    let count = if any_laid() { count.clamp(0, FDS) } else { 0 };
    (0..count).filter_map(|fd| wanted(fd, sets)).collect()
}

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
