//! Client host of the test network: a TCP stack with TCP sessions and RDMA initiators. `lab.rs` polls it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use rdma::service::{self, Grant, ServiceError};
use rdma::{
    Access, CloseHow, ConnectRequest, CrcPolicy, Endpoint, EndpointConfig, Env, ErrorCode, Event as Rdma,
    LocalSlice, RdmaStats, RegionId, Sink, StagTable, StreamId, VecMemory, WcOpcode, WcStatus,
};
use tcp_stack::testutil::{HeapBuf, HeapPool, pattern_byte};
use tcp_stack::{
    Buf, BufClass, BufPool, CloseReason, ConnId, ConnOptions, Duration, Event, Instant, RxChecksum, RxFrame,
    Segment, Stack, StackConfig,
};

/// Seed of the pattern of every stream and region of these tests.
pub const KEY: u64 = 0x1badb002;
/// Longest head of a received stream, in bytes, that tests can inspect.
const HEAD_MAX: usize = 64 << 10;

/// Fills a slice with the bytes that a stream has from `at` on.
pub fn fill(at: u64, out: &mut [u8]) {
    for (byte_at, out) in (at..).zip(out) {
        *out = pattern_byte(KEY, byte_at);
    }
}

/// Session on plain TCP: sends a script, then bytes of the pattern, and checks the received bytes against the pattern.
#[derive(Debug, Default)]
pub struct TcpSession {
    /// To be sent first.
    pub script: VecDeque<u8>,
    /// Bytes of the stream to be sent then.
    pub bulk: u64,
    /// Bytes of a segment at most; 0 for as many as fit.
    pub chunk: usize,
    /// Most bytes sent and not echoed yet; 0 for no limit.
    pub unechoed_max: u64,
    /// Close when all is sent.
    pub ends: bool,
    /// True if received bytes are never consumed: the receive window closes.
    pub never_reads: bool,
    pub sent: u64,
    pub received: u64,
    /// Received bytes that are not those of the stream.
    pub wrong: u64,
    pub head: Vec<u8>,
    pub connected: bool,
    pub peer_closed: bool,
    pub closed: Option<CloseReason>,
    /// True once this side has closed, as `ends` says.
    pub closing: bool,
}

/// Session of an RDMA initiator.
pub struct RdmaSession {
    request: Vec<u8>,
    config: EndpointConfig,
    endpoint: Option<Endpoint<Segment<HeapBuf>>>,
    /// Reply of the region service.
    pub answer: Option<Result<Grant, ServiceError>>,
    pub completed: u64,
    pub flushed: u64,
    pub terminated: Option<ErrorCode>,
    pub ended: Option<CloseHow>,
    pub closed: Option<CloseReason>,
}

/// Purpose of a connection.
pub enum Session {
    Tcp(TcpSession),
    Rdma(Box<RdmaSession>),
}

impl Session {
    /// An initiator that asks for a region.
    pub fn region(name: &str, access: Access, token: &[u8], crc: CrcPolicy) -> Self {
        Self::initiator(service::encode_request(name, access, token).unwrap(), crc)
    }

    /// An initiator with this private data.
    pub fn initiator(request: Vec<u8>, crc: CrcPolicy) -> Self {
        let mut config = EndpointConfig { send_queue: 64, ..EndpointConfig::default() };
        config.mpa.crc = crc;
        Self::Rdma(Box::new(RdmaSession {
            request,
            config,
            endpoint: None,
            answer: None,
            completed: 0,
            flushed: 0,
            terminated: None,
            ended: None,
            closed: None,
        }))
    }

    /// A TCP session that sends these bytes.
    pub fn script(bytes: &[u8]) -> Self {
        Self::Tcp(TcpSession { script: bytes.iter().copied().collect(), ..TcpSession::default() })
    }
}

pub struct Client {
    pub stack: Stack<HeapBuf>,
    pub pool: HeapPool,
    pub inbox: VecDeque<Vec<u8>>,
    pub memory: VecMemory,
    pub stats: RdmaStats,
    pub crc: CrcPolicy,
    sessions: HashMap<ConnId, Session>,
    stags: StagTable,
    streams: u64,
}

impl Client {
    pub fn new(config: StackConfig, seed: [u8; 32], pool: HeapPool, crc: CrcPolicy) -> Self {
        Self {
            stack: Stack::new(config, seed),
            pool,
            inbox: VecDeque::new(),
            memory: VecMemory::new(),
            stats: RdmaStats::default(),
            crc,
            sessions: HashMap::new(),
            stags: StagTable::new(64, seed),
            streams: 0,
        }
    }

    pub fn connect(&mut self, now: Instant, to: SocketAddr, session: Session) -> ConnId {
        let conn = self.stack.connect(now, to, ConnOptions::default()).unwrap();
        self.sessions.insert(conn, session);
        conn
    }

    pub fn tcp(&mut self, conn: ConnId) -> &mut TcpSession {
        match self.sessions.get_mut(&conn) {
            Some(Session::Tcp(tcp)) => tcp,
            _ => panic!("not a TCP session"),
        }
    }

