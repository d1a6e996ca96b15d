//! Path MTU cache: the largest packet per destination, shared by all connections.
//!
//! Only a destination with a path MTU below the link's own has an entry. An entry expires (RFC 1191 §6.3, RFC 8201
//! §5.3: "10 minutes"), after which the link's MTU is tried again. A full cache evicts its oldest entry.

use super::neighbor::Keys;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use core::net::IpAddr;
use hashbrown::HashMap;

#[derive(Clone, Copy, Debug)]
struct Entry {
    ip: IpAddr,
    mtu: u16,
    since: Instant,
}

/// Destinations with a path MTU below the link's, at most as many as configured.
#[derive(Debug)]
pub(crate) struct PathMtuCache {
    entries: Vec<Entry>,
    index: HashMap<IpAddr, u32, Keys>,
    capacity: usize,
    /// Index of the entry to evict next.
    hand: usize,
    /// Lifetime of an entry; `None` for no expiry.
    age: Option<Duration>,
}

impl PathMtuCache {
    /// Returns a cache of at most `capacity` destinations, 0..=2^20, hashed with `keys`.
    pub(crate) fn new(capacity: u32, age: Option<Duration>, keys: (u64, u64)) -> Self {
        let capacity = usize::try_from(capacity.min(1 << 20)).unwrap_or(0);
        Self {
            entries: Vec::with_capacity(capacity),
            // Twice the entries, so that removals never make the table grow.
            index: HashMap::with_capacity_and_hasher(capacity.wrapping_mul(2), Keys(keys.0, keys.1)),
            capacity,
            hand: 0,
            age,
        }
    }

    fn entry(&mut self, ip: IpAddr) -> Option<&mut Entry> {
        let slot = *self.index.get(&ip)?;
        self.entries.get_mut(slot as usize)
    }

    /// Returns the path MTU to `ip`, bytes, if it is less than the link's.
    pub(crate) fn get(&mut self, now: Instant, ip: IpAddr) -> Option<u16> {
        let age = self.age;
        let entry = self.entry(ip)?;
        let holds = age.is_none_or(|age| now.saturating_since(entry.since) < age);
        holds.then_some(entry.mtu)
    }

    /// Records that packets longer than `mtu` bytes do not reach `ip`.
    pub(crate) fn lower(&mut self, now: Instant, ip: IpAddr, mtu: u16) {
        if let Some(entry) = self.entry(ip) {
            (entry.mtu, entry.since) = (mtu, now);
            return;
        }
        let entry = Entry { ip, mtu, since: now };
        let slot = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len().wrapping_sub(1)
        } else {
            let slot = self.hand;
            let Some(old) = self.entries.get_mut(slot) else { return };
            self.index.remove(&old.ip);
            *old = entry;
            self.hand = if slot.wrapping_add(1) < self.capacity { slot.wrapping_add(1) } else { 0 };
            slot
        };
        if let Ok(slot) = u32::try_from(slot) {
            self.index.insert(ip, slot);
        }
    }

    /// Records that a packet of `mtu` bytes reached `ip`.
    pub(crate) fn raise(&mut self, ip: IpAddr, mtu: u16) {
        if let Some(entry) = self.entry(ip) {
            entry.mtu = entry.mtu.max(mtu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        core::net::Ipv4Addr::from_bits(0x0a00_0000 | n).into()
    }

    #[test]
    fn entries_expire_and_are_raised() {
        let age = Duration::from_secs(600);
        let mut cache = PathMtuCache::new(4, Some(age), (1, 2));
        let start = Instant::from_millis(5);
        assert_eq!(cache.get(start, ip(1)), None);
        cache.lower(start, ip(1), 1000);
        assert_eq!(cache.get(start + age - Duration::from_nanos(1), ip(1)), Some(1000));
        assert_eq!(cache.get(start + age, ip(1)), None);
        cache.lower(start + age, ip(1), 1200);
        cache.raise(ip(1), 1100);
        assert_eq!(cache.get(start + age, ip(1)), Some(1200));
        cache.raise(ip(1), 1400);
        assert_eq!(cache.get(start + age, ip(1)), Some(1400));
        cache.raise(ip(2), 1400);
        assert_eq!(cache.get(start + age, ip(2)), None);
        let mut forever = PathMtuCache::new(4, None, (1, 2));
        forever.lower(start, ip(1), 1000);
        assert_eq!(forever.get(start + age * 1000, ip(1)), Some(1000));
    }

    #[test]
    fn a_full_cache_evicts_its_oldest_entry() {
        let mut cache = PathMtuCache::new(4, None, (1, 2));
        let table = cache.index.capacity();
        for n in 0..1000 {
            cache.lower(Instant::ZERO, ip(n), 1000);
            assert_eq!(cache.get(Instant::ZERO, ip(n)), Some(1000));
            assert_eq!(cache.get(Instant::ZERO, ip(n.wrapping_sub(4))), None);
        }
        assert_eq!((cache.entries.len(), cache.index.len(), cache.index.capacity()), (4, 4, table));
        let mut none = PathMtuCache::new(0, None, (1, 2));
        none.lower(Instant::ZERO, ip(1), 1000);
        assert_eq!(none.get(Instant::ZERO, ip(1)), None);
    }
}
