//! The receive queue of a kernel interface: reads frames into packet buffers, super-frames into one buffer per segment.
#![allow(unsafe_code, reason = "has the kernel write into packet buffers")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::PollFd;
use tcp_stack::{Buf, BufClass, BufPool};

use super::counters::{Counters, add};
use super::cut::{Layout, Refusal, cut};
use super::header::{HEADER_BYTES, Header};
use super::packet::{Received, Vector};
use super::{Wire, packet, tap};
use crate::dpdk::{BURST, Mbuf, MbufPool, Mempool, RxQueueStats, Wake, wait_on};

/// Most buffers of a frame, at the shortest segment.
const BUFFERS_MAX: usize = 128;

/// One receive queue of a kernel interface.
#[derive(Debug)]
pub struct KernelRx {
    wire: Wire,
    socket: Arc<OwnedFd>,
    pool: MbufPool,
    /// The layout of `armed`.
    layout: Layout,
    /// Empty buffers that the next frame is read into.
    armed: Vec<Mbuf>,
    /// The header of the frame that is read, and the addresses of that and of `armed`.
    header: Box<[u8; HEADER_BYTES]>,
    vector: Vector,
    /// The buffers of one frame while it is cut.
    pieces: Vec<Mbuf>,
    /// Segments that the last bursts had no room for.
    ready: VecDeque<Mbuf>,
    counters: Arc<Counters>,
    stats: RxQueueStats,
}

impl KernelRx {
    pub(super) fn new(
        (wire, socket): (Wire, Arc<OwnedFd>),
        pool: Arc<Mempool>,
        mtu: u16,
        counters: Arc<Counters>,
    ) -> Self {
        let layout = Layout::new(mtu, usize::from(pool.frame_room()));
        let mut header = Box::new([0; HEADER_BYTES]);
        let mut vector = Vector::with_capacity(BUFFERS_MAX + 1);
        vector.push(header.as_mut_ptr(), HEADER_BYTES);
        Self {
            wire,
            socket,
            pool: MbufPool::new(pool, 0),
            layout,
            armed: Vec::with_capacity(BUFFERS_MAX),
            header,
            vector,
            pieces: Vec::with_capacity(BUFFERS_MAX),
            ready: VecDeque::with_capacity(BUFFERS_MAX),
            counters,
            stats: RxQueueStats::default(),
        }
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> &RxQueueStats {
        &self.stats
    }

    pub(in crate::port) fn stats_mut(&mut self) -> &mut RxQueueStats {
        &mut self.stats
    }

    /// Appends the segments that have arrived to `out`, as many as it has room for; how many those are.
    pub(in crate::port) fn burst(&mut self, out: &mut ArrayVec<Mbuf, BURST>) -> usize {
        self.stats.polls = self.stats.polls.wrapping_add(1);
        let before = out.len();
        for _ in 0..=BURST {
            while !out.is_full()
                && let Some(segment) = self.ready.pop_front()
            {
                self.stats.bytes = self.stats.bytes.wrapping_add(segment.bytes().len() as u64);
                out.push(segment);
            }
            if out.is_full() || !self.read() {
                break;
            }
        }
        let armed = self.armed.len().saturating_add(self.pool.fetched());
        self.counters.rx_armed.store(armed as u64, Ordering::Relaxed);
        let frames = out.len().saturating_sub(before);
        self.stats.polls_empty = self.stats.polls_empty.wrapping_add(u64::from(frames == 0));
        self.stats.frames = self.stats.frames.wrapping_add(frames as u64);
        frames
    }

    /// Sleeps until a frame arrives, one of `others` has an event, or `timeout` has passed.
    pub(in crate::port) fn wait(&mut self, others: &mut [PollFd<'_>], timeout: Duration) -> Wake {
        if !self.ready.is_empty() {
            return Wake::Frames;
        }
        // SAFETY: `self` holds the socket open during this call.
        let socket = unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) };
        match wait_on(socket, others, timeout) {
            // The next read takes the error: the interface went down, or is gone.
            Wake::Dead => Wake::Frames,
            wake => wake,
        }
    }

