//! Atomic operations and Immediate Data (RFC 7306): effects, order and refusals.

use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::{
    Access, AccessError, AtomicOp, CloseHow, EndpointConfig, ErrorCode, Event, LocalSlice, PostError,
    RegionId, Scope, StagTable, StreamError, StreamId, WcOpcode, WcStatus,
};

const ALL: Access = Access::from_bits(7).unwrap();
const ATOMIC_REQUEST: u8 = 0x4a;
const ATOMIC_RESPONSE: u8 = 0x4b;
const IMMEDIATE: u8 = 0x48;
const IMMEDIATE_SE: u8 = 0x49;

fn values(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn done(wr_id: u64, op: WcOpcode, bytes: u32) -> Event {
    Event::Completion { wr_id, op, status: WcStatus::Success, bytes }
}

const fn add(add: u64) -> AtomicOp {
    AtomicOp::FetchAdd { add, mask: 0 }
}

const fn compare_swap(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

#[test]
fn atomic_operations_return_the_original_value() {
    let (mut cli, mut daemon, lab) = connected_for(ALL, values(&[5, 7, 1, 0]));
    let stag = cli.grant().stag;
    let found = cli.memory.add(vec![0xee; 40]).unwrap();
    cli.events.clear();
    let ops = [add(10), compare_swap(7, 70), compare_swap(99, 1), add(u64::MAX)];
    for (at, (op, to)) in (0..).zip(ops.into_iter().zip([0, 8, 16, 0])) {
        cli.endpoint.post_atomic(at, slice(found, at * 8, 8), stag, to, op).unwrap();
    }
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(daemon.bytes(lab), values(&[14, 70, 1, 0]));
    assert_eq!(cli.bytes(found)[..32], values(&[5, 7, 1, 15]));
    assert_eq!(cli.bytes(found)[32..], [0xee; 8]);
    let opcodes = [WcOpcode::FetchAdd, WcOpcode::CompareSwap, WcOpcode::CompareSwap, WcOpcode::FetchAdd];
    let expected = (0..).zip(opcodes).map(|(at, opcode)| done(at, opcode, 8)).collect::<Vec<_>>();
    assert_eq!(cli.drain_events(), expected);
    assert_eq!((cli.stats.rdmap.out_atomics, cli.stats.rdmap.in_atomic_responses), (4, 4));
    assert_eq!((daemon.stats.rdmap.in_atomics, daemon.stats.rdmap.out_atomic_responses), (4, 4));
    let (ours, theirs) = (cli.endpoint.info().counters, daemon.endpoint.info().counters);
    assert_eq!((ours.out_atomics, theirs.in_atomics), (4, 4));
}

/// RFC 7306 §5.2: "Reusing the same Queue Number for Atomic Request messages allows the Atomic Operations to reuse
/// the same infrastructure": MSNs and depths are shared with reads, and answers come in the order of both.
#[test]
fn atomics_and_reads_share_a_queue_and_keep_their_order() {
    let (mut cli, mut daemon, lab) = connected_for(ALL, values(&[1, 2, 3, 4]));
    let stag = cli.grant().stag;
    let local = cli.memory.add(vec![0; 256]).unwrap();
    cli.events.clear();
    let mut expected = Vec::new();
    for at in 0..40_u64 {
        let place = slice(local, (at % 16) * 8, 8);
        match at % 4 {
            0 | 3 => cli.endpoint.post_atomic(at, place, stag, 0, add(1)).unwrap(),
            1 => cli.endpoint.post_read(at, place, stag, 0).unwrap(),
            _ => cli.endpoint.post_write(at, place, stag, 24).unwrap(),
        }
        let ops = [WcOpcode::FetchAdd, WcOpcode::RdmaRead, WcOpcode::RdmaWrite, WcOpcode::FetchAdd];
        expected.push(done(at, ops[at as usize % 4], 8));
    }
    // More than the ORD of 16 are posted: at most 16 are outstanding.
    cli.transmit();
    let outstanding = ulpdus(&cli.wire.segments.iter().flatten().copied().collect::<Vec<_>>());
    assert_eq!(outstanding.iter().filter(|ulpdu| ulpdu[9] == 1).count(), 16);
    for (msn, ulpdu) in (1..).zip(outstanding.iter().filter(|ulpdu| ulpdu[9] == 1)) {
        assert_eq!(ulpdu[10..14], u32::to_be_bytes(msn));
    }
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(cli.drain_events(), expected);
    assert_eq!(daemon.bytes(lab)[..8], values(&[21]));
}

#[test]
fn an_atomic_request_and_its_response_on_the_wire() {
    let (mut cli, mut daemon, _) = connected_for(ALL, values(&[0x0102_0304_0506_0708]));
    let stag = cli.grant().stag;
    let found = cli.memory.add(vec![0; 8]).unwrap();
    let op = AtomicOp::FetchAdd { add: 0x11, mask: 0x22 };
    cli.endpoint.post_atomic(1, slice(found, 0, 8), stag, 0, op).unwrap();
    cli.transmit();
    let request = atomic_request(1, stag.0, 0, 0, [0x11, 0x22, 0, u64::MAX]);
    let sent = cli.wire.take();
    assert_eq!(ulpdus(&sent), [request]);
    daemon.deliver(&sent);
    daemon.transmit();
    let mut header = 1_u32.to_be_bytes().to_vec();
    header.extend_from_slice(&0x0102_0304_0506_0708_u64.to_be_bytes());
    let response = untagged(UNTAGGED_LAST, ATOMIC_RESPONSE, 0, [3, 1, 0], &header);
    assert_eq!(ulpdus(&daemon.wire.take()), [response]);
}

#[test]
fn immediate_data_keeps_its_order_among_sends() {
    let (mut cli, mut daemon, lab) = connected_for(ALL, vec![0; 64]);
    let stag = cli.grant().stag;
    let local = cli.memory.add(pattern(32, 1)).unwrap();
    let inbox = daemon.memory.add(vec![0xee; 64]).unwrap();
    for at in 0..4 {
        daemon.endpoint.post_recv(100 + at, slice(inbox, at * 16, 16)).unwrap();
    }
    cli.events.clear();
    daemon.events.clear();
    cli.endpoint.post_send(0, slice(local, 0, 4), false, None).unwrap();
    cli.endpoint.post_write(1, slice(local, 0, 32), stag, 0).unwrap();
    cli.endpoint.post_immediate(2, *b"imm data", false).unwrap();
    cli.endpoint.post_immediate(3, [9; 8], true).unwrap();
    cli.endpoint.post_send(4, slice(local, 4, 4), true, None).unwrap();
    run(&mut cli, &mut daemon, &mut segments(1448));
    assert_eq!(daemon.bytes(lab)[..32], pattern(32, 1));
    let received =
        |wr_id, solicited| Event::Received { wr_id, bytes: 4, solicited, invalidated: None, immediate: None };
    let immediate = |wr_id, data, solicited| Event::Immediate { wr_id, data, bytes: 0, solicited };
    let expected = [
        received(100, false),
        immediate(101, *b"imm data", false),
        immediate(102, [9; 8], true),
        received(103, true),
    ];
    assert_eq!(daemon.drain_events(), expected);
    assert_eq!(daemon.bytes(inbox)[16..48], [0xee; 32], "immediate data is not put into the buffer");
    let ops = [
        done(0, WcOpcode::Send, 4),
        done(1, WcOpcode::RdmaWrite, 32),
        done(2, WcOpcode::Send, 0),
        done(3, WcOpcode::Send, 0),
        done(4, WcOpcode::Send, 4),
    ];
    assert_eq!(cli.drain_events(), ops);
    assert_eq!((cli.stats.rdmap.out_immediates, daemon.stats.rdmap.in_immediates), (2, 2));
    assert_eq!(daemon.stats.rdmap.in_sends, 2);
    // Each consumed its buffer, and the slots of the queue are free again.
    for at in 0..4 {
        daemon.endpoint.post_recv(at, LocalSlice::EMPTY).unwrap();
    }
}

#[test]
fn atomic_operations_that_cannot_be_posted() {
    let (mut cli, _, _) = connected_for(ALL, vec![0; 8]);
    let stag = cli.grant().stag;
    let local = cli.memory.add(vec![0; 16]).unwrap();
    for len in [0, 7, 9, 16] {
        assert_eq!(
            cli.endpoint.post_atomic(1, slice(local, 0, len), stag, 0, add(1)),
            Err(PostError::Length)
        );
    }
    let mut side = Side::initiator(initiator_config(), &request(b""));
    side.transmit();
    side.wire.take();
    side.deliver(&mpa(REPLY, 0, 0, b""));
    assert_eq!(side.endpoint.post_atomic(1, slice(local, 0, 8), stag, 0, add(1)), Err(PostError::NoReads));
}

/// Builds an Atomic Request by hand.
fn atomic_request(msn: u32, stag: u32, to: u64, op: u32, values: [u64; 4]) -> Vec<u8> {
    let mut header = op.to_be_bytes().to_vec();
    header.extend_from_slice(&msn.to_be_bytes());
    header.extend_from_slice(&stag.to_be_bytes());
    header.extend_from_slice(&to.to_be_bytes());
    values.iter().for_each(|value| header.extend_from_slice(&value.to_be_bytes()));
    untagged(UNTAGGED_LAST, ATOMIC_REQUEST, 0, [1, msn, 0], &header)
}

/// A responder, and a peer whose segments are built by hand.
struct Target {
    side: Side,
    lab: RegionId,
    stag: u32,
    /// An STag without the right.
    blind: u32,
    /// An STag that is valid on another stream.
    foreign: u32,
}

const LAB: usize = 64;

impl Target {
    fn new() -> Self {
        let mut side = Side::responder(EndpointConfig { receive_queue: 1, ..EndpointConfig::default() });
        let lab = side.add_region("lab", pattern(LAB, 3), ALL);
        let service = rdma::service::encode_request("lab", ALL, b"").unwrap();
        side.deliver(&mpa(REQUEST, 0, 4, &service));
        side.transmit();
        let reply = side.wire.take();
        let stag = rdma::service::decode_reply(&reply[24..]).unwrap().stag.0;
        let grant =
            |stags: &mut StagTable, access, scope| stags.grant(lab, LAB as u64, access, scope).unwrap().0;
        let blind = grant(&mut side.stags, BOTH, Scope::Stream(STREAM));
        let foreign = grant(&mut side.stags, ALL, Scope::Stream(StreamId(99)));
        side.events.clear();
        Self { side, lab, stag, blind, foreign }
    }

    /// Checks that the segment ends the stream with this Terminate and has no other effect.
    #[track_caller]
    fn refuses(mut self, segment: &[u8], expected: &[u8], error: StreamError) {
        self.side.deliver(&fpdu(segment));
        self.side.transmit();
        assert_eq!(ulpdus(&self.side.wire.take()), [expected], "{error:?}");
        assert_eq!(self.side.bytes(self.lab), pattern(LAB, 3), "{error:?}");
        let (layer, etype, code) = (expected[18] >> 4, expected[18] & 0x0f, expected[19]);
        let code = ErrorCode { layer, etype, code };
        let events = self.side.drain_events();
        assert!(events.contains(&Event::TerminateSent { code, error }), "{events:?}");
        assert_eq!(events.last(), Some(&Event::Close { how: CloseHow::Fin }));
    }
}

const FETCH_ADD: [u64; 4] = [1, 0, 0, u64::MAX];

#[track_caller]
fn refused(make: impl Fn(&Target) -> Vec<u8>, kind: u8, code: u8, flags: u8, error: StreamError) {
    let target = Target::new();
    let segment = make(&target);
    // RFC 7306 §8.1: "the Terminated RDMA Header field is set to zero".
    let request = if flags & 0x20 == 0 { &[][..] } else { &[0; 28] };
    let expected = terminate_about(kind, code, flags, &segment, request);
    target.refuses(&segment, &expected, error);
}

#[test]
fn atomics_that_are_not_permitted() {
    use AccessError::*;
    let access = |make: &dyn Fn(&Target) -> (u32, u64), code, error| {
        let make = |target: &Target| {
            let (stag, to) = make(target);
            atomic_request(1, stag, to, 0, FETCH_ADD)
        };
        refused(make, 0x01, code, 0xe0, StreamError::Atomic(error));
    };
    access(&|target| (target.stag ^ 1, 0), 0x00, InvalidStag);
    for to in [64, 57, 1 << 40] {
        access(&|target| (target.stag, to), 0x01, Bounds);
    }
    access(&|target| (target.blind, 0), 0x02, Rights);
    access(&|target| (target.foreign, 0), 0x03, NotAssociated);
    access(&|target| (target.stag, u64::MAX - 6), 0x04, Wrap);
}

/// RFC 7306 §8.2: "Catastrophic error, localized to RDMAP Stream".
#[test]
fn atomics_that_are_not_aligned() {
    for to in [1, 4, 7, 55] {
        for op in [0, 2] {
            let make = |target: &Target| atomic_request(1, target.stag, to, op, [0, u64::MAX, 0, 0]);
            refused(make, 0x02, 0x07, 0xc0, StreamError::AtomicAlignment);
        }
    }
}

#[test]
fn atomic_requests_that_are_malformed() {
    let unknown = StreamError::AtomicRequest;
    for op in [1, 3, 15] {
        refused(|target| atomic_request(1, target.stag, 0, op, FETCH_ADD), 0x02, 0xff, 0xc0, unknown);
    }
    let short = |target: &Target| {
        let mut segment = atomic_request(1, target.stag, 0, 0, FETCH_ADD);
        segment.truncate(18 + 51);
        segment
    };
    refused(short, 0x02, 0xff, 0xc0, StreamError::AtomicRequest);
    let more = |target: &Target| {
        let mut segment = atomic_request(1, target.stag, 0, 0, FETCH_ADD);
        segment[0] = UNTAGGED_MORE;
        segment
    };
    refused(more, 0x02, 0xff, 0xc0, StreamError::AtomicRequest);
    let long = |target: &Target| [atomic_request(1, target.stag, 0, 0, FETCH_ADD), vec![0]].concat();
    refused(long, 0x12, 0x05, 0xc0, StreamError::MessageTooLong);
    refused(
        |target| atomic_request(2, target.stag, 0, 0, FETCH_ADD),
        0x12,
        0x03,
        0xc0,
        StreamError::MsnRange,
    );
    for qn in [0, 2, 3] {
        let other = |target: &Target| {
            let mut segment = atomic_request(1, target.stag, 0, 0, FETCH_ADD);
            segment[9] = qn;
            segment
        };
        refused(other, 0x12, 0x01, 0xc0, StreamError::QueueNumber);
    }
}

#[test]
fn more_atomics_than_negotiated() {
    let mut target = Target::new();
    for msn in 1..=4 {
        target.side.deliver(&fpdu(&atomic_request(msn, target.stag, 0, 2, [0, 0, 0, 0])));
    }
    let fifth = atomic_request(5, target.stag, 0, 0, FETCH_ADD);
    let expected = terminate_about(0x12, 0x02, 0xc0, &fifth, &[]);
    target.refuses(&fifth, &expected, StreamError::NoBuffer);
}

#[test]
fn immediate_data_that_is_malformed() {
    let immediate = |op, len| untagged(UNTAGGED_LAST, op, 0, [0, 1, 0], &vec![1; len]);
    for op in [IMMEDIATE, IMMEDIATE_SE] {
        let segment = immediate(op, 8);
        let expected = terminate_about(0x12, 0x02, 0xc0, &segment, &[]);
        Target::new().refuses(&segment, &expected, StreamError::NoBuffer);
        let posted = || {
            let mut target = Target::new();
            target.side.endpoint.post_recv(1, LocalSlice::EMPTY).unwrap();
            target
        };
        for len in [0, 7, 9, 100] {
            let segment = immediate(op, len);
            let expected = terminate_about(0x02, 0xff, 0xc0, &segment, &[]);
            posted().refuses(&segment, &expected, StreamError::ImmediateLength);
        }
        let segment = untagged(UNTAGGED_MORE, op, 0, [0, 1, 0], &[1; 8]);
        let expected = terminate_about(0x02, 0xff, 0xc0, &segment, &[]);
        posted().refuses(&segment, &expected, StreamError::ImmediateLength);
        let segment = untagged(UNTAGGED_LAST, op, 0, [0, 1, 8], &[1; 8]);
        let expected = terminate_about(0x12, 0x04, 0xc0, &segment, &[]);
        posted().refuses(&segment, &expected, StreamError::MessageOffset);
        let segment = untagged(UNTAGGED_LAST, op, 0, [1, 1, 0], &[1; 8]);
        let expected = terminate_about(0x12, 0x01, 0xc0, &segment, &[]);
        posted().refuses(&segment, &expected, StreamError::QueueNumber);
    }
}

/// Tests an initiator that waits for the response to a Fetch and Add against a responder built by hand.
#[track_caller]
fn response_refused(msn: u32, id: u32, len: usize, kind: u8, code: u8, error: StreamError) {
    let mut side = Side::initiator(initiator_config(), &request(b""));
    let region = side.memory.add(vec![0xee; 8]).unwrap();
    side.transmit();
    side.wire.take();
    side.deliver(&mpa(REPLY, 16, 0, b""));
    side.endpoint.post_atomic(5, slice(region, 0, 8), rdma::Stag(7), 0, add(1)).unwrap();
    side.transmit();
    side.wire.take();
    side.events.clear();
    let mut header = id.to_be_bytes().to_vec();
    header.resize(len, 1);
    let segment = untagged(UNTAGGED_LAST, ATOMIC_RESPONSE, 0, [3, msn, 0], &header);
    side.deliver(&fpdu(&segment));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [terminate_about(kind, code, 0xc0, &segment, &[])], "{error:?}");
    assert_eq!(side.bytes(region), [0xee; 8]);
    let flushed =
        |event: &&Event| matches!(event, Event::Completion { wr_id: 5, status: WcStatus::WrFlushError, .. });
    assert_eq!(side.drain_events().iter().filter(flushed).count(), 1);
}

#[test]
fn unexpected_atomic_responses() {
    response_refused(1, 2, 12, 0x02, 0xff, StreamError::AtomicResponse);
    response_refused(1, 1, 11, 0x02, 0xff, StreamError::AtomicResponse);
    response_refused(1, 1, 13, 0x12, 0x05, StreamError::MessageTooLong);
    response_refused(2, 1, 12, 0x12, 0x03, StreamError::MsnRange);
    // No response is due, or a Read Response is.
    let response = untagged(UNTAGGED_LAST, ATOMIC_RESPONSE, 0, [3, 1, 0], &[0; 12]);
    for read in [false, true] {
        let (mut cli, mut daemon, _) = connected_for(ALL, vec![0; 8]);
        let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 8]).unwrap());
        if read {
            cli.endpoint.post_read(1, slice(local, 0, 8), stag, 0).unwrap();
            cli.transmit();
            cli.wire.take();
        }
        cli.deliver(&fpdu(&response));
        cli.transmit();
        assert_eq!(ulpdus(&cli.wire.take()), [terminate_about(0x02, 0x06, 0xc0, &response, &[])]);
        daemon.collect();
    }
}

#[test]
fn a_read_response_in_the_place_of_an_atomic_response() {
    let (mut cli, _, _) = connected_for(ALL, vec![0; 8]);
    let (stag, local) = (cli.grant().stag, cli.memory.add(vec![0; 8]).unwrap());
    cli.endpoint.post_atomic(1, slice(local, 0, 8), stag, 0, add(1)).unwrap();
    cli.transmit();
    cli.wire.take();
    let response = tagged(TAGGED_LAST, READ_RESPONSE, 1, 0, &[9; 8]);
    cli.deliver(&fpdu(&response));
    cli.transmit();
    assert_eq!(ulpdus(&cli.wire.take()), [terminate_about(0x02, 0x06, 0xc0, &response, &[])]);
    assert_eq!(cli.bytes(local), [0; 8]);
}
