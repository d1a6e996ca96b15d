//! Memory whose copies are deferred: whatever the order of bytes, copies and output, nothing completes before its bytes
//! are in memory, messages keep their order, and nothing is lost.

use proptest::prelude::*;
use rdma::testutil::*;
use rdma::{Access, AtomicOp, EndpointConfig, Event, RegionId, Stag, WcOpcode, WcStatus, service};

const ALL: Access = Access::REGION;
/// Bytes of each region.
const BYTES: usize = 40_000;
/// Bytes of a receive buffer.
const BUFFER: usize = 5000;

/// Two connected sides: the responder's region `lab`, granted to the initiator, and a region of the initiator.
struct Pair {
    sides: [Side; 2],
    lab: RegionId,
    own: RegionId,
    stag: Stag,
}

fn pair(markers: bool, deferred: [bool; 2]) -> Pair {
    let mut config = EndpointConfig { last_out_of_order: true, ..initiator_config() };
    config.mpa.markers = markers;
    let private_data = service::encode_request("lab", ALL, b"").unwrap();
    let mut a = Side::initiator(config, &request(&private_data));
    let mut b = Side::responder(config);
    let lab = b.add_region("lab", pattern(BYTES, 7), ALL);
    run(&mut a, &mut b, &mut segments(1448));
    let stag = a.grant().stag;
    let own = a.memory.add(pattern(BYTES, 9)).unwrap();
    // The first messages of both sides.
    a.endpoint.post_write(0, slice(own, 0, 0), stag, 0).unwrap();
    run(&mut a, &mut b, &mut segments(1448));
    if deferred[0] {
        a.memory.defer(own);
    }
    if deferred[1] {
        b.memory.defer(lab);
    }
    a.drain_events();
    b.drain_events();
    Pair { sides: [a, b], lab, own, stag }
}

impl Pair {
    /// Moves up to `max` bytes that side `from` has sent to the other.
    fn carry(&mut self, from: usize, max: usize) -> bool {
        let bytes = self.sides[from].wire.take();
        let (now, later) = bytes.split_at(bytes.len().min(max));
        if !now.is_empty() {
            self.sides[1 - from].deliver(now);
        }
        if !later.is_empty() {
            self.sides[from].wire.segments.push_front(later.to_vec());
        }
        !now.is_empty()
    }

    fn rests(&self) -> bool {
        self.sides.iter().all(|side| {
            side.wire.queued() == 0
                && side.memory.deferred() == 0
                && side.held.is_empty()
                && !side.endpoint.has_output()
                && !side.endpoint.is_deferred()
        })
    }

    /// Runs until both sides rest, by actions that `next` chooses. Calls `check` after each.
    fn run(&mut self, mut next: impl FnMut(u32) -> u32, mut check: impl FnMut(&mut Self)) {
        for _ in 0..2_000_000 {
            let side = (next(2) & 1) as usize;
            match next(4) {
                0 => drop(self.sides[side].transmit()),
                1 => {
                    let max = 1 + next(4000) as usize;
                    self.carry(side, max);
                }
                _ => {
                    self.sides[side].copy_one(true);
                }
            }
            check(self);
            if self.rests() {
                return;
            }
        }
        panic!("the sides do not come to rest");
    }
}

/// A deterministic sequence of numbers below a limit.
fn numbers(mut seed: u64) -> impl FnMut(u32) -> u32 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % u64::from(below)) as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write { from: usize, to: usize, len: usize },
    Read { from: usize, to: usize, len: usize },
    Send { from: usize, len: usize },
    Add { at: usize },
}

