//! Test applications, each on one connection of the simulator ([`Simulation`](super::Simulation)): they send, read,
//! stall and close as a [`Plan`] says, and check every byte that they receive.

use super::{HeapBuf, HeapPool, Random};
use crate::buf::{Buf, BufClass, BufPool};
use crate::time::{Duration, Instant};
use crate::{CloseReason, ConnId, Segment, SendError, Stack};
use alloc::format;
use alloc::string::String;

/// Bytes of received data for which an application retains one packet buffer.
const RETAINED_EACH: u64 = 1000;

/// The data that an application sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// This many bytes, as fast as the stack accepts them.
    Bulk(u64),
    /// Sends `rounds` requests of `request` bytes, each after the `reply` bytes for the one before it have arrived.
    Ask {
        /// Length of a request, bytes.
        request: u64,
        /// Length of its reply, bytes.
        reply: u64,
        /// Number of requests to send.
        rounds: u64,
    },
    /// Answers each `request` received bytes with `reply` bytes.
    Reply {
        /// Length of a request, bytes.
        request: u64,
        /// Length of its reply, bytes.
        reply: u64,
    },
}

/// The pace at which an application consumes received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Consumes data as it arrives.
    Prompt,
    /// Consumes data as it arrives, but pauses once.
    Stall {
        /// Bytes received before the pause begins.
        after: u64,
        /// Length of the pause.
        pause: Duration,
    },
    /// Consumes this many bytes per millisecond.
    Slow(u64),
}

/// The moment at which an application closes its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closes when all data is sent.
    WhenSent,
    /// Closes when all data is sent and the peer has closed.
    AfterPeer,
    /// Closes when this many bytes have arrived, even with data left to send, and continues to read.
    AfterReceived(u64),
    /// Closes this long after the connection was established, even with data left to send.
    After(Duration),
    /// Aborts when this many bytes have arrived.
    Abort(u64),
}

/// The behavior of an application on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Data that it sends.
    pub sending: Sending,
    /// Smallest and largest number of bytes per send call; no call exceeds a segment's payload.
    pub chunk: (u64, u64),
    /// True to append small messages to the last queued segment where that is possible.
    pub append: bool,
    /// Pace at which it reads.
    pub reading: Reading,
    /// Moment at which it closes.
    pub ending: Ending,
}

impl Plan {
    /// Returns a plan that sends `bytes` in full segments, reads promptly and closes when all is sent.
    pub const fn bulk(bytes: u64) -> Self {
        Self {
            sending: Sending::Bulk(bytes),
            chunk: (9000, 9000),
            append: false,
            reading: Reading::Prompt,
            ending: Ending::WhenSent,
        }
    }

    /// Returns a plan that sends nothing, reads promptly and closes after the peer.
    pub const fn sink() -> Self {
        Self { ending: Ending::AfterPeer, ..Self::bulk(0) }
    }
}

