//! Rejects runs during which the machine changed.
//!
//! A hypervisor may move a virtual CPU during a run to a core three times as far from the other. A run counts if the
//! baseline measurements before and after it agree; it is compared with their mean.

use crate::placement::agree;

/// Baseline before the next run, and the budget of runs that may be discarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaselineGuard {
    before: f64,
    /// Runs that may still be discarded.
    spare: usize,
    discarded: u64,
}

impl BaselineGuard {
    /// Starts before the first of `runs` runs. Half as many more may be discarded; after that every run counts.
    pub(super) const fn new(baseline: f64, runs: usize) -> Self {
        Self { before: baseline, spare: runs.div_ceil(2), discarded: 0 }
    }

    /// Takes the baseline after a run; returns the mean to compare the run with, or `None` if the run does not count.
    pub(super) fn accept(&mut self, after: f64) -> Option<f64> {
        let before = std::mem::replace(&mut self.before, after);
        if !agree(before, after) && self.spare > 0 {
            self.spare -= 1;
            self.discarded += 1;
            return None;
        }
        Some(f64::midpoint(before, after))
    }

    /// Returns the number of runs that did not count.
    pub(super) const fn discarded(&self) -> u64 {
        self.discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_compared_with_the_mean_of_its_two_baselines() {
        let mut guard = BaselineGuard::new(40.0, 3);
        assert_eq!([50.0, 34.0, 36.0].map(|after| guard.accept(after)), [Some(45.0), Some(42.0), Some(35.0)]);
        assert_eq!(guard.discarded(), 0);
    }

    #[test]
    fn a_run_between_baselines_that_differ_does_not_count() {
        let mut guard = BaselineGuard::new(90.0, 3);
        assert_eq!(
            [30.0, 30.0, 90.0, 90.0].map(|after| guard.accept(after)),
            [None, Some(30.0), None, Some(90.0)]
        );
        assert_eq!(guard.discarded(), 2);
    }

    #[test]
    fn once_the_budget_is_spent_every_run_counts() {
        let mut guard = BaselineGuard::new(90.0, 3);
        assert_eq!([10.0, 90.0, 10.0].map(|after| guard.accept(after)), [None, None, Some(50.0)]);
        assert_eq!(guard.discarded(), 2);
    }
}
