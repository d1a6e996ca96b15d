//! CUBIC (RFC 8312), with the changes of RFC 9438.

use super::hystart::HyStart;
use super::{AckSample, CWND_MAX, CongestionWindow};
use crate::time::{Instant, MilliStamp};

/// C = 0.4 segments per cubed second (RFC 8312 §5), as a fraction.
const C_NUM: u64 = 2;
const C_DEN: u64 = 5;
/// beta_cubic = 0.7 (§4.5), as a fraction.
const BETA_NUM: u64 = 7;
const BETA_DEN: u64 = 10;
/// Largest distance from the plateau at which the curve is evaluated, milliseconds: its cube times a jumbo segment fits
/// 64 bits, and the window reaches its limit long before.
const DISTANCE_MS_MAX: u64 = 65_536;

/// The curve of congestion avoidance, as of its current epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    /// Start of the current epoch of congestion avoidance.
    epoch: Option<MilliStamp>,
    /// W_max: window before the last reduction, bytes.
    w_max: u32,
    /// cwnd_prior: the same before fast convergence, bytes.
    cwnd_prior: u32,
    /// K: time from the epoch's start until the curve reaches the plateau, milliseconds.
    k_ms: u32,
    /// Plateau of the curve, bytes: W_max, or the window at the start of an epoch without loss.
    origin: u32,
    /// W_est: window of standard TCP (RFC 8312 §4.2), bytes.
    w_est: u32,
}

/// State from before the current epoch, of which only one kind matters at a time.
#[derive(Clone, Copy, Debug)]
enum Previous {
    /// The first slow start, before any reduction.
    SlowStart(HyStart),
    /// The curve before the last reduction, in case that was spurious (RFC 9438 §4.9).
    Curve(Curve),
}

