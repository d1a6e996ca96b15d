//! SEGMENT ARRIVES in CLOSED and in LISTEN (RFC 9293 §3.10.7.1 and §3.10.7.2) for all 64 combinations of control bits,
//! with and without text, over both families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tcp_stack::testutil::{HeapBuf, HeapPool, WireSegment};
use tcp_stack::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpFlags, TcpHeader, TcpOptions,
};
use tcp_stack::{
    Buf, Instant, Ipv4Cidr, Ipv6Cidr, ListenOptions, MacAddr, OurPorts, RxChecksum, RxFrame, SeqNum, Stack,
    StackConfig, State, SynCookies, TcpConfig, TxFrame,
};

const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OURS: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const PEER: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(10, 0, 0, 2), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
const PORT: u16 = 7;
const SEQ: SeqNum = SeqNum::new(0xffff_fffe);
const ACK: SeqNum = SeqNum::new(77);
/// FIN, SYN, RST, PSH, ACK, URG, lowest bit first.
const BITS: [TcpFlags; 6] =
    [TcpFlags::FIN, TcpFlags::SYN, TcpFlags::RST, TcpFlags::PSH, TcpFlags::ACK, TcpFlags::URG];

/// The answer that the RFC requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// No answer: "Drop the segment and return."
    Nothing,
    /// A reset with an acceptable sequence number: `<SEQ=SEG.ACK><CTL=RST>`
    Reset,
    /// A reset that acknowledges the segment: `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>`
    ResetAck,
    /// The second segment of a handshake: `<SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>`
    SynAck,
}

/// Returns the answer by the RFC's text, in its order of checks.
fn answer(flags: TcpFlags, listens: bool) -> Answer {
    let has = |flag| flags.contains(flag);
    match (has(TcpFlags::RST), has(TcpFlags::ACK), has(TcpFlags::SYN)) {
        (true, _, _) => Answer::Nothing,
        (_, true, _) => Answer::Reset,
        (_, _, true) if listens => Answer::SynAck,
        _ if listens => Answer::Nothing,
        _ => Answer::ResetAck,
    }
}

fn stack(listens: bool) -> Stack<HeapBuf> {
    let config = StackConfig {
        mac: OUR_MAC,
        ipv4: Ipv4Cidr::new(OURS.0, 24),
        ipv6: Ipv6Cidr::new(OURS.1, 64),
        neighbors: vec![(PEER.0.into(), PEER_MAC), (PEER.1.into(), PEER_MAC)],
        connections_max: 4,
        buffers_max: 64,
        tcp: TcpConfig { syn_cookies: SynCookies::Never, ..TcpConfig::default() },
        ..StackConfig::default()
    };
    let mut stack = Stack::new(config, [3; 32]);
    if listens {
        stack.listen(PORT, ListenOptions::default()).unwrap();
    }
    stack
}

/// Returns a segment of the peer in a frame.
fn frame(flags: TcpFlags, src_port: u16, dst_port: u16, len: usize, ipv6: bool) -> Vec<u8> {
    let (us, peer): (IpAddr, IpAddr) =
        if ipv6 { (OURS.1.into(), PEER.1.into()) } else { (OURS.0.into(), PEER.0.into()) };
    let header = TcpHeader { src_port, dst_port, seq: SEQ, ack: ACK, flags, window: 1000, urgent: 0 };
    let mut segment = vec![0; TcpHeader::LEN];
    assert!(header.emit(&TcpOptions::NONE, &mut segment));
    segment.resize(TcpHeader::LEN + len, 1);
    assert!(TcpHeader::set_checksum(
        &mut segment,
        Sum::pseudo_header(peer, us, IpProtocol::TCP, TcpHeader::LEN + len)
    ));
    let ethertype = if ipv6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let ethernet = EthernetHeader { dst: OUR_MAC, src: PEER_MAC, tci: None, ethertype };
    let mut frame = vec![0; ethernet.header_len()];
    assert!(ethernet.emit(&mut frame));
    if ipv6 {
        let (next_header, hop_limit) = (IpProtocol::TCP, 64);
        let ip =
            Ipv6Header { src: PEER.1, dst: OURS.1, next_header, traffic_class: 0, flow_label: 0, hop_limit };
        let mut header = [0; Ipv6Header::LEN];
        ip.emit(segment.len(), &mut header);
        frame.extend(header);
    } else {
        let mut header = [0; Ipv4Header::LEN];
        Ipv4Header::atomic(PEER.0, OURS.0, IpProtocol::TCP).emit(segment.len(), true, &mut header);
        frame.extend(header);
    }
    frame.extend(segment);
    frame
}

/// Returns the segments that a stack sends in answer to a frame.
fn sent_upon(stack: &mut Stack<HeapBuf>, frame: &[u8]) -> Vec<WireSegment> {
    let now = Instant::from_millis(1000);
    let mut pool = HeapPool::new(64, 16, 1600);
    stack.handle_frames(now, [RxFrame { buf: HeapBuf::new(frame), checksum: RxChecksum::Unknown }]);
    let mut sent = Vec::new();
    let mut take = |frame: TxFrame<HeapBuf>| sent.extend(WireSegment::parse(frame.buf.bytes()).unwrap());
    stack.poll_transmit(now, &mut pool, &mut take, usize::MAX);
    sent
}

