//! The daemon's protocols on one port and worker: TCP, the services that listen on it, and the RDMA endpoints of the
//! region service. A [`WorkerPort`](crate::worker::WorkerPort) polls it.
//!
//! ```text
//!  frames ──▶ Stack::handle_frames ──▶ events ──▶ services ──▶ Stack::send ──▶ poll_transmit ──▶ frames
//!                                        │            │
//!                                        │            ├─ echo, discard, chargen, daytime
//!                                        │            └─ region: rdma::Endpoint ──▶ region memory
//! ```
//! The code depends on neither DPDK nor a clock. Buffers, pool and region memory are type parameters, so that tests run
//! it on heap buffers.

mod chargen;
mod close;
mod data_run;
mod daytime;
mod deadlines;
mod echo;
mod protocols;
mod rdma_state;
mod region;
mod sink;
mod slots;
mod stream_ids;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use rdma::service::{AddError, RegionEntry, RegionService};
use rdma::{EndpointConfig, EndpointInfo, Memory, OutOfOrderPolicy, RdmaStats, RegionId};
use tcp_stack::{BufPool, ConnId, ConnInfo, Event, Instant, ListenError, ListenOptions, ListenerId, RxFrame};
use tcp_stack::{Segment, Stack, StackConfig, TxFrame};

pub(crate) use data_run::DataRun;
pub(crate) use deadlines::{Deadlines, LINGER, since_start};
pub use protocols::PortProtocols;
pub(crate) use rdma_state::RdmaState;
use region::{Action, RegionState, RegionStream};
pub(crate) use sink::{StreamSink, TxOutcome};
use slots::{Service, Slots};
pub(crate) use stream_ids::StreamIds;

/// Most connections whose output is serviced in one poll.
pub(crate) const TX_SERVICED_MAX: usize = 64;

/// Most echo connections resumed per poll after a lack of packet buffers.
const ECHO_RESUMED_MAX: usize = 4;

iwarp_counters::counters! {
    /// Counters of the services of a port.
    pub struct ServiceStats {
        /// Connections of the echo service.
        echo_connections,
        /// Connections of the discard service.
        discard_connections,
        /// Connections of the chargen service.
        chargen_connections,
        /// Connections of the daytime service.
        daytime_connections,
        /// Connections of the region service.
        region_connections,
        /// Bytes received by the discard service.
        discard_bytes,
        /// Times that echo copied queued bytes to ordinary memory, to free packet buffers.
        echo_copied_aside,
    }
}

/// Service that a listener offers.
#[derive(Clone, Debug)]
pub enum ListenerService {
    /// Echo service (RFC 862).
    Echo,
    /// Discard service (RFC 863).
    Discard,
    /// Character generator (RFC 864).
    Chargen,
    /// Daytime service (RFC 867).
    Daytime,
    /// The region service: MPA and RDMA.
    Region(EndpointConfig),
}

/// Sizes and settings of an [`Engine`].
#[derive(Debug)]
pub struct EngineConfig {
    /// Settings of the TCP stack.
    pub stack: StackConfig,
    /// Most connections; the same value as in `stack`.
    pub connections_max: u32,
    /// Most STags granted at the same time.
    pub grants_max: u32,
    /// Most regions offered at the same time.
    pub regions_max: u32,
    /// Seed of all random draws: ports, sequence numbers and STag keys.
    pub seed: [u8; 32],
}

/// One row of a list of connections.
#[derive(Clone, Debug)]
pub struct ConnRow {
    /// Identity of the connection.
    pub id: ConnId,
    /// TCP state of the connection.
    pub tcp: ConnInfo,
    /// Name of its service.
    pub service: &'static str,
    /// RDMA state, for a connection of the region service.
    pub rdma: Option<EndpointInfo>,
    /// Region granted to the connection, if any.
    pub region: Option<RegionId>,
}

