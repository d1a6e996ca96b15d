//! Looped connections: a device passes the segments of one of its connections to another one directly. Programs see the
//! same completions and the same bytes as with a transport in between.

use core::time::Duration;

use proptest::prelude::*;
use rdma::testutil::Wire;
use rdma::testutil::verbs::*;
use rdma::verbs::*;
use rdma::{CloseHow, Env, Stag, StreamId};

/// Bytes of each party's large memory: more than two segments of the longest length.
const LARGE: usize = 200_000;

/// One device with both ends of a connection.
struct Looped {
    node: Node,
    parties: [Party; 2],
    large: [Mr; 2],
    wires: [Wire; 2],
    positions: [u64; 2],
    direct: [bool; 2],
    closed: [Option<CloseHow>; 2],
    listener: Option<CmId>,
}

fn large(node: &mut Node, party: &Party, salt: u8) -> Mr {
    let bytes = rdma::testutil::pattern(LARGE, salt);
    node.reg(party.pd, bytes, AddressBase::At(BASE + (1 << 32)), all_access())
}

impl Looped {
    fn new() -> Self {
        let [mut node, _] = Net::new().nodes;
        let parties = [1, 2].map(|salt| party(&mut node, CAP, None, salt));
        let large = [(0, 3), (1, 4)].map(|(at, salt)| large(&mut node, &parties[at], salt));
        let wires = [0; 2].map(|_| Wire::new(1448, usize::MAX));
        let (positions, direct, closed) = ([0; 2], [false; 2], [None; 2]);
        let mut looped = Self { node, parties, large, wires, positions, direct, closed, listener: None };
        let device = &mut looped.node.device;
        let listener = device.create_id(Some(address(1))).unwrap();
        device.listen(listener, core::num::NonZeroU16::MIN, &ConnParam::default()).unwrap();
        let [client, server] = looped.parties;
        device.connect(client.id, client.qp, address(1), &ConnParam::default()).unwrap();
        looped.run();
        looped.node.device.accept(looped.parties[1].id, server.qp, b"").unwrap();
        looped.run();
        looped
    }

    fn open(&mut self, id: CmId) {
        let ends = (address(1), address(0));
        let Node { device, stats, .. } = &mut self.node;
        self.parties[1].id =
            device.incoming(self.listener.unwrap(), StreamId(2), ends, Duration::ZERO).unwrap();
        assert!(device.opened(id, StreamId(1), address(0), Duration::ZERO, stats));
    }

    fn end(&self, id: CmId) -> Option<usize> {
        self.parties.iter().position(|party| party.id == id)
    }

    fn transmit(&mut self, at: usize) {
        let Node { device, stags, memory, stats, .. } = &mut self.node;
        let (id, to) = (self.parties[at].id, self.parties[1 - at].id);
        let mut env = Env { stags, memory, stats };
        if self.direct[at] {
            while device.transmit_looped(id, to, Duration::ZERO, &mut env).pending {}
            device.drain(id);
            // The other end may have to answer.
            if device.has_output(to) {
                self.transmit(1 - at);
            }
        } else {
            device.poll_transmit(id, Duration::ZERO, &mut env, &mut self.wires[at]);
        }
    }

    fn request(&mut self, request: TransportRequest) {
        match request {
            TransportRequest::Listen { id, .. } => self.listener = Some(id),
            TransportRequest::Unlisten { .. } => self.listener = None,
            TransportRequest::Open { id, .. } => self.open(id),
            TransportRequest::Loop { .. } => panic!("no queue pair is connected with itself"),
            TransportRequest::Transmit { id } => {
                if let Some(at) = self.end(id) {
                    self.transmit(at);
                }
            }
            TransportRequest::Close { id, how, .. } => {
                let at = self.end(id).unwrap();
                self.closed[at] = Some(how);
                self.node.device.closed(id, &mut self.node.stags);
                if self.closed[1 - at].is_none() {
                    self.carry(at);
                    let to = self.parties[1 - at].id;
                    let Node { device, stats, .. } = &mut self.node;
                    match how {
                        CloseHow::Fin => device.peer_closed(to, Duration::ZERO, stats),
                        CloseHow::Reset => device.transport_lost(to),
                    }
                }
            }
        }
    }

