//! RFC 862: whatever arrives goes back.
//!
//! Bytes are copied once, from the received buffer into one that will be sent, so that what came in small pieces
//! waits in full buffers. When there is none to copy into, the received buffer itself is what goes back. What the send queue
//! does not take waits here and is not yet `consumed`: the receive window closes on a peer that only writes.
//!
//! Buffers that the budget of received data does not allow are given back: their bytes have been acknowledged, and are
//! copied spilled into ordinary memory, no more of it than the windows that were offered. A lack of buffers ends no connection.

use std::collections::VecDeque;

use super::TxOutcome;
use tcp_stack::{Buf, BufClass, BufPool, ConnId, Instant, Segment, SendError, Stack};

/// Bytes of a segment at least, in the reckoning of how many buffers may wait.
const SEGMENT_MIN: usize = 512;

/// Bytes on their way back that the send queue has not taken yet.
#[derive(Debug)]
pub(super) struct Echo<B> {
    /// Buffers ready to be sent, each at most as long as a segment was when it was filled. Never more than it was made for.
    waiting: VecDeque<B>,
    waiting_max: usize,
    /// Bytes behind those, in ordinary memory.
    spilled: VecDeque<u8>,
    /// It waits for packet buffers already.
    waits: bool,
}

impl<B: Buf> Echo<B> {
    /// Room for a receive window of so many bytes, in segments of so many.
    pub(super) fn new(window: usize, segment: usize) -> Self {
        // A quarter more: the window is offered in units of 2^scale, and rounded up so as not to be taken back.
        let waiting_max = window / segment.max(SEGMENT_MIN) * 5 / 4 + 2;
        Self {
            waiting: VecDeque::with_capacity(waiting_max),
            waiting_max,
            spilled: VecDeque::new(),
            waits: false,
        }
    }

    /// Takes received bytes; they stay out of the receive window's room until they are queued.
    pub(super) fn receive<P: BufPool<Buf = B>>(
        &mut self,
        stack: &mut Stack<B>,
        pool: &mut P,
        conn: ConnId,
        segment: Segment<B>,
    ) {
        let mut bytes = segment.bytes();
        if !self.spilled.is_empty() {
            self.spilled.extend(bytes);
            return;
        }
        if self.waiting.is_empty() && stack.append(conn, bytes.len(), &mut |out| out.copy_from_slice(bytes)) {
            stack.consumed(conn, bytes.len());
            return;
        }
        let segment_max = stack.emss(conn).min(pool.data_room()).max(1);
        while !bytes.is_empty() {
            let taken = match self.waiting.back_mut() {
                Some(last) => fill(last, segment_max, bytes),
                None => 0,
            };
            if taken == 0 {
                let fresh =
                    if self.waiting.len() < self.waiting_max { pool.alloc(BufClass::Data) } else { None };
                let Some(fresh) = fresh else {
                    let left = bytes.len();
                    self.queue_rest(stack, conn, segment, left);
                    return;
                };
                self.waiting.push_back(fresh);
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// Keeps the last `left` bytes of a segment that there is no buffer to copy into: the segment's own buffer, or spilled.
    fn queue_rest(&mut self, stack: &Stack<B>, conn: ConnId, segment: Segment<B>, left: usize) {
        let fits = self.waiting.len() < self.waiting_max && left <= stack.payload_max(conn);
        match if fits { segment.into_tail(left) } else { Err(segment) } {
            Ok(buf) => self.waiting.push_back(buf),
            Err(segment) => {
                let bytes = segment.bytes();
                self.spilled.extend(bytes.get(bytes.len().saturating_sub(left)..).unwrap_or_default());
            }
        }
    }

    /// Gives the buffers that wait back: what is in them is copied spilled.
    #[cold]
    pub(super) fn compact(&mut self) {
        let behind = std::mem::take(&mut self.spilled);
        self.spilled.extend(self.waiting.iter().flat_map(|buf| buf.bytes()));
        self.spilled.extend(behind);
        self.waiting.clear();
    }

    /// Fetches what lies spilled into one buffer; `false` if there is none to be had now.
    #[cold]
    fn fetch<P: BufPool<Buf = B>>(&mut self, stack: &Stack<B>, pool: &mut P, conn: ConnId) -> bool {
        let Some(mut fresh) = pool.alloc(BufClass::Data) else { return false };
        let (first, _) = self.spilled.as_slices();
        let segment_max = stack.emss(conn).min(pool.data_room()).max(1);
        let taken = fill(&mut fresh, segment_max, first);
        self.spilled.drain(..taken);
        if self.spilled.is_empty() {
            self.spilled.shrink_to_fit();
        }
        self.waiting.push_back(fresh);
        taken > 0
    }

    /// It waits for packet buffers from now on; whether that is new.
    pub(super) fn mark_waits_for_buffers(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// It waits no longer.
    pub(super) fn clear_waits_for_buffers(&mut self) {
        self.waits = false;
    }

    /// Buffers that wait.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Moves what waits into the send queue.
    pub(super) fn pump<P: BufPool<Buf = B>>(
        &mut self,
        now: Instant,
        stack: &mut Stack<B>,
        pool: &mut P,
        conn: ConnId,
    ) -> TxOutcome {
        loop {
            while let Some(buf) = self.waiting.pop_front() {
                let bytes = buf.bytes().len();
                match stack.send(now, conn, buf) {
                    Ok(()) => stack.consumed(conn, bytes),
                    Err(SendError::Full(buf)) => {
                        self.waiting.push_front(buf);
                        return TxOutcome::Blocked;
                    }
                    // Closing or gone: the bytes have no way back any more.
                    Err(SendError::NotConnected(_)) => stack.consumed(conn, bytes),
                    // None is made so. A stream with a hole in it would be worse than none.
                    Err(SendError::TooLong(_)) => stack.abort(now, conn),
                }
            }
            if self.spilled.is_empty() {
                return TxOutcome::Idle;
            }
            if !self.fetch(stack, pool, conn) {
                return TxOutcome::Again;
            }
        }
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
