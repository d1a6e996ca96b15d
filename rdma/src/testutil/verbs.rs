//! Two verbs devices, and a transport between them that opens, carries and closes streams in memory.

use core::net::SocketAddr;
use core::num::NonZeroU16;
use core::time::Duration;

use crate::verbs::*;
use crate::{CloseHow, EndpointConfig, Env, RdmaStats, StagTable, StreamId, VecMemory};

use super::{Wire, pattern};

/// Returns all local rights.
pub fn local_access() -> Access {
    Access::LOCAL_READ | Access::LOCAL_WRITE | Access::WINDOW_BIND
}

/// Returns all rights that a memory region can have.
pub fn all_access() -> Access {
    local_access() | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// Returns the address of a node.
pub fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 4791))
}

/// A device with its environment.
#[derive(Debug)]
pub struct Node {
    /// Device that the test drives.
    pub device: Device<Vec<u8>>,
    /// STags granted to the peer.
    pub stags: StagTable,
    /// Memory of the regions.
    pub memory: VecMemory,
    /// Counters of the device.
    pub stats: RdmaStats,
    /// Connection events not yet read by the test.
    pub cm: Vec<CmEvent>,
    /// Listener that takes the connections to this node.
    pub listener: Option<CmId>,
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

    /// Registers new memory of these bytes.
    pub fn reg(&mut self, pd: PdId, bytes: Vec<u8>, base: AddressBase, access: Access) -> Mr {
        let length = bytes.len() as u64;
        let region = self.memory.add(bytes).unwrap();
        let mr = self.device.reg_mr(pd, (region, 0, length), base, access, &mut self.stags).unwrap();
        Mr { region, mr }
    }

    /// Returns the bytes of a memory region.
    pub fn bytes(&self, mr: &Mr) -> &[u8] {
        self.memory.bytes(mr.region).unwrap()
    }

    /// Polls all completions of a queue.
    pub fn poll(&mut self, cq: CqId) -> Vec<WorkCompletion> {
        let mut out = [WorkCompletion::default(); 7];
        let mut all = Vec::new();
        while let Ok(taken @ 1..) = self.device.poll_cq(cq, &mut out) {
            all.extend_from_slice(&out[..taken]);
        }
        all
    }

    /// Polls all asynchronous events.
    pub fn async_events(&mut self) -> Vec<AsyncEvent> {
        core::iter::from_fn(|| self.device.poll_async_event()).collect()
    }
}

/// A memory region and its memory.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// Memory of the region.
    pub region: RegionId,
    /// Registration of that memory.
    pub mr: MemoryRegion,
}

impl Mr {
    /// Returns a scatter/gather element of the region, from `offset`.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr + offset, length, lkey: self.mr.lkey }
    }
}

#[derive(Debug)]
struct End {
    id: CmId,
    wire: Wire,
    position: u64,
    /// `Some` once this end has closed; a FIN follows the bytes on the wire.
    closed: Option<CloseHow>,
    fin_sent: bool,
}

/// Two nodes; node 1 listens at `address(1)`.
#[derive(Debug)]
pub struct Net {
    /// Nodes by number, 0 and 1.
    pub nodes: [Node; 2],
    streams: Vec<[End; 2]>,
    opened: u64,
    /// Virtual time since the start.
    pub now: Duration,
    /// Most bytes of an FPDU.
    pub mss: usize,
    /// Most bytes of a stream on their way.
    pub room: usize,
    /// Most bytes that a node receives in one piece.
    pub chunk: usize,
    /// All bytes that node 0 and node 1 have sent.
    pub sent: [Vec<u8>; 2],
    /// Connections that failed for want of a listener.
    pub refused: usize,
    /// Nodes that cannot be reached.
    pub refuses: [bool; 2],
    /// True while nothing arrives.
    pub paused: bool,
    is_numbered: bool,
}

impl Default for Net {
    fn default() -> Self {
        Self::new()
    }
}

impl Net {
    /// Returns two nodes with completion queues of at most 4,096 entries.
    pub fn new() -> Self {
        Self::with(Limits { cqe_max: 4096, ..Limits::default() })
    }

    /// Returns two nodes with these limits.
    pub fn with(limits: Limits) -> Self {
        Self {
            nodes: [Node::new(limits), Node::new(limits)],
            streams: Vec::new(),
            opened: 0,
            now: Duration::ZERO,
            mss: 1448,
            room: usize::MAX,
            chunk: 1448,
            sent: [Vec::new(), Vec::new()],
            refused: 0,
            refuses: [false; 2],
            paused: false,
            is_numbered: false,
        }
    }

