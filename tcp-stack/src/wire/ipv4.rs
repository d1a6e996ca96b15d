//! The IPv4 header (RFC 791 §3.1).

use super::{IpProtocol, ParseError, Sum, truncated};
use core::net::Ipv4Addr;

/// An IPv4 header; its options are not read.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-------+-------+---------------+-------------------------------+
/// |   4   |  IHL  |   DSCP   |ECN |         total length          |
/// +-------+-------+---------------+-+-+-+-------------------------+
/// |         identification        |0|D|M|    fragment offset      |
/// +---------------+---------------+-+-+-+-------------------------+
/// |      TTL      |    protocol   |        header checksum        |
/// +---------------+---------------+-------------------------------+
/// |                        source address                         |
/// +---------------------------------------------------------------+
/// |                      destination address                      |
/// +---------------------------------------------------------------+
/// |                    options, up to 40 bytes                    |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Address of the sender.
    pub src: Ipv4Addr,
    /// Address of the receiver.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Differentiated services code point (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Time to live: hops that the packet may still make.
    pub ttl: u8,
    /// Identifies the fragments of one packet.
    pub identification: u16,
    /// DF: must not be fragmented.
    pub dont_fragment: bool,
    /// MF: more fragments follow.
    pub more_fragments: bool,
    /// Offset of this fragment's payload within that of the whole packet, in units of 8 bytes, 0..=8191.
    pub fragment_offset: u16,
}

impl Ipv4Header {
    /// Length without options, bytes.
    pub const LEN: usize = 20;
    /// Length with the most options possible, bytes.
    pub const LEN_MAX: usize = 60;
    const DONT_FRAGMENT: u16 = 0x4000;
    const MORE_FRAGMENTS: u16 = 0x2000;

    /// Returns the header of an atomic datagram: whole, not to be fragmented, and so with any identification (RFC 6864
    /// §4.1: "Originating sources MAY set the IPv4 ID field of atomic datagrams to any value"). Its TTL is 64, its
    /// traffic class 0.
    pub const fn atomic(src: Ipv4Addr, dst: Ipv4Addr, protocol: IpProtocol) -> Self {
        Self {
            src,
            dst,
            protocol,
            traffic_class: 0,
            ttl: 64,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
        }
    }

    /// Parses a packet. Returns the header, the header's bytes with options (which [`Self::is_checksum_valid`]
    /// verifies), and the payload without the padding of Ethernet.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8], &[u8]), ParseError> {
        let (header, header_len, total_len) = Self::parse_fixed(packet)?;
        let Some(whole) = packet.get(..total_len) else {
            return Err(truncated(total_len, packet.len()));
        };
        let Some((header_bytes, payload)) = whole.split_at_checked(header_len) else {
            return Err(ParseError::Length);
        };
        Ok((header, header_bytes, payload))
    }

    /// Parses a truncated packet as an ICMP error quotes it; returns the header, what follows of the packet, and the
    /// packet's full length, bytes.
    pub(super) fn parse_quoted(packet: &[u8]) -> Result<(Self, &[u8], usize), ParseError> {
        let (header, header_len, total_len) = Self::parse_fixed(packet)?;
        match packet.get(header_len..) {
            Some(payload) => Ok((header, payload, total_len)),
            None => Err(truncated(header_len, packet.len())),
        }
    }

    #[inline]
    fn parse_fixed(packet: &[u8]) -> Result<(Self, usize, usize), ParseError> {
        let Some((fixed, _)) = packet.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, packet.len()));
        };
        let [version, traffic_class, l0, l1, i0, i1, f0, f1, ttl, protocol, _, _, addresses @ ..] = *fixed;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        if version >> 4 != 4 {
            return Err(ParseError::Version);
        }
        let header_len = usize::from(version & 0xf).wrapping_mul(4);
        let total_len = usize::from(u16::from_be_bytes([l0, l1]));
        if header_len < Self::LEN {
            return Err(ParseError::Length);
        }
        let fragment = u16::from_be_bytes([f0, f1]);
        let header = Self {
            src: Ipv4Addr::new(s0, s1, s2, s3),
            dst: Ipv4Addr::new(d0, d1, d2, d3),
            protocol: IpProtocol(protocol),
            traffic_class,
            ttl,
            identification: u16::from_be_bytes([i0, i1]),
            dont_fragment: fragment & Self::DONT_FRAGMENT != 0,
            more_fragments: fragment & Self::MORE_FRAGMENTS != 0,
            fragment_offset: fragment & 0x1fff,
        };
        Ok((header, header_len, total_len))
    }

    /// Returns true if the header's bytes, options included, have the correct checksum.
    #[inline]
    pub fn is_checksum_valid(header_bytes: &[u8]) -> bool {
        Sum::of(header_bytes).is_valid()
    }

    /// Returns true if this is a fragment rather than a whole packet.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Writes the header, without options, for a payload of `payload_len` bytes. If `checksum` is
    /// false, writes 0 and leaves the checksum to the port. A `payload_len` above 65515 gives a total length of 65535.
    #[inline]
    pub fn emit(&self, payload_len: usize, checksum: bool, out: &mut [u8; Self::LEN]) {
        let total_len = u16::try_from(payload_len.saturating_add(Self::LEN)).unwrap_or(u16::MAX);
        let [l0, l1] = total_len.to_be_bytes();
        let [i0, i1] = self.identification.to_be_bytes();
        let mut fragment = self.fragment_offset & 0x1fff;
        if self.dont_fragment {
            fragment |= Self::DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= Self::MORE_FRAGMENTS;
        }
        let [f0, f1] = fragment.to_be_bytes();
        let [s0, s1, s2, s3] = self.src.octets();
        let [d0, d1, d2, d3] = self.dst.octets();
        let (ttl, protocol) = (self.ttl, self.protocol.0);
        let header = |c0, c1| {
            let class = self.traffic_class;
            [0x45, class, l0, l1, i0, i1, f0, f1, ttl, protocol, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]
        };
        *out = header(0, 0);
        if checksum {
            let [c0, c1] = Sum::of(out).checksum().to_be_bytes();
            *out = header(c0, c1);
        }
    }
}
