//! End of a stream: by the peer, by the owner, or by an error, each with its time limit.

use core::time::Duration;

use super::Endpoint;
use crate::qp::{CloseHow, StreamState, WcStatus};
use crate::stats::{RdmaStats, count};
use crate::terminate::{ErrorCode, Fault, StreamError};

/// Graceful end that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// The peer has closed its half: close when nothing is left to send.
    PeerClosed,
    /// The owner disconnects: close when all posted work is finished and all reads are answered.
    Disconnect,
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Handles the end of the peer's half of the stream.
    pub fn peer_closed(&mut self, now: Duration, stats: &mut RdmaStats) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.peer_closed(&mut stats.mpa);
            self.negotiated(stats);
        }
        let cut_off = self.deframer.as_ref().is_some_and(|deframer| deframer.pending() > 0);
        if cut_off && !self.qp.peer_ended {
            count(&mut stats.drops.cut_off, 1);
            self.qp.fail_without_terminate(ErrorCode::TCP_LOST);
        }
        // RFC 5041 §6.2.1: on a half-closed stream "continue to process outbound data transfer requests
        // normally".
        self.drain = Some(Drain::PeerClosed);
        self.qp.peer_ended = true;
        self.apply_state(now);
    }

    /// Handles the loss of the transport: flushes all posted work, then raises [`Event::Close`](crate::Event::Close).
    pub fn transport_lost(&mut self) {
        self.qp.fail_without_terminate(ErrorCode::TCP_LOST);
        self.end(CloseHow::Reset);
    }

    /// Ends the stream for an owner who goes: closes it if all posted work is finished and all reads of the peer are
    /// answered, so that the peer receives every message that has completed here; otherwise resets it.
    pub fn leave(&mut self) {
        let in_operation = self.qp.state == StreamState::ReadyToSend && self.qp.may_send;
        // Work of a queue pair that is connected by number is finished once the peer has processed it. The peer still
        // receives what was sent.
        let is_finished = self.is_finished() && !self.qp.is_deferred();
        if in_operation && (is_finished || self.qp.keeps_work) {
            self.end(CloseHow::Fin);
        } else {
            self.transport_lost();
        }
    }

    /// Returns true if all posted work is finished and all reads of the peer are answered.
    pub fn is_finished(&self) -> bool {
        self.qp.sq.len() == 0 && self.qp.irq.is_empty()
    }

    /// Closes the stream when all posted work is finished and all reads of the peer are answered. Resets it if that
    /// takes longer than [`EndpointConfig::disconnect_timeout`](super::EndpointConfig::disconnect_timeout): the peer
    /// may never send its Read Responses, or never take those it asked for.
    pub fn disconnect(&mut self, now: Duration) {
        self.drain = self.drain.or(Some(Drain::Disconnect));
        let until = now.saturating_add(self.config.disconnect_timeout);
        self.drain_deadline = self.drain_deadline.or(Some(until));
        self.apply_state(now);
    }

    /// Ends the stream for a local fault, such as the loss of its region.
    pub fn fail_local(&mut self, now: Duration, stats: &mut RdmaStats) {
        self.fail_here(StreamError::Local, now, stats);
    }

    /// Ends the stream for a local fault that ends all streams.
    pub fn fail_global(&mut self, now: Duration, stats: &mut RdmaStats) {
        self.fail_here(StreamError::Global, now, stats);
    }

    #[cold]
    fn fail_here(&mut self, error: StreamError, now: Duration, stats: &mut RdmaStats) {
        let enhanced = self.terms.is_some_and(|terms| terms.revision == 2);
        let in_full_operation = self.qp.peer_sent || self.qp.sent_any;
        let error = match self.qp.state {
            StreamState::ReadyToSend if in_full_operation => Some(error),
            // RFC 6581 §9.2: "The initiator or responder MUST generate the TERM message that contains Layer 2,
            // Error Type 0, Error Code 5 when it encounters any error locally for which the special Error Code is
            // not defined in Section 8 before resetting the connection."
            StreamState::ReadyToSend if enhanced => Some(StreamError::SetupFailed),
            StreamState::ReadyToSend => Some(error).filter(|_| self.qp.may_send),
            StreamState::Terminating | StreamState::Closed => return,
            StreamState::Idle => None,
        };
        if let Some(error) = error {
            self.qp.fail(&Fault::bare(error), stats);
            self.apply_state(now);
        } else {
            // No FPDU may be sent, so no Terminate either.
            self.qp.fail_without_terminate(StreamError::SetupFailed.code().0);
            self.end(CloseHow::Reset);
        }
    }

    /// Runs the timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Duration, stats: &mut RdmaStats) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.handle_timeout(now, &mut stats.mpa);
            self.negotiated(stats);
        }
        if self.terminate_deadline.is_some_and(|until| until <= now) {
            count(&mut stats.rdmap.terminates_unsent, 1);
            self.transport_lost();
        }
        if self.drain_deadline.is_some_and(|until| until <= now) {
            count(&mut stats.rdmap.disconnects_overdue, 1);
            self.transport_lost();
        }
        if self.linger_deadline.is_some_and(|until| until <= now) {
            self.end(CloseHow::Fin);
        }
        if self.poke_at.is_some_and(|at| at <= now) {
            (self.poke_at, self.poke_due) = (None, true);
        }
        if self.fpdu_check_at.is_some_and(|at| at <= now) {
            self.check_fpdu(now, stats);
        }
        if self.qp.buffers_until().is_some_and(|until| until <= now) {
            self.qp.give_up(WcStatus::RnrRetryExceeded);
            self.end(CloseHow::Reset);
        }
        self.apply_state(now);
    }

    /// Returns the time at which [`Self::handle_timeout`], and [`Self::poll_transmit`] after it, are due.
    pub fn next_deadline(&self) -> Option<Duration> {
        let negotiation = self.negotiation.as_ref().and_then(|negotiation| negotiation.next_deadline());
        let ends = [negotiation, self.linger_deadline, self.terminate_deadline, self.drain_deadline];
        let limits = ends.into_iter().chain([self.poke_at, self.fpdu_check_at, self.qp.buffers_until()]);
        limits.flatten().min()
    }

    /// Starts or stops timers, and closes the stream, as its new state requires.
    pub(super) fn apply_state(&mut self, now: Duration) {
        match self.qp.state {
            StreamState::ReadyToSend => {
                if self.qp.peer_sent {
                    (self.poke_at, self.poke_due) = (None, false);
                }
                self.qp.watch_buffers(now);
                let done = match self.drain {
                    None => false,
                    Some(Drain::PeerClosed) => !self.qp.has_output(),
                    Some(Drain::Disconnect) => self.is_finished(),
                };
                if done && !self.qp.is_deferred() {
                    self.end(CloseHow::Fin);
                }
            }
            StreamState::Idle => {
                if self.drain.is_some() {
                    self.end(CloseHow::Fin);
                } else if self.rejected {
                    let until = now.saturating_add(self.config.reject_linger);
                    self.linger_deadline = self.linger_deadline.or(Some(until));
                }
            }
            StreamState::Terminating => {
                (self.poke_at, self.poke_due) = (None, false);
                let until = now.saturating_add(self.config.terminate_timeout);
                self.terminate_deadline = self.terminate_deadline.or(Some(until));
            }
            StreamState::Closed => self.end(CloseHow::Fin),
        }
    }

    /// Closes the stream and drops its buffers.
    pub(super) fn end(&mut self, how: CloseHow) {
        self.qp.close(how);
        self.negotiation = None;
        self.deframer = None;
        (self.linger_deadline, self.terminate_deadline, self.poke_at, self.poke_due) =
            (None, None, None, false);
        (self.drain_deadline, self.incomplete, self.fpdu_check_at) = (None, None, None);
    }
}
