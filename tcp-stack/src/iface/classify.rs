//! Classifies a received frame by its bytes and our addresses alone, without side effects. [`Interface::receive`] calls
//! it for every frame that the fast path ([`plain`](super::plain)) does not take.

use super::fragments::{Fragment, Key};
use super::{DropReason, IcmpError, IcmpErrorKind, Interface};
use crate::buf::{Buf, RxChecksum};
use crate::wire::{
    ArpPacket, EtherType, EthernetHeader, Icmpv4Header, Icmpv4Message, Icmpv6Header, Icmpv6Message,
    IpProtocol, Ipv4Header, Ipv4Options, Ipv6Header, MacAddr, NeighborAdvertisement, NeighborSolicitation,
    ParseError, QuotedTcp, Sum, TcpHeader, TcpOptions, UpperLayer, solicited_node,
};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

/// A frame addressed to us, by content.
#[derive(Debug)]
pub(super) enum Classified {
    Tcp(Tcp),
    Icmp(IcmpError),
    Arp { packet: ArpPacket, to_us: bool },
    Ndp(Ndp),
    Echo(EchoRequest),
    Fragment(Fragment),
}

#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    pub(super) header: TcpHeader,
    pub(super) options: TcpOptions,
    pub(super) payload: Range<usize>,
    pub(super) traffic_class: u8,
    pub(super) src_mac: MacAddr,
    pub(super) verified_in_software: bool,
}

/// A valid message of neighbor discovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ndp {
    pub(super) src: Ipv6Addr,
    pub(super) src_mac: MacAddr,
    pub(super) body: NdpBody,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NdpBody {
    Solicitation(NeighborSolicitation),
    Advertisement { advertisement: NeighborAdvertisement, solicited: bool, overrides: bool },
}

/// An echo request, with the fields that the reply needs.
#[derive(Clone, Debug)]
pub(super) struct EchoRequest {
    /// Link address that the reply goes to.
    pub(super) mac: MacAddr,
    pub(super) remote: IpAddr,
    pub(super) local: IpAddr,
    /// Identifier and sequence number.
    pub(super) id: [u8; 4],
    /// Position of the ICMP message in the frame, at most as much as the reply has room for.
    pub(super) message: Range<usize>,
    /// Set if the reply carries only a part of the request.
    pub(super) truncated: bool,
}

/// The parts of an IP packet that its upper layer needs.
#[derive(Clone, Copy)]
struct Packet<'a> {
    ethernet: &'a EthernetHeader,
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    /// Payload of the upper layer, and its offset in the frame.
    payload: &'a [u8],
    offset: usize,
}

impl Packet<'_> {
    fn range(&self) -> Range<usize> {
        self.offset..self.offset.wrapping_add(self.payload.len())
    }
}

/// Returns the reason to drop an IP packet that does not parse.
#[cold]
fn ip_reason(error: ParseError) -> DropReason {
    match error {
        ParseError::Truncated { .. } => DropReason::IpTruncated,
        ParseError::Version | ParseError::Length => DropReason::IpMalformed,
        ParseError::TooManyExtensions | ParseError::Extension => DropReason::IpExtension,
    }
}

impl<B: Buf> Interface<B> {
    #[inline]
    pub(super) fn classify(&self, frame: &[u8], checksum: RxChecksum) -> Result<Classified, DropReason> {
        let Ok((ethernet, payload)) = EthernetHeader::parse(frame) else {
            return Err(DropReason::EthernetTruncated);
        };
        // A port in promiscuous mode also receives frames for other stations.
        if ethernet.dst != self.config.mac && !ethernet.dst.is_group() {
            return Err(DropReason::EthernetNotOurs);
        }
        if ethernet.src.is_group() {
            return Err(DropReason::EthernetSource);
        }
        if ethernet.vlan() != self.config.vlan {
            return Err(DropReason::EthernetVlan);
        }
        match ethernet.ethertype {
            EtherType::IPV4 => self.classify_ipv4(&ethernet, payload, checksum),
            EtherType::IPV6 => self.classify_ipv6(&ethernet, payload, checksum),
            EtherType::ARP => {
                let packet = ArpPacket::parse(payload).map_err(|_| DropReason::ArpMalformed)?;
                Ok(Classified::Arp { packet, to_us: !ethernet.dst.is_group() })
            }
            _ => Err(DropReason::EthernetType),
        }
    }

