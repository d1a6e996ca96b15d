//! Requests of verbs whose work depends on other objects are divided, or do not look at them.

use core::time::Duration;

use rdma::EndpointConfig;
use rdma::verbs::*;

/// Two queue pairs in error that complete to one queue of `cqe` slots.
fn queue_pairs(cqe: u32) -> (Device<Vec<u8>>, CqId, [QpNum; 2]) {
    let mut device = Device::new(Limits::default(), EndpointConfig::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(cqe).unwrap());
    let cap = QpCap { max_recv_wr: 4096, ..QpCap::default() };
    let qps = [(); 2].map(|()| {
        let qp = device.create_qp(QpInit { cap, ..QpInit::new(pd, cq) }).unwrap();
        device.modify_qp(qp, QpState::Error, Duration::ZERO).unwrap();
        qp
    });
    (device, cq, qps)
}

fn post(device: &mut Device<Vec<u8>>, qp: QpNum, wr_ids: core::ops::Range<u64>) {
    for wr_id in wr_ids {
        device.post_recv(qp, &RecvWr { wr_id, sg_list: &[] }).unwrap();
    }
}

/// Polls up to `max` completions.
fn poll(device: &mut Device<Vec<u8>>, cq: CqId, max: usize) -> Vec<(QpNum, u64)> {
    let mut out = vec![WorkCompletion::default(); max];
    let polled = device.poll_cq(cq, &mut out).unwrap();
    out.iter().take(polled).map(|wc| (wc.qp_num, wc.wr_id)).collect()
}

#[test]
fn completions_of_a_queue_pair_are_dropped_in_parts_and_those_of_others_stay_in_order() {
    for polled_meanwhile in [0, 1, 7, 40] {
        let (mut device, cq, [a, b]) = queue_pairs(4096);
        for wr_id in 0..500 {
            post(&mut device, a, wr_id..wr_id + 1);
            post(&mut device, b, wr_id..wr_id + 1);
        }
        let (mut parts, mut of_b, mut posted) = (0, Vec::new(), 500);
        while !device.purge_qp(a, 10).unwrap() {
            parts += 1;
            of_b.extend(poll(&mut device, cq, polled_meanwhile).into_iter().filter(|(qp, _)| *qp == b));
            post(&mut device, b, posted..posted + 1);
            posted += 1;
        }
        let least = if polled_meanwhile < 10 { 20 } else { 5 };
        assert!(parts >= least, "{parts} parts of ten entries");
        let rest = poll(&mut device, cq, 4096);
        assert!(rest.iter().all(|(qp, _)| *qp == b), "a completion of the other queue pair is left");
        of_b.extend(rest);
        assert_eq!(of_b, (0..posted).map(|wr_id| (b, wr_id)).collect::<Vec<_>>());
        device.modify_qp(a, QpState::Idle, Duration::ZERO).unwrap();
        assert_eq!(device.query_qp(a).unwrap().recv_used, 0);
    }
}

#[test]
fn a_queue_pair_without_completions_looks_at_no_others() {
    let (mut device, _, [a, b]) = queue_pairs(4096);
    post(&mut device, b, 0..4096);
    assert_eq!(device.purge_qp(a, 0), Ok(true));
    // With its last completion, the search ends.
    let (mut device, _, [a, b]) = queue_pairs(8192);
    post(&mut device, a, 0..3);
    post(&mut device, b, 0..4096);
    assert_eq!((device.purge_qp(a, 2), device.purge_qp(a, 1)), (Ok(false), Ok(true)));
    assert_eq!(device.purge_qp(b, 4096), Ok(true));
}

#[test]
fn only_a_queue_pair_in_error_is_purged() {
    let (mut device, cq, _) = queue_pairs(16);
    let pd = device.alloc_pd().unwrap();
    let idle = device.create_qp(QpInit::new(pd, cq)).unwrap();
    assert_eq!(device.purge_qp(idle, 1), Err(VerbsError::State));
    device.destroy_qp(idle).unwrap();
    assert_eq!(device.purge_qp(idle, 1), Err(VerbsError::NoSuchObject));
}

