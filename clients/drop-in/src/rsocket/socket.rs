//! A socket: its phases from `rsocket` to `rclose`, and the waits of its calls.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iwarp_verbs::ConnParam;

use super::sizes::Sizes;
use super::stream::Stream;
use super::wire::{ConnData, Message};
use crate::cm::{self, ESTABLISHED, Entry, Id, REJECTED};
use crate::cm_calls::{self, peer_to_peer, rdma_create_event_channel};
use crate::context::lock;
use crate::event_channel::EventChannel;
use crate::queue::Queue;
use crate::sleepers::{Limit, Sleeper, Sleepers};

/// Sizes that a socket has unless the program sets others, those of rdma-core.
const SIZES: Sizes = Sizes {
    send_queue: 384,
    recv_queue: 384,
    inline: 64,
    iomaps: 0,
    send_bytes: 1 << 17,
    recv_bytes: 1 << 17,
};

/// A socket. Its descriptor is that of its event channel.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) inner: Mutex<Inner>,
    /// Events of the listener or connection.
    pub(super) connection: Arc<Queue<Entry>>,
    fd: c_int,
    /// Threads that sleep until something happens to the socket.
    pub(super) sleepers: Arc<Sleepers>,
}

/// Variable state of a socket. A thread that changes what another one may wait for wakes the sleepers.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) phase: Phase,
    /// Family of its addresses.
    pub(super) domain: c_int,
    pub(super) sizes: Sizes,
    /// Flags of the descriptor (`F_GETFL`).
    pub(super) flags: c_int,
    pub(super) descriptor_flags: c_int,
    pub(super) options: Options,
    /// Error of the last failed connection (`SO_ERROR`).
    pub(super) error: c_int,
    pub(super) endpoint: Endpoint,
}

/// Options of a socket, which connections of a listener begin with.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    /// Numbers that the program has set, by level and name.
    pub(super) numbers: BTreeMap<(c_int, c_int), c_int>,
    /// Longest wait of calls that receive, and of those that send (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    /// Longest wait of `close` (`SO_LINGER`); at zero the connection is reset.
    pub(super) linger: Option<Duration>,
}

/// Phase of a socket. A stream is dropped before its endpoint.
#[derive(Debug)]
pub(super) enum Phase {
    New,
    Listening(Backlog),
    /// The connection is requested or accepted, and not established yet.
    Opening(Box<Stream>),
    Open(Box<Stream>),
    /// The connection could not be made, or the listener has ended.
    Failed,
}

/// Connections of a listener that the program has not taken yet.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) accepted: VecDeque<Socket>,
    /// Most connections in `accepted`.
    pub(super) limit: usize,
}

/// Id of the socket, and its event channel.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) id: Option<Box<Id>>,
    pub(super) channel: Box<EventChannel>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl Endpoint {
    pub(super) fn id(&self) -> Result<&Id, c_int> {
        self.id.as_deref().ok_or(libc::EBADF)
    }

    /// Ends the listener or connection.
    pub(super) fn destroy(&mut self) {
        if let Some(id) = self.id.take() {
            cm::destroy(id);
        }
    }
}

pub(super) fn new_channel() -> Result<Box<EventChannel>, c_int> {
    rdma_create_event_channel().ok_or_else(|| errno::errno().0)
}

/// Direction of a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Receive,
    Send,
}

impl Socket {
    pub(super) fn new(domain: c_int) -> Result<Self, c_int> {
        let channel = new_channel()?;
        let sleepers = Arc::default();
        channel.queue().wake_instead(&sleepers);
        let endpoint = Endpoint { id: Some(Id::create(&channel, false)), channel };
        Ok(Self::with(endpoint, sleepers, (domain, SIZES, Options::default()), Phase::New))
    }

    /// Makes a socket of an endpoint whose events wake `sleepers`.
    pub(super) fn with(
        endpoint: Endpoint,
        sleepers: Arc<Sleepers>,
        (domain, sizes, options): (c_int, Sizes, Options),
        phase: Phase,
    ) -> Self {
        let (fd, connection) = (endpoint.channel.fd, endpoint.channel.queue());
        let inner = Inner {
            phase,
            domain,
            sizes,
            flags: libc::O_RDWR,
            descriptor_flags: 0,
            options,
            error: 0,
            endpoint,
        };
        Self { inner: Mutex::new(inner), connection, fd, sleepers }
    }

