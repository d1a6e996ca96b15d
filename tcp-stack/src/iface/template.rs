//! Header templates: the headers that a run of segments shares are built once, then copied and completed per segment.
//!
//! ```text
//!   Ethernet   MACs, type
//!   IPv4       addresses, class …              length, checksum ◀─ each segment's
//!   TCP        ports, ACK, window …          sequence number, PSH, checksum ◀─
//!   options    timestamps
//! ```
//!
//! Segments have the form of [`PlainSegment`](super::PlainSegment); [`encapsulate`](super::Interface::encapsulate)
//! writes all others. Sums are linear (RFC 1071 §2), so the sum of the shared part is computed once, too.

use core::net::Ipv4Addr;

use super::{Interface, InterfaceConfig};
use crate::buf::{Buf, TxOffload};
use crate::four_tuple::FourTuple;
use crate::seq::SeqNum;
use crate::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, MacAddr, Sum, TcpFlags, TcpHeader, Timestamps,
};

/// Offset of the TCP header.
const TCP: usize = EthernetHeader::LEN + Ipv4Header::LEN;
/// Offsets of the fields that differ per segment.
const PACKET_LEN: usize = EthernetHeader::LEN + 2;
const PACKET_CHECKSUM: usize = EthernetHeader::LEN + 10;
const SEQ: usize = TCP + 4;
/// Offsets of the fields that differ per template.
const TRAFFIC_CLASS: usize = EthernetHeader::LEN + 1;
const ADDRESSES: usize = EthernetHeader::LEN + 12;
const ACK: usize = TCP + 8;
const WINDOW: usize = TCP + 14;
const URGENT: usize = TCP + 18;
const TIMESTAMPS: usize = TCP + TcpHeader::LEN + 4;
const FLAGS: usize = TCP + 13;
const CHECKSUM: usize = TCP + 16;

/// Headers of segments with timestamps and no other option, over IPv4 without a VLAN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    /// Headers of a segment without payload; sequence number and checksums are zero.
    headers: [u8; Self::LEN],
    flags: TcpFlags,
    /// Sum of the IP header.
    packet: Sum,
    /// Sum of the pseudo-header and, unless the port computes checksums, of the TCP header without its flags.
    segment: Sum,
    /// True if the port computes the TCP checksum.
    offloaded: bool,
    /// True if the port computes the IPv4 header checksum, too.
    ip_offloaded: bool,
    /// True if the destination is an address of ours.
    looped: bool,
}

/// Writes a field at a constant offset.
#[inline(always)]
fn set<const N: usize>(headers: &mut [u8; Template::LEN], at: usize, bytes: [u8; N]) {
    if let Some(field) = headers.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *field = bytes;
    }
}

impl<B: Buf> Interface<B> {
    /// Returns true if segments of this flow may have the form.
    #[inline]
    pub(crate) fn has_template(&self, flow: &FourTuple) -> bool {
        self.config.vlan.is_none() && flow.is_ipv4()
    }

