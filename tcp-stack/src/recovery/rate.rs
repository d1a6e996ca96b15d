//! Delivery rate estimation (draft-cheng-iccrg-delivery-rate-estimation): measures how fast the network delivers.
//!
//! Each segment records at its last transmission how much had been delivered. When it is delivered itself, the bytes
//! delivered in between, divided by the time that took, are a sample of the rate:
//!
//! ```text
//!            first_sent ──────── sent                    the segments of the sample leave
//!   delivered_at (before) ─────────────── delivered_at   … and are acknowledged
//! ```
//!
//! The longer of the two intervals counts, so that compressed acknowledgments do not raise the rate.

use core::time::Duration;

use super::LoadStamp;
use crate::time::{Instant, Stamp, nanos};

/// Longest time in flight of a segment that gives a sample: beyond it the stamps may have wrapped.
const AGE_MAX: Duration = Duration::from_secs(500);

/// The state of the estimator when a segment was last sent, stored with the segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateStamp {
    /// P.delivered: bytes delivered by then, modulo 2^32.
    delivered: u32,
    /// P.delivered_time: time of the last of these deliveries.
    delivered_at: Stamp,
    /// P.first_sent_time: transmission time of the segment delivered last by then.
    first_sent_at: Stamp,
    /// P.tx_in_flight, P.lost and P.is_app_limited.
    pub(crate) load: LoadStamp,
}

/// A sample of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Bytes delivered in the interval.
    pub(crate) delivered: u32,
    /// Length of the interval, nanoseconds: at least 1.
    pub(crate) interval_ns: u64,
    /// Bytes that had been delivered when the segment of the sample was sent, modulo 2^32.
    pub(crate) prior_delivered: u32,
    /// True if the application limited the sender, so that the rate may be below the network's.
    pub(crate) app_limited: bool,
    /// The load of the path when the segment of the sample was sent.
    pub(crate) load: LoadStamp,
}

impl RateSample {
    /// Returns the rate, bytes per second.
    pub(crate) fn rate(&self) -> u64 {
        let bytes = u64::from(self.delivered).saturating_mul(1_000_000_000);
        bytes.checked_div(self.interval_ns).unwrap_or(0)
    }
}

/// The most recently sent of the segments that one acknowledgment delivers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewestDelivered {
    /// Its stamp and transmission time.
    segment: Option<(RateStamp, Instant)>,
    /// Transmission time of the latest of those that were sent only once.
    sent_once_at: Option<Instant>,
    /// Bytes that the acknowledgment delivers.
    pub(crate) delivered: u32,
}

impl NewestDelivered {
    /// Adds a segment of `len` bytes of sequence space that is newly known to have arrived.
    #[inline]
    pub(crate) fn on_delivered(&mut self, len: u32, stamp: RateStamp, sent_at: Instant, again: bool) {
        self.delivered = self.delivered.saturating_add(len);
        if self.segment.is_none_or(|(_, at)| sent_at >= at) {
            self.segment = Some((stamp, sent_at));
        }
        if !again {
            self.sent_once_at = self.sent_once_at.max(Some(sent_at));
        }
    }

    /// Returns the round-trip time that it shows (RFC 6298 §3: "RTT samples MUST NOT be made using segments that were
    /// retransmitted").
    pub(crate) fn rtt(&self, now: Instant) -> Option<Duration> {
        self.sent_once_at.map(|at| now.saturating_since(at))
    }
}

/// The delivery rate estimator of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryRate {
    /// C.delivered: bytes delivered, modulo 2^32.
    delivered: u32,
    delivered_at: Stamp,
    first_sent_at: Stamp,
    /// C.app_limited: value of C.delivered until which samples are application-limited.
    app_limited_until: Option<u32>,
    /// The last sample that counts: its bytes, and its interval in units of 256 ns.
    sampled: (u32, u32),
    sample_app_limited: bool,
}

impl DeliveryRate {
    /// Returns the bytes delivered so far, modulo 2^32.
    pub(crate) const fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Returns true if segments sent now are application-limited.
    pub(crate) const fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Returns the stamp of a segment that is sent now; `alone` is set if nothing else is outstanding.
    #[inline]
    pub(crate) fn on_send(&mut self, now: Instant, alone: bool) -> RateStamp {
        if alone {
            self.first_sent_at = Stamp::of(now);
            self.delivered_at = self.first_sent_at;
        }
        self.stamp(now, alone)
    }

