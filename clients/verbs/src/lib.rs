//! RDMA verbs over iWARP: on a machine that runs `iwarpd`, the daemon is the RDMA NIC that a program opens. On any
//! other machine the device is inside the program, over the kernel's TCP, and needs no privilege.
//!
//! Two such devices in one process, of which one writes to the memory of the other:
//!
//! ```
//! use std::net::SocketAddr;
//! use std::num::NonZeroU16;
//! use std::time::Duration;
//! use iwarp_verbs::{
//!     Access, CmEventKind, ConnParam, Context, Data, Event, QpOptions, SendFlags, SendOp, SendWr,
//! };
//!
//! const LONGEST: Duration = Duration::from_secs(10);
//! let open = || -> Result<_, iwarp_verbs::Error> {
//!     let context = Context::embedded()?;
//!     let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
//!     let qp = pd.create_qp(&QpOptions::new(&cq))?;
//!     Ok((context, pd, cq, qp))
//! };
//! let ((near, near_pd, _, near_qp), (far, far_pd, _far_cq, far_qp)) = (open()?, open()?);
//!
//! // The far device listens; its memory is described in the private data of the answer.
//! let at: SocketAddr = "127.0.0.1:7471".parse()?;
//! let memory = far_pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let listener = far.create_id(Some(at))?;
//! listener.listen(NonZeroU16::MIN, &ConnParam::default())?;
//! let id = near.create_id(None)?;
//! id.connect(&near_qp, at, &ConnParam::default())?;
//! let Some(Event::Cm(request)) = far.wait_event(LONGEST)? else { panic!("no request") };
//! let answer = far.id(request.id);
//! answer.accept(&far_qp, &memory.rkey().0.to_be_bytes())?;
//! let Some(Event::Cm(event)) = near.wait_event(LONGEST)? else { panic!("no answer") };
//! let CmEventKind::Established { .. } = event.kind else { panic!("{event:?}") };
//!
//! // The near device writes, and waits for the completion.
//! let source = near_pd.alloc_mr(4096, Access::LOCAL_READ)?;
//! source.write(0, b"hello")?;
//! let op = SendOp::RdmaWrite { remote_addr: memory.addr(), rkey: memory.rkey() };
//! let list = [source.sge(0, 5)];
//! near_qp
//!     .post_send(&[SendWr { wr_id: 1, op, data: Data::List(&list), flags: SendFlags::SIGNALED }])
//!     .map_err(|(_, error)| error)?;
//! let mut bytes = [0; 5];
//! while bytes != *b"hello" {
//!     memory.read(0, &mut bytes)?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! A region of a peer, by its name, in one call ([`connect_region`]); here another device of this process offers it
//! ([`Context::serve_regions`]), as `iwarpd` and `iwarpctl serve` do:
//!
//! ```
//! use iwarp_verbs::{Access, Context, OfferOptions, RegionOptions, connect_region};
//!
//! let host = Context::embedded()?;
//! let server = host.serve_regions(&["127.0.0.1:0".parse()?])?;
//! let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
//! let memory = host.alloc_pd()?.alloc_mr(4096, rights | Access::LOCAL_READ | Access::LOCAL_WRITE)?;
//! let offer = server.offer("lab", &memory, &OfferOptions::new(rights))?;
//!
//! let target = format!("{}/{}", server.addresses()[0], offer.name());
//! let mut region = connect_region(&target, &RegionOptions::new(rights))?;
//! assert_eq!(region.bytes(), 4096);
//! region.write(0, b"hello")?;
//! let mut bytes = [0; 5];
//! region.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! With the daemon, `Context::open("/run/iwarpd/verbs.sock", None)` takes the place of `Context::embedded()`.
//!
//! | libibverbs, librdmacm | here |
//! |---|---|
//! | `ibv_open_device` | [`Context::open`], [`Context::embedded`] |
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
//! that the program shares with the daemon's worker, without system calls. A device inside the program is run by the
//! threads that post, poll and wait, and by a thread of its own while none of them does. Objects may be shared between
//! threads. Each is destroyed when its last handle is dropped; an object keeps those that it uses.
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
mod offer;
mod own_memory;
mod process;
mod qp;
mod region;
mod remote;
#[cfg(test)]
mod tests;
mod threads;
mod watch;

pub use cm::Id;
pub use context::{Context, Ready};
pub use cq::CompletionQueue;
pub use embedded::{cancelable, is_exiting, survive_unmapped_memory, uncanceled};
pub use error::Error;
pub use mapping::{Mapping, OutOfBounds};
pub use mr::{MemoryWindow, Mr, ProtectionDomain};
pub use offer::{Offer, OfferOptions, OfferStats, REGION_PORT, RegionServer};
pub use qp::{QpOptions, QueuePair, SharedReceiveQueue};
pub use region::{AttachError, Region, attach, attach_with};
pub use remote::{
    Ending, RegionConnection, RegionOptions, RegionRequest, RegionShape, RegionTarget, RemoteError,
    RemoteRegion, connect_region,
};
pub use threads::{FAULTS, aborts_on_panic, start_thread};
pub use watch::{Notification, Watch, watch};

pub use iwarp_control::{ClientError, ErrorKind};
pub use iwarp_shared_verbs::methods::{DEFAULT_SOCKET, DeviceInfo};
pub use iwarp_shared_verbs::{Content, Event, NextHop};
pub use rdma::service::{
    Grant, Prefix, ServiceError, Status, Token, check_name, decode_reply, encode_request, parse_prefix,
};
pub use rdma::verbs::{
    Access, AsyncEvent, Bind, CmEvent, CmEventKind, CmId, ConnParam, CqId, Data, Destination, PollError,
    PostError, QpAttr, QpCap, QpNum, QpState, QpType, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOp, SendWr,
    Sge, SrqAttr, Stag, VerbsError, WcOpcode, WcStatus, WorkCompletion, gid, inc_rkey, path_mtu,
};
pub use rdma::wire::mpa::RtrOptions;
pub use rdma::{AtomicOp, CrcPolicy, ErrorCode};
