//! Who is admitted, and who makes room when a table is full.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Highest port that only privileged programs of a machine may use.
const RESERVED_PORT_MAX: u16 = 1023;

/// Client of a server, as rules of admission see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of the client. One of IPv4 is never in its form of IPv6.
    pub address: IpAddr,
    /// True if the address is one of the daemon: the client is a program of this machine, with a queue pair of its own.
    pub is_local: bool,
    /// True unless the client has a port of TCP that any user of its machine can have.
    pub is_privileged: bool,
}

impl Peer {
    /// Returns the peer of a connection over RDMA. Linux gives no client a privileged port there, and its server asks
    /// for none.
    #[must_use]
    pub fn rdma(address: IpAddr) -> Self {
        Self { address: address.to_canonical(), is_local: false, is_privileged: true }
    }

    /// As [`Self::rdma`], from an address of the daemon.
    #[must_use]
    pub fn rdma_local(address: IpAddr) -> Self {
        Self { is_local: true, ..Self::rdma(address) }
    }

    /// Returns the peer of a connection over the kernel's TCP.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        let is_privileged = address.port() <= RESERVED_PORT_MAX;
        Self { address: address.ip().to_canonical(), is_local: false, is_privileged }
    }
}

/// Entry of a table that is full.
#[derive(Clone, Copy, Debug)]
pub struct Entry<K, T> {
    /// Key of the entry in its table.
    pub key: K,
    /// Address of the client that the entry belongs to.
    pub address: IpAddr,
    /// Order in which entries of an address go; `None`: the entry stays.
    pub rank: Option<u8>,
    /// Time of the latest use, or since when the entry is there.
    pub used: T,
    /// True once the entry was used.
    pub was_used: bool,
}

/// Chooses the entry that makes room for one more of `newcomer`: of the address that has the most, by rank, the one
/// idle for longest. An address takes nothing from one that has less.
pub fn makes_room<K: Copy, T: Ord + Copy>(
    newcomer: IpAddr,
    entries: impl Iterator<Item = Entry<K, T>>,
) -> Option<K> {
    let entries: Vec<_> = entries.collect();
    let mut counts = HashMap::from([(newcomer, 1_usize)]);
    for entry in &entries {
        let count = counts.entry(entry.address).or_default();
        *count = count.saturating_add(1);
    }
    let count = |address| counts.get(&address).copied().unwrap_or(0);
    let may_go = |entry: &&Entry<K, T>| entry.rank.is_some() && count(entry.address) >= count(newcomer);
    let found = entries
        .iter()
        .filter(may_go)
        .min_by_key(|entry| (Reverse(count(entry.address)), entry.rank, entry.used));
    found.map(|entry| entry.key)
}

/// Lets those entries stay that an address used last, as many as it has of `kept`. Entries that were never used go.
pub fn keep_latest<K, T: Ord + Copy>(entries: &mut [Entry<K, T>], mut kept: HashMap<IpAddr, usize>) {
    entries.sort_unstable_by_key(|entry| Reverse(entry.used));
    for entry in entries.iter_mut().filter(|entry| entry.was_used) {
        if let Some(left) = kept.get_mut(&entry.address).filter(|left| **left > 0) {
            *left = left.saturating_sub(1);
            entry.rank = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u32, host: u8, rank: Option<u8>, used: u32) -> Entry<u32, u32> {
        Entry { key, address: [10, 0, 0, host].into(), rank, used, was_used: key < 100 }
    }

    fn chosen(host: u8, entries: &[Entry<u32, u32>]) -> Option<u32> {
        makes_room([10, 0, 0, host].into(), entries.iter().copied())
    }

    #[test]
    fn the_longest_idle_of_the_address_with_the_most_makes_room() {
        let of_one = [entry(1, 1, Some(0), 5), entry(2, 1, Some(0), 4), entry(3, 1, Some(0), 6)];
        assert_eq!((chosen(1, &of_one), chosen(2, &of_one)), (Some(2), Some(2)));
        let each_one = [entry(1, 1, Some(0), 5), entry(2, 2, Some(0), 4), entry(3, 3, Some(0), 6)];
        assert_eq!(chosen(4, &each_one), Some(2));
        assert_eq!(chosen(3, &each_one), Some(3), "with the newcomer, the third has the most");
        let two = [entry(1, 1, Some(0), 5), entry(2, 2, Some(0), 1), entry(3, 1, Some(0), 6)];
        assert_eq!(chosen(3, &two), Some(1), "not the only one of another address, idle as it is");
        let ranks = [entry(1, 1, Some(1), 1), entry(2, 1, Some(0), 9), entry(3, 1, None, 0)];
        assert_eq!(chosen(2, &ranks), Some(2));
    }

    #[test]
    fn who_has_the_most_takes_nothing_from_others() {
        let kept = [entry(1, 1, None, 1), entry(2, 1, None, 2), entry(3, 2, Some(0), 0)];
        assert_eq!(chosen(1, &kept), None);
        assert_eq!(chosen(3, &kept), Some(3));
        assert_eq!(chosen(3, &kept[..2]), None);
        assert_eq!(chosen(1, &[]), None);
    }

    #[test]
    fn the_latest_of_who_holds_state_stay() {
        let mut entries = [1, 2, 3].map(|key| entry(key, 1, Some(0), key));
        keep_latest(&mut entries, HashMap::from([([10, 0, 0, 1].into(), 2), ([10, 0, 0, 2].into(), 5)]));
        assert_eq!((chosen(2, &entries), chosen(2, &entries[..2])), (Some(1), None));
        let mut silent = [entry(1, 1, Some(0), 1), entry(100, 1, Some(0), 2)];
        keep_latest(&mut silent, HashMap::from([([10, 0, 0, 1].into(), 1)]));
        assert_eq!(chosen(2, &silent), Some(100), "a connection that was never used keeps no other one out");
    }

    #[test]
    fn ports_of_tcp_tell_who_is_privileged() {
        let tcp = |text: &str| Peer::tcp(text.parse().expect("an address"));
        assert!(tcp("10.0.0.1:1023").is_privileged && !tcp("10.0.0.1:1024").is_privileged);
        assert_eq!(tcp("[::ffff:10.0.0.1]:1").address, IpAddr::from([10, 0, 0, 1]));
        assert!(Peer::rdma([10, 0, 0, 1].into()).is_privileged);
    }
}
