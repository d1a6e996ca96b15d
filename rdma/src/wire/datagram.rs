//! Datagrams between queue pairs (`IBV_QPT_UD`), on a link between two devices that have agreed on them.
//!
//! ```text
//! on the link, 16 bytes, then the payload               in the receive buffer, 40 bytes, then the payload
//!  0  flags (1): 0 solicited, 1 has Immediate Data       0  version 6, traffic class, flow label (4)
//!  1  number of the receiver (3)                         4  length of the payload (2)
//!  4  number of the sender                               6  next header: 1b (1), hop limit (1)
//!  8  Q_Key                                              8  GID of the sender (16)
//! 12  Immediate Data, or 0                              24  GID of the receiver (16)
//! ```
//! All numbers are big-endian.

use core::net::Ipv6Addr;

use super::{ParseError, truncated};

/// Bytes in front of the payload in a receive buffer: the global route header of InfiniBand.
pub const GRH_LEN: usize = 40;
/// Bytes of the longest payload, the largest MTU of InfiniBand.
pub const DATAGRAM_MAX: usize = 4096;

// Flags.
const SOLICITED: u8 = 1 << 0;
const HAS_IMMEDIATE: u8 = 1 << 1;
/// Values of a number of 24 bits.
const NUMBER_MASK: u32 = (1 << 24) - 1;
/// "Next header" of a packet that InfiniBand's transport follows (InfiniBand Architecture Specification, volume 1,
/// §8.3).
const TRANSPORT: u8 = 0x1b;
const HOP_LIMIT: u8 = 64;

/// Header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// Number of the queue pair that receives it, 24 bits.
    pub receiver: u32,
    /// Number of the queue pair that has sent it.
    pub sender: u32,
    /// Key that the receiver must have.
    pub qkey: u32,
    /// Immediate Data of the datagram, if it has some.
    pub immediate: Option<[u8; 4]>,
    /// True if the receiver is asked for an event.
    pub solicited: bool,
}

impl DatagramHeader {
    /// Length in bytes on the wire.
    pub const LEN: usize = 16;

    /// Parses the header at the start of `message`, and returns it with the bytes behind it. Unknown flags are ignored.
    ///
    /// # Errors
    /// `Truncated`.
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let cut = || truncated(Self::LEN, message.len());
        let (header, rest) = message.split_first_chunk::<{ Self::LEN }>().ok_or_else(cut)?;
        let ([receiver, sender, qkey, immediate], _) = header.as_chunks::<4>() else { return Err(cut()) };
        let [flags, ..] = *receiver;
        let parsed = Self {
            receiver: u32::from_be_bytes(*receiver) & NUMBER_MASK,
            sender: u32::from_be_bytes(*sender) & NUMBER_MASK,
            qkey: u32::from_be_bytes(*qkey),
            immediate: (flags & HAS_IMMEDIATE != 0).then_some(*immediate),
            solicited: flags & SOLICITED != 0,
        };
        Ok((parsed, rest))
    }

    /// Returns the bytes of the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [_, a, b, c] = self.receiver.to_be_bytes();
        let solicited = if self.solicited { SOLICITED } else { 0 };
        let flags = solicited | if self.immediate.is_some() { HAS_IMMEDIATE } else { 0 };
        let words = [
            [flags, a, b, c],
            (self.sender & NUMBER_MASK).to_be_bytes(),
            self.qkey.to_be_bytes(),
            self.immediate.unwrap_or_default(),
        ];
        let mut bytes = [0; Self::LEN];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word;
        }
        bytes
    }
}

/// Returns the global route header of a datagram with a payload of `len` bytes.
pub fn global_route(len: usize, sender: Ipv6Addr, receiver: Ipv6Addr) -> [u8; GRH_LEN] {
    let [high, low] = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let first = [0x60, 0, 0, 0, high, low, TRANSPORT, HOP_LIMIT];
    let mut bytes = [0; GRH_LEN];
    for (to, from) in bytes.iter_mut().zip(first.into_iter().chain(sender.octets()).chain(receiver.octets()))
    {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_documents() {
        let header = DatagramHeader {
            receiver: 0x01_0203,
            sender: 0x04_0506,
            qkey: 0x1111_1111,
            immediate: Some(*b"imm!"),
            solicited: true,
        };
        let bytes = [3, 1, 2, 3, 0, 4, 5, 6, 0x11, 0x11, 0x11, 0x11, b'i', b'm', b'm', b'!'];
        assert_eq!(header.emit(), bytes);
        let message = [&bytes[..], b"payload"].concat();
        assert_eq!(DatagramHeader::parse(&message).unwrap(), (header, &b"payload"[..]));
        assert!(DatagramHeader::parse(&bytes[..15]).is_err());
        // Flags that nobody has defined yet, and bits above a number, have no effect.
        let mut strange = bytes;
        (strange[0], strange[4]) = (0xf1, 0xff);
        let expected = DatagramHeader { immediate: None, ..header };
        assert_eq!(
            DatagramHeader::parse(&strange).unwrap().0,
            DatagramHeader { sender: 0x04_0506, ..expected }
        );
    }

    #[test]
    fn a_route_has_the_gids_where_programs_look() {
        let [from, to]: [Ipv6Addr; 2] = ["fd00::1", "::ffff:10.0.0.2"].map(|gid| gid.parse().unwrap());
        let route = global_route(0x0102, from, to);
        assert_eq!(route[..8], [0x60, 0, 0, 0, 1, 2, 0x1b, 64]);
        assert_eq!((&route[8..24], &route[24..]), (&from.octets()[..], &to.octets()[..]));
    }
}
