//! Headers against the bytes of RFC 8166 §4.7, those that Linux sends, and round trips of any header.

use iwarp_rpc::PrivateData;
use iwarp_rpc::header::{Body, ChunkLists, Header, HeaderError, RdmaError, ReadSegment, Segment};
use iwarp_rpc::testutil::message;
use iwarp_rpc::xdr::{Chunk, Data, Reader, Writer, XdrError};
use proptest::collection::vec;
use proptest::prelude::*;
use rdma::Stag;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn segment(stag: u32, length: u32, offset: u64) -> Segment {
    Segment { stag: Stag(stag), length, offset }
}

fn header(body: Body) -> Header {
    Header { xid: 0xabcd_0001, version: 1, credits: 128, body }
}

/// A message and its bytes are the same thing, in both directions.
fn same(header: &Header, payload: &[u8], bytes: &[u8]) {
    assert_eq!(message(header, payload), bytes);
    assert_eq!(Header::parse(bytes, 100), Ok((header.clone(), payload)));
}

#[test]
fn a_message_without_chunks_has_28_bytes_before_the_payload() {
    let bytes = words(&[0xabcd_0001, 1, 128, 0, 0, 0, 0, 0xabcd_0001]);
    same(&header(Body::Msg(ChunkLists::default())), &bytes[28..], &bytes);
}

/// RFC 8166 §4.7: `1 PHLOO 1 PHLOO 0`, `1 3 HLOO HLOO HLOO 1 2 HLOO HLOO 0`, `1 2 HLOO HLOO`.
#[test]
fn chunk_lists_are_those_of_the_examples() {
    let lists = ChunkLists {
        reads: [(112, 1), (112, 2)]
            .map(|(position, stag)| ReadSegment { position, segment: segment(stag, 9, 5 << 32 | 6) })
            .into(),
        writes: vec![vec![segment(3, 4, 1 << 32 | 2); 3], vec![segment(4, 5, 0); 2]],
        reply: Some(vec![segment(5, 6, 7); 2]),
    };
    let (three, four, five) = ([3, 4, 1, 2], [4, 5, 0, 0], [5, 6, 0, 7]);
    let mut expected = vec![0xabcd_0001, 1, 128, 1];
    expected.extend([1, 112, 1, 9, 5, 6, 1, 112, 2, 9, 5, 6, 0]);
    expected.extend([&[1, 3][..], &three, &three, &three, &[1, 2], &four, &four, &[0]].concat());
    expected.extend([&[1, 2][..], &five, &five].concat());
    same(&header(Body::NoMsg(lists)), &[], &words(&expected));
}

#[test]
fn errors_have_the_fixed_form() {
    let versions = RdmaError::Version { low: 1, high: 1 };
    same(&header(Body::Error(versions)), &[], &words(&[0xabcd_0001, 1, 128, 4, 1, 1, 1]));
    same(&header(Body::Error(RdmaError::Chunk)), &[], &words(&[0xabcd_0001, 1, 128, 4, 2]));
    same(&header(Body::Done), &[], &words(&[0xabcd_0001, 1, 128, 3]));
}

#[test]
fn malformed_headers_say_what_is_wrong() {
    let parse = |rest: &[u32], max| {
        let bytes = words(&[&[7, 1, 1], rest].concat());
        Header::parse(&bytes, max).map(|_| ())
    };
    assert_eq!(parse(&[2, 0, 0, 0, 0, 0], 9), Err(HeaderError::Procedure(2)));
    assert_eq!(parse(&[5, 0, 0, 0], 9), Err(HeaderError::Procedure(5)));
    assert_eq!(parse(&[0, 2, 0, 0], 9), Err(HeaderError::Xdr(XdrError::Value(2))), "a flag");
    assert_eq!(parse(&[0, 0, 0], 9), Err(HeaderError::Xdr(XdrError::Truncated)));
    assert_eq!(parse(&[0, 1, 6, 1, 1, 0, 0, 0, 0, 0], 9), Err(HeaderError::Xdr(XdrError::Value(6))));
    let last = [0, 1, 0, 1, 1, u32::MAX, u32::MAX, 0, 0, 0];
    assert_eq!(parse(&last, 9), Err(HeaderError::Wrapping));
    let none = [0, 1, 0, 1, 0, u32::MAX, u32::MAX, 0, 0, 0];
    assert_eq!(parse(&none, 9), Ok(()), "no byte at the last offset");
    assert_eq!(parse(&none, 0), Err(HeaderError::Segments));
    assert_eq!(parse(&[0, 0, 1, u32::MAX, 0, 0], 9), Err(HeaderError::Segments), "a count without segments");
    assert_eq!(parse(&[0, 0, 1, 0, 1, 0, 0, 0], 2), Ok(()), "two empty write chunks");
    assert_eq!(parse(&[0, 0, 1, 0, 1, 0, 0, 0], 1), Err(HeaderError::Segments));
    assert_eq!(Header::parse(&words(&[7, 2, 1, 0, 0, 0, 0]), 9).map(|_| ()), Err(HeaderError::Version));
}

