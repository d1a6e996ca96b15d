//! Evaluates a capture's filter on the bytes of a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use iwarp_control::{Filter, Term, Test};

use super::Direction;

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const FRAGMENT_HEADER: u8 = 44;
/// Most IPv6 extension headers that are skipped.
const EXTENSION_HEADERS_MAX: usize = 4;

/// Fields of a frame that a filter can test; those that the frame has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fields {
    ethertype: u16,
    /// Addresses of the source and the destination.
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    /// Ports of the source and the destination.
    ports: Option<(u16, u16)>,
    flags: u8,
}

/// Filter of one capture, with the ends of one connection if it is about one.
#[derive(Clone, Debug)]
pub(super) struct FrameFilter {
    filter: Filter,
    conn: Option<(SocketAddr, SocketAddr)>,
}

impl FrameFilter {
    pub(super) const fn new(filter: Filter, conn: Option<(SocketAddr, SocketAddr)>) -> Self {
        Self { filter, conn }
    }

    /// Returns true if a frame is to be captured.
    pub(super) fn admits(&self, frame: &[u8], direction: Direction) -> bool {
        if self.conn.is_none() && self.filter.terms.is_empty() {
            return true;
        }
        let fields = Fields::of(frame).unwrap_or_default();
        self.conn.is_none_or(|ends| fields.is_between(ends))
            && self
                .filter
                .terms
                .iter()
                .all(|Term { negated, test }| fields.meet(*test, direction) != *negated)
    }
}

impl Fields {
    /// Reads the headers of a frame; `None` if it has no Ethernet header.
    fn of(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = frame.split_at_checked(14)?;
        let (mut ethertype, mut packet) = (word(ethernet, 12)?, rest);
        if ethertype == ETHERTYPE_VLAN {
            (ethertype, packet) = (word(rest, 2)?, rest.get(4..)?);
        }
        let fields = Self { ethertype, ..Self::default() };
        Some(match ethertype {
            ETHERTYPE_IPV4 => fields.with_ipv4(packet).unwrap_or(fields),
            ETHERTYPE_IPV6 => fields.with_ipv6(packet).unwrap_or(fields),
            _ => fields,
        })
    }

