//! Resolution of peers that takes time: a thread asks the daemon until the next hop answers, or the program's time
//! limit has passed.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use iwarp_verbs::{NextHop, start_thread};

use crate::cm::{ADDR_ERROR, ADDR_RESOLVED, IdState, Stage};
use crate::context::{Shared, lock};

/// Shortest and longest time between two questions: a neighbor usually answers within the first.
const QUESTION_AFTER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Resolution of the peer of an id.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub(crate) state: Arc<IdState>,
    /// Number of the resolution: the id may have been resolved again, or destroyed.
    pub(crate) number: u64,
    /// Device that the daemon asks from.
    pub(crate) shared: Arc<Shared>,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    /// Time at which the program waits no longer.
    pub(crate) until: Instant,
}

/// Resolutions that have no outcome yet.
#[derive(Debug)]
struct Waiting {
    all: Vec<Resolution>,
    /// Process whose thread asks; 0 without one.
    asks: u32,
    question_after: Duration,
}

static WAITING: Mutex<Waiting> =
    Mutex::new(Waiting { all: Vec::new(), asks: 0, question_after: QUESTION_AFTER.0 });
/// Wakes the thread for a new resolution.
static ADDED: Condvar = Condvar::new();

/// Returns the time at which a time limit ends that begins now.
#[allow(clippy::disallowed_methods, reason = "a time limit of the program's begins with its call")]
pub(crate) fn end_of(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or(now)
}

#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
fn has_passed(until: Instant) -> bool {
    Instant::now() >= until
}

impl Resolution {
    /// Waits for the answer, on a thread of the library. An event reports the outcome.
    pub(crate) fn wait(self) {
        let mut waiting = lock(&WAITING);
        waiting.all.push(self);
        waiting.question_after = QUESTION_AFTER.0;
        let process = std::process::id();
        if waiting.asks == process {
            ADDED.notify_one();
            return;
        }
        // A child after fork has no thread.
        waiting.asks = process;
        if start_thread("iwarp-resolve", ask).is_err() {
            waiting.asks = 0;
            let failed = waiting.all.pop();
            drop(waiting);
            failed.into_iter().for_each(|failed| failed.end(Err(libc::EAGAIN)));
        }
    }

    /// Asks the daemon. Returns the outcome, once there is one.
    fn ask(&self) -> Option<Result<(), i32>> {
        match self.shared.context.resolve(Some(self.local), self.peer) {
            Ok((NextHop::Known, _)) => Some(Ok(())),
            Ok((NextHop::None, _)) => Some(Err(libc::ENETUNREACH)),
            Ok((NextHop::Unknown, _)) => has_passed(self.until).then_some(Err(libc::ETIMEDOUT)),
            Err(error) => Some(Err(crate::context::number(&error))),
        }
    }

    /// Reports the outcome, unless the program has destroyed the id.
    pub(crate) fn end(&self, outcome: Result<(), i32>) {
        let mut inner = lock(&self.state.inner);
        if inner.stage != Stage::Resolving(self.number) {
            return;
        }
        // Under the lock: the id may be destroyed next, with its events.
        match outcome {
            Ok(()) => {
                inner.stage = Stage::AddrResolved;
                self.state.report(ADDR_RESOLVED, 0);
            }
            Err(number) => {
                inner.stage = Stage::Bound;
                self.state.report(ADDR_ERROR, number.saturating_neg());
            }
        }
    }
}

/// Asks the daemon for all resolutions, until none is left.
fn ask() {
    let mut waiting = lock(&WAITING);
    while !waiting.all.is_empty() {
        let all = std::mem::take(&mut waiting.all);
        drop(waiting);
        let mut left = Vec::with_capacity(all.len());
        for resolution in all {
            match resolution.ask() {
                Some(outcome) => resolution.end(outcome),
                None if lock(&resolution.state.inner).stage == Stage::Resolving(resolution.number) => {
                    left.push(resolution);
                }
                None => {}
            }
        }
        waiting = lock(&WAITING);
        waiting.all.append(&mut left);
        let wait = waiting.question_after;
        if !waiting.all.is_empty() {
            waiting.question_after = wait.saturating_mul(2).min(QUESTION_AFTER.1);
            waiting = match ADDED.wait_timeout(waiting, wait) {
                Ok((waiting, _)) => waiting,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
    waiting.asks = 0;
}
