//! Exchange of private anonymous pages for shared memory at the same address, and back. The contents stay, also those
//! that other threads write meanwhile.
//!
//! ```text
//! pages write-protected ─▶ copied to the shared memory ─▶ that moved to their address ─▶ waiting writers go on
//! ```
//! Long ranges are copied to hugepages, which the kernel makes of ordinary memory: allocating, mapping and freeing a
//! gigabyte page by page would take seconds. For that, a page lies at the same place within a hugepage in the file and
//! in both processes' addresses.
//!
//! JUSTIFICATION: safe Rust can neither replace a mapping nor protect one against writers. All memory that is replaced
//! belongs to the caller of `ProtectionDomain::reg_mr`, which is unsafe for that reason.
#![allow(unsafe_code, reason = "replaces mappings of the program; listed in UNSAFE.md")]

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl, opcode};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous, mremap_fixed,
    munmap, userfaultfd,
};

use crate::context::lock;
use crate::threads::SignalsBlocked;

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Group of userfaultfd's requests (`UFFDIO`).
const UFFDIO: u8 = 0xAA;
/// Version of userfaultfd (`UFFD_API`).
const API: u64 = 0xAA;
/// Faults of writes are reported (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`), also in shared memory
/// (`UFFD_FEATURE_WP_HUGETLBFS_SHMEM`, Linux 5.19).
const FEATURES: u64 = 1 | 1 << 12;
/// Writes to a range may be made to wait (`UFFDIO_REGISTER_MODE_WP`).
const MODE_WRITES: u64 = 1 << 1;
/// `struct uffdio_api`: version, features, requests.
const UFFDIO_API: Opcode = opcode::read_write::<[u64; 3]>(UFFDIO, 0x3F);
/// `struct uffdio_register`: start, length, mode, requests.
const UFFDIO_REGISTER: Opcode = opcode::read_write::<[u64; 4]>(UFFDIO, 0x00);
/// `struct uffdio_writeprotect`: start, length, mode.
const UFFDIO_WRITEPROTECT: Opcode = opcode::read_write::<[u64; 3]>(UFFDIO, 0x06);

/// Whole pages of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Address of the first page.
    pub(crate) start: usize,
    /// Length of the range in bytes.
    pub(crate) bytes: usize,
}

impl Pages {
    fn address(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.start)
    }

    /// Returns the bytes that precede the pages in the file of [`to_shared`]: so that hugepages of file and addresses
    /// coincide, if the range has some.
    pub(crate) const fn lead(self) -> usize {
        if self.bytes < LONG { 0 } else { self.start % HUGEPAGE }
    }

    /// Returns the part of the range that consists of whole hugepages, as offset and length; `None` if it is short.
    fn hugepages(self) -> Option<(usize, usize)> {
        let first = self.start.checked_next_multiple_of(HUGEPAGE)?;
        let end = self.start.checked_add(self.bytes)? / HUGEPAGE * HUGEPAGE;
        let bytes = end.checked_sub(first).filter(|bytes| *bytes > 0 && self.bytes >= LONG)?;
        Some((first.saturating_sub(self.start), bytes))
    }
}

/// Bytes of a hugepage that the kernel makes of ordinary memory.
const HUGEPAGE: usize = 2 << 20;
/// Least bytes of a range that is copied to hugepages: a shorter one may have none.
const LONG: usize = 2 * HUGEPAGE;

/// Maps memory that replaces the pages later, by `map`, which gets an address that differs from theirs by whole
/// hugepages.
fn map_beside(
    pages: Pages,
    map: impl FnOnce(*mut c_void) -> Result<*mut c_void, Errno>,
) -> Result<*mut c_void, Errno> {
    let room = pages.bytes.checked_add(2 * HUGEPAGE).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody can access.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) }?;
    let before = (pages.start % HUGEPAGE).wrapping_sub(start.addr()) % HUGEPAGE;
    let behind = before.saturating_add(pages.bytes);
    let mapped = map(start.wrapping_byte_add(before));
    let unmap = |offset: usize, bytes: usize| {
        if bytes > 0 {
            // SAFETY: part of the mapping above that is not used.
            let _ = unsafe { munmap(start.wrapping_byte_add(offset), bytes) };
        }
    };
    unmap(0, before);
    unmap(behind, room.saturating_sub(behind));
    mapped.inspect_err(|_| unmap(before, pages.bytes))
}

