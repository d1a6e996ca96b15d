//! Message order in an untagged queue. The receive path of RDMAP checks each untagged segment here.

use crate::terminate::StreamError;
use crate::wire::ddp::UntaggedHeader;
use crate::wire::{MessageOffset, Msn};

/// Position in an untagged queue: the next segment expected, or the next to send.
///
/// The stream is in order, so exactly one segment of a queue can be next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UntaggedQueue {
    /// MSN of the current message.
    pub(crate) msn: Msn,
    /// Bytes of the current message so far.
    pub(crate) offset: MessageOffset,
}

impl UntaggedQueue {
    /// Checks that a segment belongs to the current message.
    ///
    /// RFC 5041 §7.1 item 5: "The Message Sequence Number falls in the range of legal Message Sequence Numbers".
    #[inline]
    pub(crate) fn check_msn(&self, header: &UntaggedHeader) -> Result<(), StreamError> {
        if header.msn == self.msn { Ok(()) } else { Err(StreamError::MsnRange) }
    }

    /// Checks that a segment of `len` bytes continues the current message, and fits a buffer of `room` bytes.
    #[inline]
    pub(crate) fn check_offset(
        &self,
        header: &UntaggedHeader,
        len: usize,
        room: u64,
    ) -> Result<(), StreamError> {
        if header.offset != self.offset {
            return Err(StreamError::MessageOffset);
        }
        match u64::from(self.offset.0).checked_add(len as u64) {
            Some(end) if end <= room => Ok(()),
            _ => Err(StreamError::MessageTooLong),
        }
    }

    /// Advances by one segment of `len` bytes.
    #[inline]
    pub(crate) fn advance(&mut self, len: usize, last: bool) {
        if last {
            *self = Self { msn: self.msn.next(), offset: MessageOffset(0) };
        } else {
            // The message's length is less than 2³² bytes.
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            self.offset = MessageOffset(self.offset.0.saturating_add(len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::QueueNumber;

    fn header(msn: u32, offset: u32) -> UntaggedHeader {
        UntaggedHeader {
            last: true,
            version: 1,
            ulp_control: 0x43,
            ulp_word: 0,
            queue: QueueNumber::SEND,
            msn: Msn(msn),
            offset: MessageOffset(offset),
        }
    }

    #[test]
    fn a_message_after_the_other() {
        let mut queue = UntaggedQueue::default();
        assert_eq!(queue.check_msn(&header(1, 0)), Ok(()));
        for wrong in [0, 2, u32::MAX] {
            assert_eq!(queue.check_msn(&header(wrong, 0)), Err(StreamError::MsnRange));
        }
        queue.advance(100, false);
        assert_eq!(queue.check_offset(&header(1, 100), 28, 128), Ok(()));
        assert_eq!(queue.check_offset(&header(1, 99), 1, 128), Err(StreamError::MessageOffset));
        assert_eq!(queue.check_offset(&header(1, 100), 29, 128), Err(StreamError::MessageTooLong));
        queue.advance(28, true);
        assert_eq!(queue, UntaggedQueue { msn: Msn(2), offset: MessageOffset(0) });
    }

    #[test]
    fn the_sequence_wraps_to_zero() {
        let mut queue = UntaggedQueue { msn: Msn(u32::MAX), offset: MessageOffset(0) };
        queue.advance(0, true);
        assert_eq!(queue.check_msn(&header(0, 0)), Ok(()));
    }

    #[test]
    fn the_end_of_a_message_is_compared_without_wrap() {
        let queue = UntaggedQueue { msn: Msn(1), offset: MessageOffset(u32::MAX) };
        assert_eq!(
            queue.check_offset(&header(1, u32::MAX), 2, u32::MAX.into()),
            Err(StreamError::MessageTooLong)
        );
    }
}
