//! Memory of a memory region: one mapping, or parts of a program's own memory.

use std::cell::Cell;
use std::sync::Arc;

use super::process::ProcessMemory;
use super::region::RegionMemory;

/// Source of the bytes of a [`Part`].
#[derive(Clone, Debug)]
pub enum Source {
    /// Memory that this process maps, and the offset of the part in it.
    Mapped(Arc<RegionMemory>, u64),
    /// Memory that is accessed through the kernel, and the part's address in the program.
    Kernel(Arc<ProcessMemory>, u64),
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
#[derive(Debug)]
pub struct Parts {
    /// Each part with the offset of its end, ascending.
    parts: Box<[(u64, Part)]>,
    /// Offset of the first byte.
    start: u64,
    /// Offset after the last byte.
    end: u64,
}

iwarp_counters::counters! {
    /// Counters of memory that is accessed through the kernel.
    pub struct KernelStats {
        /// Copies made by the kernel, into or out of a program's memory that the daemon cannot map.
        kernel_copies,
        /// Copies that the kernel refused: the program has ended or unmapped its memory. The connection ends.
        kernel_copy_errors,
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
            };
            end = end.checked_add(part.bytes).filter(|_| is_there && part.bytes > 0)?;
            placed.push((end, part));
        }
        (end > start).then(|| Self { parts: placed.into(), start, end })
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
        stats: &Cell<KernelStats>,
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
            let copied = copy(&part.source, within, done..next);
            if let Source::Kernel(..) = part.source {
                let mut counted = stats.get();
                counted.kernel_copies = counted.kernel_copies.wrapping_add(1);
                counted.kernel_copy_errors = counted.kernel_copy_errors.wrapping_add(u64::from(!copied));
                stats.set(counted);
            }
            if !copied {
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

    fn write(&self, offset: u64, bytes: &[u8], stats: &Cell<KernelStats>) -> bool {
        self.each(offset, bytes.len(), stats, |source, within, range| {
            let Some(here) = bytes.get(range) else { return false };
            match source {
                Source::Mapped(memory, start) => memory.write(start.wrapping_add(within), here).is_ok(),
                Source::Kernel(process, address) => process.write(address.wrapping_add(within), here),
            }
        })
    }

    fn read(&self, offset: u64, out: &mut [u8], stats: &Cell<KernelStats>) -> bool {
        self.each(offset, out.len(), stats, |source, within, range| {
            let Some(here) = out.get_mut(range) else { return false };
            match source {
                Source::Mapped(memory, start) => memory.read(start.wrapping_add(within), here).is_ok(),
                Source::Kernel(process, address) => process.read(address.wrapping_add(within), here),
            }
        })
    }

    fn update(
        &self,
        offset: u64,
        update: impl Fn(u64) -> Option<u64>,
        stats: &Cell<KernelStats>,
    ) -> Option<u64> {
        let mut before = None;
        let whole = self.each(offset, size_of::<u64>(), stats, |source, within, range| {
            if range.len() == size_of::<u64>() {
                before = match source {
                    Source::Mapped(memory, start) => memory.update(start.wrapping_add(within), &update),
                    Source::Kernel(process, address) => process.update(address.wrapping_add(within), &update),
                };
            }
            before.is_some()
        });
        before.filter(|_| whole)
    }
}

/// Memory of a region or memory region, as a worker accesses it.
#[derive(Debug)]
pub enum Backing {
    /// One mapping, which several workers may have.
    Whole(Arc<RegionMemory>),
    /// Parts of a program's own memory. Only one worker has them.
    Parts(Box<Parts>),
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
        }
    }

    /// Returns true if the bytes are inside the memory.
    #[inline]
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        match self {
            Self::Whole(memory) => offset.checked_add(len).is_some_and(|end| end <= memory.bytes()),
            Self::Parts(parts) => parts.holds(offset, len),
        }
    }

    /// Copies bytes to an offset. Returns false if they are not inside the memory, or the program has lost it.
    #[inline]
    pub(super) fn write(&self, offset: u64, bytes: &[u8], stats: &Cell<KernelStats>) -> bool {
        match self {
            Self::Whole(memory) => memory.write(offset, bytes).is_ok(),
            Self::Parts(parts) => parts.write(offset, bytes, stats),
        }
    }

    /// Copies the bytes at an offset. Returns false if they are not inside the memory, or the program has lost it.
    #[inline]
    pub(super) fn read(&self, offset: u64, out: &mut [u8], stats: &Cell<KernelStats>) -> bool {
        match self {
            Self::Whole(memory) => memory.read(offset, out).is_ok(),
            Self::Parts(parts) => parts.read(offset, out, stats),
        }
    }

    /// Returns the mapping that has all of the bytes, and their offset in it; `None` if they lie in several parts, or
    /// are accessed through the kernel.
    #[inline]
    pub(super) fn mapping(&self, offset: u64, len: usize) -> Option<(&RegionMemory, u64)> {
        match self {
            Self::Whole(memory) => Some((memory, offset)),
            Self::Parts(parts) => parts.mapping(offset, len),
        }
    }

    /// Updates a number, as [`RegionMemory::update`] does.
    pub(super) fn update(
        &self,
        offset: u64,
        update: impl Fn(u64) -> Option<u64>,
        stats: &Cell<KernelStats>,
    ) -> Option<u64> {
        match self {
            Self::Whole(memory) => memory.update(offset, update),
            Self::Parts(parts) => parts.update(offset, update, stats),
        }
    }

    /// Prefetches bytes for reading.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, len: usize) {
        match self {
            Self::Whole(memory) => memory.prefetch(offset, len),
            Self::Parts(parts) => parts.mapped(offset, |memory, at| memory.prefetch(at, len)),
        }
    }

    /// Prefetches bytes for writing.
    #[inline]
    pub(super) fn prefetch_room(&self, offset: u64, len: usize) {
        match self {
            Self::Whole(memory) => memory.prefetch_room(offset, len),
            Self::Parts(parts) => parts.mapped(offset, |memory, at| memory.prefetch_room(at, len)),
        }
    }
}
