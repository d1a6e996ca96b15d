//! Threads that serve connections and execute their calls: the leader moves messages, and executes a call itself.
//!
//! ```text
//!  leader     Service::turn ─▶ Tasks::next ─▶ the call ─▶ Service::answer ─▶ … ─▶ nothing left: Wait::wait
//!  others                      Tasks::next ─▶ the call ─▶ Service::answer      woken if several calls are ready
//!  run        every two milliseconds: does the leader execute a call for as long? Then another thread leads.
//! ```
//!
//! A call that does not wait is executed by the thread that has received it: nobody is woken. One that waits in a
//! system call, for a disk or for a file server that does not answer, keeps its thread, and others go on after two
//! milliseconds.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::tasks::{Key, Settled, Tasks};

/// Time after which a thread that executes a call is taken to wait in a system call.
const PATIENCE: Duration = Duration::from_millis(2);
/// Looks after the latest call, [`PATIENCE`] apart, before nobody looks any more.
const LOOKS: u32 = 20;
/// Longest sleep of a thread that waits for messages or looks after others.
const SLEEP: Duration = Duration::from_secs(1);

/// A service that a crew serves. One thread at a time has it.
pub trait Service: Send + 'static {
    /// Key of a call.
    type Key: Key;
    /// Result of a call.
    type Result: Send + 'static;
    /// Way to wait for messages, without the service.
    type Wait: Wait;

    /// Moves messages: what has come begins calls. Returns true if there was anything to do.
    ///
    /// # Errors
    /// The service has ended.
    fn turn(&mut self) -> Result<bool>;

    /// Arms what ends [`Wait::wait`]. [`Self::turn`] is called once more before a thread waits.
    fn arm(&mut self);

    /// Returns the way to wait.
    fn waiting(&self) -> Self::Wait;

    /// Borrows the calls that have begun and are not done.
    fn calls(&mut self) -> &mut Tasks<Self::Key, Self::Result>;

    /// Answers a call that was executed.
    fn answer(&mut self, key: Self::Key, result: Self::Result);
}

/// Way to wait for messages.
pub trait Wait: Send + Sync + 'static {
    /// Waits until there is something to do for the service, at most as long.
    ///
    /// # Errors
    /// The service has ended.
    fn wait(&self, most: Duration) -> Result<()>;

    /// Ends the wait of another thread.
    fn wake(&self);
}

/// Threads that serve a service.
#[derive(Debug)]
pub struct Crew {
    name: &'static str,
    count_max: usize,
    parallel: usize,
}

struct Shared<S: Service> {
    state: Mutex<State<S>>,
    /// A thread is to look for a call, or to lead.
    work: Condvar,
    /// The thread that looks after the others is to do so.
    look: Condvar,
    waiting: S::Wait,
    crew: Crew,
}

struct State<S> {
    service: S,
    /// Thread that moves messages; `None`: the next one that has nothing else to do.
    leader: Option<u64>,
    /// Threads that execute a call, and since when; `None`: it is taken to wait in a system call.
    running: HashMap<u64, Option<Instant>>,
    /// Threads that exist, that wait for work, and that were woken for it.
    count: usize,
    idle: usize,
    woken: usize,
    next: u64,
    /// Looks that are left until nobody looks any more.
    looks: u32,
    failed: Option<anyhow::Error>,
    ends: bool,
}

type Guard<'s, S> = MutexGuard<'s, State<S>>;

#[allow(clippy::disallowed_methods, reason = "the time of threads in system calls is measured here")]
fn now() -> Instant {
    Instant::now()
}

impl Crew {
    /// Returns a crew of threads of this name: one for each processor, and one for each that waits in a system call. At
    /// most `count_max` execute calls; one more, if they all do, moves messages.
    #[must_use]
    pub fn new(name: &'static str, count_max: u16) -> Self {
        let parallel = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { name, count_max: usize::from(count_max).max(1), parallel }
    }

