//! The model's response to losses and congestion marks, and its reversal after a spurious loss.

use super::{
    Ack, BETA_PERCENT, Bbr, Coarse, CongestionWindow, FULL_BW_REACHED, IN_RECOVERY, INFINITY,
    IS_BW_PROBE_SAMPLE, IS_LOSS_IN_ROUND, LEFT_RECOVERY, LostSegment, MARKED, PREV_PROBE_TOO_HIGH, SAVED,
    State, clamp32, has_reached, percent_of, saved, volume,
};
use crate::time::Instant;

/// Returns the low bits of a sequence number.
fn low_bits(seq: u32) -> u16 {
    let [.., a, b] = seq.to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// InflightAtLoss (§5.5.10.2): the amount in flight at which the losses crossed BBR.LossThresh, `percent`, bytes. That
/// may be in the middle of the segment of `size` bytes whose loss was the last of `lost` bytes:
/// "lost_prefix >= (BBR.LossThresh * inflight_prev - lost_prev) / (1 - BBR.LossThresh)".
fn inflight_at_loss(tx_in_flight: u32, lost: u32, size: u32, percent: u8) -> u32 {
    let inflight_prev = u64::from(tx_in_flight.saturating_sub(size));
    let lost_prev = u64::from(lost.saturating_sub(size));
    let percent = u64::from(percent.min(99));
    let tolerated = inflight_prev.saturating_mul(percent);
    let over = tolerated.saturating_sub(lost_prev.saturating_mul(100));
    clamp32(inflight_prev.saturating_add(over.checked_div(100_u64.saturating_sub(percent)).unwrap_or(0)))
}

impl Bbr {
    /// Runs UpdateLatestDeliverySignals (§5.5.10.3): measures the delivery of the current round trip.
    pub(super) fn update_latest_delivery_signals(&mut self, ack: &mut Ack) {
        let Some(rs) = ack.rs else { return };
        self.bw_latest = self.bw_latest.max(rs.delivery_rate);
        self.inflight_latest = self.inflight_latest.max(rs.delivered);
        if has_reached(rs.prior_delivered, self.loss_round_delivered) {
            self.loss_round_delivered = ack.c_delivered;
            ack.loss_round_start = true;
        }
    }

    /// Runs AdvanceLatestDeliverySignals (§5.5.10.3): begins a new measurement with a new round trip.
    pub(super) fn advance_latest_delivery_signals(&mut self, ack: &Ack) {
        if let Some(rs) = ack.rs
            && ack.loss_round_start
        {
            self.bw_latest = rs.delivery_rate;
            self.inflight_latest = rs.delivered;
        }
    }

    /// Runs ResetCongestionSignals (§5.5.10.3): forgets losses and the delivery of the current round trip.
    pub(super) const fn reset_congestion_signals(&mut self) {
        self.set(IS_LOSS_IN_ROUND, false);
        self.bw_latest = Coarse::ZERO;
        self.inflight_latest = 0;
    }

    /// Runs UpdateCongestionSignals (§5.5.10.3): responds to losses once per round trip.
    pub(super) fn update_congestion_signals(&mut self, window: &CongestionWindow, ack: &mut Ack) {
        self.update_max_bw(ack);
        if ack.loss_round_start {
            self.adapt_lower_bounds_from_congestion(window);
            self.set(IS_LOSS_IN_ROUND, false);
        }
    }

    /// AdaptLowerBoundsFromCongestion and LossLowerBounds (§5.5.10.3): "Upon the ACK at the end of each round that
    /// encountered a newly-marked loss, the flow updates its model":
    /// "bw_shortterm = max(bw_latest, BBR.Beta * BBR.bw_shortterm)", and the same for the amount in flight.
    fn adapt_lower_bounds_from_congestion(&mut self, window: &CongestionWindow) {
        if !self.is_probing_bw() && self.has(IS_LOSS_IN_ROUND) {
            self.init_lower_bounds(window);
            self.bw_shortterm = self.bw_shortterm.percent(BETA_PERCENT).max(self.bw_latest);
            let reduced = percent_of(self.inflight_shortterm, BETA_PERCENT);
            self.inflight_shortterm = reduced.max(self.inflight_latest);
        }
    }

    /// InitLowerBounds (§5.5.10.3): "Handle the first congestion episode in this cycle".
    fn init_lower_bounds(&mut self, window: &CongestionWindow) {
        if self.bw_shortterm == Coarse::INFINITY {
            self.bw_shortterm = self.max_bw();
        }
        if self.inflight_shortterm == INFINITY {
            self.inflight_shortterm = window.cwnd;
        }
    }

    /// Runs ResetShortTermModel (§5.5.10.3): removes the short-term bounds.
    pub(super) const fn reset_short_term_model(&mut self) {
        self.bw_shortterm = Coarse::INFINITY;
        self.inflight_shortterm = INFINITY;
    }

    /// IsInflightTooHigh (§5.5.10.2): "the loss rate over the past round trip exceeds the queue pressure objective".
    pub(super) fn is_inflight_too_high(
        &self,
        tx_in_flight: u32,
        lost: u32,
        has_selective_acks: bool,
    ) -> bool {
        let tolerated = u64::from(tx_in_flight).saturating_mul(self.loss_thresh_percent.into());
        u64::from(lost).saturating_mul(100) > tolerated || (lost > 0 && !has_selective_acks)
    }

    /// HandleInflightTooHigh (§5.5.10.2), for a segment that was sent with `tx_in_flight` bytes in flight. `at` is the
    /// time, and C.delivered as of then.
    fn handle_inflight_too_high(
        &mut self,
        window: &CongestionWindow,
        at: (Instant, u32),
        tx_in_flight: u32,
        is_app_limited: bool,
    ) {
        self.set(PREV_PROBE_TOO_HIGH, true);
        // "only react once per bw probe"
        self.set(IS_BW_PROBE_SAMPLE, false);
        if !is_app_limited {
            let target = self.target_inflight(window, window.cwnd);
            self.inflight_longterm = tx_in_flight.max(percent_of(target, BETA_PERCENT));
        }
        if self.state == State::ProbeBwUp {
            self.undo_state = Some(State::ProbeBwUp);
            let (now, c_delivered) = at;
            self.start_probe_bw_down(now, c_delivered);
        }
    }

    /// HandleLostPacket and NoteLoss (§5.5.10.2).
    pub(in crate::cc) fn on_segment_lost(&mut self, window: &CongestionWindow, lost: &LostSegment) {
        if self.lost_ranges == 0 || self.lost_end != low_bits(lost.seq) {
            self.lost_ranges = self.lost_ranges.saturating_add(1);
        }
        self.lost_end = low_bits(lost.seq.wrapping_add(lost.size));
        if !self.has(IS_LOSS_IN_ROUND) {
            self.loss_round_delivered = lost.delivered;
        }
        self.save_state_upon_loss(window);
        self.set(IS_LOSS_IN_ROUND, true);
        if !self.has(IS_BW_PROBE_SAMPLE) {
            return;
        }
        let (tx_in_flight, rs_lost) = (lost.load.in_flight(), lost.load.lost_since(lost.lost));
        if self.is_inflight_too_high(tx_in_flight, rs_lost, lost.sack) {
            let percent = self.loss_thresh_percent;
            let tx_in_flight = inflight_at_loss(tx_in_flight, rs_lost, lost.size, percent);
            let at = (lost.now, lost.delivered);
            self.handle_inflight_too_high(window, at, tx_in_flight, lost.load.app_limited());
        }
    }

    /// SaveStateUponLoss (§5.5.11.1), at the first loss of a recovery only: the responses to its other losses are part
    /// of what an undo reverses. (The draft saves again in each round trip, and loses the state of a probe that the
    /// first loss ended.)
    fn save_state_upon_loss(&mut self, window: &CongestionWindow) {
        self.save_cwnd(window.cwnd);
        if self.has(SAVED) {
            return;
        }
        self.set(SAVED, true);
        self.undo_state = None;
        self.undo_bw_shortterm = self.bw_shortterm;
        self.undo_inflight_shortterm = saved(self.inflight_shortterm);
        self.undo_inflight_longterm = saved(self.inflight_longterm);
    }

    /// OnEnterFastRecovery and OnEnterRTO (§5.6.4.4): a recovery begins. Returns the window, bytes, which does not
    /// change.
    pub(in crate::cc) fn on_loss(&mut self, window: &CongestionWindow) -> u32 {
        self.save_state_upon_loss(window);
        self.set(IS_LOSS_IN_ROUND | IN_RECOVERY, true);
        window.cwnd
    }

    /// Restores the window after recovery (§5.6.4.4): "BBR restores the best-known cwnd value we had upon entering loss
    /// recovery". The model bounds it at the end of the same acknowledgment.
    pub(in crate::cc) fn on_recovery_exit(&mut self, window: &mut CongestionWindow) {
        self.set(SAVED, false);
        if self.has(IN_RECOVERY) {
            self.set(IN_RECOVERY, false);
            self.set(LEFT_RECOVERY, true);
            self.restore_cwnd(window);
        }
    }

    /// Runs HandleSpuriousLossDetection (§5.5.11.2): restores the model, and the state that the loss ended.
    pub(in crate::cc) fn undo(&mut self, window: &mut CongestionWindow) {
        self.restore_cwnd(window);
        self.set(IS_LOSS_IN_ROUND, false);
        self.lost_ranges = 0;
        self.reset_full_bw();
        self.bw_shortterm = self.bw_shortterm.max(self.undo_bw_shortterm);
        let or_infinite = |saved: Coarse| if saved == Coarse::INFINITY { INFINITY } else { volume(saved) };
        self.inflight_shortterm = self.inflight_shortterm.max(or_infinite(self.undo_inflight_shortterm));
        self.inflight_longterm = self.inflight_longterm.max(or_infinite(self.undo_inflight_longterm));
        match self.undo_state.take() {
            Some(State::Startup) if self.state != State::Startup => {
                self.set(FULL_BW_REACHED, false);
                if self.state != State::ProbeRtt {
                    self.enter_startup();
                }
            }
            Some(State::ProbeBwUp) if self.state != State::ProbeBwUp && self.state != State::ProbeRtt => {
                // The round that refills the pipe begins with the next acknowledgment.
                self.start_probe_bw_refill(self.next_round_delivered);
            }
            _ => {}
        }
    }

    /// Notes an echoed congestion mark; the acknowledgment that carries it calls [`Self::on_ack`] next.
    pub(in crate::cc) const fn on_mark(&mut self) {
        self.set(MARKED, true);
    }

    /// Responds to an echoed mark, at most once per window of data. The draft "does not specify a specific response",
    /// but "the congestion controller response MUST treat any CE marks as congestion" (§3.7). The response is that to
    /// excess loss: it ends Startup or a probe for bandwidth, and otherwise reduces the amount in flight by BBR.Beta.
    /// The delivery rate does not bound the reduction as it does for a loss, because marks do not lower it.
    pub(super) fn respond_to_mark(&mut self, window: &CongestionWindow, ack: &Ack) {
        if !self.has(MARKED) {
            return;
        }
        self.set(MARKED, false);
        if !self.has(FULL_BW_REACHED) {
            self.leave_startup_at_limit(window, ack);
        } else if let Some(rs) = ack.rs
            && self.has(IS_BW_PROBE_SAMPLE)
        {
            let at = (ack.now, ack.c_delivered);
            self.handle_inflight_too_high(window, at, rs.tx_in_flight, rs.is_app_limited);
        } else {
            self.init_lower_bounds(window);
            self.inflight_shortterm = percent_of(self.inflight_shortterm, BETA_PERCENT);
        }
    }
}
