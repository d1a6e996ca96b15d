//! The timers of one connection.

use crate::time::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TimerKind {
    /// When to send the oldest unacknowledged segment again (RFC 6298), or the SYN.
    Retransmit,
    /// When to send a tail loss probe (RFC 8985 §7).
    LossProbe,
    /// When a segment not yet acknowledged stops being merely reordered (RFC 8985 §6.2 step 5).
    Reordering,
    /// When to probe a closed window (RFC 9293 §3.8.6.1).
    Persist,
    /// When to send less than a full segment into a small window (RFC 9293 §3.8.6.2.1).
    SendOverride,
    /// When to acknowledge at the latest (RFC 9293 §3.8.6.3).
    DelayedAck,
    /// When to ask an idle peer whether it is there (RFC 9293 §3.8.4).
    Keepalive,
    /// When to stop waiting for the peer's FIN.
    FinWait2,
    /// When the next burst of a paced connection may leave.
    Pacing,
}

impl TimerKind {
    pub(crate) const COUNT: usize = 9;

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
}

const OFF: Instant = Instant::from_nanos(u64::MAX);

/// The deadlines of one connection. Setting one is a store; the wheel learns of it once per burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    deadlines: [Instant; TimerKind::COUNT],
}

impl Timers {
    pub(crate) const fn new() -> Self {
        Self { deadlines: [OFF; TimerKind::COUNT] }
    }

    #[inline]
    pub(crate) fn set(&mut self, kind: TimerKind, deadline: Instant) {
        if let Some(slot) = self.deadlines.get_mut(kind as usize) {
            *slot = deadline;
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self, kind: TimerKind) {
        self.set(kind, OFF);
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::new();
    }

    #[inline]
    pub(crate) fn get(&self, kind: TimerKind) -> Option<Instant> {
        self.deadlines.get(kind as usize).copied().filter(|deadline| *deadline != OFF)
    }

    #[inline]
    pub(crate) fn is_set(&self, kind: TimerKind) -> bool {
        self.get(kind).is_some()
    }

    /// The earliest deadline.
    #[inline]
    pub(crate) fn earliest(&self) -> Option<Instant> {
        self.deadlines.iter().copied().min().filter(|deadline| *deadline != OFF)
    }

    /// Takes one timer that has expired, in the order of [`TimerKind`].
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<TimerKind> {
        let kind = TimerKind::ALL.into_iter().find(|kind| self.get(*kind).is_some_and(|at| at <= now))?;
        self.clear(kind);
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_counts_and_the_expired_are_taken_once() {
        let mut timers = Timers::new();
        assert_eq!(timers.earliest(), None);
        timers.set(TimerKind::Keepalive, Instant::from_nanos(50));
        timers.set(TimerKind::DelayedAck, Instant::from_nanos(40));
        assert_eq!(timers.earliest(), Some(Instant::from_nanos(40)));
        assert_eq!(timers.take_expired(Instant::from_nanos(39)), None);
        assert_eq!(timers.take_expired(Instant::from_nanos(60)), Some(TimerKind::DelayedAck));
        assert_eq!(timers.take_expired(Instant::from_nanos(60)), Some(TimerKind::Keepalive));
        assert_eq!(timers.take_expired(Instant::from_nanos(60)), None);
    }

    #[test]
    fn every_kind_has_its_own_place() {
        let mut places = TimerKind::ALL.map(|kind| kind as usize);
        places.sort_unstable();
        assert_eq!(places, core::array::from_fn::<usize, { TimerKind::COUNT }, _>(|i| i));
    }
}
