//! Counters that threads share, and their form in messages of the control socket.

use std::sync::atomic::{AtomicU64, Ordering};

use iwarp_control::{CounterGroup, CounterRow};
use iwarp_counters::counters;

counters! {
    /// Counters of transfers of files.
    pub atomic struct TransferStats {
        /// Transfers in flight at present.
        in_flight,
        /// Tasks that wait for room at present.
        waiting,
        /// Transfers done since the start.
        done,
        /// Tasks that have had to wait for room since the start.
        waited,
        /// Reads whose data was in the page cache: they were no transfers.
        cached,
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Returns the value of a counter.
pub fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Returns a group of counters from the block that `visit` visits: a name, a help text and a value at a time.
pub fn group(
    name: &str,
    visit: impl FnOnce(&mut dyn FnMut(&'static str, &'static str, u64)),
) -> CounterGroup {
    let mut counters = Vec::new();
    visit(&mut |name, help, value| {
        counters.push(CounterRow { name: name.to_owned(), help: help.trim().to_owned(), value });
    });
    CounterGroup { group: name.to_owned(), counters }
}
