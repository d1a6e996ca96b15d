//! Checks that the segments on a simulated wire keep the rules of RFC 9293. The simulator and the fuzzers call it.

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
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// The TCP header as sent.
    pub header: TcpHeader,
    /// The TCP options as sent.
    pub options: TcpOptions,
    /// Length of the payload, bytes.
    pub payload_len: u32,
}

impl WireSegment {
    /// Returns the segment in a frame, or `None` for other frames. Fails on a wrong checksum or a malformed header.
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

    /// Returns SEG.LEN: payload bytes, plus one each for SYN and FIN.
    pub fn seq_len(&self) -> u32 {
        let flags = self.header.flags;
        let controls = u32::from(flags.contains(TcpFlags::SYN)) + u32::from(flags.contains(TcpFlags::FIN));
        self.payload_len.saturating_add(controls)
    }

    /// Returns SEG.SEQ + SEG.LEN.
    pub fn end(&self) -> SeqNum {
        self.header.seq + self.seq_len()
    }

    /// Returns true if it carries neither payload nor SYN, FIN or RST.
    pub fn is_pure_ack(&self) -> bool {
        let controls = TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST;
        self.payload_len == 0 && !self.header.flags.intersects(controls)
    }
}

/// Bytes from SND.NXT within which an acknowledgment of unsent bytes is recorded: they may still be sent.
const PLAUSIBLE_ACK: u32 = 1 << 24;

/// State of one direction of a connection, as seen on the wire.
#[derive(Debug, Default)]
struct Direction {
    syn: Option<SeqNum>,
    scale: Option<u8>,
    mss: Option<u16>,
    /// Right edge of the window that this end advertised: SEG.ACK + SEG.WND.
    right_edge: Option<SeqNum>,
    /// Highest acknowledgment number sent.
    acked: Option<SeqNum>,
    /// SND.NXT: highest SEG.SEQ + SEG.LEN sent.
    end: Option<SeqNum>,
    /// SEG.SEQ + SEG.LEN of the FIN.
    fin_end: Option<SeqNum>,
    /// Set once this end has sent a RST.
    was_reset: bool,
}

/// Checks the segments that stacks put on the wire, in the order in which they send them.
#[derive(Debug, Default)]
pub struct Watch {
    directions: BTreeMap<(SocketAddr, SocketAddr), Direction>,
}

impl Direction {
    /// Returns the right edge that a segment of this end advertises, and its window scale.
    fn edge_of(&self, seen: &WireSegment, peer_scales: bool) -> (SeqNum, u8) {
        // RFC 7323 §2.2: the window of a SYN is never scaled; later ones are if both SYNs had the option.
        let scaled = !seen.header.flags.contains(TcpFlags::SYN) && peer_scales;
        let scale = if scaled { self.scale.unwrap_or(0).min(14) } else { 0 };
        (seen.header.ack + (u32::from(seen.header.window) << scale), scale)
    }
}

impl Watch {
    /// Records a segment that a test forged. It updates the advertised window even if it acknowledges data that the
    /// peer has not sent yet, since the peer may send them before the segment arrives. An acknowledgment farther
    /// than `PLAUSIBLE_ACK` from the peer's SND.NXT is ignored.
    pub fn note_unchecked(&mut self, seen: &WireSegment) {
        let back = self.directions.get(&(seen.dst, seen.src));
        let peer_scales = back.is_some_and(|back| back.scale.is_some());
        let end = back.and_then(|back| back.end);
        let acks = seen.header.flags.contains(TcpFlags::ACK);
        if acks && end.is_none_or(|end| !seen.header.ack.is_within(end - PLAUSIBLE_ACK, 2 * PLAUSIBLE_ACK)) {
            return;
        }
        // A forged segment may violate the rules: the verdict is ignored.
        let _ = self.check(seen);
        if let Some(direction) = self.directions.get_mut(&(seen.src, seen.dst)).filter(|_| acks) {
            let (edge, _) = direction.edge_of(seen, peer_scales);
            direction.right_edge = Some(direction.right_edge.map_or(edge, |before| before.max(edge)));
        }
    }

    /// Returns the initial sequence number of `src` on its connection to `dst`.
    pub fn iss(&self, src: SocketAddr, dst: SocketAddr) -> Option<SeqNum> {
        self.directions.get(&(src, dst))?.syn
    }

    /// Returns SND.NXT of `src` on its connection to `dst`.
    pub fn snd_end(&self, src: SocketAddr, dst: SocketAddr) -> Option<SeqNum> {
        self.directions.get(&(src, dst))?.end
    }

    /// Checks and records a segment. The error names the rule that it breaks.
    pub fn check(&mut self, seen: &WireSegment) -> Result<(), String> {
        let header = &seen.header;
        let flags = header.flags;
        if flags.contains(TcpFlags::RST) {
            if let Some(direction) = self.directions.get_mut(&(seen.src, seen.dst)) {
                direction.was_reset = true;
            }
            return Ok(());
        }
        let back = self.directions.get(&(seen.dst, seen.src));
        let peer_edge = back.and_then(|back| back.right_edge);
        let peer_mss = back.and_then(|back| back.mss);
        let peer_scales = back.is_some_and(|back| back.scale.is_some());
        let peer_fin = back.and_then(|back| back.fin_end);
        let direction = self.directions.entry((seen.src, seen.dst)).or_default();
        // A SYN cookie repeats for the same SYN, so a new connection may have the initial sequence number of the last
        // one: a lower acknowledgment number marks it.
        let again =
            flags.contains(TcpFlags::ACK) && direction.acked.is_some_and(|acked| acked.after(header.ack));
        if flags.contains(TcpFlags::SYN) && (direction.syn != Some(header.seq) || again) {
            *direction = Direction { syn: Some(header.seq), ..Direction::default() };
            direction.scale = seen.options.window_scale;
            direction.mss = seen.options.mss;
        }
        // After a RST, a segment in flight may still carry a valid SYN cookie and open the connection anew without a
        // SYN.
        if direction.was_reset && direction.acked.is_some_and(|acked| header.ack.before(acked)) {
            (direction.acked, direction.right_edge, direction.was_reset) = (None, None, false);
        }
        direction.end = Some(direction.end.map_or(seen.end(), |end| end.max(seen.end())));
        if direction.syn.is_none() {
            return Err(format!("a segment before any SYN: {seen:?}"));
        }
        // RFC 9293 §3.7.1: without the option, 536, or 1220 over IPv6. A tiny MSS need not be honored.
        let default_mss = if seen.src.is_ipv4() { 536 } else { 1220 };
        if seen.payload_len > u32::from(peer_mss.unwrap_or(default_mss).max(64)) {
            return Err(format!("more than the peer's MSS of {peer_mss:?}: {seen:?}"));
        }
        // RFC 9293 §3.8.6.1: a probe may carry one byte into a closed window. SYNs are exempt: no window is known yet.
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
        // Once the peer's FIN is acknowledged, a window has no meaning.
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

    /// Returns a segment of side 0 or 1.
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

    /// Returns which segments pass after a handshake: side 0 sends from 101, side 1 from 201, with windows of 1000.
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