#[test]
fn private_data_is_that_of_linux() {
    let linux = PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 4096 };
    let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    assert_eq!(linux.emit(), bytes);
    assert_eq!(PrivateData::parse(&bytes), linux);
    // Behind IRD and ORD, at any alignment.
    assert_eq!(PrivateData::parse(&[&[0, 1, 0x80, 1, 9][..], &bytes].concat()), linux);
    let reserved = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 255, 0];
    let expected = PrivateData { remote_invalidation: false, send_bytes: 262_144, receive_bytes: 1024 };
    assert_eq!(PrivateData::parse(&reserved), expected);
    for other in [&[][..], &bytes[..7], &[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3], &[0; 64]] {
        assert_eq!(PrivateData::parse(other), PrivateData::default(), "{other:02x?}");
    }
    for bytes in [1024, 4096, 65536, 262_144] {
        let data = PrivateData { remote_invalidation: false, send_bytes: bytes, receive_bytes: 1024 };
        assert_eq!(PrivateData::parse(&data.emit()), data);
    }
    let large = PrivateData { send_bytes: u32::MAX, receive_bytes: 1, ..linux };
    assert_eq!(large.emit()[6..], [255, 0]);
}

/// The position counts what was removed: a chunk is found only where it belongs.
#[test]
fn a_reader_reinserts_chunks_where_they_belong() {
    let mut writer = Writer::new();
    writer.u32(1);
    writer.u32(5);
    writer.u32(2);
    writer.opaque(b"abc");
    let bytes = writer.into_bytes();
    for length in [5, 8] {
        let chunks = [Chunk { position: 8, offset: 64, length }];
        let mut reader = Reader::with_chunks(&bytes, &chunks);
        assert_eq!(reader.u32(), Ok(1));
        assert_eq!(reader.finish(), Err(XdrError::Chunk));
        assert_eq!(reader.reducible(5), Ok(Data::Fetched { offset: 64, length: 5 }));
        assert_eq!(reader.position(), 16);
        assert_eq!((reader.u32(), reader.opaque(3)), (Ok(2), Ok(&b"abc"[..])));
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(reader.u32(), Err(XdrError::Truncated));
    }
    for (position, length) in [(8, 4), (8, 6), (8, 0), (4, 5), (0, 5), (12, 5)] {
        let chunks = [Chunk { position, offset: 0, length }];
        let mut reader = Reader::with_chunks(&bytes, &chunks);
        let read = reader.u32().and_then(|_| reader.reducible(100));
        assert!(read.is_err(), "chunk at {position} with {length} bytes: {read:?}");
    }
    let mut reader = Reader::new(&bytes);
    assert_eq!((reader.u32(), reader.reducible(4)), (Ok(1), Err(XdrError::TooLong)));
}

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let any = (any::<u32>(), any::<u32>(), 0..u64::MAX - u64::from(u32::MAX));
    vec(any.prop_map(|(stag, length, offset)| segment(stag, length, offset)), 0..5)
}

prop_compose! {
    fn lists()(
        reads in vec((0_u32..1 << 20, segments()), 0..4),
        writes in vec(segments(), 0..4),
        reply in proptest::option::of(segments()),
    ) -> ChunkLists {
        let read = |position: u32, segment| ReadSegment { position: position * 4, segment };
        let chunk = |(at, segments): (_, Vec<_>)| segments.into_iter().map(move |segment| read(at, segment));
        let reads = reads.into_iter().flat_map(chunk);
        ChunkLists { reads: reads.collect(), writes, reply }
    }
}

proptest! {
    #[test]
    fn any_header_is_read_back(
        lists in lists(), long: bool, xid: u32, credits: u32, payload in vec(any::<u8>(), 0..64),
        cut: prop::sample::Index,
    ) {
        let body = if long { Body::NoMsg(lists) } else { Body::Msg(lists) };
        let header = Header { xid, version: 1, credits, body };
        let bytes = message(&header, &payload);
        prop_assert_eq!(Header::parse(&bytes, 100), Ok((header, &payload[..])));
        // No shorter header is mistaken for a whole one.
        let head = bytes.len() - payload.len();
        prop_assert!(Header::parse(&bytes[..cut.index(head)], 100).is_err());
    }

    #[test]
    fn opaque_items_are_read_back(items in vec(vec(any::<u8>(), 0..40), 0..10)) {
        let mut writer = Writer::new();
        items.iter().for_each(|item| writer.opaque(item));
        let bytes = writer.into_bytes();
        prop_assert_eq!(bytes.len() % 4, 0);
        let mut reader = Reader::new(&bytes);
        for item in &items {
            prop_assert_eq!(reader.clone().reducible(40), Ok(Data::Inline(item)));
            prop_assert_eq!(reader.opaque(40), Ok(&item[..]));
        }
        prop_assert_eq!(reader.position(), bytes.len() as u64);
    }
}
