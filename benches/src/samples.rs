//! Units and statistics of results: sizes, bandwidths, medians, several runs.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Parses a size in bytes: `4096`, `64k`, `1M`.
///
/// # Errors
/// The text is no size; the error says why.
pub fn size(text: &str) -> Result<u64, String> {
    iwarp_config::parse_size(text)
}

/// Returns the bandwidth of `bytes` in `seconds`, Gbit/s; 0 if no time has passed.
#[must_use]
pub fn bandwidth_gbps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 }
}

/// Returns the median; of an even number of values the lower of the two in the middle, and 0 if there is none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().saturating_sub(1) / 2;
    sorted.get(middle).copied().unwrap_or(0.0)
}

/// Results of several runs: median, range and the runs themselves.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Samples {
    /// Median; of an even number of runs, the mean of the two in the middle.
    pub median: f64,
    /// Least value of a run.
    pub min: f64,
    /// Greatest value of a run.
    pub max: f64,
    /// All runs, in the order of measurement.
    pub runs: Vec<f64>,
}

impl Samples {
    /// Makes samples from the results of the runs.
    ///
    /// # Errors
    /// There is no run, or a result is not finite.
    pub fn new(runs: Vec<f64>) -> Result<Self> {
        ensure!(!runs.is_empty(), "no run");
        ensure!(runs.iter().all(|run| run.is_finite()), "a run without a number: {runs:?}");
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let (last, middle) = (sorted.len().saturating_sub(1), sorted.len() / 2);
        let median = f64::midpoint(at(middle), at(last / 2));
        Ok(Self { median, min: at(0), max: at(last), runs })
    }

    /// Formats `median (min to max)` with this number of decimals.
    pub fn show(&self, decimals: usize) -> String {
        let Self { median, min, max, runs: _ } = self;
        format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_median_of_their_runs() {
        let odd = Samples::new(vec![9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 9.0));
        let even = Samples::new(vec![4.0, 1.0, 2.0, 8.0]).unwrap();
        assert_eq!((even.median, even.runs.len()), (3.0, 4));
        assert_eq!(even.show(1), "3.0 (1.0 to 8.0)");
        assert!(Samples::new(Vec::new()).is_err());
        assert!(Samples::new(vec![f64::NAN]).is_err());
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!([median(&[]), median(&[3.0]), median(&[9.0, 1.0, 5.0])], [0.0, 3.0, 5.0]);
        assert_eq!(median(&[4.0, 2.0]), 2.0);
    }

    #[test]
    fn bandwidth_is_in_gigabits() {
        assert!((bandwidth_gbps(125_000_000, 1.0) - 1.0).abs() < 1e-9);
        assert_eq!(bandwidth_gbps(1, 0.0), 0.0);
    }
}
