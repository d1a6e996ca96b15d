//! Test support, also for other crates (feature `testutil`): a transport in memory ([`Wire`]), an endpoint with its
//! environment ([`Side`]), two connected devices ([`verbs`]), a model of their memories ([`model`]),
//! bytes built by hand and the fuzz targets.

pub mod bytes;
pub mod fuzz;
pub mod model;
pub mod target;
pub mod verbs;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::VecDeque;

use crate::service::{self, RegionEntry, RegionService};
use crate::{
    Access, ConnectRequest, Endpoint, EndpointConfig, Env, Event, LocalSlice, Progress, RdmaStats, RegionId,
    Sink, StagTable, StreamId, VecMemory,
};

/// Address of the peer.
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// Stream of an endpoint under test.
pub const STREAM: StreamId = StreamId(1);
/// Remote read and remote write.
pub const BOTH: Access = Access::from_bits(3).unwrap();

/// A transport that collects what it is sent, segment by segment.
#[derive(Debug)]
pub struct Wire {
    /// Segments waiting, in the order of sending.
    pub segments: VecDeque<Vec<u8>>,
    /// Most bytes of a segment.
    pub mss: usize,
    /// Limit of the bytes that may wait.
    pub limit: usize,
}

impl Wire {
    /// Returns an empty transport.
    pub fn new(mss: usize, limit: usize) -> Self {
        Self { segments: VecDeque::new(), mss, limit }
    }

    /// Returns the number of bytes waiting.
    pub fn queued(&self) -> usize {
        self.segments.iter().map(Vec::len).sum()
    }

    /// Removes all waiting bytes.
    pub fn take(&mut self) -> Vec<u8> {
        self.segments.drain(..).flatten().collect()
    }
}

impl Sink for Wire {
    fn fpdu_max(&self) -> usize {
        self.mss
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.queued())
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        assert!(len <= self.mss, "an FPDU longer than a segment");
        if len > self.room() {
            return false;
        }
        // Contents of a reused buffer.
        let mut segment = vec![0xee; len];
        build(&mut segment);
        self.segments.push_back(segment);
        true
    }
}

/// One endpoint with its environment.
#[derive(Debug)]
pub struct Side {
    /// Endpoint that the test drives.
    pub endpoint: Endpoint<Vec<u8>>,
    /// STags granted to the peer.
    pub stags: StagTable,
    /// Memory of the regions.
    pub memory: VecMemory,
    /// Counters of the endpoint.
    pub stats: RdmaStats,
    /// Service that answers connection requests.
    pub service: RegionService,
    /// Bytes sent and not yet taken.
    pub wire: Wire,
    /// Events not yet read by the test.
    pub events: Vec<Event>,
    /// Virtual time since the start.
    pub now: Duration,
    /// Bytes received: the stream position of the next.
    pub position: u64,
    /// Bytes that wait because the endpoint is stalled.
    pub held: VecDeque<u8>,
}

impl Side {
    /// Returns a responder on [`STREAM`].
    pub fn responder(config: EndpointConfig) -> Self {
        Self::responder_on(STREAM, config)
    }

    /// Returns a responder on a stream.
    pub fn responder_on(stream: StreamId, config: EndpointConfig) -> Self {
        Self::new(|_| Endpoint::responder(config, stream, Duration::ZERO))
    }

    /// Returns an initiator on [`STREAM`] that makes this request.
    pub fn initiator(config: EndpointConfig, request: &ConnectRequest<'_>) -> Self {
        Self::new(|stats| Endpoint::initiator(config, STREAM, request, Duration::ZERO, stats).unwrap())
    }

    fn new(make: impl FnOnce(&mut RdmaStats) -> Endpoint<Vec<u8>>) -> Self {
        let mut stats = RdmaStats::default();
        let endpoint = make(&mut stats);
        Self {
            endpoint,
            stags: StagTable::new(64, [7; 32]),
            memory: VecMemory::new(),
            stats,
            service: RegionService::new(8, 1),
            wire: Wire::new(1448, usize::MAX),
            events: Vec::new(),
            now: Duration::ZERO,
            position: 0,
            held: VecDeque::new(),
        }
    }

    /// Adds a region of these bytes, which a peer may name in its request.
    pub fn add_region(&mut self, name: &str, bytes: Vec<u8>, access: Access) -> RegionId {
        let len = bytes.len() as u64;
        let region = self.memory.add(bytes).unwrap();
        let (name, token, allow) = (name.to_string(), None, Vec::new());
        self.service.add(RegionEntry { name, region, offset: 0, bytes: len, access, token, allow }).unwrap();
        region
    }

    /// Delivers the next bytes of the stream.
    pub fn deliver(&mut self, bytes: &[u8]) {
        if self.endpoint.is_stalled() || !self.held.is_empty() {
            self.held.extend(bytes);
            return;
        }
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.receive(self.now, self.position, bytes.to_vec(), &mut env);
        self.position += bytes.len() as u64;
        self.collect();
    }

