//! Round-trip time estimation and the retransmission timeout (RFC 6298).

use core::time::Duration;

use crate::time::{Instant, MilliStamp, nanos};

/// RFC 6298 §2.1: "Until a round-trip time (RTT) measurement has been made [...] the sender SHOULD set
/// RTO <- 1 second".
const RTO_INITIAL: Duration = Duration::from_secs(1);

/// RFC 6298 §5.7: "If the timer expires awaiting the ACK of a SYN segment [...] the RTO MUST be
/// re-initialized to 3 seconds when data transmission begins".
const RTO_AFTER_SYN_LOSS: Duration = Duration::from_secs(3);
/// Longest first sample accepted after the SYN was retransmitted; it gives a timeout of three seconds, too.
pub(crate) const SYN_SAMPLE_MAX: Duration = Duration::from_secs(1);

/// Lifetime of a minimum (RFC 8985 §6.2 step 1: a "windowed min-filtered estimate").
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// Unit of stored times, as a shift: 2^4 ns, so that 32 bits hold 68 seconds, the longest round trip.
const UNIT_SHIFT: u32 = 4;

/// The estimator of one connection. All times are in units of 16 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    srtt: u32,
    rttvar: u32,
    min_rtt: u32,
    /// Time of the minimum. Once in 52 days an expired one may be kept for 300 seconds more.
    min_rtt_at: MilliStamp,
    /// Number of samples. RFC 6298 §2.3 needs no more than one per round trip; the loss probe's rule counts them (RFC
    /// 8985 §7.3).
    samples: u32,
    syn_lost: bool,
}

/// Converts nanoseconds to units, at least one.
#[inline]
pub(super) fn units(nanos: u64) -> u32 {
    u32::try_from(nanos >> UNIT_SHIFT).unwrap_or(u32::MAX).max(1)
}

/// Converts units to nanoseconds.
#[inline]
pub(super) const fn nanos_of(units: u32) -> u64 {
    (units as u64) << UNIT_SHIFT
}

pub(super) fn duration(units: u32) -> Duration {
    Duration::from_nanos(nanos_of(units))
}

impl RttEstimator {
    pub(crate) const fn new() -> Self {
        Self {
            srtt: 0,
            rttvar: 0,
            min_rtt: u32::MAX,
            min_rtt_at: MilliStamp::ZERO,
            samples: 0,
            syn_lost: false,
        }
    }

    /// Adds a measurement (§2.2, §2.3).
    pub(crate) fn sample(&mut self, now: Instant, rtt: Duration) {
        self.sample_nanos(now, nanos(rtt));
    }

    /// As [`Self::sample`], with nanoseconds.
    #[inline]
    pub(crate) fn sample_nanos(&mut self, now: Instant, rtt: u64) {
        let rtt = units(rtt);
        if self.samples == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            // RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|, beta = 1/4
            let deviation = self.srtt.abs_diff(rtt);
            self.rttvar = self.rttvar.saturating_sub(self.rttvar / 4).saturating_add(deviation / 4);
            // SRTT <- (1 - alpha) * SRTT + alpha * R', alpha = 1/8
            self.srtt = self.srtt.saturating_sub(self.srtt / 8).saturating_add(rtt / 8);
        }
        self.samples = self.samples.saturating_add(1);
        if rtt <= self.min_rtt || self.min_rtt_at.age_nanos(now) > nanos(MIN_RTT_WINDOW) {
            self.min_rtt = rtt;
            self.min_rtt_at = MilliStamp::of(now);
        }
    }

    /// Notes that the handshake needed more than one SYN.
    pub(crate) fn on_syn_lost(&mut self) {
        self.syn_lost = true;
    }

    /// Returns RTO <- SRTT + max (G, K*RTTVAR), K = 4, within the configured bounds (§2.2 to §2.5), before any backoff.
    pub(crate) fn rto(&self, min: Duration, max: Duration) -> Duration {
        Duration::from_nanos(self.rto_nanos(nanos(min), nanos(max)))
    }

    /// As [`Self::rto`], with nanoseconds.
    #[inline]
    pub(crate) fn rto_nanos(&self, min: u64, max: u64) -> u64 {
        if self.samples == 0 {
            let initial = if self.syn_lost { RTO_AFTER_SYN_LOSS } else { RTO_INITIAL };
            return nanos(initial).clamp(min, max.max(min));
        }
        // G, the granularity, is the wheel's tick of 8 µs.
        let variance = nanos_of(self.rttvar).saturating_mul(4).max(1 << 13);
        nanos_of(self.srtt).saturating_add(variance).clamp(min, max.max(min))
    }

    /// Returns the smoothed round-trip time, or `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        (self.samples > 0).then_some(duration(self.srtt))
    }

    pub(crate) fn rttvar(&self) -> Duration {
        duration(self.rttvar)
    }

    /// As [`Self::srtt`], in nanoseconds.
    #[inline]
    pub(crate) fn srtt_nanos(&self) -> Option<u64> {
        (self.samples > 0).then_some(nanos_of(self.srtt))
    }

    /// As [`Self::min_rtt`], in nanoseconds.
    #[inline]
    pub(crate) fn min_rtt_nanos(&self) -> Option<u64> {
        (self.samples > 0).then_some(nanos_of(self.min_rtt))
    }

    /// Returns the smallest recent round-trip time, or `None` before the first sample.
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        (self.samples > 0).then_some(duration(self.min_rtt))
    }

    /// Returns the number of samples taken.
    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(1);
    const MAX: Duration = Duration::from_secs(60);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn before_any_sample_the_timeout_is_one_second() {
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.rto(MIN, MAX), ms(1000));
        rtt.on_syn_lost();
        assert_eq!(rtt.rto(MIN, MAX), ms(3000));
    }

    #[test]
    fn first_and_second_sample_follow_the_formulas() {
        let mut rtt = RttEstimator::new();
        rtt.sample(Instant::ZERO, ms(100));
        // SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(100)), ms(50)));
        assert_eq!(rtt.rto(MIN, MAX), ms(300));
        rtt.sample(Instant::ZERO, ms(180));
        // RTTVAR = 3/4 * 50 + 1/4 * 80 = 57.5, SRTT = 7/8 * 100 + 1/8 * 180 = 110.
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(110)), Duration::from_micros(57_500)));
        assert_eq!(rtt.rto(MIN, MAX), ms(340));
    }

    #[test]
    fn bounds_hold() {
        let mut rtt = RttEstimator::new();
        rtt.sample(Instant::ZERO, Duration::from_nanos(0));
        assert_eq!(rtt.rto(ms(200), MAX), ms(200));
        rtt.sample(Instant::ZERO, Duration::MAX);
        assert_eq!(rtt.rto(ms(200), MAX), MAX);
    }

    #[test]
    fn the_minimum_is_windowed() {
        let mut rtt = RttEstimator::new();
        rtt.sample(Instant::ZERO, ms(10));
        rtt.sample(Instant::from_millis(1000), ms(50));
        assert_eq!(rtt.min_rtt(), Some(ms(10)));
        rtt.sample(Instant::from_millis(400_000), ms(50));
        assert_eq!(rtt.min_rtt(), Some(ms(50)), "the path became longer");
    }
}
