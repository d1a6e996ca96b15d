//! A responder and a requester's memory: calls of every form, replies of every form, and what a peer may do wrong.

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

use iwarp_rpc::header::{Body, ChunkLists, Header, RdmaError, ReadSegment, Segment};
use iwarp_rpc::testutil::{LIMITS, LINUX, gather, message, written};
use iwarp_rpc::xdr::{Data, Writer};
use iwarp_rpc::{Call, Item, Limits, Piece, PrivateData, Received, Refusal, Responder, Stats};
use proptest::prelude::*;
use rdma::Stag;

const XID: u32 = 0x1234_5678;

fn segment(stag: u32, length: u32) -> Segment {
    Segment { stag: Stag(stag), length, offset: (u64::from(XID) << 32) + u64::from(stag) * 0x1_0000 }
}

fn read(position: u32, stag: u32, length: u32) -> ReadSegment {
    ReadSegment { position, segment: segment(stag, length) }
}

/// A payload stream: the XID, and words behind it.
fn payload(words: &[u32]) -> Vec<u8> {
    [XID].iter().chain(words).flat_map(|word| word.to_be_bytes()).collect()
}

fn call_bytes(lists: ChunkLists, payload: &[u8]) -> Vec<u8> {
    message(&Header { xid: XID, version: 1, credits: 128, body: Body::Msg(lists) }, payload)
}

fn long_call_bytes(lists: ChunkLists) -> Vec<u8> {
    message(&Header { xid: XID, version: 1, credits: 128, body: Body::NoMsg(lists) }, &[])
}

struct Side {
    responder: Responder,
    stats: Stats,
}

impl Side {
    fn new() -> Self {
        Self::with(LIMITS, &LINUX)
    }

    fn with(limits: Limits, peer: &PrivateData) -> Self {
        Self { responder: Responder::new(limits, &LINUX, peer), stats: Stats::default() }
    }

    fn call(&mut self, message: &[u8]) -> Call {
        match self.responder.receive(message, &mut self.stats) {
            Received::Call(call) => call,
            other => panic!("{other:?}"),
        }
    }

    /// Expects an RDMA_ERROR as the answer.
    fn error(&mut self, message: &[u8]) -> (Header, RdmaError) {
        let Received::Answer(answer) = self.responder.receive(message, &mut self.stats) else { panic!() };
        let header = parse(&answer);
        let Body::Error(error) = header.body else { panic!("{header:?}") };
        (header, error)
    }

    /// Answers a call with a stream and items. Returns the header, the payload stream as the requester puts it
    /// together, without what write chunks hold, and these.
    fn reply(
        &mut self,
        call: &Call,
        lists: &ChunkLists,
        stream: &[u8],
        items: &[(usize, Vec<u8>)],
    ) -> Answer {
        let places: Vec<Item> = items
            .iter()
            .map(|(position, bytes)| Item { position: *position, length: bytes.len() as u32 })
            .collect();
        let items: Vec<Vec<u8>> = items.iter().map(|(_, bytes)| bytes.clone()).collect();
        let reply = self.responder.reply(call, stream, &places, &mut self.stats).unwrap();
        let sent = gather(&reply.send, &reply, &items);
        let (header, inline) = Header::parse(&sent, 100).unwrap();
        let (returned, in_chunk) = match &header.body {
            Body::Msg(returned) => (returned, false),
            Body::NoMsg(returned) => (returned, true),
            other => panic!("{other:?}"),
        };
        assert!(returned.reads.is_empty() && returned.writes.len() == lists.writes.len());
        let chunks = lists.writes.iter().zip(&returned.writes);
        let chunks = chunks.map(|(offered, used)| written(offered, used, &reply, &items)).collect();
        let stream = match (&lists.reply, &returned.reply) {
            (Some(offered), Some(used)) if in_chunk => {
                assert!(inline.is_empty());
                written(offered, used, &reply, &items)
            }
            (_, None) if !in_chunk => inline.to_vec(),
            other => panic!("{other:?}"),
        };
        Answer { header, stream, chunks, invalidate: reply.invalidate }
    }
}

struct Answer {
    header: Header,
    stream: Vec<u8>,
    chunks: Vec<Vec<u8>>,
    invalidate: Option<Stag>,
}

fn parse(message: &[u8]) -> Header {
    Header::parse(message, 100).unwrap().0
}

