//! Two engines over the kernel's TCP, on the loopback interface, and plain sockets against one.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a test may panic and read the time; bytes are a pattern"
)]

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::time::{Duration, Instant as Clock};

use rdma::service::{RegionEntry, Token};
use rdma::verbs::*;
use rdma::{Access, EndpointConfig, VecMemory};
use tcp_stack::ListenOptions;

use super::*;
use crate::{Engine, EngineConfig, ListenerService, LocalPorts};

const LIMIT: Duration = Duration::from_secs(30);
const SEED: [u8; 32] = [7; 32];

/// A process with an engine over the kernel's TCP.
struct Node {
    engine: Engine<KernelTcp, VecMemory>,
    events: VecDeque<CmEvent>,
    began: Clock,
}

/// Objects of one end of a connection.
struct End {
    id: CmId,
    cq: CqId,
    qp: QpNum,
    pd: PdId,
}

impl Node {
    fn new(connections_max: u32) -> Self {
        let tcp =
            KernelTcp::new(KernelTcpConfig { connections_max, listeners_max: 8, connect_timeout: None })
                .unwrap();
        let limits = Limits { qps: 512, ids: 1024, mrs: 64, cqe_max: 4096, ..Limits::default() };
        let config = EngineConfig {
            conn: ConnOptions::default(),
            limits,
            endpoint: EndpointConfig::default(),
            stags_max: 1024,
            regions_max: 4,
            contexts_max: 0,
            local_ports: (LocalPorts::default(), 0),
            seed: SEED,
        };
        let engine = Engine::new(tcp, config, VecMemory::new());
        Self { engine, events: VecDeque::new(), began: Clock::now() }
    }

    fn poll(&mut self) {
        let now = Instant::ZERO + self.began.elapsed();
        let due = self.engine.next_deadline().is_some_and(|deadline| deadline <= now);
        let none = &mut std::iter::empty();
        assert_eq!(self.engine.poll(now, due, none, &mut Chunks, &mut |_| {}, 1), 0);
        self.engine.run_deferred(now, &mut Chunks);
        self.events.extend(std::iter::from_fn(|| self.engine.device_mut().poll_cm_event()));
    }

    fn queue_pair(&mut self, work: u16) -> End {
        let device = self.engine.device_mut();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(u32::from(work) * 2).unwrap());
        let cap = QpCap {
            max_send_wr: work,
            max_recv_wr: work,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpCap::default()
        };
        let init = QpInit { cap, ..QpInit::new(pd, cq) };
        let qp = device.create_qp(init).unwrap();
        End { id: CmId(0), cq, qp, pd }
    }

    fn listen(&mut self, at: SocketAddr) {
        let device = self.engine.device_mut();
        let id = device.create_id(Some(at)).unwrap();
        device.listen(id, NonZeroU16::new(512).unwrap(), &ConnParam::default()).unwrap();
        self.poll();
        assert!(self.events.is_empty(), "{:?}", self.events);
    }

    fn reg(&mut self, pd: PdId, bytes: Vec<u8>) -> (RegionId, MemoryRegion) {
        let len = bytes.len() as u64;
        let region = self.engine.memory_mut().add(bytes).unwrap();
        let access = Access::LOCAL_READ | Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        (region, self.engine.reg_mr(pd, (region, 0, len), AddressBase::Zero, access).unwrap())
    }

    fn completions(&mut self, cq: CqId) -> Vec<WorkCompletion> {
        let mut out = [WorkCompletion::default(); 16];
        let mut all = Vec::new();
        while let Ok(taken @ 1..) = self.engine.device_mut().poll_cq(cq, &mut out) {
            all.extend_from_slice(&out[..taken]);
        }
        all
    }
}

/// Polls the nodes until `done` returns something.
fn until<T>(what: &str, nodes: &mut [Node], mut done: impl FnMut(&mut [Node]) -> Option<T>) -> T {
    let end = Clock::now() + LIMIT;
    loop {
        nodes.iter_mut().for_each(Node::poll);
        if let Some(result) = done(nodes) {
            return result;
        }
        assert!(Clock::now() < end, "{what}");
    }
}

