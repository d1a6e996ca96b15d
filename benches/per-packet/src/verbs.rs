//! Two devices of verbs objects, a queue pair on each, connected by memory.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use rdma::verbs::{
    Access, AddressBase, CmEventKind, CmId, ConnParam, CqId, Data, Device, Limits, MemoryRegion, QpCap,
    QpInit, QpNum, RecvWr, SendFlags, SendOp, SendWr, Sge, TransportRequest, WcStatus, WorkCompletion,
};
use rdma::{EndpointConfig, Env, RdmaStats, Sink, StagTable, StreamId, VecMemory};

/// Bytes of a message.
pub(super) const MESSAGE: u32 = 64;
/// Bytes of a region, which messages go through from its start to its end, again and again.
const REGION: u64 = 1 << 16;
/// Payload of a full segment at an MTU of 1500, bytes.
const MSS: usize = 1448;
/// Places of a queue.
const DEPTH: u16 = 128;
/// One work request in so many is told of.
const SIGNAL_EVERY: u64 = 32;

/// A transport whose segments lie one behind the other.
#[derive(Debug)]
pub(super) struct Pipe {
    bytes: Vec<u8>,
    /// Where segments end, the last one excepted.
    cuts: Vec<usize>,
    len: usize,
}

impl Pipe {
    fn new() -> Self {
        Self { bytes: vec![0; 1 << 16], cuts: Vec::with_capacity(64), len: 0 }
    }

    /// What it holds, segment by segment; empty from here on.
    fn segments(&mut self) -> Vec<Vec<u8>> {
        self.cuts.push(self.len);
        let ends = self.cuts.drain(..);
        let mut start = 0;
        let segments = ends.filter_map(|end| {
            let segment = self.bytes.get(start..end)?.to_vec();
            start = end;
            (!segment.is_empty()).then_some(segment)
        });
        let segments = segments.collect();
        self.len = 0;
        segments
    }
}

impl Sink for Pipe {
    fn fpdu_max(&self) -> usize {
        MSS
    }

    fn room(&self) -> usize {
        self.bytes.len().saturating_sub(self.len)
    }

    #[inline]
    fn push(&mut self, len: usize, build: &mut dyn FnMut(&mut [u8])) -> bool {
        let begin = self.cuts.last().copied().unwrap_or(0);
        let end = self.len.saturating_add(len);
        let Some(room) = self.bytes.get_mut(self.len..end) else { return false };
        if end.saturating_sub(begin) > MSS {
            self.cuts.push(self.len);
        }
        build(room);
        self.len = end;
        true
    }
}

/// One side of the connection.
#[derive(Debug)]
pub(super) struct Side {
    device: Device<Vec<u8>>,
    stags: StagTable,
    memory: VecMemory,
    stats: RdmaStats,
    pipe: Pipe,
    position: u64,
    id: Option<CmId>,
    qp: QpNum,
    cq: CqId,
    region: MemoryRegion,
    posted: u64,
    buffers: u64,
}

impl Side {
    fn new() -> Option<Self> {
        let mut device = Device::new(Limits::default(), EndpointConfig::default());
        let mut stags = StagTable::new(64, [9; 32]);
        let mut memory = VecMemory::new();
        let pd = device.alloc_pd().ok()?;
        let cq = device.create_cq(u32::from(DEPTH).saturating_mul(2)).ok()?;
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qp = device.create_qp(init).ok()?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = memory.add(vec![0x5a; usize::try_from(REGION).ok()?])?;
        let region = device.reg_mr(pd, (bytes, 0, REGION), AddressBase::Zero, access, &mut stags).ok()?;
        let (stats, pipe) = (RdmaStats::default(), Pipe::new());
        let (position, id, posted, buffers) = (0, None, 0, 0);
        Some(Self { device, stags, memory, stats, pipe, position, id, qp, cq, region, posted, buffers })
    }

    /// The next element of a list, one message long.
    const fn sge(&self, number: u64) -> Sge {
        let addr = number.wrapping_mul(MESSAGE as u64) % REGION;
        Sge { addr, length: MESSAGE, lkey: self.region.lkey }
    }

