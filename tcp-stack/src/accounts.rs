//! Accounts: the shared resources in use per listener and per source: connections, and packet buffers with received
//! data.
//!
//! A *source* is an IPv4 address or an IPv6 /64, the least that one host is usually given. An attacker may use any
//! number of sources, so there is no table of them: a keyed hash maps each to one of a fixed number of accounts.
//! Two sources share an account with the probability of one in that number, and without the key nobody can choose
//! which do. Accounts of sources are never created, evicted or refused.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::event::ListenerId;

/// Least number of source accounts.
const SOURCES_MIN: u32 = 1024;
/// Index that stands for no listener: an active open.
const NO_LISTENER: u32 = u32::MAX;

/// The resources that one listener or one source uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Number of connections, half-open ones included.
    pub(crate) connections: u32,
    /// Packet buffers retained by received data of its connections.
    pub(crate) buffers: u32,
}

/// The two accounts in which a connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountIds {
    listener: u32,
    source: u32,
}

impl AccountIds {
    /// Makes the pair from the listener, `None` for an active open, and the source's account.
    pub(crate) fn new(listener: Option<ListenerId>, source: u32) -> Self {
        Self { listener: listener.map_or(NO_LISTENER, ListenerId::index), source }
    }

    /// True if both are counted for the same listener.
    pub(crate) fn same_listener(self, other: Self) -> bool {
        self.listener == other.listener && self.listener != NO_LISTENER
    }

    /// True if both are counted for the same source.
    pub(crate) fn same_source(self, other: Self) -> bool {
        self.source == other.source
    }
}

/// Limits of the connections of a listener and of a source, half-open ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) listener: u32,
    pub(crate) source: u32,
}

/// The limit that a new connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The limit of the listener.
    Listener,
    /// The limit of the source.
    Source,
}

/// All accounts. Those of sources are allocated at creation, those of listeners when a listener is added.
#[derive(Debug)]
pub(crate) struct Accounts {
    listeners: Vec<Account>,
    sources: Vec<Account>,
    hasher: SipHasher13,
}

impl Accounts {
    /// Makes the accounts for a table of `connections`; `key` must be secret.
    pub(crate) fn new(connections: u32, key: (u64, u64)) -> Self {
        Self {
            listeners: Vec::new(),
            sources: vec![Account::default(); connections.max(SOURCES_MIN) as usize],
            hasher: SipHasher13::new_with_keys(key.0, key.1),
        }
    }

    /// Makes an account for a listener, unless its index has one already.
    pub(crate) fn add_listener(&mut self, listener: ListenerId) {
        let places = (listener.index() as usize).saturating_add(1);
        if self.listeners.len() < places {
            self.listeners.resize(places, Account::default());
        }
    }

    /// Returns the index of a source's account.
    pub(crate) fn source_of(&self, address: IpAddr) -> u32 {
        let hash = match address {
            IpAddr::V4(address) => self.hasher.hash(&address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                self.hasher.hash(&[a, b, c, d, e, f, g, h])
            }
        };
        // The upper half of hash × count is below count.
        let place = u128::from(hash).wrapping_mul(self.sources.len() as u128) >> 64;
        u32::try_from(place).unwrap_or(0)
    }

    /// Returns the accounts of a connection from `remote` to a listener.
    pub(crate) fn ids(&self, listener: Option<ListenerId>, remote: IpAddr) -> AccountIds {
        AccountIds::new(listener, self.source_of(remote))
    }

    /// Returns the accounts of the listener and of the source. For an active open, the former is empty.
    pub(crate) fn get(&self, ids: AccountIds) -> (Account, Account) {
        let at = |accounts: &[Account], place: u32| accounts.get(place as usize).copied().unwrap_or_default();
        (at(&self.listeners, ids.listener), at(&self.sources, ids.source))
    }

    /// Checks one more connection against the limits; the error names the one that it would exceed.
    pub(crate) fn check(&self, ids: AccountIds, limits: ConnectionLimits) -> Result<(), Refused> {
        let (listener, source) = self.get(ids);
        if listener.connections >= limits.listener {
            return Err(Refused::Listener);
        }
        if source.connections >= limits.source {
            return Err(Refused::Source);
        }
        Ok(())
    }

    /// Counts a new connection, half-open or not, unless it exceeds a limit.
    pub(crate) fn open(&mut self, ids: AccountIds, limits: ConnectionLimits) -> Result<(), Refused> {
        self.check(ids, limits)?;
        self.each(ids, |account| account.connections = account.connections.saturating_add(1));
        Ok(())
    }

    /// Ends the count of a connection that was [counted](Self::open).
    pub(crate) fn close(&mut self, ids: AccountIds) {
        self.each(ids, |account| account.connections = account.connections.saturating_sub(1));
    }

