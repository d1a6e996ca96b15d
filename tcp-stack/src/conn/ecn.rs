//! Explicit congestion notification (RFC 3168 §6.1), and the DCTCP echo (RFC 8257 §3.2).
//!
//! ```text
//!   sender                 network              receiver
//!     │  new data, ECT(0)     │                     │
//!     ├───────────────────────┤  congested: CE      │
//!     │                       ├────────────────────▶│ echo begins
//!     │◀────────────────────────────── ACK, ECE ────┤ in every ACK …
//!     │ window reduced, once                        │
//!     ├── new data, ECT(0), CWR ───────────────────▶│ … until CWR
//! ```
//! A DCTCP receiver echoes the marks segment by segment instead. If the marks change between two segments that one
//! acknowledgment would cover, the first ones get an acknowledgment of their own.
//!
//! The sender reduces the window at the first echo of a window of data, DCTCP included, and not again before
//! something sent later is acknowledged. The reduction is never undone: unlike a loss, an echo cannot be spurious.

use super::{Conn, Cx, Pending};
use crate::buf::Buf;
use crate::cc::MarkSample;
use crate::config::{Congestion, ConnOptions, Ecn as Mode, TcpConfig};
use crate::event::EcnState;
use crate::recovery::Undo;
use crate::seq::SeqNum;
use crate::state::State;
use crate::timer::TimerKind;
use crate::wire::{EcnField, TcpFlags, TcpHeader, TcpOptions};

/// Changes of the CE marks within a burst that are tracked; beyond that the shortest run between two changes is
/// ignored.
const CE_CHANGES_MAX: usize = 2;

/// We request ECN when we open a connection.
const ASKS: u16 = 1 << 0;
/// We accept ECN if the peer requests it.
const ACCEPTS: u16 = 1 << 1;
/// DCTCP is in use: its echo, and its wider use of ECT.
const DCTCP: u16 = 1 << 2;
/// Segments without new data are sent ECN-capable, too.
const ECT_CONTROL: u16 = 1 << 3;
/// We "sent at least one ECN-setup SYN or ECN-setup SYN-ACK packet" (RFC 3168 §6.1.1).
const SENT_SETUP: u16 = 1 << 4;
/// We sent a "non-ECN-setup SYN or non-ECN-setup SYN-ACK packet".
const SENT_PLAIN: u16 = 1 << 5;
/// We received an ECN-setup SYN or SYN-ACK.
const GOT_SETUP: u16 = 1 << 6;
/// We received a non-ECN-setup SYN or SYN-ACK.
const GOT_PLAIN: u16 = 1 << 7;
/// Receiver: acknowledgments carry ECE. With DCTCP this is DCTCP.CE.
const ECHO: u16 = 1 << 8;
/// Sender: the next new data carries CWR.
const OWES_CWR: u16 = 1 << 9;
/// Sender: the window was reduced, and nothing sent later is acknowledged.
const REDUCED: u16 = 1 << 10;
/// Sender: an echo that counts as a loss reduced it.
const STANDS_FOR_LOSS: u16 = 1 << 11;
/// Sender: new data waits for the retransmission timer.
const HOLDS: u16 = 1 << 12;

/// The ECN state of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ecn {
    bits: u16,
    /// ECN-setup SYNs sent, not counting SYN-ACKs.
    setup_syns: u8,
    /// Number of valid entries of `ce_changes`.
    ce_change_count: u8,
    /// SND.NXT at the last window reduction; valid while `REDUCED` is set.
    point: SeqNum,
    /// DCTCP receiver: RCV.NXT at each change of the CE marks that left earlier segments unacknowledged.
    ce_changes: [SeqNum; CE_CHANGES_MAX],
}

