//! Local bytes of a work request: a slice of memory that the owner vouches for, a scatter/gather list that is checked
//! on every access, or inline bytes that were copied when the request was posted.

use crate::memory::{AccessError, LocalSlice};
use crate::wire::Stag;

/// Maximum number of elements of a scatter/gather list.
pub const SGE_MAX: usize = 16;

/// Element of a scatter/gather list (`ibv_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, in the memory region's address space.
    pub addr: u64,
    /// Length in bytes. An element of length 0 is skipped, and its key is not checked.
    pub length: u32,
    /// Key of the memory region.
    pub lkey: Stag,
}

/// Location of a work request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Slice of memory that the owner vouches for.
    Slice(LocalSlice),
    /// Scatter/gather list of memory regions.
    List(List),
    /// Inline data, copied when the request was posted.
    Inline {
        /// Index of the slot in [`Lists`].
        slot: u16,
        /// Length of the data in bytes.
        len: u32,
    },
}

/// Scatter/gather list stored in [`Lists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    slot: u16,
    sges: u16,
    pub(crate) len: u32,
}

impl Local {
    pub(crate) const EMPTY: Self = Self::Slice(LocalSlice::EMPTY);

    /// Returns the length in bytes.
    pub(crate) const fn len(&self) -> u32 {
        match self {
            Self::Slice(slice) => slice.len,
            Self::List(list) => list.len,
            Self::Inline { len, .. } => *len,
        }
    }
}

/// Storage for the scatter/gather lists and inline bytes of one queue: one slot per work request. The queue finishes
/// its work in the order of posting, so slots are used round-robin.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// Elements of the slots that have been used: memory is reserved for all, and touched as slots are used.
    sges: Vec<Sge>,
    per_slot: u32,
    /// Inline bytes of the slots that have been used.
    inline: Vec<u8>,
    inline_per_slot: u32,
    slots: u32,
    next: u32,
}

/// Makes room for a slot that is used for the first time.
#[cold]
fn extend<T: Clone + Default>(used: &mut Vec<T>, end: usize) {
    used.resize(end, T::default());
}

impl Lists {
    /// Creates `slots` slots, each of `sges` elements (at most [`SGE_MAX`]) and `inline` bytes.
    pub(crate) fn new(slots: usize, sges: usize, inline: usize) -> Self {
        let per_slot = sges.min(SGE_MAX);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            sges: Vec::with_capacity(slots.saturating_mul(per_slot)),
            per_slot: number(per_slot),
            inline: Vec::with_capacity(slots.saturating_mul(inline)),
            inline_per_slot: number(inline),
            slots: number(slots),
            next: 0,
        }
    }

    fn take_slot(&mut self) -> usize {
        let slot = self.next;
        let next = slot.saturating_add(1);
        self.next = if next < self.slots { next } else { 0 };
        slot as usize
    }

    /// Stores a list; `None` if it has more elements, or bytes, than allowed.
    pub(crate) fn keep(&mut self, list: &[Sge]) -> Option<Local> {
        if list.len() > self.per_slot as usize || self.slots == 0 {
            return None;
        }
        let len = list.iter().try_fold(0u32, |len, sge| len.checked_add(sge.length))?;
        let slot = self.take_slot();
        let start = slot.saturating_mul(self.per_slot as usize);
        if self.sges.len() <= start {
            extend(&mut self.sges, start.saturating_add(self.per_slot as usize));
        }
        for (to, from) in self.sges.get_mut(start..)?.iter_mut().zip(list) {
            *to = *from;
        }
        Some(Local::List(List {
            slot: u16::try_from(slot).ok()?,
            sges: u16::try_from(list.len()).ok()?,
            len,
        }))
    }

    /// Stores a copy of `bytes`; `None` if they exceed a slot.
    pub(crate) fn keep_inline(&mut self, bytes: &[u8]) -> Option<Local> {
        if bytes.len() > self.inline_per_slot as usize || self.slots == 0 {
            return None;
        }
        let slot = self.take_slot();
        let start = slot.saturating_mul(self.inline_per_slot as usize);
        if self.inline.len() <= start {
            extend(&mut self.inline, start.saturating_add(self.inline_per_slot as usize));
        }
        self.inline.get_mut(start..start.checked_add(bytes.len())?)?.copy_from_slice(bytes);
        Some(Local::Inline { slot: u16::try_from(slot).ok()?, len: u32::try_from(bytes.len()).ok()? })
    }

    /// Returns the elements of a stored list.
    #[inline]
    pub(crate) fn sges(&self, list: List) -> &[Sge] {
        let start = usize::from(list.slot).saturating_mul(self.per_slot as usize);
        self.sges.get(start..start.saturating_add(list.sges.into())).unwrap_or_default()
    }

    /// Returns the element of a list of length one, the common case.
    #[inline]
    pub(crate) fn only(&self, list: List) -> Option<&Sge> {
        match self.sges(list) {
            [sge] => Some(sge),
            _ => None,
        }
    }

    /// Returns `len` stored inline bytes from `skip` on.
    pub(crate) fn inline(&self, slot: u16, skip: u32, len: usize) -> &[u8] {
        let start =
            usize::from(slot).saturating_mul(self.inline_per_slot as usize).saturating_add(skip as usize);
        self.inline.get(start..start.saturating_add(len)).unwrap_or_default()
    }
}

