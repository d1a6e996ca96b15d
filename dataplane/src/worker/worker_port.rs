//! One port on one worker: its queues, its buffers, its protocols.

use std::time::Duration;

use arrayvec::ArrayVec;
use rdma::RegionId;
use rtrb::{Consumer, Producer};
use tcp_stack::{BufPool, Instant, RxFrame, TxFrame};

use super::steer::Mesh;
use crate::dpdk::{
    BURST, Mbuf, MbufPool, PortQueues, ReleaseLast, RxQueue, RxQueueStats, TxBatch, TxQueue, TxQueueStats,
};
use crate::engine::{Engine, PortProtocols};
use crate::memory::WorkerMemory;

/// Frames of other workers that wait for the one transmit queue of a port at most.
const RELAY_FRAMES: usize = 512;

/// A round that works looks at the timers so long after it was last known that none was due: an eighth of the tick of
/// TCP's wheel.
const TIMERS_EVERY: Duration = Duration::from_micros(16);

/// Bytes of the next buffer that are asked for when frames have left: those of a small message.
const NEXT_BYTES: usize = 256;

/// How a worker's frames reach the port.
#[derive(Debug)]
pub enum Transmit {
    /// A queue of its own, and the workers that have none and send through it.
    Queue {
        /// The queue.
        queue: TxQueue,
        /// Frames of the other workers.
        relayed: Vec<Consumer<TxFrame<Mbuf>>>,
    },
    /// The port is gone, and with it the queue: frames are dropped.
    Gone {
        /// What the receive queue had counted.
        rx: RxQueueStats,
        /// What the transmit queue had counted, and the frames dropped since.
        tx: TxQueueStats,
        /// Frames of the other workers.
        relayed: Vec<Consumer<TxFrame<Mbuf>>>,
    },
    /// The port has fewer queues than workers: through worker 0.
    Relay(Producer<TxFrame<Mbuf>>),
}

/// One port on one worker, and the protocols that it runs.
#[derive(Debug)]
pub struct WorkerPort<E = Engine<MbufPool, WorkerMemory>> {
    engine: E,
    /// `None` where the port has fewer queues than workers.
    rx: Option<RxQueue>,
    tx: Transmit,
    pool: MbufPool,
    mesh: Mesh<Mbuf>,
    received: ArrayVec<Mbuf, BURST>,
    frames: ArrayVec<RxFrame<Mbuf>, BURST>,
    /// What the port has not taken yet.
    batch: TxBatch,
    /// Something was left to be sent when the last round that worked ended.
    had_output: bool,
    /// The last round has looked at the port.
    looked: bool,
    /// When the engine is due though no frame arrives; `None`: not asked since its last step.
    due: Option<Instant>,
    /// When a round looks at the timers though it was not asked when the engine is due.
    look_at: Instant,
}

impl<E: PortProtocols<Pool = MbufPool>> WorkerPort<E> {
    /// Joins the parts.
    pub fn new(engine: E, rx: Option<RxQueue>, tx: Transmit, pool: MbufPool, mesh: Mesh<Mbuf>) -> Self {
        Self {
            engine,
            rx,
            tx,
            pool,
            mesh,
            received: ArrayVec::new(),
            frames: ArrayVec::new(),
            batch: TxBatch::new(),
            had_output: false,
            looked: false,
            due: None,
            look_at: Instant::ZERO,
        }
    }

    /// One round: a burst in, a step of the engine, a burst out. Returns how many frames it moved. Most rounds of a
    /// worker that waits find nothing to do, and see that at once: what they take is what the next frame waits.
    #[inline]
    pub fn poll(&mut self, now: Instant) -> usize {
        // What the program has asked for since the last round is on its way before the port is looked at again; but the
        // port is looked at every other round at least.
        let output = self.has_output();
        self.looked = !(output && self.looked && !self.had_output);
        let received = if self.looked { self.receive() } else { 0 };
        if received == 0 && !output && now < self.due() && !self.has_relayed() {
            return 0;
        }
        let moved = self.work(now, received);
        self.had_output = self.has_output();
        moved
    }

