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

use alloc::borrow::ToOwned;
use alloc::string::String;
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

/// Returns the entries of a document's lists whose items begin with a name in bold: the name, the text after it, and
/// the text of each item below, without its label.
///
/// ```
/// let text = "- **one** first\n  line\n  - code: `a.rs`,\n    `b.rs`\n\nText.\n- **two** second\n";
/// let entries = tcp_stack::testutil::list_entries(text);
/// assert_eq!(entries, [vec!["one", "first line", "`a.rs`, `b.rs`"], vec!["two", "second"]]);
/// ```
pub fn list_entries(text: &str) -> Vec<Vec<String>> {
    let mut entries: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some((name, rest)) = line.strip_prefix("- **").and_then(|item| item.split_once("** ")) {
            entries.push([name, rest].map(ToOwned::to_owned).into());
            inside = true;
            continue;
        }
        inside &= line.starts_with("  ");
        let Some(entry) = entries.last_mut().filter(|_| inside) else { continue };
        match line.strip_prefix("  - ").and_then(|item| item.split_once(": ")) {
            Some((_, rest)) => entry.push(rest.to_owned()),
            None => {
                if let Some(last) = entry.last_mut() {
                    last.push(' ');
                    last.push_str(line.trim());
                }
            }
        }
    }
    entries
}
