//! Events of a device: asynchronous ones of objects, and those of connections.

use core::net::SocketAddr;

use super::Device;
use super::ids::{CmId, CqId, QpNum, SrqId};
use crate::terminate::ErrorCode;

/// Event of a listener or connection (`rdma_cm_event`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// Listener or connection of the event.
    pub id: CmId,
    /// Type and details of the event.
    pub kind: CmEventKind,
}

/// Type of an event (`rdma_cm_event_type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// The local address of a listener or connection is not available (`RDMA_CM_EVENT_ADDR_ERROR`).
    AddressError,
    /// A new connection waits for `accept` or `reject`; the event's id names it.
    ConnectRequest {
        /// Listener that the connection arrived at.
        listener: CmId,
        /// Local address of the connection.
        local: SocketAddr,
        /// Address of the connection's peer.
        peer: SocketAddr,
        /// Private data of the peer's request.
        private_data: Box<[u8]>,
        /// Reads that the peer offers to serve at a time.
        responder_resources: Option<u16>,
        /// Reads that the peer asks to have outstanding.
        initiator_depth: Option<u16>,
    },
    /// The queue pair is `Rts`.
    Established {
        /// Initiator: private data of the peer's reply. Responder: empty.
        private_data: Box<[u8]>,
        /// Inbound reads at a time (IRD).
        responder_resources: u16,
        /// Outbound reads at a time (ORD).
        initiator_depth: u16,
        /// MPA revision: 1 or 2.
        revision: u8,
        /// True if FPDUs carry a CRC.
        crc: bool,
    },
    /// The peer rejected the connection.
    Rejected {
        /// Private data of the peer's reply.
        private_data: Box<[u8]>,
    },
    /// The peer refused the transport's connection: nobody listens at its address.
    Refused,
    /// The transport could not connect to the peer.
    Unreachable,
    /// The MPA negotiation failed.
    ConnectError {
        /// Error of the peer; [`ErrorCode::NO_ANSWER`] if it has not answered in time, and [`ErrorCode::TCP_LOST`] if
        /// its stream has ended.
        code: ErrorCode,
    },
    /// An established connection has ended; its queue pair is in error.
    Disconnected,
}

/// Asynchronous event of an object (`ibv_async_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEvent {
    /// A completion queue overran. It accepts no more completions, and its queue pairs are in error
    /// (`IBV_EVENT_CQ_ERR`).
    CqError(CqId),
    /// A queue pair ended its stream for a local fault (`IBV_EVENT_QP_FATAL`).
    QpFatal(QpNum, ErrorCode),
    /// A queue pair ended its stream because the peer broke the protocol (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError(QpNum, ErrorCode),
    /// A queue pair ended its stream because the peer accessed memory without the right (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError(QpNum, ErrorCode),
    /// The peer ended the stream with a Terminate (`IBV_EVENT_QP_FATAL` with iWARP devices).
    QpTerminated(QpNum, ErrorCode),
    /// A queue pair in error takes no more buffers from its shared receive queue (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    QpLastWqeReached(QpNum),
    /// A shared receive queue has fewer buffers than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached(SrqId),
}

impl AsyncEvent {
    /// Returns the queue pair of the event, if it concerns one.
    pub const fn qp(&self) -> Option<QpNum> {
        match self {
            Self::QpFatal(qp, _)
            | Self::QpRequestError(qp, _)
            | Self::QpAccessError(qp, _)
            | Self::QpTerminated(qp, _)
            | Self::QpLastWqeReached(qp) => Some(*qp),
            Self::CqError(_) | Self::SrqLimitReached(_) => None,
        }
    }

    /// Returns the event without its error code: equal for events of which one that waits is enough.
    pub fn key(&self) -> Self {
        let none = ErrorCode { layer: 0, etype: 0, code: 0 };
        match *self {
            Self::QpFatal(qp, _) => Self::QpFatal(qp, none),
            Self::QpRequestError(qp, _) => Self::QpRequestError(qp, none),
            Self::QpAccessError(qp, _) => Self::QpAccessError(qp, none),
            Self::QpTerminated(qp, _) => Self::QpTerminated(qp, none),
            Self::CqError(_) | Self::QpLastWqeReached(_) | Self::SrqLimitReached(_) => *self,
        }
    }

    /// Returns the bit of `Qp::raised` for an event of a queue pair.
    const fn qp_bit(&self) -> u8 {
        match self {
            Self::QpFatal(..) => 1,
            Self::QpRequestError(..) => 2,
            Self::QpAccessError(..) => 4,
            Self::QpTerminated(..) => 8,
            Self::QpLastWqeReached(_) => 16,
            Self::CqError(_) | Self::SrqLimitReached(_) => 0,
        }
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Returns the next asynchronous event (`ibv_get_async_event`).
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        let event = self.async_events.pop_front()?;
        if let Some(qp) = event.qp().and_then(|qp| self.qps.get_mut(qp.0)) {
            qp.raised &= !event.qp_bit();
        } else if let AsyncEvent::SrqLimitReached(srq) = event
            && let Some(srq) = self.srqs.get_mut(srq.0)
        {
            srq.raised = false;
        }
        Some(event)
    }

    /// Returns true if [`Self::poll_async_event`] has an event.
    #[inline]
    pub fn has_async_event(&self) -> bool {
        !self.async_events.is_empty()
    }

    /// Queues an event, unless the same one of the same object is already queued, with any error code. A completion
    /// queue fails once.
    pub(super) fn raise(&mut self, event: AsyncEvent) {
        let is_queued = if let Some(qp) = event.qp().and_then(|qp| self.qps.get_mut(qp.0)) {
            let raised = qp.raised;
            qp.raised |= event.qp_bit();
            raised & event.qp_bit() != 0
        } else if let AsyncEvent::SrqLimitReached(srq) = event
            && let Some(srq) = self.srqs.get_mut(srq.0)
        {
            core::mem::replace(&mut srq.raised, true)
        } else {
            false
        };
        if !is_queued {
            self.async_events.push_back(event);
        }
    }

    /// Returns the next event of a listener or connection (`rdma_get_cm_event`).
    pub fn poll_cm_event(&mut self) -> Option<CmEvent> {
        if !self.has_cm_event {
            return None;
        }
        let event = self.cm_events.pop_front();
        self.has_cm_event = event.is_some();
        if let Some(entry) = event.as_ref().and_then(|event| self.ids.get_mut(event.id.0)) {
            entry.events = entry.events.saturating_sub(1);
        }
        event
    }

    /// Queues an event, unless the id is destroyed.
    pub(super) fn push_cm_event(&mut self, id: CmId, kind: CmEventKind) {
        if let Some(entry) = self.ids.get_mut(id.0).filter(|entry| !entry.destroyed) {
            entry.events = entry.events.saturating_add(1);
            self.cm_events.push_back(CmEvent { id, kind });
            self.has_cm_event = true;
        }
    }
}
