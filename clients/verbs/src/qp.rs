//! Queue pairs and shared receive queues.

use std::sync::{Arc, Mutex, MutexGuard};

use iwarp_shared_verbs::methods::Executed;
use iwarp_shared_verbs::program::{RecvQueue, SendQueue, Slots};
use iwarp_shared_verbs::{QpPlaces, Request, Response};
use rdma::verbs::{
    Access, CqId, PostError, QpAttr, QpCap, QpInit, QpNum, QpState, QpType, RecvWr, RtrAttr, RtsAttr, SendWr,
    SrqAttr, SrqId, WorkCompletion,
};

use crate::backend::Posted;
use crate::context::{Inner, Words, lock};
use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::mr::ProtectionDomain;

/// Parameters of a new queue pair (`ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpOptions<'a> {
    /// Completion queue of the send queue.
    pub send_cq: &'a CompletionQueue,
    /// Completion queue of the receive queue.
    pub recv_cq: &'a CompletionQueue,
    /// Shared receive queue that supplies the buffers, if any.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Size of the queues.
    pub cap: QpCap,
    /// True if every send request is signaled.
    pub sq_sig_all: bool,
    /// Type of the queue pair.
    pub qp_type: QpType,
}

impl<'a> QpOptions<'a> {
    /// Returns the parameters of a queue pair whose two queues complete to one completion queue.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        let qp_type = QpType::Rc;
        Self { send_cq: cq, recv_cq: cq, srq: None, cap: QpCap::default(), sq_sig_all: false, qp_type }
    }
}

/// A queue pair (`ibv_qp`). Clones are handles of the same queue pair. Several threads may post to it.
#[derive(Clone, Debug)]
pub struct QueuePair(pub(crate) Arc<QpInner>);

#[derive(Debug)]
pub(crate) struct QpInner {
    pd: ProtectionDomain,
    pub(crate) num: QpNum,
    slots: Slots,
    send: Mutex<SendQueue<Words>>,
    recv: Option<Mutex<RecvQueue<Words>>>,
    cqs: [CompletionQueue; 2],
    _srq: Option<SharedReceiveQueue>,
}

