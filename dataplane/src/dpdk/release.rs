//! References to frames that others still hold, given up together at the end of a round.
//!
//! Such a reference is counted down by a locked instruction, which waits until every store before it has reached the
//! cache. Right after a frame was copied to where it belongs these are the stores of the copy: the wait for them is as long
//! as the copy itself. At the end of a round there is one such wait for all frames of a burst.
#![allow(unsafe_code, reason = "gives references back to DPDK")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use dpdk_sys::rte_mbuf;

/// References that are kept until the end of a round at most: two bursts.
const HELD_MAX: usize = 64;

thread_local! {
    /// Whether this thread is in a round.
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
    static HELD: RefCell<ArrayVec<NonNull<rte_mbuf>, HELD_MAX>> = const { RefCell::new(ArrayVec::new_const()) };
}

/// Gives up a reference, at once or at the end of the round.
///
/// # Safety
/// The caller owns the reference, to a single buffer, and gives it up; the buffer's pool lives as long as the buffer is out.
#[inline]
pub(super) unsafe fn release(mbuf: NonNull<rte_mbuf>) {
    let kept = IN_ROUND.get() && HELD.with_borrow_mut(|held| held.try_push(mbuf).is_ok());
    if !kept {
        // SAFETY: as this function's own.
        unsafe { dpdk_sys::rte_pktmbuf_free_seg(mbuf.as_ptr()) };
    }
}

/// For the length of a round, references to frames that others hold are kept; with it they are given up.
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
        HELD.with_borrow_mut(|held| {
            for mbuf in held.drain(..) {
                // SAFETY: the reference was handed over by `release`, whose caller owned it.
                unsafe { dpdk_sys::rte_pktmbuf_free_seg(mbuf.as_ptr()) };
            }
        });
    }
}
