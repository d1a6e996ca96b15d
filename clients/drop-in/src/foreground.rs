//! Blocking calls of a program whose device is inside the process. The calling thread runs the device while it sleeps,
//! and hands on what comes: what it waits for costs one wake-up instead of two.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::context::{Shared, lock};
use crate::raw::{end_if_canceled, restarts_calls};
use crate::sleepers::Limit;

/// Longest sleep at once. A thread that is canceled meanwhile ends after it.
const SLEEP: Duration = Duration::from_millis(100);

/// The connection to the device inside this process, once it is open.
static DEVICE: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// End of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The descriptor is readable.
    Readable,
    /// This thread has handed something on, which may be what it waits for.
    Dispatched,
}

/// Has blocking calls run this device from here on.
pub(crate) fn begin(shared: &Arc<Shared>) {
    *lock(&DEVICE) = Arc::downgrade(shared);
}

/// Sleeps until a descriptor of the library is readable, as the caller's `read` would; `None` without a device inside
/// this process.
///
/// # Errors
/// EAGAIN once the time is over. EINTR after a signal, if the program has a handler that does not restart calls
/// (`signal(7)`).
#[allow(clippy::disallowed_methods, reason = "a wait with a time limit reads the clock")]
pub(crate) fn sleep(descriptor: BorrowedFd<'_>, limit: Limit) -> Option<Result<Woken, libc::c_int>> {
    loop {
        end_if_canceled();
        let shared = lock(&DEVICE).upgrade()?;
        if shared.context.has_news() {
            shared.hand_on();
            if shared.context.has_news() {
                // Another thread distributes: this one waits for it.
                shared.dispatch();
            }
            return Some(Ok(Woken::Dispatched));
        }
        let (began, time) = (Instant::now(), limit.left().unwrap_or(SLEEP).min(SLEEP));
        // Fails in a child of the process, which has no device, or for want of memory.
        let ready = shared.context.wait_for(descriptor, time).ok()?;
        if ready.context {
            shared.dispatch();
            if !lock(&shared.unplaced).is_empty() {
                shared.context.wake_helper();
            }
        }
        drop(shared);
        if ready.descriptor {
            return Some(Ok(Woken::Readable));
        }
        if ready.context {
            return Some(Ok(Woken::Dispatched));
        }
        if limit.left() == Some(Duration::ZERO) {
            return Some(Err(libc::EAGAIN));
        }
        // A sleep that has ended early was ended by a signal.
        if began.elapsed() < time && !restarts_calls() {
            return Some(Err(libc::EINTR));
        }
    }
}
