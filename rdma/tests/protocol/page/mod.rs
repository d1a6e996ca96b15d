//! Pages of docs/ whose lists name the tests that prove them.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads a page of docs/.
pub(crate) fn read(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// Returns the texts in `backticks` in a part of an entry.
fn quoted(names: &str) -> impl Iterator<Item = &str> {
    names.split('`').skip(1).step_by(2)
}

/// Panics unless each name in the text is a test of the file named before it, and at least one exists.
#[track_caller]
pub(crate) fn assert_names_tests(names: &str) {
    let (mut file, mut text, mut tests) = ("", String::new(), 0);
    for name in quoted(names) {
        if Path::new(name).extension().is_some_and(|extension| extension == "rs") {
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
    assert!(tests > 0, "no test is named in: {names}");
}

/// Panics unless each file named in the text exists, each function named after one is in it, and one file is named.
#[track_caller]
pub(crate) fn assert_names_code(names: &str) {
    let (mut text, mut files) = (String::new(), 0);
    for name in quoted(names) {
        if Path::new(name).extension().is_some() && name.contains('/') {
            text =
                std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            files += 1;
        } else {
            assert!(text.contains(name), "`{name}` is not in the file named before it: {names}");
        }
    }
    assert!(files > 0, "no file is named in: {names}");
}
