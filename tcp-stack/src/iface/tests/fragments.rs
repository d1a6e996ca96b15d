//! Tests of reassembly through the interface, valid and hostile, over IPv4 and IPv6.

use super::*;
use proptest::prelude::*;

/// Returns a TCP segment in one packet, for [`cut`].
fn packet(ipv6: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    if ipv6 {
        let (src, dst) = (v6("fd77::1").octets(), v6("fd77::2").octets());
        builder().ipv6(src, dst, 64).tcp(49153, 7400, 1000, 512).ack(7).write(&mut frame, payload).unwrap();
    } else {
        let step = builder().ipv4(V4_PEER.octets(), V4.octets(), 64);
        step.tcp(49153, 7400, 1000, 512).ack(7).write(&mut frame, payload).unwrap();
    }
    frame
}

/// Returns the fragment of a frame's packet that holds the bytes `part` of its payload.
fn cut(frame: &[u8], id: u16, part: Range<usize>) -> Vec<u8> {
    let ipv6 = frame[12] == 0x86;
    let headers = if ipv6 { 54 } else { 34 };
    let payload = &frame[headers..];
    let part = part.start..part.end.min(payload.len());
    let more = u16::from(part.end < payload.len());
    let offset = u16::try_from(part.start).unwrap();
    let mut fragment = frame[..headers].to_vec();
    if ipv6 {
        let len = u16::try_from(part.len() + 8).unwrap();
        fragment[18..20].copy_from_slice(&len.to_be_bytes());
        let next = core::mem::replace(&mut fragment[20], 44);
        fragment.extend([next, 0]);
        fragment.extend((offset | more).to_be_bytes());
        fragment.extend([0, 0]);
        fragment.extend(id.to_be_bytes());
    } else {
        let len = u16::try_from(part.len() + 20).unwrap();
        fragment[16..18].copy_from_slice(&len.to_be_bytes());
        fragment[18..20].copy_from_slice(&id.to_be_bytes());
        fragment[20..22].copy_from_slice(&((offset / 8) | (more << 13)).to_be_bytes());
        fix_ipv4(&mut fragment);
    }
    fragment.extend(&payload[part]);
    fragment
}

