//! A stack with a listener, and peers that are reduced to their sequence numbers.

use std::net::{IpAddr, Ipv4Addr};

use tcp_stack::wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, IpProtocol, Ipv4Header, TcpFlags, TcpHeader,
    TcpOptions, Timestamps,
};
use tcp_stack::{
    Buf, BufClass, BufPool, ConnId, Event, HEADROOM, Instant, Ipv4Cidr, ListenOptions, MacAddr, RxChecksum,
    RxFrame, SeqNum, Stack, StackConfig, TxFrame,
};

use super::frames::{Frame, Pool};
use super::{BURST, BURST_INTERVAL, TcpError};

const US: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const ROUTER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 7;
/// First address of the peers; each address has `PORTS` ports from 1024 on.
const THEIR_IP: u32 = u32::from_be_bytes([10, 1, 0, 0]);
const PORTS: u32 = 50_000;
const WINDOW_SCALE: u8 = 7;

/// Bytes of the headers of a segment with timestamps: Ethernet, IPv4, TCP.
const HEADERS: usize = EthernetHeader::LEN + Ipv4Header::LEN + TcpHeader::LEN + 12;
/// Payload of a full segment at an MTU of 1500, bytes.
pub(super) const MSS: usize = 1448;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// SND.NXT of the peer.
    pub(super) seq: SeqNum,
    /// RCV.NXT of the peer.
    pub(super) ack: SeqNum,
    /// Last timestamp received by the peer.
    echo: u32,
    /// The connection of the stack, once it is accepted.
    pub(super) conn: Option<ConnId>,
}

/// A stack and its peers.
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) stack: Stack<Frame>,
    pub(super) peers: Vec<Peer>,
    pub(super) pool: Pool,
    pub(super) now: Instant,
}

/// Returns the address and the port of a peer, from its number.
fn name_of(peer: usize) -> (Ipv4Addr, u16) {
    let peer = u32::try_from(peer).unwrap_or(0);
    let port = u16::try_from(peer % PORTS).unwrap_or(0).saturating_add(1024);
    (Ipv4Addr::from_bits(THEIR_IP.wrapping_add(peer / PORTS)), port)
}

impl Lab {
    /// Makes a stack with room for this number of connections; none is open yet.
    pub(super) fn new(connections: usize) -> Self {
        Self::with(connections, |_| {})
    }

    /// Makes a stack with a changed configuration.
    pub(super) fn with(connections: usize, configure: impl FnOnce(&mut StackConfig)) -> Self {
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        let mut config = StackConfig {
            mac: US,
            ipv4: Ipv4Cidr::new(OUR_IP, 24),
            ipv4_gateway: Some(ROUTER_IP),
            tx_checksum_offload: true,
            tx_ip_checksum_offload: true,
            connections_max: connections.saturating_add(64),
            // Every connection has at most one segment in flight.
            buffers_max: connections.saturating_mul(2).max(65_536),
            receive_window_bytes: 16 << 20,
            receive_window_initial_bytes: 4 << 20,
            receive_memory_bytes: 1 << 30,
            send_buffer_bytes: 4 << 20,
            ..StackConfig::default()
        };
        configure(&mut config);
        let mut stack = Stack::new(config, [7; 32]);
        // This cannot fail: there is no other listener.
        let _listener = stack.listen(PORT, ListenOptions { backlog: 1024, ..ListenOptions::default() });
        let mut lab = Self { stack, peers: Vec::new(), pool: Pool, now: Instant::from_millis(1000) };
        lab.introduce_router();
        lab
    }

    fn introduce_router(&mut self) {
        let mut body = [0; ArpPacket::LEN];
        ArpPacket {
            operation: ArpOperation::Request,
            sender_mac: ROUTER,
            sender_ip: ROUTER_IP,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: OUR_IP,
        }
        .emit(&mut body);
        let ethernet = EthernetHeader { dst: US, src: ROUTER, tci: None, ethertype: EtherType::ARP };
        let Some(mut buf) = self.pool.alloc(BufClass::Control) else { return };
        if let Some((link, arp)) = buf
            .append(EthernetHeader::LEN + ArpPacket::LEN)
            .and_then(|room| room.split_at_mut_checked(EthernetHeader::LEN))
        {
            ethernet.emit(link);
            arp.copy_from_slice(&body);
        }
        self.take([RxFrame { buf, checksum: RxChecksum::Good }]);
        self.drain(&mut |_| {});
    }

    /// Advances the clock by one burst and receives the frames.
    #[inline]
    pub(super) fn take(&mut self, frames: impl IntoIterator<Item = RxFrame<Frame>>) {
        self.now += BURST_INTERVAL;
        self.stack.handle_frames(self.now, frames);
    }

    /// Returns the number of segments with new data that the stack has sent.
    pub(super) fn new_segments(&self) -> u64 {
        self.stack.stats().tcp.data_segments_out
    }

    /// Runs timers and transmits until the stack has nothing to send.
    #[inline]
    pub(super) fn drain(&mut self, out: &mut impl FnMut(TxFrame<Frame>)) {
        self.stack.handle_timeouts(self.now);
        while self.stack.poll_transmit(self.now, &mut self.pool, out, BURST) > 0 {}
    }

