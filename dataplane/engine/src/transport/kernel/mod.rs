//! TCP of the kernel: non-blocking sockets and one epoll instance. By this [`Transport`], any process is an RDMA peer:
//! without DPDK, root, or an address of its own.
//!
//! Each read has one buffer, which the engine parses in place. If bytes of an earlier read are kept, the next read has
//! a new buffer. Bytes to send are staged: RDMA Read Responses come from memory that the program may change while the
//! kernel copies, after their CRC was computed. They leave with one call per connection and poll.

mod accept;
mod buf;
mod conn;
mod connecting;
mod listen;
mod look;
mod segments;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, connect_unspec, recv};
use socket2::Socket;
use tcp_stack::{
    Buf as _, BufPool, CloseReason, ConnId, ConnInfo, ConnOptions, ConnectError, Event, Instant, ListenError,
    ListenOptions, ListenScope, ListenerId, RxFrame, Segment, SendError, TxFrame,
};

use super::Transport;
pub use buf::{Chunk, Chunks};
use buf::{READ_BYTES, ReadBuffers};
use conn::{Conn, Flushed, Stage, reason};
pub use listen::Listening;
use segments::Segments;
use socket::{emss_of, is_local, listening, number, set_options, set_traffic_class, source, spare, stream};

/// Reads of a connection before the next one has its turn.
const READS_PER_TURN: u8 = 4;
/// Reads of all connections per poll.
const READS_PER_POLL: u32 = 64;
/// Receive buffer of a connection within this machine, as the option takes it, bytes: a longer queue leaves the
/// processor's cache. Elsewhere the kernel tunes the buffer.
const RECEIVE_BUFFER_HERE: usize = 256 << 10;
/// Time after which the kernel is asked for the segment size again: that of the loopback interface grows.
const EMSS_AGE: Duration = Duration::from_millis(64);
/// Bytes that are passed to the kernel although more may come at once.
const FLUSH_BYTES: usize = 64 << 10;
/// Bit of a token that names a listener. The other tokens name connections.
const LISTENER: u64 = 1 << 63;

/// Limits of a [`KernelTcp`].
#[derive(Clone, Copy, Debug)]
pub struct KernelTcpConfig {
    /// Most connections at the same time. Others wait in the kernel.
    pub connections_max: u32,
    /// Most listeners at the same time.
    pub listeners_max: u32,
    /// Longest time until a connection to a peer stands. Without one, the kernel's holds.
    pub connect_timeout: Option<Duration>,
}

#[derive(Debug)]
struct Listener {
    socket: Socket,
    id: ListenerId,
    port: u16,
    options: ConnOptions,
    /// True while connections may wait in the kernel.
    has_waiting: bool,
}

/// The kernel's TCP, as a [`Transport`].
#[derive(Debug)]
pub struct KernelTcp {
    epoll: OwnedFd,
    config: KernelTcpConfig,
    conns: Vec<Option<Conn>>,
    /// Generation of each place of `conns`.
    generations: Vec<u32>,
    free: Vec<u32>,
    listeners: Vec<Option<Listener>>,
    listeners_made: NonZeroU32,
    events: VecDeque<Event<Chunk>>,
    /// Connections that may have something to read, each at most once.
    readable: VecDeque<ConnId>,
    /// Times by which connections to peers are to stand, the earliest first. Some of those do, or have ended.
    connecting: VecDeque<(Instant, ConnId)>,
    /// Connections that have something to send, and room for it in the kernel, each at most once.
    unsent: VecDeque<ConnId>,
    reads_left: u32,
    /// False if [`Transport::receive`] leaves the events of sockets to a later one.
    looks: bool,
    /// True if the kernel may have more events of sockets than it has reported.
    has_more: bool,
    /// Number of events of sockets.
    found: u64,
    buffers: ReadBuffers,
    /// Descriptor that is given up for a moment to reset a connection for which there is none: its listener would stay
    /// readable.
    spare: Option<OwnedFd>,
    now: Instant,
}