/// Returns an address with a port that is free.
fn free(ip: &str) -> SocketAddr {
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

/// Connects node 0 with the listener of node 1.
fn connect(nodes: &mut [Node], at: SocketAddr, work: u16) -> [End; 2] {
    let (mut client, mut server) = (nodes[0].queue_pair(work), nodes[1].queue_pair(work));
    let device = nodes[0].engine.device_mut();
    client.id = device.create_id(None).unwrap();
    device.connect(client.id, client.qp, at, &ConnParam::default()).unwrap();
    let (mut established, mut theirs) = (0, None);
    until("a connection", nodes, |nodes| {
        while let Some(event) = nodes[1].events.pop_front() {
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    nodes[1].engine.device_mut().accept(event.id, server.qp, b"").unwrap();
                    theirs = Some(event.id);
                }
                CmEventKind::Established { .. } => established += 1,
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = nodes[0].events.pop_front() {
            assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
            established += 1;
        }
        (established == 2).then_some(())
    });
    server.id = theirs.unwrap();
    [client, server]
}

fn all(mr: &MemoryRegion, offset: u64, length: usize) -> Sge {
    Sge { addr: mr.addr + offset, length: u32::try_from(length).unwrap(), lkey: mr.lkey }
}

fn post(node: &mut Node, qp: QpNum, op: SendOp, sge: Sge) {
    let wr = SendWr { wr_id: 1, op, data: Data::List(&[sge]), flags: SendFlags::SIGNALED };
    node.engine.device_mut().post_send(qp, &wr).unwrap();
}

fn success(nodes: &mut [Node], at: usize, cq: CqId) -> WorkCompletion {
    let wc = until("a completion", nodes, |nodes| nodes[at].completions(cq).first().copied());
    assert_eq!(wc.status, WcStatus::Success);
    wc
}

#[test]
fn messages_of_every_size_arrive_over_both_families() {
    for ip in ["127.0.0.1", "::1"] {
        let mut nodes = [Node::new(8), Node::new(8)];
        let at = free(ip);
        nodes[1].listen(at);
        let [a, b] = connect(&mut nodes, at, 4);
        let size = 5 << 20;
        let bytes: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
        let (_, source) = nodes[0].reg(a.pd, bytes.clone());
        let (copy, sink) = nodes[0].reg(a.pd, vec![0; size]);
        let (region, target) = nodes[1].reg(b.pd, vec![0; size]);
        for len in [1, 4, 63, 64, 1448, 4095, 32_741, 65_535, 65_536, 262_144, 1_000_001, size] {
            let remote = (target.rkey, target.addr);
            post(
                &mut nodes[0],
                a.qp,
                SendOp::RdmaWrite { rkey: remote.0, remote_addr: remote.1 },
                all(&source, 0, len),
            );
            post(
                &mut nodes[0],
                a.qp,
                SendOp::RdmaRead { rkey: remote.0, remote_addr: remote.1 },
                all(&sink, 0, len),
            );
            for _ in 0..2 {
                success(&mut nodes, 0, a.cq);
            }
            assert!(
                nodes[1].engine.memory().bytes(region).unwrap()[..len] == bytes[..len],
                "{len} B written"
            );
            assert!(nodes[0].engine.memory().bytes(copy).unwrap()[..len] == bytes[..len], "{len} B read");
            let list = [all(&target, 0, size)];
            nodes[1].engine.device_mut().post_recv(b.qp, &RecvWr { wr_id: 2, sg_list: &list }).unwrap();
            nodes[1].engine.memory_mut().bytes_mut(region).unwrap()[..len].fill(0);
            post(&mut nodes[0], a.qp, SendOp::SEND, all(&source, 0, len));
            let received = success(&mut nodes, 1, b.cq);
            assert_eq!(received.byte_len as usize, len);
            success(&mut nodes, 0, a.cq);
            assert!(nodes[1].engine.memory().bytes(region).unwrap()[..len] == bytes[..len], "{len} B sent");
        }
    }
}

#[test]
fn a_disconnect_ends_both_ends_and_leaves_nothing() {
    for ends in [[0, 1], [1, 0]] {
        let mut nodes = [Node::new(8), Node::new(8)];
        let at = free("127.0.0.1");
        nodes[1].listen(at);
        let pair = connect(&mut nodes, at, 4);
        let now = Instant::ZERO + nodes[ends[0]].began.elapsed();
        nodes[ends[0]].engine.disconnect(pair[ends[0]].id, now);
        until("both ends", &mut nodes, |nodes| {
            let ended = |node: &Node| node.events.iter().any(|event| event.kind == CmEventKind::Disconnected);
            nodes.iter().all(ended).then_some(())
        });
        for (node, end) in nodes.iter_mut().zip(&pair) {
            node.engine.device_mut().destroy_id(end.id).unwrap();
        }
        until("no connection", &mut nodes, |nodes| {
            nodes.iter().all(|node| node.engine.connections() == 0).then_some(())
        });
    }
}

#[test]
fn a_process_that_goes_takes_its_connections_along() {
    let mut nodes = vec![Node::new(8), Node::new(8)];
    let at = free("127.0.0.1");
    nodes[1].listen(at);
    connect(&mut nodes, at, 4);
    nodes.remove(0);
    until("the end", &mut nodes, |nodes| {
        nodes[0].events.iter().any(|event| event.kind == CmEventKind::Disconnected).then_some(())
    });
}

#[test]
fn nobody_listens_there() {
    let mut nodes = [Node::new(8)];
    let end = nodes[0].queue_pair(4);
    let device = nodes[0].engine.device_mut();
    let id = device.create_id(None).unwrap();
    device.connect(id, end.qp, free("127.0.0.1"), &ConnParam::default()).unwrap();
    let kind = until("an answer", &mut nodes, |nodes| nodes[0].events.pop_front().map(|event| event.kind));
    assert_eq!(kind, CmEventKind::Refused);
}

#[test]
fn a_port_that_the_kernel_s_programs_have_is_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = Node::new(8);
    let device = node.engine.device_mut();
    let id = device.create_id(Some(taken.local_addr().unwrap())).unwrap();
    device.listen(id, NonZeroU16::MIN, &ConnParam::default()).unwrap();
    node.poll();
    assert_eq!(node.events.pop_front().map(|event| event.kind), Some(CmEventKind::AddressError));
}

