//! Two endpoints back to back: random work against a plain model of the memory, with the stream split in every way.

use proptest::prelude::*;
use rdma::service::encode_request;
use rdma::testutil::*;
use rdma::wire::mpa::RtrOptions;
use rdma::{CloseHow, ConnectRequest, CrcPolicy, EndpointConfig, Event, RegionId, Scope, WcOpcode, WcStatus};

const LAB: usize = 8192;
const LOCAL: usize = 8192;
const BUFFER: u32 = 1500;
/// Upper bounds of a request's bytes and of the number of requests; Miri takes a second for some hundred bytes.
const LEN_END: usize = if cfg!(miri) { 300 } else { 3000 };
const WORK_END: usize = if cfg!(miri) { 6 } else { 30 };

#[derive(Clone, Debug)]
enum Work {
    Write { from: usize, to: usize, len: usize },
    Read { from: usize, to: usize, len: usize },
    Send { from: usize, len: usize, solicited: bool, invalidate: bool },
}

fn work() -> impl Strategy<Value = Work> {
    let span = |of: usize| {
        (0..of, prop_oneof![3 => 0..LEN_END, 1 => 0..16usize, 1 => Just(0)])
            .prop_map(move |(at, len)| (at, len.min(of - at)))
    };
    prop_oneof![
        (span(LAB), 0..LOCAL).prop_map(|((to, len), from)| {
            let len = len.min(LOCAL - from);
            Work::Write { from, to, len }
        }),
        (span(LAB), 0..LOCAL).prop_map(|((from, len), to)| {
            let len = len.min(LOCAL - to);
            Work::Read { from, to, len }
        }),
        (span(LOCAL), any::<bool>(), any::<bool>()).prop_map(|((from, len), solicited, invalidate)| {
            Work::Send { from, len: len.min(BUFFER as usize), solicited, invalidate }
        }),
    ]
}

#[derive(Clone, Debug)]
struct Shape {
    work: Vec<Work>,
    chunks: Vec<usize>,
    mss: usize,
    room: usize,
    crc: [bool; 2],
    rev: u8,
    ord: u16,
    rtr: Option<RtrOptions>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let chunks = prop_oneof![
        Just(vec![1]),
        Just(vec![usize::MAX]),
        prop::collection::vec(1..40usize, 1..20),
        prop::collection::vec(1..4000usize, 1..20),
        Just(vec![1444, 4]),
    ];
    let rtr = prop_oneof![
        2 => Just(None),
        1 => Just(Some(RtrOptions { send: false, write: true, read: true })),
        1 => Just(Some(RtrOptions { send: true, write: false, read: true })),
    ];
    let mss = prop_oneof![Just(1448), Just(8948), 136..1500usize, Just(536)];
    (
        prop::collection::vec(work(), 1..WORK_END),
        chunks,
        mss,
        1..4usize,
        any::<[bool; 2]>(),
        1..=2u8,
        1..6u16,
        rtr,
    )
        .prop_map(|(work, chunks, mss, room, crc, rev, ord, rtr)| Shape {
            work,
            chunks,
            mss,
            room: room * mss,
            crc,
            rev,
            ord,
            rtr: rtr.filter(|_| rev == 2),
        })
}

fn config(crc: bool) -> EndpointConfig {
    let mut config = EndpointConfig { send_queue: 64, receive_queue: 64, ..EndpointConfig::default() };
    config.mpa.crc = if crc { CrcPolicy::Required } else { CrcPolicy::IfPeerAsks };
    config
}

/// Expected memory of both sides when all work is done.
struct Model {
    lab: Vec<u8>,
    local: Vec<u8>,
    buffers: Vec<u8>,
    messages: Vec<Event>,
    completions: Vec<Event>,
}

impl Model {
    /// Performs the work sequentially: each Read is finished before the next request is posted, as its order against
    /// later work on the same bytes is undefined (RFC 5040 §5.5 rule 12).
    fn apply(&mut self, wr_id: u64, work: &Work, given: &mut Vec<rdma::Stag>) {
        let (op, bytes) = match *work {
            Work::Write { from, to, len } => {
                self.lab[to..to + len].copy_from_slice(&self.local[from..from + len]);
                (WcOpcode::RdmaWrite, len)
            }
            Work::Read { from, to, len } => {
                self.local[to..to + len].copy_from_slice(&self.lab[from..from + len]);
                (WcOpcode::RdmaRead, len)
            }
            Work::Send { from, len, solicited, invalidate } => {
                let number = self.messages.len();
                let at = number * BUFFER as usize;
                self.buffers[at..at + len].copy_from_slice(&self.local[from..from + len]);
                let invalidated = if invalidate { given.pop() } else { None };
                self.messages.push(Event::Received {
                    wr_id: number as u64,
                    bytes: len as u32,
                    solicited,
                    invalidated,
                    immediate: None,
                });
                (WcOpcode::Send, len)
            }
        };
        let status = WcStatus::Success;
        self.completions.push(Event::Completion { wr_id, op, status, bytes: bytes as u32 });
    }
}

fn post(
    side: &mut Side,
    wr_id: u64,
    work: &Work,
    local: RegionId,
    remote: rdma::Stag,
    given: Option<rdma::Stag>,
) {
    let part = |at: usize, len: usize| slice(local, at as u64, len as u32);
    let posted = match *work {
        Work::Write { from, to, len } => side.endpoint.post_write(wr_id, part(from, len), remote, to as u64),
        Work::Read { from, to, len } => side.endpoint.post_read(wr_id, part(to, len), remote, from as u64),
        Work::Send { from, len, solicited, invalidate } => {
            side.endpoint.post_send(wr_id, part(from, len), solicited, given.filter(|_| invalidate))
        }
    };
    posted.unwrap();
}

