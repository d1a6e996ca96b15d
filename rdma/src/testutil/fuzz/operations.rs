//! Sequences of posts, segments of the peer, time and ends, against the invariants of a stream.
//!
//! Accessible memory lies between guard bytes that must not change; each work request completes once, in the order of
//! posting; nothing happens after the last event.

use super::Input;
use super::peer::Peer;
use crate::service::encode_request;
use crate::testutil::bytes::{REPLY, REQUEST, fpdu, mpa};
use crate::testutil::{STREAM, Side, Wire, request, slice};
use crate::wire::mpa::RtrOptions;
use crate::{
    Access, AtomicOp, ConnectRequest, CrcPolicy, EndpointConfig, Event, GrantedRange, LocalSlice, PostError,
    RegionId, Scope, Stag, StreamState, WcOpcode,
};
use core::time::Duration;
use std::collections::VecDeque;

/// Maximum number of operations in one run.
const OPERATIONS_MAX: usize = 300;
/// Bytes of a window, of the local memory and of a posted buffer, and of the guards around each.
const WINDOW: usize = 256;
const LOCAL: usize = 512;
const BUFFER: usize = 32;
const GUARD: usize = 64;
const BUFFERS: usize = 8;
const GUARD_BYTE: u8 = 0xa5;

struct Run {
    side: Side,
    peer: Peer,
    crc: bool,
    /// Guard, writable window, guard, readable window, guard.
    lab: RegionId,
    /// Guard, local memory, guard.
    local: RegionId,
    /// Guard and buffer, repeated.
    inbox: RegionId,
    next_id: u64,
    /// Unfinished work requests in the order of posting.
    sends: VecDeque<(u64, WcOpcode)>,
    receives: VecDeque<u64>,
    terminated: bool,
    closed: bool,
}

/// The first bytes select role and configuration; each operation is a byte and its parameters.
pub fn operations(data: &[u8]) {
    let mut input = Input(data);
    let mut run = Run::new(&mut input);
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        run.operate(&mut input);
        run.check();
    }
    run.end();
}

impl Run {
    fn new(input: &mut Input<'_>) -> Self {
        let bits = input.byte();
        let crc = bits & 1 == 0;
        let mut config = EndpointConfig { send_queue: 6, receive_queue: 4, ..EndpointConfig::default() };
        config.mpa.crc = if crc { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks };
        config.poke_after = (bits & 8 != 0).then_some(Duration::from_millis(200));
        let rtr = RtrOptions { send: false, write: true, read: bits & 16 != 0 };
        let initiator = bits & 2 == 0;
        let mut side = if initiator {
            let rtr = (bits & 4 != 0).then_some(rtr);
            Side::initiator(config, &ConnectRequest { rtr, ird: 3, ord: 3, ..request(b"") })
        } else {
            Side::responder(config)
        };
        let guarded = |parts: &[usize]| {
            let around = |len: &usize| [vec![GUARD_BYTE; GUARD], vec![0; *len]].concat();
            [parts.iter().flat_map(around).collect::<Vec<u8>>(), vec![GUARD_BYTE; GUARD]].concat()
        };
        let access = Access::REMOTE_READ;
        let lab = side.add_region("lab", guarded(&[WINDOW, WINDOW]), access);
        let local = side.memory.add(guarded(&[LOCAL])).unwrap();
        let inbox = side.memory.add(guarded(&[BUFFER; BUFFERS])).unwrap();
        let peer = Peer::new(grants(&mut side, lab));
        let mut run = Self {
            side,
            peer,
            crc,
            lab,
            local,
            inbox,
            next_id: 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            terminated: false,
            closed: false,
        };
        run.set_up(initiator, bits);
        for _ in 0..bits >> 5 {
            run.post_recv(&mut Input(&[0, 32]));
        }
        run
    }

