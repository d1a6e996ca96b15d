//! Queue pairs (`ibv_qp`) and their states.
//!
//! The states are those of the RDMA Protocol Verbs Specification, which defines neither "ready to receive" nor "send
//! queue drained":
//!
//! ```text
//!            connect, accept             disconnect, peer's FIN
//!   Idle ──────────────────────▶ Rts ─────────────────────────▶ Closing
//!    ▲                            │ a Terminate is due              │
//!    │                            ▼                                 │ the stream has ended
//!    │                        Terminate ───────────────────────┐    │
//!    │ modify_qp(Idle)                                         ▼    ▼
//!    └─────────────────────────────────────────────────────── Error ◀── modify_qp(Error), from any
//! ```

use std::collections::VecDeque;

use super::completion::{Slots, WorkCompletion};
use super::ids::{CmId, CqId, QpNum, SrqId};
use super::rendezvous::Link;
use super::{AsyncEvent, Device, Now, VerbsError};
use crate::memory::{Access, Origin, PdId, StreamId};
use crate::qp::{Depths, QueuePair, WcOpcode, WcStatus};
use crate::stats::RdmaStats;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpState {
    /// No stream (`IBV_QPS_RESET`, `INIT` and `RTR`). Accepts receive buffers, but no work to send.
    Idle,
    /// The stream is in full operation (`IBV_QPS_RTS`).
    Rts,
    /// The stream is closing gracefully; work posted before is still done as far as the peer allows. Accepts receive
    /// buffers only.
    Closing,
    /// A Terminate waits to be sent. All work was flushed; work posted now is flushed at once.
    Terminate,
    /// The stream has ended (`IBV_QPS_ERR`). All work was flushed; work posted now is flushed at once.
    Error,
}

/// Size of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpCap {
    /// Slots of the send queue: work requests posted whose completion was not polled.
    pub max_send_wr: u16,
    /// Slots of the receive queue: buffers posted whose completion was not polled. With a shared receive queue:
    /// buffers that this queue pair may have taken from it at a time; a message that needs one more ends the stream.
    /// RFC 5042 §6.4.3.1: the RNIC Engine "MUST be able to detect if the Remote Peer is attempting to consume more
    /// than its fair share".
    pub max_recv_wr: u16,
    /// Elements of a list of a send request, or of a read's destination.
    pub max_send_sge: u16,
    /// Elements of a receive buffer's list.
    pub max_recv_sge: u16,
    /// Bytes of inline data per send request.
    pub max_inline_data: u16,
}

impl Default for QpCap {
    /// Returns queues of 128 requests with one element each, and no inline data.
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
    }
}

/// Type of a queue pair (`ibv_qp_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpType {
    /// It has a connection with one other (`IBV_QPT_RC`).
    #[default]
    Rc,
    /// It sends datagrams to any other (`IBV_QPT_UD`).
    Ud,
}

impl QpType {
    #[cfg(feature = "serde")]
    fn is_rc(&self) -> bool {
        *self == Self::Rc
    }
}

/// Parameters of a new queue pair (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpInit {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Shared receive queue that supplies the buffers, if any.
    pub srq: Option<SrqId>,
    /// Size of the queues.
    pub cap: QpCap,
    /// True if every send request is signaled.
    pub sq_sig_all: bool,
    /// Type of the queue pair.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "QpType::is_rc"))]
    pub qp_type: QpType,
}

impl QpInit {
    /// Returns the parameters of a queue pair whose two queues complete to one completion queue, with every send
    /// request signaled.
    pub fn new(pd: PdId, cq: CqId) -> Self {
        let qp_type = QpType::Rc;
        Self { pd, send_cq: cq, recv_cq: cq, srq: None, cap: QpCap::default(), sq_sig_all: true, qp_type }
    }
}

/// Snapshot of a queue pair (`ibv_query_qp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpAttr {
    /// State of the queue pair.
    pub state: QpState,
    /// Parameters that it was created with.
    pub init: QpInit,
    /// Rights of the peer, a part of [`Access::REGION`]. Those of the memory are needed, too.
    pub access: Access,
    /// Connection of the queue pair, if any.
    pub id: Option<CmId>,
    /// Slots of the send queue in use, including finished work whose completion was not polled.
    pub send_used: usize,
    /// Slots of the receive queue in use, including finished buffers whose completion was not polled.
    pub recv_used: usize,
}

