//! The protocols of one port on one worker: one event loop over a TCP, a [`Device`] with the RDMA connections,
//! and the daemon's services. A worker of the daemon polls it.
//!
//! ```text
//!  frames ──▶ Transport::receive ──▶ events ─┬─▶ TCP services: echo, discard, chargen, daytime
//!                                              └─▶ Device ──▶ memory, completion queues, connection events
//!                                                   ▲  │                        │
//!                     posted work, accept, connect ─┘  │        region service, or the program
//!  frames ◀── Transport::transmit ◀── send ◀── tx_ready, one connection at a time
//! ```
//! The region service is one client of the device. A program with its own dataplane is another: it uses the engine of
//! a node in its own process without the daemon, creates objects, posts work requests, and polls completion queues
//! and events between two polls; the next poll transmits the posted work.
//!
//! The code depends on neither DPDK nor a clock. Buffers, pool and region memory are type parameters, so that tests run
//! it on heap buffers.

mod clock;
mod close;
mod commands;
mod contexts;
mod deferred;
mod device;
mod drain;
mod lingering;
mod looped;
pub mod memory;
mod notice;
mod numbered;
mod offers;
pub mod prefetch;
mod rdma_conn;
mod reload;
mod services;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testutil"))]
#[allow(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]
pub mod testutil;
mod transport;
pub mod wake;

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use rdma::service::RegionService;
use rdma::verbs::{CmId, Device, Limits};
use rdma::{EndpointConfig, Memory, OutOfOrderPolicy};
use tcp_stack::{
    BufPool, CloseReason, ConnId, ConnOptions, Event, Instant, ListenError, ListenOptions, ListenScope,
    ListenerId, RxFrame, Segment, TxFrame,
};

pub use crate::services::{ListenerService, ServiceStats};
use crate::services::{RegionResponder, TcpService, TcpServices, clear_waits_for_buffers};
use crate::transport::{ConnTable, Deadlines, RdmaState, StreamIds, TxOutcome, since_start};
pub use crate::transport::{LocalPorts, Reservations, Transport, kernel};
pub use clock::Clock;
pub use close::ConnSelector;
pub use commands::ConnRow;
use contexts::SharedContexts;
pub use contexts::{NewMr, Wakers};
use deferred::HeldData;
pub use device::RdmaCmStats;
pub use drain::DrainPage;
use lingering::Lingering;
pub use notice::{Notice, NoticeReader, NoticeRing, NoticeStats, notice_ring};
pub use numbered::NumberedConfig;
use numbered::NumberedQps;
use rdma_conn::{CmConns, Looped, RdmaConn};
pub use reload::{GrantRule, ListenerSetup};

/// Most connections whose output is serviced in one poll.
const TX_SERVICED_MAX: usize = 64;

/// Most echo connections resumed per poll after a lack of packet buffers.
const ECHO_RESUMED_MAX: usize = 4;

/// Capacity of `deferred`. When it is full, all of it runs before another connection is added.
const DEFERRED_MAX: usize = 64;

/// Sizes and settings of an [`Engine`].
#[derive(Debug)]
pub struct EngineConfig {
    /// TCP options of the connections that the device opens, and of its listeners.
    pub conn: ConnOptions,
    /// Limits of the device.
    pub limits: Limits,
    /// Settings of RDMA connections, unless their listener, queue pair or `ConnParam` overrides them.
    pub endpoint: EndpointConfig,
    /// Most valid STags: grants, memory regions and windows together.
    pub stags_max: u32,
    /// Most regions offered by the region service at the same time.
    pub regions_max: u32,
    /// Most contexts of other processes at the same time.
    pub contexts_max: u32,
    /// TCP ports that belong to one worker, and the index of this engine's worker, which claims those that contexts
    /// listen on.
    pub local_ports: (LocalPorts, u16),
    /// Seed of all random draws: ports, sequence numbers and STag keys.
    pub seed: [u8; 32],
}

