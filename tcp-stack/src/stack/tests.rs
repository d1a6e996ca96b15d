mod loopback;
mod no_neighbor;
mod traffic_class;

use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::buf::RxFrame;
use crate::config::{ConnOptions, ListenOptions, ListenScope};
use crate::error::{ConnectError, ListenError, SendError};
use crate::testutil::{HeapBuf, HeapPool};
use crate::timer::TimerKind;
use crate::wire::{Ipv4Cidr, Ipv6Cidr, MacAddr, Rss, flow_hash};

const PEER: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7);

fn config() -> StackConfig {
    StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 0, 0, 1), 24),
        connections_max: 8,
        buffers_max: 64,
        ..StackConfig::default()
    }
}

fn stack(config: StackConfig) -> Stack<HeapBuf> {
    Stack::new(config, [3; 32])
}

#[test]
fn an_invalid_identifier_is_ignored_everywhere() {
    let mut stack = stack(config());
    let now = Instant::ZERO;
    let conn = stack.connect(now, PEER, ConnOptions::default()).unwrap();
    stack.abort(now, conn);
    assert!(matches!(stack.poll_event(), Some(Event::Closed { reason: CloseReason::Aborted, .. })));
    assert!(stack.poll_event().is_none());
    stack.abort(now, conn);
    stack.close(now, conn);
    stack.consumed(conn, 100);
    stack.notify_writable(conn);
    assert!(!stack.append(conn, 1, &mut |_| panic!("nothing to build")));
    let sent = stack.send(now, conn, HeapBuf::new(b"abc"));
    assert!(matches!(sent, Err(SendError::NotConnected(_))));
    assert_eq!((stack.emss(conn), stack.send_capacity(conn), stack.info(conn)), (0, 0, None));
    assert!(stack.poll_event().is_none());
    assert_eq!(stack.connections_from(0).count(), 0);
}

#[test]
fn source_ports_lead_back_to_the_worker() {
    for worker_index in 0..4 {
        let mut stack = stack(StackConfig { worker_index, worker_count: 4, ..config() });
        for _ in 0..8 {
            let conn = stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
            let local = stack.info(conn).unwrap().local;
            assert!(local.port() >= 49_152);
            assert_eq!(flow_hash(local, PEER) % 4, u32::from(worker_index));
        }
        let full = stack.connect(Instant::ZERO, PEER, ConnOptions::default());
        assert_eq!(full, Err(ConnectError::TooMany));
    }
}

/// A configured range of source ports is used wholly, and nothing else.
#[test]
fn source_ports_are_of_the_configured_range() {
    for (source_ports, count) in [(65_472..=65_535, 64), (9..=9, 1), (1..=65_535, 300)] {
        let config = StackConfig {
            source_ports: source_ports.clone(),
            connections_max: 512,
            buffers_max: 1024,
            ..config()
        };
        let mut stack = stack(config);
        let mut used = std::collections::HashSet::new();
        for _ in 0..count {
            let conn = stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
            let port = stack.info(conn).unwrap().local.port();
            assert!(source_ports.contains(&port) && used.insert(port), "{port}");
        }
        if count < 300 {
            let full = stack.connect(Instant::ZERO, PEER, ConnOptions::default());
            assert_eq!(full, Err(ConnectError::NoPort));
        }
    }
}

/// A port that the caller refuses is not taken, and no port is asked for twice.
#[test]
fn source_ports_are_those_that_the_caller_accepts() {
    let mut stack = stack(config());
    let mut asked = std::collections::HashSet::new();
    let mut claim = |port: u16| {
        assert!(asked.insert(port), "{port}");
        port.is_multiple_of(5)
    };
    for _ in 0..8 {
        let options = ConnOptions::default();
        let conn = stack.connect_from(Instant::ZERO, (None, 0), PEER, options, &mut claim).unwrap();
        assert_eq!(stack.info(conn).unwrap().local.port() % 5, 0);
    }
    let mut stack = self::stack(config());
    let none = stack.connect_from(Instant::ZERO, (None, 0), PEER, ConnOptions::default(), &mut |_| false);
    assert_eq!(none, Err(ConnectError::NoPort));
}

