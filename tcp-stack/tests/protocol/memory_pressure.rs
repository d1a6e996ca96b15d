//! Many hostile peers at once: the memory that they can take from one stack, and the memory left to an honest peer.

use std::net::{Ipv4Addr, Ipv6Addr};

use tcp_stack::testutil::{HeapBuf, HeapPool, WireSegment};
use tcp_stack::wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, Icmpv6Header, Icmpv6Message, IpProtocol, Ipv4Header,
    Ipv6Header, NeighborSolicitation, TcpFlags, TcpHeader, TcpOptions,
};
use tcp_stack::{
    Buf, ConnId, ConnInfo, Event, HEADROOM, Instant, Ipv4Cidr, Ipv6Cidr, ListenOptions, MacAddr, RxChecksum,
    RxFrame, SeqNum, Stack, StackConfig, TxFrame,
};

const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PORT: u16 = 7;
const MSS: usize = 1000;
const BUFFERS: u32 = 4096;
/// Packet buffers that every connection may retain.
const FEW: u32 = 8;
/// Bytes behind a frame in its buffer.
const ROOM: usize = 2048;

const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OUR_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const THEIR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const THEIR_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Returns the address of a hostile host: number 0 is on the link, and over IPv6 the gateway to the others.
fn ip_of(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 2 + host)
}

fn ipv6_of(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, host.into(), 0, 0, 0, 2)
}

fn config() -> StackConfig {
    StackConfig { buffers_max: BUFFERS, ..StackConfig::default() }
}

/// A stack whose application retains all data and consumes none, and peers that send arbitrary segments.
struct Peers {
    stack: Stack<HeapBuf>,
    pool: HeapPool,
    conns: Vec<ConnId>,
    iss: Vec<SeqNum>,
    ipv6: bool,
    /// Host of new peers, and host of each peer.
    host: u8,
    hosts: Vec<u8>,
    /// Connections whose retained buffers the stack asked to reclaim.
    asked: Vec<ConnId>,
}

impl Peers {
    fn new(config: &StackConfig, ipv6: bool) -> Self {
        let config = StackConfig {
            mac: US,
            ipv4: Ipv4Cidr::new(OUR_IP, 24),
            ipv6: Ipv6Cidr::new(OUR_IPV6, 64),
            ipv6_gateway: Some(THEIR_IPV6),
            ..config.clone()
        };
        let buffers = config.buffers_max as usize;
        let mut stack = Stack::new(config, [9; 32]);
        stack.listen(PORT, ListenOptions::default()).unwrap();
        let pool = HeapPool::new(buffers, 64, 1600);
        let (conns, iss, hosts) = (Vec::new(), Vec::new(), Vec::new());
        let mut peers = Self { stack, pool, conns, iss, ipv6, host: 0, hosts, asked: Vec::new() };
        peers.announce();
        peers
    }

    /// Lets new peers connect from another host, over IPv6 from another /64.
    fn move_to(&mut self, host: u8) {
        self.host = host;
        if !self.ipv6 {
            self.announce();
        }
    }

    /// Announces the peers' link address, so that the stack can answer them.
    fn announce(&mut self) {
        if self.ipv6 {
            let mut body = [0; NeighborSolicitation::LEN];
            NeighborSolicitation { target: OUR_IPV6, source_mac: Some(THEIR_MAC) }.emit(&mut body);
            let mut icmp = vec![0; Icmpv6Header::LEN];
            let header = Icmpv6Header { message: Icmpv6Message::NeighborSolicitation };
            header.emit(THEIR_IPV6, OUR_IPV6, &body, icmp.first_chunk_mut().unwrap());
            icmp.extend(body);
            return self.packet(0, IpProtocol::ICMPV6, &icmp);
        }
        let operation = ArpOperation::Request;
        let (sender_mac, sender_ip) = (THEIR_MAC, ip_of(self.host));
        let arp = ArpPacket { operation, sender_mac, sender_ip, target_mac: US, target_ip: OUR_IP };
        let mut body = [0; ArpPacket::LEN];
        arp.emit(&mut body);
        self.frame(EtherType::ARP, &body);
    }

