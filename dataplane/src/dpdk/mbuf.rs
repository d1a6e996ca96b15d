//! One handle on one packet buffer.
//!
//! ```text
//! rte_mbuf (128 bytes) │ headroom │ bytes │ tailroom
//!                      └ buf_addr └ + data_off (data_len)
//! ```
//!
//! Every buffer behind an [`Mbuf`] is a single segment out of a pktmbuf pool: the pool allocates such ones,
//! and the receive queue hands over no others. Header fields other than the reference count and the transmit
//! flags are written only while there is one handle, so that they can be read without synchronization.
//!
//! A frame for a card that cuts it (TSO) is a chain ([`Buf::link`]): the handle on its first buffer, which is
//! nobody else's, owns a reference to each. A buffer that was in a chain keeps DPDK's `next` until it is sent
//! again ([`Buf::unlink`]) or freed, so only the first buffer's handle follows it.
#![allow(unsafe_code, reason = "reads and writes DPDK's packet buffers")]

use std::fmt;
use std::process::abort;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use dpdk_sys::{field, rte_mbuf};
use iwarp_engine::prefetch;
use tcp_stack::wire::Sum;
use tcp_stack::{Buf, RxChecksum, TxOffload};

use super::config::Offloads;
use super::release::release;

use crate::checksum;

/// A buffer whose bytes lie elsewhere: a fact about the memory, not an offload; to be kept.
const ATTACHED: u64 = dpdk_sys::DPDK_MBUF_EXTERNAL | dpdk_sys::DPDK_MBUF_INDIRECT;

/// Headers that the common segment has before its payload, bytes.
const HEADERS: usize = 66;
/// Lines that a frame with a small message lies in.
const SMALL_LINES: usize = 4;

