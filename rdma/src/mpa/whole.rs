//! FPDUs that lie whole in a chunk that comes in order, and before which nothing is held: nearly all of a sender that
//! begins an FPDU where a TCP segment begins (RFC 5044 §5.1). They are lent from the chunk, which nobody keeps for them.

use super::crc::crc32c;
use super::fpdu::Fpdu;
use super::{CRC_LEN, Deframer, FpduError, LENGTH_LEN, MpaStats, fpdu_len};

impl<C: AsRef<[u8]>> Deframer<C> {
    /// Lends the next FPDU of the stream if it lies whole in `chunk`, at stream position `offset`, and can be taken for
    /// itself: there are no markers, and no runs that were placed before. When there is none, what is left of the chunk is to
    /// be [pushed](Self::push) unless the stream [ends](Self::end) with it.
    ///
    /// # Errors
    /// Its CRC does not match. The error is final and counted.
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
        self.pass(len);
        stats.count_fpdu_in(ulpdu.len());
        Some(Ok(Fpdu::whole(position, ulpdu)))
    }
}
