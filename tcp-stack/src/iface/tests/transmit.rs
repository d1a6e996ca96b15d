//! Tests of the interface's own frames, and of the headers before segments.

use super::*;
use crate::four_tuple::FourTuple;
use crate::iface::template::Template;
use crate::wire::{EcnField, Sum, Timestamps};

#[test]
fn pings_are_answered() {
    let mut lab = Lab::new(config());
    for body in [&b""[..], b"ping", &[0x5a; 1452]] {
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

/// Returns a TCP header and payload whose checksum is not computed yet.
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

/// A template's frames equal those of the general path, for random shared and own fields.
#[test]
fn templates_write_the_same_headers() {
    let flow = FourTuple::new((V4, 7400).into(), (V4_FAR, 65_535).into());
    let timestamps = Timestamps { value: 0xffff_fffe, echo: 7 };
    let options = TcpOptions { timestamps: Some(timestamps), ..TcpOptions::NONE };
    let payloads = [&b""[..], b"odd", &[0; 1448], &[0xff; 1448], &[0x5a; 577]];
    for (offload, ip, known) in
        [(false, false, false), (false, false, true), (true, true, false), (true, false, false)]
    {
        let offloads =
            InterfaceConfig { tx_checksum_offload: offload, tx_ip_checksum_offload: ip, ..config() };
        let mut lab = Lab::new(InterfaceConfig { hop_limit: 3, ..offloads });
        for (nth, payload) in (0_u32..).zip(payloads) {
            for flags in [TcpFlags::NONE, TcpFlags::PSH] {
                let common = TcpHeader {
                    src_port: 7400,
                    dst_port: 65_535,
                    seq: SeqNum::new(nth.wrapping_mul(0x4321_f00d)),
                    ack: SeqNum::new(u32::MAX - nth),
                    flags: TcpFlags::ACK,
                    window: 0xfff0,
                    urgent: 0,
                };
                let header = TcpHeader { flags: common.flags | flags, ..common };
                let mut buf = lab.pool.copy(payload).unwrap();
                assert!(header.emit(&options, buf.prepend(32).unwrap()));
                let expected =
                    lab.interface.encapsulate(PEER, V4.into(), V4_FAR.into(), 2, &mut buf).unwrap();
                let other = TcpHeader { seq: SeqNum::new(1), ..common };
                let template =
                    lab.interface.template(PEER, &flow, EcnField::Ect0.bits(), (&other, timestamps));
                let mut templated = lab.pool.copy(payload).unwrap();
                let sum = known.then(|| Sum::of(payload).fold());
                let done = template.unwrap().put((header.seq, flags), &mut templated, sum).unwrap();
                assert_eq!((done, templated.bytes()), (expected, buf.bytes()));
            }
        }
    }
}

#[test]
fn segments_without_a_template() {
    let flow = FourTuple::new((V4, 1).into(), (V4_PEER, 2).into());
    let (header, timestamps) = (TcpHeader::default(), Timestamps::default());
    let make = |lab: &Lab, flow| lab.interface.template(PEER, flow, 0, (&header, timestamps));
    let tagged = Lab::new(InterfaceConfig { vlan: Some(7), ..config() });
    assert!(make(&tagged, &flow).is_none() && !tagged.interface.has_template(&flow));
    let mut lab = Lab::new(config());
    let six = FourTuple::new((v6("fd77::2"), 1).into(), (v6("fd77::1"), 2).into());
    assert!(make(&lab, &six).is_none() && !lab.interface.has_template(&six));
    let template = make(&lab, &flow).unwrap();
    let mut shared = lab.pool.copy(b"hello").unwrap();
    let other = shared.share();
    assert!(template.put((SeqNum::new(1), TcpFlags::NONE), &mut shared, None).is_none());
    assert_eq!(other.bytes(), b"hello");
    let mut full = HeapBuf::new(b"hello");
    full.prepend(crate::HEADROOM - Template::LEN + 1).unwrap();
    assert!(template.put((SeqNum::new(1), TcpFlags::NONE), &mut full, None).is_none());
}

#[test]
fn checksums_are_left_to_the_port() {
    let both = InterfaceConfig { tx_checksum_offload: true, tx_ip_checksum_offload: true, ..config() };
    let mut lab = Lab::new(both);
    let mut buf = segment(&mut lab);
    let offload = lab.interface.encapsulate(PEER, V4.into(), V4_PEER.into(), 0, &mut buf).unwrap();
    assert!(offload.ip_checksum && offload.tcp_checksum);
    let (_, header, tcp) = Ipv4Header::parse(&buf.bytes()[14..]).unwrap();
    assert_eq!(header[10..12], [0, 0]);
    // Completes the checksum as the port would.
    let completed = Sum::of(tcp).checksum();
    let slice = etherparse::TcpSlice::from_slice(tcp).unwrap();
    assert_eq!(completed, slice.calc_checksum_ipv4(V4.octets(), V4_PEER.octets()).unwrap());
    let mut buf = segment(&mut lab);
    let (local, remote) = (v6("fd77::2").into(), v6("fd77::1").into());
    let offload = lab.interface.encapsulate(PEER, local, remote, 0, &mut buf).unwrap();
    assert!(!offload.ip_checksum && offload.tcp_checksum && offload.ipv6);
}

/// virtio and vmxnet3 fill in TCP's checksum and nothing of IPv4's header.
#[test]
fn a_port_that_knows_tcp_alone_gets_a_whole_ipv4_header() {
    let mut lab = Lab::new(InterfaceConfig { tx_checksum_offload: true, ..config() });
    let ends = (V4.into(), V4_PEER.into());
    for (segments, bytes) in [(0_u16, 0), (1, 700), (4, 3001)] {
        let mut buf = segment(&mut lab);
        let run = SegmentRun { segment: 1000, segments, bytes };
        let offload = match segments {
            0 => lab.interface.encapsulate(PEER, ends.0, ends.1, 0, &mut buf),
            _ => lab.interface.encapsulate_run(PEER, ends, 0, run, &mut buf),
        };
        let offload = offload.unwrap();
        assert!(!offload.ip_checksum && offload.tcp_checksum);
        let packet = &buf.bytes()[14..];
        assert!(Ipv4Header::is_checksum_valid(packet.first_chunk::<20>().unwrap()), "{segments} segments");
        let len = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        assert_eq!(len, packet.len() + bytes, "{segments} segments");
    }
}

#[test]
fn segments_that_cannot_be_encapsulated() {
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
