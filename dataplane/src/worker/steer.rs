//! Software steering: a mesh of rings through which workers pass frames to the worker that owns the connection.
//!
//! A connection lives on one worker. If the port spreads flows itself (RSS), every frame of a connection arrives at the
//! queue of its worker. If it does not, or spreads them by a rule of its own (the queues of a TAP), the receiving
//! worker passes each segment to the worker that [`flow_hash`](tcp_stack::wire::flow_hash) names. Either way, worker 0
//! answers frames that are not TCP; the other workers get a copy, because their neighbor caches learn from it.

use rtrb::{Consumer, Producer, RingBuffer};
use tcp_stack::wire::{Flow, peek_flow};
use tcp_stack::{Buf, BufClass, BufPool};

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
    /// Rings to the other workers, by worker index; `None` at this worker's index.
    to: Vec<Option<Producer<B>>>,
    /// Rings from the other workers.
    from: Vec<Consumer<B>>,
    /// Counters of steered, copied and dropped frames.
    pub stats: SteerStats,
}

/// Creates the mesh of `workers` workers and returns their ends, in order.
pub fn mesh<B>(workers: usize, port_spreads: bool) -> Vec<Mesh<B>> {
    let mut places: Vec<Mesh<B>> = (0..workers)
        .map(|me| Mesh { me, port_spreads, to: Vec::new(), from: Vec::new(), stats: SteerStats::default() })
        .collect();
    for sender in 0..workers {
        for receiver in 0..workers {
            let ring = (sender != receiver).then(|| RingBuffer::new(RING_FRAMES));
            let (producer, consumer) = ring.unzip();
            if let Some(place) = places.get_mut(sender) {
                place.to.push(producer);
            }
            if let Some(place) = places.get_mut(receiver) {
                place.from.extend(consumer);
            }
        }
    }
    places
}

impl<B: Buf> Mesh<B> {
    /// Returns true if this is the only worker.
    pub fn is_alone(&self) -> bool {
        self.to.len() < 2
    }

    /// Steers a frame that the port delivered to this worker. Returns the frame, or a copy, if this worker must process
    /// it.
    pub fn keep<P: BufPool<Buf = B>>(&mut self, frame: B, pool: &mut P) -> Option<B> {
        match peek_flow(frame.bytes()) {
            Flow::Tcp(_) if self.port_spreads => Some(frame),
            Flow::Tcp(hash) => {
                let owner = hash as usize % self.to.len().max(1);
                if owner == self.me {
                    return Some(frame);
                }
                self.stats.steered += u64::from(self.pass(owner, frame));
                None
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

    /// Returns the next frame that another worker passed to this one.
    pub fn take(&mut self) -> Option<B> {
        self.from.iter_mut().find_map(|ring| ring.pop().ok())
    }

    /// Passes a frame to another worker. Returns false if the ring is full.
    fn pass(&mut self, worker: usize, frame: B) -> bool {
        let Some(ring) = self.to.get_mut(worker).and_then(Option::as_mut) else { return false };
        let passed = ring.push(frame).is_ok();
        self.stats.drop_ring_full += u64::from(!passed);
        passed
    }

    fn copy<P: BufPool<Buf = B>>(&mut self, frame: &B, pool: &mut P) -> Option<B> {
        let copy = copy_of(frame, pool);
        match copy {
            Some(_) => self.stats.copied += 1,
            None => self.stats.drop_no_buffer += 1,
        }
        copy
    }
}

fn copy_of<P: BufPool>(frame: &P::Buf, pool: &mut P) -> Option<P::Buf> {
    let mut copy = pool.alloc(BufClass::Control)?;
    copy.append(frame.bytes().len())?.copy_from_slice(frame.bytes());
    Some(copy)
}

#[cfg(test)]
mod tests {
    use tcp_stack::testutil::HeapPool;

    use super::*;

    fn frame(pool: &mut HeapPool, bytes: &[u8]) -> <HeapPool as BufPool>::Buf {
        let mut buf = pool.alloc(BufClass::Data).unwrap();
        buf.append(bytes.len()).unwrap().copy_from_slice(bytes);
        buf
    }

    /// An IPv4 segment from 10.0.0.1:`port` to 10.0.0.2:7400, headers only.
    fn segment(port: u16) -> Vec<u8> {
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
        let mut places = mesh(3, false);
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
        let mut places = mesh(2, true);
        for port in 1..30 {
            assert!(places[1].keep(frame(&mut pool, &segment(port)), &mut pool).is_some());
        }
    }

    #[test]
    fn other_frames_go_to_worker_0_and_copies_to_the_others() {
        let mut pool = HeapPool::new(64, 0, 2048);
        let mut places = mesh(3, true);
        let arp = [[0xff; 12].as_slice(), &[8, 6], &[0; 28]].concat();
        let kept = places[1].keep(frame(&mut pool, &arp), &mut pool);
        assert_eq!(kept.unwrap().bytes(), arp);
        for worker in [0, 2] {
            assert_eq!(places[worker].take().unwrap().bytes(), arp);
            assert!(places[worker].take().is_none());
        }
        // One frame came in and three are handled: the books say so.
        assert_eq!((places[1].stats.steered, places[1].stats.copied), (1, 2));
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let mut pool = HeapPool::new(4 * RING_FRAMES, 0, 2048);
        let mut places = mesh(2, false);
        let port = (1..)
            .find(|port| places[0].keep(frame(&mut pool, &segment(*port)), &mut pool).is_none())
            .unwrap();
        for _ in 0..RING_FRAMES + 9 {
            assert!(places[0].keep(frame(&mut pool, &segment(port)), &mut pool).is_none());
        }
        assert_eq!(places[0].stats.drop_ring_full, 10);
    }
}
