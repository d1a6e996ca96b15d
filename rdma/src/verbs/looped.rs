//! Looped connections: both ends belong to one device, and what one end sends goes to the other without TCP. The
//! adapter decides when a direction begins to do so ([`Device::may_loop`], [`Device::loop_out`]), and then calls
//! [`Device::transmit_looped`] in place of [`Device::transmit`].
//!
//! ```text
//!  queue pair A ──▶ LoopQueue: Send, Read Request, … as bytes ──▶ queue pair B
//!                              Write, Read Response as tokens      (copies from A's memory to its own)
//! ```

use core::time::Duration;
use std::collections::VecDeque;

use super::deferred::HeldSegments;
use super::{CmId, Device};
use crate::endpoint::{Endpoint, Env, LoopedSegment, Progress, Sink};
use crate::memory::{Fetch, Memory};
use crate::mpa::LENGTH_LEN;
use crate::stats::count;
use crate::wire::ddp::TaggedHeader;

/// Length in bytes of the longest segment that is copied twice. Both copies find it in a first-level cache.
const SEGMENT_BYTES: usize = 16 << 10;

/// Bytes of such segments that wait at the same time.
const QUEUE_BYTES: usize = 2 * SEGMENT_BYTES;

/// Most segments that wait.
const SEGMENTS_MAX: usize = 64;

/// Payload in bytes that one connection sends at a time, before others have their turn.
const BUDGET_BYTES: usize = 256 << 10;

/// Segment that waits for the other end.
#[derive(Debug)]
enum Waiting {
    /// FPDU of so many bytes, next in [`LoopQueue::bytes`].
    Fpdu(usize),
    /// Tagged segment whose payload is in memory.
    Fetch(TaggedHeader, Fetch),
}

/// Segments of one end that the other has not processed. It is empty between two calls.
#[derive(Debug, Default)]
pub(super) struct LoopQueue {
    bytes: Box<[u8]>,
    used: usize,
    waiting: VecDeque<Waiting>,
    budget: usize,
}

impl LoopQueue {
    /// Allocates the queue of a device.
    pub(super) fn allocate(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; QUEUE_BYTES].into();
            self.waiting.reserve_exact(SEGMENTS_MAX);
        }
    }

    fn begin(&mut self) {
        (self.used, self.budget) = (0, BUDGET_BYTES);
        self.waiting.clear();
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= SEGMENTS_MAX || self.budget == 0
    }

    fn push_waiting(&mut self, segment: Waiting, len: usize) {
        self.budget = self.budget.saturating_sub(len);
        self.waiting.push_back(segment);
    }

    /// Calls `take` with each segment, oldest first.
    fn drain(&mut self, mut take: impl FnMut(LoopedSegment<'_>)) {
        let mut rest = &*self.bytes;
        while let Some(segment) = self.waiting.pop_front() {
            match segment {
                Waiting::Fetch(header, payload) => take(LoopedSegment::Fetch(header, payload)),
                Waiting::Fpdu(len) => {
                    let (fpdu, behind) = rest.split_at_checked(len).unwrap_or_default();
                    rest = behind;
                    if let Some((length, ulpdu)) = fpdu.split_first_chunk::<LENGTH_LEN>() {
                        let ulpdu_len = usize::from(u16::from_be_bytes(*length));
                        take(LoopedSegment::Ulpdu(ulpdu.get(..ulpdu_len).unwrap_or_default()));
                    }
                }
            }
        }
    }
}

impl Sink for LoopQueue {
    fn fpdu_max(&self) -> usize {
        SEGMENT_BYTES
    }

    fn room(&self) -> usize {
        if self.is_full() { 0 } else { self.bytes.len().saturating_sub(self.used) }
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.is_full() {
            return false;
        }
        let end = self.used.saturating_add(len);
        let Some(bytes) = self.bytes.get_mut(self.used..end) else { return false };
        build(bytes);
        self.used = end;
        self.push_waiting(Waiting::Fpdu(len), len);
        true
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn push_fetch(&mut self, header: &TaggedHeader, payload: Fetch) -> bool {
        let has_room = !self.is_full();
        if has_room {
            let len = payload.len();
            self.push_waiting(Waiting::Fetch(*header, payload), len);
        }
        has_room
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    fn endpoint_of(&mut self, id: CmId) -> Option<&mut Endpoint<C>> {
        self.ids.get_mut(id.0)?.endpoint.as_deref_mut()
    }

    /// Returns true if connection `from` may send to `to`, its other end, without TCP: both are in full operation, and
    /// `to` has received a message.
    pub fn may_loop(&mut self, from: CmId, to: CmId) -> bool {
        self.endpoint_of(to).is_some_and(|endpoint| endpoint.may_loop_in())
            && self.endpoint_of(from).is_some_and(|endpoint| endpoint.may_loop_out())
    }

    /// Prepares a connection for [`Self::transmit_looped`], which is the only way of its output from here on. The
    /// other end must have received all that the connection has handed to the transport.
    pub fn loop_out(&mut self, from: CmId) {
        if let Some(endpoint) = self.endpoint_of(from) {
            endpoint.loop_out();
        }
        self.looped.allocate();
    }

    /// Sends queued output of `from`, up to a limit, to `to`, which processes it. What `to` cannot receive any more is
    /// dropped, as by a peer that has closed. If `to` [is stalled](Self::is_stalled), nothing is sent until it is not,
    /// and the adapter calls again then. Completions and events of `to` are queued; those of `from` wait for
    /// [`Self::drain`].
    pub fn transmit_looped<M: Memory>(
        &mut self,
        from: CmId,
        to: CmId,
        now: Duration,
        env: &mut Env<'_, M>,
    ) -> Progress {
        if self.is_stalled(to) {
            return Progress::default();
        }
        let mut queue = core::mem::take(&mut self.looped);
        queue.begin();
        let progress = self.transmit(from, now, env, &mut queue);
        count(&mut env.stats.rdmap.looped_segments, progress.frames);
        count(&mut env.stats.rdmap.looped_bytes, progress.bytes);
        if progress.frames > 0 {
            let mut held = HeldSegments::new();
            self.deliver(to, |endpoint| {
                queue.drain(|segment| {
                    if held.is_empty() && endpoint.receive_looped(now, segment.again(), env) {
                        return;
                    }
                    held.push_back(segment.into_bytes(env.memory));
                });
                endpoint.chunks()
            });
            self.hold_segments(to, held);
        }
        self.looped = queue;
        progress
    }
}
