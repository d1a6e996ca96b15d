//! Transport side of a device: the adapter passes received bytes, asks for output, and polls requests here.

use core::net::SocketAddr;
use core::time::Duration;

use super::completion::{Slots, WorkCompletion};
use super::connection::{Details, Id, QpLink, Stage, TransportRequest};
use super::events::CmEventKind;
use super::ids::{CmId, QpNum};
use super::queue_pair::{Ended, QpState};
use super::{AsyncEvent, Device, micros, nanos};
use crate::endpoint::{Endpoint, EndpointConfig, Env, Progress, Sink};
use crate::memory::{Memory, StagTable, StreamId};
use crate::qp::{CloseHow, Event, StreamState, WcOpcode, WcStatus};
use crate::stats::RdmaStats;
use crate::terminate::ErrorCode;

impl<C: AsRef<[u8]>> Device<C> {
    /// Returns the next request to the adapter.
    pub fn poll_transport(&mut self) -> Option<TransportRequest> {
        if !self.has_request {
            return None;
        }
        if let Some(request) = self.transport.pop_front() {
            return Some(request);
        }
        let Some(id) = self.transmit.pop_front() else {
            self.has_request = false;
            return None;
        };
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.tx_requested = false;
        }
        Some(TransportRequest::Transmit { id })
    }

    /// Returns true if [`Self::poll_transport`] has a request.
    pub fn has_request(&self) -> bool {
        self.has_request && (!self.transmit.is_empty() || !self.transport.is_empty())
    }

    /// Queues a request to begin or end a stream.
    pub(super) fn request(&mut self, request: TransportRequest) {
        self.transport.push_back(request);
        self.has_request = true;
    }

    /// Asks the adapter to transmit for a connection.
    pub(super) fn request_transmit(&mut self, id: CmId) {
        if let Some(entry) = self.ids.get_mut(id.0)
            && entry.endpoint.is_some()
            && !entry.tx_requested
        {
            entry.tx_requested = true;
            self.transmit.push_back(id);
            self.has_request = true;
        }
    }

    /// Reports that the listener's address is not available. The id can only be destroyed then.
    pub fn listen_failed(&mut self, id: CmId) {
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.stage = Stage::Ended;
            self.push_cm_event(id, CmEventKind::AddressError);
        }
    }

    /// Takes a stream that a listener accepted. `stream` must be unique for the lifetime of the worker. `None`: no
    /// slot is free; the adapter resets the stream, or calls [`Self::make_room`] first.
    pub fn incoming(
        &mut self,
        listener: CmId,
        stream: StreamId,
        (local, peer): (SocketAddr, SocketAddr),
        now: Duration,
    ) -> Option<CmId> {
        let entry = self.ids.get(listener.0)?;
        let Stage::Listening { backlog, waiting, ird, ord } = entry.stage else {
            return None;
        };
        if waiting >= backlog || self.silent.len() >= self.limits.silent {
            return None;
        }
        let owner = entry.owner;
        let settings = entry.details.config.as_deref().copied().unwrap_or(self.endpoint);
        let mut config = EndpointConfig { pd: None, send_queue: 0, receive_queue: 0, ..settings };
        config.mpa.ird_max = config.mpa.ird_max.min(ird);
        config.mpa.ord_max = config.mpa.ord_max.min(ord);
        let (stream_id, local, peer) = (Some(stream), Some(local), Some(peer));
        let details =
            Details { stream: stream_id, local, peer, began_us: micros(nanos(now)), ..Details::NONE };
        let id = Id {
            stage: Stage::Connecting,
            endpoint: Some(Box::new(Endpoint::responder(config, stream, now))),
            listener: Some(listener),
            owner,
            // Until the program receives the connect request.
            destroyed: true,
            ..Id::new(details)
        };
        let id = CmId(self.ids.insert(id)?);
        self.add_silent(id);
        Some(id)
    }

    /// Resets the connection that has been silent longest, of those without an MPA Request, so that [`Self::incoming`]
    /// has a free slot once the resulting [`TransportRequest::Close`] is done. Returns false if that would not help:
    /// the listener's backlog is full of requests, or no connection is silent.
    pub fn make_room(&mut self, listener: CmId) -> bool {
        let is_full =
            |stage| matches!(stage, Stage::Listening { backlog, waiting, .. } if waiting >= backlog);
        if self.ids.get(listener.0).is_none_or(|entry| is_full(entry.stage)) {
            return false;
        }
        let Some(oldest) = self.silent.oldest() else { return false };
        self.stats.silent_evicted = self.stats.silent_evicted.wrapping_add(1);
        self.transport_lost(oldest);
        true
    }

    /// Reports the stream of a [`TransportRequest::Open`]. `stream` is as for [`Self::incoming`]. Returns false if the
    /// connection no longer exists; the adapter resets the stream.
    pub fn opened(
        &mut self,
        id: CmId,
        stream: StreamId,
        local: SocketAddr,
        now: Duration,
        stats: &mut RdmaStats,
    ) -> bool {
        if self.ids.get(id.0).is_none_or(|entry| entry.stage != Stage::Opening) {
            return false;
        }
        if self.start_initiator(id, stream, now, stats).is_none() {
            self.open_failed(id);
            return false;
        }
        if let Some(entry) = self.ids.get_mut(id.0) {
            (entry.details.stream, entry.details.local) = (Some(stream), Some(local));
        }
        self.request_transmit(id);
        true
    }

    /// Reports that the peer refused the stream of a [`TransportRequest::Open`].
    pub fn open_refused(&mut self, id: CmId) {
        self.not_opened(id, CmEventKind::Refused);
    }

    /// Reports that the stream of a [`TransportRequest::Open`] could not be opened.
    pub fn open_failed(&mut self, id: CmId) {
        self.not_opened(id, CmEventKind::Unreachable);
    }

    /// Reports that the local address of a connection is in use.
    pub fn address_unavailable(&mut self, id: CmId) {
        self.not_opened(id, CmEventKind::AddressError);
    }

    fn not_opened(&mut self, id: CmId, kind: CmEventKind) {
        if self.ids.get(id.0).is_some_and(|entry| entry.stage == Stage::Opening) {
            self.ended(id, kind);
        }
    }

    /// Takes the bytes at stream position `offset`, which follow those passed before.
    pub fn receive<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        offset: u64,
        chunk: C,
        env: &mut Env<'_, M>,
    ) {
        self.receive_all(id, now, core::iter::once((offset, chunk)), env);
    }

    /// Takes consecutive chunks, each with its stream position. Completions and events are queued after the last.
    /// Returns the number of chunks that the stream retains for an incomplete FPDU. Takes no more chunks once the
    /// stream is [stalled](Self::is_stalled).
    pub fn receive_all<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        chunks: impl IntoIterator<Item = (u64, C)>,
        env: &mut Env<'_, M>,
    ) -> usize {
        self.deliver(id, |endpoint| {
            for (offset, chunk) in chunks {
                endpoint.receive(now, offset, chunk, env);
                if endpoint.is_stalled() {
                    break;
                }
            }
            endpoint.chunks()
        })
    }

    /// Copies the bytes of the chunks that a stream retains, and drops the chunks. Returns the number that is left.
    #[cold]
    pub fn compact(&mut self, id: CmId, stats: &mut RdmaStats) -> usize {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut());
        endpoint.map_or(0, |endpoint| {
            endpoint.compact(stats);
            endpoint.chunks()
        })
    }

    /// Returns true while the peer has no claim on a connection: it has not sent an MPA Request, or was rejected. The
    /// adapter may reset the stream in favor of another then.
    pub fn is_evictable(&self, id: CmId) -> bool {
        self.ids.get(id.0).is_none_or(|entry| entry.is_silent || entry.stage == Stage::Ended)
    }

    /// Returns the stream of a connection, for an STag that is valid on this stream only.
    pub fn stream(&self, id: CmId) -> Option<StreamId> {
        self.ids.get(id.0)?.details.stream
    }

    /// Examines bytes behind a gap, as [`Endpoint::receive_out_of_order`].
    pub fn receive_out_of_order<M: Memory>(
        &mut self,
        id: CmId,
        offset: u64,
        bytes: &[u8],
        env: &mut Env<'_, M>,
    ) -> bool {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut());
        let Some(endpoint) = endpoint else { return false };
        let taken = endpoint.receive_out_of_order(offset, bytes, env);
        if endpoint.is_deferred() {
            self.note_deferred(id);
        }
        taken
    }

    /// Advances the stream by the `len` bytes at position `offset`, for which [`Self::receive_out_of_order`] returned
    /// true. Returns as [`Self::receive_all`].
    pub fn receive_placed<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        offset: u64,
        len: usize,
        env: &mut Env<'_, M>,
    ) -> usize {
        self.deliver(id, |endpoint| {
            endpoint.receive_placed(now, offset, len, env);
            endpoint.chunks()
        })
    }

    /// Calls `take` with the endpoint, which then has the shared receive queue of its queue pair. Returns the number of
    /// chunks, which `take` returns.
    pub(super) fn deliver(&mut self, id: CmId, take: impl FnOnce(&mut Endpoint<C>) -> usize) -> usize {
        let Some(entry) = self.ids.get_mut(id.0) else { return 0 };
        let (number, Some(endpoint)) = (entry.qp.current(), entry.endpoint.as_mut()) else { return 0 };
        let mut qp = number.and_then(|number| self.qps.get_mut(number.0));
        let srq_id = qp.as_ref().and_then(|qp| qp.init.srq);
        let srq = srq_id.and_then(|srq| self.srqs.get_mut(srq.0));
        if let (Some(qp), Some(srq)) = (&mut qp, srq) {
            let may_take = usize::from(qp.init.cap.max_recv_wr).saturating_sub(qp.recv_used);
            let queues = endpoint.queue_pair();
            // Who waits for buffers may have them all.
            let may_take = if queues.awaits_buffers { usize::MAX } else { may_take };
            let rq = &mut queues.rq;
            (rq.shared, rq.shared_max) = (srq.queue.take(), may_take);
            let chunks = take(endpoint);
            let rq = &mut endpoint.queue_pair().rq;
            srq.queue = rq.shared.take();
            qp.recv_used = qp.recv_used.saturating_add(may_take.saturating_sub(rq.shared_max));
            let reached = srq.queue.as_mut().is_some_and(|queue| core::mem::take(&mut queue.limit_reached));
            let is_deferred = endpoint.is_deferred();
            let is_without_buffer = endpoint.queue_pair().waits_for_buffer;
            if is_without_buffer && self.without_buffer.insert(id) {
                srq.waiting.push_back(id);
            }
            if let Some(srq_id) = srq_id.filter(|_| reached) {
                self.raise(AsyncEvent::SrqLimitReached(srq_id));
            }
            self.taken(id, is_deferred);
            chunks
        } else {
            let chunks = take(endpoint);
            let is_deferred = endpoint.is_deferred();
            if endpoint.queue_pair().waits_for_buffer {
                self.without_buffer.insert(id);
            }
            self.taken(id, is_deferred);
            chunks
        }
    }

    /// Queues what a call of the endpoint has produced.
    #[inline]
    fn taken(&mut self, id: CmId, is_deferred: bool) {
        if is_deferred {
            self.note_deferred(id);
        }
        self.drain(id);
    }

    /// Sends queued output as far as the transport takes it, and queues the resulting completions and events.
    pub fn poll_transmit<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Progress {
        let progress = self.transmit(id, now, env, sink);
        self.drain(id);
        progress
    }

    /// Performs the first half of [`Self::poll_transmit`]: sends. For an adapter that hands frames to the port before
    /// it processes completions.
    pub fn transmit<M: Memory>(
        &mut self,
        id: CmId,
        now: Duration,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Progress {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut());
        let Some(endpoint) = endpoint else { return Progress::default() };
        let progress = endpoint.poll_transmit(now, env, sink);
        if endpoint.is_deferred() {
            self.note_deferred(id);
        }
        progress
    }

    /// Returns true if [`Self::poll_transmit`] has something to send.
    pub fn has_output(&self, id: CmId) -> bool {
        self.ids
            .get(id.0)
            .and_then(|entry| entry.endpoint.as_ref())
            .is_some_and(|endpoint| endpoint.has_output())
    }

    /// Handles the end of the peer's half of the stream.
    pub fn peer_closed(&mut self, id: CmId, now: Duration, stats: &mut RdmaStats) {
        if let Some(endpoint) = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut()) {
            endpoint.peer_closed(now, stats);
            if self.is_own(id) {
                self.request_transmit(id);
            } else {
                self.closing(id);
            }
            self.drain(id);
        }
    }

    /// Handles the loss of the stream, or resets it.
    pub fn transport_lost(&mut self, id: CmId) {
        let Some(entry) = self.ids.get_mut(id.0) else { return };
        if let Some(endpoint) = entry.endpoint.as_mut() {
            endpoint.transport_lost();
            self.drain(id);
        } else if entry.stage == Stage::Opening {
            if !self.withdraw_request(
                |request| matches!(request, TransportRequest::Open { id: of, .. } if *of == id),
            ) {
                let how = CloseHow::Reset;
                self.request(TransportRequest::Close { id, stream: None, how });
            }
            self.ended(id, CmEventKind::ConnectError { code: ErrorCode::TCP_LOST });
        }
    }

    /// Ends the stream of an established connection whose program goes, as [`Endpoint::leave`].
    pub(super) fn leave(&mut self, id: CmId) {
        let endpoint = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut());
        if let Some(endpoint) = endpoint {
            endpoint.leave();
            self.drain(id);
        } else {
            self.transport_lost(id);
        }
    }

    /// Runs the timers of a connection that have expired at `now`.
    pub fn handle_timeout(&mut self, id: CmId, now: Duration, stats: &mut RdmaStats) {
        if let Some(endpoint) = self.ids.get_mut(id.0).and_then(|entry| entry.endpoint.as_mut()) {
            endpoint.handle_timeout(now, stats);
            self.drain(id);
        }
    }

    /// Returns the time at which [`Self::handle_timeout`], and [`Self::poll_transmit`] after it, are due.
    pub fn next_deadline(&self, id: CmId) -> Option<Duration> {
        self.ids.get(id.0)?.endpoint.as_ref()?.next_deadline()
    }

    /// Reports that a [`TransportRequest::Close`] is done. Revokes the STags that are valid on this stream only.
    pub fn closed(&mut self, id: CmId, stags: &mut StagTable) {
        let Some(entry) = self.ids.get_mut(id.0).filter(|entry| entry.endpoint.is_none()) else { return };
        if let Some(stream) = entry.details.stream.take() {
            stags.revoke_stream(stream);
        }
        self.release_id(id);
    }

    /// Performs the second half of [`Self::poll_transmit`]: processes the endpoint's events until none is left.
    pub fn drain(&mut self, id: CmId) {
        loop {
            let Self { ids, qps, .. } = self;
            let entry = ids.get_mut(id.0);
            let Some((number, endpoint)) =
                entry.and_then(|entry| Some((entry.qp.current(), entry.endpoint.as_mut()?)))
            else {
                break;
            };
            if let Some(number) = number
                && let Some(qp) = qps.get_mut(number.0)
            {
                let queues = endpoint.queue_pair();
                qp.skip_unsignaled(queues);
                if let Some((wr_id, byte_len)) = queues.take_success() {
                    if let Some(Ended { opcode, slots, posted_at_ns }) = qp.send_ended(WcStatus::Success) {
                        let (cq, qp_num) = (qp.init.send_cq, number);
                        self.times
                            .completion
                            .record(Duration::from_nanos(self.now_ns.saturating_sub(posted_at_ns)));
                        let wc =
                            WorkCompletion { wr_id, opcode, byte_len, qp_num, ..WorkCompletion::default() };
                        self.push_completion(cq, wc, slots);
                    }
                    continue;
                }
            }
            let Some(event) = endpoint.poll_event() else {
                if endpoint.queue_pair().state == StreamState::Terminating {
                    self.enter_terminate(id);
                }
                break;
            };
            self.on_event(id, event);
        }
        self.fail_overrun_qps();
    }

    fn enter_terminate(&mut self, id: CmId) {
        let qp = self.qp_of(id).and_then(|number| self.qps.get_mut(number.0));
        if let Some(qp) = qp.filter(|qp| matches!(qp.state, QpState::Rts | QpState::Closing)) {
            qp.state = QpState::Terminate;
        }
        self.request_transmit(id);
    }

    #[inline]
    fn on_event(&mut self, id: CmId, event: Event) {
        match event {
            Event::Completion { .. }
            | Event::Received { .. }
            | Event::Datagram { .. }
            | Event::Immediate { .. } => match self.qp_of(id) {
                Some(number) => self.on_completion(number, &event),
                None => self.resume_blocked(),
            },
            Event::Datagrams => self.datagrams_arrived(id),
            event if self.is_own(id) => self.link_event(id, event),
            event => self.connection_event(id, event),
        }
    }

    /// Returns true if a connection is the device's own, between queue pairs that are connected by number.
    #[inline]
    fn is_own(&self, id: CmId) -> bool {
        self.ids.get(id.0).is_some_and(|entry| entry.owner.is_device())
    }

    /// Notes that the stream of a connection is in full operation.
    pub(super) fn established(&mut self, id: CmId) {
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.stage = Stage::Established;
            let us = micros(self.now_ns).wrapping_sub(entry.details.began_us);
            self.times.handshake.record(Duration::from_micros(us.into()));
        }
        if let Some(qp) = self.qp_of(id).and_then(|number| self.qps.get_mut(number.0)) {
            qp.state = QpState::Rts;
        }
    }

    /// Ends a connection, established or not, and queues the event `kind` unless one was queued before.
    pub(super) fn ended(&mut self, id: CmId, kind: CmEventKind) {
        self.leave_backlog(id);
        let Some(entry) = self.ids.get_mut(id.0) else { return };
        let (number, told) = (entry.qp.current(), entry.stage == Stage::Ended);
        (entry.endpoint, entry.stage) = (None, Stage::Ended);
        let is_own = entry.owner.is_device();
        if is_own {
            entry.qp = QpLink::None;
        }
        if !self.without_buffer.is_empty() {
            self.without_buffer.remove(&id);
        }
        if is_own {
            return self.link_ended(id, number);
        }
        let Some(entry) = self.ids.get_mut(id.0) else { return };
        if let Some(number) = number {
            entry.qp = QpLink::Was(number);
            self.enter_error(number);
        }
        if !told {
            self.push_cm_event(id, kind);
        }
    }

    /// Queues the completion of a work request that has ended.
    pub(super) fn on_completion(&mut self, number: QpNum, event: &Event) {
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        let (send_cq, recv_cq) = (qp.init.send_cq, qp.init.recv_cq);
        let wc = WorkCompletion { qp_num: number, opcode: WcOpcode::Recv, ..WorkCompletion::default() };
        let wc = match *event {
            Event::Completion { wr_id, op: WcOpcode::Recv, status, bytes } => {
                WorkCompletion { wr_id, status, byte_len: bytes, ..wc }
            }
            Event::Completion { wr_id, status, bytes, .. } => {
                if let Some(Ended { opcode, slots, posted_at_ns }) = qp.send_ended(status) {
                    if status == WcStatus::Success {
                        self.times
                            .completion
                            .record(Duration::from_nanos(self.now_ns.saturating_sub(posted_at_ns)));
                    }
                    let wc = WorkCompletion { wr_id, status, opcode, byte_len: bytes, ..wc };
                    self.push_completion(send_cq, wc, slots);
                }
                return;
            }
            Event::Received { wr_id, bytes, solicited, invalidated, immediate } => {
                let imm_data = immediate.map(|[a, b, c, d]| [a, b, c, d, 0, 0, 0, 0]);
                WorkCompletion { wr_id, byte_len: bytes, solicited, invalidated, imm_data, ..wc }
            }
            Event::Datagram { wr_id, bytes, source, solicited, immediate } => {
                let imm_data = immediate.map(|[a, b, c, d]| [a, b, c, d, 0, 0, 0, 0]);
                let src_qp = QpNum(source);
                WorkCompletion { wr_id, byte_len: bytes, solicited, imm_data, src_qp, ..wc }
            }
            Event::Immediate { wr_id, data, bytes, solicited } => {
                let opcode = WcOpcode::RecvRdmaWithImm;
                let imm_data = Some(data);
                WorkCompletion { wr_id, imm_data, byte_len: bytes, solicited, opcode, ..wc }
            }
            _ => return,
        };
        self.push_completion(recv_cq, wc, Slots::Receive);
    }
}
