//! Commands that documents name: `make` has them, and `make test` runs them, or CONTRIBUTING.md says when they last
//! passed.

use std::collections::BTreeSet;
use std::fs;

use super::{assert_none, files, root};

/// Returns the names at the start of lines of the Makefile that end with a colon, and what follows.
fn targets(makefile: &str) -> Vec<(&str, &str)> {
    makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, rest)| is_name(name) && !rest.starts_with('='))
        .collect()
}

/// Tells whether the text can be the name of a target.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns the words of a variable of the Makefile, whose lines a backslash continues.
fn variable<'a>(makefile: &'a str, name: &str) -> BTreeSet<&'a str> {
    let start = format!("\n{name} := ");
    let value = makefile.split_once(start.as_str()).unwrap_or_else(|| panic!("the Makefile has no {name}")).1;
    let lines = value.split_inclusive('\n');
    let count = lines.clone().take_while(|line| line.trim_end().ends_with('\\')).count();
    lines.take(count + 1).flat_map(str::split_whitespace).filter(|word| is_name(word)).collect()
}

/// Returns the targets of every `make` command in the code of a Markdown text, in blocks or between backticks.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            // The end of the line is a comment.
            let command = line.split(" #").next().unwrap_or_default();
            found.extend(named(command.trim_start_matches("# ").trim_start_matches("$ ")));
        } else {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    found.extend(prose.split('`').skip(1).step_by(2).flat_map(named));
    found
}

/// Returns the targets of the `make` commands of a shell line.
fn named(line: &str) -> Vec<String> {
    let calls = line.split("&&").filter_map(|call| call.trim().strip_prefix("make "));
    let words = calls.flat_map(str::split_whitespace);
    words.filter(|word| is_name(word)).map(str::to_owned).collect()
}

/// Returns the commands of the first column of CONTRIBUTING.md's tables.
fn listed(contributing: &str) -> BTreeSet<String> {
    let rows = contributing.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.flat_map(commands).collect()
}

#[test]
fn commands_in_documents_are_targets() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let known: BTreeSet<&str> = targets(&makefile).into_iter().map(|(name, _)| name).collect();
    let (mut seen, mut offences) = (0, Vec::new());
    for (path, text) in files(&["md"]) {
        for command in commands(&text) {
            seen += 1;
            if !known.contains(command.as_str()) {
                offences.push(format!("{path}: make {command}"));
            }
        }
    }
    assert!(seen > 0, "no document names a command");
    assert_none(&offences);
}

/// Every target that `make help` shows belongs to `make test`, or to a table of CONTRIBUTING.md, and not to both.
#[test]
fn make_test_runs_every_target_or_a_table_says_when_it_passed() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let (makefile, contributing) = (read("Makefile"), read("CONTRIBUTING.md"));
    let mut suites = BTreeSet::from(["fmt", "unit"]);
    for list in ["ALONE", "TOGETHER", "BESIDE"] {
        suites.extend(variable(&makefile, list));
    }
    let (listed, known) = (listed(&contributing), targets(&makefile));
    let shown = known.iter().filter(|(_, rest)| rest.contains(" ## ")).map(|(name, _)| *name);
    let mut offences: Vec<String> = shown
        .filter(|name| suites.contains(name) == listed.contains(*name))
        .map(|name| format!("make {name}: in a list of suites {}", suites.contains(name)))
        .collect();
    let missing = suites.iter().filter(|suite| !known.iter().any(|(name, _)| name == *suite));
    offences.extend(missing.map(|suite| format!("the suite {suite} has no target")));
    assert_none(&offences);
}

#[test]
fn the_scanner_sees_commands_and_nothing_else() {
    let block = "```\n# make three && make four A=b   # make five\nmake six\n```\n";
    let text = format!("To make none, `make one two`.\n{block}`x make y`");
    assert_eq!(commands(&text), ["three", "four", "six", "one", "two"]);
    let makefile = "A := x \\\n    y\nB := z\none: two ## three\nC ?= :\n\t@echo: a\nfour:\n";
    assert_eq!(variable(&format!("\n{makefile}"), "A"), BTreeSet::from(["x", "y"]));
    assert_eq!(targets(makefile), [("one", " two ## three"), ("four", "")]);
    assert_eq!(listed("| `make one` | x |\n| `make two`, `make three` | `make four` |\n"), {
        BTreeSet::from(["one", "two", "three"].map(str::to_owned))
    });
}
