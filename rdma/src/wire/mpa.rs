//! Frames of the MPA startup phase (RFC 5044 §7.1.1, RFC 6581 §6 and §9).

use super::{ParseError, truncated};
use core::fmt;

/// Length in bytes of the longest private data. RFC 5044 §7.1.1: "The Private Data field MUST be between 0 and 512
/// octets". RFC 6581 counts its [`ConnectionData`] as part of it.
pub const PRIVATE_DATA_MAX: usize = 512;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;

/// Kind of frame, which determines its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// MPA Request: the initiator's first bytes.
    Request,
    /// MPA Reply: the responder's answer.
    Reply,
}

impl FrameKind {
    /// Returns the sixteen bytes that open the frame (RFC 5044 §7.1.1).
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
    /// Request or Reply, as the key states.
    pub kind: FrameKind,
    /// M: the sender asks for markers in the stream that it receives.
    pub markers: bool,
    /// C: the sender asks for CRCs.
    pub crc: bool,
    /// R: the responder rejects the connection; no meaning in a Request.
    pub reject: bool,
    /// S: the private data begins with [`ConnectionData`]; no meaning below revision 2.
    pub enhanced: bool,
    /// MPA revision of the sender.
    pub revision: u8,
    /// PD_Length: bytes of private data after this header, [`ConnectionData`] included.
    pub private_data_len: u16,
}

impl FrameHeader {
    /// Length in bytes on the wire.
    pub const LEN: usize = 20;

    /// Parses the header at the start of `bytes`, and returns it with the bytes after it.
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

    /// Writes the header to `out`.
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

/// Depth of a queue of RDMA Read Requests: IRD or ORD, 14 bits (RFC 6581 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadDepth(u16);

impl ReadDepth {
    /// RFC 6581 §9.1: "An all ones value (0x3FFF) indicates that automatic negotiation of the IRD or ORD is
    /// not desired".
    pub const NOT_NEGOTIATED: Self = Self(0x3FFF);
    /// Maximum depth that can be negotiated.
    pub const MAX: Self = Self(0x3FFE);

    /// Returns a depth of `requests`, limited to [`Self::MAX`].
    #[inline]
    #[must_use]
    pub const fn new(requests: u16) -> Self {
        if requests > Self::MAX.0 { Self::MAX } else { Self(requests) }
    }

    /// Returns the fourteen bits on the wire.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the number of requests; `None` if the sender leaves it to the ULP.
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

/// Messages that may serve as the ready-to-receive indication (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RtrOptions {
    /// B: an empty Send.
    pub send: bool,
    /// C: an empty RDMA Write.
    pub write: bool,
    /// D: an empty RDMA Read.
    pub read: bool,
}

impl RtrOptions {
    /// Returns the options that both sets contain.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// Returns true if the set is empty.
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
    /// `Some` if A selects the peer-to-peer model; then B, C and D. RFC 6581 §9.2: "if Control Flag A is set to 0,
    /// then Control Flags B, C, and D MUST be ignored".
    pub rtr: Option<RtrOptions>,
    /// IRD of the sender.
    pub ird: ReadDepth,
    /// ORD of the sender.
    pub ord: ReadDepth,
}

impl ConnectionData {
    /// Length in bytes on the wire.
    pub const LEN: usize = 4;

    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;
    const DEPTH: u16 = 0x3FFF;

    /// Parses the data at the start of the private data, and returns it with the ULP's own bytes after it.
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

    /// Writes the data to `out`.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let options = self.rtr.unwrap_or_default();
        let bit = |set: bool, bit: u16| if set { bit } else { 0 };
        let ird = self.ird.0 | bit(self.rtr.is_some(), Self::HIGH) | bit(options.send, Self::LOW);
        let ord = self.ord.0 | bit(options.write, Self::HIGH) | bit(options.read, Self::LOW);
        let ([i0, i1], [o0, o1]) = (ird.to_be_bytes(), ord.to_be_bytes());
        *out = [i0, i1, o0, o1];
    }
}
