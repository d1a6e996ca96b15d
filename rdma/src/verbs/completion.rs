//! Completion queues (`ibv_cq`) and the calls that poll and arm them.

use super::entries::{Entries, Link, NONE};
use super::ids::{CqId, QpNum};
use super::queue_pair::QpState;
use super::{AsyncEvent, Device, VerbsError};
use crate::qp::{WcOpcode, WcStatus};
use crate::wire::Stag;
use core::fmt;

/// Completion of a work request (`ibv_wc`). With a status other than `Success`, only `wr_id`, `status`, `opcode` and
/// `qp_num` are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Number that the request was posted with.
    pub wr_id: u64,
    /// Result of the request.
    pub status: WcStatus,
    /// Operation of the request.
    pub opcode: WcOpcode,
    /// Length of the message in bytes. 0 for received Immediate Data: the length of the preceding RDMA Write is not
    /// known.
    pub byte_len: u32,
    /// Immediate Data received (`IBV_WC_WITH_IMM`); RFC 7306 defines eight bytes.
    pub imm_data: Option<[u8; 8]>,
    /// STag of this side that the peer invalidated (`IBV_WC_WITH_INV`).
    pub invalidated: Option<Stag>,
    /// True if the peer asked for an event.
    pub solicited: bool,
    /// Queue pair of the request.
    pub qp_num: QpNum,
    /// Queue pair that has sent a datagram, whose bytes follow 40 bytes of a global route header (`IBV_WC_GRH`); 0,
    /// which no queue pair has, for any other completion.
    pub src_qp: QpNum,
}

impl WorkCompletion {
    /// Returns the completion of a request that succeeded.
    ///
    /// # Errors
    /// The status of a request that did not.
    pub const fn success(self) -> Result<Self, WcStatus> {
        match self.status {
            WcStatus::Success => Ok(self),
            status => Err(status),
        }
    }
}

/// Slots that polling a completion frees, and their queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// Slots of the send queue: the request's own, and those of the unsignaled requests before it.
    Send(usize),
    /// One slot of the receive queue.
    Receive,
}

/// Completion in its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    pub(super) wc: WorkCompletion,
    slots: Slots,
}

/// Kind of completion that raises the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// Request that is executed in parts, of which some are left.
#[derive(Debug)]
enum Unfinished {
    No,
    /// The queue grows: these completions are older than those of its entries, in memory for the new depth.
    Growth(Box<Entries>),
    /// Queue pair whose completions [`Cq::purge`] removes, and the last entry that it has examined.
    Purge(QpNum, Link),
}

#[derive(Debug)]
pub(super) struct Cq {
    entries: Entries,
    unfinished: Unfinished,
    depth: usize,
    armed: Armed,
    /// True if an event is queued and not yet polled.
    event: bool,
    pub(super) overrun: bool,
    /// Number of send and receive queues that complete here.
    pub(super) users: u32,
}

impl Cq {
    #[inline]
    fn len(&self) -> usize {
        match &self.unfinished {
            Unfinished::Growth(moved) => self.entries.len.saturating_add(moved.len),
            Unfinished::No | Unfinished::Purge(..) => self.entries.len,
        }
    }

    /// Takes the oldest completion.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(WorkCompletion, Slots)> {
        let moved = match &self.unfinished {
            Unfinished::No => None,
            Unfinished::Growth(_) | Unfinished::Purge(..) => self.moved(),
        };
        moved.or_else(|| self.entries.pop()).map(|Cqe { wc, slots }| (wc, slots))
    }

    /// Takes the oldest completion that has moved. If there is none, the first entry may be taken.
    #[cold]
    fn moved(&mut self) -> Option<Cqe> {
        match &mut self.unfinished {
            Unfinished::Growth(moved) => return moved.pop(),
            Unfinished::Purge(_, after) if *after == self.entries.first => *after = NONE,
            Unfinished::No | Unfinished::Purge(..) => {}
        }
        None
    }

    /// Removes the completions of a queue pair from the next `max` entries, and passes what each would free to
    /// `removed`, which returns false once the queue pair has no more. A call for the same queue pair continues where
    /// the last one has stopped. Returns true if none is left.
    fn purge(&mut self, qp: QpNum, max: usize, removed: &mut impl FnMut(Slots) -> bool) -> bool {
        let mut after = match self.unfinished {
            Unfinished::Purge(purged, after) if purged == qp => after,
            _ => NONE,
        };
        let mut left = max;
        loop {
            let at = self.entries.after(after);
            let Some(cqe) = self.entries.get(at) else { break };
            let Some(fewer) = left.checked_sub(1) else {
                self.unfinished = Unfinished::Purge(qp, after);
                return false;
            };
            left = fewer;
            if cqe.wc.qp_num == qp {
                let slots = cqe.slots;
                self.entries.remove(after, at);
                if !removed(slots) {
                    break;
                }
            } else {
                after = at;
            }
        }
        self.unfinished = Unfinished::No;
        true
    }
}

