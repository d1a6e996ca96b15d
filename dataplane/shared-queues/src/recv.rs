//! Entries of a receive queue or a shared receive queue: one buffer each.
//!
//! | word | content |
//! |---|---|
//! | 0 | `wr_id` |
//! | 1 | number of elements |
//! | from 2 | elements of two words: address; length (low half) and key (high half) |

use rdma::verbs::{RecvWr, SGE_MAX};

use crate::EntryError;
use crate::send::{SgeList, decode_sges, encode_sges};

/// Words in front of the elements.
const HEAD_WORDS: usize = 2;

/// Returns the words of an entry with up to `sges` elements; `None` if these exceed [`SGE_MAX`].
pub fn recv_words(sges: usize) -> Option<u32> {
    let words = HEAD_WORDS.checked_add(sges.checked_mul(2)?)?;
    u32::try_from(words).ok().filter(|_| sges <= SGE_MAX)
}

/// Returns the words that an entry takes which begins with these: of a valid one, as many as it was encoded to.
#[inline]
pub fn recv_length(first: &[u64]) -> usize {
    let count = usize::try_from(first.get(1).copied().unwrap_or(0)).unwrap_or(usize::MAX);
    HEAD_WORDS.saturating_add(count.saturating_mul(2))
}

/// Decodes the words of an entry, which were copied from a ring, and puts its elements into `list`. The keys and
/// addresses are not checked: the device checks them when a message arrives.
///
/// # Errors
/// The words are no receive buffer.
#[inline]
pub fn decode_recv<'a>(words: &[u64], list: &'a mut SgeList) -> Result<RecvWr<'a>, EntryError> {
    let (&[wr_id, count], rest) = words.split_first_chunk::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
    decode_sges(rest, u8::try_from(count).unwrap_or(u8::MAX), list)?;
    Ok(RecvWr { wr_id, sg_list: list })
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
