//! Connections (`rdma_cm_id`): listen, connect, accept, reject, disconnect, and the events of each.
//!
//! ```text
//!   listener:   listen ─▶ Listen ……… incoming ─▶ ConnectRequest ─▶ accept ─▶ Established
//!                                                               └▶ reject
//!   initiator:  connect ─▶ Open ……… opened ────────────────────────────────▶ Established
//!                                 └ open_failed ─▶ Unreachable             └▶ Rejected, ConnectError
//!   either:     disconnect, or the stream ends ─▶ Close ─▶ Disconnected ……… closed
//! ```
//! What begins with a capital letter is told: to the transport's adapter by [`Device::poll_transport`], to the
//! program by [`Device::poll_cm_event`].

use core::net::SocketAddr;
use core::num::NonZeroU16;

use super::ids::{CmId, QpNum};
use super::queue_pair::QpState;
use super::{Device, Now, VerbsError};
use crate::endpoint::{Endpoint, EndpointConfig, EndpointInfo, MessageSizes};
use crate::memory::StreamId;
use crate::mpa::ConnectRequest;
use crate::qp::CloseHow;
use crate::stats::RdmaStats;
use crate::wire::mpa::RtrOptions;

/// Events that can wait for one of them: asked for, established, ended.
pub(super) const EVENTS_MAX: usize = 3;
/// Requests to the transport that can wait: begin, transmit, end.
pub(super) const REQUESTS_MAX: usize = 3;

/// What a connection is made with (`rdma_conn_param`).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// For the peer to see.
    pub private_data: &'a [u8],
    /// The peer's reads at a time (`responder_resources`, the IRD).
    pub responder_resources: u16,
    /// This side's reads at a time (`initiator_depth`, the ORD).
    pub initiator_depth: u16,
    /// The revision of MPA: 2, or 1 for peers that know no other.
    pub revision: u8,
    /// The peer-to-peer model, with the ready-to-receive messages that this side can send; revision 2 only.
    pub rtr: Option<RtrOptions>,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self { private_data: &[], responder_resources: 16, initiator_depth: 16, revision: 2, rtr: None }
    }
}

/// What the program is told of a listener or connection (`rdma_cm_event`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// Of which.
    pub id: CmId,
    /// What.
    pub kind: CmEventKind,
}

/// What happened (`rdma_cm_event_type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEventKind {
    /// The listener cannot have its address (`RDMA_CM_EVENT_ADDR_ERROR`).
    AddressError,
    /// A new connection, whose id this is, waits for `accept` or `reject`.
    ConnectRequest {
        /// Of this listener.
        listener: CmId,
        /// What the peer says.
        private_data: Box<[u8]>,
        /// Reads it says it can answer at a time.
        responder_resources: Option<u16>,
        /// Reads it says it will have outstanding at a time.
        initiator_depth: Option<u16>,
    },
    /// The queue pair is `Rts`.
    Established {
        /// Initiator: what the peer says. Responder: empty.
        private_data: Box<[u8]>,
        /// The peer's reads at a time.
        responder_resources: u16,
        /// This side's reads at a time.
        initiator_depth: u16,
    },
    /// The peer does not want the connection.
    Rejected {
        /// What it says.
        private_data: Box<[u8]>,
    },
    /// There is no transport connection to the peer.
    Unreachable,
    /// The connection was not agreed on.
    ConnectError,
    /// A connection that was established has ended; its queue pair is in error.
    Disconnected,
}

/// What the transport's adapter is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportRequest {
    /// Accept streams at an address and announce them with [`Device::incoming`]; or say
    /// [`Device::listen_failed`].
    Listen {
        /// The listener.
        id: CmId,
        /// Its address.
        local: SocketAddr,
        /// MPA Requests that may wait for an answer.
        backlog: u16,
    },
    /// Accept no more.
    Unlisten {
        /// The listener. It is gone.
        id: CmId,
    },
    /// Open a stream, and say [`Device::opened`] or [`Device::open_failed`].
    Open {
        /// The connection.
        id: CmId,
        /// From where, if that matters.
        local: Option<SocketAddr>,
        /// Where to.
        peer: SocketAddr,
    },
    /// Call [`Device::poll_transmit`]: there is something to send, or a deadline has changed.
    Transmit {
        /// The connection.
        id: CmId,
    },
    /// End the stream, and say [`Device::closed`] when that is on its way.
    Close {
        /// The connection.
        id: CmId,
        /// Its stream; `None`: it was not opened yet.
        stream: Option<StreamId>,
        /// How.
        how: CloseHow,
    },
}

