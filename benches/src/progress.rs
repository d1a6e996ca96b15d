//! A line on the terminal that says how far a benchmark is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The line; nothing where standard error is no terminal. It goes when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A benchmark of so many steps.
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// The next step begins.
    pub fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
