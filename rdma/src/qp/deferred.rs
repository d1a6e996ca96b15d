//! Waiting for deferred copies: a stream whose memory another thread copies ([`Reach::Deferred`]).
//!
//! - Received bytes are queued in stream order. Until they are placed, the *gate* is closed: events that depend on
//!   them wait, and the stream receives nothing but further bytes for such memory. Everything else *stalls* it at the
//!   FPDU that is due: memory accessed at once, whose bytes would overtake, requests of the peer, and whatever follows
//!   a message that completes.
//! - Bytes to send are read ahead, and the stream *holds* its output until they are there.
//!
//! The owner calls [`QueuePair::resume`] again and again while the queue pair [waits](QueuePair::is_deferred).

use core::task::Poll;

use super::{Event, QueuePair, Source, StreamState, WcOpcode, WcStatus};
use crate::Env;
use crate::memory::{Ahead, CopyState, Memory, Reach, RegionId, Ticket, Word};
use crate::stats::RdmaStats;
use crate::terminate::{Fault, StreamError};
use crate::wire::atomic::AtomicOp;

/// Reason why a received segment is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is due again when this copy is done. Nothing has changed.
    Wait(Ticket),
    /// It is due again when there is a receive buffer.
    Buffer,
    /// The stream ends with this error.
    Fault(StreamError),
}

impl From<StreamError> for Stop {
    fn from(error: StreamError) -> Self {
        Self::Fault(error)
    }
}

/// Deferred copies that a queue pair waits for.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Last copy of received bytes, and the number of queued events that do not depend on it.
    gate: Option<(Ticket, usize)>,
    /// Copy that the FPDU at the front of the stream waits for.
    stall: Option<Ticket>,
    /// Atomic operation of the FPDU at the front of the stream.
    atomic: Option<Ticket>,
    /// Bytes to send that are read ahead.
    pub(crate) ahead: Option<ReadAhead>,
    /// Copy that the output waits for.
    hold: Option<Ticket>,
    /// True if the FPDU at the front of the stream has a receive buffer now.
    is_woken: bool,
    /// True if the device lists the connection among those that wait.
    pub(crate) is_listed: bool,
}

/// Bytes of the message being sent that are read ahead.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    pub(crate) bytes: Ahead,
    /// Source of the message.
    pub(crate) source: Source,
    /// Number of these bytes that were sent.
    pub(crate) sent: usize,
    /// Bytes of the message that are left with the next of them.
    pub(crate) left: usize,
}

