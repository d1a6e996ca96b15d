//! Closes connections on request of an operator. A worker calls it for `conn close`, one page per command.

use ipnet::IpNet;
use rdma::Memory;
use tcp_stack::{CloseReason, ConnId, Instant};

use super::{ConnRow, Engine};
use crate::transport::Transport;

/// Most slots examined per call, so that a worker with many connections polls its ports between two calls.
const SLOTS_PER_CALL: u32 = 1024;

/// Selects connections to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnSelector {
    /// The connection with a port index, a slab index and the low bits of a generation.
    One {
        /// Index of the port.
        port: usize,
        /// Slab index of the connection.
        index: u32,
        /// The [low bits](Self::GENERATION_MASK) of the connection's generation.
        generation: u32,
    },
    /// Every connection whose peer is in this prefix.
    Peer(IpNet),
    /// Every connection that a listener on this TCP port accepted.
    Listener(u16),
}

impl ConnSelector {
    /// Bits of a generation that a connection's number carries.
    pub const GENERATION_MASK: u32 = 0xf_ffff;

    /// Returns true if the connection `row` of port `of_port` is selected.
    pub fn has(&self, of_port: usize, row: &ConnRow) -> bool {
        match *self {
            Self::One { port, index, generation } => {
                (port, index) == (of_port, row.id.index())
                    && generation == row.id.generation() & Self::GENERATION_MASK
            }
            Self::Peer(prefix) => prefix.contains(&row.tcp.remote.ip()),
            Self::Listener(tcp_port) => row.tcp.listener.is_some() && row.tcp.local.port() == tcp_port,
        }
    }
}

impl<T: Transport, M: Memory> Engine<T, M> {
    /// Resets the connections that `is_chosen` selects, from slab index `from` on and at most `max`, and passes each to
    /// `closed`. Their grants are revoked when this returns. Returns the index to continue at, `None` at the end.
    pub fn conns_close(
        &mut self,
        now: Instant,
        from: u32,
        max: usize,
        is_chosen: &dyn Fn(&ConnRow) -> bool,
        closed: &mut dyn FnMut(ConnRow),
    ) -> Option<u32> {
        let end = from.saturating_add(SLOTS_PER_CALL);
        let mut left = max;
        for index in from..end.min(self.conns.capacity()) {
            let row = self.conns.at(index).and_then(|id| self.conn(id));
            let Some(row) = row.filter(is_chosen) else { continue };
            let Some(rest) = left.checked_sub(1) else { return Some(index) };
            left = rest;
            self.close_now(now, row.id);
            closed(row);
        }
        (end < self.conns.capacity()).then_some(end)
    }

    /// Resets a connection and ends its service at once; the stack's `Closed` event then finds nothing left.
    fn close_now(&mut self, now: Instant, conn: ConnId) {
        self.transport.abort(now, conn);
        self.closed(conn, CloseReason::Aborted);
        self.apply_requests(now);
    }
}
