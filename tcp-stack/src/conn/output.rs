//! The choice of the next segment, its header and options, and the bookkeeping of each transmission.

use super::timeout::SEND_OVERRIDE;
use super::{Conn, Cx, Pending, TxNode};
use crate::buf::Buf;
use crate::config::StackConfig;
use crate::recovery::{FRto, Phase, Undo};
use crate::seq::SeqNum;
use crate::state::State;
use crate::time::{Instant, MilliStamp};
use crate::timer::TimerKind;
use crate::wire::{SackBlocks, SackRange, TcpFlags, TcpHeader, TcpOptions, Timestamps};

/// The next segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The SYN or the SYN-ACK.
    Syn,
    /// A queued segment, new or retransmitted.
    Data {
        /// Node of the segment in the send pool.
        node: u32,
    },
    /// The first `len` bytes of a queued segment, which must be split first.
    Split {
        /// Node of the segment in the send pool.
        node: u32,
        /// Length of the first part, bytes.
        len: u16,
        /// The reason for the split.
        limit: Limit,
    },
    /// A path MTU probe: the first bytes of several new segments in one packet longer than the known path MTU.
    PathProbe {
        /// The first segment's node.
        node: u32,
        /// Length of the payload, bytes.
        len: u16,
    },
    /// A window probe: one byte into a closed window.
    Probe {
        /// Node of the segment in the send pool.
        node: u32,
        /// Offset of the byte in the segment's payload.
        offset: u16,
    },
    /// An acknowledgment of what arrived before the CE marks changed (RFC 8257 §3.2).
    CeChangeAck,
    /// A segment that only acknowledges.
    Ack,
    /// A keepalive probe, which the peer acknowledges.
    Keepalive,
}

/// The limit that shortens a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The path MTU is smaller.
    Path,
    /// The peer's window is smaller.
    Window,
}

/// The reason why a new segment is not sent now.
enum Blocked {
    /// Not blocked: it is sent.
    No,
    /// The congestion window, Nagle, or a window that an acknowledgment will open.
    Wait,
    /// The peer's window, which has room for the first bytes only; these may be sent.
    Partly(u16),
}

impl Conn {
    /// Returns the next segment to send, or `None`.
    pub(crate) fn next_frame<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<Frame> {
        if !self.state.is_synchronized() {
            return match self.state {
                State::Closed => None,
                _ if self.pending.has(Pending::Syn) => Some(Frame::Syn),
                State::SynReceived if self.pending.has(Pending::Ack) => Some(Frame::Ack),
                _ => None,
            };
        }
        if self.ecn.owes_ce_change_ack() {
            return Some(Frame::CeChangeAck);
        }
        if let Some(node) = self.next_retransmission(cx) {
            return Some(self.fitted(cx, node));
        }
        if let Some(frame) = self.next_loss_probe(cx).or_else(|| self.next_new(cx)) {
            return Some(frame);
        }
        if self.pending.has(Pending::Ack) || self.dup_acks_owed > 0 {
            return Some(Frame::Ack);
        }
        self.pending.has(Pending::Keepalive).then_some(Frame::Keepalive)
    }

    /// Returns the first lost segment, if the congestion window has room for it.
    fn next_retransmission<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<u32> {
        let node = self.snd.queue.first_lost(cx.tx)?;
        let len = cx.tx.get(node)?.seq_len();
        if self.pending.has(Pending::Force) {
            return Some(node);
        }
        if self.episode.f_rto == FRto::NewData {
            return None;
        }
        // Into a closed window, only the retransmission timer sends, one segment at a time.
        let room = self.window.cwnd.saturating_sub(self.pipe());
        (len <= room && self.snd.wnd > 0 && !self.must_wait(cx.now)).then_some(node)
    }

    /// Returns the segment, or its first part if it is longer than the path MTU allows.
    fn fitted<B>(&self, cx: &Cx<'_, B>, node: u32) -> Frame {
        match cx.tx.get(node) {
            Some(segment) if segment.len > self.snd.emss => {
                Frame::Split { node, len: self.snd.emss, limit: Limit::Path }
            }
            _ => Frame::Data { node },
        }
    }

    /// Returns the loss probe (RFC 8985 §7.3): the next new segment, or the last one again. In a recovery it is a lost
    /// segment if one waits, and if the last one has arrived, the oldest in flight.
    fn next_loss_probe<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<Frame> {
        if !self.pending.has(Pending::LossProbe) {
            return None;
        }
        if let Some(lost) = self.snd.queue.first_lost(cx.tx) {
            return Some(self.fitted(cx, lost));
        }
        let fresh = self.snd.queue.unsent();
        if let Some(segment) = cx.tx.get(fresh)
            && segment.seq_len() <= self.usable(segment.seq)
        {
            return Some(self.fitted(cx, fresh));
        }
        let places = [self.snd.queue.last_sent(cx.tx), self.snd.queue.oldest()];
        let in_flight =
            |node: &u32| cx.tx.get(*node).is_some_and(|segment| segment.state == super::TxState::Flight);
        let again = places.into_iter().find(in_flight);
        if again.is_none() {
            self.pending.remove(Pending::LossProbe);
        }
        again.map(|node| Frame::Data { node })
    }

