//! Buffers of a shared receive queue in the model: the stream that takes one is known only when its message arrives.

use std::collections::VecDeque;

use crate::model::{Buffer, Effect, Message, Model, Place};

/// Shared receive queue of a host.
#[derive(Debug, Default)]
pub(crate) struct SharedBuffers {
    /// Buffers that no message has taken, oldest first.
    waiting: VecDeque<Buffer>,
    /// Number of messages in flight that will take one.
    promised: usize,
    /// Slots to post again.
    pub(crate) free: Vec<u64>,
    /// Number of buffers that messages have taken.
    pub(crate) taken: u64,
}

/// A message in flight to a stream with a shared receive queue.
#[derive(Debug)]
pub(crate) struct Inbound {
    message: Message,
    payload: Vec<u8>,
    /// Buffer that it has taken, if any.
    buffer: Option<Buffer>,
}

impl Model {
    pub(crate) fn share(&mut self, host: usize, buffer: Buffer) {
        self.shared[host].waiting.push_back(buffer);
    }

    /// Returns true if a message to this side will find a buffer, for any order of messages.
    pub(crate) fn has_buffer(&self, host: usize, (connection, side): (usize, usize)) -> bool {
        let offer = &self.offers[connection][side];
        match offer.share {
            None => offer.buffers.iter().any(|buffer| buffer.message.is_none()),
            Some(share) => {
                let shared = &self.shared[host];
                !offer.over && offer.inbound.len() < share && shared.promised < shared.waiting.len()
            }
        }
    }

    /// Records a message in flight to a side with a shared receive queue.
    pub(crate) fn promise(
        &mut self,
        host: usize,
        (connection, side): (usize, usize),
        message: Message,
        payload: Vec<u8>,
    ) {
        self.shared[host].promised += 1;
        self.offers[connection][side].inbound.push_back(Inbound { message, payload, buffer: None });
    }

    /// Assigns the oldest buffer to the oldest message in flight that has none.
    fn take_buffer(&mut self, host: usize, (connection, side): (usize, usize)) -> Result<(), String> {
        let inbound =
            self.offers[connection][side].inbound.iter_mut().find(|inbound| inbound.buffer.is_none());
        let inbound = inbound.ok_or("a buffer is used, and nothing was sent")?;
        let shared = &mut self.shared[host];
        let buffer = shared.waiting.pop_front().ok_or("a buffer is used, and none was posted")?;
        (shared.promised, shared.taken) = (shared.promised - 1, shared.taken + 1);
        let payload = core::mem::take(&mut inbound.payload);
        let (id, place) = (buffer.id, buffer.place);
        inbound.buffer = Some(buffer);
        self.fill(place, id, &payload);
        Ok(())
    }

    /// Handles bytes placed in a shared buffer: it must be that of the next message of the receiving stream.
    pub(crate) fn take_buffers_until(
        &mut self,
        at: Place,
        covers: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let Some(to) = self.receiving.filter(|_| self.is_shared(at)) else { return Ok(()) };
        while !covers(self) {
            self.take_buffer(at.host, to)?;
        }
        Ok(())
    }

    fn is_shared(&self, at: Place) -> bool {
        at.region as usize == self.offers.len() * 2 + 1
    }

    /// Handles the completion of a shared buffer: it must be that of the stream's oldest message. Returns it and the
    /// message.
    pub(crate) fn return_buffer(
        &mut self,
        host: usize,
        to: (usize, usize),
        id: u64,
    ) -> Result<(Buffer, Message), String> {
        if self.offers[to.0][to.1].inbound.front().is_some_and(|inbound| inbound.buffer.is_none()) {
            self.take_buffer(host, to)?;
        }
        let inbound = self.offers[to.0][to.1].inbound.pop_front();
        let Inbound { message, buffer, .. } = inbound.ok_or_else(|| format!("{id}, and nothing was sent"))?;
        let buffer = buffer.filter(|buffer| buffer.id == id);
        let buffer = buffer.ok_or_else(|| format!("buffer {id} is not the one of the oldest message"))?;
        self.shared[host].free.push(buffer.slot);
        Ok((buffer, message))
    }

    /// Handles the end of a stream: messages that did not arrive take no buffer. Fails if a taken buffer was not
    /// completed.
    pub(crate) fn leave_shared(
        &mut self,
        host: usize,
        (connection, side): (usize, usize),
    ) -> Result<(), String> {
        let offer = &mut self.offers[connection][side];
        offer.over = true;
        let left = core::mem::take(&mut offer.inbound);
        if left.iter().any(|inbound| inbound.buffer.is_some()) {
            return Err(format!("shared buffers are not given back: {left:?}"));
        }
        self.shared[host].promised -= left.len();
        Ok(())
    }

    /// Records the bytes expected in the pieces of a buffer.
    pub(crate) fn fill(&mut self, at: Place, id: u64, bytes: &[u8]) {
        for touch in self.region(at).touches.iter_mut().filter(|touch| touch.id == id) {
            if let Effect::Placed { payload, skip, .. } = &mut touch.what {
                let from = (*skip).min(bytes.len());
                let len = (touch.range.end - touch.range.start) as usize;
                *payload = Some(bytes[from..bytes.len().min(from + len)].to_vec());
            }
        }
    }
}