    pub(super) const fn fd(&self) -> c_int {
        self.fd
    }

    /// Returns how long a call with these flags waits.
    pub(super) fn limit(&self, flags: c_int, direction: Direction) -> Limit {
        let inner = lock(&self.inner);
        if flags & libc::MSG_DONTWAIT != 0 || inner.flags & libc::O_NONBLOCK != 0 {
            return Limit::Now;
        }
        let timeout = match direction {
            Direction::Receive => inner.options.receive_timeout,
            Direction::Send => inner.options.send_timeout,
        };
        timeout.map_or(Limit::Never, Limit::after)
    }

    pub(super) fn bind(&self, local: SocketAddr) -> Result<(), c_int> {
        let inner = lock(&self.inner);
        if !matches!(inner.phase, Phase::New) {
            return Err(libc::EINVAL);
        }
        cm_calls::bind(inner.endpoint.id()?, local)
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        let limit = self.limit(0, Direction::Send);
        {
            let mut inner = lock(&self.inner);
            self.progress(&mut inner);
            match inner.phase {
                Phase::New => {}
                Phase::Opening(_) => return Err(libc::EALREADY),
                Phase::Open(_) => return Err(libc::EISCONN),
                Phase::Failed if inner.error != 0 => return Err(std::mem::take(&mut inner.error)),
                Phase::Listening(_) | Phase::Failed => return Err(libc::EINVAL),
            }
            let sizes = inner.sizes;
            let id = inner.endpoint.id()?;
            cm_calls::select(id, None, peer)?;
            let stream = Stream::new(id, sizes, &self.sleepers)?;
            let private_data = stream.conn_data().encode();
            let param = ConnParam {
                private_data: &private_data,
                responder_resources: 1,
                initiator_depth: 1,
                rtr: peer_to_peer(),
                ..ConnParam::default()
            };
            cm_calls::connect_with(id, &stream.qp, &param)?;
            // The port that the daemon has chosen.
            let local =
                lock(&id.state.inner).ids.first().and_then(|(connection, _)| connection.addresses().ok());
            if let Some((Some(local), _)) = local {
                id.head.src.set(local);
            }
            inner.phase = Phase::Opening(Box::new(stream));
        }
        match self.established(limit) {
            Err(libc::EAGAIN) => Err(libc::EINPROGRESS),
            result => result,
        }
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    /// The connection could not be made, or the time is over (EAGAIN).
    pub(super) fn established(&self, limit: Limit) -> Result<(), c_int> {
        self.wait(limit, |inner| match inner.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Failed if inner.error != 0 => Err(std::mem::take(&mut inner.error)),
            // Another thread has the error.
            Phase::Failed => Err(libc::ENOTCONN),
            _ => Ok(Some(())),
        })
    }

    /// Ends the phase in which the connection opens, if its event has come.
    fn open(&self, inner: &mut Inner) {
        let Some(entry) = self.connection.pop() else { return };
        let Phase::Opening(mut stream) = std::mem::replace(&mut inner.phase, Phase::Failed) else { return };
        let result = match entry.kind {
            // The reply to this side's request, which the acceptor does not have.
            ESTABLISHED if entry.private_data.is_empty() => Ok(()),
            ESTABLISHED => {
                ConnData::decode(&entry.private_data).ok_or(libc::EPROTO).and_then(|peer| stream.open(&peer))
            }
            REJECTED => Err(libc::ECONNREFUSED),
            _ if entry.status == 0 => Err(libc::ECONNRESET),
            _ => Err(entry.status.saturating_abs()),
        };
        match result {
            Ok(()) => {
                stream.established();
                inner.phase = Phase::Open(stream);
            }
            Err(error) => inner.error = error,
        }
        self.sleepers.wake();
    }

    /// Takes what has come: events and completions. Wakes the other threads if they may have waited for it.
    pub(super) fn progress(&self, inner: &mut Inner) {
        if matches!(inner.phase, Phase::Opening(_)) {
            self.open(inner);
        }
        if let Phase::Open(stream) = &mut inner.phase {
            stream.completions.take_event();
            if stream.advance() {
                self.sleepers.wake();
            }
        }
    }

