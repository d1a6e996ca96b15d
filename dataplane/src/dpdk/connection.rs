//! The control connection of a memif client. net_memif shows that its link is down, and not if it still waits for the
//! server or has given up: it closes its end then.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use rustix::net::{SocketAddrUnix, getpeername};

use super::descriptors::{borrow, file_of, open_sockets};

/// A socket of net_memif.
#[derive(Debug)]
pub(super) struct Connection {
    fd: RawFd,
    /// The kernel's name of the socket, by which another one with the same descriptor differs.
    file: PathBuf,
}

impl Connection {
    /// Returns the connection to `socket` that was opened since `before`; `None` if it is closed already.
    pub(super) fn opened_since(before: &BTreeSet<RawFd>, socket: &Path) -> Option<Self> {
        let server = SocketAddrUnix::new(socket).ok()?;
        let leads_there = |fd: &RawFd| {
            let peer = getpeername(borrow(*fd)).ok().flatten();
            peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok()).is_some_and(|peer| peer == server)
        };
        let fd = open_sockets().difference(before).copied().find(leads_there)?;
        Some(Self { fd, file: file_of(fd)? })
    }

    /// Returns true until the driver has closed it: the server has ended, or has refused the client.
    pub(super) fn is_open(&self) -> bool {
        file_of(self.fd).is_some_and(|file| file == self.file)
    }
}
