//! Two verbs devices, and a transport between them that opens, carries and closes streams in memory.

use core::net::SocketAddr;
use core::num::NonZeroU16;
use core::time::Duration;

use rdma::verbs::*;
use rdma::{CloseHow, EndpointConfig, Env, RdmaStats, StagTable, StreamId, VecMemory};

use super::{Wire, pattern};

/// Returns all local rights.
pub(crate) fn local_access() -> Access {
    Access::LOCAL_READ | Access::LOCAL_WRITE | Access::WINDOW_BIND
}

/// Returns all rights that a memory region can have.
pub(crate) fn all_access() -> Access {
    local_access() | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

pub(crate) fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 4791))
}

/// A device with its environment.
pub(crate) struct Node {
    pub(crate) device: Device<Vec<u8>>,
    pub(crate) stags: StagTable,
    pub(crate) memory: VecMemory,
    pub(crate) stats: RdmaStats,
    pub(crate) cm: Vec<CmEvent>,
    pub(crate) listener: Option<CmId>,
}

impl Node {
    fn new(limits: Limits) -> Self {
        Self {
            device: Device::new(limits, EndpointConfig::default()),
            stags: StagTable::new(64, [9; 32]),
            memory: VecMemory::new(),
            stats: RdmaStats::default(),
            cm: Vec::new(),
            listener: None,
        }
    }

    pub(crate) fn reg(&mut self, pd: PdId, bytes: Vec<u8>, base: AddressBase, access: Access) -> Mr {
        let length = bytes.len() as u64;
        let region = self.memory.add(bytes).unwrap();
        let mr = self.device.reg_mr(pd, (region, 0, length), base, access, &mut self.stags).unwrap();
        Mr { region, mr }
    }

    pub(crate) fn bytes(&self, mr: &Mr) -> &[u8] {
        self.memory.bytes(mr.region).unwrap()
    }

    /// Polls all completions.
    pub(crate) fn poll(&mut self, cq: CqId) -> Vec<WorkCompletion> {
        let mut out = [WorkCompletion::default(); 7];
        let mut all = Vec::new();
        while let Ok(taken @ 1..) = self.device.poll_cq(cq, &mut out) {
            all.extend_from_slice(&out[..taken]);
        }
        all
    }

    pub(crate) fn async_events(&mut self) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| self.device.poll_async_event()).collect()
    }
}

/// A memory region and its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mr {
    pub(crate) region: RegionId,
    pub(crate) mr: MemoryRegion,
}

impl Mr {
    pub(crate) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr + offset, length, lkey: self.mr.lkey }
    }
}

struct End {
    id: CmId,
    wire: Wire,
    position: u64,
    /// `Some` once this end has closed; a FIN follows the bytes on the wire.
    closed: Option<CloseHow>,
    fin_sent: bool,
}

