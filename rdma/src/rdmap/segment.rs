//! One outgoing segment: its header, and the outcome of an attempt to send it.

use crate::wire::ddp::{TaggedHeader, UntaggedHeader};
use crate::wire::{MessageOffset, TaggedOffset};

/// Outcome of one attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// FPDUs handed to the transport, and their length in bytes.
    Sent { fpdus: usize, bytes: usize },
    /// The state of the queue pair changed without sending; try again.
    Again,
    /// The transport has no room.
    NoRoom,
    /// There is nothing to send.
    Idle,
}

/// DDP header in front of a segment's payload.
#[derive(Clone, Copy)]
pub(super) enum SegmentHeader {
    Tagged(TaggedHeader),
    Untagged(UntaggedHeader),
}

impl SegmentHeader {
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TaggedHeader::LEN,
            Self::Untagged(_) => UntaggedHeader::LEN,
        }
    }

    /// Returns the header with the L bit set to `last`.
    pub(super) const fn with_last(self, last: bool) -> Self {
        match self {
            Self::Tagged(header) => Self::Tagged(TaggedHeader { last, ..header }),
            Self::Untagged(header) => Self::Untagged(UntaggedHeader { last, ..header }),
        }
    }

    /// Returns the header of the segment after one with `len` bytes of payload.
    pub(super) fn after(self, len: usize) -> Self {
        match self {
            Self::Tagged(header) => {
                let offset = TaggedOffset(header.offset.0.wrapping_add(len as u64));
                Self::Tagged(TaggedHeader { offset, ..header })
            }
            Self::Untagged(header) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let offset = MessageOffset(header.offset.0.wrapping_add(len));
                Self::Untagged(UntaggedHeader { offset, ..header })
            }
        }
    }

    /// Writes the header, and returns the bytes after it.
    pub(super) fn emit<'a>(&self, ulpdu: &'a mut [u8]) -> &'a mut [u8] {
        match self {
            Self::Tagged(header) => match ulpdu.split_first_chunk_mut() {
                Some((bytes, rest)) => {
                    header.emit(bytes);
                    rest
                }
                None => &mut [],
            },
            Self::Untagged(header) => match ulpdu.split_first_chunk_mut() {
                Some((bytes, rest)) => {
                    header.emit(bytes);
                    rest
                }
                None => &mut [],
            },
        }
    }
}