impl KernelTcp {
    /// Creates the epoll instance.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new(config: KernelTcpConfig) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            config,
            conns: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            listeners_made: NonZeroU32::MIN,
            events: VecDeque::new(),
            readable: VecDeque::new(),
            connecting: VecDeque::new(),
            unsent: VecDeque::new(),
            reads_left: 0,
            looks: true,
            has_more: false,
            found: 0,
            buffers: ReadBuffers::default(),
            spare: Some(spare()?),
            now: Instant::ZERO,
        })
    }

    /// Borrows the epoll instance: it is readable when [`Transport::receive`] has something to do.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Closes the descriptors of all sockets, and nothing else: for a child of the process, whose parent goes on.
    pub fn give_up_sockets(&mut self) {
        self.conns.clear();
        self.listeners.clear();
        self.spare = None;
    }

    /// From here on, [`Transport::receive`] asks the kernel for events of sockets, or leaves them where they are. At
    /// first it asks. It asks in any case while the kernel may have more than it has reported.
    pub const fn set_looks(&mut self, looks: bool) {
        self.looks = looks;
    }

    /// Returns the number of events of sockets so far.
    pub const fn events_found(&self) -> u64 {
        self.found
    }

    fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.index() as usize)?.as_ref().filter(|conn| conn.id == id)
    }

    fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index() as usize)?.as_mut().filter(|conn| conn.id == id)
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && self.conns.len() >= self.config.connections_max as usize
    }

    /// Gives a socket a place. Returns `None` if there is none.
    fn insert(
        &mut self,
        socket: Socket,
        stage: Stage,
        ends: (SocketAddr, SocketAddr),
        listener: Option<ListenerId>,
    ) -> Option<ConnId> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.generations.push(0);
            u32::try_from(self.conns.len()).unwrap_or(u32::MAX).saturating_sub(1)
        });
        let generation = self.generations.get_mut(index as usize)?;
        *generation = generation.wrapping_add(1) & (u32::MAX >> 1);
        let id = ConnId::new(index, *generation);
        let interest =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(*generation) << 32 | u64::from(index));
        if epoll::add(&self.epoll, &socket, data, interest).is_err() {
            self.free.push(index);
            return None;
        }
        let conn = Conn::new(socket, (id, stage), ends, listener, self.now);
        *self.conns.get_mut(index as usize)? = Some(conn);
        Some(id)
    }

    /// Closes a connection's socket, and reports its end.
    fn end(&mut self, id: ConnId, reason: CloseReason) {
        let Some(place) = self.conns.get_mut(id.index() as usize) else { return };
        let Some(conn) = place.take_if(|conn| conn.id == id) else { return };
        if reason == CloseReason::Aborted {
            // The kernel sends a reset, also if a child of the process has the socket. Fails only on one that has
            // ended.
            let _ = connect_unspec(&conn.socket);
        }
        // A child of the process may still have the socket, which would stay in the set.
        let _ = epoll::delete(&self.epoll, &conn.socket);
        self.events.push_back(Event::Closed { conn: id, reason });
    }

    fn queue_readable(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        if conn.may_read
            && conn.unread < READ_BYTES
            && !conn.peer_closed
            && !std::mem::replace(&mut conn.is_readable, true)
        {
            self.readable.push_back(id);
        }
    }

    fn queue_unsent(&mut self, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        let has_output = conn.waiting() > 0 || conn.is_closing && !conn.fin_sent;
        let may_send = conn.stage == Stage::Open && !conn.is_blocked && conn.ended.is_none();
        if has_output && may_send && !std::mem::replace(&mut conn.is_unsent, true) {
            self.unsent.push_back(id);
        }
    }

    /// Learns the segment size of an open connection.
    fn opened(&mut self, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.get_mut(id) else { return };
        conn.stage = Stage::Open;
        (conn.emss, conn.emss_at) = (emss_of(&conn.socket), now);
        if conn.remote.ip() == conn.local.ip() || conn.remote.ip().is_loopback() {
            // A kernel that refuses tunes it.
            let _ = conn.socket.set_recv_buffer_size(RECEIVE_BUFFER_HERE);
        } else {
            conn.segments = Some(Segments::default());
        }
    }

    /// Ends a connection to which nothing can be sent any more, once all is read that the peer has sent before: its
    /// Terminate tells why.
    fn end_after_reads(&mut self, id: ConnId, reason: CloseReason) {
        let Some(conn) = self.get_mut(id) else { return };
        (conn.ended, conn.may_read, conn.has_end) = (Some(reason), true, true);
        self.queue_readable(id);
        if self.get(id).is_some_and(|conn| !conn.is_readable) {
            self.end(id, reason);
        }
    }

    /// Reads once from a connection.
    fn read(&mut self, id: ConnId) {
        let Self { conns, buffers, now, .. } = self;
        let buffer = buffers.free();
        let Some(Some(conn)) = conns.get_mut(id.index() as usize) else { return };
        let Some(bytes) = Arc::get_mut(buffer) else { return };
        match recv(conn.socket.as_fd(), bytes, RecvFlags::DONTWAIT).map(|(_, len)| len) {
            Ok(0) | Err(Errno::AGAIN) if let Some(reason) = conn.ended => self.end(id, reason),
            Ok(0) => {
                (conn.peer_closed, conn.may_read) = (true, false);
                let has_ended = conn.fin_sent;
                self.events.push_back(Event::PeerClosed { conn: id });
                if has_ended {
                    self.end(id, CloseReason::Normal);
                }
            }
            Ok(len) => {
                let offset = conn.received;
                conn.received = offset.saturating_add(len as u64);
                conn.unread = conn.unread.saturating_add(len);
                conn.heard_at = *now;
                conn.turns = conn.turns.saturating_add(1);
                // A read that does not fill the buffer has taken all: what comes later, a FIN too, is another event.
                conn.may_read &= len == READ_BYTES || conn.has_end;
                let is_last = conn.turns >= READS_PER_TURN;
                if is_last || !conn.may_read {
                    conn.turns = 0;
                }
                let chunk = Chunk::first(buffer, len);
                let end = u32::try_from(chunk.bytes().len()).unwrap_or(0);
                let segment = Segment::new(Some(chunk), 0..end);
                self.events.push_back(Event::Data { conn: id, offset, segment });
                self.queue_readable(id);
                if !is_last && self.readable.back() == Some(&id) {
                    self.readable.rotate_right(1);
                }
            }
            Err(Errno::INTR) => self.queue_readable(id),
            Err(Errno::AGAIN) => (conn.may_read, conn.turns) = (false, 0),
            Err(error) => {
                let reason = conn.ended.unwrap_or_else(|| reason(error));
                self.end(id, reason);
            }
        }
    }

    /// Sends what waits on a connection.
    fn flush(&mut self, id: ConnId) {
        let now = self.now;
        let Some(conn) = self.get_mut(id) else { return };
        if now.saturating_since(conn.emss_at) >= EMSS_AGE {
            conn.emss_at = now;
            let emss = emss_of(&conn.socket);
            if std::mem::replace(&mut conn.emss, emss) != emss {
                self.events.push_back(Event::EmssChanged { conn: id, emss });
            }
        }
        let Some(conn) = self.get_mut(id) else { return };
        let flushed = conn.flush();
        conn.is_blocked = flushed == Flushed::Blocked;
        let has_ended = conn.fin_sent && conn.peer_closed;
        if conn.wants_room && conn.room() >= conn.emss.max(1) {
            conn.wants_room = false;
            self.events.push_back(Event::Writable { conn: id });
        }
        match flushed {
            Flushed::Ended(reason) => self.end_after_reads(id, reason),
            Flushed::All if has_ended => self.end(id, CloseReason::Normal),
            Flushed::All | Flushed::Blocked => {}
        }
    }
}

