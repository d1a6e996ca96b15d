//! Deadlines of RDMA connections, used by `Engine` for MPA handshakes, incomplete FPDUs and lingering closes.

use std::collections::VecDeque;
use std::time::Duration;

use tcp_stack::{ConnId, Instant};

/// Time that a connection closed by us may wait for the peer's FIN, the same as Linux's `tcp_fin_timeout`. Otherwise a
/// peer that never closes would hold its slot forever.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// Queue of deadlines, soonest first. A connection has at most one, and stores it itself, so that it can be found here.
#[derive(Debug)]
pub(crate) struct Deadlines(VecDeque<(Duration, ConnId)>);

impl Deadlines {
    /// Allocates room for one deadline per connection.
    pub(crate) fn new(connections: usize) -> Self {
        Self(VecDeque::with_capacity(connections))
    }

    /// Returns the soonest deadline.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.0.front().map(|(deadline, _)| instant(*deadline))
    }

    /// Removes and returns a connection whose deadline has passed, if there is one.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<ConnId> {
        self.first().filter(|first| *first <= now)?;
        self.0.pop_front().map(|(_, conn)| conn)
    }

    /// Replaces the deadline `before` of a connection by `after`.
    pub(crate) fn change(&mut self, conn: ConnId, before: Option<Duration>, after: Option<Duration>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.remove(conn, before);
        }
        if let Some(after) = after {
            let at = self.0.partition_point(|(other, _)| *other <= after);
            self.0.insert(at, (after, conn));
        }
    }

    fn remove(&mut self, conn: ConnId, deadline: Duration) {
        let first = self.0.partition_point(|(other, _)| *other < deadline);
        let mut same = self.0.iter().skip(first).take_while(|(other, _)| *other == deadline);
        if let Some(behind) = same.position(|(_, other)| *other == conn) {
            self.0.remove(first.saturating_add(behind));
        }
    }

    /// Returns the connection with the soonest deadline.
    pub(crate) fn first_conn(&self) -> Option<ConnId> {
        self.0.front().map(|(_, conn)| *conn)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Converts to the time type of the RDMA crate.
pub(crate) fn since_start(now: Instant) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

/// Converts from the time type of the RDMA crate.
pub(crate) fn instant(since_start: Duration) -> Instant {
    Instant::from_nanos(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
}
