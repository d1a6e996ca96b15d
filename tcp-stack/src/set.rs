//! Sets of at most eight enum values, in one byte. A connection keeps its pending notices and queues in such sets.

use core::fmt;
use core::marker::PhantomData;

/// A type whose values a [`Set`] can hold.
pub(crate) trait Member: Copy {
    /// Returns the value's bit number: less than 8.
    fn number(self) -> u8;
}

/// A set of at most eight different values, one bit each.
#[derive(Clone, Copy)]
pub(crate) struct Set<T>(u8, PhantomData<T>);

impl<T: Member> Set<T> {
    pub(crate) const EMPTY: Self = Self(0, PhantomData);

    #[inline]
    fn bit(member: T) -> u8 {
        1_u8.wrapping_shl(member.number().into())
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn has(self, member: T) -> bool {
        self.0 & Self::bit(member) != 0
    }

    #[inline]
    pub(crate) fn add(&mut self, member: T) {
        self.0 |= Self::bit(member);
    }

    #[inline]
    pub(crate) fn add_if(&mut self, condition: bool, member: T) {
        self.0 |= if condition { Self::bit(member) } else { 0 };
    }

    #[inline]
    pub(crate) fn remove(&mut self, member: T) {
        self.0 &= !Self::bit(member);
    }

    /// Removes a value; returns true if the set held it.
    #[inline]
    pub(crate) fn take(&mut self, member: T) -> bool {
        let had = self.has(member);
        if had {
            self.remove(member);
        }
        had
    }
}

impl<T> fmt::Debug for Set<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010b}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Number(u8);

    impl Member for Number {
        fn number(self) -> u8 {
            self.0
        }
    }

    #[test]
    fn members_are_added_and_removed_independently() {
        let mut set = Set::EMPTY;
        for n in 0..8 {
            assert!(!set.has(Number(n)));
            set.add(Number(n));
            set.add_if(false, Number(n ^ 1));
            assert!((0..8).all(|other| set.has(Number(other)) == (other <= n)), "{set:?}");
        }
        for n in 0..8 {
            assert!(set.take(Number(n)) && !set.take(Number(n)));
            assert!((0..8).all(|other| set.has(Number(other)) == (other > n)), "{set:?}");
        }
        set.add_if(true, Number(3));
        assert!(set.has(Number(3)) && !set.is_empty());
        set.remove(Number(3));
        assert!(set.is_empty());
    }
}
