//! Rings of completion queues. A completion stays in the device's queue until its ring has room; a program that does
//! not poll overruns that queue, and the worker does not wait.

use core::sync::atomic::Ordering;

use iwarp_shared_queues::{Arm, LINE_WORDS, Producer, RingError, encode_completion};
use rdma::verbs::{CqId, Device, PollError, VerbsError, WcStatus};

use super::{ContextId, ContextMemory, CqStats};
use crate::CqPlace;

/// Completions whose places are transferred from the program's core before they are written.
const COMPLETIONS_SOON: usize = 8;

/// Completions that a part of a request examines or moves.
pub(super) const COMPLETIONS_MAX: usize = 256;

/// Ring of a completion queue.
#[derive(Debug)]
pub(super) struct CqRing<M> {
    pub(super) context: ContextId,
    pub(super) cq: CqId,
    memory: M,
    place: CqPlace,
    ring: Producer<M>,
    pub(super) stats: CqStats,
    /// The same queue at a new place, until that has all its completions.
    resized: Option<Box<Self>>,
    /// True once the new place has all completions of the ring, and the device's queue changes its size.
    is_copied: bool,
}

/// Result of [`CqRing::serve`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    /// An event is due.
    pub(super) signal: bool,
    /// Completions are left that the ring has no room for.
    pub(super) full: bool,
    /// Completions are left that the next call moves.
    pub(super) more: bool,
    /// Completions moved to the ring.
    pub(super) completions: u64,
    /// Those with an error.
    pub(super) errors: u64,
}

impl<M: ContextMemory> CqRing<M> {
    pub(super) fn new(context: ContextId, cq: CqId, memory: &M, place: CqPlace) -> Option<Self> {
        let ring = Producer::new(memory.clone(), place.ring(), place.shape)?;
        let (memory, stats) = (memory.clone(), CqStats::default());
        Some(Self { context, cq, memory, place, ring, stats, resized: None, is_copied: false })
    }

    /// Begins to move this ring to a new place. Until [`Self::resize`] has returned true, it is not served.
    pub(super) fn begin_resize<C: AsRef<[u8]>>(
        &mut self,
        place: CqPlace,
        cqe: u32,
        device: &Device<C>,
    ) -> Result<(), VerbsError> {
        let pending = self.ring.pending().map_err(|_| VerbsError::Invalid)?;
        if pending.saturating_add(device.queued_completions(self.cq)? as u64) > cqe.into() {
            return Err(VerbsError::Invalid);
        }
        let new = Self::new(self.context, self.cq, &self.memory, place).ok_or(VerbsError::Invalid)?;
        self.resized = Some(Box::new(new));
        Ok(())
    }

    /// Returns the new place between [`Self::begin_resize`] and the end of [`Self::resize`].
    pub(super) fn new_place(&self) -> Option<CqPlace> {
        self.resized.as_ref().map(|new| new.place)
    }

    /// Moves up to [`COMPLETIONS_MAX`] completions that the program has not taken to the new place, and then the
    /// device's queue to its new size; at last the arming and the counts. Returns true once all is done. After an error
    /// nothing has changed.
    pub(super) fn resize<C: AsRef<[u8]>>(
        &mut self,
        cqe: u32,
        device: &mut Device<C>,
    ) -> Result<bool, VerbsError> {
        let done = self.resize_part(cqe, device);
        if let Ok(true) = done
            && let Some(mut new) = self.resized.take()
        {
            let words = self.memory.as_ref();
            for word in 0..LINE_WORDS {
                let [from, to] = [self.place.start, new.place.start].map(|start| start.saturating_add(word));
                if let (Some(from), Some(to)) = (words.get(from), words.get(to)) {
                    to.store(from.load(Ordering::Acquire), Ordering::Release);
                }
            }
            new.ring.publish();
            (new.stats, new.is_copied) = (self.stats, false);
            *self = *new;
        } else if done.is_err() {
            self.resized = None;
        }
        done
    }

