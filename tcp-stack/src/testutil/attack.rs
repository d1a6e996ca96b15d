//! Segments of a blind attacker, who knows the addresses and ports of a connection but not its sequence numbers. The
//! simulator and the flood tests inject them.

use super::Random;
use crate::seq::SeqNum;
use crate::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, MacAddr, SackBlocks, SackRange, Sum,
    TcpFlags, TcpHeader, TcpOptions, Timestamps,
};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Returns a TCP segment with the source `src`: random flags, numbers, options and payload, correct checksums. One in
/// eight is damaged at random.
pub fn blind_segment(random: &mut Random, mac: MacAddr, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let any = |random: &mut Random| SeqNum::new(u32::try_from(random.below(1 << 32)).unwrap_or(0));
    let header = TcpHeader {
        src_port: src.port(),
        dst_port: dst.port(),
        seq: any(random),
        ack: any(random),
        flags: TcpFlags::from_bits(random.byte() & random.byte()),
        window: u16::from_be_bytes([random.byte(), random.byte()]),
        urgent: u16::from(random.byte()),
    };
    let mut options = TcpOptions::NONE;
    if random.below(2) == 0 {
        options.timestamps = Some(Timestamps { value: any(random).get(), echo: any(random).get() });
    }
    for _ in 0..random.below(4) {
        let start = any(random);
        options.sack.push(SackRange { start, end: start + u32::from(random.byte()) });
    }
    if random.below(4) == 0 {
        options = TcpOptions { mss: Some(0), window_scale: Some(random.byte()), ..options };
        options.sack = SackBlocks::EMPTY;
    }
    let header_len = TcpHeader::len_with(&options);
    let mut segment = vec![random.byte(); header_len.saturating_add(random.index(200))];
    header.emit(&options, &mut segment);
    let pseudo_header = Sum::pseudo_header(src.ip(), dst.ip(), IpProtocol::TCP, segment.len());
    TcpHeader::set_checksum(&mut segment, pseudo_header);
    let mut frame = headers(mac, src.ip(), dst.ip(), segment.len());
    frame.append(&mut segment);
    if random.below(8) == 0 {
        for _ in 0..random.between(1, 8) {
            let at = random.index(frame.len());
            let value = random.byte();
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(random.index(frame.len()));
    }
    frame
}

/// Returns a SYN with the source `src` as hosts send it: with every option or, one in four, with the MSS alone. Its
/// checksums are correct.
pub fn blind_syn(random: &mut Random, mac: MacAddr, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let mut word = || u32::try_from(random.below(1 << 32)).unwrap_or(0);
    let (seq, value) = (SeqNum::new(word()), word());
    let header = TcpHeader {
        src_port: src.port(),
        dst_port: dst.port(),
        seq,
        ack: SeqNum::new(0),
        flags: TcpFlags::SYN,
        window: 64_240,
        urgent: 0,
    };
    let mut options = TcpOptions { mss: Some(1460), ..TcpOptions::NONE };
    if random.below(4) > 0 {
        options.window_scale = Some(7);
        options.sack_permitted = true;
        options.timestamps = Some(Timestamps { value, echo: 0 });
    }
    let mut segment = vec![0; TcpHeader::len_with(&options)];
    header.emit(&options, &mut segment);
    let pseudo_header = Sum::pseudo_header(src.ip(), dst.ip(), IpProtocol::TCP, segment.len());
    TcpHeader::set_checksum(&mut segment, pseudo_header);
    let mut frame = headers(mac, src.ip(), dst.ip(), segment.len());
    frame.append(&mut segment);
    frame
}

pub(super) fn headers(mac: MacAddr, src: IpAddr, dst: IpAddr, payload_len: usize) -> Vec<u8> {
    let is_ipv4 = src.is_ipv4();
    let ethertype = if is_ipv4 { EtherType::IPV4 } else { EtherType::IPV6 };
    let ethernet = EthernetHeader { dst: mac, src: MacAddr([2, 0, 0, 0, 0, 0xee]), tci: None, ethertype };
    let mut frame = vec![0; EthernetHeader::LEN];
    ethernet.emit(&mut frame);
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut out = [0; Ipv4Header::LEN];
            let header = Ipv4Header::atomic(src, dst, IpProtocol::TCP);
            header.emit(payload_len, true, &mut out);
            frame.extend_from_slice(&out);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut out = [0; Ipv6Header::LEN];
            let header = Ipv6Header {
                src,
                dst,
                next_header: IpProtocol::TCP,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 64,
            };
            header.emit(payload_len, &mut out);
            frame.extend_from_slice(&out);
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testutil::WireSegment;

    #[test]
    fn most_segments_look_right() {
        let mut random = Random::new(1);
        let pairs: [(SocketAddr, SocketAddr); 2] = [
            ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()),
            ("[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap()),
        ];
        for (src, dst) in pairs {
            let frames = (0..1000).map(|_| blind_segment(&mut random, MacAddr::BROADCAST, src, dst));
            let good = frames
                .filter_map(|frame| WireSegment::parse(&frame).ok().flatten())
                .filter(|seen| (seen.src, seen.dst) == (src, dst))
                .count();
            assert!(good.abs_diff(875) < 50, "{good}");
            let frames = (0..100).map(|_| blind_syn(&mut random, MacAddr::BROADCAST, src, dst));
            for seen in frames.map(|frame| WireSegment::parse(&frame).unwrap().unwrap()) {
                assert_eq!((seen.src, seen.dst, seen.header.flags), (src, dst, TcpFlags::SYN));
                assert_eq!(seen.options.mss, Some(1460));
            }
        }
    }
}
