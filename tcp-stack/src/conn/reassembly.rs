//! Reassembly: segments received and not yet delivered to the application. *Held* segments are out-of-order, *ready*
//! ones are in order. `conn/receive.rs` and the stack call it through `rcv.held`.
//!
//! Out-of-order segments are held in the frames that they came in, as *runs*: a run is a contiguous range of the
//! sequence space; runs are sorted and neither overlap nor adjoin. A segment that continues the last run, the usual
//! case after a loss, costs the same however much is held. In-order segments wait in a second list until the
//! application polls them.
//!
//! The application may place the payload of an out-of-order segment itself ([`Reassembly::offer`]). Such a segment
//! keeps its node, because it is received and acknowledged, but releases its frame.
//!
//! ```text
//!   ready ──▶ [seg][seg][seg]            │ rcv_nxt
//!   runs  ──▶ {[seg][seg]} ──▶ {[seg]} ──▶ {[seg][seg][seg]}
//! ```

use crate::buf::Buf;
use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;
use crate::wire::SackRange;

#[cfg(any(test, feature = "testutil"))]
mod audit;
mod node;
mod short;

pub(crate) use node::{Payload, ReadyPayload, RxNode};

use node::insert;
use short::{bytes_of, can_merge, is_short, merge, size_of};

/// The reason why an out-of-order segment was not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// All of it is held already, in the run returned.
    Duplicate(SackRange),
    /// The connection's limit or the pool's is reached.
    Full,
}

/// The result of holding an out-of-order segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// The run that contains the segment now.
    pub(crate) run: SackRange,
    /// The first part of the segment that was held already (RFC 2883 §4.2).
    pub(crate) duplicate: Option<SackRange>,
    /// True if it was copied into the buffer of another segment.
    pub(crate) copied: bool,
}

/// The limits of out-of-order data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldLimits {
    pub(crate) bytes: u32,
    pub(crate) segments: u32,
    /// Pool nodes that out-of-order segments leave for in-order ones.
    pub(crate) reserve: u32,
    /// Short segments are appended to the segment before them if the two together have at most this many bytes.
    pub(crate) merged: u16,
    /// True if segments are offered to the application.
    pub(crate) offer: bool,
    /// True if one more packet buffer may be retained.
    pub(crate) retains: bool,
}

/// The received segments of one connection. Without segments it owns no memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Reassembly {
    // Fields that receiving in order uses.
    pub(super) ready_head: u32,
    pub(super) ready_tail: u32,
    pub(super) first_run: u32,
    // Fields that only out-of-order segments use.
    last_run: u32,
    held_bytes: u32,
    held_segments: u16,
    /// Of these, segments whose payload the application has not taken.
    held_payloads: u16,
    /// The segments to be offered, latest first.
    first_unoffered: u32,
}

impl Reassembly {
    pub(crate) const fn new() -> Self {
        Self {
            first_run: NIL,
            last_run: NIL,
            ready_head: NIL,
            ready_tail: NIL,
            held_bytes: 0,
            held_segments: 0,
            held_payloads: 0,
            first_unoffered: NIL,
        }
    }

    /// True if no out-of-order segment is held.
    pub(crate) fn has_no_gap(&self) -> bool {
        self.first_run == NIL
    }

