//! Memory that the program unmaps before it deregisters it. A card has the pages pinned; a device in this process would
//! fault when a peer, or a request that is still queued, reaches them. A handler has the copy fail instead: the stream
//! ends with an error, and the program goes on.
//!
//! JUSTIFICATION: handles signals, and changes where the interrupted thread goes on.
#![allow(unsafe_code, reason = "handles faults; listed in UNSAFE.md")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use iwarp_engine::memory::resume_after_fault;

/// Signals of memory that is not mapped, and of a file that has become shorter than its mapping.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Handlers that were there before, which all other faults are for.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// Lets a program live on that unmaps memory before it deregisters it, or truncates a file whose mapping it has
/// registered. Handles SIGSEGV and SIGBUS from here on; other faults reach the handlers that the program had before. A
/// handler that the program installs later takes the place of this one.
pub fn survive_unmapped_memory() {
    let before = FAULTS.map(|signal| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `before` has room for the answer; nothing is changed.
        unsafe { libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) };
        // SAFETY: all-zero bytes are a `sigaction`, the default one.
        unsafe { before.assume_init() }
    });
    if BEFORE.set(before).is_err() {
        return;
    }
    for signal in FAULTS {
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        // SAFETY: all-zero bytes are a `sigaction`.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = (handler as *const ()).expose_provenance();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
        // SAFETY: the handler calls nothing but functions that a handler may call, and is part of this library, which
        // stays loaded. What fails leaves the program as it was.
        unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    }
}

/// Lets the calling thread, which has all signals blocked, handle faults: the kernel ends a process whose thread faults
/// with the signal blocked.
pub(super) fn unblock() {
    let mut faults = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigemptyset(faults.as_mut_ptr()) };
    for signal in FAULTS {
        // SAFETY: the set is filled, and the signals exist.
        unsafe { libc::sigaddset(faults.as_mut_ptr(), signal) };
    }
    // SAFETY: the set is filled; the mask is that of this thread, which the library has made.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, faults.as_ptr(), ptr::null_mut()) };
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if resume(context) {
        return;
    }
    let at = FAULTS.iter().position(|fault| *fault == signal);
    let before = at.and_then(|at| BEFORE.get()?.get(at));
    match before {
        Some(action) if action.sa_sigaction == libc::SIG_IGN && was_sent(info) => {}
        Some(action) if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN => {
            pass_on(action, signal, info, context);
        }
        _ => end(signal, info),
    }
}

/// Has the interrupted thread go on behind a copy that has failed. Returns false if it was not copying.
#[cfg(target_arch = "x86_64")]
fn resume(context: *mut c_void) -> bool {
    const RIP: usize = libc::REG_RIP as usize;
    // SAFETY: the kernel passes the context of the interrupted thread.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_mut() }) else { return false };
    let Some(rip) = context.uc_mcontext.gregs.get_mut(RIP) else { return false };
    let to = usize::try_from(*rip).ok().and_then(resume_after_fault).and_then(|to| i64::try_from(to).ok());
    let Some(to) = to else { return false };
    *rip = to;
    true
}

#[cfg(not(target_arch = "x86_64"))]
const fn resume(_: *mut c_void) -> bool {
    false
}

/// Calls the handler that the program had before.
fn pass_on(action: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        // SAFETY: restores the default, which may be done in a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let handler = ptr::with_exposed_provenance::<()>(action.sa_sigaction);
    if action.sa_flags & libc::SA_SIGINFO == 0 {
        // SAFETY: the program has installed it as a function of this type.
        let handler = unsafe { std::mem::transmute::<*const (), extern "C" fn(c_int)>(handler) };
        handler(signal);
    } else {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: as above.
        let handler = unsafe { std::mem::transmute::<*const (), Handler>(handler) };
        handler(signal, info, context);
    }
}

/// Returns true for a signal that a process has sent: no instruction has faulted.
fn was_sent(info: *mut libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes the description of the signal.
    unsafe { info.as_ref() }.is_none_or(|info| info.si_code <= 0)
}

/// Ends the process as without a handler: the instruction faults again, or the signal that was sent is raised again.
fn end(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: restores the default, which may be done in a handler.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    if was_sent(info) {
        // SAFETY: a handler may raise signals.
        unsafe { libc::raise(signal) };
    }
}
