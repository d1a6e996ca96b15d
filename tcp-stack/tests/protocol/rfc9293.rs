//! Checks that `docs/rfc9293.md` names every numbered requirement of RFC 9293 once, with existing files and proofs.

use crate::proofs;
use proofs::{check, names, read, repository};
use std::collections::BTreeSet;
use tcp_stack::testutil::list_entries;

/// Number of requirements of each kind in RFC 9293.
const COUNTS: [(&str, usize); 3] = [("MUST", 69), ("SHLD", 31), ("MAY", 18)];

#[test]
fn every_requirement_has_one_entry_that_names_its_proof() {
    let docs = repository().join("docs");
    let (text, deviations, limits) =
        (read(&docs.join("rfc9293.md")), read(&docs.join("deviations.md")), read(&docs.join("limits.md")));
    let entries = list_entries(&text);
    let ids: Vec<String> = entries.iter().map(|entry| entry[0].clone()).collect();
    let wanted = COUNTS.iter().flat_map(|(kind, count)| (1..=*count).map(move |n| format!("{kind}-{n}")));
    assert_eq!(ids, wanted.collect::<Vec<_>>(), "each once, in their order");
    let mut wrong = Vec::new();
    for entry in entries {
        let [id, rule, code, proof] = &entry[..] else { panic!("{entry:?} has not four parts") };
        assert!(!rule.is_empty());
        for file in names(code) {
            if !repository().join("tcp-stack/src").join(file).exists() {
                wrong.push(format!("{id}: there is no {file}"));
            }
        }
        wrong.extend(names(proof).filter_map(|name| check(name).err()).map(|error| format!("{id}: {error}")));
        let says =
            |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == id);
        if proof.contains("(deviations.md") && !says(&deviations) {
            wrong.push(format!("{id}: deviations.md does not name it"));
        }
        if proof.contains("(limits.md") && !says(&limits) {
            wrong.push(format!("{id}: limits.md does not name it"));
        }
        let stated = proof.contains("](") || (id.starts_with("MAY") && proof.starts_with("no"));
        if names(proof).next().is_none() && !stated {
            wrong.push(format!("{id} has no proof"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Shows that the check above can fail.
#[test]
fn missing_proofs_are_detected() {
    assert!(check("close/active.pkt").is_ok());
    assert!(check("close/nothing_of_the_kind.pkt").is_err());
    assert!(check("tests/protocol/rfc9293.rs::missing_proofs_are_detected").is_ok());
    assert!(
        check("tests/protocol/rfc9293.rs::what_does_not_exist").is_err(),
        "a part of a name is not a name"
    );
    assert!(check("tests/no_such_file.rs::a_test").is_err());
    assert!(check("tests/protocol/rfc9293.rs::names").is_err(), "a function that is no test");
    assert!(check("tests/protocol/rfc9293.rs").is_err(), "a file is no test");
    let seen: BTreeSet<_> = names("a `b`, c `d::e`").collect();
    assert_eq!(seen, BTreeSet::from(["b", "d::e"]));
}