    /// Calls `attempt` with all that has come. If it returns nothing and the thread is to sleep, what comes later wakes
    /// the thread.
    pub(super) fn attempt<T>(
        &self,
        sleeps: bool,
        attempt: &mut impl FnMut(&mut Inner) -> Result<Option<T>, c_int>,
    ) -> Result<Option<T>, c_int> {
        let mut inner = lock(&self.inner);
        loop {
            self.progress(&mut inner);
            if let Some(done) = attempt(&mut inner)? {
                return Ok(Some(done));
            }
            let is_armed = match &mut inner.phase {
                Phase::Open(stream) if sleeps => stream.completions.arm(),
                _ => true,
            };
            if is_armed {
                return Ok(None);
            }
        }
    }

    /// Calls `attempt` whenever something has come, until it returns something.
    ///
    /// # Errors
    /// That of `attempt`; EAGAIN once the time is over; EINTR if a signal has ended the wait.
    pub(super) fn wait<T>(
        &self,
        limit: Limit,
        mut attempt: impl FnMut(&mut Inner) -> Result<Option<T>, c_int>,
    ) -> Result<T, c_int> {
        if let Some(done) = self.attempt(false, &mut attempt)? {
            return Ok(done);
        }
        if limit == Limit::Now {
            return Err(libc::EAGAIN);
        }
        let sleeper = Sleeper::own()?;
        let _asleep = self.sleepers.add(&sleeper);
        loop {
            if let Some(done) = self.attempt(true, &mut attempt)? {
                return Ok(done);
            }
            sleeper.sleep(limit)?;
        }
    }

    /// Calls `attempt` with the stream, once there is one, as [`Self::wait`] does.
    pub(super) fn until<T>(
        &self,
        limit: Limit,
        mut attempt: impl FnMut(&mut Stream) -> Result<Option<T>, c_int>,
    ) -> Result<T, c_int> {
        self.wait(limit, |inner| match &mut inner.phase {
            Phase::Opening(_) => Ok(None),
            Phase::Open(stream) => attempt(stream),
            Phase::Failed if inner.error != 0 => Err(std::mem::take(&mut inner.error)),
            Phase::New | Phase::Listening(_) | Phase::Failed => Err(libc::ENOTCONN),
        })
    }

    pub(super) fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(libc::EINVAL);
        }
        self.end(how, Limit::Never)
    }

    /// Shuts down a stream, and waits until the peer has all that was sent; or ends a listener.
    fn end(&self, how: c_int, limit: Limit) -> Result<(), c_int> {
        let message = {
            let mut inner = lock(&self.inner);
            self.progress(&mut inner);
            if matches!(inner.phase, Phase::Listening(_)) && how != libc::SHUT_WR {
                self.end_listener(inner);
                return Ok(());
            }
            let Phase::Open(stream) = &mut inner.phase else { return Err(libc::ENOTCONN) };
            if !stream.connected {
                return Ok(());
            }
            let had_ended = !stream.writable;
            stream.readable &= how == libc::SHUT_WR;
            stream.writable &= how == libc::SHUT_RD;
            // A call of another thread may wait for data.
            self.sleepers.wake();
            match (stream.readable, stream.writable) {
                (_, true) => return Ok(()),
                (true, false) if had_ended => return Ok(()),
                (true, false) => Message::Shutdown,
                (false, false) => Message::Disconnect,
            }
        };
        self.until(limit, |stream| {
            Ok(if stream.connected { stream.send_end(message)?.then_some(()) } else { Some(()) })
        })?;
        self.until(limit, |stream| Ok((!stream.connected || stream.is_idle()).then_some(())))
    }

    /// Closes the socket. What was sent still reaches the peer, unless the program wants a reset or the time is over.
    pub(super) fn close(&self) {
        let (linger, is_listener) = {
            let inner = lock(&self.inner);
            (inner.options.linger, matches!(inner.phase, Phase::Listening(_)))
        };
        if linger == Some(Duration::ZERO) && !is_listener {
            return;
        }
        let _ = self.end(libc::SHUT_RDWR, linger.map_or(Limit::Never, Limit::after));
        let inner = lock(&self.inner);
        if let (Phase::Open(_), Ok(id)) = (&inner.phase, inner.endpoint.id()) {
            let _ = cm_calls::disconnect(id);
            id.state.settle();
        }
    }
}
