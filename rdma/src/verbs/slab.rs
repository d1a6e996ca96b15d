//! Table of objects, whose handles are not reused soon. A [`Device`](super::Device) has one per type of object.

/// Objects by handle. [`Slab::new`] reserves the table; memory is touched as slots are used for the first time.
///
/// A handle has a slot index of `INDEX_BITS` bits, and above it a generation of eight bits, counted from 1, that
/// changes whenever the slot is reused. A stale handle does not name another object until its slot was used 255 times.
/// With the default of 16 bits, a handle has 24 bits, like a queue pair number.
#[derive(Debug)]
pub(super) struct Slab<T, const INDEX_BITS: u32 = 16> {
    slots: Vec<Place<T>>,
    /// Indices of slots that were used and are free.
    free: Vec<u32>,
    capacity: u32,
}

/// Slot of the table. It begins at a cache line, so that a lookup reads one line of a small object.
#[derive(Debug)]
#[repr(align(64))]
struct Place<T> {
    generation: u8,
    object: Option<T>,
}

impl<T, const INDEX_BITS: u32> Slab<T, INDEX_BITS> {
    const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

    /// Reserves `capacity` slots, at most 2^`INDEX_BITS`.
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(1 << INDEX_BITS);
        Self {
            slots: Vec::with_capacity(capacity as usize),
            free: Vec::with_capacity(capacity as usize),
            capacity,
        }
    }

    /// Adds an object and returns its handle; `None` if the table is full.
    pub(super) fn insert(&mut self, object: T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < self.capacity)?;
                self.slots.push(Place { generation: 0, object: None });
                index
            }
        };
        let place = self.slots.get_mut(index as usize)?;
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        place.object = Some(object);
        Some(u32::from(place.generation) << INDEX_BITS | index)
    }

    fn place(&self, name: u32) -> Option<&Place<T>> {
        let place = self.slots.get((name & Self::INDEX_MASK) as usize);
        place.filter(|place| u32::from(place.generation) == name >> INDEX_BITS)
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.place(name)?.object.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let place = self.slots.get_mut((name & Self::INDEX_MASK) as usize)?;
        if u32::from(place.generation) == name >> INDEX_BITS { place.object.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let object = self.get_mut(name).is_some();
        let index = Some(name & Self::INDEX_MASK).filter(|_| object)?;
        self.free.push(index);
        self.slots.get_mut(index as usize)?.object.take()
    }

    /// Returns the number of slots that were used, and may be again.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Returns the object of a slot, with its handle.
    pub(super) fn at(&self, slot: u32) -> Option<(u32, &T)> {
        let place = self.slots.get(slot as usize)?;
        Some((u32::from(place.generation) << INDEX_BITS | slot, place.object.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

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