/// The protocols of one port on one worker.
#[derive(Debug)]
pub struct Engine<P: BufPool, M> {
    stack: Stack<P::Buf>,
    slots: Slots<P::Buf>,
    listeners: Vec<(ListenerId, ListenerService)>,
    regions: RegionState<M>,
    stats: ServiceStats,
    /// Connections with output to transmit, each at most once.
    tx_ready: VecDeque<ConnId>,
    /// Echo connections with spilled bytes that wait for packet buffers, each at most once.
    echo_waiting: VecDeque<ConnId>,
    /// Deadlines of RDMA connections: MPA handshake, incomplete FPDU, linger.
    deadlines: Deadlines,
    streams: StreamIds,
    /// Wall clock at [`Instant::ZERO`], time since 1970.
    wall_at_zero: Duration,
    /// Largest receive window, bytes.
    receive_window: usize,
}

impl<P: BufPool, M: Memory> Engine<P, M> {
    /// Allocates all tables for the configured sizes.
    pub fn new(config: EngineConfig, memory: M) -> Self {
        let connections = config.connections_max as usize;
        let receive_window = config.stack.receive_window_bytes as usize;
        Self {
            slots: Slots::new(connections),
            tx_ready: VecDeque::with_capacity(connections),
            echo_waiting: VecDeque::new(),
            deadlines: Deadlines::new(connections),
            listeners: Vec::new(),
            regions: RegionState {
                rdma: RdmaState::new(config.grants_max, config.seed, memory),
                service: RegionService::new(config.regions_max as usize, service_seed(&config.seed)),
            },
            stack: Stack::new(config.stack, config.seed),
            stats: ServiceStats::default(),
            streams: StreamIds::default(),
            wall_at_zero: Duration::ZERO,
            receive_window,
        }
    }

    /// Listens on a TCP port for a service.
    ///
    /// # Errors
    /// As [`Stack::listen`]: the port is taken, or there are too many listeners.
    pub fn listen(
        &mut self,
        port: u16,
        mut options: ListenOptions,
        service: ListenerService,
    ) -> Result<(), ListenError> {
        if let ListenerService::Region(config) = &service {
            options.conn.out_of_order = config.out_of_order != OutOfOrderPolicy::Off;
        }
        let listener = self.stack.listen(port, options)?;
        self.listeners.push((listener, service));
        Ok(())
    }

    fn handle_events(&mut self, now: Instant, pool: &mut P) {
        let mut behind = None;
        while let Some(event) = behind.take().or_else(|| self.stack.poll_event()) {
            match event {
                Event::Accepted { conn, listener } => self.accepted(now, conn, listener),
                Event::Data { conn, offset, segment } => {
                    behind = self.data(now, conn, (offset, segment), pool);
                }
                Event::OutOfOrder { conn } => self.out_of_order(conn),
                Event::PeerClosed { conn } => self.peer_closed(now, conn),
                Event::Writable { conn } => self.queue_tx(conn),
                Event::Reclaim { conn } => self.reclaim(conn),
                Event::Closed { conn, .. } => self.closed(conn),
                Event::Connected { .. } | Event::Urgent { .. } | Event::EmssChanged { .. } => {}
            }
        }
    }

    fn accepted(&mut self, now: Instant, conn: ConnId, listener: ListenerId) {
        let found = self.listeners.iter().find(|(id, _)| *id == listener);
        let (Some((_, service)), Some(info)) = (found, self.stack.info(conn)) else {
            self.stack.abort(now, conn);
            return;
        };
        let service = match service {
            ListenerService::Echo => {
                self.stats.echo_connections += 1;
                Service::Echo(echo::Echo::new(self.receive_window, usize::from(info.emss)))
            }
            ListenerService::Discard => {
                self.stats.discard_connections += 1;
                Service::Discard
            }
            ListenerService::Chargen => {
                self.stats.chargen_connections += 1;
                Service::Chargen(chargen::Chargen::default())
            }
            ListenerService::Daytime => {
                self.stats.daytime_connections += 1;
                Service::Daytime
            }
            ListenerService::Region(config) => {
                self.stats.region_connections += 1;
                let stream = RegionStream::new(config, self.streams.next(), info.remote.ip(), now);
                Service::Region(Box::new(stream))
            }
        };
        let speaks_first = matches!(service, Service::Chargen(_) | Service::Daytime);
        let has_limit = matches!(service, Service::Region(_));
        self.stack.set_eviction_policy(conn, service.eviction_policy());
        self.slots.open(conn, service);
        if speaks_first {
            self.queue_tx(conn);
        }
        if has_limit {
            self.arm(conn);
        }
    }

