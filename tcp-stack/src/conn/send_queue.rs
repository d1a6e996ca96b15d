//! The send queue: segments that the application queued and the peer has not acknowledged.
//!
//! It combines the retransmission queue, the SACK scoreboard (RFC 6675) and the list of transmissions in time order
//! (RFC 8985 §6.1). Its nodes come from the stack's pool and are linked twice: in sequence, and with those of the
//! same state. Each node owns one segment's payload in the application's buffer; a retransmission sends the same
//! memory.
//!
//! ```text
//!   head                                              unsent          tail
//!    │  in sequence                                    │               │
//!    ▼                                                 ▼               ▼
//!   [lost] [sacked] [sacked] [sacked] [lost] [flight] [ready] [ready] [ready]
//!               ╰────────────────╯
//!     flight: in the order of transmission, the oldest first
//!     lost:   in sequence, the next to be sent again first
//!     sacked: the two ends of a run are linked
//! ```
//!
//! The peer's SACK blocks determine how far the scoreboard is searched. A run of SACKed segments is one step, a
//! search starts where the last one ended, and the steps per acknowledgment are bounded, regardless of the window:
//! see [`SendQueue::sack`]. All other work is proportional to the segments whose state changes.

mod acked;
mod scoreboard;
mod sent;

use core::hint::black_box;

use crate::buf::Buf;
use crate::pool::{Link, List, NIL, Pool};
use crate::recovery::RateStamp;
use crate::seq::SeqNum;
use crate::time::Instant;
pub(crate) use sent::SentTrain;

/// The state of a queued segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxState {
    /// Queued and not sent yet.
    Ready,
    /// In flight: sent, and neither acknowledged nor marked lost.
    Flight,
    /// Marked lost: to be sent again.
    Lost,
    /// SACKed: selectively acknowledged (RFC 2018).
    Sacked,
}

/// A queued segment. If a buffer is one pointer, the node fills one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct TxNode<B> {
    pub(crate) seq: SeqNum,
    /// Length of the payload, bytes. The payload ends the buffer; headers of earlier transmissions may precede it.
    pub(crate) len: u16,
    pub(crate) state: TxState,
    /// True for the FIN, which has a node of its own without payload.
    pub(crate) fin: bool,
    /// Number of transmissions, saturating.
    pub(crate) transmissions: u8,
    /// The folded checksum of the payload, if known.
    pub(crate) sum: Option<u16>,
    /// Time of the last transmission.
    pub(crate) sent_at: Instant,
    /// The delivery rate state at that time.
    pub(crate) rate: RateStamp,
    /// The payload's buffer; `None` only for a FIN.
    pub(crate) buf: Option<B>,
    prev: u32,
    next: u32,
    /// The neighbors in the list of segments in flight, or in the list of lost segments. In the first and the last
    /// segment of a SACKed run, `next` is the other end of the run.
    by_state: Link,
}

/// Returns a segment's link in the list of its state.
fn by_state<B>(node: &mut TxNode<B>) -> &mut Link {
    &mut node.by_state
}

impl<B> TxNode<B> {
    /// Returns the sequence space that it occupies, bytes.
    #[inline]
    pub(crate) fn seq_len(&self) -> u32 {
        u32::from(self.len).wrapping_add(u32::from(self.fin))
    }

    /// Returns the sequence number after its last byte.
    #[inline]
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Prefetches the node's cache lines.
    #[inline]
    pub(crate) fn prefetch(&self) {
        black_box((self.sent_at, self.seq, self.prev, self.by_state.next, self.state));
    }

    /// True if it was sent more than once.
    #[inline]
    pub(crate) fn retransmitted(&self) -> bool {
        self.transmissions > 1
    }
}

/// The send queue of one connection. Without segments it owns no memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SendQueue {
    /// Lost segments, by sequence.
    losses: List,
    /// The segment that was marked lost last, if it is still lost.
    lost_hint: u32,
    /// Sequence space ever marked lost, bytes, modulo 2^32.
    lost_ever: u32,
    sacked: u32,
    // The fields from here on are used even while nothing is lost.
    lost: u32,
    sacked_segments: u32,
    /// The end of the last scoreboard search: a segment that is not SACKed, or the first of a run.
    sack_hint: u32,
    head: u32,
    tail: u32,
    /// The first segment that was not sent yet.
    unsent: u32,
    /// Segments in flight, by transmission time.
    flight: List,
    segments: u32,
    /// Payload of queued segments, bytes.
    bytes: u32,
    in_flight: u32,
    flight_segments: u32,
    /// Segments in flight that were sent more than once.
    flight_again: u32,
}