#[test]
fn an_inline_call_is_complete_at_once() {
    let mut side = Side::new();
    let bytes = call_bytes(ChunkLists::default(), &payload(&[1, 2]));
    let call = side.call(&bytes);
    assert!(call.reads().is_empty() && call.fetch_bytes() == 0 && call.xid() == XID);
    let mut reader = call.reader(&bytes, &[]).unwrap();
    assert_eq!((reader.u32(), reader.u32(), reader.u32()), (Ok(XID), Ok(1), Ok(2)));
    let answer = side.reply(&call, &ChunkLists::default(), &payload(&[9]), &[]);
    assert_eq!((answer.header.xid, answer.header.version, answer.header.credits), (XID, 1, 4));
    assert_eq!((answer.stream, answer.invalidate), (payload(&[9]), None));
    assert_eq!((side.stats.calls, side.stats.replies_inline), (1, 1));
}

/// Linux: a call of 5200 bytes in two segments at position zero.
#[test]
fn a_long_call_is_fetched_whole() {
    let mut side = Side::new();
    let lists = ChunkLists { reads: vec![read(0, 1, 96), read(0, 2, 5104)], ..ChunkLists::default() };
    let bytes = long_call_bytes(lists.clone());
    let call = side.call(&bytes);
    let reads: Vec<_> = call.reads().iter().map(|read| (read.source.stag.0, read.offset)).collect();
    assert_eq!((reads, call.fetch_bytes(), call.fetched_stream_bytes()), (vec![(1, 0), (2, 96)], 5200, 5200));
    let mut stream = payload(&[3]);
    stream.resize(5200, 0);
    assert_eq!(call.reader(&bytes, &stream).unwrap().rest().len(), 5200);
    stream[0] ^= 1;
    assert_eq!(call.reader(&bytes, &stream).map(|_| ()), Err(Refusal::Xid));
    let answer = parse(&side.responder.refuse(&call, Refusal::Xid, &mut side.stats));
    assert_eq!(answer.body, Body::Error(RdmaError::Chunk));
    assert_eq!((side.stats.refused_xid, side.responder.in_flight()), (1, 0));
}

/// A long call that is reduced as well: the data items lie behind the stream in the buffer, in order of position.
#[test]
fn a_long_call_may_have_other_chunks() {
    let mut side = Side::new();
    let reads = vec![read(16, 7, 3), read(0, 1, 12), read(16, 8, 3), read(8, 9, 0)];
    let bytes = long_call_bytes(ChunkLists { reads, ..ChunkLists::default() });
    let call = side.call(&bytes);
    let reads: Vec<_> = call.reads().iter().map(|read| (read.source.stag.0, read.offset)).collect();
    assert_eq!(reads, [(1, 0), (7, 12), (8, 15)], "an empty segment is not read");
    let stream = payload(&[0, 4]);
    let mut reader = call.reader(&bytes, &stream).unwrap();
    assert_eq!(reader.u32(), Ok(XID));
    assert_eq!(reader.reducible(9), Ok(Data::Fetched { offset: 12, length: 0 }));
    assert!(reader.reducible(9).is_err(), "six bytes of chunk for four of item");
}

#[test]
fn a_write_of_any_length_is_one_chunk() {
    for (parts, length) in [(vec![1], 1), (vec![4096], 4096), (vec![100, 1, 3], 104), (vec![5, 3], 5)] {
        let mut side = Side::new();
        let reads: Vec<_> = parts.iter().zip(1..).map(|(part, stag)| read(8, stag, *part)).collect();
        let count = reads.len();
        let bytes = call_bytes(ChunkLists { reads, ..ChunkLists::default() }, &payload(&[length, 77]));
        let call = side.call(&bytes);
        assert_eq!((call.reads().len(), call.fetch_bytes()), (count, parts.iter().sum()));
        let mut reader = call.reader(&bytes, &[]).unwrap();
        assert_eq!(reader.u32(), Ok(XID));
        assert_eq!(reader.reducible(4096), Ok(Data::Fetched { offset: 0, length }));
        assert_eq!((reader.u32(), reader.finish()), (Ok(77), Ok(())));
    }
}

