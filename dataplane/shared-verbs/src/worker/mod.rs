//! The worker's side: executes the requests of programs, posts their work, and delivers completions and events.

mod completions;
mod context;
mod ends;
mod execute;
mod objects;
mod owner;
mod queue;
mod stats;
mod users;
mod watch;

use core::task::Poll;
use std::collections::HashMap;

use iwarp_shared_queues::{AtomicU64, Doorbells, RingShape};
use rdma::StagTable;
use rdma::verbs::{
    AsyncEvent, CmEvent, CmEventKind, CqId, Device, Owner, QpNum, RegionId, SrqId, VerbsError,
};

use crate::layout::doorbells;
use crate::{Event, Request, Response, words_min};
use completions::CqRing;
use context::Context;
use ends::End;
use objects::Destroyed;
pub use objects::ObjectLimits;
pub use stats::{ContextStats, CqStats};
pub use users::UserId;
use users::Users;
pub use watch::{NotificationRing, NotificationStats};

/// Entries that all contexts may post per poll, and completions that are moved to their rings.
const ENTRIES_MAX: usize = 256;
/// Entries that one context may post per poll.
const CONTEXT_ENTRIES_MAX: usize = 64;
/// Entries that the contexts of one user may post per poll beside another user, and completions of that user.
const USER_ENTRIES_MAX: usize = 64;
/// Completion queues, and asynchronous events, that are looked at per poll.
const CQS_SERVED_MAX: usize = 64;
/// Full completion queues looked at per poll.
const CQS_FULL_MAX: usize = 8;

/// Handle of a context. The index is used again after [`Contexts::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub u32);

/// Receives the worker's signals for programs that sleep.
pub trait Signals {
    /// A completion queue that the program has armed has a completion.
    fn completion(&mut self, context: ContextId, cq: CqId);
    /// The context has an event.
    fn event(&mut self, context: ContextId);
}

/// Memory of a context, which its program may write at any time.
pub trait ContextMemory: AsRef<[AtomicU64]> + Clone {
    /// Hints to the processor that the caller will write these words: their cache lines are transferred from the
    /// program's core while the caller does other work. Does nothing unless an implementation knows how.
    #[inline]
    fn write_soon(_words: &[AtomicU64]) {}
}

/// Memory within one process, as tests have it.
impl ContextMemory for std::sync::Arc<[AtomicU64]> {}

/// Entries that no program writes: the longest one that a ring may have.
type EntryWords = [u64; RingShape::ENTRY_WORDS_MAX as usize];

/// The contexts of one worker. `M` is their memory, which programs may write at any time.
///
/// All contexts share one [`Device`]. A context can name its own objects only.
#[derive(Debug)]
pub struct Contexts<M> {
    places: Vec<Option<Context<M>>>,
    users: Users,
    /// True if completions or asynchronous events are left that the next poll can deliver at once.
    undelivered: bool,
    /// True once no more work is posted.
    stopped: bool,
    /// Rings of completion queues, by [`CqId::index`].
    cqs: Vec<Option<CqRing<M>>>,
    /// Completion queues whose ring is full.
    full: std::collections::VecDeque<CqId>,
    /// True if a context may have events for which its ring had no room.
    events_kept: bool,
    /// Ends of connections that wait for the completions before them.
    ends: std::collections::VecDeque<End>,
    qp_owners: HashMap<QpNum, ContextId>,
    srq_owners: HashMap<SrqId, ContextId>,
    entry: Box<EntryWords>,
}

impl<M: ContextMemory> Contexts<M> {
    /// Returns room for `contexts_max` contexts on a device with `cqs_max` completion queues.
    pub fn new(contexts_max: u32, cqs_max: u16) -> Self {
        let none = |count: usize| core::iter::repeat_with(|| None).take(count).collect();
        Self {
            places: core::iter::repeat_with(|| None).take(contexts_max as usize).collect(),
            users: Users::default(),
            undelivered: false,
            stopped: false,
            cqs: none(cqs_max.into()),
            full: std::collections::VecDeque::with_capacity(cqs_max.into()),
            events_kept: false,
            ends: std::collections::VecDeque::new(),
            qp_owners: HashMap::new(),
            srq_owners: HashMap::new(),
            entry: Box::new([0; RingShape::ENTRY_WORDS_MAX as usize]),
        }
    }

