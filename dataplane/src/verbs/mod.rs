//! RDMA verbs over our TCP, for a program that is its own dataplane.
//!
//! ```text
//!  frames ──▶ Stack::handle_frames ──▶ events ──▶ Device ──▶ completion queues ──▶ the program
//!                                                   │  ▲                              │ post_send, …
//!  frames ◀── poll_transmit ◀── Stack::send ◀─ tx_ready └── region memory             ▼
//! ```
//! [`Verbs`] connects a [`Device`] to a [`Stack`]. The code depends on neither DPDK nor a clock: buffers, pool and
//! region memory are type parameters, so that tests run it on heap buffers. A [`Node`] polls it on a DPDK port.

mod conn_table;
mod node;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use rdma::verbs::{
    Access, AddressBase, CmId, Device, Limits, MemoryRegion, MemoryWindow, MrId, MwId, PdId, QpNum, RegionId,
    TransportRequest, VerbsError,
};
use rdma::{CloseHow, EndpointConfig, Memory, MessageSizes, OutOfOrderPolicy, RdmaStats};
use tcp_stack::{
    BufPool, ConnId, ConnInfo, ConnOptions, Event, Instant, ListenOptions, ListenerId, RxFrame, Segment,
    Stack, StackConfig, TxFrame,
};

use crate::engine::{
    DataRun, Deadlines, LINGER, PortProtocols, RdmaState, StreamIds, StreamSink, TX_SERVICED_MAX, TxOutcome,
    since_start,
};
use conn_table::{ConnTable, Transport};
pub use node::{Node, NodeOptions, PortVerbs};

iwarp_counters::counters! {
    /// Counters of the adapter between verbs and TCP.
    pub struct VerbsStats {
        /// Connections accepted by listeners.
        accepted,
        /// Connections opened by the program.
        opened,
        /// Connections reset because the listener's backlog was full, or the device had no free id.
        drop_backlog,
        /// Connections reset because their listener is bound to another address.
        drop_address,
        /// Bytes received after the program's connection had ended.
        late_bytes,
    }
}

/// Sizes and settings of a [`Verbs`].
#[derive(Debug)]
pub struct VerbsConfig {
    /// Settings of the TCP stack.
    pub stack: StackConfig,
    /// TCP options of its connections.
    pub conn: ConnOptions,
    /// Limits of the device.
    pub limits: Limits,
    /// Settings of RDMA connections, unless their queue pair or `ConnParam` overrides them.
    pub endpoint: EndpointConfig,
    /// Most STags of memory regions and windows.
    pub stags_max: u32,
    /// Seed of all random draws: ports, sequence numbers and STag keys.
    pub seed: [u8; 32],
}

/// Verbs objects on one port and one thread.
///
/// The program calls the [`Device`] between two polls: it creates objects, posts work requests, and polls completion
/// queues and events. The next poll transmits the posted work.
#[derive(Debug)]
pub struct Verbs<P: BufPool, M> {
    stack: Stack<P::Buf>,
    device: Device<Segment<P::Buf>>,
    rdma: RdmaState<M>,
    conns: ConnTable,
    streams: StreamIds,
    /// Connections with output to transmit, each at most once.
    tx_ready: VecDeque<ConnId>,
    deadlines: Deadlines,
    /// Connections whose completions and deadlines are processed after this poll's frames are sent.
    deferred: Vec<ConnId>,
    options: ConnOptions,
    stats: VerbsStats,
}

/// Capacity of `deferred`. Work of further connections is done within the poll.
const DEFERRED_MAX: usize = 64;

impl<P: BufPool, M: Memory> Verbs<P, M> {
    /// Allocates all tables for the configured sizes.
    pub fn new(config: VerbsConfig, memory: M) -> Self {
        let connections = config.stack.connections_max as usize;
        let out_of_order = config.endpoint.out_of_order != OutOfOrderPolicy::Off;
        // Peers that have not sent an MPA Request may take at most half of the connections.
        let half = u16::try_from(connections.div_euclid(2)).unwrap_or(u16::MAX);
        let limits = Limits { silent: config.limits.silent.min(half), ..config.limits };
        Self {
            stack: Stack::new(config.stack, config.seed),
            device: Device::new(limits, config.endpoint),
            rdma: RdmaState::new(config.stags_max, config.seed, memory),
            conns: ConnTable::new(connections, config.limits.ids.into()),
            streams: StreamIds::default(),
            tx_ready: VecDeque::with_capacity(connections),
            deadlines: Deadlines::new(connections),
            deferred: Vec::with_capacity(DEFERRED_MAX),
            options: ConnOptions { out_of_order, ..config.conn },
            stats: VerbsStats::default(),
        }
    }