impl EngineConfig {
    /// Returns `limits` for a program's device on a stack of `connections_max` TCP connections: peers that have not
    /// sent an MPA Request may take at most half of them.
    pub fn program_limits(limits: Limits, connections_max: u32) -> Limits {
        Limits { silent: limits.silent.min(connections_max.div_euclid(2)), ..limits }
    }

    /// Returns limits for a device without queue pairs: the region service may use all `connections_max` TCP
    /// connections and `listeners` listeners.
    pub fn service_limits(connections_max: u32, listeners: u32) -> Limits {
        let none = Limits { pds: 0, mrs: 0, mws: 0, cqs: 0, qps: 0, srqs: 0, ..Limits::default() };
        // TCP bounds the connections without an MPA Request: by listener, by source, and by eviction.
        Limits { ids: connections_max.saturating_add(listeners), silent: connections_max, ..none }
    }
}

/// Service of a connection.
#[derive(Debug)]
enum Service<B> {
    Tcp(TcpService<B>),
    Rdma(RdmaConn),
}

/// Part of the engine that the connections of a listener belong to.
#[derive(Clone, Debug)]
enum ListenerOwner {
    /// A service on plain TCP.
    Tcp(ListenerService),
    /// A listener of the device.
    Device(CmId),
}

/// The protocols of one port on one worker.
#[derive(Debug)]
pub struct Engine<T: Transport, M> {
    transport: T,
    conns: ConnTable<Service<T::Buf>>,
    listeners: Vec<(ListenerId, ListenerOwner)>,
    services: TcpServices,
    device: Device<Segment<T::Buf>>,
    rdma: RdmaState<M>,
    regions: RegionResponder,
    /// True if the region service has a listener. It then receives all connection events of the device that belong to
    /// no context.
    serves_regions: bool,
    /// False once the engine drains: it accepts and opens no more connections.
    accepts: bool,
    /// Contexts of other processes.
    shared: SharedContexts,
    /// TCP ports that belong to one worker, and the index of this one.
    local_ports: (LocalPorts, u16),
    cm_conns: CmConns,
    /// Received data of connections that wait for deferred copies, or for receive buffers.
    held: HeldData,
    /// Queue pairs that are connected by number.
    numbered: NumberedQps,
    /// TCP options of the device's connections.
    options: ConnOptions,
    streams: StreamIds,
    /// Connections with output to transmit, each at most once.
    tx_ready: VecDeque<ConnId>,
    /// Connections with output that [`Self::run_deferred`] queues: the segments that they have queued already are sent
    /// first.
    tx_late: ArrayVec<ConnId, TX_SERVICED_MAX>,
    /// Deadlines of RDMA connections: MPA handshake, incomplete FPDU, linger.
    deadlines: Deadlines,
    /// Connections that programs have left.
    lingering: Lingering,
    /// RDMA connections whose transmit completions, eviction policy and deadline [`Self::run_deferred`] updates.
    deferred: ArrayVec<ConnId, DEFERRED_MAX>,
    /// Events for the control thread.
    notices: NoticeRing,
    stats: RdmaCmStats,
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Allocates all tables for the configured sizes.
    pub fn new(transport: T, config: EngineConfig, memory: M) -> Self {
        let connections = transport.connections_max() as usize;
        let out_of_order = config.endpoint.out_of_order != OutOfOrderPolicy::Off;
        Self {
            conns: ConnTable::new(connections),
            listeners: Vec::new(),
            services: TcpServices::new(transport.receive_window_max()),
            device: Device::new(config.limits, config.endpoint),
            rdma: RdmaState::new(config.stags_max, config.seed, memory),
            regions: RegionResponder {
                service: RegionService::new(config.regions_max as usize, names_seed(&config.seed)),
            },
            serves_regions: false,
            accepts: true,
            shared: SharedContexts::new(config.contexts_max, config.limits.cqs),
            local_ports: config.local_ports,
            cm_conns: CmConns::new(config.limits.ids),
            held: HeldData::default(),
            numbered: NumberedQps::new(&config.seed),
            options: ConnOptions { out_of_order, ..config.conn },
            streams: StreamIds::default(),
            tx_ready: VecDeque::with_capacity(connections),
            tx_late: ArrayVec::new(),
            deadlines: Deadlines::new(connections),
            lingering: Lingering::default(),
            deferred: ArrayVec::new(),
            notices: NoticeRing::default(),
            stats: RdmaCmStats::default(),
            transport,
        }
    }

