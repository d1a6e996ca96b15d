//! Congestion control: the algorithms that set a connection's congestion window and pacing rate.
//!
//! [`recovery`](crate::recovery) detects losses and paces retransmissions; an algorithm only decides how the window
//! grows and how far it falls. All arithmetic is on integers, in bytes, so that results are the same on every machine.
//!
//! | method | event | used by |
//! |---|---|---|
//! | `start` | the connection is established | BBR |
//! | `on_ack` | new data acknowledged outside of recovery, cwnd-limited | NewReno, CUBIC, DCTCP |
//! | `on_not_cwnd_limited` | the same, not cwnd-limited | CUBIC |
//! | `on_path_sample` | data was delivered or lost, in any phase | BBR |
//! | `on_segment_lost` | a segment was marked lost | BBR |
//! | `on_loss` | a loss episode begins | all |
//! | `on_timeout` | the retransmission timer expired | all |
//! | `on_recovery_exit` | the episode is over | BBR |
//! | `on_idle` | data is queued after an idle retransmission timeout | all but BBR |
//! | `on_restart` | a segment leaves after an idle period, with nothing else in flight | BBR |

mod bbr;
mod cubic;
mod dctcp;
mod hystart;
mod new_reno;
mod pacing;

use core::time::Duration;

use crate::config::{Congestion, TcpConfig};
use crate::recovery::RateSample;
use crate::time::Instant;
use bbr::Bbr;
pub use bbr::BbrInfo;
pub(crate) use bbr::LostSegment;
use cubic::Cubic;
use dctcp::Dctcp;
pub(crate) use dctcp::MarkSample;
use new_reno::NewReno;
pub(crate) use pacing::Pacer;

/// The congestion window of a connection; all values in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CongestionWindow {
    /// Bytes that may be in flight.
    pub(crate) cwnd: u32,
    /// The slow start threshold.
    pub(crate) ssthresh: u32,
    /// Payload of a full segment, RFC 5681's SMSS.
    pub(crate) mss: u32,
}

/// Largest window: TCP's own limit (RFC 7323 §2.3), bytes.
pub(crate) const CWND_MAX: u32 = 1 << 30;

impl CongestionWindow {
    /// Returns the initial window (RFC 6928 §2: "min (10*MSS, max (2*MSS, 14600))", with the configured numbers in
    /// place of 10 and 14600).
    pub(crate) fn initial(mss: u32, tcp: &TcpConfig) -> Self {
        let mss = mss.max(1);
        let bytes = mss.saturating_mul(2).max(tcp.initial_window_bytes);
        let cwnd = mss.saturating_mul(u32::from(tcp.initial_window_segments).max(1)).min(bytes);
        Self { cwnd, ssthresh: CWND_MAX, mss }
    }

    /// Returns the pacing rate for an algorithm without a rate of its own, bytes per second; 0 before a round-trip time
    /// is known. It is fast enough that the window stays the limit: two windows per round trip in slow start, six
    /// fifths later, as in Linux.
    pub(crate) fn pacing_rate(&self, srtt: Option<Duration>) -> u64 {
        let nanos = srtt.map_or(0, |srtt| u64::try_from(srtt.as_nanos()).unwrap_or(u64::MAX));
        let percent = if self.cwnd < self.ssthresh / 2 { 200 } else { 120 };
        let bytes = u64::from(self.cwnd).saturating_mul(percent);
        bytes.saturating_mul(10_000_000).checked_div(nanos).unwrap_or(0)
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows the window in slow start by one acknowledgment (RFC 5681 equation 2); returns the bytes acknowledged
    /// beyond the growth up to `ssthresh`.
    fn slow_start(&mut self, sample: &AckSample) -> u32 {
        let limit = self.mss.saturating_mul(sample.slow_start_limit());
        let step = sample.acked.min(limit).min(self.ssthresh.saturating_sub(self.cwnd));
        self.cwnd = self.cwnd.saturating_add(step).min(CWND_MAX);
        if self.in_slow_start() { 0 } else { sample.acked.saturating_sub(step) }
    }
}

/// Measurements of the path by one acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSample {
    pub(crate) now: Instant,
    /// Round-trip time of a segment that was sent only once.
    pub(crate) rtt: Option<Duration>,
    pub(crate) rate: Option<RateSample>,
    /// Bytes newly delivered, cumulatively or selectively.
    pub(crate) delivered: u32,
    /// Bytes delivered so far, modulo 2^32.
    pub(crate) delivered_total: u32,
    /// Bytes marked lost so far, modulo 2^32.
    pub(crate) lost: u32,
    /// Bytes in flight after the acknowledgment.
    pub(crate) in_flight: u32,
    /// Bytes in flight before the acknowledgment.
    pub(crate) prior_in_flight: u32,
    /// The initial window, bytes.
    pub(crate) initial_cwnd: u32,
    /// True if the peer sends selective acknowledgments.
    pub(crate) sack: bool,
}

