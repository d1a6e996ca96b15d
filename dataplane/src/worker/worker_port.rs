//! One worker's share of one port: its queues, its packet buffers and its protocols. `PollLoop` polls every one of a
//! thread in each iteration.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use iwarp_engine::Engine;
use iwarp_engine::memory::WorkerMemory;
use rdma::RegionId;
use rtrb::{Consumer, Producer};
use tcp_stack::{BufPool, Instant, RxFrame, Stack, TxFrame};

use super::loopback::{Loopback, LoopbackStats};
use super::rx_burst::RxBurst;
use super::steer::Mesh;
use crate::capture::{Capture, CaptureStats, Tap};
use crate::dpdk::{BURST, Mbuf, MbufPool, Offloads, ReleaseLast, RxQueueStats, TxBatch, TxQueueStats};
use crate::port::{PortQueues, RxQueue, TxQueue};

/// The engine of a port on one worker: our TCP over DPDK's packet buffers, and region memory.
pub type PortEngine = Engine<Stack<Mbuf>, WorkerMemory>;

/// Capacity of the ring that carries frames from a worker without a transmit queue to worker 0.
const RELAY_FRAMES: usize = 512;

/// Longest time between two checks of expired timers while frames keep arriving: a tick of TCP's timer wheel.
const TIMER_CHECK_INTERVAL: Duration = Duration::from_micros(8);

/// Time for which a port may accept no frame, with a full batch, before that is dropped. Otherwise a port without a
/// link would keep the worker from sending to its own addresses.
const STALL_MAX: Duration = Duration::from_millis(100);

/// Bytes of the next packet buffer to prefetch after frames were sent: those of a small message.
const NEXT_BUFFER_BYTES: usize = 256;

/// Path of a worker's frames to the port.
#[derive(Debug)]
pub enum Transmit {
    /// This worker's own transmit queue, which workers without one share.
    Queue {
        /// Transmit queue of this worker.
        queue: TxQueue,
        /// Frames of the workers without a queue.
        relayed: Vec<Consumer<TxFrame<Mbuf>>>,
    },
    /// The port has disappeared, and its queues with it: frames to send are dropped and counted.
    Gone {
        /// Counters of the receive queue at the time of the loss.
        rx: RxQueueStats,
        /// Counters of the transmit queue at the time of the loss, plus the frames dropped since.
        tx: TxQueueStats,
        /// Frames of the workers without a queue.
        relayed: Vec<Consumer<TxFrame<Mbuf>>>,
    },
    /// The port has fewer queues than workers: frames go through worker 0.
    Relay(Producer<TxFrame<Mbuf>>),
}

impl Transmit {
    /// Returns the path of a port that is not open yet.
    pub fn absent(relayed: Vec<Consumer<TxFrame<Mbuf>>>) -> Self {
        Self::Gone { rx: RxQueueStats::default(), tx: TxQueueStats::default(), relayed }
    }
}

/// One worker's share of a port, and the protocols that it runs.
#[derive(Debug)]
pub struct WorkerPort {
    engine: PortEngine,
    /// `None` if the port has fewer queues than workers.
    rx: Option<RxQueue>,
    tx: Transmit,
    pool: MbufPool,
    mesh: Mesh<Mbuf>,
    /// The offloads of the port, which limit how far its checksum verdicts count.
    offloads: Offloads,
    received: RxBurst<Mbuf>,
    frames: ArrayVec<RxFrame<Mbuf>, BURST>,
    /// Frames sent to the port's own addresses.
    loopback: Loopback<Mbuf>,
    /// Time since which the port has accepted no frame although the batch was full.
    stalled_since: Option<Instant>,
    /// Frames that the port has not accepted yet.
    batch: TxBatch,
    /// True if output was left over when the last iteration with work ended.
    had_output: bool,
    /// True if the last iteration polled the receive queue.
    polled_rx: bool,
    /// Copies frames for an operator, while one captures.
    capture: Capture,
    /// Next deadline of the protocols, cached; `None` after every poll, until somebody asks for it.
    due: Option<Instant>,
    /// Time of the next check for expired timers while `due` is `None`.
    next_timer_check: Instant,
}

impl WorkerPort {
    /// Creates a port share that has received and sent nothing.
    pub fn new(
        engine: PortEngine,
        (rx, tx): (Option<RxQueue>, Transmit),
        offloads: Offloads,
        pool: MbufPool,
        mesh: Mesh<Mbuf>,
    ) -> Self {
        Self {
            engine,
            rx,
            tx,
            pool,
            mesh,
            offloads,
            received: RxBurst::new(),
            frames: ArrayVec::new(),
            loopback: Loopback::new(),
            stalled_since: None,
            batch: TxBatch::new(),
            had_output: false,
            polled_rx: false,
            capture: Capture::default(),
            due: None,
            next_timer_check: Instant::ZERO,
        }
    }

