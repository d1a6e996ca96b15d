//! The link between a script and its stack, over IPv4 or IPv6.

use crate::setup::Setup;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tcp_stack::MacAddr;
use tcp_stack::wire::{
    ArpOperation, ArpPacket, EcnField, EtherType, EthernetHeader, Icmpv6Header, Icmpv6Message, IpProtocol,
    Ipv4Header, Ipv6Header, NeighborAdvertisement, NeighborSolicitation, Sum,
};

pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Link address of the peer, and the one that it moves to.
const PEER_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 3])];
/// Multicast group of all nodes (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const US_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// The addresses of a script's stack and peer, and the state of their link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    pub(crate) us: IpAddr,
    pub(crate) peer: IpAddr,
    /// Link address of the peer.
    mac: MacAddr,
    /// Link address of the peer before it moved: frames to it are lost.
    left: Option<MacAddr>,
    /// VLAN of the stack, and VLAN of the peer's frames.
    vlan: Option<u16>,
    pub(crate) peer_vlan: Option<u16>,
    /// Expected TTL or hop limit of the stack's packets.
    hops: u8,
}

impl Net {
    pub(crate) fn new(setup: &Setup) -> Self {
        let (us, peer) = if setup.ipv6 { (US_V6.into(), PEER_V6.into()) } else { (US.into(), PEER.into()) };
        let (vlan, hops) = (setup.stack.vlan, setup.stack.hop_limit);
        Self { us, peer, mac: PEER_MACS[0], left: None, vlan, peer_vlan: vlan, hops }
    }

    /// Moves the peer to its other link address.
    pub(crate) fn move_peer(&mut self) {
        self.left = Some(self.mac);
        self.mac = PEER_MACS[1];
    }

    /// Returns a unicast frame from the peer to the stack.
    fn frame(&self, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
        self.frame_to(OUR_MAC, ethertype, packet)
    }

    fn frame_to(&self, dst: MacAddr, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
        let ethernet = EthernetHeader { dst, src: self.mac, tci: self.peer_vlan, ethertype };
        let mut bytes = vec![0; ethernet.header_len()];
        assert!(ethernet.emit(&mut bytes));
        bytes.extend_from_slice(packet);
        bytes
    }