    fn request(&mut self, at: usize, request: TransportRequest) {
        match request {
            TransportRequest::Listen { id, .. } => self.nodes[at].listener = Some(id),
            TransportRequest::Unlisten { .. } => self.nodes[at].listener = None,
            TransportRequest::Open { id, peer, .. } => self.open(at, id, peer),
            TransportRequest::Loop { id } => {
                self.opened += 1;
                self.nodes[at].device.looped_to_itself(id, StreamId(self.opened));
            }
            TransportRequest::Transmit { id } if self.nodes[at].device.is_looped_to_itself(id) => {
                let Node { device, stags, memory, stats, .. } = &mut self.nodes[at];
                let mut env = Env { stags, memory, stats };
                let is_local = |ip| ip == address(at).ip();
                while device.transmit_to_itself(id, self.now, &mut env, is_local) {}
            }
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
        let listener = self.nodes[there].listener.filter(|_| peer == address(there) && !self.refuses[there]);
        self.opened += 2;
        let (mine, theirs) = (StreamId(self.opened), StreamId(self.opened + 1));
        let from = address(at);
        let incoming = listener.and_then(|listener| self.incoming_at(there, listener, theirs, (peer, from)));
        let Some(incoming) = incoming else {
            self.refused += 1;
            return self.nodes[at].device.open_refused(id);
        };
        let Node { device, stats, .. } = &mut self.nodes[at];
        assert!(device.opened(id, mine, from, self.now, stats));
        let end =
            |id| End { id, wire: Wire::new(self.mss, self.room), position: 0, closed: None, fin_sent: false };
        let (a, b) = (end(id), end(incoming));
        self.streams.push(if at == 0 { [a, b] } else { [b, a] });
    }

    /// Accepts a stream for node 1's listener, as an adapter does.
    pub fn incoming(
        &mut self,
        listener: CmId,
        stream: StreamId,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<CmId> {
        self.incoming_at(1, listener, stream, ends)
    }

    fn incoming_at(
        &mut self,
        at: usize,
        listener: CmId,
        stream: StreamId,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<CmId> {
        let taken = self.nodes[at].device.incoming(listener, stream, ends, self.now);
        if taken.is_some() || !self.nodes[at].device.make_room(listener) {
            return taken;
        }
        while let Some(request) = self.nodes[at].device.poll_transport() {
            self.request(at, request);
        }
        self.nodes[at].device.incoming(listener, stream, ends, self.now)
    }

    /// Returns two nodes whose queue pairs connect by number.
    pub fn numbered(limits: Limits) -> Self {
        let mut net = Self { is_numbered: true, ..Self::with(limits) };
        for (node, key) in net.nodes.iter_mut().zip([(1, 2), (3, 4)]) {
            let any = SocketAddr::from(([0, 0, 0, 0], RENDEZVOUS_PORT));
            let datagram_max = DATAGRAM_MAX;
            node.device.set_rendezvous(Rendezvous { port: RENDEZVOUS_PORT, key, datagram_max });
            let listener = node.device.create_listener(any, EndpointConfig::default(), Owner::QueuePairs);
            node.listener = Some(listener.unwrap());
        }
        net
    }

    /// Lets time pass, and runs both nodes at each of their deadlines.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.run();
            let due = self.nodes.iter().filter_map(|node| node.device.next_link_deadline()).min();
            let timers = self.streams.iter().flat_map(|ends| {
                let of = |at: usize| self.nodes[at].device.next_deadline(ends[at].id);
                [of(0), of(1)].into_iter().flatten()
            });
            let next = timers.chain(due).min().filter(|next| *next <= end).unwrap_or(end).max(self.now);
            if next == self.now && next == end {
                return;
            }
            self.now = if next == self.now { next + Duration::from_micros(1) } else { next };
            for stream in 0..self.streams.len() {
                for at in 0..2 {
                    let id = self.streams[stream][at].id;
                    let Node { device, stats, .. } = &mut self.nodes[at];
                    device.handle_timeout(id, self.now, stats);
                }
            }
        }
    }

    /// Breaks all streams, at both ends.
    pub fn break_streams(&mut self) {
        for stream in 0..self.streams.len() {
            for at in 0..2 {
                let id = self.streams[stream][at].id;
                self.nodes[at].device.transport_lost(id);
            }
        }
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

    /// Carries out the requests of one node; what it sends stays on the wire.
    pub fn run_sender(&mut self, at: usize) {
        while let Some(request) = self.nodes[at].device.poll_transport() {
            self.request(at, request);
        }
    }

    /// Lets streams go on that have waited for buffers.
    fn resume(&mut self, at: usize) {
        for _ in 0..self.nodes[at].device.deferred() {
            let Node { device, stags, memory, stats, .. } = &mut self.nodes[at];
            let resumed = device.resume_next(self.now, &mut Env { stags, memory, stats });
            if let Some(id) = resumed {
                self.request(at, TransportRequest::Transmit { id });
            }
        }
    }

    fn deliver_datagrams(&mut self, at: usize) {
        let Node { device, stags, memory, stats, .. } = &mut self.nodes[at];
        device.deliver_datagrams(self.now, &mut Env { stags, memory, stats });
    }

    /// Runs both nodes until nothing is left to do; keeps the connection events.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            let mut moved = false;
            for at in 0..2 {
                if self.is_numbered {
                    self.nodes[at].device.set_now(self.now);
                    self.nodes[at].device.run_links();
                }
                self.resume(at);
                self.deliver_datagrams(at);
                while let Some(request) = self.nodes[at].device.poll_transport() {
                    self.request(at, request);
                    moved = true;
                }
                while let Some(event) = self.nodes[at].device.poll_cm_event() {
                    self.nodes[at].cm.push(event);
                }
            }
            for stream in 0..if self.paused { 0 } else { self.streams.len() } {
                moved |= self.carry(stream, 0) | self.carry(stream, 1);
            }
            if !moved && !self.nodes.iter().any(|node| node.device.has_datagrams()) {
                return;
            }
        }
        panic!("the devices do not come to rest");
    }

