//! A child of the process has copies of its sockets. It gives them up: a peer would not notice that the parent has
//! ended, and a port would stay taken, for as long as the child lives.
//!
//! JUSTIFICATION: the C library calls functions when the process forks, and a lock is held from one to the next.
#![allow(unsafe_code, reason = "registers functions with the C library; listed in UNSAFE.md")]

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard, Once};
use std::time::Duration;

use super::Embedded;
use super::core::{Core, now};
use super::exit::open_devices;

/// Longest wait for a device that another thread runs. A thread whose handler of a signal forks may run it itself: the
/// child then keeps the sockets.
const LONGEST: Duration = Duration::from_millis(20);

/// A device that no other thread runs until the value is dropped.
struct Locked {
    /// Dropped before the device.
    core: MutexGuard<'static, Core>,
    _device: Arc<Embedded>,
}

thread_local! {
    /// Devices that this thread has locked to fork.
    static LOCKED: RefCell<Vec<Locked>> = const { RefCell::new(Vec::new()) };
}

/// Has children of the process give up sockets from here on.
pub(super) fn give_up_in_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions are part of this library, which stays loaded. What fails is not registered.
        let _ = unsafe { libc::pthread_atfork(Some(prepare), Some(go_on), Some(give_up)) };
    });
}

extern "C" fn prepare() {
    let until = now() + LONGEST;
    let locked = open_devices().into_iter().filter_map(|device| {
        let core = loop {
            match device.core.try_lock() {
                Ok(core) => break core,
                Err(_) if now() >= until => return None,
                Err(_) => std::hint::spin_loop(),
            }
        };
        // SAFETY: the device is kept beside the guard, which is dropped first: the lock lives as long as the guard.
        let core = unsafe { std::mem::transmute::<MutexGuard<'_, Core>, MutexGuard<'static, Core>>(core) };
        Some(Locked { core, _device: device })
    });
    let locked = locked.collect();
    // A thread that is ending has no place for them: the child keeps the sockets.
    let _ = LOCKED.try_with(|all| all.try_borrow_mut().map(|mut all| *all = locked));
}

extern "C" fn go_on() {
    let _ = LOCKED.try_with(|all| all.try_borrow_mut().map(|mut all| all.clear()));
}

extern "C" fn give_up() {
    let _ = LOCKED.try_with(|all| {
        all.try_borrow_mut().map(|mut all| {
            all.iter_mut().for_each(|locked| locked.core.give_up_sockets());
            all.clear();
        })
    });
}
