//! Detection of spurious timeouts and recoveries, and the reversal of the congestion response.

use super::ack::Delivery;
use super::{Conn, Cx};
use crate::buf::Buf;
use crate::cc::CongestionWindow;
use crate::recovery::{FRto, FRtoAck, FRtoVerdict, Phase, Undo};

impl Conn {
    /// Saves the congestion window before a response lowers it. A response during an episode, or before the episode
    /// can be evaluated, belongs to that episode.
    pub(super) fn begin_episode(&mut self) {
        let undo = &self.episode.undo;
        if !(undo.is_open() && self.recovery.in_recovery() || undo.includes(self.snd.una)) {
            self.episode.undo = Undo::begin(self.snd.una, self.window.cwnd, self.window.ssthresh);
        }
    }

    /// RFC 5682 §2.1 step 1, after a timeout. If SND.UNA is below the recovery point, a recovery was in progress;
    /// then only a timeout that repeats the last one, with no acknowledgment in between, starts the algorithm.
    pub(super) fn start_f_rto(&mut self) {
        let again = self.recovery.phase == Phase::Loss && self.episode.f_rto == FRto::Retransmitted;
        let first = self.recovery.phase == Phase::Open;
        self.episode.f_rto = if first || again { FRto::Retransmitted } else { FRto::Off };
    }

    /// RFC 5682 §2.1 and §3.1, steps 2 and 3.
    fn advance_f_rto<B: Buf>(&mut self, cx: &Cx<'_, B>, delivery: &Delivery) -> FRtoVerdict {
        let fresh = cx.tx.get(self.snd.queue.unsent());
        let edge = self.snd.una + self.snd.wnd;
        let may_go = |full: bool| full || !self.snd.nagle;
        let has_new = fresh.is_some_and(|segment| {
            segment.end().at_or_before(edge) && may_go(segment.len >= self.snd.emss || segment.fin)
        });
        let verdict = self.episode.f_rto.on_ack(&FRtoAck {
            sack: self.negotiated.sack,
            // It must acknowledge the first segment whole.
            advances: delivery.segments > 0,
            covers_all: self.snd.una.at_or_after(self.episode.point),
            covers_more: self.snd.una.max(delivery.highest).after(self.episode.point),
            sacks: delivery.newly_sacked > 0,
            duplicate: delivery.duplicate,
            has_new,
        });
        let mss = self.window.mss;
        match verdict {
            FRtoVerdict::SendNew => self.window.cwnd = self.pipe().saturating_add(mss.saturating_mul(2)),
            FRtoVerdict::Conventional { segments } => self.window.cwnd = mss.saturating_mul(segments),
            FRtoVerdict::Undecided | FRtoVerdict::Spurious => {}
        }
        verdict
    }

    /// Reverts the last congestion response if the acknowledgment shows that it was spurious. Returns true if the
    /// congestion window is set for this acknowledgment.
    pub(super) fn undo_if_spurious<B: Buf>(&mut self, cx: &mut Cx<'_, B>, delivery: &Delivery) -> bool {
        if let Some(range) = delivery.dsack {
            self.episode.undo.on_duplicate(range, self.snd.emss);
        }
        let verdict = match self.recovery.phase {
            Phase::Loss => self.advance_f_rto(cx, delivery),
            Phase::Open | Phase::Fast => FRtoVerdict::Undecided,
        };
        let spurious = verdict == FRtoVerdict::Spurious
            || self.echo_shows_original(delivery)
            || self.duplicates_show_original(delivery);
        if spurious {
            self.undo(cx, delivery);
        }
        spurious || verdict != FRtoVerdict::Undecided
    }

    /// Eifel detection (RFC 3522 §3.2). A part of the retransmitted segments may have been lost while another was
    /// late, so an acknowledgment of a part counts only if no retransmission is in flight.
    fn echo_shows_original(&self, delivery: &Delivery) -> bool {
        let undo = &self.episode.undo;
        let Some(echo) = delivery.echo.filter(|_| self.recovery.in_recovery() && undo.is_open()) else {
            return false;
        };
        let whole = self.snd.una.at_or_after(self.episode.point) || self.snd.queue.flight_again() == 0;
        // After a timeout, an acknowledgment of everything may answer the retransmission alone: the originals
        // arrived and all their acknowledgments were lost. A D-SACK would report that.
        let everything = self.snd.una == self.snd.nxt && !self.episode.dsack_seen;
        let lost_acks = self.recovery.phase == Phase::Loss && (delivery.dsack.is_some() || everything);
        delivery.acked > 0 && whole && !lost_acks && undo.echo_is_of_original(echo)
    }

    /// D-SACK detection (RFC 3708 §3): true if all retransmissions of the episode were duplicates.
    fn duplicates_show_original(&mut self, delivery: &Delivery) -> bool {
        let Some(range) = delivery.dsack.filter(|_| self.episode.undo.is_open()) else { return false };
        // (A.1): "the left edge of the incoming DSACK is equal to SND.UNA" and nothing is SACKed: "an entire window
        // of acknowledgments have been dropped", which is congestion, even if on the return path.
        if delivery.acked > 0
            && range.start + delivery.acked == self.snd.una
            && self.recovery.phase == Phase::Loss
            && self.snd.queue.sacked() == 0
        {
            self.episode.undo = Undo::NONE;
            return false;
        }
        self.episode.undo.all_were_duplicates()
    }

    /// Reverts the response: lost segments are in flight again, and the congestion window may grow to its previous
    /// value.
    fn undo<B: Buf>(&mut self, cx: &mut Cx<'_, B>, delivery: &Delivery) {
        match self.recovery.phase {
            Phase::Loss => cx.stats.spurious_timeouts = cx.stats.spurious_timeouts.wrapping_add(1),
            Phase::Open | Phase::Fast => {
                cx.stats.spurious_recoveries = cx.stats.spurious_recoveries.wrapping_add(1);
            }
        }
        self.snd.queue.revert_lost(cx.tx);
        self.recovery.dup_acks = 0;
        if let Some((cwnd, ssthresh)) = self.episode.undo.take() {
            let initial = CongestionWindow::initial(self.window.mss, &cx.config.tcp).cwnd;
            // RFC 4015 §3.1 (9): "cwnd <- FlightSize + min (bytes_acked, IW)" and "ssthresh <- pipe_prev":
            // slow start, clocked by acknowledgments, from what is in flight to where the window was.
            let now = self.pipe().saturating_add(delivery.acked.min(initial).max(self.window.mss));
            self.window.cwnd = self.window.cwnd.max(now.min(cwnd));
            self.window.ssthresh = self.window.ssthresh.max(ssthresh).max(cwnd);
            self.cc.undo(&mut self.window);
        }
        self.recovery.backoff = 0;
        self.recovery.slow_start_after_timeout = false;
        self.recovery.rack.on_spurious(self.snd.una, self.snd.nxt);
        if self.recovery.in_recovery() {
            self.recovery.phase = Phase::Open;
            self.episode.f_rto = FRto::Off;
            // RFC 5682 §3.1: "RecoveryPoint is set to SND.UNA, thus allowing fast recovery".
            self.episode.point = self.snd.una;
            self.episode.has_ended = false;
            self.cc.on_recovery_exit(&mut self.window);
            self.recovery.rack.on_recovery_end();
        }
    }
}
