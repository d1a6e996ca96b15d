//! Programs and a worker over queues in shared memory. These tests are one program, because each program would compile
//! the generic code of `rdma` again.
#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "lengths are small, and a test may panic"
)]

mod batches;
mod bounded;
mod common;
mod contexts;
mod counters;
mod ends;
mod events;
mod hostile;
mod limits;
mod memory;
mod messages;
mod model;
mod watch;