    #[inline]
    fn classify_ipv4(
        &self,
        ethernet: &EthernetHeader,
        packet: &[u8],
        checksum: RxChecksum,
    ) -> Result<Classified, DropReason> {
        let (header, header_bytes, payload) = Ipv4Header::parse(packet).map_err(ip_reason)?;
        if checksum.leaves_ip() && !Ipv4Header::is_checksum_valid(header_bytes) {
            return Err(DropReason::IpChecksum);
        }
        if self.config.ipv4.is_none_or(|ours| ours.address() != header.dst) {
            return Err(DropReason::IpNotOurs);
        }
        // Before reassembly: "the processing of IP options (including a source route) must precede" it (RFC 1122
        // §3.2.1.8).
        let options = header_bytes.get(Ipv4Header::LEN..).unwrap_or_default();
        if !options.is_empty() {
            match Ipv4Options::read(options) {
                Ipv4Options::Plain => {}
                Ipv4Options::Routed => return Err(DropReason::IpSourceRoute),
                Ipv4Options::Malformed => return Err(DropReason::IpOptions),
            }
        }
        // RFC 1122 §3.3.6: "A host SHOULD silently discard a datagram that is received via a link-layer
        // broadcast [...] but does not specify an IP multicast or broadcast destination address."
        if ethernet.dst.is_group() {
            return Err(DropReason::IpLinkBroadcast);
        }
        let looped = checksum == RxChecksum::Looped && self.is_local(header.src.into());
        if !looped && !self.is_ipv4_source(header.src) {
            return Err(DropReason::IpSource);
        }
        let offset = ethernet.header_len().wrapping_add(header_bytes.len());
        if header.is_fragment() {
            return fragment_ipv4(&header, ethernet.header_len(), offset, payload);
        }
        let packet = Packet {
            ethernet,
            src: header.src.into(),
            dst: header.dst.into(),
            traffic_class: header.traffic_class,
            payload,
            offset,
        };
        match header.protocol {
            IpProtocol::TCP => classify_tcp(packet, checksum),
            IpProtocol::ICMPV4 => self.classify_icmpv4(packet),
            _ => Err(DropReason::IpProtocol),
        }
    }

    /// Returns true if a packet may have this source address (RFC 1122 §3.2.1.3; RFC 1812 §5.3.7).
    #[inline]
    pub(super) fn is_ipv4_source(&self, src: Ipv4Addr) -> bool {
        let [first, ..] = src.octets();
        let Some(ours) = self.config.ipv4 else { return false };
        // 0/8 is "this network", 127/8 loopback; 224/4 is multicast, 240/4 class E and broadcast.
        !matches!(first, 0 | 127 | 224..)
            && src != ours.address()
            && Some(src) != ours.broadcast()
            && Some(src) != ours.network()
    }

    /// Returns true if a packet may have this source address, our own addresses aside.
    #[inline]
    pub(super) fn is_ipv6_source(src: Ipv6Addr) -> bool {
        !src.is_multicast() && !src.is_loopback() && src.to_ipv4_mapped().is_none()
    }

