//! `tcp-stack/README.md` lists the features, and what it names exists.

#![allow(clippy::unwrap_used, reason = "what a test reads is in the repository")]

mod proofs;

use proofs::{check, names, read, repository};
use std::collections::BTreeSet;

/// The rows of the table: feature, RFCs, where, proofs. Headings have empty cells.
fn rows(text: &str) -> Vec<[&str; 4]> {
    text.lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---"))
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells.try_into().unwrap_or_else(|cells| panic!("{cells:?} has not four cells"))
        })
        .collect()
}

#[test]
fn every_feature_has_a_file_and_a_proof() {
    let text = read(&repository().join("tcp-stack/README.md"));
    let (mut wrong, mut features) = (Vec::new(), BTreeSet::new());
    for [feature, _, place, proofs] in rows(&text) {
        if feature.starts_with("**") {
            assert!(place.is_empty() && proofs.is_empty(), "{feature} is a heading");
            continue;
        }
        assert!(features.insert(feature), "{feature} stands there twice");
        if names(place).next().is_none() || names(proofs).next().is_none() {
            wrong.push(format!("{feature}: no place, or no proof"));
        }
        for file in names(place) {
            if !repository().join("tcp-stack/src").join(file).is_file() {
                wrong.push(format!("{feature}: there is no {file}"));
            }
        }
        wrong.extend(names(proofs).filter_map(|name| check(name).err()).map(|e| format!("{feature}: {e}")));
    }
    assert!(features.len() > 50, "only {} features", features.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
