//! Memory that the program shares with the daemon: memory of the daemon, mapped into the program, or its own.
//!
//! JUSTIFICATION: memory that other processes change cannot be a Rust slice; safe Rust can neither map it nor copy out
//! of it. All unsafe code of a mapping is in this file.
#![allow(unsafe_code, reason = "memory shared with other processes; listed in UNSAFE.md")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use iwarp_shared_queues::AtomicU64 as SharedWord;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes copied at a time at aligned addresses.
const WORD: usize = size_of::<u64>();

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

/// Error of [`Mapping::of_daemon`].
#[derive(Debug)]
pub(crate) enum MapError {
    /// The descriptor is not of such memory, for this reason.
    Wrong(String),
    /// The system call failed.
    System(Errno),
}

/// Memory of the daemon, mapped for reading and writing and unmapped when dropped, or a part of it; or memory of the
/// program itself that is registered.
///
/// Every access is checked against the size. Bytes are copied with relaxed atomic operations, because peers
/// and other programs may change them at any time: a copy can be torn, but is never undefined behavior.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    /// Bytes that can be addressed.
    bytes: usize,
    /// Bytes mapped: whole pages, or the bytes of the program's memory.
    mapped: usize,
    owner: Owner,
}

/// Owner of a mapping.
#[derive(Debug)]
enum Owner {
    /// The mapping goes with the value.
    Value,
    /// The mapping stays when the value goes.
    Program,
    /// The value is a part of this mapping.
    Whole { _mapping: Arc<Mapping> },
}

// SAFETY: the mapping belongs to the process, not to a thread; it goes only when the value is dropped.
unsafe impl Send for Mapping {}

