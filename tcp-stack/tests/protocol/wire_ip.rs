//! Wire formats of IPv4, IPv6 and ICMP, and the flow of a frame.

use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tcp_stack::SeqNum;
use tcp_stack::testutil::hex;
use tcp_stack::wire::*;

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// The header of a UDP packet of 115 bytes.
const IPV4: &str = "45000073 00004000 4011b861 c0a80001 c0a800c7";

#[test]
fn ipv4_figure() {
    let mut bytes = hex(IPV4);
    bytes.resize(0x73 + 3, 0xee);
    let (header, header_bytes, payload) = Ipv4Header::parse(&bytes).unwrap();
    assert_eq!(
        header,
        Ipv4Header::atomic(Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 0, 199), IpProtocol(17))
    );
    assert!(Ipv4Header::is_checksum_valid(header_bytes) && !header.is_fragment());
    // The three bytes of padding are not payload.
    assert_eq!((header_bytes.len(), payload.len()), (20, 0x73 - 20));
    let mut out = [0; Ipv4Header::LEN];
    header.emit(payload.len(), true, &mut out);
    assert_eq!(out, header_bytes);
    header.emit(payload.len(), false, &mut out);
    assert_eq!((&out[..10], &out[10..12], &out[12..]), (&bytes[..10], &[0, 0][..], &bytes[12..20]));
    for len in 0..0x73 {
        assert!(matches!(Ipv4Header::parse(&bytes[..len]), Err(ParseError::Truncated { .. })), "{len}");
    }
    for at in 0..20 {
        let mut wrong = header_bytes.to_vec();
        wrong[at] ^= 0x40;
        assert!(!Ipv4Header::is_checksum_valid(&wrong));
    }
}

#[test]
fn unusual_ipv4_headers() {
    let with = |at: usize, value: u8| {
        let mut bytes = hex(IPV4);
        bytes.resize(0x73, 0xee);
        bytes[at] = value;
        bytes
    };
    assert_eq!(Ipv4Header::parse(&with(0, 0x55)), Err(ParseError::Version));
    assert_eq!(Ipv4Header::parse(&with(0, 0x44)), Err(ParseError::Length));
    // A total length inside the header.
    assert_eq!(Ipv4Header::parse(&with(3, 19)), Err(ParseError::Length));
    assert!(Ipv4Header::parse(&with(3, 20)).unwrap().2.is_empty());
    // Options are skipped.
    let bytes = with(0, 0x46);
    let (_, header_bytes, payload) = Ipv4Header::parse(&bytes).unwrap();
    assert_eq!((header_bytes.len(), payload.len()), (24, 0x73 - 24));
    // More fragments; an offset.
    assert!(Ipv4Header::parse(&with(6, 0x20)).unwrap().0.is_fragment());
    let later = Ipv4Header::parse(&with(7, 0x03)).unwrap().0;
    assert!(later.is_fragment() && later.fragment_offset == 3 && !later.more_fragments);
}

#[test]
fn ipv6_figure() {
    let bytes = hex(
        "6a012345 0004 06 40 fd770000000000000000000000000001 fd770000000000000000000000000002 01020304 ff",
    );
    let (header, payload) = Ipv6Header::parse(&bytes).unwrap();
    assert_eq!(
        header,
        Ipv6Header {
            src: v6("fd77::1"),
            dst: v6("fd77::2"),
            next_header: IpProtocol::TCP,
            traffic_class: 0xa0,
            flow_label: 0x12345,
            hop_limit: 64,
        }
    );
    assert_eq!(payload, [1, 2, 3, 4]);
    let mut out = [0; Ipv6Header::LEN];
    header.emit(4, &mut out);
    assert_eq!(out, bytes[..40]);
    for len in 0..44 {
        assert!(matches!(Ipv6Header::parse(&bytes[..len]), Err(ParseError::Truncated { .. })));
    }
    let mut wrong = bytes;
    wrong[0] = 0x45;
    assert_eq!(Ipv6Header::parse(&wrong), Err(ParseError::Version));
}