/// Access tokens for a part of a scatter/gather list, in order.
#[derive(Debug)]
pub(crate) struct Tokens<T> {
    tokens: [Option<T>; SGE_MAX],
}

impl<T> Tokens<T> {
    /// Calls `check` for each element that holds some of the `len` bytes from `skip` on, and returns all tokens, or
    /// the first error.
    pub(crate) fn of(
        sges: &[Sge],
        skip: u32,
        len: usize,
        check: impl Fn(Stag, u64, usize) -> Result<T, AccessError>,
    ) -> Result<Self, AccessError> {
        let mut tokens = [const { None }; SGE_MAX];
        let mut places = tokens.iter_mut();
        let (mut skip, mut left) = (skip as usize, len);
        for sge in sges {
            let length = sge.length as usize;
            let here = length.saturating_sub(skip).min(left);
            if here > 0 {
                let address = sge.addr.checked_add(skip as u64).ok_or(AccessError::Wrap)?;
                let token = check(sge.lkey, address, here)?;
                *places.next().ok_or(AccessError::Bounds)? = Some(token);
            }
            skip = skip.saturating_sub(length);
            left = left.saturating_sub(here);
        }
        if left > 0 {
            return Err(AccessError::Bounds);
        }
        Ok(Self { tokens })
    }

    /// Returns true if the condition holds for each token.
    pub(crate) fn all(&self, holds: impl FnMut(&T) -> bool) -> bool {
        self.tokens.iter().flatten().all(holds)
    }
}

impl<T> IntoIterator for Tokens<T> {
    type Item = T;
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<T>, SGE_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.tokens.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn sge(lkey: u32, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: Stag(lkey) }
    }

    fn pieces(sges: &[Sge], skip: u32, len: usize) -> Option<Vec<(u32, u64, usize)>> {
        let tokens = Tokens::of(sges, skip, len, |lkey, address, len| Ok((lkey.0, address, len)));
        tokens.ok().map(|tokens| tokens.into_iter().collect())
    }

    #[test]
    fn part_of_a_list_is_taken_from_its_elements() {
        let list = [sge(1, 100, 10), sge(9, 0, 0), sge(2, 0, 5), sge(3, 7, 3)];
        assert_eq!(pieces(&list, 0, 18).unwrap(), [(1, 100, 10), (2, 0, 5), (3, 7, 3)]);
        assert_eq!(pieces(&list, 4, 6).unwrap(), [(1, 104, 6)]);
        assert_eq!(pieces(&list, 9, 3).unwrap(), [(1, 109, 1), (2, 0, 2)]);
        assert_eq!(pieces(&list, 10, 6).unwrap(), [(2, 0, 5), (3, 7, 1)]);
        assert_eq!(pieces(&list, 17, 1).unwrap(), [(3, 9, 1)]);
        assert_eq!(pieces(&list, 18, 0).unwrap(), []);
        assert_eq!(pieces(&list, 17, 2), None);
        assert_eq!(pieces(&[sge(1, u64::MAX, 4)], 2, 1), None);
        let refused = Tokens::of(&list, 12, 3, |lkey, _, _| match lkey.0 {
            2 => Err::<(), _>(AccessError::InvalidStag),
            _ => Ok(()),
        });
        assert_eq!(refused.err(), Some(AccessError::InvalidStag));
    }

    #[test]
    fn slots_are_used_in_turn() {
        let mut lists = Lists::new(2, 2, 4);
        let keep = |lists: &mut Lists, lkey| match lists.keep(&[sge(lkey, 0, 1), sge(lkey, 1, 2)]) {
            Some(Local::List(list)) => list,
            other => panic!("{other:?}"),
        };
        let (a, b) = (keep(&mut lists, 1), keep(&mut lists, 2));
        assert_eq!((a.len, lists.sges(a)[0].lkey, lists.sges(b)[1].lkey), (3, Stag(1), Stag(2)));
        let c = keep(&mut lists, 3);
        assert_eq!((lists.sges(c)[0].lkey, lists.sges(b)[0].lkey), (Stag(3), Stag(2)));
        assert_eq!(lists.only(c), None);
        let Some(Local::List(one)) = lists.keep(&[sge(4, 5, 6)]) else { panic!("it fits") };
        assert_eq!(lists.only(one), Some(&sge(4, 5, 6)));
        assert_eq!(lists.keep(&[Sge::default(); 3]), None);
        assert_eq!(lists.keep(&[sge(1, 0, u32::MAX), sge(1, 0, 1)]), None);
        assert_eq!(lists.keep_inline(&[1, 2, 3, 4]), Some(Local::Inline { slot: 0, len: 4 }));
        assert_eq!(lists.inline(0, 1, 3), [2, 3, 4]);
        assert_eq!(lists.keep_inline(&[0; 5]), None);
        assert_eq!(Lists::default().keep(&[]), None);
    }
}
