//! How a stream ends: by either side, in good order or not, and what each of the ways may take.

use core::time::Duration;

use super::Endpoint;
use crate::qp::{CloseHow, StreamState};
use crate::stats::{RdmaStats, count};
use crate::terminate::{ErrorCode, Fault, StreamError};

/// How a stream is to end in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// The peer sends no more: close when nothing is left to send.
    PeerClosed,
    /// The owner wants to end: close when all posted work is finished and all reads are answered.
    Disconnect,
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// The peer has ended its half of the stream.
    pub fn peer_closed(&mut self, now: Duration, stats: &mut RdmaStats) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.peer_closed(&mut stats.mpa);
            self.negotiated(stats);
        }
        let cut_off = self.deframer.as_ref().is_some_and(|deframer| deframer.pending() > 0);
        if cut_off && !self.qp.peer_ended {
            count(&mut stats.drops.cut_off, 1);
            self.qp.fail_untold(ErrorCode::TCP_LOST);
        }
        // RFC 5041 §6.2.1: on a half-closed stream "continue to process outbound data transfer requests
        // normally".
        self.drain = Some(Drain::PeerClosed);
        self.qp.peer_ended = true;
        self.settle(now);
    }

    /// The transport is gone: whatever was posted is given back, and [`Event::Close`](crate::Event::Close) follows.
    pub fn transport_lost(&mut self) {
        self.qp.fail_untold(ErrorCode::TCP_LOST);
        self.end(CloseHow::Reset);
    }

    /// Ends the stream when all posted work is finished and all reads of the peer are answered, or resets it when that
    /// takes longer than [`EndpointConfig::disconnect_timeout`](super::EndpointConfig::disconnect_timeout): the peer may owe Read Responses for good, or take none of
    /// its own.
    pub fn disconnect(&mut self, now: Duration) {
        self.drain = self.drain.or(Some(Drain::Disconnect));
        let until = now.saturating_add(self.config.disconnect_timeout);
        self.drain_until = self.drain_until.or(Some(until));
        self.settle(now);
    }

    /// Ends the stream for a fault of this side, such as the loss of its region.
    pub fn fail_local(&mut self, now: Duration, stats: &mut RdmaStats) {
        self.fail_here(StreamError::Local, now, stats);
    }

    /// Ends the stream for a fault of this side that ends all of its streams.
    pub fn fail_global(&mut self, now: Duration, stats: &mut RdmaStats) {
        self.fail_here(StreamError::Global, now, stats);
    }

    #[cold]
    fn fail_here(&mut self, error: StreamError, now: Duration, stats: &mut RdmaStats) {
        let enhanced = self.terms.is_some_and(|terms| terms.revision == 2);
        let in_full_operation = self.qp.peer_spoke || self.qp.sent_any;
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
            self.settle(now);
        } else {
            // Where no FPDU may be sent, nothing can be said.
            self.qp.fail_untold(StreamError::SetupFailed.code().0);
            self.end(CloseHow::Reset);
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration, stats: &mut RdmaStats) {
        if let Some(negotiation) = &mut self.negotiation {
            negotiation.handle_timeout(now, &mut stats.mpa);
            self.negotiated(stats);
        }
        if self.terminate_until.is_some_and(|until| until <= now) {
            count(&mut stats.rdmap.terminates_unsent, 1);
            self.transport_lost();
        }
        if self.drain_until.is_some_and(|until| until <= now) {
            count(&mut stats.rdmap.disconnects_overdue, 1);
            self.transport_lost();
        }
        if self.linger_until.is_some_and(|until| until <= now) {
            self.end(CloseHow::Fin);
        }
        if self.poke_at.is_some_and(|at| at <= now) {
            (self.poke_at, self.poke_due) = (None, true);
        }
        if self.fpdu_check_at.is_some_and(|at| at <= now) {
            self.check_fpdu(now, stats);
        }
        self.settle(now);
    }

    /// When [`Self::handle_timeout`], and [`Self::poll_transmit`] after it, are due next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let negotiation = self.negotiation.as_ref().and_then(|negotiation| negotiation.next_deadline());
        let ends = [negotiation, self.linger_until, self.terminate_until, self.drain_until];
        let limits = ends.into_iter().chain([self.poke_at, self.fpdu_check_at]);
        limits.flatten().min()
    }

    /// Draws the consequences of a new state.
    pub(super) fn settle(&mut self, now: Duration) {
        match self.qp.state {
            StreamState::ReadyToSend => {
                if self.qp.peer_spoke {
                    (self.poke_at, self.poke_due) = (None, false);
                }
                let done = match self.drain {
                    None => false,
                    Some(Drain::PeerClosed) => !self.qp.has_output(),
                    Some(Drain::Disconnect) => self.qp.sq.len() == 0 && self.qp.irq.is_empty(),
                };
                if done {
                    self.end(CloseHow::Fin);
                }
            }
            StreamState::Idle => {
                if self.drain.is_some() {
                    self.end(CloseHow::Fin);
                } else if self.rejected {
                    let until = now.saturating_add(self.config.reject_linger);
                    self.linger_until = self.linger_until.or(Some(until));
                }
            }
            StreamState::Terminating => {
                (self.poke_at, self.poke_due) = (None, false);
                let until = now.saturating_add(self.config.terminate_timeout);
                self.terminate_until = self.terminate_until.or(Some(until));
            }
            StreamState::Closed => self.end(CloseHow::Fin),
        }
    }

    /// Nothing goes any more; what is held for the stream is let go.
    pub(super) fn end(&mut self, how: CloseHow) {
        self.qp.close(how);
        self.negotiation = None;
        self.deframer = None;
        (self.linger_until, self.terminate_until, self.poke_at, self.poke_due) = (None, None, None, false);
        (self.drain_until, self.incomplete, self.fpdu_check_at) = (None, None, None);
    }
}
