//! Runs of FPDUs that were placed out-of-order. The deframer remembers them until the gap in front of them closes.

use std::collections::VecDeque;

/// Consecutive FPDUs that were verified and placed out-of-order, and are not delivered yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedRun {
    /// Stream position of the first FPDU.
    pub start: u64,
    /// Stream position behind the last FPDU.
    pub end: u64,
    /// Number of FPDUs in the run.
    pub fpdus: u32,
    /// Bytes of their ULPDUs.
    pub ulpdu_bytes: u64,
    /// Number of FPDUs that end an RDMA Write.
    pub writes: u32,
}

/// The runs of a stream in stream order. No two touch or overlap; their number is bounded.
#[derive(Debug)]
pub(super) struct PlacedRuns {
    runs: VecDeque<PlacedRun>,
    max: usize,
}

impl PlacedRuns {
    pub(super) fn new(max: usize) -> Self {
        Self { runs: VecDeque::with_capacity(max), max }
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&PlacedRun> {
        self.runs.front()
    }

    pub(super) fn take_first(&mut self) -> Option<PlacedRun> {
        self.runs.pop_front()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// Returns the index of the first run that ends after `position`.
    fn index(&self, position: u64) -> usize {
        self.runs.partition_point(|run| run.end <= position)
    }

    /// Returns true if all bytes from `start` to `end` were placed.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        self.runs.get(self.index(start)).is_some_and(|run| run.start <= start && end <= run.end)
    }

    /// Returns the stream position up to which bytes from `start` on were not placed. `None` if `start` itself was
    /// placed, or if no run can be added.
    pub(super) fn free_until(&self, start: u64) -> Option<u64> {
        let index = self.index(start);
        let until = self.runs.get(index).map_or(u64::MAX, |run| run.start);
        let before = index.checked_sub(1).and_then(|before| self.runs.get(before));
        let touches = before.is_some_and(|run| run.end == start);
        (start < until && (touches || self.runs.len() < self.max)).then_some(until)
    }

    /// Adds a run that overlaps no other, and merges it with runs that it touches.
    pub(super) fn add(&mut self, new: PlacedRun) {
        let index = self.index(new.start);
        if let Some(before) = index.checked_sub(1).and_then(|before| self.runs.get_mut(before))
            && before.end == new.start
        {
            before.take_in(&new);
            let whole = *before;
            if self.runs.get(index).is_some_and(|next| next.start == whole.end)
                && let Some(next) = self.runs.remove(index)
                && let Some(before) = self.runs.get_mut(index.saturating_sub(1))
            {
                before.take_in(&next);
            }
        } else if let Some(next) = self.runs.get_mut(index).filter(|next| next.start == new.end) {
            next.take_in(&new);
        } else {
            self.runs.insert(index, new);
        }
    }
}

impl PlacedRun {
    /// Merges an adjacent run into this one.
    fn take_in(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.end = self.end.max(other.end);
        self.fpdus = self.fpdus.saturating_add(other.fpdus);
        self.ulpdu_bytes = self.ulpdu_bytes.saturating_add(other.ulpdu_bytes);
        self.writes = self.writes.saturating_add(other.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> PlacedRun {
        PlacedRun { start, end, fpdus: 1, ulpdu_bytes: end - start, writes: 0 }
    }

    fn spans(runs: &PlacedRuns) -> Vec<(u64, u64, u32)> {
        runs.runs.iter().map(|run| (run.start, run.end, run.fpdus)).collect()
    }

    #[test]
    fn runs_that_touch_are_one() {
        let mut runs = PlacedRuns::new(3);
        runs.add(run(100, 200));
        runs.add(run(300, 400));
        runs.add(run(200, 250));
        assert_eq!(spans(&runs), [(100, 250, 2), (300, 400, 1)]);
        runs.add(run(50, 100));
        runs.add(run(250, 300));
        assert_eq!(spans(&runs), [(50, 400, 5)]);
        assert!(runs.covers(50, 400) && runs.covers(60, 61));
        assert!(!runs.covers(49, 60) && !runs.covers(399, 401) && !runs.covers(400, 401));
        assert_eq!(runs.take_first().map(|run| run.ulpdu_bytes), Some(350));
    }

    #[test]
    fn placed_bytes_are_not_placed_again_and_the_number_of_runs_is_bounded() {
        let mut runs = PlacedRuns::new(2);
        assert_eq!(runs.free_until(7), Some(u64::MAX));
        runs.add(run(100, 200));
        assert_eq!(runs.free_until(40), Some(100));
        assert_eq!((runs.free_until(100), runs.free_until(199)), (None, None));
        runs.add(run(300, 400));
        assert_eq!(
            (runs.free_until(40), runs.free_until(250), runs.free_until(500)),
            (None, None, None),
            "full"
        );
        assert_eq!((runs.free_until(200), runs.free_until(400)), (Some(300), Some(u64::MAX)), "joins one");
    }
}
