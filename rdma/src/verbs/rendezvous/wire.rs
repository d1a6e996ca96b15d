//! Private data of the connections between queue pairs that are connected by number, and of links for datagrams: a
//! request, and its reply.
//!
//! ```text
//! request, 68 bytes                                     reply, 24 bytes (accept or reject)
//!  0  "IWQ1"                                             0  "IWQ1"
//!  4  type: 1 two queue pairs, 2 link for datagrams      4  type
//!  5  length of this header; more may follow             5  length
//!  6  extensions offered (2)                             6  extensions granted (2)
//!  8  sender's queue pair number                         8  status (1)
//! 12  receiver's queue pair number                       9  responder's min_rnr_timer (1), zero (2)
//! 16  rq_psn: first PSN that the sender expects         12  responder's queue pair number
//! 20  sq_psn, or ffffffff while it is not known         16  responder's sq_psn, or ffffffff
//! 24  sender's GID (16)                                 20  retry after, ms
//! 40  receiver's GID, as the sender has it (16)
//! 56  nonce (8): random, new at each transition to RTR
//! 64  sender's min_rnr_timer (1), zero (3)
//! ```
//! All numbers are big-endian. Of a link, the numbers name workers, and PSNs, nonce and timer are 0. Bytes behind the
//! known ones are ignored, and unknown extensions are not granted.

use core::net::{IpAddr, Ipv6Addr};

use crate::qp::Extensions;
use crate::verbs::QpNum;

/// Length of a request, bytes.
pub(crate) const REQUEST_LEN: usize = 68;
/// Length of a reply, bytes.
pub(crate) const REPLY_LEN: usize = 24;

const MAGIC: [u8; 4] = *b"IWQ1";
/// A PSN that is not known: PSNs have 24 bits.
const UNKNOWN: u32 = u32::MAX;

// Extensions.
const SEND_IMMEDIATE: u16 = 1 << 0;
const IMMEDIATE_LENGTH: u16 = 1 << 1;
const PROGRESS: u16 = 1 << 2;

/// Returns an address as a GID of RoCE v2, IPv4 as a mapped one.
pub const fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

const fn extension_bits(extensions: Extensions) -> u16 {
    let Extensions { send_immediate, immediate_length, progress } = extensions;
    (if send_immediate { SEND_IMMEDIATE } else { 0 })
        | (if immediate_length { IMMEDIATE_LENGTH } else { 0 })
        | (if progress { PROGRESS } else { 0 })
}

const fn extensions_of(bits: u16) -> Extensions {
    Extensions {
        send_immediate: bits & SEND_IMMEDIATE != 0,
        immediate_length: bits & IMMEDIATE_LENGTH != 0,
        progress: bits & PROGRESS != 0,
    }
}

/// Type of a connection, of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Between two queue pairs.
    QueuePairs = 1,
    /// Between two workers, for the datagrams of all their queue pairs.
    Datagrams = 2,
}

/// Request of the queue pair that opens the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) extensions: Extensions,
    pub(crate) sender: QpNum,
    pub(crate) receiver: QpNum,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: Option<u32>,
    pub(crate) sender_gid: Ipv6Addr,
    pub(crate) receiver_gid: Ipv6Addr,
    pub(crate) nonce: u64,
    pub(crate) min_rnr_timer: u8,
}

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) kind: Kind,
    pub(crate) extensions: Extensions,
    pub(crate) status: Status,
    pub(crate) responder: QpNum,
    pub(crate) sq_psn: Option<u32>,
    pub(crate) min_rnr_timer: u8,
    pub(crate) retry_after_ms: u32,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The queue pairs are connected.
    Connected,
    /// There is no queue pair of this number.
    NoSuchQueuePair,
    /// The queue pair was not ready to receive in time.
    HeldTooLong,
    /// The queue pair is for another peer, or the addresses are not those of the connection.
    AnotherPeer,
    /// The packet sequence numbers of the two ends differ.
    Psn,
    /// The receiver opens a connection itself, or cannot hold more requests.
    Busy,
    /// The private data is no request.
    Malformed,
}

impl Status {
    const ALL: [Self; 7] = [
        Self::Connected,
        Self::NoSuchQueuePair,
        Self::HeldTooLong,
        Self::AnotherPeer,
        Self::Psn,
        Self::Busy,
        Self::Malformed,
    ];

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    const fn number(self) -> u8 {
        self as u8
    }
}

