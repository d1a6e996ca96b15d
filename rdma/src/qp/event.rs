//! Events that an endpoint raises for its owner, and the opcodes and statuses of completions.

use core::fmt;

use crate::terminate::{ErrorCode, StreamError};
use crate::wire::Stag;

/// Operation of a completed work request (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcOpcode {
    /// Send of any kind, or Immediate Data (`IBV_WC_SEND`): the transport has taken all of its bytes.
    #[default]
    Send,
    /// RDMA Write, with or without Immediate Data (`IBV_WC_RDMA_WRITE`): the transport has taken all of its bytes.
    RdmaWrite,
    /// RDMA Read (`IBV_WC_RDMA_READ`): the bytes are in local memory.
    RdmaRead,
    /// FetchAdd (`IBV_WC_FETCH_ADD`): the original value is in local memory.
    FetchAdd,
    /// CmpSwap (`IBV_WC_COMP_SWAP`): the original value is in local memory.
    CompareSwap,
    /// The memory window is bound (`IBV_WC_BIND_MW`).
    BindMw,
    /// The local STag is invalid (`IBV_WC_LOCAL_INV`).
    LocalInvalidate,
    /// A receive buffer was filled by a Send, or flushed (`IBV_WC_RECV`).
    Recv,
    /// A receive buffer was consumed by Immediate Data; its bytes are unchanged (`IBV_WC_RECV_RDMA_WITH_IMM`).
    RecvRdmaWithImm,
}

impl WcOpcode {
    /// Returns the value of `ibv_wc_opcode`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Send => 0,
            Self::RdmaWrite => 1,
            Self::RdmaRead => 2,
            Self::CompareSwap => 3,
            Self::FetchAdd => 4,
            Self::BindMw => 5,
            Self::LocalInvalidate => 6,
            Self::Recv => 128,
            Self::RecvRdmaWithImm => 129,
        }
    }
}

/// Result of a work request: the values of `ibv_wc_status` that iWARP can produce.
///
/// A peer refuses a request with a Terminate, which names no work request. A program receives it as
/// [`AsyncEvent::QpTerminated`](crate::verbs::AsyncEvent::QpTerminated), and the request as [`Self::WrFlushError`];
/// with a queue pair that is connected by number, the request has the status of the Terminate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcStatus {
    /// The request succeeded (`IBV_WC_SUCCESS`).
    #[default]
    Success,
    /// The peer's message is longer than the receive buffer; the stream has ended (`IBV_WC_LOC_LEN_ERR`).
    LocalLengthError,
    /// An element of the scatter/gather list names memory that it may not access, or the STag to invalidate is not
    /// valid; the stream has ended (`IBV_WC_LOC_PROT_ERR`).
    LocalProtectionError,
    /// The stream ended before the request was finished; the peer may or may not have seen it
    /// (`IBV_WC_WR_FLUSH_ERR`).
    WrFlushError,
    /// The memory window cannot be bound as requested; the stream has ended (`IBV_WC_MW_BIND_ERR`).
    MwBindError,
    /// The queue pair cannot execute the request: its length does not fit the operation, the stream has no RDMA Reads,
    /// or the queue has no slot for it (`IBV_WC_LOC_QP_OP_ERR`). Only requests that another process posted end so.
    LocalQpOperationError,
    /// The peer cannot process the request: it is longer than the peer's buffer, or of a kind that the peer does not
    /// take; the stream has ended (`IBV_WC_REM_INV_REQ_ERR`). Of queue pairs that are connected by number, as are the
    /// next ones.
    RemoteInvalidRequest,
    /// The peer's memory does not permit the request, or does not exist; the stream has ended
    /// (`IBV_WC_REM_ACCESS_ERR`).
    RemoteAccessError,
    /// The peer has failed; the stream has ended (`IBV_WC_REM_OP_ERR`).
    RemoteOperationError,
    /// The peer was not reached within the time that the queue pair has for it (`IBV_WC_RETRY_EXC_ERR`).
    RetryExceeded,
    /// The peer has had no receive buffer within the time that the queue pair waits for one
    /// (`IBV_WC_RNR_RETRY_EXC_ERR`).
    RnrRetryExceeded,
}

