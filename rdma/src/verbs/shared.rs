//! Shared receive queues (`ibv_srq`).

use std::collections::VecDeque;

use super::ids::{CmId, SrqId};
use super::work::RecvWr;
use super::{AsyncEvent, Device, PostError, VerbsError};
use crate::memory::PdId;
use crate::qp::SharedQueue;

/// Snapshot of a shared receive queue (`ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SrqAttr {
    /// Maximum number of posted buffers.
    pub max_wr: u16,
    /// Maximum number of elements per buffer.
    pub max_sge: u16,
    /// Low-water mark: an event is raised once when fewer buffers are left. 0 raises none.
    pub srq_limit: u16,
    /// Buffers posted and not taken.
    pub waiting: usize,
}

#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: PdId,
    max_wr: u16,
    pub(super) max_sge: u16,
    /// `None` while an endpoint has it, during a call that processes received bytes.
    pub(super) queue: Option<Box<SharedQueue>>,
    /// Number of queue pairs that take buffers from it.
    pub(super) users: u32,
    /// True if its event is queued.
    pub(super) raised: bool,
    /// Connections whose next message waits for a buffer, and those that have ended since.
    pub(super) waiting: VecDeque<CmId>,
}

impl<C: AsRef<[u8]>> Device<C> {
    /// Creates a shared receive queue for `max_wr` buffers of up to `max_sge` elements (`ibv_create_srq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: outside the device's limits. `NoResources`.
    pub fn create_srq(&mut self, pd: PdId, max_wr: u16, max_sge: u16) -> Result<SrqId, VerbsError> {
        let users = &mut self.pds.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?.users;
        if max_wr == 0 || max_wr > self.limits.srq_wr_max || max_sge > self.limits.sge_max {
            return Err(VerbsError::Invalid);
        }
        let queue = Some(Box::new(SharedQueue::new(max_wr.into(), max_sge.into())));
        let (users_of, raised, waiting) = (0, false, VecDeque::new());
        let srq = Srq { pd, max_wr, max_sge, queue, users: users_of, raised, waiting };
        let id = self.srqs.insert(srq).ok_or(VerbsError::NoResources)?;
        *users = users.saturating_add(1);
        Ok(SrqId(id))
    }

    /// Arms the event for fewer than `limit` buffers (`ibv_modify_srq`). It is raised at once if fewer are left
    /// already.
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: more than `max_wr`.
    pub fn modify_srq(&mut self, id: SrqId, limit: u16) -> Result<(), VerbsError> {
        let srq = self.srqs.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if limit > srq.max_wr {
            return Err(VerbsError::Invalid);
        }
        let queue = srq.queue.as_mut().ok_or(VerbsError::Busy)?;
        if queue.len() < usize::from(limit) {
            queue.limit = 0;
            self.raise(AsyncEvent::SrqLimitReached(id));
        } else {
            queue.limit = limit.into();
        }
        Ok(())
    }

    /// Returns a snapshot of a shared receive queue (`ibv_query_srq`).
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn query_srq(&self, id: SrqId) -> Result<SrqAttr, VerbsError> {
        let Srq { max_wr, max_sge, queue, .. } = self.srqs.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let (limit, waiting) = queue.as_ref().map_or((0, 0), |queue| (queue.limit, queue.len()));
        let srq_limit = u16::try_from(limit).unwrap_or(u16::MAX);
        Ok(SrqAttr { max_wr: *max_wr, max_sge: *max_sge, srq_limit, waiting })
    }

    /// Destroys a shared receive queue and its buffers (`ibv_destroy_srq`).
    ///
    /// # Errors
    /// `NoSuchObject`. `Busy`: a queue pair takes buffers from it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), VerbsError> {
        let srq = self.srqs.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let (pd, raised) = (srq.pd, srq.raised);
        if srq.users > 0 {
            return Err(VerbsError::Busy);
        }
        self.srqs.remove(id.0);
        self.leave_pd(pd);
        if raised {
            self.async_events.retain(|event| *event != AsyncEvent::SrqLimitReached(id));
        }
        Ok(())
    }

    /// Posts a buffer for the first of the queue pairs that needs one (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// `NoSuchObject`, `QueueFull`, `Length`.
    pub fn post_srq_recv(&mut self, id: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let srq = self.srqs.get_mut(id.0).ok_or(PostError::NoSuchObject)?;
        let queue = srq.queue.as_mut().ok_or(PostError::NoSuchObject)?;
        queue.post(wr.wr_id, wr.sg_list)?;
        // One goes on for each buffer.
        while let Some(id) = self.srqs.get_mut(id.0).and_then(|srq| srq.waiting.pop_front()) {
            if self.give_buffer(id) {
                break;
            }
        }
        Ok(())
    }
}
