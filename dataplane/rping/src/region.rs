//! Transport of `put`, `get` and `ping` over a node: implements the interface of `iwarp_remote`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dataplane::verbs::{Node, PortEngine};
use iwarp_control::Exit;
use iwarp_engine::memory::RegionMemory;
use iwarp_remote::{
    Completion, ConnectReply, ConnectionRequest, Connector, Fill, Inspect, Negotiated, READS_MAX,
    RdmaConnection, SEND_QUEUE, refusal,
};
use iwarp_terminal::Failure;
use rdma::verbs::{
    Access, AddressBase, AsyncEvent, CmEventKind, CmId, ConnParam, CqId, Data, MemoryRegion, PostError,
    QpCap, QpInit, QpNum, RegionId, SendFlags, SendOp, SendWr, Sge, Stag, VerbsError, WcStatus,
    WorkCompletion,
};
use tcp_stack::Instant;

/// Opens connections over a node.
#[derive(Debug)]
pub(crate) struct NodeConnector<'a> {
    node: &'a mut Node,
    stop: &'a AtomicBool,
    /// Memory of the last connection's window, and its size in bytes: the next connection has it, too.
    window: Option<(RegionId, Arc<RegionMemory>, u32)>,
}

impl<'a> NodeConnector<'a> {
    /// Creates a connector whose connections end when `stop` becomes true.
    pub(crate) const fn new(node: &'a mut Node, stop: &'a AtomicBool) -> Self {
        Self { node, stop, window: None }
    }

    /// Returns memory of a size for a window. The node keeps memory until it ends.
    fn window(&mut self, bytes: u32) -> Result<(RegionId, Arc<RegionMemory>), Failure> {
        if let Some((region, memory, _)) = self.window.as_ref().filter(|(_, _, size)| *size >= bytes) {
            return Ok((*region, Arc::clone(memory)));
        }
        let no_memory =
            |error: anyhow::Error| Failure::new(Exit::Failed, "no_resources", format!("{error:#}"));
        let (region, memory) = self.node.add_region("window", bytes.into()).map_err(no_memory)?;
        self.window = Some((region, Arc::clone(&memory), bytes));
        Ok((region, memory))
    }
}

impl Connector for NodeConnector<'_> {
    fn open(&mut self, request: &ConnectionRequest<'_>) -> Result<Box<dyn RdmaConnection + '_>, Failure> {
        let ConnectionRequest { target, window_bytes, timeout, .. } = *request;
        let no_address = |error: std::io::Error| refusal::unreachable(target, &error.to_string());
        let mut addresses = (target.host.as_str(), target.port).to_socket_addrs().map_err(no_address)?;
        let nobody = || refusal::unreachable(target, "it has no address");
        let peer = addresses.next().ok_or_else(nobody)?;
        Ok(Box::new(Stream::new(self, request, peer, window_bytes, timeout)?))
    }
}

/// RDMA connection over a node.
struct Stream<'a> {
    node: &'a mut Node,
    stop: &'a AtomicBool,
    peer: SocketAddr,
    timeout: Duration,
    id: CmId,
    qp: QpNum,
    cq: CqId,
    window: MemoryRegion,
    memory: Arc<RegionMemory>,
    /// Buffer for bytes on their way into or out of the window.
    scratch: Vec<u8>,
    last_received: Instant,
    /// True if the connection closes gracefully.
    closes: bool,
}

impl Drop for Stream<'_> {
    /// Resets a connection that has failed, and frees its objects: another one may follow.
    fn drop(&mut self) {
        if self.closes {
            return;
        }
        let verbs = self.node.engine_mut();
        let device = verbs.device_mut();
        // Nothing else uses the objects.
        let _ = device.destroy_id(self.id);
        let _ = device.destroy_qp(self.qp);
        let _ = device.destroy_cq(self.cq);
        let _ = verbs.dereg_mr(self.window.id);
    }
}

fn refused(error: VerbsError) -> Failure {
    Failure::new(Exit::Failed, "no_resources", error.to_string())
}