/// Where an id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was asked of it.
    New,
    /// Accepts streams. `waiting`: MPA Requests that the program has not answered.
    Listening { backlog: u16, waiting: u16, ird: u16, ord: u16 },
    /// Waits for a stream.
    Opening,
    /// Has a stream, and agrees with the peer, or waits for the program.
    Connecting,
    /// Is in full operation.
    Established,
    /// The stream has ended, or is about to.
    Ended,
}

/// What an initiator asks for when it has a stream.
#[derive(Debug)]
pub(super) struct PendingConnect {
    private_data: Box<[u8]>,
    param: (u16, u16, u8, Option<RtrOptions>),
}

#[derive(Debug)]
pub(super) struct Id<C> {
    pub(super) stage: Stage,
    pub(super) qp: Option<QpNum>,
    pub(super) endpoint: Option<Box<Endpoint<C>>>,
    pub(super) stream: Option<StreamId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// Whose backlog it counts in.
    pub(super) listener: Option<CmId>,
    pub(super) pending_connect: Option<PendingConnect>,
    /// A [`TransportRequest::Transmit`] waits.
    pub(super) tx_requested: bool,
    /// Nobody knows of it yet, or wants to hear of it any more: it goes with its stream.
    pub(super) destroyed: bool,
}

impl<C> Id<C> {
    pub(super) const fn new() -> Self {
        Self {
            stage: Stage::New,
            qp: None,
            endpoint: None,
            stream: None,
            local: None,
            peer: None,
            listener: None,
            pending_connect: None,
            tx_requested: false,
            destroyed: false,
        }
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Makes an id for a listener or an outgoing connection (`rdma_create_id`). `local` as with `rdma_bind_addr`.
    ///
    /// # Errors
    /// `NoResources`.
    pub fn create_id(&mut self, local: Option<SocketAddr>) -> Result<CmId, VerbsError> {
        let id = Id { local, ..Id::new() };
        self.ids.insert(id).map(CmId).ok_or(VerbsError::NoResources)
    }

    /// Takes an id away (`rdma_destroy_id`). A connection is reset first; of its end nobody is told.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn destroy_id(&mut self, id: CmId) -> Result<(), VerbsError> {
        let it = self.ids.get_mut(id.0).filter(|it| !it.destroyed).ok_or(VerbsError::NoSuchObject)?;
        it.destroyed = true;
        let stage = it.stage;
        match stage {
            Stage::Listening { .. } => {
                if !self.withdraw_request(
                    |request| matches!(request, TransportRequest::Listen { id: of, .. } if *of == id),
                ) {
                    self.transport.push_back(TransportRequest::Unlisten { id });
                }
            }
            Stage::Opening | Stage::Connecting | Stage::Established => self.transport_lost(id),
            Stage::New | Stage::Ended => {}
        }
        self.cm_events.retain(|event| event.id != id);
        self.release_id(id);
        Ok(())
    }

    /// An id that nobody wants any more goes when its stream has.
    pub(super) fn release_id(&mut self, id: CmId) {
        let Some(it) = self.ids.get(id.0) else { return };
        if it.destroyed && it.endpoint.is_none() && it.stream.is_none() {
            self.withdraw_request(
                |request| matches!(request, TransportRequest::Transmit { id: of } if *of == id),
            );
            self.ids.remove(id.0);
        }
    }

    /// Takes back what the adapter was not told yet. `false`: there is no such thing.
    pub(super) fn withdraw_request(&mut self, is_it: impl Fn(&TransportRequest) -> bool) -> bool {
        let before = self.transport.len();
        self.transport.retain(|request| !is_it(request));
        self.transport.len() < before
    }

