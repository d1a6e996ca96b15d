//! Programs on both nodes of a network in memory, each with a context of its node's worker.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use iwarp_shared_verbs::worker::{ContextId, Contexts, ObjectLimits, Signals, UserId};
use iwarp_shared_verbs::{Event, Request, Response, testutil, words_min};
use rdma::testutil::model::Verbs;
use rdma::testutil::pattern;
use rdma::testutil::verbs::*;
use rdma::verbs::*;

pub(crate) type Memory = Arc<[AtomicU64]>;

/// Limits that no test reaches by accident.
pub(crate) const LIMITS: ObjectLimits =
    ObjectLimits { pds: 16, mrs: 64, mws: 64, cqs: 64, qps: 64, srqs: 16, ids: 128, ids_of_all: 1024 };
/// User that the contexts of the tests belong to.
pub(crate) const USER: UserId = UserId(1000);

/// Returns zeroed memory for a context with 256 Ki words for queues.
pub(crate) fn shared_memory() -> Memory {
    (0..words_min() + (1 << 18)).map(|_| AtomicU64::new(0)).collect()
}

/// Signals raised since the last look.
#[derive(Debug, Default)]
pub(crate) struct Raised {
    pub(crate) completions: BTreeSet<(ContextId, CqId)>,
    pub(crate) events: BTreeSet<ContextId>,
}

impl Signals for Raised {
    fn completion(&mut self, context: ContextId, cq: CqId) {
        self.completions.insert((context, cq));
    }

    fn event(&mut self, context: ContextId) {
        self.events.insert(context);
    }
}

/// A network of two nodes, with the contexts of each.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) net: Net,
    pub(crate) contexts: [Contexts<Memory>; 2],
    pub(crate) raised: [Raised; 2],
}

impl Lab {
    pub(crate) fn new() -> Self {
        let net = Net::with(Limits { cqe_max: 4096, mrs: 256, pds: 64, ..Limits::default() });
        let contexts = || Contexts::new(16, net.nodes[0].device.limits().cqs);
        Self { contexts: [contexts(), contexts()], net, raised: Default::default() }
    }

    /// Executes a request.
    pub(crate) fn request(
        &mut self,
        at: usize,
        context: ContextId,
        request: &Request,
    ) -> Result<Response, VerbsError> {
        let Node { device, stags, .. } = &mut self.net.nodes[at];
        self.contexts[at].execute(context, request, device, stags, self.net.now)
    }

    /// Posts what programs have queued, and delivers completions and events. Returns true if work is left.
    pub(crate) fn poll(&mut self, at: usize) -> bool {
        let (node, contexts, raised) =
            (&mut self.net.nodes[at], &mut self.contexts[at], &mut self.raised[at]);
        let events: Vec<_> =
            node.cm.drain(..).chain(core::iter::from_fn(|| node.device.poll_cm_event())).collect();
        for event in events {
            if let Some(event) = contexts.cm_event(event, &mut node.device, raised) {
                node.cm.push(event);
            }
        }
        let busy = contexts.post(&mut node.device);
        contexts.deliver(&mut node.device, raised);
        busy
    }

    /// Runs workers and network until nothing is left to do.
    pub(crate) fn run(&mut self) {
        for _ in 0..2 {
            for at in 0..2 {
                while self.poll(at) {}
            }
            self.net.run();
        }
        for at in 0..2 {
            while self.poll(at) {}
        }
    }

    /// Opens a context with its memory.
    pub(crate) fn open(&mut self, at: usize) -> (ContextId, Memory) {
        let memory = shared_memory();
        (self.contexts[at].open(Arc::clone(&memory), USER, LIMITS).unwrap(), memory)
    }
}

/// A program of one node.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) at: usize,
    pub(crate) context: ContextId,
    pub(crate) party: Party,
    pub(crate) objects: testutil::Program<Memory>,
}

impl Deref for Program {
    type Target = testutil::Program<Memory>;

    fn deref(&self) -> &Self::Target {
        &self.objects
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.objects
    }
}

impl Program {
    /// Opens a context and creates the objects of one connection, with completion queues of `cqe` entries.
    pub(crate) fn new(lab: &mut Lab, at: usize, cap: QpCap, cqe: u32, salt: u8) -> Self {
        let (context, memory) = lab.open(at);
        let region = lab.net.nodes[at].memory.add(pattern(MEMORY, salt)).unwrap();
        let setup = testutil::Setup {
            cap,
            cqe,
            local: address(at),
            region: (region, MEMORY as u64),
            base: AddressBase::At(BASE),
            access: all_access(),
        };
        let objects =
            testutil::Program::new(memory, &setup, &mut |request| lab.request(at, context, request));
        let testutil::Program { pd, cqs: [cq, recv_cq], qp, id, mr, .. } = objects;
        Self { at, context, party: Party { pd, cq, recv_cq, qp, id, mr: Mr { region, mr } }, objects }
    }

