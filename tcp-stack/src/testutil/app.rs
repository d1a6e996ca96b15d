//! Applications that send, read, stall and leave, and know every byte that they should see.

use super::{HeapBuf, HeapPool, Random};
use crate::buf::{Buf, BufClass, BufPool};
use crate::time::{Duration, Instant};
use crate::{CloseReason, ConnId, Segment, SendError, Stack};
use alloc::format;
use alloc::string::String;

/// Bytes that an application has of each packet buffer that it keeps.
const RETAINED_EACH: u64 = 1000;

/// What an application sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// So many bytes, as fast as it may.
    Bulk(u64),
    /// Asks `rounds` times with `request` bytes, each time after `reply` bytes came for the last.
    Ask {
        /// Bytes of a request.
        request: u64,
        /// Bytes of the reply.
        reply: u64,
        /// How often.
        rounds: u64,
    },
    /// Answers each `request` bytes with `reply` bytes.
    Reply {
        /// Bytes of a request.
        request: u64,
        /// Bytes of the reply.
        reply: u64,
    },
}

/// How an application lets go of what it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// At once.
    Prompt,
    /// At once, but when this many bytes have come not at all for this long.
    Stall {
        /// Bytes before.
        after: u64,
        /// How long.
        pause: Duration,
    },
    /// So many bytes each millisecond.
    Slow(u64),
}

/// When an application closes its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// When all is sent.
    WhenSent,
    /// When the peer has closed and all is sent.
    AfterPeer,
    /// When this many bytes have come, with what was sent till then; goes on reading.
    AfterReceived(u64),
    /// So long after it was established, with what was sent till then.
    After(Duration),
    /// Aborts when this many bytes have come.
    Abort(u64),
}

/// What an application does on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it sends.
    pub sending: Sending,
    /// Bytes per send call, at least and at most; a segment's payload bounds them too.
    pub chunk: (u64, u64),
    /// Whether small messages are appended to the last segment where that is possible.
    pub append: bool,
    /// How it reads.
    pub reading: Reading,
    /// When it closes.
    pub ending: Ending,
}

impl Plan {
    /// Sends so many bytes in full segments, reads promptly, closes when all is sent.
    pub const fn bulk(bytes: u64) -> Self {
        Self {
            sending: Sending::Bulk(bytes),
            chunk: (9000, 9000),
            append: false,
            reading: Reading::Prompt,
            ending: Ending::WhenSent,
        }
    }

    /// Sends nothing, reads promptly, closes after the peer.
    pub const fn sink() -> Self {
        Self { ending: Ending::AfterPeer, ..Self::bulk(0) }
    }
}

/// The byte at `offset` of the stream that `key` names.
pub const fn pattern_byte(key: u64, offset: u64) -> u8 {
    // Each eight bytes come from one number; neighbors, and equal offsets of other streams, differ.
    let word = (key ^ (offset >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = word ^ (word >> 29);
    let [byte, ..] = (word >> ((offset & 7) << 3)).to_le_bytes();
    byte
}

/// How a connection went, on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that the stack took.
    pub sent: u64,
    /// Bytes that came, each of them right.
    pub received: u64,
    /// When it was established.
    pub established: Option<Instant>,
    /// When the last byte came.
    pub last_data: Option<Instant>,
    /// When the peer's end came.
    pub peer_closed: bool,
    /// When, and how, it was over.
    pub closed: Option<(Instant, CloseReason)>,
}

/// An application with one connection.
#[derive(Debug)]
pub struct App {
    plan: Plan,
    conn: ConnId,
    /// Names of the streams that it sends and receives.
    keys: (u64, u64),
    outcome: Outcome,
    /// Came, and not let go of.
    /// Bytes taken behind gaps whose turn has not come.
    taken: usize,
    unread: u64,
    /// Was asked to keep no packet buffer of what it has not let go of: it has copied that.
    copies: bool,
    stalled: bool,
    stalled_until: Option<Instant>,
    /// Refused for want of room: an event will say when there is some.
    is_full: bool,
    /// The pool had no buffer: try again then.
    retry_at: Option<Instant>,
    read_at: Option<Instant>,
    is_closed: bool,
    random: Random,
}

impl App {
    /// An application on a new connection.
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

    /// How it went so far.
    pub const fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Its connection.
    pub const fn conn(&self) -> ConnId {
        self.conn
    }

    /// Bytes that came and that it has not let go of.
    pub const fn unread(&self) -> u64 {
        self.unread
    }

    /// The connection is established.
    pub const fn on_established(&mut self, now: Instant) {
        self.outcome.established = Some(now);
    }

    /// Bytes came, or the turn of some that were taken before; an error when they are not the next ones, or,
    /// unless they may have been forged, not the right ones.
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

    /// Bytes came behind a gap: takes those of every other segment, if they are right.
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

    /// The stream goes on by so many bytes.
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

    /// The peer closed its side.
    pub fn on_peer_closed(&mut self) -> Result<(), String> {
        if core::mem::replace(&mut self.outcome.peer_closed, true) {
            return Err("the peer closed twice".into());
        }
        Ok(())
    }

    /// The stack wants the buffers back that it keeps.
    pub const fn on_reclaim(&mut self) {
        self.copies = true;
    }

    /// There is room again.
    pub const fn on_writable(&mut self) {
        self.is_full = false;
    }

    /// It is over.
    pub fn on_closed(&mut self, now: Instant, reason: CloseReason) -> Result<(), String> {
        if self.outcome.closed.replace((now, reason)).is_some() {
            return Err("closed twice".into());
        }
        Ok(())
    }

    /// When it wants to be called without an event.
    pub fn deadline(&self) -> Option<Instant> {
        [self.stalled_until, self.retry_at, self.read_at, self.close_at()].into_iter().flatten().min()
    }

    /// When it closes whatever happens.
    fn close_at(&self) -> Option<Instant> {
        let Ending::After(pause) = self.plan.ending else { return None };
        self.outcome.established.filter(|_| !self.is_closed).map(|at| at + pause)
    }

    /// Reads, sends and closes as planned, as far as that is possible now. Returns how often it let go of
    /// bytes.
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

    /// Keeps the packet buffers of what it has not let go of, as long as it may.
    fn retain(&self, stack: &mut Stack<HeapBuf>) {
        let buffers = u32::try_from(self.unread.div_ceil(RETAINED_EACH)).unwrap_or(u32::MAX);
        if self.copies || !stack.retain(self.conn, buffers) {
            stack.retain(self.conn, 0);
        }
    }

    /// Bytes that it wants to have sent by now.
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

    /// Bytes that it wants to have sent in the end, as far as that is known.
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
                // The peer's reset or the like: an event will say so.
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
    fn a_shifted_or_foreign_stream_is_noticed() {
        for (key, shift) in [(1, 1), (1, 8), (1, 1448), (2, 65_536), (3, 1 << 32)] {
            let same = (0..4096).filter(|at| pattern_byte(key, *at) == pattern_byte(key, at + shift)).count();
            assert!(same < 64, "{key} {shift}: {same}");
            let same = (0..4096).filter(|at| pattern_byte(key, *at) == pattern_byte(key + 1, *at)).count();
            assert!(same < 64, "{key}: {same}");
        }
    }
}
