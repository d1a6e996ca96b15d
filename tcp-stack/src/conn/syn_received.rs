//! SYN-RECEIVED, and the transition to ESTABLISHED.

use core::time::Duration;

use super::{Conn, Cx, Incoming, Notice, Outcome, Pending};
use crate::buf::Buf;
use crate::iface::DropReason;
use crate::recovery::SYN_SAMPLE_MAX;
use crate::state::State;
use crate::time::{Instant, LongStamp, MilliStamp};
use crate::timer::TimerKind;
use crate::wire::{TcpFlags, TcpHeader, TcpOptions};

/// Value of [`Recovery::attempts`](crate::recovery::Recovery::attempts) for a connection opened by a cookie: the
/// time of the SYN-ACK is unknown.
pub(crate) const NOT_TIMED: u8 = u8::MAX;

impl Conn {
    /// RFC 9293 §3.10.7.4, fifth: "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state". Returns `None`
    /// to continue with the segment.
    pub(super) fn leave_syn_received<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        segment: &Incoming<B>,
    ) -> Option<Outcome> {
        let header = &segment.header;
        if !header.ack.after(self.snd.una) || header.ack.after(self.snd.nxt) {
            return Some(Outcome::Answered(DropReason::TcpBadAck, self.reset_for_ack(header)));
        }
        self.sample_handshake(cx.now, &segment.options);
        self.become_established(cx, header);
        None
    }

    /// True if the segment repeats the connection's SYN; then queues our SYN-ACK again.
    pub(super) fn is_repeated_syn<B>(&mut self, segment: &Incoming<B>) -> bool {
        let flags = segment.header.flags;
        let repeated = self.state == State::SynReceived
            && flags.contains(TcpFlags::SYN)
            && !flags.contains(TcpFlags::RST)
            && segment.header.seq == self.rcv.irs;
        if repeated {
            self.pending.add(Pending::Syn);
            self.ecn.on_syn(flags, segment.ecn);
        }
        repeated
    }

    /// True for the peer's SYN-ACK in a simultaneous open (RFC 9293 §3.5, figure 8, line 6): it repeats the SYN's
    /// sequence number, which is old, but its ACK is new.
    pub(super) fn is_crossing_syn_ack<B>(&self, segment: &Incoming<B>) -> bool {
        let header = &segment.header;
        self.state == State::SynReceived
            && header.flags.contains(TcpFlags::SYN | TcpFlags::ACK)
            && !header.flags.contains(TcpFlags::RST)
            && header.seq == self.rcv.irs
            && header.ack.after(self.snd.una)
            && header.ack.at_or_before(self.snd.nxt)
    }

    pub(super) fn on_crossing_syn_ack<B: Buf>(
        &mut self,
        cx: &mut Cx<'_, B>,
        segment: &Incoming<B>,
    ) -> Outcome {
        self.note_heard(cx.now);
        self.ecn.on_syn(segment.header.flags, segment.ecn);
        self.sample_handshake(cx.now, &segment.options);
        self.become_established(cx, &segment.header);
        // The peer retransmits what it sent behind its SYN.
        self.pending.add(Pending::Ack);
        Outcome::Accepted
    }

    /// Enters ESTABLISHED; `header` is that of the segment that acknowledged our SYN.
    pub(super) fn become_established<B>(&mut self, cx: &mut Cx<'_, B>, header: &TcpHeader) {
        self.state = State::Established;
        self.announced = true;
        self.notices.add(Notice::Opened);
        self.pending.remove(Pending::Syn);
        self.recovery.attempts = 0;
        self.timers.clear(TimerKind::Retransmit);
        let snd = &mut self.snd;
        // RFC 7323 §2.2: "The window field in a segment where the SYN bit is set [...] MUST NOT be scaled".
        let shift = if header.flags.contains(TcpFlags::SYN) { 0 } else { self.negotiated.snd_wscale };
        snd.wnd = u32::from(header.window) << shift;
        snd.max_wnd = snd.max_wnd.max(snd.wnd);
        snd.wl1 = header.seq;
        snd.una = snd.iss + 1;
        snd.nxt = snd.nxt.max(snd.una);
        snd.progress_at = MilliStamp::of(cx.now);
        self.episode.point = snd.una;
        self.recovery.backoff = 0;
        cx.stats.established = cx.stats.established.wrapping_add(1);
        cx.stats.ecn_negotiated = cx.stats.ecn_negotiated.wrapping_add(u64::from(self.ecn.is_on()));
        self.start_pace(cx);
        self.arm_keepalive(cx.now);
        self.note_room(cx);
        if self.snd.close_when_open {
            self.close(cx);
        }
    }

    /// Takes the first round-trip time sample from the handshake (RFC 6298 §5.7 and RFC 9293 §3.8.1), unless our
    /// SYN was sent more than once and no timestamp identifies the one that was answered. If an earlier one was
    /// answered, either the path is long or the answer was lost; in that case the repeated answer carries the same
    /// echo, however late. Such a sample is therefore limited to the value that makes the timeout three seconds.
    pub(super) fn sample_handshake(&mut self, now: Instant, options: &TcpOptions) {
        if self.recovery.attempts == NOT_TIMED {
            return;
        }
        if self.recovery.attempts == 0 {
            self.rtt.sample(now, now.saturating_since(self.last_sent_at));
        } else if let Some(ts) = options.timestamps.filter(|_| self.negotiated.timestamps) {
            let elapsed = self.ts_clock(now).wrapping_sub(ts.echo);
            let age = now.saturating_since(self.opened_at).as_millis();
            if u128::from(elapsed) <= age.saturating_add(1) {
                let echoed = Duration::from_millis(u64::from(elapsed.max(1)));
                self.rtt.sample(now, echoed.min(SYN_SAMPLE_MAX));
            }
        }
        if self.recovery.attempts > 0 {
            // RFC 5681 §3.1: after a lost SYN the congestion window begins with one segment; RFC 6298 §5.7: and the
            // timeout with three seconds, unless a timestamp gave a sample.
            self.window.cwnd = self.window.mss;
            self.rtt.on_syn_lost();
        }
    }

    /// Notes the arrival of a segment that only the peer can have sent.
    #[inline]
    pub(super) fn note_heard(&mut self, now: Instant) {
        self.heard_at = LongStamp::of(now);
        self.keepalive_probes = 0;
    }

    pub(super) fn arm_keepalive(&mut self, now: Instant) {
        if let Some(keepalive) = self.settings.keepalive() {
            let idle = Duration::from_millis(u64::from(keepalive.idle_ms));
            self.set_timer(TimerKind::Keepalive, now, idle);
        }
    }
}
