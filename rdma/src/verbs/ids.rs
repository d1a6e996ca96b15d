//! Handles of the objects that a [`Device`](super::Device) owns. A handle holds the index of a table slot and the
//! slot's generation, so that a stale handle does not name a newer object.

use crate::memory::RegionId;

/// Queue pair number: 24 bits, as in InfiniBand. The highest six are the number of the [worker](Self::worker), below
/// them are a generation and an index. 0, 1 and `0xffffff`, which have a meaning in InfiniBand, do not occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpNum(pub u32);

/// Handle of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CqId(pub u32);

impl CqId {
    /// Returns the index in the device's table, below [`Limits::cqs`](super::Limits::cqs).
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

impl QpNum {
    /// Bits of the index in a number.
    pub(super) const INDEX_BITS: u32 = 14;
    /// Generations of an index. One number less than its bits allow: all bits set name no queue pair.
    pub(super) const GENERATIONS: u8 = 14;
    /// Bits of index and generation.
    pub(super) const WORKER_SHIFT: u32 = 18;

    /// Returns the index in the device's table, below [`Limits::qps`](super::Limits::qps).
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    /// Returns the number of the worker that has the queue pair, 0–63. Workers that share an address have different
    /// ones, and so the peer finds the worker.
    pub const fn worker(self) -> u8 {
        let [_, high, ..] = self.0.to_be_bytes();
        high >> 2
    }
}

/// Handle of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SrqId(pub u32);

/// Handle of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MwId(pub u32);

/// Client of a device to which an id belongs. Connections that a listener accepts begin with the listener's owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// The program that polls the device.
    #[default]
    Program,
    /// The region service, with the region that it has granted to the connection, if any.
    Region(Option<RegionId>),
    /// A context of another process, by its number.
    Context(u32),
    /// The device itself: connections of queue pairs that are connected by number.
    QueuePairs,
    /// The device itself, for a queue pair of this [client](super::Device::set_qp_client).
    QueuePairOf(u32),
}

impl Owner {
    /// Returns true if the device itself handles the events of the id.
    #[inline]
    pub(super) const fn is_device(self) -> bool {
        matches!(self, Self::QueuePairs | Self::QueuePairOf(_))
    }
}

/// Listener or connection handle (`rdma_cm_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CmId(pub u32);

impl CmId {
    /// Bits of the index in a handle: a worker may have many more connections than queue pairs.
    pub(super) const INDEX_BITS: u32 = 24;

    /// Returns the index in the device's table, below [`Limits::ids`](super::Limits::ids). The adapter may use it as
    /// the index of its own table.
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }
}
