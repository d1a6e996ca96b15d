//! What was handed to a connection to send and is not acknowledged yet.
//!
//! The queue is the retransmission queue, the scoreboard of selective acknowledgements (RFC 6675) and
//! the list of transmissions in time (RFC 8985 §6.1) in one: its nodes, taken from the stack's pool, are
//! linked twice. Each holds one segment's payload in the buffer it was given in; sending it again sends
//! the same memory.
//!
//! ```text
//!   head                         unsent          tail
//!    │  in sequence               │               │
//!    ▼                            ▼               ▼
//!   [acked? no, sacked] [lost] [flight] [flight] [ready] [ready]
//!                                 ▲        ▲
//!                              oldest   newest      in the order of transmission
//! ```

use crate::buf::Buf;
use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;
use crate::time::Instant;

/// Where a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxState {
    /// Never sent.
    Ready,
    /// Sent, and neither acknowledged nor believed lost.
    Flight,
    /// Believed lost: to be sent again.
    Lost,
    /// Selectively acknowledged.
    Sacked,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct TxNode<B> {
    pub(crate) seq: SeqNum,
    /// Payload, octets: the last so many of the buffer, behind the headers of earlier transmissions.
    pub(crate) len: u16,
    pub(crate) state: TxState,
    /// Whether this is the FIN, which has a node of its own, without payload.
    pub(crate) fin: bool,
    /// How often it was sent, saturating.
    pub(crate) transmissions: u8,
    /// When it was sent last.
    pub(crate) sent_at: Instant,
    /// The memory; `None` only for a FIN without payload.
    pub(crate) buf: Option<B>,
    prev: u32,
    next: u32,
    older: u32,
    newer: u32,
}

impl<B> TxNode<B> {
    /// The sequence space it takes, octets.
    #[inline]
    pub(crate) fn seq_len(&self) -> u32 {
        u32::from(self.len).wrapping_add(u32::from(self.fin))
    }

    /// The sequence number after its last.
    #[inline]
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.seq_len()
    }

    /// Whether it was sent more than once.
    #[inline]
    pub(crate) fn retransmitted(&self) -> bool {
        self.transmissions > 1
    }
}

/// The queue of one connection. Without segments it owns no memory.
#[derive(Debug)]
pub(crate) struct SendQueue {
    head: u32,
    tail: u32,
    /// The first node that was never sent whole.
    unsent: u32,
    oldest: u32,
    newest: u32,
    /// The first lost node, or `NIL` when there is none or it must be looked for.
    lost_hint: u32,
    /// Where the walk over the last SACK range ended: all nodes from `sack_start` up to this one are
    /// sacked.
    sack_hint: u32,
    sack_start: SeqNum,
    segments: u32,
    /// Payload, octets.
    octets: u32,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    sacked_segments: u32,
    flight_segments: u32,
}

