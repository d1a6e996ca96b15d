//! Tests of the traffic class of a connection's packets (RFC 9293 §3.9.1.9).

use core::net::SocketAddr;
use std::vec::Vec;

use super::super::*;
use crate::buf::{Buf, BufClass, BufPool, RxChecksum, RxFrame, TxFrame};
use crate::config::{ConnOptions, Ecn, ListenOptions};
use crate::testutil::{HeapBuf, HeapPool, WireSegment};
use crate::wire::{
    EcnField, EtherType, EthernetHeader, Ipv4Cidr, Ipv4Header, Ipv6Cidr, Ipv6Header, MacAddr, TcpFlags,
};

const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1", "fd77::1"], ["10.0.0.2", "fd77::2"]];

fn stack(at: usize, ecn: Ecn, cookies: crate::config::SynCookies) -> Stack<HeapBuf> {
    let number = |at: usize| if at == 0 { 1 } else { 2 };
    let mac = |at: usize| MacAddr([2, 0, 0, 0, 0, number(at)]);
    let [[v4, v6], others] = [ADDRESSES[at], ADDRESSES[1 - at]];
    let mut config = StackConfig {
        mac: mac(at),
        ipv4: Ipv4Cidr::new(v4.parse().unwrap(), 24),
        ipv6: Ipv6Cidr::new(v6.parse().unwrap(), 64),
        neighbors: others.map(|other| (other.parse().unwrap(), mac(1 - at))).to_vec(),
        connections_max: 8,
        buffers_max: 1024,
        primary: false,
        ..StackConfig::default()
    };
    (config.tcp.ecn, config.tcp.syn_cookies) = (ecn, cookies);
    Stack::new(config, [number(at); 32])
}

/// Returns the traffic class of a frame.
fn class(frame: &[u8]) -> u8 {
    let (ethernet, packet) = EthernetHeader::parse(frame).unwrap();
    match ethernet.ethertype {
        EtherType::IPV4 => Ipv4Header::parse(packet).unwrap().0.traffic_class,
        _ => Ipv6Header::parse(packet).unwrap().0.traffic_class,
    }
}

/// Two stacks and the wire between them.
struct Net {
    stacks: [Stack<HeapBuf>; 2],
    pool: HeapPool,
    now: Instant,
    /// Sender, flags, payload length and traffic class of each segment.
    seen: Vec<(usize, TcpFlags, usize, u8)>,
    accepted: Option<ConnId>,
}

impl Net {
    /// Passes frames until both sides are idle; the first segments with payload, `lost` of them, are lost. Runs timers
    /// if nothing else happens, at most `timers` times.
    fn run(&mut self, mut lost: usize, mut timers: usize) {
        loop {
            let mut idle = true;
            for from in 0..2 {
                let mut frames = Vec::new();
                let mut out = |frame: TxFrame<HeapBuf>| frames.push(frame.buf);
                self.stacks[from].poll_transmit(self.now, &mut self.pool, &mut out, 64);
                let mut arrived = Vec::new();
                for buf in frames {
                    idle = false;
                    let segment = WireSegment::parse(buf.bytes()).unwrap().unwrap();
                    let (flags, len) = (segment.header.flags, segment.payload_len as usize);
                    self.seen.push((from, flags, len, class(buf.bytes())));
                    if len > 0 && lost > 0 {
                        lost -= 1;
                        continue;
                    }
                    let buf = HeapBuf::new(buf.bytes());
                    arrived.push(RxFrame { buf, checksum: RxChecksum::Unknown });
                }
                let to = &mut self.stacks[1 - from];
                to.handle_frames(self.now, arrived);
                while let Some(event) = to.poll_event() {
                    match event {
                        Event::Accepted { conn, .. } => self.accepted = Some(conn),
                        Event::Data { conn, segment, .. } => to.consumed(conn, segment.len()),
                        _ => {}
                    }
                }
            }
            if idle {
                let due = self.stacks.iter().filter_map(Stack::next_deadline).min();
                let Some(due) = due.filter(|_| timers > 0) else { return };
                timers -= 1;
                self.now = self.now.max(due);
                for stack in &mut self.stacks {
                    stack.handle_timeouts(self.now);
                    while stack.poll_event().is_some() {}
                }
            }
        }
    }

