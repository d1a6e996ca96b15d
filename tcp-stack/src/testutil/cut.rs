//! TCP segmentation offload in software: the simulated port cuts a frame of several segments into packets.

use super::HeapBuf;
use crate::buf::TxFrame;
use crate::wire::{EthernetHeader, IpProtocol, Ipv4Header, Sum, TcpFlags, TcpHeader};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the frames into which a port with checksum and segmentation offload cuts one frame: sequence numbers
/// continue, FIN and PSH stay on the last segment, CWR on the first (RFC 3168 §6.1.2).
pub fn cut(frame: &TxFrame<HeapBuf>) -> Vec<Vec<u8>> {
    let offload = &frame.offload;
    let mut whole = Vec::new();
    frame.buf.parts().for_each(|part| whole.extend_from_slice(part));
    let [l2, l3, l4] = [offload.l2_len, offload.l3_len, offload.l4_len].map(usize::from);
    let headers = l2 + l3 + l4;
    if !offload.tcp_checksum || headers < EthernetHeader::LEN || whole.len() < headers {
        return Vec::from([whole]);
    }
    let (head, payload) = whole.split_at(headers);
    let step = match offload.segment {
        0 => payload.len().max(1),
        bytes => usize::from(bytes),
    };
    let count = payload.len().div_ceil(step).max(1);
    let part = |index: usize| {
        let from = index * step;
        let piece = payload.get(from..payload.len().min(from + step)).unwrap_or(&[]);
        let mut out = head.to_vec();
        out.extend_from_slice(piece);
        finish(&mut out, (l2, l3), from, (index == 0, index + 1 == count), offload.ipv6);
        out
    };
    (0..count).map(part).collect()
}

/// Writes a segment's own lengths, sequence number, flags and checksums into its copy of the headers.
fn finish(out: &mut [u8], (l2, l3): (usize, usize), from: usize, (first, last): (bool, bool), ipv6: bool) {
    let Some(packet) = out.get_mut(l2..) else { return };
    let len = packet.len();
    let (local, remote) = if ipv6 {
        put(packet, 4, &u16::try_from(len - l3).unwrap_or(u16::MAX).to_be_bytes());
        let at = |from| packet.get(from..).and_then(|rest| rest.first_chunk::<16>()).copied();
        let address = |from| IpAddr::V6(Ipv6Addr::from(at(from).unwrap_or_default()));
        (address(8), address(24))
    } else {
        put(packet, 2, &u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
        put(packet, 10, &[0, 0]);
        let sum = packet.get(..Ipv4Header::LEN).map_or(0, |header| Sum::of(header).checksum());
        put(packet, 10, &sum.to_be_bytes());
        let at = |from| packet.get(from..).and_then(|rest| rest.first_chunk::<4>()).copied();
        let address = |from| IpAddr::V4(Ipv4Addr::from(at(from).unwrap_or_default()));
        (address(12), address(16))
    };
    let Some(segment) = packet.get_mut(l3..) else { return };
    let seq =
        segment.get(4..).and_then(|rest| rest.first_chunk::<4>()).map_or(0, |seq| u32::from_be_bytes(*seq));
    put(segment, 4, &seq.wrapping_add(u32::try_from(from).unwrap_or(0)).to_be_bytes());
    if let Some(flags) = segment.get_mut(13) {
        if !last {
            *flags &= !(TcpFlags::FIN | TcpFlags::PSH).bits();
        }
        if !first {
            *flags &= 0x7f;
        }
    }
    put(segment, 16, &[0, 0]);
    let pseudo_header = Sum::pseudo_header(local, remote, IpProtocol::TCP, segment.len());
    TcpHeader::set_checksum(segment, pseudo_header);
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}