#[test]
fn a_completion_queue_grows_in_parts_while_it_is_used() {
    for polled_meanwhile in [0, 3, 40] {
        let (mut device, cq, [a, _]) = queue_pairs(1024);
        post(&mut device, a, 0..900);
        let (mut parts, mut seen, mut posted) = (0, Vec::new(), 900);
        while !device.resize_cq_part(cq, 4096, 20).unwrap() {
            parts += 1;
            seen.extend(poll(&mut device, cq, polled_meanwhile));
            if posted < 1000 {
                post(&mut device, a, posted..posted + 1);
                posted += 1;
            }
        }
        assert!(parts >= 10, "{parts} parts");
        post(&mut device, a, posted..posted + 2000);
        seen.extend(poll(&mut device, cq, 4096));
        assert_eq!(seen, (0..posted + 2000).map(|wr_id| (a, wr_id)).collect::<Vec<_>>());
    }
}

/// The queue pairs of a queue that overruns are failed in parts, each of which flushes a bounded number of requests.
#[test]
fn an_overrun_fails_its_queue_pairs_in_parts() {
    const QPS: usize = 100;
    let (mut device, cq, [first, _]) = queue_pairs(64);
    let pd = device.alloc_pd().unwrap();
    let cap = QpCap { max_recv_wr: 200, ..QpCap::default() };
    let qps: Vec<QpNum> = (0..QPS)
        .map(|_| {
            let qp = device.create_qp(QpInit { cap, ..QpInit::new(pd, cq) }).unwrap();
            post(&mut device, qp, 0..200);
            qp
        })
        .collect();
    let other_cq = device.create_cq(64).unwrap();
    let other = device.create_qp(QpInit { cap, ..QpInit::new(pd, other_cq) }).unwrap();
    let failed = |device: &Device<Vec<u8>>| {
        qps.iter().filter(|qp| device.query_qp(**qp).unwrap().state == QpState::Error).count()
    };
    // Flushed at once: the queue has no room for the last.
    post(&mut device, first, 0..65);
    assert!(device.has_overrun());
    let mut before = failed(&device);
    assert!(before <= 5, "{before} queue pairs of 200 requests at once");
    let mut parts = 0;
    while device.has_overrun() {
        device.fail_overrun_part();
        let now = failed(&device);
        assert!(now - before <= 5, "{} queue pairs of 200 requests at once", now - before);
        (before, parts) = (now, parts + 1);
    }
    assert_eq!(before, QPS);
    assert!(parts >= QPS / 5, "{parts} parts");
    assert_eq!(device.query_qp(other).unwrap().state, QpState::Idle, "of another queue");
}

#[test]
fn discarded_completions_are_gone_and_the_queue_is_of_use() {
    let (mut device, cq, [a, b]) = queue_pairs(64);
    post(&mut device, a, 0..64);
    device.discard_completions(cq).unwrap();
    post(&mut device, b, 0..64);
    assert_eq!(poll(&mut device, cq, 100), (0..64).map(|wr_id| (b, wr_id)).collect::<Vec<_>>());
    assert_eq!(poll(&mut device, cq, 100), []);
}

#[test]
fn an_event_that_is_taken_is_raised_again_and_one_of_a_destroyed_object_is_dropped() {
    let mut device = Device::<Vec<u8>>::new(Limits::default(), EndpointConfig::default());
    let pd = device.alloc_pd().unwrap();
    let srqs = [(); 2].map(|()| device.create_srq(pd, 4, 1).unwrap());
    for _ in 0..3 {
        for srq in srqs {
            for _ in 0..2 {
                device.modify_srq(srq, 1).unwrap();
            }
        }
        let raised: Vec<_> = core::iter::from_fn(|| device.poll_async_event()).collect();
        assert_eq!(raised, srqs.map(AsyncEvent::SrqLimitReached));
    }
    device.modify_srq(srqs[0], 1).unwrap();
    device.modify_srq(srqs[1], 1).unwrap();
    device.destroy_srq(srqs[0]).unwrap();
    assert_eq!(device.poll_async_event(), Some(AsyncEvent::SrqLimitReached(srqs[1])));
    assert!(!device.has_async_event());
}

/// Pages of 4 KiB that this process has.
#[cfg(not(miri))]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[cfg(not(miri))]
#[test]
fn a_queue_pair_that_is_not_used_takes_hardly_any_memory() {
    let mut device = Device::<Vec<u8>>::new(Limits::default(), EndpointConfig::default());
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
    let cap = QpCap {
        max_send_wr: 4096,
        max_recv_wr: 4096,
        max_send_sge: 16,
        max_recv_sge: 16,
        max_inline_data: 512,
    };
    let before = resident();
    for _ in 0..16 {
        device.create_qp(QpInit { cap, ..QpInit::new(pd, cq) }).unwrap();
    }
    let each = (resident().saturating_sub(before)) / 16;
    assert!(each < 32, "{each} pages for each queue pair");
}
