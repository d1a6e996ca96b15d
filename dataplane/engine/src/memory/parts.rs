//! Memory of a memory region: one mapping, parts of a program's own memory, or a file.

use std::sync::Arc;

use rdma::{AtomicOp, Reach, Ticket};

use super::copier::{Copier, Target};
use super::file::FileMemory;
use super::program::ProgramMemory;
use super::region::RegionMemory;

/// Source of the bytes of a [`Part`].
#[derive(Clone, Debug)]
pub enum Source {
    /// Memory that this process maps, and the offset of the part in it.
    Mapped(Arc<RegionMemory>, u64),
    /// Memory that is accessed through the kernel by the program's copier, and the part's address in the program.
    Kernel(Arc<Copier>, u64),
    /// Memory of the program in whose process the engine runs.
    Program(ProgramMemory),
}

impl Source {
    /// Returns what a job of a copier accesses.
    fn target(&self, within: u64) -> Target {
        match self {
            Self::Mapped(memory, start) => Target::Mapped(Arc::clone(memory), start.wrapping_add(within)),
            Self::Kernel(_, address) => Target::Process(address.wrapping_add(within)),
            Self::Program(memory) => Target::Process(memory.address(within)),
        }
    }
}

/// Consecutive bytes of one source.
#[derive(Clone, Debug)]
pub struct Part {
    /// Length, bytes; at least 1.
    pub bytes: u64,
    /// Memory that has the bytes.
    pub source: Source,
}

/// Parts that follow each other without gaps.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Each part with the offset of its end, ascending.
    parts: Box<[(u64, Part)]>,
    /// Offset of the first byte.
    start: u64,
    /// Offset after the last byte.
    end: u64,
    /// Copier of the parts that are accessed through the kernel.
    copier: Option<Arc<Copier>>,
}

iwarp_counters::counters! {
    /// Counters of memory that is accessed through the kernel.
    pub struct KernelStats {
        /// Copies queued for the kernel, into or out of a program's memory that the daemon cannot map.
        kernel_copies,
        /// Connections that ended because the kernel refused a copy: the program has ended or unmapped its memory.
        kernel_copy_errors,
        /// Connections that ended because a copy took longer than `applications.kernel_copy_ms_max`.
        kernel_copy_timeouts,
    }
}

impl Parts {
    /// Joins parts. The first byte has the offset `start`: the lower bits of its address, so that an offset is as
    /// aligned as its address. Returns `None` without parts, or if one is empty or lies outside of its memory.
    pub fn new(start: u64, parts: Vec<Part>) -> Option<Self> {
        let mut end = start;
        let mut placed = Vec::with_capacity(parts.len());
        for part in parts {
            let is_there = match &part.source {
                Source::Mapped(memory, offset) => {
                    offset.checked_add(part.bytes).is_some_and(|end| end <= memory.bytes())
                }
                Source::Kernel(_, address) => address.checked_add(part.bytes).is_some(),
                Source::Program(memory) => part.bytes <= memory.bytes(),
            };
            end = end.checked_add(part.bytes).filter(|_| is_there && part.bytes > 0)?;
            placed.push((end, part));
        }
        let copier = placed.iter().find_map(|(_, part)| match &part.source {
            Source::Kernel(copier, _) => Some(Arc::clone(copier)),
            Source::Mapped(..) | Source::Program(_) => None,
        });
        (end > start).then(|| Self { parts: placed.into(), start, end, copier })
    }

    /// Returns the copier of the parts that are accessed through the kernel.
    pub(super) const fn copier(&self) -> Option<&Arc<Copier>> {
        self.copier.as_ref()
    }

    /// Returns how the bytes can be accessed.
    #[inline]
    fn reach(&self, offset: u64, len: usize) -> Reach {
        match &self.copier {
            _ if !self.holds(offset, len as u64) => Reach::Gone,
            None => Reach::Direct,
            Some(_) if self.mapping(offset, len).is_some() => Reach::Direct,
            Some(copier) => self.reach_deferred(copier, offset, len),
        }
    }

    #[cold]
    fn reach_deferred(&self, copier: &Copier, offset: u64, len: usize) -> Reach {
        if self.direct_len(offset, len) == len {
            return Reach::Direct;
        }
        if copier.is_stuck() {
            return Reach::Gone;
        }
        match copier.room() {
            Ok(()) => Reach::Deferred,
            Err(number) => Reach::Busy(Ticket { queue: copier.number(), number }),
        }
    }

    /// Returns the number of bytes from an offset on that the worker maps, of `len`.
    fn direct_len(&self, offset: u64, len: usize) -> usize {
        let mut direct = 0;
        self.each(offset, len, |source, _, range| {
            let is_mapped = !matches!(source, Source::Kernel(..));
            if is_mapped {
                direct = range.end;
            }
            is_mapped
        });
        direct
    }

    /// Returns the offset of the first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns the number of bytes that are accessed through the kernel.
    pub fn kernel_bytes(&self) -> u64 {
        let of_kernel = |part: &&(u64, Part)| matches!(part.1.source, Source::Kernel(..));
        self.parts.iter().filter(of_kernel).map(|(_, part)| part.bytes).sum()
    }