    /// Returns the next new segment, or the part of it that the window admits.
    fn next_new<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<Frame> {
        let node = self.snd.queue.unsent();
        let segment = cx.tx.get(node)?;
        match self.blocked(segment) {
            Blocked::No if self.must_wait(cx.now) => None,
            Blocked::No => match self.path_probe_due(cx, node) {
                Some(len) => Some(Frame::PathProbe { node, len }),
                None => Some(self.fitted(cx, node)),
            },
            Blocked::Partly(len) => Some(Frame::Split { node, len, limit: Limit::Window }),
            Blocked::Wait => {
                let (seq, len, seq_len) = (segment.seq, segment.len, segment.seq_len());
                self.wait_for_window(cx, node, seq, len, seq_len)
            }
        }
    }

    /// Returns true if both windows admit a full segment more, and a segment waits to be sent.
    #[inline]
    pub(crate) fn may_send_queued(&self) -> bool {
        let len = u32::from(self.snd.emss);
        self.snd.queue.wants_output()
            && self.pipe().saturating_add(len) <= self.window.cwnd
            && self.usable(self.snd.nxt) >= len
    }

    /// Returns the usable window from `seq` on, bytes.
    pub(super) fn usable(&self, seq: SeqNum) -> u32 {
        // Bytes that window probes carried lie before a closed window, not in it.
        if self.snd.wnd == 0 {
            return 0;
        }
        let edge = self.snd.una + self.snd.wnd;
        if edge.after(seq) { edge.distance_from(seq) } else { 0 }
    }

    fn blocked<B>(&self, segment: &TxNode<B>) -> Blocked {
        let usable = self.usable(segment.seq);
        if segment.seq_len() > usable {
            // RFC 9293 §3.8.6.2.1 (3): "at least a fraction Fs of the maximum window", or (4): "the override
            // timeout occurs".
            let worth = usable >= self.snd.partial_send_min() || self.pending.has(Pending::Small);
            return match u16::try_from(usable) {
                Ok(len) if worth && len > 0 && len < segment.len => Blocked::Partly(len.min(self.snd.emss)),
                _ => Blocked::Wait,
            };
        }
        if self.ecn.holds() {
            return Blocked::Wait;
        }
        let pipe = self.pipe();
        if pipe > 0 && pipe.saturating_add(segment.seq_len()) > self.window.cwnd {
            return Blocked::Wait;
        }
        // RFC 9293 §3.7.4: Nagle with Minshall's modification: a small segment waits only for another small one. A
        // full segment does not delay it, because the peer may delay that acknowledgment while it expects more
        // data. The byte of a window probe does not delay it either.
        let small = segment.len < self.snd.emss && !segment.fin;
        let small_unacknowledged = self.snd.queue.has_outstanding() && self.snd.small_end.after(self.snd.una);
        if self.snd.nagle && small && small_unacknowledged {
            return Blocked::Wait;
        }
        Blocked::No
    }

    /// Starts the timers that end the wait if nothing in flight will open the window. Returns a window probe if one
    /// is due.
    fn wait_for_window<B>(
        &mut self,
        cx: &Cx<'_, B>,
        node: u32,
        seq: SeqNum,
        len: u16,
        seq_len: u32,
    ) -> Option<Frame> {
        let usable = self.usable(seq);
        if seq_len <= usable || self.snd.queue.has_outstanding() {
            return None;
        }
        if self.snd.wnd > 0 && usable > 0 {
            if !self.timers.is_set(TimerKind::SendOverride) {
                self.set_timer(TimerKind::SendOverride, cx.now, SEND_OVERRIDE);
            }
            return None;
        }
        if !self.pending.has(Pending::Probe) {
            self.arm_persist(cx);
            return None;
        }
        if seq_len <= 1 {
            return Some(Frame::Data { node });
        }
        // The first byte that is not acknowledged: an earlier probe's byte may be.
        let taken = if self.snd.una.after(seq) { self.snd.una.distance_from(seq) } else { 0 };
        let offset = u16::try_from(taken).unwrap_or(0).min(len.saturating_sub(1));
        Some(Frame::Probe { node, offset })
    }