fn upper(first: u8, bytes: &str) -> Result<(u8, usize, Option<FragmentHeader>), ParseError> {
    let bytes = hex(bytes);
    UpperLayer::find(IpProtocol(first), &bytes)
        .map(|upper| (upper.protocol.0, upper.payload.len(), upper.fragment))
}

#[test]
fn ipv6_extension_headers() {
    assert_eq!(upper(6, "aabb"), Ok((6, 2, None)));
    // Hop-by-hop with a router alert, destination options with PadN, then TCP.
    assert_eq!(upper(0, "3c00 0502 0000 0100  0600 0104 00000000 aabb"), Ok((6, 2, None)));
    // A header of 16 bytes.
    assert_eq!(upper(60, "0601 010c 000000000000000000000000 aa"), Ok((6, 1, None)));
    // RFC 8200 §4.2: a type whose highest bits are 00 is skipped, any other discards the packet.
    assert_eq!(upper(60, "0600 3e04 00000000"), Ok((6, 0, None)));
    for kind in ["7e", "be", "fe"] {
        assert_eq!(upper(60, &format!("0600 {kind}04 00000000")), Err(ParseError::Extension));
    }
    // An option that ends outside its header.
    assert_eq!(upper(60, "0600 0105 00000000"), Err(ParseError::Extension));
    // Hop-by-hop that is not the first.
    assert_eq!(upper(60, "0000 0104 00000000 0600 0104 00000000"), Err(ParseError::Extension));
    // Routing headers are skipped if no segments are left.
    assert_eq!(upper(43, "0600 0400 00000000"), Ok((6, 0, None)));
    assert_eq!(upper(43, "0600 0001 00000000"), Err(ParseError::Extension));
    // Fragments: a first, a later, and a packet in one piece.
    let fragment =
        |offset, more_fragments| Some(FragmentHeader { offset, more_fragments, identification: 0x01020304 });
    assert_eq!(upper(44, "0600 0001 01020304 aabb"), Ok((6, 2, fragment(0, true))));
    assert_eq!(upper(44, "3c00 0010 01020304 aabb"), Ok((60, 2, fragment(2, false))));
    assert_eq!(upper(44, "0600 0000 01020304 aabb"), Ok((6, 2, fragment(0, false))));
    // Too many extension headers.
    let chain = "3c00 0104 00000000".repeat(7);
    assert_eq!(upper(60, &format!("{chain} 0600 0104 00000000")), Err(ParseError::TooManyExtensions));
    assert_eq!(upper(60, &format!("{}0600 0104 00000000", &chain[..6 * 18])), Ok((6, 0, None)));
    assert_eq!(upper(60, &format!("0603 {}", "0000".repeat(15))), Err(ParseError::TooManyExtensions));
    // Another protocol, and no next header.
    assert_eq!((upper(17, "aa"), upper(59, "")), (Ok((17, 1, None)), Ok((59, 0, None))));
    for first in [0, 43, 44, 60] {
        for len in 0..8 {
            let bytes = &hex("0600 0000 00000000")[..len];
            let error = UpperLayer::find(IpProtocol(first), bytes).unwrap_err();
            assert!(matches!(error, ParseError::Truncated { .. }), "{first} {len}");
        }
    }
}

#[test]
fn icmpv4_figure() {
    // Echo request 0x1234/1, "ab": checksum by hand: the complement of 0800 + 1234 + 0001 + 6162.
    let bytes = hex("0800 8468 1234 0001 6162");
    assert!(Icmpv4Header::is_checksum_valid(&bytes));
    let (header, body) = Icmpv4Header::parse(&bytes).unwrap();
    assert_eq!(header.message, Icmpv4Message::EchoRequest([0x12, 0x34, 0, 1]));
    assert_eq!(body, b"ab");
    let mut out = [0; Icmpv4Header::LEN];
    header.emit(body, &mut out);
    assert_eq!(out, bytes[..8]);
    for len in 0..8 {
        let error = Icmpv4Header::parse(&bytes[..len]).unwrap_err();
        assert_eq!(error, ParseError::Truncated { need: 8, have: len });
    }
    let parse = |text| Icmpv4Header::parse(&hex(text)).unwrap().0;
    let too_big = parse("0304 0000 0000 0578");
    assert_eq!(too_big.message, Icmpv4Message::FragmentationNeeded { mtu: 1400 });
    assert!(too_big.is_error() && parse("0303000000000000").is_error() && !header.is_error());
    assert_eq!(parse("0b01000000000000").message, Icmpv4Message::TimeExceeded { code: 1 });
    assert_eq!(parse("0c00000000000000").message, Icmpv4Message::ParameterProblem { code: 0 });
    assert_eq!(parse("0400000000000000").message, Icmpv4Message::Unknown { kind: 4, code: 0 });
}

