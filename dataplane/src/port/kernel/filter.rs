//! Programs of the classic packet filter (the kernel's Documentation/networking/filter.rst) for packet sockets.

use iwarp_config::PortRange;
use socket2::SockFilter;

const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// X: four times the lower half of a byte, the length of an IPv4 header.
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const LOAD_HALF_BEHIND_HEADER: u16 = 0x48;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
/// Ends the program with the number of bytes to pass on.
pub(super) const RETURN: u16 = 0x06;
const WHOLE: u32 = u32::MAX;

/// Longest program that the kernel takes (BPF_MAXINSNS).
const LENGTH_MAX: usize = 4096;

const ARP: u32 = 0x0806;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const ICMP: u32 = 1;
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMPV6: u32 = 58;

/// Returns a program that passes on ARP, ICMP, fragments, packets with extension headers, and TCP to these ports, which
/// ascend; all TCP if they are too many for a program.
pub(super) fn admitting(ports: impl Iterator<Item = u16>) -> Vec<SockFilter> {
    let step = |code, yes, no, k| Step { code, yes, no, k };
    let only_if = |code, k| step(code, 0, 1, k);
    let admit = step(RETURN, 0, 0, WHOLE);
    let refuse = step(RETURN, 0, 0, 0);
    let ipv4 = [
        step(LOAD_BYTE, 0, 0, 23),
        only_if(IF_EQUAL, ICMP),
        admit,
        step(IF_EQUAL, 1, 0, TCP),
        refuse,
        step(LOAD_HALF, 0, 0, 20),
        // A fragment that is not the first of its packet has no port.
        only_if(IF_ANY_BIT, 0x1fff),
        admit,
        step(LOAD_HEADER_LENGTH, 0, 0, 14),
        step(LOAD_HALF_BEHIND_HEADER, 0, 0, 16),
    ];
    let ipv6 = [
        step(IF_EQUAL, 1, 0, IPV6),
        refuse,
        step(LOAD_BYTE, 0, 0, 20),
        only_if(IF_EQUAL, ICMPV6),
        admit,
        step(IF_EQUAL, 3, 0, TCP),
        only_if(IF_EQUAL, UDP),
        refuse,
        admit,
        step(LOAD_HALF, 0, 0, 56),
    ];
    let behind = |steps: &[Step]| u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let mut program = vec![step(LOAD_HALF, 0, 0, 12), only_if(IF_EQUAL, ARP), admit];
    // Over the jump that skips the part of IPv4.
    program.push(step(IF_EQUAL, 1, 0, IPV4));
    program.push(step(JUMP, 0, 0, behind(&ipv4).saturating_add(1)));
    program.extend(ipv4);
    program.push(step(JUMP, 0, 0, behind(&ipv6)));
    program.extend(ipv6);
    let listed: Vec<Step> = runs(ports)
        .into_iter()
        .flat_map(|PortRange { first, last }| {
            [step(IF_AT_LEAST, 0, 2, first.into()), step(IF_GREATER, 1, 0, last.into()), admit]
        })
        .collect();
    if program.len().saturating_add(listed.len()) < LENGTH_MAX {
        program.extend(listed);
        program.push(refuse);
    } else {
        program.push(admit);
    }
    program.into_iter().map(|Step { code, yes, no, k }| SockFilter::new(code, yes, no, k)).collect()
}

/// Returns the ranges of consecutive ports.
fn runs(ports: impl Iterator<Item = u16>) -> Vec<PortRange> {
    let mut runs: Vec<PortRange> = Vec::new();
    for port in ports {
        match runs.last_mut().filter(|run| run.last.checked_add(1) == Some(port)) {
            Some(run) => run.last = port,
            None => runs.push(PortRange { first: port, last: port }),
        }
    }
    runs
}

