//! Published copy of a worker's counters, which other threads may read at any time.
//!
//! A worker counts in private `u64`s and copies them here a few times per second with relaxed stores of a single
//! writer. Reading costs the packet path nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identity of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Group of the counter.
    pub group: &'static str,
    /// Name of the counter, unique in the group.
    pub name: &'static str,
    /// One-line description of the counter.
    pub help: &'static str,
}

/// Visits every counter, always in the same order.
pub trait Visit {
    /// Calls `f(group, name, help, value)` once per counter.
    fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64));
}

/// The published copy of all counters of one worker.
#[derive(Debug)]
pub struct Published {
    rows: Vec<Row>,
    values: Vec<AtomicU64>,
}

impl Published {
    /// Creates a copy with the rows of `source`, all zero.
    pub fn new(source: &dyn Visit) -> Self {
        let mut rows = Vec::new();
        source.visit(&mut |group, name, help, _| rows.push(Row { group, name, help }));
        let values = rows.iter().map(|_| AtomicU64::new(0)).collect();
        Self { rows, values }
    }

    /// Copies the current values. Called by the worker only; it neither allocates nor waits.
    pub fn publish(&self, source: &dyn Visit) {
        let mut slots = self.values.iter();
        source.visit(&mut |_, _, _, value| {
            if let Some(slot) = slots.next() {
                slot.store(value, Ordering::Relaxed);
            }
        });
    }

    fn read(&self) -> impl Iterator<Item = (Row, u64)> + '_ {
        self.rows.iter().copied().zip(self.values.iter().map(|value| value.load(Ordering::Relaxed)))
    }

    /// Returns every counter once, even if several ports have it.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let first =
            |at: &usize| self.rows.iter().position(|row| Some(row) == self.rows.get(*at)) == Some(*at);
        (0..self.rows.len()).filter(first).filter_map(|at| self.rows.get(at).copied())
    }

    /// Returns the last published value of a counter, summed over the ports; 0 for an unknown name.
    pub fn value(&self, group: &str, name: &str) -> u64 {
        self.read().filter(|(row, _)| row.group == group && row.name == name).map(|(_, value)| value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two(u64, u64);

    impl Visit for Two {
        fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
            f("g", "a", "The first.", self.0);
            f("g", "b", "The second.", self.1);
        }
    }

    struct TwoPorts(u64, u64);

    impl Visit for TwoPorts {
        fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
            f("port", "frames", "Frames.", self.0);
            f("port", "frames", "Frames.", self.1);
        }
    }

    #[test]
    fn counters_of_several_ports_are_one_row_and_their_sum() {
        let published = Published::new(&TwoPorts(0, 0));
        published.publish(&TwoPorts(5, 7));
        assert_eq!(published.rows().count(), 1);
        assert_eq!(published.value("port", "frames"), 12);
    }

    #[test]
    fn readers_see_what_was_published_last() {
        let published = Published::new(&Two(0, 0));
        published.publish(&Two(1, 2));
        published.publish(&Two(3, 4));
        assert_eq!(published.value("g", "a"), 3);
        assert_eq!(published.value("g", "b"), 4);
        assert_eq!(published.value("g", "c"), 0);
        assert_eq!(published.rows().count(), 2);
    }
}
