//! A tap on the wire that knows what no TCP may do.

use crate::seq::SeqNum;
use crate::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Ipv6Header, Sum, TcpFlags, TcpHeader, TcpOptions,
    UpperLayer,
};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::net::{IpAddr, SocketAddr};

/// A TCP segment as seen on the wire.
#[derive(Clone, Debug)]
pub struct WireSegment {
    /// Who sent it.
    pub src: SocketAddr,
    /// Whom it is for.
    pub dst: SocketAddr,
    /// Its header.
    pub header: TcpHeader,
    /// Its options.
    pub options: TcpOptions,
    /// Length of its payload, bytes.
    pub payload_len: u32,
}

impl WireSegment {
    /// The segment in a frame; `None` for other frames. A segment with a wrong checksum is an error.
    pub fn parse(frame: &[u8]) -> Result<Option<Self>, String> {
        let Ok((ethernet, packet)) = EthernetHeader::parse(frame) else {
            return Err("a frame shorter than its header".into());
        };
        let malformed = |error| format!("a malformed packet: {error:?}");
        let (src, dst, protocol, segment): (IpAddr, IpAddr, _, _) = match ethernet.ethertype {
            EtherType::IPV4 => {
                let (ip, header, payload) = Ipv4Header::parse(packet).map_err(malformed)?;
                if !Ipv4Header::is_checksum_valid(header) {
                    return Err("a wrong IPv4 header checksum".into());
                }
                (ip.src.into(), ip.dst.into(), ip.protocol, payload)
            }
            EtherType::IPV6 => {
                let (ip, payload) = Ipv6Header::parse(packet).map_err(malformed)?;
                let upper = UpperLayer::find(ip.next_header, payload).map_err(malformed)?;
                (ip.src.into(), ip.dst.into(), upper.protocol, upper.payload)
            }
            _ => return Ok(None),
        };
        if protocol != IpProtocol::TCP {
            return Ok(None);
        }
        let sum = Sum::pseudo_header(src, dst, protocol, segment.len()).join(Sum::of(segment));
        if !sum.is_valid() {
            return Err("a wrong TCP checksum".into());
        }
        let (header, options, payload) = TcpHeader::parse(segment).map_err(malformed)?;
        Ok(Some(Self {
            src: SocketAddr::new(src, header.src_port),
            dst: SocketAddr::new(dst, header.dst_port),
            header,
            options: TcpOptions::parse(options),
            payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
        }))
    }

    /// Sequence numbers that it occupies.
    pub fn seq_len(&self) -> u32 {
        let flags = self.header.flags;
        let controls = u32::from(flags.contains(TcpFlags::SYN)) + u32::from(flags.contains(TcpFlags::FIN));
        self.payload_len.saturating_add(controls)
    }

    /// The sequence number after its last.
    pub fn end(&self) -> SeqNum {
        self.header.seq + self.seq_len()
    }

    /// Whether it does nothing but acknowledge.
    pub fn is_pure_ack(&self) -> bool {
        let controls = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        self.payload_len == 0 && !self.header.flags.intersects(controls)
    }
}

/// Acknowledgments this far from what was sent may come to be right.
const PLAUSIBLE_ACK: u32 = 1 << 24;

/// What was seen of one direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    syn: Option<SeqNum>,
    scale: Option<u8>,
    mss: Option<u16>,
    /// One past the highest sequence number that this end lets the other send.
    right_edge: Option<SeqNum>,
    /// Highest acknowledgment number.
    acked: Option<SeqNum>,
    /// Sequence number after the last that was sent.
    end: Option<SeqNum>,
    /// Sequence number after the FIN.
    fin_end: Option<SeqNum>,
}

/// Watches the segments that stacks put on the wire, in the order in which they do.
#[derive(Debug, Default)]
pub struct Watch {
    directions: BTreeMap<(SocketAddr, SocketAddr), Direction>,
}

impl Direction {
    /// The right edge that a segment of this end offers, and the scale of its window.
    fn edge_of(&self, seen: &WireSegment, peer_scales: bool) -> (SeqNum, u8) {
        // RFC 7323 §2.2: the window of a SYN is never scaled, and others are if both ends said so.
        let scaled = !seen.header.flags.contains(TcpFlags::SYN) && peer_scales;
        let scale = if scaled { self.scale.unwrap_or(0).min(14) } else { 0 };
        (seen.header.ack + (u32::from(seen.header.window) << scale), scale)
    }
}

