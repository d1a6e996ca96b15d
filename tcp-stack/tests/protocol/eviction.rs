//! Connection limits of a host under load: which newcomers are refused, and which connections are evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tcp_stack::testutil::{HeapBuf, HeapPool};
use tcp_stack::{
    Buf, CloseReason, ConnId, ConnOptions, Duration, Event, EvictionPolicy, Instant, Ipv4Cidr, Ipv6Cidr,
    ListenOptions, MacAddr, RxChecksum, RxFrame, Stack, StackConfig, StackStats, SynCookies,
};

const SECOND: Duration = Duration::from_secs(1);
/// One-way delay of the link, which loses nothing.
const DELAY: Duration = Duration::from_millis(1);
const PORTS: [u16; 2] = [7, 7400];
const SERVER: u8 = 1;

/// Returns a host's addresses; every IPv6 address is in a /64 of its own.
fn addresses(host: u8) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(10, 0, 0, host), Ipv6Addr::new(0xfd00, 0, 0, host.into(), 0, 0, 0, host.into()))
}

fn config(host: u8, connections_max: u32) -> StackConfig {
    let (v4, v6) = addresses(host);
    StackConfig {
        mac: MacAddr([2, 0, 0, 0, 0, host]),
        ipv4: Ipv4Cidr::new(v4, 24),
        ipv6: Ipv6Cidr::new(v6, 32),
        connections_max,
        buffers_max: 4096,
        ..StackConfig::default()
    }
}

/// A server, and client hosts on the same link.
struct Network {
    now: Instant,
    server: Stack<HeapBuf>,
    hosts: BTreeMap<u8, Stack<HeapBuf>>,
    pool: HeapPool,
    is_v6: bool,
    /// Eviction rule of accepted connections.
    when: EvictionPolicy,
    /// Connections that the server has open, by the peer's address.
    open: BTreeMap<SocketAddr, ConnId>,
    /// Peers of evicted connections, in the order of eviction.
    evicted: Vec<SocketAddr>,
    /// Connections of each host with their addresses, in the order of opening; and those that are established.
    opened: BTreeMap<u8, Vec<(ConnId, SocketAddr)>>,
    connected: BTreeSet<(u8, u32, u32)>,
}

impl Network {
    fn new(change: impl Fn(&mut StackConfig), per_listener: u32, when: EvictionPolicy, is_v6: bool) -> Self {
        let mut server_config = config(SERVER, 16);
        change(&mut server_config);
        let mut server = Stack::new(server_config, [1; 32]);
        for port in PORTS {
            let options = ListenOptions { connections_max: per_listener, ..ListenOptions::default() };
            server.listen(port, options).unwrap();
        }
        Self {
            now: Instant::ZERO,
            server,
            hosts: BTreeMap::new(),
            pool: HeapPool::new(4096, 64, 1600),
            is_v6,
            when,
            open: BTreeMap::new(),
            evicted: Vec::new(),
            opened: BTreeMap::new(),
            connected: BTreeSet::new(),
        }
    }

    /// Opens a connection and waits for 10 ms; returns true if it is established then.
    fn connect(&mut self, host: u8, port: u16) -> bool {
        let conn = self.begin(host, port);
        self.run(DELAY * 10);
        self.connected.contains(&(host, conn.index(), conn.generation()))
    }

    fn begin(&mut self, host: u8, port: u16) -> ConnId {
        let (v4, v6) = addresses(SERVER);
        let to = SocketAddr::new(if self.is_v6 { IpAddr::V6(v6) } else { IpAddr::V4(v4) }, port);
        let stack = self.hosts.entry(host).or_insert_with(|| Stack::new(config(host, 256), [host; 32]));
        let conn = stack.connect(self.now, to, ConnOptions::default()).unwrap();
        let opened = self.opened.entry(host).or_default();
        opened.push((conn, stack.info(conn).unwrap().local));
        conn
    }

    /// Sends a SYN from a host that disappears before the answer arrives.
    fn send_syn_and_leave(&mut self, host: u8, port: u16) {
        let answered = self.stats().tcp.syn_cookies_out;
        self.begin(host, port);
        while self.stats().tcp.syn_cookies_out == answered {
            self.poll_all();
            self.now += DELAY;
        }
        self.hosts.remove(&host);
    }

