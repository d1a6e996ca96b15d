//! Queues of events with a descriptor for poll and epoll: of completions, asynchronous events and connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::context::lock;
use crate::foreground::{self, Woken};
use crate::raw::read_counter;
use crate::sleepers::{Limit, Sleepers};

/// Events, and a descriptor that is readable while there are some. The program may make it non-blocking.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// Counts the events.
    counter: OwnedFd,
    items: Mutex<VecDeque<T>>,
    /// Threads that are woken by an event; the descriptor does not tell of any then.
    sleepers: OnceLock<Arc<Sleepers>>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let counter = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        Ok(Self { counter, items: Mutex::default(), sleepers: OnceLock::new() })
    }

    /// Returns the number of the descriptor.
    pub(crate) fn fd(&self) -> i32 {
        self.counter.as_raw_fd()
    }

    /// Returns true if a thread that takes an event waits for it: the program has not made the descriptor non-blocking.
    pub(crate) fn waits(&self) -> bool {
        fcntl_getfl(&self.counter).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// From now on, wakes these threads for each event, instead of making the descriptor readable. They take events by
    /// [`Self::pop`].
    pub(crate) fn wake_instead(&self, sleepers: &Arc<Sleepers>) {
        let _ = self.sleepers.set(Arc::clone(sleepers));
    }

    pub(crate) fn push(&self, item: T) {
        lock(&self.items).push_back(item);
        if let Some(sleepers) = self.sleepers.get() {
            sleepers.wake();
            return;
        }
        // Fails only if there are 2^64 events.
        let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
    }

    /// Adds an event unless it waits already.
    pub(crate) fn push_once(&self, item: T)
    where
        T: PartialEq,
    {
        if !lock(&self.items).contains(&item) {
            self.push(item);
        }
    }

    /// Takes the oldest event, and waits for it if the descriptor is blocking.
    pub(crate) fn take(self: &Arc<Self>) -> io::Result<T> {
        self.take_noting(|_| ())
    }

    /// Takes the oldest event as [`Self::take`] does, and has `note` called before [`Self::remove`] can look for it.
    pub(crate) fn take_noting(self: &Arc<Self>, note: impl Fn(&T)) -> io::Result<T> {
        // A program may destroy the channel while the thread sleeps, which then sleeps on: as in the kernel, where a
        // descriptor may be closed meanwhile.
        let queue = Arc::clone(self);
        loop {
            queue.sleep()?;
            queue.count_down()?;
            let mut items = lock(&queue.items);
            if let Some(item) = items.pop_front() {
                note(&item);
                return Ok(item);
            }
        }
    }

    /// Takes the oldest event of a queue that wakes threads.
    pub(crate) fn pop(&self) -> Option<T> {
        lock(&self.items).pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.items).is_empty()
    }

    fn count_down(&self) -> io::Result<()> {
        read_counter(self.counter.as_fd()).map_err(io::Error::from_raw_os_error)
    }

    /// Sleeps until there is an event, if the descriptor is blocking and the device is inside this process: this thread
    /// runs the device meanwhile. Elsewhere the read sleeps.
    fn sleep(&self) -> io::Result<()> {
        while self.is_empty()
            && self.waits()
            && let Some(woken) = foreground::sleep(self.counter.as_fd(), Limit::Never)
        {
            if woken.map_err(io::Error::from_raw_os_error)? == Woken::Readable {
                break;
            }
        }
        Ok(())
    }

    /// Removes the events that `is_it` names, and returns them.
    pub(crate) fn remove(&self, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let mut items = lock(&self.items);
        let all = std::mem::take(&mut *items);
        let (removed, kept): (VecDeque<_>, _) = all.into_iter().partition(is_it);
        *items = kept;
        drop(items);
        for _ in &removed {
            let mut set = [PollFd::from_borrowed_fd(self.counter.as_fd(), PollFlags::IN)];
            // Another thread may have counted one of them, and finds it gone.
            if poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1) {
                // Not as a call that waits: what destroys an object goes on to its end.
                let _ = rustix::io::read(&self.counter, &mut [0; 8]);
            }
        }
        removed.into()
    }
}
