//! Contexts of other processes: programs that post work and poll completions in memory that they share with this worker
//! ([`iwarp_shared_verbs`]). They are clients of the device, beside the region service.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;

use iwarp_shared_verbs::worker::{ContextId, ContextStats, Contexts, CqStats, ObjectLimits, Signals, UserId};
use iwarp_shared_verbs::{NextHop, Request, Response};
use rdma::verbs::{Access, AddressBase, CmId, CqId, Device, MemoryRegion, PdId, VerbsError};
use rdma::{Memory, RegionId};
use tcp_stack::{Buf, Instant, Segment};

use super::Engine;
use crate::memory::{Backing, SharedWords, WorkerMemory};
use crate::transport::{Transport, since_start};
use crate::wake::{Doorbell, Waker};

/// Descriptors that end the sleep of a program and of its worker.
#[derive(Debug)]
pub struct Wakers {
    /// The program has rung for the worker, which sleeps; `None` in one process, where the program runs the engine.
    pub doorbell: Option<Doorbell>,
    /// A completion queue that the program has armed has a completion.
    pub completions: Waker,
    /// The context has an event.
    pub events: Waker,
}

/// Memory region to register, and its memory.
#[derive(Debug)]
pub struct NewMr {
    /// Protection domain of the memory region.
    pub pd: PdId,
    /// Number of the memory.
    pub region: RegionId,
    /// Memory, all of which becomes the memory region.
    pub memory: Backing,
    /// Address of the first byte.
    pub base: AddressBase,
    /// Rights of the memory region.
    pub access: Access,
}

/// The contexts of an engine.
#[derive(Debug)]
pub(super) struct SharedContexts {
    contexts: Contexts<SharedWords>,
    signals: AllWakers,
    /// Number of open contexts.
    open: u32,
    /// True if programs have queued work that was not posted in the last poll, or a request has been executed since: it
    /// may have raised events.
    busy: bool,
}

/// Wakers of each context, by its number.
#[derive(Debug)]
struct AllWakers(Vec<Option<Wakers>>);

impl AllWakers {
    fn of(&self, context: ContextId) -> Option<&Wakers> {
        self.0.get(context.0 as usize)?.as_ref()
    }
}

impl Signals for AllWakers {
    fn completion(&mut self, context: ContextId, _: CqId) {
        if let Some(wakers) = self.of(context) {
            wakers.completions.wake();
        }
    }

    fn event(&mut self, context: ContextId) {
        if let Some(wakers) = self.of(context) {
            wakers.events.wake();
        }
    }
}

impl SharedContexts {
    /// Returns room for `contexts_max` contexts on a device with `cqs_max` completion queues.
    pub(super) fn new(contexts_max: u32, cqs_max: u16) -> Self {
        Self {
            contexts: Contexts::new(contexts_max, cqs_max),
            signals: AllWakers((0..contexts_max).map(|_| None).collect()),
            open: 0,
            busy: false,
        }
    }

