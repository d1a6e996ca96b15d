//! HyStart++ (RFC 9406): ends the first slow start when round trips become longer, before a queue overflows.
//!
//! ```text
//!  slow start ── round trips longer ──▶ conservative slow start ── five rounds ──▶ congestion avoidance
//!      ▲   │                                     │                                     ▲
//!      └───│──────────── shorter again ──────────┘                                     │
//!          └── acknowledgments for half a round trip: ssthresh = their rate × RTT ────┘
//! ```
//! It applies to the first slow start only, while ssthresh has its initial, arbitrarily high value; later ones end at
//! the threshold that a loss has set.
//!
//! Longer round trips show a full path one round trip too late: the window has doubled by then, and the queue
//! overflows. So the acknowledgment train of the original HyStart (Ha and Rhee, 2011; Linux has it, RFC 9406 leaves it
//! out) is used as well: when acknowledgments have arrived without a gap for half a round trip, their rate is the
//! bottleneck's, and ssthresh becomes what that rate carries in a round trip. docs/deviations.md has the figures.

use super::{AckSample, CWND_MAX, CongestionWindow};

/// §4.3, all times in microseconds.
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// Longest gap between two acknowledgments of a train: 2 ms as in Linux, on long paths a part of the round trip.
const TRAIN_GAP: u32 = 2_000;
const TRAIN_GAP_DIVISOR: u32 = 32;
/// Stands for a missing sample.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// lastRoundMinRTT: least round-trip time of the last round.
    last_round_us: u32,
    /// currentRoundMinRTT: least round-trip time of this round.
    current_round_us: u32,
    /// cssBaselineMinRtt, set in conservative slow start.
    baseline_us: u32,
    /// rttSampleCount: samples of this round.
    samples: u8,
    /// Rounds of conservative slow start begun so far; 0 outside of it.
    css_round: u8,
    /// Arrival of the round's first acknowledgment, microseconds modulo 2^32.
    round_start_us: u32,
    /// Arrival of the last acknowledgment of its train, microseconds modulo 2^32.
    train_end_us: u32,
    /// Bytes acknowledged in the round after its first acknowledgment.
    train_bytes: u32,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            last_round_us: NONE,
            current_round_us: NONE,
            baseline_us: NONE,
            samples: 0,
            css_round: 0,
            round_start_us: 0,
            train_end_us: 0,
            train_bytes: 0,
        }
    }
}

impl HyStart {
    /// Grows the window in slow start by one acknowledgment; returns the bytes acknowledged beyond the growth up to
    /// `ssthresh`.
    pub(super) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &AckSample) -> u32 {
        if window.ssthresh != CWND_MAX {
            return window.slow_start(sample);
        }
        // §4.2: cwnd = cwnd + min(N, L * SMSS), in conservative slow start a fraction of that.
        let step = sample.acked.min(window.mss.saturating_mul(sample.slow_start_limit()));
        let step = if self.css_round > 0 { step / CSS_GROWTH_DIVISOR } else { step };
        window.cwnd = window.cwnd.saturating_add(step).min(CWND_MAX);
        if sample.reordering {
            // With reordering, round trips are longer without any queue, so they prove nothing.
            *self = Self::default();
            return 0;
        }
        if sample.round_ends {
            self.next_round(window);
        }
        self.observe(sample.rtt_ns);
        self.follow_train(window, sample);
        0
    }

    /// Sets `ssthresh` to what the path carries, once a train of acknowledgments has shown its rate.
    fn follow_train(&mut self, window: &mut CongestionWindow, sample: &AckSample) {
        let now_us = micros(sample.now.as_nanos());
        if sample.round_ends {
            (self.round_start_us, self.train_end_us, self.train_bytes) = (now_us, now_us, 0);
            return;
        }
        let rtt_us = self.last_round_us;
        let gap = (rtt_us / TRAIN_GAP_DIVISOR).max(TRAIN_GAP);
        if self.css_round > 0 || rtt_us == NONE || now_us.wrapping_sub(self.train_end_us) > gap {
            return;
        }
        self.train_end_us = now_us;
        self.train_bytes = self.train_bytes.saturating_add(sample.acked);
        let elapsed_us = now_us.wrapping_sub(self.round_start_us);
        if elapsed_us > rtt_us / 2 {
            let carried = u64::from(self.train_bytes).saturating_mul(rtt_us.into());
            let carried = carried.checked_div(elapsed_us.into()).and_then(|bytes| u32::try_from(bytes).ok());
            window.ssthresh = carried.unwrap_or(CWND_MAX).max(window.cwnd).min(CWND_MAX);
        }
    }

    fn observe(&mut self, rtt_ns: Option<u64>) {
        let Some(rtt_ns) = rtt_ns else { return };
        let rtt_us = u32::try_from(rtt_ns / 1000).unwrap_or(NONE).min(NONE - 1);
        self.current_round_us = self.current_round_us.min(rtt_us);
        self.samples = self.samples.saturating_add(1);
        if self.samples < N_RTT_SAMPLE {
            return;
        }
        if self.css_round > 0 {
            if self.current_round_us < self.baseline_us {
                // The round trips were longer by chance.
                (self.baseline_us, self.css_round) = (NONE, 0);
            }
        } else if self.last_round_us != NONE {
            let threshold = (self.last_round_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
            if self.current_round_us >= self.last_round_us.saturating_add(threshold) {
                (self.baseline_us, self.css_round) = (self.current_round_us, 1);
            }
        }
    }

    fn next_round(&mut self, window: &mut CongestionWindow) {
        self.last_round_us = self.current_round_us;
        self.current_round_us = NONE;
        self.samples = 0;
        if self.css_round == 0 {
            return;
        }
        self.css_round = self.css_round.saturating_add(1);
        if self.css_round > CSS_ROUNDS {
            window.ssthresh = window.cwnd;
        }
    }
}

