//! NewReno, the standard congestion control (RFC 5681).

use super::hystart::HyStart;
use super::{AckSample, CWND_MAX, CongestionWindow};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewReno {
    /// Bytes acknowledged towards the next increase (RFC 3465 §2.1: bytes_acked).
    acked: u32,
    hystart: HyStart,
}

impl NewReno {
    pub(super) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &AckSample) {
        let mut acked = sample.acked;
        if window.in_slow_start() {
            acked = self.hystart.on_ack(window, sample);
        }
        // RFC 5681 §3.1: in congestion avoidance, cwnd grows by one SMSS when cwnd bytes were
        // acknowledged.
        self.acked = self.acked.saturating_add(acked);
        if self.acked >= window.cwnd {
            self.acked = self.acked.saturating_sub(window.cwnd).min(window.cwnd);
            window.cwnd = window.cwnd.saturating_add(window.mss).min(CWND_MAX);
        }
    }

    /// Returns half of the flight: RFC 5681 equation 4: "ssthresh = max (FlightSize / 2, 2*SMSS)".
    pub(super) fn ssthresh_after_loss(&mut self, _window: &CongestionWindow, in_flight: u32) -> u32 {
        self.acked = 0;
        in_flight / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    #[test]
    fn one_segment_per_window_in_congestion_avoidance() {
        let mut cc = NewReno::default();
        let mut window = CongestionWindow { cwnd: 10_000, ssthresh: 10_000, mss: 1000 };
        let sample = AckSample {
            now: Instant::ZERO,
            acked: 1000,
            srtt_ns: None,
            rtt_ns: None,
            reordering: false,
            round_ends: false,
            after_timeout: false,
        };
        for _ in 0..9 {
            cc.on_ack(&mut window, &sample);
        }
        assert_eq!(window.cwnd, 10_000);
        cc.on_ack(&mut window, &sample);
        assert_eq!(window.cwnd, 11_000);
        assert_eq!(cc.ssthresh_after_loss(&window, 11_000), 5_500);
    }
}