impl Ecn {
    /// Makes the ECN state of a connection that is opened or accepted.
    pub(crate) fn new(config: &TcpConfig, options: &ConnOptions) -> Self {
        let congestion = options.congestion.unwrap_or(config.congestion);
        let dctcp = congestion == Congestion::Dctcp;
        let mut bits = match options.ecn.unwrap_or(config.ecn) {
            Mode::Off => 0,
            Mode::Accept if !dctcp => ACCEPTS,
            Mode::Accept | Mode::On => ASKS | ACCEPTS,
        };
        if dctcp {
            bits |= DCTCP;
            bits |= if config.dctcp_ect_control { ECT_CONTROL } else { 0 };
        }
        let zero = SeqNum::new(0);
        Self { bits, setup_syns: 0, ce_change_count: 0, point: zero, ce_changes: [zero; CE_CHANGES_MAX] }
    }

    #[inline]
    const fn has(&self, bits: u16) -> bool {
        self.bits & bits == bits
    }

    const fn set(&mut self, bits: u16, on: bool) {
        if on {
            self.bits |= bits;
        } else {
            self.bits &= !bits;
        }
    }

    /// True if we may send ECN-capable segments and respond to echoes. RFC 3168 §6.1.1: "A host MUST NOT set ECT on
    /// data packets unless it has sent at least one ECN-setup SYN [...], and has received at least one [...], and
    /// has sent no non-ECN-setup SYN".
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        let all = SENT_SETUP | SENT_PLAIN | GOT_SETUP | GOT_PLAIN;
        self.bits & all == SENT_SETUP | GOT_SETUP
    }

    /// True if we echo marks. §6.1.1: a host that has sent an ECN-setup SYN and received no other "MUST process
    /// these packets as specified for an ECN-capable connection", regardless of its other SYNs.
    #[inline]
    const fn echoes(&self) -> bool {
        self.bits & (SENT_SETUP | GOT_SETUP | GOT_PLAIN) == SENT_SETUP | GOT_SETUP
    }

    pub(crate) const fn state(&self) -> EcnState {
        if self.is_on() {
            EcnState::On
        } else if self.echoes() {
            EcnState::Echo
        } else {
            EcnState::Off
        }
    }

    /// Handles the peer's SYN or SYN-ACK; every one of them counts.
    pub(crate) fn on_syn(&mut self, flags: TcpFlags, field: EcnField) {
        let both = TcpFlags::ECE | TcpFlags::CWR;
        let setup = if flags.contains(TcpFlags::ACK) {
            // §6.1.1.2: a peer that reflects both bits supports neither.
            flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
        } else {
            // §6.1.1: "A host MUST NOT set ECT on SYN". A DCTCP host does, and only a DCTCP host answers it;
            // networks that overwrite the field do, too.
            flags.contains(both) && (field == EcnField::NotEct || self.has(DCTCP))
        };
        self.set(if setup { GOT_SETUP } else { GOT_PLAIN }, true);
    }

    /// Returns the ECN flags of our SYN or SYN-ACK.
    pub(crate) fn syn_flags(&self, state: State) -> TcpFlags {
        if state == State::SynReceived {
            let accepted = self.has(ACCEPTS | GOT_SETUP) && self.bits & (GOT_PLAIN | SENT_PLAIN) == 0;
            return if accepted { TcpFlags::ECE } else { TcpFlags::NONE };
        }
        // §6.1.1.1: a host that receives no reply "MAY resend the SYN and any subsequent SYN retransmissions with
        // CWR and ECE cleared". In a data center a missing reply means loss, not a firewall.
        let tries = if self.has(DCTCP) { 3 } else { 1 };
        if self.has(ASKS) && self.setup_syns < tries { TcpFlags::ECE | TcpFlags::CWR } else { TcpFlags::NONE }
    }

    /// Returns the ECN field of our SYN's packet. RFC 8257 §3.6: "the sender SHOULD set ECT for SYN, SYN-ACK".
    pub(crate) fn syn_field(&self, state: State) -> EcnField {
        let setup = self.syn_flags(state) != TcpFlags::NONE;
        if setup && self.has(DCTCP) { EcnField::Ect0 } else { EcnField::NotEct }
    }

    /// Notes that the SYN was handed to the port; returns true if it was the first without the request.
    pub(crate) fn on_syn_sent(&mut self, state: State) -> bool {
        let setup = self.syn_flags(state) != TcpFlags::NONE;
        let falls_back = !setup && state == State::SynSent && self.has(SENT_SETUP) && !self.has(SENT_PLAIN);
        if setup && state == State::SynSent {
            self.setup_syns = self.setup_syns.saturating_add(1);
        }
        self.set(if setup { SENT_SETUP } else { SENT_PLAIN }, true);
        falls_back
    }

    /// Returns the ECN field of segments without new data: RFC 3168 §6.1.4 to §6.1.6 forbid ECT, RFC 8257 §4.1 asks
    /// for an option.
    #[inline]
    pub(crate) const fn control_field(&self) -> EcnField {
        if self.is_on() && self.has(DCTCP | ECT_CONTROL) { EcnField::Ect0 } else { EcnField::NotEct }
    }

    /// Returns the ECE flag of every segment but a SYN.
    #[inline]
    pub(crate) const fn echo(&self) -> TcpFlags {
        if self.has(ECHO) { TcpFlags::ECE } else { TcpFlags::NONE }
    }

    /// True if an acknowledgment of [`Conn::ce_change_header`] is owed.
    #[inline]
    pub(crate) const fn owes_ce_change_ack(&self) -> bool {
        self.ce_change_count > 0
    }

    /// True if new data waits for the retransmission timer.
    #[inline]
    pub(crate) const fn holds(&self) -> bool {
        self.has(HOLDS)
    }

    /// Ends the wait of new data when the retransmission timer expires; returns true if it waited.
    pub(crate) fn release(&mut self) -> bool {
        let held = self.has(HOLDS);
        self.set(HOLDS, false);
        held
    }

    /// Notes that a loss reduced the window. §6.1.2: CWR reports a reduction "for any reason".
    pub(crate) fn on_loss(&mut self, nxt: SeqNum) {
        self.on_reduced(nxt);
        self.set(STANDS_FOR_LOSS, false);
    }

    fn on_reduced(&mut self, nxt: SeqNum) {
        self.point = nxt;
        self.set(OWES_CWR | REDUCED, true);
    }

    /// True if an echo has reduced the window for the data up to `una`, so that a loss in it does not reduce it
    /// again. RFC 3168 §6.1.2: "reduced only once in response to a series of dropped and/or CE packets from a
    /// single window". This does not hold for DCTCP, which may have reduced it by next to nothing.
    pub(crate) fn stands_for_loss(&self, una: SeqNum) -> bool {
        self.has(REDUCED | STANDS_FOR_LOSS) && una.before(self.point)
    }

    /// Notes that the CE marks change at `nxt`.
    fn note_ce_change(&mut self, nxt: SeqNum, unacked: bool) {
        self.bits ^= ECHO;
        let count = usize::from(self.ce_change_count);
        let last = self.ce_changes.get(count.wrapping_sub(1)).copied();
        if last == Some(nxt) || count == CE_CHANGES_MAX {
            // The two changes cancel out: nothing lies between them, or there is no room to report it.
            self.ce_change_count = self.ce_change_count.saturating_sub(1);
        } else if (unacked || count > 0)
            && let Some(change) = self.ce_changes.get_mut(count)
        {
            *change = nxt;
            self.ce_change_count = self.ce_change_count.saturating_add(1);
        }
    }

    fn pop_ce_change(&mut self) -> Option<SeqNum> {
        let [first, rest @ ..] = self.ce_changes;
        self.ce_change_count = self.ce_change_count.checked_sub(1)?;
        for (to, from) in self.ce_changes.iter_mut().zip(rest) {
            *to = from;
        }
        Some(first)
    }
}

