//! Queue pair: the posted and owed work of one stream in full operation. An [`Endpoint`](crate::Endpoint) owns it.
//!
//! ```text
//!  post_*  ──▶ send queue ──┐                                        ┌──▶ Memory (Writes, Responses, Sends)
//!                           ├─▶ transmit ──▶ FPDUs ──▶ receive ──────┤
//!  read requests of   ──▶ IRQ (responses owed) ─┘                    └──▶ IRQ, receive queue, completions
//!  the peer
//! ```
//! Completions occur in the order of posting (RFC 5040 §5.5 rule 15). The outstanding reads (the ORQ) are therefore a
//! contiguous part at the head of the send queue and need no queue of their own.

mod datagrams;
mod deferred;
mod event;
mod inbox;
mod local;
mod numbered;
mod receive_queue;
mod send_queue;
mod shared_queue;

use std::collections::VecDeque;

pub(crate) use datagrams::{Arrived, Datagrams};
pub(crate) use deferred::{Deferred, ReadAhead, Stop};
pub use event::{CloseHow, Event, WcOpcode, WcStatus};
pub(crate) use inbox::Inbox;
pub(crate) use local::{List, Local, Tokens};
pub use local::{SGE_MAX, Sge};
pub(crate) use numbered::{Extensions, Numbered};
pub(crate) use receive_queue::ReceiveQueue;
pub use send_queue::PostError;
pub(crate) use send_queue::{SendQueue, WorkOp, WorkRequest};
pub(crate) use shared_queue::SharedQueue;

use crate::ddp::UntaggedQueue;
use crate::memory::Origin;
use crate::mpa::Framer;
use crate::stats::RdmaStats;
use crate::terminate::{ErrorCode, Fault, StreamError};
use crate::wire::Msn;
use crate::wire::atomic::AtomicResponse;
use crate::wire::ddp::UntaggedHeader;
use crate::wire::mpa::RtrOptions;
use crate::wire::rdmap::ReadRequest;
use crate::wire::terminate::Terminate;

/// State of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// The MPA negotiation is in progress.
    Idle,
    /// Full operation: messages flow in both directions.
    ReadyToSend,
    /// An error occurred; the Terminate waits for room in the transport.
    Terminating,
    /// The stream has ended.
    Closed,
}

/// Response that is owed to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// Response to a Read Request.
    Read(ReadReply),
    /// Response to an Atomic Request, whose operation has been performed.
    Atomic(AtomicResponse),
}

/// Read Request of the peer that is not fully answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadReply {
    /// DDP header of the request, for a Terminate that concerns it.
    pub(crate) header: UntaggedHeader,
    /// Rest of the request.
    pub(crate) request: ReadRequest,
}

/// Source of the message being sent. Segments of two messages are not interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The oldest response owed.
    Response,
    /// The next work request of the send queue.
    Work,
}

/// Bytes and messages of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// RDMA Writes of the peer, completely placed.
    pub in_writes: u64,
    /// Read Requests of the peer.
    pub in_reads: u64,
    /// Sends of the peer, received completely.
    pub in_sends: u64,
    /// RDMA Writes that this side has sent.
    pub out_writes: u64,
    /// Read Requests that this side has sent.
    pub out_reads: u64,
    /// Sends that this side has sent.
    pub out_sends: u64,
    /// Atomic operations performed for the peer.
    pub in_atomics: u64,
    /// Atomic Requests that this side has sent.
    pub out_atomics: u64,
    /// Bytes placed in local memory.
    pub bytes_placed: u64,
    /// Bytes fetched from local memory.
    pub bytes_fetched: u64,
}

/// Depths of the queues of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Depths {
    pub(crate) send: usize,
    pub(crate) receive: usize,
    /// Elements of a scatter/gather list of a send request, and of a receive buffer.
    pub(crate) send_sges: usize,
    pub(crate) receive_sges: usize,
    /// Bytes of inline data per send request.
    pub(crate) inline: usize,
}

