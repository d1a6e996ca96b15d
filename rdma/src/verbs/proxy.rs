//! Calls for a client that posts and polls for a program in another process: it moves completions on with the slots
//! that they free, and refuses requests that it cannot tell the program of when the program posts them.

use super::completion::{PollError, Slots, WorkCompletion};
use super::ids::{CqId, QpNum};
use super::queue_pair::Posted;
use super::{Device, VerbsError};
use crate::qp::{WcOpcode, WcStatus};

impl<C: AsRef<[u8]>> Device<C> {
    /// Moves the oldest completion out of a completion queue, with the slots that it frees in its queue pair, which are
    /// free then. Returns `None` if the queue is empty.
    ///
    /// # Errors
    /// As for [`Self::poll_cq`].
    #[inline]
    pub fn poll_cq_slots(&mut self, cq: CqId) -> Result<Option<(WorkCompletion, Slots)>, PollError> {
        let Self { cqs, qps, .. } = self;
        let cq = cqs.get_mut(cq.0).ok_or(PollError::NoSuchObject)?;
        let Some((wc, slots)) = cq.pop() else {
            return if cq.overrun { Err(PollError::Overrun) } else { Ok(None) };
        };
        if let Some(qp) = qps.get_mut(wc.qp_num.0) {
            qp.free_slots(slots);
        }
        Ok(Some((wc, slots)))
    }

    /// Ends a queue pair for a send request that cannot be posted: flushes the work before it, then completes the
    /// request with `status`. The connection is reset.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn refuse_send(
        &mut self,
        number: QpNum,
        (wr_id, opcode): (u64, WcOpcode),
        status: WcStatus,
    ) -> Result<(), VerbsError> {
        self.qps.get(number.0).ok_or(VerbsError::NoSuchObject)?;
        self.fail_qp(number);
        self.end_unposted(number, wr_id, Posted { opcode, signaled: true, at_ns: self.now_ns }, status);
        Ok(())
    }

    /// Ends a queue pair for a receive buffer that cannot be posted, as [`Self::refuse_send`].
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn refuse_recv(&mut self, number: QpNum, wr_id: u64, status: WcStatus) -> Result<(), VerbsError> {
        let qp = self.qps.get_mut(number.0).ok_or(VerbsError::NoSuchObject)?;
        qp.recv_used = qp.recv_used.saturating_add(1);
        let cq = qp.init.recv_cq;
        self.fail_qp(number);
        let opcode = WcOpcode::Recv;
        let wc = WorkCompletion { wr_id, status, opcode, qp_num: number, ..WorkCompletion::default() };
        self.push_completion(cq, wc, Slots::Receive);
        self.fail_overrun_qps();
        Ok(())
    }

    /// Puts a completion queue and its queue pairs in error, as if it had overrun.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub fn fail_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.cqs.get(cq.0).ok_or(VerbsError::NoSuchObject)?;
        self.overrun_cq(cq);
        self.fail_overrun_qps();
        Ok(())
    }
}
