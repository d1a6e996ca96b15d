//! Consistency checks of the send queue, for tests.

use super::{SendQueue, TxNode, TxState};
use crate::pool::{NIL, Pool};

impl SendQueue {
    /// Recounts both lists; the error names the first inconsistency.
    pub(crate) fn audit<B>(&self, pool: &Pool<TxNode<B>>) -> Result<(), &'static str> {
        let (mut index, mut prev) = (self.head, NIL);
        let (mut segments, mut bytes, mut in_flight, mut lost, mut sacked) =
            (0_u32, 0_u32, 0_u32, 0_u32, 0_u32);
        let (mut flight_segments, mut end) = (0_u32, None);
        let mut is_unsent = false;
        while let Some(node) = pool.get(index) {
            is_unsent |= index == self.unsent;
            if node.prev != prev || end.is_some_and(|end| end != node.seq) {
                return Err("the send queue has a gap");
            }
            if (node.state == TxState::Ready) != is_unsent {
                return Err("what is unsent is not at the end of the send queue");
            }
            segments = segments.saturating_add(1);
            bytes = bytes.saturating_add(node.len.into());
            match node.state {
                TxState::Ready => {}
                TxState::Flight => {
                    in_flight = in_flight.saturating_add(node.seq_len());
                    flight_segments = flight_segments.saturating_add(1);
                }
                TxState::Lost => lost = lost.saturating_add(node.seq_len()),
                TxState::Sacked => sacked = sacked.saturating_add(node.seq_len()),
            }
            end = Some(node.end());
            (prev, index) = (index, node.next);
        }
        if (self.tail, self.segments, self.bytes) != (prev, segments, bytes) {
            return Err("the send queue holds another number of segments or bytes");
        }
        if (self.in_flight, self.lost, self.sacked) != (in_flight, lost, sacked) {
            return Err("in flight, lost and sacked are not what the send queue's segments say");
        }
        if self.list(pool, self.flight.first, TxState::Flight) != Some(in_flight) {
            return Err("the list in time does not hold what is in flight");
        }
        if self.list(pool, self.losses.first, TxState::Lost) != Some(lost) {
            return Err("the list of losses does not hold what is lost");
        }
        if self.flight_segments != flight_segments {
            return Err("another number of segments is in flight");
        }
        Ok(())
    }

    /// Returns the sequence space of a list's segments, bytes; `None` if one is in another state, or there are more
    /// than are queued.
    fn list<B>(&self, pool: &Pool<TxNode<B>>, first: u32, state: TxState) -> Option<u32> {
        let (mut index, mut bytes, mut left) = (first, 0_u32, self.segments);
        while let Some(node) = pool.get(index) {
            left = left.checked_sub(1).filter(|_| node.state == state)?;
            bytes = bytes.saturating_add(node.seq_len());
            index = node.by_state.next;
        }
        Some(bytes)
    }
}
