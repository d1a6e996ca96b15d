//! Memory regions of a program's own memory: pages that the program has exchanged for memory of the daemon, and parts
//! that the daemon reaches through the kernel. Small buffers are registered in the same way, as parts of a hugepage.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use iwarp_control::{ErrorKind, ErrorObject};
use iwarp_engine::memory::{
    AtomicsLock, Backing, CloseFileError, Copier, Part, Parts, ProcessMemory, ProcessMemoryError,
    RegionMemory, Source,
};
use iwarp_shared_verbs::methods::{MemoryPart, PARTS_MAX, RegParts};
use rdma::verbs::{Access, AddressBase, MemoryRegion, PdId};

use super::registry::{AppMemory, OwnMemory};
use super::usage::Usage;
use super::{Applications, Session, internal, no_resources, no_such_memory, off_thread, place_of, refused};
use crate::worker::{ContextCommand, NewMr};

/// Bytes of a page: offsets in a memory region are as aligned as their addresses, up to a page.
const PAGE: u64 = 4096;

/// Longest pause between two checks whether copies are done.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Memory of a program that it has offered, and the thread that copies it. The thread is started with the first memory
/// region that needs it, and closed with this.
#[derive(Debug)]
pub(super) struct OfferedMemory {
    /// Taken by the copier.
    memory: RefCell<Option<ProcessMemory>>,
    copier: OnceCell<Arc<Copier>>,
    /// Readable once the program has ended.
    program: Option<OwnedFd>,
}

impl OfferedMemory {
    /// Waits until no copy that is queued now can be made any more, or the program has ended: a program that
    /// deregisters memory uses it for something else then.
    pub(super) async fn settle(&self) {
        let Some(copier) = self.copier.get() else { return };
        let queued = copier.queued();
        let mut pause = Duration::from_micros(100);
        while copier.done() < queued && !self.has_ended() {
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }

    fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec::default();
        self.program.as_ref().is_some_and(|program| {
            poll(&mut [PollFd::new(program, PollFlags::IN)], Some(&now)).is_ok_and(|ended| ended > 0)
        })
    }
}

impl Drop for OfferedMemory {
    fn drop(&mut self) {
        if let Some(copier) = self.copier.get() {
            copier.close();
        }
    }
}

/// Threads that copy programs' memory, by user, and the locks that order their atomic operations. A thread that the
/// kernel does not return to counts for its user after its context has ended.
#[derive(Debug, Default)]
pub(super) struct Copiers(RefCell<HashMap<u32, OfUser>>);

#[derive(Debug, Default)]
struct OfUser {
    copiers: Vec<Weak<Copier>>,
    atomics: AtomicsLock,
}

/// Takes the program's memory from the descriptor that came with a request.
///
/// # Errors
/// No descriptor came, or it is not of the program's memory.
pub(super) fn take_process(
    session: &mut Session,
    descriptor: Option<Result<ProcessMemory, ProcessMemoryError>>,
) -> Result<(), ErrorObject> {
    place_of(session)?;
    let invalid = |message: &dyn std::fmt::Display| {
        ErrorObject::new(ErrorKind::InvalidParams, message.to_string())
            .with_help("send a descriptor of /proc/self/mem, open for reading and writing, with this request")
    };
    let checked = descriptor.ok_or_else(|| invalid(&"no descriptor came with the request"))?;
    if session.process.as_ref().is_some_and(|process| process.copier.get().is_some()) {
        return Err(ErrorObject::new(ErrorKind::Exists, "this context has offered its memory and uses it"));
    }
    let memory = checked.map_err(|error| invalid(&error))?;
    let pid = i32::try_from(session.app.borrow().peer.pid).ok().and_then(rustix::process::Pid::from_raw);
    let open = |pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
    // Closing the former one does not block: it is known to be of an address space.
    session.process = Some(OfferedMemory {
        memory: RefCell::new(Some(memory)),
        copier: OnceCell::new(),
        program: pid.and_then(open),
    });
    Ok(())
}

impl Applications {
    /// Registers memory of the program.
    pub(super) async fn register_parts(
        &self,
        session: &Session,
        asked: RegParts,
    ) -> Result<MemoryRegion, ErrorObject> {
        place_of(session)?;
        let RegParts { pd, address, parts, access } = asked;
        if parts.len() > PARTS_MAX {
            let message = format!("{} parts of memory, at most {PARTS_MAX} are allowed", parts.len());
            return Err(ErrorObject::new(ErrorKind::TooLarge, message));
        }
        if parts.iter().any(|part| matches!(part, MemoryPart::Kernel { .. })) {
            self.start_copier(session)?;
        }
        let (sources, own) = sources(session, &parts)?;
        count_parts(session, &own.exchanged, 1);
        let exchanged = own.exchanged.clone();
        let registered = self.register_sources(session, (pd, address, access), sources, own).await;
        if registered.is_err() {
            count_parts(session, &exchanged, -1);
        }
        registered
    }