    /// Passes a segment to the connection's service. The region service also takes the segments of the same connection
    /// that follow. Returns the event after them, if one was polled.
    fn data(
        &mut self,
        now: Instant,
        conn: ConnId,
        (offset, segment): (u64, Segment<P::Buf>),
        pool: &mut P,
    ) -> Option<Event<P::Buf>> {
        let bytes = segment.len();
        match self.slots.service(conn) {
            None | Some(Service::Chargen(_) | Service::Daytime) => self.stack.consumed(conn, bytes),
            Some(Service::Discard) => {
                self.stats.discard_bytes += bytes as u64;
                self.stack.consumed(conn, bytes);
            }
            Some(Service::Echo(echo)) => {
                echo.receive(&mut self.stack, pool, conn, segment);
                self.queue_tx(conn);
            }
            Some(Service::Region(stream)) => {
                let (action, (bytes, behind)) = if segment.was_taken() {
                    (stream.receive_placed(now, offset, bytes, &mut self.regions), (bytes, None))
                } else {
                    let mut run = DataRun::new(&mut self.stack, conn, (offset, segment));
                    (stream.receive(now, &mut run, &mut self.regions), run.end())
                };
                stream.retain_kept(&mut self.stack, conn, &mut self.regions.rdma.stats);
                self.stack.consumed(conn, bytes);
                self.queue_tx(conn);
                self.apply(now, conn, action);
                return behind;
            }
        }
        None
    }

    /// Offers out-of-order data to the RDMA endpoint for placement.
    fn out_of_order(&mut self, conn: ConnId) {
        let Self { stack, slots, regions, .. } = self;
        if let Some(Service::Region(stream)) = slots.service(conn) {
            stack.offer_out_of_order(conn, &mut |offset, bytes| {
                stream.receive_out_of_order(offset, bytes, regions)
            });
        }
    }

    /// Frees the received packet buffers that a connection retains; others need them.
    #[cold]
    fn reclaim(&mut self, conn: ConnId) {
        match self.slots.service(conn) {
            Some(Service::Region(stream)) => {
                stream.copy_kept(&mut self.stack, conn, &mut self.regions.rdma.stats);
            }
            Some(Service::Echo(echo)) => {
                echo.compact();
                self.stats.echo_copied_aside += 1;
                self.stack.retain(conn, 0);
            }
            Some(Service::Discard | Service::Chargen(_) | Service::Daytime) | None => {}
        }
    }

    fn peer_closed(&mut self, now: Instant, conn: ConnId) {
        match self.slots.service(conn) {
            // Queued bytes are sent first; `service_tx_ready` closes after them.
            Some(Service::Echo(_)) => self.queue_tx(conn),
            Some(Service::Region(stream)) => {
                let action = stream.peer_closed(now, &mut self.regions);
                self.queue_tx(conn);
                self.apply(now, conn, action);
            }
            // Daytime closes after its line.
            Some(Service::Daytime) => {}
            Some(Service::Discard | Service::Chargen(_)) | None => self.stack.close(now, conn),
        }
        self.slots.peer_closed(conn);
    }

    fn closed(&mut self, conn: ConnId) {
        if let Some(Service::Region(mut stream)) = self.slots.close(conn) {
            self.deadlines.change(conn, stream.armed(), None);
            stream.close(&mut self.regions);
        }
    }

    fn handle_timeouts(&mut self, now: Instant, pool: &mut P) {
        self.stack.handle_timeouts(now);
        self.handle_events(now, pool);
        while let Some(conn) = self.deadlines.pop_due(now) {
            if let Some(Service::Region(stream)) = self.slots.service(conn) {
                let action = stream.handle_timeout(now, &mut self.regions);
                self.apply(now, conn, action);
            }
        }
    }

