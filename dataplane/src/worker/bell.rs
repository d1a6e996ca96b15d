//! Wakes a worker that sleeps, for a worker that has passed frames to it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The bell of one worker.
#[derive(Debug)]
pub struct Bell {
    /// True from [`Self::sleep`] on, until somebody rings or the worker is awake.
    sleeps: AtomicBool,
    /// Event counter (eventfd, non-blocking) of the worker's own that ends its sleep.
    counter: Arc<OwnedFd>,
}

impl Bell {
    /// Creates the bell of a worker that sleeps on this event counter.
    pub fn new(counter: Arc<OwnedFd>) -> Self {
        Self { sleeps: AtomicBool::new(false), counter }
    }

    /// Announces that the worker sleeps. What was passed to it before a bell that did not ring is visible afterward.
    pub(super) fn sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Announces that the worker is awake.
    pub(super) fn awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }

    /// Wakes the worker if it sleeps: at the price of a system call then, else of a fence. Called after a frame was
    /// passed to it.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::Relaxed) {
            // Fails only if the counter is at its maximum: the worker is to wake already.
            let _ = rustix::io::write(&*self.counter, &1_u64.to_ne_bytes());
        }
    }
}
