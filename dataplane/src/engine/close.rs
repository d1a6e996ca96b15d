//! Closes connections on request of an operator. A worker calls it for `conn close`, one page per command.

use rdma::Memory;
use tcp_stack::{BufPool, CloseReason, ConnId, Instant};

use super::{ConnRow, Engine};

/// Most slots examined per call, so that a worker with many connections polls its ports between two calls.
const SLOTS_PER_CALL: u32 = 1024;

impl<P: BufPool, M: Memory> Engine<P, M> {
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
        self.stack.abort(now, conn);
        self.closed(conn, CloseReason::Aborted);
        self.apply_requests(now);
    }
}
