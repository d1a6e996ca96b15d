//! Execution of the requests of one context.

use core::task::Poll;
use core::time::Duration;

use iwarp_shared_queues::{LINE_WORDS, RingShape, recv_words, send_words};
use rdma::StagTable;
use rdma::verbs::{AsyncEvent, ConnParam, CqId, Device, PdId, QpInit, QpNum, QpState, SrqId, VerbsError};

use super::ContextMemory;
use super::completions::{COMPLETIONS_MAX, CqRing};
use super::context::Context;
use super::objects::{Objects, must_own, room};
use super::queue::{Queue, Target};
use crate::{CqPlace, Event, QpPlaces, Request, Response};

impl<M: ContextMemory> Context<M> {
    /// Drops the requests that were queued before a queue pair was reset.
    fn discard_entries(&mut self, qp: QpNum) {
        let Some(QpPlaces { send, recv }) = self.objects.qps.get(&qp) else { return };
        for place in core::iter::once(send).chain(recv) {
            if let Some(Some(queue)) = self.queues.get_mut(place.doorbell as usize) {
                queue.discard();
            }
        }
    }

    /// Resets the connection of a queue pair that is to end if the program has queued requests that were not posted.
    pub(super) fn fail_if_unposted<C: AsRef<[u8]>>(&mut self, qp: QpNum, device: &mut Device<C>) {
        let send = self.objects.qps.get(&qp).map(|places| places.send.doorbell as usize);
        let queue = send.and_then(|at| self.queues.get_mut(at)).and_then(Option::as_mut);
        if queue.is_some_and(Queue::has_entries) {
            device.fail_qp(qp);
        }
    }

    /// Has the worker post no entries of a queue pair, or post them again.
    fn pause(&mut self, qp: QpNum, paused: bool) {
        let Some(QpPlaces { send, recv }) = self.objects.qps.get(&qp) else { return };
        for place in core::iter::once(send).chain(recv) {
            if let Some(Some(queue)) = self.queues.get_mut(place.doorbell as usize) {
                queue.paused = paused;
            }
        }
    }

    /// Executes a request, or a part of it that takes a few microseconds.
    pub(super) fn execute<C: AsRef<[u8]>>(
        &mut self,
        request: &Request,
        device: &mut Device<C>,
        stags: &mut StagTable,
        now: Duration,
    ) -> Poll<Result<Response, VerbsError>> {
        match *request {
            Request::ModifyQp(qp, QpState::Idle) => self.reset_qp(qp, device, now),
            Request::DestroyQp(qp) => self.destroy_qp(qp, device, now),
            _ => Poll::Ready(self.execute_at_once(request, device, stags, now)),
        }
    }

    /// Drops the completions of a queue pair in error, and then resets it.
    fn reset_qp<C: AsRef<[u8]>>(
        &mut self,
        qp: QpNum,
        device: &mut Device<C>,
        now: Duration,
    ) -> Poll<Result<Response, VerbsError>> {
        must_own(self.objects.qps.contains_key(&qp))?;
        self.pause(qp, true);
        // The device refuses what is not in error.
        if device.purge_qp(qp, COMPLETIONS_MAX) == Ok(false) {
            return Poll::Pending;
        }
        self.pause(qp, false);
        device.modify_qp(qp, QpState::Idle, now)?;
        self.discard_entries(qp);
        Poll::Ready(Ok(Response::Done))
    }

    /// Flushes the work of a queue pair and drops its completions, and then destroys it.
    fn destroy_qp<C: AsRef<[u8]>>(
        &mut self,
        qp: QpNum,
        device: &mut Device<C>,
        now: Duration,
    ) -> Poll<Result<Response, VerbsError>> {
        must_own(self.objects.qps.contains_key(&qp))?;
        self.pause(qp, true);
        self.fail_if_unposted(qp, device);
        device.modify_qp(qp, QpState::Error, now)?;
        if !device.purge_qp(qp, COMPLETIONS_MAX)? {
            return Poll::Pending;
        }
        device.destroy_qp(qp)?;
        if let Some(QpPlaces { send, recv }) = self.objects.qps.remove(&qp) {
            self.close_queue(&send);
            recv.iter().for_each(|place| self.close_queue(place));
        }
        self.forget_events(|event| matches!(event, Event::Async(event) if event.qp() == Some(qp)));
        Poll::Ready(Ok(Response::Done))
    }

