//! Cases that a test from outside cannot reach in reasonable time.

use core::time::Duration;

use super::*;
use crate::CloseHow;
use crate::memory::{Access, Fetch, Memory, Placement, RegionId, Scope, VecMemory, Word};
use crate::mpa::Rtr;
use crate::qp::WcStatus;
use crate::wire::atomic::AtomicOp;
use crate::wire::{MessageOffset, Msn};

const NOW: Duration = Duration::ZERO;

#[derive(Default)]
struct Wire(Vec<u8>);

impl Sink for Wire {
    fn fpdu_max(&self) -> usize {
        1448
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let start = self.0.len();
        self.0.resize(start + len, 0);
        build(&mut self.0[start..]);
        true
    }
}

struct Side {
    endpoint: Endpoint<Vec<u8>>,
    stags: StagTable,
    memory: VecMemory,
    stats: RdmaStats,
}

impl Side {
    /// Returns an endpoint in full operation.
    fn established(initiator: bool, rtr: Option<Rtr>) -> Self {
        let config = EndpointConfig { send_queue: 8, receive_queue: 8, ..EndpointConfig::default() };
        let negotiation = Negotiation::responder(config.mpa, NOW);
        let mut endpoint = Endpoint::new(config, StreamId(1), Some(negotiation), initiator);
        let mut stats = RdmaStats::default();
        let terms = Terms {
            revision: 2,
            crc: true,
            markers_in: false,
            markers_out: false,
            ird: 4,
            ord: 4,
            rtr,
            rtr_in: None,
            peer: None,
        };
        endpoint.establish(terms, Box::default(), &mut stats);
        let mut memory = VecMemory::new();
        memory.add((0..64).collect()).unwrap();
        Self { endpoint, stags: StagTable::new(4, [3; 32]), memory, stats }
    }

    fn send(&mut self) -> Vec<u8> {
        let mut wire = Wire::default();
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.poll_transmit(NOW, &mut env, &mut wire);
        wire.0
    }

    fn deliver(&mut self, bytes: Vec<u8>) {
        let offset = self.endpoint.deframer.as_ref().unwrap().end();
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.receive(NOW, offset, bytes, &mut env);
    }
}

fn local(offset: u64, len: u32) -> LocalSlice {
    LocalSlice { region: RegionId(0), offset, len }
}

#[test]
fn message_sequences_wrap_to_zero() {
    let mut a = Side::established(true, None);
    let mut b = Side::established(false, None);
    let stag = b.stags.grant(RegionId(0), 64, Access::REMOTE_READ, Scope::Stream(StreamId(1))).unwrap();
    let last = Msn(u32::MAX);
    (a.endpoint.qp.out_reads, b.endpoint.qp.in_reads) = (last, last);
    a.endpoint.qp.out_sends = last;
    b.endpoint.qp.in_sends.msn = last;
    for wr_id in 0..3 {
        b.endpoint.post_recv(wr_id, local(0, 8)).unwrap();
        a.endpoint.post_read(wr_id, local(32, 8), stag, wr_id).unwrap();
        a.endpoint.post_send(wr_id, local(wr_id, 4), false, None).unwrap();
    }
    b.deliver(a.send());
    a.deliver(b.send());
    assert_eq!((a.endpoint.qp.out_reads, b.endpoint.qp.in_reads), (Msn(2), Msn(2)));
    assert_eq!((a.endpoint.qp.out_sends, b.endpoint.qp.in_sends.msn), (Msn(2), Msn(2)));
    let events = core::iter::from_fn(|| a.endpoint.poll_event());
    let successes =
        events.filter(|event| matches!(event, Event::Completion { status: WcStatus::Success, .. }));
    assert_eq!(successes.count(), 6);
    assert_eq!(b.endpoint.info().state, StreamState::ReadyToSend);
}

#[test]
fn the_offset_of_a_message_grows_with_it() {
    let mut b = Side::established(false, None);
    b.endpoint.post_recv(1, local(0, 8)).unwrap();
    let mut a = Side::established(true, None);
    a.endpoint.post_send(1, local(40, 8), true, None).unwrap();
    a.endpoint.qp.sq.next().unwrap().progress = 5;
    b.endpoint.qp.in_sends.offset = MessageOffset(5);
    b.deliver(a.send());
    assert_eq!(b.memory.bytes(RegionId(0)).unwrap()[5..8], [45, 46, 47]);
    b.endpoint.poll_event();
    assert!(matches!(b.endpoint.poll_event(), Some(Event::Received { bytes: 8, solicited: true, .. })));
}

#[test]
fn a_send_as_ready_to_receive_is_the_first_send() {
    let mut a = Side::established(true, Some(Rtr::Send));
    let mut b = Side::established(false, None);
    b.endpoint.post_recv(7, local(0, 8)).unwrap();
    b.deliver(a.send());
    b.endpoint.poll_event();
    assert!(matches!(b.endpoint.poll_event(), Some(Event::Received { wr_id: 7, bytes: 0, .. })));
    assert_eq!(a.endpoint.qp.out_sends, Msn(2));
}

#[test]
fn the_queues_of_an_endpoint_do_not_grow() {
    let mut a = Side::established(true, None);
    let mut b = Side::established(false, None);
    let stag = b.stags.grant(RegionId(0), 64, Access::REMOTE_READ, Scope::Stream(StreamId(1))).unwrap();
    let rooms = |side: &Side| (side.endpoint.qp.events.capacity(), side.endpoint.qp.irq.capacity());
    let before = (rooms(&a), rooms(&b));
    for round in 0..if cfg!(miri) { 2 } else { 100 } {
        for wr_id in 0..8 {
            if wr_id % 2 == 1 {
                b.endpoint.post_recv(wr_id, local(0, 8)).unwrap();
            }
            if wr_id % 2 == 0 {
                a.endpoint.post_read(wr_id, local(32, 8), stag, wr_id).unwrap();
            } else {
                a.endpoint.post_send(wr_id, local(wr_id, 4), false, None).unwrap();
            }
        }
        // Reads wait for each other, and so does work posted after them.
        for _ in 0..4 {
            b.deliver(a.send());
            a.deliver(b.send());
        }
        let count = |side: &mut Side| core::iter::from_fn(|| side.endpoint.poll_event()).count();
        let extra = usize::from(round == 0);
        assert_eq!((count(&mut a), count(&mut b)), (8 + extra, 4 + extra));
    }
    assert_eq!((rooms(&a), rooms(&b)), before);
}

