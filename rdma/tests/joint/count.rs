//! Allocations, counted while a stream in full operation is at work.
// JUSTIFICATION: `GlobalAlloc` is an unsafe trait; nothing else can see every allocation.
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator; counts what the watched part of a thread takes from it.
struct Counting;

fn count() {
    if WATCHED.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
}

// SAFETY: every call is handed on to the system's allocator unchanged, which keeps the contract; counting touches
// two thread-locals that are initialised at compile time and have no destructor, so it allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the block is of this allocator, hence of the system's; the caller keeps the rest.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is of this allocator, hence of the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does `work`, and says how often it allocated.
pub(crate) fn watched<R>(work: impl FnOnce() -> R) -> (R, u64) {
    let before = ALLOCATIONS.get();
    let outer = WATCHED.replace(true);
    let result = work();
    WATCHED.set(outer);
    (result, ALLOCATIONS.get() - before)
}

/// Does what the simulation itself does in the middle of watched work.
pub(crate) fn unwatched<R>(work: impl FnOnce() -> R) -> R {
    let outer = WATCHED.replace(false);
    let result = work();
    WATCHED.set(outer);
    result
}
