//! Segments leave: one, or new ones in a row.

use super::{SendQueue, TxNode, TxState};
use crate::pool::{NIL, Pool};
use crate::recovery::RateStamp;
use crate::seq::SeqNum;
use crate::time::Instant;

/// Segments that left together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentTrain {
    /// How many.
    pub(crate) segments: u32,
    /// The sequence space that they take, bytes.
    pub(crate) bytes: u32,
    /// Where the last one ends; without any, of no meaning.
    pub(crate) end: SeqNum,
}

impl SendQueue {
    /// The segment was handed to the port.
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

    /// What [`Self::mark_sent`] does, for the segments never sent, in sequence, as long as `leaves` says of the next one
    /// that it does: it is told what is in flight, bytes, and whether the segment is the last one of the queue.
    #[inline]
    pub(crate) fn mark_train_sent<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        (now, rate): (Instant, RateStamp),
        mut leaves: impl FnMut(&mut TxNode<B>, u32, bool) -> bool,
    ) -> SentTrain {
        let (first, before) = (self.unsent, self.flight.last);
        let (mut at, mut last, mut in_flight) = (first, before, self.in_flight);
        let mut sent_train = SentTrain { segments: 0, bytes: 0, end: SeqNum::new(0) };
        while let Some(node) = pool.get_mut(at) {
            if node.transmissions > 0 || !leaves(node, in_flight, at == self.tail) {
                break;
            }
            node.state = TxState::Flight;
            node.transmissions = 1;
            (node.sent_at, node.rate) = (now, rate);
            // What follows in sequence follows in time; the last one is told otherwise below.
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