/// Returns the byte at `offset` of the stream that `key` names.
pub const fn pattern_byte(key: u64, offset: u64) -> u8 {
    // Each eight bytes come from one number; neighbors, and equal offsets of other streams, differ.
    let word = (key ^ (offset >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = word ^ (word >> 29);
    let [byte, ..] = (word >> ((offset & 7) << 3)).to_le_bytes();
    byte
}

/// The course of a connection on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that the stack accepted for sending.
    pub sent: u64,
    /// Bytes received, each verified.
    pub received: u64,
    /// Time at which the connection was established.
    pub established: Option<Instant>,
    /// Arrival of the last byte.
    pub last_data: Option<Instant>,
    /// Set once the peer has closed its side.
    pub peer_closed: bool,
    /// Time and reason of the end.
    pub closed: Option<(Instant, CloseReason)>,
}

/// An application on one connection.
#[derive(Debug)]
pub struct App {
    plan: Plan,
    conn: ConnId,
    /// Keys of the byte streams that it sends and receives ([`pattern_byte`]).
    keys: (u64, u64),
    outcome: Outcome,
    /// Bytes taken out of order that the stream has not reached yet.
    taken: usize,
    /// Bytes received and not yet consumed.
    unread: u64,
    /// Set while the stack has reclaimed the packet buffers of unread data: the application has copied it.
    copies: bool,
    stalled: bool,
    stalled_until: Option<Instant>,
    /// Set while the send buffer is full; [`Event::Writable`](crate::Event::Writable) ends it.
    is_full: bool,
    /// Next attempt to send after the pool had no buffer.
    retry_at: Option<Instant>,
    read_at: Option<Instant>,
    is_closed: bool,
    random: Random,
}

impl App {
    /// Returns an application on a new connection.
    pub fn new(plan: Plan, conn: ConnId, keys: (u64, u64), random: Random) -> Self {
        Self {
            plan,
            conn,
            keys,
            outcome: Outcome::default(),
            taken: 0,
            unread: 0,
            copies: false,
            stalled: false,
            stalled_until: None,
            is_full: false,
            retry_at: None,
            read_at: None,
            is_closed: false,
            random,
        }
    }

    /// Returns the course of the connection so far.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the connection's identifier.
    pub const fn conn(&self) -> ConnId {
        self.conn
    }

    /// Returns the number of bytes received and not yet consumed.
    pub const fn unread(&self) -> u64 {
        self.unread
    }

    /// Notes that the connection is established.
    pub const fn on_established(&mut self, now: Instant) {
        self.outcome.established = Some(now);
    }

    /// Checks a segment that the stack delivers in order, or the place of one that [`Self::on_out_of_order`] took
    /// before. Fails if it does not continue the stream or, unless frames may be forged, if a byte is wrong.
    pub fn on_data<B: Buf>(
        &mut self,
        now: Instant,
        offset: u64,
        segment: &Segment<B>,
        may_be_forged: bool,
    ) -> Result<(), String> {
        self.advance(now, offset, segment.len())?;
        if segment.was_taken() {
            let rest = self.taken.checked_sub(segment.len());
            self.taken = rest.ok_or(format!("{} bytes at {offset} were not taken", segment.len()))?;
            return Ok(());
        }
        for (at, byte) in (offset..).zip(segment.bytes()) {
            let right = pattern_byte(self.keys.1, at);
            if *byte != right && !may_be_forged {
                return Err(format!("byte {at} is {byte:#04x}, not {right:#04x}"));
            }
        }
        Ok(())
    }

    /// Takes about half of the segments behind a gap, those whose bytes are right.
    pub fn on_out_of_order<B: Buf>(&mut self, stack: &mut Stack<B>) -> Result<(), String> {
        let Self { random, outcome, keys, taken, .. } = self;
        let mut behind = true;
        stack.offer_out_of_order(self.conn, &mut |offset, bytes| {
            behind &= offset >= outcome.received;
            let right = (offset..).zip(bytes).all(|(at, byte)| *byte == pattern_byte(keys.1, at));
            let takes = random.below(2) == 0 && right;
            *taken = taken.saturating_add(if takes { bytes.len() } else { 0 });
            takes
        });
        if behind { Ok(()) } else { Err("bytes were offered behind their turn".into()) }
    }

    /// Counts `len` bytes that continue the stream at `offset`.
    fn advance(&mut self, now: Instant, offset: u64, len: usize) -> Result<(), String> {
        if offset != self.outcome.received || len == 0 {
            let expected = self.outcome.received;
            return Err(format!("{len} bytes at {offset}, not at {expected}"));
        }
        if self.outcome.peer_closed || self.outcome.closed.is_some() {
            return Err(format!("bytes behind the end, at {offset}"));
        }
        let len = u64::try_from(len).unwrap_or(0);
        self.outcome.received = self.outcome.received.saturating_add(len);
        self.outcome.last_data = Some(now);
        self.unread = self.unread.saturating_add(len);
        Ok(())
    }

    /// Notes that the peer closed its side; fails the second time.
    pub fn on_peer_closed(&mut self) -> Result<(), String> {
        if core::mem::replace(&mut self.outcome.peer_closed, true) {
            return Err("the peer closed twice".into());
        }
        Ok(())
    }

    /// Gives up the retained packet buffers, which the stack reclaims.
    pub const fn on_reclaim(&mut self) {
        self.copies = true;
    }

    /// Resumes sending: the send buffer has room again.
    pub const fn on_writable(&mut self) {
        self.is_full = false;
    }

    /// Notes the end of the connection; fails the second time.
    pub fn on_closed(&mut self, now: Instant, reason: CloseReason) -> Result<(), String> {
        if self.outcome.closed.replace((now, reason)).is_some() {
            return Err("closed twice".into());
        }
        Ok(())
    }

    /// Returns the time at which the application must be polled even without an event.
    pub fn deadline(&self) -> Option<Instant> {
        [self.stalled_until, self.retry_at, self.read_at, self.close_at()].into_iter().flatten().min()
    }

    /// Returns the time of an [`Ending::After`].
    fn close_at(&self) -> Option<Instant> {
        let Ending::After(pause) = self.plan.ending else { return None };
        self.outcome.established.filter(|_| !self.is_closed).map(|at| at + pause)
    }

    /// Reads, sends and closes as planned, as far as that is possible now. Returns the number of consume calls.
    pub fn poll(&mut self, now: Instant, stack: &mut Stack<HeapBuf>, pool: &mut HeapPool) -> u64 {
        if self.outcome.closed.is_some() {
            return 0;
        }
        let reads = self.read(now, stack);
        self.retain(stack);
        if self.outcome.established.is_none() || self.is_closed {
            return reads;
        }
        if let Ending::Abort(after) = self.plan.ending
            && self.outcome.received >= after
        {
            self.is_closed = true;
            stack.abort(now, self.conn);
            return reads;
        }
        let leaves =
            matches!(self.plan.ending, Ending::AfterReceived(after) if self.outcome.received >= after);
        if !leaves {
            self.send(now, stack, pool);
        }
        let sent = self.outcome.sent >= self.total();
        let close = match self.plan.ending {
            Ending::WhenSent => sent,
            Ending::AfterPeer => sent && self.outcome.peer_closed,
            Ending::AfterReceived(_) => leaves || self.outcome.peer_closed,
            Ending::After(_) => self.close_at().is_some_and(|at| now >= at),
            Ending::Abort(_) => false,
        };
        if close {
            self.is_closed = true;
            stack.close(now, self.conn);
        }
        reads
    }

    fn read(&mut self, now: Instant, stack: &mut Stack<HeapBuf>) -> u64 {
        let bytes = match self.plan.reading {
            Reading::Prompt => self.unread,
            Reading::Stall { after, pause } => {
                if !self.stalled && self.outcome.received >= after {
                    self.stalled = true;
                    self.stalled_until = Some(now + pause);
                }
                if self.stalled_until.is_some_and(|until| now < until) { 0 } else { self.unread }
            }
            Reading::Slow(rate) => {
                if self.unread == 0 || self.read_at.is_some_and(|at| now < at) {
                    0
                } else {
                    self.read_at = Some(now + Duration::from_millis(1));
                    rate.min(self.unread)
                }
            }
        };
        if self.stalled_until.is_some_and(|until| now >= until) {
            self.stalled_until = None;
        }
        if self.read_at.is_some_and(|at| now >= at) {
            self.read_at = None;
        }
        if bytes == 0 {
            return 0;
        }
        self.unread = self.unread.saturating_sub(bytes);
        self.copies &= self.unread > 0;
        stack.consumed(self.conn, usize::try_from(bytes).unwrap_or(usize::MAX));
        1
    }

    /// Retains the packet buffers of unread data as long as the stack allows it.
    fn retain(&self, stack: &mut Stack<HeapBuf>) {
        let buffers = u32::try_from(self.unread.div_ceil(RETAINED_EACH)).unwrap_or(u32::MAX);
        if self.copies || !stack.retain(self.conn, buffers) {
            stack.retain(self.conn, 0);
        }
    }

    /// Returns the number of bytes that the plan wants sent by now.
    fn goal(&self) -> u64 {
        match self.plan.sending {
            Sending::Bulk(bytes) => bytes,
            Sending::Ask { request, reply, rounds } => {
                let answered = self.outcome.received.checked_div(reply).unwrap_or(rounds);
                request.saturating_mul(answered.saturating_add(1).min(rounds))
            }
            Sending::Reply { request, reply } => {
                let asked = self.outcome.received.checked_div(request).unwrap_or(0);
                reply.saturating_mul(asked)
            }
        }
    }

    /// Returns the number of bytes that the plan sends in total, as far as that is known.
    fn total(&self) -> u64 {
        match self.plan.sending {
            Sending::Ask { request, rounds, .. } => request.saturating_mul(rounds),
            Sending::Bulk(_) | Sending::Reply { .. } => self.goal(),
        }
    }

    fn send(&mut self, now: Instant, stack: &mut Stack<HeapBuf>, pool: &mut HeapPool) {
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
        }
        let goal = self.goal();
        while !self.is_full && self.retry_at.is_none() && self.outcome.sent < goal {
            let (low, high) = self.plan.chunk;
            let emss = u64::try_from(stack.emss(self.conn)).unwrap_or(0);
            let wanted = self.random.between(low, high).min(goal.saturating_sub(self.outcome.sent));
            let len = usize::try_from(wanted.min(emss)).unwrap_or(0);
            if len == 0 {
                return;
            }
            let (key, start) = (self.keys.0, self.outcome.sent);
            let mut fill = |bytes: &mut [u8]| {
                for (at, byte) in (start..).zip(bytes) {
                    *byte = pattern_byte(key, at);
                }
            };
            if self.plan.append && stack.append(self.conn, len, &mut fill) {
                self.count_sent(len);
                continue;
            }
            let buf = pool.alloc(BufClass::Data);
            let Some(mut buf) = buf else {
                self.retry_at = Some(now + Duration::from_millis(1));
                return;
            };
            let Some(bytes) = buf.append(len) else { return };
            fill(bytes);
            match stack.send(now, self.conn, buf) {
                Ok(()) => self.count_sent(len),
                Err(SendError::Full(_)) => self.is_full = true,
                // The connection has ended: an event follows.
                Err(_) => return,
            }
        }
    }

    fn count_sent(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(0);
        self.outcome.sent = self.outcome.sent.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::pattern_byte;

    #[test]
    fn a_shifted_or_foreign_stream_is_detected() {
        for (key, shift) in [(1, 1), (1, 8), (1, 1448), (2, 65_536), (3, 1 << 32)] {
            let same = (0..4096).filter(|at| pattern_byte(key, *at) == pattern_byte(key, at + shift)).count();
            assert!(same < 64, "{key} {shift}: {same}");
            let same = (0..4096).filter(|at| pattern_byte(key, *at) == pattern_byte(key + 1, *at)).count();
            assert!(same < 64, "{key}: {same}");
        }
    }
}
