//! One stream from its first byte to its last: the MPA negotiation, then a queue pair.

mod config;
mod end;
mod incomplete;
mod out_of_order;
mod setup;

use core::time::Duration;

pub use config::{EndpointConfig, EndpointInfo, MessageSizes};
use end::Drain;

use crate::memory::{LocalSlice, Memory, Origin, PdId, StagTable, StreamId};
use crate::mpa::{ConnectRequest, Deframer, FpduError, LocalError, Negotiation, Terms};
use crate::qp::{Depths, Event, Local, PostError, QueuePair, StreamState, WorkOp, WorkRequest};
use crate::rdmap::SendOutcome;
use crate::stats::{RdmaStats, count};
use crate::terminate::{ErrorCode, Fault, StreamError};
use crate::wire::atomic::AtomicOp;
use crate::wire::ddp::{TaggedHeader, UntaggedHeader};
use crate::wire::{Stag, TaggedOffset};

/// How often an initiator pokes a silent peer.
pub const POKES_MAX: u32 = 5;

/// The sending side of the transport.
pub trait Sink {
    /// Bytes that fit one TCP segment now.
    fn fpdu_max(&self) -> usize;

    /// Bytes that the transport takes now. It must come to be at least [`Self::fpdu_max`] again and again.
    fn room(&self) -> usize;

    /// Takes exactly `len` bytes, which `build` writes into a slice of that length. `false`: there is no room,
    /// and `build` was not called.
    ///
    /// The bytes start a TCP segment of their own, or share one with others when they are few; they are not
    /// split over two as long as they are not more than [`Self::fpdu_max`].
    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool;
}

/// What an endpoint works with and does not own.
#[derive(Debug)]
pub struct Env<'a, M> {
    /// The STags of the worker.
    pub stags: &'a mut StagTable,
    /// The memory of the regions.
    pub memory: &'a mut M,
    /// The counters of the worker.
    pub stats: &'a mut RdmaStats,
}

/// What [`Endpoint::poll_transmit`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// MPA frames and FPDUs handed to the transport.
    pub frames: usize,
    /// Their bytes.
    pub bytes: usize,
    /// More waits for room in the transport.
    pub pending: bool,
}

/// One end of a stream.
///
/// The owner brings bytes with [`receive`](Self::receive), in the order of the stream; asks for events with
/// [`poll_event`](Self::poll_event) until there is none; lets it send with [`poll_transmit`](Self::poll_transmit)
/// after either, and when the transport has room again; and calls [`handle_timeout`](Self::handle_timeout) at
/// [`next_deadline`](Self::next_deadline). `now` is the time since some fixed start, and does not go back.
///
/// [`Event::Close`] is the last event. The owner ends the connection then and revokes the STags of the stream.
#[derive(Debug)]
pub struct Endpoint<C> {
    config: EndpointConfig,
    initiator: bool,
    /// Until full operation.
    negotiation: Option<Box<Negotiation>>,
    terms: Option<Terms>,
    /// In full operation.
    deframer: Option<Deframer<C>>,
    /// The stream position behind what the negotiation took.
    position: u64,
    qp: QueuePair,
    drain: Option<Drain>,
    /// The owner wants to end: until when what is under way may take.
    drain_until: Option<Duration>,
    /// The peer was rejected and is to close: until when it may.
    rejected: bool,
    linger_until: Option<Duration>,
    /// Since when a Terminate waits for room: until when it may.
    terminate_until: Option<Duration>,
    /// When to poke the peer if it stays silent.
    poke_at: Option<Duration>,
    poke_due: bool,
    pokes: u32,
    terminate: Option<ErrorCode>,
    /// Where the FPDU begins that is not complete, and since when it is not.
    incomplete: Option<(u64, Duration)>,
    /// When to see whether that is too long ago.
    fpdu_check_at: Option<Duration>,
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// The responder of a stream that was just accepted.
    pub fn responder(config: EndpointConfig, stream: StreamId, now: Duration) -> Self {
        let negotiation = Negotiation::responder(config.mpa, now);
        Self::new(config, stream, negotiation, false)
    }

    /// The initiator of a stream that was just connected.
    ///
    /// # Errors
    /// Where the request cannot be sent: too much private data, or an unknown revision.
    pub fn initiator(
        config: EndpointConfig,
        stream: StreamId,
        request: &ConnectRequest<'_>,
        now: Duration,
        stats: &mut RdmaStats,
    ) -> Result<Self, LocalError> {
        let negotiation = Negotiation::initiator(config.mpa, request, now, &mut stats.mpa)?;
        Ok(Self::new(config, stream, negotiation, true))
    }

    fn new(config: EndpointConfig, stream: StreamId, negotiation: Negotiation, initiator: bool) -> Self {
        let (send, receive) = (config.send_queue.into(), config.receive_queue.into());
        let depths = Depths { send, receive, ..Depths::default() };
        Self {
            config,
            initiator,
            negotiation: Some(Box::new(negotiation)),
            terms: None,
            deframer: None,
            position: 0,
            qp: QueuePair::new(Origin { stream, pd: config.pd }, depths),
            drain: None,
            drain_until: None,
            rejected: false,
            linger_until: None,
            terminate_until: None,
            poke_at: None,
            poke_due: false,
            pokes: 0,
            terminate: None,
            incomplete: None,
            fpdu_check_at: None,
        }
    }

