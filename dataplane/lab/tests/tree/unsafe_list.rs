//! Checks that UNSAFE.md lists exactly the files that may contain `unsafe`.

use std::collections::BTreeSet;
use std::fs;

use super::{files, root};

/// Returns true if a file contains `unsafe`, or allows it, outside of comments and strings.
fn is_unsafe(text: &str) -> bool {
    text.lines().any(|line| {
        let code = line.split("//").next().unwrap_or_default();
        let outside_strings = code.split('"').step_by(2).collect::<String>();
        let words = || outside_strings.split(|c: char| !c.is_alphanumeric() && c != '_');
        words().any(|word| word == "unsafe")
            || words().any(|word| word == "unsafe_code")
                && !words().any(|word| word == "forbid" || word == "deny")
    })
}

#[test]
fn the_list_is_complete_and_no_longer_than_needed() {
    let files = files(&["rs"]);
    let found = files
        .iter()
        .filter(|(_, text)| is_unsafe(text))
        .map(|(path, _)| path.clone())
        .collect::<BTreeSet<_>>();
    let list = fs::read_to_string(root().join("UNSAFE.md")).unwrap();
    let listed = list
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect::<BTreeSet<_>>();
    assert_eq!(found, listed);
}

#[test]
fn comments_and_strings_do_not_count() {
    assert!(is_unsafe("    let x = unsafe { f() };"));
    assert!(is_unsafe(r#"#![allow(unsafe_code, reason = "…")]"#));
    assert!(is_unsafe("unsafe impl Send for X {}"));
    assert!(!is_unsafe("#![forbid(unsafe_code)]"));
    assert!(!is_unsafe("//! This is unsafe."));
    assert!(!is_unsafe(&format!("let text = {:?};", "unsafe")));
    assert!(!is_unsafe("fn unsafe_list() {}"));
}
