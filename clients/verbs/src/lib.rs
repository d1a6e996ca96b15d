//! Verbs for programs on a machine that runs `iwarpd`: the daemon is the RDMA NIC that they open.
//!
//! ```no_run
//! use iwarp_verbs::{Access, Context, QpOptions};
//!
//! let context = Context::open("/run/iwarpd/verbs.sock", None)?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(256)?;
//! let qp = pd.create_qp(&QpOptions::new(&cq))?;
//! let memory = pd.alloc_mr(1 << 20, Access::LOCAL_READ | Access::REMOTE_WRITE)?;
//! # Ok::<(), iwarp_verbs::Error>(())
//! ```
//! | libibverbs, librdmacm | here |
//! |---|---|
//! | `ibv_open_device` | [`Context::open`] |
//! | `ibv_alloc_pd`, `ibv_create_cq` | [`Context::alloc_pd`], [`Context::create_cq`] |
//! | `ibv_reg_mr` | [`ProtectionDomain::reg_mr`] |
//! | … and allocation, or a region | [`ProtectionDomain::alloc_mr`], [`ProtectionDomain::reg_region`] |
//! | `ibv_create_qp` | [`ProtectionDomain::create_qp`] |
//! | `ibv_post_send`, `ibv_poll_cq` | [`QueuePair::post_send`], [`CompletionQueue::poll`] |
//! | `ibv_resize_cq` | [`CompletionQueue::resize`] |
//! | `ibv_get_cq_event` | [`Context::wait_completion`], [`Context::completion_fd`] |
//! | `rdma_create_id`, `rdma_connect` | [`Context::create_id`], [`Id::connect`] |
//! | `rdma_listen`, `rdma_accept` | [`Id::listen`], [`Id::accept`] |
//! | `rdma_get_cm_event`, `ibv_get_async_event` | [`Context::wait_event`], [`Context::event_fd`] |
//!
//! Objects are created by requests over the daemon's verbs socket. Work is posted and completions are polled in memory
//! that the program shares with the daemon's worker, without system calls. Objects may be shared between threads. Each
//! is destroyed when its last handle is dropped; an object keeps those that it uses.
//!
//! [`attach`] maps a region of the daemon for a program that reads its bytes. [`watch`](watch()) also waits for the
//! messages of peers to it: Immediate Data behind their RDMA Writes, and Sends.

mod backend;
mod bell;
mod blocks;
mod cm;
mod context;
mod cq;
mod daemon;
mod embedded;
mod error;
mod exchange;
mod mapping;
mod maps;
mod mr;
mod own_memory;
mod process;
mod qp;
mod region;
#[cfg(test)]
mod tests;
mod watch;

pub use cm::Id;
pub use context::Context;
pub use cq::CompletionQueue;
pub use error::Error;
pub use mapping::{Mapping, OutOfBounds};
pub use mr::{MemoryWindow, Mr, ProtectionDomain};
pub use qp::{QpOptions, QueuePair, SharedReceiveQueue};
pub use region::{AttachError, Region, attach, attach_with};
pub use watch::{Notification, Watch, watch};

pub use iwarp_control::{ClientError, ErrorKind};
pub use iwarp_shared_verbs::methods::{DEFAULT_SOCKET, DeviceInfo};
pub use iwarp_shared_verbs::{Content, Event, NextHop};
pub use rdma::AtomicOp;
pub use rdma::verbs::{
    Access, AsyncEvent, Bind, CmEvent, CmEventKind, CmId, ConnParam, CqId, Data, PollError, PostError,
    QpAttr, QpCap, QpNum, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, SrqAttr, Stag, VerbsError,
    WcOpcode, WcStatus, WorkCompletion, inc_rkey,
};
pub use rdma::wire::mpa::RtrOptions;
