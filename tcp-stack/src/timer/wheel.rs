//! A hierarchical timer wheel: finds the connections whose timers have expired in bounded time.
//!
//! Nine levels have 64 slots each. A node is on the level of the highest base-64 digit in which its deadline differs
//! from the present, so all deadlines of a level precede those of the level above. The next deadline is in the first
//! occupied slot of the lowest occupied level, which nine bitmaps show, for any number of nodes. Nine levels of 6
//! bits, in ticks of 2^13 ns, cover all of `u64`. The length of a tick costs nothing: a call looks at the first
//! occupied slot only, however many empty ones have passed.

use alloc::vec::Vec;
use core::hint::black_box;

use crate::pool::NIL;
use crate::time::Instant;

/// A tick is 2^13 ns = 8.2 µs.
pub(super) const TICK_SHIFT: u32 = 13;
const LEVELS: usize = 9;
const SLOTS: usize = 64;
const DIGIT_BITS: u32 = 6;
const DIGIT_MASK: u64 = 63;

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline: u64,
    prev: u32,
    next: u32,
    /// Position, `level * 64 + slot`, also of nodes that are cascading; or [`UNARMED`].
    place: u16,
}

const UNARMED: u16 = u16::MAX;

/// Memory per node, bytes.
#[cfg(test)]
pub(crate) const NODE_BYTES: usize = size_of::<Node>();

impl Node {
    const IDLE: Self = Self { deadline: 0, prev: NIL, next: NIL, place: UNARMED };
}

/// The wheel. A node has the index of its connection.
#[derive(Debug)]
pub(crate) struct Wheel {
    nodes: Vec<Node>,
    heads: [u32; LEVELS * SLOTS],
    occupied: [u64; LEVELS],
    /// First node of an upper slot that has expired; its nodes move down a level one by one.
    cascading: u32,
    /// Tick up to which all nodes have been returned.
    elapsed: u64,
}

/// Returns the first tick that does not begin before `deadline`.
#[inline]
pub(super) fn tick_after(deadline: Instant) -> u64 {
    let ns = deadline.as_nanos();
    (ns >> TICK_SHIFT).saturating_add(u64::from(ns & ((1 << TICK_SHIFT) - 1) != 0))
}

fn digit(tick: u64, level: usize) -> u64 {
    u32::try_from(level)
        .ok()
        .and_then(|level| tick.checked_shr(level.saturating_mul(DIGIT_BITS)))
        .unwrap_or(0)
        & DIGIT_MASK
}

impl Wheel {
    /// Returns a wheel for nodes `0..limit`.
    pub(crate) fn new(limit: u32) -> Self {
        let mut nodes = Vec::new();
        nodes.reserve_exact(limit as usize);
        Self { nodes, heads: [NIL; LEVELS * SLOTS], occupied: [0; LEVELS], cascading: NIL, elapsed: 0 }
    }

    /// Arms the node unless it is armed for `deadline` or earlier: the caller arms it again when it expires early. So a
    /// deadline that moves back costs one comparison.
    #[inline]
    pub(crate) fn arm_no_later(&mut self, index: u32, deadline: Instant) {
        let early_enough = self
            .nodes
            .get(index as usize)
            .is_some_and(|node| node.place != UNARMED && node.deadline <= tick_after(deadline));
        if !early_enough {
            self.arm(index, deadline);
        }
    }

