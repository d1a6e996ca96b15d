mod discovery;
mod fragments;
mod transmit;

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
        mtu: 1500,
        vlan: None,
        ipv4: Ipv4Cidr::new(V4, 24),
        ipv4_gateway: Some(V4_GATEWAY),
        ipv6: Ipv6Cidr::new(v6("fd77::2"), 64),
        ipv6_gateway: Some(v6("fe80::1")),
        ipv6_link_local: None,
        primary: true,
        tx_checksum_offload: false,
        tx_ip_checksum_offload: false,
        neighbors_max: 16,
        hop_limit: 64,
        fragments: FragmentLimits {
            datagrams_max: 8,
            bytes_max: 512 << 10,
            timeout: Duration::from_secs(60),
        },
    }
}

/// An interface with a pool; its announcements have been sent.
struct Lab {
    interface: Interface<HeapBuf>,
    pool: HeapPool,
}

impl Lab {
    fn new(config: InterfaceConfig) -> Self {
        let mut lab = Self { interface: Interface::new(config, (3, 4)), pool: HeapPool::new(64, 0, 2048) };
        while let Some(deadline) = lab.interface.next_deadline() {
            lab.interface.handle_timeouts(deadline);
            lab.transmit();
        }
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

    /// Expects the frame to be dropped for this reason alone.
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
    // Short frames are padded on a real link.
    frame.resize(60, 0);
    frame
}

/// Returns an ICMPv6 message in a frame, with a correct checksum.
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

/// Returns an echo request with the data `body`.
fn ping(ipv6: bool, body: &[u8]) -> Vec<u8> {
    if !ipv6 {
        return ping_v4(body);
    }
    icmpv6(v6("fd77::1"), v6("fd77::2"), 64, 128, [1, 2, 3, 4], body)
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
fn extension_headers_and_options_are_skipped() {
    let mut lab = Lab::new(config());
    let frame = tcp_v6();
    let mut extended = frame[..54].to_vec();
    extended[14 + 6] = 60;
    extended[14 + 5] += 8;
    extended.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    extended.extend(&frame[54..]);
    let segment = lab.expect_tcp(&extended);
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
    let segment = lab.expect_tcp(&with_options(&tcp_v4_from(V4_PEER), &[1, 1, 1, 0]));
    assert_eq!(segment.buf.bytes()[segment.payload.clone()], *b"hello");
}

/// Returns an IPv4 packet with options, whose length must be a multiple of four.
fn with_options(frame: &[u8], options: &[u8]) -> Vec<u8> {
    let header_len = 20 + options.len();
    let mut extended = [&frame[..34], options, &frame[34..]].concat();
    extended[14] = 0x40 | u8::try_from(header_len / 4).unwrap();
    let total = u16::try_from(frame.len() - 14 + options.len()).unwrap();
    extended[16..18].copy_from_slice(&total.to_be_bytes());
    extended[24..26].fill(0);
    let sum = crate::wire::Sum::of(&extended[14..14 + header_len]).checksum();
    extended[24..26].copy_from_slice(&sum.to_be_bytes());
    extended
}

/// RFC 791 §3.1 and RFC 1122 §3.2.1.8, for every upper-layer protocol.
#[test]
fn incomplete_source_routes_and_malformed_options_are_dropped() {
    let mut lab = Lab::new(config());
    let ping = ping_v4(b"ping");
    let mut fragment = tcp_v4_from(V4_PEER);
    fragment[20] = 0x20;
    fix_ipv4(&mut fragment);
    for frame in [tcp_v4_from(V4_PEER), ping.clone(), fragment] {
        for kind in [131, 137] {
            let route = [kind, 11, 8, 10, 0, 0, 9, 10, 0, 0, 8, 0];
            lab.expect_drop(&with_options(&frame, &route), DropReason::IpSourceRoute);
        }
        for malformed in [[131, 7, 3, 10, 0, 0, 9, 0], [148, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 68]]
        {
            lab.expect_drop(&with_options(&frame, &malformed), DropReason::IpOptions);
        }
    }
    // A completed source route; the answer takes the ordinary route.
    let completed = [131, 7, 8, 10, 0, 0, 9, 0];
    lab.expect_tcp(&with_options(&tcp_v4_from(V4_PEER), &completed));
    lab.receive(&with_options(&ping, &completed));
    let sent = lab.transmit();
    assert_eq!((sent.len(), sent[0][14], &sent[0][42..]), (1, 0x45, &b"ping"[..]));
    // A packet for another host stays one.
    let mut other = with_options(&ping, &[131, 7, 3, 10, 0, 0, 9, 0]);
    other[33] = 9;
    other[24..26].fill(0);
    let sum = crate::wire::Sum::of(&other[14..42]).checksum();
    other[24..26].copy_from_slice(&sum.to_be_bytes());
    lab.expect_drop(&other, DropReason::IpNotOurs);
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
    // A port that verified TCP's checksum alone leaves the header's to us.
    assert!(matches!(lab.receive_at(Instant::ZERO, &frame, RxChecksum::TransportGood), Received::Tcp(_)));
    assert!(matches!(lab.receive_at(Instant::ZERO, &header, RxChecksum::TransportGood), Received::Done));
    assert!(matches!(lab.receive_at(Instant::ZERO, &later, RxChecksum::TransportGood), Received::Tcp(_)));
    assert_eq!(lab.interface.drops().drop_ip_checksum, 2);
    // A port that reports a wrong result does not cost us the segment.
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
    lab.expect_drop(&with(5, &[9]), DropReason::EthernetNotOurs);
    lab.expect_drop(&with(6, &[3]), DropReason::EthernetSource);
    lab.expect_drop(&with(12, &[0x88, 0xcc]), DropReason::EthernetType);
    lab.expect_drop(&with(0, &[0xff; 6]), DropReason::IpLinkBroadcast);
    let tagged = [&frame[..12], &[0x81, 0, 0, 100], &frame[12..]].concat();
    lab.expect_drop(&tagged, DropReason::EthernetVlan);
    let mut other = with(33, &[9]);
    fix_ipv4(&mut other);
    lab.expect_drop(&other, DropReason::IpNotOurs);
    let mut udp = with(23, &[17]);
    fix_ipv4(&mut udp);
    lab.expect_drop(&udp, DropReason::IpProtocol);
    lab.expect_drop(&frame[..40], DropReason::IpTruncated);
    lab.expect_drop(&with(14, &[0x44]), DropReason::IpMalformed);
    let mut short = with(17, &[30]);
    fix_ipv4(&mut short);
    lab.expect_drop(&short, DropReason::TcpTruncated);
    lab.expect_drop(&with(46, &[0x40]), DropReason::TcpMalformed);

    let frame = tcp_v6();
    let mut other = frame.clone();
    other[53] = 9;
    lab.expect_drop(&other, DropReason::IpNotOurs);
    let mut broadcast = frame.clone();
    broadcast[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    lab.expect_drop(&broadcast, DropReason::IpLinkBroadcast);
    broadcast[38..54].copy_from_slice(&v6("ff02::1").octets());
    lab.expect_drop(&broadcast, DropReason::IpNotOurs);
    let mut extended = frame[..54].to_vec();
    extended[14 + 5] += 8;
    extended[14 + 6] = 0;
    extended.extend([6, 0, 0xc9, 1, 0, 0, 0, 9]);
    extended.extend(&frame[54..]);
    lab.expect_drop(&extended, DropReason::IpExtension);
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
fn packets_of_unconfigured_families_are_dropped() {
    let mut lab = Lab::new(InterfaceConfig { ipv4: None, ..config() });
    lab.expect_drop(&tcp_v4_from(V4_PEER), DropReason::IpNotOurs);
    let request = arp(ArpOperation::Request, (PEER, V4_PEER), V4, MacAddr::BROADCAST);
    lab.expect_drop(&request, DropReason::ArpNotOurs);
    assert_eq!(lab.interface.source_for(V4_PEER.into()), None);
    assert_eq!(lab.interface.resolve(Instant::ZERO, V4_PEER.into()), Err(NotReady::NoRoute));
    let mut lab = Lab::new(InterfaceConfig { ipv6: None, ..config() });
    lab.expect_drop(&tcp_v6(), DropReason::IpNotOurs);
    let group = v6("ff02::1:ff00:2");
    let body = ndp_body("fd77::2", Some((1, PEER)));
    lab.expect_drop(&icmpv6(v6("fd77::1"), group, 255, 135, [0; 4], &body), DropReason::IpNotOurs);
    assert_eq!(lab.interface.source_for(v6("fd77::1").into()), None);
}

#[test]
fn icmp_errors_about_our_segments_are_returned() {
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

#[test]
fn random_frames_are_counted_as_drops() {
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
    lab.interface.handle_timeouts(Instant::ZERO + Duration::from_secs(90));
    lab.transmit();
    assert_eq!(lab.pool.live(), 0);
    assert!(lab.pool.data_room() > 0 && lab.interface.drops().total() > 1_000);
}