    fn holds(&self, offset: u64, len: u64) -> bool {
        offset >= self.start && offset.checked_add(len).is_some_and(|end| end <= self.end)
    }

    /// Calls `copy` with each part of a range: its source, the offset in the part, and the range of the copied bytes.
    /// Returns false if a copy fails, or the range is not inside the parts.
    fn each(
        &self,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&Source, u64, core::ops::Range<usize>) -> bool,
    ) -> bool {
        if !self.holds(offset, len as u64) {
            return false;
        }
        let (mut at, mut done) = (offset, 0_usize);
        for (end, part) in self.parts.iter().skip(self.parts.partition_point(|(end, _)| *end <= offset)) {
            if done == len {
                break;
            }
            let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            let next = done.saturating_add(left).min(len);
            let within = at.saturating_sub(end.saturating_sub(part.bytes));
            if !copy(&part.source, within, done..next) {
                return false;
            }
            at = at.saturating_add(next.saturating_sub(done) as u64);
            done = next;
        }
        done == len
    }

    /// Calls `prefetch` with the memory and the offset of a byte, if the daemon maps it.
    #[inline]
    fn mapped(&self, offset: u64, prefetch: impl FnOnce(&RegionMemory, u64)) {
        if let Some((memory, at)) = self.mapping(offset, 1) {
            prefetch(memory, at);
        }
    }

    /// Returns the mapping that has all of the bytes, as [`Backing::mapping`].
    #[inline]
    fn mapping(&self, offset: u64, len: usize) -> Option<(&RegionMemory, u64)> {
        let (end, part) = self.parts.get(self.parts.partition_point(|(end, _)| *end <= offset))?;
        let is_inside = offset >= self.start && offset.checked_add(len as u64)? <= *end;
        match &part.source {
            Source::Mapped(memory, start) if is_inside => {
                let within = offset.saturating_sub(end.saturating_sub(part.bytes));
                Some((memory, start.wrapping_add(within)))
            }
            _ => None,
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if self.reach(offset, bytes.len()) != Reach::Direct {
            return false;
        }
        self.each(offset, bytes.len(), |source, within, range| match (source, bytes.get(range)) {
            (Source::Mapped(memory, start), Some(here)) => {
                memory.write(start.wrapping_add(within), here).is_ok()
            }
            (Source::Program(memory), Some(here)) => memory.write(within, here),
            _ => false,
        })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        self.each(offset, out.len(), |source, within, range| match (source, out.get_mut(range)) {
            (Source::Mapped(memory, start), Some(here)) => {
                memory.read(start.wrapping_add(within), here).is_ok()
            }
            (Source::Program(memory), Some(here)) => memory.read(within, here),
            _ => false,
        })
    }

    /// Queues the copies of bytes to an offset, to parts of either kind. Returns their number; `None` if they are not
    /// inside the parts, or there is no room.
    #[cold]
    fn queue_write(&self, stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
        let copier = self.copier.as_ref()?;
        let mut jobs = 0;
        let queued = self.each(offset, bytes.len(), |source, within, range| {
            let here = bytes.get(range).unwrap_or_default();
            let queued = copier.write(stream, &source.target(within), here);
            jobs += queued.unwrap_or(0);
            queued.is_some()
        });
        queued.then_some(jobs)
    }

    fn update(&self, offset: u64, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut before = None;
        let whole = self.each(offset, size_of::<u64>(), |source, within, range| {
            if range.len() == size_of::<u64>() {
                before = match source {
                    Source::Mapped(memory, start) => memory.update(start.wrapping_add(within), &update),
                    Source::Program(memory) => memory.update(within, &update),
                    Source::Kernel(..) => None,
                };
            }
            before.is_some()
        });
        before.filter(|_| whole)
    }

    /// Queues an atomic operation. Returns false if the number is not inside one part that is accessed through the
    /// kernel, or there is no room.
    #[cold]
    fn queue_atomic(&self, stream: u64, offset: u64, op: AtomicOp) -> bool {
        self.each(offset, size_of::<u64>(), |source, within, range| match source {
            Source::Kernel(copier, address) if range.len() == size_of::<u64>() => {
                copier.atomic(stream, address.wrapping_add(within), op)
            }
            _ => false,
        })
    }
}

/// Memory of a region or memory region, as a worker accesses it. Clones are the same memory.
#[derive(Clone, Debug)]
pub enum Backing {
    /// One mapping, which several workers may have.
    Whole(Arc<RegionMemory>),
    /// Parts of a program's own memory. Only one worker has them.
    Parts(Box<Parts>),
    /// A file, which is not mapped. It has no atomic operations, and no memory region: regions of the region service
    /// are such memory.
    File(Arc<FileMemory>),
}

impl From<Arc<RegionMemory>> for Backing {
    fn from(memory: Arc<RegionMemory>) -> Self {
        Self::Whole(memory)
    }
}