impl ProtectionDomain {
    /// Creates a queue pair (`ibv_create_qp`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn create_qp(&self, options: &QpOptions<'_>) -> Result<QueuePair, Error> {
        self.create_qps(options, 1)?.pop().ok_or(Error::Protocol("create_qp"))
    }

    /// Creates several queue pairs alike, with few requests to the daemon.
    ///
    /// # Errors
    /// As [`Self::create_qp`]; then none is created.
    pub fn create_qps(&self, options: &QpOptions<'_>, count: usize) -> Result<Vec<QueuePair>, Error> {
        let call = "create_qp";
        let QpOptions { send_cq, recv_cq, srq, cap, sq_sig_all, qp_type } = *options;
        let of_srq = srq.map(|srq| &srq.0.pd.0.context);
        for of in [&send_cq.0.context, &recv_cq.0.context].into_iter().chain(of_srq) {
            self.0.context.owns(call, of)?;
        }
        let init = QpInit {
            pd: self.0.id,
            send_cq: send_cq.0.id,
            recv_cq: recv_cq.0.id,
            srq: srq.map(|srq| srq.0.id),
            cap,
            sq_sig_all,
            qp_type,
        };
        let Executed { results, mut reason } =
            self.0.context.execute_all(call, &vec![Request::CreateQp(init); count])?;
        let mut made = Vec::with_capacity(count);
        let mut failed = None;
        for result in results {
            match result {
                // Those that were made are destroyed again if one is missing.
                Ok(Response::Qp(num, places)) => made.push(self.qp(options, num, places)?),
                Ok(_) => failed = Some(Error::Protocol(call)),
                Err(cause) => failed = Some(Error::Refused { call, cause, reason: reason.take() }),
            }
        }
        failed.map_or(Ok(made), Err)
    }

    fn qp(&self, options: &QpOptions<'_>, num: QpNum, places: QpPlaces) -> Result<QueuePair, Error> {
        let QpOptions { send_cq, recv_cq, srq, cap, .. } = *options;
        let slots = Slots::new(srq.is_some());
        let words = || self.0.context.words.clone();
        let wrong = || Error::Protocol("create_qp");
        let send = SendQueue::new(words(), num, cap, places.send, slots.clone()).ok_or_else(wrong)?;
        let depth = (cap.max_recv_wr, cap.max_recv_sge);
        let recv = places.recv.map(|place| RecvQueue::new(words(), place, depth, Some(slots.clone())));
        let recv = recv.map(|recv| recv.ok_or_else(wrong)).transpose()?;
        let cqs = [send_cq.clone(), recv_cq.clone()];
        let (send, recv) = (Mutex::new(send), recv.map(Mutex::new));
        let (pd, _srq) = (self.clone(), srq.cloned());
        let qp = Arc::new(QpInner { pd, num, slots: slots.clone(), send, recv, cqs, _srq });
        for cq in &qp.cqs {
            cq.0.add_qp(&qp, slots.clone());
        }
        Ok(QueuePair(qp))
    }

    /// Creates a shared receive queue of `max_wr` buffers with `max_sge` elements each (`ibv_create_srq`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn create_srq(&self, max_wr: u16, max_sge: u16) -> Result<SharedReceiveQueue, Error> {
        let call = "create_srq";
        let request = Request::CreateSrq { pd: self.0.id, max_wr, max_sge };
        let Response::Srq(id, place) = self.0.context.execute(call, request)? else {
            return Err(Error::Protocol(call));
        };
        let queue = RecvQueue::new(self.0.context.words.clone(), place, (max_wr, max_sge), None);
        let queue = Mutex::new(queue.ok_or(Error::Protocol(call))?);
        Ok(SharedReceiveQueue(Arc::new(SrqInner { pd: self.clone(), id, queue })))
    }
}

impl QueuePair {
    pub(crate) fn context(&self) -> &Arc<Inner> {
        &self.0.pd.0.context
    }

    /// Returns the number of the queue pair.
    pub fn num(&self) -> QpNum {
        self.0.num
    }