#[test]
fn icmpv6_of_etherparse_is_parsed() {
    let (src, dst) = (v6("fd77::1"), v6("fd77::2"));
    let mut packet = Vec::new();
    PacketBuilder::ipv6(src.octets(), dst.octets(), 64)
        .icmpv6_echo_request(0x1234, 7)
        .write(&mut packet, b"odd")
        .unwrap();
    let (ip, message) = Ipv6Header::parse(&packet).unwrap();
    assert_eq!(ip.next_header, IpProtocol::ICMPV6);
    assert!(Icmpv6Header::is_checksum_valid(src, dst, message));
    assert!(!Icmpv6Header::is_checksum_valid(src, v6("fd77::3"), message));
    let (header, body) = Icmpv6Header::parse(message).unwrap();
    assert_eq!((header.message, body), (Icmpv6Message::EchoRequest([0x12, 0x34, 0, 7]), &b"odd"[..]));
    let mut out = [0; Icmpv6Header::LEN];
    header.emit(src, dst, body, &mut out);
    assert_eq!(out, message[..8]);
    for len in 0..8 {
        let error = Icmpv6Header::parse(&message[..len]).unwrap_err();
        assert_eq!(error, ParseError::Truncated { need: 8, have: len });
    }
    let parse = |text| Icmpv6Header::parse(&hex(text)).unwrap().0;
    assert_eq!(parse("0200 0000 00000500").message, Icmpv6Message::PacketTooBig { mtu: 1280 });
    assert_eq!(
        parse("8800 0000 60000000").message,
        Icmpv6Message::NeighborAdvertisement { router: false, solicited: true, overrides: true }
    );
    assert_eq!(parse("8801000060000000").message, Icmpv6Message::Unknown { kind: 136, code: 1 });
    assert!(parse("0104000000000000").is_error() && !parse("8600000000000000").is_error());
}

#[test]
fn quoted_segments() {
    let expected = |src: IpAddr, dst: IpAddr| QuotedTcp {
        src: SocketAddr::new(src, 0x1ce8),
        dst: SocketAddr::new(dst, 0xc001),
        seq: SeqNum::new(0x0102_0304),
        packet_len: 1500,
    };
    // Eight bytes of TCP after a header that announces 1500.
    let v4 = hex("450005dc 00004000 4006 0000 0a4d0002 0a4d0001 1ce8c00101020304");
    let quoted = Icmpv4Header::quoted_tcp(&v4).unwrap();
    assert_eq!(quoted, expected(Ipv4Addr::new(10, 77, 0, 2).into(), Ipv4Addr::new(10, 77, 0, 1).into()));
    let v6_packet = hex(
        "60000000 05b4 06 40 fd770000000000000000000000000002 fd770000000000000000000000000001 1ce8c00101020304",
    );
    let quoted = Icmpv6Header::quoted_tcp(&v6_packet).unwrap();
    assert_eq!(quoted, expected(v6("fd77::2").into(), v6("fd77::1").into()));
    for len in 0..28 {
        assert_eq!(Icmpv4Header::quoted_tcp(&v4[..len]), None);
    }
    for len in 0..48 {
        assert_eq!(Icmpv6Header::quoted_tcp(&v6_packet[..len]), None);
    }
    let mut udp = v4.clone();
    udp[9] = 17;
    let mut later_fragment = v4;
    later_fragment[7] = 1;
    assert_eq!((Icmpv4Header::quoted_tcp(&udp), Icmpv4Header::quoted_tcp(&later_fragment)), (None, None));
}

