//! Completions of a completion queue, oldest first, in a list: entries in the middle are removed without moving others.

use super::completion::Cqe;

/// Index of an entry, or [`NONE`].
pub(super) type Link = u32;

/// No entry: the end of the list, or the place before the first.
pub(super) const NONE: Link = u32::MAX;

#[derive(Debug)]
struct Entry {
    cqe: Cqe,
    next: Link,
}

/// List of completions. Places that were used last are used again first, so that a queue that is polled soon stays in
/// the cache, and a long one takes as much memory as it ever had entries.
#[derive(Debug)]
pub(super) struct Entries {
    places: Vec<Entry>,
    /// Places that were used and are free.
    free: Link,
    pub(super) first: Link,
    last: Link,
    pub(super) len: usize,
}

impl Entries {
    /// Reserves places for `most` entries, which take no memory before they are used.
    pub(super) fn new(most: usize) -> Self {
        Self { places: Vec::with_capacity(most), free: NONE, first: NONE, last: NONE, len: 0 }
    }

    /// Returns the number of entries for which there is memory.
    pub(super) fn most(&self) -> usize {
        self.places.capacity()
    }

    /// Removes all entries at once.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        (self.free, self.first, self.last, self.len) = (NONE, NONE, NONE, 0);
    }

    /// Returns the entry behind `link`: the first one if that is [`NONE`].
    pub(super) fn after(&self, link: Link) -> Link {
        match self.places.get(link as usize) {
            Some(entry) => entry.next,
            None => self.first,
        }
    }

    /// Returns an entry; `None` at the end of the list.
    pub(super) fn get(&self, link: Link) -> Option<&Cqe> {
        self.places.get(link as usize).map(|entry| &entry.cqe)
    }

    /// Adds an entry at the end.
    #[inline]
    pub(super) fn push(&mut self, cqe: Cqe) {
        let entry = Entry { cqe, next: NONE };
        let link = match self.places.get_mut(self.free as usize) {
            Some(place) => {
                let link = self.free;
                self.free = place.next;
                *place = entry;
                link
            }
            None => {
                let link = Link::try_from(self.places.len()).unwrap_or(NONE);
                self.places.push(entry);
                link
            }
        };
        match self.places.get_mut(self.last as usize) {
            Some(last) => last.next = link,
            None => self.first = link,
        }
        self.last = link;
        self.len = self.len.saturating_add(1);
    }

    /// Takes the oldest entry.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Cqe> {
        let cqe = *self.get(self.first)?;
        self.remove(NONE, self.first);
        Some(cqe)
    }

    /// Removes the entry `link`, which is behind `before`.
    #[inline]
    pub(super) fn remove(&mut self, before: Link, link: Link) {
        let Some(entry) = self.places.get_mut(link as usize) else { return };
        let next = core::mem::replace(&mut entry.next, self.free);
        self.free = link;
        match self.places.get_mut(before as usize) {
            Some(before) => before.next = next,
            None => self.first = next,
        }
        if self.last == link {
            self.last = before;
        }
        self.len = self.len.saturating_sub(1);
    }
}
