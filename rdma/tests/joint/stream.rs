//! One end of a connection, whose owner checks every event against the work posted.

use core::ops::Range;
use std::collections::VecDeque;

use iwarp_alloc_counter::{counted, watched};
use rdma::verbs::{MemoryRegion, PostError, QpState};
use rdma::{CloseHow, Env, ErrorCode, RdmaStats, RegionId, Sink, StagTable, StreamId, WcOpcode};
use tcp_stack::testutil::{HeapBuf, HeapPool, Random};
use tcp_stack::{Buf, BufClass, BufPool, CloseReason, ConnId, Duration, Instant, Segment, Stack};

use crate::engine::{Engine, EngineEnv, Local};
use crate::model::{Buffer, Place, Shared, Ticket, Watched};
use crate::scenario::{ConnPlan, Ending, SidePlan, Violation};
use crate::verbs::{self, HostDevice};
use crate::work::pieces;

/// Bytes before and after a window that must not be accessed.
pub(crate) const GUARD: u64 = 64;
/// Bytes that a stream may queue before other streams transmit.
const BUDGET: usize = 64 << 10;

/// Maximum number of consecutive transmit passes that send nothing although TCP reported room.
const IN_VAIN_MAX: u32 = 20;

/// Objects that the streams of a host share.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) stack: Stack<HeapBuf>,
    pub(crate) pool: HeapPool,
    pub(crate) stags: StagTable,
    pub(crate) memory: Watched,
    pub(crate) stats: RdmaStats,
    pub(crate) device: HostDevice,
    pub(crate) verbs: verbs::Shared,
}

/// Transmit side of a stream on TCP: one FPDU, one buffer, one segment.
struct StreamSink<'a> {
    stack: &'a mut Stack<HeapBuf>,
    pool: &'a mut HeapPool,
    conn: ConnId,
    now: Instant,
    budget: usize,
}

impl Sink for StreamSink<'_> {
    fn fpdu_max(&self) -> usize {
        self.stack.emss(self.conn).min(self.pool.data_room())
    }

    fn room(&self) -> usize {
        self.stack.send_capacity(self.conn).min(self.budget)
    }

    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        if len > self.room() {
            return false;
        }
        let taken = (len <= self.fpdu_max() / 2 && self.stack.append(self.conn, len, build))
            || self.push_segment(len, build);
        self.budget -= if taken { len } else { 0 };
        taken
    }
}

impl StreamSink<'_> {
    fn push_segment(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let Some(mut buf) = self.pool.alloc(BufClass::Data) else { return false };
        let Some(bytes) = buf.append(len) else { return false };
        build(bytes);
        self.stack.send(self.now, self.conn, buf).is_ok()
    }
}

/// A posted send request.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) op: WcOpcode,
    pub(crate) len: u32,
    /// Region of the peer that it accesses, if any.
    pub(crate) remote: Option<Place>,
    /// Bytes that it sends.
    pub(crate) source: Option<Range<u64>>,
    /// True if its success produces a completion.
    pub(crate) signaled: bool,
    /// True for Immediate Data, which completes as a Send.
    pub(crate) immediate: bool,
    /// Memory region that it invalidates when done.
    pub(crate) region: Option<MemoryRegion>,
    /// Key that it makes valid or invalid.
    pub(crate) key: Option<Ticket>,
}

impl Posted {
    pub(crate) const fn new(id: u64, op: WcOpcode, len: u32) -> Self {
        Self {
            id,
            op,
            len,
            remote: None,
            source: None,
            signaled: false,
            immediate: false,
            region: None,
            key: None,
        }
    }
}

