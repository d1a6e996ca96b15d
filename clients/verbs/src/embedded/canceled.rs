//! Cancellation of threads (`pthread_cancel`). Many calls of the C library end a thread that was canceled, `close`
//! among them: the engine, which such a thread runs and others use, must not stop half way.
//!
//! JUSTIFICATION: calls a function of the C library that the crate `libc` lacks.
#![allow(unsafe_code, reason = "calls pthread_setcancelstate; listed in UNSAFE.md")]

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE` of the C libraries of Linux.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set(state: c_int) -> c_int {
    let mut before = DISABLE;
    // SAFETY: `before` has room for the thread's state before; the call refuses a state that there is not.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Does something that a canceled thread does to its end: it ends at the next call of the C library behind that which
/// ends canceled threads.
pub fn uncanceled<T>(act: impl FnOnce() -> T) -> T {
    let before = set(DISABLE);
    let done = act();
    set(before);
    done
}
