//! Tests of ARP and neighbor discovery in both directions.

use super::*;

#[test]
fn arp_requests_are_answered_and_fill_the_cache() {
    let mut lab = Lab::new(config());
    lab.receive(&arp(ArpOperation::Request, (PEER, V4_PEER), V4, MacAddr::BROADCAST));
    let frames = lab.transmit();
    let [frame] = &frames[..] else { panic!("{frames:?}") };
    let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
    assert_eq!((ethernet.dst, ethernet.src, ethernet.ethertype), (PEER, OURS, EtherType::ARP));
    assert_eq!(
        ArpPacket::parse(packet).unwrap(),
        ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: OURS,
            sender_ip: V4,
            target_mac: PEER,
            target_ip: V4_PEER,
        }
    );
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Ok(PEER));
    // A probe (RFC 5227) is answered and does not change the cache.
    lab.receive(&arp(ArpOperation::Request, (PEER, Ipv4Addr::UNSPECIFIED), V4, MacAddr::BROADCAST));
    assert_eq!(lab.transmit().len(), 1);
    assert_eq!(lab.interface.stats().tx_arp_replies, 2);
}

#[test]
fn invalid_arp_is_dropped() {
    let mut lab = Lab::new(config());
    let all = MacAddr::BROADCAST;
    let request = |sender, target| arp(ArpOperation::Request, sender, target, all);
    lab.expect_drop(&request((PEER, V4_PEER), Ipv4Addr::new(10, 77, 0, 9)), DropReason::ArpNotOurs);
    lab.expect_drop(&request((PEER, V4), V4_PEER), DropReason::ArpConflict);
    lab.expect_drop(&request((OURS, V4), V4), DropReason::ArpInvalid);
    lab.expect_drop(&request((PEER, V4_FAR), V4), DropReason::ArpInvalid);
    lab.expect_drop(&request((PEER, Ipv4Addr::new(10, 77, 0, 255)), V4), DropReason::ArpInvalid);
    let odd = arp(ArpOperation::Unknown(3), (PEER, V4_PEER), V4, all);
    lab.expect_drop(&odd, DropReason::ArpInvalid);
    let reply = arp(ArpOperation::Reply, (PEER, V4_PEER), V4, OURS);
    lab.expect_drop(&reply, DropReason::ArpNotOurs);
    lab.expect_drop(&reply[..41], DropReason::ArpMalformed);
    let mut group = request((PEER, V4_PEER), V4);
    group[22] |= 1;
    lab.expect_drop(&group, DropReason::ArpInvalid);
    lab.expect_drop(&request((PEER, Ipv4Addr::new(10, 77, 0, 0)), V4), DropReason::ArpInvalid);
    // Only the conflict is answered, by announcements.
    assert_eq!(lab.transmit().len(), 3);
}

/// RFC 5227 §2.4 (b): an address that another station claims is defended once in ten seconds.
#[test]
fn address_defense_is_rate_limited() {
    let claim = arp(ArpOperation::Request, (PEER, V4), V4, MacAddr::BROADCAST);
    let advertisement = ndp_body("fd77::2", Some((2, PEER)));
    let claim_v6 = icmpv6(v6("fd77::2"), v6("ff02::1"), 255, 136, [0x20, 0, 0, 0], &advertisement);
    let question = ndp_body("fd77::9", Some((1, PEER)));
    let asks_v6 = icmpv6(v6("fd77::2"), v6("fd77::2"), 255, 135, [0; 4], &question);
    for (frame, reason) in [
        (claim, DropReason::ArpConflict),
        (claim_v6, DropReason::NdpConflict),
        (asks_v6, DropReason::NdpConflict),
    ] {
        let mut lab = Lab::new(config());
        for n in 0..100 {
            let now = Instant::from_millis(200 * n);
            lab.receive_at(now, &frame, RxChecksum::Unknown);
        }
        let mut expected = Drops::default();
        (0..100).for_each(|_| expected.count(reason));
        assert_eq!(*lab.interface.drops(), expected);
        assert_eq!(lab.transmit().len(), 6);
    }
    let mut lab = Lab::new(config());
    let claim_v6 = icmpv6(v6("fd77::9"), v6("ff02::1"), 255, 136, [0x20, 0, 0, 0], &advertisement);
    lab.expect_drop(&claim_v6, DropReason::NdpConflict);
    lab.expect_drop(&claim_v6, DropReason::NdpConflict);
    assert_eq!(lab.transmit().len(), 3);
    // Our own frames, reflected.
    let mut reflected = claim_v6.clone();
    reflected[6..12].copy_from_slice(&OURS.0);
    lab.expect_drop(&reflected, DropReason::NdpInvalid);
    // A ping from our own address is no claim.
    lab.expect_drop(&icmpv6(v6("fd77::2"), v6("fd77::2"), 64, 128, [0; 4], b"ping"), DropReason::IpSource);
    assert!(lab.transmit().is_empty());
    let mut lab = Lab::new(InterfaceConfig { primary: false, ..config() });
    lab.expect_drop(&claim_v6, DropReason::NdpConflict);
    assert!(lab.transmit().is_empty());
}

