//! Atomic operations: their headers on the wire, and their effect on a value (RFC 7306 §5).

use super::{ParseError, Stag, TaggedOffset, halves, offset, truncated};

/// A 64-bit atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// RFC 7306 §5.1.1: adds field by field. Each set bit of `mask` is the highest bit of a field, whose carry is
    /// lost. A mask of 0 makes one field of all 64 bits.
    FetchAdd {
        /// Value to add, field by field.
        add: u64,
        /// Highest bit of each field.
        mask: u64,
    },
    /// RFC 7306 §5.1.2: if the bits of `compare_mask` equal those of `compare`, the bits of `swap_mask` become those
    /// of `swap`. With a `compare_mask` of 0 this is an unconditional swap.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Bits of `compare` to compare.
        compare_mask: u64,
        /// Value to store.
        swap: u64,
        /// Bits of `swap` to store.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns the new value of memory that holds `original`; `None` if it is unchanged.
    #[inline]
    #[must_use]
    pub const fn apply(self, original: u64) -> Option<u64> {
        match self {
            Self::FetchAdd { add, mask } => {
                // Without the highest bit of each field no carry leaves the field; that bit is a sum of three bits
                // without carry.
                let low = (original & !mask).wrapping_add(add & !mask);
                Some(low ^ ((original ^ add) & mask))
            }
            Self::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                if (compare ^ original) & compare_mask == 0 {
                    Some((original & !swap_mask) | (swap & swap_mask))
                } else {
                    None
                }
            }
        }
    }
}

/// AOpCode of FetchAdd and of CmpSwap (RFC 7306 §5.2.1, Figure 5).
const FETCH_ADD: u8 = 0;
const COMPARE_SWAP: u8 = 2;

/// The Atomic Request header (RFC 7306 §5.2.1, Figure 4).
///
/// ```text
/// +-----------------------------------------------+
/// |       Reserved (28)             | AOpCode (4) |
/// |            Request Identifier (32)            |
/// |            Remote STag (32)                   |
/// |            Remote Tagged Offset (64)          |
/// |            Add or Swap Data (64)              |
/// |            Add or Swap Mask (64)              |
/// |            Compare Data (64)                  |
/// |            Compare Mask (64)                  |
/// +-----------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Identifier that the response returns.
    pub id: u32,
    /// STag of the responder's buffer.
    pub stag: Stag,
    /// Tagged offset of the value, at a multiple of eight bytes of its memory.
    pub to: TaggedOffset,
    /// Operation, or the AOpCode of an unknown one.
    pub op: Result<AtomicOp, u8>,
}

impl AtomicRequest {
    /// Length in bytes on the wire.
    pub const LEN: usize = 52;

    /// Parses the header at the start of `message`, and returns it with the bytes after it (of which there should be
    /// none).
    ///
    /// # Errors
    /// `Truncated`.
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let short = truncated(Self::LEN, message.len());
        let (header, rest) = message.split_first_chunk::<{ Self::LEN }>().ok_or(short)?;
        let (words, _) = header.as_chunks::<4>();
        let [op, id, stag, to @ .., a, b, c, d, e, f, g, h] = words else { return Err(short) };
        let [high, low] = to else { return Err(short) };
        let (data, mask) = (offset(*a, *b).0, offset(*c, *d).0);
        let (compare, compare_mask) = (offset(*e, *f).0, offset(*g, *h).0);
        // RFC 7306 §5.2.1: the other 28 bits are "ignored on receive".
        let op = match op[3] & 0x0f {
            FETCH_ADD => Ok(AtomicOp::FetchAdd { add: data, mask }),
            COMPARE_SWAP => Ok(AtomicOp::CompareSwap { compare, compare_mask, swap: data, swap_mask: mask }),
            other => Err(other),
        };
        let (id, stag) = (u32::from_be_bytes(*id), Stag(u32::from_be_bytes(*stag)));
        Ok((Self { id, stag, to: offset(*high, *low), op }, rest))
    }

    /// Writes the header to `out`.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        // RFC 7306 §5.2.1: for FetchAdd Compare Data "is set to zero", and Compare Mask "to ffffffffffffffffh".
        let (op, values) = match self.op {
            Ok(AtomicOp::FetchAdd { add, mask }) => (FETCH_ADD, [add, mask, 0, u64::MAX]),
            Ok(AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask }) => {
                (COMPARE_SWAP, [swap, swap_mask, compare, compare_mask])
            }
            Err(op) => (op & 0x0f, [0; 4]),
        };
        let (front, rest) = out.split_at_mut(12);
        let words = [u32::from(op), self.id, self.stag.0];
        for (slot, word) in front.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *slot = word.to_be_bytes();
        }
        let [a, b, c, d] = values;
        for (slot, value) in rest.as_chunks_mut::<8>().0.iter_mut().zip([self.to.0, a, b, c, d]) {
            *slot = value.to_be_bytes();
        }
    }
}

