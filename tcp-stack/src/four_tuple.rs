//! The addresses and ports of a flow, in 36 bytes, and their keyed hash.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use siphasher::sip::SipHasher24;

/// The four-tuple of a flow: our address, the peer's address, our port, the peer's port, in network byte order as
/// the keyed functions take it. IPv4 addresses are stored as IPv4-mapped ones (RFC 4291 §2.5.5.2). Such addresses
/// never appear on the wire, so our own address determines the family.
#[derive(Clone, Copy)]
pub(crate) struct FourTuple([[u8; 4]; 9]);

type Words = [[u8; 4]; 4];

/// The first 96 bits of an IPv4-mapped address.
const MAPPED: [[u8; 4]; 3] = [[0; 4], [0; 4], [0, 0, 0xff, 0xff]];

#[inline]
const fn words(ip: IpAddr) -> Words {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c] = MAPPED;
            [a, b, c, ip.octets()]
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ip.octets();
            [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]]
        }
    }
}

#[inline]
const fn address(words: Words, is_ipv4: bool) -> IpAddr {
    if is_ipv4 {
        let [.., bytes] = words;
        return IpAddr::V4(Ipv4Addr::from_octets(bytes));
    }
    let [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]] = words;
    IpAddr::V6(Ipv6Addr::from_octets([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]))
}

impl PartialEq for FourTuple {
    /// Compares in three words, not byte by byte: every segment is compared.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let apart = |a: &[u8; 16], b: &[u8; 16]| u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b);
        let (a, b) = (self.0.as_flattened(), other.0.as_flattened());
        let (Some((a0, a)), Some((b0, b))) = (a.split_first_chunk(), b.split_first_chunk()) else {
            return false;
        };
        let (Some((a1, a)), Some((b1, b))) = (a.split_first_chunk(), b.split_first_chunk()) else {
            return false;
        };
        (apart(a0, b0) | apart(a1, b1)) == 0 && a == b
    }
}

impl Eq for FourTuple {}

impl FourTuple {
    #[inline]
    pub(crate) const fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (words(local.ip()), words(remote.ip()));
        let ([p0, p1], [q0, q1]) = (local.port().to_be_bytes(), remote.port().to_be_bytes());
        Self([a, b, c, d, e, f, g, h, [p0, p1, q0, q1]])
    }

    /// Makes the four-tuple of an IPv4 flow from its bytes.
    #[inline]
    pub(crate) const fn of_ipv4(local: [u8; 4], remote: [u8; 4], ports: [u8; 4]) -> Self {
        let [a, b, c] = MAPPED;
        Self([a, b, c, local, a, b, c, remote, ports])
    }

    /// Returns both addresses, ours first, if the flow is an IPv4 flow.
    #[inline]
    pub(crate) fn ipv4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let [_, _, _, local, _, _, _, remote, _] = self.0;
        self.is_ipv4().then_some((Ipv4Addr::from_octets(local), Ipv4Addr::from_octets(remote)))
    }

    /// True if the flow is an IPv4 flow.
    #[inline]
    pub(crate) fn is_ipv4(&self) -> bool {
        let ([a, b, c, ..], [x, y, z]) = (self.0, MAPPED);
        a == x && b == y && c == z
    }

    /// True if both ends have the same address, which is ours.
    #[inline]
    pub(crate) fn is_looped(&self) -> bool {
        let [a, b, c, d, e, f, g, h, _] = self.0;
        [d, c, b, a] == [h, g, f, e]
    }

    /// Returns our address and port.
    #[inline]
    pub(crate) fn local(&self) -> SocketAddr {
        let [a, b, c, d, .., [p0, p1, _, _]] = self.0;
        SocketAddr::new(address([a, b, c, d], self.is_ipv4()), u16::from_be_bytes([p0, p1]))
    }

    /// Returns the peer's address and port.
    #[inline]
    pub(crate) fn remote(&self) -> SocketAddr {
        let [_, _, _, _, e, f, g, h, [_, _, q0, q1]] = self.0;
        SocketAddr::new(address([e, f, g, h], self.is_ipv4()), u16::from_be_bytes([q0, q1]))
    }

    /// Returns all 36 bytes: the input of the keyed functions.
    #[inline]
    pub(crate) const fn bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Returns the nine words with two more appended.
    #[inline]
    pub(crate) const fn with(&self, more: [[u8; 4]; 2]) -> [[u8; 4]; 11] {
        let ([a, b, c, d, e, f, g, h, i], [j, k]) = (self.0, more);
        [a, b, c, d, e, f, g, h, i, j, k]
    }

    /// Calls `use_bytes` with the bytes in which flows of one family differ: without the prefix that all IPv4 flows
    /// share.
    pub(crate) fn distinct_bytes<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        if self.is_ipv4() {
            let [_, _, _, local, _, _, _, remote, ports] = self.0;
            return use_bytes([local, remote, ports].as_flattened());
        }
        use_bytes(self.bytes())
    }

    /// Number of 32-bit words of a four-tuple.
    pub(crate) const WORDS: usize = 9;

    /// Returns the four-tuple as numbers, in the machine's byte order.
    #[inline]
    pub(crate) fn words(&self) -> [u32; Self::WORDS] {
        self.0.map(u32::from_ne_bytes)
    }
}

impl core::fmt::Debug for FourTuple {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} <- {}", self.local(), self.remote())
    }
}

/// The keyed hash of a flow.
///
/// Every segment that does not follow one of its own flow costs a lookup, and peers choose some of the addresses and
/// ports: without the key, nobody can make flows collide. Multilinear hashing (D. Lemire and O. Kaser, "Strongly
/// universal string hashing is fast", 2014) guarantees this for one multiplication per word: the hashes of any two
/// different flows are two independent random numbers. The hash must stay secret: it serves the flow table alone, and
/// nothing that is sent depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowHash {
    first: u64,
    /// One key per word of a four-tuple.
    keys: [u64; FourTuple::WORDS],
}

impl FlowHash {
    /// Derives the function from `key`, which must be secret.
    pub(crate) fn new(key: (u64, u64)) -> Self {
        let expand = SipHasher24::new_with_keys(key.0, key.1);
        let keys = core::array::from_fn(|word| expand.hash(&word.to_le_bytes()));
        Self { first: expand.hash(&[]), keys }
    }

    /// Returns the hash of a flow.
    #[inline]
    pub(crate) fn of(&self, flow: &FourTuple) -> u32 {
        let words = flow.words().into_iter().zip(self.keys);
        let sum = words.fold(self.first, |sum, (word, key)| sum.wrapping_add(key.wrapping_mul(word.into())));
        // The proof covers the upper half of the sum.
        let [a, b, c, d, ..] = sum.to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_ports_are_encoded_and_decoded() {
        for (local, remote) in [
            ("10.0.0.1:7", "10.0.0.2:65535"),
            ("[fd77::1]:7", "[fd77::2]:1"),
            // No station has such an address, but a peer can claim it.
            ("[fd77::1]:7", "[::ffff:10.0.0.2]:1"),
        ] {
            let (local, remote): (SocketAddr, SocketAddr) = (local.parse().unwrap(), remote.parse().unwrap());
            let flow = FourTuple::new(local, remote);
            assert_eq!((flow.local(), flow.remote()), (local, remote));
            assert_eq!(flow.is_ipv4(), local.is_ipv4());
        }
        assert_eq!(size_of::<FourTuple>(), 36);
    }
}
