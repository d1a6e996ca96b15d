//! Regions that one worker can access, and the copies of payload into and out of them. The RDMA crate calls it through
//! [`Memory`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use arrayvec::ArrayVec;
use iwarp_shared_verbs::worker::NotificationStats;
use rdma::{
    AHEAD_BYTES, Ahead, AtomicOp, CopyState, Fetch, Memory, Notification, Placement, Reach, RegionId,
    SGE_MAX, StreamId, Ticket, Word,
};

use super::copier::{Copier, JOBS_OF_SEGMENT};
use super::parts::{Backing, KernelStats};
use super::watches::{Watch, Watches};

/// Bytes moved for peers since the region was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionBytes {
    /// Bytes placed into the region.
    pub placed: u64,
    /// Bytes fetched from the region.
    pub fetched: u64,
}

/// Error of a failed [`WorkerMemory::attach`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The number is outside of the table.
    #[error("region number {number} is beyond the {places} places for regions")]
    Full {
        /// Number of the region.
        number: u32,
        /// Size of the table.
        places: usize,
    },
    /// The number belongs to another region.
    #[error("region number {0} is in use")]
    InUse(u32),
}

#[derive(Debug)]
struct Place {
    memory: Backing,
    placed: u64,
    fetched: Cell<u64>,
}

/// Table of the regions of one worker. Its size is fixed; an access takes no lock and no shared counter.
#[derive(Debug)]
pub struct WorkerMemory {
    places: Box<[Option<Place>]>,
    watches: Watches,
    faults: Cell<u64>,
    kernel: Cell<KernelStats>,
    /// Copiers of the attached regions by number, each with the number of its regions.
    copiers: BTreeMap<u64, (Arc<Copier>, u32)>,
    /// Stream that [`Memory::reach`] was asked for last.
    stream: Cell<u64>,
    /// True if its answer was [`Reach::Deferred`]: no piece of these bytes overtakes another.
    defers: Cell<bool>,
    /// Copy that was queued last.
    queued: Cell<Option<Ticket>>,
}

impl WorkerMemory {
    /// Creates an empty table for regions numbered from 0 to `places` − 1.
    pub fn new(places: usize) -> Self {
        Self {
            places: (0..places).map(|_| None).collect(),
            watches: Watches::default(),
            faults: Cell::new(0),
            kernel: Cell::default(),
            copiers: BTreeMap::new(),
            stream: Cell::new(0),
            defers: Cell::new(false),
            queued: Cell::new(None),
        }
    }

    /// Adds a region to the table.
    ///
    /// # Errors
    /// The number is out of range, or belongs to another region.
    pub fn attach(&mut self, region: RegionId, memory: impl Into<Backing>) -> Result<(), AttachError> {
        let places = self.places.len();
        let full = AttachError::Full { number: region.0, places };
        match usize::try_from(region.0).ok().and_then(|number| self.places.get_mut(number)).ok_or(full)? {
            Some(_) => Err(AttachError::InUse(region.0)),
            free @ None => {
                let memory = memory.into();
                if let Some(copier) = memory.copier() {
                    let entry = self.copiers.entry(copier.number());
                    entry.or_insert_with(|| (Arc::clone(copier), 0)).1 += 1;
                }
                *free = Some(Place { memory, placed: 0, fetched: Cell::new(0) });
                Ok(())
            }
        }
    }

    /// Borrows the memory of a region; `None` if it is not attached.
    pub fn backing(&self, region: RegionId) -> Option<&Backing> {
        self.place_of(region).map(|place| &place.memory)
    }

    /// Passes messages to a region on to a program, until [`Self::unwatch`], or until the region is detached. Returns
    /// false if the region is not attached.
    pub fn watch(&mut self, region: RegionId, watch: Watch) -> bool {
        let is_there = self.place_of(region).is_some();
        if is_there {
            self.watches.add(region, watch);
        }
        is_there
    }

    /// Ends a watch: its ring is not touched any more.
    pub fn unwatch(&mut self, region: RegionId, number: u64) {
        self.watches.remove(region, number);
    }

    /// Returns the counters of a watch; `None` if there is no such watch.
    pub fn watch_stats(&self, region: RegionId, number: u64) -> Option<NotificationStats> {
        self.watches.stats(region, number)
    }

    /// Removes a region and returns its memory, which may be unmapped with this handle. Its watches end.
    pub fn detach(&mut self, region: RegionId) -> Option<Backing> {
        self.watches.close(region);
        let number = usize::try_from(region.0).ok()?;
        let memory = self.places.get_mut(number)?.take()?.memory;
        // The memory keeps the last handle of its copier.
        if let Some(number) = memory.copier().map(|copier| copier.number())
            && let Some((_, regions)) = self.copiers.get_mut(&number)
        {
            *regions = regions.saturating_sub(1);
            if *regions == 0 {
                self.copiers.remove(&number);
            }
        }
        Some(memory)
    }

    /// Copies bytes into a region, for its owner. Returns false if they are not inside it.
    #[must_use]
    pub fn write(&self, region: RegionId, offset: u64, bytes: &[u8]) -> bool {
        self.place_of(region).is_some_and(|place| place.memory.write(offset, bytes))
    }

