//! Framer of the transmitted stream (RFC 5044 §4.1, §4.5): builds each FPDU in place, in the buffer that TCP sends.
//!
//! ```text
//! +--------------+---------------------------+-----------+-------+
//! | ULPDU_Length |           ULPDU           | PAD (0-3) |  CRC  |
//! +--------------+---------------------------+-----------+-------+
//!        2               ULPDU_Length                        4
//! ```
//!
//! If the peer asked for markers, the framer builds the FPDU without them, moves its bytes apart within the buffer,
//! last part first, writes the markers into the gaps, and computes the CRC over the result.

use super::crc::crc32c;
use super::marker::{Layout, MARKER_INTERVAL, MARKER_LEN, marker};
use super::{CRC_LEN, LENGTH_LEN};
use core::fmt;

/// The smallest MULPDU. RFC 5044 §4.5: "the MPA on TCP sender MUST NOT shrink the MULPDU below 128 octets".
pub const MULPDU_MIN: usize = 128;

/// The longest ULPDU. RFC 5044 §3: "The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA."
pub const MULPDU_MAX: usize = 64768;

const OVERHEAD: usize = LENGTH_LEN + CRC_LEN;

/// Returns the length in bytes of the FPDU of a ULPDU of `ulpdu_len` bytes, without markers. RFC 5044 §4.1: "The
/// length of the pad is set so as to make the size of the FPDU an integral multiple of four."
#[inline]
#[must_use]
pub const fn fpdu_len(ulpdu_len: usize) -> usize {
    ulpdu_len.saturating_add(OVERHEAD).saturating_add(3) & !3
}

/// Returns the length in bytes of the longest ULPDU whose FPDU fits a TCP segment of `emss` bytes, without markers.
/// RFC 5044 §4.5: "MULPDU = EMSS - (6 + EMSS mod 4)".
///
/// The result is always within [`MULPDU_MIN`]..=[`MULPDU_MAX`]: below an EMSS of 136 bytes an FPDU may need more than
/// one segment.
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

/// Returns the same with markers. RFC 5044 §4.5: "MULPDU = EMSS - (6 + 4 * Ceiling(EMSS / 512) + EMSS mod 4)".
#[inline]
#[must_use]
pub const fn mulpdu_marked(emss: usize) -> usize {
    let markers = emss.div_ceil(MARKER_INTERVAL).saturating_mul(MARKER_LEN);
    mulpdu((emss & !3).saturating_sub(markers))
}

/// Reason why an FPDU was not built. Both are errors of the caller, not of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The ULPDU is longer than [`MULPDU_MAX`] bytes.
    TooLong {
        /// Length of the ULPDU in bytes.
        ulpdu: usize,
    },
    /// The buffer does not have exactly the length of the FPDU.
    Buffer {
        /// Length of the FPDU in bytes.
        need: usize,
        /// Length of the buffer in bytes.
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
    /// Bytes of all FPDUs sent, modulo 2^64; locates the markers.
    sent: u64,
}

impl Framer {
    /// Creates a framer that writes CRCs if `crc`, and zeros in their place otherwise; no markers.
    #[must_use]
    pub const fn new(crc: bool) -> Self {
        Self { crc, markers: false, sent: 0 }
    }

    /// Sets the use of markers. The first marker opens the first FPDU.
    #[must_use]
    pub const fn with_markers(self, markers: bool) -> Self {
        Self { markers, ..self }
    }

    /// Returns the length in bytes of the longest ULPDU for a TCP segment of `emss` bytes.
    ///
    /// This is [`mulpdu`], or [`mulpdu_marked`] with markers: an FPDU fills its segment to the last multiple of four
    /// bytes.
    #[inline]
    #[must_use]
    pub const fn ulpdu_max(&self, emss: usize) -> usize {
        if self.markers { mulpdu_marked(emss) } else { mulpdu(emss) }
    }

    const fn layout(&self) -> Layout {
        if self.markers { Layout::marked(self.sent) } else { Layout::PLAIN }
    }

    /// Returns the length in bytes of the next FPDU, for a ULPDU of `ulpdu_len` bytes.
    #[inline]
    #[must_use]
    pub const fn fpdu_len(&self, ulpdu_len: usize) -> usize {
        self.layout().fpdu_len(ulpdu_len)
    }

    /// Builds the next FPDU in `out`, which must have exactly [`Self::fpdu_len`] bytes. `fill` writes the ULPDU into
    /// the slice that it receives; the framer writes the other fields. The caller reports the FPDU with [`Self::sent`]
    /// once TCP has it.
    ///
    /// # Errors
    /// The ULPDU is too long, or `out` has another length. `fill` is not called then.
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
        let unmarked = out.get_mut(..fpdu_len(ulpdu_len)).ok_or(wrong)?;
        let (header, rest) = unmarked.split_first_chunk_mut::<LENGTH_LEN>().ok_or(wrong)?;
        let (ulpdu, pad_and_crc) = rest.split_at_mut_checked(ulpdu_len).ok_or(wrong)?;
        *header = length.to_be_bytes();
        fill(ulpdu);
        // RFC 5044 §4.1: "The pad data MUST be set to zero by the sender".
        pad_and_crc.fill(0);
        if self.markers {
            insert_markers(out, self.layout(), fpdu_len(ulpdu_len)).ok_or(wrong)?;
        }
        let (covered, field) = out.split_last_chunk_mut::<CRC_LEN>().ok_or(wrong)?;
        *field = if self.crc { crc32c(covered) } else { [0; CRC_LEN] };
        Ok(())
    }

    /// Advances the stream by an FPDU of `bytes` bytes that TCP has taken.
    #[inline]
    pub const fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.wrapping_add(bytes as u64);
    }

    /// Returns the number of markers in the next FPDU, of `bytes` bytes.
    #[inline]
    #[must_use]
    pub fn markers(&self, bytes: usize) -> usize {
        if self.markers { self.layout().markers(bytes).count() } else { 0 }
    }
}

/// Moves the first `unmarked_len` bytes of `out` apart to make room for the FPDU's markers, and writes the markers.
fn insert_markers(out: &mut [u8], layout: Layout, unmarked_len: usize) -> Option<()> {
    let mut from = unmarked_len;
    let mut behind = out.len();
    for (at, pointer) in layout.markers(out.len()).rev() {
        let to = at.checked_add(MARKER_LEN)?;
        let part = from.checked_sub(behind.checked_sub(to)?)?..from;
        (from, behind) = (part.start, at);
        // Before `at`, the buffer still has one marker-sized gap per marker left: the move overwrites no byte that is
        // still needed.
        out.get(part.clone())?;
        out.get(to..)?.get(..part.len())?;
        out.copy_within(part, to);
        *out.get_mut(at..)?.first_chunk_mut()? = marker(pointer?);
    }
    Some(())
}
