//! The TCP ports that are ours at addresses that another stack of the host has, too.

use alloc::sync::Arc;
use core::array;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bits of a word of the set.
const BITS: u16 = 64;
/// Words of the set: a bit for each port.
const WORDS: usize = 1024;

/// A set of TCP ports. Clones are handles of the same set, which threads may change and read at the same time.
#[derive(Clone, Debug)]
pub struct OurPorts(Arc<[AtomicU64; WORDS]>);

impl Default for OurPorts {
    fn default() -> Self {
        Self(Arc::new(array::from_fn(|_| AtomicU64::new(0))))
    }
}

impl OurPorts {
    /// Adds a port to the set.
    pub fn insert(&self, port: u16) {
        let (word, bit) = self.place(port);
        if let Some(word) = word {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Removes a port; does nothing if the set does not have it.
    pub fn remove(&self, port: u16) {
        let (word, bit) = self.place(port);
        if let Some(word) = word {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns true if the set has a port.
    pub fn contains(&self, port: u16) -> bool {
        let (word, bit) = self.place(port);
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    fn place(&self, port: u16) -> (Option<&AtomicU64>, u64) {
        (self.0.get(usize::from(port / BITS)), 1 << (port % BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_in_the_set_by_itself() {
        let ports = OurPorts::default();
        let handle = ports.clone();
        let some = [0, 1, 63, 64, 7400, 65_472, 65_535];
        some.iter().for_each(|port| ports.insert(*port));
        assert!((0..=u16::MAX).all(|port| handle.contains(port) == some.contains(&port)));
        handle.remove(64);
        handle.remove(65);
        assert!((0..=u16::MAX).all(|port| ports.contains(port) == (port != 64 && some.contains(&port))));
    }
}
