//! Wire formats of Ethernet, ARP and neighbor discovery.

use etherparse::{EtherType as JudgeEtherType, NetHeaders, PacketBuilder, PacketHeaders};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};
use tcp_stack::testutil::hex;
use tcp_stack::wire::*;

const A: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x0a]);
const B: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x0b]);

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

#[test]
fn ethernet_figure() {
    let bytes = hex("ffffffffffff 02000000000a 0806 99");
    let (header, payload) = EthernetHeader::parse(&bytes).unwrap();
    assert_eq!(
        header,
        EthernetHeader { dst: MacAddr::BROADCAST, src: A, tci: None, ethertype: EtherType::ARP }
    );
    assert_eq!((payload, header.header_len(), header.vlan()), (&[0x99][..], 14, None));

    let bytes = hex("02000000000b 02000000000a 8100 6064 86dd 99");
    let (header, payload) = EthernetHeader::parse(&bytes).unwrap();
    assert_eq!(header, EthernetHeader { dst: B, src: A, tci: Some(0x6064), ethertype: EtherType::IPV6 });
    assert_eq!((payload, header.header_len(), header.vlan()), (&[0x99][..], 18, Some(100)));

    let priority_only = hex("02000000000b 02000000000a 8100 e000 0800");
    assert_eq!(EthernetHeader::parse(&priority_only).unwrap().0.vlan(), None);
}

#[test]
fn ethernet_prefixes_are_truncated() {
    for frame in [hex("ffffffffffff 02000000000a 0806"), hex("02000000000b 02000000000a 8100 6064 86dd")] {
        for len in 0..frame.len() {
            let error = EthernetHeader::parse(&frame[..len]).unwrap_err();
            assert!(matches!(error, ParseError::Truncated { need, have } if have == len && need > len));
        }
        let (header, _) = EthernetHeader::parse(&frame).unwrap();
        assert!(!header.emit(&mut vec![0; frame.len() - 1]));
    }
}

#[test]
fn arp_figure() {
    let bytes = hex("0001 0800 06 04 0001 02000000000a 0a4d0001 000000000000 0a4d0002 ffff");
    let packet = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: A,
        sender_ip: Ipv4Addr::new(10, 77, 0, 1),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: Ipv4Addr::new(10, 77, 0, 2),
    };
    assert_eq!(ArpPacket::parse(&bytes), Ok(packet));
    let mut out = [0; ArpPacket::LEN];
    packet.emit(&mut out);
    assert_eq!(out, bytes[..28]);
    for len in 0..28 {
        assert_eq!(ArpPacket::parse(&bytes[..len]), Err(ParseError::Truncated { need: 28, have: len }));
    }
    // Another hardware type, protocol type, or address length.
    for at in 0..6 {
        let mut other = bytes.clone();
        other[at] ^= 0x10;
        assert_eq!(ArpPacket::parse(&other), Err(ParseError::Version));
    }
}

#[test]
fn arp_of_etherparse_is_parsed() {
    let judge = etherparse::ArpPacket::new(
        etherparse::ArpHardwareId::ETHERNET,
        JudgeEtherType::IPV4,
        etherparse::ArpOperation::REPLY,
        &A.0,
        &[10, 77, 0, 1],
        &B.0,
        &[10, 77, 0, 2],
    )
    .unwrap();
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(A.0, B.0).arp(judge).write(&mut frame).unwrap();
    let (ethernet, payload) = EthernetHeader::parse(&frame).unwrap();
    assert_eq!((ethernet.src, ethernet.dst, ethernet.ethertype), (A, B, EtherType::ARP));
    let packet = ArpPacket::parse(payload).unwrap();
    assert_eq!(packet.operation, ArpOperation::Reply);
    assert_eq!((packet.sender_mac, packet.sender_ip), (A, Ipv4Addr::new(10, 77, 0, 1)));
    assert_eq!((packet.target_mac, packet.target_ip), (B, Ipv4Addr::new(10, 77, 0, 2)));
    let mut out = [0; ArpPacket::LEN];
    packet.emit(&mut out);
    assert_eq!(out, payload[..28]);
    let judged = PacketHeaders::from_ethernet_slice(&frame).unwrap();
    assert!(matches!(judged.net, Some(NetHeaders::Arp(_))));
}

#[test]
fn ndp_figure() {
    let target: Ipv6Addr = "fd77::2".parse().unwrap();
    let bytes = hex("fd770000000000000000000000000002 01 01 02000000000a");
    let solicitation = NeighborSolicitation { target, source_mac: Some(A) };
    assert_eq!(NeighborSolicitation::parse(&bytes), Ok(solicitation));
    let mut out = [0; NeighborSolicitation::LEN];
    solicitation.emit(&mut out);
    assert_eq!(out, bytes[..]);
    // The source's address is not the target's, and a nonce (RFC 3971) is skipped.
    assert_eq!(NeighborAdvertisement::parse(&bytes).unwrap().target_mac, None);
    let bytes = hex("fd770000000000000000000000000002 0e01a1a2a3a4a5a6 0201 02000000000b");
    let advertisement = NeighborAdvertisement { target, target_mac: Some(B) };
    assert_eq!(NeighborAdvertisement::parse(&bytes), Ok(advertisement));
    // RFC 4861 §4.6: "Nodes MUST silently discard an ND packet that contains an option with length zero."
    let bytes = hex("fd770000000000000000000000000002 0e00 a1a2a3a4a5a6");
    assert_eq!(NeighborAdvertisement::parse(&bytes), Err(ParseError::Length));
    for len in (0..16).chain([18, 23]) {
        let bytes = hex("fd770000000000000000000000000002 0201 02000000000b");
        assert!(matches!(NeighborAdvertisement::parse(&bytes[..len]), Err(ParseError::Truncated { .. })));
    }
}

proptest! {
    #[test]
    fn ethernet_round_trip(
        dst in mac(),
        src in mac(),
        tci: Option<u16>,
        ethertype in any::<u16>().prop_filter("a tag inside a tag", |value| *value != 0x8100),
        payload: Vec<u8>,
    ) {
        let header = EthernetHeader { dst, src, tci, ethertype: EtherType(ethertype) };
        let mut frame = vec![0; header.header_len()];
        prop_assert!(header.emit(&mut frame));
        frame.extend(&payload);
        prop_assert_eq!(EthernetHeader::parse(&frame), Ok((header, &payload[..])));
    }

    #[test]
    fn arp_round_trip(operation: u16, a in mac(), b in mac(), ip: u32, other: u32) {
        let operation = match operation {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            other => ArpOperation::Unknown(other),
        };
        let packet = ArpPacket {
            operation,
            sender_mac: a,
            sender_ip: ip.into(),
            target_mac: b,
            target_ip: other.into(),
        };
        let mut out = [0; ArpPacket::LEN];
        packet.emit(&mut out);
        prop_assert_eq!(ArpPacket::parse(&out), Ok(packet));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        let _ = EthernetHeader::parse(&bytes);
        let _ = ArpPacket::parse(&bytes);
        let _ = NeighborSolicitation::parse(&bytes);
        let _ = NeighborAdvertisement::parse(&bytes);
    }
}
