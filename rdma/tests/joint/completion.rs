//! Checks on each completion of a work request.

use rdma::{Access, AccessError, GrantedRange, RegionId, Scope, Stag, WcOpcode, WcStatus};
use tcp_stack::Instant;

use crate::model::{Buffer, Message, Place, Ticket};
use crate::stream::{GUARD, Posted, Stream, Tools};

impl Stream {
    /// Checks a completion of the send queue: it must be that of the oldest request.
    pub(crate) fn completed(
        &mut self,
        (id, op, bytes): (u64, WcOpcode, u32),
        status: WcStatus,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let Some(posted) = self.posted.pop_front().filter(|posted| (posted.id, posted.op) == (id, op)) else {
            return Err(format!("work request {id} ({op:?}) is not the oldest, or has come back before"));
        };
        self.check_memory = true;
        let own = self.own();
        let is_success = status == WcStatus::Success;
        if let Some(region) = &posted.region {
            if is_success {
                self.expect_invalid(region, tools)?;
            }
            self.deregister(region, tools)?;
        }
        if !is_success {
            self.outcome.work[2] += 1;
            self.model.borrow_mut().forget(own, id);
            return if bytes == 0 { Ok(()) } else { Err(format!("{id} was flushed, with {bytes} bytes")) };
        }
        if self.outcome.work[2] > 0 {
            return Err(format!("{id} succeeds behind one that was flushed"));
        }
        self.outcome.work[1] += 1;
        self.outcome.bytes += u64::from(bytes);
        self.outcome.by_op[index_of(&posted)] += 1;
        if bytes != posted.len {
            return Err(format!("{id} of {} bytes finished with {bytes}", posted.len));
        }
        let mut model = self.model.borrow_mut();
        model.release(own, id)?;
        if matches!(op, WcOpcode::RdmaRead | WcOpcode::FetchAdd | WcOpcode::CompareSwap) {
            if let Some(remote) = posted.remote {
                model.release(remote, id)?;
            }
            model.expect_placed_before(self.open(1 - self.host), id)?;
        }
        drop(model);
        self.window_changed(&posted, tools)?;
        if let Some(source) = posted.source {
            self.scribble(own, source, tools);
        }
        Ok(())
    }

    /// Overwrites the source of a finished request: the transport has its own copy, also for retransmission.
    pub(crate) fn scribble(&mut self, own: Place, source: core::ops::Range<u64>, tools: &mut Tools) {
        let is_free = self.model.borrow_mut().is_free(own, &source, |_| false);
        if !source.is_empty() && is_free && self.random.below(2) == 0 {
            let bytes: Vec<u8> = (source.start..source.end).map(|_| self.random.byte()).collect();
            tools.memory.overwrite(own.region, source.start, &bytes);
        }
    }

    /// Checks a message received into the oldest buffer. `is_right` returns true for the message that was sent.
    pub(crate) fn received(
        &mut self,
        now: Instant,
        id: u64,
        is_right: impl FnOnce(&Message) -> bool,
    ) -> Result<(), String> {
        self.check_memory = true;
        let open = self.open(self.host);
        let (buffer, message) = self.take_buffer(id)?;
        if !is_right(&message) {
            return Err(format!("buffer {id} brings another message than {message:?}"));
        }
        let mut model = self.model.borrow_mut();
        if message.immediate.is_some() {
            model.forget(buffer.place, id);
        } else {
            model.release(buffer.place, id)?;
        }
        // RFC 5040 §5.5: a Send is delivered after the Writes before it are placed.
        model.expect_placed_before(open, message.id)?;
        drop(model);
        self.outcome.received += 1;
        if self.withholds || self.plan.srq {
            return Ok(());
        }
        let pause = self.random.between(0, self.plan.repost.as_nanos().try_into().unwrap_or(0));
        let at = now + tcp_stack::Duration::from_nanos(pause);
        // In order of time, so that the first is the next.
        let behind = self.reposts.partition_point(|(other, _)| *other <= at);
        self.reposts.insert(behind, (at, buffer.slot));
        Ok(())
    }

