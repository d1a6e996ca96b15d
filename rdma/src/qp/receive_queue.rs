//! Receive queue: buffers posted for the peer's Sends and Immediate Data. The receive path of RDMAP consumes them.

use std::collections::VecDeque;

use super::local::{Lists, Local, Sge};
use super::shared_queue::SharedQueue;
use super::{PostError, WcStatus};

/// A posted receive buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) wr_id: u64,
    pub(crate) local: Local,
    /// Status of its completion if the stream ends first.
    pub(crate) status: WcStatus,
}

impl Buffer {
    const fn new(wr_id: u64, local: Local) -> Self {
        Self { wr_id, local, status: WcStatus::WrFlushError }
    }
}

/// Buffers in the order of posting. The current message goes to the head.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    queue: VecDeque<Buffer>,
    /// Buffers whose completion the owner has not polled.
    unpolled: u32,
    depth: u32,
    /// Scatter/gather lists of the buffers.
    pub(crate) lists: Lists,
    /// Shared receive queue that supplies the buffers, moved here while the owner passes received bytes; and the
    /// maximum number of buffers to take from it.
    pub(crate) shared: Option<Box<SharedQueue>>,
    pub(crate) shared_max: usize,
}

impl ReceiveQueue {
    /// Creates a queue of `depth` buffers with up to `sges` elements each.
    pub(crate) fn new(depth: usize, sges: usize) -> Self {
        let (queue, lists) = (VecDeque::with_capacity(depth), Lists::new(depth, sges, 0));
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Self { queue, unpolled: 0, depth, lists, shared: None, shared_max: 0 }
    }

    pub(crate) fn post(&mut self, wr_id: u64, local: Local) -> Result<(), PostError> {
        self.check_room()?;
        self.queue.push_back(Buffer::new(wr_id, local));
        Ok(())
    }

    /// Posts a buffer described by a scatter/gather list.
    pub(crate) fn post_list(&mut self, wr_id: u64, list: &[Sge]) -> Result<(), PostError> {
        self.check_room()?;
        let local = self.lists.keep(list).ok_or(PostError::Length)?;
        self.queue.push_back(Buffer::new(wr_id, local));
        Ok(())
    }

    fn check_room(&self) -> Result<(), PostError> {
        if self.queue.len().saturating_add(self.unpolled as usize) < self.depth as usize {
            Ok(())
        } else {
            Err(PostError::QueueFull)
        }
    }

    /// Returns the buffer of the current message, taken from the shared queue if there is one.
    pub(crate) fn front(&mut self) -> Option<&mut Buffer> {
        if self.queue.is_empty() {
            self.take_shared();
        }
        self.queue.front_mut()
    }

    fn take_shared(&mut self) {
        let Some(shared) = self.shared.as_mut().filter(|_| self.shared_max > 0) else { return };
        let Some((wr_id, list)) = shared.take() else { return };
        self.shared_max = self.shared_max.saturating_sub(1);
        let local = self.lists.keep(list).unwrap_or(Local::EMPTY);
        self.queue.push_back(Buffer::new(wr_id, local));
    }

    pub(crate) fn pop(&mut self) -> Option<Buffer> {
        let buffer = self.queue.pop_front()?;
        self.unpolled = self.unpolled.saturating_add(1);
        Some(buffer)
    }

    pub(crate) const fn completion_taken(&mut self) {
        self.unpolled = self.unpolled.saturating_sub(1);
    }
}
