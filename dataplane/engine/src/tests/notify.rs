//! Messages of a peer to a region that a program watches, over a link that loses and reorders.

use rdma::Access;
use tcp_stack::Duration;
use tcp_stack::testutil::Random;

use super::client::Session;
use super::lab::{Lab, REGION, Setup};
use crate::testutil::ROUGH;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// RDMA Writes behind a gap are placed at once. The bytes of those behind a message do not count for it.
#[test]
fn each_message_counts_the_bytes_before_it_whatever_arrives_first() {
    let mut placed_early = 0;
    for seed in 1..=4 {
        let mut lab = Lab::new(Setup { link: ROUGH, seed, ..Setup::default() });
        let (region, bytes) = (lab.lab, lab.region_bytes().len());
        lab.engine.memory_mut().watch(region);
        let session = Session::region("lab", Access::REMOTE_WRITE, b"", lab.client.crc);
        let conn = lab.connect(REGION, session);
        lab.run_until("an answer", TIME_LIMIT, |lab| lab.client.rdma(conn).answer.is_some());
        let from = lab.client.memory.add(vec![7; bytes]).unwrap();
        let (mut random, mut expected) = (Random::new(seed), Vec::new());
        for number in 0..60_u64 {
            let mut written = 0;
            for _ in 0..random.index(4) {
                let length = 1 + random.index(bytes.min(50_000));
                let to = random.index(bytes - length + 1) as u64;
                lab.client.write(conn, (from, 0), u32::try_from(length).unwrap(), to);
                written += length as u64;
            }
            let endpoint = lab.client.established(conn).1;
            endpoint.post_immediate(number, number.to_be_bytes(), false).unwrap();
            expected.push((Some(number.to_be_bytes()), written));
            lab.run_until("a place in the queue", TIME_LIMIT, |lab| {
                lab.client.established(conn).1.info().work_pending < 16
            });
        }
        let mut got = Vec::new();
        lab.run_until("all messages", TIME_LIMIT, |lab| {
            let taken = lab.engine.memory_mut().take_notified();
            got.extend(taken.into_iter().map(|notice| (notice.immediate, notice.written)));
            got.len() >= expected.len()
        });
        assert_eq!(got, expected, "seed {seed}");
        placed_early += lab.engine.rdma_stats().mpa.bytes_placed_early;
    }
    assert!(placed_early > 100_000, "{placed_early} bytes were placed behind a gap");
}
