//! Our driver of kernel interfaces, between the two ends of a veth with every offload as the kernel makes it.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use iwarp_config::Driver;
use tcp_stack::{Buf, RxChecksum, TxFrame, TxOffload};

use super::kernel::{data, packet};
use super::{batch_of, frame_bytes};
use crate::dpdk::testutil::{Namespace, eal, eventually, frame, ip, pool, pool_for};
use crate::dpdk::{BURST, Mbuf, Mempool, TxBatch, Wake};
use crate::port::{Port, PortQueues, PortSpec};

const SEGMENT: u16 = 1428;

/// A port and its queues.
struct End {
    port: Port,
    pairs: Vec<PortQueues>,
    pool: Arc<Mempool>,
}

impl End {
    fn open(interface: &str) -> Self {
        let pool = pool(2047);
        let (port, pairs) = Port::open(eal(), &spec(interface), &[Arc::clone(&pool)]).unwrap();
        Self { port, pairs, pool }
    }

    /// Sends one frame; true if it is gone from the batch.
    fn send(&mut self, frame: TxFrame<Mbuf>) -> usize {
        let mut batch = TxBatch::new();
        batch.push(frame).unwrap();
        self.pairs[0].tx.burst(&mut batch)
    }

    /// Receives TCP segments until they hold `payload` bytes behind headers of `headers` bytes each.
    fn receive(&mut self, headers: usize, payload: usize) -> Vec<Mbuf> {
        let (mut received, mut bytes) = (Vec::new(), 0);
        eventually("segments arrive", || {
            let mut burst = ArrayVec::<Mbuf, BURST>::new();
            self.pairs[0].rx.burst(&mut burst);
            received.extend(burst.drain(..).filter(|mbuf| is_tcp(mbuf.bytes())));
            bytes = received.iter().map(|mbuf| mbuf.bytes().len() - headers).sum();
            (bytes >= payload).then_some(())
        });
        assert_eq!(bytes, payload);
        received
    }

    fn extended(&self, name: &str) -> u64 {
        self.port.extended_stats().unwrap().into_iter().find(|(of, _)| of == name).unwrap().1
    }
}

fn spec(interface: &str) -> PortSpec {
    PortSpec::new("p0", Driver::AfPacket { interface: interface.into() })
}

/// A veth pair, as it is made, without a word of the kernel's own on it.
fn veth() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    ip("link add iw0 type veth peer name iw1");
    ip("link set iw0 up");
    ip("link set iw1 up");
}

fn ends() -> (Namespace, End, End) {
    let namespace = Namespace::enter();
    veth();
    (namespace, End::open("iw0"), End::open("iw1"))
}

fn is_tcp(bytes: &[u8]) -> bool {
    let at = if bytes.get(12..14) == Some(&[0x81, 0]) { 16 } else { 12 };
    match bytes.get(at..at + 2) {
        Some([8, 0]) => bytes.get(at + 11) == Some(&6),
        Some([0x86, 0xdd]) => bytes.get(at + 8) == Some(&6),
        _ => false,
    }
}

