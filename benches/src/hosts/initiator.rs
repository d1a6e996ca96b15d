//! Host that writes to one region over many streams.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use dataplane::dpdk::{Mbuf, MbufPool};
use iwarp_engine::memory::WorkerMemory;
use rdma::service::{self, Grant};
use rdma::{
    Access, ConnectRequest, Endpoint, EndpointConfig, Env, Event as Rdma, LocalSlice, RdmaStats, Sink,
    StagTable, StreamId, WcStatus,
};
use tcp_stack::{Buf, BufClass, BufPool, ConnId, ConnOptions, Event, Instant, RxFrame, Segment, Stack};

use super::{Host, REGION, SEED, Sizes, THE_REGION, memory, receiver_address, transmit};

/// Bytes that a stream may queue per transmit pass.
const BUDGET: usize = 64 << 10;
/// Slots of the send queue of a stream.
const QUEUE: u16 = 64;

struct Stream {
    conn: ConnId,
    endpoint: Option<Endpoint<Segment<Mbuf>>>,
    grant: Option<Grant>,
    completed: u64,
    /// True while the stream is in `tx_ready`.
    queued: bool,
    /// Reason of its failure.
    failed: Option<String>,
}

/// An initiator: its streams, and the region that they write from.
#[allow(missing_debug_implementations, reason = "it is nothing but buffers and streams")]
pub struct Initiator {
    stack: Stack<Mbuf>,
    stags: StagTable,
    memory: WorkerMemory,
    stats: RdmaStats,
    streams: Vec<Stream>,
    /// Stream of each connection, by the connection's index.
    by_conn: Vec<usize>,
    /// Streams with data to send.
    tx_ready: VecDeque<usize>,
    granted: usize,
    request: Vec<u8>,
}

impl Initiator {
    /// Makes an initiator that writes from a region of this size.
    ///
    /// # Errors
    /// There is no memory for the region.
    pub fn new(sizes: &Sizes, region_bytes: usize) -> Result<Self> {
        let request = service::encode_request(REGION, Access::REMOTE_WRITE, b"");
        Ok(Self {
            stack: Stack::new(sizes.stack(0), SEED),
            stags: StagTable::new(1, SEED),
            memory: memory("source", region_bytes)?,
            stats: RdmaStats::default(),
            streams: Vec::with_capacity(sizes.connections as usize),
            by_conn: vec![usize::MAX; sizes.connections as usize],
            tx_ready: VecDeque::with_capacity(sizes.connections as usize),
            granted: 0,
            request: request.context("no name for a region")?,
        })
    }

    /// Opens a stream and returns its number.
    ///
    /// # Errors
    /// The stack refuses the connection.
    pub fn connect(&mut self, now: Duration) -> Result<usize> {
        let now = Instant::from_nanos(u64::try_from(now.as_nanos())?);
        let conn = self.stack.connect(now, receiver_address(), ConnOptions::default())?;
        let number = self.streams.len();
        let place =
            self.by_conn.get_mut(conn.index() as usize).context("more connections than configured")?;
        *place = number;
        self.streams.push(Stream {
            conn,
            endpoint: None,
            grant: None,
            completed: 0,
            queued: false,
            failed: None,
        });
        Ok(number)
    }