impl Conn {
    /// Handles the CE mark and CWR of text in the window (RFC 3168 §6.1.3). Segments outside of it are excluded
    /// (§6.1.5: "SHOULD ignore the CE codepoint on out-of-window packets"), window probes are not (§6.1.6). Returns
    /// true if an acknowledgment must be sent at once.
    #[inline]
    pub(super) fn take_marks<B>(&mut self, cx: &mut Cx<'_, B>, flags: TcpFlags, field: EcnField) -> bool {
        if !self.ecn.echoes() {
            return false;
        }
        let (marked, cwr) = (field == EcnField::Ce, flags.contains(TcpFlags::CWR));
        if cwr {
            cx.stats.cwr_in = cx.stats.cwr_in.wrapping_add(1);
        }
        if self.ecn.has(DCTCP) {
            // RFC 8257 §3.2, rules 1 and 2. Each segment sets the state anew, so CWR has nothing to clear.
            let changes = marked != self.ecn.has(ECHO);
            if changes {
                let unacked = self.rcv.nxt.after(self.rcv.last_ack_sent);
                self.ecn.note_ce_change(self.rcv.nxt, unacked);
            }
            return changes || cwr;
        }
        // RFC 8257 §3.2, erratum 3639 to RFC 3168: "CWR is processed first and then CE".
        if cwr {
            self.ecn.set(ECHO, false);
        }
        let begins = marked && !self.ecn.has(ECHO);
        self.ecn.set(ECHO, begins || self.ecn.has(ECHO));
        // After the echo the sender's window may be one segment, which would wait for a delayed acknowledgment.
        begins || cwr
    }

