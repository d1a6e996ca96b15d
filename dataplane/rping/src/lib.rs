//! `rping` of rdma-core, spoken with the verbs of Ironwarp: a test that two ends understand each other.
//!
//! ```text
//!  args ─▶ device ─▶ dataplane::verbs::Node ─▶ Client | Server ─▶ stats
//!                          the poll loop         objects, protocol
//! ```
//! [`Client`] and [`Server`] know neither DPDK nor a clock: what they need of a node is its [`Verbs`] and the time.
//!
//! [`Verbs`]: dataplane::verbs::Verbs
#![forbid(unsafe_code)]

mod client;
mod conn_objects;
mod error;
pub mod protocol;
mod server;
mod stats;
mod verbosity;

pub use client::{Client, ClientPlan};
pub use conn_objects::{Bytes, TextMemory};
pub use error::Error;
pub use server::{Server, ServerPlan};
pub use stats::{Stats, Summary, Times};
pub use verbosity::Verbosity;
