//! Pacing: spreads segments over time at a rate, in short bursts, instead of sending as fast as acknowledgments allow.
//!
//! ```text
//!   departure ──▶ advances with each segment by its time at the rate
//!      now ─────────┼──── ahead ────┤   a burst lasts while departure is in here,
//!                   ▲                   then sending waits until now has caught up
//! ```
//!
//! A burst lasts for many ticks of the timer wheel, so that a fast connection costs one timer per burst, not one per
//! segment, and the tick hardly delays the next one. A worker that polls its timers late makes up for the delay.

use core::time::Duration;

use crate::time::Instant;

/// Length of a burst as a shift of a second: 2^-13 s, 122 µs.
const BURST_SHIFT: u32 = 13;
/// Largest burst, bytes, unless two segments are larger.
const BURST_MAX: u64 = 64 << 10;
/// Longest delay of a worker that a burst makes up for.
const LATE_MAX: Duration = Duration::from_millis(10);

/// The state of a paced connection relative to its bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BurstState {
    /// Inside a burst, or idle.
    Open,
    /// Waiting for the next burst.
    Waiting,
    /// Inside a burst that began later than it might have.
    Late,
}

/// The pacing state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    /// Rate, bytes per second; 0 if not paced.
    rate: u64,
    /// Departure time of the next segment.
    departure: Instant,
    /// Duration of a burst at the rate, less half a segment, nanoseconds.
    ahead_ns: u32,
    state: BurstState,
}

impl Pacer {
    /// Returns a pacer that does not pace.
    pub(crate) const fn new() -> Self {
        Self { rate: 0, departure: Instant::ZERO, ahead_ns: 0, state: BurstState::Open }
    }

    /// Returns the rate, bytes per second, or `None` if not paced.
    pub(crate) fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }

    /// Returns the length of a burst at this rate (BBR.send_quantum), bytes: two segments or 122 µs, up to 64 KiB.
    pub(crate) fn quantum(rate: u64, mss: u32) -> u32 {
        let bytes = u32::try_from((rate >> BURST_SHIFT).min(BURST_MAX)).unwrap_or(u32::MAX);
        bytes.max(mss.saturating_mul(2))
    }

    /// Sets the rate, bytes per second; 0 stops pacing. A new rate costs two divisions.
    #[inline]
    pub(crate) fn set_rate(&mut self, rate: u64, mss: u32) {
        if rate != self.rate {
            self.rate = rate;
            // Half a segment less, so that a timer that is a little late does not add a segment to each burst.
            let burst = self.time_of(Self::quantum(rate, mss).saturating_sub(mss / 2)).as_nanos();
            self.ahead_ns = u32::try_from(burst).unwrap_or(u32::MAX);
        }
    }

    fn time_of(&self, bytes: u32) -> Duration {
        let nanos = u64::from(bytes).saturating_mul(1_000_000_000);
        Duration::from_nanos(nanos.checked_div(self.rate).unwrap_or(0))
    }

    /// Returns `None` if a segment may leave now, otherwise the time at which one may.
    #[inline]
    pub(crate) fn wait(&mut self, now: Instant) -> Option<Instant> {
        if self.rate == 0 {
            return None;
        }
        let ahead = Duration::from_nanos(u64::from(self.ahead_ns));
        if self.state == BurstState::Waiting {
            if now < self.departure {
                return Some(self.departure);
            }
            self.state = BurstState::Late;
            self.departure = self.departure.max(now - LATE_MAX);
        } else if self.departure >= now + ahead {
            self.state = BurstState::Waiting;
            return Some(self.departure);
        }
        None
    }

    /// Accounts for a segment of `bytes` bytes that leaves now.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) {
        if self.rate == 0 {
            return;
        }
        if self.state == BurstState::Late && self.departure >= now {
            self.state = BurstState::Open;
        }
        let floor = if self.state == BurstState::Late { now - LATE_MAX } else { now };
        self.departure = self.departure.max(floor) + self.time_of(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    /// Sends all that may leave at `now`; returns its bytes.
    fn burst(pacer: &mut Pacer, now: Instant) -> u32 {
        let mut bytes = 0;
        while pacer.wait(now).is_none() && bytes < 20_000_000 {
            pacer.on_sent(now, 1000);
            bytes += 1000;
        }
        bytes
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::new();
        assert_eq!(burst(&mut pacer, us(0)), 20_000_000);
        assert_eq!(pacer.rate(), None);
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_next_one_when_its_time_has_passed() {
        let mut pacer = Pacer::new();
        // 1 MB/s: two segments of 1000 bytes, 2 ms.
        pacer.set_rate(1_000_000, 1000);
        assert_eq!(burst(&mut pacer, us(10_000)), 2000);
        assert_eq!(pacer.wait(us(10_000)), Some(us(12_000)));
        assert_eq!(burst(&mut pacer, us(11_999)), 0);
        assert_eq!(burst(&mut pacer, us(12_000)), 2000);
        // After an idle time no more than a burst leaves.
        assert_eq!(
            burst(&mut pacer, us(500_000)),
            2000 + 10_000,
            "late by more than 10 ms: these are made up for"
        );
        assert_eq!(burst(&mut pacer, us(900_000)), 12_000);
    }

    #[test]
    fn an_idle_connection_saves_nothing() {
        let mut pacer = Pacer::new();
        pacer.set_rate(1_000_000, 1000);
        pacer.on_sent(us(0), 1000);
        assert_eq!(burst(&mut pacer, us(500_000)), 2000);
    }

    #[test]
    fn burst_length_follows_the_rate() {
        assert_eq!(Pacer::quantum(1_000, 1000), 2000);
        // 1 Gbit/s, 122 µs.
        assert_eq!(Pacer::quantum(125_000_000, 1448), 15_258);
        assert_eq!(Pacer::quantum(12_500_000_000, 1448), 65_536);
        assert_eq!(Pacer::quantum(12_500_000_000, 40_000), 80_000);
        assert_eq!(Pacer::quantum(u64::MAX, u32::MAX), u32::MAX);
    }

    /// The rate holds however late the worker polls, up to 10 ms.
    #[test]
    fn the_rate_holds_for_any_timer_delay() {
        for step in [1, 16, 131, 777, 5_000, 9_000] {
            for rate in [100_000, 12_500_000, 1_250_000_000_u64] {
                let mut pacer = Pacer::new();
                pacer.set_rate(rate, 1000);
                let (mut bytes, mut now) = (0_u64, 0);
                while now < 1_000_000 {
                    bytes += u64::from(burst(&mut pacer, us(now)));
                    now += step;
                }
                let slack = rate / 100 + 5 * u64::from(Pacer::quantum(rate, 1000));
                assert!(bytes.abs_diff(rate) <= slack, "{rate} every {step} us: {bytes}");
            }
        }
    }
}
