//! The program's side of the ring of events.

use iwarp_shared_queues::{AtomicU64, Consumer, VERSION};

use crate::Event;
use crate::event::EVENT_WORDS;
use crate::layout::{VERSION_WORD, events_shape, events_start};

/// Events of a context (`rdma_get_cm_event`, `ibv_get_async_event`).
#[derive(Debug)]
pub struct Events<M> {
    ring: Consumer<M>,
}

impl<M: AsRef<[AtomicU64]>> Events<M> {
    /// Opens the ring of a context's memory; `None` if the memory has another layout.
    pub fn new(memory: M) -> Option<Self> {
        let version = memory.as_ref().get(VERSION_WORD)?.load(core::sync::atomic::Ordering::Acquire);
        if version != u64::from(VERSION) {
            return None;
        }
        Some(Self { ring: Consumer::new(memory, events_start(), events_shape()?)? })
    }

    /// Returns the next event, if there is one. Words that are no event are skipped.
    pub fn poll(&mut self) -> Option<Event> {
        let mut words = [0; EVENT_WORDS];
        while self.ring.pop(&mut words).ok()? {
            self.ring.release();
            if let Ok(event) = Event::decode(&words) {
                return Some(event);
            }
        }
        None
    }
}
