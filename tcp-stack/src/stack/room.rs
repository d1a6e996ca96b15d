//! Room for newcomers: how many connections there may be, and which of them give way when a limit is reached.
//!
//! Three limits hold for a new connection: that of the table, that of its listener and that of its source. Where one is
//! reached, a connection that [may give way](GivesWay) is reset, the oldest of those that the limit is about; without one
//! the newcomer is turned away. A SYN alone, which anybody can send in another's name, ends no connection where cookies
//! are in use: it is answered with one, and room is made when the peer has shown that it exists.

use core::net::IpAddr;
use core::time::Duration;

use super::Stack;
use crate::accounts::{AccountIds, ConnectionLimits, Refused};
use crate::buf::Buf;
use crate::config::GivesWay;
use crate::conn::Conn;
use crate::error::CloseReason;
use crate::event::{ConnId, Event, ListenerId};
use crate::iface::DropReason;
use crate::state::State;
use crate::time::Instant;

/// Connections that are looked at for one newcomer, at most.
const SEARCH_STEPS_MAX: u32 = 64;
/// Connections that can have given way and not been describe of: more than a burst brings newcomers.
pub(super) const EVICTED_MAX: usize = 256;

/// The limit that a newcomer would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// That of the table.
    Table,
    /// Its listener's.
    Listener,
    /// Its source's.
    Source,
}

impl Full {
    /// Why the newcomer's segment is dropped.
    pub(super) fn reason(self) -> DropReason {
        match self {
            Self::Table => DropReason::TcpTableFull,
            Self::Listener => DropReason::TcpListenerFull,
            Self::Source => DropReason::TcpSourceFull,
        }
    }
}

impl<B: Buf> Stack<B> {
    /// Says when a connection gives way to newcomers: never, unless it is said. Connections give way in the order in which
    /// this was said of them; those that are found busy go to the end.
    pub fn give_way(&mut self, conn: ConnId, when: GivesWay) {
        let Some(block) = self.conns.get_mut(conn) else { return };
        block.gives_way = when;
        if when != GivesWay::Never {
            self.giving_way.push_block(block, conn.index());
        }
    }

    /// How many connections a listener and a source may have.
    fn connection_limits(&mut self, port: u16) -> ConnectionLimits {
        let listener = self.listeners.find(port).map_or(u32::MAX, |(_, it)| it.options.connections_max);
        ConnectionLimits { listener, source: self.config.connections_per_source_max }
    }

    /// The limit that one connection more of a listener, from an address, would exceed.
    pub(super) fn room_for(&mut self, (id, port): (ListenerId, u16), remote: IpAddr) -> Result<(), Full> {
        let limits = self.connection_limits(port);
        match self.accounts.check(self.accounts.ids(Some(id), remote), limits) {
            Err(Refused::Listener) => Err(Full::Listener),
            Err(Refused::Source) => Err(Full::Source),
            Ok(()) if self.all_connections() >= self.config.connections() => Err(Full::Table),
            Ok(()) => Ok(()),
        }
    }

    /// The connection that gives way to a newcomer for which there is no room, if there is one.
    pub(super) fn giving_way(&mut self, now: Instant, full: Full, newcomer: AccountIds) -> Option<u32> {
        if self.evicted.len() >= EVICTED_MAX {
            return None;
        }
        match full {
            Full::Table => self.first_giving_way(now),
            Full::Listener => self.next_giving_way(now, &|conn| conn.accounts().same_listener(newcomer)),
            Full::Source => self.next_giving_way(now, &|conn| conn.accounts().same_source(newcomer)),
        }
    }

    /// The first in line. Those before it that are busy go to the end of the line.
    fn first_giving_way(&mut self, now: Instant) -> Option<u32> {
        let least = self.config.tcp.give_way_after();
        for _ in 0..self.giving_way.len().min(SEARCH_STEPS_MAX) {
            let index = self.giving_way.first()?;
            let conn = self.conns.at(index).filter(|conn| conn.gives_way != GivesWay::Never);
            if conn.is_some_and(|conn| conn.has_had_time(now, least)) {
                return Some(index);
            }
            let is_busy = conn.is_some();
            self.giving_way.pop(&mut self.conns);
            if is_busy {
                self.giving_way.push(&mut self.conns, index);
            }
        }
        None
    }

    /// The next of those that `is_meant` says, in a search through the line that goes on where it ended before: whoever has as
    /// many connections as a limit allows is found soon.
    fn next_giving_way(&mut self, now: Instant, is_meant: &dyn Fn(&Conn) -> bool) -> Option<u32> {
        let (least, len) = (self.config.tcp.give_way_after(), self.giving_way.len());
        for _ in 0..len.min(SEARCH_STEPS_MAX) {
            if self.searched >= len {
                self.searched = 0;
            }
            let index = self.giving_way.nth(self.searched)?;
            let conn = self.conns.at(index).filter(|conn| conn.gives_way != GivesWay::Never);
            if conn.is_some_and(|conn| is_meant(conn) && conn.has_had_time(now, least)) {
                return Some(index);
            }
            self.searched = self.searched.saturating_add(1);
        }
        None
    }

    /// Resets a connection that gives way. Its place is free at once; the application is describe before it is describe of any
    /// connection that takes it.
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

    /// Tells of a connection that has given way.
    #[cold]
    pub(super) fn next_evicted(&mut self) -> Option<Event<B>> {
        let conn = self.evicted.pop_front()?;
        Some(Event::Closed { conn, reason: CloseReason::Evicted })
    }
}

impl Conn {
    /// True if it may give way and has been left alone for as long as every connection is.
    fn has_had_time(&self, now: Instant, least: Duration) -> bool {
        let silent = match self.gives_way {
            GivesWay::Never => return false,
            GivesWay::WhenIdle => self.heard_at.age(now),
            GivesWay::Anytime => now.saturating_since(self.opened_at),
        };
        self.state != State::Closed && silent >= least
    }
}