    /// Listens on a TCP port for a service; does nothing after [`Self::stop_accepting`].
    ///
    /// # Errors
    /// As [`Transport::listen_at`]: the port is taken, or there are too many listeners.
    pub fn listen(
        &mut self,
        port: u16,
        options: ListenOptions,
        service: ListenerService,
    ) -> Result<(), ListenError> {
        if !self.accepts {
            return Ok(());
        }
        if !self.local_ports.0.reserve(port) {
            return Err(ListenError::InUse);
        }
        let listening = match service {
            ListenerService::Region(config) => self.listen_region(port, options, config),
            service => {
                let listener = self.transport.listen_at((ListenScope::Any, port), options);
                listener.map(|listener| (listener, ListenerOwner::Tcp(service)))
            }
        };
        let Ok((listener, owner)) = listening else {
            self.local_ports.0.unreserve(port);
            return listening.map(|_| ());
        };
        self.listeners.push((listener, owner));
        Ok(())
    }

    /// Processes a burst of received frames, runs the services and the device, and emits at most `max` frames through
    /// `out`. Returns the number of frames emitted. Also runs expired timers if `due` is set.
    pub fn poll(
        &mut self,
        now: Instant,
        due: bool,
        frames: &mut impl Iterator<Item = RxFrame<T::Buf>>,
        pool: &mut impl BufPool<Buf = T::Buf>,
        out: &mut impl FnMut(TxFrame<T::Buf>),
        max: usize,
    ) -> usize {
        self.device.set_now(since_start(now));
        if self.device.has_overrun() {
            self.device.fail_overrun_part();
        }
        // Before the frames: a receive buffer that was posted before a message was sent is there when it arrives.
        self.post_of_contexts();
        self.transport.receive(now, frames);
        self.handle_events(now, pool);
        if due {
            self.handle_timeouts(now, pool);
        }
        if self.device.deferred() > 0 {
            self.resume_deferred(now);
        }
        self.run_numbered(now);
        self.serve_clients();
        self.apply_requests(now);
        self.transmit_to_itself(now);
        self.service_tx_ready(now, pool);
        // Carries out requests of connections whose deferred work ran because `deferred` was full.
        self.apply_requests(now);
        self.transport.transmit(now, pool, out, max)
    }

    /// Runs work that can wait until the emitted frames have been sent. The caller of [`Self::poll`] runs it after it
    /// has handed the frames to the port.
    #[inline]
    pub fn run_deferred(&mut self, now: Instant, pool: &mut impl BufPool<Buf = T::Buf>) {
        self.service_tx_late(now, pool);
        self.finish_deferred();
        self.deliver_to_contexts();
    }

    /// Borrows the transport, for its counters.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// Borrows the transport. The engine learns of changes by events alone.
    pub const fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Emits at most `max` frames through `out`, as the end of [`Self::poll`]. Returns the number of frames emitted.
    pub fn transmit(
        &mut self,
        now: Instant,
        pool: &mut impl BufPool<Buf = T::Buf>,
        out: &mut impl FnMut(TxFrame<T::Buf>),
        max: usize,
    ) -> usize {
        self.transport.transmit(now, pool, out, max)
    }

    #[inline]
    fn finish_deferred(&mut self) {
        while let Some(conn) = self.deferred.pop() {
            self.finish_rdma(conn);
        }
    }