/// One owned handle on one packet buffer; dropping it gives the buffer back once no other handle is left.
///
/// See [`Buf`] for what sharing means.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: a handle owns its buffer or shares it read-only; the reference count is atomic (DPDK is built with
// RTE_MBUF_REFCNT_ATOMIC), the transmit flags are accessed atomically, and pools take buffers from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes over one reference to a buffer.
    ///
    /// # Safety
    /// `mbuf` is a single-segment buffer of a pktmbuf pool that lives as long as any of its buffers is out,
    /// and the caller gives up the one reference that it owns.
    pub(super) unsafe fn from_raw(mbuf: NonNull<rte_mbuf>) -> Self {
        Self(mbuf)
    }

    fn ptr(&self) -> *mut rte_mbuf {
        self.0.as_ptr()
    }

    fn data_off(&self) -> u16 {
        // SAFETY: the handle keeps the buffer alive; written by sole owners only.
        unsafe { field::data_off(self.ptr()).read() }
    }

    fn data_len(&self) -> u16 {
        // SAFETY: as for `data_off`.
        unsafe { field::data_len(self.ptr()).read() }
    }

    fn buf_len(&self) -> u16 {
        // SAFETY: as for `data_off`; constant once the pool is made.
        unsafe { field::buf_len(self.ptr()).read() }
    }

    fn refcnt(&self) -> &AtomicU16 {
        // SAFETY: the handle keeps the buffer alive while `self` is borrowed; the field is aligned, and DPDK too
        // accesses it atomically.
        unsafe { AtomicU16::from_ptr(field::refcnt(self.ptr())) }
    }

    fn flags(&self) -> &AtomicU64 {
        // SAFETY: the handle keeps the buffer alive while `self` is borrowed, and the field is aligned; handles access
        // it atomically only, and a driver only while it owns a reference to a frame that it was given.
        unsafe { AtomicU64::from_ptr(field::ol_flags(self.ptr())) }
    }

    fn tx_offload(&self) -> &AtomicU64 {
        // SAFETY: as for `flags`.
        unsafe { AtomicU64::from_ptr(field::tx_offload(self.ptr())) }
    }

    /// Returns the address of the first byte.
    fn data(&self) -> *mut u8 {
        // SAFETY: the handle keeps the buffer alive.
        let start = unsafe { field::buf_addr(self.ptr()).read() };
        start.cast::<u8>().wrapping_add(usize::from(self.data_off()))
    }

    /// Buffers of the frame that this handle begins.
    fn segments(&self) -> u16 {
        // SAFETY: as for `data_off`.
        unsafe { field::nb_segs(self.ptr()).read() }
    }

    /// Calls `f` with the bytes of each buffer of the frame, in order.
    pub(crate) fn for_each_part(&self, f: &mut dyn FnMut(&[u8])) {
        f(self.bytes());
        let mut at = self.ptr();
        for _ in 1..self.segments() {
            // SAFETY: the chain has as many buffers as `nb_segs` says, which its first handle keeps alive.
            at = unsafe { field::next(at).read() };
            // SAFETY: as above: `at` is alive.
            let start = unsafe { field::buf_addr(at).read() };
            // SAFETY: as above.
            let offset = unsafe { field::data_off(at).read() };
            // SAFETY: as above.
            let len = unsafe { field::data_len(at).read() };
            let start = start.cast::<u8>().wrapping_add(usize::from(offset));
            // SAFETY: the buffer's bytes, which nobody writes while they are linked to a frame.
            f(unsafe { slice::from_raw_parts(start, usize::from(len)) });
        }
    }

    /// The frame's length over all its buffers, bytes.
    pub(crate) fn frame_len(&self) -> u32 {
        // SAFETY: as for `data_off`.
        unsafe { field::pkt_len(self.ptr()).read() }
    }

    /// Moves the bytes' start and length. The caller has checked both against the buffer, and owns it alone.
    fn set_data(&mut self, offset: u16, len: u16) {
        debug_assert!(usize::from(offset) + usize::from(len) <= usize::from(self.buf_len()));
        let linked = self.frame_len().saturating_sub(u32::from(self.data_len()));
        // SAFETY: the sole owner may write the header.
        unsafe { field::data_off(self.ptr()).write(offset) };
        // SAFETY: as above.
        unsafe { field::data_len(self.ptr()).write(len) };
        // SAFETY: as above.
        unsafe { field::pkt_len(self.ptr()).write(linked.saturating_add(u32::from(len))) };
    }

    /// `len` bytes from `offset` on, for writing.
    fn span(&mut self, offset: u16, len: u16) -> &mut [u8] {
        // SAFETY: the handle keeps the buffer alive.
        let start = unsafe { field::buf_addr(self.ptr()).read() };
        let start = start.cast::<u8>().wrapping_add(usize::from(offset));
        // SAFETY: the caller has checked that the span lies within the buffer and that this is the only
        // handle. The pool's memory was mapped zeroed and has been written since: it is initialized.
        unsafe { slice::from_raw_parts_mut(start, usize::from(len)) }
    }

    /// Returns the port's verdict on the checksums that it verifies by configuration, `enabled`. The verdict on others
    /// is ignored: igb calls every checksum right if verification is off.
    ///
    /// Good is a frame whose IP header (IPv6 has no checksum) and whose TCP segment the port verified, or whose data
    /// it vouches for although the field holds no checksum: virtio, for a frame that never left this machine.
    pub fn rx_checksum(&self, enabled: Offloads) -> RxChecksum {
        use dpdk_sys::{
            DPDK_MBUF_RX_IP_CKSUM_BAD, DPDK_MBUF_RX_IP_CKSUM_GOOD, DPDK_MBUF_RX_IP_CKSUM_MASK,
            DPDK_MBUF_RX_L4_CKSUM_BAD, DPDK_MBUF_RX_L4_CKSUM_GOOD, DPDK_MBUF_RX_L4_CKSUM_MASK,
        };
        if !enabled.rx_tcp_checksum {
            return RxChecksum::Unknown;
        }
        let flags = self.flags().load(Ordering::Relaxed);
        let ip = flags & DPDK_MBUF_RX_IP_CKSUM_MASK;
        let l4 = flags & DPDK_MBUF_RX_L4_CKSUM_MASK;
        // Both bits: DPDK's "no checksum in the frame, but the data are intact".
        let intact = l4 == DPDK_MBUF_RX_L4_CKSUM_GOOD || l4 == DPDK_MBUF_RX_L4_CKSUM_MASK;
        if l4 == DPDK_MBUF_RX_L4_CKSUM_BAD || (enabled.rx_ip_checksum && ip == DPDK_MBUF_RX_IP_CKSUM_BAD) {
            RxChecksum::Bad
        } else if !intact {
            RxChecksum::Unknown
        } else if enabled.rx_ip_checksum && ip == DPDK_MBUF_RX_IP_CKSUM_GOOD || self.is_ipv6() {
            RxChecksum::Good
        } else {
            RxChecksum::TransportGood
        }
    }

    /// Returns true if the frame's EtherType, behind at most one VLAN tag, is IPv6's.
    fn is_ipv6(&self) -> bool {
        match self.bytes().get(12..18) {
            Some([0x86, 0xdd, ..] | [0x81, 0x00, _, _, 0x86, 0xdd]) => true,
            Some(_) | None => false,
        }
    }

    /// Notes what the port must do to the frame when it sends it. Handles on the same bytes share the note.
    pub(super) fn set_offload(&self, offload: &TxOffload) {
        let mut flags = 0;
        if offload.tcp_checksum {
            flags |= dpdk_sys::DPDK_MBUF_TX_TCP_CKSUM;
        }
        if offload.tcp_checksum || offload.ip_checksum {
            flags |= if offload.ipv6 { dpdk_sys::DPDK_MBUF_TX_IPV6 } else { dpdk_sys::DPDK_MBUF_TX_IPV4 };
        }
        if offload.ip_checksum && !offload.ipv6 {
            flags |= dpdk_sys::DPDK_MBUF_TX_IP_CKSUM;
        }
        if offload.segment > 0 {
            flags |= dpdk_sys::DPDK_MBUF_TX_TCP_SEG;
        }
        let kept = self.flags().load(Ordering::Relaxed) & ATTACHED;
        self.flags().store(kept | flags, Ordering::Relaxed);
        // l2_len: 7 bits, l3_len: 9 bits, l4_len: 8 bits, tso_segsz: 16 bits. rte_mbuf_core.h lays them out from
        // the lowest bit on.
        let lengths = u64::from(offload.l2_len & 0x7f)
            | u64::from(offload.l3_len) << 7
            | u64::from(offload.l4_len) << 16
            | u64::from(offload.segment) << 24;
        self.tx_offload().store(lengths, Ordering::Relaxed);
    }

    /// Returns what [`Self::set_offload`] noted.
    pub(crate) fn offload(&self) -> TxOffload {
        let flags = self.flags().load(Ordering::Relaxed);
        let is_set = |flag| flags & flag != 0;
        let lengths = self.tx_offload().load(Ordering::Relaxed);
        let [l2, l3, l4, segment] =
            [lengths & 0x7f, lengths >> 7 & 0x1ff, lengths >> 16 & 0xff, lengths >> 24 & 0xffff];
        let byte = |length: u64| u8::try_from(length).unwrap_or(u8::MAX);
        TxOffload {
            l2_len: byte(l2),
            l3_len: byte(l3),
            l4_len: byte(l4),
            ipv6: is_set(dpdk_sys::DPDK_MBUF_TX_IPV6),
            ip_checksum: is_set(dpdk_sys::DPDK_MBUF_TX_IP_CKSUM),
            tcp_checksum: is_set(dpdk_sys::DPDK_MBUF_TX_TCP_CKSUM),
            segment: u16::try_from(segment).unwrap_or(u16::MAX),
            looped: false,
        }
    }

    /// Notes a verdict on the frame's checksums, as a driver does.
    pub(crate) fn set_rx_checksum(&self, verdict: RxChecksum) {
        let flags = match verdict {
            RxChecksum::Unknown | RxChecksum::Looped => 0,
            RxChecksum::Good => dpdk_sys::DPDK_MBUF_RX_IP_CKSUM_GOOD | dpdk_sys::DPDK_MBUF_RX_L4_CKSUM_GOOD,
            RxChecksum::TransportGood => dpdk_sys::DPDK_MBUF_RX_L4_CKSUM_GOOD,
            RxChecksum::Bad => dpdk_sys::DPDK_MBUF_RX_L4_CKSUM_BAD,
        };
        let kept = self.flags().load(Ordering::Relaxed) & ATTACHED;
        self.flags().store(kept | flags, Ordering::Relaxed);
    }

    /// The transmit flags, and the lengths of the link, network and transport headers, as DPDK's own
    /// accessors read them.
    #[cfg(test)]
    pub(super) fn offload_fields(&self) -> (u64, (u64, u64, u64, u64)) {
        let mut lengths = [0; 4];
        // SAFETY: the handle keeps the buffer alive; `lengths` has room for the four.
        unsafe { dpdk_sys::dpdk_mbuf_tx_lengths(self.ptr(), lengths.as_mut_ptr()) };
        (self.flags().load(Ordering::Relaxed), lengths.into())
    }

    /// Sets the flags as a driver does that has received the frame.
    #[cfg(test)]
    pub(super) fn set_flags(&self, flags: u64) {
        self.flags().store(flags, Ordering::Relaxed);
    }

    /// Fetches the frame's bytes into the cache: they will be read soon.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::read_soon(self.bytes());
    }

    /// Fetches the first lines of the frame in a buffer whose descriptor has not come yet, from where a pool has put it
    /// and a sender the headers before its payload. All of them, if it is a small one.
    #[inline]
    pub(super) fn prefetch_unseen(mbuf: *const rte_mbuf) {
        let first = size_of::<rte_mbuf>().wrapping_add(tcp_stack::HEADROOM).wrapping_sub(HEADERS);
        for line in 0..SMALL_LINES {
            prefetch::to_read(mbuf.cast::<u8>().wrapping_add(first.wrapping_add(line * prefetch::LINE)));
        }
    }

    /// Fetches into the cache, as its own, what of a fresh buffer a frame with `bytes` of payload will take: it will be
    /// written soon, and was read last by the core that its last frame went to.
    #[inline]
    pub(super) fn prefetch_room(&self, bytes: usize) {
        let end = usize::from(self.data_off()).saturating_add(bytes).min(usize::from(self.buf_len()));
        let headers = usize::from(self.data_off()).saturating_sub(HEADERS);
        let start = self.data().wrapping_sub(usize::from(self.data_off()));
        prefetch::run(start.wrapping_add(headers), end.saturating_sub(headers), prefetch::to_write);
    }
}

