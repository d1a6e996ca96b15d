//! The ACK field: window update, round-trip time, loss recovery and congestion control.

use super::pace::lost_segment;
use super::{Conn, Cx, Notice, Pending, TxNode};
use crate::buf::Buf;
use crate::cc::AckSample;
use crate::recovery::{
    DUP_THRESH, Delivered, FRto, NewestDelivered, Phase, ProbeOutcome, Prr, RateSample, TailLossProbe, Undo,
};
use crate::seq::SeqNum;
use crate::time::{Instant, MilliStamp};
use crate::timer::TimerKind;
use crate::wire::{SackBlocks, SackRange, TcpFlags, Timestamps};

/// Scoreboard steps that an acknowledgment with a SACK option earns, beside those over newly SACKed segments, and
/// the most that are saved up. An honest peer needs many now and then, when a hole in the middle of a large window
/// is filled; a peer that always forces many gets few.
const SACK_STEPS: u16 = 256;
pub(super) const SACK_STEPS_SAVED_MAX: u16 = 16_384;

/// The fields of a segment that acknowledgment processing uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckField<'a> {
    pub(super) seq: SeqNum,
    pub(super) ack: SeqNum,
    /// The window field as on the wire: not scaled.
    pub(super) window: u16,
    pub(super) flags: TcpFlags,
    /// Payload of the segment, bytes.
    pub(super) len: u32,
    pub(super) timestamps: Option<Timestamps>,
    pub(super) sack: &'a SackBlocks,
}

/// The effect of one acknowledgment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Sequence space cumulatively acknowledged, bytes.
    pub(super) acked: u32,
    /// Segments removed from the queue.
    pub(super) segments: u32,
    /// Sequence space newly acknowledged, cumulatively or selectively, bytes.
    delivered: u32,
    /// Transmission time of the first cumulatively acknowledged segment that was sent only once.
    sampled: Option<Instant>,
    /// Transmission time of the newest selectively acknowledged segment that was sent only once.
    sampled_ahead: Option<Instant>,
    /// The round-trip time sample, nanoseconds.
    rtt_ns: Option<u64>,
    /// The selectively acknowledged part of `delivered`, bytes.
    pub(super) newly_sacked: u32,
    /// The end of the highest SACKed range.
    pub(super) highest: SeqNum,
    /// The echoed timestamp (TSecr).
    pub(super) echo: Option<u32>,
    /// The duplicate reported by a D-SACK block.
    pub(super) dsack: Option<SackRange>,
    /// True if the segment echoes a congestion mark (RFC 3168: ECE).
    pub(super) echoed: bool,
    /// True for a "duplicate acknowledgment" (RFC 5681 §2).
    pub(super) duplicate: bool,
    /// Bytes in flight before the acknowledgment.
    pub(super) prior_in_flight: u32,
    /// The delivery rate state of the newest delivered segment, and the sample that follows from it.
    pub(super) newest: NewestDelivered,
    pub(super) rate: Option<RateSample>,
}