/// The caller's port is taken although it leads to another worker, unless it is in use.
#[test]
fn a_connection_is_opened_from_the_port_that_was_asked_for() {
    for worker_index in 0..4 {
        let mut stack = stack(StackConfig { worker_index, worker_count: 4, connections_max: 16, ..config() });
        stack.listen(22, ListenOptions::default()).unwrap();
        let mut from = |port, remote, claimed| {
            let asked = core::cell::Cell::new(0);
            let mut claim = |port| {
                asked.set(port);
                claimed
            };
            let conn =
                stack.connect_from(Instant::ZERO, (None, port), remote, ConnOptions::default(), &mut claim);
            let port = conn.map(|conn| stack.info(conn).unwrap().local.port());
            assert!(port.is_err() || port == Ok(asked.get()));
            port
        };
        let other = SocketAddr::new(PEER.ip(), PEER.port() + 1);
        for port in [1, 1023, 5555, 65_535] {
            assert_eq!(from(port, PEER, false), Err(ConnectError::NoPort), "not claimed");
            assert_eq!(from(port, PEER, true), Ok(port));
            assert_eq!(from(port, PEER, true), Err(ConnectError::NoPort), "in use to this peer");
            assert_eq!(from(port, other, true), Ok(port));
        }
        assert_eq!(from(22, PEER, true), Err(ConnectError::NoPort), "has a listener");
    }
}

/// The card's queue counts for other hosts; the hash of the software, for connections of this host to itself.
#[test]
fn source_ports_lead_to_the_queue_of_the_worker() {
    let key: Vec<u8> = (0..40_u8).map(|at| at.wrapping_mul(167).wrapping_add(29)).collect();
    for queues in [2, 3, 4, 7] {
        for worker_index in 0..queues {
            let rss = Rss::new(key.clone(), (0..128).map(|at| at % queues).collect());
            let ipv6 = Ipv6Cidr::new("fd00::1".parse().unwrap(), 64);
            let shape =
                StackConfig { worker_index, worker_count: queues, rss: rss.clone(), ipv6, ..config() };
            for peer in [PEER, "[fd00::2]:7".parse().unwrap()] {
                let mut stack = stack(shape.clone());
                for _ in 0..8 {
                    let conn = stack.connect(Instant::ZERO, peer, ConnOptions::default()).unwrap();
                    let local = stack.info(conn).unwrap().local;
                    assert_eq!(rss.as_ref().unwrap().queue(peer, local), Some(worker_index), "{peer}");
                }
            }
            let mut stack = stack(shape);
            let own = SocketAddr::new(config().ipv4.unwrap().address().into(), 7);
            for _ in 0..8 {
                let conn = stack.connect(Instant::ZERO, own, ConnOptions::default()).unwrap();
                let local = stack.info(conn).unwrap().local;
                assert_eq!(flow_hash(local, own) % u32::from(queues), u32::from(worker_index));
            }
        }
    }
}

#[test]
fn addresses_that_lead_nowhere_are_refused() {
    let mut stack = stack(config());
    for (address, error) in [
        ("10.0.0.2:0", ConnectError::BadAddress),
        ("0.0.0.0:7", ConnectError::BadAddress),
        ("224.0.0.1:7", ConnectError::BadAddress),
        ("255.255.255.255:7", ConnectError::BadAddress),
        ("[fd77::1]:7", ConnectError::NoRoute),
    ] {
        let remote = address.parse().unwrap();
        assert_eq!(stack.connect(Instant::ZERO, remote, ConnOptions::default()), Err(error), "{address}");
    }
}

#[test]
fn a_port_has_one_listener() {
    let mut stack = stack(config());
    let options = ListenOptions::default();
    assert_eq!(stack.listen(0, options), Err(ListenError::PortZero));
    let first = stack.listen(7, options).unwrap();
    assert_eq!(stack.listen(7, options), Err(ListenError::InUse));
    stack.unlisten(first);
    let second = stack.listen(7, options).unwrap();
    assert_ne!(first, second);
    stack.unlisten(first);
    assert_eq!(stack.listen(7, options), Err(ListenError::InUse), "a dead name removes nothing");
}

