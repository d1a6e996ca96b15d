//! The protocol of rdma-core's `rping`, over the verbs of Ironwarp: an interoperability test of two ends. The binary
//! `iwarp-rping` uses the crate.
//!
//! ```text
//!  args ─▶ device ─▶ dataplane::verbs::Node ─▶ Client | Server ─▶ stats
//!                          the poll loop         objects, protocol
//! ```
//! [`Client`] and [`Server`] depend on neither DPDK nor a clock: they take a node's [`Engine`] and the time.
//!
//! [`Engine`]: dataplane::engine::Engine
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
