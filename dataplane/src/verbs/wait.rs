//! Connection calls of a [`Node`], and calls that poll until an event or a completion arrives. Programs that do other
//! work meanwhile call [`Node::poll`] and the device's `poll_…` methods themselves.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::ControlFlow;
use std::time::Duration;

use rdma::verbs::{CmEvent, CmId, ConnParam, CqId, PollError, QpNum, VerbsError, WcStatus, WorkCompletion};

use super::Node;

/// Reason why a waiting call returns no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Nothing happened within the time.
    #[error("nothing happened within {0:?}")]
    TimedOut(Duration),
    /// The work request did not succeed.
    #[error("work request {wr_id}: {status}")]
    Failed {
        /// Number that the request was posted with.
        wr_id: u64,
        /// Reason of the failure.
        status: WcStatus,
    },
    /// The completion queue cannot be polled.
    #[error("the completion queue: {0}")]
    Poll(#[from] PollError),
}

impl Node {
    /// Polls until `done` returns a value. Calls it after each iteration.
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]: it did not within `timeout`, counted from this call.
    pub fn wait<T>(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, WaitError> {
        let until = self.time() + timeout;
        self.run(|node| match done(node) {
            Some(value) => ControlFlow::Break(Ok(value)),
            None if node.time() >= until => ControlFlow::Break(Err(WaitError::TimedOut(timeout))),
            None => ControlFlow::Continue(()),
        })
    }

    /// Waits for the next event of a listener or connection (`rdma_get_cm_event`).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`].
    pub fn wait_event(&mut self, timeout: Duration) -> Result<CmEvent, WaitError> {
        self.wait(timeout, |node| node.device_mut().poll_cm_event())
    }

    /// Waits for the next completion of a queue (`ibv_poll_cq` in a loop).
    ///
    /// # Errors
    /// [`WaitError::TimedOut`]. [`WaitError::Failed`]: the request did not succeed. [`WaitError::Poll`]: there is no
    /// such queue, or it has overrun and is empty.
    pub fn wait_completion(&mut self, cq: CqId, timeout: Duration) -> Result<WorkCompletion, WaitError> {
        let mut completions = [WorkCompletion::default()];
        let polled = self.wait(timeout, |node| match node.device_mut().poll_cq(cq, &mut completions) {
            Ok(0) => None,
            other => Some(other),
        })?;
        polled?;
        let [wc] = completions;
        wc.success().map_err(|status| WaitError::Failed { wr_id: wc.wr_id, status })
    }

    /// Listens at an address of the port (`rdma_create_id`, `rdma_bind_addr`, `rdma_listen`). Up to `backlog` connect
    /// requests may wait for `accept` or `reject`; 0 counts as 1. If the address is not available,
    /// [`Self::wait_event`] returns an `AddressError`.
    ///
    /// # Errors
    /// `NoResources`: the device has no free id.
    pub fn listen(&mut self, local: SocketAddr, backlog: u16) -> Result<CmId, VerbsError> {
        let device = self.device_mut();
        let id = device.create_id(Some(local))?;
        device.listen(id, NonZeroU16::new(backlog).unwrap_or(NonZeroU16::MIN), &ConnParam::default())?;
        Ok(id)
    }

    /// Connects a queue pair with a peer (`rdma_create_id`, `rdma_connect`). [`Self::wait_event`] returns the outcome.
    ///
    /// # Errors
    /// As for [`connect`](rdma::verbs::Device::connect), and `NoResources`: the device has no free id.
    pub fn connect(
        &mut self,
        qp: QpNum,
        peer: SocketAddr,
        param: &ConnParam<'_>,
    ) -> Result<CmId, VerbsError> {
        let device = self.device_mut();
        let id = device.create_id(None)?;
        device.connect(id, qp, peer, param).inspect_err(|_| {
            // The id is new: destroying it cannot fail.
            let _ = device.destroy_id(id);
        })?;
        Ok(id)
    }

    /// Closes a connection when its posted work is done (`rdma_disconnect`), or resets it after `disconnect_timeout`.
    /// Resets a connection that is not established.
    pub fn disconnect(&mut self, id: CmId) {
        let now = self.time();
        self.engine_mut().disconnect(id, now);
    }
}
