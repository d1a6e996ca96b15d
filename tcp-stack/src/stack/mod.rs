//! The stack: connects the interface with TCP, and is the application's API.

mod admission;
mod api;
#[cfg(any(test, feature = "testutil"))]
mod audit;
mod input;
mod output;
mod passive;
mod prefetch;
mod replies;

mod segmentation;
mod train;

pub use api::SEND_LEAST;

use alloc::collections::VecDeque;
use core::array;

use crate::accounts::{Accounts, ConnectionLimits};
use crate::budget::ReceiveBudget;
use crate::buf::Buf;
use crate::config::StackConfig;
use crate::conn::{
    Conn, ConnTable, Cookies, Cx, HalfOpenTable, IndexQueue, Listeners, Notice, Pending, QueueKind,
    ReceiveMemory, RxNode, Target, TimeWait, TimeWaitTable, TxNode,
};
use crate::entropy::Entropy;
use crate::error::CloseReason;
use crate::event::{ConnId, Event, Segment};
use crate::four_tuple::FourTuple;
use crate::iface::{FragmentLimits, Interface, InterfaceConfig, PathMtuCache};
use crate::pool::Pool;
use crate::state::State;
use crate::stats::{StackStats, TcpStats};
use crate::time::{Duration, Instant};
use crate::timer::Wheel;
use replies::Replies;

/// Bound of timer expirations and wheel movements per call of [`Stack::handle_timeouts`].
const TIMER_BUDGET: u32 = 512;
/// Consecutive timeouts that cast doubt on the next hop (RFC 9293 §3.8.3: "R1 SHOULD correspond to at least 3
/// retransmissions").
const R1: u8 = 3;
/// No limit on the connections of a listener and of a source.
const UNLIMITED: ConnectionLimits = ConnectionLimits { listener: u32::MAX, source: u32::MAX };
/// Bound of TIME-WAIT records that expire per call.
const TIME_WAIT_BUDGET: u32 = 64;

/// TCP/IP for one worker and one port.
///
/// Methods are of four kinds: *handle* takes frames or the passing of time; *poll* returns frames and events;
/// commands act on a connection or listener; the others only read. None blocks, reads a clock, or allocates once
/// the stack is made. One poll iteration of a worker calls, in this order,
///
/// 1. [`handle_frames`](Self::handle_frames) with a burst from the port,
/// 2. [`poll_event`](Self::poll_event) until there is none, acting on each,
/// 3. [`handle_timeouts`](Self::handle_timeouts),
/// 4. [`poll_transmit`](Self::poll_transmit) with as much as the port takes.
///
/// A [`ConnId`] whose connection is gone is refused or ignored everywhere.
#[derive(Debug)]
pub struct Stack<B: Buf> {
    config: StackConfig,
    interface: Interface<B>,
    conns: ConnTable,
    half_open: HalfOpenTable,
    accounts: Accounts,
    cookies: Cookies,
    time_wait: TimeWaitTable,
    listeners: Listeners,
    tx: Pool<TxNode<B>>,
    rx: Pool<RxNode<B>>,
    memory: ReceiveMemory,
    wheel: Wheel,
    events: IndexQueue,
    output: IndexQueue,
    neighbor_wait: IndexQueue,
    pool_wait: IndexQueue,
    /// Connections that retain received data, longest first.
    retaining: IndexQueue,
    /// Packet buffers that the application retains, of all connections.
    app_retained: u32,
    /// Connections that may be evicted, in this order.
    evictable: IndexQueue,
    /// Position in `evictable` where the next search for a connection of one listener or source continues.
    searched: u32,
    /// Evicted connections whose event was not polled yet.
    evicted: VecDeque<ConnId>,
    /// [`Interface::resolutions`] when `neighbor_wait` was last woken.
    resolutions: u32,
    replies: Replies,
    entropy: Entropy,
    stats: TcpStats,
    paths: PathMtuCache,
    /// Slot and flow of the connection that the last segment belonged to, while its flow is in the table:
    /// consecutive segments often belong to one connection.
    last: Option<(u32, FourTuple)>,
    /// Slot of the connection of the last [`Event::OutOfOrder`], and the first of its segments. Valid until the
    /// next event or the next frames.
    offerable: Option<(u32, u32)>,
    /// Header prediction and trains are in use; off only in tests that compare both paths.
    predicts: bool,
    /// Number of slots from which on bursts are prefetched; changed only in tests that compare both paths.
    prefetch_from: u32,
    /// Advances the search for a source port (RFC 6056 §3.3.3).
    next_port: u32,
    /// The time passed to the last call that had one.
    now: Instant,
}

