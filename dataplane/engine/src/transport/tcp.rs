//! TCP as the engine uses it: [`Transport`]. Our [`Stack`] is one implementation.

use std::net::{IpAddr, SocketAddr};

use tcp_stack::{
    Buf, BufPool, ConnId, ConnInfo, ConnOptions, ConnectError, Event, EvictionPolicy, Instant, ListenError,
    ListenOptions, ListenScope, ListenerId, RxFrame, SendError, Stack, TxFrame,
};

/// TCP connections below MPA. The engine owns one transport, and calls it for one connection at a time.
///
/// A method without a provided body is TCP; those with one are what a transport does that has frames and packet buffers
/// of its own. A transport over sockets keeps the bodies, and reports neither [`Event::OutOfOrder`],
/// [`Event::Reclaim`] nor [`Event::Urgent`].
pub trait Transport {
    /// Memory of received bytes, and of a segment to send.
    type Buf: Buf;

    /// True if [`Self::append`] takes a segment of any length: no packet buffer is used then.
    const STAGES: bool = false;

    /// True if bytes are read from the peers during a poll of the engine: they may answer to what programs have posted
    /// since the beginning of the poll.
    const READS_IN_POLL: bool = false;

    /// Returns the number of connections that there may be at the same time.
    fn connections_max(&self) -> u32;

    /// Returns the largest receive window of a connection, bytes.
    fn receive_window_max(&self) -> usize;

    /// Takes what has been received, from `frames` if the transport has frames. Events tell what has come.
    fn receive(&mut self, now: Instant, frames: &mut impl Iterator<Item = RxFrame<Self::Buf>>);

