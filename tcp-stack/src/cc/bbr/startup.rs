//! Startup and Drain: the first search for the bandwidth, and the end of the queue that it built.

use super::{Ack, Bbr, Coarse, CongestionWindow, FULL_BW_NOW, FULL_BW_REACHED, IN_RECOVERY, State};

/// Rounds without much growth after which the bandwidth counts as fully used (§5.3.1.2).
const FULL_ROUNDS: u8 = 3;
/// Growth of a round that is much, percent (§5.3.1.2).
const FULL_GROWTH_PERCENT: u64 = 125;
/// BBRStartupFullLossCnt: ranges lost in a round that end Startup (§5.3.1.3).
const STARTUP_FULL_LOSS_COUNT: u8 = 6;
/// Round trips after which Drain ends in any case (§5.3.2).
const DRAIN_ROUNDS: u8 = 3;

impl Bbr {
    /// Runs EnterStartup (§5.3.1.1); the gains follow from the state.
    pub(super) const fn enter_startup(&mut self) {
        self.state = State::Startup;
    }

    /// Runs ResetFullBW (§5.3.1.2): begins a search for a plateau of the rate.
    pub(super) const fn reset_full_bw(&mut self) {
        self.full_bw = Coarse::ZERO;
        self.full_bw_count = 0;
        self.set(FULL_BW_NOW, false);
    }

    /// CheckFullBWReached (§5.3.1.2): "if BBR counts several (three) non-application-limited rounds where attempts to
    /// significantly increase the delivery rate actually result in little increase (less than 25 percent), then it
    /// estimates that it has fully utilized the per-flow available bandwidth".
    pub(super) fn check_full_bw_reached(&mut self, ack: &Ack) {
        let Some(rs) = ack.rs else { return };
        if self.has(FULL_BW_NOW) || !ack.round_start || rs.is_app_limited {
            return;
        }
        if rs.delivery_rate.get() >= self.full_bw.get().saturating_mul(FULL_GROWTH_PERCENT) / 100 {
            self.reset_full_bw();
            self.full_bw = rs.delivery_rate;
            return;
        }
        self.full_bw_count = self.full_bw_count.saturating_add(1);
        if self.full_bw_count >= FULL_ROUNDS {
            self.set(FULL_BW_NOW | FULL_BW_REACHED, true);
        }
    }

    /// Runs CheckStartupDone (§5.3.1.1): Startup ends at a plateau of the rate, or after much loss.
    pub(super) fn check_startup_done(&mut self, window: &CongestionWindow, ack: &Ack) {
        self.check_startup_high_loss(window, ack);
        if self.state == State::Startup && self.has(FULL_BW_REACHED) {
            self.enter_drain();
        }
    }

    /// CheckStartupHighLoss (§5.3.1.3): ends Startup after a round trip in recovery whose loss rate exceeds
    /// BBR.LossThresh and that lost at least six ranges; without SACK, after any loss in recovery.
    fn check_startup_high_loss(&mut self, window: &CongestionWindow, ack: &Ack) {
        if self.has(FULL_BW_REACHED) || !ack.loss_round_start {
            return;
        }
        let enough = self.lost_ranges >= STARTUP_FULL_LOSS_COUNT || !ack.has_selective_acks;
        self.lost_ranges = 0;
        let Some(rs) = ack.rs else { return };
        if enough
            && self.has(IN_RECOVERY)
            && self.is_inflight_too_high(rs.tx_in_flight, rs.lost, ack.has_selective_acks)
        {
            self.undo_state = Some(State::Startup);
            self.leave_startup_at_limit(window, ack);
        }
    }

    /// Sets BBR.full_bw_reached, and BBR.inflight_longterm to "its estimate of a safe level of in-flight data [...],
    /// which is max(BBR.bdp, BBR.inflight_latest)" (§5.3.1.3).
    pub(super) fn leave_startup_at_limit(&mut self, window: &CongestionWindow, ack: &Ack) {
        self.set(FULL_BW_REACHED, true);
        self.inflight_longterm =
            self.bdp_multiple(100, ack.initial_cwnd).max(self.inflight_latest).max(window.mss);
    }

    /// Runs EnterDrain (§5.3.2); the gains follow from the state.
    const fn enter_drain(&mut self) {
        self.state = State::Drain;
        self.drain_start_round = self.round_count;
    }

    /// Runs CheckDrainDone (§5.3.2): Drain ends when a BDP is in flight, or after three round trips.
    pub(super) fn check_drain_done(&mut self, window: &CongestionWindow, ack: &Ack) {
        let rounds = self.round_count.wrapping_sub(self.drain_start_round);
        if self.state == State::Drain
            && (ack.inflight <= self.inflight(window, ack, self.bw()) || rounds > DRAIN_ROUNDS)
        {
            self.start_probe_bw_down(ack.now, ack.c_delivered);
        }
    }
}
