//! Handler of the verbs socket's requests. A program's connection is its context: the handler opens it on a worker,
//! checks the user's limits, allocates memory, and passes requests on. When the connection ends, it closes the context.
//!
//! ```text
//!  program ── context.open ──▶ least loaded worker: ContextCommand::Open ──▶ memfd and descriptors to the program
//!          ── context.execute ▶ limits ─▶ ContextCommand::Execute, 16 requests each ─▶ results
//!          ── end of connection ────────▶ ContextCommand::Close ─▶ memory unmapped, numbers free
//! ```

mod admission;
mod lists;
mod own_memory;
mod registry;
#[cfg(test)]
mod tests;
mod usage;
mod watches;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use iwarp_config::Applications as Settings;
use iwarp_control::{ErrorKind, ErrorObject, Method, NoParams, Request as ControlRequest, params};
use iwarp_engine::Wakers;
use iwarp_engine::memory::{
    HUGEPAGE_BYTES, Pages, ProcessMemory, ProcessMemoryError, RegionMemory, SharedWords,
};
use iwarp_engine::wake::Wakes;
use iwarp_shared_verbs::methods::{
    AllocMemory, AllocMemoryMethod, DeviceInfo, DeviceListMethod, Execute, ExecuteMethod, Executed,
    FreeMemory, FreeMemoryMethod, METHODS, Memory, OfferProcessMethod, Open, OpenMethod, OpenRegion,
    OpenRegionMethod, Opened, QUEUE_BYTES_DEFAULT, REQUESTS_MAX, RegMr, RegMrMethod, RegPartsMethod,
    SMALL_BYTES, UnwatchRegion, UnwatchRegionMethod, WatchRegion, WatchRegionMethod,
};
use iwarp_shared_verbs::worker::{ObjectLimits, UserId};
use iwarp_shared_verbs::{Request, words_min};
use rdma::RegionId;
use rdma::verbs::{MemoryRegion, VerbsError};
use tokio::sync::{Mutex, oneshot};

use super::regions::Regions;
use super::worker_handle::WorkerHandle;
use crate::control::{Handler, Peer, Reply, SharedSettings};
use crate::events::{Event, EventLog};
use crate::worker::{Command, ContextCommand, NewMr};
pub(super) use lists::no_such_app;
use own_memory::{Copiers, OfferedMemory};
use registry::{App, AppMemory, ContextPlace, Registry};
use usage::{Limits, Usage};

/// Requests for which the limits of their user are checked together: the worker executes them in parts.
const REQUESTS_AT_A_TIME: usize = 16;
/// Bytes of an ordinary page.
const PAGE_BYTES: u64 = 4096;
/// Most bytes of queue memory of a context.
const QUEUE_BYTES_MAX: u64 = 1 << 30;

/// Handles the requests of programs on the control thread.
#[derive(Debug)]
pub struct Applications {
    /// Never borrowed across an await.
    settings: RefCell<Settings>,
    /// Settings of the control socket, whose clients may open the daemon's regions.
    control: SharedSettings,
    workers: Rc<Vec<WorkerHandle>>,
    /// Devices by port index.
    devices: Vec<DeviceInfo>,
    /// True for each port whose link is up, as its programs know it.
    links: Vec<Cell<bool>>,
    regions: Rc<Mutex<Regions>>,
    registry: Registry,
    copiers: Copiers,
    events: Rc<EventLog>,
    /// Wakes programs that sleep.
    wakes: Wakes,
}

/// Session of one program.
#[derive(Debug)]
pub struct Session {
    app: Rc<RefCell<App>>,
    /// Queues of the context, shared with the program and the worker. Held because the last handle unmaps them, which
    /// takes time: the worker drops its handle before this session ends, so that the control thread unmaps.
    queues: Option<SharedWords>,
    /// True once the file of `queues` is closed.
    is_closed: bool,
    /// Memory of the program, if it has offered it.
    process: Option<OfferedMemory>,
}

