//! One connection of the kernel: its socket, and the bytes that wait to be sent.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use socket2::Socket;
use tcp_stack::{CloseReason, ConnId, Instant, ListenerId, State};

use super::segments::Segments;

/// Most bytes that wait to be sent.
pub(super) const STAGED_MAX: usize = 256 << 10;
/// Bytes that the memory of bytes to send has at first.
const STAGED_MIN: usize = 16 << 10;

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The handshake of an outgoing connection.
    Connecting,
    /// Data may flow in both directions.
    Open,
}

/// Result of a call of [`Conn::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Nothing waits to be sent.
    All,
    /// The kernel has no room for the rest.
    Blocked,
    /// The connection has ended.
    Ended(CloseReason),
}

/// A connection: a socket, and the bytes that wait.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) socket: Socket,
    pub(super) id: ConnId,
    pub(super) stage: Stage,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) listener: Option<ListenerId>,
    pub(super) opened_at: Instant,
    pub(super) heard_at: Instant,
    pub(super) emss: usize,
    /// Time at which the kernel was asked for the segment size.
    pub(super) emss_at: Instant,
    /// Bytes received, and those of them that the engine has not consumed.
    pub(super) received: u64,
    pub(super) unread: usize,
    /// Reads in a row of this turn.
    pub(super) turns: u8,
    /// True if the kernel may have something that was not read.
    pub(super) may_read: bool,
    /// True once the kernel has announced the peer's end, or an error: reads go on until they report it.
    pub(super) has_end: bool,
    /// True while it is in the queue of connections to read from.
    pub(super) is_readable: bool,
    /// True while it is in the queue of connections to send from.
    pub(super) is_unsent: bool,
    /// True while the kernel has no room.
    pub(super) is_blocked: bool,
    /// True if the engine waits for room.
    pub(super) wants_room: bool,
    pub(super) peer_closed: bool,
    /// True once the engine has closed its half.
    pub(super) is_closing: bool,
    pub(super) fin_sent: bool,
    /// Reason of its end, which the kernel has reported for bytes to send: those that it has received are read first.
    pub(super) ended: Option<CloseReason>,
    /// Bytes that wait lie in `staged[first..end]`.
    staged: Vec<u8>,
    first: usize,
    end: usize,
    /// Ends of segments among them; `None` if the peer is on this machine.
    pub(super) segments: Option<Segments>,
    pub(super) sent: u64,
}

impl Conn {
    pub(super) fn new(
        socket: Socket,
        (id, stage): (ConnId, Stage),
        (local, remote): (SocketAddr, SocketAddr),
        listener: Option<ListenerId>,
        now: Instant,
    ) -> Self {
        Self {
            socket,
            id,
            stage,
            local,
            remote,
            listener,
            opened_at: now,
            heard_at: now,
            emss: 0,
            emss_at: now,
            received: 0,
            unread: 0,
            turns: 0,
            may_read: false,
            has_end: false,
            is_readable: false,
            is_unsent: false,
            is_blocked: false,
            wants_room: false,
            peer_closed: false,
            is_closing: false,
            fin_sent: false,
            ended: None,
            staged: Vec::new(),
            first: 0,
            end: 0,
            segments: None,
            sent: 0,
        }
    }

    /// Returns the number of bytes that wait to be sent.
    pub(super) const fn waiting(&self) -> usize {
        self.end.saturating_sub(self.first)
    }

    /// Returns the number of bytes that [`Self::stage`] takes.
    pub(super) fn room(&self) -> usize {
        let may_send = self.stage == Stage::Open && !self.is_closing && self.ended.is_none();
        if may_send { STAGED_MAX.saturating_sub(self.end) } else { 0 }
    }

    /// Returns the bytes that the last segment has room for; those of a whole one if they are few.
    pub(super) fn segment_rest(&self) -> usize {
        self.segments.as_ref().map_or(self.emss, |segments| segments.rest(self.emss))
    }

    /// Has `build` write `len` bytes behind those that wait. Returns false if there is no room for them.
    pub(super) fn stage(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let end = self.end.saturating_add(len);
        if end > self.staged.len() {
            let bytes = end.next_power_of_two().clamp(STAGED_MIN, STAGED_MAX);
            self.staged.resize(bytes, 0);
        }
        let Some(bytes) = self.staged.get_mut(self.end..end) else { return false };
        build(bytes);
        if let Some(segments) = &mut self.segments {
            segments.push(self.end, len, self.emss);
        }
        self.end = end;
        true
    }

    /// Passes what waits to the kernel, and then the FIN if the engine has closed.
    pub(super) fn flush(&mut self) -> Flushed {
        let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let has_more = self.waiting() > self.emss;
        if has_more && let Some(segments) = &mut self.segments {
            segments.cork(&self.socket);
        }
        while self.first < self.end {
            let end = self.segments.as_ref().and_then(Segments::first).filter(|end| *end > self.first);
            let ends_segment = self.segments.as_ref().is_some_and(|of| end.is_some() || !of.is_full());
            flags.set(SendFlags::EOR, ends_segment);
            let end = end.unwrap_or(self.end);
            let bytes = self.staged.get(self.first..end).unwrap_or_default();
            match send(self.socket.as_fd(), bytes, flags) {
                Ok(sent) => {
                    self.first = self.first.saturating_add(sent);
                    if let Some(segments) = &mut self.segments {
                        segments.sent(self.first);
                    }
                    self.sent = self.sent.saturating_add(sent as u64);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    if self.first >= STAGED_MAX / 2 {
                        self.staged.copy_within(self.first..self.end, 0);
                        if let Some(segments) = &mut self.segments {
                            segments.moved(self.first);
                        }
                        (self.first, self.end) = (0, self.waiting());
                    }
                    return Flushed::Blocked;
                }
                Err(error) => return Flushed::Ended(reason(error)),
            }
        }
        let used = std::mem::take(&mut self.end);
        self.first = 0;
        if let Some(segments) = &mut self.segments {
            segments.clear();
            segments.send_last(&self.socket);
        }
        // A connection that has calmed down gives its memory back.
        if self.staged.len() > STAGED_MIN && (self.is_closing || used <= STAGED_MIN / 2) {
            self.staged = Vec::new();
        }
        if self.is_closing && !self.fin_sent {
            self.fin_sent = true;
            if let Err(error) = self.socket.shutdown(std::net::Shutdown::Write) {
                let number = error.raw_os_error().map_or(Errno::CONNRESET, Errno::from_raw_os_error);
                return Flushed::Ended(reason(number));
            }
        }
        Flushed::All
    }

    /// Returns the state that TCP's own would have.
    pub(super) fn state(&self) -> State {
        match (self.stage, self.fin_sent, self.peer_closed) {
            (Stage::Connecting, _, _) => State::SynSent,
            (Stage::Open, false, false) => State::Established,
            (Stage::Open, false, true) => State::CloseWait,
            (Stage::Open, true, false) => State::FinWait2,
            (Stage::Open, true, true) => State::LastAck,
        }
    }
}

/// Returns the end of a connection that an error of the kernel tells.
pub(super) const fn reason(error: Errno) -> CloseReason {
    match error {
        Errno::CONNREFUSED => CloseReason::Refused,
        Errno::TIMEDOUT => CloseReason::TimedOut,
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN => CloseReason::Unreachable,
        _ => CloseReason::Reset,
    }
}
