//! AF_XDP: the driver shares the packet buffers with the kernel, each of them for good.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use iwarp_config::Driver;
use tcp_stack::{Buf, BufClass, BufPool};

use super::kernel::{KERNELS, OURS, introduce, is_udp, kernel_mac, packet, udp, veth};
use super::{receive, send};
use crate::dpdk::testutil::{Namespace, eal, pool, pool_for};
use crate::dpdk::{MbufPool, Mempool, MempoolConfig};
use crate::port::{Port, PortError, PortQueues, PortSpec};

fn af_xdp() -> PortSpec {
    PortSpec::new("p0", Driver::AfXdp { interface: "iw1".into(), start_queue: 0, queue_count: 1 })
}

fn counter(port: &Port, name: &str) -> u64 {
    let counters = port.extended_stats().unwrap();
    counters.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}: {counters:?}")).1
}

/// Takes every buffer that the driver does not hold and sends a datagram of `len` bytes from each.
fn send_from_all(
    port: &Port,
    pair: &mut PortQueues,
    pool: &Arc<Mempool>,
    socket: &UdpSocket,
    len: usize,
) -> usize {
    let mut buffers = MbufPool::new(Arc::clone(pool), 0);
    let frames: Vec<_> = std::iter::from_fn(|| buffers.alloc(BufClass::Control)).collect();
    let (to, from, sent) = (kernel_mac("iw0"), port.mac(), frames.len());
    let (mut payload, mut got) = (vec![0; len], vec![0; len + 1]);
    for (number, mut frame) in (0u32..).zip(frames) {
        payload[..4].copy_from_slice(&number.to_be_bytes());
        let bytes = packet(to, from, 17, &udp(5000, 4000, &payload));
        frame.append(bytes.len()).unwrap().copy_from_slice(&bytes);
        send(pair, frame);
        let bytes = socket.recv(&mut got).unwrap_or_else(|error| panic!("datagram {number}: {error}"));
        assert!(got[..bytes] == payload, "datagram {number}");
    }
    sent
}

/// Receives `count` datagrams of `len` bytes. A buffer received into goes back to the pool behind all others, and the
/// one before all others takes its place.
fn receive_into_all(pair: &mut PortQueues, socket: &UdpSocket, count: u32, len: usize) {
    let mut payload = vec![0; len];
    for number in 0..count {
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, (OURS, 5000)).unwrap();
        assert!(receive(pair, is_udp).bytes()[42..] == payload, "datagram {number}");
    }
}

/// Every buffer of a pool can send and receive, for every number and size of buffers.
#[test]
fn every_buffer_of_a_pool_is_usable() {
    for (count, mtu) in [(8192, 1500), (8191, 1500), (4500, 3400), (65_536, 1500)] {
        let _namespace = Namespace::enter();
        veth(mtu);
        let pool = pool_for(count, mtu + Driver::XDP_HEADROOM_BYTES);
        let spec = PortSpec { mtu, ..af_xdp() };
        let (port, mut pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
        introduce("iw0", port.mac());
        let socket = UdpSocket::bind((KERNELS, 4000)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (pair, len) = (&mut pairs[0], usize::from(mtu) - 28);
        for _ in 0..2 {
            let sent = send_from_all(&port, pair, &pool, &socket, len);
            assert!(sent > 400, "{sent} of {count} buffers");
            receive_into_all(pair, &socket, count, len);
        }
        for name in ["xdp_tx_invalid_descs", "xdp_rx_invalid_descs", "xdp_rx_dropped"] {
            assert_eq!(counter(&port, name), 0, "{name} of {count} buffers at MTU {mtu}");
        }
        let stats = port.stats().unwrap();
        assert_eq!((stats.tx_errors, stats.rx_errors, stats.rx_missed), (0, 0, 0));
    }
}

/// The counters report the frames that the kernel drops: one longer than a buffer, and those without a free buffer.
#[test]
fn what_the_kernel_drops_is_counted() {
    let _namespace = Namespace::enter();
    veth(3400);
    let pool = pool(8191);
    let (port, _pairs) = Port::open(eal(), &af_xdp(), &[Arc::clone(&pool)]).unwrap();
    introduce("iw0", port.mac());
    let socket = UdpSocket::bind((KERNELS, 4000)).unwrap();
    assert_eq!(counter(&port, "xdp_rx_dropped"), 0);
    for _ in 0..7 {
        socket.send_to(&[0; 3000], (OURS, 5000)).unwrap();
    }
    crate::dpdk::testutil::eventually("all seven are counted", || {
        (counter(&port, "xdp_rx_dropped") == 7 && port.stats().unwrap().rx_missed == 7).then_some(())
    });
}

/// Buffers of which the kernel would refuse some are not given to it.
#[test]
fn buffers_that_the_kernel_would_refuse_are_refused() {
    let _namespace = Namespace::enter();
    veth(1500);
    let gaps = MempoolConfig { count: 4500, cache: 0, data_room: 2176 };
    let gaps = Arc::new(Mempool::new(eal(), gaps).unwrap());
    let refused = Port::open(eal(), &af_xdp(), &[gaps]).unwrap_err();
    assert!(matches!(refused, PortError::SharedBuffers { contiguous: false, .. }), "{refused}");
    let refused = Port::open(eal(), &af_xdp(), &[pool_for(63, 9000)]).unwrap_err();
    assert!(matches!(refused, PortError::SharedBuffers { page_bytes: 4096, .. }), "{refused}");
    // 1518 bytes of frame and 256 that the kernel keeps free do not fit into 1700.
    let small = MempoolConfig { count: 4500, cache: 0, data_room: 128 + 1700 };
    let small = Mempool::contiguous(eal(), small, iwarp_engine::memory::Pages::Ordinary).unwrap();
    let refused = Port::open(eal(), &af_xdp(), &[Arc::new(small)]).unwrap_err();
    assert!(matches!(refused, PortError::Buffers { room: 1700, needed: 1774, .. }), "{refused}");
}
