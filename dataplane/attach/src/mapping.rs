//! The memory of a region, mapped into a local program.
//!
//! JUSTIFICATION: memory that other processes change cannot be a Rust slice; safe Rust can neither map it nor copy out
//! of it. All unsafe code of a mapping is in this file.
#![allow(unsafe_code, reason = "memory shared with other processes; listed in UNSAFE.md")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use iwarp_control::RegionAttached;
use rdma::Access;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

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

/// The memory of a region, mapped for reading and writing, unmapped when dropped.
///
/// Every access is checked against the region's size. Bytes are copied with relaxed atomic operations, because peers
/// and other programs may change them at any time: a copy can be torn, but is never undefined behavior.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    /// Bytes of the region.
    bytes: usize,
    /// Bytes mapped: the region in whole pages.
    mapped: usize,
    name: String,
    access: Access,
}

// SAFETY: the mapping belongs to the process, not to a thread; it goes only when the value is dropped.
unsafe impl Send for Mapping {}

// SAFETY: through a shared reference the memory is only accessed with atomic operations.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `mapped` bytes of a sealed file that has at least as many; the caller has checked both.
    pub(crate) fn new(fd: &OwnedFd, attached: &RegionAttached, mapped: u64) -> rustix::io::Result<Self> {
        let too_large = |_| rustix::io::Errno::OVERFLOW;
        let mapped = usize::try_from(mapped).map_err(too_large)?;
        let bytes = usize::try_from(attached.bytes).map_err(too_large)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of this program.
        let start = unsafe { mmap(ptr::null_mut(), mapped, rights, MapFlags::SHARED, fd.as_fd(), 0) }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { start, bytes, mapped, name: attached.name.clone(), access: attached.access })
    }

    /// Returns the name of the region.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of the region, bytes.
    pub fn len(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Returns false: every region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the rights of remote peers.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Copies bytes of the region out.
    ///
    /// Later reads, through this mapping or any other way, return no older data (acquire).
    ///
    /// # Errors
    /// The bytes are not all inside the region; none was copied.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, out.len())?;
        let (edge, rest) = out.split_at_mut(head(at, out.len()));
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
        let (edge, rest) = bytes.split_at(head(at, bytes.len()));
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
        assert!(at.is_multiple_of(WORD) && at < self.mapped);
        // SAFETY: inside the mapping, by the assertion; the mapping is of whole pages, so the whole word is.
        let place = unsafe { self.start.add(at) };
        // SAFETY: as in `byte`; aligned, since the mapping starts on a page and `at` is a multiple of the word.
        unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and nothing borrowed from it outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Returns the bytes before the first aligned word of an access that begins at `at`.
fn head(at: usize, length: usize) -> usize {
    at.next_multiple_of(WORD).saturating_sub(at).min(length)
}
