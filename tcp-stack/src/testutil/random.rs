//! Reproducible random numbers for simulations and tests: equal seeds give equal sequences on every machine.

/// A small generator (SplitMix64), good enough to drive a simulated network.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator that starts from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 random bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number below `bound`, or zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no division, and a bias that no test could see.
        let product = u128::from(self.next()).wrapping_mul(u128::from(bound));
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// Returns an index below `len`, or zero if `len` is zero.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap_or(u64::MAX))).unwrap_or(0)
    }

    /// Returns a random byte.
    pub const fn byte(&mut self) -> u8 {
        let [byte, ..] = self.next().to_be_bytes();
        byte
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.wrapping_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// Returns true with a probability of `per_million` out of a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// Returns an independent generator for another part of the simulation.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// Returns 32 random bytes, a stack's seed.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for chunk in seed.as_chunks_mut::<8>().0 {
            *chunk = self.next().to_le_bytes();
        }
        seed
    }
}
