//! The engine of a device in this process, its context, and the memory that is registered.
//!
//! JUSTIFICATION: the engine reaches the program's own memory by address. Who registers memory has promised that it
//! stays mapped ([`Registrable`]).
#![allow(unsafe_code, reason = "sees memory of the program; listed in UNSAFE.md")]

mod offers;
mod place;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use iwarp_engine::kernel::{Chunks, KernelTcp, KernelTcpConfig};
use iwarp_engine::memory::{
    Backing, Pages, Part, Parts, ProgramMemory, RegionMemory, SharedWords, Source, WorkerMemory,
};
use iwarp_engine::{Engine, EngineConfig, LocalPorts, NewMr, NumberedConfig, Wakers};
use iwarp_shared_verbs::methods::{AllocMemory, Executed, MemoryPart, RegMr, RegParts};
use iwarp_shared_verbs::worker::{ContextId, ObjectLimits, UserId};
use iwarp_shared_verbs::{Request, Response};
use rdma::verbs::{AddressBase, Limits, MemoryRegion, QP_WORKERS_MAX, RENDEZVOUS_PORT, VerbsError};
use rdma::{EndpointConfig, NegotiationConfig, OutOfOrderPolicy, RegionId};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use tcp_stack::{ConnOptions, Instant};

use self::offers::{Offers, REGIONS_MAX};
use self::place::Place;
use super::interfaces::MTU;
use super::{EmbeddedOptions, no_memory, system};
use crate::backend::Registrable;
use crate::error::Error;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Bytes of memory that small buffers share.
const SHARED_BYTES: u64 = 2 << 20;
/// Most connections. The limit of open descriptors is usually less.
const CONNECTIONS_MAX: u32 = 4096;
/// Most memory regions. Each has a number, and so has memory that is allocated, and each region that is offered.
const MEMORY_REGIONS_MAX: u16 = 4096;
const MEMORIES_MAX: u32 = 2 * MEMORY_REGIONS_MAX as u32 + REGIONS_MAX as u32;
/// Most objects of other kinds.
const OBJECTS_MAX: u16 = 2048;
/// Most listeners and connections of the program.
const IDS_MAX: u32 = 2 * OBJECTS_MAX as u32;
/// Fewest connections that may be silent at the same time.
const SILENT_MIN: u32 = 16;
/// Rounds of the engine before its thread does something else.
const ROUNDS_MAX: u32 = 16;
/// Time without an answer after which an initiator sends an empty RDMA Write, for responders that overlook the first
/// FPDU.
const POKE_AFTER: Duration = Duration::from_millis(100);

/// Reads the clock of all engines in this process.
pub(super) fn now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add_signed(time.tv_nsec))
}

/// Returns a refusal of the device.
pub(super) const fn refused(call: &'static str, cause: VerbsError, reason: Option<String>) -> Error {
    Error::Refused { call, cause, reason }
}

/// Returns why an id cannot have an address: the kernel keeps the port from this user, or the process has no descriptor
/// for its socket. What else the kernel refuses, the listener reports.
fn refusal(local: SocketAddr) -> Option<(VerbsError, String)> {
    let port = local.port();
    if port == 0 {
        return None;
    }
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    match socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
            Some((VerbsError::NoResources, format!("there is no socket for port {port}: {error}")))
        }
        Ok(socket) if bind(&socket, &local) == Err(Errno::ACCESS) => {
            Some((VerbsError::NotPermitted, format!("the kernel does not let this user have port {port}")))
        }
        _ => None,
    }
}

#[derive(Debug)]
pub(super) struct Core {
    engine: Engine<KernelTcp, WorkerMemory>,
    context: ContextId,
    /// Memory that was allocated, by number.
    memories: HashMap<u32, Arc<RegionMemory>>,
    /// Numbers of memory and of registrations that are free, and the first that was never used.
    free: Vec<u32>,
    unused: u32,
    /// Regions that peers may ask for.
    offers: Offers,
    /// Number of this process in those of its queue pairs.
    place: Place,
    /// Settings of all connections.
    endpoint: EndpointConfig,
}