    /// Starts the thread that copies the program's memory, unless it runs.
    fn start_copier(&self, session: &Session) -> Result<(), ErrorObject> {
        let process = session.process.as_ref().ok_or_else(not_offered)?;
        if process.copier.get().is_some() {
            return Ok(());
        }
        let uid = session.app.borrow().peer.uid;
        let (limit, copiers_max) = {
            let settings = self.settings.borrow();
            (Duration::from_millis(settings.kernel_copy_ms_max.into()), settings.user.contexts_max)
        };
        let mut users = self.copiers.0.borrow_mut();
        users.retain(|_, user| user.copiers.iter().any(|copier| copier.strong_count() > 0));
        let user = users.entry(uid).or_default();
        user.copiers.retain(|copier| copier.strong_count() > 0);
        if user.copiers.len() >= usize::from(copiers_max) {
            let message = format!(
                "{copiers_max} contexts of the user have memory that the kernel copies, or had some and wait for it"
            );
            return Err(ErrorObject::new(ErrorKind::NoResources, message).with_help(
                "end the server of the memory, or raise applications.user_contexts_max and reload",
            ));
        }
        let memory = process.memory.borrow_mut().take().ok_or_else(not_offered)?;
        let started = Copier::start(memory, limit, Arc::clone(&user.atomics));
        let copier = started.map_err(|error| no_resources(&error))?;
        user.copiers.push(Arc::downgrade(&copier));
        let _ = process.copier.set(copier);
        Ok(())
    }

    async fn register_sources(
        &self,
        session: &Session,
        (pd, address, access): (PdId, u64, Access),
        sources: Vec<Part>,
        own: OwnMemory,
    ) -> Result<MemoryRegion, ErrorObject> {
        close_files(&sources).await?;
        self.reserve(&session.app, Usage { memories: 1, ..Usage::default() })?;
        let registered = self.register_closed(session, (pd, address, access), sources, own).await;
        session.app.borrow_mut().pending = Usage::default();
        registered
    }

    async fn register_closed(
        &self,
        session: &Session,
        (pd, address, access): (PdId, u64, Access),
        sources: Vec<Part>,
        own: OwnMemory,
    ) -> Result<MemoryRegion, ErrorObject> {
        let place = place_of(session)?;
        let memory = Parts::new(address % PAGE, sources).ok_or_else(|| {
            ErrorObject::new(
                ErrorKind::InvalidParams,
                "there is no part, or one is empty or not inside of its memory",
            )
        })?;
        let number = self.registry.take_number()?;
        let (context, base) = (place.id, AddressBase::At(address));
        let memory = Backing::Parts(Box::new(memory));
        let mr = Box::new(NewMr { pd, region: number, memory, base, access });
        let mr = self.ask(place.worker, place.port, |reply| ContextCommand::Register { context, mr, reply });
        match mr.await.and_then(|mr| mr.map_err(refused)) {
            Ok(mr) => {
                let memory = AppMemory {
                    memory: None,
                    bytes: 0,
                    reserved: 0,
                    region: None,
                    mr: Some((mr, access)),
                    parts: None,
                    own: Some(own),
                };
                session.app.borrow_mut().memories.insert(number.0, memory);
                Ok(mr)
            }
            Err(error) => {
                self.registry.give_number(number.0);
                Err(error)
            }
        }
    }
}

/// Counts the parts of a memory region, so that their memory is not freed before it.
fn count_parts(session: &Session, exchanged: &[u32], change: i32) {
    let mut app = session.app.borrow_mut();
    for number in exchanged {
        if let Some(parts) = app.memories.get_mut(number).and_then(|memory| memory.parts.as_mut()) {
            *parts = parts.saturating_add_signed(change);
        }
    }
}

/// Returns the sources of the parts, and what the registry keeps of them.
fn sources(session: &Session, parts: &[MemoryPart]) -> Result<(Vec<Part>, OwnMemory), ErrorObject> {
    let mut own = OwnMemory { exchanged: Vec::new(), is_huge: true, kernel_bytes: 0 };
    let mut sources = Vec::with_capacity(parts.len());
    for part in parts {
        sources.push(match *part {
            MemoryPart::Exchanged { memory: number, offset, bytes } => {
                let app = session.app.borrow();
                let found = app.memories.get(&number).filter(|memory| memory.parts.is_some());
                let memory = found.and_then(|memory| memory.memory.clone());
                let memory = memory.ok_or_else(|| no_such_memory(number))?;
                own.exchanged.push(number);
                own.is_huge &= memory.is_huge();
                Part { bytes, source: Source::Mapped(memory, offset) }
            }
            MemoryPart::Kernel { address, bytes } => {
                let copier = session.process.as_ref().and_then(|process| process.copier.get());
                let copier = Arc::clone(copier.ok_or_else(not_offered)?);
                own.kernel_bytes = own.kernel_bytes.saturating_add(bytes);
                own.is_huge = false;
                Part { bytes, source: Source::Kernel(copier, address) }
            }
        });
    }
    Ok((sources, own))
}

