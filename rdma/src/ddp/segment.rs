//! Segmentation of messages to the MULPDU. The transmit path of RDMAP calls [`cut`] for each FPDU.

/// Next segment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Length of the payload in bytes.
    pub(crate) len: usize,
    /// True for the last segment of the message.
    pub(crate) last: bool,
}

/// Returns the next segment of a message with `remaining` bytes left; `None` if the transport takes less than a header
/// and one byte.
///
/// RFC 5041 §5.2: each segment "MUST be no larger than the MULPDU value Advertised by the LLP", and a zero-length
/// message "MUST consume exactly one DDP Segment".
#[inline]
pub(crate) fn cut(mulpdu: usize, header: usize, remaining: usize) -> Option<Segment> {
    let room = mulpdu.checked_sub(header)?;
    if remaining <= room {
        Some(Segment { len: remaining, last: true })
    } else {
        (room > 0).then_some(Segment { len: room, last: false })
    }
}

#[cfg(test)]
mod tests {
    use super::{Segment, cut};

    #[test]
    fn messages_are_segmented_as_the_rfc_shows() {
        // RFC 5041 §5.2: 2048 bytes, MULPDU 1500: 1482 and 566 untagged, 1486 and 562 tagged.
        assert_eq!(cut(1500, 18, 2048), Some(Segment { len: 1482, last: false }));
        assert_eq!(cut(1500, 18, 566), Some(Segment { len: 566, last: true }));
        assert_eq!(cut(1500, 14, 2048), Some(Segment { len: 1486, last: false }));
        assert_eq!(cut(1500, 14, 562), Some(Segment { len: 562, last: true }));
    }

    #[test]
    fn the_edges() {
        assert_eq!(cut(1500, 14, 0), Some(Segment { len: 0, last: true }));
        assert_eq!(cut(1500, 14, 1486), Some(Segment { len: 1486, last: true }));
        assert_eq!(cut(14, 14, 0), Some(Segment { len: 0, last: true }));
        assert_eq!(cut(14, 14, 1), None);
        assert_eq!(cut(13, 14, 0), None);
    }
}