/// Has the kernel make hugepages of memory that is shared and new, as far as it can. Returns the part that has some.
fn make_huge(pages: Pages, shared: *mut c_void) -> Option<(usize, usize)> {
    let (offset, bytes) = pages.hugepages()?;
    let start = shared.wrapping_byte_add(offset);
    for at in (0..bytes).step_by(HUGEPAGE) {
        // The kernel makes none of a hole.
        // SAFETY: allocates a page of the new mapping, which nobody else knows.
        unsafe { madvise(start.wrapping_byte_add(at), PAGE, Advice::LinuxPopulateWrite) }.ok()?;
    }
    // SAFETY: keeps the contents of the new mapping. Linux before 6.1 refuses.
    let made = unsafe { libc::madvise(start, bytes, libc::MADV_COLLAPSE) };
    (made == 0).then_some((offset, bytes))
}

/// Replaces private anonymous pages by pages of `file`, a new memfd, with the same contents. They begin
/// [`Pages::lead`] bytes behind its start, and end with it.
///
/// # Errors
/// The pages stay as they are: the kernel refuses, or other threads cannot be kept from writing.
///
/// # Safety
/// The caller owns the pages: nothing of this library is in them, and the calling thread's stack is not.
pub(crate) unsafe fn to_shared(pages: Pages, file: &OwnedFd) -> Result<(), Errno> {
    // Pages that were never touched could not be protected. Nothing is allocated: they become the zero page.
    // SAFETY: reads the caller's pages.
    unsafe { madvise(pages.address(), pages.bytes, Advice::LinuxPopulateRead) }?;
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let lead = pages.lead() as u64;
    let shared = map_beside(pages, |at| {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a mapping that nobody uses.
        unsafe { mmap(at, pages.bytes, rights, flags, file.as_fd(), lead) }
    })?;
    let huge = make_huge(pages, shared);
    replace(pages, shared, || {
        let (offset, bytes) = huge.unwrap_or_default();
        let (from, to) = (pages.address().wrapping_byte_add(offset), shared.wrapping_byte_add(offset));
        // SAFETY: both ranges have these bytes and do not overlap; nobody writes the source: its writers wait.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes) };
        copy_to(pages, 0..offset, (file, lead))?;
        copy_to(pages, offset.saturating_add(bytes)..pages.bytes, (file, lead))
    })
}

/// Replaces shared pages by private anonymous ones with the same contents.
///
/// # Errors
/// The pages stay as they are: the kernel refuses, or other threads cannot be kept from writing.
///
/// # Safety
/// As [`to_shared`]; no other process writes the pages any more.
pub(crate) unsafe fn to_private(pages: Pages) -> Result<(), Errno> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let private = map_beside(pages, |at| {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: replaces a mapping that nobody uses.
        unsafe { mmap_anonymous(at, pages.bytes, rights, flags) }
    })?;
    if pages.bytes >= LONG {
        // SAFETY: concerns the new mapping. A kernel without hugepages refuses.
        let _ = unsafe { madvise(private, pages.bytes, Advice::LinuxHugepage) };
    }
    // SAFETY: allocates the new pages, which nobody else knows. What fails here is tried again by the copy.
    let _ = unsafe { madvise(private, pages.bytes, Advice::LinuxPopulateWrite) };
    replace(pages, private, || {
        // SAFETY: both ranges have these bytes and do not overlap; nobody writes the source: its writers wait.
        unsafe { ptr::copy_nonoverlapping(pages.address().cast::<u8>(), private.cast::<u8>(), pages.bytes) };
        Ok(())
    })
}

/// Copies pages to the other mapping while nobody writes them, and moves that to their address.
fn replace(pages: Pages, other: *mut c_void, copy: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // A handler on this thread would wait for itself.
    let signals = SignalsBlocked::all();
    let done = Writers::stop(pages).and_then(|writers| {
        let moved = copy().and_then(|()| {
            let flags = MremapFlags::MAYMOVE;
            // SAFETY: `other` is a mapping of this size that only the caller knows. The pages that it replaces belong
            // to the caller, and have the same contents.
            unsafe { mremap_fixed(other, pages.bytes, pages.bytes, flags, pages.address()) }
        });
        writers.release(pages);
        moved
    });
    drop(signals);
    if let Err(error) = done {
        // SAFETY: the mapping was not moved, and only the caller knows it.
        let _ = unsafe { munmap(other, pages.bytes) };
        return Err(error);
    }
    Ok(())
}

