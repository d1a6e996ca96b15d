//! Admission of new connections: the limits, and the eviction of connections when a limit is reached.
//!
//! Three limits apply to a new connection: that of the table, of its listener and of its source. If one is reached,
//! the oldest connection under this limit whose [policy](EvictionPolicy) allows it is reset; without one the new
//! connection is refused. A mere SYN, which anybody can forge, evicts nothing while cookies are in use: it is
//! answered with a cookie, and room is made when the peer has proven its address.

use core::net::IpAddr;
use core::time::Duration;

use super::Stack;
use crate::accounts::{AccountIds, ConnectionLimits, Refused};
use crate::buf::Buf;
use crate::config::EvictionPolicy;
use crate::conn::Conn;
use crate::error::CloseReason;
use crate::event::{ConnId, Event, ListenerId};
use crate::iface::DropReason;
use crate::state::State;
use crate::time::Instant;

/// Bound of the search for a connection to evict, connections.
const SEARCH_STEPS_MAX: u32 = 64;
/// Bound of evicted connections whose event was not polled: more than the new connections of a burst.
pub(super) const EVICTED_MAX: usize = 256;

/// The limit that a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit of the table.
    Table,
    /// The limit of its listener.
    Listener,
    /// The limit of its source.
    Source,
}

impl Full {
    /// Returns the reason for which the new connection's segment is dropped.
    pub(super) fn reason(self) -> DropReason {
        match self {
            Self::Table => DropReason::TcpTableFull,
            Self::Listener => DropReason::TcpListenerFull,
            Self::Source => DropReason::TcpSourceFull,
        }
    }
}

impl<B: Buf> Stack<B> {
    /// Sets the eviction policy of a connection; initially [`EvictionPolicy::Never`]. Connections are evicted in
    /// the order of these calls; those found busy move to the end.
    pub fn set_eviction_policy(&mut self, conn: ConnId, when: EvictionPolicy) {
        let Some(block) = self.conns.get_mut(conn) else { return };
        block.eviction_policy = when;
        if when != EvictionPolicy::Never {
            self.evictable.push_block(block, conn.index());
        }
    }

    /// Returns the limits of a listener and of a source.
    fn connection_limits(&mut self, id: ListenerId) -> ConnectionLimits {
        let listener =
            self.listeners.get_mut(id).map_or(u32::MAX, |listener| listener.options.connections_max);
        ConnectionLimits { listener, source: self.config.connections_per_source_max }
    }

    /// Checks the limits for one more connection from `remote` to a listener; the error names the one that it would
    /// exceed.
    pub(super) fn room_for(&mut self, id: ListenerId, remote: IpAddr) -> Result<(), Full> {
        let limits = self.connection_limits(id);
        match self.accounts.check(self.accounts.ids(Some(id), remote), limits) {
            Err(Refused::Listener) => Err(Full::Listener),
            Err(Refused::Source) => Err(Full::Source),
            Ok(()) if self.all_connections() >= self.config.connections() => Err(Full::Table),
            Ok(()) => Ok(()),
        }
    }

    /// Returns the connection to evict for a new one, if there is one.
    pub(super) fn connection_to_evict(
        &mut self,
        now: Instant,
        full: Full,
        newcomer: AccountIds,
    ) -> Option<u32> {
        if self.evicted.len() >= EVICTED_MAX {
            return None;
        }
        match full {
            Full::Table => self.first_evictable(now),
            Full::Listener => self.next_evictable(now, &|conn| conn.accounts().same_listener(newcomer)),
            Full::Source => self.next_evictable(now, &|conn| conn.accounts().same_source(newcomer)),
        }
    }

    /// Returns the first connection in the queue that may be evicted; busy ones before it move to the end.
    fn first_evictable(&mut self, now: Instant) -> Option<u32> {
        let least = self.config.tcp.give_way_after();
        for _ in 0..self.evictable.len().min(SEARCH_STEPS_MAX) {
            let index = self.evictable.first()?;
            let conn = self.conns.at(index).filter(|conn| conn.eviction_policy != EvictionPolicy::Never);
            if conn.is_some_and(|conn| conn.may_be_evicted(now, least)) {
                return Some(index);
            }
            let is_busy = conn.is_some();
            self.evictable.pop(&mut self.conns);
            if is_busy {
                self.evictable.push(&mut self.conns, index);
            }
        }
        None
    }

    /// Returns the next connection in the queue that `selects` accepts and that may be evicted. The search
    /// continues where the last one ended, so the connections of one peer are found within a few calls.
    fn next_evictable(&mut self, now: Instant, selects: &dyn Fn(&Conn) -> bool) -> Option<u32> {
        let (least, len) = (self.config.tcp.give_way_after(), self.evictable.len());
        for _ in 0..len.min(SEARCH_STEPS_MAX) {
            if self.searched >= len {
                self.searched = 0;
            }
            let index = self.evictable.nth(self.searched)?;
            let conn = self.conns.at(index).filter(|conn| conn.eviction_policy != EvictionPolicy::Never);
            if conn.is_some_and(|conn| selects(conn) && conn.may_be_evicted(now, least)) {
                return Some(index);
            }
            self.searched = self.searched.saturating_add(1);
        }
        None
    }

    /// Evicts a connection: resets it and frees its slot. The application gets [`Event::Closed`] before any event
    /// of a connection that takes the slot.
    pub(super) fn evict(&mut self, now: Instant, index: u32, full: Full) {
        let Some(conn) = self.conns.at(index) else { return };
        let id = conn.id_at(index);
        if let Some(reset) = conn.reset_for_abort() {
            self.replies.push(reset);
        }
        self.with_conn(now, index, |conn, cx| conn.finish(cx, CloseReason::Evicted));
        let counter = match full {
            Full::Table => &mut self.stats.evicted_table_full,
            Full::Listener => &mut self.stats.evicted_listener_full,
            Full::Source => &mut self.stats.evicted_source_full,
        };
        *counter = counter.wrapping_add(1);
        self.free(index);
        self.evicted.push_back(id);
    }

    /// Returns the event of the next evicted connection.
    #[cold]
    pub(super) fn next_evicted(&mut self) -> Option<Event<B>> {
        let conn = self.evicted.pop_front()?;
        Some(Event::Closed { conn, reason: CloseReason::Evicted })
    }
}

impl Conn {
    /// True if its policy allows eviction now and its protected time has passed.
    fn may_be_evicted(&self, now: Instant, least: Duration) -> bool {
        let silent = match self.eviction_policy {
            EvictionPolicy::Never => return false,
            EvictionPolicy::WhenIdle => self.heard_at.age(now),
            EvictionPolicy::Anytime => now.saturating_since(self.opened_at),
        };
        self.state != State::Closed && silent >= least
    }
}
