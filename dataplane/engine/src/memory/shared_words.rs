//! Memory of one context as 64-bit words that a program and a worker share.
//!
//! JUSTIFICATION: the program may write the words at any time. All access is by atomic operations, for which that is
//! defined.
#![allow(unsafe_code, reason = "sees mapped memory as atomic words")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use iwarp_shared_verbs::worker::ContextMemory;
use rustix::io::Errno;

use super::region::{CloseFileError, MemoryError, Pages, RegionMemory};
use crate::prefetch;

/// Words in a sealed memfd, zero when created. The last handle unmaps it.
#[derive(Clone, Debug)]
pub struct SharedWords(Arc<RegionMemory>);

impl SharedWords {
    /// Allocates this many words on ordinary pages. `name` appears in `/proc/…/maps`.
    ///
    /// # Errors
    /// As [`RegionMemory::new`].
    pub fn new(name: &str, words: usize) -> Result<Self, MemoryError> {
        let bytes = (words as u64).saturating_mul(size_of::<u64>() as u64);
        RegionMemory::new(name, bytes, Pages::Ordinary).map(|memory| Self(Arc::new(memory)))
    }

    /// Creates words of which the kernel allocates those that are used: for a program in this process.
    ///
    /// # Errors
    /// As [`RegionMemory::new`].
    pub fn unfilled(name: &str, words: usize) -> Result<Self, MemoryError> {
        let bytes = (words as u64).saturating_mul(size_of::<u64>() as u64);
        RegionMemory::for_exchange(name, bytes).map(|memory| Self(Arc::new(memory)))
    }

    /// Allocates words for a program that is not trusted, open for [`Self::close_file`]. The program maps them first.
    ///
    /// # Errors
    /// As [`RegionMemory::new`].
    pub fn for_program(name: &str, words: usize) -> Result<Self, MemoryError> {
        let bytes = (words as u64).saturating_mul(size_of::<u64>() as u64);
        RegionMemory::for_program_on(name, bytes, Pages::Ordinary).map(|memory| Self(Arc::new(memory)))
    }

    /// Keeps every holder of the descriptor from punching holes into the memory, which the worker would wait for, and
    /// from mapping it for writing again.
    ///
    /// # Errors
    /// As [`RegionMemory::close_file`].
    pub fn close_file(&self) -> Result<(), CloseFileError> {
        self.0.close_file()
    }

    /// Opens another descriptor of the memfd. A process that receives it may read and write all words.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn descriptor(&self) -> Result<OwnedFd, Errno> {
        self.0.descriptor()
    }
}

impl ContextMemory for SharedWords {
    #[inline]
    fn write_soon(words: &[AtomicU64]) {
        for line in words.chunks(prefetch::LINE / size_of::<u64>()) {
            prefetch::to_write(line.as_ptr().cast());
        }
    }
}

impl AsRef<[AtomicU64]> for SharedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        let words = usize::try_from(self.0.bytes()).unwrap_or(0) / size_of::<u64>();
        let base = self.0.base().cast::<AtomicU64>();
        // SAFETY: the mapping begins at a page, has `words` words, lives as long as `self.0`, and has no other
        // references than these, all of which are to atomics.
        unsafe { std::slice::from_raw_parts(base.as_ptr(), words) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_and_both_handles_see_a_change() {
        for words in [1, 511, 512, 100_000] {
            let memory = SharedWords::new("test", words).unwrap();
            let other = memory.clone();
            assert_eq!(memory.as_ref().len(), words);
            assert!(memory.as_ref().iter().all(|word| word.load(Ordering::Relaxed) == 0));
            memory.as_ref()[words - 1].store(7, Ordering::Release);
            assert_eq!(other.as_ref()[words - 1].load(Ordering::Acquire), 7);
        }
        assert!(matches!(SharedWords::new("test", 0), Err(MemoryError::Empty)));
    }
}
