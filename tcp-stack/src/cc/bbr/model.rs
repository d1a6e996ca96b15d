//! The model of the path: round trips, the largest bandwidth, and the aggregation of acknowledgments.

use super::{
    Ack, Bbr, Coarse, CongestionWindow, FULL_BW_REACHED, IN_RECOVERY, LEFT_RECOVERY, USED_CWND, USES_CWND,
    clamp32, has_reached,
};
use crate::time::Stamp;

/// Rounds in one of the two places of the filter of BBR.extra_acked: together BBR.ExtraAckedFilterLen, 10 (§2.12).
const EXTRA_ACKED_ROUNDS: u8 = 5;

/// Makes the second place of a filter the first one, and begins a new second one. Without a value in the second place
/// the first one stays.
fn advance(filter: &mut [Coarse; 2]) {
    let [before, latest] = *filter;
    *filter = [if latest == Coarse::ZERO { before } else { latest }, Coarse::ZERO];
}

fn largest(filter: [Coarse; 2]) -> Coarse {
    let [before, latest] = filter;
    before.max(latest)
}

fn raise(filter: &mut [Coarse; 2], value: Coarse) {
    let [_, latest] = filter;
    *latest = value.max(*latest);
}

impl Bbr {
    /// Runs StartRound (§5.5.1): the round trip ends when something sent from now on is acknowledged.
    pub(super) const fn start_round(&mut self, c_delivered: u32) {
        self.next_round_delivered = c_delivered;
    }

    /// Runs UpdateRound (§5.5.1): counts round trips.
    fn update_round(&mut self, ack: &mut Ack) {
        ack.round_start = ack.rs.is_some_and(|rs| has_reached(rs.prior_delivered, self.next_round_delivered));
        if ack.round_start {
            self.start_round(ack.c_delivered);
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe_up = self.rounds_since_probe_up.saturating_add(1);
            self.set(USED_CWND, self.has(USES_CWND));
            self.set(USES_CWND, false);
        }
    }

    /// UpdateMaxBw (§5.5.5): "By default, the estimator discards application-limited samples [...]. However, the
    /// estimator does use application-limited samples if the measured delivery rate happens to be larger than the
    /// current BBR.max_bw estimate" (§5.5.4).
    pub(super) fn update_max_bw(&mut self, ack: &mut Ack) {
        self.update_round(ack);
        if let Some(rs) = ack.rs
            && (rs.delivery_rate >= self.max_bw() || !rs.is_app_limited)
        {
            raise(&mut self.max_bw_filter, rs.delivery_rate);
        }
    }

    /// Runs AdvanceMaxBwFilter (§5.5.6): begins a new cycle of the filter.
    pub(super) fn advance_max_bw_filter(&mut self) {
        advance(&mut self.max_bw_filter);
    }

    /// BBR.max_bw, bytes per second.
    pub(super) fn max_bw(&self) -> Coarse {
        largest(self.max_bw_filter)
    }

    /// BBR.bw, bytes per second: "the min() of max_bw and bw_shortterm" (§2.9.1; BoundBWForModel, §5.5.10.3).
    pub(super) fn bw(&self) -> Coarse {
        self.max_bw().min(self.bw_shortterm)
    }

    /// UpdateACKAggregation (§5.5.9): the largest volume acknowledged beyond what the bandwidth explains. Recoveries do
    /// not count: the segment that fills a hole acknowledges at once all that arrived behind it, as far as selective
    /// acknowledgments have not reported it. Taken for aggregation, it would enlarge the window with each loss.
    pub(super) fn update_ack_aggregation(&mut self, window: &CongestionWindow, ack: &Ack) {
        if ack.round_start {
            self.extra_acked_rounds = self.extra_acked_rounds.saturating_add(1);
            // "in Startup, just remember 1 round"
            let rounds = if self.has(FULL_BW_REACHED) { EXTRA_ACKED_ROUNDS } else { 1 };
            if self.extra_acked_rounds >= rounds {
                self.extra_acked_rounds = 0;
                let [_, latest] = self.extra_acked_filter;
                self.extra_acked_filter = [latest, Coarse::ZERO];
            }
        }
        if ack.newly_acked == 0 {
            return;
        }
        let now = Stamp::of(ack.now);
        if self.has(IN_RECOVERY | LEFT_RECOVERY) {
            self.extra_acked_delivered = 0;
            self.extra_acked_interval_start = now;
            return;
        }
        let interval_ns = now.nanos_since(self.extra_acked_interval_start);
        let mut expected = clamp32(self.bw().get().saturating_mul(interval_ns) / 1_000_000_000);
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_interval_start = now;
            expected = 0;
        }
        self.extra_acked_delivered = self.extra_acked_delivered.saturating_add(ack.newly_acked);
        let extra = self.extra_acked_delivered.saturating_sub(expected).min(window.cwnd);
        raise(&mut self.extra_acked_filter, Coarse::of(extra.into()));
    }

    /// Returns BBR.extra_acked, bytes.
    pub(super) fn extra_acked(&self) -> u32 {
        clamp32(largest(self.extra_acked_filter).get())
    }
}
