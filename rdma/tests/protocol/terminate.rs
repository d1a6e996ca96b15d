//! Every error of a peer, byte by byte: the Terminate that it receives, and that the error has no other effect.

use rdma::service::encode_request;
use rdma::testutil::bytes::*;
use rdma::testutil::target::*;
use rdma::testutil::*;
use rdma::{AccessError, EndpointConfig, Event, StreamError};

/// Checks that the segment is refused with this error.
#[track_caller]
fn refused(segment: &[u8], kind: u8, code: u8, error: StreamError) {
    let mut target = Target::new();
    target.send(segment);
    target.ends_with(&terminate_about(kind, code, 0xc0, segment, &[]), error);
}

#[track_caller]
fn refused_bare(segment: &[u8], kind: u8, code: u8, error: StreamError) {
    let mut target = Target::new();
    target.send(segment);
    target.ends_with(&terminate([kind, code, 0, 0], &[]), error);
}

/// As `refused`, for a segment that depends on the target's grants.
#[track_caller]
fn refused_by(make: impl Fn(&Target) -> Vec<u8>, kind: u8, code: u8, error: StreamError) {
    let mut target = Target::new();
    let segment = make(&target);
    target.send(&segment);
    target.ends_with(&terminate_about(kind, code, 0xc0, &segment, &[]), error);
}

#[test]
fn mpa_crc() {
    let mut target = Target::new();
    let mut bad = fpdu(&tagged(TAGGED_LAST, WRITE, target.stag, 0, &[0xff; 64]));
    bad[40] ^= 1;
    target.side.deliver(&bad);
    assert_eq!(target.side.stats.mpa.crc_errors, 1);
    target.ends_with(&terminate([0x20, 0x02, 0, 0], &[]), StreamError::Crc);
}

#[test]
fn mpa_length_too_short_for_the_header() {
    for len in 0..14 {
        refused_bare(&[0xc1; 14][..len], 0x20, 0x03, StreamError::FpduLength);
    }
    for len in 1..18 {
        refused_bare(&[0x41; 18][..len], 0x20, 0x03, StreamError::FpduLength);
    }
}

#[test]
fn ddp_version() {
    for version in [0, 2, 3] {
        refused_by_bare(
            |target| tagged(0xc0 | version, WRITE, target.stag, 0, &[1]),
            0x11,
            0x04,
            StreamError::TaggedVersion,
        );
        refused_by_bare(
            |_| untagged(0x40 | version, SEND, 0, [0, 1, 0], &[1]),
            0x12,
            0x06,
            StreamError::UntaggedVersion,
        );
    }
}

#[track_caller]
fn refused_by_bare(make: impl Fn(&Target) -> Vec<u8>, kind: u8, code: u8, error: StreamError) {
    let mut target = Target::new();
    let segment = make(&target);
    target.send(&segment);
    target.ends_with(&terminate([kind, code, 0, 0], &[]), error);
}

#[test]
fn rdmap_version() {
    for version in [0x00, 0x80, 0xc0] {
        refused_by(
            |target| tagged(TAGGED_LAST, version, target.stag, 0, &[1]),
            0x02,
            0x05,
            StreamError::RdmapVersion,
        );
        refused(
            &untagged(UNTAGGED_LAST, version | 3, 0, [0, 1, 0], &[1]),
            0x02,
            0x05,
            StreamError::RdmapVersion,
        );
    }
}

#[test]
fn unexpected_opcodes() {
    let error = StreamError::UnexpectedOpcode;
    // Tagged: every opcode but Write and Read Response; and a response while no read is outstanding.
    for op in 1..16 {
        refused_by(|target| tagged(TAGGED_LAST, 0x40 | op, target.stag, 0, &[1]), 0x02, 0x06, error);
    }
    // Untagged: the two tagged opcodes, and the unassigned ones.
    for op in [0, 2, 12, 13, 14, 15] {
        refused(&untagged(UNTAGGED_LAST, 0x40 | op, 0, [0, 1, 0], &[1; 8]), 0x02, 0x06, error);
    }
}

