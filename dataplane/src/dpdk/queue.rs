//! Bursts of frames, in and out. Each queue is owned by one worker thread.
#![allow(unsafe_code, reason = "the packet path's calls into DPDK")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use dpdk_sys::{field, rte_mbuf};
use iwarp_config::CONTEXTS_MAX;
use iwarp_engine::prefetch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use tcp_stack::{Buf, TxFrame};

use super::device::Device;
use super::mbuf::Mbuf;
use super::ring::Ring;

/// Most frames that are received or sent at a time.
pub const BURST: usize = 32;
const BURST_U16: u16 = 32;

/// An Ethernet header, bytes: nothing shorter is a frame.
const FRAME_MIN: usize = 14;

iwarp_counters::counters! {
    /// The counters of a receive queue.
    pub struct RxQueueStats {
        /// Times that the port was asked for frames.
        polls,
        /// Times that it had none.
        polls_empty,
        /// Frames passed to the worker.
        frames,
        /// Bytes of the frames.
        bytes,
        /// Frames dropped: they came in several buffers and do not fit into one.
        drop_scattered,
        /// Frames dropped: longer than the kernel's 64 KiB (BIG TCP).
        drop_long,
        /// Super-frames dropped: their headers are no TCP segment's, or contradict their length.
        drop_super_frame,
        /// Super-frames dropped: a checksum is wrong.
        drop_checksum,
        /// Frames with data dropped: hardly a packet buffer was left, and that is for acknowledgments.
        drop_no_buffers,
    }
}

