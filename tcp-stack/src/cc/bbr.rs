//! BBR, version 3 (draft-ietf-ccwg-bbr-06).
//!
//! A model of the path sets the pacing rate and the window. Its long-term part are the largest delivery rate of two
//! probing cycles (`max_bw`), the smallest round-trip time of ten seconds (`min_rtt`), and the largest amount in
//! flight that caused no excess loss (`inflight_longterm`). Its short-term part (`bw_shortterm`,
//! `inflight_shortterm`) follows losses down between two probes, and each probe discards it.
//!
//! ```text
//!   Startup ──▶ Drain ──▶ ProbeBW: DOWN ──▶ CRUISE ──▶ REFILL ──▶ UP        from all: every 5 s
//!      ▲                             ▲                            │                  │
//!      │                             ╰────────────────────────────╯                  ▼
//!      ╰───────── path not yet full ────────── ProbeRTT ── path was full ──▶ ProbeBW: CRUISE
//! ```
//!
//! | file | content | section |
//! |---|---|---|
//! | `bbr.rs` | state, the steps of each event | 5.2 |
//! | `startup.rs` | Startup and Drain | 5.3.1, 5.3.2 |
//! | `probe_bw.rs` | the cycle that probes for bandwidth | 5.3.3 |
//! | `probe_rtt.rs` | the probe for the round-trip time, restart from idle | 5.3.4, 5.4 |
//! | `model.rs` | rounds, `max_bw`, `extra_acked` | 5.5.1 to 5.5.9 |
//! | `loss.rs` | losses, marks, spurious losses | 5.5.10, 5.5.11 |
//! | `control.rs` | pacing rate and window | 5.6 |
//!
//! States, variables and functions have the draft's names; the sections cited are the draft's. Rates and saved volumes
//! have twelve significant bits ([`Coarse`]), which keeps the state of a connection in its block.

mod coarse;
mod control;
mod loss;
mod model;
mod probe_bw;
mod probe_rtt;
mod startup;

use core::time::Duration;

use super::{CongestionWindow, PathSample, pacing::Pacer};
use crate::recovery::LoadStamp;
use crate::time::{Instant, Stamp};
use coarse::Coarse;

/// An unknown or unlimited volume or time: the draft's "Infinity".
const INFINITY: u32 = u32::MAX;
/// BBR.Beta: factor of the decrease for each round trip with losses, percent (§2.8).
const BETA_PERCENT: u64 = 70;
/// BBR.MinPipeCwnd: smallest window, segments (§2.8).
const MIN_PIPE_SEGMENTS: u32 = 4;

/// BBR.state, a state of the diagram (§5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt,
}

/// BBR.ack_phase: the meaning of the acknowledgments for the probe (§2.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    /// Not probing, and no feedback of a probe.
    Init,
    /// Sending at the estimated bandwidth to fill the pipe.
    Refilling,
    /// The amount in flight rises.
    ProbeStarting,
    /// Feedback of the probe arrives.
    ProbeFeedback,
    /// The probe is over, and its feedback still arrives.
    ProbeStopping,
}

/// BBR.full_bw_reached: the bandwidth was fully used at least once.
const FULL_BW_REACHED: u16 = 1 << 0;
/// BBR.full_bw_now: the bandwidth is fully used, as of the current search.
const FULL_BW_NOW: u16 = 1 << 1;
/// BBR.idle_restart: the connection restarts after being idle.
const IDLE_RESTART: u16 = 1 << 2;
/// BBR.probe_rtt_done_stamp is set: few enough bytes are in flight.
const PROBE_RTT_DONE_SET: u16 = 1 << 3;
/// BBR.probe_rtt_round_done: a round trip has passed since.
const PROBE_RTT_ROUND_DONE: u16 = 1 << 4;
/// BBR.is_bw_probe_sample: samples come from data that probes for bandwidth.
const IS_BW_PROBE_SAMPLE: u16 = 1 << 5;
/// BBR.prev_probe_too_high: the last probe ended with excess loss.
const PREV_PROBE_TOO_HIGH: u16 = 1 << 6;
/// BBR.prev_probe_precautionary: the last probe ended where the one before it had lost.
const PREV_PROBE_PRECAUTIONARY: u16 = 1 << 7;
/// BBR.is_loss_in_round: a segment was marked lost in this round trip.
const IS_LOSS_IN_ROUND: u16 = 1 << 8;
/// The window was used up in this round trip, or in the last one: C.is_cwnd_limited.
const USES_CWND: u16 = 1 << 9;
const USED_CWND: u16 = 1 << 10;
/// C.srtt was known when the pacing rate was initialized.
const SEEN_RTT: u16 = 1 << 11;
/// InLossRecovery(): a recovery is in progress.
const IN_RECOVERY: u16 = 1 << 12;
/// A congestion mark was echoed, and the next acknowledgment answers it.
const MARKED: u16 = 1 << 13;
/// The state before this recovery, or before the losses that will cause one, is saved.
const SAVED: u16 = 1 << 14;
/// The acknowledgment that is being handled ended a recovery.
const LEFT_RECOVERY: u16 = 1 << 15;

