//! Queue pairs of the host's device as engines of streams: creation, events, and end.
//!
//! The streams of a host share a device; some share completion queues and a shared receive queue. The device's events
//! are polled after every call, and queued for their stream.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use iwarp_alloc_counter::{counted, watched};
use rdma::verbs::{
    AddressBase, AsyncEvent, CmEventKind, CmId, ConnParam, CqId, Device, Limits, MemoryRegion, PdId, QpCap,
    QpInit, QpNum, QpState, SrqId, TransportRequest, WorkCompletion,
};
use rdma::{Access, CloseHow, EndpointConfig, ErrorCode, RegionId, Stag, WcOpcode, WcStatus};
use tcp_stack::testutil::HeapBuf;
use tcp_stack::{Instant, Segment};

use crate::engine::{Engine, Handle};
use crate::model::Ticket;
use crate::scenario::{ConnPlan, HostPlan, SidePlan};
use crate::stream::{GUARD, Stream, Tools, since_start};

/// Maximum number of elements of a list.
pub(crate) const SGES: u16 = 16;
/// Maximum bytes of inline data.
pub(crate) const INLINE: u16 = 200;
/// Number of memory windows per stream.
const WINDOWS: usize = 2;
/// Slots of a completion queue: more than four streams can fill.
const CQES: u32 = 1024;

pub(crate) type HostDevice = Device<Segment<HeapBuf>>;

/// Event or completion for a stream.
#[derive(Debug)]
pub(crate) enum Notice {
    Asked(Box<[u8]>),
    Established {
        private_data: Box<[u8]>,
        ird: u16,
        ord: u16,
    },
    Rejected(Box<[u8]>),
    /// The connection has ended; true if it was established.
    Over(bool),
    TerminateSent(ErrorCode),
    TerminateReceived(ErrorCode),
    LastTaken,
    Completed(WorkCompletion),
    Close(CloseHow),
}

/// State that the streams of a device share, and their queued notices.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pd: PdId,
    /// Completion queues of send and receive queues; they may be the same.
    cqs: [CqId; 2],
    pub(crate) srq: Option<SrqId>,
    /// By connection: the listener, the connection's id and its queue pair.
    listeners: Vec<Option<CmId>>,
    pub(crate) handles: Vec<Option<(CmId, QpNum)>>,
    /// Queued notices by connection.
    notices: Vec<VecDeque<Notice>>,
    /// Number of limit events of the shared receive queue.
    pub(crate) limits_reached: u64,
}

/// A memory window, bound or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) window: rdma::verbs::MwId,
    /// Current or last key of the window.
    pub(crate) rkey: Stag,
    /// True if it is bound, or about to be.
    pub(crate) in_use: bool,
}

/// Objects of a stream with a queue pair.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) work: MemoryRegion,
    pub(crate) open: MemoryRegion,
    narrow: [MemoryRegion; 2],
    pub(crate) windows: Vec<Bound>,
    pub(crate) last_taken: bool,
    /// Unsignaled requests that had succeeded when the stream ended: no completion frees their slots.
    unsignaled: usize,
    /// True once the program has seen the connection.
    pub(crate) known: bool,
}

impl Shared {
    pub(crate) fn new(device: &mut HostDevice, plan: &HostPlan, connections: usize) -> Result<Self, String> {
        let pd = device.alloc_pd().map_err(|error| error.to_string())?;
        let mut cq = || device.create_cq(CQES).map_err(|error| error.to_string());
        let send = cq()?;
        let recv = if plan.one_cq { send } else { cq()? };
        let srq = plan.srq.map(|places| device.create_srq(pd, places, SGES));
        let srq = srq.transpose().map_err(|error| error.to_string())?;
        for cq in [send, recv] {
            device.req_notify_cq(cq, false).map_err(|error| error.to_string())?;
        }
        Ok(Self {
            pd,
            cqs: [send, recv],
            srq,
            listeners: vec![None; connections],
            handles: vec![None; connections],
            notices: (0..connections).map(|_| VecDeque::new()).collect(),
            limits_reached: 0,
        })
    }

