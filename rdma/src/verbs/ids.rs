//! Handles of the objects that a [`Device`](super::Device) owns. A handle is never reused for another object soon: it
//! holds the index of a table slot and the generation of that slot.

/// Queue pair number: 24 bits, as in InfiniBand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpNum(pub u32);

/// Completion queue handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CqId(pub u32);

/// Shared receive queue handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SrqId(pub u32);

/// Memory window handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MwId(pub u32);

/// Listener or connection handle (`rdma_cm_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmId(pub u32);

impl CmId {
    /// Which place in the device's table: below [`Limits::ids`](super::Limits::ids), so that it serves as the index of
    /// the adapter's own.
    #[inline]
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}
