//! Order in which STags are issued.

use core::hash::Hasher;
use siphasher::sip::SipHasher13;

use crate::wire::Stag;

/// Grants that must pass before the index of a revoked STag may be granted again.
pub(super) const QUARANTINE: u64 = 65_536;

/// Bits of an STag's index; the low eight bits of an STag are its key.
const INDEX_BITS: u32 = 24;
const HALF_MASK: u32 = 0xfff;
const ROUNDS: u8 = 8;

/// Number of grants after which an index is reused.
pub(super) const CYCLE: u64 = 1 << INDEX_BITS;

/// Issues STags: walks through a keyed permutation of the 24-bit indices, and draws a random key for each.
///
/// A peer that has seen some STags cannot predict the next, and an index is reused only after all others.
///
/// RFC 5042 §6.1.1: "an implementation should allocate STags in such a fashion that it is difficult to predict
/// the next allocated STag number, and also ensure that STags are reused at as slow a rate as possible."
pub(super) struct StagIssuer {
    key: (u64, u64),
    pub(super) next: u64,
}

impl StagIssuer {
    pub(super) const fn new(key: (u64, u64)) -> Self {
        Self { key, next: 0 }
    }

    /// Returns the next STag, and its serial number in the order of issue.
    pub(super) fn issue(&mut self) -> (Stag, u64) {
        let serial = self.next;
        self.next = serial.wrapping_add(1);
        let index = self.permute((serial % CYCLE) as u32);
        let key = self.prf(u64::from(u8::MAX), serial) & 0xff;
        (Stag(index << 8 | key), serial)
    }

    /// Applies eight rounds of a balanced Feistel network over two halves of 12 bits, which is a permutation for any
    /// round function.
    fn permute(&self, value: u32) -> u32 {
        let mut left = value >> 12 & HALF_MASK;
        let mut right = value & HALF_MASK;
        for round in 0..ROUNDS {
            let mixed = left ^ self.prf(u64::from(round), u64::from(right)) & HALF_MASK;
            left = right;
            right = mixed;
        }
        left << 12 | right
    }

    fn prf(&self, domain: u64, value: u64) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write_u64(domain);
        hasher.write_u64(value);
        let hash = hasher.finish();
        (hash >> 32) as u32
    }
}

impl core::fmt::Debug for StagIssuer {
    /// Displays the position but not the key.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("StagIssuer").field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{CYCLE, StagIssuer};

    #[test]
    #[cfg_attr(miri, ignore = "16 million rounds")]
    fn the_indices_are_a_permutation() {
        let mut issuer = StagIssuer::new((1, 2));
        let mut seen = vec![0u64; (CYCLE / 64) as usize];
        for _ in 0..CYCLE {
            let index = (issuer.issue().0.0 >> 8) as usize;
            let bit = 1u64 << (index % 64);
            assert_eq!(seen[index / 64] & bit, 0, "index {index} came twice");
            seen[index / 64] |= bit;
        }
    }

    #[test]
    fn another_seed_is_another_order() {
        let first = |key| {
            let mut issuer = StagIssuer::new(key);
            (0..64).map(|_| issuer.issue().0.0).collect::<Vec<_>>()
        };
        assert_eq!(first((1, 2)), first((1, 2)));
        assert_ne!(first((1, 2)), first((1, 3)));
        // Neither the index nor the key is a counter.
        let stags = first((1, 2));
        let steps: std::collections::HashSet<_> =
            stags.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert_eq!(steps.len(), 63);
    }
}
