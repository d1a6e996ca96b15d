//! One host of a simulation: a stack, its port, and the applications above it.

use super::BURST;
use crate::Stack;
use crate::buf::{RxChecksum, RxFrame};
use crate::testutil::{App, HeapBuf, HeapPool};
use crate::time::Instant;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) stack: Stack<HeapBuf>,
    pub(super) pool: HeapPool,
    /// Frames that arrived and wait for the next poll.
    pub(super) inbox: VecDeque<Vec<u8>>,
    /// Frames that the port holds until they are sent, oldest first.
    pub(super) sending: VecDeque<HeapBuf>,
    /// Per connection: its number in the scenario, its side (0 opener, 1 listener), and the application.
    pub(super) apps: BTreeMap<(u32, u32), (usize, usize, App)>,
    /// Time of the next poll; poll events of other times are stale.
    pub(super) poll_at: Option<Instant>,
    /// Number of polls so far.
    pub(super) polls: u64,
    /// Poll after which the queues are audited next.
    pub(super) audit_at: u64,
    /// Frames for which the pool had no buffer.
    missed: u64,
    /// Causes for pure acknowledgments so far, and pure acknowledgments sent.
    pub(super) ack_causes: u64,
    pub(super) pure_acks: u64,
}

impl Host {
    pub(super) fn new(stack: Stack<HeapBuf>, buffers: usize, mtu: usize) -> Self {
        Self {
            stack,
            pool: HeapPool::new(buffers, buffers / 16, mtu.saturating_add(64)),
            inbox: VecDeque::new(),
            sending: VecDeque::new(),
            apps: BTreeMap::new(),
            poll_at: None,
            polls: 0,
            audit_at: 0,
            missed: 0,
            ack_causes: 0,
            pure_acks: 0,
        }
    }

    /// Hands a burst of frames to the stack.
    pub(super) fn take_frames(&mut self, now: Instant) {
        let mut burst = Vec::new();
        for frame in self.inbox.drain(..self.inbox.len().min(BURST)) {
            match self.pool.copy(&frame) {
                Some(buf) => burst.push(RxFrame { buf, checksum: RxChecksum::Unknown }),
                None => self.missed = self.missed.saturating_add(1),
            }
        }
        self.ack_causes = self.ack_causes.saturating_add(u64::try_from(burst.len()).unwrap_or(0));
        self.stack.handle_frames(now, burst);
    }
}
