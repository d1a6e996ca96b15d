//! Benchmarks of the TCP stack alone: no port, no kernel, one thread. Peers' segments are built outside the timed part.
//!
//! The stack is configured as over a port that verifies and fills in checksums. Its clock is a number that grows by
//! [`BURST_INTERVAL`] per burst, so that a run is the same on every machine. `iwarp-bench` and `make instructions`
//! use it.

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

/// Frames per burst, as of a port's driver.
pub const BURST: usize = 32;

/// Time between two bursts on the stack's clock.
pub const BURST_INTERVAL: Duration = Duration::from_micros(5);

/// Failure of a benchmark.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TcpError {
    /// The options leave nothing to measure.
    #[error("{0}")]
    Options(&'static str),
    /// The stack did less than the timed work, so that the result would be wrong.
    #[error("the stack {did} {got} {what} of {wanted}")]
    Short {
        /// Verb of the work, such as `answered`.
        did: &'static str,
        /// Object of the work, such as `requests`.
        what: &'static str,
        /// Number of objects that the stack processed.
        got: u64,
        /// Number of objects that it should have processed.
        wanted: u64,
    },
}

impl TcpError {
    /// Returns an error unless `got` equals `wanted`.
    fn unless_all(did: &'static str, what: &'static str, got: u64, wanted: u64) -> Result<(), Self> {
        if got == wanted { Ok(()) } else { Err(Self::Short { did, what, got, wanted }) }
    }
}

/// Cost of a packet or of a request.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// Number of packets or requests.
    pub count: u64,
    /// CPU time each in the median lap, nanoseconds.
    pub ns: f64,
    /// Cycles of the time stamp counter each, which counts at the nominal clock rate.
    pub cycles: f64,
    /// CPU time each in the fastest lap, nanoseconds: much less than `ns` if other work used the caches.
    pub ns_least: f64,
    /// Packets or requests per second.
    pub per_second: f64,
}

/// Measures laps in CPU time of this thread, which excludes other threads on the core.
#[derive(Debug)]
struct Watch {
    started: Duration,
    /// Nanoseconds per packet or request, and their number.
    laps: Vec<(f64, u64)>,
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

impl Watch {
    const fn new() -> Self {
        Self { started: Duration::ZERO, laps: Vec::new() }
    }

    fn start(&mut self) {
        self.started = thread_cpu_time();
    }

    /// Ends a lap of `count` packets or requests.
    #[allow(clippy::cast_precision_loss, reason = "a lap is short")]
    fn stop(&mut self, count: u64) {
        let lap = thread_cpu_time().saturating_sub(self.started);
        self.laps.push((lap.as_secs_f64() * 1e9 / count.max(1) as f64, count));
    }

    /// Returns the cost in the median lap.
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
