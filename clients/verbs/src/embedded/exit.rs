//! The end of the process: what was sent still leaves, and connections close as they do when a context is dropped. The
//! kernel alone would reset those with unread bytes, and the peer would lose what it has not read.
//!
//! JUSTIFICATION: the C library calls a function when the process ends, and takes its address.
#![allow(unsafe_code, reason = "registers a function with the C library; listed in UNSAFE.md")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;

use tcp_stack::Instant;

use super::Embedded;
use super::core::now;
use crate::context::lock;

/// Longest time for which connections end while no peer takes or sends anything.
const LONGEST: Duration = Duration::from_millis(200);
/// Longest time for which they end at all.
const LIMIT: Duration = Duration::from_secs(2);
/// Time between two looks.
const PAUSE: Duration = Duration::from_micros(200);

/// Devices that are open, with the number of the process that has opened each.
static OPEN: Mutex<Vec<(u32, Weak<Embedded>)>> = Mutex::new(Vec::new());

/// Closes a device when the process ends, unless it is closed before.
pub(super) fn close_at_exit(device: &Arc<Embedded>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function is part of this library, which stays loaded: it has a thread. What fails is not
        // registered.
        let _ = unsafe { libc::atexit(close_all) };
    });
    let mut open = lock(&OPEN);
    open.retain(|(_, device)| device.strong_count() > 0);
    open.push((std::process::id(), Arc::downgrade(device)));
}

/// True once the process ends.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns true once the process ends, and a device in it closes.
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Returns the devices that this process has opened; none if another thread changes them at the moment.
pub(super) fn open_devices() -> Vec<Arc<Embedded>> {
    let Ok(open) = OPEN.try_lock() else { return Vec::new() };
    let own = open.iter().filter(|(process, _)| *process == std::process::id());
    own.filter_map(|(_, device)| device.upgrade()).collect()
}

#[allow(clippy::disallowed_methods, reason = "the process ends: nothing else is left to do")]
extern "C" fn close_all() {
    // A thread that the end has stopped may have the lock, or a child may have been forked meanwhile.
    let Ok(mut open) = OPEN.try_lock() else { return };
    let devices: Vec<_> = open
        .drain(..)
        .filter(|(process, _)| *process == std::process::id())
        .filter_map(|(_, device)| device.upgrade())
        .collect();
    drop(open);
    EXITING.store(true, Ordering::SeqCst);
    let began = now();
    // All of them, before the peers of one are waited for.
    for device in &devices {
        if let Ok(mut core) = device.core.try_lock() {
            device.run_core(&mut core, true);
        }
    }
    for device in &devices {
        end(device, began);
        device.leave_to_helper();
    }
}

/// Closes the connections of a device once the last posts of the program are finished. Returns when they have ended, or
/// nothing has come from a peer, or been taken, for [`LONGEST`]. Connections with work that is not finished then end
/// with the process: the kernel sends what has completed, where a reset would discard it.
#[allow(clippy::disallowed_methods, reason = "the process ends: nothing else is left to do")]
fn end(device: &Embedded, began: Instant) {
    let (mut is_stopped, mut is_closed) = (false, false);
    let (mut ends_at, mut events) = (began + LONGEST, 0);
    while now() < ends_at {
        // A handler of a signal may have ended the process on a thread that has the lock.
        if let Ok(mut core) = device.core.try_lock() {
            device.run_core(&mut core, true);
            if std::mem::replace(&mut events, core.events_found()) != core.events_found() {
                ends_at = (now() + LONGEST).min(began + LIMIT);
            }
            if !std::mem::replace(&mut is_stopped, true) {
                // Other threads go on.
                core.stop_posts();
                device.run_core(&mut core, true);
            }
            if !is_closed && !core.has_unfinished_work() {
                is_closed = true;
                core.close();
                device.run_core(&mut core, true);
            }
            if is_closed && core.connections() == 0 {
                break;
            }
        }
        std::thread::sleep(PAUSE);
    }
}
