//! Choice of work requests, and their announcement to the model.
//!
//! Ranges are drawn so that the effect of a request does not depend on timing: a Write uses bytes that no other
//! unfinished request accesses; an atomic operation avoids bytes that a Read has yet to fetch; a Read may use any,
//! since it finds what was posted before it on its stream (RFC 5040 §5.5, RFC 7306 §7).

use core::ops::Range;

use rdma::verbs::{MemoryRegion, PostError, SendFlags, SendOp, Sge};
use rdma::{AtomicOp, RegionId, Stag, WcOpcode};
use tcp_stack::testutil::Random;
use tcp_stack::{Duration, Instant};

use crate::engine::Local;
use crate::model::{Effect, Message, Place, Ticket, Touch, changed};
use crate::scenario::Ending;
use crate::stream::{GUARD, Posted, Stream, Tools, work_area};
use crate::verbs::INLINE;

/// Number of attempts to draw a range before the owner waits.
const DRAWS: u32 = 6;

/// STag and offset of the peer's window for a request.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) place: Place,
    pub(crate) stag: Stag,
    pub(crate) base_to: u64,
}

impl Remote {
    pub(crate) fn to(&self, start: u64) -> u64 {
        self.base_to.wrapping_add(start.wrapping_sub(GUARD))
    }
}

impl Stream {
    /// Posts the work that is due. Returns true if it posted any.
    pub(crate) fn post_work(
        &mut self,
        now: Instant,
        tools: &mut Tools,
        shared: Stag,
    ) -> Result<bool, String> {
        let mut any = false;
        while !self.stopped
            && self.outcome.work[0] < self.quota()
            && self.posted.len() < usize::from(self.plan.send_queue)
            && self.post_at.is_some_and(|at| at <= now)
        {
            let taken = match self.ending {
                Ending::Violates { side, after, violation }
                    if side == self.side && self.outcome.work[0] >= after =>
                {
                    self.violation(violation, tools)?
                }
                _ => self.post_one(tools, shared)?,
            };
            if taken {
                any = true;
                self.blocked = 0;
                let think = self.random.between(0, self.plan.think.as_nanos().try_into().unwrap_or(0));
                self.post_at = Some(now + Duration::from_nanos(think));
            } else if self.posted.back().is_some_and(|posted| !posted.signaled) {
                // All slots may be taken by finished unsignaled work.
                any |= self.write_nothing(tools)?;
            } else {
                // No range is free, or the peer has posted no buffer: try again later.
                self.post_at = Some(now + Duration::from_micros(200 << self.blocked.min(8)));
                self.blocked += 1;
            }
        }
        let waits = self.posted.len() >= usize::from(self.plan.send_queue);
        if waits || self.outcome.work[0] >= self.quota() {
            self.post_at = None;
        }
        Ok(any)
    }

    /// Returns the number of work requests to post; a side that is to post a violation continues until it has.
    pub(crate) fn quota(&self) -> u32 {
        match self.ending {
            Ending::Violates { side, .. } if side == self.side => u32::MAX,
            _ => self.plan.quota,
        }
    }

    fn post_one(&mut self, tools: &mut Tools, shared: Stag) -> Result<bool, String> {
        let reads = self.ord > 0;
        if let Some(taken) = self.manage_windows(tools)? {
            return Ok(taken);
        }
        match self.random.below(32) {
            0..9 => self.write(tools),
            9..16 if reads => self.fetch(tools),
            16..19 if reads => self.atomic(tools),
            19..21 if reads => self.count_up(tools, shared),
            21..24 => self.immediate(tools),
            24..32 => self.send(tools),
            _ => self.write(tools),
        }
    }

    /// Draws a length: often short, sometimes 0, sometimes the maximum.
    fn draw_len(&mut self, max: u32) -> u64 {
        let max = u64::from(max);
        match self.random.below(8) {
            0 => 0,
            1 => max,
            2 | 3 => self.random.between(0, max.min(100)),
            _ => self.random.between(0, max),
        }
    }