    /// Returns the header and options of a segment with `len` bytes of payload.
    pub(crate) fn header<B>(
        &mut self,
        cx: &Cx<'_, B>,
        seq: SeqNum,
        flags: TcpFlags,
        len: u16,
    ) -> (TcpHeader, TcpOptions) {
        let options = self.options_for(cx, len);
        let window = self.offer_window(cx, true);
        let mut header = self.header_with(seq, flags | self.ecn.echo(), window);
        if self.snd.urgent {
            self.emit_urgent(&mut header, seq);
        }
        (header, options)
    }

    /// Returns the header and options of our SYN or SYN-ACK.
    pub(crate) fn syn_header<B>(&mut self, cx: &Cx<'_, B>) -> (TcpHeader, TcpOptions) {
        let flags = match self.state {
            State::SynReceived => TcpFlags::SYN | TcpFlags::ACK,
            _ => TcpFlags::SYN,
        };
        let window = self.offer_window(cx, false);
        let flags = flags | self.ecn.syn_flags(self.state);
        let mut header = self.header_with(self.snd.iss, flags, window);
        if self.state != State::SynReceived {
            header.ack = SeqNum::new(0);
        }
        (header, self.syn_options(cx.config, cx.now))
    }

    pub(super) fn header_with(&self, seq: SeqNum, flags: TcpFlags, window: u16) -> TcpHeader {
        TcpHeader {
            src_port: self.local().port(),
            dst_port: self.remote().port(),
            seq,
            ack: self.rcv.nxt,
            flags,
            window,
            urgent: 0,
        }
    }

    fn options_for<B>(&self, cx: &Cx<'_, B>, len: u16) -> TcpOptions {
        let timestamps = self
            .negotiated
            .timestamps
            .then(|| Timestamps { value: self.ts_clock(cx.now), echo: self.rcv.ts_recent });
        let mut options = TcpOptions { timestamps, ..TcpOptions::NONE };
        let wanted = self.negotiated.sack && (self.rcv.dsack().is_some() || !self.rcv.held.has_no_gap());
        if wanted {
            options.sack = self.sack_blocks(cx);
            // Segments with payload carry SACK blocks only if they stay within a full segment's length.
            let spare = self.snd.emss.saturating_sub(len);
            let sack_len = options.sack.as_slice().len().saturating_mul(8).saturating_add(4);
            if len > 0 && usize::from(spare) < sack_len {
                options.sack = SackBlocks::EMPTY;
            }
        }
        options
    }

    /// Notes that a segment was handed to the port. `reported` is true if it carried the SACK blocks, `payload` if
    /// it carried data.
    pub(crate) fn on_header_sent(&mut self, reported: bool, payload: bool) {
        self.segments_out = self.segments_out.wrapping_add(1);
        let lacks_sack = payload && !reported && self.negotiated.sack && self.has_sack_to_report();
        if lacks_sack {
            // The acknowledgment with the SACK blocks is still owed.
            self.rcv.last_ack_sent = self.rcv.nxt;
            return;
        }
        self.rcv.dsack = SackRange::default();
        let owed = self.pending.take(Pending::Ack);
        if !owed && !payload {
            self.dup_acks_owed = self.dup_acks_owed.saturating_sub(1);
        }
        self.on_ack_sent();
    }

    pub(super) fn has_sack_to_report(&self) -> bool {
        self.rcv.dsack().is_some() || !self.rcv.held.has_no_gap()
    }

    /// Notes that the SYN or SYN-ACK was handed to the port.
    pub(crate) fn on_syn_sent(&mut self, cx: &mut Cx<'_, impl Buf>) {
        if self.ecn.on_syn_sent(self.state) {
            cx.stats.ecn_fallbacks = cx.stats.ecn_fallbacks.wrapping_add(1);
        }
        if self.snd.nxt != self.snd.iss {
            // It was sent before: nobody knows which one the peer will answer (RFC 6298 §3).
            self.recovery.attempts = self.recovery.attempts.max(1);
        }
        self.last_sent_at = cx.now;
        self.snd.nxt = self.snd.iss + 1;
        self.pending.remove(Pending::Syn);
        if !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
    }