    fn service_tx_ready(&mut self, now: Instant, pool: &mut P) {
        self.resume_echo();
        for _ in 0..self.tx_ready.len().min(TX_SERVICED_MAX) {
            let Some(conn) = self.tx_ready.pop_front() else { break };
            self.slots.clear_tx_ready(conn);
            let peer_closed = self.slots.is_peer_closed(conn);
            let Some(service) = self.slots.service(conn) else { continue };
            let outcome = match service {
                Service::Discard => TxOutcome::Idle,
                Service::Chargen(chargen) => fill_chargen(now, conn, chargen, &mut self.stack, pool),
                Service::Daytime => {
                    let line = daytime::line(self.wall_at_zero.saturating_add(since_start(now)));
                    send_and_close(now, conn, line.as_bytes(), &mut self.stack, pool)
                }
                Service::Echo(echo) => {
                    let outcome = echo.pump(now, &mut self.stack, pool, conn);
                    if !self.stack.retain(conn, echo.waiting()) {
                        echo.compact();
                        self.stats.echo_copied_aside += 1;
                        self.stack.retain(conn, 0);
                    }
                    match outcome {
                        TxOutcome::Idle if peer_closed => self.stack.close(now, conn),
                        TxOutcome::Again => {
                            self.echo_waiting.extend(echo.mark_waits_for_buffers().then_some(conn))
                        }
                        TxOutcome::Idle | TxOutcome::Blocked => {}
                    }
                    if outcome == TxOutcome::Again { TxOutcome::Idle } else { outcome }
                }
                Service::Region(stream) => {
                    let (outcome, action) = stream.pump(now, conn, &mut self.stack, pool, &mut self.regions);
                    self.apply(now, conn, action);
                    outcome
                }
            };
            match outcome {
                TxOutcome::Idle => {}
                TxOutcome::Again => self.queue_tx(conn),
                TxOutcome::Blocked => self.stack.notify_writable(conn),
            }
        }
    }

    /// Resumes a few echo connections that wait for packet buffers, after all others, while the pool is not short.
    #[inline]
    fn resume_echo(&mut self) {
        if self.echo_waiting.is_empty() || self.stack.pool_is_short() {
            return;
        }
        for _ in 0..ECHO_RESUMED_MAX {
            let Some(conn) = self.echo_waiting.pop_front() else { return };
            if let Some(Service::Echo(echo)) = self.slots.service(conn) {
                echo.clear_waits_for_buffers();
                self.queue_tx(conn);
            }
        }
    }

    fn queue_tx(&mut self, conn: ConnId) {
        if self.slots.mark_tx_ready(conn) {
            self.tx_ready.push_back(conn);
        }
    }

    /// Updates the deadline of an RDMA connection and its [`EvictionPolicy`](tcp_stack::EvictionPolicy), if either
    /// has changed.
    fn arm(&mut self, conn: ConnId) {
        let Some(Service::Region(stream)) = self.slots.service(conn) else { return };
        let (before, deadline) = stream.arm();
        let eviction_policy = stream.eviction_policy_change();
        self.deadlines.change(conn, before, deadline);
        if let Some(when) = eviction_policy {
            self.stack.set_eviction_policy(conn, when);
        }
    }

    fn apply(&mut self, now: Instant, conn: ConnId, action: Action) {
        self.arm(conn);
        match action {
            Action::Keep => {}
            Action::Close => self.stack.close(now, conn),
            Action::Abort => self.stack.abort(now, conn),
        }
    }
}

impl<P: BufPool, M: Memory> PortProtocols for Engine<P, M> {
    type Pool = P;

    fn poll(
        &mut self,
        now: Instant,
        due: bool,
        frames: &mut impl Iterator<Item = RxFrame<P::Buf>>,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<P::Buf>),
        max: usize,
    ) -> usize {
        self.stack.handle_frames(now, frames);
        self.handle_events(now, pool);
        if due {
            self.handle_timeouts(now, pool);
        }
        self.service_tx_ready(now, pool);
        self.stack.poll_transmit(now, pool, out, max)
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.stack.next_deadline(), self.deadlines.first()].into_iter().flatten().min()
    }

    fn has_output(&self) -> bool {
        !self.tx_ready.is_empty() || self.stack.has_output()
    }

    fn abort_all(&mut self, now: Instant) {
        for id in self.slots.ids() {
            self.stack.abort(now, id);
        }
    }
}

/// Regions and reports, for commands between two polls.
impl<P: BufPool, M: Memory> Engine<P, M> {
    /// Offers a region to peers under its name.
    ///
    /// # Errors
    /// As [`RegionService::add`].
    pub fn region_add(&mut self, entry: RegionEntry) -> Result<(), AddError> {
        self.regions.service.add(entry)
    }