// SAFETY: through a shared reference the memory is only accessed with atomic operations.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` bytes of memory on ordinary pages that the daemon has sent to a program without this library.
    ///
    /// # Errors
    /// The descriptor is not of such memory, or the system call failed.
    pub fn of_descriptor(fd: &OwnedFd, bytes: u64) -> std::io::Result<Self> {
        Self::of_daemon(fd, bytes, 4096).map_err(|error| match error {
            MapError::Wrong(reason) => std::io::Error::other(reason),
            MapError::System(error) => error.into(),
        })
    }

    /// Maps memory that the daemon has sent: `bytes` bytes, in whole pages of `page_bytes`.
    ///
    /// # Errors
    /// The descriptor is not of such memory, or it could shrink; or the system call failed.
    pub(crate) fn of_daemon(fd: &OwnedFd, bytes: u64, page_bytes: u64) -> Result<Self, MapError> {
        let wrong = |reason: String| Err(MapError::Wrong(reason));
        if !page_bytes.is_power_of_two() || page_bytes < 4096 {
            return wrong(format!("a page of {page_bytes} bytes"));
        }
        if bytes == 0 {
            return wrong("it is empty".to_owned());
        }
        let Some(mapped) = bytes.checked_next_multiple_of(page_bytes) else {
            return wrong(format!("a size of {bytes} bytes"));
        };
        // If the file could shrink, the next access would be a SIGBUS.
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return wrong("its memory is not sealed against shrinking".to_owned());
        }
        let size = fstat(fd).ok().and_then(|found| u64::try_from(found.st_size).ok()).unwrap_or(0);
        if size < mapped {
            return wrong(format!("its memory has {size} bytes, not {mapped}"));
        }
        let too_large = |_| MapError::System(Errno::OVERFLOW);
        let mapped = usize::try_from(mapped).map_err(too_large)?;
        let bytes = usize::try_from(bytes).map_err(too_large)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of this program.
        let start = unsafe { mmap(ptr::null_mut(), mapped, rights, MapFlags::SHARED, fd.as_fd(), 0) };
        let start = NonNull::new(start.map_err(MapError::System)?.cast());
        let start = start.ok_or(MapError::System(Errno::FAULT))?;
        Ok(Self { start, bytes, mapped, owner: Owner::Value })
    }

    /// Maps memory of the program's own, which is zero in each child that the program forks.
    ///
    /// # Errors
    /// The system calls failed. Linux has them since 4.14.
    pub(crate) fn zero_in_children() -> Result<Self, MapError> {
        let (mapped, rights) = (4096, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of this program.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped, rights, MapFlags::PRIVATE) };
        let start = NonNull::new(start.map_err(MapError::System)?.cast::<u8>());
        let start = start.ok_or(MapError::System(Errno::FAULT))?;
        let page = Self { start, bytes: mapped, mapped, owner: Owner::Value };
        // SAFETY: the page was mapped above, and nobody else knows it.
        unsafe { madvise(start.as_ptr().cast(), mapped, Advice::LinuxWipeOnFork) }
            .map_err(MapError::System)?;
        Ok(page)
    }

    /// Sees bytes of the mapping as a slice; `None` if they are not all inside it.
    ///
    /// # Safety
    /// Nobody else accesses the bytes while the slice lives: neither this program, nor another, nor the device.
    pub(crate) unsafe fn slice_mut(&mut self, offset: u64, length: usize) -> Option<&mut [u8]> {
        let start = usize::try_from(offset).ok()?;
        if start.checked_add(length).is_none_or(|end| end > self.bytes) {
            return None;
        }
        // SAFETY: the byte, or the one behind the last, is in the mapping or at its end.
        let first = unsafe { self.start.add(start) };
        // SAFETY: the bytes are inside the mapping, which lives as long as the value; the caller says that nobody else
        // accesses them.
        Some(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), length) })
    }

    /// Sees memory of the program, which stays mapped when the value is dropped.
    ///
    /// # Safety
    /// The memory is mapped for as long as the value lives, and the program accesses it as memory that others change.
    pub(crate) unsafe fn of_program(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, mapped: bytes, owner: Owner::Program }
    }

    /// Returns a part of a mapping, which stays mapped as long; `None` if it is not inside.
    pub(crate) fn part(whole: &Arc<Self>, offset: usize, bytes: usize) -> Option<Self> {
        offset.checked_add(bytes).filter(|end| bytes > 0 && *end <= whole.bytes)?;
        // SAFETY: inside the mapping, which is one object, by the check.
        let start = unsafe { whole.start.add(offset) };
        let owner = Owner::Whole { _mapping: Arc::clone(whole) };
        Some(Self { start, bytes, mapped: bytes, owner })
    }

    /// Returns the address of the first byte in this process. Peers and other programs may change the bytes at any
    /// time.
    pub fn address(&self) -> NonNull<u8> {
        self.start
    }

    /// Sees the mapping as words that all processes access atomically.
    pub(crate) fn words(&self) -> &[SharedWord] {
        let words = self.bytes / WORD;
        // SAFETY: the mapping begins at a page, has `words` words, lives as long as `self`, and is accessed atomically
        // only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), words) }
    }

    /// Returns the size of the memory, bytes.
    pub fn len(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Returns false: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Loads the word at `offset`, whole (acquire). Of what a peer has written with it by one RDMA Write of which it is
    /// the last word, later reads find all: the daemon stores the last word of a Write last. Nothing is said of the
    /// other words of a Write that is still being placed, so a program reads such a word before the others.
    ///
    /// # Errors
    /// The word is not inside the region, or its address is not a multiple of eight.
    pub fn load(&self, offset: u64) -> Result<u64, OutOfBounds> {
        let at = self.check(offset, WORD)?;
        if self.head(at, WORD) != 0 {
            return Err(OutOfBounds { offset, length: WORD, bytes: self.len() });
        }
        Ok(self.word(at).load(Ordering::Acquire))
    }

    /// Copies bytes of the region out. The order of their loads is not defined: for words that belong together, see
    /// [`Self::load`].
    ///
    /// Later reads, through this mapping or any other way, return no older data (acquire).
    ///
    /// # Errors
    /// The bytes are not all inside the region; none was copied.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, out.len())?;
        let (edge, rest) = out.split_at_mut(self.head(at, out.len()));
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let mut from = at;
        from = self.read_bytes(from, edge);
        for word in words {
            *word = self.word(from).load(Ordering::Relaxed).to_ne_bytes();
            from = from.wrapping_add(WORD);
        }
        self.read_bytes(from, tail);
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Copies bytes into the region.
    ///
    /// Earlier writes are visible to every reader of the bytes written here (release).
    ///
    /// # Errors
    /// The bytes are not all inside the region; none was copied.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, bytes.len())?;
        fence(Ordering::Release);
        let (edge, rest) = bytes.split_at(self.head(at, bytes.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        let mut to = at;
        to = self.write_bytes(to, edge);
        for word in words {
            self.word(to).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            to = to.wrapping_add(WORD);
        }
        self.write_bytes(to, tail);
        Ok(())
    }

    /// Returns the address of `length` bytes, for system calls that read or write them. Others may access the bytes
    /// meanwhile; the address is valid as long as the value lives.
    ///
    /// # Errors
    /// The bytes are not all inside the region.
    pub fn part_address(&self, offset: u64, length: usize) -> Result<NonNull<u8>, OutOfBounds> {
        let at = self.check(offset, length)?;
        // SAFETY: inside the mapping, or at its end, by the check.
        Ok(unsafe { self.start.add(at) })
    }

    /// Reads from a file at `position` into `length` bytes of the region, by one preadv2(2): the kernel copies from its
    /// cache straight to the region. Returns the bytes read, 0 at the end of the file. With `cached`, the call reads
    /// what is in the page cache and does not wait for a disk.
    ///
    /// # Errors
    /// `FAULT`: the bytes are not all inside the region; otherwise those of preadv2(2): `AGAIN` with `cached` if the
    /// call would have to wait.
    pub fn read_file(
        &self,
        (offset, length): (u64, usize),
        file: impl AsFd,
        position: u64,
        cached: bool,
    ) -> Result<usize, Errno> {
        let start = self.part_address(offset, length).map_err(|_| Errno::FAULT)?;
        let list = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: length };
        let position = i64::try_from(position).map_err(|_| Errno::INVAL)?;
        let flags = if cached { libc::RWF_NOWAIT } else { 0 };
        // SAFETY: the kernel writes to `length` bytes of the mapping, by the check, as other processes do: this program
        // accesses them atomically.
        let read = unsafe { libc::preadv2(file.as_fd().as_raw_fd(), &raw const list, 1, position, flags) };
        usize::try_from(read).map_err(|_| last_error())
    }

    /// Writes `length` bytes of the region to a file at `position`, by one pwritev2(2). Returns the bytes written.
    ///
    /// # Errors
    /// `FAULT`: the bytes are not all inside the region; otherwise those of pwritev2(2).
    pub fn write_file(
        &self,
        (offset, length): (u64, usize),
        file: impl AsFd,
        position: u64,
    ) -> Result<usize, Errno> {
        let start = self.part_address(offset, length).map_err(|_| Errno::FAULT)?;
        let list = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: length };
        let position = i64::try_from(position).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel reads `length` bytes of the mapping, by the check, as other processes do.
        let written = unsafe { libc::pwritev2(file.as_fd().as_raw_fd(), &raw const list, 1, position, 0) };
        usize::try_from(written).map_err(|_| last_error())
    }

    /// Sets all bytes to zero.
    pub(crate) fn clear(&self) {
        let mut at = self.write_bytes(0, [0; WORD].get(..self.head(0, self.bytes)).unwrap_or_default());
        while self.bytes.saturating_sub(at) >= WORD {
            self.word(at).store(0, Ordering::Relaxed);
            at = at.wrapping_add(WORD);
        }
        self.write_bytes(at, [0; WORD].get(..self.bytes.saturating_sub(at)).unwrap_or_default());
    }

    /// Returns the offset as an index into the mapping, if `length` bytes from there are inside the region.
    fn check(&self, offset: u64, length: usize) -> Result<usize, OutOfBounds> {
        let at = usize::try_from(offset).ok();
        let end = at.and_then(|at| at.checked_add(length)).filter(|&end| end <= self.bytes);
        match (at, end) {
            (Some(at), Some(_)) => Ok(at),
            _ => Err(OutOfBounds { offset, length, bytes: self.len() }),
        }
    }

    /// Copies byte by byte and returns the end offset.
    fn read_bytes(&self, mut from: usize, out: &mut [u8]) -> usize {
        for byte in out {
            *byte = self.byte(from).load(Ordering::Relaxed);
            from = from.wrapping_add(1);
        }
        from
    }

    fn write_bytes(&self, mut to: usize, bytes: &[u8]) -> usize {
        for byte in bytes {
            self.byte(to).store(*byte, Ordering::Relaxed);
            to = to.wrapping_add(1);
        }
        to
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.mapped);
        // SAFETY: inside the mapping, by the assertion; the mapping starts at `start` and is one object.
        let place = unsafe { self.start.add(at) };
        // SAFETY: mapped readable and writable for as long as `self` lives; all access in this program is atomic.
        unsafe { AtomicU8::from_ptr(place.as_ptr()) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.checked_add(WORD).is_some_and(|end| end <= self.mapped));
        // SAFETY: inside the mapping with the whole word, by the assertion.
        let place = unsafe { self.start.add(at) }.cast::<u64>();
        assert!(place.is_aligned());
        // SAFETY: as in `byte`; aligned, by the assertion.
        unsafe { AtomicU64::from_ptr(place.as_ptr()) }
    }

    /// Returns the bytes before the first aligned word of an access that begins at `at`.
    fn head(&self, at: usize, length: usize) -> usize {
        let address = self.start.addr().get().wrapping_add(at);
        address.wrapping_neg().rem_euclid(WORD).min(length)
    }
}

/// Returns the error of the system call before.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !matches!(self.owner, Owner::Value) {
            return;
        }
        // SAFETY: mapped in `of_daemon` with this length, and nothing borrowed from it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}
