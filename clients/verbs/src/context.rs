//! A context: the connection to the daemon, its shared memory, and its events.

mod wait;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use iwarp_control::Client;
use iwarp_shared_queues::AtomicU64;
use iwarp_shared_verbs::methods::{DeviceInfo, DeviceListMethod, Executed, Open, REQUESTS_MAX};
use iwarp_shared_verbs::program::Events;
use iwarp_shared_verbs::{Event, Request, Response};
use rdma::verbs::{CmEventKind, CmId, CqId, VerbsError};

use crate::backend::{Backend, Opened, Posted, Sleeper};
use crate::bell::Bell;
use crate::blocks::Blocks;
use crate::daemon::Daemon;
use crate::embedded::{self, Embedded, EmbeddedOptions, Helper};
use crate::error::Error;
use crate::mapping::{MapError, Mapping};
use crate::process::Here;
use crate::qp::QpInner;
pub use wait::Ready;

/// Completions after which a program that finds some at each poll runs the engine.
const TAKEN_MAX: u32 = 64;

/// Shared memory of a context.
#[derive(Clone, Debug)]
pub(crate) struct Words(pub(crate) Arc<Mapping>);

impl AsRef<[AtomicU64]> for Words {
    fn as_ref(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// An open device (`ibv_context`). Clones are handles of the same context, which closes with the last object.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    backend: Arc<dyn Backend>,
    /// True if the engine is in this process: threads that poll or sleep run it.
    is_here: bool,
    /// Completions that were found since the engine has run.
    taken: AtomicU32,
    pub(crate) words: Words,
    completions: Bell,
    events: Bell,
    ring: Mutex<Events<Words>>,
    /// Queue pairs by their connection, which become ready with its Established event.
    connections: Mutex<HashMap<CmId, Weak<QpInner>>>,
    /// Event counters of completion queues, and the counts that were reported.
    counted: Mutex<HashMap<CqId, Counted>>,
    /// True while the link of the device's port is up.
    link_up: AtomicBool,
    /// True once the daemon has ended.
    lost: AtomicBool,
    /// True once the program has received the event of that.
    reported: AtomicBool,
    /// True once the daemon has the program's memory, for parts that it reaches through the kernel.
    pub(crate) offered: AtomicBool,
    /// Hugepages that small buffers share.
    pub(crate) blocks: Blocks,
    /// The process that has opened the context: a child has no device.
    here: Here,
    app: u32,
    device: DeviceInfo,
}

#[derive(Debug)]
struct Counted {
    queue: Weak<crate::cq::CqInner>,
    events: u64,
}

/// Locks a mutex. A thread that panicked while it held the lock has left consistent data: each change is a single one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Opens a device of the daemon: that of the given name, or the first.
    ///
    /// # Errors
    /// The daemon cannot be reached, refuses, or has no such device.
    pub fn open(socket: impl AsRef<Path>, device: Option<&str>) -> Result<Self, Error> {
        Self::open_sized(socket, device, None)
    }

