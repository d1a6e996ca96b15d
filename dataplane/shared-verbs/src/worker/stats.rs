//! Counters of a context and of its completion queues.

use rdma::verbs::CqId;

use super::{ContextId, ContextMemory, Contexts};

/// Work of a context since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextStats {
    /// Work requests that the worker has taken from the rings of send and receive queues.
    pub work_requests: u64,
    /// Completions that the worker has written to the rings of completion queues.
    pub completions: u64,
    /// Completions with an error, flushed work included.
    pub errors: u64,
}

/// Work of a completion queue since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqStats {
    /// Completions that the worker has written to the ring.
    pub completions: u64,
    /// Completions with an error, flushed work included.
    pub errors: u64,
    /// Events raised: completions for which the program had armed the queue.
    pub events: u64,
}

impl<M: ContextMemory> Contexts<M> {
    /// Returns the counters of a context; `None` if it is not open.
    pub fn stats(&self, id: ContextId) -> Option<ContextStats> {
        Some(self.places.get(id.0 as usize)?.as_ref()?.stats)
    }

    /// Returns the counters of a completion queue; `None` if the context has no such queue.
    pub fn cq_stats(&self, id: ContextId, cq: CqId) -> Option<CqStats> {
        let ring = self.cqs.get(cq.index())?.as_ref()?;
        (ring.cq == cq && ring.context == id).then_some(ring.stats)
    }
}