    /// Returns the stamp that [`Self::on_send`] would, without side effects.
    #[inline]
    pub(crate) fn stamp(&self, now: Instant, alone: bool) -> RateStamp {
        let now = Stamp::of(now);
        RateStamp {
            delivered: self.delivered,
            delivered_at: if alone { now } else { self.delivered_at },
            first_sent_at: if alone { now } else { self.first_sent_at },
            load: LoadStamp::unloaded(self.app_limited_until.is_some()),
        }
    }

    /// Marks samples as application-limited until the `in_flight` bytes are delivered: the application had nothing to
    /// send although the network would have taken more.
    pub(crate) fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited_until = Some(self.delivered.wrapping_add(in_flight));
    }

    /// Processes an acknowledgment that delivered data; returns its sample. `min_rtt` is in nanoseconds: an interval
    /// below it, or an acknowledgment sooner after the transmission, means that an earlier transmission of the segment
    /// arrived after all.
    #[inline]
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        newest: &NewestDelivered,
        min_rtt: Option<u64>,
    ) -> Option<RateSample> {
        let (segment, sent_at) = newest.segment?;
        self.delivered = self.delivered.wrapping_add(newest.delivered);
        self.delivered_at = Stamp::of(now);
        self.first_sent_at = Stamp::of(sent_at);
        if self.app_limited_until.is_some_and(|until| self.delivered.wrapping_sub(until).cast_signed() > 0) {
            self.app_limited_until = None;
        }
        let send = self.first_sent_at.nanos_since(segment.first_sent_at);
        let ack = self.delivered_at.nanos_since(segment.delivered_at);
        let (interval_ns, age) = (send.max(ack), now.nanos_since(sent_at));
        // The stamps may be short by one unit.
        let least = min_rtt.unwrap_or(0).saturating_sub(1 << 8);
        if interval_ns == 0 || interval_ns < least || age < least || age > nanos(AGE_MAX) {
            return None;
        }
        let delivered = self.delivered.wrapping_sub(segment.delivered);
        let sample = RateSample {
            delivered,
            interval_ns,
            prior_delivered: segment.delivered,
            app_limited: segment.load.app_limited(),
            load: segment.load,
        };
        self.keep(&sample);
        Some(sample)
    }

    /// Keeps a sample; one that may be too low replaces only a lower one.
    fn keep(&mut self, sample: &RateSample) {
        let units = u32::try_from(sample.interval_ns >> 8).unwrap_or(u32::MAX).max(1);
        let (delivered, interval) = self.sampled;
        let higher = u64::from(sample.delivered).saturating_mul(interval.into())
            >= u64::from(delivered).saturating_mul(units.into());
        if !sample.app_limited || higher || interval == 0 {
            self.sampled = (sample.delivered, units);
            self.sample_app_limited = sample.app_limited;
        }
    }

    /// Returns the recent rate, bytes per second, and true if the application limited it; `None` before the first
    /// sample.
    pub(crate) fn latest(&self) -> Option<(u64, bool)> {
        let (delivered, units) = self.sampled;
        let interval_ns = u64::from(units) << 8;
        let rate = u64::from(delivered).saturating_mul(1_000_000_000).checked_div(interval_ns)?;
        Some((rate, self.sample_app_limited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant::from_nanos(us * 1024)
    }

    fn newest(segments: &[(u32, RateStamp, Instant)]) -> NewestDelivered {
        let mut newest = NewestDelivered::default();
        for (len, stamp, sent_at) in segments {
            newest.on_delivered(*len, *stamp, *sent_at, false);
        }
        newest
    }

    /// Ten segments leave in sequence, each acknowledged after 100 units: the rate is that of the line.
    #[test]
    fn a_steady_line_is_measured_exactly() {
        let mut rate = DeliveryRate::default();
        let sent: [_; 10] = core::array::from_fn(|i| {
            let at = us(10 * i as u64);
            (1000, rate.on_send(at, i == 0), at)
        });
        for (i, segment) in (0..).zip(&sent) {
            let now = us(100 + 10 * u64::from(i));
            let sample = rate.on_ack(now, &newest(&[*segment]), None).unwrap();
            // All were sent before anything was delivered, so the interval begins at the start.
            assert_eq!(sample.delivered, 1000 * (i + 1));
            assert_eq!(sample.interval_ns, (100 + 10 * u64::from(i)) * 1024);
        }
        // The first acknowledgment releases the eleventh.
        let at = us(190);
        let stamp = rate.on_send(at, false);
        assert_eq!(rate.delivered(), 10_000);
        let sample = rate.on_ack(us(290), &newest(&[(1000, stamp, at)]), Some(0)).unwrap();
        assert_eq!((sample.delivered, sample.interval_ns, sample.prior_delivered), (1000, 102_400, 10_000));
        assert_eq!(rate.latest(), Some((1000 * 1_000_000_000 / 102_400, false)));
    }

    /// Acknowledgments of slowly sent segments arrive together: the time of sending counts.
    #[test]
    fn compressed_acknowledgments_do_not_speed_up_the_path() {
        let mut rate = DeliveryRate::default();
        let first = (1000, rate.on_send(us(0), true), us(0));
        rate.on_ack(us(50), &newest(&[first]), None).unwrap();
        let a = (1000, rate.on_send(us(50), true), us(50));
        let b = (1000, rate.on_send(us(1050), false), us(1050));
        let c = (1000, rate.on_send(us(2050), false), us(2050));
        rate.on_ack(us(2060), &newest(&[a]), None).unwrap();
        rate.on_ack(us(2061), &newest(&[b]), None).unwrap();
        let sample = rate.on_ack(us(2062), &newest(&[c]), None).unwrap();
        assert_eq!((sample.delivered, sample.interval_ns), (3000, 2012 * 1024));
    }

    #[test]
    fn an_interval_below_the_least_round_trip_is_no_sample() {
        let mut rate = DeliveryRate::default();
        let again = rate.on_send(us(1000), true);
        let segment = newest(&[(1000, again, us(1000))]);
        assert_eq!(rate.on_ack(us(1001), &segment, Some(50_000)), None);
        assert_eq!(rate.delivered(), 1000, "what came counts all the same");
    }

    /// The retransmission leaves long after the delivery before it, and the original arrives right after that.
    #[test]
    fn the_acknowledgment_of_an_earlier_transmission_is_no_sample() {
        for (acked_at, is_sample) in [(10_020, false), (10_048, false), (10_050, true)] {
            let mut rate = DeliveryRate::default();
            let first = (1000, rate.on_send(us(0), true), us(0));
            rate.on_ack(us(50), &newest(&[first]), Some(50 * 1024)).unwrap();
            let again = rate.on_send(us(10_000), false);
            let sample = rate.on_ack(us(acked_at), &newest(&[(1000, again, us(10_000))]), Some(50 * 1024));
            assert_eq!(sample.is_some(), is_sample, "{acked_at}");
            assert_eq!(rate.delivered(), 2000);
        }
    }

    #[test]
    fn samples_after_a_pause_are_app_limited() {
        let mut rate = DeliveryRate::default();
        rate.mark_app_limited(0);
        let (a, at) = (rate.on_send(us(0), true), us(0));
        assert!(a.load.app_limited());
        let sample = rate.on_ack(us(10), &newest(&[(1000, a, at)]), None).unwrap();
        assert!(sample.app_limited);
        let b = rate.on_send(us(10), true);
        assert!(!b.load.app_limited());
        // A lower application-limited sample does not hide the measured one.
        let before = rate.latest().unwrap();
        rate.mark_app_limited(1000);
        rate.on_ack(us(20), &newest(&[(1000, b, us(10))]), None).unwrap();
        let slow = rate.on_send(us(20), true);
        rate.on_ack(us(1000), &newest(&[(1000, slow, us(20))]), None).unwrap();
        assert_eq!(rate.latest().unwrap().0, before.0);
    }

    #[test]
    fn stamps_wrap() {
        let mut rate = DeliveryRate::default();
        let start = Instant::from_nanos((u64::from(u32::MAX) << 8) - 100);
        let stamp = rate.on_send(start, true);
        let now = start + Duration::from_nanos(51_200);
        let sample = rate.on_ack(now, &newest(&[(1000, stamp, start)]), None).unwrap();
        assert!(sample.interval_ns.abs_diff(51_200) <= 256);
        let old = rate.on_send(now, true);
        let late = now + AGE_MAX + Duration::from_secs(1);
        assert_eq!(rate.on_ack(late, &newest(&[(1000, old, now)]), None), None);
    }

    #[test]
    fn only_segments_sent_once_give_a_round_trip_time() {
        let mut newest = NewestDelivered::default();
        newest.on_delivered(1, RateStamp::default(), us(5), true);
        assert_eq!(newest.rtt(us(9)), None);
        newest.on_delivered(1, RateStamp::default(), us(2), false);
        newest.on_delivered(1, RateStamp::default(), us(1), false);
        assert_eq!(newest.rtt(us(9)), Some(us(7) - Instant::ZERO));
    }
}