    /// Opens a device with this many bytes of memory for the rings of all queues.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_sized(
        socket: impl AsRef<Path>,
        device: Option<&str>,
        queue_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let open = Open { device: device.map(str::to_owned), queue_bytes };
        let (opened, daemon) = Daemon::open(socket, &open)?;
        let context = Self::of(opened)?;
        daemon.watch(Arc::downgrade(&context.0))?;
        Ok(context)
    }

    /// Opens a device in this process, over the kernel's TCP: without a daemon, and without a privilege. Its addresses
    /// are those of the machine. Threads of the program that poll or wait run it, and a thread of its own while none
    /// does.
    ///
    /// # Errors
    /// The process has no descriptor, thread or memory left.
    pub fn embedded() -> Result<Self, Error> {
        Self::embedded_with(&EmbeddedOptions::default())
    }

    /// Opens such a device under conditions.
    pub(crate) fn embedded_with(options: &EmbeddedOptions) -> Result<Self, Error> {
        Self::of(Embedded::open(options, Helper::Device)?)
    }

    /// Opens such a device with this many bytes of memory for the rings of all queues, and without a thread of its own:
    /// the caller has one, which calls [`Self::help`].
    ///
    /// # Errors
    /// As [`Self::embedded`].
    pub fn embedded_without_thread(queue_bytes: u64) -> Result<Self, Error> {
        let options = EmbeddedOptions { queue_bytes, ..EmbeddedOptions::default() };
        Self::of(Embedded::open(&options, Helper::Caller)?)
    }

    /// Returns the interfaces of [`Self::embedded`], which has all of them: each with an address is a device for itself
    /// where programs choose by device. The loopback interface is the last.
    ///
    /// # Errors
    /// The kernel does not tell the addresses of this machine.
    pub fn embedded_devices() -> Result<Vec<DeviceInfo>, Error> {
        embedded::devices().map_err(|error| Error::System { call: "getifaddrs", cause: error.into() })
    }

    /// Returns the context of a device that is open.
    fn of(opened: Opened) -> Result<Self, Error> {
        let Opened { backend, words, completions, events, app, device, link_up } = opened;
        let of = || -> Result<_, Error> {
            Ok((Events::new(words.clone()).ok_or(Error::Protocol("context.open"))?, Here::new()?))
        };
        let (ring, here) = of().inspect_err(|_| backend.close())?;
        Ok(Self(Arc::new(Inner {
            is_here: backend.is_here(),
            taken: AtomicU32::new(0),
            backend,
            words,
            completions,
            events,
            ring: Mutex::new(ring),
            connections: Mutex::default(),
            counted: Mutex::default(),
            link_up: AtomicBool::new(link_up),
            lost: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            offered: AtomicBool::new(false),
            blocks: Blocks::default(),
            here,
            app,
            device,
        })))
    }

    /// Returns the devices of the daemon.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn devices(socket: impl AsRef<Path>) -> Result<Vec<DeviceInfo>, Error> {
        Ok(Client::connect(socket)?.call::<DeviceListMethod>(&iwarp_control::NoParams {})?)
    }

    /// Returns the device of the context.
    pub fn device(&self) -> &DeviceInfo {
        &self.0.device
    }

    /// Returns true if the link of the device's port is up, as of the last event that the program has polled. Without a
    /// daemon it is not.
    pub fn is_link_up(&self) -> bool {
        self.0.link_up.load(Ordering::Acquire) && !self.0.is_lost()
    }

    /// Returns true until the daemon has ended, in the process that has opened the context.
    pub fn is_open(&self) -> bool {
        !self.0.is_lost() && !self.0.is_child()
    }

    /// Returns true in a child (`fork`) of the process that has opened the context. The child cannot use it.
    pub fn is_inherited(&self) -> bool {
        self.0.is_child()
    }

    /// Returns the number of this context, as `iwarpctl app list` shows it.
    pub fn app(&self) -> u32 {
        self.0.app
    }

    /// Returns the next connection event or asynchronous event, if there is one. The last one is
    /// [`Event::DeviceFatal`], once the daemon has ended.
    pub fn poll_event(&self) -> Option<Event> {
        if self.0.is_child() {
            return None;
        }
        self.next_event().or_else(|| {
            self.0.run();
            self.next_event()
        })
    }

    /// Returns the next event as [`Self::poll_event`] does, of those that have come: a device in this process does not
    /// run for it.
    pub fn next_event(&self) -> Option<Event> {
        if self.0.is_child() {
            return None;
        }
        let polled = lock(&self.0.ring).poll();
        let Some(event) = polled else {
            let is_new = self.0.is_lost() && !self.0.reported.swap(true, Ordering::AcqRel);
            return is_new.then_some(Event::DeviceFatal);
        };
        self.0.observe(&event);
        Some(event)
    }

    /// Waits for the next event; `None` once `timeout` has passed.
    ///
    /// # Errors
    /// [`Error::Lost`] once the daemon has ended and no event is left.
    pub fn wait_event(&self, timeout: Duration) -> Result<Option<Event>, Error> {
        self.0.wait(&self.0.events, timeout, || self.poll_event())
    }

    /// Borrows the descriptor that is readable when there may be an event, for poll, epoll and async runtimes: a
    /// socket, non-blocking, which the daemon writes to and closes. The program reads it (64 bytes) before it calls
    /// [`Self::poll_event`] until that returns `None`. A program that uses it does not call [`Self::wait_event`].
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.events.of_device()
    }

    /// Returns an armed completion queue that has had a completion since it was armed, if there is one.
    pub fn poll_completion(&self) -> Option<CqId> {
        if self.0.is_child() {
            return None;
        }
        // Dropped after the lock: the last handle of a queue takes the lock itself.
        let mut handles = Vec::new();
        let mut counted = lock(&self.0.counted);
        counted.iter_mut().find_map(|(id, counted)| {
            let queue = counted.queue.upgrade()?;
            let new = queue.events() != counted.events;
            handles.push(queue);
            if new {
                counted.events = counted.events.wrapping_add(1);
            }
            new.then_some(*id)
        })
    }

    /// Waits until an armed completion queue has a completion (`ibv_get_cq_event`); `None` once `timeout` has passed.
    /// The program arms the queue, polls it empty, and then waits.
    ///
    /// # Errors
    /// [`Error::Lost`] once the daemon has ended.
    pub fn wait_completion(&self, timeout: Duration) -> Result<Option<CqId>, Error> {
        self.0.wait(&self.0.completions, timeout, || self.poll_completion())
    }

    /// Borrows the descriptor that is readable when an armed completion queue may have a completion. The program reads
    /// it (64 bytes) before it calls [`Self::poll_completion`] until that returns `None`. Otherwise as
    /// [`Self::event_fd`], for [`Self::wait_completion`].
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.0.completions.of_device()
    }

    /// Returns a number that changes when bytes come at a socket of a device in this process, or its kernel takes more.
    pub(crate) fn socket_events(&self) -> u64 {
        self.0.backend.socket_events()
    }

    /// Borrows an event counter (eventfd) of the program's own. Adding to it ends [`Self::wait`].
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.completions.own()
    }
}

