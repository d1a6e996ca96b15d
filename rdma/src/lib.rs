//! iWARP without I/O, clock or threads: MPA, DDP, RDMAP and memory protection over a stream of bytes.
//!
//! ```text
//!             stream of bytes                               stream of bytes
//!                   │ Endpoint::receive                            ▲ Endpoint::poll_transmit
//!                   ▼                                              │
//!  mpa      ┌─ Negotiation, then Deframer ─┐              ┌─ Framer, in the Sink's buffer ─┐
//!           └──────────────┬───────────────┘              └───────────────▲────────────────┘
//!                          │ one verified ULPDU                           │ one segment
//!  ddp, rdmap    check headers, sequence                        cut to the MULPDU
//!                          │                                              │
//!  memory        StagTable::check ──▶ Placement ──▶ Memory      Fetch ◀── StagTable::check
//!                          │                                              │
//!  qp            completions, events                            send queue, reads to answer
//! ```
//!
//! An [`Endpoint`] is one stream. Each call borrows the [`StagTable`], the [`Memory`] and the [`RdmaStats`] that a
//! worker's streams share, as [`Env`]. A transport that holds segments behind a gap may pass them to
//! [`Endpoint::receive_out_of_order`], which places their RDMA Writes at once and delivers them when the gap has
//! closed. The [`service`] grants a connecting peer an STag for a region that the peer names.
//!
//! [`verbs`] builds the objects of the verbs on top: protection domains, memory regions and windows, queue pairs,
//! completion queues, shared receive queues, connections.
#![forbid(unsafe_code)]
// Integer overflow and an index out of bounds end the process. Bytes from a peer must never cause either.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod ddp;
mod endpoint;
mod memory;
pub mod mpa;
mod qp;
mod rdmap;
pub mod service;
mod stats;
mod terminate;
pub mod verbs;
pub mod wire;

pub use endpoint::{Endpoint, EndpointConfig, EndpointInfo, Env, MessageSizes, POKES_MAX, Progress, Sink};
pub use memory::{
    Access, AccessError, Bind, Fetch, GrantError, LocalSlice, Memory, Origin, PdId, Placement, RegionId,
    Scope, StagTable, StreamId, VecMemory, Window, Word,
};
pub use mpa::{ConnectRequest, CrcPolicy, LocalError, MpaStats, NegotiationConfig, OutOfOrderPolicy};
pub use qp::{CloseHow, Event, PostError, SGE_MAX, Sge, StreamCounters, StreamState, WcOpcode, WcStatus};
pub use stats::{RdmaStats, RdmapStats, SegmentDrops, ServiceStats};
pub use terminate::{Attach, ErrorCode, StreamError};
pub use wire::Stag;
pub use wire::atomic::AtomicOp;