impl Transport for KernelTcp {
    type Buf = Chunk;

    const STAGES: bool = true;
    const READS_IN_POLL: bool = true;

    fn connections_max(&self) -> u32 {
        self.config.connections_max
    }

    fn receive_window_max(&self) -> usize {
        READ_BYTES
    }

    fn receive(&mut self, now: Instant, _: &mut impl Iterator<Item = RxFrame<Chunk>>) {
        (self.now, self.reads_left) = (now, READS_PER_POLL);
        if self.looks || self.has_more {
            self.look();
        }
        for at in 0..self.listeners.len() {
            if self
                .listeners
                .get(at)
                .is_some_and(|place| place.as_ref().is_some_and(|listener| listener.has_waiting))
            {
                self.accept(at);
            }
        }
    }

    fn transmit<P: BufPool<Buf = Chunk>>(
        &mut self,
        now: Instant,
        _: &mut P,
        _: &mut impl FnMut(TxFrame<Chunk>),
        max: usize,
    ) -> usize {
        self.now = now;
        for _ in 0..self.unsent.len() {
            let Some(id) = self.unsent.pop_front() else { break };
            if let Some(conn) = self.get_mut(id) {
                if max == 0 && conn.waiting() < FLUSH_BYTES && !conn.is_closing {
                    self.unsent.push_back(id);
                    continue;
                }
                conn.is_unsent = false;
                self.flush(id);
            }
        }
        0
    }