    /// True if an in-order segment waits for the application.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_head != NIL
    }

    /// Returns the true size of the held buffers, bytes.
    pub(crate) fn held_bytes(&self) -> u32 {
        self.held_bytes
    }

    /// Returns the number of held segments.
    pub(crate) fn held_segments(&self) -> u32 {
        self.held_segments.into()
    }

    /// Returns the number of held payloads: segments without those that the application has taken. Each counts as a
    /// retained packet buffer; short ones share buffers.
    pub(crate) fn payloads(&self) -> u32 {
        self.held_payloads.into()
    }

    /// Returns the sequence number of the first segment that waits for the application.
    pub(crate) fn first_ready<B>(&self, pool: &Pool<RxNode<B>>) -> Option<SeqNum> {
        pool.get(self.ready_head).map(|node| node.seq)
    }

    /// Iterates over the runs, lowest first.
    pub(crate) fn runs<'a, B>(&self, pool: &'a Pool<RxNode<B>>) -> impl Iterator<Item = SackRange> + 'a {
        let mut index = self.first_run;
        core::iter::from_fn(move || {
            let node = pool.get(index)?;
            index = node.next_run;
            Some(SackRange { start: node.seq, end: node.run_end })
        })
    }

    /// Returns the lowest run.
    pub(crate) fn first_run<B>(&self, pool: &Pool<RxNode<B>>) -> Option<SackRange> {
        pool.get(self.first_run).map(|node| SackRange { start: node.seq, end: node.run_end })
    }

    /// Returns the end of the highest run.
    pub(crate) fn held_end<B>(&self, pool: &Pool<RxNode<B>>) -> Option<SeqNum> {
        pool.get(self.last_run).map(|node| node.run_end)
    }

    /// Queues an in-order segment for the application. Returns `false`, and drops it, if the pool is full.
    #[inline(always)]
    pub(crate) fn push_ready<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>, payload: Payload<B>) -> bool {
        let Some(index) = insert(pool, payload) else { return false };
        self.append_ready(pool, index, index);
        true
    }

    #[inline]
    fn append_ready<B>(&mut self, pool: &mut Pool<RxNode<B>>, head: u32, tail: u32) {
        match pool.get_mut(self.ready_tail) {
            Some(last) => last.next = head,
            None => self.ready_head = head,
        }
        self.ready_tail = tail;
    }

    /// True if there are segments to be offered to the application.
    #[inline]
    pub(crate) fn has_unoffered(&self) -> bool {
        !self.has_no_gap() && self.first_unoffered != NIL
    }

    /// Takes the list of segments to be offered; returns its first. The list is valid until a segment is taken or
    /// freed.
    pub(crate) fn take_unoffered(&mut self) -> u32 {
        core::mem::replace(&mut self.first_unoffered, NIL)
    }

    /// Offers each segment of a list from [`take_unoffered`](Self::take_unoffered) that is still out of order, in
    /// the order of arrival: `takes` gets its sequence number and its bytes. If it returns true, the segment's
    /// frame is released.
    pub(crate) fn offer<B: Buf>(
        &mut self,
        pool: &mut Pool<RxNode<B>>,
        first_unoffered: u32,
        rcv_nxt: SeqNum,
        takes: &mut dyn FnMut(SeqNum, &[u8]) -> bool,
    ) {
        let (mut index, mut first) = (first_unoffered, NIL);
        while let Some(node) = pool.get_mut(index).filter(|node| node.unoffered) {
            node.unoffered = false;
            (first, index) = (index, core::mem::replace(&mut node.next_unoffered, first));
        }
        while let Some(node) = pool.get(first) {
            let (index, seq) = (first, node.seq);
            first = node.next_unoffered;
            if seq.after(rcv_nxt) && bytes_of(pool, index).is_some_and(|bytes| takes(seq, bytes)) {
                self.take_buffer(pool, index);
            }
        }
    }

    /// Removes and returns the next in-order segment. If it was in the list to be offered, the whole list is
    /// dropped.
    #[inline]
    pub(crate) fn pop_ready<B>(&mut self, pool: &mut Pool<RxNode<B>>) -> Option<ReadyPayload<B>> {
        let node = pool.remove(self.ready_head)?;
        self.ready_head = node.next;
        if node.next == NIL {
            self.ready_tail = NIL;
        }
        if node.unoffered {
            self.first_unoffered = NIL;
        }
        let range = node.at..node.at.saturating_add(node.len);
        Some(ReadyPayload { seq: node.seq, range, buf: node.buf })
    }

    /// Moves the runs that continue `rcv_nxt` to the ready list; returns the new RCV.NXT.
    pub(crate) fn release<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>, rcv_nxt: SeqNum) -> SeqNum {
        let mut nxt = rcv_nxt;
        while let Some(run) = pool.get(self.first_run) {
            if run.seq.after(nxt) {
                break;
            }
            let mut index = self.first_run;
            let (end, next_run) = (run.run_end, run.next_run);
            self.unlink_first_run(pool, next_run);
            while let Some(next) = pool.get(index).map(|node| node.next) {
                self.held_segments = self.held_segments.saturating_sub(1);
                let buf = self.take_buffer(pool, index);
                if let Some(node) = pool.get_mut(index).filter(|node| node.end().after(nxt)) {
                    node.trim_before(nxt);
                    node.buf = buf;
                    node.next = NIL;
                    nxt = node.end();
                    self.append_ready(pool, index, index);
                } else {
                    self.remove(pool, index);
                }
                index = next;
            }
            nxt = nxt.max(end);
        }
        nxt
    }

    /// Holds an out-of-order segment.
    pub(crate) fn hold<B: Buf>(
        &mut self,
        pool: &mut Pool<RxNode<B>>,
        mut payload: Payload<B>,
        limits: HoldLimits,
    ) -> Result<Held, HoldError> {
        let (prev, mut next) = self.neighbors(pool, payload.seq);
        let duplicate = overlap(pool, prev, &payload).or_else(|| overlap(pool, next, &payload));
        if let Some(run) = pool.get(prev) {
            payload.trim_before(run.run_end);
        }
        if payload.len() == 0 {
            let run = pool.get(prev).map(|run| SackRange { start: run.seq, end: run.run_end });
            return Err(HoldError::Duplicate(run.unwrap_or_default()));
        }
        let short = is_short(&payload);
        let merges = short && can_merge(pool, prev, &payload, &limits);
        let packs = short && self.slab_has_room(pool, &payload);
        let size = if packs { 0 } else { size_of(&payload.buf) };
        if !merges && !self.has_room(pool, size, &limits) {
            return Err(HoldError::Full);
        }
        // Frees runs that the new segment covers; a run that it overlaps in part stays, and the segment is trimmed.
        while let Some(run) = pool.get(next) {
            if run.seq.at_or_after(payload.end()) {
                break;
            }
            if run.run_end.after(payload.end()) {
                payload.trim_after(run.seq);
                break;
            }
            next = self.drop_run(pool, prev, next);
        }
        let end = payload.end();
        let merged = merges.then(|| merge(pool, prev, &payload)).flatten();
        let index = match merged {
            Some(tail) => {
                self.join(pool, prev, next);
                tail
            }
            None => {
                let (index, slab) = self.store(pool, payload).ok_or(HoldError::Full)?;
                self.link(pool, index, prev, next);
                self.set_slab(pool, slab);
                index
            }
        };
        if let Some(node) = pool.get_mut(index).filter(|node| limits.offer && !node.unoffered) {
            (node.unoffered, node.next_unoffered) = (true, self.first_unoffered);
            self.first_unoffered = index;
        }
        let run = if pool.get(prev).is_some_and(|run| run.run_end.at_or_after(end)) { prev } else { index };
        let range = pool.get(run).map(|run| SackRange { start: run.seq, end: run.run_end });
        Ok(Held { run: range.unwrap_or_default(), duplicate, copied: merged.is_some() || packs })
    }

    /// True if one more segment may be held, whose buffer pins `size` bytes more.
    fn has_room<B>(&self, pool: &Pool<RxNode<B>>, size: u32, limits: &HoldLimits) -> bool {
        limits.retains
            && self.held_segments() < limits.segments.min(u16::MAX.into())
            && self.held_bytes.saturating_add(size) <= limits.bytes
            && pool.available() > limits.reserve
    }

    /// Returns the last run that begins at or before `seq`, and the run after it.
    fn neighbors<B>(&self, pool: &Pool<RxNode<B>>, seq: SeqNum) -> (u32, u32) {
        if let Some(last) = pool.get(self.last_run)
            && last.seq.at_or_before(seq)
        {
            return (self.last_run, NIL);
        }
        let (mut prev, mut next) = (NIL, self.first_run);
        while let Some(run) = pool.get(next) {
            if run.seq.after(seq) {
                break;
            }
            prev = next;
            next = run.next_run;
        }
        (prev, next)
    }

    /// Makes the new node a run between two others, then joins it with those that it adjoins.
    fn link<B>(&mut self, pool: &mut Pool<RxNode<B>>, index: u32, prev: u32, next: u32) {
        if let Some(node) = pool.get_mut(index) {
            node.next_run = next;
        }
        match pool.get_mut(prev) {
            Some(prev) => prev.next_run = index,
            None => self.set_first_run(pool, index),
        }
        if next == NIL {
            self.last_run = index;
        }
        self.join(pool, index, next);
        self.join(pool, prev, index);
    }

    /// Joins the runs `first` and `second`, which follows it, if they adjoin.
    fn join<B>(&mut self, pool: &mut Pool<RxNode<B>>, first: u32, second: u32) {
        let (Some(a), Some(b)) = (pool.get(first), pool.get(second)) else { return };
        if a.run_end != b.seq {
            return;
        }
        let tail = a.run_tail;
        let (run_end, run_tail, next_run) = (b.run_end, b.run_tail, b.next_run);
        if let Some(tail) = pool.get_mut(tail) {
            tail.next = second;
        }
        if let Some(run) = pool.get_mut(first) {
            (run.run_end, run.run_tail, run.next_run) = (run_end, run_tail, next_run);
        }
        if self.last_run == second {
            self.last_run = first;
        }
    }

    /// Frees the run `index`, which follows `prev`; returns the run after it.
    fn drop_run<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>, prev: u32, index: u32) -> u32 {
        let next_run = pool.get(index).map_or(NIL, |run| run.next_run);
        match pool.get_mut(prev) {
            Some(prev) => prev.next_run = next_run,
            None => self.set_first_run(pool, next_run),
        }
        if self.last_run == index {
            self.last_run = prev;
        }
        let mut index = index;
        while pool.get(index).is_some() {
            self.held_segments = self.held_segments.saturating_sub(1);
            self.take_buffer(pool, index);
            index = self.remove(pool, index).map_or(NIL, |node| node.next);
        }
        next_run
    }

    /// Frees a segment. The list of segments to be offered is dropped: these stay held and are never offered.
    fn remove<B>(&mut self, pool: &mut Pool<RxNode<B>>, index: u32) -> Option<RxNode<B>> {
        self.first_unoffered = NIL;
        pool.remove(index)
    }

    fn unlink_first_run<B>(&mut self, pool: &mut Pool<RxNode<B>>, next_run: u32) {
        if self.last_run == self.first_run {
            self.last_run = NIL;
        }
        self.set_first_run(pool, next_run);
    }

    /// Frees all out-of-order segments.
    pub(crate) fn clear_held<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>) {
        while self.first_run != NIL {
            self.drop_run(pool, NIL, self.first_run);
        }
    }

    /// Frees all segments, those in order included.
    pub(crate) fn clear<B: Buf>(&mut self, pool: &mut Pool<RxNode<B>>) {
        self.clear_held(pool);
        while self.pop_ready(pool).is_some() {}
    }
}

/// Returns the overlap of a payload and the run `index`.
fn overlap<B>(pool: &Pool<RxNode<B>>, index: u32, payload: &Payload<B>) -> Option<SackRange> {
    let run = pool.get(index)?;
    let range = SackRange { start: payload.seq.max(run.seq), end: payload.end().min(run.run_end) };
    range.start.before(range.end).then_some(range)
}

#[cfg(test)]
mod tests;