/// One item, one chunk of several segments: filled in order, lengths reported, no padding written.
#[test]
fn a_read_is_written_to_the_segments_of_its_chunk() {
    for length in [0_usize, 1, 99, 100, 101, 163, 164, 165] {
        let mut side = Side::new();
        let chunk = vec![segment(1, 100), segment(2, 0), segment(3, 64), segment(4, 1)];
        let lists = ChunkLists { writes: vec![chunk], ..ChunkLists::default() };
        let bytes = call_bytes(lists.clone(), &payload(&[]));
        let call = side.call(&bytes);
        assert_eq!((call.write_chunk_bytes(0), call.write_chunk_bytes(1)), (Some(165), None));
        let data: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let answer = side.reply(&call, &lists, &payload(&[length as u32]), &[(8, data.clone())]);
        assert_eq!(answer.chunks, [data]);
        assert_eq!(answer.stream, payload(&[length as u32]));
        assert_eq!(answer.invalidate, Some(Stag(1)));
    }
}

#[test]
fn items_beyond_the_write_list_and_of_empty_chunks_go_inline() {
    let mut side = Side::new();
    let lists = ChunkLists { writes: vec![vec![], vec![segment(2, 8)]], ..ChunkLists::default() };
    let bytes = call_bytes(lists.clone(), &payload(&[]));
    let call = side.call(&bytes);
    let items = [(8, b"first".to_vec()), (12, b"second".to_vec()), (16, b"third!!".to_vec())];
    let answer = side.reply(&call, &lists, &payload(&[5, 6, 7, 1]), &items);
    assert_eq!(answer.chunks, [b"".to_vec(), b"second".to_vec()]);
    let mut writer = Writer::new();
    writer.u32(XID);
    writer.opaque(b"first");
    writer.u32(6);
    writer.opaque(b"third!!");
    writer.u32(1);
    assert_eq!(answer.stream, writer.into_bytes());
    assert_eq!((side.stats.items_inline, side.stats.items_written), (2, 1));
}

#[test]
fn an_unused_write_chunk_is_returned_with_empty_segments() {
    let mut side = Side::new();
    let lists = ChunkLists { writes: vec![vec![segment(1, 9), segment(2, 9)]], ..ChunkLists::default() };
    let call = side.call(&call_bytes(lists.clone(), &payload(&[])));
    let answer = side.reply(&call, &lists, &payload(&[]), &[]);
    let Body::Msg(returned) = answer.header.body else { panic!() };
    assert_eq!(returned.writes, [vec![segment(1, 0), segment(2, 0)]]);
}

/// Linux offers three segments for READDIRPLUS: head, pages, tail.
#[test]
fn an_offered_reply_chunk_is_used() {
    for length in [4, 124, 128, 5000, 65660, 65664] {
        let mut side = Side::new();
        let chunk = vec![segment(1, 124), segment(2, 65536), segment(3, 4)];
        let lists = ChunkLists { reply: Some(chunk), ..ChunkLists::default() };
        let call = side.call(&call_bytes(lists.clone(), &payload(&[])));
        let stream: Vec<u8> = (0..length).map(|at: u32| at as u8).collect();
        let answer = side.reply(&call, &lists, &stream, &[]);
        assert_eq!(answer.stream, stream);
        assert!(matches!(answer.header.body, Body::NoMsg(_)));
    }
}

#[test]
fn replies_that_do_not_fit_are_refused_and_keep_the_credit_until_then() {
    let stream = vec![0; 5000];
    let small = vec![segment(1, 2000), segment(2, 2999)];
    let lists = [ChunkLists { reply: Some(small), ..ChunkLists::default() }, ChunkLists::default()];
    for lists in lists {
        let mut side = Side::new();
        let call = side.call(&call_bytes(lists, &payload(&[])));
        let refused = side.responder.reply(&call, &stream, &[], &mut side.stats);
        assert_eq!((refused, side.responder.in_flight()), (Err(Refusal::ReplyChunk), 1));
        let answer = parse(&side.responder.refuse(&call, Refusal::ReplyChunk, &mut side.stats));
        assert_eq!((answer.xid, answer.body), (XID, Body::Error(RdmaError::Chunk)));
        assert_eq!((side.responder.in_flight(), side.stats.refused_reply_chunk), (0, 1));
    }
    let mut side = Side::new();
    let lists = ChunkLists { writes: vec![vec![segment(1, 9)]], ..ChunkLists::default() };
    let call = side.call(&call_bytes(lists, &payload(&[])));
    let item = [Item { position: 4, length: 10 }];
    let refused = side.responder.reply(&call, &payload(&[]), &item, &mut side.stats);
    assert_eq!(refused, Err(Refusal::WriteChunk));
    side.responder.refuse(&call, Refusal::WriteChunk, &mut side.stats);
    assert_eq!((side.responder.in_flight(), side.stats.refused_write_chunk), (0, 1));
}

