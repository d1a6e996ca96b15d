//! Open contexts of applications: their objects as far as limits and lists need them, and the numbers of their memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use iwarp_config::UserLimits;
use iwarp_control::{ErrorKind, ErrorObject};
use iwarp_shared_verbs::worker::ContextId;
use iwarp_shared_verbs::{Request, Response};
use rdma::RegionId;
use rdma::verbs::{Access, CqId, MemoryRegion, QpInit, QpNum, SrqId, VerbsError};
use tokio::time::Instant;

use super::watches::AppWatch;
use crate::control::Peer;
use crate::memory::RegionMemory;

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
    /// Bytes that the application's user has of it: none of a daemon's region.
    pub(super) bytes: u64,
    /// Room taken of the daemon's memory limit, bytes.
    pub(super) reserved: u64,
    /// Name of the daemon's region, if it is one.
    pub(super) region: Option<String>,
    /// The memory region, and its rights.
    pub(super) mr: Option<(MemoryRegion, Access)>,
    /// Use of memory that takes the place of pages of the program; `None` for other memory.
    pub(super) exchange: Option<Exchange>,
    /// Parts of a memory region of the program's own memory.
    pub(super) own: Option<OwnMemory>,
}

/// Use of memory that takes the place of pages of the program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchange {
    /// Parts of memory regions that have bytes of it.
    pub(super) parts: u32,
}

/// Parts of a memory region of the program's own memory.
#[derive(Clone, Debug)]
pub(super) struct OwnMemory {
    /// Memory that has taken the place of the program's pages, by number; one entry for each part.
    pub(super) exchanged: Vec<u32>,
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
    pub(super) queue_bytes: u64,
    pub(super) qps: BTreeMap<QpNum, QpInit>,
    /// Entries by completion queue.
    pub(super) cqs: BTreeMap<CqId, u32>,
    /// Entries by shared receive queue.
    pub(super) srqs: BTreeMap<SrqId, u16>,
    pub(super) memories: BTreeMap<u32, AppMemory>,
    /// Watches of regions, by number.
    pub(super) watches: BTreeMap<u64, AppWatch>,
    /// Use that requests under way may add.
    pub(super) pending: Usage,
}

/// Objects that count for a user's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) queue_pairs: u64,
    pub(super) queue_entries: u64,
    pub(super) memory_bytes: u64,
    pub(super) watches: u64,
}

impl Usage {
    /// Returns what a request adds if it succeeds.
    pub(super) fn of(request: &Request) -> Self {
        match request {
            // Until the request has succeeded, a queue that is resized has its old entries, too.
            Request::CreateCq(cqe) | Request::ResizeCq(_, cqe) => {
                Self { queue_entries: (*cqe).into(), ..Self::default() }
            }
            Request::CreateSrq { max_wr, .. } => Self { queue_entries: (*max_wr).into(), ..Self::default() },
            Request::CreateQp(init) => {
                Self { queue_pairs: 1, queue_entries: entries_of(init), ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    pub(super) const fn add(self, other: Self) -> Self {
        Self {
            queue_pairs: self.queue_pairs.saturating_add(other.queue_pairs),
            queue_entries: self.queue_entries.saturating_add(other.queue_entries),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            watches: self.watches.saturating_add(other.watches),
        }
    }

    /// Returns the limit that this use exceeds, by the name of its key.
    pub(super) fn exceeds(self, limits: &UserLimits) -> Option<&'static str> {
        let keys = [
            (self.queue_pairs, u64::from(limits.queue_pairs_max), "user_queue_pairs_max"),
            (self.queue_entries, u64::from(limits.queue_entries_max), "user_queue_entries_max"),
            (self.memory_bytes, limits.memory_bytes, "user_memory"),
            (self.watches, limits.watches_max.into(), "user_watches_max"),
        ];
        keys.into_iter().find(|(used, max, _)| used > max).map(|(_, _, key)| key)
    }
}

/// Returns the entries of a queue pair's own queues.
fn entries_of(init: &QpInit) -> u64 {
    let recv = if init.srq.is_some() { 0 } else { u64::from(init.cap.max_recv_wr) };
    u64::from(init.cap.max_send_wr).saturating_add(recv)
}

impl App {
    /// Returns the objects that count for the user's limits.
    pub(super) fn usage(&self) -> Usage {
        let own = Usage {
            queue_pairs: self.qps.len() as u64,
            queue_entries: self.qps.values().map(entries_of).sum::<u64>()
                + self.cqs.values().map(|cqe| u64::from(*cqe)).sum::<u64>()
                + self.srqs.values().map(|wr| u64::from(*wr)).sum::<u64>(),
            memory_bytes: self.memories.values().map(|memory| memory.bytes).sum::<u64>()
                + self.watches.values().map(|watch| watch.bytes).sum::<u64>()
                + self.queue_bytes,
            watches: self.watches.len() as u64,
        };
        own.add(self.pending)
    }

    /// Removes memory that no worker accesses. Returns it.
    pub(super) fn remove_memory(&mut self, number: u32) -> Option<AppMemory> {
        let memory = self.memories.remove(&number)?;
        for exchanged in memory.own.iter().flat_map(|own| &own.exchanged) {
            if let Some(use_of) = self.memories.get_mut(exchanged).and_then(|memory| memory.exchange.as_mut())
            {
                use_of.parts = use_of.parts.saturating_sub(1);
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
            (Request::CreateSrq { max_wr, .. }, Ok(Response::Srq(srq, _))) => {
                self.srqs.insert(srq, *max_wr);
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

    /// Adds an application without a context.
    ///
    /// # Errors
    /// The user has as many contexts as allowed.
    pub(super) fn add(&self, peer: &Peer, limits: &UserLimits) -> Result<Rc<RefCell<App>>, ErrorObject> {
        let mut apps = self.apps.borrow_mut();
        let others = apps.values().filter(|app| app.borrow().peer.uid == peer.uid).count();
        if others >= usize::from(limits.contexts_max) {
            let message = format!("user {} has {others} contexts, as many as one user may have", peer.uid);
            return Err(ErrorObject::new(ErrorKind::NoResources, message)
                .with_help("end another program, or raise applications.user_contexts_max and reload"));
        }
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
            queue_bytes: 0,
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            memories: BTreeMap::new(),
            watches: BTreeMap::new(),
            pending: Usage::default(),
        }));
        apps.insert(number, Rc::clone(&app));
        Ok(app)
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

    /// Reserves what a request may add, until [`App::pending`] is reduced by the same.
    ///
    /// # Errors
    /// The name of the key whose limit the user would exceed.
    pub(super) fn reserve(
        &self,
        app: &RefCell<App>,
        usage: Usage,
        limits: &UserLimits,
    ) -> Result<(), &'static str> {
        let uid = app.borrow().peer.uid;
        let used = self.all().into_iter().map(|other| {
            let other = other.borrow();
            if other.peer.uid == uid { other.usage() } else { Usage::default() }
        });
        let used = used.fold(usage, Usage::add);
        if usage != Usage::default()
            && let Some(key) = used.exceeds(limits)
        {
            return Err(key);
        }
        let mut app = app.borrow_mut();
        app.pending = app.pending.add(usage);
        Ok(())
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
