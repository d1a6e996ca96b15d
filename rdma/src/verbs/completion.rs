//! Completion queues (`ibv_cq`).

use core::fmt;
use std::collections::VecDeque;

use super::ids::{CqId, QpNum};
use super::{AsyncEvent, Device, VerbsError};
use crate::qp::{WcOpcode, WcStatus};
use crate::wire::Stag;

/// What became of a work request (`ibv_wc`). With a status other than success only `wr_id`, `status`, `opcode` and
/// `qp_num` mean something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The number it was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes of its message. Of Immediate Data that has come: 0, since what was written before is not known.
    pub byte_len: u32,
    /// The bytes of Immediate Data that has come (`IBV_WC_WITH_IMM`; RFC 7306 has eight of them).
    pub imm_data: Option<[u8; 8]>,
    /// The STag of this side that the peer has invalidated (`IBV_WC_WITH_INV`).
    pub invalidated: Option<Stag>,
    /// The peer has asked for an event.
    pub solicited: bool,
    /// On which queue pair.
    pub qp_num: QpNum,
}

/// Which queue a completion is of, and how many slots it gives back there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    Send(usize),
    Receive,
}

#[derive(Clone, Copy, Debug)]
struct Cqe {
    wc: WorkCompletion,
    slots: Slots,
}

/// For which completion the owner is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

#[derive(Debug)]
pub(super) struct Cq {
    ring: VecDeque<Cqe>,
    depth: usize,
    armed: Armed,
    /// The owner is to be woken, and does not know yet.
    event: bool,
    pub(super) overrun: bool,
    /// Send and receive queues that complete here.
    pub(super) users: u32,
}

/// Why a completion queue cannot be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollError {
    /// There is no such queue.
    NoSuchObject,
    /// There was no place for a completion, and all that had one were taken.
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
    /// Makes a completion queue with `cqe` slots (`ibv_create_cq`).
    ///
    /// # Errors
    /// `Invalid`: no place, or more than [`super::Limits::cqe_max`]. `NoResources`.
    pub fn create_cq(&mut self, cqe: u32) -> Result<CqId, VerbsError> {
        let depth = self.check_cqe(cqe)?;
        let ring = VecDeque::with_capacity(depth);
        let cq = Cq { ring, depth, armed: Armed::No, event: false, overrun: false, users: 0 };
        self.cqs.insert(cq).map(CqId).ok_or(VerbsError::NoResources)
    }

    fn check_cqe(&self, cqe: u32) -> Result<usize, VerbsError> {
        let allowed = cqe > 0 && cqe <= self.limits.cqe_max;
        usize::try_from(cqe).ok().filter(|_| allowed).ok_or(VerbsError::Invalid)
    }

    /// Changes the number of slots (`ibv_resize_cq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: outside the limits, or fewer slots than completions wait.
    pub fn resize_cq(&mut self, cq: CqId, cqe: u32) -> Result<(), VerbsError> {
        let depth = self.check_cqe(cqe)?;
        let cq = self.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuchObject)?;
        if cq.ring.len() > depth {
            return Err(VerbsError::Invalid);
        }
        let mut ring = VecDeque::with_capacity(depth);
        ring.extend(cq.ring.drain(..));
        (cq.ring, cq.depth) = (ring, depth);
        Ok(())
    }

    /// Takes a completion queue away (`ibv_destroy_cq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Busy`: a queue pair completes there.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if self.cqs.get(cq.0).ok_or(VerbsError::NoSuchObject)?.users > 0 {
            return Err(VerbsError::Busy);
        }
        self.cqs.remove(cq.0);
        self.cq_events.retain(|event| *event != cq);
        self.async_events.retain(|event| *event != AsyncEvent::CqError(cq));
        Ok(())
    }

    /// Takes completions, oldest first; says how many (`ibv_poll_cq`). Their slots in the queues are free then.
    ///
    /// # Errors
    /// Where nothing is or will be there; `out` is as it was.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let Self { cqs, qps, .. } = self;
        let cq = cqs.get_mut(cq.0).ok_or(PollError::NoSuchObject)?;
        if cq.overrun && cq.ring.is_empty() {
            return Err(PollError::Overrun);
        }
        let mut taken = 0usize;
        for place in out {
            let Some(cqe) = cq.ring.pop_front() else { break };
            if let Some(qp) = qps.get_mut(cqe.wc.qp_num.0) {
                qp.free_slots(cqe.slots);
            }
            *place = cqe.wc;
            taken = taken.saturating_add(1);
        }
        Ok(taken)
    }

    /// Asks to be woken by the next completion that is added: any, or one that the peer has asked an event for or
    /// that is an error (`ibv_req_notify_cq`). It holds for one event; those that are there already give none, so
    /// poll once more after this.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), VerbsError> {
        let cq = self.cqs.get_mut(cq.0).ok_or(VerbsError::NoSuchObject)?;
        cq.armed = match (cq.armed, solicited_only) {
            // The wider pending_connect stays.
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        Ok(())
    }

    /// The next completion queue whose pending_connect of [`Self::req_notify_cq`] was met (`ibv_get_cq_event`).
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        let id = self.cq_events.pop_front()?;
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.event = false;
        }
        Some(id)
    }

    /// Adds a completion; without a place for it, the queue and all that complete there are in error. RFC 5042
    /// §6.4.6: "any Streams that do not use the CQ MUST remain unaffected".
    pub(super) fn push_completion(&mut self, id: CqId, wc: WorkCompletion, slots: Slots) {
        let Some(cq) = self.cqs.get_mut(id.0) else { return };
        if cq.ring.len() >= cq.depth || cq.overrun {
            if !cq.overrun {
                (cq.overrun, self.overrun) = (true, true);
                self.raise(AsyncEvent::CqError(id));
            }
            return;
        }
        cq.ring.push_back(Cqe { wc, slots });
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

    /// Forgets the completions of a queue pair that is reset or gone.
    pub(super) fn purge(&mut self, id: CqId, qp: QpNum) {
        if let Some(cq) = self.cqs.get_mut(id.0) {
            cq.ring.retain(|cqe| cqe.wc.qp_num != qp);
        }
    }

    /// Whether a completion queue can take no more.
    pub(super) fn is_overrun(&self, id: CqId) -> bool {
        self.cqs.get(id.0).is_some_and(|cq| cq.overrun)
    }
}
