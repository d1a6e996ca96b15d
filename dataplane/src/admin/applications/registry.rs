//! Open contexts of applications: their objects as far as limits and lists need them, and the numbers of their memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use iwarp_control::{ErrorKind, ErrorObject};
use iwarp_engine::memory::RegionMemory;
use iwarp_shared_verbs::worker::ContextId;
use iwarp_shared_verbs::{Request, Response};
use rdma::RegionId;
use rdma::verbs::{
    Access, CmId, CqId, MemoryRegion, MwId, PdId, QpInit, QpNum, SrqId, VerbsError, cq_memory_bytes,
    srq_memory_bytes,
};
use tokio::time::Instant;

use super::usage::{Exceeded, Limits, Usage};
use super::watches::AppWatch;
use crate::control::Peer;

/// Place of a context: its worker, its port, and its number in the engine of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextPlace {
    pub(super) worker: usize,
    pub(super) port: usize,
    pub(super) id: ContextId,
}

/// Memory of an application.
#[derive(Debug)]
pub(super) struct AppMemory {
    /// The daemon's mapping; `None` for a memory region of the program's own memory.
    pub(super) memory: Option<Arc<RegionMemory>>,
    /// Bytes that the application's user has of it, whole pages: none of a daemon's region.
    pub(super) bytes: u64,
    /// Room taken of the daemon's memory limit, bytes.
    pub(super) reserved: u64,
    /// Name of the daemon's region, if it is one.
    pub(super) region: Option<String>,
    /// The memory region, and its rights.
    pub(super) mr: Option<(MemoryRegion, Access)>,
    /// Number of the parts of memory regions that have bytes of it, if it takes the place of pages of the program, or
    /// small buffers share it; `None` for other memory.
    pub(super) parts: Option<u32>,
    /// Parts of a memory region that has no memory of its own.
    pub(super) own: Option<OwnMemory>,
}

/// Parts of a memory region of the program's own memory, or of memory that small buffers share.
#[derive(Clone, Debug)]
pub(super) struct OwnMemory {
    /// Memory that has taken the place of the program's pages, or is shared, by number; one entry for each part.
    pub(super) exchanged: Vec<u32>,
    /// True if all of it is on hugepages.
    pub(super) is_huge: bool,
    /// Bytes that the daemon reaches through the kernel.
    pub(super) kernel_bytes: u64,
}

/// An application: one connection to the verbs socket.
#[derive(Debug)]
pub(super) struct App {
    pub(super) number: u32,
    pub(super) peer: Peer,
    /// Name of the program.
    pub(super) command: String,
    /// Time at which the program connected.
    pub(super) opened: Instant,
    pub(super) context: Option<ContextPlace>,
    /// True once the program has closed its connection to the daemon: its objects are being destroyed.
    pub(super) has_left: bool,
    pub(super) queue_bytes: u64,
    pub(super) qps: BTreeMap<QpNum, QpInit>,
    /// Entries by completion queue.
    pub(super) cqs: BTreeMap<CqId, u32>,
    /// Entries by shared receive queue, and the elements of each.
    pub(super) srqs: BTreeMap<SrqId, (u16, u16)>,
    pub(super) pds: HashSet<PdId>,
    pub(super) mws: HashSet<MwId>,
    /// Ids that the program has created. Those of connect requests are counted by the worker.
    pub(super) ids: HashSet<CmId>,
    pub(super) memories: BTreeMap<u32, AppMemory>,
    /// Watches of regions, by number.
    pub(super) watches: BTreeMap<u64, AppWatch>,
    /// Use that requests under way may add.
    pub(super) pending: Usage,
}

/// Returns the entries of a queue pair's own queues.
fn entries_of(init: &QpInit) -> u64 {
    let recv = if init.srq.is_some() { 0 } else { u64::from(init.cap.max_recv_wr) };
    u64::from(init.cap.max_send_wr).saturating_add(recv)
}