    fn execute_at_once<C: AsRef<[u8]>>(
        &mut self,
        request: &Request,
        device: &mut Device<C>,
        stags: &mut StagTable,
        now: Duration,
    ) -> Result<Response, VerbsError> {
        match *request {
            Request::AllocPd
            | Request::DeallocPd(_)
            | Request::RegMr { .. }
            | Request::DeregMr(_)
            | Request::AllocMw(_)
            | Request::DeallocMw(_) => self.memory_request(request, device, stags),
            Request::CreateCq(cqe) => self.create_cq(cqe, device),
            // The rings of completion queues are those of all contexts; neighbors are the transport's.
            Request::ResizeCq(..) | Request::DestroyQp(_) | Request::Resolve { .. } => {
                Err(VerbsError::Invalid)
            }
            Request::DestroyCq(cq) => {
                must_own(self.objects.cqs.contains_key(&cq))?;
                device.destroy_cq(cq)?;
                if let Some(place) = self.objects.cqs.remove(&cq) {
                    self.free_cq(place);
                }
                self.forget_events(|event| *event == Event::Async(AsyncEvent::CqError(cq)));
                Ok(Response::Done)
            }
            Request::CreateSrq { .. }
            | Request::ModifySrq(..)
            | Request::QuerySrq(_)
            | Request::DestroySrq(_) => self.srq_request(request, device),
            Request::CreateQp(ref init) => self.create_qp(init, device),
            Request::ModifyQp(qp, state) => {
                must_own(self.objects.qps.contains_key(&qp))?;
                if state == QpState::Error {
                    self.fail_if_unposted(qp, device);
                }
                device.modify_qp(qp, state, now).map(|()| Response::Done)
            }
            Request::ModifyQpAccess(qp, _)
            | Request::AwaitBuffers(qp)
            | Request::ReadyToReceive(qp, _)
            | Request::ReadyForDatagrams(qp, _)
            | Request::ReadyToSend(qp, _) => {
                must_own(self.objects.qps.contains_key(&qp))?;
                modify_qp(qp, request, device).map(|()| Response::Done)
            }
            Request::QueryQp(qp) => {
                must_own(self.objects.qps.contains_key(&qp))?;
                device.query_qp(qp).map(Response::QpAttr)
            }
            Request::CreateId(_)
            | Request::DestroyId(_)
            | Request::Listen { .. }
            | Request::Connect { .. }
            | Request::Accept { .. }
            | Request::Reject { .. }
            | Request::Disconnect(_)
            | Request::Addresses(_)
            | Request::SetTrafficClass(..) => self.connection_request(request, device, now),
        }
    }

    fn memory_request<C: AsRef<[u8]>>(
        &mut self,
        request: &Request,
        device: &mut Device<C>,
        stags: &mut StagTable,
    ) -> Result<Response, VerbsError> {
        let Self { objects, limits, .. } = self;
        match *request {
            Request::AllocPd => {
                room(objects.pds.len(), limits.pds)?;
                let pd = device.alloc_pd()?;
                objects.pds.insert(pd);
                Ok(Response::Pd(pd))
            }
            Request::DeallocPd(pd) => {
                must_own(objects.pds.contains(&pd))?;
                device.dealloc_pd(pd)?;
                objects.pds.remove(&pd);
                Ok(Response::Done)
            }
            Request::RegMr { pd, memory, base, access } => {
                must_own(objects.pds.contains(&pd))?;
                room(objects.mrs.len(), limits.mrs)?;
                let mr = device.reg_mr(pd, memory, base, access, stags)?;
                objects.mrs.insert(mr.id, memory.0);
                Ok(Response::Mr(mr))
            }
            Request::DeregMr(mr) => {
                must_own(objects.mrs.contains_key(&mr))?;
                device.dereg_mr(mr, stags)?;
                objects.mrs.remove(&mr).map(Response::Deregistered).ok_or(VerbsError::NoSuchObject)
            }
            Request::AllocMw(pd) => {
                must_own(objects.pds.contains(&pd))?;
                room(objects.mws.len(), limits.mws)?;
                let mw = device.alloc_mw(pd, stags)?;
                objects.mws.insert(mw.id);
                Ok(Response::Mw(mw))
            }
            Request::DeallocMw(mw) => {
                must_own(objects.mws.contains(&mw))?;
                device.dealloc_mw(mw, stags)?;
                objects.mws.remove(&mw);
                Ok(Response::Done)
            }
            _ => Err(VerbsError::Invalid),
        }
    }

    fn create_cq<C: AsRef<[u8]>>(
        &mut self,
        cqe: u32,
        device: &mut Device<C>,
    ) -> Result<Response, VerbsError> {
        room(self.objects.cqs.len(), self.limits.cqs)?;
        let place = self.allocate_cq(cqe, device.limits().cqe_max)?;
        match device.create_cq(cqe) {
            Ok(cq) => {
                self.objects.cqs.insert(cq, place);
                Ok(Response::Cq(cq, place))
            }
            Err(error) => {
                self.free_cq(place);
                Err(error)
            }
        }
    }

