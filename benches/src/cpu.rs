//! CPU time, as the kernel accounts it.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has used, in user and kernel mode.
pub(crate) fn thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    whole.saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0)))
}

/// CPU time of the kernel's threads that receive packets for sockets when nobody else does (`ksoftirqd/…`). What is
/// received while an application's thread sends is in that thread's time already.
pub(crate) fn softirq_threads() -> Duration {
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
    use crate::Stopwatch;

    #[test]
    fn work_takes_time_and_waiting_does_not() {
        let (before, watch) = (thread(), Stopwatch::start());
        let mut sum = 0_u64;
        while thread().saturating_sub(before) < Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(watch.elapsed() >= Duration::from_millis(20));
        let before = thread();
        std::thread::scope(|scope| {
            // Another thread's work is not this one's.
            scope.spawn(|| std::hint::black_box((0..20_000_000_u64).sum::<u64>()));
        });
        assert!(thread().saturating_sub(before) < Duration::from_millis(15));
        assert!(softirq_threads() >= Duration::ZERO);
    }
}