impl Applications {
    /// Creates a handler for running workers. `first_memory` is the first region number that no region has.
    pub(crate) fn new(
        settings: Settings,
        control: SharedSettings,
        workers: Rc<Vec<WorkerHandle>>,
        devices: Vec<DeviceInfo>,
        regions: Rc<Mutex<Regions>>,
        first_memory: u32,
        (events, wakes): (&Rc<EventLog>, Wakes),
    ) -> Self {
        let registry = Registry::new(first_memory, settings.memory_regions_max);
        let (links, events) = (vec![Cell::new(true); devices.len()], Rc::clone(events));
        let settings = RefCell::new(settings);
        let copiers = Copiers::default();
        Self { settings, control, workers, devices, links, regions, registry, copiers, events, wakes }
    }

    /// Reports to the programs of a port how its link is, if that has changed. Called once per second.
    pub(super) fn set_link(&self, port: usize, up: bool) {
        let Some(known) = self.links.get(port).filter(|known| known.get() != up) else { return };
        // Before the workers: a context that opens meanwhile has the new state, or receives the event, or both.
        known.set(up);
        let command = || Command::Context { port, command: ContextCommand::Link { up } };
        let sent = self.workers.iter().map(|worker| worker.send(command()));
        if sent.fold(false, |failed, sent| failed | sent.is_err()) {
            // A worker takes no commands at the moment: all are informed again at the next check.
            known.set(!up);
        }
    }

    /// Sets the limits of users and of watches. What programs have stays.
    pub(crate) fn change(&self, settings: &Settings) {
        self.settings.replace(settings.clone());
    }

    fn limits(&self) -> Limits {
        Limits::new(&self.settings.borrow())
    }

    /// Sends a command about a context to its worker, and awaits the answer.
    async fn ask<T>(
        &self,
        worker: usize,
        port: usize,
        command: impl FnOnce(oneshot::Sender<T>) -> ContextCommand,
    ) -> Result<T, ErrorObject> {
        let worker = self.workers.get(worker).ok_or_else(|| internal("there is no such worker"))?;
        worker.ask(|reply| Command::Context { port, command: command(reply) }).await
    }

    /// Returns the worker with the fewest contexts. Those of programs that have left do not count: such a program, when
    /// it is started again, is at home on the same worker, which owns the TCP port of the connections that it has left.
    fn home_worker(&self) -> usize {
        let mut contexts = vec![0_u32; self.workers.len()];
        for app in self.registry.all().into_iter().filter(|app| !app.borrow().has_left) {
            let worker = app.borrow().context.and_then(|place| contexts.get_mut(place.worker));
            if let Some(count) = worker {
                *count = count.saturating_add(1);
            }
        }
        contexts.iter().enumerate().min_by_key(|(_, count)| **count).map_or(0, |(worker, _)| worker)
    }

    async fn open_context(&self, session: &mut Session, open: Open) -> Result<Reply, ErrorObject> {
        if session.app.borrow().context.is_some() {
            return Err(ErrorObject::new(ErrorKind::Exists, "this connection has a context already")
                .with_help("connect again for another one"));
        }
        let wanted =
            |(_, device): &(usize, &DeviceInfo)| open.device.as_ref().is_none_or(|name| *name == device.name);
        let (port, device) = self.devices.iter().enumerate().find(wanted).ok_or_else(|| {
            let name = open.device.as_deref().unwrap_or_default();
            ErrorObject::new(ErrorKind::NoSuchObject, format!("there is no device `{name}`"))
                .with_help("`device.list` and `iwarpctl port list` show those there are")
        })?;
        let least = (words_min() as u64).saturating_mul(8);
        let bytes = open.queue_bytes.unwrap_or(QUEUE_BYTES_DEFAULT).max(least);
        if bytes > QUEUE_BYTES_MAX {
            let message =
                format!("{bytes} bytes of queue memory asked for, at most {QUEUE_BYTES_MAX} are allowed");
            return Err(ErrorObject::new(ErrorKind::TooLarge, message));
        }
        self.reserve(&session.app, Usage { memory_bytes: bytes, ..Usage::default() })?;
        let user = session.app.borrow().peer.uid;
        let opened = self.open_on(port, bytes, user).await;
        let mut app = session.app.borrow_mut();
        app.pending = Usage::default();
        let (place, memory, descriptors) = opened?;
        (app.context, app.queue_bytes) = (Some(place), bytes);
        session.queues = Some(memory);
        self.events.record(&Event::AppConnected {
            app: app.number,
            pid: app.peer.pid,
            uid: app.peer.uid,
            command: app.command.clone(),
            device: device.name.clone(),
            worker: u32::try_from(place.worker).unwrap_or(u32::MAX),
        });
        let link_up = self.links.get(port).is_none_or(Cell::get);
        let opened = Opened { app: app.number, device: device.clone(), bytes, link_up };
        Ok(Reply::new(opened).with_fds(descriptors))
    }

