//! The stack from outside: wire formats, limits, floods, the lists of requirements and features. These tests are one
//! program, because each program would compile the crate's generic code again.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "lengths are small, and a test may panic")]

mod eviction;
mod features;
mod flood;
mod fuzz;
mod memory_pressure;
mod no_connection;
mod out_of_sync;
mod proofs;
mod rfc9293;
mod segmentation;
mod wire_ip;
mod wire_link;
mod wire_tcp;
