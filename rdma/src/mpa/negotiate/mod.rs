//! MPA startup phase (RFC 5044 §7.1, RFC 6581): a Request, a Reply, and the terms that both sides keep afterwards.
//!
//! ```text
//!   responder   AwaitRequest -> Decide -> SendAccept -> Established
//!                                     \-> SendReject -> Rejected
//!   initiator   SendRequest -> AwaitReply -> Established | Rejected
//!   both        anything malformed, early, late or closed -> Failed
//! ```
//!
//! [`table::step`] is the state machine; this module feeds it. The endpoint drives a [`Negotiation`] until full
//! operation.

mod frame;
pub mod table;
mod terms;

use super::MpaStats;
use crate::wire::mpa::{ConnectionData, FrameHeader, FrameKind, PRIVATE_DATA_MAX, RtrOptions};
use core::fmt;
use core::time::Duration;
use frame::{Frame, Parsed};
use table::{Input, State};
pub use terms::{Rtr, Terms};

/// Bytes of private data, [`ConnectionData`] included, that every known implementation accepts: Linux soft-iWARP and
/// Chelsio refuse more than 256 bytes, although RFC 5044 §7.1.1 allows 512.
pub const PRIVATE_DATA_SAFE: usize = 256;

/// Local policy for the C bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrcPolicy {
    /// Always use CRCs. RFC 5044 §4.4: "The default configuration for a connection MUST be to use CRCs."
    #[default]
    Required,
    /// Use CRCs only if the peer asks for them. An administrator must choose this explicitly (RFC 5044 §4.4).
    IfPeerAsks,
}

impl CrcPolicy {
    /// Policies with their names in files, on the command line and in reports.
    pub const NAMES: [(&'static str, Self); 2] = [("on", Self::Required), ("off", Self::IfPeerAsks)];

    /// Returns the name of the policy.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Required => "on",
            Self::IfPeerAsks => "off",
        }
    }

    /// Returns the policy of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, policy)| policy)
    }
}

/// Local settings of a negotiation.
#[derive(Clone, Copy, Debug)]
pub struct NegotiationConfig {
    /// CRC policy of this side.
    pub crc: CrcPolicy,
    /// True if this side asks for markers in the stream that it receives. Markers that the peer asks for are always
    /// sent. A peer that refuses markers, such as Linux soft-iWARP, rejects an initiator that asks; the initiator may
    /// connect again without.
    pub markers: bool,
    /// Read Requests of the peer that this side serves at a time, 0–16382.
    pub ird_max: u16,
    /// Read Requests that this side may have outstanding, 0–16382.
    pub ord_max: u16,
    /// Ready-to-receive messages that a responder accepts. It accepts a Read only if `ird_max` is not 0, and a Write
    /// if it accepts nothing else. RFC 6581 §9.2: "The responder MUST support at least one RTR indication option".
    pub rtr: RtrOptions,
    /// Maximum bytes of private data sent, [`ConnectionData`] included; 512 is the limit of RFC 5044.
    pub private_data_max: usize,
    /// Time limit of the startup phase (RFC 5044 §7.1.2 rule 10).
    pub timeout: Duration,
}

impl Default for NegotiationConfig {
    fn default() -> Self {
        Self {
            crc: CrcPolicy::Required,
            markers: false,
            ird_max: 128,
            ord_max: 128,
            rtr: RtrOptions { send: true, write: true, read: true },
            private_data_max: PRIVATE_DATA_SAFE,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Parameters of an initiator's Request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// Private data of the ULP.
    pub private_data: &'a [u8],
    /// MPA revision: 2 (enhanced), or 1 for peers that support no other.
    pub revision: u8,
    /// Read Requests of the peer that this side offers to serve at a time; at most [`NegotiationConfig::ird_max`] are
    /// offered.
    pub ird: u16,
    /// Read Requests that this side asks to have outstanding; at most [`NegotiationConfig::ord_max`] are asked for.
    pub ord: u16,
    /// RTR messages that this side can send, for the peer-to-peer model; `None` for the client-server model. Revision
    /// 2 only.
    pub rtr: Option<RtrOptions>,
}

/// Request of a peer, for the responder's owner to accept or reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Terms of the connection if the owner accepts.
    pub terms: Terms,
    /// True if the peer itself asked for CRCs.
    pub peer_crc: bool,
}

/// Event of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Responder: a Request arrived. Answer with [`Negotiation::accept`] or [`Negotiation::reject`];
    /// [`Negotiation::private_data`] returns the Request's.
    Request(Offer),
    /// Full operation begins. For an initiator, [`Negotiation::private_data`] returns the Reply's.
    Established(Terms),
    /// Initiator: the peer rejected the connection; the private data may give reasons. RFC 5044 §7.1.2 rule 3 leaves
    /// the TCP connection open for the owner to close.
    Rejected(Option<ConnectionData>),
    /// Responder: TCP has taken the rejecting Reply; the owner closes the TCP connection.
    RejectSent(Refusal),
    /// The negotiation failed; the owner closes the TCP connection at once (RFC 5044 §8 code 4), after a Terminate if
    /// [`Refusal::sends_terminate`].
    Failed(Refusal),
}

