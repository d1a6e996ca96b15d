//! Tests of connections from an address of ours to an address of ours.

use core::net::SocketAddr;
use std::vec::Vec;

use super::super::*;
use crate::buf::{Buf, BufClass, BufPool, RxChecksum, RxFrame, TxFrame};
use crate::config::{ConnOptions, ListenOptions, Segmentation};
use crate::testutil::{HeapBuf, HeapPool, pattern_byte};
use crate::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr, flow_hash};

const ADDRESSES: [&str; 3] = ["10.0.0.1:7", "[fd77::1]:7", "[fe80::ff:fe00:1]:7"];

fn config(mtu: u16) -> StackConfig {
    StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        mtu,
        ipv4: Ipv4Cidr::new([10, 0, 0, 1].into(), 24),
        ipv6: Ipv6Cidr::new("fd77::1".parse().unwrap(), 64),
        connections_max: 8,
        buffers_max: 4096,
        ..StackConfig::default()
    }
}

/// A stack whose looped frames come back to it, and that sends no others.
struct Host {
    stack: Stack<HeapBuf>,
    pool: HeapPool,
    now: Instant,
    looped: Vec<HeapBuf>,
    /// Bytes that each connection has received, by its index.
    received: [Vec<u8>; 8],
    connected: Vec<ConnId>,
    accepted: Vec<ConnId>,
    closed: usize,
}

impl Host {
    fn new(config: StackConfig) -> Self {
        let pool = HeapPool::new(4096, 64, 9216);
        let mut stack = Stack::new(StackConfig { primary: false, ..config }, [3; 32]);
        stack.listen(7, ListenOptions::default()).unwrap();
        Self {
            stack,
            pool,
            now: Instant::ZERO,
            looped: Vec::new(),
            received: Default::default(),
            connected: Vec::new(),
            accepted: Vec::new(),
            closed: 0,
        }
    }

    /// Returns true if there was something to do.
    fn poll(&mut self) -> bool {
        let Self { stack, pool, looped, .. } = self;
        let frames = looped.drain(..).map(|buf| RxFrame { buf, checksum: RxChecksum::Looped });
        let frames: Vec<_> = frames.collect();
        let mut busy = !frames.is_empty();
        stack.handle_frames(self.now, frames);
        if stack.next_deadline().is_some_and(|due| due <= self.now) {
            stack.handle_timeouts(self.now);
        }
        while let Some(event) = stack.poll_event() {
            match event {
                Event::Accepted { conn, .. } => self.accepted.push(conn),
                Event::Connected { conn } => self.connected.push(conn),
                Event::Data { conn, segment, .. } => {
                    self.received[conn.index() as usize].extend_from_slice(segment.bytes());
                    stack.consumed(conn, segment.len());
                }
                Event::PeerClosed { conn } => stack.close(self.now, conn),
                Event::Closed { .. } => self.closed += 1,
                _ => {}
            }
        }
        let mut out = |frame: TxFrame<HeapBuf>| {
            assert!(frame.offload.looped && frame.offload.segment == 0, "a frame for the wire: {frame:?}");
            looped.push(frame.buf);
        };
        busy |= stack.poll_transmit(self.now, pool, &mut out, 32) > 0;
        busy
    }

    fn settle(&mut self, until: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if until(self) {
                return;
            }
            if !self.poll() {
                self.now = self.stack.next_deadline().unwrap_or(self.now).max(self.now);
            }
        }
        panic!("nothing happens any more");
    }

    /// Sends `bytes` from `from`, in segments of at most `len` bytes.
    fn send(&mut self, from: ConnId, bytes: &[u8], len: usize) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = len.min(self.stack.emss(from)).min(rest.len());
            if self.stack.send_capacity(from) < len {
                assert!(self.poll(), "the connection stalls");
                continue;
            }
            let (part, after) = rest.split_at(len);
            let mut buf = self.pool.alloc(BufClass::Data).unwrap();
            buf.append(len).unwrap().copy_from_slice(part);
            self.stack.send(self.now, from, buf).unwrap();
            rest = after;
        }
    }
}

