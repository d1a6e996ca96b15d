//! Takes the text and FIN of received segments, and decides when to acknowledge. `established`, `syn_sent` and
//! `predicted` pass segments; `output` asks for SACK blocks.

use super::{Conn, Cx, Held, HoldError, HoldLimits, Notice, Payload, Pending, Reassembly, RxNode};
use crate::buf::Buf;
use crate::iface::DropReason;
use crate::pool::Pool;
use crate::seq::SeqNum;
use crate::timer::TimerKind;
use crate::wire::{SackBlocks, SackRange};

/// Upper bound of a packet's headers, bytes: IPv6, and TCP with all its options.
const HEADERS_MAX: u16 = 100;
/// Upper bound of owed duplicate acknowledgments.
const DUP_ACKS_MAX: u8 = 8;

impl Conn {
    /// Seventh and eighth step of RFC 9293 §3.10.7.4: handles text and FIN.
    pub(super) fn take_text<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        payload: Payload<B>,
        fin: bool,
    ) -> Result<(), DropReason> {
        if payload.len() == 0 && !fin {
            return Ok(());
        }
        if !self.state.can_receive() {
            // "This should not occur since a FIN has been received from the remote side."
            self.pending.add(Pending::Ack);
            return Err(DropReason::TcpAfterFin);
        }
        if fin && !self.rcv.fin_known {
            // Ignores a FIN in front of text that is held: the peer has contradicted itself.
            let end = payload.end();
            let is_last = self.rcv.held.held_end(cx.rx).is_none_or(|held| held.at_or_before(end));
            if is_last && end.at_or_before(self.rcv.edge) {
                (self.rcv.fin_known, self.rcv.fin) = (true, end);
            }
        }
        let result = self.take_payload(cx, payload);
        if self.rcv.fin() == Some(self.rcv.nxt) {
            self.take_fin(cx);
        }
        result
    }

    /// Takes the new part of a payload that is in the window.
    fn take_payload<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        mut payload: Payload<B>,
    ) -> Result<(), DropReason> {
        let whole = payload.len();
        if whole == 0 {
            self.pending.add_if(self.rcv.fin().is_some_and(|fin| fin != self.rcv.nxt), Pending::Ack);
            return Ok(());
        }
        // RFC 2883 §4.2: "the first D-SACK block reports the first duplicate sub-segment".
        let nxt = self.rcv.nxt;
        let duplicate = SackRange { start: payload.seq, end: nxt.min(payload.end()) };
        if payload.seq.before(nxt) {
            self.report_duplicate(cx, duplicate);
        } else if payload.seq == nxt
            && let Some(SackRange { start, end }) = self.rcv.held.first_run(cx.rx)
        {
            self.report_duplicate(cx, SackRange { start, end: end.min(payload.end()) });
        }
        payload.trim_before(nxt);
        payload.trim_after(self.rcv.fin().map_or(self.rcv.edge, |fin| fin.min(self.rcv.edge)));
        let len = payload.len();
        if len == 0 {
            self.pending.add(Pending::Ack);
            return Err(DropReason::TcpOutOfWindow);
        }
        self.note_segment_size(whole);
        if payload.seq == self.rcv.nxt {
            self.take_in_order(cx, payload, whole > len)
        } else {
            self.hold_out_of_order(cx, payload)
        }
    }

    /// Tracks the largest payload: the size of a full segment.
    #[inline]
    pub(super) fn note_segment_size(&mut self, len: u32) {
        if let Ok(len) = u16::try_from(len)
            && len > self.rcv.mss
        {
            self.rcv.mss = len;
        }
    }

    #[inline(always)]
    pub(super) fn take_in_order<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        payload: Payload<B>,
        trimmed: bool,
    ) -> Result<(), DropReason> {
        let before = self.rcv.nxt;
        let end = payload.end();
        if !self.rcv.held.push_ready(cx.rx, payload) {
            return Err(DropReason::TcpNoMemory);
        }
        let had_gap = !self.rcv.held.has_no_gap();
        self.rcv.nxt = if had_gap { self.with_held(cx, |held, pool| held.release(pool, end)) } else { end };
        let bytes = self.rcv.nxt.distance_from(before);
        self.rcv.unread = self.rcv.unread.saturating_add(bytes);
        cx.memory.take(bytes);
        self.rcv.bytes = self.rcv.bytes.wrapping_add(u64::from(bytes));
        cx.stats.bytes_in = cx.stats.bytes_in.wrapping_add(u64::from(bytes));
        self.rcv.unacked = self.rcv.unacked.saturating_add(bytes);
        self.arm_fin_wait_2(cx);
        // RFC 5681 §4.2: "an ACK SHOULD be generated for at least every second full-sized segment", and
        // an immediate one "when the incoming segment fills in all or part of a gap".
        if had_gap || trimmed || self.rcv.unacked >= u32::from(self.rcv.mss).saturating_mul(2) {
            self.pending.add(Pending::Ack);
        } else if !self.timers.is_set(TimerKind::DelayedAck) {
            self.set_timer_nanos(TimerKind::DelayedAck, cx.now, cx.config.tcp.delayed_ack_nanos());
        }
        Ok(())
    }

    fn hold_out_of_order<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        payload: Payload<B>,
    ) -> Result<(), DropReason> {
        // RFC 5681 §4.2: "Out-of-order data segments SHOULD be acknowledged immediately".
        self.owe_duplicate_ack();
        let limits = HoldLimits {
            bytes: cx.config.held_bytes_max,
            segments: cx.config.held_segments_max,
            reserve: cx.config.in_order_nodes(),
            merged: cx.config.mtu.saturating_sub(HEADERS_MAX),
            offer: self.settings.out_of_order,
            retains: cx
                .memory
                .budget
                .allows(self.retained().saturating_add(1), cx.accounts.get(self.accounts())),
        };
        let range = SackRange { start: payload.seq, end: payload.end() };
        match self.with_held(cx, |held, pool| held.hold(pool, payload, limits)) {
            Ok(Held { run, duplicate, copied }) => {
                cx.stats.held_segments = cx.stats.held_segments.wrapping_add(1);
                cx.stats.held_copied = cx.stats.held_copied.wrapping_add(copied.into());
                self.note_recent(run);
                if let Some(duplicate) = duplicate {
                    self.report_duplicate(cx, duplicate);
                }
                Ok(())
            }
            Err(HoldError::Duplicate(run)) => {
                // RFC 2883 §4: the block after the D-SACK block is the held run that contains the duplicate.
                self.note_recent(run);
                self.report_duplicate(cx, range);
                Err(DropReason::TcpDuplicate)
            }
            Err(HoldError::Full) => {
                cx.stats.held_refused = cx.stats.held_refused.wrapping_add((!limits.retains).into());
                Err(DropReason::TcpHeldLimit)
            }
        }
    }

    /// Gives up retained buffers in favor of other connections: drops out-of-order segments and asks the
    /// application for what it retains. RFC 2018 §8 allows the former: "the receiver is permitted to discard data
    /// in its queue that has not been acknowledged".
    pub(crate) fn give_up_retained<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if !self.rcv.held.has_no_gap() {
            let held = self.rcv.held.held_segments();
            cx.stats.held_reclaimed = cx.stats.held_reclaimed.wrapping_add(u64::from(held));
            self.with_held(cx, Reassembly::clear_held);
            self.rcv.recent = SackBlocks::EMPTY;
        }
        if self.app_retained > 0 && self.announced {
            cx.stats.keep_reclaimed = cx.stats.keep_reclaimed.wrapping_add(1);
            self.notices.add(Notice::Reclaim);
        }
    }

    /// Changes the held segments, and updates the counts of retained buffers.
    pub(super) fn with_held<B: Buf, R>(
        &mut self,
        cx: &mut Cx<'_, B>,
        change: impl FnOnce(&mut Reassembly, &mut Pool<RxNode<B>>) -> R,
    ) -> R {
        let before = self.rcv.held.payloads();
        let result = change(&mut self.rcv.held, cx.rx);
        let after = self.rcv.held.payloads();
        if before != after {
            cx.memory.budget.change(before, after);
            cx.accounts.change_buffers(self.accounts(), before, after);
        }
        result
    }

    /// Queues an immediate acknowledgment. A peer without SACK counts duplicates, so it gets one per segment, a few at
    /// most in a burst; a peer with SACK learns everything from one.
    fn owe_duplicate_ack(&mut self) {
        if self.pending.has(Pending::Ack) && !self.negotiated.sack {
            self.dup_acks_owed = self.dup_acks_owed.saturating_add(1).min(DUP_ACKS_MAX);
        }
        self.pending.add(Pending::Ack);
    }

    /// Notes a duplicate to report (RFC 2883 §4): "the first block of the SACK option specifies the range of the
    /// duplicate segment".
    pub(super) fn report_duplicate<B>(&mut self, cx: &mut Cx<'_, B>, range: SackRange) {
        if self.negotiated.sack && range.start.before(range.end) {
            // Duplicates of one burst that adjoin are one "contiguous sequence of data".
            self.rcv.dsack = match self.rcv.dsack() {
                Some(before) if before.end == range.start => SackRange { start: before.start, ..range },
                Some(before) if before.start == range.end => SackRange { end: before.end, ..range },
                _ => range,
            };
            cx.stats.dsacks_out = cx.stats.dsacks_out.wrapping_add(1);
        }
    }

    /// Notes the run that changed last (RFC 2018 §4): the first block "MUST specify the contiguous block of data
    /// containing the segment which triggered this ACK", the others repeat the most recent ones.
    fn note_recent(&mut self, run: SackRange) {
        let mut recent = SackBlocks::EMPTY;
        recent.push(run);
        for old in self.rcv.recent.as_slice() {
            let covered = old.start.at_or_after(run.start) && old.end.at_or_before(run.end);
            if !covered && old.start.after(self.rcv.nxt) {
                recent.push(*old);
            }
        }
        self.rcv.recent = recent;
    }

    /// Returns the SACK option of an acknowledgment sent now.
    pub(super) fn sack_blocks<B>(&self, cx: &Cx<'_, B>) -> SackBlocks {
        let mut blocks = SackBlocks::EMPTY;
        if let Some(dsack) = self.rcv.dsack() {
            blocks.push(dsack);
        }
        if self.rcv.held.has_no_gap() {
            return blocks;
        }
        for range in self.rcv.recent.as_slice() {
            if range.start.after(self.rcv.nxt) && !blocks.push(*range) {
                return blocks;
            }
        }
        for run in self.rcv.held.runs(cx.rx) {
            let reported = self.rcv.recent.as_slice().contains(&run);
            if !reported && !blocks.push(run) {
                break;
            }
        }
        blocks
    }

    /// Notes that an acknowledgment was sent, alone or with data.
    pub(super) fn on_ack_sent(&mut self) {
        self.rcv.last_ack_sent = self.rcv.nxt;
        self.rcv.unacked = 0;
        self.timers.clear(TimerKind::DelayedAck);
    }

    /// Initializes the receive variables from the peer's initial sequence number.
    pub(super) fn init_receive(&mut self, irs: SeqNum) {
        self.rcv.irs = irs;
        self.rcv.nxt = irs + 1;
        self.rcv.edge = self.rcv.nxt;
        self.rcv.last_ack_sent = self.rcv.nxt;
    }
}