    /// Posts a message: a Write where `rkey` names the peer's region, a Send otherwise.
    #[inline]
    pub(super) fn post(&mut self, peer: Option<MemoryRegion>) -> bool {
        let list = [self.sge(self.posted)];
        let op = match (peer, &list) {
            (Some(peer), [sge]) => SendOp::RdmaWrite { remote_addr: sge.addr, rkey: peer.rkey },
            (None, _) => SendOp::Send { invalidate: None },
        };
        let signaled = self.posted % SIGNAL_EVERY == SIGNAL_EVERY - 1;
        let flags = SendFlags { signaled, ..SendFlags::default() };
        let wr = SendWr { wr_id: self.posted, op, data: Data::List(&list), flags };
        self.posted = self.posted.wrapping_add(1);
        self.device.post_send(self.qp, &wr).is_ok()
    }

    /// Posts a buffer for a message.
    #[inline]
    pub(super) fn post_buffer(&mut self) -> bool {
        let list = [self.sge(self.buffers)];
        self.buffers = self.buffers.wrapping_add(1);
        self.device.post_recv(self.qp, &RecvWr { wr_id: self.buffers, sg_list: &list }).is_ok()
    }

    /// Does what the device asks for, and says what it wants done at the peer.
    #[inline]
    pub(super) fn transmit(&mut self) {
        let Self { device, stags, memory, stats, pipe, .. } = self;
        while let Some(request) = device.poll_transport() {
            if let TransportRequest::Transmit { id } = request {
                device.poll_transmit(id, Duration::ZERO, &mut Env { stags, memory, stats }, pipe);
            }
        }
    }

    /// The segments sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        self.pipe.segments()
    }

    /// Takes a segment of the peer's.
    #[inline]
    pub(super) fn take(&mut self, segment: Vec<u8>) {
        let Self { device, stags, memory, stats, position, id: Some(id), .. } = self else { return };
        let len = segment.len() as u64;
        device.receive(*id, Duration::ZERO, *position, segment, &mut Env { stags, memory, stats });
        *position = position.wrapping_add(len);
    }

    /// Takes completions; how many say that all went well.
    #[inline]
    pub(super) fn poll(&mut self) -> u64 {
        let mut taken = [WorkCompletion::default(); 64];
        let mut done = 0_u64;
        while let Ok(count @ 1..) = self.device.poll_cq(self.cq, &mut taken) {
            let well = taken.iter().take(count).filter(|wc| wc.status == WcStatus::Success).count();
            done = done.wrapping_add(well as u64);
        }
        done
    }

    /// Where the peer may write.
    pub(super) const fn region(&self) -> MemoryRegion {
        self.region
    }

    /// Messages of the peer that were placed whole.
    pub(super) const fn writes_placed(&self) -> u64 {
        self.stats.rdmap.in_rdma_writes
    }
}

/// Two sides, connected.
#[derive(Debug)]
pub(super) struct Pair {
    /// Has opened the connection.
    pub(super) near: Side,
    /// Has accepted it.
    pub(super) far: Side,
}

impl Pair {
    /// `None` where something of it cannot be had, which would be a fault of the engine's.
    pub(super) fn new() -> Option<Self> {
        let (mut near, mut far) = (Side::new()?, Side::new()?);
        let [here, there] = [SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 2))];
        let param = ConnParam::default();
        let listener = far.device.create_id(Some(there)).ok()?;
        far.device.listen(listener, NonZeroU16::new(1)?, &param).ok()?;
        while far.device.poll_transport().is_some() {}
        let id = near.device.create_id(None).ok()?;
        near.device.connect(id, near.qp, there, &param).ok()?;
        while near.device.poll_transport().is_some() {}
        let incoming = far.device.incoming(listener, StreamId(2), (there, here), Duration::ZERO)?;
        let Side { device, stats, .. } = &mut near;
        device.opened(id, StreamId(1), here, Duration::ZERO, stats).then_some(())?;
        (near.id, far.id) = (Some(id), Some(incoming));
        let mut pair = Self { near, far };
        let mut established = 0;
        for _ in 0..16 {
            pair.near.transmit();
            let to_far = pair.near.sent();
            to_far.into_iter().for_each(|segment| pair.far.take(segment));
            while let Some(event) = pair.far.device.poll_cm_event() {
                if let CmEventKind::ConnectRequest { .. } = event.kind {
                    pair.far.device.accept(event.id, pair.far.qp, &[]).ok()?;
                }
            }
            pair.far.transmit();
            let to_near = pair.far.sent();
            to_near.into_iter().for_each(|segment| pair.near.take(segment));
            while let Some(event) = pair.near.device.poll_cm_event() {
                established += u32::from(matches!(event.kind, CmEventKind::Established { .. }));
            }
        }
        (established == 1).then_some(pair)
    }
}
