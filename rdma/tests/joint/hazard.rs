//! Damage to frames beyond that of the links: flipped bits under valid checksums, and retransmissions with other
//! segment boundaries.

use core::ops::Range;
use std::collections::VecDeque;

use tcp_stack::SeqNum;
use tcp_stack::testutil::{Random, WireSegment};
use tcp_stack::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpFlags, TcpHeader,
};

/// Number of segments remembered.
const REMEMBERED: usize = 24;

/// Returns the offset of the TCP header in a frame of our stacks, which send no IP options.
fn tcp_start(frame: &[u8]) -> usize {
    let (ethernet, _) = EthernetHeader::parse(frame).unwrap();
    let ip = if ethernet.ethertype == EtherType::IPV6 { Ipv6Header::LEN } else { Ipv4Header::LEN };
    EthernetHeader::LEN + ip
}

/// Flips a bit of the payload and corrects the checksum. Leaves frames without payload unchanged, and, unless
/// `startup`, those with an MPA frame. Returns true if it flipped a bit.
pub(crate) fn flip(frame: &mut [u8], seen: &WireSegment, startup: bool, random: &mut Random) -> bool {
    let len = seen.payload_len as usize;
    let Some(start) = frame.len().checked_sub(len).filter(|_| len > 0) else { return false };
    if !startup && frame[start..].starts_with(b"MPA ID Re") {
        return false;
    }
    let at = start + random.index(len);
    let bit = 1 << random.below(8);
    frame[at] ^= bit;
    // RFC 1624 §3: HC' = ~(~HC + ~m + m'), a word at a time from the start of the TCP header.
    let tcp = tcp_start(frame);
    let is_high = (at - tcp).is_multiple_of(2);
    let word = |byte: u8| if is_high { u32::from(byte) << 8 } else { u32::from(byte) };
    let old = u32::from(u16::from_be_bytes([frame[tcp + 16], frame[tcp + 17]]));
    let mut sum = (!old & 0xffff) + (!word(frame[at] ^ bit) & 0xffff) + word(frame[at]);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let [high, low] = (!sum as u16).to_be_bytes();
    (frame[tcp + 16], frame[tcp + 17]) = (high, low);
    true
}

/// Returns the frame with another payload, from another sequence number on.
fn remade(frame: &[u8], seen: &WireSegment, seq: SeqNum, payload: &[u8]) -> Vec<u8> {
    let (tcp, header_len) = (tcp_start(frame), frame.len() - seen.payload_len as usize);
    let mut out = [&frame[..header_len], payload].concat();
    let ip = EthernetHeader::LEN;
    let is_ipv4 = tcp - ip == Ipv4Header::LEN;
    let (field, counted) =
        if is_ipv4 { (ip + 2, out.len() - ip) } else { (ip + 4, out.len() - ip - Ipv6Header::LEN) };
    out[field..field + 2].copy_from_slice(&(counted as u16).to_be_bytes());
    if is_ipv4 {
        out[ip + 10..ip + 12].fill(0);
        let sum = Sum::of(&out[ip..tcp]).checksum().to_be_bytes();
        out[ip + 10..ip + 12].copy_from_slice(&sum);
    }
    out[tcp + 4..tcp + 8].copy_from_slice(&seq.get().to_be_bytes());
    let len = out.len() - tcp;
    let pseudo = Sum::pseudo_header(seen.src.ip(), seen.dst.ip(), IpProtocol::TCP, len);
    assert!(TcpHeader::set_checksum(&mut out[tcp..], pseudo), "a TCP header");
    out
}

/// The segments that a host sent last, to be retransmitted with other boundaries.
#[derive(Debug, Default)]
pub(crate) struct Resegmenter {
    sent: VecDeque<(Vec<u8>, WireSegment)>,
}

impl Resegmenter {
    /// Remembers a segment that carries only payload.
    pub(crate) fn remember(&mut self, frame: &[u8], seen: &WireSegment) {
        let special = [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST, TcpFlags::URG];
        if seen.payload_len == 0 || special.into_iter().any(|flag| seen.header.flags.contains(flag)) {
            return;
        }
        if self.sent.len() >= REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back((frame.to_vec(), seen.clone()));
    }

    /// Returns a frame of at most `len_max` bytes with part of the stream from inside a remembered segment.
    pub(crate) fn again(&self, len_max: usize, random: &mut Random) -> Option<Vec<u8>> {
        let (frame, seen) = self.sent.get(random.index(self.sent.len()))?;
        let header_len = frame.len() - seen.payload_len as usize;
        let first = seen.header.seq;
        let mut bytes = frame[header_len..].to_vec();
        // Adds the segments that follow, as far as they are remembered.
        while let Some((next, of)) = self.sent.iter().find(|(_, of)| {
            (of.src, of.dst, of.header.seq) == (seen.src, seen.dst, first + bytes.len() as u32)
        }) {
            bytes.extend_from_slice(&next[next.len() - of.payload_len as usize..]);
            if bytes.len() > 2 * len_max {
                break;
            }
        }
        let part = part(bytes.len(), seen.payload_len as usize, len_max - header_len, random);
        let seq = first + part.start as u32;
        Some(remade(frame, seen, seq, &bytes[part]))
    }
}

/// Draws a part of `len` bytes that begins within the first `start_max`.
fn part(len: usize, start_max: usize, len_max: usize, random: &mut Random) -> Range<usize> {
    let start = if random.below(2) == 0 { random.index(start_max) } else { random.index(start_max) / 4 * 4 };
    let most = len_max.min(len - start);
    let len = if random.below(2) == 0 { most } else { 1 + random.index(most) };
    start..start + len
}
