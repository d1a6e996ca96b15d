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
//!
//! # Example
//! Two endpoints, connected by moving their bytes: the initiator writes to memory of the responder.
//!
//! ```
//! use core::time::Duration;
//! use rdma::{Access, ConnectRequest, Endpoint, EndpointConfig, Env, Event, LocalSlice, RdmaStats, Scope, Sink};
//! use rdma::{StagTable, StreamId, VecMemory};
//!
//! /// A transport that takes all bytes at once, in segments of 1448.
//! struct Wire(Vec<u8>);
//!
//! impl Sink for Wire {
//!     fn fpdu_max(&self) -> usize {
//!         1448
//!     }
//!     fn room(&self) -> usize {
//!         1 << 20
//!     }
//!     fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
//!         let start = self.0.len();
//!         self.0.resize(start + len, 0);
//!         build(&mut self.0[start..]);
//!         true
//!     }
//! }
//!
//! /// One end of the stream, with the state that the streams of a worker share.
//! struct Side {
//!     endpoint: Endpoint<Vec<u8>>,
//!     stags: StagTable,
//!     memory: VecMemory,
//!     stats: RdmaStats,
//!     received: u64,
//! }
//!
//! /// Moves all bytes that one end has to send to the other.
//! fn carry(now: Duration, from: &mut Side, to: &mut Side) {
//!     let mut wire = Wire(Vec::new());
//!     let Side { endpoint, stags, memory, stats, .. } = from;
//!     endpoint.poll_transmit(now, &mut Env { stags, memory, stats }, &mut wire);
//!     let Side { endpoint, stags, memory, stats, received } = to;
//!     let len = wire.0.len() as u64;
//!     endpoint.receive(now, *received, wire.0, &mut Env { stags, memory, stats });
//!     *received += len;
//! }
//!
//! let (now, mut stats) = (Duration::ZERO, RdmaStats::default());
//! let config = EndpointConfig { send_queue: 4, ..EndpointConfig::default() };
//! let request = ConnectRequest { private_data: b"", revision: 2, ird: 4, ord: 4, rtr: None };
//! let initiator = Endpoint::initiator(config, StreamId(1), &request, now, &mut stats)?;
//! let responder = Endpoint::responder(EndpointConfig::default(), StreamId(1), now);
//! let [mut initiator, mut responder] = [initiator, responder].map(|endpoint| Side {
//!     endpoint,
//!     stags: StagTable::new(16, [7; 32]),
//!     memory: VecMemory::new(),
//!     stats: RdmaStats::default(),
//!     received: 0,
//! });
//! let source = initiator.memory.add(b"hello, memory".to_vec()).ok_or("no room for a region")?;
//! let sink = responder.memory.add(vec![0; 4096]).ok_or("no room for a region")?;
//! let stag = responder.stags.grant(sink, 4096, Access::REMOTE_WRITE, Scope::Stream(StreamId(1)))?;
//!
//! carry(now, &mut initiator, &mut responder);
//! assert!(matches!(responder.endpoint.poll_event(), Some(Event::ConnectRequest { .. })));
//! responder.endpoint.accept(b"")?;
//! carry(now, &mut responder, &mut initiator);
//! assert!(matches!(initiator.endpoint.poll_event(), Some(Event::Established { .. })));
//! initiator.endpoint.post_write(1, LocalSlice { region: source, offset: 0, len: 13 }, stag, 100)?;
//! carry(now, &mut initiator, &mut responder);
//! assert!(matches!(initiator.endpoint.poll_event(), Some(Event::Completion { wr_id: 1, .. })));
//! assert_eq!(&responder.memory.bytes(sink).ok_or("no region")?[100..113], b"hello, memory");
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
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
#[cfg(feature = "testutil")]
#[allow(
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "lengths are small, and tests may end their process"
)]
pub mod testutil;
pub mod verbs;
pub mod wire;

pub use endpoint::{Endpoint, EndpointConfig, EndpointInfo, Env, MessageSizes, POKES_MAX, Progress, Sink};
pub use memory::{
    AHEAD_BYTES, Access, AccessError, Ahead, Bind, CopyState, Fetch, GrantError, GrantedRange, LocalSlice,
    Memory, Message, NOTIFICATION_BYTES_MAX, Notification, Notified, Origin, PdId, Placement, Reach,
    RegionId, Scope, StagTable, StreamId, Ticket, VecMemory, Word,
};
pub use mpa::{ConnectRequest, CrcPolicy, LocalError, MpaStats, NegotiationConfig, OutOfOrderPolicy};
pub use qp::{CloseHow, Event, PostError, SGE_MAX, Sge, StreamCounters, StreamState, WcOpcode, WcStatus};
pub use stats::{RdmaStats, RdmapStats, SegmentDrops, ServiceStats};
pub use terminate::{Attach, ErrorCode, StreamError};
pub use wire::Stag;
pub use wire::atomic::AtomicOp;
