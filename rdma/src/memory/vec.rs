//! Memory regions in ordinary vectors.

use super::{Fetch, Memory, Message, Notification, Placement, RegionId, Word};
use crate::wire::atomic::AtomicOp;

/// [`Memory`] over vectors, numbered from 0: for initiators and tests.
#[derive(Debug, Default)]
pub struct VecMemory {
    regions: Vec<Vec<u8>>,
    faults: u64,
    watched: Vec<RegionId>,
    notified: Vec<Notified>,
}

/// [`Notification`] that a [`VecMemory`] has kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notified {
    /// Region of the notification.
    pub region: RegionId,
    /// Immediate Data, if it was that.
    pub immediate: Option<[u8; 8]>,
    /// The bytes of a Send.
    pub bytes: Vec<u8>,
    /// As [`Notification::solicited`].
    pub solicited: bool,
    /// As [`Notification::written`].
    pub written: u64,
}

impl VecMemory {
    /// Creates a memory without regions.
    pub const fn new() -> Self {
        Self { regions: Vec::new(), faults: 0, watched: Vec::new(), notified: Vec::new() }
    }

    /// Adds a region with these bytes; `None` after 2³² regions.
    pub fn add(&mut self, bytes: Vec<u8>) -> Option<RegionId> {
        let id = u32::try_from(self.regions.len()).ok()?;
        self.regions.push(bytes);
        Some(RegionId(id))
    }

    /// Returns the bytes of a region.
    pub fn bytes(&self, region: RegionId) -> Option<&[u8]> {
        self.regions.get(usize::try_from(region.0).ok()?).map(Vec::as_slice)
    }

    /// Returns the bytes of a region for modification.
    pub fn bytes_mut(&mut self, region: RegionId) -> Option<&mut [u8]> {
        self.regions.get_mut(usize::try_from(region.0).ok()?).map(Vec::as_mut_slice)
    }

    /// Returns the number of placements refused because the region does not have the bytes. A number above 0 means
    /// that a grant or a local slice was larger than its region.
    pub const fn faults(&self) -> u64 {
        self.faults
    }

    /// Keeps the notifications of a region from here on.
    pub fn watch(&mut self, region: RegionId) {
        self.watched.push(region);
    }

    /// Returns the notifications kept since the last call.
    pub fn take_notified(&mut self) -> Vec<Notified> {
        core::mem::take(&mut self.notified)
    }

    fn range(offset: u64, len: usize) -> Option<core::ops::Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        Some(start..start.checked_add(len)?)
    }
}

impl Memory for VecMemory {
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool {
        Self::range(offset, len).and_then(|range| self.bytes(region)?.get(range)).is_some()
    }

    fn place(&mut self, at: Placement, bytes: &[u8]) -> bool {
        let range = Self::range(at.offset(), bytes.len());
        match range.and_then(|range| self.bytes_mut(at.region())?.get_mut(range)) {
            Some(to) if at.len() == bytes.len() => {
                to.copy_from_slice(bytes);
                true
            }
            _ => {
                self.faults = self.faults.saturating_add(1);
                false
            }
        }
    }

    /// Copies zeros for bytes that the region does not have.
    fn fetch(&self, from: Fetch, out: &mut [u8]) -> bool {
        let range = Self::range(from.offset(), out.len());
        match range.and_then(|range| self.bytes(from.region())?.get(range)) {
            Some(bytes) if from.len() == out.len() => {
                out.copy_from_slice(bytes);
                true
            }
            _ => {
                out.fill(0);
                false
            }
        }
    }

    fn atomic(&mut self, at: Word, op: AtomicOp) -> Option<u64> {
        let range = Self::range(at.offset(), size_of::<u64>());
        let bytes = range.and_then(|range| self.bytes_mut(at.region())?.get_mut(range)?.first_chunk_mut());
        let Some(bytes) = bytes else {
            self.faults = self.faults.saturating_add(1);
            return None;
        };
        let original = u64::from_ne_bytes(*bytes);
        if let Some(value) = op.apply(original) {
            *bytes = value.to_ne_bytes();
        }
        Some(original)
    }

    fn is_watched(&self, region: RegionId) -> bool {
        self.watched.contains(&region)
    }

    fn notify(&mut self, region: RegionId, notification: &Notification<'_>) {
        let Notification { message, solicited, written } = *notification;
        let (immediate, bytes) = match message {
            Message::Immediate(data) => (Some(data), Vec::new()),
            Message::Send(bytes) => (None, bytes.to_vec()),
        };
        self.notified.push(Notified { region, immediate, bytes, solicited, written });
    }
}

#[cfg(test)]
mod tests {
    use super::VecMemory;
    use crate::memory::{Fetch, Memory, Placement, RegionId, Word};
    use crate::wire::atomic::AtomicOp;

    #[test]
    fn copies_in_and_out() {
        let mut memory = VecMemory::new();
        let region = memory.add(vec![0; 8]).unwrap();
        assert!(memory.place(Placement::checked(region, 6, 2), &[1, 2]));
        let mut out = [9; 3];
        assert!(memory.fetch(Fetch::checked(region, 5, 3), &mut out));
        assert_eq!(out, [0, 1, 2]);
        assert_eq!(memory.faults(), 0);
    }

    #[test]
    fn a_token_beyond_the_region_touches_nothing() {
        let mut memory = VecMemory::new();
        let region = memory.add(vec![7; 8]).unwrap();
        assert!(!memory.place(Placement::checked(region, 7, 2), &[1, 2]));
        assert!(!memory.place(Placement::checked(RegionId(9), 0, 1), &[1]));
        assert!(!memory.place(Placement::checked(region, u64::MAX, 1), &[1]));
        assert_eq!(memory.bytes(region), Some(&[7; 8][..]));
        assert_eq!(memory.faults(), 3);
        assert!(memory.holds(region, 0, 8) && memory.holds(region, 8, 0));
        assert!(!memory.holds(region, 7, 2) && !memory.holds(RegionId(9), 0, 1));
        assert!(!memory.holds(region, u64::MAX, 1) && !memory.holds(region, 1, usize::MAX));
        let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
        assert_eq!(memory.atomic(Word::checked(region, 8).unwrap(), add), None);
        assert_eq!((memory.bytes(region), memory.faults()), (Some(&[7; 8][..]), 4));
        let mut out = [9; 2];
        assert!(!memory.fetch(Fetch::checked(region, 7, 2), &mut out));
        assert_eq!(out, [0, 0]);
    }
}