    /// A round with something to do.
    fn work(&mut self, now: Instant, received: usize) -> usize {
        let asked = self.due.take();
        let due = asked.unwrap_or(self.look_at) <= now;
        if due || asked.is_some() {
            self.look_at = now + TIMERS_EVERY;
        }
        let room = self.room();
        let Self { engine, pool, tx, batch, frames, .. } = self;
        let mut drain = Ahead::new(frames.drain(..));
        // `room` has counted the places: neither can be full.
        let mut emit = |frame: TxFrame<Mbuf>| match tx {
            Transmit::Queue { .. } | Transmit::Gone { .. } => drop(batch.push(frame)),
            Transmit::Relay(ring) => drop(ring.push(frame)),
        };
        let releases = ReleaseLast::new();
        let emitted = engine.poll(now, due, &mut drain, pool, &mut emit, room);
        drop(drain);
        // Before acknowledgments leave: what a peer in this process frees last goes back to where it came from.
        drop(releases);
        self.transmit();
        self.engine.run_deferred();
        if emitted > 0 {
            // Not before: the frames would wait for it.
            self.pool.expect(NEXT_BYTES);
        }
        received + emitted
    }

    /// Fills `frames` with what is this worker's; returns how many frames the port or a ring brought.
    fn receive(&mut self) -> usize {
        let Self { rx, tx, received, frames, mesh, pool, .. } = self;
        let mut brought = 0;
        if let Some(queue) = rx {
            brought = queue.burst(received);
            if brought > 0 {
                if let Transmit::Queue { queue: tx, .. } = tx {
                    // Mostly an answer follows, or an acknowledgment.
                    tx.expect();
                }
                if pool.is_low() {
                    queue.spare_buffers(received);
                }
            }
        }
        let alone = mesh.is_alone();
        for mbuf in received.drain(..) {
            let kept = if alone { Some(mbuf) } else { mesh.keep(mbuf, pool) };
            frames.extend(kept.map(frame));
        }
        while !alone && !frames.is_full() {
            let Some(mbuf) = mesh.take() else { break };
            brought += 1;
            frames.push(frame(mbuf));
        }
        brought
    }

    /// Frames that may be emitted in this round.
    fn room(&self) -> usize {
        match &self.tx {
            Transmit::Queue { .. } | Transmit::Gone { .. } => BURST.saturating_sub(self.batch.len()),
            Transmit::Relay(ring) => ring.slots().min(BURST),
        }
    }

    fn transmit(&mut self) {
        let Self { tx, batch, .. } = self;
        match tx {
            Transmit::Queue { queue, relayed } => {
                fill(batch, relayed);
                queue.burst(batch);
            }
            Transmit::Gone { tx, relayed, .. } => {
                fill(batch, relayed);
                tx.drop_port_gone = tx.drop_port_gone.wrapping_add(batch.len() as u64);
                batch.clear();
            }
            Transmit::Relay(_) => {}
        }
    }

    /// Gives up the queues: the port is gone. What is to be sent is dropped until [`WorkerPort::attach`].
    pub fn detach(&mut self) {
        let Transmit::Queue { queue, relayed } = &mut self.tx else { return };
        let (tx, relayed) = (*queue.stats(), std::mem::take(relayed));
        let rx = self.rx.take().map(|queue| *queue.stats()).unwrap_or_default();
        self.tx = Transmit::Gone { rx, tx, relayed };
        // What the old queue had not taken is dropped with the rest.
        self.transmit();
    }

    /// Takes queues in the place of those that were [given up](WorkerPort::detach).
    pub fn attach(&mut self, queues: PortQueues) {
        let Transmit::Gone { rx: received, tx: sent, relayed } = &mut self.tx else { return };
        let PortQueues { mut rx, tx: mut queue } = queues;
        rx.resume(*received);
        queue.resume(*sent);
        let relayed = std::mem::take(relayed);
        (self.rx, self.tx) = (Some(rx), Transmit::Queue { queue, relayed });
    }