    /// Borrows the device with all verbs objects.
    pub fn device(&self) -> &Device<Segment<P::Buf>> {
        &self.device
    }

    /// Borrows the device with all verbs objects mutably. Its methods for transport adapters are not for programs.
    pub fn device_mut(&mut self) -> &mut Device<Segment<P::Buf>> {
        &mut self.device
    }

    /// Calls [`Device::reg_mr`] with this port's STag table.
    ///
    /// # Errors
    /// As there.
    pub fn reg_mr(
        &mut self,
        pd: PdId,
        range: (RegionId, u64, u64),
        base: AddressBase,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.device.reg_mr(pd, range, base, access, &mut self.rdma.stags)
    }

    /// Calls [`Device::dereg_mr`] with this port's STag table.
    ///
    /// # Errors
    /// As there.
    pub fn dereg_mr(&mut self, mr: MrId) -> Result<(), VerbsError> {
        self.device.dereg_mr(mr, &mut self.rdma.stags)
    }

    /// Calls [`Device::alloc_mw`] with this port's STag table.
    ///
    /// # Errors
    /// As there.
    pub fn alloc_mw(&mut self, pd: PdId) -> Result<MemoryWindow, VerbsError> {
        self.device.alloc_mw(pd, &mut self.rdma.stags)
    }

    /// Calls [`Device::dealloc_mw`] with this port's STag table.
    ///
    /// # Errors
    /// As there.
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<(), VerbsError> {
        self.device.dealloc_mw(mw, &mut self.rdma.stags)
    }

    /// Calls [`Device::disconnect`] at time `now`.
    pub fn disconnect(&mut self, id: CmId, now: Instant) {
        self.device.disconnect(id, since_start(now));
    }

    /// Calls [`Device::terminate_qp`] at time `now`.
    ///
    /// # Errors
    /// As there.
    pub fn terminate_qp(&mut self, qp: QpNum, now: Instant) -> Result<(), VerbsError> {
        self.device.terminate_qp(qp, since_start(now), &mut self.rdma.stats)
    }

    /// Borrows the memory of the regions.
    pub fn memory(&self) -> &M {
        &self.rdma.memory
    }

