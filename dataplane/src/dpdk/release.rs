//! Handles that are let go of within a round, given up together at its end.
//!
//! To give one up the buffer's descriptor is read and counted down, and the core that had the frame last has it: the peer's, in
//! one process, or the one that the port writes completions with. It is asked for when the handle is let go of, and is there
//! at the end of the round. A reference that others share is counted down by a locked instruction besides, which waits
//! until every store before it has reached the cache. Right after a frame was copied to where it belongs these are the
//! stores of the copy: the wait for them is as long as the copy itself. At the end of a round there is one such wait for
//! all frames of a burst.
#![allow(unsafe_code, reason = "gives references back to DPDK")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::{field, rte_mbuf};

use crate::prefetch;

/// Handles that are kept at most: two bursts.
const HELD_MAX: usize = 64;

type Held = ArrayVec<NonNull<rte_mbuf>, HELD_MAX>;

thread_local! {
    /// Whether this thread is in a round.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<Held> = const { RefCell::new(ArrayVec::new_const()) };
}

/// Gives up a handle, at once or at the end of the round.
///
/// # Safety
/// The caller owns the reference, with those to the buffers that follow in its chain, and gives it up; the buffer's pool lives
/// as long as the buffer is out.
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

/// For the length of a round, handles that are let go of are kept; with it they are given up.
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