fn not_offered() -> ErrorObject {
    ErrorObject::new(ErrorKind::InvalidParams, "this context has not offered its memory")
        .with_help("call `memory.process` first")
}

/// Closes exchanged memory to its program, and allocates the pages that the program has not written.
async fn close_files(sources: &[Part]) -> Result<(), ErrorObject> {
    let mapped = sources.iter().filter_map(|part| match &part.source {
        Source::Mapped(memory, _) => Some(Arc::clone(memory)),
        Source::Kernel(..) | Source::Program(_) => None,
    });
    close_memories(mapped.collect()).await
}

/// Closes memory to its program. Allocating the pages that are missing takes time.
pub(super) async fn close_memories(memories: Vec<Arc<RegionMemory>>) -> Result<(), ErrorObject> {
    let closed = off_thread(move || memories.iter().try_for_each(|memory| memory.close_file())).await?;
    closed.map_err(|error| not_closed(&error))
}

/// Returns the refusal of memory whose file cannot be closed.
pub(super) fn not_closed(error: &CloseFileError) -> ErrorObject {
    match error {
        CloseFileError::Sealed { .. } => ErrorObject::new(ErrorKind::InvalidParams, error.to_string())
            .with_help("allocate other memory, and leave its seals to the daemon"),
        CloseFileError::Pages { .. } => no_resources(error),
        CloseFileError::System(_) => internal(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdma::{AtomicOp, Memory, Origin, RegionId, Scope, StagTable, StreamId};
    use tokio::time::timeout;

    use super::*;
    use iwarp_engine::memory::WorkerMemory;

    /// Memory that a copy accesses is not used for something else before the copy has ended, unless the program has.
    #[tokio::test]
    async fn deregistration_waits_for_a_copy_that_has_begun() {
        let file = std::fs::OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        let (memory, atomics) = (ProcessMemory::new(file.into()).unwrap(), AtomicsLock::default());
        let copier = Copier::start(memory, Duration::from_millis(20), Arc::clone(&atomics)).unwrap();
        let number = Box::new(5_u64);
        let address = std::ptr::from_ref(&*number) as u64;
        let part = Part { bytes: 8, source: Source::Kernel(Arc::clone(&copier), address) };
        let mut worker = WorkerMemory::new(1);
        let (region, stream) = (RegionId(0), StreamId(1));
        worker.attach(region, Backing::Parts(Box::new(Parts::new(0, vec![part]).unwrap()))).unwrap();
        let mut stags = StagTable::new(4, [7; 32]);
        let stag = stags.grant(region, 8, Access::REMOTE_ATOMIC, Scope::Stream(stream)).unwrap();
        let word = stags.check_atomic(stag, 0, Origin::new(stream, None)).unwrap().unwrap();
        let offered = |program| OfferedMemory {
            memory: RefCell::new(None),
            copier: OnceCell::from(Arc::clone(&copier)),
            program,
        };
        let of_a_program = offered(None);
        // The copy blocks as in a kernel that does not return.
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let (held, is_held) = std::sync::mpsc::channel();
        let blocks = std::thread::spawn(move || {
            let _lock = atomics.lock();
            held.send(()).unwrap();
            let _ = wait.recv();
        });
        is_held.recv().unwrap();
        worker.begin_atomic(stream, word, AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
        let released = worker.detach(region);
        assert!(timeout(Duration::from_millis(200), of_a_program.settle()).await.is_err());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        let of_one_that_has_ended = offered(Some(pidfd));
        timeout(Duration::from_secs(5), of_one_that_has_ended.settle()).await.unwrap();
        drop(release);
        blocks.join().unwrap();
        timeout(Duration::from_secs(5), of_a_program.settle()).await.unwrap();
        assert_eq!(*std::hint::black_box(number), 6);
        #[allow(clippy::disallowed_methods, reason = "a test may read the time")]
        let began = Instant::now();
        of_a_program.settle().await;
        assert!(began.elapsed() < Duration::from_secs(1), "nothing is queued");
        drop(released);
    }
}