    fn packet(&mut self, host: u8, protocol: IpProtocol, payload: &[u8]) {
        if self.ipv6 {
            let (src, dst, next_header, hop_limit) = (ipv6_of(host), OUR_IPV6, protocol, 255);
            let ip = Ipv6Header { src, dst, next_header, traffic_class: 0, flow_label: 0, hop_limit };
            let mut packet = vec![0; Ipv6Header::LEN];
            ip.emit(payload.len(), packet.first_chunk_mut().unwrap());
            packet.extend(payload);
            return self.frame(EtherType::IPV6, &packet);
        }
        let ip = Ipv4Header::atomic(ip_of(host), OUR_IP, protocol);
        let mut packet = vec![0; Ipv4Header::LEN];
        ip.emit(payload.len(), true, packet.first_chunk_mut().unwrap());
        packet.extend(payload);
        self.frame(EtherType::IPV4, &packet);
    }

    fn frame(&mut self, ethertype: EtherType, body: &[u8]) {
        let ethernet = EthernetHeader { dst: US, src: THEIR_MAC, tci: None, ethertype };
        let mut frame = vec![0; ethernet.header_len()];
        assert!(ethernet.emit(&mut frame));
        frame.extend(body);
        let frame = RxFrame { buf: HeapBuf::with_room(&frame, ROOM), checksum: RxChecksum::Good };
        self.stack.handle_frames(Instant::from_millis(1), [frame]);
        self.settle();
    }

    /// Sends a segment of peer number `peer`.
    fn send(&mut self, peer: usize, flags: TcpFlags, seq: usize, len: usize) {
        let host = self.hosts.get(peer).copied().unwrap_or(self.host);
        let ack = self.iss.get(peer).map_or(SeqNum::new(0), |iss| *iss + 1);
        let header = TcpHeader {
            src_port: 10_000 + u16::try_from(peer).unwrap(),
            dst_port: PORT,
            seq: SeqNum::new(u32::try_from(seq).unwrap()),
            ack,
            flags,
            window: 65_535,
            urgent: 0,
        };
        let syn = flags.contains(TcpFlags::SYN);
        let options = TcpOptions { window_scale: syn.then_some(7), sack_permitted: syn, ..TcpOptions::NONE };
        let mut segment = vec![0; TcpHeader::len_with(&options)];
        assert!(header.emit(&options, &mut segment));
        segment.resize(segment.len() + len, 0);
        self.packet(host, IpProtocol::TCP, &segment);
    }

    fn settle(&mut self) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Accepted { conn, .. } => self.conns.push(conn),
                Event::Data { .. } => {}
                Event::Reclaim { conn } => self.asked.push(conn),
                other => panic!("{other:?}"),
            }
        }
        let iss = &mut self.iss;
        let mut take = |frame: TxFrame<HeapBuf>| {
            if let Some(seen) = WireSegment::parse(frame.buf.bytes()).unwrap()
                && seen.header.flags.contains(TcpFlags::SYN)
            {
                iss.push(seen.header.seq);
            }
        };
        self.stack.poll_transmit(Instant::from_millis(1), &mut self.pool, &mut take, usize::MAX);
    }

    /// Connects one more peer; returns its number.
    fn connect(&mut self) -> usize {
        let peer = self.conns.len();
        self.send(peer, TcpFlags::SYN, 0, 0);
        self.send(peer, TcpFlags::ACK, 1, 0);
        assert_eq!(self.conns.len(), peer + 1);
        self.hosts.push(self.host);
        peer
    }

    fn info(&self, peer: usize) -> ConnInfo {
        self.stack.info(self.conns[peer]).unwrap()
    }
}

/// Fifty peers fill their reassembly queues as far as they can; the fifty-first is honest and loses a segment.
#[test]
fn out_of_order_data_of_many_connections_leaves_buffers() {
    for ipv6 in [false, true] {
        let mut peers = Peers::new(&StackConfig { connections_max: 64, ..config() }, ipv6);
        for _ in 0..50 {
            peers.connect();
        }
        for segment in 1..60 {
            for peer in 0..50 {
                peers.send(peer, TcpFlags::ACK, 1 + segment * 2, 1);
            }
        }
        for peer in 0..50 {
            for segment in 60..1200 {
                peers.send(peer, TcpFlags::ACK, 1 + segment * 2, 1);
            }
        }
        // Half of all buffers may be retained, three quarters of these by one host, and a few by each peer.
        let stats = peers.stack.stats();
        let (held, share) = (stats.retained_buffers, BUFFERS / 2 * 3 / 4);
        assert!((share - 50..share + 50 * FEW).contains(&held), "{held} of {BUFFERS}");
        assert!(stats.tcp.held_refused > 10_000 && stats.tcp.held_reclaimed == 0, "{stats:?}");
        let neighbor = peers.connect();
        for segment in 1..=FEW as usize {
            peers.send(neighbor, TcpFlags::ACK, 1 + segment * MSS, MSS);
        }
        assert_eq!(peers.info(neighbor).held_segments, FEW);
        peers.move_to(1);
        let honest = peers.connect();
        for segment in 1..=40 {
            peers.send(honest, TcpFlags::ACK, 1 + segment * MSS, MSS);
        }
        assert_eq!(peers.info(honest).held_segments, 40);
        peers.send(honest, TcpFlags::ACK, 1, MSS);
        assert_eq!((peers.info(honest).held_segments, peers.info(honest).bytes_in), (0, 41_000));
    }
}

