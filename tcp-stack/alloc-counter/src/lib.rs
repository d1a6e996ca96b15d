//! A counting global allocator, for the tests of `tcp-stack`, `rdma` and `dataplane` that assert zero allocations.
//!
//! Every program that links this crate uses its allocator. It counts per thread, and only while that thread is
//! [watched](watch).
#![allow(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait; nothing else can see every allocation")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator; counts the allocations of watched threads.
struct Counting;

fn note() {
    if WATCHED.get() {
        ALLOCATIONS.set(ALLOCATIONS.get().wrapping_add(1));
    }
}

/// Counts bytes that a block has more than before.
fn note_bytes(before: usize, after: usize) {
    if WATCHED.get() {
        let (before, after) = (before.cast_signed() as i64, after.cast_signed() as i64);
        BYTES.set(BYTES.get().wrapping_add(after.wrapping_sub(before)));
    }
}

// SAFETY: every call goes unchanged to `System`, which keeps the contract; counting touches
// two thread-locals that are initialized at compile time and have no destructor, so it allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        note_bytes(0, layout.size());
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        note_bytes(0, layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        note_bytes(layout.size(), size);
        // SAFETY: the block is of this allocator, hence of the system's; the caller keeps the rest.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        note_bytes(layout.size(), 0);
        // SAFETY: the block is of this allocator, hence of the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Switches counting on this thread on or off; returns the previous setting.
pub fn watch(on: bool) -> bool {
    WATCHED.replace(on)
}

/// Returns the allocations counted on this thread so far: new blocks and reallocations.
pub fn counted() -> u64 {
    ALLOCATIONS.get()
}

/// Returns the bytes that this thread has allocated and not freed while it was watched.
pub fn live_bytes() -> i64 {
    BYTES.get()
}

/// Runs `work` with counting on.
pub fn watched<R>(work: impl FnOnce() -> R) -> R {
    switched(true, work)
}

/// Runs `work` with counting off: for a test's own work in the middle of a watched section.
pub fn unwatched<R>(work: impl FnOnce() -> R) -> R {
    switched(false, work)
}

fn switched<R>(on: bool, work: impl FnOnce() -> R) -> R {
    let before = watch(on);
    let result = work();
    watch(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_watched_work_is_counted() {
        let before = counted();
        let grown = watched(|| {
            let mut bytes = Vec::with_capacity(100);
            unwatched(|| drop(std::hint::black_box(vec![0_u8; 1000])));
            bytes.resize(1000, 1_u8);
            bytes
        });
        drop(std::hint::black_box(vec![0_u8; 100]));
        assert_eq!((counted() - before, grown.len()), (2, 1000), "one made, and made longer");
        let other = std::thread::spawn(counted).join();
        assert_eq!(other.ok(), Some(0));
    }
}