    fn set_up(&mut self, initiator: bool, bits: u8) {
        let mut frame = if initiator {
            self.side.transmit();
            let rtr = if bits & 4 != 0 { 0x8000 } else { 0 };
            mpa(REPLY, 3 | rtr, 3 | rtr >> u32::from(bits & 16 != 0), b"")
        } else {
            mpa(REQUEST, 3, 3, &encode_request("lab", Access::NONE, b"").unwrap())
        };
        if !self.crc {
            frame[16] &= !0x40;
        }
        self.side.deliver(&frame);
        if !initiator {
            self.side.transmit();
        }
        self.side.wire = Wire::new(self.side.wire.mss, usize::MAX);
        assert_eq!(self.side.endpoint.info().state, StreamState::ReadyToSend);
        assert_eq!(self.side.endpoint.info().crc, self.crc);
        self.check();
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.byte() % 20 {
            0..=2 => self.post(input),
            4..=7 => self.transmit(input),
            8 | 9 => {
                let segment = self.peer.write(input, WINDOW as u64);
                self.deliver(input, segment);
            }
            10 | 11 => {
                let segment = self.peer.send(input);
                self.deliver(input, segment);
            }
            12 | 13 => {
                let segment = self.peer.request(input, WINDOW as u64);
                self.deliver(input, segment);
            }
            14 | 15 => {
                let segment = self.peer.response(input);
                self.deliver(input, segment);
            }
            16 => {
                let by = Duration::from_millis(input.pick(&[0, 1, 199, 200, 1_000, 5_000]));
                self.side.pass_time(by);
            }
            17 if input.rarely() => {
                let stag = Stag(input.pick(&self.peer.stags));
                self.side.stags.revoke(stag);
            }
            18 if input.rarely() => {
                let bytes = usize::from(input.byte());
                let bytes = input.take(bytes).to_vec();
                self.side.deliver(&bytes);
            }
            3 | 17 | 18 => self.post_recv(input),
            _ => self.finish(input),
        }
    }

    /// Performs an operation that ends a stream, now or later.
    fn finish(&mut self, input: &mut Input<'_>) {
        let Side { endpoint, now, stats, .. } = &mut self.side;
        match input.byte() % 32 {
            0 => endpoint.peer_closed(*now, stats),
            1 => endpoint.disconnect(*now),
            2 => endpoint.transport_lost(),
            3 => endpoint.fail_local(*now, stats),
            4 => endpoint.fail_global(*now, stats),
            5 => {
                let segment = Peer::terminate(input);
                self.deliver(input, segment);
            }
            _ => {}
        }
        self.side.collect();
    }

