//! Queues of events with a descriptor for poll and epoll: of completions, asynchronous events and connections.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::context::lock;
use crate::foreground;
use crate::raw::{end_if_canceled, poll_descriptors, restarts_calls};
use crate::rsocket::PollEntry;
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
        let mut items = lock(&self.items);
        items.push_back(item);
        if let Some(sleepers) = self.sleepers.get() {
            drop(items);
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
            // Before an event is taken, which would be lost.
            end_if_canceled();
            if let Some(item) = queue.take_now(&note) {
                return Ok(item);
            }
            if !queue.waits() {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            queue.sleep().map_err(io::Error::from_raw_os_error)?;
        }
    }

    fn take_now(&self, note: &impl Fn(&T)) -> Option<T> {
        let mut items = lock(&self.items);
        let item = items.pop_front()?;
        note(&item);
        self.count_down();
        Some(item)
    }

    /// Takes the oldest event of a queue that wakes threads.
    pub(crate) fn pop(&self) -> Option<T> {
        lock(&self.items).pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.items).is_empty()
    }

    /// Returns true if the descriptor tells of an event.
    fn is_readable(&self) -> bool {
        let mut set = [PollFd::from_borrowed_fd(self.counter.as_fd(), PollFlags::IN)];
        poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    /// Counts one event less. The caller has the lock of the events: a read whose count another thread takes first
    /// would wait for the next event.
    fn count_down(&self) {
        // A program may have read it by itself.
        if self.is_readable() {
            // Not as a call that waits: what destroys an object goes on to its end.
            let _ = rustix::io::read(&self.counter, &mut [0; 8]);
        }
    }

    /// Sleeps until there may be an event. This thread runs the device meanwhile, if that is inside this process.
    ///
    /// # Errors
    /// EINTR after a signal, if the program has a handler that does not restart calls (`signal(7)`).
    fn sleep(&self) -> Result<(), c_int> {
        if let Some(woken) = foreground::sleep(self.counter.as_fd(), Limit::Never) {
            return woken.map(drop);
        }
        let mut own = [PollEntry { fd: self.fd(), events: libc::POLLIN, revents: 0 }];
        match poll_descriptors(&mut own, Limit::Never.milliseconds()) {
            Err(libc::EINTR) if restarts_calls() => Ok(()),
            woken => woken.map(drop),
        }
    }

    /// Removes the events that `is_it` names, and returns them.
    pub(crate) fn remove(&self, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let mut items = lock(&self.items);
        let all = std::mem::take(&mut *items);
        let (removed, kept): (VecDeque<_>, _) = all.into_iter().partition(is_it);
        *items = kept;
        removed.iter().for_each(|_| self.count_down());
        drop(items);
        removed.into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn events_that_are_removed_while_a_thread_takes_them_block_nobody() {
        const END: u32 = u32::MAX;
        let queue = Arc::new(Queue::new().unwrap());
        let takers = [0, 1].map(|_| {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || {
                std::iter::repeat_with(|| queue.take().unwrap()).find(|item| *item == END)
            })
        });
        for item in 0..50_000 {
            queue.push(item);
            assert!(queue.remove(|other| *other == item).len() <= 1);
        }
        takers.iter().for_each(|_| queue.push(END));
        for taker in takers {
            assert_eq!(taker.join().unwrap(), Some(END));
        }
        assert!(queue.is_empty() && !queue.is_readable(), "the descriptor counts the events");
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let queue = Arc::new(Queue::new().unwrap());
        (0..4).for_each(|item| queue.push(item));
        queue.push_once(3);
        assert_eq!(queue.remove(|item| item % 2 == 1), [1, 3]);
        assert!(queue.is_readable());
        assert_eq!((queue.take().unwrap(), queue.take().unwrap()), (0, 2));
        assert!(!queue.is_readable());
        rustix::fs::fcntl_setfl(&queue.counter, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.take().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    }
}
