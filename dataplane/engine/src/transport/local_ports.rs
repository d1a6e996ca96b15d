//! TCP ports that belong to one worker of a DPDK port: those that applications listen on or connect from. The objects
//! of an application live on its worker, so that all its connections must be there. The engine claims a port once for
//! each listener and connection that uses it, and `worker::steer` asks for the owner. Where the host's own stack has
//! the same addresses, each port in use is reserved there.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of TCP ports.
const PORTS: usize = 1 << 16;

/// The host's own stack, where it has the addresses of the port: it shall not answer for the ports that are ours, nor
/// give them to another program. The calls block nobody.
pub trait Reservations: Debug + Send + Sync {
    /// Reserves a port until it is released as often as it was reserved. Returns false if another program has it.
    fn reserve(&self, port: u16) -> bool;

    /// Gives up one reservation of a port.
    fn release(&self, port: u16);
}

/// Owners of the TCP ports of one DPDK port, shared by its workers.
#[derive(Clone, Debug)]
pub struct LocalPorts(Arc<Table>);

#[derive(Debug)]
struct Table {
    /// Number of ports with an owner.
    owned: AtomicU32,
    /// [`Entry`] of each port.
    entries: Box<[AtomicU64]>,
    host: Option<Arc<dyn Reservations>>,
}

/// Ownership of one port.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Index of the owner plus 1; 0 without an owner.
    owner: u32,
    /// Claims of the owner that it has not released.
    claims: u32,
}

impl Entry {
    const fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, claims @ ..] = bits.to_be_bytes();
        Self { owner: u32::from_be_bytes([a, b, c, d]), claims: u32::from_be_bytes(claims) }
    }

    fn bits(self) -> u64 {
        u64::from(self.owner) << 32 | u64::from(self.claims)
    }
}

impl Default for LocalPorts {
    fn default() -> Self {
        Self::new(None)
    }
}

