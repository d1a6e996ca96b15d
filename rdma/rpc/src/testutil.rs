//! A requester's memory, for tests, and the fuzz targets (feature `testutil`).

use crate::header::{Body, ChunkLists, Header, RdmaError, Segment};
use crate::message;
use crate::private_data::PrivateData;
use crate::xdr::{Reader, Writer};
use crate::{Item, Limits, Piece, Received, Reply, Responder, Stats};

/// Limits of a responder under test.
pub const LIMITS: Limits = Limits { credits: 4, segments_max: 16, fetch_bytes_max: 1 << 20 };
/// Properties of Linux' client.
pub const LINUX: PrivateData =
    PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 4096 };

/// Returns a header with its payload stream.
#[must_use]
pub fn message(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    header.emit(&mut writer);
    let mut bytes = writer.into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Returns the bytes of pieces.
#[must_use]
pub fn gather(pieces: &[Piece], reply: &Reply, items: &[Vec<u8>]) -> Vec<u8> {
    let bytes = |piece: &Piece| match piece {
        Piece::Bytes(range) => reply.bytes[range.clone()].to_vec(),
        Piece::Item { item, range } => items[*item][range.clone()].to_vec(),
    };
    pieces.iter().flat_map(bytes).collect()
}

/// Returns the content of a chunk of a reply after its Writes, checked to lie within the chunk that was offered.
#[must_use]
pub fn written(offered: &[Segment], returned: &[Segment], reply: &Reply, items: &[Vec<u8>]) -> Vec<u8> {
    assert_eq!(offered.len(), returned.len());
    let mut content = Vec::new();
    for (offered, returned) in offered.iter().zip(returned) {
        assert!(returned.length <= offered.length && returned.stag == offered.stag);
        let mut at = returned.offset;
        let mine = |write: &&crate::Write| {
            write.stag == offered.stag
                && (offered.offset..=offered.offset + u64::from(offered.length)).contains(&write.offset)
        };
        for write in reply.writes.iter().filter(mine) {
            let bytes = gather(std::slice::from_ref(&write.source), reply, items);
            assert_eq!(write.offset, at, "a segment is filled from its start, without gaps");
            at += bytes.len() as u64;
            content.extend(bytes);
        }
        assert_eq!(at - returned.offset, u64::from(returned.length));
    }
    content
}

/// Gives a responder a peer's message, and answers the call with as many bytes as its chunks can take, or twice as
/// many. Checks that no operation leaves the peer's chunks or the limits.
pub fn messages(data: &[u8]) {
    let Some((how, data)) = data.split_first() else { return };
    let mut responder = Responder::new(LIMITS, &LINUX, &LINUX);
    let mut stats = Stats::default();
    let call = match responder.receive(data, &mut stats) {
        Received::Call(call) => call,
        Received::Answer(answer) => {
            let (header, rest) = Header::parse(&answer, 0).map_or((None, &[][..]), |(a, b)| (Some(a), b));
            assert!(rest.is_empty() && data[..4] == answer[..4]);
            let is_error = header.is_none_or(|header| matches!(header.body, Body::Error(RdmaError::Chunk)));
            return assert!(is_error && responder.in_flight() == 0);
        }
        Received::Discard | Received::Close => return assert_eq!(responder.in_flight(), 0),
    };
    assert!(call.fetch_bytes() <= LIMITS.fetch_bytes_max && call.reads().len() <= LIMITS.segments_max);
    let fetched: u64 = call.reads().iter().map(|read| u64::from(read.source.length)).sum();
    assert_eq!(fetched, u64::from(call.fetch_bytes()));
    // A position-zero chunk holds the message itself.
    let Ok(reader) = call.reader(data, data) else {
        let _ = responder.refuse(&call, crate::Refusal::Xid, &mut stats);
        return assert_eq!(responder.in_flight(), 0);
    };
    execute(reader);
    let room = call.write_chunk_bytes(0).unwrap_or(100).min(1 << 20);
    let length = u32::try_from(room).unwrap() * u32::from(1 + how % 2);
    let stream = vec![7; usize::from(*how) * 16];
    let items = [Item { position: (stream.len() / 2) & !3, length }];
    let lists = Header::parse(data, LIMITS.segments_max).map(|(header, _)| header.body);
    let Ok(Body::Msg(lists) | Body::NoMsg(lists)) = lists else { panic!("a call without chunk lists") };
    match responder.reply(&call, &stream, &items, &mut stats) {
        Ok(reply) => check(&lists, &reply, &stream, length),
        Err(refusal) => {
            let _ = responder.refuse(&call, refusal, &mut stats);
        }
    }
    assert_eq!(responder.in_flight(), 0);
}

/// Reads the headers of a call, and its arguments as data items.
fn execute(mut reader: Reader<'_>) {
    if message::Call::read(&mut reader).is_ok() {
        while reader.reducible(1 << 20).is_ok() {}
        let _ = reader.finish();
    }
}

/// Checks that each Write is within a segment that the peer has offered for writing.
fn check(lists: &ChunkLists, reply: &Reply, stream: &[u8], length: u32) {
    let sent: usize = reply.send.iter().map(Piece::len).sum();
    assert!(sent <= 4096);
    let mut written = 0;
    for write in &reply.writes {
        let bytes = write.source.len() as u64;
        let mut offered = lists.writes.iter().flatten().chain(lists.reply.iter().flatten());
        assert!(bytes > 0);
        assert!(offered.any(|it| {
            it.stag == write.stag
                && write.offset >= it.offset
                && write.offset + bytes <= it.offset + u64::from(it.length)
        }));
        written += bytes;
    }
    let all = written + sent as u64;
    assert!(all >= stream.len() as u64 + u64::from(length));
    if let Some(stag) = reply.invalidate {
        assert!(lists.segments().any(|segment| segment.stag == stag));
    }
}

/// Returns the inputs that a corpus begins with.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let segment = |stag, length| Segment { stag: rdma::Stag(stag), length, offset: 7 << 32 };
    let read =
        |position, stag, length| crate::header::ReadSegment { position, segment: segment(stag, length) };
    let rpc = [7_u32, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let lists = [
        ChunkLists::default(),
        ChunkLists { reads: vec![read(40, 1, 5), read(40, 2, 8)], ..ChunkLists::default() },
        ChunkLists { writes: vec![vec![segment(3, 1000), segment(4, 24)], vec![]], ..ChunkLists::default() },
        ChunkLists {
            reply: Some(vec![segment(5, 124), segment(6, 65536), segment(7, 4)]),
            ..ChunkLists::default()
        },
    ];
    let header = |body| Header { xid: 7, version: 1, credits: 128, body };
    let mut seeds: Vec<Vec<u8>> = lists.map(|lists| message(&header(Body::Msg(lists)), &rpc)).into();
    let long = ChunkLists { reads: vec![read(0, 1, 96), read(0, 2, 5104)], ..ChunkLists::default() };
    seeds.push(message(&header(Body::NoMsg(long)), &[]));
    seeds.push(message(&header(Body::Done), &[0; 16]));
    seeds.push(message(&header(Body::Error(RdmaError::Version { low: 1, high: 2 })), &[0; 8]));
    seeds.into_iter().map(|seed| [vec![3], seed].concat()).collect()
}
