//! Receive path: one verified FPDU at a time is checked, placed and delivered.

use super::payload::{FpduPayload, Payload};
use crate::Env;
use crate::ddp::UntaggedQueue;
use crate::memory::{AccessError, Fetch, Memory, Placement, Reach};
use crate::mpa::Fpdu;
use crate::qp::{
    CloseHow, Event, QueuePair, ReadReply, Reply, Stop, StreamState, WcStatus, WorkOp, WorkRequest,
};
use crate::stats::count;
use crate::terminate::{ErrorCode, Fault, StreamError};
use crate::wire::atomic::{AtomicRequest, AtomicResponse, IMMEDIATE_LEN};
use crate::wire::ddp::{self, Header, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{self, ControlField, Opcode, OpcodeRow, PROGRESS_LEN, ReadRequest};
use crate::wire::terminate::{BitOrder, Control, Terminate};
use crate::wire::{MessageOffset, QueueNumber, Stag};

/// Bytes of a ULPDU that contain everything but payload: DDP header and Atomic Request.
const PREFIX_LEN: usize = UntaggedHeader::LEN + AtomicRequest::LEN;

impl QueuePair {
    /// Processes an FPDU. After an error all FPDUs are dropped; RFC 5041 §7.1: "DDP MUST silently drop any subsequent
    /// incoming DDP Segments."
    ///
    /// Returns false if the FPDU waits for a deferred copy, and is to be passed again.
    #[inline]
    #[must_use]
    pub(crate) fn receive<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> bool {
        if self.state != StreamState::ReadyToSend {
            count(&mut env.stats.drops.after_error, 1);
            return true;
        }
        if let Some(ticket) = self.waits_for_event() {
            self.stall(ticket);
            return false;
        }
        let copied;
        let head = match fpdu.contiguous() {
            Some(ulpdu) => ulpdu,
            None => {
                let mut prefix = [0; PREFIX_LEN];
                let len = fpdu.copy_prefix(&mut prefix);
                copied = prefix;
                copied.get(..len).unwrap_or_default()
            }
        };
        if !self.peer_sent && self.first(head, fpdu.len(), env.stats) {
            return true;
        }
        let Ok((header, rest)) = Header::parse(head) else {
            self.fail(&Fault::bare(StreamError::FpduLength), env.stats);
            return true;
        };
        match self.segment(&header, rest, fpdu, env) {
            Ok(()) => true,
            Err(stop) => self.stopped(stop, (&header, rest, fpdu.len()), env),
        }
    }

    /// Returns false if a segment waits; otherwise ends the stream for it.
    #[cold]
    fn stopped<M>(
        &mut self,
        stop: Stop,
        (header, rest, len): (&Header, &[u8], usize),
        env: &mut Env<'_, M>,
    ) -> bool {
        match stop {
            Stop::Wait(ticket) => {
                self.stall(ticket);
                false
            }
            Stop::Buffer => {
                self.waits_for_buffer = true;
                count(&mut env.stats.rdmap.buffer_waits, 1);
                false
            }
            Stop::Fault(error) => {
                self.fail(&about(error, header, rest, len), env.stats);
                true
            }
        }
    }

    /// Processes a segment with a complete DDP header. `rest` begins with its RDMAP header, if it has one.
    #[inline]
    fn segment<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        header: &Header,
        rest: &[u8],
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        if header.version() != ddp::VERSION {
            return Err(Stop::Fault(match header {
                Header::Tagged(_) => StreamError::TaggedVersion,
                Header::Untagged(_) => StreamError::UntaggedVersion,
            }));
        }
        let control = ControlField::parse(header.ulp_control());
        if control.version != rdmap::VERSION {
            return Err(StreamError::RdmapVersion.into());
        }
        // RFC 5040 §4.1 Figure 4: the opcode determines whether a message is tagged, and its queue.
        let tagged = FpduPayload { fpdu, skip: TaggedHeader::LEN };
        match (header, control.opcode) {
            (Header::Tagged(header), Opcode::RdmaWrite) => self.write(header, tagged, env),
            (Header::Tagged(header), Opcode::ReadResponse) => self.read_response(header, tagged, env),
            (Header::Untagged(header), opcode) => {
                let row = opcode.row().ok_or(StreamError::UnexpectedOpcode)?;
                self.untagged(header, row, rest, fpdu, env)
            }
            (Header::Tagged(_), _) => Err(StreamError::UnexpectedOpcode.into()),
        }
    }

    /// Processes a tagged segment of the other end of a looped connection, whose payload is in this memory. The
    /// peer's first message does not come this way. Returns as [`Self::receive`].
    #[must_use]
    pub(crate) fn receive_fetch<M: Memory>(
        &mut self,
        header: &TaggedHeader,
        payload: Fetch,
        env: &mut Env<'_, M>,
    ) -> bool {
        if self.state != StreamState::ReadyToSend {
            count(&mut env.stats.drops.after_error, 1);
            return true;
        }
        if let Some(ticket) = self.waits_for_event() {
            self.stall(ticket);
            return false;
        }
        let len = payload.len().saturating_add(TaggedHeader::LEN);
        let taken = match ControlField::parse(header.ulp_control).opcode {
            Opcode::RdmaWrite => self.write(header, payload, env),
            Opcode::ReadResponse => self.read_response(header, payload, env),
            _ => Err(StreamError::UnexpectedOpcode.into()),
        };
        match taken {
            Ok(()) => true,
            Err(stop) => self.stopped(stop, (&Header::Tagged(*header), &[], len), env),
        }
    }

    #[inline]
    fn write<M: Memory>(
        &mut self,
        header: &TaggedHeader,
        payload: impl Payload,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let len = payload.len();
        // RFC 5041 §5.2: "The STag and TO fields MUST NOT be checked for a zero-length Tagged DDP Message."
        if len > 0 {
            let at = env
                .stags
                .check_place(header.stag, header.offset.0, len, self.origin)
                .map_err(StreamError::Tagged)?;
            self.place(at, payload, env)?;
        }
        if header.last {
            self.processed(1);
            count(&mut self.counters.in_writes, 1);
            count(&mut env.stats.rdmap.in_rdma_writes, 1);
        }
        Ok(())
    }

    /// Copies the payload of a segment to its checked destination.
    ///
    /// RFC 5041 §7.1: on an error "it MUST cease placing the remainder of the DDP Segment", here all of it.
    #[inline]
    pub(super) fn place<M: Memory>(
        &mut self,
        at: Placement,
        payload: impl Payload,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let queues = self.may_place((at.region(), at.offset(), at.len()), env)?;
        count(&mut self.counters.bytes_placed, at.len());
        count(&mut env.stats.rdmap.payload_bytes_placed, at.len());
        count(&mut env.stats.mpa.bytes_copied, at.len());
        if !payload.place(at, env.memory) {
            return Err(StreamError::Place.into());
        }
        if queues {
            self.queued(env);
        }
        Ok(())
    }

    /// Processes a segment of the response to the oldest read. It must contain the next bytes due, in order.
    fn read_response<M: Memory>(
        &mut self,
        header: &TaggedHeader,
        payload: impl Payload,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let len = payload.len();
        let is_read = |due: &&mut WorkRequest| matches!(due.op, WorkOp::Read { .. });
        let due = self.sq.due().filter(is_read).ok_or(StreamError::UnexpectedOpcode)?;
        if len > 0 {
            let tagged = |error| Err(Stop::Fault(StreamError::Tagged(error)));
            if header.stag != due.sink {
                return tagged(AccessError::InvalidStag);
            }
            if header.offset.checked_add(len as u64).is_none() {
                return tagged(AccessError::Wrap);
            }
            if header.offset.0 != u64::from(due.progress) {
                return tagged(AccessError::Bounds);
            }
            let (local, start) = (due.local, due.progress);
            if due.local.len().checked_sub(start).is_none_or(|rest| (rest as usize) < len) {
                return tagged(AccessError::Bounds);
            }
            if let Err(stop) = self.place_sink(local, start, payload, env) {
                if let Stop::Fault(_) = stop {
                    self.due_failed();
                }
                return Err(stop);
            }
            if let Some(due) = self.sq.due() {
                due.progress = start.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            }
        }
        if header.last {
            let due = self.sq.due().filter(|due| due.progress == due.local.len());
            let invalidate = due.ok_or(StreamError::ReadResponseShort)?.invalidate;
            if let Some(stag) = invalidate
                && env.stags.invalidate_local(stag, self.origin).is_err()
            {
                self.due_failed();
                return Err(StreamError::Local.into());
            }
            self.sq.due_done();
            self.complete();
            count(&mut env.stats.rdmap.in_read_responses, 1);
        }
        Ok(())
    }

    fn untagged<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        row: &OpcodeRow,
        rest: &[u8],
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let len = fpdu.len().saturating_sub(UntaggedHeader::LEN);
        let of_queue = |queue| {
            if header.queue == queue { Ok(()) } else { Err(StreamError::QueueNumber) }
        };
        match row.opcode {
            Opcode::ReadRequest => {
                of_queue(QueueNumber::READ_REQUEST)?;
                self.read_request(header, rest, len, env)
            }
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => {
                of_queue(QueueNumber::SEND)?;
                self.send(header, row, len, fpdu, env)
            }
            Opcode::Terminate => {
                of_queue(QueueNumber::TERMINATE)?;
                self.terminated(rest, env);
                Ok(())
            }
            Opcode::AtomicRequest => {
                of_queue(QueueNumber::READ_REQUEST)?;
                self.atomic_request(header, rest, len, env)
            }
            Opcode::AtomicResponse => {
                of_queue(QueueNumber::ATOMIC_RESPONSE)?;
                self.atomic_response(header, rest, len, env)
            }
            Opcode::ImmediateData | Opcode::ImmediateDataSolicited => {
                of_queue(QueueNumber::SEND)?;
                self.immediate(header, row, rest, len, env)
            }
            Opcode::SendImmediate | Opcode::SendImmediateSolicited if self.extensions().send_immediate => {
                of_queue(QueueNumber::SEND)?;
                self.send(header, row, len, fpdu, env)
            }
            Opcode::Progress if self.extensions().progress => {
                of_queue(QueueNumber::PROGRESS)?;
                Ok(self.progress(header, rest, len, env)?)
            }
            Opcode::Datagram => self.datagram(header, rest, fpdu, env),
            // Tagged messages whose T bit is wrong, and what the ends have not agreed on.
            Opcode::RdmaWrite
            | Opcode::ReadResponse
            | Opcode::SendImmediate
            | Opcode::SendImmediateSolicited
            | Opcode::Progress => Err(StreamError::UnexpectedOpcode.into()),
        }
    }

    fn read_request<M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        rest: &[u8],
        len: usize,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let queue = UntaggedQueue { msn: self.in_reads, offset: MessageOffset(0) };
        queue.check_msn(header)?;
        // The response follows what the peer has written before.
        if let Some(ticket) = self.gate() {
            return Err(Stop::Wait(ticket));
        }
        // RFC 5040 §6.1: "the RDMAP layer MUST NOT exceed the maximum number of outstanding, inbound RDMA Read
        // Requests that were negotiated".
        if self.irq.len() >= self.irq_max {
            return Err(StreamError::NoBuffer.into());
        }
        queue.check_offset(header, len, ReadRequest::LEN as u64)?;
        let Ok((request, _)) = ReadRequest::parse(rest) else {
            return Err(StreamError::ReadRequestLength.into());
        };
        if !header.last {
            return Err(StreamError::ReadRequestLength.into());
        }
        // RFC 5040 §5.2.1: with a size of zero the Data Source "MUST NOT validate the Data Source STag and Data
        // Source Tagged Offset".
        if request.size > 0 {
            let (stag, to, size) = (request.source_stag, request.source_offset.0, request.size as usize);
            env.stags.check_fetch(stag, to, size, self.origin).map_err(StreamError::Read)?;
        }
        self.irq.push_back(Reply::Read(ReadReply { header: *header, request }));
        self.in_reads = self.in_reads.next();
        self.processed(1);
        count(&mut self.counters.in_reads, 1);
        count(&mut env.stats.rdmap.in_rdma_reads, 1);
        Ok(())
    }

    /// Performs an atomic operation for the peer at once (RFC 7306 §5.2.1, "in the order they were sent"); the
    /// response is queued with the others owed.
    fn atomic_request<M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        rest: &[u8],
        len: usize,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let queue = UntaggedQueue { msn: self.in_reads, offset: MessageOffset(0) };
        queue.check_msn(header)?;
        if self.irq.len() >= self.irq_max {
            return Err(StreamError::NoBuffer.into());
        }
        queue.check_offset(header, len, AtomicRequest::LEN as u64)?;
        let (request, _) = AtomicRequest::parse(rest).map_err(|_| StreamError::AtomicRequest)?;
        if !header.last {
            return Err(StreamError::AtomicRequest.into());
        }
        let op = request.op.map_err(|_| StreamError::AtomicRequest)?;
        let word = env.stags.check_atomic(request.stag, request.to.0, self.origin);
        let word = word.map_err(StreamError::Atomic)?.ok_or(StreamError::AtomicAlignment)?;
        if let Some(ticket) = self.gate() {
            return Err(Stop::Wait(ticket));
        }
        let original = if self.has_atomic() {
            self.deferred_atomic(word, op, env)?
        } else {
            match env.memory.reach(self.origin.stream, word.region(), word.offset(), size_of::<u64>()) {
                Reach::Direct => env.memory.atomic(word, op).ok_or(StreamError::Fetch)?,
                Reach::Deferred => self.deferred_atomic(word, op, env)?,
                Reach::Busy(ticket) => return Err(Stop::Wait(ticket)),
                Reach::Gone => return Err(StreamError::Fetch.into()),
            }
        };
        self.irq.push_back(Reply::Atomic(AtomicResponse { id: request.id, original }));
        self.in_reads = self.in_reads.next();
        self.processed(1);
        count(&mut self.counters.in_atomics, 1);
        count(&mut env.stats.rdmap.in_atomics, 1);
        Ok(())
    }

    /// Processes the response to the oldest atomic operation that waits for one (RFC 7306 §5.2.2).
    fn atomic_response<M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        rest: &[u8],
        len: usize,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let is_atomic = |due: &&mut WorkRequest| matches!(due.op, WorkOp::Atomic { .. });
        let due = self.sq.due().filter(is_atomic).ok_or(StreamError::UnexpectedOpcode)?;
        let queue = UntaggedQueue { msn: self.in_atomic_responses, offset: MessageOffset(0) };
        queue.check_msn(header)?;
        queue.check_offset(header, len, AtomicResponse::LEN as u64)?;
        let (response, _) = AtomicResponse::parse(rest).map_err(|_| StreamError::AtomicResponse)?;
        if !header.last || response.id != due.sink.0 {
            return Err(StreamError::AtomicResponse.into());
        }
        let (local, bytes) = (due.local, response.original.to_ne_bytes());
        if let Err(stop) = self.place_original(local, bytes, env) {
            if let Stop::Fault(_) = stop {
                self.due_failed();
            }
            return Err(stop);
        }
        self.in_atomic_responses = self.in_atomic_responses.next();
        self.sq.due_done();
        self.complete();
        count(&mut env.stats.rdmap.in_atomic_responses, 1);
        Ok(())
    }

    /// RFC 7306 §6.3: one message "MUST consume one Untagged Buffer", and the receiver "MUST check that \[it\]
    /// include\[s\] exactly 8 bytes of data".
    fn immediate<M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        row: &OpcodeRow,
        rest: &[u8],
        len: usize,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        self.in_sends.check_msn(header)?;
        if self.rq.front().is_none() && !self.is_watched(env) {
            return Err(self.without_buffer());
        }
        // A segment that does not begin a message would continue a Send; Immediate Data cannot.
        if header.offset.0 != 0 || self.in_sends.offset.0 != 0 {
            return Err(StreamError::MessageOffset.into());
        }
        let data = rest.first_chunk::<IMMEDIATE_LEN>().filter(|_| len == IMMEDIATE_LEN && header.last);
        let data = *data.ok_or(StreamError::ImmediateLength)?;
        self.in_sends.advance(len, true);
        self.processed(1);
        match self.rq.pop() {
            Some(buffer) => {
                let (wr_id, solicited) = (buffer.wr_id, row.solicited);
                let [.., a, b, c, d] = data;
                let told = u32::from_be_bytes([a, b, c, d]);
                let bytes = if self.extensions().immediate_length { told } else { 0 };
                self.events.push_back(Event::Immediate { wr_id, data, bytes, solicited });
            }
            None => self.notify_immediate(data, row.solicited, env),
        }
        count(&mut env.stats.rdmap.in_immediates, 1);
        Ok(())
    }

    fn send<C: AsRef<[u8]>, M: Memory>(
        &mut self,
        header: &UntaggedHeader,
        row: &OpcodeRow,
        len: usize,
        fpdu: &Fpdu<'_, C>,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        self.in_sends.check_msn(header)?;
        // RFC 5040 §5.3: "A zero-length Send Message Type MUST consume an Untagged Buffer".
        let Some(buffer) = self.rq.front().copied() else {
            if self.awaits_buffers {
                return Err(Stop::Buffer);
            }
            return Ok(self.notify_send(header, row, len, fpdu, env)?);
        };
        let start = self.in_sends.offset.0;
        if let Err(error) = self.in_sends.check_offset(header, len, buffer.local.len().into()) {
            if error == StreamError::MessageTooLong {
                self.buffer_failed(WcStatus::LocalLengthError);
            }
            return Err(error.into());
        }
        let payload = FpduPayload { fpdu, skip: UntaggedHeader::LEN };
        if len > 0
            && let Err(stop) = self.place_buffer(buffer.local, start, payload, env)
        {
            if let Stop::Fault(_) = stop {
                self.buffer_failed(WcStatus::LocalProtectionError);
            }
            return Err(stop);
        }
        self.in_sends.advance(len, header.last);
        if header.last {
            let invalidated = row.invalidates.then_some(Stag(header.ulp_word));
            if let Some(stag) = invalidated {
                env.stags.invalidate(stag, self.origin).map_err(StreamError::Invalidate)?;
                count(&mut env.stats.rdmap.stags_invalidated, 1);
            }
            self.rq.pop();
            self.processed(1);
            let bytes = start.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
            let (wr_id, solicited) = (buffer.wr_id, row.solicited);
            let immediate = row.immediate.then_some(header.ulp_word.to_be_bytes());
            self.events.push_back(Event::Received { wr_id, bytes, solicited, invalidated, immediate });
            count(&mut self.counters.in_sends, 1);
            count(&mut env.stats.rdmap.in_sends, 1);
        }
        Ok(())
    }

    /// Returns what becomes of a message without a receive buffer.
    fn without_buffer(&self) -> Stop {
        if self.awaits_buffers { Stop::Buffer } else { StreamError::NoBuffer.into() }
    }

    /// Processes what the peer tells of this side's messages.
    fn progress<M>(
        &mut self,
        header: &UntaggedHeader,
        rest: &[u8],
        len: usize,
        env: &mut Env<'_, M>,
    ) -> Result<(), StreamError> {
        let expected = self.numbered.as_deref().map_or(UntaggedQueue::default(), |own| own.in_progress);
        expected.check_msn(header)?;
        expected.check_offset(header, len, PROGRESS_LEN as u64)?;
        let whole = header.last && len == PROGRESS_LEN;
        let ([messages, flags, ..], true) = (rest.as_chunks().0, whole) else {
            return Err(StreamError::MessageOffset);
        };
        count(&mut env.stats.rdmap.in_progress, 1);
        self.take_progress(u32::from_be_bytes(*messages), u32::from_be_bytes(*flags))
    }

    /// Processes a Terminate of the peer. It is never answered with a Terminate, even if malformed.
    #[cold]
    fn terminated<M: Memory>(&mut self, message: &[u8], env: &mut Env<'_, M>) {
        let mut raw = [0; Control::LEN];
        for (to, from) in raw.iter_mut().zip(message) {
            *to = *from;
        }
        let (control, order) = Control::parse(raw);
        let siw_order = order == BitOrder::Swapped;
        count(&mut env.stats.rdmap.terminates_received, 1);
        count(&mut env.stats.rdmap.terminates_received_swapped, usize::from(siw_order));
        let code = ErrorCode { layer: control.layer, etype: control.etype, code: control.code };
        if self.numbered.is_some() {
            let stag = Terminate::parse(message).ok().and_then(|(told, _)| told.stag());
            self.sq.set_status_of(stag, code.status());
        }
        self.keeps_work = false;
        self.flush();
        self.events.push_back(Event::TerminateReceived { code, raw, siw_order });
        self.close(CloseHow::Fin);
    }
}

/// Returns a fault with the headers of the segment that caused it.
#[cold]
fn about(error: StreamError, header: &Header, rest: &[u8], len: usize) -> Fault {
    let request = match error {
        StreamError::Read(_) => ReadRequest::parse(rest).ok().map(|(request, _)| request),
        _ => None,
    };
    Fault { error, segment: Some((u16::try_from(len).unwrap_or(u16::MAX), *header)), request }
}
