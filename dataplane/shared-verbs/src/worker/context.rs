//! One context: its objects, the rings of its queues, and its events.

use core::sync::atomic::Ordering;
use std::collections::{HashSet, VecDeque};

use iwarp_shared_queues::{DOORBELL_QUEUES_MAX, Doorbells, Producer, RingShape, VERSION};
use range_alloc::RangeAllocator;
use rdma::verbs::{AsyncEvent, CmEvent, CmEventKind, Device, VerbsError};

use super::objects::{ObjectLimits, Objects};
use super::queue::{Posted, Queue, Target};
use super::{ContextMemory, ContextStats, EntryWords, UserId};
use crate::layout::{VERSION_WORD, doorbells, events_shape, events_start};
use crate::{Event, QueuePlace, words_min};

/// Entries that one queue may post before another one of its context.
const QUEUE_ENTRIES_MAX: usize = 32;
/// Queues per poll of which the next entry could not be posted before.
const RETRIED_MAX: usize = 4;

/// A context of another process, as the worker has it.
#[derive(Debug)]
pub(super) struct Context<M> {
    memory: M,
    pub(super) limits: ObjectLimits,
    /// True once the worker serves the context's memory.
    pub(super) is_served: bool,
    pub(super) objects: Objects,
    /// Words that no queue uses.
    space: RangeAllocator<usize>,
    /// Rings of send and receive queues, by doorbell.
    pub(super) queues: Vec<Option<Queue<M>>>,
    /// Doorbells of the receive queues that have entries to post, each at most once.
    ready_recv: VecDeque<u32>,
    /// Doorbells of the send queues that have entries to post, each at most once.
    ready_send: VecDeque<u32>,
    /// Doorbells of the queues whose next entry could not be posted yet.
    waiting: VecDeque<u32>,
    /// First doorbell that is looked at next.
    next_doorbell: u32,
    pub(super) user: UserId,
    /// Index of the user in [`Users`](super::users::Users).
    pub(super) turn: usize,
    /// True once the context is being closed: the program's memory is not looked at any more.
    pub(super) closing: bool,
    events: Producer<M>,
    /// Events that the ring has had no room for. The context's objects bound their number: an asynchronous event waits
    /// once for its object, of the port's states the last one waits, and an id has three events until it is destroyed.
    events_kept: VecDeque<Event>,
    /// [Keys](AsyncEvent::key) of the asynchronous events among them.
    async_kept: HashSet<AsyncEvent>,
    /// True once the program has corrupted the ring of events: it receives no more of them.
    events_broken: bool,
    pub(super) stats: ContextStats,
}

impl<M: ContextMemory> Context<M> {
    /// Returns a context without objects; `None` if the memory is too short.
    pub(super) fn new(memory: M, user: UserId, limits: ObjectLimits) -> Option<Self> {
        let words = memory.as_ref();
        words.get(VERSION_WORD)?.store(VERSION.into(), Ordering::Release);
        let space = RangeAllocator::new(words_min()..words.len().max(words_min()));
        let events = Producer::new(memory.clone(), events_start(), events_shape()?)?;
        Some(Self {
            memory,
            limits,
            is_served: false,
            objects: Objects::default(),
            space,
            queues: Vec::new(),
            ready_recv: VecDeque::new(),
            ready_send: VecDeque::new(),
            waiting: VecDeque::new(),
            next_doorbell: 0,
            user,
            turn: 0,
            closing: false,
            events,
            events_kept: VecDeque::new(),
            async_kept: HashSet::new(),
            events_broken: false,
            stats: ContextStats::default(),
        })
    }

    pub(super) const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns true if the program has rung since the last [`Self::post`].
    #[inline]
    pub(super) fn has_rung(&self) -> bool {
        doorbells(self.memory.as_ref()).is_some_and(Doorbells::has_rung)
    }

