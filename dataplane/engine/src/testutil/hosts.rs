//! Test support, also for other crates (feature `testutil`): two hosts with verbs ([`Host`]) and a link between them
//! that may lose and reorder ([`Net`]), in virtual time from one seed. Tests of verbs and allocations use it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;

use rdma::verbs::{
    Access, AddressBase, CmEvent, CmEventKind, CmId, ConnParam, CqId, Limits, MemoryRegion, PdId, QpCap,
    QpInit, QpNum, RegionId, Sge, WorkCompletion,
};
use rdma::{CrcPolicy, EndpointConfig, OutOfOrderPolicy, VecMemory};
use tcp_stack::testutil::{HeapBuf, HeapPool, Link, LinkConfig, Random};
use tcp_stack::{
    Buf, ConnOptions, Duration, Instant, Ipv4Cidr, MacAddr, RxChecksum, RxFrame, Stack, StackConfig,
};

use super::{BURST, CLEAN, DESCRIPTORS, POLL_INTERVAL};
use crate::{Engine, EngineConfig, LocalPorts};

/// Most connections of a host.
const CONNECTIONS: u32 = 16;

/// Most virtual time that a test waits for a result.
pub const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Settings of a test network.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Both directions of the link.
    pub link: LinkConfig,
    /// Seed of losses, initial sequence numbers and STags.
    pub seed: u64,
    /// MTU of both hosts, bytes.
    pub mtu: u16,
    /// Packet buffers of each host.
    pub buffers: usize,
    /// Most objects of each kind.
    pub limits: Limits,
    /// Policy on the CRC of FPDUs.
    pub crc: CrcPolicy,
    /// Asks the peer for MPA markers.
    pub markers: bool,
    /// Placement of data behind a gap.
    pub out_of_order: OutOfOrderPolicy,
    /// Time that a connection stays in TIME-WAIT.
    pub time_wait_ms: u32,
    /// Leaves events in the device, for tests that poll them themselves.
    pub unheard: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            link: CLEAN,
            seed: 1,
            mtu: 1500,
            buffers: 8192,
            limits: Limits { qps: 16, ids: 16, mrs: 16, cqe_max: 4096, ..Limits::default() },
            crc: EndpointConfig::default().mpa.crc,
            markers: false,
            out_of_order: OutOfOrderPolicy::Aligned,
            time_wait_ms: 60_000,
            unheard: false,
        }
    }
}

/// A frame in flight: arrival time, sequence number, destination host, bytes.
type Flight = (Instant, u64, usize, Vec<u8>);

/// One host of the test network.
#[derive(Debug)]
pub struct Host {
    /// TCP/IP stack and verbs device.
    pub verbs: Engine<Stack<HeapBuf>, VecMemory>,
    /// Packet buffers of the port.
    pub pool: HeapPool,
    /// Events not read by the test yet.
    pub events: VecDeque<CmEvent>,
    unheard: bool,
    inbox: VecDeque<Vec<u8>>,
    sending: VecDeque<(Instant, HeapBuf)>,
    received: Vec<RxFrame<HeapBuf>>,
    emitted: Vec<HeapBuf>,
}

/// Returns the address of a host.
pub fn address(host: usize, port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 77, 0, u8::try_from(host + 1).unwrap()), port))
}

