//! The edge that reads the clock.

use std::time::{Duration, Instant};

/// Time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    #[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}

/// Waits for something that tells nobody when it is done.
#[allow(clippy::disallowed_methods, reason = "another program is waited for")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
