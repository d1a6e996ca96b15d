//! Registration of memory that the program has allocated itself.
//!
//! Whole pages of private anonymous memory are exchanged for memory that the daemon maps, too. The daemon reaches the
//! rest through the kernel: the first and the last bytes, which share pages with other data, stacks, and mappings of
//! files. Pages are exchanged back when nobody has registered them any more.
//!
//! JUSTIFICATION: peers write the memory, so that its registration is unsafe; this module passes that on.
#![allow(unsafe_code, reason = "declares `reg_mr`, which is unsafe to call; listed in UNSAFE.md")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use iwarp_shared_verbs::methods::{AllocMemory, MemoryPart, PARTS_MAX, RegParts};
use rdma::verbs::Access;

use crate::backend::Registrable;
use crate::context::{Inner, lock};
use crate::error::Error;
use crate::exchange::{PAGE, Pages, to_private, to_shared};
use crate::mapping::Mapping;
use crate::maps::mappings;
use crate::mr::{Mr, MrMemory, ProtectionDomain};

/// Registered memory of this process, of all contexts.
static REGISTERED: Mutex<Table> = Mutex::new(Table { exchanged: Vec::new(), by_kernel: Vec::new() });

#[derive(Debug)]
struct Table {
    /// Pages that are exchanged; they do not overlap.
    exchanged: Vec<Exchanged>,
    /// Pages that have bytes which the daemon reaches through the kernel, once per registration. They are not
    /// exchanged: an access of the daemon would wait for the exchange.
    by_kernel: Vec<Range<usize>>,
}

/// Pages that are exchanged for memory of a context.
#[derive(Debug)]
struct Exchanged {
    range: Range<usize>,
    /// Context that allocated the memory.
    context: Arc<Inner>,
    /// Number of the memory in its context.
    memory: u32,
    /// Bytes of the memory that precede the pages.
    lead: usize,
    /// Registrations that have bytes of it.
    uses: usize,
}

/// Registered memory of the program, until it is released.
#[derive(Debug)]
pub(crate) struct Registration {
    range: Range<usize>,
    /// Pages with bytes that the daemon reaches through the kernel.
    by_kernel: Vec<Range<usize>>,
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns the pages that have bytes of a range.
fn pages_of(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE * PAGE..range.end.saturating_add(PAGE - 1) / PAGE * PAGE
}

/// Returns the pages that have no other bytes than those of a range; empty if there are none.
fn whole_pages(range: &Range<usize>) -> Range<usize> {
    let start = range.start.checked_next_multiple_of(PAGE).unwrap_or(range.end);
    start..(range.end / PAGE * PAGE).max(start)
}

impl ProtectionDomain {
    /// Registers memory of the program (`ibv_reg_mr`). Its contents stay, and other threads may use it meanwhile.
    ///
    /// Whole pages of private anonymous memory become memory that this process shares with the daemon and with its own
    /// children; when they are deregistered, they become private again. The daemon reaches other memory through the
    /// kernel, which is slower; `iwarpctl mr list` shows how much.
    ///
    /// # Errors
    /// The memory is not all mapped with the rights that `access` needs, a limit is reached, or the daemon has ended.
    ///
    /// # Safety
    /// The memory stays mapped until the memory region is dropped. Peers write it as `access` permits; the program
    /// holds no reference to the bytes meanwhile, or accesses them as atomic values. The memory is not moved
    /// (`mremap`), and no I/O that the program has started before writes it.
    pub unsafe fn reg_mr(&self, address: NonNull<u8>, bytes: usize, access: Access) -> Result<Mr, Error> {
        // SAFETY: the caller guarantees the same.
        unsafe { self.reg_mr_iova(address, bytes, address.addr().get() as u64, access) }
    }

