//! TCP ports that belong to one worker of a DPDK port: those that applications listen on. The objects of an application
//! live on its worker, so that all its connections must be there. The engine claims a port, and `worker::steer` asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Number of TCP ports.
const PORTS: usize = 1 << 16;

/// Owners of the TCP ports of one DPDK port, shared by its workers.
#[derive(Clone, Debug)]
pub struct LocalPorts(Arc<Table>);

#[derive(Debug)]
struct Table {
    /// Number of ports with an owner.
    owned: AtomicU32,
    /// Index of the owner plus 1, by port; 0 without an owner.
    owners: Box<[AtomicU16]>,
}

impl Default for LocalPorts {
    fn default() -> Self {
        let owners = (0..PORTS).map(|_| AtomicU16::new(0)).collect();
        Self(Arc::new(Table { owned: AtomicU32::new(0), owners }))
    }
}

impl LocalPorts {
    /// Makes `worker` the owner of a port. Returns false if another worker is.
    pub fn claim(&self, port: u16, worker: u16) -> bool {
        let Some(owner) = self.0.owners.get(usize::from(port)) else { return false };
        let claimed =
            owner.compare_exchange(0, worker.wrapping_add(1), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if claimed {
            self.0.owned.fetch_add(1, Ordering::Release);
        }
        claimed
    }

    /// Ends the ownership of `worker`.
    pub fn release(&self, port: u16, worker: u16) {
        let Some(owner) = self.0.owners.get(usize::from(port)) else { return };
        let own = worker.wrapping_add(1);
        if owner.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.0.owned.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the worker that owns a port.
    #[inline]
    pub fn owner(&self, port: u16) -> Option<usize> {
        if self.0.owned.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let owner = self.0.owners.get(usize::from(port))?.load(Ordering::Acquire);
        usize::from(owner).checked_sub(1)
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
        assert!(!ports.claim(7500, 0) && !ports.claim(7500, 1));
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
}
