//! Memory of one region: a sealed memfd, mapped into this process.
//!
//! JUSTIFICATION: other processes map the same pages and may write them at any time, so no Rust reference to them may
//! exist. All access is by raw copies after a bounds check.
#![allow(unsafe_code, reason = "maps memory, copies into and out of it, unmaps it")]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::control_group::{self, GroupLimit};
use super::hugepages::{HUGEPAGE_BYTES, HugepageStatus, hugepages};
use crate::prefetch;

/// Bytes of an ordinary page.
const PAGE_BYTES: u64 = 4096;
/// Bytes at the end of a copy that are stored after the others.
const WORD: usize = size_of::<u64>();

/// Page size of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Hugepages of 2 MiB.
    Huge,
    /// Ordinary pages of 4 KiB.
    Ordinary,
}

/// Error of an access outside of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at offset {offset} are not inside a region of {bytes} bytes")]
pub struct OutOfBounds {
    /// Offset of the access.
    pub offset: u64,
    /// Length of the access, bytes.
    pub length: usize,
    /// Size of the region.
    pub bytes: u64,
}

/// Error of the allocation of a region.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region of zero bytes was requested.
    #[error("a region of no bytes")]
    Empty,
    /// More than can be addressed.
    #[error("{bytes} bytes are more than this machine can address")]
    TooLarge {
        /// Bytes that were requested.
        bytes: u64,
    },
    /// There are not enough hugepages.
    #[error("{needed} hugepages of 2 MiB needed, {available} of {total} available")]
    Hugepages {
        /// Pages that are needed.
        needed: u64,
        /// Pages that are available.
        available: u64,
        /// Pages of the machine in total.
        total: u64,
        /// Error of the kernel.
        source: Errno,
    },
    /// The machine has the hugepages, and a control group of this process may not use as many.
    #[error(
        "{needed} hugepages of 2 MiB needed, {available} available, and the control group of this process may use {} \
         more: raise the limit in {}",
        limit.left_bytes / HUGEPAGE_BYTES,
        limit.file.display()
    )]
    ControlGroup {
        /// Pages that are needed.
        needed: u64,
        /// Pages that are available.
        available: u64,
        /// Limit that is reached.
        limit: GroupLimit,
    },
    /// The machine has the hugepages, and the kernel refuses them.
    #[error(
        "{needed} hugepages of 2 MiB needed, {available} available, and the kernel refuses them: a limit of a control \
         group above this container (hugetlb.2MB.max), a limit of the address space (RLIMIT_AS), or NUMA nodes that \
         this process may not use; {operation}"
    )]
    Refused {
        /// Pages that are needed.
        needed: u64,
        /// Pages that are available.
        available: u64,
        /// Name of the system call.
        operation: &'static str,
        /// Error of the kernel.
        source: Errno,
    },
    /// There is not enough ordinary memory: the allocation would make the kernel end a process, probably this one.
    #[error("{needed} bytes of ordinary memory needed, {available} available")]
    Ordinary {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are available.
        available: u64,
    },
    /// A system call failed.
    #[error("{operation}: {source}")]
    System {
        /// Name of the system call.
        operation: &'static str,
        /// Error of the kernel.
        source: Errno,
    },
}