#[test]
fn tagged_stag() {
    let error = StreamError::Tagged(AccessError::InvalidStag);
    refused_by(|target| tagged(TAGGED_LAST, WRITE, target.stag ^ 1, 0, &[1]), 0x11, 0x00, error);
    refused_by(|target| tagged(TAGGED_MORE, WRITE, target.stag ^ 0x100, 0, &[1]), 0x11, 0x00, error);
    refused(&tagged(TAGGED_LAST, WRITE, 0, 0, &[1]), 0x11, 0x00, error);
    // DDP has no code for a missing right.
    let rights = StreamError::Tagged(AccessError::Rights);
    refused_by(|target| tagged(TAGGED_LAST, WRITE, target.blind, 0, &[1]), 0x11, 0x00, rights);
}

#[test]
fn tagged_after_revocation() {
    let mut target = Target::new();
    let segment = tagged(TAGGED_LAST, WRITE, target.stag, 0, &[1]);
    assert_eq!(target.side.stags.revoke_region(target.lab), 4);
    target.send(&segment);
    let expected = terminate_about(0x11, 0x00, 0xc0, &segment, &[]);
    target.ends_with(&expected, StreamError::Tagged(AccessError::InvalidStag));
}

#[test]
fn tagged_bounds() {
    let error = StreamError::Tagged(AccessError::Bounds);
    for (to, len) in [(4096, 1), (4095, 2), (0, 4097), (1 << 40, 1), (u64::MAX - 1, 1)] {
        refused_by(|target| tagged(TAGGED_LAST, WRITE, target.stag, to, &vec![1; len]), 0x11, 0x01, error);
    }
}

#[test]
fn tagged_stream() {
    let error = StreamError::Tagged(AccessError::NotAssociated);
    refused_by(|target| tagged(TAGGED_LAST, WRITE, target.foreign, 0, &[1]), 0x11, 0x02, error);
}

#[test]
fn tagged_wrap() {
    let error = StreamError::Tagged(AccessError::Wrap);
    for (to, len) in [(u64::MAX, 1), (u64::MAX - 3, 100)] {
        refused_by(|target| tagged(TAGGED_LAST, WRITE, target.stag, to, &vec![1; len]), 0x11, 0x03, error);
    }
}

#[test]
fn queue_numbers() {
    let error = StreamError::QueueNumber;
    for op in [SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE] {
        for qn in [1, 2, 3, u32::MAX] {
            refused(&untagged(UNTAGGED_LAST, op, 0, [qn, 1, 0], &[1]), 0x12, 0x01, error);
        }
    }
    for qn in [0, 2, 3] {
        refused(&untagged(UNTAGGED_LAST, READ_REQUEST, 0, [qn, 1, 0], &[0; 28]), 0x12, 0x01, error);
    }
    for qn in [0, 1, 3] {
        refused(&untagged(UNTAGGED_LAST, TERMINATE, 0, [qn, 1, 0], &[0; 4]), 0x12, 0x01, error);
    }
}

#[test]
fn no_buffer_for_a_send() {
    for payload in [&[][..], &[1; 100]] {
        let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], payload);
        refused(&segment, 0x12, 0x02, StreamError::NoBuffer);
    }
}

/// With this IRD, `taken` Reads are accepted, and the next ends the stream.
fn takes_reads(ird: u16, taken: u32) {
    let mut target = Target::with(EndpointConfig::default(), ird);
    for msn in 1..=taken {
        let segment = read_request(msn, 7, 16, target.stag, 0);
        target.send(&segment);
    }
    let one_more = read_request(taken + 1, 7, 16, target.stag, 0);
    target.send(&one_more);
    target.ends_with(&terminate_about(0x12, 0x02, 0xc0, &one_more, &[]), StreamError::NoBuffer);
}

