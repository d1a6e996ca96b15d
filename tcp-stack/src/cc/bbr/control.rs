//! The control parameters: pacing rate and window.

use super::probe_rtt::PROBE_RTT_CWND_GAIN;
use super::{
    Ack, Bbr, Coarse, CongestionWindow, Duration, FULL_BW_REACHED, IN_RECOVERY, INFINITY, MIN_PIPE_SEGMENTS,
    Pacer, SEEN_RTT, State, clamp32,
};
use crate::cc::CWND_MAX;

/// BBR.StartupPacingGain, percent: 4 * ln(2) (§2.5).
const STARTUP_PACING_GAIN: u64 = 277;
/// BBR.DrainPacingGain: drains in a round trip what Startup has queued, percent (§2.5).
const DRAIN_PACING_GAIN: u64 = 50;
/// BBR.DefaultCwndGain: the least that lets the rate double each round trip, percent (§2.6).
const DEFAULT_CWND_GAIN: u64 = 200;
/// BBR.PacingMarginPercent: the pacing rate stays below the bandwidth by this (§2.5).
const PACING_MARGIN_PERCENT: u64 = 1;

impl Bbr {
    /// Returns BBR.pacing_gain of the state, percent (§5.6.1).
    pub(super) const fn pacing_gain(&self) -> u64 {
        match self.state {
            State::Startup => STARTUP_PACING_GAIN,
            State::Drain => DRAIN_PACING_GAIN,
            State::ProbeBwDown => 90,
            State::ProbeBwCruise | State::ProbeBwRefill | State::ProbeRtt => 100,
            State::ProbeBwUp => 125,
        }
    }

    /// Returns BBR.cwnd_gain of the state, percent (§5.6.1).
    pub(super) const fn cwnd_gain(&self) -> u64 {
        match self.state {
            State::ProbeBwUp => 225,
            State::ProbeRtt => PROBE_RTT_CWND_GAIN,
            _ => DEFAULT_CWND_GAIN,
        }
    }

    /// Returns the pacing rate, bytes per second.
    pub(in crate::cc) fn pacing_rate(&self) -> u64 {
        self.pacing_rate.get()
    }

    /// InitPacingRate (§5.6.2): a window per round-trip time, or per millisecond before one is known.
    pub(in crate::cc) fn init_pacing_rate(&mut self, window: &CongestionWindow, srtt: Option<Duration>) {
        self.set(SEEN_RTT, self.has(SEEN_RTT) || srtt.is_some());
        let rtt_ns = srtt.map_or(1_000_000, |srtt| u64::try_from(srtt.as_nanos()).unwrap_or(u64::MAX)).max(1);
        let bytes = u64::from(window.cwnd).saturating_mul(1_000_000_000);
        let nominal = bytes.checked_div(rtt_ns).unwrap_or(u64::MAX);
        self.pacing_rate = Coarse::of((nominal.saturating_mul(STARTUP_PACING_GAIN) / 100).max(1));
    }

    /// Initializes the pacing rate again from the first round-trip time, if there was none.
    pub(super) fn note_first_rtt(&mut self, window: &CongestionWindow, rtt_ns: u32) {
        if !self.has(SEEN_RTT) {
            self.init_pacing_rate(window, Some(Duration::from_nanos(rtt_ns.into())));
        }
    }

