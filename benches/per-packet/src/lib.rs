//! The TCP stack alone: no port, no kernel, one thread. What peers send is made outside of what is timed.
//!
//! The stack is told that the port verifies and fills in checksums, as NICs do. Its clock is a number that grows by
//! [`BURST_INTERVAL`] per burst, so that a run does the same whatever the machine.

#![forbid(unsafe_code)]

pub mod conns;
pub mod echo;
mod expected;
mod frames;
pub mod instructions;
mod lab;
pub mod lines;
pub mod rx;
mod verbs;
mod wire;

pub use expected::Expected;
pub use wire::{PAYLOADS, build_write, parse_frame, tcp_frame, write_header, write_len};

use quanta::Clock;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;

/// Frames that are handed to the stack at a time, as many as a port's driver gives.
pub const BURST: usize = 32;

/// What the stack's clock moves on by from one burst to the next.
pub const BURST_INTERVAL: Duration = Duration::from_micros(5);

/// Why a benchmark came to nothing.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TcpError {
    /// Options that leave nothing to measure.
    #[error("{0}")]
    Options(&'static str),
    /// The stack did not do what was timed: its figure would be of something else.
    #[error("the stack {did} {got} {what} of {wanted}")]
    Short {
        /// What it did.
        did: &'static str,
        /// To what.
        what: &'static str,
        /// To how many.
        got: u64,
        /// To how many it should have.
        wanted: u64,
    },
}

impl TcpError {
    /// Fails unless all was done.
    fn unless_all(did: &'static str, what: &'static str, got: u64, wanted: u64) -> Result<(), Self> {
        if got == wanted { Ok(()) } else { Err(Self::Short { did, what, got, wanted }) }
    }
}

/// What a packet, or a request, takes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// How many there were.
    pub count: u64,
    /// Time on the core in the median lap, nanoseconds each.
    pub ns: f64,
    /// Cycles of the time stamp counter each: those of the nominal clock, not of the boosted one.
    pub cycles: f64,
    /// Time in the fastest lap, nanoseconds each: far below the other where something else had the caches.
    pub ns_least: f64,
    /// How many per second.
    pub per_second: f64,
}

/// Times laps by what this thread has had of its core: what else ran there meanwhile does not count.
#[derive(Debug)]
struct Watch {
    started: Duration,
    /// Nanoseconds each, and how many there were.
    laps: Vec<(f64, u64)>,
}

fn time_on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

impl Watch {
    const fn new() -> Self {
        Self { started: Duration::ZERO, laps: Vec::new() }
    }

    fn start(&mut self) {
        self.started = time_on_core();
    }

    /// Ends a lap in which so much was done.
    #[allow(clippy::cast_precision_loss, reason = "a lap is short")]
    fn stop(&mut self, count: u64) {
        let lap = time_on_core().saturating_sub(self.started);
        self.laps.push((lap.as_secs_f64() * 1e9 / count.max(1) as f64, count));
    }

    /// What each took, in the median lap.
    #[allow(clippy::cast_precision_loss, reason = "it is a mean")]
    fn cost(&mut self) -> Cost {
        self.laps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let count = self.laps.iter().map(|(_, count)| count).sum();
        let Some((ns, _)) = self.laps.get(self.laps.len() / 2).copied() else { return Cost::default() };
        let ns_least = self.laps.first().map_or(ns, |(ns, _)| *ns);
        let cycle_ns = Clock::new().delta_as_nanos(0, 1 << 40) as f64 / (1_u64 << 40) as f64;
        Cost { count, ns, cycles: ns / cycle_ns, ns_least, per_second: 1e9 / ns }
    }
}
