//! The NFS server, called by clients of another implementation. These tests are one program, because they share the
//! clients. They need root.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "lengths are small, and a test may panic"
)]

mod client;
mod daemon;
mod exports;
mod malformed;
mod nfs3;
mod nfs4;
#[allow(dead_code, reason = "programs use the rest")]
#[path = "../../examples/client/mod.rs"]
mod over_rdma;
mod rdma;
mod regions;
mod session;
mod tcp;
