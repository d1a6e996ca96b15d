//! Memory that a device allocates for queues, for those who account for it.

use super::completion::WorkCompletion;
use super::queue_pair::{Posted, QpInit};
use crate::qp::{Event, Local, QueuePair, SGE_MAX, Sge, WorkRequest};

/// Bytes of a buffer of a receive queue beside its elements.
const BUFFER_BYTES: u64 = (size_of::<(u64, Local)>() + 8) as u64;
/// Bytes of a queue pair beside its queues.
const QUEUE_PAIR_BYTES: u64 = (size_of::<QueuePair>() + 1024) as u64;

const fn bytes_of<T>() -> u64 {
    size_of::<T>() as u64
}

fn sges(count: u16) -> u64 {
    u64::from(count).min(SGE_MAX as u64).saturating_mul(bytes_of::<Sge>())
}

impl QpInit {
    /// Returns the memory of the queue pair's queues, bytes, if all slots are in use. `srq_sge` is the number of
    /// elements of a buffer of its shared receive queue, if it has one.
    pub fn memory_bytes(&self, srq_sge: Option<u16>) -> u64 {
        let cap = self.cap;
        let send = bytes_of::<WorkRequest>()
            .saturating_add(bytes_of::<Posted>())
            .saturating_add(bytes_of::<Event>())
            .saturating_add(sges(cap.max_send_sge))
            .saturating_add(cap.max_inline_data.into());
        let recv = BUFFER_BYTES
            .saturating_add(bytes_of::<Event>())
            .saturating_add(sges(srq_sge.unwrap_or(cap.max_recv_sge)));
        let send = u64::from(cap.max_send_wr).saturating_mul(send);
        let recv = u64::from(cap.max_recv_wr).saturating_mul(recv);
        QUEUE_PAIR_BYTES.saturating_add(send).saturating_add(recv)
    }
}

/// Returns the memory of a completion queue with this many entries, bytes.
pub fn cq_memory_bytes(cqe: u32) -> u64 {
    u64::from(cqe).saturating_mul(bytes_of::<WorkCompletion>().saturating_add(8))
}

/// Returns the memory of a shared receive queue, bytes.
pub fn srq_memory_bytes(max_wr: u16, max_sge: u16) -> u64 {
    u64::from(max_wr).saturating_mul(bytes_of::<(u64, Local)>().saturating_add(sges(max_sge)))
}
