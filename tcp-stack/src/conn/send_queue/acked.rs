//! Removal of acknowledged segments from the send queue.

use super::{SendQueue, TxNode, TxState};
use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;

impl SendQueue {
    /// Removes all segments that end at or before `una`, as [`Self::pop_acked`] does one by one; calls `each` with
    /// each.
    #[inline(always)]
    pub(crate) fn drop_acked<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        una: SeqNum,
        mut each: impl FnMut(&TxNode<B>),
    ) {
        self.drop_oldest(pool, una, &mut each);
        while let Some(node) = self.pop_acked(pool, una) {
            each(&node);
        }
    }

    /// Removes and returns the first segment if it ends at or before `una`.
    #[inline]
    pub(crate) fn pop_acked<B>(&mut self, pool: &mut Pool<TxNode<B>>, una: SeqNum) -> Option<TxNode<B>> {
        let index = self.head;
        let node = pool.get(index)?;
        if node.end().after(una) || node.state == TxState::Ready {
            return None;
        }
        self.pop_head(pool)
    }

    /// Same as [`Self::drop_acked`], while the first segment in sequence is also the oldest in flight: nearly
    /// always for all segments.
    #[inline(always)]
    fn drop_oldest<B>(&mut self, pool: &mut Pool<TxNode<B>>, una: SeqNum, each: &mut impl FnMut(&TxNode<B>)) {
        let (mut at, mut oldest) = (self.head, self.flight.first);
        let (mut segments, mut again, mut bytes, mut space) = (0_u32, 0_u32, 0_u32, 0_u32);
        while at == oldest {
            let behind = pool.drop_if(at, |node| {
                if node.end().after(una) || node.state != TxState::Flight {
                    return None;
                }
                each(node);
                again = again.wrapping_add(u32::from(node.retransmitted()));
                bytes = bytes.wrapping_add(u32::from(node.len));
                space = space.wrapping_add(node.seq_len());
                Some((node.next, node.by_state.next))
            });
            let Some((next, later)) = behind else { break };
            if self.sack_hint == at {
                self.sack_hint = NIL;
            }
            segments = segments.wrapping_add(1);
            (at, oldest) = (next, later);
        }
        if segments == 0 {
            return;
        }
        (self.head, self.flight.first) = (at, oldest);
        match pool.get_mut(at) {
            Some(next) => next.prev = NIL,
            None => self.tail = NIL,
        }
        match pool.get_mut(oldest) {
            Some(later) => later.by_state.prev = NIL,
            None => self.flight.last = NIL,
        }
        self.segments = self.segments.saturating_sub(segments);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.in_flight = self.in_flight.saturating_sub(space);
        self.flight_segments = self.flight_segments.saturating_sub(segments);
        self.flight_again = self.flight_again.saturating_sub(again);
    }
}