    /// Returns the number of bytes that a node has received on the only stream.
    pub fn position(&self, at: usize) -> u64 {
        self.streams[0][at].position
    }

    /// Drops ended streams, and the bytes and events recorded.
    pub fn forget(&mut self) {
        assert!(self.streams.iter().flatten().all(|end| end.closed.is_some()), "a stream is open");
        self.streams.clear();
        self.sent.iter_mut().for_each(Vec::clear);
        for node in &mut self.nodes {
            node.cm.clear();
            node.memory = VecMemory::new();
        }
    }

    /// Drops the streams that both ends have closed.
    pub fn drop_closed(&mut self) {
        self.streams.retain(|ends| ends.iter().any(|end| end.closed.is_none()));
        self.sent.iter_mut().for_each(Vec::clear);
    }

    /// Breaks the only stream.
    pub fn cut(&mut self) {
        for at in 0..2 {
            let id = self.streams[0][at].id;
            self.nodes[at].device.transport_lost(id);
        }
        self.run();
    }
}

/// One end of a connection, with its objects.
#[derive(Clone, Copy, Debug)]
pub struct Party {
    /// Protection domain of the objects.
    pub pd: PdId,
    /// Completion queue of sends.
    pub cq: CqId,
    /// Completion queue of receives.
    pub recv_cq: CqId,
    /// Queue pair of the connection.
    pub qp: QpNum,
    /// Identifier of the connection.
    pub id: CmId,
    /// Memory of [`MEMORY`] bytes, with all rights.
    pub mr: Mr,
}

/// Capacity of a queue pair.
pub const CAP: QpCap =
    QpCap { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 16, max_recv_sge: 16, max_inline_data: 64 };

/// Bytes of a datagram, at most.
pub const DATAGRAM_MAX: u16 = 1024;
/// Length of a party's memory, bytes.
pub const MEMORY: usize = 16_384;
/// First address of a party's memory.
pub const BASE: u64 = 0x7f00_0000_0000;

/// Creates the objects of one end of a connection; `salt` selects the contents of its memory.
pub fn party(node: &mut Node, cap: QpCap, srq: Option<u16>, salt: u8) -> Party {
    party_of(node, QpType::Rc, cap, srq, salt)
}

/// Creates a queue pair of a type, with the other objects.
pub fn party_of(node: &mut Node, qp_type: QpType, cap: QpCap, srq: Option<u16>, salt: u8) -> Party {
    let pd = node.device.alloc_pd().unwrap();
    let cq = node.device.create_cq(256).unwrap();
    let recv_cq = node.device.create_cq(256).unwrap();
    let srq = srq.map(|max_wr| node.device.create_srq(pd, max_wr, 4).unwrap());
    let init = QpInit { pd, send_cq: cq, recv_cq, srq, cap, sq_sig_all: false, qp_type };
    let qp = node.device.create_qp(init).unwrap();
    let mr = node.reg(pd, pattern(MEMORY, salt), AddressBase::At(BASE), all_access());
    let id = node.device.create_id(Some(address(0))).unwrap();
    Party { pd, cq, recv_cq, qp, id, mr }
}

