//! Fuzz target [`frame()`]: arbitrary frames to listeners and an open connection.

use super::Input;
use super::bench::{Bench, IPV4, IPV6, MAC, PORT, config};
use crate::buf::RxChecksum;
use crate::testutil::segment::repair;
use crate::time::Duration;
use crate::wire::{EtherType, IpProtocol, Sum};
use crate::{ConnOptions, ListenOptions};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Limit of frames per run.
const FRAMES_MAX: usize = 64;
/// Offset of the packet in an untagged frame.
const PACKET: usize = 14;

/// Runs the frames of the input, each preceded by a byte that says how to repair it (`mend`) and by its length.
pub fn frame(data: &[u8]) {
    let mut input = Input(data);
    let mut bench = Bench::new(config());
    let listened = bench.stack.listen(PORT, ListenOptions { backlog: 4, ..ListenOptions::default() });
    assert!(listened.is_ok(), "{listened:?}");
    for remote in [IpAddr::from(IPV4[1]), IpAddr::from(IPV6[1])] {
        let opened = bench.stack.connect(bench.now, SocketAddr::new(remote, 9), ConnOptions::default());
        assert!(opened.is_ok(), "{opened:?}");
    }
    bench.transmit(8);
    for _ in 0..FRAMES_MAX {
        if input.is_empty() {
            break;
        }
        let how = input.byte();
        let len = usize::from(input.u16() % 1564);
        let mut frame = input.take(len).to_vec();
        mend(how, &mut frame);
        let checksum = if how & 0x10 == 0 { RxChecksum::Unknown } else { RxChecksum::Good };
        bench.receive(&frame, checksum);
        bench.drain();
        if how & 0x20 != 0 {
            bench.wait(Duration::from_millis(700));
        }
        let sent = bench.transmit(64).len();
        bench.check();
        // A frame, a timer of each connection, and a solicitation of each neighbor may each cause one.
        assert!(sent <= 24, "{sent} frames for one");
    }
    bench.end();
}

/// Repairs a frame: bit 0 sets its destination addresses to ours, bit 1 corrects its checksums; bits 2 and 3 make it
/// IPv4 or IPv6 if it is neither.
fn mend(how: u8, frame: &mut [u8]) {
    if how & 1 != 0 {
        write(frame, 0, &MAC.0);
        match how & 0xc {
            4 => write(frame, 12, &EtherType::IPV4.0.to_be_bytes()),
            8 => write(frame, 12, &EtherType::IPV6.0.to_be_bytes()),
            _ => {}
        }
        match frame.get(12..PACKET) {
            Some([0x08, 0x00]) => write(frame, PACKET + 16, &IPV4[0].octets()),
            Some([0x86, 0xdd]) => write(frame, PACKET + 24, &IPV6[0].octets()),
            _ => {}
        }
    }
    if how & 2 != 0 && repair(frame).is_none() {
        repair_other(frame);
    }
}

fn write(frame: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in frame.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Corrects the checksums outside of TCP: IPv4's header, ICMP, ICMPv6.
fn repair_other(frame: &mut [u8]) -> Option<()> {
    let kind: Vec<u8> = frame.get(12..PACKET)?.to_vec();
    let packet = frame.get_mut(PACKET..)?;
    if kind == EtherType::IPV4.0.to_be_bytes() {
        let header_len = usize::from(*packet.first()? & 0xf) * 4;
        let total = usize::from(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?));
        let header = packet.get_mut(..header_len)?;
        put(header, 10, Sum::of);
        if packet.get(9) == Some(&IpProtocol::ICMPV4.0) {
            put(packet.get_mut(header_len..total)?, 2, Sum::of);
        }
    } else if kind == EtherType::IPV6.0.to_be_bytes() && packet.get(6) == Some(&IpProtocol::ICMPV6.0) {
        let src: [u8; 16] = *packet.get(8..)?.first_chunk()?;
        let dst: [u8; 16] = *packet.get(24..)?.first_chunk()?;
        let len = usize::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?));
        let message = packet.get_mut(40..40 + len)?;
        put(message, 2, |message| {
            Sum::pseudo_header(src.into(), dst.into(), IpProtocol::ICMPV6, len).join(Sum::of(message))
        });
    }
    Some(())
}

/// Computes and stores a checksum over bytes that contain it.
fn put(bytes: &mut [u8], at: usize, sum: impl Fn(&[u8]) -> Sum) {
    write(bytes, at, &[0, 0]);
    let checksum = sum(bytes).checksum().to_be_bytes();
    write(bytes, at, &checksum);
}
