//! The protocol of rdma-core's `rping`, over the verbs of Ironwarp: an interoperability test of two ends. The binary
//! `iwarp-rping` uses the crate.
//!
//! ```text
//!  args ─▶ device ─┬▶ dataplane::verbs::Node ─┬▶ Client | Server ─▶ stats
//!                  │    its own poll loop     │    objects, protocol
//!                  └▶ Application ────────────┘
//!                       a context of iwarpd
//! ```
//! [`Client`] and [`Server`] depend on neither DPDK nor a clock: they take [`Verbs`] and the time. A node's
//! [`Engine`](iwarp_engine::Engine) provides the verbs of a program that is its own dataplane.
#![forbid(unsafe_code)]

mod application;
pub mod args;
mod client;
mod conn_objects;
pub mod device;
mod engine;
mod error;
pub mod protocol;
mod server;
mod stats;
mod verbosity;
mod verbs;

pub use application::Application;
pub use client::{Client, ClientPlan};
pub use engine::Bytes;
pub use error::Error;
pub use server::{Server, ServerPlan};
pub use stats::{Stats, Summary, Times};
pub use verbosity::Verbosity;
pub use verbs::{TextMemory, Verbs};