/// Sends one segment to a new stack and checks its answer.
fn check(flags: TcpFlags, (src_port, dst_port): (u16, u16), len: usize, listens: bool, ipv6: bool) {
    let what = format!("{flags:?}, ports {src_port} {dst_port}, {len} bytes, listens {listens}, IPv6 {ipv6}");
    let mut stack = stack(listens);
    let sent = sent_upon(&mut stack, &frame(flags, src_port, dst_port, len, ipv6));
    let wanted = answer(flags, listens && dst_port == PORT);
    assert_eq!(sent.len(), usize::from(wanted != Answer::Nothing), "{what}");
    let count = |flag| u32::from(flags.contains(flag));
    let seq_len = u32::try_from(len).unwrap() + count(TcpFlags::SYN) + count(TcpFlags::FIN);
    for seen in &sent {
        assert_eq!((seen.src.port(), seen.dst.port(), seen.payload_len), (dst_port, src_port, 0), "{what}");
        let TcpHeader { seq, ack, flags, .. } = seen.header;
        match wanted {
            Answer::Reset => assert_eq!((flags, seq), (TcpFlags::RST, ACK), "{what}"),
            Answer::ResetAck => {
                let reset = (TcpFlags::RST | TcpFlags::ACK, SeqNum::new(0), SEQ + seq_len);
                assert_eq!((flags, seq, ack), reset, "{what}");
            }
            // RCV.NXT is SEG.SEQ+1: text and FIN must be retransmitted.
            Answer::SynAck => assert_eq!((flags, ack), (TcpFlags::SYN | TcpFlags::ACK, SEQ + 1), "{what}"),
            Answer::Nothing => unreachable!(),
        }
    }
    let stats = stack.stats();
    let opened = u32::from(wanted == Answer::SynAck);
    assert_eq!(stats.connections, opened, "{what}");
    assert_eq!(stats.states.get(State::SynReceived), opened, "{what}");
    assert_eq!(stats.drops.total(), u64::from(wanted != Answer::SynAck), "{what}");
    let drops = stats.drops;
    let counted = match wanted {
        Answer::Reset | Answer::ResetAck => drops.drop_tcp_no_connection,
        Answer::Nothing if flags.contains(TcpFlags::RST) => drops.drop_tcp_stray_reset,
        Answer::Nothing => drops.drop_tcp_no_ack,
        Answer::SynAck => 1,
    };
    assert_eq!(counted, 1, "{what}");
}

#[test]
fn every_combination_of_control_bits() {
    for bits in 0..64_u32 {
        let flags = BITS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        let flags = flags.fold(TcpFlags::NONE, |flags, (_, flag)| flags | *flag);
        for listens in [false, true] {
            for ipv6 in [false, true] {
                for len in [0, 1, 100] {
                    check(flags, (40_000, PORT), len, listens, ipv6);
                }
            }
        }
    }
}

/// Port 0 is no exception: no listener has it, and a peer may use it.
#[test]
fn port_zero_is_a_port() {
    for ipv6 in [false, true] {
        for flags in [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::NONE, TcpFlags::RST] {
            for ports in [(0, PORT), (40_000, 0), (0, 0)] {
                check(flags, ports, 0, true, ipv6);
                check(flags, ports, 0, false, ipv6);
            }
        }
    }
}

/// The host's own stack has the same addresses: it answers for its ports, and we answer for ours, with a listener or
/// without one.
#[test]
fn segments_to_ports_of_the_host_are_not_answered() {
    const SOURCE: u16 = 65_500;
    let ours = OurPorts::default();
    [PORT, SOURCE].iter().for_each(|port| ours.insert(*port));
    let shared = |listens| {
        let config = StackConfig {
            shared_ports: Some(ours.clone()),
            source_ports: SOURCE..=SOURCE + 3,
            ..stack(false).config().clone()
        };
        let mut stack = Stack::new(config, [3; 32]);
        if listens {
            stack.listen(PORT, ListenOptions::default()).unwrap();
        }
        stack
    };
    for bits in 0..64_u32 {
        let flags = BITS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        let flags = flags.fold(TcpFlags::NONE, |flags, (_, flag)| flags | *flag);
        for (port, ipv6) in [(22, false), (SOURCE + 1, false), (SOURCE + 4, true)] {
            let mut stack = shared(true);
            assert!(
                sent_upon(&mut stack, &frame(flags, 40_000, port, 1, ipv6)).is_empty(),
                "{flags:?} {port}"
            );
            let drops = stack.stats().drops;
            assert_eq!((drops.drop_tcp_not_ours, drops.total()), (1, 1), "{flags:?} {port}");
        }
        for (listens, port) in [(true, PORT), (false, PORT), (true, SOURCE)] {
            let sent = sent_upon(&mut shared(listens), &frame(flags, 40_000, port, 0, false));
            let wanted = answer(flags, listens && port == PORT);
            assert_eq!(sent.len(), usize::from(wanted != Answer::Nothing), "{flags:?} {port}");
        }
    }
}
