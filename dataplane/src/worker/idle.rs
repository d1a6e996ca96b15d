//! Idle policy of a poll loop: how long a thread sleeps when there is nothing to do.

use std::time::Duration;

use iwarp_config::Idle;

/// Consecutive empty iterations before an adaptive worker sleeps for the first time.
const EMPTY_POLLS: u32 = 512;
/// Length of the first sleep; each further one is twice as long, up to the configured maximum.
const FIRST_SLEEP: Duration = Duration::from_micros(5);
/// Longest sleep of an adaptive worker that everything with work for it wakes.
const WOKEN_SLEEP_MAX: Duration = Duration::from_millis(10);

/// The reasons to end a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waking {
    /// Time until the next deadline; zero if there is immediate work.
    pub(super) rest: Duration,
    /// True if every frame, doorbell and command ends the sleep. Otherwise only its length bounds the time until the
    /// worker finds them.
    pub(super) by_all: bool,
}

/// Decides how long a thread sleeps, from the frames that the last iterations moved.
#[derive(Debug)]
pub(super) struct Idler {
    sleep_max: Option<Duration>,
    empty_polls: u32,
    sleep: Duration,
}

impl Idler {
    pub(super) fn new(idle: &Idle) -> Self {
        let sleep_max = match idle {
            Idle::Spin => None,
            Idle::Adaptive { sleep_us_max } => Some(Duration::from_micros(u64::from(*sleep_us_max))),
        };
        Self { sleep_max, empty_polls: 0, sleep: FIRST_SLEEP }
    }

    /// Returns the time to sleep after an iteration, or `None` to poll again at once. A sleep ends at the next deadline
    /// at the latest. It is at most as long as configured, or [`WOKEN_SLEEP_MAX`] if all that has work for the worker
    /// wakes it.
    #[inline]
    pub(super) fn after_poll(&mut self, moved: bool, waking: impl FnOnce() -> Waking) -> Option<Duration> {
        let sleep_max = self.sleep_max?;
        if moved {
            self.empty_polls = 0;
            self.sleep = FIRST_SLEEP;
            return None;
        }
        self.empty_polls = self.empty_polls.saturating_add(1);
        if self.empty_polls < EMPTY_POLLS {
            return None;
        }
        let Waking { rest, by_all } = waking();
        let sleep_max = if by_all { WOKEN_SLEEP_MAX.max(sleep_max) } else { sleep_max };
        let sleep = self.sleep.min(sleep_max);
        self.sleep = sleep.saturating_mul(2).min(sleep_max);
        Some(rest.min(sleep)).filter(|sleep| !sleep.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_time() -> Waking {
        Waking { rest: Duration::MAX, by_all: false }
    }

    fn woken_by_all() -> Waking {
        Waking { rest: Duration::MAX, by_all: true }
    }

    #[test]
    fn a_spinning_worker_never_sleeps() {
        let mut idler = Idler::new(&Idle::Spin);
        assert!((0..10_000).all(|_| idler.after_poll(false, woken_by_all).is_none()));
    }

    #[test]
    fn an_adaptive_worker_sleeps_longer_and_longer_up_to_its_bound_and_wakes_for_work() {
        let mut idler = Idler::new(&Idle::Adaptive { sleep_us_max: 30 });
        assert!((1..EMPTY_POLLS).all(|_| idler.after_poll(false, by_time).is_none()));
        let sleeps: Vec<_> = (0..5).map(|_| idler.after_poll(false, by_time).unwrap().as_micros()).collect();
        assert_eq!(sleeps, [5, 10, 20, 30, 30]);
        assert_eq!(idler.after_poll(true, by_time), None);
        assert_eq!(idler.after_poll(false, by_time), None);
    }

    #[test]
    fn a_worker_that_everything_wakes_sleeps_for_ten_milliseconds_in_the_end() {
        let mut idler = Idler::new(&Idle::Adaptive { sleep_us_max: 30 });
        assert!((1..EMPTY_POLLS).all(|_| idler.after_poll(false, woken_by_all).is_none()));
        let sleeps: Vec<_> =
            (0..13).map(|_| idler.after_poll(false, woken_by_all).unwrap().as_micros()).collect();
        assert_eq!(sleeps, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_000, 10_000]);
        let once_not = idler.after_poll(false, by_time).unwrap();
        assert_eq!(once_not.as_micros(), 30, "a frame might come that does not wake it");
        assert_eq!(idler.after_poll(false, woken_by_all).unwrap().as_micros(), 30);
    }

    #[test]
    fn a_deadline_cuts_the_sleep_short() {
        let mut idler = Idler::new(&Idle::Adaptive { sleep_us_max: 100 });
        for _ in 1..EMPTY_POLLS {
            idler.after_poll(false, by_time);
        }
        let two = Duration::from_micros(2);
        for by_all in [false, true] {
            assert_eq!(idler.after_poll(false, || Waking { rest: two, by_all }), Some(two));
            assert_eq!(idler.after_poll(false, || Waking { rest: Duration::ZERO, by_all }), None);
        }
    }
}
