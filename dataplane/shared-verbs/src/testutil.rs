//! Test support, also for other crates (feature `testutil`): a program with the objects of one connection.

use core::net::SocketAddr;

use iwarp_shared_queues::AtomicU64;
use rdma::verbs::{
    Access, AddressBase, CmId, CqId, MemoryRegion, PdId, QpCap, QpInit, QpNum, RecvWr, RegionId, SendOp,
    SendWr, Sge, VerbsError, WorkCompletion,
};

use crate::program::{CompletionQueue, Events, RecvQueue, SendQueue, Slots};
use crate::{Event, QpPlaces, Request, Response};

/// Executes the requests of a program.
pub type Execute<'a> = dyn FnMut(&Request) -> Result<Response, VerbsError> + 'a;

/// Parameters of a [`Program`].
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Size of the queue pair.
    pub cap: QpCap,
    /// Entries of each of the two completion queues.
    pub cqe: u32,
    /// Local address of the id.
    pub local: SocketAddr,
    /// Region to register, and its length in bytes.
    pub region: (RegionId, u64),
    /// First address of the memory region.
    pub base: AddressBase,
    /// Rights of the memory region.
    pub access: Access,
}

/// Objects of a program for one connection.
#[derive(Debug)]
pub struct Program<M> {
    /// Memory of the context.
    pub memory: M,
    /// Events of the context.
    pub events: Events<M>,
    /// Protection domain of all objects.
    pub pd: PdId,
    /// Completion queues of sends and of receives.
    pub cqs: [CqId; 2],
    /// Number of the queue pair.
    pub qp: QpNum,
    /// Connection of the queue pair.
    pub id: CmId,
    /// Memory region that all messages use.
    pub mr: MemoryRegion,
    /// Places of the queue pair's rings.
    pub places: QpPlaces,
    /// Slots of the queue pair.
    pub slots: Slots,
    /// Send queue, as the program has it.
    pub send: SendQueue<M>,
    /// Receive queue, as the program has it.
    pub recv: RecvQueue<M>,
    /// Completion queue of sends.
    pub cq: CompletionQueue<M>,
    /// Completion queue of receives.
    pub recv_cq: CompletionQueue<M>,
}

impl<M: AsRef<[AtomicU64]> + Clone> Program<M> {
    /// Creates the objects of one connection in a context with this memory.
    pub fn new(memory: M, setup: &Setup, execute: &mut Execute<'_>) -> Self {
        let Setup { cap, cqe, local, region: (region, length), base, access } = *setup;
        let Ok(Response::Pd(pd)) = execute(&Request::AllocPd) else { panic!("AllocPd") };
        let mut create_cq = || match execute(&Request::CreateCq(cqe)) {
            Ok(Response::Cq(cq, place)) => (cq, CompletionQueue::new(memory.clone(), place).unwrap()),
            other => panic!("CreateCq: {other:?}"),
        };
        let ((send_cq, mut cq), (recv_cq, mut recv_ring)) = (create_cq(), create_cq());
        let init = QpInit { recv_cq, cap, sq_sig_all: false, ..QpInit::new(pd, send_cq) };
        let Ok(Response::Qp(qp, places)) = execute(&Request::CreateQp(init)) else { panic!("CreateQp") };
        let Ok(Response::Id(id)) = execute(&Request::CreateId(Some(local))) else { panic!("CreateId") };
        let request = Request::RegMr { pd, memory: (region, 0, length), base, access };
        let Ok(Response::Mr(mr)) = execute(&request) else { panic!("RegMr") };
        let slots = Slots::new(false);
        cq.add_qp(qp, slots.clone());
        recv_ring.add_qp(qp, slots.clone());
        let depth = (cap.max_recv_wr, cap.max_recv_sge);
        let recv =
            places.recv.and_then(|place| RecvQueue::new(memory.clone(), place, depth, Some(slots.clone())));
        Self {
            events: Events::new(memory.clone()).unwrap(),
            pd,
            cqs: [send_cq, recv_cq],
            qp,
            id,
            mr,
            places,
            send: SendQueue::new(memory.clone(), qp, cap, places.send, slots.clone()).unwrap(),
            recv: recv.unwrap(),
            slots,
            cq,
            recv_cq: recv_ring,
            memory,
        }
    }

    /// Returns all events of the context.
    pub fn all_events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.events.poll()).collect()
    }

    /// Polls all completions of sends, or of receives.
    pub fn poll(&mut self, receives: bool) -> Vec<WorkCompletion> {
        let queue = if receives { &mut self.recv_cq } else { &mut self.cq };
        let mut out = [WorkCompletion::default(); 7];
        let mut all = Vec::new();
        while let Ok(polled @ 1..) = queue.poll(&mut out) {
            all.extend_from_slice(&out[..polled]);
        }
        all
    }

    /// Resizes the completion queue of sends, or of receives.
    ///
    /// # Errors
    /// The worker's.
    pub fn resize(&mut self, receives: bool, cqe: u32, execute: &mut Execute<'_>) -> Result<(), VerbsError> {
        let queue = if receives { &mut self.recv_cq } else { &mut self.cq };
        if !queue.begin_resize(cqe) {
            return Err(VerbsError::Invalid);
        }
        let Response::Cq(_, place) = execute(&Request::ResizeCq(self.cqs[usize::from(receives)], cqe))?
        else {
            panic!("ResizeCq")
        };
        assert!(queue.end_resize(place));
        Ok(())
    }

    /// Queues a signaled request and rings.
    pub fn post(&mut self, wr_id: u64, op: SendOp, sg_list: &[Sge]) {
        self.send.push(&SendWr::new(wr_id, op, sg_list)).unwrap();
        self.send.ring();
    }

    /// Queues a receive buffer and rings.
    pub fn post_recv(&mut self, wr_id: u64, sg_list: &[Sge]) {
        self.recv.push(&RecvWr { wr_id, sg_list }).unwrap();
        self.recv.ring();
    }
}