/// The host's own stack may have given its interface another link-local address than the usual one.
#[test]
fn a_given_link_local_address_is_ours() {
    let given = v6("fe80::77");
    let mut lab = Lab::new(InterfaceConfig { ipv6_link_local: Some(given), ..config() });
    assert!(lab.interface.is_local(given.into()) && !lab.interface.is_local(OURS.link_local().into()));
    assert_eq!(lab.interface.source_for(v6("fe80::1").into()), Some(given.into()));
    let solicitation = icmpv6(v6("fd77::1"), given, 255, 135, [0; 4], &ndp_body("fe80::77", Some((1, PEER))));
    lab.receive(&solicitation);
    assert_eq!(lab.transmit().len(), 1);
}

/// Entries and answers in a VLAN carry its tag.
#[test]
fn neighbors_in_a_vlan() {
    let mut lab = Lab::new(InterfaceConfig { vlan: Some(100), ..config() });
    let tag = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0x60, 100], &frame[12..]].concat();
    let question = arp(ArpOperation::Request, (PEER, V4_PEER), V4, MacAddr::BROADCAST);
    let body = ndp_body("fd77::2", Some((1, PEER)));
    let solicitation = icmpv6(v6("fd77::1"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &body);
    for frame in [&question, &solicitation, &ping_v4(b"ping")] {
        lab.expect_drop(frame, DropReason::EthernetVlan);
        lab.receive(&tag(frame));
        let sent = lab.transmit();
        assert_eq!((sent.len(), &sent[0][..6], &sent[0][12..16]), (1, &PEER.0[..], &[0x81, 0, 0, 100][..]));
    }
    for peer in [IpAddr::from(V4_PEER), v6("fd77::1").into()] {
        assert_eq!(lab.interface.resolve(Instant::ZERO, peer), Ok(PEER));
    }
}

#[test]
fn a_next_hop_is_resolved_by_arp() {
    let mut lab = Lab::new(config());
    let before = lab.interface.resolutions();
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_FAR.into()), Err(NotReady::Resolving));
    let frames = lab.transmit();
    let (ethernet, packet) = EthernetHeader::parse(&frames[0]).unwrap();
    let packet = ArpPacket::parse(packet).unwrap();
    assert_eq!((ethernet.dst, packet.operation), (MacAddr::BROADCAST, ArpOperation::Request));
    assert_eq!((packet.sender_ip, packet.target_ip), (V4, V4_GATEWAY));
    lab.interface.handle_timeouts(Instant::from_millis(1_000));
    assert_eq!(lab.transmit(), [frames[0].clone()]);
    let now = Instant::from_millis(1_500);
    let reply = arp(ArpOperation::Reply, (PEER, V4_GATEWAY), V4, OURS);
    lab.receive_at(now, &reply, RxChecksum::Unknown);
    assert_ne!(lab.interface.resolutions(), before);
    assert_eq!(lab.interface.resolve(now, V4_FAR.into()), Ok(PEER));
    assert_eq!(lab.interface.resolve(now, V4_GATEWAY.into()), Ok(PEER));
    lab.interface.confirm(now, V4_FAR.into());
    lab.interface.handle_timeouts(Instant::from_millis(10_000));
    assert!(lab.transmit().is_empty() && lab.interface.next_deadline().is_none());
    let stats = lab.interface.stats();
    assert_eq!((stats.tx_arp_requests, stats.neighbors_resolved), (5, 1));
    let mut lab = Lab::new(InterfaceConfig { ipv4_gateway: None, ..config() });
    assert_eq!(lab.interface.resolve(now, V4_FAR.into()), Err(NotReady::NoRoute));
}

