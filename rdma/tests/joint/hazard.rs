//! What happens to frames beside what links do: bits that flip under checksums that fit.

use tcp_stack::testutil::{Random, Seen};
use tcp_stack::wire::{EtherType, EthernetHeader, Ipv4Header, Ipv6Header};

/// Where a TCP header begins in a frame as our stacks make them, without IP options.
fn tcp_start(frame: &[u8]) -> usize {
    let (ethernet, _) = EthernetHeader::parse(frame).unwrap();
    let ip = if ethernet.ethertype == EtherType::IPV6 { Ipv6Header::LEN } else { Ipv4Header::LEN };
    EthernetHeader::LEN + ip
}

/// Flips a bit of the payload and makes the checksum fit. Nothing happens to a frame without payload, nor to one that
/// brings an MPA frame unless `startup`. Returns whether anything did.
pub(crate) fn flip(frame: &mut [u8], seen: &Seen, startup: bool, random: &mut Random) -> bool {
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