/// Listeners of one port exclude each other only if an address would belong to both. A SYN finds that of its address.
#[test]
fn a_port_has_one_listener_for_each_address() {
    let scopes = ["0.0.0.0", "::", "10.0.0.1", "10.0.0.9", "fd77::1", "fd77::9"];
    let scopes = scopes.map(|text| ListenScope::of(text.parse().unwrap()));
    let scopes = scopes.into_iter().chain([ListenScope::Any]).collect::<Vec<_>>();
    let addresses = ["10.0.0.1", "10.0.0.9", "10.0.0.77", "fd77::1", "fd77::9", "fd77::77"];
    let addresses = addresses.map(|text| text.parse::<core::net::IpAddr>().unwrap());
    let options = ListenOptions::default();
    let mut pairs = 0;
    for first in &scopes {
        for second in &scopes {
            let mut stack = stack(config());
            let one = stack.listen_at((*first, 7), options).unwrap();
            stack.listen_at((*second, 8), options).unwrap();
            let other = stack.listen_at((*second, 7), options);
            let shared = addresses.iter().any(|address| first.has(*address) && second.has(*address));
            assert_eq!(other, if shared { Err(ListenError::InUse) } else { other }, "{first:?}, {second:?}");
            pairs += usize::from(other.is_ok());
            let mut found = |address| stack.listeners.find((address, 7).into()).map(|(id, _)| id);
            for address in addresses {
                let expected = if first.has(address) { Some(one) } else { other.ok() };
                assert_eq!(found(address), expected.filter(|_| first.has(address) || second.has(address)));
            }
            assert_eq!(stack.listener_at(7).is_some(), *first == ListenScope::Any);
            stack.unlisten(one);
            let mut found = |address| stack.listeners.find((address, 7).into()).map(|(id, _)| id);
            for address in addresses {
                assert_eq!(found(address), other.ok().filter(|_| second.has(address)), "the other one stays");
            }
        }
    }
    // Each family beside the other and its addresses, and each address beside another.
    assert_eq!(pairs, 2 + 2 * 4 + 4 * 3);
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let frames = |seed: u8| {
        let mut stack: Stack<HeapBuf> = Stack::new(config(), [seed; 32]);
        let mut pool = HeapPool::new(16, 0, 1600);
        stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
        let conn = stack.connections_from(0).next().unwrap();
        let mut bytes = Vec::new();
        stack.poll_transmit(
            Instant::ZERO,
            &mut pool,
            &mut |frame| bytes.extend_from_slice(frame.buf.bytes()),
            16,
        );
        (stack.info(conn).unwrap().local, bytes)
    };
    assert_eq!(frames(1), frames(1));
    assert_ne!(frames(1).0, frames(2).0);
}

/// RFC 9293 §3.9.1.1 (MUST-42): a port can be listened on while a connection from it is in SYN-SENT.
#[test]
fn a_port_that_a_connection_was_opened_from_can_be_listened_on() {
    let mut stack = stack(config());
    let conn = stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
    let local = stack.info(conn).unwrap().local;
    stack.listen(local.port(), ListenOptions::default()).unwrap();
    assert_eq!(stack.info(conn).map(|info| info.state), Some(State::SynSent));
    let states = stack.stats().states;
    assert_eq!((states.get(State::SynSent), states.total()), (1, 1));
}

#[test]
fn a_connection_is_opened_from_the_address_that_was_asked_for() {
    let link_local = "fe80::ff:fe00:1".parse().unwrap();
    let ipv6 = Ipv6Cidr::new("fd77::1".parse().unwrap(), 64);
    let mut stack = stack(StackConfig { ipv6, ..config() });
    let far = "[fd77::2]:7".parse().unwrap();
    let mut from = |local: Option<core::net::IpAddr>| {
        let conn =
            stack.connect_from(Instant::ZERO, (local, 0), far, ConnOptions::default(), &mut |_| true)?;
        Ok(stack.info(conn).unwrap().local.ip())
    };
    assert_eq!(from(None), Ok("fd77::1".parse().unwrap()));
    assert_eq!(from(Some(link_local)), Ok(link_local));
    for foreign in ["fd77::3", "10.0.0.1"] {
        assert_eq!(from(Some(foreign.parse().unwrap())), Err(ConnectError::BadAddress), "{foreign}");
    }
}

