//! The TCP header (RFC 9293 §3.1).

use super::{ParseError, Sum, TcpOptions, truncated};
use crate::seq::SeqNum;
use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// The control bits of a TCP header.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u8);

impl TcpFlags {
    /// No control bit is set.
    pub const NONE: Self = Self(0);
    /// FIN: no more data from sender.
    pub const FIN: Self = Self(0x01);
    /// SYN: synchronize sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// RST: reset the connection.
    pub const RST: Self = Self(0x04);
    /// PSH: deliver data at once.
    pub const PSH: Self = Self(0x08);
    /// Acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// Urgent pointer field is significant.
    pub const URG: Self = Self(0x20);
    /// ECN-Echo (RFC 3168 §6.1).
    pub const ECE: Self = Self(0x40);
    /// Congestion Window Reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(0x80);

    /// Returns flags from the bits as on the wire.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the bits as on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns true if all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns these bits and those of `other`.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these bits without those of `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (flag, letter) in [
            (Self::FIN, "F"),
            (Self::SYN, "S"),
            (Self::RST, "R"),
            (Self::PSH, "P"),
            (Self::ACK, "."),
            (Self::URG, "U"),
            (Self::ECE, "E"),
            (Self::CWR, "W"),
        ] {
            if self.contains(flag) {
                f.write_str(letter)?;
            }
        }
        if *self == Self::NONE { f.write_str("-") } else { Ok(()) }
    }
}

/// A TCP header without its options.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-------------------------------+-------------------------------+
/// |          source port          |       destination port        |
/// +-------------------------------+-------------------------------+
/// |                        sequence number                        |
/// +---------------------------------------------------------------+
/// |                     acknowledgment number                     |
/// +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
/// | offset| rsvd  |C|E|U|A|P|R|S|F|            window             |
/// +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
/// |           checksum            |        urgent pointer         |
/// +-------------------------------+-------------------------------+
/// |                    options, up to 40 bytes                    |
/// The checksum needs the addresses, so parsing does not verify it and emitting leaves it zero: see
/// [`Self::set_checksum`].
///
/// The checksum needs the addresses, so it is neither checked nor made here: see [`Self::set_checksum`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// Sequence number of the first byte, or of the SYN if it is set.
    pub seq: SeqNum,
    /// Acknowledgment number; meaningless without ACK.
    pub ack: SeqNum,
    /// Control bits of the segment.
    pub flags: TcpFlags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer; meaningless without URG.
    pub urgent: u16,
}

impl TcpHeader {
    /// Length of the fixed part, bytes.
    pub const LEN: usize = 20;
    /// Length with the most options possible, bytes.
    pub const LEN_MAX: usize = 60;
    /// Offset of the checksum, bytes.
    const CHECKSUM_AT: usize = 16;

    /// Parses a segment; returns the header, the bytes of its options, and the payload.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8], &[u8]), ParseError> {
        let Some((fixed, rest)) = segment.split_first_chunk::<{ Self::LEN }>() else {
            return Err(truncated(Self::LEN, segment.len()));
        };
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, _, _, u0, u1] = *fixed;
        let header_len = usize::from(offset >> 4).wrapping_mul(4);
        // RFC 9293 §3.1: the data offset counts the header's 32-bit words, of which five are fixed.
        let Some(options_len) = header_len.checked_sub(Self::LEN) else {
            return Err(ParseError::Length);
        };
        let Some((options, payload)) = rest.split_at_checked(options_len) else {
            return Err(truncated(header_len, segment.len()));
        };
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
            ack: SeqNum::new(u32::from_be_bytes([a0, a1, a2, a3])),
            flags: TcpFlags(flags),
            window: u16::from_be_bytes([w0, w1]),
            urgent: u16::from_be_bytes([u0, u1]),
        };
        Ok((header, options, payload))
    }

    /// Returns the length of the header with these options, bytes: 20..=60, a multiple of 4.
    #[inline]
    pub fn len_with(options: &TcpOptions) -> usize {
        Self::LEN.wrapping_add(options.emitted_len())
    }

    /// Writes the header and its options, with a checksum of zero, to the front of `out`; returns `false` if `out` is
    /// shorter than [`Self::len_with`] the options.
    #[inline]
    pub fn emit(&self, options: &TcpOptions, out: &mut [u8]) -> bool {
        let len = Self::len_with(options);
        let Some((fixed, rest)) = out.split_first_chunk_mut::<{ Self::LEN }>() else { return false };
        let Some(rest) = rest.get_mut(..len.wrapping_sub(Self::LEN)) else { return false };
        *fixed = self.fixed(len);
        options.emit(rest)
    }

    /// Returns the fixed part with a checksum of zero, for a header of `len` bytes with options.
    #[inline]
    pub(crate) fn fixed(&self, len: usize) -> [u8; Self::LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [q0, q1, q2, q3] = self.seq.get().to_be_bytes();
        let [a0, a1, a2, a3] = self.ack.get().to_be_bytes();
        let [w0, w1] = self.window.to_be_bytes();
        let [u0, u1] = self.urgent.to_be_bytes();
        // At most 15 words; the four reserved bits beside them are zero.
        let offset = u8::try_from(len / 4).unwrap_or(0xf) << 4;
        let flags = self.flags.bits();
        [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, 0, 0, u0, u1]
    }

    /// Writes the checksum into the header at the front of `segment`; returns `false` if `segment` is too short.
    ///
    /// `pseudo_header` is the sum of the pseudo-header over the whole of `segment`. The former content of the checksum
    /// field does not matter.
    #[inline]
    pub fn set_checksum(segment: &mut [u8], pseudo_header: Sum) -> bool {
        Self::write_checksum(segment, 0)
            && Self::write_checksum(segment, pseudo_header.join(Sum::of(segment)).checksum())
    }

    /// Writes a pseudo-header's sum into the checksum field, for a port that completes it; returns `false` if `segment`
    /// is too short.
    #[inline]
    pub fn set_partial_checksum(segment: &mut [u8], pseudo_header: Sum) -> bool {
        Self::write_checksum(segment, pseudo_header.fold())
    }

    #[inline]
    fn write_checksum(segment: &mut [u8], value: u16) -> bool {
        let field = segment.get_mut(Self::CHECKSUM_AT..).and_then(|rest| rest.first_chunk_mut::<2>());
        let Some(field) = field else { return false };
        *field = value.to_be_bytes();
        true
    }
}