/// Returns the most connections whose peers have not sent an MPA Request: half of those for which the process has
/// descriptors, at least some. The one that has been silent longest makes room for another.
fn silent_max() -> u32 {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u32::try_from(descriptors / 2).unwrap_or(u32::MAX).clamp(SILENT_MIN, CONNECTIONS_MAX / 2)
}

fn limits() -> Limits {
    let most = Limits { mrs: MEMORY_REGIONS_MAX, mws: MEMORY_REGIONS_MAX, ..Limits::default() };
    let (pds, cqs, qps, srqs) = (OBJECTS_MAX, 2 * OBJECTS_MAX, OBJECTS_MAX, OBJECTS_MAX);
    EngineConfig::program_limits(
        // Those of the program, and one for each queue pair that is connected by number.
        Limits { pds, cqs, qps, srqs, ids: IDS_MAX + u32::from(OBJECTS_MAX), silent: silent_max(), ..most },
        CONNECTIONS_MAX,
    )
}

impl Core {
    /// Creates the engine and opens its context. Returns also a descriptor that is readable when the sockets have
    /// something for the engine.
    pub(super) fn open(
        memory: SharedWords,
        wakers: Wakers,
        options: &EmbeddedOptions,
    ) -> Result<(Self, OwnedFd), Error> {
        let EmbeddedOptions { crc, answer_timeout, queue_bytes: _ } = *options;
        let (connections_max, listeners_max) = (CONNECTIONS_MAX, OBJECTS_MAX.into());
        let config = KernelTcpConfig { connections_max, listeners_max, connect_timeout: answer_timeout };
        let mut mpa = NegotiationConfig { crc, ..NegotiationConfig::default() };
        mpa.timeout = answer_timeout.unwrap_or(mpa.timeout);
        let failed = |cause| Error::System { call: "epoll_create1", cause };
        let tcp = KernelTcp::new(config).map_err(failed)?;
        let sockets = tcp.epoll_fd().try_clone_to_owned().map_err(failed)?;
        let mut seed = [0; 32];
        getrandom(&mut seed, GetRandomFlags::empty()).map_err(system("getrandom"))?;
        let limits = limits();
        let endpoint = EndpointConfig {
            mpa,
            out_of_order: OutOfOrderPolicy::Off,
            poke_after: Some(POKE_AFTER),
            ..EndpointConfig::default()
        };
        let config = EngineConfig {
            conn: ConnOptions::default(),
            limits,
            endpoint,
            stags_max: 2 * u32::from(MEMORY_REGIONS_MAX) + CONNECTIONS_MAX,
            regions_max: REGIONS_MAX.into(),
            contexts_max: 1,
            local_ports: (LocalPorts::default(), 0),
            seed,
        };
        let mut engine = Engine::new(tcp, config, WorkerMemory::new(MEMORIES_MAX as usize));
        let objects = ObjectLimits {
            pds: limits.pds.into(),
            mrs: limits.mrs.into(),
            mws: limits.mws.into(),
            cqs: limits.cqs.into(),
            qps: limits.qps.into(),
            srqs: limits.srqs.into(),
            ids: IDS_MAX,
            ids_of_all: IDS_MAX,
        };
        let context = engine.context_open(memory, UserId::default(), objects, wakers);
        let context = context.map_err(|cause| refused("open_device", cause, None))?;
        let (memories, offers) = (HashMap::new(), Offers::default());
        let (free, unused, place) = (Vec::new(), 0, Place::default());
        Ok((Self { engine, context, memories, free, unused, offers, place, endpoint }, sockets))
    }