#[test]
fn a_neighbor_that_does_not_answer_is_unreachable() {
    let mut lab = Lab::new(config());
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Err(NotReady::Resolving));
    let mut last = Instant::ZERO;
    while let Some(deadline) = lab.interface.next_deadline() {
        last = deadline;
        lab.interface.handle_timeouts(deadline);
    }
    assert_eq!(lab.transmit().len(), 3);
    assert_eq!(lab.interface.resolve(last, V4_PEER.into()), Err(NotReady::Unreachable));
    assert_eq!(lab.interface.stats().neighbors_failed, 1);
}

#[test]
fn neighbor_discovery_both_ways() {
    let mut lab = Lab::new(config());
    let (peer, now) = (v6("fd77::1"), Instant::ZERO);
    assert_eq!(lab.interface.resolve(now, peer.into()), Err(NotReady::Resolving));
    let frames = lab.transmit();
    let judged = PacketHeaders::from_ethernet_slice(&frames[0]).unwrap();
    let Some(NetHeaders::Ipv6(ip, _)) = judged.net else { panic!() };
    assert_eq!(
        (Ipv6Addr::from(ip.source), Ipv6Addr::from(ip.destination)),
        (v6("fd77::2"), v6("ff02::1:ff00:1"))
    );
    assert_eq!((ip.hop_limit, &frames[0][..6]), (255, &[0x33, 0x33, 0xff, 0, 0, 1][..]));
    let Some(TransportHeader::Icmpv6(icmp)) = judged.transport else { panic!() };
    let body = &frames[0][62..];
    assert_eq!(icmp.icmp_type.calc_checksum(ip.source, ip.destination, body), Ok(icmp.checksum));
    assert_eq!((frames[0][54], body), (135, &ndp_body("fd77::1", Some((1, OURS)))[..]));
    let answer = ndp_body("fd77::1", Some((2, PEER)));
    lab.receive(&icmpv6(peer, v6("fd77::2"), 255, 136, [0x60, 0, 0, 0], &answer));
    assert_eq!(lab.interface.resolve(now, peer.into()), Ok(PEER));

    // The other direction: by multicast, from an address without an entry.
    let question = ndp_body("fd77::2", Some((1, PEER)));
    lab.receive(&icmpv6(v6("fd77::9"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &question));
    let frames = lab.transmit();
    let (ip, message) = Ipv6Header::parse(&frames[0][14..]).unwrap();
    assert_eq!((ip.src, ip.dst, ip.hop_limit), (v6("fd77::2"), v6("fd77::9"), 255));
    assert!(crate::wire::Icmpv6Header::is_checksum_valid(ip.src, ip.dst, message));
    assert_eq!((message[0], message[4], &frames[0][..6]), (136, 0x60, &PEER.0[..]));
    assert_eq!(message[8..], ndp_body("fd77::2", Some((2, OURS))));
    assert_eq!(lab.interface.resolve(now, v6("fd77::9").into()), Ok(PEER));

    // Duplicate address detection by another station is answered to all nodes.
    let question = ndp_body("fd77::2", None);
    lab.receive(&icmpv6(v6("::"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &question));
    let frames = lab.transmit();
    let (ip, message) = Ipv6Header::parse(&frames[0][14..]).unwrap();
    assert_eq!((ip.dst, message[4]), (v6("ff02::1"), 0x20));
    let stats = lab.interface.stats();
    assert_eq!((stats.rx_ndp, stats.tx_neighbor_solicitations, stats.tx_neighbor_advertisements), (3, 1, 8));
}

#[test]
fn neighbor_discovery_that_is_not_valid() {
    let mut lab = Lab::new(config());
    let (peer, ours, group) = (v6("fd77::1"), v6("fd77::2"), v6("ff02::1:ff00:2"));
    let question = ndp_body("fd77::2", Some((1, PEER)));
    let solicit = |src, dst, hops, body: &[u8]| icmpv6(src, dst, hops, 135, [0; 4], body);
    lab.expect_drop(&solicit(peer, group, 254, &question), DropReason::NdpInvalid);
    lab.expect_drop(&solicit(v6("::"), group, 255, &question), DropReason::NdpInvalid);
    let bare = ndp_body("fd77::2", None);
    lab.expect_drop(&solicit(v6("::"), ours, 255, &bare), DropReason::NdpInvalid);
    lab.expect_drop(&solicit(peer, group, 255, &ndp_body("ff02::1", None)), DropReason::NdpInvalid);
    lab.expect_drop(&solicit(peer, group, 255, &bare[..15]), DropReason::NdpInvalid);
    lab.expect_drop(&solicit(peer, group, 255, &ndp_body("fd77::5", None)), DropReason::NdpNotOurs);
    let advertise = |dst, flags, body: &[u8]| icmpv6(peer, dst, 255, 136, [flags, 0, 0, 0], body);
    let body = ndp_body("fd77::1", Some((2, PEER)));
    lab.expect_drop(&advertise(v6("ff02::1"), 0x60, &body), DropReason::NdpInvalid);
    lab.expect_drop(&advertise(ours, 0x60, &body), DropReason::NdpNotOurs);
    lab.expect_drop(&advertise(ours, 0x60, &question), DropReason::NdpConflict);
    let mut wrong = solicit(peer, group, 255, &question);
    wrong[60] ^= 1;
    lab.expect_drop(&wrong, DropReason::IcmpChecksum);
    // Router solicitations and advertisements are not for hosts without routers.
    lab.expect_drop(&icmpv6(v6("fe80::1"), v6("ff02::1"), 255, 134, [0; 4], &[0; 8]), DropReason::IcmpUnused);
    // Only the conflict is answered, by announcements.
    assert_eq!(lab.transmit().len(), 3);
}

#[test]
fn addresses_are_announced_at_start() {
    let mut interface: Interface<HeapBuf> = Interface::new(config(), (3, 4));
    let mut pool = HeapPool::new(8, 0, 256);
    let mut frames = Vec::new();
    // One at a time, as with a full transmit queue.
    for count in 1..=3 {
        assert!(interface.has_output());
        let mut out = |frame: TxFrame<HeapBuf>| frames.push(frame.buf.bytes().to_vec());
        assert_eq!(interface.poll_transmit(&mut pool, &mut out, 1), 1);
        assert_eq!(frames.len(), count);
    }
    assert!(!interface.has_output());
    let packet = ArpPacket::parse(&frames[0][14..]).unwrap();
    assert_eq!((packet.operation, packet.sender_ip, packet.target_ip), (ArpOperation::Request, V4, V4));
    for (frame, address) in frames[1..].iter().zip(["fd77::2", "fe80::ff:fe00:2"]) {
        let (ip, message) = Ipv6Header::parse(&frame[14..]).unwrap();
        assert_eq!((ip.src, ip.dst), (v6(address), v6("ff02::1")));
        assert_eq!((message[0], message[4]), (136, 0x20));
    }
    // Three times in all, two seconds apart, starting with the first call.
    let mut at = Vec::new();
    interface.handle_timeouts(Instant::from_millis(500));
    while let Some(deadline) = interface.next_deadline() {
        interface.handle_timeouts(deadline);
        let mut out = |_: TxFrame<HeapBuf>| at.push(deadline.as_millis());
        interface.poll_transmit(&mut pool, &mut out, 10);
    }
    assert_eq!(at, [2_500, 2_500, 2_500, 4_500, 4_500, 4_500]);
}

#[test]
fn only_the_primary_interface_answers() {
    let mut lab = Lab::new(InterfaceConfig { primary: false, ..config() });
    let request = arp(ArpOperation::Request, (PEER, V4_PEER), V4, MacAddr::BROADCAST);
    lab.expect_drop(&request, DropReason::NotPrimary);
    let question = ndp_body("fd77::2", Some((1, PEER)));
    let solicitation = icmpv6(v6("fd77::1"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &question);
    lab.expect_drop(&solicitation, DropReason::NotPrimary);
    let echo = icmpv6(v6("fd77::1"), v6("fd77::2"), 64, 128, [0; 4], b"ping");
    lab.expect_drop(&echo, DropReason::NotPrimary);
    assert!(lab.transmit().is_empty());
    assert_eq!(lab.interface.stats().tx_arp_requests, 0);
    // The cache is filled all the same.
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Ok(PEER));
    assert_eq!(lab.interface.resolve(Instant::ZERO, v6("fd77::1").into()), Ok(PEER));
}

#[test]
fn source_address_and_next_hop() {
    let mut lab = Lab::new(config());
    let source =
        |remote: &str| lab.interface.source_for(remote.parse().unwrap()).map(|ip| std::format!("{ip}"));
    assert_eq!(source("192.0.2.1").as_deref(), Some("10.77.0.2"));
    assert_eq!(source("2001:db8::1").as_deref(), Some("fd77::2"));
    assert_eq!(source("fe80::1").as_deref(), Some("fe80::ff:fe00:2"));
    assert!(lab.interface.is_local(V4.into()) && lab.interface.is_local(v6("fe80::ff:fe00:2").into()));
    assert!(!lab.interface.is_local(V4_PEER.into()));
    // Another link is reached through the gateway, a link-local address directly.
    let now = Instant::ZERO;
    assert_eq!(lab.interface.resolve(now, v6("2001:db8::1").into()), Err(NotReady::Resolving));
    assert_eq!(lab.interface.resolve(now, v6("fe80::7").into()), Err(NotReady::Resolving));
    let targets: Vec<Ipv6Addr> = lab
        .transmit()
        .iter()
        .map(|frame| Ipv6Addr::from_octets(*frame[62..].first_chunk().unwrap()))
        .collect();
    assert_eq!(targets, [v6("fe80::1"), v6("fe80::7")]);
}

/// A host address without a subnet, 10.0.0.5/32 via 172.31.1.1: the gateway is on the link, and nobody else is.
#[test]
fn a_gateway_outside_of_the_prefix_is_a_neighbor() {
    let gateway = Ipv4Addr::new(172, 31, 1, 1);
    let ours = Ipv4Addr::new(10, 0, 0, 5);
    let outside = InterfaceConfig { ipv4: Ipv4Cidr::new(ours, 32), ipv4_gateway: Some(gateway), ..config() };
    let mut lab = Lab::new(outside);
    let question = arp(ArpOperation::Request, (PEER, gateway), ours, MacAddr::BROADCAST);
    let others = arp(ArpOperation::Request, (PEER, Ipv4Addr::new(172, 31, 1, 2)), ours, MacAddr::BROADCAST);
    lab.expect_drop(&others, DropReason::ArpInvalid);
    assert!(lab.transmit().is_empty());
    // Resolved for every destination, its own address among them.
    for far in [V4_FAR, Ipv4Addr::new(10, 0, 0, 6), gateway] {
        let mut lab = Lab::new(outside);
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Err(NotReady::Resolving));
        let frames = lab.transmit();
        let (_, packet) = EthernetHeader::parse(&frames[0]).unwrap();
        let packet = ArpPacket::parse(packet).unwrap();
        assert_eq!((packet.sender_ip, packet.target_ip), (ours, gateway));
        lab.receive(&arp(ArpOperation::Reply, (PEER, gateway), ours, OURS));
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Ok(PEER));
    }
    // Its question is answered, and tells its link address.
    lab.receive(&question);
    let frames = lab.transmit();
    let (ethernet, packet) = EthernetHeader::parse(&frames[0]).unwrap();
    let packet = ArpPacket::parse(packet).unwrap();
    assert_eq!((ethernet.dst, packet.operation), (PEER, ArpOperation::Reply));
    assert_eq!((packet.sender_ip, packet.target_ip), (ours, gateway));
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_FAR.into()), Ok(PEER));
    // Another gateway of the same router is none of ours.
    lab.expect_drop(&others, DropReason::ArpInvalid);
}

