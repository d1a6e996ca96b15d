//! Keeps the runs of a comparison on CPUs that are equally far apart.
//!
//! A hypervisor moves a virtual CPU, within seconds, to a core from which a cache line takes three to five times as
//! long to the other one. Results before and after such a move do not compare.

use std::time::Duration;

use anyhow::Result;

use crate::clock::pause;
use crate::hand_off::hand_off_ns;
use crate::{Cores, Stopwatch};

/// Time for which a new placement is looked for that is nearer than the first.
const SURVEY: Duration = Duration::from_secs(2);
/// Times that a run waits for the placement, and times that it is repeated.
const ATTEMPTS: u32 = 5;
/// Longest wait for the CPUs to come back, per attempt.
const WAIT: Duration = Duration::from_secs(3);
/// Time between two looks.
const STEP: Duration = Duration::from_millis(20);

/// Returns true if two measurements, which a move of a CPU changes, are of the same placement: they differ by half at
/// most. Load on the host changes them less, a move more.
pub(crate) fn agree(one: f64, other: f64) -> bool {
    one.max(other) <= one.min(other) * 1.5
}

/// The placement of two CPUs by the hypervisor: the time that a cache line takes between them.
#[derive(Debug)]
pub(crate) struct Placement<F> {
    /// Measures the hand-off time, nanoseconds.
    hand_off_ns: F,
    wait: Duration,
    reference_ns: f64,
    repeated: u64,
    moved: u64,
}

impl Placement<()> {
    /// Takes the nearest placement of two seconds as the reference.
    ///
    /// # Errors
    /// A CPU is not available.
    pub(crate) fn survey(cores: Cores) -> Result<Placement<impl FnMut() -> Result<f64>>> {
        Placement::new(move || hand_off_ns(cores), SURVEY, WAIT)
    }
}

impl<F: FnMut() -> Result<f64>> Placement<F> {
    fn new(mut hand_off_ns: F, survey: Duration, wait: Duration) -> Result<Self> {
        let (watch, mut reference_ns) = (Stopwatch::start(), hand_off_ns()?);
        while watch.elapsed() < survey {
            pause(STEP);
            reference_ns = reference_ns.min(hand_off_ns()?);
        }
        Ok(Self { hand_off_ns, wait, reference_ns, repeated: 0, moved: 0 })
    }

    /// Measures while the CPUs are as far apart as in the reference, before and after. Repeats a run during which they
    /// moved. Once that has failed five times, the present placement becomes the reference.
    ///
    /// # Errors
    /// Those of `run`; a CPU is not available.
    pub(crate) fn measure<T>(&mut self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..ATTEMPTS {
            if !self.comes_back()? {
                continue;
            }
            let result = run()?;
            if self.is_reference()? {
                return Ok(result);
            }
            self.repeated = self.repeated.saturating_add(1);
        }
        self.reference_ns = (self.hand_off_ns)()?;
        self.moved = self.moved.saturating_add(1);
        run()
    }

    /// Returns the hand-off time of the reference, nanoseconds.
    pub(crate) const fn reference_ns(&self) -> f64 {
        self.reference_ns
    }

    /// Returns the number of runs that were repeated.
    pub(crate) const fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Returns the number of times that another placement became the reference.
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns true if the CPUs are placed like the reference now.
    fn is_reference(&mut self) -> Result<bool> {
        let now = (self.hand_off_ns)()?;
        Ok(agree(now, self.reference_ns))
    }

    /// Waits until the CPUs are placed like the reference; returns false after the longest wait.
    fn comes_back(&mut self) -> Result<bool> {
        let watch = Stopwatch::start();
        while !self.is_reference()? {
            if watch.elapsed() >= self.wait {
                return Ok(false);
            }
            pause(STEP);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Measures three runs while the hand-off times are those of `times`, the last one for ever. Returns what
    /// [`Placement`] counts, and the number of runs.
    fn three_runs(times: &[f64]) -> (f64, u64, u64, u32) {
        let times = RefCell::new(times.iter().copied());
        let last = Cell::new(0.0);
        let hand_off = || {
            last.set(times.borrow_mut().next().unwrap_or(last.get()));
            Ok(last.get())
        };
        let (mut placement, mut runs) =
            (Placement::new(hand_off, Duration::ZERO, Duration::ZERO).unwrap(), 0);
        for _ in 0..3 {
            placement
                .measure(|| {
                    runs += 1;
                    Ok(())
                })
                .unwrap();
        }
        (placement.reference_ns(), placement.repeated(), placement.moved(), runs)
    }

    #[test]
    fn every_run_counts_while_the_cpus_stay() {
        assert_eq!(three_runs(&[30.0, 31.0, 33.0, 29.0, 40.0, 31.0, 30.0]), (30.0, 0, 0, 3));
    }

    #[test]
    fn a_run_during_which_a_cpu_moved_is_repeated_where_it_was_before() {
        // Before and after: near and far; far, waits; near and near; twice near and near.
        assert_eq!(three_runs(&[30.0, 30.0, 120.0, 120.0, 30.0, 30.0, 30.0]), (30.0, 1, 0, 4));
    }

    #[test]
    fn cpus_that_stay_away_are_measured_there() {
        assert_eq!(three_runs(&[30.0, 120.0]), (120.0, 0, 1, 3));
    }

    #[test]
    fn a_move_to_a_nearer_place_counts_too() {
        assert_eq!(three_runs(&[120.0, 120.0, 30.0]), (30.0, 1, 1, 4));
    }
}
