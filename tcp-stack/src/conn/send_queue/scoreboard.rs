//! The SACK scoreboard of the send queue (RFC 6675 §4: Update).

use super::{SendQueue, TxNode, TxState};
use crate::pool::{NIL, Pool};
use crate::seq::SeqNum;
use crate::wire::SackRange;

impl SendQueue {
    /// Marks the segments that lie whole in a SACKed range; calls `newly` with each that was not marked before.
    /// Every step over another segment, or over a run of SACKed ones, takes one off `steps`. When none are left,
    /// the search stops, and the next call continues from there.
    pub(crate) fn sack<B>(
        &mut self,
        pool: &mut Pool<TxNode<B>>,
        range: SackRange,
        steps: &mut u32,
        mut newly: impl FnMut(&TxNode<B>),
    ) {
        let mut index = self.seek(pool, range.start, steps);
        while let Some(node) = pool.get(index) {
            let inside = node.seq.at_or_after(range.start) && node.end().at_or_before(range.end);
            if !inside || node.state == TxState::Ready {
                break;
            }
            if node.state == TxState::Sacked {
                if *steps == 0 {
                    break;
                }
                *steps = steps.saturating_sub(1);
                index = self.behind_run(pool, index);
            } else {
                newly(node);
                let behind = self.behind_run(pool, node.next);
                self.mark_sacked(pool, index);
                index = behind;
            }
        }
        self.sack_hint = index;
    }

    /// Returns the first segment that begins at or after `seq`, or the run that contains it. The search starts from
    /// the nearest of three places: the first segment, the last one sent, and the end of the last search.
    fn seek<B>(&self, pool: &Pool<TxNode<B>>, seq: SeqNum, steps: &mut u32) -> u32 {
        let far =
            |index: &u32| pool.get(*index).map_or(u32::MAX, |node| node.seq.offset_from(seq).unsigned_abs());
        let places = [self.head, self.sack_hint, self.last_sent(pool)];
        let mut index = places.into_iter().min_by_key(far).map_or(NIL, |index| run_first(pool, index));
        while let Some(node) = pool.get(index)
            && *steps > 0
        {
            index = if node.seq.after(seq) && node.prev != NIL {
                let before = run_first(pool, node.prev);
                if pool.get(before).is_none_or(|node| node.seq.before(seq)) {
                    break;
                }
                before
            } else if node.seq.before(seq) && node.state == TxState::Sacked {
                self.behind_run(pool, index)
            } else if node.seq.before(seq) {
                node.next
            } else {
                break;
            };
            *steps = steps.saturating_sub(1);
        }
        index
    }

    /// Returns the segment after the run that begins with `index`; `index` itself if it is not SACKed.
    fn behind_run<B>(&self, pool: &Pool<TxNode<B>>, index: u32) -> u32 {
        match pool.get(index) {
            Some(node) if node.state == TxState::Sacked => {
                pool.get(node.by_state.next).map_or(NIL, |last| last.next)
            }
            _ => index,
        }
    }

    /// Marks all SACKed segments lost, because the receiver reneged (RFC 2018 §8); returns their number.
    pub(crate) fn renege<B>(&mut self, pool: &mut Pool<TxNode<B>>) -> u32 {
        let count = self.sacked_segments;
        self.sack_hint = NIL;
        let mut index = self.head;
        while self.sacked_segments > 0
            && let Some(node) = pool.get(index)
        {
            let next = node.next;
            if node.state == TxState::Sacked {
                self.enter_losses(pool, index);
            }
            index = next;
        }
        count
    }

    /// Marks a segment SACKed and joins it with the runs beside it.
    pub(super) fn mark_sacked<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        self.leave(pool, index);
        let Some(node) = pool.get_mut(index) else { return };
        node.state = TxState::Sacked;
        self.sacked = self.sacked.saturating_add(node.seq_len());
        self.sacked_segments = self.sacked_segments.saturating_add(1);
        let (prev, next) = (node.prev, node.next);
        let is_sacked = |node: &&TxNode<B>| node.state == TxState::Sacked;
        let first = pool.get(prev).filter(is_sacked).map_or(index, |node| node.by_state.next);
        let last = pool.get(next).filter(is_sacked).map_or(index, |node| node.by_state.next);
        for (end, other) in [(first, last), (last, first)] {
            if let Some(end) = pool.get_mut(end) {
                end.by_state.next = other;
            }
        }
        // Only the ends of a run are linked; the hint must not point inside.
        if self.sack_hint == index || (self.sack_hint == next && next != NIL && last != index) {
            self.sack_hint = first;
        }
    }

    /// Makes the run that begins with `index` begin with the next segment.
    pub(super) fn shorten_run<B>(&mut self, pool: &mut Pool<TxNode<B>>, index: u32) {
        let Some(node) = pool.get(index) else { return };
        let (next, last) = (node.next, node.by_state.next);
        if node.state != TxState::Sacked || last == index {
            return;
        }
        for (end, other) in [(next, last), (last, next)] {
            if let Some(end) = pool.get_mut(end) {
                end.by_state.next = other;
            }
        }
    }
}

/// Returns the first segment of the run of which `index` is an end; `index` itself if it is not SACKed.
fn run_first<B>(pool: &Pool<TxNode<B>>, index: u32) -> u32 {
    match pool.get(index) {
        Some(node) if node.state == TxState::Sacked => {
            let other_is_first = pool.get(node.by_state.next).is_some_and(|other| other.seq.before(node.seq));
            if other_is_first { node.by_state.next } else { index }
        }
        _ => index,
    }
}