    /// Destroys all objects; fails if one is still in use.
    pub(crate) fn end(&self, device: &mut HostDevice) -> Result<(), String> {
        if let Some(at) = self.notices.iter().position(|queue| !queue.is_empty()) {
            return Err(format!("connection {at} did not take {:?}", self.notices[at]));
        }
        for listener in self.listeners.iter().flatten() {
            device.destroy_id(*listener).map_err(|error| error.to_string())?;
        }
        while device.poll_transport().is_some() {}
        let mut ends = vec![device.destroy_cq(self.cqs[0])];
        if self.cqs[1] != self.cqs[0] {
            ends.push(device.destroy_cq(self.cqs[1]));
        }
        ends.extend(self.srq.map(|srq| device.destroy_srq(srq)));
        ends.push(device.dealloc_pd(self.pd));
        ends.into_iter().collect::<Result<(), _>>().map_err(|error| format!("an object is left: {error}"))
    }

    fn connection_of(&self, mut is_it: impl FnMut(&(CmId, QpNum)) -> bool) -> Option<usize> {
        self.handles.iter().position(|handle| handle.as_ref().is_some_and(&mut is_it))
    }

    fn queue_notice(&mut self, connection: Option<usize>, notice: Notice) -> Result<(), String> {
        let queue = connection.and_then(|connection| self.notices.get_mut(connection));
        queue.ok_or_else(|| format!("of no connection: {notice:?}"))?.push_back(notice);
        Ok(())
    }

    /// Polls all events of the device.
    fn poll_device(&mut self, device: &mut HostDevice) -> Result<(), String> {
        while let Some(event) = device.poll_cm_event() {
            let notice = match event.kind {
                CmEventKind::ConnectRequest { private_data, .. } => Notice::Asked(private_data),
                CmEventKind::Established { private_data, responder_resources, initiator_depth, .. } => {
                    Notice::Established { private_data, ird: responder_resources, ord: initiator_depth }
                }
                CmEventKind::Rejected { private_data } => Notice::Rejected(private_data),
                CmEventKind::Disconnected => Notice::Over(true),
                CmEventKind::ConnectError { .. } => Notice::Over(false),
                kind @ (CmEventKind::AddressError | CmEventKind::Refused | CmEventKind::Unreachable) => {
                    return Err(format!("{kind:?}"));
                }
            };
            self.queue_notice(self.connection_of(|(id, _)| *id == event.id), notice)?;
        }
        while let Some(event) = device.poll_async_event() {
            let (qp, notice) = match event {
                AsyncEvent::QpFatal(qp, code)
                | AsyncEvent::QpRequestError(qp, code)
                | AsyncEvent::QpAccessError(qp, code) => (qp, Notice::TerminateSent(code)),
                AsyncEvent::QpTerminated(qp, code) => (qp, Notice::TerminateReceived(code)),
                AsyncEvent::QpLastWqeReached(qp) => (qp, Notice::LastTaken),
                AsyncEvent::SrqLimitReached(_) => {
                    self.limits_reached += 1;
                    continue;
                }
                AsyncEvent::CqError(cq) => return Err(format!("{cq:?} has overrun")),
            };
            self.queue_notice(self.connection_of(|(_, number)| *number == qp), notice)?;
        }
        self.sweep_completions(device)?;
        while let Some(request) = device.poll_transport() {
            match request {
                TransportRequest::Close { id, how, .. } => {
                    self.queue_notice(self.connection_of(|(of, _)| *of == id), Notice::Close(how))?;
                }
                // The test opens streams and transmits for them by itself.
                TransportRequest::Listen { .. }
                | TransportRequest::Unlisten { .. }
                | TransportRequest::Open { .. }
                | TransportRequest::Loop { .. }
                | TransportRequest::Transmit { .. } => {}
            }
        }
        Ok(())
    }