    /// Borrows the memory of the regions mutably.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.rdma.memory
    }

    /// Borrows the TCP stack.
    pub fn stack(&self) -> &Stack<P::Buf> {
        &self.stack
    }

    /// Returns the counters of MPA, DDP and RDMAP.
    pub fn rdma_stats(&self) -> &RdmaStats {
        &self.rdma.stats
    }

    /// Returns the counters of the adapter.
    pub fn stats(&self) -> &VerbsStats {
        &self.stats
    }

    /// Returns the TCP state of a connection; `None` if the id has no connection, or its connection has closed.
    pub fn tcp_info(&self, id: CmId) -> Option<ConnInfo> {
        match self.conns.transport(id)? {
            Transport::Conn(conn) => self.stack.info(conn),
            Transport::Listener(_) => None,
        }
    }

    /// Returns the bytes of a message that fit one segment of a connection on its current path (RFC 4296 §2.2.1:
    /// `rdma_max_msizes`); `None` unless it is established.
    pub fn max_msizes(&self, id: CmId) -> Option<MessageSizes> {
        match self.conns.transport(id)? {
            Transport::Conn(conn) => self.device.max_msizes(id, self.stack.emss(conn)),
            Transport::Listener(_) => None,
        }
    }

    /// Returns the number of valid STags.
    pub fn stags(&self) -> usize {
        self.rdma.stags.len()
    }

    /// Returns the number of connections, including closed ones whose peers have not closed yet.
    pub fn connections(&self) -> usize {
        self.conns.count()
    }

    fn handle_events(&mut self, now: Instant) {
        let mut behind = None;
        while let Some(event) = behind.take().or_else(|| self.stack.poll_event()) {
            match event {
                Event::Accepted { conn, listener } => self.accepted(now, conn, listener),
                Event::Connected { conn } => self.connected(now, conn),
                Event::Data { conn, offset, segment } => behind = self.data(now, conn, offset, segment),
                Event::OutOfOrder { conn } => self.out_of_order(conn),
                Event::PeerClosed { conn } => self.peer_closed(now, conn),
                Event::Writable { conn } | Event::EmssChanged { conn, .. } => self.schedule(conn),
                Event::Closed { conn, .. } => self.closed(conn),
                Event::Urgent { .. } | Event::Reclaim { .. } => {}
            }
        }
    }

    fn accepted(&mut self, now: Instant, conn: ConnId, listener: ListenerId) {
        let Some(info) = self.stack.info(conn) else { return };
        let found = self.conns.listener(listener);
        let local = found.and_then(|id| self.device.addresses(id).ok()?.0);
        let (Some(id), Some(bound)) = (found, local) else { return self.stack.abort(now, conn) };
        if !bound.ip().is_unspecified() && bound.ip() != info.local.ip() {
            self.stats.drop_address += 1;
            return self.stack.abort(now, conn);
        }
        let (ends, at) = ((info.local, info.remote), since_start(now));
        let stream = self.streams.next();
        let mut taken = self.device.incoming(id, stream, ends, at);
        if taken.is_none() && self.device.make_room(id) {
            self.apply_requests(now);
            taken = self.device.incoming(id, stream, ends, at);
        }
        let Some(id) = taken else {
            self.stats.drop_backlog += 1;
            return self.stack.abort(now, conn);
        };
        self.stats.accepted += 1;
        self.conns.open(id, conn);
        self.schedule(conn);
    }

    fn connected(&mut self, now: Instant, conn: ConnId) {
        let (Some(id), Some(info)) = (self.conns.id(conn), self.stack.info(conn)) else {
            return self.stack.abort(now, conn);
        };
        let stats = &mut self.rdma.stats;
        if self.device.opened(id, self.streams.next(), info.local, since_start(now), stats) {
            self.stats.opened += 1;
            self.schedule(conn);
        } else {
            self.conns.unbind(id);
            self.stack.abort(now, conn);
        }
    }

    /// Passes a segment, and the segments of the same connection that follow, to the device. Returns the event after
    /// them, if one was polled.
    fn data(
        &mut self,
        now: Instant,
        conn: ConnId,
        offset: u64,
        segment: Segment<P::Buf>,
    ) -> Option<Event<P::Buf>> {
        let Self { stack, device, rdma, conns, .. } = self;
        let (id, at) = (conns.id(conn), since_start(now));
        let (bytes, behind) = if segment.was_taken() {
            let bytes = segment.len();
            if let Some(id) = id {
                device.receive_placed(id, at, offset, bytes, &mut rdma.env());
            }
            (bytes, None)
        } else {
            let mut run = DataRun::new(stack, conn, (offset, segment));
            if let Some(id) = id {
                device.receive_all(id, at, &mut run, &mut rdma.env());
            }
            run.end()
        };
        if id.is_none() {
            self.stats.late_bytes += bytes as u64;
        }
        self.stack.consumed(conn, bytes);
        self.schedule(conn);
        behind
    }

    fn out_of_order(&mut self, conn: ConnId) {
        let Self { stack, device, rdma, conns, .. } = self;
        if let Some(id) = conns.id(conn) {
            stack.offer_out_of_order(conn, &mut |offset, bytes| {
                device.receive_out_of_order(id, offset, bytes, &mut rdma.env())
            });
        }
    }

    fn peer_closed(&mut self, now: Instant, conn: ConnId) {
        match self.conns.id(conn) {
            Some(id) => self.device.peer_closed(id, since_start(now), &mut self.rdma.stats),
            None => self.stack.close(now, conn),
        }
        self.schedule(conn);
    }

    fn closed(&mut self, conn: ConnId) {
        let Some(closed) = self.conns.close(conn) else { return };
        self.deadlines.change(conn, closed.deadline, None);
        let Some(id) = closed.id else { return };
        if self.device.stream_info(id).is_some() {
            // The device answers with a close request, which frees what belongs to the stream.
            self.device.transport_lost(id);
        } else {
            self.device.open_failed(id);
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        self.stack.handle_timeouts(now);
        self.handle_events(now);
        while let Some(conn) = self.deadlines.pop_due(now) {
            match self.conns.expired(conn) {
                Some(Some(id)) => {
                    self.device.handle_timeout(id, since_start(now), &mut self.rdma.stats);
                    self.schedule(conn);
                }
                // The peer has not closed within LINGER.
                Some(None) => self.stack.abort(now, conn),
                None => {}
            }
        }
    }

    /// Carries out the device's requests to its transport.
    fn apply_requests(&mut self, now: Instant) {
        while let Some(request) = self.device.poll_transport() {
            match request {
                TransportRequest::Listen { id, local, backlog } => self.listen(id, local, backlog),
                TransportRequest::Unlisten { id } => {
                    if let Some(Transport::Listener(listener)) = self.conns.unbind(id) {
                        self.stack.unlisten(listener);
                    }
                }
                TransportRequest::Open { id, local, peer } => self.open(now, id, local, peer),
                TransportRequest::Transmit { id } => {
                    if let Some(Transport::Conn(conn)) = self.conns.transport(id) {
                        // There is usually work to send; servicing it schedules the rest.
                        self.queue_tx(conn);
                    }
                }
                TransportRequest::Close { id, how, .. } => self.close(now, id, how),
            }
        }
    }

    fn listen(&mut self, id: CmId, local: SocketAddr, backlog: u16) {
        let options =
            ListenOptions { backlog: u32::from(backlog), conn: self.options, ..ListenOptions::default() };
        let ours = local.ip().is_unspecified() || self.stack.is_local(local.ip());
        match self.stack.listen(local.port(), options) {
            Ok(listener) if ours => self.conns.listen(id, listener),
            Ok(listener) => {
                self.stack.unlisten(listener);
                self.device.listen_failed(id);
            }
            Err(_) => self.device.listen_failed(id),
        }
    }

    fn open(&mut self, now: Instant, id: CmId, local: Option<SocketAddr>, peer: SocketAddr) {
        let local: Option<IpAddr> = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        match self.stack.connect_from(now, local, peer, self.options) {
            Ok(conn) => self.conns.open(id, conn),
            Err(_) => self.device.open_failed(id),
        }
    }

    fn close(&mut self, now: Instant, id: CmId, how: CloseHow) {
        if let Some(Transport::Conn(conn)) = self.conns.unbind(id) {
            match how {
                CloseHow::Fin => {
                    self.stack.close(now, conn);
                    self.set_deadline(conn, Some(since_start(now).saturating_add(LINGER)));
                }
                CloseHow::Reset => self.stack.abort(now, conn),
            }
        }
        self.device.closed(id, &mut self.rdma.stags);
    }

    fn service_tx_ready(&mut self, now: Instant, pool: &mut P) {
        for _ in 0..self.tx_ready.len().min(TX_SERVICED_MAX) {
            let Some(conn) = self.tx_ready.pop_front() else { break };
            self.conns.clear_tx_ready(conn);
            let Self { stack, device, rdma, conns, .. } = self;
            let Some(id) = conns.id(conn) else { continue };
            let mut sink = StreamSink::new(stack, pool, conn, now);
            let progress = device.transmit(id, since_start(now), &mut rdma.env(), &mut sink);
            match sink.outcome(progress.pending) {
                TxOutcome::Idle => {}
                TxOutcome::Again => self.queue_tx(conn),
                TxOutcome::Blocked => self.stack.notify_writable(conn),
            }
            self.defer(conn);
        }
    }

    fn queue_tx(&mut self, conn: ConnId) {
        if self.conns.mark_tx_ready(conn) {
            self.tx_ready.push_back(conn);
        }
    }

    /// Schedules a connection whose state has changed: its output, and its deferred work.
    fn schedule(&mut self, conn: ConnId) {
        let Some(id) = self.conns.id(conn) else { return };
        if self.device.has_output(id) {
            self.queue_tx(conn);
        }
        self.defer(conn);
    }

    /// Defers completions and deadline of a connection until the frames of this poll are sent.
    fn defer(&mut self, conn: ConnId) {
        if self.deferred.last() == Some(&conn) {
            return;
        }
        if self.deferred.len() >= DEFERRED_MAX {
            self.run_deferred();
        }
        self.deferred.push(conn);
    }

    fn update_deadline(&mut self, conn: ConnId) {
        let Some((id, before)) = self.conns.deadline(conn) else { return };
        let deadline = self.device.next_deadline(id);
        if deadline != before {
            self.set_deadline(conn, deadline);
        }
    }

    fn set_deadline(&mut self, conn: ConnId, deadline: Option<std::time::Duration>) {
        if let Some(before) = self.conns.set_deadline(conn, deadline) {
            self.deadlines.change(conn, before, deadline);
        }
    }
}

impl<P: BufPool, M: Memory> PortProtocols for Verbs<P, M> {
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
        self.handle_events(now);
        if due {
            self.handle_timeouts(now);
        }
        self.apply_requests(now);
        self.service_tx_ready(now, pool);
        // Closes what the service of ready connections has completed.
        self.apply_requests(now);
        self.stack.poll_transmit(now, pool, out, max)
    }

    fn run_deferred(&mut self) {
        while let Some(conn) = self.deferred.pop() {
            if let Some(id) = self.conns.id(conn) {
                self.device.drain(id);
            }
            self.update_deadline(conn);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.stack.next_deadline(), self.deadlines.first()].into_iter().flatten().min()
    }

    fn has_output(&self) -> bool {
        !self.tx_ready.is_empty() || self.device.has_request() || self.stack.has_output()
    }

    fn abort_all(&mut self, now: Instant) {
        for conn in self.conns.all() {
            self.stack.abort(now, conn);
        }
    }
}
