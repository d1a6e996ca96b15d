//! What is sent next, and what a segment says.

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

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The SYN, or the SYN and ACK.
    Syn,
    /// A segment of the queue, the first time or again.
    Data {
        /// Its node.
        node: u32,
    },
    /// Only so many bytes of a segment fit: it must be split before.
    Split {
        /// Its node.
        node: u32,
        /// Bytes of the first part.
        len: u16,
        /// What they fit into.
        limit: Limit,
    },
    /// The first bytes of several segments that were never sent, in one packet longer than the path is
    /// known to carry.
    PathProbe {
        /// The first node.
        node: u32,
        /// Bytes of payload.
        len: u16,
    },
    /// One byte into a closed window.
    Probe {
        /// The node that it is of.
        node: u32,
        /// Which byte of its payload.
        offset: u16,
    },
    /// The acknowledgment that was due before the marks of what arrives changed (RFC 8257 §3.2).
    CeChangeAck,
    /// An acknowledgment.
    Ack,
    /// A segment that makes the peer acknowledge.
    Keepalive,
}

/// What makes a segment shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The path's MTU.
    Path,
    /// The peer's window.
    Window,
}

/// Why a new segment is not sent now.
enum Blocked {
    /// By nothing: send it.
    No,
    /// By the congestion window, by Nagle, or by a window that an acknowledgment will open.
    Wait,
    /// By the window, which has room for the first so many bytes; they may go.
    Partly(u16),
}

impl Conn {
    /// Decides what is sent next; `None` when nothing is.
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

    /// The first lost segment, if the congestion window has room for it.
    fn next_retransmission<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<u32> {
        let node = self.snd.queue.first_lost()?;
        let len = cx.tx.get(node)?.seq_len();
        if self.pending.has(Pending::Force) {
            return Some(node);
        }
        if self.episode.f_rto == FRto::NewData {
            return None;
        }
        // What a peer has closed its window to waits for the timer, which asks it one segment at a time.
        let room = self.window.cwnd.saturating_sub(self.pipe());
        (len <= room && self.snd.wnd > 0 && !self.must_wait(cx.now)).then_some(node)
    }

    /// The segment, or its first part when it is longer than the path allows now.
    fn fitted<B>(&self, cx: &Cx<'_, B>, node: u32) -> Frame {
        match cx.tx.get(node) {
            Some(segment) if segment.len > self.snd.emss => {
                Frame::Split { node, len: self.snd.emss, limit: Limit::Path }
            }
            _ => Frame::Data { node },
        }
    }

    /// RFC 8985 §7.3: the next new segment, or the last one again.
    fn next_loss_probe<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> Option<Frame> {
        if !self.pending.has(Pending::LossProbe) {
            return None;
        }
        let fresh = self.snd.queue.unsent();
        if let Some(segment) = cx.tx.get(fresh)
            && segment.seq_len() <= self.usable(segment.seq)
        {
            return Some(self.fitted(cx, fresh));
        }
        let last = self.snd.queue.last_sent(cx.tx);
        match cx.tx.get(last) {
            Some(segment) if segment.state == super::TxState::Flight => Some(Frame::Data { node: last }),
            _ => {
                self.pending.remove(Pending::LossProbe);
                None
            }
        }
    }

    /// The next segment that was never sent, or what the window lets out of it.
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

    /// What of the window lies at `seq` and after it, bytes.
    pub(super) fn usable(&self, seq: SeqNum) -> u32 {
        // Bytes of the segment that probes brought across lie before a closed window, not in it.
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
            let worth = usable >= self.snd.least_worth() || self.pending.has(Pending::Small);
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
        // RFC 9293 §3.7.4: Nagle, which is about small segments: one waits for another, not for full ones, whose
        // acknowledgment the peer may delay as long as it expects more (Minshall). The byte of a window probe is
        // not what it waits for either.
        let small = segment.len < self.snd.emss && !segment.fin;
        let small_unacknowledged = self.snd.queue.has_outstanding() && self.snd.small_end.after(self.snd.una);
        if self.snd.nagle && small && small_unacknowledged {
            return Blocked::Wait;
        }
        Blocked::No
    }

