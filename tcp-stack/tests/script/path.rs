//! The path of packets in scripts: ICMP errors of routers, and fragments.

use crate::line::number;
use crate::net::Net;
use std::net::IpAddr;
use tcp_stack::wire::{
    EcnField, EtherType, EthernetHeader, FragmentHeader, Icmpv4Header, Icmpv4Message, Icmpv6Header,
    Icmpv6Message, IpProtocol, Ipv4Header, Ipv6Header, Sum,
};

/// The first bytes of a TCP header, which every router quotes: ports and sequence number.
pub(crate) type Quote = [u8; 8];

impl Net {
    /// Returns an ICMP error of the named kind about a segment of the stack whose packet had `len` bytes.
    pub(crate) fn error(&self, kind: &str, segment: Quote, len: usize) -> Vec<u8> {
        let (soft, hard) = (kind == "soft", kind == "hard");
        // `mss:` gives the MTU by the payload that it leaves.
        let headers = if self.us.is_ipv4() { 40 } else { 60 };
        let mss = kind.strip_prefix("mss:").map(|mss| number::<u16>(mss) + headers);
        let mtu = mss.or_else(|| kind.strip_prefix("big:").map(number));
        // Source quench exists in IPv4 only.
        let quench = kind == "quench" && self.us.is_ipv4();
        assert!(soft || hard || quench || mtu.is_some(), "unknown error {kind}");
        if let (IpAddr::V4(us), IpAddr::V4(peer)) = (self.us, self.peer) {
            let mut body = vec![0; Ipv4Header::LEN];
            ipv4(us, peer).emit(len - Ipv4Header::LEN, true, body.first_chunk_mut().unwrap());
            body.extend(segment);
            let unreachable = Icmpv4Message::Unreachable { code: if hard { 3 } else { 1 } };
            let otherwise = if quench { Icmpv4Message::Unknown { kind: 4, code: 0 } } else { unreachable };
            let message = mtu.map_or(otherwise, |mtu| Icmpv4Message::FragmentationNeeded { mtu });
            let mut icmp = vec![0; Icmpv4Header::LEN];
            Icmpv4Header { message }.emit(&body, icmp.first_chunk_mut().unwrap());
            icmp.extend(body);
            return self.packet(IpProtocol::ICMPV4, EcnField::NotEct, &icmp);
        }
        let mut body = vec![0; Ipv6Header::LEN];
        let next_header = IpProtocol::TCP;
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (self.us, self.peer) else { panic!("mixed families") };
        Ipv6Header { src, dst, next_header, traffic_class: 0, flow_label: 0, hop_limit: 60 }
            .emit(len - Ipv6Header::LEN, body.first_chunk_mut().unwrap());
        body.extend(segment);
        let unreachable = Icmpv6Message::Unreachable { code: if hard { 4 } else { 0 } };
        let message = mtu.map_or(unreachable, |mtu| Icmpv6Message::PacketTooBig { mtu: mtu.into() });
        let mut icmp = vec![0; Icmpv6Header::LEN];
        Icmpv6Header { message }.emit(dst, src, &body, icmp.first_chunk_mut().unwrap());
        icmp.extend(body);
        self.packet(IpProtocol::ICMPV6, EcnField::NotEct, &icmp)
    }
}

fn ipv4(src: std::net::Ipv4Addr, dst: std::net::Ipv4Addr) -> Ipv4Header {
    Ipv4Header { ttl: 60, ..Ipv4Header::atomic(src, dst, IpProtocol::TCP) }
}

/// Returns the fragments of a frame's packet, each with `size` bytes of its payload but the last.
pub(crate) fn fragments(frame: &[u8], size: usize, identification: u16) -> Vec<Vec<u8>> {
    let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
    let headers = ethernet.header_len()
        + if ethernet.ethertype == EtherType::IPV4 { Ipv4Header::LEN } else { Ipv6Header::LEN };
    let payload = &frame[headers..];
    let parts = payload.chunks(size).enumerate();
    parts
        .map(|(index, part)| {
            let at = u16::try_from(index * size).unwrap();
            let more = usize::from(at) + part.len() < payload.len();
            let mut fragment = frame[..headers].to_vec();
            let ip = &mut fragment[ethernet.header_len()..];
            if ethernet.ethertype == EtherType::IPV4 {
                let header = Ipv4Header {
                    identification,
                    dont_fragment: false,
                    more_fragments: more,
                    fragment_offset: at / 8,
                    ..Ipv4Header::parse(packet).unwrap().0
                };
                header.emit(part.len(), true, ip.first_chunk_mut().unwrap());
                assert!(Sum::of(ip).is_valid());
            } else {
                let (header, _) = Ipv6Header::parse(packet).unwrap();
                let next = header.next_header.0;
                Ipv6Header { next_header: IpProtocol::FRAGMENT, ..header }
                    .emit(FragmentHeader::LEN + part.len(), ip.first_chunk_mut().unwrap());
                fragment.extend([next, 0]);
                fragment.extend((at | u16::from(more)).to_be_bytes());
                fragment.extend(u32::from(identification).to_be_bytes());
            }
            fragment.extend(part);
            fragment
        })
        .collect()
}