    /// Posts a send request of any operation.
    fn post(&mut self, input: &mut Input<'_>) {
        let offset = input.below(LOCAL);
        let len = usize::from(input.u16() % 400).min(LOCAL - offset);
        let part = slice(self.local, (GUARD + offset) as u64, len as u32);
        let (remote, to, wr_id) = (Stag(input.u32()), input.u64(), self.next_id);
        let solicited = input.sometimes();
        let endpoint = &mut self.side.endpoint;
        let (posted, op) = match input.byte() % 5 {
            0 => (endpoint.post_write(wr_id, part, remote, to), WcOpcode::RdmaWrite),
            1 => (endpoint.post_read(wr_id, part, remote, to), WcOpcode::RdmaRead),
            2 => {
                let invalidate = input.sometimes().then_some(remote);
                (endpoint.post_send(wr_id, part, solicited, invalidate), WcOpcode::Send)
            }
            3 => {
                let part = LocalSlice { offset: part.offset.min((GUARD + LOCAL - 8) as u64), len: 8, ..part };
                let op = AtomicOp::FetchAdd { add: to, mask: 0 };
                (endpoint.post_atomic(wr_id, part, remote, to, op), WcOpcode::FetchAdd)
            }
            _ => (endpoint.post_immediate(wr_id, to.to_be_bytes(), solicited), WcOpcode::Send),
        };
        match posted {
            Ok(()) => {
                self.sends.push_back((wr_id, op));
                self.next_id += 1;
            }
            Err(PostError::QueueFull) => assert_eq!(self.sends.len(), 6, "full, and there is room"),
            Err(PostError::State) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn post_recv(&mut self, input: &mut Input<'_>) {
        let buffer = usize::from(input.byte()) % BUFFERS;
        let offset = GUARD + buffer * (GUARD + BUFFER);
        let len = usize::from(input.byte()) % (BUFFER + 1);
        let part = slice(self.inbox, offset as u64, len as u32);
        match self.side.endpoint.post_recv(self.next_id, part) {
            Ok(()) => {
                self.receives.push_back(self.next_id);
                self.next_id += 1;
            }
            Err(PostError::QueueFull) => assert_eq!(self.receives.len(), 4, "full, and there is room"),
            Err(error) => assert_eq!(error, PostError::State),
        }
    }

    /// Lets the side send into a limited amount of room.
    fn transmit(&mut self, input: &mut Input<'_>) {
        self.side.wire.mss = input.pick(&[1448, 136, 8948]);
        self.side.wire.limit = input.pick(&[usize::MAX, 0, 100, 1500]);
        let progress = self.side.transmit();
        assert_eq!(progress.pending, self.side.endpoint.has_output());
        self.see();
    }

    /// Checks that the bytes sent are FPDUs, and that nothing follows a Terminate.
    fn see(&mut self) {
        for segment in core::mem::take(&mut self.side.wire.segments) {
            let [l0, l1, rest @ ..] = &segment[..] else { panic!("an FPDU of {} bytes", segment.len()) };
            let len = usize::from(u16::from_be_bytes([*l0, *l1]));
            let ulpdu = &rest[..len];
            let mut expected = fpdu(ulpdu);
            if !self.crc {
                let trailer = expected.len() - 4;
                expected[trailer..].fill(0);
            }
            assert_eq!(segment, expected);
            assert!(!self.terminated, "a message after a Terminate");
            self.terminated = ulpdu[1] == 0x47;
            self.peer.see(ulpdu);
        }
    }

    /// Delivers a segment of the peer as one FPDU, possibly with changed bytes, possibly split.
    fn deliver(&mut self, input: &mut Input<'_>, mut segment: Vec<u8>) {
        if input.rarely() {
            for _ in 0..=input.byte() % 2 {
                let at = input.below(segment.len().min(60));
                segment[at] = input.byte();
            }
        }
        let mut bytes = fpdu(&segment);
        if input.byte() == 255 {
            let at = input.below(bytes.len());
            bytes[at] ^= 1;
        }
        let at = if input.sometimes() { input.below(bytes.len()) } else { 0 };
        let (first, rest) = bytes.split_at(at);
        self.side.deliver(first);
        self.side.deliver(rest);
    }

    fn check(&mut self) {
        for event in self.side.drain_events() {
            self.event(&event);
        }
        let info = self.side.endpoint.info();
        // An IRD of 3 is rounded up to a power of two.
        assert!(info.reads_owed <= 4 && info.work_pending <= 6 + 1, "{info:?}");
        assert_eq!(self.side.memory.faults(), 0);
        for region in [self.lab, self.local, self.inbox] {
            assert_guards(self.side.bytes(region), if region == self.inbox { BUFFER } else { 0 });
        }
        let readable = &self.side.bytes(self.lab)[2 * GUARD + WINDOW..][..WINDOW];
        assert!(readable.iter().all(|byte| *byte == 0), "what may only be read was written");
    }

    fn event(&mut self, event: &Event) {
        assert!(!self.closed, "{event:?} after the last event");
        match event {
            Event::Completion { wr_id, op: WcOpcode::Recv, .. }
            | Event::Received { wr_id, .. }
            | Event::Immediate { wr_id, .. } => {
                assert_eq!(self.receives.pop_front(), Some(*wr_id), "{event:?}");
            }
            Event::Completion { wr_id, op, .. } => {
                assert_eq!(self.sends.pop_front(), Some((*wr_id, *op)), "{event:?}");
            }
            Event::Close { .. } => self.closed = true,
            _ => {}
        }
    }

    fn end(mut self) {
        self.side.endpoint.transport_lost();
        self.side.collect();
        self.check();
        assert!(self.closed && self.sends.is_empty() && self.receives.is_empty(), "work that never ended");
        self.side.wire = Wire::new(1448, usize::MAX);
        assert_eq!(self.side.transmit().frames, 0);
        assert!(!self.side.endpoint.has_output());
        assert_eq!(self.side.endpoint.next_deadline(), None);
        self.side.stags.revoke_stream(STREAM);
        assert!(self.side.stags.is_empty());
    }
}

/// Grants STags on this stream: one to write, one to read, one for atomic operations, one to invalidate, and a revoked
/// one.
fn grants(side: &mut Side, lab: RegionId) -> Vec<u32> {
    let range = |offset: usize| GrantedRange { region: lab, offset: offset as u64, bytes: 256, base_to: 0 };
    let (written, read) = (range(GUARD), range(2 * GUARD + WINDOW));
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let grants = [
        (written, Access::REMOTE_WRITE),
        (read, Access::REMOTE_READ),
        (written, all),
        (read, Access::REMOTE_INVALIDATE),
        (written, Access::NONE),
    ];
    let mut grant = |(range, access)| side.stags.grant_range(range, access, Scope::Stream(STREAM)).unwrap().0;
    let mut stags: Vec<u32> = grants.into_iter().map(&mut grant).collect();
    let dead = grant((written, all));
    side.stags.revoke(Stag(dead));
    stags.push(dead);
    stags
}

/// Checks the guards around parts of `part` bytes; 0 stands for windows and local memory.
fn assert_guards(bytes: &[u8], part: usize) {
    let part = match (part, bytes.len()) {
        (0, len) if len == LOCAL + 2 * GUARD => LOCAL,
        (0, _) => WINDOW,
        (part, _) => part,
    };
    for guard in bytes.chunks(GUARD + part).map(|chunk| &chunk[..GUARD]) {
        assert!(guard.iter().all(|byte| *byte == GUARD_BYTE), "an byte outside was written");
    }
}