    /// Returns a packet from the peer.
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
                self.frame(EtherType::IPV4, &packet)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip =
                    Ipv6Header { src, dst, next_header: protocol, traffic_class, flow_label: 0, hop_limit };
                let mut packet = vec![0; Ipv6Header::LEN];
                ip.emit(payload.len(), packet.first_chunk_mut().unwrap());
                packet.extend_from_slice(payload);
                self.frame(EtherType::IPV6, &packet)
            }
            _ => unreachable!("ends of two families"),
        }
    }

    /// Returns a solicitation from the peer, from which the stack learns its link address.
    pub(crate) fn greeting(&self) -> Vec<u8> {
        let (IpAddr::V6(us), message) = (self.us, Icmpv6Message::NeighborSolicitation) else {
            return self.arp(ArpOperation::Request);
        };
        let mut body = [0; NeighborSolicitation::LEN];
        NeighborSolicitation { target: us, source_mac: Some(self.mac) }.emit(&mut body);
        self.neighbor_discovery(message, &body)
    }

    /// Returns the peer's answer to a solicitation.
    pub(crate) fn link_address(&self) -> Vec<u8> {
        let IpAddr::V6(peer) = self.peer else { return self.arp(ArpOperation::Reply) };
        let mut body = [0; NeighborAdvertisement::LEN];
        NeighborAdvertisement { target: peer, target_mac: Some(self.mac) }.emit(&mut body);
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

    fn arp(&self, operation: ArpOperation) -> Vec<u8> {
        let target_mac = OUR_MAC;
        let arp = ArpPacket { operation, sender_mac: self.mac, sender_ip: PEER, target_mac, target_ip: US };
        let mut body = [0; ArpPacket::LEN];
        arp.emit(&mut body);
        self.frame(EtherType::ARP, &body)
    }

    /// Returns an unsolicited announcement of the peer's link address: gratuitous ARP (RFC 5227 §2.3), an unsolicited
    /// advertisement (RFC 4861 §7.2.6).
    pub(crate) fn announcement(&self) -> Vec<u8> {
        let IpAddr::V6(peer) = self.peer else {
            let (operation, sender_mac) = (ArpOperation::Request, self.mac);
            let target_mac = MacAddr::UNSPECIFIED;
            let arp = ArpPacket { operation, sender_mac, sender_ip: PEER, target_mac, target_ip: PEER };
            let mut body = [0; ArpPacket::LEN];
            arp.emit(&mut body);
            return self.frame_to(MacAddr::BROADCAST, EtherType::ARP, &body);
        };
        let mut icmp = vec![0; Icmpv6Header::LEN + NeighborAdvertisement::LEN];
        let (header, body) = icmp.split_first_chunk_mut().unwrap();
        let advertisement = NeighborAdvertisement { target: peer, target_mac: Some(self.mac) };
        advertisement.emit(body.first_chunk_mut().unwrap());
        let message =
            Icmpv6Message::NeighborAdvertisement { router: false, solicited: false, overrides: true };
        Icmpv6Header { message }.emit(peer, ALL_NODES, body, header);
        let (next_header, traffic_class, hop_limit) = (IpProtocol::ICMPV6, 0, 255);
        let ip =
            Ipv6Header { src: peer, dst: ALL_NODES, next_header, traffic_class, flow_label: 0, hop_limit };
        let mut packet = vec![0; Ipv6Header::LEN];
        ip.emit(icmp.len(), packet.first_chunk_mut().unwrap());
        packet.extend(icmp);
        self.frame_to(MacAddr([0x33, 0x33, 0, 0, 0, 1]), EtherType::IPV6, &packet)
    }

    /// Returns an announcement of another station that claims the peer's address.
    pub(crate) fn forged(&self) -> Vec<u8> {
        Self { mac: PEER_MACS[1], ..*self }.announcement()
    }

    /// Returns the packet in a frame of the stack that reaches the peer.
    fn reaches<'a>(&self, frame: &'a [u8]) -> Option<(EthernetHeader, &'a [u8])> {
        let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
        assert_eq!((ethernet.src, ethernet.tci), (OUR_MAC, self.vlan));
        if Some(ethernet.dst) == self.left {
            return None;
        }
        assert!(ethernet.dst == self.mac || ethernet.dst.is_group(), "a frame to {}", ethernet.dst);
        Some((ethernet, packet))
    }

    /// Returns true if a frame of the stack solicits the peer's link address.
    pub(crate) fn asks(&self, frame: &[u8]) -> bool {
        let Some((ethernet, packet)) = self.reaches(frame) else { return false };
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

    /// Returns the TCP segment in a frame of the stack, with the ECN field of its packet.
    pub(crate) fn segment<'a>(&self, frame: &'a [u8]) -> Option<(EcnField, &'a [u8])> {
        let (ethernet, packet) = self.reaches(frame)?;
        let (class, hops, src, dst, protocol, segment): (_, _, IpAddr, IpAddr, _, _) =
            match ethernet.ethertype {
                EtherType::IPV4 => {
                    let (ip, _, segment) = Ipv4Header::parse(packet).unwrap();
                    (ip.traffic_class, ip.ttl, ip.src.into(), ip.dst.into(), ip.protocol, segment)
                }
                EtherType::IPV6 => {
                    let (ip, segment) = Ipv6Header::parse(packet).unwrap();
                    if ip.next_header == IpProtocol::ICMPV6 {
                        return None;
                    }
                    (ip.traffic_class, ip.hop_limit, ip.src.into(), ip.dst.into(), ip.next_header, segment)
                }
                _ => return None,
            };
        if protocol == IpProtocol::ICMPV4 {
            return None;
        }
        assert_eq!((src, dst, protocol, hops), (self.us, self.peer, IpProtocol::TCP, self.hops));
        let sum = Sum::pseudo_header(self.us, self.peer, IpProtocol::TCP, segment.len());
        assert!(sum.join(Sum::of(segment)).is_valid(), "a wrong checksum was sent");
        Some((EcnField::of(class), segment))
    }
}
