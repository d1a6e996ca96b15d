//! Contexts of other processes: programs that post work and poll completions in memory that they share with this worker
//! ([`iwarp_shared_verbs`]). They are clients of the device, beside the region service.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use iwarp_shared_verbs::worker::{ContextId, ContextStats, Contexts, CqStats, ObjectLimits, Signals};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{CqId, Device, VerbsError};
use rdma::{Memory, RegionId};
use rustix::event::epoll;
use tcp_stack::{Buf, BufPool, Instant, Segment};

use super::Engine;
use crate::memory::SharedWords;
use crate::transport::since_start;

/// Event counters (eventfd) on which a program and its worker sleep.
#[derive(Debug)]
pub struct Wakers {
    /// Written by the program when it has rung a doorbell of a worker that sleeps.
    pub doorbell: OwnedFd,
    /// Written when a completion queue that the program has armed has a completion.
    pub completions: OwnedFd,
    /// Written when the context has an event.
    pub events: OwnedFd,
}

/// The contexts of an engine.
#[derive(Debug)]
pub(super) struct SharedContexts {
    contexts: Contexts<SharedWords>,
    signals: Eventfds,
    /// Number of open contexts.
    open: u32,
    /// True if programs have queued work that was not posted in the last poll.
    busy: bool,
    /// Set of all doorbell counters (epoll), for a worker that sleeps; made with the first context.
    doorbells: Option<OwnedFd>,
}

/// Wakers by context.
#[derive(Debug)]
struct Eventfds(Vec<Option<Wakers>>);

impl Eventfds {
    fn of(&self, context: ContextId) -> Option<&Wakers> {
        self.0.get(context.0 as usize)?.as_ref()
    }
}

impl Signals for Eventfds {
    fn completion(&mut self, context: ContextId, _: CqId) {
        if let Some(wakers) = self.of(context) {
            wake(&wakers.completions);
        }
    }

    fn event(&mut self, context: ContextId) {
        if let Some(wakers) = self.of(context) {
            wake(&wakers.events);
        }
    }
}

