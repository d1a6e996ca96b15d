//! Tail loss probes (RFC 8985 §7): a probe after two round trips without an acknowledgment replaces a timeout.
//!
//! A probe or its acknowledgment may be lost, too. While the round trip is much shorter than the least retransmission
//! timeout, further probes follow at doubled intervals, as RFC 9002 §6.2 does, and recoveries are probed as well:
//! a lost acknowledgment of a whole burst leaves nothing else that would tell of its loss.

use crate::seq::SeqNum;

/// Allowance for the wheel's tick, nanoseconds: two of them.
const GRANULARITY: u64 = 1 << 14;
/// Allowance while the handshake's round-trip time is the only sample, 262 µs in nanoseconds: it says nothing of the
/// queue that the first flights of many senders build, such as 256 KiB at 10 Gbit/s.
const FIRST_FLIGHT: u64 = 1 << 18;

/// The information that an acknowledgment gives about the probe in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
    /// No information, or the probe was not needed.
    Nothing,
    /// The probe repaired a loss: congestion control must react.
    RepairedLoss,
}

/// The tail loss probe state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailLossProbe {
    /// TLP.end_seq: SND.NXT when the last probe was sent, while it is in flight.
    end_seq: Option<SeqNum>,
    is_retrans: bool,
    /// Probes sent since the last acknowledgment that delivered something.
    unanswered: u8,
    /// Number of RTT samples when the last probe was sent.
    samples: u32,
}

impl TailLossProbe {
    pub(crate) const fn new() -> Self {
        Self { end_seq: None, is_retrans: false, unanswered: 0, samples: 0 }
    }

    /// Resets the state (TLP_init, §7.1), except for what §7.3's second condition needs.
    pub(crate) fn reset(&mut self) {
        self.end_seq = None;
        self.is_retrans = false;
        self.unanswered = 0;
    }

    /// Returns true if no probe is in flight.
    #[inline]
    pub(crate) const fn is_idle(&self) -> bool {
        // An unanswered probe is in flight.
        self.end_seq.is_none()
    }

    /// Returns the number of probes sent since the last acknowledgment that delivered something.
    #[inline]
    pub(crate) const fn unanswered(&self) -> u8 {
        self.unanswered
    }

    /// Returns true if a probe may be sent outside of a recovery. For the first one of a silence, an RTT sample must
    /// have been taken since the last one (§7.3, second condition).
    #[inline]
    pub(crate) const fn may_probe(&self, samples: u32) -> bool {
        samples > self.samples || self.unanswered > 0
    }

    /// Notes that a probe was sent. `is_retrans` is true for a retransmission outside of a recovery: only there must
    /// congestion control learn of the loss.
    pub(crate) fn on_probe(&mut self, snd_nxt: SeqNum, is_retrans: bool, samples: u32) {
        let unanswered = self.unanswered.saturating_add(1);
        *self = Self { end_seq: Some(snd_nxt), is_retrans, unanswered, samples };
    }

    /// Notes that an acknowledgment delivered something.
    #[inline]
    pub(crate) fn on_delivered(&mut self) {
        self.unanswered = 0;
    }

    /// Returns the probe timeout (TLP_calc_PTO, §7.2) without the bound by the RTO. `max_ack_delay` is
    /// TLP.max_ack_delay, by which the acknowledgment of a lone segment may be delayed. All times in nanoseconds.
    /// `samples` is the number of RTT samples that `srtt` comes from.
    #[inline]
    pub(crate) fn timeout(srtt: Option<u64>, samples: u32, lone: bool, max_ack_delay: u64) -> u64 {
        let Some(srtt) = srtt else { return 1_000_000_000 };
        let least = if samples > 1 { GRANULARITY } else { FIRST_FLIGHT };
        let delay = if lone { max_ack_delay.max(least) } else { least };
        srtt.saturating_mul(2).saturating_add(delay)
    }

    /// Returns the interval to the next probe, after unanswered ones: the timeout, doubled for each of them.
    pub(crate) fn backed_off(&self, timeout: u64) -> u64 {
        timeout.saturating_mul(1_u64.checked_shl(u32::from(self.unanswered)).unwrap_or(u64::MAX))
    }

