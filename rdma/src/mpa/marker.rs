//! Markers (RFC 5044 §4.2, §4.3): their positions and contents in an FPDU.
//!
//! ```text
//!   stream of FPDUs   |M0 FPDU…… |FPDU…M|……… |FPDU M………………M……|
//!                      ↑               ↑            ↑        ↑
//!                      0              512         1024     1536
//! ```
//! At every 512th byte, counted from the first FPDU, four bytes point back to the ULPDU_Length of the FPDU that
//! contains them. The lengths of FPDUs and markers are multiples of four, so a marker never splits a ULPDU_Length or a
//! CRC.

use super::fpdu_len;

/// Bytes from the start of a marker to the start of the next. RFC 5044 §4.3: "at a 512-octet periodic interval".
pub const MARKER_INTERVAL: usize = 512;
/// Length of a marker in bytes.
pub const MARKER_LEN: usize = 4;
/// Bytes between two markers.
pub(super) const BETWEEN: usize = MARKER_INTERVAL - MARKER_LEN;

/// Positions of the markers in one FPDU. They depend only on the FPDU's offset within the marker interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the FPDU in front of its first marker; `usize::MAX` without markers.
    first: usize,
}

impl Layout {
    /// Layout of every FPDU in a stream without markers.
    pub const PLAIN: Self = Self { first: usize::MAX };

    /// Returns the layout of an FPDU that begins `distance` bytes after the start of the first FPDU.
    #[inline]
    #[must_use]
    pub const fn marked(distance: u64) -> Self {
        let [low, high, ..] = distance.to_le_bytes();
        let phase = u16::from_le_bytes([low, high]) as usize % MARKER_INTERVAL;
        Self { first: MARKER_INTERVAL.saturating_sub(phase) % MARKER_INTERVAL }
    }

    /// Returns the length in bytes of the FPDU of a ULPDU of `ulpdu_len` bytes, markers included.
    ///
    /// A marker that would follow the CRC belongs to the next FPDU. RFC 5044 §4.3: "the Marker is considered to be
    /// contained in the following FPDU".
    #[inline]
    #[must_use]
    pub const fn fpdu_len(self, ulpdu_len: usize) -> usize {
        let unmarked = fpdu_len(ulpdu_len);
        let markers = match unmarked.checked_sub(self.first) {
            None | Some(0) => 0,
            Some(behind) => (behind.saturating_sub(1) / BETWEEN).saturating_add(1),
        };
        unmarked.saturating_add(markers.saturating_mul(MARKER_LEN))
    }

    /// Returns the offset of ULPDU_Length in the FPDU: 4 if the FPDU begins with a marker, otherwise 0.
    #[inline]
    #[must_use]
    pub const fn length_at(self) -> usize {
        if self.first == 0 { MARKER_LEN } else { 0 }
    }

    /// Returns the bytes from offset `at` to the next marker. No marker may precede `at`, except one that opens the
    /// FPDU.
    #[inline]
    pub(super) const fn until_marker(self, at: usize) -> usize {
        if self.first == 0 { MARKER_INTERVAL.saturating_sub(at) } else { self.first.saturating_sub(at) }
    }

    /// Returns the offset and FPDUPTR of each marker in an FPDU of `len` bytes. RFC 5044 §4.3: "the number of octets
    /// in the TCP stream from the beginning of the ULPDU Length field to the first octet of the Marker", and zero for
    /// a marker that opens the FPDU. `None` stands for an FPDUPTR over 16 bits, which no legal FPDU contains.
    pub fn markers(self, len: usize) -> impl DoubleEndedIterator<Item = (usize, Option<u16>)> {
        let length_at = self.length_at();
        (self.first..len)
            .step_by(MARKER_INTERVAL)
            .map(move |at| (at, u16::try_from(at.saturating_sub(length_at)).ok()))
    }
}

/// Returns the FPDUPTR of a marker. RFC 5044 §4.2: of its least significant two bits "the receivers MUST always treat
/// these as zero".
#[inline]
#[must_use]
pub const fn pointer([_, _, high, low]: [u8; MARKER_LEN]) -> u16 {
    u16::from_be_bytes([high, low]) & !3
}

/// Returns the bytes of a marker with this FPDUPTR. RFC 5044 §4.2: "The Reserved field MUST be set to zero on
/// transmit".
#[inline]
#[must_use]
pub const fn marker(pointer: u16) -> [u8; MARKER_LEN] {
    let [high, low] = pointer.to_be_bytes();
    [0, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the length of an FPDU and the offsets of its markers by laying it out byte by byte.
    fn laid_out(distance: u64, ulpdu_len: usize) -> (usize, Vec<usize>) {
        let (mut at, mut left, mut markers) = (0, fpdu_len(ulpdu_len), Vec::new());
        while left > 0 {
            if (distance + at as u64).is_multiple_of(512) {
                markers.push(at);
                at += MARKER_LEN;
            } else {
                (at, left) = (at + 4, left - 4);
            }
        }
        (at, markers)
    }

    #[test]
    fn every_place_in_the_interval_and_every_length() {
        for distance in (0..512).step_by(4) {
            // Miri checks only some lengths, at every offset.
            let stride = if cfg!(miri) { 499 } else { 1 };
            for ulpdu_len in (0..2100).step_by(stride).chain([8934, 64768]) {
                let layout = Layout::marked(distance + 512 * 77);
                let (len, markers) = laid_out(distance, ulpdu_len);
                assert_eq!(layout.fpdu_len(ulpdu_len), len, "{distance} {ulpdu_len}");
                assert!(layout.markers(len).map(|(at, _)| at).eq(markers), "{distance} {ulpdu_len}");
            }
        }
        assert_eq!(Layout::PLAIN.markers(70_000).count(), 0);
        assert_eq!(Layout::PLAIN.fpdu_len(42), 48);
    }

    #[test]
    fn all_markers_of_an_fpdu_point_to_its_length() {
        let layout = Layout::marked(0);
        assert_eq!(layout.length_at(), 4);
        let markers: Vec<_> = layout.markers(1100).collect();
        assert_eq!(markers, [(0, Some(0)), (512, Some(508)), (1024, Some(1020))]);
        // RFC 5044 Figure 6: the second FPDU begins at 0x1ec, and its marker points back by 0x14.
        let layout = Layout::marked(0x1ec);
        assert_eq!(layout.markers(layout.fpdu_len(42)).collect::<Vec<_>>(), [(0x14, Some(0x14))]);
        // The last marker's FPDUPTR does not fit in 16 bits.
        assert_eq!(Layout::marked(4).markers(66_100).last(), Some((66_044, None)));
    }

    #[test]
    fn the_low_bits_of_a_pointer_are_ignored() {
        assert_eq!(pointer([0xAA, 0xBB, 0x01, 0x17]), 0x0114);
        assert_eq!(marker(0x0114), [0, 0, 1, 0x14]);
    }
}
