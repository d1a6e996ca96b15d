//! Capture of frames at a port, for `iwarpctl capture`.
//!
//! ```text
//!  worker: burst ──▶ Capture: filter, copy of at most snap_bytes ──▶ ring of bytes (bounded, drops counted)
//!  control thread: reads the rings ──▶ pcapng ──▶ the client's connection
//! ```
//! While nobody captures, a worker checks one pointer per received burst and per call of the transmit queue.

mod filter;
pub(crate) mod pcapng;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_control::Filter;
use rtrb::{Consumer, Producer, RingBuffer};
use tcp_stack::Instant;

use crate::dpdk::Mbuf;
use filter::FrameFilter;

/// Bytes of a record before the frame's: time, length of the frame and direction, captured length.
const HEADER: usize = 16;
/// Bit of a record's length that is set in frames that were sent.
const SENT: u32 = 1 << 31;

/// Direction of a frame, as seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Received,
    Sent,
}

iwarp_counters::counters! {
    /// Counters of all captures of a worker.
    pub(crate) struct CaptureStats {
        /// Frames copied for a capture.
        frames,
        /// Frames that a capture lost: its buffer was full.
        drop_ring_full,
    }
}

/// Counters of one capture on one worker and port, which the control thread reads.
#[derive(Debug, Default)]
struct Shared {
    frames: AtomicU64,
    dropped: AtomicU64,
}

/// Worker's end of a capture.
#[derive(Debug)]
pub struct Tap {
    ring: Producer<u8>,
    filter: FrameFilter,
    snap_bytes: usize,
    shared: Arc<Shared>,
    /// Frames at the front of the transmit batch that were captured when the port did not accept them.
    waiting: usize,
}

/// Control thread's end of a capture on one worker and port.
#[derive(Debug)]
pub(crate) struct TapReader {
    ring: Consumer<u8>,
    shared: Arc<Shared>,
}

/// Creates a capture of one worker and port. `ring_bytes` bound its memory; a frame takes 16 bytes more than are
/// captured of it.
pub(crate) fn tap(
    filter: Filter,
    conn: Option<(SocketAddr, SocketAddr)>,
    snap_bytes: usize,
    ring_bytes: usize,
) -> (Box<Tap>, TapReader) {
    let (producer, consumer) = RingBuffer::new(ring_bytes);
    let shared = Arc::new(Shared::default());
    let reader = TapReader { ring: consumer, shared: Arc::clone(&shared) };
    let filter = FrameFilter::new(filter, conn);
    (Box::new(Tap { ring: producer, filter, snap_bytes, shared, waiting: 0 }), reader)
}

/// Capture at a worker's share of a port.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    tap: Option<Box<Tap>>,
    stats: CaptureStats,
}

impl Capture {
    /// Begins a capture, or ends one. Returns the one before.
    pub(crate) fn set(&mut self, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Returns true if frames are captured.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.tap.is_some()
    }

    /// Returns the counters of all captures so far.
    pub(crate) fn stats(&self) -> &CaptureStats {
        &self.stats
    }

    /// Captures a burst of received frames.
    #[cold]
    pub(crate) fn received(&mut self, now: Instant, frames: &[Mbuf]) {
        let Self { tap, stats } = self;
        let Some(tap) = tap else { return };
        frames.iter().for_each(|frame| tap.copy(now, frame, Direction::Received, stats));
    }

    /// Captures the frames of a transmit batch that it has not captured before.
    #[cold]
    pub(crate) fn sent<'a>(&mut self, now: Instant, frames: impl Iterator<Item = &'a Mbuf>) {
        let Self { tap, stats } = self;
        let Some(tap) = tap else { return };
        frames.skip(tap.waiting).for_each(|frame| tap.copy(now, frame, Direction::Sent, stats));
    }

    /// Notes how many frames of the batch the port has not accepted.
    #[cold]
    pub(crate) fn left(&mut self, frames: usize) {
        if let Some(tap) = &mut self.tap {
            tap.waiting = frames;
        }
    }
}