/// The Atomic Response header (RFC 7306 §5.2.2, Figure 6).
///
/// ```text
/// +-----------------------------------------------+
/// |        Original Request Identifier (32)       |
/// |        Original Remote Data Value (64)        |
/// +-----------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Identifier of the request.
    pub id: u32,
    /// Value of the memory before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Length in bytes on the wire.
    pub const LEN: usize = 12;

    /// Parses the header at the start of `message`, and returns it with the bytes after it (of which there should be
    /// none).
    ///
    /// # Errors
    /// `Truncated`.
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let short = truncated(Self::LEN, message.len());
        let (header, rest) = message.split_first_chunk::<{ Self::LEN }>().ok_or(short)?;
        let ([id, high, low], _) = header.as_chunks::<4>() else { return Err(short) };
        Ok((Self { id: u32::from_be_bytes(*id), original: offset(*high, *low).0 }, rest))
    }

    /// Writes the header to `out`.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [high, low] = halves(TaggedOffset(self.original));
        for (slot, word) in out.as_chunks_mut::<4>().0.iter_mut().zip([self.id.to_be_bytes(), high, low]) {
            *slot = word;
        }
    }
}

/// Length in bytes of the data of an Immediate Data message (RFC 7306 §6.2, Figure 7).
pub const IMMEDIATE_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// The pseudocode of RFC 7306 §5.1.1, bit by bit.
    fn bitwise(original: u64, add: u64, mask: u64) -> u64 {
        let (mut carry, mut value) = (0, 0);
        for bit in 0..64 {
            let sum = carry + ((original >> bit) & 1) + ((add >> bit) & 1);
            value |= (sum & 1) << bit;
            carry = (sum >> 1) & !(mask >> bit) & 1;
        }
        value
    }

    #[test]
    fn a_masked_addition_is_that_of_the_pseudocode() {
        let values =
            [0, 1, 0x7f, 0x80, 0xff, 0x8080_8080_8080_8080, u64::MAX, 0x0123_4567_89ab_cdef, 1 << 63];
        for original in values {
            for add in values {
                for mask in values {
                    let op = AtomicOp::FetchAdd { add, mask };
                    assert_eq!(op.apply(original), Some(bitwise(original, add, mask)), "{op:?} {original:x}");
                }
            }
        }
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        assert_eq!(op.apply(u64::MAX), Some(0), "all 64 bits are one field");
        let bytes = AtomicOp::FetchAdd { add: 0x0101_0101_0101_0101, mask: 0x8080_8080_8080_8080 };
        assert_eq!(bytes.apply(0xff00_ff00_ff00_ff7f), Some(0x0001_0001_0001_0080));
    }

    #[test]
    fn a_swap_changes_masked_bits_if_masked_bits_match() {
        let op = |compare_mask, swap_mask| AtomicOp::CompareSwap {
            compare: 0x1234,
            compare_mask,
            swap: 0xabcd,
            swap_mask,
        };
        assert_eq!(op(u64::MAX, u64::MAX).apply(0x1234), Some(0xabcd));
        assert_eq!(op(u64::MAX, u64::MAX).apply(0x1235), None);
        assert_eq!(op(0xff, 0xff00).apply(0x9934), Some(0xab34));
        assert_eq!(op(0, u64::MAX).apply(7), Some(0xabcd));
    }

    #[test]
    fn requests_and_responses_survive_the_wire() {
        let ops = [
            Ok(AtomicOp::FetchAdd { add: 0x0102_0304_0506_0708, mask: 0x1112_1314_1516_1718 }),
            Ok(AtomicOp::CompareSwap { compare: 1, compare_mask: 2, swap: 3, swap_mask: 4 }),
            Err(1),
            Err(15),
        ];
        for op in ops {
            let request =
                AtomicRequest { id: 0xa1b2_c3d4, stag: Stag(0x1122_3344), to: TaggedOffset(0x55), op };
            let mut bytes = [0; AtomicRequest::LEN];
            request.emit(&mut bytes);
            assert_eq!(AtomicRequest::parse(&bytes), Ok((request, &[][..])));
            bytes[..3].fill(0xff);
            bytes[3] |= 0xf0;
            assert_eq!(AtomicRequest::parse(&bytes), Ok((request, &[][..])), "reserved bits are ignored");
        }
        assert!(AtomicRequest::parse(&[0; AtomicRequest::LEN - 1]).is_err());
        let response = AtomicResponse { id: 7, original: 0x0102_0304_0506_0708 };
        let mut bytes = [0; AtomicResponse::LEN];
        response.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicResponse::parse(&bytes), Ok((response, &[][..])));
        assert!(AtomicResponse::parse(&bytes[1..]).is_err());
    }

    #[test]
    fn the_fields_of_a_request_stand_where_the_rfc_has_them() {
        let op = AtomicOp::CompareSwap {
            compare: u64::from_be_bytes([0xc0; 8]),
            compare_mask: u64::from_be_bytes([0xc1; 8]),
            swap: u64::from_be_bytes([0x50; 8]),
            swap_mask: u64::from_be_bytes([0x51; 8]),
        };
        let to = TaggedOffset(u64::from_be_bytes([0x70; 8]));
        let mut bytes = [0; AtomicRequest::LEN];
        AtomicRequest { id: 0x1d1d_1d1d, stag: Stag(0x5757_5757), to, op: Ok(op) }.emit(&mut bytes);
        let fields = [(3, 1, 0x02), (4, 4, 0x1d), (8, 4, 0x57), (12, 8, 0x70), (20, 8, 0x50), (28, 8, 0x51)];
        for (at, len, byte) in fields.into_iter().chain([(36, 8, 0xc0), (44, 8, 0xc1)]) {
            assert!(bytes[at..at + len].iter().all(|o| *o == byte), "at {at}: {bytes:02x?}");
        }
        assert_eq!(bytes[..3], [0; 3]);
    }
}
