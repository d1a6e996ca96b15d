//! Idle policy of a poll loop: how long a thread sleeps when there is nothing to do.

use std::time::Duration;

use iwarp_config::Idle;

/// Consecutive empty iterations before an adaptive worker sleeps for the first time.
const EMPTY_POLLS: u32 = 512;
/// Length of the first sleep; each further one is twice as long, up to the configured maximum.
const FIRST_SLEEP: Duration = Duration::from_micros(5);

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

    /// Returns the time to sleep after an iteration, or `None` to poll again at once. The sleep is never longer than
    /// `rest`, the time until the next deadline.
    #[inline]
    pub(super) fn after_poll(&mut self, moved: bool, rest: impl FnOnce() -> Duration) -> Option<Duration> {
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
        let sleep = self.sleep.min(sleep_max);
        self.sleep = self.sleep.saturating_mul(2).min(sleep_max);
        Some(rest().min(sleep)).filter(|sleep| !sleep.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spinning_worker_never_sleeps() {
        let mut idler = Idler::new(&Idle::Spin);
        assert!((0..10_000).all(|_| idler.after_poll(false, || Duration::MAX).is_none()));
    }

    #[test]
    fn an_adaptive_worker_sleeps_longer_and_longer_up_to_its_bound_and_wakes_for_work() {
        let mut idler = Idler::new(&Idle::Adaptive { sleep_us_max: 30 });
        let forever = || Duration::MAX;
        assert!((1..EMPTY_POLLS).all(|_| idler.after_poll(false, forever).is_none()));
        let sleeps: Vec<_> = (0..5).map(|_| idler.after_poll(false, forever).unwrap().as_micros()).collect();
        assert_eq!(sleeps, [5, 10, 20, 30, 30]);
        assert_eq!(idler.after_poll(true, forever), None);
        assert_eq!(idler.after_poll(false, forever), None);
    }

    #[test]
    fn a_deadline_cuts_the_sleep_short() {
        let mut idler = Idler::new(&Idle::Adaptive { sleep_us_max: 100 });
        for _ in 1..EMPTY_POLLS {
            idler.after_poll(false, || Duration::MAX);
        }
        let two = Duration::from_micros(2);
        assert_eq!(idler.after_poll(false, || two), Some(two));
        assert_eq!(idler.after_poll(false, || Duration::ZERO), None);
    }
}