    /// Returns the acknowledgment for the segments before a change of the marks, as it would have been sent then
    /// (RFC 8257 §3.2): "one for previously unacknowledged packets".
    pub(crate) fn ce_change_header<B>(&mut self, cx: &Cx<'_, B>) -> (TcpHeader, TcpOptions) {
        let (now, before) = (self.ecn, self.rcv.nxt);
        self.rcv.nxt = self.ecn.ce_changes.first().copied().unwrap_or(before);
        // Each change inverted the echo.
        self.ecn.set(ECHO, now.has(ECHO) != (now.ce_change_count % 2 == 1));
        let (header, mut options) = self.header(cx, self.snd.nxt, TcpFlags::ACK, 0);
        // The acknowledgment that follows this one reports out-of-order data.
        options.sack = crate::wire::SackBlocks::EMPTY;
        self.ecn = now;
        self.rcv.nxt = before;
        (header, options)
    }

    /// Notes that the acknowledgment of [`Self::ce_change_header`] was handed to the port.
    pub(crate) fn on_ce_change_ack_sent(&mut self) {
        self.segments_out = self.segments_out.wrapping_add(1);
        if let Some(change) = self.ecn.pop_ce_change() {
            self.rcv.last_ack_sent = change;
        }
    }

    /// Handles an acknowledgment of `acked` bytes, with or without an echoed mark (RFC 3168 §6.1.2).
    #[inline]
    pub(super) fn take_echo<B>(&mut self, cx: &mut Cx<'_, B>, echoed: bool, acked: u32) {
        if !self.ecn.is_on() {
            return;
        }
        // "CWR is to be held" until something above the point is acknowledged: echoes of earlier data precede the
        // reduction.
        if self.ecn.has(REDUCED) && self.snd.una.after(self.ecn.point) {
            self.ecn.set(REDUCED, false);
        }
        if acked > 0 {
            let (una, nxt) = (self.snd.una, self.snd.nxt);
            self.cc.on_marks(&MarkSample { acked, marked: echoed, una, nxt });
        }
        if echoed {
            cx.stats.ece_in = cx.stats.ece_in.wrapping_add(1);
            self.reduce_on_echo(cx, acked);
        }
    }

