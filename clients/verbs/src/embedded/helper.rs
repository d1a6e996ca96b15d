//! The helper thread of a device in this process. It runs the engine while no thread of the program does.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::PollFlags;
use tcp_stack::Instant;

use super::core::now;
use super::{Embedded, NEVER};
use crate::backend::poll_with;
use crate::error::Error;
use crate::exchange::OwnThread;

/// Shortest and longest time after which it looks if the program still runs the engine.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(16);
/// Longest sleep without a deadline of the engine.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Longest time for which connections of a closed context may end.
const LINGER: Duration = Duration::from_secs(30);

/// Starts the thread. It has a handle of the device until the context is closed and its connections have ended.
pub(super) fn start(device: &Arc<Embedded>) -> Result<(), Error> {
    let device = Arc::clone(device);
    let run = move || {
        let _own = OwnThread::enter();
        help(&device);
    };
    let failed = |cause| Error::System { call: "clone", cause };
    std::thread::Builder::new().name("iwarp-device".to_owned()).spawn(run).map(drop).map_err(failed)
}

fn help(device: &Embedded) {
    let (mut pause, mut seen, mut ends_at) = (PAUSE_MIN, device.activity(), None);
    loop {
        let closing = device.closing.load(Ordering::SeqCst);
        if closing && is_over(device, &mut ends_at) {
            return;
        }
        let activity = device.activity();
        let is_active = std::mem::replace(&mut seen, activity) != activity;
        if is_active && !closing {
            // The program runs the engine.
            if sleep(device, &[], pause) {
                device.with(|_| ());
            }
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
            continue;
        }
        pause = PAUSE_MIN;
        if device.sleepers.load(Ordering::SeqCst) > 0 && !closing {
            sleep_long(device);
            continue;
        }
        let is_due = sleep(device, &[device.sockets.as_fd()], if closing { PAUSE_MAX } else { SLEEP_MAX });
        let is_idle = device.activity() == seen && device.sleepers.load(Ordering::SeqCst) == 0;
        if is_due || is_idle || closing {
            device.with(|_| ());
        }
    }
}

/// Sleeps while a thread of the program sleeps for the engine. The thread calls when it wakes.
fn sleep_long(device: &Embedded) {
    device.calls_helper.store(true, Ordering::SeqCst);
    if device.sleepers.load(Ordering::SeqCst) > 0 && sleep(device, &[], SLEEP_MAX) {
        device.with(|_| ());
    }
    device.calls_helper.store(false, Ordering::SeqCst);
}

/// Returns true once the connections of a closed context have ended, or [`LINGER`] is over.
fn is_over(device: &Embedded, ends_at: &mut Option<Instant>) -> bool {
    let ends_at = *ends_at.get_or_insert_with(|| now() + LINGER);
    device.look(|core| core.connections()) == 0 || now() >= ends_at
}

/// Sleeps until one of the descriptors is readable, the engine is due, or somebody calls; or for this time at most.
/// Returns true if somebody has called, or the engine is due.
fn sleep(device: &Embedded, fds: &[BorrowedFd<'_>], longest: Duration) -> bool {
    // Announced before the deadline is read for the last time: a thread that sets an earlier one later calls.
    let mut deadline = device.deadline.load(Ordering::SeqCst);
    loop {
        device.wakes_at.store(deadline, Ordering::SeqCst);
        let latest = device.deadline.load(Ordering::SeqCst);
        if latest >= deadline {
            break;
        }
        deadline = latest;
    }
    let time = match deadline {
        NEVER => longest,
        at => Duration::from_nanos(at.saturating_sub(now().as_nanos())).min(longest),
    };
    let mut ready = [false];
    let alarm = (device.alarm.as_fd(), PollFlags::IN);
    // A signal ends the sleep early: everything is looked at again.
    let called = poll_with(fds, &mut ready, alarm, time).unwrap_or(false);
    device.wakes_at.store(0, Ordering::SeqCst);
    if called {
        let _ = rustix::io::read(&device.alarm, &mut [0; 8]);
    }
    called || device.due_in() == Some(Duration::ZERO)
}
