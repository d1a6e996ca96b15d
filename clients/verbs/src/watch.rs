//! Watches of regions: a program waits for the messages of peers to a region of the daemon.
//!
//! ```no_run
//! use std::time::Duration;
//! use iwarp_verbs::{Content, watch};
//!
//! let lab = watch("/run/iwarpd/verbs.sock", "lab")?;
//! while let Some(message) = lab.wait(Duration::from_secs(60))? {
//!     if let Content::Immediate(number) = message.content {
//!         println!("{} bytes written, then {number:?}", message.written);
//!     }
//!     let mut first = [0; 16];
//!     lab.region().read(0, &mut first)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use iwarp_control::{Client, ClientError};
use iwarp_shared_verbs::methods::{
    UnwatchRegion, UnwatchRegionMethod, WatchRegion, WatchRegionMethod, Watching,
};
use iwarp_shared_verbs::program::Notifications;
use iwarp_shared_verbs::{Content, notification_ring_words};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::bell::Bell;
use crate::context::{Context, Inner, Words, lock, map};
use crate::error::Error;
use crate::process::Here;
use crate::region::Region;

/// Message of a peer to a region that the program watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Name of the region.
    pub region: Arc<str>,
    /// Content of the message.
    pub content: Content,
    /// True if the peer asks for an event.
    pub solicited: bool,
    /// Bytes that the peer has written to the region since the last notification of its connection. They are in place.
    pub written: u64,
}

/// A region of the daemon, mapped, whose peers' messages reach the program until the value is dropped.
///
/// Several threads may use it; each notification reaches one of them.
#[derive(Debug)]
pub struct Watch {
    link: Link,
    number: u64,
    name: Arc<str>,
    region: Region,
    queue: Mutex<Notifications<Words>>,
    bell: Bell,
    here: Here,
    /// Set (epoll) of the bell and the socket.
    set: OwnedFd,
}

/// Connection to the daemon that the watch belongs to.
#[derive(Debug)]
enum Link {
    Own(Box<Mutex<Client>>),
    Context(Arc<Inner>),
}

impl Link {
    fn call<T>(&self, call: impl FnOnce(&mut Client) -> Result<T, ClientError>) -> Result<T, Error> {
        match self {
            Self::Own(client) => call(&mut lock(client)).map_err(|error| match error {
                ClientError::Lost { .. } => Error::Lost,
                other => other.into(),
            }),
            Self::Context(context) => context.call(|backend| backend.daemon()?.call(call)),
        }
    }

    fn socket(&self) -> Result<OwnedFd, Error> {
        let socket = match self {
            Self::Own(client) => lock(client).as_fd().try_clone_to_owned(),
            Self::Context(context) => return context.call(|backend| backend.daemon()?.socket()),
        };
        socket.map_err(|cause| Error::System { call: "dup", cause })
    }
}

/// Watches a region of the daemon: maps it, and receives the Immediate Data and the Sends of its peers. The program
/// must be admitted to the control socket, too.
///
/// # Errors
/// The daemon cannot be reached, refuses, has no such region, or a limit is reached.
pub fn watch(socket: impl AsRef<Path>, region: &str) -> Result<Watch, Error> {
    Watch::begin(Link::Own(Box::new(Mutex::new(Client::connect(socket)?))), region)
}

impl Context {
    /// Watches a region of the daemon like [`watch`], over the connection of this context.
    ///
    /// # Errors
    /// As [`watch`].
    pub fn watch(&self, region: &str) -> Result<Watch, Error> {
        Watch::begin(Link::Context(Arc::clone(&self.0)), region)
    }
}

