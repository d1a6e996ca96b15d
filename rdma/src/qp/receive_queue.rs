//! The buffers that the owner has posted for the peer's Sends.

use std::collections::VecDeque;

use super::PostError;
use crate::memory::LocalSlice;

/// A posted buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) wr_id: u64,
    pub(crate) local: LocalSlice,
}

/// Buffers in the order of posting; the head takes the current message.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    queue: VecDeque<Buffer>,
    /// Buffers whose event the owner has not taken.
    untaken: usize,
    depth: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: usize) -> Self {
        Self { queue: VecDeque::with_capacity(depth), untaken: 0, depth }
    }

    pub(crate) fn post(&mut self, wr_id: u64, local: LocalSlice) -> Result<(), PostError> {
        if self.queue.len().saturating_add(self.untaken) >= self.depth {
            return Err(PostError::Full);
        }
        self.queue.push_back(Buffer { wr_id, local });
        Ok(())
    }

    pub(crate) fn front(&self) -> Option<&Buffer> {
        self.queue.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Buffer> {
        let buffer = self.queue.pop_front()?;
        self.untaken = self.untaken.saturating_add(1);
        Some(buffer)
    }

    pub(crate) const fn completion_taken(&mut self) {
        self.untaken = self.untaken.saturating_sub(1);
    }
}
