//! Looking ahead: what the segments of a burst will need is fetched into the cache together.
//!
//! Of more connections than the cache holds, each segment waits for a dozen lines of memory, one after the other. Loads
//! that do not depend on each other overlap if nothing in between waits for them. So a burst is gone through in rounds,
//! each of which loads, for all its segments, what the round before has led to:
//!
//! ```text
//!   headers ──▶ entry of the table of flows ──▶ block, timer ──▶ oldest segment in flight ──▶ its buffer
//! ```
//!
//! Nothing depends on what is found: whoever takes the segment looks at the flow again.

use core::hint::black_box;

use arrayvec::ArrayVec;

use super::Stack;
use crate::buf::{Buf, RxChecksum, RxFrame};
use crate::pool::NIL;
use crate::time::Instant;

/// Frames that are looked at together: as many as a port's driver gives at a time.
pub(super) const BURST: usize = 32;
/// How far headers go into a frame, in the form that nearly all have: into its second cache line, bytes.
const HEADERS: usize = 64;
/// With fewer connections than this, what segments need is mostly in a cache of 2 MiB: there a look ahead costs more than it saves.
pub(super) const CONNECTIONS_MIN: u32 = 2048;

impl<B: Buf> Stack<B> {
    /// Whether there are more connections than the cache holds.
    #[inline]
    pub(super) fn prefetches(&self) -> bool {
        self.conns.places() >= self.prefetch_from
    }

    /// Where the connections of a burst are likely to be: [`NIL`] where nothing was looked for, or found.
    #[inline(never)]
    pub(super) fn prefetch_burst(&self, frames: &[RxFrame<B>]) -> [u32; BURST] {
        for RxFrame { buf, .. } in frames {
            black_box((buf.bytes().get(HEADERS).copied(), buf.is_shared()));
        }
        let mut hashes = [None; BURST];
        let mut before = self.last.map(|(_, flow)| flow);
        for (hash, frame) in hashes.iter_mut().zip(frames) {
            // Whether the checksums are right is seen when it is taken.
            let Some(plain) = self.interface.plain(frame.buf.bytes(), RxChecksum::Good) else { continue };
            // A flow that goes on is not looked up again.
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

    /// Takes more connections off the wheel, as many as are looked at together: timers of theirs may have expired.
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
