//! The objects of verbs, in process: protection domain, memory region, memory window, queue pair, completion queue,
//! shared receive queue, connection.
//!
//! ```text
//!   the program                     Device                               the transport's adapter
//!   reg_mr, create_qp, …    ┌─────────────────────────┐
//!   connect, listen, accept │ ids ── endpoint ── queues│ ──▶ poll_transport: Listen, Open, Transmit, Close
//!   post_send, post_recv ──▶│   │                      │ ◀── incoming, opened, receive, receive_out_of_order,
//!   poll_cq, cm_event    ◀──│ completion queues        │     poll_transmit, handle_timeout, peer_closed, closed
//!                           └─────────────────────────┘
//! ```
//! Names and meanings are those of libibverbs and librdmacm; `docs/verbs.md` maps each call. A [`Device`] belongs
//! to one worker, knows neither clock nor sockets, and does nothing by itself: work moves when the adapter hands in
//! bytes or asks for some.
//!
//! What holds:
//! - A work request that was posted completes exactly once, in the order of posting on its queue. One that was not
//!   signaled and succeeds is not told, and gives its place back with the next that is.
//! - Memory is named by key and address only, and checked on every access, also of this side's own work.
//! - A completion queue that is as long as the queues behind it together never overruns (RFC 5042 §6.4.3.2), and one
//!   that does harms those that complete there only.
//! - After creation of its objects, and connection, nothing allocates.

mod completion;
mod connection;
mod ids;
mod memory;
mod queue_pair;
mod shared;
mod slab;
mod stream;
mod work;

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

pub use completion::{PollError, WorkCompletion};
pub use connection::{CmEvent, CmEventKind, ConnParam, TransportRequest};
pub use ids::{CmId, CqId, MwId, QpNum, SrqId};
pub use memory::{AddressBase, MemoryRegion, MemoryWindow, MrId, inc_rkey};
pub use queue_pair::{QpAttr, QpCap, QpInit, QpState};
pub use shared::SrqAttr;
pub use work::{Data, RecvWr, SendFlags, SendOp, SendWr};

pub use crate::memory::{Access, Bind, PdId, RegionId};
pub use crate::qp::{PostError, SGE_MAX, Sge, WcOpcode, WcStatus};
pub use crate::wire::Stag;

use crate::endpoint::EndpointConfig;
use crate::terminate::ErrorCode;
use completion::Cq;
use connection::Id;
use memory::{Mr, Mw, Pd};
use queue_pair::Qp;
use shared::Srq;
use slab::Slab;

/// What a device has (`ibv_device_attr`). The tables are as large as this from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Protection domains.
    pub pds: u16,
    /// Memory regions.
    pub mrs: u16,
    /// Memory windows.
    pub mws: u16,
    /// Completion queues.
    pub cqs: u16,
    /// Queue pairs.
    pub qps: u16,
    /// Shared receive queues.
    pub srqs: u16,
    /// Listeners and connections.
    pub ids: u16,
    /// Streams of all listeners whose peers have not sent an MPA Request yet, 1 to half of `ids`; more are taken for that.
    pub silent: u16,
    /// Slots of a send or receive queue, 1–65535.
    pub qp_wr_max: u16,
    /// Slots of a shared receive queue, 1–65535.
    pub srq_wr_max: u16,
    /// Slots of a completion queue.
    pub cqe_max: u32,
    /// Elements of a scatter/gather list, 1–[`SGE_MAX`].
    pub sge_max: u16,
    /// Bytes of inline data.
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

/// Why an object is not made, changed or taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// There is no such object (`EINVAL`).
    NoSuchObject,
    /// Others still use it (`EBUSY`).
    Busy,
    /// As many exist as the device has (`ENOMEM`).
    NoResources,
    /// A size outside its range, or a combination that makes no sense (`EINVAL`).
    Invalid,
    /// Not in this state (`EINVAL`).
    State,
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchObject => "there is no such object",
            Self::Busy => "the object is in use",
            Self::NoResources => "the device has no more of them",
            Self::Invalid => "outside the device's limits, or a combination that makes no sense",
            Self::State => "not in this state",
        })
    }
}

impl core::error::Error for VerbsError {}

/// What happens to an object besides completions (`ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A completion queue had no place for a completion. It takes no more, and its queue pairs are in error
    /// (`IBV_EVENT_CQ_ERR`).
    CqError(CqId),
    /// A queue pair ended its stream for a fault of this side (`IBV_EVENT_QP_FATAL`).
    QpFatal(QpNum, ErrorCode),
    /// A queue pair ended its stream since the peer has broken the protocol (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError(QpNum, ErrorCode),
    /// A queue pair ended its stream since the peer reached for memory that it may not
    /// (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError(QpNum, ErrorCode),
    /// The peer ended the stream with a Terminate (`IBV_EVENT_QP_FATAL` with iWARP devices).
    QpTerminated(QpNum, ErrorCode),
    /// A queue pair in error takes no more from its shared receive queue (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    QpLastWqeReached(QpNum),
    /// A shared receive queue has fewer buffers than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached(SrqId),
}

