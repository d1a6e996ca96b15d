//! The same thing measured several times.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Several runs: their median, and how far they lie apart.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Samples {
    /// The one in the middle; of an even number the mean of the two there.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// All, in the order in which they were measured.
    pub runs: Vec<f64>,
}

impl Samples {
    /// From what was measured.
    ///
    /// # Errors
    /// Nothing was measured, or something that is no number.
    pub fn new(runs: Vec<f64>) -> Result<Self> {
        ensure!(!runs.is_empty(), "no run");
        ensure!(runs.iter().all(|it| it.is_finite()), "a run without a number: {runs:?}");
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let (last, middle) = (sorted.len().saturating_sub(1), sorted.len() / 2);
        let median = f64::midpoint(at(middle), at(last / 2));
        Ok(Self { median, min: at(0), max: at(last), runs })
    }

    /// `median (min to max)`, each with so many decimals.
    pub fn show(&self, decimals: usize) -> String {
        let Self { median, min, max, runs: _ } = self;
        format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Samples::new(vec![9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 9.0));
        let even = Samples::new(vec![4.0, 1.0, 2.0, 8.0]).unwrap();
        assert_eq!((even.median, even.runs.len()), (3.0, 4));
        assert_eq!(even.show(1), "3.0 (1.0 to 8.0)");
        assert!(Samples::new(Vec::new()).is_err());
        assert!(Samples::new(vec![f64::NAN]).is_err());
    }
}
