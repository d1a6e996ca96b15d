//! Ports whose other end is the kernel, in a network namespace of the test's own.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use iwarp_config::{Driver, Memif, MemifRole, Pcap};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto};
use tcp_stack::{Buf, RxChecksum, TxFrame, TxOffload};

use super::{batch_of, frame_bytes, receive, send};
use crate::dpdk::testutil::{Namespace, eal, eventually, frame, ip, pool, pool_for};
use crate::dpdk::{Eal, TapInterface, TxBatch, Wake};
use crate::port::{Port, PortError, PortQueues, PortSpec};

pub(super) const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const KERNELS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// An IPv4 packet to the kernel, in an Ethernet frame to `to`.
pub(super) fn packet(to: [u8; 6], from: [u8; 6], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0];
    ip.extend(OURS.octets());
    ip.extend(KERNELS.octets());
    let total = u16::try_from(20 + payload.len()).unwrap();
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&to[..], &from, &[0x08, 0x00], &ip, payload].concat()
}

/// The ones' complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

pub(super) fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    // Without a checksum, as IPv4 allows.
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
}

/// A SYN whose checksum field holds the pseudo-header's sum, as for a port that completes it.
fn syn(source: u16, destination: u16) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&source.to_be_bytes());
    tcp[2..4].copy_from_slice(&destination.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = 0x02;
    tcp[14..16].copy_from_slice(&[0xff, 0xff]);
    let pseudo = [&OURS.octets()[..], &KERNELS.octets(), &[0, 6, 0, 20]].concat();
    tcp[16..18].copy_from_slice(&sum(&pseudo).to_be_bytes());
    tcp
}

pub(super) fn is_udp(bytes: &[u8]) -> bool {
    bytes.get(12..14) == Some(&[0x08, 0x00]) && bytes.get(23) == Some(&17)
}

