//! Pseudo-random numbers, reproducible from a seed.

/// SplitMix64 (Steele, Lea and Flood, 2014): small, fast, and sufficient for random loss.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the sequence of `seed` and `stream`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(stream);
        Self(seed ^ mixed.next())
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the next number scaled to 0.0 (inclusive) to 1.0 (exclusive).
    pub(crate) fn share(&mut self) -> f64 {
        // A double holds 53 bits exactly.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn a_seed_and_a_stream_determine_the_sequence() {
        let of = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(of(1, 2), of(1, 2));
        assert_ne!(of(1, 2), of(1, 3));
        assert_ne!(of(1, 2), of(2, 2));
    }

    #[test]
    fn random_numbers_are_uniform() {
        let mut random = Random::new(7, 0);
        let below = (0..100_000).filter(|_| random.share() < 0.03).count();
        assert!((2800..3200).contains(&below), "{below} of 100000 below 3 %");
    }
}
