//! Whether the machine stayed what it was while something ran.
//!
//! What carries a virtual machine may move one of its cores in the middle of a run to where the other is three times as far
//! away. A run counts that stands between two gauges that agree, and is compared with both.

/// By how much two gauges may differ, the greater by the less: what neighbors do is less, another place is more.
const AGREE: f64 = 1.5;

/// The gauge, measured before the first run and after each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    before: f64,
    /// Runs that may still be thrown away.
    spare: usize,
    thrown: u64,
}

impl Steady {
    /// Before so many runs that are to count: half as many more may be thrown away, and the rest counts as it is.
    pub(super) const fn new(gauge: f64, runs: usize) -> Self {
        Self { before: gauge, spare: runs.div_ceil(2), thrown: 0 }
    }

    /// After a run: what to compare it with; `None` where it does not count.
    pub(super) fn judge(&mut self, after: f64) -> Option<f64> {
        let before = std::mem::replace(&mut self.before, after);
        if before.max(after) > before.min(after) * AGREE && self.spare > 0 {
            self.spare -= 1;
            self.thrown += 1;
            return None;
        }
        Some(f64::midpoint(before, after))
    }

    /// Runs that did not count.
    pub(super) const fn thrown(&self) -> u64 {
        self.thrown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_compared_with_what_is_around_it() {
        let mut steady = Steady::new(40.0, 3);
        assert_eq!([50.0, 34.0, 36.0].map(|after| steady.judge(after)), [Some(45.0), Some(42.0), Some(35.0)]);
        assert_eq!(steady.thrown(), 0);
    }

    #[test]
    fn what_ran_while_the_machine_changed_does_not_count() {
        let mut steady = Steady::new(90.0, 3);
        assert_eq!(
            [30.0, 30.0, 90.0, 90.0].map(|after| steady.judge(after)),
            [None, Some(30.0), None, Some(90.0)]
        );
        assert_eq!(steady.thrown(), 2);
    }

    #[test]
    fn a_machine_that_never_rests_is_measured_all_the_same() {
        let mut steady = Steady::new(90.0, 3);
        assert_eq!([10.0, 90.0, 10.0].map(|after| steady.judge(after)), [None, None, Some(50.0)]);
        assert_eq!(steady.thrown(), 2);
    }
}
