//! RACK (recent acknowledgment): loss detection by time (RFC 8985 §6).

use core::time::Duration;

use super::DUP_THRESH;
use super::rtt::{duration, units};
use crate::seq::SeqNum;
use crate::time::Instant;

/// Recoveries for which an enlarged reordering window is kept (§6.2 step 4).
const REO_WND_PERSIST: u8 = 16;

/// A segment that an acknowledgment reports as delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) sent_at: Instant,
    pub(crate) end_seq: SeqNum,
    pub(crate) retransmitted: bool,
    /// True if the acknowledgment's timestamp echo is older than the last transmission, so that it may answer an
    /// earlier one.
    pub(crate) echo_is_older: bool,
}

/// RACK's variables for one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq of the most recently sent segment that was delivered.
    xmit_ts: Instant,
    end_seq: SeqNum,
    /// RACK.rtt, in units of 16 ns.
    rtt: u32,
    /// True if the acknowledgment being processed set [`Self::rtt`].
    rtt_is_new: bool,
    /// RACK.fack: highest sequence number acknowledged, cumulatively or selectively.
    fack: SeqNum,
    reordering_seen: bool,
    dsack_round: Option<SeqNum>,
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
}

impl Rack {
    pub(crate) const fn new(iss: SeqNum) -> Self {
        Self {
            xmit_ts: Instant::ZERO,
            end_seq: iss,
            rtt: 0,
            rtt_is_new: false,
            fack: iss,
            reordering_seen: false,
            dsack_round: None,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
        }
    }

    /// Returns true if reordering was seen.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Returns true if no delivered segment lies beyond `una`, and no D-SACK round is in progress.
    #[inline]
    pub(crate) fn is_quiescent(&self, una: SeqNum) -> bool {
        self.dsack_round.is_none() && self.fack.at_or_before(una)
    }

    /// Begins the processing of an acknowledgment.
    #[inline]
    pub(crate) fn begin_ack(&mut self) {
        self.rtt_is_new = false;
    }

    /// Runs steps 2 and 3 for one segment newly acknowledged, cumulatively or selectively. `min_rtt` is in nanoseconds.
    /// Returns false if the segment counts for nothing, because its first transmission may have been acknowledged.
    #[inline]
    pub(crate) fn on_delivered(&mut self, now: Instant, segment: &Delivered, min_rtt: Option<u64>) -> bool {
        if segment.end_seq.after(self.fack) {
            self.fack = segment.end_seq;
        } else if segment.end_seq.before(self.fack) && !segment.retransmitted {
            self.reordering_seen = true;
        }
        let rtt = now.nanos_since(segment.sent_at);
        if segment.retransmitted && (segment.echo_is_older || min_rtt.is_some_and(|min| rtt < min)) {
            return false;
        }
        self.advance(now, segment.sent_at, segment.end_seq);
        true
    }

    /// Notes that a segment that ends at `end_seq` was delivered and was sent at `sent_at` or later.
    #[inline]
    pub(crate) fn advance(&mut self, now: Instant, sent_at: Instant, end_seq: SeqNum) {
        // "in ascending order of Segment.xmit_ts": of the segments that one acknowledgment delivers, the one sent last
        // counts.
        let rtt = units(now.nanos_since(sent_at));
        self.rtt = if self.rtt_is_new { self.rtt.min(rtt) } else { rtt };
        self.rtt_is_new = true;
        if sent_after(sent_at, end_seq, self.xmit_ts, self.end_seq) {
            self.xmit_ts = sent_at;
            self.end_seq = end_seq;
        }
    }