    #[cold]
    fn reduce_on_echo<B>(&mut self, cx: &mut Cx<'_, B>, acked: u32) {
        // "TCP should not react to congestion indications more than once every window of data".
        if self.recovery.in_recovery() {
            // The echo proves congestion: the response to the loss is not undone.
            self.episode.undo = Undo::NONE;
            return;
        }
        if self.ecn.has(REDUCED) {
            return;
        }
        self.episode.undo = Undo::NONE;
        cx.stats.ecn_reductions = cx.stats.ecn_reductions.wrapping_add(1);
        if self.window.cwnd <= self.window.mss {
            // "The sending TCP MUST reset the retransmit timer on receiving the ECN-Echo packet when the
            // congestion window is one. The sending TCP will then be able to send a new packet only when the
            // retransmit timer expires."
            self.ecn.set(HOLDS, true);
            self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
        }
        let flight = self.snd.nxt.distance_from(self.snd.una).saturating_add(acked);
        self.cc.on_ecn_echo(&mut self.window, flight);
        self.ecn.on_reduced(self.snd.nxt);
        let dctcp = self.ecn.has(DCTCP);
        self.ecn.set(STANDS_FOR_LOSS, !dctcp);
    }

    /// Returns the ECN field of a queued segment's packet, and CWR if it carries that. RFC 3168 §6.1.5: no ECT on
    /// retransmissions; §6.1.6: none on window probes; §6.1.2: CWR on "the first new data packet sent after the
    /// window reduction".
    #[inline]
    pub(crate) fn data_marks(&self, seq: SeqNum, len: u16) -> (EcnField, TcpFlags) {
        if !self.ecn.is_on() {
            return (EcnField::NotEct, TcpFlags::NONE);
        }
        // A segment whose first byte a window probe carried begins before SND.NXT.
        if len == 0 || seq.before(self.snd.nxt) || self.pending.has(Pending::Probe) {
            return (self.ecn.control_field(), TcpFlags::NONE);
        }
        (EcnField::Ect0, if self.ecn.has(OWES_CWR) { TcpFlags::CWR } else { TcpFlags::NONE })
    }

    /// Returns the ECN field that all segments of a run from `seq` on share; `None` if the first one differs, as
    /// one with CWR does: some NICs repeat CWR in every segment that they cut.
    #[inline]
    pub(crate) fn run_field(&self, seq: SeqNum) -> Option<EcnField> {
        if !self.ecn.is_on() {
            return Some(EcnField::NotEct);
        }
        let (first, others) = (self.data_marks(seq, 1), (EcnField::Ect0, TcpFlags::NONE));
        (first == others).then_some(EcnField::Ect0)
    }

