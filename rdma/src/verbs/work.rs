//! Work requests (`ibv_send_wr`, `ibv_recv_wr`) and how they are posted.

use super::ids::{MwId, QpNum};
use super::queue_pair::{Posted, QpState};
use super::{Bind, Device};
use crate::qp::{Local, PostError, Sge, StreamState, WcOpcode, WorkOp, WorkRequest};
use crate::wire::atomic::AtomicOp;
use crate::wire::{Stag, TaggedOffset};

/// A buffer for the peer's next Send or Immediate Data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the bytes go, in this order.
    pub sg_list: &'a [Sge],
}

/// The bytes of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Memory of this side, in this order. Looked at when its turn comes, and the program's again when it is
    /// finished.
    List(&'a [Sge]),
    /// Copied when it is posted (`IBV_SEND_INLINE`): the program's again at once.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// No bytes.
    pub const NONE: Self = Self::List(&[]);
}

/// What a work request does (`ibv_wr_opcode` and what belongs to each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A Send to the peer's next buffer, which also invalidates an STag of the peer's if it says so
    /// (RFC 5040 §5.3).
    Send {
        /// The STag.
        invalidate: Option<Stag>,
    },
    /// Writes to the peer's memory (RFC 5040 §5.1).
    RdmaWrite {
        /// The address of the first byte there.
        remote_addr: u64,
        /// The peer's key.
        rkey: Stag,
    },
    /// The same, and then uses up a buffer of the peer's to tell of it (RFC 7306 §6). One work request, one
    /// completion.
    RdmaWriteWithImm {
        /// The address of the first byte there.
        remote_addr: u64,
        /// The peer's key.
        rkey: Stag,
        /// What the peer is told.
        imm_data: [u8; 8],
    },
    /// Uses up a buffer of the peer's to tell it something (RFC 7306 §6). Without bytes otherwise.
    Immediate {
        /// What the peer is told.
        imm_data: [u8; 8],
    },
    /// Reads the peer's memory into the list (RFC 5040 §5.2).
    RdmaRead {
        /// The address of the first byte there.
        remote_addr: u64,
        /// The peer's key.
        rkey: Stag,
    },
    /// The same into a single element, whose memory region is no longer valid when it is finished.
    RdmaReadInvalidate {
        /// The address of the first byte there.
        remote_addr: u64,
        /// The peer's key.
        rkey: Stag,
    },
    /// An atomic operation on eight bytes of the peer's (RFC 7306 §5); what they were goes into the list, in
    /// the byte order of this machine.
    Atomic {
        /// Their address, a multiple of eight in the memory behind it.
        remote_addr: u64,
        /// The peer's key.
        rkey: Stag,
        /// What is done.
        op: AtomicOp,
    },
    /// Binds a memory window to this queue pair's stream (`IBV_WR_BIND_MW`).
    BindMw {
        /// The window; not bound.
        mw: MwId,
        /// Its new key: the window's, but for the low eight bits.
        rkey: Stag,
        /// To what.
        bind: Bind,
    },
    /// Makes an STag of this side invalid: a memory region's, or that of a window bound here
    /// (`IBV_WR_LOCAL_INV`).
    LocalInvalidate {
        /// The STag.
        stag: Stag,
    },
}

/// How a work request is done (`ibv_send_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Success is told, too. Errors always are.
    pub signaled: bool,
    /// The peer is asked for an event when it has come: Sends and Immediate Data.
    pub solicited: bool,
    /// Not before all reads and atomic operations posted earlier are finished. As what is neither is finished when
    /// its turn is over, this is both the "read fence" and the "local fence" of the RDMA verbs.
    pub fence: bool,
}

impl SendFlags {
    /// Success is told.
    pub const SIGNALED: Self = Self { signaled: true, solicited: false, fence: false };
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp,
    /// Its bytes; none for what has no use for them.
    pub data: Data<'a>,
    /// How.
    pub flags: SendFlags,
}

