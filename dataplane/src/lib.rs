//! The daemon iwarpd: DPDK ports, poll-mode workers, region memory, control socket.
//!
//! ```text
//! daemon ─ setup ─┬─ port ── dpdk            frames in and out
//!                 ├─ worker ─ port ─ engine  one thread per core: the protocols
//!                 ├─ memory                  regions, the only place that segments are copied to
//!                 └─ control ─ admin         the Unix socket and what its methods do
//! ```
//!
//! Programs in the place of the daemon use [`verbs`]: queue pairs on a port of their own, in their own poll loop.

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
