//! The program's side of a watch: the rings of notifications.

use core::sync::atomic::Ordering;

use iwarp_shared_queues::{Arm, Armed, AtomicU64, Consumer, LINE_WORDS, RingShape};

use crate::Notification;
use crate::notification::{ARM, GONE, LOST, NOTIFICATION_WORDS, decode, notification_ring_words};

/// Notifications of one watch, of all workers and ports.
#[derive(Debug)]
pub struct Notifications<M> {
    memory: M,
    rings: Vec<Consumer<M>>,
    ring_words: usize,
    /// Index of the ring that is polled next.
    next: usize,
}

impl<M: AsRef<[AtomicU64]> + Clone> Notifications<M> {
    /// Opens the rings of a watch; `None` if the memory is shorter.
    pub fn new(memory: M, rings: usize, shape: RingShape) -> Option<Self> {
        let ring_words = notification_ring_words(shape);
        if ring_words.checked_mul(rings)? > memory.as_ref().len() {
            return None;
        }
        let start = |ring: usize| ring.saturating_mul(ring_words).saturating_add(LINE_WORDS);
        let rings = (0..rings).map(|ring| Consumer::new(memory.clone(), start(ring), shape));
        Some(Self { rings: rings.collect::<Option<_>>()?, memory, ring_words, next: 0 })
    }

    /// Returns the next notification, of the rings in turn. A ring that the worker has corrupted is skipped, and so are
    /// words that are no notification.
    pub fn poll(&mut self) -> Option<Notification> {
        let mut words = [0; NOTIFICATION_WORDS];
        for _ in 0..self.rings.len() {
            let ring = self.rings.get_mut(self.next)?;
            let after = self.next.saturating_add(1);
            while matches!(ring.pop(&mut words), Ok(true)) {
                ring.release();
                if let Ok(notification) = decode(&words) {
                    return Some(notification);
                }
            }
            self.next = if after < self.rings.len() { after } else { 0 };
        }
        None
    }

    /// Returns true if no worker has raised an event since [`Self::arm`].
    pub fn is_armed(&self) -> bool {
        self.words(ARM).all(|arm| arm.load(Ordering::Acquire) != 0)
    }

    /// Asks for one event of each ring. The program polls once more after this call, before it sleeps.
    pub fn arm(&self) {
        self.words(ARM).for_each(|arm| Arm(arm).arm(Armed::Any));
    }

    /// Returns the number of notifications that the rings had no room for.
    pub fn lost(&self) -> u64 {
        self.words(LOST).fold(0, |sum, lost| sum.wrapping_add(lost.load(Ordering::Acquire)))
    }

    /// Returns true once the region is gone, and sends no more notifications.
    pub fn is_gone(&self) -> bool {
        self.words(GONE).all(|gone| gone.load(Ordering::Acquire) != 0)
    }

    /// Returns a word in front of each ring.
    fn words(&self, word: usize) -> impl Iterator<Item = &AtomicU64> {
        let words = self.memory.as_ref();
        (0..self.rings.len())
            .filter_map(move |ring| words.get(ring.saturating_mul(self.ring_words).saturating_add(word)))
    }
}
