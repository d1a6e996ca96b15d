//! The peer of the connection under test, and the segments that it sends.

use super::Input;
use super::bench::MAC;
use crate::seq::SeqNum;
use crate::testutil::attack::headers;
use crate::testutil::{WireSegment, pattern_byte};
use crate::wire::{
    EcnField, EthernetHeader, IpProtocol, Ipv4Header, SackRange, Sum, TcpFlags, TcpHeader, TcpOptions,
    Timestamps,
};
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// The peer's initial sequence number: its stream wraps.
const PEER_ISS: SeqNum = SeqNum::new(0xffff_f000);

/// Iterates over the peer's bytes from a sequence number on; a byte depends on its sequence number alone.
pub(super) fn text(first: SeqNum) -> impl Iterator<Item = u8> {
    (0..=u32::MAX).map(move |at| pattern_byte(1, u64::from((first + at).get())))
}

/// The state of the simulated peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) local: SocketAddr,
    /// Address of the stack.
    pub(super) remote: SocketAddr,
    /// SND.NXT of the data sent in order.
    pub(super) nxt: SeqNum,
    /// Initial sequence number of the stack.
    pub(super) irs: SeqNum,
    /// SND.NXT of the stack, as seen.
    pub(super) seen: SeqNum,
    /// Timestamp value of the stack's last segment.
    pub(super) echo: u32,
    /// Clock of the peer's timestamps, milliseconds.
    pub(super) clock: u32,
    /// ECN field of the packets that it sends.
    pub(super) ecn: EcnField,
    /// Options that all its SYNs carry, besides timestamps.
    offer: TcpOptions,
    /// SYNs that the stack has not acknowledged.
    pub(super) syns: Vec<WireSegment>,
}

impl Peer {
    pub(super) fn new(input: &mut Input<'_>, local: SocketAddr, remote: SocketAddr) -> Self {
        let zero = SeqNum::new(0);
        let bits = input.byte();
        let offer = TcpOptions {
            mss: (bits & 1 == 0).then(|| input.pick(&[1460, 1440, 536, 100, 9000, 0], 1460)),
            window_scale: (bits & 2 == 0).then(|| input.pick(&[0, 2, 7, 14, 255], 0)),
            sack_permitted: bits & 4 == 0,
            ..TcpOptions::NONE
        };
        Self {
            local,
            remote,
            nxt: PEER_ISS,
            irs: zero,
            seen: zero,
            echo: 0,
            clock: 1_000,
            ecn: EcnField::NotEct,
            offer,
            syns: Vec::new(),
        }
    }

    /// Forgets the last connection.
    pub(super) fn begin(&mut self) {
        self.nxt = PEER_ISS;
        self.syns.clear();
    }

    /// Returns the SYN of the peer that a SYN of the stack acknowledges.
    pub(super) fn answered(&mut self, header: &TcpHeader) -> Option<WireSegment> {
        if !header.flags.contains(TcpFlags::SYN | TcpFlags::ACK) {
            return None;
        }
        // A SYN with an acceptable ACK bit was itself an answer.
        let is_asked = |syn: &WireSegment| !syn.header.flags.intersects(TcpFlags::ACK | TcpFlags::RST);
        let at = self.syns.iter().position(|syn| is_asked(syn) && syn.header.seq + 1 == header.ack)?;
        let syn = self.syns.swap_remove(at);
        self.syns.clear();
        Some(syn)
    }

    /// Returns a header in order that acknowledges everything received.
    pub(super) const fn header(&self, flags: TcpFlags, window: u16) -> TcpHeader {
        TcpHeader {
            src_port: self.local.port(),
            dst_port: self.remote.port(),
            seq: self.nxt,
            ack: self.seen,
            flags,
            window,
            urgent: 0,
        }
    }

    /// Returns the options of a segment in order.
    pub(super) fn options(&self) -> TcpOptions {
        let timestamps = (self.echo != 0).then_some(Timestamps { value: self.clock, echo: self.echo });
        TcpOptions { timestamps, ..TcpOptions::NONE }
    }

