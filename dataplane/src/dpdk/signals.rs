//! Keeps the TAP driver from installing signal handlers. `Port::open` uses it for TAP ports.
//!
//! net_tap asks the kernel for a real-time signal per frame received. Real-time signals queue: a burst costs
//! one interruption of some thread per frame, and when the queue overflows the kernel falls back to SIGIO,
//! whose default action ends the process. The driver takes the first real-time signal with a default
//! disposition and, finding none, polls its descriptor instead, which is what a poll-mode worker wants.
#![allow(unsafe_code, reason = "sigaction is a C call")]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by the one [`RealtimeSignalsOccupied`] that exists: a second one would save and restore the wrong dispositions.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// While this lives, no real-time signal looks free. Dropping it puts the dispositions back.
///
/// `Port::open` holds it while it opens a TAP port and sets up its queues; never for long, as a signal that is
/// ignored is lost. Real-time signals that somebody already handles are not touched.
#[derive(Debug)]
pub struct RealtimeSignalsOccupied {
    occupied: Vec<i32>,
    _one: MutexGuard<'static, ()>,
}

impl RealtimeSignalsOccupied {
    /// Occupies every real-time signal that has its default disposition.
    pub fn new() -> Self {
        let one = EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner);
        // SIGRTMIN itself is not considered by the driver.
        let occupied = (libc::SIGRTMIN().saturating_add(1)..libc::SIGRTMAX())
            .filter(|&signal| disposition(signal) == Some(libc::SIG_DFL))
            .filter(|&signal| set_disposition(signal, libc::SIG_IGN))
            .collect();
        Self { occupied, _one: one }
    }
}

impl Default for RealtimeSignalsOccupied {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RealtimeSignalsOccupied {
    fn drop(&mut self) {
        for &signal in &self.occupied {
            if disposition(signal) == Some(libc::SIG_IGN) {
                set_disposition(signal, libc::SIG_DFL);
            }
        }
    }
}

/// The handler of a signal; `None` if there is no such signal.
fn disposition(signal: i32) -> Option<libc::sighandler_t> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads; `action` is writable and of the right type.
    let returned = unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed is a valid `sigaction` (integers and an optional pointer), whatever the call wrote.
    let action = unsafe { action.assume_init() };
    (returned == 0).then_some(action.sa_sigaction)
}

/// Sets a signal to be ignored or defaulted; whether that worked.
fn set_disposition(signal: i32, handler: libc::sighandler_t) -> bool {
    // SAFETY: zeroed is a valid `sigaction`: no flags, empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: `action` is initialized, and SIG_IGN and SIG_DFL run no code of ours.
    let returned = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    returned == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_occupied_and_given_back() {
        let signal = libc::SIGRTMIN() + 3;
        assert_eq!(disposition(signal), Some(libc::SIG_DFL));
        let occupied = RealtimeSignalsOccupied::new();
        assert_eq!(disposition(signal), Some(libc::SIG_IGN));
        drop(occupied);
        assert_eq!(disposition(signal), Some(libc::SIG_DFL));
    }
}
