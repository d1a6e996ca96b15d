//! The time limit of connections to peers that do not stand yet.

use tcp_stack::{CloseReason, ConnId, Instant};

use super::KernelTcp;
use super::conn::Stage;

impl KernelTcp {
    fn is_connecting(&self, id: ConnId) -> bool {
        self.get(id).is_some_and(|conn| conn.stage == Stage::Connecting)
    }

    /// Ends a new connection after the limit, if there is one, unless the connection stands then.
    pub(super) fn limit_connect(&mut self, now: Instant, id: ConnId) {
        let Some(timeout) = self.config.connect_timeout else { return };
        // Those that stand or have ended need no place any more.
        while self.connecting.front().is_some_and(|(_, id)| !self.is_connecting(*id)) {
            self.connecting.pop_front();
        }
        self.connecting.push_back((now + timeout, id));
    }

    /// Ends the connections whose time has passed.
    pub(super) fn end_overdue(&mut self, now: Instant) {
        while let Some((_, id)) = self.connecting.pop_front_if(|(due, _)| *due <= now) {
            if self.is_connecting(id) {
                self.end(id, CloseReason::TimedOut);
            }
        }
    }

    /// Returns the time at which the next connection is overdue.
    pub(super) fn next_overdue(&self) -> Option<Instant> {
        self.connecting.iter().find(|(_, id)| self.is_connecting(*id)).map(|(due, _)| *due)
    }
}