    /// Sleeps until a frame arrives or the time is up; `false` when this port cannot tell.
    pub fn wait(&mut self, time: Duration) -> bool {
        match &mut self.rx {
            Some(queue) if queue.has_descriptor() => {
                queue.wait(None, time);
                true
            }
            _ => false,
        }
    }

    /// Resets every connection and lets the frames that say so leave, in a bounded number of rounds.
    pub fn shut_down(&mut self, now: Instant) {
        self.engine.abort_all(now);
        for _ in 0..4096 {
            self.poll(now);
            if self.batch.is_empty() && !self.engine.has_output() {
                break;
            }
        }
    }

    /// When the engine is due at the latest, though no frame arrives.
    #[inline]
    pub fn due(&mut self) -> Instant {
        let Self { engine, due, .. } = self;
        *due.get_or_insert_with(|| engine.next_deadline().unwrap_or(Instant::MAX))
    }

    /// Whether a worker that sends through this one's queue has a frame for it.
    fn has_relayed(&self) -> bool {
        match &self.tx {
            Transmit::Queue { relayed, .. } | Transmit::Gone { relayed, .. } => {
                relayed.iter().any(|ring| !ring.is_empty())
            }
            Transmit::Relay(_) => false,
        }
    }

    /// Whether frames wait to be sent, or the engine has something to do at once.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.batch.is_empty() || self.engine.has_output()
    }

    /// The protocols.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The protocols.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Its packet buffers.
    pub fn pool(&self) -> &MbufPool {
        &self.pool
    }

    /// What it passed on to other workers.
    pub fn steer_stats(&self) -> &super::steer::SteerStats {
        &self.mesh.stats
    }

    /// The receive queue's counters, and the transmit queue's; zeros for a queue that this worker does not have.
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
    /// Revokes every grant on a region and lets go of its memory; returns how many grants there were.
    pub fn region_revoke(&mut self, region: RegionId) -> u64 {
        let revoked = self.engine.region_revoke(region);
        self.engine.memory_mut().detach(region);
        revoked as u64
    }
}

/// Moves frames of other workers into a batch, as many as fit.
fn fill(batch: &mut TxBatch, relayed: &mut [Consumer<TxFrame<Mbuf>>]) {
    for ring in relayed {
        while !batch.is_full() {
            let Ok(frame) = ring.pop() else { break };
            drop(batch.push(frame));
        }
    }
}

/// Frames in order, the next of which is fetched into the cache while one is looked at.
struct Ahead<I> {
    next: Option<RxFrame<Mbuf>>,
    rest: I,
}

impl<I: Iterator<Item = RxFrame<Mbuf>>> Ahead<I> {
    fn new(mut rest: I) -> Self {
        Self { next: rest.next(), rest }
    }
}

impl<I: Iterator<Item = RxFrame<Mbuf>>> Iterator for Ahead<I> {
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

/// One port's places for all workers: who has a queue, and who sends through whom.
#[derive(Debug)]
pub struct Relays {
    /// For worker 0: from each worker without a queue.
    pub to_first: Vec<Consumer<TxFrame<Mbuf>>>,
    /// For each worker without a queue, in order.
    pub from_others: Vec<Producer<TxFrame<Mbuf>>>,
}

impl Relays {
    /// Rings for `workers` workers without a queue of their own.
    pub fn new(workers: usize) -> Self {
        let (from_others, to_first) = (0..workers).map(|_| rtrb::RingBuffer::new(RELAY_FRAMES)).unzip();
        Self { to_first, from_others }
    }
}

fn frame(mbuf: Mbuf) -> RxFrame<Mbuf> {
    RxFrame { checksum: mbuf.rx_checksum(), buf: mbuf }
}
