//! The frames of a received burst, and the division of a burst that leaves the receive queue empty into halves.
//!
//! A sender whose congestion window is little longer than a burst sends no more until the burst is acknowledged, and
//! the receiver then waits for it. If the acknowledgment of the first half leaves while the receiver processes the
//! second, both work. While more frames wait in the queue, another acknowledgment would only cost time.

use arrayvec::ArrayVec;

use crate::dpdk::BURST;

/// Shortest burst that is divided. An iteration has a fixed cost, that of about three frames.
const DIVIDED_MIN: usize = BURST / 4 * 3;

/// The frames of one burst that wait to be processed, oldest first.
#[derive(Debug)]
pub(super) struct RxBurst<B> {
    frames: ArrayVec<B, BURST>,
    /// Frames of the next part.
    part: usize,
    /// True if the last burst was full: more frames waited in the queue.
    was_full: bool,
}

impl<B> RxBurst<B> {
    pub(super) const fn new() -> Self {
        Self { frames: ArrayVec::new_const(), part: 0, was_full: false }
    }

    /// Returns true if every part was taken: then the next burst may be received.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes the frames that `receive` finds in the queue, after every part of the last burst, and divides them.
    #[inline]
    pub(super) fn fill(&mut self, receive: impl FnOnce(&mut ArrayVec<B, BURST>)) {
        receive(&mut self.frames);
        let (frames, is_full) = (self.frames.len(), self.frames.is_full());
        let has_backlog = is_full && self.was_full;
        self.part = if frames < DIVIDED_MIN || has_backlog { frames } else { frames.div_ceil(2) };
        self.was_full = is_full;
    }

    /// Removes the frames of the next part.
    #[inline]
    pub(super) fn take_part(&mut self) -> impl ExactSizeIterator<Item = B> {
        let part = self.part.min(self.frames.len());
        self.frames.drain(..part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives bursts of these lengths; returns the parts of each.
    fn parts(bursts: &[usize]) -> Vec<Vec<usize>> {
        let mut burst = RxBurst::new();
        let mut sent = 0..;
        let mut received = 0..;
        let mut parts_of = |frames: &usize| {
            burst.fill(|to| to.extend(sent.by_ref().take(*frames)));
            let mut parts = Vec::new();
            while !burst.is_empty() {
                let part: Vec<i32> = burst.take_part().collect();
                assert!(part.iter().copied().eq(received.by_ref().take(part.len())), "in order: {part:?}");
                parts.push(part.len());
            }
            parts
        };
        bursts.iter().map(&mut parts_of).collect()
    }

    #[test]
    fn a_long_burst_that_empties_the_queue_is_divided() {
        assert_eq!(parts(&[0, 1, 23]), [vec![], vec![1], vec![23]]);
        assert_eq!(parts(&[24, 31]), [[12, 12], [16, 15]]);
    }

    #[test]
    fn a_full_burst_is_divided_unless_the_one_before_was_full() {
        assert_eq!(
            parts(&[32, 32, 32, 31, 32]),
            [vec![16, 16], vec![32], vec![32], vec![16, 15], vec![16, 16]]
        );
        assert_eq!(parts(&[32, 0, 32]), [vec![16, 16], vec![], vec![16, 16]]);
    }
}
