//! Counts the cache lines of a connection that an in-order segment accesses. valgrind's `lackey` lists every access to
//! memory. Segments arrive for one connection and for another by turns: a line accessed for one and never for the other
//! belongs to that connection. `make instructions` runs this.
//!
//! The accesses count from the receipt of the segment until the application has freed its data. Lines of the segment
//! itself, and lines that connections share, are accessed for both and do not count.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// A line counts if at least one segment in this number accesses it. Rarer accesses may be to lines that connections
/// share.
const RARE: u64 = 10;

/// Parses a line of lackey like " S 1ffeffe7e8,8" into address and bytes; `None` for instructions, which begin with
/// "I".
fn access(line: &str) -> Option<(u64, u64)> {
    let (kind, access) = line.trim().split_once(' ')?;
    let (at, bytes) = access.split_once(',').filter(|_| matches!(kind, "L" | "S" | "M"))?;
    Some((u64::from_str_radix(at, 16).ok()?, bytes.parse().ok()?))
}

/// Returns all accesses to memory while segments are received, and the addresses of the marks.
fn trace_accesses(flow: &str) -> (Vec<(u64, u64)>, [u64; 3]) {
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

/// Returns the lines of the first connection, and those of the second.
fn own_lines(flow: &str) -> [Vec<u64>; 2] {
    let (accesses, marks) = trace_accesses(flow);
    let mut touched = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
    let mut segments = [0_u64; 2];
    let (mut owner, mut lines) = (None::<usize>, BTreeSet::new());
    for (at, bytes) in accesses {
        if let Some(mark) = marks.iter().position(|mark| *mark == at) {
            if let Some(owner) = owner.filter(|_| !lines.is_empty()) {
                segments[owner] += 1;
                lines.iter().for_each(|line| *touched[owner].entry(*line).or_default() += 1);
            }
            lines.clear();
            owner = Some(mark).filter(|mark| *mark < touched.len());
        } else if owner.is_some() {
            lines.extend(at / LINE..=(at + bytes - 1) / LINE);
        }
    }
    assert!(segments.iter().all(|segments| *segments >= 100), "{segments:?}: does the trace have the marks?");
    [0, 1].map(|owner| {
        let (mine, others) = (&touched[owner], &touched[1 - owner]);
        let own = mine
            .iter()
            .filter(|(line, count)| !others.contains_key(line) && **count * RARE >= segments[owner]);
        own.map(|(line, _)| *line).collect()
    })
}

#[test]
#[cfg_attr(debug_assertions, ignore = "lackey takes minutes for a debug build: make instructions")]
fn an_in_order_segment_accesses_two_lines_of_its_connection() {
    for own in own_lines("same") {
        let [first, second] = own[..] else { panic!("{own:x?}") };
        assert_eq!(first + 1, second, "two lines of the block");
    }
    // After a segment of another connection: also its addresses, and the flow table, where the hash selects the start
    // of the search, which may cross into a second line.
    for own in own_lines("other") {
        assert!((4..=6).contains(&own.len()), "{own:x?}");
    }
}

/// Bytes of a control block in its table.
const BLOCK: u64 = 896;

#[test]
#[cfg_attr(debug_assertions, ignore = "lackey takes minutes for a debug build: make instructions")]
fn a_request_and_its_answer_access_eight_lines_of_a_control_block() {
    for own in own_lines("answered") {
        // The control block is the densest group of lines of a connection.
        let from =
            |first: u64| own.iter().filter(|line| (first..first + BLOCK / LINE).contains(line)).count();
        let block = own.iter().map(|first| from(*first)).max().unwrap_or(0);
        println!("{block} lines of the block, {} in all: {own:x?}", own.len());
        assert_eq!(block, 8, "{own:x?}");
        // The others are the flow table, two or three lines, and the acknowledged segment.
        assert!((block + 3..=block + 4).contains(&own.len()), "{own:x?}");
    }
}