    /// Opens a context of a user over memory that is zero. The worker does not access the memory again before the
    /// context's first request: until then, its program may still change the file of the memory.
    ///
    /// # Errors
    /// `NoResources`: there are as many contexts as allowed. `Invalid`: the memory is shorter than [`words_min`].
    pub fn open(&mut self, memory: M, user: UserId, limits: ObjectLimits) -> Result<ContextId, VerbsError> {
        if memory.as_ref().len() < words_min() {
            return Err(VerbsError::Invalid);
        }
        let free = self.places.iter().position(Option::is_none).ok_or(VerbsError::NoResources)?;
        let id = ContextId(u32::try_from(free).map_err(|_| VerbsError::NoResources)?);
        let context = Context::new(memory, user, limits).ok_or(VerbsError::Invalid)?;
        *self.places.get_mut(free).ok_or(VerbsError::NoResources)? = Some(context);
        Ok(id)
    }

    /// Closes a context: ends its connections, as `Device::destroy_id`, destroys all its objects, and passes each of
    /// its regions to `released`. The worker does not access its memory any more.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn close<C: AsRef<[u8]>>(
        &mut self,
        id: ContextId,
        device: &mut Device<C>,
        stags: &mut StagTable,
        released: &mut impl FnMut(RegionId),
    ) -> Result<(), VerbsError> {
        loop {
            if let Poll::Ready(closed) = self.close_part(id, device, stags, released) {
                return closed;
            }
        }
    }

    /// Performs a part of [`Self::close`] that takes a few microseconds: from the first call on, the context has no
    /// turns; each of the next ones destroys an object. `Pending` until all is done.
    pub fn close_part<C: AsRef<[u8]>>(
        &mut self,
        id: ContextId,
        device: &mut Device<C>,
        stags: &mut StagTable,
        released: &mut impl FnMut(RegionId),
    ) -> Poll<Result<(), VerbsError>> {
        let place = self.places.get_mut(id.0 as usize);
        let Some(Some(context)) = place else { return Poll::Ready(Err(VerbsError::NoSuchObject)) };
        if !context.closing {
            context.closing = true;
            if context.is_served {
                self.users.remove(context.turn, id);
            }
            for cq in context.objects.cqs.keys() {
                // Fails only if the queue is not there.
                let _ = device.discard_completions(*cq);
                if let Some(place) = self.cqs.get_mut(cq.index()) {
                    *place = None;
                }
            }
            self.full.retain(|full| !context.objects.cqs.contains_key(full));
            return Poll::Pending;
        }
        if let Some(qp) = context.objects.ids.iter().next().and_then(|id| device.qp_of(*id))
            && !self.stopped
        {
            context.fail_if_unposted(qp, device);
        }
        match context.objects.destroy_next(device, stags, released) {
            Some(Destroyed::Qp(qp)) => {
                self.qp_owners.remove(&qp);
            }
            Some(Destroyed::Srq(srq)) => {
                self.srq_owners.remove(&srq);
            }
            Some(Destroyed::Other) => {}
            None => {
                if let Some(place) = self.places.get_mut(id.0 as usize) {
                    *place = None;
                }
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    /// Executes a request of a context.
    ///
    /// # Errors
    /// As the call of the [`Device`] that the request names. `NoSuchObject` also for objects of other contexts,
    /// `NoResources` also for the limits of the context and the end of its memory.
    pub fn execute<C: AsRef<[u8]>>(
        &mut self,
        id: ContextId,
        request: &Request,
        device: &mut Device<C>,
        stags: &mut StagTable,
        now: core::time::Duration,
    ) -> Result<Response, VerbsError> {
        loop {
            if let Poll::Ready(response) = self.execute_part(id, request, device, stags, now) {
                return response;
            }
        }
    }

    /// Performs a part of [`Self::execute`] that takes a few microseconds. `Pending` until the request is done: the
    /// next call for this context is for the same request, unless it is one of [`Self::close_part`].
    pub fn execute_part<C: AsRef<[u8]>>(
        &mut self,
        id: ContextId,
        request: &Request,
        device: &mut Device<C>,
        stags: &mut StagTable,
        now: core::time::Duration,
    ) -> Poll<Result<Response, VerbsError>> {
        if matches!(request, Request::CreateId(_)) && !self.has_room_for_id(id) {
            return Poll::Ready(Err(VerbsError::NoResources));
        }
        let context = self.places.get_mut(id.0 as usize).and_then(Option::as_mut);
        let context = context.filter(|context| !context.closing).ok_or(VerbsError::NoSuchObject)?;
        if !std::mem::replace(&mut context.is_served, true) {
            context.turn = self.users.add(context.user, id);
            // Of the link, while nobody served it.
            self.events_kept |= context.keeps_events();
        }
        if let Request::ResizeCq(cq, cqe) = *request {
            let ring = self.cqs.get_mut(cq.index()).and_then(Option::as_mut);
            let ring = ring.filter(|ring| ring.cq == cq && ring.context == id);
            let done = context.resize_cq((cq, cqe), ring.ok_or(VerbsError::NoSuchObject)?, device);
            if done.is_ready() {
                // It was not served meanwhile.
                self.make_due(cq);
            }
            return done;
        }
        let Poll::Ready(response) = context.execute(request, device, stags, now)? else {
            return Poll::Pending;
        };
        self.executed(id, request, &response, device)?;
        Poll::Ready(Ok(response))
    }

    /// Keeps the tables of all contexts after a request of one.
    fn executed<C: AsRef<[u8]>>(
        &mut self,
        id: ContextId,
        request: &Request,
        response: &Response,
        device: &mut Device<C>,
    ) -> Result<(), VerbsError> {
        match (request, response) {
            (_, Response::Cq(cq, place)) => {
                let context = self.places.get_mut(id.0 as usize).and_then(Option::as_mut);
                let context = context.ok_or(VerbsError::NoSuchObject)?;
                let ring = CqRing::new(id, *cq, context.memory(), *place);
                *self.cqs.get_mut(cq.index()).ok_or(VerbsError::NoResources)? = ring;
                if let Some(user) = self.users.get_mut(context.turn) {
                    // Each queue may be there once, and once more after it was resized.
                    user.cqs.reserve(self.cqs.len().saturating_mul(2));
                }
                // Fails only if the queue is not there.
                let _ = device.req_notify_cq(*cq, false);
            }
            (_, Response::Qp(qp, _)) => {
                self.qp_owners.insert(*qp, id);
                device.set_qp_client(*qp, id.0)?;
            }
            (_, Response::Srq(srq, _)) => {
                self.srq_owners.insert(*srq, id);
            }
            (_, Response::Id(cm)) => device.set_owner(*cm, Owner::Context(id.0))?,
            (Request::DestroyCq(cq), _) => self.forget_cq(*cq),
            (Request::DestroyQp(qp), _) => {
                self.qp_owners.remove(qp);
            }
            (Request::DestroySrq(srq), _) => {
                self.srq_owners.remove(srq);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the user of an open context.
    pub fn user(&self, id: ContextId) -> Option<UserId> {
        self.places.get(id.0 as usize)?.as_ref().map(|context| context.user)
    }

    /// Returns the number of ids that the user of an open context may have.
    pub fn ids_max(&self, id: ContextId) -> Option<u32> {
        self.places.get(id.0 as usize)?.as_ref().map(|context| context.limits.ids)
    }

    /// Returns the ring of a completion queue.
    #[inline]
    fn ring(&mut self, cq: CqId) -> Option<&mut CqRing<M>> {
        self.cqs.get_mut(cq.index())?.as_mut().filter(|ring| ring.cq == cq)
    }

    /// Has the completions of a queue moved to its ring in the user's next turn.
    fn make_due(&mut self, cq: CqId) {
        let context = self.ring(cq).map(|ring| ring.context);
        let context = context.and_then(|id| self.places.get(id.0 as usize)?.as_ref());
        if let Some(user) = context.and_then(|context| self.users.get_mut(context.turn)) {
            user.cqs.push_back(cq);
            self.undelivered = true;
        }
    }

    /// Returns true if a context may have another id: neither its user nor all users together have as many as allowed.
    fn has_room_for_id(&self, id: ContextId) -> bool {
        let Some(Some(Context { limits, user, .. })) = self.places.get(id.0 as usize) else { return true };
        let (mut all, mut of_user) = (0_usize, 0_usize);
        for context in self.contexts() {
            let ids = context.objects.ids.len();
            all = all.saturating_add(ids);
            of_user = of_user.saturating_add(if context.user == *user { ids } else { 0 });
        }
        of_user < limits.ids as usize && all < limits.ids_of_all as usize
    }

    fn forget_cq(&mut self, cq: CqId) {
        if let Some(place) = self.cqs.get_mut(cq.index()) {
            *place = None;
        }
        self.full.retain(|full| *full != cq);
    }

    /// Returns true if a program has rung since the last [`Self::post`].
    #[inline]
    pub fn has_rung(&self) -> bool {
        !self.stopped && self.contexts().any(Context::has_rung)
    }

    /// Returns true if completions, events or entries wait for a change that no signal announces, such as room in a
    /// ring.
    pub fn waits(&self) -> bool {
        !self.full.is_empty() || self.contexts().any(Context::waits)
    }

    /// Announces that the worker sleeps, until [`Self::awake`]. Returns false if a program has rung meanwhile: the
    /// worker must not sleep.
    pub fn sleep(&self) -> bool {
        if self.stopped {
            return true;
        }
        let sleeps =
            self.contexts().all(|context| doorbells(context.memory().as_ref()).is_none_or(Doorbells::sleep));
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// Announces that the worker is awake.
    pub fn awake(&self) {
        for context in self.contexts() {
            if let Some(doorbells) = doorbells(context.memory().as_ref()) {
                doorbells.awake();
            }
        }
    }

    fn contexts(&self) -> impl Iterator<Item = &Context<M>> {
        let open = self.users.iter().flat_map(|user| user.contexts());
        open.filter_map(|id| self.places.get(id.0 as usize)?.as_ref())
    }

    /// Entries, or completions, of one user per poll.
    #[inline]
    const fn share(&self) -> usize {
        if self.users.count() > 1 { USER_ENTRIES_MAX } else { ENTRIES_MAX }
    }

    /// Posts no more work: what programs queue from here on was never posted, and is not unfinished when they go.
    pub const fn stop(&mut self) {
        self.stopped = true;
    }

    /// Posts work that programs have queued, up to a bound: the users in turn, and the contexts of each in turn.
    /// Returns true if work is left that the next call can do at once.
    #[inline]
    pub fn post<C: AsRef<[u8]>>(&mut self, device: &mut Device<C>) -> bool {
        if self.stopped {
            return false;
        }
        let (mut left, share) = (ENTRIES_MAX, self.share());
        let mut busy = false;
        for _ in 0..self.users.turns() {
            if left == 0 {
                busy = true;
                break;
            }
            let turn = self.users.next_turn();
            let most = left.min(share);
            let (posted, has_more) = self.post_of(turn, most, device);
            left = left.saturating_sub(posted);
            busy |= has_more;
        }
        busy
    }

    /// Posts up to `most` entries of a user. Returns their number, and true if the user has more.
    #[inline]
    fn post_of<C: AsRef<[u8]>>(&mut self, turn: usize, most: usize, device: &mut Device<C>) -> (usize, bool) {
        let Some(user) = self.users.get_mut(turn) else { return (0, false) };
        let (mut posted, mut busy) = (0_usize, false);
        for _ in 0..user.contexts().len() {
            let left = most.saturating_sub(posted);
            if left == 0 {
                return (posted, true);
            }
            let Some(id) = user.next() else { break };
            let Some(Some(context)) = self.places.get_mut(id.0 as usize) else { continue };
            if !context.is_due() {
                continue;
            }
            let of_context = context.post(device, left.min(CONTEXT_ENTRIES_MAX), &mut self.entry);
            posted = posted.saturating_add(of_context.max(1));
            busy |= context.has_work();
        }
        (posted, busy)
    }

    /// Moves completions to the rings of their queues, up to a bound, the users in turn; and asynchronous events to
    /// their contexts.
    #[inline]
    pub fn deliver<C: AsRef<[u8]>>(&mut self, device: &mut Device<C>, signals: &mut impl Signals) {
        for _ in 0..self.full.len().min(CQS_FULL_MAX) {
            let Some(cq) = self.full.pop_front() else { break };
            self.make_due(cq);
        }
        let mut events = 0;
        while events < CQS_SERVED_MAX
            && let Some(cq) = device.poll_cq_event()
        {
            self.make_due(cq);
            events = events.saturating_add(1);
        }
        if self.undelivered {
            self.undelivered = events == CQS_SERVED_MAX;
            self.serve_all(device, signals);
        }
        for _ in 0..CQS_SERVED_MAX {
            let Some(event) = device.poll_async_event() else { break };
            self.async_event(event, signals);
        }
        self.undelivered |= device.has_async_event();
        if !self.ends.is_empty() {
            self.release_ends(device, signals);
        }
        if self.events_kept {
            self.resume_events(signals);
        }
    }

    /// Returns true if completions or events are left that [`Self::deliver`] can deliver at once.
    #[inline]
    pub const fn has_undelivered(&self) -> bool {
        self.undelivered
    }

    /// Moves completions of all users.
    #[inline]
    fn serve_all<C: AsRef<[u8]>>(&mut self, device: &mut Device<C>, signals: &mut impl Signals) {
        let share = self.share();
        for _ in 0..self.users.turns() {
            let turn = self.users.next_turn();
            let mut left = share;
            while left > 0
                && let Some(cq) = self.users.get_mut(turn).and_then(|user| user.cqs.pop_front())
            {
                let served = self.serve(cq, left, device, signals);
                left = left.saturating_sub(served.max(1));
            }
            self.undelivered |= self.users.get_mut(turn).is_some_and(|user| !user.cqs.is_empty());
        }
    }

    /// Delivers the events for which the rings of their contexts had no room, as far as they have now.
    #[cold]
    fn resume_events(&mut self, signals: &mut impl Signals) {
        self.events_kept = false;
        for id in self.users.iter().flat_map(|user| user.contexts()) {
            let Some(Some(context)) = self.places.get_mut(id.0 as usize) else { continue };
            if context.resume_events() {
                signals.event(*id);
            }
            self.events_kept |= context.keeps_events();
        }
    }

    /// Moves up to `max` completions of a queue to its ring. Returns their number.
    fn serve<C: AsRef<[u8]>>(
        &mut self,
        cq: CqId,
        max: usize,
        device: &mut Device<C>,
        signals: &mut impl Signals,
    ) -> usize {
        let Some(ring) = self.ring(cq) else { return 0 };
        let (served, owner) = (ring.serve(device, max), ring.context);
        if let Some(Some(context)) = self.places.get_mut(owner.0 as usize) {
            let ContextStats { completions, errors, .. } = &mut context.stats;
            *completions = completions.wrapping_add(served.completions);
            *errors = errors.wrapping_add(served.errors);
        }
        if served.signal {
            signals.completion(owner, cq);
        }
        if served.full {
            self.full.push_back(cq);
        } else if served.more {
            self.make_due(cq);
        }
        usize::try_from(served.completions).unwrap_or(usize::MAX)
    }

    fn async_event(&mut self, event: AsyncEvent, signals: &mut impl Signals) {
        let owner = match event {
            AsyncEvent::CqError(cq) => self.ring(cq).map(|ring| {
                ring.show_error();
                ring.context
            }),
            AsyncEvent::SrqLimitReached(srq) => self.srq_owners.get(&srq).copied(),
            AsyncEvent::QpFatal(qp, _)
            | AsyncEvent::QpRequestError(qp, _)
            | AsyncEvent::QpAccessError(qp, _)
            | AsyncEvent::QpTerminated(qp, _)
            | AsyncEvent::QpLastWqeReached(qp) => self.qp_owners.get(&qp).copied(),
        };
        if let Some(owner) = owner {
            self.event(owner, Event::Async(event), signals);
        }
    }

    /// Passes a connection event to the context that owns its id; `Disconnected` once the completions that the
    /// connection has had are in their rings. A connect request to a context whose user has as many ids as it may have
    /// is refused: its connection is reset. Returns the event if no context owns it.
    pub fn cm_event<C: AsRef<[u8]>>(
        &mut self,
        event: CmEvent,
        device: &mut Device<C>,
        signals: &mut impl Signals,
    ) -> Option<CmEvent> {
        let Some(owner) = Self::owner_of(device, event.id) else { return Some(event) };
        let admitted =
            !matches!(event.kind, CmEventKind::ConnectRequest { .. }) || self.has_room_for_id(owner);
        let context = self.places.get_mut(owner.0 as usize).and_then(Option::as_mut);
        if let Some(context) = context.filter(|context| admitted && !context.closing) {
            context.take_id(&event);
            if let Some(event) = self.hold_end(owner, event, device) {
                self.event(owner, Event::Cm(event), signals);
            }
        } else {
            // Fails only if the id is not there.
            let _ = device.destroy_id(event.id);
        }
        None
    }

    /// Reports to all contexts that the link of their device's port has come up, or is down.
    pub fn set_link(&mut self, up: bool, signals: &mut impl Signals) {
        for at in 0..self.places.len() {
            if let Ok(id) = u32::try_from(at) {
                self.event(ContextId(id), if up { Event::PortActive } else { Event::PortDown }, signals);
            }
        }
    }

    fn event(&mut self, owner: ContextId, event: Event, signals: &mut impl Signals) {
        let context = self.places.get_mut(owner.0 as usize).and_then(Option::as_mut);
        if let Some(context) = context.filter(|context| !context.closing) {
            let is_new = context.event(event);
            self.events_kept |= context.is_served && context.keeps_events();
            if is_new {
                signals.event(owner);
            }
        }
    }
}