    /// SetPacingRateWithGain (§5.6.2): before the pipe is full, the rate only grows.
    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: u64) {
        let margin = 100_u64.saturating_sub(PACING_MARGIN_PERCENT);
        let rate = self.bw().get().saturating_mul(gain) / 100;
        let rate = Coarse::of((rate.saturating_mul(margin) / 100).max(1));
        if self.max_bw() > Coarse::ZERO && (self.has(FULL_BW_REACHED) || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// Runs SetPacingRate (§5.6.2) with the gain of the state.
    pub(super) fn set_pacing_rate(&mut self) {
        self.set_pacing_rate_with_gain(self.pacing_gain());
    }

    /// BDPMultiple (§5.6.4.2) of BBR.bw, bytes; `gain` is in percent.
    pub(super) fn bdp_multiple(&self, gain: u64, initial_cwnd: u32) -> u32 {
        self.bdp_multiple_at(self.bw(), gain, initial_cwnd)
    }

    fn bdp_multiple_at(&self, bw: Coarse, gain: u64, initial_cwnd: u32) -> u32 {
        if self.min_rtt_ns == INFINITY || bw == Coarse::ZERO {
            return initial_cwnd;
        }
        let bdp = bw.get().saturating_mul(self.min_rtt_ns.into()) / 1_000_000_000;
        clamp32(bdp.saturating_mul(gain) / 100).min(CWND_MAX)
    }

    /// QuantizationBudget (§5.6.4.2), with UpdateOffloadBudget (§5.5.8): "BBR.offload_budget = 3 * C.send_quantum". The
    /// quantum is that of [`Pacer`] (§5.6.3: "A BBR implementation MAY use alternate approaches").
    fn quantization_budget(&self, window: &CongestionWindow, inflight_cap: u32) -> u32 {
        let offload_budget = Pacer::quantum(self.pacing_rate(), window.mss).saturating_mul(3);
        let least = window.mss.saturating_mul(MIN_PIPE_SEGMENTS);
        let cap = inflight_cap.max(offload_budget).max(least);
        if self.state == State::ProbeBwUp { cap.saturating_add(window.mss.saturating_mul(2)) } else { cap }
    }

    /// Inflight (§5.6.4.2) with a gain of 1, bytes.
    pub(super) fn inflight(&self, window: &CongestionWindow, ack: &Ack, bw: Coarse) -> u32 {
        self.quantization_budget(window, self.bdp_multiple_at(bw, 100, ack.initial_cwnd))
    }

    /// UpdateMaxInflight (§5.6.4.2): BBR.max_inflight, bytes.
    fn max_inflight(&self, window: &CongestionWindow, ack: &Ack) -> u32 {
        let cap = self.bdp_multiple(self.cwnd_gain(), ack.initial_cwnd);
        self.quantization_budget(window, cap.saturating_add(self.extra_acked()))
    }

    /// SetCwnd (§5.6.4.6): down to BBR.max_inflight at once, up by no more than what was acknowledged.
    pub(super) fn set_cwnd(&self, window: &mut CongestionWindow, ack: &Ack) {
        let max_inflight = self.max_inflight(window, ack);
        let grown = window.cwnd.saturating_add(ack.newly_acked);
        if self.has(FULL_BW_REACHED) {
            window.cwnd = grown.min(max_inflight);
        } else if window.cwnd < max_inflight || ack.c_delivered < ack.initial_cwnd {
            window.cwnd = grown;
        }
        let least = window.mss.saturating_mul(MIN_PIPE_SEGMENTS);
        window.cwnd = window.cwnd.max(least);
        if self.state == State::ProbeRtt {
            window.cwnd = window.cwnd.min(self.probe_rtt_cwnd(window, ack.initial_cwnd));
        }
        self.bound_cwnd_for_model(window, least);
        window.cwnd = window.cwnd.min(CWND_MAX);
    }

    /// Runs BoundCwndForModel (§5.6.4.7): the limits on the amount in flight bound the window.
    fn bound_cwnd_for_model(&self, window: &mut CongestionWindow, least: u32) {
        let cap = match self.state {
            State::ProbeBwDown | State::ProbeBwRefill | State::ProbeBwUp => self.inflight_longterm,
            State::ProbeBwCruise | State::ProbeRtt => self.inflight_with_headroom(window),
            State::Startup | State::Drain => INFINITY,
        };
        window.cwnd = window.cwnd.min(cap.min(self.inflight_shortterm).max(least));
    }

    /// SaveCwnd (§5.6.4.4): "the latest C.cwnd unmodulated by loss recovery or ProbeRTT".
    pub(super) fn save_cwnd(&mut self, cwnd: u32) {
        let modulated = self.has(IN_RECOVERY) || self.state == State::ProbeRtt;
        self.prior_cwnd = if modulated { self.prior_cwnd.max(cwnd) } else { cwnd };
    }

    /// Runs RestoreCwnd (§5.6.4.4): returns to the saved window.
    pub(super) fn restore_cwnd(&self, window: &mut CongestionWindow) {
        window.cwnd = window.cwnd.max(self.prior_cwnd);
    }
}