    /// Removes the oldest buffer, which must have this number, and returns it with its message.
    fn take_buffer(&mut self, id: u64) -> Result<(Buffer, Message), String> {
        let mut model = self.model.borrow_mut();
        if self.plan.srq {
            return model.return_buffer(self.host, (self.connection, self.side), id);
        }
        let buffer = model.offers[self.connection][self.side].buffers.pop_front();
        let Some(mut buffer) = buffer.filter(|buffer| buffer.id == id) else {
            return Err(format!("buffer {id} is not the oldest, or has come back before"));
        };
        let message = buffer.message.take();
        let message = message.ok_or_else(|| format!("buffer {id} is used, and nothing was sent"))?;
        Ok((buffer, message))
    }

    /// Checks a buffer that was flushed: it must be the oldest.
    pub(crate) fn buffer_flushed(&mut self, id: u64) -> Result<(), String> {
        let mut model = self.model.borrow_mut();
        let place = if self.plan.srq {
            model.return_buffer(self.host, (self.connection, self.side), id)?.0.place
        } else {
            let buffer = model.offers[self.connection][self.side].buffers.pop_front();
            let buffer = buffer.filter(|buffer| buffer.id == id);
            buffer.ok_or_else(|| format!("buffer {id} is not the oldest, or has come back before"))?.place
        };
        model.forget(place, id);
        Ok(())
    }

    /// Checks an STag that the peer invalidated: it must be invalid. Grants another in its place.
    pub(crate) fn invalidated(&mut self, stag: Stag, tools: &mut Tools) -> Result<(), String> {
        let found = self.check_key(stag, self.base_to[self.side], tools);
        if found != Err(AccessError::InvalidStag) {
            return Err(format!("{stag:?} was invalidated: {found:?}"));
        }
        if self.objects.is_some() { self.unbind(stag) } else { self.offer_ticket(tools) }
    }

    /// Grants an STag for the local window that the peer may invalidate.
    pub(crate) fn offer_ticket(&mut self, tools: &mut Tools) -> Result<(), String> {
        let access =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_INVALIDATE;
        let ticket = Ticket { stag: self.grant(access, tools)?, base_to: self.base_to[self.side] };
        self.model.borrow_mut().offers[self.connection][self.side].tickets.push(ticket);
        Ok(())
    }

    fn grant(&self, access: Access, tools: &mut Tools) -> Result<Stag, String> {
        let range = GrantedRange {
            region: RegionId(self.open(self.host).region),
            offset: GUARD,
            bytes: self.window.into(),
            base_to: self.base_to[self.side],
        };
        let granted = tools.stags.grant_range(range, access, Scope::Stream(self.id));
        granted.map_err(|error| format!("{error}"))
    }

    /// Grants the STags that the peer may use from the start, besides the tickets.
    pub(crate) fn offer(&mut self, tools: &mut Tools) -> Result<(), String> {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let (stag, narrow) = match &self.objects {
            Some(own) => own.offer(),
            None => {
                for _ in 0..2 {
                    self.offer_ticket(tools)?;
                }
                let narrow =
                    [Access::REMOTE_READ, Access::REMOTE_WRITE].map(|access| self.grant(access, tools));
                let [read_only, write_only] = narrow;
                (self.grant(all, tools)?, (read_only?, write_only?))
            }
        };
        let offer = &mut self.model.borrow_mut().offers[self.connection][self.side];
        (offer.stag, offer.narrow) = (Some(stag), Some(narrow));
        Ok(())
    }
}

fn index_of(posted: &Posted) -> usize {
    match posted.op {
        WcOpcode::RdmaWrite => 0,
        WcOpcode::RdmaRead => 1,
        WcOpcode::Send if !posted.immediate => 2,
        WcOpcode::FetchAdd | WcOpcode::CompareSwap => 3,
        WcOpcode::Send | WcOpcode::Recv | WcOpcode::RecvRdmaWithImm => 4,
        WcOpcode::BindMw => 5,
        WcOpcode::LocalInvalidate => 6,
    }
}