    /// Returns the number of streams with a grant.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.granted
    }

    /// Posts a Write of `len` bytes at offset `at` of both regions.
    ///
    /// # Errors
    /// The stream has no grant, or its send queue is full.
    pub fn write(&mut self, stream: usize, at: u64, len: u32) -> Result<()> {
        let Some(found) = self.streams.get_mut(stream) else { bail!("no stream {stream}") };
        let (Some(endpoint), Some(grant)) = (&mut found.endpoint, &found.grant) else { bail!("no grant") };
        let slice = LocalSlice { region: THE_REGION, offset: at, len };
        let posted = endpoint.post_write(stream as u64, slice, grant.stag, at);
        ensure!(posted.is_ok(), "a Write is not taken: {posted:?}");
        self.mark_tx_ready(stream);
        Ok(())
    }

    /// Returns the number of Writes completed on a stream.
    #[must_use]
    pub fn completed(&self, stream: usize) -> u64 {
        self.streams.get(stream).map_or(0, |stream| stream.completed)
    }

    /// Returns the reason of the first failed stream, if any.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.streams.iter().find_map(|stream| stream.failed.as_deref())
    }

    /// Returns the counters of the RDMA engine.
    #[must_use]
    pub fn stats(&self) -> &RdmaStats {
        &self.stats
    }

    #[inline]
    fn mark_tx_ready(&mut self, number: usize) {
        if let Some(stream) = self.streams.get_mut(number)
            && !stream.queued
        {
            stream.queued = true;
            self.tx_ready.push_back(number);
        }
    }

    #[inline]
    fn number(&self, conn: ConnId) -> usize {
        self.by_conn.get(conn.index() as usize).copied().unwrap_or(usize::MAX)
    }

    fn connected(&mut self, now: Duration, conn: ConnId) {
        let number = self.number(conn);
        let Some(stream) = self.streams.get_mut(number) else { return };
        let private_data = self.request.as_slice();
        let request = ConnectRequest { private_data, revision: 2, ird: 16, ord: 16, rtr: None };
        let config = EndpointConfig { send_queue: QUEUE, ..EndpointConfig::default() };
        let id = StreamId(number as u64);
        match Endpoint::initiator(config, id, &request, now, &mut self.stats) {
            Ok(endpoint) => stream.endpoint = Some(endpoint),
            Err(error) => stream.failed = Some(format!("{error:?}")),
        }
        self.mark_tx_ready(number);
    }

    fn data(&mut self, now: Duration, conn: ConnId, offset: u64, segment: Segment<Mbuf>) {
        let (number, bytes) = (self.number(conn), segment.len());
        let Self { streams, stags, memory, stats, .. } = self;
        if let Some(endpoint) = streams.get_mut(number).and_then(|stream| stream.endpoint.as_mut()) {
            endpoint.receive(now, offset, segment, &mut Env { stags, memory, stats });
        }
        self.stack.consumed(conn, bytes);
        self.mark_tx_ready(number);
    }

    fn service_tx_ready(&mut self, now: Instant, number: usize, pool: &mut MbufPool) {
        let Self { stack, streams, stags, memory, stats, .. } = self;
        let Some(stream) = streams.get_mut(number) else { return };
        stream.queued = false;
        let (conn, Some(endpoint)) = (stream.conn, &mut stream.endpoint) else { return };
        let mut sink = StackSink { stack, pool, conn, now, budget: BUDGET };
        let progress = endpoint.poll_transmit(time(now), &mut Env { stags, memory, stats }, &mut sink);
        let budget_left = sink.budget;
        let blocked = self.stack.send_capacity(conn) < self.stack.emss(conn) && budget_left > 0;
        match (progress.pending, blocked) {
            (false, _) => {}
            (true, false) => self.mark_tx_ready(number),
            (true, true) => self.stack.notify_writable(conn),
        }
        self.take_events(number);
    }

    fn take_events(&mut self, number: usize) {
        let Self { streams, granted, .. } = self;
        let Some(stream) = streams.get_mut(number) else { return };
        while let Some(event) = stream.endpoint.as_mut().and_then(Endpoint::poll_event) {
            match event {
                Rdma::Established { private_data, .. } => match service::decode_reply(&private_data) {
                    Ok(grant) => {
                        stream.grant = Some(grant);
                        *granted = granted.saturating_add(1);
                    }
                    Err(error) => stream.failed = Some(format!("{error:?}")),
                },
                Rdma::Completion { status: WcStatus::Success, .. } => {
                    stream.completed = stream.completed.wrapping_add(1);
                }
                other => stream.failed = Some(format!("{other:?}")),
            }
        }
    }
}

impl Host for Initiator {
    #[inline]
    fn step(
        &mut self,
        now: Instant,
        frames: &mut Vec<RxFrame<Mbuf>>,
        pool: &mut MbufPool,
        out: &mut Vec<Mbuf>,
    ) {
        self.stack.handle_frames(now, frames.drain(..));
        self.stack.handle_timeouts(now);
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Connected { conn } => self.connected(time(now), conn),
                Event::Data { conn, offset, segment } => self.data(time(now), conn, offset, segment),
                Event::Writable { conn } => self.mark_tx_ready(self.number(conn)),
                Event::Closed { conn, reason } => {
                    let number = self.number(conn);
                    if let Some(stream) = self.streams.get_mut(number) {
                        stream.failed = Some(format!("{reason:?}"));
                    }
                }
                _ => {}
            }
        }
        for _ in 0..self.tx_ready.len().min(super::BURST) {
            let Some(number) = self.tx_ready.pop_front() else { break };
            self.service_tx_ready(now, number, pool);
        }
        transmit(&mut self.stack, now, pool, out);
    }
}

#[inline]
fn time(now: Instant) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

/// Sends FPDUs over a connection: each is one segment.
struct StackSink<'a> {
    stack: &'a mut Stack<Mbuf>,
    pool: &'a mut MbufPool,
    conn: ConnId,
    now: Instant,
    budget: usize,
}

impl Sink for StackSink<'_> {
    fn fpdu_max(&self) -> usize {
        self.stack.emss(self.conn).min(self.pool.data_room())
    }

    fn room(&self) -> usize {
        self.stack.send_capacity(self.conn).min(self.budget)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let Some(mut buf) = self.pool.alloc(BufClass::Data) else { return false };
        let Some(bytes) = buf.append(len) else { return false };
        build(bytes);
        let taken = self.stack.send(self.now, self.conn, buf).is_ok();
        if taken {
            self.budget = self.budget.saturating_sub(len);
        }
        taken
    }
}
