//! Two verbs devices with one queue pair each, connected by memory instead of a network.

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
/// Bytes of a region, used as a ring by the messages.
const REGION: u64 = 1 << 16;
/// Payload of a full segment at an MTU of 1500, bytes.
const MSS: usize = 1448;
/// Slots of a queue.
const DEPTH: u16 = 128;
/// One work request in this number is signaled.
const SIGNAL_INTERVAL: u64 = 32;

/// A transport that stores its segments consecutively.
#[derive(Debug)]
pub(super) struct Pipe {
    bytes: Vec<u8>,
    /// Ends of the segments, except the last.
    cuts: Vec<usize>,
    len: usize,
}

impl Pipe {
    fn new() -> Self {
        Self { bytes: vec![0; 1 << 16], cuts: Vec::with_capacity(64), len: 0 }
    }

    /// Removes and returns the stored segments.
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

/// One end of the connection.
#[derive(Debug)]
pub(super) struct VerbsEnd {
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

impl VerbsEnd {
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
        let init = QpInit { cap, sq_sig_all: false, ..QpInit::new(pd, cq) };
        let qp = device.create_qp(init).ok()?;
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = memory.add(vec![0x5a; usize::try_from(REGION).ok()?])?;
        let region = device.reg_mr(pd, (bytes, 0, REGION), AddressBase::Zero, access, &mut stags).ok()?;
        let (stats, pipe) = (RdmaStats::default(), Pipe::new());
        let (position, id, posted, buffers) = (0, None, 0, 0);
        Some(Self { device, stags, memory, stats, pipe, position, id, qp, cq, region, posted, buffers })
    }

    /// Returns the scatter-gather element of a message, by its number.
    const fn sge(&self, number: u64) -> Sge {
        let addr = number.wrapping_mul(MESSAGE as u64) % REGION;
        Sge { addr, length: MESSAGE, lkey: self.region.lkey }
    }

    /// Posts a message: a Write if `peer` has a region, otherwise a Send.
    #[inline]
    pub(super) fn post(&mut self, peer: Option<MemoryRegion>) -> bool {
        let list = [self.sge(self.posted)];
        let op = match (peer, &list) {
            (Some(peer), [sge]) => SendOp::RdmaWrite { remote_addr: sge.addr, rkey: peer.rkey },
            (None, _) => SendOp::Send { invalidate: None },
        };
        let signaled = self.posted % SIGNAL_INTERVAL == SIGNAL_INTERVAL - 1;
        let flags = SendFlags { signaled, ..SendFlags::default() };
        let wr = SendWr { wr_id: self.posted, op, data: Data::List(&list), flags };
        self.posted = self.posted.wrapping_add(1);
        self.device.post_send(self.qp, &wr).is_ok()
    }

    /// Posts a receive buffer for a message.
    #[inline]
    pub(super) fn post_buffer(&mut self) -> bool {
        let list = [self.sge(self.buffers)];
        self.buffers = self.buffers.wrapping_add(1);
        self.device.post_recv(self.qp, &RecvWr { wr_id: self.buffers, sg_list: &list }).is_ok()
    }

    /// Handles the device's requests to the transport, which transmits.
    #[inline]
    pub(super) fn transmit(&mut self) {
        let Self { device, stags, memory, stats, pipe, .. } = self;
        while let Some(request) = device.poll_transport() {
            if let TransportRequest::Transmit { id } = request {
                device.poll_transmit(id, Duration::ZERO, &mut Env { stags, memory, stats }, pipe);
            }
        }
    }

    /// Removes and returns the segments sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<Vec<u8>> {
        self.pipe.segments()
    }

    /// Receives a segment of the peer.
    #[inline]
    pub(super) fn receive(&mut self, segment: Vec<u8>) {
        let Self { device, stags, memory, stats, position, id: Some(id), .. } = self else { return };
        let len = segment.len() as u64;
        device.receive(*id, Duration::ZERO, *position, segment, &mut Env { stags, memory, stats });
        *position = position.wrapping_add(len);
    }

    /// Polls completions; returns the number of successful ones.
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

    /// Returns the region that the peer may write to.
    pub(super) const fn region(&self) -> MemoryRegion {
        self.region
    }

    /// Returns the number of Writes of the peer that were placed.
    pub(super) const fn writes_placed(&self) -> u64 {
        self.stats.rdmap.in_rdma_writes
    }
}

/// Both ends of the connection.
#[derive(Debug)]
pub(super) struct Pair {
    /// The end that opened the connection.
    pub(super) initiator: VerbsEnd,
    /// The end that accepted it.
    pub(super) target: VerbsEnd,
}

impl Pair {
    /// Connects two ends; `None` if a call fails, which would be a fault of the engine.
    pub(super) fn new() -> Option<Self> {
        let (mut initiator, mut target) = (VerbsEnd::new()?, VerbsEnd::new()?);
        let [here, there] = [SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 2))];
        let param = ConnParam::default();
        let listener = target.device.create_id(Some(there)).ok()?;
        target.device.listen(listener, NonZeroU16::new(1)?, &param).ok()?;
        while target.device.poll_transport().is_some() {}
        let id = initiator.device.create_id(None).ok()?;
        initiator.device.connect(id, initiator.qp, there, &param).ok()?;
        while initiator.device.poll_transport().is_some() {}
        let incoming = target.device.incoming(listener, StreamId(2), (there, here), Duration::ZERO)?;
        let VerbsEnd { device, stats, .. } = &mut initiator;
        device.opened(id, StreamId(1), here, Duration::ZERO, stats).then_some(())?;
        (initiator.id, target.id) = (Some(id), Some(incoming));
        let mut pair = Self { initiator, target };
        let mut established = 0;
        for _ in 0..16 {
            pair.initiator.transmit();
            let to_target = pair.initiator.sent();
            to_target.into_iter().for_each(|segment| pair.target.receive(segment));
            while let Some(event) = pair.target.device.poll_cm_event() {
                if let CmEventKind::ConnectRequest { .. } = event.kind {
                    pair.target.device.accept(event.id, pair.target.qp, &[]).ok()?;
                }
            }
            pair.target.transmit();
            let to_initiator = pair.target.sent();
            to_initiator.into_iter().for_each(|segment| pair.initiator.receive(segment));
            while let Some(event) = pair.initiator.device.poll_cm_event() {
                established += u32::from(matches!(event.kind, CmEventKind::Established { .. }));
            }
        }
        (established == 1).then_some(pair)
    }
}
