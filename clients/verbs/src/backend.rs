//! The device behind a context: a port of the daemon, or an engine in this process. Queues look the same for both:
//! rings in memory that a program and an engine share. Everything else goes through a [`Backend`].
//!
//! JUSTIFICATION: a device in this process reaches the program's memory by its address. The caller that registers
//! memory promises that it is there; [`Registrable`] carries the promise.
#![allow(unsafe_code, reason = "declares an unsafe function; listed in UNSAFE.md")]

use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp_shared_verbs::Request;
use iwarp_shared_verbs::methods::{AllocMemory, DeviceInfo, Executed, Memory, MemoryPart, RegMr, RegParts};
use rdma::verbs::{MemoryRegion, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::context::Words;
use crate::daemon::Daemon;
use crate::error::Error;
use crate::offer::Regions;

/// A context that a back end has opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn Backend>,
    /// Memory of the queues.
    pub(crate) words: Words,
    /// Rings once an armed completion queue has a completion.
    pub(crate) completions: Bell,
    /// Rings once there is an event.
    pub(crate) events: Bell,
    /// Number of the application.
    pub(crate) app: u32,
    pub(crate) device: DeviceInfo,
    pub(crate) link_up: bool,
}

/// Parts of memory to register, of which those of the program itself stay mapped until they are deregistered.
#[derive(Debug)]
pub(crate) struct Registrable(RegParts);

impl Registrable {
    /// Takes parts of memory that the device has allocated; `None` if one is the program's own.
    pub(crate) fn of_device(parts: RegParts) -> Option<Self> {
        let is_own = |part: &MemoryPart| matches!(part, MemoryPart::Kernel { .. });
        (!parts.parts.iter().any(is_own)).then_some(Self(parts))
    }

    /// Takes parts, some of which are memory of the program.
    ///
    /// # Safety
    /// That memory stays mapped until it is deregistered, with the rights that the registration needs, and the program
    /// accesses it as memory that others change.
    pub(crate) const unsafe fn of_program(parts: RegParts) -> Self {
        Self(parts)
    }

    /// Returns the parts, for the device that registers them.
    pub(crate) fn into_parts(self) -> RegParts {
        self.0
    }
}

/// Kind of what the program has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Requests of a send queue.
    Work,
    /// Buffers of a receive queue, also of a shared one.
    Receives,
}

/// Kind of a thread that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleeper {
    /// A thread that waits for something: it runs an engine in this process meanwhile.
    Program,
    /// A thread that waits for the first of the descriptors, and hands on what the others tell of: the helper leaves
    /// those to it. If there is such a thread already, only the first descriptor wakes this one.
    Dispatcher,
    /// A thread that does so only while no other thread runs the engine.
    Helper,
}

/// A device that a context is open on.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Executes requests, at most [`REQUESTS_MAX`](iwarp_shared_verbs::methods::REQUESTS_MAX).
    fn execute(&self, requests: &[Request]) -> Result<Executed, Error>;

    /// Allocates memory, and returns its descriptor.
    fn alloc_memory(&self, asked: &AllocMemory) -> Result<(Memory, OwnedFd), Error>;

    /// Opens a region by its name, as memory.
    fn open_region(&self, name: &str) -> Result<(Memory, OwnedFd), Error>;

    /// Registers all of a memory.
    fn register(&self, asked: RegMr) -> Result<MemoryRegion, Error>;

    /// Registers parts of memory.
    fn register_parts(&self, asked: Registrable) -> Result<MemoryRegion, Error>;

    /// Lets the device reach the program's own memory by address, which no memory takes the place of.
    fn offer_process(&self) -> Result<(), Error>;

    /// Frees memory that is not registered.
    fn free_memory(&self, memory: u32) -> Result<(), Error>;

    /// Wakes the engine, which sleeps: the program has posted. An engine in this process may let posts wait until the
    /// program polls or sleeps.
    fn wake(&self, posted: Posted);

    /// Returns true if posts wait for the program to run the engine, which is in this process.
    fn has_waiting(&self) -> bool;

    /// As [`Self::has_waiting`], for receive buffers, too.
    fn has_posts(&self) -> bool;

    /// Returns a number that changes when bytes come at a socket of a device in this process, or its kernel takes more.
    fn socket_events(&self) -> u64 {
        0
    }

    /// Sleeps until one of the descriptors is readable, or for this time at most, and notes for each if it is. Returns
    /// true if the device has ended.
    fn sleep(
        &self,
        fds: &[BorrowedFd<'_>],
        ready: &mut [bool],
        time: Duration,
        sleeper: Sleeper,
    ) -> Result<bool, Errno>;

    /// Ends the sleep of a [`Sleeper::Helper`].
    fn wake_helper(&self);

    /// Tells that no thread sleeps as [`Sleeper::Helper`] any more.
    fn stops_helping(&self);

    /// Ends the context. Its connections close when their work is done. Not called in a child of the process.
    fn close(&self);

    /// Returns true if the engine is in this process: threads of the program that poll or sleep run it.
    fn is_here(&self) -> bool;

    /// Runs the engine, if it is in this process. A thread that runs it already does so for this one, too.
    fn run(&self);

    /// Returns the daemon, which has regions that programs watch; or the refusal of a device without one.
    fn daemon(&self) -> Result<&Daemon, Error> {
        let reason = Some("a device without a daemon has no regions".to_owned());
        Err(Error::Refused { call: "watch", cause: VerbsError::NoSuchObject, reason })
    }

    /// Tells that the program has polled this many times in a row and found nothing.
    fn polled_in_vain(&self, times: u32);

    /// Returns the region service of a device in this process, or the refusal of a device of the daemon.
    fn regions(&self) -> Result<&dyn Regions, Error> {
        let reason = "the daemon offers regions itself: `iwarpctl region register` creates one, and `reg_region` opens \
                      it here; a device inside the program (`Context::embedded`) serves its own"
            .to_owned();
        Err(Error::Refused { call: "serve_regions", cause: VerbsError::NotPermitted, reason: Some(reason) })
    }
}

/// Sleeps until one of the descriptors, or the other one, is ready, or for this time at most,
/// Notes for each of `fds` if it is readable, and returns if the other one is ready.
pub(crate) fn poll_with(
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    (other, flags): (BorrowedFd<'_>, PollFlags),
    time: Duration,
) -> Result<bool, Errno> {
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    };
    let mut set = Vec::with_capacity(fds.len().saturating_add(1));
    set.push(PollFd::from_borrowed_fd(other, flags));
    set.extend(fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
    poll(&mut set, Some(&time))?;
    let mut polled = set.iter().map(|polled| !polled.revents().is_empty());
    let other = polled.next().unwrap_or(false);
    ready.iter_mut().zip(polled).for_each(|(ready, polled)| *ready = polled);
    Ok(other)
}
