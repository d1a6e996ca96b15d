//! Posts that wait for company. A call of the kernel costs as much as dozens of small messages: a program that posts
//! in quick succession has its posts sent together, when it polls or waits next.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tcp_stack::Instant;

use crate::backend::Posted;

/// Longest time between two posts, or between the engine's run and a post, in quick succession.
const GAP_MAX: Duration = Duration::from_micros(1);
/// Posts in quick succession of which none waits.
const PROMPT_POSTS: u32 = 3;
/// Most posts that wait. The engine then runs.
const HELD_MAX: u32 = 128;
/// Longest time for which requests wait for the program to run the engine, and for which receive buffers do. Those have
/// an effect of their own only on a queue pair in error, whose buffers complete at once.
const HELD_FOR: Duration = Duration::from_millis(1);
const RECEIVES_HELD_FOR: Duration = Duration::from_millis(16);

/// Outcome of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The engine runs now.
    Sent,
    /// It waits, and the helper minds it.
    Held,
    /// It waits, and nobody minds it: the helper has to be called.
    Unminded,
}

/// Posts that wait, and the pace of the program. Everything but the number that waits is a hint: threads that post at
/// the same time may miscount each other.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Posts to send in quick succession.
    streak: AtomicU32,
    /// End of the last post or run, nanoseconds of the clock.
    last: AtomicU64,
    /// Number of posts of requests that wait.
    waiting: AtomicU32,
    /// True if receive buffers wait.
    receives: AtomicBool,
    /// Runs of the engine that have taken posts.
    runs: AtomicU32,
    /// Kind of posts that have waited since the helper has looked.
    waited: AtomicU8,
    /// Kind of posts for which the helper looks every now and then.
    minded: AtomicU8,
}

/// Kinds of posts that wait, those last that wait for the shortest time.
const NONE: u8 = 0;
const RECEIVES: u8 = 1;
const REQUESTS: u8 = 2;

impl Held {
    /// Decides about a post at the time `now`. Receive buffers wait always: peers' messages make the engine run, which
    /// takes them first, and requests take them along.
    #[inline]
    pub(super) fn post(&self, posted: Posted, now: impl FnOnce() -> Instant) -> Fate {
        // Posts of a burst that wait have others join them, without a look at the clock.
        let joins = self.is_waiting() && self.streak.load(Ordering::Relaxed) > PROMPT_POSTS;
        if posted == Posted::Work && !joins {
            let now = now();
            let last = Instant::from_nanos(self.last.swap(now.as_nanos(), Ordering::Relaxed));
            let is_quick = now.saturating_since(last) <= GAP_MAX;
            let streak = if is_quick { self.streak.load(Ordering::Relaxed).saturating_add(1) } else { 1 };
            self.streak.store(streak, Ordering::Relaxed);
            if streak <= PROMPT_POSTS {
                return Fate::Sent;
            }
        }
        // After the entry was published: a thread that sees the number sees the entry, too.
        let kind = if posted == Posted::Receives {
            self.receives.store(true, Ordering::SeqCst);
            RECEIVES
        } else {
            if self.waiting.fetch_add(1, Ordering::SeqCst).saturating_add(1) >= HELD_MAX {
                return Fate::Sent;
            }
            REQUESTS
        };
        self.waited.fetch_max(kind, Ordering::SeqCst);
        if self.minded.load(Ordering::SeqCst) >= kind || self.minded.fetch_max(kind, Ordering::SeqCst) >= kind
        {
            Fate::Held
        } else {
            Fate::Unminded
        }
    }

