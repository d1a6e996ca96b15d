//! Tasks that wait for transfers, while their thread executes others.
//!
//! ```text
//!  Tasks::begin ─▶ the task's future ─▶ Io::read, write, sync ─▶ Waiter: room? then the transfer ─▶ Engine
//!  Tasks::ended ◀─ the future goes on ◀──────────────────────── Waiter: its result ◀────────────────┘
//! ```
//!
//! A limit bounds the transfers in flight, and with them the memory that they use. A task for which there is no room
//! waits its turn, and allocates nothing before that.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;

use crate::counters::{TransferStats, add, value};
use crate::identity::{User, with_rights};
use crate::kernel::{self, Durability, possible};
use crate::region::Span;
use crate::ring::Ring;
use crate::room::Room;
use crate::threads::Threads;
use crate::transfer::{Bytes, Transfer};

/// Carries out operations of transfers.
pub(crate) trait Engine: fmt::Debug + Send {
    /// Starts the next operation of a transfer, which has one.
    fn start(&mut self, number: u64, transfer: Transfer);

    /// Returns a transfer whose operation has ended, and that knows the result.
    fn ended(&mut self) -> Option<(u64, Transfer)>;
}

/// The kernel's io_uring, if there is one, and threads for the rest.
#[derive(Debug)]
pub struct Disks {
    ring: Option<Ring>,
    no_ring: Option<String>,
    threads: Threads,
    in_flight_max: u16,
}

impl Disks {
    /// Returns what does `in_flight_max` transfers at a time, 1 to 4096, and adds to the event counter `wakes` when an
    /// operation has ended: [`Tasks::ended`] is to be called then. Its threads have the name `thread`.
    ///
    /// # Errors
    /// There are too many descriptors. A kernel without io_uring is no error.
    pub fn new(in_flight_max: u16, wakes: BorrowedFd<'_>, thread: &'static str) -> io::Result<Self> {
        let (ring, no_ring) = match Ring::new(in_flight_max, wakes) {
            Ok(ring) => (Some(ring), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self { ring, no_ring, threads: Threads::new(thread, in_flight_max, wakes)?, in_flight_max })
    }

    /// Returns the reason why there is no io_uring, so that threads do everything; `None` if there is.
    #[must_use]
    pub fn no_ring(&self) -> Option<&str> {
        self.no_ring.as_deref()
    }
}

impl Engine for Disks {
    fn start(&mut self, number: u64, transfer: Transfer) {
        let rest = match &mut self.ring {
            Some(ring) => ring.start(number, transfer),
            None => Some(transfer),
        };
        if let Some(transfer) = rest {
            self.threads.start(number, transfer);
        }
    }

