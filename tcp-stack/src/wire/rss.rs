//! Receive-side scaling (RSS): the queue of a port that a segment arrives at.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Toeplitz hash and redirection table of a port that spreads connections over its receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    key: Vec<u8>,
    table: Vec<u16>,
}

impl Rss {
    /// Returns `None` unless the key covers an IPv6 connection (40 bytes) and the length of the table is a power of
    /// two, as they are on every device that scales TCP.
    pub fn new(key: Vec<u8>, table: Vec<u16>) -> Option<Self> {
        (key.len() >= 40 && table.len().is_power_of_two()).then_some(Self { key, table })
    }

    /// Returns the queue that receives segments from `source` to `destination`; `None` if they are of different
    /// families.
    pub fn queue(&self, source: SocketAddr, destination: SocketAddr) -> Option<u16> {
        let hash = self.hash(source, destination)?;
        let mask = self.table.len().wrapping_sub(1);
        self.table.get(hash as usize & mask).copied()
    }

    /// Returns the Toeplitz hash of addresses and ports, in the order in which they stand in the segment.
    fn hash(&self, source: SocketAddr, destination: SocketAddr) -> Option<u32> {
        let mut input = [0; 36];
        let addresses = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                input.get_mut(..4)?.copy_from_slice(&source.octets());
                input.get_mut(4..8)?.copy_from_slice(&destination.octets());
                8
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                input.get_mut(..16)?.copy_from_slice(&source.octets());
                input.get_mut(16..32)?.copy_from_slice(&destination.octets());
                32
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        let ports = input.get_mut(addresses..)?.first_chunk_mut::<4>()?;
        let ([s0, s1], [d0, d1]) = (source.port().to_be_bytes(), destination.port().to_be_bytes());
        *ports = [s0, s1, d0, d1];
        Some(toeplitz(&self.key, input.get(..addresses.wrapping_add(4))?))
    }
}

/// Returns the XOR of the 32-bit windows of `key` that begin at the set bits of `input`.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let Some((first, rest)) = key.split_first_chunk::<4>() else { return 0 };
    let mut window = u32::from_be_bytes(*first);
    let mut following = rest.iter().copied().chain(core::iter::repeat(0));
    let mut hash = 0;
    for (byte, next) in input.iter().zip(&mut following) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the answers that Microsoft publishes for the verification of RSS hash calculations.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn rss() -> Rss {
        Rss::new(KEY.to_vec(), (0..128).map(|i| i % 4).collect()).unwrap()
    }

    fn hash(source: &str, destination: &str) -> Option<u32> {
        rss().hash(source.parse().unwrap(), destination.parse().unwrap())
    }

    #[test]
    fn hashes_are_the_published_ones() {
        assert_eq!(hash("66.9.149.187:2794", "161.142.100.80:1766"), Some(0x51cc_c178));
        assert_eq!(hash("199.92.111.2:14230", "65.69.140.83:4739"), Some(0xc626_b0ea));
        assert_eq!(hash("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766"), Some(0x4020_7d3d));
        assert_eq!(hash("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739"), Some(0xdde5_1bbf));
    }

    #[test]
    fn the_table_names_the_queue() {
        let rss = rss();
        let (source, destination) =
            ("66.9.149.187:2794".parse().unwrap(), "161.142.100.80:1766".parse().unwrap());
        assert_eq!(rss.queue(source, destination), Some(0x78 % 4));
        assert_eq!(rss.queue(source, "[::1]:1".parse().unwrap()), None);
    }

    #[test]
    fn a_table_that_cannot_be_indexed_is_refused() {
        assert_eq!(Rss::new(KEY.to_vec(), Vec::new()), None);
        assert_eq!(Rss::new(KEY.to_vec(), [0; 3].to_vec()), None);
        assert_eq!(Rss::new(KEY.get(..39).unwrap().to_vec(), [0; 2].to_vec()), None);
    }
}
