//! What an endpoint tells its owner.

use crate::terminate::{ErrorCode, StreamError};
use crate::wire::Stag;

/// What a completed work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOp {
    /// An RDMA Write: the transport has it.
    Write,
    /// An RDMA Read: the bytes are there.
    Read,
    /// A Send: the transport has it.
    Send,
    /// An atomic operation: what the peer's memory held before is there.
    Atomic,
    /// Immediate Data: the transport has it.
    Immediate,
    /// An STag of this side is invalid.
    Invalidate,
    /// A memory window is bound.
    Bind,
    /// A posted buffer.
    Receive,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The stream ended first; whether the peer has seen anything of it is not known.
    Flushed,
    /// An element of its scatter/gather list names memory that it may not touch; the stream has ended.
    LocalProtection,
    /// The peer's message was longer than the buffer; the stream has ended.
    LocalLength,
    /// The memory window could not be bound; the stream has ended.
    WindowBind,
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
        op: CompletionOp,
        /// How it ended.
        status: CompletionStatus,
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
