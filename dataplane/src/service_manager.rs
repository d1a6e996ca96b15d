//! Tells the service manager the daemon's state (sd_notify(3)): starting, ready, stopping, and that the workers still
//! poll, which feeds the manager's watchdog. Sends nothing if no service manager started the daemon. `daemon` runs it.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::worker::{Published, ThreadState};

/// Interval of the checks where the manager asks for no shorter one.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Checks in a row after which the log says that a worker does not poll.
const REPORTED_AFTER_CHECKS: u32 = 3;

/// Interval of the messages of a start.
const START_INTERVAL: Duration = Duration::from_millis(250);
/// Time without such a message after which the manager may take the start for failed, if its own limit has passed.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Time that the end of the daemon may take after a drain.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Sends the manager a state. A manager that does not listen is not an error of the daemon.
fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("the service manager takes no notification: {error}");
    }
}

/// Reports that the daemon serves.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the daemon reads its configuration again; [`ready`] ends that. `Type=notify-reload` needs the time.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now, NotifyState::Status("reloading the configuration")]),
        Err(error) => tracing::debug!("no monotonic clock for the service manager: {error}"),
    }
}

/// Reports that the daemon goes down after a drain of at most `time`, which may be longer than the manager's limit.
pub(crate) fn draining(time: Duration) {
    send(&[NotifyState::Status("draining"), extension(time.saturating_add(END_LIMIT))]);
}

/// Returns the message that the current step may take `time` from now on, longer than the manager's own limit.
fn extension(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

/// The start of the daemon, which takes as long as its memory takes to be allocated. While it lives, a thread keeps the
/// manager from ending the start at the manager's own limit, as long as the start makes progress.
#[derive(Debug)]
pub(crate) struct Starting {
    /// Closed to end the thread.
    running: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Starting {
    /// Begins to report the progress of the calling thread, which is the one that starts the daemon. Called once it has
    /// given up its privileges, since the new thread inherits those that are left.
    pub(crate) fn begin() -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self { running: None, thread: None };
        }
        let (running, ended) = mpsc::channel();
        let stat = format!("/proc/self/task/{}/stat", rustix::thread::gettid().as_raw_nonzero());
        send(&[extension(START_LIMIT)]);
        let report = move || {
            let mut before = None;
            while ended.recv_timeout(START_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if progresses(&mut before, fs::read_to_string(&stat).ok().as_deref().and_then(ticks)) {
                    send(&[extension(START_LIMIT)]);
                }
            }
        };
        // Without the thread the manager's own limit holds.
        let thread = std::thread::Builder::new().name("start".to_owned()).spawn(report).ok();
        Self { running: Some(running), thread }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.running = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has sent no more messages.
            let _ = thread.join();
        }
    }
}

/// Returns true if a thread has run since the last call. One that waits for ever is the manager's to end.
fn progresses(before: &mut Option<u64>, now: Option<u64>) -> bool {
    let last = std::mem::replace(before, now);
    now.is_some() && now != last
}

/// Returns the CPU time of a thread in clock ticks, from its `stat` (proc_pid_stat(5)): user time, field 14, and that
/// of the kernel, which allocates the memory, field 15.
fn ticks(stat: &str) -> Option<u64> {
    // The name of the thread, field 2, may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    fields.next()?.ok()?.checked_add(fields.next()?.ok()?)
}

/// Reports that the daemon goes down.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Returns the interval of the checks: half of the watchdog's time, at most [`CHECK_INTERVAL`].
fn check_interval(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(CHECK_INTERVAL, |limit| (limit / 2).min(CHECK_INTERVAL).max(Duration::from_millis(100)))
}

