//! A windowed maximum in a few bytes: the three largest values, each later than the one before (after K. Nichols).

/// A value and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Maximum {
    value: u32,
    /// Time of the value, modulo 2^32.
    at: u32,
}

/// The maximum over a window of time, in a unit that the caller chooses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowedMax {
    /// Largest value of the window; largest after it; largest after that.
    best: [Maximum; 3],
}

impl WindowedMax {
    /// Returns the largest value of the window.
    pub(super) const fn get(&self) -> u32 {
        let [first, ..] = self.best;
        first.value
    }

    /// Adds a value of time `at`, which never goes back; forgets values older than `window`.
    pub(super) fn update(&mut self, window: u32, at: u32, value: u32) {
        let new = Maximum { value, at };
        let [mut first, mut second, mut third] = self.best;
        if value >= first.value || at.wrapping_sub(third.at) > window {
            self.best = [new; 3];
            return;
        }
        if value >= second.value {
            (second, third) = (new, new);
        } else if value >= third.value {
            third = new;
        }
        let age = at.wrapping_sub(first.at);
        if age > window {
            (first, second, third) = (second, third, new);
            if at.wrapping_sub(first.at) > window {
                (first, second) = (second, third);
            }
        } else if second.at == first.at && age > window / 4 {
            // After a quarter of the window a second choice is taken, and after half of it a third.
            (second, third) = (new, new);
        } else if third.at == second.at && age > window / 2 {
            third = new;
        }
        self.best = [first, second, third];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_lasts_for_the_window_and_no_longer() {
        let mut max = WindowedMax::default();
        max.update(10, 0, 100);
        for at in 1..=10 {
            max.update(10, at, 50 - at);
            assert_eq!(max.get(), 100);
        }
        max.update(10, 11, 30);
        assert!((40..50).contains(&max.get()), "{}", max.get());
    }

    #[test]
    fn a_larger_value_counts_at_once() {
        let mut max = WindowedMax::default();
        for (at, value) in [(0, 10), (1, 9), (2, 11), (3, 500)] {
            max.update(10, at, value);
        }
        assert_eq!(max.get(), 500);
    }

    /// The result is never above the true maximum of the window, and never below that of its later part.
    #[test]
    fn the_estimate_is_close_to_the_maximum() {
        let mut random = crate::testutil::Random::new(1);
        let mut max = WindowedMax::default();
        let mut values = alloc::vec::Vec::new();
        let start = u32::MAX - 500;
        for step in 0..2_000_u32 {
            let value = u32::try_from(random.below(1_000)).unwrap();
            values.push(value);
            max.update(10, start.wrapping_add(step), value);
            let truth = *values.iter().rev().take(11).max().unwrap();
            let late = *values.iter().rev().take(3).max().unwrap();
            assert!(max.get() <= truth && max.get() >= late.min(truth), "{step}");
        }
    }
}
