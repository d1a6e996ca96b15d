//! The startup phase (RFC 5044 §7.1, RFC 6581): a Request, a Reply, and what both sides hold to afterwards.
//!
//! ```text
//!   responder   AwaitRequest -> Decide -> SendAccept -> Established
//!                                     \-> SendReject -> Rejected
//!   initiator   SendRequest -> AwaitReply -> Established | Rejected
//!   both        anything malformed, early, late or closed -> Failed
//! ```
//!
//! [`table::step`] is the whole machine; this module feeds it.

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

/// Private data, [`ConnectionData`] included, that every known implementation takes: Linux soft-iWARP and
/// Chelsio refuse more than 256 bytes, although RFC 5044 §7.1.1 allows 512.
pub const PRIVATE_DATA_SAFE: usize = 256;

/// Our side of the C bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrcPolicy {
    /// CRCs always. RFC 5044 §4.4: "The default configuration for a connection MUST be to use CRCs."
    #[default]
    Required,
    /// CRCs only where the peer asks for them; an administrator's explicit wish (RFC 5044 §4.4).
    IfPeerAsks,
}

/// What we bring to a negotiation.
#[derive(Clone, Copy, Debug)]
pub struct NegotiationConfig {
    /// Whether we ask for CRCs.
    pub crc: CrcPolicy,
    /// Whether we ask for markers in what we receive. Those that the peer asks for are always sent. An initiator whose
    /// peer refuses them, as Linux soft-iWARP does, is rejected; it may connect again without.
    pub markers: bool,
    /// The peer's Read Requests that we can take at once, 0–16382.
    pub ird_max: u16,
    /// Read Requests that we may have outstanding, 0–16382.
    pub ord_max: u16,
    /// Ready-to-receive messages that we take, as a responder; a Read only where `ird_max` is not 0, and a Write where there
    /// is nothing else.
    /// RFC 6581 §9.2: "The responder MUST support at least one RTR indication option".
    pub rtr: RtrOptions,
    /// Bytes of private data that we send at most, [`ConnectionData`] included; 512 is the RFC's limit.
    pub private_data_max: usize,
    /// How long the startup phase may take altogether (RFC 5044 §7.1.2 rule 10).
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

/// What an initiator asks for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest<'a> {
    /// The ULP's private data.
    pub private_data: &'a [u8],
    /// The revision to speak: 2 (enhanced), or 1 for peers that know no other.
    pub revision: u8,
    /// The peer's reads that we want to take; at most [`NegotiationConfig::ird_max`] are offered.
    pub ird: u16,
    /// Our reads that the peer shall take; at most [`NegotiationConfig::ord_max`] are asked for.
    pub ord: u16,
    /// `Some` for the peer-to-peer model, with the RTR messages that we can send; revision 2 only.
    pub rtr: Option<RtrOptions>,
}

/// What a responder's owner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What will hold if the owner accepts.
    pub terms: Terms,
    /// Whether the peer itself asked for CRCs.
    pub peer_crc: bool,
}

/// What a negotiation tells its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Responder: a Request came; answer with [`Negotiation::accept`] or [`Negotiation::reject`].
    /// [`Negotiation::private_data`] is the Request's.
    Request(Offer),
    /// Full operation. An initiator finds the Reply's private data in [`Negotiation::private_data`].
    Established(Terms),
    /// Initiator: the peer said no; its reasons may be in the private data. RFC 5044 §7.1.2 rule 3 leaves the
    /// TCP connection open for the owner to close.
    Rejected(Option<ConnectionData>),
    /// Responder: our rejecting Reply is in TCP's hands; the owner closes the TCP connection.
    RejectSent(Refusal),
    /// There is no connection; the owner closes the TCP connection at once (RFC 5044 §8 code 4), after a
    /// Terminate where [`Refusal::is_told_by_terminate`].
    Failed(Refusal),
}

/// Why a connection does not come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The first bytes are not an MPA key.
    Key,
    /// The peer took our role: both are initiators, or both responders.
    Role,
    /// A revision other than 1 and 2.
    Revision,
    /// PD_Length is above 512.
    PrivateData,
    /// S is set and there is no room for IRD and ORD, or a Reply is not as enhanced as its Request.
    Enhanced,
    /// Bytes before the peer may send any.
    Early,
    /// The responder's ORD is more than the IRD we have (RFC 6581 §9.1).
    InsufficientIrd,
    /// No RTR message that both sides know (RFC 6581 §9.2).
    NoMatchingRtr,
    /// The owner said no.
    Owner,
    /// The startup phase took too long.
    Timeout,
    /// The peer closed.
    PeerClosed,
}