/// Two nodes; node 1 listens at `address(1)`.
pub(crate) struct Net {
    pub(crate) nodes: [Node; 2],
    streams: Vec<[End; 2]>,
    opened: u64,
    pub(crate) now: Duration,
    pub(crate) mss: usize,
    pub(crate) chunk: usize,
    /// All bytes that node 0 and node 1 have sent.
    pub(crate) sent: [Vec<u8>; 2],
    pub(crate) refused: usize,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::with(Limits { cqe_max: 4096, ..Limits::default() })
    }

    pub(crate) fn with(limits: Limits) -> Self {
        Self {
            nodes: [Node::new(limits), Node::new(limits)],
            streams: Vec::new(),
            opened: 0,
            now: Duration::ZERO,
            mss: 1448,
            chunk: 1448,
            sent: [Vec::new(), Vec::new()],
            refused: 0,
        }
    }

    fn request(&mut self, at: usize, request: TransportRequest) {
        match request {
            TransportRequest::Listen { id, .. } => self.nodes[at].listener = Some(id),
            TransportRequest::Unlisten { .. } => self.nodes[at].listener = None,
            TransportRequest::Open { id, peer, .. } => self.open(at, id, peer),
            TransportRequest::Transmit { id } => self.transmit(at, id),
            TransportRequest::Close { id, how, .. } => {
                self.transmit(at, id);
                if let Some(ends) = self.streams.iter_mut().find(|ends| ends[at].id == id) {
                    ends[at].closed = Some(how);
                }
                let Node { device, stags, .. } = &mut self.nodes[at];
                device.closed(id, stags);
            }
        }
    }

    fn open(&mut self, at: usize, id: CmId, peer: SocketAddr) {
        let there = 1 - at;
        let listener = self.nodes[there].listener.filter(|_| peer == address(there));
        self.opened += 2;
        let (mine, theirs) = (StreamId(self.opened), StreamId(self.opened + 1));
        let from = address(at);
        let Some(incoming) = listener.and_then(|it| self.incoming(it, theirs, (peer, from))) else {
            self.refused += 1;
            return self.nodes[at].device.open_failed(id);
        };
        let Node { device, stats, .. } = &mut self.nodes[at];
        assert!(device.opened(id, mine, from, self.now, stats));
        let end = |id| End {
            id,
            wire: Wire::new(self.mss, usize::MAX),
            position: 0,
            closed: None,
            fin_sent: false,
        };
        let (a, b) = (end(id), end(incoming));
        self.streams.push(if at == 0 { [a, b] } else { [b, a] });
    }

    /// Accepts a stream for node 1's listener, as an adapter does.
    pub(crate) fn incoming(
        &mut self,
        listener: CmId,
        stream: StreamId,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<CmId> {
        let taken = self.nodes[1].device.incoming(listener, stream, ends, self.now);
        if taken.is_some() || !self.nodes[1].device.make_room(listener) {
            return taken;
        }
        while let Some(request) = self.nodes[1].device.poll_transport() {
            self.request(1, request);
        }
        self.nodes[1].device.incoming(listener, stream, ends, self.now)
    }

    fn transmit(&mut self, at: usize, id: CmId) {
        let Some(ends) = self.streams.iter_mut().find(|ends| ends[at].id == id) else { return };
        if ends[at].closed.is_some() {
            return;
        }
        let Node { device, stags, memory, stats, .. } = &mut self.nodes[at];
        device.poll_transmit(id, self.now, &mut Env { stags, memory, stats }, &mut ends[at].wire);
    }

    /// Carries the waiting bytes of one end of a stream to the other. Returns true if there were any.
    fn carry(&mut self, stream: usize, from: usize) -> bool {
        let to = 1 - from;
        let Some(ends) = self.streams.get_mut(stream) else { return false };
        let (bytes, id) = (ends[from].wire.take(), ends[to].id);
        let (closed, gone) = (ends[from].closed, ends[to].closed.is_some());
        let fin = closed.is_some() && !ends[from].fin_sent;
        ends[from].fin_sent |= fin;
        self.sent[from].extend_from_slice(&bytes);
        let Node { device, stags, memory, stats, .. } = &mut self.nodes[to];
        for piece in bytes.chunks(self.chunk) {
            let mut env = Env { stags: &mut *stags, memory: &mut *memory, stats: &mut *stats };
            let ends = &mut self.streams[stream];
            if !gone {
                device.receive(id, self.now, ends[to].position, piece.to_vec(), &mut env);
            }
            ends[to].position += piece.len() as u64;
        }
        if fin && !gone {
            match closed {
                Some(CloseHow::Reset) => device.transport_lost(id),
                _ => device.peer_closed(id, self.now, stats),
            }
        }
        if !gone {
            self.transmit(to, id);
        }
        !bytes.is_empty() || fin
    }

    /// Runs both nodes until nothing is left to do; keeps the connection events.
    pub(crate) fn run(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for at in 0..2 {
                while let Some(request) = self.nodes[at].device.poll_transport() {
                    self.request(at, request);
                    moved = true;
                }
                while let Some(event) = self.nodes[at].device.poll_cm_event() {
                    self.nodes[at].cm.push(event);
                }
            }
            for stream in 0..self.streams.len() {
                moved |= self.carry(stream, 0) | self.carry(stream, 1);
            }
            if !moved {
                return;
            }
        }
        panic!("the devices do not come to rest");
    }

    /// Returns the number of bytes that a node has received on the only stream.
    pub(crate) fn position(&self, at: usize) -> u64 {
        self.streams[0][at].position
    }

    /// Drops ended streams, and the bytes and events recorded.
    pub(crate) fn forget(&mut self) {
        assert!(self.streams.iter().flatten().all(|end| end.closed.is_some()), "a stream is open");
        self.streams.clear();
        self.sent.iter_mut().for_each(Vec::clear);
        for node in &mut self.nodes {
            node.cm.clear();
            node.memory = VecMemory::new();
        }
    }

    /// Breaks the only stream.
    pub(crate) fn cut(&mut self) {
        for at in 0..2 {
            let id = self.streams[0][at].id;
            self.nodes[at].device.transport_lost(id);
        }
        self.run();
    }
}

