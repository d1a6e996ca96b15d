//! Undo of congestion responses to losses that did not happen.
//!
//! A segment that is merely reordered looks lost. Its retransmission then arrives beside the original, and the receiver
//! shows it: it echoes a timestamp older than the retransmission's (RFC 3522, Eifel), or reports the duplicate (RFC
//! 2883). When all retransmissions of an episode proved unnecessary, nothing was lost, and the congestion response is
//! undone (RFC 4015).

use crate::seq::SeqNum;
use crate::wire::SackRange;

/// The last congestion response and the evidence about its cause; 28 bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// Window and slow start threshold before the response, bytes; a window of zero means that there is nothing to
    /// undo.
    cwnd: u32,
    ssthresh: u32,
    /// Range of sequence numbers that the episode retransmitted.
    start: SeqNum,
    end: SeqNum,
    /// Sequence number up to whose acknowledgment duplicates may still be reported.
    until: SeqNum,
    /// RetransmitTS: timestamp of the first retransmission.
    retransmit_ts: u32,
    /// Retransmissions of the episode, and those of them reported as duplicates.
    retransmitted: u16,
    duplicates: u16,
}

impl Undo {
    pub(crate) const NONE: Self = Self {
        cwnd: 0,
        ssthresh: 0,
        start: SeqNum::new(0),
        end: SeqNum::new(0),
        until: SeqNum::new(0),
        retransmit_ts: 0,
        retransmitted: 0,
        duplicates: 0,
    };

    /// Begins an episode with the values before the reduction.
    pub(crate) const fn begin(una: SeqNum, cwnd: u32, ssthresh: u32) -> Self {
        Self { cwnd, ssthresh, start: una, end: una, until: una, ..Self::NONE }
    }

    /// Notes the end of the recovery, with SND.NXT at `nxt`.
    pub(crate) fn on_recovery_end(&mut self, nxt: SeqNum) {
        self.until = nxt;
    }

    /// Returns true if an episode that begins now belongs to this one, whose last retransmissions may still be
    /// reported.
    pub(crate) fn includes(&self, una: SeqNum) -> bool {
        self.is_open() && una.before(self.until)
    }

    /// Returns true if a response can still be undone.
    pub(crate) const fn is_open(&self) -> bool {
        self.cwnd > 0
    }

    /// Notes a retransmission that ends at `end`, with timestamp `ts`.
    pub(crate) fn on_retransmission(&mut self, end: SeqNum, ts: u32) {
        if self.retransmitted == 0 {
            self.retransmit_ts = ts;
        }
        self.retransmitted = self.retransmitted.saturating_add(1);
        self.end = self.end.max(end);
    }

    /// Notes a reported duplicate, of segments of at most `mss` bytes.
    pub(crate) fn on_duplicate(&mut self, range: SackRange, mss: u16) {
        // RFC 3708 §3 (A.4): a duplicate of a segment that was not retransmitted was made by the network.
        if range.start.before(self.start) || range.end.after(self.end) {
            return;
        }
        let segments = range.end.distance_from(range.start).div_ceil(u32::from(mss.max(1)));
        let segments = u16::try_from(segments).unwrap_or(u16::MAX);
        self.duplicates = self.duplicates.saturating_add(segments);
    }

    /// Returns true if every retransmission was a duplicate. RFC 3708 §3 (B.1): "all retransmissions in the previous
    /// window of data were spurious and no loss occurred".
    pub(crate) const fn all_were_duplicates(&self) -> bool {
        self.retransmitted > 0 && self.duplicates >= self.retransmitted
    }

    /// Returns true if the echoed timestamp is older than RetransmitTS (RFC 3522 §3.2).
    pub(crate) const fn echo_is_of_original(&self, echo: u32) -> bool {
        self.retransmitted > 0 && echo.wrapping_sub(self.retransmit_ts).cast_signed() < 0
    }

    /// Returns the window and slow start threshold from before, once.
    pub(crate) fn take(&mut self) -> Option<(u32, u32)> {
        let before = self.is_open().then_some((self.cwnd, self.ssthresh));
        *self = Self::NONE;
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(n)
    }

    fn range(start: u32, end: u32) -> SackRange {
        SackRange { start: seq(start), end: seq(end) }
    }

    #[test]
    fn every_retransmission_must_be_reported() {
        let mut undo = Undo::begin(seq(1000), 20_000, 50_000);
        assert!(!undo.all_were_duplicates(), "nothing was sent again");
        undo.on_retransmission(seq(2000), 5);
        undo.on_retransmission(seq(4000), 6);
        undo.on_duplicate(range(1000, 2000), 1000);
        assert!(!undo.all_were_duplicates());
        undo.on_duplicate(range(3000, 4000), 1000);
        assert!(undo.all_were_duplicates());
        assert_eq!((undo.take(), undo.take()), (Some((20_000, 50_000)), None));
        assert!(!undo.is_open());
    }

    #[test]
    fn a_report_may_cover_several_segments() {
        let mut undo = Undo::begin(seq(0), 1, 1);
        for end in [1000, 2000, 2500] {
            undo.on_retransmission(seq(end), 5);
        }
        undo.on_duplicate(range(0, 2500), 1000);
        assert!(undo.all_were_duplicates());
    }

    #[test]
    fn dsacks_of_originals_do_not_count() {
        let mut undo = Undo::begin(seq(1000), 1, 1);
        undo.on_retransmission(seq(2000), 5);
        undo.on_duplicate(range(0, 1000), 1000);
        undo.on_duplicate(range(2000, 3000), 1000);
        assert!(!undo.all_were_duplicates());
    }

    #[test]
    fn echoes_are_compared_with_the_first_retransmission() {
        let mut undo = Undo::begin(seq(0), 1, 1);
        assert!(!undo.echo_is_of_original(u32::MAX - 5), "nothing was sent again");
        undo.on_retransmission(seq(1000), u32::MAX - 1);
        undo.on_retransmission(seq(2000), 7);
        assert!(undo.echo_is_of_original(u32::MAX - 2));
        assert!(!undo.echo_is_of_original(u32::MAX - 1), "the same tick may be either");
        assert!(!undo.echo_is_of_original(3));
    }
}
