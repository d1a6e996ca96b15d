//! A responder with a few regions: the shipping protocol code over a kernel socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdma::service::{RegionEntry, RegionService, Token};
use rdma::{
    Access, CrcPolicy, Endpoint, EndpointConfig, Env, Event, NegotiationConfig, RdmaStats, RegionId, Sink,
    StagTable, StreamId, VecMemory,
};

/// The behavior of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It follows the protocol.
    Honest,
    /// It revokes what it has granted, at once.
    Revokes,
    /// It closes after this number of bytes behind the grant.
    ClosesAfter(u64),
    /// It takes no Read Requests.
    NoReads,
    /// It grants, and then does nothing any more.
    FallsSilent,
}

/// The regions, shared with the test.
pub(crate) struct Shared {
    pub(crate) memory: VecMemory,
    pub(crate) stats: RdmaStats,
    service: RegionService,
    stags: StagTable,
}

pub(crate) struct Responder {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Mutex<Shared>>,
}

/// Bytes of the region `lab`.
pub(crate) const LAB: usize = 8 << 20;
pub(crate) const LAB_ID: RegionId = RegionId(0);
/// Bytes of the region `big`: more than `put --resume` writes without a proof.
pub(crate) const BIG: usize = 24 << 20;
const BIG_ID: RegionId = RegionId(6);
/// The token of the region `secret`.
pub(crate) const TOKEN: &[u8] = b"open sesame";

impl Responder {
    pub(crate) fn start(manner: Manner) -> Self {
        Self::start_at("127.0.0.1:0", manner)
    }

    pub(crate) fn start_at(address: &str, manner: Manner) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared::new()));
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (stream, number) in listener.incoming().zip(1..) {
                let state = Arc::clone(&state);
                std::thread::spawn(move || {
                    Stream::new(stream.unwrap(), StreamId(number), manner, state).serve()
                });
            }
        });
        Self { address, shared }
    }

    pub(crate) fn lab(&self) -> Vec<u8> {
        self.shared.lock().unwrap().memory.bytes(LAB_ID).unwrap().to_vec()
    }

    pub(crate) fn big(&self) -> Vec<u8> {
        self.shared.lock().unwrap().memory.bytes(BIG_ID).unwrap().to_vec()
    }

    pub(crate) fn fill_lab(&self, bytes: &[u8]) {
        self.shared.lock().unwrap().memory.bytes_mut(LAB_ID).unwrap()[..bytes.len()].copy_from_slice(bytes);
    }
}

impl Shared {
    fn new() -> Self {
        let mut memory = VecMemory::new();
        let mut service = RegionService::new(8, 1);
        let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mut add = |name: &str, bytes: usize, access, token: Option<&[u8]>, allow: &[&str]| {
            let region = memory.add(vec![0; bytes]).unwrap();
            let allow = allow
                .iter()
                .map(|address| rdma::service::Prefix::new(address.parse::<IpAddr>().unwrap(), 32).unwrap())
                .collect();
            let token = token.map(|token| Token::new(token).unwrap());
            let (name, bytes) = (name.into(), bytes as u64);
            service.add(RegionEntry { name, region, offset: 0, bytes, access, token, allow }).unwrap();
        };
        add("lab", LAB, both, None, &[]);
        add("lab-ro", 4096, Access::REMOTE_READ, None, &[]);
        add("lab-wo", 4096, Access::REMOTE_WRITE, None, &[]);
        add("a/b+c", 4096, both, None, &[]);
        add("secret", 4096, both, Some(TOKEN), &[]);
        add("elsewhere", 4096, both, None, &["192.0.2.1"]);
        add("big", BIG, both, None, &[]);
        Self { memory, stats: RdmaStats::default(), service, stags: StagTable::new(64, [7; 32]) }
    }
}

/// Bytes that wait to be written to the socket.
struct Outbox(Vec<u8>);

impl Sink for Outbox {
    fn fpdu_max(&self) -> usize {
        1448
    }

