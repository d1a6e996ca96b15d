//! A pool of packet buffers. `setup` creates one for each port and worker; receive queues and transmission take
//! buffers from it.
#![allow(unsafe_code, reason = "makes, counts and frees DPDK memory pools")]

use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use iwarp_engine::memory::{MemoryError, Pages, RegionMemory};

use super::eal::Eal;
use super::error::{DpdkError, Errno};
use super::thread::lcore_id;

/// The largest per-thread cache that DPDK allows, buffers.
const CACHE_MAX: u32 = 512;

/// Room before a fresh buffer's first byte, bytes.
const HEADROOM: u16 = 128;
const _: () = assert!(HEADROOM as usize == tcp_stack::HEADROOM);
const _: () = assert!(HEADROOM as u32 == dpdk_sys::DPDK_PKTMBUF_HEADROOM);

/// The configuration of a pool.
#[derive(Clone, Copy, Debug)]
pub struct MempoolConfig {
    /// Buffers in all. 2ⁿ − 1 wastes the least memory.
    pub count: u32,
    /// Buffers that a registered thread keeps to itself, 0 to 512; up to half as many more pile up there
    /// before some go back. They count as available, but other threads cannot have them.
    pub cache: u32,
    /// Bytes of one buffer's data room, headroom included.
    pub data_room: u16,
}

/// A pool of packet buffers. Made at start, sized for good.
///
/// Any thread may free into it; one that is registered allocates from a cache of its own.
#[derive(Debug)]
pub struct Mempool {
    pool: NonNull<dpdk_sys::rte_mempool>,
    config: MempoolConfig,
    /// The memory of the buffers, one after the other; `None`: DPDK's own memory, with gaps at the ends of pages.
    memory: ManuallyDrop<Option<RegionMemory>>,
    /// Its device does not give every buffer back.
    lent_for_good: AtomicBool,
    eal: Eal,
}

// SAFETY: the pool is a multi-producer, multi-consumer ring with per-thread caches, made so in `new`; the
// handle itself is immutable.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// DPDK wants names, and wants them unique.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// There is no memory for its buffers.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// DPDK refused: the numbers do not fit together, or its own memory is used up.
    #[error(transparent)]
    Dpdk(#[from] DpdkError),
}

impl Mempool {
    /// Makes a pool in DPDK's own memory, where a PCI device can reach it. No buffer crosses a page, so each page may
    /// end in a gap; on ordinary pages there is one buffer per page.
    ///
    /// # Errors
    /// The numbers do not fit together, or there is not enough memory.
    pub fn new(eal: &Eal, config: MempoolConfig) -> Result<Self, DpdkError> {
        Self::make(eal, config, None, |name| {
            // SAFETY: DPDK is up, as `eal` proves; `name` is a C string, copied by the call.
            unsafe {
                dpdk_sys::rte_pktmbuf_pool_create(
                    name.as_ptr(),
                    config.count,
                    config.cache,
                    0,
                    config.data_room,
                    dpdk_sys::DPDK_SOCKET_ID_ANY,
                )
            }
        })
    }

    /// Makes a pool whose buffers lie one after the other, without a gap, in memory of its own: for devices without
    /// DMA. net_af_xdp takes the pool's memory to be the number of its buffers times their size; a buffer beyond that
    /// would never be sent.
    ///
    /// # Errors
    /// The numbers do not fit together, or there are not enough such pages.
    pub fn contiguous(eal: &Eal, config: MempoolConfig, pages: Pages) -> Result<Self, PoolError> {
        // SAFETY: computes; no precondition.
        let bytes = unsafe { dpdk_sys::dpdk_pktmbuf_pool_bytes(config.count, config.data_room) };
        let memory = RegionMemory::new("packet-buffers", bytes as u64, pages)?;
        let base = memory.base();
        let pool = Self::make(eal, config, Some(memory), |name| {
            // SAFETY: DPDK is up, as `eal` proves; `name` is a C string, copied by the call; the memory holds `bytes`
            // writable bytes, is reached through the pool only, and outlives it: see `drop`.
            unsafe {
                dpdk_sys::dpdk_pktmbuf_pool_over(
                    name.as_ptr(),
                    config.count,
                    config.cache,
                    config.data_room,
                    base.as_ptr().cast(),
                    bytes,
                )
            }
        })?;
        Ok(pool)
    }

