//! RDMA verbs for a program that is its own dataplane: a [`Node`] polls an [`Engine`](iwarp_engine::Engine) on a DPDK
//! port in the program's own thread.
//!
//! | libibverbs, librdmacm | here |
//! |---|---|
//! | `ibv_open_device` | [`Node::start_dpdk`], [`Node::open`], [`Node::enter`] in the thread that polls |
//! | `ibv_alloc_pd`, `ibv_create_qp`, `ibv_post_send` … | the methods of that name of [`Node::device_mut`] |
//! | `ibv_reg_mr` | [`Node::alloc_mr`], which also allocates the memory |
//! | `rdma_create_id`, `rdma_bind_addr`, `rdma_listen` | [`Node::listen`] |
//! | `rdma_create_id`, `rdma_resolve_addr`, `rdma_connect` | [`Node::connect`] |
//! | `rdma_get_cm_event` | [`Node::wait_event`], or `poll_cm_event` of the device |
//! | `ibv_get_cq_event`, `ibv_poll_cq` | [`Node::wait_completion`], or `poll_cq` of the device |
//!
//! Work happens in [`Node::poll`] only, which the waiting calls repeat. `examples/write.rs`, `read.rs` and `send.rs`
//! are complete programs; `docs/verbs-tutorial.md` explains them.

mod mr;
mod node;
#[cfg(test)]
mod tests;
mod wait;

pub use crate::worker::PortEngine;
pub use mr::{Mr, RemoteMemory};
pub use node::{Node, NodeOptions};
pub use wait::WaitError;

pub use iwarp_config::Config;
pub use rdma::verbs::{
    Access, AsyncEvent, CmEvent, CmEventKind, CmId, ConnParam, CqId, Data, Device, PdId, PostError, QpCap,
    QpInit, QpNum, RecvWr, SendFlags, SendOp, SendWr, Sge, SrqId, Stag, VerbsError, WcOpcode, WcStatus,
    WorkCompletion,
};

pub use iwarp_engine::Clock;
pub use iwarp_engine::memory::OutOfBounds;
