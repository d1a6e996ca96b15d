//! Events of an endpoint that concern its connection: they become events of the id, and of the queue pair.

use super::connection::{Details, Id, Stage, Termination, TransportRequest};
use super::events::CmEventKind;
use super::ids::{CmId, QpNum};
use super::{AsyncEvent, Device};
use crate::qp::{CloseHow, Event};
use crate::terminate::{ErrorCode, StreamError};

impl<C: AsRef<[u8]>> Device<C> {
    /// Handles an event of a connection that a client has.
    pub(super) fn connection_event(&mut self, id: CmId, event: Event) {
        match event {
            Event::ConnectRequest { private_data, ird, ord, .. } => {
                let Some(listener) = self.enter_backlog(id) else { return self.transport_lost(id) };
                let Some(request) = self.ids.get_mut(id.0) else { return };
                request.destroyed = false;
                let Details { local: Some(local), peer: Some(peer), .. } = *request.details else {
                    return self.transport_lost(id);
                };
                let kind = CmEventKind::ConnectRequest {
                    listener,
                    local,
                    peer,
                    private_data,
                    responder_resources: ird,
                    initiator_depth: ord,
                };
                self.push_cm_event(id, kind);
            }
            Event::Established { private_data, rev: revision, crc, ird, ord } => {
                self.established(id);
                let kind = CmEventKind::Established {
                    private_data,
                    responder_resources: ird,
                    initiator_depth: ord,
                    revision,
                    crc,
                };
                self.push_cm_event(id, kind);
            }
            Event::Rejected { private_data } => {
                if let Some(entry) = self.ids.get_mut(id.0) {
                    entry.stage = Stage::Ended;
                }
                self.push_cm_event(id, CmEventKind::Rejected { private_data });
            }
            Event::TerminateSent { code, error } => {
                self.note_termination(id, Termination { sent: true, code });
                if let Some(number) = self.qp_of(id) {
                    self.raise(terminated_for(number, error, code));
                }
            }
            Event::TerminateReceived { code, .. } => {
                self.note_termination(id, Termination { sent: false, code });
                if let Some(number) = self.qp_of(id) {
                    self.raise(AsyncEvent::QpTerminated(number, code));
                }
            }
            // The end that follows raises the event of an established connection.
            Event::Failed { code } => {
                let is_connecting = |entry: &&mut Id<C>| entry.stage == Stage::Connecting;
                if let Some(entry) = self.ids.get_mut(id.0).filter(is_connecting) {
                    entry.stage = Stage::Ended;
                    self.push_cm_event(id, CmEventKind::ConnectError { code });
                }
            }
            Event::Close { how } => self.end_stream(id, how),
            Event::Completion { .. }
            | Event::Received { .. }
            | Event::Immediate { .. }
            | Event::Datagram { .. }
            | Event::Datagrams => {}
        }
    }

    /// Has the transport end a stream, and the connection with it.
    pub(super) fn end_stream(&mut self, id: CmId, how: CloseHow) {
        let Some(entry) = self.ids.get(id.0) else { return };
        let Details { stream, termination, .. } = *entry.details;
        let code = termination.map_or(ErrorCode::TCP_LOST, |told| told.code);
        let is_established = entry.stage == Stage::Established;
        let kind =
            if is_established { CmEventKind::Disconnected } else { CmEventKind::ConnectError { code } };
        self.request(TransportRequest::Close { id, stream, how });
        self.ended(id, kind);
    }

    /// Remembers the Terminate that ended a stream, for [`Self::termination`].
    pub(super) fn note_termination(&mut self, id: CmId, termination: Termination) {
        if let Some(entry) = self.ids.get_mut(id.0) {
            entry.details.termination = Some(termination);
        }
    }
}

/// Returns the event for a queue pair whose stream this side ended with a Terminate.
const fn terminated_for(number: QpNum, error: StreamError, code: ErrorCode) -> AsyncEvent {
    match error {
        StreamError::Place
        | StreamError::Fetch
        | StreamError::Local
        | StreamError::Global
        | StreamError::SetupFailed => AsyncEvent::QpFatal(number, code),
        StreamError::Tagged(_)
        | StreamError::Read(_)
        | StreamError::Atomic(_)
        | StreamError::Invalidate(_) => AsyncEvent::QpAccessError(number, code),
        _ => AsyncEvent::QpRequestError(number, code),
    }
}