/// Reason why a connection is not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The first bytes are not a valid MPA key.
    Key,
    /// Both sides are initiators, or both are responders.
    Role,
    /// The MPA revision is neither 1 nor 2.
    Revision,
    /// PD_Length exceeds 512 bytes.
    PrivateData,
    /// S is set without room for IRD and ORD, or a Reply is not enhanced as its Request is.
    Enhanced,
    /// The peer sent bytes before it was allowed to.
    Early,
    /// The responder's ORD exceeds the local IRD (RFC 6581 §9.1).
    InsufficientIrd,
    /// The sides have no RTR message in common (RFC 6581 §9.2).
    NoMatchingRtr,
    /// The owner rejected the connection.
    Owner,
    /// The startup phase exceeded its time limit.
    Timeout,
    /// The peer closed the connection.
    PeerClosed,
}

impl Refusal {
    /// Returns true if the peer's MPA is in full operation, so that a Terminate must report the failure (RFC 6581 §8).
    #[must_use]
    pub const fn sends_terminate(self) -> bool {
        matches!(self, Self::InsufficientIrd | Self::NoMatchingRtr)
    }
}

/// Error of the owner's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalError {
    /// The private data is longer than this side may send.
    PrivateDataTooLong {
        /// Length of the private data in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The MPA revision is neither 1 nor 2.
    Revision,
    /// No Request is waiting for an answer.
    NoRequest,
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrivateDataTooLong { len, max } => {
                write!(f, "{len} bytes of private data; at most {max} can be sent")
            }
            Self::Revision => f.write_str("MPA revisions are 1 and 2"),
            Self::NoRequest => f.write_str("there is no connection request to answer"),
        }
    }
}

impl core::error::Error for LocalError {}

#[derive(Clone, Copy, Debug)]
enum Role {
    Responder { reply: Option<ConnectionData>, refusal: Refusal },
    Initiator(terms::Asked),
}

/// Startup phase of one connection, as responder or initiator.
///
/// Feed it with [`receive`](Self::receive), [`handle_timeout`](Self::handle_timeout) and
/// [`peer_closed`](Self::peer_closed); send the bytes of [`unsent`](Self::unsent); then take
/// [`poll_event`](Self::poll_event). Once its state is final, the rest of the stream belongs to the deframer.
#[derive(Clone, Debug)]
pub struct Negotiation {
    config: NegotiationConfig,
    role: Role,
    state: State,
    terms: Option<Terms>,
    inbound: Frame,
    outbound: Frame,
    event: Option<Event>,
    deadline: Duration,
}

impl Negotiation {
    /// Creates a responder, which waits for a Request.
    #[must_use]
    pub fn responder(config: NegotiationConfig, now: Duration) -> Self {
        let role = Role::Responder { reply: None, refusal: Refusal::Owner };
        Self::new(config, role, State::AwaitRequest, Frame::new(), now)
    }