    fn with_ipv4(self, packet: &[u8]) -> Option<Self> {
        let (header, _) = packet.split_first_chunk::<20>()?;
        let [version, _, _, _, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        let addresses = (Ipv4Addr::new(s0, s1, s2, s3).into(), Ipv4Addr::new(d0, d1, d2, d3).into());
        let fields = Self { addresses: Some(addresses), protocol: Some(protocol), ..self };
        // Only the first fragment has the transport header.
        let first = u16::from_be_bytes([f0, f1]) & 0x1fff == 0;
        let transport = packet.get(usize::from(version & 0x0f).saturating_mul(4)..).filter(|_| first);
        Some(transport.and_then(|transport| fields.with_transport(transport)).unwrap_or(fields))
    }

    fn with_ipv6(self, packet: &[u8]) -> Option<Self> {
        let (header, mut rest) = packet.split_first_chunk::<40>()?;
        let source: [u8; 16] = header.get(8..24)?.try_into().ok()?;
        let destination: [u8; 16] = header.get(24..40)?.try_into().ok()?;
        let addresses = (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into());
        let (mut next, mut first) = (header[6], true);
        let mut fields = Self { addresses: Some(addresses), protocol: Some(next), ..self };
        for _ in 0..EXTENSION_HEADERS_MAX {
            // Hop-by-hop options, routing, fragment, destination options.
            if !matches!(next, 0 | 43 | FRAGMENT_HEADER | 60) {
                break;
            }
            let Some((&[after, units], _)) = rest.split_first_chunk::<2>() else { break };
            let length = match next {
                FRAGMENT_HEADER => 8,
                _ => usize::from(units).saturating_add(1).saturating_mul(8),
            };
            first &= next != FRAGMENT_HEADER || word(rest, 2).is_some_and(|offset| offset & 0xfff8 == 0);
            (next, rest) = (after, rest.get(length..).unwrap_or_default());
            fields.protocol = Some(next);
        }
        Some(if first { fields.with_transport(rest).unwrap_or(fields) } else { fields })
    }

    fn with_transport(self, transport: &[u8]) -> Option<Self> {
        let ports = (word(transport, 0)?, word(transport, 2)?);
        match self.protocol {
            Some(PROTOCOL_TCP) => {
                Some(Self { ports: Some(ports), flags: transport.get(13).copied().unwrap_or(0), ..self })
            }
            Some(PROTOCOL_UDP) => Some(Self { ports: Some(ports), ..self }),
            _ => None,
        }
    }

    fn meet(&self, test: Test, direction: Direction) -> bool {
        let address = |of: fn((IpAddr, IpAddr)) -> IpAddr| self.addresses.map(of);
        let port = |of: fn((u16, u16)) -> u16| self.ports.map(of);
        let (source, destination) = (address(|pair| pair.0), address(|pair| pair.1));
        let (from, to) = (port(|pair| pair.0), port(|pair| pair.1));
        match test {
            Test::Host(net) => [source, destination].iter().flatten().any(|address| net.contains(address)),
            Test::Source(net) => source.is_some_and(|address| net.contains(&address)),
            Test::Destination(net) => destination.is_some_and(|address| net.contains(&address)),
            Test::Port(port) => from == Some(port) || to == Some(port),
            Test::SourcePort(port) => from == Some(port),
            Test::DestinationPort(port) => to == Some(port),
            Test::Arp => self.ethertype == ETHERTYPE_ARP,
            Test::Ipv4 => self.ethertype == ETHERTYPE_IPV4,
            Test::Ipv6 => self.ethertype == ETHERTYPE_IPV6,
            Test::Protocol(number) => self.protocol == Some(number),
            Test::Flags(bits) => self.flags & bits != 0,
            Test::Received => direction == Direction::Received,
            Test::Sent => direction == Direction::Sent,
        }
    }

    /// Returns true if the frame is a TCP segment between these ends, in either direction.
    fn is_between(&self, (one, other): (SocketAddr, SocketAddr)) -> bool {
        let (Some((source, destination)), Some((from, to))) = (self.addresses, self.ports) else {
            return false;
        };
        let ends = ((source, from), (destination, to));
        let (one, other) = ((one.ip(), one.port()), (other.ip(), other.port()));
        self.protocol == Some(PROTOCOL_TCP) && (ends == (one, other) || ends == (other, one))
    }
}

/// Returns the 16-bit number in network byte order at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
        [&[2; 12], ethertype.to_be_bytes().as_slice(), packet].concat()
    }

    /// Ports 1024 and 7400, SYN.
    fn tcp() -> Vec<u8> {
        let mut header = [1024_u16.to_be_bytes(), 7400_u16.to_be_bytes()].concat();
        header.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0, 0, 0, 0, 0, 0]);
        header
    }

    fn ipv4(offset: u16) -> Vec<u8> {
        let [f0, f1] = offset.to_be_bytes();
        let mut packet =
            vec![0x46, 0, 0, 44, 0, 0, f0, f1, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2, 1, 1, 1, 1];
        packet.extend(tcp());
        packet
    }

    fn ipv6(extension: &[u8], next: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        packet.extend("fd77::1".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("fd77::2".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend(extension);
        packet.extend(tcp());
        packet
    }

    fn admits(text: &str, frame: &[u8]) -> bool {
        FrameFilter::new(text.parse().unwrap(), None).admits(frame, Direction::Received)
    }

    #[test]
    fn each_test_reads_its_header_in_both_families() {
        let vlan = [&[0, 7, 8, 0], ipv4(0).as_slice()].concat();
        let v4 = [ethernet(0x800, &ipv4(0)), ethernet(0x8100, &vlan)];
        let v6 = [ethernet(0x86dd, &ipv6(&[], 6)), ethernet(0x86dd, &ipv6(&[6, 0, 1, 4, 0, 0, 0, 0], 60))];
        for frame in v4.iter().chain(&v6) {
            for text in ["", "tcp", "port 7400", "port 1024", "sport 1024", "dport 7400", "flags syn", "in"] {
                assert!(admits(text, frame), "{text}");
            }
            for text in ["udp", "port 22", "sport 7400", "flags ack,rst", "out", "arp", "not tcp"] {
                assert!(!admits(text, frame), "{text}");
            }
        }
        for frame in &v4 {
            assert!(admits("ip src 10.77.0.1 dst 10.77.0.0/24 host 10.77.0.2 not ip6", frame));
            assert!(!admits("dst 10.77.0.1", frame) && !admits("host fd77::1", frame));
        }
        for frame in &v6 {
            assert!(admits("ip6 src fd77::1 host fd77::2 not host 10.0.0.0/8", frame));
        }
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        assert!(admits("ip tcp not port 7400", &ethernet(0x800, &ipv4(8))));
        let later = ethernet(0x86dd, &ipv6(&[6, 0, 0, 8, 0, 0, 0, 1], 44));
        assert!(admits("ip6 tcp not port 7400", &later));
        assert!(
            admits("port 7400", &ethernet(0x86dd, &ipv6(&[6, 0, 0, 1, 0, 0, 0, 1], 44))),
            "the first one"
        );
    }

    #[test]
    fn a_frame_of_any_length_is_tested() {
        for frame in
            [ethernet(0x800, &ipv4(0)), ethernet(0x86dd, &ipv6(&[0; 8], 0)), ethernet(0x806, &[0; 28])]
        {
            for length in 0..=frame.len() {
                admits("not port 9 not host 1.2.3.4 not flags syn", &frame[..length]);
            }
        }
    }

    #[test]
    fn one_connection_is_selected_in_both_directions() {
        let (one, other) = ("10.77.0.1:1024".parse().unwrap(), "10.77.0.2:7400".parse().unwrap());
        let frame = ethernet(0x800, &ipv4(0));
        for ends in [(one, other), (other, one)] {
            assert!(FrameFilter::new(Filter::default(), Some(ends)).admits(&frame, Direction::Sent));
        }
        let third = "10.77.0.2:7401".parse().unwrap();
        assert!(!FrameFilter::new(Filter::default(), Some((one, third))).admits(&frame, Direction::Sent));
    }
}
