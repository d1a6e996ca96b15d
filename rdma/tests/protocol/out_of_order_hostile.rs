//! A peer that sends false bytes behind a gap: it writes only where it may, nothing is delivered that the stream does
//! not contain, and placed bytes are not placed again.

use rdma::testutil::bytes::*;
use rdma::testutil::*;
use rdma::{
    Access, CrcPolicy, EndpointConfig, Event, GrantedRange, OutOfOrderPolicy, RegionId, Scope, Stag,
    StreamState,
};

/// Bytes of the window, and of the guards before and after it.
const WINDOW: usize = 8192;
const GUARD: usize = 64;

/// A responder in full operation, and an STag with which its peer may write to the window and invalidate it.
struct Lab {
    side: Side,
    lab: RegionId,
    stag: Stag,
    /// Stream position of the first FPDU.
    base: u64,
}

impl Lab {
    fn new(change: impl FnOnce(&mut EndpointConfig)) -> Self {
        let mut config = initiator_config();
        config.mpa.crc = CrcPolicy::Required;
        change(&mut config);
        let mut side = Side::responder(config);
        let lab = side.add_region("lab", vec![0; WINDOW + 2 * GUARD], BOTH);
        let private_data = rdma::service::encode_request("lab", Access::NONE, b"").unwrap();
        let mut frame = mpa(REQUEST, 4, 4, &private_data);
        if config.mpa.crc != CrcPolicy::Required {
            frame[16] &= !0x40;
        }
        side.deliver(&frame);
        side.transmit();
        side.wire.take();
        assert_eq!(side.endpoint.info().state, StreamState::ReadyToSend);
        let range = GrantedRange { region: lab, offset: GUARD as u64, bytes: WINDOW as u64, base_to: 0 };
        let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let stag = side.stags.grant_range(range, access, Scope::Stream(STREAM)).unwrap();
        let base = side.position;
        Self { side, lab, stag, base }
    }

    fn write(&self, control: u8, to: u64, bytes: &[u8]) -> Vec<u8> {
        tagged(control, WRITE, self.stag.0, to, bytes)
    }

    /// Builds an FPDU of an RDMA Write that continues.
    fn part(&self, to: u64, bytes: &[u8]) -> Vec<u8> {
        fpdu(&self.write(TAGGED_MORE, to, bytes))
    }

    fn window(&self) -> &[u8] {
        let bytes = self.side.bytes(self.lab);
        let guards = bytes[..GUARD].iter().chain(&bytes[GUARD + WINDOW..]);
        assert!(guards.copied().all(|byte| byte == 0), "an byte outside was written");
        assert_eq!(self.side.memory.faults(), 0);
        &bytes[GUARD..][..WINDOW]
    }

    /// Returns the Terminate that was sent, if any.
    fn terminate(&mut self) -> Option<Vec<u8>> {
        self.side.transmit();
        ulpdus(&self.side.wire.take()).pop()
    }

    fn is_alive(&self) -> bool {
        self.side.endpoint.info().state == StreamState::ReadyToSend
    }
}

fn fpdu_start() -> Option<Vec<u8>> {
    Some(terminate([0x20, 0x03, 0, 0], &[]))
}

// Bytes that look like an FPDU inside another's payload, whose length has arrived: not placed, and the stream
// continues.
#[test]
fn a_position_inside_a_known_fpdu_is_not_tried() {
    let mut lab = Lab::new(|_| {});
    let inner = lab.part(0, &[7; 100]);
    let payload = [vec![1; 988], inner.clone(), vec![2; 300]].concat();
    let outer = lab.part(1000, &payload);
    let at = 2 + 14 + 988;
    lab.side.deliver(&outer[..200]);
    assert!(!lab.side.out_of_order(lab.base + at as u64, &inner));
    assert_eq!(lab.side.stats.mpa.early_refused_unlocated, 1);
    // An FPDU at the end of the other is placed.
    let next = lab.part(4000, &[9; 50]);
    assert!(lab.side.out_of_order(lab.base + outer.len() as u64, &next));
    lab.side.deliver(&outer[200..]);
    lab.side.placed(next.len());
    assert!(lab.is_alive());
    assert!(lab.window()[1000..][..payload.len()] == payload && lab.window()[..1000] == [0; 1000]);
    assert!(lab.window()[4000..4050] == [9; 50]);
    assert_eq!(lab.side.stats.mpa.fpdus_in, 2);
}

