//! Access to fields of DPDK's structures, in every release that the bindings are made from.
//!
//! Releases move fields into anonymous unions (`rte_mbuf` in 24.11), which changes their path in the bindings. The
//! bindings therefore keep these structures opaque, and each function here adds the offset that the C compiler gave
//! (`wrapper.h`), a constant: reading a field costs what it costs in C. `shim.c` checks each field's size.
//!
//! The functions compute addresses and touch no memory; who reads or writes there answers for it.
#![warn(missing_docs)]

use core::ffi::c_void;

use crate::{rte_mbuf, rte_mempool_cache, rte_ring};

/// The address of the data room, headroom included.
#[inline(always)]
pub const fn buf_addr(mbuf: *mut rte_mbuf) -> *mut *mut c_void {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_BUF_ADDR).cast()
}

/// Bytes from the data room's begin to the first byte of data.
#[inline(always)]
pub const fn data_off(mbuf: *mut rte_mbuf) -> *mut u16 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_DATA_OFF).cast()
}

/// References to the buffer. Accessed atomically.
#[inline(always)]
pub const fn refcnt(mbuf: *mut rte_mbuf) -> *mut u16 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_REFCNT).cast()
}

/// Buffers of the frame that this one begins.
#[inline(always)]
pub const fn nb_segs(mbuf: *mut rte_mbuf) -> *mut u16 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_NB_SEGS).cast()
}

/// The `DPDK_MBUF_RX_*` and `DPDK_MBUF_TX_*` flags.
#[inline(always)]
pub const fn ol_flags(mbuf: *mut rte_mbuf) -> *mut u64 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_OL_FLAGS).cast()
}

/// Bytes of the frame over all its buffers.
#[inline(always)]
pub const fn pkt_len(mbuf: *mut rte_mbuf) -> *mut u32 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_PKT_LEN).cast()
}

/// Bytes of data in this buffer.
#[inline(always)]
pub const fn data_len(mbuf: *mut rte_mbuf) -> *mut u16 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_DATA_LEN).cast()
}

/// Bytes of the data room, headroom included.
#[inline(always)]
pub const fn buf_len(mbuf: *mut rte_mbuf) -> *mut u16 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_BUF_LEN).cast()
}

/// The next buffer of the frame, or null.
#[inline(always)]
pub const fn next(mbuf: *mut rte_mbuf) -> *mut *mut rte_mbuf {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_NEXT).cast()
}

/// The header lengths and segment size for a port that computes checksums and cuts frames, in one word.
#[inline(always)]
pub const fn tx_offload(mbuf: *mut rte_mbuf) -> *mut u64 {
    mbuf.wrapping_byte_add(crate::DPDK_MBUF_TX_OFFLOAD).cast()
}

/// The ring's size, a power of two, less one.
#[inline(always)]
pub const fn ring_mask(ring: *mut rte_ring) -> *mut u32 {
    ring.wrapping_byte_add(crate::DPDK_RING_MASK).cast()
}

/// The position of the producer's next object, modulo 2³²; masked, its slot in the ring.
#[inline(always)]
pub const fn ring_producer_head(ring: *mut rte_ring) -> *mut u32 {
    ring.wrapping_byte_add(crate::DPDK_RING_PRODUCER_HEAD).cast()
}

/// The address of the consumer's position, to prefetch.
#[inline(always)]
pub const fn ring_consumer(ring: *mut rte_ring) -> *const u8 {
    ring.wrapping_byte_add(crate::DPDK_RING_CONSUMER).cast_const().cast()
}

/// Objects in a thread's cache.
#[inline(always)]
pub const fn cache_len(cache: *mut rte_mempool_cache) -> *mut u32 {
    cache.wrapping_byte_add(crate::DPDK_MEMPOOL_CACHE_LEN).cast()
}
