//! Delivery rate samples and pacing of a connection.

use super::ack::Delivery;
use super::{Conn, Cx};
use crate::cc::PathSample;
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
        let stamp = self.rate.on_send(cx.now, alone);
        if alone && self.rate.is_app_limited() && self.cc.models_path() {
            self.cc.on_restart(&mut self.window, cx.now);
            self.set_pace(cx);
        }
        self.pacer.on_sent(cx.now, bytes);
        stamp
    }

    /// Called before data is queued: if everything before was sent and more could have been, the application
    /// limited the rate.
    pub(super) fn note_queueing(&mut self) {
        let queue = &self.snd.queue;
        if queue.unsent() == NIL && queue.lost() == 0 && self.pipe() < self.window.cwnd {
            self.rate.mark_app_limited(self.snd.queue.in_flight());
        }
    }

    /// Marks the rate as limited by the peer's window: no measure of the network, just as a pause of the
    /// application.
    pub(super) fn note_window_limit(&mut self) {
        self.rate.mark_app_limited(self.snd.queue.in_flight());
    }

    /// Passes a sample of the path to a congestion control that models it (BBR).
    pub(super) fn model_path(&mut self, now: Instant, delivery: &Delivery) {
        let in_flight = self.pipe();
        let sample = PathSample {
            now,
            rtt: delivery.newest.rtt(now),
            rate: delivery.rate,
            delivered: delivery.newest.delivered,
            delivered_total: self.rate.delivered(),
            lost: self.snd.queue.lost_ever(),
            in_flight,
            prior_in_flight: delivery.prior_in_flight,
        };
        self.cc.on_path_sample(&mut self.window, &sample);
        if self.cc.is_probing_rtt() {
            self.rate.mark_app_limited(in_flight);
        }
    }
}
