//! What reports have in common: units, and the middle of several runs.

/// Parses a size in bytes: `4096`, `64k`, `1M`.
///
/// # Errors
/// What is wrong with the text.
pub fn size(text: &str) -> Result<u64, String> {
    iwarp_config::parse_size(text)
}

/// Gbit/s of so many bytes in so many seconds.
#[must_use]
pub fn bandwidth_gbps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 }
}

/// The middle one; with an even number of them, the lower of the two. 0 of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().saturating_sub(1) / 2;
    sorted.get(middle).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_one_of_them() {
        assert_eq!([median(&[]), median(&[3.0]), median(&[9.0, 1.0, 5.0])], [0.0, 3.0, 5.0]);
        assert_eq!(median(&[4.0, 2.0]), 2.0);
    }

    #[test]
    fn gigabits() {
        assert!((bandwidth_gbps(125_000_000, 1.0) - 1.0).abs() < 1e-9);
        assert_eq!(bandwidth_gbps(1, 0.0), 0.0);
    }
}
