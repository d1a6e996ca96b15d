//! Regions that one worker can access, and the copies of payload into and out of them. The RDMA crate calls it through
//! [`Memory`].

use std::cell::Cell;

use iwarp_shared_verbs::worker::NotificationStats;
use rdma::{AtomicOp, Fetch, Memory, Notification, Placement, RegionId, Word};

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
}

impl WorkerMemory {
    /// Creates an empty table for regions numbered from 0 to `places` − 1.
    pub fn new(places: usize) -> Self {
        Self {
            places: (0..places).map(|_| None).collect(),
            watches: Watches::default(),
            faults: Cell::new(0),
            kernel: Cell::default(),
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
                *free = Some(Place { memory: memory.into(), placed: 0, fetched: Cell::new(0) });
                Ok(())
            }
        }
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
        self.places.get_mut(number)?.take().map(|place| place.memory)
    }

    /// Copies bytes into a region, for its owner. Returns false if they are not inside it.
    #[must_use]
    pub fn write(&self, region: RegionId, offset: u64, bytes: &[u8]) -> bool {
        self.place_of(region).is_some_and(|place| place.memory.write(offset, bytes, &self.kernel))
    }

    /// Copies bytes out of a region, for its owner. Returns false if they are not inside it.
    #[must_use]
    pub fn read(&self, region: RegionId, offset: u64, out: &mut [u8]) -> bool {
        self.place_of(region).is_some_and(|place| place.memory.read(offset, out, &self.kernel))
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
        let place = number.and_then(|number| self.places.get_mut(number)?.as_mut());
        match place.filter(|_| at.len() == bytes.len()) {
            Some(place) if place.memory.write(at.offset(), bytes, &self.kernel) => {
                place.placed = place.placed.wrapping_add(bytes.len() as u64);
                // The message continues after this part: the prefetch completes before the next part is placed.
                place.memory.prefetch_room(at.offset().wrapping_add(bytes.len() as u64), bytes.len());
                true
            }
            Some(_) | None => {
                self.fault();
                false
            }
        }
    }

    #[inline]
    fn fetch(&self, from: Fetch, out: &mut [u8]) -> bool {
        let place = self.place_of(from.region()).filter(|_| from.len() == out.len());
        match place {
            Some(place) if place.memory.read(from.offset(), out, &self.kernel) => {
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
        let original = place.and_then(|place| place.memory.update(at.offset(), update, &self.kernel));
        if original.is_none() {
            self.fault();
        }
        original
    }

    fn is_watched(&self, region: RegionId) -> bool {
        self.watches.has(region)
    }

    fn notify(&mut self, region: RegionId, notification: &Notification<'_>) {
        self.watches.notify(region, notification);
    }
}