/// Properties of a send request that the endpoint's events do not carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    /// Time of the poll in which it was posted, nanoseconds.
    pub(super) at_ns: u64,
}

/// End of a send request that produces a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) opcode: WcOpcode,
    /// Slots that polling the completion frees.
    pub(super) slots: Slots,
    /// Time of the poll in which it was posted, nanoseconds.
    pub(super) posted_at_ns: u64,
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) init: QpInit,
    pub(super) state: QpState,
    /// Rights of the peer.
    access: Access,
    /// Queues while there is no stream; otherwise the stream's endpoint has them.
    pub(super) queues: Option<Box<QueuePair>>,
    pub(super) id: Option<CmId>,
    /// One entry per unfinished send request, in order of posting.
    pub(super) posted: VecDeque<Posted>,
    pub(super) send_used: usize,
    pub(super) recv_used: usize,
    /// Slots of successful unsignaled requests since the last completion.
    unsignaled: usize,
    /// Events that are queued: a bit for each kind.
    pub(super) raised: u8,
    /// True if messages wait for receive buffers on every stream.
    awaits_buffers: bool,
    /// Client that has the queue pair, if the adapter has named one.
    pub(super) client: Option<u32>,
    /// Connection by number, from RTR on.
    pub(super) link: Option<Box<Link>>,
    /// Key of datagrams to the queue pair, from RTR on.
    pub(super) qkey: Option<u32>,
    /// Status of the next request that is flushed, if it is another than that of the others.
    pub(super) first_status: Option<WcStatus>,
}

impl Qp {
    pub(super) const fn free_slots(&mut self, slots: Slots) {
        match slots {
            Slots::Send(slots) => self.send_used = self.send_used.saturating_sub(slots),
            Slots::Receive => self.recv_used = self.recv_used.saturating_sub(1),
        }
    }

    /// Returns the number of slots in use.
    const fn used(&self) -> usize {
        self.send_used.saturating_add(self.recv_used)
    }

    /// Returns true if a completion may be in a completion queue. Only in `Error`, where all work has ended.
    pub(super) fn completes_to(&self, cq: CqId) -> bool {
        let sends = self.init.send_cq == cq && self.send_used > self.unsignaled;
        sends || self.init.recv_cq == cq && self.recv_used > 0
    }

    /// Frees the slots whose completions would be in a completion queue, which has none.
    pub(super) fn free_all_slots(&mut self, cq: CqId) {
        if self.init.send_cq == cq {
            self.send_used = self.send_used.min(self.unsignaled);
        }
        if self.init.recv_cq == cq {
            self.recv_used = 0;
        }
    }

    /// Handles the end of the oldest send request. Returns the properties of its completion if it produces one.
    pub(super) fn send_ended(&mut self, status: WcStatus) -> Option<Ended> {
        let posted = self.posted.pop_front()?;
        self.unsignaled = self.unsignaled.saturating_add(1);
        if posted.signaled || status != WcStatus::Success {
            let slots = Slots::Send(core::mem::take(&mut self.unsignaled));
            Some(Ended { opcode: posted.opcode, slots, posted_at_ns: posted.at_ns })
        } else {
            None
        }
    }

    /// Removes successful unsignaled requests at the head of the queue. Where few requests are signaled, this covers
    /// most of them.
    #[inline]
    pub(super) fn skip_unsignaled(&mut self, queues: &mut QueuePair) {
        while self.posted.front().is_some_and(|posted| !posted.signaled) && queues.take_success().is_some() {
            self.posted.pop_front();
            self.unsignaled = self.unsignaled.saturating_add(1);
        }
    }

    /// Creates queues for a future stream.
    fn new_queues(init: &QpInit, access: Access, srq_sge: Option<u16>) -> Box<QueuePair> {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
        let depths = Depths {
            send: max_send_wr.into(),
            receive: max_recv_wr.into(),
            send_sges: max_send_sge.into(),
            receive_sges: srq_sge.unwrap_or(max_recv_sge).into(),
            inline: max_inline_data.into(),
        };
        // The stream sets its own identifier when it adopts the queues.
        let origin = Origin::new(StreamId(0), Some(init.pd)).with_rights(access.of_stream());
        Box::new(QueuePair::new(origin, depths))
    }