    /// Takes the bytes at stream position `offset`, which follow those before.
    pub fn receive<M: Memory>(&mut self, now: Duration, offset: u64, chunk: C, env: &mut Env<'_, M>) {
        if let Some(negotiation) = &mut self.negotiation {
            let bytes = chunk.as_ref();
            let taken = negotiation.receive(bytes, &mut env.stats.mpa);
            self.position = offset.saturating_add(taken as u64);
            let rest = bytes.len() > taken;
            self.negotiated(env.stats);
            if rest && self.deframer.is_some() {
                self.fpdus(offset, chunk, env);
            }
        } else {
            self.fpdus(offset, chunk, env);
            self.watch_fpdu(now);
        }
        self.settle(now);
    }

    /// Takes FPDUs: mostly they lie whole in the chunk, one or several, and nothing is left of it.
    fn fpdus<M: Memory>(&mut self, offset: u64, chunk: C, env: &mut Env<'_, M>) {
        let Self { deframer: Some(deframer), qp, .. } = self else {
            count(&mut env.stats.drops.after_error, 1);
            return;
        };
        while let Some(fpdu) = deframer.next_whole(offset, chunk.as_ref(), &mut env.stats.mpa) {
            match fpdu {
                Ok(fpdu) => qp.receive(&fpdu, env),
                Err(error) => qp.fail(&Fault::bare(stream_error(error)), env.stats),
            }
        }
        let end = offset.saturating_add(chunk.as_ref().len() as u64);
        if deframer.end() == end && qp.state == StreamState::ReadyToSend {
            return;
        }
        if let Err(error) = deframer.push(offset, chunk, &mut env.stats.mpa) {
            qp.fail(&Fault::bare(stream_error(error)), env.stats);
        }
        self.deliver(env);
    }

