//! BBR, version 1 (draft-cardwell-iccrg-bbr-congestion-control-00), with Linux's pacing margin.
//!
//! Two estimates of the path set the pacing rate and the window: BtlBw, the bottleneck bandwidth, is the largest
//! delivery rate of the last ten round trips; RTprop, the round-trip time without queues, is the smallest of the last
//! ten seconds. Loss does not change the estimates; it only limits the sender for one round trip.
//!
//! ```text
//!   Startup ──pipe full──▶ Drain ──queue gone──▶ ProbeBW ◀──┐
//!      ▲                                            │       │ full
//!      └──────────── not full ── ProbeRTT ◀─10 s────┴───────┘
//! ```
//!
//! Constants and functions have the draft's names.

use core::time::Duration;

use super::windowed_max::WindowedMax;
use super::{CWND_MAX, PathSample, Window, pacing::Pacer};
use crate::time::{Instant, Stamp};

/// Gains are in units of 1/256.
const UNIT: u64 = 256;
/// BBRHighGain: 2/ln(2), the smallest gain that doubles the rate each round trip.
const HIGH_GAIN: u16 = 739;
/// Inverse of the high gain: Drain removes in one round trip the queue that Startup has built.
const DRAIN_GAIN: u16 = 88;
/// Window gain in ProbeBW: two BDPs may be in flight, so that delayed acknowledgments do not stop the sender.
const CWND_GAIN: u16 = 512;
/// Gain cycle of ProbeBW, one RTprop per phase: the first probes for bandwidth, the second drains the queue that this
/// has built.
const PACING_GAIN_CYCLE: [u16; 8] = [320, 192, 256, 256, 256, 256, 256, 256];
/// BtlBwFilterLen, in round trips.
const BTL_BW_FILTER_ROUNDS: u32 = 10;
/// RTpropFilterLen: lifetime of RTprop, milliseconds.
const RTPROP_FILTER_MS: u32 = 10_000;
/// ProbeRTTDuration: shortest stay in ProbeRTT, milliseconds.
const PROBE_RTT_MS: u32 = 200;
/// BBRMinPipeCwnd: smallest window, segments.
const MIN_PIPE_SEGMENTS: u32 = 4;
/// Rounds without a quarter more bandwidth after which the pipe counts as full.
const FULL_ROUNDS: u8 = 3;
/// Percent by which the pacing rate stays below the bandwidth, so that rounding builds no queue.
const MARGIN_PERCENT: u64 = 1;
/// Unit of stored bandwidths, bytes per second: 32 bits reach 2 Tbit/s.
const BW_UNIT: u64 = 64;

/// The states of the algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

/// BBR's state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bbr {
    /// BtlBw filter over round trips, in [`BW_UNIT`].
    btl_bw: WindowedMax,
    round_count: u32,
    /// Value of C.delivered at which the current round trip ends, bytes modulo 2^32.
    next_round_delivered: u32,
    /// RTprop, nanoseconds; `u32::MAX` before the first sample.
    rtprop_ns: u32,
    /// Time of the RTprop sample, milliseconds modulo 2^32.
    rtprop_ms: u32,
    /// Time at which ProbeRTT may end, milliseconds modulo 2^32; set once few enough bytes are in flight.
    probe_rtt_done_ms: Option<u32>,
    /// Start of the current phase of the gain cycle.
    cycle_stamp: Stamp,
    /// Bandwidth against which growth in Startup is measured, in [`BW_UNIT`].
    full_bw: u32,
    /// Pacing rate, in [`BW_UNIT`].
    pacing: u32,
    /// Window to restore after recovery or ProbeRTT, bytes.
    prior_cwnd: u32,
    /// Bytes lost as of the last sample, modulo 2^32.
    lost_seen: u32,
    /// State of the random number generator.
    seed: u32,
    pacing_gain: u16,
    cwnd_gain: u16,
    mode: Mode,
    cycle_index: u8,
    full_bw_count: u8,
    filled_pipe: bool,
    round_start: bool,
    probe_rtt_round_done: bool,
    idle_restart: bool,
    seen_rtt: bool,
    in_recovery: bool,
    /// Set when a recovery begins, until the next sample.
    enters_recovery: bool,
    packet_conservation: bool,
}

/// BBR's view of a connection's path, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BbrInfo {
    /// Its state: `startup`, `drain`, `probe-bw` or `probe-rtt`.
    pub state: &'static str,
    /// Estimated bottleneck bandwidth, bytes per second.
    pub bandwidth: u64,
    /// Round-trip time without queues; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Current pacing gain, percent.
    pub pacing_gain_percent: u32,
    /// Current window gain, percent.
    pub cwnd_gain_percent: u32,
}

