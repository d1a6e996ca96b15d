//! Frame memory: the traits through which the stack uses the port's buffers.
//!
//! The port alone allocates frame memory (a DPDK mbuf). The stack reads frames in place, keeps buffers of segments
//! that are held or may be retransmitted, and frees a buffer by dropping it.

use crate::wire::Sum;

/// Headroom of a fresh buffer, bytes: Ethernet (14) + VLAN (4) + IPv6 (40) + TCP (60), rounded up to DPDK's
/// default.
pub const HEADROOM: usize = 128;

/// An owned handle on one frame's memory.
///
/// Several handles may share the same bytes (see [`Buf::share`]). Shared bytes are read-only: every method that
/// would change them returns `None` or `false` until the other handles are dropped. No method panics.
pub trait Buf: Sized {
    /// Returns the bytes, without headroom and tailroom.
    fn bytes(&self) -> &[u8];
    /// Returns the bytes for writing; `None` while shared.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;
    /// Adds `len` bytes before the first; returns them for writing, with unspecified content. Returns `None`,
    /// changing nothing, while shared or if the headroom is shorter.
    fn prepend(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Adds `len` bytes after the last; returns them for writing, with unspecified content. Returns `None`, changing
    /// nothing, while shared or if the tailroom is shorter.
    fn append(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Removes `len` bytes from the front, which become headroom. Returns `false`, changing nothing, while shared or
    /// if there are fewer bytes.
    fn trim_front(&mut self, len: usize) -> bool;
    /// Removes bytes from the end until `len` are left. Returns `false`, changing nothing, while shared or if there
    /// are fewer bytes.
    fn truncate(&mut self, len: usize) -> bool;
    /// Returns another handle on the same bytes.
    fn share(&self) -> Self;
    /// True if another handle on these bytes exists (the port's, while it transmits).
    fn is_shared(&self) -> bool;
    /// Returns the number of bytes that may be appended.
    fn tailroom(&self) -> usize;
    /// Returns the memory that the buffer occupies, bytes. Memory limits count this, not `bytes().len()`.
    fn true_size(&self) -> usize;
    /// Returns [`Sum::of`] bytes of such a buffer. The owner of the memory may use processor instructions that this
    /// portable crate does not.
    #[inline]
    fn sum(bytes: &[u8]) -> Sum {
        Sum::of(bytes)
    }
    /// Appends `next` to the chain of buffers that forms this handle's frame; [`Buf::bytes`] does not change. Only
    /// frames for a port that cuts them ([`Segmentation`](crate::Segmentation)) consist of several buffers.
    ///
    /// `next` must be a handle on a buffer that no port holds. It is returned, and nothing is changed, if the
    /// buffers do not support chains; only ports with segmentation need them.
    fn link(&mut self, next: Self) -> Result<(), Self> {
        Err(next)
    }
    /// Removes the other buffers from the chain of a frame that the port has released. Called on a buffer that is
    /// not shared, before it is sent on its own.
    fn unlink(&mut self) {}
}

/// The purpose of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufClass {
    /// Payload. Refused while only the pool's reserve is left.
    Data,
    /// Acknowledgments, resets, ARP and other frames without which no progress is possible: may use the reserve.
    Control,
}

/// A pool of packet buffers.
pub trait BufPool {
    /// The pool's buffer type.
    type Buf: Buf;
    /// Returns an empty buffer with [`HEADROOM`] bytes before and at least [`BufPool::data_room`] bytes after;
    /// `None` if the pool is exhausted for this class.
    fn alloc(&mut self, class: BufClass) -> Option<Self::Buf>;
    /// Returns the bytes that a fresh buffer holds behind its headroom.
    fn data_room(&self) -> usize;
    /// Returns the free buffers, including the reserve for [`BufClass::Control`]. The default is for pools that
    /// cannot run short.
    fn available(&self) -> u32 {
        u32::MAX
    }
    /// Announces that the next buffer will probably be filled with this many bytes of payload, so that slow memory
    /// can be prefetched.
    #[inline]
    fn expect(&mut self, _bytes: usize) {}
}

/// The port's verdict on the checksums of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Unknown: the stack verifies in software.
    #[default]
    Unknown,
    /// The port verified the IP header checksum and the TCP or UDP checksum.
    Good,
    /// The port verified the TCP or UDP checksum; the stack verifies that of the IPv4 header.
    TransportGood,
    /// The port found one of them wrong.
    Bad,
    /// The frame did not come from the port: the stack sent it with [`TxOffload::looped`]. Its checksums are not
    /// complete, and its source is an address of ours.
    Looped,
}

impl RxChecksum {
    /// True if the stack must verify the IPv4 header checksum.
    #[inline]
    pub(crate) fn leaves_ip(self) -> bool {
        !matches!(self, Self::Good | Self::Looped)
    }

    /// True if the stack must verify the TCP checksum.
    #[inline]
    pub(crate) fn leaves_transport(self) -> bool {
        !matches!(self, Self::Good | Self::TransportGood | Self::Looped)
    }
}

/// A received frame: an Ethernet frame without its FCS.
#[derive(Debug)]
pub struct RxFrame<B> {
    /// The frame's memory; its first byte is the destination address.
    pub buf: B,
    /// The port's verdict on its checksums.
    pub checksum: RxChecksum,
}

/// The work on a frame that is left to the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Length of the link header (Ethernet with VLAN), bytes.
    pub l2_len: u8,
    /// Length of the IP header with its options or extension headers, bytes.
    pub l3_len: u8,
    /// Length of the TCP header with its options, bytes.
    pub l4_len: u8,
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// The IPv4 header checksum is left to the port.
    pub ip_checksum: bool,
    /// The TCP checksum is left to the port: the field holds the pseudo-header's sum, without the length if
    /// the port cuts the frame.
    pub tcp_checksum: bool,
    /// Payload bytes of the segments that the port must cut the frame into, the last of which may be
    /// shorter; 0 if the frame is one segment.
    pub segment: u16,
    /// The destination is an address of ours: the port must not send the frame, but pass it to [`Stack::handle_frames`]
    /// of the worker that its flow belongs to, as [`RxChecksum::Looped`]. Its buffer may be shared with the send queue.
    ///
    /// [`Stack::handle_frames`]: crate::Stack::handle_frames
    pub looped: bool,
}

/// A frame to transmit, complete from its Ethernet header on.
#[derive(Debug)]
pub struct TxFrame<B> {
    /// The frame's memory: the first buffer of its chain.
    pub buf: B,
    /// The work that is left to the port.
    pub offload: TxOffload,
}
