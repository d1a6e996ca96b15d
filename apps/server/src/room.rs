//! Registered memory of a call: the data that was fetched for it, and room for the data of its reply.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::{Memory, Span};

/// Alignment of data in the memory, in bytes: copies of whole words are the fastest.
const ALIGNMENT: u64 = 64;

/// Registered memory of a call. Operations of the call use it one after the other.
#[derive(Debug)]
pub struct Room {
    memory: Arc<dyn Memory>,
    start: u64,
    end: u64,
    fetched: u32,
    /// Offset of the first byte that holds no data.
    free: AtomicU64,
}

impl Room {
    /// Returns the memory of a call in this range of bytes, which begins with `fetched` bytes of its data.
    pub fn new(memory: Arc<dyn Memory>, range: Range<u64>, fetched: u32) -> Self {
        let room = Self { memory, start: range.start, end: range.end, fetched, free: 0.into() };
        room.use_to(range.start.saturating_add(fetched.into()));
        room
    }

    /// Returns data that was fetched; `None` if the range is not inside it, or the kernel cannot access it.
    pub fn fetched(&self, range: Range<u32>) -> Option<Span> {
        let length = range.end.checked_sub(range.start).filter(|_| range.end <= self.fetched)?;
        let offset = self.start.checked_add(range.start.into())?;
        Span::new(Arc::clone(&self.memory), offset, length).filter(Span::is_mapped)
    }

    /// Returns room for data, which is free until [`Self::keep`]; `None` if there is not as much.
    pub fn take(&self, length: u32) -> Option<Span> {
        let free = self.free.load(Ordering::Relaxed);
        let end = free.checked_add(length.into())?;
        (end <= self.end).then(|| Span::new(Arc::clone(&self.memory), free, length))?
    }

    /// Keeps data in its place.
    pub fn keep(&self, data: &Span) {
        self.use_to(data.end());
    }

    /// Gives up all data: the whole memory is free.
    pub fn clear(&self) {
        self.use_to(self.start);
    }

    fn use_to(&self, offset: u64) {
        let aligned = offset.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
        self.free.store(aligned, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::region::testing::memory;

    proptest! {
        /// Data that is kept overlaps nothing: neither other data, nor what was fetched, nor bytes behind the room.
        #[test]
        fn kept_data_overlaps_nothing(
            start in 0..5000_u64, length in 0..5000_u64, fetched in 0..5000_u32,
            takes in prop::collection::vec((0..2000_u32, 0..2000_u32, any::<bool>()), 0..12),
        ) {
            let length = length.max(fetched.into());
            let room = Room::new(memory(start + length + 100), start..start + length, fetched);
            let mut end = start + u64::from(fetched);
            for (wanted, used, keeps) in takes {
                let Some(mut span) = room.take(wanted) else {
                    prop_assert!(end + u64::from(wanted) + ALIGNMENT > start + length, "there is room");
                    continue;
                };
                span.truncate(used);
                let first = span.end() - u64::from(span.length());
                prop_assert!(first >= end && first < end + ALIGNMENT);
                prop_assert!(first + u64::from(wanted) <= start + length);
                if keeps {
                    end = span.end();
                    room.keep(&span);
                }
            }
            for (from, to) in [(0, fetched), (fetched, fetched), (1, 0), (0, fetched + 1)] {
                prop_assert_eq!(room.fetched(from..to).is_some(), from <= to && to <= fetched);
            }
        }
    }
}
