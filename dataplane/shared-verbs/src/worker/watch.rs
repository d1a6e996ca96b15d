//! The worker's side of a watch: one ring of notifications.

use core::sync::atomic::Ordering;

use iwarp_shared_queues::{Arm, AtomicU64, LINE_WORDS, Producer, RingShape};

use crate::notification::{ARM, GONE, LOST, encode, notification_ring_words};

/// Notifications of one watch, from one worker and port.
#[derive(Debug)]
pub struct NotificationRing<M> {
    memory: M,
    /// First word of the ring's memory.
    start: usize,
    ring: Producer<M>,
    stats: NotificationStats,
}

/// Notifications since the watch began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotificationStats {
    /// Notifications that the worker has written to the ring.
    pub delivered: u64,
    /// Notifications that the ring had no room for: the program does not poll it. They are lost.
    pub lost: u64,
}

impl<M: AsRef<[AtomicU64]> + Clone> NotificationRing<M> {
    /// Takes the ring with this number in the memory of a watch, which is zero; `None` if the memory is shorter.
    pub fn new(memory: M, number: usize, shape: RingShape) -> Option<Self> {
        let start = number.checked_mul(notification_ring_words(shape))?;
        let ring = Producer::new(memory.clone(), start.checked_add(LINE_WORDS)?, shape)?;
        Some(Self { memory, start, ring, stats: NotificationStats::default() })
    }

    /// Adds a notification, or counts it as lost if the ring is full. Returns true if the program is to be woken.
    pub fn push(&mut self, notification: &rdma::Notification<'_>) -> bool {
        if self.ring.push(&encode(notification)).is_err() {
            self.stats.lost = self.stats.lost.wrapping_add(1);
            if let Some(lost) = self.word(LOST) {
                lost.store(self.stats.lost, Ordering::Release);
            }
            return false;
        }
        self.ring.publish();
        self.stats.delivered = self.stats.delivered.wrapping_add(1);
        self.is_due()
    }

    /// Tells the program that the region is gone. Returns true if the program is to be woken.
    pub fn close(&mut self) -> bool {
        if let Some(gone) = self.word(GONE) {
            gone.store(1, Ordering::Release);
        }
        self.is_due()
    }

    /// Returns the counters of the ring.
    pub const fn stats(&self) -> NotificationStats {
        self.stats
    }

    fn is_due(&self) -> bool {
        self.word(ARM).is_some_and(|arm| Arm(arm).take_due(true))
    }

    fn word(&self, word: usize) -> Option<&AtomicU64> {
        self.memory.as_ref().get(self.start.checked_add(word)?)
    }
}
