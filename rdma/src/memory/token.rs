//! Tokens that a check issues and a copy consumes.

use super::RegionId;

/// Memory that its owner offers to an operation of its own. The owner vouches for the bounds; no STag limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// Region of the slice.
    pub region: RegionId,
    /// Offset in the region in bytes.
    pub offset: u64,
    /// Length of the slice in bytes.
    pub len: u32,
}

impl LocalSlice {
    /// The empty slice, for messages without bytes.
    pub const EMPTY: Self = Self { region: RegionId(0), offset: 0, len: 0 };
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Issued by a check only; consumed by the copy.
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

            /// Returns the token for `len` bytes of a local slice from `skip` on; `None` if they exceed the slice.
            pub(crate) fn local(slice: &LocalSlice, skip: u32, len: usize) -> Option<Self> {
                let end = u64::try_from(len).ok()?.checked_add(u64::from(skip))?;
                if end > u64::from(slice.len) {
                    return None;
                }
                Some(Self { region: slice.region, offset: slice.offset.checked_add(u64::from(skip))?, len })
            }

            /// Returns the region of the token.
            #[inline]
            pub const fn region(&self) -> RegionId {
                self.region
            }

            /// Returns the offset in the region in bytes.
            #[inline]
            pub const fn offset(&self) -> u64 {
                self.offset
            }

            /// Returns the length in bytes.
            #[inline]
            #[allow(clippy::len_without_is_empty, reason = "a token for nothing is not made")]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Splits the token after `len` bytes (or after all, if there are fewer).
            #[must_use]
            pub fn split_at(self, len: usize) -> (Self, Self) {
                let first = len.min(self.len);
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
    /// Right to write bytes of a region.
    Placement
}
token! {
    /// Right to read bytes of a region.
    Fetch
}

impl Fetch {
    /// Returns the same token, for a copy that is tried again.
    pub(crate) const fn again(&self) -> Self {
        Self { region: self.region, offset: self.offset, len: self.len }
    }
}

/// Right to change eight bytes of a region atomically, at a multiple of eight from its start.
///
/// Issued by a check only; consumed by the operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Word {
    region: RegionId,
    offset: u64,
}

impl Word {
    /// Returns the token; `None` if the bytes are not aligned.
    pub(super) const fn checked(region: RegionId, offset: u64) -> Option<Self> {
        if offset.is_multiple_of(8) { Some(Self { region, offset }) } else { None }
    }

    /// Returns the region of the token.
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// Returns the offset in the region in bytes.
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
