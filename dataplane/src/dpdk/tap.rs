//! The interface behind a TAP device. Its descriptor carries frames under every name and in every network namespace, as
//! that of Linux's tun does; net_tap asks for the interface by the name that it has given.
#![allow(unsafe_code, reason = "asks the kernel by ioctl(2) what a TAP is now")]

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::descriptors::{borrow, open_files};

/// The file of every descriptor of a TAP.
const DEVICE: &str = "/dev/net/tun";

/// A queue of a TAP, to ask about its interface.
#[derive(Debug)]
pub struct Tap {
    queue: OwnedFd,
    /// The name of the interface when it was made.
    name: String,
    /// The network namespace in which it was made, if the kernel says.
    namespace: Option<u64>,
}

/// The interface behind a TAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapInterface {
    /// The name, which counts in its namespace.
    pub name: String,
    /// The network namespace if it was moved to another one, as `readlink /proc/PID/ns/net` writes it; "unknown" if
    /// the kernel does not say.
    pub namespace: Option<String>,
}

impl Tap {
    /// Returns the descriptors of all TAPs of this process.
    pub(super) fn open_queues() -> BTreeSet<RawFd> {
        open_files(DEVICE)
    }

    /// Finds a queue that was opened since `before`.
    pub(super) fn opened_since(before: &BTreeSet<RawFd>) -> Option<Self> {
        Self::open_queues().difference(before).find_map(|&fd| Self::of(borrow(fd)))
    }

    /// Returns another handle on a queue.
    pub(crate) fn of(queue: impl AsFd) -> Option<Self> {
        let queue = fcntl_dupfd_cloexec(queue, 0).ok()?;
        let (name, namespace) = (name_of(&queue).ok()?, namespace_of(&queue));
        Some(Self { queue, name, namespace })
    }

    /// Returns true if the interface was deleted, in whatever namespace.
    pub fn is_deleted(&self) -> bool {
        name_of(&self.queue) == Err(Errno::BADFD)
    }

    /// Returns the interface if it was renamed or moved.
    pub fn moved(&self) -> Option<TapInterface> {
        let (name, now) = (name_of(&self.queue).ok()?, namespace_of(&self.queue));
        let is_elsewhere = self.namespace.is_some() && now != self.namespace;
        let namespace = is_elsewhere
            .then(|| now.map_or_else(|| "unknown".to_owned(), |number| format!("net:[{number}]")));
        (is_elsewhere || name != self.name).then_some(TapInterface { name, namespace })
    }

    /// Returns true if the interface is up: it accepts frames then.
    pub fn is_up(&self) -> bool {
        let mut set = [PollFd::new(&self.queue, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut set, Some(&now)).is_ok() && set.iter().all(|polled| polled.revents() == PollFlags::OUT)
    }
}

/// Returns the name of the interface, as `TUNGETIFF` of the kernel's `if_tun.h` does.
///
/// # Errors
/// "File descriptor in bad state": the interface was deleted, or the queue is one that net_tap has detached.
fn name_of(queue: &OwnedFd) -> Result<String, Errno> {
    // SAFETY: integers and arrays of them, for which zeros are valid.
    let mut request = unsafe { std::mem::zeroed::<libc::ifreq>() };
    // SAFETY: an open descriptor; the kernel writes an `ifreq` at most.
    let returned = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF, &raw mut request) };
    if returned < 0 {
        return Err(last_error());
    }
    let name = request.ifr_name.iter().map(|c| c.cast_unsigned()).take_while(|&c| c != 0).collect::<Vec<_>>();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Returns the inode number of the interface's network namespace (`TUNGETDEVNETNS`). The kernel refuses it to those
/// without rights there.
fn namespace_of(queue: &OwnedFd) -> Option<u64> {
    // SAFETY: an open descriptor; the request has no argument.
    let returned = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETDEVNETNS) };
    if returned < 0 {
        return None;
    }
    // SAFETY: a descriptor that the kernel has just made for the caller.
    let namespace = unsafe { OwnedFd::from_raw_fd(returned) };
    rustix::fs::fstat(namespace.as_fd()).ok().map(|stat| stat.st_ino)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