fn millis(at: Instant) -> u32 {
    let [.., a, b, c, d] = at.as_millis().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn clamp32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl Bbr {
    /// Returns the state at the start of a connection; different seeds make connections probe at different times.
    pub(super) fn new(seed: u32) -> Self {
        Self {
            btl_bw: WindowedMax::default(),
            round_count: 0,
            next_round_delivered: 0,
            rtprop_ns: u32::MAX,
            rtprop_ms: 0,
            probe_rtt_done_ms: None,
            cycle_stamp: Stamp::default(),
            full_bw: 0,
            pacing: 0,
            prior_cwnd: 0,
            lost_seen: 0,
            seed,
            pacing_gain: HIGH_GAIN,
            cwnd_gain: HIGH_GAIN,
            mode: Mode::Startup,
            cycle_index: 0,
            full_bw_count: 0,
            filled_pipe: false,
            round_start: false,
            probe_rtt_round_done: false,
            idle_restart: false,
            seen_rtt: false,
            in_recovery: false,
            enters_recovery: false,
            packet_conservation: false,
        }
    }

    /// Returns the estimated bandwidth, bytes per second.
    fn bandwidth(&self) -> u64 {
        u64::from(self.btl_bw.get()).saturating_mul(BW_UNIT)
    }

    /// Returns the pacing rate, bytes per second.
    pub(super) fn pacing_rate(&self) -> u64 {
        u64::from(self.pacing).saturating_mul(BW_UNIT)
    }

    /// Returns true in ProbeRTT, when as little as possible is to be in flight.
    pub(super) fn is_probing_rtt(&self) -> bool {
        self.mode == Mode::ProbeRtt
    }

    pub(super) fn info(&self) -> BbrInfo {
        let percent = |gain: u16| u32::from(gain).saturating_mul(100) / 256;
        BbrInfo {
            state: match self.mode {
                Mode::Startup => "startup",
                Mode::Drain => "drain",
                Mode::ProbeBw => "probe-bw",
                Mode::ProbeRtt => "probe-rtt",
            },
            bandwidth: self.bandwidth(),
            min_rtt: (self.rtprop_ns != u32::MAX).then(|| Duration::from_nanos(self.rtprop_ns.into())),
            pacing_gain_percent: percent(self.pacing_gain),
            cwnd_gain_percent: percent(self.cwnd_gain),
        }
    }

    /// Sets the initial pacing rate (BBRInitPacingRate): a window per round-trip time, or per millisecond before one is
    /// known.
    pub(super) fn init_pacing(&mut self, window: &Window, srtt: Option<Duration>) {
        self.seen_rtt |= srtt.is_some();
        let rtt = srtt.map_or(1_000_000, |srtt| u64::try_from(srtt.as_nanos()).unwrap_or(u64::MAX)).max(1);
        let rate = u64::from(window.cwnd).saturating_mul(1_000_000_000).checked_div(rtt).unwrap_or(u64::MAX);
        self.pacing = clamp32(rate.saturating_mul(u64::from(HIGH_GAIN)) / UNIT / BW_UNIT).max(1);
    }

    /// Handles an acknowledgment (BBRUpdateOnACK).
    pub(super) fn on_ack(&mut self, window: &mut Window, sample: &PathSample) {
        let lost = sample.lost.wrapping_sub(self.lost_seen);
        self.lost_seen = sample.lost;
        self.update_btl_bw(sample);
        self.check_cycle_phase(window, sample, lost);
        self.check_full_pipe(sample);
        self.check_drain(window, sample);
        self.update_rtprop(window, sample);
        self.set_pacing_rate();
        self.set_cwnd(window, sample, lost);
    }

    /// Runs BBRUpdateRound and BBRUpdateBtlBw.
    fn update_btl_bw(&mut self, sample: &PathSample) {
        self.round_start = false;
        let Some(rate) = sample.rate else { return };
        if rate.prior_delivered.wrapping_sub(self.next_round_delivered).cast_signed() >= 0 {
            self.next_round_delivered = sample.delivered_total;
            self.round_count = self.round_count.wrapping_add(1);
            self.round_start = true;
        }
        let bandwidth = clamp32(rate.rate() / BW_UNIT).max(1);
        if bandwidth >= self.btl_bw.get() || !rate.app_limited {
            self.btl_bw.update(BTL_BW_FILTER_ROUNDS, self.round_count, bandwidth);
        }
    }

    /// Runs BBRCheckCyclePhase and BBRIsNextCyclePhase.
    fn check_cycle_phase(&mut self, window: &Window, sample: &PathSample, lost: u32) {
        if self.mode != Mode::ProbeBw {
            return;
        }
        let elapsed = Stamp::of(sample.now).nanos_since(self.cycle_stamp);
        let full_length = elapsed > u64::from(self.rtprop_ns);
        let gain = u64::from(self.pacing_gain);
        let next = if gain > UNIT {
            // Probing for bandwidth needs that much in flight, unless a loss shows that it does not fit.
            full_length && (lost > 0 || sample.prior_in_flight >= self.inflight(window, self.pacing_gain))
        } else if gain < UNIT {
            full_length || sample.prior_in_flight <= self.inflight(window, 256)
        } else {
            full_length
        };
        if next {
            self.advance_cycle_phase(sample.now);
        }
    }

    fn advance_cycle_phase(&mut self, now: Instant) {
        self.cycle_stamp = Stamp::of(now);
        self.cycle_index = self.cycle_index.wrapping_add(1) % 8;
        self.pacing_gain = PACING_GAIN_CYCLE.get(usize::from(self.cycle_index)).copied().unwrap_or(256);
    }

    /// Runs BBRCheckFullPipe: ends Startup's growth.
    fn check_full_pipe(&mut self, sample: &PathSample) {
        let limited = sample.rate.is_none_or(|rate| rate.app_limited);
        if self.filled_pipe || !self.round_start || limited {
            return;
        }
        let bandwidth = self.btl_bw.get();
        if u64::from(bandwidth) >= u64::from(self.full_bw).saturating_mul(5) / 4 {
            self.full_bw = bandwidth;
            self.full_bw_count = 0;
            return;
        }
        self.full_bw_count = self.full_bw_count.saturating_add(1);
        self.filled_pipe = self.full_bw_count >= FULL_ROUNDS;
    }

    /// Runs BBRCheckDrain: changes to Drain, then to ProbeBW.
    fn check_drain(&mut self, window: &Window, sample: &PathSample) {
        if self.mode == Mode::Startup && self.filled_pipe {
            self.mode = Mode::Drain;
            self.pacing_gain = DRAIN_GAIN;
            self.cwnd_gain = HIGH_GAIN;
        }
        if self.mode == Mode::Drain && sample.in_flight <= self.inflight(window, 256) {
            self.enter_probe_bw(sample.now);
        }
    }

    /// Enters ProbeBW (BBREnterProbeBW) in a random phase other than the one that reduces the rate.
    fn enter_probe_bw(&mut self, now: Instant) {
        self.mode = Mode::ProbeBw;
        self.pacing_gain = 256;
        self.cwnd_gain = CWND_GAIN;
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [high, ..] = self.seed.to_be_bytes();
        self.cycle_index = 7_u8.saturating_sub(high % 7);
        self.advance_cycle_phase(now);
    }

    /// Runs BBRUpdateRTprop and BBRCheckProbeRTT.
    fn update_rtprop(&mut self, window: &mut Window, sample: &PathSample) {
        let now_ms = millis(sample.now);
        let known = self.rtprop_ns != u32::MAX;
        let expired = known && now_ms.wrapping_sub(self.rtprop_ms) > RTPROP_FILTER_MS;
        if let Some(rtt) = sample.rtt {
            let rtt_ns = clamp32(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX)).clamp(1, u32::MAX - 1);
            if rtt_ns <= self.rtprop_ns || expired {
                self.rtprop_ns = rtt_ns;
                self.rtprop_ms = now_ms;
            }
            if !self.seen_rtt {
                self.init_pacing(window, Some(rtt));
            }
        }
        if expired && self.mode != Mode::ProbeRtt && !self.idle_restart {
            self.save_cwnd(window.cwnd);
            self.mode = Mode::ProbeRtt;
            self.pacing_gain = 256;
            self.cwnd_gain = 256;
            self.probe_rtt_done_ms = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.handle_probe_rtt(window, sample, now_ms);
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// Runs BBRHandleProbeRTT: at least 200 ms and one round trip with four segments in flight.
    fn handle_probe_rtt(&mut self, window: &mut Window, sample: &PathSample, now_ms: u32) {
        let least = window.mss.saturating_mul(MIN_PIPE_SEGMENTS);
        if self.probe_rtt_done_ms.is_none() {
            if sample.in_flight <= least {
                self.probe_rtt_done_ms = Some(now_ms.wrapping_add(PROBE_RTT_MS));
                self.probe_rtt_round_done = false;
                self.next_round_delivered = sample.delivered_total;
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done {
            self.leave_probe_rtt_when_due(window, sample.now, now_ms);
        }
    }

    fn leave_probe_rtt_when_due(&mut self, window: &mut Window, now: Instant, now_ms: u32) {
        if self.probe_rtt_done_ms.is_none_or(|done| now_ms.wrapping_sub(done).cast_signed() < 0) {
            return;
        }
        self.rtprop_ms = now_ms;
        window.cwnd = window.cwnd.max(self.prior_cwnd);
        if self.filled_pipe {
            self.enter_probe_bw(now);
        } else {
            self.mode = Mode::Startup;
            self.pacing_gain = HIGH_GAIN;
            self.cwnd_gain = HIGH_GAIN;
        }
    }

    /// Runs BBRSetPacingRate. Before the pipe is full, the rate only grows.
    fn set_pacing_rate(&mut self) {
        if self.btl_bw.get() > 0 {
            self.pace_at(self.pacing_gain);
        }
    }

    fn pace_at(&mut self, gain: u16) {
        let rate = u64::from(self.btl_bw.get()).saturating_mul(gain.into()) / UNIT;
        let rate = clamp32(rate.saturating_mul(100_u64.saturating_sub(MARGIN_PERCENT)) / 100).max(1);
        if self.filled_pipe || rate > self.pacing {
            self.pacing = rate;
        }
    }

    /// Returns `gain` BDPs plus three bursts (BBRInflight), bytes; the bursts keep a path of a few segments busy.
    fn inflight(&self, window: &Window, gain: u16) -> u32 {
        if self.rtprop_ns == u32::MAX || self.btl_bw.get() == 0 {
            return window.cwnd;
        }
        let bdp = self.bandwidth().saturating_mul(self.rtprop_ns.into()) / 1_000_000_000;
        let quanta = Pacer::quantum(self.pacing_rate(), window.mss).saturating_mul(3);
        clamp32(bdp.saturating_mul(gain.into()) / UNIT).saturating_add(quanta).min(CWND_MAX)
    }

    /// Runs BBRSetCwnd, BBRModulateCwndForRecovery and BBRModulateCwndForProbeRTT.
    fn set_cwnd(&mut self, window: &mut Window, sample: &PathSample, lost: u32) {
        let mss = window.mss;
        let least = mss.saturating_mul(MIN_PIPE_SEGMENTS);
        let mut cwnd = window.cwnd.saturating_sub(lost).max(mss);
        if core::mem::take(&mut self.enters_recovery) {
            cwnd = sample.in_flight.saturating_add(sample.delivered.max(mss));
            self.next_round_delivered = sample.delivered_total;
        } else if self.round_start {
            self.packet_conservation = false;
        }
        if self.packet_conservation {
            cwnd = cwnd.max(sample.in_flight.saturating_add(sample.delivered));
        } else {
            let target = self.inflight(window, self.cwnd_gain);
            let grown = cwnd.saturating_add(sample.delivered);
            if self.filled_pipe {
                cwnd = grown.min(target);
            } else if cwnd < target {
                cwnd = grown;
            }
            cwnd = cwnd.max(least);
        }
        if self.mode == Mode::ProbeRtt {
            cwnd = cwnd.min(least);
        }
        window.cwnd = cwnd.min(CWND_MAX);
    }

    /// Saves the window to restore later (BBRSaveCwnd).
    fn save_cwnd(&mut self, cwnd: u32) {
        let is_shrunk = self.in_recovery || self.mode == Mode::ProbeRtt;
        self.prior_cwnd = if is_shrunk { self.prior_cwnd.max(cwnd) } else { cwnd };
    }

    /// Enters recovery: for a round trip, no more is sent than is delivered. Returns the window to restore afterwards,
    /// bytes.
    pub(super) fn on_loss(&mut self, window: &Window) -> u32 {
        self.save_cwnd(window.cwnd);
        self.in_recovery = true;
        self.enters_recovery = true;
        self.packet_conservation = true;
        self.prior_cwnd
    }

    /// Handles a retransmission timeout: one segment, then as much as is delivered.
    pub(super) fn on_timeout(&mut self) {
        self.enters_recovery = false;
        self.packet_conservation = false;
    }

    /// Restores the window after recovery (BBRRestoreCwnd).
    pub(super) fn on_recovery_exit(&mut self, window: &mut Window) {
        if self.in_recovery {
            self.in_recovery = false;
            self.enters_recovery = false;
            self.packet_conservation = false;
            if self.mode != Mode::ProbeRtt {
                window.cwnd = window.cwnd.max(self.prior_cwnd);
            }
        }
    }

    /// Handles the first segment after an application-limited pause (BBRHandleRestartFromIdle): paces it at the path's
    /// rate, since no queue is left to drain.
    pub(super) fn on_restart(&mut self, window: &mut Window, now: Instant) {
        self.idle_restart = true;
        match self.mode {
            Mode::ProbeBw => self.pace_at(256),
            Mode::ProbeRtt => self.leave_probe_rtt_when_due(window, now, millis(now)),
            Mode::Startup | Mode::Drain => {}
        }
    }
}

#[cfg(test)]
mod tests;