impl<B: Buf> Stack<B> {
    /// Makes a stack and reserves all its memory. `seed` must be secret and random: sequence numbers, ports and
    /// hash keys derive from it. The same seed and the same calls give the same frames.
    pub fn new(config: StackConfig, seed: [u8; 32]) -> Self {
        let mut entropy = Entropy::new(seed);
        let mut key = || (entropy.random(), entropy.random());
        let [flow_key, neighbor_key, cookie_key, path_key, reply_key, account_key] =
            array::from_fn(|_| key());
        let mut interface = Interface::new(
            InterfaceConfig {
                mac: config.mac,
                mtu: config.mtu,
                vlan: config.vlan,
                ipv4: config.ipv4,
                ipv4_gateway: config.ipv4_gateway,
                ipv6: config.ipv6,
                ipv6_link_local: config.ipv6_link_local,
                ipv6_gateway: config.ipv6_gateway,
                primary: config.primary && config.shared_ports.is_none(),
                tx_checksum_offload: config.tx_checksum_offload,
                tx_ip_checksum_offload: config.tx_checksum_offload && config.tx_ip_checksum_offload,
                neighbors_max: config.neighbors_max,
                hop_limit: config.hop_limit,
                fragments: FragmentLimits {
                    datagrams_max: config.fragments_datagrams_max,
                    bytes_max: config.fragments_bytes_max,
                    timeout: Duration::from_millis(config.fragments_timeout_ms.into()),
                },
            },
            neighbor_key,
        );
        for (ip, mac) in &config.neighbors {
            interface.add_static_neighbor(*ip, *mac);
        }
        let connections = config.connections();
        Self {
            conns: ConnTable::new(connections, flow_key),
            half_open: HalfOpenTable::new(config.half_open()),
            accounts: Accounts::new(connections, account_key),
            cookies: Cookies::new(cookie_key),
            time_wait: TimeWaitTable::new(connections, &config.tcp),
            listeners: Listeners::new(),
            tx: Pool::new(config.buffers_max.saturating_add(config.kept_nodes())),
            rx: Pool::new(config.buffers_max),
            memory: ReceiveMemory::new(
                config.receive_memory_bytes,
                ReceiveBudget::new(config.received_buffers(), config.buffers_max),
            ),
            wheel: Wheel::new(connections),
            events: IndexQueue::new(QueueKind::Events, connections),
            output: IndexQueue::new(QueueKind::Output, connections),
            neighbor_wait: IndexQueue::new(QueueKind::Neighbor, connections),
            pool_wait: IndexQueue::new(QueueKind::PoolRoom, connections),
            retaining: IndexQueue::new(QueueKind::Retaining, connections),
            app_retained: 0,
            evictable: IndexQueue::new(QueueKind::Evictable, connections),
            searched: 0,
            evicted: VecDeque::with_capacity(admission::EVICTED_MAX),
            resolutions: interface.resolutions(),
            replies: Replies::new(reply_key),
            entropy,
            stats: TcpStats::default(),
            paths: PathMtuCache::new(config.path_mtu_entries_max, config.tcp.path_mtu_age(), path_key),
            last: None,
            offerable: None,
            predicts: true,
            prefetch_from: prefetch::CONNECTIONS_MIN,
            next_port: 0,
            now: Instant::ZERO,
            interface,
            config,
        }
    }

    /// Adds a connection to the table and its accounts; `None` if the table is full.
    fn enter(&mut self, mut conn: Conn) -> Option<ConnId> {
        conn.source = self.accounts.source_of(conn.remote().ip());
        let ids = conn.accounts();
        let id = self.conns.insert(conn).ok()?;
        // The limits were checked before.
        let _ = self.accounts.open(ids, UNLIMITED);
        Some(id)
    }

