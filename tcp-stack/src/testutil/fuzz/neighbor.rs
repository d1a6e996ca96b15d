//! The peer's ARP and neighbor discovery frames.

use super::bench::{IPV4, IPV6, MAC, PEER_MAC};
use crate::wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, Icmpv6Header, Icmpv6Message, IpProtocol, Ipv6Header,
    NeighborAdvertisement, NeighborSolicitation,
};
use alloc::vec;
use alloc::vec::Vec;

/// Returns the answer to a frame that asks for the peer's link address, or `None`.
pub(super) fn answer(frame: &[u8]) -> Option<Vec<u8>> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    match ethernet.ethertype {
        EtherType::ARP => {
            let asked = ArpPacket::parse(packet).ok()?;
            (asked.operation == ArpOperation::Request && asked.target_ip == IPV4[1])
                .then(|| arp(ArpOperation::Reply))
        }
        EtherType::IPV6 => {
            let (ip, message) = Ipv6Header::parse(packet).ok()?;
            let (icmp, body) =
                Icmpv6Header::parse(message).ok().filter(|_| ip.next_header == IpProtocol::ICMPV6)?;
            let asks = icmp.message == Icmpv6Message::NeighborSolicitation;
            (asks && NeighborSolicitation::parse(body).ok()?.target == IPV6[1]).then(advertisement)
        }
        _ => None,
    }
}

/// Returns the peer's first solicitations, from which the stack learns its link address.
pub(super) fn questions() -> [Vec<u8>; 2] {
    [arp(ArpOperation::Request), solicitation()]
}

fn ethernet(ethertype: EtherType) -> Vec<u8> {
    let header = EthernetHeader { dst: MAC, src: PEER_MAC, tci: None, ethertype };
    let mut frame = vec![0; header.header_len()];
    header.emit(&mut frame);
    frame
}

fn arp(operation: ArpOperation) -> Vec<u8> {
    let packet = ArpPacket {
        operation,
        sender_mac: PEER_MAC,
        sender_ip: IPV4[1],
        target_mac: MAC,
        target_ip: IPV4[0],
    };
    let mut body = [0; ArpPacket::LEN];
    packet.emit(&mut body);
    let mut frame = ethernet(EtherType::ARP);
    frame.extend_from_slice(&body);
    frame
}

fn advertisement() -> Vec<u8> {
    let mut body = [0; NeighborAdvertisement::LEN];
    NeighborAdvertisement { target: IPV6[1], target_mac: Some(PEER_MAC) }.emit(&mut body);
    discovery(Icmpv6Message::NeighborAdvertisement { router: false, solicited: true, overrides: true }, &body)
}

fn solicitation() -> Vec<u8> {
    let mut body = [0; NeighborSolicitation::LEN];
    NeighborSolicitation { target: IPV6[0], source_mac: Some(PEER_MAC) }.emit(&mut body);
    discovery(Icmpv6Message::NeighborSolicitation, &body)
}

fn discovery(message: Icmpv6Message, body: &[u8]) -> Vec<u8> {
    let [dst, src] = IPV6;
    let mut icmp = [0; Icmpv6Header::LEN];
    Icmpv6Header { message }.emit(src, dst, body, &mut icmp);
    let ip = Ipv6Header {
        src,
        dst,
        next_header: IpProtocol::ICMPV6,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 255,
    };
    let mut header = [0; Ipv6Header::LEN];
    ip.emit(icmp.len() + body.len(), &mut header);
    let mut frame = ethernet(EtherType::IPV6);
    frame.extend_from_slice(&header);
    frame.extend_from_slice(&icmp);
    frame.extend_from_slice(body);
    frame
}