    /// Nothing in flight will open the window, so timers must.
    fn wait_for_window<B>(
        &mut self,
        cx: &Cx<'_, B>,
        node: u32,
        seq: SeqNum,
        len: u16,
        seq_len: u32,
    ) -> Option<Frame> {
        let usable = self.usable(seq);
        if seq_len > usable {
            self.note_window_limit();
        }
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
        // The byte after what the peer has: an earlier probe's may be acknowledged.
        let taken = if self.snd.una.after(seq) { self.snd.una.distance_from(seq) } else { 0 };
        let offset = u16::try_from(taken).unwrap_or(0).min(len.saturating_sub(1));
        Some(Frame::Probe { node, offset })
    }

    /// The header and options of a segment with `len` bytes of payload.
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

    /// The header and options of our SYN.
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
            // With payload only where a full segment's length is not passed.
            let spare = self.snd.emss.saturating_sub(len);
            let sack_len = options.sack.as_slice().len().saturating_mul(8).saturating_add(4);
            if len > 0 && usize::from(spare) < sack_len {
                options.sack = SackBlocks::EMPTY;
            }
        }
        options
    }

    /// A segment was handed to the port: `reported` tells whether it carried what SACK had to tell.
    pub(crate) fn on_header_sent(&mut self, reported: bool, payload: bool) {
        self.segments_out = self.segments_out.wrapping_add(1);
        let silent = payload && !reported && self.negotiated.sack && self.has_sack_to_report();
        if silent {
            // The acknowledgment that carries it is still owed.
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

    /// The SYN was handed to the port.
    pub(crate) fn on_syn_sent(&mut self, cx: &mut Cx<'_, impl Buf>) {
        if self.ecn.on_syn_sent(self.state) {
            cx.stats.ecn_fallbacks = cx.stats.ecn_fallbacks.wrapping_add(1);
        }
        if self.snd.nxt != self.snd.iss {
            // Sent before: which of them is answered cannot be told (RFC 6298 §3).
            self.recovery.attempts = self.recovery.attempts.max(1);
        }
        self.last_sent_at = cx.now;
        self.snd.nxt = self.snd.iss + 1;
        self.pending.remove(Pending::Syn);
        if !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
    }

    /// A segment of the queue was handed to the port.
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
            self.recovery.tlp.on_probe(self.snd.nxt, retransmission, self.rtt.samples());
            cx.stats.loss_probes = cx.stats.loss_probes.wrapping_add(1);
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
            return;
        }
        // RFC 6298 §5.1: "if the timer is not running, start it". When the first segment is sent again, the
        // timeout counts from there: its answer cannot come sooner.
        let newreno = self.recovery.phase == Phase::Fast && !self.negotiated.sack;
        let first_again = again && self.snd.queue.head() == node && !newreno;
        if first_again || !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer_nanos(TimerKind::Retransmit, cx.now, self.rto_nanos(cx.config));
        }
        self.pending.remove(Pending::Force);
        if !retransmission {
            self.arm_loss_probe(cx);
        }
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

    /// A window probe was handed to the port.
    pub(crate) fn on_probe_sent<B>(&mut self, cx: &mut Cx<'_, B>, seq: SeqNum) {
        self.pending.remove(Pending::Probe);
        self.snd.nxt = self.snd.nxt.max(seq + 1);
        cx.stats.window_probes = cx.stats.window_probes.wrapping_add(1);
    }

    /// RFC 5681 §4.1: a connection that sent nothing for a timeout starts again with the initial window.
    pub(crate) fn restart_after_idle(&mut self, now: Instant, config: &StackConfig) {
        let idle = now.nanos_since(self.last_sent_at);
        // No timeout is below its least.
        let short = idle <= u64::from(config.tcp.rto_min_ms).saturating_mul(1_000_000);
        if short || self.snd.queue.has_outstanding() || idle <= self.rto_nanos(config) {
            return;
        }
        let initial = crate::cc::Window::initial(self.window.mss, &config.tcp).cwnd;
        self.episode.undo = Undo::NONE;
        self.recovery.slow_start_after_timeout = false;
        self.cc.on_idle(&mut self.window, initial);
    }

    /// Queues payload that is to be sent as one segment, with its folded sum if the port will not make it; gives the buffer
    /// back when the pool is full.
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
