//! CRC32c as MPA uses it: RFC 5044 §4.4, "computed using the CRC32c polynomial in the manner described in
//! the iSCSI Protocol"; iSCSI, and so MPA, stores the reflected value with its low byte first.

use super::CRC_LEN;
use crc_fast::{CrcAlgorithm, Digest};

/// Returns the CRC field over one run of bytes.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; CRC_LEN] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// CRC field over bytes that lie in several pieces, computed piece by piece.
#[derive(Clone, Debug)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Returns a CRC over no bytes.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next piece.
    #[inline]
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the CRC field over all pieces added so far.
    #[inline]
    #[must_use]
    pub fn finish(&self) -> [u8; CRC_LEN] {
        let [field @ .., _, _, _, _] = self.0.finalize().to_le_bytes();
        field
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}
