//! Turns of the users at the thread that wakes programs. Each user in turn has one program woken. A user whose wakes
//! are expensive pauses after each, so that all such users together have a twentieth of the thread.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use tcp_stack::Instant;

use super::after;

/// CPU time of a wake after which its user need not pause. One with few waiters takes 1 to 5 µs.
const CHEAP: Duration = Duration::from_micros(20);
/// Length of a pause, in times that the wake has taken beyond [`CHEAP`].
const PAUSES: u32 = 20;
/// Users that are remembered although they have nothing to wake and do not pause.
const REMEMBERED: usize = 1024;

/// Places that wait to be woken, by user.
#[derive(Debug, Default)]
pub(super) struct Turns {
    users: HashMap<u32, User>,
    /// Users that have places waiting, in the order of their turns, each once.
    order: VecDeque<u32>,
    /// Places that wait for their turn.
    waiting: HashSet<u32>,
}

#[derive(Debug)]
struct User {
    places: VecDeque<u32>,
    /// Time until which the user pauses.
    until: Instant,
    /// True if a wake has taken long. The thread may have been preempted: the CPU time of the next ones tells.
    suspect: bool,
}

/// Next step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It wakes the program of a place.
    Serve { user: u32, place: u32 },
    /// Nothing, until this time if there is one, or until a worker marks a place.
    Wait(Option<Instant>),
}

impl Turns {
    /// Adds a place that a worker has marked. One that waits already waits once.
    pub(super) fn add(&mut self, user: u32, place: u32) {
        if !self.waiting.insert(place) {
            return;
        }
        let new = || User { places: VecDeque::new(), until: Instant::ZERO, suspect: false };
        let of = self.users.entry(user).or_insert_with(new);
        if of.places.is_empty() {
            self.order.push_back(user);
        }
        of.places.push_back(place);
    }

    /// Takes the next place.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let mut earliest: Option<Instant> = None;
        for _ in 0..self.order.len() {
            let Some(number) = self.order.pop_front() else { break };
            let Some(user) = self.users.get_mut(&number) else { continue };
            if user.until > now {
                earliest = Some(earliest.map_or(user.until, |earliest| earliest.min(user.until)));
                self.order.push_back(number);
                continue;
            }
            let Some(place) = user.places.pop_front() else { continue };
            if !user.places.is_empty() {
                self.order.push_back(number);
            }
            self.waiting.remove(&place);
            return Next::Serve { user: number, place };
        }
        Next::Wait(earliest)
    }

    /// Returns true if the CPU time of the user's next wake is to be measured.
    pub(super) fn is_suspect(&self, user: u32) -> bool {
        self.users.get(&user).is_some_and(|user| user.suspect)
    }

    /// Charges a user for a wake: `elapsed` is its time, and `cpu` its CPU time, if that was measured.
    pub(super) fn charge(&mut self, number: u32, elapsed: Duration, cpu: Option<Duration>, now: Instant) {
        let pausing = self.users.values().filter(|user| user.until > now).count();
        let Some(user) = self.users.get_mut(&number) else { return };
        let Some(cpu) = cpu else {
            user.suspect |= elapsed > CHEAP;
            return;
        };
        let over = cpu.saturating_sub(CHEAP);
        user.suspect = !over.is_zero();
        let users = u32::try_from(pausing).unwrap_or(u32::MAX).saturating_add(1);
        user.until = after(now, over.saturating_mul(PAUSES).saturating_mul(users));
        if self.users.len() > REMEMBERED {
            self.users.retain(|_, user| !user.places.is_empty() || user.until > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(2);
    const LONG: Duration = Duration::from_micros(1420);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Serves what is due, and charges `cost`. Returns user and place of each.
    fn serve(turns: &mut Turns, now: Instant, cost: impl Fn(u32) -> Duration) -> Vec<(u32, u32)> {
        let mut served = Vec::new();
        while let Next::Serve { user, place } = turns.next(now) {
            served.push((user, place));
            let cpu = turns.is_suspect(user).then(|| cost(user));
            turns.charge(user, cost(user), cpu, now);
        }
        served
    }

    #[test]
    fn users_take_turns_whatever_their_number_of_programs() {
        let mut turns = Turns::default();
        for place in 0..30 {
            turns.add(1, place);
        }
        turns.add(2, 30);
        turns.add(3, 31);
        turns.add(3, 31);
        let served = serve(&mut turns, at(0), |_| SHORT);
        assert_eq!(served[..4], [(1, 0), (2, 30), (3, 31), (1, 1)]);
        assert_eq!(served.len(), 32, "each place once");
        assert_eq!(turns.next(at(0)), Next::Wait(None));
    }

    #[test]
    fn a_user_with_expensive_wakes_pauses_and_others_do_not_wait_for_it() {
        let mut turns = Turns::default();
        let cost = |user| if user == 1 { LONG } else { SHORT };
        let (mut expensive, mut cheap) = (0, 0);
        for micros in (0..1_000_000).step_by(10) {
            (0..8).for_each(|place| turns.add(1, place));
            turns.add(2, 8);
            for (user, _) in serve(&mut turns, at(micros), cost) {
                *if user == 1 { &mut expensive } else { &mut cheap } += 1;
            }
        }
        assert_eq!(cheap, 100_000, "each time at once");
        // The first is not measured. Then one per pause of 20 * 1400 µs.
        assert!((35..=38).contains(&expensive), "{expensive}");
    }

    #[test]
    fn several_users_with_expensive_wakes_share_one_part_of_the_thread() {
        let mut turns = Turns::default();
        let mut served = 0_u32;
        for micros in (0..10_000_000).step_by(1000) {
            (0..40).for_each(|user| turns.add(user, user));
            served += u32::try_from(serve(&mut turns, at(micros), |_| LONG).len()).unwrap();
        }
        let busy = LONG * served;
        assert!(busy < Duration::from_secs(1), "{busy:?} of 10 s");
    }

    /// A wake during which the thread was preempted takes long, and costs no CPU time.
    #[test]
    fn a_preempted_wake_costs_its_user_nothing() {
        let mut turns = Turns::default();
        turns.add(1, 0);
        assert_eq!(turns.next(at(0)), Next::Serve { user: 1, place: 0 });
        turns.charge(1, Duration::from_millis(5), None, at(5000));
        assert!(turns.is_suspect(1));
        turns.add(1, 0);
        assert_eq!(turns.next(at(5000)), Next::Serve { user: 1, place: 0 });
        turns.charge(1, Duration::from_millis(5), Some(SHORT), at(10_000));
        turns.add(1, 0);
        assert!(!turns.is_suspect(1) && turns.next(at(10_000)) != Next::Wait(None));
    }

    #[test]
    fn users_without_work_are_forgotten_in_the_end() {
        let mut turns = Turns::default();
        for user in 0..5000 {
            turns.add(user, 0);
            let Next::Serve { user, .. } = turns.next(at(0)) else { panic!("nothing to serve") };
            turns.charge(user, LONG, Some(SHORT), at(0));
        }
        assert!(turns.users.len() <= REMEMBERED + 1);
    }
}