    fn ended(&mut self) -> Option<(u64, Transfer)> {
        self.ring.as_mut().and_then(Ring::ended).or_else(|| self.threads.ended())
    }
}

/// Resource that a task waits for, and the answer.
#[derive(Debug, Default)]
enum Wait {
    #[default]
    Nothing,
    Room,
    Granted,
    Transfer(Transfer),
    Done(Transfer),
}

/// A task that may wait: it and the thread that executes it exchange requests and answers here.
#[derive(Debug, Default)]
struct Waiter {
    wait: Mutex<Wait>,
    stats: Arc<TransferStats>,
}

impl Waiter {
    fn take(&self) -> Wait {
        std::mem::take(&mut *self.wait.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, wait: Wait) {
        *self.wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    /// Waits until the request has its answer, which `answer` returns, or else the request itself.
    async fn answer<T>(&self, request: Wait, answer: fn(Wait) -> Result<T, Wait>) -> T {
        self.put(request);
        let answered = poll_fn(|_| match answer(self.take()) {
            Ok(answer) => Poll::Ready(answer),
            Err(request) => {
                self.put(request);
                Poll::Pending
            }
        });
        answered.await
    }

    /// Waits until a transfer may be started.
    async fn room(&self) {
        self.answer(Wait::Room, |wait| if let Wait::Granted = wait { Ok(()) } else { Err(wait) }).await;
    }

    /// Waits until a transfer is done. There must be room for it. Returns the bytes moved.
    async fn done(&self, transfer: Transfer) -> Result<u32, Errno> {
        let request = Wait::Transfer(transfer);
        let done =
            self.answer(request, |wait| if let Wait::Done(done) = wait { Ok(done) } else { Err(wait) });
        done.await.result()
    }
}

/// Content of a file that was read.
#[derive(Debug)]
pub enum Content {
    /// Bytes of the program.
    Own(Vec<u8>),
    /// Bytes in the memory of a [`Room`], which keeps them.
    Placed(Span),
}

/// Data of a write, and who has its bytes.
#[derive(Debug)]
pub enum Written<'d> {
    /// Bytes of the program.
    Own(Cow<'d, [u8]>),
    /// Registered bytes, which the kernel reads.
    Placed(Span),
}

impl<'d> Written<'d> {
    /// Returns the bytes. Those of registered memory are copied.
    ///
    /// # Errors
    /// `IO`: they are not inside their memory.
    pub fn into_bytes(self) -> Result<Cow<'d, [u8]>, Errno> {
        match self {
            Self::Own(bytes) => Ok(bytes),
            Self::Placed(span) => span.copy(0, span.length()).map(Cow::Owned).map_err(|_| Errno::IO),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.len(),
            Self::Placed(span) => span.length() as usize,
        }
    }
}

/// Way in which a task reaches files: on its thread at once, or by transfers that it waits for.
#[derive(Clone, Debug, Default)]
pub struct Io(Option<Arc<Waiter>>);

impl Io {
    /// Reads up to `length` bytes; fewer mean the end of the file. The kernel copies them straight to the memory of
    /// `room`; without one, or if that has not as many bytes, this thread reads, and waits itself.
    ///
    /// # Errors
    /// Those of pread(2).
    pub async fn read(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        length: u32,
        room: Option<&Room>,
    ) -> Result<Content, Errno> {
        let length = possible(offset, length);
        let place = room.and_then(|room| Some((room, room.take(length).filter(Span::is_mapped)?)));
        let Some((room, mut place)) = place else {
            return kernel::read(file, offset, length).map(Content::Own);
        };
        let mut transfer = Transfer::read(Arc::clone(file), offset, place.clone());
        let read = match &self.0 {
            None => {
                while transfer.next().is_some() {
                    transfer.perform();
                }
                transfer.result()?
            }
            Some(waiter) if transfer.perform_cached() => {
                add(&waiter.stats.cached, 1);
                transfer.result()?
            }
            Some(waiter) => {
                waiter.room().await;
                waiter.done(transfer).await?
            }
        };
        place.truncate(read);
        room.keep(&place);
        Ok(Content::Placed(place))
    }

    /// Writes data, which must have `length` bytes, with the rights of a user or those of the server, and makes it
    /// durable. `data` is called once there is room for the transfer. Returns the bytes written: fewer than `length` if
    /// the file system has no room.
    ///
    /// # Errors
    /// Those of pwrite(2) and fsync(2); `FBIG`: the data would be behind the largest offset; `IO`: it has another
    /// length.
    pub async fn write<'d>(
        &self,
        file: &Arc<OwnedFd>,
        user: Option<&User>,
        (offset, length): (u64, u32),
        data: impl FnOnce() -> Written<'d>,
        durability: Durability,
    ) -> Result<u32, Errno> {
        if let Some(waiter) = &self.0 {
            waiter.room().await;
        }
        let data = Some(data()).filter(|data| data.length() == length as usize).ok_or(Errno::IO)?;
        let (file, memory) = match (&self.0, data) {
            (None, Written::Own(data)) => {
                let write = || kernel::write_at(file, &data, offset);
                let written = user.map_or_else(write, |user| with_rights(user, write))?;
                return kernel::sync(file, durability).map(|()| written);
            }
            (_, Written::Own(data)) => (Arc::clone(file), Bytes::Own(data.into_owned())),
            (_, Written::Placed(span)) => (Arc::clone(file), Bytes::Registered(span)),
        };
        let mut transfer = Transfer::write(file, user.cloned(), memory, offset, durability);
        let Some(waiter) = &self.0 else {
            while transfer.next().is_some() {
                transfer.perform_with_rights();
            }
            return transfer.result();
        };
        waiter.done(transfer).await
    }