    /// Draws a range in `area` of a region, a multiple of `step` from its start, whose touches `may` accepts.
    fn draw_range(
        &mut self,
        at: Place,
        area: Range<u64>,
        (len, step): (u64, u64),
        may: fn(&Effect) -> bool,
    ) -> Option<Range<u64>> {
        let last = (area.end - area.start).checked_sub(len)? / step;
        for _ in 0..DRAWS {
            let start = area.start + self.random.between(0, last) * step;
            let range = start..start + len;
            if len == 0 || self.model.borrow_mut().is_free(at, &range, may) {
                return Some(range);
            }
        }
        None
    }

    /// Draws bytes of the local region to send from.
    pub(crate) fn draw_source(&mut self, len: u64) -> Option<Range<u64>> {
        let area = 0..work_area(&self.plan);
        self.draw_range(self.own(), area, (len, 1), |what| matches!(what, Effect::Source))
    }

    /// Draws bytes of the local region for a response.
    fn draw_sink(&mut self, len: u64) -> Option<Range<u64>> {
        self.draw_range(self.own(), 0..work_area(&self.plan), (len, 1), |_| false)
    }

    /// Splits a range into the parts of a list, in any order, some of them empty; or makes it inline data.
    pub(crate) fn local(&mut self, range: &Range<u64>, may_copy: bool) -> Local {
        let len = range.end - range.start;
        if may_copy && self.plan.verbs && len <= INLINE.into() && self.random.below(3) == 0 {
            let bytes = self.bytes(self.own(), range);
            return Local { pieces: vec![range.clone()], inline: Some(bytes) };
        }
        Local { pieces: pieces(range, self.plan.sges, &mut self.random), inline: None }
    }

    /// Returns the list of a work request, with the key of this region or the stream's.
    pub(crate) fn list(&self, local: &Local, region: Option<&MemoryRegion>) -> Vec<Sge> {
        let Some(region) = region.or(self.objects.as_ref().map(|own| &own.work)) else { return Vec::new() };
        sges(local, region)
    }

    /// Draws one of the STags of the peer's window.
    pub(crate) fn remote(&mut self) -> Option<Remote> {
        let peer = 1 - self.side;
        let model = self.model.borrow();
        let offer = &model.offers[self.connection][peer];
        let ticket = offer.tickets.get(self.random.index(offer.tickets.len() * 2)).copied();
        let all = offer.stag.map(|stag| Ticket { stag, base_to: self.base_to[peer] });
        let Ticket { stag, base_to } = ticket.or(all)?;
        Some(Remote { place: self.open(1 - self.host), stag, base_to })
    }

    fn window(&self) -> Range<u64> {
        GUARD..GUARD + u64::from(self.window)
    }

    /// Posts a request and records it. Returns false if the stream accepts no more.
    pub(crate) fn post(
        &mut self,
        tools: &mut Tools,
        mut posted: Posted,
        (op, solicited): (SendOp, bool),
        local: &Local,
    ) -> Result<bool, String> {
        let list = self.list(local, posted.region.as_ref());
        let is_last = self.posted.len() + 1 >= usize::from(self.plan.send_queue)
            || self.outcome.work[0] + 1 >= self.quota()
            || matches!(self.ending, Ending::Violates { side, .. } if side == self.side);
        posted.signaled |= !self.plan.unsignaled || is_last || self.random.below(3) == 0;
        let fence = self.plan.verbs && self.random.below(8) == 0;
        let flags = SendFlags { signaled: posted.signaled, solicited, fence };
        let (id, region) = (posted.id, RegionId(self.own().region));
        let taken =
            self.act(tools, |engine, tools| engine.post_send((id, op, flags), local, region, &list, tools))?;
        match taken {
            Ok(()) => {
                self.posted.push_back(posted);
                self.outcome.work[0] += 1;
                self.outcome.inline += u64::from(local.inline.is_some());
                self.outcome.lists += u64::from(local.pieces.len() > 1);
                self.needs_turn = true;
                Ok(true)
            }
            Err(PostError::State) => {
                self.stopped = true;
                Ok(false)
            }
            Err(error) => Err(format!("{posted:?} is refused: {error}")),
        }
    }

    pub(crate) fn bytes(&self, at: Place, range: &Range<u64>) -> Vec<u8> {
        let mut model = self.model.borrow_mut();
        model.region(at).now[range.start as usize..range.end as usize].to_vec()
    }

