//! Looped connection: both ends are endpoints of one worker. Once the first messages have passed through TCP, the
//! segments of one end go to the other directly. Their bytes never leave memory, so they carry no CRC and no markers.

use core::time::Duration;

use super::{Endpoint, EndpointConfig, Env};
use crate::memory::{Fetch, Memory, PdId, StreamId};
use crate::mpa::{Fpdu, Framer};
use crate::qp::{QueuePair, StreamState};
use crate::wire::ddp::TaggedHeader;

/// Segment of the other end of a looped connection.
#[derive(Debug)]
pub(crate) enum LoopedSegment<'a> {
    /// ULPDU in bytes: DDP header and payload.
    Ulpdu(&'a [u8]),
    /// Header of a tagged segment, and its payload in this memory.
    Fetch(TaggedHeader, Fetch),
}

impl LoopedSegment<'_> {
    /// Returns the same segment once more.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Ulpdu(ulpdu) => Self::Ulpdu(ulpdu),
            Self::Fetch(header, payload) => Self::Fetch(*header, payload.again()),
        }
    }

    /// Copies the segment. If its memory has gone, the copy is no segment, and ends the stream.
    #[cold]
    pub(crate) fn into_bytes<M: Memory>(self, memory: &M) -> Box<[u8]> {
        match self {
            Self::Ulpdu(ulpdu) => ulpdu.into(),
            Self::Fetch(header, payload) => {
                let mut bytes = vec![0; TaggedHeader::LEN.saturating_add(payload.len())];
                let fetched = bytes.split_first_chunk_mut().is_some_and(|(head, rest)| {
                    header.emit(head);
                    memory.fetch(payload, rest)
                });
                if fetched { bytes.into() } else { Box::default() }
            }
        }
    }
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Creates an endpoint in full operation that is connected with itself, with the queues of a queue pair and this
    /// many reads at a time. It has no transport: what it sends goes to [`Self::receive_looped`].
    pub(crate) fn to_itself(
        config: EndpointConfig,
        stream: StreamId,
        (queues, pd): (QueuePair, PdId),
        reads: usize,
    ) -> Self {
        let mut endpoint = Self::new(config, stream, None, true);
        endpoint.adopt(queues, Some(pd));
        endpoint.qp.establish(Framer::new(false), reads, reads, true);
        endpoint.qp.peer_sent = true;
        endpoint
    }

    /// Returns true if this end may send segments to the other directly: it is in full operation.
    pub(crate) fn may_loop_out(&self) -> bool {
        self.qp.state == StreamState::ReadyToSend && self.qp.may_send
    }

    /// Returns true if this end may receive segments of the other directly: it is in full operation, has received the
    /// peer's first message, and has no incomplete FPDU.
    pub(crate) fn may_loop_in(&self) -> bool {
        let is_between = self.deframer.as_ref().is_some_and(|deframer| deframer.pending() == 0);
        let is_ready = self.qp.state == StreamState::ReadyToSend && self.qp.peer_sent;
        is_ready && is_between && !self.qp.is_stalled()
    }

    /// Sends without CRC and markers from here on: no FPDU of this end goes through TCP any more.
    pub(crate) fn loop_out(&mut self) {
        self.qp.framer = Framer::new(false);
    }

    /// Processes a segment of the other end. Returns false if it waits for a deferred copy, and is to be passed again.
    #[must_use]
    pub(crate) fn receive_looped<M: Memory>(
        &mut self,
        now: Duration,
        segment: LoopedSegment<'_>,
        env: &mut Env<'_, M>,
    ) -> bool {
        let taken = match segment {
            LoopedSegment::Ulpdu(ulpdu) => self.qp.receive(&Fpdu::<C>::whole(0, ulpdu), env),
            LoopedSegment::Fetch(header, payload) => self.qp.receive_fetch(&header, payload, env),
        };
        if self.qp.state != StreamState::ReadyToSend {
            self.deframer = None;
        }
        self.apply_state(now);
        taken
    }
}
