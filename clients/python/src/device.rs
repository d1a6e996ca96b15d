//! A device that a program has opened, and what all of its objects share: the waits of threads, the events that are
//! not taken yet, and the list of objects that `close` ends.
//!
//! A thread never waits for a lock of this module while it is attached to the interpreter and another thread holds the
//! lock for long: locks are held for a moment, and waits detach.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use iwarp_verbs::{AsyncEvent, CmEvent, CmEventKind, CmId, Context, Error, Event, QpNum};
use pyo3::prelude::*;

use crate::errors::Failure;

/// Longest sleep of a waiting thread before it lets handlers of signals run.
pub(crate) const SLICE: Duration = Duration::from_millis(100);
/// Asynchronous events that are kept until the program takes them; the oldest ones go first.
const ASYNC_EVENTS_MAX: usize = 1024;

/// Locks a mutex. A thread that panicked while it held the lock has left consistent data: each change is a single one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Order in which the objects of a device are closed: those that use others come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Connection,
    Server,
    QueuePair,
    Memory,
    Rest,
}

/// An object of a device, as `close` sees it.
pub(crate) trait Object: Send + Sync {
    fn rank(&self) -> Rank;

    /// Returns a word about views of the object that the program still uses, if there are any.
    fn in_use(&self) -> Option<Failure> {
        None
    }

    /// Releases the object. Later calls on it fail.
    fn close(&self);
}

/// An open device with what its objects share.
pub(crate) struct Device {
    /// Context of the library; `None` once it is closed.
    context: Mutex<Option<Context>>,
    pid: u32,
    /// True while an event loop waits for the descriptors.
    has_loop: AtomicBool,
    turn: Mutex<Turn>,
    changed: Condvar,
    events: Mutex<Events>,
    objects: Mutex<Vec<Weak<dyn Object>>>,
}

/// Waits of the threads of a program: one sleeps in the device, and the others until that one wakes them.
#[derive(Default)]
struct Turn {
    has_sleeper: bool,
    /// Number of sleeps that have ended.
    ended: u64,
}

/// Events that belong to an object, until it takes them.
#[derive(Default)]
struct Events {
    by_id: HashMap<CmId, VecDeque<CmEvent>>,
    of_device: VecDeque<AsyncEvent>,
}

impl Device {
    pub(crate) fn new(context: Context) -> Arc<Self> {
        Arc::new(Self {
            context: Mutex::new(Some(context)),
            pid: std::process::id(),
            has_loop: AtomicBool::new(false),
            turn: Mutex::default(),
            changed: Condvar::new(),
            events: Mutex::default(),
            objects: Mutex::default(),
        })
    }

    /// Fails in a child of the process, and once the device is closed. Every call begins with this check: a lock that
    /// another thread held at a fork is never free in the child.
    pub(crate) fn check(&self) -> Result<Context, Failure> {
        if self.is_child() {
            return Err(Failure::child());
        }
        lock(&self.context).clone().ok_or_else(|| Failure::closed("device"))
    }

    pub(crate) fn is_child(&self) -> bool {
        std::process::id() != self.pid
    }

    pub(crate) fn is_open(&self) -> bool {
        self.check().is_ok_and(|context| context.is_open())
    }

    /// Lists an object, for `close`.
    pub(crate) fn add(&self, object: Weak<dyn Object>) {
        let mut objects = lock(&self.objects);
        // Each time that the list doubles, those that are gone leave it.
        if objects.len() == objects.capacity() {
            objects.retain(|object| object.strong_count() > 0);
        }
        objects.push(object);
    }

