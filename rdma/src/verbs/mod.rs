//! Verbs objects of one worker: protection domain, memory region, memory window, queue pair, completion queue, shared
//! receive queue, connection.
//!
//! ```text
//!   the program                     Device                               the transport's adapter
//!   reg_mr, create_qp, …    ┌─────────────────────────┐
//!   connect, listen, accept │ ids ── endpoint ── queues│ ──▶ poll_transport: Listen, Open, Transmit, Close
//!   post_send, post_recv ──▶│   │                      │ ◀── incoming, opened, receive, receive_out_of_order,
//!   poll_cq, cm_event    ◀──│ completion queues        │     poll_transmit, handle_timeout, peer_closed, closed
//!                           └─────────────────────────┘
//! ```
//! Names and semantics are those of libibverbs and librdmacm; `docs/verbs.md` maps each call. A [`Device`] belongs to
//! one worker and uses neither clock nor sockets: it works only when the transport's adapter or the program calls it.
//!
//! Guarantees:
//! - A posted work request completes exactly once, in the order of posting on its queue. A successful unsignaled
//!   request produces no completion; its queue slot is freed when the next signaled request completes.
//! - Programs and peers name memory by key and address, never by pointer. Every access is checked, including those of
//!   local work.
//! - A completion queue with as many slots as all queues that complete there have together never overruns (RFC 5042
//!   §6.4.3.2). An overrun affects only the queue pairs that complete there.
//! - Nothing allocates after objects are created and connected, except the queue of connection events while the program
//!   does not poll it.

mod completion;
mod connection;
pub(crate) mod datagram_links;
mod datagrams;
mod deferred;
mod entries;
mod events;
mod ids;
mod looped;
mod memory;
mod outcome;
mod packets;
mod proxy;
mod queue_pair;
pub(crate) mod rendezvous;
mod shared;
mod silent;
mod sizes;
mod slab;
mod stream;
mod work;

use core::fmt;
use core::time::Duration;
use std::collections::{HashSet, VecDeque};

pub use completion::{PollError, Slots, WorkCompletion};
pub use connection::{ConnParam, Termination, TransportRequest};
pub use datagrams::Destination;
pub use events::{AsyncEvent, CmEvent, CmEventKind};
pub use ids::{CmId, CqId, MwId, Owner, QpNum, SrqId};
pub use memory::{AddressBase, MemoryRegion, MemoryWindow, MrId, inc_rkey};
pub use queue_pair::{QpAttr, QpCap, QpInit, QpState, QpType};
pub use rendezvous::{QP_WORKERS_MAX, RENDEZVOUS_PORT, Rendezvous, RtrAttr, RtsAttr, gid, path_mtu};
pub use shared::SrqAttr;
pub use sizes::{cq_memory_bytes, srq_memory_bytes};
pub use work::{Data, RecvWr, SendFlags, SendOp, SendWr};

pub use crate::memory::{Access, Bind, PdId, RegionId};
pub use crate::qp::{PostError, SGE_MAX, Sge, WcOpcode, WcStatus};
pub use crate::wire::Stag;

use iwarp_counters::Histogram;

use crate::endpoint::EndpointConfig;
use completion::Cq;
use connection::Id;
use datagram_links::DatagramLinks;
use deferred::HeldSegments;
use looped::LoopQueue;
use memory::{Mr, Mw, Pd};
use queue_pair::Qp;
use rendezvous::Links;
use shared::Srq;
use silent::Silent;
use slab::Slab;

/// Size limits of a device (`ibv_device_attr`). The tables are allocated for these sizes at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of protection domains.
    pub pds: u16,
    /// Number of memory regions.
    pub mrs: u16,
    /// Number of memory windows.
    pub mws: u16,
    /// Number of completion queues.
    pub cqs: u16,
    /// Number of queue pairs, at most 2^14.
    pub qps: u16,
    /// Number of shared receive queues.
    pub srqs: u16,
    /// Number of listeners and connections, at most 2^24.
    pub ids: u32,
    /// Streams, of all listeners, whose peers have not sent an MPA Request: 1 to `ids`; values outside are limited to
    /// that.
    pub silent: u32,
    /// Slots of a send or receive queue, 1–65535.
    pub qp_wr_max: u16,
    /// Slots of a shared receive queue, 1–65535.
    pub srq_wr_max: u16,
    /// Slots of a completion queue, at most.
    pub cqe_max: u32,
    /// Elements of a scatter/gather list, 1–[`SGE_MAX`].
    pub sge_max: u16,
    /// Bytes of inline data per work request, at most.
    pub inline_max: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pds: 64,
            mrs: 1024,
            mws: 1024,
            cqs: 256,
            qps: 256,
            srqs: 64,
            ids: 512,
            silent: 128,
            qp_wr_max: 4096,
            srq_wr_max: 16_384,
            cqe_max: 65_536,
            sge_max: 16,
            inline_max: 512,
        }
    }
}

