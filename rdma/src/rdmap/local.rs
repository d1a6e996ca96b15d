//! Local memory of work requests: the bytes to send and the places of responses, with a check on every access to an
//! element of a scatter/gather list; and local operations, which send no message.

use super::ahead::Rest;
use super::payload::Payload;
use super::run::Run;
use super::segment::{SegmentHeader, SendOutcome};
use crate::ddp::cut;
use crate::memory::{AHEAD_BYTES, Bind, Fetch, Memory, Placement, Reach, StagTable};
use crate::qp::{CloseHow, List, Local, QueuePair, Source, Stop, Tokens, WcStatus, WorkOp, WorkRequest};
use crate::stats::{RdmaStats, count};
use crate::terminate::{Fault, StreamError};
use crate::wire::Stag;
use crate::{Env, Sink};

impl QueuePair {
    /// Checks access to a part of a list of the send queue, and returns the tokens to fetch it.
    fn gather(&self, list: List, skip: u32, len: usize, stags: &StagTable) -> Option<Tokens<Fetch>> {
        let check = |lkey, address, len| stags.check_local_fetch(lkey, address, len, self.origin);
        Tokens::of(self.sq.lists.sges(list), skip, len, check).ok()
    }

    /// Returns the token to fetch the last `len` bytes of a message that lie in one piece; `Some(None)` if access is
    /// refused; `None` if they lie in several pieces or are inline.
    #[inline]
    pub(super) fn in_one_piece<M>(
        &self,
        work: &WorkRequest,
        len: usize,
        env: &Env<'_, M>,
    ) -> Option<Option<Fetch>> {
        let skip = work.progress;
        match work.local {
            Local::Slice(slice) => Some(Fetch::local(&slice, skip, len)),
            Local::List(list) => self.sq.lists.only(list).map(|sge| {
                let address = sge.addr.checked_add(skip.into())?;
                env.stags.check_local_fetch(sge.lkey, address, len, self.origin).ok()
            }),
            Local::Inline { .. } => None,
        }
    }

    /// Sends one segment of a message whose bytes are in a list or inline, or several if they are read ahead.
    pub(super) fn push_gathered<M: Memory>(
        &mut self,
        work: &WorkRequest,
        front: SegmentHeader,
        left: usize,
        env: &mut Env<'_, M>,
        sink: &mut impl Sink,
    ) -> Run {
        let Some(segment) = cut(self.framer.ulpdu_max(sink.fpdu_max()), front.len(), left) else {
            return Run::of(SendOutcome::NoRoom, 0, false);
        };
        let (skip, len, whole_front) = (work.progress, segment.len, front);
        let front = front.with_last(segment.last);
        let step = match work.local {
            Local::List(list) => {
                // Checks the whole message before its first byte: the peer receives all of it or nothing.
                let whole = skip > 0 || segment.last || {
                    self.gather(list, 0, list.len as usize, env.stags).is_some()
                };
                let mut deferred = false;
                let fetches = self.gather(list, skip, len, env.stags).filter(|fetches| {
                    let present = |fetch: &Fetch| {
                        let (region, offset, len) = (fetch.region(), fetch.offset(), fetch.len());
                        let reach = env.memory.reach(self.origin.stream, region, offset, len);
                        deferred |= reach != Reach::Direct;
                        reach != Reach::Gone
                    };
                    whole && fetches.all(present)
                });
                let Some(fetches) = fetches else {
                    let step = self.work_failed(work, WcStatus::LocalProtectionError, env.stats);
                    return Run::of(step, 0, false);
                };
                if deferred {
                    let ahead = self.gather(list, skip, left.min(AHEAD_BYTES), env.stags);
                    let mut tokens = ahead.into_iter().flatten();
                    let rest = Rest { tokens: &mut tokens, left, source: Source::Work };
                    return self.push_ahead(whole_front, rest, env, sink);
                }
                self.push(front, len, env, sink, |memory, mut out| {
                    for fetch in fetches {
                        let Some((here, behind)) = out.split_at_mut_checked(fetch.len()) else {
                            return false;
                        };
                        if !memory.fetch(fetch, here) {
                            return false;
                        }
                        out = behind;
                    }
                    true
                })
            }
            Local::Inline { slot, .. } => {
                // Moved out of the queue pair and back: `push` borrows all of the queue pair.
                let lists = core::mem::take(&mut self.sq.lists);
                let bytes = lists.inline(slot, skip, len);
                let step = self.push(front, len, env, sink, |_, out| {
                    for (to, from) in out.iter_mut().zip(bytes) {
                        *to = *from;
                    }
                    true
                });
                self.sq.lists = lists;
                step
            }
            // Only without bytes: a slice with bytes lies in one piece.
            Local::Slice(_) => self.push(front, 0, env, sink, |_, _| true),
        };
        Run::of(step, len, segment.last)
    }

    /// Returns true if a response may be placed where a request wants it. The check is repeated when the response
    /// arrives.
    pub(super) fn may_scatter(&self, local: Local, stags: &StagTable) -> bool {
        let Local::List(list) = local else { return true };
        let check = |lkey, address, len| stags.check_local_place(lkey, address, len, self.origin);
        Tokens::of(self.sq.lists.sges(list), 0, list.len as usize, check).is_ok()
    }

    /// Places a segment of a Read Response.
    pub(super) fn place_sink<M: Memory>(
        &mut self,
        local: Local,
        start: u32,
        payload: impl Payload,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        self.place_at(local, start, payload, false, env)
    }

    /// Places a segment of a Send.
    pub(super) fn place_buffer<M: Memory>(
        &mut self,
        local: Local,
        start: u32,
        payload: impl Payload,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        self.place_at(local, start, payload, true, env)
    }

