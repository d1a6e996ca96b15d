//! Headers of DDP and RDMAP, against the figures of their RFCs.

use proptest::prelude::*;
use rdma::wire::ddp::{Header, TaggedHeader, UntaggedHeader};
use rdma::wire::rdmap::{ControlField, OPCODES, Opcode, ReadRequest};
use rdma::wire::{MessageOffset, Msn, ParseError, QueueNumber, Stag, TaggedOffset};

/// RFC 5040 Appendix A.1: an RDMA Write's only segment.
const TAGGED: [u8; 14] = [0xC1, 0x40, 0x11, 0x22, 0x33, 0x44, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08];

fn tagged() -> TaggedHeader {
    TaggedHeader {
        last: true,
        version: 1,
        ulp_control: 0x40,
        stag: Stag(0x1122_3344),
        offset: TaggedOffset(0x0102_0304_0506_0708),
    }
}

/// RFC 5044 §4.4, Figure 5: the header of the Send, with MSN 1.
const UNTAGGED: [u8; 18] = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

fn untagged() -> UntaggedHeader {
    UntaggedHeader {
        last: true,
        version: 1,
        ulp_control: 0x43,
        ulp_word: 0,
        queue: QueueNumber::SEND,
        msn: Msn::FIRST,
        offset: MessageOffset(0),
    }
}

/// RFC 5040 §4.4, Figure 6.
const READ_REQUEST: [u8; 28] = [
    0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x80, 0, 0, 0, 0, 0,
    0, 7,
];

fn read_request() -> ReadRequest {
    ReadRequest {
        sink_stag: Stag(0xAABB_CCDD),
        sink_offset: TaggedOffset(0x0000_0001_0000_0002),
        size: 0x0004_0000,
        source_stag: Stag(0x1122_3344),
        source_offset: TaggedOffset(0x8000_0000_0000_0007),
    }
}

#[test]
fn headers_are_as_drawn() {
    assert_eq!(TaggedHeader::parse(&TAGGED), Ok((tagged(), &[][..])));
    let mut out = [0; TaggedHeader::LEN];
    tagged().emit(&mut out);
    assert_eq!(out, TAGGED);

    assert_eq!(UntaggedHeader::parse(&UNTAGGED), Ok((untagged(), &[][..])));
    let mut out = [0; UntaggedHeader::LEN];
    untagged().emit(&mut out);
    assert_eq!(out, UNTAGGED);

    assert_eq!(ReadRequest::parse(&READ_REQUEST), Ok((read_request(), &[][..])));
    let mut out = [0; ReadRequest::LEN];
    read_request().emit(&mut out);
    assert_eq!(out, READ_REQUEST);
}

#[test]
fn every_short_prefix_is_truncated() {
    for have in 0..TAGGED.len() {
        let expected = ParseError::Truncated { need: 14, have };
        assert_eq!(TaggedHeader::parse(&TAGGED[..have]).unwrap_err(), expected);
        assert_eq!(Header::parse(&TAGGED[..have]).unwrap_err(), expected);
    }
    for have in 0..UNTAGGED.len() {
        let expected = ParseError::Truncated { need: 18, have };
        assert_eq!(UntaggedHeader::parse(&UNTAGGED[..have]).unwrap_err(), expected);
        if have > 0 {
            assert_eq!(Header::parse(&UNTAGGED[..have]).unwrap_err(), expected);
        }
    }
    for have in 0..READ_REQUEST.len() {
        let expected = ParseError::Truncated { need: 28, have };
        assert_eq!(ReadRequest::parse(&READ_REQUEST[..have]).unwrap_err(), expected);
    }
}

#[test]
fn the_t_bit_selects_the_header() {
    assert_eq!(Header::parse(&TAGGED).unwrap().0, Header::Tagged(tagged()));
    assert_eq!(Header::parse(&UNTAGGED).unwrap().0, Header::Untagged(untagged()));
    assert_eq!(TaggedHeader::parse(&UNTAGGED).unwrap_err(), ParseError::TagFlag);
    let mut long = TAGGED.to_vec();
    long.extend_from_slice(&[0; 4]);
    assert_eq!(UntaggedHeader::parse(&long).unwrap_err(), ParseError::TagFlag);
}

// RFC 5041 §4.1, Rsvd: "This field MUST be set to zero on transmit, and not checked on receive."
#[test]
fn reserved_bits_are_ignored() {
    let mut bytes = TAGGED;
    bytes[0] |= 0x3C;
    assert_eq!(TaggedHeader::parse(&bytes).unwrap().0, tagged());
    let mut bytes = UNTAGGED;
    bytes[0] |= 0x3C;
    assert_eq!(UntaggedHeader::parse(&bytes).unwrap().0, untagged());
    // RFC 5040 §4.1: "Bits 26-27; Reserved. MUST be set to zero by sender, ignored by the receiver."
    assert_eq!(ControlField::parse(0x43 | 0x30), ControlField::new(Opcode::Send));
}