/// An MPA Request without private data: markers off, CRC on (RFC 5044 §7.1.1).
const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\x00\x00";

/// Returns a node that serves a region, and its address.
fn serving(connections_max: u32) -> (Node, SocketAddr) {
    let mut node = Node::new(connections_max);
    let at = free("127.0.0.1");
    let service = ListenerService::Region(EndpointConfig::default());
    node.engine.listen(at.port(), ListenOptions::default(), service).unwrap();
    let region = node.engine.memory_mut().add(vec![5; 4096]).unwrap();
    let (name, token) = ("lab".to_owned(), Token::new(b""));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let allow = Vec::new();
    let entry = RegionEntry { name, region, offset: 0, bytes: 4096, access, token, allow };
    node.engine.region_add(entry).unwrap();
    (node, at)
}

/// Returns the request for the region `lab`.
fn request() -> Vec<u8> {
    let private = [&b"IWR1\x03\x03\x00\x00"[..], b"lab"].concat();
    let mut frame = REQUEST[..18].to_vec();
    frame.extend(u16::try_from(private.len()).unwrap().to_be_bytes());
    frame.extend(private);
    frame
}

#[test]
fn requests_may_come_byte_by_byte_and_garbage_ends_its_connection_alone() {
    let (node, at) = serving(64);
    let mut nodes = [node];
    let mut slow: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    let mut garbage: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(at).unwrap()).collect();
    for (number, stream) in garbage.iter_mut().enumerate() {
        stream.write_all(&vec![number as u8; 1000]).unwrap();
    }
    for byte in request() {
        slow.iter_mut().for_each(|stream| stream.write_all(&[byte]).unwrap());
        nodes[0].poll();
    }
    for stream in &slow {
        stream.set_nonblocking(true).unwrap();
    }
    for stream in &mut slow {
        let mut reply = [0; 20];
        until("a reply", &mut nodes, |_| (stream.peek(&mut reply).ok()? == 20).then_some(()));
        assert_eq!((&reply[..16], reply[16] & 0x20), (&b"MPA ID Rep Frame"[..], 0), "accepted");
    }
    for stream in &mut garbage {
        stream.set_nonblocking(true).unwrap();
        until("the end", &mut nodes, |_| match stream.read(&mut [0; 100]) {
            Ok(0) => Some(()),
            Ok(_) => None,
            Err(error) => (error.kind() != io::ErrorKind::WouldBlock).then_some(()),
        });
    }
    assert_eq!(nodes[0].engine.connections(), 20);
    drop(slow);
    until("no connection", &mut nodes, |nodes| (nodes[0].engine.connections() == 0).then_some(()));
}

