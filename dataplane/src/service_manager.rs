//! Tells the service manager the daemon's state (sd_notify(3)): ready, stopping, and that the workers still poll, which
//! feeds the manager's watchdog. Sends nothing if no service manager started the daemon. `daemon` runs it.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::worker::Published;

/// Interval of the checks where the manager asks for no shorter one.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Checks in a row after which the log says that a worker does not poll.
const REPORTED_AFTER_CHECKS: u32 = 3;

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

/// Reports what the daemon does, in words.
pub(crate) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
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
            let polls = progress.check(worker.value("worker", "rounds"));
            match polls {
                Polls::Yes => {}
                Polls::Not => all_poll = false,
                Polls::NotReported => {
                    all_poll = false;
                    tracing::error!(worker = index, "the worker does not poll: its connections stand still");
                }
                Polls::Again => tracing::info!(worker = index, "the worker polls again"),
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
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Poll iterations at the last check; `None` before the first one.
    rounds: Option<u64>,
    /// Checks in a row without an iteration.
    checks_without: u32,
}

impl Progress {
    /// Compares the number of poll iterations with that of the last check.
    fn check(&mut self, rounds: u64) -> Polls {
        let polls = self.rounds.replace(rounds) != Some(rounds);
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
        let checks = [0, 5, 9, 9, 9, 9, 9, 12, 13].map(|rounds| progress.check(rounds));
        use Polls::*;
        assert_eq!(checks, [Yes, Yes, Yes, Not, Not, NotReported, Not, Again, Yes]);
    }

    #[test]
    fn a_short_pause_is_not_reported() {
        let mut progress = Progress::default();
        let checks = [7, 7, 7, 8].map(|rounds| progress.check(rounds));
        assert_eq!(checks, [Polls::Yes, Polls::Not, Polls::Not, Polls::Yes]);
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_time() {
        assert_eq!(check_interval(None), Duration::from_secs(1));
        assert_eq!(check_interval(Some(Duration::from_secs(30))), Duration::from_secs(1));
        assert_eq!(check_interval(Some(Duration::from_secs(1))), Duration::from_millis(500));
        assert_eq!(check_interval(Some(Duration::ZERO)), Duration::from_millis(100));
    }
}
