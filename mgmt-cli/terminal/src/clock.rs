//! Reads the clocks and sleeps; the only place of the command-line programs that does.
#![allow(clippy::disallowed_methods, reason = "a program for people is an edge: here time comes in")]

use std::time::{Duration, Instant, SystemTime};

/// A monotonic clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts the clock at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since [`Clock::start`].
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Returns the time of day, which may jump.
#[must_use]
pub fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Sleeps for at least `duration`.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
