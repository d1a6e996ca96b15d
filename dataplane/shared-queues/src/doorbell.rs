//! Doorbells: one bit per queue that has new entries, and one summary word, so that a worker finds the queues to visit
//! among thousands of idle ones by reading one cache line.
//!
//! ```text
//!  line 0   true while the worker sleeps, written by the worker
//!  line 1   summary: bit n is set if word n of the bitmap may have a bit
//!  then     bitmap: bit n % 64 of word n / 64 is queue n
//! ```
//! The doorbells of the first 448 queues share the line of the summary, so that one transfer from core to core brings
//! both.

use crate::LINE_WORDS;
use crate::sync::{AtomicU64, Ordering, fence};

/// Word that is 1 while the worker sleeps.
const SLEEPS: usize = 0;
/// Word of the summary.
const SUMMARY: usize = LINE_WORDS;
/// First word of the bitmap.
const BITMAP: usize = SUMMARY + 1;
/// Most queues with a doorbell: as many as the bits of the summary have words.
pub const DOORBELL_QUEUES_MAX: u32 = 64 * 64;

/// Most queues that [`Doorbells::take`] passes on.
pub const TAKEN_MAX: u32 = 4 * 64;

/// Doorbells of the queues of one context, in words of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Doorbells<'a> {
    words: &'a [AtomicU64],
}

impl<'a> Doorbells<'a> {
    /// Returns the words that the doorbells of `queues` queues take, whole cache lines.
    pub fn words(queues: u32) -> usize {
        let bitmap = queues.min(DOORBELL_QUEUES_MAX).div_ceil(u64::BITS) as usize;
        BITMAP.saturating_add(bitmap).next_multiple_of(LINE_WORDS)
    }

    /// Takes the words at `start`; `None` if the memory is shorter.
    pub fn new(memory: &'a [AtomicU64], start: usize, queues: u32) -> Option<Self> {
        let words = memory.get(start..start.checked_add(Self::words(queues))?)?;
        Some(Self { words })
    }