    /// Posts requests in order, and rings once (`ibv_post_send`).
    ///
    /// # Errors
    /// The index of the first request that was not posted, and the reason. Those before it were posted. `NoSuchObject`
    /// in a child (`fork`) of the process that has created the queue pair.
    #[inline]
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        if self.is_inherited() {
            return Err((0, PostError::NoSuchObject));
        }
        let mut queue = self.0.send_queue();
        let failed =
            requests.iter().enumerate().find_map(|(at, wr)| queue.push(wr).err().map(|error| (at, error)));
        if queue.ring() {
            self.context().wake(Posted::Work);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Opens a batch (`ibv_wr_start`): the requests that are added to it are posted together. Other threads that post
    /// to the queue pair wait until the batch has ended.
    #[inline]
    pub fn begin_batch(&self) {
        if !self.is_inherited() {
            self.0.send_queue().begin_batch();
        }
    }

    /// Adds a request to the batch that this thread has opened.
    ///
    /// # Errors
    /// Reason why it was not added; the others of the batch stay.
    #[inline]
    pub fn add_to_batch(&self, request: &SendWr<'_>) -> Result<(), PostError> {
        if self.is_inherited() {
            return Err(PostError::NoSuchObject);
        }
        lock(&self.0.send).push(request)
    }

    /// Posts the batch, and rings once (`ibv_wr_complete`).
    #[inline]
    pub fn end_batch(&self) {
        if !self.is_inherited() && lock(&self.0.send).end_batch() {
            self.context().wake(Posted::Work);
        }
    }

    /// Drops the batch (`ibv_wr_abort`).
    pub fn abort_batch(&self) {
        if !self.is_inherited() {
            lock(&self.0.send).abort_batch();
        }
    }

    #[inline]
    fn is_inherited(&self) -> bool {
        self.context().is_child()
    }

    /// Posts receive buffers in order, and rings once (`ibv_post_recv`).
    ///
    /// # Errors
    /// As [`Self::post_send`]; `NoSuchObject` for a queue pair with a shared receive queue.
    #[inline]
    pub fn post_recv(&self, buffers: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        let queue = self.0.recv.as_ref().ok_or((0, PostError::NoSuchObject))?;
        post_recv(queue, buffers, &self.0.pd)
    }

    /// Returns a snapshot of the queue pair (`ibv_query_qp`).
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn query(&self) -> Result<QpAttr, Error> {
        match self.context().execute("query_qp", Request::QueryQp(self.0.num))? {
            Response::QpAttr(attr) => Ok(attr),
            _ => Err(Error::Protocol("query_qp")),
        }
    }

    /// Changes the state (`ibv_modify_qp`): to `Error`, which flushes all work, or from there to `Idle`, for another
    /// connection.
    ///
    /// # Errors
    /// The queue pair is not in a state for it, or the daemon has ended.
    pub fn modify(&self, state: QpState) -> Result<(), Error> {
        // Held until the change is complete, so that no thread posts meanwhile.
        let context = self.context();
        if context.is_child() {
            return Err(Error::Lost);
        }
        let mut send = lock(&self.0.send);
        context.execute("modify_qp", Request::ModifyQp(self.0.num, state))?;
        if state == QpState::Idle {
            send.set_ready(false);
            for cq in &self.0.cqs {
                lock(&cq.0.queue).drop_completions(self.0.num);
            }
            self.0.slots.reset();
        } else {
            send.set_ready(true);
        }
        Ok(())
    }

    /// Lets messages of the peer wait for receive buffers, as those of a queue pair that is connected by number do.
    /// Otherwise, on a connection of the connection manager, one without a buffer ends the connection.
    ///
    /// # Errors
    /// The queue pair has a connection, or the daemon has ended.
    pub fn await_buffers(&self) -> Result<(), Error> {
        self.context().execute("modify_qp", Request::AwaitBuffers(self.0.num)).map(drop)
    }

    /// Changes the queue pair to RTR, and names its peer by number (`ibv_modify_qp` with `IBV_QP_AV` and
    /// `IBV_QP_DEST_QPN`). The device connects them; neither this call nor [`Self::ready_to_send`] waits for that. The
    /// peer does the same for this queue pair.
    ///
    /// # Errors
    /// The queue pair is not `Idle` or has a connection, the attributes name no peer, the device makes no connections
    /// by number, or the daemon has ended.
    pub fn ready_to_receive(&self, attr: &RtrAttr) -> Result<(), Error> {
        self.context().execute("modify_qp", Request::ReadyToReceive(self.0.num, *attr)).map(drop)
    }

    /// Changes the queue pair to RTS: it accepts work to send, which is sent once it is connected. A request completes
    /// when the peer has processed it.
    ///
    /// # Errors
    /// The queue pair is not in RTR, an attribute is outside its range, or the daemon has ended.
    pub fn ready_to_send(&self, attr: &RtsAttr) -> Result<(), Error> {
        self.context().execute("modify_qp", Request::ReadyToSend(self.0.num, *attr))?;
        self.0.set_ready(true);
        Ok(())
    }

    /// Changes a queue pair of [`QpType::Ud`] to RTR, or to RTS if it `may_send`, or changes its key: datagrams with
    /// that key go to its receive buffers, each behind 40 bytes of a global route header.
    ///
    /// # Errors
    /// The queue pair is of another type or in error, the device has no connections by number, or the daemon has ended.
    pub fn ready_for_datagrams(&self, qkey: u32, may_send: bool) -> Result<(), Error> {
        self.context().execute("modify_qp", Request::ReadyForDatagrams(self.0.num, qkey))?;
        self.0.set_ready(may_send);
        Ok(())
    }

    /// Changes the rights of the peer (`ibv_modify_qp` with `IBV_QP_ACCESS_FLAGS`): remote read, write and atomic, all
    /// of which a new queue pair grants. An access without its right ends the connection.
    ///
    /// # Errors
    /// There is another right in the set, or the daemon has ended.
    pub fn modify_access(&self, access: Access) -> Result<(), Error> {
        let request = Request::ModifyQpAccess(self.0.num, access);
        self.context().execute("modify_qp", request).map(drop)
    }
}

/// Queues receive buffers and rings once.
#[inline]
fn post_recv(
    queue: &Mutex<RecvQueue<Words>>,
    buffers: &[RecvWr<'_>],
    pd: &ProtectionDomain,
) -> Result<(), (usize, PostError)> {
    if pd.0.context.is_child() {
        return Err((0, PostError::NoSuchObject));
    }
    let mut queue = lock(queue);
    let failed =
        buffers.iter().enumerate().find_map(|(at, wr)| queue.push(wr).err().map(|error| (at, error)));
    if queue.ring() {
        pd.0.context.wake(Posted::Receives);
    }
    failed.map_or(Ok(()), Err)
}

impl QpInner {
    /// Locks the send queue, once no batch is open.
    #[inline]
    fn send_queue(&self) -> MutexGuard<'_, SendQueue<Words>> {
        loop {
            let queue = lock(&self.send);
            if !queue.has_batch() {
                return queue;
            }
            drop(queue);
            std::thread::yield_now();
        }
    }

    /// Returns error completions for the outstanding work that would complete to `cq`. Work that another thread posts
    /// at this moment is left for the next call.
    pub(crate) fn flushed(&self, cq: CqId) -> Vec<WorkCompletion> {
        let [send_cq, recv_cq] = &self.cqs;
        let mut flushed = Vec::new();
        if send_cq.0.id == cq
            && let Ok(mut send) = self.send.try_lock()
        {
            flushed.extend(send.flushed());
        }
        if recv_cq.0.id == cq
            && let Some(Ok(mut recv)) = self.recv.as_ref().map(Mutex::try_lock)
        {
            flushed.extend(recv.flushed(self.num));
        }
        flushed
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        lock(&self.send).set_ready(ready);
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if self.pd.0.context.is_child() {
            return;
        }
        // Fails only if the daemon has ended.
        let _ = self.pd.0.context.execute("destroy_qp", Request::DestroyQp(self.num));
        for cq in &self.cqs {
            lock(&cq.0.queue).remove_qp(self.num);
        }
    }
}

/// A shared receive queue (`ibv_srq`). Clones are handles of the same queue.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    pd: ProtectionDomain,
    id: SrqId,
    queue: Mutex<RecvQueue<Words>>,
}

impl SharedReceiveQueue {
    /// Returns the handle of the queue.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// Posts buffers in order, and rings once (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn post_recv(&self, buffers: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        post_recv(&self.0.queue, buffers, &self.0.pd)
    }

    /// Arms the low-water mark (`ibv_modify_srq`).
    ///
    /// # Errors
    /// The device refuses, or the daemon has ended.
    pub fn modify(&self, limit: u16) -> Result<(), Error> {
        self.0.pd.0.context.execute("modify_srq", Request::ModifySrq(self.0.id, limit)).map(|_| ())
    }

    /// Returns a snapshot of the queue (`ibv_query_srq`).
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn query(&self) -> Result<SrqAttr, Error> {
        match self.0.pd.0.context.execute("query_srq", Request::QuerySrq(self.0.id))? {
            Response::SrqAttr(attr) => Ok(attr),
            _ => Err(Error::Protocol("query_srq")),
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Fails only if the daemon has ended: no queue pair uses it any more.
        let _ = self.pd.0.context.execute("destroy_srq", Request::DestroySrq(self.id));
    }
}