fn is_tcp(bytes: &[u8]) -> bool {
    bytes.get(12..14) == Some(&[0x08, 0x00]) && bytes.get(23) == Some(&6)
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Gives the kernel's end its address, and a neighbor entry for ours.
pub(super) fn introduce(interface: &str, mac: [u8; 6]) {
    ip(&format!("addr add {KERNELS}/24 dev {interface}"));
    ip(&format!("link set {interface} up"));
    ip(&format!("neigh add {OURS} lladdr {} dev {interface}", text(mac)));
}

/// A datagram each way between a socket of the kernel and the port.
fn exchange_datagrams(port: &Port, pair: &mut PortQueues, kernel_mac: impl Fn(&[u8]) -> [u8; 6]) {
    exchange_packets(port, pair, kernel_mac, 1428);
}

/// A datagram each way, in IPv4 packets of `len` bytes.
fn exchange_packets(port: &Port, pair: &mut PortQueues, kernel_mac: impl Fn(&[u8]) -> [u8; 6], len: u16) {
    let pool = pool_for(255, len);
    let socket = UdpSocket::bind((KERNELS, 4000)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let payload = (28..u32::from(len)).map(|i| i.to_le_bytes()[0]).collect::<Vec<_>>();
    socket.send_to(&payload, (OURS, 5000)).unwrap();
    let got = receive(pair, is_udp);
    assert_eq!(got.bytes()[..6], port.mac(), "to our address");
    assert_eq!(&got.bytes()[42..], payload);
    let to = kernel_mac(got.bytes());
    let answer = payload.iter().rev().copied().collect::<Vec<_>>();
    send(pair, frame(&pool, &packet(to, port.mac(), 17, &udp(5000, 4000, &answer))));
    let mut got = [0; 16_384];
    let (len, from) = socket.recv_from(&mut got).unwrap();
    assert_eq!((&got[..len], from), (&answer[..], (OURS, 5000).into()));
}

fn source_of(bytes: &[u8]) -> [u8; 6] {
    bytes[6..12].try_into().unwrap()
}

/// Year and month of DPDK's release.
fn dpdk_release() -> (u32, u32) {
    let version = Eal::version();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn tap(name: &str) -> PortSpec {
    PortSpec::new("p0", Driver::Tap { interface: name.into() })
}

/// A TAP of DPDK's driver.
fn dpdk_tap(name: &str) -> PortSpec {
    PortSpec::new("p0", Driver::DpdkTap { interface: name.into() })
}

#[test]
fn a_tap_talks_to_the_kernel() {
    let eal = eal();
    for spec in [tap("iw0"), dpdk_tap("iw0")] {
        let _namespace = Namespace::enter();
        let pool = pool(1023);
        let (port, mut pairs) = Port::open(eal, &spec, &[Arc::clone(&pool)]).unwrap();
        introduce("iw0", port.mac());
        exchange_datagrams(&port, &mut pairs[0], source_of);
        assert!(port.link().unwrap().up);
        assert!(pool.in_use() < 128, "the driver keeps buffers for one frame to receive into");
        drop((port, pairs));
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn the_checksums_of_a_tap_of_dpdk_are_right() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let pool = pool(1023);
    let spec = PortSpec { checksum_offload: true, mac: Some([2, 0, 0x5e, 0, 0x53, 9]), ..dpdk_tap("iw0") };
    let (port, mut pairs) = Port::open(eal, &spec, &[Arc::clone(&pool)]).unwrap();
    assert_eq!(port.mac(), [2, 0, 0x5e, 0, 0x53, 9]);
    let offloads = port.offloads();
    assert!(offloads.rx_ip_checksum && offloads.rx_tcp_checksum);
    assert!(offloads.tx_ip_checksum && offloads.tx_tcp_checksum);
    introduce("iw0", port.mac());
    let _listener = TcpListener::bind((KERNELS, 4000)).unwrap();
    let mut bytes = packet(kernel_mac("iw0"), port.mac(), 6, &syn(5000, 4000));
    bytes[24..26].fill(0); // the port fills in the IP header's checksum too
    let offload = TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ip_checksum: true,
        tcp_checksum: true,
        ..Default::default()
    };
    // Since DPDK 23.11 net_tap cuts the headers off the buffer; a card sends the same one any number of times.
    let cuts = dpdk_release() >= (23, 11);
    let mut held = frame(&pool, &bytes);
    for _ in 0..2 {
        let mut batch = TxBatch::new();
        batch.push(TxFrame { buf: held.share(), offload }).unwrap();
        eventually("the tap takes a frame", || (pairs[0].tx.burst(&mut batch) == 1).then_some(()));
        let answer = receive(&mut pairs[0], is_tcp);
        assert_eq!(answer.bytes()[47], 0x12, "SYN and ACK: the kernel found both checksums right");
        assert_eq!(answer.rx_checksum(offloads), RxChecksum::Good);
        assert_eq!(held.bytes(), if cuts { &[] } else { &bytes[..] }, "what a retransmission would send");
        if cuts {
            held = frame(&pool, &bytes);
        }
    }
}

#[test]
fn a_tap_of_dpdk_cuts_a_chain_into_its_segments() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let pool = pool(1023);
    let spec = PortSpec { checksum_offload: true, segmentation: true, ..dpdk_tap("iw0") };
    let (port, mut pairs) = Port::open(eal, &spec, &[Arc::clone(&pool)]).unwrap();
    assert!(port.segmentation().is_some_and(|limits| limits.buffers_max >= 4), "{:?}", port.segmentation());
    introduce("iw0", port.mac());
    let held = pool.in_use();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP)).unwrap();
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();

    let payloads = [vec![1_u8; 1000], vec![2; 1000], vec![3; 300]];
    let parts = payloads.each_ref().map(|payload| frame(&pool, payload));
    let mut bytes = packet(kernel_mac("iw0"), port.mac(), 6, &data(5000, 4000));
    bytes[16..18].copy_from_slice(&2340_u16.to_be_bytes());
    bytes[24..26].fill(0);
    let mut head = frame(&pool, &bytes);
    for part in &parts {
        head.link(part.share()).unwrap();
    }
    let offload = TxOffload {
        l2_len: 14,
        l3_len: 20,
        l4_len: 20,
        ip_checksum: true,
        tcp_checksum: true,
        segment: 1000,
        ..Default::default()
    };
    let mut batch = TxBatch::new();
    batch.push(TxFrame { buf: head, offload }).unwrap();
    if dpdk_release() >= (23, 11) {
        // This net_tap takes no chain of the form that it took before: segmentation is tested with DPDK 22.11 only.
        assert_eq!(pairs[0].tx.burst(&mut batch), 0);
        batch.clear();
        assert!(parts.iter().all(|part| !part.is_shared()), "the chain goes with its first buffer");
        return;
    }
    eventually("the tap takes the frame", || (pairs[0].tx.burst(&mut batch) == 1).then_some(()));
    for (payload, seq) in payloads.iter().zip([7, 1007, 2007]) {
        let mut packet = [0; 2048];
        let (len, _) = rustix::net::recv(&socket, &mut packet, RecvFlags::empty()).unwrap();
        let packet = &packet[..len];
        assert_eq!(packet[2..4], u16::try_from(len).unwrap().to_be_bytes());
        assert_eq!(packet[24..28], u32::to_be_bytes(seq));
        assert_eq!(&packet[40..], payload);
        let pseudo = [&packet[12..20], &[0, 6], &u16::try_from(len - 20).unwrap().to_be_bytes()].concat();
        assert_eq!(sum(&[&pseudo, &packet[20..]].concat()), 0xffff, "the segment's checksum");
    }
    assert!(parts.iter().all(|part| !part.is_shared()), "the port let go of the chain");
    drop(parts);
    assert_eq!(pool.in_use(), held);
}

