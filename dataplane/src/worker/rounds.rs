//! The rounds of one thread: every lane receives, steps and transmits, again and again.

use std::time::Duration;

use iwarp_config::Idle;
use tcp_stack::Instant;

use super::idle::Idler;
use super::{Clock, Lane, WorkerStats};
use crate::dpdk::MbufPool;
use crate::engine::Step;

/// What one round has come to.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// When it began.
    pub now: Instant,
    /// How long to [sleep](Rounds::sleep) before the next; `None`: go on at once.
    pub sleep: Option<Duration>,
}

/// The clock of a thread's rounds, and what it does between them.
#[derive(Debug)]
pub struct Rounds {
    clock: Clock,
    idler: Idler,
    /// When the last round began, or the last sleep ended.
    last: Instant,
    stats: WorkerStats,
}

impl Rounds {
    /// Before the first one.
    pub fn new(clock: Clock, idle: &Idle) -> Self {
        Self { clock, idler: Idler::new(idle), last: clock.now(), stats: WorkerStats::default() }
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Counts the time from here on: the thread begins.
    pub fn begin(&mut self) {
        self.last = self.clock.now();
    }

    /// One round of every lane.
    pub fn turn<E: Step<Pool = MbufPool>>(&mut self, lanes: &mut [Lane<E>]) -> Round {
        let now = self.clock.now();
        let moved: usize = lanes.iter_mut().map(|lane| lane.round(now)).sum();
        self.account(now.saturating_since(self.last), moved > 0);
        self.last = now;
        let busy = moved > 0 || lanes.iter().any(Lane::has_output);
        let deadline = lanes.iter().filter_map(Lane::next_deadline).min();
        let left = deadline.map(|deadline| deadline.saturating_since(now));
        Round { now, sleep: self.idler.after_round(busy, left) }
    }

    /// Sleeps until the time is up, or a frame arrives where a port can tell.
    pub fn sleep<E: Step<Pool = MbufPool>>(&mut self, lanes: &mut [Lane<E>], time: Duration) {
        self.stats.sleeps += 1;
        let woken_by_port = match lanes {
            // With one port the port itself can end the sleep.
            [lane] => lane.wait(time),
            _ => false,
        };
        if !woken_by_port {
            let time = rustix::thread::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
            // A signal may cut it short: the next round finds out whether there is something to do.
            let _ = rustix::thread::nanosleep(&time);
        }
        let woken = self.clock.now();
        let slept = nanos(woken.saturating_since(self.last));
        self.stats.slept_ns += slept;
        self.stats.total_ns += slept;
        self.last = woken;
    }

    /// What was counted.
    pub fn stats(&self) -> &WorkerStats {
        &self.stats
    }

    /// What is counted.
    pub(super) fn stats_mut(&mut self) -> &mut WorkerStats {
        &mut self.stats
    }

    fn account(&mut self, elapsed: Duration, busy: bool) {
        self.stats.rounds += 1;
        self.stats.total_ns += nanos(elapsed);
        if busy {
            self.stats.busy_rounds += 1;
            self.stats.busy_ns += nanos(elapsed);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