    /// Creates an initiator, which sends a Request.
    ///
    /// # Errors
    /// The private data is too long, or the revision is neither 1 nor 2.
    pub fn initiator(
        config: NegotiationConfig,
        request: &ConnectRequest<'_>,
        now: Duration,
        stats: &mut MpaStats,
    ) -> Result<Self, LocalError> {
        if !(1..=2).contains(&request.revision) {
            return Err(LocalError::Revision);
        }
        let asked = terms::Asked::new(&config, request);
        let connection = asked.connection_data();
        check_private_data(&config, connection, request.private_data)?;
        let header = FrameHeader {
            kind: FrameKind::Request,
            markers: config.markers,
            crc: config.crc == CrcPolicy::Required,
            reject: false,
            enhanced: false,
            revision: request.revision,
            private_data_len: 0,
        };
        let frame = Frame::compose(header, connection, request.private_data);
        stats.requests_out = stats.requests_out.wrapping_add(1);
        Ok(Self::new(config, Role::Initiator(asked), State::SendRequest, frame, now))
    }

    fn new(config: NegotiationConfig, role: Role, state: State, outbound: Frame, now: Duration) -> Self {
        let deadline = now.saturating_add(config.timeout);
        Self { config, role, state, terms: None, inbound: Frame::new(), outbound, event: None, deadline }
    }

    /// Takes bytes of the stream and returns the number that belong to the startup frame. For an initiator, the bytes
    /// after the Reply begin the first FPDU.
    pub fn receive(&mut self, bytes: &[u8], stats: &mut MpaStats) -> usize {
        if bytes.is_empty() || self.state.is_final() {
            return 0;
        }
        let expected = match self.state {
            State::AwaitRequest => FrameKind::Request,
            State::AwaitReply => FrameKind::Reply,
            _ => {
                self.fail(Input::EarlyBytes, Refusal::Early, stats);
                return 0;
            }
        };
        let (taken, parsed) = self.inbound.gather(bytes, expected);
        match parsed {
            Ok(None) => {}
            Err(refusal) => self.fail(Input::BadFrame, refusal, stats),
            // RFC 5044 §7.1.2 rule 3: only an initiator may find FPDUs behind the frame that it waited for.
            Ok(Some(_)) if expected == FrameKind::Request && taken < bytes.len() => {
                self.fail(Input::EarlyBytes, Refusal::Early, stats);
            }
            Ok(Some(parsed)) => match self.role {
                Role::Responder { .. } => self.on_request(parsed, stats),
                Role::Initiator(asked) => self.on_reply(parsed, &asked, stats),
            },
        }
        taken
    }

    fn on_request(&mut self, Parsed { header, connection }: Parsed, stats: &mut MpaStats) {
        stats.requests_in = stats.requests_in.wrapping_add(1);
        let (terms, reply) = terms::respond(&self.config, &header, connection);
        self.terms = Some(terms);
        self.role = Role::Responder { reply, refusal: Refusal::Owner };
        self.step(Input::Frame);
        self.event = Some(Event::Request(Offer { terms, peer_crc: header.crc }));
    }

    fn on_reply(
        &mut self,
        Parsed { header, connection }: Parsed,
        asked: &terms::Asked,
        stats: &mut MpaStats,
    ) {
        if header.reject {
            stats.rejects_in = stats.rejects_in.wrapping_add(1);
            self.step(Input::RejectFrame);
            self.event = Some(Event::Rejected(connection));
            return;
        }
        // RFC 6581 §10: "If the responder receives an enhanced MPA message, it MUST respond with an enhanced
        // MPA message", and to an unenhanced one with an unenhanced one.
        if asked.enhanced != connection.is_some() {
            self.fail(Input::BadFrame, Refusal::Enhanced, stats);
            return;
        }
        let (terms, agreed) = terms::conclude(&self.config, asked, &header, connection);
        self.terms = Some(terms);
        match agreed {
            Err(refusal) => self.fail(Input::Unacceptable, refusal, stats),
            Ok(()) => {
                stats.accepts_in = stats.accepts_in.wrapping_add(1);
                self.step(Input::Frame);
                self.event = Some(Event::Established(terms));
            }
        }
    }