/// Reason why [`RegionMemory::close_file`] fails.
#[derive(Debug, thiserror::Error)]
pub enum CloseFileError {
    /// A holder of the descriptor has set F_SEAL_SEAL too early.
    #[error("the memory's file was sealed by F_SEAL_SEAL without {missing:?}")]
    Sealed {
        /// Seals that cannot be set any more.
        missing: SealFlags,
    },
    /// Pages that the program has not written, or has freed, cannot be allocated.
    #[error("there is too little memory for {bytes} bytes: {source}")]
    Pages {
        /// Size of the memory.
        bytes: usize,
        /// Error of the kernel.
        source: Errno,
    },
    /// A system call failed.
    #[error("sealing the memory's file: {0}")]
    System(#[from] Errno),
}

/// Memory of one region: zeroed when created, populated before it is used (never paged in on demand), of fixed size.
///
/// Dropping the last handle unmaps it, so every user holds a handle.
pub struct RegionMemory {
    file: OwnedFd,
    base: NonNull<u8>,
    /// Bytes that can be addressed.
    bytes: usize,
    /// Bytes that are mapped: whole pages.
    mapped: usize,
    page_bytes: u64,
    /// True once [`Self::close_file`] has closed the file.
    closed: AtomicBool,
}

// SAFETY: `base` points to memory that lives as long as `self` and is accessed by raw copies only. That two of
// them may overlap in time is in the nature of shared memory (other processes do so too): bytes of both may
// then be mixed, as RFC 5040 §5.5 leaves it to the applications to order their accesses.
unsafe impl Send for RegionMemory {}
// SAFETY: as above.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// Allocates a region of `bytes` bytes. `name` appears in `/proc/…/maps`.
    ///
    /// # Errors
    /// `bytes` is zero, too large, or more than there is memory for.
    pub fn new(name: &str, bytes: u64, pages: Pages) -> Result<Self, MemoryError> {
        // They prevent truncation of the file, which would cause a SIGBUS here.
        Self::of(name, bytes, pages, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    }

    fn of(name: &str, bytes: u64, pages: Pages, seals: SealFlags) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        match pages {
            Pages::Ordinary => Self::of_pages(name, bytes, PAGE_BYTES, seals)?.filled(),
            Pages::Huge => Self::of_pages(name, bytes, HUGEPAGE_BYTES, seals)
                .and_then(Self::filled)
                .map_err(|error| without_hugepages(error, bytes, hugepages(), control_group::least())),
        }
    }

    /// Allocates memory that a program of less trust may map: as [`Self::on_hugepages`], but open for
    /// [`Self::close_file`].
    ///
    /// # Errors
    /// Fails as [`RegionMemory::new`] does.
    pub fn for_program(name: &str, bytes: u64, ordinary_allowed: bool) -> Result<Self, MemoryError> {
        let open = |pages| Self::for_program_on(name, bytes, pages);
        open(Pages::Huge).or_else(|error| if ordinary_allowed { open(Pages::Ordinary) } else { Err(error) })
    }

    /// Allocates the same on pages of one kind.
    ///
    /// # Errors
    /// Fails as [`RegionMemory::new`] does.
    pub fn for_program_on(name: &str, bytes: u64, pages: Pages) -> Result<Self, MemoryError> {
        Self::of(name, bytes, pages, SealFlags::SHRINK | SealFlags::GROW)
    }

    /// Creates memory like [`Self::for_program`], on ordinary pages, which a program writes before it registers them.
    /// Nothing is allocated until then.
    ///
    /// # Errors
    /// Fails as [`RegionMemory::new`] does.
    pub fn for_exchange(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        Self::of_pages(name, bytes, PAGE_BYTES, SealFlags::SHRINK | SealFlags::GROW)
    }

    /// Keeps every holder of the descriptor from mapping the memory for writing again, and from punching holes into it,
    /// after which an access of this process could fail. Mappings that exist stay as they are. Then allocates the pages
    /// that are missing. Does nothing if this process has closed the file already: the seals alone do not say so,
    /// because a holder of the descriptor can set each of them.
    ///
    /// # Errors
    /// The memory is from none of [`Self::for_program`] and [`Self::for_exchange`], a holder of the descriptor has
    /// sealed it so that holes remain possible, or there is too little memory.
    pub fn close_file(&self) -> Result<(), CloseFileError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let seals = || rustix::fs::fcntl_get_seals(&self.file);
        let add = |seal| match rustix::fs::fcntl_add_seals(&self.file, seal) {
            // SEAL is set: the seals are compared below.
            Err(Errno::PERM) => Ok(()),
            added => added,
        };
        // The kernel adds a seal while no hole is being punched, and punches none from then on.
        add(SealFlags::FUTURE_WRITE)?;
        if seals()?.contains(SealFlags::FUTURE_WRITE) {
            self.populate().map_err(|source| CloseFileError::Pages { bytes: self.mapped, source })?;
            add(SealFlags::SEAL)?;
        }
        let missing = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let missing = missing.difference(seals()?);
        if !missing.is_empty() {
            return Err(CloseFileError::Sealed { missing });
        }
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// Allocates a region on hugepages, or, with `ordinary_allowed`, on ordinary pages if there are too few.
    ///
    /// # Errors
    /// Fails as [`RegionMemory::new`] does.
    pub fn on_hugepages(name: &str, bytes: u64, ordinary_allowed: bool) -> Result<Self, MemoryError> {
        Self::new(name, bytes, Pages::Huge).or_else(|error| {
            if ordinary_allowed { Self::new(name, bytes, Pages::Ordinary) } else { Err(error) }
        })
    }

