//! `docs/rfc5042.md` lists every rule of RFC 5042, and the code and tests that it names exist.

use crate::page;
use std::collections::BTreeMap;

use tcp_stack::testutil::list_entries;

/// Sections of RFC 5042 with rules: number of rules, and number of words in capitals (MUST, SHOULD, RECOMMENDED).
/// Sections 1 and 10.2 use other such words to define them.
const SECTIONS: [(&str, usize, usize); 22] = [
    ("3", 3, 3),
    ("5.4.2", 1, 1),
    ("5.4.5", 2, 2),
    ("6.1.1", 3, 4),
    ("6.2.1", 1, 1),
    ("6.2.2", 2, 2),
    ("6.3.2", 1, 1),
    ("6.3.3", 1, 1),
    ("6.3.4", 1, 1),
    ("6.3.5", 1, 1),
    ("6.3.6", 1, 1),
    ("6.4.1", 1, 1),
    ("6.4.3.1", 1, 1),
    ("6.4.3.2", 2, 2),
    ("6.4.3.3", 2, 2),
    ("6.4.5", 1, 1),
    ("6.4.6", 1, 2),
    ("7.1", 1, 1),
    ("7.2", 2, 2),
    ("7.3", 1, 1),
    // "MUST (this is stronger than the SHOULD in Section 6.3.2)" in the second.
    ("10.2", 3, 4),
    ("total", 32, 35),
];

/// Rules about features that Ironwarp does not have; no test can prove them.
const WITHOUT_TESTS: [&str; 3] = ["5.4.2 (1)", "5.4.5 (1)", "5.4.5 (2)"];

fn words(quote: &str) -> usize {
    let words = quote.split(|c: char| !c.is_ascii_uppercase());
    words.filter(|word| ["MUST", "SHALL", "SHOULD", "REQUIRED", "RECOMMENDED"].contains(word)).count()
}

#[test]
fn no_rule_is_missing() {
    let mut found: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for entry in list_entries(&page::read("rfc5042.md")) {
        let (section, number) = entry[0].split_once(' ').unwrap();
        let words = words(&entry[1]);
        assert!(entry[1].starts_with('"') && words > 0, "{}: no quotation of a rule", entry[0]);
        for key in [section, "total"] {
            let (rules, all) = found.entry(key.to_string()).or_default();
            *rules += 1;
            *all += words;
        }
        assert_eq!(number, format!("({})", found[section].0), "{section}: out of order");
    }
    let expected: BTreeMap<String, (usize, usize)> =
        SECTIONS.into_iter().map(|(section, rules, words)| (section.to_string(), (rules, words))).collect();
    assert_eq!(found, expected);
}

#[test]
fn every_rule_names_existing_code_and_tests() {
    let deviations = page::read("deviations.md");
    for entry in list_entries(&page::read("rfc5042.md")) {
        let [rule, _, keeps, tests] = &entry[..] else { panic!("{entry:?}") };
        if let Some((_, rest)) = keeps.split_once("[deviations.md](deviations.md), ") {
            let name = rest.trim_end_matches('.');
            assert!(deviations.contains(&format!("- **{name}** ")), "{rule}: no deviation `{name}`");
        }
        if WITHOUT_TESTS.contains(&rule.as_str()) {
            assert!(tests.starts_with("None: "), "{rule}");
            continue;
        }
        if !keeps.starts_with("As for") && !keeps.starts_with("The same") {
            page::assert_names_code(keeps);
        }
        page::assert_names_tests(tests);
    }
}