    /// Notes that a queued segment was handed to the port.
    pub(crate) fn on_data_sent<B: Buf>(&mut self, cx: &mut Cx<'_, B>, node: u32) {
        let Some(segment) = cx.tx.get(node) else { return };
        let (len, seq_len, end) = (segment.len, segment.seq_len(), segment.end());
        let again = segment.transmissions > 0;
        let retransmission = segment.state != super::TxState::Ready;
        let stamp = self.note_departure(cx, seq_len);
        if let Some(segment) = cx.tx.get_mut(node) {
            segment.rate = stamp;
        }
        if retransmission && self.recovery.in_recovery() {
            self.episode.undo.on_retransmission(end, self.ts_clock(cx.now));
        }
        if self.recovery.phase == Phase::Fast {
            self.episode.prr.on_sent(seq_len);
        }
        self.count_sent(cx, len, again);
        self.snd.queue.mark_sent(cx.tx, node, cx.now);
        self.snd.nxt = self.snd.nxt.max(end);
        if !again && len < self.snd.emss {
            self.snd.small_end = end;
        }
        self.last_sent_at = cx.now;
        self.snd.note_flight();
        self.pending.remove(Pending::Small);
        self.pending.remove(Pending::Probe);
        self.timers.clear(TimerKind::SendOverride);
        self.timers.clear(TimerKind::Persist);
        if self.pending.take(Pending::LossProbe) {
            self.on_loss_probe_sent(cx, retransmission);
            return;
        }
        // RFC 6298 §5.1: "if the timer is not running, start it". If the first segment is retransmitted, the
        // timeout restarts: its acknowledgment cannot arrive sooner.
        let newreno = self.recovery.phase == Phase::Fast && !self.negotiated.sack;
        let first_again = again && self.snd.queue.head() == node && !newreno;
        if first_again || !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
        self.pending.remove(Pending::Force);
        if !retransmission || self.recovery.phase == Phase::Fast {
            self.arm_loss_probe(cx);
        }
    }

    /// Notes that a loss probe was sent. The first one restarts the retransmission timer (RFC 8985 §7.3: "MUST re-arm
    /// the RTO timer"), the others must be answered before it expires.
    fn on_loss_probe_sent<B: Buf>(&mut self, cx: &mut Cx<'_, B>, retransmission: bool) {
        let may_repair = retransmission && self.recovery.phase == Phase::Open;
        self.recovery.tlp.on_probe(self.snd.nxt, may_repair, self.rtt.samples());
        cx.stats.loss_probes = cx.stats.loss_probes.wrapping_add(1);
        if self.recovery.tlp.unanswered() == 1 {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
        self.arm_loss_probe(cx);
    }

    fn count_sent<B>(&mut self, cx: &mut Cx<'_, B>, len: u16, again: bool) {
        let bytes = u64::from(len);
        if again {
            self.counters.segments_retransmitted = self.counters.segments_retransmitted.wrapping_add(1);
            self.counters.bytes_retransmitted = self.counters.bytes_retransmitted.wrapping_add(bytes);
            cx.stats.retransmits = cx.stats.retransmits.wrapping_add(1);
            cx.stats.bytes_retransmitted = cx.stats.bytes_retransmitted.wrapping_add(bytes);
        } else {
            cx.stats.data_segments_out = cx.stats.data_segments_out.wrapping_add(1);
            cx.stats.bytes_out = cx.stats.bytes_out.wrapping_add(bytes);
        }
    }

    /// Notes that a window probe was handed to the port.
    pub(crate) fn on_probe_sent<B>(&mut self, cx: &mut Cx<'_, B>, seq: SeqNum) {
        self.pending.remove(Pending::Probe);
        self.snd.nxt = self.snd.nxt.max(seq + 1);
        cx.stats.window_probes = cx.stats.window_probes.wrapping_add(1);
    }

    /// RFC 5681 §4.1: restarts from the initial window if nothing was sent for a retransmission timeout.
    pub(crate) fn restart_after_idle(&mut self, now: Instant, config: &StackConfig) {
        let idle = now.nanos_since(self.last_sent_at);
        // No retransmission timeout is shorter than the minimum.
        let short = idle <= u64::from(config.tcp.rto_min_ms).saturating_mul(1_000_000);
        if short || self.snd.queue.has_outstanding() || idle <= self.rto_nanos(config) {
            return;
        }
        let initial = crate::cc::CongestionWindow::initial(self.window.mss, &config.tcp).cwnd;
        self.episode.undo = Undo::NONE;
        self.recovery.slow_start_after_timeout = false;
        self.cc.on_idle(&mut self.window, initial);
    }

    /// Queues payload to be sent as one segment, with its folded sum if the port does not compute checksums.
    /// Returns the buffer if the pool is full.
    #[inline(always)]
    pub(crate) fn enqueue<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        len: u16,
        buf: B,
        sum: Option<u16>,
    ) -> Result<(), B> {
        if self.snd.queue.is_empty() {
            self.snd.progress_at = MilliStamp::of(cx.now);
            self.restart_after_idle(cx.now, cx.config);
        }
        self.note_queueing();
        match self.snd.queue.push(cx.tx, self.snd.end, len, false, (Some(buf), sum)) {
            Ok(_) => {
                self.snd.end += u32::from(len);
                Ok(())
            }
            Err(Some(buf)) => Err(buf),
            Err(None) => Ok(()),
        }
    }
}
