//! Tail loss probes (RFC 8985 §7): a probe after two round trips without an acknowledgment replaces a timeout.

use crate::seq::SeqNum;

/// Shortest probe timeout, nanoseconds: allows for the wheel's tick and for a receiver that works in bursts.
const PTO_MIN: u64 = 2_000_000;

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
    /// TLP.end_seq: SND.NXT when the probe was sent, while it is in flight.
    end_seq: Option<SeqNum>,
    is_retrans: bool,
    /// Number of RTT samples when the last probe was sent.
    samples: u32,
}

impl TailLossProbe {
    pub(crate) const fn new() -> Self {
        Self { end_seq: None, is_retrans: false, samples: 0 }
    }

    /// Resets the state (TLP_init, §7.1), except for what §7.3's second condition needs.
    pub(crate) fn reset(&mut self) {
        self.end_seq = None;
        self.is_retrans = false;
    }

    /// Returns true if no probe is in flight.
    #[inline]
    pub(crate) const fn is_idle(&self) -> bool {
        self.end_seq.is_none()
    }

    /// Returns true if a probe may be sent (§7.3): none is in flight, and an RTT sample was taken since the last one.
    pub(crate) fn may_probe(&self, samples: u32) -> bool {
        self.end_seq.is_none() && samples > self.samples
    }

    /// Notes that a probe was sent.
    pub(crate) fn on_probe(&mut self, snd_nxt: SeqNum, is_retrans: bool, samples: u32) {
        *self = Self { end_seq: Some(snd_nxt), is_retrans, samples };
    }

    /// Returns the probe timeout (TLP_calc_PTO, §7.2) without the bound by the RTO. `max_ack_delay` is
    /// TLP.max_ack_delay, by which the acknowledgment of a lone segment may be delayed. All times in nanoseconds.
    #[inline]
    pub(crate) fn timeout(srtt: Option<u64>, lone: bool, max_ack_delay: u64) -> u64 {
        let Some(srtt) = srtt else { return 1_000_000_000 };
        let delay = if lone { max_ack_delay.max(PTO_MIN) } else { PTO_MIN };
        srtt.saturating_mul(2).saturating_add(delay)
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
            self.end_seq = None;
        } else if ack.after(end) {
            self.end_seq = None;
            return ProbeOutcome::RepairedLoss;
        } else if plain_duplicate {
            self.end_seq = None;
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
    fn one_probe_at_a_time_and_a_sample_between_two() {
        let mut tlp = TailLossProbe::new();
        assert!(!tlp.may_probe(0));
        assert!(tlp.may_probe(1));
        tlp.on_probe(seq(100), false, 1);
        assert!(!tlp.may_probe(2), "one is in flight");
        assert_eq!(tlp.on_ack(seq(100), None, false), ProbeOutcome::Nothing);
        assert!(!tlp.may_probe(1), "no sample since");
        assert!(tlp.may_probe(2));
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
        let srtt = 10_000_000;
        let delay = 50_000_000;
        assert_eq!(TailLossProbe::timeout(Some(srtt), true, delay), 70_000_000);
        assert_eq!(TailLossProbe::timeout(Some(srtt), true, 0), 22_000_000);
        assert_eq!(TailLossProbe::timeout(Some(srtt), false, delay), 22_000_000);
        assert_eq!(TailLossProbe::timeout(None, false, delay), 1_000_000_000);
    }
}
