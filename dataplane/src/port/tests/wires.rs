//! Ports on rings and on captures.

use std::sync::Arc;

use arrayvec::ArrayVec;
use iwarp_config::{Driver, Pcap};
use tcp_stack::{Buf, BufClass, BufPool};

use super::{batch_of, frame_bytes, push, receive, receive_bytes, send, send_bytes};
use crate::dpdk::testutil::{eal, frame, pool, pool_for};
use crate::dpdk::{BURST, Mbuf, MbufPool, Offloads, TxBatch};
use crate::port::{Port, PortError, PortSpec};

fn ring(name: &str) -> PortSpec {
    PortSpec::new(name, Driver::Ring)
}

#[test]
fn a_ring_hands_back_what_is_sent() {
    let pool = pool(255);
    let (port, mut pairs) = Port::open(eal(), &ring("p0"), &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    for (tag, len) in [(1, 14), (2, 60), (3, 1514), (4, 1518)] {
        let bytes = frame_bytes(len, tag);
        send_bytes(pair, &pool, &bytes);
        receive_bytes(pair, &bytes);
    }
    let (rx, tx) = (*pair.rx.stats(), *pair.tx.stats());
    assert_eq!((rx.frames, rx.bytes), (4, 3106));
    assert_eq!((tx.frames, tx.bytes), (4, 3106));
    assert!(rx.polls >= 4 && rx.drop_scattered == 0 && tx.drop_length == 0);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_frames, stats.tx_frames), (4, 4));
    let counters = port.extended_stats().unwrap();
    assert!(counters.contains(&("rx_good_packets".to_owned(), 4)), "{counters:?}");
    assert!(port.link().unwrap().up);
    assert_eq!(port.mac()[0], 0x02, "a locally administered address of its own");
    assert_eq!((port.queues(), port.rss().is_some(), port.offloads()), (1, false, Offloads::default()));
    drop((port, pairs));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn what_is_sent_shared_arrives_read_only() {
    let pool = pool(255);
    let (_port, mut pairs) = Port::open(eal(), &ring("p0"), &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    let mut held = frame(&pool, &frame_bytes(100, 7));
    for _ in 0..3 {
        send(pair, held.share());
        let mut got = receive(pair, |_| true);
        assert_eq!((got.bytes(), pool.in_use()), (held.bytes(), 1), "nothing is copied");
        assert!(got.is_shared() && !got.trim_front(14) && got.bytes_mut().is_none());
        assert!(held.bytes_mut().is_none(), "nor may the sender change what is on its way");
    }
    assert!(held.bytes_mut().is_some(), "it may when the receiver has let go");
    send(pair, held.share());
    let mut got = receive(pair, |_| true);
    drop(held);
    assert!(got.trim_front(14), "and so may the receiver when the sender has");
}

#[test]
fn a_full_port_leaves_the_tail_in_order() {
    let pool = pool(255);
    let spec = PortSpec { rx_descriptors: 64, ..ring("p0") };
    let (port, mut pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    let mut batch = TxBatch::new();
    let (mut next, mut sent) = (0u8, 0);
    loop {
        while !batch.is_full() {
            push(&mut batch, frame(&pool, &frame_bytes(60, next)));
            next += 1;
        }
        assert!(
            batch.push(tcp_stack::TxFrame { buf: frame(&pool, b""), offload: Default::default() }).is_err()
        );
        match pair.tx.burst(&mut batch) {
            0 => break,
            count => sent += count,
        }
    }
    assert_eq!((sent, batch.len()), (63, BURST), "a ring of 64 holds 63");
    let stats = *pair.tx.stats();
    assert_eq!((stats.frames, stats.deferred), (63, 32), "each frame is deferred once");
    let mut got = Vec::new();
    while got.len() < usize::from(next) {
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        pair.rx.burst(&mut burst);
        pair.tx.burst(&mut batch);
        got.extend(burst.iter().map(|mbuf| mbuf.bytes()[14]));
    }
    assert_eq!(got, (0..next).collect::<Vec<_>>());
    // What is left in the ring, in a batch and in queues goes with them.
    for tag in 0..10 {
        send_bytes(pair, &pool, &frame_bytes(60, tag));
    }
    push(&mut batch, frame(&pool, &frame_bytes(60, 1)));
    drop((port, pairs, batch));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn frames_that_no_port_sends_do_not_block_it() {
    let pool = pool_for(255, 4000);
    let (_port, mut pairs) = Port::open(eal(), &ring("p0"), &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    let mut batch = batch_of(frame(&pool, &frame_bytes(1519, 1)));
    push(&mut batch, frame(&pool, &frame_bytes(60, 2)));
    push(&mut batch, frame(&pool, b"thirteen byte"));
    push(&mut batch, frame(&pool, b""));
    assert_eq!(pair.tx.burst(&mut batch), 1);
    assert!(batch.is_empty());
    assert_eq!(pair.tx.stats().drop_length, 3);
    receive_bytes(pair, &frame_bytes(60, 2));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_burst_fills_what_room_there_is() {
    let pool = pool(255);
    let (_port, mut pairs) = Port::open(eal(), &ring("p0"), &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    let mut batch = TxBatch::new();
    for tag in 0..20 {
        push(&mut batch, frame(&pool, &frame_bytes(60, tag)));
    }
    assert_eq!(pair.tx.burst(&mut batch), 20);
    let mut out = ArrayVec::<Mbuf, BURST>::new();
    for _ in 0..22 {
        out.push(frame(&pool, b"there before"));
    }
    assert_eq!(pair.rx.burst(&mut out), 10);
    assert_eq!((out.len(), out[21].bytes(), out[22].bytes()[14]), (32, &b"there before"[..], 0));
    assert_eq!(pair.rx.burst(&mut out), 0, "no room, nothing lost");
    out.clear();
    assert_eq!(pair.rx.burst(&mut out), 10);
    assert_eq!(out[9].bytes()[14], 19);
}

#[test]
fn a_pair_crosses_over() {
    let (left_pool, right_pool) = (pool(255), pool(255));
    let [(left, mut left_pairs), (right, mut right_pairs)] = Port::open_pair(
        eal(),
        [&ring("left"), &ring("right")],
        [
            &[Arc::clone(&left_pool), Arc::clone(&left_pool)],
            &[Arc::clone(&right_pool), Arc::clone(&right_pool)],
        ],
    )
    .unwrap();
    assert_ne!(left.mac(), right.mac());
    for queue in 0..2 {
        send_bytes(&mut left_pairs[queue], &left_pool, &frame_bytes(99, 1));
        receive_bytes(&mut right_pairs[queue], &frame_bytes(99, 1));
        send_bytes(&mut right_pairs[queue], &right_pool, &frame_bytes(77, 2));
        receive_bytes(&mut left_pairs[queue], &frame_bytes(77, 2));
    }
    // The one end goes, the other still sends into the void.
    drop((left, left_pairs));
    send_bytes(&mut right_pairs[0], &right_pool, &frame_bytes(60, 3));
    drop((right, right_pairs));
    assert_eq!((left_pool.in_use(), right_pool.in_use()), (0, 0));
}

#[test]
fn a_ring_keeps_the_pools_of_what_is_forwarded_into_it() {
    let [left_pool, relay_pool, right_pool] = [pool(255), pool(255), pool(255)];
    let wire = |pool: &Arc<_>| {
        let pools = [&[Arc::clone(pool)][..], &[Arc::clone(&relay_pool)]];
        Port::open_pair(eal(), [&ring("end"), &ring("relay")], pools).unwrap()
    };
    let [(left, mut left_pairs), (near, mut near_pairs)] = wire(&left_pool);
    let [(right, right_pairs), (far, mut far_pairs)] = wire(&right_pool);
    far_pairs[0].tx.forwards(&near_pairs[0].rx);
    send_bytes(&mut left_pairs[0], &left_pool, &frame_bytes(60, 1));
    let forwarded = receive(&mut near_pairs[0], |_| true);
    send(&mut far_pairs[0], forwarded);
    let watched = Arc::downgrade(&left_pool);
    drop((left, left_pairs, near, near_pairs, left_pool));
    assert_eq!(watched.upgrade().map(|pool| pool.in_use()), Some(1), "a frame is in the ring to the right");
    drop((far, far_pairs));
    assert!(watched.upgrade().is_some(), "the receiver still has the ring");
    drop((right, right_pairs));
    assert!(watched.upgrade().is_none());
}

#[test]
fn jumbo_frames_cross_whole() {
    let pool = pool_for(63, 9000);
    let spec = PortSpec { mtu: 9000, ..ring("p0") };
    let (_port, mut pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
    let bytes = frame_bytes(9018, 0x5a);
    send_bytes(&mut pairs[0], &pool, &bytes);
    receive_bytes(&mut pairs[0], &bytes);
}

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let small = pool(63);
    let spec = PortSpec { mtu: 9000, ..ring("p0") };
    let refused = Port::open(eal(), &spec, &[Arc::clone(&small)]).unwrap_err();
    assert!(matches!(refused, PortError::Buffers { room: 2048, needed: 9018, .. }), "{refused}");
    let refused = Port::open(eal(), &ring("p0"), &[]).unwrap_err();
    assert!(matches!(refused, PortError::Device { .. } | PortError::Queues { .. }), "{refused}");
    let refused = Port::open_pair(eal(), [&ring("a"), &ring("b")], [&[small], &[]]).unwrap_err();
    assert!(matches!(refused, PortError::Ends { .. }), "{refused}");
}

#[test]
fn workers_without_a_queue_get_none() {
    let pool = pool(255);
    let pools = vec![Arc::clone(&pool); 17];
    let (port, pairs) = Port::open(eal(), &ring("p0"), &pools).unwrap();
    assert_eq!((port.queues(), pairs.len()), (16, 16));
}

/// A classic capture file of Ethernet frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_ne_bytes());
    }
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap();
        for word in [0, 0, len, len] {
            file.extend(word.to_ne_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The frames of a capture file.
fn frames_of(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(after[..len].to_vec());
        rest = &after[len..];
    }
    frames
}

#[test]
fn captures_are_read_and_written() {
    let pool = pool(255);
    let folder = tempfile::tempdir().unwrap();
    let (rx_file, tx_file) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let frames = (0..50).map(|i| frame_bytes(60 + 20 * usize::from(i), i)).collect::<Vec<_>>();
    std::fs::write(&rx_file, capture(&frames)).unwrap();
    let driver = Driver::Pcap(Pcap::Files { rx_file, tx_file: tx_file.clone() });
    let (port, mut pairs) = Port::open(eal(), &PortSpec::new("p0", driver), &[Arc::clone(&pool)]).unwrap();
    let mut got = 0;
    while got < frames.len() {
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        assert!(pairs[0].rx.burst(&mut burst) > 0, "the file holds more");
        for mbuf in burst {
            assert_eq!(mbuf.bytes(), frames[got]);
            got += 1;
            send(&mut pairs[0], mbuf);
        }
    }
    drop((port, pairs));
    assert_eq!(frames_of(&std::fs::read(tx_file).unwrap()), frames);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_frame_in_several_buffers_is_joined_or_dropped() {
    // The capture holds larger frames than the MTU: the driver chains buffers.
    let pool = pool_for(255, 2048);
    let folder = tempfile::tempdir().unwrap();
    let (rx_file, tx_file) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let frames = [frame_bytes(1000, 1), frame_bytes(5000, 2), frame_bytes(1001, 3)];
    std::fs::write(&rx_file, capture(&frames)).unwrap();
    let driver = Driver::Pcap(Pcap::Files { rx_file, tx_file });
    let (_port, mut pairs) = Port::open(eal(), &PortSpec::new("p0", driver), &[Arc::clone(&pool)]).unwrap();
    let mut burst = ArrayVec::<Mbuf, BURST>::new();
    assert_eq!(pairs[0].rx.burst(&mut burst), 2);
    assert_eq!((burst[0].bytes(), burst[1].bytes()), (&frames[0][..], &frames[2][..]));
    assert_eq!((pairs[0].rx.stats().frames, pairs[0].rx.stats().drop_scattered), (2, 1));
    burst.clear();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn of_few_buffers_some_are_left_for_acknowledgments() {
    let pool = pool(255);
    let folder = tempfile::tempdir().unwrap();
    let (rx_file, tx_file) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let frames = [frame_bytes(118, 1), frame_bytes(119, 2), frame_bytes(60, 3), frame_bytes(1500, 4)];
    std::fs::write(&rx_file, capture(&frames)).unwrap();
    let driver = Driver::Pcap(Pcap::Files { rx_file, tx_file });
    let (_port, mut pairs) = Port::open(eal(), &PortSpec::new("p0", driver), &[Arc::clone(&pool)]).unwrap();
    let mut burst = ArrayVec::<Mbuf, BURST>::new();
    assert_eq!(pairs[0].rx.burst(&mut burst), 4);
    pairs[0].rx.spare_buffers(&mut burst);
    let kept: Vec<_> = burst.iter().map(|mbuf| mbuf.bytes().to_vec()).collect();
    assert_eq!(kept, [frames[0].clone(), frames[2].clone()]);
    assert_eq!((pairs[0].rx.stats().frames, pairs[0].rx.stats().drop_no_buffers), (4, 2));
    // All data that fits is given out, then what is received holds the rest: less than half of the reserve is low.
    let mut buffers = MbufPool::new(Arc::clone(&pool), 100);
    let data: Vec<_> = std::iter::from_fn(|| buffers.alloc(BufClass::Data)).collect();
    assert!(!data.is_empty() && !buffers.is_low());
    let held: Vec<_> =
        std::iter::from_fn(|| (!buffers.is_low()).then(|| buffers.alloc(BufClass::Control))).collect();
    assert_eq!((buffers.available(), held.iter().all(Option::is_some)), (49, true));
    drop((burst, data, held));
    assert!(!buffers.is_low());
}

#[test]
fn a_missing_capture_is_an_error_that_names_the_port() {
    let files =
        Pcap::Files { rx_file: "/nonexistent/in.pcap".into(), tx_file: "/nonexistent/out.pcap".into() };
    let refused = Port::open(eal(), &PortSpec::new("cap", Driver::Pcap(files)), &[pool(63)]).unwrap_err();
    assert!(refused.to_string().contains("port cap"), "{refused}");
}
