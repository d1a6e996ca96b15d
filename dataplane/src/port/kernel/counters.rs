//! Counters of a queue that the control thread reads. Each has one writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one queue pair of a kernel interface.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Frames read, super-frames as one.
    pub(super) rx_frames: AtomicU64,
    pub(super) rx_bytes: AtomicU64,
    /// Times that no buffer was left to read into.
    pub(super) rx_no_buffer: AtomicU64,
    /// Empty buffers that wait to be read into.
    pub(super) rx_armed: AtomicU64,
    /// Super-frames received, and their segments.
    pub(super) rx_super_frames: AtomicU64,
    pub(super) rx_segments: AtomicU64,
    /// Super-frames dropped: longer than 64 KiB.
    pub(super) rx_too_long: AtomicU64,
    /// Super-frames that were not cut where their sender had.
    pub(super) rx_guesses_missed: AtomicU64,
    /// Frames sent, super-frames as one.
    pub(super) tx_frames: AtomicU64,
    pub(super) tx_bytes: AtomicU64,
    /// Frames that the kernel refused.
    pub(super) tx_refused: AtomicU64,
    /// Super-frames sent, and their segments.
    pub(super) tx_super_frames: AtomicU64,
    pub(super) tx_segments: AtomicU64,
}

/// Adds to a counter of the calling thread's own.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

/// Sums a counter over all queues.
pub(super) fn sum<'a>(
    queues: impl IntoIterator<Item = &'a Counters>,
    counter: impl Fn(&Counters) -> &AtomicU64,
) -> u64 {
    queues.into_iter().fold(0, |sum, queue| sum.wrapping_add(counter(queue).load(Ordering::Relaxed)))
}