    /// Allocates the memory of a completion queue of at most `max` entries.
    fn allocate_cq(&mut self, cqe: u32, max: u32) -> Result<CqPlace, VerbsError> {
        if cqe > max {
            return Err(VerbsError::Invalid);
        }
        let shape = CqPlace::shape_for(cqe).ok_or(VerbsError::Invalid)?;
        let header = LINE_WORDS.saturating_add(RingShape::HEADER_WORDS);
        let start = self.allocate(CqPlace::words(shape), header)?;
        Ok(CqPlace { start, shape })
    }

    fn free_cq(&mut self, place: CqPlace) {
        self.free(place.start, CqPlace::words(place.shape));
    }

    /// Resizes a completion queue, with its ring, or does a part of it. After a failure the queue is as it was.
    pub(super) fn resize_cq<C: AsRef<[u8]>>(
        &mut self,
        (cq, cqe): (CqId, u32),
        ring: &mut CqRing<M>,
        device: &mut Device<C>,
    ) -> Poll<Result<Response, VerbsError>> {
        let old = *self.objects.cqs.get(&cq).ok_or(VerbsError::NoSuchObject)?;
        let place = match ring.new_place() {
            Some(place) => place,
            None => {
                let place = self.allocate_cq(cqe, device.limits().cqe_max)?;
                ring.begin_resize(place, cqe, device).inspect_err(|_| self.free_cq(place))?;
                place
            }
        };
        if !ring.resize(cqe, device).inspect_err(|_| self.free_cq(place))? {
            return Poll::Pending;
        }
        self.objects.cqs.insert(cq, place);
        self.free_cq(old);
        Poll::Ready(Ok(Response::Cq(cq, place)))
    }

    fn srq_request<C: AsRef<[u8]>>(
        &mut self,
        request: &Request,
        device: &mut Device<C>,
    ) -> Result<Response, VerbsError> {
        match *request {
            Request::CreateSrq { pd, max_wr, max_sge } => self.create_srq(pd, max_wr, max_sge, device),
            Request::ModifySrq(srq, limit) => {
                must_own(self.objects.srqs.contains_key(&srq))?;
                device.modify_srq(srq, limit).map(|()| Response::Done)
            }
            Request::QuerySrq(srq) => {
                must_own(self.objects.srqs.contains_key(&srq))?;
                device.query_srq(srq).map(Response::SrqAttr)
            }
            Request::DestroySrq(srq) => {
                must_own(self.objects.srqs.contains_key(&srq))?;
                device.destroy_srq(srq)?;
                if let Some(place) = self.objects.srqs.remove(&srq) {
                    self.close_queue(&place);
                }
                self.forget_events(|event| *event == Event::Async(AsyncEvent::SrqLimitReached(srq)));
                Ok(Response::Done)
            }
            _ => Err(VerbsError::Invalid),
        }
    }

    fn create_srq<C: AsRef<[u8]>>(
        &mut self,
        pd: PdId,
        max_wr: u16,
        max_sge: u16,
        device: &mut Device<C>,
    ) -> Result<Response, VerbsError> {
        must_own(self.objects.pds.contains(&pd))?;
        room(self.objects.srqs.len(), self.limits.srqs)?;
        let place = self.open_queue(recv_shape(max_wr, max_sge)?)?;
        match device.create_srq(pd, max_wr, max_sge) {
            Ok(srq) => {
                self.serve_queue(&place, Target::Shared(srq));
                self.objects.srqs.insert(srq, place);
                Ok(Response::Srq(srq, place))
            }
            Err(error) => {
                self.close_queue(&place);
                Err(error)
            }
        }
    }

    fn create_qp<C: AsRef<[u8]>>(
        &mut self,
        init: &QpInit,
        device: &mut Device<C>,
    ) -> Result<Response, VerbsError> {
        let Objects { pds, cqs, srqs, qps, .. } = &self.objects;
        let owns_srq = |srq: &SrqId| srqs.contains_key(srq);
        let owned = pds.contains(&init.pd)
            && cqs.contains_key(&init.send_cq)
            && cqs.contains_key(&init.recv_cq)
            && init.srq.as_ref().is_none_or(owns_srq);
        must_own(owned)?;
        room(qps.len(), self.limits.qps)?;
        let cap = init.cap;
        let words =
            send_words(cap.max_send_sge.into(), cap.max_inline_data.into()).ok_or(VerbsError::Invalid)?;
        let shape = RingShape::new(cap.max_send_wr.max(1).into(), words).ok_or(VerbsError::Invalid)?;
        let send = self.open_queue(shape)?;
        // The doorbell is taken before the next one is searched.
        let qp = device.create_qp(*init).inspect_err(|_| self.close_queue(&send))?;
        self.serve_queue(&send, Target::Send(qp));
        let recv = match init.srq {
            Some(_) => None,
            None => {
                let place =
                    recv_shape(cap.max_recv_wr, cap.max_recv_sge).and_then(|shape| self.open_queue(shape));
                let place = place.inspect_err(|_| {
                    self.close_queue(&send);
                    // Fails only if the queue pair is not there.
                    let _ = device.destroy_qp(qp);
                })?;
                self.serve_queue(&place, Target::Recv(qp));
                Some(place)
            }
        };
        let places = QpPlaces { send, recv };
        self.objects.qps.insert(qp, places);
        Ok(Response::Qp(qp, places))
    }

