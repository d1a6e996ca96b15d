//! Threads of a socket's connections, counted by user, for `server` and `receiver`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use iwarp_control::transfer;
use rustix::net::Shutdown;

/// User of a client whose number the kernel does not tell: the one that no user has.
pub(super) const NOBODY: u32 = u32::MAX;
/// Bytes per read of a socket whose input is discarded.
const CHUNK: usize = 4096;
/// Stack of a thread, bytes: enough to parse the deepest request.
const STACK_BYTES: usize = 256 << 10;
/// Most threads that close sockets of refused clients.
const CLOSERS_MAX: usize = 16;
/// Sockets of one user that wait to be closed, at which the log says so; again at each double.
const UNCLOSED_REPORTED: usize = 16;

/// Threads that serve or close the connections of one socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Threads of connections, by user.
    serving: BTreeMap<u32, usize>,
    /// Sockets of refused clients that wait to be closed, by user.
    unclosed: BTreeMap<u32, Unclosed>,
    /// Threads that close them.
    closers: usize,
}

#[derive(Debug, Default)]
struct Unclosed {
    sockets: VecDeque<Arc<UnixStream>>,
    /// True while a thread closes a socket of this user. One that blocks keeps no other user's sockets open.
    busy: bool,
}

impl Threads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connections that have a thread: of all users, and of this one.
    pub(super) fn count(&self, uid: u32) -> (usize, usize) {
        let state = self.state();
        (state.serving.values().sum(), state.serving.get(&uid).copied().unwrap_or(0))
    }

    /// Runs `serve` on a thread that counts for a user until it returns, and then takes all descriptors that wait in
    /// the socket that it returns, so that closing the socket does not block; the client sees the end after the count.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        &self,
        uid: u32,
        serve: impl FnOnce() -> Arc<UnixStream> + Send + 'static,
    ) -> io::Result<()> {
        let guard = Serving { threads: self.clone(), uid };
        *self.state().serving.entry(uid).or_default() += 1;
        let run = move || {
            let socket = serve();
            // Fails only if the client has disconnected, which does the same.
            let _ = rustix::net::shutdown(&*socket, Shutdown::Read);
            let mut chunk = [0; CHUNK];
            while transfer::receive(&*socket, &mut chunk).is_ok_and(|(bytes, _)| bytes > 0) {}
            drop(guard);
            drop(socket);
        };
        Builder::new().name("client".to_owned()).stack_size(STACK_BYTES).spawn(run).map(drop)
    }

    /// Closes the socket of a client that has no thread. One with descriptors that block delays the others with
    /// descriptors of the same user. The kernel limits how many descriptors a user has in sockets, to as many as a
    /// process may open.
    pub(super) fn close(&self, uid: u32, socket: Arc<UnixStream>) {
        // Fails only if the client has disconnected, which does the same: nothing arrives from here on.
        let _ = rustix::net::shutdown(&*socket, Shutdown::Read);
        if transfer::has_no_descriptors(&*socket) {
            return;
        }
        let mut state = self.state();
        let unclosed = state.unclosed.entry(uid).or_default();
        unclosed.sockets.push_back(socket);
        let waiting = unclosed.sockets.len();
        if waiting >= UNCLOSED_REPORTED && waiting.is_power_of_two() {
            tracing::warn!(
                uid,
                waiting,
                "refused connections of a user cannot be closed: a descriptor sent with one of them blocks; end the \
                 user's programs"
            );
        }
        if unclosed.busy || state.closers >= CLOSERS_MAX {
            return;
        }
        state.set_busy(uid, true);
        state.closers = state.closers.saturating_add(1);
        drop(state);
        let threads = self.clone();
        let started = Builder::new()
            .name("closer".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || threads.close_all_from(uid));
        if started.is_err() {
            // Tried again with the user's next socket.
            let mut state = self.state();
            state.set_busy(uid, false);
            state.closers = state.closers.saturating_sub(1);
        }
    }

    /// Closes the waiting sockets of a user, then those of users that have no closer.
    fn close_all_from(&self, mut uid: u32) {
        loop {
            let mut state = self.state();
            let next = state.unclosed.get_mut(&uid).and_then(|unclosed| unclosed.sockets.pop_front());
            if let Some(socket) = next {
                drop(state);
                drop(socket);
                continue;
            }
            state.unclosed.remove(&uid);
            let other = state.unclosed.iter().find(|(_, unclosed)| !unclosed.busy).map(|(uid, _)| *uid);
            let Some(other) = other else {
                state.closers = state.closers.saturating_sub(1);
                return;
            };
            state.set_busy(other, true);
            uid = other;
        }
    }
}

impl State {
    fn set_busy(&mut self, uid: u32, busy: bool) {
        if let Some(unclosed) = self.unclosed.get_mut(&uid) {
            unclosed.busy = busy;
        }
    }
}

/// Place of a thread among those of its user.
struct Serving {
    threads: Threads,
    uid: u32,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut state = self.threads.state();
        if let Some(count) = state.serving.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.serving.remove(&self.uid);
            }
        }
    }
}