    /// Returns the part that all templates share.
    pub(super) fn template_base(config: &InterfaceConfig) -> [u8; Template::LEN] {
        let mut base = [0; Template::LEN];
        let (link, rest) = base.split_at_mut(EthernetHeader::LEN);
        let (mac, none) = (MacAddr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
        EthernetHeader { dst: mac, src: config.mac, tci: None, ethertype: EtherType::IPV4 }.emit(link);
        if let Some((ip, tcp)) = rest.split_first_chunk_mut::<{ Ipv4Header::LEN }>() {
            let packet = Ipv4Header::atomic(none, none, IpProtocol::TCP);
            let packet = Ipv4Header { ttl: config.hop_limit.max(1), ..packet };
            packet.emit(Template::LEN - TCP, false, ip);
            let header = TcpHeader { src_port: 0, dst_port: 0, ..TcpHeader::default() };
            let options = Timestamps { value: 0, echo: 0 }.alone();
            for (to, from) in tcp.iter_mut().zip(header.fixed(Template::LEN - TCP).into_iter().chain(options))
            {
                *to = from;
            }
        }
        base
    }

    /// Returns the template for segments to `mac` with the fields of `header` except its sequence number, or `None` for
    /// a flow of another form.
    #[inline(always)]
    pub(crate) fn template(
        &self,
        mac: MacAddr,
        flow: &FourTuple,
        traffic_class: u8,
        (header, timestamps): (&TcpHeader, Timestamps),
    ) -> Option<Template> {
        let (src, dst) = flow.ipv4().filter(|_| self.config.vlan.is_none())?;
        let (offloaded, ip_offloaded) = (self.config.tx_checksum_offload, self.config.tx_ip_checksum_offload);
        let mut headers = self.template_base;
        set(&mut headers, 0, mac.0);
        set(&mut headers, TRAFFIC_CLASS, [traffic_class]);
        set(&mut headers, ADDRESSES, src.octets());
        set(&mut headers, ADDRESSES + 4, dst.octets());
        set(&mut headers, TCP, header.src_port.to_be_bytes());
        set(&mut headers, TCP + 2, header.dst_port.to_be_bytes());
        set(&mut headers, ACK, header.ack.get().to_be_bytes());
        set(&mut headers, WINDOW, header.window.to_be_bytes());
        set(&mut headers, URGENT, header.urgent.to_be_bytes());
        set(&mut headers, TIMESTAMPS, timestamps.value.to_be_bytes());
        set(&mut headers, TIMESTAMPS + 4, timestamps.echo.to_be_bytes());
        let len = u16::try_from(Template::LEN - TCP).ok()?;
        let addresses = Sum::ZERO.with_word(src.to_bits()).with_word(dst.to_bits());
        let pseudo_header = addresses.with(IpProtocol::TCP.0.into()).with(len);
        let (_, rest) = headers.split_first_chunk::<{ EthernetHeader::LEN }>()?;
        let (ip, tcp) = rest.split_first_chunk::<{ Ipv4Header::LEN }>()?;
        let packet = if ip_offloaded { Sum::ZERO } else { Sum::of(ip) };
        let segment = if offloaded { pseudo_header } else { pseudo_header.join(Sum::of(tcp)) };
        Some(Template {
            headers,
            flags: header.flags,
            packet,
            segment,
            offloaded,
            ip_offloaded,
            looped: self.is_local(dst.into()),
        })
    }

    /// Counts segments whose headers a template wrote.
    #[inline]
    pub(crate) fn count_templated(&mut self, segments: u32) {
        self.stats.tx_tcp_segments = self.stats.tx_tcp_segments.wrapping_add(segments.into());
    }
}

impl Template {
    /// Length of all headers, bytes.
    pub(crate) const LEN: usize = TCP + TcpHeader::LEN + 12;

    /// Writes the headers before a segment's payload, with `flags` added to the shared ones. Returns `None`, and
    /// changes nothing, for a buffer that is shared or without headroom. A payload whose folded sum is known is not
    /// read.
    #[inline(always)]
    pub(crate) fn put<B: Buf>(
        &self,
        (seq, flags): (SeqNum, TcpFlags),
        buf: &mut B,
        payload_sum: Option<u16>,
    ) -> Option<TxOffload> {
        let payload_len = u16::try_from(buf.bytes().len()).ok()?;
        let packet_len = payload_len.checked_add(u16::try_from(Self::LEN - EthernetHeader::LEN).ok()?)?;
        let flags = self.flags | flags;
        let segment = self.segment.with(payload_len);
        let packet = if self.ip_offloaded { 0 } else { self.packet.with(payload_len).checksum() };
        let segment = if self.offloaded {
            segment.fold()
        } else {
            let payload = payload_sum.unwrap_or_else(|| B::sum(buf.bytes()).fold());
            segment.with_word(seq.get()).with(flags.bits().into()).with(payload).checksum()
        };
        let headers = buf.prepend(Self::LEN)?.first_chunk_mut::<{ Self::LEN }>()?;
        *headers = self.headers;
        [headers[PACKET_LEN], headers[PACKET_LEN + 1]] = packet_len.to_be_bytes();
        [headers[PACKET_CHECKSUM], headers[PACKET_CHECKSUM + 1]] = packet.to_be_bytes();
        [headers[SEQ], headers[SEQ + 1], headers[SEQ + 2], headers[SEQ + 3]] = seq.get().to_be_bytes();
        headers[FLAGS] = flags.bits();
        [headers[CHECKSUM], headers[CHECKSUM + 1]] = segment.to_be_bytes();
        Some(TxOffload {
            l2_len: u8::try_from(EthernetHeader::LEN).ok()?,
            l3_len: u8::try_from(Ipv4Header::LEN).ok()?,
            l4_len: u8::try_from(Self::LEN - TCP).ok()?,
            ipv6: false,
            ip_checksum: self.ip_offloaded,
            tcp_checksum: self.offloaded,
            segment: 0,
            looped: self.looped,
        })
    }
}