    /// Checks the numbers, finds a name, and has `create` make the pool.
    fn make(
        eal: &Eal,
        config: MempoolConfig,
        memory: Option<RegionMemory>,
        create: impl FnOnce(&CStr) -> *mut dpdk_sys::rte_mempool,
    ) -> Result<Self, DpdkError> {
        let operation = || {
            let MempoolConfig { count, cache, data_room } = config;
            format!("pool of {count} packet buffers of {data_room} bytes, {cache} cached per thread")
        };
        let cache_fits = config.cache.checked_mul(3).is_some_and(|three| three / 2 <= config.count);
        if config.cache > CACHE_MAX || !cache_fits || config.data_room <= HEADROOM {
            return Err(DpdkError::new(operation(), Errno::INVALID));
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("iwarp_mbuf_{number}")).unwrap_or_default();
        let pool = NonNull::new(create(&name)).ok_or_else(|| DpdkError::last(operation()))?;
        let (memory, lent_for_good) = (ManuallyDrop::new(memory), AtomicBool::new(false));
        Ok(Self { pool, config, memory, lent_for_good, eal: eal.clone() })
    }

    /// Returns true if the buffers lie one after the other without a gap: see [`Self::contiguous`].
    pub fn is_contiguous(&self) -> bool {
        self.memory.is_some()
    }

    /// Bytes from one buffer to the next: data room, headroom, and DPDK's notes on the buffer.
    pub fn object_bytes(&self) -> u32 {
        // SAFETY: computes; no precondition.
        let bytes = unsafe { dpdk_sys::dpdk_pktmbuf_pool_bytes(1, self.config.data_room) };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Returns the number of buffers.
    pub fn capacity(&self) -> u32 {
        self.config.count
    }

    /// Buffers that are not out, those in the threads' caches included. Walks all caches: not for the packet
    /// path.
    pub fn available(&self) -> u32 {
        // SAFETY: the pool lives as long as `self`; counting is safe beside allocation.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    /// Buffers that are out.
    pub fn in_use(&self) -> u32 {
        self.capacity().saturating_sub(self.available())
    }

    /// Buffers that the calling thread could have now: those in its own cache and those in nobody's.
    pub fn available_here(&self) -> u32 {
        // SAFETY: the pool lives as long as `self`.
        let common = unsafe { dpdk_sys::dpdk_mempool_common_count(self.pool.as_ptr()) };
        common.saturating_add(self.cached_here())
    }

    /// Buffers in the calling thread's cache.
    fn cached_here(&self) -> u32 {
        let Some(lcore) = lcore_id() else { return 0 };
        // SAFETY: the pool lives as long as `self`; `lcore` is the calling thread's own.
        let cache = unsafe { dpdk_sys::rte_mempool_default_cache(self.pool.as_ptr(), lcore) };
        if cache.is_null() {
            return 0;
        }
        // SAFETY: not null, part of the pool, and written by the calling thread only.
        unsafe { dpdk_sys::field::cache_len(cache).read() }
    }

    /// Bytes of a buffer's data room, headroom included.
    pub fn data_room(&self) -> u16 {
        self.config.data_room
    }

    /// Bytes of memory that a buffer takes: its descriptor and its data room.
    pub(super) fn buffer_bytes(&self) -> usize {
        size_of::<dpdk_sys::rte_mbuf>() + usize::from(self.config.data_room)
    }

    /// Bytes of a frame that one buffer holds: its data room without the headroom.
    pub fn frame_room(&self) -> u16 {
        // In range: checked in `new`.
        self.config.data_room.saturating_sub(HEADROOM)
    }

    /// Says that the device keeps buffers when it is closed, as net_af_xdp does with those in its fill queue: that
    /// some are out at the end is then no defect.
    pub fn lend_for_good(&self) {
        self.lent_for_good.store(true, Ordering::Relaxed);
    }

    /// Returns the DPDK environment of the pool.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// The pool, for DPDK.
    pub(super) fn raw(&self) -> NonNull<dpdk_sys::rte_mempool> {
        self.pool
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        let in_use = self.in_use();
        if in_use != 0 {
            // A buffer that is still out would be freed into memory that is gone. Keep the pool, and DPDK.
            if self.lent_for_good.load(Ordering::Relaxed) {
                tracing::debug!(in_use, "the device keeps packet buffers, and their pool with them");
            } else {
                tracing::error!(in_use, "packet buffers are still out: their pool is leaked");
            }
            std::mem::forget(self.eal.clone());
            return;
        }
        // SAFETY: all buffers are back, and with the last handle gone nobody can take another.
        unsafe { dpdk_sys::rte_mempool_free(self.pool.as_ptr()) };
        // SAFETY: dropped here and nowhere else. Where the pool is leaked, so is its memory.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