#[test]
fn more_reads_than_negotiated() {
    takes_reads(2, 2);
    // An IRD of 0, as a peer negotiates that does not read.
    let mut target = Target::with(EndpointConfig::default(), 0);
    let first = read_request(1, 7, 0, target.stag, 0);
    target.send(&first);
    target.ends_with(&terminate_about(0x12, 0x02, 0xc0, &first, &[]), StreamError::NoBuffer);
}

/// Linux's siw rounds the lengths of its queues up to a power of two, and has as many Reads outstanding.
#[test]
fn reads_up_to_the_next_power_of_two_are_answered() {
    takes_reads(5, 8);
}

#[test]
fn message_sequence() {
    let error = StreamError::MsnRange;
    for msn in [0, 2, u32::MAX] {
        refused_by(|target| read_request(msn, 7, 16, target.stag, 0), 0x12, 0x03, error);
        refused(&untagged(UNTAGGED_LAST, SEND, 0, [0, msn, 0], &[1]), 0x12, 0x03, error);
    }
    // The same message again.
    let mut target = Target::new();
    let segment = read_request(1, 7, 16, target.stag, 0);
    target.send(&segment);
    assert_eq!(target.replies().len(), 1);
    target.send(&segment);
    target.ends_with(&terminate_about(0x12, 0x03, 0xc0, &segment, &[]), error);
}

/// Returns a target with a buffer of 8 bytes posted for Sends.
fn with_buffer() -> Target {
    let mut target = Target::new();
    let region = target.side.memory.add(vec![0; 8]).unwrap();
    target.side.endpoint.post_recv(1, slice(region, 0, 8)).unwrap();
    target
}

#[test]
fn message_offsets() {
    for (first, then) in [(None, 1), (None, u32::MAX), (Some(3), 2), (Some(3), 4), (Some(3), 0)] {
        let mut target = with_buffer();
        if let Some(len) = first {
            target.send(&untagged(UNTAGGED_MORE, SEND, 0, [0, 1, 0], &vec![1; len]));
        }
        let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, then], &[1]);
        target.send(&segment);
        target.ends_with(&terminate_about(0x12, 0x04, 0xc0, &segment, &[]), StreamError::MessageOffset);
    }
    let error = StreamError::MessageOffset;
    let header = read_header(7, 0, 16, 7, 0);
    refused(&untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 1], &header), 0x12, 0x04, error);
}

#[test]
fn messages_too_long() {
    let error = StreamError::MessageTooLong;
    let mut target = with_buffer();
    let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], &[1; 9]);
    target.send(&segment);
    target.ends_with(&terminate_about(0x12, 0x05, 0xc0, &segment, &[]), error);

    let mut target = with_buffer();
    target.send(&untagged(UNTAGGED_MORE, SEND, 0, [0, 1, 0], &[1; 8]));
    let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 8], &[1]);
    target.send(&segment);
    target.ends_with(&terminate_about(0x12, 0x05, 0xc0, &segment, &[]), error);

    // RFC 5040 §4.2 Figure 5: a Read Request carries no ULP payload.
    let mut header = read_header(7, 0, 16, 7, 0);
    header.push(0);
    refused(&untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 0], &header), 0x12, 0x05, error);
}

#[test]
fn read_requests_cut_short() {
    let error = StreamError::ReadRequestLength;
    let header = read_header(7, 0, 16, 7, 0);
    for len in [0, 1, 27] {
        refused(&untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 0], &header[..len]), 0x02, 0xff, error);
    }
    refused(&untagged(UNTAGGED_MORE, READ_REQUEST, 0, [1, 1, 0], &header), 0x02, 0xff, error);
}

