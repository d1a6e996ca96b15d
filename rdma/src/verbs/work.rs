//! Work requests (`ibv_send_wr`, `ibv_recv_wr`), and the calls that post them.

use super::datagrams::Destination;
use super::ids::{MwId, QpNum};
use super::queue_pair::{Posted, QpState};
use super::{Bind, Device};
use crate::qp::{Local, PostError, Sge, StreamState, WcOpcode, WcStatus, WorkOp, WorkRequest};
use crate::wire::atomic::AtomicOp;
use crate::wire::{Stag, TaggedOffset};

/// Receive buffer for a Send or Immediate Data of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// Number that the completion returns.
    pub wr_id: u64,
    /// Memory for the bytes, in this order.
    pub sg_list: &'a [Sge],
}

/// Bytes of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Local memory, in this order. It is checked when the request is executed, and belongs to the program again when
    /// the request is finished.
    List(&'a [Sge]),
    /// Copied when the request is posted (`IBV_SEND_INLINE`); the program may reuse it at once.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// No bytes: an empty list.
    pub const NONE: Self = Self::List(&[]);

    /// Returns the length in bytes.
    fn len(&self) -> u64 {
        match self {
            Self::List(list) => list.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Operation of a send request, with its parameters (`ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Sends to the peer's next buffer, and invalidates an STag of the peer if one is named (RFC 5040 §5.3).
    Send {
        /// STag of the peer to invalidate.
        invalidate: Option<Stag>,
    },
    /// Sends to the peer's next buffer with four bytes of Immediate Data. Only between queue pairs that are connected
    /// by number: iWARP has no such message.
    SendWithImm {
        /// Immediate Data for the peer.
        imm_data: [u8; 4],
    },
    /// Sends a datagram, of a queue pair of [`QpType::Ud`](super::QpType::Ud).
    Datagram {
        /// Receiver of the datagram.
        to: Destination,
        /// Immediate Data for the receiver.
        imm_data: Option<[u8; 4]>,
    },
    /// Writes to the peer's memory (RFC 5040 §5.1).
    RdmaWrite {
        /// Address of the first byte at the peer.
        remote_addr: u64,
        /// Key of the peer's memory.
        rkey: Stag,
    },
    /// Writes to the peer's memory, then consumes one of its receive buffers to notify it (RFC 7306 §6). One work
    /// request, one completion.
    RdmaWriteWithImm {
        /// Address of the first byte at the peer.
        remote_addr: u64,
        /// Key of the peer's memory.
        rkey: Stag,
        /// Immediate Data for the peer.
        imm_data: [u8; 8],
    },
    /// Consumes a receive buffer of the peer to notify it (RFC 7306 §6). Takes no other bytes.
    Immediate {
        /// Immediate Data for the peer.
        imm_data: [u8; 8],
    },
    /// Reads the peer's memory into the list (RFC 5040 §5.2).
    RdmaRead {
        /// Address of the first byte at the peer.
        remote_addr: u64,
        /// Key of the peer's memory.
        rkey: Stag,
    },
    /// Reads the peer's memory into a single element, and invalidates the key of that element when finished.
    RdmaReadInvalidate {
        /// Address of the first byte at the peer.
        remote_addr: u64,
        /// Key of the peer's memory.
        rkey: Stag,
    },
    /// Performs an atomic operation on eight bytes of the peer's memory (RFC 7306 §5). The original value goes into
    /// the list, in this machine's byte order.
    Atomic {
        /// Address of the eight bytes, which must be a multiple of eight in the memory behind it.
        remote_addr: u64,
        /// Key of the peer's memory.
        rkey: Stag,
        /// Atomic operation to perform.
        op: AtomicOp,
    },
    /// Binds a memory window to this queue pair's stream (`IBV_WR_BIND_MW`).
    BindMw {
        /// Memory window, which must be unbound.
        mw: MwId,
        /// New key of the window; it may differ only in the low eight bits.
        rkey: Stag,
        /// Memory to bind the window to.
        bind: Bind,
    },
    /// Invalidates a local STag: that of a memory region, or of a window bound to this queue pair
    /// (`IBV_WR_LOCAL_INV`).
    LocalInvalidate {
        /// Local STag to invalidate.
        stag: Stag,
    },
}

/// Flags of a send request (`ibv_send_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Generate a completion on success. Errors always generate one.
    pub signaled: bool,
    /// Ask the peer for an event when a Send or Immediate Data arrives.
    pub solicited: bool,
    /// Wait until all reads and atomic operations posted earlier are finished. All other operations finish when they
    /// are executed, so this is both the "read fence" and the "local fence" of the RDMA verbs.
    pub fence: bool,
}

impl SendFlags {
    /// Signaled, not solicited, no fence.
    pub const SIGNALED: Self = Self { signaled: true, solicited: false, fence: false };
}

/// Work request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// Number that the completion returns.
    pub wr_id: u64,
    /// Operation with its parameters.
    pub op: SendOp,
    /// Bytes of the request; none for operations without bytes.
    pub data: Data<'a>,
    /// Flags of the request.
    pub flags: SendFlags,
}

impl<'a> SendWr<'a> {
    /// Returns a signaled request with the bytes of `sg_list`.
    pub const fn new(wr_id: u64, op: SendOp, sg_list: &'a [Sge]) -> Self {
        Self { wr_id, op, data: Data::List(sg_list), flags: SendFlags::SIGNALED }
    }
}

impl SendOp {
    /// Send without an STag to invalidate.
    pub const SEND: Self = Self::Send { invalidate: None };

    /// Returns the opcode of the completion.
    pub const fn opcode(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendWithImm { .. } | Self::Datagram { .. } | Self::Immediate { .. } => {
                WcOpcode::Send
            }
            Self::RdmaWrite { .. } | Self::RdmaWriteWithImm { .. } => WcOpcode::RdmaWrite,
            Self::RdmaRead { .. } | Self::RdmaReadInvalidate { .. } => WcOpcode::RdmaRead,
            Self::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
            Self::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompareSwap,
            Self::BindMw { .. } => WcOpcode::BindMw,
            Self::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        }
    }

    /// Returns the work of the operation; of a datagram, with its link and its Q_Key.
    const fn work_op(&self, solicited: bool, (link, qkey): (u32, u32)) -> WorkOp {
        match *self {
            Self::Datagram { to, imm_data: immediate } => {
                WorkOp::Datagram { link, dest: to.qp_num.0, qkey, immediate, solicited }
            }
            Self::Send { invalidate } => WorkOp::Send { solicited, invalidate },
            Self::SendWithImm { imm_data } => WorkOp::SendImmediate { solicited, data: imm_data },
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

    /// Returns true if the operation accepts these bytes.
    pub fn takes(&self, data: &Data<'_>) -> bool {
        match (self, data) {
            (
                Self::Send { .. }
                | Self::SendWithImm { .. }
                | Self::Datagram { .. }
                | Self::RdmaWrite { .. }
                | Self::RdmaWriteWithImm { .. },
                _,
            ) => true,
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
    /// Posts a send request (`ibv_post_send`). Keys and bounds are checked when the request is executed.
    ///
    /// # Errors
    /// Reason why the request was not posted; it produces no completion then.
    pub fn post_send(&mut self, number: QpNum, wr: &SendWr<'_>) -> Result<(), PostError> {
        let route = match &wr.op {
            SendOp::Datagram { to, .. } => self.datagram_route(number, to)?,
            _ => (0, 0),
        };
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
            self.note_pending(number);
            return Err(PostError::State);
        }
        if qp.send_used >= usize::from(qp.init.cap.max_send_wr) {
            return Err(PostError::QueueFull);
        }
        if !wr.op.takes(&wr.data) {
            return Err(PostError::Length);
        }
        let signaled = wr.flags.signaled || qp.init.sq_sig_all;
        let posted = Posted { opcode: wr.op.opcode(), signaled, at_ns: self.now_ns };
        let endpoint = qp.id.and_then(|id| Some((id, self.ids.get_mut(id.0)?.endpoint.as_mut()?)));
        let Some((id, endpoint)) = endpoint.filter(|(_, endpoint)| endpoint.takes_work()) else {
            // Its stream ends: nobody receives what would be posted now.
            if qp.link.is_some() {
                self.note_pending(number);
                return Err(PostError::State);
            }
            self.flush_send(number, wr.wr_id, posted);
            return Ok(());
        };
        let queues = endpoint.queue_pair();
        let work_op = wr.op.work_op(wr.flags.solicited, route);
        if work_op.is_answered() && queues.ord == 0 {
            return Err(PostError::NoReads);
        }
        if let Some(error) = queues.refuses(&work_op) {
            return Err(error);
        }
        if matches!(work_op, WorkOp::Datagram { .. }) && wr.data.len() > self.links.datagram_max() {
            return self.refuse_long(number, wr);
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

    /// Ends a queue pair for a datagram that is longer than the port's MTU.
    #[cold]
    fn refuse_long(&mut self, number: QpNum, wr: &SendWr<'_>) -> Result<(), PostError> {
        let request = (wr.wr_id, wr.op.opcode());
        self.refuse_send(number, request, WcStatus::LocalLengthError).map_err(|_| PostError::NoSuchObject)
    }

    /// Posts send requests in order (`ibv_post_send` of a list).
    ///
    /// # Errors
    /// Number of requests posted, and the reason why the next was not.
    pub fn post_send_list(&mut self, qp: QpNum, list: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        for (at, wr) in list.iter().enumerate() {
            self.post_send(qp, wr).map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// Posts a receive buffer for the peer's next Send or Immediate Data (`ibv_post_recv`). Allowed before there is a
    /// stream.
    ///
    /// # Errors
    /// Reason why the buffer was not posted; it produces no completion then.
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
                if let Some(id) = qp.id {
                    self.give_buffer(id);
                }
            }
            None => self.flush_recv(number, wr.wr_id),
        }
        Ok(())
    }
}