iwarp_counters::counters! {
    /// The counters of a transmit queue.
    pub struct TxQueueStats {
        /// Frames that the port took.
        frames,
        /// Bytes of the frames.
        bytes,
        /// Frames that the port did not take at the first try.
        deferred,
        /// Frames dropped: longer than the MTU allows, or without a whole Ethernet header.
        drop_length,
        /// Frames dropped: the device cannot do what they ask for.
        drop_offload,
        /// Frames dropped: the port is gone, or its interface is down.
        drop_port_gone,
        /// Frames dropped: the port, which has no link, has accepted none for 100 ms.
        drop_stalled,
        /// Frames dropped: the kernel had no room for them, several times in a row.
        drop_no_room,
        /// Frames dropped: the kernel refused them.
        drop_refused,
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The port has frames.
    Frames,
    /// Another descriptor became readable.
    Other,
    /// Time is up, or a signal came.
    Timeout,
    /// The port's descriptor reports an error.
    Dead,
}

/// Descriptors that a worker sleeps on besides its port's: the doorbell of each context, and one for commands.
pub const OTHERS_MAX: usize = CONTEXTS_MAX as usize + 1;

/// One receive queue of a port.
#[derive(Debug)]
pub struct DeviceRx {
    device: Arc<Device>,
    queue: u16,
    /// Readable when frames have arrived.
    descriptor: Option<RawFd>,
    /// Bytes of the event count that the descriptor gives, to be armed before and read after; `None`: frames
    /// themselves make it readable.
    event_bytes: Option<usize>,
    /// True if the device counts the frames that have arrived and have not been received.
    counts_frames: bool,
    stats: RxQueueStats,
    /// Not `Sync`: a queue has one user.
    _one_user: PhantomData<Cell<()>>,
}

impl DeviceRx {
    pub(super) fn new(device: Arc<Device>, queue: u16, descriptor: Option<RawFd>, event: bool) -> Self {
        let event_bytes = descriptor.filter(|_| event).map(event_bytes);
        let stats = RxQueueStats::default();
        let mut queue = Self {
            device,
            queue,
            descriptor,
            event_bytes,
            counts_frames: false,
            stats,
            _one_user: PhantomData,
        };
        queue.counts_frames = queue.frames_arrived().is_some();
        queue
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> &RxQueueStats {
        &self.stats
    }

    pub(crate) fn stats_mut(&mut self) -> &mut RxQueueStats {
        &mut self.stats
    }

    /// Appends the frames that have arrived to `out`, as many as it has room for; how many those are.
    #[inline]
    pub fn burst(&mut self, out: &mut ArrayVec<Mbuf, BURST>) -> usize {
        let mut raw = [const { MaybeUninit::<*mut rte_mbuf>::uninit() }; BURST];
        let room = u16::try_from(out.remaining_capacity()).unwrap_or(BURST_U16);
        // SAFETY: the queue was set up and the device runs while `self.device` is held; `raw` has room for 32
        // pointers, and `room` is no more; `&mut self` makes this the only caller.
        let count = unsafe {
            dpdk_sys::rte_eth_rx_burst(self.device.id(), self.queue, raw.as_mut_ptr().cast(), room)
        };
        self.stats.polls = self.stats.polls.wrapping_add(1);
        if count == 0 {
            self.stats.polls_empty = self.stats.polls_empty.wrapping_add(1);
            return 0;
        }
        for slot in raw.iter().take(usize::from(count)) {
            // SAFETY: the call wrote the first `count` pointers.
            let mbuf = unsafe { slot.assume_init() };
            // The reference that is given up with the frame is counted here, by a locked instruction.
            prefetch::to_write(mbuf.cast());
            if count == 1 {
                // Nothing is done meanwhile: its bytes are not to wait for its descriptor.
                Mbuf::prefetch_unseen(mbuf);
            }
        }
        let before = out.len();
        for slot in raw.iter().take(usize::from(count)) {
            // SAFETY: the call wrote the first `count` pointers.
            let mbuf = unsafe { slot.assume_init() };
            let Some(mbuf) = NonNull::new(mbuf).filter(|&mbuf| self.in_one_piece(mbuf)) else { continue };
            // SAFETY: one segment, checked above; out of the queue's pool; the driver gave up its reference.
            let mbuf = unsafe { Mbuf::from_raw(mbuf) };
            self.stats.bytes = self.stats.bytes.wrapping_add(mbuf.bytes().len() as u64);
            // There is room: no more was asked for.
            let _ = out.try_push(mbuf);
        }
        let frames = out.len().saturating_sub(before);
        self.stats.frames = self.stats.frames.wrapping_add(frames as u64);
        frames
    }

    /// Makes a frame one segment; one that cannot be is dropped.
    #[inline]
    fn in_one_piece(&mut self, mbuf: NonNull<rte_mbuf>) -> bool {
        // SAFETY: a received buffer, owned by the caller.
        let segments = unsafe { field::nb_segs(mbuf.as_ptr()).read() };
        segments == 1 || self.linearise(mbuf)
    }

    #[cold]
    fn linearise(&mut self, mbuf: NonNull<rte_mbuf>) -> bool {
        // SAFETY: a received buffer, owned by the caller; unchanged if it does not fit.
        if unsafe { dpdk_sys::rte_pktmbuf_linearize(mbuf.as_ptr()) } == 0 {
            return true;
        }
        // SAFETY: owned by the caller, which gets `false` and drops its pointer.
        unsafe { dpdk_sys::rte_pktmbuf_free(mbuf.as_ptr()) };
        self.stats.drop_scattered = self.stats.drop_scattered.wrapping_add(1);
        false
    }

    /// Returns true if [`DeviceRx::wait`] wakes up for frames.
    pub fn has_descriptor(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Returns true if [`DeviceRx::wait`] misses no frame, so that its timeout may be long.
    pub fn wakes_for_all(&self) -> bool {
        self.descriptor.is_some() && (self.event_bytes.is_none() || self.counts_frames)
    }

    /// Returns true if the queue is a ring, which only the threads of this process fill.
    pub fn is_ring(&self) -> bool {
        self.device.is_ring()
    }

    /// Sleeps until frames arrive (if the port has an interrupt), one of `others` has an event, or `timeout` has
    /// passed. If the device does not count frames, the wait may miss those that arrive while the interrupt is being
    /// armed; the timeout ends it then.
    pub fn wait(&mut self, others: &mut [PollFd<'_>], timeout: Duration) -> Wake {
        let armed = self.event_bytes.is_some() && self.descriptor.is_some() && self.interrupt(true);
        if armed && self.counts_frames && self.frames_arrived() != Some(0) {
            self.interrupt(false);
            self.clear_event();
            return Wake::Frames;
        }
        let descriptor = self.descriptor.filter(|_| armed || self.event_bytes.is_none());
        // SAFETY: the device keeps it open while `self.device` is held, which outlives this call.
        let descriptor = descriptor.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let wake = match descriptor {
            Some(descriptor) => wait_on(descriptor, others, timeout),
            None => wait_for(others, timeout),
        };
        let wake = match wake {
            // The interface behind it is gone: every further wait would end at once.
            Wake::Dead => {
                self.descriptor = None;
                Wake::Timeout
            }
            wake => wake,
        };
        if armed {
            self.interrupt(false);
            if wake == Wake::Frames {
                self.clear_event();
            }
        }
        wake
    }

    /// Returns the number of frames that have arrived and have not been received; `None` if the device does not know.
    fn frames_arrived(&self) -> Option<u32> {
        // SAFETY: the queue was set up and the device runs while `self.device` is held.
        let counted = unsafe { dpdk_sys::rte_eth_rx_queue_count(self.device.id(), self.queue) };
        u32::try_from(counted).ok()
    }

    /// Arms or disarms the queue's interrupt.
    fn interrupt(&mut self, on: bool) -> bool {
        let (device, queue) = (self.device.id(), self.queue);
        let returned = if on {
            // SAFETY: the device runs while `self.device` is held.
            unsafe { dpdk_sys::rte_eth_dev_rx_intr_enable(device, queue) }
        } else {
            // SAFETY: as above.
            unsafe { dpdk_sys::rte_eth_dev_rx_intr_disable(device, queue) }
        };
        returned == 0
    }

    /// Takes the interrupt's event, if there is one, so that it does not wake the next wait.
    fn clear_event(&mut self) {
        if let (Some(descriptor), Some(bytes)) = (self.descriptor, self.event_bytes) {
            // SAFETY: the device keeps it open while `self.device` is held, which outlives this call.
            take_event(unsafe { BorrowedFd::borrow_raw(descriptor) }, bytes);
        }
    }
}

/// Reads the count of a descriptor that has one; `bytes` is its length. A UIO device without an event would block.
fn take_event(descriptor: BorrowedFd<'_>, bytes: usize) {
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    if !matches!(poll(&mut set, Some(&timespec(Duration::ZERO))), Ok(1..)) {
        return;
    }
    let mut count = [0; EVENTFD_BYTES];
    let _ = rustix::io::read(descriptor, count.get_mut(..bytes).unwrap_or_default());
}

/// Sleeps until a port's descriptor or one of `others` has an event, or `timeout` has passed.
pub(crate) fn wait_on<'fd>(port: BorrowedFd<'fd>, others: &mut [PollFd<'fd>], timeout: Duration) -> Wake {
    let mut set = ArrayVec::<PollFd<'_>, { 1 + OTHERS_MAX }>::new();
    set.push(PollFd::from_borrowed_fd(port, PollFlags::IN));
    set.extend(others.iter().take(OTHERS_MAX).cloned());
    let wake = match (poll(&mut set, Some(&timespec(timeout))), set.first()) {
        (Ok(1..), Some(port)) if is_dead(port.revents()) => Wake::Dead,
        (Ok(1..), Some(port)) if !port.revents().is_empty() => Wake::Frames,
        (Ok(1..), _) => Wake::Other,
        (Ok(0) | Err(_), _) => Wake::Timeout,
    };
    others.iter_mut().zip(set.into_iter().skip(1)).for_each(|(other, polled)| *other = polled);
    wake
}

/// Sleeps until one of `others` has an event, or `timeout` has passed.
pub fn wait_for(others: &mut [PollFd<'_>], timeout: Duration) -> Wake {
    // A signal may end the sleep early: the next iteration finds out whether there is work.
    match poll(others, Some(&timespec(timeout))) {
        Ok(1..) => Wake::Other,
        Ok(0) | Err(_) => Wake::Timeout,
    }
}

/// Bytes of the count that an eventfd gives, and takes no fewer; VFIO's interrupts come by one.
const EVENTFD_BYTES: usize = 8;
/// Bytes of the count that a UIO device gives, and takes neither fewer nor more.
const UIO_BYTES: usize = 4;

/// Bytes to be read from the descriptor of an interrupt. That of UIO is the device itself.
fn event_bytes(descriptor: RawFd) -> usize {
    // SAFETY: the caller's device keeps it open during this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let is_device = |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode).is_char_device();
    if rustix::fs::fstat(descriptor).is_ok_and(is_device) { UIO_BYTES } else { EVENTFD_BYTES }
}

/// Returns true if a descriptor reports an error, and no frame.
fn is_dead(events: PollFlags) -> bool {
    events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) && !events.contains(PollFlags::IN)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Frames waiting to be sent, oldest first.
#[derive(Debug, Default)]
pub struct TxBatch {
    frames: ArrayVec<Mbuf, BURST>,
}

impl TxBatch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the frames, the next one to send first.
    pub(crate) fn frames(&self) -> impl Iterator<Item = &Mbuf> {
        self.frames.iter()
    }

    /// Appends a frame.
    ///
    /// # Errors
    /// The batch is full: the frame is handed back.
    #[inline]
    pub fn push(&mut self, frame: TxFrame<Mbuf>) -> Result<(), TxFrame<Mbuf>> {
        let TxFrame { buf, offload } = frame;
        buf.set_offload(&offload);
        self.frames.try_push(buf).map_err(|error| TxFrame { buf: error.element(), offload })
    }

    /// Frames in the batch.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns true if the batch has no room left.
    pub fn is_full(&self) -> bool {
        self.frames.is_full()
    }

    /// Drops all frames of the batch.
    pub fn clear(&mut self) {
        self.frames.clear();
    }

    /// Bytes of all frames.
    fn bytes(&self) -> u64 {
        self.frames.iter().fold(0, |sum, frame| sum.wrapping_add(frame.frame_len().into()))
    }

    /// The same, if each is of a length that can be sent.
    #[inline]
    fn sendable_bytes(&self, sendable: &RangeInclusive<usize>) -> Option<u64> {
        let mut sum = 0_u64;
        for frame in &self.frames {
            if !sendable.contains(&frame.bytes().len()) {
                return None;
            }
            sum = sum.wrapping_add(frame.frame_len().into());
        }
        Some(sum)
    }

    /// Drops the first `count` frames.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.frames.drain(..count.min(self.frames.len()));
    }

    /// Drops the frames that do not meet a condition; how many those are.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Mbuf) -> bool) -> usize {
        let before = self.frames.len();
        self.frames.retain(|frame| keep(frame));
        before.saturating_sub(self.frames.len())
    }

    /// Gives up the first `count` frames without freeing them: somebody else owns them now.
    fn forget_first(&mut self, count: usize) {
        let len = self.frames.len();
        let count = count.min(len);
        let left = len.saturating_sub(count);
        let start = self.frames.as_mut_ptr();
        // SAFETY: `count` ≤ `len`: within the array, or one past its last element.
        let tail = unsafe { start.add(count) };
        // SAFETY: `left` elements from `tail` on are initialized, `left` places from `start` on are writable.
        unsafe { std::ptr::copy(tail, start, left) };
        // SAFETY: the first `left` places are initialized; what was behind them moved forward or is given up.
        unsafe { self.frames.set_len(left) };
    }
}

/// One transmit queue of a port.
#[derive(Debug)]
pub struct DeviceTx {
    device: Arc<Device>,
    queue: u16,
    /// The longest frame, bytes, Ethernet and VLAN headers included.
    frame_max: usize,
    /// The device computes checksums, and may have to look at the frames before.
    checksum: bool,
    /// The ring that the frames go into, if any.
    ring: Option<Arc<Ring>>,
    stats: TxQueueStats,
    /// Frames at the front of the batch that were counted as deferred already.
    deferred: usize,
    _one_user: PhantomData<Cell<()>>,
}

impl DeviceTx {
    pub(super) fn new(
        device: Arc<Device>,
        queue: u16,
        frame_max: usize,
        checksum: bool,
        ring: Option<Arc<Ring>>,
    ) -> Self {
        let stats = TxQueueStats::default();
        Self { device, queue, frame_max, checksum, ring, stats, deferred: 0, _one_user: PhantomData }
    }

    /// Frames will be sent soon: asks the cache for what that takes of a ring. Other ports know themselves.
    #[inline]
    pub(crate) fn expect(&self) {
        if let Some(ring) = &self.ring {
            ring.expect();
        }
    }

    /// Says that frames from `rx` will be sent into this queue: if both are rings, this one then keeps the pools of the
    /// frames until it has given them away. A ring knows only the pools of its own two ends.
    pub fn forwards(&self, rx: &DeviceRx) {
        if let (Some(to), Some(from)) = (&self.ring, rx.device.rx_ring(rx.queue)) {
            to.keep_all_of(from);
        }
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> &TxQueueStats {
        &self.stats
    }

    pub(crate) fn stats_mut(&mut self) -> &mut TxQueueStats {
        &mut self.stats
    }

    /// Notes that the frames of the batch were dropped.
    pub(crate) fn forget_deferred(&mut self) {
        self.deferred = 0;
    }

    /// Sends from the front of the batch what the port takes now; how many frames those are. The rest stays in
    /// the batch, in order. Frames that the port could never send are dropped and counted: they would hold up
    /// the others for good.
    #[inline]
    pub fn burst(&mut self, batch: &mut TxBatch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        let sendable = FRAME_MIN..=self.frame_max;
        let mut bytes =
            batch.sendable_bytes(&sendable).unwrap_or_else(|| self.drop_unsendable(batch, &sendable));
        let mut ready = batch.len();
        if self.checksum {
            ready = self.prepare(batch);
            bytes = batch.bytes();
        }
        let frames = batch.frames.as_mut_ptr().cast::<*mut rte_mbuf>();
        let count = u16::try_from(ready).unwrap_or(BURST_U16);
        // SAFETY: `Mbuf` is a transparent pointer, so the batch is an array of at least `count` of them; the
        // device runs while `self.device` is held; `&mut self` makes this the only caller. The driver takes
        // over one reference to each of the frames that it says it took.
        let sent = unsafe { dpdk_sys::rte_eth_tx_burst(self.device.id(), self.queue, frames, count) };
        let sent = usize::from(sent);
        batch.forget_first(sent);
        self.stats.frames = self.stats.frames.wrapping_add(sent as u64);
        self.stats.bytes = self.stats.bytes.wrapping_add(bytes.wrapping_sub(batch.bytes()));
        let newly = batch.len().saturating_sub(self.deferred.saturating_sub(sent));
        self.stats.deferred = self.stats.deferred.wrapping_add(newly as u64);
        self.deferred = batch.len();
        sent
    }

    /// Drops frames that are too short or too long; the bytes of the others. Some drivers stop at such a frame forever,
    /// others free it silently.
    #[cold]
    fn drop_unsendable(&mut self, batch: &mut TxBatch, sendable: &RangeInclusive<usize>) -> u64 {
        let dropped = batch.retain(|frame| sendable.contains(&frame.bytes().len()));
        self.stats.drop_length = self.stats.drop_length.wrapping_add(dropped as u64);
        batch.bytes()
    }

    /// Lets the driver look at frames whose checksums it shall compute; how many from the front on are ready. A
    /// frame that it refuses is dropped.
    fn prepare(&mut self, batch: &mut TxBatch) -> usize {
        let ready = batch.len();
        let frames = batch.frames.as_mut_ptr().cast::<*mut rte_mbuf>();
        let count = u16::try_from(ready).unwrap_or(BURST_U16);
        // SAFETY: as for the burst; the driver takes nothing over.
        let good = unsafe { dpdk_sys::rte_eth_tx_prepare(self.device.id(), self.queue, frames, count) };
        let good = usize::from(good);
        if good < ready && good < batch.len() {
            drop(batch.frames.remove(good));
            self.stats.drop_offload = self.stats.drop_offload.wrapping_add(1);
        }
        good
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// The descriptor of a UIO device blocks a read without an event. Frames may have arrived without one.
    #[test]
    fn an_event_is_taken_only_if_there_is_one() {
        let blocking = eventfd(1, EventfdFlags::empty()).unwrap();
        take_event(blocking.as_fd(), EVENTFD_BYTES);
        let mut set = [PollFd::new(&blocking, PollFlags::IN)];
        assert_eq!(poll(&mut set, Some(&timespec(Duration::ZERO))), Ok(0), "the event is taken");
        take_event(blocking.as_fd(), EVENTFD_BYTES);
    }

    /// An eventfd answers a read of 4 bytes with an error, a UIO device one of 8: each is asked for as many as it
    /// has.
    #[test]
    fn an_interrupt_s_count_is_read_whole() {
        let eventfd = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        assert_eq!(event_bytes(eventfd.as_raw_fd()), 8);
        // A character device as UIO's.
        let device = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(event_bytes(device.as_raw_fd()), 4);
    }
}