    /// Copies bytes out of a region, for its owner. Returns false if they are not inside it.
    #[must_use]
    pub fn read(&self, region: RegionId, offset: u64, out: &mut [u8]) -> bool {
        self.place_of(region).is_some_and(|place| place.memory.read(offset, out))
    }

    /// Returns the bytes placed into and fetched from a region; zeros if it is not attached.
    pub fn bytes(&self, region: RegionId) -> RegionBytes {
        self.place_of(region).map_or_else(RegionBytes::default, |place| RegionBytes {
            placed: place.placed,
            fetched: place.fetched.get(),
        })
    }

    /// Returns the number of copies that failed. Those that [`Self::kernel_stats`] does not count were refused by the
    /// bounds check, which means that an earlier check was wrong.
    pub fn faults(&self) -> u64 {
        self.faults.get()
    }

    /// Returns the counters of memory that is accessed through the kernel.
    pub fn kernel_stats(&self) -> KernelStats {
        self.kernel.get()
    }

    fn place_of(&self, region: RegionId) -> Option<&Place> {
        self.places.get(usize::try_from(region.0).ok()?)?.as_ref()
    }

    fn copier(&self, number: u64) -> Option<&Arc<Copier>> {
        self.copiers.get(&number).map(|(copier, _)| copier)
    }

    fn count_kernel(&self, count: impl FnOnce(&mut KernelStats)) {
        let mut counted = self.kernel.get();
        count(&mut counted);
        self.kernel.set(counted);
    }

    /// Notes that copies were queued, and returns the ticket of the last.
    fn note_queued(&self, copier: &Copier, copies: u64) -> Ticket {
        self.count_kernel(|counters| counters.kernel_copies = counters.kernel_copies.wrapping_add(copies));
        let ticket = Ticket { queue: copier.number(), number: copier.queued() };
        self.queued.set(Some(ticket));
        ticket
    }

    /// Queues bytes for memory that this worker does not map.
    #[cold]
    fn place_later(&mut self, at: &Placement, bytes: &[u8]) -> bool {
        let stream = self.stream.get();
        let place = self.place_of(at.region());
        let queued = place.and_then(|place| {
            let copies = place.memory.queue_write(stream, at.offset(), bytes)?;
            Some((Arc::clone(place.memory.copier()?), copies))
        });
        let Some((copier, copies)) = queued else {
            self.fault();
            return false;
        };
        self.note_queued(&copier, copies);
        let number = usize::try_from(at.region().0).ok();
        if let Some(place) = number.and_then(|number| self.places.get_mut(number)?.as_mut()) {
            place.placed = place.placed.wrapping_add(bytes.len() as u64);
        }
        true
    }

    #[cold]
    fn fault(&self) {
        self.faults.set(self.faults.get().wrapping_add(1));
    }
}

impl Memory for WorkerMemory {
    #[inline]
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool {
        self.place_of(region).is_some_and(|place| place.memory.holds(offset, len as u64))
    }

    #[inline]
    fn place(&mut self, at: Placement, bytes: &[u8]) -> bool {
        let number = usize::try_from(at.region().0).ok();
        let defers = self.defers.get();
        let place = number.and_then(|number| self.places.get_mut(number)?.as_mut());
        match place.filter(|_| at.len() == bytes.len()) {
            Some(place) if defers && place.memory.copier().is_some() => self.place_later(&at, bytes),
            Some(place) if place.memory.write(at.offset(), bytes) => {
                place.placed = place.placed.wrapping_add(bytes.len() as u64);
                // The message continues after this part: the prefetch completes before the next part is placed.
                place.memory.prefetch_room(at.offset().wrapping_add(bytes.len() as u64), bytes.len());
                true
            }
            Some(_) => self.place_later(&at, bytes),
            None => {
                self.fault();
                false
            }
        }
    }

    #[inline]
    fn fetch(&self, from: Fetch, out: &mut [u8]) -> bool {
        let place = self.place_of(from.region()).filter(|_| from.len() == out.len());
        match place {
            Some(place) if place.memory.read(from.offset(), out) => {
                place.fetched.set(place.fetched.get().wrapping_add(out.len() as u64));
                // The message continues after this part: the prefetch runs while this part is checksummed.
                place.memory.prefetch(from.offset().wrapping_add(out.len() as u64), out.len());
                true
            }
            Some(_) | None => {
                out.fill(0);
                self.fault();
                false
            }
        }
    }

    /// Copies from mapping to mapping at once, and other memory by way of a small buffer.
    fn copy(&mut self, from: Fetch, to: Placement) -> bool {
        let bytes = from.len();
        let mapped = |region, offset| self.place_of(region)?.memory.mapping(offset, bytes);
        let copied = match (mapped(from.region(), from.offset()), mapped(to.region(), to.offset())) {
            (Some((source, start)), Some((memory, at))) if to.len() == bytes => {
                memory.copy_from(at, source, start, bytes).is_ok()
            }
            (None, _) | (_, None) => return self.copy_in_parts(from, to),
            _ => false,
        };
        if !copied {
            self.fault();
            return false;
        }
        if let Some(place) = self.place_of(from.region()) {
            place.fetched.set(place.fetched.get().wrapping_add(bytes as u64));
        }
        let number = usize::try_from(to.region().0).ok();
        if let Some(place) = number.and_then(|number| self.places.get_mut(number)?.as_mut()) {
            place.placed = place.placed.wrapping_add(bytes as u64);
        }
        true
    }