    /// Opens a context on its home worker. Returns its place, its memory, and the program's descriptors.
    async fn open_on(
        &self,
        port: usize,
        bytes: u64,
        user: u32,
    ) -> Result<(ContextPlace, SharedWords, Vec<OwnedFd>), ErrorObject> {
        let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
        let memory = off_thread(move || SharedWords::for_program("verbs", words)).await?;
        let memory = memory.map_err(|error| no_resources(&error))?;
        let waker = || self.wakes.waker(user).map_err(|error| no_resources(&error));
        let ((completions, its_completions), (events, its_events)) = (waker()?, waker()?);
        let (doorbell, its_doorbell) = self.wakes.doorbell(user).map_err(|error| no_resources(&error))?;
        let wakers = Wakers { doorbell: Some(doorbell), completions, events };
        let queues = memory.descriptor().map_err(|error| no_resources(&error))?;
        let descriptors = vec![queues, its_completions, its_events, its_doorbell];
        let (worker, limits, shared) =
            (self.home_worker(), context_limits(&self.settings.borrow()), memory.clone());
        let id = self.ask(worker, port, |reply| ContextCommand::Open {
            memory: shared,
            user: UserId(user),
            limits,
            wakers: Box::new(wakers),
            reply,
        });
        let id = id.await?.map_err(refused)?;
        Ok((ContextPlace { worker, port, id }, memory, descriptors))
    }

    /// Closes the file of the context's queues to its program, which has mapped them when it sends the first request.
    /// The worker serves the queues from then on.
    async fn close_queues(&self, session: &mut Session) -> Result<(), ErrorObject> {
        let Some(queues) = session.queues.clone().filter(|_| !session.is_closed) else { return Ok(()) };
        off_thread(move || queues.close_file()).await?.map_err(|error| own_memory::not_closed(&error))?;
        session.is_closed = true;
        Ok(())
    }

    /// Reserves what a request may add to its user's objects.
    fn reserve(&self, app: &RefCell<App>, usage: Usage) -> Result<(), ErrorObject> {
        let reserved = self.registry.reserve_each(app, std::iter::once(usage), &self.limits());
        reserved.into_iter().try_for_each(|reserved| reserved.map_err(ErrorObject::from))
    }

    /// Executes requests, those beyond the user's limits excepted.
    async fn execute(&self, session: &Session, requests: Vec<Request>) -> Result<Executed, ErrorObject> {
        let place = place_of(session)?;
        if requests.len() > REQUESTS_MAX {
            let message = format!("{} requests at once, at most {REQUESTS_MAX} are allowed", requests.len());
            return Err(ErrorObject::new(ErrorKind::TooLarge, message));
        }
        let mut results = Vec::with_capacity(requests.len());
        let mut reason = None;
        for some in requests.chunks(REQUESTS_AT_A_TIME) {
            let admitted = self.admit(&session.app, some);
            let sent: Vec<Request> = some
                .iter()
                .zip(&admitted)
                .filter(|(_, admitted)| admitted.is_ok())
                .map(|(request, _)| request.clone())
                .collect();
            let executed = self
                .ask(place.worker, place.port, |reply| ContextCommand::Execute {
                    context: place.id,
                    requests: sent,
                    reply,
                })
                .await;
            session.app.borrow_mut().pending = Usage::default();
            let executed = executed?;
            let mut done = executed.results.into_iter();
            for (request, admitted) in some.iter().zip(admitted) {
                let result = match admitted {
                    Ok(()) => done.next().unwrap_or(Err(VerbsError::NoResources)),
                    Err(refusal) => {
                        let cause = refusal.cause();
                        reason.get_or_insert_with(|| refusal.reason());
                        Err(cause)
                    }
                };
                session.app.borrow_mut().record(request, result);
                results.push(result);
            }
            if let Some(process) = session.process.as_ref().filter(|_| !executed.released.is_empty()) {
                process.settle().await;
            }
            let numbers = executed.released.iter().map(|(region, _)| region.0).collect();
            self.free(session, numbers, executed.released).await;
        }
        Ok(Executed { results, reason })
    }

