//! Who makes room when a table is full.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

/// Entry of a table that is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<K, T> {
    pub(crate) key: K,
    /// Address of the client that the entry belongs to.
    pub(crate) address: IpAddr,
    /// Order in which entries of an address go; `None`: the entry stays.
    pub(crate) rank: Option<u8>,
    /// Time of the latest use, or since when the entry is there.
    pub(crate) used: T,
}

/// Chooses the entry that makes room for one more of `newcomer`: of the address that has the most, by rank, the one
/// idle for longest. An address takes nothing from one that has less.
pub(crate) fn makes_room<K: Copy, T: Ord + Copy>(
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
    let may_go = |it: &&Entry<K, T>| it.rank.is_some() && count(it.address) >= count(newcomer);
    let found = entries.iter().filter(may_go).min_by_key(|it| (Reverse(count(it.address)), it.rank, it.used));
    found.map(|entry| entry.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u32, host: u8, rank: Option<u8>, used: u32) -> Entry<u32, u32> {
        Entry { key, address: [10, 0, 0, host].into(), rank, used }
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
}
