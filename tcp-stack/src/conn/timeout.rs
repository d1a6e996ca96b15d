//! Timer expirations of a connection, and ICMP errors about its segments.

use core::time::Duration;

use super::{Conn, Cx, Pending};
use crate::buf::Buf;
use crate::config::StackConfig;
use crate::error::CloseReason;
use crate::iface::{IcmpError, IcmpErrorKind};
use crate::pool::NIL;
use crate::recovery::Phase;
use crate::state::State;
use crate::time::Instant;
use crate::timer::TimerKind;

/// The override timeout of silly window avoidance: how long a part of a segment waits for a larger window (RFC 9293
/// §3.8.6.2.1: "0.1 - 1.0 seconds").
pub(super) const SEND_OVERRIDE: Duration = Duration::from_millis(200);

impl Conn {
    /// Returns the retransmission timeout with backoff (RFC 6298 §5.5: "RTO <- RTO * 2").
    pub(crate) fn rto(&self, config: &StackConfig) -> Duration {
        Duration::from_nanos(self.rto_nanos(config))
    }

    /// Same as [`Self::rto`], in nanoseconds.
    #[inline]
    pub(crate) fn rto_nanos(&self, config: &StackConfig) -> u64 {
        let (min, max) = config.tcp.rto_bounds_nanos();
        if self.recovery.backoff == 0 {
            return self.rtt.rto_nanos(min, max);
        }
        let doubled = 1_u32.checked_shl(u32::from(self.recovery.backoff)).unwrap_or(u32::MAX);
        self.rtt.rto_nanos(min, max).saturating_mul(doubled.into()).min(max)
    }

    /// Handles the expiration of a timer.
    pub(crate) fn on_timer<B: Buf>(&mut self, cx: &mut Cx<'_, B>, kind: TimerKind) {
        match kind {
            TimerKind::Retransmit if self.state.is_synchronized() => self.on_retransmit_timeout(cx),
            TimerKind::Retransmit => self.on_syn_timeout(cx),
            TimerKind::LossProbe => {
                // RFC 8985 §7.3.
                if self.may_probe_loss() {
                    self.pending.add(Pending::LossProbe);
                }
            }
            TimerKind::Reordering => {
                self.detect_losses(cx);
                let lost = self.recovery.phase == Phase::Open && self.snd.queue.lost() > 0;
                if lost && !self.only_probe_lost(cx) {
                    self.enter_recovery(cx);
                    if !self.cc.models_path() {
                        let (pipe, mss) = (self.pipe(), self.window.mss);
                        let reduced = self.episode.prr.on_ack(0, pipe, self.window.ssthresh, mss);
                        self.window.cwnd = reduced.max(mss);
                    }
                }
            }
            TimerKind::Persist => self.on_persist_timeout(cx),
            TimerKind::SendOverride => self.pending.add(Pending::Small),
            TimerKind::DelayedAck => self.pending.add(Pending::Ack),
            TimerKind::Keepalive => self.on_keepalive_timeout(cx),
            TimerKind::FinWait2 => self.on_fin_wait_2_timeout(cx),
            // The connection is queued for output by its caller.
            TimerKind::Pacing => {}
        }
    }

