//! A run: what is left of a message that lies in one piece of memory, in as many FPDUs as the transport takes now.
//!
//! What is the same of all of them is looked at once: the right to fetch the bytes, all that are left, and the header, of
//! which only offset and L bit change from one to the next. Nothing can take that right back before the run is over:
//! whatever revokes, invalidates or binds anew needs the table that the run has borrowed. The next run asks again.

use super::segment::{SegmentHeader, SendOutcome};
use crate::ddp::{Segment, cut};
use crate::memory::{Fetch, Memory};
use crate::qp::QueuePair;
use crate::{Env, Sink};

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// What went out; what kept it back if that is nothing.
    pub(super) step: SendOutcome,
    /// Bytes of the message that went out.
    pub(super) payload: usize,
    /// Whether the message ends with them.
    pub(super) ended: bool,
}

impl Run {
    /// One attempt, with so many bytes of the message.
    pub(super) const fn of(step: SendOutcome, payload: usize, ended: bool) -> Self {
        Self { step, payload, ended }
    }
}

impl QueuePair {
    /// Sends the bytes of `fetch`, the rest of a message; `front` is the header of the segment that they are if one takes
    /// them all.
    #[inline]
    pub(super) fn push_run<M: Memory>(
        &mut self,
        front: SegmentHeader,
        fetch: Fetch,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let mulpdu = self.framer.ulpdu_max(sink.fpdu_max());
        if let Some(Segment { len, last: true }) = cut(mulpdu, front.len(), fetch.len()) {
            let step = self.push(front, len, env, sink, |memory, out| memory.fetch(fetch, out));
            return Run::of(step, len, true);
        }
        self.push_several(front, fetch, env, sink)
    }

    /// The same of more bytes than one segment takes.
    fn push_several<M: Memory>(
        &mut self,
        mut front: SegmentHeader,
        mut fetch: Fetch,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let (mut fpdus, mut bytes, mut payload, mut ended) = (0_usize, 0_usize, 0_usize, false);
        let mut stopped = SendOutcome::NoRoom;
        while let Some(segment) = cut(self.framer.ulpdu_max(sink.fpdu_max()), front.len(), fetch.len()) {
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