    /// Stops offering a region. Grants made before stay valid; returns their number.
    pub fn region_hide(&mut self, name: &str, region: RegionId) -> usize {
        self.regions.service.remove(name);
        self.regions.rdma.stags.grants_of(region)
    }

    /// Revokes every grant on a region. When this returns, the engine does not touch its memory any more.
    pub fn region_revoke(&mut self, region: RegionId) -> usize {
        self.regions.rdma.stags.revoke_region(region)
    }

    /// Returns the number of valid grants on a region.
    pub fn region_grants(&self, region: RegionId) -> usize {
        self.regions.rdma.stags.grants_of(region)
    }

    /// Borrows the region memory mutably.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.regions.rdma.memory
    }

    /// Borrows the region memory.
    pub fn memory(&self) -> &M {
        &self.regions.rdma.memory
    }

    /// Sets the wall clock, time since 1970. The daytime service uses it.
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.wall_at_zero = since_epoch.saturating_sub(since_start(now));
    }

    /// Borrows the TCP stack, for its counters and addresses.
    pub fn stack(&self) -> &Stack<P::Buf> {
        &self.stack
    }

    /// Returns the counters of MPA, DDP, RDMAP and the region service.
    pub fn rdma_stats(&self) -> &RdmaStats {
        &self.regions.rdma.stats
    }

    /// Returns the counters of the services.
    pub fn service_stats(&self) -> &ServiceStats {
        &self.stats
    }

    /// Returns the row of a connection.
    pub fn conn(&self, id: ConnId) -> Option<ConnRow> {
        let tcp = self.stack.info(id)?;
        let (service, rdma, region) = match self.slots.peek(id) {
            Some(Service::Echo(_)) => ("echo", None, None),
            Some(Service::Discard) => ("discard", None, None),
            Some(Service::Chargen(_)) => ("chargen", None, None),
            Some(Service::Daytime) => ("daytime", None, None),
            Some(Service::Region(stream)) => ("region", Some(stream.info()), stream.region()),
            None => ("none", None, None),
        };
        Some(ConnRow { id, tcp, service, rdma, region })
    }

    /// Returns the row of the connection with this slab index.
    pub fn conn_at(&self, index: u32) -> Option<ConnRow> {
        self.stack
            .connections_from(index)
            .next()
            .filter(|id| id.index() == index)
            .and_then(|id| self.conn(id))
    }

    /// Calls `take` for each connection from slab index `cursor` on, until it returns `false` (it did not take that
    /// row). Returns the index to continue at, `None` at the end.
    pub fn conns(&self, cursor: u32, take: &mut dyn FnMut(ConnRow) -> bool) -> Option<u32> {
        for id in self.stack.connections_from(cursor) {
            if let Some(row) = self.conn(id)
                && !take(row)
            {
                return Some(id.index());
            }
        }
        None
    }
}

/// Derives the hash key of the region service's table of names.
fn service_seed(seed: &[u8; 32]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *seed;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Keeps the send queue of a chargen connection full.
fn fill_chargen<P: BufPool>(
    now: Instant,
    conn: ConnId,
    chargen: &mut chargen::Chargen,
    stack: &mut Stack<P::Buf>,
    pool: &mut P,
) -> TxOutcome {
    use rdma::Sink;
    let mut sink = StreamSink::new(stack, pool, conn, now);
    let segment = sink.fpdu_max();
    if segment == 0 {
        return TxOutcome::Idle;
    }
    while sink.room() >= segment {
        if !sink.push(segment, &mut |out| chargen.fill(out)) {
            return TxOutcome::Again;
        }
    }
    if sink.budget < segment { TxOutcome::Again } else { TxOutcome::Blocked }
}

/// Sends a line and closes the connection, as soon as there is a packet buffer.
fn send_and_close<P: BufPool>(
    now: Instant,
    conn: ConnId,
    line: &[u8],
    stack: &mut Stack<P::Buf>,
    pool: &mut P,
) -> TxOutcome {
    use rdma::Sink;
    let mut sink = StreamSink::new(stack, pool, conn, now);
    if line.len() > sink.room() {
        return TxOutcome::Blocked;
    }
    if !sink.push(line.len(), &mut |out| out.copy_from_slice(line)) {
        return TxOutcome::Again;
    }
    stack.close(now, conn);
    TxOutcome::Idle
}
