//! Clocks: wall time, CPU time as the kernel accounts it, and waiting.

use std::fs;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Measures the time since its start.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring from now on.
    #[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Sleeps, between two checks of a condition that has no event.
#[allow(clippy::disallowed_methods, reason = "it waits for another program")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns the CPU time of the calling thread, in user and kernel mode.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    whole.saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0)))
}

/// Returns the CPU time of the kernel's threads for softirqs (`ksoftirqd/…`). Packets that the kernel receives while a
/// thread sends are in that thread's CPU time instead.
pub(crate) fn softirq_cpu_time() -> Duration {
    let Ok(processes) = fs::read_dir("/proc") else { return Duration::ZERO };
    let times = processes.flatten().filter_map(|process| {
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        let times = name.starts_with("ksoftirqd/").then(|| process.path().join("schedstat"))?;
        let nanos = fs::read_to_string(times).ok()?.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(nanos))
    });
    times.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_counts_the_work_of_this_thread_only() {
        let (before, watch) = (thread_cpu_time(), Stopwatch::start());
        let mut sum = 0_u64;
        while thread_cpu_time().saturating_sub(before) < Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(watch.elapsed() >= Duration::from_millis(20));
        let before = thread_cpu_time();
        std::thread::scope(|scope| {
            scope.spawn(|| std::hint::black_box((0..20_000_000_u64).sum::<u64>()));
        });
        assert!(thread_cpu_time().saturating_sub(before) < Duration::from_millis(15));
        assert!(softirq_cpu_time() >= Duration::ZERO);
    }
}