    fn poll_event(&mut self) -> Option<Event<Chunk>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                if let Event::Closed { conn, .. } = &event {
                    // Not before: the engine still has the former connection in its place.
                    self.free.push(conn.index());
                }
                return Some(event);
            }
            self.reads_left = self.reads_left.checked_sub(1)?;
            let id = self.readable.pop_front()?;
            if let Some(conn) = self.get_mut(id) {
                conn.is_readable = false;
                self.read(id);
            }
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        self.end_overdue(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_overdue()
    }

    fn has_output(&self) -> bool {
        let waits = |place: &Option<Listener>| place.as_ref().is_some_and(|listener| listener.has_waiting);
        self.has_more
            || !self.events.is_empty()
            || !self.readable.is_empty()
            || !self.unsent.is_empty()
            || !self.is_full() && self.listeners.iter().any(waits)
    }

    fn listen_at(
        &mut self,
        (scope, port): (ListenScope, u16),
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        if port == 0 {
            return Err(ListenError::PortZero);
        }
        let socket = listening(scope, port, &options).map_err(|_| ListenError::InUse)?;
        self.listen_on(Listening { socket, port }, options)
    }

    fn unlisten(&mut self, id: ListenerId) -> Option<u16> {
        let place = self.listeners.get_mut(id.index() as usize)?;
        let listener = place.take_if(|listener| listener.id == id)?;
        // As for connections.
        let _ = epoll::delete(&self.epoll, &listener.socket);
        let _ = listener.socket.shutdown(std::net::Shutdown::Both);
        Some(listener.port)
    }

    fn connect_from(
        &mut self,
        now: Instant,
        (local, port): (Option<IpAddr>, u16),
        remote: SocketAddr,
        options: ConnOptions,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Result<ConnId, ConnectError> {
        self.now = now;
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return Err(ConnectError::BadAddress);
        }
        if self.is_full() {
            return Err(ConnectError::TooMany);
        }
        let socket = stream(remote.ip()).map_err(|_| ConnectError::TooMany)?;
        let any = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let bound = SocketAddr::new(local.unwrap_or(any), port);
        if local.is_some() || port != 0 {
            let refused = |error: io::Error| match number(&error) {
                Errno::ADDRINUSE | Errno::ACCESS => ConnectError::NoPort,
                _ => ConnectError::NoRoute,
            };
            socket.bind(&bound.into()).map_err(refused)?;
        }
        set_options(&socket, &options, remote.ip());
        match socket.connect(&remote.into()) {
            Ok(()) => {}
            Err(error) if number(&error) == Errno::INPROGRESS => {}
            Err(error) if number(&error) == Errno::ADDRNOTAVAIL => return Err(ConnectError::NoPort),
            Err(_) => return Err(ConnectError::NoRoute),
        }
        let local = socket.local_addr().ok().and_then(|local| local.as_socket());
        let local = local.ok_or(ConnectError::NoRoute)?;
        if !claim(local.port()) {
            return Err(ConnectError::NoPort);
        }
        let id =
            self.insert(socket, Stage::Connecting, (local, remote), None).ok_or(ConnectError::TooMany)?;
        self.limit_connect(now, id);
        Ok(id)
    }

    fn resolve_neighbor(&mut self, _: Instant, remote: IpAddr) -> Result<bool, ConnectError> {
        source(None, SocketAddr::new(remote, 9)).map(|_| true).ok_or(ConnectError::NoRoute)
    }

    fn free_end(
        &mut self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        is_free: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr> {
        let ip = source(local, remote)?;
        // The kernel gives the port up again, and hands out others before it.
        let socket = stream(ip).ok()?;
        socket.bind(&SocketAddr::new(ip, 0).into()).ok()?;
        let end = socket.local_addr().ok()?.as_socket()?;
        is_free(end.port()).then_some(end)
    }

    fn close(&mut self, _: Instant, id: ConnId) {
        let Some(conn) = self.get_mut(id) else { return };
        conn.is_closing = true;
        if conn.stage == Stage::Connecting {
            return self.end(id, CloseReason::Aborted);
        }
        self.queue_unsent(id);
    }

    fn abort(&mut self, _: Instant, id: ConnId) {
        self.end(id, CloseReason::Aborted);
    }

    fn info(&self, id: ConnId) -> Option<ConnInfo> {
        let conn = self.get(id)?;
        Some(ConnInfo {
            listener: conn.listener,
            heard_at: conn.heard_at,
            emss: u16::try_from(conn.emss).unwrap_or(u16::MAX),
            send_queue_bytes: u32::try_from(conn.waiting()).unwrap_or(u32::MAX),
            unread_bytes: u32::try_from(conn.unread).unwrap_or(u32::MAX),
            bytes_in: conn.received,
            bytes_acked: conn.sent,
            ..ConnInfo::of(conn.state(), (conn.local, conn.remote), conn.opened_at)
        })
    }

    fn is_local(&self, address: IpAddr) -> bool {
        !address.is_unspecified() && is_local(address)
    }

    fn emss(&self, id: ConnId) -> usize {
        self.get(id).map_or(0, |conn| conn.emss)
    }

    fn segment_rest(&self, id: ConnId) -> usize {
        self.get(id).map_or(0, Conn::segment_rest)
    }

    fn send_capacity(&self, id: ConnId) -> usize {
        self.get(id).map_or(0, Conn::room)
    }

    fn send(&mut self, _: Instant, id: ConnId, payload: Chunk) -> Result<(), SendError<Chunk>> {
        let Some(conn) = self.get(id).filter(|conn| conn.stage == Stage::Open && !conn.is_closing) else {
            return Err(SendError::NotConnected(payload));
        };
        if payload.bytes().len() > conn.room() {
            return Err(SendError::Full(payload));
        }
        let bytes = payload.bytes();
        self.append(id, bytes.len(), &mut |out| out.copy_from_slice(bytes));
        Ok(())
    }

    fn append(&mut self, id: ConnId, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let staged = self.get_mut(id).is_some_and(|conn| conn.stage(len, build));
        if staged {
            self.queue_unsent(id);
        }
        staged
    }

    fn notify_writable(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id) {
            conn.wants_room = true;
        }
        self.queue_unsent(id);
    }

    fn consumed(&mut self, id: ConnId, bytes: usize) {
        if let Some(conn) = self.get_mut(id) {
            conn.unread = conn.unread.saturating_sub(bytes);
        }
        self.queue_readable(id);
    }

    fn set_traffic_class(&mut self, id: ConnId, class: u8) {
        if let Some(conn) = self.get(id) {
            set_traffic_class(&conn.socket, conn.remote.ip(), class);
        }
    }

    fn set_listen_traffic_class(&mut self, id: ListenerId, class: u8) {
        if let Some(Some(listener)) = self.listeners.get_mut(id.index() as usize) {
            listener.options.traffic_class = class;
        }
    }

    /// The read buffer is free for the next read only if nothing is kept of it.
    fn retain(&mut self, _: ConnId, buffers: u32) -> bool {
        buffers == 0
    }
}
