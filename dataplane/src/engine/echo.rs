//! RFC 862: whatever arrives goes back.
//!
//! Octets are copied once, from the received buffer into one that will be sent, so that what came in small pieces
//! waits in full buffers. When there is none to copy into, the received buffer itself is what goes back: one for
//! one, so that a lack of buffers ends no connection. What the send queue does not take waits here and is not yet
//! `consumed`: the receive window closes on a peer that only writes.

use std::collections::VecDeque;

use tcp_stack::{Buf, BufClass, BufPool, ConnId, Instant, Segment, SendError, Stack};

/// Octets of a segment at least, in the reckoning of how many buffers may wait.
const SEGMENT_MIN: usize = 512;

/// Buffers that wait, of a connection that is left alone when others want some.
pub(super) const FEW: u32 = 4;

/// Octets on their way back that the send queue has not taken yet.
#[derive(Debug)]
pub(super) struct Echo<B> {
    /// Buffers ready to be sent, each at most as long as a segment was when it was filled. Never more than it was made for.
    waiting: VecDeque<B>,
    waiting_max: usize,
}

/// As many buffers wait as a receive window fills: a peer with tiny segments that does not read would hold many times
/// its window.
#[derive(Debug)]
pub(super) struct NoBuffer;

impl<B: Buf> Echo<B> {
    /// Room for a receive window of so many octets, in segments of so many.
    pub(super) fn new(window: usize, segment: usize) -> Self {
        // A quarter more: the window is offered in units of 2^scale, and rounded up so as not to be taken back.
        let waiting_max = window / segment.max(SEGMENT_MIN) * 5 / 4 + 2;
        Self { waiting: VecDeque::with_capacity(waiting_max), waiting_max }
    }

    /// Takes received octets; they stay out of the receive window's room until they are queued.
    pub(super) fn receive<P: BufPool<Buf = B>>(
        &mut self,
        stack: &mut Stack<B>,
        pool: &mut P,
        conn: ConnId,
        segment: Segment<B>,
    ) -> Result<(), NoBuffer> {
        let mut bytes = segment.bytes();
        if self.waiting.is_empty() && stack.append(conn, bytes.len(), &mut |out| out.copy_from_slice(bytes)) {
            stack.consumed(conn, bytes.len());
            return Ok(());
        }
        let segment_max = stack.emss(conn).min(pool.data_room()).max(1);
        while !bytes.is_empty() {
            let taken = match self.waiting.back_mut() {
                Some(last) => fill(last, segment_max, bytes),
                None => 0,
            };
            if taken == 0 {
                if self.waiting.len() >= self.waiting_max {
                    return Err(NoBuffer);
                }
                let Some(fresh) = pool.alloc(BufClass::Data) else {
                    let left = bytes.len();
                    let fits = left <= stack.payload_max(conn);
                    let kept = if fits { segment.into_tail(left).ok() } else { None };
                    self.waiting.push_back(kept.ok_or(NoBuffer)?);
                    return Ok(());
                };
                self.waiting.push_back(fresh);
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    /// Buffers that wait.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Moves what waits into the send queue; `true` when nothing waits any more.
    pub(super) fn pump(&mut self, now: Instant, stack: &mut Stack<B>, conn: ConnId) -> bool {
        while let Some(buf) = self.waiting.pop_front() {
            let octets = buf.bytes().len();
            match stack.send(now, conn, buf) {
                Ok(()) => stack.consumed(conn, octets),
                Err(SendError::Full(buf)) => {
                    self.waiting.push_front(buf);
                    return false;
                }
                // Closing or gone: the octets have no way back any more.
                Err(SendError::NotConnected(_)) => stack.consumed(conn, octets),
                // None is made so. A stream with a hole in it would be worse than none.
                Err(SendError::TooLong(_)) => stack.abort(now, conn),
            }
        }
        true
    }
}

/// Appends as much of `bytes` as fits below `segment_max`; returns how much.
fn fill<B: Buf>(buf: &mut B, segment_max: usize, bytes: &[u8]) -> usize {
    let room = segment_max.saturating_sub(buf.bytes().len()).min(buf.tailroom());
    let taken = room.min(bytes.len());
    match (buf.append(taken), bytes.get(..taken)) {
        (Some(out), Some(piece)) => {
            out.copy_from_slice(piece);
            taken
        }
        _ => 0,
    }
}
