//! Pages of docs/ whose tables name the tests that prove them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads a page of docs/.
pub(crate) fn read(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Returns the rows of its tables, cell by cell, without heads and rules.
pub(crate) fn rows(page: &str) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in page.lines() {
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            // The rule below a head.
            if line.starts_with("|--") {
                rows.pop();
            }
            continue;
        };
        rows.push(cells.split(" | ").map(str::to_string).collect());
    }
    rows
}

/// Returns the texts in `backticks` in a cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Panics unless each name in the cell is a test of the file named before it, and at least one exists.
#[track_caller]
pub(crate) fn assert_names_tests(cell: &str) {
    let (mut file, mut text, mut tests) = ("", String::new(), 0);
    for name in quoted(cell) {
        if Path::new(name).extension().is_some_and(|it| it == "rs") {
            file = name;
            text =
                std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            continue;
        }
        let at = text.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("`{name}` is not in `{file}`"));
        let before = text[..at].trim_end_matches("async ").trim_end().rsplit("\n\n").next().unwrap();
        let is_test = before.contains("#[test]") || before.contains("proptest!");
        assert!(is_test, "`{name}` in `{file}` is not a test");
        tests += 1;
    }
    assert!(tests > 0, "no test is named in: {cell}");
}

/// Panics unless each file named in the cell exists, each function named after one is in it, and one file is named.
#[track_caller]
pub(crate) fn assert_names_code(cell: &str) {
    let (mut text, mut files) = (String::new(), 0);
    for name in quoted(cell) {
        if Path::new(name).extension().is_some() && name.contains('/') {
            text =
                std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            files += 1;
        } else {
            assert!(text.contains(name), "`{name}` is not in the file named before it: {cell}");
        }
    }
    assert!(files > 0, "no file is named in: {cell}");
}
