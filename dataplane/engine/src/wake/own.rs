//! Wakes threads of the engine's own process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An event counter (eventfd) on which threads of this process sleep. It is written only while a thread listens: one
/// that runs the engine, and then looks at [`Self::has_rung`], needs no call of the kernel.
#[derive(Debug)]
pub struct OwnBell {
    counter: OwnedFd,
    /// Threads that may sleep on the counter, or will before they look.
    listeners: AtomicU32,
    /// True if the bell has rung, and the counter was not written.
    has_rung: AtomicBool,
    /// True once the counter was written, until [`Self::reset`].
    is_written: AtomicBool,
    /// True once others watch or write the counter by themselves.
    is_given: AtomicBool,
}

/// A thread that may sleep on the counter, until this is dropped.
#[derive(Debug)]
pub struct Listening<'a>(&'a OwnBell);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listeners.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OwnBell {
    /// Creates the counter.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            counter: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            listeners: AtomicU32::new(0),
            has_rung: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            is_given: AtomicBool::new(false),
        })
    }

    /// Rings: the counter is readable for all who listen, now or later, until [`Self::reset`].
    #[inline]
    pub fn ring(&self) {
        if self.listeners.load(Ordering::SeqCst) > 0 {
            return self.write();
        }
        self.has_rung.store(true, Ordering::SeqCst);
        // A thread that has begun to listen meanwhile has seen the mark, or is seen here.
        if self.listeners.load(Ordering::SeqCst) > 0 {
            self.write_mark();
        }
    }

    /// Begins to listen: the counter is readable from here on if the bell has rung.
    pub fn listen(&self) -> Listening<'_> {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        self.write_mark();
        Listening(self)
    }

    /// Borrows the counter for others, who watch it, add to it, and read it by themselves: it is written each time from
    /// here on.
    pub fn give(&self) -> BorrowedFd<'_> {
        if !self.is_given.swap(true, Ordering::SeqCst) {
            std::mem::forget(self.listen());
        }
        self.counter.as_fd()
    }

    /// Returns true if the bell has rung since [`Self::reset`].
    #[inline]
    pub fn has_rung(&self) -> bool {
        self.has_rung.load(Ordering::SeqCst) || self.is_written.load(Ordering::SeqCst)
    }

    /// Forgets that the bell has rung. The caller then looks for all that it may have rung for.
    pub fn reset(&self) {
        // A swap: the caller sees what a thread had stored before it rang.
        self.has_rung.swap(false, Ordering::SeqCst);
        if self.is_written.swap(false, Ordering::SeqCst) || self.is_given.load(Ordering::SeqCst) {
            let _ = rustix::io::read(&self.counter, &mut [0; 8]);
        }
    }

    /// Makes the counter readable if the bell has rung without it.
    fn write_mark(&self) {
        if self.has_rung.swap(false, Ordering::SeqCst) {
            self.write();
        }
    }

    fn write(&self) {
        // Fails only if the counter is at its maximum: the thread is to wake already.
        let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
        // In this order: who forgets the ring between the two leaves the counter readable, and is woken once more.
        self.is_written.store(true, Ordering::SeqCst);
    }
}

impl AsFd for OwnBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and sleep")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &OwnBell, time: Duration) -> bool {
        let mut set = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::try_from(time).unwrap())).unwrap() > 0
    }

    #[test]
    fn the_counter_is_written_only_for_those_who_listen() {
        let bell = OwnBell::new().unwrap();
        bell.ring();
        assert!(bell.has_rung() && !is_readable(&bell, Duration::ZERO));
        let listening = bell.listen();
        assert!(bell.has_rung() && is_readable(&bell, Duration::ZERO), "it has rung before");
        bell.reset();
        assert!(!bell.has_rung() && !is_readable(&bell, Duration::ZERO));
        bell.ring();
        assert!(bell.has_rung() && is_readable(&bell, Duration::ZERO));
        drop(listening);
        assert!(bell.has_rung(), "nobody has reset it");
        bell.reset();
        bell.ring();
        assert!(bell.has_rung() && !is_readable(&bell, Duration::ZERO));
    }

    #[test]
    fn a_counter_that_others_watch_is_written_each_time_and_read_whoever_has_written_it() {
        let bell = OwnBell::new().unwrap();
        bell.ring();
        bell.give();
        assert!(is_readable(&bell, Duration::ZERO));
        bell.reset();
        rustix::io::write(bell.give(), &1_u64.to_ne_bytes()).unwrap();
        assert!(is_readable(&bell, Duration::ZERO));
        bell.reset();
        assert!(!is_readable(&bell, Duration::ZERO));
    }

    #[test]
    fn no_ring_is_lost_between_a_look_and_a_sleep() {
        let (bell, rings) = (Arc::new(OwnBell::new().unwrap()), Arc::new(AtomicU64::new(0)));
        const RINGS: u64 = 20_000;
        let (other, count) = (Arc::clone(&bell), Arc::clone(&rings));
        let ringing = std::thread::spawn(move || {
            for number in 1..=RINGS {
                count.store(number, Ordering::SeqCst);
                other.ring();
                if number % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        let mut seen = 0;
        while seen < RINGS {
            let listening = bell.listen();
            assert!(is_readable(&bell, Duration::from_secs(10)), "asleep at {seen}");
            drop(listening);
            bell.reset();
            seen = rings.load(Ordering::SeqCst);
        }
        ringing.join().unwrap();
    }
}
