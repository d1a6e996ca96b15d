//! Header prediction: an expected in-order segment skips the checks whose outcome is known.
//!
//! `established` and `ack` follow RFC 9293 §3.10.7.4 step by step and are right for every segment. For the segments
//! that this file takes, the result must be the same; `tests/protocol/fuzz.rs` compares both.

use super::ack::AckField;
use super::{Conn, Cx, Payload, Pending};
use crate::buf::Buf;
use crate::iface::{DropReason, PlainSegment};
use crate::recovery::{Delivered, NewestDelivered, Phase};
use crate::seq::SeqNum;
use crate::state::State;
use crate::time::MilliStamp;
use crate::timer::TimerKind;
use crate::wire::{SackBlocks, Timestamps};

impl Conn {
    /// True if the segment is the next one in order on an established connection: it acknowledges outstanding data
    /// or nothing new, and its text, if any, continues RCV.NXT without gaps and fits the window.
    #[inline(always)]
    pub(crate) fn predicts(&self, plain: &PlainSegment) -> bool {
        let (rcv, snd, len) = (&self.rcv, &self.snd, plain.len());
        let in_time = match plain.timestamps {
            Some(ts) => self.negotiated.timestamps && ts.value.wrapping_sub(rcv.ts_recent).cast_signed() >= 0,
            None => !self.negotiated.timestamps,
        };
        let text_fits = len == 0 || (len <= self.current_window() && rcv.held.has_no_gap() && !rcv.fin_known);
        self.state == State::Established
            && plain.seq == rcv.nxt
            && in_time
            && plain.ack.distance_from(snd.una) <= snd.nxt.distance_from(snd.una)
            && text_fits
    }

    /// Handles a segment for which [`Self::predicts`] is true.
    #[inline(always)]
    pub(crate) fn on_predicted<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        plain: &PlainSegment,
        buf: B,
    ) -> Result<(), DropReason> {
        self.count_arrival();
        self.note_heard(cx.now);
        let len = plain.len();
        self.take_timestamp(cx, plain.timestamps, plain.seq, len);
        self.expected_ack(cx, plain);
        if len == 0 {
            return Ok(());
        }
        let at_once = self.take_marks(cx, plain.flags, plain.ecn);
        self.note_segment_size(len);
        let result = self.take_in_order(cx, Payload { seq: plain.seq, range: plain.range(), buf }, false);
        self.pending.add_if(at_once, Pending::Ack);
        result
    }

    /// Same as `process_ack`, for an acknowledgment that is neither old nor selective.
    #[inline(always)]
    fn expected_ack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, plain: &PlainSegment) {
        if plain.ack.after(self.snd.una) && self.snd.wnd > 0 && self.is_loss_free(cx) {
            // The window changes as the peer's application reads, which rarely matches what arrives.
            self.take_window(plain.seq, plain.window);
            self.take_expected_ack(cx, plain.ack, plain.timestamps);
            return;
        }
        let field = AckField {
            seq: plain.seq,
            ack: plain.ack,
            window: plain.window,
            flags: plain.flags,
            len: plain.len(),
            timestamps: plain.timestamps,
            sack: &SackBlocks::EMPTY,
        };
        self.process_ack(cx, &field);
    }

    /// True if everything in flight was sent once, in sequence, after everything delivered, and no mechanism still
    /// tracks an earlier loss, probe or mark: then an acknowledgment conveys only how much has arrived.
    #[inline]
    fn is_loss_free<B>(&self, cx: &Cx<'_, B>) -> bool {
        let (queue, recovery) = (&self.snd.queue, &self.recovery);
        let oldest = cx.tx.get(queue.oldest());
        let repairs = queue.lost() | queue.sacked_segments() | queue.flight_again() | recovery.dup_acks;
        repairs == 0
            && recovery.phase == Phase::Open
            && recovery.tlp.is_idle()
            && recovery.rack.is_quiescent(self.snd.una)
            && oldest.is_none_or(|node| !recovery.rack.is_overtaken(node.sent_at, node.end()))
            && !self.ecn.is_on()
            && !self.cc.models_path()
    }

    /// SND.UNA <- SEG.ACK, and its consequences if [`is_loss_free`](Self::is_loss_free).
    #[inline(always)]
    fn take_expected_ack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, ack: SeqNum, timestamps: Option<Timestamps>) {
        let now = cx.now;
        let acked = ack.distance_from(self.snd.una);
        self.snd.una = ack;
        let (mut first, mut last, mut payload, mut delivered) = (None, None, 0_u64, 0_u32);
        let longest = &mut self.path.acked;
        self.snd.queue.drop_acked(cx.tx, ack, |node| {
            first = first.or(Some(node.sent_at));
            payload = payload.wrapping_add(u64::from(node.len));
            delivered = delivered.saturating_add(node.seq_len());
            *longest = (*longest).max(node.len);
            last = Some((node.sent_at, node.end(), node.rate));
        });
        self.bytes_acked = self.bytes_acked.wrapping_add(payload);
        if self.path.awaits_acknowledgment() {
            self.confirm_path(cx);
        }
        self.snd.progress_at = MilliStamp::of(now);
        self.recovery.attempts = 0;
        self.snd.soft_error = false;
        self.recovery.rack.begin_ack();
        let rtt_ns = if let (Some(first), Some((sent_at, end_seq, rate))) = (first, last) {
            // They were sent in sequence, so the last one's sample stands for all.
            let newest = Delivered { sent_at, end_seq, retransmitted: false, echo_is_older: false };
            self.recovery.rack.on_delivered(now, &newest, self.rtt.min_rtt_nanos());
            let rtt_ns = self.take_rtt(now, now.nanos_since(first));
            let mut newest = NewestDelivered::default();
            newest.on_delivered(delivered, rate, sent_at, false);
            self.rate.on_ack(now, &newest, self.rtt.min_rtt_nanos());
            Some(rtt_ns)
        } else {
            timestamps.and_then(|ts| self.take_echoed_rtt(now, ts.echo))
        };
        self.timers.clear(TimerKind::Reordering);
        self.grow_window(now, acked, false, rtt_ns);
        self.set_pace(cx);
        self.rearm_after_ack(cx, acked, false);
        self.note_room(cx);
    }
}
