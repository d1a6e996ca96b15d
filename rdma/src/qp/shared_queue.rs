//! Shared receive queue: several streams take buffers from it, one for each message that arrives.

use std::collections::VecDeque;

use super::PostError;
use super::local::{Lists, Local, Sge};

/// Buffers of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    queue: VecDeque<(u64, Local)>,
    lists: Lists,
    depth: usize,
    /// Low-water mark: when fewer buffers are left, an event is raised and the mark set to 0, which raises none.
    pub(crate) limit: usize,
    /// Set when the event is due; `verbs/stream.rs` clears it when it raises the event.
    pub(crate) limit_reached: bool,
}

impl SharedQueue {
    /// Creates a queue of `depth` buffers with up to `sges` elements each.
    pub(crate) fn new(depth: usize, sges: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(depth),
            lists: Lists::new(depth, sges, 0),
            depth,
            limit: 0,
            limit_reached: false,
        }
    }

    pub(crate) fn post(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        if self.queue.len() >= self.depth {
            return Err(PostError::QueueFull);
        }
        let local = self.lists.keep(list).ok_or(PostError::Length)?;
        self.queue.push_back((wr_id, local));
        Ok(())
    }

    /// Removes the oldest buffer; returns its `wr_id` and its scatter/gather list.
    pub(crate) fn take(&mut self) -> Option<(u64, &[Sge])> {
        let (wr_id, local) = self.queue.pop_front()?;
        if self.queue.len() < self.limit {
            (self.limit, self.limit_reached) = (0, true);
        }
        match local {
            Local::List(list) => Some((wr_id, self.lists.sges(list))),
            Local::Slice(_) | Local::Inline { .. } => Some((wr_id, &[])),
        }
    }

    /// Returns the number of posted buffers.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