fn op() -> impl Strategy<Value = Op> {
    // Writes, Reads, Sends and numbers each have bytes of their own, so that a model needs no order between them.
    let len = prop_oneof![1..200_usize, 1000..5000_usize];
    prop_oneof![
        (0..5000_usize, 0..5000_usize, len.clone()).prop_map(|(from, to, len)| Op::Write { from, to, len }),
        (0..5000_usize, 0..5000_usize, len.clone()).prop_map(|(from, to, len)| Op::Read {
            from: 10_000 + from,
            to: 10_000 + to,
            len
        }),
        (0..5000_usize, len.prop_map(|len| len.min(BUFFER))).prop_map(|(from, len)| Op::Send { from, len }),
        (0..8_usize).prop_map(|at| Op::Add { at: at * 8 }),
    ]
}

/// Receive buffers with the bytes that are due there; and Reads and atomic operations: number, place and bytes.
type Due = (Vec<(usize, Vec<u8>)>, Vec<(u64, usize, Vec<u8>)>);

/// Posts the operations, and brings the model of both memories to the state after them.
fn post_all(pair: &mut Pair, ops: &[Op], model: &mut [Vec<u8>; 2]) -> Due {
    let (own, stag) = (pair.own, pair.stag);
    let mut sums = [0_u64; 8];
    let (mut sends, mut due) = (Vec::new(), Vec::new());
    for (at, op) in ops.iter().enumerate() {
        let (id, endpoint) = (at as u64, &mut pair.sides[0].endpoint);
        let local = |from: usize, len: usize| slice(own, from as u64, len as u32);
        match *op {
            Op::Write { from, to, len } => {
                endpoint.post_write(id, local(from, len), stag, to as u64).unwrap();
                let bytes = model[0][from..from + len].to_vec();
                model[1][to..to + len].copy_from_slice(&bytes);
            }
            Op::Read { from, to, len } => {
                endpoint.post_read(id, local(to, len), stag, from as u64).unwrap();
                let bytes = model[1][from..from + len].to_vec();
                model[0][to..to + len].copy_from_slice(&bytes);
                due.push((id, to, bytes));
            }
            Op::Send { from, len } => {
                endpoint.post_send(id, local(from, len), false, None).unwrap();
                let buffer = 20_000 + sends.len() % 3 * BUFFER;
                let bytes = model[0][from..from + len].to_vec();
                model[1][buffer..buffer + len].copy_from_slice(&bytes);
                sends.push((buffer, bytes));
            }
            Op::Add { at } => {
                let (to, op) = (39_000 + at as u64, AtomicOp::FetchAdd { add: id + 1, mask: 0 });
                endpoint.post_atomic(id, local(30_000 + at, 8), stag, to, op).unwrap();
                let sum = &mut sums[at / 8];
                model[0][30_000 + at..30_008 + at].copy_from_slice(&sum.to_ne_bytes());
                due.push((id, 30_000 + at, sum.to_ne_bytes().to_vec()));
                *sum += id + 1;
                model[1][39_000 + at..39_008 + at].copy_from_slice(&sum.to_ne_bytes());
            }
        }
    }
    (sends, due)
}