    /// Runs the engine until it has nothing more to do, for some rounds at most; without what has come at the sockets
    /// unless it `looks`. Returns true if it has nothing: the program rings for what it posts from here on.
    pub(super) fn run(&mut self, mut looks: bool) -> bool {
        self.engine.contexts_awake();
        let mut has_waited = false;
        for _ in 0..ROUNDS_MAX {
            // One look for all rounds: who sleeps next finds what comes meanwhile.
            let now = now();
            let due = self.engine.next_deadline().is_some_and(|deadline| deadline <= now);
            // A deadline is for an answer, which may be at its socket.
            self.engine.transport_mut().set_looks(std::mem::take(&mut looks) || due);
            // Output of one poll is sent together with that of the next one.
            self.engine.poll(now, due, &mut std::iter::empty(), &mut Chunks, &mut |_| {}, 0);
            self.engine.run_deferred(now, &mut Chunks);
            if self.engine.has_work() {
                continue;
            }
            self.engine.transmit(now, &mut Chunks, &mut |_| {}, usize::MAX);
            if self.engine.has_output() || !self.engine.contexts_sleep() {
                continue;
            }
            // Entries that wait for a change of their queue pair are posted at the beginning of a round.
            if !self.engine.contexts_wait() || std::mem::replace(&mut has_waited, true) {
                return true;
            }
            self.engine.contexts_awake();
        }
        self.engine.transmit(now(), &mut Chunks, &mut |_| {}, usize::MAX);
        false
    }

    /// Returns a number that changes when the engine finds something at a socket.
    pub(super) const fn events_found(&self) -> u64 {
        self.engine.transport().events_found()
    }

    /// Closes the descriptors of all sockets, whose connections go on in the parent of this process.
    pub(super) fn give_up_sockets(&mut self) {
        self.engine.transport_mut().give_up_sockets();
        self.place = Place::Full;
    }

    /// Prepares a request about queue pairs: takes the place of this process before the first one, and listens before
    /// one is connected by number.
    fn prepare(&mut self, request: &Request) -> Result<(), (VerbsError, String)> {
        match (request, &self.place) {
            (Request::CreateQp(_), Place::Free) => {
                self.place = Place::take();
                if let Place::Taken(worker, _) = self.place {
                    let port = RENDEZVOUS_PORT;
                    self.engine.connect_by_number(NumberedConfig { port, worker, peers: None, mtu: MTU });
                }
                Ok(())
            }
            (Request::ReadyToReceive(..) | Request::ReadyForDatagrams(..), Place::Taken(worker, _)) => {
                let port = RENDEZVOUS_PORT.saturating_add((*worker).into());
                let listening = self.engine.listen_by_number(self.endpoint);
                listening.map_err(|error| {
                    let reason = format!("queue pairs are connected by number at TCP port {port}: {error}");
                    (VerbsError::NoResources, reason)
                })
            }
            (Request::ReadyToReceive(..) | Request::ReadyForDatagrams(..), Place::Full) => {
                let reason = format!(
                    "{QP_WORKERS_MAX} programs of this machine have queue pairs: no TCP port from \
                     {RENDEZVOUS_PORT} on is left for connections by number"
                );
                Err((VerbsError::NoResources, reason))
            }
            _ => Ok(()),
        }
    }

