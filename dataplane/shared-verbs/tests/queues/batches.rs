//! Batches of requests, which are posted together or not at all.

use crate::common::*;
use iwarp_alloc_counter::{counted, watched};
use rdma::testutil::verbs::{CAP, ends};
use rdma::verbs::*;

fn write(b: &Program, wr_id: u64) -> SendWr<'static> {
    SendWr::new(wr_id, b.party.write_to(0), &[])
}

#[test]
fn the_worker_sees_a_batch_once_it_has_ended() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    assert!(a.send.begin_batch());
    assert!(!a.send.begin_batch(), "it is open");
    for wr_id in 1..4 {
        a.send.push(&write(&b, wr_id)).unwrap();
    }
    lab.run();
    assert_eq!(a.poll(false), []);
    a.send.end_batch();
    lab.run();
    assert_eq!(ends(&a.poll(false)), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
}

#[test]
fn an_aborted_batch_posts_nothing_and_leaves_its_slots_free() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let slots = u64::from(CAP.max_send_wr);
    a.post(1, b.party.write_to(0), &[]);
    for _ in 0..5 {
        a.send.begin_batch();
        for wr_id in 1..slots {
            a.send.push(&write(&b, 100 + wr_id)).unwrap();
        }
        assert_eq!(a.send.push(&write(&b, 99)), Err(PostError::QueueFull));
        a.send.abort_batch();
        lab.run();
    }
    a.send.begin_batch();
    a.send.push(&write(&b, 2)).unwrap();
    a.send.end_batch();
    lab.run();
    assert_eq!(ends(&a.poll(false)), [1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
    // Every slot is free again.
    for wr_id in 0..slots {
        a.send.push(&write(&b, wr_id)).unwrap();
    }
}

#[test]
fn work_of_a_worker_that_has_ended_is_flushed_once_the_batch_is_closed() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    a.post(1, b.party.write_to(0), &[]);
    a.send.begin_batch();
    a.send.push(&write(&b, 2)).unwrap();
    assert_eq!(a.send.flushed(), [], "the batch may still be aborted");
    a.send.abort_batch();
    assert_eq!(ends(&a.send.flushed()), [(1, WcStatus::WrFlushError)]);
}

#[test]
fn batches_allocate_nothing() {
    let mut lab = Lab::new();
    let (mut a, b) = pair(&mut lab, 64);
    let requests = [write(&b, 1), write(&b, 2)];
    let before = counted();
    watched(|| {
        a.objects.send.begin_batch();
        for wr in &requests {
            a.objects.send.push(wr).unwrap();
        }
        a.objects.send.abort_batch();
        a.objects.send.begin_batch();
        a.objects.send.push(&requests[0]).unwrap();
        a.objects.send.end_batch();
    });
    assert_eq!(counted(), before);
}
