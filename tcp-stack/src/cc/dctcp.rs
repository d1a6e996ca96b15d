//! DCTCP (RFC 8257): reduces the window in proportion to the share of marked bytes, not by half.

use super::new_reno::NewReno;
use super::{AckSample, CongestionWindow};
use crate::seq::SeqNum;

/// Scaling factor of alpha (§4.2: SCF): the value that stands for 1.
const SCALE: u32 = 1 << 16;
/// Estimation gain g = 1/16 as a shift (§4.2: SHF).
const GAIN_SHIFT: u32 = 4;

/// The congestion marks that one acknowledgment reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkSample {
    /// Bytes that it cumulatively acknowledged.
    pub(crate) acked: u32,
    /// True if it echoed a mark (ECE).
    pub(crate) marked: bool,
    /// SND.UNA after the acknowledgment.
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Dctcp {
    /// DCTCP.Alpha: estimated share of marked bytes, in units of 1/[`SCALE`].
    alpha: u32,
    /// DCTCP.WindowEnd; `None` before the first acknowledgment, which ends a window (§3.3: "initialized to SND.UNA").
    window_end: Option<SeqNum>,
    /// DCTCP.BytesAcked and DCTCP.BytesMarked of the current observation window, bytes.
    acked: u32,
    marked: u32,
    /// §3.4 and §3.5: growth and the response to losses are those of conventional TCP.
    reno: NewReno,
}

impl Dctcp {
    pub(super) fn new() -> Self {
        // §3.3: DCTCP.Alpha "is initialized to 1".
        Self { alpha: SCALE, window_end: None, acked: 0, marked: 0, reno: NewReno::default() }
    }

    pub(super) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &AckSample) {
        self.reno.on_ack(window, sample);
    }

    pub(super) fn ssthresh_after_loss(&mut self, window: &CongestionWindow, in_flight: u32) -> u32 {
        self.reno.ssthresh_after_loss(window, in_flight)
    }

    /// Processes an acknowledgment: §3.3, steps 1 to 8. By step 4 a window ends after its last byte, by the text before
    /// it with that byte ("when all bytes in flight at the beginning of the window have been acknowledged"); the latter
    /// holds here, since a window may get a single acknowledgment.
    pub(super) fn on_marks(&mut self, sample: &MarkSample) {
        self.acked = self.acked.saturating_add(sample.acked);
        if sample.marked {
            self.marked = self.marked.saturating_add(sample.acked);
        }
        if self.window_end.is_some_and(|end| sample.una.before(end)) {
            return;
        }
        self.update();
        self.window_end = Some(sample.nxt);
        self.acked = 0;
        self.marked = 0;
    }

    /// Updates alpha at the end of a window (§4.2, steps 1 and 2).
    fn update(&mut self) {
        let scaled = u64::from(SCALE).saturating_mul(u64::from(self.marked));
        let level = scaled.checked_div(u64::from(self.acked)).unwrap_or(0);
        let level = u32::try_from(level).unwrap_or(SCALE);
        if self.alpha >> GAIN_SHIFT == 0 {
            self.alpha = 0;
        }
        let kept = self.alpha.saturating_sub(self.alpha >> GAIN_SHIFT);
        self.alpha = kept.saturating_add(level >> GAIN_SHIFT).min(SCALE);
    }

    /// Returns the reduced window: §3.3, step 9: "cwnd = cwnd * (1 - DCTCP.Alpha / 2)".
    pub(super) fn ssthresh_after_mark(&self, window: &CongestionWindow) -> u32 {
        const WHOLE: u64 = 2 * SCALE as u64;
        let cut = u64::from(window.cwnd).saturating_mul(u64::from(self.alpha)) / WHOLE;
        window.cwnd.saturating_sub(u32::try_from(cut).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{CWND_MAX, Controller};
    use crate::config::Congestion;

    /// Runs one observation window of ten segments of 1000 bytes, of which the first `marked` are marked.
    fn window_of_ten(cc: &mut Dctcp, start: u32, marked: u32) -> u32 {
        let end = start + 10_000;
        for segment in 0..10 {
            let una = start + (segment + 1) * 1000;
            cc.on_marks(&MarkSample {
                acked: 1000,
                marked: segment < marked,
                una: SeqNum::new(una),
                nxt: SeqNum::new(if una == end { end + 10_000 } else { end }),
            });
        }
        end
    }

    fn started() -> Dctcp {
        let mut cc = Dctcp::new();
        cc.on_marks(&MarkSample { acked: 0, marked: false, una: SeqNum::new(0), nxt: SeqNum::new(10_000) });
        // 65536 - 4096 + 0.
        assert_eq!(cc.alpha, 61_440);
        cc.alpha = SCALE;
        cc
    }

    /// Values computed by hand from §4.2 with SCF = 65536 and SHF = 4.
    #[test]
    fn alpha_follows_the_share_of_marked_bytes() {
        let mut cc = started();
        // M = 1: 65536 - 4096 + 4096.
        let at = window_of_ten(&mut cc, 0, 10);
        assert_eq!(cc.alpha, 65_536);
        // M = 0: 65536 - 4096; 61440 - 3840; 57600 - 3600.
        let at = window_of_ten(&mut cc, at, 0);
        assert_eq!(cc.alpha, 61_440);
        let at = window_of_ten(&mut cc, at, 0);
        assert_eq!(cc.alpha, 57_600);
        let at = window_of_ten(&mut cc, at, 0);
        assert_eq!(cc.alpha, 54_000);
        // M = 3/10, scaled 19660: 54000 - 3375 + 1228.
        let at = window_of_ten(&mut cc, at, 3);
        assert_eq!(cc.alpha, 51_853);
        // M = 1/10, scaled 6553: 51853 - 3240 + 409.
        window_of_ten(&mut cc, at, 1);
        assert_eq!(cc.alpha, 49_022);
    }

    /// §4.2: "SHOULD ensure that DCTCP.Alpha is able to reach 0", and "MUST be clamped".
    #[test]
    fn alpha_reaches_zero_and_never_passes_one() {
        let mut cc = started();
        let mut at = 0;
        for _ in 0..200 {
            at = window_of_ten(&mut cc, at, 0);
        }
        assert_eq!(cc.alpha, 0);
        for _ in 0..200 {
            at = window_of_ten(&mut cc, at, 10);
            assert!(cc.alpha <= SCALE);
        }
        // The fixed point of rounding is within 1/4096 of one.
        assert!(cc.alpha > SCALE - 16, "{}", cc.alpha);
    }

    #[test]
    fn the_window_falls_by_half_of_alpha() {
        let mut window = CongestionWindow { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
        let mut cc = Dctcp::new();
        assert_eq!(cc.ssthresh_after_mark(&window), 50_000);
        cc.alpha = SCALE / 8;
        assert_eq!(cc.ssthresh_after_mark(&window), 93_750);
        cc.alpha = 0;
        assert_eq!(cc.ssthresh_after_mark(&window), 100_000);
        // §3.5: a loss is a loss.
        assert_eq!(cc.ssthresh_after_loss(&window, 100_000), 50_000);
        let mut cc = Controller::new(Congestion::Dctcp);
        cc.on_ecn_echo(&mut window, 100_000);
        assert_eq!((window.cwnd, window.ssthresh), (50_000, 50_000));
        window.cwnd = 3000;
        cc.on_ecn_echo(&mut window, 3000);
        assert_eq!((window.cwnd, window.ssthresh), (2000, 2000));
    }
}
