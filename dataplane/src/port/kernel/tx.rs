//! The transmit queue of a kernel interface: one system call for a burst, whose runs of segments the kernel passes on
//! whole.
#![allow(unsafe_code, reason = "has the kernel read packet buffers")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use tcp_stack::wire::Sum;
use tcp_stack::{Buf, TxOffload};

use super::counters::{Counters, add};
use super::header::{HEADER_BYTES, HEADERS_MAX, Header, TCP_CHECKSUM_OFFSET};
use super::packet::{Messages, Vector};
use super::{Wire, packet, tap};
use crate::dpdk::{BURST, Mbuf, TxBatch, TxQueueStats};

/// Buffers of a frame: the header, the copy of its headers, those of the run, and the rest of the first one.
const BUFFERS: usize = 50;
/// Bursts in which the kernel may drop a frame for want of room before the queue does.
const TRIES: u8 = 8;
/// Shortest frame: an Ethernet header.
const FRAME_MIN: u32 = 14;
/// The longest super-frame that the kernel passes whole, bytes.
const SUPER_FRAME_MAX: u32 = 65_535;

/// One transmit queue of a kernel interface.
#[derive(Debug)]
pub struct KernelTx {
    wire: Wire,
    socket: Arc<OwnedFd>,
    /// The longest frame of one segment, bytes.
    frame_max: u32,
    headers: Box<[[u8; HEADER_BYTES]; BURST]>,
    /// Copies of the headers of super-frames, whose checksum fields differ.
    copies: Box<[[u8; HEADERS_MAX]; BURST]>,
    vector: Vector,
    messages: Messages,
    /// Times that the kernel dropped the first frame of the batch.
    tries: u8,
    /// Frames at the front of the batch that were counted as deferred already.
    deferred: usize,
    counters: Arc<Counters>,
    stats: TxQueueStats,
}

impl KernelTx {
    pub(super) fn new((wire, socket): (Wire, Arc<OwnedFd>), frame_max: u32, counters: Arc<Counters>) -> Self {
        Self {
            wire,
            socket,
            frame_max,
            headers: Box::new([[0; HEADER_BYTES]; BURST]),
            copies: Box::new([[0; HEADERS_MAX]; BURST]),
            vector: Vector::with_capacity(BURST * BUFFERS),
            messages: Messages::with_capacity(BURST),
            tries: 0,
            deferred: 0,
            counters,
            stats: TxQueueStats::default(),
        }
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> &TxQueueStats {
        &self.stats
    }

    pub(in crate::port) fn stats_mut(&mut self) -> &mut TxQueueStats {
        &mut self.stats
    }

    /// Notes that the frames of the batch were dropped.
    pub(in crate::port) fn forget_deferred(&mut self) {
        (self.deferred, self.tries) = (0, 0);
    }

    /// Sends from the front of the batch what the kernel takes now; how many frames those are. The rest stays in the
    /// batch, in order. Frames that the kernel refuses for good are dropped and counted.
    pub(in crate::port) fn burst(&mut self, batch: &mut TxBatch) -> usize {
        self.drop_unsendable(batch);
        let (mut sent, mut was_down) = (0_usize, false);
        // Each round sends, drops or ends.
        for _ in 0..=BURST {
            if batch.is_empty() {
                break;
            }
            self.describe(batch);
            let socket = self.socket.as_fd();
            let result = match self.wire {
                // SAFETY: `messages` and `vector` were made of the batch's buffers, which nobody writes while handles
                // on them exist, and of `headers` and `copies`; none of these changes before the call.
                Wire::Packet => unsafe { packet::send(socket, &mut self.messages) },
                // SAFETY: as above.
                Wire::Tap => unsafe { tap::send(socket, &self.messages) },
            };
            match result {
                Ok(count) => {
                    self.count(batch, count);
                    batch.drop_first(count);
                    (sent, self.tries) = (sent.saturating_add(count), 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The socket may tell of a time when the interface was down.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) && !was_down => was_down = true,
                Err(error) => {
                    if !self.refused(batch, &error) {
                        break;
                    }
                }
            }
        }
        self.messages.clear();
        self.vector.truncate(0);
        let newly = batch.len().saturating_sub(self.deferred.saturating_sub(sent));
        self.stats.deferred = self.stats.deferred.wrapping_add(newly as u64);
        self.deferred = batch.len();
        sent
    }

    /// Drops what the kernel will not take; false if it may take it later.
    fn refused(&mut self, batch: &mut TxBatch, error: &io::Error) -> bool {
        let stats = &mut self.stats;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => return false,
            Some(libc::ENOBUFS) => {
                self.tries = self.tries.saturating_add(1);
                if self.tries < TRIES {
                    return false;
                }
                stats.drop_no_room = stats.drop_no_room.wrapping_add(1);
            }
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD) => {
                stats.drop_port_gone = stats.drop_port_gone.wrapping_add(batch.len() as u64);
                batch.clear();
                self.forget_deferred();
                return false;
            }
            _ => stats.drop_refused = stats.drop_refused.wrapping_add(1),
        }
        add(&self.counters.tx_refused, 1);
        self.tries = 0;
        batch.drop_first(1);
        true
    }

