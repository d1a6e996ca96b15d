//! Cancellation of threads (`pthread_cancel`). Many calls of the C library end a thread that was canceled, `close`
//! among them: the engine, which such a thread runs and others use, must not stop half way.
//!
//! JUSTIFICATION: calls a function of the C library that the crate `libc` lacks.
#![allow(unsafe_code, reason = "calls pthread_setcancelstate; listed in UNSAFE.md")]

use std::cell::Cell;
use std::ffi::c_int;

/// `PTHREAD_CANCEL_ENABLE` and `PTHREAD_CANCEL_DISABLE` of the C libraries of Linux.
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;

thread_local! {
    /// True while a thread that may be canceled does something to its end.
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

// Where cancellation is asynchronous, a thread may end in it.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set(state: c_int) -> c_int {
    let mut before = DISABLE;
    // SAFETY: `before` has room for the thread's state before; the call refuses a state that there is not.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Does something that a canceled thread does to its end: it ends at the next call of the C library behind that which
/// ends canceled threads, or in [`cancelable`].
pub fn uncanceled<T>(act: impl FnOnce() -> T) -> T {
    let before = set(DISABLE);
    if before == DISABLE {
        return act();
    }
    DEFERS.set(true);
    let done = act();
    DEFERS.set(false);
    set(before);
    done
}

/// Does something at which a canceled thread may end, within [`uncanceled`], too: unless the program has disabled it.
pub fn cancelable<T>(act: impl FnOnce() -> T) -> T {
    if !DEFERS.get() {
        return act();
    }
    set(ENABLE);
    let done = act();
    set(DISABLE);
    done
}
