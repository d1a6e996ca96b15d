//! The connections of a server, for its reports.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections that are open, over all transports.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Vec<Arc<Connection>>>);

/// A connection of a client.
#[derive(Debug)]
pub struct Connection {
    address: IpAddr,
    transport: &'static str,
    since: Instant,
    answered: AtomicU64,
}

/// Keeps a connection in the list until it is dropped.
#[derive(Debug)]
pub struct Connected {
    list: Arc<Connections>,
    connection: Arc<Connection>,
}

impl Connections {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection from this address over a transport of this name, until the result is dropped.
    #[allow(clippy::disallowed_methods, reason = "the age of a connection is measured here")]
    pub fn enter(self: &Arc<Self>, address: IpAddr, transport: &'static str) -> Connected {
        let (address, answered) = (address.to_canonical(), AtomicU64::new(0));
        let connection = Arc::new(Connection { address, transport, since: Instant::now(), answered });
        self.list().push(Arc::clone(&connection));
        Connected { list: Arc::clone(self), connection }
    }

    /// Returns all connections, the oldest first.
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.list().clone()
    }
}

impl Connection {
    /// Returns the address of the client. One of IPv4 is never in its form of IPv6.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the name of the transport.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// Returns the time since the connection was accepted.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns the number of requests that were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Connected {
    /// Counts a request that was answered.
    pub fn answered(&self) {
        self.connection.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.list.list().retain(|connection| !Arc::ptr_eq(connection, &self.connection));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn connections_are_listed_until_they_end() {
        let list = Arc::new(Connections::default());
        let address = "::ffff:10.0.0.1".parse().unwrap();
        let first = list.enter(address, "rdma");
        let second = list.enter(address, "tcp");
        first.answered();
        drop(second);
        let [connection] = &list.all()[..] else { panic!("one connection") };
        let found = (connection.address(), connection.transport(), connection.answered());
        assert_eq!(found, ("10.0.0.1".parse().unwrap(), "rdma", 1));
        drop(first);
        assert!(list.all().is_empty());
    }
}
