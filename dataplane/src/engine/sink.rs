//! The adapter that joins the RDMA engine's sending side to our TCP: one FPDU, one buffer, one segment.

use rdma::Sink;
use rdma::mpa::{MARKER_LEN, fpdu_len, framer::MULPDU_MIN};
use tcp_stack::{Buf, BufClass, BufPool, ConnId, Instant, Stack};

/// The longest FPDU for a peer whose segments are shorter still: RFC 5044 §4.5 lets MPA cut no shorter ones.
const FPDU_LEAST: usize = fpdu_len(MULPDU_MIN) + MARKER_LEN;
const _: () = assert!(FPDU_LEAST <= tcp_stack::SEND_LEAST);

/// Bytes that one connection may queue before others get their turn.
const BUDGET: usize = 64 << 10;

/// What became of a connection's turn to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// Nothing is left to send.
    Idle,
    /// More is to be sent, and there is room: it goes to the end of the queue.
    Again,
    /// More is to be sent when the stack says that there is room again.
    Blocked,
}

/// One connection's sending side, for the length of one step.
pub(crate) struct StreamSink<'a, P: BufPool> {
    stack: &'a mut Stack<P::Buf>,
    pool: &'a mut P,
    conn: ConnId,
    now: Instant,
    /// Bytes of a segment.
    segment: usize,
    /// FPDUs up to this many bytes share a segment with those before them, where they fit (RFC 5044 §5.1: "Multiple
    /// FPDUs MAY be packed into a single TCP segment"): a small message costs a packet of its own otherwise. Of longer ones
    /// no two would fit; they are not tried.
    share_max: usize,
    /// Bytes that this connection may still queue in this step, so that one long Read does not starve
    /// its neighbors.
    pub(crate) budget: usize,
    /// The buffer behind that of the last segment was asked for.
    expected: bool,
}

impl<'a, P: BufPool> StreamSink<'a, P> {
    /// A connection's turn begins.
    pub(crate) fn new(stack: &'a mut Stack<P::Buf>, pool: &'a mut P, conn: ConnId, now: Instant) -> Self {
        let segment = stack.emss(conn).min(pool.data_room());
        Self { stack, pool, conn, now, segment, share_max: segment / 2, budget: BUDGET, expected: false }
    }

    /// What became of the turn, if an RDMA stream has used it and has more to send, or not.
    pub(crate) fn outcome(&self, pending: bool) -> TxOutcome {
        let segment = self.stack.emss(self.conn).max(FPDU_LEAST);
        if !pending {
            TxOutcome::Idle
        } else if self.stack.send_capacity(self.conn) < segment && self.budget > 0 {
            TxOutcome::Blocked
        } else {
            TxOutcome::Again
        }
    }

    /// Queues `len` bytes as a segment of their own, of which TCP makes several for a peer of tiny ones; `false`
    /// when there is no room or no buffer.
    fn push_segment(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let Some(mut buf) = self.pool.alloc(BufClass::Data) else { return false };
        let Some(bytes) = buf.append(len) else { return false };
        build(bytes);
        // Mostly the next segment is as long. Behind a small FPDU there may be none: it does not wait for that.
        self.expected = len > self.share_max;
        if self.expected {
            self.pool.expect(len);
        }
        self.stack.send(self.now, self.conn, buf).is_ok()
    }
}

impl<P: BufPool> Sink for StreamSink<'_, P> {
    #[inline]
    fn fpdu_max(&self) -> usize {
        self.segment
    }

    #[inline]
    fn room(&self) -> usize {
        self.stack.send_capacity(self.conn).min(self.budget)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.budget {
            return false;
        }
        let shared = len <= self.share_max && self.stack.append(self.conn, len, build);
        if shared && !self.expected {
            // Small ones come one after the other, and fill the next segment, too.
            self.expected = true;
            self.pool.expect(self.segment);
        }
        let taken = shared || self.push_segment(len, build);
        if taken {
            self.budget = self.budget.saturating_sub(len);
        }
        taken
    }
}
