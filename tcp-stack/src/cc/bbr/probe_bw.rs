//! The ProbeBW cycle of draft-ietf-ccwg-bbr-06 §5.3.3: the rate is below the path's in DOWN, equal to it in CRUISE and
//! REFILL, and above it in UP. `Bbr::on_ack` runs it once per acknowledgment.

use super::{
    Ack, AckPhase, Bbr, Coarse, CongestionWindow, FULL_BW_NOW, FULL_BW_REACHED, INFINITY, IS_BW_PROBE_SAMPLE,
    MIN_PIPE_SEGMENTS, PREV_PROBE_PRECAUTIONARY, PREV_PROBE_TOO_HIGH, State, millis, percent_of,
};
use crate::time::Instant;

/// BBR.Headroom: share of `inflight_longterm` that is left to others, percent (§2.8).
const HEADROOM_PERCENT: u64 = 15;
/// The shortest wait between probes, and the range of its random part, milliseconds (§5.3.3.8.3).
const PROBE_WAIT_MS: u32 = 2_000;
const PROBE_WAIT_RANDOM_MS: u32 = 1_000;
/// Round trips after which a flow probes to keep up with Reno (§5.3.3.8.3).
const RENO_ROUNDS_MAX: u32 = 63;
/// The largest value of BBR.bw_probe_up_rounds (§5.3.3.9).
const UP_ROUNDS_MAX: u8 = 30;

impl Bbr {
    /// PickProbeWait (§5.3.3.8.3): random bounds in round trips and in time.
    fn pick_probe_wait(&mut self, now: Instant) {
        self.rounds_since_probe_up = u8::from(self.random(2) > 0);
        let wait = PROBE_WAIT_MS.wrapping_add(self.random(PROBE_WAIT_RANDOM_MS));
        self.phase_end_ms = millis(now).wrapping_add(wait);
    }

    /// Starts REFILL if IsTimeToProbeBW (§5.3.3.8.3). Returns true if it did.
    fn probe_bw_if_due(&mut self, window: &CongestionWindow, ack: &Ack) -> bool {
        let elapsed = millis(ack.now).wrapping_sub(self.phase_end_ms).cast_signed() > 0;
        let due = elapsed || self.is_reno_coexistence_probe_time(window, ack);
        if due {
            self.start_probe_bw_refill(ack.c_delivered);
        }
        due
    }

    /// IsRenoCoexistenceProbeTime (§5.3.3.8.3): a Reno flow grows by a BDP in as many rounds as the BDP has segments.
    fn is_reno_coexistence_probe_time(&self, window: &CongestionWindow, ack: &Ack) -> bool {
        let target = self.target_inflight(window, ack.initial_cwnd);
        let reno_rounds = target.checked_div(window.mss).unwrap_or(0);
        u32::from(self.rounds_since_probe_up) >= reno_rounds.min(RENO_ROUNDS_MAX)
    }

    /// TargetInflight (§5.3.3.8.3): "Our estimated BDP, unless congestion cut C.cwnd".
    pub(super) fn target_inflight(&self, window: &CongestionWindow, initial_cwnd: u32) -> u32 {
        self.bdp_multiple(100, initial_cwnd).min(window.cwnd)
    }

    /// Runs StartProbeBW_DOWN (§5.3.3.9): the probe is over, and its queue is drained.
    pub(super) fn start_probe_bw_down(&mut self, now: Instant, c_delivered: u32) {
        self.reset_congestion_signals();
        self.pick_probe_wait(now);
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round(c_delivered);
        self.state = State::ProbeBwDown;
    }

    /// Runs StartProbeBW_CRUISE (§5.3.3.9): the rate is that of the path.
    pub(super) const fn start_probe_bw_cruise(&mut self) {
        self.state = State::ProbeBwCruise;
    }

