//! Sizes of a stream, and the places of its parts in one memory region.

#![allow(
    clippy::cast_possible_truncation,
    reason = "buffers have at most 64 MiB, queues at most 4096 entries"
)]

use super::wire::{IOMAP_BYTES, MESSAGE_BYTES, TARGET_BYTES, TARGETS};

/// Receive buffers for the peer's control messages, beside those for the messages that are granted: a Send without a
/// buffer ends an iWARP connection.
const CONTROL_BUFFERS: u16 = 16;

/// Sizes of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Requests of the send queue.
    pub(super) send_queue: u16,
    /// Messages that the peer may send.
    pub(super) recv_queue: u16,
    /// Most bytes of inline data.
    pub(super) inline: u16,
    /// Entries of the map of buffers into which this side may write.
    pub(super) iomaps: u16,
    /// Bytes of the send buffer.
    pub(super) send_bytes: u32,
    /// Bytes of the receive buffer.
    pub(super) recv_bytes: u32,
}

impl Sizes {
    /// Returns the number of receive buffers.
    pub(super) const fn recv_buffers(self) -> u16 {
        self.recv_queue + CONTROL_BUFFERS
    }

    /// Returns the part of the receive buffer that is granted at a time, bytes.
    pub(super) const fn half(self) -> u32 {
        self.recv_bytes / 2
    }

    /// Returns where the receive buffer begins, behind the send buffer.
    pub(super) const fn recv_start(self) -> u32 {
        self.send_bytes
    }

    /// Returns where the buffers of messages begin.
    pub(super) const fn messages_start(self) -> u32 {
        self.recv_start() + self.recv_bytes
    }

    /// Returns where the list of targets begins.
    pub(super) const fn targets_start(self) -> u32 {
        let end = self.messages_start() + self.recv_buffers() as u32 * MESSAGE_BYTES as u32;
        end.next_multiple_of(8)
    }

    /// Returns where the map of buffers begins.
    pub(super) const fn maps_start(self) -> u32 {
        self.targets_start() + TARGETS * TARGET_BYTES as u32
    }

    /// Returns the bytes of the memory that has all of them.
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.maps_start()) + u64::from(self.iomaps) * IOMAP_BYTES as u64
    }
}
