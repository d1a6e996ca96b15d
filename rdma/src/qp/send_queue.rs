//! The work that the owner has posted to send.

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
        })
    }
}

impl core::error::Error for PostError {}

/// What a work request does.
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
    Atomic {
        stag: Stag,
        to: TaggedOffset,
        op: AtomicOp,
    },
    Immediate {
        data: [u8; 8],
        solicited: bool,
    },
    /// Two messages: when the first is sent, it becomes the second, [`Self::Immediate`].
    WriteImmediate {
        stag: Stag,
        to: TaggedOffset,
        data: [u8; 8],
        solicited: bool,
    },
    /// Not a message: invalidates an STag of this side.
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
            Self::Send { .. } | Self::Immediate { .. } => WcOpcode::Send,
            Self::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
            Self::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompareSwap,
            Self::Invalidate { .. } => WcOpcode::LocalInvalidate,
            Self::Bind { .. } => WcOpcode::BindMw,
        }
    }

    /// Whether it is no message, and the peer not needed.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, Self::Invalidate { .. } | Self::Bind { .. })
    }

    /// Whether it is finished by an answer of the peer's. RFC 7306 §5.2: Atomic Requests share the queue, and the
    /// depth, of Read Requests.
    pub(crate) const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest {
    pub(crate) wr_id: u64,
    pub(crate) op: WorkOp,
    pub(crate) local: Local,
    /// Bytes sent of a Write or Send; bytes that have come of a Read.
    pub(crate) progress: u32,
    /// The STag that the peer's Read Response must name; the identifier that its Atomic Response must.
    pub(crate) sink: Stag,
    /// For a read: the STag of this side that is invalid when it is finished.
    pub(crate) invalidate: Option<Stag>,
    /// Waits until all reads and atomic operations before it are finished.
    pub(crate) fence: bool,
    /// How it ends if the stream ends first.
    pub(crate) status: WcStatus,
    /// Not posted by the owner, who is not told of it.
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
            internal: false,
            done: false,
        }
    }
}

/// Work requests in the order of posting: first those sent whose completion is due, then the one being sent,
/// then the others.
#[derive(Debug)]
pub(crate) struct SendQueue {
    queue: VecDeque<WorkRequest>,
    /// How many at the head are sent whole.
    sent: usize,
    /// How many of those are reads and atomic operations that the peer owes an answer.
    reads: usize,
    /// Completions that the owner has not taken.
    untaken: usize,
    depth: usize,
    /// The scatter/gather lists and copied bytes of the requests.
    pub(crate) lists: Lists,
}

impl SendQueue {
    /// For `depth` requests, each with up to `sges` elements of a list or `inline` bytes.
    pub(crate) fn new(depth: usize, sges: usize, inline: usize) -> Self {
        let queue = VecDeque::with_capacity(depth.saturating_add(1));
        Self { queue, sent: 0, reads: 0, untaken: 0, depth, lists: Lists::new(depth, sges, inline) }
    }

    /// Posts the one request that is not the owner's; there is a place for it besides the owner's.
    pub(crate) fn post_internal(&mut self, op: WorkOp) {
        self.depth = self.depth.saturating_add(1);
        self.queue.push_back(WorkRequest { internal: true, ..WorkRequest::new(0, op, Local::EMPTY) });
    }

    /// Whether another request can be posted.
    pub(crate) fn check_room(&self) -> Result<(), PostError> {
        if self.queue.len().saturating_add(self.untaken) < self.depth {
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

    /// Work requests not completed.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Reads and atomic operations that the peer owes an answer.
    pub(crate) const fn reads(&self) -> usize {
        self.reads
    }

    /// The next to be sent, or the one being sent.
    pub(crate) fn next(&mut self) -> Option<&mut WorkRequest> {
        self.queue.get_mut(self.sent)
    }

    /// The same, to look at.
    pub(crate) fn peek_next(&self) -> Option<&WorkRequest> {
        self.queue.get(self.sent)
    }

    /// The one being sent is sent whole.
    pub(crate) fn next_sent(&mut self) {
        let Some(request) = self.queue.get_mut(self.sent) else { return };
        self.sent = self.sent.saturating_add(1);
        if request.op.is_answered() {
            self.reads = self.reads.saturating_add(1);
        } else {
            request.done = true;
        }
    }

    /// The read or atomic operation whose response is due: the oldest that is sent and not finished. Responses come
    /// in the order of the requests (RFC 7306 §7).
    pub(crate) fn due(&mut self) -> Option<&mut WorkRequest> {
        if self.reads == 0 {
            return None;
        }
        self.queue.iter_mut().take(self.sent).find(|request| !request.done)
    }

    /// The response that was due has come.
    pub(crate) fn due_done(&mut self) {
        if let Some(request) = self.due() {
            request.done = true;
            self.reads = self.reads.saturating_sub(1);
        }
    }

    /// Takes the head if it is finished; see [`Self::pop`].
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<(WorkRequest, bool)> {
        if self.queue.front()?.done { self.pop() } else { None }
    }

    /// Takes the head, finished or not, and says whether it was the owner's. If it was, its completion counts
    /// until [`Self::completion_taken`].
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(WorkRequest, bool)> {
        let request = self.queue.pop_front()?;
        if self.sent > 0 && !request.done {
            self.reads = self.reads.saturating_sub(1);
        }
        self.sent = self.sent.saturating_sub(1);
        if request.internal {
            self.depth = self.depth.saturating_sub(1);
        } else {
            self.untaken = self.untaken.saturating_add(1);
        }
        Some((request, !request.internal))
    }

    pub(crate) const fn completion_taken(&mut self) {
        self.untaken = self.untaken.saturating_sub(1);
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
    fn taking_back_unfinished_work_forgets_what_was_due() {
        let mut queue = queue(&[READ, WRITE, READ, WRITE]);
        queue.next_sent();
        queue.next_sent();
        assert_eq!(core::iter::from_fn(|| queue.pop()).count(), 4);
        assert_eq!((queue.reads(), queue.sent, queue.untaken), (0, 0, 4));
    }

    #[test]
    fn the_internal_request_takes_no_place_of_the_owner() {
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
    fn a_place_is_free_when_its_completion_is_taken() {
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