#[test]
fn reads_without_the_right() {
    use AccessError::*;
    type Source = fn(&Target) -> (u32, u64, u32);
    let cases: [(Source, u8, AccessError); 10] = [
        (|t| (t.stag ^ 1, 0, 1), 0x00, InvalidStag),
        (|t| (t.stag ^ 0x100, 0, 1), 0x00, InvalidStag),
        (|_| (0, 0, 1), 0x00, InvalidStag),
        (|t| (t.stag, 4096, 1), 0x01, Bounds),
        (|t| (t.stag, 4000, 97), 0x01, Bounds),
        (|t| (t.stag, 0, u32::MAX), 0x01, Bounds),
        (|t| (t.blind, 0, 1), 0x02, Rights),
        (|t| (t.foreign, 0, 1), 0x03, NotAssociated),
        (|t| (t.stag, u64::MAX, 1), 0x04, Wrap),
        (|t| (t.stag, u64::MAX - 5, 100), 0x04, Wrap),
    ];
    for (source, code, error) in cases {
        let mut target = Target::new();
        let (stag, to, size) = source(&target);
        let segment = read_request(1, 7, size, stag, to);
        target.send(&segment);
        let expected = terminate_about(0x01, code, 0xe0, &segment, &segment[18..]);
        target.ends_with(&expected, StreamError::Read(error));
    }
}

#[test]
fn a_read_whose_right_ends_midway_reports_its_progress() {
    let mut target = Target::new();
    target.side.wire = Wire::new(1448, 1448);
    let segment = read_request(1, 7, 4096, target.stag, 0);
    target.send(&segment);
    let first = target.replies();
    assert_eq!((first.len(), first[0].len()), (1, 14 + 1428));
    let sent = first[0].len() - 14;
    assert_eq!(first[0][14..], pattern(LAB, 0x5a)[..sent]);
    assert!(target.side.stags.revoke(rdma::Stag(target.stag)));
    // RFC 5040 §4.8: "the RDMA Read Request Header is updated to reflect the current location".
    let left = read_header(7, 0x1000 + sent as u64, 4096 - sent as u32, target.stag, sent as u64);
    let expected = terminate_about(0x01, 0x00, 0xe0, &segment, &left);
    target.ends_with(&expected, StreamError::Read(AccessError::InvalidStag));
}

#[test]
fn a_write_whose_right_ends_midway_is_placed_no_further() {
    let mut target = Target::new();
    let old = pattern(LAB, 0x5a);
    // Bytes placed before the error appear in the counters; they do not change memory.
    target.send(&tagged(TAGGED_MORE, WRITE, target.stag, 0, &old[..64]));
    assert_eq!(target.side.stats.rdmap.payload_bytes_placed, 64);
    assert_eq!(target.side.stags.revoke_region(target.lab), 4);
    let rest = tagged(TAGGED_LAST, WRITE, target.stag, 64, &[0xff; 64]);
    target.send(&rest);
    assert_eq!(target.side.stats.rdmap.payload_bytes_placed, 64);
    let expected = terminate_about(0x11, 0x00, 0xc0, &rest, &[]);
    target.ends_with(&expected, StreamError::Tagged(AccessError::InvalidStag));
}

#[test]
fn stags_that_may_not_be_invalidated() {
    use AccessError::*;
    type Named = fn(&Target) -> u32;
    let cases: [(Named, AccessError); 4] = [
        (|t| t.stag, Rights),
        (|t| t.foreign, NotAssociated),
        (|t| t.given ^ 1, InvalidStag),
        (|_| 0, InvalidStag),
    ];
    for op in [SEND_INVALIDATE, SEND_SE_INVALIDATE] {
        for (named, error) in cases {
            let mut target = with_buffer();
            let segment = untagged(UNTAGGED_LAST, op, named(&target), [0, 1, 0], &[1]);
            target.send(&segment);
            let live = target.side.stags.len();
            assert_eq!(live, 4, "nothing is invalidated");
            // RFC 5040 §7.1 item 2: "the Terminated RDMA Header field is set to zero".
            let expected = terminate_about(0x01, 0x09, 0xe0, &segment, &[0; 28]);
            target.ends_with(&expected, StreamError::Invalidate(error));
        }
    }
}

