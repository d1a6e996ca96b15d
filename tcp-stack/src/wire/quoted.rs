//! The TCP segment that an ICMP error quotes.

use super::{IpProtocol, Ipv4Header, Ipv6Header, UpperLayer};
use crate::seq::SeqNum;
use core::net::{IpAddr, SocketAddr};

/// The TCP segment that provoked an ICMP error: the first eight bytes of its header, which is all that every router
/// quotes (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTcp {
    /// Source of the segment: us, if the error is honest.
    pub src: SocketAddr,
    /// Destination of the segment.
    pub dst: SocketAddr,
    /// Sequence number, by which the error is validated (RFC 5927 §4.1).
    pub seq: SeqNum,
    /// Length of its packet by the quoted IP header, bytes.
    pub packet_len: u32,
}

impl QuotedTcp {
    /// Returns the segment in a truncated IPv4 packet.
    pub(super) fn in_ipv4(packet: &[u8]) -> Option<Self> {
        let (header, payload, packet_len) = Ipv4Header::parse_quoted(packet).ok()?;
        if header.protocol != IpProtocol::TCP || header.fragment_offset != 0 {
            return None;
        }
        Self::in_segment(header.src.into(), header.dst.into(), payload, packet_len)
    }

    /// Returns the segment in a truncated IPv6 packet.
    pub(super) fn in_ipv6(packet: &[u8]) -> Option<Self> {
        let (header, payload, packet_len) = Ipv6Header::parse_quoted(packet).ok()?;
        let upper = UpperLayer::find(header.next_header, payload).ok()?;
        let later_fragment = upper.fragment.is_some_and(|fragment| fragment.offset != 0);
        if upper.protocol != IpProtocol::TCP || later_fragment {
            return None;
        }
        Self::in_segment(header.src.into(), header.dst.into(), upper.payload, packet_len)
    }

    fn in_segment(src: IpAddr, dst: IpAddr, segment: &[u8], packet_len: usize) -> Option<Self> {
        let &[s0, s1, d0, d1, q0, q1, q2, q3] = segment.first_chunk::<8>()?;
        Some(Self {
            src: SocketAddr::new(src, u16::from_be_bytes([s0, s1])),
            dst: SocketAddr::new(dst, u16::from_be_bytes([d0, d1])),
            seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
            packet_len: u32::try_from(packet_len).ok()?,
        })
    }
}
