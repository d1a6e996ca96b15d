//! Connections (`rdma_cm_id`): listen, connect, accept, reject, disconnect, and the events of each.
//!
//! ```text
//!   listener:   listen ─▶ Listen ……… incoming ─▶ ConnectRequest ─▶ accept ─▶ Established
//!                                                               └▶ reject
//!   initiator:  connect ─▶ Open ……… opened ────────────────────────────────▶ Established
//!                                 └ open_refused, open_failed              └▶ Rejected, ConnectError
//!   either:     disconnect, or the stream ends ─▶ Close ─▶ Disconnected ……… closed
//! ```
//! Capitalized names are requests and events: [`Device::poll_transport`] returns the requests to the transport's
//! adapter, [`Device::poll_cm_event`] the events to the program.

use core::net::SocketAddr;
use core::num::NonZeroU16;

use super::ids::{CmId, Owner, QpNum};
use super::queue_pair::{QpState, QpType};
use super::silent::SilentLink;
use super::{Device, Now, VerbsError, micros};
use crate::endpoint::{Endpoint, EndpointConfig, EndpointInfo, MessageSizes};
use crate::memory::{RegionId, StreamId};
use crate::mpa::{ConnectRequest, LocalError};
use crate::qp::{CloseHow, Inbox};
use crate::stats::RdmaStats;
use crate::terminate::ErrorCode;
use crate::wire::mpa::RtrOptions;

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Private data for the peer.
    pub private_data: &'a [u8],
    /// Inbound reads at a time (`responder_resources`, the IRD).
    pub responder_resources: u16,
    /// Outbound reads at a time (`initiator_depth`, the ORD).
    pub initiator_depth: u16,
    /// MPA revision: 2, or 1 for peers that support no other.
    pub revision: u8,
    /// RTR messages that this side can send, for the peer-to-peer model; `None` for the client-server model. Revision
    /// 2 only.
    pub rtr: Option<RtrOptions>,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        Self { private_data: &[], responder_resources: 16, initiator_depth: 16, revision: 2, rtr: None }
    }
}

/// Request to the transport's adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportRequest {
    /// Accept streams at an address and pass each to [`Device::incoming`]; call [`Device::listen_failed`] if the
    /// address is not available.
    Listen {
        /// Handle of the listener.
        id: CmId,
        /// Local address to listen at.
        local: SocketAddr,
        /// Maximum number of MPA Requests that wait for an answer.
        backlog: u16,
    },
    /// Stop accepting streams for a listener.
    Unlisten {
        /// The listener, which no longer exists.
        id: CmId,
    },
    /// Open a stream, then call [`Device::opened`], or the function of its failure, such as [`Device::open_failed`].
    Open {
        /// Handle of the connection.
        id: CmId,
        /// Local address and port, if the program chose them; port 0: any.
        local: Option<SocketAddr>,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// Take the output of a connection back to itself by [`Device::transmit_looped`], from the call of
    /// [`Device::looped_to_itself`] on. It has no stream.
    Loop {
        /// Handle of the connection.
        id: CmId,
    },
    /// Call [`Device::poll_transmit`]: output is queued, or a deadline has changed.
    Transmit {
        /// Handle of the connection.
        id: CmId,
    },
    /// End the stream, then call [`Device::closed`].
    Close {
        /// Handle of the connection.
        id: CmId,
        /// Stream to end; `None` if it was not opened yet.
        stream: Option<StreamId>,
        /// Method of ending the stream.
        how: CloseHow,
    },
}

/// Stage of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// New: neither listening nor connecting.
    New,
    /// Listener. `waiting` counts the MPA Requests that the program has not answered.
    Listening { backlog: u16, waiting: u16, ird: u16, ord: u16 },
    /// The transport opens the stream.
    Opening,
    /// The MPA negotiation runs, or waits for the program.
    Connecting,
    /// The stream is in full operation.
    Established,
    /// The stream has ended, or is about to.
    Ended,
}

/// Parameters of an initiator's request, kept until the stream is open.
#[derive(Debug)]
pub(super) struct PendingConnect {
    pub(super) private_data: Box<[u8]>,
    pub(super) param: (u16, u16, u8, Option<RtrOptions>),
    /// True if the connection may have another local port than that of the id.
    pub(super) any_port: bool,
}

