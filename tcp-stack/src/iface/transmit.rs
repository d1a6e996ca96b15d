//! Writes the IP and Ethernet headers before segments, and builds and sends the interface's own frames: ARP, neighbor
//! discovery, echo replies and ICMP errors.

use super::Interface;
use super::classify::EchoRequest;
use super::neighbor::Solicit;
use crate::buf::{Buf, BufClass, BufPool, TxFrame, TxOffload};
use crate::wire::{
    ArpOperation, ArpPacket, EtherType, EthernetHeader, Icmpv4Header, Icmpv4Message, Icmpv6Header,
    Icmpv6Message, IpProtocol, Ipv4Header, Ipv6Header, MacAddr, NeighborAdvertisement, NeighborSolicitation,
    Sum, TcpHeader, solicited_node,
};
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv6Addr};

/// Length of the queue of own frames: twice what the largest burst can cause.
const QUEUE_MAX: usize = 64;

/// Largest quotation in an ICMP error, bytes, for IPv4 and IPv6: RFC 1812 §4.3.2.3 keeps the whole within 576, RFC 4443
/// §2.4 (c) within 1280.
const QUOTE_MAX: (usize, usize) = (576 - 28, 1280 - 48);

/// A frame that the interface itself sends.
#[derive(Debug)]
pub(super) enum OwnFrame<B> {
    Arp {
        packet: ArpPacket,
        to: MacAddr,
    },
    Solicit(Solicit),
    Advertise {
        target: Ipv6Addr,
        dst: Ipv6Addr,
        to: MacAddr,
        solicited: bool,
    },
    EchoReply {
        buf: B,
        request: EchoRequest,
    },
    /// An ICMP error about the frame of the first fragment of a packet that was not completed in time.
    TimeExceeded {
        first: B,
    },
}

/// The interface's own frames that wait to be sent, oldest first.
#[derive(Debug)]
pub(super) struct OwnFrameQueue<B>(VecDeque<OwnFrame<B>>);

impl<B> OwnFrameQueue<B> {
    pub(super) fn new() -> Self {
        Self(VecDeque::with_capacity(QUEUE_MAX))
    }