#[test]
fn data_passes_between_two_ends_of_one_stack() {
    let bytes: Vec<u8> = (0..300_000).map(|at| pattern_byte(7, at)).collect();
    for address in ADDRESSES {
        for (mtu, offloaded, predicts) in [(1500, false, true), (9000, true, true), (1280, false, false)] {
            let segmentation = offloaded.then_some(Segmentation { bytes_max: 65_000, buffers_max: 40 });
            let config = StackConfig { tx_checksum_offload: offloaded, segmentation, ..config(mtu) };
            let mut host = Host::new(config);
            host.stack.predict(predicts);
            let remote: SocketAddr = address.parse().unwrap();
            let conn = host.stack.connect(host.now, remote, ConnOptions::default()).unwrap();
            host.settle(|host| host.connected.len() + host.accepted.len() == 2);
            let ends = [conn, host.accepted[0]];
            assert_eq!(host.stack.info(conn).unwrap().local.ip(), remote.ip());
            for (from, to, len) in [(0, 1, 9000), (1, 0, 300), (0, 1, 1)] {
                let sent = if len == 1 { &bytes[..500] } else { &bytes[..] };
                host.received = Default::default();
                host.send(ends[from], sent, len);
                let to = ends[to].index() as usize;
                host.settle(|host| host.received[to].len() == sent.len());
                assert_eq!(host.received[to], sent, "{address}, MTU {mtu}");
            }
            host.stack.close(host.now, conn);
            host.settle(|host| host.closed == 2);
            let stats = host.stack.stats();
            assert_eq!((stats.drops.total(), stats.tcp.retransmits), (0, 0), "{address}");
            assert_eq!(stats.interface.rx_software_checksums, 0);
        }
    }
}

/// A frame that a station on the link sends in our name is dropped, even if it fits a connection.
#[test]
fn a_looped_connection_takes_nothing_from_the_wire() {
    for address in ADDRESSES {
        let mut host = Host::new(config(1500));
        let remote: SocketAddr = address.parse().unwrap();
        let conn = host.stack.connect(host.now, remote, ConnOptions::default()).unwrap();
        host.settle(|host| host.accepted.len() == 1);
        while host.poll() {}
        host.send(conn, b"for the other end", 100);
        let mut frames = Vec::new();
        host.stack.poll_transmit(host.now, &mut host.pool, &mut |frame| frames.push(frame.buf), 32);
        assert_eq!(frames.len(), 1);
        for checksum in [RxChecksum::Unknown, RxChecksum::Good, RxChecksum::TransportGood, RxChecksum::Bad] {
            let before = host.stack.stats().drops;
            host.stack.handle_frames(host.now, [RxFrame { buf: frames[0].share(), checksum }]);
            let drops = host.stack.stats().drops;
            assert_eq!(drops.drop_ip_source, before.drop_ip_source + 1, "{address}, {checksum:?}");
            assert_eq!(drops.total(), before.total() + 1);
        }
        host.looped.extend(frames);
        let to = host.accepted[0].index() as usize;
        host.settle(|host| host.received[to] == b"for the other end");
    }
}

/// Both ends of a connection must not be the same end.
#[test]
fn a_connection_is_not_its_own_peer() {
    for number in 0..200 {
        let mut host = Host::new(config(1500));
        let mut ports = Vec::new();
        for address in ADDRESSES {
            let mut remote: SocketAddr = address.parse().unwrap();
            remote.set_port(49_152 + number * 80);
            for _ in 0..2 {
                let conn = host.stack.connect(host.now, remote, ConnOptions::default()).unwrap();
                ports.push((host.stack.info(conn).unwrap().local, remote));
            }
        }
        assert!(ports.iter().all(|(local, remote)| local != remote));
    }
}

#[test]
fn the_answers_lead_back_to_the_worker() {
    for worker_index in 0..4 {
        let mut host = Host::new(StackConfig { worker_index, worker_count: 4, ..config(1500) });
        for address in ADDRESSES {
            let remote: SocketAddr = address.parse().unwrap();
            let conn = host.stack.connect(host.now, remote, ConnOptions::default()).unwrap();
            let local = host.stack.info(conn).unwrap().local;
            assert_eq!(flow_hash(local, remote) % 4, u32::from(worker_index));
            assert_eq!(flow_hash(remote, local) % 4, u32::from(worker_index));
        }
    }
}

/// Without a listener the connection is refused at once, and no frame is for the wire.
#[test]
fn a_port_without_a_listener_refuses() {
    for address in ADDRESSES {
        let mut host = Host::new(config(1500));
        let mut remote: SocketAddr = address.parse().unwrap();
        remote.set_port(8);
        host.stack
            .connect_from(host.now, (Some(remote.ip()), 0), remote, ConnOptions::default(), &mut |_| true)
            .unwrap();
        host.settle(|host| host.closed == 1);
        assert_eq!(host.now, Instant::ZERO);
    }
}

/// The address decides: ports of software may share a station address, and a peer may claim ours.
#[test]
fn a_peer_with_our_station_address_is_on_the_wire() {
    for peer in ["10.0.0.9:7", "[fd77::9]:7"] {
        let peer: SocketAddr = peer.parse().unwrap();
        let ours = config(1500);
        let mut host = Host::new(StackConfig { neighbors: Vec::from([(peer.ip(), ours.mac)]), ..ours });
        host.stack.connect(host.now, peer, ConnOptions::default()).unwrap();
        let mut sent = Vec::new();
        host.stack.poll_transmit(host.now, &mut host.pool, &mut |frame| sent.push(frame.offload.looped), 32);
        assert_eq!(sent, [false]);
    }
}