    /// Runs one poll iteration: receives a burst, polls the protocols and transmits a burst. Returns the number of
    /// frames moved. Most iterations of a waiting worker find nothing to do and return early, because their length is
    /// latency for the next frame.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> usize {
        // Requests posted since the last iteration are transmitted before the receive queue is polled again. The
        // receive queue is still polled in every other iteration at least, and the second half of a burst does not
        // wait.
        let output = self.has_output();
        self.polled_rx = !(self.received.is_empty() && output && self.polled_rx && !self.had_output);
        let received = if self.polled_rx { self.receive(now) } else { 0 };
        if received == 0 && !output && now < self.due() && !self.has_relayed() && !self.engine.contexts_wait()
        {
            // Frames may have come for others alone.
            self.mesh.ring_bells();
            return 0;
        }
        let moved = self.poll_busy(now, received);
        self.had_output = self.has_output();
        moved
    }

    /// Runs the rest of an iteration that has work: protocols, transmit and deferred work.
    fn poll_busy(&mut self, now: Instant, received: usize) -> usize {
        let cached = self.due.take();
        let due = cached.unwrap_or(self.next_timer_check) <= now;
        if due || cached.is_some() {
            self.next_timer_check = now + TIMER_CHECK_INTERVAL;
        }
        let room = self.room();
        let Self { engine, pool, tx, batch, frames, loopback, mesh, .. } = self;
        let mut drain = PrefetchNext::new(frames.drain(..));
        // `room` is the free space of each: none can be full.
        let mut emit = |frame: TxFrame<Mbuf>| match tx {
            _ if frame.offload.looped => loopback.push(frame.buf, mesh),
            Transmit::Queue { .. } | Transmit::Gone { .. } => drop(batch.push(frame)),
            Transmit::Relay(ring) => drop(ring.push(frame)),
        };
        let releases = ReleaseLast::new();
        let emitted = engine.poll(now, due, &mut drain, pool, &mut emit, room);
        drop(drain);
        // Frees held buffers before acknowledgments are sent, so that buffers that a peer in this process frees last
        // return to their own pool.
        drop(releases);
        self.transmit(now);
        self.mesh.ring_bells();
        self.engine.run_deferred(now, &mut self.pool);
        if emitted > 0 {
            // Prefetched only now: earlier, the frames would have waited for it.
            self.pool.expect(NEXT_BUFFER_BYTES);
        }
        received + emitted
    }

    /// Fills `frames` with the frames for this worker. Returns how many frames arrived from the port or from other
    /// workers.
    fn receive(&mut self, now: Instant) -> usize {
        let arrived = if self.loopback.has_turn() { 0 } else { self.receive_from_port(now) };
        let Self { frames, loopback, .. } = self;
        let others = frames.len();
        while !frames.is_full()
            && let Some(frame) = loopback.pop()
        {
            frames.push(frame);
        }
        arrived.saturating_add(frames.len().saturating_sub(others))
    }

    /// Fills `frames` with frames from the port and from other workers, and returns how many arrived.
    #[inline]
    fn receive_from_port(&mut self, now: Instant) -> usize {
        let Self { rx, tx, received, frames, mesh, pool, offloads, capture, .. } = self;
        let frame = |mbuf: Mbuf| RxFrame { checksum: mbuf.rx_checksum(*offloads), buf: mbuf };
        let mut arrived = 0;
        if received.is_empty()
            && let Some(queue) = rx
        {
            received.fill(|frames| {
                if queue.burst(frames) > 0 {
                    if capture.is_on() {
                        capture.received(now, frames);
                    }
                    if pool.is_low() {
                        // They count: in this iteration, connections give up buffers that they retain.
                        arrived = queue.spare_buffers(frames);
                    }
                }
            });
        }
        let (alone, part) = (mesh.is_alone(), received.take_part());
        arrived = part.len().saturating_add(arrived);
        if arrived > 0
            && let Transmit::Queue { queue, .. } = tx
        {
            // A response or an acknowledgment usually follows.
            queue.expect();
        }
        for mbuf in part {
            let kept = if alone { Some(frame(mbuf)) } else { mesh.keep(frame(mbuf), pool) };
            frames.extend(kept);
        }
        while !alone && !frames.is_full() {
            let Some(frame) = mesh.take() else { break };
            arrived += 1;
            frames.push(frame);
        }
        arrived
    }

    /// Number of frames that this iteration may emit.
    fn room(&self) -> usize {
        let room = match &self.tx {
            Transmit::Queue { .. } | Transmit::Gone { .. } => BURST.saturating_sub(self.batch.len()),
            Transmit::Relay(ring) => ring.slots().min(BURST),
        };
        room.min(self.loopback.room())
    }

    fn transmit(&mut self, now: Instant) {
        let Self { tx, batch, stalled_since, capture, .. } = self;
        match tx {
            Transmit::Queue { queue, relayed } => {
                fill(batch, relayed);
                let captures = capture.is_on();
                if captures {
                    capture.sent(now, batch.frames());
                }
                let sent = queue.burst(batch);
                if batch.is_full() || stalled_since.is_some() {
                    drop_if_stalled(queue, batch, (stalled_since, now), sent);
                }
                if captures {
                    capture.left(batch.len());
                }
            }
            Transmit::Gone { tx, relayed, .. } => {
                fill(batch, relayed);
                tx.drop_port_gone = tx.drop_port_gone.wrapping_add(batch.len() as u64);
                batch.clear();
            }
            Transmit::Relay(_) => {}
        }
    }

    /// Drops the queues of a port that has disappeared. Frames to send are dropped until [`WorkerPort::attach`].
    pub fn detach(&mut self) {
        let Transmit::Queue { queue, relayed } = &mut self.tx else { return };
        let (tx, relayed) = (*queue.stats(), std::mem::take(relayed));
        let rx = self.rx.take().map(|queue| *queue.stats()).unwrap_or_default();
        self.tx = Transmit::Gone { rx, tx, relayed };
        // Frames that the old queue had not accepted are dropped with the rest.
        self.transmit(Instant::ZERO);
    }

    /// Installs new queues after [`WorkerPort::detach`], whose counters continue.
    pub fn attach(&mut self, queues: PortQueues) {
        let Transmit::Gone { rx: received, tx: sent, relayed } = &mut self.tx else { return };
        let PortQueues { mut rx, tx: mut queue } = queues;
        rx.resume(*received);
        queue.resume(*sent);
        let relayed = std::mem::take(relayed);
        (self.rx, self.tx) = (Some(rx), Transmit::Queue { queue, relayed });
    }

    /// Borrows what a sleeping worker waits for: the receive queue, if its frames can end a [wait](RxQueue::wait), and
    /// the doorbells of the programs.
    pub(super) fn waits_for(&mut self) -> (Option<&mut RxQueue>, impl Iterator<Item = BorrowedFd<'_>>) {
        let Self { rx, engine, .. } = self;
        (rx.as_mut().filter(|queue| queue.has_descriptor()), engine.contexts_doorbells())
    }

    /// Returns true if everything that brings work to this port is among [`Self::waits_for`], or rings the worker's
    /// bell. A ring is filled by the worker itself, if it is the only one. A port that is gone has no frames until
    /// [`Self::attach`].
    pub(super) fn wakes_for_all(&self) -> bool {
        let alone = self.mesh.is_alone();
        let queue_does =
            self.rx.as_ref().is_none_or(|queue| alone && queue.is_ring() || queue.wakes_for_all());
        queue_does && !self.is_relay() && !self.engine.contexts_wait()
    }

    /// Returns true if other workers transmit through this one.
    fn is_relay(&self) -> bool {
        let (Transmit::Queue { relayed, .. } | Transmit::Gone { relayed, .. }) = &self.tx else {
            return false;
        };
        !relayed.is_empty()
    }

    /// Announces to programs and to other workers that the worker sleeps. Returns false if there is work for it.
    pub(super) fn sleeps(&self) -> bool {
        self.engine.contexts_sleep() && self.mesh.sleep()
    }

    /// Announces that the worker is awake.
    pub(super) fn awake(&self) {
        self.engine.contexts_awake();
        self.mesh.awake();
    }

    /// Resets every connection and transmits the RSTs, and those of other workers that wait here, in a bounded number
    /// of iterations.
    pub fn shut_down(&mut self, now: Instant) {
        self.engine.abort_all(now);
        for _ in 0..4096 {
            self.poll(now);
            if !self.has_output() && !self.has_relayed() {
                break;
            }
        }
    }

    /// Returns the time at which the protocols must be polled even if no frame arrives.
    #[inline]
    pub fn due(&mut self) -> Instant {
        let Self { engine, due, .. } = self;
        *due.get_or_insert_with(|| engine.next_deadline().unwrap_or(Instant::MAX))
    }

    /// Returns true if a frame of a worker without a transmit queue waits.
    fn has_relayed(&self) -> bool {
        match &self.tx {
            Transmit::Queue { relayed, .. } | Transmit::Gone { relayed, .. } => {
                relayed.iter().any(|ring| !ring.is_empty())
            }
            Transmit::Relay(_) => false,
        }
    }

    /// Returns true if frames wait to be sent, or the protocols have immediate work.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.batch.is_empty() || !self.loopback.is_empty() || self.engine.has_output()
    }

    /// Borrows the port's protocols.
    pub fn engine(&self) -> &PortEngine {
        &self.engine
    }

    /// Borrows the protocols mutably.
    pub fn engine_mut(&mut self) -> &mut PortEngine {
        &mut self.engine
    }

    /// Returns the pool of packet buffers.
    pub fn pool(&self) -> &MbufPool {
        &self.pool
    }

    /// Returns the counters of frames steered to other workers.
    pub fn steer_stats(&self) -> &super::steer::SteerStats {
        &self.mesh.stats
    }

    /// Returns the counters of frames to the port's own addresses.
    pub fn loopback_stats(&self) -> &LoopbackStats {
        &self.loopback.stats
    }

    /// Begins a capture, or ends one. Returns the one before.
    pub(super) fn set_capture(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        let before = self.capture.set(tap);
        // Frames that wait already were sent by the protocols before the capture began.
        self.capture.left(self.batch.len());
        before
    }

    /// Returns the counters of captures.
    pub(crate) fn capture_stats(&self) -> &CaptureStats {
        self.capture.stats()
    }

    /// Returns the counters of the receive and the transmit queue; zeros for a queue that this worker does not have.
    pub fn queue_stats(&self) -> (RxQueueStats, TxQueueStats) {
        let received = self.rx.as_ref().map(|queue| *queue.stats()).unwrap_or_default();
        match &self.tx {
            Transmit::Queue { queue, .. } => (received, *queue.stats()),
            Transmit::Gone { rx, tx, .. } => (*rx, *tx),
            Transmit::Relay(_) => (received, TxQueueStats::default()),
        }
    }
}

