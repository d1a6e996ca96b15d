//! Compares instruction counts of the work per packet, under valgrind, with reviewed numbers. The counts do not
//! depend on the load of the machine. `make instructions` runs it; `UPDATE_INSTRUCTIONS=1` updates the numbers.
//!
//! valgrind emulates a processor without AVX-512, so that the counts differ little between machines.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use per_packet::instructions::{COUNTED, Case};

/// Bursts of 32 that count.
const BURSTS: u32 = 100;
/// Largest difference of a count from its reviewed number, percent.
const TOLERANCE: u64 = 3;

fn table() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt")
}

/// Returns the instructions per operation.
fn count(case: Case) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{COUNTED}*"))
        .args([env!("CARGO_BIN_EXE_instructions"), case.name(), &BURSTS.to_string()])
        .output()
        .unwrap_or_else(|error| panic!("valgrind, of the Debian package of this name: {error}"));
    let (out, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{log}");
    let done: u64 = out.trim().parse().unwrap_or_else(|_| panic!("{out:?}"));
    let collected = log.lines().find_map(|line| line.split_once("Collected :")).map(|(_, rest)| rest.trim());
    let collected: u64 = collected.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{log}"));
    assert!(collected > 0, "nothing was counted: is {COUNTED} still its name?\n{log}");
    collected / done
}

#[test]
#[cfg_attr(debug_assertions, ignore = "the numbers are of a release build: make instructions")]
fn the_work_per_packet_takes_the_reviewed_instructions() {
    let counts = Case::ALL.map(|case| (case.name(), count(case)));
    let mut measured = String::new();
    for (name, count) in counts {
        writeln!(measured, "{name} {count}").unwrap();
    }
    if env::var_os("UPDATE_INSTRUCTIONS").is_some() {
        fs::write(table(), &measured).unwrap();
    }
    // No work per packet is proportional to the number of connections.
    let [few, many] = [Case::Echo, Case::EchoOfMany]
        .map(|case| counts.iter().find(|(name, _)| *name == case.name()).map(|(_, count)| *count).unwrap());
    assert!(
        many < few * 5 / 4,
        "a request of one of many connections takes {many} instructions, of few {few}"
    );
    let reviewed = fs::read_to_string(table()).unwrap();
    assert_eq!(reviewed.lines().count(), counts.len(), "each case once:\n{reviewed}");
    for (name, count) in counts {
        let number = reviewed.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        let number = number.unwrap_or_else(|| panic!("{name} has no reviewed number"));
        let apart = count.abs_diff(number).saturating_mul(100);
        assert!(
            apart <= number.saturating_mul(TOLERANCE),
            "{name}: {count} instructions, {number} were reviewed; all:\n{measured}"
        );
    }
}