    fn atomic(&mut self, at: Word, op: AtomicOp) -> Option<u64> {
        let number = usize::try_from(at.region().0).ok();
        let place = number.and_then(|number| self.places.get_mut(number)?.as_mut());
        let update = |value| op.apply(value);
        let original = place.and_then(|place| place.memory.update(at.offset(), update));
        if original.is_none() {
            self.fault();
        }
        original
    }

    #[inline]
    fn reach(&self, stream: StreamId, region: RegionId, offset: u64, len: usize) -> Reach {
        let reach = self.place_of(region).map_or(Reach::Gone, |place| place.memory.reach(offset, len));
        self.defers.set(reach == Reach::Deferred);
        if reach != Reach::Direct {
            self.stream.set(stream.0);
        }
        reach
    }

    fn direct_len(&self, region: RegionId, offset: u64, len: usize) -> usize {
        self.place_of(region).map_or(0, |place| place.memory.direct_len(offset, len))
    }

    fn last_queued(&self) -> Option<Ticket> {
        self.queued.get()
    }

    fn copy_state(&mut self, stream: StreamId, ticket: Ticket) -> CopyState {
        let Some(copier) = self.copier(ticket.queue) else { return CopyState::Failed };
        let state = copier.state(stream.0, ticket.number);
        if state == CopyState::Failed {
            let is_late = copier.is_stuck();
            self.count_kernel(|counters| {
                let counter = if is_late {
                    &mut counters.kernel_copy_timeouts
                } else {
                    &mut counters.kernel_copy_errors
                };
                *counter = counter.wrapping_add(1);
            });
        }
        state
    }

    fn read_ahead(
        &mut self,
        stream: StreamId,
        tokens: &mut dyn Iterator<Item = Fetch>,
    ) -> Result<Ahead, Reach> {
        let tokens: ArrayVec<Fetch, SGE_MAX> = tokens.take(SGE_MAX).collect();
        let of_token = |token: &Fetch| self.place_of(token.region())?.memory.copier();
        let copier = Arc::clone(tokens.iter().find_map(of_token).ok_or(Reach::Gone)?);
        if copier.is_stuck() {
            return Err(Reach::Gone);
        }
        let busy = |number| Reach::Busy(Ticket { queue: copier.number(), number });
        copier.room().map_err(busy)?;
        let slot = copier.take_slot().ok_or_else(|| busy(copier.queued()))?;
        let (mut at, mut copies, mut whole) = (0_usize, 0_u64, true);
        for token in &tokens {
            let Some(place) = self.place_of(token.region()) else {
                whole = false;
                break;
            };
            let len = token.len().min(AHEAD_BYTES.saturating_sub(at));
            whole &= place.memory.targets(token.offset(), len, |target, bytes| {
                let queued = copies < JOBS_OF_SEGMENT && copier.read(stream.0, target, (slot, at, bytes));
                if queued {
                    at = at.saturating_add(bytes);
                    copies = copies.saturating_add(1);
                }
                queued
            });
            place.fetched.set(place.fetched.get().wrapping_add(len as u64));
        }
        let ticket = self.note_queued(&copier, copies);
        copier.mark_slot(slot, ticket.number);
        // Not whole: the memory is in more parts than a segment may have.
        whole.then_some(Ahead { ticket, slot, len: at }).ok_or(Reach::Gone)
    }

    fn fetch_ahead(&self, ahead: &Ahead, skip: usize, out: &mut [u8]) -> bool {
        let place = (ahead.slot, ahead.ticket.number);
        let fetched = self.copier(ahead.ticket.queue).is_some_and(|copier| copier.fetch(place, skip, out));
        if !fetched {
            out.fill(0);
        }
        fetched
    }

    fn release(&mut self, ahead: Ahead) {
        if let Some(copier) = self.copier(ahead.ticket.queue) {
            copier.release(ahead.slot, ahead.ticket.number);
        }
    }

    fn begin_atomic(&mut self, stream: StreamId, at: Word, op: AtomicOp) -> Option<Ticket> {
        let place = self.place_of(at.region())?;
        let copier = Arc::clone(place.memory.copier()?);
        let queued = place.memory.queue_atomic(stream.0, at.offset(), op);
        queued.then(|| self.note_queued(&copier, 1))
    }

    fn take_atomic(&mut self, stream: StreamId, ticket: Ticket) -> Poll<Option<u64>> {
        self.copier(ticket.queue).map_or(Poll::Ready(None), |copier| copier.take_original(stream.0))
    }

    fn is_watched(&self, region: RegionId) -> bool {
        self.watches.has(region)
    }

    fn notify(&mut self, region: RegionId, notification: &Notification<'_>) {
        self.watches.notify(region, notification);
    }
}
