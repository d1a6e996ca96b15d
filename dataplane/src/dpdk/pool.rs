//! The packet buffers of a worker.
#![allow(unsafe_code, reason = "allocates DPDK packet buffers in bulk")]

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::rte_mbuf;
use tcp_stack::{BufClass, BufPool};

use super::mbuf::Mbuf;
use super::mempool::Mempool;

/// Buffers fetched at a time, and data buffers handed out between two checks of the remaining ones.
const BULK: usize = 32;
const BULK_U32: u32 = 32;

/// Buffers that a worker's thread keeps in its pool's cache.
pub const WORKER_CACHE: u32 = 256;
/// The least that data leaves of a worker's pool, buffers.
pub const RESERVE_MIN: u32 = 256;

/// Memory of the packet buffers that [`Reuse::Fifo`] uses in turn, bytes: more than the private cache of a core, less
/// than the cache that the cores share.
const FIFO_BYTES: usize = 4 << 20;

/// Order in which a worker uses its packet buffers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// The buffer freed last comes first: the core's own cache holds it. For ports that copy a frame, or whose device
    /// reads it.
    Lifo,
    /// A buffer comes after 4 MiB of others. For ports that hand the buffer itself to another core: that core's
    /// private cache holds it at first, from which a write takes each line slowly. Meanwhile the lines move to the
    /// cache that the cores share.
    Fifo,
}

impl Reuse {
    /// Returns the number of buffers of a pool to keep between their fetching and their use.
    fn queued(self, pool: &Mempool) -> usize {
        match self {
            Self::Lifo => 0,
            Self::Fifo => (FIFO_BYTES / pool.buffer_bytes()).min(pool.capacity() as usize / 4),
        }
    }
}

/// Returns the buffers of a worker's pool that data to be sent leaves free: an eighth, at least [`RESERVE_MIN`]. Data
/// for a peer that does not read must leave room for the windows of all others.
pub(crate) fn worker_reserve(count: u32) -> u32 {
    (count / 8).max(RESERVE_MIN)
}

/// One worker's way to allocate from its pool.
///
/// Buffers for data are refused while no more than `reserve` are left, so that acknowledgments can always
/// be sent and received, and thus data buffers come back. The remaining buffers are counted every 32 data buffers, so
/// the reserve is exact to within 32. The pool should have at least `reserve` + 32 buffers and those that the receive
/// and transmit queues hold.
#[derive(Debug)]
pub struct MbufPool {
    pool: Arc<Mempool>,
    reserve: u32,
    /// Data buffers to give out before looking again.
    data_left: u32,
    /// Number of data buffers refused.
    refused: u64,
    /// Fetched and not yet given out, in the order of their use.
    fresh: VecDeque<Mbuf>,
    /// Buffers to keep in `fresh` while the pool has more than the reserve.
    queued: usize,
}

impl MbufPool {
    /// Allocates from `pool`, keeping `reserve` buffers for control frames and reception.
    pub fn new(pool: Arc<Mempool>, reserve: u32) -> Self {
        Self { pool, reserve, data_left: 0, refused: 0, fresh: VecDeque::with_capacity(BULK), queued: 0 }
    }

    /// Allocates from a worker's own pool, keeping an eighth of it, at least [`RESERVE_MIN`] buffers.
    pub fn of_worker(pool: Arc<Mempool>, reuse: Reuse) -> Self {
        let (reserve, queued) = (worker_reserve(pool.capacity()), reuse.queued(&pool));
        let fresh = VecDeque::with_capacity(queued.max(BULK));
        Self { fresh, queued, ..Self::new(pool, reserve) }
    }

    /// The pool behind it.
    pub fn mempool(&self) -> &Arc<Mempool> {
        &self.pool
    }

    /// Buffers that this worker could have now.
    pub fn available(&self) -> u32 {
        let fresh = u32::try_from(self.fresh.len()).unwrap_or(u32::MAX);
        self.pool.available_here().saturating_add(fresh)
    }

    /// Returns the number of buffers that were fetched from the pool and not given out.
    pub(crate) fn fetched(&self) -> usize {
        self.fresh.len()
    }

    /// Returns the number of data buffers refused because only the reserve was left.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns true if the retained data of connections has used nearly all of the reserve too, but for half of its
    /// minimum. More received data must be dropped: a port that cannot fill its queue receives no acknowledgment.
    #[inline]
    pub fn is_low(&self) -> bool {
        self.available() < self.reserve.min(RESERVE_MIN) / 2
    }

    /// Counts a data buffer if one may be handed out; returns true then.
    fn take_data(&mut self) -> bool {
        if self.data_left == 0 {
            self.data_left = self.available().saturating_sub(self.reserve).min(BULK_U32);
        }
        match self.data_left.checked_sub(1) {
            Some(left) => {
                self.data_left = left;
                true
            }
            None => {
                self.refused = self.refused.wrapping_add(1);
                false
            }
        }
    }

    /// Fetches buffers; `false` if there are none.
    fn refill(&mut self) -> bool {
        // All or none: with fewer than a bulk left, one is still one.
        [BULK_U32, 1].into_iter().any(|count| self.fetch(count))
    }

    /// Fetches a bulk if the queue lacks one and the pool has more than the reserve without those already fetched.
    fn fill_queue(&mut self) {
        let lacking = self.fresh.len().saturating_add(BULK) <= self.queued;
        if lacking && self.pool.available_here() > self.reserve.saturating_add(BULK_U32) {
            self.fetch(BULK_U32);
        }
    }

    /// Fetches exactly `count` (at most a bulk) buffers, or none. `fresh` has room for them.
    fn fetch(&mut self, count: u32) -> bool {
        let mut raw = [const { MaybeUninit::<*mut rte_mbuf>::uninit() }; BULK];
        // SAFETY: `raw` has room for `count` ≤ 32 pointers, and the pool is alive.
        let returned = unsafe {
            dpdk_sys::rte_pktmbuf_alloc_bulk(
                self.pool.raw().as_ptr(),
                raw.as_mut_ptr().cast(),
                count.min(BULK_U32),
            )
        };
        if returned != 0 {
            return false;
        }
        for slot in raw.iter().take(count as usize) {
            // SAFETY: the call succeeded, so it wrote `count` pointers.
            let mbuf = unsafe { slot.assume_init() };
            let Some(mbuf) = NonNull::new(mbuf) else { continue };
            // SAFETY: fresh from a pktmbuf pool: one segment, one reference, ours. The pool outlives it: it
            // is leaked rather than freed while a buffer is out.
            self.fresh.push_back(unsafe { Mbuf::from_raw(mbuf) });
        }
        true
    }
}

impl BufPool for MbufPool {
    type Buf = Mbuf;

    fn alloc(&mut self, class: BufClass) -> Option<Mbuf> {
        self.fill_queue();
        if self.fresh.is_empty() && !self.refill() {
            return None;
        }
        if class == BufClass::Data && !self.take_data() {
            return None;
        }
        let given = self.fresh.pop_front();
        if self.fresh.is_empty() {
            // There is always one to be expected.
            self.refill();
        }
        given
    }

    fn data_room(&self) -> usize {
        usize::from(self.pool.frame_room())
    }

    fn available(&self) -> u32 {
        self.available()
    }

    #[inline]
    fn expect(&mut self, bytes: usize) {
        if let Some(next) = self.fresh.front() {
            next.prefetch_room(bytes);
        }
    }
}
