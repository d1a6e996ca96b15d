//! Model of both memories: plain vectors, changed by rules of their own.
//!
//! Each work request records, when posted, the bytes that it may access and the bytes that it must store ([`Touch`]).
//! The memory under test reports each access ([`Watched`]); an access that no request recorded, or with other bytes,
//! is an error at once. `now` is the current memory; `then` is the memory once all posted work is done, which a later
//! Read of the same stream must find (RFC 5040 §5.5).

use core::ops::Range;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use iwarp_alloc_counter::unwatched;
use rdma::{AtomicOp, Fetch, Memory, Placement, RegionId, Stag, VecMemory, Word};

use crate::shared::{Inbound, SharedBuffers};

pub(crate) type Shared = Rc<RefCell<Model>>;

/// A region on one of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) host: usize,
    pub(crate) region: u32,
}

/// Effect that a work request may have on some bytes.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The local engine fetches them, to send.
    Source,
    /// The peer's Read fetches them.
    Fetched,
    /// These bytes are placed, each once. `None`: not known yet, so none may be placed.
    Placed {
        payload: Option<Vec<u8>>,
        placed: usize,
        /// Bytes of the message before these.
        skip: usize,
        /// True for an RDMA Write: the request is over once all bytes are placed.
        ends: bool,
    },
    /// The peer changes them; the original value, if it can be known before, goes to the result of the same request.
    Word { op: AtomicOp, original: Option<u64>, result: Place },
}

/// Bytes of a region that a work request may access.
#[derive(Debug)]
pub(crate) struct Touch {
    /// Number of the work request.
    pub(crate) id: u64,
    pub(crate) range: Range<u64>,
    /// STag of the access, if it uses one.
    pub(crate) stag: Stag,
    pub(crate) what: Effect,
}

impl Touch {
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    fn covers(&self, range: &Range<u64>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    /// Returns true if bytes are expected there.
    fn takes(&self, range: &Range<u64>) -> bool {
        self.covers(range) && matches!(self.what, Effect::Placed { payload: Some(_), .. })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Region {
    pub(crate) now: Vec<u8>,
    pub(crate) then: Vec<u8>,
    pub(crate) touches: Vec<Touch>,
}

/// Expected message of the peer for a posted buffer.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// Number of the work request that sends it.
    pub(crate) id: u64,
    pub(crate) len: u32,
    pub(crate) solicited: bool,
    pub(crate) invalidate: Option<Stag>,
    pub(crate) immediate: Option<[u8; 8]>,
}

/// A posted receive buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) id: u64,
    pub(crate) place: Place,
    pub(crate) slot: u64,
    pub(crate) message: Option<Message>,
}

/// An STag that the peer may invalidate, and the tagged offset of the window's first byte under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stag: Stag,
    pub(crate) base_to: u64,
}

/// STags and buffers that one side of a connection offers to the other.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    /// Buffers posted and not completed, in order.
    pub(crate) buffers: VecDeque<Buffer>,
    /// Maximum number of buffers to take from its shared receive queue at a time, if it has one.
    pub(crate) share: Option<usize>,
    /// Messages on their way to a shared buffer.
    pub(crate) inbound: VecDeque<Inbound>,
    /// Set once the stream has ended on this side.
    pub(crate) over: bool,
    /// Length of a buffer in bytes.
    pub(crate) slot_len: usize,
    /// STag of the window with every right but invalidation.
    pub(crate) stag: Option<Stag>,
    /// STags of the same window that the peer may invalidate.
    pub(crate) tickets: Vec<Ticket>,
    /// STags of the same window that are read-only, and write-only.
    pub(crate) narrow: Option<(Stag, Stag)>,
}

/// Expected state of both hosts.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Regions by host.
    pub(crate) regions: [Vec<Region>; 2],
    /// Offers by connection and side; side 0 is the initiator.
    pub(crate) offers: Vec<[Offer; 2]>,
    /// Shared receive queues by host.
    pub(crate) shared: [SharedBuffers; 2],
    /// Connection and side whose bytes are being processed.
    pub(crate) receiving: Option<(usize, usize)>,
    last_id: u64,
    /// Errors found where none could be returned.
    pub(crate) errors: Vec<String>,
    /// Number of bytes placed, bytes fetched, and words changed.
    pub(crate) accesses: [u64; 3],
}

