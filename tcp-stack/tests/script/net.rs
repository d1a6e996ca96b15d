//! The link between a script and its stack, over IPv4 or IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tcp_stack::MacAddr;
use tcp_stack::wire::{
    ArpOperation, ArpPacket, EcnField, EtherType, EthernetHeader, Icmpv6Header, Icmpv6Message, IpProtocol,
    Ipv4Header, Ipv6Header, NeighborAdvertisement, NeighborSolicitation, Sum,
};

pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const US_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// The ends of a script's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    pub(crate) us: IpAddr,
    pub(crate) peer: IpAddr,
}

impl Net {
    pub(crate) fn new(ipv6: bool) -> Self {
        if ipv6 {
            Self { us: US_V6.into(), peer: PEER_V6.into() }
        } else {
            Self { us: US.into(), peer: PEER.into() }
        }
    }

    /// A frame from the peer.
    fn frame(ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
        let ethernet = EthernetHeader { dst: OUR_MAC, src: PEER_MAC, tci: None, ethertype };
        let mut bytes = vec![0; ethernet.header_len()];
        assert!(ethernet.emit(&mut bytes));
        bytes.extend_from_slice(packet);
        bytes
    }

    /// A packet from the peer.
    pub(crate) fn packet(&self, protocol: IpProtocol, ecn: EcnField, payload: &[u8]) -> Vec<u8> {
        let traffic_class = ecn.bits();
        let hop_limit = if protocol == IpProtocol::ICMPV6 { 255 } else { 64 };
        match (self.peer, self.us) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip =
                    Ipv4Header { traffic_class, ttl: hop_limit, ..Ipv4Header::atomic(src, dst, protocol) };
                let mut packet = vec![0; Ipv4Header::LEN];
                ip.emit(payload.len(), true, packet.first_chunk_mut().unwrap());
                packet.extend_from_slice(payload);
                Self::frame(EtherType::IPV4, &packet)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip =
                    Ipv6Header { src, dst, next_header: protocol, traffic_class, flow_label: 0, hop_limit };
                let mut packet = vec![0; Ipv6Header::LEN];
                ip.emit(payload.len(), packet.first_chunk_mut().unwrap());
                packet.extend_from_slice(payload);
                Self::frame(EtherType::IPV6, &packet)
            }
            _ => unreachable!("ends of two families"),
        }
    }

    /// A frame that tells the peer's link address before anybody asks: it asks for ours.
    pub(crate) fn greeting(&self) -> Vec<u8> {
        let (IpAddr::V6(us), message) = (self.us, Icmpv6Message::NeighborSolicitation) else {
            return Self::arp(ArpOperation::Request);
        };
        let mut body = [0; NeighborSolicitation::LEN];
        NeighborSolicitation { target: us, source_mac: Some(PEER_MAC) }.emit(&mut body);
        self.neighbor_discovery(message, &body)
    }

    /// A frame that tells the peer's link address to one who asked.
    pub(crate) fn link_address(&self) -> Vec<u8> {
        let IpAddr::V6(peer) = self.peer else { return Self::arp(ArpOperation::Reply) };
        let mut body = [0; NeighborAdvertisement::LEN];
        NeighborAdvertisement { target: peer, target_mac: Some(PEER_MAC) }.emit(&mut body);
        let message =
            Icmpv6Message::NeighborAdvertisement { router: false, solicited: true, overrides: true };
        self.neighbor_discovery(message, &body)
    }

    fn neighbor_discovery(&self, message: Icmpv6Message, body: &[u8]) -> Vec<u8> {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (self.peer, self.us) else { panic!("not IPv6") };
        let mut icmp = vec![0; Icmpv6Header::LEN];
        Icmpv6Header { message }.emit(src, dst, body, icmp.first_chunk_mut().unwrap());
        icmp.extend_from_slice(body);
        self.packet(IpProtocol::ICMPV6, EcnField::NotEct, &icmp)
    }

    fn arp(operation: ArpOperation) -> Vec<u8> {
        let target_mac = OUR_MAC;
        let arp = ArpPacket { operation, sender_mac: PEER_MAC, sender_ip: PEER, target_mac, target_ip: US };
        let mut body = [0; ArpPacket::LEN];
        arp.emit(&mut body);
        Self::frame(EtherType::ARP, &body)
    }

    /// Whether a frame of the stack asks for the peer's link address.
    pub(crate) fn asks(&self, frame: &[u8]) -> bool {
        let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
        match ethernet.ethertype {
            EtherType::ARP => ArpPacket::parse(packet).is_ok_and(|arp| {
                arp.operation == ArpOperation::Request && IpAddr::V4(arp.target_ip) == self.peer
            }),
            EtherType::IPV6 => {
                let (ip, message) = Ipv6Header::parse(packet).unwrap();
                ip.next_header == IpProtocol::ICMPV6
                    && Icmpv6Header::parse(message)
                        .is_ok_and(|(icmp, _)| icmp.message == Icmpv6Message::NeighborSolicitation)
            }
            _ => false,
        }
    }

    /// The TCP segment in a frame of the stack, and the ECN field that it travels under.
    pub(crate) fn segment<'a>(&self, frame: &'a [u8]) -> Option<(EcnField, &'a [u8])> {
        let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
        let (class, src, dst, protocol, segment): (_, IpAddr, IpAddr, _, _) = match ethernet.ethertype {
            EtherType::IPV4 => {
                let (ip, _, segment) = Ipv4Header::parse(packet).unwrap();
                (ip.traffic_class, ip.src.into(), ip.dst.into(), ip.protocol, segment)
            }
            EtherType::IPV6 => {
                let (ip, segment) = Ipv6Header::parse(packet).unwrap();
                if ip.next_header == IpProtocol::ICMPV6 {
                    return None;
                }
                (ip.traffic_class, ip.src.into(), ip.dst.into(), ip.next_header, segment)
            }
            _ => return None,
        };
        if protocol == IpProtocol::ICMPV4 {
            return None;
        }
        assert_eq!((src, dst, protocol), (self.us, self.peer, IpProtocol::TCP));
        let sum = Sum::pseudo_header(self.us, self.peer, IpProtocol::TCP, segment.len());
        assert!(sum.join(Sum::of(segment)).is_valid(), "a wrong checksum was sent");
        Some((EcnField::of(class), segment))
    }
}