    pub fn rdma(&mut self, conn: ConnId) -> &mut RdmaSession {
        match self.sessions.get_mut(&conn) {
            Some(Session::Rdma(rdma)) => rdma,
            _ => panic!("not an RDMA session"),
        }
    }

    pub fn remove(&mut self, conn: ConnId) {
        self.sessions.remove(&conn);
    }

    /// Posts a Write of `len` bytes of a local region.
    pub fn write(&mut self, conn: ConnId, local: (RegionId, u64), len: u32, to: u64) {
        let (stag, endpoint) = self.established(conn);
        endpoint.post_write(0, slice(local, len), stag, to).unwrap();
    }

    /// Posts a Read of `len` bytes into a local region.
    pub fn read(&mut self, conn: ConnId, local: (RegionId, u64), len: u32, from: u64) {
        let (stag, endpoint) = self.established(conn);
        endpoint.post_read(0, slice(local, len), stag, from).unwrap();
    }

    /// Returns the granted STag, and the endpoint.
    pub fn established(&mut self, conn: ConnId) -> (rdma::Stag, &mut Endpoint<Segment<HeapBuf>>) {
        let rdma = self.rdma(conn);
        let Some(Ok(grant)) = &rdma.answer else { panic!("no grant: {:?}", rdma.answer) };
        (grant.stag, rdma.endpoint.as_mut().expect("an endpoint"))
    }

    pub fn has_output(&self) -> bool {
        !self.inbox.is_empty() || self.stack.has_output()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let endpoints = self.sessions.values().filter_map(|session| match session {
            Session::Rdma(rdma) => rdma.endpoint.as_ref()?.next_deadline(),
            Session::Tcp(_) => None,
        });
        let endpoint = endpoints.min().map(|at| Instant::ZERO + at);
        [self.stack.next_deadline(), endpoint].into_iter().flatten().min()
    }

    /// Receives frames, runs every session, sends frames. Returns true if anything moved.
    pub fn poll_once(&mut self, now: Instant, emit: &mut dyn FnMut(&[u8])) -> bool {
        let Self { stack, pool, inbox, .. } = self;
        let mut brought = 0;
        let frames = inbox.drain(..inbox.len().min(32)).filter_map(|frame| {
            brought += 1;
            Some(RxFrame { buf: pool.copy(&frame)?, checksum: RxChecksum::Unknown })
        });
        let frames: Vec<_> = frames.collect();
        stack.handle_frames(now, frames);
        self.take_events(now);
        self.stack.handle_timeouts(now);
        self.take_events(now);
        let conns: Vec<ConnId> = self.sessions.keys().copied().collect();
        for conn in conns {
            self.act(now, conn);
        }
        let Self { stack, pool, .. } = self;
        let sent = stack.poll_transmit(now, pool, &mut |frame| emit(frame.buf.bytes()), 32);
        brought + sent > 0
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Connected { conn } => self.connected(now, conn),
                Event::Data { conn, offset, segment } => self.data(now, conn, offset, segment),
                Event::PeerClosed { conn } => match self.sessions.get_mut(&conn) {
                    Some(Session::Tcp(tcp)) => tcp.peer_closed = true,
                    Some(Session::Rdma(rdma)) => {
                        if let Some(endpoint) = &mut rdma.endpoint {
                            endpoint.peer_closed(time(now), &mut self.stats);
                        }
                    }
                    None => self.stack.close(now, conn),
                },
                Event::Closed { conn, reason } => match self.sessions.get_mut(&conn) {
                    Some(Session::Tcp(tcp)) => tcp.closed = Some(reason),
                    Some(Session::Rdma(rdma)) => {
                        rdma.closed = Some(reason);
                        if let Some(endpoint) = &mut rdma.endpoint {
                            endpoint.transport_lost();
                        }
                    }
                    None => {}
                },
                Event::Accepted { .. }
                | Event::OutOfOrder { .. }
                | Event::Urgent { .. }
                | Event::Writable { .. }
                | Event::Reclaim { .. }
                | Event::EmssChanged { .. } => {}
            }
        }
    }

    fn connected(&mut self, now: Instant, conn: ConnId) {
        match self.sessions.get_mut(&conn) {
            Some(Session::Tcp(tcp)) => tcp.connected = true,
            Some(Session::Rdma(rdma)) => {
                self.streams += 1;
                let request =
                    ConnectRequest { private_data: &rdma.request, revision: 2, ird: 16, ord: 16, rtr: None };
                let id = StreamId(self.streams);
                let endpoint = Endpoint::initiator(rdma.config, id, &request, time(now), &mut self.stats);
                rdma.endpoint = Some(endpoint.unwrap());
            }
            None => self.stack.abort(now, conn),
        }
    }

    fn data(&mut self, now: Instant, conn: ConnId, offset: u64, segment: Segment<HeapBuf>) {
        let len = segment.len();
        match self.sessions.get_mut(&conn) {
            Some(Session::Tcp(tcp)) => {
                tcp.take(segment.bytes());
                if tcp.never_reads {
                    return;
                }
            }
            Some(Session::Rdma(rdma)) => {
                if let Some(endpoint) = &mut rdma.endpoint {
                    let Self { stags, memory, stats, .. } = self;
                    endpoint.receive(time(now), offset, segment, &mut Env { stags, memory, stats });
                }
            }
            None => {}
        }
        self.stack.consumed(conn, len);
    }

    /// Makes a session with `never_reads` read from now on, and consume what it has received.
    pub fn start_reading(&mut self, conn: ConnId) {
        let tcp = self.tcp(conn);
        tcp.never_reads = false;
        let unread = tcp.received;
        self.stack.consumed(conn, usize::try_from(unread).unwrap());
    }

    fn act(&mut self, now: Instant, conn: ConnId) {
        let Self { stack, pool, sessions, stags, memory, stats, .. } = self;
        match sessions.get_mut(&conn) {
            Some(Session::Tcp(tcp)) => tcp.send(now, conn, stack, pool),
            Some(Session::Rdma(rdma)) => {
                let Some(endpoint) = &mut rdma.endpoint else { return };
                endpoint.handle_timeout(time(now), stats);
                let mut sink = Outlet { stack, pool, conn, now };
                endpoint.poll_transmit(time(now), &mut Env { stags, memory, stats }, &mut sink);
                rdma.take_events();
                match rdma.ended {
                    Some(CloseHow::Fin) => stack.close(now, conn),
                    Some(CloseHow::Reset) => stack.abort(now, conn),
                    None => {}
                }
            }
            None => {}
        }
    }
}

