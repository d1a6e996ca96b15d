//! Which work an owner posts, and what it announces to the model.
//!
//! Ranges are drawn so that what a request finds and leaves does not depend on timing: a Write takes octets that no
//! other unfinished request is about; an atomic operation keeps clear of octets that a Read is still to fetch; a Read
//! takes any, since it finds what was posted before it on its stream (RFC 5040 §5.5, RFC 7306 §7).

use core::ops::Range;

use rdma::{AtomicOp, CompletionOp, Endpoint, LocalSlice, PostError, RegionId, Stag};
use tcp_stack::testutil::{HeapBuf, Random};
use tcp_stack::{Duration, Instant, Segment};

use crate::model::{Message, Place, Touch, What, changed};
use crate::scenario::{Fate, Sin};
use crate::stream::{GUARD, Posted, Stream, Tools, work_area};

/// How often a range is drawn before the owner waits instead.
const DRAWS: u32 = 6;

/// Where a request finds the peer's window.
#[derive(Clone, Copy)]
struct Remote {
    place: Place,
    stag: Stag,
    base_to: u64,
}

impl Remote {
    fn to(&self, start: u64) -> u64 {
        self.base_to.wrapping_add(start.wrapping_sub(GUARD))
    }
}

impl Stream {
    /// Posts what is due. Returns whether anything was.
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
            let taken = match self.fate {
                Fate::Sins { side, after, sin } if side == self.side && self.outcome.work[0] >= after => {
                    self.sin(sin, tools)?
                }
                _ => self.post_one(tools, shared)?,
            };
            if taken {
                any = true;
                self.blocked = 0;
                let think = self.random.between(0, self.plan.think.as_nanos().try_into().unwrap_or(0));
                self.post_at = Some(now + Duration::from_nanos(think));
            } else {
                // No range is free, or the peer has no buffer posted: a while later, then.
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

    /// Work requests to post; who is to post a sinful one goes on until it has.
    pub(crate) fn quota(&self) -> u32 {
        match self.fate {
            Fate::Sins { side, .. } if side == self.side => u32::MAX,
            _ => self.plan.quota,
        }
    }

    fn post_one(&mut self, tools: &mut Tools, shared: Stag) -> Result<bool, String> {
        let reads = self.ord > 0;
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

    /// A length: often short, sometimes none, sometimes the longest.
    fn draw_len(&mut self, max: u32) -> u64 {
        let max = u64::from(max);
        match self.random.below(8) {
            0 => 0,
            1 => max,
            2 | 3 => self.random.between(0, max.min(100)),
            _ => self.random.between(0, max),
        }
    }

    /// A range in `area` of a region, a multiple of `step` from its start, free for whom `may` lets in.
    fn draw_range(
        &mut self,
        at: Place,
        area: Range<u64>,
        (len, step): (u64, u64),
        may: fn(&What) -> bool,
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

    /// Octets of the own region to send from.
    fn draw_source(&mut self, len: u64) -> Option<Range<u64>> {
        let area = 0..work_area(&self.plan);
        self.draw_range(self.own(), area, (len, 1), |what| matches!(what, What::Source))
    }

    /// Octets of the own region for an answer.
    fn draw_sink(&mut self, len: u64) -> Option<Range<u64>> {
        self.draw_range(self.own(), 0..work_area(&self.plan), (len, 1), |_| false)
    }

    /// The peer's window, by one of its STags.
    fn remote(&mut self) -> Option<Remote> {
        let peer = 1 - self.side;
        let model = self.model.borrow();
        let offer = &model.offers[self.dial][peer];
        let ticket = offer.tickets.get(self.random.index(offer.tickets.len() * 2)).copied();
        let stag = ticket.or(offer.stag)?;
        Some(Remote { place: self.open(1 - self.host), stag, base_to: self.base_to[peer] })
    }

    fn window(&self) -> Range<u64> {
        GUARD..GUARD + u64::from(self.window)
    }

    /// Hands a request to the endpoint and notes it. `false`: the stream takes none any more.
    fn post(
        &mut self,
        tools: &mut Tools,
        posted: Posted,
        work: impl FnOnce(&mut Endpoint<Segment<HeapBuf>>) -> Result<(), PostError>,
    ) -> Result<bool, String> {
        match self.act(tools, |endpoint, _| work(endpoint))? {
            Ok(()) => {
                self.posted.push_back(posted);
                self.outcome.work[0] += 1;
                Ok(true)
            }
            Err(PostError::NotReady) => {
                self.stopped = true;
                Ok(false)
            }
            Err(error) => Err(format!("{posted:?} is refused: {error}")),
        }
    }

    fn octets(&self, at: Place, range: &Range<u64>) -> Vec<u8> {
        let mut model = self.model.borrow_mut();
        model.region(at).now[range.start as usize..range.end as usize].to_vec()
    }

    fn note(&self, at: Place, id: u64, range: &Range<u64>, stag: Stag, what: What) {
        if !range.is_empty() {
            self.model.borrow_mut().touch(at, Touch { id, range: range.clone(), stag, what });
        }
    }

    fn next_id(&self) -> u64 {
        self.model.borrow_mut().next_id()
    }

    fn write(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max);
        let Some(remote) = self.remote() else { return Ok(false) };
        let to = self.draw_range(remote.place, self.window(), (len, 1), |_| false);
        let (Some(source), Some(to)) = (self.draw_source(len), to) else { return Ok(false) };
        let id = self.next_id();
        // RFC 5041 §5.2: of a message without octets neither STag nor offset is looked at.
        let stag = if len == 0 { Stag(self.random.next() as u32) } else { remote.stag };
        let slice = self.slice(&source);
        let posted = Posted {
            id,
            op: CompletionOp::Write,
            len: slice.len,
            remote: Some(remote.place),
            source: Some(source.clone()),
        };
        let taken =
            self.post(tools, posted, |endpoint| endpoint.post_write(id, slice, stag, remote.to(to.start)))?;
        if taken {
            let payload = self.octets(self.own(), &source);
            let mut model = self.model.borrow_mut();
            model.region(remote.place).then[to.start as usize..to.end as usize].copy_from_slice(&payload);
            drop(model);
            let what = What::Placed { payload: Some(payload), placed: 0, ends: true };
            self.note(remote.place, id, &to, stag, what);
            self.note(self.own(), id, &source, Stag(0), What::Source);
        }
        Ok(taken)
    }

    fn fetch(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max);
        let Some(remote) = self.remote() else { return Ok(false) };
        let from = self.draw_range(remote.place, self.window(), (len, 1), |_| true);
        let (Some(sink), Some(from)) = (self.draw_sink(len), from) else { return Ok(false) };
        let id = self.next_id();
        // RFC 5040 §5.2.1: of a Read of nothing the source "MUST NOT" be validated.
        let stag = if len == 0 { Stag(self.random.next() as u32) } else { remote.stag };
        let slice = self.slice(&sink);
        let posted =
            Posted { id, op: CompletionOp::Read, len: slice.len, remote: Some(remote.place), source: None };
        let taken =
            self.post(tools, posted, |endpoint| endpoint.post_read(id, slice, stag, remote.to(from.start)))?;
        if taken {
            let mut model = self.model.borrow_mut();
            let range = from.start as usize..from.end as usize;
            let payload = model.region(remote.place).then[range].to_vec();
            drop(model);
            self.note(remote.place, id, &from, stag, What::Fetched);
            let what = What::Placed { payload: Some(payload), placed: 0, ends: false };
            self.note(self.own(), id, &sink, Stag(0), what);
        }
        Ok(taken)
    }

    /// An atomic operation in the peer's window.
    fn atomic(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let Some(remote) = self.remote() else { return Ok(false) };
        let may = |what: &What| matches!(what, What::Placed { .. } | What::Word { .. });
        let word = self.draw_range(remote.place, self.window(), (8, 8), may);
        let (Some(sink), Some(word)) = (self.draw_sink(8), word) else { return Ok(false) };
        let range = word.start as usize..word.end as usize;
        let mut model = self.model.borrow_mut();
        let then = model.region(remote.place).then[range.clone()].try_into().map(u64::from_ne_bytes);
        drop(model);
        let original = then.map_err(|_| "not a word")?;
        let op = self.draw_op(original);
        let id = self.next_id();
        let slice = self.slice(&sink);
        let (stag, to) = (remote.stag, remote.to(word.start));
        let place = remote.place;
        let posted = Posted { id, op: CompletionOp::Atomic, len: 8, remote: Some(place), source: None };
        let taken = self.post(tools, posted, |endpoint| endpoint.post_atomic(id, slice, stag, to, op))?;
        if taken {
            let value = changed(op, original);
            let mut model = self.model.borrow_mut();
            model.region(place).then[range].copy_from_slice(&value.to_ne_bytes());
            drop(model);
            let result = self.own();
            self.note(place, id, &word, stag, What::Word { op, original: Some(original), result });
            let what = What::Placed { payload: None, placed: 0, ends: false };
            self.note(result, id, &sink, Stag(0), what);
        }
        Ok(taken)
    }

    /// An operation; a comparison meets in half of the cases.
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

    /// Counts in the word that all connections share, in the sixteen bits that are this connection's.
    fn count_up(&mut self, tools: &mut Tools, shared: Stag) -> Result<bool, String> {
        let Some(sink) = self.draw_sink(8) else { return Ok(false) };
        let region = self.model.borrow().regions[0].len() as u32 - 1;
        let place = Place { host: 1 - self.host, region };
        let op = AtomicOp::FetchAdd { add: 1 << (16 * (self.dial % 4)), mask: 0 };
        let id = self.next_id();
        let slice = self.slice(&sink);
        let posted = Posted { id, op: CompletionOp::Atomic, len: 8, remote: Some(place), source: None };
        let taken = self.post(tools, posted, |endpoint| endpoint.post_atomic(id, slice, shared, 0, op))?;
        if taken {
            let result = self.own();
            self.note(place, id, &(0..8), shared, What::Word { op, original: None, result });
            let what = What::Placed { payload: None, placed: 0, ends: false };
            self.note(result, id, &sink, Stag(0), what);
        }
        Ok(taken)
    }

    /// Gives the peer's oldest unused buffer to a message; `false` if there is none.
    fn claim(&self, message: Message, payload: Option<Vec<u8>>) -> bool {
        let peer = 1 - self.side;
        let at = Place { host: 1 - self.host, ..self.own() };
        let mut model = self.model.borrow_mut();
        let buffers = &mut model.offers[self.dial][peer].buffers;
        let Some(buffer) = buffers.iter_mut().find(|buffer| buffer.message.is_none()) else { return false };
        buffer.message = Some(message);
        let id = buffer.id;
        let mut touches = model.region(at).touches.iter_mut();
        if let Some(touch) = touches.find(|touch| touch.id == id)
            && let What::Placed { payload: due, .. } = &mut touch.what
        {
            *due = payload;
        }
        true
    }

    /// Octets of the peer's oldest unused buffer.
    fn credit(&self) -> bool {
        let model = self.model.borrow();
        model.offers[self.dial][1 - self.side].buffers.iter().any(|buffer| buffer.message.is_none())
    }

    fn immediate(&mut self, tools: &mut Tools) -> Result<bool, String> {
        if !self.credit() {
            return Ok(false);
        }
        let (id, data) = (self.next_id(), self.random.next().to_be_bytes());
        let solicited = self.random.below(2) == 0;
        let posted = Posted { id, op: CompletionOp::Immediate, len: 0, remote: None, source: None };
        let taken = self.post(tools, posted, |endpoint| endpoint.post_immediate(id, data, solicited))?;
        if taken {
            let message = Message { id, len: 8, solicited, invalidate: None, immediate: Some(data) };
            self.claim(message, None);
        }
        Ok(taken)
    }

    fn send(&mut self, tools: &mut Tools) -> Result<bool, String> {
        let len = self.draw_len(self.plan.len_max.min(self.plan.slot_len));
        let invalidate = if self.random.below(3) == 0 { self.draw_ticket() } else { None };
        self.send_as(tools, len, invalidate)
    }

    /// A ticket of the peer's that no unfinished Read or atomic operation is by.
    fn draw_ticket(&mut self) -> Option<Stag> {
        let open = self.open(1 - self.host);
        let mut model = self.model.borrow_mut();
        let tickets = &mut model.offers[self.dial][1 - self.side].tickets;
        let index = self.random.index(tickets.len());
        let stag = *tickets.get(index)?;
        let is_used = model
            .region(open)
            .touches
            .iter()
            .any(|touch| touch.stag == stag && matches!(touch.what, What::Fetched | What::Word { .. }));
        (!is_used).then_some(stag)
    }

    fn send_as(&mut self, tools: &mut Tools, len: u64, invalidate: Option<Stag>) -> Result<bool, String> {
        let Some(source) = self.draw_source(len).filter(|_| self.credit()) else { return Ok(false) };
        let id = self.next_id();
        let solicited = self.random.below(2) == 0;
        let slice = self.slice(&source);
        let posted =
            Posted { id, op: CompletionOp::Send, len: slice.len, remote: None, source: Some(source.clone()) };
        let taken =
            self.post(tools, posted, |endpoint| endpoint.post_send(id, slice, solicited, invalidate))?;
        if taken {
            let mut payload = self.octets(self.own(), &source);
            // Of one that is too long the first segments are placed before that is noticed.
            payload.truncate(self.plan_of_peer_slot());
            let message = Message { id, len: slice.len, solicited, invalidate, immediate: None };
            self.claim(message, Some(payload));
            self.note(self.own(), id, &source, Stag(0), What::Source);
            let mut model = self.model.borrow_mut();
            model.offers[self.dial][1 - self.side].tickets.retain(|stag| Some(*stag) != invalidate);
        }
        Ok(taken)
    }

    /// Octets of the peer's buffers: both sides have slots of one length.
    fn plan_of_peer_slot(&self) -> usize {
        self.plan.slot_len as usize
    }

    /// Posts what the peer must refuse, as the last thing. `false`: not possible now.
    pub(crate) fn sin(&mut self, sin: Sin, tools: &mut Tools) -> Result<bool, String> {
        let peer = 1 - self.side;
        let (narrow, base_to) = (self.model.borrow().offers[self.dial][peer].narrow, self.base_to[peer]);
        let Some(((read_only, write_only), remote)) = narrow.zip(self.remote()) else { return Ok(false) };
        let beyond = base_to + u64::from(self.window);
        let bad = Stag(0xffff_ff00);
        if matches!(sin, Sin::SendTooLong | Sin::SendNoBuffer | Sin::InvalidateNoStag) {
            return self.sinful_send(sin, bad, tools);
        }
        let source = self.draw_source(16);
        let Some(range) = source else { return Ok(false) };
        let id = self.next_id();
        let slice = self.slice(&range);
        let word = LocalSlice { len: 8, ..slice };
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let (kind, len) = match sin {
            Sin::ReadNoStag | Sin::ReadBeyond | Sin::ReadNoRight => (CompletionOp::Read, 16),
            Sin::AtomicUnaligned | Sin::AtomicNoRight => (CompletionOp::Atomic, 8),
            _ => (CompletionOp::Write, 16),
        };
        let posted = Posted { id, op: kind, len, remote: None, source: None };
        let taken = self.post(tools, posted, |endpoint| match sin {
            Sin::WriteNoStag => endpoint.post_write(id, slice, bad, base_to),
            Sin::WriteBeyond => endpoint.post_write(id, slice, remote.stag, beyond),
            Sin::WriteNoRight => endpoint.post_write(id, slice, read_only, base_to),
            Sin::WriteWraps => endpoint.post_write(id, slice, remote.stag, u64::MAX - 3),
            Sin::ReadNoStag => endpoint.post_read(id, slice, bad, base_to),
            Sin::ReadBeyond => endpoint.post_read(id, slice, remote.stag, beyond - 15),
            Sin::ReadNoRight => endpoint.post_read(id, slice, write_only, base_to),
            Sin::AtomicUnaligned => endpoint.post_atomic(id, word, remote.stag, base_to + 4, op),
            _ => endpoint.post_atomic(id, word, read_only, base_to, op),
        })?;
        if taken {
            self.note(self.own(), id, &range, Stag(0), What::Source);
        }
        self.stopped = true;
        Ok(taken)
    }

    fn sinful_send(&mut self, sin: Sin, bad: Stag, tools: &mut Tools) -> Result<bool, String> {
        let slot = u64::from(self.plan.slot_len);
        let too_long = slot + 1 + self.random.below(2_000);
        let taken = match sin {
            Sin::SendTooLong => self.send_as(tools, too_long, None)?,
            Sin::InvalidateNoStag => self.send_as(tools, slot.min(500), Some(bad))?,
            _ => {
                if self.credit() {
                    // The peer posts no more; what it has posted is used up first.
                    return self.immediate(tools);
                }
                self.stopped = true;
                let id = self.next_id();
                let posted = Posted { id, op: CompletionOp::Send, len: 0, remote: None, source: None };
                self.post(tools, posted, |endpoint| {
                    let nothing = LocalSlice { region: RegionId(0), offset: 0, len: 0 };
                    endpoint.post_send(id, nothing, false, None)
                })?
            }
        };
        self.stopped |= taken;
        Ok(taken)
    }
}
