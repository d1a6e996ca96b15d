//! Regions that one worker can access, and the copies of payload into and out of them. The RDMA crate calls it through
//! [`Memory`].

use std::cell::Cell;
use std::sync::Arc;

use rdma::{AtomicOp, Fetch, Memory, Placement, RegionId, Word};

use super::region::RegionMemory;

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
    memory: Arc<RegionMemory>,
    placed: u64,
    fetched: Cell<u64>,
}

/// Table of the regions of one worker. Its size is fixed; an access takes no lock and no shared counter.
#[derive(Debug)]
pub struct WorkerMemory {
    places: Box<[Option<Place>]>,
    faults: Cell<u64>,
}

impl WorkerMemory {
    /// Creates an empty table for regions numbered from 0 to `places` − 1.
    pub fn new(places: usize) -> Self {
        Self { places: (0..places).map(|_| None).collect(), faults: Cell::new(0) }
    }

    /// Adds a region to the table.
    ///
    /// # Errors
    /// The number is out of range, or belongs to another region.
    pub fn attach(&mut self, region: RegionId, memory: Arc<RegionMemory>) -> Result<(), AttachError> {
        let places = self.places.len();
        let full = AttachError::Full { number: region.0, places };
        match usize::try_from(region.0).ok().and_then(|number| self.places.get_mut(number)).ok_or(full)? {
            Some(_) => Err(AttachError::InUse(region.0)),
            free @ None => {
                *free = Some(Place { memory, placed: 0, fetched: Cell::new(0) });
                Ok(())
            }
        }
    }

    /// Removes a region and returns its memory, which may be unmapped with this handle.
    pub fn detach(&mut self, region: RegionId) -> Option<Arc<RegionMemory>> {
        let number = usize::try_from(region.0).ok()?;
        self.places.get_mut(number)?.take().map(|place| place.memory)
    }

    /// Returns the memory of a region.
    pub fn region(&self, region: RegionId) -> Option<&Arc<RegionMemory>> {
        self.place_of(region).map(|place| &place.memory)
    }

    /// Returns the bytes placed into and fetched from a region; zeros if it is not attached.
    pub fn bytes(&self, region: RegionId) -> RegionBytes {
        self.place_of(region).map_or_else(RegionBytes::default, |place| RegionBytes {
            placed: place.placed,
            fetched: place.fetched.get(),
        })
    }

    /// Returns the number of copies refused by the bounds check; anything but zero means that an earlier check was
    /// wrong.
    pub fn faults(&self) -> u64 {
        self.faults.get()
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
        let end = offset.checked_add(len as u64);
        self.place_of(region).is_some_and(|place| end.is_some_and(|end| end <= place.memory.bytes()))
    }

    #[inline]
    fn place(&mut self, at: Placement, bytes: &[u8]) {
        let number = usize::try_from(at.region().0).ok();
        let place = number.and_then(|number| self.places.get_mut(number)?.as_mut());
        match place.filter(|_| at.len() == bytes.len()) {
            Some(place) if place.memory.write(at.offset(), bytes).is_ok() => {
                place.placed = place.placed.wrapping_add(bytes.len() as u64);
                // The message continues after this part: the prefetch completes before the next part is placed.
                place.memory.prefetch_room(at.offset().wrapping_add(bytes.len() as u64), bytes.len());
            }
            Some(_) | None => self.fault(),
        }
    }

    /// Fills `out` with zeros if the bytes are not inside the region.
    #[inline]
    fn fetch(&self, from: Fetch, out: &mut [u8]) {
        let place = self.place_of(from.region()).filter(|_| from.len() == out.len());
        match place {
            Some(place) if place.memory.read(from.offset(), out).is_ok() => {
                place.fetched.set(place.fetched.get().wrapping_add(out.len() as u64));
                // The message continues after this part: the prefetch runs while this part is checksummed.
                place.memory.prefetch(from.offset().wrapping_add(out.len() as u64), out.len());
            }
            Some(_) | None => {
                out.fill(0);
                self.fault();
            }
        }
    }

    fn atomic(&mut self, at: Word, op: AtomicOp) -> u64 {
        let number = usize::try_from(at.region().0).ok();
        let place = number.and_then(|number| self.places.get_mut(number)?.as_mut());
        let original = place.and_then(|place| place.memory.update(at.offset(), |value| op.apply(value)));
        if original.is_none() {
            self.fault();
        }
        original.unwrap_or(0)
    }
}