/// Queues, message numbers and events of one end of a stream.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) origin: Origin,
    pub(crate) state: StreamState,
    pub(crate) framer: Framer,
    /// True if an FPDU may be sent. RFC 5044 §7.1.2 rule 4: a responder "MUST receive and validate at least one FPDU
    /// before sending any FPDUs or Markers".
    pub(crate) may_send: bool,
    /// Set once an FPDU of the peer has arrived.
    pub(crate) peer_sent: bool,
    /// Messages of which the peer's first FPDU must be one.
    pub(crate) rtr_due: Option<RtrOptions>,
    /// Set once the peer has closed its half of the stream.
    pub(crate) peer_ended: bool,
    /// Set once an FPDU was sent.
    pub(crate) sent_any: bool,
    /// Inbound reads at a time: the IRD, rounded up to a power of two. Linux's siw rounds its queues up, and sends as
    /// many requests as its own queue takes, regardless of the IRD granted.
    pub(crate) irq_max: usize,
    /// Outbound reads at a time (ORD).
    pub(crate) ord: usize,
    pub(crate) in_sends: UntaggedQueue,
    pub(crate) in_reads: Msn,
    pub(crate) out_sends: Msn,
    pub(crate) out_reads: Msn,
    pub(crate) out_atomic_responses: Msn,
    pub(crate) in_atomic_responses: Msn,
    pub(crate) irq: VecDeque<Reply>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: ReceiveQueue,
    /// Without a queue pair: place for messages to the region that was granted.
    pub(crate) inbox: Option<Box<Inbox>>,
    pub(crate) current: Option<Source>,
    pub(crate) last: Source,
    pub(crate) terminate: Option<(Terminate, StreamError)>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) counters: StreamCounters,
    /// Copies that the stream waits for; `None` while all its memory is accessed at once.
    pub(crate) deferred: Option<Box<Deferred>>,
    /// State of a stream between queue pairs that are connected by number.
    pub(crate) numbered: Option<Box<Numbered>>,
    /// True if a message without a receive buffer waits for one; otherwise it ends the stream. RFC 5041 §7.1: a
    /// receiver "MAY try to recover from the system fault using LLP means in a ULP-transparent way".
    pub(crate) awaits_buffers: bool,
    /// True while the FPDU at the front of the stream waits for a receive buffer.
    pub(crate) waits_for_buffer: bool,
    /// True if the work stays posted when the stream ends without an error.
    pub(crate) keeps_work: bool,
}

/// Events that can wait besides completions: request, established, the reason of the end, close.
const EVENTS_EXTRA: usize = 6;

impl QueuePair {
    pub(crate) fn new(origin: Origin, depths: Depths) -> Self {
        let events = depths.send.saturating_add(depths.receive).saturating_add(EVENTS_EXTRA);
        Self {
            origin,
            state: StreamState::Idle,
            framer: Framer::new(true),
            may_send: false,
            peer_sent: false,
            rtr_due: None,
            peer_ended: false,
            sent_any: false,
            irq_max: 0,
            ord: 0,
            in_sends: UntaggedQueue::default(),
            in_reads: Msn::FIRST,
            out_sends: Msn::FIRST,
            out_reads: Msn::FIRST,
            out_atomic_responses: Msn::FIRST,
            in_atomic_responses: Msn::FIRST,
            irq: VecDeque::new(),
            sq: SendQueue::new(depths.send, depths.send_sges, depths.inline),
            rq: ReceiveQueue::new(depths.receive, depths.receive_sges),
            inbox: None,
            current: None,
            last: Source::Work,
            terminate: None,
            events: VecDeque::with_capacity(events),
            counters: StreamCounters::default(),
            deferred: None,
            numbered: None,
            awaits_buffers: false,
            waits_for_buffer: false,
            keeps_work: false,
        }
    }

    /// Enters full operation. The last allocation of a stream happens here.
    pub(crate) fn establish(&mut self, framer: Framer, ird: usize, ord: usize, may_send: bool) {
        self.state = StreamState::ReadyToSend;
        self.framer = framer;
        self.irq_max = if ird == 0 { 0 } else { ird.next_power_of_two() };
        self.ord = ord;
        self.may_send = may_send;
        self.irq = VecDeque::with_capacity(self.irq_max);
    }