/// Listener or connection. Every received burst reads it, so it has one cache line; the rest is in [`Details`].
#[derive(Debug)]
pub(super) struct Id<C> {
    pub(super) endpoint: Option<Box<Endpoint<C>>>,
    pub(super) details: Box<Details>,
    pub(super) qp: QpLink,
    pub(super) stage: Stage,
    /// True if the connection is in the list of [`Silent`](super::silent::Silent) ones.
    pub(super) is_silent: bool,
    /// True if a [`TransportRequest::Transmit`] is queued.
    pub(super) tx_requested: bool,
    /// True if the program has no handle: it has not seen the id yet, or has destroyed it. The id is freed with its
    /// stream.
    pub(super) destroyed: bool,
    /// Events that are queued, a few at most.
    pub(super) events: u8,
    /// Traffic class of the transport's packets.
    pub(super) traffic_class: u8,
    /// Listener whose backlog counts this connection.
    pub(super) listener: Option<CmId>,
    /// Client to which the id belongs.
    pub(super) owner: Owner,
}

/// Terminate that ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// True if this side sent the Terminate; false if the peer did.
    pub sent: bool,
    /// Error that the Terminate reports.
    pub code: ErrorCode,
}

/// Queue pair of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpLink {
    /// It has had none.
    None,
    /// It has this one.
    Of(QpNum),
    /// It had this one when it ended.
    Was(QpNum),
}

impl QpLink {
    /// Returns the queue pair of a connection that has not ended.
    #[inline]
    pub(super) const fn current(self) -> Option<QpNum> {
        if let Self::Of(number) = self { Some(number) } else { None }
    }
}

/// State of a listener or connection that is needed only while it is opened, reported or closed.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) stream: Option<StreamId>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) pending_connect: Option<Box<PendingConnect>>,
    /// Listener: settings of its connections, if they differ from the device's.
    pub(super) config: Option<Box<EndpointConfig>>,
    pub(super) silent: SilentLink,
    pub(super) termination: Option<Termination>,
    /// Time at which the connection was requested, by the program here or by the peer, modulo 2^32 µs.
    pub(super) began_us: u32,
}

impl Details {
    pub(super) const NONE: Self = Self {
        stream: None,
        local: None,
        peer: None,
        pending_connect: None,
        config: None,
        silent: SilentLink::NONE,
        termination: None,
        began_us: 0,
    };
}

impl<C> Id<C> {
    pub(super) fn new(details: Details) -> Self {
        Self {
            endpoint: None,
            details: Box::new(details),
            qp: QpLink::None,
            stage: Stage::New,
            is_silent: false,
            tx_requested: false,
            destroyed: false,
            events: 0,
            traffic_class: 0,
            listener: None,
            owner: Owner::Program,
        }
    }
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Creates an id for a listener or an outgoing connection (`rdma_create_id`). `local` is the address as for
    /// `rdma_bind_addr`.
    ///
    /// # Errors
    /// `NoResources`.
    pub fn create_id(&mut self, local: Option<SocketAddr>) -> Result<CmId, VerbsError> {
        let id = Id::new(Details { local, ..Details::NONE });
        self.ids.insert(id).map(CmId).ok_or(VerbsError::NoResources)
    }