    /// Returns the bytes of a message.
    pub(crate) fn gather(&self, local: &Local) -> Vec<u8> {
        local.pieces.iter().flat_map(|piece| self.bytes(self.own(), piece)).collect()
    }

    /// Records bytes to send: fetched later, or inline and free at once.
    pub(crate) fn note_source(&mut self, id: u64, source: &Range<u64>, local: &Local, tools: &mut Tools) {
        if local.inline.is_some() {
            let own = self.own();
            self.scribble(own, source.clone(), tools);
        } else {
            self.note(self.own(), id, source, Stag(0), Effect::Source);
        }
    }

    /// Records bytes expected here: these, or unknown ones.
    pub(crate) fn note_sink(&self, at: Place, id: u64, local: &Local, payload: Option<&[u8]>) {
        self.model.borrow_mut().note_sink(at, id, &local.pieces, payload);
    }

    pub(crate) fn note(&self, at: Place, id: u64, range: &Range<u64>, stag: Stag, what: Effect) {
        if !range.is_empty() {
            self.model.borrow_mut().touch(at, Touch { id, range: range.clone(), stag, what });
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.model.borrow_mut().next_id()
    }

    fn write(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max);
        let Some(remote) = self.remote() else { return Ok(false) };
        let to = self.draw_range(remote.place, self.window(), (len, 1), |_| false);
        let (Some(source), Some(to)) = (self.draw_source(len), to) else { return Ok(false) };
        let icmp = self.plan.verbs && self.credit() && self.random.below(4) == 0;
        let id = self.next_id();
        // RFC 5041 §5.2: an empty message's STag and offset are not checked.
        let rkey = if len == 0 { Stag(self.random.next() as u32) } else { remote.stag };
        let local = self.local(&source, true);
        let payload = self.gather(&local);
        let mut posted = Posted::new(id, WcOpcode::RdmaWrite, local.len());
        (posted.remote, posted.source) = (Some(remote.place), Some(source.clone()));
        let (remote_addr, imm_data) = (remote.to(to.start), self.random.next().to_be_bytes());
        let solicited = icmp && self.random.below(2) == 0;
        let op = if icmp {
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data }
        } else {
            SendOp::RdmaWrite { remote_addr, rkey }
        };
        let taken = self.post(tools, posted, (op, solicited), &local)?;
        if taken {
            let mut model = self.model.borrow_mut();
            model.region(remote.place).then[to.start as usize..to.end as usize].copy_from_slice(&payload);
            drop(model);
            let what = Effect::Placed { payload: Some(payload), placed: 0, skip: 0, ends: true };
            self.note(remote.place, id, &to, rkey, what);
            self.note_source(id, &source, &local, tools);
            if icmp {
                // The Write itself is among the bytes that must be placed.
                let id = self.next_id();
                let message = Message { id, len: 8, solicited, invalidate: None, immediate: Some(imm_data) };
                self.claim(message, Vec::new());
            }
        }
        Ok(taken)
    }

    /// Posts a signaled empty Write, so that earlier work is known to be done.
    fn write_nothing(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let posted = Posted { signaled: true, ..Posted::new(self.next_id(), WcOpcode::RdmaWrite, 0) };
        let op = SendOp::RdmaWrite { remote_addr: self.random.next(), rkey: Stag(self.random.next() as u32) };
        self.post(tools, posted, (op, false), &Local::default())
    }

    fn fetch(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max);
        let Some(remote) = self.remote() else { return Ok(false) };
        let from = self.draw_range(remote.place, self.window(), (len, 1), |_| true);
        let (Some(sink), Some(from)) = (self.draw_sink(len), from) else { return Ok(false) };
        let id = self.next_id();
        // RFC 5040 §5.2.1: the source of an empty Read "MUST NOT" be validated.
        let rkey = if len == 0 { Stag(self.random.next() as u32) } else { remote.stag };
        let local = self.local(&sink, false);
        let mut posted = Posted::new(id, WcOpcode::RdmaRead, local.len());
        posted.remote = Some(remote.place);
        let remote_addr = remote.to(from.start);
        let mut op = SendOp::RdmaRead { remote_addr, rkey };
        if self.plan.verbs && local.pieces.len() == 1 && len > 0 && self.random.below(2) == 0 {
            posted.region = Some(self.register(&sink, tools)?);
            op = SendOp::RdmaReadInvalidate { remote_addr, rkey };
        }
        let region = posted.region;
        let taken = self.post(tools, posted, (op, false), &local)?;
        if taken {
            let mut model = self.model.borrow_mut();
            let range = from.start as usize..from.end as usize;
            let payload = model.region(remote.place).then[range].to_vec();
            drop(model);
            self.note(remote.place, id, &from, rkey, Effect::Fetched);
            self.note_sink(self.own(), id, &local, Some(&payload));
        } else if let Some(region) = region {
            self.deregister(&region, tools)?;
        }
        Ok(taken)
    }

    /// Posts an atomic operation in the peer's window.
    fn atomic(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let Some(remote) = self.remote() else { return Ok(false) };
        let may = |what: &Effect| matches!(what, Effect::Placed { .. } | Effect::Word { .. });
        let word = self.draw_range(remote.place, self.window(), (8, 8), may);
        let (Some(sink), Some(word)) = (self.draw_sink(8), word) else { return Ok(false) };
        let range = word.start as usize..word.end as usize;
        let mut model = self.model.borrow_mut();
        let then = model.region(remote.place).then[range.clone()].try_into().map(u64::from_ne_bytes);
        drop(model);
        let original = then.map_err(|_| "not a word")?;
        let op = self.draw_op(original);
        let opcode = match op {
            AtomicOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            AtomicOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        };
        let id = self.next_id();
        let (local, place, rkey) = (self.local(&sink, false), remote.place, remote.stag);
        let posted = Posted { remote: Some(place), ..Posted::new(id, opcode, 8) };
        let work = SendOp::Atomic { remote_addr: remote.to(word.start), rkey, op };
        let taken = self.post(tools, posted, (work, false), &local)?;
        if taken {
            let value = changed(op, original);
            let mut model = self.model.borrow_mut();
            model.region(place).then[range].copy_from_slice(&value.to_ne_bytes());
            drop(model);
            let result = self.own();
            self.note(place, id, &word, rkey, Effect::Word { op, original: Some(original), result });
            self.note_sink(result, id, &local, None);
        }
        Ok(taken)
    }

    /// Draws an operation; a comparison succeeds in half of the cases.
    fn draw_op(&mut self, original: u64) -> AtomicOp {
        let random = &mut self.random;
        let mask = |random: &mut Random| [0, u64::MAX, random.next()][random.index(3)];
        match random.below(2) {
            0 => AtomicOp::FetchAdd { add: random.next(), mask: mask(random) },
            _ => AtomicOp::CompareSwap {
                compare: if random.below(2) == 0 { original } else { random.next() },
                compare_mask: mask(random),
                swap: random.next(),
                swap_mask: mask(random),
            },
        }
    }

    /// Increments this connection's sixteen bits of the word that all connections share.
    fn count_up(&mut self, tools: &mut Tools, shared: Stag) -> Result<bool, String> {
        let Some(sink) = self.draw_sink(8) else { return Ok(false) };
        let region = self.model.borrow().offers.len() as u32 * 2;
        let place = Place { host: 1 - self.host, region };
        let op = AtomicOp::FetchAdd { add: 1 << (16 * (self.connection % 4)), mask: 0 };
        let id = self.next_id();
        let local = self.local(&sink, false);
        let posted = Posted { remote: Some(place), ..Posted::new(id, WcOpcode::FetchAdd, 8) };
        let work = SendOp::Atomic { remote_addr: 0, rkey: shared, op };
        let taken = self.post(tools, posted, (work, false), &local)?;
        if taken {
            let result = self.own();
            self.note(place, id, &(0..8), shared, Effect::Word { op, original: None, result });
            self.note_sink(result, id, &local, None);
        }
        Ok(taken)
    }

    /// Assigns the peer's oldest unused buffer to a message.
    fn claim(&self, message: Message, payload: Vec<u8>) {
        let to = (self.connection, 1 - self.side);
        let mut model = self.model.borrow_mut();
        if model.offers[to.0][to.1].share.is_some() {
            return model.promise(1 - self.host, to, message, payload);
        }
        let buffers = &mut model.offers[to.0][to.1].buffers;
        if let Some(buffer) = buffers.iter_mut().find(|buffer| buffer.message.is_none()) {
            let (place, id) = (buffer.place, buffer.id);
            buffer.message = Some(message);
            model.fill(place, id, &payload);
        }
    }

    /// Returns true if the peer has a buffer for another message.
    pub(crate) fn credit(&self) -> bool {
        self.model.borrow().has_buffer(1 - self.host, (self.connection, 1 - self.side))
    }

    pub(crate) fn immediate(&mut self, tools: &mut Tools) -> Result<bool, String> {
        if !self.credit() {
            return Ok(false);
        }
        let (id, imm_data) = (self.next_id(), self.random.next().to_be_bytes());
        let solicited = self.random.below(2) == 0;
        let posted = Posted { immediate: true, ..Posted::new(id, WcOpcode::Send, 0) };
        let op = SendOp::Immediate { imm_data };
        let taken = self.post(tools, posted, (op, solicited), &Local::default())?;
        if taken {
            let message = Message { id, len: 8, solicited, invalidate: None, immediate: Some(imm_data) };
            self.claim(message, Vec::new());
        }
        Ok(taken)
    }

    fn send(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max.min(self.plan.slot_len));
        let invalidate = if self.random.below(3) == 0 { self.draw_ticket() } else { None };
        self.send_as(tools, len, invalidate)
    }

    /// Draws a ticket of the peer that no unfinished Read or atomic operation uses.
    fn draw_ticket(&mut self) -> Option<Stag> {
        let index =
            self.random.index(self.model.borrow().offers[self.connection][1 - self.side].tickets.len());
        let Ticket { stag, .. } =
            *self.model.borrow().offers[self.connection][1 - self.side].tickets.get(index)?;
        let is_used = |what: &Effect| matches!(what, Effect::Fetched | Effect::Word { .. });
        (!self.model.borrow_mut().is_used(self.open(1 - self.host), stag, is_used)).then_some(stag)
    }

    pub(crate) fn send_as(
        &mut self,
        tools: &mut Tools,
        len: u64,
        invalidate: Option<Stag>,
    ) -> Result<bool, String> {
        let Some(source) = self.draw_source(len).filter(|_| self.credit()) else { return Ok(false) };
        let id = self.next_id();
        let solicited = self.random.below(2) == 0;
        let local = self.local(&source, true);
        let mut payload = self.gather(&local);
        let posted = Posted { source: Some(source.clone()), ..Posted::new(id, WcOpcode::Send, local.len()) };
        let op = SendOp::Send { invalidate };
        let taken = self.post(tools, posted, (op, solicited), &local)?;
        if taken {
            // Of a message that is too long, the first segments are placed before the error is detected.
            payload.truncate(self.peer_slot_len());
            let message = Message { id, len: local.len(), solicited, invalidate, immediate: None };
            self.claim(message, payload);
            self.note_source(id, &source, &local, tools);
            let mut model = self.model.borrow_mut();
            model.offers[self.connection][1 - self.side]
                .tickets
                .retain(|ticket| Some(ticket.stag) != invalidate);
        }
        Ok(taken)
    }

    /// Returns the length of the peer's buffers in bytes.
    pub(crate) fn peer_slot_len(&self) -> usize {
        self.model.borrow().offers[self.connection][1 - self.side].slot_len
    }
}

/// Splits a range into at most `most` parts, in any order.
pub(crate) fn pieces(range: &Range<u64>, most: usize, random: &mut Random) -> Vec<Range<u64>> {
    let most = 1 + random.index(most);
    let mut cuts: Vec<u64> = (1..most).map(|_| random.between(range.start, range.end)).collect();
    cuts.extend([range.start, range.end]);
    cuts.sort_unstable();
    let mut pieces: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
    for at in (1..pieces.len()).rev() {
        pieces.swap(at, random.index(at + 1));
    }
    pieces
}

/// Returns the elements of a list, with the key of a region that begins where the model's does.
pub(crate) fn sges(local: &Local, region: &MemoryRegion) -> Vec<Sge> {
    let sge = |piece: &Range<u64>| Sge {
        addr: region.addr + piece.start,
        length: (piece.end - piece.start) as u32,
        lkey: region.lkey,
    };
    local.pieces.iter().map(sge).collect()
}
