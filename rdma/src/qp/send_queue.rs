//! Send queue: work requests posted by the owner, until their completions are polled. The transmit path of RDMAP
//! sends from it.

use core::fmt;
use std::collections::VecDeque;

use super::local::{Lists, Local};
use super::{WcOpcode, WcStatus};
use crate::memory::Bind;
use crate::wire::atomic::AtomicOp;
use crate::wire::{Stag, TaggedOffset};

/// Reason why a work request was not posted. A request that was not posted has no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// There is no such queue pair, shared receive queue or memory window (`EINVAL`).
    NoSuchObject,
    /// The stream is not in full operation, the queue pair is `Idle` or `Closing`, or it takes its receive buffers
    /// from a shared receive queue (`EINVAL`).
    State,
    /// The queue is full; poll completions to free slots (`ENOMEM`).
    QueueFull,
    /// More elements or inline bytes than the queue pair takes, more than 2³² − 1 bytes, or a length that the
    /// operation does not allow (`EINVAL`).
    Length,
    /// The negotiated ORD is 0: the stream has no RDMA Reads and no atomic operations (`EINVAL`).
    NoReads,
    /// The key does not belong to the memory window, or the window to another protection domain (`EINVAL`).
    Window,
    /// A Send with Immediate Data, which the peer has not agreed to (`EOPNOTSUPP`).
    NotNegotiated,
    /// An operation that queue pairs of this type do not have: they send datagrams alone, or none (`EINVAL`).
    Operation,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchObject => "there is no such queue or window",
            Self::State => "the queue pair takes no such work in this state",
            Self::QueueFull => "the queue is full",
            Self::Length => "too many elements or bytes, or not what the operation needs",
            Self::NoReads => "no RDMA Reads were negotiated on this stream",
            Self::Window => "the key is not one of the memory window",
            Self::NotNegotiated => "the peer does not take Sends with Immediate Data",
            Self::Operation => "queue pairs of this type do not have the operation",
        })
    }
}

impl core::error::Error for PostError {}

/// Operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkOp {
    Write {
        stag: Stag,
        to: TaggedOffset,
    },
    Read {
        stag: Stag,
        to: TaggedOffset,
    },
    Send {
        solicited: bool,
        invalidate: Option<Stag>,
    },
    SendImmediate {
        solicited: bool,
        data: [u8; 4],
    },
    Atomic {
        stag: Stag,
        to: TaggedOffset,
        op: AtomicOp,
    },
    Immediate {
        data: [u8; 8],
        solicited: bool,
    },
    /// Two messages. When the RDMA Write is sent, the request becomes [`Self::Immediate`].
    WriteImmediate {
        stag: Stag,
        to: TaggedOffset,
        data: [u8; 8],
        solicited: bool,
    },
    /// Of a queue pair that sends datagrams, and of a link.
    Datagram {
        /// Link to the other device. On a link, the message begins with a header, and the rest is 0.
        link: u32,
        /// Queue pair there, and the key that it expects.
        dest: u32,
        qkey: u32,
        immediate: Option<[u8; 4]>,
        solicited: bool,
    },
    /// Not a message: invalidates a local STag.
    Invalidate {
        stag: Stag,
    },
    /// Not a message: binds a memory window.
    Bind {
        window: Stag,
        bind: Bind,
    },
}

impl WorkOp {
    pub(crate) const fn opcode(&self) -> WcOpcode {
        match self {
            Self::Write { .. } | Self::WriteImmediate { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::Send { .. }
            | Self::SendImmediate { .. }
            | Self::Immediate { .. }
            | Self::Datagram { .. } => WcOpcode::Send,
            Self::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
            Self::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompareSwap,
            Self::Invalidate { .. } => WcOpcode::LocalInvalidate,
            Self::Bind { .. } => WcOpcode::BindMw,
        }
    }

    /// Returns true if the operation sends no message and needs no peer.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::Invalidate { .. } | Self::Bind { .. })
    }

