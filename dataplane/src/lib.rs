//! The daemon `iwarpd`: DPDK ports, poll-mode workers, region memory, control socket.
//!
//! ```text
//! daemon ─ setup ─┬─ port ── dpdk            frames in and out
//!                 ├─ worker ─ port ─ engine  one thread per core: TCP, the RDMA device, the services
//!                 ├─ memory                  regions: the only target of received payload
//!                 └─ control ─ admin         the Unix socket and its methods
//! ```
//!
//! A program that runs its own poll loop in place of the daemon uses [`verbs`]: queue pairs on a port of its own, on
//! the same [`engine`].

pub mod admin;
mod checksum;
pub mod control;
pub mod daemon;
pub mod dpdk;
pub mod engine;
pub mod log;
pub mod memory;
pub mod port;
pub mod prefetch;
mod services;
mod setup;
mod signals;
mod transport;
pub mod verbs;
pub mod worker;
