//! The time limits of connections.

use std::collections::VecDeque;
use std::time::Duration;

use tcp_stack::{ConnId, Instant};

/// How long a connection that we have closed may wait for the peer to close too: as long as Linux's
/// `tcp_fin_timeout`. A peer that never does would hold its place for ever.
pub(crate) const LINGER: Duration = Duration::from_secs(60);

/// When something of a connection runs out of time, soonest first. A connection has one limit at most, and keeps it
/// itself, so that it can be found here.
#[derive(Debug)]
pub(crate) struct Deadlines(VecDeque<(Duration, ConnId)>);

impl Deadlines {
    /// With a place for each connection.
    pub(crate) fn new(connections: usize) -> Self {
        Self(VecDeque::with_capacity(connections))
    }

    /// When the soonest is.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.0.front().map(|(deadline, _)| instant(*deadline))
    }

    /// The connection whose limit has passed, if there is one; the limit is forgotten.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<ConnId> {
        self.first().filter(|first| *first <= now)?;
        self.0.pop_front().map(|(_, conn)| conn)
    }

    /// A connection that had the limit `before` has the limit `after` from here on.
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

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Time as the RDMA engine counts it.
pub(crate) fn since_start(now: Instant) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

fn instant(since_start: Duration) -> Instant {
    Instant::from_nanos(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
}
