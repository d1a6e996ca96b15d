//! A received frame of the kernel's, made into what a card would have delivered: a super-frame, which lies scattered
//! over packet buffers, is cut into TCP segments by writing headers before each piece.
//!
//! ```text
//! read      [headers payload₀] [payload₁] [payload₂] …       one recvmsg(2) or readv(2), a buffer each
//! delivered [headers payload₀] [headers payload₁] [headers payload₂] …
//! ```
//!
//! The buffers' lengths are those of the last super-frame's segments ([`Layout`]), so that the pieces are the segments
//! that were sent. Where the guess is wrong the pieces are segments of other lengths: TCP may be cut anywhere.
//!
//! Nothing of a frame is trusted but the number of bytes that were read: a peer with CAP_NET_RAW at the other end of a
//! veth forges both headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tcp_stack::wire::{EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpFlags};
use tcp_stack::{Buf, RxChecksum};

use super::header::{Gso, HEADERS_MAX, Header, TCP_CHECKSUM_OFFSET};

/// Shortest segment into which a super-frame is cut, bytes: the MSS without an option (RFC 9293 §3.7.1).
const SEGMENT_MIN: u16 = 536;
/// Ethernet with a tag, IPv4 or IPv6 without options, TCP with timestamps: at first.
const HEADERS: u16 = 66;
/// The longest frame that the kernel passes whole, bytes, without BIG TCP.
const FRAME_MAX: u32 = 65_535 + 18;

/// The reason why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is no TCP segment in several buffers, and longer than one.
    Scattered,
    /// A super-frame whose headers are no segment's, or contradict its length or kind.
    Malformed,
    /// A super-frame whose checksums are wrong.
    Checksum,
}

/// Where a super-frame's bytes go: the headers and the payload of one segment into the first buffer, the payload of one
/// into each further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    headers: u16,
    segment: u16,
}

impl Layout {
    /// Returns the layout for full segments of an MTU, in buffers of `room` bytes.
    pub(super) fn new(mtu: u16, room: usize) -> Self {
        // Ethernet's header before the MTU.
        let segment = mtu.saturating_add(14).saturating_sub(HEADERS);
        Self { headers: HEADERS, segment }.within(room)
    }

    fn within(self, room: usize) -> Self {
        let headers = self.headers.clamp(14 + 20 + 20, u16::try_from(HEADERS_MAX).unwrap_or(u16::MAX));
        let most = u16::try_from(room).unwrap_or(u16::MAX).saturating_sub(headers);
        Self { headers, segment: self.segment.clamp(SEGMENT_MIN, most.max(SEGMENT_MIN)) }
    }

    /// Returns the bytes of the buffer with this index.
    pub(super) fn bytes(self, index: usize) -> usize {
        let headers = if index == 0 { self.headers } else { 0 };
        usize::from(headers).saturating_add(self.segment.into())
    }

    /// Returns the number of buffers that the longest frame takes.
    pub(super) fn buffers(self) -> usize {
        FRAME_MAX.div_ceil(u32::from(self.segment).max(1)) as usize
    }
}

/// A frame that was made into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The verdict on the checksums of each.
    pub(super) checksum: RxChecksum,
    /// The layout by which the next super-frame of its connection is cut where it was sent; `None`: one segment.
    pub(super) layout: Option<Layout>,
}

/// Positions in a frame with a TCP segment.
#[derive(Clone, Copy, Debug)]
struct Positions {
    /// The IP header, the TCP header, the payload, and the end of the packet by its IP header.
    network: usize,
    transport: usize,
    payload: usize,
    end: usize,
    ipv6: bool,
}

/// Makes a frame into segments. `pieces` are its buffers with the lengths that were read, at least one, and become the
/// segments. `tag` is the VLAN tag that the kernel has taken out; `room` is what a buffer holds.
pub(super) fn cut<B: Buf>(
    pieces: &mut Vec<B>,
    header: &Header,
    tag: Option<u16>,
    room: usize,
) -> Result<Cut, Refusal> {
    if header.gso == Gso::None && pieces.len() > 1 {
        join(pieces)?;
    }
    let len: usize = pieces.iter().map(|piece| piece.bytes().len()).sum();
    let first = pieces.first_mut().ok_or(Refusal::Malformed)?;
    let positions = positions(first.bytes(), len);
    let checksum = verdict(header, positions);
    let tagged = match tag {
        Some(tag) => put_tag(first, tag).then_some(4).ok_or(Refusal::Scattered)?,
        None => 0,
    };
    if header.gso == Gso::None {
        return Ok(Cut { checksum, layout: None });
    }
    let positions = positions.ok_or(Refusal::Malformed)?.behind(tagged);
    let len = len.saturating_add(tagged);
    check_super_frame(first.bytes(), positions, header.gso, len)?;
    if checksum == RxChecksum::Unknown && !is_sum_right(pieces, positions, len) {
        return Err(Refusal::Checksum);
    }
    divide(pieces, positions).ok_or(Refusal::Malformed)?;
    let headers = u16::try_from(positions.payload.saturating_sub(tagged)).unwrap_or(HEADERS);
    let layout = Layout { headers, segment: header.gso_size }.within(room);
    Ok(Cut { checksum: RxChecksum::Good, layout: Some(layout) })
}

