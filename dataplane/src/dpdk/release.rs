//! Releases the handles that one iteration dropped together at its end.
//!
//! A release reads the buffer's descriptor and decrements its reference count. The descriptor's cache line is on the
//! core that used the frame last: the peer's, in one process, or the one that completes transmissions. The line is
//! prefetched when the handle is dropped and has arrived at the end of the iteration. The count of a shared buffer is
//! decremented by a locked instruction, which waits until all earlier stores have reached the cache. Right after the
//! copy of a payload these are the stores of the copy, and the wait takes as long as the copy itself. At the end of an
//! iteration there is one such wait for all frames of a burst.
#![allow(unsafe_code, reason = "gives references back to DPDK")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::{field, rte_mbuf};
use iwarp_engine::prefetch;

/// Handles that are kept at most: two bursts.
const HELD_MAX: usize = 64;

type Held = ArrayVec<NonNull<rte_mbuf>, HELD_MAX>;

thread_local! {
    /// True while the thread is in an iteration.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<Held> = const { RefCell::new(ArrayVec::new_const()) };
}

/// Gives up a handle, at once or at the end of the round.
///
/// # Safety
/// The caller owns the reference, with those to the buffers that follow in its chain, and gives it up; the buffer's
/// pool lives as long as the buffer is out.
#[inline]
pub(super) unsafe fn release(mbuf: NonNull<rte_mbuf>) {
    if !IN_ROUND.get() {
        // SAFETY: as this function's own.
        return unsafe { free(mbuf) };
    }
    prefetch::to_write(mbuf.as_ptr().cast());
    HELD.with_borrow_mut(|held| {
        if held.try_push(mbuf).is_err() {
            free_all(held);
            // SAFETY: as this function's own.
            unsafe { free(mbuf) };
        }
    });
}

/// Gives handles up that `release` was handed.
fn free_all(held: &mut Held) {
    for mbuf in held.drain(..) {
        // SAFETY: the reference was handed over by `release`, whose caller owned it.
        unsafe { free(mbuf) };
    }
}

/// Gives up a handle.
///
/// # Safety
/// As [`release`].
#[inline]
unsafe fn free(mbuf: NonNull<rte_mbuf>) {
    // SAFETY: the handle keeps the buffer alive; `nb_segs` is written by sole owners only.
    if unsafe { field::nb_segs(mbuf.as_ptr()).read() } > 1 {
        // SAFETY: gives up the references that the handle and its chain own; DPDK frees with the last.
        unsafe { dpdk_sys::rte_pktmbuf_free(mbuf.as_ptr()) };
    } else {
        // SAFETY: gives up the one reference that the handle owns. A `next` left from a chain is not followed, and is
        // cleared with the last reference.
        unsafe { dpdk_sys::rte_pktmbuf_free_seg(mbuf.as_ptr()) };
    }
}

/// Collects the handles that are dropped while it lives, and releases them when it is dropped.
#[derive(Debug)]
pub(crate) struct ReleaseLast(());

impl ReleaseLast {
    /// Begins. There is one at a time in a thread.
    pub(crate) fn new() -> Self {
        IN_ROUND.set(true);
        Self(())
    }
}

impl Drop for ReleaseLast {
    fn drop(&mut self) {
        IN_ROUND.set(false);
        HELD.with_borrow_mut(free_all);
    }
}