    #[inline]
    fn classify_ipv6(
        &self,
        ethernet: &EthernetHeader,
        packet: &[u8],
        checksum: RxChecksum,
    ) -> Result<Classified, DropReason> {
        let (header, payload) = Ipv6Header::parse(packet).map_err(ip_reason)?;
        let to_us = self.is_local(header.dst.into());
        if !to_us && !self.is_our_group(header.dst) {
            return Err(DropReason::IpNotOurs);
        }
        if to_us && ethernet.dst.is_group() {
            return Err(DropReason::IpLinkBroadcast);
        }
        if !Self::is_ipv6_source(header.src)
            // Neighbor discovery handles its own packets: it must notice another station with our address.
            || (self.is_local(header.src.into())
                && header.next_header != IpProtocol::ICMPV6
                && checksum != RxChecksum::Looped)
        {
            return Err(DropReason::IpSource);
        }
        let upper = UpperLayer::find(header.next_header, payload).map_err(ip_reason)?;
        let walked = payload.len().wrapping_sub(upper.payload.len());
        if let Some(fragment) = upper.fragment {
            if fragment.is_fragment() {
                // Fragmented packets to a multicast group are dropped.
                let ours = to_us && !header.src.is_unspecified();
                let at = ethernet.header_len();
                return if ours {
                    fragment_ipv6(&header, &upper, at, walked)
                } else {
                    Err(DropReason::IpNotOurs)
                };
            }
            // RFC 6980 §5: "Nodes MUST silently ignore" messages of neighbor discovery that have a fragment
            // header, be it an atomic one.
            if upper.protocol == IpProtocol::ICMPV6 && matches!(upper.payload, [133..=137, ..]) {
                return Err(DropReason::NdpInvalid);
            }
        }
        let packet = Packet {
            ethernet,
            src: header.src.into(),
            dst: header.dst.into(),
            traffic_class: header.traffic_class,
            payload: upper.payload,
            offset: ethernet.header_len().wrapping_add(Ipv6Header::LEN).wrapping_add(walked),
        };
        match upper.protocol {
            // RFC 4291 §2.5.2: the unspecified address is a source only while a node has none.
            IpProtocol::TCP if header.src.is_unspecified() => Err(DropReason::IpSource),
            IpProtocol::TCP if !to_us => Err(DropReason::IpNotOurs),
            IpProtocol::TCP => classify_tcp(packet, checksum),
            IpProtocol::ICMPV6 => self.classify_icmpv6(&header, packet),
            _ => Err(DropReason::IpProtocol),
        }
    }

    /// Returns true if a multicast group is one that we listen to: all nodes, or the solicited-node group of an address
    /// of ours.
    fn is_our_group(&self, group: Ipv6Addr) -> bool {
        const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        self.config.ipv6.is_some_and(|ours| {
            group == ALL_NODES
                || group == solicited_node(ours.address())
                || group == solicited_node(self.link_local)
        })
    }

    #[cold]
    #[inline(never)]
    fn classify_icmpv4(&self, packet: Packet<'_>) -> Result<Classified, DropReason> {
        let Ok((icmp, body)) = Icmpv4Header::parse(packet.payload) else {
            return Err(DropReason::IcmpTruncated);
        };
        if !Icmpv4Header::is_checksum_valid(packet.payload) {
            return Err(DropReason::IcmpChecksum);
        }
        let kind = match icmp.message {
            Icmpv4Message::EchoRequest(id) => return Ok(Classified::Echo(echo(packet, packet.dst, id))),
            Icmpv4Message::FragmentationNeeded { mtu } => IcmpErrorKind::PacketTooBig { mtu: mtu.into() },
            // RFC 1122 §4.2.3.9, codes 2 to 4: "These are hard error conditions, so TCP SHOULD abort the
            // connection" (but 4, fragmentation needed, is none since RFC 1191).
            Icmpv4Message::Unreachable { code: 2 | 3 } => IcmpErrorKind::Hard,
            Icmpv4Message::Unreachable { .. }
            | Icmpv4Message::TimeExceeded { .. }
            | Icmpv4Message::ParameterProblem { .. } => IcmpErrorKind::Soft,
            Icmpv4Message::EchoReply(_) | Icmpv4Message::Unknown { .. } => {
                return Err(DropReason::IcmpUnused);
            }
        };
        self.classify_error(Icmpv4Header::quoted_tcp(body), kind)
    }