    /// Notes that a segment with these marks was handed to the port.
    #[inline]
    pub(crate) fn on_data_marked<B: Buf>(&mut self, cx: &mut Cx<'_, B>, field: EcnField, flags: TcpFlags) {
        cx.stats.ect_out = cx.stats.ect_out.wrapping_add(u64::from(field == EcnField::Ect0));
        if flags.contains(TcpFlags::CWR) {
            cx.stats.cwr_out = cx.stats.cwr_out.wrapping_add(1);
            self.ecn.set(OWES_CWR, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StackConfig;

    fn agreed(congestion: Congestion) -> Ecn {
        let config = TcpConfig { congestion, ecn: Mode::On, ..StackConfig::default().tcp };
        let mut ecn = Ecn::new(&config, &ConnOptions::default());
        assert!(!ecn.on_syn_sent(State::SynSent));
        ecn.on_syn(TcpFlags::SYN | TcpFlags::ACK | TcpFlags::ECE, EcnField::NotEct);
        assert_eq!(ecn.state(), EcnState::On);
        ecn
    }

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(n)
    }

    /// Returns the acknowledgments of a burst: where each ends, and whether it carries ECE.
    fn drain(ecn: &mut Ecn, nxt: u32) -> alloc::vec::Vec<(u32, bool)> {
        let mut acks = alloc::vec::Vec::new();
        while ecn.owes_ce_change_ack() {
            let echo = ecn.has(ECHO) != (ecn.ce_change_count % 2 == 1);
            acks.push((ecn.pop_ce_change().unwrap().get(), echo));
        }
        acks.push((nxt, ecn.has(ECHO)));
        acks
    }

    #[test]
    fn each_run_of_a_burst_is_acknowledged() {
        let mut ecn = agreed(Congestion::Dctcp);
        // Nothing unacknowledged before the first change: one acknowledgment.
        ecn.note_ce_change(seq(0), false);
        assert_eq!(drain(&mut ecn, 1000), [(1000, true)]);
        // Marked up to 2000, not up to 5000, marked up to 6000.
        ecn.note_ce_change(seq(2000), true);
        ecn.note_ce_change(seq(5000), true);
        assert_eq!(drain(&mut ecn, 6000), [(2000, true), (5000, false), (6000, true)]);
        // Nothing new between two changes: they cancel each other out.
        ecn.note_ce_change(seq(6500), true);
        ecn.note_ce_change(seq(6500), true);
        assert_eq!(drain(&mut ecn, 7000), [(7000, true)]);
    }

    #[test]
    fn runs_beyond_the_limit_merge_with_their_neighbors() {
        let mut ecn = agreed(Congestion::Dctcp);
        for change in 1..=4 {
            ecn.note_ce_change(seq(change * 1000), true);
        }
        assert_eq!(drain(&mut ecn, 5000), [(1000, false), (4000, true), (5000, false)]);
        for change in 1..=3 {
            ecn.note_ce_change(seq(5000 + change * 1000), true);
        }
        assert_eq!(drain(&mut ecn, 9000), [(6000, false), (9000, true)]);
    }

    /// RFC 3168 §6.1.1, for all combinations of the two SYNs.
    #[test]
    fn negotiation() {
        let both = TcpFlags::ECE | TcpFlags::CWR;
        for (mode, bits, answer, state) in [
            (Mode::Off, both, TcpFlags::NONE, EcnState::Off),
            (Mode::Accept, both, TcpFlags::ECE, EcnState::On),
            (Mode::On, both, TcpFlags::ECE, EcnState::On),
            (Mode::On, TcpFlags::ECE, TcpFlags::NONE, EcnState::Off),
            (Mode::On, TcpFlags::CWR, TcpFlags::NONE, EcnState::Off),
            (Mode::On, TcpFlags::NONE, TcpFlags::NONE, EcnState::Off),
        ] {
            let config = TcpConfig { ecn: mode, ..TcpConfig::default() };
            let mut ecn = Ecn::new(&config, &ConnOptions::default());
            ecn.on_syn(TcpFlags::SYN | bits, EcnField::NotEct);
            assert_eq!(ecn.syn_flags(State::SynReceived), answer, "{mode:?} {bits:?}");
            ecn.on_syn_sent(State::SynReceived);
            assert_eq!(ecn.state(), state, "{mode:?} {bits:?}");
        }
    }

    #[test]
    fn an_echo_stands_for_the_losses_of_its_window_but_not_with_dctcp() {
        for (congestion, stands) in [(Congestion::Cubic, true), (Congestion::Dctcp, false)] {
            let mut ecn = agreed(congestion);
            ecn.on_reduced(seq(10_000));
            ecn.set(STANDS_FOR_LOSS, !ecn.has(DCTCP));
            assert_eq!(ecn.stands_for_loss(seq(9_999)), stands);
            assert!(!ecn.stands_for_loss(seq(10_000)));
            ecn.on_loss(seq(12_000));
            assert!(!ecn.stands_for_loss(seq(11_000)));
        }
    }

    #[test]
    fn the_state_is_small() {
        assert_eq!(size_of::<Ecn>(), 16);
    }
}
