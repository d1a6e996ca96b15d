//! A SYN flood from forged addresses while honest clients connect: 200,000 SYNs per virtual second for 10 s. Nearly
//! every client gets through, and the flood takes neither memory nor a table.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use iwarp_alloc_counter::{counted, unwatched, watched};
use tcp_stack::testutil::{HeapBuf, HeapPool, Random, blind_syn};
use tcp_stack::{
    Buf, BufClass, BufPool, ConnOptions, Duration, Event, Instant, Ipv4Cidr, Ipv6Cidr, ListenOptions,
    MacAddr, RxChecksum, RxFrame, Stack, StackConfig, StackStats, SynCookies, TcpConfig,
};

const PORT: u16 = 7;
const SYNS_PER_MS: usize = 200;
/// Interval of honest clients, milliseconds; and bytes that each sends.
const CLIENT_EVERY_MS: u64 = 5;
const PAYLOAD: usize = 3000;
/// One-way delay between honest clients and the server.
const DELAY: Duration = Duration::from_millis(10);

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, host])
}

fn address(host: u8, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()).into()
    } else {
        Ipv4Addr::new(10, 77, 0, host).into()
    }
}

/// A stack, its buffers, and the frames in flight to it.
struct Host {
    stack: Stack<HeapBuf>,
    pool: HeapPool,
    arriving: VecDeque<(Instant, Vec<u8>)>,
}

impl Host {
    fn new(host: u8, tcp: TcpConfig) -> Self {
        let config = StackConfig {
            mac: mac(host),
            ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, host), 16),
            ipv6: Ipv6Cidr::new(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()), 64),
            // Forged addresses beyond the link are answered through a router, which is a client, too.
            ipv4_gateway: Some(Ipv4Addr::new(10, 77, 0, 2)),
            ipv6_gateway: Some(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)),
            connections_max: 4096,
            buffers_max: 4096,
            tcp,
            ..StackConfig::default()
        };
        let pool = HeapPool::new(4096, 512, 1600);
        Self { stack: Stack::new(config, [host; 32]), pool, arriving: VecDeque::new() }
    }

    fn take(&mut self, now: Instant, frames: &mut Vec<RxFrame<HeapBuf>>) {
        while let Some((_, bytes)) = self.arriving.pop_front_if(|(at, _)| *at <= now) {
            frames.push(RxFrame { buf: self.pool.copy(&bytes).unwrap(), checksum: RxChecksum::Unknown });
        }
    }

    /// Appends all frames that the host sends to `sent`.
    fn transmit(&mut self, now: Instant, sent: &mut Vec<Vec<u8>>) {
        let mut out = |frame: tcp_stack::TxFrame<HeapBuf>| {
            unwatched(|| sent.push(frame.buf.bytes().to_vec()));
        };
        self.stack.poll_transmit(now, &mut self.pool, &mut out, usize::MAX);
    }
}

/// Counters of the honest clients.
#[derive(Debug, Default)]
struct Tally {
    dialled: u64,
    /// Connections of which the server has received every byte and the FIN.
    complete: u64,
    refused: u64,
}

struct Flood {
    now: Instant,
    server: Host,
    clients: [Host; 2],
    random: Random,
    tally: Tally,
    sent: Vec<Vec<u8>>,
}

impl Flood {
    fn new(cookies: SynCookies) -> Self {
        let tcp = TcpConfig { syn_cookies: cookies, ..TcpConfig::default() };
        let mut server = Host::new(1, tcp);
        server.stack.listen(PORT, ListenOptions::default()).unwrap();
        // One of the two has no timestamps, so that cookies keep less for it.
        let clients = [Host::new(2, tcp), Host::new(3, TcpConfig { timestamps: false, ..tcp })];
        Self {
            now: Instant::ZERO,
            server,
            clients,
            random: Random::new(1),
            tally: Tally::default(),
            sent: Vec::new(),
        }
    }

    fn dial(&mut self) {
        let n = self.tally.dialled;
        let client = &mut self.clients[usize::from(n % 2 == 1)];
        let remote = SocketAddr::new(address(1, n % 4 < 2), PORT);
        client.stack.connect(self.now, remote, ConnOptions::default()).unwrap();
        self.tally.dialled += 1;
    }