/// The facts of one acknowledgment that grow a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckSample {
    pub(crate) now: Instant,
    /// Bytes that it cumulatively acknowledged.
    pub(crate) acked: u32,
    /// Smoothed round-trip time, nanoseconds.
    pub(crate) srtt_ns: Option<u64>,
    /// Round-trip time that it measured, nanoseconds.
    pub(crate) rtt_ns: Option<u64>,
    /// True if reordering was seen on this path, which delays acknowledgments.
    pub(crate) reordering: bool,
    /// True if it ends a round: all data sent before the round began is acknowledged.
    pub(crate) round_ends: bool,
    /// True in the slow start after a retransmission timeout.
    pub(crate) after_timeout: bool,
}

impl AckSample {
    /// Returns L, segments: the limit of growth per acknowledgment in slow start. RFC 3465 §2.3: "MAY use L=2*SMSS
    /// bytes and MUST NOT use L > 2*SMSS bytes"; after a retransmission timeout "a TCP MUST use L=1*SMSS".
    fn slow_start_limit(&self) -> u32 {
        if self.after_timeout { 1 } else { 2 }
    }
}

/// BBR.LossThresh of the draft, percent (draft-ietf-ccwg-bbr-06 §2.8).
pub(crate) const BBR_LOSS_PERCENT: u8 = 2;

/// The algorithm of one connection. The layout puts the discriminant first, directly before the first fields of the
/// algorithm's own state.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Controller {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
    Bbr(Bbr),
}

impl Controller {
    pub(crate) fn new(algorithm: Congestion) -> Self {
        match algorithm {
            Congestion::NewReno => Self::NewReno(NewReno::default()),
            Congestion::Cubic => Self::Cubic(Cubic::default()),
            Congestion::Dctcp => Self::Dctcp(Dctcp::new()),
            Congestion::Bbr => Self::Bbr(Bbr::new(0, BBR_LOSS_PERCENT)),
        }
    }

    /// Returns the same algorithm with `seed` for its random numbers, and the loss rate that BBR tolerates, percent.
    pub(crate) fn with(self, seed: u32, bbr_loss_percent: u8) -> Self {
        match self {
            Self::Bbr(_) => Self::Bbr(Bbr::new(seed, bbr_loss_percent)),
            other => other,
        }
    }

    /// Returns true if [`Self::on_path_sample`] sets the window, also in recovery.
    #[inline]
    pub(crate) const fn models_path(&self) -> bool {
        matches!(self, Self::Bbr(_))
    }

    /// Notes that the connection is established.
    pub(crate) fn start(&mut self, window: &CongestionWindow, srtt: Option<Duration>) {
        if let Self::Bbr(cc) = self {
            cc.init_pacing_rate(window, srtt);
        }
    }

    /// Processes an acknowledgment that delivered data, or a loss.
    pub(crate) fn on_path_sample(&mut self, window: &mut CongestionWindow, sample: &PathSample) {
        if let Self::Bbr(cc) = self {
            cc.on_ack(window, sample);
        }
    }

    /// Notes that a segment was marked lost.
    #[cold]
    pub(crate) fn on_segment_lost(&mut self, window: &CongestionWindow, lost: &LostSegment) {
        if let Self::Bbr(cc) = self {
            cc.on_segment_lost(window, lost);
        }
    }

    /// Notes that a recovery is complete.
    pub(crate) fn on_recovery_exit(&mut self, window: &mut CongestionWindow) {
        if let Self::Bbr(cc) = self {
            cc.on_recovery_exit(window);
        }
    }

    /// Notes that a segment leaves after an application-limited pause, with nothing else in flight. `delivered` is the
    /// sum of the bytes delivered so far, modulo 2^32.
    pub(crate) fn on_restart(&mut self, window: &mut CongestionWindow, now: Instant, delivered: u32) {
        if let Self::Bbr(cc) = self {
            cc.on_restart(window, now, delivered);
        }
    }

    /// Returns true while the algorithm keeps less in flight than the path takes, to measure the round-trip time.
    pub(crate) fn is_probing_rtt(&self) -> bool {
        matches!(self, Self::Bbr(cc) if cc.is_probing_rtt())
    }

    /// Returns the algorithm's own pacing rate, bytes per second.
    pub(crate) fn pacing_rate(&self) -> Option<u64> {
        if let Self::Bbr(cc) = self { Some(cc.pacing_rate()) } else { None }
    }