/// With a thousand peers every share is small: the oldest out-of-order data is reclaimed, and every peer keeps a few
/// buffers.
#[test]
fn the_oldest_out_of_order_data_is_reclaimed_first() {
    for ipv6 in [false, true] {
        let mut peers = Peers::new(&StackConfig { connections_max: 1024, ..config() }, ipv6);
        for _ in 0..1000 {
            let peer = peers.connect();
            for segment in 1..=100 {
                peers.send(peer, TcpFlags::ACK, 1 + segment * 2, 1);
            }
        }
        assert!(peers.stack.stats().tcp.held_reclaimed > 1000);
        let honest = peers.connect();
        for segment in 1..=8 {
            peers.send(honest, TcpFlags::ACK, 1 + segment * MSS, MSS);
        }
        assert_eq!(peers.info(honest).held_segments, 8);
        // Data in order does not count.
        for segment in 0..100 {
            peers.send(0, TcpFlags::ACK, 1 + segment * 10, 10);
        }
        assert_eq!(peers.info(0).bytes_in, 1000);
    }
}

/// Fifty peers send to an application that does not read; the fifty-first still gets a useful window.
#[test]
fn stalled_readers_leave_receive_memory_to_others() {
    for ipv6 in [false, true] {
        let receive_memory_bytes = 8 << 20;
        let mut peers = Peers::new(
            &StackConfig {
                connections_max: 64,
                receive_window_initial_bytes: 1 << 20,
                receive_memory_bytes,
                ..config()
            },
            ipv6,
        );
        for _ in 0..50 {
            let peer = peers.connect();
            // More than the window allows.
            for segment in 0..1100 {
                peers.send(peer, TcpFlags::ACK, 1 + segment * MSS, MSS);
            }
            let info = peers.info(peer);
            assert_eq!((info.receive_window / 1024, u64::from(info.unread_bytes)), (0, info.bytes_in));
        }
        let unread = peers.stack.stats().unread_bytes;
        // A quarter of the rest, again and again, approaches the whole; the windows in SYN-ACKs come on top.
        assert!(unread <= receive_memory_bytes + 50 * 65_535, "{unread}");
        let honest = peers.connect();
        assert!(peers.info(honest).receive_window >= 65_535);
        peers.send(honest, TcpFlags::ACK, 1, MSS);
        assert_eq!(peers.info(honest).bytes_in, 1000);
        // Their memory is free again once they are closed.
        for peer in 0..50 {
            let conn = peers.conns[peer];
            peers.stack.abort(Instant::from_millis(2), conn);
            assert!(matches!(peers.stack.poll_event(), Some(Event::Closed { .. })));
        }
        assert_eq!(peers.stack.stats().unread_bytes, 1000);
    }
}