    #[inline]
    fn place_at<M: Memory>(
        &mut self,
        local: Local,
        start: u32,
        payload: impl Payload,
        received: bool,
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let len = payload.len();
        match local {
            Local::Slice(slice) => {
                let at = Placement::local(&slice, start, len).ok_or(StreamError::Local)?;
                self.place(at, payload, env)
            }
            Local::List(list) => {
                let lists = if received { &self.rq.lists } else { &self.sq.lists };
                let check = |lkey, address, len| env.stags.check_local_place(lkey, address, len, self.origin);
                if let Some(sge) = lists.only(list) {
                    let address = sge.addr.checked_add(start.into()).ok_or(StreamError::Local)?;
                    let at = check(sge.lkey, address, len).map_err(|_| StreamError::Local)?;
                    return self.place(at, payload, env);
                }
                let places = Tokens::of(lists.sges(list), start, len, check);
                let places = places.map_err(|_| StreamError::Local)?;
                let queues = self.may_scatter_now(&places, env)?;
                count(&mut self.counters.bytes_placed, len);
                count(&mut env.stats.rdmap.payload_bytes_placed, len);
                count(&mut env.stats.mpa.bytes_copied, len);
                if !payload.scatter(places, env.memory) {
                    return Err(StreamError::Place.into());
                }
                if queues {
                    self.queued(env);
                }
                Ok(())
            }
            Local::Inline { .. } => Err(StreamError::Local.into()),
        }
    }

    /// Checks that bytes may be scattered now, as [`Self::may_place`].
    fn may_scatter_now<M: Memory>(&self, places: &Tokens<Placement>, env: &Env<'_, M>) -> Result<bool, Stop> {
        let mut outcome = Ok(false);
        places.all(|place| {
            match self.may_place((place.region(), place.offset(), place.len()), env) {
                Ok(queues) => outcome = outcome.map(|before| before || queues),
                Err(stop) => outcome = Err(stop),
            }
            outcome.is_ok()
        });
        outcome
    }

    /// Places the original value that an atomic operation returned.
    pub(super) fn place_original<M: Memory>(
        &mut self,
        local: Local,
        bytes: [u8; 8],
        env: &mut Env<'_, M>,
    ) -> Result<(), Stop> {
        let queues = match local {
            Local::Slice(slice) => {
                let at = Placement::local(&slice, 0, bytes.len()).ok_or(StreamError::Local)?;
                let queues = self.may_place((at.region(), at.offset(), at.len()), env)?;
                if !env.memory.place(at, &bytes) {
                    return Err(StreamError::Place.into());
                }
                queues
            }
            Local::List(list) => {
                let check = |lkey, address, len| env.stags.check_local_place(lkey, address, len, self.origin);
                let places = Tokens::of(self.sq.lists.sges(list), 0, bytes.len(), check);
                let places = places.map_err(|_| StreamError::Local)?;
                let queues = self.may_scatter_now(&places, env)?;
                let mut rest = bytes.as_slice();
                for place in places {
                    let Some((here, behind)) = rest.split_at_checked(place.len()) else { break };
                    if !env.memory.place(place, here) {
                        return Err(StreamError::Place.into());
                    }
                    rest = behind;
                }
                queues
            }
            Local::Inline { .. } => return Err(StreamError::Local.into()),
        };
        if queues {
            self.queued(env);
        }
        Ok(())
    }

    /// Local operation: invalidates a local STag. RFC 5040 §8.1.1: "the network interface can no longer modify an
    /// Advertised Buffer after the ULP revokes remote access rights".
    pub(super) fn invalidate<M>(
        &mut self,
        work: &WorkRequest,
        stag: Stag,
        env: &mut Env<'_, M>,
    ) -> SendOutcome {
        match env.stags.invalidate_local(stag, self.origin) {
            Ok(()) => self.local_work_done(),
            Err(_) => self.work_failed(work, WcStatus::LocalProtectionError, env.stats),
        }
    }

    /// Local operation: binds a memory window.
    pub(super) fn bind<M>(
        &mut self,
        work: &WorkRequest,
        window: Stag,
        bind: &Bind,
        env: &mut Env<'_, M>,
    ) -> SendOutcome {
        match env.stags.bind(window, bind, self.origin) {
            Ok(()) => self.local_work_done(),
            Err(_) => self.work_failed(work, WcStatus::MwBindError, env.stats),
        }
    }

    fn local_work_done(&mut self) -> SendOutcome {
        self.sq.next_sent();
        self.complete();
        SendOutcome::Again
    }

    /// Ends the stream because a work request failed. Earlier work is finished first as far as possible, so that
    /// completions stay in order and state the actual result.
    #[cold]
    pub(super) fn work_failed(
        &mut self,
        work: &WorkRequest,
        status: WcStatus,
        stats: &mut RdmaStats,
    ) -> SendOutcome {
        let first = work.progress == 0 && !matches!(work.op, WorkOp::Immediate { .. });
        let wait = first && self.sq.reads() > 0;
        if let Some(next) = self.sq.next() {
            if wait {
                next.fence = true;
                self.current = None;
                return SendOutcome::Again;
            }
            next.status = status;
        }
        if self.may_send {
            self.fail(&Fault::bare(StreamError::Local), stats);
        } else {
            self.close(CloseHow::Reset);
        }
        SendOutcome::Again
    }

    /// Ends the stream because the response that was due cannot be placed.
    #[cold]
    pub(super) fn due_failed(&mut self) {
        if let Some(due) = self.sq.due() {
            due.status = WcStatus::LocalProtectionError;
        }
    }

    /// Ends the stream because the buffer at the head of the receive queue cannot take the message.
    #[cold]
    pub(super) fn buffer_failed(&mut self, status: WcStatus) {
        if let Some(buffer) = self.rq.front() {
            buffer.status = status;
        }
    }
}
