//! Idle policy of a poll loop: how long a thread spins, and then sleeps, when there is nothing to do.
//!
//! A thread that everything with work for it wakes spins before it sleeps for no longer than a wake-up takes: the two
//! together cost at most twice as much as the better choice alone. Each spin that ends in a sleep halves the next one,
//! and each that work ends doubles it. Programs on the same core get their turn meanwhile. Other threads sleep by the
//! clock, a little longer each time.

use std::time::Duration;

use iwarp_config::Idle;
use tcp_stack::Instant;

/// Consecutive empty iterations before a thread sleeps by the clock for the first time.
const EMPTY_POLLS: u32 = 512;
/// Length of its first sleep; each further one is twice as long, up to the configured maximum.
const FIRST_SLEEP: Duration = Duration::from_micros(5);
/// Longest sleep of a worker that everything with work for it wakes.
const WOKEN_SLEEP_MAX: Duration = Duration::from_millis(10);
/// Empty iterations of a spin before the thread lets others have its CPU.
const POLLS_PER_YIELD: u32 = 8;
/// A spin that is shorter is none.
const SPIN_MIN: Duration = Duration::from_micros(1);
/// Sleeps without a spin before one is tried again.
const SLEEPS_PER_TRIAL: u32 = 64;

/// The reasons to end a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waking {
    /// Time until the next deadline; zero if there is immediate work.
    pub(super) rest: Duration,
    /// True if every frame, and every doorbell and command if there are any, ends the sleep. Otherwise only its length
    /// bounds the time until the thread finds them.
    pub(super) by_all: bool,
    /// True if nothing else can have work for the thread.
    pub(super) by_nothing_else: bool,
}

/// Decides how long a thread spins and sleeps, from the frames that the last iterations moved.
#[derive(Debug)]
pub(super) struct Idler {
    sleep_max: Option<Duration>,
    spin: Spin,
    empty_polls: u32,
    sleep: Duration,
}

/// The spin before a sleep.
#[derive(Debug)]
struct Spin {
    /// Configured bound.
    max: Duration,
    /// Time that a wake-up takes, measured lately.
    wake_up: Duration,
    length: Duration,
    /// Time of the first iteration without work; `None` while there is work.
    since: Option<Instant>,
    /// True if the thread has slept since there was work.
    has_slept: bool,
    /// Sleeps since the last spin.
    sleeps: u32,
    /// Spins that work ended.
    paid: u64,
}

impl Idler {
    pub(super) fn new(idle: &Idle) -> Self {
        let micros = |micros: u32| Duration::from_micros(u64::from(micros));
        let (sleep_max, spin_max) = match *idle {
            Idle::Spin => (None, Duration::ZERO),
            Idle::Adaptive { sleep_us_max, spin_us_max } => (Some(micros(sleep_us_max)), micros(spin_us_max)),
        };
        Self { sleep_max, spin: Spin::new(spin_max), empty_polls: 0, sleep: FIRST_SLEEP }
    }

    /// Returns the time to sleep after an iteration, or `None` to poll again at once. A sleep ends at the next deadline
    /// at the latest. It is at most as long as configured, or [`WOKEN_SLEEP_MAX`] if all that has work for the worker
    /// wakes it.
    #[inline]
    pub(super) fn after_poll(
        &mut self,
        now: Instant,
        moved: bool,
        waking: impl FnOnce() -> Waking,
    ) -> Option<Duration> {
        let sleep_max = self.sleep_max?;
        if moved {
            self.empty_polls = 0;
            self.sleep = FIRST_SLEEP;
            self.spin.worked();
            return None;
        }
        self.empty_polls = self.empty_polls.saturating_add(1);
        if self.spin.goes_on(now) {
            if self.empty_polls.is_multiple_of(POLLS_PER_YIELD) {
                // The program whose answer the spin is for may wait for this very CPU.
                rustix::thread::sched_yield();
            }
            return None;
        }
        let Waking { rest, by_all, by_nothing_else } = waking();
        if !by_all && self.empty_polls < EMPTY_POLLS || rest.is_zero() {
            return None;
        }
        if by_all {
            self.spin.slept();
            let longest = if by_nothing_else { WOKEN_SLEEP_MAX.max(sleep_max) } else { sleep_max };
            return Some(rest.min(longest));
        }
        let sleep = self.sleep.min(sleep_max);
        self.sleep = sleep.saturating_mul(2).min(sleep_max);
        Some(rest.min(sleep))
    }

    /// Returns the number of spins that work ended.
    pub(super) fn spins_paid(&self) -> u64 {
        self.spin.paid
    }

    /// Notes that a sleep ended this much later than asked for.
    pub(super) fn woke_late(&mut self, late: Duration) {
        let wake_up = &mut self.spin.wake_up;
        *wake_up = wake_up.saturating_mul(7).saturating_add(late) / 8;
    }
}

impl Spin {
    fn new(max: Duration) -> Self {
        Self { max, wake_up: max, length: max, since: None, has_slept: false, sleeps: 0, paid: 0 }
    }

    /// Notes that an iteration had work: a spin that was on has paid.
    #[inline]
    fn worked(&mut self) {
        if self.since.take().is_some() && !self.has_slept && !self.length.is_zero() {
            self.length = self.length.saturating_mul(2).min(self.bound());
            self.paid = self.paid.wrapping_add(1);
        }
        self.has_slept = false;
    }

    /// Returns true if an iteration without work is part of a spin.
    #[inline]
    fn goes_on(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        !self.has_slept && now.saturating_since(since) < self.length
    }

