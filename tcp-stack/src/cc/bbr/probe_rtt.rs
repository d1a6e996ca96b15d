//! ProbeRTT: half a BDP in flight for 200 ms, so that queues drain and the round-trip time shows. And the restart from
//! idle, which drains queues, too.

use super::{
    Ack, AckPhase, Bbr, CongestionWindow, FULL_BW_REACHED, IDLE_RESTART, INFINITY, MIN_PIPE_SEGMENTS,
    PROBE_RTT_DONE_SET, PROBE_RTT_ROUND_DONE, State, millis,
};
use crate::time::{Instant, Stamp};

/// BBR.ProbeRTTCwndGain: the share of a BDP that stays in flight, percent (§2.16.2).
pub(super) const PROBE_RTT_CWND_GAIN: u64 = 50;
/// BBR.ProbeRTTDuration: the shortest stay in ProbeRTT, milliseconds (§2.16.2).
const PROBE_RTT_MS: u32 = 200;
/// Units of 2^24 ns, about 17 ms, in BBR.ProbeRTTInterval, 5 s (§2.16.2), and in BBR.MinRTTFilterLen, 10 s (§2.16.1).
const PROBE_RTT_INTERVAL: u16 = 298;
const MIN_RTT_FILTER_LEN: u16 = 596;

/// Returns a time in units of 2^24 ns, modulo 2^16: 18 minutes. After a pause of a multiple of that, an estimate that
/// has expired may pass for a fresh one, for 10 s at most.
fn units(at: Instant) -> u16 {
    let [_, _, _, a, b, ..] = at.as_nanos().to_be_bytes();
    u16::from_be_bytes([a, b])
}

impl Bbr {
    /// Returns true in ProbeRTT.
    pub(in crate::cc) fn is_probing_rtt(&self) -> bool {
        self.state == State::ProbeRtt
    }

    /// UpdateMinRTT (§5.3.4.3). Returns BBR.probe_rtt_expired.
    pub(super) fn update_min_rtt(&mut self, window: &CongestionWindow, ack: &Ack) -> bool {
        let now = units(ack.now);
        let known = self.probe_rtt_min_delay_ns != INFINITY;
        let probe_rtt_expired = known && now.wrapping_sub(self.probe_rtt_min_stamp) > PROBE_RTT_INTERVAL;
        if let Some(rtt_ns) = ack.rtt_ns {
            self.note_first_rtt(window, rtt_ns);
            if rtt_ns < self.probe_rtt_min_delay_ns || probe_rtt_expired {
                self.probe_rtt_min_delay_ns = rtt_ns;
                self.probe_rtt_min_stamp = now;
            }
        }
        let min_rtt_expired = known && now.wrapping_sub(self.min_rtt_stamp) > MIN_RTT_FILTER_LEN;
        if self.probe_rtt_min_delay_ns < self.min_rtt_ns || min_rtt_expired {
            self.min_rtt_ns = self.probe_rtt_min_delay_ns;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
        probe_rtt_expired
    }

    /// Runs CheckProbeRTT (§5.3.4.3): enters ProbeRTT when the estimate has expired.
    pub(super) fn check_probe_rtt(
        &mut self,
        window: &mut CongestionWindow,
        ack: &Ack,
        probe_rtt_expired: bool,
    ) {
        if self.state != State::ProbeRtt && probe_rtt_expired && !self.has(IDLE_RESTART) {
            self.save_cwnd(window.cwnd);
            self.state = State::ProbeRtt;
            self.set(PROBE_RTT_DONE_SET, false);
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round(ack.c_delivered);
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(window, ack);
        }
        if ack.newly_acked > 0 {
            self.set(IDLE_RESTART, false);
        }
    }

    /// HandleProbeRTT (§5.3.4.3). The connection marks itself application-limited meanwhile.
    fn handle_probe_rtt(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        if !self.has(PROBE_RTT_DONE_SET) {
            if ack.inflight <= self.probe_rtt_cwnd(window, ack.initial_cwnd) {
                self.phase_end_ms = millis(ack.now).wrapping_add(PROBE_RTT_MS);
                self.set(PROBE_RTT_DONE_SET, true);
                self.set(PROBE_RTT_ROUND_DONE, false);
                self.start_round(ack.c_delivered);
            }
            return;
        }
        if ack.round_start {
            self.set(PROBE_RTT_ROUND_DONE, true);
        }
        if self.has(PROBE_RTT_ROUND_DONE) {
            self.check_probe_rtt_done(window, ack.now, ack.c_delivered);
        }
    }

    /// Runs CheckProbeRTTDone (§5.3.4.3): leaves ProbeRTT after its time.
    fn check_probe_rtt_done(&mut self, window: &mut CongestionWindow, now: Instant, c_delivered: u32) {
        let elapsed = millis(now).wrapping_sub(self.phase_end_ms).cast_signed() > 0;
        if self.has(PROBE_RTT_DONE_SET) && elapsed {
            self.probe_rtt_min_stamp = units(now);
            self.restore_cwnd(window);
            self.exit_probe_rtt(now, c_delivered);
        }
    }

    /// Runs ExitProbeRTT (§5.3.4.4): returns to ProbeBW, or to Startup.
    fn exit_probe_rtt(&mut self, now: Instant, c_delivered: u32) {
        self.reset_short_term_model();
        if self.has(FULL_BW_REACHED) {
            self.start_probe_bw_down(now, c_delivered);
            self.start_probe_bw_cruise();
        } else {
            self.enter_startup();
        }
    }

    /// Runs ProbeRTTCwnd (§5.6.4.5): the window of ProbeRTT, bytes.
    pub(super) fn probe_rtt_cwnd(&self, window: &CongestionWindow, initial_cwnd: u32) -> u32 {
        let least = window.mss.saturating_mul(MIN_PIPE_SEGMENTS);
        self.bdp_multiple(PROBE_RTT_CWND_GAIN, initial_cwnd).max(least)
    }

    /// HandleRestartFromIdle (§5.4.1): "if the flow's BBR.state is ProbeBW, and the flow is application-limited, and
    /// there are no packets in flight currently, then before the flow sends one or more packets BBR sets C.pacing_rate
    /// to exactly BBR.bw". The caller checks that it is application-limited and that nothing is in flight.
    pub(in crate::cc) fn on_restart(
        &mut self,
        window: &mut CongestionWindow,
        now: Instant,
        c_delivered: u32,
    ) {
        self.set(IDLE_RESTART, true);
        self.extra_acked_interval_start = Stamp::of(now);
        if self.is_in_a_probe_bw_state() {
            self.set_pacing_rate_with_gain(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(window, now, c_delivered);
        }
    }
}