impl AsyncEvent {
    /// The queue pair it is about.
    fn qp(&self) -> Option<QpNum> {
        match self {
            Self::QpFatal(qp, _)
            | Self::QpRequestError(qp, _)
            | Self::QpAccessError(qp, _)
            | Self::QpTerminated(qp, _)
            | Self::QpLastWqeReached(qp) => Some(*qp),
            Self::CqError(_) | Self::SrqLimitReached(_) => None,
        }
    }

    /// Whether it says the same of the same object, for whatever reason.
    fn repeats(&self, other: &Self) -> bool {
        let same_kind = core::mem::discriminant(self) == core::mem::discriminant(other);
        same_kind && if self.qp().is_some() { self.qp() == other.qp() } else { self == other }
    }
}

iwarp_counters::counters! {
    /// What a device counts.
    pub struct DeviceStats {
        /// Streams reset to make room for another: the peer had not sent an MPA Request, and was silent longest.
        silent_evicted,
        /// MPA Requests whose stream was reset: as many as the listener's backlog waited for an answer.
        requests_refused,
    }
}

/// All objects of one worker. `C` is what holds received bytes.
#[derive(Debug)]
pub struct Device<C> {
    limits: Limits,
    endpoint: EndpointConfig,
    pds: Slab<Pd>,
    mrs: Slab<Mr>,
    mws: Slab<Mw>,
    cqs: Slab<Cq>,
    srqs: Slab<Srq>,
    qps: Slab<Qp>,
    ids: Slab<Id<C>>,
    async_events: VecDeque<AsyncEvent>,
    /// Completion queues whose owner is to be woken.
    cq_events: VecDeque<CqId>,
    cm_events: VecDeque<CmEvent>,
    transport: VecDeque<TransportRequest>,
    /// Streams of listeners whose peers have not sent an MPA Request, oldest first.
    silent: VecDeque<CmId>,
    stats: DeviceStats,
    /// A completion queue has overrun, and its queue pairs do not know yet.
    overrun: bool,
}

impl<C: AsRef<[u8]>> Device<C> {
    /// A device without objects. `endpoint` is what connections are made with, but for what their queue pair and
    /// [`ConnParam`] say.
    pub fn new(limits: Limits, endpoint: EndpointConfig) -> Self {
        let sge_max = limits.sge_max.min(u16::try_from(SGE_MAX).unwrap_or(u16::MAX));
        let silent = limits.silent.min(limits.ids.div_euclid(2)).max(1);
        let limits = Limits { sge_max, silent, ..limits };
        let (cqs, qps, srqs) = (usize::from(limits.cqs), usize::from(limits.qps), usize::from(limits.srqs));
        let ids = usize::from(limits.ids);
        // Of each of the five kinds at most one waits for each queue pair; a connection asks for few things, once.
        let async_events = qps.saturating_mul(5).saturating_add(cqs).saturating_add(srqs);
        Self {
            limits,
            endpoint,
            pds: Slab::new(limits.pds),
            mrs: Slab::new(limits.mrs),
            mws: Slab::new(limits.mws),
            cqs: Slab::new(limits.cqs),
            srqs: Slab::new(limits.srqs),
            qps: Slab::new(limits.qps),
            ids: Slab::new(limits.ids),
            async_events: VecDeque::with_capacity(async_events),
            cq_events: VecDeque::with_capacity(cqs),
            cm_events: VecDeque::with_capacity(ids.saturating_mul(connection::EVENTS_MAX)),
            transport: VecDeque::with_capacity(ids.saturating_mul(connection::REQUESTS_MAX)),
            silent: VecDeque::with_capacity(limits.silent.into()),
            stats: DeviceStats::default(),
            overrun: false,
        }
    }

    /// What the device has (`ibv_query_device`).
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// What the device counts.
    pub const fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    /// The next thing that happened to an object (`ibv_get_async_event`).
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.async_events.pop_front()
    }

    /// Tells of something once, until it is taken.
    fn raise(&mut self, event: AsyncEvent) {
        if !self.async_events.iter().any(|waiting| waiting.repeats(&event)) {
            self.async_events.push_back(event);
        }
    }
}

/// `now` of a call, for those who have none.
type Now = Duration;
