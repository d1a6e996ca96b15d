//! Looped connection: both ends are endpoints of one worker. Once the first messages have passed through TCP, the
//! segments of one end go to the other directly. Their bytes never leave memory, so they carry no CRC and no markers.

use core::time::Duration;

use super::{Endpoint, Env};
use crate::memory::{Fetch, Memory};
use crate::mpa::{Fpdu, Framer};
use crate::qp::StreamState;
use crate::wire::ddp::TaggedHeader;

/// Segment of the other end of a looped connection.
#[derive(Debug)]
pub(crate) enum LoopedSegment<'a> {
    /// ULPDU in bytes: DDP header and payload.
    Ulpdu(&'a [u8]),
    /// Header of a tagged segment, and its payload in this memory.
    Fetch(TaggedHeader, Fetch),
}

impl<C: AsRef<[u8]>> Endpoint<C> {
    /// Returns true if this end may send segments to the other directly: it is in full operation.
    pub(crate) fn may_loop_out(&self) -> bool {
        self.qp.state == StreamState::ReadyToSend && self.qp.may_send
    }

    /// Returns true if this end may receive segments of the other directly: it is in full operation, has received the
    /// peer's first message, and has no incomplete FPDU.
    pub(crate) fn may_loop_in(&self) -> bool {
        let is_between = self.deframer.as_ref().is_some_and(|deframer| deframer.pending() == 0);
        self.qp.state == StreamState::ReadyToSend && self.qp.peer_sent && is_between
    }

    /// Sends without CRC and markers from here on: no FPDU of this end goes through TCP any more.
    pub(crate) fn loop_out(&mut self) {
        self.qp.framer = Framer::new(false);
    }

    /// Processes a segment of the other end.
    pub(crate) fn receive_looped<M: Memory>(
        &mut self,
        now: Duration,
        segment: LoopedSegment<'_>,
        env: &mut Env<'_, M>,
    ) {
        match segment {
            LoopedSegment::Ulpdu(ulpdu) => self.qp.receive(&Fpdu::<C>::whole(0, ulpdu), env),
            LoopedSegment::Fetch(header, payload) => self.qp.receive_fetch(&header, payload, env),
        }
        if self.qp.state != StreamState::ReadyToSend {
            self.deframer = None;
        }
        self.apply_state(now);
    }
}