    /// Applies `act` to the connection in a slot, then schedules the work that follows.
    #[inline]
    fn with_conn<R>(
        &mut self,
        now: Instant,
        index: u32,
        act: impl FnOnce(&mut Conn, &mut Cx<'_, B>) -> R,
    ) -> Option<R> {
        let Self { conns, tx, rx, memory, accounts, stats, config, paths, .. } = self;
        let conn = conns.at_mut(index)?;
        let result = act(conn, &mut Cx { now, config, tx, rx, memory, accounts, stats, paths });
        self.schedule(now, index);
        Some(result)
    }

    /// Adds a connection that changed to the queues and timers that it needs.
    #[inline]
    fn schedule(&mut self, now: Instant, index: u32) {
        let Some(conn) = self.conns.at_mut(index) else { return };
        if conn.counted != Some(conn.state) {
            return self.schedule_state_change(now, index);
        }
        if conn.has_events() {
            self.events.push_block(conn, index);
        }
        if conn.wants_output() {
            self.output.push_block(conn, index);
        }
        if let Some(deadline) = conn.timers.take_deadline_to_arm(now) {
            self.wheel.arm_no_later(index, deadline);
        }
        if !conn.rcv.held.has_no_gap() {
            self.retaining.push_block(conn, index);
        }
    }

    /// Same as [`Self::schedule`], after a change of state.
    #[cold]
    fn schedule_state_change(&mut self, now: Instant, index: u32) {
        let Some(conn) = self.conns.at_mut(index) else { return };
        if conn.state == State::Closed && !conn.unlinked {
            self.unlink_flow(now, index);
        }
        self.conns.count_state(index);
        if self.conns.at(index).is_some() {
            self.schedule(now, index);
        }
    }

    /// Removes the flow of a connection that has ended; a TIME-WAIT record may take its place.
    #[cold]
    fn unlink_flow(&mut self, now: Instant, index: u32) {
        self.wheel.cancel(index);
        self.last = self.last.filter(|(last, _)| *last != index);
        let Some(conn) = self.conns.at_mut(index) else { return };
        conn.unlinked = true;
        let (hash, announced) = (conn.hash, conn.announced);
        let record = conn.ends_in_time_wait.then(|| TimeWait::of(conn));
        let owes_ack = conn.pending.take(Pending::Ack);
        self.conns.remove_flow(hash, Target::Conn(index));
        if let Some(record) = record {
            if self.time_wait.is_full()
                && let Some((oldest, _)) = self.time_wait.first()
            {
                self.remove_time_wait(oldest);
                self.stats.time_wait_evicted = self.stats.time_wait_evicted.wrapping_add(1);
            }
            if owes_ack {
                self.replies.push(record.acknowledgment(now));
            }
            if let Some(at) = self.time_wait.insert(now, record) {
                self.conns.insert_flow(hash, Target::TimeWait(at));
            }
        }
        if !announced {
            self.free(index);
        }
    }

    /// Frees the slot of a connection that has ended and whose last event was polled.
    fn free(&mut self, index: u32) {
        let Self { conns, accounts, memory, rx, tx, app_retained, .. } = self;
        if let Some(conn) = conns.remove(index) {
            let (ids, retained) = (conn.accounts(), conn.retained());
            memory.budget.change(retained, 0);
            accounts.change_buffers(ids, retained, 0);
            accounts.close(ids);
            *app_retained = app_retained.saturating_sub(conn.app_retained);
            conn.app_retained = 0;
            memory.give_back(conn.rcv.unread);
            conn.rcv.held.clear(rx);
            while conn.snd.queue.pop_head(tx).is_some() {}
        }
    }

    fn remove_time_wait(&mut self, at: u32) {
        if let Some(record) = self.time_wait.remove(at) {
            self.conns.remove_flow(record.hash, Target::TimeWait(at));
        }
    }

    /// Returns the next event. All pending events of one connection are returned one after the other.
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        self.offerable = None;
        loop {
            let Some(index) = self.events.first() else { return self.next_evicted() };
            if self.conns.at(index).is_some_and(Conn::has_events) {
                return self.next_event(index);
            }
            self.events.pop(&mut self.conns);
        }
    }