impl Host {
    fn new(number: usize, setup: &Setup, random: &mut Random) -> Self {
        let mut stack = StackConfig {
            mac: MacAddr([2, 0, 0, 0, 0, u8::try_from(number + 1).unwrap()]),
            mtu: setup.mtu,
            ipv4: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, u8::try_from(number + 1).unwrap()), 24),
            connections_max: CONNECTIONS,
            buffers_max: u32::try_from(setup.buffers).unwrap(),
            ..StackConfig::default()
        };
        stack.tcp.time_wait_ms = setup.time_wait_ms;
        let mut endpoint = EndpointConfig { out_of_order: setup.out_of_order, ..EndpointConfig::default() };
        (endpoint.mpa.crc, endpoint.mpa.markers) = (setup.crc, setup.markers);
        let config = EngineConfig {
            conn: ConnOptions::default(),
            limits: EngineConfig::program_limits(setup.limits, CONNECTIONS),
            endpoint,
            stags_max: 64,
            regions_max: 0,
            contexts_max: 4,
            local_ports: (LocalPorts::default(), 0),
            seed: random.seed(),
        };
        let room = usize::from(setup.mtu) + 64;
        Self {
            verbs: Engine::new(Stack::new(stack, config.seed), config, VecMemory::new()),
            pool: HeapPool::new(setup.buffers, setup.buffers / 16, room),
            events: VecDeque::new(),
            unheard: setup.unheard,
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            received: Vec::with_capacity(BURST),
            emitted: Vec::with_capacity(BURST),
        }
    }

    /// Registers a new region with zero-based addresses.
    pub fn reg(&mut self, pd: PdId, bytes: Vec<u8>, access: Access) -> (RegionId, MemoryRegion) {
        let len = bytes.len() as u64;
        let region = self.verbs.memory_mut().add(bytes).unwrap();
        (region, self.verbs.reg_mr(pd, (region, 0, len), AddressBase::Zero, access).unwrap())
    }

    /// Returns the bytes of a region.
    pub fn bytes(&self, region: RegionId) -> &[u8] {
        self.verbs.memory().bytes(region).unwrap()
    }

    /// Creates a protection domain, a queue pair in it, and one completion queue for both directions.
    pub fn queue_pair(&mut self, work: u16) -> (PdId, CqId, QpNum) {
        let device = self.verbs.device_mut();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(u32::from(work) * 2).unwrap());
        let cap = QpCap {
            max_send_wr: work,
            max_recv_wr: work,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let init = QpInit { cap, sq_sig_all: false, ..QpInit::new(pd, cq) };
        (pd, cq, device.create_qp(init).unwrap())
    }

    /// Polls all available completions.
    pub fn poll(&mut self, cq: CqId) -> Vec<WorkCompletion> {
        let mut out = [WorkCompletion::default(); 16];
        let mut all = Vec::new();
        while let Ok(taken @ 1..) = self.verbs.device_mut().poll_cq(cq, &mut out) {
            all.extend_from_slice(&out[..taken]);
        }
        all
    }

    /// Removes and returns the next event of an id.
    pub fn take_event(&mut self, id: CmId) -> Option<CmEventKind> {
        let at = self.events.iter().position(|event| event.id == id)?;
        self.events.remove(at).map(|event| event.kind)
    }

    fn poll_once(&mut self, now: Instant, watch: fn(bool)) -> bool {
        let Self { verbs, pool, events, unheard, inbox, sending, received, emitted } = self;
        while sending.len() >= DESCRIPTORS || sending.front().is_some_and(|(until, _)| *until <= now) {
            sending.pop_front();
        }
        for frame in inbox.drain(..inbox.len().min(BURST)) {
            // The frame is lost, as on a port without a free buffer.
            let Some(buf) = pool.copy(&frame) else { continue };
            received.push(RxFrame { buf, checksum: RxChecksum::Unknown });
        }
        let brought = received.len();
        watch(true);
        let sent =
            verbs.poll(now, true, &mut received.drain(..), pool, &mut |frame| emitted.push(frame.buf), BURST);
        verbs.run_deferred(now, pool);
        watch(false);
        assert_eq!(sent, emitted.len());
        if !*unheard {
            events.extend(std::iter::from_fn(|| verbs.device_mut().poll_cm_event()));
        }
        brought + sent > 0
    }
}

/// Returns a scatter/gather element within a memory region.
pub fn sge(mr: &MemoryRegion, offset: u64, length: u32) -> Sge {
    Sge { addr: mr.addr + offset, length, lkey: mr.lkey }
}

/// Returns the checksum of RFC 1071.
fn internet_checksum(bytes: &[u8], start: u32) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum::<u32>() + start;
    let folded = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap()).to_be_bytes()
}

/// Truncates the payload of a TCP segment over IPv4 to `payload_max` bytes, a function of its source port.
fn with_short_payload(mut frame: Vec<u8>, payload_max: &dyn Fn(u16) -> usize) -> Vec<u8> {
    const TCP: usize = 34;
    let is_tcp = frame.get(14) == Some(&0x45) && frame.get(23) == Some(&6);
    if !is_tcp {
        return frame;
    }
    let header = usize::from(frame[TCP + 12] >> 4) * 4;
    let len = header.saturating_add(payload_max(u16::from_be_bytes([frame[TCP], frame[TCP + 1]])));
    if frame.len() <= TCP.saturating_add(len) {
        return frame;
    }
    frame.truncate(TCP + len);
    frame[16..18].copy_from_slice(&u16::try_from(20 + len).unwrap().to_be_bytes());
    frame[24..26].fill(0);
    let of_ip = internet_checksum(&frame[14..TCP], 0);
    frame[24..26].copy_from_slice(&of_ip);
    frame[TCP + 16..TCP + 18].fill(0);
    // The pseudo-header: both addresses, protocol and length.
    let of_tcp = internet_checksum(&frame[26..], 6 + u32::try_from(len).unwrap());
    frame[TCP + 16..TCP + 18].copy_from_slice(&of_tcp);
    frame
}

/// Two hosts and the link between them.
pub struct Net {
    /// Hosts 0 and 1; tests listen on host 1.
    pub hosts: [Host; 2],
    /// Virtual time of the network.
    pub now: Instant,
    /// Called before (`true`) and after each poll.
    pub watch: fn(bool),
    /// True to drop all frames.
    pub cut: bool,
    /// Longest TCP payload of host 0's frames from a port, bytes; the rest of a longer one is cut off.
    pub payload_max: Box<dyn Fn(u16) -> usize>,
    links: [Link; 2],
    flying: BinaryHeap<Reverse<Flight>>,
    order: u64,
}

