//! The two DDP headers (RFC 5041 §4).

use super::{MessageOffset, Msn, ParseError, QueueNumber, Stag, TaggedOffset, truncated};

/// The version that RFC 5041 §4.1 defines: "This field MUST be set to one".
pub const VERSION: u8 = 1;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

#[inline]
const fn control(tagged: bool, last: bool, version: u8) -> u8 {
    (if tagged { TAGGED } else { 0 }) | (if last { LAST } else { 0 }) | (version & VERSION_MASK)
}

/// The header of a segment for a tagged buffer (RFC 5041 §4.2, Figure 4).
///
/// ```text
///  0                   1
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
/// +-+-+-------+---+---------------+
/// |T|L| Rsvd  | DV|    RsvdULP    |
/// +-+-+-------+---+---------------+
/// |            STag (32)          |
/// |            TO (64)            |
/// +-------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedHeader {
    /// L: the last segment of its message.
    pub last: bool,
    /// DV, 0–3; only [`VERSION`] is supported.
    pub version: u8,
    /// RsvdULP: RDMAP's control field.
    pub ulp_control: u8,
    /// STag of the data sink's buffer.
    pub stag: Stag,
    /// Offset of the payload in the buffer.
    pub offset: TaggedOffset,
}

impl TaggedHeader {
    /// Length in bytes on the wire.
    pub const LEN: usize = 14;

    /// Parses the header at the start of `segment`, and returns it with the bytes after it.
    ///
    /// # Errors
    /// `Truncated`, or `TagFlag` if T is zero.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((header, payload)) = segment.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, segment.len()));
        };
        let [control, ulp_control, s0, s1, s2, s3, offset @ ..] = *header;
        if control & TAGGED == 0 {
            return Err(ParseError::TagFlag);
        }
        let parsed = Self {
            last: control & LAST != 0,
            version: control & VERSION_MASK,
            ulp_control,
            stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
            offset: TaggedOffset(u64::from_be_bytes(offset)),
        };
        Ok((parsed, payload))
    }

    /// Writes the header to `out`.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [control, ulp_control, s0, s1, s2, s3, offset @ ..] = out;
        *control = self::control(true, self.last, self.version);
        *ulp_control = self.ulp_control;
        [*s0, *s1, *s2, *s3] = self.stag.0.to_be_bytes();
        *offset = self.offset.0.to_be_bytes();
    }
}

/// The header of a segment for an untagged buffer (RFC 5041 §4.3, Figure 5).
///
/// ```text
///  0                   1
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
/// +-+-+-------+---+---------------+
/// |T|L| Rsvd  | DV| RsvdULP[0:7]  |
/// +-+-+-------+---+---------------+
/// |       RsvdULP[8:39] (32)      |
/// |            QN (32)            |
/// |            MSN (32)           |
/// |            MO (32)            |
/// +-------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntaggedHeader {
    /// L: the last segment of its message.
    pub last: bool,
    /// DV, 0–3; only [`VERSION`] is supported.
    pub version: u8,
    /// RsvdULP\[0:7\]: RDMAP's control field.
    pub ulp_control: u8,
    /// RsvdULP\[8:39\]: the STag to invalidate in the Send variants that carry one, else zero (RFC 5040 §4.1).
    pub ulp_word: u32,
    /// Untagged buffer queue at the data sink.
    pub queue: QueueNumber,
    /// Sequence number of the message in the queue.
    pub msn: Msn,
    /// Offset of the payload in the message.
    pub offset: MessageOffset,
}

impl UntaggedHeader {
    /// Length in bytes on the wire.
    pub const LEN: usize = 18;

    /// Parses the header at the start of `segment`, and returns it with the bytes after it.
    ///
    /// # Errors
    /// `Truncated`, or `TagFlag` if T is one.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((header, payload)) = segment.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, segment.len()));
        };
        let [control, ulp_control, words @ ..] = header;
        let ([ulp_word, queue, msn, offset], _) = words.as_chunks::<4>() else {
            return Err(truncated(Self::LEN, segment.len()));
        };
        if control & TAGGED != 0 {
            return Err(ParseError::TagFlag);
        }
        let parsed = Self {
            last: control & LAST != 0,
            version: control & VERSION_MASK,
            ulp_control: *ulp_control,
            ulp_word: u32::from_be_bytes(*ulp_word),
            queue: QueueNumber(u32::from_be_bytes(*queue)),
            msn: Msn(u32::from_be_bytes(*msn)),
            offset: MessageOffset(u32::from_be_bytes(*offset)),
        };
        Ok((parsed, payload))
    }

    /// Writes the header to `out`.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [control, ulp_control, words @ ..] = out;
        *control = self::control(false, self.last, self.version);
        *ulp_control = self.ulp_control;
        let values = [self.ulp_word, self.queue.0, self.msn.0, self.offset.0];
        for (word, value) in words.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *word = value.to_be_bytes();
        }
    }
}

/// Either DDP header, selected by the T bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Header with T set: a tagged segment.
    Tagged(TaggedHeader),
    /// Header with T clear: an untagged segment.
    Untagged(UntaggedHeader),
}

impl Header {
    /// Length in bytes of the longer header: with this many bytes, [`Self::parse`] never returns `Truncated`.
    pub const LEN_MAX: usize = UntaggedHeader::LEN;

    /// Parses the header at the start of `segment`, and returns it with the bytes after it.
    ///
    /// # Errors
    /// `Truncated`.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some(control) = segment.first() else {
            return Err(truncated(TaggedHeader::LEN, 0));
        };
        if control & TAGGED != 0 {
            TaggedHeader::parse(segment).map(|(header, payload)| (Self::Tagged(header), payload))
        } else {
            UntaggedHeader::parse(segment).map(|(header, payload)| (Self::Untagged(header), payload))
        }
    }

    /// Returns the length of this header in bytes on the wire.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self {
            Self::Tagged(_) => TaggedHeader::LEN,
            Self::Untagged(_) => UntaggedHeader::LEN,
        }
    }

    /// Returns RsvdULP's first byte, the control field of RDMAP.
    #[inline]
    #[must_use]
    pub const fn ulp_control(&self) -> u8 {
        match self {
            Self::Tagged(header) => header.ulp_control,
            Self::Untagged(header) => header.ulp_control,
        }
    }

    /// Returns DV, the DDP version, 0–3.
    #[inline]
    #[must_use]
    pub const fn version(&self) -> u8 {
        match self {
            Self::Tagged(header) => header.version,
            Self::Untagged(header) => header.version,
        }
    }

    /// Returns L: true for the last segment of its message.
    #[inline]
    #[must_use]
    pub const fn last(&self) -> bool {
        match self {
            Self::Tagged(header) => header.last,
            Self::Untagged(header) => header.last,
        }
    }
}
