//! `rpoll` and `rselect`: waits for several sockets, and for other descriptors beside them.

use std::ffi::{c_int, c_short};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::find;
use super::socket::{Phase, Socket};
use crate::context::lock;
use crate::raw::poll_descriptors;

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollEntry {
    pub(crate) fd: c_int,
    pub(crate) events: c_short,
    pub(crate) revents: c_short,
}

/// Descriptors of a set (`FD_SETSIZE`).
const SET_SIZE: usize = 1024;

/// Set of descriptors (`fd_set`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set([u64; SET_SIZE / 64]);

impl Set {
    fn has(&self, fd: c_int) -> bool {
        let (word, bit) = place(fd);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn insert(&mut self, fd: c_int) {
        let (word, bit) = place(fd);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }
}

/// Returns the word of a descriptor in a set, and its bit there.
fn place(fd: c_int) -> (usize, u64) {
    let fd = usize::try_from(fd).unwrap_or(SET_SIZE);
    (fd / 64, 1 << (fd % 64))
}

/// Returns the events of a socket that have come, of those asked for.
fn ready(socket: &Socket, events: c_short) -> c_short {
    // An error is an event of its own, below.
    let _ = socket.established(false);
    let mut inner = lock(&socket.inner);
    match &mut inner.phase {
        Phase::Listening => {
            if socket.has_event() {
                events & libc::POLLIN
            } else {
                0
            }
        }
        Phase::New => events & libc::POLLOUT | libc::POLLHUP,
        Phase::Opening(_) => 0,
        Phase::Failed => events & (libc::POLLIN | libc::POLLOUT) | libc::POLLERR,
        Phase::Open(stream) => {
            socket.advance(stream);
            let mut revents = 0;
            if stream.has_data() || !stream.readable {
                revents |= events & libc::POLLIN;
            }
            if stream.writable && stream.can_send() {
                revents |= events & libc::POLLOUT;
            }
            // The program reads what has come before the end.
            if !stream.connected && !stream.has_data() {
                revents |= if stream.error == 0 { libc::POLLHUP } else { libc::POLLERR };
            }
            revents
        }
    }
}

/// Returns the descriptor that is readable when something changes; `None` if the socket must be polled once more.
fn descriptor(socket: &Socket) -> Option<c_int> {
    let inner = lock(&socket.inner);
    match &inner.phase {
        Phase::Open(stream) => socket.arm(stream).then(|| stream.completions.events().fd()),
        _ => Some(socket.fd()),
    }
}

/// Waits until a descriptor has one of its events, and returns how many have.
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
pub(super) fn poll(entries: &mut [PollEntry], timeout_ms: c_int) -> Result<c_int, c_int> {
    let sockets: Vec<Option<Arc<Socket>>> = entries.iter().map(|entry| find(entry.fd)).collect();
    let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut wait_ms = 0;
    loop {
        let mut asked = entries.to_vec();
        let mut count = 0;
        for (entry, socket) in entries.iter_mut().zip(&sockets) {
            entry.revents = socket.as_ref().map_or(0, |socket| ready(socket, entry.events));
            count += c_int::from(entry.revents != 0);
        }
        let mut sleeps = wait_ms != 0 && count == 0;
        for (asked, socket) in asked.iter_mut().zip(&sockets) {
            let Some(socket) = socket else { continue };
            // A descriptor below 0 is left out.
            asked.fd = if sleeps { descriptor(socket).unwrap_or(-1) } else { -1 };
            asked.events = libc::POLLIN;
            sleeps &= asked.fd >= 0;
        }
        poll_descriptors(&mut asked, if sleeps { wait_ms } else { 0 })?;
        for ((entry, asked), socket) in entries.iter_mut().zip(&asked).zip(&sockets) {
            match socket {
                None => {
                    entry.revents = asked.revents;
                    count += c_int::from(entry.revents != 0);
                }
                Some(socket) if asked.revents != 0 => socket.take_event(),
                Some(_) => {}
            }
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if count > 0 || left.is_some_and(|left| left.is_zero()) && wait_ms != 0 || timeout_ms == 0 {
            return Ok(count);
        }
        // At least a millisecond: less than one is left, not none.
        wait_ms = left.map_or(-1, |left| c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).max(1));
    }
}

/// Waits until a descriptor of the three sets has its event, and leaves those that have in the sets.
pub(super) fn select(
    count: c_int,
    mut sets: [Option<&mut Set>; 3],
    timeout: Option<&libc::timeval>,
) -> Result<c_int, c_int> {
    let wanted = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut entries = Vec::new();
    for fd in 0..count {
        let of = |(set, event): (&Option<&mut Set>, c_short)| {
            if set.as_ref().is_some_and(|set| set.has(fd)) { event } else { 0 }
        };
        let events = sets.iter().zip(wanted).map(of).fold(0, |all, event| all | event);
        if events != 0 {
            entries.push(PollEntry { fd, events, revents: 0 });
        }
    }
    let milliseconds = |time: &libc::timeval| time.tv_sec.saturating_mul(1000) + (time.tv_usec + 999) / 1000;
    let timeout_ms = timeout.map_or(-1, |time| c_int::try_from(milliseconds(time)).unwrap_or(c_int::MAX));
    poll(&mut entries, timeout_ms)?;
    let causes = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
    let mut total = 0;
    for ((set, event), causes) in sets.iter_mut().zip(wanted).zip(causes) {
        let Some(set) = set else { continue };
        **set = Set([0; SET_SIZE / 64]);
        for entry in entries.iter().filter(|entry| entry.events & event != 0 && entry.revents & causes != 0) {
            set.insert(entry.fd);
            total += 1;
        }
    }
    Ok(total)
}