#[test]
fn connections_beyond_the_limit_wait_in_the_kernel() {
    let (node, at) = serving(4);
    let mut nodes = [node];
    let mut streams: VecDeque<TcpStream> = (0..12).map(|_| TcpStream::connect(at).unwrap()).collect();
    for stream in &mut streams {
        stream.write_all(&request()).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    while let Some(stream) = streams.pop_front() {
        until("a reply", &mut nodes, |nodes| {
            assert!(nodes[0].engine.connections() <= 4);
            (stream.peek(&mut [0; 20]).ok()? == 20).then_some(())
        });
    }
}

#[test]
fn a_half_that_is_closed_within_a_request_ends_the_connection() {
    let (node, at) = serving(8);
    let mut nodes = [node];
    for cut in [0, 1, 19, 22] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&request()[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_nonblocking(true).unwrap();
        until("the end", &mut nodes, |_| match stream.read(&mut [0; 100]) {
            Ok(0) => Some(()),
            Ok(_) => panic!("an answer to {cut} bytes"),
            Err(error) => (error.kind() != io::ErrorKind::WouldBlock).then_some(()),
        });
    }
    until("no connection", &mut nodes, |nodes| (nodes[0].engine.connections() == 0).then_some(()));
}

#[test]
fn what_a_peer_has_sent_before_its_reset_is_read_before_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = KernelTcpConfig { connections_max: 1, listeners_max: 1, connect_timeout: None };
    let mut tcp = KernelTcp::new(config).unwrap();
    let at = listener.local_addr().unwrap();
    let options = ConnOptions::default();
    let id = tcp.connect_from(Instant::ZERO, (None, 0), at, options, &mut |_| true).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let send = |tcp: &mut KernelTcp| {
        assert!(tcp.append(id, 4, &mut |out| out.copy_from_slice(b"more")));
        tcp.transmit(Instant::ZERO, &mut Chunks, &mut |_| {}, usize::MAX);
    };
    tcp.receive(Instant::ZERO, &mut std::iter::empty());
    assert!(matches!(tcp.poll_event(), Some(Event::Connected { .. })));
    send(&mut tcp);
    // The peer leaves bytes unread: its kernel sends a reset behind its own.
    peer.peek(&mut [0; 4]).unwrap();
    peer.write_all(b"why").unwrap();
    drop(peer);

    tcp.set_looks(false);
    send(&mut tcp);
    tcp.receive(Instant::ZERO, &mut std::iter::empty());
    let Some(Event::Data { segment, .. }) = tcp.poll_event() else { panic!("it is lost") };
    assert_eq!(segment.bytes(), b"why");
    assert!(matches!(tcp.poll_event(), Some(Event::Closed { reason: CloseReason::Reset, .. })));
    assert!(!tcp.append(id, 1, &mut |_| {}), "it has ended");
}
