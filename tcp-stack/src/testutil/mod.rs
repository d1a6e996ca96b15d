//! Test support, also for other crates (feature `testutil`): buffers on the heap, random numbers from a seed, a network
//! in virtual time ([`Simulation`]) and the fuzz targets.

mod app;
mod attack;
mod cut;
pub mod fuzz;
mod heap;
mod liar;
mod link;
mod mark;
mod random;
mod router;
mod scenario;
mod segment;
mod sim;
mod trace;
mod watch;

pub use app::{App, Ending, Outcome, Plan, Reading, Sending, pattern_byte};
pub use attack::{blind_segment, blind_syn};
pub use cut::cut;
pub use heap::{HeapBuf, HeapPool};
pub use liar::{Liar, Lie};
pub use link::{Burst, Flap, Link, LinkConfig, LinkCounts};
pub use mark::mark_congestion;
pub use random::Random;
pub use scenario::{ConnPlan, Report, Scenario};
pub use sim::Simulation;
pub use watch::{Watch, WireSegment};

use alloc::vec::Vec;

/// Returns the bytes that the hexadecimal digits in `text` stand for; other characters are skipped.
pub fn hex(text: &str) -> Vec<u8> {
    let mut digits = text.chars().filter_map(|digit| digit.to_digit(16));
    let mut bytes = Vec::new();
    while let (Some(high), Some(low)) = (digits.next(), digits.next()) {
        bytes.push(u8::try_from(high * 16 + low).unwrap_or(0));
    }
    bytes
}