    /// Rings for a queue whose entries were published (program). Returns true if the worker sleeps and must be woken.
    #[inline]
    pub fn ring(self, queue: u32) -> bool {
        let group = queue / u64::BITS;
        let (Some(bits), Some(summary)) = (self.bitmap(group), self.words.get(SUMMARY)) else { return false };
        bits.fetch_or(1 << (queue % u64::BITS), Ordering::Release);
        summary.fetch_or(1_u64.checked_shl(group).unwrap_or(0), Ordering::Release);
        // As in `sleep`: each side writes, then reads what the other writes.
        fence(Ordering::SeqCst);
        self.words.get(SLEEPS).is_some_and(|sleeps| sleeps.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if a queue may have rung since the last [`Self::take`] (worker).
    #[inline]
    pub fn has_rung(self) -> bool {
        self.words.get(SUMMARY).is_some_and(|summary| summary.load(Ordering::Relaxed) != 0)
    }

    /// Passes queues that have rung to `visit`, in ascending order, and clears their bits (worker): at most
    /// [`TAKEN_MAX`] queues, of those from `first` on, or else from the beginning on. Returns the number from which the
    /// next call is to take them. Queue numbers are below the number of bits, whatever the program writes.
    #[inline]
    pub fn take(self, first: u32, visit: &mut dyn FnMut(u32)) -> u32 {
        let Some(summary) = self.words.get(SUMMARY) else { return 0 };
        let rung = summary.load(Ordering::Relaxed);
        if rung == 0 {
            return 0;
        }
        let from_first = u64::MAX.checked_shl(first / u64::BITS).unwrap_or(0);
        let mut left = if rung & from_first == 0 { rung } else { rung & from_first };
        let (mut taken, mut next) = (0, 0);
        for _ in 0..TAKEN_MAX / u64::BITS {
            let lowest = left & left.wrapping_neg();
            if lowest == 0 {
                break;
            }
            (taken, left) = (taken | lowest, left ^ lowest);
            next = lowest.trailing_zeros().saturating_add(1).saturating_mul(u64::BITS);
        }
        // The summary is cleared first: a bit that is set from here on sets it again.
        summary.fetch_and(!taken, Ordering::AcqRel);
        for group in Bits(taken) {
            let Some(bits) = self.bitmap(group) else { continue };
            for bit in Bits(bits.swap(0, Ordering::AcqRel)) {
                visit(group.saturating_mul(u64::BITS).saturating_add(bit));
            }
        }
        next
    }

    /// Announces that the worker sleeps, from when this returns true until [`Self::awake`] (worker). Returns false if a
    /// doorbell has rung meanwhile: the worker must not sleep.
    pub fn sleep(self) -> bool {
        let (Some(summary), Some(sleeps)) = (self.words.get(SUMMARY), self.words.get(SLEEPS)) else {
            return true;
        };
        sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if summary.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.awake();
        false
    }

    /// Announces that the worker is awake (worker).
    pub fn awake(self) {
        if let Some(sleeps) = self.words.get(SLEEPS) {
            sleeps.store(0, Ordering::Relaxed);
        }
    }

    /// Returns a word of the bitmap.
    fn bitmap(self, group: u32) -> Option<&'a AtomicU64> {
        self.words.get(BITMAP.checked_add(usize::try_from(group).ok()?)?)
    }
}

/// Numbers of the bits that are set, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = (self.0 != 0).then(|| self.0.trailing_zeros())?;
        self.0 &= self.0.wrapping_sub(1);
        Some(bit)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn memory(words: usize) -> Vec<AtomicU64> {
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    fn taken(doorbells: Doorbells<'_>) -> Vec<u32> {
        let (mut taken, mut next) = (Vec::new(), 0);
        loop {
            let before = taken.len();
            next = doorbells.take(next, &mut |queue| taken.push(queue));
            assert!(taken.len() - before <= TAKEN_MAX as usize, "too many at once");
            if !doorbells.has_rung() {
                return taken;
            }
        }
    }

    #[test]
    fn queues_that_ring_all_the_time_leave_others_their_turn() {
        let memory = memory(Doorbells::words(DOORBELL_QUEUES_MAX));
        let doorbells = Doorbells::new(&memory, 0, DOORBELL_QUEUES_MAX).unwrap();
        let (mut next, mut seen) = (0, std::collections::BTreeSet::new());
        for _ in 0..DOORBELL_QUEUES_MAX / TAKEN_MAX {
            for queue in 0..DOORBELL_QUEUES_MAX {
                doorbells.ring(queue);
            }
            next = doorbells.take(next, &mut |queue| assert!(seen.insert(queue), "{queue} twice"));
        }
        assert_eq!(seen.len(), DOORBELL_QUEUES_MAX as usize);
    }

    #[test]
    fn each_queue_that_rings_is_visited_once() {
        for queues in [1, 63, 64, 65, 1000, DOORBELL_QUEUES_MAX] {
            let memory = memory(Doorbells::words(queues) + 3);
            let doorbells = Doorbells::new(&memory, 3, queues).unwrap();
            assert_eq!(taken(doorbells), []);
            let mut ringing: Vec<u32> =
                [0, 5, 63, 64, 100, 999, 4095].into_iter().filter(|at| *at < queues).collect();
            ringing.push(queues - 1);
            for queue in &ringing {
                assert!(!doorbells.ring(*queue) && !doorbells.ring(*queue), "the worker is awake");
            }
            ringing.sort_unstable();
            ringing.dedup();
            assert_eq!(taken(doorbells), ringing, "{queues} queues");
            assert_eq!(taken(doorbells), [], "each once");
            assert!(Doorbells::new(&memory, 4, queues).is_none(), "the memory is too short");
        }
    }

    #[test]
    fn a_worker_that_sleeps_is_to_be_woken() {
        let memory = memory(Doorbells::words(70));
        let doorbells = Doorbells::new(&memory, 0, 70).unwrap();
        assert!(doorbells.sleep());
        assert!(doorbells.ring(69));
        doorbells.awake();
        assert!(!doorbells.ring(69));
        assert!(!doorbells.sleep(), "a doorbell has rung");
        assert_eq!(taken(doorbells), [69]);
        assert!(!doorbells.ring(69), "it did not fall asleep");
    }

    /// Queue numbers beyond the bitmap are ignored, and so are bits of the summary that have no word.
    #[test]
    fn words_that_the_program_may_not_write_do_no_harm() {
        let memory = memory(Doorbells::words(64));
        let doorbells = Doorbells::new(&memory, 0, 64).unwrap();
        let groups = u32::try_from(memory.len() - BITMAP).unwrap();
        for queue in [groups * 64, DOORBELL_QUEUES_MAX, u32::MAX] {
            assert!(!doorbells.ring(queue));
        }
        assert_eq!(taken(doorbells), []);
        for word in &memory {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(taken(doorbells), (0..groups * 64).collect::<Vec<_>>());
    }
}