impl Backing {
    /// Returns the range of offsets: the first byte and the length.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Self::Whole(memory) => (0, memory.bytes()),
            Self::Parts(parts) => (parts.start(), parts.bytes()),
            Self::File(file) => (0, file.bytes()),
        }
    }

    /// Returns true if the bytes are inside the memory.
    #[inline]
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        match self {
            Self::Whole(memory) => offset.checked_add(len).is_some_and(|end| end <= memory.bytes()),
            Self::Parts(parts) => parts.holds(offset, len),
            Self::File(file) => file.holds(offset, len),
        }
    }

    /// Returns how the bytes can be accessed.
    #[inline]
    pub(super) fn reach(&self, offset: u64, len: usize) -> Reach {
        match self {
            Self::Whole(memory) => {
                let holds = offset.checked_add(len as u64).is_some_and(|end| end <= memory.bytes());
                if holds { Reach::Direct } else { Reach::Gone }
            }
            Self::Parts(parts) => parts.reach(offset, len),
            Self::File(file) => {
                if file.holds(offset, len as u64) {
                    Reach::Direct
                } else {
                    Reach::Gone
                }
            }
        }
    }

    /// Returns the number of bytes from an offset on that the worker maps, of `len`.
    pub(super) fn direct_len(&self, offset: u64, len: usize) -> usize {
        match self {
            Self::Whole(_) | Self::File(_) => len,
            Self::Parts(parts) => parts.direct_len(offset, len),
        }
    }

    /// Returns the copier of memory that is accessed through the kernel, in whole or in part.
    pub fn copier(&self) -> Option<&Arc<Copier>> {
        match self {
            Self::Whole(_) | Self::File(_) => None,
            Self::Parts(parts) => parts.copier(),
        }
    }

    /// Calls `read` with what a job accesses for each part of a range, and the number of bytes there. Returns false if
    /// one call does, or the range is not inside the memory.
    pub(super) fn targets(
        &self,
        offset: u64,
        len: usize,
        mut read: impl FnMut(Target, usize) -> bool,
    ) -> bool {
        match self {
            Self::Whole(memory) => read(Target::Mapped(Arc::clone(memory), offset), len),
            Self::Parts(parts) => {
                parts.each(offset, len, |source, within, range| read(source.target(within), range.len()))
            }
            Self::File(_) => false,
        }
    }

    /// Queues copies of bytes to an offset, which the worker does not map. Returns the number of copies.
    #[cold]
    pub(super) fn queue_write(&self, stream: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
        match self {
            Self::Whole(_) | Self::File(_) => None,
            Self::Parts(parts) => parts.queue_write(stream, offset, bytes),
        }
    }

    /// Queues an atomic operation on a number that the worker does not map.
    pub(super) fn queue_atomic(&self, stream: u64, offset: u64, op: AtomicOp) -> bool {
        match self {
            Self::Whole(_) | Self::File(_) => false,
            Self::Parts(parts) => parts.queue_atomic(stream, offset, op),
        }
    }

    /// Copies bytes to an offset. Returns false if they are not inside memory that the worker maps.
    #[inline]
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        match self {
            Self::Whole(memory) => memory.write(offset, bytes).is_ok(),
            Self::Parts(parts) => parts.write(offset, bytes),
            Self::File(file) => file.write(offset, bytes),
        }
    }

    /// Copies the bytes at an offset. Returns false if they are not inside memory that the worker maps.
    #[inline]
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        match self {
            Self::Whole(memory) => memory.read(offset, out).is_ok(),
            Self::Parts(parts) => parts.read(offset, out),
            Self::File(file) => file.read(offset, out),
        }
    }

    /// Returns the mapping that has all of the bytes, and their offset in it; `None` if they lie in several parts, or
    /// are accessed through the kernel, or of a file.
    #[inline]
    pub(super) fn mapping(&self, offset: u64, len: usize) -> Option<(&RegionMemory, u64)> {
        match self {
            Self::Whole(memory) => Some((memory, offset)),
            Self::Parts(parts) => parts.mapping(offset, len),
            Self::File(_) => None,
        }
    }

    /// Updates a number, as [`RegionMemory::update`] does.
    pub(super) fn update(&self, offset: u64, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        match self {
            Self::Whole(memory) => memory.update(offset, update),
            Self::Parts(parts) => parts.update(offset, update),
            Self::File(_) => None,
        }
    }

    /// Prefetches bytes for reading.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, len: usize) {
        match self {
            Self::Whole(memory) => memory.prefetch(offset, len),
            Self::Parts(parts) => parts.mapped(offset, |memory, at| memory.prefetch(at, len)),
            Self::File(_) => {}
        }
    }

    /// Prefetches bytes for writing.
    #[inline]
    pub(super) fn prefetch_room(&self, offset: u64, len: usize) {
        match self {
            Self::Whole(memory) => memory.prefetch_room(offset, len),
            Self::Parts(parts) => parts.mapped(offset, |memory, at| memory.prefetch_room(at, len)),
            Self::File(_) => {}
        }
    }
}
