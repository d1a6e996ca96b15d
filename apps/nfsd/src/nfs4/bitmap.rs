//! Sets of attribute numbers (RFC 8881 §3.3.7).

use iwarp_rpc::xdr::{Reader, Writer};

use crate::status::Status;

/// Words of a set in a message, at most. Attributes from 128 on do not exist.
const WORDS_MAX: u32 = 8;

/// Set of attribute numbers below 128.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bitmap(pub(super) u128);

impl Bitmap {
    pub(super) const fn of(numbers: &[u32]) -> Self {
        let (mut bits, mut rest) = (0, numbers);
        while let [first, others @ ..] = rest {
            bits |= 1 << *first;
            rest = others;
        }
        Self(bits)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Status> {
        let count = reader.u32()?;
        if count > WORDS_MAX {
            return Err(Status::BadXdr);
        }
        let mut bits = 0;
        for word in 0..count {
            let value = u128::from(reader.u32()?);
            bits |= value.checked_shl(word.saturating_mul(32)).unwrap_or(0);
        }
        Ok(Self(bits))
    }

    pub(super) fn put(self, out: &mut Writer) {
        let words = [0, 32, 64, 96].map(|shift| u32::try_from(self.0 >> shift & 0xffff_ffff).unwrap_or(0));
        let count = words.iter().rposition(|word| *word != 0).map_or(0, |last| last.saturating_add(1));
        out.u32(u32::try_from(count).unwrap_or(0));
        words.iter().take(count).for_each(|word| out.u32(*word));
    }

    pub(super) fn has(self, number: u32) -> bool {
        self.0 & (1 << (number & 127)) != 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the numbers in ascending order.
    pub(super) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..128).filter(move |number| self.has(*number))
    }
}
