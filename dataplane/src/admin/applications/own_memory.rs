//! Memory regions of a program's own memory: pages that the program has exchanged for memory of the daemon, and parts
//! that the daemon reaches through the kernel.

use std::sync::Arc;

use iwarp_control::{ErrorKind, ErrorObject};
use iwarp_shared_verbs::methods::{MemoryPart, PARTS_MAX, RegParts};
use rdma::verbs::{Access, AddressBase, MemoryRegion, PdId};

use super::registry::{AppMemory, OwnMemory};
use super::usage::Usage;
use super::{Applications, Session, internal, no_resources, no_such_memory, off_thread, place_of, refused};
use crate::memory::{
    Backing, CloseFileError, Part, Parts, ProcessMemory, ProcessMemoryError, RegionMemory, Source,
};
use crate::worker::{ContextCommand, NewMr};

/// Bytes of a page: offsets in a memory region are as aligned as their addresses, up to a page.
const PAGE: u64 = 4096;

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
    // Closing the former one does not block: it is known to be of an address space.
    session.process = Some(Arc::new(checked.map_err(|error| invalid(&error))?));
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
        let (sources, own) = sources(session, &parts)?;
        count_parts(session, &own.exchanged, 1);
        let exchanged = own.exchanged.clone();
        let registered = self.register_sources(session, (pd, address, access), sources, own).await;
        if registered.is_err() {
            count_parts(session, &exchanged, -1);
        }
        registered
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
                    exchange: None,
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
        if let Some(exchange) = app.memories.get_mut(number).and_then(|memory| memory.exchange.as_mut()) {
            exchange.parts = exchange.parts.saturating_add_signed(change);
        }
    }
}

/// Returns the sources of the parts, and what the registry keeps of them.
fn sources(session: &Session, parts: &[MemoryPart]) -> Result<(Vec<Part>, OwnMemory), ErrorObject> {
    let mut own = OwnMemory { exchanged: Vec::new(), kernel_bytes: 0 };
    let mut sources = Vec::with_capacity(parts.len());
    for part in parts {
        sources.push(match *part {
            MemoryPart::Exchanged { memory: number, offset, bytes } => {
                let app = session.app.borrow();
                let found = app.memories.get(&number).filter(|memory| memory.exchange.is_some());
                let memory = found.and_then(|memory| memory.memory.clone());
                let memory = memory.ok_or_else(|| no_such_memory(number))?;
                own.exchanged.push(number);
                Part { bytes, source: Source::Mapped(memory, offset) }
            }
            MemoryPart::Kernel { address, bytes } => {
                let process = session.process.clone().ok_or_else(|| {
                    ErrorObject::new(ErrorKind::InvalidParams, "this context has not offered its memory")
                        .with_help("call `memory.process` first")
                })?;
                own.kernel_bytes = own.kernel_bytes.saturating_add(bytes);
                Part { bytes, source: Source::Kernel(process, address) }
            }
        });
    }
    Ok((sources, own))
}

/// Closes exchanged memory to its program, and allocates the pages that the program has not written.
async fn close_files(sources: &[Part]) -> Result<(), ErrorObject> {
    let mapped = sources.iter().filter_map(|part| match &part.source {
        Source::Mapped(memory, _) => Some(Arc::clone(memory)),
        Source::Kernel(..) => None,
    });
    close_memories(mapped.collect()).await
}

/// Closes memory to its program. Allocating the pages that are missing takes time.
pub(super) async fn close_memories(memories: Vec<Arc<RegionMemory>>) -> Result<(), ErrorObject> {
    let closed = off_thread(move || memories.iter().try_for_each(|memory| memory.close_file())).await?;
    closed.map_err(not_closed)
}

/// Returns the refusal of memory whose file cannot be closed.
pub(super) fn not_closed(error: CloseFileError) -> ErrorObject {
    match error {
        CloseFileError::Sealed { .. } => ErrorObject::new(ErrorKind::InvalidParams, error.to_string())
            .with_help("allocate other memory, and leave its seals to the daemon"),
        CloseFileError::Pages { .. } => no_resources(&error),
        CloseFileError::System(_) => internal(&error.to_string()),
    }
}
