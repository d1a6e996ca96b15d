//! Statistics that the program prints when it ends.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest round that the histogram distinguishes.
const LONGEST: Duration = Duration::from_secs(100);

/// Counters and round times of a client or server.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Number of established connections.
    pub connections: u64,
    /// Number of finished rounds.
    pub rounds: u64,
    /// Bytes of ping data written and read.
    pub bytes: u64,
    times: Option<Histogram<u64>>,
}

/// Summary of [`Stats`], which is also the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Role of the program: `client` or `server`.
    pub role: &'static str,
    /// Connections that were established.
    pub connections: u64,
    /// Rounds that were finished.
    pub rounds: u64,
    /// Bytes of texts that were written and read.
    pub bytes: u64,
    /// Distribution of the round times, nanoseconds; `None` without a round.
    pub round_ns: Option<Times>,
}

/// Distribution of times, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Shortest of the times, nanoseconds.
    pub min: u64,
    /// Median of the times, nanoseconds.
    pub median: u64,
    /// 99th percentile of the times, nanoseconds.
    pub p99: u64,
    /// Longest of the times, nanoseconds.
    pub max: u64,
    /// Mean of the times, nanoseconds.
    pub mean: f64,
}

impl Default for Stats {
    fn default() -> Self {
        let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
        Self { connections: 0, rounds: 0, bytes: 0, times: Histogram::new_with_bounds(1, longest, 3).ok() }
    }
}

impl Stats {
    /// Counts a finished round of `bytes` bytes that took `time`.
    pub(crate) fn round(&mut self, bytes: u64, time: Duration) {
        self.rounds = self.rounds.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(times) = &mut self.times {
            times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Summarizes the counters for output.
    pub fn summary(&self, role: &'static str) -> Summary {
        let times = self.times.as_ref().filter(|times| !times.is_empty());
        let round_ns = times.map(|times| Times {
            min: times.min(),
            median: times.value_at_quantile(0.5),
            p99: times.value_at_quantile(0.99),
            max: times.max(),
            mean: times.mean(),
        });
        let Self { connections, rounds, bytes, .. } = *self;
        Summary { role, connections, rounds, bytes, round_ns }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, connections, rounds, bytes, round_ns } = self;
        write!(f, "{role}: {rounds} rounds, {bytes} bytes, {connections} connections")?;
        match round_ns {
            Some(Times { min, median, p99, max, mean }) => {
                let micros = |nanos: &u64| Duration::from_nanos(*nanos).as_secs_f64() * 1e6;
                let (min, median, p99, max) = (micros(min), micros(median), micros(p99), micros(max));
                write!(f, "\nround: min {min:.1} µs, median {median:.1}, mean {:.1}", mean / 1e3)?;
                write!(f, ", p99 {p99:.1}, max {max:.1}")
            }
            None => Ok(()),
        }
    }
}
