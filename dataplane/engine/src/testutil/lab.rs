//! Test network in memory: an engine, and a client host with its own stack across a link, in virtual time from one
//! seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma::service::{Prefix, RegionEntry, Token};
use rdma::{Access, CrcPolicy, EndpointConfig, OutOfOrderPolicy, RegionId, VecMemory};
use tcp_stack::testutil::{HeapBuf, HeapPool, Link, LinkConfig, Random};
use tcp_stack::{
    Buf, ConnId, ConnInfo, ConnOptions, Duration, Instant, Ipv4Cidr, Ipv6Cidr, ListenOptions, MacAddr,
    RxChecksum, RxFrame, Stack, StackConfig,
};

use super::client::{Client, Session};
use super::{BURST, CLEAN, DESCRIPTORS, POLL_INTERVAL};
use crate::{Engine, EngineConfig, ListenerService, LocalPorts};

pub const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const ENGINE6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
pub const CLIENT6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const TOKEN: &[u8] = b"open sesame";
pub const REGION: u16 = 7400;
pub const ECHO: u16 = 7;
pub const DISCARD: u16 = 9;
pub const CHARGEN: u16 = 19;
pub const DAYTIME: u16 = 13;
/// Most connections of the engine.
pub const CONNECTIONS: u32 = 64;

/// Settings of a test network.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub link: LinkConfig,
    pub seed: u64,
    pub mtu: u16,
    /// Packet buffers of the engine, and of the client.
    pub buffers: usize,
    /// Bytes of the region `lab`.
    pub lab_bytes: usize,
    pub crc: CrcPolicy,
    /// True if the engine asks for markers.
    pub markers: bool,
    /// Method of locating FPDUs in out-of-order segments.
    pub out_of_order: OutOfOrderPolicy,
    pub handshake: Duration,
    pub time_wait_ms: u32,
    /// STags that the engine can grant.
    pub grants: u32,
    /// Most connections of the engine.
    pub connections: u32,
    /// Longest time that an FPDU may stay incomplete.
    pub fpdu_timeout: Duration,
    /// True if segments carry timestamps.
    pub timestamps: bool,
    /// Most connections of a listener of the engine, and of a source.
    pub connections_per_listener: u32,
    pub connections_per_source: u32,
    /// Polls per deferred copy into or out of the region `lab`; 0 if the region is copied at once.
    pub polls_per_copy: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            link: CLEAN,
            seed: 1,
            mtu: 1500,
            buffers: 8192,
            lab_bytes: 4 << 20,
            crc: CrcPolicy::Required,
            markers: false,
            out_of_order: OutOfOrderPolicy::Aligned,
            handshake: Duration::from_secs(10),
            time_wait_ms: 60_000,
            grants: CONNECTIONS,
            connections: CONNECTIONS,
            fpdu_timeout: Duration::from_secs(120),
            timestamps: true,
            connections_per_listener: u32::MAX,
            connections_per_source: u32::MAX,
            polls_per_copy: 0,
        }
    }
}

/// A frame in flight: arrival time, sequence number, true if addressed to the engine, bytes.
type Flight = (Instant, u64, bool, Vec<u8>);

pub struct Lab {
    pub now: Instant,
    pub engine: Engine<Stack<HeapBuf>, VecMemory>,
    pub pool: HeapPool,
    pub client: Client,
    pub lab: RegionId,
    polls_per_copy: u32,
    polls: u32,
    /// Called before (`true`) and after each poll of the engine.
    pub watch: fn(bool),
    links: [Link; 2],
    flying: BinaryHeap<Reverse<Flight>>,
    order: u64,
    /// Virtual time never advances beyond this.
    horizon: Instant,
    inbox: VecDeque<Vec<u8>>,
    /// Frames that the engine's port has not transmitted yet.
    sending: VecDeque<(Instant, HeapBuf)>,
    received: Vec<RxFrame<HeapBuf>>,
    emitted: Vec<HeapBuf>,
    /// Most packet buffers of the engine in use at the same time.
    pub buffers_used_max: usize,
    /// Frames that the engine emitted in its last poll, and the state of its oldest connection before it.
    pub emitted_last: (usize, Option<ConnInfo>),
    /// Bytes in the send queue of that connection after the last poll, and after the deferred work.
    pub send_queue_bytes: [u32; 2],
}

