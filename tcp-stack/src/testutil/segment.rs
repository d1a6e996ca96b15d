//! Finds the TCP segment inside a frame, repairs its checksums and rewrites its header. The simulated link, the liar
//! and the address translation use it.

use crate::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpHeader, TcpOptions, UpperLayer,
};
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

/// Position of the TCP segment in a frame.
#[derive(Clone, Copy, Debug)]
struct SegmentSpan {
    src: IpAddr,
    dst: IpAddr,
    ip_at: usize,
    at: usize,
    len: usize,
}

fn find(frame: &[u8]) -> Option<SegmentSpan> {
    let (ethernet, packet) = EthernetHeader::parse(frame).ok()?;
    let ip_at = ethernet.header_len();
    match ethernet.ethertype {
        EtherType::IPV4 => {
            let (ip, header, segment) = Ipv4Header::parse(packet).ok()?;
            let at = ip_at.checked_add(header.len())?;
            (ip.protocol == IpProtocol::TCP).then_some(SegmentSpan {
                src: ip.src.into(),
                dst: ip.dst.into(),
                ip_at,
                at,
                len: segment.len(),
            })
        }
        EtherType::IPV6 => {
            let (ip, payload) = Ipv6Header::parse(packet).ok()?;
            let upper = UpperLayer::find(ip.next_header, payload).ok()?;
            let before = payload.len().checked_sub(upper.payload.len())?;
            let at = ip_at.checked_add(Ipv6Header::LEN)?.checked_add(before)?;
            let (src, dst) = (ip.src.into(), ip.dst.into());
            let len = upper.payload.len();
            (upper.protocol == IpProtocol::TCP).then_some(SegmentSpan { src, dst, ip_at, at, len })
        }
        _ => None,
    }
}

/// Corrects a frame's checksums; returns `None` if it holds no TCP segment, and then may have changed nothing.
pub(super) fn repair(frame: &mut [u8]) -> Option<()> {
    let SegmentSpan { src, dst, ip_at, at, len } = find(frame)?;
    if src.is_ipv4() {
        let header = frame.get_mut(ip_at..at)?;
        header.get_mut(10..12)?.fill(0);
        let [c0, c1] = Sum::of(header).checksum().to_be_bytes();
        *header.get_mut(10..12)?.first_chunk_mut()? = [c0, c1];
    }
    let segment = frame.get_mut(at..at.checked_add(len)?)?;
    TcpHeader::set_checksum(segment, Sum::pseudo_header(src, dst, IpProtocol::TCP, len)).then_some(())
}

/// Returns the frame with an edited TCP header and matching lengths and checksums, or `None` if it has no TCP header.
pub(super) fn rewrite(frame: &[u8], edit: impl FnOnce(&mut TcpHeader, &mut TcpOptions)) -> Option<Vec<u8>> {
    let SegmentSpan { src, ip_at, at, len, .. } = find(frame)?;
    let (mut header, options, payload) = TcpHeader::parse(frame.get(at..at.checked_add(len)?)?).ok()?;
    let mut options = TcpOptions::parse(options);
    edit(&mut header, &mut options);
    let mut segment = vec![0; TcpHeader::len_with(&options)];
    header.emit(&options, &mut segment);
    segment.extend_from_slice(payload);
    let mut out = frame.get(..at)?.to_vec();
    let before = at.checked_sub(ip_at)?;
    // IPv4 counts the whole packet, IPv6 what follows the fixed header.
    let (field, fixed) = if src.is_ipv4() { (2, 0) } else { (4, Ipv6Header::LEN) };
    let counted = before.checked_sub(fixed)?.checked_add(segment.len())?;
    let field = ip_at.checked_add(field)?;
    *out.get_mut(field..)?.first_chunk_mut()? = u16::try_from(counted).ok()?.to_be_bytes();
    out.append(&mut segment);
    repair(&mut out)?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testutil::WireSegment;
    use crate::wire::{SackRange, Timestamps};
    use etherparse::PacketBuilder;

    fn frames() -> [Vec<u8>; 2] {
        let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frames = [Vec::new(), Vec::new()];
        let [v4, v6] = &mut frames;
        let tcp = ethernet().ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(1, 2, 100, 1000);
        tcp.write(v4, &[7; 99]).unwrap();
        ethernet().ipv6([1; 16], [2; 16], 64).tcp(1, 2, 100, 1000).write(v6, &[7; 99]).unwrap();
        frames
    }

    #[test]
    fn a_forged_segment_has_right_checksums() {
        for frame in frames() {
            let mut other = frame.clone();
            other[80] ^= 4;
            assert!(WireSegment::parse(&other).is_err());
            repair(&mut other).unwrap();
            assert!(WireSegment::parse(&other).unwrap().is_some());
            let mut same = frame.clone();
            repair(&mut same).unwrap();
            assert_eq!(same, frame);
        }
    }

    #[test]
    fn a_rewritten_segment_is_whole() {
        for frame in frames() {
            let same = rewrite(&frame, |_, _| ()).unwrap();
            assert_eq!(same, frame);
            let longer = rewrite(&frame, |header, options| {
                header.dst_port = 9;
                options.timestamps = Some(Timestamps { value: 1, echo: 2 });
                options.sack.push(SackRange { start: header.seq, end: header.seq + 5 });
            });
            let seen = WireSegment::parse(&longer.unwrap()).unwrap().unwrap();
            assert_eq!((seen.dst.port(), seen.payload_len, seen.options.sack.as_slice().len()), (9, 99, 1));
            assert!(seen.options.timestamps.is_some());
        }
    }
}