fn only<'a>(events: &'a [Event], wanted: impl Fn(&Event) -> bool + 'a) -> Vec<Event> {
    events.iter().filter(|event| wanted(event)).cloned().collect()
}

fn part_in_peace(a: &mut Side, b: &mut Side) {
    a.endpoint.disconnect(a.now);
    a.collect();
    assert_eq!(a.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
    b.endpoint.peer_closed(b.now, &mut b.stats);
    b.collect();
    assert_eq!(b.events.last(), Some(&Event::Close { how: CloseHow::Fin }));
}

fn check(shape: &Shape) {
    let private_data = encode_request("lab", BOTH, b"").unwrap();
    let request = ConnectRequest {
        private_data: &private_data,
        revision: shape.rev,
        ird: 4,
        ord: shape.ord,
        rtr: shape.rtr,
    };
    let mut a = Side::initiator(config(shape.crc[0]), &request);
    let mut b = Side::responder(config(shape.crc[1]));
    for side in [&mut a, &mut b] {
        side.wire = Wire::new(shape.mss, shape.room);
    }
    let lab = b.add_region("lab", pattern(LAB, 1), BOTH);
    let buffers = b.memory.add(vec![0; 32 * BUFFER as usize]).unwrap();
    let local = a.memory.add(pattern(LOCAL, 2)).unwrap();
    for number in 0..32u64 {
        b.endpoint.post_recv(number, slice(buffers, number * u64::from(BUFFER), BUFFER)).unwrap();
    }
    let invalidate = rdma::Access::REMOTE_INVALIDATE;
    let mut given: Vec<_> =
        (0..30).map(|_| b.stags.grant(lab, 1, invalidate, Scope::Stream(STREAM)).unwrap()).collect();
    let live = b.stags.len() + 1;
    let mut at = 0;
    let mut chunk = |_| {
        at += 1;
        shape.chunks[at % shape.chunks.len()]
    };
    run(&mut a, &mut b, &mut chunk);
    let info = a.endpoint.info();
    assert_eq!((info.rev, info.crc), (shape.rev, shape.crc[0] || shape.crc[1]));
    let stag = a.grant().stag;

    let mut model = Model {
        lab: pattern(LAB, 1),
        local: pattern(LOCAL, 2),
        buffers: vec![0; 32 * BUFFER as usize],
        messages: Vec::new(),
        completions: Vec::new(),
    };
    for (wr_id, work) in (0..).zip(&shape.work) {
        post(&mut a, wr_id, work, local, stag, given.last().copied());
        model.apply(wr_id, work, &mut given);
        if matches!(work, Work::Read { .. }) || wr_id % 7 == 0 {
            run(&mut a, &mut b, &mut chunk);
        }
    }
    run(&mut a, &mut b, &mut chunk);

    assert_eq!(b.bytes(lab), model.lab);
    assert_eq!(a.bytes(local), model.local);
    assert_eq!(b.bytes(buffers), model.buffers);
    assert_eq!((a.memory.faults(), b.memory.faults()), (0, 0));
    let is_completion = |event: &Event| matches!(event, Event::Completion { .. });
    let is_message = |event: &Event| matches!(event, Event::Received { .. });
    assert_eq!(only(&a.events, is_completion), model.completions);
    assert_eq!(only(&b.events, is_message), model.messages);
    let invalidated =
        model.messages.iter().filter(|event| matches!(event, Event::Received { invalidated: Some(_), .. }));
    assert_eq!(b.stags.len(), live - invalidated.count());
    assert_eq!(a.stats.rdmap.payload_bytes_fetched, b.stats.rdmap.payload_bytes_placed);
    assert_eq!(b.stats.rdmap.payload_bytes_fetched, a.stats.rdmap.payload_bytes_placed);
    assert_eq!(a.stats.mpa.fpdus_out, b.stats.mpa.fpdus_in);
    assert_eq!(b.stats.mpa.fpdus_out, a.stats.mpa.fpdus_in);

    part_in_peace(&mut a, &mut b);
    assert_eq!(b.stats.drops, rdma::SegmentDrops::default());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_memory_is_that_of_the_model(shape in shape()) {
        check(&shape);
    }
}

#[derive(Clone, Copy, Debug)]
struct Reads {
    count: u64,
    ord: u16,
}

/// Many reads at once into separate buffers: more than ORD and IRD allow at a time.
fn reads_at_once(Reads { count, ord }: Reads) {
    let private_data = encode_request("lab", BOTH, b"").unwrap();
    let mut a = Side::initiator(config(true), &ConnectRequest { ord, ..request(&private_data) });
    let mut b = Side::responder(EndpointConfig::default());
    b.add_region("lab", pattern(count as usize * 100, 3), BOTH);
    let local = a.memory.add(vec![0; count as usize * 100]).unwrap();
    run(&mut a, &mut b, &mut segments(1448));
    let stag = a.grant().stag;
    a.events.clear();
    for wr_id in 0..count {
        a.endpoint.post_read(wr_id, slice(local, wr_id * 100, 100), stag, wr_id * 100).unwrap();
    }
    a.transmit();
    assert_eq!(a.stats.rdmap.out_rdma_reads, u64::from(ord).min(count));
    run(&mut a, &mut b, &mut segments(1448));
    assert_eq!(a.bytes(local), pattern(count as usize * 100, 3));
    let ids: Vec<u64> = a
        .events
        .iter()
        .map(|event| match event {
            Event::Completion { wr_id, status: WcStatus::Success, .. } => *wr_id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, (0..count).collect::<Vec<_>>());
}

#[test]
fn no_more_reads_at_a_time_than_agreed() {
    for (count, ord) in [(1, 1), (50, 1), (50, 3), (50, 16), (3, 16)] {
        reads_at_once(Reads { count, ord });
    }
}
