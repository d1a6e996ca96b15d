//! Time, which callers pass as an argument: the stack never reads a clock.

use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A point in time: nanoseconds since a start that the caller chose once. It must never go back.
///
/// Arithmetic saturates: 2^64 ns are 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The start of time.
    pub const ZERO: Self = Self(0);
    /// The end of time, later than any event.
    pub const MAX: Self = Self(u64::MAX);

    /// Makes the instant `nanos` nanoseconds after the start.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Makes the instant `micros` microseconds after the start.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Makes the instant `millis` milliseconds after the start.
    #[inline]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the start.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the start.
    #[inline]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the nanoseconds from `earlier` to `self`; zero if `earlier` is later. Per-segment code uses it
    /// instead of [`Duration`], whose construction takes a division.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the instant `nanos` nanoseconds later.
    #[inline]
    #[must_use]
    pub(crate) const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A point in time in units of 2^`SHIFT` ns, modulo 2^32, for fields of segments and connections. The difference of
/// two is exact if they are less than 2^32 units apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units<const SHIFT: u32>(u32);

/// A time in units of 256 ns, with a range of 18 minutes.
pub(crate) type Stamp = Units<8>;
/// A time in units of about 1 ms, with a range of 52 days: for intervals that a 32-bit number of milliseconds
/// limits, and for uses that tolerate an error once in 52 days.
pub(crate) type MilliStamp = Units<20>;

impl<const SHIFT: u32> Units<SHIFT> {
    /// The start of time.
    pub(crate) const ZERO: Self = Self(0);
    /// Mask of the nanoseconds below one unit.
    const PART: u64 = (1 << SHIFT) - 1;

    /// Rounds an instant down to a unit.
    #[inline]
    pub(crate) fn of(at: Instant) -> Self {
        let [.., a, b, c, d] = (at.0 >> SHIFT).to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }

    /// Returns the time from `earlier` to `self`, nanoseconds, exact to a unit.
    #[inline]
    pub(crate) fn nanos_since(self, earlier: Self) -> u64 {
        u64::from(self.0.wrapping_sub(earlier.0)) << SHIFT
    }

    /// Returns the time elapsed since: never too short, and at most one unit too long.
    #[inline]
    pub(crate) fn age(self, now: Instant) -> Duration {
        Duration::from_nanos(self.age_nanos(now))
    }

    /// Same as [`Self::age`], in nanoseconds.
    #[inline]
    pub(crate) fn age_nanos(self, now: Instant) -> u64 {
        let part = now.0 & Self::PART;
        Self::of(now).nanos_since(self) | part
    }

    /// Returns the time `other` units later, modulo 2^32.
    #[inline]
    pub(crate) const fn wrapping_add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// Returns the time from `earlier` to `self`, as a number of units modulo 2^32.
    #[inline]
    pub(crate) const fn wrapping_sub(self, earlier: Self) -> Self {
        Self(self.0.wrapping_sub(earlier.0))
    }

    /// Returns the number of units.
    #[inline]
    pub(crate) const fn get(self) -> u32 {
        self.0
    }
}

/// A point in time in units of 262 µs, modulo 9 years, in 5 bytes: for times as long ago as a connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongStamp([u8; 5]);

impl LongStamp {
    /// The unit is 2^18 ns.
    const SHIFT: u32 = 18;
    const MASK: u64 = (1 << 40) - 1;

    /// Rounds an instant down to a unit.
    #[inline]
    pub(crate) const fn of(at: Instant) -> Self {
        let [_, _, _, a, b, c, d, e] = (at.0 >> Self::SHIFT).to_be_bytes();
        Self([a, b, c, d, e])
    }

    /// Returns the time elapsed since: never too short, and at most one unit too long.
    #[inline]
    pub(crate) const fn age(self, now: Instant) -> Duration {
        let [a, b, c, d, e] = self.0;
        let then = u64::from_be_bytes([0, 0, 0, a, b, c, d, e]);
        let units = (now.0 >> Self::SHIFT).wrapping_sub(then) & Self::MASK;
        Duration::from_nanos(units << Self::SHIFT | now.0 & ((1 << Self::SHIFT) - 1))
    }
}

/// Returns a duration in nanoseconds, saturated to 64 bits.
#[inline]
pub(crate) const fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    #[inline]
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, LongStamp, MilliStamp, Stamp};

    #[test]
    fn arithmetic_saturates() {
        let second = Duration::from_secs(1);
        assert_eq!(Instant::ZERO - second, Instant::ZERO);
        assert_eq!(Instant::MAX + second, Instant::MAX);
        assert_eq!(Instant::ZERO + Duration::MAX, Instant::MAX);
        assert_eq!(Instant::ZERO - Instant::from_millis(1), Duration::ZERO);
        assert_eq!(Instant::from_millis(3) - Instant::from_micros(1_000), Duration::from_millis(2));
        assert_eq!(Instant::from_millis(u64::MAX), Instant::MAX);
    }

    #[test]
    fn units_agree() {
        let at = Instant::from_millis(1_234);
        assert_eq!((at.as_nanos(), at.as_micros(), at.as_millis()), (1_234_000_000, 1_234_000, 1_234));
        assert_eq!(at, Instant::from_micros(1_234_000));
        assert_eq!(at, Instant::from_nanos(1_234_000_000));
    }

    #[test]
    fn stamps_wrap() {
        let before = Instant::from_nanos((1 << 40) - 1000);
        let after = before + Duration::from_micros(100);
        assert!(Stamp::of(after).nanos_since(Stamp::of(before)).abs_diff(100_000) <= 256);
    }

    #[test]
    fn ages_are_right_across_the_wrap_and_never_too_short() {
        for (units, most) in [(52, 1_u64 << 52), (58, 1 << 58)] {
            for nanos in [0, 1, 1_000_000, 3_600_000_000_000, most / 2, most - (1 << 25)] {
                let then = Instant::from_nanos((1 << units) - 777_777);
                let (now, exact) = (then + Duration::from_nanos(nanos), Duration::from_nanos(nanos));
                let (age, unit) = if units == 52 {
                    (MilliStamp::of(then).age(now), 1 << 20)
                } else {
                    (LongStamp::of(then).age(now), 1 << 18)
                };
                assert!(age >= exact && age <= exact + Duration::from_nanos(unit), "{age:?} {exact:?}");
            }
        }
    }
}