#[test]
fn an_invalidated_stag_is_revoked() {
    let mut target = with_buffer();
    let segment = untagged(UNTAGGED_LAST, SEND_SE_INVALIDATE, target.given, [0, 1, 0], &[1; 8]);
    target.send(&segment);
    assert!(target.replies().is_empty());
    let invalidated = Some(rdma::Stag(target.given));
    let event = Event::Received { wr_id: 1, bytes: 8, solicited: true, invalidated, immediate: None };
    assert_eq!(target.side.drain_events(), [event]);
    assert_eq!(target.side.stags.len(), 3);
}

#[test]
fn the_first_error_is_the_one_reported() {
    let mut target = Target::new();
    let good = tagged(TAGGED_LAST, WRITE, target.stag, 0, &[0xff; 8]);
    let first = tagged(TAGGED_LAST, WRITE, target.stag, 4090, &[0xff; 8]);
    let second = read_request(9, 7, 16, 0, 0);
    let bytes: Vec<u8> = [&first, &second, &good].iter().flat_map(|segment| fpdu(segment)).collect();
    target.side.deliver(&bytes);
    assert_eq!(target.side.bytes(target.lab), pattern(LAB, 0x5a), "nothing after the error is placed");
    assert_eq!(target.side.stats.drops.after_error, 2);
    let replies = target.replies();
    assert_eq!(replies, [terminate_about(0x11, 0x01, 0xc0, &first, &[])]);
}

#[test]
fn reads_before_the_error_are_not_answered_after_it() {
    let mut target = Target::new();
    let read = read_request(1, 7, 16, target.stag, 0);
    let bad = tagged(TAGGED_LAST, WRITE, 0, 0, &[1]);
    target.side.deliver(&[fpdu(&read), fpdu(&bad)].concat());
    let expected = terminate_about(0x11, 0x00, 0xc0, &bad, &[]);
    target.ends_with(&expected, StreamError::Tagged(AccessError::InvalidStag));
}

#[test]
fn messages_of_no_bytes_do_not_validate_their_stag() {
    let mut target = Target::new();
    target.send(&tagged(TAGGED_LAST, WRITE, 0xdead_beef, u64::MAX, &[]));
    target.send(&read_request(1, 0x1234_5678, 0, 0xdead_beef, u64::MAX));
    let replies = target.replies();
    assert_eq!(replies, [tagged(TAGGED_LAST, READ_RESPONSE, 0x1234_5678, 0x1000, &[])]);
    assert!(target.side.events.is_empty());
    assert_eq!(target.side.stats.rdmap.in_rdma_writes, 1);
}

#[test]
fn reserved_bits_and_unused_words_are_ignored() {
    let mut target = Target::new();
    target.send(&tagged(TAGGED_LAST | 0x3c, WRITE | 0x30, target.stag, 0, &[1, 2]));
    let mut read = read_request(1, 7, 2, target.stag, 0);
    read[0] |= 0x3c;
    read[1] |= 0x30;
    read[2..6].fill(0xff);
    target.send(&read);
    assert_eq!(target.replies(), [tagged(TAGGED_LAST, READ_RESPONSE, 7, 0x1000, &[1, 2])]);
}

#[test]
fn a_responder_waits_for_the_first_fpdu() {
    let mut side = Side::responder(EndpointConfig { send_queue: 1, ..EndpointConfig::default() });
    let lab = side.add_region("lab", vec![3; 64], BOTH);
    side.deliver(&mpa(REQUEST, 4, 4, &encode_request("lab", BOTH, b"").unwrap()));
    side.transmit();
    side.wire.take();
    side.endpoint.post_write(1, slice(lab, 0, 4), rdma::Stag(5), 0).unwrap();
    assert!(!side.endpoint.has_output());
    assert_eq!(side.transmit().frames, 0);
    side.deliver(&fpdu(&tagged(TAGGED_LAST, WRITE, 1, 0, &[])));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [tagged(TAGGED_LAST, WRITE, 5, 0, &[3; 4])]);
}