    /// Accepts connections at the id's address (`rdma_listen`). `backlog` of those whose peers have sent an MPA Request
    /// may wait for `accept` or `reject`; those without a request are bounded by [`Limits::silent`](super::Limits::silent).
    /// The read depths are those of `param`; nothing else of it counts.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: it is something else already. `Invalid`: it has no address.
    pub fn listen(&mut self, id: CmId, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), VerbsError> {
        let it = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if it.stage != Stage::New {
            return Err(VerbsError::State);
        }
        let (local, backlog) = (it.local.ok_or(VerbsError::Invalid)?, backlog.get());
        let (ird, ord) = (param.responder_resources, param.initiator_depth);
        it.stage = Stage::Listening { backlog, waiting: 0, ird, ord };
        self.transport.push_back(TransportRequest::Listen { id, local, backlog });
        Ok(())
    }

    /// Connects a queue pair with a peer (`rdma_connect`).
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the id is something else already, or the queue pair is not `Idle` and alone.
    /// `Invalid`: too much private data, or another revision than 1 and 2.
    pub fn connect(
        &mut self,
        id: CmId,
        number: QpNum,
        peer: SocketAddr,
        param: &ConnParam<'_>,
    ) -> Result<(), VerbsError> {
        let it = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        if it.stage != Stage::New || qp.state != QpState::Idle || qp.id.is_some() {
            return Err(VerbsError::State);
        }
        let ConnParam { private_data, responder_resources, initiator_depth, revision, rtr } = *param;
        if private_data.len() > self.endpoint.mpa.private_data_max || !matches!(revision, 1 | 2) {
            return Err(VerbsError::Invalid);
        }
        let param = (responder_resources, initiator_depth, revision, rtr);
        it.pending_connect = Some(PendingConnect { private_data: private_data.into(), param });
        (it.stage, it.qp, it.peer) = (Stage::Opening, Some(number), Some(peer));
        qp.id = Some(id);
        let local = it.local;
        self.transport.push_back(TransportRequest::Open { id, local, peer });
        Ok(())
    }

    /// Answers a [`CmEventKind::ConnectRequest`] with yes, and gives the connection its queue pair
    /// (`rdma_accept`).
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: there is nothing to answer, or the queue pair is not `Idle` and alone. `Invalid`:
    /// too much private data.
    pub fn accept(&mut self, id: CmId, number: QpNum, private_data: &[u8]) -> Result<(), VerbsError> {
        let it = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        let asked = it.stage == Stage::Connecting && it.qp.is_none();
        let endpoint = it.endpoint.as_mut().filter(|_| asked).ok_or(VerbsError::State)?;
        if qp.state != QpState::Idle || qp.id.is_some() {
            return Err(VerbsError::State);
        }
        endpoint.accept(private_data).map_err(|_| VerbsError::Invalid)?;
        let queues = qp.queues.take().ok_or(VerbsError::State)?;
        endpoint.adopt(*queues, Some(qp.init.pd));
        (it.qp, qp.id) = (Some(number), Some(id));
        self.leave_backlog(id);
        self.request_transmit(id);
        Ok(())
    }

    /// Answers a [`CmEventKind::ConnectRequest`] with no (`rdma_reject`). The id is of no more use then.
    ///
    /// # Errors
    /// As for [`Self::accept`].
    pub fn reject(&mut self, id: CmId, private_data: &[u8]) -> Result<(), VerbsError> {
        let it = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let asked = it.stage == Stage::Connecting && it.qp.is_none();
        let endpoint = it.endpoint.as_mut().filter(|_| asked).ok_or(VerbsError::State)?;
        endpoint.reject(private_data).map_err(|_| VerbsError::Invalid)?;
        it.stage = Stage::Ended;
        self.leave_backlog(id);
        self.request_transmit(id);
        Ok(())
    }

    /// Ends a connection when its work is done (`rdma_disconnect`). One that is not established yet is reset.
    pub fn disconnect(&mut self, id: CmId, now: Now) {
        let Some(it) = self.ids.get_mut(id.0) else { return };
        match (it.stage, it.endpoint.as_mut()) {
            (Stage::Established, Some(endpoint)) => {
                endpoint.disconnect(now);
                self.closing(id);
                self.drain(id);
            }
            (Stage::Opening | Stage::Connecting, _) => self.transport_lost(id),
            _ => {}
        }
    }