    fn sweep_completions(&mut self, device: &mut HostDevice) -> Result<(), String> {
        let mut events = 0_usize;
        while let Some(cq) = device.poll_cq_event() {
            events += usize::from(self.cqs.contains(&cq));
        }
        for cq in self.cqs {
            let mut out = [WorkCompletion::default(); 8];
            loop {
                let before = counted();
                let taken = watched(|| device.poll_cq(cq, &mut out));
                let taken = taken.map_err(|error| format!("{cq:?}: {error:?}"))?;
                if counted() > before {
                    return Err("a completion queue allocates when it is polled".into());
                }
                for wc in &out[..taken] {
                    if events == 0 {
                        return Err(format!("{wc:?}, and nobody was woken"));
                    }
                    self.queue_notice(
                        self.connection_of(|(_, qp)| *qp == wc.qp_num),
                        Notice::Completed(*wc),
                    )?;
                }
                if taken == 0 {
                    break;
                }
            }
            device.req_notify_cq(cq, false).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Creates a device for the streams of a host, which all have the same settings.
pub(crate) fn new_device(config: EndpointConfig) -> HostDevice {
    let limits = Limits {
        pds: 2,
        mrs: 256,
        mws: 16,
        cqs: 4,
        qps: 8,
        srqs: 2,
        ids: 16,
        inline_max: INLINE,
        ..Limits::default()
    };
    Device::new(limits, config)
}

fn param(plan: &ConnPlan, side: usize) -> ConnParam<'static> {
    let SidePlan { ird, ord, rtr, .. } = plan.sides[side];
    ConnParam {
        private_data: &[],
        responder_resources: ird,
        initiator_depth: ord,
        revision: plan.revision,
        rtr,
    }
}

/// Listens for a connection whose responder has a queue pair.
pub(crate) fn listen(
    tools: &mut Tools,
    connection: usize,
    plan: &ConnPlan,
    at: std::net::SocketAddr,
) -> Result<(), String> {
    let device = &mut tools.device;
    let id = device.create_id(Some(at)).map_err(|error| error.to_string())?;
    device.listen(id, NonZeroU16::MIN, &param(plan, 1)).map_err(|error| error.to_string())?;
    tools.verbs.listeners[connection] = Some(id);
    Ok(())
}

/// A connection that TCP has established.
pub(crate) struct Established<'a> {
    pub(crate) now: Instant,
    pub(crate) id: rdma::StreamId,
    pub(crate) local: std::net::SocketAddr,
    pub(crate) remote: std::net::SocketAddr,
    pub(crate) request: &'a [u8],
}

/// Creates a queue pair for a connection that TCP has established.
pub(crate) fn open(
    tools: &mut Tools,
    (connection, side): (usize, usize),
    plan: &ConnPlan,
    regions: (RegionId, RegionId, u64),
    conn: &Established<'_>,
) -> Result<(Engine, Own), String> {
    let (own, qp) = make(tools, (connection, side), plan, regions)?;
    // Events of other streams first: below, only the request for a stream is expected.
    tools.verbs.poll_device(&mut tools.device)?;
    let (device, stats) = (&mut tools.device, &mut tools.stats);
    let now = since_start(conn.now);
    let id = if side == 0 {
        let id = device.create_id(None).map_err(|error| error.to_string())?;
        let param = ConnParam { private_data: conn.request, ..param(plan, 0) };
        device.connect(id, qp, conn.remote, &param).map_err(|error| error.to_string())?;
        let due = core::iter::from_fn(|| device.poll_transport())
            .any(|request| matches!(request, TransportRequest::Open { id: of, .. } if of == id));
        if !due || !device.opened(id, conn.id, conn.local, now, stats) {
            return Err("the stream that was opened is not wanted".into());
        }
        id
    } else {
        let listener = tools.verbs.listeners[connection].ok_or("nobody listens")?;
        let id = device.incoming(listener, conn.id, (conn.local, conn.remote), now);
        id.ok_or("there is no place for the stream")?
    };
    tools.verbs.handles[connection] = Some((id, qp));
    Ok((Engine::Verbs(Handle { id, qp }), own))
}

/// Creates the objects of a stream.
fn make(
    tools: &mut Tools,
    (connection, side): (usize, usize),
    plan: &ConnPlan,
    (open, work, window): (RegionId, RegionId, u64),
) -> Result<(Own, QpNum), String> {
    let Tools { device, verbs, stags, memory, .. } = tools;
    let side_plan = &plan.sides[side];
    let work_len = memory.inner.bytes(work).map_or(0, |bytes| bytes.len() as u64);
    let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let base_to = AddressBase::At(crate::stream::base_to(connection, side));
    let mut reg = |part, base, access| {
        device.reg_mr(verbs.pd, part, base, access, stags).map_err(|error| error.to_string())
    };
    let part = (open, GUARD, window);
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let own = Own {
        work: reg((work, 0, work_len), AddressBase::At(0x10_0000), local)?,
        open: reg(part, base_to, local | remote | Access::WINDOW_BIND)?,
        narrow: [
            reg(part, base_to, local | Access::REMOTE_READ)?,
            reg(part, base_to, local | Access::REMOTE_WRITE)?,
        ],
        windows: Vec::new(),
        last_taken: false,
        unsignaled: 0,
        known: side == 0,
    };
    let windows = (0..WINDOWS).map(|_| {
        let made = device.alloc_mw(verbs.pd, stags).map_err(|error| error.to_string())?;
        Ok(Bound { window: made.id, rkey: made.rkey, in_use: false })
    });
    let own = Own { windows: windows.collect::<Result<_, String>>()?, ..own };
    let cap = QpCap {
        max_send_wr: side_plan.send_queue,
        max_recv_wr: side_plan.receive_queue,
        max_send_sge: SGES,
        max_recv_sge: SGES,
        max_inline_data: INLINE,
    };
    let [send_cq, recv_cq] = verbs.cqs;
    let srq = verbs.srq.filter(|_| side_plan.srq);
    let init =
        QpInit { recv_cq, srq, cap, sq_sig_all: !side_plan.unsignaled, ..QpInit::new(verbs.pd, send_cq) };
    let qp = device.create_qp(init).map_err(|error| error.to_string())?;
    Ok((own, qp))
}

impl Own {
    /// Returns the STags that the peer may use from the start: every right but invalidation, read-only, write-only.
    pub(crate) fn offer(&self) -> (Stag, (Stag, Stag)) {
        (self.open.rkey, (self.narrow[0].rkey, self.narrow[1].rkey))
    }

