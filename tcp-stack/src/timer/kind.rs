//! The timers of one connection. Setting one is a store into the connection; the stack arms the connection's node in
//! the [`Wheel`](super::Wheel) with the earliest deadline.

use super::wheel::{TICK_SHIFT, tick_after};
use crate::time::{Duration, Instant, nanos};

/// The timers that a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TimerKind {
    /// Sends a delayed acknowledgment (RFC 9293 §3.8.6.3). First, since its deadline is stored apart: reception in
    /// order needs no other timer.
    DelayedAck,
    /// Retransmits the oldest unacknowledged segment (RFC 6298), or the SYN.
    Retransmit,
    /// Sends a tail loss probe (RFC 8985 §7).
    LossProbe,
    /// Marks reordered segments as lost (RFC 8985 §6.2 step 5).
    Reordering,
    /// Probes a closed window (RFC 9293 §3.8.6.1).
    Persist,
    /// Sends less than a full segment into a small window (RFC 9293 §3.8.6.2.1).
    SendOverride,
    /// Probes an idle peer (RFC 9293 §3.8.4), or checks whether it has been idle.
    Keepalive,
    /// Ends the wait for the peer's FIN in FIN-WAIT-2.
    FinWait2,
    /// Lets the next burst of a paced connection leave.
    Pacing,
}

impl TimerKind {
    pub(crate) const COUNT: usize = 9;

    /// All kinds, in the order in which timers that expire together act.
    const ALL: [Self; Self::COUNT] = [
        Self::Retransmit,
        Self::LossProbe,
        Self::Reordering,
        Self::Persist,
        Self::SendOverride,
        Self::DelayedAck,
        Self::Keepalive,
        Self::FinWait2,
        Self::Pacing,
    ];

    const fn bit(self) -> u16 {
        1 << self as u16
    }

    /// Returns the index in [`Deadlines`], or `None` for the delayed acknowledgment, which is stored apart.
    const fn place(self) -> Option<usize> {
        (self as usize).checked_sub(1)
    }
}

/// A time in ticks of the wheel, modulo 2^32. Compared times lie within 2^31 ticks, 4.8 hours, of the present: a
/// deadline is at most [`TIMEOUT_TICKS_MAX`] ahead, and the next call processes one that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tick(u32);

/// Longest timeout: 2^30 ticks, 2.4 hours.
const TIMEOUT_TICKS_MAX: u64 = 1 << 30;
/// Longest timeout as a duration.
#[cfg(test)]
const TIMEOUT_MAX: Duration = Duration::from_nanos(TIMEOUT_TICKS_MAX << TICK_SHIFT);

impl Tick {
    #[inline]
    fn low(ticks: u64) -> Self {
        let [.., a, b, c, d] = ticks.to_be_bytes();
        Self(u32::from_be_bytes([a, b, c, d]))
    }

    /// Returns the first tick that does not begin before `nanos` nanoseconds from now, at most 2.4 hours ahead.
    #[inline]
    fn after(now: Instant, nanos: u64) -> Self {
        Self::low(tick_after(now.after_nanos(nanos.min(TIMEOUT_TICKS_MAX << TICK_SHIFT))))
    }

    /// Returns the earlier of the two.
    #[inline]
    const fn min(self, other: Self) -> Self {
        if other.since(self) < 0 { other } else { self }
    }

    /// Returns the later of the two.
    #[inline]
    const fn max(self, other: Self) -> Self {
        if self.since(other) < 0 { other } else { self }
    }

    /// Returns the tick that contains `now`.
    #[inline]
    fn at(now: Instant) -> Self {
        Self::low(now.as_nanos() >> TICK_SHIFT)
    }

