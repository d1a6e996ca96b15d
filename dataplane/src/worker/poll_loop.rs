//! The poll loop of one thread, which a daemon worker and a program's [`Node`](crate::verbs::Node) run alike: every
//! port receives, processes and transmits once per iteration.

use std::time::Duration;

use iwarp_config::Idle;
use tcp_stack::Instant;

use super::idle::Idler;
use super::{Clock, WorkerPort, WorkerStats};

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
}

impl PollLoop {
    /// Creates a poll loop that has not run.
    pub fn new(clock: &Clock, idle: &Idle) -> Self {
        let last = clock.now();
        Self {
            clock: clock.clone(),
            idler: Idler::new(idle),
            last,
            moved: false,
            stats: WorkerStats::default(),
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
        let sleep = self.idler.after_poll(self.moved, || {
            if ports.iter().any(WorkerPort::has_output) {
                return Duration::ZERO;
            }
            ports.iter_mut().map(WorkerPort::due).min().unwrap_or(Instant::MAX).saturating_since(now)
        });
        PollResult { now, sleep }
    }

    /// Sleeps for `time`, or until a frame arrives if the only port can wake the thread.
    pub fn sleep(&mut self, ports: &mut [WorkerPort], time: Duration) {
        self.stats.sleeps += 1;
        let woken_by_port = match ports {
            // A single port can end the sleep itself.
            [port] => port.wait(time),
            _ => false,
        };
        if !woken_by_port {
            let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
            // A signal may end the sleep early: the next iteration finds out whether there is work.
            let _ = rustix::thread::nanosleep(&time);
        }
        let woken = self.clock.now();
        let slept = nanos_between(self.last, woken);
        self.stats.slept_ns = self.stats.slept_ns.wrapping_add(slept);
        self.stats.total_ns = self.stats.total_ns.wrapping_add(slept);
        (self.last, self.moved) = (woken, false);
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
        stats.rounds = stats.rounds.wrapping_add(1);
        stats.total_ns = stats.total_ns.wrapping_add(elapsed);
        stats.busy_rounds = stats.busy_rounds.wrapping_add(moved);
        stats.busy_ns = stats.busy_ns.wrapping_add(elapsed.wrapping_mul(moved));
        self.last = now;
    }
}

/// Returns the nanoseconds between two times; zero if the clock of another CPU is ahead.
const fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}
