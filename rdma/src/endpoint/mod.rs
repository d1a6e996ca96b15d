//! One stream from its first byte to its last: MPA negotiation, then a queue pair. The owner connects it with a
//! transport.

mod config;
mod deferred;
mod end;
mod incomplete;
mod looped;
mod out_of_order;
mod setup;

use core::time::Duration;

use config::StreamConfig;
pub use config::{EndpointConfig, EndpointInfo, MessageSizes};
use end::Drain;
pub(crate) use looped::LoopedSegment;

use crate::memory::{Fetch, LocalSlice, Memory, Origin, PdId, StagTable, StreamId};
use crate::mpa::{ConnectRequest, Deframer, FpduError, LocalError, Negotiation, Terms};
use crate::qp::{Depths, Event, Local, PostError, QueuePair, StreamState, WorkOp, WorkRequest};
use crate::rdmap::SendOutcome;
use crate::stats::{RdmaStats, count};
use crate::terminate::{ErrorCode, Fault, StreamError};
use crate::wire::atomic::AtomicOp;
use crate::wire::ddp::{TaggedHeader, UntaggedHeader};
use crate::wire::{Stag, TaggedOffset};

/// Maximum number of empty RDMA Writes that an initiator sends to a silent peer.
pub const POKES_MAX: u32 = 5;

/// Transmit side of the transport.
pub trait Sink {
    /// Returns the payload bytes of one TCP segment now.
    fn fpdu_max(&self) -> usize;

    /// Returns the bytes that the TCP segment before still takes, for the beginning of a message that is longer than a
    /// segment; those of a whole segment if they are few, or if segments are not shared.
    fn fpdu_rest(&self) -> usize {
        self.fpdu_max()
    }

    /// Returns the bytes that the transport takes now. They must repeatedly reach [`Self::fpdu_max`], or the stream
    /// stalls.
    fn room(&self) -> usize;

    /// Takes exactly `len` bytes, which `build` writes into a slice of that length. Returns false, without calling
    /// `build`, if there is no room.
    ///
    /// The bytes begin a TCP segment of their own, or share one with others if they are few. The transport does not
    /// split them over two segments unless they are more than [`Self::fpdu_max`].
    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Returns true if the payload of tagged segments may stay in memory: the receiver has the same memory, and
    /// [`Self::push_fetch`] passes it the token.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Takes a tagged segment, whose payload the receiver copies from memory. Returns false if there is no room.
    fn push_fetch(&mut self, header: &TaggedHeader, payload: Fetch) -> bool {
        let _ = (header, payload);
        false
    }
}

/// State of the worker that an endpoint borrows for the duration of a call.
#[derive(Debug)]
pub struct Env<'a, M> {
    /// STags of the worker.
    pub stags: &'a mut StagTable,
    /// Memory of the regions.
    pub memory: &'a mut M,
    /// Counters of the worker.
    pub stats: &'a mut RdmaStats,
}

/// Output of one call of [`Endpoint::poll_transmit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of MPA frames and FPDUs handed to the transport.
    pub frames: usize,
    /// Length of these in bytes.
    pub bytes: usize,
    /// True if more output waits for room in the transport.
    pub pending: bool,
}

/// One end of a stream.
///
/// The owner passes received bytes to [`receive`](Self::receive) in stream order; polls
/// [`poll_event`](Self::poll_event) until it returns `None`; calls [`poll_transmit`](Self::poll_transmit) after both,
/// and when the transport has room again; and calls [`handle_timeout`](Self::handle_timeout) at
/// [`next_deadline`](Self::next_deadline). `now` is the time since a fixed start and never decreases.
///
/// [`Event::Close`] is the last event. The owner then ends the connection and revokes the STags of the stream.
#[derive(Debug)]
pub struct Endpoint<C> {
    config: StreamConfig,
    initiator: bool,
    /// `Some` until full operation.
    negotiation: Option<Box<Negotiation>>,
    terms: Option<Terms>,
    /// `Some` in full operation.
    deframer: Option<Deframer<C>>,
    /// Stream position behind the startup frames.
    position: u64,
    qp: QueuePair,
    drain: Option<Drain>,
    /// Time limit of [`Drain::Disconnect`].
    drain_deadline: Option<Duration>,
    /// Set once the peer was rejected; the peer should close until `linger_deadline`.
    rejected: bool,
    linger_deadline: Option<Duration>,
    /// Time limit of a Terminate that waits for room.
    terminate_deadline: Option<Duration>,
    /// Time of the next empty RDMA Write to a silent peer.
    poke_at: Option<Duration>,
    poke_due: bool,
    pokes: u32,
    terminate: Option<ErrorCode>,
    /// Stream position of the incomplete FPDU, and the time since which it is incomplete.
    incomplete: Option<(u64, Duration)>,
    /// Time of the next check of `incomplete`.
    fpdu_check_at: Option<Duration>,
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Creates the responder of a stream that was just accepted.
    pub fn responder(config: EndpointConfig, stream: StreamId, now: Duration) -> Self {
        let negotiation = Negotiation::responder(config.mpa, now);
        Self::new(config, stream, Some(negotiation), false)
    }

