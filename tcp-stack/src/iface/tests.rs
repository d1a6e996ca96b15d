use super::*;
use crate::buf::{BufPool, RxChecksum, TxFrame};
use crate::testutil::{HeapBuf, HeapPool};
use crate::time::Duration;
use crate::wire::{ArpOperation, ArpPacket, EtherType, EthernetHeader, Ipv4Header, Ipv6Header, TcpFlags};
use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use std::vec;
use std::vec::Vec;

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const V4_PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const V4_FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const V4_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn config() -> InterfaceConfig {
    InterfaceConfig {
        mac: OURS,
        vlan: None,
        ipv4: Ipv4Cidr::new(V4, 24),
        ipv4_gateway: Some(V4_GATEWAY),
        ipv6: Ipv6Cidr::new(v6("fd77::2"), 64),
        ipv6_gateway: Some(v6("fe80::1")),
        primary: true,
        tx_checksum_offload: false,
        neighbors_max: 16,
    }
}

/// An interface and what it needs; its announcements have been sent.
struct Lab {
    interface: Interface<HeapBuf>,
    pool: HeapPool,
}

impl Lab {
    fn new(config: InterfaceConfig) -> Self {
        let mut lab = Self { interface: Interface::new(config, (3, 4)), pool: HeapPool::new(64, 0, 2048) };
        lab.transmit();
        lab
    }

    fn receive(&mut self, frame: &[u8]) -> Received<HeapBuf> {
        self.receive_at(Instant::ZERO, frame, RxChecksum::Unknown)
    }

    fn receive_at(&mut self, now: Instant, frame: &[u8], checksum: RxChecksum) -> Received<HeapBuf> {
        let buf = self.pool.copy(frame).unwrap();
        let received = self.interface.receive(now, RxFrame { buf, checksum });
        let stats = self.interface.stats();
        assert_eq!(stats.rx_frames, stats.rx_delivered + self.interface.drops().total());
        received
    }

    /// Expects the frame to be dropped, for this reason alone.
    #[track_caller]
    fn expect_drop(&mut self, frame: &[u8], reason: DropReason) {
        let mut expected = *self.interface.drops();
        expected.count(reason);
        let received = self.receive(frame);
        assert!(matches!(received, Received::Done), "{received:?}");
        assert_eq!(*self.interface.drops(), expected, "{reason:?}");
    }

    #[track_caller]
    fn expect_tcp(&mut self, frame: &[u8]) -> TcpSegment<HeapBuf> {
        match self.receive(frame) {
            Received::Tcp(segment) => segment,
            other => panic!("{other:?}, {:?}", self.interface.drops()),
        }
    }

    fn transmit(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut out = |frame: TxFrame<HeapBuf>| {
            assert!(!frame.offload.tcp_checksum && !frame.offload.ip_checksum);
            frames.push(frame.buf.bytes().to_vec());
        };
        self.interface.poll_transmit(&mut self.pool, &mut out, 100);
        assert!(!self.interface.has_output());
        frames
    }
}

fn builder() -> etherparse::PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2(PEER.0, OURS.0)
}

fn tcp_v4_from(src: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = builder().ipv4(src.octets(), V4.octets(), 64).tcp(49153, 7400, 1000, 512);
    step.syn().write(&mut frame, b"hello").unwrap();
    frame
}

fn tcp_v6() -> Vec<u8> {
    let mut frame = Vec::new();
    let (src, dst) = (v6("fd77::1").octets(), v6("fd77::2").octets());
    builder().ipv6(src, dst, 64).tcp(49153, 7400, 1000, 512).ack(7).write(&mut frame, b"hello").unwrap();
    frame
}

fn arp(operation: ArpOperation, sender: (MacAddr, Ipv4Addr), target: Ipv4Addr, dst: MacAddr) -> Vec<u8> {
    let mut frame = vec![0; 42];
    EthernetHeader { dst, src: sender.0, tci: None, ethertype: EtherType::ARP }.emit(&mut frame);
    let packet = ArpPacket {
        operation,
        sender_mac: sender.0,
        sender_ip: sender.1,
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: target,
    };
    packet.emit(frame[14..].first_chunk_mut().unwrap());
    // As short frames are on a real link.
    frame.resize(60, 0);
    frame
}

