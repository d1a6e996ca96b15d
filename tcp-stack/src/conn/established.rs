//! SEGMENT ARRIVES in the synchronized states (RFC 9293 §3.10.7.4), in its order of checks.

use core::time::Duration;

use super::ack::AckField;
use super::{Conn, Cx, Incoming, Outcome, Pending};
use crate::buf::Buf;
use crate::error::CloseReason;
use crate::iface::DropReason;
use crate::seq::SeqNum;
use crate::state::State;
use crate::time::MilliStamp;
use crate::wire::{SackRange, TcpFlags, Timestamps};

/// Age at which TS.Recent becomes invalid (RFC 7323 §5.5).
const TS_RECENT_AGE_MAX: Duration = Duration::from_secs(24 * 24 * 60 * 60);

impl Conn {
    /// Handles a segment in SYN-RECEIVED or a synchronized state.
    pub(super) fn in_synchronized<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: Incoming<B>) -> Outcome {
        if self.is_crossing_syn_ack(&segment) {
            return self.on_crossing_syn_ack(cx, &segment);
        }
        if let Err(reason) = self.check_sequence(cx, &segment) {
            return Outcome::Dropped(reason);
        }
        let flags = segment.header.flags;
        if flags.contains(TcpFlags::RST) {
            return self.on_reset(cx, &segment);
        }
        // RFC 5961 §4: "If the SYN bit is set, irrespective of the sequence number, TCP MUST send an ACK".
        if flags.contains(TcpFlags::SYN) {
            return self.on_unexpected_syn(cx, &segment);
        }
        if !flags.contains(TcpFlags::ACK) {
            return Outcome::Dropped(DropReason::TcpNoAck);
        }
        self.note_heard(cx.now);
        if self.state == State::SynReceived
            && let Some(answer) = self.leave_syn_received(cx, &segment)
        {
            return answer;
        }
        if !self.ack_is_acceptable(&segment) {
            self.challenge(cx);
            return Outcome::Dropped(DropReason::TcpBadAck);
        }
        let Incoming { header, options, payload, ecn, .. } = segment;
        let field = AckField {
            seq: header.seq,
            ack: header.ack,
            window: header.window,
            flags,
            len: payload.len(),
            timestamps: options.timestamps,
            sack: &options.sack,
        };
        self.take_timestamp(cx, field.timestamps, field.seq, field.len);
        self.process_ack(cx, &field);
        self.after_fin_acked(cx);
        if self.state == State::Closed {
            return Outcome::Accepted;
        }
        if flags.contains(TcpFlags::URG) {
            self.take_urgent(cx, &header);
        }
        let at_once = payload.len() > 0 && self.take_marks(cx, flags, ecn);
        let result = self.take_text(cx, payload, flags.contains(TcpFlags::FIN));
        self.pending.add_if(at_once, Pending::Ack);
        match result {
            Ok(()) => Outcome::Accepted,
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// First: checks the timestamps (RFC 7323 §5.3 R1), then the sequence number.
    fn check_sequence<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        segment: &Incoming<B>,
    ) -> Result<(), DropReason> {
        let flags = segment.header.flags;
        let reset = flags.contains(TcpFlags::RST);
        if self.negotiated.timestamps && !reset && !flags.contains(TcpFlags::SYN) {
            match segment.options.timestamps {
                Some(ts) => {
                    let older = ts.value.wrapping_sub(self.rcv.ts_recent).cast_signed() < 0;
                    if older && self.heard_at.age(cx.now) < TS_RECENT_AGE_MAX {
                        self.answer_unacceptable(cx, segment);
                        return Err(DropReason::TcpPaws);
                    }
                }
                // RFC 7323 §3.2 says that it SHOULD be dropped: docs/deviations.md says why it is not.
                None => cx.stats.timestamps_missing = cx.stats.timestamps_missing.wrapping_add(1),
            }
        }
        if self.is_acceptable(segment) {
            return Ok(());
        }
        if reset {
            return Err(DropReason::TcpBadReset);
        }
        let duplicate = segment.header.seq.before(self.rcv.nxt);
        if !self.is_repeated_syn(segment) {
            self.answer_unacceptable(cx, segment);
        }
        Err(if duplicate { DropReason::TcpDuplicate } else { DropReason::TcpOutOfWindow })
    }

    /// True if the segment passes table 6 of RFC 9293 §3.10.7.4. With its special allowance for a closed window, a
    /// segment that begins at RCV.NXT is accepted for its ACK. An ACK without text at the right edge, where SND.NXT
    /// of a peer that filled the window is, counts as inside.
    fn is_acceptable<B>(&self, segment: &Incoming<B>) -> bool {
        let (seq, nxt, window) = (segment.header.seq, self.rcv.nxt, self.current_window());
        let len = segment.seq_len();
        if len == 0 {
            let allowed = if segment.header.flags.contains(TcpFlags::RST) {
                window.max(1)
            } else {
                window.saturating_add(1)
            };
            return seq.is_within(nxt, allowed);
        }
        seq == nxt || seq.is_within(nxt, window) || (seq + (len.wrapping_sub(1))).is_within(nxt, window)
    }

    /// "An acknowledgment should be sent in reply": at once to repeated text, since its acknowledgment may be lost,
    /// and rate-limited to segments that may be part of a loop or blind guesses (RFC 5961 §7).
    fn answer_unacceptable<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: &Incoming<B>) {
        let (seq, nxt) = (segment.header.seq, self.rcv.nxt);
        let again = seq.before(nxt) && nxt.distance_from(seq) <= super::window::receive_buffer(cx.config);
        if segment.seq_len() == 0 || !again {
            self.challenge(cx);
            return;
        }
        let range = SackRange { start: segment.payload.seq, end: segment.payload.end() };
        if range.end.at_or_before(self.rcv.nxt) {
            self.report_duplicate(cx, range);
        }
        self.pending.add(Pending::Ack);
    }

    /// Second: handles a reset (RFC 5961 §3).
    fn on_reset<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: &Incoming<B>) -> Outcome {
        if segment.header.seq != self.rcv.nxt {
            self.challenge(cx);
            return Outcome::Dropped(DropReason::TcpBadReset);
        }
        let refused = self.state == State::SynReceived && self.listener.is_none();
        let reason = match self.state {
            State::LastAck | State::Closing => CloseReason::Normal,
            _ if refused => CloseReason::Refused,
            _ => CloseReason::Reset,
        };
        self.finish(cx, reason);
        Outcome::Accepted
    }

    fn on_unexpected_syn<B: Buf>(&mut self, cx: &mut Cx<'_, B>, segment: &Incoming<B>) -> Outcome {
        if self.is_repeated_syn(segment) {
            return Outcome::Dropped(DropReason::TcpDuplicate);
        }
        self.challenge(cx);
        Outcome::Dropped(DropReason::TcpBadSyn)
    }

    /// True if the ACK field is acceptable (RFC 5961 §5): "(SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT".
    fn ack_is_acceptable<B>(&self, segment: &Incoming<B>) -> bool {
        let ack = segment.header.ack;
        ack.at_or_before(self.snd.nxt)
            && (ack.at_or_after(self.snd.una) || self.snd.una.distance_from(ack) <= self.snd.max_wnd)
    }

    /// Updates TS.Recent (RFC 7323 §4.3): "If SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent, then SEG.TSval
    /// is copied to TS.Recent".
    #[inline]
    pub(super) fn take_timestamp<B>(
        &mut self,
        cx: &Cx<'_, B>,
        timestamps: Option<Timestamps>,
        seq: SeqNum,
        len: u32,
    ) {
        let Some(ts) = timestamps.filter(|_| self.negotiated.timestamps) else { return };
        if seq.at_or_before(self.rcv.last_ack_sent) {
            self.rcv.ts_recent = ts.value;
        }
        if len > 0 && seq == self.rcv.nxt {
            self.note_echo(cx, ts.echo);
        }
    }

    /// Queues a challenge acknowledgment, unless the limit is reached (RFC 5961 §7).
    pub(super) fn challenge<B>(&mut self, cx: &mut Cx<'_, B>) {
        if self.challenges_since.age(cx.now) >= cx.config.tcp.challenge_interval() {
            self.challenges_since = MilliStamp::of(cx.now);
            self.challenges_left = self.challenge_allowance(cx.config.tcp.challenge_acks_max);
        }
        let Some(left) = self.challenges_left.checked_sub(1) else {
            cx.stats.challenge_acks_limited = cx.stats.challenge_acks_limited.wrapping_add(1);
            return;
        };
        self.challenges_left = left;
        cx.stats.challenge_acks = cx.stats.challenge_acks.wrapping_add(1);
        self.pending.add(Pending::Ack);
    }

    /// Returns the number of challenges that a new interval allows: random, between half of `most` and `most`. A
    /// known limit would let an attacker count the missing challenges and so learn that a guess about another
    /// connection was right.
    fn challenge_allowance(&self, most: u8) -> u8 {
        let mixed = (self.secret ^ self.challenges_since.get()).wrapping_mul(0x9e37_79b1);
        let [noise, ..] = mixed.to_be_bytes();
        let spread = u16::from(most / 2).saturating_add(1);
        most.saturating_sub(u8::try_from(u16::from(noise).checked_rem(spread).unwrap_or(0)).unwrap_or(0))
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use std::vec::Vec;

    use crate::config::{ConnOptions, StackConfig};
    use crate::conn::{Conn, Origin};
    use crate::seq::SeqNum;
    use crate::time::{Instant, MilliStamp};

    #[test]
    fn the_allowance_of_challenges_varies_and_keeps_its_bounds() {
        let end = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let (iss, options) = (SeqNum::new(0), ConnOptions::default());
        let (local, remote, hash) = (end(1), end(2), 0x5eed);
        let path_mtu = 1500;
        let origin = Origin { local, remote, hash, iss, ts_offset: 0, listener: None, options, path_mtu };
        let mut conn = Conn::open(Instant::ZERO, &origin, &StackConfig::default());
        let mut seen = [0_u32; 256];
        for ms in 0..1000 {
            conn.challenges_since = MilliStamp::of(Instant::from_millis(ms));
            seen[usize::from(conn.challenge_allowance(10))] += 1;
            assert_eq!(conn.challenge_allowance(1), 1);
            assert!((128..=255).contains(&conn.challenge_allowance(255)));
        }
        let (between, outside): (Vec<_>, Vec<_>) =
            seen.iter().enumerate().partition(|(n, _)| (5..=10).contains(n));
        assert!(between.iter().all(|(_, count)| **count > 80), "{between:?}");
        assert!(outside.iter().all(|(_, count)| **count == 0));
    }
}
