//! Descriptors on which threads of the program sleep: the socket that the daemon writes to, and an event counter of the
//! program's own, by which its threads wake each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::Error;

/// Bytes per read of the socket. The daemon leaves no more there than the kernel's smallest buffer takes.
const BYTES: usize = 64;

/// A pair of descriptors, of which one is readable when there is something to look for.
#[derive(Debug)]
pub(crate) struct Bell {
    /// One byte for each time that the daemon has rung; its end when the daemon has closed it.
    daemon: OwnedFd,
    /// Rung by threads of the program; `None` if they ring the other one.
    own: Option<OwnedFd>,
}

impl Bell {
    /// Returns a bell of an engine in this process: one event counter.
    pub(crate) const fn of_process(counter: OwnedFd) -> Self {
        Self { daemon: counter, own: None }
    }

    pub(crate) fn new(daemon: OwnedFd) -> Result<Self, Error> {
        let own = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::System { call: "eventfd", cause: error.into() })?;
        Ok(Self { daemon, own: Some(own) })
    }

    /// Rings for the program's own threads.
    pub(crate) fn ring(&self) {
        // Fails only if the counter is at its maximum: the thread is to wake already.
        let _ = rustix::io::write(self.own(), &1_u64.to_ne_bytes());
    }

    /// Forgets that it has rung. The caller then looks for all that it may have rung for.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.daemon, &mut [0; BYTES]);
        if let Some(own) = &self.own {
            let _ = rustix::io::read(own, &mut [0; 8]);
        }
    }

    /// Borrows its descriptors.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.daemon.as_fd()).chain(self.own.as_ref().map(AsFd::as_fd))
    }

    /// Borrows the descriptor that the daemon makes readable.
    pub(crate) fn daemon(&self) -> BorrowedFd<'_> {
        self.daemon.as_fd()
    }

    /// Borrows the descriptor that the program's threads make readable.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        self.own.as_ref().unwrap_or(&self.daemon).as_fd()
    }
}