#[test]
fn lengths_that_miss_a_placed_fpdu_end_the_stream() {
    let mut lab = Lab::new(|_| {});
    let early = lab.part(4000, &[9; 48]);
    // Its length ends the FPDU 4 bytes before the placed bytes, 4 bytes inside them, or after them.
    for lead in [-4_i64, 4, 60] {
        lab = Lab::new(|_| {});
        let first = lab.part(0, &[5; 98]);
        let at = (first.len() as i64 - lead) as u64;
        assert!(lab.side.out_of_order(lab.base + at, &early));
        lab.side.deliver(&first[..first.len().min(at as usize)]);
        assert_eq!(lab.terminate(), fpdu_start(), "{lead}");
        assert_eq!((lab.side.stats.mpa.boundary_errors, lab.side.stats.rdmap.in_rdma_writes), (1, 0));
        // The placed bytes stay, since the peer may write them; nothing more is placed or delivered.
        assert!(lab.window()[4000..4048] == [9; 48]);
        let window = lab.window().to_vec();
        assert!(!lab.side.out_of_order(lab.side.position + 4000, &early));
        lab.side.placed(early.len());
        lab.side.deliver(&lab.part(0, &[6; 90]));
        assert!(lab.window() == window);
    }
}

#[test]
fn an_error_before_a_placed_run_prevents_its_delivery() {
    let mut lab = Lab::new(|config| config.last_out_of_order = true);
    let mut first = lab.part(0, &[5; 100]);
    let last = fpdu(&lab.write(TAGGED_LAST, 100, &[6; 100]));
    assert!(lab.side.out_of_order(lab.base + first.len() as u64, &last));
    first[40] ^= 1;
    lab.side.deliver(&first);
    lab.side.placed(last.len());
    assert_eq!(lab.terminate(), Some(terminate([0x20, 0x02, 0, 0], &[])));
    assert_eq!(lab.side.stats.rdmap.in_rdma_writes, 0);
    assert!(lab.window()[..100] == [0; 100] && lab.window()[100..200] == [6; 100]);
    assert!(!lab.side.events.iter().any(|event| matches!(event, Event::Received { .. })));
}

// The sender segments its stream anew, with other bytes than it sent before.
#[test]
fn a_longer_segment_over_placed_bytes_places_only_the_rest() {
    let mut lab = Lab::new(|_| {});
    let parts: Vec<_> = (0..5).map(|nth| lab.part(nth * 100, &[nth as u8 + 1; 100])).collect();
    let len = parts[0].len() as u64;
    assert!(lab.side.out_of_order(lab.base + 2 * len, &parts[2]));
    let lie = lab.part(200, &[0xbb; 100]);
    let again = [&parts[1][..], &lie, &parts[3]].concat();
    assert!(!lab.side.out_of_order(lab.base + len, &again), "what lies behind what was placed waits");
    assert_eq!(lab.side.stats.mpa.early_refused_runs, 1);
    assert!(lab.window()[100..300] == [[2; 100], [3; 100]].concat()[..]);
    assert!(lab.window()[300..] == [0; WINDOW - 300]);
    lab.side.deliver(&parts[0]);
    lab.side.deliver(&again);
    lab.side.deliver(&parts[4]);
    assert!(lab.is_alive());
    assert!((0..5).all(|nth| lab.window()[nth * 100..][..100] == [nth as u8 + 1; 100]));
    assert_eq!((lab.side.stats.mpa.fpdus_in, lab.side.stats.rdmap.payload_bytes_placed), (5, 500));
}

#[test]
fn a_placed_run_is_delivered_in_parts_of_any_length() {
    let mut lab = Lab::new(|_| {});
    let parts: Vec<_> = (0..20).map(|nth| lab.part(nth * 300, &[nth as u8 + 1; 300])).collect();
    let len = parts[0].len();
    for nth in (1..20).rev() {
        assert!(lab.side.out_of_order(lab.base + (nth * len) as u64, &parts[nth]));
    }
    lab.side.deliver(&parts[0]);
    let mut left = 19 * len;
    for (turn, part) in [1, 2, 3, len - 6, 1, 2 * len, len / 2, 4000, 4].into_iter().cycle().enumerate() {
        let part = part.min(left);
        // Lengths, and other bytes than those placed.
        if turn % 3 == 2 {
            lab.side.deliver(&vec![0xbb; part]);
        } else {
            lab.side.placed(part);
        }
        left -= part;
        assert_eq!(lab.side.stats.mpa.fpdus_in, if left == 0 { 20 } else { 1 });
        if left == 0 {
            break;
        }
    }
    assert!(lab.is_alive());
    assert!((0..20).all(|nth| lab.window()[nth * 300..][..300] == [nth as u8 + 1; 300]));
    assert_eq!(lab.side.stats.mpa.bytes_copied, 6000);
}

