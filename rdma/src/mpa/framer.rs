//! FPDUs on their way out (RFC 5044 §4.1, §4.5): built in place, in the buffer that TCP will send.
//!
//! ```text
//! +--------------+---------------------------+-----------+-------+
//! | ULPDU_Length |           ULPDU           | PAD (0-3) |  CRC  |
//! +--------------+---------------------------+-----------+-------+
//!        2               ULPDU_Length                        4
//! ```
//!
//! Where the peer wants markers, the FPDU is built as if there were none and then spread, last part first, so that room
//! for them opens: its bytes move within the buffer that they are in, and the CRC is taken over the result.

use super::crc::crc32c;
use super::marker::{Layout, MARKER_INTERVAL, MARKER_LEN, marker};
use super::{CRC_LEN, LENGTH_LEN};
use core::fmt;

/// The smallest MULPDU. RFC 5044 §4.5: "the MPA on TCP sender MUST NOT shrink the MULPDU below 128 octets".
pub const MULPDU_MIN: usize = 128;

/// The longest ULPDU. RFC 5044 §3: "The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA."
pub const MULPDU_MAX: usize = 64768;

const OVERHEAD: usize = LENGTH_LEN + CRC_LEN;

/// Bytes of the FPDU around a ULPDU of so many bytes, without markers. RFC 5044 §4.1: "The length of the
/// pad is set so as to make the size of the FPDU an integral multiple of four."
#[inline]
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    ulpdu_len.saturating_add(OVERHEAD).saturating_add(3) & !3
}

/// The longest ULPDU whose FPDU fits a TCP segment of `emss` bytes, without markers.
/// RFC 5044 §4.5: "MULPDU = EMSS - (6 + EMSS mod 4)".
///
/// The result lies in [`MULPDU_MIN`]..=[`MULPDU_MAX`] whatever `emss` is: below an EMSS of 136 an FPDU may
/// take more than one segment.
#[inline]
#[must_use]
pub const fn mulpdu(emss: usize) -> usize {
    let fitting = (emss & !3).saturating_sub(OVERHEAD);
    if fitting < MULPDU_MIN {
        MULPDU_MIN
    } else if fitting > MULPDU_MAX {
        MULPDU_MAX
    } else {
        fitting
    }
}

/// The same with markers. RFC 5044 §4.5: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)".
#[inline]
#[must_use]
pub const fn mulpdu_marked(emss: usize) -> usize {
    let markers = emss.div_ceil(MARKER_INTERVAL).saturating_mul(MARKER_LEN);
    mulpdu((emss & !3).saturating_sub(markers))
}

/// Why an FPDU was not built. Neither comes from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The ULPDU is longer than [`MULPDU_MAX`].
    TooLong {
        /// Bytes of the ULPDU.
        ulpdu: usize,
    },
    /// The buffer is not exactly as long as the FPDU.
    Buffer {
        /// Bytes of the FPDU.
        need: usize,
        /// Bytes of the buffer.
        have: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { ulpdu } => write!(f, "a ULPDU of {ulpdu} bytes; the limit is {MULPDU_MAX}"),
            Self::Buffer { need, have } => write!(f, "a buffer of {have} bytes for an FPDU of {need}"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Builds the FPDUs of one direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Framer {
    crc: bool,
    markers: bool,
    /// Bytes of the FPDUs before.
    sent: u64,
}

impl Framer {
    /// A framer that writes CRCs, or zeros in their place, and no markers.
    #[must_use]
    pub const fn new(crc: bool) -> Self {
        Self { crc, markers: false, sent: 0 }
    }

    /// The same, with markers if so, the first of which opens the first FPDU.
    #[must_use]
    pub const fn with_markers(self, markers: bool) -> Self {
        Self { markers, ..self }
    }

    /// The longest ULPDU to send in a TCP segment of `emss` bytes.
    ///
    /// This is [`mulpdu`], or [`mulpdu_marked`] where there are markers: an FPDU fills its segment to the last multiple
    /// of four bytes.
    #[inline]
    #[must_use]
    pub const fn ulpdu_max(&self, emss: usize) -> usize {
        if self.markers { mulpdu_marked(emss) } else { mulpdu(emss) }
    }

    const fn layout(&self) -> Layout {
        if self.markers { Layout::marked(self.sent) } else { Layout::PLAIN }
    }

    /// Bytes of the next FPDU, if it is around a ULPDU of so many bytes.
    #[inline]
    #[must_use]
    pub const fn fpdu_len(&self, ulpdu_len: usize) -> usize {
        self.layout().fpdu_len(ulpdu_len)
    }

    /// Builds the next FPDU in `out`, which has exactly [`Self::fpdu_len`] bytes: `fill` writes the ULPDU into the
    /// slice it is given, the rest is written around it. Once it is sent, tell [`Self::sent`].
    ///
    /// # Errors
    /// Where the lengths do not agree; `fill` is not called then.
    #[inline]
    pub fn frame(
        &self,
        out: &mut [u8],
        ulpdu_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), FrameError> {
        let too_long = FrameError::TooLong { ulpdu: ulpdu_len };
        let length = u16::try_from(ulpdu_len).map_err(|_| too_long)?;
        if ulpdu_len > MULPDU_MAX {
            return Err(too_long);
        }
        let wrong = FrameError::Buffer { need: self.fpdu_len(ulpdu_len), have: out.len() };
        if out.len() != self.fpdu_len(ulpdu_len) {
            return Err(wrong);
        }
        let plain = out.get_mut(..fpdu_len(ulpdu_len)).ok_or(wrong)?;
        let (header, rest) = plain.split_first_chunk_mut::<LENGTH_LEN>().ok_or(wrong)?;
        let (ulpdu, pad_and_crc) = rest.split_at_mut_checked(ulpdu_len).ok_or(wrong)?;
        *header = length.to_be_bytes();
        fill(ulpdu);
        // RFC 5044 §4.1: "The pad data MUST be set to zero by the sender".
        pad_and_crc.fill(0);
        if self.markers {
            spread(out, self.layout(), fpdu_len(ulpdu_len)).ok_or(wrong)?;
        }
        let (covered, field) = out.split_last_chunk_mut::<CRC_LEN>().ok_or(wrong)?;
        *field = if self.crc { crc32c(covered) } else { [0; CRC_LEN] };
        Ok(())
    }

    /// An FPDU of so many bytes went out.
    #[inline]
    pub const fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.wrapping_add(bytes as u64);
    }

    /// How many markers an FPDU of so many bytes, the next, has.
    #[inline]
    #[must_use]
    pub fn markers(&self, bytes: usize) -> usize {
        if self.markers { self.layout().markers(bytes).count() } else { 0 }
    }
}

/// Opens room for markers in an FPDU, of which the first `plain` bytes of `out` are written, and writes them.
fn spread(out: &mut [u8], layout: Layout, plain: usize) -> Option<()> {
    let mut from = plain;
    let mut behind = out.len();
    for (at, pointer) in layout.markers(out.len()).rev() {
        let to = at.checked_add(MARKER_LEN)?;
        let part = from.checked_sub(behind.checked_sub(to)?)?..from;
        (from, behind) = (part.start, at);
        // In front of `at` lie as many markers as bytes must still move by: nothing that is still needed.
        out.get(part.clone())?;
        out.get(to..)?.get(..part.len())?;
        out.copy_within(part, to);
        *out.get_mut(at..)?.first_chunk_mut()? = marker(pointer?);
    }
    Some(())
}