    /// Adds a frame; returns `false`, and drops it, if the queue is full.
    pub(super) fn push(&mut self, own: OwnFrame<B>) -> bool {
        let has_room = self.0.len() < QUEUE_MAX;
        if has_room {
            self.0.push_back(own);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A run of segments that the port cuts out of one frame (TSO).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentRun {
    /// Number of segments in the run.
    pub(crate) segments: u16,
    /// Payload of each segment but the last, bytes.
    pub(crate) segment: u16,
    /// Payload of the run, bytes, in the buffers linked to the first.
    pub(crate) bytes: usize,
}

/// Addresses and IP header fields of a packet.
#[derive(Clone, Copy, Debug)]
struct PacketMeta {
    mac: MacAddr,
    local: IpAddr,
    remote: IpAddr,
    protocol: IpProtocol,
    traffic_class: u8,
    hop_limit: u8,
    /// True to compute the IPv4 header checksum here.
    checksum: bool,
    /// Payload in linked buffers, bytes.
    linked: usize,
}

/// The result of building a frame of the interface's own.
enum Built<B> {
    Frame(TxFrame<B>),
    /// The pool has no buffer: try again.
    NoBuffer(OwnFrame<B>),
    /// The frame cannot be sent.
    Impossible,
}

impl<B: Buf> Interface<B> {
    /// Writes IP and Ethernet headers before a TCP segment.
    ///
    /// `buf` begins with the TCP header, whose checksum is computed here (or left to the port, as configured), and ends
    /// with the payload. `mac` comes from [`Self::resolve`]. Returns `None` if the buffer is shared or has too little
    /// headroom; it is then unusable.
    #[inline]
    pub(crate) fn encapsulate(
        &mut self,
        mac: MacAddr,
        local: IpAddr,
        remote: IpAddr,
        traffic_class: u8,
        buf: &mut B,
    ) -> Option<TxOffload> {
        let (offloaded, ip_offloaded) = (self.config.tx_checksum_offload, self.config.tx_ip_checksum_offload);
        let segment = buf.bytes_mut()?;
        let pseudo_header = Sum::pseudo_header(local, remote, IpProtocol::TCP, segment.len());
        // Nobody verifies the checksum of a looped frame.
        let written = if offloaded || local == remote {
            TcpHeader::set_partial_checksum(segment, pseudo_header)
        } else {
            TcpHeader::set_checksum(segment, pseudo_header)
        };
        let l4_len = (segment.get(12)? >> 4).wrapping_mul(4);
        let meta = PacketMeta {
            mac,
            local,
            remote,
            protocol: IpProtocol::TCP,
            traffic_class,
            hop_limit: self.config.hop_limit.max(1),
            checksum: !ip_offloaded,
            linked: 0,
        };
        let offload = self.put_headers(&meta, buf).filter(|_| written)?;
        self.stats.tx_tcp_segments = self.stats.tx_tcp_segments.wrapping_add(1);
        Some(TxOffload {
            l4_len,
            ip_checksum: ip_offloaded && !offload.ipv6,
            tcp_checksum: offloaded,
            ..offload
        })
    }

    /// As [`Self::encapsulate`], for a TCP header whose payload is in the buffers linked to `buf`. The port computes
    /// the TCP checksum and cuts the frame, and gives each segment its own IPv4 header checksum.
    pub(crate) fn encapsulate_run(
        &mut self,
        mac: MacAddr,
        (local, remote): (IpAddr, IpAddr),
        traffic_class: u8,
        run: SegmentRun,
        buf: &mut B,
    ) -> Option<TxOffload> {
        let cut = run.segments > 1;
        let header = buf.bytes_mut()?;
        // The port adds the length of each segment.
        let summed = if cut { 0 } else { header.len().saturating_add(run.bytes) };
        let pseudo_header = Sum::pseudo_header(local, remote, IpProtocol::TCP, summed);
        let written = TcpHeader::set_partial_checksum(header, pseudo_header);
        let l4_len = (header.get(12)? >> 4).wrapping_mul(4);
        let meta = PacketMeta {
            mac,
            local,
            remote,
            protocol: IpProtocol::TCP,
            traffic_class,
            hop_limit: self.config.hop_limit.max(1),
            checksum: !self.config.tx_ip_checksum_offload,
            linked: run.bytes,
        };
        let offload = self.put_headers(&meta, buf).filter(|_| written)?;
        self.stats.tx_tcp_segments = self.stats.tx_tcp_segments.wrapping_add(u64::from(run.segments));
        let segment = if cut { run.segment } else { 0 };
        let ip_checksum = self.config.tx_ip_checksum_offload && !offload.ipv6;
        Some(TxOffload { l4_len, ip_checksum, tcp_checksum: true, segment, ..offload })
    }

    #[inline]
    fn ethernet(&self, dst: MacAddr, ethertype: EtherType) -> EthernetHeader {
        EthernetHeader { dst, src: self.config.mac, tci: self.config.vlan, ethertype }
    }

    /// Writes IP and Ethernet headers before the contents of `buf`.
    #[inline]
    fn put_headers(&self, meta: &PacketMeta, buf: &mut B) -> Option<TxOffload> {
        let payload_len = buf.bytes().len().saturating_add(meta.linked);
        let (ethertype, l3_len) = match meta.local {
            IpAddr::V4(_) => (EtherType::IPV4, Ipv4Header::LEN),
            IpAddr::V6(_) => (EtherType::IPV6, Ipv6Header::LEN),
        };
        let ethernet = self.ethernet(meta.mac, ethertype);
        let l2_len = ethernet.header_len();
        let out = buf.prepend(l2_len.wrapping_add(l3_len))?;
        if !ethernet.emit(out) {
            return None;
        }
        let out = out.get_mut(l2_len..)?;
        match (meta.local, meta.remote) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Header {
                traffic_class: meta.traffic_class,
                ttl: meta.hop_limit,
                ..Ipv4Header::atomic(src, dst, meta.protocol)
            }
            .emit(payload_len, meta.checksum, out.first_chunk_mut()?),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ipv6Header {
                src,
                dst,
                next_header: meta.protocol,
                traffic_class: meta.traffic_class,
                flow_label: 0,
                hop_limit: meta.hop_limit,
            }
            .emit(payload_len, out.first_chunk_mut()?),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        }
        Some(TxOffload {
            l2_len: u8::try_from(l2_len).ok()?,
            l3_len: u8::try_from(l3_len).ok()?,
            l4_len: 0,
            ipv6: meta.local.is_ipv6(),
            ip_checksum: false,
            tcp_checksum: false,
            segment: 0,
            looped: self.is_local(meta.remote),
        })
    }

    /// Sends at most `max` queued frames; returns the number sent. Frames for which the pool has no buffer stay queued.
    pub(crate) fn poll_transmit<P: BufPool<Buf = B>>(
        &mut self,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        max: usize,
    ) -> usize {
        let mut sent = 0_usize;
        while sent < max {
            let Some(own) = self.queue.0.pop_front() else { break };
            match self.build(own, pool) {
                Built::Frame(frame) => {
                    out(frame);
                    sent = sent.wrapping_add(1);
                }
                Built::NoBuffer(own) => {
                    self.queue.0.push_front(own);
                    break;
                }
                Built::Impossible => {
                    self.stats.tx_no_room = self.stats.tx_no_room.wrapping_add(1);
                }
            }
        }
        sent
    }

    fn build<P: BufPool<Buf = B>>(&mut self, own: OwnFrame<B>, pool: &mut P) -> Built<B> {
        if let OwnFrame::EchoReply { buf, request } = own {
            return self.build_echo(buf, request, pool);
        }
        let Some(mut buf) = pool.alloc(BufClass::Control) else { return Built::NoBuffer(own) };
        if let OwnFrame::TimeExceeded { first } = own {
            let Some(offload) = self.build_time_exceeded(&first, &mut buf) else { return Built::Impossible };
            self.stats.tx_time_exceeded = self.stats.tx_time_exceeded.wrapping_add(1);
            return Built::Frame(TxFrame { buf, offload });
        }
        let (offload, counter) = match own {
            OwnFrame::Arp { packet, to } => self.build_arp(&packet, to, &mut buf),
            OwnFrame::Solicit(Solicit { target: IpAddr::V4(target), to }) => {
                let packet = ArpPacket {
                    operation: ArpOperation::Request,
                    sender_mac: self.config.mac,
                    sender_ip: self.config.ipv4.map_or(target, |ours| ours.address()),
                    target_mac: MacAddr::UNSPECIFIED,
                    target_ip: target,
                };
                self.build_arp(&packet, to.unwrap_or(MacAddr::BROADCAST), &mut buf)
            }
            OwnFrame::Solicit(Solicit { target: IpAddr::V6(target), to }) => {
                let offload = self.build_solicitation(target, to, &mut buf);
                (offload, &mut self.stats.tx_neighbor_solicitations)
            }
            OwnFrame::Advertise { target, dst, to, solicited } => {
                let offload = self.build_advertisement(target, dst, to, solicited, &mut buf);
                (offload, &mut self.stats.tx_neighbor_advertisements)
            }
            // Handled by the caller.
            OwnFrame::EchoReply { .. } | OwnFrame::TimeExceeded { .. } => return Built::Impossible,
        };
        let Some(offload) = offload else { return Built::Impossible };
        *counter = counter.wrapping_add(1);
        Built::Frame(TxFrame { buf, offload })
    }

    fn build_arp(&mut self, packet: &ArpPacket, to: MacAddr, buf: &mut B) -> (Option<TxOffload>, &mut u64) {
        let ethernet = self.ethernet(to, EtherType::ARP);
        let len = ethernet.header_len();
        let written = (|| {
            packet.emit(buf.append(ArpPacket::LEN)?.first_chunk_mut()?);
            ethernet.emit(buf.prepend(len)?).then_some(())
        })();
        let offload =
            written.map(|()| TxOffload { l2_len: u8::try_from(len).unwrap_or(0), ..TxOffload::default() });
        let counter = match packet.operation {
            ArpOperation::Reply => &mut self.stats.tx_arp_replies,
            ArpOperation::Request | ArpOperation::Unknown(_) => &mut self.stats.tx_arp_requests,
        };
        (offload, counter)
    }

    fn build_solicitation(&self, target: Ipv6Addr, to: Option<MacAddr>, buf: &mut B) -> Option<TxOffload> {
        // RFC 4861 §7.2.2: multicast to the target's group at first, unicast to probe it.
        let dst = if to.is_some() { target } else { solicited_node(target) };
        let mac = to.unwrap_or(MacAddr::of_ipv6_multicast(dst));
        let IpAddr::V6(src) = self.source_for(target.into())? else { return None };
        let body = NeighborSolicitation { target, source_mac: Some(self.config.mac) };
        let mut bytes = [0; NeighborSolicitation::LEN];
        body.emit(&mut bytes);
        self.build_ndp(Icmpv6Message::NeighborSolicitation, (src, dst), mac, &bytes, buf)
    }

    fn build_advertisement(
        &self,
        target: Ipv6Addr,
        dst: Ipv6Addr,
        mac: MacAddr,
        solicited: bool,
        buf: &mut B,
    ) -> Option<TxOffload> {
        let body = NeighborAdvertisement { target, target_mac: Some(self.config.mac) };
        let mut bytes = [0; NeighborAdvertisement::LEN];
        body.emit(&mut bytes);
        let message = Icmpv6Message::NeighborAdvertisement { router: false, solicited, overrides: true };
        self.build_ndp(message, (target, dst), mac, &bytes, buf)
    }

    fn build_ndp(
        &self,
        message: Icmpv6Message,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        mac: MacAddr,
        body: &[u8],
        buf: &mut B,
    ) -> Option<TxOffload> {
        let message_len = Icmpv6Header::LEN.wrapping_add(body.len());
        let (header, to) = buf.append(message_len)?.split_first_chunk_mut()?;
        Icmpv6Header { message }.emit(src, dst, body, header);
        for (to, from) in to.iter_mut().zip(body) {
            *to = *from;
        }
        let meta = PacketMeta {
            mac,
            local: src.into(),
            remote: dst.into(),
            protocol: IpProtocol::ICMPV6,
            traffic_class: 0,
            hop_limit: 255,
            checksum: true,
            linked: 0,
        };
        self.put_headers(&meta, buf)
    }

    /// Turns an echo request into its reply: in place, or in a copy if the buffer is shared.
    fn build_echo<P: BufPool<Buf = B>>(&mut self, buf: B, request: EchoRequest, pool: &mut P) -> Built<B> {
        let mut reply = buf;
        let message_len = request.message.len();
        if !reply.trim_front(request.message.start) || !reply.truncate(message_len) {
            let Some(mut copy) = pool.alloc(BufClass::Control) else {
                return Built::NoBuffer(OwnFrame::EchoReply { buf: reply, request });
            };
            let from = reply.bytes().get(request.message.clone());
            match (copy.append(message_len), from) {
                (Some(to), Some(from)) if to.len() == from.len() => to.copy_from_slice(from),
                _ => return Built::Impossible,
            }
            reply = copy;
        }
        let Some(offload) = self.finish_echo(&mut reply, &request) else { return Built::Impossible };
        self.stats.tx_echo_replies = self.stats.tx_echo_replies.wrapping_add(1);
        self.stats.tx_echo_truncated =
            self.stats.tx_echo_truncated.wrapping_add(u64::from(request.truncated));
        Built::Frame(TxFrame { buf: reply, offload })
    }

    fn finish_echo(&self, reply: &mut B, request: &EchoRequest) -> Option<TxOffload> {
        let (header, body) = reply.bytes_mut()?.split_first_chunk_mut()?;
        let protocol = match (request.local, request.remote) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let message = Icmpv6Message::EchoReply(request.id);
                Icmpv6Header { message }.emit(src, dst, body, header);
                IpProtocol::ICMPV6
            }
            _ => {
                let message = Icmpv4Message::EchoReply(request.id);
                Icmpv4Header { message }.emit(body, header);
                IpProtocol::ICMPV4
            }
        };
        let meta = PacketMeta {
            mac: request.mac,
            local: request.local,
            remote: request.remote,
            protocol,
            traffic_class: 0,
            hop_limit: self.config.hop_limit.max(1),
            checksum: true,
            linked: 0,
        };
        self.put_headers(&meta, reply)
    }
    /// Builds the error "fragment reassembly time exceeded": type 11 code 1 (RFC 792), type 3 code 1 (RFC 4443 §3.3).
    /// It quotes the fragment and is no longer than it.
    fn build_time_exceeded(&self, first: &B, buf: &mut B) -> Option<TxOffload> {
        let (ethernet, packet) = EthernetHeader::parse(first.bytes()).ok()?;
        let (local, remote, quote_max): (IpAddr, IpAddr, usize) = match ethernet.ethertype {
            EtherType::IPV4 => {
                let (header, _, _) = Ipv4Header::parse(packet).ok()?;
                (header.dst.into(), header.src.into(), QUOTE_MAX.0)
            }
            EtherType::IPV6 => {
                let (header, _) = Ipv6Header::parse(packet).ok()?;
                (header.dst.into(), header.src.into(), QUOTE_MAX.1)
            }
            _ => return None,
        };
        let quote = packet.get(..packet.len().min(quote_max))?;
        let message_len = Icmpv6Header::LEN.wrapping_add(quote.len());
        let (header, body) = buf.append(message_len)?.split_first_chunk_mut()?;
        for (to, from) in body.iter_mut().zip(quote) {
            *to = *from;
        }
        let protocol = match (local, remote) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let message = Icmpv6Message::TimeExceeded { code: 1 };
                Icmpv6Header { message }.emit(src, dst, quote, header);
                IpProtocol::ICMPV6
            }
            _ => {
                let message = Icmpv4Message::TimeExceeded { code: 1 };
                Icmpv4Header { message }.emit(quote, header);
                IpProtocol::ICMPV4
            }
        };
        let meta = PacketMeta {
            mac: ethernet.src,
            local,
            remote,
            protocol,
            traffic_class: 0,
            hop_limit: self.config.hop_limit.max(1),
            checksum: true,
            linked: 0,
        };
        self.put_headers(&meta, buf)
    }
}