    /// Notes that the thread sleeps: a spin was in vain.
    fn slept(&mut self) {
        if std::mem::replace(&mut self.has_slept, true) {
            return;
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        self.length /= 2;
        if self.length < SPIN_MIN {
            let is_trial = self.sleeps.is_multiple_of(SLEEPS_PER_TRIAL);
            self.length = if is_trial { self.bound() } else { Duration::ZERO };
        }
    }

    fn bound(&self) -> Duration {
        self.max.min(self.wake_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_TIME: Waking = Waking { rest: Duration::MAX, by_all: false, by_nothing_else: false };
    const WOKEN: Waking = Waking { rest: Duration::MAX, by_all: true, by_nothing_else: true };

    fn adaptive(sleep_us_max: u32, spin_us_max: u32) -> Idler {
        Idler::new(&Idle::Adaptive { sleep_us_max, spin_us_max })
    }

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// Returns the microseconds for which an idler spins from a time on, and the sleep that follows.
    fn spin(idler: &mut Idler, from: u64) -> (u64, Duration) {
        (0..1000)
            .find_map(|spun| idler.after_poll(at(from + spun), false, || WOKEN).map(|sleep| (spun, sleep)))
            .unwrap()
    }

    #[test]
    fn a_spinning_worker_never_sleeps() {
        let mut idler = Idler::new(&Idle::Spin);
        assert!((0..10_000).all(|micros| idler.after_poll(at(micros), false, || WOKEN).is_none()));
    }

    #[test]
    fn a_worker_that_sleeps_by_the_clock_does_so_longer_and_longer_up_to_its_bound() {
        let mut idler = adaptive(30, 50);
        let now = at(1000);
        assert!((1..EMPTY_POLLS).all(|_| idler.after_poll(now, false, || BY_TIME).is_none()));
        let now = at(2000);
        let sleeps: Vec<_> =
            (0..5).map(|_| idler.after_poll(now, false, || BY_TIME).unwrap().as_micros()).collect();
        assert_eq!(sleeps, [5, 10, 20, 30, 30]);
        assert_eq!(idler.after_poll(now, true, || BY_TIME), None);
        assert_eq!(idler.after_poll(at(3000), false, || BY_TIME), None);
    }

    #[test]
    fn a_worker_that_everything_wakes_spins_for_a_while_and_sleeps_for_ten_milliseconds() {
        let mut idler = adaptive(30, 50);
        assert_eq!(spin(&mut idler, 0), (50, WOKEN_SLEEP_MAX));
        // Nothing came: no second spin.
        assert_eq!(spin(&mut idler, 100), (0, WOKEN_SLEEP_MAX));
        let else_too = Waking { by_nothing_else: false, ..WOKEN };
        assert_eq!(idler.after_poll(at(200), false, || else_too).unwrap().as_micros(), 30);
    }

    #[test]
    fn spins_in_vain_get_shorter_and_those_that_pay_longer() {
        let mut idler = adaptive(30, 48);
        let mut now = 0;
        let mut round = |idler: &mut Idler| {
            now += 1000;
            let (spun, _) = spin(idler, now);
            idler.after_poll(at(now + 500), true, || WOKEN);
            spun
        };
        let spins: Vec<_> = (0..8).map(|_| round(&mut idler)).collect();
        assert_eq!(spins, [48, 24, 12, 6, 3, 2, 0, 0], "microseconds, rounded up");
        let trial = (0..SLEEPS_PER_TRIAL).map(|_| round(&mut idler)).filter(|spun| *spun > 0);
        assert_eq!(trial.take(2).collect::<Vec<_>>(), [48, 24]);
        // Work comes 3 µs after the last one, again and again.
        let mut idler = adaptive(30, 48);
        spin(&mut idler, 0);
        spin(&mut idler, 1);
        idler.after_poll(at(100), true, || WOKEN);
        spin(&mut idler, 200);
        idler.after_poll(at(300), true, || WOKEN);
        for round in 0..3 {
            let from = 1000 * (round + 1);
            assert!((0..3).all(|micros| idler.after_poll(at(from + micros), false, || WOKEN).is_none()));
            idler.after_poll(at(from + 3), true, || WOKEN);
        }
        assert_eq!(spin(&mut idler, 9000).0, 48);
    }

    #[test]
    fn a_spin_is_no_longer_than_a_wake_up_and_none_with_zero() {
        let mut idler = adaptive(30, 64);
        (0..100).for_each(|_| idler.woke_late(Duration::from_micros(20)));
        assert_eq!(spin(&mut idler, 0).0, 64, "the first one: nothing was measured");
        for round in 1..10 {
            idler.after_poll(at(1000 * round - 1), true, || WOKEN);
            assert!(idler.after_poll(at(1000 * round), false, || WOKEN).is_none());
            idler.after_poll(at(1000 * round + 1), true, || WOKEN);
        }
        let spun = spin(&mut idler, 20_000).0;
        assert!((20..=21).contains(&spun), "{spun}");
        let mut never = adaptive(30, 0);
        for round in 0..200 {
            assert_eq!(spin(&mut never, 1000 * round).0, 0);
            never.after_poll(at(1000 * round + 500), true, || WOKEN);
        }
    }

    #[test]
    fn a_deadline_cuts_the_sleep_short() {
        let two = Duration::from_micros(2);
        let mut idler = adaptive(100, 0);
        for _ in 1..EMPTY_POLLS {
            idler.after_poll(at(0), false, || BY_TIME);
        }
        for waking in [BY_TIME, WOKEN] {
            assert_eq!(idler.after_poll(at(0), false, || Waking { rest: two, ..waking }), Some(two));
            assert_eq!(idler.after_poll(at(0), false, || Waking { rest: Duration::ZERO, ..waking }), None);
        }
    }
}
