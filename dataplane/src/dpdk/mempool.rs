//! A pool of packet buffers.
#![allow(unsafe_code, reason = "makes, counts and frees DPDK memory pools")]

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::eal::Eal;
use super::error::{DpdkError, Errno};
use super::thread::lcore_id;

/// The largest per-thread cache that DPDK allows, buffers.
const CACHE_MAX: u32 = 512;

/// Room before a fresh buffer's first byte, octets.
const HEADROOM: u16 = 128;
const _: () = assert!(HEADROOM as usize == tcp_stack::HEADROOM);
const _: () = assert!(HEADROOM as u32 == dpdk_sys::DPDK_PKTMBUF_HEADROOM);

/// What a pool is made of.
#[derive(Clone, Copy, Debug)]
pub struct MempoolConfig {
    /// Buffers in all. 2ⁿ − 1 wastes the least memory.
    pub count: u32,
    /// Buffers that a registered thread keeps to itself, 0 to 512; up to half as many more pile up there
    /// before some go back. They count as available, but other threads cannot have them.
    pub cache: u32,
    /// Octets of one buffer's data room, headroom included.
    pub data_room: u16,
}

/// A pool of packet buffers. Made at start, sized for good.
///
/// Any thread may free into it; one that is registered allocates from a cache of its own.
#[derive(Debug)]
pub struct Mempool {
    pool: NonNull<dpdk_sys::rte_mempool>,
    config: MempoolConfig,
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

impl Mempool {
    /// Makes a pool.
    ///
    /// # Errors
    /// The numbers do not fit together, or there is not enough memory.
    pub fn new(eal: &Eal, config: MempoolConfig) -> Result<Self, DpdkError> {
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
        // SAFETY: DPDK is up, as `eal` proves; `name` is a C string, copied by the call.
        let pool = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.count,
                config.cache,
                0,
                config.data_room,
                dpdk_sys::DPDK_SOCKET_ID_ANY,
            )
        };
        let pool = NonNull::new(pool).ok_or_else(|| DpdkError::last(operation()))?;
        Ok(Self { pool, config, lent_for_good: AtomicBool::new(false), eal: eal.clone() })
    }

    /// Buffers in all.
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

    /// Octets of a buffer's data room, headroom included.
    pub fn data_room(&self) -> u16 {
        self.config.data_room
    }

    /// Octets of a frame that one buffer holds: its data room without the headroom.
    pub fn frame_room(&self) -> u16 {
        // In range: checked in `new`.
        self.config.data_room.saturating_sub(HEADROOM)
    }

    /// Says that the device keeps buffers when it is closed, as net_af_xdp does with those in its fill queue: that
    /// some are out at the end is then no defect.
    pub fn lend_for_good(&self) {
        self.lent_for_good.store(true, Ordering::Relaxed);
    }

    /// What the buffers were taken from.
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
    }
}