/// An instruction of a program.
#[derive(Clone, Copy)]
struct Step {
    code: u16,
    /// Instructions to skip if its condition holds, and if not.
    yes: u8,
    no: u8,
    k: u32,
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Returns true if a program passes on a frame. The kernel runs it, on a pair of sockets.
    fn admits(ports: &[u16], frame: &[u8]) -> bool {
        let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM.nonblocking(), None).unwrap();
        far.attach_filter(&admitting(ports.iter().copied())).unwrap();
        near.send(frame).unwrap();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
        match far.recv(&mut buffer) {
            Ok(bytes) => {
                assert_eq!(bytes, frame.len(), "whole");
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                false
            }
        }
    }

    fn ethernet(ethertype: u32) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(u16::try_from(ethertype).unwrap().to_be_bytes());
        frame
    }

    /// A packet of a protocol to a port, with options of IPv4.
    fn packet(family: IpAddr, protocol: u32, port: u16, option_words: u8) -> Vec<u8> {
        let protocol = u8::try_from(protocol).unwrap();
        let mut frame = match family {
            IpAddr::V4(_) => {
                let mut frame = ethernet(IPV4);
                frame.extend([0x45 + option_words, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
                frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
                frame.resize(frame.len() + 4 * usize::from(option_words), 1);
                frame
            }
            IpAddr::V6(_) => {
                let mut frame = ethernet(IPV6);
                frame.extend([0x60, 0, 0, 0, 0, 20, protocol, 64]);
                frame.resize(frame.len() + 32, 3);
                frame
            }
        };
        frame.extend([0x1f, 0x90]);
        frame.extend(port.to_be_bytes());
        frame.resize(frame.len() + 16, 0);
        frame
    }

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

    #[test]
    fn only_our_ports_pass() {
        let ports = [1, 500, 501, 502, 503, 7400, 65_534, 65_535];
        for family in [V4, V6] {
            for port in ports {
                assert!(admits(&ports, &packet(family, TCP, port, 0)), "{family} {port}");
                assert!(!admits(&ports, &packet(family, UDP, port, 0)), "{family} {port}");
            }
            for port in [0, 2, 22, 499, 504, 7399, 7401, 65_533] {
                assert!(!admits(&ports, &packet(family, TCP, port, 0)), "{family} {port}");
            }
            assert!(!admits(&[], &packet(family, TCP, 7400, 0)));
        }
        for option_words in [1, 10] {
            assert!(admits(&ports, &packet(V4, TCP, 7400, option_words)));
            assert!(!admits(&ports, &packet(V4, TCP, 22, option_words)));
        }
    }

    #[test]
    fn so_does_what_the_stack_must_see_without_a_port() {
        assert!(admits(&[], &ethernet(ARP)) && admits(&[], &packet(V4, ICMP, 0, 0)));
        assert!(admits(&[], &packet(V6, ICMPV6, 0, 0)));
        // A fragment header, and a second fragment.
        assert!(admits(&[], &packet(V6, 44, 22, 0)));
        let mut fragment = packet(V4, TCP, 22, 0);
        fragment[21] = 9;
        assert!(admits(&[], &fragment));
        for other in [0x8100, 0x88cc, 0] {
            assert!(!admits(&[], &ethernet(other)), "{other:x}");
        }
        for len in 0..14 {
            assert!(!admits(&[7400], &packet(V4, TCP, 7400, 0)[..len]), "{len}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_lets_all_of_tcp_pass() {
        let every_other = |count: u16| -> Vec<u16> { (0..count).map(|at| 1000 + 2 * at).collect() };
        let ports = every_other(1300);
        assert!(admits(&ports, &packet(V4, TCP, 3598, 0)) && !admits(&ports, &packet(V4, TCP, 3597, 0)));
        let ports = every_other(1400);
        assert!(admits(&ports, &packet(V4, TCP, 22, 0)) && !admits(&ports, &packet(V4, UDP, 22, 0)));
        let all: Vec<u16> = (0..=u16::MAX).collect();
        assert_eq!(admitting(all.iter().copied()).len(), admitting([7].into_iter()).len());
        assert!([0, 22, 65_535].iter().all(|port| admits(&all, &packet(V6, TCP, *port, 0))));
    }
}
