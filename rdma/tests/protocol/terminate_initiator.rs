//! An initiator's handling of a responder's errors and Terminates, byte by byte.

use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::{AccessError, CloseHow, ErrorCode, Event, RegionId, StreamError, WcStatus};

/// Returns an initiator with a read of 100 bytes outstanding; the responder's segments are built by hand.
fn reading() -> (Side, RegionId) {
    let mut side = Side::initiator(initiator_config(), &request(b""));
    let region = side.memory.add(vec![0; 100]).unwrap();
    side.transmit();
    assert_eq!(side.wire.take(), mpa(REQUEST, 16, 16, b""));
    side.deliver(&mpa(REPLY, 16, 0, b""));
    side.endpoint.post_read(5, slice(region, 0, 100), rdma::Stag(0xabc), 0x77).unwrap();
    side.transmit();
    let read = untagged(UNTAGGED_LAST, READ_REQUEST, 0, [1, 1, 0], &read_header(1, 0, 100, 0xabc, 0x77));
    assert_eq!(ulpdus(&side.wire.take()), [read]);
    side.events.clear();
    (side, region)
}

#[track_caller]
fn response_refused(before: &[Vec<u8>], segment: &[u8], kind: u8, code: u8, error: StreamError) {
    let (mut side, _) = reading();
    for segment in before {
        side.deliver(&fpdu(segment));
    }
    side.deliver(&fpdu(segment));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [terminate_about(kind, code, 0xc0, segment, &[])], "{error:?}");
    let events = side.drain_events();
    let flushed =
        |event: &Event| matches!(event, Event::Completion { wr_id: 5, status: WcStatus::WrFlushError, .. });
    assert_eq!(events.iter().filter(|event| flushed(event)).count(), 1);
    assert_eq!(events.last(), Some(&Event::Close { how: CloseHow::Fin }));
}

#[test]
fn unexpected_read_responses() {
    use AccessError::*;
    let response = |control, stag, to, len| tagged(control, READ_RESPONSE, stag, to, &vec![9; len]);
    let refuse = |segment: Vec<u8>, code, error| {
        response_refused(&[], &segment, 0x11, code, StreamError::Tagged(error))
    };
    refuse(response(TAGGED_LAST, 2, 0, 100), 0x00, InvalidStag);
    refuse(response(TAGGED_LAST, 1, 1, 99), 0x01, Bounds);
    refuse(response(TAGGED_LAST, 1, 0, 101), 0x01, Bounds);
    refuse(response(TAGGED_LAST, 1, u64::MAX, 100), 0x03, Wrap);
    let first = response(TAGGED_MORE, 1, 0, 60);
    let refuse_after = |segment: Vec<u8>, kind, code, error| {
        response_refused(core::slice::from_ref(&first), &segment, kind, code, error);
    };
    refuse_after(first.clone(), 0x11, 0x01, StreamError::Tagged(Bounds));
    refuse_after(response(TAGGED_LAST, 1, 60, 41), 0x11, 0x01, StreamError::Tagged(Bounds));
    refuse_after(response(TAGGED_LAST, 1, 60, 39), 0x02, 0xff, StreamError::ReadResponseShort);
    response_refused(&[], &response(TAGGED_LAST, 1, 0, 0), 0x02, 0xff, StreamError::ReadResponseShort);
    let whole = response(TAGGED_LAST, 1, 0, 100);
    let (mut side, region) = reading();
    side.deliver(&fpdu(&whole));
    assert_eq!(side.bytes(region), [9; 100]);
    side.deliver(&fpdu(&whole));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [terminate_about(0x02, 0x06, 0xc0, &whole, &[])]);
}

#[test]
fn a_terminate_is_reported_and_never_answered() {
    let about = terminate_about(0, 0, 0, &tagged(TAGGED_LAST, WRITE, 1, 2, &[]), &[]);
    let headers = about[22..].to_vec();
    type Case = ([u8; 4], Vec<u8>, [u8; 3], bool);
    let cases: [Case; 6] = [
        ([0x11, 0x01, 0xc0, 0x00], headers.clone(), [1, 1, 1], false),
        ([0x01, 0x02, 0xe0, 0x00], headers, [0, 1, 2], false),
        ([0x20, 0x02, 0x00, 0x00], Vec::new(), [2, 0, 2], false),
        // Linux soft-iWARP: CRC error, no buffer, access right.
        ([0x02, 0x02, 0x00, 0x00], Vec::new(), [2, 0, 2], true),
        ([0x21, 0x02, 0x03, 0x00], Vec::new(), [1, 2, 2], true),
        ([0x10, 0x02, 0x07, 0x00], Vec::new(), [0, 1, 2], true),
    ];
    for (raw, rest, [layer, etype, code], siw_order) in cases {
        let (mut side, _) = reading();
        side.deliver(&fpdu(&terminate(raw, &rest)));
        assert_eq!(side.transmit().frames, 0);
        let events = side.drain_events();
        let code = ErrorCode { layer, etype, code };
        assert!(matches!(events[0], Event::Completion { status: WcStatus::WrFlushError, .. }));
        assert_eq!(events[1], Event::TerminateReceived { code, raw, siw_order });
        assert_eq!(events[2..], [Event::Close { how: CloseHow::Fin }]);
        assert_eq!(side.endpoint.info().terminate, Some(code));
    }
    // Malformed Terminates.
    for message in [&[][..], &[0x11], &[0x11, 0x01, 0xff]] {
        let (mut side, _) = reading();
        side.deliver(&fpdu(&untagged(UNTAGGED_LAST, TERMINATE, 0, [2, 7, 3], message)));
        assert_eq!(side.transmit().frames, 0);
        let events = side.drain_events();
        assert!(matches!(events[1], Event::TerminateReceived { .. }));
        assert_eq!(events[2], Event::Close { how: CloseHow::Fin });
    }
}

#[test]
fn an_initiator_reports_terms_that_it_cannot_accept() {
    // RFC 6581 §9.1: the responder's ORD exceeds the local IRD.
    let mut side = Side::initiator(initiator_config(), &request(b""));
    side.transmit();
    side.wire.take();
    side.deliver(&mpa(REPLY, 16, 129, b""));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [terminate([0x20, 0x06, 0, 0], &[])]);
    assert_eq!(side.drain_events().last(), Some(&Event::Close { how: CloseHow::Fin }));
    // RFC 6581 §9.2: the initiator can send a Write as RTR, the responder requires a Read.
    let rtr = Some(rdma::wire::mpa::RtrOptions { send: false, write: true, read: false });
    let mut side = Side::initiator(initiator_config(), &rdma::ConnectRequest { rtr, ..request(b"") });
    side.transmit();
    assert_eq!(side.wire.take(), mpa(REQUEST, 0x8010, 0x8010, b""));
    side.deliver(&mpa(REPLY, 0x8010, 0x4010, b""));
    side.transmit();
    assert_eq!(ulpdus(&side.wire.take()), [terminate([0x20, 0x07, 0, 0], &[])]);
    assert_eq!(side.drain_events().last(), Some(&Event::Close { how: CloseHow::Fin }));
}