fn tcp_frame(src: SocketAddr, dst: SocketAddr, vlan: bool) -> Vec<u8> {
    let builder =
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).single_vlan(100.try_into().unwrap());
    let builder = match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => builder.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => builder.ipv6(src.octets(), dst.octets(), 64),
        _ => panic!("one family"),
    };
    let mut frame = Vec::new();
    builder.tcp(src.port(), dst.port(), 1, 1000).write(&mut frame, b"payload").unwrap();
    if !vlan {
        frame.drain(12..16);
    }
    frame
}

#[test]
fn flows_are_found_and_symmetric() {
    let ends: [(SocketAddr, SocketAddr); 2] = [
        ("10.77.0.1:49153".parse().unwrap(), "10.77.0.2:7400".parse().unwrap()),
        ("[fd77::1]:49153".parse().unwrap(), "[fd77::2]:7400".parse().unwrap()),
    ];
    for (a, b) in ends {
        let hash = flow_hash(a, b);
        assert_eq!(hash, flow_hash(b, a));
        assert_ne!(hash, flow_hash(SocketAddr::new(a.ip(), b.port()), SocketAddr::new(b.ip(), a.port())));
        for vlan in [false, true] {
            for (src, dst) in [(a, b), (b, a)] {
                let frame = tcp_frame(src, dst, vlan);
                assert_eq!(peek_flow(&frame), Flow::Tcp { hash, local_port: dst.port() });
                // A frame that ends before the ports has no flow.
                for len in 0..frame.len() {
                    assert_eq!(peek_flow(&frame[..len]), Flow::Other);
                }
            }
        }
        // An ICMP error belongs to the flow of the segment that it quotes.
        let quoted = tcp_frame(b, a, false)[14..].to_vec();
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([0; 6], [0; 6]);
        match (a.ip(), b.ip()) {
            (IpAddr::V4(_), IpAddr::V4(b)) => builder
                .ipv4([192, 0, 2, 1], b.octets(), 64)
                .icmpv4_raw(3, 1, [0; 4])
                .write(&mut frame, &quoted)
                .unwrap(),
            (IpAddr::V6(_), IpAddr::V6(b)) => builder
                .ipv6(v6("2001:db8::1").octets(), b.octets(), 64)
                .icmpv6_raw(1, 0, [0; 4])
                .write(&mut frame, &quoted)
                .unwrap(),
            _ => panic!("one family"),
        }
        assert_eq!(peek_flow(&frame), Flow::Tcp { hash, local_port: b.port() });
    }
    let mut fragment = tcp_frame(ends[0].0, ends[0].1, false);
    fragment[14 + 6] = 0x20;
    assert_eq!(peek_flow(&fragment), Flow::Other);
}

#[test]
fn flows_spread_over_workers() {
    for workers in [2_u32, 3, 8] {
        let mut counts = vec![0_u32; workers as usize];
        for port in 0..8000_u16 {
            let remote = SocketAddr::from(([10, 77, 0, 1], 40_000 + port));
            let hash = flow_hash(remote, SocketAddr::from(([10, 77, 0, 2], 7400)));
            counts[(hash % workers) as usize] += 1;
        }
        let mean = 8000 / workers;
        assert!(counts.iter().all(|count| count.abs_diff(mean) < mean / 5), "{counts:?}");
    }
}

fn ipv4_header() -> impl Strategy<Value = Ipv4Header> {
    (any::<[u32; 2]>(), any::<[u8; 3]>(), any::<u16>(), any::<[bool; 2]>(), 0_u16..8192).prop_map(
        |([src, dst], [protocol, traffic_class, ttl], identification, [df, mf], fragment_offset)| {
            Ipv4Header {
                src: src.into(),
                dst: dst.into(),
                protocol: IpProtocol(protocol),
                traffic_class,
                ttl,
                identification,
                dont_fragment: df,
                more_fragments: mf,
                fragment_offset,
            }
        },
    )
}

