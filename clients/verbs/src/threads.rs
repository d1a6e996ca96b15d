//! Threads of this library and of those above it: they run no handler of a signal, and a panic in one ends the process.
//!
//! JUSTIFICATION: sets the signal mask of a thread, for which the C library alone has a call.
#![allow(unsafe_code, reason = "calls pthread_sigmask; listed in UNSAFE.md")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::{io, ptr, thread};

/// Signals that an instruction raises, or a filter of system calls. Its own thread gets them: blocked, they end the
/// process.
pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Signals of the calling thread, blocked until dropped.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    /// Blocks all of them.
    pub(crate) fn all() -> Self {
        Self::all_but(&[])
    }

    fn all_but(free: &[c_int]) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: writes the set.
        unsafe { libc::sigfillset(set.as_mut_ptr()) };
        for &signal in free {
            // SAFETY: the set is filled; the call refuses a signal that there is not.
            unsafe { libc::sigdelset(set.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: reads one set, written above, and writes the other.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: zeroed, which is a set without signals, or written by the call.
        Self(unsafe { before.assume_init() })
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: reads a set that the kernel has written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Starts a thread of the library. Signals are for the threads of the program, but for those of faults.
///
/// # Errors
/// The process has no room for another thread (`EAGAIN` of `clone(2)`).
pub fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _signals = SignalsBlocked::all_but(&FAULTS);
    let run = || {
        // Its short sleeps would take 50 µs more otherwise. Without effect where a filter of system calls refuses it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        aborts_on_panic(run);
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Does something whose panic ends the process (SIGABRT), once its message is written: a device without its thread
/// would stand still, and a C program cannot catch it. The end of a thread that is canceled passes.
pub fn aborts_on_panic<T>(act: impl FnOnce() -> T) -> T {
    let _guard = Aborts;
    act()
}

struct Aborts;

impl Drop for Aborts {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    fn is_blocked(signal: c_int) -> bool {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: writes the set, and changes nothing.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), set.as_mut_ptr()) };
        // SAFETY: the set was written above.
        (unsafe { libc::sigismember(set.as_ptr(), signal) }) == 1
    }

    #[test]
    fn a_thread_of_the_library_gets_no_signals_but_those_of_faults() {
        let (tell, told) = mpsc::channel();
        let ask = move || [libc::SIGTERM, libc::SIGALRM, libc::SIGSEGV].map(is_blocked);
        start_thread("test", move || tell.send(ask()).unwrap()).unwrap();
        assert_eq!(told.recv().unwrap(), [true, true, false]);
        assert!(!is_blocked(libc::SIGTERM), "those of the caller are as before");
    }

    #[test]
    fn a_panic_in_a_thread_of_the_library_ends_the_process() {
        const CHILD: &str = "IRONWARP_PANICS";
        if std::env::var_os(CHILD).is_some() {
            start_thread("test", || panic!("the thread's message")).unwrap();
            let (_tell, told) = mpsc::channel::<()>();
            let _ = told.recv_timeout(std::time::Duration::from_secs(10));
            std::process::exit(0);
        }
        let name = "threads::tests::a_panic_in_a_thread_of_the_library_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
        assert!(String::from_utf8_lossy(&child.stderr).contains("the thread's message"), "{child:?}");
    }
}