impl App {
    /// Returns the objects that count for the user's limits.
    pub(super) fn usage(&self) -> Usage {
        let count = |objects: usize| objects as u64;
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0_u64, u64::saturating_add);
        let qp_bytes = |init: &QpInit| init.memory_bytes(self.srq_sge(init));
        let own = Usage {
            contexts: 1,
            queue_pairs: count(self.qps.len()),
            protection_domains: count(self.pds.len()),
            completion_queues: count(self.cqs.len()),
            shared_receive_queues: count(self.srqs.len()),
            memories: count(self.memories.len()),
            windows: count(self.mws.len()),
            ids: count(self.ids.len()),
            queue_entries: sum(&mut self.qps.values().map(entries_of))
                .saturating_add(sum(&mut self.cqs.values().map(|cqe| u64::from(*cqe))))
                .saturating_add(sum(&mut self.srqs.values().map(|(wr, _)| u64::from(*wr)))),
            memory_bytes: sum(&mut self.memories.values().map(|memory| memory.bytes))
                .saturating_add(sum(&mut self.watches.values().map(|watch| watch.bytes)))
                .saturating_add(sum(&mut self.qps.values().map(qp_bytes)))
                .saturating_add(sum(&mut self.cqs.values().map(|cqe| cq_memory_bytes(*cqe))))
                .saturating_add(sum(&mut self.srqs.values().map(|(wr, sge)| srq_memory_bytes(*wr, *sge))))
                .saturating_add(self.queue_bytes),
            watches: count(self.watches.len()),
        };
        own.add(self.pending)
    }

    /// Returns the elements of a buffer of a queue pair's shared receive queue, if it has one.
    fn srq_sge(&self, init: &QpInit) -> Option<u16> {
        let (_, sge) = self.srqs.get(&init.srq?)?;
        Some(*sge)
    }

    /// Returns what a request adds if it succeeds.
    pub(super) fn usage_of(&self, request: &Request) -> Usage {
        match request {
            // Until the request has succeeded, a queue that is resized has its old entries, too.
            Request::CreateCq(cqe) | Request::ResizeCq(_, cqe) => Usage {
                completion_queues: u64::from(matches!(request, Request::CreateCq(_))),
                queue_entries: (*cqe).into(),
                memory_bytes: cq_memory_bytes(*cqe),
                ..Usage::default()
            },
            Request::CreateSrq { max_wr, max_sge, .. } => Usage {
                shared_receive_queues: 1,
                queue_entries: (*max_wr).into(),
                memory_bytes: srq_memory_bytes(*max_wr, *max_sge),
                ..Usage::default()
            },
            Request::CreateQp(init) => Usage {
                queue_pairs: 1,
                queue_entries: entries_of(init),
                memory_bytes: init.memory_bytes(self.srq_sge(init)),
                ..Usage::default()
            },
            Request::AllocPd => Usage { protection_domains: 1, ..Usage::default() },
            Request::AllocMw(_) => Usage { windows: 1, ..Usage::default() },
            Request::CreateId(_) => Usage { ids: 1, ..Usage::default() },
            _ => Usage::default(),
        }
    }

    /// Removes memory that no worker accesses. Returns it.
    pub(super) fn remove_memory(&mut self, number: u32) -> Option<AppMemory> {
        let memory = self.memories.remove(&number)?;
        for exchanged in memory.own.iter().flat_map(|own| &own.exchanged) {
            if let Some(parts) = self.memories.get_mut(exchanged).and_then(|memory| memory.parts.as_mut()) {
                *parts = parts.saturating_sub(1);
            }
        }
        Some(memory)
    }

    /// Records what a request has changed.
    pub(super) fn record(&mut self, request: &Request, result: Result<Response, VerbsError>) {
        match (request, result) {
            (Request::CreateQp(init), Ok(Response::Qp(qp, _))) => {
                self.qps.insert(qp, *init);
            }
            (Request::CreateCq(cqe) | Request::ResizeCq(_, cqe), Ok(Response::Cq(cq, _))) => {
                self.cqs.insert(cq, *cqe);
            }
            (Request::CreateSrq { max_wr, max_sge, .. }, Ok(Response::Srq(srq, _))) => {
                self.srqs.insert(srq, (*max_wr, *max_sge));
            }
            (Request::AllocPd, Ok(Response::Pd(pd))) => {
                self.pds.insert(pd);
            }
            (Request::AllocMw(_), Ok(Response::Mw(mw))) => {
                self.mws.insert(mw.id);
            }
            (Request::CreateId(_), Ok(Response::Id(id))) => {
                self.ids.insert(id);
            }
            (Request::DeallocPd(pd), Ok(_)) => {
                self.pds.remove(pd);
            }
            (Request::DeallocMw(mw), Ok(_)) => {
                self.mws.remove(mw);
            }
            (Request::DestroyId(id), Ok(_)) => {
                self.ids.remove(id);
            }
            (Request::DestroyQp(qp), Ok(_)) => {
                self.qps.remove(qp);
            }
            (Request::DestroyCq(cq), Ok(_)) => {
                self.cqs.remove(cq);
            }
            (Request::DestroySrq(srq), Ok(_)) => {
                self.srqs.remove(srq);
            }
            _ => {}
        }
    }
}

