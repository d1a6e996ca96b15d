//! Fast path: an FPDU completely inside an in-order chunk is borrowed from it, not buffered. This covers nearly all
//! FPDUs of a sender that begins each one at the start of a TCP segment (RFC 5044 §5.1).

use super::crc::crc32c;
use super::fpdu::Fpdu;
use super::{CRC_LEN, Deframer, FpduError, LENGTH_LEN, MpaStats, fpdu_len};

impl<C: AsRef<[u8]>> Deframer<C> {
    /// Returns the next FPDU of the stream if it lies completely in `chunk`, at stream position `offset`, and if the
    /// deframer holds no bytes, no out-of-order runs, and the stream has no markers. After `None`, the caller must
    /// [push](Self::push) the rest of the chunk, unless the stream [ends](Self::end) with it.
    ///
    /// # Errors
    /// `Crc`: the CRC does not match. The error is final and counted.
    #[inline]
    pub fn next_whole<'a>(
        &mut self,
        offset: u64,
        chunk: &'a [u8],
        stats: &mut MpaStats,
    ) -> Option<Result<Fpdu<'a, C>, FpduError>> {
        let position = self.unheld_position()?;
        let taken = usize::try_from(position.checked_sub(offset)?).ok()?;
        let bytes = chunk.get(taken..)?;
        let ulpdu_len = u16::from_be_bytes(*bytes.first_chunk()?);
        let len = fpdu_len(ulpdu_len.into());
        let (covered, field) = bytes.get(..len)?.split_last_chunk::<CRC_LEN>()?;
        if self.has_crc() && crc32c(covered) != *field {
            return Some(Err(self.fail(FpduError::Crc, stats)));
        }
        let ulpdu = covered.get(LENGTH_LEN..)?.get(..ulpdu_len.into())?;
        self.advance(len);
        stats.count_fpdu_in(ulpdu.len());
        Some(Ok(Fpdu::whole(position, ulpdu)))
    }
}