impl WcStatus {
    /// Returns the value of `ibv_wc_status`.
    pub const fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::LocalLengthError => 1,
            Self::LocalQpOperationError => 2,
            Self::LocalProtectionError => 4,
            Self::WrFlushError => 5,
            Self::MwBindError => 6,
            Self::RemoteInvalidRequest => 9,
            Self::RemoteAccessError => 10,
            Self::RemoteOperationError => 11,
            Self::RetryExceeded => 12,
            Self::RnrRetryExceeded => 13,
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "the request succeeded",
            Self::LocalLengthError => "the peer's message is longer than the receive buffer",
            Self::LocalProtectionError => "the request names memory that it may not access",
            Self::WrFlushError => "the stream ended before the request was finished",
            Self::MwBindError => "the memory window cannot be bound as requested",
            Self::LocalQpOperationError => "the queue pair cannot execute the request",
            Self::RemoteInvalidRequest => "the peer cannot process the request",
            Self::RemoteAccessError => "the peer's memory does not permit the request",
            Self::RemoteOperationError => "the peer has failed",
            Self::RetryExceeded => "the peer was not reached in time",
            Self::RnrRetryExceeded => "the peer has had no receive buffer in time",
        })
    }
}

impl core::error::Error for WcStatus {}

/// Method of ending the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseHow {
    /// Send the queued data, then FIN.
    Fin,
    /// Send RST at once.
    Reset,
}

/// Event of an endpoint. Events are returned in the order in which they occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Responder: a peer asks to connect. The owner calls `accept` or `reject`.
    ConnectRequest {
        /// Private data of the request, without the words of RFC 6581.
        private_data: Box<[u8]>,
        /// Reads that the peer offers to serve at a time; `None` if it states none.
        ird: Option<u16>,
        /// Reads that the peer asks to have outstanding; `None` if it states none.
        ord: Option<u16>,
        /// MPA revision: 0, 1 or 2.
        rev: u8,
        /// True if the peer asks for CRCs.
        crc: bool,
    },
    /// The stream entered full operation.
    Established {
        /// Initiator: private data of the reply. Responder: empty.
        private_data: Box<[u8]>,
        /// MPA revision, 1 or 2.
        rev: u8,
        /// True if FPDUs carry CRCs.
        crc: bool,
        /// Inbound reads at a time (IRD).
        ird: u16,
        /// Outbound reads at a time (ORD).
        ord: u16,
    },
    /// Initiator: the peer rejected the connection.
    Rejected {
        /// Private data of the reply.
        private_data: Box<[u8]>,
    },
    /// A work request finished.
    Completion {
        /// Number that the request was posted with.
        wr_id: u64,
        /// Operation of the request.
        op: WcOpcode,
        /// Result of the request.
        status: WcStatus,
        /// Length of the message in bytes; 0 if flushed.
        bytes: u32,
    },
    /// A Send was received into a posted buffer.
    Received {
        /// Number that the buffer was posted with.
        wr_id: u64,
        /// Length of the message in bytes.
        bytes: u32,
        /// True if the peer asks for an event.
        solicited: bool,
        /// STag of this side that the peer invalidated.
        invalidated: Option<Stag>,
        /// Immediate Data of the Send, four bytes; only between queue pairs that are connected by number.
        immediate: Option<[u8; 4]>,
    },
    /// Immediate Data was received. It consumed a posted buffer, whose bytes are unchanged.
    Immediate {
        /// Number that the buffer was posted with.
        wr_id: u64,
        /// The eight bytes of Immediate Data.
        data: [u8; 8],
        /// Length in bytes of the RDMA Write before it, which only queue pairs that are connected by number tell; else
        /// 0.
        bytes: u32,
        /// True if the peer asks for an event.
        solicited: bool,
    },
    /// A datagram was received into a posted buffer, behind its global route header of 40 bytes.
    Datagram {
        /// Number that the buffer was posted with.
        wr_id: u64,
        /// Length in bytes, with the header.
        bytes: u32,
        /// Number of the queue pair that has sent it.
        source: u32,
        /// True if the sender asks for an event.
        solicited: bool,
        /// Immediate Data of the datagram.
        immediate: Option<[u8; 4]>,
    },
    /// Datagrams have arrived at a link.
    Datagrams,
    /// A Terminate was handed to the transport.
    TerminateSent {
        /// Error code of the Terminate.
        code: ErrorCode,
        /// Error that caused it.
        error: StreamError,
    },
    /// The peer ended the stream with a Terminate.
    TerminateReceived {
        /// Error code of the Terminate.
        code: ErrorCode,
        /// First four bytes of the Terminate as received.
        raw: [u8; 4],
        /// True if they were in Linux soft-iWARP's bit order.
        siw_order: bool,
    },
    /// The stream ended with an error, without a Terminate: none may be sent, or none can be sent any more.
    Failed {
        /// Error code that a Terminate would have carried.
        code: ErrorCode,
    },
    /// The last event: the owner ends the connection.
    Close {
        /// Method of ending the connection.
        how: CloseHow,
    },
}