    /// Registers memory of the program whose first byte work requests and peers address as `iova`
    /// (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// As [`Self::reg_mr`].
    ///
    /// # Safety
    /// As [`Self::reg_mr`].
    pub unsafe fn reg_mr_iova(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        let start = address.addr().get();
        let refused = |reason| Error::Memory { address: start, bytes, reason };
        let end = start.checked_add(bytes).filter(|end| *end > start);
        let range = start..end.ok_or_else(|| refused("it is empty, or beyond all addresses"))?;
        address.as_ptr().expose_provenance();
        let context = &self.0.context;
        let mut table = lock(&REGISTERED);
        let candidates = candidates(&range, access).map_err(|error| match error {
            CandidatesError::Refused(reason) => refused(reason),
            CandidatesError::Maps(cause) => Error::System { call: "open", cause },
        })?;
        // An engine in this process reaches the pages where they are.
        for pages in candidates.into_iter().filter(|_| !context.is_here()) {
            table.exchange(context, pages);
        }
        let (registration, parts) = table.registration(context, range);
        // SAFETY: the caller guarantees the same.
        let registered = unsafe { register(self, &registration, iova, parts, access) };
        match registered {
            Ok(region) => {
                // SAFETY: the caller keeps the memory mapped until the memory region is dropped.
                let mapping = unsafe { Mapping::of_program(address, bytes) };
                Ok(Mr { pd: self.clone(), region, mapping, memory: MrMemory::Own(registration) })
            }
            Err(error) => {
                table.release(registration);
                Err(error)
            }
        }
    }
}

/// Registers the parts with the device.
///
/// # Safety
/// As [`ProtectionDomain::reg_mr`].
unsafe fn register(
    pd: &ProtectionDomain,
    registration: &Registration,
    address: u64,
    parts: Vec<MemoryPart>,
    access: Access,
) -> Result<rdma::verbs::MemoryRegion, Error> {
    let context = &pd.0.context;
    if !registration.by_kernel.is_empty() && !context.offered.load(Ordering::Acquire) {
        context.call(|backend| backend.offer_process())?;
        context.offered.store(true, Ordering::Release);
    }
    let params = RegParts { pd: pd.0.id, address, parts, access };
    // SAFETY: the caller of `reg_mr` keeps the memory mapped until the memory region is dropped. Its rights were
    // checked by `candidates`.
    let parts = unsafe { Registrable::of_program(params) };
    context.call(|backend| backend.register_parts(parts))
}

/// Reason why [`candidates`] found no memory.
enum CandidatesError {
    Refused(&'static str),
    Maps(std::io::Error),
}

/// Returns the whole pages of a range that can be exchanged, as far as the kernel's list of mappings tells.
fn candidates(range: &Range<usize>, access: Access) -> Result<Vec<Range<usize>>, CandidatesError> {
    let writes = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    let writes = writes.into_iter().any(|right| access.contains(right));
    let here = 0_u8;
    let stack = std::ptr::from_ref(&here).addr();
    let whole = whole_pages(range);
    let mut candidates: Vec<Range<usize>> = Vec::new();
    let mut covered = range.start;
    for entry in mappings(range).map_err(CandidatesError::Maps)? {
        if entry.range.start > covered {
            break;
        }
        covered = entry.range.end;
        if !entry.read || writes && !entry.write {
            return Err(CandidatesError::Refused("the program itself may not access it so"));
        }
        let part = entry.range.start.max(whole.start)..entry.range.end.min(whole.end);
        // Writes to the stack of this thread would wait for this thread.
        if !entry.is_anonymous || entry.range.contains(&stack) || part.is_empty() {
            continue;
        }
        match candidates.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => candidates.push(part),
        }
    }
    if covered < range.end {
        return Err(CandidatesError::Refused("it is not all mapped"));
    }
    // Each may be surrounded by parts that the daemon reaches through the kernel.
    candidates.truncate(PARTS_MAX / 4);
    Ok(candidates)
}

impl Table {
    /// Exchanges those of the pages that are not exchanged yet. Pages that cannot be exchanged stay as they are.
    fn exchange(&mut self, context: &Arc<Inner>, pages: Range<usize>) {
        let taken = self.exchanged.iter().map(|exchanged| &exchanged.range).chain(&self.by_kernel);
        let mut taken: Vec<Range<usize>> = taken.filter(|range| overlap(range, &pages)).cloned().collect();
        taken.sort_by_key(|range| range.start);
        let mut at = pages.start;
        for range in taken.into_iter().chain(std::iter::once(pages.end..pages.end)) {
            let free = at..range.start.min(pages.end);
            if !free.is_empty()
                && let Some(memory) = exchange(context, &free)
            {
                let (context, lead) = (Arc::clone(context), pages_at(&free).lead());
                self.exchanged.push(Exchanged { range: free, context, memory, lead, uses: 0 });
            }
            at = at.max(range.end);
        }
    }

