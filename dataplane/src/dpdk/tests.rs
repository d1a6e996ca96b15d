//! Buffers, pools and threads, on a real EAL.

use std::collections::HashSet;
use std::sync::Arc;

use tcp_stack::{Buf, BufClass, BufPool, HEADROOM, RxChecksum};

use super::testutil::{eal, frame, pool};
use super::{
    Mbuf, MbufPool, Mempool, MempoolConfig, Offloads, RegisteredThread, ReleaseLast, Reuse, WORKER_CACHE,
};

const BYTES: &[u8] = b"frame memory";

#[test]
fn a_fresh_buffer_has_the_promised_room() {
    let pool = pool(64);
    let mut buffers = MbufPool::new(Arc::clone(&pool), 0);
    let mut buf = buffers.alloc(BufClass::Control).unwrap();
    assert_eq!(buf.bytes(), b"");
    assert_eq!(buffers.data_room(), 2048);
    assert_eq!(buf.tailroom(), buffers.data_room());
    assert_eq!(buf.true_size(), 128 + HEADROOM + 2048);
    assert_eq!(buf.rx_checksum(Offloads::default()), RxChecksum::Unknown);
    assert_eq!(buf.prepend(HEADROOM).map(|room| room.len()), Some(HEADROOM));
    assert!(buf.prepend(1).is_none());
    assert_eq!(buf.append(2048).map(|room| room.len()), Some(2048));
    assert!(buf.append(1).is_none());
    assert_eq!(buf.bytes().len(), HEADROOM + 2048);
}

/// igb reports every checksum as correct, those that it does not verify included.
#[test]
fn the_word_of_a_port_counts_as_far_as_it_was_asked() {
    use dpdk_sys::{
        DPDK_MBUF_RX_IP_CKSUM_BAD as IP_BAD, DPDK_MBUF_RX_IP_CKSUM_GOOD as IP_GOOD,
        DPDK_MBUF_RX_L4_CKSUM_BAD as BAD, DPDK_MBUF_RX_L4_CKSUM_GOOD as GOOD,
        DPDK_MBUF_RX_L4_CKSUM_MASK as INTACT,
    };
    let pool = pool(64);
    let (mut four, mut six) = ([0; 60], [0; 60]);
    (four[12], four[13], six[12], six[13]) = (0x08, 0x00, 0x86, 0xdd);
    let tcp = Offloads { rx_tcp_checksum: true, ..Offloads::default() };
    let both = Offloads { rx_ip_checksum: true, ..tcp };
    let ip = Offloads { rx_tcp_checksum: false, ..both };
    use RxChecksum::{Bad, Good, TransportGood, Unknown};
    for (flags, enabled, of_four, of_six) in [
        (IP_GOOD | GOOD, Offloads::default(), Unknown, Unknown),
        (IP_BAD | BAD, Offloads::default(), Unknown, Unknown),
        (IP_GOOD | GOOD, ip, Unknown, Unknown),
        (IP_GOOD | GOOD, both, Good, Good),
        (GOOD, both, TransportGood, Good),
        (IP_GOOD | GOOD, tcp, TransportGood, Good),
        (IP_BAD | GOOD, tcp, TransportGood, Good),
        (IP_BAD | GOOD, both, Bad, Bad),
        (IP_GOOD | BAD, both, Bad, Bad),
        (IP_GOOD, both, Unknown, Unknown),
        (INTACT, tcp, TransportGood, Good),
        (INTACT | IP_GOOD, both, Good, Good),
    ] {
        for (bytes, expected) in [(&four, of_four), (&six, of_six)] {
            let buf = frame(&pool, bytes);
            buf.set_flags(flags);
            assert_eq!(buf.rx_checksum(enabled), expected, "{flags:#x} {enabled:?} {bytes:x?}");
        }
    }
}

#[test]
fn bytes_are_written_moved_and_cut() {
    let pool = pool(64);
    let mut buf = frame(&pool, BYTES);
    buf.prepend(4).unwrap().copy_from_slice(b"the ");
    assert_eq!(buf.bytes(), b"the frame memory");
    buf.append(1).unwrap().copy_from_slice(b"!");
    buf.bytes_mut().unwrap()[0] = b'T';
    assert_eq!(buf.bytes(), b"The frame memory!");
    assert!(buf.trim_front(4));
    assert!(buf.truncate(5));
    assert_eq!(buf.bytes(), b"frame");
    assert!(!buf.trim_front(6) && !buf.truncate(6), "more than there is");
    assert!(!buf.trim_front(usize::MAX) && !buf.truncate(usize::MAX) && buf.append(usize::MAX).is_none());
    assert_eq!(buf.bytes(), b"frame");
    assert!(buf.prepend(8).is_some(), "what was trimmed is headroom");
}

