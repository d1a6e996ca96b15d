//! Startup of a stream, from its first byte to full operation.

use super::{Endpoint, Progress, Sink, StreamConfig};
use crate::mpa::{self, Deframer, DeframerConfig, Framer, LocalError, Refusal, Rtr, Terms};
use crate::qp::{CloseHow, Event, WorkOp};
use crate::stats::{RdmaStats, count};
use crate::terminate::{ErrorCode, Fault, StreamError};
use crate::wire::{Stag, TaggedOffset};

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Responder: accepts the connection of [`Event::ConnectRequest`], with this private data.
    ///
    /// # Errors
    /// No request is waiting, or the private data is too long.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), LocalError> {
        self.negotiation.as_mut().ok_or(LocalError::NoRequest)?.accept(private_data)
    }

    /// Responder: rejects the connection of [`Event::ConnectRequest`], with this private data.
    ///
    /// # Errors
    /// As for [`Self::accept`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), LocalError> {
        self.negotiation.as_mut().ok_or(LocalError::NoRequest)?.reject(private_data)
    }

    /// Hands the Request or Reply to the transport.
    pub(super) fn send_negotiation(
        &mut self,
        stats: &mut RdmaStats,
        sink: &mut impl Sink,
        progress: &mut Progress,
    ) {
        let Some(negotiation) = &mut self.negotiation else { return };
        let unsent = negotiation.unsent();
        let len = unsent.len().min(sink.room()).min(sink.fpdu_max());
        if len == 0 {
            return;
        }
        let taken = sink.push(len, &mut |out| {
            for (to, from) in out.iter_mut().zip(unsent) {
                *to = *from;
            }
        });
        if taken {
            progress.count(1, len);
            negotiation.sent(len, &mut stats.mpa);
            self.negotiated(stats);
        }
    }

    /// Handles the events of the negotiation.
    pub(super) fn negotiated(&mut self, stats: &mut RdmaStats) {
        let Some(negotiation) = &mut self.negotiation else { return };
        let Some(event) = negotiation.poll_event() else { return };
        match event {
            mpa::Event::Request(offer) => {
                let peer = offer.terms.peer;
                self.qp.events.push_back(Event::ConnectRequest {
                    private_data: negotiation.private_data().into(),
                    ird: peer.and_then(|peer| peer.ird.requests()),
                    ord: peer.and_then(|peer| peer.ord.requests()),
                    rev: offer.terms.revision,
                    crc: offer.peer_crc,
                });
            }
            mpa::Event::Established(terms) => {
                let private_data: Box<[u8]> =
                    if self.initiator { negotiation.private_data().into() } else { Box::default() };
                self.establish(terms, private_data, stats);
            }
            mpa::Event::Rejected(_) => {
                let private_data = negotiation.private_data().into();
                self.qp.events.push_back(Event::Rejected { private_data });
                self.end(CloseHow::Fin);
            }
            // RFC 5044 §7.1.2: "the implementation MUST exit MPA, leaving the TCP connection open". The peer closes
            // it: Linux soft-iWARP misses a Reply that a FIN follows at once.
            mpa::Event::RejectSent(_) => {
                self.negotiation = None;
                self.rejected = true;
            }
            mpa::Event::Failed(refusal) => {
                let terms = negotiation.terms();
                self.refused(refusal, terms, stats);
            }
        }
    }

    pub(super) fn establish(&mut self, terms: Terms, private_data: Box<[u8]>, stats: &mut RdmaStats) {
        let Terms { revision, crc, markers_in, markers_out, ird, ord, rtr, rtr_in, peer: _ } = terms;
        self.negotiation = None;
        self.terms = Some(terms);
        let StreamConfig { chunks_max, spill_max, out_of_order, placed_runs_max, .. } = self.config;
        let deframer = DeframerConfig {
            crc,
            markers: markers_in,
            chunks_max: chunks_max.into(),
            spill_max,
            out_of_order,
            runs_max: placed_runs_max.into(),
        };
        self.deframer = Some(Deframer::new(self.position, deframer));
        let framer = Framer::new(crc).with_markers(markers_out);
        self.qp.establish(framer, ird.into(), ord.into(), self.initiator);
        self.qp.rtr_due = rtr_in;
        count(&mut stats.rdmap.established, 1);
        self.qp.events.push_back(Event::Established { private_data, rev: revision, crc, ird, ord });
        // RFC 6581 §9.2: "the initiator MUST generate one of the negotiated RTR indications".
        count(&mut stats.rdmap.out_rtrs, usize::from(rtr.is_some()));
        let (stag, to) = (Stag(1), TaggedOffset(0));
        match rtr {
            None => {}
            Some(Rtr::Write) => self.qp.sq.post_internal(WorkOp::Write { stag, to }),
            Some(Rtr::Read) => self.qp.sq.post_internal(WorkOp::Read { stag, to }),
            Some(Rtr::Send) => self.qp.sq.post_internal(WorkOp::Send { solicited: false, invalidate: None }),
        }
    }

    /// Ends a stream whose negotiation failed.
    fn refused(&mut self, refusal: Refusal, terms: Option<Terms>, stats: &mut RdmaStats) {
        let error = match refusal {
            Refusal::InsufficientIrd => Some(StreamError::InsufficientIrd),
            Refusal::NoMatchingRtr => Some(StreamError::NoMatchingRtr),
            _ => None,
        };
        if let (Some(error), Some(terms)) = (error, terms) {
            // The responder is in full operation already: a Terminate reports the failure to it.
            self.negotiation = None;
            self.terms = Some(terms);
            self.qp.framer = Framer::new(terms.crc).with_markers(terms.markers_out);
            self.qp.fail(&Fault::bare(error), stats);
            return;
        }
        self.qp.fail_without_terminate(match refusal {
            Refusal::Timeout => ErrorCode::NO_ANSWER,
            Refusal::PeerClosed => ErrorCode::TCP_LOST,
            _ => ErrorCode::INVALID_FRAME,
        });
        self.end(match refusal {
            // A peer that does not speak MPA, or sends nothing, is reset at once.
            Refusal::Key | Refusal::Role | Refusal::Early | Refusal::Timeout => CloseHow::Reset,
            _ => CloseHow::Fin,
        });
    }
}