    /// Returns the address of a host's connection number `n`.
    fn end(&self, host: u8, n: usize) -> SocketAddr {
        self.opened[&host][n].1
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.poll_all();
            self.now += DELAY;
        }
    }

    fn poll_all(&mut self) {
        let mut frames = Vec::new();
        let Self { now, server, hosts, pool, .. } = self;
        for stack in std::iter::once(server).chain(hosts.values_mut()) {
            stack.handle_timeouts(*now);
            stack.poll_transmit(*now, pool, &mut |frame| frames.push(frame.buf.bytes().to_vec()), usize::MAX);
        }
        let received = |frame: &Vec<u8>| RxFrame { buf: HeapBuf::new(frame), checksum: RxChecksum::Unknown };
        for stack in std::iter::once(&mut self.server).chain(self.hosts.values_mut()) {
            stack.handle_frames(self.now, frames.iter().map(received));
        }
        self.server_events();
        for (host, stack) in &mut self.hosts {
            while let Some(event) = stack.poll_event() {
                if let Event::Connected { conn } = event {
                    self.connected.insert((*host, conn.index(), conn.generation()));
                }
            }
        }
        self.server.audit().unwrap();
    }

    fn server_events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Accepted { conn, .. } => {
                    let remote = self.server.info(conn).unwrap().remote;
                    assert!(
                        self.open.values().all(|open| open.index() != conn.index()),
                        "a place that is taken"
                    );
                    self.open.insert(remote, conn);
                    self.server.set_eviction_policy(conn, self.when);
                }
                Event::Data { conn, segment, .. } => self.server.consumed(conn, segment.len()),
                Event::Closed { conn, reason } => {
                    let found = self.open.iter().find(|(_, open)| **open == conn).map(|(remote, _)| *remote);
                    self.open.remove(&found.unwrap());
                    if reason == CloseReason::Evicted {
                        self.evicted.push(found.unwrap());
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends one byte on a host's connection number `n`.
    fn say(&mut self, host: u8, n: usize) {
        let (conn, _) = self.opened[&host][n];
        let (stack, byte) = (self.hosts.get_mut(&host).unwrap(), HeapBuf::new(b"x"));
        stack.send(self.now, conn, byte).unwrap();
        self.run(DELAY * 10);
    }

    fn stats(&self) -> StackStats {
        self.server.stats()
    }

    /// Returns the refusals and evictions for the table, a listener and a source.
    fn counted(&self) -> [(u64, u64); 3] {
        let StackStats { drops, tcp, .. } = self.stats();
        [
            (drops.drop_tcp_table_full, tcp.evicted_table_full),
            (drops.drop_tcp_listener_full, tcp.evicted_listener_full),
            (drops.drop_tcp_source_full, tcp.evicted_source_full),
        ]
    }
}

/// Runs a test over both families, with and without cookies.
fn everywhere(test: impl Fn(bool, SynCookies)) {
    for is_v6 in [false, true] {
        for cookies in [SynCookies::Never, SynCookies::WhenFull, SynCookies::Always] {
            test(is_v6, cookies);
        }
    }
}

#[test]
fn a_full_table_evicts_the_longest_idle_connection() {
    everywhere(|is_v6, cookies| {
        let mut network = Network::new(
            |config| config.tcp.syn_cookies = cookies,
            u32::MAX,
            EvictionPolicy::WhenIdle,
            is_v6,
        );
        assert!((0..16).all(|n| network.connect(2, PORTS[n % 2])));
        // No connection was idle for long enough.
        assert!(!network.connect(3, PORTS[0]));
        let [(refused, 0), (0, 0), (0, 0)] = network.counted() else { panic!("{:?}", network.counted()) };
        assert!(refused > 0, "{cookies:?}");
        network.hosts.remove(&3);
        network.run(SECOND);
        // The third from the last sends a byte, and so does the first.
        network.say(2, 13);
        network.say(2, 0);
        for n in 1..=14 {
            assert!(network.connect(4, PORTS[n % 2]), "newcomer {n}, {cookies:?}");
        }
        assert!([0, 13].iter().all(|n| network.open.contains_key(&network.end(2, *n))), "who is busy stays");
        let idle: Vec<SocketAddr> = (1..16).filter(|n| *n != 13).map(|n| network.end(2, n)).collect();
        assert_eq!(network.evicted, idle, "oldest first, {cookies:?}");
        assert!(!network.connect(4, PORTS[0]), "those of a moment ago have their time");
        assert_eq!(network.counted()[0].1, 14);
        assert_eq!(network.stats().tcp.aborted, 0);
    });
}

#[test]
fn an_unproven_connection_is_evicted_even_if_it_is_active() {
    everywhere(|is_v6, cookies| {
        for when in [EvictionPolicy::Anytime, EvictionPolicy::WhenIdle, EvictionPolicy::Never] {
            let mut network = Network::new(|config| config.tcp.syn_cookies = cookies, u32::MAX, when, is_v6);
            assert!((0..16).all(|_| network.connect(2, PORTS[1])));
            network.run(SECOND);
            (0..16).for_each(|n| network.say(2, n));
            assert_eq!(network.connect(4, PORTS[1]), when == EvictionPolicy::Anytime, "{when:?}");
            assert_eq!(network.evicted.len(), usize::from(when == EvictionPolicy::Anytime));
        }
    });
}

#[test]
fn a_proven_connection_is_never_evicted() {
    everywhere(|is_v6, cookies| {
        let mut network =
            Network::new(|config| config.tcp.syn_cookies = cookies, u32::MAX, EvictionPolicy::Anytime, is_v6);
        assert!((0..16).all(|_| network.connect(2, PORTS[1])));
        let proven: Vec<SocketAddr> = (0..8).map(|n| network.end(2, n)).collect();
        for end in &proven {
            network.server.set_eviction_policy(network.open[end], EvictionPolicy::Never);
        }
        network.run(SECOND);
        for _ in 0..8 {
            assert!(network.connect(3, PORTS[1]));
        }
        assert!(!network.connect(3, PORTS[1]), "those of a moment ago have their time");
        assert!(proven.iter().all(|end| network.open.contains_key(end)));
    });
}

#[test]
fn connections_per_source_are_limited() {
    everywhere(|is_v6, cookies| {
        for when in [EvictionPolicy::Never, EvictionPolicy::WhenIdle] {
            let change = |config: &mut StackConfig| {
                config.tcp.syn_cookies = cookies;
                config.connections_per_source_max = 10;
            };
            let mut network = Network::new(change, u32::MAX, when, is_v6);
            assert!((0..3).all(|n| network.connect(5, PORTS[n % 2])), "an older one of another source");
            assert!((0..10).all(|n| network.connect(2, PORTS[n % 2])));
            network.run(SECOND);
            // Further connections of the same source take the place of its own only.
            let evicts = when == EvictionPolicy::WhenIdle;
            for n in 0..3 {
                assert_eq!(network.connect(2, PORTS[n % 2]), evicts, "{when:?}, {cookies:?}");
            }
            let [(0, 0), (0, 0), (refused, evicted)] = network.counted() else {
                panic!("{:?}", network.counted())
            };
            assert_eq!((refused > 0, evicted), (!evicts, if evicts { 3 } else { 0 }), "{when:?}");
            assert!((0..3).all(|n| network.connect(3, PORTS[n % 2])), "another source");
            assert_eq!(network.open.len(), 16);
            assert!(
                (0..3).all(|n| network.open.contains_key(&network.end(5, n))),
                "the older ones are there"
            );
        }
    });
}

#[test]
fn connections_per_listener_are_limited() {
    everywhere(|is_v6, cookies| {
        for when in [EvictionPolicy::Never, EvictionPolicy::WhenIdle] {
            let mut network = Network::new(|config| config.tcp.syn_cookies = cookies, 8, when, is_v6);
            assert!((0..4).all(|_| network.connect(2, PORTS[1])), "older ones of another listener");
            assert!((0..8).all(|n| network.connect(3 + n, PORTS[0])));
            network.run(SECOND);
            let evicts = when == EvictionPolicy::WhenIdle;
            assert_eq!(network.connect(20, PORTS[0]), evicts, "{when:?}, {cookies:?}");
            let [(0, 0), (refused, evicted), (0, 0)] = network.counted() else {
                panic!("{:?}", network.counted())
            };
            assert_eq!((refused > 0, evicted), (!evicts, u64::from(evicts)), "{when:?}");
            assert!((0..4).all(|_| network.connect(2, PORTS[1])), "the other listener");
            assert_eq!(network.open.len(), 16);
        }
    });
}

/// A limit counts connections at a time: closed ones no longer count.
#[test]
fn closed_connections_free_their_slots() {
    everywhere(|is_v6, cookies| {
        let change = |config: &mut StackConfig| {
            config.tcp.syn_cookies = cookies;
            config.connections_per_source_max = 2;
        };
        let mut network = Network::new(change, 3, EvictionPolicy::Never, is_v6);
        for round in 0..20 {
            let n = round * 2;
            assert!(
                network.connect(2, PORTS[0]) && network.connect(2, PORTS[0]),
                "round {round}, {cookies:?}"
            );
            for n in [n, n + 1] {
                let (conn, _) = network.opened[&2][n];
                let now = network.now;
                network.hosts.get_mut(&2).unwrap().abort(now, conn);
            }
            network.run(DELAY * 10);
            assert!(network.open.is_empty());
        }
        assert_eq!(network.counted(), [(0, 0); 3]);
    });
}

/// Forged SYNs evict no connection while cookies are in use: their sender does not see the SYN-ACK that it had to
/// acknowledge.
#[test]
fn a_syn_without_a_handshake_evicts_nothing() {
    for is_v6 in [false, true] {
        for cookies in [SynCookies::WhenFull, SynCookies::Always] {
            let mut network = Network::new(
                |config| config.tcp.syn_cookies = cookies,
                u32::MAX,
                EvictionPolicy::Anytime,
                is_v6,
            );
            assert!((0..16).all(|_| network.connect(2, PORTS[1])));
            network.run(SECOND * 2);
            for host in 30..60 {
                network.send_syn_and_leave(host, PORTS[1]);
            }
            assert!(network.evicted.is_empty() && network.stats().tcp.syn_cookies_out >= 30);
            assert!(network.connect(3, PORTS[1]));
            assert_eq!(network.evicted.len(), 1);
        }
    }
}
