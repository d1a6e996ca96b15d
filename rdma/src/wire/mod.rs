//! Wire formats of MPA, DDP and RDMAP: one type per header, with `parse` and `emit`.
//!
//! A parser only states the contents of the bytes; the layer above decides whether they are allowed. Reserved bits are
//! sent as zero and ignored on receipt. Numbers have types of their own, so that a queue number cannot be mistaken for
//! a message sequence number.

pub mod atomic;
pub mod datagram;
pub mod ddp;
pub mod mpa;
pub mod rdmap;
pub mod terminate;

use core::fmt;

/// Length in bytes of a Terminate's control word, the fixed part of its RDMAP header (RFC 5040 §4.8).
const TERMINATE_CONTROL_LEN: usize = 4;

/// Reason why bytes are not the expected header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// There are fewer bytes than the header has.
    Truncated {
        /// Length of the header in bytes.
        need: usize,
        /// Number of bytes available.
        have: usize,
    },
    /// The T bit selects the other buffer model (RFC 5041 §4.1).
    TagFlag,
    /// The first sixteen bytes are neither MPA key (RFC 5044 §7.1.1).
    Key,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { need, have } => write!(f, "{have} bytes where the header takes {need}"),
            Self::TagFlag => f.write_str("the T bit says the other DDP buffer model"),
            Self::Key => f.write_str("neither an MPA request nor an MPA reply"),
        }
    }
}

impl core::error::Error for ParseError {}

#[cold]
fn truncated(need: usize, have: usize) -> ParseError {
    ParseError::Truncated { need, have }
}

/// A steering tag: names a tagged buffer at the data sink (RFC 5041 §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// An offset in bytes within a tagged buffer (RFC 5041 §4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaggedOffset(pub u64);

impl TaggedOffset {
    /// Returns the offset plus `bytes`; `None` if the sum exceeds 64 bits.
    #[inline]
    #[must_use]
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

/// The number of an untagged buffer queue at the data sink (RFC 5041 §4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNumber(pub u32);

impl QueueNumber {
    /// Send messages, all variants (RFC 5040 §4.1, Figure 4).
    pub const SEND: Self = Self(0);
    /// RDMA Read Requests, and Atomic Requests (RFC 7306 §4.1).
    pub const READ_REQUEST: Self = Self(1);
    /// Terminate messages (RFC 5040 §4.1, Figure 4).
    pub const TERMINATE: Self = Self(2);
    /// Atomic Responses (RFC 7306 §4.1).
    pub const ATOMIC_RESPONSE: Self = Self(3);
    /// Progress messages, between ends that have agreed on them.
    pub const PROGRESS: Self = Self(4);
    /// Datagrams, on links between devices that have agreed on them.
    pub const DATAGRAM: Self = Self(5);
}

/// A message sequence number, modulo 2^32, within one untagged queue (RFC 5041 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// RFC 5041 §4.3: "The initial value for MSN MUST be one."
    pub const FIRST: Self = Self(1);

    /// Returns the next number. RFC 5041 §4.3: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF."
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl Default for Msn {
    fn default() -> Self {
        Self::FIRST
    }
}

/// An offset in bytes from the start of an untagged message (RFC 5041 §4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageOffset(pub u32);

/// Joins the two words of a 64-bit field.
#[inline]
fn offset(high: [u8; 4], low: [u8; 4]) -> TaggedOffset {
    let ([h0, h1, h2, h3], [l0, l1, l2, l3]) = (high, low);
    TaggedOffset(u64::from_be_bytes([h0, h1, h2, h3, l0, l1, l2, l3]))
}

/// Splits a 64-bit field into its two words, in network byte order.
#[inline]
fn halves(offset: TaggedOffset) -> [[u8; 4]; 2] {
    let [h0, h1, h2, h3, l0, l1, l2, l3] = offset.0.to_be_bytes();
    [[h0, h1, h2, h3], [l0, l1, l2, l3]]
}
