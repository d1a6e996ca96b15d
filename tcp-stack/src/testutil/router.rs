//! ICMP errors of a simulated router about packets that it cannot forward.

use crate::wire::{
    EtherType, EthernetHeader, Icmpv4Header, Icmpv4Message, Icmpv6Header, Icmpv6Message, IpProtocol,
    Ipv4Header, Ipv6Header,
};
use alloc::vec;
use alloc::vec::Vec;

/// Returns the ICMP error that the packet in `frame` was larger than `mtu`, with the packet's destination as its
/// source: "fragmentation needed" (RFC 792, RFC 1191) or "packet too big" (RFC 4443). `None` if the frame holds no IP
/// packet.
pub(super) fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    let quote = packet.get(..packet.len().min(500))?;
    let answer = EthernetHeader { dst: ethernet.src, src: ethernet.dst, ..ethernet };
    let mut icmp = vec![0; Icmpv4Header::LEN];
    let header = match ethernet.ethertype {
        EtherType::IPV4 => {
            let (ip, _, _) = Ipv4Header::parse(packet).ok()?;
            let message = Icmpv4Message::FragmentationNeeded { mtu: u16::try_from(mtu).ok()? };
            Icmpv4Header { message }.emit(quote, icmp.first_chunk_mut()?);
            let mut header = vec![0; Ipv4Header::LEN];
            let (src, dst) = (ip.dst, ip.src);
            Ipv4Header { src, dst, protocol: IpProtocol::ICMPV4, ttl: 60, ..ip }.emit(
                icmp.len().checked_add(quote.len())?,
                true,
                header.first_chunk_mut()?,
            );
            header
        }
        EtherType::IPV6 => {
            let (ip, _) = Ipv6Header::parse(packet).ok()?;
            let message = Icmpv6Message::PacketTooBig { mtu: u32::try_from(mtu).ok()? };
            let (src, dst) = (ip.dst, ip.src);
            Icmpv6Header { message }.emit(src, dst, quote, icmp.first_chunk_mut()?);
            let mut header = vec![0; Ipv6Header::LEN];
            Ipv6Header { src, dst, next_header: IpProtocol::ICMPV6, hop_limit: 60, ..ip }
                .emit(icmp.len().checked_add(quote.len())?, header.first_chunk_mut()?);
            header
        }
        _ => return None,
    };
    let mut out = vec![0; answer.header_len()];
    answer.emit(&mut out).then_some(())?;
    out.extend(header.iter().chain(&icmp).chain(quote));
    Some(out)
}
