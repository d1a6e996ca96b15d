//! Trains: batches of new segments whose decision to send, header and options are computed once.
//!
//! `output` decides segment by segment and is right for every segment. A train is sent only in the common state:
//! nothing is lost, nothing but an acknowledgment is owed, and there is no pacing. Then one new segment differs
//! from the next only by the window that is left. The result must be that of `output`; `tests/protocol/fuzz.rs`
//! compares both. [`Stack::poll_transmit`](crate::Stack::poll_transmit) tries a train first.

use super::send_queue::SentTrain;
use super::{Conn, Cx, Pending, TxNode};
use crate::buf::Buf;
use crate::recovery::{Phase, RateStamp};
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::timer::TimerKind;
use crate::wire::{EcnField, TcpFlags, TcpHeader, Timestamps};

/// The limits of a train and the fields that its segments share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    /// The right edge of the peer's window.
    edge: SeqNum,
    una: SeqNum,
    /// End of the last segment that was not full.
    small_end: SeqNum,
    cwnd: u32,
    emss: u16,
    nagle: bool,
    /// True if nothing was outstanding before the train.
    alone: bool,
    /// True if something is outstanding now.
    outstanding: bool,
    pub(crate) ecn: EcnField,
}

impl Train {
    /// True if a new segment may be sent with `in_flight` bytes in flight: the condition of `Conn::blocked`, for a
    /// segment that needs no split.
    #[inline]
    pub(crate) fn admits<B>(&self, segment: &TxNode<B>, in_flight: u32) -> bool {
        let (len, end) = (segment.len, segment.end());
        let is_text = len > 0 && len <= self.emss && !segment.fin;
        let fits_cwnd = in_flight == 0 || in_flight.saturating_add(len.into()) <= self.cwnd;
        let waits = self.nagle && self.is_small(len) && self.outstanding && self.small_end.after(self.una);
        is_text && end.at_or_before(self.edge) && fits_cwnd && !waits
    }

    /// Notes that a new segment is sent.
    #[inline]
    pub(crate) fn note<B>(&mut self, segment: &TxNode<B>) {
        self.outstanding = true;
        if self.is_small(segment.len) {
            self.small_end = segment.end();
        }
    }

    #[inline]
    fn is_small(&self, len: u16) -> bool {
        len < self.emss
    }
}

impl Conn {
    /// Returns the train that may be sent now, of one segment at least; `None` if `next_frame` must decide on the
    /// next segment.
    #[inline(always)]
    pub(crate) fn next_train<B: Buf>(&self, cx: &Cx<'_, B>) -> Option<Train> {
        let node = self.snd.queue.unsent();
        let segment = cx.tx.get(node)?;
        let outstanding = self.snd.queue.has_outstanding();
        let train = Train {
            edge: self.snd.una + self.snd.wnd,
            una: self.snd.una,
            small_end: self.snd.small_end,
            cwnd: self.window.cwnd,
            emss: self.snd.emss,
            nagle: self.snd.nagle,
            alone: !outstanding,
            outstanding,
            ecn: self.run_field(segment.seq)?,
        };
        let goes = self.is_ordinary(cx)
            && train.admits(segment, self.snd.queue.in_flight())
            && self.path_probe_due(cx, node).is_none();
        goes.then_some(train)
    }

    /// True if only new segments are to be sent, all with the same options, as soon as the windows allow.
    #[inline]
    fn is_ordinary<B>(&self, cx: &Cx<'_, B>) -> bool {
        let (queue, pending) = (&self.snd.queue, &self.pending);
        let owes_more = [Pending::Force, Pending::Probe, Pending::Small, Pending::LossProbe];
        self.state.is_synchronized()
            && !owes_more.into_iter().any(|what| pending.has(what))
            && self.snd.wnd > 0
            && queue.lost() == 0
            && self.recovery.phase == Phase::Open
            && self.recovery.dup_acks == 0
            && !self.ecn.owes_ce_change_ack()
            && !self.ecn.holds()
            && !self.snd.urgent
            && self.negotiated.timestamps
            && !self.has_sack_to_report()
            && !cx.config.tcp.pacing
            && !self.cc.models_path()
            && cx.config.segmentation.is_none()
    }

    /// Returns the header of a train's segments, without sequence number and PSH, and their only option.
    #[inline(always)]
    pub(crate) fn train_header<B>(&mut self, cx: &Cx<'_, B>) -> (TcpHeader, Timestamps) {
        let window = self.offer_window(cx, true);
        let header = self.header_with(SeqNum::new(0), TcpFlags::ACK | self.ecn.echo(), window);
        (header, Timestamps { value: self.ts_clock(cx.now), echo: self.rcv.ts_recent })
    }

    /// Returns the rate sample state that each segment of a train keeps.
    #[inline]
    pub(crate) fn train_stamp(&self, now: Instant, train: &Train) -> RateStamp {
        self.rate.stamp(now, train.alone)
    }

    /// Notes that a train of at least one segment was handed to the port.
    #[inline(always)]
    pub(crate) fn end_train<B: Buf>(&mut self, cx: &mut Cx<'_, B>, train: &Train, sent_train: &SentTrain) {
        let segments = u64::from(sent_train.segments);
        self.segments_out = self.segments_out.wrapping_add(segments);
        let stats = &mut *cx.stats;
        stats.segments_out = stats.segments_out.wrapping_add(segments);
        stats.data_segments_out = stats.data_segments_out.wrapping_add(segments);
        stats.bytes_out = stats.bytes_out.wrapping_add(sent_train.bytes.into());
        if train.ecn == EcnField::Ect0 {
            stats.ect_out = stats.ect_out.wrapping_add(segments);
        }
        self.pending.remove(Pending::Ack);
        self.on_ack_sent();
        self.rate.on_send(cx.now, train.alone);
        self.snd.nxt = self.snd.nxt.max(sent_train.end);
        self.snd.small_end = train.small_end;
        self.last_sent_at = cx.now;
        self.snd.note_flight();
        self.timers.clear_these([TimerKind::SendOverride, TimerKind::Persist]);
        if !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
        self.arm_loss_probe(cx);
    }
}
