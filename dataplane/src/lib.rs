//! The daemon `iwarpd`: DPDK ports, poll-mode workers, region memory, control socket.
//!
//! ```text
//! daemon ─ setup ─┬─ port ── dpdk            frames in and out
//!                 ├─ worker ─ port ─ engine  one thread per core: the protocols
//!                 ├─ memory                  regions: the only target of received payload
//!                 └─ control ─ admin         the Unix socket and its methods
//! ```
//!
//! A program that runs its own poll loop in place of the daemon uses [`verbs`]: queue pairs on a port of its own.

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
mod setup;
mod signals;
pub mod verbs;
pub mod worker;