    /// StartProbeBW_REFILL (§5.3.3.9): the short-term model is discarded.
    pub(super) const fn start_probe_bw_refill(&mut self, c_delivered: u32) {
        self.reset_short_term_model();
        self.bw_probe_up_rounds = 0;
        self.bw_probe_up_acked = 0;
        self.set(PREV_PROBE_PRECAUTIONARY, false);
        self.ack_phase = AckPhase::Refilling;
        self.start_round(c_delivered);
        self.state = State::ProbeBwRefill;
    }

    /// Runs StartProbeBW_UP (§5.3.3.9): the rate exceeds that of the path.
    fn start_probe_bw_up(&mut self, ack: &Ack) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round(ack.c_delivered);
        self.restart_full_bw(ack);
        self.state = State::ProbeBwUp;
        self.raise_inflight_longterm_slope();
    }

    /// Looks for a plateau anew, from the current rate.
    fn restart_full_bw(&mut self, ack: &Ack) {
        self.reset_full_bw();
        self.full_bw = ack.rs.map_or(Coarse::ZERO, |rs| rs.delivery_rate);
    }

    /// Runs UpdateProbeBWCyclePhase (§5.3.3.9): the transitions of the cycle.
    pub(super) fn update_probe_bw_cycle_phase(&mut self, window: &CongestionWindow, ack: &Ack) {
        // Compared before `adapt_long_term_model` runs: it may raise `inflight_longterm`, and the window, which the
        // last acknowledgment has set, would then look unlimited.
        let at_limit = self.is_cwnd_limited() && window.cwnd >= self.inflight_longterm;
        if !self.has(FULL_BW_REACHED) || self.adapt_long_term_model(window, ack) {
            return;
        }
        match self.state {
            State::ProbeBwDown => {
                if !self.probe_bw_if_due(window, ack) && self.is_time_to_cruise(window, ack) {
                    self.start_probe_bw_cruise();
                }
            }
            State::ProbeBwCruise => {
                self.probe_bw_if_due(window, ack);
            }
            State::ProbeBwRefill => {
                if ack.round_start {
                    self.set(IS_BW_PROBE_SAMPLE, true);
                    self.start_probe_bw_up(ack);
                }
            }
            State::ProbeBwUp => {
                if self.check_go_down(ack, at_limit) {
                    self.set(PREV_PROBE_TOO_HIGH, false);
                    self.start_probe_bw_down(ack.now, ack.c_delivered);
                }
            }
            State::Startup | State::Drain | State::ProbeRtt => {}
        }
    }

    /// IsTimeToCruise (§5.3.3.9): the flow has left headroom, and the queue is gone.
    fn is_time_to_cruise(&self, window: &CongestionWindow, ack: &Ack) -> bool {
        ack.inflight <= self.inflight_with_headroom(window)
            && ack.inflight <= self.inflight(window, ack, self.max_bw())
    }

    /// Returns the result of IsTimeToGoDown (§5.3.3.9), and notes why the probe ends. `at_limit` is true if "the flow
    /// becomes cwnd-limited while cwnd is limited by BBR.inflight_longterm" (§5.3.3.7).
    fn check_go_down(&mut self, ack: &Ack, at_limit: bool) -> bool {
        // "If ProbeBW_UP exits due to excess loss, then the following ProbeBW_UP phase is a brief 'precautionary
        // bandwidth probing' phase that lasts only until C.inflight reaches BBR.inflight_longterm" (§5.3.3.6).
        // C.inflight is greatest just before an acknowledgment reduces it, so `prior_inflight` is compared.
        if self.has(PREV_PROBE_TOO_HIGH) && ack.prior_inflight >= self.inflight_longterm {
            self.set(PREV_PROBE_PRECAUTIONARY, true);
            return true;
        }
        if at_limit {
            // "bw is limited by BBR.inflight_longterm"
            self.restart_full_bw(ack);
            return false;
        }
        self.has(FULL_BW_NOW)
    }

    /// Runs InflightWithHeadroom (§5.3.3.9): the long-term limit less what is left to others, bytes.
    pub(super) fn inflight_with_headroom(&self, window: &CongestionWindow) -> u32 {
        if self.inflight_longterm == INFINITY {
            return INFINITY;
        }
        let headroom = percent_of(self.inflight_longterm, HEADROOM_PERCENT).max(window.mss);
        let least = window.mss.saturating_mul(MIN_PIPE_SEGMENTS);
        self.inflight_longterm.saturating_sub(headroom).max(least)
    }

    /// RaiseInflightLongtermSlope (§5.3.3.9): the growth doubles with each round trip.
    fn raise_inflight_longterm_slope(&mut self) {
        self.bw_probe_up_rounds = self.bw_probe_up_rounds.saturating_add(1).min(UP_ROUNDS_MAX);
    }

    /// Returns BBR.probe_up_acked_per_inc, bytes: "max(C.cwnd / growth_this_round, C.SMSS)" (§5.3.3.9). The window
    /// is taken as of now, not as of the start of the round; while it matters, it follows BBR.inflight_longterm.
    fn probe_up_acked_per_inc(&self, window: &CongestionWindow) -> u32 {
        let rounds = u32::from(self.bw_probe_up_rounds).saturating_sub(1);
        window.cwnd.checked_shr(rounds).unwrap_or(0).max(window.mss).max(1)
    }

    /// ProbeInflightLongtermUpward (§5.3.3.9): "in each successive round trip, BBR.inflight_longterm grows (in units
    /// of C.SMSS) by 1, 2, 4, 8, 16, etc" (§5.3.3.5).
    fn probe_inflight_longterm_upward(&mut self, window: &CongestionWindow, ack: &Ack) {
        if !self.is_cwnd_limited() || window.cwnd < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked = self.bw_probe_up_acked.saturating_add(ack.newly_acked);
        let per_inc = self.probe_up_acked_per_inc(window);
        let delta = self.bw_probe_up_acked.checked_div(per_inc).unwrap_or(0);
        if delta > 0 {
            self.bw_probe_up_acked = self.bw_probe_up_acked.saturating_sub(delta.saturating_mul(per_inc));
            let grown = self.inflight_longterm.saturating_add(delta.saturating_mul(window.mss));
            self.inflight_longterm = grown.min(super::super::CWND_MAX);
        }
        if ack.round_start {
            self.raise_inflight_longterm_slope();
        }
    }

    /// AdaptLongTermModel (§5.3.3.9): follows the acknowledgments of a probe, and raises the limits while the loss
    /// rate is safe. Returns true if it decided a transition.
    fn adapt_long_term_model(&mut self, window: &CongestionWindow, ack: &Ack) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && ack.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        let Some(rs) = ack.rs else { return false };
        if self.ack_phase == AckPhase::ProbeStopping && ack.round_start {
            self.set(IS_BW_PROBE_SAMPLE, false);
            self.ack_phase = AckPhase::Init;
            if self.is_in_a_probe_bw_state() && !rs.is_app_limited {
                self.advance_max_bw_filter();
            }
            // "If a round trip elapses and the flow finishes receiving at least a full round trip of ACK feedback from
            // bandwidth probing without detecting excess packet loss [...], then the flow immediately returns to
            // ProbeBW_REFILL" (§5.3.3.6).
            if self.is_in_a_probe_bw_state()
                && self.has(PREV_PROBE_PRECAUTIONARY)
                && !self.has(PREV_PROBE_TOO_HIGH)
            {
                self.start_probe_bw_refill(ack.c_delivered);
                return true;
            }
        }
        let too_high = self.is_inflight_too_high(rs.tx_in_flight, rs.lost, ack.has_selective_acks);
        if !too_high && self.inflight_longterm != INFINITY {
            self.inflight_longterm = self.inflight_longterm.max(rs.tx_in_flight);
            if self.state == State::ProbeBwUp {
                self.probe_inflight_longterm_upward(window, ack);
            }
        }
        false
    }
}
