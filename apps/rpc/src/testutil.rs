//! A requester's memory, for tests, and the fuzz targets (feature `testutil`).

use crate::header::{Body, ChunkLists, Header, RdmaError, Segment};
use crate::message;
use crate::private_data::PrivateData;
use crate::xdr::{Chunk, Data, Reader, Writer, padding};
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
        assert!(offered.any(|segment| {
            segment.stag == write.stag
                && write.offset >= segment.offset
                && write.offset + bytes <= segment.offset + u64::from(segment.length)
        }));
        written += bytes;
    }
    let all = written + sent as u64;
    assert!(all >= stream.len() as u64 + u64::from(length));
    if let Some(stag) = reply.invalidate {
        assert!(lists.segments().any(|segment| segment.stag == stag));
    }
}

/// Reads the RPC header of a call. Checks that it is that of the stream, or refused with a reply to the same call.
pub fn calls(data: &[u8]) {
    let mut reader = Reader::new(data);
    match message::Call::read(&mut reader) {
        Ok(call) => {
            assert_eq!(call.xid.to_be_bytes(), data[..4]);
            assert_eq!(usize::try_from(reader.position()).unwrap() + reader.rest().len(), data.len());
            if let message::Credential::Sys(sys) = call.credential {
                assert!(sys.groups.len() <= message::GROUPS_MAX);
            }
        }
        Err(message::CallError::Refused(reply)) => {
            assert!(reply[..4] == data[..4] && reply[4..8] == [0, 0, 0, 1] && reply.len() % 4 == 0);
        }
        Err(message::CallError::NotACall) => {}
    }
}

/// Longest item that [`arguments`] accepts, in bytes.
const ITEM_MAX: usize = 64;

/// Reads a stream as items whose types the first 16 bytes select, and data items from a chunk at the position that the
/// next two bytes select. Checks that the items are as long as the stream says, and that their encoding is.
pub fn arguments(data: &[u8]) {
    let Some((types, data)) = data.split_first_chunk::<16>() else { return };
    let Some(([position, length], data)) = data.split_first_chunk() else { return };
    let chunk = Chunk { position: u32::from(*position) * 4, offset: 7, length: (*length).into() };
    let mut reader = Reader::with_chunks(data, std::slice::from_ref(&chunk));
    let (mut again, mut chunk_bytes, mut is_used) = (Writer::new(), 0, false);
    for kind in types {
        let done = match kind % 7 {
            0 => reader.u32().map(|word| again.u32(word)),
            1 => reader.u64().map(|word| again.u64(word)),
            2 => reader.bool().map(|flag| again.bool(flag)),
            3 => reader.opaque(ITEM_MAX).map(|item| again.opaque(item)),
            4 => reader.fixed((kind / 7).into()).map(|item| again.fixed(item)),
            5 => reader.option(Reader::u32).map(|word| {
                again.bool(word.is_some());
                word.into_iter().for_each(|word| again.u32(word));
            }),
            _ => reader.reducible(ITEM_MAX).map(|item| match item {
                Data::Inline(item) => again.opaque(item),
                Data::Fetched { offset, length } => {
                    assert!(offset == chunk.offset && length <= chunk.length && length as usize <= ITEM_MAX);
                    chunk_bytes = length as usize + padding(length as usize);
                    is_used = true;
                    again.u32(length);
                }
            }),
        };
        if done.is_err() {
            return;
        }
        let read = usize::try_from(reader.position()).unwrap();
        assert_eq!(again.position() + chunk_bytes, read);
        assert_eq!(read - chunk_bytes + reader.rest().len(), data.len());
    }
    assert_eq!(reader.finish().is_ok(), is_used);
}

/// Returns the inputs that the corpus of [`calls`] begins with.
#[must_use]
pub fn call_seeds() -> Vec<Vec<u8>> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let sys = [7, 0, 2, 100_003, 3, 1, 1, 28, 9, 4, 0x686f_7374, 1000, 1000, 1, 4, 0, 0];
    vec![
        words(&[7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]),
        words(&sys),
        words(&[7, 0, 3, 100_003, 3, 0, 0, 0, 0, 0]),
        words(&[7, 0, 2, 100_003, 4, 1, 6, 8, 1, 2, 0, 0]),
        words(&[7, 1, 0, 0, 0, 0]),
    ]
}

/// Returns the inputs that the corpus of [`arguments`] begins with.
#[must_use]
pub fn argument_seeds() -> Vec<Vec<u8>> {
    let seed = |types: [u8; 16], chunk: [u8; 2], words: &[u32]| {
        let words = words.iter().flat_map(|word| word.to_be_bytes());
        types.into_iter().chain(chunk).chain(words).collect()
    };
    let mixed = [0, 1, 2, 3, 32, 5, 6, 5, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        seed(mixed, [0, 0], &[1, 2, 3, 1, 5, 0x6162_6364, 0x6500_0000, 0x6162_6364, 1, 9, 4, 7, 0]),
        seed([6, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1, 5], &[5, 8, 0, 1, 2, 3]),
        seed([3; 16], [9, 9], &[64, 0, 0]),
    ]
}

/// Returns the inputs that the corpus of [`messages`] begins with.
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