/// Reason why a completion queue cannot be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollError {
    /// There is no such completion queue.
    NoSuchObject,
    /// The queue overran: a completion was lost. All earlier ones have been polled.
    Overrun,
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchObject => "there is no such completion queue",
            Self::Overrun => "the completion queue has overrun",
        })
    }
}

impl core::error::Error for PollError {}

impl<C: AsRef<[u8]>> Device<C> {
    /// Creates a completion queue with `cqe` slots (`ibv_create_cq`).
    ///
    /// # Errors
    /// `Invalid`: 0, or more than [`super::Limits::cqe_max`]. `NoResources`.
    pub fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        let depth = self.check_cqe(cqe)?;
        let entries = Entries::new(depth);
        let (armed, event, overrun) = (Armed::No, false, false);
        let cq = Cq { entries, unfinished: Unfinished::No, depth, armed, event, overrun, users: 0 };
        self.cqs.insert(cq).map(CqId).ok_or(VerbsError::NoResources)
    }

    fn check_cqe(&self, cqe: u32) -> Result<usize, VerbsError> {
        let allowed = cqe > 0 && cqe <= self.limits.cqe_max;
        usize::try_from(cqe).ok().filter(|_| allowed).ok_or(VerbsError::Invalid)
    }

    /// Changes the number of slots (`ibv_resize_cq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: outside the limits, or fewer slots than queued completions.
    pub fn resize_cq(&mut self, cq: CqId, cqe: u32) -> Result<(), VerbsError> {
        self.resize_cq_part(cq, cqe, usize::MAX).map(|_| ())
    }

    /// Moves at most `max` completions to memory for the new number of slots, as a part of [`Self::resize_cq`]. Returns
    /// true once the queue has as many; a call before that continues where the last one has stopped.
    ///
    /// # Errors
    /// As for [`Self::resize_cq`]; the queue is as it was.
    pub fn resize_cq_part(&mut self, cq: CqId, cqe: u32, max: usize) -> Result<bool, VerbsError> {
        let depth = self.check_cqe(cqe)?;
        let cq = self.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuchObject)?;
        if cq.len() > depth {
            return Err(VerbsError::Invalid);
        }
        let mut moved = match core::mem::replace(&mut cq.unfinished, Unfinished::No) {
            Unfinished::Growth(moved) => moved,
            Unfinished::No | Unfinished::Purge(..) if depth <= cq.entries.most() => {
                cq.depth = depth;
                return Ok(true);
            }
            Unfinished::No | Unfinished::Purge(..) => Box::new(Entries::new(depth)),
        };
        for _ in 0..max {
            let Some(cqe) = cq.entries.pop() else { break };
            moved.push(cqe);
        }
        if cq.entries.len > 0 {
            cq.unfinished = Unfinished::Growth(moved);
            return Ok(false);
        }
        (cq.entries, cq.depth) = (*moved, depth);
        Ok(true)
    }

    /// Drops all completions of a queue. Those who use it are about to be destroyed.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn discard_completions(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let cq = self.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuchObject)?;
        cq.unfinished = Unfinished::No;
        cq.entries.clear();
        Ok(())
    }

    /// Returns the number of completions that are queued and not polled.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn queued_completions(&self, cq: CqId) -> Result<usize, VerbsError> {
        self.cqs.get(cq.0).map(Cq::len).ok_or(VerbsError::NoSuchObject)
    }

    /// Destroys a completion queue (`ibv_destroy_cq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Busy`: a queue pair completes there.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let Cq { users, event, overrun, .. } = self.cqs.get(cq.0).ok_or(VerbsError::NoSuchObject)?;
        let (event, overrun) = (*event, *overrun);
        if *users > 0 {
            return Err(VerbsError::Busy);
        }
        self.cqs.remove(cq.0);
        if event {
            self.cq_events.retain(|event| *event != cq);
        }
        if overrun {
            self.async_events.retain(|event| *event != AsyncEvent::CqError(cq));
        }
        Ok(())
    }

    /// Moves completions to `out`, oldest first, and returns their number (`ibv_poll_cq`). Their slots in the send and
    /// receive queues are free then.
    ///
    /// # Errors
    /// The queue does not exist, or has overrun and is empty; `out` is unchanged.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let Self { cqs, qps, .. } = self;
        let cq = cqs.get_mut(cq.0).ok_or(PollError::NoSuchObject)?;
        if cq.overrun && cq.len() == 0 {
            return Err(PollError::Overrun);
        }
        let mut taken = 0usize;
        for place in out {
            let Some((wc, slots)) = cq.pop() else { break };
            if let Some(qp) = qps.get_mut(wc.qp_num.0) {
                qp.free_slots(slots);
            }
            *place = wc;
            taken = taken.saturating_add(1);
        }
        Ok(taken)
    }

    /// Arms the event for the next completion that is added: any, or one that is solicited or an error
    /// (`ibv_req_notify_cq`). It holds for one event. Completions that are already queued raise none, so the program
    /// polls once more after this call.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        let cq = self.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuchObject)?;
        cq.armed = match (cq.armed, solicited_only) {
            // A request for any completion includes solicited ones.
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        Ok(())
    }

    /// Returns the next completion queue whose event was raised after [`Self::req_notify_cq`] (`ibv_get_cq_event`).
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        let id = self.cq_events.pop_front()?;
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.event = false;
        }
        Some(id)
    }

    /// Adds a completion. If the queue is full, it and all queue pairs that complete there go into error. RFC 5042
    /// §6.4.6: "any Streams that do not use the CQ MUST remain unaffected".
    pub(super) fn push_completion(&mut self, id: CqId, wc: WorkCompletion, slots: Slots) {
        let Some(cq) = self.cqs.get_mut(id.0) else { return };
        if cq.len() >= cq.depth || cq.overrun {
            return self.overrun_cq(id);
        }
        cq.entries.push(Cqe { wc, slots });
        let wanted = match cq.armed {
            Armed::No => false,
            Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
            Armed::Any => true,
        };
        if wanted {
            cq.armed = Armed::No;
            if !cq.event {
                cq.event = true;
                self.cq_events.push_back(id);
            }
        }
    }

    /// Marks a completion queue as overrun. [`Self::fail_overrun_part`] then fails its queue pairs.
    #[cold]
    pub(super) fn overrun_cq(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id.0).filter(|cq| !cq.overrun) {
            (cq.overrun, self.overrun) = (true, Some(0));
            self.raise(AsyncEvent::CqError(id));
        }
    }

    /// Drops completions of a queue pair in `Error`, which is about to be reset or destroyed, until it has examined
    /// `max` entries of its completion queues. Returns true once no completion is left; a call before that continues
    /// where the last one has stopped. [`Self::modify_qp`] and [`Self::destroy_qp`] do the same at once.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the queue pair is not in error.
    pub fn purge_qp(&mut self, number: QpNum, max: usize) -> Result<bool, VerbsError> {
        let Self { cqs, qps, .. } = self;
        let qp = qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        if qp.state != QpState::Error {
            return Err(VerbsError::State);
        }
        for id in [qp.init.send_cq, qp.init.recv_cq] {
            let Some(cq) = cqs.get_mut(id.0).filter(|_| qp.completes_to(id)) else { continue };
            // Nothing is purged while a queue grows: the requests of a program are executed one after the other.
            debug_assert!(!matches!(cq.unfinished, Unfinished::Growth(_)), "a queue that grows");
            let purged = cq.purge(number, max, &mut |slots| {
                qp.free_slots(slots);
                qp.completes_to(id)
            });
            if !purged {
                return Ok(false);
            }
            // Those that an overrun queue has lost.
            qp.free_all_slots(id);
        }
        Ok(true)
    }

    /// Returns true if the completion queue has overrun.
    pub(super) fn is_overrun(&self, id: CqId) -> bool {
        self.cqs.get(id.0).is_some_and(|cq| cq.overrun)
    }
}
