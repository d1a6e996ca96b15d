//! Local faults: the Terminate that the peer receives, byte by byte, for each of them.

use rdma::service::encode_request;
use rdma::testutil::bytes::*;
use rdma::testutil::target::*;
use rdma::testutil::*;
use rdma::{AccessError, CloseHow, EndpointConfig, Event, Scope, StreamError};

#[test]
fn a_terminate_without_room_waits_and_then_resets() {
    let mut target = Target::new();
    target.side.wire = Wire::new(1448, 0);
    target.send(&tagged(TAGGED_LAST, WRITE, 0, 0, &[1]));
    assert!(target.side.transmit().pending);
    assert!(target.side.events.is_empty());
    let due = target.side.endpoint.next_deadline().unwrap();
    target.side.pass_time(due);
    let (code, _) = StreamError::Tagged(AccessError::InvalidStag).code();
    assert_eq!(target.side.drain_events(), [Event::Failed { code }, Event::Close { how: CloseHow::Reset }]);
    assert_eq!(target.side.stats.rdmap.terminates_unsent, 1);
    assert_eq!(target.side.endpoint.next_deadline(), None);
}

/// Grants more than the region has: the access check passes and the memory refuses.
fn beyond(target: &mut Target) -> u32 {
    let len = LAB as u64 * 2;
    target.side.stags.grant(target.lab, len, ALL, Scope::Stream(STREAM)).unwrap().0
}

#[test]
fn bytes_that_cannot_be_placed_end_the_stream() {
    let mut target = Target::new();
    let stag = beyond(&mut target);
    let segment = tagged(TAGGED_LAST, WRITE, stag, LAB as u64 - 4, &[0xff; 8]);
    target.send(&segment);
    target.ends_with(&terminate_about(0x10, 0x00, 0xc0, &segment, &[]), StreamError::Place);
    // A posted buffer that is longer than its region.
    let mut target = Target::new();
    let region = target.side.memory.add(vec![7; 8]).unwrap();
    target.side.endpoint.post_recv(1, slice(region, 0, 64)).unwrap();
    let segment = untagged(UNTAGGED_LAST, SEND, 0, [0, 1, 0], &[0xff; 9]);
    target.send(&segment);
    assert_eq!(target.side.bytes(region), [7; 8]);
    target.ends_with(&terminate_about(0x10, 0x00, 0xc0, &segment, &[]), StreamError::Place);
}

#[test]
fn bytes_that_cannot_be_fetched_end_the_stream() {
    let mut target = Target::new();
    let stag = beyond(&mut target);
    let segment = read_request(1, 7, 16, stag, LAB as u64 - 8);
    target.send(&segment);
    target.ends_with(&terminate_about(0x02, 0x07, 0xc0, &segment, &[]), StreamError::Fetch);
    let mut target = Target::new();
    let stag = beyond(&mut target);
    let mut header = 0_u32.to_be_bytes().to_vec();
    header.extend_from_slice(&1_u32.to_be_bytes());
    header.extend_from_slice(&stag.to_be_bytes());
    header.extend_from_slice(&(LAB as u64).to_be_bytes());
    [1, 0, 0, u64::MAX].iter().for_each(|value: &u64| header.extend_from_slice(&value.to_be_bytes()));
    let segment = untagged(UNTAGGED_LAST, 0x4a, 0, [1, 1, 0], &header);
    target.send(&segment);
    target.ends_with(&terminate_about(0x02, 0x07, 0xc0, &segment, &[]), StreamError::Fetch);
}

/// RFC 5040 §7.1 item 1: "the Terminate Message and Error code are sent instead of the request".
#[test]
fn local_work_whose_bytes_are_missing_is_not_sent() {
    for write in [true, false] {
        let config = EndpointConfig { send_queue: 2, ..EndpointConfig::default() };
        let mut target = Target::with(config, 4);
        target.send(&tagged(TAGGED_LAST, WRITE, 1, 0, &[]));
        let missing = slice(target.lab, LAB as u64 - 4, 8);
        if write {
            target.side.endpoint.post_write(3, missing, rdma::Stag(9), 0).unwrap();
        } else {
            target.side.endpoint.post_send(3, missing, false, None).unwrap();
        }
        target.ends_with(&terminate([0, 0, 0, 0], &[]), StreamError::Local);
    }
}

/// RFC 6581 §9.2: code 5 "when it encounters any error locally for which the special Error Code is not defined".
#[test]
fn a_local_fault_during_setup() {
    type Fail = fn(&mut rdma::Endpoint<Vec<u8>>, core::time::Duration, &mut rdma::RdmaStats);
    for fail in [rdma::Endpoint::fail_local as Fail, rdma::Endpoint::fail_global] {
        // The Reply is sent, and no FPDU has arrived.
        let mut target = Target::new();
        fail(&mut target.side.endpoint, target.side.now, &mut target.side.stats);
        target.ends_with(&terminate([0x20, 0x05, 0, 0], &[]), StreamError::SetupFailed);
        // The Reply is not sent: no FPDU may be sent.
        let mut side = Side::responder(EndpointConfig::default());
        side.add_region("lab", pattern(LAB, 0x5a), BOTH);
        side.deliver(&mpa(REQUEST, 4, 4, &encode_request("lab", BOTH, b"").unwrap()));
        side.drain_events();
        fail(&mut side.endpoint, side.now, &mut side.stats);
        assert_eq!(side.transmit().frames, 0);
        let code = StreamError::SetupFailed.code().0;
        assert_eq!(side.drain_events(), [Event::Failed { code }, Event::Close { how: CloseHow::Reset }]);
    }
}

#[test]
fn a_global_fault_ends_every_stream() {
    let mut target = Target::new();
    target.send(&tagged(TAGGED_LAST, WRITE, 1, 0, &[]));
    target.side.endpoint.fail_global(target.side.now, &mut target.side.stats);
    target.ends_with(&terminate([0x02, 0x08, 0, 0], &[]), StreamError::Global);
}

#[test]
fn a_local_fault_ends_the_stream() {
    let mut target = Target::new();
    target.send(&tagged(TAGGED_LAST, WRITE, 1, 0, &[]));
    target.side.endpoint.fail_local(target.side.now, &mut target.side.stats);
    target.ends_with(&terminate([0, 0, 0, 0], &[]), StreamError::Local);
}