#[test]
fn shared_bytes_are_read_only_until_the_other_handle_goes() {
    let pool = pool(64);
    let mut first = frame(&pool, BYTES);
    assert!(!first.is_shared());
    let mut second = first.share();
    for handle in [&mut first, &mut second] {
        assert!(handle.is_shared());
        assert_eq!(handle.bytes(), BYTES);
        assert!(handle.bytes_mut().is_none());
        assert!(handle.prepend(1).is_none());
        assert!(handle.append(1).is_none());
        assert!(!handle.trim_front(1));
        assert!(!handle.truncate(1));
        assert_eq!(handle.bytes(), BYTES, "nothing changed");
    }
    assert_eq!(first.bytes().as_ptr(), second.bytes().as_ptr());
    drop(first);
    assert!(!second.is_shared());
    assert_eq!(second.bytes(), BYTES);
    assert!(second.trim_front(6));
    assert_eq!(second.bytes(), b"memory");
}

#[test]
fn sharing_takes_no_second_buffer_and_the_last_handle_frees() {
    let pool = pool(64);
    let first = frame(&pool, BYTES);
    assert_eq!(pool.in_use(), 1);
    let others = (0..100).map(|_| first.share()).collect::<Vec<_>>();
    assert_eq!(pool.in_use(), 1);
    drop(first);
    assert_eq!(others.last().unwrap().bytes(), BYTES);
    drop(others);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_handle_may_be_dropped_on_another_thread() {
    let pool = pool(64);
    let mut kept = frame(&pool, BYTES);
    let sent = kept.share();
    let thread = std::thread::spawn(move || sent.bytes().to_vec());
    assert_eq!(thread.join().unwrap(), BYTES);
    assert!(kept.bytes_mut().is_some());
    drop(kept);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn data_leaves_the_reserve_to_control() {
    let pool = pool(256);
    let mut buffers = MbufPool::new(Arc::clone(&pool), 100);
    let data = std::iter::from_fn(|| buffers.alloc(BufClass::Data)).collect::<Vec<_>>();
    assert_eq!(data.len(), 156, "exactly down to the reserve, with nobody else allocating");
    let control = std::iter::from_fn(|| buffers.alloc(BufClass::Control)).collect::<Vec<_>>();
    assert_eq!(control.len(), 100, "the whole reserve");
    assert!(buffers.alloc(BufClass::Control).is_none(), "exhausted");
    drop(control);
    assert!(buffers.alloc(BufClass::Data).is_none(), "only the reserve is back");
    let mut data = data;
    data.truncate(150);
    let more = std::iter::from_fn(|| buffers.alloc(BufClass::Data)).collect::<Vec<_>>();
    assert_eq!(more.len(), 6);
    drop((data, more, buffers));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn data_of_a_worker_leaves_an_eighth_of_its_pool() {
    for reuse in [Reuse::Lifo, Reuse::Fifo] {
        let pool = pool(4096);
        let mut buffers = MbufPool::of_worker(Arc::clone(&pool), reuse);
        let data = std::iter::from_fn(|| buffers.alloc(BufClass::Data)).collect::<Vec<_>>();
        assert_eq!((data.len(), buffers.is_low()), (4096 - 512, false), "{reuse:?}");
        let received = std::iter::from_fn(|| (!buffers.is_low()).then(|| buffers.alloc(BufClass::Control)));
        let received = received.collect::<Vec<_>>();
        assert_eq!(received.len(), 512 - 127, "what is received may have nearly all of it, {reuse:?}");
        drop((data, received, buffers));
        assert_eq!(pool.in_use(), 0);
    }
}

/// Returns the number of buffers that a worker uses in turn while it needs one at a time.
fn buffers_in_turn(config: MempoolConfig, reuse: Reuse) -> usize {
    let pool = Arc::new(Mempool::new(eal(), config).unwrap());
    let worker = std::thread::spawn(move || {
        let _guard = RegisteredThread::new(eal()).unwrap();
        let mut buffers = MbufPool::of_worker(Arc::clone(&pool), reuse);
        let mut next = || buffers.alloc(BufClass::Data).unwrap().bytes().as_ptr();
        (0..4 * config.count).map(|_| next()).collect::<HashSet<_>>().len()
    });
    worker.join().unwrap()
}

#[test]
fn a_buffer_is_used_again_at_once_or_after_four_mebibytes_of_others() {
    for (count, data_room) in [(8191, 2176), (4095, 9344), (16_383, 1024)] {
        let config = MempoolConfig { count, cache: WORKER_CACHE, data_room };
        let bytes = usize::from(data_room) + 128;
        let lifo = buffers_in_turn(config, Reuse::Lifo);
        assert!(lifo <= 64, "{lifo} buffers of {data_room}");
        let fifo = buffers_in_turn(config, Reuse::Fifo);
        let aim = (4 << 20) / bytes;
        assert!((aim - 32..=aim + 64).contains(&fifo), "{fifo} buffers of {data_room}");
    }
}

/// Buffers waiting for their use are those beyond the reserve, and a quarter of the pool at most.
#[test]
fn a_small_pool_is_used_in_turn_by_a_quarter() {
    for count in [1300, 2047] {
        let config = MempoolConfig { count, cache: WORKER_CACHE, data_room: 2176 };
        let (fifo, quarter) = (buffers_in_turn(config, Reuse::Fifo), count as usize / 4);
        assert!((quarter - 32..=quarter + 64).contains(&fifo), "{fifo} of {count}");
    }
}

#[test]
fn the_reserve_of_a_small_pool_is_what_control_needs() {
    let reserves = [0, 255, 2048, 2049, 2056, 65_536].map(super::worker_reserve);
    assert_eq!(reserves, [256, 256, 256, 256, 257, 8192]);
}

#[test]
fn an_exhausted_pool_recovers() {
    let pool = pool(40);
    let mut buffers = MbufPool::new(Arc::clone(&pool), 0);
    for _ in 0..3 {
        let all = std::iter::from_fn(|| buffers.alloc(BufClass::Data)).collect::<Vec<_>>();
        assert_eq!(all.len(), 40, "the last buffers are had though they are no whole bulk");
        assert!(buffers.alloc(BufClass::Data).is_none());
    }
    drop(buffers);
    assert_eq!((pool.in_use(), pool.available()), (0, 40));
}

#[test]
fn buffers_are_fresh_when_they_come_back() {
    let pool = pool(1);
    for _ in 0..2 {
        let mut buf = frame(&pool, BYTES);
        buf.set_offload(&tcp_stack::TxOffload { tcp_checksum: true, ..Default::default() });
        assert!(buf.trim_front(3));
    }
    let mut buffers = MbufPool::new(Arc::clone(&pool), 0);
    let buf = buffers.alloc(BufClass::Data).unwrap();
    assert_eq!((buf.bytes(), buf.tailroom()), (&b""[..], 2048));
}

#[test]
fn threads_keep_caches_of_their_own_once_registered() {
    let config = MempoolConfig { count: 1023, cache: 64, data_room: 2176 };
    let pool = Arc::new(Mempool::new(eal(), config).unwrap());
    let in_thread = Arc::clone(&pool);
    let worker = std::thread::spawn(move || {
        let guard = RegisteredThread::new(eal()).unwrap();
        assert!(guard.lcore().is_some());
        assert!(RegisteredThread::new(eal()).is_err(), "once is enough");
        let buf = frame(&in_thread, BYTES);
        drop(buf);
        let (here, all) = (in_thread.available_here(), in_thread.available());
        assert_eq!((here, all), (1023, 1023), "what is cached here is available here");
    });
    worker.join().unwrap();
    assert_eq!(pool.in_use(), 0);
    std::thread::spawn(|| drop(RegisteredThread::new(eal()).unwrap())).join().unwrap();
}

#[test]
fn pools_that_make_no_sense_are_refused() {
    for (count, cache, data_room) in [(64, 0, 128), (64, 64, 2176), (4096, 513, 2176), (0, 0, 2176)] {
        let config = MempoolConfig { count, cache, data_room };
        assert!(Mempool::new(eal(), config).is_err(), "{config:?}");
    }
    let config = MempoolConfig { count: 1 << 24, cache: 0, data_room: 2176 };
    assert!(Mempool::new(eal(), config).unwrap_err().to_string().contains("Cannot allocate memory"));
}

#[test]
fn offload_requests_stand_where_dpdk_reads_them() {
    let pool = pool(4);
    let buf = frame(&pool, BYTES);
    let offload = tcp_stack::TxOffload {
        l2_len: 18,
        l3_len: 40,
        l4_len: 32,
        ipv6: true,
        ip_checksum: true,
        tcp_checksum: true,
        segment: 0,
        looped: false,
    };
    buf.set_offload(&offload);
    let (flags, lengths) = buf.offload_fields();
    assert_eq!(flags, dpdk_sys::DPDK_MBUF_TX_IPV6 | dpdk_sys::DPDK_MBUF_TX_TCP_CKSUM);
    assert_eq!(lengths, (18, 40, 32, 0));
    buf.set_offload(&tcp_stack::TxOffload { ipv6: false, ..offload });
    let ipv4 = dpdk_sys::DPDK_MBUF_TX_IPV4 | dpdk_sys::DPDK_MBUF_TX_IP_CKSUM;
    assert_eq!(buf.offload_fields().0, ipv4 | dpdk_sys::DPDK_MBUF_TX_TCP_CKSUM);
    buf.set_offload(&tcp_stack::TxOffload::default());
    assert_eq!(buf.offload_fields(), (0, (0, 0, 0, 0)));
    buf.set_offload(&tcp_stack::TxOffload { segment: 8948, ..offload });
    assert_eq!(buf.offload_fields().0 & dpdk_sys::DPDK_MBUF_TX_TCP_SEG, dpdk_sys::DPDK_MBUF_TX_TCP_SEG);
    assert_eq!(buf.offload_fields().1, (18, 40, 32, 8948));
}

#[test]
fn a_chain_owns_a_reference_to_each_of_its_buffers() {
    let pool = pool(8);
    let parts = [b"first".as_slice(), b"second", b"third"].map(|bytes| frame(&pool, bytes));
    let mut head = frame(&pool, b"head");
    for part in &parts {
        head.link(part.share()).unwrap();
    }
    assert!(head.prepend(2).is_some());
    assert_eq!((head.bytes().len(), head.frame_len()), (6, 2 + 4 + 5 + 6 + 5));
    // One that a port still holds is in a chain already.
    let busy = frame(&pool, b"busy");
    let _sent = busy.share();
    assert!(head.link(busy.share()).is_err());
    drop((busy, _sent));
    let [first, mut second, third] = parts;
    drop(third);
    assert_eq!(pool.in_use(), 4, "the chain keeps what its owner let go of");
    drop(head);
    assert_eq!(pool.in_use(), 2);
    // What is left of the chain is not followed.
    drop(first);
    assert_eq!(pool.in_use(), 1);
    second.unlink();
    assert!(second.prepend(4).is_some());
    assert_eq!((second.bytes().len(), second.frame_len()), (10, 10));
    let mut other = frame(&pool, b"other");
    other.link(second.share()).unwrap();
    drop((second, other));
    assert_eq!((pool.in_use(), pool.available()), (0, 8));
    let all = (0..8).map(|_| frame(&pool, b"")).collect::<Vec<_>>();
    assert!(all.iter().all(|buf| buf.frame_len() == 0));
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Mbuf>();
    is_send::<MbufPool>();
    is_send::<crate::port::RxQueue>();
    is_send::<crate::port::TxQueue>();
};

#[test]
fn what_is_let_go_of_in_a_round_is_back_with_its_end() {
    let pool = pool(255);
    let frames = |count: usize| (0..count).map(|_| frame(&pool, BYTES)).collect::<Vec<_>>();
    let shared = frame(&pool, BYTES);
    let round = ReleaseLast::new();
    // More than are kept: the first of them go back when there is no place for another.
    drop(frames(100));
    assert!((1..101).contains(&pool.in_use()), "{}", pool.in_use());
    let mut chain = frame(&pool, BYTES);
    assert!(chain.link(frame(&pool, BYTES)).is_ok());
    drop((chain, shared.share()));
    assert!(shared.is_shared(), "not before the end of the round");
    drop(round);
    assert!(!shared.is_shared());
    assert_eq!(pool.in_use(), 1);
    drop(shared);
    assert_eq!(pool.in_use(), 0, "at once, outside of a round");
}