    fn resize_part<C: AsRef<[u8]>>(&mut self, cqe: u32, device: &mut Device<C>) -> Result<bool, VerbsError> {
        let new = self.resized.as_mut().ok_or(VerbsError::Invalid)?;
        if !new.is_copied {
            let copied = self.ring.copy_pending(&mut new.ring, COMPLETIONS_MAX as u64);
            if !copied.map_err(|_| VerbsError::Invalid)? {
                return Ok(false);
            }
            // More may have come meanwhile.
            let pending = new.ring.pending().map_err(|_| VerbsError::Invalid)?;
            if pending.saturating_add(device.queued_completions(self.cq)? as u64) > cqe.into() {
                return Err(VerbsError::Invalid);
            }
            new.is_copied = true;
        }
        device.resize_cq_part(self.cq, cqe, COMPLETIONS_MAX)
    }

    /// Moves up to `max` completions of the device's queue to the ring. Arms the device's queue once it is empty.
    #[inline]
    pub(super) fn serve<C: AsRef<[u8]>>(&mut self, device: &mut Device<C>, max: usize) -> Served {
        let mut solicited = false;
        let mut served = Served::default();
        if self.resized.is_some() {
            return served;
        }
        loop {
            if served.completions >= max as u64 {
                served.more = true;
                break;
            }
            match self.ring.has_room() {
                Ok(true) => {}
                Ok(false) => {
                    served.full = true;
                    break;
                }
                Err(RingError::Corrupt | RingError::Full | RingError::TooLong) => {
                    // Fails only if the queue is not there.
                    let _ = device.fail_cq(self.cq);
                    break;
                }
            }
            match device.poll_cq_slots(self.cq) {
                Ok(Some((wc, slots))) => {
                    // There is room.
                    let _ = self.ring.push(&encode_completion(&wc, slots));
                    let failed = wc.status != WcStatus::Success;
                    solicited |= wc.solicited || failed;
                    served.completions = served.completions.wrapping_add(1);
                    served.errors = served.errors.wrapping_add(failed.into());
                }
                Ok(None) => {
                    // Fails only if the queue is not there.
                    let _ = device.req_notify_cq(self.cq, false);
                    break;
                }
                Err(PollError::NoSuchObject | PollError::Overrun) => break,
            }
        }
        if served.completions > 0 {
            self.ring.publish();
            M::write_soon(self.ring.upcoming(COMPLETIONS_SOON));
            let words = self.memory.as_ref();
            if let (Some(arm), Some(events)) = (words.get(self.place.start), words.get(self.place.events()))
                && Arm(arm).take_due(solicited)
            {
                events.fetch_add(1, Ordering::Release);
                served.signal = true;
            }
        }
        self.count(served);
        served
    }

    /// Returns the number of completions that were moved to the ring, once those that the device's queue has now are.
    pub(super) fn moved_with<C: AsRef<[u8]>>(&self, device: &Device<C>) -> u64 {
        self.stats.completions.wrapping_add(device.queued_completions(self.cq).unwrap_or(0) as u64)
    }

    /// Returns true if as many completions as [`Self::moved_with`] has returned were moved to the ring, or none that is
    /// left can be: those are gone, or the ring has no room.
    pub(super) fn has_moved<C: AsRef<[u8]>>(&mut self, moved: u64, device: &Device<C>) -> bool {
        self.stats.completions >= moved
            || device.queued_completions(self.cq).unwrap_or(0) == 0
            || self.resized.is_none() && self.ring.has_room() != Ok(true)
    }

    fn count(&mut self, served: Served) {
        let CqStats { completions, errors, events } = &mut self.stats;
        *completions = completions.wrapping_add(served.completions);
        *errors = errors.wrapping_add(served.errors);
        *events = events.wrapping_add(served.signal.into());
    }

    /// Shows the program that the queue is in error.
    pub(super) fn show_error(&self) {
        if let Some(error) = self.memory.as_ref().get(self.place.error()) {
            error.store(1, Ordering::Release);
        }
    }
}
