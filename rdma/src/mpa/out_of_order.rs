//! Out-of-order FPDUs (RFC 5044 §6, Appendix A.4): located and verified in a chunk behind a gap, without the bytes
//! before it.
//!
//! A marker gives the start of the FPDU that contains it; the lengths lead from there to the FPDUs after it. In a
//! stream without markers, the first byte of the chunk is tried: a sender that aligns FPDUs with TCP segments (RFC
//! 5044 §5.1) begins one there. That is a guess, which only the CRC confirms, and payload may look like an FPDU.
//! Therefore nothing is tried at a position that lies inside an FPDU of known length, and when the gap has closed, the
//! chain of lengths must meet the FPDUs found.

use super::crc::crc32c;
use super::fpdu::{Fpdu, Pieces};
use super::marker::{Layout, MARKER_INTERVAL, MARKER_LEN, pointer};
use super::{CRC_LEN, LENGTH_LEN, MpaStats};

/// Method of locating FPDUs behind a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfOrderPolicy {
    /// FPDUs behind a gap are not located: they are placed when the gap has closed.
    Off,
    /// By markers only. Only the peer's MPA layer writes markers.
    Markers,
    /// By markers and, if CRCs are in use, also by the start of a chunk that contains no marker. If a peer relays
    /// payload of third parties and does not align its FPDUs, a third party could make it send payload that looks like
    /// an FPDU. That FPDU would be placed where the peer itself may write, and then the stream would end with an
    /// error.
    #[default]
    Aligned,
}

/// Reason why some or all bytes behind a gap were not placed. They wait until the gap closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfOrderRefusal {
    /// The start of an FPDU is not known.
    Unlocated,
    /// The next FPDU is not completely in the chunk.
    Incomplete,
    /// The CRC does not match: the bytes are probably not an FPDU.
    Crc,
    /// A marker does not point to the FPDU.
    Marker,
    /// The FPDU is not part of an RDMA Write.
    Kind,
    /// The FPDU ends a message, and the last segment is placed in order.
    Last,
    /// The STag does not allow the FPDU to be placed.
    Access,
    /// The bytes were placed before, or the maximum number of runs is remembered.
    Runs,
}

/// Properties of the stream that a chunk belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamShape {
    /// Stream position of the first FPDU.
    pub(super) start: u64,
    pub(super) crc: bool,
    pub(super) markers: bool,
}

impl StreamShape {
    /// Returns the positions of markers in the FPDU at a stream position.
    #[inline]
    pub(super) const fn layout(&self, position: u64) -> Layout {
        if self.markers { Layout::marked(position.wrapping_sub(self.start)) } else { Layout::PLAIN }
    }

    /// Returns the offset of the first FPDU that can be located in a chunk at stream position `offset`.
    fn locate(&self, offset: u64, bytes: &[u8], how: OutOfOrderPolicy) -> Option<usize> {
        let distance = offset.checked_sub(self.start)?;
        if self.markers {
            let first = Layout::marked(distance).markers(MARKER_INTERVAL).next().map_or(0, |(at, _)| at);
            let begins = (first..bytes.len())
                .step_by(MARKER_INTERVAL)
                .find_map(|at| begin(bytes.get(at..)?.first_chunk()?, at, distance));
            if begins.is_some() || bytes.len() >= MARKER_INTERVAL {
                return begins;
            }
        }
        // RFC 5044 §6: without a marker only an ordered stream shows the start of an FPDU "unambiguously". The
        // deframer therefore checks the guess when the gap has closed.
        let guess = how == OutOfOrderPolicy::Aligned && self.crc && distance.is_multiple_of(4);
        guess.then_some(0)
    }
}

/// Returns the start of the FPDU that contains the marker at `at`; `None` if that is before the chunk. The chunk lies
/// `distance` bytes after the start of the first FPDU.
fn begin(bytes: &[u8; MARKER_LEN], at: usize, distance: u64) -> Option<usize> {
    match usize::from(pointer(*bytes)) {
        0 => Some(at),
        back => {
            let length_at = at.checked_sub(back)?;
            // A marker directly in front of ULPDU_Length belongs to the FPDU.
            const INTERVAL: u64 = MARKER_INTERVAL as u64;
            let behind_marker = distance.wrapping_add(length_at as u64) % INTERVAL == MARKER_LEN as u64;
            if behind_marker { length_at.checked_sub(MARKER_LEN) } else { Some(length_at) }
        }
    }
}

/// Iterator over the FPDUs of a chunk, from the first one located, as long as they are complete and valid.
#[derive(Debug)]
pub struct OutOfOrderFpdus<'a> {
    shape: StreamShape,
    /// Bytes of the chunk from the next FPDU on.
    bytes: &'a [u8],
    position: u64,
    /// Stream position of the first byte that was placed before.
    until: u64,
}

impl<'a> OutOfOrderFpdus<'a> {
    pub(super) fn new(
        shape: StreamShape,
        offset: u64,
        bytes: &'a [u8],
        how: OutOfOrderPolicy,
    ) -> Result<Self, OutOfOrderRefusal> {
        let begin = shape.locate(offset, bytes, how).ok_or(OutOfOrderRefusal::Unlocated)?;
        let bytes = bytes.get(begin..).ok_or(OutOfOrderRefusal::Unlocated)?;
        Ok(Self { shape, bytes, position: offset.saturating_add(begin as u64), until: u64::MAX })
    }

    /// Excludes bytes from stream position `until` on.
    pub(super) fn end_before(&mut self, until: u64) {
        self.until = until;
    }

    /// Returns the stream position of the next FPDU.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next FPDU; `None` after the last byte of the chunk.
    ///
    /// # Errors
    /// `Incomplete`, `Crc`, `Marker`, or `Runs` if the bytes were placed before.
    pub fn next_fpdu<C: AsRef<[u8]>>(
        &mut self,
        stats: &mut MpaStats,
    ) -> Option<Result<Fpdu<'a, C>, OutOfOrderRefusal>> {
        if self.bytes.is_empty() {
            return None;
        }
        Some(self.whole(stats))
    }

    fn whole<C: AsRef<[u8]>>(&mut self, stats: &mut MpaStats) -> Result<Fpdu<'a, C>, OutOfOrderRefusal> {
        let layout = self.shape.layout(self.position);
        let length = self.bytes.get(layout.length_at()..).and_then(<[u8]>::first_chunk::<LENGTH_LEN>);
        let ulpdu_len = usize::from(u16::from_be_bytes(*length.ok_or(OutOfOrderRefusal::Incomplete)?));
        let len = layout.fpdu_len(ulpdu_len);
        let (fpdu, rest) = self.bytes.split_at_checked(len).ok_or(OutOfOrderRefusal::Incomplete)?;
        let end = self.position.saturating_add(len as u64);
        if end > self.until {
            return Err(OutOfOrderRefusal::Runs);
        }
        let (covered, field) = fpdu.split_last_chunk::<CRC_LEN>().ok_or(OutOfOrderRefusal::Incomplete)?;
        if self.shape.crc && crc32c(covered) != *field {
            return Err(OutOfOrderRefusal::Crc);
        }
        for (at, due) in layout.markers(len) {
            let marker = fpdu.get(at..).and_then(<[u8]>::first_chunk);
            if marker.map(|marker| pointer(*marker)) != due {
                return Err(OutOfOrderRefusal::Marker);
            }
            stats.markers_in = stats.markers_in.wrapping_add(1);
        }
        let found = Fpdu::new(self.position, ulpdu_len, layout, fpdu, Pieces::of(fpdu));
        (self.bytes, self.position) = (rest, end);
        Ok(found)
    }
}
