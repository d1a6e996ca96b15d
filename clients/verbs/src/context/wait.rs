//! Waits of a context, also those of a library that hands events on.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Context, Inner};
use crate::backend::Sleeper;
use crate::bell::Bell;
use crate::error::Error;

/// End of a [wait](Context::wait_for).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// True if the caller's descriptor is readable.
    pub descriptor: bool,
    /// True if there may be an event, or a completion in an armed queue.
    pub context: bool,
}

impl Context {
    /// Waits until there may be an event, or a completion in an armed queue, or [`Self::wake_fd`] is written. Returns
    /// false once `timeout` has passed.
    ///
    /// # Errors
    /// [`Error::Lost`] once the daemon has ended and the program has received its
    /// [`DeviceFatal`](crate::Event::DeviceFatal).
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        self.wait_as(Sleeper::Program, timeout)
    }

    /// Waits as [`Self::wait`] does. Meanwhile, this thread runs a device that is in this process, but only while no
    /// other thread does. One thread at a time does so; at its end it calls [`Self::stop_helping`].
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn help(&self, timeout: Duration) -> Result<bool, Error> {
        self.wait_as(Sleeper::Helper, timeout)
    }

    /// Waits as [`Self::wait`] does, or until a descriptor of the caller's is readable. For a library that hands events
    /// and completions on: a thread that [helps](Self::help) leaves them to this one meanwhile. A signal ends the wait,
    /// too: then nothing is ready.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_for(&self, descriptor: BorrowedFd<'_>, timeout: Duration) -> Result<Ready, Error> {
        let Inner { completions, events, .. } = self.0.as_ref();
        let bells = [completions, events];
        let (descriptor, rung) = self.0.sleep_at(Some(descriptor), bells, timeout, Sleeper::Dispatcher)?;
        bells.into_iter().zip(rung).filter(|(_, rung)| *rung).for_each(|(bell, _)| bell.reset());
        Ok(Ready { descriptor, context: rung.contains(&true) })
    }

    /// Returns true if a device in this process has an event or a completion for which nobody has looked. Then
    /// [`Self::take_news`] comes before the look.
    #[inline]
    pub fn has_news(&self) -> bool {
        (self.0.completions.has_rung() || self.0.events.has_rung()) && !self.0.is_child()
    }

    /// Forgets that the device has something. The caller then looks for all events and completions.
    pub fn take_news(&self) {
        if !self.0.is_child() {
            [&self.0.completions, &self.0.events]
                .into_iter()
                .filter(|bell| bell.has_rung())
                .for_each(Bell::reset);
        }
    }

    /// Runs a device in this process, unless another thread does.
    pub fn progress(&self) {
        self.0.run();
    }

    /// Ends a sleep of [`Self::help`].
    pub fn wake_helper(&self) {
        if !self.0.is_child() {
            self.0.completions.ring();
            self.0.backend.wake_helper();
        }
    }

    /// Tells that no thread calls [`Self::help`] any more. From here on, a device in this process has a thread of its
    /// own.
    pub fn stop_helping(&self) {
        if !self.0.is_child() {
            self.0.backend.stops_helping();
        }
    }

    fn wait_as(&self, sleeper: Sleeper, timeout: Duration) -> Result<bool, Error> {
        let Inner { completions, events, reported, .. } = self.0.as_ref();
        let readable = match self.0.sleep([completions, events], timeout, sleeper) {
            Err(Error::Lost) if !self.0.is_child() && !reported.load(Ordering::Acquire) => return Ok(true),
            readable => readable?,
        };
        for (bell, _) in [completions, events].into_iter().zip(readable).filter(|(_, readable)| *readable) {
            bell.reset();
        }
        Ok(readable.contains(&true))
    }
}