impl RdmaSession {
    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Rdma::Established { private_data, .. } | Rdma::Rejected { private_data } => {
                    self.answer = Some(service::decode_reply(&private_data));
                }
                Rdma::Completion { status: WcStatus::Success, op, .. } => {
                    // Immediate Data completes as a Send.
                    assert!(matches!(op, WcOpcode::RdmaWrite | WcOpcode::RdmaRead | WcOpcode::Send));
                    self.completed += 1;
                }
                Rdma::Completion { status: WcStatus::WrFlushError, .. } => self.flushed += 1,
                Rdma::TerminateReceived { code, siw_order, .. } => {
                    assert!(!siw_order);
                    self.terminated = Some(code);
                }
                // `Session::closed` has the reason.
                Rdma::Failed { .. } => {}
                Rdma::Close { how } => self.ended = Some(how),
                other => panic!("an event that no initiator has here: {other:?}"),
            }
        }
    }
}

impl TcpSession {
    fn take(&mut self, bytes: &[u8]) {
        for (at, byte) in (self.received..).zip(bytes) {
            self.wrong += u64::from(*byte != pattern_byte(KEY, at));
        }
        self.received += bytes.len() as u64;
        self.head.extend(bytes.iter().take(HEAD_MAX - self.head.len().min(HEAD_MAX)));
    }

    fn send(&mut self, now: Instant, conn: ConnId, stack: &mut Stack<HeapBuf>, pool: &mut HeapPool) {
        if !self.connected || self.closed.is_some() {
            return;
        }
        loop {
            let most = if self.chunk == 0 { stack.emss(conn) } else { self.chunk.min(stack.emss(conn)) };
            let lead = if self.unechoed_max == 0 {
                u64::MAX
            } else {
                self.unechoed_max - self.sent.saturating_sub(self.received)
            };
            let waiting = self.script.len() as u64 + self.bulk;
            let len = usize::try_from(waiting.min(most as u64).min(lead)).unwrap();
            if len == 0 || stack.send_capacity(conn) < len {
                break;
            }
            let Some(mut buf) = pool.alloc(BufClass::Data) else { break };
            for out in buf.append(len).unwrap() {
                *out = self.script.pop_front().unwrap_or_else(|| {
                    self.bulk -= 1;
                    pattern_byte(KEY, self.sent)
                });
                self.sent += 1;
            }
            stack.send(now, conn, buf).unwrap();
        }
        if self.ends && self.script.is_empty() && self.bulk == 0 && !self.closing {
            self.closing = true;
            stack.close(now, conn);
        }
    }
}

fn slice((region, offset): (RegionId, u64), len: u32) -> LocalSlice {
    LocalSlice { region, offset, len }
}

fn time(now: Instant) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

/// Transmit side of an initiator's stream: one FPDU, one segment.
struct Outlet<'a> {
    stack: &'a mut Stack<HeapBuf>,
    pool: &'a mut HeapPool,
    conn: ConnId,
    now: Instant,
}

impl Sink for Outlet<'_> {
    fn fpdu_max(&self) -> usize {
        self.stack.emss(self.conn)
    }

    fn room(&self) -> usize {
        self.stack.send_capacity(self.conn)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let Some(mut buf) = self.pool.alloc(BufClass::Data) else { return false };
        let Some(bytes) = buf.append(len) else { return false };
        build(bytes);
        self.stack.send(self.now, self.conn, buf).is_ok()
    }
}