/// Result of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) established: bool,
    pub(crate) rejected: bool,
    pub(crate) terminate_sent: Option<ErrorCode>,
    pub(crate) terminate_received: Option<ErrorCode>,
    pub(crate) close: Option<CloseHow>,
    pub(crate) tcp: Option<CloseReason>,
    /// Number of send requests posted, succeeded and flushed.
    pub(crate) work: [u32; 3],
    /// Bytes of those that succeeded.
    pub(crate) bytes: u64,
    /// Number of messages received.
    pub(crate) received: u32,
    /// Number of requests that succeeded, by operation: Write, Read, Send, Atomic, Immediate, Bind, Invalidate.
    pub(crate) by_op: [u32; 7],
    /// Number of requests that succeeded unsignaled; that were posted inline; and with lists of several parts.
    pub(crate) unsignaled: u64,
    pub(crate) inline: u64,
    pub(crate) lists: u64,
    /// Bytes placed out-of-order; of these, bytes not delivered before the stream ended, and bytes retransmitted with
    /// other segment boundaries.
    pub(crate) taken: [u64; 3],
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) connection: usize,
    pub(crate) side: usize,
    pub(crate) host: usize,
    pub(crate) plan: SidePlan,
    pub(crate) ending: Ending,
    pub(crate) window: u32,
    pub(crate) base_to: [u64; 2],
    pub(crate) conn: ConnId,
    pub(crate) id: StreamId,
    pub(crate) engine: Engine,
    /// Verbs objects, if the engine is a queue pair.
    pub(crate) objects: Option<verbs::Own>,
    pub(crate) model: Shared,
    pub(crate) random: Random,
    pub(crate) outcome: Outcome,
    pub(crate) posted: VecDeque<Posted>,
    /// Set once no more work is posted.
    pub(crate) stopped: bool,
    /// True if used buffers are not posted again.
    pub(crate) withholds: bool,
    pub(crate) ord: u16,
    /// IRD, ORD and use of CRCs, as established.
    pub(crate) terms: Option<(u16, u16, bool)>,
    pub(crate) post_at: Option<Instant>,
    pub(crate) blocked: u32,
    pub(crate) reposts: VecDeque<(Instant, u64)>,
    /// Stream position and length of bytes placed out-of-order and not delivered.
    pub(crate) taken: Vec<(u64, u64)>,
    unread: usize,
    read_at: Option<Instant>,
    pub(crate) linger_deadline: Option<Instant>,
    /// Set once TCP is closed.
    pub(crate) left: bool,
    retry_at: Option<Instant>,
    pub(crate) needs_turn: bool,
    /// Consecutive transmit passes that sent nothing although TCP reported room.
    in_vain: u32,
    /// Set when TCP reports room.
    pub(crate) room_notified: bool,
    /// Set by a completion, so that memory is checked.
    pub(crate) check_memory: bool,
    /// Private data that the peer must receive; bit flips may change it.
    pub(crate) private_data: [Vec<u8>; 2],
    pub(crate) hostile: bool,
    pub(crate) rejects: bool,
    pub(crate) log: Option<Vec<String>>,
}

pub(crate) fn since_start(now: Instant) -> Duration {
    Duration::from_nanos(now.as_nanos())
}