    /// Returns the frame of a segment whose payload fits its sequence number.
    pub(super) fn frame(&self, header: TcpHeader, options: &TcpOptions, len: usize) -> Vec<u8> {
        let mut segment = vec![0; TcpHeader::len_with(options)];
        header.emit(options, &mut segment);
        // RFC 9293 §3.4: the SYN precedes the bytes of its segment.
        let syn = u32::from(header.flags.contains(TcpFlags::SYN));
        segment.extend(text(header.seq + syn).take(len));
        let (src, dst) = (self.local.ip(), self.remote.ip());
        let sum = Sum::pseudo_header(src, dst, IpProtocol::TCP, segment.len());
        TcpHeader::set_checksum(&mut segment, sum);
        let mut frame = headers(MAC, src, dst, segment.len());
        frame.append(&mut segment);
        set_field(&mut frame, self.ecn);
        frame
    }

    /// Returns a SYN, or a SYN-ACK if the stack `has_called`.
    pub(super) fn open(&self, input: &mut Input<'_>, has_called: bool) -> (TcpHeader, TcpOptions) {
        let bits = input.byte();
        let mut flags = if has_called { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN };
        if bits & 2 != 0 {
            flags |= if has_called { TcpFlags::ECE } else { TcpFlags::ECE | TcpFlags::CWR };
        }
        let timestamps = Timestamps { value: self.clock, echo: self.echo };
        let options = TcpOptions { timestamps: (bits & 1 == 0).then_some(timestamps), ..self.offer };
        let ack = if has_called { self.seen } else { SeqNum::new(0) };
        (TcpHeader { seq: PEER_ISS, ack, ..self.header(flags, input.u16()) }, options)
    }

    /// Returns a segment close to a correct one, or a random one.
    pub(super) fn crafted(&self, input: &mut Input<'_>) -> (TcpHeader, TcpOptions, usize) {
        let flags = TcpFlags::from_bits(input.byte());
        let mut header = self.header(flags, input.u16());
        let mut options = self.options();
        if flags.contains(TcpFlags::SYN) {
            options = TcpOptions { timestamps: options.timestamps, ..self.offer };
        }
        header.seq = self.place(input, self.nxt);
        header.ack = self.place(input, self.seen);
        header.urgent = input.u16();
        let bits = input.byte();
        if bits & 1 != 0 {
            options.timestamps = None;
        }
        if let Some(timestamps) = options.timestamps.as_mut().filter(|_| bits & 2 != 0) {
            timestamps.value = timestamps.value.wrapping_add(u32::from(input.u16())).wrapping_sub(1 << 15);
            timestamps.echo = timestamps.echo.wrapping_sub(u32::from(input.byte()));
        }
        for _ in 0..bits >> 6 {
            let start = self.place(input, self.seen);
            options.sack.push(SackRange { start, end: start + u32::from(input.u16() % 3000) });
        }
        (header, options, usize::from(input.u16() % 1400))
    }

    /// Returns a sequence number at `base`, near it, at the beginning of the stream, or anywhere.
    fn place(&self, input: &mut Input<'_>, base: SeqNum) -> SeqNum {
        match input.byte() % 8 {
            0..=2 => base,
            3 => base + u32::from(input.u16()),
            4 => base - u32::from(input.u16()),
            5 => self.irs + u32::from(input.u16()),
            6 => base + u32::from(input.byte()) - 128,
            _ => SeqNum::new(input.u32()),
        }
    }
}

/// Sets the ECN field of the IP packet in a frame.
fn set_field(frame: &mut [u8], field: EcnField) {
    let Some(packet) = frame.get_mut(EthernetHeader::LEN..) else { return };
    let Some((header, _)) = packet.split_first_chunk_mut::<{ Ipv4Header::LEN }>() else { return };
    if header[0] >> 4 == 6 {
        header[1] |= field.bits() << 4;
        return;
    }
    header[1] |= field.bits();
    [header[10], header[11]] = [0, 0];
    [header[10], header[11]] = Sum::of(header).checksum().to_be_bytes();
}