    /// Makes written data durable.
    ///
    /// # Errors
    /// Those of fsync(2) and fdatasync(2).
    pub async fn sync(&self, file: &Arc<OwnedFd>, durability: Durability) -> Result<(), Errno> {
        match &self.0 {
            Some(waiter) if durability != Durability::None => {
                waiter.room().await;
                waiter.done(Transfer::sync(Arc::clone(file), durability)).await.map(|_| ())
            }
            _ => kernel::sync(file, durability),
        }
    }
}

/// A task that is executed.
pub type Execution<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Key of a task.
pub trait Key: Copy + Send + 'static {
    /// Returns the client that the task is executed for.
    fn client(&self) -> IpAddr;
}

/// Tasks that wait for transfers, each with a key of the caller. Threads of a [`Crew`](crate::Crew) execute them.
pub struct Tasks<K, T> {
    /// `None`: no task ever waits for a transfer.
    engine: Option<Box<dyn Engine>>,
    in_flight_max: usize,
    in_flight: usize,
    next: u64,
    /// Keys of all tasks that are not done.
    keys: HashMap<u64, K>,
    /// Tasks that wait for a transfer, or for room.
    tasks: HashMap<u64, Task<K, T>>,
    /// Tasks that wait for room, in the order in which they asked.
    waiting: VecDeque<u64>,
    /// Tasks that wait for a thread, in order.
    ready: VecDeque<Running<K, T>>,
    /// Number of threads by the client whose task they execute.
    busy: HashMap<IpAddr, usize>,
    stats: Arc<TransferStats>,
}

struct Task<K, T> {
    key: K,
    waiter: Arc<Waiter>,
    /// True if it counts as a transfer in flight.
    has_room: bool,
    execution: Execution<T>,
}

/// A task that a thread executes.
pub(crate) struct Running<K, T> {
    number: u64,
    task: Task<K, T>,
}

impl<K, T> Running<K, T> {
    /// Executes the task until it is done, or waits. It may wait in system calls, too.
    pub(crate) fn poll(&mut self) -> Poll<T> {
        self.task.execution.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
}

/// State of a task that was executed.
pub(crate) enum Settled<K, T> {
    /// The thread is to go on with it.
    Again(Running<K, T>),
    Done(K, T),
    /// It waits for room or for a transfer.
    Waits,
}

impl<K: fmt::Debug, T> fmt::Debug for Tasks<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.values()).finish()
    }
}

impl<K: Key, T> Tasks<K, T> {
    /// Lets tasks wait for these disks, whose transfers `stats` counts.
    #[must_use]
    pub fn new(disks: Disks, stats: Arc<TransferStats>) -> Self {
        let in_flight_max = disks.in_flight_max;
        Self::on(Some(Box::new(disks)), in_flight_max, stats)
    }

    /// Lets tasks wait for an engine that carries out `in_flight_max` transfers at a time; without one, none waits.
    pub(crate) fn on(engine: Option<Box<dyn Engine>>, in_flight_max: u16, stats: Arc<TransferStats>) -> Self {
        Self {
            engine,
            in_flight_max: in_flight_max.into(),
            in_flight: 0,
            next: 0,
            keys: HashMap::new(),
            tasks: HashMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            busy: HashMap::new(),
            stats,
        }
    }

