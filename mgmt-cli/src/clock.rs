//! The only place where this program reads a clock or sleeps.
#![allow(clippy::disallowed_methods, reason = "a program for people is an edge: here time comes in")]

use std::time::{Duration, Instant};

/// A clock that starts at zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