fn unreachable(peer: SocketAddr, why: &str) -> Failure {
    Failure::new(Exit::Unreachable, "unreachable", format!("cannot reach {peer}: {why}"))
        .with_help("is the address right, and does the peer listen there?")
}

impl<'a> Stream<'a> {
    fn new(
        connector: &'a mut NodeConnector<'_>,
        request: &ConnectionRequest<'_>,
        peer: SocketAddr,
        window_bytes: u32,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let (region, memory) = connector.window(window_bytes)?;
        let NodeConnector { node, stop, .. } = connector;
        let verbs = node.engine_mut();
        let make = |verbs: &mut PortEngine| {
            let device = verbs.device_mut();
            let (pd, cq) = (device.alloc_pd()?, device.create_cq(u32::from(SEND_QUEUE) * 2)?);
            let cap = QpCap {
                max_send_wr: SEND_QUEUE,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let init = QpInit { pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: true };
            let (qp, id) = (device.create_qp(init)?, device.create_id(None)?);
            let param = ConnParam {
                private_data: request.private_data,
                responder_resources: 0,
                initiator_depth: READS_MAX,
                revision: request.options.mpa_revision,
                rtr: None,
            };
            device.connect(id, qp, peer, &param)?;
            let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
            let window = verbs.reg_mr(pd, (region, 0, window_bytes.into()), AddressBase::Zero, local)?;
            Ok((id, qp, cq, window))
        };
        let (id, qp, cq, window) = make(verbs).map_err(refused)?;
        let last_received = node.now();
        let (scratch, closes) = (Vec::new(), false);
        Ok(Self { node, stop, peer, timeout, id, qp, cq, window, memory, scratch, last_received, closes })
    }

    /// Polls until `look` returns a result, or the connection ends.
    fn wait<T>(
        &mut self,
        mut look: impl FnMut(&mut PortEngine) -> Option<Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (peer, timeout, stop, id) = (self.peer, self.timeout, self.stop, self.id);
        let last_received = &mut self.last_received;
        let mut bytes = received(self.node, id);
        let found = self.node.run(|node| {
            if let Some(found) = look(node.engine_mut()) {
                return ControlFlow::Break(found);
            }
            let (now, received) = (node.now(), received(node, id));
            if received != bytes {
                (bytes, *last_received) = (received, now);
            }
            if stop.load(Ordering::Relaxed) {
                ControlFlow::Break(Err(Failure::new(Exit::Failed, "interrupted", "interrupted")))
            } else if now.saturating_since(*last_received) >= timeout {
                ControlFlow::Break(Err(refusal::silent(peer, timeout)))
            } else {
                ControlFlow::Continue(())
            }
        });
        self.last_received = self.node.now();
        found
    }

    fn slice(&self, (addr, length): (u64, u32)) -> Sge {
        Sge { addr, length, lkey: self.window.lkey }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, local: (u64, u32)) -> Result<(), Failure> {
        let list = [self.slice(local)];
        let wr = SendWr { wr_id, op, data: Data::List(&list), flags: SendFlags::SIGNALED };
        match self.node.device_mut().post_send(self.qp, &wr) {
            // The stream has ended: the next wait reports why.
            Ok(()) | Err(PostError::State) => Ok(()),
            Err(error) => Err(Failure::new(Exit::Failed, "protocol", format!("{}: {error}", self.peer))),
        }
    }
}

/// Returns the bytes that the peer has sent or acknowledged.
fn received(node: &Node, id: CmId) -> u64 {
    let info = node.engine().tcp_info(id);
    info.map_or(0, |info| info.bytes_in.wrapping_add(info.bytes_acked))
}

/// Returns the reason for the end of the connection.
fn end_of(verbs: &mut PortEngine, peer: SocketAddr) -> Failure {
    let mut why = None;
    while let Some(event) = verbs.device_mut().poll_async_event() {
        match event {
            AsyncEvent::QpTerminated(_, code) => why = Some(refusal::terminated(peer, code)),
            AsyncEvent::QpFatal(_, code)
            | AsyncEvent::QpRequestError(_, code)
            | AsyncEvent::QpAccessError(_, code) => why = Some(refusal::offended(peer, code)),
            AsyncEvent::CqError(_) | AsyncEvent::QpLastWqeReached(_) | AsyncEvent::SrqLimitReached(_) => {}
        }
    }
    why.unwrap_or_else(|| refusal::lost(peer, "the peer closed it"))
}

impl RdmaConnection for Stream<'_> {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn wait_reply(&mut self) -> Result<ConnectReply, Failure> {
        let (id, peer) = (self.id, self.peer);
        self.wait(|verbs| {
            let event = verbs.device_mut().poll_cm_event()?;
            Some(match event.kind {
                CmEventKind::Established { private_data, initiator_depth: ord, .. } => {
                    let info = verbs.device().stream_info(id);
                    let negotiated = info.map(|info| Negotiated { rev: info.rev, crc: info.crc, ord });
                    Ok(ConnectReply { private_data, negotiated })
                }
                CmEventKind::Rejected { private_data } => Ok(ConnectReply { private_data, negotiated: None }),
                CmEventKind::Refused => Err(unreachable(peer, "nobody listens there")),
                CmEventKind::Unreachable => Err(unreachable(peer, "nobody answers")),
                _ => Err(refusal::no_agreement(peer, "its MPA reply is missing or wrong")),
            })
        })
    }

    fn fill(&mut self, offset: u64, length: u32, fill: &mut Fill<'_>) -> Result<(), Failure> {
        let left = self.window.length.saturating_sub(offset).min(length.into());
        self.scratch.resize(usize::try_from(left).unwrap_or(0), 0);
        fill(&mut self.scratch)?;
        let stored = self.memory.write(offset, &self.scratch).is_ok();
        stored.then_some(()).ok_or_else(|| refused(VerbsError::Invalid))
    }

    fn inspect(&mut self, offset: u64, length: u32, inspect: &mut Inspect<'_>) -> Result<(), Failure> {
        let left = self.window.length.saturating_sub(offset).min(length.into());
        self.scratch.resize(usize::try_from(left).unwrap_or(0), 0);
        if self.memory.read(offset, &mut self.scratch).is_err() {
            return Err(refused(VerbsError::Invalid));
        }
        inspect(&self.scratch)
    }

    fn post_write(
        &mut self,
        wr_id: u64,
        from: (u64, u32),
        (rkey, remote_addr): (Stag, u64),
    ) -> Result<(), Failure> {
        self.post(wr_id, SendOp::RdmaWrite { remote_addr, rkey }, from)
    }

    fn post_read(
        &mut self,
        wr_id: u64,
        to: (u64, u32),
        (rkey, remote_addr): (Stag, u64),
    ) -> Result<(), Failure> {
        self.post(wr_id, SendOp::RdmaRead { remote_addr, rkey }, to)
    }

    fn post_immediate(&mut self, wr_id: u64, imm_data: [u8; 8]) -> Result<(), Failure> {
        self.post(wr_id, SendOp::Immediate { imm_data }, (0, 0))
    }

    fn wait_completion(&mut self) -> Result<Completion, Failure> {
        let (cq, peer) = (self.cq, self.peer);
        self.wait(|verbs| {
            let mut out = [WorkCompletion::default()];
            let polled = verbs.device_mut().poll_cq(cq, &mut out);
            let [WorkCompletion { wr_id, byte_len: bytes, status, .. }] = out;
            match (polled, status) {
                (Ok(1), WcStatus::Success) => Some(Ok(Completion { wr_id, bytes })),
                (Ok(1), _) => Some(Err(end_of(verbs, peer))),
                _ => match verbs.device_mut().poll_cm_event()?.kind {
                    CmEventKind::Disconnected => Some(Err(end_of(verbs, peer))),
                    _ => None,
                },
            }
        })
    }

    fn close(mut self: Box<Self>) {
        self.closes = true;
        let now = self.node.now();
        self.node.engine_mut().disconnect(self.id, now);
    }
}
