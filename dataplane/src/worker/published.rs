//! Published copy of a worker's counters, which other threads may read at any time.
//!
//! A worker counts in private `u64`s and copies them here a few times per second with relaxed stores of a single
//! writer. Reading costs the packet path nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use iwarp_engine::NoticeStats;
use tcp_stack::TcpStats;

use super::{Gauges, PacketPoolStats, WorkerStats};
use crate::dpdk::{RxQueueStats, TxQueueStats};

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
    /// Every counter once, even if several ports have it.
    rows: Vec<Row>,
    /// Index in `rows` of each value.
    row_of: Vec<usize>,
    values: Vec<AtomicU64>,
    /// Number of the worker's thread; 0 before it runs.
    thread: AtomicU32,
}

impl Published {
    /// Creates a copy with the rows of `source`, all zero.
    pub fn new(source: &dyn Visit) -> Self {
        let (mut rows, mut row_of) = (Vec::new(), Vec::new());
        source.visit(&mut |group, name, help, _| {
            let row = Row { group, name, help };
            let known = rows.iter().position(|known| *known == row);
            row_of.push(known.unwrap_or(rows.len()));
            if known.is_none() {
                rows.push(row);
            }
        });
        let values = row_of.iter().map(|_| AtomicU64::new(0)).collect();
        Self { rows, row_of, values, thread: AtomicU32::new(0) }
    }

    /// Notes that the calling thread is the worker's.
    pub(super) fn set_thread(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// Returns the number of the worker's thread; `None` before it runs.
    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread != 0)
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

    /// Returns every counter once, even if several ports have it.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.rows.iter().copied()
    }

    /// Returns the last published value of every counter, summed over the ports, in the order of [`Self::rows`].
    pub fn totals(&self) -> Vec<(Row, u64)> {
        let mut totals: Vec<(Row, u64)> = self.rows().map(|row| (row, 0)).collect();
        for (at, value) in self.row_of.iter().zip(&self.values) {
            if let Some((_, total)) = totals.get_mut(*at) {
                *total = total.wrapping_add(value.load(Ordering::Relaxed));
            }
        }
        totals
    }

    /// Returns the last published value of a counter, summed over the ports; 0 for an unknown name.
    fn value(&self, group: &str, name: &str) -> u64 {
        let row = self.rows.iter().position(|row| row.group == group && row.name == name);
        let values = self.row_of.iter().zip(&self.values).filter(|(at, _)| Some(**at) == row);
        values.fold(0, |sum, (_, value)| sum.wrapping_add(value.load(Ordering::Relaxed)))
    }
}

/// Declares the blocks that the daemon itself reads: the group of each stands here alone, and a counter is a field.
macro_rules! blocks {
    ($($(#[$doc:meta])* $group:ident = $name:literal, $read:ident: $block:ty;)+) => {
        impl Published {
            $(
                pub(super) const $group: &str = $name;

                $(#[$doc])*
                pub fn $read(&self) -> $block {
                    <$block>::read(&mut |name| self.value($name, name))
                }
            )+
        }
    };
}

blocks! {
    /// Returns the last published counters of the worker itself.
    WORKER = "worker", worker: WorkerStats;
    /// Returns the last published counters of reception, summed over the ports.
    RX_QUEUE = "rx_queue", rx_queue: RxQueueStats;
    /// Returns the last published counters of transmission, summed over the ports.
    TX_QUEUE = "tx_queue", tx_queue: TxQueueStats;
    /// Returns the last published counters of the packet pool, summed over the ports.
    PACKET_POOL = "packet_pool", packet_pool: PacketPoolStats;
    /// Returns the last published counters of TCP, summed over the ports.
    TCP = "tcp", tcp: TcpStats;
    /// Returns the last published gauges, summed over the ports.
    GAUGES = "now", gauges: Gauges;
    /// Returns the last published counters of the worker's events, summed over the ports.
    NOTICES = "notices", notices: NoticeStats;
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
        assert_eq!(
            published.totals().iter().map(|(row, sum)| (row.name, *sum)).collect::<Vec<_>>(),
            [("frames", 12)]
        );
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