impl WorkerPort {
    /// Revokes every grant on a region and drops its memory. Returns the number of grants revoked.
    pub fn region_revoke(&mut self, region: RegionId) -> u64 {
        let revoked = self.engine.region_revoke(region);
        self.engine.memory_mut().detach(region);
        revoked as u64
    }
}

/// Moves frames of other workers into a batch until it is full.
fn fill(batch: &mut TxBatch, relayed: &mut [Consumer<TxFrame<Mbuf>>]) {
    for ring in relayed {
        while !batch.is_full() {
            let Ok(frame) = ring.pop() else { break };
            drop(batch.push(frame));
        }
    }
}

/// Drops a full batch of a port that has accepted no frame for [`STALL_MAX`], and from then on each full batch at once,
/// until the port accepts a frame again.
#[cold]
fn drop_if_stalled(
    queue: &mut TxQueue,
    batch: &mut TxBatch,
    (since, now): (&mut Option<Instant>, Instant),
    sent: usize,
) {
    if sent > 0 {
        *since = None;
    } else if batch.is_full() && now.saturating_since(*since.get_or_insert(now)) >= STALL_MAX {
        queue.drop_stalled(batch);
    }
}

/// Iterator over frames that prefetches the next frame while the caller processes the current one.
struct PrefetchNext<I> {
    next: Option<RxFrame<Mbuf>>,
    rest: I,
}

