//! The tokens that stand between a check and a copy.

use super::RegionId;

/// Memory that its owner offers to an operation of its own. The owner answers for the bounds: they are not
/// those of any STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// The region.
    pub region: RegionId,
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl LocalSlice {
    /// No memory: for messages without bytes.
    pub const EMPTY: Self = Self { region: RegionId(0), offset: 0, len: 0 };
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Made by a check only; used up by the copy.
        #[derive(Debug, PartialEq, Eq)]
        pub struct $name {
            region: RegionId,
            offset: u64,
            len: usize,
        }

        impl $name {
            pub(super) const fn checked(region: RegionId, offset: u64, len: usize) -> Self {
                Self { region, offset, len }
            }

            /// The part of a local slice from `skip` on, `len` bytes long; `None` if it reaches over the end.
            pub(crate) fn local(slice: &LocalSlice, skip: u32, len: usize) -> Option<Self> {
                let end = u64::try_from(len).ok()?.checked_add(u64::from(skip))?;
                if end > u64::from(slice.len) {
                    return None;
                }
                Some(Self { region: slice.region, offset: slice.offset.checked_add(u64::from(skip))?, len })
            }

            /// The region.
            #[inline]
            pub const fn region(&self) -> RegionId {
                self.region
            }

            /// Bytes from the start of the region.
            #[inline]
            pub const fn offset(&self) -> u64 {
                self.offset
            }

            /// Bytes.
            #[inline]
            #[allow(clippy::len_without_is_empty, reason = "a token for nothing is not made")]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Two tokens: the first `n` bytes (all of them if there are fewer), and the rest.
            #[must_use]
            pub fn split_at(self, n: usize) -> (Self, Self) {
                let first = n.min(self.len);
                let rest = self.len.saturating_sub(first);
                (
                    Self { len: first, ..self },
                    Self { region: self.region, offset: self.offset.saturating_add(first as u64), len: rest },
                )
            }
        }
    };
}

token! {
    /// The right to write these bytes of a region.
    Placement
}
token! {
    /// The right to read these bytes of a region.
    Fetch
}

/// The right to change eight bytes of a region as one, at a multiple of eight from its start.
///
/// Made by a check only; used up by the operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Word {
    region: RegionId,
    offset: u64,
}

impl Word {
    /// `None` where the bytes are not aligned.
    pub(super) const fn checked(region: RegionId, offset: u64) -> Option<Self> {
        if offset.is_multiple_of(8) { Some(Self { region, offset }) } else { None }
    }

    /// The region.
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// Bytes from the start of the region.
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::{LocalSlice, Placement};
    use crate::memory::RegionId;

    #[test]
    fn a_split_covers_the_same_bytes() {
        let (a, b) = Placement::checked(RegionId(3), 100, 10).split_at(4);
        assert_eq!((a.region(), a.offset(), a.len()), (RegionId(3), 100, 4));
        assert_eq!((b.region(), b.offset(), b.len()), (RegionId(3), 104, 6));
        let (a, b) = b.split_at(99);
        assert_eq!((a.len(), b.len(), b.offset()), (6, 0, 110));
    }

    #[test]
    fn a_local_token_stays_inside_its_slice() {
        let slice = LocalSlice { region: RegionId(1), offset: 64, len: 10 };
        assert_eq!(Placement::local(&slice, 4, 6), Some(Placement::checked(RegionId(1), 68, 6)));
        assert_eq!(Placement::local(&slice, 4, 7), None);
        assert_eq!(Placement::local(&LocalSlice { offset: u64::MAX, ..slice }, 1, 1), None);
    }
}