    /// Allocates a region on pages of one size.
    fn of_pages(name: &str, bytes: u64, page_bytes: u64, seals: SealFlags) -> Result<Self, MemoryError> {
        let failed = |operation| move |source| MemoryError::System { operation, source };
        let too_large = || MemoryError::TooLarge { bytes };
        // The kernel's sizes and the compiler's pointer offsets are signed.
        let rounded = bytes.checked_next_multiple_of(page_bytes).filter(|&size| i64::try_from(size).is_ok());
        let rounded = rounded.ok_or_else(too_large)?;
        let mapped = usize::try_from(rounded).map_err(|_| too_large())?;
        if page_bytes == PAGE_BYTES
            && let Some(available) = memory_available().filter(|available| *available < rounded)
        {
            return Err(MemoryError::Ordinary { needed: bytes, available });
        }
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if page_bytes == HUGEPAGE_BYTES {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let name = format!("iwarp-region-{}", name.replace('\0', ""));
        let file = rustix::fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
        rustix::fs::ftruncate(&file, rounded).map_err(failed("ftruncate"))?;
        // Prevents a process with a read-only descriptor from reopening it for writing.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        let base = map(&file, mapped).map_err(failed("mmap"))?;
        // From here on, dropping the value unmaps.
        Ok(Self {
            file,
            base,
            bytes: usize::try_from(bytes).map_err(|_| too_large())?,
            mapped,
            page_bytes,
            closed: AtomicBool::new(false),
        })
    }

    /// Allocates every page now, and returns the memory.
    fn filled(self) -> Result<Self, MemoryError> {
        let operation = "madvise(MADV_POPULATE_WRITE)";
        self.populate().map_err(|source| MemoryError::System { operation, source })?;
        Ok(self)
    }

    /// Allocates every page now.
    fn populate(&self) -> Result<(), Errno> {
        let start = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the whole of our own mapping; the content does not change.
        let advised = unsafe { rustix::mm::madvise(start, self.mapped, Advice::LinuxPopulateWrite) };
        match advised {
            // Linux before 5.14. The content stays, also what a program has written.
            Err(Errno::INVAL) => {
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.mapped as u64)
            }
            other => other,
        }
    }