    /// Returns the next event; its slot is free for another post then.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        if !self.has_open_event() {
            return None;
        }
        let event = self.pop_event()?;
        match &event {
            Event::Completion { op: WcOpcode::Recv, .. }
            | Event::Received { .. }
            | Event::Datagram { .. }
            | Event::Immediate { .. } => {
                self.rq.completion_taken();
            }
            Event::Completion { .. } => self.sq.completion_taken(),
            _ => {}
        }
        Some(event)
    }

    /// Takes the next event if it is a successful send completion, and returns its number and bytes.
    #[inline]
    pub(crate) fn take_success(&mut self) -> Option<(u64, u32)> {
        if !self.has_open_event() {
            return None;
        }
        let taken = match self.events.front()? {
            Event::Completion { op: WcOpcode::Recv, .. } => return None,
            Event::Completion { wr_id, status: WcStatus::Success, bytes, .. } => (*wr_id, *bytes),
            _ => return None,
        };
        self.pop_event();
        self.sq.completion_taken();
        Some(taken)
    }

    /// Turns finished work requests at the head of the send queue into events.
    pub(crate) fn complete(&mut self) {
        while let Some((done, owned)) = self.sq.pop_done() {
            if owned {
                self.events.push_back(Event::Completion {
                    wr_id: done.wr_id,
                    op: done.op.opcode(),
                    status: WcStatus::Success,
                    bytes: done.local.len(),
                });
            }
        }
    }

    /// Ends the stream for an error. The Terminate reports the first error; later ones are ignored.
    #[cold]
    pub(crate) fn fail(&mut self, fault: &Fault, stats: &mut RdmaStats) {
        if self.state != StreamState::ReadyToSend && self.state != StreamState::Idle {
            return;
        }
        stats.drops.count(fault.error);
        self.state = StreamState::Terminating;
        self.keeps_work = false;
        self.terminate = Some((fault.message(), fault.error));
        self.flush();
    }

    /// Flushes every work request, and drops the responses owed to the peer.
    ///
    /// RFC 5040 §6.2.1: "the state of all outstanding RDMA Messages is indeterminate, and the Messages SHOULD be
    /// considered Completed in error."
    pub(crate) fn flush(&mut self) {
        self.irq.clear();
        self.current = None;
        self.drop_waits(WcStatus::WrFlushError);
        while let Some((request, owned)) = self.sq.pop() {
            if owned {
                self.events.push_back(unfinished(request.wr_id, request.op.opcode(), request.status));
            }
        }
        while let Some(buffer) = self.rq.pop() {
            self.events.push_back(unfinished(buffer.wr_id, WcOpcode::Recv, buffer.status));
        }
    }

    /// Ends the stream without a Terminate. The owner's event carries the first error that occurred.
    #[cold]
    pub(crate) fn fail_without_terminate(&mut self, code: ErrorCode) {
        if self.state != StreamState::Closed {
            let code = self.terminate.map_or(code, |(_, error)| error.code().0);
            self.events.push_back(Event::Failed { code });
        }
    }

    /// Closes the stream, and raises the event that asks the owner to end the connection.
    pub(crate) fn close(&mut self, how: CloseHow) {
        if self.state != StreamState::Closed {
            self.state = StreamState::Closed;
            self.terminate = None;
            if !self.keeps_work {
                self.flush();
            }
            self.events.push_back(Event::Close { how });
        }
    }
}

const fn unfinished(wr_id: u64, op: WcOpcode, status: WcStatus) -> Event {
    Event::Completion { wr_id, op, status, bytes: 0 }
}

// Sizes that the documentation of `EndpointConfig` states.
const _: () = {
    assert!(size_of::<Reply>() <= 56);
    assert!(size_of::<WorkRequest>() + size_of::<Event>() <= 152);
    assert!(size_of::<receive_queue::Buffer>() + size_of::<Event>() <= 72);
};