    /// Processes an acknowledgment (TLP_process_ack, §7.4.2). `dsack` is the end of a reported duplicate;
    /// `plain_duplicate` is set for a duplicate acknowledgment without SACK.
    pub(crate) fn on_ack(
        &mut self,
        ack: SeqNum,
        dsack: Option<SeqNum>,
        plain_duplicate: bool,
    ) -> ProbeOutcome {
        let Some(end) = self.end_seq.filter(|end| ack.at_or_after(*end)) else {
            return ProbeOutcome::Nothing;
        };
        if !self.is_retrans || dsack == Some(end) {
            self.reset();
        } else if ack.after(end) {
            self.reset();
            return ProbeOutcome::RepairedLoss;
        } else if plain_duplicate {
            self.reset();
        }
        ProbeOutcome::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(n)
    }

    #[test]
    fn a_silence_is_probed_repeatedly_but_begins_with_a_sample_since_the_last_one() {
        let mut tlp = TailLossProbe::new();
        assert!(!tlp.may_probe(0));
        assert!(tlp.may_probe(1));
        tlp.on_probe(seq(100), false, 1);
        assert!(tlp.may_probe(1), "the probe may be lost");
        tlp.on_probe(seq(200), false, 1);
        assert_eq!(tlp.unanswered(), 2);
        assert_eq!(tlp.on_ack(seq(199), None, false), ProbeOutcome::Nothing);
        assert!(!tlp.is_idle());
        assert_eq!(tlp.on_ack(seq(200), None, false), ProbeOutcome::Nothing);
        assert!(tlp.is_idle());
        assert!(!tlp.may_probe(1), "no sample since");
        assert!(tlp.may_probe(2));
    }

    #[test]
    fn unanswered_probes_double_the_interval_and_a_delivery_ends_that() {
        let mut tlp = TailLossProbe::new();
        assert_eq!(tlp.backed_off(1000), 1000);
        for interval in [2000, 4000] {
            tlp.on_probe(seq(100), false, 1);
            assert_eq!(tlp.backed_off(1000), interval);
        }
        tlp.on_delivered();
        assert_eq!((tlp.unanswered(), tlp.backed_off(1000)), (0, 1000));
        assert!(!tlp.is_idle(), "the last one is in flight still");
        for _ in 0..1000 {
            tlp.on_probe(seq(100), false, 1);
        }
        assert_eq!(tlp.backed_off(1000), u64::MAX);
    }

    #[test]
    fn a_repaired_loss_is_noticed() {
        let mut tlp = TailLossProbe::new();
        tlp.on_probe(seq(100), true, 1);
        assert_eq!(tlp.on_ack(seq(99), None, false), ProbeOutcome::Nothing);
        assert_eq!(tlp.on_ack(seq(100), Some(seq(90)), false), ProbeOutcome::Nothing, "another duplicate");
        assert_eq!(tlp.on_ack(seq(101), None, false), ProbeOutcome::RepairedLoss);
        assert_eq!(tlp.on_ack(seq(102), None, false), ProbeOutcome::Nothing, "once");
    }

    #[test]
    fn a_spurious_probe_is_noticed() {
        for (dsack, duplicate) in [(Some(seq(100)), false), (None, true)] {
            let mut tlp = TailLossProbe::new();
            tlp.on_probe(seq(100), true, 1);
            assert_eq!(tlp.on_ack(seq(100), dsack, duplicate), ProbeOutcome::Nothing);
            assert_eq!(tlp.on_ack(seq(101), None, false), ProbeOutcome::Nothing);
        }
    }

    #[test]
    fn a_lone_segment_waits_for_a_delayed_acknowledgment() {
        let (srtt, delay) = (10_000_000, 50_000_000);
        assert_eq!(TailLossProbe::timeout(Some(srtt), 2, true, delay), 70_000_000);
        assert_eq!(TailLossProbe::timeout(Some(srtt), 2, true, 0), 20_000_000 + GRANULARITY);
        assert_eq!(TailLossProbe::timeout(Some(srtt), 2, false, delay), 20_000_000 + GRANULARITY);
        assert_eq!(TailLossProbe::timeout(None, 0, false, delay), 1_000_000_000);
    }

    #[test]
    fn the_first_flight_may_queue_for_262_microseconds() {
        for (samples, allowance) in [(1, FIRST_FLIGHT), (2, GRANULARITY), (1000, GRANULARITY)] {
            assert_eq!(TailLossProbe::timeout(Some(10_000), samples, false, 0), 20_000 + allowance);
        }
    }
}