impl Watch {
    fn begin(link: Link, name: &str) -> Result<Self, Error> {
        let params = WatchRegion { name: name.to_owned() };
        let (watching, fds) = link.call(|client| client.call_with_fds::<WatchRegionMethod>(&params))?;
        let wrong = || Error::Protocol("region.watch");
        let Ok([memory, rings, daemon]) = <[OwnedFd; 3]>::try_from(fds) else { return Err(wrong()) };
        let Watching { watch: number, name, bytes, page_bytes, access, rings: count, shape } = watching;
        let count = usize::try_from(count).map_err(|_| wrong())?;
        let ring_bytes = notification_ring_words(shape).saturating_mul(count).saturating_mul(8);
        let words = Words(Arc::new(map(&rings, ring_bytes as u64, 4096)?));
        let queue = Notifications::new(words, count, shape).ok_or_else(wrong)?;
        let region = Region::of(map(&memory, bytes, page_bytes)?, name.clone(), access);
        let bell = Bell::of_daemon(daemon)?;
        let set = set_of(&bell, &link.socket()?)?;
        // The rings are not armed yet: messages that came already are found by the first poll.
        bell.ring();
        let queue = Mutex::new(queue);
        Ok(Self { link, number, name: name.into(), region, queue, bell, here: Here::new()?, set })
    }

    /// Returns the region and its memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the next notification, if there is one. After `None`, [`Self::fd`] is readable once there is another, or
    /// once no more can come.
    ///
    /// # Errors
    /// [`Error::RegionGone`] once the region is deregistered, [`Error::Lost`] once the daemon has ended, and all
    /// notifications are taken.
    pub fn poll(&self) -> Result<Option<Notification>, Error> {
        if self.here.is_child() {
            return Err(Error::Lost);
        }
        let mut queue = lock(&self.queue);
        let mut taken = queue.poll();
        if taken.is_none() && !queue.is_armed() {
            // Reset before the rings are armed: what comes after rings again.
            self.bell.reset();
            queue.arm();
            taken = queue.poll();
        }
        let Some(taken) = taken else {
            if queue.is_gone() {
                return Err(Error::RegionGone(self.name.to_string()));
            }
            return if self.has_ended() { Err(Error::Lost) } else { Ok(None) };
        };
        let iwarp_shared_verbs::Notification { content, solicited, written } = taken;
        Ok(Some(Notification { region: Arc::clone(&self.name), content, solicited, written }))
    }

    /// Waits for the next notification; `None` once `timeout` has passed.
    ///
    /// # Errors
    /// As [`Self::poll`].
    #[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
    pub fn wait(&self, timeout: Duration) -> Result<Option<Notification>, Error> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(taken) = self.poll()? {
                return Ok(Some(taken));
            }
            let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left)?;
        }
    }

    /// Borrows the descriptor that is readable when there may be a notification, for poll, epoll and async runtimes.
    /// The program then calls [`Self::poll`] until that returns `None` or an error.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Returns the number of notifications that were lost because the program had not taken earlier ones.
    pub fn lost(&self) -> u64 {
        lock(&self.queue).lost()
    }

    fn sleep(&self, timeout: Duration) -> Result<(), Error> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let time = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.set, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(cause) => Err(Error::System { call: "poll", cause: cause.into() }),
        }
    }

    /// Returns true once the daemon has closed the connection.
    fn has_ended(&self) -> bool {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 3];
        let ready = epoll::wait(&self.set, &mut events, Some(&Timespec::default()));
        ready.is_ok_and(|(ready, _)| ready.iter().any(|event| event.data.u64() == SOCKET))
    }
}

/// Numbers of the descriptors of the set.
const BELL: u64 = 0;
const SOCKET: u64 = 1;

/// Creates the set that is readable when the bell has rung, or when the daemon has closed the connection.
fn set_of(bell: &Bell, socket: &OwnedFd) -> Result<OwnedFd, Error> {
    let failed = |cause: rustix::io::Errno| Error::System { call: "epoll", cause: cause.into() };
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    let (rung, ended) = (epoll::EventFlags::IN, epoll::EventFlags::RDHUP);
    let members = [(bell.of_device(), BELL, rung), (bell.own(), BELL, rung), (socket.as_fd(), SOCKET, ended)];
    for (fd, number, events) in members {
        epoll::add(&set, fd, epoll::EventData::new_u64(number), events).map_err(failed)?;
    }
    Ok(set)
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The watch of a child after fork is its parent's.
        if self.here.is_child() {
            return;
        }
        let params = UnwatchRegion { watch: self.number };
        // Fails only if the daemon has ended.
        let _ = self.link.call(|client| client.call::<UnwatchRegionMethod>(&params));
    }
}

#[cfg(test)]
mod tests;