    /// Destroys an id (`rdma_destroy_id`). Its connection ends first, without an event: it is closed if no work is
    /// unfinished ([`Endpoint::leave`]), and reset otherwise.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn destroy_id(&mut self, id: CmId) -> Result<(), VerbsError> {
        let entry =
            self.ids.get_mut(id.0).filter(|entry| !entry.destroyed).ok_or(VerbsError::NoSuchObject)?;
        entry.destroyed = true;
        let (stage, events) = (entry.stage, core::mem::take(&mut entry.events));
        if events > 0 {
            self.cm_events.retain(|event| event.id != id);
        }
        match stage {
            Stage::Listening { .. } => {
                if !self.withdraw_request(
                    |request| matches!(request, TransportRequest::Listen { id: of, .. } if *of == id),
                ) {
                    self.request(TransportRequest::Unlisten { id });
                }
            }
            Stage::Opening | Stage::Connecting => self.transport_lost(id),
            Stage::Established => self.leave(id),
            Stage::New | Stage::Ended => {}
        }
        self.release_id(id);
        Ok(())
    }

    /// Frees a destroyed id once its stream has ended.
    pub(super) fn release_id(&mut self, id: CmId) {
        let Some(entry) = self.ids.get(id.0) else { return };
        if entry.destroyed && entry.endpoint.is_none() && entry.details.stream.is_none() {
            if entry.tx_requested {
                self.transmit.retain(|of| *of != id);
            }
            self.ids.remove(id.0);
        }
    }

    /// Removes a request that the adapter has not polled. Returns false if there is none.
    pub(super) fn withdraw_request(&mut self, is_it: impl Fn(&TransportRequest) -> bool) -> bool {
        let before = self.transport.len();
        self.transport.retain(|request| !is_it(request));
        self.transport.len() < before
    }

    /// Accepts connections at the id's address (`rdma_listen`), or, at an unspecified one, at all addresses of its
    /// family. Up to `backlog` connections whose peers have sent an
    /// MPA Request may wait for `accept` or `reject`; [`Limits::silent`](super::Limits::silent) bounds those without a
    /// request. Only the read depths of `param` are used.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the id is already in use. `Invalid`: it has no address.
    pub fn listen(&mut self, id: CmId, backlog: NonZeroU16, param: &ConnParam<'_>) -> Result<(), VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if entry.stage != Stage::New {
            return Err(VerbsError::State);
        }
        let (local, backlog) = (entry.details.local.ok_or(VerbsError::Invalid)?, backlog.get());
        let (ird, ord) = (param.responder_resources, param.initiator_depth);
        entry.stage = Stage::Listening { backlog, waiting: 0, ird, ord };
        self.request(TransportRequest::Listen { id, local, backlog });
        Ok(())
    }

    /// Creates a listener at an address where the transport already accepts streams, for a service that the adapter
    /// configures itself. Its connections use `config`, and belong to `owner`.
    ///
    /// # Errors
    /// `NoResources`.
    pub fn create_listener(
        &mut self,
        local: SocketAddr,
        config: EndpointConfig,
        owner: Owner,
    ) -> Result<CmId, VerbsError> {
        let (backlog, ird, ord) = (u16::MAX, config.mpa.ird_max, config.mpa.ord_max);
        let stage = Stage::Listening { backlog, waiting: 0, ird, ord };
        let details = Details { local: Some(local), config: Some(Box::new(config)), ..Details::NONE };
        let id = Id { stage, owner, ..Id::new(details) };
        self.ids.insert(id).map(CmId).ok_or(VerbsError::NoResources)
    }

    /// Sets the settings of connections that a listener of [`Self::create_listener`] accepts from now on.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the id is not a listener.
    pub fn configure_listener(&mut self, id: CmId, config: EndpointConfig) -> Result<(), VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let Stage::Listening { ird, ord, .. } = &mut entry.stage else { return Err(VerbsError::State) };
        (*ird, *ord) = (config.mpa.ird_max, config.mpa.ord_max);
        entry.details.config = Some(Box::new(config));
        Ok(())
    }

    /// Connects a queue pair with a peer (`rdma_connect`).
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the id is already in use, or the queue pair is not `Idle` or has a connection.
    /// `Invalid`: the private data is too long, or the revision is neither 1 nor 2.
    pub fn connect(
        &mut self,
        id: CmId,
        number: QpNum,
        peer: SocketAddr,
        param: &ConnParam<'_>,
    ) -> Result<(), VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        if entry.stage != Stage::New || qp.state != QpState::Idle || qp.id.is_some() {
            return Err(VerbsError::State);
        }
        if qp.init.qp_type == QpType::Ud {
            return Err(VerbsError::Invalid);
        }
        let ConnParam { private_data, responder_resources, initiator_depth, revision, rtr } = *param;
        if private_data.len() > self.endpoint.mpa.request_room(revision) || !matches!(revision, 1 | 2) {
            return Err(VerbsError::Invalid);
        }
        let param = (responder_resources, initiator_depth, revision, rtr);
        let private_data = private_data.into();
        let pending_connect = Box::new(PendingConnect { private_data, param, any_port: false });
        (entry.details.pending_connect, entry.details.peer) = (Some(pending_connect), Some(peer));
        entry.details.began_us = micros(self.now_ns);
        (entry.stage, entry.qp) = (Stage::Opening, QpLink::Of(number));
        qp.id = Some(id);
        let local = entry.details.local;
        self.request(TransportRequest::Open { id, local, peer });
        Ok(())
    }

    /// Accepts the connection of a [`CmEventKind::ConnectRequest`], and assigns it a queue pair (`rdma_accept`).
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: no request is waiting, or the queue pair is not `Idle` or has a connection. `Invalid`:
    /// the private data is too long.
    ///
    /// [`CmEventKind::ConnectRequest`]: super::CmEventKind::ConnectRequest
    pub fn accept(&mut self, id: CmId, number: QpNum, private_data: &[u8]) -> Result<(), VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        let asked = entry.stage == Stage::Connecting && entry.qp.current().is_none();
        let endpoint = entry.endpoint.as_mut().filter(|_| asked).ok_or(VerbsError::State)?;
        if qp.state != QpState::Idle || qp.id.is_some() {
            return Err(VerbsError::State);
        }
        if qp.init.qp_type == QpType::Ud {
            return Err(VerbsError::Invalid);
        }
        endpoint.accept(private_data).map_err(answer_error)?;
        let queues = qp.queues.take().ok_or(VerbsError::State)?;
        endpoint.adopt(*queues, Some(qp.init.pd));
        (entry.qp, qp.id) = (QpLink::Of(number), Some(id));
        self.leave_backlog(id);
        self.request_transmit(id);
        Ok(())
    }

    /// Accepts the connection of a [`CmEventKind::ConnectRequest`] without a queue pair: the peer may access memory by
    /// STag, but neither side can post work. A service that only offers memory needs no more. Immediate Data and Sends
    /// of the peer go to those who watch `region` ([`Memory::notify`](crate::Memory::notify)); they end the stream if
    /// nobody does, or without a region.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: no request is waiting. `Invalid`: the private data is too long.
    ///
    /// [`CmEventKind::ConnectRequest`]: super::CmEventKind::ConnectRequest
    pub fn accept_without_qp(
        &mut self,
        id: CmId,
        private_data: &[u8],
        region: Option<RegionId>,
    ) -> Result<(), VerbsError> {
        let endpoint = self.requesting(id)?;
        endpoint.accept(private_data).map_err(answer_error)?;
        endpoint.queue_pair().inbox = region.map(|region| Box::new(Inbox::new(region)));
        self.leave_backlog(id);
        self.request_transmit(id);
        Ok(())
    }

    /// Returns the endpoint of a connection that waits for `accept` or `reject`.
    fn requesting(&mut self, id: CmId) -> Result<&mut Endpoint<C>, VerbsError> {
        let entry = self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let asked = entry.stage == Stage::Connecting && entry.qp.current().is_none();
        entry.endpoint.as_deref_mut().filter(|_| asked).ok_or(VerbsError::State)
    }

    /// Rejects the connection of a [`CmEventKind::ConnectRequest`] (`rdma_reject`). The id can only be destroyed then.
    ///
    /// # Errors
    /// As for [`Self::accept`].
    ///
    /// [`CmEventKind::ConnectRequest`]: super::CmEventKind::ConnectRequest
    pub fn reject(&mut self, id: CmId, private_data: &[u8]) -> Result<(), VerbsError> {
        self.requesting(id)?.reject(private_data).map_err(answer_error)?;
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.stage = Stage::Ended;
        }
        self.leave_backlog(id);
        self.request_transmit(id);
        Ok(())
    }

    /// Closes a connection when its work is done (`rdma_disconnect`). A connection that is not established yet is
    /// reset.
    pub fn disconnect(&mut self, id: CmId, now: Now) {
        let Some(entry) = self.ids.get_mut(id.0) else { return };
        match (entry.stage, entry.endpoint.as_mut()) {
            (Stage::Established, Some(endpoint)) => {
                endpoint.disconnect(now);
                self.closing(id);
                self.drain(id);
            }
            (Stage::Opening | Stage::Connecting, _) => self.transport_lost(id),
            _ => {}
        }
    }

    /// Moves the queue pair of an established connection to `Closing`: it accepts no more work to send.
    pub(super) fn closing(&mut self, id: CmId) {
        let number = self.ids.get(id.0).and_then(|entry| entry.qp.current());
        if let Some(qp) = number.and_then(|number| self.qps.get_mut(number.0))
            && qp.state == QpState::Rts
        {
            qp.state = QpState::Closing;
        }
        self.request_transmit(id);
    }

    /// Returns the local and the peer's address of an id, as far as they are known.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn addresses(&self, id: CmId) -> Result<(Option<SocketAddr>, Option<SocketAddr>), VerbsError> {
        let details = &self.ids.get(id.0).ok_or(VerbsError::NoSuchObject)?.details;
        Ok((details.local, details.peer))
    }

    /// Returns the Terminate that ended the stream of an id, sent or received. A transport adapter can ask until it has
    /// called [`Self::closed`].
    pub fn termination(&self, id: CmId) -> Option<Termination> {
        self.ids.get(id.0)?.details.termination
    }

    /// Gives an id to a client of the device.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn set_owner(&mut self, id: CmId, owner: Owner) -> Result<(), VerbsError> {
        self.ids.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?.owner = owner;
        Ok(())
    }

    /// Returns the queue pair of a connection.
    pub fn qp_of(&self, id: CmId) -> Option<QpNum> {
        self.ids.get(id.0)?.qp.current()
    }

    /// Returns the queue pair that a connection had when it ended.
    pub fn ended_qp_of(&self, id: CmId) -> Option<QpNum> {
        if let QpLink::Was(number) = self.ids.get(id.0)?.qp { Some(number) } else { None }
    }

    /// Returns the client to which an id belongs, `None` if there is no such id.
    #[inline]
    pub fn owner(&self, id: CmId) -> Option<Owner> {
        self.ids.get(id.0).map(|id| id.owner)
    }

    /// Returns true if the stream of an id is in full operation.
    pub fn is_established(&self, id: CmId) -> bool {
        self.ids.get(id.0).is_some_and(|entry| entry.stage == Stage::Established)
    }

    /// Returns a snapshot of a connection's stream; `None` without a stream.
    pub fn stream_info(&self, id: CmId) -> Option<EndpointInfo> {
        self.ids.get(id.0)?.endpoint.as_ref().map(|endpoint| endpoint.info())
    }

    /// Returns the longest messages that fit one segment of the connection, as
    /// [`Endpoint::max_msizes`](crate::Endpoint::max_msizes); `None` without a stream.
    pub fn max_msizes(&self, id: CmId, fpdu_max: usize) -> Option<MessageSizes> {
        self.ids.get(id.0)?.endpoint.as_ref().map(|endpoint| endpoint.max_msizes(fpdu_max))
    }

    /// Removes a connection from the silent ones, or from its listener's backlog.
    pub(super) fn leave_backlog(&mut self, id: CmId) {
        let listener = self.ids.get_mut(id.0).and_then(|entry| entry.listener.take());
        if self.remove_silent(id) {
            return;
        }
        let listener = listener.and_then(|listener| self.ids.get_mut(listener.0));
        if let Some(Id { stage: Stage::Listening { waiting, .. }, .. }) = listener {
            *waiting = waiting.saturating_sub(1);
        }
    }

    /// Moves a connection whose MPA Request has arrived into the backlog of its listener. Returns `None` if the
    /// backlog is full or the listener gone.
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

    /// Creates the initiator's endpoint for the stream that was opened.
    pub(super) fn start_initiator(
        &mut self,
        id: CmId,
        stream: StreamId,
        now: Now,
        stats: &mut RdmaStats,
    ) -> Option<()> {
        let of_link = if self.qp_of(id).is_none() { Some((self.datagram_queues()?, None)) } else { None };
        let entry = self.ids.get_mut(id.0)?;
        let PendingConnect { private_data, param: (ird, ord, revision, rtr), .. } =
            *entry.details.pending_connect.take()?;
        // For responders of other makes, which a queue pair that is connected by number does not meet.
        let poke_after = self.endpoint.poke_after.filter(|_| !entry.owner.is_device());
        let config = EndpointConfig { send_queue: 0, receive_queue: 0, poke_after, ..self.endpoint };
        let request = ConnectRequest { private_data: &private_data, revision, ird, ord, rtr };
        let mut endpoint = Endpoint::initiator(config, stream, &request, now, stats).ok()?;
        let of_qp = entry.qp.current().and_then(|number| {
            let qp = self.qps.get_mut(number.0)?;
            Some((*qp.queues.take()?, Some(qp.init.pd)))
        });
        let (queues, pd) = of_qp.or(of_link)?;
        endpoint.adopt(queues, pd);
        (entry.endpoint, entry.stage) = (Some(Box::new(endpoint)), Stage::Connecting);
        Some(())
    }
}

/// Returns the error of an answer that the negotiation refuses.
const fn answer_error(error: LocalError) -> VerbsError {
    match error {
        LocalError::PrivateDataTooLong { .. } | LocalError::Revision => VerbsError::Invalid,
        LocalError::NoRequest => VerbsError::State,
    }
}

#[cfg(test)]
mod tests {
    use super::{Details, Id};
    use crate::Endpoint;

    /// Memory of a connection in the device, in bytes, without queues. A worker has many thousands of connections.
    #[test]
    fn a_connection_is_small() {
        let (endpoint, details) = (size_of::<Endpoint<Vec<u8>>>(), size_of::<Details>());
        assert!(endpoint <= 1032 && details <= 112, "{endpoint}, {details}");
        // With the generation of its slot, one cache line.
        assert!(size_of::<Option<Id<Vec<u8>>>>() < 64);
    }
}