/// Copies a part of the pages into a file, in which they begin at `lead`. The kernel allocates the file's pages without
/// clearing them first.
fn copy_to(pages: Pages, part: Range<usize>, (file, lead): (&OwnedFd, u64)) -> Result<(), Errno> {
    // SAFETY: mapped memory of the caller that nobody writes while the slice lives: its writers wait.
    let bytes = unsafe { std::slice::from_raw_parts(pages.address().cast::<u8>(), pages.bytes) };
    let mut offset = lead.saturating_add(part.start as u64);
    let mut bytes = bytes.get(part).unwrap_or_default();
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        offset = offset.saturating_add(written as u64);
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Other writers of pages, while they wait.
enum Writers {
    /// There are none: the program has one thread.
    None,
    /// They wait for this userfaultfd.
    Wait(OwnedFd),
}

impl Writers {
    /// Makes all writes to the pages wait, those of system calls included, without an effect on reads.
    ///
    /// Handling the faults of system calls needs a privilege (CAP_SYS_PTRACE, access to `/dev/userfaultfd`, or
    /// `vm.unprivileged_userfaultfd`). Without it, they would fail instead of waiting, which a program does not expect.
    fn stop(pages: Pages) -> Result<Self, Errno> {
        if is_alone() {
            return Ok(Self::None);
        }
        let faults = user_faults()?;
        let (start, bytes) = (pages.start as u64, pages.bytes as u64);
        request::<UFFDIO_API, 3>(&faults, [API, FEATURES, 0])?;
        request::<UFFDIO_REGISTER, 4>(&faults, [start, bytes, MODE_WRITES, 0])?;
        request::<UFFDIO_WRITEPROTECT, 3>(&faults, [start, bytes, 1])?;
        Ok(Self::Wait(faults))
    }

    /// Lets them go on.
    fn release(self, pages: Pages) {
        if let Self::Wait(faults) = self {
            // Fails if the pages were replaced. Writers wait no longer than until the descriptor is closed.
            let _ = request::<UFFDIO_WRITEPROTECT, 3>(&faults, [pages.start as u64, pages.bytes as u64, 0]);
        }
    }
}

/// Threads of this library, which write no memory of the program, by number.
static OWN_THREADS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Mark of a thread of this library. It runs no handler of a signal, which could write the program's memory.
pub(crate) struct OwnThread {
    thread: u32,
    _signals: SignalsBlocked,
}

impl OwnThread {
    /// Marks the calling thread until the mark is dropped, on the same thread.
    pub(crate) fn enter() -> Self {
        let _signals = SignalsBlocked::all();
        let thread = this_thread();
        lock(&OWN_THREADS).push(thread);
        Self { thread, _signals }
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        lock(&OWN_THREADS).retain(|thread| *thread != self.thread);
    }
}

fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns true if this process has no other threads than those of this library.
fn is_alone() -> bool {
    let own = lock(&OWN_THREADS);
    let is_own = |name: &std::ffi::OsStr| {
        let number = name.to_str().and_then(|name| name.parse().ok());
        number.is_some_and(|number| number == this_thread() || own.contains(&number))
    };
    let threads = std::fs::read_dir("/proc/self/task");
    threads
        .is_ok_and(|mut threads| threads.all(|thread| thread.is_ok_and(|thread| is_own(&thread.file_name()))))
}

/// Creates a userfaultfd that handles the faults of system calls, too.
fn user_faults() -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor is used to write-protect memory of the caller only.
    match unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) } {
        Err(Errno::PERM) => {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty())?;
            // SAFETY: a request of this device (USERFAULTFD_IOC_NEW), which takes flags and returns a descriptor.
            unsafe { ioctl(device, NewUserfaultfd) }
        }
        other => other,
    }
}

/// Request of `/dev/userfaultfd` for a descriptor (`USERFAULTFD_IOC_NEW`).
struct NewUserfaultfd;

// SAFETY: the argument is a number, the flags; the result is a new descriptor, which belongs to the caller.
unsafe impl Ioctl for NewUserfaultfd {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(UFFDIO, 0x00)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        ptr::without_provenance_mut(OFlags::CLOEXEC.bits() as usize)
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has returned a new descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Sends a request to a userfaultfd.
fn request<const REQUEST: Opcode, const WORDS: usize>(
    faults: &OwnedFd,
    mut words: [u64; WORDS],
) -> Result<(), Errno> {
    // SAFETY: the requests of this file take a structure of as many 64-bit words, as `REQUEST` encodes.
    let update = unsafe { Updater::<REQUEST, [u64; WORDS]>::new(&mut words) };
    // SAFETY: the ranges are the caller's, and are only protected, not filled.
    unsafe { ioctl(faults, update) }
}

#[cfg(test)]
mod tests;
