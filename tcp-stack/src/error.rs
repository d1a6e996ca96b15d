//! Errors of the application's calls, and the reasons for which a connection ends.

use core::fmt;

/// The reason why a port cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// Port 0 cannot be listened on.
    PortZero,
    /// There is a listener on this port already, or the port belongs to another program of this host.
    InUse,
    /// The table of listeners is full.
    TooMany,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PortZero => "port 0 cannot be listened on",
            Self::InUse => "the port has a listener already, or belongs to another program",
            Self::TooMany => "the table of listeners is full",
        })
    }
}

impl core::error::Error for ListenError {}

/// The reason why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// Port 0, or an address that is not that of one other host.
    BadAddress,
    /// We have no address of that family, or no route.
    NoRoute,
    /// The table of connections is full.
    TooMany,
    /// No source port is free that leads back to this worker, or the given one is in use.
    NoPort,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadAddress => "not the address of one station and port",
            Self::NoRoute => "no address of ours leads there",
            Self::TooMany => "the table of connections is full",
            Self::NoPort => "no source port is free",
        })
    }
}

impl core::error::Error for ConnectError {}

/// The reason why a payload was not queued. Contains the buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<B> {
    /// The queue is full; [`Event::Writable`](crate::Event::Writable) follows when it has room.
    Full(B),
    /// The connection is not established yet, is closing, or is gone.
    NotConnected(B),
    /// The payload is longer than [`Stack::payload_max`](crate::Stack::payload_max).
    TooLong(B),
}

impl<B> SendError<B> {
    /// Returns the payload's buffer.
    pub fn into_inner(self) -> B {
        match self {
            Self::Full(buf) | Self::NotConnected(buf) | Self::TooLong(buf) => buf,
        }
    }
}

impl<B> fmt::Debug for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full",
            Self::NotConnected(_) => "NotConnected",
            Self::TooLong(_) => "TooLong",
        })
    }
}

impl<B> fmt::Display for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the send queue is full",
            Self::NotConnected(_) => "the connection cannot send",
            Self::TooLong(_) => "the payload is longer than a segment",
        })
    }
}

/// The reason for which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both sides closed, and the peer has acknowledged everything.
    Normal,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped answering.
    TimedOut,
    /// The peer refused the connection.
    Refused,
    /// The network reported that the peer is unreachable.
    Unreachable,
    /// The application aborted the connection.
    Aborted,
    /// The stack [evicted](crate::EvictionPolicy) the connection for a new one.
    Evicted,
}

impl CloseReason {
    /// Returns the name shown to operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Reset => "reset",
            Self::TimedOut => "timed-out",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Aborted => "aborted",
            Self::Evicted => "evicted",
        }
    }
}
