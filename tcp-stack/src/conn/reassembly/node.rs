//! The nodes in which `reassembly` keeps received segments, and the payloads that it gets and delivers.

use core::ops::Range;

use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;

/// A received segment, or its new part.
#[derive(Debug)]
pub(crate) struct RxNode<B> {
    pub(super) seq: SeqNum,
    pub(super) len: u16,
    /// Offset of the payload in the buffer.
    pub(super) at: u16,
    /// `None` while the payload is in a slab, and once the application has taken it.
    pub(super) buf: Option<B>,
    /// The slab that the payload is in, a node in no run whose `len` is the number of payloads in it; [`NIL`] if the
    /// payload has a buffer of its own.
    pub(super) slab: u32,
    /// Set while the segment is in the list of segments to be offered to the application.
    pub(super) unoffered: bool,
    /// The next segment of that list.
    pub(super) next_unoffered: u32,
    /// The next segment of the run, or of the ready list.
    pub(super) next: u32,
    /// Valid in a run's first segment only: the end of the run, its last segment, and the next run.
    pub(super) run_end: SeqNum,
    pub(super) run_tail: u32,
    pub(super) next_run: u32,
    /// Valid in the first segment of the first run only: the slab that further short segments are copied into.
    pub(super) run_slab: u32,
}

impl<B> RxNode<B> {
    pub(super) fn end(&self) -> SeqNum {
        self.seq + u32::from(self.len)
    }

    pub(super) fn trim_before(&mut self, seq: SeqNum) {
        if self.seq.before(seq) {
            let cut = u16::try_from(seq.distance_from(self.seq)).unwrap_or(u16::MAX).min(self.len);
            self.at = self.at.saturating_add(cut);
            self.len = self.len.saturating_sub(cut);
            self.seq += u32::from(cut);
        }
    }
}

/// A received payload: a range of a frame's buffer, beginning at a sequence number.
#[derive(Debug)]
pub(crate) struct Payload<B> {
    pub(crate) seq: SeqNum,
    pub(crate) range: Range<u16>,
    pub(crate) buf: B,
}

impl<B> Payload<B> {
    pub(crate) fn len(&self) -> u32 {
        u32::from(self.range.end.saturating_sub(self.range.start))
    }

    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.len()
    }

    /// Removes the bytes before `seq`.
    pub(crate) fn trim_before(&mut self, seq: SeqNum) {
        if self.seq.before(seq) {
            let cut = seq.distance_from(self.seq).min(self.len());
            self.range.start = self.range.start.saturating_add(u16::try_from(cut).unwrap_or(u16::MAX));
            self.seq += cut;
        }
    }

    /// Removes the bytes from `seq` on.
    pub(crate) fn trim_after(&mut self, seq: SeqNum) {
        let keep = if seq.after(self.seq) { seq.distance_from(self.seq) } else { 0 };
        if keep < self.len() {
            let keep = u16::try_from(keep).unwrap_or(u16::MAX);
            self.range.end = self.range.start.saturating_add(keep);
        }
    }
}

/// A segment delivered in order: without a frame if the application has taken its payload already.
#[derive(Debug)]
pub(crate) struct ReadyPayload<B> {
    pub(crate) seq: SeqNum,
    pub(crate) range: Range<u16>,
    pub(crate) buf: Option<B>,
}

/// Returns the node of a new segment; `None`, dropping the payload, if the pool is full.
#[inline(always)]
pub(super) fn insert<B>(pool: &mut Pool<RxNode<B>>, payload: Payload<B>) -> Option<u32> {
    let Payload { seq, range, buf } = payload;
    insert_node(pool, seq, range, Some(buf), NIL)
}

/// Same as [`insert`], for a payload that may be in a slab.
#[inline(always)]
pub(super) fn insert_node<B>(
    pool: &mut Pool<RxNode<B>>,
    seq: SeqNum,
    range: Range<u16>,
    buf: Option<B>,
    slab: u32,
) -> Option<u32> {
    let len = range.end.saturating_sub(range.start);
    let run_tail = pool.next_place();
    pool.insert_with(|| RxNode {
        seq,
        len,
        at: range.start,
        buf,
        slab,
        unoffered: false,
        next_unoffered: NIL,
        next: NIL,
        run_end: seq + u32::from(len),
        run_tail,
        next_run: NIL,
        run_slab: NIL,
    })
}