impl fmt::Debug for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Net").field("now", &self.now).field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Objects of both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Connection identifiers, by host.
    pub id: [CmId; 2],
    /// Protection domains, by host.
    pub pd: [PdId; 2],
    /// Completion queues, by host.
    pub cq: [CqId; 2],
    /// Queue pairs, by host.
    pub qp: [QpNum; 2],
}

impl Net {
    /// Returns two hosts that know nothing of each other yet.
    pub fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        Self {
            hosts: [Host::new(0, &setup, &mut random), Host::new(1, &setup, &mut random)],
            now: Instant::ZERO,
            watch: |_| {},
            cut: false,
            payload_max: Box::new(|_| usize::MAX),
            links: [Link::new(setup.link, random.fork()), Link::new(setup.link, random.fork())],
            flying: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Polls both hosts once; if nothing moved, advances the time to the next event.
    pub fn poll_once(&mut self) {
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, to, frame))) = self.flying.pop() else { break };
            self.hosts[to].inbox.push_back(frame);
        }
        let mut busy = false;
        for from in 0..2 {
            let (now, host) = (self.now, &mut self.hosts[from]);
            busy |= host.poll_once(now, self.watch) || host.verbs.has_output() || !host.inbox.is_empty();
            let Self { links, order, flying, cut, payload_max, .. } = self;
            let (link, host) = (&mut links[from], &mut self.hosts[from]);
            for buf in host.emitted.drain(..) {
                link.send(now, buf.bytes(), &mut |at, frame| {
                    *order += 1;
                    if !*cut {
                        let frame = if from == 0 { with_short_payload(frame, &**payload_max) } else { frame };
                        flying.push(Reverse((at, *order, 1 - from, frame)));
                    }
                });
                host.sending.push_back((link.busy_until(now), buf));
            }
        }
        let soonest = self.now + POLL_INTERVAL;
        let flight = self.flying.peek().map(|Reverse((at, ..))| *at);
        let wakes = self.hosts.iter().map(|host| host.verbs.next_deadline()).chain([flight]);
        let later = wakes.flatten().min().unwrap_or(self.now + Duration::from_secs(1));
        self.now = if busy { soonest } else { later.max(soonest) };
    }

    /// Runs until `done`; fails after `limit` of virtual time.
    pub fn run_until(&mut self, what: &str, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let stats = self.hosts[0].verbs.stack().stats();
            assert!(self.now < end, "{what}: not within {limit:?}: {stats:?}");
            self.poll_once();
        }
    }

    /// Runs for `time` of virtual time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.poll_once();
        }
    }

    /// Listens on host 1.
    pub fn listen(&mut self, port: u16) -> CmId {
        let device = self.hosts[1].verbs.device_mut();
        let id = device.create_id(Some(address(1, port))).unwrap();
        device.listen(id, NonZeroU16::new(8).unwrap(), &ConnParam::default()).unwrap();
        id
    }

    /// Connects new queue pairs of depth `work` to a listener on host 1.
    pub fn connect(&mut self, port: u16, work: u16) -> Pair {
        self.connect_with(port, work, &ConnParam::default())
    }

    /// Connects as [`connect`](Self::connect), with parameters of the connection.
    pub fn connect_with(&mut self, port: u16, work: u16, param: &ConnParam<'_>) -> Pair {
        let (client, server) = (self.hosts[0].queue_pair(work), self.hosts[1].queue_pair(work));
        let device = self.hosts[0].verbs.device_mut();
        let id = device.create_id(None).unwrap();
        device.connect(id, client.2, address(1, port), param).unwrap();
        let mut theirs = None;
        self.run_until("a connection", TIME_LIMIT, |net| {
            let [client_host, server_host] = &mut net.hosts;
            while let Some(event) = server_host.events.pop_front() {
                if let CmEventKind::ConnectRequest { .. } = event.kind {
                    server_host.verbs.device_mut().accept(event.id, server.2, b"").unwrap();
                    theirs = Some(event.id);
                }
            }
            client_host.take_event(id).is_some_and(|kind| matches!(kind, CmEventKind::Established { .. }))
        });
        Pair {
            id: [id, theirs.unwrap()],
            pd: [client.0, server.0],
            cq: [client.1, server.1],
            qp: [client.2, server.2],
        }
    }

    /// Asserts that no connection, buffer or slot is left, and that every frame is accounted for.
    pub fn assert_empty(&mut self) {
        self.run_for(Duration::from_millis(50));
        for host in &mut self.hosts {
            host.sending.clear();
            let stats = host.verbs.stack().stats();
            assert_eq!(
                (stats.connections, stats.send_buffers, stats.receive_buffers),
                (0, 0, 0),
                "{stats:?}"
            );
            assert_eq!((host.pool.live(), host.pool.total()), (0, host.pool.capacity()), "buffers");
            assert_eq!(host.verbs.connections(), 0);
            assert_eq!(stats.interface.rx_frames, stats.interface.rx_delivered + stats.drops.total());
        }
    }
}
