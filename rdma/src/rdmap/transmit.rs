//! Transmit path: builds one FPDU at a time in the transport's buffer.

use super::run::Run;
use super::segment::{SegmentHeader, SendOutcome};
use crate::memory::Memory;
use crate::qp::{CloseHow, Event, QueuePair, Reply, Source, StreamState, WcStatus, WorkOp, WorkRequest};
use crate::stats::count;
use crate::terminate::{Fault, StreamError};
use crate::wire::atomic::{AtomicOp, AtomicRequest, AtomicResponse, IMMEDIATE_LEN};
use crate::wire::ddp::{self, Header, TaggedHeader, UntaggedHeader};
use crate::wire::rdmap::{ControlField, Opcode, PROGRESS_LEN, ReadRequest};
use crate::wire::terminate::Terminate;
use crate::wire::{MessageOffset, Msn, QueueNumber, Stag, TaggedOffset};
use crate::{Env, Sink};

fn tagged(opcode: Opcode, stag: Stag, offset: TaggedOffset, last: bool) -> SegmentHeader {
    let ulp_control = ControlField::new(opcode).emit();
    SegmentHeader::Tagged(TaggedHeader { last, version: ddp::VERSION, ulp_control, stag, offset })
}

fn untagged(opcode: Opcode, queue: QueueNumber, msn: Msn, offset: u32, last: bool) -> UntaggedHeader {
    let ulp_control = ControlField::new(opcode).emit();
    let offset = MessageOffset(offset);
    UntaggedHeader { last, version: ddp::VERSION, ulp_control, ulp_word: 0, queue, msn, offset }
}