    /// Carries bytes by the transport, and makes a direction direct once none are left.
    fn carry(&mut self, at: usize) -> bool {
        let (from, to) = (self.parties[at].id, self.parties[1 - at].id);
        if self.node.device.is_stalled(to) {
            return false;
        }
        let bytes = self.wires[at].take();
        let Node { device, stags, memory, stats, .. } = &mut self.node;
        if !bytes.is_empty() {
            assert!(!self.direct[at], "an FPDU by the transport");
            let env = &mut Env { stags, memory, stats };
            device.receive(to, Duration::ZERO, self.positions[at], bytes.clone(), env);
            self.positions[at] += bytes.len() as u64;
            self.transmit(1 - at);
        } else if !self.direct[at] && device.may_loop(from, to) {
            device.loop_out(from);
            self.direct[at] = true;
        }
        !bytes.is_empty()
    }

    /// Sends a Write in each direction: the first message of a side passes by the transport, and later ones do not.
    fn leave_transport(&mut self) {
        let parties = self.parties;
        for at in [0, 1] {
            let op = parties[1 - at].write_to(0);
            parties[at].post(&mut self.node, 1, op, &[parties[at].mr.sge(0, 8)]);
            self.run();
        }
    }

    fn run(&mut self) {
        while self.step() | self.copy() {}
    }

    /// Does what is due, without deferred copies. Returns false if nothing is.
    fn step(&mut self) -> bool {
        let mut moved = false;
        while let Some(request) = self.node.device.poll_transport() {
            self.request(request);
            moved = true;
        }
        while self.node.device.poll_cm_event().is_some() {}
        self.carry(0) | self.carry(1) | moved
    }

    /// Makes one deferred copy, and lets the connections that wait go on.
    fn copy(&mut self) -> bool {
        let mut moved = self.node.memory.copy_one(true);
        for _ in 0..self.node.device.deferred() {
            let Node { device, stags, memory, stats, .. } = &mut self.node;
            if device.resume_next(Duration::ZERO, &mut Env { stags, memory, stats }).is_some() {
                moved = true;
                self.transmit(0);
                self.transmit(1);
            }
        }
        moved
    }
}

/// One operation, as both runs post it.
#[derive(Clone, Debug)]
enum Op {
    /// Write or Read of so many bytes, from and to these offsets.
    Bulk {
        write: bool,
        from: usize,
        to: usize,
        len: usize,
    },
    /// Write or Read into a list of two elements.
    Listed {
        write: bool,
        len: usize,
    },
    Send {
        len: usize,
        solicited: bool,
    },
    Inline {
        len: usize,
    },
    Immediate {
        len: usize,
    },
    Atomic {
        add: u64,
    },
    /// Write to a key that names nothing.
    Bad {
        write: bool,
    },
    /// Write beyond the end of the memory.
    Beyond,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<bool>(), 0..1000_usize, 0..1000_usize, 0..LARGE - 1000)
            .prop_map(|(write, from, to, len)| Op::Bulk { write, from, to, len }),
        3 => (any::<bool>(), 0..8000_usize).prop_map(|(write, len)| Op::Listed { write, len }),
        3 => (0..8000_usize, any::<bool>()).prop_map(|(len, solicited)| Op::Send { len, solicited }),
        1 => (0..64_usize).prop_map(|len| Op::Inline { len }),
        2 => (0..8000_usize).prop_map(|len| Op::Immediate { len }),
        2 => any::<u64>().prop_map(|add| Op::Atomic { add }),
        1 => any::<bool>().prop_map(|write| Op::Bad { write }),
        1 => Just(Op::Beyond),
    ]
}