    #[cold]
    #[inline(never)]
    fn classify_icmpv6(&self, ip: &Ipv6Header, packet: Packet<'_>) -> Result<Classified, DropReason> {
        let Ok((icmp, body)) = Icmpv6Header::parse(packet.payload) else {
            return Err(DropReason::IcmpTruncated);
        };
        if !Icmpv6Header::is_checksum_valid(ip.src, ip.dst, packet.payload) {
            return Err(DropReason::IcmpChecksum);
        }
        let kind = match icmp.message {
            Icmpv6Message::NeighborSolicitation | Icmpv6Message::NeighborAdvertisement { .. } => {
                let body = self.ndp_body(ip, icmp.message, body).ok_or(DropReason::NdpInvalid)?;
                let src_mac = packet.ethernet.src;
                return Ok(Classified::Ndp(Ndp { src: ip.src, src_mac, body }));
            }
            _ if ip.src.is_unspecified() || self.is_local(ip.src.into()) => return Err(DropReason::IpSource),
            Icmpv6Message::EchoRequest(id) => {
                // RFC 4443 §4.2: the reply to a request that was sent to a multicast address has "a
                // unicast address belonging to the interface" as its source.
                let local =
                    if ip.dst.is_multicast() { self.source_for(packet.src) } else { Some(packet.dst) };
                let local = local.ok_or(DropReason::IpNotOurs)?;
                return Ok(Classified::Echo(echo(packet, local, id)));
            }
            Icmpv6Message::PacketTooBig { mtu } => IcmpErrorKind::PacketTooBig { mtu },
            // To TCP, port unreachable and an unknown upper-layer protocol are the same as IPv4's codes 2 and 3.
            Icmpv6Message::Unreachable { code: 4 } | Icmpv6Message::ParameterProblem { code: 1 } => {
                IcmpErrorKind::Hard
            }
            Icmpv6Message::Unreachable { .. }
            | Icmpv6Message::TimeExceeded { .. }
            | Icmpv6Message::ParameterProblem { .. } => IcmpErrorKind::Soft,
            Icmpv6Message::EchoReply(_)
            | Icmpv6Message::RouterSolicitation
            | Icmpv6Message::RouterAdvertisement
            | Icmpv6Message::Unknown { .. } => return Err(DropReason::IcmpUnused),
        };
        self.classify_error(Icmpv6Header::quoted_tcp(body), kind)
    }

    fn classify_error(
        &self,
        quoted: Option<QuotedTcp>,
        kind: IcmpErrorKind,
    ) -> Result<Classified, DropReason> {
        match quoted {
            Some(QuotedTcp { src, dst, seq, packet_len }) if self.is_local(src.ip()) => {
                Ok(Classified::Icmp(IcmpError { local: src, remote: dst, seq, packet_len, kind }))
            }
            _ => Err(DropReason::IcmpQuote),
        }
    }

    /// Returns a message of neighbor discovery if RFC 4861 §7.1.1 or §7.1.2 calls it valid.
    fn ndp_body(&self, ip: &Ipv6Header, message: Icmpv6Message, body: &[u8]) -> Option<NdpBody> {
        // "The IP Hop Limit field has a value of 255, i.e., the packet could not possibly have been
        // forwarded by a router."
        if ip.hop_limit != 255 {
            return None;
        }
        if let Icmpv6Message::NeighborAdvertisement { solicited, overrides, .. } = message {
            let advertisement = NeighborAdvertisement::parse(body).ok()?;
            // "Target Address is not a multicast address", and "If the IP Destination Address is a
            // multicast address the Solicited flag is zero."
            let invalid = ip.src.is_unspecified()
                || advertisement.target.is_multicast()
                || ip.dst.is_multicast() && solicited;
            let body = NdpBody::Advertisement { advertisement, solicited, overrides };
            return (!invalid).then_some(body);
        }
        let solicitation = NeighborSolicitation::parse(body).ok()?;
        // "If the IP source address is the unspecified address, the IP destination address is a
        // solicited-node multicast address", and "there is no source link-layer address option".
        let valid = !solicitation.target.is_multicast()
            && (!ip.src.is_unspecified()
                || (ip.dst == solicited_node(solicitation.target) && solicitation.source_mac.is_none()));
        valid.then_some(NdpBody::Solicitation(solicitation))
    }
}

/// Fails unless the payload of a first fragment begins with a whole upper-layer header.
fn has_upper_header(protocol: IpProtocol, payload: &[u8]) -> Result<(), DropReason> {
    let whole = match protocol {
        IpProtocol::TCP => TcpHeader::parse(payload).is_ok(),
        IpProtocol::ICMPV4 | IpProtocol::ICMPV6 => payload.len() >= Icmpv6Header::LEN,
        _ => return Err(DropReason::IpProtocol),
    };
    if whole { Ok(()) } else { Err(DropReason::FragmentHeaders) }
}