    /// Retransmits the SYN or SYN-ACK, or gives up (RFC 6298 §5.4 to §5.7).
    fn on_syn_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if self.recovery.attempts >= cx.config.tcp.syn_retries || self.user_timeout_passed(cx) {
            self.finish(
                cx,
                if self.snd.soft_error { CloseReason::Unreachable } else { CloseReason::TimedOut },
            );
            return;
        }
        self.recovery.attempts = self.recovery.attempts.saturating_add(1);
        self.recovery.backoff = self.recovery.backoff.saturating_add(1);
        self.pending.add(Pending::Syn);
        cx.stats.timeouts = cx.stats.timeouts.wrapping_add(1);
        self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
    }

    fn on_retransmit_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        let was_held = self.ecn.release();
        if !self.snd.queue.has_outstanding() {
            if !was_held {
                self.on_nothing_sent(cx);
            }
            return;
        }
        let unanswered = self.recovery.tlp.unanswered();
        if unanswered == 0 && self.timers.is_due(&self.deadlines, TimerKind::LossProbe, cx.now) {
            // RFC 8985 §7.2: the probe goes first, and the timeout follows it.
            self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
            return;
        }
        if self.give_up(cx) {
            return;
        }
        cx.stats.timeouts = cx.stats.timeouts.wrapping_add(1);
        self.counters.timeouts = self.counters.timeouts.wrapping_add(1);
        self.start_f_rto();
        if self.recovery.phase == Phase::Open {
            self.begin_episode();
        }
        if self.recovery.phase == Phase::Open && !self.ecn.stands_for_loss(self.snd.una) {
            // RFC 5681 §3.1 (4): once, not when the same segment times out again.
            let flight = self.snd.nxt.distance_from(self.snd.una);
            self.cc.on_loss(&mut self.window, flight);
        }
        self.cc.on_timeout(&mut self.window);
        self.ecn.on_loss(self.snd.nxt);
        self.recovery.phase = Phase::Loss;
        self.recovery.slow_start_after_timeout = true;
        self.episode.point = self.snd.nxt;
        self.recovery.dup_acks = 0;
        self.recovery.tlp.reset();
        self.mark_lost_on_timeout(cx);
        self.suspect_path(cx, self.recovery.backoff.saturating_add(1));
        self.pending.add(Pending::Force);
        self.pending.remove(Pending::LossProbe);
        self.timers.clear(TimerKind::LossProbe);
        self.timers.clear(TimerKind::Reordering);
        self.recovery.backoff = self.recovery.backoff.saturating_add(1);
        self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
    }

    /// Handles a retransmission timeout with nothing outstanding. Either only a window probe's byte is, which the
    /// persist timer handles, or the neighbor did not answer and nothing could be sent.
    fn on_nothing_sent<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if self.snd.queue.is_empty() {
            return;
        }
        if self.snd.wnd == 0 {
            self.arm_persist(cx);
        } else if !self.give_up(cx) {
            self.recovery.backoff = self.recovery.backoff.saturating_add(1);
            self.set_timer(TimerKind::Retransmit, cx.now, self.rto(cx.config));
        }
    }

    /// Starts the retransmission timer because a segment could not be sent: the neighbor's link address is not
    /// known. If the neighbor is `unreachable`, because it has not answered three requests, a connection that is being
    /// opened may end with the timer, at once ([`TcpConfig::syn_needs_neighbor`](crate::TcpConfig)). For one that is
    /// open this is a soft error (RFC 9293 §3.9.2.2).
    pub(crate) fn on_no_neighbor(&mut self, now: Instant, config: &StackConfig, unreachable: bool) {
        self.snd.soft_error |= unreachable;
        if unreachable && config.tcp.syn_needs_neighbor && self.state == State::SynSent {
            self.recovery.attempts = config.tcp.syn_retries;
            self.set_timer(TimerKind::Retransmit, now, Duration::ZERO);
            return;
        }
        let waits =
            self.pending.has(Pending::Syn) || self.snd.queue.unsent() != NIL || self.snd.queue.lost() > 0;
        if waits && !self.timers.is_set(TimerKind::Retransmit) {
            self.set_timer(TimerKind::Retransmit, now, self.rto(config));
        }
    }

    /// Marks the first segment lost and those sent long enough ago (RFC 8985 §6.3); without SACK all of them (RFC
    /// 5681 §3.1).
    fn mark_lost_on_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        let queue = &mut self.snd.queue;
        let head_sacked = cx.tx.get(queue.head()).is_some_and(|node| node.state == super::TxState::Sacked);
        if head_sacked {
            // RFC 2018 §8: "the data sender MUST [...] turn off all of the SACKed bits" when the receiver
            // has discarded what it reported.
            let reneged = queue.renege(cx.tx);
            self.episode.sack_seen = crate::wire::SackBlocks::EMPTY;
            cx.stats.sack_reneged = cx.stats.sack_reneged.wrapping_add(u64::from(reneged));
        }
        let window = self.recovery.rack.reordering_window(
            true,
            queue.sacked_segments(),
            self.rtt.min_rtt(),
            self.rtt.srtt(),
        );
        let (head, again) = (queue.head(), queue.flight_again());
        let all = !self.negotiated.sack;
        let mut index = queue.oldest();
        while let Some(node) = cx.tx.get(index) {
            let newer = self.snd.queue.newer(cx.tx, index);
            let overdue = self.recovery.rack.overdue(node.sent_at, window) <= cx.now;
            if index == head || all || overdue {
                self.lose(cx, index);
            }
            index = newer;
        }
        self.count_lost_again(cx, again);
    }

    /// Ends the connection if R2 (RFC 9293 §3.8.3) or the user timeout (§3.9.1.8) is exceeded; returns true then.
    fn give_up<B: Buf>(&mut self, cx: &mut Cx<'_, B>) -> bool {
        if self.window_stays_closed(cx) {
            cx.stats.window_never_opened = cx.stats.window_never_opened.wrapping_add(1);
            self.finish(cx, CloseReason::TimedOut);
            return true;
        }
        if self.recovery.attempts < cx.config.tcp.data_retries && !self.user_timeout_passed(cx) {
            self.recovery.attempts = self.recovery.attempts.saturating_add(1);
            return false;
        }
        self.finish(cx, if self.snd.soft_error { CloseReason::Unreachable } else { CloseReason::TimedOut });
        true
    }

    /// True if the peer has kept its window closed for `zero_window_ms`. Such a peer acknowledges probes but pins
    /// what is queued (RFC 6429 §3).
    fn window_stays_closed<B>(&self, cx: &Cx<'_, B>) -> bool {
        let limit = cx.config.tcp.zero_window_ms;
        let waited = self.snd.progress_at.age(cx.now);
        limit > 0 && self.snd.wnd == 0 && waited >= Duration::from_millis(u64::from(limit))
    }

    fn user_timeout_passed<B>(&self, cx: &Cx<'_, B>) -> bool {
        self.settings.user_timeout().is_some_and(|limit| self.snd.progress_at.age(cx.now) >= limit)
    }

    /// Starts the persist timer. The first probe follows after a retransmission timeout, the next ones at
    /// exponentially growing intervals (RFC 9293 §3.8.6.1).
    pub(super) fn arm_persist<B>(&mut self, cx: &Cx<'_, B>) {
        if !self.timers.is_set(TimerKind::Persist) {
            self.set_timer(TimerKind::Persist, cx.now, self.rto(cx.config));
        }
    }

    fn on_persist_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if self.snd.wnd > 0 || self.snd.queue.is_empty() || self.give_up(cx) {
            return;
        }
        self.recovery.backoff = self.recovery.backoff.saturating_add(1);
        self.pending.add(Pending::Probe);
        self.set_timer(TimerKind::Persist, cx.now, self.rto(cx.config));
    }

    fn on_keepalive_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        let Some(keepalive) = self.settings.keepalive() else { return };
        if matches!(self.state, State::SynSent | State::SynReceived | State::Closed) {
            return;
        }
        let idle = Duration::from_millis(u64::from(keepalive.idle_ms));
        let silent = self.heard_at.age(cx.now);
        if self.keepalive_probes == 0 && silent < idle {
            // Received segments do not restart the timer; it restarts itself.
            self.set_timer(TimerKind::Keepalive, cx.now, idle.saturating_sub(silent));
            return;
        }
        let interval = Duration::from_millis(u64::from(keepalive.interval_ms));
        self.set_timer(TimerKind::Keepalive, cx.now, interval);
        // RFC 9293 §3.8.4: "Keep-alive packets MUST only be sent when no sent data is outstanding".
        if self.snd.has_outstanding() {
            return;
        }
        if self.keepalive_probes >= keepalive.probes {
            self.finish(cx, CloseReason::TimedOut);
            return;
        }
        self.keepalive_probes = self.keepalive_probes.saturating_add(1);
        self.pending.add(Pending::Keepalive);
    }

    /// Starts the FIN-WAIT-2 timer: the peer's FIN must follow within a bounded time of its last byte.
    pub(super) fn arm_fin_wait_2<B>(&mut self, cx: &Cx<'_, B>) {
        let limit = cx.config.tcp.fin_wait_2_ms;
        if self.state == State::FinWait2 && limit > 0 {
            self.set_timer(TimerKind::FinWait2, cx.now, Duration::from_millis(u64::from(limit)));
        }
    }

    fn on_fin_wait_2_timeout<B: Buf>(&mut self, cx: &mut Cx<'_, B>) {
        if self.rcv.unread > 0 {
            // Our closed window may keep the peer silent.
            self.arm_fin_wait_2(cx);
        } else if self.state == State::FinWait2 {
            self.finish(cx, CloseReason::TimedOut);
        }
    }

    /// Handles an ICMP error about a segment of ours. RFC 5927: it is believed only about data in flight, and never
    /// ends an established connection. Returns true if it was believed.
    pub(crate) fn on_icmp<B: Buf>(&mut self, cx: &mut Cx<'_, B>, error: &IcmpError) -> bool {
        let IcmpError { seq, packet_len, kind, .. } = *error;
        if seq.before(self.snd.una) || !seq.before(self.snd.nxt) || self.state == State::Closed {
            return false;
        }
        match kind {
            // §5.2: "treat hard errors as soft when in a synchronized state".
            IcmpErrorKind::Hard if !self.state.is_synchronized() => {
                self.finish(cx, CloseReason::Unreachable);
            }
            IcmpErrorKind::Hard | IcmpErrorKind::Soft => self.snd.soft_error = true,
            IcmpErrorKind::PacketTooBig { mtu } => return self.on_too_big(cx, seq, packet_len, mtu),
        }
        true
    }
}
