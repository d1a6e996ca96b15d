//! Completion queues of a context.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use iwarp_shared_verbs::program::{CompletionQueue as Queue, Slots};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{CqId, PollError, VerbsError, WorkCompletion};

use crate::context::{Context, Inner, Words, lock};
use crate::error::Error;
use crate::qp::QpInner;

/// A completion queue (`ibv_cq`). Clones are handles of the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue(pub(crate) Arc<CqInner>);

/// Polls in a row that find nothing for which the engine does not run.
const DRAINING_POLLS: u32 = 2;
/// Polls of a daemon's queue that find nothing before the thread lets others have its CPU: some microseconds.
const POLLS_PER_YIELD: u32 = 256;

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) context: Arc<Inner>,
    pub(crate) id: CqId,
    pub(crate) queue: Mutex<Queue<Words>>,
    /// Queue pairs that complete here.
    pub(crate) qps: Mutex<Vec<Weak<QpInner>>>,
    /// Polls that have found nothing: in a row, of a device in this process.
    vain: AtomicU32,
    /// True from the time that the program arms the queue until a poll finds nothing.
    is_armed: AtomicBool,
}

impl Context {
    /// Creates a completion queue of `cqe` entries (`ibv_create_cq`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue, Error> {
        let call = "create_cq";
        let Response::Cq(id, place) = self.0.execute(call, Request::CreateCq(cqe))? else {
            return Err(Error::Protocol(call));
        };
        let queue = Queue::new(self.0.words.clone(), place).ok_or(Error::Protocol(call))?;
        let inner = Arc::new(CqInner {
            context: Arc::clone(&self.0),
            id,
            queue: Mutex::new(queue),
            qps: Mutex::default(),
            vain: AtomicU32::new(0),
            is_armed: AtomicBool::new(false),
        });
        self.0.count_events(id, &inner);
        Ok(CompletionQueue(inner))
    }
}

impl CompletionQueue {
    /// Returns the handle of the queue, as [`Context::wait_completion`] returns it.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// Gives the queue `cqe` entries (`ibv_resize_cq`). Other threads that poll it wait meanwhile.
    ///
    /// # Errors
    /// The device refuses, with `Invalid` if more completions are outstanding; or the daemon has ended.
    pub fn resize(&self, cqe: u32) -> Result<(), Error> {
        let call = "resize_cq";
        if self.is_inherited() {
            return Err(Error::Lost);
        }
        // Held until the change is complete: the worker moves the completions that nobody has taken.
        let mut queue = lock(&self.0.queue);
        if !queue.begin_resize(cqe) {
            return Err(Error::Refused { call, cause: VerbsError::Invalid, reason: None });
        }
        match self.0.context.execute(call, Request::ResizeCq(self.0.id, cqe))? {
            Response::Cq(_, place) if queue.end_resize(place) => Ok(()),
            _ => Err(Error::Protocol(call)),
        }
    }

    /// Moves completions to `out`, oldest first, and returns their number (`ibv_poll_cq`).
    ///
    /// # Errors
    /// `Overrun`: the queue is in error and empty. `NoSuchObject`: it [is inherited](Self::is_inherited).
    #[inline]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        if self.is_inherited() {
            return Err(PollError::NoSuchObject);
        }
        let polled = lock(&self.0.queue).poll(out);
        match polled {
            Ok(0) | Err(_) => self.0.poll_again(polled, out),
            Ok(found) => {
                self.0.found(found);
                Ok(found)
            }
        }
    }

    /// Arms the queue for one event with its next completion (`ibv_req_notify_cq`), or its next solicited one. The
    /// program polls once more after this call, before it waits.
    pub fn req_notify(&self, solicited_only: bool) {
        if !self.is_inherited() {
            lock(&self.0.queue).req_notify(solicited_only);
            self.0.is_armed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true in a child (`fork`) of the process that has created the queue. The child cannot use it.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.0.context.is_child()
    }

    /// Returns true if the queue is armed, and completions are left in it, of which a solicited one counts if it is
    /// armed for those. The queue is not armed any more then. Programs of libibverbs that poll only some completions,
    /// and then wait, expect an event for the others: the caller raises it.
    pub fn take_left_event(&self) -> bool {
        !self.is_inherited() && lock(&self.0.queue).take_left_event()
    }
}

impl CqInner {
    /// Polls a queue that was empty once more, after the engine has run in this process; or that of a device that has
    /// ended.
    fn poll_again(
        &self,
        polled: Result<usize, PollError>,
        out: &mut [WorkCompletion],
    ) -> Result<usize, PollError> {
        if self.context.is_lost() {
            return self.poll_flushed(out);
        }
        let times = self.vain.load(Ordering::Relaxed).wrapping_add(1);
        self.vain.store(times, Ordering::Relaxed);
        if !self.context.is_here() {
            // The worker may wait for this very CPU.
            if times.is_multiple_of(POLLS_PER_YIELD) {
                rustix::thread::sched_yield();
            }
            return polled;
        }
        // A program drains its queue, arms it, and looks once more, each with a poll in vain. Then it sleeps, or its
        // next poll runs the engine.
        let most = DRAINING_POLLS + u32::from(self.is_armed.swap(false, Ordering::Relaxed));
        if times <= most && !self.context.has_posts() {
            self.context.polled_in_passing();
            return polled;
        }
        self.context.run();
        let polled = lock(&self.queue).poll(out);
        match polled {
            Ok(found @ 1..) => self.found(found),
            _ => self.context.found_nothing(times),
        }
        polled
    }

    /// Notes that the program has found completions.
    #[inline]
    fn found(&self, completions: usize) {
        if self.context.is_here() {
            self.vain.store(0, Ordering::Relaxed);
            self.context.found(completions);
        }
    }

    /// Polls a queue of a daemon that has ended: completes the outstanding work of all queue pairs with an error.
    #[cold]
    fn poll_flushed(&self, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        // Dropped after the lock below: the last handle of a queue pair takes it.
        let qps: Vec<_> = lock(&self.qps).iter().filter_map(Weak::upgrade).collect();
        let mut queue = lock(&self.queue);
        for qp in &qps {
            if queue.is_drained() {
                queue.add_flushed(qp.flushed(self.id));
            }
        }
        queue.poll(out)
    }

    /// Adds a queue pair that completes here.
    pub(crate) fn add_qp(&self, qp: &Arc<QpInner>, slots: Slots) {
        lock(&self.queue).add_qp(qp.num, slots);
        let mut qps = lock(&self.qps);
        qps.retain(|qp| qp.strong_count() > 0);
        qps.push(Arc::downgrade(qp));
    }

    /// Returns the number of events since the queue was created.
    pub(crate) fn events(&self) -> u64 {
        lock(&self.queue).events()
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.context.forget_cq(self.id);
        // Fails only if the daemon has ended: no queue pair uses it any more.
        let _ = self.context.execute("destroy_cq", Request::DestroyCq(self.id));
    }
}
