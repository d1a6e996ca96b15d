//! Descriptors on which threads of the program sleep: the socket that the daemon writes to, and an event counter of the
//! program's own, by which its threads wake each other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use iwarp_engine::wake::OwnBell;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::Error;

/// Bytes per read of the socket. The daemon leaves no more there than the kernel's smallest buffer takes.
const BYTES: usize = 64;

/// Descriptors of which one is readable when there is something to look for.
#[derive(Debug)]
pub(crate) enum Bell {
    /// A daemon rings it.
    Daemon {
        /// One byte for each time that the daemon has rung; its end when the daemon has closed it.
        daemon: OwnedFd,
        /// Rung by threads of the program.
        own: OwnedFd,
    },
    /// An engine in this process rings it.
    Process(Arc<OwnBell>),
}

impl Bell {
    /// Returns a bell that the daemon rings through a socket.
    pub(crate) fn of_daemon(daemon: OwnedFd) -> Result<Self, Error> {
        let own = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::System { call: "eventfd", cause: error.into() })?;
        Ok(Self::Daemon { daemon, own })
    }

    /// Rings for the program's own threads.
    pub(crate) fn ring(&self) {
        match self {
            // Fails only if the counter is at its maximum: the thread is to wake already.
            Self::Daemon { own, .. } => drop(rustix::io::write(own, &1_u64.to_ne_bytes())),
            Self::Process(bell) => bell.ring(),
        }
    }

    /// Forgets that it has rung. The caller then looks for all that it may have rung for.
    pub(crate) fn reset(&self) {
        match self {
            Self::Daemon { daemon, own } => {
                let _ = rustix::io::read(daemon, &mut [0; BYTES]);
                let _ = rustix::io::read(own, &mut [0; 8]);
            }
            Self::Process(bell) => bell.reset(),
        }
    }

    /// Returns true if it has rung, in this process, since it was reset. Otherwise a descriptor tells.
    #[inline]
    pub(crate) fn has_rung(&self) -> bool {
        matches!(self, Self::Process(bell) if bell.has_rung())
    }

    /// Borrows the descriptors to sleep on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (first, second) = match self {
            Self::Daemon { daemon, own } => (daemon.as_fd(), Some(own.as_fd())),
            Self::Process(bell) => (bell.as_ref().as_fd(), None),
        };
        std::iter::once(first).chain(second)
    }

    /// Borrows the descriptor that is readable when the device has rung, for the program.
    pub(crate) fn of_device(&self) -> BorrowedFd<'_> {
        match self {
            Self::Daemon { daemon, .. } => daemon.as_fd(),
            Self::Process(bell) => bell.give(),
        }
    }

    /// Borrows the event counter to which the program's threads add.
    pub(crate) fn own(&self) -> BorrowedFd<'_> {
        match self {
            Self::Daemon { own, .. } => own.as_fd(),
            Self::Process(bell) => bell.give(),
        }
    }
}
