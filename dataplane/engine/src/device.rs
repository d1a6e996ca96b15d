//! Adapter between the TCP stack and the [`Device`](rdma::verbs::Device): passes received data and events to the
//! device, and carries out the device's transport requests. `Engine::poll` calls it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use iwarp_shared_verbs::worker::UserId;
use rdma::verbs::{CmId, Owner, Termination, TransportRequest};
use rdma::{CloseHow, EndpointConfig, Memory, OutOfOrderPolicy};
use tcp_stack::{
    CloseReason, ConnId, ConnInfo, ConnOptions, ConnectError, Event, Instant, ListenError, ListenOptions,
    ListenScope, ListenerId, Segment,
};

use super::rdma_conn::RdmaConn;
use super::{Engine, ListenerOwner, Service};
use crate::notice::Notice;
use crate::services::RegionResponder;
use crate::transport::{DataRun, LINGER, Transport, since_start, taken_run};

/// Most calls in a row that post the work of a program which runs the engine itself.
const POSTS_IN_ROW_MAX: usize = 1024;

iwarp_counters::counters! {
    /// Counters of the TCP connections that the device uses.
    pub struct RdmaCmStats {
        /// Connections accepted by listeners.
        accepted,
        /// Connections opened for the device.
        opened,
        /// Connections reset because the listener's backlog was full, or the device had no free id.
        drop_backlog,
        /// Connections reset because their listener is bound to another address, or no longer exists.
        drop_address,
        /// Connections for queue pairs that are connected by number, reset because their host is not admitted.
        drop_not_admitted,
        /// Bytes received after the device had released the connection.
        late_bytes,
        /// Connections reset while they lingered: their user's programs have left too many others since.
        lingering_reset,
    }
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Listens for the region service with TCP options of its own.
    pub(super) fn listen_region(
        &mut self,
        port: u16,
        mut options: ListenOptions,
        config: EndpointConfig,
    ) -> Result<(ListenerId, ListenerOwner), ListenError> {
        let owner = self.region_owner(port, &mut options, config)?;
        let listener = self.transport.listen_at((ListenScope::Any, port), options);
        if let (Err(_), ListenerOwner::Device(id)) = (listener, &owner) {
            // Fails only if the id is gone already.
            let _ = self.device.destroy_id(*id);
        }
        Ok((listener?, owner))
    }

    /// Creates the device's side of a listener of the region service, and completes the options of TCP's side.
    pub(super) fn region_owner(
        &mut self,
        port: u16,
        options: &mut ListenOptions,
        config: EndpointConfig,
    ) -> Result<ListenerOwner, ListenError> {
        options.conn.out_of_order = config.out_of_order != OutOfOrderPolicy::Off;
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let id = self.device.create_listener(any, config, Owner::Region(None));
        let id = id.map_err(|_| ListenError::TooMany)?;
        self.serves_regions = true;
        Ok(ListenerOwner::Device(id))
    }

    /// Posts the work of the contexts.
    #[inline]
    pub(super) fn post_of_contexts(&mut self) {
        self.shared.post(&mut self.device);
        if T::READS_IN_POLL {
            // A program that runs the engine itself lets its posts wait until then: the peer's next message may need
            // the last of its receive buffers.
            for _ in 0..POSTS_IN_ROW_MAX {
                if !self.shared.has_left_posts() {
                    break;
                }
                self.shared.post(&mut self.device);
            }
        }
    }

    /// Passes the events of connections to the contexts and to the region service. A program of this process polls the
    /// events itself.
    #[inline]
    pub(super) fn serve_clients(&mut self) {
        if !self.serves_regions && self.shared.is_empty() {
            return;
        }
        self.pass_cm_events();
    }

    /// Delivers the events and completions of contexts that the deferred work has produced.
    #[inline]
    pub(super) fn deliver_to_contexts(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        self.pass_cm_events();
        self.shared.deliver(&mut self.device);
    }

    #[inline]
    fn pass_cm_events(&mut self) {
        let Self { device, shared, regions, rdma, notices, .. } = self;
        while let Some(event) = device.poll_cm_event() {
            let Some(event) = shared.cm_event(event, device) else { continue };
            if self.serves_regions {
                regions.handle(event, device, rdma, notices);
            }
        }
    }

    pub(super) fn rdma_accepted(&mut self, now: Instant, conn: ConnId, listener: CmId, info: &ConnInfo) {
        if !self.admits(listener, info.remote.ip()) {
            self.stats.drop_not_admitted += 1;
            return self.transport.abort(now, conn);
        }
        let bound = self.device.addresses(listener).ok().and_then(|(local, _)| local);
        let is_region = RegionResponder::owns(&self.device, listener);
        let claimed_port = if is_region { 0 } else { info.local.port() };
        let (ports, worker) = &self.local_ports;
        if bound.is_none_or(|bound| !bound.ip().is_unspecified() && bound.ip() != info.local.ip())
            || !is_region && !ports.claim(claimed_port, *worker)
        {
            self.stats.drop_address += 1;
            return self.transport.abort(now, conn);
        }
        let (ends, at) = ((info.local, info.remote), since_start(now));
        let stream = self.streams.next();
        let mut taken = self.device.incoming(listener, stream, ends, at);
        if taken.is_none() && self.device.make_room(listener) {
            self.apply_requests(now);
            taken = self.device.incoming(listener, stream, ends, at);
        }
        let Some(id) = taken else {
            self.stats.drop_backlog += 1;
            if !is_region {
                let (ports, worker) = &self.local_ports;
                ports.release(claimed_port, *worker);
            }
            return self.transport.abort(now, conn);
        };
        self.stats.accepted += 1;
        self.bind(conn, id, claimed_port);
        self.schedule(conn);
    }

    /// Binds a new connection to an identifier of the device. A program's connection has claimed its port.
    fn bind(&mut self, conn: ConnId, id: CmId, claimed_port: u16) {
        self.services.stats.region_connections += u64::from(claimed_port == 0);
        let info = self.transport.info(conn);
        let is_looped = info.is_some_and(|info| self.transport.is_local(info.remote.ip()));
        let mut rdma_conn = RdmaConn::new(id, claimed_port, is_looped);
        rdma_conn.update_eviction(conn, &mut self.transport, &self.device);
        self.conns.open(conn, Service::Rdma(rdma_conn));
        self.cm_conns.bind(id, conn);
    }

    /// Returns the connection of an identifier.
    #[inline]
    pub(super) fn conn_of(&self, id: CmId) -> Option<ConnId> {
        let conn = self.conns.at(self.cm_conns.index(id))?;
        (self.cm_id(conn) == Some(id)).then_some(conn)
    }

    /// Returns the identifier of a connection; `None` if it is not the device's any more.
    #[inline]
    pub(super) fn cm_id(&self, conn: ConnId) -> Option<CmId> {
        match self.conns.service(conn) {
            Some(Service::Rdma(rdma_conn)) => rdma_conn.id,
            _ => None,
        }
    }

    #[inline]
    fn rdma_conn(&mut self, conn: ConnId) -> Option<&mut RdmaConn> {
        match self.conns.service_mut(conn) {
            Some(Service::Rdma(rdma_conn)) => Some(rdma_conn),
            _ => None,
        }
    }

    /// Unbinds an identifier and returns its connection, which stays in the table until TCP has closed it.
    fn unbind(&mut self, id: CmId) -> Option<ConnId> {
        let conn = self.conn_of(id)?;
        self.rdma_conn(conn)?.id = None;
        Some(conn)
    }

    pub(super) fn rdma_connected(&mut self, now: Instant, conn: ConnId) {
        let (Some(id), Some(info)) = (self.cm_id(conn), self.transport.info(conn)) else {
            return self.transport.abort(now, conn);
        };
        let stats = &mut self.rdma.stats;
        if self.device.opened(id, self.streams.next(), info.local, since_start(now), stats) {
            self.stats.opened += 1;
            self.schedule(conn);
        } else {
            self.unbind(id);
            self.transport.abort(now, conn);
        }
    }

    /// Passes a segment, and the segments of the same connection that follow, to the device. Returns the event that
    /// ended the run, if any.
    pub(super) fn rdma_data(
        &mut self,
        now: Instant,
        conn: ConnId,
        offset: u64,
        segment: Segment<T::Buf>,
    ) -> Option<Event<T::Buf>> {
        if self.device.has_stalled() && self.holds_data(conn) {
            return self.hold_data(conn, offset, &segment);
        }
        let Self { transport, device, rdma, conns, stats, held, .. } = self;
        let Some(Service::Rdma(rdma_conn)) = conns.service_mut(conn) else { return None };
        let (id, at) = (rdma_conn.id, since_start(now));
        let (chunks, (bytes, next)) = if segment.was_taken() {
            let run = taken_run(transport, conn, segment.len());
            (id.map(|id| device.receive_placed(id, at, offset, run.0, &mut rdma.env())), run)
        } else {
            let mut run = DataRun::new(transport, conn, (offset, segment));
            let chunks = id.map(|id| device.receive_all(id, at, &mut run, &mut rdma.env()));
            if let Some(id) = id
                && device.has_stalled()
                && device.is_stalled(id)
            {
                held.take_rest(conn, &mut run);
            }
            (chunks, run.end())
        };
        if let Some(chunks) = chunks {
            rdma_conn.retain((conn, chunks), transport, device, &mut rdma.stats);
        }
        if id.is_none() {
            stats.late_bytes += bytes as u64;
        }
        let bytes = if held.is_empty() { bytes } else { bytes.saturating_sub(held.newly_held()) };
        transport.consumed(conn, bytes);
        self.schedule(conn);
        next
    }

    /// Offers out-of-order data to the device for placement.
    pub(super) fn rdma_out_of_order(&mut self, conn: ConnId) {
        let Some(id) = self.cm_id(conn) else { return };
        let Self { transport, device, rdma, .. } = self;
        transport.offer_out_of_order(conn, &mut |offset, bytes| {
            device.receive_out_of_order(id, offset, bytes, &mut rdma.env())
        });
    }

    pub(super) fn rdma_peer_closed(&mut self, now: Instant, conn: ConnId) {
        match self.cm_id(conn) {
            Some(id) if self.device.is_stalled(id) || self.held.has(conn) => self.held.hold_end(conn),
            Some(id) => self.device.peer_closed(id, since_start(now), &mut self.rdma.stats),
            None => self.transport.close(now, conn),
        }
        self.schedule(conn);
    }

    pub(super) fn rdma_closed(&mut self, conn: ConnId, closed: &RdmaConn, reason: CloseReason) {
        self.deadlines.change(conn, closed.deadline, None);
        self.lingering.remove(conn, closed.deadline);
        self.held.remove(conn);
        let Some(id) = closed.id else { return };
        if self.device.stream_info(id).is_some() {
            // The device answers with a close request, which frees what belongs to the stream.
            self.device.transport_lost(id);
        } else if matches!(reason, CloseReason::Refused | CloseReason::Reset) {
            // The peer may have reset the connection between its SYN-ACK and our first look.
            self.device.open_refused(id);
        } else {
            self.device.open_failed(id);
        }
    }

    /// Handles an expired deadline, which is not queued any more.
    pub(super) fn rdma_timeout(&mut self, now: Instant, conn: ConnId) {
        let Some(rdma_conn) = self.rdma_conn(conn) else { return };
        let (id, deadline) = (rdma_conn.id, rdma_conn.deadline.take());
        self.lingering.remove(conn, deadline);
        match id {
            Some(id) => {
                self.device.handle_timeout(id, since_start(now), &mut self.rdma.stats);
                self.schedule(conn);
            }
            // The peer has not closed within LINGER.
            None => self.transport.abort(now, conn),
        }
    }

    /// Carries out the device's requests.
    #[inline]
    pub(super) fn apply_requests(&mut self, now: Instant) {
        while let Some(request) = self.device.poll_transport() {
            match request {
                TransportRequest::Transmit { id } => {
                    if let Some(conn) = self.conn_of(id) {
                        // The device asks only when it has work to send; `service_tx_ready` defers the rest.
                        self.queue_tx(conn);
                    } else {
                        self.queue_to_itself(id);
                    }
                }
                TransportRequest::Loop { id } => {
                    let stream = self.streams.next();
                    self.device.looped_to_itself(id, stream);
                }
                TransportRequest::Listen { id, local, backlog } => self.rdma_listen(id, local, backlog),
                TransportRequest::Unlisten { id } => self.unlisten(id),
                TransportRequest::Open { id, local, peer } => self.open(now, id, local, peer),
                TransportRequest::Close { id, how, .. } => self.close(now, id, how),
            }
        }
    }

    /// Returns the TCP options of a new connection or listener.
    fn options_of(&self, id: CmId) -> ConnOptions {
        ConnOptions { traffic_class: self.device.traffic_class(id), ..self.options }
    }

    /// Gives the connection of an id, or those that it accepts, the traffic class that the program has set.
    pub(super) fn apply_traffic_class(&mut self, id: CmId) {
        let class = self.device.traffic_class(id);
        let is_it = |owner: &ListenerOwner| matches!(owner, ListenerOwner::Device(of) if *of == id);
        if let Some((listener, _)) = self.listeners.iter().find(|(_, owner)| is_it(owner)) {
            self.transport.set_listen_traffic_class(*listener, class);
        } else if let Some(conn) = self.conn_of(id) {
            self.transport.set_traffic_class(conn, class);
        }
    }

    fn rdma_listen(&mut self, id: CmId, local: SocketAddr, backlog: u16) {
        let options = ListenOptions {
            backlog: u32::from(backlog),
            conn: self.options_of(id),
            ..ListenOptions::default()
        };
        let ours = local.ip().is_unspecified() || self.transport.is_local(local.ip());
        let (ports, worker) = &self.local_ports;
        match self.transport.listen_at((ListenScope::of(local.ip()), local.port()), options) {
            Ok(listener) if self.accepts && ours && ports.claim(local.port(), *worker) => {
                self.listeners.push((listener, ListenerOwner::Device(id)));
            }
            Ok(listener) => {
                self.transport.unlisten(listener);
                self.device.listen_failed(id);
            }
            Err(_) => self.device.listen_failed(id),
        }
    }

    fn unlisten(&mut self, id: CmId) {
        let is_it = |owner: &ListenerOwner| matches!(owner, ListenerOwner::Device(of) if *of == id);
        if let Some(at) = self.listeners.iter().position(|(_, owner)| is_it(owner)) {
            let (listener, _) = self.listeners.swap_remove(at);
            if let Some(port) = self.transport.unlisten(listener) {
                let (ports, worker) = &self.local_ports;
                ports.release(port, *worker);
            }
        }
    }

    fn open(&mut self, now: Instant, id: CmId, local: Option<SocketAddr>, peer: SocketAddr) {
        let port = local.map_or(0, |local| local.port());
        let local: Option<IpAddr> = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let (ports, worker) = &self.local_ports;
        let mut claimed_port = None;
        let mut claim = |port| {
            let claimed = ports.claim(port, *worker);
            claimed_port = claimed.then_some(port);
            claimed
        };
        let options = self.options_of(id);
        let transport = &mut self.transport;
        let mut open = |port| transport.connect_from(now, (local, port), peer, options, &mut claim);
        let opened = self.accepts.then(|| match open(port) {
            Err(ConnectError::NoPort) if self.device.allows_any_port(id) => open(0),
            opened => opened,
        });
        match (opened, claimed_port) {
            (Some(Ok(conn)), Some(port)) => {
                if let Some(info) = self.transport.info(conn) {
                    self.device.opening_from(id, info.local);
                }
                self.bind(conn, id, port);
            }
            (opened, claimed_port) => {
                if let Some(port) = claimed_port {
                    ports.release(port, *worker);
                }
                match opened {
                    // The program's own port is in use; of the others, one is always free in practice.
                    Some(Err(ConnectError::NoPort)) if port != 0 => self.device.address_unavailable(id),
                    _ => self.device.open_failed(id),
                }
            }
        }
    }

    fn close(&mut self, now: Instant, id: CmId, how: CloseHow) {
        let user = self.shared.user_of(&self.device, id);
        if let Some(conn) = self.unbind(id) {
            self.held.remove(conn);
            self.note_termination(id, conn);
            match how {
                CloseHow::Fin => {
                    self.transport.close(now, conn);
                    let until = since_start(now).saturating_add(LINGER);
                    self.set_deadline(conn, Some(until));
                    self.update_eviction(conn);
                    if let Some((user, most)) = user {
                        self.linger(now, conn, (user, most), until);
                    }
                }
                CloseHow::Reset => self.transport.abort(now, conn),
            }
        }
        self.device.closed(id, &mut self.rdma.stags);
    }

    /// Counts a connection that its program has left for the program's user, who may have `most` of them.
    fn linger(&mut self, now: Instant, conn: ConnId, (user, most): (UserId, u32), until: Duration) {
        if let Some(oldest) = self.lingering.add(user, conn, until, most) {
            self.stats.lingering_reset += 1;
            self.transport.abort(now, oldest);
        }
    }

    /// Records the Terminate that ended a stream, if one did.
    fn note_termination(&mut self, id: CmId, conn: ConnId) {
        let ends = || match self.device.addresses(id).ok()? {
            (Some(local), Some(peer)) => Some((local, peer)),
            _ => None,
        };
        if let Some(Termination { sent, code }) = self.device.termination(id)
            && let Some((local, peer)) = ends()
        {
            self.notices.record(Notice::Terminated { peer, local, conn, code, sent });
        }
    }

    /// Schedules a connection whose state has changed: its output, and its deferred work.
    #[inline]
    pub(super) fn schedule(&mut self, conn: ConnId) {
        let Some(id) = self.cm_id(conn) else { return };
        if self.device.has_output(id) {
            self.queue_tx(conn);
        }
        self.defer(conn);
    }

    /// Queues a connection for [`Self::run_deferred`], unless it is the last one in the queue.
    #[inline]
    pub(super) fn defer(&mut self, conn: ConnId) {
        if self.deferred.last() == Some(&conn) {
            return;
        }
        if self.deferred.is_full() {
            self.finish_deferred();
        }
        self.deferred.push(conn);
    }

    /// Processes completions and deadline of a connection.
    #[inline]
    pub(super) fn finish_rdma(&mut self, conn: ConnId) {
        let Self { transport, conns, device, .. } = self;
        let Some(Service::Rdma(rdma_conn)) = conns.service_mut(conn) else { return };
        let Some(id) = rdma_conn.id else { return };
        device.drain(id);
        rdma_conn.update_eviction(conn, transport, device);
        let deadline = device.next_deadline(id);
        if deadline != rdma_conn.deadline {
            self.set_deadline(conn, deadline);
        }
    }

    fn update_eviction(&mut self, conn: ConnId) {
        if let Some(Service::Rdma(rdma_conn)) = self.conns.service_mut(conn) {
            rdma_conn.update_eviction(conn, &mut self.transport, &self.device);
        }
    }

    fn set_deadline(&mut self, conn: ConnId, deadline: Option<Duration>) {
        let Some(rdma_conn) = self.rdma_conn(conn) else { return };
        let before = std::mem::replace(&mut rdma_conn.deadline, deadline);
        self.deadlines.change(conn, before, deadline);
    }
}