/// The header of data segments whose checksum field holds the pseudo-header's sum without the length.
pub(super) fn data(source: u16, destination: u16) -> Vec<u8> {
    let mut tcp = syn(source, destination);
    tcp[4..8].copy_from_slice(&7_u32.to_be_bytes());
    tcp[13] = 0x10;
    let pseudo = [&OURS.octets()[..], &KERNELS.octets(), &[0, 6, 0, 0]].concat();
    tcp[16..18].copy_from_slice(&sum(&pseudo).to_be_bytes());
    tcp
}

/// The address of the kernel's end.
pub(super) fn kernel_mac(interface: &str) -> [u8; 6] {
    let output = std::process::Command::new("ip").args(["-br", "link", "show", interface]).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    let mac = line.split_whitespace().nth(2).unwrap();
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>();
    bytes.try_into().unwrap()
}

/// The frames of a TAP pass under every name and in every network namespace.
#[test]
fn a_tap_that_was_renamed_or_moved_goes_on() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let pool = pool(1023);
    let (port, mut pairs) = Port::open(eal, &tap("iw0"), &[Arc::clone(&pool)]).unwrap();
    assert_eq!(port.moved(), None);
    // Kernels before 6.2 rename no interface that is up.
    ip("link set iw0 down");
    ip("link set iw0 name lan0");
    assert_eq!(port.moved(), Some(TapInterface { name: "lan0".into(), namespace: None }));
    assert!(!port.link().unwrap().up && !port.has_vanished());
    introduce("lan0", port.mac());
    assert!(port.link().unwrap().up);
    exchange_datagrams(&port, &mut pairs[0], source_of);
    {
        let other = Namespace::enter();
        other.take("lan0");
        let moved = port.moved().unwrap();
        let here = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        assert_eq!(moved, TapInterface { name: "lan0".into(), namespace: here.to_str().map(str::to_owned) });
        assert!(!port.link().unwrap().up && !port.has_vanished());
        introduce("lan0", port.mac());
        assert!(port.link().unwrap().up);
        exchange_datagrams(&port, &mut pairs[0], source_of);
        other.give_back("lan0");
    }
    ip("link set lan0 name iw0");
    assert!(port.moved().is_none() && !port.has_vanished());
    introduce("iw0", port.mac());
    assert!(port.link().unwrap().up);
    exchange_datagrams(&port, &mut pairs[0], source_of);
    ip("link del iw0");
    assert!(port.has_vanished());
    drop((port, pairs));
    assert_eq!(pool.in_use(), 0);
}

/// A TAP that is deleted in another network namespace has vanished, too.
#[test]
fn a_tap_that_is_deleted_elsewhere_has_vanished() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let (port, pairs) = Port::open(eal, &tap("iw0"), &[pool(1023)]).unwrap();
    let other = Namespace::enter();
    other.take("iw0");
    assert!(!port.has_vanished());
    ip("link del iw0");
    assert!(port.has_vanished());
    drop((other, port, pairs));
}

#[test]
fn a_tap_of_dpdk_does_not_take_signals() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let handled = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status
            .lines()
            .filter(|line| line.starts_with("SigCgt") || line.starts_with("SigIgn"))
            .collect::<String>()
    };
    let before = handled();
    let (_port, _pairs) = Port::open(eal, &dpdk_tap("iw0"), &[pool(255)]).unwrap();
    assert_eq!(handled(), before);
}