impl Inner {
    /// Refuses an object of another context: its number names something else here.
    pub(crate) fn owns(self: &Arc<Self>, call: &'static str, of: &Arc<Self>) -> Result<(), Error> {
        if Arc::ptr_eq(self, of) {
            return Ok(());
        }
        let reason = Some("its objects belong to two contexts".to_owned());
        Err(Error::Refused { call, cause: VerbsError::Invalid, reason })
    }

    /// Has the worker execute a request.
    pub(crate) fn execute(&self, call: &'static str, request: Request) -> Result<Response, Error> {
        let Executed { mut results, reason } = self.execute_all(call, &[request])?;
        let result = results.pop().ok_or(Error::Protocol(call))?;
        result.map_err(|cause| Error::Refused { call, cause, reason })
    }

    /// Has the worker execute requests, and returns the result of each, and the daemon's reason if it has refused some.
    pub(crate) fn execute_all(&self, call: &'static str, requests: &[Request]) -> Result<Executed, Error> {
        let (mut results, mut reason) = (Vec::with_capacity(requests.len()), None);
        for some in requests.chunks(REQUESTS_MAX) {
            let executed = self.call(|backend| backend.execute(some))?;
            if executed.results.len() != some.len() {
                return Err(Error::Protocol(call));
            }
            results.extend(executed.results);
            reason = reason.or(executed.reason);
        }
        Ok(Executed { results, reason })
    }

    /// Asks the device for something.
    pub(crate) fn call<T>(&self, ask: impl FnOnce(&dyn Backend) -> Result<T, Error>) -> Result<T, Error> {
        if self.lost.load(Ordering::Acquire) || self.is_child() {
            return Err(Error::Lost);
        }
        ask(self.backend.as_ref()).inspect_err(|error| {
            if matches!(error, Error::Lost) {
                self.lost.store(true, Ordering::Release);
            }
        })
    }

    /// Runs the engine, if it is in this process.
    #[inline]
    pub(crate) fn run(&self) {
        if self.is_here && !self.is_child() {
            self.backend.run();
        }
    }

    /// Notes that the program has found completions. A program that always finds some runs the engine if posts wait,
    /// and now and then: nothing would be received otherwise.
    #[inline]
    pub(crate) fn found(&self, completions: usize) {
        let more = u32::try_from(completions).unwrap_or(u32::MAX);
        let taken = self.taken.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        if taken >= TAKEN_MAX || self.backend.has_waiting() {
            self.taken.store(0, Ordering::Relaxed);
            self.run();
        }
    }

    /// Notes that the engine has run for a poll that found nothing, the latest of `times` in a row at its queue.
    #[inline]
    pub(crate) fn found_nothing(&self, times: u32) {
        self.taken.store(0, Ordering::Relaxed);
        self.backend.polled_in_vain(times);
    }

    /// Notes a poll in vain without a run of the engine.
    #[inline]
    pub(crate) fn polled_in_passing(&self) {
        self.backend.polled_in_vain(1);
    }

    /// Returns true if posts wait for the program to run the engine.
    #[inline]
    pub(crate) fn has_posts(&self) -> bool {
        self.backend.has_posts()
    }