    /// Frees memory that no worker accesses, and its numbers. `released` is what the worker has given back.
    async fn free<T: Send + 'static>(&self, session: &Session, numbers: Vec<u32>, released: T) {
        if numbers.is_empty() {
            return;
        }
        let mut memories = Vec::new();
        for number in numbers {
            memories.extend(session.app.borrow_mut().remove_memory(number));
            self.registry.give_number(number);
        }
        let reserved = memories.iter().map(|memory| memory.reserved).sum();
        if !memories.is_empty() {
            // Unmapping takes time.
            let _ = off_thread(move || drop((memories, released))).await;
        }
        self.regions.lock().await.release(reserved);
    }

    async fn alloc(&self, session: &Session, asked: AllocMemory) -> Result<Reply, ErrorObject> {
        let AllocMemory { bytes, exchange, shared } = asked;
        place_of(session)?;
        if bytes == 0 {
            return Err(ErrorObject::new(ErrorKind::InvalidParams, "memory has at least one byte"));
        }
        // Memory on ordinary pages is none of the hugepages that are limited, and small memory would waste them. Where
        // ordinary pages are not allowed, the program has its next small buffers on the same hugepage.
        let (ordinary_allowed, is_small) =
            (self.regions.lock().await.ordinary_allowed(), bytes <= SMALL_BYTES);
        let is_ordinary = exchange || ordinary_allowed && is_small;
        let is_shared = shared && is_small && !is_ordinary;
        let bytes = if is_shared { HUGEPAGE_BYTES } else { bytes };
        let page_bytes = if is_ordinary { PAGE_BYTES } else { HUGEPAGE_BYTES };
        let memory_bytes = bytes.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX);
        self.reserve(&session.app, Usage { memory_bytes, memories: 1, ..Usage::default() })?;
        let made = self.make_memory(session, bytes, is_ordinary, exchange).await;
        session.app.borrow_mut().pending = Usage::default();
        let memory = AppMemory { parts: (exchange || is_shared).then_some(0), ..made? };
        self.add_memory(session, memory)
    }

    async fn make_memory(
        &self,
        session: &Session,
        bytes: u64,
        is_ordinary: bool,
        exchange: bool,
    ) -> Result<AppMemory, ErrorObject> {
        let (mut reserved, ordinary_allowed) = {
            let mut regions = self.regions.lock().await;
            (if is_ordinary { 0 } else { regions.reserve(bytes)? }, regions.ordinary_allowed())
        };
        let name = format!("app-{}", session.app.borrow().number);
        let made = off_thread(move || {
            // The pages are the program's, whatever pages the daemon's regions have.
            if exchange {
                RegionMemory::for_exchange(&name, bytes)
            } else if is_ordinary {
                RegionMemory::for_program_on(&name, bytes, Pages::Ordinary)
            } else {
                RegionMemory::for_program(&name, bytes, ordinary_allowed)
            }
        });
        match made.await.and_then(|made| made.map_err(|error| no_resources(&error))) {
            Ok(memory) => {
                if !memory.is_huge() {
                    self.regions.lock().await.release(std::mem::take(&mut reserved));
                }
                let bytes = memory.mapped_bytes();
                let memory = Some(Arc::new(memory));
                Ok(AppMemory { memory, bytes, reserved, region: None, mr: None, parts: None, own: None })
            }
            Err(error) => {
                self.regions.lock().await.release(reserved);
                Err(error)
            }
        }
    }

    async fn open_region(&self, session: &Session, name: &str) -> Result<Reply, ErrorObject> {
        place_of(session)?;
        self.check_admitted(session)?;
        let memory = Arc::clone(&self.regions.lock().await.find(name)?.memory);
        // Counts from here on: nothing is awaited before the memory is the application's.
        self.reserve(&session.app, Usage { memories: 1, ..Usage::default() })?;
        session.app.borrow_mut().pending = Usage::default();
        let (memory, region) = (Some(memory), Some(name.to_owned()));
        let memory = AppMemory { memory, bytes: 0, reserved: 0, region, mr: None, parts: None, own: None };
        self.add_memory(session, memory)
    }

    /// Gives memory a number, and the program its descriptor.
    fn add_memory(&self, session: &Session, memory: AppMemory) -> Result<Reply, ErrorObject> {
        let mapped = memory.memory.as_ref().ok_or_else(|| internal("memory without a mapping"))?;
        let fd = mapped.descriptor().map_err(|error| no_resources(&error))?;
        let number = self.registry.take_number()?.0;
        let (bytes, page_bytes) = (mapped.bytes(), mapped.page_bytes());
        session.app.borrow_mut().memories.insert(number, memory);
        Ok(Reply::new(Memory { memory: number, bytes, page_bytes }).with_fds(vec![fd]))
    }

    async fn register(&self, session: &Session, asked: RegMr) -> Result<MemoryRegion, ErrorObject> {
        let place = place_of(session)?;
        let RegMr { memory: number, pd, base, access } = asked;
        let (memory, is_region) = {
            let app = session.app.borrow();
            let free = |memory: &&AppMemory| memory.mr.is_none() && memory.parts.is_none();
            let found = app.memories.get(&number).filter(free).ok_or_else(|| no_such_memory(number))?;
            let memory = found.memory.as_ref().ok_or_else(|| no_such_memory(number))?;
            (Arc::clone(memory), found.region.is_some())
        };
        if !is_region {
            own_memory::close_memories(vec![Arc::clone(&memory)]).await?;
        }
        let mr = Box::new(NewMr { pd, region: RegionId(number), memory: memory.into(), base, access });
        let context = place.id;
        let mr = self.ask(place.worker, place.port, |reply| ContextCommand::Register { context, mr, reply });
        let mr = mr.await?.map_err(refused)?;
        if let Some(memory) = session.app.borrow_mut().memories.get_mut(&number) {
            memory.mr = Some((mr, access));
        }
        Ok(mr)
    }

    async fn free_memory(&self, session: &Session, number: u32) -> Result<(), ErrorObject> {
        let is_free = |memory: &AppMemory| memory.mr.is_none() && memory.parts.is_none_or(|parts| parts == 0);
        if !session.app.borrow().memories.get(&number).is_some_and(is_free) {
            return Err(no_such_memory(number));
        }
        self.free(session, vec![number], ()).await;
        Ok(())
    }
}

