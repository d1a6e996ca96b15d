//! The connection table and the flow table, and the index queues of connections.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::Conn;
use crate::event::ConnId;
use crate::four_tuple::FlowHash;
use crate::four_tuple::FourTuple;
use crate::pool::NIL;
use crate::set::Member;
use crate::stats::StateCounts;

/// The index queues that a slot of the connection table can be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// The application has events to poll.
    Events,
    /// The connection may have segments to send.
    Output,
    /// The connection has segments to send and waits for the neighbor's link address.
    Neighbor,
    /// The application waits for send room, because the pool was full.
    PoolRoom,
    /// The connection retains received data: out-of-order segments, or buffers that the application retains.
    Retaining,
    /// The connection may be evicted for a new one.
    Evictable,
}

impl QueueKind {
    #[cfg(test)]
    pub(super) const COUNT: usize = 6;
}

impl Member for QueueKind {
    #[inline]
    fn number(self) -> u8 {
        self as u8
    }
}

/// A FIFO of slots. A set in the control block ensures that a slot is queued only once. A queued slot may be freed,
/// and used again: the consumer checks the connection that it finds.
pub(crate) struct IndexQueue {
    list: QueueKind,
    /// A ring with room for every slot; only the `len` entries from `head` on are valid.
    ring: Vec<u32>,
    /// Position of the first entry in the ring.
    head: usize,
    len: usize,
}

impl IndexQueue {
    /// Makes a queue for a table of `limit` slots.
    pub(crate) fn new(list: QueueKind, limit: u32) -> Self {
        Self { list, ring: vec![0; limit as usize], head: 0, len: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ring position of the entry `behind` places after the first.
    #[inline]
    fn at(&self, behind: usize) -> usize {
        let at = self.head.wrapping_add(behind);
        if at < self.ring.len() { at } else { at.wrapping_sub(self.ring.len()) }
    }

    /// Appends a slot, unless the queue holds it.
    #[inline]
    pub(crate) fn push(&mut self, table: &mut ConnTable, index: u32) {
        if let Some(Slot { conn, .. }) = table.slots.get_mut(index as usize) {
            self.push_block(conn, index);
        }
    }

    /// Same as [`Self::push`], for a caller that has the slot's block.
    #[inline(always)]
    pub(crate) fn push_block(&mut self, conn: &mut Conn, index: u32) {
        if conn.queued.has(self.list) {
            return;
        }
        let end = self.at(self.len);
        if let Some(place) = self.ring.get_mut(end) {
            conn.queued.add(self.list);
            *place = index;
            self.len = self.len.wrapping_add(1);
        }
    }

    /// Returns the number of queued slots.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.len).unwrap_or(NIL)
    }

    /// Returns the slot `behind` places after the first.
    pub(crate) fn nth(&self, behind: u32) -> Option<u32> {
        if behind < self.len() { self.ring.get(self.at(behind as usize)).copied() } else { None }
    }

    /// Returns the first slot.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        if self.len == 0 { None } else { self.ring.get(self.head).copied() }
    }

    /// Removes and returns the first slot.
    #[inline]
    pub(crate) fn pop(&mut self, table: &mut ConnTable) -> Option<u32> {
        let index = self.first()?;
        (self.head, self.len) = (self.at(1), self.len.wrapping_sub(1));
        table.slots.get_mut(index as usize)?.conn.queued.remove(self.list);
        Some(index)
    }
}

impl fmt::Debug for IndexQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.len).map(|behind| self.ring.get(self.at(behind)))).finish()
    }
}

/// A slot. Its block stays after the connection has ended, because the generation and the queue memberships outlive
/// it. It is aligned to a pair of cache lines, which processors fetch together.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Slot {
    /// Must come first: the layout of [`Conn`] assumes this alignment.
    pub(super) conn: Conn,
    /// The next free slot, if this one is free.
    next_free: u32,
}

/// The owner of a flow: the result of a flow lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A connection, in this slot.
    Conn(u32),
    /// A half-open connection, in the record with this index.
    HalfOpen(u32),
    /// A TIME-WAIT record with this index.
    TimeWait(u32),
}

/// A [`Target`] in 32 bits: the kind in the upper two, the index in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(u32);