    /// Returns the ticks from `earlier` to `self`.
    #[inline]
    const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0).cast_signed()
    }

    /// Returns the time at which it begins, or `now` if that has passed.
    #[inline]
    fn begins(self, now: Instant) -> Instant {
        let ahead = u64::try_from(self.since(Self::at(now))).unwrap_or(0);
        let tick = (now.as_nanos() >> TICK_SHIFT).saturating_add(ahead);
        Instant::from_nanos(tick.saturating_mul(1 << TICK_SHIFT))
    }
}

/// The running timers of one connection. Setting one is a store; the wheel is armed once per burst, and only if the
/// earliest deadline has become earlier.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Timers {
    /// Earliest deadline: no running timer expires before it. Valid while a timer runs or `is_armed` is set.
    earliest: Tick,
    /// Running timers, one bit each ([`TimerKind::bit`]).
    running: u16,
    /// Set while the wheel is armed for `earliest`.
    is_armed: bool,
    /// Deadline of the delayed acknowledgment.
    delayed_ack: Tick,
}

/// Deadlines of all timers but the delayed acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines([Tick; TimerKind::COUNT - 1]);

impl Deadlines {
    pub(crate) const NONE: Self = Self([Tick(0); TimerKind::COUNT - 1]);
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { earliest: Tick(0), running: 0, is_armed: false, delayed_ack: Tick(0) }
    }

    /// Starts or restarts a timer that expires `after` from now, in 2.4 hours at most.
    #[inline]
    pub(crate) fn set(&mut self, deadlines: &mut Deadlines, kind: TimerKind, now: Instant, after: Duration) {
        self.set_nanos(deadlines, kind, now, nanos(after));
    }

    /// As [`Self::set`], with nanoseconds.
    #[inline]
    pub(crate) fn set_nanos(&mut self, deadlines: &mut Deadlines, kind: TimerKind, now: Instant, after: u64) {
        self.start(deadlines, kind, Tick::after(now, after));
    }

    /// As [`Self::set_nanos`], but expires no later than `other` does if that runs, and not before now.
    #[inline]
    pub(crate) fn set_nanos_within(
        &mut self,
        deadlines: &mut Deadlines,
        (kind, other): (TimerKind, TimerKind),
        now: Instant,
        after: u64,
    ) {
        let deadline = Tick::after(now, after);
        let limit = self.get(deadlines, other).map(|limit| limit.max(Tick::after(now, 0)));
        self.start(deadlines, kind, limit.map_or(deadline, |limit| deadline.min(limit)));
    }

    #[inline]
    fn start(&mut self, deadlines: &mut Deadlines, kind: TimerKind, deadline: Tick) {
        match kind.place().and_then(|place| deadlines.0.get_mut(place)) {
            Some(slot) => *slot = deadline,
            None => self.delayed_ack = deadline,
        }
        // A spurious wake-up at `earliest` arms the wheel again, soon enough for this deadline, too.
        let counts = self.is_armed || self.running != 0;
        if !counts || deadline.since(self.earliest) < 0 {
            self.earliest = deadline;
            self.is_armed = false;
        }
        self.running |= kind.bit();
    }

    #[inline]
    pub(crate) const fn clear(&mut self, kind: TimerKind) {
        self.running &= !kind.bit();
    }

    /// Stops all timers of `kinds`.
    #[inline]
    pub(crate) fn clear_these<const N: usize>(&mut self, kinds: [TimerKind; N]) {
        self.running &= !kinds.into_iter().fold(0, |bits, kind| bits | kind.bit());
    }

    pub(crate) const fn clear_all(&mut self) {
        self.running = 0;
    }

    #[inline]
    pub(crate) const fn is_set(&self, kind: TimerKind) -> bool {
        self.running & kind.bit() != 0
    }

    #[inline]
    fn get(&self, deadlines: &Deadlines, kind: TimerKind) -> Option<Tick> {
        let deadline = match kind.place() {
            Some(place) => deadlines.0.get(place).copied(),
            None => Some(self.delayed_ack),
        };
        deadline.filter(|_| self.is_set(kind))
    }

    /// Returns true if a timer runs and has expired.
    pub(crate) fn is_due(&self, deadlines: &Deadlines, kind: TimerKind, now: Instant) -> bool {
        self.get(deadlines, kind).is_some_and(|deadline| deadline.since(Tick::at(now)) <= 0)
    }

    /// Returns the earliest deadline of the running timers, or `now` if it has passed.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn earliest(&self, deadlines: &Deadlines, now: Instant) -> Option<Instant> {
        TimerKind::ALL.into_iter().filter_map(|kind| self.get(deadlines, kind)).map(|at| at.begins(now)).min()
    }

    /// Returns the deadline to arm the wheel with, unless the wheel is armed early enough.
    #[inline]
    pub(crate) fn take_deadline_to_arm(&mut self, now: Instant) -> Option<Instant> {
        if self.is_armed || self.running == 0 {
            return None;
        }
        self.is_armed = true;
        Some(self.earliest.begins(now))
    }

    /// Returns and stops one expired timer, in the order of [`TimerKind::ALL`]. The stack calls it until it returns
    /// `None`, after the wheel has returned and disarmed the connection's node.
    pub(crate) fn take_expired(&mut self, deadlines: &Deadlines, now: Instant) -> Option<TimerKind> {
        if let Some(kind) = TimerKind::ALL.into_iter().find(|kind| self.is_due(deadlines, *kind, now)) {
            self.clear(kind);
            return Some(kind);
        }
        let running = TimerKind::ALL.into_iter().filter_map(|kind| self.get(deadlines, kind));
        if let Some(earliest) = running.min_by_key(|deadline| deadline.since(Tick::at(now))) {
            self.earliest = earliest;
        }
        self.is_armed = false;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn after(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns true if the wheel is to be armed for `at`, or at most one tick later.
    fn is_at(news: Option<Instant>, at: Instant) -> bool {
        news.is_some_and(|news| news >= at && news <= at + Duration::from_nanos(1 << TICK_SHIFT))
    }

    #[test]
    fn expired_timers_are_taken_once() {
        let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
        assert_eq!(timers.take_deadline_to_arm(ms(0)), None);
        timers.set(&mut rest, TimerKind::Keepalive, ms(0), after(50));
        assert!(is_at(timers.take_deadline_to_arm(ms(0)), ms(50)));
        timers.set(&mut rest, TimerKind::DelayedAck, ms(10), after(30));
        assert!(is_at(timers.take_deadline_to_arm(ms(10)), ms(40)), "sooner");
        timers.set(&mut rest, TimerKind::Retransmit, ms(10), after(40));
        assert_eq!(timers.take_deadline_to_arm(ms(10)), None, "not sooner");
        assert_eq!(timers.take_expired(&rest, ms(39)), None);
        assert!(is_at(timers.take_deadline_to_arm(ms(39)), ms(40)), "woken too soon: to be woken again");
        assert_eq!(timers.take_expired(&rest, ms(60)), Some(TimerKind::Retransmit), "first things first");
        assert_eq!(timers.take_expired(&rest, ms(60)), Some(TimerKind::DelayedAck));
        assert_eq!(timers.take_expired(&rest, ms(60)), Some(TimerKind::Keepalive));
        assert_eq!(timers.take_expired(&rest, ms(60)), None);
        assert_eq!(timers.take_deadline_to_arm(ms(60)), None);
    }

    #[test]
    fn a_timer_that_was_stopped_wakes_the_connection_at_most_once_more() {
        let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
        timers.set(&mut rest, TimerKind::DelayedAck, ms(0), after(40));
        timers.set(&mut rest, TimerKind::Keepalive, ms(0), after(5000));
        assert!(is_at(timers.take_deadline_to_arm(ms(0)), ms(40)));
        timers.clear(TimerKind::DelayedAck);
        assert_eq!(timers.take_expired(&rest, ms(41)), None);
        assert!(is_at(timers.take_deadline_to_arm(ms(41)), ms(5000)));
        timers.clear_all();
        timers.set(&mut rest, TimerKind::Persist, ms(50), after(6000));
        assert_eq!(
            timers.take_deadline_to_arm(ms(50)),
            None,
            "the wheel still wakes the connection for what does not run"
        );
        assert_eq!(timers.take_expired(&rest, ms(5000)), None);
        assert!(is_at(timers.take_deadline_to_arm(ms(5000)), ms(6050)));
        timers.clear_all();
        assert_eq!(timers.take_expired(&rest, ms(6051)), None);
        timers.set(&mut rest, TimerKind::Persist, ms(6100), after(6000));
        assert!(is_at(timers.take_deadline_to_arm(ms(6100)), ms(12_100)), "nothing ran");
    }

    #[test]
    fn deadlines_lie_right_across_the_wrap_of_their_ticks() {
        let wrap = Instant::from_nanos(1 << (32 + TICK_SHIFT));
        for (before_ms, after_ms) in [(5, 10), (5, 200_000), (6_000_000, 6_000_001)] {
            let now = wrap - after(before_ms);
            let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
            timers.set(&mut rest, TimerKind::Keepalive, now, after(after_ms.max(20)));
            timers.set(&mut rest, TimerKind::Retransmit, now, after(after_ms));
            assert!(is_at(timers.take_deadline_to_arm(now), now + after(after_ms)));
            timers.set_nanos_within(&mut rest, (TimerKind::LossProbe, TimerKind::Retransmit), now, u64::MAX);
            assert_eq!(timers.get(&rest, TimerKind::LossProbe), timers.get(&rest, TimerKind::Retransmit));
            timers.clear(TimerKind::LossProbe);
            assert_eq!(timers.take_expired(&rest, now + after(after_ms - 1)), None);
            assert_eq!(timers.take_expired(&rest, now + after(after_ms + 1)), Some(TimerKind::Retransmit));
        }
    }

    #[test]
    fn a_timer_that_is_bound_by_another_expires_with_it_at_the_latest() {
        let (both, now) = ((TimerKind::LossProbe, TimerKind::Retransmit), ms(1000));
        let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
        timers.set_nanos_within(&mut rest, both, now, 30_000_000);
        assert!(is_at(timers.take_deadline_to_arm(now), ms(1030)), "the other does not run");
        for (other_ms, expected_ms) in [(20, 1020), (30, 1030), (40, 1030)] {
            let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
            timers.set(&mut rest, TimerKind::Retransmit, now, after(other_ms));
            timers.set_nanos_within(&mut rest, both, now, 30_000_000);
            timers.clear(TimerKind::Retransmit);
            assert!(is_at(timers.earliest(&rest, now), ms(expected_ms)), "{other_ms}");
        }
        timers.set(&mut rest, TimerKind::Retransmit, ms(900), after(1));
        timers.set_nanos_within(&mut rest, both, now, 30_000_000);
        assert!(!timers.is_due(&rest, TimerKind::LossProbe, now), "it has not begun yet");
        assert!(timers.is_due(&rest, TimerKind::LossProbe, now + Duration::from_nanos(1 << TICK_SHIFT)));
    }

    #[test]
    fn timeouts_are_clamped() {
        let (mut timers, mut rest) = (Timers::new(), Deadlines::NONE);
        timers.set(&mut rest, TimerKind::Keepalive, ms(7), Duration::MAX);
        assert!(is_at(timers.take_deadline_to_arm(ms(7)), ms(7) + TIMEOUT_MAX));
    }

    #[test]
    fn every_kind_has_its_own_place() {
        let mut places = TimerKind::ALL.map(|kind| kind as usize);
        places.sort_unstable();
        assert_eq!(places, core::array::from_fn::<usize, { TimerKind::COUNT }, _>(|i| i));
        assert_eq!(TimerKind::DelayedAck.place(), None);
    }
}