    /// Returns a forged SYN from the link or from far away, over both versions of IP.
    fn syn(&mut self) -> RxFrame<HeapBuf> {
        let n = self.random.below(1 << 32);
        let low = u16::try_from(n & 0xffff).unwrap();
        let [a, b] = low.to_be_bytes();
        let src: IpAddr = match n >> 30 {
            0 => Ipv4Addr::new(10, 77, a.max(1), b.clamp(1, 254)).into(),
            1 => Ipv4Addr::new(198, 18, a, b).into(),
            2 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, low).into(),
            _ => Ipv6Addr::new(0x2001, 0xdb8, low, 0, 0, 0, 0, 9).into(),
        };
        let port = u16::try_from(1024 + self.random.below(60_000)).unwrap();
        let dst = SocketAddr::new(address(1, src.is_ipv6()), PORT);
        let frame = blind_syn(&mut self.random, mac(1), SocketAddr::new(src, port), dst);
        RxFrame { buf: self.server.pool.copy(&frame).unwrap(), checksum: RxChecksum::Unknown }
    }

    /// Runs the server on a burst of frames.
    fn serve(&mut self, frames: &mut Vec<RxFrame<HeapBuf>>) {
        let Self { server, sent, now, tally, .. } = self;
        watched(|| {
            server.stack.handle_frames(*now, frames.drain(..));
            while let Some(event) = server.stack.poll_event() {
                match event {
                    Event::Data { conn, segment, .. } => server.stack.consumed(conn, segment.len()),
                    Event::PeerClosed { conn } => {
                        tally.complete +=
                            u64::from(server.stack.info(conn).unwrap().bytes_in == PAYLOAD as u64);
                        server.stack.close(*now, conn);
                    }
                    _ => {}
                }
            }
            server.stack.handle_timeouts(*now);
            server.transmit(*now, sent);
        });
        for bytes in self.sent.drain(..) {
            for (client, host) in self.clients.iter_mut().zip([2, 3]) {
                if bytes.starts_with(&mac(host).0) || bytes[0] & 1 == 1 {
                    client.arriving.push_back((*now + DELAY, bytes.clone()));
                }
            }
        }
    }

    fn clients_turn(&mut self) {
        for client in &mut self.clients {
            let mut frames = Vec::new();
            client.take(self.now, &mut frames);
            client.stack.handle_frames(self.now, frames);
            while let Some(event) = client.stack.poll_event() {
                match event {
                    Event::Connected { conn } => {
                        for _ in 0..PAYLOAD / 500 {
                            let mut buf = client.pool.alloc(BufClass::Data).unwrap();
                            buf.append(500).unwrap().fill(7);
                            client.stack.send(self.now, conn, buf).unwrap();
                        }
                        client.stack.close(self.now, conn);
                    }
                    Event::Closed { reason, .. } if reason != tcp_stack::CloseReason::Normal => {
                        self.tally.refused += 1;
                    }
                    _ => {}
                }
            }
            client.stack.handle_timeouts(self.now);
            client.transmit(self.now, &mut self.sent);
            for bytes in self.sent.drain(..) {
                self.server.arriving.push_back((self.now + DELAY, bytes));
            }
        }
    }

    /// Advances by a millisecond.
    fn step(&mut self, syns: usize) {
        self.now += Duration::from_millis(1);
        self.clients_turn();
        let mut frames = Vec::new();
        self.server.take(self.now, &mut frames);
        for _ in 0..syns {
            if frames.len() >= 32 {
                self.serve(&mut frames);
            }
            frames.push(self.syn());
        }
        self.serve(&mut frames);
    }

    fn run(cookies: SynCookies, seconds: u64) -> (Tally, StackStats) {
        let mut flood = Self::new(cookies);
        for _ in 0..100 {
            flood.step(0);
        }
        let before = counted();
        for ms in 0..seconds * 1000 {
            if ms % CLIENT_EVERY_MS == 0 {
                flood.dial();
            }
            flood.step(SYNS_PER_MS);
            let stats = flood.server.stack.stats();
            assert!(stats.half_open_now <= 128 && stats.connections < 128 + 256, "{stats:?}");
        }
        for _ in 0..1000 {
            flood.step(0);
        }
        assert_eq!(counted() - before, 0, "the flood took memory");
        let stats = flood.server.stack.stats();
        (flood.tally, stats)
    }
}

#[test]
fn clients_get_through_a_flood_of_syns() {
    let (tally, stats) = Flood::run(SynCookies::WhenFull, 10);
    assert!(tally.complete * 1000 >= tally.dialled * 999, "{tally:?}");
    assert!(stats.tcp.syn_cookies_out > 1_900_000 && stats.tcp.syn_cookies_in > 1_000, "{stats:?}");
    assert_eq!(stats.tcp.syn_cookies_failed, 0);
}

#[test]
fn clients_get_through_with_cookies_alone() {
    let (tally, stats) = Flood::run(SynCookies::Always, 2);
    assert_eq!((tally.complete, stats.tcp.syn_cookies_in), (tally.dialled, tally.dialled));
    assert_eq!(stats.tcp.half_open_recycled, 0);
}

/// Shows that the test can fail: without cookies the flood keeps clients out.
#[test]
fn clients_fail_without_cookies() {
    let (tally, _) = Flood::run(SynCookies::Never, 2);
    assert!(tally.complete * 10 < tally.dialled * 9, "{tally:?}");
}
