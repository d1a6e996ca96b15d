//! Pools of index-linked nodes, shared by all connections of a stack, and lists of such nodes.
//!
//! A connection without data owns no node. The memory is reserved when the stack is made; a node's memory is first
//! touched when the node is first used.

use alloc::vec::Vec;

/// Index of no node: the end of every list.
pub(crate) const NIL: u32 = u32::MAX;

#[derive(Debug)]
enum Slot<T> {
    Free { next: u32 },
    Used(T),
}

/// Returns the size of a node of `T`, bytes.
#[cfg(test)]
pub(crate) const fn node_bytes<T>() -> usize {
    size_of::<Slot<T>>()
}

/// A bounded slab of nodes with a free list.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    used: u32,
    limit: u32,
}

impl<T> Pool<T> {
    /// Makes a pool of at most `limit` nodes.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.min(NIL - 1);
        let mut slots = Vec::new();
        slots.reserve_exact(limit as usize);
        Self { slots, free: NIL, used: 0, limit }
    }

    /// Returns the number of nodes in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Returns the number of free nodes.
    pub(crate) fn available(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }

    /// Stores `value`; returns it as the error if the pool is full.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if self.free == NIL {
            self.extend();
        }
        let index = self.free;
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err(value) };
        let Slot::Free { next } = *slot else { return Err(value) };
        *slot = Slot::Used(value);
        self.free = next;
        self.used = self.used.wrapping_add(1);
        Ok(index)
    }

    /// Stores the value of `make`, constructed in place; does not call `make` if the pool is full.
    #[inline(always)]
    pub(crate) fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<u32> {
        if self.free == NIL {
            self.extend();
        }
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        let Slot::Free { next } = *slot else { return None };
        self.free = next;
        self.used = self.used.wrapping_add(1);
        *slot = Slot::Used(make());
        Some(index)
    }

    /// Returns the index that the next [`Self::insert`] will use; [`NIL`] if the pool is full.
    #[inline]
    pub(crate) fn next_place(&self) -> u32 {
        let fresh = self.slots.len();
        match self.free {
            NIL if fresh < self.limit as usize => u32::try_from(fresh).unwrap_or(NIL),
            free => free,
        }
    }

    /// Adds one node to the free list, within the limit.
    #[cold]
    fn extend(&mut self) {
        if self.slots.len() < self.limit as usize {
            self.free = u32::try_from(self.slots.len()).unwrap_or(NIL);
            self.slots.push(Slot::Free { next: NIL });
        }
    }

    /// Removes a node and returns its value.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize).filter(|slot| matches!(slot, Slot::Used(_)))?;
        let old = core::mem::replace(slot, Slot::Free { next: self.free });
        self.free = index;
        self.used = self.used.wrapping_sub(1);
        match old {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// Drops the node at `index` in place if `look` returns a value, which is returned.
    #[inline(always)]
    pub(crate) fn drop_if<R>(&mut self, index: u32, look: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        let slot = self.slots.get_mut(index as usize)?;
        let Slot::Used(value) = slot else { return None };
        let found = look(value)?;
        *slot = Slot::Free { next: self.free };
        self.free = index;
        self.used = self.used.wrapping_sub(1);
        Some(found)
    }

    /// Returns the node at `index`.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.slots.get(index as usize) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the node at `index`, mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.slots.get_mut(index as usize) {
            Some(Slot::Used(value)) => Some(value),
            _ => None,
        }
    }
}

/// The neighbors of a node in a [`List`]; [`NIL`] for none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Link {
    /// The link of a node that is in no list.
    pub(crate) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// The head of a doubly linked list of nodes of a [`Pool`].
