//! The program's side: posts work requests, polls completions and events. Each type is one queue, and has one user at a
//! time; a library that serves several threads puts a lock around each.

mod completion_queue;
mod events;
mod recv_queue;
mod send_queue;
mod slots;
mod watch;

use iwarp_shared_queues::AtomicU64;

pub use completion_queue::CompletionQueue;
pub use events::Events;
pub use recv_queue::RecvQueue;
pub use send_queue::SendQueue;
pub use slots::Slots;
pub use watch::Notifications;

use crate::layout::doorbells;

/// Rings a queue's doorbell. Returns true if the worker sleeps and must be woken.
#[inline]
fn ring<M: AsRef<[AtomicU64]>>(memory: &M, doorbell: u32) -> bool {
    doorbells(memory.as_ref()).is_some_and(|doorbells| doorbells.ring(doorbell))
}
