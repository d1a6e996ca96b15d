//! Why a program of this crate does not come to its end.

use std::time::Duration;

use rdma::ErrorCode;
use rdma::verbs::{PostError, VerbsError, WcOpcode, WcStatus};

/// Why a connection, or the program, has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The listener cannot have its address.
    #[error("the address is not one of this port's, or its TCP port is taken")]
    Address,
    /// No TCP connection.
    #[error("nobody answers, or nobody listens there")]
    Unreachable,
    /// No agreement.
    #[error("the connection was not agreed on")]
    NoAgreement,
    /// The peer said no.
    #[error("the peer rejects the connection{}", say(.private_data))]
    Rejected {
        /// With these words.
        private_data: Box<[u8]>,
    },
    /// The connection ended in the middle of a round.
    #[error("the connection has ended in the middle of a round")]
    Ended,
    /// This or the other side ended the stream with a Terminate.
    #[error("the stream was terminated: {0}")]
    Terminated(ErrorCode),
    /// Work ended otherwise than well.
    #[error("{opcode:?} ended with {status:?}")]
    Work {
        /// What it was.
        opcode: WcOpcode,
        /// How it ended.
        status: WcStatus,
    },
    /// A Send that is not one of `rping`.
    #[error("the peer sent {0} bytes where there should be 16")]
    Message(u32),
    /// The peer's text has no room here.
    #[error("the peer's text has {asked} bytes, and there is room for {room}")]
    TooLong {
        /// Bytes of its text.
        asked: u32,
        /// Bytes that there are for it.
        room: u32,
    },
    /// Other bytes received than were sent.
    #[error("data mismatch in round {0}")]
    Mismatch(u64),
    /// What was read is not a text of `rping`.
    #[error("what was read from the peer is not a text of rping's")]
    NotAText,
    /// The peer sends again before it was told to go on.
    #[error("the peer does not wait for its turn")]
    UnexpectedSend,
    /// The peer does not go on.
    #[error("the peer was silent for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// An object cannot be had.
    #[error("{0}")]
    Object(#[from] VerbsError),
    /// Work cannot be posted.
    #[error("{0}")]
    Post(#[from] PostError),
    /// A region has not the bytes that it was made with.
    #[error("a region is shorter than it was made")]
    Memory,
}

fn say(private_data: &[u8]) -> String {
    if private_data.is_empty() { String::new() } else { format!(": {}", private_data.escape_ascii()) }
}
