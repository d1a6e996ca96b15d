//! Deferred copies of a [`VecMemory`](super::VecMemory), for tests: they are made when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{RegionId, Ticket};
use crate::wire::atomic::AtomicOp;

/// Copies that wait at the same time.
pub(super) const COPIES_MAX: u64 = 96;
/// Copies that a segment may need.
pub(super) const COPIES_OF_SEGMENT: u64 = 64;

/// One copy that waits.
#[derive(Clone, Debug)]
pub(super) enum Copy {
    /// Bytes that are to be placed.
    Place(RegionId, u64, Vec<u8>),
    /// Bytes to read to the end of a place.
    Read { region: RegionId, offset: u64, len: usize, slot: usize },
    /// Atomic operation on a number.
    Atomic(RegionId, u64, AtomicOp),
}

/// The queue of copies, and its results.
#[derive(Debug, Default)]
pub(super) struct Slow {
    pub(super) regions: BTreeSet<RegionId>,
    pub(super) queue: VecDeque<(u64, Copy)>,
    pub(super) queued: u64,
    pub(super) done: u64,
    /// Bytes read ahead, by place.
    pub(super) read: BTreeMap<usize, Vec<u8>>,
    pub(super) originals: BTreeMap<u64, u64>,
    /// Tickets of atomic operations whose value was asked for once.
    pub(super) asked: BTreeSet<u64>,
    pub(super) failed: BTreeSet<u64>,
    pub(super) slots: usize,
}

impl Slow {
    pub(super) fn push(&mut self, stream: u64, copy: Copy) -> Ticket {
        self.queue.push_back((stream, copy));
        self.queued = self.queued.wrapping_add(1);
        self.last()
    }

    pub(super) const fn last(&self) -> Ticket {
        Ticket { queue: 1, number: self.queued }
    }
}