/// Big-endian words of four bytes, by their place.
struct Words<'a>(&'a [[u8; 4]]);

impl Words<'_> {
    fn at(&self, word: usize) -> u32 {
        u32::from_be_bytes(self.0.get(word).copied().unwrap_or_default())
    }

    fn byte(&self, word: usize, byte: usize) -> u8 {
        self.0.get(word).and_then(|word| word.get(byte)).copied().unwrap_or(0)
    }

    fn low(&self, word: usize) -> u16 {
        u16::from_be_bytes([self.byte(word, 2), self.byte(word, 3)])
    }

    fn psn(&self, word: usize) -> Option<u32> {
        Some(self.at(word)).filter(|psn| *psn != UNKNOWN)
    }

    fn gid(&self, word: usize) -> Ipv6Addr {
        let halves = |at: usize| u128::from(self.at(word.saturating_add(at)));
        Ipv6Addr::from_bits(halves(0) << 96 | halves(1) << 64 | halves(2) << 32 | halves(3))
    }

    fn wide(&self, word: usize) -> u64 {
        u64::from(self.at(word)) << 32 | u64::from(self.at(word.saturating_add(1)))
    }
}

/// Returns the words of a header of at least `least` bytes; `None` if it is none.
fn header(bytes: &[u8], least: usize) -> Option<(Kind, Words<'_>)> {
    let (words, _) = bytes.as_chunks();
    let words = Words(words);
    let kind = match words.byte(1, 0) {
        1 => Kind::QueuePairs,
        2 => Kind::Datagrams,
        _ => return None,
    };
    let is_header = words.0.first() == Some(&MAGIC)
        && usize::from(words.byte(1, 1)) >= least
        && bytes.len() >= usize::from(words.byte(1, 1));
    is_header.then_some((kind, words))
}

/// Writes words of four bytes.
fn emit<const LEN: usize>(words: impl IntoIterator<Item = u32>) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_be_bytes();
    }
    bytes
}

fn head(kind: Kind, len: usize, extensions: Extensions) -> [u32; 2] {
    let [high, low] = extension_bits(extensions).to_be_bytes();
    let len = u8::try_from(len).unwrap_or(u8::MAX);
    [u32::from_be_bytes(MAGIC), u32::from_be_bytes([kind as u8, len, high, low])]
}

const fn halves(wide: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = wide.to_be_bytes();
    [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])]
}

fn gid_words(gid: Ipv6Addr) -> [u32; 4] {
    let mut words = [0; 4];
    for (to, from) in words.iter_mut().zip(gid.octets().as_chunks().0) {
        *to = u32::from_be_bytes(*from);
    }
    words
}

impl Request {
    /// Parses the private data of a request.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, words) = header(bytes, REQUEST_LEN)?;
        Some(Self {
            kind,
            extensions: extensions_of(words.low(1)),
            sender: QpNum(words.at(2)),
            receiver: QpNum(words.at(3)),
            rq_psn: words.at(4),
            sq_psn: words.psn(5),
            sender_gid: words.gid(6),
            receiver_gid: words.gid(10),
            nonce: words.wide(14),
            min_rnr_timer: words.byte(16, 0),
        })
    }

    /// Returns the private data.
    pub(crate) fn emit(&self) -> [u8; REQUEST_LEN] {
        let [magic, second] = head(self.kind, REQUEST_LEN, self.extensions);
        let numbers = [self.sender.0, self.receiver.0, self.rq_psn, self.sq_psn.unwrap_or(UNKNOWN)];
        let last = u32::from_be_bytes([self.min_rnr_timer, 0, 0, 0]);
        let words = [magic, second].into_iter().chain(numbers);
        let words = words.chain(gid_words(self.sender_gid)).chain(gid_words(self.receiver_gid));
        emit(words.chain(halves(self.nonce)).chain([last]))
    }
}