    /// Creates the initiator of a stream that was just connected.
    ///
    /// # Errors
    /// The private data is too long, or the revision is neither 1 nor 2.
    pub fn initiator(
        config: EndpointConfig,
        stream: StreamId,
        request: &ConnectRequest<'_>,
        now: Duration,
        stats: &mut RdmaStats,
    ) -> Result<Self, LocalError> {
        let negotiation = Negotiation::initiator(config.mpa, request, now, &mut stats.mpa)?;
        Ok(Self::new(config, stream, Some(negotiation), true))
    }

    fn new(
        config: EndpointConfig,
        stream: StreamId,
        negotiation: Option<Negotiation>,
        initiator: bool,
    ) -> Self {
        let (send, receive) = (config.send_queue.into(), config.receive_queue.into());
        let depths = Depths { send, receive, ..Depths::default() };
        Self {
            config: (&config).into(),
            initiator,
            negotiation: negotiation.map(Box::new),
            terms: None,
            deframer: None,
            position: 0,
            qp: QueuePair::new(Origin::new(stream, config.pd), depths),
            drain: None,
            drain_deadline: None,
            rejected: false,
            linger_deadline: None,
            terminate_deadline: None,
            poke_at: None,
            poke_due: false,
            pokes: 0,
            terminate: None,
            incomplete: None,
            fpdu_check_at: None,
        }
    }