/// The headers of a run of `payload` bytes, without the tag.
fn headers(from: &End, to: &End, ipv6: bool, payload: usize) -> Vec<u8> {
    let tcp = data(5000, 4000);
    let mut bytes = packet(to.port.mac(), from.port.mac(), 6, &tcp);
    if ipv6 {
        bytes.truncate(12);
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(u16::try_from(20 + payload).unwrap().to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([&[0xfd; 16][..], &[0xfe; 16]].concat());
        bytes.extend(tcp);
        let sum = (0xfdfd_u32 * 8 + 0xfefe * 8 + 6) % 0xffff;
        bytes[70..72].copy_from_slice(&u16::try_from(sum).unwrap().to_be_bytes());
    } else {
        bytes[16..18].copy_from_slice(&u16::try_from(40 + payload).unwrap().to_be_bytes());
        bytes[24..26].fill(0);
        let sum = tcp_stack::wire::Sum::of(&bytes[14..34]).checksum();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// A run of segments, each in a buffer of its own.
fn run(from: &End, to: &End, (ipv6, tag): (bool, Option<u16>), payloads: &[Vec<u8>]) -> TxFrame<Mbuf> {
    let payload = payloads.iter().map(Vec::len).sum();
    let mut bytes = headers(from, to, ipv6, payload);
    if let Some(tag) = tag {
        let [high, low] = tag.to_be_bytes();
        bytes.splice(12..12, [0x81, 0, high, low]);
    }
    let mut buf = frame(&from.pool, &bytes);
    for payload in payloads {
        buf.link(frame(&from.pool, payload)).unwrap();
    }
    let offload = TxOffload {
        l2_len: if tag.is_some() { 18 } else { 14 },
        l3_len: if ipv6 { 40 } else { 20 },
        l4_len: 20,
        ipv6,
        tcp_checksum: true,
        segment: SEGMENT,
        ..TxOffload::default()
    };
    TxFrame { buf, offload }
}

fn payloads(count: u8) -> Vec<Vec<u8>> {
    let full = |value: u8| vec![value; usize::from(if value == count { 300 } else { SEGMENT })];
    (1..=count).map(full).collect()
}

/// Sends a run twice, and compares the segments that arrive with it. The first one may be cut elsewhere.
fn check_run(from: &mut End, to: &mut End, kind: (bool, Option<u16>), count: u8) {
    let payloads = payloads(count);
    let headers = 34 + if kind.1.is_some() { 4 } else { 0 } + if kind.0 { 40 } else { 20 };
    for is_settled in [false, true] {
        let run = run(from, to, kind, &payloads);
        assert_eq!(from.send(run), 1);
        let segments = to.receive(headers, payloads.iter().map(Vec::len).sum());
        let mut seq = 7;
        for segment in &segments {
            let bytes = segment.bytes();
            assert_eq!(bytes[headers - 16..headers - 12], u32::to_be_bytes(seq), "{kind:?}");
            assert_ne!(segment.rx_checksum(to.port.offloads()), RxChecksum::Bad);
            if let Some(tag) = kind.1 {
                assert_eq!(bytes[12..16], [&[0x81, 0][..], &tag.to_be_bytes()].concat());
            }
            seq += u32::try_from(bytes.len() - headers).unwrap();
        }
        let parts: Vec<_> = segments.iter().map(|segment| &segment.bytes()[headers..]).collect();
        assert!(parts.concat() == payloads.concat(), "{kind:?}");
        assert!(!is_settled || parts == payloads, "{kind:?}: {} segments", parts.len());
    }
}

#[test]
fn a_run_of_segments_crosses_a_veth_as_one_frame() {
    let (_namespace, mut near, mut far) = ends();
    assert!(near.port.segmentation().is_some_and(|limits| limits.buffers_max >= 46));
    for kind in [(false, None), (true, None), (false, Some(77)), (true, Some(77))] {
        for count in [2, 20, 45] {
            check_run(&mut near, &mut far, kind, count);
        }
        // The other way, too.
        check_run(&mut far, &mut near, kind, 45);
    }
    assert_eq!((near.extended("tx_super_frames"), far.extended("rx_super_frames")), (24, 24));
    assert_eq!(near.extended("tx_super_frame_segments"), 8 * 67);
    assert!(far.extended("rx_super_frame_segments").abs_diff(8 * 67) < 24);
    assert!((1..=4).contains(&far.extended("rx_super_frame_guesses_missed")));
    let End { port, pairs, pool } = near;
    drop((port, pairs));
    assert_eq!(pool.in_use(), 0);
}

/// The kernel segments what the interface does not pass on whole.
#[test]
fn a_run_arrives_whatever_is_off() {
    for features in [&["tso", "off"][..], &["tx", "off"], &["gso", "off"], &["sg", "off"]] {
        for interface in ["iw0", "iw1"] {
            let (_namespace, mut near, mut far) = ends();
            let arguments = [&["-K", interface], features].concat();
            let output = std::process::Command::new("ethtool").args(arguments).output();
            if output.is_err() {
                eprintln!("ethtool is not installed");
                return;
            }
            for kind in [(false, None), (true, Some(77))] {
                check_run(&mut near, &mut far, kind, 45);
            }
        }
    }
}

#[test]
fn frames_that_cannot_be_sent_are_dropped_and_counted() {
    let (_namespace, mut near, mut far) = ends();
    let plain = |end: &End, len: usize| frame(&end.pool, &frame_bytes(2000, 7)[..len]);
    for len in [13, 1519] {
        let mut batch = batch_of(plain(&near, len));
        assert_eq!(near.pairs[0].tx.burst(&mut batch), 0);
        assert!(batch.is_empty());
    }
    assert_eq!(near.pairs[0].tx.stats().drop_length, 2);
    // The interface at the other end takes no frame that long: the kernel says so each time.
    ip("link set iw1 mtu 1000");
    let mut batch = batch_of(plain(&near, 1400));
    eventually("the frame is given up", || {
        near.pairs[0].tx.burst(&mut batch);
        batch.is_empty().then_some(())
    });
    assert_eq!(near.pairs[0].tx.stats().drop_no_room, 1);
    // Super-frames pass.
    check_run(&mut near, &mut far, (false, None), 20);
    // A longer frame than the interface's own MTU is refused for good.
    ip("link set iw0 mtu 1000");
    let mut batch = batch_of(plain(&near, 1400));
    near.pairs[0].tx.burst(&mut batch);
    assert!(batch.is_empty());
    assert_eq!(near.pairs[0].tx.stats().drop_refused, 1);
    assert_eq!(near.port.stats().unwrap().tx_errors, 2);
}

#[test]
fn an_interface_that_goes_down_works_again_when_it_is_up() {
    let (_namespace, mut near, mut far) = ends();
    check_run(&mut near, &mut far, (false, None), 3);
    assert!(near.port.link().unwrap().up);
    ip("link set iw0 down");
    assert!(!near.port.link().unwrap().up && !far.port.link().unwrap().up);
    assert!(!near.port.has_vanished());
    let lost = run(&near, &far, (false, None), &payloads(3));
    assert_eq!(near.send(lost), 0);
    assert_eq!(near.pairs[0].tx.stats().drop_port_gone, 1);
    let mut burst = ArrayVec::new();
    for end in [&mut near, &mut far] {
        assert_eq!(end.pairs[0].rx.burst(&mut burst), 0);
        assert_eq!(end.pairs[0].rx.wait(&mut [], Duration::from_millis(10)), Wake::Timeout);
    }
    ip("link set iw0 up");
    eventually("the link is up", || near.port.link().unwrap().up.then_some(()));
    check_run(&mut near, &mut far, (false, None), 3);
    // Kernels before 6.2 rename no interface that is up.
    ip("link set iw0 down");
    ip("link set iw0 name lan0");
    ip("link set lan0 up");
    eventually("the link is up", || near.port.link().unwrap().up.then_some(()));
    check_run(&mut near, &mut far, (true, None), 3);
    ip("link del lan0");
    assert!(near.port.has_vanished() && far.port.has_vanished());
    let lost = run(&near, &far, (false, None), &payloads(3));
    assert_eq!(near.send(lost), 0);
    assert_eq!(near.pairs[0].rx.burst(&mut burst), 0);
    assert_eq!(near.pairs[0].rx.wait(&mut [], Duration::from_millis(10)), Wake::Timeout);
}

#[test]
fn a_worker_sleeps_on_an_interface_until_frames_come() {
    let (_namespace, mut near, mut far) = ends();
    let rx = |end: &mut End, ms| end.pairs[0].rx.wait(&mut [], Duration::from_millis(ms));
    assert_eq!(rx(&mut far, 10), Wake::Timeout);
    check_run(&mut near, &mut far, (false, None), 45);
    let run = run(&near, &far, (false, None), &payloads(45));
    assert_eq!(near.send(run), 1);
    assert_eq!(rx(&mut far, 5000), Wake::Frames);
    let mut burst = ArrayVec::new();
    assert_eq!(far.pairs[0].rx.burst(&mut burst), BURST);
    assert_eq!(rx(&mut far, 5000), Wake::Frames, "thirteen segments are left");
    burst.clear();
    assert_eq!(far.pairs[0].rx.burst(&mut burst), 45 - BURST);
    assert_eq!(rx(&mut far, 10), Wake::Timeout);
}

#[test]
fn every_flow_reaches_one_of_the_workers() {
    let _namespace = Namespace::enter();
    veth();
    let mut near = End::open("iw0");
    let pools = [pool(1023), pool(1023)];
    let (port, pairs) = Port::open(eal(), &spec("iw1"), &pools).unwrap();
    let mut far = End { port, pairs, pool: pool(63) };
    assert_eq!(far.port.queues(), 2);
    let mut found = [0, 0];
    for source in 0..60_u16 {
        let mut bytes = headers(&near, &far, false, 0);
        bytes[34..36].copy_from_slice(&source.to_be_bytes());
        let mut batch = batch_of(frame(&near.pool, &bytes));
        eventually("it is sent", || (near.pairs[0].tx.burst(&mut batch) == 1).then_some(()));
        let queue = eventually("it arrives", || {
            (0..2).find(|queue| {
                let mut burst = ArrayVec::new();
                far.pairs[*queue].rx.burst(&mut burst) == 1
            })
        });
        found[queue] += 1;
    }
    assert!(found.iter().all(|count| *count > 5), "{found:?}");
}

/// Frames that come faster than they are fetched are lost, and counted.
#[test]
fn a_full_buffer_of_the_kernel_counts_what_it_drops() {
    let _namespace = Namespace::enter();
    veth();
    let pool = pool(511);
    let few = PortSpec { rx_descriptors: 64, ..spec("iw1") };
    let (port, _pairs) = Port::open(eal(), &few, &[Arc::clone(&pool)]).unwrap();
    let mut near = End::open("iw0");
    for _ in 0..2000 {
        let mut batch = batch_of(frame(&near.pool, &frame_bytes(1000, 7)));
        near.pairs[0].tx.burst(&mut batch);
    }
    let missed = port.stats().unwrap().rx_missed;
    assert!((1..2000).contains(&missed), "{missed}");
    assert_eq!(port.stats().unwrap().rx_missed, missed, "reading does not clear it");
}

#[test]
fn jumbo_frames_pass() {
    let _namespace = Namespace::enter();
    veth();
    for interface in ["iw0", "iw1"] {
        ip(&format!("link set {interface} mtu 9000"));
    }
    let open = |interface: &str| {
        let pool = pool_for(1023, 9000);
        let spec = PortSpec { mtu: 9000, ..spec(interface) };
        let (port, pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
        End { port, pairs, pool }
    };
    let (mut near, mut far) = (open("iw0"), open("iw1"));
    let mut bytes = headers(&near, &far, false, 8960);
    bytes.resize(9014, 3);
    let mut batch = batch_of(frame(&near.pool, &bytes));
    assert_eq!(near.pairs[0].tx.burst(&mut batch), 1);
    assert!(far.receive(54, 8960)[0].bytes() == bytes);
    check_run(&mut near, &mut far, (true, Some(5)), 45);
}

#[test]
fn what_is_no_ethernet_interface_is_refused() {
    let _namespace = Namespace::enter();
    for (interface, said) in [("lo", "it is no Ethernet interface"), ("iw9", "cannot find it")] {
        let refused = Port::open(eal(), &spec(interface), &[pool(255)]).unwrap_err();
        let mut message = refused.to_string();
        if let Some(source) = std::error::Error::source(&refused) {
            message = format!("{message}: {source}");
        }
        assert!(message.contains(said) && message.contains(interface), "{message}");
    }
}

/// Runs are written to a TAP whole, and super-frames that are read from it are cut into the segments that were sent.
#[test]
fn runs_cross_a_tap_in_both_directions() {
    let _namespace = Namespace::enter();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    let pool = pool(2047);
    let spec = PortSpec::new("p0", Driver::Tap { interface: "iw0".into() });
    let (port, pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
    assert!(port.segmentation().is_some());
    // A packet socket of another port, at the kernel's end: what is written to the TAP arrives there.
    let mut near = End { port, pairs, pool };
    let mut far = End::open("iw0");
    for kind in [(false, None), (true, None), (false, Some(77)), (true, Some(77))] {
        check_run(&mut near, &mut far, kind, 45);
        check_run(&mut far, &mut near, kind, 45);
    }
    assert_eq!((near.extended("tx_super_frames"), near.extended("rx_super_frames")), (8, 8));
    ip("link set iw0 down");
    let lost = run(&near, &far, (false, None), &payloads(3));
    assert_eq!(near.send(lost), 0);
    assert_eq!(near.pairs[0].tx.stats().drop_port_gone, 1);
    ip("link set iw0 up");
    check_run(&mut near, &mut far, (false, None), 3);
    ip("link del iw0");
    assert!(near.port.has_vanished());
    let mut burst = ArrayVec::new();
    assert_eq!(near.pairs[0].rx.burst(&mut burst), 0);
}

/// Without offloads the kernel cuts and sums before the port reads.
#[test]
fn a_tap_without_offloads_carries_packets() {
    let _namespace = Namespace::enter();
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    let pool = pool(2047);
    let driver = Driver::Tap { interface: "iw0".into() };
    let spec = PortSpec { checksum_offload: false, segmentation: false, ..PortSpec::new("p0", driver) };
    let (port, pairs) = Port::open(eal(), &spec, &[Arc::clone(&pool)]).unwrap();
    assert!(port.segmentation().is_none() && port.offloads().rx_tcp_checksum);
    let mut near = End { port, pairs, pool };
    let mut far = End::open("iw0");
    check_run(&mut far, &mut near, (false, None), 45);
    assert_eq!(near.extended("rx_super_frames"), 0);
}

/// A TAP that was made with one queue, and stays when the port is closed.
#[test]
fn a_tap_that_exists_is_used() {
    let _namespace = Namespace::enter();
    for kind in ["", " multi_queue"] {
        ip(&format!("tuntap add dev iw0 mode tap{kind}"));
        let spec = PortSpec::new("p0", Driver::Tap { interface: "iw0".into() });
        let pool = pool(1023);
        let open = || Port::open(eal(), &spec, &[Arc::clone(&pool)]);
        let (port, pairs) = open().unwrap();
        if kind.is_empty() {
            let refused = open().unwrap_err().to_string();
            assert!(refused.contains("interface iw0: cannot make the TAP"), "{refused}");
        }
        drop((port, pairs));
        drop(open().unwrap());
        ip(&format!("tuntap del dev iw0 mode tap{kind}"));
    }
}
