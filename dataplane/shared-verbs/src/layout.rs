//! Layout of the memory of one context.
//!
//! ```text
//!  line 0   version
//!  then     doorbells of all queues
//!           ring of events
//!           rings, allocated as queues are created: send queue, receive queue, completion queue
//! ```

use iwarp_shared_queues::{
    AtomicU64, COMPLETION_WORDS, DOORBELL_QUEUES_MAX, Doorbells, LINE_WORDS, RingShape,
};
use serde::{Deserialize, Serialize};

use crate::event::EVENT_WORDS;

/// Events that the ring holds. The worker keeps those that do not fit.
const EVENTS: u32 = 64;

/// Place of a send queue, a receive queue or a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// First word of the ring.
    pub start: usize,
    /// Size of the ring.
    pub shape: RingShape,
    /// Number of the queue's doorbell.
    pub doorbell: u32,
}

/// Place of a completion queue: a line with the arming, then the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqPlace {
    /// Word of the arming.
    pub start: usize,
    /// Size of the ring.
    pub shape: RingShape,
}

impl CqPlace {
    /// Returns the size of the ring for this many completions; `None` if a ring cannot have so many.
    pub(crate) fn shape_for(cqe: u32) -> Option<RingShape> {
        RingShape::new(cqe, u32::try_from(COMPLETION_WORDS).ok()?)
    }

    /// Returns the words that a completion queue takes.
    pub(crate) fn words(shape: RingShape) -> usize {
        LINE_WORDS.saturating_add(shape.words())
    }

    /// Returns the word that counts the queue's events.
    pub(crate) const fn events(&self) -> usize {
        self.start.saturating_add(1)
    }

    /// Returns the word that is 1 once the queue is in error.
    pub(crate) const fn error(&self) -> usize {
        self.start.saturating_add(2)
    }

    /// Returns the first word of the ring.
    pub(crate) const fn ring(&self) -> usize {
        self.start.saturating_add(LINE_WORDS)
    }
}

/// Word of the version.
pub(crate) const VERSION_WORD: usize = 0;

/// Returns the size of the ring of events.
pub(crate) fn events_shape() -> Option<RingShape> {
    RingShape::new(EVENTS, u32::try_from(EVENT_WORDS).ok()?)
}

/// Returns the doorbells in a context's memory; `None` if it is too short.
pub(crate) fn doorbells(memory: &[AtomicU64]) -> Option<Doorbells<'_>> {
    Doorbells::new(memory, LINE_WORDS, DOORBELL_QUEUES_MAX)
}

/// Returns the first word of the ring of events.
pub(crate) fn events_start() -> usize {
    LINE_WORDS.saturating_add(Doorbells::words(DOORBELL_QUEUES_MAX))
}

/// Returns the words of memory that a context takes without queues.
pub fn words_min() -> usize {
    events_start().saturating_add(events_shape().map_or(0, RingShape::words))
}
