//! CUBIC (RFC 8312).

use core::time::Duration;

use super::{AckSample, CWND_MAX, Window};
use crate::time::Instant;

/// C = 0.4 segments per cubed second (RFC 8312 §5), as a fraction.
const C_NUM: u64 = 2;
const C_DEN: u64 = 5;
/// beta_cubic = 0.7 (§4.5), as a fraction.
const BETA_NUM: u64 = 7;
const BETA_DEN: u64 = 10;
/// The farthest from the plateau that the curve is evaluated, milliseconds: its cube times a jumbo
/// segment fits 64 bits, and the window is at its limit long before.
const DISTANCE_MS_MAX: u64 = 65_536;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cubic {
    /// W_max: the window before the last reduction, octets.
    w_max: u32,
    /// When the current epoch of congestion avoidance began.
    epoch: Option<Instant>,
    /// K: how long after the epoch's start the curve is back at the plateau, milliseconds.
    k_ms: u64,
    /// Where the curve's plateau is, octets: W_max, or the window at the start of an epoch without loss.
    origin: u32,
    /// W_est: what standard TCP would have (§4.2), octets.
    w_est: u32,
    /// Octets acknowledged towards the next increase of W_est.
    acked_est: u32,
    /// Octets acknowledged towards the next increase of the window.
    acked: u64,
}

impl Cubic {
    pub(super) fn on_ack(&mut self, window: &mut Window, sample: &AckSample) {
        let mut acked = sample.acked;
        if window.in_slow_start() {
            acked = window.slow_start(acked);
            if acked == 0 {
                return;
            }
        }
        let epoch = self.begin_epoch(window, sample.now);
        self.grow_estimate(window, acked);
        let srtt = sample.srtt.unwrap_or(Duration::ZERO);
        let elapsed = sample.now.saturating_since(epoch).saturating_add(srtt);
        let target = self.curve(window.mss, u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        // §4.1: no more than half as much again per round trip.
        let ceiling = u64::from(window.cwnd).saturating_mul(3) / 2;
        let target = target.clamp(u64::from(window.cwnd), ceiling);
        // §4.3: cwnd grows by (W_cubic(t+RTT) - cwnd)/cwnd per segment acknowledged.
        let gain = target.saturating_sub(u64::from(window.cwnd));
        self.acked = self.acked.saturating_add(u64::from(acked).saturating_mul(gain));
        let cwnd = u64::from(window.cwnd).max(1);
        let growth = (self.acked / cwnd).min(gain);
        self.acked = if gain == 0 { 0 } else { self.acked % cwnd };
        let grown = u64::from(window.cwnd).saturating_add(growth).max(u64::from(self.w_est));
        window.cwnd = u32::try_from(grown).unwrap_or(CWND_MAX).min(CWND_MAX);
    }

    /// §4.5: multiplicative decrease; §4.6: fast convergence.
    pub(super) fn ssthresh_after_loss(&mut self, window: &Window) -> u32 {
        let cwnd = u64::from(window.cwnd);
        let w_max = if window.cwnd < self.w_max {
            cwnd.saturating_mul(BETA_DEN.saturating_add(BETA_NUM)) / (2 * BETA_DEN)
        } else {
            cwnd
        };
        self.w_max = u32::try_from(w_max).unwrap_or(u32::MAX);
        self.epoch = None;
        u32::try_from(cwnd.saturating_mul(BETA_NUM) / BETA_DEN).unwrap_or(u32::MAX)
    }

    /// Forgets the epoch: the next acknowledgement in congestion avoidance begins one.
    pub(super) fn restart(&mut self) {
        self.epoch = None;
    }

    fn begin_epoch(&mut self, window: &Window, now: Instant) -> Instant {
        if let Some(epoch) = self.epoch {
            return epoch;
        }
        self.epoch = Some(now);
        self.acked = 0;
        self.acked_est = 0;
        self.w_est = window.cwnd;
        if window.cwnd < self.w_max {
            // K = cubic_root(W_max*(1-beta_cubic)/C) (equation 2), with the distance that there is.
            let distance = u64::from(self.w_max.saturating_sub(window.cwnd));
            let cubed = distance.saturating_mul(1_000_000_000 / C_NUM * C_DEN) / u64::from(window.mss.max(1));
            self.k_ms = cube_root(cubed);
            self.origin = self.w_max;
        } else {
            self.k_ms = 0;
            self.origin = window.cwnd;
        }
        now
    }

    /// W_cubic(t) = C*(t-K)^3 + W_max (equation 1), octets.
    fn curve(&self, mss: u32, t_ms: u64) -> u64 {
        let distance = t_ms.abs_diff(self.k_ms).min(DISTANCE_MS_MAX);
        let cube = distance.saturating_mul(distance).saturating_mul(distance);
        let octets = cube.saturating_mul(u64::from(mss)).saturating_mul(C_NUM) / (C_DEN * 1_000_000_000);
        let origin = u64::from(self.origin);
        if t_ms < self.k_ms { origin.saturating_sub(octets) } else { origin.saturating_add(octets) }
    }

    /// §4.2: W_est grows by 3*(1-beta)/(1+beta) = 9/17 of a segment per window acknowledged.
    fn grow_estimate(&mut self, window: &Window, acked: u32) {
        self.acked_est = self.acked_est.saturating_add(acked);
        if self.acked_est >= self.w_est.max(1) {
            self.acked_est = self.acked_est.saturating_sub(self.w_est).min(self.w_est);
            let step = u64::from(window.mss).saturating_mul(9) / 17;
            self.w_est = self.w_est.saturating_add(u32::try_from(step).unwrap_or(0)).min(CWND_MAX);
        }
    }
}

/// The greatest integer whose cube is not above `value`.
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