/// Converts nanoseconds to microseconds modulo 2^32.
fn micros(nanos: u64) -> u32 {
    u32::try_from((nanos / 1000) & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// Runs a round of `acks` acknowledgments of a segment each, all with this round-trip time. The first ends the
    /// round before.
    fn round(hystart: &mut HyStart, window: &mut CongestionWindow, acks: u32, rtt_ms: u64) {
        for ack in 1..=acks {
            let sample = AckSample {
                now: Instant::ZERO,
                acked: 1000,
                srtt_ns: None,
                rtt_ns: Some(rtt_ms * 1_000_000),
                reordering: false,
                round_ends: ack == 1,
                after_timeout: false,
            };
            assert_eq!(hystart.on_ack(window, &sample), 0);
        }
    }

    fn start() -> (HyStart, CongestionWindow) {
        (HyStart::default(), CongestionWindow { cwnd: 10_000, ssthresh: CWND_MAX, mss: 1000 })
    }

    #[test]
    fn windows_double_while_round_trips_stay_as_they_are() {
        let (mut hystart, mut window) = start();
        for acks in [10, 20, 40, 80] {
            round(&mut hystart, &mut window, acks, 40);
        }
        assert_eq!((window.cwnd, hystart.css_round), (160_000, 0));
    }

    /// The path has 40 ms, so the threshold is an eighth, 5 ms.
    #[test]
    fn longer_round_trips_slow_it_down_and_end_it_after_five_rounds() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 44);
        assert_eq!((window.cwnd, hystart.css_round), (40_000, 0), "44 < 45");
        round(&mut hystart, &mut window, 40, 50);
        // Eight samples decide; the other 32 of the round grow the window by a quarter, and so do those of later
        // rounds.
        assert_eq!((window.cwnd, hystart.css_round), (40_000 + 8_000 + 32 * 250, 1));
        for expected in [2, 3, 4, 5] {
            round(&mut hystart, &mut window, 40, 50);
            assert_eq!((hystart.css_round, window.ssthresh), (expected, CWND_MAX));
        }
        round(&mut hystart, &mut window, 1, 50);
        assert_eq!((window.cwnd, window.ssthresh), (96_250, 96_250));
        assert!(!window.in_slow_start());
    }

    #[test]
    fn round_trips_that_were_longer_by_chance_do_not_end_it() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 60);
        assert_eq!(hystart.css_round, 1);
        let before = window.cwnd;
        round(&mut hystart, &mut window, 40, 41);
        assert_eq!((window.cwnd - before, hystart.css_round), (8 * 250 + 32 * 1000, 0));
    }

    #[test]
    fn round_trips_say_nothing_where_segments_are_reordered() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 60);
        assert_eq!(hystart.css_round, 1);
        let late = AckSample {
            now: Instant::ZERO,
            acked: 1000,
            srtt_ns: None,
            rtt_ns: Some(60_000_000),
            reordering: true,
            round_ends: true,
            after_timeout: false,
        };
        let before = window.cwnd;
        for _ in 0..100 {
            hystart.on_ack(&mut window, &late);
        }
        // All but the first of them grow it by a segment each.
        assert_eq!((window.cwnd, hystart.css_round), (before + 250 + 99 * 1000, 0));
    }

    #[test]
    fn few_samples_decide_nothing() {
        let (mut hystart, mut window) = start();
        for _ in 0..10 {
            round(&mut hystart, &mut window, 7, 40);
            round(&mut hystart, &mut window, 7, 400);
        }
        assert_eq!((window.cwnd, hystart.css_round), (150_000, 0));
    }

    #[test]
    fn thresholds_have_bounds() {
        for (first_ms, second_ms, slower) in
            [(8, 11, false), (8, 12, true), (400, 415, false), (400, 416, true)]
        {
            let (mut hystart, mut window) = start();
            round(&mut hystart, &mut window, 10, first_ms);
            round(&mut hystart, &mut window, 10, second_ms);
            assert_eq!(hystart.css_round > 0, slower, "{first_ms} {second_ms}");
        }
    }

    /// Sends acknowledgments of 1000 bytes, `gap_us` apart, for `lasting_us` after the first of their round.
    fn train(
        hystart: &mut HyStart,
        window: &mut CongestionWindow,
        begin_us: u64,
        gap_us: u64,
        lasting_us: u64,
    ) {
        for after in (0..=lasting_us / gap_us).map(|ack| ack * gap_us) {
            let sample = AckSample {
                now: Instant::from_nanos((begin_us + after) * 1000),
                acked: 1000,
                srtt_ns: None,
                rtt_ns: Some(100_000_000),
                reordering: false,
                round_ends: after == 0,
                after_timeout: false,
            };
            hystart.on_ack(window, &sample);
        }
    }

    /// 100 ms, and 1000 bytes per 500 us: the path carries 200 kB in a round trip. The train must last for 50 ms.
    #[test]
    fn a_train_of_half_a_round_trip_ends_it_at_what_the_path_carries() {
        for (gap_us, lasting_us, ssthresh) in [
            (500, 50_000, CWND_MAX),
            (500, 50_500, 200_000),
            // The path carries 33 kB, and the window is wider already.
            (3_000, 51_000, 38_000),
            // More than 1/32 of the round trip is a gap.
            (3_200, 96_000, CWND_MAX),
        ] {
            let (mut hystart, mut window) = start();
            round(&mut hystart, &mut window, 10, 100);
            // A clock that wraps shows no gap.
            for begin_us in [200_000, u64::from(u32::MAX) - 20_000] {
                let (mut hystart, mut window) = (hystart, window);
                train(&mut hystart, &mut window, begin_us, gap_us, lasting_us);
                assert_eq!(window.ssthresh, ssthresh, "{gap_us} {lasting_us} {begin_us}");
            }
        }
    }

    #[test]
    fn a_train_never_takes_the_window_back() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 100);
        window.cwnd = 500_000;
        train(&mut hystart, &mut window, 200_000, 500, 50_500);
        assert_eq!((window.cwnd, window.ssthresh), (602_000, 602_000));
    }

    #[test]
    fn trains_of_two_rounds_do_not_add_up() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 100);
        for begin_us in [200_000, 240_000, 280_000] {
            train(&mut hystart, &mut window, begin_us, 500, 39_500);
        }
        assert_eq!(window.ssthresh, CWND_MAX);
    }

    #[test]
    fn after_a_loss_slow_start_is_the_standard_one() {
        let (mut hystart, mut window) = start();
        window.ssthresh = 12_000;
        for rtt_ms in [40, 80] {
            let sample = AckSample {
                now: Instant::ZERO,
                acked: 3000,
                srtt_ns: None,
                rtt_ns: Some(rtt_ms * 1_000_000),
                reordering: false,
                round_ends: true,
                after_timeout: false,
            };
            hystart.on_ack(&mut window, &sample);
        }
        assert_eq!((window.cwnd, window.ssthresh), (12_000, 12_000));
    }

    #[test]
    fn one_acknowledgment_of_very_much_adds_two_segments() {
        let (mut hystart, mut window) = start();
        let sample = AckSample {
            now: Instant::ZERO,
            acked: 100_000,
            srtt_ns: None,
            rtt_ns: None,
            reordering: false,
            round_ends: true,
            after_timeout: false,
        };
        hystart.on_ack(&mut window, &sample);
        assert_eq!(window.cwnd, 12_000);
    }
}