    /// Delivers, in the order of the stream, what is whole.
    fn deliver<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let Self { deframer: Some(deframer), qp, .. } = self else { return };
        loop {
            if let Some(run) = deframer.next_placed(&mut env.stats.mpa) {
                qp.receive_placed(&run, env.stats);
                continue;
            }
            match deframer.next_fpdu(&mut env.stats.mpa) {
                Some(Ok(fpdu)) => qp.receive(&fpdu, env),
                Some(Err(error)) => qp.fail(&Fault::bare(stream_error(error)), env.stats),
                None => break,
            }
        }
        deframer.compact_if_small(&mut env.stats.mpa);
        if qp.state != StreamState::ReadyToSend {
            self.deframer = None;
        }
    }

    /// Sends what there is to send, as far as the transport takes it.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        now: Duration,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Progress {
        let mut progress = Progress::default();
        self.send_negotiation(env.stats, sink, &mut progress);
        if self.poke_due {
            match self.qp.poke(env, sink) {
                SendOutcome::Sent { fpdus, bytes } => {
                    progress.count(fpdus, bytes);
                    self.pokes = self.pokes.saturating_add(1);
                    self.poke_due = false;
                }
                SendOutcome::NoRoom => {}
                SendOutcome::Again | SendOutcome::Idle => self.poke_due = false,
            }
        }
        loop {
            match self.qp.transmit(env, sink) {
                SendOutcome::Sent { fpdus, bytes } => progress.count(fpdus, bytes),
                SendOutcome::Again => {}
                SendOutcome::NoRoom | SendOutcome::Idle => break,
            }
        }
        if progress.frames > 0 {
            self.arm_poke(now);
        }
        self.settle(now);
        progress.pending = self.has_output();
        progress
    }

    /// Whether [`Self::poll_transmit`] has something to send.
    pub fn has_output(&self) -> bool {
        self.negotiation.as_ref().is_some_and(|negotiation| !negotiation.unsent().is_empty())
            || self.poke_due
            || self.qp.has_output()
    }

    /// The next thing the owner must know. A finished work request's place is free from here on.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.qp.poll_event()?;
        if let Event::TerminateSent { code, .. } | Event::TerminateReceived { code, .. } = &event {
            self.terminate = Some(*code);
        }
        Some(event)
    }

    /// Writes `local` to the peer's memory. Finished when the transport has it.
    pub fn post_write(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        remote: Stag,
        to: u64,
    ) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Write { stag: remote, to: TaggedOffset(to) }, local)
    }

    /// Reads the peer's memory into `local`. Finished when the bytes are there.
    pub fn post_read(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        remote: Stag,
        to: u64,
    ) -> Result<(), PostError> {
        if self.qp.state == StreamState::ReadyToSend && self.qp.ord == 0 {
            return Err(PostError::NoReads);
        }
        self.post(wr_id, WorkOp::Read { stag: remote, to: TaggedOffset(to) }, local)
    }

    /// Sends `local` to the peer's next posted buffer, if asked for with an event there, or with the
    /// invalidation of an STag of the peer's. Finished when the transport has it.
    pub fn post_send(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        solicited: bool,
        invalidate: Option<Stag>,
    ) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Send { solicited, invalidate }, local)
    }

    /// Does an atomic operation in the peer's memory, on the eight bytes at `to`, whose address there must be a
    /// multiple of eight. Finished when what they were, in the byte order of this machine, is in `local`.
    pub fn post_atomic(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        remote: Stag,
        to: u64,
        op: AtomicOp,
    ) -> Result<(), PostError> {
        if usize::try_from(local.len).ok() != Some(size_of::<u64>()) {
            return Err(PostError::Length);
        }
        if self.qp.state == StreamState::ReadyToSend && self.qp.ord == 0 {
            return Err(PostError::NoReads);
        }
        self.post(wr_id, WorkOp::Atomic { stag: remote, to: TaggedOffset(to), op }, local)
    }

    /// Sends eight bytes to the peer's next posted buffer, which they use up without being put there. Finished
    /// when the transport has them.
    pub fn post_immediate(&mut self, wr_id: u64, data: [u8; 8], solicited: bool) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Immediate { data, solicited }, LocalSlice::EMPTY)
    }

    fn post(&mut self, wr_id: u64, op: WorkOp, local: LocalSlice) -> Result<(), PostError> {
        self.post_work(WorkRequest::new(wr_id, op, Local::Slice(local)))
    }

    /// Posts work of any kind.
    pub(crate) fn post_work(&mut self, request: WorkRequest) -> Result<(), PostError> {
        if !self.takes_work() {
            return Err(PostError::State);
        }
        self.qp.sq.post(request)
    }

    /// Whether work may be posted.
    pub(crate) fn takes_work(&self) -> bool {
        self.qp.state == StreamState::ReadyToSend && self.drain.is_none()
    }

    /// The queues.
    pub(crate) const fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.qp
    }

    /// Works with these queues, and what is posted there, from here on: those that it was made with have no work.
    /// Before full operation only; `false` if it is too late.
    pub(crate) fn adopt(&mut self, mut queues: QueuePair, pd: Option<PdId>) -> bool {
        if self.qp.state != StreamState::Idle {
            return false;
        }
        queues.origin = Origin { stream: self.qp.origin.stream, pd };
        while let Some(event) = self.qp.events.pop_front() {
            queues.events.push_back(event);
        }
        self.qp = queues;
        true
    }

    /// Gives the peer's next Send a buffer. Allowed before full operation.
    pub fn post_recv(&mut self, wr_id: u64, local: LocalSlice) -> Result<(), PostError> {
        match self.qp.state {
            StreamState::Idle | StreamState::ReadyToSend => self.qp.rq.post(wr_id, Local::Slice(local)),
            StreamState::Terminating | StreamState::Closed => Err(PostError::State),
        }
    }

    /// The stream as other parts of the program name it.
    pub const fn stream(&self) -> StreamId {
        self.qp.origin.stream
    }

    /// How much of a message fits one segment, if the transport's are of `fpdu_max` bytes, as [`Sink::fpdu_max`] says.
    pub fn max_msizes(&self, fpdu_max: usize) -> MessageSizes {
        let mulpdu = self.qp.framer.ulpdu_max(fpdu_max);
        MessageSizes {
            untagged: mulpdu.saturating_sub(UntaggedHeader::LEN),
            tagged: mulpdu.saturating_sub(TaggedHeader::LEN),
        }
    }

    /// The endpoint at a glance.
    pub fn info(&self) -> EndpointInfo {
        let terms = self.terms.as_ref();
        EndpointInfo {
            state: self.qp.state,
            initiator: self.initiator,
            rev: terms.map_or(0, |terms| terms.revision),
            crc: terms.is_some_and(|terms| terms.crc),
            markers: terms.is_some_and(|terms| terms.markers_out),
            markers_in: terms.map_or(self.config.mpa.markers, |terms| terms.markers_in),
            ird: terms.map_or(0, |terms| terms.ird),
            ord: terms.map_or(0, |terms| terms.ord),
            reads_owed: self.qp.irq.len(),
            work_pending: self.qp.sq.len(),
            counters: self.qp.counters,
            terminate: self.terminate,
        }
    }

    /// Starts to wait for the peer's first word, after the first message in full operation and after each poke.
    fn arm_poke(&mut self, now: Duration) {
        let silent = self.initiator && self.qp.state == StreamState::ReadyToSend && !self.qp.peer_spoke;
        if let Some(after) = self.config.poke_after
            && silent
            && self.qp.sent_any
            && self.pokes < POKES_MAX
        {
            let wait = after.saturating_mul(2_u32.saturating_pow(self.pokes));
            self.poke_at = Some(now.saturating_add(wait));
        }
    }
}

impl Progress {
    const fn count(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_add(frames);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// What an error of the deframer is to the stream: the peer's, or a fault of this side.
const fn stream_error(error: FpduError) -> StreamError {
    match error {
        FpduError::Crc => StreamError::Crc,
        FpduError::Marker | FpduError::Boundary => StreamError::FpduStart,
        FpduError::Fragmented | FpduError::Gap { .. } | FpduError::Undrained => StreamError::Local,
    }
}

#[cfg(test)]
mod tests;
