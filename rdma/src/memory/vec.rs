//! Memory regions in ordinary vectors.

use core::cell::Cell;
use core::task::Poll;

use super::slow::{COPIES_MAX, COPIES_OF_SEGMENT, Copy, Slow};
use super::{
    AHEAD_BYTES, Ahead, CopyState, Fetch, Memory, Message, Notification, Placement, Reach, RegionId,
    StreamId, Ticket, Word,
};
use crate::wire::atomic::AtomicOp;

/// [`Memory`] over vectors, numbered from 0: for initiators and tests.
#[derive(Debug, Default)]
pub struct VecMemory {
    regions: Vec<Vec<u8>>,
    faults: u64,
    watched: Vec<RegionId>,
    notified: Vec<Notified>,
    /// Copies that [`Self::defer`] defers.
    slow: Option<Box<Slow>>,
    /// Stream that [`Memory::reach`] was asked for last.
    stream: Cell<u64>,
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
        Self {
            regions: Vec::new(),
            faults: 0,
            watched: Vec::new(),
            notified: Vec::new(),
            slow: None,
            stream: Cell::new(0),
        }
    }

    /// Defers all copies of a region from here on, until [`Self::copy_one`] makes them, one after the other.
    pub fn defer(&mut self, region: RegionId) {
        self.slow.get_or_insert_default().regions.insert(region);
    }

    /// Returns the number of deferred copies that wait.
    pub fn deferred(&self) -> usize {
        self.slow.as_ref().map_or(0, |slow| slow.queue.len())
    }

    /// Makes the oldest deferred copy, or lets it fail. Returns false if none waits.
    pub fn copy_one(&mut self, works: bool) -> bool {
        let Some(slow) = &mut self.slow else { return false };
        let Some((stream, copy)) = slow.queue.pop_front() else { return false };
        slow.done = slow.done.wrapping_add(1);
        if !(works && self.make(stream, copy))
            && let Some(slow) = &mut self.slow
        {
            slow.failed.insert(stream);
        }
        true
    }

    fn make(&mut self, stream: u64, copy: Copy) -> bool {
        match copy {
            Copy::Place(region, offset, bytes) => {
                let range = Self::range(offset, bytes.len());
                let to = range.and_then(|range| self.bytes_mut(region)?.get_mut(range));
                to.map(|to| to.copy_from_slice(&bytes)).is_some()
            }
            Copy::Read { region, offset, len, slot } => {
                let range = Self::range(offset, len);
                let from = range.and_then(|range| self.bytes(region)?.get(range)).map(<[u8]>::to_vec);
                let (Some(from), Some(slow)) = (from, &mut self.slow) else { return false };
                slow.read.entry(slot).or_default().extend(from);
                true
            }
            Copy::Atomic(region, offset, op) => {
                let original = self.update(region, offset, op);
                if let (Some(original), Some(slow)) = (original, &mut self.slow) {
                    slow.originals.insert(stream, original);
                }
                original.is_some()
            }
        }
    }

    fn update(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Option<u64> {
        let range = Self::range(offset, size_of::<u64>());
        let bytes = range.and_then(|range| self.bytes_mut(region)?.get_mut(range)?.first_chunk_mut())?;
        let original = u64::from_ne_bytes(*bytes);
        if let Some(value) = op.apply(original) {
            *bytes = value.to_ne_bytes();
        }
        Some(original)
    }

    /// Queues bytes for a region whose copies are deferred. Returns false for other regions.
    #[cold]
    fn defers(&mut self, at: &Placement, bytes: &[u8]) -> bool {
        let stream = self.stream.get();
        let slow = if at.len() == bytes.len() { self.slow_mut(at.region()) } else { None };
        let Some(slow) = slow else { return false };
        slow.push(stream, Copy::Place(at.region(), at.offset(), bytes.to_vec()));
        true
    }

    fn slow_of(&self, region: RegionId) -> Option<&Slow> {
        self.slow.as_deref().filter(|slow| slow.regions.contains(&region))
    }

    fn slow_mut(&mut self, region: RegionId) -> Option<&mut Slow> {
        self.slow.as_deref_mut().filter(|slow| slow.regions.contains(&region))
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

    #[inline]
    fn place(&mut self, at: Placement, bytes: &[u8]) -> bool {
        if self.slow.is_some() && self.defers(&at, bytes) {
            return true;
        }
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
        let original = self.update(at.region(), at.offset(), op);
        if original.is_none() {
            self.faults = self.faults.saturating_add(1);
        }
        original
    }

    fn reach(&self, stream: StreamId, region: RegionId, offset: u64, len: usize) -> Reach {
        if !self.holds(region, offset, len) {
            return Reach::Gone;
        }
        let Some(slow) = self.slow_of(region) else { return Reach::Direct };
        self.stream.set(stream.0);
        if slow.queue.len() as u64 <= COPIES_MAX.saturating_sub(COPIES_OF_SEGMENT) {
            return Reach::Deferred;
        }
        let number = slow.queued.saturating_sub(COPIES_MAX.saturating_sub(COPIES_OF_SEGMENT));
        Reach::Busy(Ticket { queue: 1, number })
    }

    fn direct_len(&self, region: RegionId, _: u64, len: usize) -> usize {
        if self.slow_of(region).is_some() { 0 } else { len }
    }

    fn last_queued(&self) -> Option<Ticket> {
        self.slow.as_ref().map(|slow| slow.last())
    }

    fn copy_state(&mut self, stream: StreamId, ticket: Ticket) -> CopyState {
        let Some(slow) = &mut self.slow else { return CopyState::Failed };
        if slow.failed.remove(&stream.0) {
            return CopyState::Failed;
        }
        if slow.done >= ticket.number { CopyState::Done } else { CopyState::Pending }
    }

    fn read_ahead(
        &mut self,
        stream: StreamId,
        tokens: &mut dyn Iterator<Item = Fetch>,
    ) -> Result<Ahead, Reach> {
        let slow = self.slow.as_mut().ok_or(Reach::Gone)?;
        slow.slots = slow.slots.wrapping_add(1);
        let (slot, mut all) = (slow.slots, 0_usize);
        for token in tokens {
            let len = token.len().min(AHEAD_BYTES.saturating_sub(all));
            all = all.saturating_add(len);
            let (region, offset) = (token.region(), token.offset());
            slow.push(stream.0, Copy::Read { region, offset, len, slot });
        }
        Ok(Ahead { ticket: slow.last(), slot, len: all })
    }

    fn fetch_ahead(&self, ahead: &Ahead, skip: usize, out: &mut [u8]) -> bool {
        let bytes = self.slow.as_ref().and_then(|slow| slow.read.get(&ahead.slot));
        let part = bytes.and_then(|bytes| bytes.get(skip..skip.saturating_add(out.len())));
        part.map(|part| out.copy_from_slice(part)).is_some()
    }

    fn release(&mut self, ahead: Ahead) {
        if let Some(slow) = &mut self.slow {
            slow.read.remove(&ahead.slot);
        }
    }

    fn begin_atomic(&mut self, stream: StreamId, at: Word, op: AtomicOp) -> Option<Ticket> {
        let slow = self.slow_mut(at.region())?;
        Some(slow.push(stream.0, Copy::Atomic(at.region(), at.offset(), op)))
    }

    /// Each value is to be had at the second attempt.
    fn take_atomic(&mut self, stream: StreamId, ticket: Ticket) -> Poll<Option<u64>> {
        let Some(slow) = self.slow.as_mut() else { return Poll::Ready(None) };
        if slow.asked.insert(ticket.number) {
            return Poll::Pending;
        }
        slow.asked.remove(&ticket.number);
        Poll::Ready(slow.originals.remove(&stream.0))
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