/// BBR's state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bbr {
    /// BBR.inflight_longterm, bytes, or [`INFINITY`].
    inflight_longterm: u32,
    /// BBR.inflight_shortterm, bytes, or [`INFINITY`].
    inflight_shortterm: u32,
    /// BBR.inflight_latest: the most that was delivered between the sending and the acknowledgment of a segment, in the
    /// current round trip, bytes.
    inflight_latest: u32,
    /// BBR.prior_cwnd: the window to restore after a recovery or ProbeRTT, bytes.
    prior_cwnd: u32,
    /// BBR.min_rtt, nanoseconds, or [`INFINITY`].
    min_rtt_ns: u32,
    /// BBR.probe_rtt_min_delay, nanoseconds, or [`INFINITY`].
    probe_rtt_min_delay_ns: u32,
    /// BBR.next_round_delivered, bytes modulo 2^32.
    next_round_delivered: u32,
    /// BBR.loss_round_delivered, bytes modulo 2^32.
    loss_round_delivered: u32,
    /// In ProbeRTT BBR.probe_rtt_done_stamp, in ProbeBW the end of BBR.bw_probe_wait: milliseconds modulo 2^32.
    phase_end_ms: u32,
    /// BBR.bw_probe_up_acked: what was acknowledged since `inflight_longterm` last grew, bytes.
    bw_probe_up_acked: u32,
    /// BBR.extra_acked_interval_start: the start of the interval in which aggregation is measured.
    extra_acked_interval_start: Stamp,
    /// BBR.extra_acked_delivered: what was acknowledged since then, bytes.
    extra_acked_delivered: u32,
    /// BBR.max_bw_filter: the largest rate of the previous cycle and of this one, bytes per second.
    max_bw_filter: [Coarse; 2],
    /// BBR.extra_acked_filter: the largest volume of the previous rounds and of the latest ones, bytes.
    extra_acked_filter: [Coarse; 2],
    /// BBR.bw_shortterm, bytes per second, or infinity.
    bw_shortterm: Coarse,
    /// BBR.bw_latest, bytes per second.
    bw_latest: Coarse,
    /// BBR.full_bw, bytes per second.
    full_bw: Coarse,
    /// C.pacing_rate, bytes per second.
    pacing_rate: Coarse,
    /// BBR.undo_bw_shortterm, BBR.undo_inflight_shortterm and BBR.undo_inflight_longterm.
    undo_bw_shortterm: Coarse,
    undo_inflight_shortterm: Coarse,
    undo_inflight_longterm: Coarse,
    /// BBR.min_rtt_stamp and BBR.probe_rtt_min_stamp, in units of 17 ms, modulo 18 minutes.
    min_rtt_stamp: u16,
    probe_rtt_min_stamp: u16,
    /// State of the random number generator.
    seed: u16,
    /// Low bits of the sequence number after the last lost segment.
    lost_end: u16,
    /// One bit for each of the draft's booleans.
    bits: u16,
    /// BBR.round_count: the number of round trips, modulo 2^8.
    round_count: u8,
    /// BBR.drain_start_round: `round_count` when Drain began.
    drain_start_round: u8,
    /// BBR.rounds_since_probe_up, at most 255.
    rounds_since_probe_up: u8,
    /// BBR.full_bw_count: rounds without much growth of the rate.
    full_bw_count: u8,
    /// BBR.bw_probe_up_rounds: rounds in which `inflight_longterm` grew, each by twice as much.
    bw_probe_up_rounds: u8,
    /// Rounds in the second place of `extra_acked_filter`.
    extra_acked_rounds: u8,
    /// Discontiguous ranges lost in this round trip.
    lost_ranges: u8,
    /// BBR.LossThresh: largest loss rate of a round trip while probing, percent (§2.8).
    loss_thresh_percent: u8,
    state: State,
    ack_phase: AckPhase,
    /// BBR.undo_state: the state that a loss ended, to return to if the loss was spurious.
    undo_state: Option<State>,
}

/// BBR's view of a connection's path, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BbrInfo {
    /// Its state: `startup`, `drain`, `probe-bw-down`, `probe-bw-cruise`, `probe-bw-refill`, `probe-bw-up` or
    /// `probe-rtt`.
    pub state: &'static str,
    /// Estimated bandwidth (BBR.bw), bytes per second.
    pub bandwidth: u64,
    /// Round-trip time without queues; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Current pacing gain, percent.
    pub pacing_gain_percent: u32,
    /// Current window gain, percent.
    pub cwnd_gain_percent: u32,
}

