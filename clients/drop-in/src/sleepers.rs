//! Threads that sleep until something happens to an rsocket.
//!
//! Several threads may use one socket, and any of them takes what has come: events, completions, the data and credits
//! that these bring. So a thread does not sleep on a descriptor whose event another thread may take. It sleeps on a
//! counter of its own, which it adds to each socket before it looks for what it waits for; a thread that changes a
//! socket wakes all that sleep there, and each looks again.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::context::lock;
use crate::foreground::{self, Woken};
use crate::raw::{poll_descriptors, read_counter};
use crate::rsocket::PollEntry;

/// Time until which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The call does not wait.
    Now,
    At(Instant),
    Never,
}

impl Limit {
    /// Returns the time that is left: none at all, or no end.
    #[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::At(until) => Some(until.saturating_duration_since(Instant::now())),
            Self::Never => None,
        }
    }

    /// Returns the end of a duration from now on; `Never` if the clock does not reach it.
    #[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
    pub(crate) fn after(duration: Duration) -> Self {
        Instant::now().checked_add(duration).map_or(Self::Never, Self::At)
    }

    /// Returns the time that is left as `poll` takes it. At least a millisecond if some is left: less is not none.
    pub(crate) fn milliseconds(self) -> c_int {
        let round = |left: Duration| c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
        self.left().map_or(-1, round)
    }
}

/// A thread, and the counter that it sleeps on.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Readable while the thread was woken.
    counter: OwnedFd,
    /// True from a wake to the thread's next look: the counter need not be written again.
    woken: AtomicBool,
}

thread_local! {
    /// The thread's counter, and the process that it is of: a child has that of its parent otherwise.
    static OWN: RefCell<Option<(u32, Arc<Sleeper>)>> = const { RefCell::new(None) };
}

impl Sleeper {
    /// Returns that of the calling thread.
    pub(crate) fn own() -> Result<Arc<Self>, c_int> {
        let process = std::process::id();
        let known = OWN.try_with(|own| own.borrow().clone()).unwrap_or_default();
        if let Some((_, sleeper)) = known.filter(|(of, _)| *of == process) {
            return Ok(sleeper);
        }
        let new = Self::new()?;
        // A thread that is ending has one for this wait alone.
        let _ = OWN.try_with(|own| *own.borrow_mut() = Some((process, Arc::clone(&new))));
        Ok(new)
    }

    /// Creates one for a thread that has none of its own.
    pub(crate) fn new() -> Result<Arc<Self>, c_int> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC).map_err(rustix::io::Errno::raw_os_error)?;
        Ok(Arc::new(Self { counter, woken: AtomicBool::new(false) }))
    }

    /// Returns the descriptor that is readable once the thread was woken.
    pub(crate) fn fd(&self) -> c_int {
        self.counter.as_raw_fd()
    }

    /// Sleeps until another thread wakes this one, also if it did since the last look. The caller then looks again.
    ///
    /// # Errors
    /// EAGAIN once the time is over. EINTR as the kernel's sockets: without a limit, only for a signal whose handler
    /// does not restart calls (`signal(7)`).
    pub(crate) fn sleep(&self, limit: Limit) -> Result<(), c_int> {
        if limit != Limit::Now {
            match foreground::sleep(self.counter.as_fd(), limit) {
                Some(Ok(Woken::Readable)) => return self.take(),
                Some(woken) => return woken.map(drop),
                None => {}
            }
        }
        if limit != Limit::Never {
            let mut own = [PollEntry { fd: self.fd(), events: libc::POLLIN, revents: 0 }];
            if poll_descriptors(&mut own, limit.milliseconds())? == 0 {
                return Err(libc::EAGAIN);
            }
        }
        self.take()
    }

    /// Forgets a wake, for which `fd` is readable.
    pub(crate) fn take(&self) -> Result<(), c_int> {
        let read = read_counter(self.counter.as_fd());
        // In this order: a wake between the two is not written, and the caller looks again now.
        self.woken.store(false, Ordering::SeqCst);
        read
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // Fails only if there are 2^64 wakes.
            let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
        }
    }
}

/// The threads that sleep at a socket.
#[derive(Debug, Default)]
pub(crate) struct Sleepers(Mutex<Vec<Arc<Sleeper>>>);

impl Sleepers {
    /// Adds a thread until the result is dropped. The thread looks at the socket after this call, and then sleeps.
    pub(crate) fn add(self: &Arc<Self>, sleeper: &Arc<Sleeper>) -> Asleep {
        lock(&self.0).push(Arc::clone(sleeper));
        Asleep { at: Arc::clone(self), sleeper: Arc::clone(sleeper) }
    }

    /// Wakes all threads but the calling one, which is awake.
    pub(crate) fn wake(&self) {
        let all = lock(&self.0);
        if all.is_empty() {
            return;
        }
        let own = OWN.try_with(|own| own.borrow().clone()).unwrap_or_default();
        let is_own = |sleeper: &Arc<Sleeper>| own.as_ref().is_some_and(|(_, own)| Arc::ptr_eq(own, sleeper));
        all.iter().filter(|sleeper| !is_own(sleeper)).for_each(|sleeper| sleeper.wake());
    }
}

/// A thread's place among the sleepers of a socket.
#[derive(Debug)]
pub(crate) struct Asleep {
    at: Arc<Sleepers>,
    sleeper: Arc<Sleeper>,
}

impl Drop for Asleep {
    fn drop(&mut self) {
        let mut all = lock(&self.at.0);
        if let Some(place) = all.iter().position(|sleeper| Arc::ptr_eq(sleeper, &self.sleeper)) {
            all.swap_remove(place);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_wake_before_the_sleep_is_not_lost_and_one_is_enough() {
        let (sleepers, sleeper) = (Arc::new(Sleepers::default()), Sleeper::own().unwrap());
        let place = sleepers.add(&sleeper);
        for _ in 0..3 {
            let other = Arc::clone(&sleepers);
            std::thread::spawn(move || (0..1000).for_each(|_| other.wake())).join().unwrap();
            assert_eq!(sleeper.sleep(Limit::Never), Ok(()));
            assert_eq!(sleeper.sleep(Limit::Now), Err(libc::EAGAIN));
        }
        sleepers.wake();
        assert_eq!(sleeper.sleep(Limit::Now), Err(libc::EAGAIN), "a thread does not wake itself");
        drop(place);
        let other = Arc::clone(&sleepers);
        std::thread::spawn(move || other.wake()).join().unwrap();
        assert_eq!(sleeper.sleep(Limit::after(Duration::from_millis(5))), Err(libc::EAGAIN), "it has left");
    }

    #[test]
    fn threads_have_counters_of_their_own() {
        let own = Sleeper::own().unwrap();
        assert_eq!(own.fd(), Sleeper::own().unwrap().fd());
        let other = std::thread::spawn(|| Sleeper::own().unwrap()).join().unwrap();
        assert_ne!(own.fd(), other.fd());
    }

    #[test]
    fn the_time_that_is_left_is_rounded_up() {
        assert_eq!((Limit::Now.milliseconds(), Limit::Never.milliseconds()), (0, -1));
        let left = Limit::after(Duration::from_micros(10_500)).milliseconds();
        assert!((1..=11).contains(&left), "{left}");
    }
}