impl Handler for Applications {
    type Session = Session;
    type Descriptors = Option<Result<ProcessMemory, ProcessMemoryError>>;

    fn check(method: &str, fds: Vec<OwnedFd>) -> Self::Descriptors {
        let offered = fds.into_iter().next().filter(|_| method == OfferProcessMethod::NAME);
        offered.map(ProcessMemory::new)
    }

    fn open(&self, peer: &Peer) -> Result<Session, ErrorObject> {
        let app = self.registry.add(peer);
        Ok(Session { app, queues: None, is_closed: false, process: None })
    }

    async fn handle(
        &self,
        session: &mut Session,
        request: ControlRequest,
        descriptor: Self::Descriptors,
    ) -> Result<Reply, ErrorObject> {
        let given = request.params;
        self.close_queues(session).await?;
        match request.method.as_str() {
            DeviceListMethod::NAME => {
                params::<DeviceListMethod>(given)?;
                Ok(Reply::new(self.devices.clone()))
            }
            OpenMethod::NAME => self.open_context(session, params::<OpenMethod>(given)?).await,
            ExecuteMethod::NAME => {
                let Execute { requests } = params::<ExecuteMethod>(given)?;
                Ok(Reply::new(self.execute(session, requests).await?))
            }
            AllocMemoryMethod::NAME => self.alloc(session, params::<AllocMemoryMethod>(given)?).await,
            OpenRegionMethod::NAME => {
                let OpenRegion { name } = params::<OpenRegionMethod>(given)?;
                self.open_region(session, &name).await
            }
            RegMrMethod::NAME => {
                let asked = params::<RegMrMethod>(given)?;
                Ok(Reply::new(self.register(session, asked).await?))
            }
            OfferProcessMethod::NAME => {
                params::<OfferProcessMethod>(given)?;
                own_memory::take_process(session, descriptor)?;
                Ok(Reply::new(NoParams {}))
            }
            RegPartsMethod::NAME => {
                let asked = params::<RegPartsMethod>(given)?;
                Ok(Reply::new(self.register_parts(session, asked).await?))
            }
            FreeMemoryMethod::NAME => {
                let FreeMemory { memory } = params::<FreeMemoryMethod>(given)?;
                self.free_memory(session, memory).await?;
                Ok(Reply::new(NoParams {}))
            }
            WatchRegionMethod::NAME => {
                let WatchRegion { name } = params::<WatchRegionMethod>(given)?;
                self.watch(session, &name).await
            }
            UnwatchRegionMethod::NAME => {
                let UnwatchRegion { watch } = params::<UnwatchRegionMethod>(given)?;
                self.unwatch(session, watch).await?;
                Ok(Reply::new(NoParams {}))
            }
            unknown => {
                let message = format!("the verbs socket has no method `{unknown}`");
                Err(ErrorObject::new(ErrorKind::UnknownMethod, message)
                    .with_help(format!("the methods are: {}", METHODS.join(", "))))
            }
        }
    }

