//! The helper of a device in this process: the thread that runs the engine while no thread of the program does. It is a
//! thread of the device, or one of the library above it, which handles the device's events, too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tcp_stack::Instant;

use super::core::now;
use super::{Embedded, NEVER};
use crate::backend::poll_with;
use crate::error::Error;
use crate::exchange::OwnThread;
use crate::threads::start_thread;

/// Shortest and longest time after which a thread looks if the program still runs the engine.
pub(super) const PAUSE_MIN: Duration = Duration::from_micros(20);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(1);
/// Time after which a thread looks at descriptors that another one may have left, or at connections that end.
const LEFT_MAX: Duration = Duration::from_millis(16);
/// Times in a row without anything to do from which on the helper leaves the sockets to the program.
const VAIN_MAX: u32 = 3;
/// Time after which a thread that hands events on, and has not slept anew, is taken to have left.
const OWNER_MAX: Duration = Duration::from_millis(900);
/// Longest time for which a sleep for the sockets begins with looks at them. It does after one that was as short, if no
/// other thread of the process runs: peers that wait for answers send again soon, and to wake a thread takes longer.
const SPIN_MAX: Duration = Duration::from_micros(50);
/// Time between two looks at how much the other threads run. The kernel counts that per tick.
const OTHERS_AGE: Duration = Duration::from_millis(20);
/// Longest sleep without a deadline of the engine.
const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// Longest time for which connections of a closed context may end.
const LINGER: Duration = Duration::from_secs(30);

/// View that the helper has of the program.
#[derive(Debug)]
pub(super) struct Helping {
    /// Time until the next look, while the program runs the engine.
    pause: Duration,
    /// Times in a row that the program has taken what had woken the helper, or was about to.
    vain: u32,
    /// Activity of the program, ends of sleeps that hand events on, and runs of the engine, at the last look.
    activity: u64,
    dispatches: u64,
    runs: u32,
    /// True if nothing has ended its last sleep before its time.
    has_slept: bool,
    /// True if the sockets have ended its last sleep for them at once.
    spins: bool,
    others: Others,
}

/// The other threads of the process. A program that spins on memory calls nothing, and shall have its CPU.
#[derive(Debug)]
struct Others {
    /// Time that they have run, at the last look, and the time of that.
    ran: Duration,
    looked_at: Instant,
    /// True if they ran for more than a quarter of the time before the last look.
    are_busy: bool,
}

impl Others {
    /// Returns true if they were busy lately.
    fn are_busy(&mut self, now: Instant) -> bool {
        let time = now.saturating_since(self.looked_at);
        if time >= OTHERS_AGE {
            let of = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
            let ran = of(ClockId::ProcessCPUTime).saturating_sub(of(ClockId::ThreadCPUTime));
            self.are_busy = ran.saturating_sub(self.ran) > time / 4;
            (self.ran, self.looked_at) = (ran, now);
        }
        self.are_busy
    }
}

impl Default for Helping {
    fn default() -> Self {
        let others = Others { ran: Duration::ZERO, looked_at: Instant::ZERO, are_busy: true };
        let (activity, dispatches, runs) = (0, 0, 0);
        Self { pause: PAUSE_MIN, vain: 0, activity, dispatches, runs, has_slept: false, spins: false, others }
    }
}

/// Starts a thread of the device. It has a handle of the device until the context is closed and its connections have
/// ended.
pub(super) fn start(device: Arc<Embedded>) -> Result<(), Error> {
    let run = move || {
        let _own = OwnThread::enter();
        super::faults::unblock();
        help(&device);
    };
    let failed = |cause| Error::System { call: "clone", cause };
    start_thread("iwarp-device", run).map_err(failed)
}

