//! Which cache lines a segment in order touches that are its connection's own, seen by valgrind's `lackey`, which tells
//! every access to memory. Segments are received for one connection and for another by turns: a line that is touched
//! for the one and never for the other is the one's own, in whatever table it lies. `make instructions` runs this.
//!
//! From before the segment is taken to when the application has let go of its data; the segment itself, and what all
//! connections share, are touched for both and do not count.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// What all connections share may be touched now and then, and for one of the two only. Whatever is a connection's own
/// and is touched for fewer than one segment in so many is not told apart from that.
const SELDOM: u64 = 10;

/// What lackey tells of an access to memory: its address and bytes, from a line like " S 1ffeffe7e8,8". Instructions
/// begin with "I".
fn access(line: &str) -> Option<(u64, u64)> {
    let (kind, access) = line.trim().split_once(' ')?;
    let (at, bytes) = access.split_once(',').filter(|_| matches!(kind, "L" | "S" | "M"))?;
    Some((u64::from_str_radix(at, 16).ok()?, bytes.parse().ok()?))
}

/// All accesses to memory while segments are received, and the addresses of the marks.
fn watch(flow: &str) -> (Vec<(u64, u64)>, [u64; 3]) {
    let mut lackey = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", env!("CARGO_BIN_EXE_lines"), flow])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("valgrind, of the Debian package of this name: {error}"));
    let trace = BufReader::new(lackey.stderr.take().unwrap()).lines();
    let accesses = trace.filter_map(|line| access(&line.unwrap())).collect();
    let mut out = String::new();
    lackey.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(lackey.wait().unwrap().success(), "{out}");
    let numbers: Vec<u64> = out.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [first, second, end, _segments] = numbers[..] else { panic!("{out:?}") };
    (accesses, [first, second, end])
}

/// The lines that are the first connection's own, and the second's.
fn own_lines(flow: &str) -> [Vec<u64>; 2] {
    let (accesses, marks) = watch(flow);
    let mut touched = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
    let mut segments = [0_u64; 2];
    let (mut whose, mut lines) = (None::<usize>, BTreeSet::new());
    for (at, bytes) in accesses {
        if let Some(mark) = marks.iter().position(|mark| *mark == at) {
            if let Some(whose) = whose.filter(|_| !lines.is_empty()) {
                segments[whose] += 1;
                lines.iter().for_each(|line| *touched[whose].entry(*line).or_default() += 1);
            }
            lines.clear();
            whose = Some(mark).filter(|mark| *mark < touched.len());
        } else if whose.is_some() {
            lines.extend(at / LINE..=(at + bytes - 1) / LINE);
        }
    }
    assert!(segments.iter().all(|segments| *segments >= 100), "{segments:?}: were the marks seen?");
    [0, 1].map(|whose| {
        let (mine, others) = (&touched[whose], &touched[1 - whose]);
        let own = mine
            .iter()
            .filter(|(line, count)| !others.contains_key(line) && **count * SELDOM >= segments[whose]);
        own.map(|(line, _)| *line).collect()
    })
}

#[test]
#[cfg_attr(debug_assertions, ignore = "lackey takes minutes for a debug build: make instructions")]
fn a_segment_in_order_touches_two_lines_of_its_connection() {
    for own in own_lines("same") {
        let [first, second] = own[..] else { panic!("{own:x?}") };
        assert_eq!(first + 1, second, "two lines of the block");
    }
    // Of another connection than the one before: its addresses, and the table of flows, where it begins its search
    // wherever the hash says, be it across two lines, and finds where the connection is.
    for own in own_lines("other") {
        assert!((4..=6).contains(&own.len()), "{own:x?}");
    }
}

/// Bytes of a connection's block, in its place.
const BLOCK: u64 = 896;

#[test]
#[cfg_attr(debug_assertions, ignore = "lackey takes minutes for a debug build: make instructions")]
fn a_request_and_its_answer_touch_eight_lines_of_a_block() {
    for own in own_lines("answered") {
        // Nothing else that is a connection's own has so many lines so near to each other.
        let from =
            |first: u64| own.iter().filter(|line| (first..first + BLOCK / LINE).contains(line)).count();
        let block = own.iter().map(|first| from(*first)).max().unwrap_or(0);
        println!("{block} lines of the block, {} in all: {own:x?}", own.len());
        assert_eq!(block, 8, "{own:x?}");
        // Beside it the table of flows, in two lines, or three where it begins its search across two, and the segment that
        // is acknowledged.
        assert!((block + 3..=block + 4).contains(&own.len()), "{own:x?}");
    }
}
