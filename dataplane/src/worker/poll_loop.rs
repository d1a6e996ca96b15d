//! The rounds of one thread: every port receives, steps and transmits, again and again.

use std::time::Duration;

use iwarp_config::Idle;
use tcp_stack::Instant;

use super::idle::Idler;
use super::{Clock, WorkerPort, WorkerStats};
use crate::dpdk::MbufPool;
use crate::engine::PortProtocols;

/// What one round has come to.
#[derive(Clone, Copy, Debug)]
pub struct PollResult {
    /// When it began.
    pub now: Instant,
    /// How long to [sleep](PollLoop::sleep) before the next; `None`: go on at once.
    pub sleep: Option<Duration>,
}

/// The clock of a thread's rounds, and what it does between them.
#[derive(Debug)]
pub struct PollLoop {
    clock: Clock,
    idler: Idler,
    /// When the last round began, or the last sleep ended.
    last: Instant,
    /// The last round moved a frame.
    moved: bool,
    stats: WorkerStats,
}

impl PollLoop {
    /// Before the first one.
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

    /// The time now.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The time since 1970 by the wall clock.
    pub fn wall(&self) -> Duration {
        self.clock.wall()
    }

    /// Counts the time from here on: the thread begins.
    pub fn begin(&mut self) {
        (self.last, self.moved) = (self.clock.now(), false);
    }

    /// One round of every port.
    pub fn poll_once<E: PortProtocols<Pool = MbufPool>>(
        &mut self,
        ports: &mut [WorkerPort<E>],
    ) -> PollResult {
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

    /// Sleeps until the time is up, or a frame arrives where a port can tell.
    pub fn sleep<E: PortProtocols<Pool = MbufPool>>(&mut self, ports: &mut [WorkerPort<E>], time: Duration) {
        self.stats.sleeps += 1;
        let woken_by_port = match ports {
            // With one port the port itself can end the sleep.
            [port] => port.wait(time),
            _ => false,
        };
        if !woken_by_port {
            let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
            // A signal may cut it short: the next round finds out whether there is something to do.
            let _ = rustix::thread::nanosleep(&time);
        }
        let woken = self.clock.now();
        let slept = nanos_between(self.last, woken);
        self.stats.slept_ns = self.stats.slept_ns.wrapping_add(slept);
        self.stats.total_ns = self.stats.total_ns.wrapping_add(slept);
        (self.last, self.moved) = (woken, false);
    }

    /// What was counted.
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// What is counted.
    pub(super) fn stats_mut(&mut self) -> &mut WorkerStats {
        &mut self.stats
    }

    /// Counts the round that ends where the next begins: what the program does behind a round belongs to it.
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

/// Zero where the clock of another CPU is ahead.
const fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}