impl Watch {
    /// Notes what the segment of a liar promises, however false: its window counts from what it acknowledges,
    /// sent or not, for it may be sent before this arrives. What is too far off for that is noted by nobody.
    pub fn note_unchecked(&mut self, seen: &WireSegment) {
        let back = self.directions.get(&(seen.dst, seen.src));
        let peer_scales = back.is_some_and(|back| back.scale.is_some());
        let end = back.and_then(|back| back.end);
        let acks = seen.header.flags.contains(TcpFlags::ACK);
        if acks && end.is_none_or(|end| !seen.header.ack.is_within(end - PLAUSIBLE_ACK, 2 * PLAUSIBLE_ACK)) {
            return;
        }
        // What it says of the segment does not matter.
        let _ = self.check(seen);
        if let Some(direction) = self.directions.get_mut(&(seen.src, seen.dst)).filter(|_| acks) {
            let (edge, _) = direction.edge_of(seen, peer_scales);
            direction.right_edge = Some(direction.right_edge.map_or(edge, |before| before.max(edge)));
        }
    }

    /// The sequence number after the last that `src` sent to `dst`.
    pub fn snd_end(&self, src: SocketAddr, dst: SocketAddr) -> Option<SeqNum> {
        self.directions.get(&(src, dst))?.end
    }