    /// Makes one deferred copy, or lets it fail, and lets the endpoint go on. Returns false if no copy waits.
    pub fn copy_one(&mut self, works: bool) -> bool {
        let copied = self.memory.copy_one(works);
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.resume(self.now, &mut env);
        if !self.held.is_empty() && !self.endpoint.is_stalled() {
            let bytes: Vec<u8> = self.held.drain(..).collect();
            let taken = self.endpoint.receive_copied(self.now, self.position, &bytes, &mut env);
            self.position += taken as u64;
            self.held.extend(&bytes[taken..]);
        }
        self.collect();
        copied
    }

    /// Passes bytes behind a gap, at a stream position, and returns true if all of them are placed.
    pub fn out_of_order(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.receive_out_of_order(offset, bytes, &mut env)
    }

    /// Advances the stream by `len` placed bytes.
    pub fn placed(&mut self, len: usize) {
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        self.endpoint.receive_placed(self.now, self.position, len, &mut env);
        self.position += len as u64;
        self.collect();
    }

    /// Runs the endpoint's output, and answers a connection request by the region service.
    pub fn transmit(&mut self) -> Progress {
        let mut env = Env { stags: &mut self.stags, memory: &mut self.memory, stats: &mut self.stats };
        let progress = self.endpoint.poll_transmit(self.now, &mut env, &mut self.wire);
        self.collect();
        progress
    }

    /// Advances the time, and runs the timers that expire.
    pub fn pass_time(&mut self, by: Duration) {
        self.now += by;
        self.endpoint.handle_timeout(self.now, &mut self.stats);
        self.collect();
    }

    /// Moves the events of the endpoint to `events`; answers connection requests by the region service.
    pub fn collect(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::ConnectRequest { private_data, .. } = &event {
                let answer = self.service.answer(private_data, PEER, self.endpoint.stream(), &mut self.stags);
                self.stats.service.count(answer.status);
                if answer.accept {
                    self.endpoint.accept(&answer.reply).unwrap();
                } else {
                    self.endpoint.reject(&answer.reply).unwrap();
                }
            }
            self.events.push(event);
        }
    }

    /// Returns the bytes of a region.
    pub fn bytes(&self, region: RegionId) -> &[u8] {
        self.memory.bytes(region).unwrap()
    }

    /// Returns the grant in the private data of the peer's Reply.
    pub fn grant(&self) -> service::Grant {
        let private_data = self.events.iter().find_map(|event| match event {
            Event::Established { private_data, .. } => Some(private_data),
            _ => None,
        });
        service::decode_reply(private_data.expect("established")).unwrap()
    }

    /// Removes and returns all events.
    pub fn drain_events(&mut self) -> Vec<Event> {
        core::mem::take(&mut self.events)
    }
}

/// Moves bytes both ways until neither side has any. `chunk` receives the number of bytes waiting and returns the
/// length of the next chunk, at least one.
pub fn run(a: &mut Side, b: &mut Side, chunk: &mut dyn FnMut(usize) -> usize) {
    for _ in 0..1_000_000 {
        a.transmit();
        b.transmit();
        let moved = carry(a, b, chunk) + carry(b, a, chunk);
        if moved == 0 && !a.endpoint.has_output() && !b.endpoint.has_output() {
            return;
        }
    }
    panic!("the sides do not come to rest");
}

/// Moves the bytes waiting at `from` to `to`.
pub fn carry(from: &mut Side, to: &mut Side, chunk: &mut dyn FnMut(usize) -> usize) -> usize {
    let bytes = from.wire.take();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(chunk(rest.len()).clamp(1, rest.len()));
        to.deliver(now);
        rest = later;
    }
    bytes.len()
}

/// Splits the bytes into segments of `mss` bytes, which approximates the sender's own segments.
pub fn segments(mss: usize) -> impl FnMut(usize) -> usize {
    move |rest| rest.min(mss)
}

/// Returns a configuration with queues of 64 sends and 16 receives.
pub fn initiator_config() -> EndpointConfig {
    EndpointConfig { send_queue: 64, receive_queue: 16, ..EndpointConfig::default() }
}

/// Returns a request of MPA revision 2 with an IRD and an ORD of 16.
pub fn request(private_data: &[u8]) -> ConnectRequest<'_> {
    ConnectRequest { private_data, revision: 2, ird: 16, ord: 16, rtr: None }
}

/// Returns an initiator and a responder, connected by the region service to the region `lab` with these bytes.
pub fn connected(lab: Vec<u8>) -> (Side, Side, RegionId) {
    connected_for(BOTH, lab)
}

/// Returns an initiator and a responder, as `connected` does, with these rights to the region.
pub fn connected_for(access: Access, lab: Vec<u8>) -> (Side, Side, RegionId) {
    let private_data = service::encode_request("lab", access, b"").unwrap();
    let mut initiator = Side::initiator(initiator_config(), &request(&private_data));
    let mut responder = Side::responder(initiator_config());
    let region = responder.add_region("lab", lab, access);
    run(&mut initiator, &mut responder, &mut segments(1448));
    (initiator, responder, region)
}

/// Returns `len` bytes of a region from `offset`.
pub fn slice(region: RegionId, offset: u64, len: u32) -> LocalSlice {
    LocalSlice { region, offset, len }
}

/// Returns bytes that all differ from their neighbors, and from those of another `salt`.
pub fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ salt).collect()
}