impl Refusal {
    /// Whether the peer's MPA is in full operation and is to be told by a Terminate (RFC 6581 §8).
    #[must_use]
    pub const fn is_told_by_terminate(self) -> bool {
        matches!(self, Self::InsufficientIrd | Self::NoMatchingRtr)
    }
}

/// What the owner did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalError {
    /// More private data than we send.
    PrivateDataTooLong {
        /// Bytes offered.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A revision other than 1 and 2.
    Revision,
    /// There is no Request to answer.
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

/// The startup phase of one connection, as responder or initiator.
///
/// Feed it with [`receive`](Self::receive), [`handle_timeout`](Self::handle_timeout) and
/// [`peer_closed`](Self::peer_closed); send what [`unsent`](Self::unsent) holds; then take
/// [`poll_event`](Self::poll_event). Once it is final, the rest of the stream is not its own.
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
    /// Waits for a Request.
    #[must_use]
    pub fn responder(config: NegotiationConfig, now: Duration) -> Self {
        let role = Role::Responder { reply: None, refusal: Refusal::Owner };
        Self::new(config, role, State::AwaitRequest, Frame::new(), now)
    }

    /// Sends a Request.
    ///
    /// # Errors
    /// Where the private data is too long or the revision unknown.
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

    /// Takes bytes of the stream and returns how many of them were its own. What an initiator leaves behind
    /// the Reply is the beginning of the first FPDU.
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

    /// Responder: answers the Request with yes.
    ///
    /// # Errors
    /// Where there is no Request to answer, or the private data is too long; nothing has changed then.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), LocalError> {
        self.answer(Input::Accept, private_data)
    }

    /// Responder: answers the Request with no.
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
            // Of no meaning in a Reply that rejects.
            markers: self.config.markers && !reject,
            crc: terms.crc,
            reject,
            enhanced: false,
            revision: terms.revision,
            private_data_len: 0,
        };
        self.outbound = Frame::compose(header, reply, private_data);
    }

    /// Bytes for TCP to send now; say how many it took with [`Self::sent`].
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        match self.state {
            State::SendRequest | State::SendAccept | State::SendReject => self.outbound.unsent(),
            _ => &[],
        }
    }

    /// TCP took so many bytes of [`Self::unsent`].
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

    /// The peer closed its half of the stream.
    pub fn peer_closed(&mut self, stats: &mut MpaStats) {
        self.fail(Input::PeerClosed, Refusal::PeerClosed, stats);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration, stats: &mut MpaStats) {
        if now >= self.deadline {
            self.fail(Input::Timeout, Refusal::Timeout, stats);
        }
    }

    /// When [`Self::handle_timeout`] is next due; `None` once the negotiation is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        (!self.state.is_final()).then_some(self.deadline)
    }

    /// What the owner has to know, once.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Where the negotiation stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What was agreed, as far as it is: a responder's from the Request on, an initiator's from the Reply on.
    #[must_use]
    pub const fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// The ULP's private data in the peer's frame: empty until the frame is whole.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.inbound.private_data()
    }

    /// Bytes of private data that our own frame can carry beside what the protocol puts there.
    #[must_use]
    pub fn private_data_room(&self) -> usize {
        let connection = match self.role {
            Role::Responder { reply, .. } => reply,
            Role::Initiator(asked) => asked.connection_data(),
        };
        private_data_room(&self.config, connection)
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

fn private_data_room(config: &NegotiationConfig, connection: Option<ConnectionData>) -> usize {
    let own = if connection.is_some() { ConnectionData::LEN } else { 0 };
    config.private_data_max.min(PRIVATE_DATA_MAX).saturating_sub(own)
}

fn check_private_data(
    config: &NegotiationConfig,
    connection: Option<ConnectionData>,
    private_data: &[u8],
) -> Result<(), LocalError> {
    let max = private_data_room(config, connection);
    if private_data.len() > max {
        return Err(LocalError::PrivateDataTooLong { len: private_data.len(), max });
    }
    Ok(())
}
