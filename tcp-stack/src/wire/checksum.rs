//! The Internet checksum (RFC 1071).

use super::IpProtocol;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A ones' complement sum of some bytes.
///
/// Parts may be summed separately and joined ([`Sum::join`]) in any order, if each part begins at an even offset of the
/// whole (RFC 1071 §2 (A): the sum is commutative and associative). The sum is kept in the machine's byte order (§2
/// (B): it does not depend on it) and swapped once, at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of some bytes; an odd last byte is followed by a zero (RFC 1071 §4.1).
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        // Two sums of 32-bit halves: neither can overflow below 2^32 words. The sum of the low halves is the sum of the
        // whole words, modulo 2^64, less that of the high halves: the loop needs no mask, so the compiler vectorizes
        // it.
        let (words, tail) = bytes.as_chunks::<8>();
        let mut whole = 0_u64;
        let mut high = 0_u64;
        for word in words {
            let word = u64::from_ne_bytes(*word);
            whole = whole.wrapping_add(word);
            high = high.wrapping_add(word >> 32);
        }
        let low = whole.wrapping_sub(high << 32);
        let mut last = [0_u8; 8];
        for (to, from) in last.iter_mut().zip(tail) {
            *to = *from;
        }
        let last = u64::from_ne_bytes(last);
        Self(fold32(low)).join(Self(fold32(high))).join(Self(fold32(last)))
    }

    /// Returns the sum of two parts, each of which begins at an even offset of the whole.
    #[inline]
    #[must_use]
    pub const fn join(self, other: Self) -> Self {
        // Both are below 2^33 (`fold32`), and so is their folded sum.
        Self(fold32(self.0.wrapping_add(other.0)))
    }

    /// Returns the sum with one more 16-bit field.
    #[inline]
    #[must_use]
    pub const fn with(self, field: u16) -> Self {
        self.join(Self(field.to_be() as u64))
    }

    /// Returns the sum with one more 32-bit field.
    #[inline]
    #[must_use]
    pub const fn with_word(self, field: u32) -> Self {
        Self(fold32(self.0.wrapping_add(field.to_be() as u64)))
    }

    /// Returns the sum of TCP's or ICMPv6's pseudo-header (RFC 9293 §3.1; RFC 8200 §8.1) over `len` bytes of header and
    /// payload. Addresses of different families give an IPv6 sum with a mapped address.
    #[inline]
    pub fn pseudo_header(local: IpAddr, remote: IpAddr, protocol: IpProtocol, len: usize) -> Self {
        let addresses = match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Self::of_ipv4(local).join(Self::of_ipv4(remote)),
            (local, remote) => Self::of_ipv6(local).join(Self::of_ipv6(remote)),
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        addresses.join(Self(fold32(u64::from(len.to_be())))).with(u16::from(protocol.0))
    }

    #[inline]
    fn of_ipv4(address: Ipv4Addr) -> Self {
        Self(fold32(u64::from(u32::from_ne_bytes(address.octets()))))
    }

    #[inline]
    fn of_ipv6(address: IpAddr) -> Self {
        let address: Ipv6Addr = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self::of(&address.octets())
    }

    /// Returns the sum as a 16-bit number: the value that a port with checksum offload expects in the field if this is
    /// the pseudo-header's sum, and 0xffff over bytes whose checksum is correct.
    #[inline]
    pub const fn fold(self) -> u16 {
        let sum = fold16(self.0);
        u16::from_be(sum)
    }

    /// Returns the checksum: the complement of the sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns true if the summed bytes, which contain their own checksum, are correct.
    ///
    /// The sum is then 0xffff; it cannot be zero, since only zero bytes sum to zero.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// Folds a sum below 2^33.
#[inline]
const fn fold32(sum: u64) -> u64 {
    (sum & 0xffff_ffff).wrapping_add(sum >> 32)
}

/// Folds to 16 bits, with the last carry in.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the value was folded below 2^16")]
const fn fold16(sum: u64) -> u16 {
    let sum = fold32(fold32(sum));
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// RFC 1071 §4.1, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    #[test]
    fn example_of_rfc_1071() {
        // §3: 00 01 f2 03 f4 f5 f6 f7 sum to ddf2.
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum.fold(), sum.checksum()), (0xddf2, !0xddf2));
    }

    #[test]
    fn all_ones_stay_ones() {
        for len in [2, 64, 4096, 65_536] {
            assert_eq!(Sum::of(&std::vec![0xff; len]).fold(), 0xffff, "{len}");
            assert!(!Sum::of(&std::vec![0; len]).is_valid());
        }
    }

    #[test]
    fn pseudo_headers_are_their_bytes() {
        let (a, b) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 7));
        let mut bytes = Vec::new();
        bytes.extend(a.octets());
        bytes.extend(b.octets());
        bytes.extend([0, 6, 0x12, 0x34]);
        let sum = Sum::pseudo_header(a.into(), b.into(), IpProtocol::TCP, 0x1234);
        assert_eq!(sum.fold(), slow(&bytes));
        let (a, b): (Ipv6Addr, Ipv6Addr) = ("2001:db8::1".parse().unwrap(), "fe80::ffff".parse().unwrap());
        bytes.clear();
        bytes.extend(a.octets());
        bytes.extend(b.octets());
        bytes.extend([0, 1, 0x12, 0x34, 0, 0, 0, 58]);
        let sum = Sum::pseudo_header(a.into(), b.into(), IpProtocol::ICMPV6, 0x1_1234);
        assert_eq!(sum.fold(), slow(&bytes));
    }

    proptest! {
        #[test]
        fn sums_match_the_plain_algorithm(bytes: Vec<u8>, field: u16) {
            prop_assert_eq!(Sum::of(&bytes).fold(), slow(&bytes));
            let mut more = bytes.clone();
            if more.len() % 2 == 1 {
                more.push(0);
            }
            more.extend(field.to_be_bytes());
            prop_assert_eq!(Sum::of(&bytes).with(field).fold(), slow(&more));
        }

        #[test]
        fn a_word_adds_as_its_two_fields(bytes: Vec<u8>, high: u16, low: u16) {
            let word = u32::from(high) << 16 | u32::from(low);
            let sum = Sum::of(&bytes);
            prop_assert_eq!(sum.with_word(word).fold(), sum.with(high).with(low).fold());
        }

        #[test]
        fn parts_join(head in proptest::collection::vec(any::<u16>(), 0..40), tail: Vec<u8>) {
            let head: Vec<u8> = head.into_iter().flat_map(u16::to_be_bytes).collect();
            let whole: Vec<u8> = head.iter().chain(&tail).copied().collect();
            prop_assert_eq!(Sum::of(&head).join(Sum::of(&tail)).fold(), slow(&whole));
            let sum = Sum::of(&whole);
            prop_assert!(sum.join(Sum::ZERO.with(sum.checksum())).is_valid());
        }
    }
}
