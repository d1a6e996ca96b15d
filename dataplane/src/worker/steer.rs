//! Software steering: a mesh of rings through which workers pass frames to the worker that owns the connection.
//!
//! A connection lives on one worker. Segments to a port that an application listens on go to the application's worker.
//! Of the others: if the port spreads flows itself (RSS), every frame of a connection arrives at the queue of its
//! worker. If it does not, or spreads them by a rule of its own (the queues of a TAP), the receiving worker passes each
//! segment to the worker that [`flow_hash`](tcp_stack::wire::flow_hash) names. Either way, worker 0 answers frames that
//! are not TCP; the other workers get a copy, because their neighbor caches learn from it.

use std::sync::Arc;

use iwarp_engine::LocalPorts;
use rtrb::{Consumer, Producer, RingBuffer};
use tcp_stack::wire::{Flow, peek_flow};
use tcp_stack::{Buf, BufClass, BufPool, RxFrame};

use super::bell::Bell;

/// Capacity of the ring between two workers, frames; further frames are dropped and counted.
const RING_FRAMES: usize = 512;

iwarp_counters::counters! {
    /// Frames that one worker passed on to others, per port.
    pub struct SteerStats {
        /// Frames passed on to the worker of their connection.
        steered,
        /// Copies made of frames that are not TCP, so that every worker has one.
        copied,
        /// Frames and copies dropped because the ring to their worker was full.
        drop_ring_full,
        /// Copies not made because no packet buffer was left.
        drop_no_buffer,
    }
}

/// One worker's end of the mesh of one port.
#[derive(Debug)]
pub struct Mesh<B> {
    me: usize,
    /// True if the port spreads flows itself: segments stay on the worker that received them.
    port_spreads: bool,
    /// TCP ports that belong to one worker, wherever their segments arrive.
    local_ports: LocalPorts,
    /// Lanes to the other workers, by worker index; `None` at this worker's index.
    to: Vec<Option<Lane<B>>>,
    /// Rings from the other workers.
    from: Vec<Consumer<RxFrame<B>>>,
    /// This worker's bell; `None` if it is the only one.
    bell: Option<Arc<Bell>>,
    /// True if frames were passed on since the bells were rung.
    has_passed: bool,
    /// Counters of steered, copied and dropped frames.
    pub stats: SteerStats,
}

/// The way to another worker.
#[derive(Debug)]
struct Lane<B> {
    ring: Producer<RxFrame<B>>,
    bell: Arc<Bell>,
    /// True if frames were passed on since its bell was rung.
    has_passed: bool,
}

/// Creates the mesh of the workers with these bells, and returns their ends, in order.
pub fn mesh<B>(bells: &[Arc<Bell>], port_spreads: bool, local_ports: &LocalPorts) -> Vec<Mesh<B>> {
    let bell = |bell| (bells.len() > 1).then(|| Arc::clone(bell));
    let mut places: Vec<Mesh<B>> = bells
        .iter()
        .enumerate()
        .map(|(me, own)| Mesh { me, port_spreads, bell: bell(own), ..Mesh::alone(local_ports) })
        .collect();
    for sender in 0..bells.len() {
        for (receiver, bell) in bells.iter().enumerate() {
            let ring = (sender != receiver).then(|| RingBuffer::new(RING_FRAMES));
            let (producer, consumer) = ring.unzip();
            let lane = producer.map(|ring| Lane { ring, bell: Arc::clone(bell), has_passed: false });
            if let Some(place) = places.get_mut(sender) {
                place.to.push(lane);
            }
            if let Some(place) = places.get_mut(receiver) {
                place.from.extend(consumer);
            }
        }
    }
    places
}

impl<B> Mesh<B> {
    /// Creates the end of a worker that is the only one.
    pub fn alone(local_ports: &LocalPorts) -> Self {
        Self {
            me: 0,
            port_spreads: false,
            local_ports: local_ports.clone(),
            to: Vec::new(),
            from: Vec::new(),
            bell: None,
            has_passed: false,
            stats: SteerStats::default(),
        }
    }

    /// Announces that this worker sleeps. Returns false if a frame waits for it.
    pub(super) fn sleep(&self) -> bool {
        let Some(bell) = &self.bell else { return true };
        bell.sleep();
        self.from.iter().all(Consumer::is_empty)
    }

    /// Announces that this worker is awake.
    pub(super) fn awake(&self) {
        self.bell.iter().for_each(|bell| bell.awake());
    }

    /// Wakes the workers that frames were passed to since the last call.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if std::mem::take(&mut self.has_passed) {
            for lane in self.to.iter_mut().flatten() {
                if std::mem::take(&mut lane.has_passed) {
                    lane.bell.ring();
                }
            }
        }
    }
}

impl<B: Buf> Mesh<B> {
    /// Returns true if this is the only worker.
    pub fn is_alone(&self) -> bool {
        self.to.len() < 2
    }