/// Upper limit of indices: 30 bits.
const PLACES_MAX: u32 = 1 << 30;

impl From<Target> for Packed {
    fn from(target: Target) -> Self {
        let (kind, place) = match target {
            Target::Conn(place) => (0, place),
            Target::HalfOpen(place) => (1, place),
            Target::TimeWait(place) => (2, place),
        };
        Self(kind << 30 | (place & (PLACES_MAX - 1)))
    }
}

impl From<Packed> for Target {
    fn from(packed: Packed) -> Self {
        let place = packed.0 & (PLACES_MAX - 1);
        match packed.0 >> 30 {
            0 => Self::Conn(place),
            1 => Self::HalfOpen(place),
            _ => Self::TimeWait(place),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    hash: u32,
    target: Packed,
}

/// All connections, by slot and by flow. The memory is reserved when the table is made.
#[derive(Debug)]
pub(crate) struct ConnTable {
    slots: Vec<Slot>,
    free: u32,
    used: u32,
    limit: u32,
    states: StateCounts,
    flows: HashTable<Entry>,
    hasher: FlowHash,
    secrets: SipHasher13,
}

/// Spreads a flow's 32-bit hash over the 64 bits that the hash table uses.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl ConnTable {
    /// Makes a table of at most `limit` connections and as many TIME-WAIT records, half-open connections included;
    /// `key` must be secret.
    pub(crate) fn new(limit: u32, key: (u64, u64)) -> Self {
        let mut slots = Vec::new();
        slots.reserve_exact(limit as usize);
        Self {
            slots,
            free: NIL,
            used: 0,
            limit,
            states: StateCounts::default(),
            // Twice the entries that can exist: deleted entries are then cleaned up in place, and the table never
            // grows.
            flows: HashTable::with_capacity((limit as usize).saturating_mul(4)),
            hasher: FlowHash::new(key),
            secrets: SipHasher13::new_with_keys(key.0, key.1),
        }
    }

    /// Returns the keyed hash of a flow.
    #[inline]
    pub(crate) fn hash(&self, flow: &FourTuple) -> u32 {
        self.hasher.of(flow)
    }

    /// Returns the owner of a flow; `matches` compares the flow itself.
    #[inline]
    pub(crate) fn find(&self, hash: u32, matches: impl Fn(&Self, Target) -> bool) -> Option<Target> {
        let found =
            self.flows.find(spread(hash), |entry| entry.hash == hash && matches(self, entry.target.into()));
        found.map(|entry| entry.target.into())
    }

    /// Returns the slot of the connection that owns a flow; `None` if a record owns it.
    #[inline(always)]
    pub(crate) fn find_conn(&self, hash: u32, flow: &FourTuple) -> Option<u32> {
        let is_there = |place| self.at(place).is_some_and(|conn| conn.flow == *flow);
        let found = self.flows.find(spread(hash), |entry| {
            entry.hash == hash && matches!(entry.target.into(), Target::Conn(place) if is_there(place))
        });
        match found?.target.into() {
            Target::Conn(place) => Some(place),
            Target::HalfOpen(_) | Target::TimeWait(_) => None,
        }
    }

    /// Returns the slot of a connection with this hash, without comparing the flow. Used for prefetching only.
    #[inline]
    pub(crate) fn likely(&self, hash: u32) -> Option<u32> {
        match self.flows.find(spread(hash), |entry| entry.hash == hash)?.target.into() {
            Target::Conn(place) => Some(place),
            Target::HalfOpen(_) | Target::TimeWait(_) => None,
        }
    }

    /// Prefetches the cache lines of a connection that segments use.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        if let Some(Slot { conn, .. }) = self.slots.get(index as usize) {
            conn.prefetch();
        }
    }

    /// Prefetches the cache lines of a connection that timer expirations use.
    #[inline]
    pub(crate) fn prefetch_timers(&self, index: u32) {
        if let Some(Slot { conn, .. }) = self.slots.get(index as usize) {
            conn.prefetch_timers();
        }
    }

    /// Adds a flow, which must not be in the table.
    pub(crate) fn insert_flow(&mut self, hash: u32, target: Target) {
        self.flows
            .insert_unique(spread(hash), Entry { hash, target: target.into() }, |entry| spread(entry.hash));
    }

    /// Removes a flow, if it is there.
    pub(crate) fn remove_flow(&mut self, hash: u32, target: Target) {
        if let Ok(entry) =
            self.flows.find_entry(spread(hash), |entry| entry.hash == hash && entry.target == target.into())
        {
            entry.remove();
        }
    }

    /// Moves the connection to its present state in the counts per state.
    #[inline]
    pub(crate) fn count_state(&mut self, index: u32) {
        let Self { slots, states, .. } = self;
        let Some(Slot { conn, .. }) = slots.get_mut(index as usize) else { return };
        let Some(counted) = conn.counted.as_mut() else { return };
        if *counted != conn.state {
            states.leave(*counted);
            states.enter(conn.state);
            *counted = conn.state;
        }
    }

    /// Returns the number of connections per state.
    pub(crate) fn states(&self) -> StateCounts {
        self.states
    }

    /// Returns the number of occupied slots, ended connections with events to poll included.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// Returns the number of slots ever used: all indices are below.
    pub(crate) fn places(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(NIL)
    }

    /// Stores a connection; returns it as the error if the table is full.
    #[allow(clippy::result_large_err, reason = "it goes back where it came from")]
    pub(crate) fn insert(&mut self, mut conn: Conn) -> Result<ConnId, Conn> {
        let state = conn.state;
        conn.counted = Some(state);
        let [a, b, c, d, ..] = conn.flow.distinct_bytes(|bytes| self.secrets.hash(bytes)).to_be_bytes();
        conn.secret = u32::from_be_bytes([a, b, c, d]);
        let (index, generation) = if let Some(slot) = self.slots.get_mut(self.free as usize) {
            (conn.generation, conn.queued) = (slot.conn.generation, slot.conn.queued);
            slot.conn = conn;
            (core::mem::replace(&mut self.free, slot.next_free), slot.conn.generation)
        } else if self.slots.len() < self.limit as usize {
            let (index, generation) = (self.places(), 1);
            conn.generation = generation;
            self.slots.push(Slot { conn, next_free: NIL });
            (index, generation)
        } else {
            return Err(conn);
        };
        self.states.enter(state);
        self.used = self.used.saturating_add(1);
        Ok(ConnId::new(index, generation))
    }

    /// Frees a slot and returns its block, whose queues the caller must clear.
    pub(crate) fn remove(&mut self, index: u32) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(index as usize)?;
        self.states.leave(slot.conn.counted.take()?);
        // Invalidates the connection's identifier.
        slot.conn.generation = slot.conn.generation.wrapping_add(1);
        slot.next_free = core::mem::replace(&mut self.free, index);
        self.used = self.used.saturating_sub(1);
        Some(&mut slot.conn)
    }

    /// Returns the number of flow table entries.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn flows(&self) -> u32 {
        u32::try_from(self.flows.len()).unwrap_or(NIL)
    }

    /// True if a slot is in the queue of a kind.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn is_queued(&self, index: u32, list: QueueKind) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| slot.conn.queued.has(list))
    }

    /// Returns the connection in a slot.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Conn> {
        self.slots.get(index as usize).map(|slot| &slot.conn).filter(|conn| conn.counted.is_some())
    }

    /// Same as [`Self::at`], mutable.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut Conn> {
        let conn = self.slots.get_mut(index as usize).map(|slot| &mut slot.conn);
        conn.filter(|conn| conn.counted.is_some())
    }

    /// Returns the identifier of the connection in a slot.
    #[inline]
    pub(crate) fn id(&self, index: u32) -> Option<ConnId> {
        self.at(index).map(|conn| conn.id_at(index))
    }

    /// Returns the connection with this identifier; `None` if it is gone.
    #[inline]
    pub(crate) fn get(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.slots.get(id.index() as usize).map(|slot| &slot.conn);
        conn.filter(|conn| conn.generation == id.generation())
    }

    /// Same as [`Self::get`], mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.slots.get_mut(id.index() as usize).map(|slot| &mut slot.conn);
        conn.filter(|conn| conn.generation == id.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConnOptions, StackConfig};
    use crate::conn::Origin;
    use crate::seq::SeqNum;
    use crate::time::Instant;
    use core::net::{IpAddr, SocketAddr};

    fn end(n: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], n))
    }

    fn conn(table: &ConnTable, port: u16) -> Conn {
        let (local, remote) = (end(7), end(port));
        let hash = table.hash(&FourTuple::new(local, remote));
        let options = ConnOptions::default();
        let iss = SeqNum::new(0);
        let origin =
            Origin { local, remote, hash, iss, ts_offset: 0, listener: None, options, path_mtu: 1500 };
        Conn::open(Instant::ZERO, &origin, &StackConfig::default())
    }

    fn find(table: &ConnTable, port: u16) -> Option<Target> {
        let hash = table.hash(&FourTuple::new(end(7), end(port)));
        table.find(hash, |table, target| match target {
            Target::Conn(index) => table.at(index).is_some_and(|conn| conn.remote() == end(port)),
            Target::HalfOpen(_) | Target::TimeWait(_) => false,
        })
    }

    #[test]
    fn an_identifier_is_invalid_after_its_connection_has_ended() {
        let mut table = ConnTable::new(1, (1, 2));
        let first = table.insert(conn(&table, 1)).unwrap();
        assert!(table.is_full() && table.insert(conn(&table, 2)).is_err());
        table.remove(first.index()).unwrap();
        let second = table.insert(conn(&table, 2)).unwrap();
        assert_eq!(first.index(), second.index());
        assert!(table.get(first).is_none() && table.get_mut(first).is_none());
        assert_eq!(table.get(second).map(|conn| conn.remote()), Some(end(2)));
        assert!(table.remove(second.index()).is_some() && table.remove(second.index()).is_none());
    }

    #[test]
    fn flows_come_and_go_without_the_table_growing() {
        let mut table = ConnTable::new(64, (1, 2));
        let capacity = table.flows.capacity();
        for round in 0..1000_u16 {
            for i in 0..64 {
                let conn = conn(&table, 1 + i + round % 7 * 64);
                let hash = conn.hash;
                let id = table.insert(conn).unwrap();
                table.insert_flow(hash, Target::Conn(id.index()));
            }
            for i in 0..64 {
                let port = 1 + i + round % 7 * 64;
                let Some(Target::Conn(index)) = find(&table, port) else { panic!("{port} is not found") };
                let hash = table.remove(index).unwrap().hash;
                table.remove_flow(hash, Target::Conn(index));
                assert_eq!(find(&table, port), None);
            }
        }
        assert_eq!((table.used(), table.flows.len(), table.flows.capacity()), (0, 0, capacity));
        assert_eq!(table.places(), 64, "places are used again");
    }

    #[test]
    fn hashes_depend_on_the_key_and_on_each_part() {
        let (one, other) = (ConnTable::new(1, (1, 2)), ConnTable::new(1, (1, 3)));
        assert_ne!(one.hash(&FourTuple::new(end(1), end(2))), other.hash(&FourTuple::new(end(1), end(2))));
        assert_ne!(one.hash(&FourTuple::new(end(1), end(2))), one.hash(&FourTuple::new(end(2), end(1))));
        let v6 = |n| SocketAddr::new(IpAddr::V6([0xfd77, 0, 0, 0, 0, 0, 0, n].into()), 7);
        assert_ne!(one.hash(&FourTuple::new(v6(1), v6(2))), one.hash(&FourTuple::new(v6(1), v6(3))));
        assert_ne!(one.hash(&FourTuple::new(v6(1), v6(2))), one.hash(&FourTuple::new(v6(3), v6(2))));
    }

    /// Returns the number of flows that begin their search in the fullest group of the hash table.
    fn fullest(table: &ConnTable, flows: &[FourTuple]) -> u32 {
        let buckets = (table.flows.capacity() * 8 / 7).next_power_of_two();
        let mut groups = std::vec![0; buckets / 16];
        for flow in flows {
            let place = usize::try_from(spread(table.hash(flow))).unwrap() & (buckets - 1);
            groups[place / 16] += 1;
        }
        groups.into_iter().max().unwrap()
    }

    #[test]
    fn flows_chosen_to_collide_do_not_under_another_key() {
        const FLOWS: usize = 100_000;
        // An attacker without the key can use another stack's: it chooses flows that share 1/16 of that table.
        let (guessed, real) = (ConnTable::new(1 << 16, (1, 2)), ConnTable::new(1 << 16, (1, 3)));
        let tuples = (0..u32::MAX).map(|n| {
            let [a, b, c, d] = n.to_be_bytes();
            let remote = SocketAddr::from(([198, 18, a, b], u16::from_be_bytes([c, d])));
            FourTuple::new(end(7), remote)
        });
        let chosen: Vec<FourTuple> =
            tuples.filter(|flow| spread(guessed.hash(flow)) >> 8 & 15 == 0).take(FLOWS).collect();
        assert!(fullest(&guessed, &chosen) > 16);
        assert!(fullest(&real, &chosen) <= 16, "{}", fullest(&real, &chosen));
        // Flows that differ in as little as possible do not collide either.
        let neighbors: Vec<FourTuple> = (0..FLOWS)
            .map(|n| {
                let [.., a, b, c] = n.to_be_bytes();
                let remote = [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(a)];
                let ours = SocketAddr::new(IpAddr::V6([0xfd77, 0, 0, 0, 0, 0, 0, 1].into()), 7);
                FourTuple::new(ours, SocketAddr::new(IpAddr::V6(remote.into()), u16::from_be_bytes([b, c])))
            })
            .collect();
        assert!(fullest(&real, &neighbors) <= 16, "{}", fullest(&real, &neighbors));
        // All flows are found, with hardly any comparison to another flow.
        let mut table = real;
        for (flow, index) in chosen.iter().zip(0..) {
            table.insert_flow(table.hash(flow), Target::HalfOpen(index));
        }
        let compared = core::cell::Cell::new(0);
        for (flow, index) in chosen.iter().zip(0..) {
            let found = table.find(table.hash(flow), |_, target| {
                compared.set(compared.get() + 1);
                target == Target::HalfOpen(index)
            });
            assert_eq!(found, Some(Target::HalfOpen(index)));
        }
        assert!(compared.get() < FLOWS + 10, "{}", compared.get());
    }

    #[test]
    fn a_queue_holds_a_slot_once_and_in_order() {
        let mut table = ConnTable::new(4, (1, 2));
        for port in 1..4 {
            table.insert(conn(&table, port)).unwrap();
        }
        let (mut a, mut b) = (IndexQueue::new(QueueKind::Events, 4), IndexQueue::new(QueueKind::Output, 4));
        for index in [2, 0, 2, 1, 0, 9] {
            a.push(&mut table, index);
            b.push(&mut table, 2 - index.min(2));
        }
        let mut drain =
            |queue: &mut IndexQueue| -> Vec<u32> { core::iter::from_fn(|| queue.pop(&mut table)).collect() };
        assert_eq!(drain(&mut a), [2, 0, 1]);
        assert_eq!(drain(&mut b), [0, 2, 1], "the lists are apart");
        assert!(a.is_empty() && b.is_empty());
    }

    #[test]
    fn a_slot_that_is_freed_and_reused_is_in_a_queue_once() {
        let (mut table, mut queue) = (ConnTable::new(4, (1, 2)), IndexQueue::new(QueueKind::Events, 4));
        for round in 1..100 {
            let ids: Vec<_> = (0..4).map(|port| table.insert(conn(&table, round + port)).unwrap()).collect();
            ids.iter().for_each(|id| queue.push(&mut table, id.index()));
            assert!(ids.iter().all(|id| table.is_queued(id.index(), QueueKind::Events)), "new ones, too");
            ids.iter().for_each(|id| _ = table.remove(id.index()).unwrap());
        }
        assert_eq!(queue.len, 4);
        while let Some(index) = queue.pop(&mut table) {
            assert!(table.at(index).is_none() && !table.is_queued(index, QueueKind::Events));
        }
        let id = table.insert(conn(&table, 1)).unwrap();
        assert!(!table.is_queued(id.index(), QueueKind::Events), "nor is one that comes when it is out");
        queue.push(&mut table, id.index());
        assert_eq!((queue.pop(&mut table), queue.pop(&mut table)), (Some(id.index()), None));
    }
}