    /// Returns true if the engine is in this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.is_here
    }

    /// Returns true once the daemon has ended.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Returns true in a child of the process that has opened the context.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.here.is_child()
    }

    /// Notes that the daemon has ended, and wakes the program.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.completions.ring();
        self.events.ring();
    }

    /// Wakes the engine, which sleeps.
    pub(crate) fn wake(&self, posted: Posted) {
        self.backend.wake(posted);
    }

    pub(crate) fn connect(&self, id: CmId, qp: &Arc<QpInner>) {
        lock(&self.connections).insert(id, Arc::downgrade(qp));
    }

    /// Forgets a connection. Its queue pair accepts no more work to send.
    pub(crate) fn disconnect(&self, id: CmId) {
        // A thread of the parent may have had the lock when the process was forked.
        if self.is_child() {
            return;
        }
        let qp = lock(&self.connections).remove(&id).and_then(|qp| qp.upgrade());
        if let Some(qp) = qp {
            qp.set_ready(false);
        }
    }

    pub(crate) fn count_events(&self, id: CqId, queue: &Arc<crate::cq::CqInner>) {
        lock(&self.counted).insert(id, Counted { queue: Arc::downgrade(queue), events: 0 });
    }

    pub(crate) fn forget_cq(&self, id: CqId) {
        if self.is_child() {
            return;
        }
        lock(&self.counted).remove(&id);
    }

    /// Updates the objects that an event belongs to.
    fn observe(&self, event: &Event) {
        match event {
            Event::Cm(event) if matches!(event.kind, CmEventKind::Established { .. }) => {
                let qp = lock(&self.connections).get(&event.id).and_then(Weak::upgrade);
                if let Some(qp) = qp {
                    qp.set_ready(true);
                }
            }
            Event::PortActive => self.link_up.store(true, Ordering::Release),
            Event::PortDown => self.link_up.store(false, Ordering::Release),
            _ => {}
        }
    }

    /// Waits on a bell until `take` returns something.
    #[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
    fn wait<T>(
        &self,
        bell: &Bell,
        timeout: Duration,
        take: impl Fn() -> Option<T>,
    ) -> Result<Option<T>, Error> {
        if self.is_child() {
            return Err(Error::Lost);
        }
        let until = Instant::now().checked_add(timeout);
        loop {
            // The bell stays rung for other threads: there may be more.
            if let Some(taken) = take() {
                return Ok(Some(taken));
            }
            // A completion or event that comes after the second `take` rings the bell again.
            bell.reset();
            if let Some(taken) = take() {
                bell.ring();
                return Ok(Some(taken));
            }
            if self.lost.load(Ordering::Acquire) {
                return Err(Error::Lost);
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            match self.sleep([bell], left, Sleeper::Program) {
                // What came before the end is still taken.
                Ok(_) | Err(Error::Lost) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sleeps until a bell has rung, and returns for each if it has: none once `timeout` has passed, or a signal has
    /// come.
    fn sleep<const N: usize>(
        &self,
        bells: [&Bell; N],
        timeout: Duration,
        sleeper: Sleeper,
    ) -> Result<[bool; N], Error> {
        self.sleep_at(None, bells, timeout, sleeper).map(|(_, rung)| rung)
    }

    /// Sleeps until a descriptor of the caller's is readable, or as [`Self::sleep`]. Returns also if it is.
    fn sleep_at<const N: usize>(
        &self,
        own: Option<BorrowedFd<'_>>,
        bells: [&Bell; N],
        timeout: Duration,
        sleeper: Sleeper,
    ) -> Result<(bool, [bool; N]), Error> {
        if self.lost.load(Ordering::Acquire) || self.is_child() {
            return Err(Error::Lost);
        }
        let fds: Vec<_> = own.into_iter().chain(bells.iter().flat_map(|bell| bell.fds())).collect();
        let mut ready = vec![false; fds.len()];
        let slept = self.backend.sleep(&fds, &mut ready, timeout, sleeper);
        let has_ended = slept.map_err(|cause| Error::System { call: "poll", cause: cause.into() })?;
        if has_ended {
            self.lost.store(true, Ordering::Release);
        }
        let mut ready = ready.into_iter();
        let own = own.is_some() && ready.next().unwrap_or(false);
        // Without a shortcut: each bell takes all of its descriptors.
        let rung = bells
            .map(|bell| bell.fds().fold(bell.has_rung(), |rung, _| rung | ready.next().unwrap_or(false)));
        if has_ended && !own && !rung.contains(&true) { Err(Error::Lost) } else { Ok((own, rung)) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The device of a child after fork is its parent's.
        if !self.is_child() {
            self.backend.close();
        }
    }
}

/// Maps memory of the daemon, after a check that it cannot shrink and has the size that the daemon has stated.
pub(crate) fn map(fd: &OwnedFd, bytes: u64, page_bytes: u64) -> Result<Mapping, Error> {
    mapped(Mapping::of_daemon(fd, bytes, page_bytes))
}

/// Returns a mapping, or the program's error.
pub(crate) fn mapped(mapping: Result<Mapping, MapError>) -> Result<Mapping, Error> {
    mapping.map_err(|error| match error {
        MapError::Wrong(reason) => Error::Map(std::io::Error::other(reason)),
        MapError::System(cause) => Error::Map(cause.into()),
    })
}