    /// Responder: accepts the Request.
    ///
    /// # Errors
    /// `NoRequest`, or the private data is too long; the state is unchanged then.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), LocalError> {
        self.answer(Input::Accept, private_data)
    }

    /// Responder: rejects the Request.
    ///
    /// # Errors
    /// As for [`Self::accept`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), LocalError> {
        self.answer(Input::Reject, private_data)
    }

    fn answer(&mut self, answer: Input, private_data: &[u8]) -> Result<(), LocalError> {
        let Role::Responder { reply, .. } = self.role else {
            return Err(LocalError::NoRequest);
        };
        if table::step(self.state, answer).is_none() {
            return Err(LocalError::NoRequest);
        }
        check_private_data(&self.config, reply, private_data)?;
        self.step(answer);
        self.compose_reply(answer == Input::Reject, private_data);
        Ok(())
    }

    fn compose_reply(&mut self, reject: bool, private_data: &[u8]) {
        let (Role::Responder { reply, .. }, Some(terms)) = (self.role, self.terms) else {
            return;
        };
        let header = FrameHeader {
            kind: FrameKind::Reply,
            // A rejecting Reply asks for no markers: they would have no meaning.
            markers: self.config.markers && !reject,
            crc: terms.crc,
            reject,
            enhanced: false,
            revision: terms.revision,
            private_data_len: 0,
        };
        self.outbound = Frame::compose(header, reply, private_data);
    }

    /// Returns the bytes for TCP to send next. The caller reports with [`Self::sent`] how many TCP took.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        match self.state {
            State::SendRequest | State::SendAccept | State::SendReject => self.outbound.unsent(),
            _ => &[],
        }
    }

    /// Marks `bytes` of [`Self::unsent`] as taken by TCP.
    pub fn sent(&mut self, bytes: usize, stats: &mut MpaStats) {
        if self.unsent().is_empty() || !self.outbound.advance(bytes) {
            return;
        }
        let before = self.state;
        self.step(Input::Sent);
        match (before, self.role, self.terms) {
            (State::SendAccept, _, Some(terms)) => {
                stats.accepts_out = stats.accepts_out.wrapping_add(1);
                self.event = Some(Event::Established(terms));
            }
            (State::SendReject, Role::Responder { refusal, .. }, _) => {
                stats.count_refusal(refusal);
                self.event = Some(Event::RejectSent(refusal));
            }
            _ => {}
        }
    }

    /// Handles the end of the peer's half of the stream.
    pub fn peer_closed(&mut self, stats: &mut MpaStats) {
        self.fail(Input::PeerClosed, Refusal::PeerClosed, stats);
    }

    /// Fails the negotiation if its time limit has passed.
    pub fn handle_timeout(&mut self, now: Duration, stats: &mut MpaStats) {
        if now >= self.deadline {
            self.fail(Input::Timeout, Refusal::Timeout, stats);
        }
    }

    /// Returns the time at which [`Self::handle_timeout`] is due; `None` once the negotiation is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        (!self.state.is_final()).then_some(self.deadline)
    }

    /// Returns the next event for the owner, once.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Returns the state of the negotiation.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the terms agreed so far: a responder's from the Request on, an initiator's from the Reply on.
    #[must_use]
    pub const fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// Returns the ULP's private data in the peer's frame; empty until the frame is complete.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.inbound.private_data()
    }

    /// Returns the bytes of ULP private data that fit in the local frame beside the protocol's own.
    #[must_use]
    pub fn private_data_room(&self) -> usize {
        let connection = match self.role {
            Role::Responder { reply, .. } => reply,
            Role::Initiator(asked) => asked.connection_data(),
        };
        self.config.room(connection.is_some())
    }

    fn step(&mut self, input: Input) {
        if let Some(next) = table::step(self.state, input) {
            self.state = next;
        }
    }

    fn fail(&mut self, input: Input, refusal: Refusal, stats: &mut MpaStats) {
        if table::step(self.state, input).is_some() {
            self.step(input);
            stats.count_refusal(refusal);
            self.event = Some(Event::Failed(refusal));
        }
    }
}

impl NegotiationConfig {
    /// Returns the most bytes of private data of a request. Revision 2 needs some of them itself (RFC 6581 §9).
    pub(crate) fn request_room(&self, revision: u8) -> usize {
        self.room(revision >= 2)
    }

    fn room(&self, has_connection_data: bool) -> usize {
        let own = if has_connection_data { ConnectionData::LEN } else { 0 };
        self.private_data_max.min(PRIVATE_DATA_MAX).saturating_sub(own)
    }
}

fn check_private_data(
    config: &NegotiationConfig,
    connection: Option<ConnectionData>,
    private_data: &[u8],
) -> Result<(), LocalError> {
    let max = config.room(connection.is_some());
    if private_data.len() > max {
        return Err(LocalError::PrivateDataTooLong { len: private_data.len(), max });
    }
    Ok(())
}
