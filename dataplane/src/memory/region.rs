//! The memory of one region: a sealed memfd, mapped into this process.
//!
//! JUSTIFICATION: other processes map the same pages and may write them at any time, so that no Rust reference
//! to them may exist. All access is by raw copies, behind a bounds check.
#![allow(unsafe_code, reason = "maps memory, copies into and out of it, unmaps it")]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::hugepages::{HUGEPAGE_BYTES, hugepages};
use crate::dpdk::{DpdkError, Eal};
use crate::prefetch;

/// Bytes of an ordinary page.
const PAGE_BYTES: u64 = 4096;

/// What kind of pages a region is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Hugepages of 2 MiB.
    Huge,
    /// Ordinary ones.
    Ordinary,
}

/// Why there is no memory for a region.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region has bytes.
    #[error("a region of no bytes")]
    Empty,
    /// More than can be addressed.
    #[error("{bytes} bytes are more than this machine can address")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Not enough hugepages.
    #[error("{needed} hugepages of 2 MiB needed, {available} of {total} available: {source}")]
    Hugepages {
        /// Pages needed.
        needed: u64,
        /// Pages that can be had.
        available: u64,
        /// Pages that there are.
        total: u64,
        /// What the kernel answered.
        source: Errno,
    },
    /// Not enough ordinary memory: to take it would have the kernel end some process, this one most likely.
    #[error("{needed} bytes of ordinary memory needed, {available} available")]
    Ordinary {
        /// Bytes needed.
        needed: u64,
        /// Bytes that can be had.
        available: u64,
    },
    /// The kernel refused.
    #[error("{operation}: {source}")]
    System {
        /// What was to be done.
        operation: &'static str,
        /// What the kernel answered.
        source: Errno,
    },
}

/// The memory of one region, zeroed when made, present (never paged in on demand), and of fixed size.
///
/// It is unmapped when the last handle goes, so whoever can still reach it holds one.
pub struct RegionMemory {
    file: OwnedFd,
    base: NonNull<u8>,
    /// Bytes that can be addressed.
    bytes: usize,
    /// Bytes that are mapped: whole pages.
    mapped: usize,
    page_bytes: u64,
    /// DPDK, if it knows the memory.
    known_to: Mutex<Option<Eal>>,
}