impl Lab {
    pub fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let (mut memory, lab, others) = regions(setup.lab_bytes);
        if setup.polls_per_copy > 0 {
            memory.defer(lab);
        }
        let stack = stack_config(&setup, [2, 0, 0, 0, 0, 2], ENGINE, setup.connections);
        let config = EngineConfig {
            conn: ConnOptions::default(),
            limits: EngineConfig::service_limits(setup.connections, 8),
            endpoint: EndpointConfig::default(),
            stags_max: setup.grants,
            regions_max: 8,
            contexts_max: 0,
            local_ports: (LocalPorts::default(), 0),
            seed: random.seed(),
        };
        let mut engine = Engine::new(Stack::new(stack, config.seed), config, memory);
        let mut endpoint = EndpointConfig::default();
        endpoint.mpa.crc = setup.crc;
        endpoint.mpa.markers = setup.markers;
        endpoint.out_of_order = setup.out_of_order;
        endpoint.mpa.timeout = setup.handshake;
        endpoint.fpdu_timeout = Some(setup.fpdu_timeout);
        for (port, service) in [
            (REGION, ListenerService::Region(endpoint)),
            (ECHO, ListenerService::Echo),
            (DISCARD, ListenerService::Discard),
            (CHARGEN, ListenerService::Chargen),
            (DAYTIME, ListenerService::Daytime),
        ] {
            let options =
                ListenOptions { connections_max: setup.connections_per_listener, ..ListenOptions::default() };
            engine.listen(port, options, service).unwrap();
        }
        for entry in others {
            engine.region_add(entry).unwrap();
        }
        let room = usize::from(setup.mtu) + 64;
        let client_config = stack_config(&setup, [2, 0, 0, 0, 0, 1], CLIENT, 4096);
        Self {
            now: Instant::ZERO,
            engine,
            pool: HeapPool::new(setup.buffers, setup.buffers / 8, room),
            client: Client::new(
                client_config,
                random.seed(),
                HeapPool::new(setup.buffers.min(16_384), 64, room),
                setup.crc,
            ),
            lab,
            polls_per_copy: setup.polls_per_copy,
            polls: 0,
            watch: |_| {},
            links: [Link::new(setup.link, random.fork()), Link::new(setup.link, random.fork())],
            flying: BinaryHeap::new(),
            order: 0,
            horizon: Instant::MAX,
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            received: Vec::with_capacity(BURST),
            emitted: Vec::with_capacity(BURST),
            buffers_used_max: 0,
            emitted_last: (0, None),
            send_queue_bytes: [0; 2],
        }
    }

    /// Polls both hosts once; if nothing moved, advances the time to the next event.
    pub fn poll_once(&mut self) {
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, to_engine, frame))) = self.flying.pop() else { break };
            if to_engine { self.inbox.push_back(frame) } else { self.client.inbox.push_back(frame) }
        }
        let moved = self.poll_engine() | self.poll_client();
        let busy = moved || self.engine.has_output() || self.client.has_output() || !self.inbox.is_empty();
        let soonest = self.now + POLL_INTERVAL;
        let wakes = [
            self.flying.peek().map(|Reverse((at, ..))| *at),
            self.engine.next_deadline(),
            self.client.next_deadline(),
        ];
        let later = wakes.into_iter().flatten().min().unwrap_or(self.now + Duration::from_secs(1));
        self.now = if busy { soonest } else { later.min(self.horizon).max(soonest) };
    }

    fn poll_engine(&mut self) -> bool {
        let before = oldest(&self.engine);
        self.polls += 1;
        if self.polls_per_copy > 0 && self.polls.is_multiple_of(self.polls_per_copy) {
            self.engine.memory_mut().copy_one(true);
        }
        let Self { inbox, pool, received, emitted, engine, now, sending, links, .. } = self;
        while sending.len() >= DESCRIPTORS || sending.front().is_some_and(|(until, _)| until <= now) {
            sending.pop_front();
        }
        for frame in inbox.drain(..inbox.len().min(BURST)) {
            // The frame is lost, as on a port without a free buffer.
            let Some(buf) = pool.copy(&frame) else { continue };
            received.push(RxFrame { buf, checksum: RxChecksum::Unknown });
        }
        let brought = received.len();
        (self.watch)(true);
        let sent = engine.poll(
            *now,
            true,
            &mut received.drain(..),
            pool,
            &mut |frame| emitted.push(frame.buf),
            BURST,
        );
        let queued = oldest(engine).map_or(0, |info| info.send_queue_bytes);
        engine.run_deferred(*now, pool);
        (self.watch)(false);
        assert_eq!(sent, emitted.len());
        self.emitted_last = (sent, before);
        self.send_queue_bytes = [queued, oldest(engine).map_or(0, |info| info.send_queue_bytes)];
        self.buffers_used_max = self.buffers_used_max.max(pool.live());
        let [_, to_client] = links;
        for buf in emitted.drain(..) {
            let (order, flying) = (&mut self.order, &mut self.flying);
            to_client.send(*now, buf.bytes(), &mut |at, frame| {
                *order += 1;
                flying.push(Reverse((at, *order, false, frame)));
            });
            sending.push_back((to_client.busy_until(*now), buf));
        }
        brought + sent > 0
    }

    fn poll_client(&mut self) -> bool {
        let [to_engine, _] = &mut self.links;
        let (now, order, flying) = (self.now, &mut self.order, &mut self.flying);
        self.client.poll_once(now, &mut |frame| {
            to_engine.send(now, frame, &mut |at, frame| {
                *order += 1;
                flying.push(Reverse((at, *order, true, frame)));
            });
        })
    }

    /// Runs until `done`; fails after a limit of virtual time.
    pub fn run_until(&mut self, what: &str, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let stats = self.engine.stack().stats();
            assert!(
                self.now < end,
                "{what}: not within {limit:?}; {:?}\n{stats:?}",
                self.engine.rdma_stats()
            );
            self.poll_once();
        }
    }

    /// Runs for `time` of virtual time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.horizon = end;
        while self.now < end {
            self.poll_once();
        }
        self.horizon = Instant::MAX;
    }

    /// Replaces the link in both directions.
    pub fn rewire(&mut self, link: LinkConfig) {
        self.links = [3, 4].map(|seed| Link::new(link, Random::new(seed)));
    }

    /// Opens a connection to a port of the engine, for a session.
    pub fn connect(&mut self, port: u16, session: Session) -> ConnId {
        self.connect_to(ENGINE.into(), port, session)
    }

    /// Opens a connection to either address of the engine.
    pub fn connect_to(&mut self, address: IpAddr, port: u16, session: Session) -> ConnId {
        self.client.connect(self.now, SocketAddr::new(address, port), session)
    }

    /// Sends a raw frame from the client's side.
    pub fn inject(&mut self, frame: Vec<u8>) {
        self.inbox.push_back(frame);
    }

    /// Returns the number of connections that the engine reports.
    pub fn conns(&self) -> usize {
        let mut count = 0;
        let rest = self.engine.conns(0, &mut |_| {
            count += 1;
            true
        });
        assert_eq!(rest, None);
        count
    }

    /// Asserts that every frame was delivered or counted as dropped.
    pub fn assert_frames_accounted(&self) {
        let stats = self.engine.stack().stats();
        assert_eq!(stats.interface.rx_frames, stats.interface.rx_delivered + stats.drops.total());
    }

    /// Asserts that no frame is in flight, and that all buffers of the engine are accounted for.
    pub fn run_deferred(&mut self) {
        self.run_for(Duration::from_millis(50));
        self.sending.clear();
    }

    pub fn region_bytes(&self) -> &[u8] {
        self.engine.memory().bytes(self.lab).unwrap()
    }
}