/// Returns a fragment if it can be part of a packet.
fn valid_fragment(fragment: Fragment) -> Result<Classified, DropReason> {
    if fragment.is_valid() { Ok(Classified::Fragment(fragment)) } else { Err(DropReason::FragmentMalformed) }
}

#[cold]
#[inline(never)]
fn fragment_ipv4(
    header: &Ipv4Header,
    ip_at: usize,
    offset: usize,
    payload: &[u8],
) -> Result<Classified, DropReason> {
    if !matches!(header.protocol, IpProtocol::TCP | IpProtocol::ICMPV4) {
        return Err(DropReason::IpProtocol);
    }
    // RFC 1858 §3: a "tiny fragment" would hide the header from packet filters.
    if header.fragment_offset == 0 {
        has_upper_header(header.protocol, payload)?;
    }
    valid_fragment(Fragment {
        key: Key {
            src: header.src.into(),
            dst: header.dst.into(),
            identification: header.identification.into(),
            protocol: header.protocol.0,
        },
        ip_at,
        payload: offset..offset.wrapping_add(payload.len()),
        offset: u32::from(header.fragment_offset).wrapping_mul(8),
        more: header.more_fragments,
        ecn: header.traffic_class & 3,
    })
}

/// Returns the fragment in an IPv6 packet. `walked` is the length of its extension headers, the fragment header
/// included.
#[cold]
#[inline(never)]
fn fragment_ipv6(
    header: &Ipv6Header,
    upper: &UpperLayer<'_>,
    ip_at: usize,
    walked: usize,
) -> Result<Classified, DropReason> {
    let Some(fragment) = upper.fragment else { return Err(DropReason::IpExtension) };
    if fragment.offset == 0 {
        // RFC 8200 §4.5: "If the first fragment does not include all headers through an Upper-Layer
        // header, then that fragment should be discarded".
        let inner = UpperLayer::find(upper.protocol, upper.payload).map_err(|error| match error {
            ParseError::Truncated { .. } => DropReason::FragmentHeaders,
            error => ip_reason(error),
        })?;
        if inner.fragment.is_some() {
            return Err(DropReason::IpExtension);
        }
        has_upper_header(inner.protocol, inner.payload)?;
    }
    let offset = ip_at.wrapping_add(Ipv6Header::LEN).wrapping_add(walked);
    valid_fragment(Fragment {
        key: Key {
            src: header.src.into(),
            dst: header.dst.into(),
            identification: fragment.identification,
            protocol: 0,
        },
        ip_at,
        payload: offset..offset.wrapping_add(upper.payload.len()),
        offset: u32::from(fragment.offset).wrapping_mul(8),
        more: fragment.more_fragments,
        ecn: header.traffic_class & 3,
    })
}

fn echo(packet: Packet<'_>, local: IpAddr, id: [u8; 4]) -> EchoRequest {
    let (mac, remote, message) = (packet.ethernet.src, packet.src, packet.range());
    EchoRequest { mac, remote, local, id, message, truncated: false }
}

#[inline]
fn classify_tcp(packet: Packet<'_>, checksum: RxChecksum) -> Result<Classified, DropReason> {
    let (header, options, payload) = TcpHeader::parse(packet.payload).map_err(|error| match error {
        ParseError::Truncated { .. } => DropReason::TcpTruncated,
        _ => DropReason::TcpMalformed,
    })?;
    // A checksum that the port calls bad is verified again: some ports do so for packets that they do not understand.
    let verify = checksum.leaves_transport();
    if verify {
        let len = packet.payload.len();
        let pseudo_header = Sum::pseudo_header(packet.dst, packet.src, IpProtocol::TCP, len);
        if !pseudo_header.join(Sum::of(packet.payload)).is_valid() {
            return Err(DropReason::TcpChecksum);
        }
    }
    let end = packet.offset.wrapping_add(packet.payload.len());
    Ok(Classified::Tcp(Tcp {
        local: packet.dst,
        remote: packet.src,
        header,
        options: TcpOptions::parse(options),
        payload: end.wrapping_sub(payload.len())..end,
        traffic_class: packet.traffic_class,
        src_mac: packet.ethernet.src,
        verified_in_software: verify,
    }))
}