    /// Destroys the objects of a stream, whose queue pair must be idle or in error.
    pub(crate) fn end(&mut self, handle: &Handle, tools: &mut Tools) -> Result<(), String> {
        let Tools { device, stags, verbs, .. } = tools;
        let attr = device.query_qp(handle.qp).map_err(|error| error.to_string())?;
        if (attr.send_used, attr.recv_used, attr.id) != (self.unsignaled, 0, None) {
            return Err(format!("work of a queue pair is left: {attr:?}"));
        }
        if attr.init.srq.is_some() != self.last_taken {
            return Err("the last buffer of a shared receive queue, and no event".into());
        }
        let mut ends = vec![device.destroy_qp(handle.qp)];
        // A connection that the program has not seen is freed with its stream.
        ends.extend(self.known.then(|| device.destroy_id(handle.id)));
        ends.extend(self.windows.iter().map(|bound| device.dealloc_mw(bound.window, stags)));
        let regions = [self.work, self.open, self.narrow[0], self.narrow[1]];
        ends.extend(regions.iter().map(|region| device.dereg_mr(region.id, stags)));
        for key in
            regions.iter().map(|region| region.rkey).chain(self.windows.iter().map(|window| window.rkey))
        {
            if stags.windows_of(key) > 0 {
                return Err(format!("a window is bound to {key:?}"));
            }
        }
        let connection =
            verbs.connection_of(|(_, qp)| *qp == handle.qp).ok_or("a queue pair of no connection")?;
        verbs.handles[connection] = None;
        ends.into_iter().collect::<Result<(), _>>().map_err(|error| format!("an object is left: {error}"))
    }
}

impl Stream {
    /// Returns the next notice for the queue pair's owner.
    pub(crate) fn next_notice(&mut self, tools: &mut Tools) -> Result<Option<Notice>, String> {
        let Tools { device, verbs, .. } = tools;
        verbs.poll_device(device)?;
        Ok(verbs.notices[self.connection].pop_front())
    }