impl Buf for Mbuf {
    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `data_off + data_len` lies within the buffer, as kept by `set_data` and by DPDK's drivers;
        // bytes are written by sole owners only, and a sole owner cannot be borrowed here as well.
        unsafe { slice::from_raw_parts(self.data(), usize::from(self.data_len())) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_shared() {
            return None;
        }
        Some(self.span(self.data_off(), self.data_len()))
    }

    fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.is_shared() {
            return None;
        }
        let n = u16::try_from(n).ok()?;
        let offset = self.data_off().checked_sub(n)?;
        self.set_data(offset, self.data_len().checked_add(n)?);
        Some(self.span(offset, n))
    }

    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.is_shared() || n > self.tailroom() {
            return None;
        }
        let n = u16::try_from(n).ok()?;
        let (offset, len) = (self.data_off(), self.data_len());
        let tail = offset.checked_add(len)?;
        self.set_data(offset, len.checked_add(n)?);
        Some(self.span(tail, n))
    }

    fn trim_front(&mut self, n: usize) -> bool {
        let (Ok(n), false) = (u16::try_from(n), self.is_shared()) else { return false };
        let (Some(offset), Some(len)) = (self.data_off().checked_add(n), self.data_len().checked_sub(n))
        else {
            return false;
        };
        self.set_data(offset, len);
        true
    }

    fn truncate(&mut self, len: usize) -> bool {
        match u16::try_from(len) {
            Ok(len) if len <= self.data_len() && !self.is_shared() => {
                self.set_data(self.data_off(), len);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    #[inline]
    fn share(&self) -> Self {
        if self.refcnt().load(Ordering::Relaxed) == 1 {
            // This handle is the only one, and is not to be used by two threads at once: nobody else can change the
            // count. A locked instruction would wait for every store before it, those that have just filled the buffer.
            self.refcnt().store(2, Ordering::Relaxed);
            return Self(self.0);
        }
        let before = self.refcnt().fetch_add(1, Ordering::Relaxed);
        if before == u16::MAX {
            abort(); // the count has wrapped: 65535 handles on one buffer, a leak that would become a double free
        }
        Self(self.0)
    }

    #[inline]
    fn is_shared(&self) -> bool {
        let shared = self.refcnt().load(Ordering::Relaxed) != 1;
        if !shared {
            // What other handles read happens before what this one writes, now that they are gone.
            fence(Ordering::Acquire);
        }
        shared
    }

    fn tailroom(&self) -> usize {
        let used = usize::from(self.data_off()).saturating_add(usize::from(self.data_len()));
        usize::from(self.buf_len()).saturating_sub(used)
    }

    fn true_size(&self) -> usize {
        size_of::<rte_mbuf>().saturating_add(usize::from(self.buf_len()))
    }

    #[inline]
    fn sum(bytes: &[u8]) -> Sum {
        checksum::sum(bytes)
    }

    fn link(&mut self, next: Self) -> Result<(), Self> {
        // `next` is in no other chain: its owner's handle and this one are all there is.
        let references = next.refcnt().load(Ordering::Acquire);
        if self.is_shared() || references > 2 || next.segments() != 1 || self.segments() == u16::MAX {
            return Err(next);
        }
        let segments = self.segments().saturating_add(1);
        let bytes = self.frame_len().saturating_add(u32::from(next.data_len()));
        let mut last = self.ptr();
        for _ in 1..self.segments() {
            // SAFETY: the chain has as many buffers as `nb_segs` says, which its first handle keeps alive.
            last = unsafe { field::next(last).read() };
        }
        // SAFETY: `next` is alive, in no other chain, and no port holds it: nobody reads its `next` meanwhile.
        unsafe { field::next(next.ptr()).write(null_mut()) };
        // SAFETY: the last buffer of a chain that this handle owns.
        unsafe { field::next(last).write(next.ptr()) };
        // SAFETY: the sole owner of the first buffer may write its header.
        unsafe { field::nb_segs(self.ptr()).write(segments) };
        // SAFETY: as above.
        unsafe { field::pkt_len(self.ptr()).write(bytes) };
        // The chain owns the reference now.
        std::mem::forget(next);
        Ok(())
    }

    fn unlink(&mut self) {
        if !self.is_shared() && self.segments() == 1 {
            // SAFETY: the sole owner may write the header; what followed belongs to its own handles.
            unsafe { field::next(self.ptr()).write(null_mut()) };
        }
    }
}

impl AsRef<[u8]> for Mbuf {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: gives up the reference that this handle owns, and those of its chain.
        unsafe { release(self.0) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf").field("len", &self.data_len()).field("shared", &self.is_shared()).finish()
    }
}
