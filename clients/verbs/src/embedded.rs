//! A device in this process: the engine over the kernel's TCP, without a daemon, a privilege, or an address of its own.
//!
//! ```text
//!  thread that polls an empty queue, posts, waits ──▶ lock ──▶ Core::run ──▶ Engine ──▶ sockets
//!  helper, while none of them does ──────────────────┘
//! ```
//! A thread that finds the lock taken leaves its work to the one that has it: that looks for work again once it has
//! unlocked. Of the threads that wait, one sleeps until the sockets have something, the owner; the others sleep until
//! it has run the engine for them. The helper takes the owner's place while there is none, and leaves the sockets to a
//! program that polls or waits: it then looks after 0.1, 0.2, 0.4, … 16 ms if the program still does. Posts in quick
//! succession wait for the next poll or sleep ([`held`]).

mod canceled;
mod core;
mod exit;
mod faults;
mod fork;
mod held;
mod helper;
mod interfaces;
mod offers;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::Duration;

use iwarp_engine::Wakers;
use iwarp_engine::memory::SharedWords;
use iwarp_engine::wake::{Listening, OwnBell, Waker};
use iwarp_shared_verbs::methods::{AllocMemory, Executed, Memory, QUEUE_BYTES_DEFAULT, RegMr};
use iwarp_shared_verbs::{Request, words_min};
use rdma::CrcPolicy;
use rdma::verbs::MemoryRegion;
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;

use self::core::{Core, now, refused};
use self::held::{Fate, Held};
use self::helper::{Helping, PAUSE_MAX, PAUSE_MIN};
use crate::backend::{Backend, Opened, Posted, Registrable, Sleeper, poll_with};
use crate::bell::Bell;
use crate::context::{Words, lock, map};
use crate::error::Error;
use crate::offer::Regions;
use crate::threads::aborts_on_panic;
pub use canceled::{cancelable, uncanceled};
pub use exit::is_exiting;
pub use faults::survive_unmapped_memory;
pub(crate) use interfaces::{device, devices};

/// Polls in vain in a row from which on the program is taken to poll all the time.
const POLLS_IN_ROW: u32 = 32;
/// Deadline of an engine without one.
const NEVER: u64 = u64::MAX;

/// Thread that runs the engine while no other one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Helper {
    /// A thread of the device.
    Device,
    /// A thread of the caller, which sleeps as [`Sleeper::Helper`].
    Caller,
}

/// Conditions of a device in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddedOptions {
    /// Memory for the rings of all queues, bytes.
    pub(crate) queue_bytes: u64,
    /// Use of CRCs on all connections.
    pub(crate) crc: CrcPolicy,
    /// Longest time until a peer answers TCP, and again until it answers MPA. Without one, the kernel's limit holds for
    /// TCP, which is minutes, and MPA's own.
    pub(crate) answer_timeout: Option<Duration>,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { queue_bytes: QUEUE_BYTES_DEFAULT, crc: CrcPolicy::default(), answer_timeout: None }
    }
}

/// A device in this process, with one context.
#[derive(Debug)]
pub(crate) struct Embedded {
    this: Weak<Self>,
    /// True once the device has a thread of its own.
    has_thread: AtomicBool,
    /// View that a helper of the caller has of the program.
    helping: Mutex<Helping>,
    core: Mutex<Core>,
    /// True if there is work since the engine has run: the thread that has the lock runs it once more.
    rung: AtomicBool,
    /// Posts that wait for company, and the pace of the program.
    held: Held,
    /// Readable when the sockets have something for the engine.
    sockets: OwnedFd,
    /// Ring for what the engine has for the program.
    bells: [Arc<OwnBell>; 2],
    /// Event counter that wakes the helper.
    alarm: OwnedFd,
    /// Next deadline of the engine, nanoseconds of the clock, written under the lock.
    deadline: AtomicU64,
    /// Time at which the helper wakes, nanoseconds.
    wakes_at: AtomicU64,
    /// Times that the program was seen to poll in a row.
    drives: AtomicU64,
    /// True while a thread of the program sleeps for the sockets. The others sleep without.
    has_owner: AtomicBool,
    /// True while that thread also hands on what comes.
    has_dispatcher: AtomicBool,
    /// Sleeps of such threads that have ended, and those of them that hand on what comes.
    sleeps: AtomicU64,
    dispatches: AtomicU64,
    /// True if a thread calls the helper when its sleep ends.
    calls_helper: AtomicBool,
    /// True if somebody waits for the caller's helper to return.
    asks_helper: AtomicBool,
    /// True once the context is closed.
    closing: AtomicBool,
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::System { call, cause: error.into() }
}