/// Checks the workers for ever, and feeds the watchdog while all of them poll.
pub(crate) async fn watch_workers(workers: Vec<Arc<Published>>) {
    let mut interval = tokio::time::interval(check_interval(sd_notify::watchdog_enabled()));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut progress: Vec<Progress> = workers.iter().map(|_| Progress::default()).collect();
    loop {
        interval.tick().await;
        let mut all_poll = true;
        for (index, (worker, progress)) in workers.iter().zip(&mut progress).enumerate() {
            let polls = progress.check(worker.worker().iterations);
            let thread = worker.thread().and_then(ThreadState::read).unwrap_or_default();
            match polls {
                Polls::Yes => {}
                Polls::Not => all_poll = false,
                Polls::NotReported => {
                    all_poll = false;
                    let since = thread.since(&progress.polled);
                    tracing::error!(
                        worker = index,
                        "the worker does not poll: its connections stand still; {since}"
                    );
                }
                Polls::Again => {
                    let since = thread.since(&progress.polled);
                    tracing::info!(worker = index, "the worker polls again; {since}");
                }
            }
            if matches!(polls, Polls::Yes | Polls::Again) {
                progress.polled = thread;
            }
        }
        if all_poll {
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// Result of one check of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polls {
    /// It has polled since the last check.
    Yes,
    /// It has not, and that is to be reported now.
    NotReported,
    /// It has not, and that has been reported.
    Not,
    /// It has, after a report that it did not.
    Again,
}

/// Progress of one worker.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// Poll iterations at the last check; `None` before the first one.
    iterations: Option<u64>,
    /// Checks in a row without an iteration.
    checks_without: u32,
    /// The worker's thread when it was last seen to poll.
    polled: ThreadState,
}

impl Progress {
    /// Compares the number of poll iterations with that of the last check.
    fn check(&mut self, iterations: u64) -> Polls {
        let polls = self.iterations.replace(iterations) != Some(iterations);
        let was_reported = self.checks_without >= REPORTED_AFTER_CHECKS;
        self.checks_without = if polls { 0 } else { self.checks_without.saturating_add(1) };
        match (polls, was_reported) {
            (true, false) => Polls::Yes,
            (true, true) => Polls::Again,
            (false, _) if self.checks_without == REPORTED_AFTER_CHECKS => Polls::NotReported,
            (false, _) => Polls::Not,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stands_still_is_reported_once() {
        let mut progress = Progress::default();
        let checks = [0, 5, 9, 9, 9, 9, 9, 12, 13].map(|iterations| progress.check(iterations));
        use Polls::*;
        assert_eq!(checks, [Yes, Yes, Yes, Not, Not, NotReported, Not, Again, Yes]);
    }

    #[test]
    fn a_short_pause_is_not_reported() {
        let mut progress = Progress::default();
        let checks = [7, 7, 7, 8].map(|iterations| progress.check(iterations));
        assert_eq!(checks, [Polls::Yes, Polls::Not, Polls::Not, Polls::Yes]);
    }

    #[test]
    fn a_start_progresses_while_its_thread_runs() {
        let mut before = None;
        let checks =
            [Some(3), Some(3), Some(4), None, Some(4), Some(4)].map(|now| progresses(&mut before, now));
        assert_eq!(checks, [true, false, true, false, true, false]);
    }

    #[test]
    fn the_cpu_time_of_a_thread_is_read() {
        let line =
            "77 (a) b (c) R 1 1 1 0 -1 4194560 96 0 0 0 1500 23 7 9 20 0 2 0 1 1 1 18446744073709551615";
        assert_eq!(ticks(line), Some(1523));
        assert_eq!(ticks("77 (x) R 1 1"), None);
        let own = || ticks(&fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap();
        let before = own();
        while own() == before {}
    }

    #[test]
    fn a_limit_is_extended_in_microseconds() {
        assert_eq!(extension(Duration::from_secs(30)).to_string(), "EXTEND_TIMEOUT_USEC=30000000");
        assert_eq!(extension(Duration::from_secs(1 << 40)).to_string(), "EXTEND_TIMEOUT_USEC=4294967295");
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_time() {
        assert_eq!(check_interval(None), Duration::from_secs(1));
        assert_eq!(check_interval(Some(Duration::from_secs(30))), Duration::from_secs(1));
        assert_eq!(check_interval(Some(Duration::from_secs(1))), Duration::from_millis(500));
        assert_eq!(check_interval(Some(Duration::ZERO)), Duration::from_millis(100));
    }
}
