//! Entries of a receive queue or a shared receive queue: one buffer each.
//!
//! | word | content |
//! |---|---|
//! | 0 | `wr_id` |
//! | 1 | number of elements |
//! | from 2 | elements of two words: address; length (low half) and key (high half) |

use arrayvec::ArrayVec;
use rdma::verbs::{RecvWr, SGE_MAX, Sge};

use crate::EntryError;
use crate::send::{decode_sges, encode_sges};

/// Words in front of the elements.
const HEAD_WORDS: usize = 2;

/// Returns the words of an entry with up to `sges` elements; `None` if these exceed [`SGE_MAX`].
pub fn recv_words(sges: usize) -> Option<u32> {
    let words = HEAD_WORDS.checked_add(sges.checked_mul(2)?)?;
    u32::try_from(words).ok().filter(|_| sges <= SGE_MAX)
}

/// A receive buffer that was read from a ring and checked. Its keys and addresses are not: the device checks them when
/// a message arrives.
#[derive(Clone, Debug)]
pub struct RecvEntry {
    /// Number that the completion returns.
    pub wr_id: u64,
    sges: ArrayVec<Sge, SGE_MAX>,
}

impl RecvEntry {
    /// Returns the buffer for the device.
    pub fn request(&self) -> RecvWr<'_> {
        RecvWr { wr_id: self.wr_id, sg_list: &self.sges }
    }

    /// Decodes the words of an entry.
    ///
    /// # Errors
    /// The words are no receive buffer.
    pub fn decode(words: &[u64]) -> Result<Self, EntryError> {
        let ([wr_id, count], rest) = words.split_first_chunk::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
        let count = u8::try_from(*count).unwrap_or(u8::MAX);
        Ok(Self { wr_id: *wr_id, sges: decode_sges(rest, count)? })
    }
}

/// Encodes a receive buffer into the words of an entry. Words behind it keep their values.
///
/// # Errors
/// The entry has too few words for the list, or it is longer than any buffer's.
pub fn encode_recv(request: &RecvWr<'_>, words: &mut [u64]) -> Result<(), EntryError> {
    let (head, rest) = words.split_first_chunk_mut::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
    if request.sg_list.len() > SGE_MAX {
        return Err(EntryError::ListLength(u8::try_from(request.sg_list.len()).unwrap_or(u8::MAX)));
    }
    *head = [request.wr_id, request.sg_list.len() as u64];
    encode_sges(request.sg_list, rest)
}