#[test]
fn an_ipv6_gateway_outside_of_the_prefix_is_a_neighbor() {
    for gateway in [v6("2001:db8:ffff::1"), v6("fe80::1")] {
        let ours = v6("fd77::2");
        let outside =
            InterfaceConfig { ipv6: Ipv6Cidr::new(ours, 128), ipv6_gateway: Some(gateway), ..config() };
        let far = v6("2001:db8:1::9");
        let mut lab = Lab::new(outside);
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Err(NotReady::Resolving));
        assert_eq!(lab.transmit().len(), 1);
        let source = if gateway.is_unicast_link_local() { lab.interface.link_local } else { ours };
        let body = ndp_body(&std::format!("{gateway}"), Some((2, PEER)));
        lab.receive(&icmpv6(gateway, source, 255, 136, [0x60, 0, 0, 0], &body));
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Ok(PEER));
        // Its question is answered, and tells its link address; that of a stranger tells nothing.
        let mut lab = Lab::new(outside);
        let asks = |from| icmpv6(from, ours, 255, 135, [0; 4], &ndp_body("fd77::2", Some((1, PEER))));
        lab.receive(&asks(v6("2001:db8:ffff::2")));
        assert_eq!(lab.transmit().len(), 1);
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Err(NotReady::Resolving));
        let mut lab = Lab::new(outside);
        lab.receive(&asks(gateway));
        assert_eq!(lab.transmit().len(), 1);
        assert_eq!(lab.interface.resolve(Instant::ZERO, far.into()), Ok(PEER));
    }
}