/// Lets node 1 listen, with this backlog.
pub fn listen(net: &mut Net, backlog: u16) -> CmId {
    let device = &mut net.nodes[1].device;
    let listener = device.create_id(Some(address(1))).unwrap();
    device.listen(listener, NonZeroU16::new(backlog).unwrap(), &ConnParam::default()).unwrap();
    net.run();
    listener
}

/// Returns the connections that wait for an answer at node 1.
pub fn asked(net: &mut Net) -> Vec<CmId> {
    let is_request = |event: &CmEvent| matches!(event.kind, CmEventKind::ConnectRequest { .. });
    net.nodes[1].cm.extract_if(.., |event| is_request(event)).map(|event| event.id).collect()
}

/// Connects a party at node 0 with one at node 1, whose id becomes that of the connection.
pub fn connect(net: &mut Net, a: &Party, b: &mut Party) {
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
pub fn pair_with(net: &mut Net, caps: [QpCap; 2], srq: Option<u16>) -> (Party, Party) {
    listen(net, 4);
    let a = party(&mut net.nodes[0], caps[0], None, 1);
    let mut b = party(&mut net.nodes[1], caps[1], srq, 2);
    connect(net, &a, &mut b);
    (a, b)
}

/// Returns two connected parties of the capacity [`CAP`].
pub fn pair(net: &mut Net) -> (Party, Party) {
    pair_with(net, [CAP, CAP], None)
}

/// Names the queue pair of a party at the other node as the peer of one.
pub fn rtr(to: &Party, at: usize) -> RtrAttr {
    let (local, remote) = (address(at).ip(), address(1 - at).ip());
    RtrAttr { dest_qp_num: to.qp, rq_psn: 7, local, remote, min_rnr_timer: 12 }
}

/// Attributes of queue pairs that send.
pub const RTS: RtsAttr = RtsAttr { sq_psn: 7, timeout: 14, retry_cnt: 7, rnr_retry: 7 };

/// Returns two parties that are connected by number.
pub fn numbered_pair(net: &mut Net, caps: [QpCap; 2], srq: Option<u16>) -> (Party, Party) {
    let a = party(&mut net.nodes[0], caps[0], None, 1);
    let b = party(&mut net.nodes[1], caps[1], srq, 2);
    for (at, own, peer) in [(0, &a, &b), (1, &b, &a)] {
        net.nodes[at].device.ready_to_receive(own.qp, &rtr(peer, at)).unwrap();
        net.nodes[at].device.ready_to_send(own.qp, &RTS).unwrap();
    }
    net.run();
    for (at, party) in [(0, &a), (1, &b)] {
        assert_eq!(party.state(&net.nodes[at]), QpState::Rts);
    }
    (a, b)
}

/// Returns a signaled work request.
pub fn send_wr<'a>(wr_id: u64, op: SendOp, sg_list: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, data: Data::List(sg_list), flags: SendFlags::SIGNALED }
}

/// A Send without invalidation.
pub const SEND: SendOp = SendOp::Send { invalidate: None };

impl Party {
    /// Posts a signaled send request.
    pub fn post(&self, node: &mut Node, wr_id: u64, op: SendOp, sg_list: &[Sge]) {
        node.device.post_send(self.qp, &send_wr(wr_id, op, sg_list)).unwrap();
    }

    /// Posts a receive request.
    pub fn post_recv(&self, node: &mut Node, wr_id: u64, sg_list: &[Sge]) {
        node.device.post_recv(self.qp, &RecvWr { wr_id, sg_list }).unwrap();
    }

    /// Returns a Write to this party's memory, for its peer.
    pub fn write_to(&self, offset: u64) -> SendOp {
        SendOp::RdmaWrite { remote_addr: self.mr.mr.addr + offset, rkey: self.mr.mr.rkey }
    }

    /// Returns a Read of this party's memory, for its peer.
    pub fn read_from(&self, offset: u64) -> SendOp {
        SendOp::RdmaRead { remote_addr: self.mr.mr.addr + offset, rkey: self.mr.mr.rkey }
    }

    /// Returns the state of the queue pair.
    pub fn state(&self, node: &Node) -> QpState {
        node.device.query_qp(self.qp).unwrap().state
    }
}

/// Returns the numbers and statuses of completions.
pub fn ends(all: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}