    /// The queue pair of an established connection takes nothing more to send.
    pub(super) fn closing(&mut self, id: CmId) {
        let number = self.ids.get(id.0).and_then(|it| it.qp);
        if let Some(qp) = number.and_then(|number| self.qps.get_mut(number.0))
            && qp.state == QpState::Rts
        {
            qp.state = QpState::Closing;
        }
        self.request_transmit(id);
    }

    /// The next event of a listener or connection (`rdma_get_cm_event`).
    pub fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.cm_events.pop_front()
    }

    /// The addresses of an id: this side's and the peer's, as far as they are known.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn addresses(&self, id: CmId) -> Result<(Option<SocketAddr>, Option<SocketAddr>), VerbsError> {
        self.ids.get(id.0).map(|it| (it.local, it.peer)).ok_or(VerbsError::NoSuchObject)
    }

    /// The stream of a connection at a glance; `None` without a stream.
    pub fn stream_info(&self, id: CmId) -> Option<EndpointInfo> {
        self.ids.get(id.0)?.endpoint.as_ref().map(|endpoint| endpoint.info())
    }

    /// How much of a message fits one segment of the connection, as [`Endpoint::max_msizes`](crate::Endpoint::max_msizes);
    /// `None` without a stream.
    pub fn max_msizes(&self, id: CmId, fpdu_max: usize) -> Option<MessageSizes> {
        self.ids.get(id.0)?.endpoint.as_ref().map(|endpoint| endpoint.max_msizes(fpdu_max))
    }

    /// Tells the program something, unless nobody wants to know.
    pub(super) fn push_cm_event(&mut self, id: CmId, kind: CmEventKind) {
        if self.ids.get(id.0).is_some_and(|it| !it.destroyed) {
            self.cm_events.push_back(CmEvent { id, kind });
        }
    }

    /// A connection waits for its request, or for an answer to it, no more.
    pub(super) fn leave_backlog(&mut self, id: CmId) {
        let listener = self.ids.get_mut(id.0).and_then(|it| it.listener.take());
        if self.remove_silent(id) {
            return;
        }
        let listener = listener.and_then(|listener| self.ids.get_mut(listener.0));
        if let Some(Id { stage: Stage::Listening { waiting, .. }, .. }) = listener {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// `false`: the peer had sent its request before.
    fn remove_silent(&mut self, id: CmId) -> bool {
        let at = self.silent.iter().position(|silent| *silent == id);
        at.and_then(|at| self.silent.remove(at)).is_some()
    }

    /// The peer's request is there: it takes a place in the backlog of its listener. `None`: there is none.
    pub(super) fn enter_backlog(&mut self, id: CmId) -> Option<CmId> {
        self.remove_silent(id);
        let listener = self.ids.get(id.0)?.listener?;
        if let Some(Id { stage: Stage::Listening { backlog, waiting, .. }, .. }) =
            self.ids.get_mut(listener.0)
        {
            if *waiting < *backlog {
                *waiting = waiting.saturating_add(1);
                return Some(listener);
            }
            self.stats.requests_refused = self.stats.requests_refused.wrapping_add(1);
        }
        self.ids.get_mut(id.0)?.listener = None;
        None
    }

    /// The initiator's endpoint, for the stream that was opened.
    pub(super) fn start_initiator(
        &mut self,
        id: CmId,
        stream: StreamId,
        now: Now,
        stats: &mut RdmaStats,
    ) -> Option<()> {
        let it = self.ids.get_mut(id.0)?;
        let qp = self.qps.get_mut(it.qp?.0)?;
        let PendingConnect { private_data, param: (ird, ord, revision, rtr) } = it.pending_connect.take()?;
        let config = EndpointConfig { send_queue: 0, receive_queue: 0, ..self.endpoint };
        let request = ConnectRequest { private_data: &private_data, revision, ird, ord, rtr };
        let mut endpoint = Endpoint::initiator(config, stream, &request, now, stats).ok()?;
        endpoint.adopt(*qp.queues.take()?, Some(qp.init.pd));
        (it.endpoint, it.stage) = (Some(Box::new(endpoint)), Stage::Connecting);
        Some(())
    }
}