impl Conn {
    /// Processes an acceptable ACK field.
    #[inline(always)]
    pub(super) fn process_ack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, field: &AckField<'_>) {
        let was_closed = self.snd.wnd == 0;
        let window_changed = self.update_window(field);
        if field.ack.before(self.snd.una) {
            return;
        }
        if was_closed && self.snd.wnd > 0 {
            self.on_window_opened(cx);
        }
        if field.ack == self.snd.una && !self.snd.has_outstanding() && field.sack.is_empty() {
            // The usual segment of a peer that only sends: nothing is outstanding.
            return;
        }
        self.take_ack(cx, field, window_changed);
    }

    /// Processes an ACK field that may acknowledge outstanding data.
    fn take_ack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, field: &AckField<'_>, window_changed: bool) {
        let echo = field.timestamps.filter(|_| self.negotiated.timestamps).map(|ts| ts.echo);
        let echoed = field.flags.contains(TcpFlags::ECE) && self.ecn.is_on();
        let mut delivery = Delivery {
            echo,
            echoed,
            highest: self.snd.una,
            prior_in_flight: self.pipe(),
            ..Delivery::default()
        };
        self.recovery.rack.begin_ack();
        if field.ack.after(self.snd.una) {
            self.advance_una(cx, field.ack, &mut delivery);
        } else {
            delivery.duplicate = field.len == 0
                && !window_changed
                && self.snd.has_outstanding()
                && !field.flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        }
        if self.negotiated.sack && !field.sack.is_empty() {
            self.take_sack(cx, field.sack, &mut delivery);
        }
        if delivery.delivered > 0 {
            self.recovery.tlp.on_delivered();
        }
        delivery.rtt_ns = self.sample_rtt(cx.now, &delivery);
        delivery.rate = self.rate.on_ack(cx.now, &delivery.newest, self.rtt.min_rtt_nanos());
        self.recover(cx, &delivery, field.sack);
        self.set_pace(cx);
        self.rearm_after_ack(cx, delivery.acked, delivery.newly_sacked > 0);
        self.note_room(cx);
    }

    /// RFC 9293 §3.10.7.4: takes the window from segments that are not older than the one it was last taken from. A
    /// segment that acknowledges more is newer even if its own sequence number is older, as that of a
    /// retransmission is. Returns true if the window changed.
    #[inline]
    fn update_window(&mut self, field: &AckField<'_>) -> bool {
        let snd = &self.snd;
        // SND.WL2 is not stored: it is never after SND.UNA, and older acknowledgments are ignored here.
        let newer = field.ack.after(snd.una) || snd.wl1.at_or_before(field.seq);
        if !newer || field.ack.before(snd.una) {
            return false;
        }
        self.take_window(field.seq, field.window)
    }

    /// SND.WND <- SEG.WND, scaled, and SND.WL1 <- SEG.SEQ. Returns true if the window changed.
    #[inline(always)]
    pub(super) fn take_window(&mut self, seq: SeqNum, window: u16) -> bool {
        let snd = &mut self.snd;
        let window = u32::from(window) << self.negotiated.snd_wscale;
        let changed = window != snd.wnd;
        snd.wnd = window;
        snd.wl1 = seq;
        if changed {
            snd.max_wnd = snd.max_wnd.max(window);
        }
        changed
    }

    /// Ends the probing of a closed window. The backoff of the probes does not reflect the path and is reset.
    fn on_window_opened<B>(&mut self, cx: &Cx<'_, B>) {
        self.recovery.backoff = 0;
        self.recovery.attempts = 0;
        self.pending.remove(Pending::Probe);
        self.timers.clear(TimerKind::Persist);
        if self.snd.queue.has_outstanding() {
            self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
        }
    }

    /// SND.UNA <- SEG.ACK; removes the segments that are acknowledged whole from the queue.
    fn advance_una<B: Buf>(&mut self, cx: &mut Cx<'_, B>, ack: SeqNum, delivery: &mut Delivery) {
        let acked = ack.distance_from(self.snd.una);
        let sacked_before = self.snd.queue.sacked();
        self.snd.una = ack;
        let mut payload = 0_u64;
        while let Some(node) = self.snd.queue.pop_acked(cx.tx, ack) {
            delivery.segments = delivery.segments.wrapping_add(1);
            payload = payload.wrapping_add(u64::from(node.len));
            self.path.acked = self.path.acked.max(node.len);
            if node.state != super::TxState::Sacked {
                self.note_delivered(cx.now, &node, delivery.echo);
                let (len, again) = (node.seq_len(), node.retransmitted());
                delivery.newest.on_delivered(len, node.rate, node.sent_at, again);
                if !node.retransmitted() && delivery.sampled.is_none() {
                    delivery.sampled = Some(node.sent_at);
                }
            }
        }
        self.bytes_acked = self.bytes_acked.wrapping_add(payload);
        let sacked_now = sacked_before.saturating_sub(self.snd.queue.sacked());
        if self.path.awaits_acknowledgment() {
            self.confirm_path(cx);
        }
        delivery.acked = acked;
        delivery.delivered = acked.saturating_sub(sacked_now);
        self.snd.progress_at = MilliStamp::of(cx.now);
        self.recovery.attempts = 0;
        self.snd.soft_error = false;
    }

    fn note_delivered<B>(&mut self, now: Instant, node: &TxNode<B>, echo: Option<u32>) {
        let sent = self.ts_clock(node.sent_at);
        let delivered = Delivered {
            sent_at: node.sent_at,
            end_seq: node.end(),
            retransmitted: node.retransmitted(),
            echo_is_older: echo.is_some_and(|echo| echo.wrapping_sub(sent).cast_signed() < 0),
        };
        self.recovery.rack.on_delivered(now, &delivered, self.rtt.min_rtt_nanos());
    }

    /// Marks the segments that a SACK option reports (RFC 2018 §4, RFC 2883 §4).
    fn take_sack<B: Buf>(&mut self, cx: &mut Cx<'_, B>, blocks: &SackBlocks, delivery: &mut Delivery) {
        let ranges = blocks.as_slice();
        delivery.dsack = self.dsack(ranges);
        if delivery.dsack.is_some() {
            self.episode.dsack_seen = true;
            cx.stats.dsacks_in = cx.stats.dsacks_in.wrapping_add(1);
        }
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        // RFC 7323 §4.3: behind a gap, the echo is that of the last segment in order. After the silence that a loss
        // probe ends, it says nothing.
        let (before, echo) = (self.snd.queue.sacked(), delivery.echo.filter(|_| self.recovery.tlp.is_idle()));
        let mut steps = u32::from(self.episode.sack_steps);
        // End of the last segment of which the acknowledged transmission is not known.
        let mut ambiguous = None;
        for range in ranges {
            // A range that begins below SND.UNA still reports the part above it.
            let start = range.start.max(una);
            let valid =
                range.start.before(range.end) && start.before(range.end) && range.end.at_or_before(nxt);
            if !valid || self.episode.sack_seen.as_slice().contains(range) {
                continue;
            }
            delivery.highest = delivery.highest.max(range.end);
            let (rack, min_rtt, offset) = (&mut self.recovery.rack, self.rtt.min_rtt_nanos(), self.ts_offset);
            let range = SackRange { start, end: range.end };
            let (newest, ahead) = (&mut delivery.newest, &mut delivery.sampled_ahead);
            self.snd.queue.sack(cx.tx, range, &mut steps, |node| {
                let sent = super::ts_clock(node.sent_at, offset);
                let delivered = Delivered {
                    sent_at: node.sent_at,
                    end_seq: node.end(),
                    retransmitted: node.retransmitted(),
                    echo_is_older: echo.is_some_and(|echo| echo.wrapping_sub(sent).cast_signed() < 0),
                };
                if !rack.on_delivered(cx.now, &delivered, min_rtt) {
                    ambiguous = Some(ambiguous.map_or(node.end(), |end: SeqNum| end.max(node.end())));
                }
                if !node.retransmitted() {
                    *ahead = (*ahead).max(Some(node.sent_at));
                }
                newest.on_delivered(node.seq_len(), node.rate, node.sent_at, node.retransmitted());
            });
        }
        if let Some(end) = ambiguous {
            self.note_ambiguous(cx, end);
        }
        // If the steps ran out, the same blocks are processed again when they are reported again.
        self.episode.sack_seen = if steps > 0 { *blocks } else { SackBlocks::EMPTY };
        let saved = u16::try_from(steps).unwrap_or(u16::MAX).saturating_add(SACK_STEPS);
        self.episode.sack_steps = saved.min(SACK_STEPS_SAVED_MAX);
        let newly = self.snd.queue.sacked().saturating_sub(before);
        delivery.newly_sacked = newly;
        delivery.delivered = delivery.delivered.saturating_add(newly);
        // RFC 6675 §2: an acknowledgment that SACKs new data is a duplicate one even if its window differs.
        delivery.duplicate &= newly == 0;
    }

    /// Takes what a SACKed segment that ends at `end` shows, if the acknowledged transmission is not known (RFC 8985
    /// §6.2 step 2 takes nothing): also the first one followed all new segments before it. Otherwise, a probe that is
    /// answered sooner than the least round-trip time would leave the lost flight before it to the timeout.
    #[cold]
    fn note_ambiguous<B: Buf>(&mut self, cx: &Cx<'_, B>, end: SeqNum) {
        let newest = cx.tx.get(self.snd.queue.newest());
        if let Some(node) = newest.filter(|node| !node.retransmitted() && node.end().before(end)) {
            self.recovery.rack.advance(cx.now, node.sent_at, end);
        }
    }

    /// Returns the duplicate that the first block reports, if the cumulative acknowledgment or the second block
    /// covers it (RFC 2883 §4).
    fn dsack(&self, ranges: &[SackRange]) -> Option<SackRange> {
        let (first, rest) = ranges.split_first().filter(|(first, _)| first.start.before(first.end))?;
        let below = first.end.at_or_before(self.snd.una)
            && self.snd.una.distance_from(first.start) <= self.snd.max_wnd.max(1 << 16);
        let inside = rest.first().is_some_and(|second| {
            first.start.at_or_after(second.start) && first.end.at_or_before(second.end)
        });
        (below || inside).then_some(*first)
    }

    /// Takes a round-trip time sample. RFC 6298 §3, Karn's algorithm: a segment that was sent again gives no
    /// sample, except by its timestamp (RFC 7323 §4.1: "only if the segment advances the left edge of the send
    /// window"). SACKed segments give a sample only while the timeout is backed off or there is no other sample:
    /// while a hole is lost again and again, they alone show that the timeout is too long. Otherwise cumulative
    /// samples are better, because they include the delay of acknowledgments.
    fn sample_rtt(&mut self, now: Instant, delivery: &Delivery) -> Option<u64> {
        let echo = delivery.echo.filter(|_| delivery.acked > 0);
        let ahead = delivery.sampled_ahead.filter(|_| self.recovery.backoff > 0 || self.rtt.samples() == 0);
        match (delivery.sampled, echo, ahead) {
            (Some(sent_at), _, _) | (None, None, Some(sent_at)) => {
                Some(self.take_rtt(now, now.nanos_since(sent_at)))
            }
            (None, Some(echo), _) => self.take_echoed_rtt(now, echo),
            (None, None, None) => None,
        }
    }

    /// Takes a sample from an echoed timestamp; returns it in nanoseconds. The clock of timestamps ticks in
    /// milliseconds, so the echo shows the round-trip time to within one: the sample is the time in this range that is
    /// nearest to the smoothed one, which finer measurements have set.
    pub(super) fn take_echoed_rtt(&mut self, now: Instant, echo: u32) -> Option<u64> {
        const TICK: u64 = 1_000_000;
        let elapsed = self.ts_clock(now).wrapping_sub(echo);
        let age = now.nanos_since(self.opened_at) / TICK;
        // An echo of 0, or of a timestamp that we cannot have sent, is ignored.
        let believed = echo != 0 && u64::from(elapsed) <= age.saturating_add(1);
        let ticks = u64::from(elapsed);
        let range =
            (ticks.saturating_sub(1).saturating_mul(TICK), ticks.saturating_add(1).saturating_mul(TICK));
        let nearest = self.rtt.srtt_nanos().map(|srtt| srtt.clamp(range.0, range.1));
        let rtt_ns = nearest.unwrap_or(ticks.max(1).saturating_mul(TICK));
        believed.then(|| self.take_rtt(now, rtt_ns))
    }

    /// RFC 6298 §5: "once a new RTT measurement is obtained [...] the computations outlined in Section 2 are
    /// performed, including the computation of RTO, which may result in "collapsing" RTO back down".
    #[inline]
    pub(super) fn take_rtt(&mut self, now: Instant, rtt_ns: u64) -> u64 {
        self.rtt.sample_nanos(now, rtt_ns);
        self.recovery.backoff = 0;
        rtt_ns
    }

    /// Returns the bytes in the network: RFC 6675's pipe, or without SACK the bytes in flight less one segment per
    /// duplicate acknowledgment.
    pub(super) fn pipe(&self) -> u32 {
        let gone = self.recovery.dup_acks.saturating_mul(self.window.mss);
        self.snd.queue.in_flight().saturating_sub(gone)
    }

    /// Runs loss detection, recovery and congestion control for one acknowledgment.
    fn recover<B: Buf>(&mut self, cx: &mut Cx<'_, B>, delivery: &Delivery, sack: &SackBlocks) {
        let mut delivered = delivery.delivered;
        self.take_echo(cx, delivery.echoed, delivery.acked);
        if self.negotiated.sack {
            self.recovery.rack.on_ack(self.snd.una, self.snd.nxt, delivery.dsack.is_some());
            self.detect_losses(cx);
        } else {
            delivered = self.count_duplicates(cx, delivery);
        }
        let plain = delivery.duplicate && sack.is_empty();
        let dsack_end = delivery.dsack.map(|range| range.end);
        if self.recovery.tlp.on_ack(self.snd.una, dsack_end, plain) == ProbeOutcome::RepairedLoss
            && self.recovery.phase == Phase::Open
        {
            cx.stats.loss_probe_recoveries = cx.stats.loss_probe_recoveries.wrapping_add(1);
            self.episode.undo = Undo::NONE;
            let cwnd = self.window.cwnd;
            self.cc.on_loss(&mut self.window, cwnd);
            self.window.cwnd = self.window.ssthresh;
            self.ecn.on_loss(self.snd.nxt);
            self.cc.on_recovery_exit(&mut self.window);
        }
        let window_is_set = self.undo_if_spurious(cx, delivery);
        let done = self.snd.una.at_or_after(self.episode.point);
        let leaves = self.recovery.in_recovery() && done && delivery.acked > 0;
        if leaves {
            self.leave_recovery();
        }
        if self.recovery.phase == Phase::Open && self.snd.queue.lost() > 0 && !self.only_probe_lost(cx) {
            self.enter_recovery(cx);
        }
        if self.cc.models_path() {
            self.model_path(cx, delivery);
        } else if self.recovery.phase == Phase::Fast {
            let (pipe, ssthresh, mss) = (self.pipe(), self.window.ssthresh, self.window.mss);
            self.window.cwnd = self.episode.prr.on_ack(delivered, pipe, ssthresh, mss).max(mss);
        } else if !leaves && !window_is_set {
            // A reordered segment holds back the cumulative acknowledgment of all that came before it. Once
            // reordering was seen, SACKed bytes count at once.
            let late = self.recovery.rack.reordering_seen();
            let bytes = if late { delivery.delivered } else { delivery.acked };
            if bytes > 0 {
                self.grow_window(cx.now, bytes, delivery.echoed, delivery.rtt_ns);
            }
        }
    }

    /// Grows the congestion window. `rtt_ns` is the round-trip time that the acknowledgment measured.
    #[inline]
    pub(super) fn grow_window(&mut self, now: Instant, acked: u32, echoed: bool, rtt_ns: Option<u64>) {
        // RFC 7661 §4.3, as hosts do: in slow start half the window in use is enough.
        let cwnd = self.window.cwnd;
        let peak = self.snd.peak_flight;
        let cwnd_limited = if self.window.in_slow_start() {
            cwnd < peak.saturating_mul(2)
        } else {
            cwnd <= peak.saturating_add(self.window.mss)
        };
        // RFC 3168 §6.1.2: "SHOULD NOT increase the congestion window in response to the receipt of an ECN-Echo
        // ACK packet".
        let round_ends = self.snd.una.after(self.snd.round_end);
        if cwnd_limited && !echoed {
            let (srtt_ns, reordering) = (self.rtt.srtt_nanos(), self.recovery.rack.reordering_seen());
            let after_timeout = self.recovery.slow_start_after_timeout;
            let sample = AckSample { now, acked, srtt_ns, rtt_ns, reordering, round_ends, after_timeout };
            self.cc.on_ack(&mut self.window, &sample);
            self.recovery.slow_start_after_timeout &= self.window.in_slow_start();
        } else {
            self.cc.on_not_cwnd_limited();
        }
        if round_ends {
            self.snd.round_end = self.snd.nxt;
            self.snd.round_is_new = true;
        }
    }

    /// RACK loss detection (RFC 8985 §6.2 step 5), over the segments in flight in transmission order.
    pub(super) fn detect_losses<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        let recovery = &self.recovery;
        let oldest = cx.tx.get(self.snd.queue.oldest());
        if oldest.is_none_or(|node| !recovery.rack.is_overtaken(node.sent_at, node.end())) {
            // Nothing sent after the oldest segment was delivered, hence nothing sent after the others either.
            self.timers.clear(TimerKind::Reordering);
            return;
        }
        let window = recovery.rack.reordering_window(
            recovery.in_recovery(),
            self.snd.queue.sacked_segments(),
            self.rtt.min_rtt(),
            self.rtt.srtt(),
        );
        // The timer runs for the first remaining segment, and is then set for the next one.
        let (cc, now, sack) = (&mut self.cc, cx.now, self.negotiated.sack);
        let (mut lost, delivered) = (self.snd.queue.lost_ever(), self.rate.delivered());
        let overdue = |node: &TxNode<B>| {
            let deadline = recovery.rack.deadline(node.sent_at, node.end(), window)?;
            if deadline <= now && cc.models_path() {
                let segment = lost_segment(node, now, lost, delivered, sack);
                lost = segment.lost;
                cc.on_segment_lost(&self.window, &segment);
            }
            Some(deadline)
        };
        let again = self.snd.queue.flight_again();
        let next = self.snd.queue.lose_overdue(cx.tx, cx.now, overdue);
        self.count_lost_again(cx, again);
        match next {
            Some(deadline) => {
                self.set_timer(TimerKind::Reordering, cx.now, deadline.saturating_since(cx.now));
            }
            None => self.timers.clear(TimerKind::Reordering),
        }
    }

    /// Counts the retransmissions that were marked lost since `before` were in flight.
    pub(super) fn count_lost_again<B>(&self, cx: &mut Cx<'_, B>, before: u32) {
        let lost = before.saturating_sub(self.snd.queue.flight_again());
        cx.stats.lost_retransmits = cx.stats.lost_retransmits.wrapping_add(lost.into());
    }

    /// Without SACK (RFC 5681 §3.2, RFC 6582 §3.2): counts duplicate acknowledgments, and marks the next segment
    /// lost on a partial acknowledgment. Returns DeliveredData for RFC 6937.
    fn count_duplicates<B: Buf>(&mut self, cx: &mut Cx<'_, B>, delivery: &Delivery) -> u32 {
        let mss = self.window.mss;
        let head = self.snd.queue.head();
        if delivery.acked > 0 {
            let counted = self.recovery.dup_acks.saturating_mul(mss);
            if self.recovery.phase == Phase::Fast {
                let gone = delivery.segments.saturating_sub(1);
                self.recovery.dup_acks = self.recovery.dup_acks.saturating_sub(gone);
                if self.snd.una.before(self.episode.point) {
                    self.lose(cx, head);
                }
            } else {
                // After a timeout all segments are marked lost, and those sent since are in flight.
                self.recovery.dup_acks = 0;
            }
            return delivery.acked.saturating_sub(counted).max(mss.min(delivery.acked));
        }
        // Only segments in flight can cause duplicates: ignore more than that.
        if !delivery.duplicate || self.recovery.dup_acks >= self.snd.queue.flight_segments() {
            return 0;
        }
        self.recovery.dup_acks = self.recovery.dup_acks.saturating_add(1);
        // RFC 6582 §3.2 step 2: "the sender first checks the value of recover to see if the Cumulative
        // Acknowledgment field covers more than recover": duplicates after a recovery may be caused by its unneeded
        // retransmissions.
        let fresh = !self.episode.has_ended || self.snd.una.after(self.episode.point);
        if self.recovery.phase == Phase::Open && self.recovery.dup_acks == DUP_THRESH && fresh {
            self.lose(cx, head);
        }
        mss
    }

    /// Enters fast recovery, or RACK's equivalent (RFC 6675 §5, RFC 8985 §6.2).
    pub(super) fn enter_recovery<B>(&mut self, cx: &mut Cx<'_, B>) {
        let flight = self.snd.nxt.distance_from(self.snd.una);
        self.begin_episode();
        self.recovery.phase = Phase::Fast;
        self.episode.partial_ack = false;
        self.episode.point = self.snd.nxt;
        self.episode.prr = Prr::new(flight);
        self.recovery.tlp.reset();
        self.pending.remove(Pending::LossProbe);
        self.timers.clear(TimerKind::LossProbe);
        if !self.ecn.stands_for_loss(self.snd.una) {
            self.cc.on_loss(&mut self.window, flight);
        }
        self.ecn.on_loss(self.snd.nxt);
        self.counters.recoveries = self.counters.recoveries.wrapping_add(1);
        cx.stats.fast_recoveries = cx.stats.fast_recoveries.wrapping_add(1);
    }

    fn leave_recovery(&mut self) {
        if self.recovery.phase == Phase::Fast && !self.cc.models_path() {
            self.window.cwnd = self.window.ssthresh;
        }
        self.cc.on_recovery_exit(&mut self.window);
        self.recovery.phase = Phase::Open;
        self.episode.f_rto = FRto::Off;
        self.recovery.dup_acks = 0;
        self.episode.has_ended = true;
        self.episode.undo.on_recovery_end(self.snd.nxt);
        self.recovery.rack.on_recovery_end();
    }

    /// Restarts or stops the timers after an acknowledgment of `acked` bytes (RFC 6298 §5.2 and §5.3; RFC 8985
    /// §7.2; RFC 9293 §3.8.6.1). `sacks` is true if it selectively acknowledges more.
    #[inline]
    pub(super) fn rearm_after_ack<B>(&mut self, cx: &Cx<'_, B>, acked: u32, sacks: bool) {
        if self.snd.wnd == 0 && !self.snd.fin_queued {
            // The peer is alive but has no room. Probes of a closed window continue without limit, unless the
            // application has closed and cannot give up itself (RFC 6429).
            self.recovery.attempts = 0;
        }
        if !self.snd.has_outstanding() {
            if !self.ecn.holds() {
                self.timers.clear(TimerKind::Retransmit);
            }
            self.timers.clear_these([TimerKind::LossProbe, TimerKind::Reordering]);
        } else if acked > 0 {
            // RFC 6582 §3.2 step 3, without SACK: "For the first partial ACK that arrives during fast recovery,
            // also reset the retransmit timer": with many holes the timeout is faster.
            let newreno = self.recovery.phase == Phase::Fast && !self.negotiated.sack;
            if !(newreno && self.episode.partial_ack) {
                self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
            }
            self.episode.partial_ack = newreno;
            self.arm_loss_probe(cx);
        } else if sacks {
            self.arm_loss_probe(cx);
        }
    }

    /// True if a loss probe may be sent. Before a recovery, the reordering timer acts on what SACK has shown to be
    /// missing; after a timeout, the timeout itself is repeated.
    #[inline]
    pub(super) fn may_probe_loss(&self) -> bool {
        if self.recovery.phase == Phase::Open {
            return self.snd.queue.sacked_segments() == 0 && self.recovery.tlp.may_probe(self.rtt.samples());
        }
        self.recovery.phase == Phase::Fast
    }

    /// Schedules a loss probe, if something is in flight.
    pub(super) fn arm_loss_probe<B>(&mut self, cx: &Cx<'_, B>) {
        let queue = &self.snd.queue;
        let suitable =
            self.negotiated.sack && queue.flight_segments() > 0 && !self.ecn.holds() && self.may_probe_loss();
        if !suitable {
            self.timers.clear(TimerKind::LossProbe);
            return;
        }
        let max_ack_delay = u64::from(cx.config.tcp.peer_delayed_ack_ms).saturating_mul(1_000_000);
        let lone = queue.flight_segments() == 1;
        let mut timeout =
            TailLossProbe::timeout(self.rtt.srtt_nanos(), self.rtt.samples(), lone, max_ack_delay);
        if self.recovery.tlp.unanswered() > 0 {
            timeout = self.recovery.tlp.backed_off(timeout);
            if timeout >= self.rto_nanos(cx.config) {
                // The timeout, which began with the first probe, comes first.
                self.timers.clear(TimerKind::LossProbe);
                return;
            }
        }
        // RFC 8985 §7.2: "if the time at which an RTO would fire [...] is sooner than the computed time for the
        // PTO, then the sender schedules a TLP to be sent at that RTO time."
        let both = (TimerKind::LossProbe, TimerKind::Retransmit);
        self.timers.set_nanos_within(&mut self.deadlines, both, cx.now, timeout);
    }

    /// Queues [`Notice::Writable`] if the application was refused room and there is enough now.
    #[inline]
    pub(crate) fn note_room<B>(&mut self, cx: &Cx<'_, B>) {
        if self.snd.refused && self.has_room_to_announce(cx.config, cx.config.data_nodes(cx.tx.available())) {
            self.snd.refused = false;
            self.notices.add(Notice::Writable);
        }
    }
}