    /// Serves until `ends` returns true, which is asked at least once a second. Threads that wait in a system call then
    /// are left behind: they end when it returns.
    ///
    /// # Errors
    /// The service has ended, or the system has no thread.
    pub fn run<S: Service>(self, service: S, ends: &dyn Fn() -> bool) -> Result<()> {
        let waiting = service.waiting();
        let state = State {
            service,
            leader: None,
            running: HashMap::new(),
            count: 0,
            idle: 0,
            woken: 0,
            next: 0,
            looks: 0,
            failed: None,
            ends: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            look: Condvar::new(),
            waiting,
            crew: self,
        };
        let shared = Arc::new(shared);
        let mut state = shared.state();
        shared.start(&mut state).context("cannot start a thread")?;
        while state.failed.is_none() && !ends() {
            let most = if state.looks > 0 { PATIENCE } else { SLEEP };
            state = shared.look.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0;
            shared.look_after(&mut state);
        }
        state.ends = true;
        shared.work.notify_all();
        shared.waiting.wake();
        while state.count > state.running.len() {
            state = shared.look.wait_timeout(state, SLEEP).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}

impl<S: Service> Shared<S> {
    fn state(&self) -> Guard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a further thread of the crew.
    fn start(self: &Arc<Self>, state: &mut State<S>) -> std::io::Result<()> {
        let (shared, number) = (Arc::clone(self), state.next);
        std::thread::Builder::new().name(self.crew.name.to_owned()).spawn(move || shared.serve(number))?;
        state.next = state.next.wrapping_add(1);
        state.count = state.count.saturating_add(1);
        state.woken = state.woken.saturating_add(1);
        Ok(())
    }

    /// Wakes or starts a thread.
    fn employ(self: &Arc<Self>, state: &mut State<S>) {
        if state.idle > state.woken {
            state.woken = state.woken.saturating_add(1);
            self.work.notify_one();
        } else if state.count <= self.crew.count_max {
            // Without another thread, the one that waits goes on later.
            let _ = self.start(state);
        }
    }

    /// Lets others go on if a thread waits in a system call.
    fn look_after(self: &Arc<Self>, state: &mut State<S>) {
        let is_watched = state.running.values().any(Option::is_some);
        state.looks = if is_watched { LOOKS } else { state.looks.saturating_sub(1) };
        for since in state.running.values_mut() {
            if since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                *since = None;
            }
        }
        if state.leader.is_some_and(|leader| state.running.get(&leader) == Some(&None)) {
            state.leader = None;
            self.employ(state);
        }
        self.help(state);
    }

    /// Wakes a thread if a call is ready and a processor is free.
    fn help(self: &Arc<Self>, state: &mut State<S>) {
        let active = state.running.values().filter(|since| since.is_some()).count();
        let free = self.free(state);
        if active.saturating_add(state.woken) < self.crew.parallel && state.service.calls().is_ready(free) {
            self.employ(state);
        }
    }

    /// Returns the number of threads that may execute a further call, those included that may be started.
    fn free(&self, state: &State<S>) -> usize {
        self.crew.count_max.saturating_sub(state.running.len())
    }

    /// Serves until the crew ends.
    fn serve(self: &Arc<Self>, number: u64) {
        let mut state = self.state();
        state.woken = state.woken.saturating_sub(1);
        while !state.ends {
            let is_leader = *state.leader.get_or_insert(number) == number;
            let mut busy = false;
            if is_leader {
                busy = self.turn(&mut state);
            }
            let free = self.free(&state);
            if let Some(call) = state.service.calls().next(free) {
                state = self.execute(state, number, call);
            } else if is_leader && !busy {
                state.service.arm();
                if !self.turn(&mut state) {
                    drop(state);
                    let waited = self.waiting.wait(SLEEP);
                    state = self.state();
                    state.failed = waited.err().or(state.failed.take());
                }
            } else if !is_leader {
                state.idle = state.idle.saturating_add(1);
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle = state.idle.saturating_sub(1);
                state.woken = state.woken.saturating_sub(1);
            }
            if state.failed.is_some() {
                state.ends = true;
            }
        }
        state.count = state.count.saturating_sub(1);
        self.look.notify_one();
    }

    fn turn(&self, state: &mut State<S>) -> bool {
        match state.service.turn() {
            Ok(busy) => busy,
            Err(error) => {
                state.failed = Some(error);
                true
            }
        }
    }

    /// Executes a call, without the service, until it is done or waits for a transfer.
    fn execute<'s>(
        self: &'s Arc<Self>,
        mut state: Guard<'s, S>,
        number: u64,
        mut call: crate::tasks::Running<S::Key, S::Result>,
    ) -> Guard<'s, S> {
        state.running.insert(number, Some(now()));
        if state.looks == 0 {
            state.looks = LOOKS;
            self.look.notify_one();
        }
        self.help(&mut state);
        loop {
            drop(state);
            let polled = call.poll();
            state = self.state();
            match state.service.calls().settle(call, polled) {
                Settled::Again(again) => call = again,
                Settled::Done(key, result) => {
                    state.service.answer(key, result);
                    break;
                }
                Settled::Waits => break,
            }
        }
        state.running.remove(&number);
        state
    }
}
