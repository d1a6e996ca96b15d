//! Send run: the rest of a message in one piece of memory, sent in as many FPDUs as the transport takes now.
//!
//! The access check and the header are the same for all segments of a run, except for offset and L bit. They are done
//! once per run. The right cannot be revoked during the run: revocation, invalidation and binding need the table that
//! the run has borrowed. The next run checks again.

use super::segment::{SegmentHeader, SendOutcome};
use crate::ddp::{Segment, cut};
use crate::memory::{Fetch, Memory};
use crate::mpa::framer::MULPDU_MAX;
use crate::qp::QueuePair;
use crate::wire::TaggedOffset;
use crate::wire::ddp::TaggedHeader;
use crate::{Env, Sink};

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// FPDUs and bytes sent, or the reason why none was sent.
    pub(super) step: SendOutcome,
    /// Payload bytes of the message that were sent.
    pub(super) payload: usize,
    /// True if the message is completely sent.
    pub(super) ended: bool,
}

impl Run {
    /// Returns the result of one attempt, with `payload` bytes of the message.
    pub(super) const fn of(step: SendOutcome, payload: usize, ended: bool) -> Self {
        Self { step, payload, ended }
    }
}

impl QueuePair {
    /// Sends the bytes of `fetch`, the rest of a message. `front` is the header of the next segment.
    #[inline]
    pub(super) fn push_run<M: Memory>(
        &mut self,
        front: SegmentHeader,
        fetch: Fetch,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        if sink.shares_memory()
            && let SegmentHeader::Tagged(header) = front
        {
            return self.push_shared(header, fetch, false, sink);
        }
        let mulpdu = self.framer.ulpdu_max(sink.fpdu_max());
        if let Some(Segment { len, last: true }) = cut(mulpdu, front.len(), fetch.len()) {
            let step = self.push(front, len, env, sink, |memory, out| memory.fetch(fetch, out));
            return Run::of(step, len, true);
        }
        self.push_several(front, fetch, false, env, sink)
    }

    /// Sends the bytes of `fetch`, as many as fill whole segments; more bytes of the message follow.
    pub(super) fn push_part<M: Memory>(
        &mut self,
        front: SegmentHeader,
        fetch: Fetch,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        match front {
            SegmentHeader::Tagged(header) if sink.shares_memory() => {
                self.push_shared(header, fetch, true, sink)
            }
            _ => self.push_several(front, fetch, true, env, sink),
        }
    }

    /// Sends the tokens of a rest to a receiver with the same memory. `more`: the message does not end with it.
    fn push_shared(
        &mut self,
        mut header: TaggedHeader,
        mut fetch: Fetch,
        more: bool,
        sink: &mut impl Sink,
    ) -> Run {
        let (mut segments, mut payload) = (0_usize, 0_usize);
        while let Some(Segment { len, last }) = cut(MULPDU_MAX, TaggedHeader::LEN, fetch.len()) {
            let (here, behind) = fetch.split_at(len);
            header.last = last && !more;
            if !sink.push_fetch(&header, here) {
                break;
            }
            segments = segments.saturating_add(1);
            payload = payload.saturating_add(len);
            if last {
                return Run::of(SendOutcome::Sent { fpdus: segments, bytes: payload }, payload, !more);
            }
            header.offset = TaggedOffset(header.offset.0.wrapping_add(len as u64));
            fetch = behind;
        }
        let sent = SendOutcome::Sent { fpdus: segments, bytes: payload };
        Run::of(if segments > 0 { sent } else { SendOutcome::NoRoom }, payload, false)
    }

    /// Sends a rest that is longer than one segment. `more`: the message does not end with it, and the bytes that do
    /// not fill a segment are not sent.
    fn push_several<M: Memory>(
        &mut self,
        mut front: SegmentHeader,
        mut fetch: Fetch,
        more: bool,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let (mut fpdus, mut bytes, mut payload, mut ended) = (0_usize, 0_usize, 0_usize, false);
        let mut stopped = SendOutcome::NoRoom;
        while let Some(segment) = cut(self.framer.ulpdu_max(sink.fpdu_rest()), front.len(), fetch.len()) {
            if segment.last && more {
                break;
            }
            let (here, behind) = fetch.split_at(segment.len);
            let front_here = front.with_last(segment.last);
            let step = self.push(front_here, segment.len, env, sink, |memory, out| memory.fetch(here, out));
            let SendOutcome::Sent { bytes: fpdu, .. } = step else {
                stopped = step;
                break;
            };
            fpdus = fpdus.saturating_add(1);
            bytes = bytes.saturating_add(fpdu);
            payload = payload.saturating_add(segment.len);
            if segment.last {
                ended = true;
                break;
            }
            (front, fetch) = (front.after(segment.len), behind);
        }
        let taken = fpdus > 0 && stopped == SendOutcome::NoRoom;
        Run::of(if taken { SendOutcome::Sent { fpdus, bytes } } else { stopped }, payload, ended)
    }
}