/// Makes a stack that knows the link address of [`PEER`] and has sent it a SYN.
fn opening() -> (Stack<HeapBuf>, u32) {
    let mut stack = stack(config());
    let mut pool = HeapPool::new(16, 0, 1600);
    let sender_mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let mut frame = std::vec![0; 42];
    let (ethernet, arp) = frame.split_at_mut(14);
    let (dst, ethertype) = (MacAddr([2, 0, 0, 0, 0, 1]), crate::wire::EtherType::ARP);
    assert!(crate::wire::EthernetHeader { dst, src: sender_mac, tci: None, ethertype }.emit(ethernet));
    let request = crate::wire::ArpPacket {
        operation: crate::wire::ArpOperation::Request,
        sender_mac,
        sender_ip: Ipv4Addr::new(10, 0, 0, 2),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: Ipv4Addr::new(10, 0, 0, 1),
    };
    request.emit(arp.first_chunk_mut().unwrap());
    let checksum = crate::buf::RxChecksum::Good;
    stack.handle_frames(Instant::ZERO, [RxFrame { buf: HeapBuf::new(&frame), checksum }]);
    let conn = stack.connect(Instant::ZERO, PEER, ConnOptions::default()).unwrap();
    stack.poll_transmit(Instant::ZERO, &mut pool, &mut |_| (), 16);
    (stack, conn.index())
}

/// Simulations and fuzzers rely on this: the audit names every violation of an invariant.
#[test]
fn an_audit_names_what_is_wrong() {
    type Breach = fn(&mut Stack<HeapBuf>, u32);
    let breaches: [(&str, Breach); 6] = [
        ("something is outstanding, and no timer runs", |stack, index| {
            let conn = stack.conns.at_mut(index).unwrap();
            conn.timers.clear(TimerKind::Retransmit);
        }),
        ("a timer runs, and the wheel is not armed for it", |stack, index| stack.wheel.cancel(index)),
        ("SND.UNA, SND.NXT and the end of the queue are out of order", |stack, index| {
            let conn = stack.conns.at_mut(index).unwrap();
            conn.snd.una = conn.snd.nxt + 1;
        }),
        ("RCV.NXT is beyond the window that was offered", |stack, index| {
            let conn = stack.conns.at_mut(index).unwrap();
            conn.rcv.nxt = conn.rcv.edge + 1;
        }),
        ("1 entries of the table of flows, of which 0", |stack, index| {
            stack.conns.remove(index).unwrap();
        }),
        ("0 connections in accounts, of which 1", |stack, index| {
            let ids = stack.conns.at(index).unwrap().accounts();
            stack.accounts.close(ids);
        }),
    ];
    for (wrong, breach) in breaches {
        let (mut stack, index) = opening();
        assert_eq!(stack.audit(), Ok(()));
        breach(&mut stack, index);
        let violation = stack.audit().unwrap_err();
        assert!(violation.contains(wrong), "{violation}");
    }
}

/// If a port steers in software, every worker gets the fragments and reassembles them. A worker without the
/// connection sends no reset, since another may have it.
#[test]
fn a_segment_in_fragments_is_reset_by_no_other_worker() {
    use crate::buf::RxChecksum;
    use crate::wire::{EthernetHeader, Ipv4Header};
    use etherparse::PacketBuilder;
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 1])
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64)
        .tcp(7, 7, 1, 1000)
        .ack(1)
        .write(&mut frame, &[7; 300])
        .unwrap();
    let (ip, _, payload) = Ipv4Header::parse(&frame[EthernetHeader::LEN..]).unwrap();
    let parts = [0, 160].map(|start: u16| {
        let part = payload.get(usize::from(start)..).unwrap();
        let part = part.get(..160).unwrap_or(part);
        let mut out = frame[..34].to_vec();
        let header = Ipv4Header { more_fragments: start == 0, fragment_offset: start / 8, ..ip };
        header.emit(part.len(), true, out[14..].first_chunk_mut().unwrap());
        out.extend(part);
        RxFrame { buf: HeapBuf::new(&out), checksum: RxChecksum::Unknown }
    });
    for worker_count in [1, 2] {
        let mut stack = stack(StackConfig { worker_count, ..config() });
        let copy = |part: &RxFrame<HeapBuf>| HeapBuf::with_room(part.buf.bytes(), 2048);
        let copies = parts.each_ref().map(|part| RxFrame { buf: copy(part), checksum: part.checksum });
        stack.handle_frames(Instant::ZERO, copies);
        let drops = stack.stats().drops;
        let alone = u64::from(worker_count == 1);
        assert_eq!((drops.drop_tcp_no_connection, drops.drop_fragment_worker), (alone, 1 - alone));
    }
}
