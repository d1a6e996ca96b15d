//! State of a stream between two queue pairs that are connected by number, beyond that of other streams: what its ends
//! have agreed on, and how much of either side's messages is processed.
//!
//! A Write or a Send of such a stream completes when the peer has processed it, which a Progress message reports. Each
//! message counts one: Write, Read Request, Send, Immediate Data, Atomic Request; so a Write with Immediate Data counts
//! two. The ready-to-receive message counts, too.

use core::time::Duration;

use super::{Datagrams, PostError, QueuePair, StreamState, WcStatus, WorkOp};
use crate::ddp::UntaggedQueue;
use crate::stats::{RdmaStats, count};
use crate::terminate::StreamError;
use crate::wire::Msn;
use crate::wire::rdmap::PROGRESS_WAITS;

/// Extensions of the protocol that both ends offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    /// Sends may carry Immediate Data.
    pub(crate) send_immediate: bool,
    /// Immediate Data behind a Write tells the Write's length.
    pub(crate) immediate_length: bool,
    /// Each end tells what it has processed.
    pub(crate) progress: bool,
}

/// State of one end.
#[derive(Debug)]
pub(crate) struct Numbered {
    pub(crate) extensions: Extensions,
    /// Messages of the peer that were processed, modulo 2^32.
    processed: u32,
    /// Content of the last Progress: processed messages, and true if one waits for a buffer.
    reported: (u32, bool),
    /// Next Progress in either direction.
    pub(crate) in_progress: UntaggedQueue,
    pub(crate) out_progress: Msn,
    /// Longest time that a message of this side waits for a buffer; `None`: for ever.
    pub(crate) rnr_limit: Option<Duration>,
    /// End of that time, while a message waits.
    rnr_until: Option<Duration>,
    /// True while a message of this side waits.
    peer_waits: bool,
    /// Set for ends that send and receive datagrams, and nothing else.
    pub(super) datagrams: Option<Datagrams>,
}

impl Numbered {
    pub(crate) fn new(extensions: Extensions, rnr_limit: Option<Duration>) -> Self {
        Self {
            extensions,
            processed: 0,
            reported: (0, false),
            in_progress: UntaggedQueue::default(),
            out_progress: Msn::FIRST,
            rnr_limit,
            rnr_until: None,
            peer_waits: false,
            datagrams: None,
        }
    }

    /// Returns the state of an end of datagrams.
    pub(crate) fn of_datagrams(datagrams: Datagrams) -> Self {
        Self { datagrams: Some(datagrams), ..Self::new(Extensions::default(), None) }
    }

    /// Returns the reason why such an end does not have an operation.
    const fn refuses(&self, op: &WorkOp) -> Option<PostError> {
        match (op, self.datagrams.is_some()) {
            (WorkOp::Datagram { .. }, is_end) => {
                if is_end {
                    None
                } else {
                    Some(PostError::Operation)
                }
            }
            (_, true) => Some(PostError::Operation),
            (WorkOp::SendImmediate { .. }, _) if !self.extensions.send_immediate => {
                Some(PostError::NotNegotiated)
            }
            _ => None,
        }
    }
}

impl QueuePair {
    /// Begins to use what the ends have agreed on, before the first message of either.
    pub(crate) fn agree(&mut self, numbered: Numbered) {
        self.sq.confirms = numbered.extensions.progress;
        self.numbered = Some(Box::new(numbered));
    }

    /// Returns the extensions that both ends offer.
    #[inline]
    pub(crate) fn extensions(&self) -> Extensions {
        self.numbered.as_deref().map_or(Extensions::default(), |numbered| numbered.extensions)
    }

    /// Returns the reason why the stream does not have an operation, if so.
    #[inline]
    pub(crate) fn refuses(&self, op: &WorkOp) -> Option<PostError> {
        match (self.numbered.as_deref(), op) {
            (Some(numbered), _) => numbered.refuses(op),
            (None, WorkOp::SendImmediate { .. }) => Some(PostError::NotNegotiated),
            (None, WorkOp::Datagram { .. }) => Some(PostError::Operation),
            (None, _) => None,
        }
    }