impl SendQueue {
    pub(crate) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            unsent: NIL,
            oldest: NIL,
            newest: NIL,
            lost_hint: NIL,
            sack_hint: NIL,
            sack_start: SeqNum::new(0),
            segments: 0,
            octets: 0,
            in_flight: 0,
            lost: 0,
            sacked: 0,
            sacked_segments: 0,
            flight_segments: 0,
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
    /// The segment after one, or `NIL`.
    pub(crate) fn next_of<B>(&self, pool: &Pool<TxNode<B>>, index: u32) -> u32 {
        pool.get(index).map_or(NIL, |node| node.next)
    }
    /// The segment in flight that was sent longest ago.
    pub(crate) fn oldest(&self) -> u32 {
        self.oldest
    }
    /// Segments queued.
    pub(crate) fn segments(&self) -> u32 {
        self.segments
    }
    /// Payload queued, octets.
    pub(crate) fn octets(&self) -> u32 {
        self.octets
    }
    /// RFC 6675's "pipe": sequence space in flight, octets.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }
    /// Segments in flight.
    pub(crate) fn flight_segments(&self) -> u32 {
        self.flight_segments
    }
    /// Sequence space believed lost and not sent again, octets.
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }
    /// Sequence space selectively acknowledged, octets.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }
    /// Segments selectively acknowledged.
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }
    /// Whether something was sent that is not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.head != NIL && self.head != self.unsent
    }

    /// The node sent after `index`, in time.
    pub(crate) fn newer<B>(&self, pool: &Pool<TxNode<B>>, index: u32) -> u32 {
        pool.get(index).map_or(NIL, |node| node.newer)
    }

    /// The last node that was sent.
    pub(crate) fn last_sent<B>(&self, pool: &Pool<TxNode<B>>) -> u32 {
        match pool.get(self.unsent) {
            Some(node) => node.prev,
            None => self.tail,
        }
    }

    /// Queues a segment; gives its buffer back when the pool is full.
    pub(crate) fn push<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        seq: SeqNum,
        len: u16,
        fin: bool,
        buf: Option<B>,
    ) -> Result<u32, Option<B>> {
        let node = TxNode {
            seq,
            len,
            state: TxState::Ready,
            fin,
            transmissions: 0,
            sent_at: Instant::ZERO,
            buf,
            prev: self.tail,
            next: NIL,
            older: NIL,
            newer: NIL,
        };
        let index = pool.insert(node).map_err(|node| node.buf)?;
        match pool.get_mut(self.tail) {
            Some(tail) => tail.next = index,
            None => self.head = index,
        }
        self.tail = index;
        if self.unsent == NIL {
            self.unsent = index;
        }
        self.segments = self.segments.saturating_add(1);
        self.octets = self.octets.saturating_add(u32::from(len));
        Ok(index)
    }

    /// Appends `len` octets, already in its buffer, to the tail, which was never sent.
    pub(crate) fn grow_tail<B>(&mut self, pool: &mut Pool<TxNode<B>>, len: u16) {
        if let Some(tail) = pool.get_mut(self.tail) {
            tail.len = tail.len.saturating_add(len);
            self.octets = self.octets.saturating_add(u32::from(len));
        }
    }

    /// Puts `buf`, a copy of the first `len` octets of the payload of `index`, into a node of its own
    /// before it. `None`, and nothing changed, when the pool is full or `index` is not waiting to be sent.
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
        let prev = node.prev;
        let front = TxNode {
            seq: node.seq,
            len,
            state: node.state,
            fin: false,
            transmissions: node.transmissions,
            sent_at: node.sent_at,
            buf: Some(buf),
            prev,
            next: index,
            older: NIL,
            newer: NIL,
        };
        let front = pool.insert(front).ok()?;
        if let Some(node) = pool.get_mut(index) {
            node.seq += u32::from(len);
            node.len = node.len.saturating_sub(len);
            node.prev = front;
        }
        match pool.get_mut(prev) {
            Some(prev) => prev.next = front,
            None => self.head = front,
        }
        if self.unsent == index {
            self.unsent = front;
        }
        if self.lost_hint == index {
            self.lost_hint = front;
        }
        if self.sack_hint == index {
            self.sack_hint = front;
        }
        self.segments = self.segments.saturating_add(1);
        Some(front)
    }

    /// The segment was handed to the port.
    pub(crate) fn mark_sent<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32, now: Instant) {
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Flight;
        node.sent_at = now;
        node.transmissions = node.transmissions.saturating_add(1);
        node.older = self.newest;
        node.newer = NIL;
        let (len, next) = (node.seq_len(), node.next);
        self.in_flight = self.in_flight.saturating_add(len);
        self.flight_segments = self.flight_segments.saturating_add(1);
        if self.unsent == index {
            self.unsent = next;
        }
        match pool.get_mut(self.newest) {
            Some(newest) => newest.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    /// The segment in flight is believed lost.
    pub(crate) fn mark_lost<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        if !pool.get(index).is_some_and(|node| node.state == TxState::Flight) {
            return;
        }
        let hint = pool.get(self.lost_hint).map(|hint| hint.seq);
        let had_none = self.lost == 0;
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Lost;
        self.lost = self.lost.saturating_add(node.seq_len());
        if had_none || hint.is_some_and(|hint| node.seq.before(hint)) {
            self.lost_hint = index;
        }
    }

    /// The octets from `start` to `end` were selectively acknowledged: marks the segments that lie in
    /// there whole, and tells of each that is marked now.
    pub(crate) fn sack<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        start: SeqNum,
        end: SeqNum,
        mut newly: impl FnMut(&TxNode<B>),
    ) {
        let known = pool.get(self.sack_hint).map(|hint| hint.seq);
        let continues = start.at_or_after(self.sack_start)
            && known.is_some_and(|known| known.before(end) && known.at_or_after(start));
        let mut index = if continues { self.sack_hint } else { self.head };
        while let Some(node) = pool.get(index) {
            if node.end().after(end) || node.state == TxState::Ready {
                break;
            }
            let next = node.next;
            if node.seq.at_or_after(start) && node.state != TxState::Sacked {
                newly(node);
                self.mark_sacked(pool, index);
            }
            index = next;
        }
        if !continues {
            self.sack_start = start;
        }
        self.sack_hint = index;
    }

    /// The receiver took its selective acknowledgements back; returns how many segments that concerns.
    pub(crate) fn renege<B>(&mut self, pool: &mut Pool<TxNode<B>>) -> u32 {
        let count = self.sacked_segments;
        self.sack_hint = NIL;
        let mut index = self.head;
        while self.sacked_segments > 0
            && let Some(node) = pool.get(index)
        {
            let next = node.next;
            self.mark_reneged(pool, index);
            index = next;
        }
        count
    }

    /// The segment was selectively acknowledged.
    fn mark_sacked<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Sacked;
        self.sacked = self.sacked.saturating_add(node.seq_len());
        self.sacked_segments = self.sacked_segments.saturating_add(1);
    }

    fn mark_reneged<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        if !pool.get(index).is_some_and(|node| node.state == TxState::Sacked) {
            return;
        }
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Lost;
        self.lost = self.lost.saturating_add(node.seq_len());
        self.lost_hint = NIL;
    }

    /// The first segment that is believed lost.
    pub(crate) fn first_lost<B>(&mut self, pool: &Pool<TxNode<B>>) -> Option<u32> {
        if self.lost == 0 {
            return None;
        }
        let mut index = if self.lost_hint == NIL { self.head } else { self.lost_hint };
        while let Some(node) = pool.get(index) {
            if node.state == TxState::Lost {
                self.lost_hint = index;
                return Some(index);
            }
            index = node.next;
        }
        None
    }

    /// Takes the first segment out if it ends at `una` or before.
    pub(crate) fn pop_acked<B>(&mut self, pool: &mut Pool<TxNode<B>>, una: SeqNum) -> Option<TxNode<B>> {
        let index = self.head;
        let node = pool.get(index)?;
        if node.end().after(una) || node.state == TxState::Ready {
            return None;
        }
        self.pop_head(pool)
    }

    /// Takes the first segment out.
    pub(crate) fn pop_head<B>(&mut self, pool: &mut Pool<TxNode<B>>) -> Option<TxNode<B>> {
        let index = self.head;
        self.leave(pool, index);
        let node = pool.remove(index)?;
        if self.lost_hint == index {
            self.lost_hint = NIL;
        }
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
        self.octets = self.octets.saturating_sub(u32::from(node.len));
        Some(node)
    }

    /// Undoes what the node's state means to the sums and to the list in time.
    fn leave<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        let Some(node) = pool.get(index) else { return };
        let len = node.seq_len();
        match node.state {
            TxState::Ready => {}
            TxState::Lost => {
                self.lost = self.lost.saturating_sub(len);
                if self.lost_hint == index {
                    // The next one can only come later.
                    self.lost_hint = node.next;
                }
            }
            TxState::Sacked => {
                self.sacked = self.sacked.saturating_sub(len);
                self.sacked_segments = self.sacked_segments.saturating_sub(1);
            }
            TxState::Flight => {
                self.in_flight = self.in_flight.saturating_sub(len);
                self.flight_segments = self.flight_segments.saturating_sub(1);
                let (older, newer) = (node.older, node.newer);
                match pool.get_mut(older) {
                    Some(older) => older.newer = newer,
                    None => self.oldest = newer,
                }
                match pool.get_mut(newer) {
                    Some(newer) => newer.older = older,
                    None => self.newest = older,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
