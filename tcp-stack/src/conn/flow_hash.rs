//! The keyed hash of a flow.
//!
//! Flows are looked up for every segment that does not follow one of its own, and anybody can choose some: whoever does not
//! know the key must not be able to make them meet. Multilinear hashing (D. Lemire and O. Kaser, "Strongly universal string
//! hashing is fast", 2014) promises just that, for a multiplication per word: whichever two flows differ, their sums are
//! those of two random numbers over the keys. What the hash is must stay unknown: it is for the table of flows alone, and
//! nothing that is sent depends on it.

use siphasher::sip::SipHasher24;

use super::Ends;

/// Such a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowHash {
    first: u64,
    /// One for each word of a flow.
    keys: [u64; Ends::WORDS],
}

impl FlowHash {
    /// The function of a key, which is secret.
    pub(super) fn new(key: (u64, u64)) -> Self {
        let expand = SipHasher24::new_with_keys(key.0, key.1);
        let keys = core::array::from_fn(|word| expand.hash(&word.to_le_bytes()));
        Self { first: expand.hash(&[]), keys }
    }

    /// What it makes of a flow.
    #[inline]
    pub(super) fn of(&self, ends: &Ends) -> u32 {
        let words = ends.words().into_iter().zip(self.keys);
        let sum = words.fold(self.first, |sum, (word, key)| sum.wrapping_add(key.wrapping_mul(word.into())));
        // The upper half is what the proof is about.
        let [a, b, c, d, ..] = sum.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}