impl Default for Previous {
    fn default() -> Self {
        Self::SlowStart(HyStart::default())
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Cubic {
    /// Set by an acknowledgment that was not cwnd-limited, until the window may grow again. First, since connections
    /// that are never cwnd-limited read no other field.
    was_limited: bool,
    /// Last time at which the window was allowed to grow.
    grown_at: MilliStamp,
    curve: Curve,
    previous: Previous,
    /// Bytes acknowledged towards the next byte of W_est.
    acked_est: u64,
    /// Bytes acknowledged towards the next increase of the window.
    acked: u64,
}

impl Cubic {
    pub(super) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &AckSample) {
        let mut acked = sample.acked;
        if window.in_slow_start() {
            // RFC 9438 §4.10 recommends HyStart++.
            acked = match &mut self.previous {
                Previous::SlowStart(hystart) => hystart.on_ack(window, sample),
                Previous::Curve(_) => window.slow_start(sample),
            };
            if acked == 0 {
                return;
            }
        }
        let epoch = self.begin_epoch(window, sample.now);
        self.grown_at = MilliStamp::of(sample.now);
        self.grow_estimate(window, acked);
        let elapsed_ns = epoch.age_nanos(sample.now).saturating_add(sample.srtt_ns.unwrap_or(0));
        let target = self.curve.at(window.mss, elapsed_ns / 1_000_000);
        // §4.1: no more than half as much again per round trip.
        let ceiling = u64::from(window.cwnd).saturating_mul(3) / 2;
        let target = target.clamp(u64::from(window.cwnd), ceiling);
        // §4.3: cwnd grows by (W_cubic(t+RTT) - cwnd)/cwnd per segment acknowledged.
        let gain = target.saturating_sub(u64::from(window.cwnd));
        self.acked = self.acked.saturating_add(u64::from(acked).saturating_mul(gain));
        let cwnd = u64::from(window.cwnd).max(1);
        let growth = self.acked.checked_div(cwnd).unwrap_or(0).min(gain);
        self.acked = if gain == 0 { 0 } else { self.acked.checked_rem(cwnd).unwrap_or(0) };
        let grown = u64::from(window.cwnd).saturating_add(growth).max(u64::from(self.curve.w_est));
        window.cwnd = u32::try_from(grown).unwrap_or(CWND_MAX).min(CWND_MAX);
    }

    /// Stops the curve's clock while the window is not the limit. RFC 9438 §5.8: growth must not make up for times in
    /// which the application, not the network, was the limit.
    pub(super) fn on_not_cwnd_limited(&mut self) {
        self.was_limited = true;
    }

    /// Reduces the window after a loss: §4.5, multiplicative decrease; §4.6, fast convergence.
    pub(super) fn ssthresh_after_loss(&mut self, window: &CongestionWindow) -> u32 {
        let cwnd = u64::from(window.cwnd);
        self.previous = Previous::Curve(self.curve);
        let w_max = if window.cwnd < self.curve.w_max {
            cwnd.saturating_mul(BETA_DEN.saturating_add(BETA_NUM)) / (2 * BETA_DEN)
        } else {
            cwnd
        };
        self.curve.w_max = u32::try_from(w_max).unwrap_or(u32::MAX);
        self.curve.cwnd_prior = window.cwnd;
        self.curve.epoch = None;
        u32::try_from(cwnd.saturating_mul(BETA_NUM) / BETA_DEN).unwrap_or(u32::MAX)
    }

    /// Ends the epoch: the next acknowledgment in congestion avoidance begins another.
    pub(super) fn restart(&mut self) {
        self.curve.epoch = None;
    }

    /// Handles a retransmission timeout. §4.7: "During the first congestion avoidance after a timeout [...] K is set to
    /// 0, and W_max is set to the congestion window size at the beginning of the current congestion avoidance."
    pub(super) fn on_timeout(&mut self) {
        self.curve.w_max = 0;
        self.curve.epoch = None;
    }

    /// Restores the state from before the last reduction (RFC 9438 §4.9).
    pub(super) fn undo(&mut self) {
        if let Previous::Curve(before) = self.previous {
            self.curve = before;
        }
    }

    fn begin_epoch(&mut self, window: &CongestionWindow, now: Instant) -> MilliStamp {
        let now = MilliStamp::of(now);
        let pause = now.wrapping_sub(self.grown_at);
        let was_limited = core::mem::take(&mut self.was_limited);
        let curve = &mut self.curve;
        if let Some(epoch) = &mut curve.epoch {
            if was_limited {
                *epoch = epoch.wrapping_add(pause);
            }
            return *epoch;
        }
        self.acked = 0;
        self.acked_est = 0;
        curve.epoch = Some(now);
        curve.w_est = window.cwnd;
        if window.cwnd < curve.w_max {
            // K = cubic_root((W_max - cwnd_epoch)/C) (RFC 9438 §4.2).
            let distance = u64::from(curve.w_max.saturating_sub(window.cwnd));
            let scaled = distance.saturating_mul(1_000_000_000 / C_NUM * C_DEN);
            let cubed = scaled.checked_div(window.mss.into()).unwrap_or(scaled);
            curve.k_ms = u32::try_from(cube_root(cubed)).unwrap_or(u32::MAX);
            curve.origin = curve.w_max;
        } else {
            curve.k_ms = 0;
            curve.origin = window.cwnd;
        }
        now
    }

    /// Grows W_est: by alpha segments per window acknowledged (RFC 9438 §4.3). Alpha is 3*(1-beta)/(1+beta) = 9/17
    /// until W_est reaches the window before the reduction, and 1, as in standard TCP, from there.
    fn grow_estimate(&mut self, window: &CongestionWindow, acked: u32) {
        let (numerator, denominator) =
            if self.curve.w_est < self.curve.cwnd_prior { (9, 17) } else { (1, 1) };
        let step = u64::from(window.mss).saturating_mul(numerator).checked_div(denominator).unwrap_or(0);
        let cwnd = u64::from(window.cwnd).max(1);
        self.acked_est = self.acked_est.saturating_add(u64::from(acked).saturating_mul(step));
        let grown = self.acked_est.checked_div(cwnd).unwrap_or(0);
        let grown = u32::try_from(grown).unwrap_or(CWND_MAX);
        self.acked_est = self.acked_est.checked_rem(cwnd).unwrap_or(0);
        self.curve.w_est = self.curve.w_est.saturating_add(grown).min(CWND_MAX);
    }
}

impl Curve {
    /// Returns W_cubic(t) = C*(t-K)^3 + W_max (equation 1), bytes.
    fn at(&self, mss: u32, t_ms: u64) -> u64 {
        let k_ms = u64::from(self.k_ms);
        let distance = t_ms.abs_diff(k_ms).min(DISTANCE_MS_MAX);
        let cube = distance.saturating_mul(distance).saturating_mul(distance);
        let bytes = cube.saturating_mul(u64::from(mss)).saturating_mul(C_NUM) / (C_DEN * 1_000_000_000);
        let origin = u64::from(self.origin);
        if t_ms < k_ms { origin.saturating_sub(bytes) } else { origin.saturating_add(bytes) }
    }
}

/// Returns the greatest integer whose cube is not above `value`.
fn cube_root(value: u64) -> u64 {
    let mut root = 0_u64;
    let mut bit = 1_u64 << 21;
    while bit > 0 {
        let candidate = root | bit;
        let cube = candidate.checked_mul(candidate).and_then(|square| square.checked_mul(candidate));
        if cube.is_some_and(|cube| cube <= value) {
            root = candidate;
        }
        bit >>= 1;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn cube_roots_are_exact() {
        for root in [1_u64, 2, 9, 1_000, 65_535, 2_000_000] {
            let cube = root * root * root;
            assert_eq!(cube_root(cube), root);
            assert_eq!(cube_root(cube + 1), root);
            assert_eq!(cube_root(cube - 1), root - 1);
        }
        assert_eq!(cube_root(0), 0);
        assert_eq!(cube_root(u64::MAX), 2_642_245);
    }

    /// A window of 100 segments has a loss: K = cbrt(100 * 0.3 / 0.4) = 4.217 s, and the curve is back at W_max then.
    #[test]
    fn the_curve_returns_to_the_plateau_after_k() {
        let mut cc = Cubic::default();
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        window.ssthresh = cc.ssthresh_after_loss(&window);
        window.cwnd = window.ssthresh;
        assert_eq!(window.cwnd, 70_000);
        cc.begin_epoch(&window, Instant::ZERO);
        assert_eq!(cc.curve.k_ms, 4217);
        assert_eq!(cc.curve.at(1000, 0) / 100, 70_000 / 100);
        assert_eq!(cc.curve.at(1000, 4217), 100_000);
        // One second past K: C * 1 = 0.4 segments.
        assert_eq!(cc.curve.at(1000, 5217), 100_400);
    }

    #[test]
    fn undo_restores_the_state() {
        let mut cc = Cubic::default();
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: 50_000, mss: 1000 };
        cc.ssthresh_after_loss(&window);
        window.cwnd = 70_000;
        cc.begin_epoch(&window, Instant::from_millis(100));
        let (k_ms, w_max) = (cc.curve.k_ms, cc.curve.w_max);
        for timeout in [false, true] {
            cc.ssthresh_after_loss(&window);
            if timeout {
                cc.on_timeout();
                cc.begin_epoch(&window, Instant::from_millis(150));
                assert_eq!((cc.curve.k_ms, cc.curve.origin), (0, 70_000), "§4.7");
            }
            cc.undo();
            assert_eq!((cc.curve.k_ms, cc.curve.w_max), (k_ms, w_max));
            assert_eq!(cc.curve.epoch, Some(MilliStamp::of(Instant::from_millis(100))));
        }
    }

    #[test]
    fn time_does_not_pass_while_the_window_is_not_used() {
        let mut cc = Cubic::default();
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: 50_000, mss: 1000 };
        let sample = |ms| AckSample {
            now: Instant::from_millis(ms),
            acked: 1000,
            srtt_ns: Some(10_000_000),
            rtt_ns: None,
            reordering: false,
            round_ends: false,
            after_timeout: false,
        };
        cc.on_ack(&mut window, &sample(1000));
        cc.on_ack(&mut window, &sample(1010));
        let begun_ms =
            |cc: &Cubic| 6010 - cc.curve.epoch.unwrap().age(Instant::from_millis(6010)).as_millis();
        assert!(begun_ms(&cc).abs_diff(1000) <= 2, "{}", begun_ms(&cc));
        cc.on_not_cwnd_limited();
        cc.on_ack(&mut window, &sample(6010));
        assert!(begun_ms(&cc).abs_diff(6000) <= 2, "{}", begun_ms(&cc));
    }

