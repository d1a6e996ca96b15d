//! Fast path of reception and transmission: parses and writes the common form of a segment at fixed offsets, for header
//! prediction.
//!
//! The common form is TCP without IP options, extension headers or fragmentation, with ACK and at most PSH set, and
//! with no option but timestamps as RFC 7323 appendix A lays them out. `classify` handles all other frames and drops.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::ops::Range;

use super::Interface;
use crate::buf::{Buf, RxChecksum, TxOffload};
use crate::four_tuple::FourTuple;
use crate::seq::SeqNum;
use crate::wire::{
    EcnField, EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, MacAddr, Sum, TcpFlags,
    TcpHeader, TcpOptions, Timestamps,
};

/// A plain segment: one of the common form, of a flow that may be one of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainSegment {
    pub(crate) flow: FourTuple,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    /// ACK, or ACK and PSH.
    pub(crate) flags: TcpFlags,
    /// Window as on the wire, not scaled.
    pub(crate) window: u16,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) ecn: EcnField,
    /// Start and end of its payload in the frame.
    pub(crate) start: u16,
    pub(crate) end: u16,
    /// True if the port has not verified its checksums.
    verified_in_software: bool,
}

impl PlainSegment {
    /// Returns the length of the payload, bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        u32::from(self.end.wrapping_sub(self.start))
    }

    /// Returns the position of the payload in the frame.
    #[inline]
    pub(crate) fn range(&self) -> Range<u16> {
        self.start..self.end
    }
}

impl<B: Buf> Interface<B> {
    /// Parses a frame of the common form; returns `None` for others. For every frame of an existing flow that it
    /// accepts, `classify` would return the same.
    #[inline(always)]
    pub(crate) fn parse_plain(&self, frame: &[u8], checksum: RxChecksum) -> Option<PlainSegment> {
        let (link, packet) = frame.split_first_chunk::<{ EthernetHeader::LEN }>()?;
        let [dst @ .., s0, _, _, _, _, _, t0, t1] = *link;
        if dst != self.config.mac.0 || s0 & 1 != 0 {
            return None;
        }
        let ethertype = EtherType(u16::from_be_bytes([t0, t1]));
        let Some(vlan) = self.config.vlan else {
            return self.parse_ip(ethertype, packet, EthernetHeader::LEN, checksum);
        };
        let (&[c0, c1, t0, t1], packet) = packet.split_first_chunk::<4>()?;
        if ethertype != EtherType::VLAN || u16::from_be_bytes([c0 & 0xf, c1]) != vlan {
            return None;
        }
        let ethertype = EtherType(u16::from_be_bytes([t0, t1]));
        self.parse_ip(ethertype, packet, EthernetHeader::LEN_TAGGED, checksum)
    }

    /// Parses the packet at offset `at` of the frame.
    #[inline(always)]
    fn parse_ip(
        &self,
        ethertype: EtherType,
        packet: &[u8],
        at: usize,
        checksum: RxChecksum,
    ) -> Option<PlainSegment> {
        match ethertype {
            EtherType::IPV4 => self.parse_ipv4(packet, at, checksum),
            EtherType::IPV6 => self.parse_ipv6(packet, at, checksum),
            _ => None,
        }
    }

    #[inline(always)]
    fn parse_ipv4(&self, packet: &[u8], at: usize, checksum: RxChecksum) -> Option<PlainSegment> {
        let (fixed, rest) = packet.split_first_chunk::<{ Ipv4Header::LEN }>()?;
        let [version, traffic_class, l0, l1, _, _, f0, f1, _, protocol, _, _, addresses @ ..] = *fixed;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
        // Five words, and no flag but "don't fragment". The addresses were checked when the connection was opened, so
        // they are not checked here.
        let whole = version == 0x45 && f0 & !0x40 == 0 && f1 == 0 && protocol == IpProtocol::TCP.0;
        // Except that only a looped frame comes from our own address.
        let foreign = [s0, s1, s2, s3] != [d0, d1, d2, d3] || checksum == RxChecksum::Looped;
        if !whole || !foreign || checksum.leaves_ip() && !Ipv4Header::is_checksum_valid(fixed) {
            return None;
        }
        let len = usize::from(u16::from_be_bytes([l0, l1])).checked_sub(Ipv4Header::LEN)?;
        let verify = checksum.leaves_transport();
        let flow = |ports| FourTuple::of_ipv4([d0, d1, d2, d3], [s0, s1, s2, s3], ports);
        parse_tcp::<B>(rest.get(..len)?, at.wrapping_add(Ipv4Header::LEN), flow, traffic_class, verify)
    }

