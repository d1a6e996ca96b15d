//! The application's commands, and the state that it can read.

use core::net::{IpAddr, SocketAddr};

use super::Stack;
use crate::buf::Buf;
use crate::config::{ConnOptions, ListenOptions, ListenScope, StackConfig};
use crate::conn::{Conn, Cx, Origin, Pending, Target, TxState};
use crate::error::{CloseReason, ConnectError, ListenError, SendError};
use crate::event::{ConnId, ConnInfo, ListenerId};
use crate::four_tuple::FourTuple;
use crate::iface::NotReady;
use crate::state::State;
use crate::time::Instant;
use crate::timer::TimerKind;
use crate::wire::{EcnField, flow_hash};

/// Bytes that [`Stack::send`] accepts at a time even if the peer's segments are shorter; it then splits them. RFC
/// 5044 §4.5 lets MPA pass no less (a MULPDU of 128, framed, with a marker).
pub const SEND_LEAST: usize = 140;

/// Returns false for addresses of no host or of many.
const fn is_one_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast)
}

impl<B: Buf> Stack<B> {
    /// Accepts connections to a port, over IPv4 and IPv6. Errors: port 0, a port in use, or 1024 listeners.
    pub fn listen(&mut self, port: u16, options: ListenOptions) -> Result<ListenerId, ListenError> {
        self.listen_at((ListenScope::Any, port), options)
    }

    /// Returns the settings of this stack.
    pub const fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Accepts connections to a port at some addresses. Errors: as [`Self::listen`]; the port is in use only if another
    /// listener has one of the addresses.
    pub fn listen_at(
        &mut self,
        at: (ListenScope, u16),
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        let listener = self.listeners.add(at, options)?;
        self.accounts.add_listener(listener);
        Ok(listener)
    }

    /// Returns the listener of a TCP port at all addresses, if there is one.
    pub fn listener_at(&self, port: u16) -> Option<ListenerId> {
        self.listeners.at_all(port)
    }

    /// Sets the options of a listener, for connections that it accepts from now on. Does nothing if it is not there.
    pub fn set_listen_options(&mut self, listener: ListenerId, options: ListenOptions) {
        self.listeners.set_options(listener, options);
    }

    /// Sets the traffic class of the connections that a listener accepts from now on, as
    /// [`ConnOptions::traffic_class`]. Does nothing if it is not there.
    pub fn set_listen_traffic_class(&mut self, listener: ListenerId, class: u8) {
        self.listeners.set_traffic_class(listener, class);
    }

