//! The IPv6 header and its extension headers (RFC 8200).

use super::{IpProtocol, ParseError, truncated};
use core::net::Ipv6Addr;

/// An IPv6 header.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-------+---------------+---------------------------------------+
/// |   6   | traffic class |              flow label               |
/// +-------+---------------+-------+---------------+---------------+
/// |        payload length         |  next header  |   hop limit   |
/// +-------------------------------+---------------+---------------+
/// |                    source address, 16 bytes                   |
/// +---------------------------------------------------------------+
/// |                 destination address, 16 bytes                 |
/// +---------------------------------------------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Address of the sender.
    pub src: Ipv6Addr,
    /// Address of the receiver.
    pub dst: Ipv6Addr,
    /// Upper-layer protocol or extension header that follows.
    pub next_header: IpProtocol,
    /// Differentiated services code point (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Label of the flow, 20 bits.
    pub flow_label: u32,
    /// Hops that the packet may still make.
    pub hop_limit: u8,
}

impl Ipv6Header {
    /// Length of the header, bytes.
    pub const LEN: usize = 40;

    /// Parses a packet; returns the header, and the payload as long as the header says: bytes after it (padding) are
    /// ignored.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (header, rest, payload_len) = Self::parse_fixed(packet)?;
        match rest.get(..payload_len) {
            Some(payload) => Ok((header, payload)),
            None => Err(truncated(Self::LEN.wrapping_add(payload_len), packet.len())),
        }
    }

    /// Parses a truncated packet as an ICMPv6 error quotes it; returns the header, what follows of the packet, and the
    /// packet's full length, bytes.
    pub(super) fn parse_quoted(packet: &[u8]) -> Result<(Self, &[u8], usize), ParseError> {
        let (header, rest, payload_len) = Self::parse_fixed(packet)?;
        Ok((header, rest, payload_len.wrapping_add(Self::LEN)))
    }

    #[inline]
    fn parse_fixed(packet: &[u8]) -> Result<(Self, &[u8], usize), ParseError> {
        let Some((fixed, rest)) = packet.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, packet.len()));
        };
        let [v0, v1, v2, v3, l0, l1, next_header, hop_limit, addresses @ ..] = *fixed;
        let (Some((src, dst)), true) = (addresses.split_first_chunk::<16>(), v0 >> 4 == 6) else {
            return Err(ParseError::Version);
        };
        let Some((dst, _)) = dst.split_first_chunk::<16>() else {
            return Err(truncated(Self::LEN, packet.len()));
        };
        let header = Self {
            src: Ipv6Addr::from_octets(*src),
            dst: Ipv6Addr::from_octets(*dst),
            next_header: IpProtocol(next_header),
            traffic_class: v0 << 4 | v1 >> 4,
            flow_label: u32::from_be_bytes([0, v1 & 0xf, v2, v3]),
            hop_limit,
        };
        Ok((header, rest, usize::from(u16::from_be_bytes([l0, l1]))))
    }

    /// Writes the header for a payload of `payload_len` bytes; a length above 65535 is written as 65535.
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8; Self::LEN]) {
        let [l0, l1] = u16::try_from(payload_len).unwrap_or(u16::MAX).to_be_bytes();
        let [_, f1, f2, f3] = self.flow_label.to_be_bytes();
        let [c0, c1] = [0x60 | self.traffic_class >> 4, self.traffic_class << 4 | f1 & 0xf];
        let Some((fixed, addresses)) = out.split_first_chunk_mut::<8>() else { return };
        let Some((src, addresses)) = addresses.split_first_chunk_mut::<16>() else { return };
        let Some((dst, _)) = addresses.split_first_chunk_mut::<16>() else { return };
        *fixed = [c0, c1, f2, f3, l0, l1, self.next_header.0, self.hop_limit];
        *src = self.src.octets();
        *dst = self.dst.octets();
    }
}

/// A fragment header (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Offset of this fragment's payload in the fragmentable part, in units of 8 bytes, 0..=8191.
    pub offset: u16,
    /// M: more fragments follow.
    pub more_fragments: bool,
    /// Identifies the fragments of one packet.
    pub identification: u32,
}

impl FragmentHeader {
    /// Length of the header, bytes.
    pub const LEN: usize = 8;

    /// Returns true if this is a fragment; otherwise it is an atomic fragment: a whole packet with a fragment header
    /// (RFC 6946).
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.offset != 0
    }
}

/// The upper layer of an IPv6 packet, after its extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer<'a> {
    /// Upper-layer protocol; in a fragment that is not the first, the next header of its fragment header.
    pub protocol: IpProtocol,
    /// Bytes from the upper-layer header on.
    pub payload: &'a [u8],
    /// Fragment header, if the packet has one.
    pub fragment: Option<FragmentHeader>,
}