    /// Steers a frame that the port delivered to this worker. Returns the frame, or a copy, if this worker must process
    /// it.
    pub fn keep<P: BufPool<Buf = B>>(&mut self, frame: RxFrame<B>, pool: &mut P) -> Option<RxFrame<B>> {
        match peek_flow(frame.buf.bytes()) {
            Flow::Tcp { hash, local_port } => {
                let owner = match self.local_ports.owner(local_port) {
                    Some(owner) => owner,
                    None if self.port_spreads => return Some(frame),
                    None => self.owner(hash),
                };
                self.keep_or_pass(owner, frame)
            }
            Flow::Other => {
                for other in 0..self.to.len() {
                    if other != self.me
                        && other != 0
                        && let Some(copy) = self.copy(&frame, pool)
                    {
                        self.pass(other, copy);
                    }
                }
                if self.me == 0 {
                    return Some(frame);
                }
                // The frame itself goes to worker 0; this worker keeps a copy.
                let copy = self.copy(&frame, pool);
                self.stats.steered += u64::from(self.pass(0, frame));
                copy
            }
        }
    }

    /// Steers a frame that this worker has sent to an address of the port itself. Returns the frame if this worker must
    /// process it. Its connection is where the hash says, because an active open chooses its port by that.
    pub fn keep_looped(&mut self, frame: RxFrame<B>) -> Option<RxFrame<B>> {
        match peek_flow(frame.buf.bytes()) {
            Flow::Tcp { hash, local_port } => {
                let owner = self.local_ports.owner(local_port).unwrap_or_else(|| self.owner(hash));
                self.keep_or_pass(owner, frame)
            }
            Flow::Other => Some(frame),
        }
    }

    /// Returns the worker that the hash of a flow names.
    fn owner(&self, hash: u32) -> usize {
        hash as usize % self.to.len().max(1)
    }

    fn keep_or_pass(&mut self, owner: usize, frame: RxFrame<B>) -> Option<RxFrame<B>> {
        if owner == self.me {
            return Some(frame);
        }
        self.stats.steered += u64::from(self.pass(owner, frame));
        None
    }

    /// Returns the next frame that another worker passed to this one.
    pub fn take(&mut self) -> Option<RxFrame<B>> {
        self.from.iter_mut().find_map(|ring| ring.pop().ok())
    }

    /// Passes a frame to another worker. Returns false if the ring is full.
    fn pass(&mut self, worker: usize, frame: RxFrame<B>) -> bool {
        let Some(lane) = self.to.get_mut(worker).and_then(Option::as_mut) else { return false };
        let passed = lane.ring.push(frame).is_ok();
        (self.has_passed, lane.has_passed) = (true, true);
        self.stats.drop_ring_full += u64::from(!passed);
        passed
    }

    fn copy<P: BufPool<Buf = B>>(&mut self, frame: &RxFrame<B>, pool: &mut P) -> Option<RxFrame<B>> {
        let copy = copy_of(frame, pool);
        match copy {
            Some(_) => self.stats.copied += 1,
            None => self.stats.drop_no_buffer += 1,
        }
        copy
    }
}

fn copy_of<P: BufPool>(frame: &RxFrame<P::Buf>, pool: &mut P) -> Option<RxFrame<P::Buf>> {
    let (mut buf, bytes) = (pool.alloc(BufClass::Control)?, frame.buf.bytes());
    buf.append(bytes.len())?.copy_from_slice(bytes);
    Some(RxFrame { buf, checksum: frame.checksum })
}

