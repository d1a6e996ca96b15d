//! Queues in memory that a program shares with the daemon. A program posts work requests and polls completions there
//! without system calls; the daemon's worker reads the requests and writes the completions.
//!
//! ```text
//!   program                          shared memory                              worker
//!   SendWr ─────▶ Producer ──▶ ring of a send or receive queue ──▶ Consumer ──▶ SendWr, checked
//!                 Doorbells: one bit per queue, one summary word ─▶ queues to visit
//!   WorkCompletion ◀── Consumer ◀── ring of a completion queue ◀── Producer
//!                 Arm: the program asks for an event ────────────▶ an event is due
//! ```
//! The memory is a slice of 64-bit words in the processor's byte order, and all accesses are atomic: what the other
//! side does to it is never undefined behavior. Neither side trusts the other. An entry is copied once, and the copy is
//! checked. Each side keeps its own index, and takes from the other's only how many entries there may be.
//!
//! The crate has no unsafe code and does no I/O. Who maps the memory passes it as `AsRef<[AtomicU64]>`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod arm;
mod completion;
mod doorbell;
mod recv;
mod ring;
mod send;
mod sync;

pub use arm::{Arm, Armed};
pub use completion::{COMPLETION_WORDS, decode_completion, encode_completion};
pub use doorbell::{DOORBELL_QUEUES_MAX, Doorbells, TAKEN_MAX};
pub use recv::{decode_recv, encode_recv, recv_length, recv_words};
pub use ring::{Consumer, Producer, RingError, RingShape};
pub use send::{INLINE_MAX, SgeList, decode_send, encode_send, send_length, send_words};
pub use sync::AtomicU64;

/// Version of the layout, and of the descriptors that come with it. Both sides compare it before they use the memory.
pub const VERSION: u32 = 4;

/// Words of a cache line. What one side writes often lies in a line that the other side does not write.
pub const LINE_WORDS: usize = 8;

/// Reason why an entry is not a valid request or completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry has fewer words than its fields need, or the ring's entries have fewer than the request needs.
    #[error("the entry is too short")]
    TooShort,
    /// The operation code is unknown.
    #[error("unknown operation {0}")]
    Opcode(u8),
    /// A flag is unknown.
    #[error("unknown flags {0:#x}")]
    Flags(u8),
    /// The list has more elements than a request may have.
    #[error("a list of {0} elements")]
    ListLength(u8),
    /// The inline data is longer than a request may carry.
    #[error("{0} bytes of inline data")]
    InlineLength(u16),
    /// The rights of a memory window are unknown.
    #[error("unknown rights {0:#x}")]
    Access(u8),
    /// The status or the opcode of a completion is unknown.
    #[error("unknown completion: status {0}, opcode {1}")]
    Completion(u8, u8),
}

/// Returns a word with `low` in its low half.
const fn halves(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// Returns the low and the high half of a word.
const fn split(word: u64) -> (u32, u32) {
    ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
}
