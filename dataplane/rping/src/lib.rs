//! `rping` of rdma-core, spoken with the verbs of Ironwarp: a test that two ends understand each other.
//!
//! ```text
//!  args ─▶ device ─▶ dataplane::verbs::Node ─▶ Client | Server ─▶ tally
//!                          the poll loop         parts, protocol
//! ```
//! [`Client`] and [`Server`] know neither DPDK nor a clock: what they need of a node is its [`Verbs`] and the time.
//!
//! [`Verbs`]: dataplane::verbs::Verbs
#![forbid(unsafe_code)]

mod client;
mod fault;
mod parts;
pub mod protocol;
mod server;
mod tally;
mod voice;

pub use client::{Client, ClientPlan};
pub use fault::Fault;
pub use parts::{Bytes, Place};
pub use server::{Server, ServerPlan};
pub use tally::{Summary, Tally, Times};
pub use voice::Voice;
