//! Rings that stand in for a wire.
#![allow(unsafe_code, reason = "makes and frees DPDK rings")]

use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys::field;
use iwarp_engine::prefetch;

use super::eal::Eal;
use super::error::DpdkError;
use super::mempool::Mempool;

/// Rings that one ring device takes per direction (`RTE_PMD_RING_MAX_RX_RINGS`).
pub const RING_QUEUES_MAX: usize = 16;

/// A ring of frames with one sender and one receiver: the wire between two queues.
///
/// What arrives is the very buffer that was sent. While the sender keeps a handle on it, for it may have to be sent
/// again, it is read-only on both sides ([`tcp_stack::Buf::share`]), as a frame is that a card has not sent yet.
#[derive(Debug)]
pub struct Ring {
    ring: NonNull<dpdk_sys::rte_ring>,
    /// The pools whose buffers may be in the ring.
    pools: Mutex<Vec<Arc<Mempool>>>,
    _eal: Eal,
}

// SAFETY: the handle only keeps the ring alive; its ends are used by one transmit and one receive queue each.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

static MADE: AtomicU32 = AtomicU32::new(0);

impl Ring {
    /// A ring for `frames` frames, rounded up to a power of two, less one.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(eal: &Eal, frames: u16) -> Result<Self, DpdkError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("iwarp_wire_{number}")).unwrap_or_default();
        let count = u32::from(frames.max(2)).next_power_of_two();
        let flags = dpdk_sys::DPDK_RING_F_SP_ENQ | dpdk_sys::DPDK_RING_F_SC_DEQ;
        // SAFETY: DPDK is up, as `eal` proves; `name` is a C string, copied by the call; `count` is a power of
        // two, as required.
        let ring =
            unsafe { dpdk_sys::rte_ring_create(name.as_ptr(), count, dpdk_sys::DPDK_SOCKET_ID_ANY, flags) };
        let ring = NonNull::new(ring).ok_or_else(|| DpdkError::last(format!("ring of {count} frames")))?;
        Ok(Self { ring, pools: Mutex::default(), _eal: eal.clone() })
    }

    /// Keeps the pool whose frames will be sent into the ring, until these are freed.
    pub(super) fn keep(&self, pool: &Arc<Mempool>) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(pool));
    }

    /// Keeps all pools whose frames may be in another ring: what is received from that one is sent into this one.
    pub(super) fn keep_all_of(&self, other: &Self) {
        let pools = other.pools.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).extend(pools);
    }

    /// Prefetches the cache lines of the next send: its slot, which the receiver has read, and the receiver's position.
    /// Only the sender may call it.
    #[inline]
    pub(super) fn expect(&self) {
        let ring = self.ring.as_ptr();
        // SAFETY: the ring is alive and the field aligned; the sender alone writes it, and is the caller.
        let head = unsafe { field::ring_producer_head(ring).read() };
        // SAFETY: alive, aligned, and constant once the ring is made.
        let mask = unsafe { field::ring_mask(ring).read() };
        // The places, pointers to frames, lie behind the header.
        let places = ring.wrapping_add(1).cast::<NonNull<c_void>>();
        prefetch::to_write(places.wrapping_add((head & mask) as usize).cast());
        prefetch::to_read(field::ring_consumer(ring));
    }

    /// The ring, for DPDK.
    pub(super) fn raw(&self) -> *mut dpdk_sys::rte_ring {
        self.ring.as_ptr()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut frame = null_mut();
        loop {
            // SAFETY: the devices that used it are closed, each holding a handle: nobody else dequeues.
            let returned = unsafe { dpdk_sys::rte_ring_dequeue(self.ring.as_ptr(), &raw mut frame) };
            if returned != 0 {
                break;
            }
            // SAFETY: only frames are sent into the ring, and what is taken out is owned.
            unsafe { dpdk_sys::rte_pktmbuf_free(frame.cast()) };
        }
        // SAFETY: empty, and no device uses it.
        unsafe { dpdk_sys::rte_ring_free(self.ring.as_ptr()) };
    }
}