    /// Prefetches a node by reading from it.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        black_box(self.nodes.get(index as usize).map(|node| node.next));
    }

    /// Returns true if the node will be returned by `deadline`, or one tick after it.
    #[cfg(any(test, feature = "testutil"))]
    pub(crate) fn is_armed_no_later(&self, index: u32, deadline: Instant) -> bool {
        let tick = tick_after(deadline).max(self.elapsed.saturating_add(1));
        self.nodes.get(index as usize).is_some_and(|node| node.place != UNARMED && node.deadline <= tick)
    }

    /// Arms the node for `deadline`, and only for it.
    pub(crate) fn arm(&mut self, index: u32, deadline: Instant) {
        self.cancel(index);
        while self.nodes.len() <= index as usize {
            if self.nodes.len() == self.nodes.capacity() {
                return;
            }
            self.nodes.push(Node::IDLE);
        }
        let tick = tick_after(deadline).max(self.elapsed.saturating_add(1));
        self.place(index, tick);
    }

    fn place(&mut self, index: u32, tick: u64) {
        let differing = tick ^ self.elapsed;
        let top_bit = 63_u32.saturating_sub(differing.leading_zeros());
        let level = ((top_bit / DIGIT_BITS) as usize).min(LEVELS - 1);
        let slot = digit(tick, level);
        let place = (level as u64).saturating_mul(SLOTS as u64).saturating_add(slot);
        let Ok(place) = u16::try_from(place) else { return };
        let Some(head) = self.heads.get_mut(usize::from(place)) else { return };
        let next = core::mem::replace(head, index);
        if let Some(node) = self.nodes.get_mut(index as usize) {
            *node = Node { deadline: tick, prev: NIL, next, place };
        }
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.prev = index;
        }
        if let Some(bits) = self.occupied.get_mut(level) {
            *bits |= 1 << slot;
        }
    }

    /// Removes the node from the wheel.
    pub(crate) fn cancel(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        if node.place == UNARMED {
            return;
        }
        let Node { prev, next, place, .. } = core::mem::replace(node, Node::IDLE);
        if let Some(after) = self.nodes.get_mut(next as usize) {
            after.prev = prev;
        }
        if let Some(before) = self.nodes.get_mut(prev as usize) {
            before.next = next;
            return;
        }
        // It was the first node of a slot, or of those that are cascading.
        if self.cascading == index {
            self.cascading = next;
        } else if let Some(head) = self.heads.get_mut(usize::from(place)) {
            *head = next;
            if next == NIL
                && let Some(bits) = self.occupied.get_mut(usize::from(place) / SLOTS)
            {
                *bits &= !(1 << (usize::from(place) % SLOTS));
            }
        }
    }

    /// Returns the earliest occupied slot: its level, its slot and the tick at which it begins.
    fn first(&self) -> Option<(usize, u64, u64)> {
        let (level, bits) = self.occupied.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        let slot = u64::from(bits.trailing_zeros());
        let shift = u32::try_from(level).ok()?.checked_mul(DIGIT_BITS)?;
        let above = shift.checked_add(DIGIT_BITS)?;
        let high = self.elapsed.checked_shr(above).and_then(|high| high.checked_shl(above)).unwrap_or(0);
        Some((level, slot, high | slot.checked_shl(shift)?))
    }

    /// Returns the time at which [`Wheel::pop_expired`] will have work: never later than the earliest deadline rounded
    /// up to a tick, possibly earlier.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.cascading != NIL {
            return Some(Instant::from_nanos(self.elapsed << TICK_SHIFT));
        }
        let (_, _, tick) = self.first()?;
        Some(Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// Removes and returns one node whose deadline is `now` or earlier. Moving a node down a level costs one of
    /// `budget`, as returning it does; at zero the call ends, and the next one continues.
    pub(crate) fn pop_expired(&mut self, now: Instant, budget: &mut u32) -> Option<u32> {
        let target = now.as_nanos() >> TICK_SHIFT;
        loop {
            if *budget == 0 {
                return None;
            }
            if self.cascading != NIL {
                let index = self.cascading;
                let tick = self.nodes.get(index as usize).map_or(0, |node| node.deadline);
                self.cancel(index);
                *budget = budget.saturating_sub(1);
                if tick <= self.elapsed {
                    return Some(index);
                }
                self.place(index, tick);
                continue;
            }
            let Some((level, slot, tick)) = self.first().filter(|(_, _, tick)| *tick <= target) else {
                self.elapsed = self.elapsed.max(target);
                return None;
            };
            // Setting `elapsed` to the slot's start changes no other node's level: all of them are later.
            self.elapsed = self.elapsed.max(tick);
            self.detach(level, slot);
        }
    }

    fn detach(&mut self, level: usize, slot: u64) {
        let Some(bits) = self.occupied.get_mut(level) else { return };
        *bits &= !(1 << slot);
        let place = usize::try_from(slot).unwrap_or(0).saturating_add(level.saturating_mul(SLOTS));
        let Some(head) = self.heads.get_mut(place) else { return };
        self.cascading = core::mem::replace(head, NIL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use core::time::Duration;
    use rand::{RngExt, SeedableRng};

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn pop(wheel: &mut Wheel, now: Instant) -> Option<u32> {
        wheel.pop_expired(now, &mut u32::MAX.clone())
    }

    #[test]
    fn a_node_fires_at_its_deadline_and_not_before() {
        let mut wheel = Wheel::new(4);
        wheel.arm(3, ms(200));
        assert_eq!(pop(&mut wheel, ms(199)), None);
        assert_eq!(pop(&mut wheel, ms(201)), Some(3));
        assert_eq!(pop(&mut wheel, ms(500)), None);
        assert_eq!(wheel.next_deadline(), None);
    }

    /// Polled ports have timers with a resolution of 10 µs, for timeouts of any length.
    #[test]
    fn a_node_fires_within_ten_microseconds_of_its_deadline() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let mut wheel = Wheel::new(1);
        let mut now = ms(0);
        for _ in 0..10_000 {
            let span = 1_u64 << rng.random_range(0..40);
            let deadline = now + Duration::from_nanos(1 + rng.random_range(0..span));
            wheel.arm(0, deadline);
            now = deadline - Duration::from_nanos(1);
            assert_eq!(pop(&mut wheel, now), None, "before {deadline:?}");
            now = deadline + Duration::from_micros(10);
            assert_eq!(pop(&mut wheel, now), Some(0), "{deadline:?}");
        }
    }

    /// The work of a call does not depend on the ticks that have passed, nor on the timers that are not due.
    #[test]
    fn an_idle_wheel_costs_nothing_however_much_time_has_passed() {
        let mut wheel = Wheel::new(1000);
        for index in 0..1000 {
            wheel.arm(index, ms(3_600_000 + u64::from(index)));
        }
        let mut budget = 1000;
        for step in [1_u64, 10, 1_000, 100_000, 1_000_000] {
            assert_eq!(wheel.pop_expired(ms(step), &mut budget), None);
        }
        assert_eq!(budget, 1000, "no node was touched");
    }

    #[test]
    fn the_last_deadline_of_all_has_a_place() {
        let mut wheel = Wheel::new(1);
        wheel.arm(0, Instant::MAX);
        assert_eq!(pop(&mut wheel, Instant::from_nanos(u64::MAX / 2)), None);
        assert!(wheel.next_deadline().is_some());
        wheel.cancel(0);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn a_deadline_that_moves_forward_stays_where_it_is() {
        let mut wheel = Wheel::new(1);
        wheel.arm_no_later(0, ms(10));
        wheel.arm_no_later(0, ms(20));
        assert_eq!(pop(&mut wheel, ms(11)), Some(0), "early: to be armed again");
        wheel.arm_no_later(0, ms(20));
        wheel.arm_no_later(0, ms(15));
        assert_eq!(pop(&mut wheel, ms(16)), Some(0));
    }

    #[test]
    fn arming_again_moves_and_cancelling_removes() {
        let mut wheel = Wheel::new(2);
        wheel.arm(0, ms(10));
        wheel.arm(1, ms(10));
        wheel.arm(0, ms(1_000_000));
        assert_eq!(pop(&mut wheel, ms(11)), Some(1));
        assert_eq!(pop(&mut wheel, ms(11)), None);
        wheel.cancel(0);
        assert_eq!(pop(&mut wheel, ms(2_000_000)), None);
    }

    #[test]
    fn work_per_call_is_bounded_and_nothing_is_lost() {
        let mut wheel = Wheel::new(100);
        for i in 0..100 {
            wheel.arm(i, ms(50_000));
        }
        let mut fired = 0;
        let mut calls = 0;
        while fired < 100 {
            let mut budget = 7;
            while wheel.pop_expired(ms(60_000), &mut budget).is_some() {
                fired += 1;
            }
            calls += 1;
            assert!(calls < 1_000);
        }
        assert!(calls >= 100 / 7);
    }

    /// Compares the wheel with a sorted map: the same nodes expire, in time, and the next deadline is never later than
    /// the earliest armed one.
    #[test]
    fn behaves_like_a_sorted_map() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut wheel = Wheel::new(64);
        let mut model: BTreeMap<u32, Instant> = BTreeMap::new();
        let mut now = ms(0);
        for _ in 0..20_000 {
            let index = rng.random_range(0..64);
            match rng.random_range(0..4) {
                0 => {
                    let span = 1_u64 << rng.random_range(0..45);
                    let deadline = now + Duration::from_nanos(rng.random_range(0..span));
                    wheel.arm(index, deadline);
                    model.insert(index, deadline);
                }
                1 => {
                    wheel.cancel(index);
                    model.remove(&index);
                }
                _ => {
                    now += Duration::from_nanos(1 << rng.random_range(10..36));
                    while let Some(index) = pop(&mut wheel, now) {
                        let deadline = model.remove(&index).expect("armed");
                        assert!(deadline <= now);
                    }
                    let tick = Duration::from_nanos(2 << TICK_SHIFT);
                    assert!(model.values().all(|deadline| *deadline + tick > now));
                    if let Some(earliest) = model.values().min() {
                        let next = wheel.next_deadline().expect("something is armed");
                        assert!(next <= (*earliest).max(now) + tick);
                        assert!(next > now, "a deadline in the past would spin");
                    } else {
                        assert_eq!(wheel.next_deadline(), None);
                    }
                }
            }
        }
    }
}