    /// Builds a segment of a peer; its payload is the previous content of the buffer.
    pub(super) fn segment(&mut self, peer: usize, flags: TcpFlags, len: usize) -> Option<RxFrame<Frame>> {
        let Peer { seq, ack, echo, .. } = *self.peers.get(peer)?;
        let (src, src_port) = name_of(peer);
        let [.., a, b, c, d] = self.now.as_millis().to_be_bytes();
        let syn = flags.contains(TcpFlags::SYN);
        let options = TcpOptions {
            timestamps: Some(Timestamps { value: u32::from_be_bytes([a, b, c, d]), echo }),
            mss: syn.then_some(1460),
            window_scale: syn.then_some(WINDOW_SCALE),
            sack_permitted: syn,
            ..TcpOptions::NONE
        };
        let header = TcpHeader { src_port, dst_port: PORT, seq, ack, flags, window: 65_535, urgent: 0 };
        let (at, tcp_len) = (EthernetHeader::LEN + Ipv4Header::LEN, TcpHeader::len_with(&options));
        let mut buf = self.pool.alloc(BufClass::Data)?;
        let room = buf.append(at.checked_add(tcp_len)?.checked_add(len)?)?;
        let (link, rest) = room.split_first_chunk_mut::<{ EthernetHeader::LEN }>()?;
        EthernetHeader { dst: US, src: ROUTER, tci: None, ethertype: EtherType::IPV4 }.emit(link);
        let (ip, rest) = rest.split_first_chunk_mut::<{ Ipv4Header::LEN }>()?;
        Ipv4Header::atomic(src, OUR_IP, IpProtocol::TCP).emit(tcp_len.checked_add(len)?, true, ip);
        header.emit(&options, rest).then_some(RxFrame { buf, checksum: RxChecksum::Good })
    }

    /// Builds the next segment of a peer, or an acknowledgment if `len` is 0; advances the peer's sequence number.
    pub(super) fn next_segment(&mut self, peer: usize, len: usize) -> Option<RxFrame<Frame>> {
        let frame = self.segment(peer, TcpFlags::ACK, len)?;
        let peer = self.peers.get_mut(peer)?;
        peer.seq += u32::try_from(len).ok()?;
        Some(frame)
    }

    /// Connects `count` more peers.
    pub(super) fn connect(&mut self, count: usize) -> Result<(), TcpError> {
        let wanted = self.peers.len().saturating_add(count);
        while self.peers.len() < wanted {
            let (first, burst) = (self.peers.len(), BURST.min(wanted.saturating_sub(self.peers.len())));
            let fresh = Peer { seq: SeqNum::new(1), ack: SeqNum::new(0), echo: 0, conn: None };
            self.peers.resize(first.saturating_add(burst), fresh);
            self.shake_hands(first..self.peers.len());
        }
        let accepted = self.peers.iter().filter(|peer| peer.conn.is_some()).count();
        TcpError::unless_all("accepted", "connections", accepted as u64, wanted as u64)
    }

    fn shake_hands(&mut self, peers: std::ops::Range<usize>) {
        let syns: Vec<_> = peers.clone().filter_map(|peer| self.segment(peer, TcpFlags::SYN, 0)).collect();
        self.take(syns);
        self.learn();
        for peer in self.peers.get_mut(peers.clone()).unwrap_or_default() {
            peer.seq += 1;
        }
        let acks: Vec<_> = peers.filter_map(|peer| self.next_segment(peer, 0)).collect();
        self.take(acks);
        while let Some(event) = self.stack.poll_event() {
            if let Event::Accepted { conn, .. } = event {
                let remote = self.stack.info(conn).map(|info| info.remote);
                let peer = remote.and_then(|remote| number_of(remote.ip(), remote.port()));
                if let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer)) {
                    peer.conn = Some(conn);
                }
            }
        }
        self.learn();
    }

    /// Transmits all frames of the stack and updates the peers from them.
    pub(super) fn learn(&mut self) {
        let mut sent = Vec::new();
        self.drain(&mut |frame| sent.push(frame.buf));
        for frame in &sent {
            let segment = frame.bytes().get(EthernetHeader::LEN..);
            let parsed = segment.and_then(|packet| {
                let (ip, _, segment) = Ipv4Header::parse(packet).ok()?;
                let (header, options, payload) = TcpHeader::parse(segment).ok()?;
                Some((ip.dst, header, TcpOptions::parse(options), payload.len()))
            });
            let Some((dst, header, options, len)) = parsed else { continue };
            let peer = number_of(dst.into(), header.dst_port).and_then(|peer| self.peers.get_mut(peer));
            let Some(peer) = peer else { continue };
            peer.ack = header.seq + u32::try_from(len).unwrap_or(0);
            peer.ack += u32::from(header.flags.contains(TcpFlags::SYN));
            peer.ack += u32::from(header.flags.contains(TcpFlags::FIN));
            peer.echo = options.timestamps.map_or(0, |timestamps| timestamps.value);
        }
    }

    /// Returns the connection of a peer.
    pub(super) fn conn(&self, peer: usize) -> Option<ConnId> {
        self.peers.get(peer)?.conn
    }
}

/// Loads the headers of a burst into the cache, as a port's driver or a worker does.
#[inline]
pub(super) fn fetch(frames: &[RxFrame<Frame>]) {
    let bytes = frames.iter().map(|frame| u32::from(frame.buf.touch()));
    std::hint::black_box(bytes.fold(0, u32::wrapping_add));
}

/// Returns the number of the peer with this address and port.
fn number_of(ip: IpAddr, port: u16) -> Option<usize> {
    let IpAddr::V4(ip) = ip else { return None };
    let host = ip.to_bits().checked_sub(THEIR_IP)?;
    let peer = host.checked_mul(PORTS)?.checked_add(u32::from(port.checked_sub(1024)?))?;
    usize::try_from(peer).ok()
}

const _: () = assert!(HEADERS + MSS <= super::frames::ROOM && HEADROOM >= HEADERS);