impl Reply {
    /// Parses the private data of a reply.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, words) = header(bytes, REPLY_LEN)?;
        Some(Self {
            kind,
            extensions: extensions_of(words.low(1)),
            status: Status::from_number(words.byte(2, 0))?,
            responder: QpNum(words.at(3)),
            sq_psn: words.psn(4),
            min_rnr_timer: words.byte(2, 1),
            retry_after_ms: words.at(5),
        })
    }

    /// Returns the private data.
    pub(crate) fn emit(&self) -> [u8; REPLY_LEN] {
        let [magic, second] = head(self.kind, REPLY_LEN, self.extensions);
        let third = u32::from_be_bytes([self.status.number(), self.min_rnr_timer, 0, 0]);
        let psn = self.sq_psn.unwrap_or(UNKNOWN);
        emit([magic, second, third, self.responder.0, psn, self.retry_after_ms])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extensions() -> impl Strategy<Value = Extensions> {
        any::<(bool, bool, bool)>().prop_map(|(send_immediate, immediate_length, progress)| Extensions {
            send_immediate,
            immediate_length,
            progress,
        })
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(vec![Kind::QueuePairs, Kind::Datagrams])
    }

    fn psn() -> impl Strategy<Value = Option<u32>> {
        prop::option::of(0..1_u32 << 24)
    }

    proptest! {
        #[test]
        fn a_request_is_what_was_emitted(
            (kind, extensions) in (kind(), extensions()),
            (sender, receiver, rq_psn) in (0..1_u32 << 24, 0..1_u32 << 24, 0..1_u32 << 24),
            sq_psn in psn(),
            gids in any::<(u128, u128)>(),
            (nonce, min_rnr_timer) in any::<(u64, u8)>(),
            more in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let (sender, receiver) = (QpNum(sender), QpNum(receiver));
            let (sender_gid, receiver_gid) = (Ipv6Addr::from_bits(gids.0), Ipv6Addr::from_bits(gids.1));
            let request = Request {
                kind,
                extensions, sender, receiver, rq_psn, sq_psn, sender_gid, receiver_gid, nonce, min_rnr_timer,
            };
            let mut bytes = request.emit().to_vec();
            prop_assert_eq!(Request::parse(&bytes[..REQUEST_LEN - 1]), None);
            prop_assert_eq!(Reply::parse(&bytes).is_some(), bytes[8] < 7);
            bytes.extend(more);
            prop_assert_eq!(Request::parse(&bytes), Some(request));
        }

        #[test]
        fn a_reply_is_what_was_emitted(
            (kind, extensions) in (kind(), extensions()),
            (status, responder, sq_psn) in (0..7_u8, 0..1_u32 << 24, psn()),
            (min_rnr_timer, retry_after_ms) in any::<(u8, u32)>(),
        ) {
            let status = Status::from_number(status).unwrap();
            let responder = QpNum(responder);
            let reply = Reply { kind, extensions, status, responder, sq_psn, min_rnr_timer, retry_after_ms };
            prop_assert_eq!(Reply::parse(&reply.emit()), Some(reply));
            prop_assert_eq!(Request::parse(&reply.emit()), None);
        }

        #[test]
        fn any_bytes_are_parsed(kind in 0..4_u8, bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Request::parse(&bytes), Reply::parse(&bytes));
            let headed = [&MAGIC[..], &[kind], &bytes].concat();
            let _ = (Request::parse(&headed), Reply::parse(&headed));
        }
    }

    #[test]
    fn the_layout_is_that_of_the_documents() {
        let extensions = Extensions { send_immediate: true, immediate_length: false, progress: true };
        let gid = |last| gid(IpAddr::from([10, 0, 0, last]));
        let request = Request {
            kind: Kind::QueuePairs,
            extensions,
            sender: QpNum(0x01_0203),
            receiver: QpNum(0x04_0506),
            rq_psn: 7,
            sq_psn: None,
            sender_gid: gid(1),
            receiver_gid: gid(2),
            nonce: 0x0102_0304_0506_0708,
            min_rnr_timer: 12,
        };
        let mapped = |last| [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, last]].concat();
        let expected = [
            &b"IWQ1\x01\x44\x00\x05\x00\x01\x02\x03\x00\x04\x05\x06\x00\x00\x00\x07\xff\xff\xff\xff"[..],
            &mapped(1),
            &mapped(2),
            &[1, 2, 3, 4, 5, 6, 7, 8, 12, 0, 0, 0],
        ];
        assert_eq!(request.emit().to_vec(), expected.concat());
    }
}