impl<'a> UpperLayer<'a> {
    /// Limit of extension headers per packet: each of those that RFC 8200 §4.1 recommends, and two more.
    pub const HEADERS_MAX: usize = 8;
    /// Limit of options per header.
    pub const OPTIONS_MAX: usize = 16;

    /// Skips the extension headers of a packet.
    ///
    /// Stops at the first upper-layer protocol, and after the header of a fragment.
    #[inline]
    pub fn find(next_header: IpProtocol, payload: &'a [u8]) -> Result<Self, ParseError> {
        if matches!(next_header, IpProtocol::TCP | IpProtocol::ICMPV6) {
            return Ok(Self { protocol: next_header, payload, fragment: None });
        }
        Self::walk(next_header, payload)
    }

    #[cold]
    #[inline(never)]
    fn walk(first: IpProtocol, payload: &'a [u8]) -> Result<Self, ParseError> {
        let mut at = Self { protocol: first, payload, fragment: None };
        for index in 0..Self::HEADERS_MAX {
            match at.protocol {
                // RFC 8200 §4.1: the hop-by-hop options header "is restricted to appear immediately
                // after an IPv6 header only".
                IpProtocol::HOP_BY_HOP if index != 0 => return Err(ParseError::Extension),
                IpProtocol::HOP_BY_HOP | IpProtocol::DESTINATION_OPTIONS => {
                    let body = at.skip()?;
                    check_options(body)?;
                }
                IpProtocol::ROUTING => {
                    let body = at.skip()?;
                    // RFC 8200 §4.4: an unrecognized type is ignored if segments left is zero, and the
                    // packet is discarded otherwise.
                    if !matches!(body, [_, 0, ..]) {
                        return Err(ParseError::Extension);
                    }
                }
                IpProtocol::FRAGMENT => {
                    at.take_fragment()?;
                    if at.fragment.is_some_and(|fragment| fragment.is_fragment()) {
                        return Ok(at);
                    }
                }
                _ => return Ok(at),
            }
        }
        Err(ParseError::TooManyExtensions)
    }

    /// Skips one header; returns its bytes after the next header and length fields.
    fn skip(&mut self) -> Result<&'a [u8], ParseError> {
        let Some(([next_header, len], _)) = self.payload.split_first_chunk::<2>() else {
            return Err(truncated(8, self.payload.len()));
        };
        // RFC 8200 §4.3: length "in 8-octet units, not including the first 8 octets".
        let len = usize::from(*len).wrapping_add(1).wrapping_mul(8);
        let Some((header, rest)) = self.payload.split_at_checked(len) else {
            return Err(truncated(len, self.payload.len()));
        };
        (self.protocol, self.payload) = (IpProtocol(*next_header), rest);
        Ok(header.get(2..).unwrap_or(&[]))
    }

    fn take_fragment(&mut self) -> Result<(), ParseError> {
        let Some((header, rest)) = self.payload.split_first_chunk::<{ FragmentHeader::LEN }>() else {
            return Err(truncated(FragmentHeader::LEN, self.payload.len()));
        };
        let [next_header, _, o0, o1, i0, i1, i2, i3] = *header;
        let field = u16::from_be_bytes([o0, o1]);
        self.fragment = Some(FragmentHeader {
            offset: field >> 3,
            more_fragments: field & 1 != 0,
            identification: u32::from_be_bytes([i0, i1, i2, i3]),
        });
        (self.protocol, self.payload) = (IpProtocol(next_header), rest);
        Ok(())
    }
}

/// Fails unless all options of a hop-by-hop or destination options header are known or may be skipped.
///
/// RFC 8200 §4.2: the two highest bits of the type say what to do with an option that is not recognized: "00 - skip
/// over this option and continue processing the header"; all others discard the packet.
fn check_options(mut options: &[u8]) -> Result<(), ParseError> {
    const PAD1: u8 = 0;
    for _ in 0..UpperLayer::OPTIONS_MAX {
        let Some((&kind, rest)) = options.split_first() else { return Ok(()) };
        if kind == PAD1 {
            options = rest;
            continue;
        }
        let Some((&len, rest)) = rest.split_first() else { return Err(ParseError::Extension) };
        let Some(rest) = rest.get(usize::from(len)..) else { return Err(ParseError::Extension) };
        if kind & 0xc0 != 0 {
            return Err(ParseError::Extension);
        }
        options = rest;
    }
    if options.is_empty() { Ok(()) } else { Err(ParseError::TooManyExtensions) }
}