    #[inline]
    fn parse_ipv6(&self, packet: &[u8], at: usize, checksum: RxChecksum) -> Option<PlainSegment> {
        let (fixed, rest) = packet.split_first_chunk::<{ Ipv6Header::LEN }>()?;
        let [v0, v1, _, _, l0, l1, next_header, _, addresses @ ..] = *fixed;
        let (src, dst) = (addresses.first_chunk::<16>()?, addresses.last_chunk::<16>()?);
        let (src, dst) = (Ipv6Addr::from_octets(*src), Ipv6Addr::from_octets(*dst));
        let whole = v0 >> 4 == 6 && next_header == IpProtocol::TCP.0;
        let foreign = checksum == RxChecksum::Looped || !self.is_local(src.into());
        let sound = Self::is_ipv6_source(src) && !src.is_unspecified() && foreign;
        if !(whole && self.is_local(dst.into()) && sound) {
            return None;
        }
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let end = |ip, [a, b]: [u8; 2]| SocketAddr::new(IpAddr::V6(ip), u16::from_be_bytes([a, b]));
        let verify = checksum.leaves_transport();
        let flow = |[p0, p1, q0, q1]: [u8; 4]| FourTuple::new(end(dst, [p0, p1]), end(src, [q0, q1]));
        parse_tcp::<B>(rest.get(..len)?, at.wrapping_add(Ipv6Header::LEN), flow, v0 << 4 | v1 >> 4, verify)
    }

    /// Writes all headers of a segment of the common form before its payload, as `TcpHeader::emit` and
    /// [`Self::encapsulate`] would one after the other. Returns `None`, and changes nothing, for another form or a
    /// buffer without headroom. A payload whose folded sum is known is not read.
    #[inline]
    pub(crate) fn encapsulate_plain(
        &mut self,
        mac: MacAddr,
        flow: &FourTuple,
        traffic_class: u8,
        (header, options): (&TcpHeader, &TcpOptions),
        (buf, payload_sum): (&mut B, Option<u16>),
    ) -> Option<TxOffload> {
        let timestamps = options.timestamps.filter(|_| options.has_no_others())?;
        let template = self.template(mac, flow, traffic_class, (header, timestamps))?;
        let offload = template.put((header.seq, TcpFlags::NONE), buf, payload_sum)?;
        self.count_templated(1);
        Some(offload)
    }

    /// Counts a frame that [`Self::parse_plain`] parsed and that no other function handles.
    #[inline]
    pub(crate) fn count_plain(&mut self, bytes: usize, plain: &PlainSegment) {
        let stats = &mut self.stats;
        stats.rx_frames = stats.rx_frames.wrapping_add(1);
        stats.rx_bytes = stats.rx_bytes.wrapping_add(bytes as u64);
        stats.rx_delivered = stats.rx_delivered.wrapping_add(1);
        stats.rx_tcp_segments = stats.rx_tcp_segments.wrapping_add(1);
        let verified = u64::from(plain.verified_in_software);
        stats.rx_software_checksums = stats.rx_software_checksums.wrapping_add(verified);
    }
}

/// Parses the TCP segment at offset `at` of the frame; `flow` makes the four-tuple from our port and the peer's.
#[inline(always)]
fn parse_tcp<B: Buf>(
    segment: &[u8],
    at: usize,
    flow: impl FnOnce([u8; 4]) -> FourTuple,
    traffic_class: u8,
    verify: bool,
) -> Option<PlainSegment> {
    let (fixed, rest) = segment.split_first_chunk::<{ TcpHeader::LEN }>()?;
    let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = *fixed;
    let flags = TcpFlags::from_bits(flags);
    let (timestamps, headers) = match offset >> 4 {
        5 => (None, TcpHeader::LEN),
        8 => (Some(TcpOptions::timestamps_alone(rest.first_chunk()?)?), TcpHeader::LEN + 12),
        _ => return None,
    };
    if flags.without(TcpFlags::PSH) != TcpFlags::ACK {
        return None;
    }
    let flow = flow([d0, d1, s0, s1]);
    if verify {
        let (local, remote) = (flow.local().ip(), flow.remote().ip());
        let pseudo_header = Sum::pseudo_header(local, remote, IpProtocol::TCP, segment.len());
        if !pseudo_header.join(B::sum(segment)).is_valid() {
            return None;
        }
    }
    Some(PlainSegment {
        flow,
        seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
        ack: SeqNum::new(u32::from_be_bytes([a0, a1, a2, a3])),
        flags,
        window: u16::from_be_bytes([w0, w1]),
        timestamps,
        ecn: EcnField::of(traffic_class),
        start: u16::try_from(at.wrapping_add(headers)).ok()?,
        end: u16::try_from(at.wrapping_add(segment.len())).ok()?,
        verified_in_software: verify,
    })
}