    /// Runs the part of step 4 that adapts the window to D-SACKs.
    pub(crate) fn on_ack(&mut self, una: SeqNum, nxt: SeqNum, dsack: bool) {
        if self.dsack_round.is_some_and(|round| una.at_or_after(round)) {
            self.dsack_round = None;
        }
        if self.dsack_round.is_none() && dsack {
            self.dsack_round = Some(nxt);
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Notes a spurious retransmission: segments are reordered by more than the window. Widens it as a D-SACK does,
    /// which not every peer sends.
    pub(crate) fn on_spurious(&mut self, una: SeqNum, nxt: SeqNum) {
        self.reordering_seen = true;
        self.on_ack(una, nxt, true);
    }

    /// Notes the end of a recovery (step 4).
    pub(crate) fn on_recovery_end(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    /// Returns the reordering window (step 4): the time for which a segment may be late before it counts as lost.
    pub(crate) fn reordering_window(
        &self,
        in_recovery: bool,
        sacked_segments: u32,
        min_rtt: Option<Duration>,
        srtt: Option<Duration>,
    ) -> Duration {
        if !self.reordering_seen && (in_recovery || sacked_segments >= DUP_THRESH) {
            return Duration::ZERO;
        }
        let quarter = min_rtt.and_then(|rtt| rtt.checked_div(4)).unwrap_or(Duration::ZERO);
        quarter.saturating_mul(u32::from(self.reo_wnd_mult)).min(srtt.unwrap_or(Duration::MAX))
    }

    /// Returns true if a segment sent after this one was delivered: step 5 concerns only such segments.
    #[inline]
    pub(crate) fn is_overtaken(&self, sent_at: Instant, end: SeqNum) -> bool {
        sent_after(self.xmit_ts, self.end_seq, sent_at, end)
    }

    /// Returns the time at which a segment in flight counts as lost (step 5), or `None` if nothing sent after it was
    /// delivered.
    pub(crate) fn deadline(&self, sent_at: Instant, end: SeqNum, window: Duration) -> Option<Instant> {
        self.is_overtaken(sent_at, end).then(|| sent_at + duration(self.rtt).saturating_add(window))
    }

    /// Returns the time at which a segment counts as lost at a retransmission timeout, without regard to deliveries
    /// (§6.3).
    pub(crate) fn overdue(&self, sent_at: Instant, window: Duration) -> Instant {
        sent_at + duration(self.rtt).saturating_add(window)
    }
}

/// Returns true if the first segment was sent after the second (RACK_sent_after).
#[inline]
fn sent_after(t1: Instant, seq1: SeqNum, t2: Instant, seq2: SeqNum) -> bool {
    t1 > t2 || (t1 == t2 && seq1.after(seq2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn delivered(sent_ms: u64, end: u32) -> Delivered {
        Delivered {
            sent_at: ms(sent_ms),
            end_seq: SeqNum::new(end),
            retransmitted: false,
            echo_is_older: false,
        }
    }

    const MIN: Option<Duration> = Some(Duration::from_millis(40));
    const MIN_NS: Option<u64> = Some(40_000_000);
    const SRTT: Option<Duration> = Some(Duration::from_millis(50));

    #[test]
    fn a_segment_is_lost_when_a_later_one_arrived_and_the_window_passed() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.on_delivered(ms(150), &delivered(100, 3000), MIN_NS);
        let window = rack.reordering_window(false, 1, MIN, SRTT);
        assert_eq!(window, Duration::from_millis(10));
        assert_eq!(rack.deadline(ms(90), SeqNum::new(1000), window), Some(ms(90 + 50 + 10)));
        assert_eq!(rack.deadline(ms(100), SeqNum::new(2000), window), Some(ms(160)), "same time, earlier");
        assert_eq!(rack.deadline(ms(101), SeqNum::new(4000), window), None, "sent later");
    }

    #[test]
    fn three_sacked_segments_or_recovery_close_the_window() {
        let rack = Rack::new(SeqNum::new(0));
        assert_eq!(rack.reordering_window(false, 3, MIN, SRTT), Duration::ZERO);
        assert_eq!(rack.reordering_window(true, 0, MIN, SRTT), Duration::ZERO);
        assert_ne!(rack.reordering_window(false, 2, MIN, SRTT), Duration::ZERO);
    }

    #[test]
    fn reordering_is_seen_in_originals_only_and_keeps_the_window_open() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.on_delivered(ms(50), &delivered(2, 3000), MIN_NS);
        rack.on_delivered(ms(51), &Delivered { retransmitted: true, ..delivered(1, 2000) }, MIN_NS);
        assert!(!rack.reordering_seen());
        rack.on_delivered(ms(52), &delivered(0, 1000), MIN_NS);
        assert!(rack.reordering_seen());
        assert_ne!(rack.reordering_window(true, 5, MIN, SRTT), Duration::ZERO);
    }

    #[test]
    fn the_segment_sent_last_sets_the_rack_time() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.begin_ack();
        rack.on_delivered(ms(100), &delivered(60, 3000), MIN_NS);
        rack.on_delivered(ms(100), &delivered(10, 1000), MIN_NS);
        assert_eq!((rack.xmit_ts, duration(rack.rtt)), (ms(60), Duration::from_millis(40)));
        rack.begin_ack();
        rack.on_delivered(ms(110), &delivered(50, 2000), MIN_NS);
        assert_eq!((rack.xmit_ts, duration(rack.rtt)), (ms(60), Duration::from_millis(60)));
    }

    #[test]
    fn a_spurious_retransmission_widens_the_window() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.on_spurious(SeqNum::new(10), SeqNum::new(100));
        assert!(rack.reordering_seen());
        assert_eq!(rack.reordering_window(true, 9, MIN, SRTT), Duration::from_millis(20));
    }

    #[test]
    fn a_spurious_retransmission_sets_no_rack_time() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.on_delivered(ms(100), &delivered(50, 1000), MIN_NS);
        let quick = Delivered { retransmitted: true, ..delivered(95, 2000) };
        rack.on_delivered(ms(100), &quick, MIN_NS);
        let old_echo = Delivered { retransmitted: true, echo_is_older: true, ..delivered(55, 2000) };
        rack.on_delivered(ms(100), &old_echo, MIN_NS);
        assert_eq!((rack.xmit_ts, duration(rack.rtt)), (ms(50), Duration::from_millis(50)));
    }

    #[test]
    fn dsacks_widen_the_window_for_sixteen_recoveries() {
        let mut rack = Rack::new(SeqNum::new(0));
        rack.on_ack(SeqNum::new(10), SeqNum::new(100), true);
        rack.on_ack(SeqNum::new(20), SeqNum::new(100), true);
        assert_eq!(rack.reordering_window(false, 0, MIN, SRTT), Duration::from_millis(20), "once a round");
        rack.on_ack(SeqNum::new(100), SeqNum::new(200), true);
        assert_eq!(rack.reordering_window(false, 0, MIN, SRTT), Duration::from_millis(30));
        for _ in 0..100 {
            rack.on_ack(SeqNum::new(100), SeqNum::new(200), false);
        }
        for _ in 0..15 {
            rack.on_recovery_end();
        }
        assert_eq!(rack.reordering_window(false, 0, MIN, SRTT), Duration::from_millis(30));
        rack.on_recovery_end();
        assert_eq!(rack.reordering_window(false, 0, MIN, SRTT), Duration::from_millis(10));
    }
}