impl QueuePair {
    /// Returns true if something waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        match self.state {
            StreamState::ReadyToSend => {
                let has_message = self.current.is_some() || self.choose().is_some();
                has_message && self.may_proceed() && !self.is_held() || self.progress_due().is_some()
            }
            StreamState::Terminating => true,
            StreamState::Idle | StreamState::Closed => false,
        }
    }

    /// Returns true if an FPDU may be sent, or if the next request is a local operation.
    fn may_proceed(&self) -> bool {
        self.may_send || self.sq.peek_next().is_some_and(|work| work.op.is_local())
    }

    /// Sends one FPDU, or the FPDUs of one run.
    pub(crate) fn transmit<M: Memory>(&mut self, env: &mut Env<'_, M>, sink: &mut impl Sink) -> SendOutcome {
        // Between the segments of another message, too; and before a Terminate, which names no request.
        if let Some(due) = self.progress_due() {
            return self.send_progress(due, env, sink);
        }
        match self.state {
            StreamState::Terminating => return self.send_terminate(env, sink),
            StreamState::ReadyToSend if self.may_proceed() && !self.is_held() => {}
            _ => return SendOutcome::Idle,
        }
        let Some(source) = self.current.or_else(|| self.choose()) else { return SendOutcome::Idle };
        let step = match source {
            Source::Response => self.send_response(env, sink),
            Source::Work => self.send_work(env, sink),
        };
        if let SendOutcome::Sent { .. } = step {
            self.last = source;
        }
        step
    }

    /// Chooses the source of the next message: responses owed and local work alternate, message by message.
    fn choose(&self) -> Option<Source> {
        let response = (!self.irq.is_empty()).then_some(Source::Response);
        let work = self.work_is_ready().then_some(Source::Work);
        match self.last {
            Source::Response => work.or(response),
            Source::Work => response.or(work),
        }
    }

    /// Returns true if the next work request may start. RFC 5040 §6.1: "the RDMAP layer MUST NOT exceed the maximum
    /// number of outstanding, outbound RDMA Read Requests that were negotiated". A read over the limit waits, and so
    /// does the work posted after it. A read that the peer can no longer answer waits until the stream ends. Fenced
    /// work waits for the bytes of reads, too.
    fn work_is_ready(&self) -> bool {
        match self.sq.peek_next() {
            Some(work) if work.fence && (self.sq.reads() > 0 || self.gate().is_some()) => false,
            Some(work) if work.op.is_answered() => !self.peer_ended && self.sq.reads() < self.ord,
            Some(_) => true,
            None => false,
        }
    }

    fn send_response<M: Memory>(&mut self, env: &mut Env<'_, M>, sink: &mut impl Sink) -> SendOutcome {
        let reply = match self.irq.front().copied() {
            Some(Reply::Read(reply)) => reply,
            Some(Reply::Atomic(response)) => return self.send_atomic_response(&response, env, sink),
            None => return SendOutcome::Idle,
        };
        let mut request = reply.request;
        let front = tagged(Opcode::ReadResponse, request.sink_stag, request.sink_offset, true);
        let run = if request.size == 0 {
            Run::of(self.push(front, 0, env, sink, |_, _| true), 0, true)
        } else {
            // Checked for every run: the right may have been revoked since the request arrived.
            let (stag, to, size) = (request.source_stag, request.source_offset.0, request.size as usize);
            let allowed = env.stags.check_fetch(stag, to, size, self.origin).map_err(StreamError::Read);
            let pushed = allowed.and_then(|allowed| {
                self.push_rest(front, allowed, Source::Response, env, sink).ok_or(StreamError::Fetch)
            });
            match pushed {
                Ok(run) => run,
                Err(error) => {
                    let len = UntaggedHeader::LEN + ReadRequest::LEN;
                    let segment =
                        Some((u16::try_from(len).unwrap_or(u16::MAX), Header::Untagged(reply.header)));
                    self.fail(&Fault { error, segment, request: Some(request) }, env.stats);
                    return SendOutcome::Again;
                }
            }
        };
        let SendOutcome::Sent { .. } = run.step else { return run.step };
        self.fetched(run.payload, env);
        if run.ended {
            self.irq.pop_front();
            self.current = None;
            count(&mut env.stats.rdmap.out_read_responses, 1);
        } else {
            let sent = run.payload as u64;
            request.size = request.size.saturating_sub(u32::try_from(sent).unwrap_or(u32::MAX));
            request.sink_offset = TaggedOffset(request.sink_offset.0.wrapping_add(sent));
            request.source_offset = TaggedOffset(request.source_offset.0.wrapping_add(sent));
            if let Some(Reply::Read(front)) = self.irq.front_mut() {
                front.request = request;
            }
            self.current = Some(Source::Response);
        }
        run.step
    }

    fn send_work<M: Memory>(&mut self, env: &mut Env<'_, M>, sink: &mut impl Sink) -> SendOutcome {
        let Some(work) = self.sq.peek_next().copied() else { return SendOutcome::Idle };
        match work.op {
            WorkOp::Read { stag, to } => self.send_read(&work, stag, to, env, sink),
            WorkOp::Atomic { stag, to, op } => self.send_atomic(&work, (stag, to), op, env, sink),
            WorkOp::Invalidate { stag } => self.invalidate(&work, stag, env),
            WorkOp::Bind { window, bind } => self.bind(&work, window, &bind, env),
            WorkOp::Immediate { data, solicited } => self.send_immediate(data, solicited, env, sink),
            WorkOp::Write { stag, to } | WorkOp::WriteImmediate { stag, to, .. } => {
                let to = TaggedOffset(to.0.wrapping_add(u64::from(work.progress)));
                self.send_message(&work, tagged(Opcode::RdmaWrite, stag, to, true), env, sink)
            }
            WorkOp::Send { solicited, invalidate } => {
                let opcode = match (solicited, invalidate) {
                    (false, None) => Opcode::Send,
                    (false, Some(_)) => Opcode::SendInvalidate,
                    (true, None) => Opcode::SendSolicited,
                    (true, Some(_)) => Opcode::SendSolicitedInvalidate,
                };
                let mut header = untagged(opcode, QueueNumber::SEND, self.out_sends, work.progress, true);
                header.ulp_word = invalidate.map_or(0, |stag| stag.0);
                self.send_message(&work, SegmentHeader::Untagged(header), env, sink)
            }
            WorkOp::Datagram { .. } => self.send_datagram(&work, env, sink),
            WorkOp::SendImmediate { solicited, data } => {
                let opcode = if solicited { Opcode::SendImmediateSolicited } else { Opcode::SendImmediate };
                let mut header = untagged(opcode, QueueNumber::SEND, self.out_sends, work.progress, true);
                header.ulp_word = u32::from_be_bytes(data);
                self.send_message(&work, SegmentHeader::Untagged(header), env, sink)
            }
        }
    }

    /// Sends a datagram of a queue pair to its device, or one that a link carries.
    #[cold]
    #[inline(never)]
    fn send_datagram<M: Memory>(
        &mut self,
        work: &WorkRequest,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        let (queue, msn) = (QueueNumber::DATAGRAM, self.out_sends);
        let front = SegmentHeader::Untagged(untagged(Opcode::Datagram, queue, msn, work.progress, true));
        let left = work.local.len().saturating_sub(work.progress) as usize;
        let run = self.push_gathered(work, front, left, env, sink);
        let SendOutcome::Sent { .. } = run.step else { return run.step };
        self.part_sent(work, run, env)
    }

    /// Sends the rest of a Write or a Send, as far as the transport takes it.
    #[inline]
    fn send_message<M: Memory>(
        &mut self,
        work: &WorkRequest,
        front: SegmentHeader,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        let left = work.local.len().saturating_sub(work.progress) as usize;
        let run = match self.in_one_piece(work, left, env) {
            Some(allowed) if left > 0 => {
                // RFC 5040 §7.1 item 1: "the Terminate Message and Error code are sent instead of the request".
                let pushed =
                    allowed.and_then(|allowed| self.push_rest(front, allowed, Source::Work, env, sink));
                match pushed {
                    Some(run) => run,
                    None => return self.work_failed(work, WcStatus::LocalProtectionError, env.stats),
                }
            }
            _ => self.push_gathered(work, front, left, env, sink),
        };
        let SendOutcome::Sent { .. } = run.step else { return run.step };
        self.fetched(run.payload, env);
        self.part_sent(work, run, env)
    }

    /// Notes what was sent of a message: its end, or how far it has come.
    #[inline]
    fn part_sent<M>(&mut self, work: &WorkRequest, run: Run, env: &mut Env<'_, M>) -> SendOutcome {
        if run.ended {
            self.current = None;
            self.message_sent(work, env);
        } else if let Some(next) = self.sq.next() {
            next.progress = next.progress.saturating_add(u32::try_from(run.payload).unwrap_or(u32::MAX));
            self.current = Some(Source::Work);
        }
        run.step
    }

    /// Completes a Write or a Send that was completely sent.
    #[inline]
    fn message_sent<M>(&mut self, work: &WorkRequest, env: &mut Env<'_, M>) {
        let (message, stream) = if let WorkOp::Write { .. } | WorkOp::WriteImmediate { .. } = work.op {
            (&mut env.stats.rdmap.out_rdma_writes, &mut self.counters.out_writes)
        } else {
            self.out_sends = self.out_sends.next();
            (&mut env.stats.rdmap.out_sends, &mut self.counters.out_sends)
        };
        count(message, 1);
        count(stream, 1);
        self.sq.count_message();
        if let (WorkOp::WriteImmediate { mut data, solicited, .. }, Some(next)) = (work.op, self.sq.next()) {
            // RFC 7306 §6: "an RDMA Write Message followed by an Immediate Data Operation has the same behavior
            // as the RDMA Write with Immediate Data operation found in InfiniBand".
            let tells_length =
                self.numbered.as_deref().is_some_and(|numbered| numbered.extensions.immediate_length);
            if let (true, [.., a, b, c, d]) = (tells_length, &mut data) {
                [*a, *b, *c, *d] = work.local.len().to_be_bytes();
            }
            next.op = WorkOp::Immediate { data, solicited };
            return;
        }
        self.sq.next_sent();
        self.complete();
    }

    fn send_read<M: Memory>(
        &mut self,
        work: &WorkRequest,
        stag: Stag,
        to: TaggedOffset,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        if !self.may_scatter(work.local, env.stags) {
            return self.work_failed(work, WcStatus::LocalProtectionError, env.stats);
        }
        let msn = self.out_reads;
        // The peer returns this STag without interpreting it. It identifies the request; 0 means "none" to many
        // programs.
        let sink_stag = Stag(msn.0.max(1));
        let request = ReadRequest {
            sink_stag,
            sink_offset: TaggedOffset(0),
            size: work.local.len(),
            source_stag: stag,
            source_offset: to,
        };
        let front =
            SegmentHeader::Untagged(untagged(Opcode::ReadRequest, QueueNumber::READ_REQUEST, msn, 0, true));
        let step = self.push(front, ReadRequest::LEN, env, sink, |_, out| {
            if let Some((bytes, _)) = out.split_first_chunk_mut() {
                request.emit(bytes);
            }
            true
        });
        let SendOutcome::Sent { .. } = step else { return step };
        self.out_reads = msn.next();
        self.sq.count_message();
        if let Some(next) = self.sq.next() {
            next.sink = sink_stag;
        }
        self.sq.next_sent();
        count(&mut self.counters.out_reads, 1);
        count(&mut env.stats.rdmap.out_rdma_reads, 1);
        step
    }

    /// Sends an atomic operation (RFC 7306 §5.2.1).
    fn send_atomic<M: Memory>(
        &mut self,
        work: &WorkRequest,
        (stag, to): (Stag, TaggedOffset),
        op: AtomicOp,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        if !self.may_scatter(work.local, env.stags) {
            return self.work_failed(work, WcStatus::LocalProtectionError, env.stats);
        }
        let msn = self.out_reads;
        let request = AtomicRequest { id: msn.0, stag, to, op: Ok(op) };
        let front =
            SegmentHeader::Untagged(untagged(Opcode::AtomicRequest, QueueNumber::READ_REQUEST, msn, 0, true));
        let step = self.push(front, AtomicRequest::LEN, env, sink, |_, out| {
            if let Some((bytes, _)) = out.split_first_chunk_mut() {
                request.emit(bytes);
            }
            true
        });
        let SendOutcome::Sent { .. } = step else { return step };
        self.out_reads = msn.next();
        self.sq.count_message();
        if let Some(next) = self.sq.next() {
            next.sink = Stag(request.id);
        }
        self.sq.next_sent();
        count(&mut self.counters.out_atomics, 1);
        count(&mut env.stats.rdmap.out_atomics, 1);
        step
    }

    /// Sends the original value of an atomic operation of the peer (RFC 7306 §5.2.2).
    fn send_atomic_response<M: Memory>(
        &mut self,
        response: &AtomicResponse,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        let msn = self.out_atomic_responses;
        let queue = QueueNumber::ATOMIC_RESPONSE;
        let front = SegmentHeader::Untagged(untagged(Opcode::AtomicResponse, queue, msn, 0, true));
        let step = self.push(front, AtomicResponse::LEN, env, sink, |_, out| {
            if let Some((bytes, _)) = out.split_first_chunk_mut() {
                response.emit(bytes);
            }
            true
        });
        let SendOutcome::Sent { .. } = step else { return step };
        self.out_atomic_responses = msn.next();
        self.irq.pop_front();
        count(&mut env.stats.rdmap.out_atomic_responses, 1);
        step
    }

    /// Sends Immediate Data (RFC 7306 §6), which uses the message numbers of the Sends.
    fn send_immediate<M: Memory>(
        &mut self,
        data: [u8; IMMEDIATE_LEN],
        solicited: bool,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        let opcode = if solicited { Opcode::ImmediateDataSolicited } else { Opcode::ImmediateData };
        let front = SegmentHeader::Untagged(untagged(opcode, QueueNumber::SEND, self.out_sends, 0, true));
        let step = self.push(front, IMMEDIATE_LEN, env, sink, |_, out| {
            if let Some((bytes, _)) = out.split_first_chunk_mut() {
                *bytes = data;
            }
            true
        });
        let SendOutcome::Sent { .. } = step else { return step };
        self.out_sends = self.out_sends.next();
        self.sq.count_message();
        count(&mut env.stats.rdmap.out_immediates, 1);
        self.sq.next_sent();
        self.complete();
        step
    }

    /// Tells the peer how many of its messages were processed.
    fn send_progress<M: Memory>(
        &mut self,
        (messages, flags): (u32, u32),
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> SendOutcome {
        let msn = self.numbered.as_deref().map_or(Msn::FIRST, |numbered| numbered.out_progress);
        let front = SegmentHeader::Untagged(untagged(Opcode::Progress, QueueNumber::PROGRESS, msn, 0, true));
        let step = self.push(front, PROGRESS_LEN, env, sink, |_, out| {
            if let ([to_messages, to_flags], _) = out.as_chunks_mut() {
                (*to_messages, *to_flags) = (messages.to_be_bytes(), flags.to_be_bytes());
            }
            true
        });
        if let SendOutcome::Sent { .. } = step {
            self.progress_sent(env.stats);
        }
        step
    }

    /// Sends an empty RDMA Write, which changes nothing at the peer. Only between messages: otherwise the rest of a
    /// message is sent anyway.
    pub(crate) fn poke<M: Memory>(&mut self, env: &mut Env<'_, M>, sink: &mut impl Sink) -> SendOutcome {
        if self.state != StreamState::ReadyToSend || self.current.is_some() {
            return SendOutcome::Idle;
        }
        let front = tagged(Opcode::RdmaWrite, Stag(1), TaggedOffset(0), true);
        let step = self.push(front, 0, env, sink, |_, _| true);
        if let SendOutcome::Sent { .. } = step {
            count(&mut env.stats.rdmap.pokes, 1);
        }
        step
    }

    /// Sends the Terminate, the last message of a stream.
    #[cold]
    fn send_terminate<M: Memory>(&mut self, env: &mut Env<'_, M>, sink: &mut impl Sink) -> SendOutcome {
        let Some((message, error)) = self.terminate else { return SendOutcome::Idle };
        let mut bytes = [0; Terminate::LEN_MAX];
        let len = message.emit(&mut bytes);
        let front =
            SegmentHeader::Untagged(untagged(Opcode::Terminate, QueueNumber::TERMINATE, Msn::FIRST, 0, true));
        let step = self.push(front, len, env, sink, |_, out| {
            for (to, from) in out.iter_mut().zip(bytes) {
                *to = from;
            }
            true
        });
        if let SendOutcome::Sent { .. } = step {
            count(&mut env.stats.rdmap.terminates_sent, 1);
            self.events.push_back(Event::TerminateSent { code: error.code().0, error });
            self.close(CloseHow::Fin);
        }
        step
    }

    /// Counts bytes fetched from a region.
    fn fetched<M>(&mut self, len: usize, env: &mut Env<'_, M>) {
        count(&mut self.counters.bytes_fetched, len);
        count(&mut env.stats.rdmap.payload_bytes_fetched, len);
    }

    /// Builds an FPDU in the transport's buffer: the header, then `len` bytes that `fill` writes. If `fill` returns
    /// false, the stream ends without these bytes.
    pub(super) fn push<M: Memory>(
        &mut self,
        front: SegmentHeader,
        len: usize,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
        fill: impl FnOnce(&M, &mut [u8]) -> bool,
    ) -> SendOutcome {
        let ulpdu_len = front.len().saturating_add(len);
        let fpdu_len = self.framer.fpdu_len(ulpdu_len);
        let (framer, memory) = (self.framer, &*env.memory);
        let mut fill = Some(fill);
        let mut built = false;
        let taken = sink.push(fpdu_len, &mut |out| {
            if let Some(fill) = fill.take() {
                let mut filled = false;
                let framed = framer.frame(out, ulpdu_len, |ulpdu| filled = fill(memory, front.emit(ulpdu)));
                built = framed.is_ok() && filled;
                if !built {
                    // No FPDU: its length and its CRC are wrong.
                    out.fill(0);
                }
            }
        });
        if !taken {
            return SendOutcome::NoRoom;
        }
        if !built {
            // The transport supplied a buffer of another length, or the memory has gone.
            self.close(CloseHow::Reset);
            return SendOutcome::Idle;
        }
        self.sent_any = true;
        env.stats.mpa.count_fpdu_out(ulpdu_len);
        count(&mut env.stats.mpa.markers_out, self.framer.markers(fpdu_len));
        self.framer.sent(fpdu_len);
        SendOutcome::Sent { fpdus: 1, bytes: fpdu_len }
    }
}