    /// Divides a range into parts, and counts its uses of exchanged pages.
    fn registration(&mut self, context: &Arc<Inner>, range: Range<usize>) -> (Registration, Vec<MemoryPart>) {
        let mut used: Vec<&mut Exchanged> =
            self.exchanged.iter_mut().filter(|exchanged| overlap(&exchanged.range, &range)).collect();
        used.sort_by_key(|exchanged| exchanged.range.start);
        let mut parts = Vec::new();
        let mut by_kernel = Vec::new();
        let mut at = range.start;
        let mut kernel = |parts: &mut Vec<MemoryPart>, part: Range<usize>| {
            if !part.is_empty() {
                by_kernel.push(pages_of(&part));
                parts.push(MemoryPart::Kernel { address: part.start as u64, bytes: part.len() as u64 });
            }
        };
        for exchanged in used {
            exchanged.uses = exchanged.uses.saturating_add(1);
            // The memory of another context is none of this one: the daemon reaches it through the kernel.
            if !Arc::ptr_eq(&exchanged.context, context) {
                continue;
            }
            let part = exchanged.range.start.max(at)..exchanged.range.end.min(range.end);
            kernel(&mut parts, at..part.start);
            let offset =
                part.start.saturating_sub(exchanged.range.start).saturating_add(exchanged.lead) as u64;
            let (memory, bytes) = (exchanged.memory, part.len() as u64);
            parts.push(MemoryPart::Exchanged { memory, offset, bytes });
            at = part.end;
        }
        kernel(&mut parts, at..range.end);
        if parts.len() > PARTS_MAX {
            // The kernel reaches exchanged pages, too.
            parts.clear();
            by_kernel.clear();
            by_kernel.push(pages_of(&range));
            parts.push(MemoryPart::Kernel { address: range.start as u64, bytes: range.len() as u64 });
        }
        self.by_kernel.extend(by_kernel.iter().cloned());
        (Registration { range, by_kernel }, parts)
    }

    /// Ends a registration. Pages without a registration are exchanged back.
    fn release(&mut self, registration: Registration) {
        let Registration { range, by_kernel } = registration;
        for pages in by_kernel {
            if let Some(at) = self.by_kernel.iter().position(|one| *one == pages) {
                self.by_kernel.swap_remove(at);
            }
        }
        for exchanged in &mut self.exchanged {
            if overlap(&exchanged.range, &range) {
                exchanged.uses = exchanged.uses.saturating_sub(1);
            }
        }
        for exchanged in self.exchanged.extract_if(.., |exchanged| exchanged.uses == 0) {
            let Exchanged { range, context, memory, .. } = exchanged;
            give_back(&range);
            context.free_memory(memory);
        }
    }
}

const fn pages_at(range: &Range<usize>) -> Pages {
    Pages { start: range.start, bytes: range.end.saturating_sub(range.start) }
}

/// Exchanges pages for memory of the daemon. Returns its number; `None` if they cannot be exchanged.
fn exchange(context: &Arc<Inner>, range: &Range<usize>) -> Option<u32> {
    let pages = pages_at(range);
    let bytes = pages.bytes.saturating_add(pages.lead()) as u64;
    let params = AllocMemory { bytes, exchange: true, shared: false };
    let (memory, file) = context.call(|backend| backend.alloc_memory(&params)).ok()?;
    // SAFETY: the pages are part of the caller's memory, and private anonymous; nothing of this library is in them, and
    // this thread's stack is not. The file is new.
    let done = unsafe { to_shared(pages, &file) }.is_ok();
    if !done {
        context.free_memory(memory.memory);
    }
    done.then_some(memory.memory)
}

/// Exchanges pages back, as far as the program still has them. If that fails, they stay shared with nobody.
fn give_back(range: &Range<usize>) {
    for entry in mappings(range).unwrap_or_default() {
        let part = entry.range.start.max(range.start)..entry.range.end.min(range.end);
        if entry.is_exchanged && !part.is_empty() {
            let pages = pages_at(&part);
            // SAFETY: the pages are exchanged ones. The daemon has ended, or does not access them any more.
            let _ = unsafe { to_private(pages) };
        }
    }
}

impl Registration {
    /// Ends the registration: the daemon does not access the memory any more.
    pub(crate) fn release(self) {
        lock(&REGISTERED).release(self);
    }
}
