//! Wakes programs that sleep. Workers mark the programs, and one thread writes to their descriptors: how long such a
//! write takes is up to the program, which may watch its descriptor by thousands of epoll sets.
//!
//! ```text
//!  worker ── Waker::wake: one bit ──▶ marks ──▶ thread: turns of the users ── 1 byte ──▶ socket of the program
//! ```
//! The program sleeps on one end of a pair of Unix stream sockets, and the daemon has the other. Each end has flags of
//! its own, and a write takes no lock that a reader holds while it copies to its memory. An event counter (eventfd) has
//! one set of flags for both sides, so that a program could make the daemon's write block; a pipe's reader holds the
//! pipe's lock while it copies to memory, which a file system of the program's may delay. The daemon's end receives
//! nothing, neither bytes nor descriptors.
//!
//! The thread sleeps on an event counter that no program has. A futex would do, but its waiters share a table with
//! those of all processes. Beside adaptive workers it runs on a worker's CPU: that sleeps next anyway, and another one
//! would have to be woken from its idle state, which takes ten times as long as the wake.

mod own;
mod turns;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use iwarp_shared_queues::{AtomicU64, DOORBELL_QUEUES_MAX, Doorbells};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair, sockopt,
};
use rustix::time::ClockId;
use tcp_stack::Instant;

use crate::Clock;
pub use own::{Listening, OwnBell};
use turns::{Next, Turns};

/// Descriptors of one user that wait to be closed, from which on the user gets no further ones. Closing takes as long
/// as a write.
const CLOSING_MAX: usize = 256;

/// The programs that the daemon can wake. Clones are handles of the same.
#[derive(Clone, Debug)]
pub struct Wakes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Words of the [`Doorbells`] through which workers mark places.
    marks: Box<[AtomicU64]>,
    /// True for a place whose owner has gone: the thread closes its descriptor.
    retired: Box<[AtomicBool]>,
    places: Mutex<Places>,
    /// Event counter on which the thread sleeps.
    alarm: OwnedFd,
    /// True once the thread is to end.
    ends: AtomicBool,
}

#[derive(Debug)]
struct Places {
    all: Vec<Option<Place>>,
    free: Vec<u32>,
}

/// A descriptor that the thread writes to and closes.
#[derive(Clone, Debug)]
struct Place {
    fd: Arc<OwnedFd>,
    /// User whose turns the write and the end take.
    user: u32,
}

/// A place, which the thread frees after this is dropped. Dropping takes no time that a program decides.
#[derive(Debug)]
struct Held {
    shared: Arc<Shared>,
    place: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(retired) = self.shared.retired.get(self.place as usize) {
            retired.store(true, Ordering::Release);
        }
        self.shared.mark(self.place);
    }
}

/// Wakes one program, or one of its threads.
#[derive(Debug)]
pub struct Waker(Target);

#[derive(Debug)]
enum Target {
    /// A descriptor of another process.
    Held(Held),
    /// An event counter of this process.
    Own(Arc<OwnBell>),
}

impl Waker {
    /// Returns a waker of a program in this process.
    pub const fn of_process(bell: Arc<OwnBell>) -> Self {
        Self(Target::Own(bell))
    }

    /// Makes the program's descriptor readable soon. A program that is to wake already is not marked again.
    #[inline]
    pub fn wake(&self) {
        match &self.0 {
            Target::Held(held) => held.shared.mark(held.place),
            Target::Own(bell) => bell.ring(),
        }
    }
}

/// Descriptor that is readable once a program has rung for a worker that sleeps: an epoll set of the daemon's own, with
/// the event counter that the program writes. A worker that polls the set takes no lock of the program's counter, and
/// the program cannot leave the counter in it when its context ends.
#[derive(Debug)]
pub struct Doorbell {
    // Dropped first: the thread has the last handle then, and closes it.
    set: Arc<OwnedFd>,
    _held: Held,
}