    /// Changes the packet buffers that a connection retains from `before` to `after`.
    pub(crate) fn change_buffers(&mut self, ids: AccountIds, before: u32, after: u32) {
        self.each(ids, |account| {
            account.buffers = account.buffers.saturating_sub(before).saturating_add(after)
        });
    }

    fn each(&mut self, ids: AccountIds, change: impl Fn(&mut Account)) {
        let places = [(&mut self.listeners, ids.listener), (&mut self.sources, ids.source)];
        for (accounts, place) in places {
            if let Some(account) = accounts.get_mut(place as usize) {
                change(account);
            }
        }
    }

    /// Returns the sums over all source accounts.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn total(&self) -> Account {
        self.sources.iter().fold(Account::default(), |sum, account| Account {
            connections: sum.connections.saturating_add(account.connections),
            buffers: sum.buffers.saturating_add(account.buffers),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use core::num::NonZeroU32;

    const WIDE: ConnectionLimits = ConnectionLimits { listener: u32::MAX, source: u32::MAX };

    fn listener(index: u32) -> Option<ListenerId> {
        Some(ListenerId { index, generation: NonZeroU32::MIN })
    }

    fn accounts() -> Accounts {
        let mut accounts = Accounts::new(16, (1, 2));
        (0..3).filter_map(listener).for_each(|listener| accounts.add_listener(listener));
        accounts
    }

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn v6(prefix: u16, last: u16) -> IpAddr {
        Ipv6Addr::new(0xfd00, 0, 0, prefix, 0, 0, 0, last).into()
    }

    #[test]
    fn a_source_is_an_address_or_a_slash_64() {
        let accounts = accounts();
        assert_ne!(accounts.source_of(v4(1)), accounts.source_of(v4(2)));
        assert_eq!(accounts.source_of(v6(1, 1)), accounts.source_of(v6(1, 2)));
        assert_ne!(accounts.source_of(v6(1, 1)), accounts.source_of(v6(2, 1)));
    }

    /// Many sources spread over all accounts, even if their addresses are similar.
    #[test]
    fn sources_spread_evenly() {
        let accounts = accounts();
        let mut hits = vec![0_u32; SOURCES_MIN as usize];
        for n in 0..16 * SOURCES_MIN {
            hits[accounts.source_of(Ipv4Addr::from(0x0a00_0000 + n).into()) as usize] += 1;
        }
        assert!(hits.iter().all(|hits| (1..64).contains(hits)), "{hits:?}");
    }

    #[test]
    fn limits_apply_to_their_listener_or_source_only() {
        for (a, b) in [(v4(1), v4(2)), (v6(1, 1), v6(2, 1))] {
            let mut accounts = accounts();
            let limits = ConnectionLimits { listener: 3, source: 2 };
            let first = accounts.ids(listener(0), a);
            assert_eq!([0; 3].map(|_| accounts.open(first, limits)), [Ok(()), Ok(()), Err(Refused::Source)]);
            let other = accounts.ids(listener(0), b);
            assert_eq!([0; 2].map(|_| accounts.open(other, limits)), [Ok(()), Err(Refused::Listener)]);
            assert_eq!(accounts.open(accounts.ids(listener(1), b), limits), Ok(()), "another listener");
            accounts.close(first);
            assert_eq!(accounts.open(other, ConnectionLimits { source: 3, ..limits }), Ok(()), "room again");
            assert_eq!(accounts.total().connections, 4);
        }
    }

    #[test]
    fn retained_buffers_and_connections_are_counted_down_again() {
        let mut accounts = accounts();
        let ids = [
            accounts.ids(listener(0), v4(1)),
            accounts.ids(listener(2), v4(1)),
            accounts.ids(None, v6(1, 1)),
        ];
        for (n, ids) in (1..).zip(ids) {
            assert_eq!(accounts.open(ids, WIDE), Ok(()));
            accounts.change_buffers(ids, 0, n);
        }
        assert_eq!(accounts.get(ids[0]).0, Account { connections: 1, buffers: 1 });
        assert_eq!(accounts.get(ids[0]).1, Account { connections: 2, buffers: 3 });
        assert_eq!(accounts.get(ids[2]).0, Account::default(), "no listener");
        assert_eq!(accounts.total(), Account { connections: 3, buffers: 6 });
        for (n, ids) in (1..).zip(ids) {
            accounts.change_buffers(ids, n, 0);
            accounts.close(ids);
        }
        assert_eq!(accounts.total(), Account::default());
        assert!(ids.iter().all(|ids| accounts.get(*ids) == Default::default()));
    }
}
