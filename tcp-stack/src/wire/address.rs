//! Link and network addresses, and their derivations from one another.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

/// An IEEE 802 link address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address, of every station on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The all-zero address, of no station.
    pub const UNSPECIFIED: Self = Self([0; 6]);

    /// Returns true for a group address: multicast or broadcast.
    #[inline]
    pub const fn is_group(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }

    /// Returns true for the address of one station, neither a group nor all zero.
    #[inline]
    pub fn is_unicast(self) -> bool {
        !self.is_group() && self != Self::UNSPECIFIED
    }

    /// Returns the link address of an IPv6 multicast group.
    ///
    /// RFC 2464 §7: 33-33, and the last four bytes of the group.
    #[inline]
    pub const fn of_ipv6_multicast(group: Ipv6Addr) -> Self {
        let [.., a, b, c, d] = group.octets();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Returns the link-local IPv6 address derived from this link address (RFC 4862 §5.3, modified EUI-64).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let id = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let [i0, i1, i2, i3, i4, i5, i6, i7] = id;
        Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, i0, i1, i2, i3, i4, i5, i6, i7])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the solicited-node multicast group of an address.
///
/// RFC 4291 §2.7.1: the prefix ff02::1:ff00:0/104, and the low 24 bits of the address.
#[inline]
pub(crate) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from_octets([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// An IPv4 address of ours with the prefix length of its link, 0..=32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Cidr {
    address: Ipv4Addr,
    prefix_len: u8,
}

impl Ipv4Cidr {
    /// Returns an address with its prefix length, or `None` for a length above 32.
    pub const fn new(address: Ipv4Addr, prefix_len: u8) -> Option<Self> {
        if prefix_len > 32 { None } else { Some(Self { address, prefix_len }) }
    }

    /// Returns the address without its prefix.
    #[inline]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the prefix length, bits.
    #[inline]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    const fn mask(&self) -> u32 {
        match u32::MAX.checked_shr(self.prefix_len as u32) {
            Some(host) => !host,
            None => u32::MAX,
        }
    }

    /// Returns true if `other` is on the same link.
    #[inline]
    pub const fn contains(&self, other: Ipv4Addr) -> bool {
        (self.address.to_bits() ^ other.to_bits()) & self.mask() == 0
    }

    /// Returns the directed broadcast address of the link, or `None` for prefixes of 31 (RFC 3021) and 32 bits.
    #[inline]
    pub const fn broadcast(&self) -> Option<Ipv4Addr> {
        if self.prefix_len >= 31 {
            return None;
        }
        Some(Ipv4Addr::from_bits(self.address.to_bits() | !self.mask()))
    }

    /// Returns the network number of the link, which is also an obsolete form of its broadcast address (RFC 1122
    /// §3.3.6), or `None` for prefixes of 31 and 32 bits.
    #[inline]
    pub const fn network(&self) -> Option<Ipv4Addr> {
        if self.prefix_len >= 31 {
            return None;
        }
        Some(Ipv4Addr::from_bits(self.address.to_bits() & self.mask()))
    }
}

/// An IPv6 address of ours with the prefix length of its link, 0..=128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv6Cidr {
    address: Ipv6Addr,
    prefix_len: u8,
}

impl Ipv6Cidr {
    /// Returns an address with its prefix length, or `None` for a length above 128.
    pub const fn new(address: Ipv6Addr, prefix_len: u8) -> Option<Self> {
        if prefix_len > 128 { None } else { Some(Self { address, prefix_len }) }
    }

    /// Returns the address without its prefix.
    #[inline]
    pub const fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// Returns the prefix length, bits.
    #[inline]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Returns true if `other` is on the same link.
    #[inline]
    pub const fn contains(&self, other: Ipv6Addr) -> bool {
        let mask = match u128::MAX.checked_shr(self.prefix_len as u32) {
            Some(host) => !host,
            None => u128::MAX,
        };
        (self.address.to_bits() ^ other.to_bits()) & mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_prefixes() {
        let cidr = Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, 2), 24).unwrap();
        assert!(cidr.contains(Ipv4Addr::new(10, 77, 0, 255)) && !cidr.contains(Ipv4Addr::new(10, 77, 1, 2)));
        assert_eq!(cidr.broadcast(), Some(Ipv4Addr::new(10, 77, 0, 255)));
        assert_eq!(cidr.network(), Some(Ipv4Addr::new(10, 77, 0, 0)));
        let all = Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, 2), 0).unwrap();
        assert!(all.contains(Ipv4Addr::new(192, 0, 2, 1)));
        let host = Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, 2), 32).unwrap();
        assert!(host.contains(host.address()) && !host.contains(Ipv4Addr::new(10, 77, 0, 3)));
        let pair = Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, 2), 31).unwrap();
        assert!(pair.contains(Ipv4Addr::new(10, 77, 0, 3)) && !pair.contains(Ipv4Addr::new(10, 77, 0, 1)));
        assert_eq!((pair.broadcast(), pair.network(), host.broadcast()), (None, None, None));
        assert_eq!(Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 33), None);
    }

    #[test]
    fn ipv6_prefixes() {
        let cidr = Ipv6Cidr::new("fd77::2".parse().unwrap(), 64).unwrap();
        assert!(cidr.contains("fd77::ffff:0:0:1".parse().unwrap()));
        assert!(!cidr.contains("fd77:0:0:1::2".parse().unwrap()));
        let host = Ipv6Cidr::new("fd77::2".parse().unwrap(), 128).unwrap();
        assert!(host.contains(host.address()) && !host.contains("fd77::3".parse().unwrap()));
        assert!(Ipv6Cidr::new(host.address(), 0).unwrap().contains("2001:db8::".parse().unwrap()));
        assert_eq!(Ipv6Cidr::new(Ipv6Addr::UNSPECIFIED, 129), None);
    }

    #[test]
    fn derived_addresses() {
        // RFC 4291 §2.7.1's own example, and RFC 2464 §5's.
        let address: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        assert_eq!(solicited_node(address), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        let mac = MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(mac.link_local(), "fe80::3656:78ff:fe9a:bcde".parse::<Ipv6Addr>().unwrap());
        assert_eq!(
            MacAddr::of_ipv6_multicast(solicited_node(address)),
            MacAddr([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c])
        );
        assert!(MacAddr::BROADCAST.is_group() && !mac.is_group());
        assert!(mac.is_unicast() && !MacAddr::UNSPECIFIED.is_unicast());
        assert_eq!(std::format!("{mac}"), "34:56:78:9a:bc:de");
    }
}