    /// Sends what may be sent, at most `max` frames through `out` if the transport has frames. Returns the number of
    /// frames.
    fn transmit<P: BufPool<Buf = Self::Buf>>(
        &mut self,
        now: Instant,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<Self::Buf>),
        max: usize,
    ) -> usize;

    /// Returns the oldest event, if any.
    fn poll_event(&mut self) -> Option<Event<Self::Buf>>;

    /// Runs the timers that have expired.
    fn handle_timeouts(&mut self, now: Instant);

    /// Returns the time of the next timer.
    fn next_deadline(&self) -> Option<Instant>;

    /// Returns true if [`Self::transmit`] would send something now.
    fn has_output(&self) -> bool;

    /// Accepts connections to a port at some addresses.
    ///
    /// # Errors
    /// The port is taken, or there are too many listeners.
    fn listen_at(
        &mut self,
        at: (ListenScope, u16),
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError>;

    /// Ends a listener; its connections stay. Returns its port.
    fn unlisten(&mut self, listener: ListenerId) -> Option<u16>;

    /// Opens a connection from a local address and port, each of which may be left open (`None`, 0). A port is used
    /// only if `claim` returns true for it.
    ///
    /// # Errors
    /// There is no way to the peer, no free port, or no room.
    fn connect_from(
        &mut self,
        now: Instant,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        options: ConnOptions,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Result<ConnId, ConnectError>;

    /// Looks for the next hop to a peer. Returns whether its link address is known; if not, it is being asked for.
    ///
    /// # Errors
    /// There is no way to the peer.
    fn resolve_neighbor(&mut self, now: Instant, remote: IpAddr) -> Result<bool, ConnectError>;

    /// Returns the local address and port that a connection to the peer would have now.
    fn free_end(
        &mut self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        is_free: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr>;

    /// Sends a FIN behind what is queued.
    fn close(&mut self, now: Instant, conn: ConnId);

    /// Resets a connection at once.
    fn abort(&mut self, now: Instant, conn: ConnId);

    /// Returns the state of a connection.
    fn info(&self, conn: ConnId) -> Option<ConnInfo>;

    /// Returns true if an address is one of this host's.
    fn is_local(&self, address: IpAddr) -> bool;

    /// Returns the largest segment, bytes: the effective maximum segment size, by which MPA cuts FPDUs (RFC 5044 §4.5).
    fn emss(&self, conn: ConnId) -> usize;

    /// Returns the bytes that the last queued segment has room for, of [`Self::append`]; those of a whole one if they
    /// are few.
    fn segment_rest(&self, conn: ConnId) -> usize {
        self.emss(conn)
    }

    /// Returns the bytes that the send queue has room for.
    fn send_capacity(&self, conn: ConnId) -> usize;

    /// Queues the payload of one segment.
    ///
    /// # Errors
    /// The queue is full, the segment is too long, or the connection is closing. The error has the segment.
    fn send(&mut self, now: Instant, conn: ConnId, payload: Self::Buf) -> Result<(), SendError<Self::Buf>>;

    /// Has `build` write `len` bytes behind the last queued segment, if that has room for them and has not been sent.
    fn append(&mut self, conn: ConnId, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Asks for [`Event::Writable`] once the send queue has room for a segment.
    fn notify_writable(&mut self, conn: ConnId);

    /// Counts received bytes as read: the receive window opens by them.
    fn consumed(&mut self, conn: ConnId, bytes: usize);

    /// Sets the traffic class of a connection's packets.
    fn set_traffic_class(&mut self, conn: ConnId, class: u8);

    /// Sets the traffic class of the connections that a listener accepts from now on.
    fn set_listen_traffic_class(&mut self, listener: ListenerId, class: u8);

    /// Returns the other end of a connection between two addresses of this host, if this transport has it.
    fn other_end(&self, _conn: ConnId) -> Option<ConnId> {
        None
    }

    /// Returns true if everything that `from` has sent to `to`, its other end, has been received and read.
    fn is_consumed(&self, _from: ConnId, _to: ConnId) -> bool {
        false
    }

    /// Returns the congestion window, bytes: how much leaves before acknowledgments come.
    fn cwnd(&self, conn: ConnId) -> usize {
        self.send_capacity(conn)
    }

    /// Returns true if segments wait that can be sent at once.
    fn may_send_queued(&self, _conn: ConnId) -> bool {
        false
    }

    /// Returns the longest payload that [`Self::send`] takes, bytes.
    fn payload_max(&self, conn: ConnId) -> usize {
        self.emss(conn)
    }

    /// Passes what has come out of order to `takes`, with its stream offset. What that takes is not delivered again.
    fn offer_out_of_order(&mut self, _conn: ConnId, _takes: &mut dyn FnMut(u64, &[u8]) -> bool) {}

    /// Accounts received packet buffers to a connection that keeps them. Returns false if it must keep none.
    fn retain(&mut self, _conn: ConnId, _buffers: u32) -> bool {
        true
    }

    /// Returns true if few packet buffers are free.
    fn pool_is_short(&self) -> bool {
        false
    }

    /// Says when a connection may be reset for a new one.
    fn set_eviction_policy(&mut self, _conn: ConnId, _when: EvictionPolicy) {}
}

impl<B: Buf> Transport for Stack<B> {
    type Buf = B;

    fn connections_max(&self) -> u32 {
        self.config().connections_max
    }

    fn receive_window_max(&self) -> usize {
        self.config().receive_window_bytes as usize
    }

    #[inline]
    fn receive(&mut self, now: Instant, frames: &mut impl Iterator<Item = RxFrame<B>>) {
        Self::handle_frames(self, now, frames)
    }

    #[inline]
    fn transmit<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        pool: &mut P,
        out: &mut impl FnMut(TxFrame<B>),
        max: usize,
    ) -> usize {
        Self::poll_transmit(self, now, pool, out, max)
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event<B>> {
        Self::poll_event(self)
    }

    #[inline]
    fn handle_timeouts(&mut self, now: Instant) {
        Self::handle_timeouts(self, now)
    }

    #[inline]
    fn next_deadline(&self) -> Option<Instant> {
        Self::next_deadline(self)
    }

    #[inline]
    fn has_output(&self) -> bool {
        Self::has_output(self)
    }

    #[inline]
    fn listen_at(
        &mut self,
        at: (ListenScope, u16),
        options: ListenOptions,
    ) -> Result<ListenerId, ListenError> {
        Self::listen_at(self, at, options)
    }

    #[inline]
    fn unlisten(&mut self, listener: ListenerId) -> Option<u16> {
        Self::unlisten(self, listener)
    }

    #[inline]
    fn connect_from(
        &mut self,
        now: Instant,
        local: (Option<IpAddr>, u16),
        remote: SocketAddr,
        options: ConnOptions,
        claim: &mut dyn FnMut(u16) -> bool,
    ) -> Result<ConnId, ConnectError> {
        Self::connect_from(self, now, local, remote, options, claim)
    }

    #[inline]
    fn resolve_neighbor(&mut self, now: Instant, remote: IpAddr) -> Result<bool, ConnectError> {
        Self::resolve_neighbor(self, now, remote)
    }

    #[inline]
    fn free_end(
        &mut self,
        local: Option<IpAddr>,
        remote: SocketAddr,
        is_free: &mut dyn FnMut(u16) -> bool,
    ) -> Option<SocketAddr> {
        Self::free_end(self, local, remote, is_free)
    }

    #[inline]
    fn close(&mut self, now: Instant, conn: ConnId) {
        Self::close(self, now, conn)
    }

    #[inline]
    fn abort(&mut self, now: Instant, conn: ConnId) {
        Self::abort(self, now, conn)
    }

    #[inline]
    fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        Self::info(self, conn)
    }

    #[inline]
    fn is_local(&self, address: IpAddr) -> bool {
        Self::is_local(self, address)
    }

    #[inline]
    fn emss(&self, conn: ConnId) -> usize {
        Self::emss(self, conn)
    }

    #[inline]
    fn send_capacity(&self, conn: ConnId) -> usize {
        Self::send_capacity(self, conn)
    }

    #[inline]
    fn send(&mut self, now: Instant, conn: ConnId, payload: B) -> Result<(), SendError<B>> {
        Self::send(self, now, conn, payload)
    }

    #[inline]
    fn append(&mut self, conn: ConnId, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        Self::append(self, conn, len, build)
    }

    #[inline]
    fn notify_writable(&mut self, conn: ConnId) {
        Self::notify_writable(self, conn)
    }

    #[inline]
    fn consumed(&mut self, conn: ConnId, bytes: usize) {
        Self::consumed(self, conn, bytes)
    }

    #[inline]
    fn set_traffic_class(&mut self, conn: ConnId, class: u8) {
        Self::set_traffic_class(self, conn, class)
    }

    #[inline]
    fn set_listen_traffic_class(&mut self, listener: ListenerId, class: u8) {
        Self::set_listen_traffic_class(self, listener, class)
    }

    #[inline]
    fn other_end(&self, conn: ConnId) -> Option<ConnId> {
        Self::other_end(self, conn)
    }

    #[inline]
    fn is_consumed(&self, from: ConnId, to: ConnId) -> bool {
        Self::is_consumed(self, from, to)
    }

    #[inline]
    fn cwnd(&self, conn: ConnId) -> usize {
        Self::cwnd(self, conn)
    }

    #[inline]
    fn may_send_queued(&self, conn: ConnId) -> bool {
        Self::may_send_queued(self, conn)
    }

    #[inline]
    fn payload_max(&self, conn: ConnId) -> usize {
        Self::payload_max(self, conn)
    }

    #[inline]
    fn offer_out_of_order(&mut self, conn: ConnId, takes: &mut dyn FnMut(u64, &[u8]) -> bool) {
        Self::offer_out_of_order(self, conn, takes)
    }

    #[inline]
    fn retain(&mut self, conn: ConnId, buffers: u32) -> bool {
        Self::retain(self, conn, buffers)
    }

    #[inline]
    fn pool_is_short(&self) -> bool {
        Self::pool_is_short(self)
    }

    #[inline]
    fn set_eviction_policy(&mut self, conn: ConnId, when: EvictionPolicy) {
        Self::set_eviction_policy(self, conn, when)
    }
}