    async fn close(&self, session: Session) {
        let (number, place) = {
            let mut app = session.app.borrow_mut();
            app.has_left = true;
            (app.number, app.context)
        };
        self.end_watches(&session).await;
        let mut released = Vec::new();
        if let Some(ContextPlace { worker, port, id: context }) = place {
            // Fails only if the worker has ended: the daemon ends, too.
            released = self
                .ask(worker, port, |reply| ContextCommand::Close { context, reply })
                .await
                .unwrap_or_default();
            let app = session.app.borrow();
            let (pid, uid, command) = (app.peer.pid, app.peer.uid, app.command.clone());
            self.events.record(&Event::AppLeft { app: number, pid, uid, command });
        }
        let numbers = session.app.borrow().memories.keys().copied().collect();
        self.free(&session, numbers, released).await;
        self.registry.remove(number);
    }
}

/// Returns the limits of one context's objects, which are also those of all contexts of a worker and port together. The
/// user's limits hold beside them.
pub(crate) fn object_limits(settings: &iwarp_config::Applications) -> ObjectLimits {
    let qps = settings.queue_pairs_max.into();
    let mrs = settings.memory_regions_max.into();
    // A connection has an id and a queue pair; a listener has an id, and connect requests have one before their queue
    // pair.
    ObjectLimits { pds: qps, mrs, mws: mrs, cqs: qps * 2, qps, srqs: qps, ids: qps * 2, ids_of_all: qps * 2 }
}

/// Returns the limits of one context: of ids, the share of its user, because connect requests create some.
fn context_limits(settings: &Settings) -> ObjectLimits {
    ObjectLimits { ids: usage::ids_max(settings), ..object_limits(settings) }
}

/// Runs work that takes long away from the control thread.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ErrorObject> {
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error.to_string()))
}

fn place_of(session: &Session) -> Result<ContextPlace, ErrorObject> {
    session.app.borrow().context.ok_or_else(|| {
        ErrorObject::new(ErrorKind::InvalidParams, "this connection has no context")
            .with_help("call `context.open` first")
    })
}

fn no_such_memory(number: u32) -> ErrorObject {
    let message = format!("this context has no memory {number} that is not registered");
    ErrorObject::new(ErrorKind::NoSuchObject, message)
}

fn no_resources(error: &dyn std::fmt::Display) -> ErrorObject {
    ErrorObject::new(ErrorKind::NoResources, error.to_string())
}

fn internal(what: &str) -> ErrorObject {
    ErrorObject::new(ErrorKind::Internal, what)
}

/// Returns the refusal of a worker.
fn refused(error: VerbsError) -> ErrorObject {
    let kind = match error {
        VerbsError::NoSuchObject => ErrorKind::NoSuchObject,
        VerbsError::Busy => ErrorKind::InUse,
        VerbsError::NoResources => ErrorKind::NoResources,
        VerbsError::Invalid | VerbsError::State => ErrorKind::InvalidParams,
        VerbsError::NotPermitted => ErrorKind::NotPermitted,
    };
    ErrorObject::new(kind, error.to_string())
}