/// The threshold is the smaller of what this side sends and what the peer receives; header included.
#[test]
fn the_inline_threshold_counts_the_header() {
    for (receive_bytes, limit) in [(1024, 1024), (2048, 2048), (4096, 4096), (262_144, 4096)] {
        for (length, fits) in [(limit - 28, true), (limit - 27, false)] {
            let mut side = Side::with(LIMITS, &PrivateData { receive_bytes, ..LINUX });
            let call = side.call(&call_bytes(ChunkLists::default(), &payload(&[])));
            let reply = side.responder.reply(&call, &vec![0; length], &[], &mut side.stats);
            assert_eq!(reply.is_ok(), fits, "{length} of {limit} bytes");
        }
    }
}

#[test]
fn an_stag_is_invalidated_only_if_both_sides_support_it() {
    let lists = ChunkLists { reply: Some(vec![segment(6, 100)]), ..ChunkLists::default() };
    for (peer, expected) in [(LINUX, Some(Stag(6))), (PrivateData::default(), None)] {
        let mut side = Side::with(LIMITS, &peer);
        let call = side.call(&call_bytes(lists.clone(), &payload(&[])));
        assert_eq!(side.reply(&call, &lists, &payload(&[]), &[]).invalidate, expected);
        assert_eq!(side.stats.invalidations, u64::from(expected.is_some()));
    }
}

#[test]
fn each_wrong_message_has_its_answer_and_its_counter() {
    let mut side = Side::new();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    for length in 0..28 {
        let short = side.responder.receive(&vec![0; length], &mut side.stats);
        assert!(matches!(short, Received::Discard), "{length} bytes");
    }
    for procedure in [3, 4] {
        let received = side.responder.receive(&words(&[XID, 1, 1, procedure, 2, 0, 0]), &mut side.stats);
        assert!(matches!(received, Received::Discard), "procedure {procedure}");
    }
    // With the version of the failing message, and the range that is supported (RFC 8166 §4.5).
    let next = side.responder.receive(&words(&[XID, 2, 1, 0, 0, 0, 0, XID]), &mut side.stats);
    assert!(matches!(next, Received::Answer(answer) if answer == words(&[XID, 2, 1, 4, 1, 1, 1])));
    let many = ChunkLists { reply: Some(vec![segment(1, 1); 17]), ..ChunkLists::default() };
    let large = ChunkLists { reads: vec![read(4, 1, 1 << 20), read(4, 1, 1)], ..ChunkLists::default() };
    let wraps =
        ChunkLists { reads: vec![read(4, 1, u32::MAX), read(4, 1, u32::MAX)], ..ChunkLists::default() };
    let zero = ChunkLists { reads: vec![read(0, 1, 4)], ..ChunkLists::default() };
    let last = Segment { stag: Stag(1), length: 2, offset: u64::MAX - 1 };
    let end = ChunkLists { writes: vec![vec![last]], ..ChunkLists::default() };
    let wrong = [
        words(&[XID, 1, 1, 2, 0, 0, 0, 0, 0]),
        words(&[XID, 1, 1, 9, 0, 0, 0]),
        words(&[XID, 1, 1, 0, 0, 0, 3]),
        call_bytes(many, &payload(&[])),
        call_bytes(large, &payload(&[])),
        call_bytes(wraps, &payload(&[])),
        call_bytes(end, &payload(&[])),
        call_bytes(zero, &payload(&[])),
        long_call_bytes(ChunkLists::default()),
        call_bytes(ChunkLists::default(), &[0, 0, 0, 1]),
        call_bytes(ChunkLists::default(), &[]),
    ];
    for message in &wrong {
        let (header, error) = side.error(message);
        assert_eq!((header.xid, error), (XID, RdmaError::Chunk), "{message:02x?}");
    }
    let expected = Stats {
        discard_short: 28,
        discard_procedure: 2,
        refused_version: 1,
        refused_procedure: 2,
        refused_malformed: 1,
        refused_segments: 1,
        refused_bytes: 2,
        refused_wrapping: 1,
        refused_stream: 2,
        refused_xid: 2,
        ..Stats::default()
    };
    assert_eq!((side.stats, side.responder.in_flight()), (expected, 0));
}