    /// Returns true if entries or events wait for room.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty() || self.keeps_events()
    }

    /// Returns true if entries can be posted at once.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.ready_recv.is_empty() || !self.ready_send.is_empty()
    }

    /// Returns true if [`Self::post`] has something to do.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.has_rung() || self.has_work() || !self.waiting.is_empty()
    }

    /// Posts up to `max` entries of the queues whose doorbells have rung, and returns their number; a queue that has no
    /// entry counts as one. A message does not
    /// overtake the receive buffers that the program has posted before it: the peer may answer at once.
    #[inline]
    pub(super) fn post<C: AsRef<[u8]>>(
        &mut self,
        device: &mut Device<C>,
        max: usize,
        words: &mut EntryWords,
    ) -> usize {
        self.take_doorbells();
        let mut posted = 0_usize;
        for _ in 0..self.waiting.len().min(RETRIED_MAX) {
            let Some(doorbell) = self.waiting.pop_front() else { break };
            posted = posted.saturating_add(self.visit(doorbell, device, 1, words));
        }
        posted = posted.saturating_add(self.post_buffers(device, max.saturating_sub(posted), words));
        if !self.ready_recv.is_empty() {
            return posted;
        }
        for _ in 0..self.ready_send.len() {
            let left = max.saturating_sub(posted);
            if left == 0 {
                break;
            }
            let Some(doorbell) = self.ready_send.pop_front() else { break };
            let read = self.visit(doorbell, device, left.min(QUEUE_ENTRIES_MAX), words);
            posted = posted.saturating_add(read.max(1));
        }
        if self.has_rung() {
            // A request that was just read may have come behind buffers. It leaves when all contexts have posted.
            self.take_doorbells();
            posted = posted.saturating_add(self.post_buffers(device, max.saturating_sub(posted), words));
        }
        posted
    }

    fn take_doorbells(&mut self) {
        let Self { memory, queues, ready_recv, ready_send, next_doorbell, .. } = self;
        let Some(doorbells) = doorbells(memory.as_ref()) else { return };
        *next_doorbell = doorbells.take(*next_doorbell, &mut |doorbell| {
            if let Some(Some(queue)) = queues.get_mut(doorbell as usize)
                && !queue.waits
            {
                queue.waits = true;
                if queue.sends() { ready_send.push_back(doorbell) } else { ready_recv.push_back(doorbell) }
            }
        });
    }

    /// Posts up to `max` receive buffers, and returns their number.
    #[inline]
    fn post_buffers<C: AsRef<[u8]>>(
        &mut self,
        device: &mut Device<C>,
        max: usize,
        words: &mut EntryWords,
    ) -> usize {
        let mut posted = 0_usize;
        while let Some(left) = max.checked_sub(posted).filter(|left| *left > 0)
            && let Some(doorbell) = self.ready_recv.pop_front()
        {
            let read = self.visit(doorbell, device, left.min(QUEUE_ENTRIES_MAX), words);
            posted = posted.saturating_add(read.max(1));
        }
        posted
    }

    /// Posts up to `max` entries of a queue, and queues it again if some are left.
    #[inline]
    fn visit<C: AsRef<[u8]>>(
        &mut self,
        doorbell: u32,
        device: &mut Device<C>,
        max: usize,
        words: &mut EntryWords,
    ) -> usize {
        let Some(Some(queue)) = self.queues.get_mut(doorbell as usize) else { return 0 };
        let sends = queue.sends();
        let (read, end) = queue.post(device, max, words);
        queue.waits = end != Posted::All;
        // An entry that waits is back in its ring.
        let taken = read.saturating_sub((end == Posted::Waits).into());
        self.stats.work_requests = self.stats.work_requests.wrapping_add(taken as u64);
        match end {
            Posted::All => {}
            Posted::Some if sends => self.ready_send.push_back(doorbell),
            Posted::Some => self.ready_recv.push_back(doorbell),
            Posted::Waits => self.waiting.push_back(doorbell),
        }
        read
    }

    /// Takes the id of a connect request into the context.
    pub(super) fn take_id(&mut self, event: &CmEvent) {
        if let CmEventKind::ConnectRequest { .. } = event.kind {
            self.objects.ids.insert(event.id);
        }
    }

    /// Delivers an event, or keeps it until the ring has room. Returns true if the program has a new event.
    pub(super) fn event(&mut self, event: Event) -> bool {
        let of_port = |event: &Event| matches!(event, Event::PortActive | Event::PortDown);
        match &event {
            Event::Async(of_object) if !self.async_kept.insert(of_object.key()) => return false,
            event if of_port(event) => self.events_kept.retain(|kept| !of_port(kept)),
            _ => {}
        }
        self.events_kept.push_back(event);
        self.is_served && self.resume_events()
    }

    /// Forgets the events of an object that is destroyed, which have not reached the ring.
    pub(super) fn forget_events(&mut self, is_of_object: impl Fn(&Event) -> bool) {
        let Self { events_kept, async_kept, .. } = self;
        events_kept.retain(|event| {
            let forgotten = is_of_object(event);
            if let Event::Async(event) = event
                && forgotten
            {
                async_kept.remove(&event.key());
            }
            !forgotten
        });
    }

    /// Returns true if events wait for room in the ring.
    pub(super) fn keeps_events(&self) -> bool {
        !self.events_kept.is_empty()
    }

    /// Delivers the events that were kept, as far as the ring has room. Returns true if there was one.
    pub(super) fn resume_events(&mut self) -> bool {
        let mut delivered = false;
        while !self.events_broken && !self.events_kept.is_empty() {
            match self.events.has_room() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => {
                    self.events_broken = true;
                    break;
                }
            }
            let Some(event) = self.events_kept.pop_front() else { break };
            if let Event::Async(event) = &event {
                self.async_kept.remove(&event.key());
            }
            // There is room.
            let _ = self.events.push(&event.encode());
            delivered = true;
        }
        if self.events_broken {
            self.events_kept.clear();
            self.async_kept.clear();
        }
        if delivered {
            self.events.publish();
        }
        delivered
    }

    /// Allocates words, and sets the first `header` of them to zero.
    pub(super) fn allocate(&mut self, words: usize, header: usize) -> Result<usize, VerbsError> {
        let range = self.space.allocate_range(words).map_err(|_| VerbsError::NoResources)?;
        for word in self.memory.as_ref().get(range.clone()).unwrap_or_default().iter().take(header) {
            word.store(0, Ordering::Release);
        }
        Ok(range.start)
    }

    pub(super) fn free(&mut self, start: usize, words: usize) {
        self.space.free_range(start..start.saturating_add(words));
    }

    /// Allocates the ring of a queue, and its doorbell.
    pub(super) fn open_queue(&mut self, shape: RingShape) -> Result<QueuePlace, VerbsError> {
        let free = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        let doorbell = u32::try_from(free).ok().filter(|at| *at < DOORBELL_QUEUES_MAX);
        let doorbell = doorbell.ok_or(VerbsError::NoResources)?;
        let start = self.allocate(shape.words(), RingShape::HEADER_WORDS)?;
        if free == self.queues.len() {
            self.queues.push(None);
            // Each queue is in one of the lists at most.
            self.ready_recv.reserve(self.queues.len());
            self.ready_send.reserve(self.queues.len());
            self.waiting.reserve(self.queues.len());
        }
        Ok(QueuePlace { start, shape, doorbell })
    }

    /// Begins to serve a queue at its place.
    pub(super) fn serve_queue(&mut self, place: &QueuePlace, target: Target) {
        if let Some(queue) = self.queues.get_mut(place.doorbell as usize) {
            *queue = Queue::new(target, self.memory.clone(), place);
        }
    }

    pub(super) fn close_queue(&mut self, place: &QueuePlace) {
        let QueuePlace { start, shape, doorbell } = *place;
        let queue = self.queues.get_mut(doorbell as usize).and_then(Option::take);
        if queue.is_some_and(|queue| queue.waits) {
            self.ready_recv.retain(|of| *of != doorbell);
            self.ready_send.retain(|of| *of != doorbell);
            self.waiting.retain(|of| *of != doorbell);
        }
        self.free(start, shape.words());
    }
}
