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
    send: Queue,
    /// `None` with a shared receive queue: its buffers are not the queue pair's.
    recv: Option<Queue>,
}

/// Slots of one queue. Each count has one writer, so that neither needs a locked instruction. Both wrap.
#[derive(Debug, Default)]
struct Queue {
    /// Slots that posting has taken. Written by the user of the queue.
    taken: AtomicU32,
    /// Slots that completions have freed. Written by the user of the queue's completion queue.
    freed: AtomicU32,
}

impl Slots {
    /// Returns the slots of a new queue pair, which has a shared receive queue or its own.
    pub fn new(has_srq: bool) -> Self {
        let recv = if has_srq { None } else { Some(Queue::default()) };
        Self(Arc::new(Counts { send: Queue::default(), recv }))
    }

    /// Frees all slots: the queue pair was reset to `Idle`, and has no completions any more.
    pub fn reset(&self) {
        for queue in core::iter::once(&self.0.send).chain(&self.0.recv) {
            queue.freed.store(queue.taken.load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// Returns the slots of the send and of the receive queue that are in use.
    pub(super) fn used(&self) -> (u32, u32) {
        (self.0.send.used(), self.0.recv.as_ref().map_or(0, Queue::used))
    }

    /// Takes a slot of the send queue (its user). Returns false if all `max` are in use.
    #[inline]
    pub(super) fn take_send(&self, max: u16) -> bool {
        self.0.send.take(max)
    }

    /// Gives the slots back that were taken last (user of the send queue): their requests are not posted. A reset in
    /// between has freed them.
    pub(super) fn untake_send(&self, count: u32) {
        let Queue { taken, .. } = &self.0.send;
        let count = count.min(self.0.send.used());
        taken.store(taken.load(Ordering::Relaxed).wrapping_sub(count), Ordering::Release);
    }

    /// Takes a slot of the receive queue (its user). Returns false if all `max` are in use.
    #[inline]
    pub(super) fn take_recv(&self, max: u16) -> bool {
        self.0.recv.as_ref().is_some_and(|recv| recv.take(max))
    }

    /// Frees the slots of a completion (user of the completion queue). Returns false if more are freed than were in
    /// use: the completion is not genuine.
    #[inline]
    pub(super) fn free(&self, freed: Freed) -> bool {
        match freed {
            Freed::Send(slots) => self.0.send.free(u32::try_from(slots).unwrap_or(u32::MAX)),
            Freed::Receive => self.0.recv.as_ref().is_none_or(|recv| recv.free(1)),
        }
    }
}

impl Queue {
    #[inline]
    fn used(&self) -> u32 {
        self.taken.load(Ordering::Acquire).wrapping_sub(self.freed.load(Ordering::Acquire))
    }

    #[inline]
    fn take(&self, max: u16) -> bool {
        let free = self.used() < u32::from(max);
        if free {
            self.taken.store(self.taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        free
    }

    #[inline]
    fn free(&self, slots: u32) -> bool {
        let genuine = slots <= self.used();
        if genuine {
            self.freed.store(self.freed.load(Ordering::Relaxed).wrapping_add(slots), Ordering::Release);
        }
        genuine
    }
}
