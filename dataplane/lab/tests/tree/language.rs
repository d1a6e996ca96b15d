//! The rule of language in CONTRIBUTING.md, as far as a program can check it: the vocabulary, how doc comments start,
//! and the length of lines.

use super::{assert_none, files};

/// Columns of a line, at most, in every kind of file.
const COLUMNS_MAX: usize = 120;
/// Doc comments of at most three words, at most, in the whole tree.
const SHORT_DOCS_MAX: usize = 49;
/// Words with which no doc comment starts: a sentence starts with its subject.
const STARTS: [&str; 6] = ["What", "Whether", "Of which", "As there", "Whoever", "Whatever"];
/// Words that comments and documents avoid, in lower case; CONTRIBUTING.md names the words to use instead.
const AVOIDED: [&str; 14] = [
    "octet",
    "octets",
    "told",
    "whoever",
    "neighbour",
    "neighbours",
    "behaviour",
    "colour",
    "colours",
    "favour",
    "recognise",
    "initialise",
    "optimise",
    "acknowledgement",
];
/// The list of avoided words itself stands in these files.
const EXEMPT: [&str; 2] = ["dataplane/lab/tests/tree/language.rs", "CONTRIBUTING.md"];

/// Removes quotations and code: an RFC keeps its words, and a name is not prose.
fn unquoted(text: &str) -> String {
    let without = |text: &str, mark: char| -> String {
        text.split(mark).enumerate().map(|(at, part)| if at % 2 == 0 { part } else { " " }).collect()
    };
    without(&without(text, '`'), '"')
}

/// Returns the doc comments of a Rust file: line number and text, its lines joined.
fn doc_comments(source: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut before = "";
    for (number, line) in (1..).zip(source.lines()) {
        let line = line.trim_start();
        let (mark, text) = match (line.strip_prefix("///"), line.strip_prefix("//!")) {
            (Some(text), _) if !text.starts_with('/') => ("///", text),
            (_, Some(text)) => ("//!", text),
            _ => ("", ""),
        };
        match found.last_mut() {
            Some((_, comment)) if mark == before && !mark.is_empty() => {
                comment.push(' ');
                comment.push_str(text.trim());
            }
            _ if !mark.is_empty() => found.push((number, text.trim().to_owned())),
            _ => {}
        }
        before = mark;
    }
    found
}

/// Returns the comment blocks of a Rust file, `//` comments included: first line and text.
fn comments(source: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(source.lines()) {
        let text = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
        match (text, found.last_mut()) {
            (Some(text), Some((_, comment))) if open => {
                comment.push(' ');
                comment.push_str(text.trim());
            }
            (Some(text), _) => found.push((number, text.trim().to_owned())),
            (None, _) => {}
        }
        open = text.is_some();
    }
    found
}

fn avoided_words(text: &str) -> Vec<String> {
    let text = unquoted(text).to_lowercase();
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    words.filter(|word| AVOIDED.contains(word)).map(str::to_owned).collect()
}

#[test]
fn lines_end_within_the_columns() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs", "md", "toml", "c", "h", "pkt", "sh", "py"]) {
        for (number, line) in (1..).zip(text.lines()) {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX {
                offences.push(format!("{path}:{number}: {columns} columns, {COLUMNS_MAX} at most"));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn doc_comments_start_with_their_subject() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs"]) {
        for (number, comment) in doc_comments(&text) {
            let starts = |start: &str| {
                comment.strip_prefix(start).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            let single = !comment.is_empty() && comment.split_whitespace().count() == 1;
            if STARTS.iter().any(|start| starts(start)) || single {
                offences.push(format!("{path}:{number}: {comment}"));
            }
        }
    }
    assert_none(&offences);
}

#[test]
fn few_doc_comments_have_three_words_or_fewer() {
    let mut short = Vec::new();
    for (path, text) in files(&["rs"]) {
        for (number, comment) in doc_comments(&text) {
            if (1..=3).contains(&comment.split_whitespace().count()) && !comment.starts_with(['#', '`']) {
                short.push(format!("{path}:{number}: {comment}"));
            }
        }
    }
    assert!(short.len() <= SHORT_DOCS_MAX, "{} short comments:\n{}", short.len(), short.join("\n"));
}

#[test]
fn the_vocabulary_is_the_field_s() {
    let mut offences = Vec::new();
    for (path, text) in files(&["rs"]) {
        for (number, comment) in comments(&text) {
            let words = avoided_words(&comment);
            offences.extend(words.into_iter().map(|word| format!("{path}:{number}: {word}")));
        }
    }
    for (path, text) in files(&["md"]) {
        for (number, line) in (1..).zip(text.lines()) {
            let words = avoided_words(line);
            offences.extend(words.into_iter().map(|word| format!("{path}:{number}: {word}")));
        }
    }
    offences.retain(|offence| !EXEMPT.iter().any(|path| offence.starts_with(path)));
    assert_none(&offences);
}

/// The scanner itself: quotations and code are left out, blocks are joined, words are whole.
#[test]
fn the_scanner_sees_what_it_should() {
    let source = "//! One file.\n\n/// What it is.\n/// And more.\nfn f() {}\n// \"octets\" and `octets`\n";
    let docs = doc_comments(source);
    assert_eq!(docs, [(1, "One file.".to_owned()), (3, "What it is. And more.".to_owned())]);
    assert_eq!(comments(source).len(), 3);
    assert!(avoided_words("\"octets\" and `octets`").is_empty());
    assert_eq!(avoided_words("Two Octets are told"), ["octets", "told"]);
    assert!(avoided_words("the toldest").is_empty());
}