#[cfg(test)]
pub(super) mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use tcp_stack::RxChecksum;
    use tcp_stack::testutil::{HeapBuf, HeapPool};

    use super::*;

    pub(crate) fn bells(workers: usize) -> Vec<Arc<Bell>> {
        let counter = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        (0..workers).map(|_| Arc::new(Bell::new(counter()))).collect()
    }

    fn frame(pool: &mut HeapPool, bytes: &[u8]) -> RxFrame<HeapBuf> {
        RxFrame { buf: pool.copy(bytes).unwrap(), checksum: RxChecksum::Good }
    }

    /// An IPv4 segment from 10.0.0.1:`port` to 10.0.0.2:7400, headers only.
    pub(crate) fn segment(port: u16) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(port.to_be_bytes());
        bytes.extend(7400_u16.to_be_bytes());
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn every_segment_of_a_connection_reaches_the_same_worker() {
        let mut pool = HeapPool::new(4096, 0, 2048);
        let mut places = mesh(&bells(3), false, &LocalPorts::default());
        let mut owners = vec![0; 3];
        for port in 1000..1300 {
            let mut owner = None;
            for receiver in 0..3 {
                let kept = places[receiver].keep(frame(&mut pool, &segment(port)), &mut pool);
                let passed = (0..3).filter(|worker| places[*worker].take().is_some()).collect::<Vec<_>>();
                let found = if kept.is_some() { vec![receiver] } else { passed };
                assert_eq!(found.len(), 1);
                assert_eq!(*owner.get_or_insert(found[0]), found[0]);
            }
            owners[owner.unwrap()] += 1;
        }
        assert!(owners.iter().all(|count| *count > 50), "spread: {owners:?}");
    }

    #[test]
    fn a_port_that_spreads_flows_is_trusted() {
        let mut pool = HeapPool::new(64, 0, 2048);
        let mut places = mesh(&bells(2), true, &LocalPorts::default());
        for port in 1..30 {
            assert!(places[1].keep(frame(&mut pool, &segment(port)), &mut pool).is_some());
        }
    }

    #[test]
    fn a_port_of_one_worker_has_all_its_segments_there() {
        for port_spreads in [false, true] {
            let mut pool = HeapPool::new(4096, 0, 2048);
            let ports = LocalPorts::default();
            let mut places = mesh(&bells(3), port_spreads, &ports);
            assert!(ports.claim(7400, 2));
            for port in 1000..1100 {
                for receiver in 0..3 {
                    let kept = places[receiver].keep(frame(&mut pool, &segment(port)), &mut pool);
                    let found = if kept.is_some() {
                        receiver
                    } else {
                        (0..3).position(|of| places[of].take().is_some()).unwrap()
                    };
                    assert_eq!(found, 2);
                }
            }
            ports.release(7400, 2);
            let kept = (1000..1100)
                .filter(|port| places[0].keep(frame(&mut pool, &segment(*port)), &mut pool).is_some());
            let kept = kept.count();
            assert!(if port_spreads { kept == 100 } else { (10..90).contains(&kept) }, "{kept}");
        }
    }

    #[test]
    fn other_frames_go_to_worker_0_and_copies_to_the_others() {
        let mut pool = HeapPool::new(64, 0, 2048);
        let mut places = mesh(&bells(3), true, &LocalPorts::default());
        let arp = [[0xff; 12].as_slice(), &[8, 6], &[0; 28]].concat();
        let kept = places[1].keep(frame(&mut pool, &arp), &mut pool);
        assert_eq!(kept.unwrap().buf.bytes(), arp);
        for worker in [0, 2] {
            let copy = places[worker].take().unwrap();
            assert_eq!((copy.buf.bytes(), copy.checksum), (arp.as_slice(), RxChecksum::Good));
            assert!(places[worker].take().is_none());
        }
        // One frame came in and three are handled: the books say so.
        assert_eq!((places[1].stats.steered, places[1].stats.copied), (1, 2));
    }

    /// A worker that sleeps wakes for a frame that was passed to it, however the two interleave, and no other does.
    #[test]
    fn frames_wake_their_worker() {
        let counters: Vec<_> =
            (0..3).map(|_| Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap())).collect();
        let bells: Vec<_> = counters.iter().map(|counter| Arc::new(Bell::new(Arc::clone(counter)))).collect();
        let woken = |worker: usize| {
            let mut polled = [PollFd::new(&*counters[worker], PollFlags::IN)];
            let woken = poll(&mut polled, Some(&Timespec::default())).unwrap() == 1;
            let _ = rustix::io::read(&*counters[worker], &mut [0; 8]);
            woken
        };
        let mut pool = HeapPool::new(64, 0, 2048);
        let ports = LocalPorts::default();
        assert!(ports.claim(7400, 2));
        let mut places = mesh(&bells, false, &ports);
        let mut pass = |places: &mut Vec<Mesh<HeapBuf>>| {
            assert!(places[0].keep(frame(&mut pool, &segment(1)), &mut pool).is_none());
        };
        // It is awake: no system call.
        pass(&mut places);
        places[0].ring_bells();
        assert!(!woken(2));
        assert!(!places[2].sleep(), "a frame waits");
        places[2].awake();
        assert!(places[2].take().is_some() && places[2].sleep() && places[1].sleep());
        pass(&mut places);
        assert!(!woken(2), "before the burst is done");
        places[0].ring_bells();
        assert!(woken(2) && !woken(1));
        pass(&mut places);
        places[0].ring_bells();
        assert!(!woken(2), "it is to wake already");
        assert!(Mesh::<HeapBuf>::alone(&ports).sleep());
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let mut pool = HeapPool::new(4 * RING_FRAMES, 0, 2048);
        let mut places = mesh(&bells(2), false, &LocalPorts::default());
        let port = (1..)
            .find(|port| places[0].keep(frame(&mut pool, &segment(*port)), &mut pool).is_none())
            .unwrap();
        for _ in 0..RING_FRAMES + 9 {
            assert!(places[0].keep(frame(&mut pool, &segment(port)), &mut pool).is_none());
        }
        assert_eq!(places[0].stats.drop_ring_full, 10);
    }
}