/// Posts an operation of `mine`, whose peer is `theirs`, and a buffer that it may need.
fn post(node: &mut Node, op: &Op, wr_id: u64, mine: (&Party, &Mr), theirs: (&Party, &Mr)) -> bool {
    let ((party, large), (peer, target)) = (mine, theirs);
    let at = |mr: &Mr, offset: usize| mr.mr.addr + offset as u64;
    let rkey = target.mr.rkey;
    let list = |len: usize| [party.mr.sge(0, (len / 2) as u32), party.mr.sge(8000, (len - len / 2) as u32)];
    let mut wr = |op: SendOp, data: Data<'_>, flags: SendFlags| {
        let wr = SendWr { wr_id, op, data, flags };
        node.device.post_send(party.qp, &wr).is_ok()
    };
    let none = SendFlags::SIGNALED;
    let remote = |write: bool, remote_addr: u64, rkey: Stag| {
        if write { SendOp::RdmaWrite { remote_addr, rkey } } else { SendOp::RdmaRead { remote_addr, rkey } }
    };
    match *op {
        Op::Bulk { write, from, to, len } => {
            wr(remote(write, at(target, to), rkey), Data::List(&[large.sge(from as u64, len as u32)]), none)
        }
        Op::Listed { write, len } => wr(remote(write, at(target, 77), rkey), Data::List(&list(len)), none),
        Op::Send { len, solicited } => wr(SEND, Data::List(&list(len)), SendFlags { solicited, ..none }),
        Op::Inline { len } => wr(SEND, Data::Inline(&[7; 64][..len]), none),
        Op::Immediate { len } => {
            let op = SendOp::RdmaWriteWithImm { remote_addr: at(target, 5), rkey, imm_data: *b"immediat" };
            wr(op, Data::List(&[large.sge(0, len as u32)]), none)
        }
        Op::Atomic { add } => {
            let op = rdma::AtomicOp::FetchAdd { add, mask: 0 };
            let (remote_addr, rkey) = (peer.mr.mr.addr, peer.mr.mr.rkey);
            wr(SendOp::Atomic { remote_addr, rkey, op }, Data::List(&[party.mr.sge(64, 8)]), none)
        }
        Op::Bad { write } => wr(remote(write, 0, Stag(0x0bad_0bad)), Data::List(&[large.sge(0, 100)]), none),
        Op::Beyond => {
            let remote_addr = at(target, LARGE - 10);
            wr(SendOp::RdmaWrite { remote_addr, rkey }, Data::List(&[large.sge(0, 11)]), none)
        }
    }
}

/// All that a program can see of a completion.
fn seen(all: Vec<WorkCompletion>) -> Vec<impl PartialEq + core::fmt::Debug> {
    let each = |wc: WorkCompletion| (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm_data, wc.solicited);
    all.into_iter().map(each).collect()
}

fn buffers(node: &mut Node, party: &Party, wr_id: u64) {
    let sges = [party.mr.sge(1000, 3000), party.mr.sge(5000, 5000)];
    // Refused once the queue pair is in error, in both runs.
    let _ = node.device.post_recv(party.qp, &RecvWr { wr_id, sg_list: &sges });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The same work on one device and on two that a wire connects: completions, states and bytes agree. So they do if
    /// copies into and out of some of the memories are deferred.
    ///
    /// Each operation ends before the next is posted, but for those of the responder, which wait for the first message
    /// of the initiator and are then sent together: an atomic operation before a bad Write succeeds if its response
    /// overtakes the bytes that the Write waits for, and is flushed if not. Deferred copies therefore begin behind such
    /// a message.
    #[test]
    fn programs_see_what_they_see_over_a_wire(
        batches in prop::collection::vec(prop::collection::vec((0..2_usize, op()), 1..5), 1..8),
        deferred in prop_oneof![Just([false; 4]), any::<[bool; 4]>()],
    ) {
        let mut looped = Looped::new();
        let mut net = Net::new();
        let (a, b) = pair(&mut net);
        let far = [a, b];
        let far_large = [(0, 3), (1, 4)].map(|(at, salt)| large(&mut net.nodes[at], &far[at], salt));
        if deferred.contains(&true) {
            let ends = [(&mut looped.node, looped.parties), (&mut net.nodes[0], far)];
            for (node, [mine, theirs]) in ends {
                mine.post(node, 1000, theirs.write_to(0), &[mine.mr.sge(0, 0)]);
            }
            looped.run();
            net.run();
        }
        for at in 0..2 {
            for (region, deferred) in
                [(looped.large[at].region, deferred[at]), (looped.parties[at].mr.region, deferred[2 + at])]
            {
                if deferred {
                    looped.node.memory.defer(region);
                }
            }
        }
        // The first message of each side passes by the transport.
        for (number, batch) in batches.iter().enumerate() {
            for (place, (at, op)) in batch.iter().enumerate() {
                let wr_id = (number * 10 + place) as u64;
                let (to, near, near_large) = (1 - at, looped.parties, looped.large);
                buffers(&mut looped.node, &near[to], wr_id);
                buffers(&mut net.nodes[to], &far[to], wr_id);
                let (mine, theirs) = ((&near[*at], &near_large[*at]), (&near[to], &near_large[to]));
                let here = post(&mut looped.node, op, wr_id, mine, theirs);
                let (mine, theirs) = ((&far[*at], &far_large[*at]), (&far[to], &far_large[to]));
                prop_assert_eq!(here, post(&mut net.nodes[*at], op, wr_id, mine, theirs));
                looped.run();
                net.run();
            }
            for at in 0..2 {
                let (near, far) = (looped.parties[at], far[at]);
                for (cq, far_cq) in [(near.cq, far.cq), (near.recv_cq, far.recv_cq)] {
                    prop_assert_eq!(seen(looped.node.poll(cq)), seen(net.nodes[at].poll(far_cq)));
                }
                prop_assert_eq!(near.state(&looped.node), far.state(&net.nodes[at]));
            }
        }
        for at in 0..2 {
            prop_assert!(looped.node.bytes(&looped.large[at]) == net.nodes[at].bytes(&far_large[at]), "large {}", at);
            let near = looped.parties[at].mr;
            prop_assert!(looped.node.bytes(&near) == net.nodes[at].bytes(&far[at].mr), "small {}", at);
        }
    }
}