impl Model {
    /// Returns a number for a work request, greater than all before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn region(&mut self, at: Place) -> &mut Region {
        &mut self.regions[at.host][at.region as usize]
    }

    pub(crate) fn touch(&mut self, at: Place, touch: Touch) {
        self.region(at).touches.push(touch);
    }

    /// Returns true if `range` may be used: `may` must accept every touch that overlaps it.
    pub(crate) fn is_free(&mut self, at: Place, range: &Range<u64>, may: fn(&Effect) -> bool) -> bool {
        self.region(at).touches.iter().all(|touch| !touch.overlaps(range) || may(&touch.what))
    }

    /// Returns true if an unfinished request that satisfies `by` uses this STag.
    pub(crate) fn is_used(&mut self, at: Place, stag: Stag, by: impl Fn(&Effect) -> bool) -> bool {
        self.region(at).touches.iter().any(|touch| touch.stag == stag && by(&touch.what))
    }

    /// Records that bytes are expected in these parts, in message order: these bytes, or unknown ones.
    pub(crate) fn note_sink(&mut self, at: Place, id: u64, pieces: &[Range<u64>], payload: Option<&[u8]>) {
        let mut skip = 0;
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let what = Effect::Placed { payload: None, placed: 0, skip, ends: false };
            self.touch(at, Touch { id, range: piece.clone(), stag: Stag(0), what });
            skip += (piece.end - piece.start) as usize;
        }
        if let Some(payload) = payload {
            self.fill(at, id, payload);
        }
    }

    /// Removes the touches of work request `id` from the region. Fails if it left something undone.
    pub(crate) fn release(&mut self, at: Place, id: u64) -> Result<(), String> {
        let touches = &mut self.region(at).touches;
        let mut undone = None;
        touches.retain(|touch| {
            if touch.id != id {
                return true;
            }
            undone = match &touch.what {
                Effect::Placed { payload: Some(payload), placed, .. } if *placed != payload.len() => {
                    Some(format!("{placed} of {} bytes are placed", payload.len()))
                }
                Effect::Placed { payload: None, .. } => Some("it was never answered".into()),
                Effect::Word { .. } => Some("the word was not changed".into()),
                _ => None,
            };
            false
        });
        undone.map_or(Ok(()), |what| Err(format!("work request {id} is finished, but {what}")))
    }

    /// As [`Self::release`], for flushed work.
    pub(crate) fn forget(&mut self, at: Place, id: u64) {
        self.region(at).touches.retain(|touch| touch.id != id);
    }

    /// RFC 5040 §5.5: everything before a message that was delivered, or answered, is placed.
    pub(crate) fn expect_placed_before(&mut self, at: Place, id: u64) -> Result<(), String> {
        let late = self.region(at).touches.iter().find(|touch| {
            touch.id < id && matches!(touch.what, Effect::Placed { ends: true, .. } | Effect::Word { .. })
        });
        late.map_or(Ok(()), |late| {
            Err(format!("{id} is delivered, and this before it is not placed: {late:?}"))
        })
    }

    fn place(&mut self, at: Place, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let range = offset..offset + bytes.len() as u64;
        let what = || format!("{range:?} of {at:?}");
        self.take_buffers_until(at, |model| {
            model.regions[at.host][at.region as usize].touches.iter().any(|touch| touch.takes(&range))
        })?;
        let region = self.regions[at.host].get_mut(at.region as usize).ok_or("no such region")?;
        let due = region.touches.iter_mut().enumerate().find(|(_, touch)| touch.takes(&range));
        let Some((index, touch)) = due else {
            return Err(format!("bytes are placed at {} where none are due", what()));
        };
        let Effect::Placed { payload: Some(payload), placed, ends, .. } = &mut touch.what else {
            return Ok(());
        };
        let skip = (range.start - touch.range.start) as usize;
        let right = payload.get(skip..skip + bytes.len());
        if right != Some(bytes) {
            return Err(format!("wrong bytes at {}, for {}", what(), touch.id));
        }
        *placed += bytes.len();
        if *placed > payload.len() {
            return Err(format!("bytes placed twice at {}, for {}", what(), touch.id));
        }
        let done = *ends && *placed == payload.len();
        region.now[range.start as usize..range.end as usize].copy_from_slice(bytes);
        self.accesses[0] += bytes.len() as u64;
        if done {
            region.touches.swap_remove(index);
        }
        Ok(())
    }

    fn fetch(&mut self, at: Place, offset: u64, len: usize) -> Result<(), String> {
        let range = offset..offset + len as u64;
        let region = self.regions[at.host].get(at.region as usize).ok_or("no such region")?;
        let is_due = region
            .touches
            .iter()
            .any(|touch| touch.covers(&range) && matches!(touch.what, Effect::Source | Effect::Fetched));
        self.accesses[1] += len as u64;
        if is_due { Ok(()) } else { Err(format!("nobody asked for {range:?} of {at:?}")) }
    }

    fn atomic(&mut self, at: Place, offset: u64, op: AtomicOp, found: u64) -> Result<(), String> {
        let region = self.regions[at.host].get_mut(at.region as usize).ok_or("no such region")?;
        let words = region.touches.iter().enumerate().filter(|(_, touch)| {
            touch.range.start == offset && matches!(touch.what, Effect::Word { op: due, .. } if due == op)
        });
        let first = words.min_by_key(|(_, touch)| touch.id).map(|(index, _)| index);
        let Some(index) = first else {
            return Err(format!("an atomic operation at {offset} of {at:?} that is not due: {op:?}"));
        };
        let touch = region.touches.swap_remove(index);
        let word = &mut region.now[offset as usize..offset as usize + 8];
        let original = u64::from_ne_bytes(word.try_into().map_err(|_| "not a word")?);
        if original != found {
            return Err(format!("{found:#x} at {offset} of {at:?}, where {original:#x} should be"));
        }
        word.copy_from_slice(&changed(op, original).to_ne_bytes());
        self.accesses[2] += 1;
        let Effect::Word { result, original: due, .. } = touch.what else { return Ok(()) };
        if due.is_some_and(|due| due != original) {
            return Err(format!("{} finds {original:#x}, not {due:x?}", touch.id));
        }
        self.fill(result, touch.id, &original.to_ne_bytes());
        Ok(())
    }
}

