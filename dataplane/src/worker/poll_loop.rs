//! The poll loop of one thread, which a daemon worker and a program's [`Node`](crate::verbs::Node) run alike: every
//! port receives, processes and transmits once per iteration.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use iwarp_config::Idle;
use iwarp_engine::Clock;
use iwarp_engine::wake::Doorbell;
use rustix::event::{PollFd, PollFlags};
use tcp_stack::Instant;

use super::idle::{Idler, Waking};
use super::{WorkerPort, WorkerStats};
use crate::dpdk::{OTHERS_MAX, Wake, wait_for};

/// Nanoseconds above which an iteration counts as a long one.
const LONG_NS: u64 = 1_000_000;

/// Outcome of one poll iteration.
#[derive(Clone, Copy, Debug)]
pub struct PollResult {
    /// Time at which the iteration began.
    pub now: Instant,
    /// Time to [sleep](PollLoop::sleep) before the next iteration; `None`: poll again at once.
    pub sleep: Option<Duration>,
}

/// Clock, idle policy and counters of one thread's poll loop.
#[derive(Debug)]
pub struct PollLoop {
    clock: Clock,
    idler: Idler,
    /// Time at which the last iteration began or the last sleep ended.
    last: Instant,
    /// True if the last iteration moved a frame.
    moved: bool,
    stats: WorkerStats,
    /// Event counter of the thread that sends commands; `None` if nothing else has work for this thread.
    commands: Option<Arc<OwnedFd>>,
}

impl PollLoop {
    /// Creates a poll loop that has not run. A thread that obeys the commands of another gives the event counter
    /// (eventfd, non-blocking) which that one increments after each command.
    pub fn new(clock: &Clock, idle: &Idle, commands: Option<Arc<OwnedFd>>) -> Self {
        let last = clock.now();
        Self {
            clock: clock.clone(),
            idler: Idler::new(idle),
            last,
            moved: false,
            stats: WorkerStats::default(),
            commands,
        }
    }

    /// Returns the time since the clock started.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the time since 1970 by the wall clock.
    pub fn wall(&self) -> Duration {
        self.clock.wall()
    }

    /// Starts to account time; called when the thread starts.
    pub fn begin(&mut self) {
        (self.last, self.moved) = (self.clock.now(), false);
    }

    /// Runs one iteration over every port.
    pub fn poll_once(&mut self, ports: &mut [WorkerPort]) -> PollResult {
        let now = self.clock.now();
        self.account(now);
        let moved = ports.iter_mut().fold(0_usize, |moved, port| moved.saturating_add(port.poll(now)));
        self.moved = moved > 0;
        let is_commanded = self.commands.is_some();
        let sleep = self.idler.after_poll(now, self.moved, || {
            let rest = if ports.iter().any(WorkerPort::has_output) {
                Duration::ZERO
            } else {
                ports.iter_mut().map(WorkerPort::due).min().unwrap_or(Instant::MAX).saturating_since(now)
            };
            // A thread without commands runs a program, which may have work of its own at any time.
            Waking { rest, by_all: wake_for_all(ports), by_nothing_else: is_commanded }
        });
        PollResult { now, sleep }
    }

    /// Sleeps for `time`, until a program rings, a command comes, or a frame arrives at the only port that can wake the
    /// thread.
    pub fn sleep(&mut self, ports: &mut [WorkerPort], time: Duration) {
        if ports.iter().all(WorkerPort::sleeps) {
            self.stats.sleeps += 1;
            self.stats.spins_paid = self.idler.spins_paid();
            let asleep = self.clock.now();
            if self.wait(ports, time) == Wake::Timeout {
                let late = self.clock.now().saturating_since(asleep).saturating_sub(time);
                self.idler.woke_late(late);
                self.stats.sleeps_timed_out += 1;
                let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                self.stats.woken_late_ns = self.stats.woken_late_ns.wrapping_add(late_ns);
            }
        }
        ports.iter().for_each(WorkerPort::awake);
        let woken = self.clock.now();
        let slept = nanos_between(self.last, woken);
        self.stats.slept_ns = self.stats.slept_ns.wrapping_add(slept);
        self.stats.total_ns = self.stats.total_ns.wrapping_add(slept);
        (self.last, self.moved) = (woken, false);
    }

    fn wait(&self, ports: &mut [WorkerPort], time: Duration) -> Wake {
        let mut queue = None;
        let mut others = ArrayVec::<PollFd<'_>, OTHERS_MAX>::new();
        let mut add = |other| {
            // There is room: each context has one doorbell.
            let _ = others.try_push(PollFd::from_borrowed_fd(other, PollFlags::IN));
        };
        self.commands.iter().for_each(|counter| add(counter.as_fd()));
        for port in ports {
            let (waking_queue, doorbells) = port.waits_for();
            doorbells.for_each(&mut add);
            queue = queue.or(waking_queue);
        }
        let wake = match queue {
            Some(queue) => queue.wait(&mut others, time),
            None => wait_for(&mut others, time),
        };
        let (commands, doorbells) = others.split_at(usize::from(self.commands.is_some()));
        for counter in commands.iter().filter(|polled| !polled.revents().is_empty()) {
            let _ = rustix::io::read(counter, &mut [0; 8]);
        }
        for doorbell in doorbells.iter().filter(|polled| !polled.revents().is_empty()) {
            Doorbell::clear(doorbell.as_fd());
        }
        wake
    }

    /// Returns the counters of the loop.
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// Borrows the counters mutably.
    pub(super) fn stats_mut(&mut self) -> &mut WorkerStats {
        &mut self.stats
    }

    /// Accounts the iteration that ends now. Work that the program does after an iteration belongs to it.
    #[inline]
    fn account(&mut self, now: Instant) {
        let (elapsed, moved) = (nanos_between(self.last, now), u64::from(self.moved));
        let stats = &mut self.stats;
        stats.iterations = stats.iterations.wrapping_add(1);
        stats.total_ns = stats.total_ns.wrapping_add(elapsed);
        stats.busy_iterations = stats.busy_iterations.wrapping_add(moved);
        stats.long_iterations = stats.long_iterations.wrapping_add(u64::from(elapsed > LONG_NS));
        stats.busy_ns = stats.busy_ns.wrapping_add(elapsed.wrapping_mul(moved));
        self.last = now;
    }
}

/// Returns true if every frame, doorbell and command ends a [`PollLoop::sleep`], of which one port's queue can.
fn wake_for_all(ports: &mut [WorkerPort]) -> bool {
    let queues = ports.iter_mut().filter_map(|port| port.waits_for().0).count();
    queues <= 1 && ports.iter().all(WorkerPort::wakes_for_all)
}

/// Returns the nanoseconds between two times; zero if the clock of another CPU is ahead.
const fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}
