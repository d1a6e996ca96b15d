//! Numbers in 16 bits.

/// Significant bits of a number.
const BITS: u32 = 12;
const FRACTION_BITS: u32 = BITS - 1;
const FRACTION_MASK: u64 = (1 << FRACTION_BITS) - 1;
/// Largest shift: with it a number reaches 2^42.
const SHIFT_MAX: u32 = 30;

/// A rate or a volume in 16 bits: exact up to 4095, rounded down by less than a 2048th above. Two of them compare as
/// the numbers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Coarse(u16);

impl Coarse {
    pub(super) const ZERO: Self = Self(0);
    /// No limit: the draft's "Infinity".
    pub(super) const INFINITY: Self = Self(u16::MAX);

    /// Rounds a number down to the nearest one that fits.
    pub(super) fn of(value: u64) -> Self {
        let bits = u64::BITS.saturating_sub(value.leading_zeros());
        let shift = bits.saturating_sub(BITS);
        if shift > SHIFT_MAX {
            return Self::INFINITY;
        }
        let number = value.wrapping_shr(shift);
        let encoded = if bits < BITS {
            number
        } else {
            u64::from(shift.saturating_add(1)) << FRACTION_BITS | number & FRACTION_MASK
        };
        Self(u16::try_from(encoded).unwrap_or(u16::MAX))
    }

    /// Returns the number; the largest one for infinity.
    pub(super) fn get(self) -> u64 {
        if self == Self::INFINITY {
            return u64::MAX;
        }
        let encoded = u64::from(self.0);
        match u32::from(self.0 >> FRACTION_BITS).checked_sub(1) {
            None => encoded,
            Some(shift) => (encoded & FRACTION_MASK | FRACTION_MASK.saturating_add(1)).wrapping_shl(shift),
        }
    }

    /// Returns the number times `percent` / 100.
    pub(super) fn percent(self, percent: u64) -> Self {
        if self == Self::INFINITY { self } else { Self::of(self.get().saturating_mul(percent) / 100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order_and_twelve_bits() {
        let mut random = crate::testutil::Random::new(9);
        for value in 0..=4095 {
            assert_eq!(Coarse::of(value).get(), value);
        }
        for _ in 0..50_000 {
            let bits = random.below(42);
            let (a, b) = (random.below(2 << bits), random.below(2 << bits));
            let (coarse_a, coarse_b) = (Coarse::of(a), Coarse::of(b));
            assert!(coarse_a.get() <= a && a - coarse_a.get() <= a / 2048, "{a}: {coarse_a:?}");
            assert!((a < b) == (coarse_a < coarse_b) || coarse_a == coarse_b, "{a} {b}");
            assert_eq!(Coarse::of(coarse_a.get()), coarse_a);
        }
    }

    #[test]
    fn what_does_not_fit_is_infinite() {
        assert!(Coarse::of((1 << 42) - (1 << 31)) < Coarse::INFINITY);
        for value in [1 << 42, u64::MAX] {
            assert_eq!(Coarse::of(value), Coarse::INFINITY);
        }
        assert_eq!((Coarse::INFINITY.get(), Coarse::INFINITY.percent(70)), (u64::MAX, Coarse::INFINITY));
        assert_eq!(Coarse::of(1000).percent(70).get(), 700);
    }
}