/// Returns the result of an atomic operation, computed bit by bit as RFC 7306 §5.1 defines it.
pub(crate) fn changed(op: AtomicOp, original: u64) -> u64 {
    let bit = |of: u64, at: u32| of >> at & 1;
    match op {
        AtomicOp::FetchAdd { add, mask } => {
            let (mut sum, mut carry) = (0, 0);
            for at in 0..64 {
                let digit = bit(original, at) + bit(add, at) + carry;
                sum |= (digit & 1) << at;
                // RFC 7306 §5.1.1: "causing any carry out of that bit position to be discarded".
                carry = if bit(mask, at) == 1 { 0 } else { digit >> 1 };
            }
            sum
        }
        AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
            let differs = |at| bit(compare_mask, at) == 1 && bit(compare, at) != bit(original, at);
            if (0..64).any(differs) {
                return original;
            }
            let chosen = |at| if bit(swap_mask, at) == 1 { bit(swap, at) } else { bit(original, at) };
            (0..64).map(|at| chosen(at) << at).sum()
        }
    }
}

/// Memory that reports every access to the model.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) inner: VecMemory,
    host: usize,
    model: Shared,
}

impl Watched {
    pub(crate) fn new(host: usize, model: Shared) -> Self {
        Self { inner: VecMemory::new(), host, model }
    }

    fn log_notices(&self, region: RegionId, report: impl FnOnce(&mut Model, Place) -> Result<(), String>) {
        unwatched(|| {
            let mut model = self.model.borrow_mut();
            if let Err(error) = report(&mut model, Place { host: self.host, region: region.0 }) {
                model.errors.push(error);
            }
        });
    }

    /// Checks a region against the model.
    pub(crate) fn check(&self, region: u32) -> Result<(), String> {
        let model = self.model.borrow();
        let right = &model.regions[self.host][region as usize].now;
        let found = self.inner.bytes(RegionId(region)).ok_or("a region is gone")?;
        if found == right.as_slice() {
            return Ok(());
        }
        let at = found.iter().zip(right).position(|(found, right)| found != right);
        Err(format!("region {region} of host {} is not as it should be at {at:?}", self.host))
    }

    /// Overwrites bytes as their owner does, also in the model.
    pub(crate) fn overwrite(&mut self, region: u32, start: u64, bytes: &[u8]) {
        let range = start as usize..start as usize + bytes.len();
        let mut model = self.model.borrow_mut();
        model.regions[self.host][region as usize].now[range.clone()].copy_from_slice(bytes);
        if let Some(memory) = self.inner.bytes_mut(RegionId(region)) {
            memory[range].copy_from_slice(bytes);
        }
    }
}

impl Memory for Watched {
    fn holds(&self, region: RegionId, offset: u64, len: usize) -> bool {
        self.inner.holds(region, offset, len)
    }

    fn place(&mut self, at: Placement, bytes: &[u8]) -> bool {
        self.log_notices(at.region(), |model, place| model.place(place, at.offset(), bytes));
        self.inner.place(at, bytes)
    }

    fn fetch(&self, from: Fetch, out: &mut [u8]) -> bool {
        self.log_notices(from.region(), |model, place| model.fetch(place, from.offset(), from.len()));
        self.inner.fetch(from, out)
    }

    fn atomic(&mut self, at: Word, op: AtomicOp) -> Option<u64> {
        let (region, offset) = (at.region(), at.offset());
        let found = self.inner.atomic(at, op);
        if let Some(found) = found {
            self.log_notices(region, |model, place| model.atomic(place, offset, op, found));
        }
        found
    }
}
