//! Adapter between the transmit side of RDMA and our TCP: an FPDU is built in the packet buffer of one segment.
//! `Engine` and the TCP services create a sink for each connection that they service.

use rdma::Sink;
use rdma::mpa::{MARKER_LEN, fpdu_len, framer::MULPDU_MIN};
use tcp_stack::{Buf, BufClass, BufPool, ConnId, Instant};

use super::Transport;

/// Longest FPDU for a peer with a smaller MSS: RFC 5044 §4.5 does not let MPA cut shorter ones.
const FPDU_LEAST: usize = fpdu_len(MULPDU_MIN) + MARKER_LEN;
const _: () = assert!(FPDU_LEAST <= tcp_stack::SEND_LEAST);

/// Most bytes that one connection may queue per service, before the next connection is serviced.
const BUDGET_MAX: usize = 64 << 10;

/// Full segments that one connection may queue per service at least, up to [`BUDGET_MAX`].
const BUDGET_SEGMENTS_MIN: usize = 8;

/// Outcome of servicing a connection that was ready to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// The connection has no more output.
    Idle,
    /// The connection has more output and room for it: it is queued again.
    Again,
    /// The connection has more output, and waits until the stack reports room in the send queue.
    Blocked,
}

/// Send queue of one connection, borrowed for one service.
pub(crate) struct StreamSink<'a, T, P> {
    transport: &'a mut T,
    pool: &'a mut P,
    conn: ConnId,
    now: Instant,
    /// Payload bytes of a full segment.
    segment: usize,
    /// FPDUs up to this many bytes are packed into the preceding segment if they fit (RFC 5044 §5.1: "Multiple FPDUs
    /// MAY be packed into a single TCP segment"); otherwise each small message costs a packet. Two longer FPDUs would
    /// never fit, so they are not tried.
    share_max: usize,
    /// Bytes that this connection may still queue in this service, so that a long Read does not starve the others.
    pub(crate) budget: usize,
    /// True if the packet buffer after the last segment's was prefetched.
    expected: bool,
}

impl<'a, T: Transport, P: BufPool<Buf = T::Buf>> StreamSink<'a, T, P> {
    /// Starts the service of a connection.
    pub(crate) fn new(transport: &'a mut T, pool: &'a mut P, conn: ConnId, now: Instant) -> Self {
        let segment = transport.emss(conn).min(pool.data_room());
        // The acknowledgments of a window wait while this service builds segments: half a window keeps its sender busy.
        let half_window = transport.cwnd(conn) / 2;
        let budget = half_window.max(BUDGET_SEGMENTS_MIN.saturating_mul(segment)).min(BUDGET_MAX);
        let share_max = if T::STAGES { segment } else { segment / 2 };
        Self { transport, pool, conn, now, segment, share_max, budget, expected: T::STAGES }
    }

    /// Returns the outcome of the service; `pending` is true if the RDMA stream has more to send.
    pub(crate) fn outcome(&self, pending: bool) -> TxOutcome {
        let segment = self.transport.emss(self.conn).max(FPDU_LEAST);
        if !pending {
            TxOutcome::Idle
        } else if self.transport.send_capacity(self.conn) < segment && self.budget > 0 {
            TxOutcome::Blocked
        } else {
            TxOutcome::Again
        }
    }

    /// Queues `len` bytes as a new segment, which TCP splits for a peer with a tiny MSS. Returns `false` if there is no
    /// room or no packet buffer.
    fn push_segment(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let Some(mut buf) = self.pool.alloc(BufClass::Data) else { return false };
        let Some(bytes) = buf.append(len) else { return false };
        build(bytes);
        // The next segment usually has the same length. A small FPDU may be the last one, and does not wait for a
        // prefetch.
        self.expected = len > self.share_max;
        if self.expected {
            self.pool.expect(len);
        }
        self.transport.send(self.now, self.conn, buf).is_ok()
    }
}

impl<T: Transport, P: BufPool<Buf = T::Buf>> Sink for StreamSink<'_, T, P> {
    #[inline]
    fn fpdu_max(&self) -> usize {
        self.segment
    }

    #[inline]
    fn fpdu_rest(&self) -> usize {
        if T::STAGES { self.transport.segment_rest(self.conn).min(self.segment) } else { self.segment }
    }

    #[inline]
    fn room(&self) -> usize {
        self.transport.send_capacity(self.conn).min(self.budget)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.budget {
            return false;
        }
        let shared = len <= self.share_max && self.transport.append(self.conn, len, build);
        if shared && !self.expected {
            // Small FPDUs arrive in series and fill the next segment, too.
            self.expected = true;
            self.pool.expect(self.segment);
        }
        let taken = shared || !T::STAGES && self.push_segment(len, build);
        if taken {
            self.budget = self.budget.saturating_sub(len);
        }
        taken
    }
}
