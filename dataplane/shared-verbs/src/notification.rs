//! Notifications of a watch: messages of peers to a region of the daemon, for a program that watches it.
//!
//! Any worker may have a connection to the region, so the memory of a watch has a ring for each worker and port, one
//! after the other:
//!
//! ```text
//!  line 0   word 0 arming, word 1 notifications lost, word 2 set when the region is gone
//!  then     ring of entries
//! ```
//! | word of an entry | content |
//! |---|---|
//! | 0 | byte 0 kind, byte 1 flags, byte 2 bytes of the Send |
//! | 1 | bytes written before |
//! | 2 | Immediate Data |
//! | from 3 | bytes of the Send |

use iwarp_shared_queues::{EntryError, LINE_WORDS, RingShape};
use rdma::{Message, NOTIFICATION_BYTES_MAX};

/// Words in front of the bytes of a Send.
const HEAD_WORDS: usize = 3;
/// Words of an entry.
pub(crate) const NOTIFICATION_WORDS: usize = HEAD_WORDS + NOTIFICATION_BYTES_MAX / size_of::<u64>();

/// Word of the arming, from the first word of a ring's memory.
pub(crate) const ARM: usize = 0;
/// Word with the number of notifications that the ring had no room for.
pub(crate) const LOST: usize = 1;
/// Word that is 1 once the region is gone.
pub(crate) const GONE: usize = 2;

// Kinds.
const IMMEDIATE: u8 = 1;
const SEND: u8 = 2;

// Flags.
const SOLICITED: u8 = 1 << 0;

/// Message of a peer to a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Content of the message.
    pub content: Content,
    /// True if the peer asks for an event.
    pub solicited: bool,
    /// Bytes that the peer has written to the region since the last notification of its connection. They are in place.
    pub written: u64,
}

/// Content of a [`Notification`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Immediate Data, usually behind an RDMA Write (RFC 7306 §6).
    Immediate([u8; 8]),
    /// The bytes of a Send, at most [`NOTIFICATION_BYTES_MAX`].
    Send(Box<[u8]>),
}

/// Returns the shape of a ring of `entries` notifications; `None` if a ring cannot hold them.
pub fn notification_ring(entries: u32) -> Option<RingShape> {
    RingShape::new(entries, u32::try_from(NOTIFICATION_WORDS).ok()?)
}

/// Returns the words that one ring takes, with the words in front of it.
pub fn notification_ring_words(shape: RingShape) -> usize {
    LINE_WORDS.saturating_add(shape.words())
}

/// Encodes a notification for the ring.
pub(crate) fn encode(notification: &rdma::Notification<'_>) -> [u64; NOTIFICATION_WORDS] {
    let rdma::Notification { message, solicited, written } = *notification;
    let (kind, immediate, bytes) = match message {
        Message::Immediate(data) => (IMMEDIATE, data, &[][..]),
        Message::Send(bytes) => (SEND, [0; 8], bytes),
    };
    let length = u8::try_from(bytes.len().min(NOTIFICATION_BYTES_MAX)).unwrap_or(0);
    let flags = if solicited { SOLICITED } else { 0 };
    let mut words = [0; NOTIFICATION_WORDS];
    let (head, data) = words.split_at_mut(HEAD_WORDS);
    let first = u64::from_le_bytes([kind, flags, length, 0, 0, 0, 0, 0]);
    head.copy_from_slice(&[first, written, u64::from_le_bytes(immediate)]);
    for (to, from) in data.iter_mut().zip(bytes.chunks(size_of::<u64>())) {
        let mut word = [0; size_of::<u64>()];
        word.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        *to = u64::from_le_bytes(word);
    }
    words
}

/// Decodes a notification from the ring.
///
/// # Errors
/// The kind or a flag is unknown, or the Send is longer than a notification's.
pub(crate) fn decode(words: &[u64; NOTIFICATION_WORDS]) -> Result<Notification, EntryError> {
    let (head, data) = words.split_first_chunk::<HEAD_WORDS>().ok_or(EntryError::TooShort)?;
    let [first, written, immediate] = *head;
    let [kind, flags, length, ..] = first.to_le_bytes();
    if flags & !SOLICITED != 0 {
        return Err(EntryError::Flags(flags));
    }
    if usize::from(length) > NOTIFICATION_BYTES_MAX {
        return Err(EntryError::InlineLength(length.into()));
    }
    let content = match kind {
        IMMEDIATE => Content::Immediate(immediate.to_le_bytes()),
        SEND => Content::Send(data.iter().flat_map(|word| word.to_le_bytes()).take(length.into()).collect()),
        _ => return Err(EntryError::Opcode(kind)),
    };
    Ok(Notification { content, solicited: flags & SOLICITED != 0, written })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn content() -> impl Strategy<Value = Content> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..=NOTIFICATION_BYTES_MAX);
        prop_oneof![
            any::<[u8; 8]>().prop_map(Content::Immediate),
            bytes.prop_map(|bytes| Content::Send(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_notification_survives(content in content(), solicited in any::<bool>(), written in any::<u64>()) {
            let message = match &content {
                Content::Immediate(data) => Message::Immediate(*data),
                Content::Send(bytes) => Message::Send(bytes),
            };
            let words = encode(&rdma::Notification { message, solicited, written });
            prop_assert_eq!(decode(&words), Ok(Notification { content, solicited, written }));
        }

        #[test]
        fn random_words_are_refused_or_short(
            random in proptest::collection::vec(any::<u64>(), NOTIFICATION_WORDS),
            kind in 0..4_u64,
        ) {
            let mut words: [u64; NOTIFICATION_WORDS] = random.try_into().unwrap();
            words[0] = words[0] & !0xffff | kind;
            if let Ok(Notification { content: Content::Send(bytes), .. }) = decode(&words) {
                prop_assert!(bytes.len() <= NOTIFICATION_BYTES_MAX);
            }
        }
    }
}
