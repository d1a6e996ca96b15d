//! Messages out of memory that is not accessed at once: their bytes are read ahead, a part at a time, and sent when
//! they are there.

use super::run::Run;
use super::segment::{SegmentHeader, SendOutcome};
use crate::ddp::cut;
use crate::memory::{Fetch, Memory, Reach};
use crate::qp::{CloseHow, QueuePair, ReadAhead, Source, StreamState};
use crate::{Env, Sink};

/// Rest of a message, of which some bytes are not accessed at once.
pub(super) struct Rest<'t> {
    /// The next bytes of the message.
    pub(super) tokens: &'t mut dyn Iterator<Item = Fetch>,
    /// Bytes that are left to send.
    pub(super) left: usize,
    /// Source of the message.
    pub(super) source: Source,
}

impl QueuePair {
    /// Sends the bytes of `fetch`, the rest of a message. `front` is the header of the next segment. `None`: the memory
    /// does not have the bytes.
    #[inline]
    pub(super) fn push_rest<M: Memory>(
        &mut self,
        front: SegmentHeader,
        fetch: Fetch,
        source: Source,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Option<Run> {
        match env.memory.reach(self.origin.stream, fetch.region(), fetch.offset(), fetch.len()) {
            Reach::Direct => Some(self.push_run(front, fetch, env, sink)),
            Reach::Gone => None,
            Reach::Deferred | Reach::Busy(_) => Some(self.push_deferred(front, fetch, source, env, sink)),
        }
    }

    /// Sends the first bytes at once if they fill a segment; otherwise reads ahead.
    #[cold]
    fn push_deferred<M: Memory>(
        &mut self,
        front: SegmentHeader,
        fetch: Fetch,
        source: Source,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let left = fetch.len();
        if self.waits().ahead.is_none() {
            let direct = env.memory.direct_len(fetch.region(), fetch.offset(), left);
            let segment = self.framer.ulpdu_max(sink.fpdu_max()).saturating_sub(front.len());
            if direct > segment {
                let (here, _) = fetch.split_at(direct);
                return self.push_part(front, here, env, sink);
            }
        }
        let mut tokens = core::iter::once(fetch);
        self.push_ahead(front, Rest { tokens: &mut tokens, left, source }, env, sink)
    }

    /// Sends the rest of a message that is read ahead, or begins to read.
    #[cold]
    pub(super) fn push_ahead<M: Memory>(
        &mut self,
        front: SegmentHeader,
        rest: Rest<'_>,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let Rest { tokens, left, source } = rest;
        let idle = Run::of(SendOutcome::Idle, 0, false);
        match self.waits().ahead.take() {
            // Another stream may have taken the place meanwhile: the bytes are read again.
            Some(ahead)
                if (ahead.source, ahead.left) == (source, left)
                    && env.memory.fetch_ahead(&ahead.bytes, ahead.sent, &mut []) =>
            {
                return self.push_read(front, ahead, env, sink);
            }
            Some(of_another) => env.memory.release(of_another.bytes),
            None => {}
        }
        if sink.room() == 0 {
            return Run::of(SendOutcome::NoRoom, 0, false);
        }
        match env.memory.read_ahead(self.origin.stream, tokens) {
            Ok(bytes) => {
                self.hold(bytes.ticket);
                self.waits().ahead = Some(ReadAhead { bytes, source, sent: 0, left });
                self.current = Some(source);
            }
            Err(Reach::Busy(ticket)) => self.hold(ticket),
            Err(_) => self.close(CloseHow::Reset),
        }
        idle
    }

    /// Sends bytes that were read ahead, in whole segments. The bytes that are left for the next reading are few.
    fn push_read<M: Memory>(
        &mut self,
        mut front: SegmentHeader,
        mut ahead: ReadAhead,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let (mut fpdus, mut bytes, mut payload, mut ended) = (0_usize, 0_usize, 0_usize, false);
        let mut stopped = SendOutcome::NoRoom;
        let mut is_used = false;
        while let Some(segment) = cut(self.framer.ulpdu_max(sink.fpdu_max()), front.len(), ahead.left) {
            let end = ahead.sent.saturating_add(segment.len);
            if end > ahead.bytes.len {
                (is_used, stopped) = (true, SendOutcome::Again);
                break;
            }
            let (skip, from) = (ahead.sent, &ahead.bytes);
            let front_here = front.with_last(segment.last);
            let step = self
                .push(front_here, segment.len, env, sink, |memory, out| memory.fetch_ahead(from, skip, out));
            let SendOutcome::Sent { bytes: fpdu, .. } = step else {
                stopped = step;
                break;
            };
            fpdus = fpdus.saturating_add(1);
            bytes = bytes.saturating_add(fpdu);
            payload = payload.saturating_add(segment.len);
            (ahead.sent, ahead.left) = (end, ahead.left.saturating_sub(segment.len));
            if segment.last {
                (ended, is_used) = (true, true);
                break;
            }
            front = front.after(segment.len);
        }
        if is_used || self.state != StreamState::ReadyToSend {
            env.memory.release(ahead.bytes);
        } else {
            self.waits().ahead = Some(ahead);
        }
        let step = if fpdus > 0 { SendOutcome::Sent { fpdus, bytes } } else { stopped };
        Run::of(step, payload, ended)
    }
}