    /// Judges a segment; an error says what is wrong with it.
    pub fn check(&mut self, seen: &WireSegment) -> Result<(), String> {
        let header = &seen.header;
        let flags = header.flags;
        if flags.contains(TcpFlags::RST) {
            return Ok(());
        }
        let back = self.directions.get(&(seen.dst, seen.src));
        let peer_edge = back.and_then(|back| back.right_edge);
        let peer_mss = back.and_then(|back| back.mss);
        let peer_scales = back.is_some_and(|back| back.scale.is_some());
        let peer_fin = back.and_then(|back| back.fin_end);
        let direction = self.directions.entry((seen.src, seen.dst)).or_default();
        // A SYN cookie is the same for the same SYN, so a connection may begin with the number of the last one.
        let again =
            flags.contains(TcpFlags::ACK) && direction.acked.is_some_and(|acked| acked.after(header.ack));
        if flags.contains(TcpFlags::SYN) && (direction.syn != Some(header.seq) || again) {
            *direction = Direction { syn: Some(header.seq), ..Direction::default() };
            direction.scale = seen.options.window_scale;
            direction.mss = seen.options.mss;
        }
        direction.end = Some(direction.end.map_or(seen.end(), |end| end.max(seen.end())));
        if direction.syn.is_none() {
            return Err(format!("a segment before any SYN: {seen:?}"));
        }
        // RFC 9293 §3.7.1: without the option, 536, or 1220 over IPv6. One of almost nothing need not be kept to.
        let default_mss = if seen.src.is_ipv4() { 536 } else { 1220 };
        if seen.payload_len > u32::from(peer_mss.unwrap_or(default_mss).max(64)) {
            return Err(format!("more than the peer's MSS of {peer_mss:?}: {seen:?}"));
        }
        // RFC 9293 §3.8.6.1: one byte may be sent into a closed window, to probe it. The SYN comes
        // before any window.
        let beyond = seen.seq_len() > 0 && peer_edge.is_some_and(|edge| seen.end().after(edge + 1));
        if beyond && !flags.contains(TcpFlags::SYN) {
            return Err(format!("beyond the peer's window, which ends at {peer_edge:?}: {seen:?}"));
        }
        if flags.contains(TcpFlags::FIN) {
            direction.fin_end = Some(seen.end());
        }
        if !flags.contains(TcpFlags::ACK) {
            return Ok(());
        }
        if direction.acked.is_some_and(|acked| header.ack.before(acked)) {
            return Err(format!("acknowledges less than before, {:?}: {seen:?}", direction.acked));
        }
        direction.acked = Some(header.ack);
        // Behind the peer's FIN there is nothing that a window could be for.
        if peer_fin.is_some_and(|fin| header.ack == fin) {
            return Ok(());
        }
        let (edge, scale) = direction.edge_of(seen, peer_scales);
        // RFC 9293 §3.8.6 (SHLD-14): "A TCP receiver SHOULD NOT shrink the window".
        // RFC 7323 §2.4: less than a unit of the scale is rounding.
        let unit = 1 << scale;
        if let Some(before) = direction.right_edge.filter(|before| (edge + (unit - 1)).before(*before)) {
            return Err(format!("the right edge goes back from {before} to {edge}: {seen:?}"));
        }
        direction.right_edge = Some(direction.right_edge.map_or(edge, |before| before.max(edge)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SYN_ACK: TcpFlags = TcpFlags::SYN.union(TcpFlags::ACK);

    /// A segment of one side: 0 or 1.
    fn segment(side: u8, flags: TcpFlags, seq: u32, len: u32, ack: u32, window: u16) -> WireSegment {
        let ends: [SocketAddr; 2] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into()];
        let [src, dst] = if side == 0 { ends } else { [ends[1], ends[0]] };
        let (seq, ack) = (SeqNum::new(seq), SeqNum::new(ack));
        let header = TcpHeader { seq, ack, flags, window, ..TcpHeader::default() };
        WireSegment { src, dst, header, options: TcpOptions::NONE, payload_len: len }
    }

    fn syn(side: u8, flags: TcpFlags, seq: u32, ack: u32) -> WireSegment {
        let mut syn = segment(side, flags, seq, 0, ack, 1000);
        syn.options = TcpOptions { mss: Some(500), window_scale: Some(2), ..TcpOptions::NONE };
        syn
    }

    /// What the tap says of segments after a handshake: 0 sends from 101, 1 from 201, windows of 1000
    /// until they are told otherwise.
    fn judge(segments: &[WireSegment]) -> Vec<bool> {
        let mut watch = Watch::default();
        watch.check(&syn(0, TcpFlags::SYN, 100, 0)).unwrap();
        watch.check(&syn(1, SYN_ACK, 200, 101)).unwrap();
        watch.check(&segment(0, TcpFlags::ACK, 101, 0, 201, 250)).unwrap();
        segments.iter().map(|segment| watch.check(segment).is_ok()).collect()
    }

    #[test]
    fn good_segments_are_accepted() {
        let ack = TcpFlags::ACK;
        let segments = [
            segment(0, ack, 101, 500, 201, 250),
            segment(0, ack, 601, 500, 201, 250),
            segment(0, ack, 101, 500, 201, 250),
            // The window is used up, and probed.
            segment(1, ack, 201, 0, 1101, 0),
            segment(0, ack, 1101, 1, 201, 250),
            segment(1, ack, 201, 0, 1101, 250),
            segment(0, ack | TcpFlags::FIN, 1101, 10, 201, 250),
            segment(1, ack, 201, 0, 1112, 0),
            segment(1, TcpFlags::RST, 5, 0, 0, 0),
        ];
        assert_eq!(judge(&segments), [true; 9]);
    }

    #[test]
    fn bad_segments_are_rejected() {
        let ack = TcpFlags::ACK;
        for (what, bad) in [
            ("more than the MSS", segment(0, ack, 101, 501, 201, 250)),
            ("beyond the window", segment(0, ack, 1001, 102, 201, 250)),
            ("the window goes back", segment(1, ack, 201, 0, 201, 224)),
            ("the acknowledgment goes back", segment(1, ack, 201, 0, 100, 1000)),
        ] {
            assert_eq!(judge(&[bad]), [false], "{what}");
        }
        assert!(Watch::default().check(&segment(0, ack, 1, 0, 1, 1)).is_err());
    }

    #[test]
    fn frames_are_parsed() {
        use etherparse::PacketBuilder;
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.tcp(1, 2, 100, 1000).ack(7).fin().write(&mut frame, b"abc").unwrap();
        let seen = WireSegment::parse(&frame).unwrap().unwrap();
        assert_eq!((seen.payload_len, seen.seq_len(), seen.end()), (3, 4, SeqNum::new(104)));
        assert!(!seen.is_pure_ack() && segment(0, TcpFlags::ACK, 1, 0, 1, 1).is_pure_ack());
        for at in [24, 50] {
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            assert!(WireSegment::parse(&wrong).is_err());
        }
        frame[12] = 9;
        assert!(WireSegment::parse(&frame).unwrap().is_none());
    }
}