    fn room(&self) -> usize {
        (256usize << 10).saturating_sub(self.0.len())
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.room() < len {
            return false;
        }
        let start = self.0.len();
        self.0.resize(start + len, 0);
        build(&mut self.0[start..]);
        true
    }
}

struct Stream {
    socket: TcpStream,
    peer: SocketAddr,
    id: StreamId,
    manner: Manner,
    shared: Arc<Mutex<Shared>>,
    endpoint: Endpoint<Vec<u8>>,
    start: Instant,
    received: u64,
    granted_at: Option<u64>,
}

impl Stream {
    fn new(socket: TcpStream, id: StreamId, manner: Manner, shared: Arc<Mutex<Shared>>) -> Self {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let peer = socket.peer_addr().unwrap();
        let ird_max = if manner == Manner::NoReads { 0 } else { 16 };
        let mpa = NegotiationConfig { crc: CrcPolicy::IfPeerAsks, ird_max, ..NegotiationConfig::default() };
        let config = EndpointConfig { mpa, ..EndpointConfig::default() };
        let endpoint = Endpoint::responder(config, id, Duration::ZERO);
        Self {
            socket,
            peer,
            id,
            manner,
            shared,
            endpoint,
            start: Instant::now(),
            received: 0,
            granted_at: None,
        }
    }

    fn serve(mut self) {
        let mut buffer = vec![0; 128 << 10];
        loop {
            if !self.transmit() || !self.events() {
                return;
            }
            if self.manner == Manner::FallsSilent && self.granted_at.is_some() {
                std::thread::park();
            }
            match self.socket.read(&mut buffer) {
                Ok(0) | Err(_) if self.cut() => return,
                Ok(0) => return,
                Ok(length) => self.receive(buffer[..length].to_vec()),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
            if self.cut() {
                return;
            }
        }
    }

    fn cut(&self) -> bool {
        match (self.manner, self.granted_at) {
            (Manner::ClosesAfter(bytes), Some(at)) => self.received.saturating_sub(at) >= bytes,
            _ => false,
        }
    }

    fn receive(&mut self, bytes: Vec<u8>) {
        let now = self.start.elapsed();
        let mut shared = self.shared.lock().unwrap();
        let Shared { memory, stats, stags, .. } = &mut *shared;
        let offset = self.received;
        self.received += bytes.len() as u64;
        self.endpoint.receive(now, offset, bytes, &mut Env { stags, memory, stats });
    }

    /// Writes what is due; says whether the peer still takes it.
    fn transmit(&mut self) -> bool {
        let now = self.start.elapsed();
        loop {
            let mut outbox = Outbox(Vec::new());
            {
                let mut shared = self.shared.lock().unwrap();
                let Shared { memory, stats, stags, .. } = &mut *shared;
                self.endpoint.poll_transmit(now, &mut Env { stags, memory, stats }, &mut outbox);
            }
            if outbox.0.is_empty() {
                return true;
            }
            if self.socket.write_all(&outbox.0).is_err() {
                return false;
            }
        }
    }

    /// Says whether the stream lives on.
    fn events(&mut self) -> bool {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::ConnectRequest { private_data, .. } => self.answer(&private_data),
                Event::Close { .. } => {
                    self.transmit();
                    return false;
                }
                _ => {}
            }
        }
        self.transmit()
    }

    fn answer(&mut self, private_data: &[u8]) {
        let mut shared = self.shared.lock().unwrap();
        let Shared { service, stags, .. } = &mut *shared;
        let answer = service.answer(private_data, self.peer.ip(), self.id, stags);
        if self.manner == Manner::Revokes {
            stags.revoke_stream(self.id);
        }
        self.granted_at = Some(self.received);
        if answer.accept {
            self.endpoint.accept(&answer.reply).unwrap();
        } else {
            self.endpoint.reject(&answer.reply).unwrap();
        }
    }
}