    pub(crate) fn handle_notice(
        &mut self,
        now: Instant,
        notice: Notice,
        tools: &mut Tools,
    ) -> Result<(), String> {
        match notice {
            Notice::Asked(private_data) => {
                self.objects.as_mut().ok_or("not a queue pair")?.known = true;
                self.asked(&private_data, tools)
            }
            Notice::Established { private_data, ird, ord } => {
                let Engine::Verbs(conn) = &self.engine else { return Err("not a queue pair".into()) };
                let crc = tools.device.stream_info(conn.id).is_some_and(|info| info.crc);
                self.established(now, &private_data, (ird, ord, crc))
            }
            Notice::Rejected(private_data) => self.was_rejected(&private_data),
            Notice::Over(established) if established == self.outcome.established => Ok(()),
            Notice::Over(_) => Err("the end is reported as that of another connection".into()),
            Notice::TerminateSent(code) => {
                self.outcome.terminate_sent = Some(code);
                Ok(())
            }
            Notice::TerminateReceived(code) => {
                self.outcome.terminate_received = Some(code);
                Ok(())
            }
            Notice::LastTaken => {
                self.objects.as_mut().ok_or("not a queue pair")?.last_taken = true;
                Ok(())
            }
            Notice::Completed(wc) => self.handle_completion(now, &wc, tools),
            Notice::Close(how) => {
                // Flushed requests produced completions; the remaining unsignaled ones have succeeded.
                self.objects.as_mut().ok_or("not a queue pair")?.unsignaled = self.posted.len();
                while self.posted.front().is_some_and(|posted| !posted.signaled) {
                    self.completed_unsignaled(tools)?;
                }
                self.settle_queue_pair(now, tools)?;
                self.ended(now, how, tools)?;
                let Engine::Verbs(conn) = &self.engine else { return Err("not a queue pair".into()) };
                tools.device.closed(conn.id, &mut tools.stags);
                Ok(())
            }
        }
    }

    /// A queue pair that never had a stream still has its buffers.
    fn settle_queue_pair(&mut self, now: Instant, tools: &mut Tools) -> Result<(), String> {
        let Engine::Verbs(conn) = &self.engine else { return Err("not a queue pair".into()) };
        let attr = tools.device.query_qp(conn.qp).map_err(|error| error.to_string())?;
        if attr.state == QpState::Idle {
            let failed = tools.device.modify_qp(conn.qp, QpState::Error, since_start(now));
            failed.map_err(|error| error.to_string())?;
            while let Some(notice) = self.next_notice(tools)? {
                self.handle_notice(now, notice, tools)?;
            }
        } else if attr.state != QpState::Error {
            return Err(format!("the end, and {attr:?}"));
        }
        Ok(())
    }

    /// Handles an unsignaled request that succeeded, as a later completion shows.
    fn completed_unsignaled(&mut self, tools: &mut Tools) -> Result<(), String> {
        let Some(posted) = self.posted.front() else { return Err("nothing is posted".into()) };
        let completion = (posted.id, posted.op, posted.len);
        self.outcome.unsignaled += 1;
        self.completed(completion, WcStatus::Success, tools)
    }

    fn handle_completion(
        &mut self,
        now: Instant,
        wc: &WorkCompletion,
        tools: &mut Tools,
    ) -> Result<(), String> {
        let is_success = wc.status == WcStatus::Success;
        match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvRdmaWithImm if !is_success => self.buffer_flushed(wc.wr_id),
            WcOpcode::Recv => {
                self.received_send(now, (wc.wr_id, wc.byte_len, wc.solicited, wc.invalidated), tools)
            }
            WcOpcode::RecvRdmaWithImm => {
                let data = wc.imm_data.ok_or("Immediate Data without data")?;
                self.received_immediate(now, (wc.wr_id, data, wc.solicited))
            }
            opcode => {
                while self.posted.front().is_some_and(|posted| posted.id != wc.wr_id && !posted.signaled) {
                    self.completed_unsignaled(tools)?;
                }
                let posted = self.posted.front().ok_or("a completion, and nothing is posted")?;
                let op = posted.op;
                if op != opcode {
                    return Err(format!("{op:?} completes as {opcode:?}"));
                }
                self.post_at = Some(now);
                self.completed((wc.wr_id, op, if is_success { wc.byte_len } else { 0 }), wc.status, tools)
            }
        }
    }

    /// Marks a window's key as invalid.
    pub(crate) fn unbind(&mut self, stag: Stag) -> Result<(), String> {
        let windows = self.objects.as_mut().map(|own| &mut own.windows).ok_or("not a queue pair")?;
        let bound = windows.iter_mut().find(|bound| bound.rkey == stag && bound.in_use);
        bound.ok_or_else(|| format!("{stag:?} is none of the stream's windows"))?.in_use = false;
        Ok(())
    }

    /// Offers a newly bound window to the peer.
    pub(crate) fn bound(&mut self, ticket: Ticket) {
        self.model.borrow_mut().offers[self.connection][self.side].tickets.push(ticket);
    }
}