/// Buffers that applications retain are in the same budget; the oldest are reclaimed before it is used up.
#[test]
fn retained_buffers_are_limited_and_reclaimed() {
    for ipv6 in [false, true] {
        let mut peers = Peers::new(&StackConfig { connections_max: 1024, ..config() }, ipv6);
        let limit = peers.stack.stats().retained_limit;
        assert_eq!(limit, BUFFERS / 2);
        let first = peers.connect();
        let first = peers.conns[first];
        assert!(peers.stack.retain(first, limit / 4));
        assert!(!peers.stack.retain(first, limit), "more than the share of a connection");
        assert_eq!((peers.stack.stats().kept_buffers, peers.stack.stats().tcp.keep_refused), (limit / 4, 1));
        peers.stack.audit().unwrap();
        while peers.asked.is_empty() {
            let peer = peers.connect();
            assert!(peers.stack.retain(peers.conns[peer], FEW), "a few for everybody");
        }
        let stats = peers.stack.stats();
        assert!(stats.kept_buffers < limit && peers.asked.first() == Some(&first), "{stats:?}");
        assert!(stats.tcp.keep_reclaimed > 0, "{stats:?}");
        // Out-of-order data of another connection still has room.
        let honest = peers.connect();
        for segment in 1..=FEW as usize {
            peers.send(honest, TcpFlags::ACK, 1 + segment * MSS, MSS);
        }
        assert_eq!(peers.info(honest).held_segments, FEW);
        // Fewer buffers are never refused, and closing a connection frees its buffers.
        assert!(peers.stack.retain(first, limit / 8) && peers.stack.retain(first, 0));
        peers.stack.audit().unwrap();
        let conns = std::mem::take(&mut peers.conns);
        for conn in conns {
            peers.stack.abort(Instant::from_millis(2), conn);
        }
        while peers.stack.poll_event().is_some() {}
        peers.stack.audit().unwrap();
        let stats = peers.stack.stats();
        assert_eq!((stats.retained_buffers, stats.kept_buffers, stats.receive_buffers), (0, 0, 0));
    }
}

/// One-byte segments behind a gap, as terminals send them, share buffers.
#[test]
fn short_segments_behind_a_gap_share_buffers() {
    for ipv6 in [false, true] {
        let mut peers = Peers::new(&config(), ipv6);
        let peer = peers.connect();
        for byte in 0..1000 {
            peers.send(peer, TcpFlags::ACK, 1 + MSS + byte, 1);
        }
        let stats = peers.stack.stats();
        assert_eq!((stats.retained_buffers, stats.tcp.held_segments, stats.tcp.held_copied), (1, 1000, 999));
        peers.stack.audit().unwrap();
        peers.send(peer, TcpFlags::ACK, 1, MSS);
        assert_eq!(peers.info(peer).bytes_in, 2000);
        assert_eq!(peers.stack.stats().retained_buffers, 0);
    }
}

/// Seventy peers send short segments that do not touch one another: they share few packet buffers, whatever the pool,
/// the MTU and the length of the segments.
#[test]
fn isolated_short_segments_share_buffers() {
    const PEERS: usize = 70;
    for (buffers, mtu, len, each) in [
        (8192, 1500, 1, 40),
        (16_384, 1280, 7, 80),
        (32_768, 9000, 100, 150),
        (65_536, 1500, 1, 340),
        (131_072, 1500, 30, 600),
    ] {
        for ipv6 in [false, true] {
            let name = format!("{buffers} buffers, MTU {mtu}, {each} times {len} bytes, IPv6 {ipv6}");
            let config = StackConfig { mtu, buffers_max: buffers, ..config() };
            let mut peers = Peers::new(&config, ipv6);
            for _ in 0..PEERS {
                peers.connect();
            }
            for segment in 1..=each {
                for peer in 0..PEERS {
                    peers.send(peer, TcpFlags::ACK, 1 + segment * (len + 1), len);
                }
            }
            let stats = peers.stack.stats();
            let segments = u64::try_from(PEERS * each).unwrap();
            assert_eq!((stats.tcp.held_segments, stats.tcp.held_refused), (segments, 0), "{name}");
            let held: usize = (0..PEERS).map(|peer| peers.info(peer).held_bytes as usize).sum();
            let most = PEERS * each.div_ceil(ROOM / len);
            let size = HEADROOM + EthernetHeader::LEN + Ipv6Header::LEN + TcpHeader::LEN + len + ROOM;
            assert!(held <= most * size, "{name}: {held} bytes, not {most} buffers");
            peers.stack.audit().unwrap();
            // All of it is delivered once the gaps are closed.
            let all = u64::try_from((each + 1) * (len + 1)).unwrap();
            for peer in 0..PEERS {
                peers.send(peer, TcpFlags::ACK, 1, len + 1);
                for segment in 1..=each {
                    peers.send(peer, TcpFlags::ACK, 1 + segment * (len + 1) + len, 1);
                }
                let info = peers.info(peer);
                assert_eq!((info.held_segments, info.bytes_in), (0, all), "{name}");
            }
            peers.stack.audit().unwrap();
            assert_eq!(peers.stack.stats().retained_buffers, 0, "{name}");
        }
    }
}