    /// Returns the keys of the tasks that are not done.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.keys.values()
    }

    /// Makes a task ready: a thread of the crew executes it.
    pub fn begin(&mut self, key: K, task: impl FnOnce(Io) -> Execution<T>) {
        let waiter = Arc::new(Waiter { stats: Arc::clone(&self.stats), ..Waiter::default() });
        let io = Io(self.engine.is_some().then(|| Arc::clone(&waiter)));
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.keys.insert(number, key);
        let task = Task { key, waiter, has_room: false, execution: task(io) };
        self.ready.push_back(Running { number, task });
    }

    /// Makes tasks ready whose transfers have ended. Returns true if there are any.
    pub fn ended(&mut self) -> bool {
        let ready = self.ready.len();
        while let Some((number, transfer)) = self.engine.as_mut().and_then(|engine| engine.ended()) {
            if transfer.next().is_some() {
                self.start(number, transfer);
                continue;
            }
            let Some(mut task) = self.tasks.remove(&number) else { continue };
            self.finished(&mut task, transfer);
            self.ready.push_back(Running { number, task });
        }
        self.admit();
        self.ready.len() > ready
    }

    /// Returns true if a task waits that one of `free` threads may execute.
    pub(crate) fn is_ready(&self, free: usize) -> bool {
        self.runnable(free).is_some()
    }

    /// Returns the next task that one of `free` threads may execute, until [`Self::settle`].
    pub(crate) fn next(&mut self, free: usize) -> Option<Running<K, T>> {
        let running = self.ready.remove(self.runnable(free)?)?;
        let busy = self.busy.entry(running.task.key.client()).or_default();
        *busy = busy.saturating_add(1);
        Some(running)
    }

    /// A client has a further thread only if it has fewer than are free: of 16 threads, clients whose files answer
    /// nothing have 8, 4, 2, 1 and 1.
    fn runnable(&self, free: usize) -> Option<usize> {
        let has = |client: &IpAddr| self.busy.get(client).copied().unwrap_or(0);
        self.ready.iter().position(|running| has(&running.task.key.client()) < free)
    }

    /// Takes a task back from a thread that has executed it.
    pub(crate) fn settle(&mut self, running: Running<K, T>, polled: Poll<T>) -> Settled<K, T> {
        let Running { number, mut task } = running;
        if let Poll::Ready(result) = polled {
            // An error may have kept it from using its room.
            self.leave(&mut task);
            self.admit();
            self.keys.remove(&number);
            self.release(&task);
            return Settled::Done(task.key, result);
        }
        match task.waiter.take() {
            Wait::Room if task.has_room => task.waiter.put(Wait::Granted),
            Wait::Room if self.has_room() && self.waiting.is_empty() => self.grant(&mut task),
            Wait::Transfer(transfer) if transfer.next().is_none() => self.finished(&mut task, transfer),
            wait => {
                self.release(&task);
                self.wait(number, task, wait);
                return Settled::Waits;
            }
        }
        Settled::Again(Running { number, task })
    }

    fn wait(&mut self, number: u64, task: Task<K, T>, wait: Wait) {
        match wait {
            Wait::Transfer(transfer) => {
                self.tasks.insert(number, task);
                self.start(number, transfer);
            }
            wait => {
                // A task waits for nothing else but room.
                task.waiter.put(wait);
                self.waiting.push_back(number);
                add(&self.stats.waited, 1);
                self.tasks.insert(number, task);
            }
        }
        self.publish();
    }

    fn release(&mut self, task: &Task<K, T>) {
        let client = task.key.client();
        if let Some(busy) = self.busy.get_mut(&client) {
            *busy = busy.saturating_sub(1);
            if *busy == 0 {
                self.busy.remove(&client);
            }
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight < self.in_flight_max
    }

    /// Makes tasks ready that have waited for room.
    fn admit(&mut self) {
        while self.has_room()
            && let Some(number) = self.waiting.pop_front()
        {
            let Some(mut task) = self.tasks.remove(&number) else { continue };
            self.grant(&mut task);
            self.ready.push_back(Running { number, task });
        }
        self.publish();
    }

    fn grant(&mut self, task: &mut Task<K, T>) {
        self.in_flight = self.in_flight.saturating_add(1);
        task.has_room = true;
        task.waiter.put(Wait::Granted);
    }

    fn leave(&mut self, task: &mut Task<K, T>) {
        if std::mem::take(&mut task.has_room) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    fn start(&mut self, number: u64, transfer: Transfer) {
        if let Some(engine) = &mut self.engine {
            engine.start(number, transfer);
        }
    }

    fn finished(&mut self, task: &mut Task<K, T>, transfer: Transfer) {
        self.leave(task);
        add(&self.stats.done, 1);
        task.waiter.put(Wait::Done(transfer));
    }

    fn publish(&self) {
        let set = |gauge: &AtomicU64, count: usize| {
            if value(gauge) != count as u64 {
                gauge.store(count as u64, std::sync::atomic::Ordering::Relaxed);
            }
        };
        set(&self.stats.in_flight, self.in_flight);
        set(&self.stats.waiting, self.waiting.len());
    }
}

/// Executes a task that reaches files at once, and so never waits.
pub fn at_once<T>(task: impl Future<Output = T>) -> T {
    let mut task = std::pin::pin!(task);
    loop {
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
    }
}
