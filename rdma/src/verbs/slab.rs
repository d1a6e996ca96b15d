//! Table of objects, whose handles are not reused soon. A [`Device`](super::Device) has one per type of object.

use std::collections::VecDeque;

/// Objects by handle. [`Slab::new`] reserves the table; memory is touched as slots are used for the first time.
///
/// A handle has a slot index of `INDEX_BITS` bits, and above it a generation, counted from 1 to `GENERATIONS`, a number
/// of ones in binary, that changes whenever the slot is reused. A stale handle does not name another object until its
/// slot was used as often. With the defaults a handle has 24 bits. Bits above those are the table's:
/// [`Slab::set_base`].
#[derive(Debug)]
pub(super) struct Slab<T, const INDEX_BITS: u32 = 16, const GENERATIONS: u8 = 255> {
    slots: Vec<Place<T>>,
    /// Indices of slots that were used and are free.
    free: VecDeque<u32>,
    /// Free slots that are kept before the first of them is used again; with none, the last one is used first.
    spare: usize,
    capacity: u32,
    base: u32,
}

/// Slot of the table. It begins at a cache line, so that a lookup reads one line of a small object.
#[derive(Debug)]
#[repr(align(64))]
struct Place<T> {
    /// Handle of its object, or of the last one that it had.
    handle: u32,
    object: Option<T>,
}

impl<T, const INDEX_BITS: u32, const GENERATIONS: u8> Slab<T, INDEX_BITS, GENERATIONS> {
    const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

    /// Reserves `capacity` slots, at most 2^`INDEX_BITS`.
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(1 << INDEX_BITS);
        Self {
            slots: Vec::with_capacity(capacity as usize),
            free: VecDeque::with_capacity(capacity as usize),
            spare: 0,
            capacity,
            base: 0,
        }
    }

    /// Returns a table of up to `capacity` slots that reserves none: it grows as objects are added.
    pub(super) fn growing(capacity: u32) -> Self {
        Self { capacity: capacity.min(1 << INDEX_BITS), ..Self::new(0) }
    }

    /// Uses the slot that has been free longest, and others before it while fewer than `spare` are free: few
    /// generations then last longer.
    pub(super) fn with_spare(self, spare: usize) -> Self {
        Self { spare, ..self }
    }

    /// Sets the bits of all handles above index and generation. Returns false if there is an object.
    pub(super) fn set_base(&mut self, base: u32) -> bool {
        let is_empty = self.free.len() == self.slots.len();
        if is_empty {
            self.base = base;
        }
        is_empty
    }

    /// Returns the bits of all handles above index and generation.
    pub(super) const fn base(&self) -> u32 {
        self.base
    }

    /// Returns the handle of a slot's next object.
    const fn next_handle(&self, last: u32) -> u32 {
        let generations = GENERATIONS as u32;
        let last_generation = last >> INDEX_BITS & generations;
        let generation = if last_generation < generations { last_generation.wrapping_add(1) } else { 1 };
        self.base | generation << INDEX_BITS | last & Self::INDEX_MASK
    }

    /// Adds an object and returns its handle; `None` if the table is full.
    pub(super) fn insert(&mut self, object: T) -> Option<u32> {
        let is_full = self.slots.len() >= self.capacity as usize;
        let reused = match self.spare {
            0 => self.free.pop_back(),
            spare if self.free.len() >= spare || is_full => self.free.pop_front(),
            _ => None,
        };
        let index = match reused {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < self.capacity)?;
                self.slots.push(Place { handle: index, object: None });
                index
            }
        };
        let handle = self.next_handle(self.slots.get(index as usize)?.handle);
        *self.slots.get_mut(index as usize)? = Place { handle, object: Some(object) };
        Some(handle)
    }

    fn place(&self, name: u32) -> Option<&Place<T>> {
        self.slots.get((name & Self::INDEX_MASK) as usize).filter(|place| place.handle == name)
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.place(name)?.object.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let place = self.slots.get_mut((name & Self::INDEX_MASK) as usize)?;
        if place.handle == name { place.object.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let object = self.get_mut(name).is_some();
        let index = Some(name & Self::INDEX_MASK).filter(|_| object)?;
        self.free.push_back(index);
        self.slots.get_mut(index as usize)?.object.take()
    }

    /// Returns the number of slots that were used, and may be again.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Returns the object of a slot, with its handle.
    pub(super) fn at(&self, slot: u32) -> Option<(u32, &T)> {
        let place = self.slots.get(slot as usize)?;
        Some((place.handle, place.object.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    /// As those of queue pairs: few generations, bits above them, and slots that are spared.
    #[test]
    fn the_slot_that_was_free_longest_is_used_again() {
        let mut slab = Slab::<u8, 4, 3>::new(8).with_spare(4);
        assert!(slab.set_base(5 << 6));
        let mut names = Vec::new();
        for _ in 0..12 {
            let name = slab.insert(1).unwrap();
            assert!(!slab.set_base(0) && slab.get(name).is_some() && slab.get(name ^ 1 << 6).is_none());
            slab.remove(name).unwrap();
            names.push((name >> 6, name >> 4 & 3, name & 15));
        }
        let expected = |generation| (0..4).map(move |slot| (5, generation, slot));
        assert_eq!(names, (1..=3).flat_map(expected).collect::<Vec<_>>());
        // After its last generation a slot begins anew.
        assert_eq!(slab.insert(1).unwrap() & 63, 1 << 4);
        assert_eq!((0..9).filter_map(|_| slab.insert(1)).count(), 7);
    }

    fn all<const N: u32>(slab: &Slab<char, N>) -> Vec<(u32, char)> {
        (0..slab.slots()).filter_map(|slot| slab.at(slot)).map(|(name, value)| (name, *value)).collect()
    }

    #[test]
    fn a_stale_handle_names_no_object() {
        let mut slab = Slab::<char>::new(2);
        let (a, b) = (slab.insert('a').unwrap(), slab.insert('b').unwrap());
        assert_eq!(slab.insert('c'), None);
        assert_eq!((slab.get(a).copied(), slab.get_mut(b).copied()), (Some('a'), Some('b')));
        assert_eq!((slab.remove(a), slab.remove(a)), (Some('a'), None));
        let c = slab.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((slab.get(a), slab.get(c)), (None, Some(&'c')));
        assert_eq!(all(&slab), [(c, 'c'), (b, 'b')]);
        assert_eq!((slab.get(0), slab.get(u32::MAX)), (None, None));
        for _ in 0..600 {
            let name = all(&slab)[0].0;
            slab.remove(name).unwrap();
            assert!(slab.insert('d').unwrap() > 0xffff);
        }
    }

    #[test]
    fn a_table_of_more_than_65536_slots_has_wider_indices() {
        let mut slab = Slab::<u32, 24>::new(100_000);
        let handles: Vec<u32> = (0..100_000).map(|value| slab.insert(value).unwrap()).collect();
        assert_eq!(slab.insert(0), None);
        assert!(handles.iter().zip(0..).all(|(handle, value)| slab.get(*handle) == Some(&value)));
        assert_eq!(slab.remove(handles[99_999]), Some(99_999));
        let again = slab.insert(7).unwrap();
        assert_eq!((again & 0xff_ffff, slab.get(handles[99_999])), (99_999, None));
        // A capacity beyond the bits of an index is cut.
        let mut small = Slab::<u32, 2>::new(100);
        assert_eq!((0..9).filter_map(|value| small.insert(value)).count(), 4);
    }
}
