//! Frames and FPDUs in their wire format, as input of the benchmarks.

use std::net::Ipv4Addr;

use rdma::mpa::{Framer, fpdu_len};
use rdma::wire::ddp::{self, TaggedHeader};
use rdma::wire::rdmap::{ControlField, Opcode};
use rdma::wire::{Stag, TaggedOffset};
use tcp_stack::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Sum, TcpFlags, TcpHeader, TcpOptions,
};
use tcp_stack::{MacAddr, SeqNum};

/// Payload of an RDMA Write that fills a TCP segment: at an MTU of 1500 bytes with timestamps, and at 9000.
pub const PAYLOADS: [usize; 2] = [1428, 8928];

/// Returns the DDP header of an RDMA Write of one segment, at tagged offset 0.
pub const fn write_header(stag: Stag) -> TaggedHeader {
    let ulp_control = ControlField::new(Opcode::RdmaWrite).emit();
    TaggedHeader { last: true, version: ddp::VERSION, ulp_control, stag, offset: TaggedOffset(0) }
}

/// Builds the FPDU of such a Write in `out`, with CRC; returns false if it does not fit exactly.
pub fn build_write(framer: Framer, stag: Stag, payload: &[u8], out: &mut [u8]) -> bool {
    let ulpdu = TaggedHeader::LEN.saturating_add(payload.len());
    let built = framer.frame(out, ulpdu, |room| {
        if let Some((header, rest)) = room.split_first_chunk_mut::<{ TaggedHeader::LEN }>() {
            write_header(stag).emit(header);
            rest.copy_from_slice(payload);
        }
    });
    built.is_ok()
}

/// Returns the bytes that [`build_write`] needs.
pub const fn write_len(payload: usize) -> usize {
    fpdu_len(TaggedHeader::LEN.saturating_add(payload))
}

/// Builds a frame with a TCP segment and correct checksums; `None` if the payload does not fit an IP packet.
pub fn tcp_frame(payload: &[u8]) -> Option<Vec<u8>> {
    let (src, dst) = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
    let segment_len = TcpHeader::LEN.checked_add(payload.len()).filter(|len| *len < 65_000)?;
    let mut segment = vec![0; segment_len];
    let header = TcpHeader {
        src_port: 40_000,
        dst_port: 7400,
        seq: SeqNum::new(1),
        ack: SeqNum::new(1),
        flags: TcpFlags::ACK,
        window: 1000,
        urgent: 0,
    };
    let (head, rest) = segment.split_at_mut_checked(TcpHeader::LEN)?;
    header.emit(&TcpOptions::NONE, head).then_some(())?;
    rest.copy_from_slice(payload);
    let pseudo_header = Sum::pseudo_header(src.into(), dst.into(), IpProtocol::TCP, segment_len);
    TcpHeader::set_checksum(&mut segment, pseudo_header).then_some(())?;
    let mut ip = [0; Ipv4Header::LEN];
    let header = Ipv4Header::atomic(src, dst, IpProtocol::TCP);
    header.emit(segment_len, true, &mut ip);
    let mut link = [0; EthernetHeader::LEN];
    let [src, dst] = [1, 2].map(|host| MacAddr([2, 0, 0, 0, 0, host]));
    EthernetHeader { dst, src, tci: None, ethertype: EtherType::IPV4 }.emit(&mut link).then_some(())?;
    Some([&link[..], &ip, &segment].concat())
}

/// Parses a frame, verifies its checksums as the receive path does, and returns its TCP payload.
pub fn parse_frame(frame: &[u8]) -> Option<&[u8]> {
    let (_, packet) = EthernetHeader::parse(frame).ok()?;
    let (ip, header, segment) = Ipv4Header::parse(packet).ok()?;
    let pseudo_header = Sum::pseudo_header(ip.src.into(), ip.dst.into(), ip.protocol, segment.len());
    let sound = Ipv4Header::is_checksum_valid(header) && pseudo_header.join(Sum::of(segment)).is_valid();
    let (_, options, payload) = TcpHeader::parse(segment).ok()?;
    TcpOptions::parse(options);
    sound.then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_a_frame_returns_its_payload() {
        for payload in PAYLOADS {
            let mut fpdu = vec![0; write_len(payload)];
            assert!(build_write(Framer::new(true), Stag(7), &vec![5; payload], &mut fpdu));
            let frame = tcp_frame(&fpdu).unwrap();
            assert_eq!(parse_frame(&frame), Some(&fpdu[..]));
            let mut damaged = frame;
            if let Some(byte) = damaged.last_mut() {
                *byte ^= 1;
            }
            assert_eq!(parse_frame(&damaged), None);
        }
    }
}