    /// Closes all objects, in an order in which none is used any more.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        if self.is_child() {
            return Ok(());
        }
        let mut objects: Vec<_> = lock(&self.objects).iter().filter_map(Weak::upgrade).collect();
        if let Some(in_use) = objects.iter().find_map(|object| object.in_use()) {
            return Err(in_use);
        }
        objects.sort_by_key(|object| object.rank());
        objects.iter().for_each(|object| object.close());
        lock(&self.objects).clear();
        *lock(&self.events) = Events::default();
        // Dropped without the lock. Those who wait find the device closed.
        let context = lock(&self.context).take();
        if let Some(context) = context {
            context.wake_helper();
        }
        Ok(())
    }

    /// Claims the descriptors for an event loop. Returns false if another one has them.
    pub(crate) fn claim_loop(&self) -> bool {
        if self.has_loop.swap(true, Ordering::AcqRel) {
            return false;
        }
        // A thread that sleeps would take wake-ups of the loop. Its call fails.
        let mut turn = lock(&self.turn);
        while turn.has_sleeper {
            if let Ok(context) = self.check() {
                context.wake_helper();
            }
            turn = self.changed.wait_timeout(turn, SLICE).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn free_loop(&self) {
        self.has_loop.store(false, Ordering::Release);
    }
}

impl Device {
    /// Repeats `take` until there is something; `None` once the time has passed. Handlers of signals run meanwhile, and
    /// an exception of theirs ends the wait.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        mut take: impl FnMut() -> Result<Option<T>, Failure> + Send,
    ) -> Result<Option<T>, Failure> {
        let until = timeout.and_then(|timeout| now().checked_add(timeout));
        loop {
            self.check()?;
            let slice = now().checked_add(SLICE);
            let slice = slice.into_iter().chain(until).min();
            if let Some(taken) = detach(py, || self.wait_detached(slice, &mut take))? {
                return Ok(Some(taken));
            }
            py.check_signals()?;
            if until.is_some_and(|until| until <= now()) {
                return Ok(None);
            }
        }
    }

    fn wait_detached<T>(
        &self,
        until: Option<Instant>,
        take: &mut impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<Option<T>, Failure> {
        loop {
            let ended = lock(&self.turn).ended;
            if let Some(taken) = take()? {
                return Ok(Some(taken));
            }
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(ended, left)?;
        }
    }

    /// Sleeps until there may be an event or a completion, if none has come since a number of sleeps had ended.
    fn sleep(&self, ended: u64, time: Duration) -> Result<(), Failure> {
        let mut turn = lock(&self.turn);
        if turn.ended != ended {
            return Ok(());
        }
        if self.has_loop.load(Ordering::Acquire) {
            let reason = "an event loop waits for this device: await the asynchronous call in that loop";
            return Err(Failure::Os(crate::errors::Class::Error, libc::EBUSY, reason.to_owned()));
        }
        if turn.has_sleeper {
            drop(self.changed.wait_timeout(turn, time));
            return Ok(());
        }
        turn.has_sleeper = true;
        drop(turn);
        let slept = self.check().and_then(|context| match context.is_open() {
            true => Ok(context.wait(time)?),
            false => Err(Error::Lost.into()),
        });
        let mut turn = lock(&self.turn);
        turn.has_sleeper = false;
        turn.ended = turn.ended.wrapping_add(1);
        self.changed.notify_all();
        slept.map(drop)
    }
}

impl Device {
    /// Begins to keep the events of a listener or connection.
    pub(crate) fn watch(&self, id: CmId) {
        lock(&self.events).by_id.entry(id).or_default();
    }

    /// Forgets a listener or connection, and closes the connections whose requests nobody has taken.
    pub(crate) fn unwatch(&self, id: CmId) {
        let Ok(context) = self.check() else { return };
        let left = lock(&self.events).by_id.remove(&id);
        for event in left.into_iter().flatten() {
            if matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
                self.unwatch(event.id);
                drop(context.id(event.id));
            }
        }
    }

    /// Returns the next event of a listener or connection.
    pub(crate) fn poll_event(&self, id: CmId) -> Result<Option<CmEvent>, Failure> {
        self.sort_events(&self.check()?);
        Ok(lock(&self.events).by_id.get_mut(&id).and_then(VecDeque::pop_front))
    }

    /// Returns the next asynchronous event.
    pub(crate) fn poll_async_event(&self) -> Result<Option<AsyncEvent>, Failure> {
        self.sort_events(&self.check()?);
        Ok(lock(&self.events).of_device.pop_front())
    }

    /// Returns the next asynchronous event of a queue pair.
    pub(crate) fn poll_qp_event(&self, qp: QpNum) -> Result<Option<AsyncEvent>, Failure> {
        self.sort_events(&self.check()?);
        let mut events = lock(&self.events);
        let at = events.of_device.iter().position(|event| event.qp() == Some(qp));
        Ok(at.and_then(|at| events.of_device.remove(at)))
    }

    /// Hands each event of the device to its object. Those of objects that are closed are dropped.
    fn sort_events(&self, context: &Context) {
        loop {
            // Held until the event is sorted, so that two threads keep the order.
            let mut events = lock(&self.events);
            let Some(event) = context.poll_event() else { return };
            let event = match event {
                Event::Cm(event) => event,
                Event::Async(event) => {
                    if events.of_device.len() >= ASYNC_EVENTS_MAX {
                        events.of_device.pop_front();
                    }
                    events.of_device.push_back(event);
                    continue;
                }
                Event::PortActive | Event::PortDown | Event::DeviceFatal => continue,
            };
            let request = match event.kind {
                CmEventKind::ConnectRequest { listener, .. } => Some((listener, event.id)),
                _ => None,
            };
            match events.by_id.get_mut(&request.map_or(event.id, |(listener, _)| listener)) {
                Some(queue) => {
                    queue.push_back(event);
                    if let Some((_, id)) = request {
                        events.by_id.entry(id).or_default();
                    }
                }
                // Nobody would answer: the connection is closed.
                None if request.is_some() => {
                    drop(events);
                    drop(context.id(event.id));
                }
                None => {}
            }
        }
    }
}