    /// Sets the traffic class of a connection, as [`ConnOptions::traffic_class`]: that of the segments that are sent
    /// from now on. Does nothing if it is not there.
    pub fn set_traffic_class(&mut self, conn: ConnId, class: u8) {
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.snd.traffic_class = class & !EcnField::MASK;
        }
    }

    /// Sets the maximum number of connections from one source, 1 or more. Connections beyond it stay.
    pub fn set_connections_per_source_max(&mut self, max: u32) {
        self.config.connections_per_source_max = max;
    }

    /// Removes a listener and returns its TCP port; `None` if it is not there. Established connections stay; half-open
    /// ones are reset.
    pub fn unlisten(&mut self, listener: ListenerId) -> Option<u16> {
        let now = self.now;
        let removed = self.listeners.remove(listener)?;
        let port = removed.port;
        self.reset_half_open(now, (listener, removed));
        Some(port)
    }

    /// True if an address is one of ours, the link-local one included.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.interface.is_local(address)
    }

    /// Returns true if the link address of the next hop to `remote` is known, so that a connection could be opened at
    /// once. Starts its resolution otherwise: callers ask again.
    ///
    /// # Errors
    /// [`ConnectError::NoRoute`]: no gateway leads there. [`ConnectError::BadAddress`]: the address is not that of one
    /// host.
    pub fn resolve_neighbor(&mut self, now: Instant, remote: IpAddr) -> Result<bool, ConnectError> {
        if !is_one_host(remote) {
            return Err(ConnectError::BadAddress);
        }
        match self.interface.resolve(now, remote) {
            Ok(_) => Ok(true),
            Err(NotReady::Resolving | NotReady::Unreachable) => Ok(false),
            Err(NotReady::NoRoute) => Err(ConnectError::NoRoute),
        }
    }

    /// Returns a local end from which [`Self::connect_from`] could open a connection to `remote` now, with a port for
    /// which `is_free` is true. It stays free for others.
    pub fn free_end(
        &mut self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        is_free: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr> {
        let local = local.or_else(|| self.interface.source_for(remote.ip()))?;
        self.choose_port(local, remote, is_free)
    }

    /// Opens a connection; [`Event::Connected`](crate::Event::Connected) or
    /// [`Event::Closed`](crate::Event::Closed) follows. The peer may be a listener at an address of ours: its segments
    /// come out with [`TxOffload::looped`](crate::TxOffload::looped).
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        options: ConnOptions,
    ) -> Result<ConnId, ConnectError> {
        self.connect_from(now, (None, 0), remote, options, &mut |_| true)
    }

    /// Same as [`Self::connect`], from a given local address and port; `None` and 0 leave them to the stack (RFC 9293
    /// §3.9.1.1, MUST-43). `claim` is called for source ports that no connection to `remote` has, until it returns
    /// true; the connection takes that port. A given port is the only one: `claim` answers for it that its segments
    /// lead to this worker.
    ///
    /// # Errors
    /// As for [`Self::connect`]. The connection then does not take a port that `claim` has accepted. `NoPort` also if
    /// the given port has a listener, or a connection to `remote`.
    pub fn connect_from(
        &mut self,
        now: Instant,
        (local, port): (Option<IpAddr>, u16),
        remote: SocketAddr,
        options: ConnOptions,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Result<ConnId, ConnectError> {
        let ip = remote.ip();
        if remote.port() == 0 || !is_one_host(ip) {
            return Err(ConnectError::BadAddress);
        }
        let source = self.interface.source_for(ip).ok_or(ConnectError::NoRoute)?;
        let local = local.unwrap_or(source);
        if local.is_ipv4() != ip.is_ipv4() || !self.interface.is_local(local) {
            return Err(ConnectError::BadAddress);
        }
        if self.all_connections() >= self.config.connections() {
            return Err(ConnectError::TooMany);
        }
        let local = match port {
            0 => self.choose_port(local, remote, claim),
            port => self.check_port(SocketAddr::new(local, port), remote, claim),
        };
        let local = local.ok_or(ConnectError::NoPort)?;
        let origin = Origin {
            local,
            remote,
            hash: self.conns.hash(&FourTuple::new(local, remote)),
            iss: self.entropy.initial_sequence(now, local, remote),
            ts_offset: self.entropy.timestamp_offset(local, remote),
            listener: None,
            options,
            path_mtu: self.path_mtu_to(now, ip),
        };
        let mut conn = Conn::open(now, &origin, &self.config);
        let rto = conn.rto(&self.config);
        conn.set_timer(TimerKind::Retransmit, now, rto);
        let id = self.enter(conn).ok_or(ConnectError::TooMany)?;
        self.conns.insert_flow(origin.hash, Target::Conn(id.index()));
        self.stats.active_opens = self.stats.active_opens.wrapping_add(1);
        self.schedule(now, id.index());
        Ok(id)
    }

    /// Chooses a source port (RFC 6056 §3.3.3): the search begins at a keyed hash of the destination and advances
    /// with each call. The flow of the port must lead back to this worker.
    fn choose_port(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr> {
        let offset = self.entropy.port_offset(local, remote);
        let (first, last) = (*self.config.source_ports.start(), *self.config.source_ports.end());
        let count = u32::from(last.saturating_sub(first)).saturating_add(1);
        for _ in 0..count {
            let step = offset.wrapping_add(self.next_port).checked_rem(count).unwrap_or(0);
            self.next_port = self.next_port.wrapping_add(1);
            let port = first.saturating_add(u16::try_from(step).unwrap_or(0));
            let end = SocketAddr::new(local, port);
            if !self.leads_here(end, remote) {
                continue;
            }
            if self.is_free(end, remote) && claim(port) {
                return Some(end);
            }
        }
        None
    }

    /// Returns the local end that the caller has asked for, unless it is in use.
    fn check_port(
        &self,
        end: SocketAddr,
        remote: SocketAddr,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr> {
        let free = !self.listeners.has(end) && self.is_free(end, remote);
        (free && claim(end.port())).then_some(end)
    }

    /// Returns true if no connection is between these ends, and they are not the same.
    fn is_free(&self, end: SocketAddr, remote: SocketAddr) -> bool {
        let flow = FourTuple::new(end, remote);
        end != remote && self.find(self.conns.hash(&flow), &flow).is_none()
    }

    /// Returns true if segments from `remote` to `local` arrive at this worker. Those of a connection of this host to
    /// itself do not pass the port.
    fn leads_here(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        let StackConfig { worker_index, worker_count, rss, .. } = &self.config;
        match rss.as_ref().filter(|_| !self.interface.is_local(remote.ip())) {
            Some(rss) => rss.queue(remote, local) == Some(*worker_index),
            None => {
                let worker = flow_hash(local, remote).checked_rem((*worker_count).max(1).into());
                worker == Some((*worker_index).into())
            }
        }
    }

    /// Queues a payload, to be sent as one segment: it is never merged with another, is split only if the peer's
    /// window or a smaller path MTU requires it, and is retransmitted from the same memory. The buffer must hold
    /// only the payload, with [`HEADROOM`](crate::HEADROOM) before it, and at most the larger of [`Self::emss`] and
    /// [`SEND_LEAST`] bytes. A payload made before the path MTU decreased, of up to [`Self::payload_max`] bytes, is
    /// accepted, too, and split. An empty payload is ignored.
    pub fn send(&mut self, now: Instant, conn: ConnId, payload: B) -> Result<(), SendError<B>> {
        let data_nodes = self.data_nodes();
        // A little more than `send_capacity` returns, which decreases as it is used.
        let free = data_nodes.saturating_add(16);
        let Self { conns, tx, rx, memory, accounts, stats, config, paths, .. } = self;
        let Some(block) = conns.get_mut(conn) else { return Err(SendError::NotConnected(payload)) };
        if !block.state.can_send() || block.snd.fin_queued {
            return Err(SendError::NotConnected(payload));
        }
        let len = match u16::try_from(payload.bytes().len()) {
            Ok(0) => return Ok(()),
            Ok(len) if len <= block.snd.emss || usize::from(len) <= block.payload_max(config) => len,
            _ => return Err(SendError::TooLong(payload)),
        };
        if !block.has_room_for(config, free, len) || data_nodes == 0 {
            block.snd.refused = true;
            if data_nodes == 0 {
                self.pool_wait.push(&mut self.conns, conn.index());
            }
            return Err(SendError::Full(payload));
        }
        // The payload is in the caches now; other segments may evict it before it is sent.
        // Nobody verifies the checksum of a looped segment.
        let sum = (!config.tx_checksum_offload)
            .then(|| if block.flow.is_looped() { 0 } else { B::sum(payload.bytes()).fold() });
        block
            .enqueue(&mut Cx { now, config, tx, rx, memory, accounts, stats, paths }, len, payload, sum)
            .map_err(SendError::Full)?;
        // Output is the only work that can follow.
        self.output.push_block(block, conn.index());
        Ok(())
    }

    /// Appends `len` bytes, which `build` writes, to the last queued segment. Returns `false`, changing nothing, if
    /// a part of that segment was sent already or there is no room in the segment, its buffer, or the queue.
    pub fn append(&mut self, conn: ConnId, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(block) = self.conns.get_mut(conn) else { return false };
        let Ok(short) = u16::try_from(len) else { return false };
        let Some(tail) = self.tx.get_mut(block.snd.queue.tail()) else { return false };
        let fits = tail.state == TxState::Ready
            && tail.transmissions == 0
            && !tail.fin
            && block.snd.nxt.at_or_before(tail.seq)
            && tail.len.checked_add(short).is_some_and(|sum| sum <= block.snd.emss)
            && u32::from(short) <= block.append_room(&self.config);
        let Some(space) = tail.buf.as_mut().filter(|_| fits).and_then(|buf| buf.append(len)) else {
            return false;
        };
        build(space);
        block.snd.queue.grow_tail(&mut self.tx, short);
        block.snd.end += u32::from(short);
        true
    }

    /// Marks all queued data as urgent (RFC 9293 §3.8.5). Returns `false` if nothing is queued. "New applications
    /// SHOULD NOT employ" it.
    pub fn mark_urgent(&mut self, conn: ConnId) -> bool {
        self.conns.get_mut(conn).is_some_and(Conn::mark_urgent)
    }

    /// Returns the bytes that [`Self::send`] accepts now: 0 while the connection is not established or is closing.
    pub fn send_capacity(&self, conn: ConnId) -> usize {
        let free = self.data_nodes();
        let room = self.conns.get(conn).map_or(0, |conn| conn.send_room(&self.config, free));
        if free == 0 { 0 } else { usize::try_from(room).unwrap_or(0) }
    }

    /// Returns the congestion window, bytes; 0 if the connection does not exist.
    #[inline]
    pub fn cwnd(&self, conn: ConnId) -> usize {
        self.conns.get(conn).map_or(0, |conn| conn.window.cwnd as usize)
    }

    /// Returns true if segments are queued that the next [`Self::poll_transmit`] may send: an application that first
    /// lets them go queues more while the peer already receives.
    #[inline]
    pub fn may_send_queued(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some_and(Conn::may_send_queued)
    }

    /// Requests one [`Event::Writable`](crate::Event::Writable) when [`Self::send_capacity`] reaches a quarter of
    /// the send buffer and a full segment; if it has already, the next [`Self::poll_event`] returns it.
    pub fn notify_writable(&mut self, conn: ConnId) {
        let pool_is_full = self.data_nodes() == 0;
        let Some(block) = self.conns.get_mut(conn) else { return };
        block.snd.refused = true;
        if pool_is_full {
            self.pool_wait.push(&mut self.conns, conn.index());
            return;
        }
        self.with_conn(self.now, conn.index(), |conn, cx| conn.note_room(cx));
    }

    /// Returns the other end of a connection between two addresses of this interface; `None` if this stack does not
    /// have it, or its handshake is not complete.
    pub fn other_end(&self, conn: ConnId) -> Option<ConnId> {
        let block = self.conns.get(conn)?;
        let flow = FourTuple::new(block.remote(), block.local());
        self.conns.id(self.conns.find_conn(self.conns.hash(&flow), &flow)?)
    }

    /// Returns true if the application of connection `to`, the other end, has consumed all that was queued on `from`.
    pub fn is_consumed(&self, from: ConnId, to: ConnId) -> bool {
        let (Some(from), Some(to)) = (self.conns.get(from), self.conns.get(to)) else { return false };
        from.snd.end == to.rcv.nxt && to.rcv.unread == 0
    }

    /// Returns the effective send MSS, the payload of a full segment, bytes; 0 for a connection that is gone.
    pub fn emss(&self, conn: ConnId) -> usize {
        self.conns.get(conn).map_or(0, |conn| usize::from(conn.snd.emss))
    }

    /// Returns the longest payload that [`Self::send`] accepts, bytes: that of a full segment on a path as wide as
    /// the link, at least [`SEND_LEAST`]; 0 for a connection that is gone. It does not change.
    pub fn payload_max(&self, conn: ConnId) -> usize {
        self.conns.get(conn).map_or(0, |conn| conn.payload_max(&self.config))
    }

    /// Notes that the application has consumed `bytes` of the data that [`Event::Data`](crate::Event::Data)
    /// delivered: the receive window opens by them.
    pub fn consumed(&mut self, conn: ConnId, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Self { conns, tx, rx, memory, accounts, stats, config, paths, now, .. } = self;
        let Some(block) = conns.get_mut(conn) else { return };
        let owed = block.pending.has(Pending::Ack);
        block.on_consumed(&mut Cx { now: *now, config, tx, rx, memory, accounts, stats, paths }, bytes);
        // An acknowledgment that opens the window is the only work that can follow.
        if block.pending.has(Pending::Ack) && !owed {
            self.output.push_block(block, conn.index());
        }
    }

    /// True if the pool of packet buffers had little more left, when last observed, than the reserve for
    /// acknowledgments and reception.
    pub fn pool_is_short(&self) -> bool {
        self.memory.budget.pool_is_short()
    }

    /// Declares the number of packet buffers of a connection's delivered segments that the application retains. It
    /// must be called after each change, between the events of two connections rather than among those of one.
    /// Returns `false` if the connection, its listener, its source or all connections together would exceed their
    /// limit: the application must then copy what it needs, or end the connection, and declare the new number. A
    /// decrease is never refused.
    pub fn retain(&mut self, conn: ConnId, buffers: u32) -> bool {
        let Self { conns, memory, accounts, stats, retaining, app_retained, .. } = self;
        let Some(block) = conns.get_mut(conn).filter(|block| block.app_retained != buffers) else {
            return true;
        };
        let (ids, before) = (block.accounts(), block.retained());
        let after = before.saturating_sub(block.app_retained).saturating_add(buffers);
        if after > before && !memory.budget.allows(after, accounts.get(ids)) {
            stats.keep_refused = stats.keep_refused.wrapping_add(1);
            return false;
        }
        *app_retained = app_retained.saturating_sub(block.app_retained).saturating_add(buffers);
        block.app_retained = buffers;
        memory.budget.change(before, after);
        accounts.change_buffers(ids, before, after);
        if buffers > 0 {
            retaining.push_block(block, conn.index());
        }
        true
    }

    /// Offers out-of-order segments to the application, right after
    /// [`Event::OutOfOrder`](crate::Event::OutOfOrder): `takes` gets the stream offset and the payload of each
    /// segment. If it returns true, the application has taken the payload: the frame is released, and
    /// [`Event::Data`](crate::Event::Data) will deliver only the length.
    ///
    /// A segment is offered at most once, and only before further events are polled or frames handled. Whether
    /// taken or not, it counts as received and is selectively acknowledged. Taken bytes may still be delivered with
    /// [`Event::Data`](crate::Event::Data): as part of a longer segment, or after held segments were given up.
    pub fn offer_out_of_order(&mut self, conn: ConnId, takes: &mut dyn FnMut(u64, &[u8]) -> bool) {
        let Self { conns, rx, stats, offerable, memory, accounts, .. } = self;
        let Some((_, first)) = offerable.take().filter(|(index, _)| *index == conn.index()) else { return };
        let Some(block) = conns.get_mut(conn) else { return };
        let (nxt, in_order) = (block.rcv.nxt, block.rcv.bytes);
        let (ids, before) = (block.accounts(), block.rcv.held.payloads());
        block.rcv.held.offer(rx, first, nxt, &mut |seq, bytes| {
            // The offset counts from the in-order bytes.
            let taken = takes(in_order.wrapping_add(u64::from(seq.distance_from(nxt))), bytes);
            stats.taken_segments = stats.taken_segments.wrapping_add(u64::from(taken));
            taken
        });
        let after = block.rcv.held.payloads();
        memory.budget.change(before, after);
        accounts.change_buffers(ids, before, after);
    }

    /// Closes our direction: a FIN follows the queued data. Data is received until the peer closes, too.
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        let Some(block) = self.conns.get(conn) else { return };
        if block.state == State::SynSent {
            // RFC 9293 §3.10.4: "Delete the TCB".
            self.abort_at(now, conn.index());
            return;
        }
        self.with_conn(now, conn.index(), |conn, cx| conn.close(cx));
    }

    /// Aborts the connection: sends a reset and drops queued and undelivered data.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        if self.conns.get(conn).is_some() {
            self.abort_at(now, conn.index());
        }
    }

    fn abort_at(&mut self, now: Instant, index: u32) {
        let Some(conn) = self.conns.at(index).filter(|conn| conn.state != State::Closed) else { return };
        if let Some(reset) = conn.reset_for_abort() {
            self.replies.push(reset);
        }
        self.with_conn(now, index, |conn, cx| conn.finish(cx, CloseReason::Aborted));
    }

    /// Iterates over the connections from slot `cursor` on. A listing may continue after the [`ConnId::index`]
    /// where it stopped, even if connections came or ended meanwhile.
    pub fn connections_from(&self, cursor: u32) -> impl Iterator<Item = ConnId> {
        (cursor..self.conns.places()).filter_map(|index| self.conns.id(index))
    }

    /// Returns the state of a connection, for display.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        let conn = self.conns.get(conn)?;
        Some(ConnInfo {
            state: conn.state,
            local: conn.local(),
            remote: conn.remote(),
            listener: conn.listener,
            soft_error: conn.snd.soft_error,
            attempts: conn.recovery.attempts,
            opened_at: conn.opened_at,
            heard_at: self.now - conn.heard_at.age(self.now),
            emss: conn.snd.emss,
            path_mtu: conn.path.mtu,
            peer_mss: conn.snd.peer_mss,
            congestion: conn.cc.name(),
            ecn: conn.ecn.state(),
            bbr: conn.cc.bbr_info(),
            pacing_rate: conn.pacer.rate(),
            delivery_rate: conn.rate.latest().map(|(rate, _)| rate),
            delivery_app_limited: conn.rate.latest().is_some_and(|(_, limited)| limited),
            cwnd: conn.window.cwnd,
            ssthresh: conn.window.ssthresh,
            in_flight: conn.snd.queue.in_flight(),
            send_queue_bytes: conn.snd.queue.bytes(),
            send_window: conn.snd.wnd,
            receive_window: conn.current_window(),
            unread_bytes: conn.rcv.unread,
            urgent_bytes: conn.urgent_bytes(&self.rx),
            held_bytes: conn.rcv.held.held_bytes(),
            held_segments: conn.rcv.held.held_segments(),
            srtt: conn.rtt.srtt(),
            rttvar: conn.rtt.rttvar(),
            min_rtt: conn.rtt.min_rtt(),
            rto: conn.rto(&self.config),
            sack: conn.negotiated.sack,
            timestamps: conn.negotiated.timestamps,
            send_window_scale: conn.negotiated.snd_wscale,
            receive_window_scale: conn.negotiated.rcv_wscale,
            reordering_seen: conn.recovery.rack.reordering_seen(),
            segments_in: conn.segments_in(),
            segments_out: conn.segments_out,
            bytes_in: conn.rcv.bytes,
            bytes_acked: conn.bytes_acked,
            segments_retransmitted: conn.counters.segments_retransmitted,
            bytes_retransmitted: conn.counters.bytes_retransmitted,
            sacked_bytes: conn.snd.queue.sacked(),
            lost_bytes: conn.snd.queue.lost(),
            timeouts: conn.counters.timeouts,
            recoveries: conn.counters.recoveries,
        })
    }
}
