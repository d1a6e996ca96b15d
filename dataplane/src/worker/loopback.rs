//! Frames whose destination is an address of the port itself: they do not reach the port, but return to the stack of
//! the worker that has the connection's other end. Nothing is copied: the receiver reads the buffer that the sender
//! keeps until it is acknowledged ([`Buf::share`]).

use std::collections::VecDeque;

use tcp_stack::{Buf, RxChecksum, RxFrame};

use super::steer::Mesh;
use crate::dpdk::BURST;

/// Most frames that wait. A worker with more to send waits until it has received some.
const FRAMES_MAX: usize = 2 * BURST;

iwarp_counters::counters! {
    /// Frames between two addresses of the port itself.
    pub struct LoopbackStats {
        /// Frames that a worker has sent to an address of its own port; they are not on the wire.
        frames,
        /// Bytes of these frames, with all headers.
        bytes,
    }
}

/// Looped frames of one worker, oldest first.
#[derive(Debug)]
pub(super) struct Loopback<B> {
    frames: VecDeque<B>,
    /// True if the last burst was of looped frames alone: the next one is the port's.
    had_turn: bool,
    pub(super) stats: LoopbackStats,
}

impl<B: Buf> Loopback<B> {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::with_capacity(FRAMES_MAX), had_turn: false, stats: LoopbackStats::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the number of frames that [`Self::push`] accepts.
    pub(super) fn room(&self) -> usize {
        FRAMES_MAX.saturating_sub(self.frames.len())
    }

    /// Takes a frame that this worker has sent. Frames for another worker are passed on.
    pub(super) fn push(&mut self, frame: B, mesh: &mut Mesh<B>) {
        self.stats.frames = self.stats.frames.wrapping_add(1);
        self.stats.bytes = self.stats.bytes.wrapping_add(frame.bytes().len() as u64);
        let frame = RxFrame { buf: frame, checksum: RxChecksum::Looped };
        let kept = if mesh.is_alone() { Some(frame) } else { mesh.keep_looped(frame) };
        if let Some(RxFrame { buf, .. }) = kept
            && self.room() > 0
        {
            self.frames.push_back(buf);
        }
    }

    /// Returns true if looped frames have the next burst to themselves: they wait, and did not have the last one.
    /// Neither they nor the port's frames can delay the other by more than a burst.
    #[inline]
    pub(super) fn has_turn(&mut self) -> bool {
        self.had_turn = !self.frames.is_empty() && !self.had_turn;
        self.had_turn
    }

    /// Removes the oldest frame.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<RxFrame<B>> {
        self.frames.pop_front().map(|buf| RxFrame { buf, checksum: RxChecksum::Looped })
    }
}

#[cfg(test)]
mod tests {
    use tcp_stack::BufPool;
    use tcp_stack::testutil::HeapPool;

    use super::super::steer::{
        Mesh, mesh,
        tests::{bells, segment},
    };
    use super::*;
    use iwarp_engine::LocalPorts;

    fn frame(pool: &mut HeapPool, bytes: &[u8]) -> <HeapPool as BufPool>::Buf {
        pool.copy(bytes).unwrap()
    }

    #[test]
    fn frames_return_in_order_and_take_turns_with_the_port() {
        let mut pool = HeapPool::new(256, 0, 2048);
        let mut alone = Mesh::alone(&LocalPorts::default());
        let mut loopback = Loopback::new();
        assert!(!loopback.has_turn());
        for port in 0..64 {
            assert_eq!(loopback.room(), FRAMES_MAX - usize::from(port));
            loopback.push(frame(&mut pool, &segment(port)), &mut alone);
        }
        assert_eq!((loopback.room(), loopback.stats.frames, loopback.stats.bytes), (0, 64, 64 * 54));
        let turns: Vec<_> = (0..5).map(|_| loopback.has_turn()).collect();
        assert_eq!(turns, [true, false, true, false, true]);
        for port in 0..64 {
            let RxFrame { buf, checksum } = loopback.pop().unwrap();
            assert_eq!((buf.bytes(), checksum), (segment(port).as_slice(), RxChecksum::Looped));
        }
        assert!(loopback.is_empty() && loopback.pop().is_none() && !loopback.has_turn());
    }

    /// The ends of a looped connection are where an active open expects them, even if the port spreads flows by a rule
    /// of its own.
    #[test]
    fn frames_reach_the_worker_of_their_connection() {
        for port_spreads in [false, true] {
            let mut pool = HeapPool::new(4096, 0, 2048);
            let ports = LocalPorts::default();
            let mut places = mesh(&bells(3), port_spreads, &ports);
            let mut loopback = Loopback::new();
            let mut found = [0; 3];
            for port in 1000..1060 {
                let bytes = segment(port);
                let tcp_stack::wire::Flow::Tcp { hash, .. } = tcp_stack::wire::peek_flow(&bytes) else {
                    panic!("a segment")
                };
                let owner = hash as usize % 3;
                loopback.push(frame(&mut pool, &bytes), &mut places[1]);
                let got = if owner == 1 { loopback.pop() } else { places[owner].take() };
                let got = got.unwrap();
                assert_eq!((got.buf.bytes(), got.checksum), (bytes.as_slice(), RxChecksum::Looped));
                found[owner] += 1;
            }
            assert!(found.iter().all(|count| *count > 5), "{found:?}");
            // A port that an application listens on has all its segments on its worker.
            assert!(ports.claim(7400, 2));
            for port in 1000..1060 {
                loopback.push(frame(&mut pool, &segment(port)), &mut places[1]);
                assert!(loopback.is_empty() && places[2].take().is_some());
            }
        }
    }
}
