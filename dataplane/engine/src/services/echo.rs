//! Echo service (RFC 862): sends every received byte back.
//!
//! Bytes are copied once, from the received packet buffer into one to send, so that small pieces fill whole buffers.
//! Without a free buffer, the received buffer itself is sent back. Bytes that the send queue does not accept wait here
//! and are not `consumed` yet: the receive window closes on a peer that only writes.
//!
//! Packet buffers beyond the budget of received data are freed. Their bytes have been acknowledged, so they are copied
//! ("spilled") to ordinary memory, whose size the advertised windows bound. A lack of packet buffers ends no
//! connection.

use std::collections::VecDeque;

use crate::transport::{Transport, TxOutcome};
use tcp_stack::{Buf, BufClass, BufPool, ConnId, Instant, Segment, SendError};

/// Smallest segment, bytes, assumed for the number of buffers that may wait.
const SEGMENT_MIN: usize = 512;

/// Bytes to send back that the send queue has not accepted yet.
#[derive(Debug)]
pub(crate) struct Echo<B> {
    /// Buffers ready to send, each at most one segment long when it was filled; at most `waiting_max`.
    waiting: VecDeque<B>,
    waiting_max: usize,
    /// Bytes after those of `waiting`, in ordinary memory.
    spilled: VecDeque<u8>,
    /// True while the engine has queued the connection for packet buffers.
    waits: bool,
}

impl<B: Buf> Echo<B> {
    /// Allocates room for a receive window of `window` bytes in segments of `segment` bytes.
    pub(crate) fn new(window: usize, segment: usize) -> Self {
        // A quarter more, because the window is advertised in units of 2^scale and rounded up, so as not to shrink.
        let waiting_max = window / segment.max(SEGMENT_MIN) * 5 / 4 + 2;
        Self {
            waiting: VecDeque::with_capacity(waiting_max),
            waiting_max,
            spilled: VecDeque::new(),
            waits: false,
        }
    }

    /// Takes a received segment. Its bytes count as unread until the send queue accepts them.
    pub(crate) fn receive<T: Transport<Buf = B>>(
        &mut self,
        transport: &mut T,
        pool: &mut impl BufPool<Buf = T::Buf>,
        conn: ConnId,
        segment: Segment<B>,
    ) {
        let mut bytes = segment.bytes();
        if !self.spilled.is_empty() {
            self.spilled.extend(bytes);
            return;
        }
        if self.waiting.is_empty()
            && transport.append(conn, bytes.len(), &mut |out| out.copy_from_slice(bytes))
        {
            transport.consumed(conn, bytes.len());
            return;
        }
        let segment_max = transport.emss(conn).min(pool.data_room()).max(1);
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
                    self.queue_rest(transport, conn, segment, left);
                    return;
                };
                self.waiting.push_back(fresh);
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// Keeps the last `left` bytes of a segment when no packet buffer is free: in the segment's own buffer, or spilled.
    fn queue_rest(
        &mut self,
        transport: &impl Transport<Buf = B>,
        conn: ConnId,
        segment: Segment<B>,
        left: usize,
    ) {
        let fits = self.waiting.len() < self.waiting_max && left <= transport.payload_max(conn);
        match if fits { segment.into_tail(left) } else { Err(segment) } {
            Ok(buf) => self.waiting.push_back(buf),
            Err(segment) => {
                let bytes = segment.bytes();
                self.spilled.extend(bytes.get(bytes.len().saturating_sub(left)..).unwrap_or_default());
            }
        }
    }

    /// Spills the bytes of all waiting buffers and frees the buffers.
    #[cold]
    pub(crate) fn compact(&mut self) {
        let behind = std::mem::take(&mut self.spilled);
        self.spilled.extend(self.waiting.iter().flat_map(|buf| buf.bytes()));
        self.spilled.extend(behind);
        self.waiting.clear();
    }

    /// Moves spilled bytes into one packet buffer. Returns `false` if none is free.
    #[cold]
    fn refill<T: Transport<Buf = B>>(
        &mut self,
        transport: &T,
        pool: &mut impl BufPool<Buf = B>,
        conn: ConnId,
    ) -> bool {
        let Some(mut fresh) = pool.alloc(BufClass::Data) else { return false };
        let (first, _) = self.spilled.as_slices();
        let segment_max = transport.emss(conn).min(pool.data_room()).max(1);
        let taken = fill(&mut fresh, segment_max, first);
        self.spilled.drain(..taken);
        if self.spilled.is_empty() {
            self.spilled.shrink_to_fit();
        }
        self.waiting.push_back(fresh);
        taken > 0
    }

    /// Marks the connection as waiting for packet buffers. Returns true if it was not marked.
    pub(crate) fn mark_waits_for_buffers(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// Clears the mark of [`Self::mark_waits_for_buffers`].
    pub(crate) fn clear_waits_for_buffers(&mut self) {
        self.waits = false;
    }

    /// Returns the number of waiting packet buffers.
    pub(crate) fn waiting(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Moves waiting bytes into the send queue.
    pub(crate) fn pump<T: Transport<Buf = B>>(
        &mut self,
        now: Instant,
        transport: &mut T,
        pool: &mut impl BufPool<Buf = T::Buf>,
        conn: ConnId,
    ) -> TxOutcome {
        loop {
            while let Some(buf) = self.waiting.pop_front() {
                let bytes = buf.bytes().len();
                match transport.send(now, conn, buf) {
                    Ok(()) => transport.consumed(conn, bytes),
                    Err(SendError::Full(buf)) => {
                        self.waiting.push_front(buf);
                        return TxOutcome::Blocked;
                    }
                    // The connection is closing or closed: the bytes cannot be sent back any more.
                    Err(SendError::NotConnected(_)) => transport.consumed(conn, bytes),
                    // No buffer is filled that far. A reset is better than a stream with a hole.
                    Err(SendError::TooLong(_)) => transport.abort(now, conn),
                }
            }
            if self.spilled.is_empty() {
                return TxOutcome::Idle;
            }
            if !self.refill(transport, pool, conn) {
                return TxOutcome::Again;
            }
        }
    }
}

/// Appends as much of `bytes` as fits into a segment of `segment_max` bytes. Returns the number of bytes appended.
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