impl LocalPorts {
    /// Creates a table without owners. A host that has the same addresses reserves the ports in use.
    pub fn new(host: Option<Arc<dyn Reservations>>) -> Self {
        let entries = (0..PORTS).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Table { owned: AtomicU32::new(0), entries, host }))
    }

    /// Reserves a port of a service, which all workers serve, for as long as the DPDK port exists: its connections
    /// outlive its listener. Returns false if another program of the host has it.
    pub fn reserve(&self, port: u16) -> bool {
        self.0.host.as_ref().is_none_or(|host| host.reserve(port))
    }

    /// Takes a reservation back, of a service that does not listen after all.
    pub fn unreserve(&self, port: u16) {
        if let Some(host) = &self.0.host {
            host.release(port);
        }
    }

    /// Adds a claim of `worker` to a port. Returns false if another worker owns it, or another program of the host has
    /// it.
    pub fn claim(&self, port: u16, worker: u16) -> bool {
        let Some(before) = self.own(port, worker) else { return false };
        if before.claims == 0 && !self.reserve(port) {
            self.disown(port, worker);
            return false;
        }
        true
    }

    /// Removes a claim of `worker`; with the last one, its ownership ends.
    pub fn release(&self, port: u16, worker: u16) {
        if self.disown(port, worker) {
            self.unreserve(port);
        }
    }

    /// Returns the worker that owns a port.
    #[inline]
    pub fn owner(&self, port: u16) -> Option<usize> {
        if self.0.owned.load(Ordering::Relaxed) == 0 {
            return None;
        }
        (self.entry(port)?.owner as usize).checked_sub(1)
    }

    /// Adds a claim of a worker. Returns the entry before, or `None` if another one owns the port.
    fn own(&self, port: u16, worker: u16) -> Option<Entry> {
        let owner = u32::from(worker).wrapping_add(1);
        let before = self.update(port, |entry| match entry {
            Entry { claims: 0, .. } => Some(Entry { owner, claims: 1 }),
            Entry { owner: of, claims } if of == owner => {
                claims.checked_add(1).map(|claims| Entry { owner, claims })
            }
            Entry { .. } => None,
        });
        if before.is_some_and(|before| before.claims == 0) {
            self.0.owned.fetch_add(1, Ordering::Release);
        }
        before
    }

    /// Removes a claim of a worker. Returns true if it was the last one.
    fn disown(&self, port: u16, worker: u16) -> bool {
        let owner = u32::from(worker).wrapping_add(1);
        let before = self.update(port, |entry| match entry {
            Entry { owner: of, claims: 1 } if of == owner => Some(Entry { owner: 0, claims: 0 }),
            Entry { owner: of, claims } if of == owner => {
                claims.checked_sub(1).map(|claims| Entry { owner, claims })
            }
            Entry { .. } => None,
        });
        let is_last = before.is_some_and(|before| before.claims == 1);
        if is_last {
            self.0.owned.fetch_sub(1, Ordering::Release);
        }
        is_last
    }

    #[inline]
    fn entry(&self, port: u16) -> Option<Entry> {
        let bits = self.0.entries.get(usize::from(port))?.load(Ordering::Acquire);
        Some(Entry::from_bits(bits))
    }

    /// Changes the entry of a port; returns the one before, or `None` if `change` refuses.
    fn update(&self, port: u16, change: impl Fn(Entry) -> Option<Entry>) -> Option<Entry> {
        let change = |bits| change(Entry::from_bits(bits)).map(Entry::bits);
        let entry = self.0.entries.get(usize::from(port))?;
        entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).ok().map(Entry::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_port_has_one_owner_at_a_time() {
        let ports = LocalPorts::default();
        assert_eq!(ports.owner(7500), None);
        assert!(ports.claim(7500, 1) && ports.claim(0, 0) && ports.claim(65_535, 63));
        assert!(!ports.claim(7500, 0));
        assert_eq!([7500, 0, 65_535, 7].map(|port| ports.owner(port)), [Some(1), Some(0), Some(63), None]);
        ports.release(7500, 0);
        assert_eq!(ports.owner(7500), Some(1), "only the owner releases it");
        for (port, worker) in [(7500, 1), (0, 0), (65_535, 63)] {
            ports.release(port, worker);
            ports.release(port, worker);
            assert_eq!(ports.owner(port), None);
        }
        assert!(ports.claim(7500, 0));
    }

    #[test]
    fn a_port_stays_with_its_owner_until_the_last_claim_is_released() {
        let ports = LocalPorts::default();
        assert!((0..3).all(|_| ports.claim(7500, 1)));
        for _ in 0..3 {
            assert!(!ports.claim(7500, 0));
            assert_eq!(ports.owner(7500), Some(1));
            ports.release(7500, 1);
        }
        assert_eq!(ports.owner(7500), None);
        assert!(ports.claim(7500, 0));
    }

    /// The ports that a host has reserved for us, each as often as it is in the list, and its own.
    #[derive(Debug, Default)]
    struct Host {
        reserved: Mutex<Vec<u16>>,
    }

    const OF_THE_HOST: u16 = 22;

    impl Reservations for Host {
        fn reserve(&self, port: u16) -> bool {
            let is_free = port != OF_THE_HOST;
            self.reserved.lock().unwrap().extend(is_free.then_some(port));
            is_free
        }

        fn release(&self, port: u16) {
            let mut reserved = self.reserved.lock().unwrap();
            let at = reserved.iter().position(|of| *of == port).unwrap();
            reserved.remove(at);
        }
    }

    #[test]
    fn the_host_reserves_a_port_while_it_is_in_use() {
        let host = Arc::new(Host::default());
        let ports = LocalPorts::new(Some(Arc::clone(&host) as Arc<dyn Reservations>));
        let reserved = || host.reserved.lock().unwrap().clone();
        assert!(ports.claim(7500, 1) && ports.claim(7500, 1) && !ports.claim(7500, 0));
        assert_eq!(reserved(), [7500], "once for all claims");
        assert!(!ports.claim(OF_THE_HOST, 0) && !ports.reserve(OF_THE_HOST));
        assert_eq!(ports.owner(OF_THE_HOST), None);
        assert!(ports.reserve(7400) && ports.claim(7400, 0));
        ports.release(7400, 0);
        ports.release(7500, 1);
        assert_eq!(reserved(), [7500, 7400]);
        ports.release(7500, 1);
        ports.release(7500, 1);
        assert_eq!(reserved(), [7400], "a service's stays");
    }
}
