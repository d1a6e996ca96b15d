//! HyStart++ (RFC 9406): the first slow start ends when round trips become longer, before a queue overflows.
//!
//! ```text
//!  slow start ── round trips longer ──▶ conservative slow start ── five rounds ──▶ congestion avoidance
//!      ▲                                        │
//!      └──────────── shorter again ─────────────┘
//! ```
//! It is for the first slow start only, as long as ssthresh has its initial, arbitrarily high value; later ones end at the
//! threshold that a loss has set.

use super::{AckSample, CWND_MAX, Window};

/// §4.3, all times in microseconds.
const MIN_RTT_THRESH: u32 = 4_000;
const MAX_RTT_THRESH: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;
/// No sample yet.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    /// lastRoundMinRTT.
    last_round_us: u32,
    /// currentRoundMinRTT.
    current_round_us: u32,
    /// cssBaselineMinRtt, in conservative slow start.
    baseline_us: u32,
    /// rttSampleCount.
    samples: u8,
    /// Rounds of conservative slow start that began; 0 outside of it.
    css_round: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { last_round_us: NONE, current_round_us: NONE, baseline_us: NONE, samples: 0, css_round: 0 }
    }
}

impl HyStart {
    /// Slow start by one acknowledgement; returns the octets acknowledged beyond what `ssthresh` needed.
    pub(super) fn on_ack(&mut self, window: &mut Window, sample: &AckSample) -> u32 {
        if window.ssthresh != CWND_MAX {
            return window.slow_start(sample);
        }
        // §4.2: cwnd = cwnd + min(N, L * SMSS), in conservative slow start a fraction of that.
        let step = sample.acked.min(window.mss.saturating_mul(sample.slow_start_limit()));
        let step = if self.css_round > 0 { step / CSS_GROWTH_DIVISOR } else { step };
        window.cwnd = window.cwnd.saturating_add(step).min(CWND_MAX);
        if sample.reordering {
            // Round trips are longer then without any queue, and say nothing.
            *self = Self::default();
            return 0;
        }
        self.observe(sample.rtt_ns);
        if sample.round_ends {
            self.next_round(window);
        }
        0
    }

    fn observe(&mut self, rtt_ns: Option<u64>) {
        let Some(rtt_ns) = rtt_ns else { return };
        let rtt_us = u32::try_from(rtt_ns / 1000).unwrap_or(NONE - 1).min(NONE - 1);
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

    fn next_round(&mut self, window: &mut Window) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    /// A round of `acks` acknowledgements of a segment each, all after this round-trip time.
    fn round(hystart: &mut HyStart, window: &mut Window, acks: u32, rtt_ms: u64) {
        for ack in 1..=acks {
            let sample = AckSample {
                now: Instant::ZERO,
                acked: 1000,
                srtt_ns: None,
                rtt_ns: Some(rtt_ms * 1_000_000),
                reordering: false,
                round_ends: ack == acks,
                after_timeout: false,
            };
            assert_eq!(hystart.on_ack(window, &sample), 0);
        }
    }

    fn start() -> (HyStart, Window) {
        (HyStart::default(), Window { cwnd: 10_000, ssthresh: CWND_MAX, mss: 1000 })
    }

    #[test]
    fn windows_double_while_round_trips_stay_as_they_are() {
        let (mut hystart, mut window) = start();
        for acks in [10, 20, 40, 80] {
            round(&mut hystart, &mut window, acks, 40);
        }
        assert_eq!((window.cwnd, hystart.css_round), (160_000, 0));
    }

    /// 40 ms: the threshold is an eighth, 5 ms.
    #[test]
    fn longer_round_trips_slow_it_down_and_end_it_after_five_rounds() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 44);
        assert_eq!((window.cwnd, hystart.css_round), (40_000, 0), "44 < 45");
        round(&mut hystart, &mut window, 40, 50);
        // Eight samples decide; the other 32 of the round grow it by a quarter, and so do those of the next ones.
        assert_eq!((window.cwnd, hystart.css_round), (40_000 + 8_000 + 32 * 250, 2));
        for expected in [3, 4, 5] {
            round(&mut hystart, &mut window, 40, 50);
            assert_eq!((hystart.css_round, window.ssthresh), (expected, CWND_MAX));
        }
        round(&mut hystart, &mut window, 40, 50);
        assert_eq!((window.cwnd, window.ssthresh), (96_000, 96_000));
        assert!(!window.in_slow_start());
    }

    #[test]
    fn round_trips_that_were_longer_by_chance_do_not_end_it() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 60);
        assert_eq!(hystart.css_round, 2);
        let before = window.cwnd;
        round(&mut hystart, &mut window, 40, 41);
        assert_eq!((window.cwnd - before, hystart.css_round), (8 * 250 + 32 * 1000, 0));
    }

    #[test]
    fn round_trips_say_nothing_where_segments_are_reordered() {
        let (mut hystart, mut window) = start();
        round(&mut hystart, &mut window, 10, 40);
        round(&mut hystart, &mut window, 20, 60);
        assert_eq!(hystart.css_round, 2);
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
        // All but the first of them by a segment each.
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
    fn one_acknowledgement_of_very_much_adds_two_segments() {
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
