//! Writes a capture file in which two endpoints use every feature of the protocols: `capture FILE`.
//! `dataplane/tests/pcap.sh` checks it with tshark. The payloads are the endpoints' output, one segment per packet;
//! this program adds the headers of TCP and IP.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "whatever fails, the run is over")]

use std::net::{IpAddr, Ipv4Addr};

use rdma::service::encode_request;
use rdma::testutil::target::ALL;
use rdma::testutil::{STREAM, Side, initiator_config, pattern, request, slice};
use rdma::wire::mpa::RtrOptions;
use rdma::{AtomicOp, ConnectRequest, CrcPolicy, EndpointConfig, RegionId, Scope, Stag};
use tcp_stack::wire::{
    EtherType, EthernetHeader, IpProtocol, Ipv4Header, Sum, TcpFlags, TcpHeader, TcpOptions,
};
use tcp_stack::{MacAddr, SeqNum};

const SERVER_PORT: u16 = 7400;
const LAB: usize = 16_384;

/// Capture file (pcap, Ethernet), written packet by packet.
struct Capture {
    bytes: Vec<u8>,
    packets: u32,
    /// Number of TCP connections opened.
    dialogues: u16,
}

impl Capture {
    fn new() -> Self {
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        Self { bytes, packets: 0, dialogues: 0 }
    }

    fn packet(&mut self, frame: &[u8]) {
        // One microsecond apart.
        let length = u32::try_from(frame.len()).unwrap();
        for word in [1_700_000_000 + self.packets / 1_000_000, self.packets % 1_000_000, length, length] {
            self.bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.bytes.extend_from_slice(frame);
        self.packets += 1;
    }
}

/// A TCP connection in the capture, opened by host 0 to host 1.
struct Dialogue<'a> {
    capture: &'a mut Capture,
    port: u16,
    next: [u32; 2],
}

impl<'a> Dialogue<'a> {
    fn open(capture: &'a mut Capture) -> Self {
        capture.dialogues += 1;
        let port = 50_000 + capture.dialogues;
        let mut dialogue = Self { capture, port, next: [1000, 2000] };
        dialogue.segment(0, TcpFlags::SYN, &[]);
        dialogue.segment(1, TcpFlags::SYN.union(TcpFlags::ACK), &[]);
        dialogue.segment(0, TcpFlags::ACK, &[]);
        dialogue
    }

    fn segment(&mut self, from: usize, flags: TcpFlags, payload: &[u8]) {
        let address = |host| Ipv4Addr::new(10, 77, 0, if host == 0 { 1 } else { 2 });
        let mac = |host| MacAddr([2, 0, 0, 0, 0, if host == 0 { 1 } else { 2 }]);
        let to = 1 - from;
        let (src_port, dst_port) =
            if from == 0 { (self.port, SERVER_PORT) } else { (SERVER_PORT, self.port) };
        let first = flags.contains(TcpFlags::SYN) && from == 0;
        let header = TcpHeader {
            src_port,
            dst_port,
            seq: SeqNum::new(self.next[from]),
            ack: SeqNum::new(if first { 0 } else { self.next[to] }),
            flags,
            window: 65_535,
            urgent: 0,
        };
        let mut tcp = vec![0; TcpHeader::LEN];
        assert!(header.emit(&TcpOptions::default(), &mut tcp));
        tcp.extend_from_slice(payload);
        let (src, dst) = (address(from), address(to));
        let pseudo = Sum::pseudo_header(IpAddr::V4(src), IpAddr::V4(dst), IpProtocol::TCP, tcp.len());
        assert!(TcpHeader::set_checksum(&mut tcp, pseudo));
        let ip = Ipv4Header::atomic(src, dst, IpProtocol::TCP);
        let mut packet = [0; Ipv4Header::LEN];
        ip.emit(tcp.len(), true, &mut packet);
        let ethernet = EthernetHeader { dst: mac(to), src: mac(from), tci: None, ethertype: EtherType::IPV4 };
        let mut frame = vec![0; EthernetHeader::LEN];
        assert!(ethernet.emit(&mut frame));
        frame.extend_from_slice(&packet);
        frame.extend_from_slice(&tcp);
        self.capture.packet(&frame);
        let occupied = payload.len() + usize::from(flags.intersects(TcpFlags::SYN.union(TcpFlags::FIN)));
        self.next[from] = self.next[from].wrapping_add(u32::try_from(occupied).unwrap());
    }

