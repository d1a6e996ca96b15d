//! SYN-RECEIVED, and how a connection becomes established.

use core::time::Duration;

use super::{Conn, Cx, Incoming, Notice, Outcome, Pending};
use crate::buf::Buf;
use crate::iface::DropReason;
use crate::recovery::SYN_SAMPLE_MAX;
use crate::state::State;
use crate::time::{Instant, LongStamp, MilliStamp};
use crate::timer::TimerKind;
use crate::wire::{TcpFlags, TcpHeader, TcpOptions};

/// [`Recovery::attempts`](crate::recovery::Recovery::attempts) of a connection whose SYN-ACK nobody knows the time of: it was a cookie.
pub(crate) const NOT_TIMED: u8 = u8::MAX;

impl Conn {
    /// RFC 9293 §3.10.7.4, fifth: "If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state";
    /// `None` to go on with the segment.
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

    /// The SYN of the connection came again: so does our answer.
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

    /// RFC 9293 §3.5, figure 8, line 6: both opened at once, and the peer's answer to our SYN repeats its
    /// own, so that its sequence number is old while its ACK is not.
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
        self.heard(cx.now);
        self.ecn.on_syn(segment.header.flags, segment.ecn);
        self.sample_handshake(cx.now, &segment.options);
        self.become_established(cx, &segment.header);
        // What the peer sent behind its SYN, it sends again.
        self.pending.add(Pending::Ack);
        Outcome::Accepted
    }

    /// Both SYNs are acknowledged; `header` is of the segment that showed it.
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

    /// RFC 6298 §5.7 and RFC 9293 §3.8.1: the handshake gives the first sample, unless our SYN was sent
    /// more than once and no timestamp tells which one was answered. Where that is not the last one, either the way is long
    /// or the answer was lost, and what came in its place bears the same echo, however late: it does not count for
    /// more than what makes the timeout three seconds.
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
                let told = Duration::from_millis(u64::from(elapsed.max(1)));
                self.rtt.sample(now, told.min(SYN_SAMPLE_MAX));
            }
        }
        if self.recovery.attempts > 0 {
            // RFC 5681 §3.1: after a lost SYN the window begins with one segment; RFC 6298 §5.7: and the
            // timeout with three seconds, unless a timestamp has told better.
            self.window.cwnd = self.window.mss;
            self.rtt.on_syn_lost();
        }
    }

    /// Something came from the peer that it alone can have sent.
    #[inline]
    pub(super) fn heard(&mut self, now: Instant) {
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
