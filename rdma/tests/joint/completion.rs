//! What must hold when a work request comes back.

use rdma::{Access, AccessError, CompletionOp, CompletionStatus, Origin, RegionId, Scope, Stag, Window};
use tcp_stack::Instant;

use crate::model::{Message, Place};
use crate::stream::{GUARD, Stream, Tools, is_success};

impl Stream {
    /// A work request of the send queue is finished: it must be the oldest.
    pub(crate) fn completed(
        &mut self,
        (id, op, bytes): (u64, CompletionOp, u32),
        status: CompletionStatus,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let Some(posted) = self.posted.pop_front().filter(|posted| (posted.id, posted.op) == (id, op)) else {
            return Err(format!("work request {id} ({op:?}) is not the oldest, or has come back before"));
        };
        self.look = true;
        let own = self.own();
        if !is_success(status) {
            self.outcome.work[2] += 1;
            self.model.borrow_mut().forget(own, id);
            return if bytes == 0 { Ok(()) } else { Err(format!("{id} was flushed, with {bytes} octets")) };
        }
        if self.outcome.work[2] > 0 {
            return Err(format!("{id} succeeds behind one that was flushed"));
        }
        self.outcome.work[1] += 1;
        self.outcome.octets += u64::from(bytes);
        self.outcome.by_op[index_of(op)] += 1;
        if bytes != posted.len {
            return Err(format!("{id} of {} octets finished with {bytes}", posted.len));
        }
        let mut model = self.model.borrow_mut();
        model.release(own, id)?;
        if matches!(op, CompletionOp::Read | CompletionOp::Atomic) {
            if let Some(remote) = posted.remote {
                model.release(remote, id)?;
            }
            model.expect_placed_before(self.open(1 - self.host), id)?;
        }
        drop(model);
        if let Some(source) = posted.source {
            self.scribble(own, source, tools);
        }
        Ok(())
    }

    /// What a finished request sent from may be changed: the transport has it, also for sending it again.
    fn scribble(&mut self, own: Place, source: core::ops::Range<u64>, tools: &mut Tools) {
        let is_free = self.model.borrow_mut().is_free(own, &source, |_| false);
        if !source.is_empty() && is_free && self.random.below(2) == 0 {
            let octets: Vec<u8> = (source.start..source.end).map(|_| self.random.byte()).collect();
            tools.memory.overwrite(own.region, source.start, &octets);
        }
    }

    /// A message has come into the oldest buffer. `is_right` says whether it is the message that was sent.
    pub(crate) fn received(
        &mut self,
        now: Instant,
        id: u64,
        is_right: impl FnOnce(&Message) -> bool,
    ) -> Result<(), String> {
        self.look = true;
        let (own, open) = (self.own(), self.open(self.host));
        let mut model = self.model.borrow_mut();
        let buffer = model.offers[self.dial][self.side].buffers.pop_front();
        let Some(buffer) = buffer.filter(|buffer| buffer.id == id) else {
            return Err(format!("buffer {id} is not the oldest, or has come back before"));
        };
        let message = buffer.message.ok_or_else(|| format!("buffer {id} is used, and nothing was sent"))?;
        if !is_right(&message) {
            return Err(format!("buffer {id} brings another message than {message:?}"));
        }
        if message.immediate.is_some() {
            model.forget(own, id);
        } else {
            model.release(own, id)?;
        }
        // RFC 5040 §5.5: a Send is delivered behind the Writes before it.
        model.expect_placed_before(open, message.id)?;
        drop(model);
        self.outcome.received += 1;
        if self.withholds {
            return Ok(());
        }
        let pause = self.random.between(0, self.plan.repost.as_nanos().try_into().unwrap_or(0));
        let at = now + tcp_stack::Duration::from_nanos(pause);
        // In the order of time, so that the first is the next.
        let behind = self.reposts.partition_point(|(other, _)| *other <= at);
        self.reposts.insert(behind, (at, buffer.slot));
        Ok(())
    }

    /// A buffer comes back unused: it must be the oldest.
    pub(crate) fn buffer_flushed(&mut self, id: u64) -> Result<(), String> {
        let own = self.own();
        let mut model = self.model.borrow_mut();
        let buffer = model.offers[self.dial][self.side].buffers.pop_front();
        if buffer.is_none_or(|buffer| buffer.id != id) {
            return Err(format!("buffer {id} is not the oldest, or has come back before"));
        }
        model.forget(own, id);
        Ok(())
    }

    /// The peer has invalidated an STag: it must be dead; another takes its place.
    pub(crate) fn invalidated(&mut self, stag: Stag, tools: &mut Tools) -> Result<(), String> {
        let origin = Origin { stream: self.id, pd: None };
        let found = tools.stags.check_place(stag, self.base_to[self.side], 1, origin);
        if found != Err(AccessError::InvalidStag) {
            return Err(format!("{stag:?} was invalidated: {found:?}"));
        }
        self.offer_ticket(tools)
    }

    /// Grants an STag for the own window that the peer may invalidate.
    pub(crate) fn offer_ticket(&mut self, tools: &mut Tools) -> Result<(), String> {
        let access =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_INVALIDATE;
        let stag = self.grant(access, tools)?;
        self.model.borrow_mut().offers[self.dial][self.side].tickets.push(stag);
        Ok(())
    }

    fn grant(&self, access: Access, tools: &mut Tools) -> Result<Stag, String> {
        let window = Window {
            region: RegionId(self.open(self.host).region),
            offset: GUARD,
            bytes: self.window.into(),
            base_to: self.base_to[self.side],
        };
        let granted = tools.stags.grant_window(window, access, Scope::Stream(self.id));
        granted.map_err(|error| format!("{error}"))
    }

    /// Grants what the peer may use to begin with, besides the tickets.
    pub(crate) fn offer(&mut self, tools: &mut Tools) -> Result<(), String> {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let stag = self.grant(all, tools)?;
        let narrow = (self.grant(Access::REMOTE_READ, tools)?, self.grant(Access::REMOTE_WRITE, tools)?);
        let offer = &mut self.model.borrow_mut().offers[self.dial][self.side];
        (offer.stag, offer.narrow) = (Some(stag), Some(narrow));
        Ok(())
    }
}

fn index_of(op: CompletionOp) -> usize {
    match op {
        CompletionOp::Write => 0,
        CompletionOp::Read => 1,
        CompletionOp::Send => 2,
        CompletionOp::Atomic => 3,
        CompletionOp::Immediate | CompletionOp::Receive => 4,
        CompletionOp::Invalidate | CompletionOp::Bind => unreachable!("none is posted"),
    }
}