    /// Counts messages of the peer that were processed.
    #[inline]
    pub(crate) fn processed(&mut self, messages: u32) {
        if let Some(numbered) = self.numbered.as_deref_mut() {
            numbered.processed = numbered.processed.wrapping_add(messages);
        }
    }

    /// Returns the number of messages to report to the peer, and flags; `None` while it knows them. Messages that wait
    /// for a copy are not reported.
    #[inline]
    pub(crate) fn progress_due(&self) -> Option<(u32, u32)> {
        let numbered = self.numbered.as_deref()?;
        let now = (numbered.processed, self.waits_for_buffer);
        let is_due = numbered.extensions.progress && now != numbered.reported && self.may_send;
        let flags = if self.waits_for_buffer { PROGRESS_WAITS } else { 0 };
        (is_due && self.gate().is_none()).then_some((numbered.processed, flags))
    }

    /// Notes that a Progress message was sent.
    pub(crate) fn progress_sent(&mut self, stats: &mut RdmaStats) {
        let waits = self.waits_for_buffer;
        if let Some(numbered) = self.numbered.as_deref_mut() {
            numbered.reported = (numbered.processed, waits);
            numbered.out_progress = numbered.out_progress.next();
            count(&mut stats.rdmap.out_progress, 1);
        }
    }

    /// Takes a Progress message: the requests whose messages it counts are done.
    pub(crate) fn take_progress(&mut self, messages: u32, flags: u32) -> Result<(), StreamError> {
        let numbered = self.numbered.as_deref_mut().ok_or(StreamError::UnexpectedOpcode)?;
        numbered.in_progress.advance(0, true);
        numbered.peer_waits = flags & PROGRESS_WAITS != 0;
        if !numbered.peer_waits {
            numbered.rnr_until = None;
        }
        if !self.sq.confirm(messages) {
            return Err(StreamError::UnexpectedOpcode);
        }
        self.complete();
        Ok(())
    }

    /// Starts the time limit of a message that waits for the peer's buffer, if none runs.
    pub(crate) fn watch_buffers(&mut self, now: Duration) {
        if let Some(numbered) = self.numbered.as_deref_mut()
            && numbered.peer_waits
            && numbered.rnr_until.is_none()
        {
            numbered.rnr_until = numbered.rnr_limit.map(|limit| now.saturating_add(limit));
        }
    }

    /// Returns the end of that time.
    pub(crate) fn buffers_until(&self) -> Option<Duration> {
        self.numbered.as_deref()?.rnr_until
    }

    /// Flushes all work; the oldest send request that is not finished has this status.
    #[cold]
    pub(crate) fn give_up(&mut self, status: WcStatus) {
        self.sq.set_status_of_oldest(status);
        self.keeps_work = false;
        self.flush();
    }

    /// Returns true if a message may have been processed by either end: the work cannot begin anew. The first message
    /// of the initiator carries nothing.
    pub(crate) const fn has_begun(&self) -> bool {
        self.peer_sent || self.sq.messages_sent() > 1
    }

    /// Lets work begin anew on another stream, of which nothing was [processed](Self::has_begun).
    pub(crate) fn rewind(&mut self) {
        self.sq.rewind();
        (self.peer_sent, self.sent_any, self.may_send, self.peer_ended) = (false, false, false, false);
        (self.in_sends, self.out_sends, self.out_reads) = (UntaggedQueue::default(), Msn::FIRST, Msn::FIRST);
    }

    /// Takes the work of a stream that has ended, for the queue pair: what was not finished stays as it is, and so do
    /// the receive buffers.
    pub(crate) fn take_work(&mut self) -> Self {
        let empty = Self { state: StreamState::Closed, ..Self::new(self.origin, super::Depths::default()) };
        let mut work = core::mem::replace(self, empty);
        work.irq.clear();
        work.drop_waits(WcStatus::WrFlushError);
        work.state = StreamState::Idle;
        (work.current, work.terminate, work.waits_for_buffer) = (None, None, false);
        work
    }
}