/// Reason why an object is not created, changed or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VerbsError {
    /// There is no such object (`EINVAL`).
    NoSuchObject,
    /// Other objects use it (`EBUSY`).
    Busy,
    /// The device's maximum number of objects exists (`ENOMEM`).
    NoResources,
    /// A size is outside its range, or the parameters contradict each other (`EINVAL`).
    Invalid,
    /// The operation is not allowed in this state (`EINVAL`).
    State,
    /// The program may not do this (`EACCES`).
    NotPermitted,
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchObject => "there is no such object",
            Self::Busy => "the object is in use",
            Self::NoResources => "the device has no more of them",
            Self::Invalid => "outside the device's limits, or a combination that makes no sense",
            Self::State => "not in this state",
            Self::NotPermitted => "not permitted",
        })
    }
}

impl core::error::Error for VerbsError {}

iwarp_counters::counters! {
    /// Counters of a device.
    pub struct DeviceStats {
        /// Streams reset to make room for another: the peer had sent no MPA Request for the longest time.
        silent_evicted,
        /// MPA Requests whose stream was reset because the listener's backlog was full.
        requests_refused,
        /// Connections that queue pairs have opened to the peers that they name by number, also those that failed.
        qp_connects,
        /// Of these, those that failed: the peer was not reached, or not ready.
        qp_connects_failed,
        /// Requests of such peers that were accepted.
        qp_requests_accepted,
        /// Requests that were held because their queue pair was not ready.
        qp_requests_held,
        /// Requests that were rejected: no such queue pair, another peer, or held for too long.
        qp_requests_rejected,
        /// Connections that both ends have opened, of which this side has given its own up.
        qp_collisions,
        /// Queue pairs whose peer has gone.
        qp_orphans,
        /// Links for datagrams that this side has opened, also those that failed.
        datagram_links_opened,
        /// Of these, those that failed: the other side was not reached, or has no such links.
        datagram_links_failed,
        /// Links for datagrams that others have opened.
        datagram_links_accepted,
        /// Datagrams that queue pairs have sent.
        datagrams_out,
        /// Datagrams that arrived for queue pairs.
        datagrams_in,
        /// Datagrams dropped because their link was not up.
        datagrams_unreached,
        /// Datagrams dropped because too many waited.
        datagrams_congested,
        /// Datagrams dropped because there was no such queue pair.
        datagrams_no_qp,
        /// Datagrams dropped because their key was not that of the queue pair.
        datagrams_wrong_qkey,
    }
}

/// Distributions of times, at the resolution of [`Device::set_now`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceTimes {
    /// From the established TCP connection, or from the program's `connect`, to the established RDMA connection.
    pub handshake: Histogram,
    /// From the post of a send request to its successful completion. An RDMA Write and a Send complete when TCP has
    /// accepted the last byte.
    pub completion: Histogram,
}

/// Slots of queue pairs that are free before one is used again: a number has few generations.
const SPARE_QPS: usize = 256;