/// Moves the bytes of a frame that is no super-frame into its first buffer.
fn join<B: Buf>(pieces: &mut Vec<B>) -> Result<(), Refusal> {
    let (first, others) = pieces.split_first_mut().ok_or(Refusal::Scattered)?;
    for piece in others {
        let bytes = piece.bytes();
        first.append(bytes.len()).ok_or(Refusal::Scattered)?.copy_from_slice(bytes);
    }
    pieces.truncate(1);
    Ok(())
}

/// Writes a VLAN tag behind the addresses. Returns false if there is no room for it.
fn put_tag<B: Buf>(frame: &mut B, tag: u16) -> bool {
    if frame.bytes().len() < EthernetHeader::LEN || frame.prepend(4).is_none() {
        return false;
    }
    let Some(bytes) = frame.bytes_mut() else { return false };
    bytes.copy_within(4..16, 0);
    let [high, low] = tag.to_be_bytes();
    put(bytes, 12, &[0x81, 0, high, low]);
    true
}

/// Finds the headers of a TCP segment in a frame of `len` bytes whose first ones are given. A packet that is a
/// fragment, or has IPv6 extension headers, is none; nor is one that is longer than its frame.
fn positions(bytes: &[u8], len: usize) -> Option<Positions> {
    let (ethernet, packet) = EthernetHeader::parse(bytes).ok()?;
    let network = ethernet.header_len();
    let (ipv6, transport, end) = match ethernet.ethertype {
        EtherType::IPV4 => {
            let words = usize::from(packet.first()? & 0xf);
            let is_whole = u16_at(packet, 6)? & 0x3fff == 0;
            let is_tcp = packet.first()? >> 4 == 4 && words >= 5 && *packet.get(9)? == IpProtocol::TCP.0;
            if !is_tcp || !is_whole {
                return None;
            }
            let end = network.checked_add(u16_at(packet, 2)?.into())?;
            (false, network.checked_add(words.checked_mul(4)?)?, end)
        }
        EtherType::IPV6 => {
            if packet.first()? >> 4 != 6 || *packet.get(6)? != IpProtocol::TCP.0 {
                return None;
            }
            let transport = network.checked_add(Ipv6Header::LEN)?;
            (true, transport, transport.checked_add(u16_at(packet, 4)?.into())?)
        }
        _ => return None,
    };
    let words = usize::from(bytes.get(transport.checked_add(12)?)? >> 4);
    let payload = transport.checked_add(words.checked_mul(4)?)?;
    let fits = words >= 5 && payload <= bytes.len() && payload <= end && end <= len;
    Some(Positions { network, transport, payload, end, ipv6 }).filter(|_| fits)
}

impl Positions {
    /// The same behind a tag that was put before them.
    const fn behind(self, bytes: usize) -> Self {
        Self {
            network: self.network.saturating_add(bytes),
            transport: self.transport.saturating_add(bytes),
            payload: self.payload.saturating_add(bytes),
            end: self.end.saturating_add(bytes),
            ipv6: self.ipv6,
        }
    }
}

/// Returns what the kernel says of the checksum of a TCP segment.
fn verdict(header: &Header, positions: Option<Positions>) -> RxChecksum {
    let Some(positions) = positions else { return RxChecksum::Unknown };
    let is_ours = usize::from(header.checksum_start) == positions.transport
        && header.checksum_offset == TCP_CHECKSUM_OFFSET;
    if header.data_valid || header.needs_checksum && is_ours {
        RxChecksum::TransportGood
    } else {
        RxChecksum::Unknown
    }
}

/// Checks that a frame of `len` bytes may be cut into segments.
fn check_super_frame(bytes: &[u8], positions: Positions, gso: Gso, len: usize) -> Result<(), Refusal> {
    let Positions { network, transport, end, ipv6, .. } = positions;
    let kind = if ipv6 { Gso::Tcp6 } else { Gso::Tcp4 };
    let flags = bytes.get(transport.saturating_add(13)).copied().map(TcpFlags::from_bits).unwrap_or_default();
    let others = TcpFlags::SYN | TcpFlags::RST | TcpFlags::URG;
    if gso != kind || end != len || !flags.contains(TcpFlags::ACK) || flags.intersects(others) {
        return Err(Refusal::Malformed);
    }
    let ip_header = bytes.get(network..transport).unwrap_or_default();
    if ipv6 || Ipv4Header::is_checksum_valid(ip_header) { Ok(()) } else { Err(Refusal::Checksum) }
}