    /// Queues a signaled request and rings.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp, sg_list: &[Sge]) {
        self.objects.post(wr_id, op, sg_list);
    }

    /// Queues a receive buffer and rings.
    pub(crate) fn post_recv(&mut self, wr_id: u64, sg_list: &[Sge]) {
        self.objects.post_recv(wr_id, sg_list);
    }
}

/// Lets node 1's program listen. Returns the listener.
pub(crate) fn listen(lab: &mut Lab, b: &Program) -> CmId {
    let Ok(Response::Id(id)) = lab.request(1, b.context, &Request::CreateId(Some(address(1)))) else {
        panic!()
    };
    let backlog = 4.try_into().unwrap();
    lab.request(1, b.context, &Request::Listen { id, backlog, depths: (16, 16) }).unwrap();
    lab.run();
    id
}

/// Connects a program at node 0 with one at node 1 that listens.
pub(crate) fn connect(lab: &mut Lab, a: &mut Program, b: &mut Program) {
    let Party { id, qp, .. } = a.party;
    let (peer, private_data) = (address(1), b"hello".to_vec());
    let request = Request::Connect {
        id,
        qp,
        peer,
        private_data,
        depths: (16, 16),
        revision: 2,
        rtr: None,
        any_port: false,
    };
    lab.request(0, a.context, &request).unwrap();
    lab.run();
    let events = b.all_events();
    let [Event::Cm(CmEvent { id, kind: CmEventKind::ConnectRequest { private_data, .. } })] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(&private_data[..], b"hello");
    let spare = core::mem::replace(&mut b.party.id, *id);
    lab.request(1, b.context, &Request::DestroyId(spare)).unwrap();
    let accept = Request::Accept { id: *id, qp: b.party.qp, private_data: b"yes".to_vec() };
    lab.request(1, b.context, &accept).unwrap();
    lab.run();
    for program in [a, b] {
        let events = program.all_events();
        let [Event::Cm(CmEvent { id, kind: CmEventKind::Established { .. } })] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(*id, program.party.id);
        program.send.set_ready(true);
    }
}

/// Returns two connected programs, one per node.
pub(crate) fn pair(lab: &mut Lab, cqe: u32) -> (Program, Program) {
    let mut a = Program::new(lab, 0, CAP, cqe, 1);
    let mut b = Program::new(lab, 1, CAP, cqe, 2);
    listen(lab, &b);
    connect(lab, &mut a, &mut b);
    (a, b)
}

/// The verbs over shared memory.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) lab: Lab,
    pub(crate) programs: [Program; 2],
    /// True if the worker polls after each request.
    eager: bool,
}

impl Shared {
    pub(crate) fn new(mss: usize, chunk: usize, eager: bool) -> Self {
        let mut lab = Lab::new();
        (lab.net.mss, lab.net.chunk) = (mss, chunk);
        let (a, b) = pair(&mut lab, 256);
        Self { lab, programs: [a, b], eager }
    }
}

impl Verbs for Shared {
    fn net(&mut self) -> &mut Net {
        &mut self.lab.net
    }

    fn party(&self, at: usize) -> Party {
        self.programs[at].party
    }

    fn post_send(&mut self, at: usize, wr: &SendWr<'_>) {
        self.programs[at].send.push(wr).unwrap();
        self.programs[at].send.ring();
        if self.eager {
            self.lab.poll(at);
        }
    }

    fn post_recv(&mut self, at: usize, wr: &RecvWr<'_>) {
        self.programs[at].recv.push(wr).unwrap();
        self.programs[at].recv.ring();
        if self.eager {
            self.lab.poll(at);
        }
    }

    fn poll(&mut self, at: usize, receives: bool) -> Vec<WorkCompletion> {
        self.programs[at].poll(receives)
    }

    fn run(&mut self) {
        self.lab.run();
    }

    fn resize(&mut self, at: usize, receives: bool, cqe: u32) -> Result<(), VerbsError> {
        let Self { lab, programs, .. } = self;
        let program = &mut programs[at];
        let context = program.context;
        program.objects.resize(receives, cqe, &mut |request| lab.request(at, context, request))
    }
}