impl<I: Iterator<Item = RxFrame<Mbuf>>> PrefetchNext<I> {
    fn new(mut rest: I) -> Self {
        Self { next: rest.next(), rest }
    }
}

impl<I: Iterator<Item = RxFrame<Mbuf>>> Iterator for PrefetchNext<I> {
    type Item = RxFrame<Mbuf>;

    #[inline]
    fn next(&mut self) -> Option<RxFrame<Mbuf>> {
        let frame = self.next.take()?;
        self.next = self.rest.next();
        if let Some(next) = &self.next {
            next.buf.prefetch();
        }
        Some(frame)
    }
}

/// Rings between the workers without a transmit queue and worker 0, for one port.
#[derive(Debug)]
pub struct Relays {
    /// Receiving ends, for worker 0.
    pub to_first: Vec<Consumer<TxFrame<Mbuf>>>,
    /// Sending ends, one for each worker without a queue, in order.
    pub from_others: Vec<Producer<TxFrame<Mbuf>>>,
}

impl Relays {
    /// Creates rings for `workers` workers that have no queue.
    pub fn new(workers: usize) -> Self {
        let (from_others, to_first) = (0..workers).map(|_| rtrb::RingBuffer::new(RELAY_FRAMES)).unzip();
        Self { to_first, from_others }
    }
}
