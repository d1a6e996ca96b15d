//! Prefetch: loads the memory that the segments of a burst will need into the cache.
//!
//! With more connections than the cache holds, each segment waits for a dozen cache lines, one after the other.
//! Loads that do not depend on each other overlap if nothing waits for them in between. So a burst is processed in
//! passes; each pass loads, for all segments, the memory that the previous pass led to:
//!
//! ```text
//!   headers ──▶ entry of the table of flows ──▶ block, timer ──▶ oldest segment in flight ──▶ its buffer
//! ```
//!
//! The results are hints only: the handling of each segment compares the flow again.

use core::hint::black_box;

use arrayvec::ArrayVec;

use super::Stack;
use crate::buf::{Buf, RxChecksum, RxFrame};
use crate::pool::NIL;
use crate::time::Instant;

/// Frames prefetched together: as many as a port's driver returns at a time.
pub(super) const BURST: usize = 32;
/// Offset of the second cache line of a frame, bytes: the headers of common segments reach into it.
const HEADERS: usize = 64;
/// Number of slots below which most of the state fits into a cache of 2 MiB: there prefetching costs more than it
/// saves.
pub(super) const CONNECTIONS_MIN: u32 = 2048;

impl<B: Buf> Stack<B> {
    /// True if there are more connections than the cache holds.
    #[inline]
    pub(super) fn prefetches(&self) -> bool {
        self.conns.places() >= self.prefetch_from
    }

    /// Prefetches a burst; returns the likely slot of each segment's connection, [`NIL`] if unknown.
    #[inline(never)]
    pub(super) fn prefetch_burst(&self, frames: &[RxFrame<B>]) -> [u32; BURST] {
        for RxFrame { buf, .. } in frames {
            black_box((buf.bytes().get(HEADERS).copied(), buf.is_shared()));
        }
        let mut hashes = [None; BURST];
        let mut before = self.last.map(|(_, flow)| flow);
        for (hash, frame) in hashes.iter_mut().zip(frames) {
            // The checksums, and the source address, are verified when the segment is handled.
            let Some(plain) = self.interface.parse_plain(frame.buf.bytes(), RxChecksum::Looped) else {
                continue;
            };
            // Consecutive segments of one flow need one lookup.
            if before.replace(plain.flow) != Some(plain.flow) {
                *hash = Some(self.conns.hash(&plain.flow));
            }
        }
        let places = hashes.map(|hash| hash.and_then(|hash| self.conns.likely(hash)).unwrap_or(NIL));
        for place in places {
            self.conns.prefetch(place);
            self.wheel.prefetch(place);
        }
        let oldest = places.map(|place| self.conns.at(place).map_or(NIL, |conn| conn.snd.queue.head()));
        for node in oldest.iter().filter_map(|node| self.tx.get(*node)) {
            node.prefetch();
        }
        for node in oldest.iter().filter_map(|node| self.tx.get(*node)) {
            black_box(node.buf.as_ref().is_some_and(Buf::is_shared));
        }
        places
    }

    /// Returns more connections whose timers may have expired, and prefetches them.
    #[inline(never)]
    pub(super) fn pop_others(&mut self, now: Instant, budget: &mut u32) -> ArrayVec<u32, BURST> {
        let others = if self.prefetches() { BURST } else { 0 };
        let next = || self.wheel.pop_expired(now, budget);
        let others: ArrayVec<u32, BURST> = core::iter::from_fn(next).take(others).collect();
        for index in &others {
            self.conns.prefetch_timers(*index);
        }
        others
    }
}
