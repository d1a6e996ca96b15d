//! FPDUs in a chunk behind a gap (RFC 5044 §6, Appendix A.4): found without what comes before them, and verified.
//!
//! A marker says where the FPDU that it is in begins; the lengths lead from there to those behind it. In a stream
//! without markers, the chunk's first byte is tried: a sender that aligns its FPDUs with TCP segments (RFC 5044 §5.1)
//! begins one there. That is a guess, which only the CRC confirms, and what is taken for an FPDU might be payload that
//! looks like one; so nothing is tried where the lengths that are known already lead past it, and the chain of lengths is
//! compared with what was found when the gap has closed.

use super::crc::crc32c;
use super::fpdu::{Fpdu, Pieces};
use super::marker::{Layout, MARKER_INTERVAL, MARKER_LEN, pointer};
use super::{CRC_LEN, LENGTH_LEN, MpaStats};

/// How FPDUs behind a gap are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfOrderPolicy {
    /// Not at all: they wait until the gap has closed.
    Off,
    /// By markers only, which nobody but the peer's MPA writes.
    Markers,
    /// By markers; and where CRCs are in use also at the start of a chunk that has no marker. A peer that passes on
    /// payload of strangers, and does not align its FPDUs, could be made to send what looks like an FPDU of its own: it
    /// would be placed where the peer itself may write, before the stream ends with an error.
    #[default]
    Aligned,
}

/// Why bytes behind a gap were not placed, or not all of them. They wait for the gap to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfOrderRefusal {
    /// Nothing tells where an FPDU begins.
    Unlocated,
    /// The next FPDU does not lie whole in the chunk.
    Incomplete,
    /// Its CRC does not match: most likely there is none.
    Crc,
    /// Its markers do not point to it.
    Marker,
    /// It is not part of an RDMA Write.
    Kind,
    /// It ends a message, which is placed in order.
    Last,
    /// It may not be placed where it says.
    Access,
    /// It was placed before, or as many runs are placed as can be remembered.
    Runs,
}

/// What is known of the stream that a chunk belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamShape {
    /// Where its first FPDU begins.
    pub(super) start: u64,
    pub(super) crc: bool,
    pub(super) markers: bool,
}

impl StreamShape {
    /// How the FPDU at a stream position is cut by markers.
    #[inline]
    pub(super) const fn layout(&self, position: u64) -> Layout {
        if self.markers { Layout::marked(position.wrapping_sub(self.start)) } else { Layout::PLAIN }
    }

    /// Where in a chunk at stream position `offset` the first FPDU begins that can be located.
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
        // RFC 5044 §6: without a marker only an ordered stream shows the start of an FPDU "unambiguously"; hence the
        // second look when the gap has closed.
        let guess = how == OutOfOrderPolicy::Aligned && self.crc && distance.is_multiple_of(4);
        guess.then_some(0)
    }
}

/// Where the FPDU begins that the marker at `at` is in; `None` if that is in front of the chunk, which lies `distance`
/// behind the first FPDU.
fn begin(bytes: &[u8; MARKER_LEN], at: usize, distance: u64) -> Option<usize> {
    match usize::from(pointer(*bytes)) {
        0 => Some(at),
        back => {
            let length_at = at.checked_sub(back)?;
            // Right behind a marker, that marker belongs to the FPDU.
            const INTERVAL: u64 = MARKER_INTERVAL as u64;
            let behind_marker = distance.wrapping_add(length_at as u64) % INTERVAL == MARKER_LEN as u64;
            if behind_marker { length_at.checked_sub(MARKER_LEN) } else { Some(length_at) }
        }
    }
}

/// The FPDUs of a chunk, from the first that was located on, as long as they are whole and right.
#[derive(Debug)]
pub struct OutOfOrderFpdus<'a> {
    shape: StreamShape,
    /// Bytes from the next FPDU on.
    bytes: &'a [u8],
    position: u64,
    /// The stream position from which on bytes were placed before.
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

    /// Nothing from this stream position on is wanted.
    pub(super) fn end_before(&mut self, until: u64) {
        self.until = until;
    }

    /// The stream position of the next FPDU: behind those that came.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The next FPDU; `None` behind the last byte of the chunk.
    ///
    /// # Errors
    /// Where the rest of the chunk is not one, or was placed before.
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