    fn send(&mut self, from: usize, conn: ConnId, count: usize) {
        for _ in 0..count {
            let mut buf = self.pool.alloc(BufClass::Data).unwrap();
            buf.append(1000).unwrap().fill(7);
            self.stacks[from].send(self.now, conn, buf).unwrap();
        }
    }
}

/// "The application MUST be able to specify the Differentiated Services field for segments that are sent on a
/// connection": on the SYN and the SYN-ACK, data, retransmissions, acknowledgments, FIN and reset. The ECN bits are
/// TCP's.
#[test]
fn every_segment_has_the_class_of_its_connection() {
    use crate::config::SynCookies::{Always, Never};
    const CLASSES: [u8; 2] = [0x28, 0xb8];
    for (family, ecn, cookies) in
        [(0, Ecn::Off, Never), (1, Ecn::Off, Always), (0, Ecn::On, Always), (1, Ecn::On, Never)]
    {
        let mut net = Net {
            stacks: [stack(0, ecn, cookies), stack(1, ecn, cookies)],
            pool: HeapPool::new(1024, 64, 2048),
            now: Instant::from_millis(1),
            seen: Vec::new(),
            accepted: None,
        };
        // Both with ECN bits, which do not count.
        let [conn, listen] =
            CLASSES.map(|class| ConnOptions { traffic_class: class | 3, ..ConnOptions::default() });
        net.stacks[1].listen(7, ListenOptions { conn: listen, ..ListenOptions::default() }).unwrap();
        let to = SocketAddr::new(ADDRESSES[1][family].parse().unwrap(), 7);
        let client = net.stacks[0].connect(net.now, to, conn).unwrap();
        net.run(0, 0);
        net.send(0, client, 8);
        net.run(2, 20);
        let server = net.accepted.unwrap();
        net.send(1, server, 8);
        net.run(2, 20);
        let retransmitted: u64 = [(0, client), (1, server)]
            .map(|(at, id)| net.stacks[at].info(id).unwrap().segments_retransmitted)
            .iter()
            .sum();
        assert!(retransmitted >= 4, "{retransmitted}");
        net.stacks[0].close(net.now, client);
        net.run(0, 0);
        net.stacks[1].abort(net.now, server);
        net.run(0, 0);
        let kinds = |from, flag| net.seen.iter().any(|(of, flags, ..)| *of == from && flags.contains(flag));
        assert!(kinds(0, TcpFlags::SYN) && kinds(1, TcpFlags::SYN) && kinds(0, TcpFlags::FIN));
        assert!(kinds(1, TcpFlags::RST));
        for (from, flags, len, class) in &net.seen {
            assert_eq!(class & !EcnField::MASK, CLASSES[*from], "{family} {from} {flags:?} {len}");
        }
        let marked = net.seen.iter().any(|(.., class)| class & EcnField::MASK == EcnField::Ect0.bits());
        let wrong = net.seen.iter().any(|(.., class)| class & EcnField::MASK == EcnField::Ce.bits());
        assert!(marked == (ecn == Ecn::On) && !wrong, "{family} {ecn:?}");
    }
}

/// A connection, and a listener, may get another class later.
#[test]
fn a_class_may_change() {
    let none = crate::config::SynCookies::Never;
    let mut net = Net {
        stacks: [stack(0, Ecn::Off, none), stack(1, Ecn::Off, none)],
        pool: HeapPool::new(1024, 64, 2048),
        now: Instant::from_millis(1),
        seen: Vec::new(),
        accepted: None,
    };
    let listener = net.stacks[1].listen(7, ListenOptions::default()).unwrap();
    net.stacks[1].set_listen_traffic_class(listener, 0x20);
    let to = SocketAddr::new(ADDRESSES[1][0].parse().unwrap(), 7);
    let client = net.stacks[0].connect(net.now, to, ConnOptions::default()).unwrap();
    net.run(0, 0);
    net.stacks[0].set_traffic_class(client, 0x43);
    net.send(0, client, 1);
    net.run(0, 4);
    let classes: std::collections::BTreeSet<_> =
        net.seen.iter().map(|(from, .., class)| (*from, *class)).collect();
    assert_eq!(classes, [(0, 0), (0, 0x40), (1, 0x20)].into());
}