    /// Takes the bytes at stream position `offset`, which follow those passed before.
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
        self.apply_state(now);
    }

    /// Processes the FPDUs of a chunk. Most chunks contain one or several complete FPDUs and no other bytes.
    fn fpdus<M: Memory>(&mut self, offset: u64, chunk: C, env: &mut Env<'_, M>) {
        let Self { deframer: Some(deframer), qp, .. } = self else {
            count(&mut env.stats.drops.after_error, 1);
            return;
        };
        while let Some(fpdu) = deframer.next_whole(offset, chunk.as_ref(), &mut env.stats.mpa) {
            match fpdu {
                Ok(fpdu) => {
                    if !qp.receive(&fpdu, env) {
                        deframer.keep_whole(fpdu.offset(), fpdu.len(), &mut env.stats.mpa);
                        break;
                    }
                }
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

    /// Delivers complete FPDUs and out-of-order runs in stream order.
    fn deliver<M: Memory>(&mut self, env: &mut Env<'_, M>) {
        let Self { deframer: Some(deframer), qp, .. } = self else { return };
        while !qp.is_stalled() {
            if let Some(run) = deframer.next_placed(&mut env.stats.mpa) {
                qp.receive_placed(&run, env.stats);
                continue;
            }
            match deframer.next_fpdu(&mut env.stats.mpa) {
                Some(Ok(fpdu)) => {
                    let len = fpdu.len();
                    if !qp.receive(&fpdu, env) {
                        deframer.keep(len, &mut env.stats.mpa);
                    }
                }
                Some(Err(error)) => qp.fail(&Fault::bare(stream_error(error)), env.stats),
                None => break,
            }
        }
        deframer.compact_if_small(&mut env.stats.mpa);
        if qp.state != StreamState::ReadyToSend {
            self.deframer = None;
        }
    }

    /// Sends queued output as far as the transport takes it.
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
        self.apply_state(now);
        progress.pending = self.has_output();
        progress
    }

    /// Returns true if [`Self::poll_transmit`] has something to send.
    pub fn has_output(&self) -> bool {
        self.negotiation.as_ref().is_some_and(|negotiation| !negotiation.unsent().is_empty())
            || self.poke_due
            || self.qp.has_output()
    }

    /// Returns the next event. The slot of a completed work request is free from here on.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.qp.poll_event()?;
        if let Event::TerminateSent { code, .. } | Event::TerminateReceived { code, .. } = &event {
            self.terminate = Some(*code);
        }
        Some(event)
    }

    /// Writes `local` to the peer's memory. The request completes when the transport has taken the bytes.
    pub fn post_write(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        remote: Stag,
        to: u64,
    ) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Write { stag: remote, to: TaggedOffset(to) }, local)
    }

    /// Reads the peer's memory into `local`. The request completes when the bytes are in memory.
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

    /// Sends `local` to the peer's next posted buffer. `solicited` asks for an event there; `invalidate` names an STag
    /// of the peer to invalidate. The request completes when the transport has taken the bytes.
    pub fn post_send(
        &mut self,
        wr_id: u64,
        local: LocalSlice,
        solicited: bool,
        invalidate: Option<Stag>,
    ) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Send { solicited, invalidate }, local)
    }

    /// Performs an atomic operation on the eight bytes at `to` of the peer's memory, whose address there must be a
    /// multiple of eight. The request completes when the original value is in `local`, in this machine's byte order.
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

    /// Sends eight bytes of Immediate Data, which consume the peer's next posted buffer without changing it. The
    /// request completes when the transport has taken them.
    pub fn post_immediate(&mut self, wr_id: u64, data: [u8; 8], solicited: bool) -> Result<(), PostError> {
        self.post(wr_id, WorkOp::Immediate { data, solicited }, LocalSlice::EMPTY)
    }

    fn post(&mut self, wr_id: u64, op: WorkOp, local: LocalSlice) -> Result<(), PostError> {
        self.post_work(WorkRequest::new(wr_id, op, Local::Slice(local)))
    }

    /// Posts a work request of any operation.
    pub(crate) fn post_work(&mut self, request: WorkRequest) -> Result<(), PostError> {
        if !self.takes_work() {
            return Err(PostError::State);
        }
        self.qp.sq.post(request)
    }

    /// Returns true if work may be posted.
    pub(crate) fn takes_work(&self) -> bool {
        self.qp.state == StreamState::ReadyToSend && self.drain.is_none()
    }

    /// Returns the queues, for the verbs.
    pub(crate) const fn queue_pair(&mut self) -> &mut QueuePair {
        &mut self.qp
    }

    /// Replaces the queues by those of a verbs queue pair, with the work posted there. Returns false if the stream is
    /// already in full operation; the endpoint's own queues must be empty.
    pub(crate) fn adopt(&mut self, mut queues: QueuePair, pd: Option<PdId>) -> bool {
        if self.qp.state != StreamState::Idle {
            return false;
        }
        queues.origin = Origin::new(self.qp.origin.stream, pd).with_rights(queues.origin.rights);
        while let Some(event) = self.qp.events.pop_front() {
            queues.events.push_back(event);
        }
        self.qp = queues;
        true
    }

    /// Posts a buffer for the peer's next Send. Allowed before full operation.
    pub fn post_recv(&mut self, wr_id: u64, local: LocalSlice) -> Result<(), PostError> {
        match self.qp.state {
            StreamState::Idle | StreamState::ReadyToSend => self.qp.rq.post(wr_id, Local::Slice(local)),
            StreamState::Terminating | StreamState::Closed => Err(PostError::State),
        }
    }

    /// Returns the identifier of the stream.
    pub const fn stream(&self) -> StreamId {
        self.qp.origin.stream
    }

    /// Returns the longest messages that fit one segment of `fpdu_max` bytes, as [`Sink::fpdu_max`] returns.
    pub fn max_msizes(&self, fpdu_max: usize) -> MessageSizes {
        let mulpdu = self.qp.framer.ulpdu_max(fpdu_max);
        MessageSizes {
            untagged: mulpdu.saturating_sub(UntaggedHeader::LEN),
            tagged: mulpdu.saturating_sub(TaggedHeader::LEN),
        }
    }

    /// Returns a snapshot of the endpoint.
    pub fn info(&self) -> EndpointInfo {
        let terms = self.terms.as_ref();
        EndpointInfo {
            state: self.qp.state,
            initiator: self.initiator,
            rev: terms.map_or(0, |terms| terms.revision),
            crc: terms.is_some_and(|terms| terms.crc),
            markers: terms.is_some_and(|terms| terms.markers_out),
            markers_in: terms.map_or(self.config.asks_for_markers, |terms| terms.markers_in),
            ird: terms.map_or(0, |terms| terms.ird),
            ord: terms.map_or(0, |terms| terms.ord),
            reads_owed: self.qp.irq.len(),
            work_pending: self.qp.sq.len(),
            counters: self.qp.counters,
            terminate: self.terminate,
        }
    }

    /// Starts the wait for the peer's first FPDU, after the first message in full operation and after each poke.
    fn arm_poke(&mut self, now: Duration) {
        let silent = self.initiator && self.qp.state == StreamState::ReadyToSend && !self.qp.peer_sent;
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

/// Maps a deframer error to the peer's error or to a local fault.
const fn stream_error(error: FpduError) -> StreamError {
    match error {
        FpduError::Crc => StreamError::Crc,
        FpduError::Marker | FpduError::Boundary => StreamError::FpduStart,
        FpduError::Fragmented | FpduError::Gap { .. } | FpduError::Undrained => StreamError::Local,
    }
}

#[cfg(test)]
mod tests;
