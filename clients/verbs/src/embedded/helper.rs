//! The helper thread of a device in this process. It runs the engine while no thread of the program does.

use std::os::fd::AsFd;
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
    let (mut pause, mut seen, mut ends_at) = (PAUSE_MIN, 0, None);
    loop {
        let closing = device.closing.load(Ordering::SeqCst);
        if closing && is_over(device, &mut ends_at) {
            return;
        }
        let drives = device.drives.load(Ordering::Relaxed);
        let driven = drives != seen || device.sleepers.load(Ordering::SeqCst) > 0;
        seen = drives;
        if driven && !closing {
            nap(device, pause);
            // The program's threads may sleep until a later one.
            if device.due_in() == Some(Duration::ZERO) {
                device.drive();
            }
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
            continue;
        }
        pause = PAUSE_MIN;
        let called = sleep(device, closing);
        let is_driven = device.drives.load(Ordering::Relaxed) != seen;
        if called || closing || !is_driven && device.sleepers.load(Ordering::SeqCst) == 0 {
            device.drive();
        }
    }
}

/// Returns true once the connections of a closed context have ended, or [`LINGER`] is over.
fn is_over(device: &Embedded, ends_at: &mut Option<Instant>) -> bool {
    let ends_at = *ends_at.get_or_insert_with(|| now() + LINGER);
    device.look(|core| core.connections()) == 0 || now() >= ends_at
}

/// Lets the program run the engine for a while, unless somebody calls.
fn nap(device: &Embedded, time: Duration) {
    let mut called = [false];
    // What fails is tried again.
    let _ = poll_with(&[], &mut called, (device.alarm.as_fd(), PollFlags::IN), time).map(|is_called| {
        if is_called {
            clear(device);
            device.drive();
        }
    });
}

/// Sleeps until the sockets have something, the engine is due, or somebody calls. Returns true in the latter two cases.
fn sleep(device: &Embedded, closing: bool) -> bool {
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
    let longest = if closing { PAUSE_MAX } else { SLEEP_MAX };
    let time = match deadline {
        NEVER => longest,
        at => Duration::from_nanos(at.saturating_sub(now().as_nanos())).min(longest),
    };
    let mut has_input = [false];
    let slept =
        poll_with(&[device.sockets.as_fd()], &mut has_input, (device.alarm.as_fd(), PollFlags::IN), time);
    device.wakes_at.store(0, Ordering::SeqCst);
    let called = slept.unwrap_or(false);
    if called {
        clear(device);
    }
    called || has_input == [false]
}

fn clear(device: &Embedded) {
    let _ = rustix::io::read(&device.alarm, &mut [0; 8]);
}
