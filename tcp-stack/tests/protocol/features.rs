//! Checks that the files and tests that the feature list in `tcp-stack/README.md` names exist.

use crate::proofs;
use proofs::{check, names, read, repository};
use std::collections::BTreeSet;

/// Returns the features of the list: name, places and proofs. Each is an item `- **name** (RFCs): places` with one
/// nested item that names the proofs.
fn features(text: &str) -> Vec<(String, String, String)> {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let items =
        text.split("\n\n").flat_map(|part| part.strip_prefix("- ")).flat_map(|list| list.split("\n- "));
    items
        .map(|item| {
            let parsed = item.split_once("\n  - ").and_then(|(head, proofs)| {
                let (name, places) = head.strip_prefix("**")?.split_once("**")?;
                Some((one_line(name), one_line(places), one_line(proofs)))
            });
            parsed.unwrap_or_else(|| panic!("{item:?} is not a feature with its proofs"))
        })
        .collect()
}

#[test]
fn every_feature_has_a_file_and_a_proof() {
    let text = read(&repository().join("tcp-stack/README.md"));
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    let listed = features(&text);
    for (feature, place, proofs) in &listed {
        assert!(seen.insert(feature), "{feature} is listed twice");
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
    assert!(seen.len() > 50, "only {} features", seen.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