impl Embedded {
    /// Opens the device and its context.
    pub(crate) fn open(options: &EmbeddedOptions, helper: Helper) -> Result<Opened, Error> {
        let device = device().map_err(system("getifaddrs"))?;
        let bytes = options.queue_bytes.max((words_min() as u64).saturating_mul(8));
        let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
        let memory = SharedWords::unfilled("queues", words).map_err(|error| no_memory(&error))?;
        let descriptor = memory.descriptor().map_err(system("fcntl"))?;
        let words = Words(Arc::new(map(&descriptor, bytes, 4096)?));
        let bell = || OwnBell::new().map(Arc::new).map_err(|cause| Error::System { call: "eventfd", cause });
        let (completions, events) = (bell()?, bell()?);
        let wakers = Wakers {
            doorbell: None,
            completions: Waker::of_process(Arc::clone(&completions)),
            events: Waker::of_process(Arc::clone(&events)),
        };
        let (core, sockets) = Core::open(memory, wakers, options)?;
        let alarm = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let bells = [Arc::clone(&completions), Arc::clone(&events)];
        let embedded = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            has_thread: AtomicBool::new(false),
            helping: Mutex::default(),
            core: Mutex::new(core),
            rung: AtomicBool::new(false),
            held: Held::default(),
            sockets,
            bells,
            alarm,
            deadline: AtomicU64::new(NEVER),
            wakes_at: AtomicU64::new(NEVER),
            drives: AtomicU64::new(0),
            has_owner: AtomicBool::new(false),
            has_dispatcher: AtomicBool::new(false),
            sleeps: AtomicU64::new(0),
            dispatches: AtomicU64::new(0),
            calls_helper: AtomicBool::new(false),
            asks_helper: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        });
        if helper == Helper::Device {
            embedded.start_thread()?;
        }
        exit::close_at_exit(&embedded);
        fork::give_up_in_children();
        let (backend, app): (Arc<dyn Backend>, _) = (embedded, std::process::id());
        let (completions, events) = (Bell::Process(completions), Bell::Process(events));
        Ok(Opened { backend, words, completions, events, app, device, link_up: true })
    }

    /// Runs the engine as long as there is work, unless another thread does: for what was posted, and also for what has
    /// come, if it `looks` at the sockets. Returns true if the engine has found something there.
    fn drive(&self, looks: bool) -> bool {
        uncanceled(|| self.drive_all(looks))
    }

    fn drive_all(&self, mut looks: bool) -> bool {
        let mut has_found = false;
        loop {
            let mut core = match self.core.try_lock() {
                Ok(core) => core,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return has_found,
            };
            self.rung.store(false, Ordering::SeqCst);
            let found = core.events_found();
            self.run_core(&mut core, looks);
            has_found |= core.events_found() != found;
            drop(core);
            if !self.rung.load(Ordering::SeqCst) {
                return has_found;
            }
            // Another thread has rung, for what was posted or has come.
            looks = true;
        }
    }

    /// Runs the engine as [`Self::drive`]. If another thread has the lock, that thread runs it once more.
    fn ring(&self, looks: bool) -> bool {
        self.rung.store(true, Ordering::SeqCst);
        self.drive(looks)
    }

    /// Runs the engine, waiting for the lock.
    fn run_once(&self) {
        self.look(|core| self.run_core(core, true));
    }

    /// Does something with the core, after what was posted before, and runs the engine.
    fn with<T>(&self, ask: impl FnOnce(&mut Core) -> T) -> T {
        self.look(|core| {
            self.run_core(core, true);
            let answer = ask(core);
            self.run_core(core, false);
            answer
        })
    }

    /// Does something with the core that leaves the engine as it is.
    fn look<T>(&self, ask: impl FnOnce(&mut Core) -> T) -> T {
        // A panic ends the process while the lock is held: nobody sees an engine that is half changed.
        let answer = uncanceled(|| {
            let mut core = lock(&self.core);
            aborts_on_panic(|| ask(&mut core))
        });
        // A thread that has found the lock taken meanwhile has left its work to this one.
        if self.rung.load(Ordering::SeqCst) {
            self.drive(true);
        }
        answer
    }

    /// Has the helper end the connections of the closed context.
    fn leave_to_helper(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.call_helper();
    }

    /// Starts the thread of the device, unless it has one.
    fn start_thread(&self) -> Result<(), Error> {
        match self.this.upgrade() {
            Some(device) if !self.has_thread.swap(true, Ordering::SeqCst) => helper::start(device),
            _ => Ok(()),
        }
    }

    /// Runs the engine, and has the helper come for what is left.
    fn run_core(&self, core: &mut Core, looks: bool) {
        self.held.begin_run();
        let is_done = aborts_on_panic(|| core.run(looks));
        let deadline = core.deadline().map_or(NEVER, |deadline| deadline.as_nanos());
        self.deadline.store(deadline, Ordering::SeqCst);
        if !is_done || deadline < self.wakes_at.load(Ordering::SeqCst) {
            self.call_helper();
        }
    }

    #[cold]
    fn call_helper(&self) {
        // Fails only if the counter is at its maximum: the helper is to wake already.
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    /// Returns a number that changes when the program is seen to poll in a row, and when a thread wakes.
    fn activity(&self) -> u64 {
        self.drives.load(Ordering::SeqCst).wrapping_add(self.sleeps.load(Ordering::SeqCst))
    }

    /// Returns true if the engine has something for the program that nobody has looked for.
    fn has_news(&self) -> bool {
        self.bells.iter().any(|bell| bell.has_rung())
    }

    /// Has the bells' counters written while the result is kept, if it is to sleep on them.
    fn listen(&self, listens: bool) -> Option<[Listening<'_>; 2]> {
        listens.then(|| self.bells.each_ref().map(|bell| bell.listen()))
    }

    /// Returns the time until the engine's next deadline; `None` if there is none.
    fn due_in(&self) -> Option<Duration> {
        let deadline = self.deadline.load(Ordering::SeqCst);
        (deadline != NEVER).then(|| Duration::from_nanos(deadline.saturating_sub(now().as_nanos())))
    }

    /// Sleeps as [`Backend::sleep`], until a descriptor is readable, or a bell has rung if the thread `listens`. The
    /// owner runs the engine, unless another thread of the program polls.
    fn sleep_until(
        &self,
        fds: &[BorrowedFd<'_>],
        ready: &mut [bool],
        time: Duration,
        (is_owner, listens): (bool, bool),
    ) -> Result<(), Errno> {
        let began = now();
        let (mut drives, mut pause) = (self.drives.load(Ordering::SeqCst), PAUSE_MIN);
        loop {
            let left = time.saturating_sub(now().saturating_since(began));
            let driven = self.drives.load(Ordering::SeqCst);
            let is_driven = std::mem::replace(&mut drives, driven) != driven;
            let flags = if is_owner && !is_driven { PollFlags::IN } else { PollFlags::empty() };
            let sockets = (self.sockets.as_fd(), flags);
            let due = self.due_in().filter(|_| is_owner);
            let mut limit = due.map_or(left, |due| due.min(left));
            if is_driven && is_owner {
                limit = limit.min(pause);
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            } else {
                pause = PAUSE_MIN;
            }
            let listening = self.listen(listens);
            let polled = poll_with(fds, ready, sockets, limit);
            drop(listening);
            let has_input = match polled {
                Err(Errno::INTR) => return Ok(()),
                polled => polled?,
            };
            if has_input || due.is_some_and(|due| due <= limit) {
                self.drive(has_input);
            }
            // Kept: another thread may hand the news on before the caller looks.
            if listens
                && self.has_news()
                && let Some(last) = ready.last_mut()
            {
                *last = true;
            }
            if ready.contains(&true) || left <= limit && !has_input {
                return Ok(());
            }
        }
    }
}

/// Returns the refusal of memory.
fn no_memory(error: &dyn std::fmt::Display) -> Error {
    refused("alloc", rdma::verbs::VerbsError::NoResources, Some(error.to_string()))
}

impl Backend for Embedded {
    fn execute(&self, requests: &[Request]) -> Result<Executed, Error> {
        Ok(self.with(|core| core.execute(requests)))
    }

    fn alloc_memory(&self, asked: &AllocMemory) -> Result<(Memory, OwnedFd), Error> {
        // Without the lock: the kernel clears the pages.
        let memory = Core::allocate(asked)?;
        let (descriptor, bytes) = (memory.descriptor().map_err(system("fcntl"))?, memory.bytes());
        let number = self.look(|core| core.add_memory(memory))?;
        Ok((Memory { memory: number, bytes, page_bytes: core::PAGE_BYTES }, descriptor))
    }

    fn open_region(&self, name: &str) -> Result<(Memory, OwnedFd), Error> {
        let reason = format!("there is no region `{name}`: a device without a daemon has none");
        Err(refused("reg_region", rdma::verbs::VerbsError::NoSuchObject, Some(reason)))
    }

    fn register(&self, asked: RegMr) -> Result<MemoryRegion, Error> {
        self.with(|core| core.register(&asked))
    }

    fn register_parts(&self, asked: Registrable) -> Result<MemoryRegion, Error> {
        self.with(|core| core.register_parts(asked))
    }

    fn offer_process(&self) -> Result<(), Error> {
        Ok(())
    }

    fn free_memory(&self, memory: u32) -> Result<(), Error> {
        self.look(|core| core.free_memory(memory));
        Ok(())
    }

    #[inline]
    fn wake(&self, posted: Posted) {
        match self.held.post(posted, now) {
            Fate::Held => {}
            Fate::Unminded => self.call_helper(),
            Fate::Sent => {
                self.ring(false);
                self.held.ran(now());
            }
        }
    }

    fn has_waiting(&self) -> bool {
        self.held.is_waiting()
    }

    fn has_posts(&self) -> bool {
        self.held.has_any()
    }

    fn socket_events(&self) -> u64 {
        self.look(|core| core.events_found())
    }

    fn sleep(
        &self,
        fds: &[BorrowedFd<'_>],
        ready: &mut [bool],
        time: Duration,
        sleeper: Sleeper,
    ) -> Result<bool, Errno> {
        if self.held.is_waiting() {
            self.ring(false);
        }
        if sleeper == Sleeper::Helper {
            return helper::help_until(self, fds, ready, time).map(|()| false);
        }
        self.held.end_burst();
        let is_owner = !self.has_owner.swap(true, Ordering::SeqCst);
        let is_dispatcher = sleeper == Sleeper::Dispatcher;
        if is_owner && is_dispatcher {
            self.has_dispatcher.store(true, Ordering::SeqCst);
        }
        let others = if is_owner || !is_dispatcher { fds.len() } else { 1 };
        let (fds, _) = fds.split_at(others.min(fds.len()));
        let (own, of_dispatcher) = ready.split_at_mut(fds.len());
        of_dispatcher.fill(false);
        let listens = fds.len() > usize::from(is_dispatcher);
        let slept = self.sleep_until(fds, own, time, (is_owner, listens));
        if is_owner {
            if is_dispatcher {
                self.has_dispatcher.store(false, Ordering::SeqCst);
                self.dispatches.fetch_add(1, Ordering::SeqCst);
            }
            self.has_owner.store(false, Ordering::SeqCst);
            self.sleeps.fetch_add(1, Ordering::SeqCst);
            if self.calls_helper.load(Ordering::SeqCst) {
                self.call_helper();
            }
        }
        slept.map(|()| false)
    }

    fn wake_helper(&self) {
        self.asks_helper.store(true, Ordering::SeqCst);
        self.call_helper();
    }

    fn stops_helping(&self) {
        // Without a thread, the engine runs while the program posts, polls or waits.
        let _ = self.start_thread();
    }

    fn close(&self) {
        self.with(Core::close);
        let _ = self.start_thread();
        self.leave_to_helper();
    }

    fn is_here(&self) -> bool {
        true
    }

    fn regions(&self) -> Result<&dyn Regions, Error> {
        Ok(self)
    }

    fn run(&self) {
        if self.held.has_any() {
            self.ring(true);
        } else {
            self.drive(true);
        }
        self.held.ran(now());
    }

    fn polled_in_vain(&self, times: u32) {
        self.held.end_burst();
        if times > POLLS_IN_ROW {
            self.drives.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and read the time")]
mod tests;
