//! Memory windows and regions that are created and invalidated while a stream works.

use core::ops::Range;

use rdma::verbs::{AddressBase, MemoryRegion, SendOp, inc_rkey};
use rdma::{Access, AccessError, Bind, Origin, RegionId, Stag, WcOpcode};

use crate::engine::{Engine, Local};
use crate::model::Ticket;
use crate::stream::{Posted, Stream, Tools};

impl Stream {
    /// Binds an unbound window, or invalidates an unused one; `None` if neither is possible.
    pub(crate) fn manage_windows(&mut self, tools: &mut Tools) -> Result<Option<bool>, String> {
        // A responder sends only after it has received (RFC 5044 §7.1.2): the first work is a message.
        let Some(own) = self.objects.as_ref().filter(|_| self.outcome.work[0] > 0) else { return Ok(None) };
        if let Some(free) = own.windows.iter().position(|bound| !bound.in_use) {
            return self.bind(free, tools).map(Some);
        }
        if self.random.below(16) != 0 {
            return Ok(None);
        }
        let (connection, side, place) = (self.connection, self.side, self.open(self.host));
        let Some(ticket) = self.model.borrow().offers[connection][side].tickets.first().copied() else {
            return Ok(None);
        };
        if self.model.borrow_mut().is_used(place, ticket.stag, |_| true) {
            return Ok(None);
        }
        let posted = Posted {
            signaled: true,
            key: Some(ticket),
            ..Posted::new(self.next_id(), WcOpcode::LocalInvalidate, 0)
        };
        let op = SendOp::LocalInvalidate { stag: ticket.stag };
        let taken = self.post(tools, posted, (op, false), &Local::default())?;
        if taken {
            self.model.borrow_mut().offers[connection][side].tickets.retain(|other| *other != ticket);
        }
        Ok(Some(taken))
    }

    fn bind(&mut self, index: usize, tools: &mut Tools) -> Result<bool, String> {
        let Some(own) = &self.objects else { return Ok(false) };
        let (window, open) = (own.windows[index], own.open);
        let zero_based = self.random.below(2) == 0;
        let rkey = inc_rkey(window.rkey);
        let access =
            Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_INVALIDATE;
        let bind = Bind { lkey: open.lkey, address: open.addr, len: open.length, access, zero_based };
        let ticket = Ticket { stag: rkey, base_to: if zero_based { 0 } else { open.addr } };
        let posted =
            Posted { signaled: true, key: Some(ticket), ..Posted::new(self.next_id(), WcOpcode::BindMw, 0) };
        let op = SendOp::BindMw { mw: window.window, rkey, bind };
        let taken = self.post(tools, posted, (op, false), &Local::default())?;
        if taken && let Some(own) = &mut self.objects {
            (own.windows[index].rkey, own.windows[index].in_use) = (rkey, true);
        }
        Ok(taken)
    }

    /// Records that this side bound or invalidated a window.
    pub(crate) fn window_changed(&mut self, posted: &Posted, tools: &Tools) -> Result<(), String> {
        let Some(ticket) = posted.key else { return Ok(()) };
        let found = self.check_key(ticket.stag, ticket.base_to, tools);
        if posted.op == WcOpcode::BindMw {
            self.bound(ticket);
            return if found.is_ok() { Ok(()) } else { Err(format!("{ticket:?} was bound: {found:?}")) };
        }
        if found != Err(AccessError::InvalidStag) {
            return Err(format!("{ticket:?} was made invalid: {found:?}"));
        }
        self.unbind(ticket.stag)
    }

    /// Checks the peer's access by a key, at the first byte of the window.
    pub(crate) fn check_key(&self, stag: Stag, to: u64, tools: &Tools) -> Result<(), AccessError> {
        let pd = matches!(self.engine, Engine::Verbs(_)).then_some(tools.verbs.pd);
        tools.stags.check_place(stag, to, 1, Origin::new(self.id, pd)).map(drop)
    }

    /// Registers a region for one response, in place of the stream's own.
    pub(crate) fn register(&self, sink: &Range<u64>, tools: &mut Tools) -> Result<MemoryRegion, String> {
        let Tools { device, verbs, stags, .. } = tools;
        let part = (RegionId(self.own().region), sink.start, sink.end - sink.start);
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
        let made = device.reg_mr(verbs.pd, part, AddressBase::At(sink.start), access, stags);
        // As in the lists: addresses are offsets in the whole region.
        made.map(|made| MemoryRegion { addr: 0, ..made }).map_err(|error| error.to_string())
    }

    pub(crate) fn deregister(&self, region: &MemoryRegion, tools: &mut Tools) -> Result<(), String> {
        let Tools { device, stags, .. } = tools;
        device.dereg_mr(region.id, stags).map_err(|error| error.to_string())
    }

    /// Checks that the region of a received response is invalid.
    pub(crate) fn expect_invalid(&self, region: &MemoryRegion, tools: &Tools) -> Result<(), String> {
        let origin = Origin::new(self.id, Some(tools.verbs.pd));
        match tools.stags.check_local_place(region.lkey, region.addr, 1, origin) {
            Err(AccessError::InvalidStag) => Ok(()),
            found => Err(format!("the region of an answer is still valid: {found:?}")),
        }
    }
}