fn check_all(ops: &[Op], seed: u64, markers: bool, deferred: [bool; 2], copies: [bool; 2]) {
    let mut pair = pair(markers, deferred);
    let (lab, own) = (pair.lab, pair.own);
    let mut model = [pair.sides[0].bytes(own).to_vec(), pair.sides[1].bytes(lab).to_vec()];
    model[1][39_000..39_064].fill(0);
    pair.sides[1].memory.bytes_mut(lab).unwrap()[39_000..39_064].fill(0);
    let (sends, due) = post_all(&mut pair, ops, &mut model);
    // A buffer is posted again once its message has been checked.
    for id in 0..sends.len().min(3) {
        let buffer = slice(lab, 20_000 + (id * BUFFER) as u64, BUFFER as u32);
        pair.sides[1].endpoint.post_recv(id as u64, buffer).unwrap();
    }
    let (mut received, mut completed, mut next) = (0, 0, numbers(seed));
    let rng = &mut next;
    let mut may = |below: u32| {
        let number = rng(below);
        // Some sides copy rarely, so that queues fill.
        if below == 4 && number > 1 && !copies[(rng(2) & 1) as usize] && rng(8) > 0 { 0 } else { number }
    };
    pair.run(&mut may, |pair| {
        for event in pair.sides[1].drain_events() {
            match event {
                Event::Received { wr_id, bytes, .. } => {
                    let (buffer, expected) = &sends[received];
                    assert_eq!((wr_id, bytes as usize), (received as u64, expected.len()));
                    let seen = &pair.sides[1].bytes(lab)[*buffer..buffer + expected.len()];
                    assert!(seen == expected, "message {received} completes before its bytes are there");
                    received += 1;
                    if received + 2 < sends.len() {
                        let at = slice(lab, 20_000 + ((received + 2) % 3 * BUFFER) as u64, BUFFER as u32);
                        pair.sides[1].endpoint.post_recv(received as u64 + 2, at).unwrap();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        for event in pair.sides[0].drain_events() {
            let Event::Completion { wr_id, status: WcStatus::Success, .. } = event else {
                panic!("{event:?}");
            };
            assert_eq!(wr_id, completed, "completions in the order of posting");
            completed += 1;
            if let Some((_, at, expected)) = due.iter().find(|(id, ..)| *id == wr_id) {
                let later = due.iter().any(|(id, other, bytes)| {
                    *id != wr_id && *other < at + expected.len() && at < &(other + bytes.len())
                });
                let seen = &pair.sides[0].bytes(own)[*at..at + expected.len()];
                assert!(later || seen == expected, "request {wr_id} completes before its bytes are there");
            }
        }
    });
    assert_eq!((received, completed), (sends.len(), ops.len() as u64));
    assert!(pair.sides[0].bytes(own) == model[0], "the initiator's memory");
    assert!(pair.sides[1].bytes(lab) == model[1], "the responder's memory");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Reads of the same sink may overlap: their order is that of the requests, but what an earlier one has left is not
    /// checked then.
    #[test]
    fn nothing_completes_before_its_bytes_are_in_memory(
        ops in proptest::collection::vec(op(), 1..16),
        seed: u64,
        markers: bool,
        deferred in prop_oneof![Just([true, true]), Just([true, false]), Just([false, true])],
        copies: [bool; 2],
    ) {
        // Three buffers are posted at first: a Send without one would end the stream.
        let sends = ops.iter().filter(|op| matches!(op, Op::Send { .. })).count();
        prop_assume!(sends <= 3);
        check_all(&ops, seed, markers, deferred, copies);
    }
}

/// Out-of-order segments are queued like others; what completes behind them waits for all of them.
#[test]
fn segments_behind_a_gap_are_copied_before_a_message_completes() {
    let mut pair = pair(false, [false, true]);
    let (lab, own, stag) = (pair.lab, pair.own, pair.stag);
    let expected = pair.sides[0].bytes(own)[..6000].to_vec();
    pair.sides[0].endpoint.post_write(1, slice(own, 0, 6000), stag, 100).unwrap();
    pair.sides[0].endpoint.post_send(2, slice(own, 0, 0), false, None).unwrap();
    pair.sides[1].endpoint.post_recv(1, slice(lab, 20_000, 100)).unwrap();
    pair.sides[0].transmit();
    let segments: Vec<_> = pair.sides[0].wire.segments.drain(..).collect();
    let b = &mut pair.sides[1];
    let second = b.position + segments[0].len() as u64;
    assert!(b.out_of_order(second, &segments[1]), "placed");
    assert_eq!(b.memory.deferred(), 1);
    b.deliver(&segments[0]);
    b.placed(segments[1].len());
    for segment in &segments[2..] {
        b.deliver(segment);
    }
    while b.memory.deferred() > 0 {
        assert_eq!(b.drain_events(), [], "bytes are missing");
        b.copy_one(true);
    }
    assert!(matches!(b.drain_events()[..], [Event::Received { wr_id: 1, .. }]));
    assert!(b.bytes(lab)[100..6100] == expected);
}

/// A copy that fails ends the stream. The message whose bytes are missing completes with an error, one before it does
/// not.
#[test]
fn a_copy_that_fails_ends_the_stream_and_no_message_completes_without_its_bytes() {
    let mut pair = pair(false, [false, true]);
    let (lab, own) = (pair.lab, pair.own);
    for id in 1..=3 {
        pair.sides[1].endpoint.post_recv(id, slice(lab, 20_000 + id * 100, 100)).unwrap();
        pair.sides[0].endpoint.post_send(id, slice(own, 0, 50), false, None).unwrap();
    }
    pair.sides[0].transmit();
    pair.carry(0, usize::MAX);
    let b = &mut pair.sides[1];
    assert_eq!((b.drain_events(), b.memory.deferred()), (vec![], 1), "the next message waits for the first");
    b.copy_one(true);
    assert!(matches!(b.drain_events()[..], [Event::Received { wr_id: 1, .. }]));
    b.copy_one(false);
    b.transmit();
    let failed = |event: &Event| {
        matches!(
            event,
            Event::Completion { wr_id: 2, op: WcOpcode::Recv, status: WcStatus::LocalProtectionError, .. }
        )
    };
    let flushed =
        |event: &Event| matches!(event, Event::Completion { wr_id: 3, status: WcStatus::WrFlushError, .. });
    let events = b.drain_events();
    assert!(failed(&events[0]) && flushed(&events[1]), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::TerminateSent { .. })), "{events:?}");
}

/// A request of which the bytes cannot be read fails with its own status; the peer receives nothing of it.
#[test]
fn bytes_to_send_that_cannot_be_read_end_the_stream() {
    let mut pair = pair(false, [true, false]);
    let (own, stag) = (pair.own, pair.stag);
    pair.sides[0].endpoint.post_write(1, slice(own, 0, 3000), stag, 0).unwrap();
    let a = &mut pair.sides[0];
    a.transmit();
    assert!(!a.endpoint.has_output() && a.endpoint.is_deferred(), "nothing to poll for");
    assert_eq!((a.wire.queued(), a.memory.deferred()), (0, 1));
    a.copy_one(false);
    a.transmit();
    let events = a.drain_events();
    let failed = Event::Completion {
        wr_id: 1,
        op: WcOpcode::RdmaWrite,
        status: WcStatus::LocalProtectionError,
        bytes: 0,
    };
    assert!(events.contains(&failed), "{events:?}");
    assert!(pair.sides[1].bytes(pair.lab)[..3000] == pattern(BYTES, 7)[..3000]);
}

/// A stream that the peer resets while bytes are on their way to memory reports them as not received; one that is
/// closed properly waits for them.
#[test]
fn the_end_of_a_stream_waits_for_its_copies() {
    for reset in [true, false] {
        let mut pair = pair(false, [false, true]);
        let (lab, own) = (pair.lab, pair.own);
        pair.sides[1].endpoint.post_recv(1, slice(lab, 20_000, 100)).unwrap();
        pair.sides[0].endpoint.post_send(1, slice(own, 0, 50), false, None).unwrap();
        pair.sides[0].transmit();
        pair.carry(0, usize::MAX);
        let b = &mut pair.sides[1];
        if reset {
            b.endpoint.transport_lost();
            b.collect();
            let events = b.drain_events();
            let flushed = |event: &Event| {
                matches!(event, Event::Completion { wr_id: 1, status: WcStatus::WrFlushError, .. })
            };
            assert!(
                events.iter().any(flushed)
                    && !events.iter().any(|event| matches!(event, Event::Received { .. }))
            );
            continue;
        }
        b.endpoint.peer_closed(b.now, &mut b.stats);
        b.collect();
        assert_eq!(b.drain_events(), []);
        b.copy_one(true);
        let events = b.drain_events();
        assert!(matches!(events[..], [Event::Received { wr_id: 1, .. }, Event::Close { .. }]), "{events:?}");
    }
}