// A Write behind a Send that invalidates its STag: placed while the STag is valid, and never afterwards.
#[test]
fn a_right_invalidated_by_a_send_in_the_gap() {
    let mut lab = Lab::new(|_| {});
    let buffer = lab.side.memory.add(vec![0; 64]).unwrap();
    lab.side.endpoint.post_recv(1, slice(buffer, 0, 64)).unwrap();
    let send = fpdu(&untagged(UNTAGGED_LAST, SEND_INVALIDATE, lab.stag.0, [0, 1, 0], b"no more"));
    let [early, late] = [0, 100].map(|to| lab.part(to, &[to as u8 + 1; 100]));
    assert!(lab.side.out_of_order(lab.base + send.len() as u64, &early));
    lab.side.deliver(&send);
    let stag = lab.stag;
    let told =
        |event: &Event| matches!(event, Event::Received { invalidated, .. } if *invalidated == Some(stag));
    assert!(lab.side.events.iter().any(told));
    let window = lab.window().to_vec();
    assert!(!lab.side.out_of_order(lab.side.position + early.len() as u64, &late));
    assert_eq!(lab.side.stats.mpa.early_refused_access, 1);
    lab.side.placed(early.len());
    assert!(lab.is_alive());
    lab.side.deliver(&late);
    let about = lab.write(TAGGED_MORE, 100, &[101; 100]);
    assert_eq!(lab.terminate(), Some(terminate_about(0x11, 0, 0xc0, &about, &[])));
    assert!(lab.window() == window);
}

// Without CRCs only the peer's markers locate an FPDU. False markers are detected when the gap has closed.
#[test]
fn false_markers_write_only_where_the_peer_may_and_end_the_stream() {
    let mut lab = Lab::new(|config| {
        (config.mpa.markers, config.mpa.crc) = (true, CrcPolicy::IfPeerAsks);
    });
    let mut stream = Vec::new();
    append_marked(&mut stream, &lab.write(TAGGED_MORE, 0, &[1; 1000]));
    // The second marker points to payload bytes that form an FPDU extending over it.
    let begin = 512 + 100;
    let inner = lab.write(TAGGED_MORE, 5000, &[7; 470]);
    let mut forged = (inner.len() as u16).to_be_bytes().to_vec();
    forged.extend_from_slice(&inner);
    let (front, behind) = forged.split_at(1024 - begin);
    stream[begin..1024].copy_from_slice(front);
    stream[1026..1028].copy_from_slice(&((1024 - begin) as u16).to_be_bytes());
    stream.resize(1028, 0);
    stream.extend_from_slice(behind);
    stream.resize(stream.len().next_multiple_of(4) + 4, 0);
    let chunk = &stream[begin..];
    assert!(lab.side.out_of_order(lab.base + begin as u64, chunk));
    assert!(lab.window()[5000..5470] == [7; 470] && lab.window()[5470..] == [0; WINDOW - 5470]);
    lab.side.deliver(&stream[..begin]);
    assert_eq!(lab.side.endpoint.info().state, StreamState::Terminating);
    assert_eq!((lab.side.stats.mpa.boundary_errors, lab.side.stats.drops.fpdu_start), (1, 1));
    assert!(lab.window()[..5000] == [0; 5000]);
}

// Under the marker policy, bytes that look like an FPDU are not tried.
#[test]
fn under_the_marker_policy_nothing_is_placed_without_a_marker() {
    let mut lab = Lab::new(|config| {
        config.mpa.markers = true;
        config.out_of_order = OutOfOrderPolicy::Markers;
    });
    let part = lab.part(0, &[7; 100]);
    assert!(!lab.side.out_of_order(lab.base + 516, &part));
    assert_eq!(lab.side.stats.mpa.early_refused_unlocated, 1);
    assert!(lab.window().iter().all(|byte| *byte == 0));
}