    /// Returns the next event of a connection that [has one](Conn::has_events).
    #[inline]
    fn next_event(&mut self, index: u32) -> Option<Event<B>> {
        let conn = self.conns.at_mut(index)?;
        let conn_id = conn.id_at(index);
        let notices = &mut conn.notices;
        if notices.take(Notice::Opened) {
            if !self.evicted.is_empty() {
                // The slot may have been that of an evicted connection, whose event must come first.
                notices.add(Notice::Opened);
                return self.next_evicted();
            }
            return Some(match conn.listener {
                Some(listener) => Event::Accepted { conn: conn_id, listener },
                None => Event::Connected { conn: conn_id },
            });
        }
        if conn.rcv.held.has_unoffered() {
            self.offerable = Some((index, conn.rcv.held.take_unoffered()));
            return Some(Event::OutOfOrder { conn: conn_id });
        }
        if notices.take(Notice::Urgent) {
            return Some(Event::Urgent { conn: conn_id, end: conn.urgent_end() });
        }
        if let Some(payload) = conn.rcv.held.pop_ready(&mut self.rx) {
            let offset = conn.rcv.offset_of(payload.seq);
            let segment = Segment::new(payload.buf, payload.range.start.into()..payload.range.end.into());
            return Some(Event::Data { conn: conn_id, offset, segment });
        }
        if notices.take(Notice::PeerClosed) {
            return Some(Event::PeerClosed { conn: conn_id });
        }
        if notices.take(Notice::Writable) {
            return Some(Event::Writable { conn: conn_id });
        }
        if notices.take(Notice::EmssChanged) {
            return Some(Event::EmssChanged { conn: conn_id, emss: usize::from(conn.snd.emss) });
        }
        if notices.take(Notice::Reclaim) {
            return Some(Event::Reclaim { conn: conn_id });
        }
        let reason: CloseReason = conn.ended.take()?;
        self.free(index);
        Some(Event::Closed { conn: conn_id, reason })
    }

    /// Handles timers that have expired at `now`: retransmissions, probes, delayed acknowledgments, neighbors,
    /// TIME-WAIT. The work per call is bounded; if more is due, [`Self::next_deadline`] is not in the future.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.now = now;
        self.interface.handle_timeouts(now);
        for _ in 0..TIME_WAIT_BUDGET {
            match self.time_wait.first() {
                Some((oldest, ends_at)) if ends_at <= now => self.remove_time_wait(oldest),
                _ => break,
            }
        }
        let mut budget = TIMER_BUDGET;
        while let Some(index) = self.half_open.pop_expired(now, &mut budget) {
            self.on_half_open_timeout(now, index);
        }
        while let Some(index) = self.wheel.pop_expired(now, &mut budget) {
            let others = self.pop_others(now, &mut budget);
            self.on_timers(now, index);
            for index in others {
                self.on_timers(now, index);
            }
        }
    }

    /// Handles the expired timers of a connection.
    fn on_timers(&mut self, now: Instant, index: u32) {
        let unanswered = self.with_conn(now, index, |conn, cx| {
            let before = conn.recovery.attempts;
            while let Some(kind) = conn.timers.take_expired(&conn.deadlines, now) {
                conn.on_timer(cx, kind);
            }
            (conn.recovery.attempts > before && conn.recovery.attempts >= R1).then_some(conn.remote().ip())
        });
        if let Some(remote) = unanswered.flatten() {
            // RFC 9293 §3.8.3: "pass negative advice (see Section 3.3.1.4 of [19]) to the IP layer".
            self.interface.suspect(now, remote);
        }
    }

    /// Returns the time at which [`Self::handle_timeouts`] must be called: not later than the earliest timer,
    /// possibly earlier; `None` if no timer runs.
    pub fn next_deadline(&self) -> Option<Instant> {
        let time_wait = self.time_wait.first().map(|(_, ends_at)| ends_at);
        let timers = [self.wheel.next_deadline(), self.half_open.next_deadline()];
        [self.interface.next_deadline(), time_wait].into_iter().chain(timers).flatten().min()
    }

    /// Returns all counters and gauges.
    pub fn stats(&self) -> StackStats {
        StackStats {
            interface: self.interface.stats(),
            tcp: self.stats,
            drops: *self.interface.drops(),
            connections: self.all_connections(),
            states: self.conns.states().plus(State::SynReceived, self.half_open.used()),
            half_open_now: self.half_open.used(),
            time_wait_now: self.time_wait.used(),
            send_buffers: self.tx.used(),
            receive_buffers: self.rx.used(),
            retained_buffers: self.memory.budget.used(),
            retained_limit: self.memory.budget.limit(),
            kept_buffers: self.app_retained,
            unread_bytes: self.memory.used(),
        }
    }
}

#[cfg(test)]
mod tests;