impl Tap {
    /// Copies a frame that meets the filter into the ring, or counts it as dropped.
    fn copy(&mut self, now: Instant, frame: &Mbuf, direction: Direction, stats: &mut CaptureStats) {
        if !self.filter.admits(frame.as_ref(), direction) {
            return;
        }
        let length = frame.frame_len();
        let captured = self.snap_bytes.min(length as usize);
        if self.push((now, length, direction), captured, |write| frame.for_each_part(write)) {
            stats.frames = stats.frames.wrapping_add(1);
            self.shared.frames.fetch_add(1, Ordering::Relaxed);
        } else {
            stats.drop_ring_full = stats.drop_ring_full.wrapping_add(1);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a record with the first `captured` bytes of a frame, whose bytes `parts` writes. Returns false if the
    /// ring has no room for it.
    fn push(
        &mut self,
        (now, length, direction): (Instant, u32, Direction),
        captured: usize,
        parts: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> bool {
        let Ok(mut chunk) = self.ring.write_chunk(HEADER.saturating_add(captured)) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let mut to = Slices(first, second);
        to.write(&now.as_nanos().to_ne_bytes());
        let sent = if direction == Direction::Sent { SENT } else { 0 };
        to.write(&((length & !SENT) | sent).to_ne_bytes());
        to.write(&u32::try_from(captured).unwrap_or(u32::MAX).to_ne_bytes());
        parts(&mut |part| to.write(part));
        chunk.commit_all();
        true
    }
}

/// Memory of a record, which may wrap around the end of the ring.
struct Slices<'a>(&'a mut [u8], &'a mut [u8]);

impl Slices<'_> {
    /// Writes bytes behind those before; what does not fit is cut off.
    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        for slice in [&mut self.0, &mut self.1] {
            let (now, later) = rest.split_at(rest.len().min(slice.len()));
            let (to, left) = std::mem::take(slice).split_at_mut(now.len());
            to.copy_from_slice(now);
            (*slice, rest) = (left, later);
        }
    }
}

impl TapReader {
    /// Appends captured frames to a pcapng file until it has `bytes_max` bytes or the ring is empty. `epoch_ns` is the
    /// time since 1970 at which the worker's clock was zero.
    pub(crate) fn read(&mut self, to: &mut Vec<u8>, interface: u32, epoch_ns: u64, bytes_max: usize) {
        while to.len() < bytes_max {
            // A record is committed as a whole.
            let Some((time_ns, length, captured)) = self.header() else { return };
            let (frame, captured) = (length & !SENT, captured as usize);
            let direction = if length & SENT == 0 { Direction::Received } else { Direction::Sent };
            let Ok(chunk) = self.ring.read_chunk(HEADER.saturating_add(captured)) else { return };
            let (first, second) = chunk.as_slices();
            let (head, body) = match first.split_at_checked(HEADER) {
                Some((_, body)) => (body, second),
                None => (second.get(HEADER.saturating_sub(first.len())..).unwrap_or_default(), [].as_slice()),
            };
            pcapng::frame(to, interface, (epoch_ns.saturating_add(time_ns), frame, direction), (head, body));
            chunk.commit_all();
        }
    }

    /// Returns the numbers of the next record's header: time, length and direction, captured length.
    fn header(&mut self) -> Option<(u64, u32, u32)> {
        let chunk = self.ring.read_chunk(HEADER).ok()?;
        let (first, second) = chunk.as_slices();
        let mut bytes = first.iter().chain(second).copied();
        let mut next = || bytes.next().unwrap_or(0);
        let time = u64::from_ne_bytes(std::array::from_fn(|_| next()));
        let length = u32::from_ne_bytes(std::array::from_fn(|_| next()));
        Some((time, length, u32::from_ne_bytes(std::array::from_fn(|_| next()))))
    }

    /// Returns how many frames met the filter, and how many of them were dropped.
    pub(crate) fn seen_and_dropped(&self) -> (u64, u64) {
        let (frames, dropped) =
            (self.shared.frames.load(Ordering::Relaxed), self.shared.dropped.load(Ordering::Relaxed));
        (frames.saturating_add(dropped), dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns direction, length and bytes of each frame of a file without a header.
    fn frames(file: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
        let number = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut frames) = (0, Vec::new());
        while at < file.len() {
            let (captured, padded) = (number(at + 20) as usize, number(at + 20).next_multiple_of(4) as usize);
            let bytes = file[at + 28..at + 28 + captured].to_vec();
            frames.push((file[at + 28 + padded + 4], number(at + 24), bytes));
            at += number(at + 4) as usize;
        }
        frames
    }

    #[test]
    fn records_of_all_lengths_pass_through_a_ring_of_any_size() {
        for ring_bytes in [97, 128, 301] {
            let (mut tap, mut reader) = tap(Filter::default(), None, 65_535, ring_bytes);
            for length in 0..=80_usize {
                let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at + length).unwrap()).collect();
                let (one, other) = bytes.split_at(length / 3);
                let direction = if length % 2 == 0 { Direction::Received } else { Direction::Sent };
                let original = u32::try_from(length).unwrap() + 7;
                assert!(tap.push((Instant::ZERO, original, direction), length, |write| {
                    write(one);
                    write(other);
                }));
                let mut file = Vec::new();
                reader.read(&mut file, 0, 5, usize::MAX);
                let flag = if length % 2 == 0 { 1 } else { 2 };
                assert_eq!(frames(&file), [(flag, original, bytes)], "{length} in {ring_bytes}");
            }
        }
    }

    #[test]
    fn a_frame_is_cut_at_the_snap_length_and_refused_without_room() {
        let (mut tap, mut reader) = tap(Filter::default(), None, 65_535, 100);
        let record = (Instant::ZERO, 1500, Direction::Received);
        assert!(tap.push(record, 60, |write| write(&[9; 1500])));
        assert!(!tap.push(record, 60, |write| write(&[9; 1500])), "24 bytes are left");
        assert!(tap.push(record, 8, |write| write(&[8; 1500])));
        let mut file = Vec::new();
        reader.read(&mut file, 0, 0, 1);
        assert_eq!(
            frames(&file),
            [(1, 1500, vec![9; 60])],
            "one frame goes beyond what may be read at a time"
        );
        reader.read(&mut file, 0, 0, usize::MAX);
        assert_eq!(frames(&file).len(), 2);
    }
}