    /// W_est alone, with W_max far above: 9/17 of a segment per window up to cwnd_prior, then 1.
    #[test]
    fn the_estimate_grows_as_standard_tcp_from_the_old_window_on() {
        let mut cc = Cubic::default();
        let window = CongestionWindow { cwnd: 10_000, ssthresh: 5000, mss: 1000 };
        cc.curve = Curve { w_est: 10_000, cwnd_prior: 11_000, ..Curve::default() };
        for expected in [10_529, 11_058, 12_058] {
            cc.grow_estimate(&window, 10_000);
            assert!(cc.curve.w_est.abs_diff(expected) <= 1, "{} {expected}", cc.curve.w_est);
        }
    }

    #[test]
    fn fast_convergence_lowers_w_max() {
        let mut cc = Cubic::default();
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        cc.ssthresh_after_loss(&window);
        assert_eq!(cc.curve.w_max, 100_000);
        window.cwnd = 80_000;
        cc.ssthresh_after_loss(&window);
        assert_eq!(cc.curve.w_max, 68_000, "80 * (1 + 0.7) / 2");
    }

    #[test]
    fn growth_follows_the_curve_and_is_never_slower_than_the_estimate() {
        let mut cc = Cubic::default();
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        window.ssthresh = cc.ssthresh_after_loss(&window);
        window.cwnd = window.ssthresh;
        let mut now = Instant::ZERO;
        for _ in 0..422 {
            // Ten round trips of 10 ms per 100 ms: a window's worth of acknowledgments each.
            for _ in 0..window.cwnd / 1000 {
                let sample = AckSample {
                    now,
                    acked: 1000,
                    srtt_ns: Some(10_000_000),
                    rtt_ns: None,
                    reordering: false,
                    round_ends: false,
                    after_timeout: false,
                };
                cc.on_ack(&mut window, &sample);
            }
            now += Duration::from_millis(10);
        }
        // With so short a round trip the TCP-friendly estimate leads: 9/17 of a segment per round.
        assert!(window.cwnd >= 70_000 + 400 * 529 / 2, "{}", window.cwnd);
    }
}