    fn reset(&mut self, srq_sge: Option<u16>) {
        self.state = QpState::Idle;
        let mut queues = Self::new_queues(&self.init, self.access, srq_sge);
        queues.awaits_buffers = self.awaits_buffers;
        self.queues = Some(queues);
        self.posted.clear();
        (self.send_used, self.recv_used, self.unsignaled) = (0, 0, 0);
        (self.first_status, self.qkey) = (None, None);
    }
}

/// Work after which [`Device::fail_overrun_part`] stops: slots that it has searched, requests that it has flushed, and
/// for each queue pair [`OVERRUN_WORK`]. It takes about 20 µs.
const OVERRUN_WORK_MAX: usize = 1024;
/// Work of the end of a connection.
const OVERRUN_WORK: usize = 64;

impl<C: AsRef<[u8]>> Device<C> {
    /// Creates a queue pair in state `Idle` (`ibv_create_qp`), with all rights of the peer.
    ///
    /// # Errors
    /// `NoSuchObject`: the protection domain or a queue. `Invalid`: outside the device's limits, no receive slot with
    /// a shared receive queue, or a shared receive queue of another protection domain. `NoResources`.
    pub fn create_qp(&mut self, init: QpInit) -> Result<QpNum, VerbsError> {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
        let (wr_max, sge_max) = (self.limits.qp_wr_max, self.limits.sge_max);
        let fits = max_send_wr <= wr_max
            && max_recv_wr <= wr_max
            && max_send_sge <= sge_max
            && max_recv_sge <= sge_max
            && max_inline_data <= self.limits.inline_max;
        if !fits || (init.srq.is_some() && max_recv_wr == 0) {
            return Err(VerbsError::Invalid);
        }
        let known = self.pds.get(init.pd.0).is_some()
            && self.cqs.get(init.send_cq.0).is_some()
            && self.cqs.get(init.recv_cq.0).is_some();
        if !known {
            return Err(VerbsError::NoSuchObject);
        }
        let srq = init.srq.map(|srq| self.srqs.get(srq.0).ok_or(VerbsError::NoSuchObject)).transpose()?;
        if srq.is_some_and(|srq| srq.pd != init.pd) {
            return Err(VerbsError::Invalid);
        }
        let qp = Qp {
            init,
            state: QpState::Idle,
            access: Access::REGION,
            queues: Some(Qp::new_queues(&init, Access::REGION, srq.map(|srq| srq.max_sge))),
            id: None,
            posted: VecDeque::with_capacity(max_send_wr.into()),
            send_used: 0,
            recv_used: 0,
            unsignaled: 0,
            raised: 0,
            awaits_buffers: false,
            client: None,
            link: None,
            qkey: None,
            first_status: None,
        };
        let number = self.qps.insert(qp).map(QpNum).ok_or(VerbsError::NoResources)?;
        self.count_users(&init, 1);
        Ok(number)
    }

