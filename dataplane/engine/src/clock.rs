//! The clock of workers, and of programs that poll an engine themselves.

use tcp_stack::{Duration, Instant};

/// The clock of all workers: nanoseconds since the daemon started.
///
/// Every iteration reads it, idle ones included. If the processor has an invariant time stamp counter, the clock reads
/// that. The counter is calibrated against the kernel's clock once per process, which takes up to 0.2 s.
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    start: u64,
}

impl Clock {
    /// Starts a clock at zero.
    pub fn start() -> Self {
        let source = quanta::Clock::new();
        let start = source.raw();
        Self { source, start }
    }

    /// Returns the time since the clock started.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.source.delta_as_nanos(self.start, self.source.raw()))
    }

    /// Returns the time since 1970 by the kernel's wall clock; zero if that clock shows an earlier time.
    pub fn wall(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}