    /// Drops frames that are too short or too long.
    fn drop_unsendable(&mut self, batch: &mut TxBatch) {
        let frame_max = self.frame_max;
        let dropped = batch.retain(|frame| {
            let max = if frame.offload().segment > 0 { SUPER_FRAME_MAX } else { frame_max };
            (FRAME_MIN..=max).contains(&frame.frame_len())
        });
        self.stats.drop_length = self.stats.drop_length.wrapping_add(dropped as u64);
    }

    /// Notes where the buffers of every frame of the batch lie.
    fn describe(&mut self, batch: &TxBatch) {
        let Self { headers, copies, vector, messages, .. } = self;
        vector.truncate(0);
        messages.clear();
        let mut ends = ArrayVec::<usize, BURST>::new();
        for ((frame, header), copy) in batch.frames().zip(headers.iter_mut()).zip(copies.iter_mut()) {
            let offload = frame.offload();
            *header = Header::of(&offload).bytes();
            vector.push(header.as_mut_ptr(), HEADER_BYTES);
            let mut skipped = if offload.segment > 0 { put_headers(frame, &offload, copy) } else { 0 };
            if skipped > 0 {
                vector.push(copy.as_mut_ptr(), skipped);
            }
            frame.for_each_part(&mut |part| {
                let rest = part.get(skipped..).unwrap_or_default();
                skipped = 0;
                if !rest.is_empty() {
                    vector.push(rest.as_ptr().cast_mut(), rest.len());
                }
            });
            ends.push(vector.len());
        }
        let mut start = 0;
        for end in ends {
            messages.push(vector, start..end);
            start = end;
        }
    }

    /// Counts the first frames of the batch as sent.
    fn count(&mut self, batch: &TxBatch, count: usize) {
        let (mut bytes, mut super_frames, mut segments) = (0_u64, 0, 0);
        for frame in batch.frames().take(count) {
            bytes = bytes.saturating_add(frame.frame_len().into());
            let offload = frame.offload();
            if offload.segment > 0 {
                let headers = headers_len(&offload);
                let payload = frame.frame_len().saturating_sub(u32::try_from(headers).unwrap_or(u32::MAX));
                super_frames += 1;
                segments += u64::from(payload.div_ceil(offload.segment.into()));
            }
        }
        self.stats.frames = self.stats.frames.wrapping_add(count as u64);
        self.stats.bytes = self.stats.bytes.wrapping_add(bytes);
        add(&self.counters.tx_frames, count as u64);
        add(&self.counters.tx_bytes, bytes);
        if super_frames > 0 {
            add(&self.counters.tx_super_frames, super_frames);
            add(&self.counters.tx_segments, segments);
        }
    }
}

fn headers_len(offload: &TxOffload) -> usize {
    [offload.l2_len, offload.l3_len, offload.l4_len].map(usize::from).into_iter().sum()
}

/// Copies the headers of a super-frame, and adds the length to the pseudo-header's sum, as the kernel has it. Returns
/// the number of bytes copied.
fn put_headers(frame: &Mbuf, offload: &TxOffload, copy: &mut [u8; HEADERS_MAX]) -> usize {
    let len = headers_len(offload);
    let (Some(to), Some(from)) = (copy.get_mut(..len), frame.bytes().get(..len)) else { return 0 };
    to.copy_from_slice(from);
    let transport = usize::from(offload.l2_len).saturating_add(offload.l3_len.into());
    let segment = (frame.frame_len() as usize).saturating_sub(transport);
    let at = transport.saturating_add(TCP_CHECKSUM_OFFSET.into());
    let field = copy.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>());
    if let Some(field) = field {
        let sum = Sum::ZERO.with(u16::from_be_bytes(*field)).with(u16::try_from(segment).unwrap_or(u16::MAX));
        *field = sum.fold().to_be_bytes();
    }
    len
}
