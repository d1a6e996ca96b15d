//! The Ethernet II header, with an optional IEEE 802.1Q tag.

use super::{MacAddr, ParseError, truncated};

/// The protocol that an Ethernet frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// EtherType of IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// EtherType of ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// An IEEE 802.1Q tag follows.
    pub const VLAN: Self = Self(0x8100);
    /// EtherType of IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

/// An Ethernet header.
///
/// ```text
///  0               6              12     14
/// +---------------+---------------+------+----------
/// |  destination  |    source     | type | payload
/// +---------------+---------------+------+----------
///                                 |      14     16     18
///                                 +------+------+------+----------
///               with a tag:       | 8100 | TCI  | type | payload
///                                 +------+------+------+----------
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Link address of the receiver.
    pub dst: MacAddr,
    /// Link address of the sender.
    pub src: MacAddr,
    /// The 802.1Q tag's control information: priority (3 bits), drop eligible (1), VLAN (12).
    pub tci: Option<u16>,
    /// Protocol of the payload.
    pub ethertype: EtherType,
}

impl EthernetHeader {
    /// Length without a tag, bytes.
    pub const LEN: usize = 14;
    /// Length with a tag, bytes.
    pub const LEN_TAGGED: usize = 18;

    /// Parses a frame; returns the header and the payload.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((fixed, payload)) = frame.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, frame.len()));
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *fixed;
        let header = Self {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            tci: None,
            ethertype: EtherType(u16::from_be_bytes([t0, t1])),
        };
        if header.ethertype != EtherType::VLAN {
            return Ok((header, payload));
        }
        let Some(([c0, c1, t0, t1], payload)) = payload.split_first_chunk::<4>() else {
            return Err(truncated(Self::LEN_TAGGED, frame.len()));
        };
        let tci = Some(u16::from_be_bytes([*c0, *c1]));
        Ok((Self { tci, ethertype: EtherType(u16::from_be_bytes([*t0, *t1])), ..header }, payload))
    }

    /// Returns the VLAN of the frame; `None` without a tag, and with a tag of VLAN 0, which carries a priority only.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.tci.map(|tci| tci & 0x0fff).filter(|id| *id != 0)
    }

    /// Returns the length of this header, bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        if self.tci.is_some() { Self::LEN_TAGGED } else { Self::LEN }
    }

    /// Writes the header to the front of `out`; returns `false`, and writes nothing, if `out` is shorter than
    /// [`Self::header_len`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> bool {
        let MacAddr([d0, d1, d2, d3, d4, d5]) = self.dst;
        let MacAddr([s0, s1, s2, s3, s4, s5]) = self.src;
        let [t0, t1] = self.ethertype.0.to_be_bytes();
        match self.tci {
            None => {
                let Some(out) = out.first_chunk_mut::<{ Self::LEN }>() else { return false };
                *out = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1];
            }
            Some(tci) => {
                let Some(out) = out.first_chunk_mut::<{ Self::LEN_TAGGED }>() else { return false };
                let [v0, v1] = EtherType::VLAN.0.to_be_bytes();
                let [c0, c1] = tci.to_be_bytes();
                *out = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, v0, v1, c0, c1, t0, t1];
            }
        }
        true
    }
}