fn instant(since_start: Duration) -> Instant {
    Instant::from_nanos(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
}

impl Stream {
    #[allow(clippy::too_many_arguments, reason = "each is a part of the stream's place in the run")]
    pub(crate) fn new(
        (connection, side): (usize, usize),
        plan: &ConnPlan,
        conn: ConnId,
        id: StreamId,
        engine: Engine,
        model: Shared,
        random: Random,
        private_data: [Vec<u8>; 2],
    ) -> Self {
        let slots = u64::from(plan.sides[side].receive_queue);
        // The peer must send more messages than there are buffers.
        let withholds = plan.ending.violation_by_peer_of(side) == Some(Violation::SendNoBuffer);
        Self {
            connection,
            side,
            host: plan.host(side),
            plan: plan.sides[side],
            ending: plan.ending,
            window: plan.window,
            base_to: [0, 1].map(|side| base_to(connection, side)),
            conn,
            id,
            engine,
            objects: None,
            model,
            random,
            outcome: Outcome::default(),
            posted: VecDeque::new(),
            stopped: false,
            withholds,
            ord: 0,
            terms: None,
            post_at: None,
            blocked: 0,
            reposts: (0..slots).map(|slot| (Instant::ZERO, slot)).collect(),
            taken: Vec::new(),
            unread: 0,
            read_at: None,
            linger_deadline: None,
            left: false,
            retry_at: None,
            needs_turn: true,
            in_vain: 0,
            room_notified: false,
            check_memory: false,
            private_data,
            hostile: false,
            rejects: false,
            log: None,
        }
    }

    /// Returns the region whose window the peer uses.
    pub(crate) fn open(&self, host: usize) -> Place {
        Place { host, region: open_region(self.connection) }
    }

    /// Returns the region with sources, sinks and buffers.
    pub(crate) fn own(&self) -> Place {
        Place { host: self.host, region: own_region(self.connection) }
    }

    /// Calls the engine; in full operation it must not allocate.
    pub(crate) fn act<R>(
        &mut self,
        tools: &mut Tools,
        work: impl FnOnce(&mut Engine, &mut Tools) -> R,
    ) -> Result<R, String> {
        let was_full = self.engine.is_full(tools);
        let before = counted();
        let result = watched(|| work(&mut self.engine, tools));
        let allocations = counted() - before;
        if was_full && self.engine.is_full(tools) && allocations > 0 {
            return Err(format!("{allocations} allocations in full operation"));
        }
        Ok(result)
    }

    pub(crate) fn receive(
        &mut self,
        now: Instant,
        offset: u64,
        segment: Segment<HeapBuf>,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let len = segment.len() as u64;
        self.unread += segment.len();
        let again = !segment.was_taken();
        let ends = self.taken.iter().filter(|(start, taken)| offset < start + taken && *start < offset + len);
        self.outcome.taken[2] += u64::from(again && ends.count() > 0);
        self.taken.retain(|(start, taken)| start + taken > offset + len);
        self.model.borrow_mut().receiving = Some((self.connection, self.side));
        self.act(tools, |engine, tools| engine.receive(now, offset, segment, tools))?;
        self.model.borrow_mut().receiving = None;
        self.needs_turn = true;
        self.collect(now, tools)
    }

    /// Passes bytes behind a gap to the engine, which places their Writes.
    pub(crate) fn receive_out_of_order(&mut self, tools: &mut Tools) -> Result<(), String> {
        let conn = self.conn;
        let mut taken = [(0, 0); 64];
        let count = self.act(tools, |engine, tools| {
            let Tools { stack, stags, memory, stats, device, .. } = tools;
            let mut lent = EngineEnv { device, env: Env { stags, memory, stats } };
            let mut count = 0;
            stack.offer_out_of_order(conn, &mut |offset, bytes| {
                let takes = engine.receive_out_of_order(offset, bytes, &mut lent);
                if takes && let Some(place) = taken.get_mut(count) {
                    (*place, count) = ((offset, bytes.len() as u64), count + 1);
                }
                takes
            });
            count
        })?;
        for span in taken.into_iter().take(count) {
            self.outcome.taken[0] += span.1;
            self.taken.push(span);
        }
        Ok(())
    }

    pub(crate) fn peer_closed(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        self.engine.peer_closed(now, tools);
        self.needs_turn = true;
        self.collect(now, tools)
    }

    /// Handles the end of TCP.
    pub(crate) fn closed(
        &mut self,
        now: Instant,
        reason: CloseReason,
        tools: &mut Tools,
    ) -> Result<(), String> {
        if self.outcome.tcp.replace(reason).is_some() {
            return Err("TCP closed twice".into());
        }
        self.engine.transport_lost(tools);
        self.collect(now, tools)?;
        tools.stags.revoke_stream(self.id);
        if self.outcome.close.is_none() {
            return Err("the transport is lost, and no end is reported".into());
        }
        if let (Engine::Verbs(handle), Some(own)) = (&self.engine, &mut self.objects) {
            own.end(handle, tools)?;
        }
        (self.linger_deadline, self.read_at, self.retry_at) = (None, None, None);
        Ok(())
    }

    /// Leaves without a disconnect: TCP sends the queued data, then FIN.
    pub(crate) fn leave(&mut self, now: Instant, tools: &mut Tools) {
        tools.stack.close(now, self.conn);
        self.left = true;
        self.engine.transport_lost(tools);
    }

    /// Resets the connection: through the transport, or by the state of its queue pair.
    pub(crate) fn abort(&mut self, now: Instant, tools: &mut Tools) {
        match self.engine {
            Engine::Verbs(conn) if self.random.below(2) == 0 => {
                let _ = tools.device.modify_qp(conn.qp, QpState::Error, since_start(now));
            }
            _ => tools.stack.abort(now, self.conn),
        }
    }

    /// Returns the time of its next work without an event.
    pub(crate) fn deadline(&self, tools: &Tools) -> Option<Instant> {
        if self.outcome.tcp.is_some() {
            return None;
        }
        let repost = self.reposts.front().filter(|_| !self.is_over() && !self.plan.srq).map(|(at, _)| *at);
        let endpoint = self.engine.next_deadline(tools).map(instant);
        let post = self.post_at.filter(|_| !self.stopped);
        [endpoint, post, repost, self.read_at, self.linger_deadline, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns true once the endpoint has raised its last event.
    pub(crate) const fn is_over(&self) -> bool {
        self.outcome.close.is_some()
    }

    /// Runs the timers.
    pub(crate) fn handle_timeout(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        if self.outcome.tcp.is_some() {
            return Ok(());
        }
        if self.linger_deadline.is_some_and(|until| until <= now) {
            tools.stack.abort(now, self.conn);
            self.linger_deadline = None;
        }
        if self.engine.next_deadline(tools).is_some_and(|at| instant(at) <= now) {
            self.act(tools, |engine, tools| engine.handle_timeout(now, tools))?;
            self.needs_turn = true;
            self.collect(now, tools)?;
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.needs_turn = true;
        }
        Ok(())
    }

    /// Consumes received bytes, which opens the window.
    pub(crate) fn read(&mut self, now: Instant, tools: &mut Tools) {
        if self.read_at.is_some_and(|at| now < at) {
            return;
        }
        let most = self.plan.reads_slowly.filter(|_| !self.is_over());
        let bytes = most.map_or(self.unread, |most| self.unread.min(most as usize));
        self.read_at = (bytes < self.unread).then(|| now + Duration::from_millis(1));
        if bytes > 0 && self.outcome.tcp.is_none() {
            self.unread -= bytes;
            tools.stack.consumed(self.conn, bytes);
        }
    }

    /// Posts the buffers that are due.
    pub(crate) fn post_buffers(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        while let Some((at, slot)) = self.reposts.front().copied()
            && at <= now
            && !self.plan.srq
            && !self.is_over()
        {
            self.reposts.pop_front();
            let start = self.slots_start() + slot * u64::from(self.plan.slot_len);
            let range = start..start + u64::from(self.plan.slot_len);
            let id = self.model.borrow_mut().next_id();
            let local = Local { pieces: pieces(&range, self.plan.sges, &mut self.random), inline: None };
            let (own, list) = (self.own(), self.list(&local, None));
            let region = RegionId(own.region);
            match self.act(tools, |engine, tools| engine.post_recv(id, &local, region, &list, tools))? {
                Ok(()) => {}
                Err(PostError::State) => return Ok(()),
                Err(error) => return Err(format!("a buffer is refused: {error}")),
            }
            self.note_sink(own, id, &local, None);
            let buffer = Buffer { id, place: own, slot, message: None };
            self.model.borrow_mut().offers[self.connection][self.side].buffers.push_back(buffer);
            // It may have been flushed at once.
            self.collect(now, tools)?;
        }
        Ok(())
    }

    /// Returns the offset of the posted buffers' slots in the local region.
    pub(crate) fn slots_start(&self) -> u64 {
        work_area(&self.plan)
    }

    /// Runs the endpoint's output.
    pub(crate) fn pump(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        self.needs_turn = false;
        let conn = self.conn;
        let (progress, budget) = self.act(tools, |engine, tools| {
            let Tools { stack, pool, stags, memory, stats, device, .. } = tools;
            let mut sink = StreamSink { stack, pool, conn, now, budget: BUDGET };
            let mut lent = EngineEnv { device, env: Env { stags, memory, stats } };
            let progress = engine.poll_transmit(now, &mut lent, &mut sink);
            (progress, sink.budget)
        })?;
        let notified = core::mem::take(&mut self.room_notified);
        if progress.pending {
            let least = tools.stack.emss(conn).max(tcp_stack::SEND_LEAST);
            if tools.stack.send_capacity(conn) < least && budget > 0 {
                tools.stack.notify_writable(conn);
                self.in_vain = if notified && progress.frames == 0 { self.in_vain + 1 } else { 0 };
                if self.in_vain > IN_VAIN_MAX {
                    return Err("notified again and again of room that is not there".into());
                }
            } else {
                // The pool has no buffer, or other streams must transmit.
                self.retry_at = Some(now + Duration::from_micros(20));
            }
        }
        self.collect(now, tools)
    }
}

/// Returns the tagged offset of the first byte of a side's window: 0, an address, or one near the end of all offsets.
pub(crate) const fn base_to(connection: usize, side: usize) -> u64 {
    match (connection + side) % 3 {
        0 => 0,
        1 => 0x7f12_3456_7000,
        _ => u64::MAX - 0xff_ffff,
    }
}

pub(crate) fn open_region(connection: usize) -> u32 {
    u32::try_from(connection * 2).unwrap_or(u32::MAX)
}

pub(crate) fn own_region(connection: usize) -> u32 {
    u32::try_from(connection * 2 + 1).unwrap_or(u32::MAX)
}

/// Returns the bytes of the local region for sources and sinks.
pub(crate) fn work_area(plan: &SidePlan) -> u64 {
    u64::from(plan.len_max) * 3 + 4096
}