    /// Returns the bytes that can be addressed.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Returns the bytes allocated: whole pages.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped as u64
    }

    /// Returns true if the region is on hugepages.
    pub fn is_huge(&self) -> bool {
        self.page_bytes == HUGEPAGE_BYTES
    }

    /// Returns the bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Opens another descriptor of the memfd. A process that receives it may read and write the region, and can punch
    /// holes into it: only for processes that may write.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn descriptor(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 0)
    }

    /// Opens another descriptor of the memfd, which can be mapped for reading only.
    ///
    /// # Errors
    /// The process has no free descriptor, or `/proc` is not mounted.
    pub fn read_only_descriptor(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Returns the start of the mapping. All pointers derived from it must be unused before `self` is dropped.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the address of `len` bytes at `offset`, or `None` if they are not inside the region.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        (end <= self.bytes).then(|| self.base.as_ptr().wrapping_add(offset))
    }

    /// Copies `bytes` to `offset`. Their last word is stored after the others (release), with one store if it is
    /// aligned: a program that loads it with acquire and finds it changed finds the others, too. The order of the
    /// others is not defined.
    ///
    /// # Errors
    /// The bytes are not inside the region; nothing has changed.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let Some(to) = self.at(offset, bytes.len()) else { return Err(self.beyond(offset, bytes.len())) };
        if bytes.len() > prefetch::L1_RUN_BYTES {
            // `prefetch_room` has taken the lines no further than the second-level cache.
            prefetch::run(to, bytes.len(), prefetch::to_write);
        }
        let (first, last) =
            bytes.split_last_chunk::<WORD>().map_or((bytes, None), |(first, last)| (first, Some(last)));
        // SAFETY: `at` has checked that the bytes lie within the mapping. No reference to mapped memory exists,
        // so that `bytes` cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(first.as_ptr(), to, first.len()) };
        if let Some(last) = last {
            fence(Ordering::Release);
            // SAFETY: the last bytes of those that `at` has checked.
            unsafe { to.wrapping_add(first.len()).cast::<[u8; WORD]>().write(*last) };
        }
        Ok(())
    }

    /// Copies the bytes at `offset` to `out`.
    ///
    /// # Errors
    /// The bytes are not inside the region; nothing has changed.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let Some(from) = self.at(offset, out.len()) else { return Err(self.beyond(offset, out.len())) };
        // SAFETY: as for `write`.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `len` bytes at `from` in `source` to `offset`, the last word after the others as [`Self::write`] does.
    /// The ranges may overlap.
    ///
    /// # Errors
    /// The bytes are not inside one of the regions; nothing has changed.
    #[inline]
    pub fn copy_from(&self, offset: u64, source: &Self, from: u64, len: usize) -> Result<(), OutOfBounds> {
        let Some(to) = self.at(offset, len) else { return Err(self.beyond(offset, len)) };
        let Some(start) = source.at(from, len) else { return Err(source.beyond(from, len)) };
        let Some(first) = len.checked_sub(WORD) else {
            // SAFETY: `at` has checked that both ranges lie within their mappings. No reference to mapped memory
            // exists.
            unsafe { ptr::copy(start, to, len) };
            return Ok(());
        };
        // Before the copy, which changes it if the ranges overlap.
        // SAFETY: the last bytes of those that `at` has checked.
        let last = unsafe { start.wrapping_add(first).cast::<[u8; WORD]>().read() };
        // SAFETY: as above.
        unsafe { ptr::copy(start, to, first) };
        fence(Ordering::Release);
        // SAFETY: as for `last`.
        unsafe { to.wrapping_add(first).cast::<[u8; WORD]>().write(last) };
        Ok(())
    }

    #[cold]
    fn beyond(&self, offset: u64, length: usize) -> OutOfBounds {
        OutOfBounds { offset, length, bytes: self.bytes() }
    }

    /// Prefetches `len` bytes at `offset` for reading, if they are inside the region.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, len: usize) {
        let Some(from) = self.at(offset, len) else { return };
        prefetch::run(from, len, prefetch::to_read);
    }

    /// Prefetches `len` bytes at `offset` for writing, if they are inside the region. A run that is too long for the
    /// first-level cache goes into the second: otherwise its prefetches would delay the loads of the next frame.
    #[inline]
    pub(super) fn prefetch_room(&self, offset: u64, len: usize) {
        let Some(to) = self.at(offset, len) else { return };
        if len > prefetch::L1_RUN_BYTES {
            prefetch::run(to, len, prefetch::to_second_level);
        } else {
            prefetch::run(to, len, prefetch::to_write);
        }
    }

    /// Updates the eight bytes at `offset`, a number in native byte order, by `update`, atomically for all threads and
    /// processes that do the same. Returns the value before. Returns `None` without a change if the bytes are not
    /// inside the region or not aligned. `update` may be called several times.
    #[must_use]
    pub fn update(&self, offset: u64, update: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let at = self.at(offset, size_of::<u64>())?.cast::<u64>();
        if !at.is_aligned() {
            return None;
        }
        // SAFETY: `at` has checked that the bytes lie within the mapping, which outlives this call; aligned. Copies
        // of other peers' data may touch them meanwhile, as any process that maps them may: that is theirs to order.
        let value = unsafe { AtomicU64::from_ptr(at) };
        let outcome = value.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        Some(outcome.unwrap_or_else(|unchanged| unchanged))
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: our own mapping, of this length; the last handle is going, and who asked for `base` uses it no more.
        if let Err(error) = unsafe { rustix::mm::munmap(base, self.mapped) } {
            tracing::warn!(%error, "unmapping region memory");
        }
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMemory")
            .field("bytes", &self.bytes)
            .field("page_bytes", &self.page_bytes)
            .finish()
    }
}