    /// Returns BBR's view of the path, or `None` if another algorithm is in use.
    pub(crate) fn bbr_info(&self) -> Option<BbrInfo> {
        if let Self::Bbr(cc) = self { Some(cc.info()) } else { None }
    }

    /// Notes an acknowledgment of new data while the window was not the limit, so that it must not grow (RFC 7661
    /// §4.3).
    #[inline]
    pub(crate) fn on_not_cwnd_limited(&mut self) {
        if let Self::Cubic(cc) = self {
            cc.on_not_cwnd_limited();
        }
    }

    /// Grows the window: new data was acknowledged outside of recovery while the window was the limit.
    pub(crate) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &AckSample) {
        match self {
            Self::NewReno(cc) => cc.on_ack(window, sample),
            Self::Cubic(cc) => cc.on_ack(window, sample),
            Self::Dctcp(cc) => cc.on_ack(window, sample),
            // BBR grows by path samples instead.
            Self::Bbr(_) => {}
        }
    }

    /// Sets the new `ssthresh` after a loss. Called once per loss episode; `in_flight` is RFC 5681's FlightSize, bytes.
    pub(crate) fn on_loss(&mut self, window: &mut CongestionWindow, in_flight: u32) {
        let ssthresh = match self {
            Self::NewReno(cc) => cc.ssthresh_after_loss(window, in_flight),
            Self::Cubic(cc) => cc.ssthresh_after_loss(window),
            Self::Dctcp(cc) => cc.ssthresh_after_loss(window, in_flight),
            Self::Bbr(cc) => cc.on_loss(window),
        };
        // RFC 5681 equation 4: never below two segments.
        window.ssthresh = ssthresh.max(window.mss.saturating_mul(2));
    }

    /// Processes an acknowledgment on a connection that uses ECN, with or without an echoed mark.
    #[inline]
    pub(crate) fn on_marks(&mut self, sample: &MarkSample) {
        if let Self::Dctcp(cc) = self {
            cc.on_marks(sample);
        }
    }

    /// Reduces the window after an echoed congestion mark. Called once per window of data; `in_flight` is RFC 5681's
    /// FlightSize, bytes. RFC 3168 §6.1.2: "treated just as a congestion loss in non-ECN-Capable TCP".
    pub(crate) fn on_ecn_echo(&mut self, window: &mut CongestionWindow, in_flight: u32) {
        match self {
            Self::Dctcp(cc) => {
                window.ssthresh = cc.ssthresh_after_mark(window).max(window.mss.saturating_mul(2));
            }
            Self::NewReno(_) | Self::Cubic(_) => self.on_loss(window, in_flight),
            Self::Bbr(cc) => return cc.on_mark(),
        }
        window.cwnd = window.cwnd.min(window.ssthresh);
    }

    /// Handles a retransmission timeout (RFC 5681 §3.1: cwnd "MUST be set to no more than the loss window, LW, which
    /// equals 1 full-sized segment").
    pub(crate) fn on_timeout(&mut self, window: &mut CongestionWindow) {
        window.cwnd = window.mss;
        if let Self::Cubic(cc) = self {
            cc.on_timeout();
        }
    }

    /// Undoes the last response, which was to no loss; the caller restores the window.
    pub(crate) fn undo(&mut self, window: &mut CongestionWindow) {
        match self {
            Self::Cubic(cc) => cc.undo(),
            Self::Bbr(cc) => cc.undo(window),
            Self::NewReno(_) | Self::Dctcp(_) => {}
        }
    }

    /// Restarts after an idle time of more than a retransmission timeout (RFC 5681 §4.1).
    pub(crate) fn on_idle(&mut self, window: &mut CongestionWindow, initial: u32) {
        if self.models_path() {
            // The model survives the idle time, and pacing prevents a burst.
            return;
        }
        window.cwnd = window.cwnd.min(initial);
        if let Self::Cubic(cc) = self {
            cc.restart();
        }
    }

    /// Returns the name for operators.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::NewReno(_) => "newreno",
            Self::Cubic(_) => "cubic",
            Self::Dctcp(_) => "dctcp",
            Self::Bbr(_) => "bbr",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(acked: u32) -> AckSample {
        AckSample {
            now: Instant::ZERO,
            acked,
            srtt_ns: None,
            rtt_ns: None,
            reordering: false,
            round_ends: false,
            after_timeout: false,
        }
    }

    #[test]
    fn initial_windows_of_rfc_6928() {
        let tcp = TcpConfig::default();
        assert_eq!(CongestionWindow::initial(1460, &tcp).cwnd, 14_600);
        assert_eq!(CongestionWindow::initial(536, &tcp).cwnd, 5_360);
        assert_eq!(CongestionWindow::initial(8960, &tcp).cwnd, 17_920);
        let jumbo = TcpConfig { initial_window_bytes: 89_600, ..tcp };
        assert_eq!(CongestionWindow::initial(1460, &jumbo).cwnd, 14_600);
        assert_eq!(CongestionWindow::initial(8960, &jumbo).cwnd, 89_600);
        assert_eq!(CongestionWindow::initial(60_000, &jumbo).cwnd, 120_000);
    }

    #[test]
    fn slow_start_doubles_per_round_and_stops_at_ssthresh() {
        let mut window = CongestionWindow::initial(1000, &TcpConfig::default());
        window.ssthresh = 15_000;
        for _ in 0..5 {
            assert_eq!(window.slow_start(&acked(1000)), 0);
        }
        assert_eq!(window.cwnd, 15_000 - 1000 + 1000);
        assert_eq!(window.slow_start(&acked(1000)), 1000);
        assert_eq!(window.cwnd, 15_000);
    }

    #[test]
    fn one_acknowledgment_adds_two_segments_and_after_a_timeout_one() {
        for (after_timeout, grown) in [(false, 12_000), (true, 11_000)] {
            let mut window = CongestionWindow { cwnd: 10_000, ssthresh: 50_000, mss: 1000 };
            assert_eq!(window.slow_start(&AckSample { after_timeout, ..acked(5000) }), 0);
            assert_eq!(window.cwnd, grown);
        }
    }

    #[test]
    fn a_window_is_paced_a_little_faster_than_it_is_used_up() {
        let srtt = Some(Duration::from_millis(100));
        let mut window = CongestionWindow { cwnd: 10_000, ssthresh: CWND_MAX, mss: 1000 };
        assert_eq!(window.pacing_rate(srtt), 200_000);
        window.ssthresh = 10_000;
        assert_eq!(window.pacing_rate(srtt), 120_000);
        assert_eq!(window.pacing_rate(None), 0, "not paced");
        window.cwnd = CWND_MAX;
        assert!(window.pacing_rate(Some(Duration::from_nanos(1))) > 0);
    }

    #[test]
    fn an_idle_period_keeps_the_bbr_model() {
        let mut cc = Controller::new(Congestion::Bbr).with(7, BBR_LOSS_PERCENT);
        let mut window = CongestionWindow { cwnd: 500_000, ssthresh: CWND_MAX, mss: 1000 };
        cc.on_idle(&mut window, 10_000);
        assert_eq!(window.cwnd, 500_000);
    }

    #[test]
    fn only_bbr_paces_by_itself() {
        let window = CongestionWindow::initial(1000, &TcpConfig::default());
        for algorithm in [Congestion::NewReno, Congestion::Cubic] {
            let mut cc = Controller::new(algorithm);
            cc.start(&window, None);
            assert_eq!((cc.pacing_rate(), cc.bbr_info(), cc.models_path()), (None, None, false));
        }
        let mut cc = Controller::new(Congestion::Bbr);
        cc.start(&window, None);
        assert!(cc.pacing_rate().is_some_and(|rate| rate > 0));
        assert_eq!(cc.bbr_info().map(|bbr| bbr.state), Some("startup"));
    }

    #[test]
    fn an_idle_or_limited_sender_does_not_grow() {
        for algorithm in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
            let mut cc = Controller::new(algorithm);
            let mut window = CongestionWindow::initial(1000, &TcpConfig::default());
            cc.on_not_cwnd_limited();
            assert_eq!(window.cwnd, 10_000);
            window.cwnd = 500_000;
            cc.on_idle(&mut window, 10_000);
            assert_eq!(window.cwnd, 10_000);
        }
    }

    #[test]
    fn loss_never_takes_ssthresh_below_two_segments() {
        for algorithm in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp, Congestion::Bbr] {
            let mut cc = Controller::new(algorithm);
            let mut window = CongestionWindow { cwnd: 1000, ssthresh: CWND_MAX, mss: 1000 };
            cc.on_loss(&mut window, 1000);
            assert_eq!(window.ssthresh, 2000);
            cc.on_timeout(&mut window);
            assert_eq!(window.cwnd, 1000);
        }
    }

    #[test]
    fn an_echoed_mark_counts_as_a_loss_and_never_raises_the_window() {
        for (algorithm, after) in [(Congestion::NewReno, 50_000), (Congestion::Cubic, 70_000)] {
            let mut cc = Controller::new(algorithm);
            let mut window = CongestionWindow { cwnd: 100_000, ssthresh: CWND_MAX, mss: 1000 };
            cc.on_ecn_echo(&mut window, 100_000);
            assert_eq!((window.cwnd, window.ssthresh), (after, after));
            window.cwnd = 1000;
            cc.on_ecn_echo(&mut window, 1000);
            assert_eq!((window.cwnd, window.ssthresh), (1000, 2000));
        }
    }
}
