//! Messages of a peer to a region: they place nothing there, and tell a local program that bytes were placed.

/// Most bytes of a Send that becomes a [`Notification`].
pub const NOTIFICATION_BYTES_MAX: usize = 64;

/// Message of a peer on a connection without a queue pair, to the region that was granted to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification<'a> {
    /// Content of the message.
    pub message: Message<'a>,
    /// True if the peer asks for an event.
    pub solicited: bool,
    /// Bytes that the peer's RDMA Writes have placed since the last notification of the connection, or since its
    /// begin. All of them precede the message in the stream.
    pub written: u64,
}

/// Content of a [`Notification`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Immediate Data (RFC 7306 §6), usually behind an RDMA Write.
    Immediate([u8; 8]),
    /// The bytes of a Send, at most [`NOTIFICATION_BYTES_MAX`].
    Send(&'a [u8]),
}
