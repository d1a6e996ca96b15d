//! Table of objects, whose handles are not reused soon.

/// Objects by handle. [`Slab::new`] allocates the table; it does not grow.
///
/// A handle has 24 bits, like a queue pair number: a slot index of sixteen bits, and above it a generation of eight
/// bits, counted from 1, that changes whenever the slot is reused. A stale handle does not name another object until
/// its slot was used 255 times.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Place<T>>,
    free: Vec<u16>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u8,
    object: Option<T>,
}

impl<T> Slab<T> {
    pub(super) fn new(capacity: u16) -> Self {
        let slots = (0..capacity).map(|_| Place { generation: 0, object: None }).collect();
        Self { slots, free: (0..capacity).rev().collect() }
    }

    /// Adds an object and returns its handle; `None` if the table is full.
    pub(super) fn insert(&mut self, object: T) -> Option<u32> {
        let index = self.free.pop()?;
        let place = self.slots.get_mut(usize::from(index))?;
        place.generation = place.generation.checked_add(1).unwrap_or(1);
        place.object = Some(object);
        Some(u32::from(place.generation) << 16 | u32::from(index))
    }

    fn place(&self, name: u32) -> Option<&Place<T>> {
        self.slots.get((name & 0xffff) as usize).filter(|place| u32::from(place.generation) == name >> 16)
    }

    #[inline]
    pub(super) fn get(&self, name: u32) -> Option<&T> {
        self.place(name)?.object.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let place = self.slots.get_mut((name & 0xffff) as usize)?;
        if u32::from(place.generation) == name >> 16 { place.object.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, name: u32) -> Option<T> {
        let object = self.get_mut(name).is_some();
        let index = u16::try_from(name & 0xffff).ok().filter(|_| object)?;
        self.free.push(index);
        self.slots.get_mut(usize::from(index))?.object.take()
    }

    /// Returns all objects with their handles.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, place): (u32, _)| {
            Some((u32::from(place.generation) << 16 | index, place.object.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_stale_handle_names_no_object() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.insert('a').unwrap(), slab.insert('b').unwrap());
        assert_eq!(slab.insert('c'), None);
        assert_eq!((slab.get(a).copied(), slab.get_mut(b).copied()), (Some('a'), Some('b')));
        assert_eq!((slab.remove(a), slab.remove(a)), (Some('a'), None));
        let c = slab.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((slab.get(a), slab.get(c)), (None, Some(&'c')));
        assert_eq!(slab.iter().map(|(name, it)| (name, *it)).collect::<Vec<_>>(), [(c, 'c'), (b, 'b')]);
        assert_eq!((slab.get(0), slab.get(u32::MAX)), (None, None));
        for _ in 0..600 {
            let name = slab.iter().next().unwrap().0;
            slab.remove(name).unwrap();
            assert!(slab.insert('d').unwrap() > 0xffff);
        }
    }
}