    /// Adds `by` to the user counts of the objects that the queue pair uses.
    fn count_users(&mut self, init: &QpInit, by: i32) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(cq) = self.cqs.get_mut(cq.0) {
                cq.users = cq.users.saturating_add_signed(by);
            }
        }
        if let Some(pd) = self.pds.get_mut(init.pd.0) {
            pd.users = pd.users.saturating_add_signed(by);
        }
        if let Some(srq) = init.srq.and_then(|srq| self.srqs.get_mut(srq.0)) {
            srq.users = srq.users.saturating_add_signed(by);
        }
    }

    /// Returns a snapshot of a queue pair (`ibv_query_qp`).
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn query_qp(&self, qp: QpNum) -> Result<QpAttr, VerbsError> {
        let qp = self.qps.get(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let Qp { state, init, access, id, send_used, recv_used, .. } = *qp;
        Ok(QpAttr { state, init, access, id, send_used, recv_used })
    }

    /// Lets messages to a queue pair wait for receive buffers, also on a connection of the connection manager.
    /// Otherwise one without a buffer ends the stream.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: it has a stream already.
    pub fn await_buffers(&mut self, number: QpNum) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        let queues = qp.queues.as_deref_mut().ok_or(VerbsError::State)?;
        (queues.awaits_buffers, qp.awaits_buffers) = (true, true);
        Ok(())
    }

    /// Notes the client that has a queue pair, whose connection by number the adapter counts as the client's.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn set_qp_client(&mut self, number: QpNum, client: u32) -> Result<(), VerbsError> {
        self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?.client = Some(client);
        Ok(())
    }

    /// Changes the rights of the peer, a part of [`Access::REGION`] (`ibv_modify_qp` with `IBV_QP_ACCESS_FLAGS`). An
    /// access without its right ends the stream with a Terminate, as one that the memory does not permit.
    ///
    /// # Errors
    /// `NoSuchObject`. `Invalid`: rights that a queue pair does not have.
    pub fn modify_qp_access(&mut self, number: QpNum, access: Access) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        if !Access::REGION.contains(access) {
            return Err(VerbsError::Invalid);
        }
        qp.access = access;
        let endpoint = qp.id.and_then(|id| self.ids.get_mut(id.0)?.endpoint.as_mut());
        let queues = qp.queues.as_deref_mut().or(endpoint.map(|endpoint| endpoint.queue_pair()));
        if let Some(queues) = queues {
            queues.origin.rights = access.of_stream();
        }
        Ok(())
    }

    /// Changes the state of a queue pair (`ibv_modify_qp`): to `Error` from any state, which ends the connection as
    /// [`Self::destroy_qp`] and flushes all work; from `Error` to `Idle`, which drops its completions and creates new
    /// queues; from `Rts` to `Closing`. Only a connection leads to `Rts`.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: no such transition.
    pub fn modify_qp(&mut self, number: QpNum, state: QpState, now: Now) -> Result<(), VerbsError> {
        let qp = self.qps.get(number.0).ok_or(VerbsError::NoSuchObject)?;
        match (qp.state, state) {
            (from, to) if from == to => Ok(()),
            (_, QpState::Error) => {
                self.leave_qp(number);
                Ok(())
            }
            (QpState::Error, QpState::Idle) => {
                let srq_sge = qp.init.srq.and_then(|srq| self.srqs.get(srq.0)).map(|srq| srq.max_sge);
                self.purge_qp(number, usize::MAX)?;
                if let Some(qp) = self.qps.get_mut(number.0) {
                    qp.reset(srq_sge);
                }
                Ok(())
            }
            (QpState::Rts, QpState::Closing) => {
                self.disconnect(qp.id.ok_or(VerbsError::State)?, now);
                Ok(())
            }
            _ => Err(VerbsError::State),
        }
    }

    /// Ends the stream of a queue pair for a local fault, with a Terminate that reports it.
    ///
    /// # Errors
    /// `NoSuchObject`. `State`: the queue pair has no stream in full operation.
    pub fn terminate_qp(&mut self, number: QpNum, now: Now, stats: &mut RdmaStats) -> Result<(), VerbsError> {
        let qp = self.qps.get(number.0).ok_or(VerbsError::NoSuchObject)?;
        let id = qp.id.filter(|_| qp.state == QpState::Rts).ok_or(VerbsError::State)?;
        if let Some(endpoint) = self.ids.get_mut(id.0).and_then(|id| id.endpoint.as_mut()) {
            endpoint.fail_local(now, stats);
        }
        self.request_transmit(id);
        self.drain(id);
        Ok(())
    }

    /// Destroys a queue pair and its unpolled completions (`ibv_destroy_qp`). Its connection is closed if no work is
    /// unfinished, so that the peer receives every Send that has completed; otherwise it is reset.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn destroy_qp(&mut self, number: QpNum) -> Result<(), VerbsError> {
        if self.qps.get(number.0).is_none() {
            return Err(VerbsError::NoSuchObject);
        }
        self.leave_qp(number);
        self.purge_qp(number, usize::MAX)?;
        let Some(qp) = self.qps.remove(number.0) else { return Ok(()) };
        self.count_users(&qp.init, -1);
        if qp.raised != 0 {
            self.async_events.retain(|event| event.qp() != Some(number));
        }
        Ok(())
    }

    /// Returns true if a connection has posted work that is not finished, or Reads of its peer to answer.
    pub fn has_unfinished_work(&self) -> bool {
        let endpoints = (0..self.ids.slots()).filter_map(|slot| self.ids.at(slot)?.1.endpoint.as_ref());
        endpoints.into_iter().any(|endpoint| !endpoint.is_finished())
    }

    /// Ends the connection of a queue pair, if it has one, as [`Endpoint::leave`](crate::Endpoint::leave), and flushes
    /// its work.
    fn leave_qp(&mut self, number: QpNum) {
        let id = self.qps.get(number.0).and_then(|qp| qp.id);
        if let Some(id) = id {
            self.leave(id);
        }
        self.enter_error(number);
    }

    /// Resets the connection of a queue pair, if it has one, and flushes its work. A client whose program goes before
    /// all its requests were posted calls it first: they are unfinished, too.
    pub fn fail_qp(&mut self, number: QpNum) {
        let id = self.qps.get(number.0).and_then(|qp| qp.id);
        if let Some(id) = id {
            self.transport_lost(id);
        }
        self.enter_error(number);
    }

    /// Moves the queue pair to `Error` and flushes the work posted without a stream.
    pub(super) fn enter_error(&mut self, number: QpNum) {
        self.drop_link(number);
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        if qp.state == QpState::Error {
            return;
        }
        (qp.state, qp.id) = (QpState::Error, None);
        let on_srq = qp.init.srq.is_some();
        if let Some(mut queues) = qp.queues.take() {
            queues.flush();
            while let Some(event) = queues.poll_event() {
                self.on_completion(number, &event);
            }
        }
        if on_srq {
            self.raise(AsyncEvent::QpLastWqeReached(number));
        }
    }

    /// Completes a send request that was posted to a queue pair in error.
    pub(super) fn flush_send(&mut self, number: QpNum, wr_id: u64, posted: Posted) {
        let first = self.qps.get_mut(number.0).and_then(|qp| qp.first_status.take());
        self.end_unposted(number, wr_id, posted, first.unwrap_or(WcStatus::WrFlushError));
    }

    /// Completes a send request that the endpoint never had.
    pub(super) fn end_unposted(&mut self, number: QpNum, wr_id: u64, posted: Posted, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        qp.send_used = qp.send_used.saturating_add(1);
        qp.posted.push_back(posted);
        let cq = qp.init.send_cq;
        let Some(Ended { opcode, slots, .. }) = qp.send_ended(status) else { return };
        let wc = WorkCompletion { wr_id, status, opcode, qp_num: number, ..WorkCompletion::default() };
        self.push_completion(cq, wc, slots);
        self.fail_overrun_qps();
    }

    /// Completes a receive buffer that was posted to a queue pair in error.
    pub(super) fn flush_recv(&mut self, number: QpNum, wr_id: u64) {
        let Some(qp) = self.qps.get_mut(number.0) else { return };
        qp.recv_used = qp.recv_used.saturating_add(1);
        let (status, opcode, cq) = (WcStatus::WrFlushError, WcOpcode::Recv, qp.init.recv_cq);
        let wc = WorkCompletion { wr_id, status, opcode, qp_num: number, ..WorkCompletion::default() };
        self.push_completion(cq, wc, Slots::Receive);
        self.fail_overrun_qps();
    }

    /// Moves the first queue pairs of a completion queue that has just overrun to `Error`.
    #[inline]
    pub(super) fn fail_overrun_qps(&mut self) {
        // The adapter has the others failed: a program may have thousands.
        if self.overrun == Some(0) {
            self.fail_overrun_part();
        }
    }

    /// Returns true if queue pairs of an overrun completion queue are not in `Error` yet.
    #[inline]
    pub const fn has_overrun(&self) -> bool {
        self.overrun.is_some()
    }

    /// Moves some queue pairs of overrun completion queues to `Error`: as many as have a bounded number of requests
    /// together, at least one. The adapter calls it as long as [`Self::has_overrun`] returns true.
    #[cold]
    pub fn fail_overrun_part(&mut self) {
        let mut left = OVERRUN_WORK_MAX;
        while let Some(slot) = self.overrun.filter(|_| left > 0) {
            self.overrun = slot.checked_add(1).filter(|_| slot < self.qps.slots());
            let mut work = 1;
            if let Some(number) = self.overrun_qp(slot) {
                work = self.qps.get(number.0).map_or(0, Qp::used).saturating_add(OVERRUN_WORK);
                self.fail_qp(number);
            }
            left = left.saturating_sub(work);
        }
    }

    /// Returns the queue pair of a slot if it completes to an overrun queue and is not in error.
    #[cold]
    fn overrun_qp(&self, slot: u32) -> Option<QpNum> {
        let (number, qp) = self.qps.at(slot)?;
        let is_hit = qp.state != QpState::Error
            && (self.is_overrun(qp.init.send_cq) || self.is_overrun(qp.init.recv_cq));
        is_hit.then_some(QpNum(number))
    }
}