///
/// A node may be in several lists at once. It holds one [`Link`] for each, and the functions take an accessor that
/// returns the link of this list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { first: NIL, last: NIL };

    /// Returns the first node.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NIL).then_some(self.first)
    }

    /// Appends the node at `index`.
    pub(crate) fn push_back<T>(
        &mut self,
        pool: &mut Pool<T>,
        index: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        self.insert_after(pool, self.last, index, link);
    }

    /// Links the node at `index` in behind the node `at`; [`NIL`] puts it first.
    pub(crate) fn insert_after<T>(
        &mut self,
        pool: &mut Pool<T>,
        at: u32,
        index: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        let next = pool.get_mut(at).map_or(self.first, |node| link(node).next);
        if let Some(node) = pool.get_mut(index) {
            *link(node) = Link { prev: at, next };
        }
        match pool.get_mut(at) {
            Some(node) => link(node).next = index,
            None => self.first = index,
        }
        match pool.get_mut(next) {
            Some(node) => link(node).prev = index,
            None => self.last = index,
        }
    }

    /// Unlinks the node at `index`, which is in this list. Its own link keeps its values.
    pub(crate) fn unlink<T>(&mut self, pool: &mut Pool<T>, index: u32, link: impl Fn(&mut T) -> &mut Link) {
        let Some(Link { prev, next }) = pool.get_mut(index).map(|node| *link(node)) else { return };
        match pool.get_mut(prev) {
            Some(node) => link(node).next = next,
            None => self.first = next,
        }
        match pool.get_mut(next) {
            Some(node) => link(node).prev = prev,
            None => self.last = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_order_wherever_a_node_is_linked_or_unlinked() {
        let mut pool = Pool::new(8);
        let [a, b, c, d] = [0; 4].map(|_| pool.insert(Link::NONE).unwrap());
        let mut list = List::EMPTY;
        let order = |list: &List, pool: &Pool<Link>| -> (Vec<u32>, Vec<u32>) {
            let follow = |from: u32, step: fn(&Link) -> u32| {
                let step = |index: &u32| pool.get(*index).map(step).filter(|index| *index != NIL);
                core::iter::successors(Some(from).filter(|index| *index != NIL), step).collect()
            };
            (follow(list.first, |link| link.next), follow(list.last, |link| link.prev))
        };
        list.push_back(&mut pool, b, |link| link);
        list.push_back(&mut pool, d, |link| link);
        list.insert_after(&mut pool, NIL, a, |link| link);
        list.insert_after(&mut pool, b, c, |link| link);
        assert_eq!(order(&list, &pool), (std::vec![a, b, c, d], std::vec![d, c, b, a]));
        for (index, left) in [(b, &[a, c, d][..]), (a, &[c, d]), (d, &[c]), (c, &[])] {
            list.unlink(&mut pool, index, |link| link);
            let reversed: Vec<u32> = left.iter().rev().copied().collect();
            assert_eq!(order(&list, &pool), (left.to_vec(), reversed));
        }
        assert_eq!((list.first(), list.last), (None, NIL));
    }

    #[test]
    fn nodes_are_reused_and_the_limit_holds() {
        let mut pool = Pool::new(2);
        let a = pool.insert('a').unwrap();
        let b = pool.insert('b').unwrap();
        assert_eq!(pool.insert('c'), Err('c'));
        assert_eq!(pool.insert_with(|| panic!("full")), None);
        assert_eq!((pool.used(), pool.available()), (2, 0));
        assert_eq!(pool.remove(a), Some('a'));
        assert_eq!(pool.remove(a), None, "a freed index is dead");
        assert_eq!(pool.get(a), None);
        assert_eq!(pool.insert('d'), Ok(a), "the freed node is taken first");
        assert_eq!(pool.get(b), Some(&'b'));
        assert_eq!(pool.drop_if(b, |node| (*node == 'a').then_some(())), None, "it stays");
        assert_eq!(pool.drop_if(b, |node| (*node == 'b').then_some(7)), Some(7));
        assert_eq!((pool.get(b), pool.used()), (None, 1));
        assert_eq!(pool.drop_if(b, |_| Some(())), None);
        assert_eq!(pool.insert_with(|| 'e'), Some(b));
        assert_eq!(pool.get(NIL), None);
    }

    #[test]
    fn memory_is_reserved_once() {
        let mut pool = Pool::new(100);
        let before = pool.slots.capacity();
        for i in 0..100 {
            pool.insert(i).unwrap();
        }
        assert_eq!(pool.slots.capacity(), before);
    }
}