fn help(device: &Embedded) {
    let (mut helping, mut ends_at) = (Helping::default(), None);
    loop {
        let is_closing = device.closing.load(Ordering::SeqCst);
        if is_closing && is_over(device, &mut ends_at) {
            return;
        }
        // Fails only for want of memory, of which it needs a few bytes.
        if turn(device, &mut helping, (&[], &mut []), SLEEP_MAX).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Sleeps as [`Backend::sleep`](crate::backend::Backend::sleep), as the helper.
pub(super) fn help_until(
    device: &Embedded,
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    time: Duration,
) -> Result<(), Errno> {
    let Ok(mut helping) = device.helping.try_lock() else {
        // Another thread helps.
        return poll_with(fds, ready, (device.alarm.as_fd(), PollFlags::empty()), time).map(drop);
    };
    let began = now();
    loop {
        let left = time.saturating_sub(now().saturating_since(began));
        let has_news = turn(device, &mut helping, (fds, ready), left)?;
        if has_news || left.is_zero() || device.asks_helper.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
    }
}

/// Sleeps once, and runs the engine if no thread of the program does. Returns true if one of the descriptors is
/// readable, or its bell has rung without it, and no other thread hands on what that tells of.
fn turn(
    device: &Embedded,
    helping: &mut Helping,
    (mut fds, ready): (&[BorrowedFd<'_>], &mut [bool]),
    longest: Duration,
) -> Result<bool, Errno> {
    ready.fill(false);
    let dispatches = device.dispatches.load(Ordering::SeqCst);
    let has_dispatcher = device.has_dispatcher.load(Ordering::SeqCst);
    if std::mem::replace(&mut helping.dispatches, dispatches) != dispatches || has_dispatcher {
        fds = &[];
    }
    let leaves_events = fds.is_empty() && !ready.is_empty();
    let (ready, _) = ready.split_at_mut(fds.len());
    help_once(device, helping, (fds, &mut *ready), leaves_events, longest)?;
    Ok(ready.contains(&true) || !fds.is_empty() && device.has_news())
}

/// Sleeps once, until there is something to do, one of the descriptors is readable, or the time is over, and runs the
/// engine if no thread of the program does.
fn help_once(
    device: &Embedded,
    helping: &mut Helping,
    (fds, ready): (&[BorrowedFd<'_>], &mut [bool]),
    leaves_events: bool,
    longest: Duration,
) -> Result<(), Errno> {
    let fds = (fds, ready);
    let is_closing = device.closing.load(Ordering::SeqCst);
    let longest = device.held.mind(helping.has_slept).map_or(longest, |pause| pause.min(longest));
    let activity = device.activity();
    let is_active = std::mem::replace(&mut helping.activity, activity) != activity;
    let is_vain = helping.vain >= VAIN_MAX;
    if is_vain {
        helping.vain = 0;
    }
    if (is_active || is_vain) && !is_closing {
        let longest = longest.min(helping.pause);
        let woken = sleep(device, helping, fds, None, longest)?;
        if device.held.is_left(&mut helping.runs) || woken == Woken::Due {
            device.run_once();
        }
        helping.pause = helping.pause.saturating_mul(2).min(PAUSE_MAX);
        return Ok(());
    }
    if device.has_owner.load(Ordering::SeqCst) && !is_closing {
        return sleep_long(device, helping, fds, longest);
    }
    // A thread that hands events on may have left: its descriptors are looked at soon.
    let longest = if is_closing || leaves_events { longest.min(LEFT_MAX) } else { longest };
    let woken = sleep(device, helping, fds, Some(device.sockets.as_fd()), longest)?;
    if device.held.is_left(&mut helping.runs) || woken == Woken::Due || is_closing {
        device.run_once();
    } else if woken == Woken::Input
        && device.activity() == activity
        && !device.has_owner.load(Ordering::SeqCst)
    {
        // A thread that runs the engine meanwhile runs it once more.
        if device.ring(true) {
            (helping.pause, helping.vain) = (PAUSE_MIN, 0);
        } else {
            helping.vain = helping.vain.saturating_add(1);
        }
    }
    Ok(())
}

/// Sleeps while a thread of the program sleeps for the sockets. That thread calls when it wakes.
fn sleep_long(
    device: &Embedded,
    helping: &mut Helping,
    fds: (&[BorrowedFd<'_>], &mut [bool]),
    longest: Duration,
) -> Result<(), Errno> {
    device.calls_helper.store(true, Ordering::SeqCst);
    let (sleeps, began) = (device.sleeps.load(Ordering::SeqCst), now());
    let has_owner = device.has_owner.load(Ordering::SeqCst);
    let woken = if has_owner { sleep(device, helping, fds, None, longest) } else { Ok(Woken::Time) };
    device.calls_helper.store(false, Ordering::SeqCst);
    // A thread that hands events on sleeps for a tenth of this at most. A handler of a signal has made it leave.
    let is_over =
        now().saturating_since(began) >= OWNER_MAX && device.sleeps.load(Ordering::SeqCst) == sleeps;
    if is_over && device.has_dispatcher.load(Ordering::SeqCst) {
        device.has_dispatcher.store(false, Ordering::SeqCst);
        device.has_owner.store(false, Ordering::SeqCst);
    }
    if device.held.is_left(&mut helping.runs) || woken? == Woken::Due {
        device.run_once();
    }
    Ok(())
}

/// Returns true once the connections of a closed context have ended, or [`LINGER`] is over.
fn is_over(device: &Embedded, ends_at: &mut Option<Instant>) -> bool {
    let ends_at = *ends_at.get_or_insert_with(|| now() + LINGER);
    device.look(|core| core.connections()) == 0 || now() >= ends_at
}

/// End of a sleep of the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// Somebody has called, or the engine is due.
    Due,
    /// The sockets have something for the engine.
    Input,
    /// The time is over, another descriptor is readable, or a signal has come.
    Time,
}

/// Sleeps until one of the descriptors is readable, the sockets have something, the engine is due, or somebody calls;
/// or for this time at most.
fn sleep(
    device: &Embedded,
    helping: &mut Helping,
    (fds, ready): (&[BorrowedFd<'_>], &mut [bool]),
    sockets: Option<BorrowedFd<'_>>,
    longest: Duration,
) -> Result<Woken, Errno> {
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
    let mut all = Vec::with_capacity(fds.len().saturating_add(1));
    all.extend(fds.iter().copied().chain(sockets));
    let mut readable = vec![false; all.len()];
    let alarm = (device.alarm.as_fd(), PollFlags::IN);
    let listening = device.listen(!fds.is_empty());
    let polled = look(helping, (&all, &mut readable), alarm, (sockets.is_some(), time));
    drop(listening);
    let called = match polled {
        // A signal ends the sleep early: everything is looked at again.
        Err(Errno::INTR) => false,
        polled => polled?,
    };
    helping.has_slept = !called && !readable.contains(&true);
    device.wakes_at.store(0, Ordering::SeqCst);
    let (of_caller, of_sockets) = readable.split_at(fds.len());
    ready.copy_from_slice(of_caller);
    if called {
        let _ = rustix::io::read(&device.alarm, &mut [0; 8]);
    }
    Ok(if called || device.due_in() == Some(Duration::ZERO) {
        Woken::Due
    } else if of_sockets.contains(&true) {
        Woken::Input
    } else {
        Woken::Time
    })
}

/// Waits as [`poll_with`]. If the sockets have ended the last wait for them at once, looks at them first.
fn look(
    helping: &mut Helping,
    (fds, readable): (&[BorrowedFd<'_>], &mut [bool]),
    alarm: (BorrowedFd<'_>, PollFlags),
    (for_sockets, time): (bool, Duration),
) -> Result<bool, Errno> {
    let (began, mut spun) = (now(), Duration::ZERO);
    loop {
        let is_look = for_sockets && helping.spins && spun < SPIN_MAX.min(time);
        let time = if is_look { Duration::ZERO } else { time.saturating_sub(spun) };
        let polled = poll_with(fds, readable, alarm, time);
        spun = now().saturating_since(began);
        if !is_look || polled != Ok(false) || readable.contains(&true) {
            if for_sockets {
                let was_short = readable.last() == Some(&true) && spun < SPIN_MAX;
                helping.spins = was_short && !helping.others.are_busy(now());
            }
            return polled;
        }
    }
}