#[test]
fn credits_bound_the_calls_in_flight() {
    let bytes = call_bytes(ChunkLists::default(), &payload(&[]));
    for credits in [0, 1, 2, 32] {
        let mut side = Side::with(Limits { credits, ..LIMITS }, &LINUX);
        let calls: Vec<_> = (0..credits.max(1)).map(|_| side.call(&bytes)).collect();
        assert!(matches!(side.responder.receive(&bytes, &mut side.stats), Received::Close));
        assert_eq!(side.stats.closed_credits, 1);
        let answer = side.reply(&calls[0], &ChunkLists::default(), &payload(&[]), &[]);
        assert_eq!(answer.header.credits, credits.max(1), "never zero");
        let call = side.call(&bytes);
        side.responder.discard(call, &mut side.stats);
        assert_eq!((side.responder.in_flight(), side.stats.discard_no_call), (credits.max(1) - 1, 1));
    }
    // Never more than the peer asks for.
    for (asked, granted) in [(0, 1), (1, 1), (3, 3), (4, 4), (u32::MAX, 4)] {
        let mut side = Side::new();
        let body = Body::Msg(ChunkLists::default());
        let bytes = message(&Header { xid: XID, version: 1, credits: asked, body }, &payload(&[]));
        let call = side.call(&bytes);
        let answer = side.reply(&call, &ChunkLists::default(), &payload(&[]), &[]);
        assert_eq!(answer.header.credits, granted);
    }
}

proptest! {
    /// With any chunks that a requester offers, it gets the result whole, or the call is refused for their size.
    #[test]
    fn a_result_arrives_whole(
        chunks in proptest::collection::vec(proptest::collection::vec(0_u32..400, 0..4), 0..3),
        reply_chunk in proptest::option::of(proptest::collection::vec(0_u32..3000, 1..4)),
        items in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..500), 0_usize..20), 0..3),
    ) {
        let mut stags = 1..;
        let mut chunk = |lengths: &Vec<u32>| -> Vec<Segment> {
            lengths.iter().map(|length| segment(stags.next().unwrap(), *length)).collect()
        };
        let writes: Vec<_> = chunks.iter().map(&mut chunk).collect();
        let lists = ChunkLists { writes, reply: reply_chunk.as_ref().map(&mut chunk), ..ChunkLists::default() };
        let mut side = Side::new();
        let Received::Call(call) = side.responder.receive(&call_bytes(lists.clone(), &payload(&[])), &mut side.stats)
        else { panic!() };
        // A count, the item, and words behind it; as sent without chunks, and as expected with them.
        let (mut stream, mut whole, mut places) = (Writer::new(), Writer::new(), Vec::new());
        for (at, (item, words)) in items.iter().enumerate() {
            stream.u32(item.len() as u32);
            places.push((stream.position(), item.clone()));
            match lists.writes.get(at) {
                Some(chunk) if !chunk.is_empty() => whole.u32(item.len() as u32),
                _ => whole.opaque(item),
            }
            for word in 0..*words {
                [&mut stream, &mut whole].into_iter().for_each(|out| out.u32(word as u32));
            }
        }
        let (stream, whole) = (stream.into_bytes(), whole.into_bytes());
        let fits = items.iter().zip(&lists.writes).all(|((item, _), chunk)| {
            chunk.is_empty() || item.len() <= chunk.iter().map(|segment| segment.length as usize).sum()
        });
        let places_only: Vec<_> =
            places.iter().map(|(position, bytes)| Item { position: *position, length: bytes.len() as u32 }).collect();
        if !fits {
            let refused = side.responder.reply(&call, &stream, &places_only, &mut side.stats);
            prop_assert_eq!(refused, Err(Refusal::WriteChunk));
            return Ok(());
        }
        let answer = side.reply(&call, &lists, &stream, &places);
        prop_assert_eq!(answer.stream, whole);
        for (at, chunk) in answer.chunks.iter().enumerate() {
            let expected = items.get(at).filter(|_| !lists.writes[at].is_empty()).map(|(item, _)| item.clone());
            prop_assert_eq!(chunk, &expected.unwrap_or_default());
        }
    }
}

#[test]
fn pieces_know_their_length() {
    assert_eq!((Piece::Bytes(3..7).len(), Piece::Item { item: 0, range: 0..9 }.len()), (4, 9));
}