impl QueuePair {
    /// Returns true if the queue pair waits for a copy.
    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        let waits = |deferred: &Deferred| {
            deferred.gate.is_some() || deferred.stall.is_some() || deferred.hold.is_some()
        };
        self.deferred.as_deref().is_some_and(waits)
    }

    /// Returns true if the FPDU at the front of the stream waits for a copy, or for a receive buffer.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.waits_for_buffer || self.deferred.as_deref().is_some_and(|deferred| deferred.stall.is_some())
    }

    /// Lets the FPDU that waits for a receive buffer go on: there is one. The owner resumes the stream.
    #[cold]
    pub(crate) fn wake(&mut self) {
        self.waits_for_buffer = false;
        self.waits().is_woken = true;
    }

    /// Returns true if the output waits for a copy.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.deferred.as_deref().is_some_and(|deferred| deferred.hold.is_some())
    }

    /// Returns the last copy of received bytes that is not done.
    #[inline]
    pub(crate) fn gate(&self) -> Option<Ticket> {
        self.deferred.as_deref()?.gate.map(|(ticket, _)| ticket)
    }

    pub(crate) fn waits(&mut self) -> &mut Deferred {
        self.deferred.get_or_insert_default()
    }

    /// Returns the copy that the next FPDU waits for, whatever it is: an event behind the gate has ended a message.
    #[inline]
    pub(crate) fn waits_for_event(&self) -> Option<Ticket> {
        let (ticket, before) = self.deferred.as_deref()?.gate?;
        (self.events.len() > before).then_some(ticket)
    }

    /// Makes the stream wait at its next FPDU.
    #[cold]
    pub(crate) fn stall(&mut self, ticket: Ticket) {
        self.waits().stall = Some(ticket);
    }

    /// Makes the output wait.
    #[cold]
    pub(crate) fn hold(&mut self, ticket: Ticket) {
        self.waits().hold = Some(ticket);
    }

    /// Checks that bytes may be placed now. Returns true if [`Memory::place`] will only queue them; the caller calls
    /// [`Self::queued`] then.
    #[inline]
    pub(crate) fn may_place<M: Memory>(
        &self,
        (region, offset, len): (RegionId, u64, usize),
        env: &Env<'_, M>,
    ) -> Result<bool, Stop> {
        match env.memory.reach(self.origin.stream, region, offset, len) {
            Reach::Direct => self.gate().map_or(Ok(false), |ticket| Err(Stop::Wait(ticket))),
            Reach::Deferred => Ok(true),
            Reach::Busy(ticket) => Err(Stop::Wait(ticket)),
            Reach::Gone => Err(Stop::Fault(StreamError::Place)),
        }
    }

    /// Closes the gate until the copy that was queued last is done.
    #[cold]
    pub(crate) fn queued<M: Memory>(&mut self, env: &Env<'_, M>) {
        let events = self.events.len();
        if let Some(ticket) = env.memory.last_queued() {
            let before = self.waits().gate.map_or(events, |(_, before)| before);
            self.waits().gate = Some((ticket, before));
        }
    }

    /// Performs an atomic operation on memory that is not accessed at once: queues it, and returns the original value
    /// when the FPDU is processed again.
    #[cold]
    pub(crate) fn deferred_atomic<M: Memory>(
        &mut self,
        at: Word,
        op: AtomicOp,
        env: &mut Env<'_, M>,
    ) -> Result<u64, Stop> {
        let stream = self.origin.stream;
        if let Some(ticket) = self.waits().atomic {
            let Poll::Ready(original) = env.memory.take_atomic(stream, ticket) else {
                return Err(Stop::Wait(ticket));
            };
            self.waits().atomic = None;
            return original.ok_or(Stop::Fault(StreamError::Fetch));
        }
        let ticket = env.memory.begin_atomic(stream, at, op).ok_or(Stop::Fault(StreamError::Fetch))?;
        self.waits().atomic = Some(ticket);
        Err(Stop::Wait(ticket))
    }

    /// Returns true if an atomic operation of the FPDU at the front of the stream was queued.
    #[inline]
    pub(crate) fn has_atomic(&self) -> bool {
        self.deferred.as_deref().is_some_and(|deferred| deferred.atomic.is_some())
    }

    /// Returns true if the next event does not wait for a copy.
    #[inline]
    pub(crate) fn has_open_event(&self) -> bool {
        self.deferred.as_deref().is_none_or(|deferred| deferred.gate.is_none_or(|(_, before)| before > 0))
    }

    /// Removes the next event, which [is open](Self::has_open_event).
    #[inline]
    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        if let Some((_, before)) = self.deferred.as_deref_mut().and_then(|deferred| deferred.gate.as_mut()) {
            *before = before.saturating_sub(1);
        }
        self.events.pop_front()
    }

    /// Checks the copies that the queue pair waits for. Returns true if the stream may go on: it receives and sends
    /// again.
    pub(crate) fn resume<M: Memory>(&mut self, env: &mut Env<'_, M>) -> bool {
        let stream = self.origin.stream;
        let Some(deferred) = self.deferred.as_deref_mut() else { return false };
        let (mut changed, mut failed) = (core::mem::take(&mut deferred.is_woken), false);
        let mut is_done = |wait: Option<Ticket>| {
            let Some(ticket) = wait.filter(|_| !failed) else { return false };
            let state = env.memory.copy_state(stream, ticket);
            failed = state == CopyState::Failed;
            changed |= state == CopyState::Done;
            state == CopyState::Done
        };
        if is_done(deferred.hold) {
            deferred.hold = None;
        }
        if is_done(deferred.gate.map(|(ticket, _)| ticket)) {
            deferred.gate = None;
        }
        if is_done(deferred.stall) {
            deferred.stall = None;
        }
        if failed {
            // Copies of a stream fail without their direction: the output is to blame if nothing was received.
            let of_output = deferred.hold.is_some() && deferred.gate.is_none() && deferred.stall.is_none();
            self.copy_failed(of_output, env.stats);
        }
        changed || failed
    }

    /// Ends the stream because a copy has failed.
    #[cold]
    fn copy_failed(&mut self, of_output: bool, stats: &mut RdmaStats) {
        self.drop_waits(WcStatus::LocalProtectionError);
        if of_output
            && self.current == Some(Source::Work)
            && let Some(next) = self.sq.next()
        {
            next.status = WcStatus::LocalProtectionError;
        }
        if self.state == StreamState::ReadyToSend {
            let error = if of_output { StreamError::Fetch } else { StreamError::Place };
            self.fail(&Fault::bare(error), stats);
        }
    }

    /// Waits no longer. Messages whose bytes are not known to be in memory complete with an error.
    pub(super) fn drop_waits(&mut self, status: WcStatus) {
        let Some(deferred) = self.deferred.take() else { return };
        let Some((_, before)) = deferred.gate else { return };
        for event in self.events.iter_mut().skip(before) {
            match *event {
                Event::Received { wr_id, .. }
                | Event::Datagram { wr_id, .. }
                | Event::Immediate { wr_id, .. } => {
                    *event = Event::Completion { wr_id, op: WcOpcode::Recv, status, bytes: 0 };
                }
                Event::Completion {
                    op: WcOpcode::RdmaRead | WcOpcode::FetchAdd | WcOpcode::CompareSwap,
                    status: ref mut ended @ WcStatus::Success,
                    ..
                } => *ended = status,
                _ => {}
            }
        }
    }
}