// SAFETY: `base` points to memory that lives as long as `self` and is accessed by raw copies only. That two of
// them may overlap in time is in the nature of shared memory (other processes do so too): bytes of both may
// then be mixed, as RFC 5040 §5.5 leaves it to the applications to order their accesses.
unsafe impl Send for RegionMemory {}
// SAFETY: as above.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// Makes the memory of a region of `bytes` bytes. `name` appears in `/proc/…/maps`.
    ///
    /// # Errors
    /// `bytes` is zero, too large, or more than there is memory for.
    pub fn new(name: &str, bytes: u64, pages: Pages) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::Empty);
        }
        match pages {
            Pages::Ordinary => Self::of_pages(name, bytes, PAGE_BYTES),
            Pages::Huge => Self::of_pages(name, bytes, HUGEPAGE_BYTES).map_err(|error| match error {
                MemoryError::System { source, .. } => {
                    let status = hugepages();
                    let needed = bytes.div_ceil(HUGEPAGE_BYTES);
                    let (available, total) = (status.available(), status.total);
                    MemoryError::Hugepages { needed, available, total, source }
                }
                error => error,
            }),
        }
    }

    /// As [`RegionMemory::new`], of hugepages; of ordinary ones where there are not enough, if `ordinary_too`.
    ///
    /// # Errors
    /// As there.
    pub fn on_hugepages(name: &str, bytes: u64, ordinary_too: bool) -> Result<Self, MemoryError> {
        Self::new(name, bytes, Pages::Huge)
            .or_else(|error| if ordinary_too { Self::new(name, bytes, Pages::Ordinary) } else { Err(error) })
    }

    /// As [`RegionMemory::new`], of pages of one size.
    fn of_pages(name: &str, bytes: u64, page_bytes: u64) -> Result<Self, MemoryError> {
        let failed = |operation| move |source| MemoryError::System { operation, source };
        let too_large = || MemoryError::TooLarge { bytes };
        // Sizes are signed for the kernel, and pointer offsets for the compiler.
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
        // A process that is handed a read-only descriptor shall not open it again for writing.
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
        // Nobody can take pages away by cutting the file short, which would be a SIGBUS here.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        let base = map(&file, mapped).map_err(failed("mmap"))?;
        // From here on dropping the value unmaps.
        let memory = Self {
            file,
            base,
            bytes: usize::try_from(bytes).map_err(|_| too_large())?,
            mapped,
            page_bytes,
            known_to: Mutex::new(None),
        };
        memory.populate().map_err(failed("madvise(MADV_POPULATE_WRITE)"))?;
        Ok(memory)
    }

    /// Has every page allocated now.
    fn populate(&self) -> Result<(), Errno> {
        let start = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the whole of our own mapping; the content does not change.
        let advised = unsafe { rustix::mm::madvise(start, self.mapped, Advice::LinuxPopulateWrite) };
        match advised {
            // Linux before 5.14. Hugepages were reserved by mmap, so that touching them cannot fail.
            Err(Errno::INVAL) => {
                let step = usize::try_from(self.page_bytes).unwrap_or(self.mapped);
                for offset in (0..self.mapped).step_by(step.max(1)) {
                    // SAFETY: `offset` lies within the mapping, which is writable and still all zero.
                    unsafe { self.base.as_ptr().wrapping_add(offset).write_volatile(0) };
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Bytes that can be addressed.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Bytes taken from the machine: whole pages.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped as u64
    }

    /// Whether it is made of hugepages.
    pub fn is_huge(&self) -> bool {
        self.page_bytes == HUGEPAGE_BYTES
    }

    /// Bytes of one of its pages.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The memfd. Whoever is handed it may read and write the region, and, as the kernel would have it, punch
    /// holes into it: only for those who may write.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Another descriptor of the memfd, for those who may only read. It can be mapped for reading only.
    ///
    /// # Errors
    /// No descriptor is left, or `/proc` is not mounted.
    pub fn read_only_descriptor(&self) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Where the mapping begins. What is reached through it must be gone before `self` is dropped.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of `len` bytes at `offset`, or `None` if the region does not have them.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(len)?;
        (end <= self.bytes).then(|| self.base.as_ptr().wrapping_add(offset))
    }

    /// Copies `bytes` to `offset`; `false`, and nothing changed, if the region does not have these bytes.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()) else { return false };
        // SAFETY: `at` has checked that the bytes lie within the mapping. No reference to mapped memory exists,
        // so that `bytes` cannot overlap it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Copies the bytes at `offset` to `out`; `false`, and nothing changed, if the region does not have them.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, out.len()) else { return false };
        // SAFETY: as for `write`.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Fetches `len` bytes at `offset` into the cache, if the region has them: they will be read soon.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, len: usize) {
        let Some(from) = self.at(offset, len) else { return };
        for at in (0..len).step_by(prefetch::LINE) {
            prefetch::to_read(from.wrapping_add(at));
        }
    }

    /// Fetches `len` bytes at `offset` into the cache, as its own, if the region has them: they will be written soon.
    #[inline]
    pub(super) fn prefetch_room(&self, offset: u64, len: usize) {
        let Some(to) = self.at(offset, len) else { return };
        for at in (0..len).step_by(prefetch::LINE) {
            prefetch::to_write(to.wrapping_add(at));
        }
    }

    /// Changes the eight bytes at `offset`, a number in this machine's byte order, to what `update` makes of it, as
    /// one step for every thread and process that does the same; what they were. `None`, and nothing changed, if
    /// the region does not have them or they are not aligned. `update` may be called several times.
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

    /// Makes the memory known to DPDK, so that devices can be given addresses within it.
    ///
    /// # Errors
    /// DPDK cannot take it (it runs on ordinary pages, or knows the memory already). The region works without.
    pub fn register(&self, eal: &Eal) -> Result<(), DpdkError> {
        let mut known_to = self.known_to.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.base.as_ptr().cast::<c_void>();
        let page_bytes = usize::try_from(self.page_bytes).unwrap_or(0);
        // SAFETY: DPDK is up, as `eal` proves; the mapping is page-aligned, made of such pages, and taken back
        // before it is unmapped.
        let returned =
            unsafe { dpdk_sys::rte_extmem_register(base, self.mapped, ptr::null_mut(), 0, page_bytes) };
        crate::dpdk::check_for(returned, || format!("registering {} bytes of region memory", self.mapped))?;
        *known_to = Some(eal.clone());
        Ok(())
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast::<c_void>();
        let known_to = self.known_to.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if known_to.is_some() {
            // SAFETY: registered with the same numbers; DPDK is up, as the handle proves.
            let returned = unsafe { dpdk_sys::rte_extmem_unregister(base, self.mapped) };
            if returned != 0 {
                tracing::warn!(returned, "DPDK keeps region memory that is unmapped");
            }
        }
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

/// Bytes of ordinary memory that can be had without taking any from a process; `None` where the system does not tell.
fn memory_available() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Maps all of a file for reading and writing.
fn map(file: &OwnedFd, len: usize) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}
