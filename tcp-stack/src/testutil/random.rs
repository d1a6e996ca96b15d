//! Random numbers that are the same wherever the seed is the same.

/// A small generator (SplitMix64), good enough to choose what a simulated network does.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that starts from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// A number below `bound`; zero when that is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no division, and a bias that no test could see.
        let product = u128::from(self.next()).wrapping_mul(u128::from(bound));
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// An index into something of `len` elements; zero when it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(u64::try_from(len).unwrap_or(u64::MAX))).unwrap_or(0)
    }

    /// A byte.
    pub const fn byte(&mut self) -> u8 {
        let [byte, ..] = self.next().to_be_bytes();
        byte
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.wrapping_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// `true` in so many cases out of a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// A generator of its own, for another part of the simulation.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A 32-byte seed.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for chunk in seed.as_chunks_mut::<8>().0 {
            *chunk = self.next().to_le_bytes();
        }
        seed
    }
}