#[test]
fn opcodes_and_their_table_agree() {
    for bits in 0..=15u8 {
        let opcode = Opcode::from_bits(bits);
        assert_eq!(opcode.bits(), bits);
        assert_eq!(ControlField::parse(ControlField::new(opcode).emit()), ControlField::new(opcode));
        assert_eq!(opcode.row().map(|row| row.opcode), Some(opcode));
    }
    let table: Vec<_> = OPCODES
        .iter()
        .map(|row| {
            let queue = row.queue.map_or(-1, |queue| i64::from(queue.0));
            (row.opcode.bits(), queue, row.invalidates, row.solicited, row.header_len, row.payload)
        })
        .collect();
    // RFC 5040 Figures 4 and 5, RFC 7306 Figures 2 and 3; -1 stands for "tagged". The last four are our own.
    let expected = [
        (0, -1, false, false, 0, true),
        (1, 1, false, false, 28, false),
        (2, -1, false, false, 0, true),
        (3, 0, false, false, 0, true),
        (4, 0, true, false, 0, true),
        (5, 0, false, true, 0, true),
        (6, 0, true, true, 0, true),
        (7, 2, false, false, 4, false),
        (8, 0, false, false, 8, false),
        (9, 0, false, true, 8, false),
        (10, 1, false, false, 52, false),
        (11, 3, false, false, 12, false),
        (12, 0, false, false, 0, true),
        (13, 0, false, true, 0, true),
        (14, 4, false, false, 8, false),
        (15, 5, false, false, 16, true),
    ];
    assert_eq!(table, expected);
    for (row, bits) in OPCODES.iter().zip(0u8..) {
        assert_eq!(row.opcode, Opcode::from_bits(bits), "{}", row.name);
    }
}

// RFC 5041 §4.3: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF."
#[test]
fn message_sequence_numbers_wrap() {
    assert_eq!(Msn::default(), Msn(1));
    assert_eq!(Msn(u32::MAX).next(), Msn(0));
    assert_eq!(TaggedOffset(u64::MAX).checked_add(1), None);
}

proptest! {
    #[test]
    fn ddp_headers_survive_the_round_trip(
        last: bool, version in 0u8..4, ulp_control: u8, ulp_word: u32, stag: u32, offset: u64,
        queue: u32, msn: u32, mo: u32, payload: Vec<u8>,
    ) {
        let tagged =
            TaggedHeader { last, version, ulp_control, stag: Stag(stag), offset: TaggedOffset(offset) };
        let mut bytes = [0; TaggedHeader::LEN];
        tagged.emit(&mut bytes);
        let segment = [&bytes[..], &payload].concat();
        prop_assert_eq!(Header::parse(&segment), Ok((Header::Tagged(tagged), &payload[..])));

        let untagged = UntaggedHeader {
            last, version, ulp_control, ulp_word,
            queue: QueueNumber(queue), msn: Msn(msn), offset: MessageOffset(mo),
        };
        let mut bytes = [0; UntaggedHeader::LEN];
        untagged.emit(&mut bytes);
        let segment = [&bytes[..], &payload].concat();
        prop_assert_eq!(Header::parse(&segment), Ok((Header::Untagged(untagged), &payload[..])));
        let header = Header::Untagged(untagged);
        prop_assert_eq!((header.version(), header.last(), header.ulp_control()), (version, last, ulp_control));
        prop_assert_eq!(header.len(), UntaggedHeader::LEN);
    }

    #[test]
    fn read_requests_survive_the_round_trip(sink: u32, to: u64, size: u32, source: u32, from: u64) {
        let request = ReadRequest {
            sink_stag: Stag(sink), sink_offset: TaggedOffset(to), size,
            source_stag: Stag(source), source_offset: TaggedOffset(from),
        };
        let mut bytes = [0; ReadRequest::LEN];
        request.emit(&mut bytes);
        prop_assert_eq!(ReadRequest::parse(&bytes), Ok((request, &[][..])));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let header = Header::parse(&bytes);
        let len = |control: &u8| if control & 0x80 == 0 { 18 } else { 14 };
        prop_assert_eq!(header.is_ok(), bytes.first().is_some_and(|control| bytes.len() >= len(control)));
        prop_assert_eq!(ReadRequest::parse(&bytes).is_ok(), bytes.len() >= 28);
    }
}