/// Returns true if the checksum of a segment that lies in several buffers is right.
fn is_sum_right<B: Buf>(pieces: &[B], positions: Positions, len: usize) -> bool {
    let Some(first) = pieces.first().map(Buf::bytes) else { return false };
    let Some((local, remote)) = addresses(first, positions) else { return false };
    let segment = len.saturating_sub(positions.transport);
    let mut sum = Sum::pseudo_header(local, remote, IpProtocol::TCP, segment);
    let mut at = 0_usize;
    let parts = [first.get(positions.transport..).unwrap_or_default()]
        .into_iter()
        .chain(pieces.iter().skip(1).map(Buf::bytes));
    for part in parts {
        let part_sum = B::sum(part);
        // RFC 1071 §2 (B): bytes at odd offsets add to the other half.
        sum = if at.is_multiple_of(2) { sum.join(part_sum) } else { sum.with(part_sum.fold().swap_bytes()) };
        at = at.saturating_add(part.len());
    }
    sum.is_valid()
}

fn addresses(bytes: &[u8], positions: Positions) -> Option<(IpAddr, IpAddr)> {
    let packet = bytes.get(positions.network..)?;
    Some(if positions.ipv6 {
        let at = |from: usize| Some(Ipv6Addr::from(*packet.get(from..)?.first_chunk::<16>()?).into());
        (at(8)?, at(24)?)
    } else {
        let at = |from: usize| Some(Ipv4Addr::from(*packet.get(from..)?.first_chunk::<4>()?).into());
        (at(12)?, at(16)?)
    })
}

/// Writes the headers of each segment. `None`: a buffer has no room for them.
fn divide<B: Buf>(pieces: &mut [B], positions: Positions) -> Option<()> {
    let (first, others) = pieces.split_first_mut()?;
    let mut headers = [0; HEADERS_MAX];
    let headers = headers.get_mut(..positions.payload)?;
    headers.copy_from_slice(first.bytes().get(..positions.payload)?);
    let whole = Segment::of(headers, positions)?;
    let mut offset = first.bytes().len().saturating_sub(positions.payload);
    let mut ordinal = 0;
    let last = others.len();
    let segment = Segment { is_last: last == 0, len: offset, ..whole };
    segment.write(first.bytes_mut()?, positions)?;
    for piece in others {
        ordinal += 1;
        let len = piece.bytes().len();
        let segment = Segment {
            seq: whole.seq.wrapping_add(u32::try_from(offset).ok()?),
            id: whole.id.wrapping_add(u16::try_from(ordinal).ok()?),
            is_first: false,
            is_last: ordinal == last,
            len,
        };
        let out = piece.prepend(headers.len())?;
        out.copy_from_slice(headers);
        segment.write(out, positions)?;
        offset = offset.saturating_add(len);
    }
    Some(())
}

/// The header fields in which the segments of a super-frame differ.
#[derive(Clone, Copy, Debug)]
struct Segment {
    seq: u32,
    /// Identification of its IPv4 packet.
    id: u16,
    is_first: bool,
    is_last: bool,
    /// Bytes of its payload, behind the headers.
    len: usize,
}

impl Segment {
    /// Returns those of the super-frame itself.
    fn of(headers: &[u8], positions: Positions) -> Option<Self> {
        let seq = headers.get(positions.transport.saturating_add(4)..)?.first_chunk::<4>()?;
        let id = u16_at(headers, positions.network.saturating_add(4))?;
        Some(Self { seq: u32::from_be_bytes(*seq), id, is_first: true, is_last: true, len: 0 })
    }

    /// Writes them into a copy of the super-frame's headers.
    fn write(&self, out: &mut [u8], positions: Positions) -> Option<()> {
        let Positions { network, transport, payload, ipv6, .. } = positions;
        let segment = u16::try_from(payload.saturating_sub(transport).saturating_add(self.len)).ok()?;
        let packet = out.get_mut(network..transport)?;
        if ipv6 {
            put(packet, 4, &segment.to_be_bytes());
        } else {
            let len = segment.checked_add(u16::try_from(packet.len()).ok()?)?;
            put(packet, 2, &len.to_be_bytes());
            put(packet, 4, &self.id.to_be_bytes());
            put(packet, 10, &[0, 0]);
            let checksum = Sum::of(packet).checksum();
            put(packet, 10, &checksum.to_be_bytes());
        }
        let tcp = out.get_mut(transport..)?;
        put(tcp, 4, &self.seq.to_be_bytes());
        let flags = tcp.get_mut(13)?;
        if !self.is_last {
            *flags &= !(TcpFlags::FIN | TcpFlags::PSH).bits();
        }
        if !self.is_first {
            *flags &= !TcpFlags::CWR.bits();
        }
        Some(())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