    /// Reads a frame and makes its segments ready, or drops it. Returns false if no frame waits, or no buffer is left
    /// for one.
    fn read(&mut self) -> bool {
        self.arm();
        if self.armed.is_empty() {
            add(&self.counters.rx_no_buffer, 1);
            return false;
        }
        let (socket, vector) = (self.socket.as_fd(), &mut self.vector);
        let read = match self.wire {
            // SAFETY: `vector` has the addresses of `header` and of `armed`, of which there is one handle each.
            Wire::Packet => unsafe { packet::receive(socket, vector) },
            // SAFETY: as above; `arm` keeps it so.
            Wire::Tap => unsafe { tap::receive(socket, vector) },
        };
        let received = match read {
            Ok(received) => received,
            // The kernel has dropped a frame that its header cannot describe.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.stats.drop_super_frame = self.stats.drop_super_frame.wrapping_add(1);
                return true;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            // Also where the interface is down: the socket works again when the interface is up.
            Err(_) => return false,
        };
        add(&self.counters.rx_frames, 1);
        add(&self.counters.rx_bytes, received.len as u64);
        self.take(received);
        true
    }

    /// Makes segments of the buffers that were filled.
    fn take(&mut self, received: Received) {
        if received.is_truncated {
            self.stats.drop_long = self.stats.drop_long.wrapping_add(1);
            add(&self.counters.rx_too_long, 1);
            return;
        }
        self.take_filled(received.len);
        let header = Header::parse(*self.header);
        let room = self.pool.data_room();
        let cut = cut(&mut self.pieces, &header, received.tag, room);
        let (checksum, layout) = match cut {
            Ok(cut) => (cut.checksum, cut.layout),
            Err(refusal) => {
                let stats = &mut self.stats;
                let count = match refusal {
                    Refusal::Scattered => &mut stats.drop_scattered,
                    Refusal::Malformed => &mut stats.drop_super_frame,
                    Refusal::Checksum => &mut stats.drop_checksum,
                };
                *count = count.wrapping_add(1);
                self.pieces.clear();
                return;
            }
        };
        if let Some(layout) = layout {
            add(&self.counters.rx_super_frames, 1);
            add(&self.counters.rx_segments, self.pieces.len() as u64);
            if layout != self.layout {
                add(&self.counters.rx_guesses_missed, 1);
                self.lay_out(layout);
            }
        }
        for segment in self.pieces.drain(..) {
            segment.set_rx_checksum(checksum);
            self.ready.push_back(segment);
        }
    }

    /// Moves the buffers that hold a frame of `len` bytes to `pieces`, with their lengths, and puts empty ones in their
    /// places.
    fn take_filled(&mut self, len: usize) {
        let mut left = len;
        let mut index = 0;
        while left > 0 && index < self.armed.len() {
            let room = self.layout.bytes(index);
            let bytes = left.min(room);
            let place = self.armed.get_mut(index);
            let mut filled = match (place, self.pool.alloc(BufClass::Control)) {
                (Some(place), Some(mut empty)) => {
                    let (start, len) = room_of(&mut empty, room);
                    index = index.saturating_add(1);
                    self.vector.replace(index, start, len);
                    std::mem::replace(place, empty)
                }
                _ => {
                    // The next read makes the vector anew, of what is left.
                    self.vector.truncate(1);
                    self.armed.remove(index)
                }
            };
            filled.truncate(bytes);
            left = left.saturating_sub(bytes);
            self.pieces.push(filled);
        }
    }

    /// Has as many empty buffers ready as the longest frame takes, or as the pool gives.
    fn arm(&mut self) {
        let wanted = self.layout.buffers().min(BUFFERS_MAX);
        if self.armed.len() == wanted && self.vector.len() == wanted.saturating_add(1) {
            return;
        }
        self.vector.truncate(1);
        while self.armed.len() < wanted
            && let Some(buffer) = self.pool.alloc(BufClass::Control)
        {
            self.armed.push(buffer);
        }
        for (index, buffer) in self.armed.iter_mut().enumerate() {
            let (start, len) = room_of(buffer, self.layout.bytes(index));
            self.vector.push(start, len);
        }
    }

    /// Has the next frame read by another layout.
    fn lay_out(&mut self, layout: Layout) {
        self.layout = layout;
        self.armed.truncate(layout.buffers().min(BUFFERS_MAX));
        self.vector.truncate(1);
    }
}

/// Makes a buffer one of `bytes`, and returns where they lie. A buffer without room for them takes nothing.
fn room_of(buffer: &mut Mbuf, bytes: usize) -> (*mut u8, usize) {
    buffer.truncate(0);
    let bytes = buffer.append(bytes).unwrap_or_default();
    (bytes.as_mut_ptr(), bytes.len())
}
