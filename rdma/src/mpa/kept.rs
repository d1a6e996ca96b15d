//! FPDUs that are not processed yet: the stream waits for a deferred copy. They are returned again, and what follows is
//! copied if its packet buffers are not kept.

use super::{Deframer, FpduError, MARKED_LEN_MAX, MpaStats};

impl<C: AsRef<[u8]>> Deframer<C> {
    /// Keeps the FPDU of `ulpdu_len` bytes that was returned last: it is returned again.
    #[cold]
    pub fn keep(&mut self, ulpdu_len: usize, stats: &mut MpaStats) {
        self.borrowed = 0;
        stats.uncount_fpdu_in(ulpdu_len);
    }

    /// Moves the stream back to the FPDU at `position`, of `ulpdu_len` bytes, which [`next_whole`](Self::next_whole)
    /// returned last: the caller [pushes](Self::push) the rest of the chunk.
    #[cold]
    pub fn keep_whole(&mut self, position: u64, ulpdu_len: usize, stats: &mut MpaStats) {
        self.position = position;
        stats.uncount_fpdu_in(ulpdu_len);
    }

    /// Takes as many of the bytes at stream position `offset` as the FPDU at the front may need, and copies them.
    /// Returns their number.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[cold]
    pub fn push_copy(&mut self, offset: u64, bytes: &[u8], stats: &mut MpaStats) -> Result<usize, FpduError> {
        if self.failed {
            return Ok(bytes.len());
        }
        self.release_borrowed();
        let expected = self.end();
        if offset != expected {
            return Err(self.fail(FpduError::Gap { expected, offset }, stats));
        }
        let len = bytes.len().min(MARKED_LEN_MAX.saturating_sub(self.held));
        match self.spill(bytes.get(..len).unwrap_or_default()) {
            Ok(()) => {
                self.held = self.held.saturating_add(len);
                stats.bytes_spilled = stats.bytes_spilled.wrapping_add(len as u64);
                stats.bytes_copied = stats.bytes_copied.wrapping_add(len as u64);
                Ok(len)
            }
            Err(error) => Err(self.fail(error, stats)),
        }
    }
}
