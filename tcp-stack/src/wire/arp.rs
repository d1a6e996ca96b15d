//! Address resolution (RFC 826), for IPv4 over Ethernet.

use super::{MacAddr, ParseError, truncated};
use core::net::Ipv4Addr;

/// The operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Request: asks for the link address of the target.
    Request,
    /// Reply: gives the link address of the sender.
    Reply,
    /// Any other operation code.
    Unknown(u16),
}

impl ArpOperation {
    const fn from_wire(value: u16) -> Self {
        match value {
            1 => Self::Request,
            2 => Self::Reply,
            other => Self::Unknown(other),
        }
    }

    const fn to_wire(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Reply => 2,
            Self::Unknown(other) => other,
        }
    }
}

/// An ARP packet.
///
/// ```text
///  0      2      4    5    6      8              14         18             24        28
/// +------+------+----+----+------+---------------+----------+--------------+----------+
/// |  1   | 0800 | 6  | 4  |  op  |  sender MAC   |sender IP |  target MAC  |target IP |
/// +------+------+----+----+------+---------------+----------+--------------+----------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Operation: request or reply.
    pub operation: ArpOperation,
    /// Link address of the sender.
    pub sender_mac: MacAddr,
    /// Network address of the sender; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Link address of the target; meaningless in a request.
    pub target_mac: MacAddr,
    /// Network address of the target.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Length of a packet, bytes.
    pub const LEN: usize = 28;
    /// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
    const PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];

    /// Parses a packet; bytes after it (padding) are ignored.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let Some((fixed, _)) = packet.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, packet.len()));
        };
        #[rustfmt::skip]
        let [
            p0, p1, p2, p3, p4, p5, o0, o1,
            s0, s1, s2, s3, s4, s5, a0, a1, a2, a3,
            t0, t1, t2, t3, t4, t5, b0, b1, b2, b3,
        ] = *fixed;
        if [p0, p1, p2, p3, p4, p5] != Self::PREFIX {
            return Err(ParseError::Version);
        }
        Ok(Self {
            operation: ArpOperation::from_wire(u16::from_be_bytes([o0, o1])),
            sender_mac: MacAddr([s0, s1, s2, s3, s4, s5]),
            sender_ip: Ipv4Addr::new(a0, a1, a2, a3),
            target_mac: MacAddr([t0, t1, t2, t3, t4, t5]),
            target_ip: Ipv4Addr::new(b0, b1, b2, b3),
        })
    }

    /// Writes the packet to `out`.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let [p0, p1, p2, p3, p4, p5] = Self::PREFIX;
        let [o0, o1] = self.operation.to_wire().to_be_bytes();
        let MacAddr([s0, s1, s2, s3, s4, s5]) = self.sender_mac;
        let [a0, a1, a2, a3] = self.sender_ip.octets();
        let MacAddr([t0, t1, t2, t3, t4, t5]) = self.target_mac;
        let [b0, b1, b2, b3] = self.target_ip.octets();
        #[rustfmt::skip]
        let bytes = [
            p0, p1, p2, p3, p4, p5, o0, o1,
            s0, s1, s2, s3, s4, s5, a0, a1, a2, a3,
            t0, t1, t2, t3, t4, t5, b0, b1, b2, b3,
        ];
        *out = bytes;
    }
}
