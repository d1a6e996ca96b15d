//! `rpoll` and `rselect`: waits for several sockets, and for other descriptors beside them.

use std::ffi::{c_int, c_short};
use std::sync::Arc;
use std::time::Duration;

use super::find;
use super::socket::{Inner, Phase, Socket};
use crate::raw::poll_descriptors;
use crate::sleepers::{Asleep, Limit, Sleeper};

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

/// Events of a socket that can be read, and of one that can be written.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Returns the events of a socket that have come, of those asked for.
fn of_phase(inner: &mut Inner, events: c_short) -> c_short {
    match &mut inner.phase {
        Phase::Listening(of) => {
            if of.accepted.is_empty() {
                0
            } else {
                events & READ
            }
        }
        Phase::New => events & WRITE | libc::POLLHUP,
        Phase::Opening(_) => 0,
        Phase::Failed => events & (READ | WRITE) | libc::POLLERR,
        Phase::Open(stream) => {
            let mut revents = 0;
            if stream.has_data() || !stream.readable {
                revents |= events & READ;
            }
            if !stream.readable {
                revents |= events & libc::POLLRDHUP;
            }
            // A send fails at once on a stream that was shut down.
            if !stream.writable || stream.can_send() {
                revents |= events & WRITE;
            }
            // The program reads what has come before the end.
            if !stream.connected && !stream.has_data() {
                revents |= if stream.error == 0 { libc::POLLHUP } else { libc::POLLERR };
            }
            revents
        }
    }
}

/// Returns the events of a socket that have come. If there are none and the thread is to sleep, later ones wake it.
fn ready(socket: &Socket, events: c_short, sleeps: bool) -> c_short {
    let mut attempt = |inner: &mut Inner| Ok(Some(of_phase(inner, events)).filter(|revents| *revents != 0));
    // The attempt has no errors.
    socket.attempt(sleeps, &mut attempt).ok().flatten().unwrap_or(0)
}

/// Waits until a descriptor has one of its events, and returns how many have.
pub(super) fn poll(entries: &mut [PollEntry], timeout_ms: c_int) -> Result<c_int, c_int> {
    let sockets: Vec<Option<Arc<Socket>>> = entries.iter().map(|entry| find(entry.fd)).collect();
    let limit = match u64::try_from(timeout_ms) {
        Ok(0) => Limit::Now,
        Ok(milliseconds) => Limit::after(Duration::from_millis(milliseconds)),
        Err(_) => Limit::Never,
    };
    // The thread, and its places among the sleepers of all sockets, once it is to sleep.
    let mut asleep: Option<(Arc<Sleeper>, Vec<Asleep>)> = None;
    loop {
        let mut count = 0;
        for (entry, socket) in entries.iter_mut().zip(&sockets) {
            entry.revents = socket.as_ref().map_or(0, |socket| ready(socket, entry.events, asleep.is_some()));
            count += c_int::from(entry.revents != 0);
        }
        // In this order: once the time is over, the sockets are looked at once more.
        let wait_ms = if count == 0 && asleep.is_some() { limit.milliseconds() } else { 0 };
        // The others, with a descriptor below 0 in place of each socket, and the thread's own.
        let of_other = |(entry, socket): (&PollEntry, &Option<Arc<Socket>>)| {
            let fd = if socket.is_none() { entry.fd } else { -1 };
            PollEntry { fd, revents: 0, ..*entry }
        };
        let mut others: Vec<PollEntry> = entries.iter().zip(&sockets).map(of_other).collect();
        let own = asleep.as_ref().map_or(-1, |(sleeper, _)| sleeper.fd());
        others.push(PollEntry { fd: own, events: libc::POLLIN, revents: 0 });
        poll_descriptors(&mut others, wait_ms)?;
        for ((entry, other), socket) in entries.iter_mut().zip(&others).zip(&sockets) {
            if socket.is_none() {
                entry.revents = other.revents;
                count += c_int::from(entry.revents != 0);
            }
        }
        let is_woken = others.last().is_some_and(|own| own.revents != 0);
        if let Some((sleeper, _)) = asleep.as_ref().filter(|_| is_woken) {
            sleeper.take()?;
        }
        if count > 0 || limit == Limit::Now || asleep.is_some() && wait_ms == 0 {
            return Ok(count);
        }
        if asleep.is_none() {
            let sleeper = Sleeper::own()?;
            let places = sockets.iter().flatten().map(|socket| socket.sleepers.add(&sleeper)).collect();
            asleep = Some((sleeper, places));
        }
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