#[test]
fn a_worker_sleeps_on_a_tap_until_frames_come() {
    let eal = eal();
    let _namespace = Namespace::enter();
    // Without IPv6 the kernel says nothing of its own.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    let pool = pool(255);
    let spec = PortSpec { rx_interrupt: true, ..tap("iw0") };
    let (port, mut pairs) = Port::open(eal, &spec, &[Arc::clone(&pool)]).unwrap();
    let pair = &mut pairs[0];
    assert!(pair.rx.has_descriptor());
    introduce("iw0", port.mac());
    eventually("the kernel is silent", || {
        let mut burst = arrayvec::ArrayVec::new();
        while pair.rx.burst(&mut burst) > 0 {
            burst.clear();
        }
        (pair.rx.wait(&mut [], Duration::from_millis(50)) == Wake::Timeout).then_some(())
    });
    let (ours, others) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(
        pair.rx.wait(&mut [PollFd::new(&ours, PollFlags::IN)], Duration::from_millis(10)),
        Wake::Timeout
    );
    std::io::Write::write_all(&mut &others, b"x").unwrap();
    assert_eq!(pair.rx.wait(&mut [PollFd::new(&ours, PollFlags::IN)], Duration::from_secs(5)), Wake::Other);
    let socket = UdpSocket::bind((KERNELS, 4000)).unwrap();
    socket.send_to(b"wake up", (OURS, 5000)).unwrap();
    assert_eq!(pair.rx.wait(&mut [], Duration::from_secs(5)), Wake::Frames);
    assert_eq!(&receive(pair, is_udp).bytes()[42..], b"wake up");
    assert_eq!(pair.rx.wait(&mut [], Duration::from_millis(10)), Wake::Timeout);
}

#[test]
fn a_tap_has_as_many_queues_as_workers() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let pools = [pool(255), pool(255)];
    let (port, mut pairs) = Port::open(eal, &tap("iw0"), &pools).unwrap();
    introduce("iw0", port.mac());
    let socket = UdpSocket::bind((KERNELS, 4000)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for (queue, pool) in pools.iter().enumerate() {
        let tag = [u8::try_from(queue).unwrap()];
        let bytes = packet(kernel_mac("iw0"), port.mac(), 17, &udp(5000, 4000, &tag));
        send(&mut pairs[queue], frame(pool, &bytes));
        let mut got = [0; 8];
        assert_eq!(socket.recv(&mut got).unwrap(), 1);
        assert_eq!(got[0], tag[0]);
    }
    assert_eq!(port.queues(), 2);
}