/// Returns the error of an allocation on hugepages: what is missing, as far as it is known.
fn without_hugepages(
    error: MemoryError,
    bytes: u64,
    status: HugepageStatus,
    limit: Option<GroupLimit>,
) -> MemoryError {
    let MemoryError::System { operation, source } = error else { return error };
    // They have nothing to do with memory.
    if [Errno::MFILE, Errno::NFILE, Errno::PERM, Errno::ACCESS, Errno::NOSYS].contains(&source) {
        return MemoryError::System { operation, source };
    }
    let (needed, available) = (bytes.div_ceil(HUGEPAGE_BYTES), status.available());
    if available < needed {
        return MemoryError::Hugepages { needed, available, total: status.total, source };
    }
    match limit.filter(|limit| limit.left_bytes / HUGEPAGE_BYTES < needed) {
        Some(limit) => MemoryError::ControlGroup { needed, available, limit },
        None => MemoryError::Refused { needed, available, operation, source },
    }
}

/// Returns the ordinary memory, bytes, that can be allocated without ending a process; `None` if `/proc` does not
/// report it.
fn memory_available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Maps a whole file for reading and writing.
fn map(file: &OwnedFd, len: usize) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message for 16 MiB on a machine with `free` of 600 hugepages, `left` of them below a limit.
    fn message(errno: Errno, free: u64, left: Option<u64>) -> String {
        let status = HugepageStatus { page_bytes: HUGEPAGE_BYTES, total: 600, free, reserved: 4 };
        let limit =
            left.map(|pages| GroupLimit { file: "/g/max".into(), left_bytes: pages * HUGEPAGE_BYTES });
        let error = MemoryError::System { operation: "mmap", source: errno };
        format!("{:#}", anyhow::Error::new(without_hugepages(error, 16 << 20, status, limit)))
    }

    #[test]
    fn the_reason_for_missing_hugepages_is_named() {
        let few = message(Errno::NOMEM, 10, None);
        assert!(
            few.starts_with("8 hugepages of 2 MiB needed, 6 of 600 available: Cannot allocate memory"),
            "{few}"
        );
        // The kernel sends SIGBUS beyond the limit, which the populating call returns as EFAULT.
        let group = message(Errno::FAULT, 600, Some(3));
        let expected = "8 hugepages of 2 MiB needed, 596 available, and the control group of this process may use 3 \
                        more: raise the limit in /g/max";
        assert_eq!(group, expected);
        for left in [None, Some(8)] {
            let refused = message(Errno::FAULT, 600, left);
            assert!(
                refused.contains("the kernel refuses them") && refused.contains("Bad address"),
                "{refused}"
            );
        }
        // The pool says more than a limit that is not reached first.
        assert!(message(Errno::NOMEM, 10, Some(3)).contains("6 of 600 available"));
    }

    #[test]
    fn other_errors_are_not_taken_for_missing_hugepages() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::PERM, Errno::ACCESS, Errno::NOSYS] {
            let message = message(errno, 600, None);
            assert!(message.starts_with("mmap: ") && !message.contains("hugepages"), "{message}");
        }
    }
}
