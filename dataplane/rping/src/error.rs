//! Error type of the client and the server.

use std::time::Duration;

use rdma::ErrorCode;
use rdma::verbs::{PostError, VerbsError, WcOpcode, WcStatus};

/// Cause of the failure of a connection, or of the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The listener's address is not available.
    #[error("the address is not one of this port's, or its TCP port is taken")]
    Address,
    /// The peer refused the TCP connection.
    #[error("nobody listens there")]
    Refused,
    /// The TCP connection could not be opened.
    #[error("nobody answers")]
    Unreachable,
    /// The MPA negotiation failed.
    #[error("the connection was not agreed on")]
    NoAgreement,
    /// The peer rejected the connection.
    #[error("the peer rejects the connection{}", say(.private_data))]
    Rejected {
        /// Private data of the rejection.
        private_data: Box<[u8]>,
    },
    /// The connection ended before the round was finished.
    #[error("the connection has ended in the middle of a round")]
    Ended,
    /// Either side terminated the stream.
    #[error("the stream was terminated: {0}")]
    Terminated(ErrorCode),
    /// A work request failed.
    #[error("{opcode:?} ended with {status:?}")]
    Work {
        /// Operation of the work request.
        opcode: WcOpcode,
        /// Status of its completion.
        status: WcStatus,
    },
    /// A received Send has the wrong length.
    #[error("the peer sent {0} bytes where there should be 16")]
    Message(u32),
    /// The peer's text is too long for the buffer.
    #[error("the peer's text has {asked} bytes, and there is room for {room}")]
    TooLong {
        /// Bytes of the peer's text.
        asked: u32,
        /// Bytes of the buffer.
        room: u32,
    },
    /// The returned data differs from the data sent.
    #[error("data mismatch in round {0}")]
    Mismatch(u64),
    /// The data read is not a text of `rping`.
    #[error("what was read from the peer is not a text of rping's")]
    NotAText,
    /// The peer sent again before it received the go-ahead.
    #[error("the peer does not wait for its turn")]
    UnexpectedSend,
    /// The peer sent nothing until the timeout.
    #[error("the peer was silent for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// A verbs object could not be created.
    #[error("{0}")]
    Object(#[from] VerbsError),
    /// A work request could not be posted.
    #[error("{0}")]
    Post(#[from] PostError),
    /// The daemon cannot be reached, refuses, or has ended.
    #[error("{0}")]
    Daemon(String),
    /// A region is smaller than its configured size.
    #[error("a region is shorter than it was made")]
    Memory,
}

fn say(private_data: &[u8]) -> String {
    if private_data.is_empty() { String::new() } else { format!(": {}", private_data.escape_ascii()) }
}