/// A Write of 200,000 bytes goes in few segments, none of them by the transport.
#[test]
fn segments_of_a_looped_connection_pass_memory_by() {
    let mut looped = Looped::new();
    let (parties, large) = (looped.parties, looped.large);
    looped.leave_transport();
    assert_eq!(looped.direct, [true, true]);
    let before = looped.node.stats;
    let op = SendOp::RdmaWrite { remote_addr: large[1].mr.addr, rkey: large[1].mr.rkey };
    parties[0].post(&mut looped.node, 2, op, &[large[0].sge(0, LARGE as u32)]);
    looped.run();
    let after = looped.node.stats;
    let segments = after.rdmap.looped_segments - before.rdmap.looped_segments;
    assert_eq!((segments, after.rdmap.looped_bytes - before.rdmap.looped_bytes), (4, LARGE as u64));
    let fpdus = |stats: &rdma::RdmaStats| (stats.mpa.fpdus_out, stats.mpa.fpdus_in);
    assert_eq!(fpdus(&after), fpdus(&before));
    assert_eq!(looped.node.bytes(&large[0]), looped.node.bytes(&large[1]));
    let done = looped.node.poll(parties[0].cq);
    assert_eq!(ends(&done), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

/// A fenced Write of other memory does not leave before the bytes of a Read are in memory.
#[test]
fn a_fence_waits_for_deferred_copies() {
    let mut looped = Looped::new();
    let (parties, large) = (looped.parties, looped.large);
    looped.leave_transport();
    looped.node.memory.defer(parties[0].mr.region);
    let sink = [parties[0].mr.sge(0, 64)];
    parties[0].post(&mut looped.node, 2, parties[1].read_from(0), &sink);
    let (op, sge) = (parties[1].write_to(1000), [large[0].sge(0, 64)]);
    let flags = SendFlags { fence: true, ..SendFlags::SIGNALED };
    looped
        .node
        .device
        .post_send(parties[0].qp, &SendWr { wr_id: 3, op, data: Data::List(&sge), flags })
        .unwrap();
    let before = looped.node.bytes(&parties[1].mr)[1000..1064].to_vec();
    while looped.step() {}
    assert_eq!(looped.node.memory.deferred(), 1, "the bytes of the Read");
    assert_eq!(looped.node.bytes(&parties[1].mr)[1000..1064], before);
    looped.run();
    let written = looped.node.bytes(&large[0])[..64].to_vec();
    assert_eq!(looped.node.bytes(&parties[1].mr)[1000..1064], written);
    let done = looped.node.poll(parties[0].cq);
    assert_eq!(ends(&done)[1..], [(2, WcStatus::Success), (3, WcStatus::Success)]);
}
