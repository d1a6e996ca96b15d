//! Seed inputs from which the committed corpora were first made.

use super::Input;
use super::bench::{IPV4, IPV6, MAC, PEER_MAC, PORT};
use super::peer::Peer;
use crate::testutil::{Random, blind_segment};
use crate::wire::{SackRange, TcpFlags, TcpOptions, Timestamps};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Returns seed inputs for the target of this name.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "frame" => frames(),
        "operations" => operations(),
        "options" => options(),
        _ => Vec::new(),
    }
}

/// Returns one input: each frame preceded by its repair byte and its length.
fn sequence(how: u8, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut input = Vec::new();
    for frame in frames {
        input.push(how);
        input.extend_from_slice(&u16::try_from(frame.len()).unwrap_or(0).to_be_bytes());
        input.extend_from_slice(frame);
    }
    input
}

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&MAC.0);
    frame.extend_from_slice(&PEER_MAC.0);
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// Returns an IPv4 packet with checksums for `MEND` to correct.
fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(20 + payload.len()).unwrap_or(0).to_be_bytes();
    let [f0, f1] = fragment.to_be_bytes();
    let mut packet = vec![0x45, 0, total[0], total[1], 0, 9, f0, f1, 64, protocol, 0, 0];
    packet.extend_from_slice(&IPV4[1].octets());
    packet.extend_from_slice(&IPV4[0].octets());
    packet.extend_from_slice(payload);
    ethernet(0x0800, &packet)
}

/// Returns an IPv6 packet with a checksum for `MEND` to correct.
fn ipv6(next_header: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = u16::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, l0, l1, next_header, hop_limit];
    packet.extend_from_slice(&IPV6[1].octets());
    packet.extend_from_slice(&IPV6[0].octets());
    packet.extend_from_slice(payload);
    ethernet(0x86dd, &packet)
}

fn frames() -> Vec<Vec<u8>> {
    const MEND: u8 = 2;
    let mut inputs = Vec::new();
    for [to, from] in [IPV4.map(IpAddr::from), IPV6.map(IpAddr::from)] {
        let (local, remote) = (SocketAddr::new(from, 5000), SocketAddr::new(to, PORT));
        let peer = Peer::new(&mut Input(&[]), local, remote);
        let offer = TcpOptions {
            mss: Some(1400),
            window_scale: Some(3),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 5, echo: 0 }),
            ..TcpOptions::NONE
        };
        let syn = peer.frame(peer.header(TcpFlags::SYN, 4000), &offer, 0);
        let text = peer.frame(peer.header(TcpFlags::ACK, 4000), &TcpOptions::NONE, 40);
        let reset = peer.frame(peer.header(TcpFlags::RST, 0), &TcpOptions::NONE, 0);
        inputs.push(sequence(MEND, &[syn.clone(), syn, text, reset]));
        let mut random = Random::new(1);
        let blind: Vec<_> = (0..4).map(|_| blind_segment(&mut random, MAC, local, remote)).collect();
        inputs.push(sequence(MEND, &blind));
    }
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend_from_slice(&PEER_MAC.0);
    arp.extend_from_slice(&IPV4[1].octets());
    arp.extend_from_slice(&[0; 6]);
    arp.extend_from_slice(&IPV4[0].octets());
    inputs.push(sequence(0, &[ethernet(0x0806, &arp)]));
    let echo = [8, 0, 0, 0, 1, 2, 3, 4, b'p', b'i', b'n', b'g'];
    inputs.push(sequence(MEND, &[ipv4(1, 0, &echo), ipv4(1, 0x2000, &echo), ipv4(1, 1, &echo)]));
    let mut quoted = vec![3, 4, 0, 0, 0, 0, 5, 0];
    quoted.extend_from_slice(ipv4(6, 0, &[0, 7, 0x13, 0x88, 0, 0, 0, 1]).get(14..).unwrap_or_default());
    inputs.push(sequence(MEND, &[ipv4(1, 0, &quoted)]));
    let echo = [128, 0, 0, 0, 1, 2, 3, 4, b'p', b'i', b'n', b'g'];
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend_from_slice(&IPV6[0].octets());
    solicitation.extend_from_slice(&[1, 1]);
    solicitation.extend_from_slice(&PEER_MAC.0);
    inputs.push(sequence(MEND, &[ipv6(58, 255, &solicitation), ipv6(58, 64, &echo)]));
    let mut fragment = vec![58, 0, 0, 1, 0, 0, 0, 9];
    fragment.extend_from_slice(&echo);
    let mut last = vec![58, 0, 0, 8, 0, 0, 0, 9];
    last.extend_from_slice(&echo);
    inputs.push(sequence(MEND, &[ipv6(44, 64, &fragment), ipv6(44, 64, &last)]));
    let mut too_big = vec![2, 0, 0, 0, 0, 0, 5, 0];
    too_big.extend_from_slice(ipv6(6, 64, &[0, 7, 0x13, 0x88, 0, 0, 0, 1]).get(14..).unwrap_or_default());
    inputs.push(sequence(MEND, &[ipv6(58, 64, &too_big)]));
    inputs
}

/// Returns handshakes that the peer begins and that the stack begins, data both ways and an end, each over both address
/// families and with some configurations; and random sequences.
fn operations() -> Vec<Vec<u8>> {
    const TURN: u8 = 15;
    let passive = [12, 0, 0xff, 0xff, TURN, 10, 0xff, 0xff, TURN];
    let active = [6, TURN, TURN, 12, 0, 0xff, 0xff, TURN];
    let data =
        [0, 1, 244, 0, 2, 0, TURN, 10, 0xff, 0xff, 8, 3, 232, 99, TURN, 2, 0xff, 0xff, TURN, 5, 5, TURN];
    let end = [3, TURN, 10, 0xff, 0xff, 8, 0, 0, 1, TURN, 10, 0xff, 0xff, TURN, 5, 9, TURN];
    let mut inputs = Vec::new();
    for family in [0, 8] {
        for config in [[0, 0, 0], [1, 1, 1], [2, 0, 2], [4, 1, 4]] {
            for begin in [&passive[..], &active[..]] {
                let mut input = vec![family];
                input.extend_from_slice(&config);
                // Byte that chooses the options of the peer's SYNs.
                input.extend_from_slice(&[config[0], 0, 1]);
                for part in [begin, &data[..], &data[..], &end[..]] {
                    input.extend_from_slice(part);
                }
                inputs.push(input);
            }
        }
    }
    let mut random = Random::new(2);
    for _ in 0..8 {
        let mut input: Vec<u8> = (0..7).map(|_| random.byte()).collect();
        input.extend_from_slice(&passive);
        input.extend((0..random.between(20, 300)).map(|_| random.byte()));
        inputs.push(input);
    }
    inputs
}

fn options() -> Vec<Vec<u8>> {
    let mut inputs = vec![
        vec![2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        vec![2, 0, 2, 1, 5, 9, 8, 3, 255, 255],
    ];
    let ends = [SocketAddr::new(IPV4[1].into(), 1), SocketAddr::new(IPV4[0].into(), 2)];
    let peer = Peer::new(&mut Input(&[]), ends[0], ends[1]);
    let mut options = TcpOptions { timestamps: Some(Timestamps::default()), ..TcpOptions::NONE };
    for _ in 0..3 {
        options.sack.push(SackRange { start: peer.nxt, end: peer.nxt + 100 });
        let frame = peer.frame(peer.header(TcpFlags::ACK, 9), &options, 3);
        inputs.push(frame.get(34..).unwrap_or_default().to_vec());
    }
    inputs
}
