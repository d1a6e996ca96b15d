//! The load of the path when a segment left, in 32 bits: how much was in flight, and how much had been lost.
//!
//! Both are counted in a unit of 2^s bytes, which the amount in flight determines, so that it takes 11 bits:
//!
//! ```text
//!   31        30 ──── 16         15 ── 11   10 ────── 0
//!   app_limited   lost, modulo 2^15    s       in flight
//! ```
//!
//! The unit is at most a 1024th of what was in flight. The losses of 16 times that amount wrap, but a segment does
//! not stay in flight for that long.

/// Significant bits of the amount in flight.
const IN_FLIGHT_BITS: u32 = 11;
const IN_FLIGHT_MASK: u32 = (1 << IN_FLIGHT_BITS) - 1;
const SHIFT_MASK: u32 = 31;
const LOST_AT: u32 = 16;
const LOST_MASK: u32 = (1 << 15) - 1;
const APP_LIMITED: u32 = 1 << 31;

/// P.tx_in_flight, P.lost and P.is_app_limited of a segment (draft-ietf-ccwg-bbr-06 §4.1.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadStamp(u32);

impl LoadStamp {
    /// Returns the stamp of a segment of a connection whose congestion control needs no load.
    #[inline]
    pub(crate) const fn unloaded(app_limited: bool) -> Self {
        Self(if app_limited { APP_LIMITED } else { 0 })
    }

    /// Returns the same stamp with the load. `in_flight` includes the segment, bytes; `lost` is the sum of all bytes
    /// marked lost so far, modulo 2^32.
    #[must_use]
    pub(crate) const fn with_load(self, in_flight: u32, lost: u32) -> Self {
        let bits = u32::BITS.wrapping_sub(in_flight.leading_zeros());
        let shift = bits.saturating_sub(IN_FLIGHT_BITS);
        let lost = lost.wrapping_shr(shift) & LOST_MASK;
        let load = lost << LOST_AT | shift << IN_FLIGHT_BITS | in_flight.wrapping_shr(shift);
        Self(self.0 & APP_LIMITED | load)
    }

    /// Returns true if the application limited the sender.
    #[inline]
    pub(crate) const fn app_limited(self) -> bool {
        self.0 & APP_LIMITED != 0
    }

    const fn shift(self) -> u32 {
        self.0 >> IN_FLIGHT_BITS & SHIFT_MASK
    }

    /// Returns the amount in flight, bytes, rounded down to a unit.
    pub(crate) const fn in_flight(self) -> u32 {
        (self.0 & IN_FLIGHT_MASK).wrapping_shl(self.shift())
    }

    /// Returns the bytes lost since, exact to a unit; `lost` is the sum of all bytes marked lost by now, modulo 2^32.
    pub(crate) const fn lost_since(self, lost: u32) -> u32 {
        let shift = self.shift();
        let units = lost.wrapping_shr(shift).wrapping_sub(self.0 >> LOST_AT & LOST_MASK);
        // With a large unit the 32-bit sum has fewer than 15 bits left.
        (units & LOST_MASK & u32::MAX.wrapping_shr(shift)).wrapping_shl(shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_exact_to_a_thousandth() {
        let mut random = crate::testutil::Random::new(5);
        for app_limited in [false, true] {
            for _ in 0..20_000 {
                let bits = random.below(30);
                let in_flight = u32::try_from(random.below(2 << bits)).unwrap();
                let lost = u32::try_from(random.below(1 << 32)).unwrap();
                let stamp = LoadStamp::unloaded(app_limited).with_load(in_flight, lost);
                assert_eq!(stamp.app_limited(), app_limited);
                let unit = in_flight / 1024;
                assert!(in_flight - stamp.in_flight() <= unit, "{in_flight}: {}", stamp.in_flight());
                let since = u32::try_from(random.below(u64::from(in_flight) * 2 + 1)).unwrap();
                let told = stamp.lost_since(lost.wrapping_add(since));
                assert!(told.abs_diff(since) <= unit, "{in_flight} in flight, {since} lost: {told}");
            }
        }
    }

    #[test]
    fn small_loads_are_exact() {
        for in_flight in [0, 1, 1460, 2047] {
            let stamp = LoadStamp::unloaded(false).with_load(in_flight, u32::MAX - 5);
            assert_eq!((stamp.in_flight(), stamp.lost_since(4)), (in_flight, 10));
            assert_eq!(stamp.lost_since(u32::MAX - 5), 0);
        }
    }
}