/// Steps to search the place of a segment in the list of losses.
const LOST_STEPS_MAX: u32 = 32;

impl SendQueue {
    /// Offset of the fields that are used while nothing is lost, bytes.
    #[cfg(test)]
    pub(super) const LOSS_FREE_AT: usize = core::mem::offset_of!(Self, lost);

    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            unsent: NIL,
            flight: List::EMPTY,
            losses: List::EMPTY,
            lost_hint: NIL,
            sack_hint: NIL,
            segments: 0,
            bytes: 0,
            in_flight: 0,
            lost: 0,
            lost_ever: 0,
            sacked: 0,
            sacked_segments: 0,
            flight_segments: 0,
            flight_again: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }
    pub(crate) fn head(&self) -> u32 {
        self.head
    }
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }
    pub(crate) fn unsent(&self) -> u32 {
        self.unsent
    }
    /// True if a segment waits to be sent or retransmitted.
    pub(crate) fn wants_output(&self) -> bool {
        self.lost > 0 || self.unsent != NIL
    }
    /// Returns the segment after `index` in sequence, or `NIL`.
    pub(crate) fn next_of<B>(&self, pool: &Pool<TxNode<B>>, index: u32) -> u32 {
        pool.get(index).map_or(NIL, |node| node.next)
    }
    /// Returns the oldest segment in flight, or `NIL`.
    pub(crate) fn oldest(&self) -> u32 {
        self.flight.first
    }
    /// Returns the segment in flight that was sent last, or `NIL`.
    pub(crate) fn newest(&self) -> u32 {
        self.flight.last
    }
    /// Returns the number of queued segments.
    pub(crate) fn segments(&self) -> u32 {
        self.segments
    }
    /// Returns the queued payload, bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }
    /// Returns the sequence space in flight, bytes: "pipe" (RFC 6675).
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }
    /// Returns the number of segments in flight.
    pub(crate) fn flight_segments(&self) -> u32 {
        self.flight_segments
    }
    /// Returns the number of segments in flight that were sent more than once.
    pub(crate) fn flight_again(&self) -> u32 {
        self.flight_again
    }
    /// Returns the sequence space marked lost and not sent again, bytes.
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }
    /// Returns the sequence space ever marked lost, bytes, modulo 2^32.
    pub(crate) fn lost_ever(&self) -> u32 {
        self.lost_ever
    }
    /// Returns the SACKed sequence space, bytes.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }
    /// Returns the number of SACKed segments.
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }
    /// True if a queued segment was sent and is not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.head != NIL && self.head != self.unsent
    }

    /// Returns the segment in flight that was sent next after `index`, or `NIL`.
    pub(crate) fn newer<B>(&self, pool: &Pool<TxNode<B>>, index: u32) -> u32 {
        pool.get(index).map_or(NIL, |node| node.by_state.next)
    }

    /// Returns the last segment in sequence that was sent, or `NIL`.
    pub(crate) fn last_sent<B>(&self, pool: &Pool<TxNode<B>>) -> u32 {
        match pool.get(self.unsent) {
            Some(node) => node.prev,
            None => self.tail,
        }
    }

    /// Queues a segment; returns its buffer if the pool is full.
    #[inline(always)]
    pub(crate) fn push<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        seq: SeqNum,
        len: u16,
        fin: bool,
        (buf, sum): (Option<B>, Option<u16>),
    ) -> Result<u32, Option<B>> {
        if pool.available() == 0 {
            return Err(buf);
        }
        let prev = self.tail;
        let node = || TxNode {
            seq,
            len,
            state: TxState::Ready,
            fin,
            transmissions: 0,
            sum,
            sent_at: Instant::ZERO,
            rate: RateStamp::default(),
            buf,
            prev,
            next: NIL,
            by_state: Link::NONE,
        };
        let index = pool.insert_with(node).ok_or(None)?;
        match pool.get_mut(self.tail) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
        if self.unsent == NIL {
            self.unsent = index;
        }
        self.segments = self.segments.saturating_add(1);
        self.bytes = self.bytes.saturating_add(u32::from(len));
        Ok(index)
    }

    /// Adds `len` bytes, which its buffer holds already, to the last segment, which was not sent yet.
    pub(crate) fn grow_tail<B>(&mut self, pool: &mut Pool<TxNode<B>>, len: u16) {
        if let Some(tail) = pool.get_mut(self.tail) {
            tail.len = tail.len.saturating_add(len);
            tail.sum = None;
            self.bytes = self.bytes.saturating_add(u32::from(len));
        }
    }

    /// Splits the segment `index`: `buf`, a copy of its first `len` bytes, becomes a segment before it. Returns
    /// `None`, changing nothing, if the pool is full or the segment does not wait to be sent.
    pub(crate) fn split<B: Buf>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        index: u32,
        len: u16,
        buf: B,
    ) -> Option<u32> {
        let node = pool.get(index).filter(|node| {
            len > 0 && len < node.len && matches!(node.state, TxState::Ready | TxState::Lost)
        })?;
        let (prev, prior, lost) = (node.prev, node.by_state.prev, node.state == TxState::Lost);
        let front = TxNode {
            seq: node.seq,
            len,
            state: node.state,
            fin: false,
            transmissions: node.transmissions,
            sum: None,
            sent_at: node.sent_at,
            rate: node.rate,
            buf: Some(buf),
            prev,
            next: index,
            by_state: Link::NONE,
        };
        let front = pool.insert(front).ok()?;
        if let Some(node) = pool.get_mut(index) {
            node.seq += u32::from(len);
            node.len = node.len.saturating_sub(len);
            node.sum = None;
            node.prev = front;
        }
        match pool.get_mut(prev) {
            Some(prev) => prev.next = front,
            None => self.head = front,
        }
        if self.unsent == index {
            self.unsent = front;
        }
        if lost {
            self.losses.insert_after(pool, prior, front, by_state);
        }
        self.segments = self.segments.saturating_add(1);
        Some(front)
    }

    /// Removes the acknowledged bytes from the front of a lost segment. If it were split with them, the first part
    /// might hold nothing else, and no acknowledgment would ever cover it.
    #[cold]
    pub(crate) fn trim_acked<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32, una: SeqNum) {
        let Some(node) =
            pool.get_mut(index).filter(|node| node.state == TxState::Lost && node.seq.before(una))
        else {
            return;
        };
        let cut = u16::try_from(una.distance_from(node.seq)).unwrap_or(u16::MAX).min(node.len);
        node.seq += u32::from(cut);
        node.len = node.len.saturating_sub(cut);
        node.sum = None;
        self.bytes = self.bytes.saturating_sub(cut.into());
        self.lost = self.lost.saturating_sub(cut.into());
    }

    /// Marks a segment in flight, behind `at` in the list by time.
    fn enter_flight<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32, at: u32) {
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Flight;
        self.in_flight = self.in_flight.saturating_add(node.seq_len());
        self.flight_segments = self.flight_segments.saturating_add(1);
        self.flight_again = self.flight_again.saturating_add(u32::from(node.retransmitted()));
        self.flight.insert_after(pool, at, index, by_state);
    }

    /// Marks a segment in flight lost.
    pub(crate) fn mark_lost<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        if pool.get(index).is_some_and(|node| node.state == TxState::Flight) {
            self.enter_losses(pool, index);
        }
    }

    /// Marks overdue segments lost, oldest first; returns the deadline of the first one that is not overdue.
    /// `deadline` must not decrease from one segment to the next in time order, so the walk can end there.
    pub(crate) fn lose_overdue<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        now: Instant,
        mut deadline: impl FnMut(&TxNode<B>) -> Option<Instant>,
    ) -> Option<Instant> {
        while let Some(node) = pool.get(self.flight.first) {
            let deadline = deadline(node)?;
            if deadline > now {
                return Some(deadline);
            }
            self.enter_losses(pool, self.flight.first);
        }
        None
    }

    /// Marks a segment lost and links it into the list of losses in sequence. If its place is not found within a
    /// few steps, it goes near it.
    fn enter_losses<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Lost;
        let seq = node.seq;
        self.lost = self.lost.saturating_add(node.seq_len());
        self.lost_ever = self.lost_ever.wrapping_add(node.seq_len());
        let at = self.place_among_losses(pool, seq);
        self.losses.insert_after(pool, at, index, by_state);
        self.lost_hint = index;
    }

    /// Returns the lost segment after which one that begins at `seq` belongs; `NIL` for the front.
    fn place_among_losses<B>(&self, pool: &Pool<TxNode<B>>, seq: SeqNum) -> u32 {
        let is_before = |index: u32| pool.get(index).is_some_and(|node| node.seq.before(seq));
        if !is_before(self.losses.first) {
            return NIL;
        }
        if is_before(self.losses.last) {
            return self.losses.last;
        }
        let mut at = if self.lost_hint == NIL { self.losses.last } else { self.lost_hint };
        for _ in 0..LOST_STEPS_MAX {
            let Some(node) = pool.get(at) else { break };
            if node.seq.after(seq) {
                at = node.by_state.prev;
            } else if is_before(node.by_state.next) {
                at = node.by_state.next;
            } else {
                break;
            }
        }
        at
    }

    /// Returns all lost segments to flight, after a spurious loss detection. Segments that were retransmitted
    /// before they were marked lost are treated as sent as late as possible.
    pub(crate) fn revert_lost<B>(&mut self, pool: &mut Pool<TxNode<B>>) {
        let (mut at, mut next) = (NIL, self.flight.first);
        let mut index = self.losses.first;
        while let Some(node) = pool.get(index) {
            let (later, sent_at, again) = (node.by_state.next, node.sent_at, node.retransmitted());
            let in_order = pool.get(at).is_none_or(|before| before.sent_at <= sent_at);
            if !again && in_order {
                while let Some(node) = pool.get(next).filter(|node| node.sent_at <= sent_at) {
                    (at, next) = (next, node.by_state.next);
                }
                self.leave(pool, index);
                self.enter_flight(pool, index, at);
                at = index;
            }
            index = later;
        }
        while let Some(node) = pool.get(self.losses.first) {
            let (index, sent_at) = (self.losses.first, node.sent_at);
            let newest = pool.get(self.flight.last).map_or(sent_at, |newest| newest.sent_at.max(sent_at));
            self.leave(pool, index);
            if let Some(node) = pool.get_mut(index) {
                node.sent_at = newest;
            }
            self.enter_flight(pool, index, self.flight.last);
        }
    }

    /// Returns the first segment to retransmit. The first segment of all comes first (RFC 6298 §5.4: "Retransmit the
    /// earliest segment that has not been acknowledged"), although its place in the list may be a later one: it was
    /// not the first when it was marked lost.
    pub(crate) fn first_lost<B>(&self, pool: &Pool<TxNode<B>>) -> Option<u32> {
        if self.losses.first == NIL {
            return None;
        }
        let head_is_lost = pool.get(self.head).is_some_and(|node| node.state == TxState::Lost);
        Some(if head_is_lost { self.head } else { self.losses.first })
    }

    /// Removes and returns the first segment.
    #[inline]
    pub(crate) fn pop_head<B>(&mut self, pool: &mut Pool<TxNode<B>>) -> Option<TxNode<B>> {
        let index = self.head;
        self.shorten_run(pool, index);
        self.leave(pool, index);
        let node = pool.remove(index)?;
        if self.sack_hint == index {
            self.sack_hint = NIL;
        }
        if self.unsent == index {
            self.unsent = node.next;
        }
        self.head = node.next;
        match pool.get_mut(node.next) {
            Some(next) => next.prev = NIL,
            None => self.tail = NIL,
        }
        self.segments = self.segments.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u32::from(node.len));
        Some(node)
    }

    /// Removes a node from the list and the sums of its state.
    fn leave<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        let Some(node) = pool.get(index) else { return };
        let len = node.seq_len();
        match node.state {
            TxState::Ready => {}
            TxState::Lost => {
                self.lost = self.lost.saturating_sub(len);
                if self.lost_hint == index {
                    self.lost_hint = node.by_state.prev;
                }
                self.losses.unlink(pool, index, by_state);
            }
            TxState::Sacked => {
                self.sacked = self.sacked.saturating_sub(len);
                self.sacked_segments = self.sacked_segments.saturating_sub(1);
            }
            TxState::Flight => {
                self.in_flight = self.in_flight.saturating_sub(len);
                self.flight_segments = self.flight_segments.saturating_sub(1);
                self.flight_again = self.flight_again.saturating_sub(u32::from(node.retransmitted()));
                self.flight.unlink(pool, index, by_state);
            }
        }
    }
}

#[cfg(any(test, feature = "testutil"))]
mod audit;
#[cfg(test)]
mod tests;