/// Returns all fragments of a frame's packet, each with `size` bytes of its payload.
fn fragments(frame: &[u8], id: u16, size: usize) -> Vec<Vec<u8>> {
    let payload = frame.len() - if frame[12] == 0x86 { 54 } else { 34 };
    (0..payload).step_by(size).map(|at| cut(frame, id, at..at + size)).collect()
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

fn payload_of(segment: &TcpSegment<HeapBuf>) -> &[u8] {
    &segment.buf.bytes()[segment.payload.clone()]
}

#[test]
fn a_fragmented_packet_is_reassembled() {
    for ipv6 in [false, true] {
        let mut lab = Lab::new(config());
        let frame = packet(ipv6, &bytes(1400));
        let whole = lab.expect_tcp(&frame);
        for size in [64, 576, 1280] {
            let mut parts = fragments(&frame, 7, size);
            // A real link pads short frames.
            let last = parts.last_mut().unwrap();
            last.resize(last.len().max(60), 0xee);
            let (last, others) = parts.split_last().unwrap();
            for part in others.iter().rev() {
                assert!(matches!(lab.receive(part), Received::Done));
            }
            let segment = lab.expect_tcp(last);
            assert!(segment.reassembled && !whole.reassembled);
            assert_eq!(payload_of(&segment), bytes(1400));
            assert_eq!((segment.local, segment.remote), (whole.local, whole.remote));
            assert_eq!((segment.header, segment.options), (whole.header, whole.options));
            assert_eq!(lab.interface.fragments.buffer_bytes(), 0);
            assert_eq!(lab.interface.next_deadline(), None);
        }
        assert_eq!((lab.interface.stats().rx_reassembled, lab.interface.drops().total()), (3, 0));
    }
}

#[test]
fn a_fragmented_ping_is_answered() {
    let mut lab = Lab::new(config());
    let v6_ping = icmpv6(v6("fd77::1"), v6("fd77::2"), 64, 128, [1, 2, 3, 4], &bytes(1400));
    for frame in [ping_v4(&bytes(1400)), v6_ping] {
        for part in fragments(&frame, 9, 800) {
            lab.receive(&part);
        }
        let sent = lab.transmit();
        assert_eq!(sent.len(), 1);
        assert!(sent[0].ends_with(&bytes(1400)));
    }
}

/// A reply fits the MTU for any length of the request: in a frame of a tagged one's length, or in fragments.
#[test]
fn echo_replies_are_no_longer_than_the_mtu() {
    for (mtu, vlan, ipv6) in [
        (1500, None, false),
        (1500, Some(100), false),
        (576, None, false),
        (1900, Some(7), false),
        (1500, None, true),
        (1500, Some(100), true),
        (1280, None, true),
    ] {
        let mut lab = Lab::new(InterfaceConfig { mtu, vlan, ..config() });
        let tag = |frame: &[u8]| match vlan {
            Some(vlan) => [&frame[..12], &[0x81, 0], &vlan.to_be_bytes()[..], &frame[12..]].concat(),
            None => frame.to_vec(),
        };
        let headers = if ipv6 { 48 } else { 28 };
        let room = usize::from(mtu) - headers;
        for (len, in_parts) in
            [(room, false), (room + 1, false), (room + 4, false), (room, true), (room + 60, true)]
        {
            let what = (mtu, vlan, ipv6, len, in_parts);
            let whole = ping(ipv6, &bytes(len));
            let frames = if in_parts { fragments(&whole, 9, 512) } else { vec![whole] };
            let before = (lab.interface.stats(), *lab.interface.drops());
            for frame in frames {
                lab.receive(&tag(&frame));
            }
            let sent = lab.transmit();
            let stats = lab.interface.stats();
            let replies = stats.tx_echo_replies - before.0.tx_echo_replies;
            let truncated = stats.tx_echo_truncated - before.0.tx_echo_truncated;
            let refused = lab.interface.drops().drop_icmp_echo_too_long - before.1.drop_icmp_echo_too_long;
            let fits = u64::from(len <= room);
            let wanted = if ipv6 { (fits, 0, 1 - fits) } else { (1, 1 - fits, 0) };
            assert_eq!((replies, truncated, refused), wanted, "{what:?}");
            assert_eq!(u64::try_from(sent.len()).unwrap(), replies, "{what:?}");
            for frame in sent {
                let link = if vlan.is_some() { 18 } else { 14 };
                assert_eq!(frame.len(), link + headers + len.min(room), "{what:?}");
                assert!(frame.ends_with(&bytes(len.min(room))), "{what:?}");
                let untagged = [&frame[..12], &frame[link - 2..]].concat();
                let message = &untagged[if ipv6 { 54 } else { 34 }..];
                let sound = if ipv6 {
                    crate::wire::Icmpv6Header::is_checksum_valid(v6("fd77::2"), v6("fd77::1"), message)
                } else {
                    crate::wire::Icmpv4Header::is_checksum_valid(message)
                };
                assert!(sound, "{what:?}");
            }
        }
    }
}

#[test]
fn overlapping_fragments_discard_the_packet() {
    for ipv6 in [false, true] {
        let frame = packet(ipv6, &bytes(1000));
        let mut altered = frame.clone();
        *altered.last_mut().unwrap() ^= 1;
        // RFC 5722: teardrop; a second end; an end before bytes that arrived; other bytes at the same offset.
        let ends_early = {
            let mut short = frame.clone();
            short.truncate(short.len() - 200);
            cut(&short, 1, 400..1020)
        };
        for hostile in [
            cut(&frame, 1, 392..808),
            cut(&frame, 1, 8..16),
            cut(&frame, 1, 800..1020),
            ends_early,
            cut(&altered, 1, 600..1020),
        ] {
            let mut lab = Lab::new(config());
            lab.receive(&cut(&frame, 1, 0..400));
            lab.receive(&cut(&frame, 1, 600..1020));
            lab.receive(&hostile);
            assert_eq!(lab.interface.drops().drop_fragment_overlap, 3, "{ipv6}");
            assert_eq!((lab.interface.fragments.buffer_bytes(), lab.pool.live()), (0, 0));
            // RFC 5722 §4: "including those not yet received".
            for part in fragments(&frame, 1, 200) {
                lab.expect_drop(&part, DropReason::FragmentOverlap);
            }
            // Another packet is unaffected.
            let parts = fragments(&frame, 2, 520);
            lab.receive(&parts[0]);
            assert_eq!(payload_of(&lab.expect_tcp(&parts[1])), bytes(1000));
        }
    }
}

#[test]
fn impossible_fragments_are_dropped() {
    for ipv6 in [false, true] {
        let mut lab = Lab::new(config());
        let frame = packet(ipv6, &bytes(1000));
        // A length that is not a multiple of eight, and not the last; no byte at all.
        lab.expect_drop(&cut(&frame, 1, 0..401), DropReason::FragmentMalformed);
        lab.expect_drop(&cut(&frame, 1, 400..400), DropReason::FragmentMalformed);
        // RFC 8200 §4.5: the first fragment has all headers.
        lab.expect_drop(&cut(&frame, 1, 0..16), DropReason::FragmentHeaders);
        // Beyond the longest packet ("ping of death").
        let mut beyond = cut(&frame, 1, 400..1020);
        if ipv6 {
            beyond[56..58].copy_from_slice(&0xfff8_u16.to_be_bytes());
        } else {
            beyond[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
            fix_ipv4(&mut beyond);
        }
        lab.expect_drop(&beyond, DropReason::FragmentMalformed);
        // An unsupported protocol.
        let mut udp = cut(&frame, 1, 0..400);
        if ipv6 {
            udp[54] = 17;
        } else {
            udp[23] = 17;
            fix_ipv4(&mut udp);
        }
        lab.expect_drop(&udp, DropReason::IpProtocol);
        assert_eq!(lab.interface.fragments.buffer_bytes(), 0);
    }
    let mut lab = Lab::new(config());
    let frame = packet(true, &bytes(1000));
    let mut nested = cut(&frame, 1, 0..400);
    nested[54] = 44;
    lab.expect_drop(&nested, DropReason::IpExtension);
    let mut group = cut(&frame, 1, 0..400);
    group[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    group[38..54].copy_from_slice(&v6("ff02::1").octets());
    lab.expect_drop(&group, DropReason::IpNotOurs);
}

#[test]
fn without_reassembly_fragments_are_dropped() {
    let limits = FragmentLimits { datagrams_max: 0, ..config().fragments };
    let mut lab = Lab::new(InterfaceConfig { fragments: limits, ..config() });
    for ipv6 in [false, true] {
        lab.expect_drop(&cut(&packet(ipv6, &bytes(1000)), 1, 0..400), DropReason::IpFragment);
    }
}

/// RFC 6946: an atomic fragment is a packet of its own, even if others have its identification.
#[test]
fn atomic_fragments_are_delivered_at_once() {
    let mut lab = Lab::new(config());
    let frame = packet(true, &bytes(1000));
    lab.receive(&cut(&frame, 1, 400..1020));
    assert_eq!(payload_of(&lab.expect_tcp(&cut(&frame, 1, 0..1020))), bytes(1000));
    lab.receive(&cut(&frame, 1, 0..400));
    assert_eq!(lab.interface.stats().rx_reassembled, 1);
}

/// RFC 6980: neighbor discovery is never fragmented, not even as an atomic fragment.
#[test]
fn neighbor_discovery_in_fragments_is_ignored() {
    let mut lab = Lab::new(config());
    let body = ndp_body("fd77::2", Some((1, PEER)));
    let question = icmpv6(v6("fd77::1"), v6("fd77::2"), 255, 135, [0; 4], &body);
    lab.expect_drop(&cut(&question, 1, 0..100), DropReason::NdpInvalid);
    lab.receive(&cut(&question, 1, 0..16));
    lab.expect_drop(&cut(&question, 1, 16..100), DropReason::NdpInvalid);
    assert!(lab.transmit().is_empty());
}

/// RFC 3168 §5.3: a mark on one fragment marks the packet.
#[test]
fn congestion_marks_survive_reassembly() {
    for ipv6 in [false, true] {
        for (codepoints, expected) in
            [([2, 3], Some(3)), ([3, 1], Some(3)), ([2, 2], Some(2)), ([0, 3], None), ([0, 0], Some(0))]
        {
            let mut lab = Lab::new(config());
            let parts = fragments(&packet(ipv6, &bytes(1000)), 1, 520);
            let mut segment = Received::Done;
            for (mut part, codepoint) in parts.into_iter().zip(codepoints) {
                part[15] |= if ipv6 { codepoint << 4 } else { codepoint };
                if !ipv6 {
                    fix_ipv4(&mut part);
                }
                segment = lab.receive(&part);
            }
            let class = if let Received::Tcp(segment) = segment { Some(segment.traffic_class) } else { None };
            assert_eq!(class, expected, "{codepoints:?}");
            let dropped = if expected.is_none() { 2 } else { 0 };
            assert_eq!(lab.interface.drops().drop_fragment_malformed, dropped);
        }
    }
}

#[test]
fn a_packet_must_fit_into_its_first_buffer() {
    for ipv6 in [false, true] {
        let mut lab = Lab::new(config());
        let parts = fragments(&packet(ipv6, &bytes(3000)), 1, 1024);
        lab.receive(&parts[0]);
        lab.receive(&parts[1]);
        lab.receive(&parts[2]);
        assert_eq!(lab.interface.drops().drop_fragment_too_large, 3);
        assert_eq!((lab.interface.stats().rx_delivered, lab.pool.live()), (0, 0));
    }
}

#[test]
fn an_expired_packet_is_reported_to_its_sender_once() {
    for ipv6 in [false, true] {
        let mut lab = Lab::new(config());
        let frame = packet(ipv6, &bytes(1000));
        // Of the first packet the first fragment has arrived; of the second it has not.
        lab.receive(&cut(&frame, 1, 0..800));
        lab.receive(&cut(&frame, 2, 400..800));
        let deadline = lab.interface.next_deadline().unwrap();
        assert_eq!(deadline, Instant::ZERO + Duration::from_secs(60));
        lab.interface.handle_timeouts(deadline - Duration::from_nanos(1));
        assert_eq!(lab.interface.drops().total(), 0);
        lab.interface.handle_timeouts(deadline);
        assert_eq!(lab.interface.drops().drop_fragment_timeout, 2);
        assert_eq!((lab.interface.next_deadline(), lab.interface.fragments.buffer_bytes()), (None, 0));
        let sent = lab.transmit();
        let [error] = sent.as_slice() else { panic!("{}", sent.len()) };
        let at = if ipv6 { 54 } else { 34 };
        assert_eq!(error[at..at + 2], if ipv6 { [3, 1] } else { [11, 1] });
        // The error quotes the fragment and is no longer than it.
        let first = cut(&frame, 1, 0..800);
        assert!(first[14..].starts_with(&error[at + 8..]), "{ipv6}");
        assert!(error.len() <= first.len() + at + 8 && error.len() - 14 <= if ipv6 { 1280 } else { 576 });
        assert_eq!((lab.interface.stats().tx_time_exceeded, lab.pool.live()), (1, 0));
        // At most ten a second.
        for id in 10..15 {
            lab.receive_at(deadline, &cut(&frame, id, 0..400), RxChecksum::Unknown);
        }
        lab.interface.handle_timeouts(deadline + Duration::from_secs(60));
        assert_eq!(lab.transmit().len(), 1);
    }
}

/// A source that sends only first fragments evicts its own packets, not those of others.
#[test]
fn reassembly_memory_per_source_is_bounded() {
    let limits = FragmentLimits { bytes_max: 64 << 10, ..config().fragments };
    let mut lab = Lab::new(InterfaceConfig { fragments: limits, ..config() });
    let frame = packet(false, &bytes(1000));
    let parts = fragments(&frame, 1, 520);
    lab.receive(&parts[0]);
    let mut other = frame.clone();
    other[29] = 200;
    for id in 100..1000 {
        lab.receive(&cut(&other, id, 0..400));
        assert!(lab.interface.fragments.buffer_bytes() <= 16 << 10);
    }
    // Two of eight.
    assert_eq!(lab.interface.drops().drop_fragment_limit, 898);
    assert_eq!(payload_of(&lab.expect_tcp(&parts[1])), bytes(1000));
}

/// With as many sources as packets, the packets that have waited longest are evicted.
#[test]
fn reassembly_memory_is_bounded() {
    for ipv6 in [false, true] {
        let limits = FragmentLimits { datagrams_max: 64, bytes_max: 32 << 10, ..config().fragments };
        let mut lab = Lab::new(InterfaceConfig { fragments: limits, ..config() });
        let frame = packet(ipv6, &bytes(1000));
        for source in 1..200_u8 {
            let mut other = frame.clone();
            // The last byte of an IPv4 source, and of the first half of an IPv6 one.
            other[29] = source;
            for part in [400..600, 0..400] {
                lab.receive(&cut(&other, 1, part));
                assert!(lab.interface.fragments.buffer_bytes() <= 32 << 10);
                assert!(lab.pool.live() <= 16);
            }
        }
        assert!(lab.interface.drops().drop_fragment_limit > 300);
        let more = (0..100).map(|n| cut(&frame, 2, 400 + 8 * n..408 + 8 * n));
        for part in more.take(60) {
            lab.receive(&part);
        }
        assert!(lab.interface.fragments.buffer_bytes() <= 32 << 10);
    }
}

#[test]
fn fragments_in_a_vlan_are_reassembled() {
    for ipv6 in [false, true] {
        let mut lab = Lab::new(InterfaceConfig { vlan: Some(100), ..config() });
        let frame = packet(ipv6, &bytes(1000));
        let tag = |part: &[u8]| [&part[..12], &[0x81, 0, 0, 100], &part[12..]].concat();
        let parts = fragments(&frame, 1, 520);
        lab.receive(&tag(&parts[1]));
        assert_eq!(payload_of(&lab.expect_tcp(&tag(&parts[0]))), bytes(1000));
        lab.expect_drop(&parts[0], DropReason::EthernetVlan);
    }
}

proptest! {
    /// A packet that is cut, shuffled and repeated at random is reassembled once.
    #[test]
    fn fragments_in_any_order_give_the_same_packet(
        ipv6: bool,
        len in 100_usize..1400,
        mut cuts in prop::collection::vec(3_usize..170, 0..12),
        order in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let mut lab = Lab::new(config());
        let frame = packet(ipv6, &bytes(len));
        let total = len + 20;
        cuts.retain(|cut| cut * 8 < total);
        cuts.extend([0, total.div_ceil(8)]);
        cuts.sort_unstable();
        cuts.dedup();
        let parts: Vec<_> = cuts.windows(2).map(|ends| cut(&frame, 1, ends[0] * 8..ends[1] * 8)).collect();
        let mut sequence: Vec<usize> = order.iter().map(|index| index.index(parts.len())).collect();
        sequence.extend(0..parts.len());
        let mut came = 0;
        let mut seen = std::collections::BTreeSet::new();
        for index in sequence {
            seen.insert(index);
            let received = lab.receive(&parts[index]);
            let whole = matches!(received, Received::Tcp(_));
            prop_assert_eq!(whole, seen.len() == parts.len());
            if let Received::Tcp(segment) = received {
                prop_assert_eq!(payload_of(&segment), bytes(len));
                seen.clear();
                came += 1;
            }
            prop_assert!(lab.interface.fragments.buffer_bytes() <= 512 << 10);
        }
        prop_assert!(came >= 1);
        prop_assert_eq!(lab.interface.drops().drop_fragment_overlap, 0);
    }

    /// Overlapping fragments are never joined: every packet received is one that a sender sent.
    #[test]
    fn overlapping_fragments_never_mix(
        ipv6: bool,
        parts in prop::collection::vec((0_usize..60, 1_usize..30, any::<bool>()), 1..40),
    ) {
        let mut lab = Lab::new(config());
        let honest = packet(ipv6, &bytes(400));
        let forged = packet(ipv6, &bytes(401)[1..]);
        for (start, len, other) in parts {
            let frame = if other { &forged } else { &honest };
            let start = start * 8 % 420;
            if let Received::Tcp(segment) = lab.receive(&cut(frame, 1, start..start + len * 8)) {
                let payload = payload_of(&segment);
                prop_assert!(payload == bytes(400) || payload == &bytes(401)[1..]);
            }
            prop_assert!(lab.interface.fragments.buffer_bytes() <= 512 << 10);
        }
    }
}