    /// Returns the engine's next deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.engine.next_deadline()
    }

    /// Takes no more posts of the program.
    pub(super) const fn stop_posts(&mut self) {
        self.engine.contexts_stop();
    }

    /// Returns true if posted work is not finished, or Reads of peers are not answered.
    pub(super) fn has_unfinished_work(&self) -> bool {
        self.engine.device().has_unfinished_work()
    }

    /// Returns the number of connections.
    pub(super) fn connections(&self) -> usize {
        self.engine.connections()
    }

    pub(super) fn execute(&mut self, requests: &[Request]) -> Executed {
        let (mut results, mut reason) = (Vec::with_capacity(requests.len()), None);
        for request in requests {
            if let Request::CreateId(Some(local)) = request
                && let Some((error, why)) = refusal(*local)
            {
                results.push(Err(error));
                reason.get_or_insert(why);
                continue;
            }
            if let Err((error, why)) = self.prepare(request) {
                results.push(Err(error));
                reason.get_or_insert(why);
                continue;
            }
            let result = self.engine.context_execute(now(), self.context, request);
            if let Ok(Response::Deregistered(region)) = result {
                self.withdraw_all_of(region);
                self.engine.memory_mut().detach(region);
                // Memory of the device is freed with its registration; the program's own has a number for that alone.
                self.memories.remove(&region.0);
                self.free.push(region.0);
            }
            results.push(result);
        }
        Executed { results, reason }
    }

    /// Ends the context: the engine does not touch its memory any more.
    pub(super) fn close(&mut self) {
        self.end_regions();
        // Fails only if it is closed.
        let released = self.engine.context_close(now(), self.context).unwrap_or_default();
        for region in released {
            self.engine.memory_mut().detach(region);
        }
        self.memories.clear();
    }

    /// Allocates memory, of whole pages, zeroed; of memory that small buffers share, those pages that are used.
    pub(super) fn allocate(asked: &AllocMemory) -> Result<Arc<RegionMemory>, Error> {
        let allocated = if asked.shared {
            RegionMemory::for_exchange("app", asked.bytes.max(SHARED_BYTES))
        } else {
            RegionMemory::new("app", asked.bytes, Pages::Ordinary)
        };
        allocated.map(Arc::new).map_err(|error| no_memory(&error))
    }

    /// Gives memory a number.
    pub(super) fn add_memory(&mut self, memory: Arc<RegionMemory>) -> Result<u32, Error> {
        let number = self.take_number()?;
        self.memories.insert(number, memory);
        Ok(number)
    }

    pub(super) fn free_memory(&mut self, number: u32) {
        if self.memories.remove(&number).is_some() {
            self.free.push(number);
        }
    }

    fn take_number(&mut self) -> Result<u32, Error> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        let number = self.unused;
        if number >= MEMORIES_MAX {
            let reason = format!("{MEMORIES_MAX} pieces of memory are allocated or registered");
            return Err(refused("reg_mr", VerbsError::NoResources, Some(reason)));
        }
        self.unused = number.saturating_add(1);
        Ok(number)
    }

    fn memory(&self, number: u32) -> Result<Arc<RegionMemory>, Error> {
        let memory = self.memories.get(&number).map(Arc::clone);
        memory.ok_or_else(|| refused("reg_mr", VerbsError::NoSuchObject, None))
    }

    fn attach(&mut self, mr: NewMr) -> Result<MemoryRegion, Error> {
        let registered = self.engine.context_register(now(), self.context, mr);
        registered.map_err(|cause| refused("reg_mr", cause, None))
    }

    /// Registers all of a memory.
    pub(super) fn register(&mut self, asked: &RegMr) -> Result<MemoryRegion, Error> {
        let RegMr { memory, pd, base, access } = *asked;
        let backing = self.memory(memory)?.into();
        self.attach(NewMr { pd, region: RegionId(memory), memory: backing, base, access })
    }

    /// Registers parts of memory, or the program's own.
    pub(super) fn register_parts(&mut self, asked: Registrable) -> Result<MemoryRegion, Error> {
        let RegParts { pd, address, parts, access } = asked.into_parts();
        let sources: Result<Vec<_>, _> = parts.iter().map(|part| self.part(part)).collect();
        let invalid = || refused("reg_mr", VerbsError::Invalid, None);
        let memory = Parts::new(address % PAGE_BYTES, sources?).ok_or_else(invalid)?;
        let (memory, base) = (Backing::Parts(Box::new(memory)), AddressBase::At(address));
        let number = self.take_number()?;
        let registered = self.attach(NewMr { pd, region: RegionId(number), memory, base, access });
        if registered.is_err() {
            self.free.push(number);
        }
        registered
    }

    fn part(&self, part: &MemoryPart) -> Result<Part, Error> {
        Ok(match *part {
            MemoryPart::Exchanged { memory, offset, bytes } => {
                Part { bytes, source: Source::Mapped(self.memory(memory)?, offset) }
            }
            MemoryPart::Kernel { address, bytes } => {
                let at = usize::try_from(address).ok().zip(usize::try_from(bytes).ok());
                let start = at.and_then(|(at, bytes)| {
                    Some((NonNull::new(std::ptr::with_exposed_provenance_mut(at))?, bytes))
                });
                let (start, bytes) = start.ok_or_else(|| refused("reg_mr", VerbsError::Invalid, None))?;
                // SAFETY: who has made the `Registrable` keeps the memory mapped until it is deregistered, with the
                // rights that it has checked, and accesses it as memory that others change.
                let memory = unsafe { ProgramMemory::new(start, bytes) };
                Part { bytes: bytes as u64, source: Source::Program(memory) }
            }
        })
    }
}
