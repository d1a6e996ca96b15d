//! TCP ports that belong to one worker of a DPDK port: those that applications listen on or connect from. The objects
//! of an application live on its worker, so that all its connections must be there. The engine claims a port once for
//! each listener and connection that uses it, and `worker::steer` asks for the owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of TCP ports.
const PORTS: usize = 1 << 16;

/// Owners of the TCP ports of one DPDK port, shared by its workers.
#[derive(Clone, Debug)]
pub struct LocalPorts(Arc<Table>);

#[derive(Debug)]
struct Table {
    /// Number of ports with an owner.
    owned: AtomicU32,
    /// [`Entry`] of each port.
    entries: Box<[AtomicU64]>,
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
        let entries = (0..PORTS).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Table { owned: AtomicU32::new(0), entries }))
    }
}

impl LocalPorts {
    /// Adds a claim of `worker` to a port. Returns false if another worker owns it.
    pub fn claim(&self, port: u16, worker: u16) -> bool {
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
        before.is_some()
    }

    /// Removes a claim of `worker`; with the last one, its ownership ends.
    pub fn release(&self, port: u16, worker: u16) {
        let owner = u32::from(worker).wrapping_add(1);
        let before = self.update(port, |entry| match entry {
            Entry { owner: of, claims: 1 } if of == owner => Some(Entry { owner: 0, claims: 0 }),
            Entry { owner: of, claims } if of == owner => {
                claims.checked_sub(1).map(|claims| Entry { owner, claims })
            }
            Entry { .. } => None,
        });
        if before.is_some_and(|before| before.claims == 1) {
            self.0.owned.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the worker that owns a port.
    #[inline]
    pub fn owner(&self, port: u16) -> Option<usize> {
        if self.0.owned.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let bits = self.0.entries.get(usize::from(port))?.load(Ordering::Acquire);
        (Entry::from_bits(bits).owner as usize).checked_sub(1)
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
}
