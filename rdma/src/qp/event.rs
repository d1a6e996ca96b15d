//! What an endpoint tells its owner.

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

/// Result of a work request: the values of `ibv_wc_status` that iWARP can produce.
///
/// A peer refuses a request with a Terminate, which names no work request. A program receives it as
/// [`AsyncEvent::QpTerminated`](crate::verbs::AsyncEvent::QpTerminated), and the request as [`Self::WrFlushError`].
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
}

/// How to end the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseHow {
    /// Send what is queued, then FIN.
    Fin,
    /// RST.
    Reset,
}

/// What an endpoint tells its owner, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Responder: a peer wants to connect. Answer with `accept` or `reject`.
    ConnectRequest {
        /// The private data of the request, without the words of RFC 6581.
        private_data: Box<[u8]>,
        /// Reads the peer says it can answer at a time, if it says so.
        ird: Option<u16>,
        /// Reads the peer says it will have outstanding at a time, if it says so.
        ord: Option<u16>,
        /// The revision of MPA: 0, 1 or 2.
        rev: u8,
        /// Whether the peer asks for CRCs.
        crc: bool,
    },
    /// The stream is in full operation.
    Established {
        /// Initiator: the private data of the reply. Responder: empty.
        private_data: Box<[u8]>,
        /// The revision of MPA.
        rev: u8,
        /// Whether FPDUs carry CRCs.
        crc: bool,
        /// Reads of the peer at a time.
        ird: u16,
        /// Reads of ours at a time.
        ord: u16,
    },
    /// Initiator: the peer does not want the connection.
    Rejected {
        /// The private data of the reply.
        private_data: Box<[u8]>,
    },
    /// A work request is finished.
    Completion {
        /// The number it was posted with.
        wr_id: u64,
        /// What it was.
        op: WcOpcode,
        /// How it ended.
        status: WcStatus,
        /// Bytes of its message; 0 if flushed.
        bytes: u32,
    },
    /// A Send has come into a posted buffer.
    Received {
        /// The number the buffer was posted with.
        wr_id: u64,
        /// Bytes of the message.
        bytes: u32,
        /// The peer asks for an event.
        solicited: bool,
        /// The STag that the peer has invalidated.
        invalidated: Option<Stag>,
    },
    /// Immediate Data has come, and has used up a posted buffer, which is as it was.
    Immediate {
        /// The number the buffer was posted with.
        wr_id: u64,
        /// The bytes.
        data: [u8; 8],
        /// The peer asks for an event.
        solicited: bool,
    },
    /// A Terminate was handed to the transport.
    TerminateSent {
        /// What it says.
        code: ErrorCode,
        /// Why.
        error: StreamError,
    },
    /// The peer ended the stream with a Terminate.
    TerminateReceived {
        /// What it says.
        code: ErrorCode,
        /// Its first four bytes as they came.
        raw: [u8; 4],
        /// They were in Linux soft-iWARP's bit order.
        siw_order: bool,
    },
    /// The stream ends for a reason that no Terminate tells: none may be sent, or none can be any more.
    Failed {
        /// The reason as a Terminate would have had it.
        code: ErrorCode,
    },
    /// The last event: end the connection.
    Close {
        /// How.
        how: CloseHow,
    },
}