/// One end of a connection, with its objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) qp: QpNum,
    pub(crate) id: CmId,
    pub(crate) mr: Mr,
}

pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 16, max_recv_sge: 16, max_inline_data: 64 };

pub(crate) const MEMORY: usize = 16_384;
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

pub(crate) fn party(node: &mut Node, cap: QpCap, srq: Option<u16>, salt: u8) -> Party {
    let pd = node.device.alloc_pd().unwrap();
    let cq = node.device.create_cq(256).unwrap();
    let recv_cq = node.device.create_cq(256).unwrap();
    let srq = srq.map(|max_wr| node.device.create_srq(pd, max_wr, 4).unwrap());
    let init = QpInit { pd, send_cq: cq, recv_cq, srq, cap, sq_sig_all: false };
    let qp = node.device.create_qp(init).unwrap();
    let mr = node.reg(pd, pattern(MEMORY, salt), AddressBase::At(BASE), all_access());
    let id = node.device.create_id(Some(address(0))).unwrap();
    Party { pd, cq, recv_cq, qp, id, mr }
}

pub(crate) fn listen(net: &mut Net, backlog: u16) -> CmId {
    let device = &mut net.nodes[1].device;
    let listener = device.create_id(Some(address(1))).unwrap();
    device.listen(listener, NonZeroU16::new(backlog).unwrap(), &ConnParam::default()).unwrap();
    net.run();
    listener
}

/// Returns the connections that wait for an answer at node 1.
pub(crate) fn asked(net: &mut Net) -> Vec<CmId> {
    let is_request = |event: &CmEvent| matches!(event.kind, CmEventKind::ConnectRequest { .. });
    net.nodes[1].cm.extract_if(.., |event| is_request(event)).map(|event| event.id).collect()
}

/// Connects a party at node 0 with one at node 1, whose id becomes that of the connection.
pub(crate) fn connect(net: &mut Net, a: &Party, b: &mut Party) {
    let param = ConnParam::default();
    net.nodes[0].device.connect(a.id, a.qp, address(1), &param).unwrap();
    net.run();
    let spare = core::mem::replace(&mut b.id, asked(net)[0]);
    net.nodes[1].device.destroy_id(spare).unwrap();
    net.nodes[1].device.accept(b.id, b.qp, b"yes").unwrap();
    net.run();
    for (at, party) in [(0, a), (1, b)] {
        assert_eq!(net.nodes[at].device.query_qp(party.qp).unwrap().state, QpState::Rts);
        net.nodes[at].cm.clear();
    }
}

/// Returns two connected parties.
pub(crate) fn pair_with(net: &mut Net, caps: [QpCap; 2], srq: Option<u16>) -> (Party, Party) {
    listen(net, 4);
    let a = party(&mut net.nodes[0], caps[0], None, 1);
    let mut b = party(&mut net.nodes[1], caps[1], srq, 2);
    connect(net, &a, &mut b);
    (a, b)
}

pub(crate) fn pair(net: &mut Net) -> (Party, Party) {
    pair_with(net, [CAP, CAP], None)
}

pub(crate) fn send_wr<'a>(wr_id: u64, op: SendOp, sg_list: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, data: Data::List(sg_list), flags: SendFlags::SIGNALED }
}

pub(crate) const SEND: SendOp = SendOp::Send { invalidate: None };

impl Party {
    pub(crate) fn post(&self, node: &mut Node, wr_id: u64, op: SendOp, sg_list: &[Sge]) {
        node.device.post_send(self.qp, &send_wr(wr_id, op, sg_list)).unwrap();
    }

    pub(crate) fn post_recv(&self, node: &mut Node, wr_id: u64, sg_list: &[Sge]) {
        node.device.post_recv(self.qp, &RecvWr { wr_id, sg_list }).unwrap();
    }

    /// Returns a Write to the other's memory.
    pub(crate) fn write_to(&self, offset: u64) -> SendOp {
        SendOp::RdmaWrite { remote_addr: self.mr.mr.addr + offset, rkey: self.mr.mr.rkey }
    }

    pub(crate) fn read_from(&self, offset: u64) -> SendOp {
        SendOp::RdmaRead { remote_addr: self.mr.mr.addr + offset, rkey: self.mr.mr.rkey }
    }

    pub(crate) fn state(&self, node: &Node) -> QpState {
        node.device.query_qp(self.qp).unwrap().state
    }
}

/// Returns the numbers and statuses of completions.
pub(crate) fn ends(all: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}
