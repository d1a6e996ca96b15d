//! Frame memory, as the stack sees it.
//!
//! On the wire side a frame lives in memory that only the port knows how to allocate (a DPDK mbuf). The
//! stack never copies it to look at it, keeps it when a segment must be held or may have to be sent
//! again, and gives it back by dropping it. This trait is all that the stack knows of it.

use crate::wire::Sum;

/// Room that a fresh buffer has before its first byte: Ethernet (14) + VLAN (4) + IPv6 (40) + TCP (60),
/// rounded up to DPDK's default headroom, in bytes.
pub const HEADROOM: usize = 128;

/// One owned handle on one frame's memory.
///
/// Several handles may share the same bytes (see [`Buf::share`]). Shared bytes are read-only: every
/// method that would change them answers `None` or `false` until the other handles are dropped. None of
/// the methods panics.
pub trait Buf: Sized {
    /// The bytes, without headroom and tailroom.
    fn bytes(&self) -> &[u8];
    /// The bytes for writing; `None` while shared.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
    /// Adds `n` bytes before the first; returns them for writing, their content being unspecified.
    /// `None`, and nothing changed, while shared or with less headroom than that.
    fn prepend(&mut self, n: usize) -> Option<&mut [u8]>;
    /// Adds `n` bytes after the last; returns them for writing, their content being unspecified.
    /// `None`, and nothing changed, while shared or with less tailroom than that.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;
    /// Removes `n` bytes from the front, making them headroom; `false`, and nothing changed, while
    /// shared or with fewer bytes than that.
    fn trim_front(&mut self, n: usize) -> bool;
    /// Removes bytes from the end until `len` are left; `false`, and nothing changed, while shared or
    /// with fewer bytes than that.
    fn truncate(&mut self, len: usize) -> bool;
    /// Another handle on the same bytes.
    fn share(&self) -> Self;
    /// Whether another handle on these bytes exists (the port's, while it transmits).
    fn is_shared(&self) -> bool;
    /// Bytes that may still be appended.
    fn tailroom(&self) -> usize;
    /// What the buffer really occupies, in bytes: memory limits count this, not `bytes().len()`.
    fn true_size(&self) -> usize;
    /// [`Sum::of`] bytes of such a buffer: who owns the memory may have instructions for it that this crate, for any
    /// processor, does without.
    #[inline]
    fn sum(bytes: &[u8]) -> Sum {
        Sum::of(bytes)
    }
    /// Makes `next`'s bytes the last of the frame that this handle begins; [`Buf::bytes`] stays what it
    /// was. Only frames for a port that cuts them ([`Segmentation`](crate::Segmentation)) are made of
    /// several buffers.
    ///
    /// `next` must be a handle on a buffer that no port holds. It comes back, and nothing changed, from
    /// buffers that cannot do it, as those of a port without segmentation need not.
    fn link(&mut self, next: Self) -> Result<(), Self> {
        Err(next)
    }
    /// Forgets what followed this buffer in a frame that the port has let go of. Called on a buffer that
    /// is not shared, before it is sent on its own.
    fn unlink(&mut self) {}
}

/// What a buffer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufClass {
    /// Payload. Refused while only the reserve is left.
    Data,
    /// Acknowledgments, resets, ARP and other frames without which nothing would move: may use the
    /// reserve.
    Control,
}

/// Where buffers come from.
pub trait BufPool {
    /// The buffers.
    type Buf: Buf;
    /// An empty buffer with [`HEADROOM`] bytes before and at least [`BufPool::data_room`] after; `None`
    /// when the pool is exhausted for this class.
    fn alloc(&mut self, class: BufClass) -> Option<Self::Buf>;
    /// Bytes that a fresh buffer holds behind its headroom.
    fn data_room(&self) -> usize;
    /// Buffers that are left, those that are kept for [`BufClass::Control`] included. A pool that cannot run short need not
    /// tell.
    fn available(&self) -> u32 {
        u32::MAX
    }
    /// Says that a buffer is likely to be asked for next and filled with so many bytes of payload: memory that is slow to
    /// write can be fetched meanwhile.
    #[inline]
    fn expect(&mut self, _bytes: usize) {}
}

/// What the port says of the checksums of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing known: the stack verifies in software.
    #[default]
    Unknown,
    /// The port verified the IP header checksum and the TCP or UDP checksum.
    Good,
    /// The port found one of them wrong.
    Bad,
}

/// A received frame: an Ethernet frame without its FCS.
#[derive(Debug)]
pub struct RxFrame<B> {
    /// The frame's memory; its first byte is the destination address.
    pub buf: B,
    /// What the port says of its checksums.
    pub checksum: RxChecksum,
}

/// What the port must still do to a frame that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Length of the link header (Ethernet with VLAN), bytes.
    pub l2_len: u8,
    /// Length of the IP header with its options or extension headers, bytes.
    pub l3_len: u8,
    /// Length of the TCP header with its options, bytes.
    pub l4_len: u8,
    /// IPv6 rather than IPv4.
    pub ipv6: bool,
    /// The IPv4 header checksum is left to the port.
    pub ip_checksum: bool,
    /// The TCP checksum is left to the port: the field holds the pseudo-header's sum, without the length if
    /// the port cuts the frame.
    pub tcp_checksum: bool,
    /// Payload bytes of the segments that the port must cut the frame into, the last of which may be
    /// shorter; 0 if the frame is one segment.
    pub segment: u16,
}

/// A frame to transmit, complete from its Ethernet header on.
#[derive(Debug)]
pub struct TxFrame<B> {
    /// The frame's memory: its first buffer, which the others are linked to.
    pub buf: B,
    /// What the port must still do.
    pub offload: TxOffload,
}