/// Returns the state of the engine's connection in the first slot.
fn oldest(engine: &Engine<Stack<HeapBuf>, VecMemory>) -> Option<ConnInfo> {
    let stack = engine.stack();
    stack.connections_from(0).next().and_then(|conn| stack.info(conn))
}

fn stack_config(setup: &Setup, mac: [u8; 6], address: Ipv4Addr, connections_max: u32) -> StackConfig {
    let v6 = if address == ENGINE { ENGINE6 } else { CLIENT6 };
    let mut config = StackConfig {
        mac: MacAddr(mac),
        mtu: setup.mtu,
        ipv4: Ipv4Cidr::new(address, 24),
        ipv6: Ipv6Cidr::new(v6, 64).filter(|_| setup.mtu >= 1280),
        connections_max,
        connections_per_source_max: setup.connections_per_source,
        buffers_max: u32::try_from(setup.buffers).unwrap(),
        ..StackConfig::default()
    };
    config.tcp.time_wait_ms = setup.time_wait_ms;
    config.tcp.timestamps = setup.timestamps;
    config
}

/// Returns the memory, the number of region `lab`, and all regions as offered to peers.
fn regions(lab_bytes: usize) -> (VecMemory, RegionId, Vec<RegionEntry>) {
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let prefix = |a, b, c, d, len| Prefix::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), len).unwrap();
    let mut memory = VecMemory::new();
    let mut entry = |name: &str, bytes: usize, access, token: &[u8], allow| RegionEntry {
        name: name.to_owned(),
        region: memory.add(vec![0; bytes]).unwrap(),
        offset: 0,
        bytes: bytes as u64,
        access,
        token: Token::new(token),
        allow,
    };
    let entries = vec![
        entry("lab", lab_bytes, both, b"", Vec::new()),
        entry("lab-ro", 4096, Access::REMOTE_READ, b"", Vec::new()),
        entry("secret", 4096, both, TOKEN, Vec::new()),
        entry("fenced", 4096, both, b"", vec![prefix(192, 0, 2, 0, 24)]),
        entry("admitted", 4096, both, b"", vec![prefix(192, 0, 2, 0, 24), prefix(10, 77, 0, 1, 32)]),
    ];
    let lab = entries.first().map(|entry| entry.region).unwrap();
    (memory, lab, entries)
}
