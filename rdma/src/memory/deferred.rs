//! Deferred copies: memory that another thread copies, because an access may block the one that calls [`Memory`].
//!
//! ```text
//!  reach ──▶ Direct    place, fetch and atomic do their work during the call
//!       ├──▶ Deferred  place queues a copy of the bytes; read_ahead and begin_atomic queue an access
//!       ├──▶ Busy      the queue is full until a ticket is done
//!       └──▶ Gone      the stream ends
//! ```
//! The copies of one queue are made in the order in which they were queued.
//!
//! [`Memory`]: super::Memory

/// How bytes can be accessed at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At once, during the call.
    Direct,
    /// By a queued copy. The queue has room for the longest segment.
    Deferred,
    /// By a queued copy, once the queue has room: when the copy of this ticket is done.
    Busy(Ticket),
    /// Not at all: the region does not exist or does not have the bytes, or its copies take too long.
    Gone,
}

/// Position of a copy in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Number of the queue.
    pub queue: u64,
    /// Number of copies up to and including this one.
    pub number: u64,
}

/// State of a queued copy and of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// Not all of them are done.
    Pending,
    /// All of them are done.
    Done,
    /// A copy of this stream has failed, or the queue has not moved for too long: the stream ends.
    Failed,
}

/// Bytes of a message that are read before they are sent.
#[derive(Debug)]
pub struct Ahead {
    /// Last copy of the bytes.
    pub ticket: Ticket,
    /// Place that the implementation reads them to.
    pub slot: usize,
    /// Number of bytes, from the first of the tokens on.
    pub len: usize,
}

/// Bytes that [`Memory::read_ahead`](super::Memory::read_ahead) reads at most. The payload of any segment fits.
pub const AHEAD_BYTES: usize = 64 << 10;