    fn connection_request<C: AsRef<[u8]>>(
        &mut self,
        request: &Request,
        device: &mut Device<C>,
        now: Duration,
    ) -> Result<Response, VerbsError> {
        if let Request::DestroyId(id) = request {
            must_own(self.objects.ids.contains(id))?;
            if let Some(qp) = device.qp_of(*id) {
                self.fail_if_unposted(qp, device);
            }
            device.destroy_id(*id)?;
            self.objects.ids.remove(id);
            self.forget_events(|event| matches!(event, Event::Cm(event) if event.id == *id));
            return Ok(Response::Done);
        }
        let Objects { ids, qps, .. } = &mut self.objects;
        match request {
            Request::CreateId(local) => {
                let id = device.create_id(*local)?;
                ids.insert(id);
                Ok(Response::Id(id))
            }
            Request::Listen { id, backlog, depths: (responder_resources, initiator_depth) } => {
                must_own(ids.contains(id))?;
                let (responder_resources, initiator_depth) = (*responder_resources, *initiator_depth);
                let param = ConnParam { responder_resources, initiator_depth, ..ConnParam::default() };
                device.listen(*id, *backlog, &param).map(|()| Response::Done)
            }
            Request::Connect { id, qp, peer, private_data, depths, revision, rtr, any_port } => {
                must_own(ids.contains(id) && qps.contains_key(qp))?;
                // A queue pair that is connected by number knows its peer by the daemon that asks.
                if device.is_rendezvous_port(peer.port()) {
                    return Err(VerbsError::NotPermitted);
                }
                let (responder_resources, initiator_depth) = *depths;
                let (revision, rtr) = (*revision, *rtr);
                let param = ConnParam { private_data, responder_resources, initiator_depth, revision, rtr };
                device.connect(*id, *qp, *peer, &param)?;
                if *any_port {
                    device.allow_any_port(*id)?;
                }
                Ok(Response::Done)
            }
            Request::Accept { id, qp, private_data } => {
                must_own(ids.contains(id) && qps.contains_key(qp))?;
                device.accept(*id, *qp, private_data).map(|()| Response::Done)
            }
            Request::Reject { id, private_data } => {
                must_own(ids.contains(id))?;
                device.reject(*id, private_data).map(|()| Response::Done)
            }
            Request::Disconnect(id) => {
                must_own(ids.contains(id))?;
                device.disconnect(*id, now);
                Ok(Response::Done)
            }
            Request::Addresses(id) => {
                must_own(ids.contains(id))?;
                device.addresses(*id).map(|(local, peer)| Response::Addresses(local, peer))
            }
            Request::SetTrafficClass(id, class) => {
                must_own(ids.contains(id))?;
                device.set_traffic_class(*id, *class).map(|()| Response::Done)
            }
            _ => Err(VerbsError::Invalid),
        }
    }
}

/// Returns the size of the ring for receive buffers.
fn recv_shape(max_wr: u16, max_sge: u16) -> Result<RingShape, VerbsError> {
    let words = recv_words(max_sge.into()).ok_or(VerbsError::Invalid)?;
    RingShape::new(max_wr.max(1).into(), words).ok_or(VerbsError::Invalid)
}

/// Changes attributes of a queue pair that is the context's.
fn modify_qp<C: AsRef<[u8]>>(qp: QpNum, request: &Request, device: &mut Device<C>) -> Result<(), VerbsError> {
    match request {
        Request::ModifyQpAccess(_, access) => device.modify_qp_access(qp, *access),
        Request::AwaitBuffers(_) => device.await_buffers(qp),
        Request::ReadyToReceive(_, attr) => device.ready_to_receive(qp, attr),
        Request::ReadyToSend(_, attr) => device.ready_to_send(qp, attr),
        Request::ReadyForDatagrams(_, qkey) => device.ready_for_datagrams(qp, *qkey),
        _ => Err(VerbsError::Invalid),
    }
}
