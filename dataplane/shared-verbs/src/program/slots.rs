//! Slots of a queue pair's send and receive queue that are in use. Posting takes a slot, polling a completion frees
//! them.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rdma::verbs::Slots as Freed;

/// Slots in use of one queue pair, which its queues and completion queues share.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    send: AtomicU32,
    /// `None` with a shared receive queue: its buffers are not the queue pair's.
    recv: Option<AtomicU32>,
}

impl Slots {
    /// Returns the slots of a new queue pair, which has a shared receive queue or its own.
    pub fn new(has_srq: bool) -> Self {
        let recv = if has_srq { None } else { Some(AtomicU32::new(0)) };
        Self(Arc::new(Counts { send: AtomicU32::new(0), recv }))
    }

    /// Frees all slots: the queue pair was reset to `Idle`.
    pub fn reset(&self) {
        self.0.send.store(0, Ordering::Release);
        if let Some(recv) = &self.0.recv {
            recv.store(0, Ordering::Release);
        }
    }

    /// Returns the slots of the send and of the receive queue that are in use.
    pub(super) fn used(&self) -> (u32, u32) {
        let recv = self.0.recv.as_ref().map_or(0, |recv| recv.load(Ordering::Acquire));
        (self.0.send.load(Ordering::Acquire), recv)
    }

    /// Takes a slot of the send queue. Returns false if all `max` are in use.
    #[inline]
    pub(super) fn take_send(&self, max: u16) -> bool {
        take(&self.0.send, max)
    }

    /// Takes a slot of the receive queue. Returns false if all `max` are in use.
    #[inline]
    pub(super) fn take_recv(&self, max: u16) -> bool {
        self.0.recv.as_ref().is_some_and(|recv| take(recv, max))
    }

    /// Frees the slots of a completion. Returns false if more are freed than were in use: the completion is not
    /// genuine.
    #[inline]
    pub(super) fn free(&self, freed: Freed) -> bool {
        let (count, by) = match freed {
            Freed::Send(slots) => (&self.0.send, u32::try_from(slots).unwrap_or(u32::MAX)),
            Freed::Receive => match &self.0.recv {
                Some(recv) => (recv, 1),
                None => return true,
            },
        };
        count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| used.checked_sub(by)).is_ok()
    }
}

/// Only the queue's own user takes slots, so that the count can only decrease between the two accesses.
#[inline]
fn take(count: &AtomicU32, max: u16) -> bool {
    let free = count.load(Ordering::Acquire) < u32::from(max);
    if free {
        count.fetch_add(1, Ordering::AcqRel);
    }
    free
}