impl SendOp {
    /// What it completes as.
    const fn opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::Immediate { .. } => WcOpcode::Send,
            Self::RdmaWrite { .. } | Self::RdmaWriteWithImm { .. } => WcOpcode::RdmaWrite,
            Self::RdmaRead { .. } | Self::RdmaReadInvalidate { .. } => WcOpcode::RdmaRead,
            Self::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
            Self::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompareSwap,
            Self::BindMw { .. } => WcOpcode::BindMw,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        }
    }

    const fn work_op(&self, solicited: bool) -> WorkOp {
        match *self {
            Self::Send { invalidate } => WorkOp::Send { solicited, invalidate },
            Self::RdmaWrite { remote_addr, rkey } => {
                WorkOp::Write { stag: rkey, to: TaggedOffset(remote_addr) }
            }
            Self::RdmaWriteWithImm { remote_addr, rkey, imm_data } => WorkOp::WriteImmediate {
                stag: rkey,
                to: TaggedOffset(remote_addr),
                data: imm_data,
                solicited,
            },
            Self::Immediate { imm_data } => WorkOp::Immediate { data: imm_data, solicited },
            Self::RdmaRead { remote_addr, rkey } | Self::RdmaReadInvalidate { remote_addr, rkey } => {
                WorkOp::Read { stag: rkey, to: TaggedOffset(remote_addr) }
            }
            Self::Atomic { remote_addr, rkey, op } => {
                WorkOp::Atomic { stag: rkey, to: TaggedOffset(remote_addr), op }
            }
            Self::BindMw { rkey, bind, .. } => WorkOp::Bind { window: rkey, bind },
            Self::LocalInvalidate { stag } => WorkOp::Invalidate { stag },
        }
    }

    /// Whether it can be done with these bytes.
    fn takes(&self, data: &Data<'_>) -> bool {
        match (self, data) {
            (Self::Send { .. } | Self::RdmaWrite { .. } | Self::RdmaWriteWithImm { .. }, _) => true,
            (Self::RdmaRead { .. }, Data::List(_)) => true,
            (Self::RdmaReadInvalidate { .. }, Data::List(list)) => list.len() == 1,
            (Self::Atomic { .. }, Data::List(list)) => {
                list.iter().map(|sge| u64::from(sge.length)).sum::<u64>() == size_of::<u64>() as u64
            }
            (_, Data::List(list)) => list.is_empty(),
            (_, Data::Inline(_)) => false,
        }
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Posts work to send (`ibv_post_send`). Keys and bounds are looked at when its turn comes.
    ///
    /// # Errors
    /// Where it is not taken, and never was there.
    pub fn post_send(&mut self, number: QpNum, wr: &SendWr<'_>) -> Result<(), PostError> {
        let window = match wr.op {
            SendOp::BindMw { mw, rkey, .. } => {
                Some((self.mws.get(mw.0).ok_or(PostError::NoSuchObject)?, rkey))
            }
            _ => None,
        };
        let qp = self.qps.get_mut(number.0).ok_or(PostError::NoSuchObject)?;
        if let Some((window, rkey)) = window
            && (window.pd != qp.init.pd || window.stag.0 >> 8 != rkey.0 >> 8)
        {
            return Err(PostError::Window);
        }
        if let QpState::Idle | QpState::Closing = qp.state {
            return Err(PostError::State);
        }
        if qp.send_used >= usize::from(qp.init.cap.max_send_wr) {
            return Err(PostError::QueueFull);
        }
        if !wr.op.takes(&wr.data) {
            return Err(PostError::Length);
        }
        let signaled = wr.flags.signaled || qp.init.sq_sig_all;
        let posted = Posted { opcode: wr.op.opcode(), signaled };
        let endpoint = qp.id.and_then(|id| Some((id, self.ids.get_mut(id.0)?.endpoint.as_mut()?)));
        let Some((id, endpoint)) = endpoint.filter(|(_, endpoint)| endpoint.takes_work()) else {
            self.flush_send(number, wr.wr_id, posted);
            return Ok(());
        };
        let queues = endpoint.queue_pair();
        let work_op = wr.op.work_op(wr.flags.solicited);
        if work_op.is_answered() && queues.ord == 0 {
            return Err(PostError::NoReads);
        }
        queues.sq.check_room()?;
        let local = match wr.data {
            Data::List([]) => Some(Local::EMPTY),
            Data::List(list) => queues.sq.lists.keep(list),
            Data::Inline(bytes) => queues.sq.lists.keep_inline(bytes),
        };
        let invalidate = match (wr.op, wr.data) {
            (SendOp::RdmaReadInvalidate { .. }, Data::List([sge])) => Some(sge.lkey),
            _ => None,
        };
        let mut request = WorkRequest::new(wr.wr_id, work_op, local.ok_or(PostError::Length)?);
        (request.fence, request.invalidate) = (wr.flags.fence, invalidate);
        endpoint.post_work(request)?;
        qp.posted.push_back(posted);
        qp.send_used = qp.send_used.saturating_add(1);
        self.request_transmit(id);
        Ok(())
    }

    /// Posts work in order (`ibv_post_send` of a list).
    ///
    /// # Errors
    /// How many were taken, and why the next was not.
    pub fn post_send_list(&mut self, qp: QpNum, list: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        for (at, wr) in list.iter().enumerate() {
            self.post_send(qp, wr).map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// Gives the peer's next Send or Immediate Data a buffer (`ibv_post_recv`). Allowed before there is a stream.
    ///
    /// # Errors
    /// Where it is not taken, and never was there.
    pub fn post_recv(&mut self, number: QpNum, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(number.0).ok_or(PostError::NoSuchObject)?;
        if qp.init.srq.is_some() {
            return Err(PostError::State);
        }
        if qp.recv_used >= usize::from(qp.init.cap.max_recv_wr) {
            return Err(PostError::QueueFull);
        }
        let id = qp.id.and_then(|id| self.ids.get_mut(id.0));
        let of_stream = id.and_then(|id| id.endpoint.as_mut()).map(|endpoint| endpoint.queue_pair());
        let queues = qp.queues.as_deref_mut().or(of_stream);
        match queues.filter(|queues| matches!(queues.state, StreamState::Idle | StreamState::ReadyToSend)) {
            Some(queues) => {
                queues.rq.post_list(wr.wr_id, wr.sg_list)?;
                qp.recv_used = qp.recv_used.saturating_add(1);
            }
            None => self.flush_recv(number, wr.wr_id),
        }
        Ok(())
    }
}