proptest! {
    #[test]
    fn ipv4_round_trip(header in ipv4_header(), payload: Vec<u8>) {
        let mut out = [0; Ipv4Header::LEN];
        header.emit(payload.len(), true, &mut out);
        let packet = [&out[..], &payload].concat();
        let (parsed, bytes, rest) = Ipv4Header::parse(&packet).unwrap();
        prop_assert_eq!((parsed, rest), (header, &payload[..]));
        prop_assert!(Ipv4Header::is_checksum_valid(bytes));
        let (judge, _) = etherparse::Ipv4Header::from_slice(&packet).unwrap();
        prop_assert_eq!(judge.calc_header_checksum(), judge.header_checksum);
        prop_assert_eq!(Ipv4Addr::from(judge.source), header.src);
        prop_assert_eq!(Ipv4Addr::from(judge.destination), header.dst);
        prop_assert_eq!(judge.fragment_offset.value(), header.fragment_offset);
        prop_assert_eq!((judge.dscp.value() << 2) | judge.ecn.value(), header.traffic_class);
        prop_assert_eq!(usize::from(judge.total_len), packet.len());
    }

    #[test]
    fn ipv6_round_trip(src: u128, dst: u128, next: u8, class: u8, hops: u8, label in 0_u32..1 << 20, payload: Vec<u8>) {
        let header = Ipv6Header {
            src: src.into(),
            dst: dst.into(),
            next_header: IpProtocol(next),
            traffic_class: class,
            flow_label: label,
            hop_limit: hops,
        };
        let mut out = [0; Ipv6Header::LEN];
        header.emit(payload.len(), &mut out);
        let packet = [&out[..], &payload].concat();
        prop_assert_eq!(Ipv6Header::parse(&packet), Ok((header, &payload[..])));
        let (judge, _) = etherparse::Ipv6Header::from_slice(&packet).unwrap();
        prop_assert_eq!((judge.traffic_class, judge.flow_label.value(), judge.hop_limit), (class, label, hops));
        prop_assert_eq!((Ipv6Addr::from(judge.source), Ipv6Addr::from(judge.destination)), (header.src, header.dst));
    }

    #[test]
    fn icmpv4_is_read_by_etherparse(id: [u8; 4], body: Vec<u8>) {
        let header = Icmpv4Header { message: Icmpv4Message::EchoReply(id) };
        let mut out = [0; Icmpv4Header::LEN];
        header.emit(&body, &mut out);
        let message = [&out[..], &body].concat();
        let judge = etherparse::Icmpv4Slice::from_slice(&message).unwrap();
        prop_assert!(judge.header().icmp_type.calc_checksum(judge.payload()) == judge.checksum());
        prop_assert!(Icmpv4Header::is_checksum_valid(&message));
        prop_assert_eq!(Icmpv4Header::parse(&message), Ok((header, &body[..])));
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes: Vec<u8>, ethertype in 0_usize..4) {
        let _ = Ipv4Header::parse(&bytes);
        let _ = Ipv6Header::parse(&bytes);
        let _ = Icmpv4Header::parse(&bytes);
        let _ = Icmpv6Header::parse(&bytes);
        let _ = Icmpv4Header::quoted_tcp(&bytes);
        let _ = Icmpv6Header::quoted_tcp(&bytes);
        for first in 0..=255 {
            let _ = UpperLayer::find(IpProtocol(first), &bytes);
        }
        let ethertype = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x08, 0x06]][ethertype];
        if let Some(field) = bytes.get_mut(12..14) {
            field.copy_from_slice(&ethertype);
        }
        let _ = peek_flow(&bytes);
    }
}

#[test]
fn a_whole_frame_reads_as_in_etherparse() {
    let (a, b) = ("[fd77::1]:1".parse().unwrap(), "[fd77::2]:2".parse().unwrap());
    let frame = tcp_frame(a, b, true);
    let judged = PacketHeaders::from_ethernet_slice(&frame).unwrap();
    assert!(matches!(judged.net, Some(NetHeaders::Ipv6(..))));
    assert!(matches!(judged.transport, Some(TransportHeader::Tcp(_))));
}