    /// Carries bytes both ways until neither side has any.
    fn run(&mut self, sides: &mut [Side; 2]) {
        loop {
            let mut moved = false;
            for from in 0..2 {
                sides[from].transmit();
                while let Some(bytes) = sides[from].wire.segments.pop_front() {
                    self.segment(from, TcpFlags::ACK.union(TcpFlags::PSH), &bytes);
                    sides[1 - from].deliver(&bytes);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn close(mut self) {
        for host in 0..2 {
            self.segment(host, TcpFlags::FIN.union(TcpFlags::ACK), &[]);
        }
        self.segment(0, TcpFlags::ACK, &[]);
    }
}

/// Two connected sides, and the objects that a program on side 0 uses.
struct Stage<'a> {
    dialogue: Dialogue<'a>,
    sides: [Side; 2],
    /// Region of side 0.
    local: RegionId,
    /// STag of side 1, for side 0.
    stag: Stag,
    /// Region of side 1 for received Sends.
    inbox: RegionId,
}

impl<'a> Stage<'a> {
    fn new(capture: &'a mut Capture, config: EndpointConfig, asked: ConnectRequest<'_>) -> Self {
        let private_data = encode_request("lab", ALL, b"").unwrap();
        let asked = ConnectRequest { private_data: &private_data, ..asked };
        let mut sides = [Side::initiator(config, &asked), Side::responder(config)];
        sides[1].add_region("lab", pattern(LAB, 1), ALL);
        let local = sides[0].memory.add(pattern(LAB, 2)).unwrap();
        let inbox = sides[1].memory.add(vec![0; LAB]).unwrap();
        let mut dialogue = Dialogue::open(capture);
        dialogue.run(&mut sides);
        let stag = sides[0].grant().stag;
        Self { dialogue, sides, local, stag, inbox }
    }

    fn run(&mut self) {
        self.dialogue.run(&mut self.sides);
    }

    /// Posts buffers of a kilobyte each at side 1.
    fn buffers(&mut self, count: u64) {
        for at in 0..count {
            self.sides[1].endpoint.post_recv(at, slice(self.inbox, at * 1024, 1024)).unwrap();
        }
    }

    /// Posts an RDMA Write and a Read of several segments, and the four Sends, from the shortest to more than one
    /// segment.
    fn work(&mut self) {
        let (local, stag) = (self.local, self.stag);
        self.buffers(8);
        let lab = self.inbox;
        let given = |side: &mut Side| {
            let own = Scope::Stream(STREAM);
            side.stags.grant(lab, 64, rdma::Access::REMOTE_INVALIDATE, own).unwrap()
        };
        let stags = [given(&mut self.sides[1]), given(&mut self.sides[1])];
        let endpoint = &mut self.sides[0].endpoint;
        for (wr_id, len) in [(0, 1), (1, 5), (2, 1428), (3, 1429), (4, 9000)] {
            endpoint.post_write(wr_id, slice(local, 0, len), stag, 3).unwrap();
            endpoint.post_read(wr_id, slice(local, 0, len), stag, 7).unwrap();
        }
        for (wr_id, len, solicited, invalidate) in [
            (10, 0, false, None),
            (11, 33, true, None),
            (12, 1000, false, Some(stags[0])),
            (13, 7, true, Some(stags[1])),
        ] {
            endpoint.post_send(wr_id, slice(local, 0, len), solicited, invalidate).unwrap();
        }
        self.run();
    }

    fn close(self) {
        self.dialogue.close();
    }
}

/// Captures every kind of connection that MPA defines.
fn connections(capture: &mut Capture) {
    let defaults = initiator_config();
    let mut marked = defaults;
    marked.mpa.markers = true;
    let mut unchecked = defaults;
    unchecked.mpa.crc = CrcPolicy::IfPeerAsks;
    let rtr = |write, read| Some(RtrOptions { send: false, write, read });
    for (config, revision, rtr) in [
        (defaults, 1, None),
        (defaults, 2, None),
        (marked, 1, None),
        (marked, 2, None),
        (unchecked, 1, None),
        (unchecked, 2, None),
        (defaults, 2, rtr(true, false)),
        (defaults, 2, rtr(false, true)),
    ] {
        let mut stage = Stage::new(capture, config, ConnectRequest { revision, rtr, ..request(b"") });
        stage.work();
        stage.close();
    }
}

/// Captures the operations of RFC 7306.
fn extensions(capture: &mut Capture) {
    let mut stage = Stage::new(capture, initiator_config(), request(b""));
    stage.buffers(2);
    let (local, stag) = (stage.local, stage.stag);
    let endpoint = &mut stage.sides[0].endpoint;
    let swap =
        |compare_mask| AtomicOp::CompareSwap { compare: 1, compare_mask, swap: 2, swap_mask: u64::MAX };
    for (wr_id, op) in (0..).zip([AtomicOp::FetchAdd { add: 7, mask: 0 }, swap(u64::MAX), swap(0)]) {
        endpoint.post_atomic(wr_id, slice(local, 0, 8), stag, 8, op).unwrap();
    }
    endpoint.post_immediate(3, *b"immedia1", false).unwrap();
    endpoint.post_immediate(4, *b"immedia2", true).unwrap();
    stage.run();
    stage.close();
}

/// Captures a Terminate of each layer that can send one without damage on the wire.
fn terminates(capture: &mut Capture) {
    let end = LAB as u64;
    for case in 0..4 {
        let mut stage = Stage::new(capture, initiator_config(), request(b""));
        let (local, stag) = (stage.local, stage.stag);
        let endpoint = &mut stage.sides[0].endpoint;
        match case {
            0 => endpoint.post_write(0, slice(local, 0, 1), stag, end),
            1 => endpoint.post_read(0, slice(local, 0, 1), stag, end),
            // The peer has posted no buffer.
            2 => endpoint.post_send(0, slice(local, 0, 1), false, None),
            // The peer's STag may not be invalidated.
            _ => {
                stage.buffers(1);
                stage.sides[0].endpoint.post_send(0, slice(local, 0, 1), false, Some(stag))
            }
        }
        .unwrap();
        stage.run();
        stage.close();
    }
}

/// The initiator refuses the Reply: a responder with an IRD of 0 accepts none of its RTR messages (RFC 6581 §9.1).
fn no_common_form(capture: &mut Capture) {
    let rtr = Some(RtrOptions { send: false, write: false, read: true });
    let mut no_reads = initiator_config();
    no_reads.mpa.ird_max = 0;
    let private_data = encode_request("lab", ALL, b"").unwrap();
    let asked = ConnectRequest { rtr, ..request(&private_data) };
    let mut sides = [Side::initiator(initiator_config(), &asked), Side::responder(no_reads)];
    sides[1].add_region("lab", pattern(LAB, 1), ALL);
    let mut dialogue = Dialogue::open(capture);
    dialogue.run(&mut sides);
    dialogue.close();
}

/// The responder rejects the connection.
fn rejects(capture: &mut Capture) {
    for revision in [1, 2] {
        let private_data = encode_request("nowhere", ALL, b"").unwrap();
        let asked = ConnectRequest { revision, ..request(&private_data) };
        let mut sides = [Side::initiator(initiator_config(), &asked), Side::responder(initiator_config())];
        let mut dialogue = Dialogue::open(capture);
        dialogue.run(&mut sides);
        dialogue.close();
    }
}

fn main() {
    let file = std::env::args_os().nth(1).expect("usage: capture FILE");
    let mut capture = Capture::new();
    connections(&mut capture);
    extensions(&mut capture);
    terminates(&mut capture);
    no_common_form(&mut capture);
    rejects(&mut capture);
    std::fs::write(file, capture.bytes).unwrap();
}