    /// Returns true if a response of the peer completes the operation. RFC 7306 §5.2: Atomic Requests share the queue,
    /// and the depth, of Read Requests.
    pub(crate) const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }

    /// Returns the number of messages of the operation.
    const fn messages(&self) -> u8 {
        match self {
            Self::Invalidate { .. } | Self::Bind { .. } => 0,
            Self::WriteImmediate { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the STag of the peer that the operation names.
    const fn remote_stag(&self) -> Option<Stag> {
        match *self {
            Self::Write { stag, .. }
            | Self::Read { stag, .. }
            | Self::Atomic { stag, .. }
            | Self::WriteImmediate { stag, .. } => Some(stag),
            _ => None,
        }
    }
}

/// A posted work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    pub(crate) wr_id: u64,
    pub(crate) op: WorkOp,
    pub(crate) local: Local,
    /// Bytes sent of a Write or Send; bytes received of a Read.
    pub(crate) progress: u32,
    /// STag that the peer's Read Response must name; for an atomic operation, the identifier that its response must
    /// carry.
    pub(crate) sink: Stag,
    /// For a Read: the local STag to invalidate when it is finished.
    pub(crate) invalidate: Option<Stag>,
    /// True if the request waits until all earlier reads and atomic operations are finished.
    pub(crate) fence: bool,
    /// Status of its completion if the stream ends first.
    pub(crate) status: WcStatus,
    /// Messages of the operation.
    messages: u8,
    /// True if the endpoint posted it itself; it produces no completion.
    internal: bool,
    done: bool,
}

impl WorkRequest {
    pub(crate) const fn new(wr_id: u64, op: WorkOp, local: Local) -> Self {
        let status = WcStatus::WrFlushError;
        Self {
            wr_id,
            op,
            local,
            progress: 0,
            sink: Stag(0),
            invalidate: None,
            fence: false,
            status,
            messages: op.messages(),
            internal: false,
            done: false,
        }
    }
}

/// Work requests in the order of posting: those sent whose completion is due, then the one being sent, then the rest.
#[derive(Debug)]
pub(crate) struct SendQueue {
    queue: VecDeque<WorkRequest>,
    /// Number of requests at the head that are completely sent.
    sent: u32,
    /// Number of these that wait for a response of the peer.
    reads: u32,
    /// Completions that the owner has not polled.
    unpolled: u32,
    depth: u32,
    /// True if the peer tells which messages it has processed: requests are done then, and not when they are sent.
    pub(super) confirms: bool,
    /// Number of requests at the head whose messages the peer has processed.
    confirmed: u32,
    /// Messages that were sent, and those that belong to no request behind the confirmed ones, modulo 2^32.
    sent_messages: u32,
    confirmed_messages: u32,
    /// Scatter/gather lists and inline bytes of the requests.
    pub(crate) lists: Lists,
}

impl SendQueue {
    /// Creates a queue of `depth` requests, each with up to `sges` elements of a list or `inline` bytes.
    pub(crate) fn new(depth: usize, sges: usize, inline: usize) -> Self {
        let queue = VecDeque::with_capacity(depth.saturating_add(1));
        Self {
            queue,
            sent: 0,
            reads: 0,
            unpolled: 0,
            depth: u32::try_from(depth).unwrap_or(u32::MAX),
            confirms: false,
            confirmed: 0,
            sent_messages: 0,
            confirmed_messages: 0,
            lists: Lists::new(depth, sges, inline),
        }
    }

    /// Posts the endpoint's own request, the first of a stream, in a slot of its own. Work of a queue pair whose last
    /// stream had not begun is behind it.
    pub(crate) fn post_internal(&mut self, op: WorkOp) {
        self.depth = self.depth.saturating_add(1);
        self.queue.push_front(WorkRequest { internal: true, ..WorkRequest::new(0, op, Local::EMPTY) });
    }

    /// Checks that the queue has a free slot.
    pub(crate) fn check_room(&self) -> Result<(), PostError> {
        if self.queue.len().saturating_add(self.unpolled as usize) < self.depth as usize {
            Ok(())
        } else {
            Err(PostError::QueueFull)
        }
    }

    pub(crate) fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        self.check_room()?;
        self.queue.push_back(request);
        Ok(())
    }

    /// Returns the number of work requests not completed.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of reads and atomic operations that wait for a response.
    pub(crate) const fn reads(&self) -> usize {
        self.reads as usize
    }

    /// Returns the request being sent, or the next to send.
    pub(crate) fn next(&mut self) -> Option<&mut WorkRequest> {
        self.queue.get_mut(self.sent as usize)
    }

    /// Returns the same, read-only.
    pub(crate) fn peek_next(&self) -> Option<&WorkRequest> {
        self.queue.get(self.sent as usize)
    }

    /// Marks the request being sent as completely sent.
    pub(crate) fn next_sent(&mut self) {
        let Some(request) = self.queue.get_mut(self.sent as usize) else { return };
        self.sent = self.sent.saturating_add(1);
        if request.op.is_answered() {
            self.reads = self.reads.saturating_add(1);
        } else if !self.confirms || request.op.is_local() {
            request.done = true;
        }
    }

    /// Counts a message that was completely sent.
    #[inline]
    pub(crate) const fn count_message(&mut self) {
        self.sent_messages = self.sent_messages.wrapping_add(1);
    }

    /// Returns the number of messages that were sent, modulo 2^32.
    pub(super) const fn messages_sent(&self) -> u32 {
        self.sent_messages
    }

    /// Makes all requests of the owner unsent, none of which is done, and drops those of the endpoint.
    pub(super) fn rewind(&mut self) {
        let before = self.queue.len();
        self.queue.retain(|request| !request.internal);
        let dropped = before.saturating_sub(self.queue.len());
        self.depth = self.depth.saturating_sub(u32::try_from(dropped).unwrap_or(u32::MAX));
        self.queue.iter_mut().for_each(|request| request.progress = 0);
        (self.sent, self.reads, self.confirmed) = (0, 0, 0);
        (self.sent_messages, self.confirmed_messages) = (0, 0);
    }

    /// Marks the requests as done whose messages are among the first `total` ones. Returns false if so many were not
    /// sent.
    pub(crate) fn confirm(&mut self, total: u32) -> bool {
        let mut left = total.wrapping_sub(self.confirmed_messages);
        if left > self.sent_messages.wrapping_sub(self.confirmed_messages) {
            return false;
        }
        while self.confirmed < self.sent
            && let Some(request) = self.queue.get_mut(self.confirmed as usize)
            && let Some(rest) = left.checked_sub(request.messages.into())
        {
            if !request.op.is_answered() {
                request.done = true;
            }
            left = rest;
            self.pass(self.confirmed);
        }
        true
    }

    /// Counts the first request that is not confirmed, which is at this place, among those that are.
    fn pass(&mut self, at: u32) {
        let messages = self.queue.get(at as usize).map_or(0, |request| u32::from(request.messages));
        self.confirmed_messages = self.confirmed_messages.wrapping_add(messages);
        self.confirmed = self.confirmed.saturating_add(1);
    }

    /// Notes that the first request has left the queue; `messages` is the number of its messages.
    fn forget_confirmed(&mut self, messages: u8) {
        match self.confirmed.checked_sub(1) {
            Some(confirmed) => self.confirmed = confirmed,
            None => self.confirmed_messages = self.confirmed_messages.wrapping_add(messages.into()),
        }
    }

    /// Marks what precedes the oldest answer that is due as done: the peer processes messages in order. What follows it
    /// is not: the peer may have confirmed the request of that answer long before.
    fn confirm_before_answer(&mut self) {
        let is_due = |request: &WorkRequest| !request.done && request.op.is_answered();
        let due = self.queue.iter().take(self.sent as usize).position(is_due).unwrap_or(0);
        while (self.confirmed as usize) < due
            && let Some(request) = self.queue.get_mut(self.confirmed as usize)
        {
            request.done = true;
            self.pass(self.confirmed);
        }
    }

    /// Sets the status that the oldest request of the owner has if the stream ends before it is finished. Returns false
    /// if there is none.
    pub(crate) fn set_status_of_oldest(&mut self, status: WcStatus) -> bool {
        let oldest = self.queue.iter_mut().find(|request| !request.done && !request.internal);
        oldest.map(|request| request.status = status).is_some()
    }

    /// Sets the status of the oldest request that names an STag of the peer, or else of the oldest one of the owner.
    pub(crate) fn set_status_of(&mut self, stag: Option<Stag>, status: WcStatus) {
        let names = |request: &&mut WorkRequest| stag.is_some() && request.op.remote_stag() == stag;
        let sent = self.sent as usize;
        match self.queue.iter_mut().take(sent.saturating_add(1)).filter(|request| !request.done).find(names) {
            Some(request) => request.status = status,
            None => {
                self.set_status_of_oldest(status);
            }
        }
    }

    /// Returns true if a request of the owner is not finished.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.queue.iter().any(|request| !request.internal)
    }

    /// Returns the oldest read or atomic operation that waits for its response. Responses arrive in the order of the
    /// requests (RFC 7306 §7).
    pub(crate) fn due(&mut self) -> Option<&mut WorkRequest> {
        if self.reads == 0 {
            return None;
        }
        if self.confirms {
            self.confirm_before_answer();
        }
        self.queue
            .iter_mut()
            .take(self.sent as usize)
            .find(|request| !request.done && request.op.is_answered())
    }

    /// Marks the operation of [`Self::due`] as answered.
    pub(crate) fn due_done(&mut self) {
        if let Some(request) = self.due() {
            request.done = true;
            self.reads = self.reads.saturating_sub(1);
        }
    }

    /// Removes the head if it is finished; see [`Self::pop`].
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<(WorkRequest, bool)> {
        if self.queue.front()?.done { self.pop() } else { None }
    }

    /// Removes the head, finished or not, and returns it with true if the owner posted it. The owner's request keeps
    /// its slot until [`Self::completion_taken`].
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(WorkRequest, bool)> {
        let request = self.queue.pop_front()?;
        if self.sent > 0 && !request.done && request.op.is_answered() {
            self.reads = self.reads.saturating_sub(1);
        }
        if self.confirms {
            self.forget_confirmed(request.messages);
        }
        self.sent = self.sent.saturating_sub(1);
        if request.internal {
            self.depth = self.depth.saturating_sub(1);
        } else {
            self.unpolled = self.unpolled.saturating_add(1);
        }
        Some((request, !request.internal))
    }

    pub(crate) const fn completion_taken(&mut self) {
        self.unpolled = self.unpolled.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: WorkOp = WorkOp::Write { stag: Stag(1), to: TaggedOffset(0) };
    const READ: WorkOp = WorkOp::Read { stag: Stag(1), to: TaggedOffset(0) };

    fn queue(ops: &[WorkOp]) -> SendQueue {
        let mut queue = SendQueue::new(ops.len(), 0, 0);
        for (wr_id, op) in (0..).zip(ops) {
            queue.post(WorkRequest::new(wr_id, *op, Local::EMPTY)).unwrap();
        }
        queue
    }

    fn taken(queue: &mut SendQueue) -> Vec<u64> {
        core::iter::from_fn(|| queue.pop_done()).map(|(request, _)| request.wr_id).collect()
    }

    #[test]
    fn completions_keep_the_order_of_posting() {
        let mut queue = queue(&[WRITE, READ, WRITE, READ, WRITE]);
        for _ in 0..5 {
            queue.next_sent();
        }
        assert!(queue.peek_next().is_none());
        assert_eq!((taken(&mut queue), queue.reads()), (vec![0], 2));
        assert_eq!(queue.due().unwrap().wr_id, 1);
        queue.due_done();
        assert_eq!((taken(&mut queue), queue.reads()), (vec![1, 2], 1));
        assert_eq!(queue.due().unwrap().wr_id, 3);
        queue.due_done();
        assert_eq!((taken(&mut queue), queue.reads(), queue.len()), (vec![3, 4], 0, 0));
        assert!(queue.due().is_none());
    }

    #[test]
    fn an_answer_confirms_what_precedes_its_request_alone() {
        let mut queue = queue(&[WRITE, READ, WRITE, READ, WRITE]);
        queue.confirms = true;
        for _ in 0..5 {
            queue.next_sent();
            queue.count_message();
        }
        // The peer has taken both requests to read. It may not have seen the last Write when the first answer comes.
        assert!(queue.confirm(4));
        assert_eq!((queue.due().unwrap().wr_id, taken(&mut queue)), (1, vec![0]));
        queue.due_done();
        assert_eq!(taken(&mut queue), [1, 2]);
        assert_eq!(queue.due().unwrap().wr_id, 3);
        queue.due_done();
        assert_eq!((taken(&mut queue), queue.len()), (vec![3], 1));
        // Nothing was counted twice: a message of the peer may say so once more.
        assert!(queue.confirm(4) && taken(&mut queue).is_empty());
        assert!(queue.confirm(5));
        assert_eq!(taken(&mut queue), [4]);
        // Without a message, the answer itself confirms.
        for op in [WRITE, READ, WRITE] {
            queue.completion_taken();
            queue.post(WorkRequest::new(7, op, Local::EMPTY)).unwrap();
            queue.next_sent();
            queue.count_message();
        }
        queue.due_done();
        assert_eq!((taken(&mut queue).len(), queue.len()), (2, 1));
        assert!(queue.confirm(7) && queue.len() == 1 && queue.confirm(8));
        assert_eq!(taken(&mut queue).len(), 1);
    }

    #[test]
    fn removing_unfinished_work_clears_the_awaited_responses() {
        let mut queue = queue(&[READ, WRITE, READ, WRITE]);
        queue.next_sent();
        queue.next_sent();
        assert_eq!(core::iter::from_fn(|| queue.pop()).count(), 4);
        assert_eq!((queue.reads(), queue.sent, queue.unpolled), (0, 0, 4));
    }

    #[test]
    fn the_internal_request_uses_no_slot_of_the_owner() {
        let mut queue = SendQueue::new(1, 0, 0);
        queue.post_internal(READ);
        assert_eq!(queue.post(WorkRequest::new(9, WRITE, Local::EMPTY)), Ok(()));
        queue.next_sent();
        queue.due_done();
        let (request, owned) = queue.pop_done().unwrap();
        assert!(request.internal && !owned);
        assert_eq!(queue.post(WorkRequest::new(9, WRITE, Local::EMPTY)), Err(PostError::QueueFull));
    }

    #[test]
    fn a_slot_is_free_when_its_completion_is_polled() {
        let mut queue = queue(&[WRITE, WRITE]);
        let another = WorkRequest::new(9, WRITE, Local::EMPTY);
        assert_eq!(queue.post(another), Err(PostError::QueueFull));
        queue.next_sent();
        assert_eq!(taken(&mut queue), [0]);
        assert_eq!(queue.post(another), Err(PostError::QueueFull));
        queue.completion_taken();
        assert_eq!(queue.post(another), Ok(()));
        assert_eq!(queue.next().unwrap().wr_id, 1);
    }
}