    /// A window of 100 segments loses: K = cbrt(100 * 0.3 / 0.4) = 4.217 s, and the curve is back at
    /// W_max then.
    #[test]
    fn the_curve_returns_to_the_plateau_after_k() {
        let mut cc = Cubic::default();
        let mut window = Window { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        window.ssthresh = cc.ssthresh_after_loss(&window);
        window.cwnd = window.ssthresh;
        assert_eq!(window.cwnd, 70_000);
        cc.begin_epoch(&window, Instant::ZERO);
        assert_eq!(cc.k_ms, 4217);
        assert_eq!(cc.curve(1000, 0) / 100, 70_000 / 100);
        assert_eq!(cc.curve(1000, 4217), 100_000);
        // One second past K: C * 1 = 0.4 segments.
        assert_eq!(cc.curve(1000, 5217), 100_400);
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut cc = Cubic::default();
        let mut window = Window { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        cc.ssthresh_after_loss(&window);
        assert_eq!(cc.w_max, 100_000);
        window.cwnd = 80_000;
        cc.ssthresh_after_loss(&window);
        assert_eq!(cc.w_max, 68_000, "80 * (1 + 0.7) / 2");
    }

    #[test]
    fn growth_follows_the_curve_and_is_never_slower_than_the_estimate() {
        let mut cc = Cubic::default();
        let mut window = Window { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        window.ssthresh = cc.ssthresh_after_loss(&window);
        window.cwnd = window.ssthresh;
        let mut now = Instant::ZERO;
        for _ in 0..422 {
            // Ten round trips of 10 ms per 100 ms: a window's worth of acknowledgements each.
            for _ in 0..window.cwnd / 1000 {
                let sample =
                    AckSample { now, acked: 1000, srtt: Some(Duration::from_millis(10)), cwnd_limited: true };
                cc.on_ack(&mut window, &sample);
            }
            now += Duration::from_millis(10);
        }
        // With so short a round trip the TCP-friendly estimate leads: 9/17 of a segment per round.
        assert!(window.cwnd >= 70_000 + 400 * 529 / 2, "{}", window.cwnd);
    }
}
