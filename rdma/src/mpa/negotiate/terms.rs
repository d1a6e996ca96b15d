//! Terms of a connection: revision, CRC, read depths, ready-to-receive (RFC 5044 §4.4, RFC 6581 §9).

use super::{ConnectRequest, CrcPolicy, NegotiationConfig, Refusal};
use crate::wire::mpa::{ConnectionData, FrameHeader, ReadDepth, RtrOptions};

/// Ready-to-receive message: the empty message that an initiator sends first (RFC 6581 §9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rtr {
    /// An empty Send message.
    Send,
    /// An empty RDMA Write.
    Write,
    /// An empty RDMA Read.
    Read,
}

/// Terms of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// MPA revision, 1 or 2.
    pub revision: u8,
    /// True if CRCs are generated and checked, in both directions.
    pub crc: bool,
    /// True if the received stream has markers: this side asked for them.
    pub markers_in: bool,
    /// True if the transmitted stream has markers: the peer asked for them.
    pub markers_out: bool,
    /// Read Requests of the peer that this side serves at a time (IRD).
    pub ird: u16,
    /// Read Requests that this side may have outstanding (ORD).
    pub ord: u16,
    /// Initiator: the message to send before all others; `None` if none is required.
    pub rtr: Option<Rtr>,
    /// Responder: the messages of which the peer must send one before all others; `None` if the peer may begin with
    /// any.
    pub rtr_in: Option<RtrOptions>,
    /// IRD, ORD and RTR as the peer's frame stated them; `None` if it was not enhanced. RFC 6581 §9.1: "The responder
    /// and initiator MUST pass the peer's provided IRD and ORD values to the ULP".
    pub peer: Option<ConnectionData>,
}

impl CrcPolicy {
    /// RFC 5044 §7.1.1: "When this bit is '1' in either the MPA Request Frame or MPA Reply Frame, CRCs MUST be
    /// generated and checked by both endpoints."
    const fn with(self, peer_wants: bool) -> bool {
        peer_wants || matches!(self, Self::Required)
    }
}

/// Returns the terms that answer a Request, and the IRD, ORD and RTR of the Reply.
pub(super) fn respond(
    config: &NegotiationConfig,
    header: &FrameHeader,
    peer: Option<ConnectionData>,
) -> (Terms, Option<ConnectionData>) {
    let (mut ird, mut ord) = (config.ird_max, config.ord_max);
    let reply = peer.map(|asked| {
        let rtr = asked.rtr.map(|options| answer_rtr(takes_rtr(config), options));
        // RFC 6581 §9.1: "If the initiator ORD is insufficient to support the selected connection model, the
        // responder IRD MAY be increased", as a Read of no bytes takes a place in the queue too.
        let floor = u16::from(rtr.is_some_and(|options| options.read));
        // RFC 6581 §9.1: "The responder MUST respond to an initiator ORD value of 0x3FFF by leaving its local
        // endpoint IRD value unchanged and setting the IRD to 0x3FFF in its reply message"; IRD alike.
        let reply_ird = match asked.ord.requests() {
            Some(wanted) => {
                ird = wanted.max(floor).min(config.ird_max);
                ReadDepth::new(ird)
            }
            None => ReadDepth::NOT_NEGOTIATED,
        };
        let reply_ord = match asked.ird.requests() {
            Some(offered) => {
                ord = offered.min(config.ord_max);
                ReadDepth::new(ord)
            }
            None => ReadDepth::NOT_NEGOTIATED,
        };
        ConnectionData { rtr, ird: reply_ird, ord: reply_ord }
    });
    let crc = config.crc.with(header.crc);
    // RFC 5044 §7.1.1: M "declares an endpoint's REQUIRED Marker usage", each for what it receives.
    let (markers_in, markers_out) = (config.markers, header.markers);
    let rtr_in = reply.and_then(|reply| reply.rtr);
    let revision = header.revision;
    (Terms { revision, crc, markers_in, markers_out, ird, ord, rtr: None, rtr_in, peer }, reply)
}

/// Returns the RTR messages that a responder accepts: a Read only if its queue has a slot. RFC 6581 §9.2: "The
/// responder MUST support at least one RTR indication option".
const fn takes_rtr(config: &NegotiationConfig) -> RtrOptions {
    let RtrOptions { send, write, read } = config.rtr;
    let read = read && config.ird_max > 0;
    RtrOptions { send, write: write || !(send || read), read }
}

/// RFC 6581 §9.2: "If the responder does not support any of the initiator-specified RTR indication options,
/// then the responder MUST set at least one RTR indication type option it supports."
const fn answer_rtr(ours: RtrOptions, theirs: RtrOptions) -> RtrOptions {
    let both = ours.and(theirs);
    if both.is_empty() { ours } else { both }
}

/// Returns the terms that result from an accepting Reply to a Request.
///
/// # Errors
/// `InsufficientIrd` or `NoMatchingRtr`, with the terms under which a Terminate is sent.
pub(super) fn conclude(
    config: &NegotiationConfig,
    request: &Asked,
    header: &FrameHeader,
    peer: Option<ConnectionData>,
) -> (Terms, Result<(), Refusal>) {
    let crc = config.crc.with(header.crc);
    let (ird, ord) = (request.ird, request.ord);
    let (markers_in, markers_out) = (config.markers, header.markers);
    let mut terms = Terms {
        revision: header.revision,
        crc,
        markers_in,
        markers_out,
        ird,
        ord,
        rtr: None,
        rtr_in: None,
        peer,
    };
    let Some(reply) = peer else {
        return (terms, Ok(()));
    };
    // RFC 6581 §9.1: "the initiator MUST set its IRD at least to the responder ORD and its ORD at most to the
    // responder IRD"; a value of 0x3FFF leaves the local one unchanged.
    if let Some(theirs) = reply.ord.requests() {
        if theirs > config.ird_max {
            return (terms, Err(Refusal::InsufficientIrd));
        }
        terms.ird = ird.max(theirs);
    }
    if let Some(theirs) = reply.ird.requests() {
        terms.ord = ord.min(theirs);
    }
    if let (Some(ours), Some(theirs)) = (request.rtr, reply.rtr) {
        terms.rtr = choose_rtr(ours.and(theirs), terms.ord);
        if terms.rtr.is_none() {
            return (terms, Err(Refusal::NoMatchingRtr));
        }
    }
    (terms, Ok(()))
}

/// Chooses the message to send. A Write needs nothing of the peer, a Read needs a slot in its queue. A Send consumes,
/// with some peers, a buffer that their program posted for another message.
const fn choose_rtr(options: RtrOptions, ord: u16) -> Option<Rtr> {
    if options.write {
        Some(Rtr::Write)
    } else if options.read && ord > 0 {
        Some(Rtr::Read)
    } else if options.send {
        Some(Rtr::Send)
    } else {
        None
    }
}

/// Parameters of an initiator's Request, kept until the Reply arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) enhanced: bool,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) rtr: Option<RtrOptions>,
}

impl Asked {
    pub(super) fn new(config: &NegotiationConfig, request: &ConnectRequest<'_>) -> Self {
        let enhanced = request.revision >= 2;
        Self {
            enhanced,
            ird: request.ird.min(config.ird_max),
            ord: request.ord.min(config.ord_max),
            rtr: request.rtr.filter(|_| enhanced),
        }
    }

    pub(super) fn connection_data(&self) -> Option<ConnectionData> {
        let (ird, ord) = (ReadDepth::new(self.ird), ReadDepth::new(self.ord));
        self.enhanced.then_some(ConnectionData { rtr: self.rtr, ird, ord })
    }
}
