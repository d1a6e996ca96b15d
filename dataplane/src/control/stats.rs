//! Counters of the control socket: `server` and `connection` count, `admin` reports.

use std::cell::Cell;
use std::rc::Rc;

iwarp_counters::counters! {
    /// The control socket's counters.
    pub struct ControlStats {
        /// Clients that were admitted.
        clients,
        /// Clients refused: not root, not the daemon's user, not in the socket's group.
        refused_not_permitted,
        /// Clients refused: as many as configured were connected.
        refused_too_many,
        /// Connections that could not be accepted.
        accept_errors,
        /// Requests that were well formed.
        requests,
        /// Well-formed requests that were refused by their method.
        requests_refused,
        /// Descriptors handed out with replies.
        descriptors_sent,
        /// Lines refused: not JSON.
        bad_not_json,
        /// Lines refused: JSON, but not a JSON-RPC 2.0 request.
        bad_not_a_request,
        /// Lines refused: longer than the bound; skipped up to their end.
        bad_too_long,
        /// Lines refused: the client closed before it ended them.
        bad_unfinished,
        /// Clients disconnected: no whole line within the idle timeout.
        closed_idle,
        /// Clients disconnected: they did not read their reply.
        closed_slow_reader,
        /// Clients lost: the connection failed.
        closed_error,
        /// Clients that closed the connection.
        closed_by_peer,
    }
}

/// The counters, shared between the server and its handler on one thread.
#[derive(Clone, Debug, Default)]
pub struct SharedStats(Rc<Cell<ControlStats>>);

impl SharedStats {
    /// Returns the current counters.
    pub fn read(&self) -> ControlStats {
        self.0.get()
    }

    /// Increments the counter that `counter` selects.
    pub(super) fn count(&self, counter: impl FnOnce(&mut ControlStats) -> &mut u64) {
        let mut stats = self.0.get();
        let counter = counter(&mut stats);
        *counter = counter.wrapping_add(1);
        self.0.set(stats);
    }
}