/// All applications. Nothing of it is borrowed across an await.
#[derive(Debug)]
pub(super) struct Registry {
    apps: RefCell<BTreeMap<u32, Rc<RefCell<App>>>>,
    last: std::cell::Cell<u32>,
    last_watch: std::cell::Cell<u64>,
    /// Numbers of memory that no application has.
    free: RefCell<Vec<u32>>,
}

impl Registry {
    /// Creates an empty registry. Applications number their memory from `first` on.
    pub(super) fn new(first: u32, memories_max: u16) -> Self {
        let free = (first..first.saturating_add(memories_max.into())).rev().collect();
        Self {
            apps: RefCell::default(),
            last: std::cell::Cell::new(0),
            last_watch: std::cell::Cell::new(0),
            free: RefCell::new(free),
        }
    }

    /// Adds an application without a context. The server of the socket limits their number.
    pub(super) fn add(&self, peer: &Peer) -> Rc<RefCell<App>> {
        let mut apps = self.apps.borrow_mut();
        let mut number = self.last.get();
        loop {
            number = number.wrapping_add(1).max(1);
            if !apps.contains_key(&number) {
                break;
            }
        }
        self.last.set(number);
        let app = Rc::new(RefCell::new(App {
            number,
            peer: peer.clone(),
            command: command_of(peer.pid),
            opened: Instant::now(),
            context: None,
            has_left: false,
            queue_bytes: 0,
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            pds: HashSet::new(),
            mws: HashSet::new(),
            ids: HashSet::new(),
            memories: BTreeMap::new(),
            watches: BTreeMap::new(),
            pending: Usage::default(),
        }));
        apps.insert(number, Rc::clone(&app));
        app
    }

    /// Returns a number that no watch has had.
    pub(super) fn next_watch(&self) -> u64 {
        let number = self.last_watch.get().wrapping_add(1);
        self.last_watch.set(number);
        number
    }

    pub(super) fn remove(&self, number: u32) {
        self.apps.borrow_mut().remove(&number);
    }

    /// Returns an application by its number.
    pub(super) fn find(&self, number: u32) -> Option<Rc<RefCell<App>>> {
        self.apps.borrow().get(&number).cloned()
    }

    /// Returns all applications, by number.
    pub(super) fn all(&self) -> Vec<Rc<RefCell<App>>> {
        self.apps.borrow().values().cloned().collect()
    }

    /// Reserves what each of some requests may add, until [`App::pending`] is reduced by the same. Counts the user's
    /// objects, which may be many, once.
    pub(super) fn reserve_each(
        &self,
        app: &RefCell<App>,
        requests: impl Iterator<Item = Usage>,
        limits: &Limits,
    ) -> Vec<Result<(), Exceeded>> {
        let mut used = None;
        let reserve = |usage: Usage| -> Result<(), Exceeded> {
            if usage == Usage::default() {
                return Ok(());
            }
            let [all, of_device] = used.get_or_insert_with(|| {
                let (uid, place) = {
                    let app = app.borrow();
                    (app.peer.uid, app.context.map(|place| (place.worker, place.port)))
                };
                self.used(uid, place)
            });
            let sums = (all.add(usage), of_device.add(usage));
            limits.check(usage, sums.0, sums.1)?;
            (*all, *of_device) = sums;
            let mut app = app.borrow_mut();
            app.pending = app.pending.add(usage);
            Ok(())
        };
        requests.map(reserve).collect()
    }

    /// Returns the use of a user's contexts: of all, and of those of one worker and port.
    pub(super) fn used(&self, uid: u32, place: Option<(usize, usize)>) -> [Usage; 2] {
        let mut sums = [Usage::default(); 2];
        for app in self.apps.borrow().values() {
            let app = app.borrow();
            if app.peer.uid != uid {
                continue;
            }
            let usage = app.usage();
            let is_there = place.is_some() && app.context.map(|at| (at.worker, at.port)) == place;
            let [all, of_device] = &mut sums;
            *all = all.add(usage);
            if is_there {
                *of_device = of_device.add(usage);
            }
        }
        sums
    }

    /// Takes a number for memory.
    ///
    /// # Errors
    /// All are in use.
    pub(super) fn take_number(&self) -> Result<RegionId, ErrorObject> {
        self.free.borrow_mut().pop().map(RegionId).ok_or_else(|| {
            let message = "there are as many memory regions as applications.memory_regions_max allows";
            ErrorObject::new(ErrorKind::NoResources, message)
                .with_help("deregister one, or raise applications.memory_regions_max and restart")
        })
    }

    pub(super) fn give_number(&self, number: u32) {
        self.free.borrow_mut().push(number);
    }
}

/// Returns the name of a process; empty if `/proc` does not show it.
fn command_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
