//! Tests of the order in which segments are built and sent.

use rdma::Access;
use tcp_stack::Duration;

use super::client::Session;
use super::lab::{Lab, REGION, Setup, TOKEN};
use super::{SECOND, assert_empty};

/// The answer to a Read is larger than the congestion window and the send queue.
const BYTES: u32 = 2 << 20;
/// Segments that one service builds at least.
const SEGMENTS_MIN: u32 = 8;

/// An acknowledgment that opens the window sends what is queued before more is built in its place, and no poll builds
/// more than half a window, or eight segments.
#[test]
fn queued_segments_are_sent_before_the_next_ones_are_built() {
    for mtu in [1500, 9000] {
        let mut lab = Lab::new(Setup { mtu, ..Setup::default() });
        let conn = lab.connect(REGION, Session::region("lab", Access::REMOTE_READ, TOKEN, lab.client.crc));
        lab.run_until("an answer", SECOND, |lab| lab.client.rdma(conn).answer.is_some());
        let to = lab.client.memory.add(vec![0; BYTES as usize]).unwrap();
        lab.client.read(conn, (to, 0), BYTES, 0);
        let (mut late, mut polls) = (0, 0);
        while lab.client.rdma(conn).completed == 0 {
            lab.poll_once();
            polls += 1;
            assert!(polls < 1_000_000, "the Read does not complete");
            let (emitted, before) = &lab.emitted_last;
            let (Some(before), [after_poll, after]) = (before, lab.send_queue_bytes) else { continue };
            let waiting = before.send_queue_bytes - before.in_flight;
            let segment = u32::from(before.emss);
            if *emitted > 0 && waiting >= segment {
                assert!(after_poll <= before.send_queue_bytes, "built first, MTU {mtu}");
                late += u32::from(after > after_poll);
                // The window was opened by the acknowledgment that arrived in this poll.
                let window = before.cwnd + 2 * segment;
                let most = (window / 2).max(SEGMENTS_MIN * segment);
                assert!(after - after_poll <= most, "{} bytes at once, MTU {mtu}", after - after_poll);
            }
        }
        assert!(late > 2, "{late} times, MTU {mtu}");
        lab.client.established(conn).1.disconnect(Duration::ZERO);
        lab.run_until("the end", 60 * SECOND, |lab| {
            lab.client.rdma(conn).ended.is_some() && lab.conns() == 0
        });
        assert_empty(&mut lab);
    }
}