    /// Returns true if requests wait.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns true if requests or receive buffers wait.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.is_waiting() || self.receives.load(Ordering::SeqCst)
    }

    /// Notes that the engine runs, and takes all that waits.
    #[inline]
    pub(super) fn begin_run(&self) {
        // A post that comes meanwhile counts again, though the engine may take it: the next run finds nothing.
        if self.has_any() {
            self.waiting.store(0, Ordering::SeqCst);
            self.receives.store(false, Ordering::SeqCst);
            self.runs.store(self.runs.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Notes that a thread of the program has run the engine.
    #[inline]
    pub(super) fn ran(&self, now: Instant) {
        self.last.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Notes that the program has polled in vain, or sleeps: its next posts do not wait.
    #[inline]
    pub(super) fn end_burst(&self) {
        self.streak.store(0, Ordering::Relaxed);
    }

    /// Returns true if posts wait, and the engine has taken none since `runs` was kept: the program does not run it.
    /// Brings `runs` up to date.
    pub(super) fn is_left(&self, runs: &mut u32) -> bool {
        let now = self.runs.load(Ordering::Relaxed);
        std::mem::replace(runs, now) == now && self.has_any()
    }

    /// Returns the time after which the helper has to look again, if posts have waited since it has looked last, or it
    /// has not slept for that time since: events that wake it earlier are no reason to have the next post call it.
    pub(super) fn mind(&self, has_slept: bool) -> Option<Duration> {
        let mut kind = self.take_waited();
        if !has_slept {
            kind = kind.max(self.minded.load(Ordering::SeqCst));
        }
        if self.minded.swap(kind, Ordering::SeqCst) > kind {
            // A post that has come before the line above has not called.
            kind = kind.max(self.take_waited());
            self.minded.fetch_max(kind, Ordering::SeqCst);
        }
        match kind {
            NONE => None,
            RECEIVES => Some(RECEIVES_HELD_FOR),
            _ => Some(HELD_FOR),
        }
    }

    fn take_waited(&self) -> u8 {
        // A post that waits still may have come after the engine's last run, which the helper takes for the program's.
        let waits = match (self.is_waiting(), self.receives.load(Ordering::SeqCst)) {
            (true, _) => REQUESTS,
            (false, true) => RECEIVES,
            (false, false) => NONE,
        };
        self.waited.swap(NONE, Ordering::SeqCst).max(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanoseconds: u64) -> Instant {
        Instant::from_nanos(nanoseconds)
    }

    /// Posts `count` times, one every `gap` nanoseconds, and returns how many of them wait.
    fn waiting_of(count: u64, gap: u64) -> usize {
        let held = Held::default();
        let fates = (0..count).map(|k| held.post(Posted::Work, || at(1_000_000 + k * gap)));
        fates.filter(|fate| *fate != Fate::Sent).count()
    }

    #[test]
    fn the_first_three_of_a_burst_are_sent_at_once_and_the_others_wait() {
        assert_eq!(waiting_of(3, 200), 0);
        assert_eq!(waiting_of(4, 200), 1);
        assert_eq!(waiting_of(20, 1000), 17, "a microsecond apart is quick");
    }

    #[test]
    fn posts_that_are_further_apart_do_not_wait() {
        assert_eq!(waiting_of(1000, 1001), 0);
    }

    #[test]
    fn the_engine_runs_once_enough_posts_wait() {
        let held = Held::default();
        let mut fate = Fate::Held;
        for k in 0..PROMPT_POSTS + HELD_MAX {
            fate = held.post(Posted::Work, || at(1_000_000 + u64::from(k)));
        }
        assert_eq!(fate, Fate::Sent);
        held.begin_run();
        assert!(!held.is_waiting());
        assert_eq!(held.post(Posted::Work, || at(1_000_100)), Fate::Held, "the streak goes on");
    }

    #[test]
    fn a_run_of_the_program_does_not_end_a_streak_but_a_poll_in_vain_does() {
        let held = Held::default();
        let fates: Vec<_> = (0..8).map(|k| held.post(Posted::Work, || at(1_000_000 + k))).collect();
        assert_eq!(fates.last(), Some(&Fate::Held));
        held.begin_run();
        held.ran(at(1_050_000));
        assert_eq!(held.post(Posted::Work, || at(1_050_200)), Fate::Held);
        held.end_burst();
        assert_eq!(held.post(Posted::Work, || at(1_050_300)), Fate::Sent);
    }

    #[test]
    fn receive_buffers_wait_and_the_first_calls_the_helper() {
        let held = Held::default();
        assert_eq!(held.post(Posted::Receives, || at(5_000_000)), Fate::Unminded);
        assert_eq!(held.post(Posted::Receives, || at(9_000_000)), Fate::Held);
        assert!(held.has_any() && !held.is_waiting());
        assert_eq!(held.post(Posted::Work, || at(10_000_000)), Fate::Sent);
    }

    #[test]
    fn posts_are_left_if_the_engine_has_not_run_between_two_looks() {
        let (held, mut runs) = (Held::default(), 0);
        assert_eq!(held.post(Posted::Receives, || at(1)), Fate::Unminded);
        assert!(held.is_left(&mut runs));
        held.begin_run();
        assert!(!held.is_left(&mut runs), "nothing waits");
        held.post(Posted::Receives, || at(2));
        held.begin_run();
        held.post(Posted::Receives, || at(3));
        assert!(!held.is_left(&mut runs), "the program has run the engine");
        assert!(held.is_left(&mut runs));
    }

    #[test]
    fn the_helper_minds_posts_until_none_has_waited_between_two_looks() {
        let held = Held::default();
        assert_eq!(held.mind(true), None);
        assert_eq!(held.post(Posted::Receives, || at(1)), Fate::Unminded);
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR));
        assert_eq!(held.post(Posted::Receives, || at(2)), Fate::Held);
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR));
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR), "one waits still");
        held.begin_run();
        assert_eq!(held.mind(true), None);
        assert_eq!(held.post(Posted::Receives, || at(3)), Fate::Unminded);
    }

    #[test]
    fn a_helper_that_events_wake_minds_posts_until_it_has_slept() {
        let held = Held::default();
        assert_eq!(held.post(Posted::Receives, || at(1)), Fate::Unminded);
        for _ in 0..3 {
            held.begin_run();
            assert_eq!(held.mind(false), Some(RECEIVES_HELD_FOR));
            assert_eq!(held.mind(false), Some(RECEIVES_HELD_FOR), "woken again before the next post");
            assert_eq!(held.post(Posted::Receives, || at(2)), Fate::Held);
        }
        held.begin_run();
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR), "one has waited since the last look");
        assert_eq!(held.mind(true), None);
    }

    #[test]
    fn requests_call_a_helper_that_minds_buffers_alone() {
        let held = Held::default();
        assert_eq!(held.post(Posted::Receives, || at(1)), Fate::Unminded);
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR));
        let fates: Vec<_> = (0..5).map(|k| held.post(Posted::Work, || at(1_000_000 + k))).collect();
        assert_eq!(fates, [Fate::Sent, Fate::Sent, Fate::Sent, Fate::Unminded, Fate::Held]);
        assert_eq!(held.post(Posted::Receives, || at(1_000_010)), Fate::Held);
        assert_eq!(held.mind(true), Some(HELD_FOR));
        held.begin_run();
        held.post(Posted::Receives, || at(1_000_020));
        assert_eq!(held.mind(true), Some(RECEIVES_HELD_FOR));
        assert_eq!(held.post(Posted::Work, || at(1_000_030)), Fate::Unminded);
    }
}