/// Adds 1 to an event counter.
fn wake(eventfd: &OwnedFd) {
    // Fails only if the counter is at its maximum: the program is to wake already.
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

impl SharedContexts {
    /// Returns room for `contexts_max` contexts on a device with `cqs_max` completion queues.
    pub(super) fn new(contexts_max: u32, cqs_max: u16) -> Self {
        Self {
            contexts: Contexts::new(contexts_max, cqs_max),
            signals: Eventfds((0..contexts_max).map(|_| None).collect()),
            open: 0,
            busy: false,
            doorbells: None,
        }
    }

    /// Adds a context's doorbell to the set on which the worker sleeps.
    fn watch(&mut self, doorbell: &OwnedFd) -> rustix::io::Result<()> {
        if self.doorbells.is_none() {
            self.doorbells = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        let Some(set) = &self.doorbells else { return Ok(()) };
        // Edge-triggered: the worker does not read the counters, which a program could keep readable.
        epoll::add(set, doorbell, epoll::EventData::new_u64(0), epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Returns true if no context is open.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Returns true if programs have queued work.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.open > 0 && (self.busy || self.contexts.has_rung())
    }

    /// Posts the work that programs have queued.
    #[inline]
    pub(super) fn post<B: Buf>(&mut self, device: &mut Device<Segment<B>>) {
        if self.open > 0 {
            self.busy = self.contexts.post(device);
        }
    }

    /// Delivers completions and asynchronous events.
    #[inline]
    pub(super) fn deliver<B: Buf>(&mut self, device: &mut Device<Segment<B>>) {
        if self.open > 0 {
            self.contexts.deliver(device, &mut self.signals);
        }
    }

    /// Passes an event of a connection to its context. Returns the event if no context owns it.
    pub(super) fn cm_event<B: Buf>(
        &mut self,
        event: rdma::verbs::CmEvent,
        device: &mut Device<Segment<B>>,
    ) -> Option<rdma::verbs::CmEvent> {
        self.contexts.cm_event(event, device, &mut self.signals)
    }
}

/// Contexts, for the worker's poll loop.
impl<P: BufPool, M: Memory> Engine<P, M> {
    /// Returns true if completions, events or entries of a context wait for a change that no signal announces, such as
    /// room in a ring.
    #[inline]
    pub fn contexts_wait(&self) -> bool {
        self.shared.open > 0 && self.shared.contexts.waits()
    }

    /// Announces to all programs that the worker sleeps, until [`Self::contexts_awake`]. Returns false if one has
    /// queued work meanwhile: the worker must not sleep.
    pub fn contexts_sleep(&self) -> bool {
        self.shared.open == 0 || self.shared.contexts.sleep()
    }

    /// Announces to all programs that the worker is awake.
    pub fn contexts_awake(&self) {
        let SharedContexts { contexts, open, doorbells, .. } = &self.shared;
        let Some(set) = doorbells.as_ref().filter(|_| *open > 0) else { return };
        contexts.awake();
        // Takes the events of the set, as far as they fit: others end the next sleep at once.
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 16];
        let _ = epoll::wait(set, &mut events, Some(&rustix::time::Timespec::default()));
    }

    /// Borrows the descriptor that is readable once a program has rung the doorbell of a sleeping worker; `None`
    /// without contexts.
    pub fn contexts_doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.shared.doorbells.as_ref().filter(|_| self.shared.open > 0).map(AsFd::as_fd)
    }
}

/// Contexts, for the commands of the control side.
impl<P: BufPool, M: Memory> Engine<P, M> {
    /// Opens a context over memory that is zero. An engine with contexts has no program of its own.
    ///
    /// # Errors
    /// As [`Contexts::open`].
    pub fn context_open(
        &mut self,
        memory: SharedWords,
        limits: ObjectLimits,
        wakers: Wakers,
    ) -> Result<ContextId, VerbsError> {
        let Self { shared, .. } = self;
        shared.watch(&wakers.doorbell).map_err(|_| VerbsError::NoResources)?;
        let id = shared.contexts.open(memory, limits)?;
        if let Some(place) = shared.signals.0.get_mut(id.0 as usize) {
            *place = Some(wakers);
        }
        shared.open = shared.open.saturating_add(1);
        Ok(id)
    }

    /// Executes a request of a context.
    ///
    /// # Errors
    /// As [`Contexts::execute`].
    pub fn context_execute(
        &mut self,
        now: Instant,
        id: ContextId,
        request: &Request,
    ) -> Result<Response, VerbsError> {
        let Self { shared, device, rdma, .. } = self;
        shared.contexts.execute(id, request, device, &mut rdma.stags, since_start(now))
    }

    /// Reports to all contexts that the link of the port has come up, or is down.
    pub fn contexts_set_link(&mut self, up: bool) {
        let SharedContexts { contexts, signals, .. } = &mut self.shared;
        contexts.set_link(up, signals);
    }

    /// Returns the counters of a context; `None` if it is not open.
    pub fn context_stats(&self, id: ContextId) -> Option<ContextStats> {
        self.shared.contexts.stats(id)
    }

    /// Returns the counters of a completion queue; `None` if the context has no such queue.
    pub fn cq_stats(&self, id: ContextId, cq: CqId) -> Option<CqStats> {
        self.shared.contexts.cq_stats(id, cq)
    }

    /// Closes a context: resets its connections and destroys its objects. When this returns, the engine does not touch
    /// its memory any more, nor, for this context, the regions returned.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn context_close(&mut self, id: ContextId) -> Result<Vec<RegionId>, VerbsError> {
        let Self { shared, device, rdma, .. } = self;
        let mut released = Vec::new();
        shared.contexts.close(id, device, &mut rdma.stags, &mut |region| released.push(region))?;
        if let Some(place) = shared.signals.0.get_mut(id.0 as usize) {
            *place = None;
        }
        shared.open = shared.open.saturating_sub(1);
        shared.busy = false;
        Ok(released)
    }
}