/// Value of an object, until the program or the device closes it.
pub(crate) struct Slot<T> {
    pub(crate) device: Arc<Device>,
    value: Mutex<Option<T>>,
    what: &'static str,
    rank: Rank,
}

impl<T: Send + 'static> Slot<T> {
    /// Keeps a value, and lists it with the device.
    pub(crate) fn new(device: &Arc<Device>, what: &'static str, rank: Rank, value: T) -> Arc<Self> {
        let slot = Self { device: Arc::clone(device), value: Mutex::new(Some(value)), what, rank };
        let slot = Arc::new(slot);
        let object: Arc<dyn Object> = Arc::clone(&slot) as _;
        device.add(Arc::downgrade(&object));
        slot
    }

    /// Returns a handle of the value.
    pub(crate) fn get(&self) -> Result<T, Failure>
    where
        T: Clone,
    {
        self.device.check()?;
        lock(&self.value).clone().ok_or_else(|| Failure::closed(self.what))
    }

    /// Takes the value.
    pub(crate) fn take(&self) -> Option<T> {
        if self.device.is_child() { None } else { lock(&self.value).take() }
    }
}

impl<T: Send + 'static> Object for Slot<T> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn close(&self) {
        // Dropped without the lock.
        drop(self.take());
    }
}

/// Does something without the interpreter's lock. A thread that is still here when the process ends does not come back:
/// the interpreter is gone then.
pub(crate) fn detach<T: Send>(py: Python<'_>, ask: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let answer = ask();
        while iwarp_verbs::is_exiting() {
            std::thread::park();
        }
        answer
    })
}

#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns a timeout in seconds as a duration; `None` waits without a limit.
pub(crate) fn duration(timeout: Option<f64>) -> Result<Option<Duration>, Failure> {
    let Some(seconds) = timeout else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Failure::Value(format!("a timeout of {seconds} s: give seconds from 0 on, or None")));
    }
    Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
}
