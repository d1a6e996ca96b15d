//! Transmission of queued segments: one, or a train of new ones.

use super::{SendQueue, TxNode, TxState};
use crate::pool::{NIL, Pool};
use crate::recovery::RateStamp;
use crate::seq::SeqNum;
use crate::time::Instant;

/// The segments of a train that were sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentTrain {
    /// Number of segments sent.
    pub(crate) segments: u32,
    /// Their sequence space, bytes.
    pub(crate) bytes: u32,
    /// The end of the last one; meaningless if there are none.
    pub(crate) end: SeqNum,
}

impl SendQueue {
    /// Notes that a segment was handed to the port.
    pub(crate) fn mark_sent<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32, now: Instant) {
        if pool.get(index).is_some_and(|node| node.state != TxState::Ready) {
            self.leave(pool, index);
        }
        let Some(node) = pool.get_mut(index) else { return };
        node.sent_at = now;
        node.transmissions = node.transmissions.saturating_add(1);
        let next = node.next;
        if self.unsent == index {
            self.unsent = next;
        }
        self.enter_flight(pool, index, self.flight.last);
    }

    /// Same as [`Self::mark_sent`], for new segments in sequence, while `sends` returns true. It gets the next
    /// segment, the bytes in flight, and true for the last segment of the queue.
    #[inline]
    pub(crate) fn mark_train_sent<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        (now, rate): (Instant, RateStamp),
        mut sends: impl FnMut(&mut TxNode<B>, u32, bool) -> bool,
    ) -> SentTrain {
        let (first, before) = (self.unsent, self.flight.last);
        let (mut at, mut last, mut in_flight) = (first, before, self.in_flight);
        let mut sent_train = SentTrain { segments: 0, bytes: 0, end: SeqNum::new(0) };
        while let Some(node) = pool.get_mut(at) {
            if node.transmissions > 0 || !sends(node, in_flight, at == self.tail) {
                break;
            }
            node.state = TxState::Flight;
            node.transmissions = 1;
            (node.sent_at, node.rate) = (now, rate);
            // Sequence order is transmission order; the last node's link is corrected below.
            (node.by_state.prev, node.by_state.next) = (last, node.next);
            let bytes = node.seq_len();
            in_flight = in_flight.saturating_add(bytes);
            sent_train.segments = sent_train.segments.wrapping_add(1);
            sent_train.bytes = sent_train.bytes.wrapping_add(bytes);
            sent_train.end = node.end();
            (last, at) = (at, node.next);
        }
        if sent_train.segments == 0 {
            return sent_train;
        }
        match pool.get_mut(before) {
            Some(node) => node.by_state.next = first,
            None => self.flight.first = first,
        }
        if let Some(node) = pool.get_mut(last) {
            node.by_state.next = NIL;
        }
        self.flight.last = last;
        self.unsent = at;
        self.in_flight = in_flight;
        self.flight_segments = self.flight_segments.saturating_add(sent_train.segments);
        sent_train
    }
}
