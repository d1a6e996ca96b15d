//! A socket: its phases from `rsocket` to `rclose`, and the waits of its calls.

use std::ffi::c_int;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use iwarp_verbs::ConnParam;

use super::sizes::Sizes;
use super::stream::Stream;
use super::wire::{ConnData, Message};
use crate::cm::{self, CONNECT_REQUEST, ESTABLISHED, Entry, EventChannel, Id, REJECTED};
use crate::cm_calls::{self, peer_to_peer, rdma_create_event_channel};
use crate::context::lock;
use crate::queue::Queue;

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
    connection: Arc<Queue<Entry>>,
    fd: c_int,
    /// Taken by the thread that takes events of the completion queue.
    wait: Mutex<()>,
    /// True while the completion queue is armed, or its event waits.
    armed: AtomicBool,
    /// Number of times that completions have come.
    rounds: AtomicU64,
}

/// Variable state of a socket.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) phase: Phase,
    pub(super) sizes: Sizes,
    /// Flags of the descriptor (`F_GETFL`).
    pub(super) flags: c_int,
    pub(super) descriptor_flags: c_int,
    /// Options that are on, by level and name.
    pub(super) options: std::collections::BTreeMap<(c_int, c_int), c_int>,
    /// Error of the last failed connection (`SO_ERROR`).
    pub(super) error: c_int,
    pub(super) endpoint: Endpoint,
}

/// Phase of a socket. A stream is dropped before its endpoint.
#[derive(Debug)]
pub(super) enum Phase {
    New,
    Listening,
    /// The connection is requested or accepted, and not established yet.
    Opening(Box<Stream>),
    Open(Box<Stream>),
    Failed,
}

/// Id of the socket, and its event channel.
#[derive(Debug)]
pub(super) struct Endpoint {
    id: Option<Box<Id>>,
    _channel: Box<EventChannel>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            cm::destroy(id);
        }
    }
}

impl Endpoint {
    pub(super) fn id(&self) -> Result<&Id, c_int> {
        self.id.as_deref().ok_or(libc::EBADF)
    }
}

