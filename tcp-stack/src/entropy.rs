//! Unpredictable values, all derived from one seed: initial sequence numbers, timestamp offsets, source ports,
//! keys. [`Stack`](crate::Stack) owns the generator, and passes the values to connections and tables.

use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;

use crate::four_tuple::FourTuple;
use crate::seq::SeqNum;
use crate::time::Instant;

/// Keyed functions and a random number generator.
#[derive(Debug)]
pub(crate) struct Entropy {
    sequence: SipHasher24,
    timestamps: SipHasher24,
    ports: SipHasher24,
    random: SipHasher24,
    counter: u64,
}

fn low32(value: u64) -> u32 {
    let [.., a, b, c, d] = value.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl Entropy {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let [a, b, c, d] = *seed.as_chunks::<8>().0 else {
            // 32 bytes are four chunks of eight.
            return Self::from_keys([0; 4]);
        };
        Self::from_keys([a, b, c, d].map(u64::from_le_bytes))
    }

    fn from_keys([a, b, c, d]: [u64; 4]) -> Self {
        let root = SipHasher24::new_with_keys(a, b);
        let key = |n: u8| {
            let half = |m: u8| {
                let mut bytes = [0; 18];
                let (c, d) = (c.to_le_bytes(), d.to_le_bytes());
                for (to, from) in bytes.iter_mut().zip([n, m].iter().chain(&c).chain(&d)) {
                    *to = *from;
                }
                root.hash(&bytes)
            };
            SipHasher24::new_with_keys(half(0), half(1))
        };
        Self { sequence: key(1), timestamps: key(2), ports: key(3), random: key(4), counter: 0 }
    }

    /// Returns an initial sequence number (RFC 6528 §3): "ISN = M + F(localip, localport, remoteip, remoteport,
    /// secretkey)", where M advances every 4 microseconds.
    pub(crate) fn initial_sequence(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> SeqNum {
        let m = low32(now.as_micros() / 4);
        SeqNum::new(m.wrapping_add(low32(self.sequence.hash(FourTuple::new(local, remote).bytes()))))
    }

    /// Returns the offset of a flow's timestamps (RFC 7323 §5.4). It is the same for each connection of the flow,
    /// so that TIME-WAIT can compare them.
    pub(crate) fn timestamp_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        low32(self.timestamps.hash(FourTuple::new(local, remote).bytes()))
    }

    /// Returns where the search for a source port to a destination begins (RFC 6056 §3.3.3).
    pub(crate) fn port_offset(&self, local: IpAddr, remote: SocketAddr) -> u32 {
        low32(self.ports.hash(FourTuple::new(SocketAddr::new(local, 0), remote).bytes()))
    }

    /// Returns a random number.
    pub(crate) fn random(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        self.random.hash(&self.counter.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn sequence_numbers_move_on_with_time_and_differ_per_flow_and_seed() {
        let entropy = Entropy::new([1; 32]);
        let at = |us| entropy.initial_sequence(Instant::from_micros(us), end(1), end(2));
        assert_eq!(at(400).distance_from(at(0)), 100, "every 4 microseconds");
        let other = entropy.initial_sequence(Instant::ZERO, end(1), end(3));
        assert_ne!(at(0), other);
        let reseeded = Entropy::new([2; 32]);
        assert_ne!(at(0), reseeded.initial_sequence(Instant::ZERO, end(1), end(2)));
    }

    #[test]
    fn every_byte_of_the_seed_counts() {
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..32 {
            let mut seed = [0; 32];
            seed[i] = 1;
            assert!(seen.insert(Entropy::new(seed).random()));
        }
    }
}