#[test]
fn a_stream_that_has_ended_holds_no_chunks() {
    let mut b = Side::established(false, None);
    let mut a = Side::established(true, None);
    a.endpoint.post_write(1, local(0, 8), Stag(7), 0).unwrap();
    a.endpoint.post_write(2, local(0, 8), Stag(7), 0).unwrap();
    let mut bytes = a.send();
    bytes.pop();
    b.deliver(bytes);
    assert_eq!(b.endpoint.info().state, StreamState::Terminating);
    assert!(b.endpoint.deframer.is_none());
}

/// Memory that another process takes away between the last check and the copy.
struct Gone(VecMemory);

impl Memory for Gone {
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool {
        self.0.holds(region, offset, len)
    }

    fn place(&mut self, _: Placement, _: &[u8]) -> bool {
        false
    }

    fn fetch(&self, _: Fetch, out: &mut [u8]) -> bool {
        out.fill(0xEE);
        false
    }

    fn atomic(&mut self, _: Word, _: AtomicOp) -> Option<u64> {
        None
    }
}

impl Side {
    fn gone() -> Gone {
        let mut memory = VecMemory::new();
        memory.add(vec![0; 64]).unwrap();
        Gone(memory)
    }

    fn deliver_into(&mut self, bytes: Vec<u8>, memory: &mut Gone) {
        let offset = self.endpoint.deframer.as_ref().unwrap().end();
        let mut env = Env { stags: &mut self.stags, memory, stats: &mut self.stats };
        self.endpoint.receive(NOW, offset, bytes, &mut env);
    }

    fn send_from(&mut self, memory: &mut Gone) -> Vec<u8> {
        let mut wire = Wire::default();
        let mut env = Env { stags: &mut self.stags, memory, stats: &mut self.stats };
        self.endpoint.poll_transmit(NOW, &mut env, &mut wire);
        wire.0
    }
}

#[test]
fn a_message_for_memory_that_has_gone_ends_the_stream() {
    let access = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    for message in 0..4 {
        // Only the initiator may send the first FPDU: in the third case, the request for an RDMA Read.
        let (mut a, mut b) = (Side::established(message != 2, None), Side::established(message == 2, None));
        let stag = b.stags.grant(RegionId(0), 64, access, Scope::Stream(StreamId(1))).unwrap();
        let granted =
            a.stags.grant(RegionId(0), 64, Access::REMOTE_READ, Scope::Stream(StreamId(1))).unwrap();
        match message {
            0 => a.endpoint.post_write(1, local(0, 8), stag, 0).unwrap(),
            1 => {
                b.endpoint.post_recv(1, local(0, 8)).unwrap();
                a.endpoint.post_send(1, local(0, 8), false, None).unwrap();
            }
            2 => {
                b.endpoint.post_read(1, local(0, 8), granted, 0).unwrap();
                a.deliver(b.send());
            }
            _ => {
                let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
                a.endpoint.post_atomic(1, local(0, 8), stag, 0, op).unwrap();
            }
        }
        b.deliver_into(a.send(), &mut Side::gone());
        assert_eq!(b.endpoint.info().state, StreamState::Terminating, "message {message}");
    }
}

/// No byte of the message is sent: the peer sees that the stream ends.
#[test]
fn a_message_from_memory_that_has_gone_is_not_sent() {
    for message in 0..3 {
        // Only the initiator may send the first FPDU: in the third case, the request for an RDMA Read.
        let (mut a, mut b) = (Side::established(message != 2, None), Side::established(message == 2, None));
        let stag = b.stags.grant(RegionId(0), 64, Access::REMOTE_WRITE, Scope::Stream(StreamId(1))).unwrap();
        let granted =
            a.stags.grant(RegionId(0), 64, Access::REMOTE_READ, Scope::Stream(StreamId(1))).unwrap();
        match message {
            0 => a.endpoint.post_write(1, local(0, 64), stag, 0).unwrap(),
            1 => {
                b.endpoint.post_recv(1, local(0, 64)).unwrap();
                a.endpoint.post_send(1, local(0, 64), false, None).unwrap();
            }
            _ => {
                b.endpoint.post_read(1, local(0, 64), granted, 0).unwrap();
                a.deliver(b.send());
            }
        }
        let sent = a.send_from(&mut Side::gone());
        assert!(sent.iter().all(|byte| *byte == 0), "message {message}: {sent:02x?}");
        assert_eq!(a.endpoint.info().state, StreamState::Closed, "message {message}");
        let closed = |event| matches!(event, Event::Close { how: CloseHow::Reset });
        assert!(core::iter::from_fn(|| a.endpoint.poll_event()).any(closed));
        b.deliver(sent);
        assert_eq!(b.memory.bytes(RegionId(0)), a.memory.bytes(RegionId(0)), "nothing was placed");
        let received = core::iter::from_fn(|| b.endpoint.poll_event());
        let success = |event: Event| {
            matches!(event, Event::Received { .. } | Event::Completion { status: WcStatus::Success, .. })
        };
        assert!(!{ received }.any(success), "message {message}");
    }
}