    /// Returns the time at which the next poll is due even if no frame arrives. `poll`, `run_deferred` and
    /// `conns_close` change it.
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = [self.transport.next_deadline(), self.deadlines.first(), self.numbered_deadline()];
        own.into_iter().flatten().min()
    }

    /// Returns true if another poll would have immediate work: output to send, a request that a client of the device
    /// has made since the last poll, or connections that wait for deferred copies, whose end no signal announces.
    #[inline]
    pub fn has_output(&self) -> bool {
        self.transport.has_output() || self.has_work()
    }

    /// Returns true if another poll would have immediate work, apart from what waits in the transport.
    pub fn has_work(&self) -> bool {
        !self.tx_ready.is_empty()
            || self.device.has_request()
            || self.shared.has_work()
            || self.device.has_overrun()
            || self.device.deferred() > 0
            || self.has_output_to_itself()
            || self.device.has_datagrams()
    }

    /// Resets every connection. `WorkerPort::shut_down` calls it.
    pub fn abort_all(&mut self, now: Instant) {
        for conn in self.conns.ids() {
            self.transport.abort(now, conn);
        }
    }

    fn handle_events(&mut self, now: Instant, pool: &mut impl BufPool<Buf = T::Buf>) {
        let mut next = None;
        while let Some(event) = next.take().or_else(|| self.transport.poll_event()) {
            match event {
                Event::Accepted { conn, listener } => self.accepted(now, conn, listener),
                Event::Connected { conn } => self.rdma_connected(now, conn),
                Event::Data { conn, offset, segment } => {
                    if T::READS_IN_POLL && self.shared.has_rung() {
                        self.post_of_contexts();
                    }
                    next = self.data(now, conn, (offset, segment), pool);
                }
                Event::OutOfOrder { conn } => self.rdma_out_of_order(conn),
                Event::PeerClosed { conn } => self.peer_closed(now, conn),
                Event::Writable { conn } => self.queue_tx(conn),
                Event::EmssChanged { conn, .. } => self.schedule(conn),
                Event::Reclaim { conn } => self.reclaim(conn),
                Event::Closed { conn, reason } => self.closed(conn, reason),
                Event::Urgent { .. } => {}
            }
        }
    }

    fn accepted(&mut self, now: Instant, conn: ConnId, listener: ListenerId) {
        let Self { transport, listeners, services, .. } = self;
        let found = listeners.iter().find(|(id, _)| *id == listener);
        let (Some((_, owner)), Some(info)) = (found, transport.info(conn)) else {
            return transport.abort(now, conn);
        };
        match owner {
            ListenerOwner::Device(id) => {
                let id = *id;
                self.rdma_accepted(now, conn, id, &info);
            }
            ListenerOwner::Tcp(service) => {
                let Some(service) = services.accepted(service, &info) else {
                    return transport.abort(now, conn);
                };
                transport.set_eviction_policy(conn, service.eviction_policy());
                let speaks_first = service.speaks_first();
                self.conns.open(conn, Service::Tcp(service));
                if speaks_first {
                    self.queue_tx(conn);
                }
            }
        }
    }

    /// Passes a segment to the connection's service. An RDMA connection also takes the segments of the same connection
    /// that follow. Returns the event that ended the run, if any.
    #[inline]
    fn data(
        &mut self,
        now: Instant,
        conn: ConnId,
        (offset, segment): (u64, Segment<T::Buf>),
        pool: &mut impl BufPool<Buf = T::Buf>,
    ) -> Option<Event<T::Buf>> {
        let Self { transport, conns, services, .. } = self;
        match conns.service_mut(conn) {
            Some(Service::Rdma(_)) => return self.rdma_data(now, conn, offset, segment),
            Some(Service::Tcp(service)) => {
                if services.receive(service, transport, pool, conn, segment) {
                    self.queue_tx(conn);
                }
            }
            None => transport.consumed(conn, segment.len()),
        }
        None
    }

    /// Frees the received packet buffers that a connection retains; others need them.
    #[cold]
    fn reclaim(&mut self, conn: ConnId) {
        let Self { transport, conns, services, device, rdma, .. } = self;
        match conns.service_mut(conn) {
            Some(Service::Rdma(rdma_conn)) => {
                rdma_conn.release_retained(conn, transport, device, &mut rdma.stats)
            }
            Some(Service::Tcp(service)) => services.reclaim(service, transport, conn),
            None => {}
        }
    }

    fn peer_closed(&mut self, now: Instant, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return self.transport.close(now, conn) };
        entry.peer_closed = true;
        match &entry.service {
            Service::Rdma(_) => self.rdma_peer_closed(now, conn),
            Service::Tcp(service) => {
                if TcpServices::peer_closed(service, now, &mut self.transport, conn) {
                    self.queue_tx(conn);
                }
            }
        }
    }

    fn closed(&mut self, conn: ConnId, reason: CloseReason) {
        if let Some(Service::Rdma(closed)) = self.conns.close(conn) {
            if !closed.is_region() {
                let (ports, worker) = &self.local_ports;
                ports.release(closed.claimed_port, *worker);
            }
            self.rdma_closed(conn, &closed, reason);
        }
    }

    fn handle_timeouts(&mut self, now: Instant, pool: &mut impl BufPool<Buf = T::Buf>) {
        self.transport.handle_timeouts(now);
        self.handle_events(now, pool);
        while let Some(conn) = self.deadlines.pop_due(now) {
            self.rdma_timeout(now, conn);
        }
    }

    /// Services connections with output, each up to the budget of a [`StreamSink`](crate::transport::StreamSink). Those
    /// with segments that TCP can send at once are serviced by [`Self::run_deferred`]: a window of few segments is sent
    /// without waiting until the next ones are built.
    fn service_tx_ready(&mut self, now: Instant, pool: &mut impl BufPool<Buf = T::Buf>) {
        self.resume_waiting();
        for _ in 0..self.tx_ready.len().min(TX_SERVICED_MAX) {
            let Some(conn) = self.tx_ready.pop_front() else { break };
            if self.transport.may_send_queued(conn) && self.tx_late.try_push(conn).is_ok() {
                continue;
            }
            self.service_tx(now, conn, pool);
        }
    }

    /// Services the connections whose queued segments were sent first.
    #[inline]
    fn service_tx_late(&mut self, now: Instant, pool: &mut impl BufPool<Buf = T::Buf>) {
        if self.tx_late.is_empty() {
            return;
        }
        for at in 0..self.tx_late.len() {
            let Some(conn) = self.tx_late.get(at).copied() else { break };
            self.service_tx(now, conn, pool);
        }
        self.tx_late.clear();
        // Carries out requests of connections whose deferred work ran because `deferred` was full.
        self.apply_requests(now);
    }

    /// Services one connection with output.
    #[inline]
    fn service_tx(&mut self, now: Instant, conn: ConnId, pool: &mut impl BufPool<Buf = T::Buf>) {
        let Self { transport, conns, services, device, rdma, .. } = self;
        let Some(entry) = conns.take_tx_ready(conn) else { return };
        let outcome = match &mut entry.service {
            Service::Tcp(service) => {
                services.transmit(now, (conn, service, entry.peer_closed), transport, pool)
            }
            Service::Rdma(rdma_conn) => {
                let Some(id) = rdma_conn.id else { return };
                let outcome = if rdma_conn.looped == Looped::No {
                    rdma_conn::transmit(now, (conn, id), transport, pool, device, rdma)
                } else {
                    self.transmit_looped(now, (conn, id), pool)
                };
                self.defer(conn);
                outcome
            }
        };
        match outcome {
            TxOutcome::Idle => {}
            TxOutcome::Again => self.queue_tx(conn),
            TxOutcome::Blocked => self.transport.notify_writable(conn),
        }
    }

    /// Resumes a few echo connections that wait for packet buffers, after all others, while the pool is not short.
    #[inline]
    fn resume_waiting(&mut self) {
        if !self.services.waits_for_buffers() || self.transport.pool_is_short() {
            return;
        }
        for _ in 0..ECHO_RESUMED_MAX {
            let Some(conn) = self.services.next_waiting() else { return };
            if let Some(Service::Tcp(service)) = self.conns.service_mut(conn) {
                clear_waits_for_buffers(service);
                self.queue_tx(conn);
            }
        }
    }

    #[inline]
    fn queue_tx(&mut self, conn: ConnId) {
        if self.conns.mark_tx_ready(conn) {
            self.tx_ready.push_back(conn);
        }
    }
}

/// Derives the hash key of the region service's table of names.
fn names_seed(seed: &[u8; 32]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *seed;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
