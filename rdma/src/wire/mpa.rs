//! The frames that set up an MPA connection (RFC 5044 §7.1.1, RFC 6581 §6 and §9).

use super::{ParseError, truncated};
use core::fmt;

/// The longest private data. RFC 5044 §7.1.1: "The Private Data field MUST be between 0 and 512 octets".
/// RFC 6581 counts its [`ConnectionData`] as part of it.
pub const PRIVATE_DATA_MAX: usize = 512;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The initiator's first bytes.
    Request,
    /// The responder's answer.
    Reply,
}

impl FrameKind {
    /// The sixteen bytes that open the frame (RFC 5044 §7.1.1).
    #[inline]
    #[must_use]
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => &REQUEST_KEY,
            Self::Reply => &REPLY_KEY,
        }
    }
}

/// The fixed part of an MPA Request or Reply frame (RFC 5044 §7.1.1 Figure 8, RFC 6581 §6).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +---------------------------------------------------------------+
/// |          Key (16 bytes: "MPA ID Req Frame", "…Rep…")         |
/// +-+-+-+-+-------+---------------+-------------------------------+
/// |M|C|R|S| Res   |     Rev       |          PD_Length            |
/// +-+-+-+-+-------+---------------+-------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Request or Reply, as the key says.
    pub kind: FrameKind,
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the responder refuses the connection; without meaning in a request.
    pub reject: bool,
    /// S: the private data begins with [`ConnectionData`]; without meaning below revision 2.
    pub enhanced: bool,
    /// The revision of MPA.
    pub revision: u8,
    /// PD_Length: bytes of private data behind this header, [`ConnectionData`] included.
    pub private_data_len: u16,
}

impl FrameHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// The header at the start of `bytes`, and the bytes behind it.
    ///
    /// # Errors
    /// `Truncated`, or `Key`.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((header, rest)) = bytes.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, bytes.len()));
        };
        let [key @ .., flags, revision, len0, len1] = *header;
        let kind = match key {
            REQUEST_KEY => FrameKind::Request,
            REPLY_KEY => FrameKind::Reply,
            _ => return Err(ParseError::Key),
        };
        let parsed = Self {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0,
            enhanced: flags & ENHANCED != 0,
            revision,
            private_data_len: u16::from_be_bytes([len0, len1]),
        };
        Ok((parsed, rest))
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [key @ .., flags, revision, len0, len1] = out;
        *key = *self.kind.key();
        *flags = [(self.markers, MARKERS), (self.crc, CRC), (self.reject, REJECT), (self.enhanced, ENHANCED)]
            .iter()
            .fold(0, |flags, (set, bit)| if *set { flags | bit } else { flags });
        *revision = self.revision;
        [*len0, *len1] = self.private_data_len.to_be_bytes();
    }
}

/// The depth of a queue of RDMA Read Requests: IRD or ORD, 14 bits (RFC 6581 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadDepth(u16);

impl ReadDepth {
    /// RFC 6581 §9.1: "An all ones value (0x3FFF) indicates that automatic negotiation of the IRD or ORD is
    /// not desired".
    pub const NOT_NEGOTIATED: Self = Self(0x3FFF);
    /// The deepest queue that can be negotiated.
    pub const MAX: Self = Self(0x3FFE);

    /// A depth of so many requests, or [`Self::MAX`] where it would be more.
    #[inline]
    #[must_use]
    pub const fn new(requests: u16) -> Self {
        if requests > Self::MAX.0 { Self::MAX } else { Self(requests) }
    }

    /// The fourteen bits.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// How many requests, or `None` where the sender leaves that to the ULP.
    #[inline]
    #[must_use]
    pub const fn requests(self) -> Option<u16> {
        if self.0 == Self::NOT_NEGOTIATED.0 { None } else { Some(self.0) }
    }
}

impl fmt::Display for ReadDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.requests() {
            Some(requests) => write!(f, "{requests}"),
            None => f.write_str("not negotiated"),
        }
    }
}

/// Which messages may serve as the ready-to-receive indication (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrOptions {
    /// B: a Send of no bytes.
    pub send: bool,
    /// C: an RDMA Write of no bytes.
    pub write: bool,
    /// D: an RDMA Read of no bytes.
    pub read: bool,
}

impl RtrOptions {
    /// The options that both have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Whether there is no option at all.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }
}

/// The enhanced connection establishment data (RFC 6581 §9).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+---------------------------+-+-+---------------------------+
/// |A|B|          IRD (14)         |C|D|          ORD (14)         |
/// +-+-+---------------------------+-+-+---------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionData {
    /// `Some` where A says peer-to-peer; then B, C and D. RFC 6581 §9.2: "if Control Flag A is set to 0,
    /// then Control Flags B, C, and D MUST be ignored".
    pub rtr: Option<RtrOptions>,
    /// The sender's inbound depth.
    pub ird: ReadDepth,
    /// The sender's outbound depth.
    pub ord: ReadDepth,
}

impl ConnectionData {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;
    const DEPTH: u16 = 0x3FFF;

    /// The data at the start of the private data, and the ULP's own behind it.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((data, rest)) = private_data.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, private_data.len()));
        };
        let [i0, i1, o0, o1] = *data;
        let (ird, ord) = (u16::from_be_bytes([i0, i1]), u16::from_be_bytes([o0, o1]));
        let rtr = (ird & Self::HIGH != 0).then_some(RtrOptions {
            send: ird & Self::LOW != 0,
            write: ord & Self::HIGH != 0,
            read: ord & Self::LOW != 0,
        });
        let parsed = Self { rtr, ird: ReadDepth(ird & Self::DEPTH), ord: ReadDepth(ord & Self::DEPTH) };
        Ok((parsed, rest))
    }

    /// Writes the data.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let options = self.rtr.unwrap_or_default();
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = self.ird.0 | bit(self.rtr.is_some(), Self::HIGH) | bit(options.send, Self::LOW);
        let ord = self.ord.0 | bit(options.write, Self::HIGH) | bit(options.read, Self::LOW);
        let ([i0, i1], [o0, o1]) = (ird.to_be_bytes(), ord.to_be_bytes());
        *out = [i0, i1, o0, o1];
    }
}