    /// Returns true if no context is open.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Returns true if programs have queued work.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.open > 0 && (self.busy || self.contexts.has_undelivered() || self.contexts.has_rung())
    }

    /// Returns true if the last [`Self::post`] has left work that the next one can do at once.
    #[inline]
    pub(super) const fn has_left_posts(&self) -> bool {
        self.open > 0 && self.busy
    }

    /// Returns true if a program has rung since its work was posted.
    #[inline]
    pub(super) fn has_rung(&self) -> bool {
        self.open > 0 && self.contexts.has_rung()
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

    /// Returns the user whose program has a connection, and the number of connections that the user may have.
    pub(super) fn user_of<B: Buf>(&self, device: &Device<Segment<B>>, id: CmId) -> Option<(UserId, u32)> {
        let context = Contexts::<SharedWords>::context_of(device, id)?;
        self.contexts.user(context).zip(self.contexts.ids_max(context))
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
impl<T: Transport, M: Memory> Engine<T, M> {
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

    /// Takes no more posts of programs: what they have posted so far can be finished.
    pub const fn contexts_stop(&mut self) {
        self.shared.contexts.stop();
    }

    /// Announces to all programs that the worker is awake.
    pub fn contexts_awake(&self) {
        if self.shared.open > 0 {
            self.shared.contexts.awake();
        }
    }

    /// Borrows the descriptors that are readable once a program has rung the doorbell of a sleeping worker, one for
    /// each context.
    pub fn contexts_doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.shared.signals.0.iter().flatten().filter_map(|wakers| Some(wakers.doorbell.as_ref()?.as_fd()))
    }
}

/// Contexts, for the commands of the control side.
impl<T: Transport, M: Memory> Engine<T, M> {
    /// Opens a context of a user over memory that is zero. An engine with contexts has no program of its own.
    ///
    /// # Errors
    /// As [`Contexts::open`].
    pub fn context_open(
        &mut self,
        memory: SharedWords,
        user: UserId,
        limits: ObjectLimits,
        wakers: Wakers,
    ) -> Result<ContextId, VerbsError> {
        let Self { shared, .. } = self;
        let id = shared.contexts.open(memory, user, limits)?;
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
        loop {
            if let Poll::Ready(response) = self.context_execute_part(now, id, request) {
                return response;
            }
        }
    }

    /// Executes a part of a request, as [`Contexts::execute_part`].
    pub fn context_execute_part(
        &mut self,
        now: Instant,
        id: ContextId,
        request: &Request,
    ) -> Poll<Result<Response, VerbsError>> {
        if let Request::Resolve { local, peer } = *request {
            return Poll::Ready(self.context_resolve(now, id, local, peer));
        }
        let Self { shared, device, rdma, .. } = self;
        shared.busy = true;
        let done = shared.contexts.execute_part(id, request, device, &mut rdma.stags, since_start(now));
        if let (Request::SetTrafficClass(id, _), Poll::Ready(Ok(_))) = (request, &done) {
            self.apply_traffic_class(*id);
        }
        done
    }

    /// Looks for the next hop to a peer, and for a free port.
    fn context_resolve(
        &mut self,
        now: Instant,
        id: ContextId,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<Response, VerbsError> {
        self.context_user(id).ok_or(VerbsError::NoSuchObject)?;
        let hop = match self.transport.resolve_neighbor(now, peer.ip()) {
            Ok(true) => NextHop::Known,
            Ok(false) => NextHop::Unknown,
            Err(_) => return Ok(Response::Resolved(NextHop::None, None)),
        };
        let given = local.filter(|local| local.port() != 0 && !local.ip().is_unspecified());
        let ip = local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified());
        let (ports, worker) = &self.local_ports;
        // A hint only: the connection claims its port.
        let mut is_free = |port| ports.owner(port).is_none_or(|owner| owner == usize::from(*worker));
        let local = given.or_else(|| self.transport.free_end(ip, peer, &mut is_free));
        Ok(Response::Resolved(hop, local))
    }

    /// Returns the number of connections that programs of a user have left and that linger.
    #[cfg(any(test, feature = "testutil"))]
    pub fn lingering(&self, user: UserId) -> usize {
        self.lingering.count(user)
    }

    /// Returns the user of an open context.
    pub fn context_user(&self, id: ContextId) -> Option<UserId> {
        self.shared.contexts.user(id)
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

    /// Closes a context: ends its connections and destroys its objects. When this returns, the engine does not touch
    /// its memory any more, nor, for this context, the regions returned.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn context_close(&mut self, now: Instant, id: ContextId) -> Result<Vec<RegionId>, VerbsError> {
        let mut released = Vec::new();
        loop {
            if let Poll::Ready(closed) = self.context_close_part(now, id, &mut |region| released.push(region))
            {
                return closed.map(|()| released);
            }
        }
    }

    /// Performs a part of [`Self::context_close`], as [`Contexts::close_part`].
    pub fn context_close_part(
        &mut self,
        now: Instant,
        id: ContextId,
        released: &mut impl FnMut(RegionId),
    ) -> Poll<Result<(), VerbsError>> {
        // Connections that the part before has ended: the context, which tells their user, may be gone after this one.
        self.apply_requests(now);
        let Self { shared, device, rdma, .. } = self;
        shared.busy = true;
        let closed = shared.contexts.close_part(id, device, &mut rdma.stags, released);
        if let Poll::Ready(Ok(())) = closed {
            if let Some(place) = shared.signals.0.get_mut(id.0 as usize) {
                *place = None;
            }
            shared.open = shared.open.saturating_sub(1);
            shared.busy = false;
        }
        closed
    }
}

/// Memory that contexts register.
impl<T: Transport> Engine<T, WorkerMemory> {
    /// Attaches memory and registers all of it for a context (`ibv_reg_mr`).
    ///
    /// # Errors
    /// As for [`Device::reg_mr`], and `NoResources` if there is no place for the memory. The engine does not access it
    /// then.
    pub fn context_register(
        &mut self,
        now: Instant,
        context: ContextId,
        mr: NewMr,
    ) -> Result<MemoryRegion, VerbsError> {
        let NewMr { pd, region, memory, base, access } = mr;
        let (start, length) = memory.range();
        self.memory_mut().attach(region, memory).map_err(|_| VerbsError::NoResources)?;
        let request = Request::RegMr { pd, memory: (region, start, length), base, access };
        match self.context_execute(now, context, &request) {
            Ok(Response::Mr(mr)) => Ok(mr),
            other => {
                self.memory_mut().detach(region);
                Err(other.err().unwrap_or(VerbsError::Invalid))
            }
        }
    }
}
