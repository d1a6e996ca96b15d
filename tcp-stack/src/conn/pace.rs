//! Delivery rate samples and pacing of a connection.

use super::ack::Delivery;
use super::{Conn, Cx, TxNode, TxState};
use crate::cc::{CongestionWindow, LostSegment, PathSample};
use crate::pool::NIL;
use crate::recovery::RateStamp;
use crate::time::Instant;
use crate::timer::TimerKind;

impl Conn {
    /// True if pacing delays the next segment; then sets the timer that ends the wait.
    #[inline]
    pub(super) fn must_wait(&mut self, now: Instant) -> bool {
        let due = self.pacer.wait(now);
        if let Some(due) = due {
            self.set_timer(TimerKind::Pacing, now, due.saturating_since(now));
        }
        due.is_some()
    }

    /// Sets the pacing rate that congestion control asks for.
    #[inline]
    pub(super) fn set_pace<B>(&mut self, cx: &Cx<'_, B>) {
        let rate = match self.cc.pacing_rate() {
            Some(rate) => rate,
            None if cx.config.tcp.pacing => self.window.pacing_rate(self.rtt.srtt()),
            None => return,
        };
        self.pacer.set_rate(rate, self.window.mss);
    }

    /// Starts pacing when the connection is established: the first flight is paced, too.
    pub(super) fn start_pace<B>(&mut self, cx: &Cx<'_, B>) {
        self.cc.start(&self.window, self.rtt.srtt());
        self.set_pace(cx);
    }

    /// Notes that a segment of `bytes` is sent; returns the delivery rate state that the segment keeps.
    #[inline]
    pub(super) fn note_departure<B>(&mut self, cx: &Cx<'_, B>, bytes: u32) -> RateStamp {
        let alone = !self.snd.queue.has_outstanding();
        let mut stamp = self.rate.on_send(cx.now, alone);
        if self.cc.models_path() {
            stamp.load = stamp.load.with_load(self.pipe().saturating_add(bytes), self.snd.queue.lost_ever());
            if alone && self.rate.is_app_limited() {
                self.cc.on_restart(&mut self.window, cx.now, self.rate.delivered());
                self.set_pace(cx);
            }
        }
        self.pacer.on_sent(cx.now, bytes);
        stamp
    }

    /// Called before data is queued: if everything before was sent and more could have been, the application
    /// limited the rate. The peer's window does not: draft-ietf-ccwg-bbr-06 §4.1.1.3.1 "treats receiver bottlenecks the
    /// same as network bottlenecks".
    pub(super) fn note_queueing(&mut self) {
        let queue = &self.snd.queue;
        if queue.unsent() == NIL && queue.lost() == 0 && self.pipe() < self.window.cwnd {
            self.rate.mark_app_limited(self.snd.queue.in_flight());
        }
    }

    /// Passes a sample of the path to a congestion control that models it (BBR).
    pub(super) fn model_path<B>(&mut self, cx: &Cx<'_, B>, delivery: &Delivery) {
        let in_flight = self.pipe();
        let sample = PathSample {
            now: cx.now,
            rtt: delivery.newest.rtt(cx.now),
            rate: delivery.rate,
            delivered: delivery.newest.delivered,
            delivered_total: self.rate.delivered(),
            lost: self.snd.queue.lost_ever(),
            in_flight,
            prior_in_flight: delivery.prior_in_flight,
            initial_cwnd: CongestionWindow::initial(self.window.mss, &cx.config.tcp).cwnd,
            sack: self.negotiated.sack,
        };
        self.cc.on_path_sample(&mut self.window, &sample);
        if self.cc.is_probing_rtt() {
            self.rate.mark_app_limited(in_flight);
        }
    }

    /// Marks a segment in flight lost.
    pub(super) fn lose<B>(&mut self, cx: &mut Cx<'_, B>, index: u32) {
        let Some(node) = cx.tx.get(index).filter(|node| node.state == TxState::Flight) else { return };
        if self.cc.models_path() {
            let before = self.snd.queue.lost_ever();
            let lost = lost_segment(node, cx.now, before, self.rate.delivered(), self.negotiated.sack);
            self.cc.on_segment_lost(&self.window, &lost);
        }
        self.snd.queue.mark_lost(cx.tx, index);
    }
}

/// Returns the description of a segment that is marked lost now, for a congestion control that models the path.
/// `before` are the bytes marked lost before it.
pub(super) fn lost_segment<B>(
    node: &TxNode<B>,
    now: Instant,
    before: u32,
    delivered: u32,
    sack: bool,
) -> LostSegment {
    let size = node.seq_len();
    LostSegment {
        now,
        load: node.rate.load,
        seq: node.seq.get(),
        size,
        lost: before.wrapping_add(size),
        delivered,
        sack,
    }
}
