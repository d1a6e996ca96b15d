//! The flow of a frame, by which several workers of a port share its traffic if the port has no RSS.

use super::{
    EtherType, EthernetHeader, Icmpv4Header, Icmpv6Header, IpProtocol, Ipv4Header, Ipv6Header, QuotedTcp,
    UpperLayer,
};
use core::net::{IpAddr, SocketAddr};

/// The flow of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// A TCP segment to this host, or an ICMP error that quotes one of this host.
    Tcp {
        /// The [`flow_hash`] of its connection.
        hash: u32,
        /// TCP port of this host.
        local_port: u16,
    },
    /// Any other frame: ARP, neighbor discovery, ping, fragments, malformed ones.
    Other,
}

/// Returns a hash of a connection's addresses and ports, the same from both ends and on every machine.
///
/// It spreads connections over workers only: without a key it does not protect a hash table against chosen flows.
#[inline]
pub fn flow_hash(local: SocketAddr, remote: SocketAddr) -> u32 {
    hash(local.ip(), local.port(), remote.ip(), remote.port())
}

#[inline]
fn hash(ip: IpAddr, port: u16, other_ip: IpAddr, other_port: u16) -> u32 {
    // Addition commutes, so the hash is symmetric; each end is mixed first, so that swapped ports alone give another
    // hash.
    let sum = mix(end(ip, port)).wrapping_add(mix(end(other_ip, other_port)));
    let [.., a, b, c, d] = mix(sum).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[inline]
fn end(ip: IpAddr, port: u16) -> u64 {
    let ip = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let [a, b, c, d, e, f, g, h, low @ ..] = ip.octets();
            mix(u64::from_be_bytes([a, b, c, d, e, f, g, h])) ^ u64::from_be_bytes(low)
        }
    };
    ip ^ u64::from(port).rotate_left(48)
}

/// Mixes 64 bits bijectively so that each bit depends on all: the finalizer of the SplitMix64 generator.
#[inline]
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the flow of a frame. It reads headers only, and verifies only as much as it needs to find the ports.
#[inline]
pub fn peek_flow(frame: &[u8]) -> Flow {
    tcp_ends(frame).map_or(Flow::Other, |(remote, local)| Flow::Tcp {
        hash: flow_hash(local, remote),
        local_port: local.port(),
    })
}

/// Returns the remote and the local end of a connection.
fn tcp_ends(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    match ethernet.ethertype {
        EtherType::IPV4 => {
            let (header, _, payload) = Ipv4Header::parse(packet).ok()?;
            if header.is_fragment() {
                return None;
            }
            match header.protocol {
                IpProtocol::TCP => ends(header.src.into(), header.dst.into(), payload),
                IpProtocol::ICMPV4 => {
                    let (icmp, body) = Icmpv4Header::parse(payload).ok()?;
                    quoted_ends(icmp.is_error(), Icmpv4Header::quoted_tcp, body)
                }
                _ => None,
            }
        }
        EtherType::IPV6 => {
            let (header, payload) = Ipv6Header::parse(packet).ok()?;
            let upper = UpperLayer::find(header.next_header, payload).ok()?;
            if upper.fragment.is_some_and(|fragment| fragment.is_fragment()) {
                return None;
            }
            match upper.protocol {
                IpProtocol::TCP => ends(header.src.into(), header.dst.into(), upper.payload),
                IpProtocol::ICMPV6 => {
                    let (icmp, body) = Icmpv6Header::parse(upper.payload).ok()?;
                    quoted_ends(icmp.is_error(), Icmpv6Header::quoted_tcp, body)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

#[inline]
fn ends(src: IpAddr, dst: IpAddr, segment: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let &[s0, s1, d0, d1] = segment.first_chunk::<4>()?;
    let (src_port, dst_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    Some((SocketAddr::new(src, src_port), SocketAddr::new(dst, dst_port)))
}

#[cold]
#[inline(never)]
fn quoted_ends(
    is_error: bool,
    quoted: fn(&[u8]) -> Option<QuotedTcp>,
    body: &[u8],
) -> Option<(SocketAddr, SocketAddr)> {
    let quoted = quoted(body).filter(|_| is_error)?;
    Some((quoted.dst, quoted.src))
}
