//! Durations of requests: their average, the longest, and the one that 99 % do not exceed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iwarp_counters::SharedHistogram;

/// Durations of requests, which threads record without waiting for each other.
#[derive(Debug, Default)]
pub struct Latency {
    times: SharedHistogram,
    max_ns: AtomicU64,
}

impl Latency {
    /// Counts a request that took this long.
    pub fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
        self.times.record(time);
    }

    /// Returns the longest time in nanoseconds, 0 without a request.
    pub fn max_ns(&self) -> u64 {
        self.max_ns.load(Ordering::Relaxed)
    }

    /// Returns the average time in nanoseconds, 0 without a request.
    pub fn mean_ns(&self) -> u64 {
        let times = self.times.snapshot();
        times.sum_ns().checked_div(times.count()).unwrap_or(0)
    }

    /// Returns the nanoseconds that 99 % of the requests did not exceed, rounded up to a power of two, from 1.024 µs
    /// on; beyond 8.6 s, those of the longest request. 0 without a request.
    pub fn p99_ns(&self) -> u64 {
        let times = self.times.snapshot();
        let all = times.count();
        let wanted = all.saturating_sub(all.checked_div(100).unwrap_or(0));
        let mut so_far = 0_u64;
        let found = times.buckets().find(|(_, count)| {
            so_far = so_far.saturating_add(*count);
            so_far >= wanted
        });
        match found {
            _ if all == 0 => 0,
            Some((Some(bound), _)) => u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX),
            _ => self.max_ns().checked_next_power_of_two().unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_averaged_and_rounded_up() {
        let latency = Latency::default();
        assert_eq!((latency.mean_ns(), latency.p99_ns(), latency.max_ns()), (0, 0, 0));
        for _ in 0..99 {
            latency.record(Duration::from_nanos(1000));
        }
        latency.record(Duration::from_micros(901));
        assert_eq!((latency.mean_ns(), latency.p99_ns(), latency.max_ns()), (10_000, 1024, 901_000));
        latency.record(Duration::from_secs(3600));
        assert_eq!(latency.p99_ns(), 1 << 20, "99 of 101 are not 99 %");
        latency.record(Duration::MAX);
    }
}