/// The facts of one acknowledgment: the draft's RS, and C as of then.
#[derive(Clone, Copy, Debug)]
struct Ack {
    now: Instant,
    /// RS.rtt: the round-trip time that it measured, nanoseconds.
    rtt_ns: Option<u32>,
    /// RS.newly_acked: what it newly acknowledged, also selectively, bytes.
    newly_acked: u32,
    /// C.delivered, bytes modulo 2^32.
    c_delivered: u32,
    /// C.inflight after the acknowledgment, bytes.
    inflight: u32,
    /// C.inflight before the acknowledgment, bytes.
    prior_inflight: u32,
    /// C.InitialCwnd: the initial window, bytes.
    initial_cwnd: u32,
    /// C.has_selective_acks: true if the peer sends SACK blocks.
    has_selective_acks: bool,
    /// The fields of RS that a delivered segment gives.
    rs: Option<Rs>,
    /// BBR.round_start: true if it begins a round trip.
    round_start: bool,
    /// BBR.loss_round_start: true if it ends a round trip in which losses count.
    loss_round_start: bool,
}

/// The sample of the delivery rate of one acknowledgment.
#[derive(Clone, Copy, Debug)]
struct Rs {
    /// RS.delivery_rate, bytes per second.
    delivery_rate: Coarse,
    /// RS.delivered: what was delivered since its segment was sent, bytes.
    delivered: u32,
    /// RS.prior_delivered, bytes modulo 2^32.
    prior_delivered: u32,
    /// RS.tx_in_flight: what was in flight when its segment was sent, bytes.
    tx_in_flight: u32,
    /// RS.lost: what was marked lost since then, bytes.
    lost: u32,
    /// RS.is_app_limited: true if the application limited the rate.
    is_app_limited: bool,
}

/// A segment that was marked lost: the draft's P, and C as of then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostSegment {
    pub(crate) now: Instant,
    /// The load of the path when it was sent.
    pub(crate) load: LoadStamp,
    /// Its first sequence number.
    pub(crate) seq: u32,
    /// Its length in sequence space, bytes.
    pub(crate) size: u32,
    /// C.lost, this segment included, bytes modulo 2^32.
    pub(crate) lost: u32,
    /// C.delivered, bytes modulo 2^32.
    pub(crate) delivered: u32,
    /// C.has_selective_acks: true if the peer sends SACK blocks.
    pub(crate) sack: bool,
}