#[test]
fn a_tap_carries_packets_of_every_mtu_that_its_driver_has() {
    let eal = eal();
    let _namespace = Namespace::enter();
    for mtu in [576, 1400, 1500, 1504, 4096, 9000, 9600] {
        let pool = pool_for(63, mtu);
        let spec = PortSpec { mtu, ..tap("iw0") };
        let (port, mut pairs) = match Port::open(eal, &spec, &[Arc::clone(&pool)]) {
            Ok(opened) => opened,
            Err(PortError::Mtu { max, .. }) if (1504..mtu).contains(&max) => continue,
            Err(error) => panic!("MTU {mtu}: {error}"),
        };
        assert!(port.info().mtu_max >= mtu, "{} at MTU {mtu}", port.info().mtu_max);
        let shown = std::process::Command::new("ip").args(["link", "show", "iw0"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains(&format!("mtu {mtu} ")), "the kernel's end has it too: {shown}");
        introduce("iw0", port.mac());
        exchange_packets(&port, &mut pairs[0], source_of, mtu);
        drop((port, pairs));
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn a_driver_without_jumbo_frames_says_where_it_ends() {
    let eal = eal();
    let _namespace = Namespace::enter();
    veth(9600);
    let folder = tempfile::tempdir().unwrap();
    let memif = Memif { id: 0, role: MemifRole::Server, socket: folder.path().join("memif.sock") };
    for driver in [Driver::AfPacket { interface: "iw1".into() }, Driver::Memif(memif)] {
        for mtu in [1500, 1501, 9000] {
            let spec = PortSpec { mtu, ..PortSpec::new("p0", driver.clone()) };
            match Port::open(eal, &spec, &[pool_for(1023, mtu)]) {
                Ok((port, _)) => assert!(port.info().mtu_max >= mtu, "{driver:?}: {}", port.info().mtu_max),
                Err(PortError::Mtu { max, .. }) if (1500..mtu).contains(&max) => {}
                Err(error) => panic!("{driver:?}, MTU {mtu}: {error}"),
            }
        }
    }
}

#[test]
fn an_interface_that_cannot_be_made_is_an_error() {
    let eal = eal();
    let _namespace = Namespace::enter();
    let first = Port::open(eal, &tap("iw0"), &[pool(63)]).unwrap();
    ip("link add veth0 type veth peer name veth1");
    let refused = Port::open(eal, &tap("veth0"), &[pool(63)]).unwrap_err();
    assert!(matches!(refused, PortError::Interface { .. }), "{refused}");
    drop(first);
    let again = Port::open(eal, &tap("iw0"), &[pool(63)]);
    assert!(again.is_ok(), "the name is free again");
}

/// A veth pair: the kernel's stack on `iw0`, the port on `iw1`, with nothing left to hardware that is not there.
pub(super) fn veth(mtu: u16) {
    ip("link add iw0 type veth peer name iw1");
    for interface in ["iw0", "iw1"] {
        let features = ["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        // Without ethtool datagrams of the kernel go out without a checksum, which these tests do not look at.
        let _ = std::process::Command::new("ethtool").args(features).status();
        ip(&format!("link set {interface} mtu {mtu} up"));
    }
}

#[test]
fn af_packet_talks_to_a_veth() {
    let eal = eal();
    let interface = || "iw1".to_owned();
    for driver in
        [Driver::AfPacket { interface: interface() }, Driver::DpdkAfPacket { interface: interface() }]
    {
        let _namespace = Namespace::enter();
        veth(1500);
        let pool = pool(1023);
        let spec = PortSpec::new("p0", driver);
        let (port, mut pairs) = Port::open(eal, &spec, &[Arc::clone(&pool)]).unwrap();
        assert_eq!(port.mac(), kernel_mac("iw1"), "the interface's own address");
        introduce("iw0", port.mac());
        exchange_datagrams(&port, &mut pairs[0], source_of);
        drop((port, pairs));
        assert_eq!(pool.in_use(), 0);
    }
}

#[test]
fn af_packet_takes_another_address_when_told() {
    let eal = eal();
    let _namespace = Namespace::enter();
    veth(1500);
    let driver = Driver::AfPacket { interface: "iw1".into() };
    let spec = PortSpec { mac: Some([2, 0, 0x5e, 0, 0x53, 9]), ..PortSpec::new("p0", driver) };
    let before = kernel_mac("iw1");
    let (port, mut pairs) = Port::open(eal, &spec, &[pool(1023)]).unwrap();
    introduce("iw0", port.mac());
    exchange_datagrams(&port, &mut pairs[0], source_of);
    assert_eq!(kernel_mac("iw1"), before, "the kernel keeps its own");
}

#[test]
fn pcap_talks_to_a_veth() {
    let eal = eal();
    let _namespace = Namespace::enter();
    veth(1500);
    let driver = Driver::Pcap(Pcap::Interface("iw1".into()));
    let (port, mut pairs) = Port::open(eal, &PortSpec::new("p0", driver), &[pool(1023)]).unwrap();
    introduce("iw0", port.mac());
    exchange_datagrams(&port, &mut pairs[0], source_of);
    let sent = frame(&pool(63), &frame_bytes(60, 0x77));
    let mut batch = batch_of(sent);
    assert_eq!(pairs[0].tx.burst(&mut batch), 1);
    let mut burst = arrayvec::ArrayVec::new();
    for _ in 0..100 {
        pairs[0].rx.burst(&mut burst);
        assert!(burst.iter().all(|mbuf| mbuf.bytes().last() != Some(&0x77)), "what is sent is not received");
        burst.clear();
        pairs[0].rx.wait(&mut [], Duration::from_millis(1));
    }
}

#[test]
fn af_xdp_talks_to_a_veth() {
    let eal = eal();
    let _namespace = Namespace::enter();
    veth(1500);
    let driver = Driver::AfXdp { interface: "iw1".into(), start_queue: 0, queue_count: 1 };
    let (port, mut pairs) = Port::open(eal, &PortSpec::new("p0", driver), &[pool(8191)]).unwrap();
    introduce("iw0", port.mac());
    exchange_datagrams(&port, &mut pairs[0], source_of);
}
