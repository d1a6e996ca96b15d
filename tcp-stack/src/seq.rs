//! TCP sequence numbers, modulo 2^32.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence or acknowledgment number.
///
/// RFC 9293 §3.4: "all arithmetic dealing with sequence numbers must be performed modulo 2^32". Two numbers are
/// ordered by the shorter way around the circle, which is right as long as they are less than 2^31 apart. That
/// order is not transitive over the whole circle, so named methods provide it instead of `Ord`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(u32);

impl SeqNum {
    /// Makes the number with this value on the wire.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Returns the value on the wire.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the distance from `origin` to `self`, bytes: negative if `self` lies before.
    #[inline]
    pub const fn offset_from(self, origin: Self) -> i32 {
        self.0.wrapping_sub(origin.0).cast_signed()
    }

    /// Returns the distance from `origin` up to `self`, bytes: 0..2^32.
    #[inline]
    pub const fn distance_from(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0)
    }

    /// True if `self` comes before `other`.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        self.offset_from(other) < 0
    }

    /// True if `self` comes before `other` or equals it.
    #[inline]
    pub const fn at_or_before(self, other: Self) -> bool {
        self.offset_from(other) <= 0
    }

    /// True if `self` comes after `other`.
    #[inline]
    pub const fn after(self, other: Self) -> bool {
        self.offset_from(other) > 0
    }

    /// True if `self` comes after `other` or equals it.
    #[inline]
    pub const fn at_or_after(self, other: Self) -> bool {
        self.offset_from(other) >= 0
    }

    /// True if `self` is one of the `len` numbers that begin with `start`.
    #[inline]
    pub const fn is_within(self, start: Self, len: u32) -> bool {
        self.distance_from(start) < len
    }

    /// Returns the later of two numbers.
    #[inline]
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }

    /// Returns the earlier of two numbers.
    #[inline]
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.before(self) { other } else { self }
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::SeqNum;
    use proptest::prelude::*;

    #[test]
    fn order_follows_the_shorter_way_round() {
        let last = SeqNum::new(u32::MAX);
        let first = SeqNum::new(0);
        assert!(last.before(first) && first.after(last));
        assert!(last.at_or_before(last) && last.at_or_after(last));
        assert_eq!(last + 1, first);
        assert_eq!(first - 1, last);
        assert_eq!(first.offset_from(last), 1);
        assert_eq!(last.offset_from(first), -1);
        assert_eq!(last.distance_from(first), u32::MAX);
        assert_eq!(last.max(first), first);
        assert_eq!(last.min(first), last);
        assert!(first.is_within(last, 2) && !first.is_within(last, 1));
        assert!(!last.is_within(last, 0));
    }

    proptest! {
        #[test]
        fn addition_moves_after(start: u32, by in 1u32..=0x7fff_ffff) {
            let start = SeqNum::new(start);
            let end = start + by;
            prop_assert!(end.after(start) && start.before(end));
            prop_assert_eq!(end.distance_from(start), by);
            prop_assert_eq!(end - by, start);
            prop_assert_eq!(start.max(end), end);
            prop_assert_eq!(start.min(end), start);
        }
    }
}