fn millis(at: Instant) -> u32 {
    let [.., a, b, c, d] = at.as_millis().to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

fn clamp32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Returns `percent` of a volume; infinity stays infinity.
fn percent_of(volume: u32, percent: u64) -> u32 {
    if volume == INFINITY { volume } else { clamp32(u64::from(volume).saturating_mul(percent) / 100) }
}

/// Returns a coarse volume of at most 32 bits.
fn volume(coarse: Coarse) -> u32 {
    clamp32(coarse.get())
}

fn saved(volume: u32) -> Coarse {
    if volume == INFINITY { Coarse::INFINITY } else { Coarse::of(volume.into()) }
}

/// Returns true if `delivered` is at or after `mark`, modulo 2^32.
fn has_reached(delivered: u32, mark: u32) -> bool {
    delivered.wrapping_sub(mark).cast_signed() >= 0
}

impl Bbr {
    /// Returns the state at the start of a connection (OnInit, §5.2.1); different seeds make connections probe at
    /// different times.
    pub(super) fn new(seed: u32, loss_thresh_percent: u8) -> Self {
        let [_, _, a, b] = seed.to_be_bytes();
        Self {
            inflight_longterm: INFINITY,
            inflight_shortterm: INFINITY,
            inflight_latest: 0,
            prior_cwnd: 0,
            min_rtt_ns: INFINITY,
            probe_rtt_min_delay_ns: INFINITY,
            next_round_delivered: 0,
            loss_round_delivered: 0,
            phase_end_ms: 0,
            bw_probe_up_acked: 0,
            extra_acked_interval_start: Stamp::default(),
            extra_acked_delivered: 0,
            max_bw_filter: [Coarse::ZERO; 2],
            extra_acked_filter: [Coarse::ZERO; 2],
            bw_shortterm: Coarse::INFINITY,
            bw_latest: Coarse::ZERO,
            full_bw: Coarse::ZERO,
            pacing_rate: Coarse::ZERO,
            undo_bw_shortterm: Coarse::ZERO,
            undo_inflight_shortterm: Coarse::ZERO,
            undo_inflight_longterm: Coarse::ZERO,
            min_rtt_stamp: 0,
            probe_rtt_min_stamp: 0,
            seed: u16::from_be_bytes([a, b]),
            lost_end: 0,
            bits: 0,
            round_count: 0,
            drain_start_round: 0,
            rounds_since_probe_up: 0,
            full_bw_count: 0,
            bw_probe_up_rounds: 0,
            extra_acked_rounds: 0,
            lost_ranges: 0,
            loss_thresh_percent,
            state: State::Startup,
            ack_phase: AckPhase::Init,
            undo_state: None,
        }
    }

    const fn has(&self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    const fn set(&mut self, bit: u16, on: bool) {
        if on {
            self.bits |= bit;
        } else {
            self.bits &= !bit;
        }
    }

    pub(super) fn info(&self) -> BbrInfo {
        BbrInfo {
            state: match self.state {
                State::Startup => "startup",
                State::Drain => "drain",
                State::ProbeBwDown => "probe-bw-down",
                State::ProbeBwCruise => "probe-bw-cruise",
                State::ProbeBwRefill => "probe-bw-refill",
                State::ProbeBwUp => "probe-bw-up",
                State::ProbeRtt => "probe-rtt",
            },
            bandwidth: self.bw().get(),
            min_rtt: (self.min_rtt_ns != INFINITY).then(|| Duration::from_nanos(self.min_rtt_ns.into())),
            pacing_gain_percent: clamp32(self.pacing_gain()),
            cwnd_gain_percent: clamp32(self.cwnd_gain()),
        }
    }

    /// Handles an acknowledgment (UpdateOnACK, §5.2.3).
    pub(super) fn on_ack(&mut self, window: &mut CongestionWindow, sample: &PathSample) {
        let mut ack = self.begin_ack(window, sample);
        self.update_latest_delivery_signals(&mut ack);
        self.update_congestion_signals(window, &mut ack);
        self.respond_to_mark(window, &ack);
        self.update_ack_aggregation(window, &ack);
        self.check_full_bw_reached(&ack);
        self.check_startup_done(window, &ack);
        self.check_drain_done(window, &ack);
        self.update_probe_bw_cycle_phase(window, &ack);
        let probe_rtt_expired = self.update_min_rtt(window, &ack);
        self.check_probe_rtt(window, &ack, probe_rtt_expired);
        self.advance_latest_delivery_signals(&ack);
        // BBR.bw is computed where it is used: see `Self::bw`.
        self.set_pacing_rate();
        self.set_cwnd(window, &ack);
        self.set(LEFT_RECOVERY, false);
    }

    /// Gathers RS and C (GenerateRateSample, §4.1.2.3).
    fn begin_ack(&mut self, window: &CongestionWindow, sample: &PathSample) -> Ack {
        if sample.prior_in_flight.saturating_add(window.mss) > window.cwnd {
            self.set(USES_CWND, true);
        }
        let rtt_ns = |rtt: Duration| clamp32(u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX));
        Ack {
            now: sample.now,
            rtt_ns: sample.rtt.map(|rtt| rtt_ns(rtt).clamp(1, INFINITY - 1)),
            newly_acked: sample.delivered,
            c_delivered: sample.delivered_total,
            inflight: sample.in_flight,
            prior_inflight: sample.prior_in_flight,
            initial_cwnd: sample.initial_cwnd,
            has_selective_acks: sample.sack,
            rs: sample.rate.map(|rate| Rs {
                delivery_rate: Coarse::of(rate.rate().max(1)),
                delivered: rate.delivered,
                prior_delivered: rate.prior_delivered,
                tx_in_flight: rate.load.in_flight(),
                lost: rate.load.lost_since(sample.lost),
                is_app_limited: rate.app_limited,
            }),
            round_start: false,
            loss_round_start: false,
        }
    }

    /// C.is_cwnd_limited: true if the window was used up in the last round trip (§2.2).
    const fn is_cwnd_limited(&self) -> bool {
        self.has(USES_CWND | USED_CWND)
    }

    /// Returns IsInAProbeBWState (§5.3.3.9): true in the four states of the cycle.
    const fn is_in_a_probe_bw_state(&self) -> bool {
        matches!(
            self.state,
            State::ProbeBwDown | State::ProbeBwCruise | State::ProbeBwRefill | State::ProbeBwUp
        )
    }

    /// Returns IsProbingBW (§5.3.3.9): true if the rate or the amount in flight may exceed what the path takes.
    const fn is_probing_bw(&self) -> bool {
        matches!(self.state, State::Startup | State::ProbeBwRefill | State::ProbeBwUp)
    }

    /// Returns a random number below `n`.
    fn random(&mut self, n: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(25_173).wrapping_add(13_849);
        u32::from(self.seed).saturating_mul(n) >> 16
    }
}

#[cfg(test)]
mod tests;