/// An ICMPv6 message in a frame, checksum right.
fn icmpv6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, kind: u8, rest: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mac = if dst.is_multicast() { MacAddr::of_ipv6_multicast(dst) } else { OURS };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(PEER.0, mac.0)
        .ipv6(src.octets(), dst.octets(), hop_limit)
        .icmpv6_raw(kind, 0, rest)
        .write(&mut frame, body)
        .unwrap();
    frame
}

fn ndp_body(target: &str, option: Option<(u8, MacAddr)>) -> Vec<u8> {
    let mut body = v6(target).octets().to_vec();
    if let Some((kind, mac)) = option {
        body.extend([kind, 1]);
        body.extend(mac.0);
    }
    body
}

/// Corrects the IPv4 header checksum after a change.
fn fix_ipv4(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = crate::wire::Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn tcp_segments_are_found() {
    let mut lab = Lab::new(config());
    let mut frame = tcp_v4_from(V4_PEER);
    frame.resize(70, 0xee);
    let segment = lab.expect_tcp(&frame);
    assert_eq!((segment.local, segment.remote), (V4.into(), V4_PEER.into()));
    assert_eq!((segment.header.src_port, segment.header.dst_port), (49153, 7400));
    assert_eq!((segment.header.flags, segment.options), (TcpFlags::SYN, TcpOptions::NONE));
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
    let segment = lab.expect_tcp(&tcp_v6());
    assert_eq!((segment.local, segment.remote), (v6("fd77::2").into(), v6("fd77::1").into()));
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
    let mut ecn = tcp_v6();
    ecn[15] |= 0x30;
    assert_eq!(lab.expect_tcp(&ecn).traffic_class, 3);
    // The priority tag of VLAN 0 belongs to no VLAN.
    let tagged = [&frame[..12], &[0x81, 0, 0xe0, 0], &frame[12..]].concat();
    let segment = lab.expect_tcp(&tagged);
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
    let stats = lab.interface.stats();
    assert_eq!((stats.rx_tcp_segments, stats.rx_software_checksums), (4, 4));
    lab.interface.drop_delivered(DropReason::TcpMalformed);
    assert_eq!(lab.interface.stats().rx_delivered, 3);
}

#[test]
fn extension_headers_and_options_are_passed_over() {
    let mut lab = Lab::new(config());
    let frame = tcp_v6();
    let mut extended = frame[..54].to_vec();
    extended[14 + 6] = 60;
    extended[14 + 5] += 8;
    extended.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    extended.extend(&frame[54..]);
    let segment = lab.expect_tcp(&extended);
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
    let frame = tcp_v4_from(V4_PEER);
    let mut extended = frame[..34].to_vec();
    extended[14] = 0x46;
    extended[17] += 4;
    extended.extend([1, 1, 1, 0]);
    extended[24..26].fill(0);
    let sum = crate::wire::Sum::of(&extended[14..38]).checksum();
    extended[24..26].copy_from_slice(&sum.to_be_bytes());
    extended.extend(&frame[34..]);
    let segment = lab.expect_tcp(&extended);
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
}

#[test]
fn checksums_are_verified_unless_the_port_did() {
    let mut lab = Lab::new(config());
    let mut frame = tcp_v4_from(V4_PEER);
    frame[50] ^= 1;
    lab.expect_drop(&frame, DropReason::TcpChecksum);
    let mut header = tcp_v4_from(V4_PEER);
    header[24] ^= 1;
    lab.expect_drop(&header, DropReason::IpChecksum);
    let mut later = tcp_v6();
    *later.last_mut().unwrap() ^= 1;
    lab.expect_drop(&later, DropReason::TcpChecksum);
    assert!(matches!(lab.receive_at(Instant::ZERO, &frame, RxChecksum::Good), Received::Tcp(_)));
    assert!(matches!(lab.receive_at(Instant::ZERO, &frame, RxChecksum::Bad), Received::Done));
    // A port that is wrong about it does not cost us the segment.
    let right = tcp_v4_from(V4_PEER);
    assert!(matches!(lab.receive_at(Instant::ZERO, &right, RxChecksum::Bad), Received::Tcp(_)));
}

#[test]
fn frames_for_others_are_dropped() {
    let mut lab = Lab::new(config());
    let frame = tcp_v4_from(V4_PEER);
    let with = |at: usize, bytes: &[u8]| {
        let mut frame = frame.clone();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    lab.expect_drop(&frame[..13], DropReason::EthernetTruncated);
    lab.expect_drop(&with(5, &[9]), DropReason::EthernetNotForUs);
    lab.expect_drop(&with(6, &[3]), DropReason::EthernetSource);
    lab.expect_drop(&with(12, &[0x88, 0xcc]), DropReason::EthernetType);
    lab.expect_drop(&with(0, &[0xff; 6]), DropReason::IpLinkBroadcast);
    let tagged = [&frame[..12], &[0x81, 0, 0, 100], &frame[12..]].concat();
    lab.expect_drop(&tagged, DropReason::EthernetVlan);
    let mut other = with(33, &[9]);
    fix_ipv4(&mut other);
    lab.expect_drop(&other, DropReason::IpNotForUs);
    let mut udp = with(23, &[17]);
    fix_ipv4(&mut udp);
    lab.expect_drop(&udp, DropReason::IpProtocol);
    let mut fragment = with(20, &[0x20]);
    fix_ipv4(&mut fragment);
    lab.expect_drop(&fragment, DropReason::IpFragment);
    lab.expect_drop(&frame[..40], DropReason::IpTruncated);
    lab.expect_drop(&with(14, &[0x44]), DropReason::IpMalformed);
    let mut short = with(17, &[30]);
    fix_ipv4(&mut short);
    lab.expect_drop(&short, DropReason::TcpTruncated);
    lab.expect_drop(&with(46, &[0x40]), DropReason::TcpMalformed);

    let frame = tcp_v6();
    let mut other = frame.clone();
    other[53] = 9;
    lab.expect_drop(&other, DropReason::IpNotForUs);
    let mut broadcast = frame.clone();
    broadcast[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    lab.expect_drop(&broadcast, DropReason::IpLinkBroadcast);
    broadcast[38..54].copy_from_slice(&v6("ff02::1").octets());
    lab.expect_drop(&broadcast, DropReason::IpNotForUs);
    let mut fragment = frame[..54].to_vec();
    fragment[14 + 6] = 44;
    fragment[14 + 5] += 8;
    fragment.extend([6, 0, 0, 1, 0, 0, 0, 9]);
    fragment.extend(&frame[54..]);
    lab.expect_drop(&fragment, DropReason::IpFragment);
    fragment[14 + 6] = 0;
    fragment[56] = 0xc9;
    lab.expect_drop(&fragment, DropReason::IpExtension);
}

#[test]
fn martians_are_dropped() {
    let mut lab = Lab::new(config());
    for src in
        ["0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "10.77.0.255", "10.77.0.0"]
    {
        lab.expect_drop(&tcp_v4_from(src.parse().unwrap()), DropReason::IpSource);
    }
    // A segment that claims to be from us (the "land" attack).
    lab.expect_drop(&tcp_v4_from(V4), DropReason::IpSource);
    for src in ["::", "::1", "ff02::1", "::ffff:10.77.0.1", "fd77::2", "fe80::ff:fe00:2"] {
        let mut frame = Vec::new();
        builder()
            .ipv6(v6(src).octets(), v6("fd77::2").octets(), 64)
            .tcp(1, 2, 3, 4)
            .write(&mut frame, b"")
            .unwrap();
        lab.expect_drop(&frame, DropReason::IpSource);
    }
}

#[test]
fn only_configured_families_are_heard() {
    let mut lab = Lab::new(InterfaceConfig { ipv4: None, ..config() });
    lab.expect_drop(&tcp_v4_from(V4_PEER), DropReason::IpNotForUs);
    let request = arp(ArpOperation::Request, (PEER, V4_PEER), V4, MacAddr::BROADCAST);
    lab.expect_drop(&request, DropReason::ArpNotForUs);
    assert_eq!(lab.interface.source_for(V4_PEER.into()), None);
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Err(NotReady::NoRoute));
    let mut lab = Lab::new(InterfaceConfig { ipv6: None, ..config() });
    lab.expect_drop(&tcp_v6(), DropReason::IpNotForUs);
    let group = v6("ff02::1:ff00:2");
    let body = ndp_body("fd77::2", Some((1, PEER)));
    lab.expect_drop(&icmpv6(v6("fd77::1"), group, 255, 135, [0; 4], &body), DropReason::IpNotForUs);
    assert_eq!(lab.interface.source_for(v6("fd77::1").into()), None);
}

#[test]
fn arp_requests_are_answered_and_teach() {
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
    // A probe (RFC 5227) is answered and teaches nothing.
    lab.receive(&arp(ArpOperation::Request, (PEER, Ipv4Addr::UNSPECIFIED), V4, MacAddr::BROADCAST));
    assert_eq!(lab.transmit().len(), 1);
    assert_eq!(lab.interface.stats().tx_arp_replies, 2);
}

#[test]
fn arp_that_is_of_no_use() {
    let mut lab = Lab::new(config());
    let all = MacAddr::BROADCAST;
    let request = |sender, target| arp(ArpOperation::Request, sender, target, all);
    lab.expect_drop(&request((PEER, V4_PEER), Ipv4Addr::new(10, 77, 0, 9)), DropReason::ArpNotForUs);
    lab.expect_drop(&request((PEER, V4), V4_PEER), DropReason::ArpConflict);
    lab.expect_drop(&request((OURS, V4), V4), DropReason::ArpInvalid);
    lab.expect_drop(&request((PEER, V4_FAR), V4), DropReason::ArpInvalid);
    lab.expect_drop(&request((PEER, Ipv4Addr::new(10, 77, 0, 255)), V4), DropReason::ArpInvalid);
    let odd = arp(ArpOperation::Unknown(3), (PEER, V4_PEER), V4, all);
    lab.expect_drop(&odd, DropReason::ArpInvalid);
    let reply = arp(ArpOperation::Reply, (PEER, V4_PEER), V4, OURS);
    lab.expect_drop(&reply, DropReason::ArpNotForUs);
    lab.expect_drop(&reply[..41], DropReason::ArpMalformed);
    let mut group = request((PEER, V4_PEER), V4);
    group[22] |= 1;
    lab.expect_drop(&group, DropReason::ArpInvalid);
    assert!(lab.transmit().is_empty());
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
    assert_eq!((stats.tx_arp_requests, stats.neighbors_resolved), (3, 1));
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

    // And the other way: by multicast, from an address that is new to us.
    let question = ndp_body("fd77::2", Some((1, PEER)));
    lab.receive(&icmpv6(v6("fd77::9"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &question));
    let frames = lab.transmit();
    let (ip, message) = Ipv6Header::parse(&frames[0][14..]).unwrap();
    assert_eq!((ip.src, ip.dst, ip.hop_limit), (v6("fd77::2"), v6("fd77::9"), 255));
    assert!(crate::wire::Icmpv6Header::is_checksum_valid(ip.src, ip.dst, message));
    assert_eq!((message[0], message[4], &frames[0][..6]), (136, 0x60, &PEER.0[..]));
    assert_eq!(message[8..], ndp_body("fd77::2", Some((2, OURS))));
    assert_eq!(lab.interface.resolve(now, v6("fd77::9").into()), Ok(PEER));

    // Duplicate address detection by another: answered to all nodes.
    let question = ndp_body("fd77::2", None);
    lab.receive(&icmpv6(v6("::"), v6("ff02::1:ff00:2"), 255, 135, [0; 4], &question));
    let frames = lab.transmit();
    let (ip, message) = Ipv6Header::parse(&frames[0][14..]).unwrap();
    assert_eq!((ip.dst, message[4]), (v6("ff02::1"), 0x20));
    let stats = lab.interface.stats();
    assert_eq!((stats.rx_ndp, stats.tx_neighbor_solicitations, stats.tx_neighbor_advertisements), (3, 1, 4));
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
    lab.expect_drop(&solicit(peer, group, 255, &ndp_body("fd77::5", None)), DropReason::NdpNotForUs);
    let advertise = |dst, flags, body: &[u8]| icmpv6(peer, dst, 255, 136, [flags, 0, 0, 0], body);
    let body = ndp_body("fd77::1", Some((2, PEER)));
    lab.expect_drop(&advertise(v6("ff02::1"), 0x60, &body), DropReason::NdpInvalid);
    lab.expect_drop(&advertise(ours, 0x60, &body), DropReason::NdpNotForUs);
    lab.expect_drop(&advertise(ours, 0x60, &question), DropReason::NdpConflict);
    let mut wrong = solicit(peer, group, 255, &question);
    wrong[60] ^= 1;
    lab.expect_drop(&wrong, DropReason::IcmpChecksum);
    // Router solicitations and advertisements are for others.
    lab.expect_drop(&icmpv6(v6("fe80::1"), v6("ff02::1"), 255, 134, [0; 4], &[0; 8]), DropReason::IcmpUnused);
    assert!(lab.transmit().is_empty());
}

#[test]
fn addresses_are_announced_at_start() {
    let mut interface: Interface<HeapBuf> = Interface::new(config(), (3, 4));
    let mut pool = HeapPool::new(8, 0, 256);
    let mut frames = Vec::new();
    // One at a time, as a full transmit queue has it.
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
}

#[test]
fn only_the_primary_answers() {
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
    // It has learnt all the same.
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Ok(PEER));
    assert_eq!(lab.interface.resolve(Instant::ZERO, v6("fd77::1").into()), Ok(PEER));
}

fn ping_v4(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    builder()
        .ipv4(V4_PEER.octets(), V4.octets(), 64)
        .icmpv4_echo_request(0x1234, 7)
        .write(&mut frame, body)
        .unwrap();
    frame
}

#[test]
fn pings_are_answered() {
    let mut lab = Lab::new(config());
    for body in [&b""[..], b"ping", &[0x5a; 1472]] {
        lab.receive(&ping_v4(body));
        let frames = lab.transmit();
        let (ethernet, packet) = EthernetHeader::parse(&frames[0]).unwrap();
        assert_eq!((ethernet.dst, ethernet.src), (PEER, OURS));
        let (ip, header, message) = Ipv4Header::parse(packet).unwrap();
        assert!(Ipv4Header::is_checksum_valid(header));
        assert_eq!((ip.src, ip.dst), (V4, V4_PEER));
        let judge = etherparse::Icmpv4Slice::from_slice(message).unwrap();
        assert_eq!(judge.checksum(), judge.icmp_type().calc_checksum(judge.payload()));
        assert_eq!(message[..2], [0, 0]);
        assert_eq!(message[4..8], [0x12, 0x34, 0, 7]);
        assert_eq!(&message[8..], body);

        lab.receive(&icmpv6(v6("fe80::9"), v6("ff02::1"), 64, 128, [1, 2, 3, 4], body));
        let frames = lab.transmit();
        let (ip, message) = Ipv6Header::parse(&frames[0][14..]).unwrap();
        assert_eq!((ip.src, ip.dst), (v6("fe80::ff:fe00:2"), v6("fe80::9")));
        assert!(crate::wire::Icmpv6Header::is_checksum_valid(ip.src, ip.dst, message));
        assert_eq!((message[0], &message[4..8], &message[8..]), (129, &[1, 2, 3, 4][..], body));
    }
    assert_eq!(lab.interface.stats().tx_echo_replies, 6);
    assert_eq!(lab.pool.live(), 0);
    let mut wrong = ping_v4(b"ping");
    wrong[40] ^= 1;
    lab.expect_drop(&wrong, DropReason::IcmpChecksum);
    lab.expect_drop(&ping_v4(b"")[..41], DropReason::IpTruncated);
}

#[test]
fn a_shared_ping_is_copied() {
    let mut lab = Lab::new(config());
    let buf = lab.pool.copy(&ping_v4(b"ping")).unwrap();
    let other = buf.share();
    lab.interface.receive(Instant::ZERO, RxFrame { buf, checksum: RxChecksum::Unknown });
    let frames = lab.transmit();
    assert_eq!(frames[0][42..], *b"ping");
    assert_eq!(other.bytes(), ping_v4(b"ping"));
}

#[test]
fn pings_wait_in_a_bounded_queue() {
    let mut lab = Lab::new(config());
    let mut pool = HeapPool::new(100, 0, 256);
    let mut frame = || RxFrame { buf: pool.copy(&ping_v4(b"ping")).unwrap(), checksum: RxChecksum::Unknown };
    for _ in 0..64 {
        lab.interface.receive(Instant::ZERO, frame());
    }
    assert_eq!(lab.interface.drops().total(), 0);
    lab.interface.receive(Instant::ZERO, frame());
    assert_eq!(lab.interface.drops().drop_icmp_echo_limit, 1);
    assert_eq!((lab.transmit().len(), pool.live()), (64, 0));
}

#[test]
fn a_frame_waits_for_a_buffer() {
    let mut lab = Lab::new(config());
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Err(NotReady::Resolving));
    let mut empty = HeapPool::new(0, 0, 0);
    assert_eq!(lab.interface.poll_transmit(&mut empty, &mut |_| panic!("from nothing"), 10), 0);
    assert!(lab.interface.has_output());
    assert_eq!(lab.transmit().len(), 1);
}

#[test]
fn errors_about_our_segments_are_handed_on() {
    let mut lab = Lab::new(config());
    let mut ours = Vec::new();
    PacketBuilder::ipv4(V4.octets(), V4_FAR.octets(), 64)
        .tcp(7400, 49153, 1000, 512)
        .write(&mut ours, b"hello")
        .unwrap();
    let error = |kind, code, rest, quote: &[u8]| {
        let mut frame = Vec::new();
        builder()
            .ipv4([172, 16, 0, 1], V4.octets(), 64)
            .icmpv4_raw(kind, code, rest)
            .write(&mut frame, quote)
            .unwrap();
        frame
    };
    for (kind, code, rest, expected) in [
        (3, 0, [0; 4], IcmpErrorKind::Soft),
        (3, 1, [0; 4], IcmpErrorKind::Soft),
        (3, 2, [0; 4], IcmpErrorKind::Hard),
        (3, 3, [0; 4], IcmpErrorKind::Hard),
        (3, 4, [0, 0, 5, 0], IcmpErrorKind::PacketTooBig { mtu: 1280 }),
        (3, 13, [0; 4], IcmpErrorKind::Soft),
        (11, 0, [0; 4], IcmpErrorKind::Soft),
        (12, 0, [0; 4], IcmpErrorKind::Soft),
    ] {
        let Received::Icmp(report) = lab.receive(&error(kind, code, rest, &ours[..28])) else {
            panic!("{kind} {code}: {:?}", lab.interface.drops());
        };
        assert_eq!(report.kind, expected);
        assert_eq!(report.local, SocketAddr::from((V4, 7400)));
        assert_eq!((report.remote, report.seq), (SocketAddr::from((V4_FAR, 49153)), SeqNum::new(1000)));
    }
    lab.expect_drop(&error(3, 1, [0; 4], &ours[..27]), DropReason::IcmpQuote);
    let mut others = ours.clone();
    others[15] = 9;
    lab.expect_drop(&error(3, 1, [0; 4], &others), DropReason::IcmpQuote);
    lab.expect_drop(&error(4, 0, [0; 4], &ours), DropReason::IcmpUnused);
    lab.expect_drop(&error(0, 0, [0; 4], &ours), DropReason::IcmpUnused);

    let mut ours = Vec::new();
    PacketBuilder::ipv6(v6("fd77::2").octets(), v6("2001:db8::1").octets(), 64)
        .tcp(7400, 49153, 1000, 512)
        .write(&mut ours, b"hello")
        .unwrap();
    let frame = icmpv6(v6("fe80::1"), v6("fd77::2"), 64, 2, [0, 0, 5, 0], &ours);
    let Received::Icmp(report) = lab.receive(&frame) else { panic!("{:?}", lab.interface.drops()) };
    assert_eq!(report.kind, IcmpErrorKind::PacketTooBig { mtu: 1280 });
    assert_eq!(report.remote, "[2001:db8::1]:49153".parse().unwrap());
}

/// A TCP header and payload, checksum not yet made.
fn segment(lab: &mut Lab) -> HeapBuf {
    let header = TcpHeader { src_port: 7400, dst_port: 49153, flags: TcpFlags::ACK, ..TcpHeader::default() };
    let mut buf = lab.pool.copy(b"hello").unwrap();
    assert!(header.emit(&TcpOptions::NONE, buf.prepend(20).unwrap()));
    buf
}

#[test]
fn segments_are_put_into_packets() {
    for vlan in [None, Some(100)] {
        let mut lab = Lab::new(InterfaceConfig { vlan, ..config() });
        for (local, remote) in [(V4.into(), V4_PEER.into()), (v6("fd77::2").into(), v6("fd77::1").into())]
            as [(IpAddr, IpAddr); 2]
        {
            let mut buf = segment(&mut lab);
            let offload = lab.interface.encapsulate(PEER, local, remote, 2, &mut buf).unwrap();
            let l3_len = if local.is_ipv4() { 20 } else { 40 };
            assert_eq!(usize::from(offload.l2_len), if vlan.is_some() { 18 } else { 14 });
            assert_eq!((offload.l3_len, offload.l4_len, offload.ipv6), (l3_len, 20, local.is_ipv6()));
            assert!(!offload.ip_checksum && !offload.tcp_checksum);
            let judged = etherparse::SlicedPacket::from_ethernet(buf.bytes()).unwrap();
            assert_eq!(judged.vlan().is_some(), vlan.is_some());
            let Some(etherparse::TransportSlice::Tcp(tcp)) = judged.transport else { panic!() };
            assert_eq!(tcp.payload(), b"hello");
            match (judged.net, local, remote) {
                (Some(etherparse::NetSlice::Ipv4(ip)), IpAddr::V4(local), IpAddr::V4(remote)) => {
                    let header = ip.header().to_header();
                    assert_eq!(header.calc_header_checksum(), header.header_checksum);
                    assert!(header.dont_fragment && header.ecn.value() == 2);
                    assert_eq!(
                        tcp.checksum(),
                        tcp.calc_checksum_ipv4(local.octets(), remote.octets()).unwrap()
                    );
                }
                (Some(etherparse::NetSlice::Ipv6(ip)), IpAddr::V6(_), IpAddr::V6(_)) => {
                    assert_eq!(ip.header().traffic_class(), 2);
                    let header = ip.header().to_header();
                    let sum = tcp.calc_checksum_ipv6(header.source, header.destination).unwrap();
                    assert_eq!(tcp.checksum(), sum);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn checksums_are_left_to_the_port() {
    let mut lab = Lab::new(InterfaceConfig { tx_checksum_offload: true, ..config() });
    let mut buf = segment(&mut lab);
    let offload = lab.interface.encapsulate(PEER, V4.into(), V4_PEER.into(), 0, &mut buf).unwrap();
    assert!(offload.ip_checksum && offload.tcp_checksum);
    let (_, header, tcp) = Ipv4Header::parse(&buf.bytes()[14..]).unwrap();
    assert_eq!(header[10..12], [0, 0]);
    // What a port does with it is right.
    let completed = crate::wire::Sum::of(tcp).checksum();
    let slice = etherparse::TcpSlice::from_slice(tcp).unwrap();
    assert_eq!(completed, slice.calc_checksum_ipv4(V4.octets(), V4_PEER.octets()).unwrap());
    let mut buf = segment(&mut lab);
    let (local, remote) = (v6("fd77::2").into(), v6("fd77::1").into());
    let offload = lab.interface.encapsulate(PEER, local, remote, 0, &mut buf).unwrap();
    assert!(!offload.ip_checksum && offload.tcp_checksum && offload.ipv6);
}

#[test]
fn what_cannot_be_put_into_a_packet() {
    let mut lab = Lab::new(config());
    let mut buf = segment(&mut lab);
    let other = buf.share();
    assert_eq!(lab.interface.encapsulate(PEER, V4.into(), V4_PEER.into(), 0, &mut buf), None);
    drop(other);
    assert_eq!(lab.interface.encapsulate(PEER, V4.into(), v6("fd77::1").into(), 0, &mut buf), None);
    let mut full = HeapBuf::new(&[0; 20]);
    full.prepend(crate::HEADROOM).unwrap();
    assert_eq!(lab.interface.encapsulate(PEER, V4.into(), V4_PEER.into(), 0, &mut full), None);
    let mut short = HeapBuf::new(&[0; 12]);
    assert_eq!(lab.interface.encapsulate(PEER, V4.into(), V4_PEER.into(), 0, &mut short), None);
    assert_eq!(lab.interface.stats().tx_tcp_segments, 0);
}

#[test]
fn sources_and_routes() {
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

#[test]
fn garbage_is_counted_and_nothing_else() {
    let mut random = crate::testutil::Random::new(7);
    let mut lab = Lab::new(config());
    let templates = [
        tcp_v4_from(V4_PEER),
        tcp_v6(),
        ping_v4(b"ping"),
        arp(ArpOperation::Request, (PEER, V4_PEER), V4, OURS),
    ];
    for _ in 0..20_000 {
        let mut frame = templates[random.index(4)].clone();
        for _ in 0..random.between(1, 4) {
            let at = random.index(frame.len());
            frame[at] = random.byte();
        }
        frame.truncate(random.index(101));
        let checksum = if random.chance(500_000) { RxChecksum::Good } else { RxChecksum::Unknown };
        drop(lab.receive_at(Instant::ZERO + Duration::from_millis(random.below(100)), &frame, checksum));
        lab.transmit();
    }
    assert_eq!(lab.pool.live(), 0);
    assert!(lab.pool.data_room() > 0 && lab.interface.drops().total() > 1_000);
}