/// All verbs objects of one worker. `C` is the type of a chunk of received bytes.
#[derive(Debug)]
pub struct Device<C> {
    limits: Limits,
    endpoint: EndpointConfig,
    pds: Slab<Pd>,
    mrs: Slab<Mr>,
    mws: Slab<Mw>,
    cqs: Slab<Cq>,
    srqs: Slab<Srq>,
    qps: Slab<Qp, { QpNum::INDEX_BITS }, { QpNum::GENERATIONS }>,
    ids: Slab<Id<C>, { CmId::INDEX_BITS }>,
    async_events: VecDeque<AsyncEvent>,
    /// Completion queues with an event that the program has not taken yet.
    cq_events: VecDeque<CqId>,
    cm_events: VecDeque<CmEvent>,
    /// Requests to begin and to end streams.
    transport: VecDeque<TransportRequest>,
    /// Connections with a [`TransportRequest::Transmit`] that the adapter has not polled, each at most once.
    transmit: VecDeque<CmId>,
    silent: Silent,
    /// Segments between two connections of this device.
    looped: LoopQueue,
    /// Connections that wait for deferred copies, each once.
    waiting: VecDeque<CmId>,
    /// Connections whose next message waits for a receive buffer.
    without_buffer: HashSet<CmId>,
    /// Connections of queue pairs by number.
    links: Links,
    datagrams: DatagramLinks,
    /// Segments for looped connections that are stalled.
    held: Vec<(CmId, HeldSegments)>,
    stats: DeviceStats,
    times: DeviceTimes,
    /// Time of the adapter's current poll, nanoseconds.
    now_ns: u64,
    /// Next slot to search for queue pairs that complete to an overrun queue and are not in error yet; `None` if there
    /// are none.
    overrun: Option<u32>,
    /// False if `transport` and `transmit` are empty. Most polls read this one, and not the two queues.
    has_request: bool,
    /// False if `cm_events` is empty.
    has_cm_event: bool,
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Creates a device without objects. Connections use the settings of `endpoint`, except those that their queue
    /// pair and [`ConnParam`] state.
    pub fn new(limits: Limits, endpoint: EndpointConfig) -> Self {
        let sge_max = limits.sge_max.min(u16::try_from(SGE_MAX).unwrap_or(u16::MAX));
        let silent = limits.silent.min(limits.ids).max(1);
        let limits = Limits { sge_max, silent, ..limits };
        let (cqs, qps, srqs) = (usize::from(limits.cqs), usize::from(limits.qps), usize::from(limits.srqs));
        let ids = usize::try_from(limits.ids).unwrap_or(usize::MAX);
        // Each queue pair has at most one queued event of each of the five types.
        let async_events = qps.saturating_mul(5).saturating_add(cqs).saturating_add(srqs);
        Self {
            limits,
            endpoint,
            pds: Slab::new(limits.pds.into()),
            mrs: Slab::new(limits.mrs.into()),
            mws: Slab::new(limits.mws.into()),
            cqs: Slab::new(limits.cqs.into()),
            srqs: Slab::new(limits.srqs.into()),
            qps: Slab::new(limits.qps.into()).with_spare(SPARE_QPS),
            ids: Slab::new(limits.ids),
            async_events: VecDeque::with_capacity(async_events),
            cq_events: VecDeque::with_capacity(cqs),
            cm_events: VecDeque::new(),
            transport: VecDeque::new(),
            transmit: VecDeque::with_capacity(ids),
            silent: Silent::default(),
            looped: LoopQueue::default(),
            waiting: VecDeque::new(),
            without_buffer: HashSet::new(),
            links: Links::default(),
            datagrams: DatagramLinks::new(),
            held: Vec::new(),
            stats: DeviceStats::default(),
            times: DeviceTimes::default(),
            now_ns: 0,
            overrun: None,
            has_request: false,
            has_cm_event: false,
        }
    }

    /// Returns the limits (`ibv_query_device`).
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the counters of the device.
    pub const fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    /// Returns the distributions of times.
    pub const fn times(&self) -> &DeviceTimes {
        &self.times
    }

    /// Sets the time that [`Self::times`] are measured by, since the epoch of the other calls. The adapter calls it
    /// once per poll.
    #[inline]
    pub const fn set_now(&mut self, now: Duration) {
        self.now_ns = nanos(now);
    }
}

/// Time of a call since an epoch that the caller chooses.
type Now = Duration;

/// Returns a time in nanoseconds, modulo 2^64.
const fn nanos(now: Now) -> u64 {
    now.as_secs().wrapping_mul(1_000_000_000).wrapping_add(now.subsec_nanos() as u64)
}

/// Returns a time in microseconds, modulo 2^32.
const fn micros(now_ns: u64) -> u32 {
    let [.., a, b, c, d] = now_ns.div_euclid(1000).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}