impl Doorbell {
    /// Forgets that the program has rung.
    pub fn clear(set: BorrowedFd<'_>) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 1];
        let _ = epoll::wait(set, &mut events, Some(&Timespec::default()));
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub struct WakeThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for WakeThread {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        self.shared.alarm();
        // Fails only if the thread has panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Wakes {
    /// Starts the thread. It calls `begin` first.
    ///
    /// # Errors
    /// The process has no descriptor or thread left.
    pub fn start(clock: &Clock, begin: impl FnOnce() + Send + 'static) -> io::Result<(Self, WakeThread)> {
        // The thread's read blocks. A worker's write would if the thread slept through 2⁶⁴ of them.
        let alarm = eventfd(0, EventfdFlags::CLOEXEC)?;
        let all = DOORBELL_QUEUES_MAX;
        let shared = Arc::new(Shared {
            marks: (0..Doorbells::words(all)).map(|_| AtomicU64::new(0)).collect(),
            retired: (0..all).map(|_| AtomicBool::new(false)).collect(),
            places: Mutex::new(Places {
                all: (0..all).map(|_| None).collect(),
                free: (0..all).rev().collect(),
            }),
            alarm,
            ends: AtomicBool::new(false),
        });
        let (of_thread, clock) = (Arc::clone(&shared), clock.clone());
        let run = move || {
            begin();
            of_thread.run(&clock);
        };
        let thread = std::thread::Builder::new().name("waker".to_owned()).spawn(run)?;
        Ok((Self(Arc::clone(&shared)), WakeThread { shared, thread: Some(thread) }))
    }

    /// Creates a descriptor on which a program of this user sleeps, and the worker's side of it.
    ///
    /// # Errors
    /// There is no descriptor or place left, or the user has too many that are being closed.
    pub fn waker(&self, user: u32) -> io::Result<(Waker, OwnedFd)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The program can send nothing from here on.
        shutdown(&ours, Shutdown::Read)?;
        // The kernel's least: a program that does not read keeps a few bytes there.
        sockopt::set_socket_send_buffer_size(&ours, 1)?;
        Ok((Waker(Target::Held(self.hold(Arc::new(ours), user)?)), theirs))
    }

    /// Creates a doorbell of a program of this user, and the event counter that the program writes.
    ///
    /// # Errors
    /// As [`Self::waker`].
    pub fn doorbell(&self, user: u32) -> io::Result<(Doorbell, OwnedFd)> {
        let counter = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        // Edge-triggered: nobody reads the counter, which a program could keep readable.
        epoll::add(
            &set,
            &counter,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let _held = self.hold(Arc::clone(&set), user)?;
        Ok((Doorbell { set, _held }, counter))
    }

    fn hold(&self, fd: Arc<OwnedFd>, user: u32) -> io::Result<Held> {
        let shared = &self.0;
        let mut places = shared.places();
        let is_closing = |(place, retired): (&Option<Place>, &AtomicBool)| {
            place.as_ref().is_some_and(|place| place.user == user) && retired.load(Ordering::Acquire)
        };
        if places.all.iter().zip(&shared.retired).filter(|pair| is_closing(*pair)).count() >= CLOSING_MAX {
            return Err(io::Error::other(format!(
                "{CLOSING_MAX} descriptors of user {user}'s former programs are still being closed"
            )));
        }
        let place = places.free.pop().ok_or_else(|| io::Error::other("too many programs sleep"))?;
        if let (Some(free), Some(retired)) =
            (places.all.get_mut(place as usize), shared.retired.get(place as usize))
        {
            retired.store(false, Ordering::Release);
            *free = Some(Place { fd, user });
        }
        Ok(Held { shared: Arc::clone(shared), place })
    }
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the marks. They have the size that was asked for.
    fn doorbells(&self) -> Option<Doorbells<'_>> {
        Doorbells::new(&self.marks, 0, DOORBELL_QUEUES_MAX)
    }

    /// Marks a place for the thread, and wakes that if it sleeps.
    #[inline]
    fn mark(&self, place: u32) {
        if self.doorbells().is_some_and(|doorbells| doorbells.ring(place)) {
            self.alarm();
        }
    }

    /// Ends the thread's sleep.
    #[cold]
    fn alarm(&self) {
        let _ = rustix::io::write(&self.alarm, &1_u64.to_ne_bytes());
    }

    fn run(&self, clock: &Clock) {
        let Some(doorbells) = self.doorbells() else { return };
        let (mut turns, mut first) = (Turns::default(), 0);
        while !self.ends.load(Ordering::Acquire) {
            first = doorbells.take(first, &mut |place| {
                let user = self
                    .places()
                    .all
                    .get(place as usize)
                    .and_then(|place| place.as_ref().map(|place| place.user));
                if let Some(user) = user {
                    turns.add(user, place);
                }
            });
            let now = clock.now();
            match turns.next(now) {
                Next::Serve { user, place } => {
                    let before = turns.is_suspect(user).then(cpu_time);
                    self.serve(place);
                    let cpu = before.map(|before| cpu_time().saturating_sub(before));
                    let served = clock.now();
                    turns.charge(user, served.saturating_since(now), cpu, served);
                }
                Next::Wait(until) => {
                    if doorbells.sleep() {
                        self.sleep(until.map(|until| until.saturating_since(now)));
                    }
                    doorbells.awake();
                }
            }
        }
    }

    /// Wakes the program of a place, or closes its descriptor if its owner has gone.
    fn serve(&self, number: u32) {
        let at = number as usize;
        let retired = self.retired.get(at).is_some_and(|retired| retired.load(Ordering::Acquire));
        let mut places = self.places();
        let Some(place) = places.all.get_mut(at) else { return };
        if !retired {
            let fd = place.as_ref().map(|place| Arc::clone(&place.fd));
            drop(places);
            if let Some(fd) = fd {
                // Fails if the program has not read what is there, or has closed its end.
                let _ = send(&fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
            return;
        }
        let closed = place.take();
        drop(places);
        if closed.is_some() {
            drop(closed);
            self.places().free.push(number);
        }
    }

    /// Sleeps until a worker marks a place, or for this time at most.
    fn sleep(&self, time: Option<Duration>) {
        let rings = time.is_none_or(|time| {
            let time = Timespec {
                tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: time.subsec_nanos().into(),
            };
            poll(&mut [PollFd::new(&self.alarm, PollFlags::IN)], Some(&time)) == Ok(1)
        });
        if rings {
            // A signal may end the sleep early: the marks are looked at again.
            let _ = rustix::io::read(&self.alarm, &mut [0; 8]);
        }
    }
}

/// Returns the CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns a point of time that is later by `time`.
fn after(now: Instant, time: Duration) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testutil"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
pub mod testutil;