/// Returns the error number of a failed wait.
fn waited(error: &std::io::Error) -> c_int {
    match error.kind() {
        ErrorKind::WouldBlock => libc::EAGAIN,
        _ => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

fn new_channel() -> Result<Box<EventChannel>, c_int> {
    rdma_create_event_channel().ok_or_else(|| errno::errno().0)
}

impl Socket {
    pub(super) fn new() -> Result<Self, c_int> {
        let channel = new_channel()?;
        let id = Id::create(&channel, false);
        Ok(Self::with(channel, id, SIZES, Phase::New))
    }

    fn with(channel: Box<EventChannel>, id: Box<Id>, sizes: Sizes, phase: Phase) -> Self {
        let (fd, connection) = (channel.fd, Arc::clone(&channel.queue));
        let inner = Inner {
            phase,
            sizes,
            flags: libc::O_RDWR,
            descriptor_flags: 0,
            options: Default::default(),
            error: 0,
            endpoint: Endpoint { id: Some(id), _channel: channel },
        };
        Self {
            inner: Mutex::new(inner),
            connection,
            fd,
            wait: Mutex::new(()),
            armed: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        }
    }

    pub(super) const fn fd(&self) -> c_int {
        self.fd
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        lock(&self.inner).flags & libc::O_NONBLOCK != 0
    }

    pub(super) fn bind(&self, local: SocketAddr) -> Result<(), c_int> {
        let inner = lock(&self.inner);
        if !matches!(inner.phase, Phase::New) {
            return Err(libc::EINVAL);
        }
        cm_calls::bind(inner.endpoint.id()?, local)
    }

    pub(super) fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        let mut inner = lock(&self.inner);
        if matches!(inner.phase, Phase::Listening) {
            return Ok(());
        }
        if !matches!(inner.phase, Phase::New) {
            return Err(libc::EINVAL);
        }
        cm_calls::listen(inner.endpoint.id()?, backlog.max(1))?;
        inner.phase = Phase::Listening;
        Ok(())
    }

    /// Takes an event of the listener or connection.
    fn event(&self, blocking: bool) -> Result<Entry, c_int> {
        let taken = if blocking { self.connection.take() } else { self.connection.try_take() };
        taken.map_err(|error| waited(&error))
    }

    pub(super) fn has_event(&self) -> bool {
        !self.connection.is_empty()
    }

    /// Accepts the next connection of a listener.
    pub(super) fn accept(&self) -> Result<Self, c_int> {
        let (sizes, blocking) = {
            let inner = lock(&self.inner);
            if !matches!(inner.phase, Phase::Listening) {
                return Err(libc::EINVAL);
            }
            (inner.sizes, inner.flags & libc::O_NONBLOCK == 0)
        };
        loop {
            let entry = self.event(blocking)?;
            if entry.kind != CONNECT_REQUEST {
                continue;
            }
            // A peer that is no rsocket, or has gone, does not end the listener.
            if let Ok(socket) = self.accept_one(entry, sizes)
                && (!blocking || socket.established(true).is_ok())
            {
                return Ok(socket);
            }
        }
    }

    fn accept_one(&self, entry: Entry, sizes: Sizes) -> Result<Self, c_int> {
        let channel = new_channel()?;
        let (connection, shared) = entry.request.ok_or(libc::EPROTO)?;
        let id = {
            let inner = lock(&self.inner);
            cm::accepted(inner.endpoint.id()?, connection, shared, &channel)
        };
        let peer = ConnData::decode(&entry.private_data).ok_or(libc::EPROTO)?;
        let mut stream = Stream::new(&id, sizes)?;
        stream.open(&peer)?;
        cm_calls::accept_with(&id, &stream.qp, &stream.conn_data().encode())?;
        Ok(Self::with(channel, id, sizes, Phase::Opening(Box::new(stream))))
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> Result<(), c_int> {
        let blocking = {
            let mut inner = lock(&self.inner);
            match inner.phase {
                Phase::New => {}
                Phase::Opening(_) => return Err(libc::EALREADY),
                Phase::Open(_) => return Err(libc::EISCONN),
                Phase::Listening | Phase::Failed => return Err(libc::EINVAL),
            }
            let sizes = inner.sizes;
            let id = inner.endpoint.id()?;
            cm_calls::select(id, None, peer)?;
            let stream = Stream::new(id, sizes)?;
            let private_data = stream.conn_data().encode();
            let param = ConnParam {
                private_data: &private_data,
                responder_resources: 1,
                initiator_depth: 1,
                rtr: peer_to_peer(),
                ..ConnParam::default()
            };
            cm_calls::connect_with(id, &stream.qp, &param)?;
            inner.phase = Phase::Opening(Box::new(stream));
            inner.flags & libc::O_NONBLOCK == 0
        };
        match self.established(blocking) {
            Err(libc::EAGAIN) => Err(libc::EINPROGRESS),
            result => result,
        }
    }

    /// Ends the phase in which a connection opens. Waits for that, or fails with `EAGAIN`.
    pub(super) fn established(&self, blocking: bool) -> Result<(), c_int> {
        if !matches!(lock(&self.inner).phase, Phase::Opening(_)) {
            return Ok(());
        }
        let entry = self.event(blocking)?;
        let mut inner = lock(&self.inner);
        let Phase::Opening(mut stream) = std::mem::replace(&mut inner.phase, Phase::Failed) else {
            // Another thread has received the event.
            return Ok(());
        };
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
        result
    }

    /// Arms the completion queue. Returns false if it was not armed: the caller polls once more before it waits.
    pub(super) fn arm(&self, stream: &Stream) -> bool {
        let was_armed = self.armed.swap(true, Ordering::AcqRel);
        if !was_armed {
            stream.completions.cq().req_notify(false);
        }
        was_armed
    }

    /// Takes the event of the completion queue, if it has come and no other thread waits for it.
    pub(super) fn take_event(&self) {
        let Ok(_one) = self.wait.try_lock() else { return };
        let events = match &lock(&self.inner).phase {
            Phase::Open(stream) => Arc::clone(stream.completions.events()),
            _ => return,
        };
        if self.armed.load(Ordering::Acquire) && events.try_take().is_ok() {
            self.armed.store(false, Ordering::Release);
        }
    }

    /// Polls completions, and notes that some have come.
    pub(super) fn advance(&self, stream: &mut Stream) {
        if stream.advance() {
            self.rounds.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Calls `attempt` whenever completions have come, until it returns something. Without `blocking` fails with
    /// `EAGAIN` if it does not at once.
    pub(super) fn until<T>(
        &self,
        blocking: bool,
        mut attempt: impl FnMut(&mut Stream) -> Result<Option<T>, c_int>,
    ) -> Result<T, c_int> {
        self.established(blocking)?;
        loop {
            let (rounds, events) = {
                let mut inner = lock(&self.inner);
                let Phase::Open(stream) = &mut inner.phase else { return Err(libc::ENOTCONN) };
                self.advance(stream);
                if let Some(done) = attempt(stream)? {
                    // What the program has read is granted at once.
                    self.advance(stream);
                    return Ok(done);
                }
                if !blocking {
                    return Err(libc::EAGAIN);
                }
                if !self.arm(stream) {
                    continue;
                }
                (self.rounds.load(Ordering::Acquire), Arc::clone(stream.completions.events()))
            };
            let _one = lock(&self.wait);
            // Otherwise another thread has received what this one waits for.
            if self.armed.load(Ordering::Acquire) && self.rounds.load(Ordering::Acquire) == rounds {
                events.take().map_err(|error| waited(&error))?;
                self.armed.store(false, Ordering::Release);
            }
        }
    }

    pub(super) fn shutdown(&self, how: c_int) -> Result<(), c_int> {
        let message = {
            let mut inner = lock(&self.inner);
            let Phase::Open(stream) = &mut inner.phase else { return Err(libc::ENOTCONN) };
            if !stream.connected {
                return Ok(());
            }
            match how {
                libc::SHUT_RD => stream.readable = false,
                libc::SHUT_WR => stream.writable = false,
                libc::SHUT_RDWR => (stream.readable, stream.writable) = (false, false),
                _ => return Err(libc::EINVAL),
            }
            match (stream.readable, stream.writable) {
                (_, true) => return Ok(()),
                (true, false) => Message::Shutdown,
                (false, false) => Message::Disconnect,
            }
        };
        self.until(true, |stream| {
            Ok(if stream.connected { stream.send_end(message)?.then_some(()) } else { Some(()) })
        })?;
        self.until(true, |stream| Ok((!stream.connected || stream.is_idle()).then_some(())))
    }

    /// Closes the socket. What was sent still reaches the peer.
    pub(super) fn close(&self) {
        let _ = self.shutdown(libc::SHUT_RDWR);
        let inner = lock(&self.inner);
        if let (Phase::Open(_), Ok(id)) = (&inner.phase, inner.endpoint.id()) {
            let _ = cm_calls::disconnect(id);
            id.state.settle();
        }
    }
}
